//! Tokens: who calls, and what the caller may do.
//!
//! A token is a JWT of one of the issuers. A verified one is cached by its SHA-256, so that its
//! signature is checked once.

mod fetched;
mod issuer;
mod keys;

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::{HeaderMap, header::AUTHORIZATION};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD};
use jsonwebtoken::dangerous::insecure_decode_claims;
use moka::future::Cache;
use serde::Deserialize;
use sha2::{Digest, Sha256};

pub use self::issuer::{Issuer, TokenRules};
use self::keys::KeySet;
use crate::{
    broker::Error,
    model::{Code, Name, Scopes, Timestamp, tenant::revocation::IssuedToken},
};

/// Allowed clock skew of issuers.
const LEEWAY_S: u64 = 5;
const MAX_TOKEN_BYTES: usize = 16 << 10;
const REMEMBERED_TOKENS: u64 = 10_000;
/// Of the SHA-256 of a token without `jti`: enough to know it again, and nothing of the token.
const TOKEN_ID_BYTES: usize = 9;

/// What tokens are checked against.
pub struct Keys {
    mode: Mode,
    verified: Cache<[u8; 32], Verified>,
}

enum Mode {
    /// Embedded mode: anybody who reaches the port may do everything, as tenant `default`.
    Open(Arc<Grant>),
    /// At least one, each of another name.
    Signed(Vec<Issuer>),
}

/// A token that was verified, by these keys: when they change, it is verified again.
#[derive(Clone)]
struct Verified {
    grant: Arc<Grant>,
    /// Its place among the issuers.
    issuer: usize,
    by: Arc<KeySet>,
}

impl Keys {
    /// Accepts all requests without looking at tokens.
    pub fn open() -> Result<Self, String> {
        let tenant = Name::parse("default")?;
        let scopes = Arc::new(Scopes::all());
        let grant = Grant {
            tenant,
            scopes,
            issuer: None,
            subject: None,
            token_id: None,
            issued_at: None,
            expires_at_s: u64::MAX,
        };
        Ok(Self::of(Mode::Open(Arc::new(grant))))
    }

    /// Accepts the tokens of these issuers. Err: there is none, or two have one name.
    pub fn of_issuers(issuers: Vec<Issuer>) -> Result<Self, String> {
        if issuers.is_empty() {
            return Err("there is no issuer of tokens".into());
        }
        for (index, issuer) in issuers.iter().enumerate() {
            if issuers[..index].iter().any(|other| other.name() == issuer.name()) {
                return Err(format!("there are two issuers of tokens named {}", issuer.name()));
            }
        }
        Ok(Self::of(Mode::Signed(issuers)))
    }

    /// The tenant of all requests, if they need no token.
    pub fn open_tenant(&self) -> Option<&Name> {
        match &self.mode {
            Mode::Open(grant) => Some(&grant.tenant),
            Mode::Signed(_) => None,
        }
    }

    fn of(mode: Mode) -> Self {
        let verified = Cache::builder()
            .max_capacity(REMEMBERED_TOKENS)
            .time_to_live(Duration::from_secs(3600))
            .build();
        Self { mode, verified }
    }

    /// Returns what the request's token permits.
    pub async fn grant(&self, headers: &HeaderMap) -> Result<Arc<Grant>, Error> {
        let issuers = match &self.mode {
            Mode::Open(grant) => return Ok(grant.clone()),
            Mode::Signed(issuers) => issuers,
        };
        let token = bearer(headers)?;
        let print: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(Verified { grant, issuer, by }) = self.verified.get(&print).await
            && Arc::ptr_eq(&by, &issuers[issuer].keys().await?)
        {
            return if grant.expires_at_s.saturating_add(LEEWAY_S) > now_s() {
                Ok(grant)
            } else {
                Err(unauthenticated("The token has expired."))
            };
        }
        let issuer = issuer_of(token, issuers)?;
        let (mut grant, by) = issuers[issuer].verify(token).await?;
        let print_of = |print: &[u8]| URL_SAFE_NO_PAD.encode(&print[..TOKEN_ID_BYTES]);
        grant.token_id.get_or_insert_with(|| print_of(&print));
        let grant = Arc::new(grant);
        self.verified.insert(print, Verified { grant: grant.clone(), issuer, by }).await;
        Ok(grant)
    }
}

/// The place of the issuer that a token names, whose keys then have to verify it. A lone one is
/// asked in any case, and says what is wrong.
fn issuer_of(token: &str, issuers: &[Issuer]) -> Result<usize, Error> {
    #[derive(Deserialize)]
    struct Named {
        iss: String,
    }

    if issuers.len() == 1 {
        return Ok(0);
    }
    let named: Named = insecure_decode_claims(token)
        .map_err(|_| unauthenticated("The token is not a JWT that names its issuer (iss)."))?;
    let place = issuers.iter().position(|issuer| issuer.name() == named.iss);
    place.ok_or_else(|| unauthenticated("The token is from another issuer (iss)."))
}

fn bearer(headers: &HeaderMap) -> Result<&str, Error> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (first, second) = (values.next(), values.next());
    let Some(first) = first else {
        return Err(unauthenticated("A bearer token is required: Authorization: Bearer <JWT>."));
    };
    let token = match (first.to_str().ok().and_then(|text| text.split_once(' ')), second) {
        (Some((scheme, token)), None) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
        _ => return Err(unauthenticated("Expected one Authorization header: Bearer <JWT>.")),
    };
    if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
        return Err(unauthenticated("The bearer token is empty or too long."));
    }
    Ok(token)
}

fn unauthenticated(detail: &str) -> Error {
    Error::new(Code::Unauthenticated, detail)
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The permissions of a verified token.
#[derive(Debug)]
pub struct Grant {
    pub tenant: Name,
    pub scopes: Arc<Scopes>,
    /// The token's `iss`.
    pub issuer: Option<Arc<str>>,
    /// The token's `sub`, cut where it is long.
    pub subject: Option<String>,
    /// The token's `jti`, cut where it is long; without one the beginning of its SHA-256.
    pub token_id: Option<String>,
    /// Its `iat`.
    issued_at: Option<Timestamp>,
    expires_at_s: u64,
}

impl Grant {
    /// What the token says of itself; none where requests need no token.
    pub fn token(&self) -> Option<IssuedToken<'_>> {
        let (id, subject) = (self.token_id.as_deref()?, self.subject.as_deref());
        Some(IssuedToken { id, subject, issued_at: self.issued_at })
    }
}

#[cfg(test)]
mod tests;
