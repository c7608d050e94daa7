//! The keys of an issuer. The algorithm of a signature comes from the key, never from the token.

use jsonwebtoken::{
    Algorithm, DecodingKey, Header, Validation,
    errors::{Error, ErrorKind},
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

/// Minimum secret length: a key at least as long as the hash (RFC 7518, 3.2).
const MIN_SECRET_BYTES: usize = 32;

pub type Claims = Map<String, Value>;

/// Keys that belong together: one of them has signed, or none.
pub struct KeySet(Vec<VerificationKey>);

struct VerificationKey {
    kid: Option<String>,
    key: DecodingKey,
    algorithm: Algorithm,
}

/// Why a token is not one of these keys.
pub enum NotSigned {
    /// It names a key that is not among them.
    UnknownKey,
    Invalid(Error),
}

impl KeySet {
    pub fn hs256(secrets: &[SecretString]) -> Result<Self, String> {
        let keys = secrets.iter().map(|secret| {
            let secret = secret.expose_secret().as_bytes();
            if secret.len() < MIN_SECRET_BYTES {
                return Err(format!("an HS256 secret must have at least {MIN_SECRET_BYTES} bytes"));
            }
            let key = DecodingKey::from_secret(secret);
            Ok(VerificationKey { kid: None, key, algorithm: Algorithm::HS256 })
        });
        Ok(Self(keys.collect::<Result<_, _>>()?))
    }

    /// Public keys (RFC 7517). Those of other kinds or for other uses are ignored; if none is left,
    /// that is an error.
    pub fn jwks(document: &[u8]) -> Result<Self, String> {
        let set: JwkSet =
            serde_json::from_slice(document).map_err(|error| format!("not a JWKS: {error}"))?;
        let mut keys: Vec<VerificationKey> = Vec::new();
        for jwk in &set.keys {
            let Some(algorithm) = algorithm(jwk) else { continue };
            let kid = jwk.common.key_id.clone();
            if keys.iter().any(|key| key.kid == kid) {
                return Err(format!("the JWKS has two keys with kid {kid:?}"));
            }
            let key = DecodingKey::from_jwk(jwk)
                .map_err(|error| format!("key {kid:?} of the JWKS: {error}"))?;
            keys.push(VerificationKey { kid, key, algorithm });
        }
        if keys.is_empty() {
            return Err("the JWKS has no RS256, ES256 or EdDSA signature key".into());
        }
        Ok(Self(keys))
    }

    /// The claims, if a key that may have signed the token has, and they are valid.
    pub fn verify(
        &self,
        token: &str,
        header: &Header,
        validation: impl Fn(Algorithm) -> Validation,
    ) -> Result<Claims, NotSigned> {
        let may_have_signed = |key: &&VerificationKey| match &key.kid {
            // a shared secret has no name, and answers all
            None => true,
            // a lone key answers tokens without kid
            Some(_) if header.kid.is_none() => self.0.len() == 1,
            kid => *kid == header.kid,
        };
        let mut refusal = NotSigned::UnknownKey;
        for key in self.0.iter().filter(may_have_signed) {
            match jsonwebtoken::decode(token, &key.key, &validation(key.algorithm)) {
                Ok(decoded) => return Ok(decoded.claims),
                // another key may have signed it
                Err(error) if *error.kind() == ErrorKind::InvalidSignature => {
                    refusal = NotSigned::Invalid(error);
                }
                Err(error) => return Err(NotSigned::Invalid(error)),
            }
        }
        Err(refusal)
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
