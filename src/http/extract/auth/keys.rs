//! The keys of an issuer, and what a token signed by one must be. The algorithm comes from the key,
//! never from the token.

use jsonwebtoken::{
    Algorithm, DecodingKey, Header, Validation,
    errors::ErrorKind,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Grant, LEEWAY_S, now_s, unauthenticated};
use crate::{
    broker::Error,
    model::{Name, Scopes, scopes::Subject, validation::shown},
};

/// Minimum secret length: a key at least as long as the hash (RFC 7518, 3.2).
const MIN_SECRET_BYTES: usize = 32;

/// What the tokens of an issuer must say.
#[derive(Clone, Debug)]
pub struct TokenRules {
    /// `aud`
    pub audience: String,
    /// `iss`
    pub issuer: String,
    /// The longest time from `iat`, else from now, to `exp`.
    pub max_life_s: Option<u64>,
}

/// The keys of an issuer.
pub struct KeySet {
    keys: Vec<VerificationKey>,
    max_life_s: Option<u64>,
}

struct VerificationKey {
    kid: Option<String>,
    key: DecodingKey,
    validation: Validation,
}

impl KeySet {
    pub fn hs256(secrets: &[SecretString], rules: &TokenRules) -> Result<Self, String> {
        let keys = secrets.iter().map(|secret| {
            let secret = secret.expose_secret().as_bytes();
            if secret.len() < MIN_SECRET_BYTES {
                return Err(format!("an HS256 secret must have at least {MIN_SECRET_BYTES} bytes"));
            }
            let validation = validation_for(Algorithm::HS256, rules);
            Ok(VerificationKey { kid: None, key: DecodingKey::from_secret(secret), validation })
        });
        Ok(Self { keys: keys.collect::<Result<_, _>>()?, max_life_s: rules.max_life_s })
    }

    /// Keys of other kinds or for other uses are ignored; if none is left, that is an error.
    pub fn jwks(document: &str, rules: &TokenRules) -> Result<Self, String> {
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
            keys.push(VerificationKey { kid, key, validation: validation_for(algorithm, rules) });
        }
        if keys.is_empty() {
            return Err("the JWKS has no RS256, ES256 or EdDSA signature key".into());
        }
        Ok(Self { keys, max_life_s: rules.max_life_s })
    }

    /// What the token permits.
    pub fn verify(&self, token: &str) -> Result<Grant, Error> {
        let header = jsonwebtoken::decode_header(token)
            .map_err(|_| unauthenticated("The token is not a supported JWT."))?;
        judge(&header)?;
        let claims = self.decode(token, &header)?;
        let Some(Ok(tenant)) = claims.tenant.as_deref().map(Name::parse) else {
            return Err(unauthenticated(
                "The token's tenant claim is missing or not a valid name.",
            ));
        };
        if self.max_life_s.is_some_and(|most_s| claims.life_s() > most_s as f64) {
            return Err(unauthenticated(
                "The token is valid for longer than this server accepts (max_token_life_ms).",
            ));
        }
        let scopes = Scopes::parse(&claims.scope, claims.subject()).into();
        let [subject, token_id] = [&claims.sub, &claims.jti].map(|claim| text(claim).map(shown));
        Ok(Grant { tenant, scopes, subject, token_id, expires_at_s: claims.exp as u64 })
    }

    /// The claims, if a key that may have signed the token has.
    fn decode(&self, token: &str, header: &Header) -> Result<Claims, Error> {
        let may_have_signed = |key: &&VerificationKey| match &key.kid {
            // a shared secret has no name, and answers all
            None => true,
            // a lone key answers tokens without kid
            Some(_) if header.kid.is_none() => self.keys.len() == 1,
            kid => *kid == header.kid,
        };
        let mut refusal = "The token's kid names an unknown key.";
        for key in self.keys.iter().filter(may_have_signed) {
            match jsonwebtoken::decode::<Claims>(token, &key.key, &key.validation) {
                Ok(decoded) => return Ok(decoded.claims),
                // another key may have signed it
                Err(error) if *error.kind() == ErrorKind::InvalidSignature => {
                    refusal = reason(error.kind());
                }
                Err(error) => return Err(unauthenticated(reason(error.kind()))),
            }
        }
        Err(unauthenticated(refusal))
    }
}

/// Refuses what is signed but is no access token, or means more than is understood here.
fn judge(header: &Header) -> Result<(), Error> {
    // RFC 7515, 4.1.11
    if header.crit.is_some() {
        return Err(unauthenticated(
            "The token's crit demands extensions that this server does not have.",
        ));
    }
    // RFC 8725, 3.11: an issuer signs other things with the same key
    let typ = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
    let typ = typ.strip_prefix("application/").unwrap_or(&typ);
    if !["jwt", "at+jwt"].contains(&typ) {
        return Err(unauthenticated("The token's typ is neither JWT nor at+jwt."));
    }
    Ok(())
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

fn validation_for(algorithm: Algorithm, rules: &TokenRules) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.leeway = LEEWAY_S;
    validation.validate_nbf = true;
    validation.set_audience(&[&rules.audience]);
    validation.set_issuer(&[&rules.issuer]);
    validation.set_required_spec_claims(&["exp", "aud", "iss"]);
    validation
}

#[derive(Deserialize)]
struct Claims {
    /// Some issuers write fractions. (The JWT validation already requires the claim.)
    #[serde(default)]
    exp: f64,
    iat: Option<f64>,
    tenant: Option<String>,
    #[serde(default)]
    scope: String,
    /// A number, as some issuers write it, names nobody.
    sub: Option<Value>,
    jti: Option<Value>,
}

fn text(claim: &Option<Value>) -> Option<String> {
    let text = claim.as_ref()?.as_str().filter(|text| !text.is_empty())?;
    Some(text.to_owned())
}

impl Claims {
    fn life_s(&self) -> f64 {
        self.exp - self.iat.unwrap_or(now_s() as f64)
    }

    fn subject(&self) -> Option<Subject> {
        Some(Sha256::digest(text(&self.sub)?.as_bytes()).into())
    }
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
