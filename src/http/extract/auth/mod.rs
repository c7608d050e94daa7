//! Tokens: who calls, and what the caller may do.
//!
//! A token is a JWT of one issuer for this audience. The algorithm comes from the key, never from
//! the token. A verified token is cached by its SHA-256, so that its signature is checked once.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::{HeaderMap, header::AUTHORIZATION};
use jsonwebtoken::{
    Algorithm, DecodingKey, Validation,
    errors::ErrorKind,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse},
};
use moka::future::Cache;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    broker::Error,
    model::{Code, Name, Scopes, scopes::Subject},
};

/// Allowed clock skew of issuers.
const LEEWAY_S: u64 = 5;
const MAX_TOKEN_BYTES: usize = 16 << 10;
const REMEMBERED_TOKENS: u64 = 10_000;
/// Minimum secret length: a key at least as long as the hash (RFC 7518, 3.2).
const MIN_SECRET_BYTES: usize = 32;

/// The keys that tokens are checked against.
pub struct Keys {
    mode: Mode,
    verified: Cache<[u8; 32], Arc<Grant>>,
}

enum Mode {
    /// Embedded mode: anybody who reaches the port may do everything, as tenant `default`.
    Open(Arc<Grant>),
    Signed(Vec<VerificationKey>),
}

struct VerificationKey {
    kid: Option<String>,
    key: DecodingKey,
    validation: Validation,
}

impl Keys {
    /// Accepts all requests without looking at tokens.
    pub fn open() -> Result<Self, String> {
        let tenant = Name::parse("default")?;
        let scopes = Arc::new(Scopes::all());
        Ok(Self::of(Mode::Open(Arc::new(Grant { tenant, scopes, expires_at_s: u64::MAX }))))
    }

    /// The tenant of all requests, if they need no token.
    pub fn open_tenant(&self) -> Option<&Name> {
        match &self.mode {
            Mode::Open(grant) => Some(&grant.tenant),
            Mode::Signed(_) => None,
        }
    }

    /// Uses one shared secret, for small installations.
    pub fn hs256(secret: &SecretString, audience: &str, issuer: &str) -> Result<Self, String> {
        let secret = secret.expose_secret().as_bytes();
        if secret.len() < MIN_SECRET_BYTES {
            return Err(format!("an HS256 secret must have at least {MIN_SECRET_BYTES} bytes"));
        }
        let validation = validation_for(Algorithm::HS256, audience, issuer);
        let key = VerificationKey { kid: None, key: DecodingKey::from_secret(secret), validation };
        Ok(Self::of(Mode::Signed(vec![key])))
    }

    /// Uses the public keys of an issuer (RFC 7517). Keys of other kinds or for other uses are
    /// ignored; if none is left, that is an error.
    pub fn jwks(document: &str, audience: &str, issuer: &str) -> Result<Self, String> {
        let set: JwkSet =
            serde_json::from_str(document).map_err(|error| format!("not a JWKS: {error}"))?;
        let mut keys: Vec<VerificationKey> = Vec::new();
        for jwk in &set.keys {
            let Some(algorithm) = algorithm(jwk) else { continue };
            let kid = jwk.common.key_id.clone();
            if keys.iter().any(|key| key.kid == kid) {
                return Err(format!("the JWKS has two keys with kid {kid:?}"));
            }
            let key = DecodingKey::from_jwk(jwk)
                .map_err(|error| format!("key {kid:?} of the JWKS: {error}"))?;
            keys.push(VerificationKey {
                kid,
                key,
                validation: validation_for(algorithm, audience, issuer),
            });
        }
        if keys.is_empty() {
            return Err("the JWKS has no RS256, ES256 or EdDSA signature key".into());
        }
        Ok(Self::of(Mode::Signed(keys)))
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
            Mode::Signed(keys) => keys,
        };
        let token = bearer(headers)?;
        let print: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(grant) = self.verified.get(&print).await {
            return if grant.expires_at_s.saturating_add(LEEWAY_S) > now_s() {
                Ok(grant)
            } else {
                Err(unauthenticated("The token has expired."))
            };
        }
        let grant = Arc::new(verify(keys, token)?);
        self.verified.insert(print, grant.clone()).await;
        Ok(grant)
    }
}

/// The algorithm of a key: the one it names, or the only one its type allows.
fn algorithm(jwk: &Jwk) -> Option<Algorithm> {
    let implied = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        _ => return None,
    };
    let named = jwk.common.key_algorithm.is_none_or(|named| named == implied.1);
    let signs = matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature));
    (named && signs).then_some(implied.0)
}

fn validation_for(algorithm: Algorithm, audience: &str, issuer: &str) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.leeway = LEEWAY_S;
    validation.validate_nbf = true;
    validation.set_audience(&[audience]);
    validation.set_issuer(&[issuer]);
    validation.set_required_spec_claims(&["exp", "aud", "iss"]);
    validation
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

#[derive(Deserialize)]
struct Claims {
    /// Some issuers write fractions. (The JWT validation already requires the claim.)
    #[serde(default)]
    exp: f64,
    tenant: Option<String>,
    #[serde(default)]
    scope: String,
    /// A number, as some issuers write it, names nobody.
    sub: Option<Value>,
}

impl Claims {
    fn subject(&self) -> Option<Subject> {
        let sub = self.sub.as_ref()?.as_str().filter(|sub| !sub.is_empty())?;
        Some(Sha256::digest(sub.as_bytes()).into())
    }
}

fn verify(keys: &[VerificationKey], token: &str) -> Result<Grant, Error> {
    let header = jsonwebtoken::decode_header(token)
        .map_err(|_| unauthenticated("The token is not a supported JWT."))?;
    let named = |key: &&VerificationKey| key.kid.is_some() && key.kid == header.kid;
    // A lone key answers tokens without kid, and the nameless shared secret answers all.
    let key = match keys {
        [only] if header.kid.is_none() || only.kid.is_none() => Some(only),
        _ => keys.iter().find(named),
    };
    let key = key.ok_or_else(|| unauthenticated("The token's kid names an unknown key."))?;
    let decoded = jsonwebtoken::decode::<Claims>(token, &key.key, &key.validation);
    let claims = decoded.map_err(|error| unauthenticated(reason(error.kind())))?.claims;
    let Some(Ok(tenant)) = claims.tenant.as_deref().map(Name::parse) else {
        return Err(unauthenticated("The token's tenant claim is missing or not a valid name."));
    };
    let scopes = Arc::new(Scopes::parse(&claims.scope, claims.subject()));
    Ok(Grant { tenant, scopes, expires_at_s: claims.exp as u64 })
}

/// Says what is wrong without quoting the token.
fn reason(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ExpiredSignature => "The token has expired.",
        ErrorKind::ImmatureSignature => "The token is not valid yet (nbf).",
        ErrorKind::InvalidAudience => "The token is for another audience (aud).",
        ErrorKind::InvalidIssuer => "The token is from another issuer (iss).",
        ErrorKind::InvalidSignature => "The token's signature is invalid.",
        ErrorKind::InvalidAlgorithm => "The token's alg does not match its key.",
        ErrorKind::MissingRequiredClaim(claim) => match claim.as_str() {
            "aud" => "The token lacks the aud claim.",
            "iss" => "The token lacks the iss claim.",
            _ => "The token lacks the exp claim.",
        },
        ErrorKind::Json(_) => "A claim of the token has the wrong type.",
        _ => "The token is malformed.",
    }
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
    expires_at_s: u64,
}

#[cfg(test)]
mod tests;
