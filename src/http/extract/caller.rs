//! Who sent a request, once that is known: the layers around the routes count by it.

use std::sync::{Arc, OnceLock};

use axum::{
    body::HttpBody,
    http::{Extensions, HeaderName, HeaderValue},
    response::Response,
};

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

/// The tenant of a request, known once it is permitted. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Caller(Arc<OnceLock<Admitted>>);

#[derive(Debug)]
struct Admitted {
    tenant: TenantId,
    /// Of its rates, if it has some.
    meter: Option<Meter>,
}

impl Caller {
    /// That of a request; nobody, if no connection is behind it.
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// None: nobody has been admitted.
    pub fn tenant(&self) -> Option<TenantId> {
        self.0.get().map(|admitted| admitted.tenant)
    }

    /// None: nobody has been admitted, or his rates are not limited.
    pub fn meter(&self) -> Option<&Meter> {
        self.0.get()?.meter.as_ref()
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
        let _ = self.0.set(Admitted { tenant, meter });
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
