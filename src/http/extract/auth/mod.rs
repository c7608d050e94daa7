//! Tokens: who calls, and what the caller may do.
//!
//! A token is a JWT of one issuer for this audience. A verified one is cached by its SHA-256, so
//! that its signature is checked once.

mod keys;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::{HeaderMap, header::AUTHORIZATION};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD};
use moka::future::Cache;
use secrecy::SecretString;
use sha2::{Digest, Sha256};

use self::keys::KeySet;
pub use self::keys::TokenRules;
use crate::{
    broker::Error,
    http::reload::Reloaded,
    model::{Code, Name, Scopes},
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
    Signed(Reloaded<KeySet>),
}

/// A token that was verified, by these keys: when they change, it is verified again.
#[derive(Clone)]
struct Verified {
    grant: Arc<Grant>,
    by: Arc<KeySet>,
}

impl Keys {
    /// Accepts all requests without looking at tokens.
    pub fn open() -> Result<Self, String> {
        let tenant = Name::parse("default")?;
        let scopes = Arc::new(Scopes::all());
        let grant = Grant { tenant, scopes, subject: None, token_id: None, expires_at_s: u64::MAX };
        Ok(Self::of(Mode::Open(Arc::new(grant))))
    }

    /// The tenant of all requests, if they need no token.
    pub fn open_tenant(&self) -> Option<&Name> {
        match &self.mode {
            Mode::Open(grant) => Some(&grant.tenant),
            Mode::Signed(_) => None,
        }
    }

    /// Uses shared secrets, for small installations: that of now, and perhaps the one before it.
    pub fn hs256(secrets: &[SecretString], rules: &TokenRules) -> Result<Self, String> {
        Ok(Self::of(Mode::Signed(Reloaded::constant(KeySet::hs256(secrets, rules)?))))
    }

    /// Uses the public keys of an issuer (RFC 7517).
    pub fn jwks(document: &str, rules: &TokenRules) -> Result<Self, String> {
        Ok(Self::of(Mode::Signed(Reloaded::constant(KeySet::jwks(document, rules)?))))
    }

    /// The same from a file, which is followed.
    pub fn jwks_file(path: &Path, rules: TokenRules) -> Result<Self, String> {
        let named = path.display().to_string();
        let parse = move |contents: &[Vec<u8>]| {
            let [document] = contents else { return Err("no JWKS".to_owned()) };
            KeySet::jwks(&String::from_utf8_lossy(document), &rules)
                .map_err(|why| format!("{named}: {why}"))
        };
        Ok(Self::of(Mode::Signed(Reloaded::start("jwks", vec![path.to_owned()], parse)?)))
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
        let keys = match &self.mode {
            Mode::Open(grant) => return Ok(grant.clone()),
            Mode::Signed(keys) => keys.current(),
        };
        let token = bearer(headers)?;
        let print: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let verified = self.verified.get(&print).await;
        if let Some(Verified { grant, .. }) =
            verified.filter(|verified| Arc::ptr_eq(&verified.by, &keys))
        {
            return if grant.expires_at_s.saturating_add(LEEWAY_S) > now_s() {
                Ok(grant)
            } else {
                Err(unauthenticated("The token has expired."))
            };
        }
        let mut grant = keys.verify(token)?;
        let print_of = |print: &[u8]| URL_SAFE_NO_PAD.encode(&print[..TOKEN_ID_BYTES]);
        grant.token_id.get_or_insert_with(|| print_of(&print));
        let grant = Arc::new(grant);
        self.verified.insert(print, Verified { grant: grant.clone(), by: keys }).await;
        Ok(grant)
    }
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
    /// The token's `sub`, cut where it is long.
    pub subject: Option<String>,
    /// The token's `jti`, cut where it is long; without one the beginning of its SHA-256.
    pub token_id: Option<String>,
    expires_at_s: u64,
}

#[cfg(test)]
mod tests;
