//! Who sent a request, once that is known: the layers around the routes count by it, and the audit
//! log names it.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use axum::{
    body::HttpBody,
    http::{Extensions, HeaderName, HeaderValue},
    response::Response,
};

use super::auth::Grant;
use crate::{
    broker::{Error, Meter},
    model::{
        Code, TenantId,
        settings::rates::{Metered, RateState, WINDOW_S},
    },
};

/// The rates of a tenant in the headers of its answers (draft-ietf-httpapi-ratelimit-headers): an
/// item for each that is limited, by its setting.
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Who sent a request. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Caller(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    client: Option<IpAddr>,
    /// Of its token, once that is verified.
    grant: OnceLock<Arc<Grant>>,
    /// Once it is permitted to do something in its tenant.
    admitted: OnceLock<Admitted>,
    /// Set if it acts as an operator in place of a client.
    operates: OnceLock<()>,
}

#[derive(Debug)]
struct Admitted {
    tenant: TenantId,
    /// Of its rates, if it has some.
    meter: Option<Meter>,
}

impl Caller {
    /// A client at this address.
    pub fn at(client: IpAddr) -> Self {
        Self(Arc::new(Known { client: Some(client), ..Known::default() }))
    }

    /// That of a request; nobody, if no connection is behind it.
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// None: nobody has been admitted.
    pub fn tenant(&self) -> Option<TenantId> {
        self.0.admitted.get().map(|admitted| admitted.tenant)
    }

    /// None: nobody has been admitted, or his rates are not limited.
    pub fn meter(&self) -> Option<&Meter> {
        self.0.admitted.get()?.meter.as_ref()
    }

    pub fn client(&self) -> Option<IpAddr> {
        self.0.client
    }

    /// None: it has shown no token that is good.
    pub fn grant(&self) -> Option<&Grant> {
        self.0.grant.get().map(|grant| &**grant)
    }

    pub fn is_operating(&self) -> bool {
        self.0.operates.get().is_some()
    }

    pub(super) fn operates(&self) {
        let _ = self.0.operates.set(());
    }

    pub(super) fn shows(&self, grant: Arc<Grant>) {
        let _ = self.0.grant.set(grant);
    }

    /// Takes an answer's bytes, and shows what is left. A request that the rates kept out takes
    /// nothing: else who repeats it too early would keep himself out.
    pub fn answered(&self, answer: &mut Response, error: Option<&Error>) {
        let Some(meter) = self.meter() else { return };
        if error.is_none_or(|error| error.code != Code::RateLimited) {
            meter.answered(answer.body().size_hint().lower());
        }
        let states = meter.states();
        for (header, item) in [(RATE_LIMIT_POLICY, policy as fn(&_) -> _), (RATE_LIMIT, left)] {
            let items = states.iter().map(item).collect::<Vec<String>>().join(", ");
            if let Ok(value) = HeaderValue::from_str(&items) {
                answer.headers_mut().insert(header, value);
            }
        }
    }

    pub(super) fn is(&self, tenant: TenantId, meter: Option<Meter>) {
        let _ = self.0.admitted.set(Admitted { tenant, meter });
    }
}

fn policy(state: &RateState) -> String {
    let unit = match state.metered {
        Metered::Requests => "",
        Metered::BytesIn | Metered::BytesOut => ";qu=\"content-bytes\"",
    };
    format!("\"{}\";q={};w={WINDOW_S}{unit}", state.metered.key().name(), state.quota)
}

fn left(state: &RateState) -> String {
    format!("\"{}\";r={};t={}", state.metered.key().name(), state.left, state.full_in_s)
}
