//! An issuer of tokens: its keys, and what a token of it must say and may permit.

use std::{path::Path, sync::Arc};

use jsonwebtoken::{Algorithm, Header, Validation, errors::ErrorKind};
use reqwest::Url;
use secrecy::SecretString;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    Grant, LEEWAY_S,
    fetched::Fetched,
    keys::{Claims, KeySet, NotSigned},
    now_s, unauthenticated,
};
use crate::{
    broker::Error,
    http::reload::Reloaded,
    model::{Name, Pattern, Scopes, Timestamp, Word, scopes::Subject, validation::shown},
};

/// What the tokens of an issuer must say, and may permit.
#[derive(Clone, Debug)]
pub struct TokenRules {
    /// `iss`
    pub issuer: String,
    /// `aud`
    pub audience: String,
    /// The claims that name the tenant and the scopes: a name, or with a slash in front a JSON
    /// pointer (RFC 6901).
    pub tenant_claim: String,
    pub scope_claim: String,
    /// The tenants that it may name; none: any.
    pub tenants: Option<Vec<Pattern>>,
    /// The words that its scopes may have; others are as if they were not there.
    pub scopes: Vec<Word>,
    /// Whether its subjects are others than those of the same name elsewhere.
    pub has_own_subjects: bool,
    /// The longest time from `iat`, else from now, to `exp`.
    pub max_life_s: Option<u64>,
}

impl TokenRules {
    /// Tokens may name any tenant and permit everything, by the claims `tenant` and `scope`.
    pub fn new(issuer: &str, audience: &str) -> Self {
        Self {
            issuer: issuer.to_owned(),
            audience: audience.to_owned(),
            tenant_claim: "tenant".to_owned(),
            scope_claim: "scope".to_owned(),
            tenants: None,
            scopes: Word::ALL.to_vec(),
            has_own_subjects: false,
            max_life_s: None,
        }
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY_S;
        validation.validate_nbf = true;
        validation.set_audience(&[&self.audience]);
        validation.set_issuer(&[&self.issuer]);
        validation.set_required_spec_claims(&["exp", "aud", "iss"]);
        validation
    }

    /// What these claims, which a key of the issuer has signed, permit.
    fn grant(&self, claims: &Claims) -> Result<Grant, Error> {
        let wrong = |name: &str, what: &str| {
            Err(unauthenticated(&format!("The token's {name} claim is {what}.")))
        };
        let Some(Ok(tenant)) = text(claim(claims, &self.tenant_claim)).map(Name::parse) else {
            return wrong(&self.tenant_claim, "missing or not a valid name");
        };
        let may_name = |patterns: &Vec<Pattern>| patterns.iter().any(|each| each.covers(&tenant));
        if !self.tenants.as_ref().is_none_or(may_name) {
            return wrong(&self.tenant_claim, "a tenant that its issuer may not name");
        }
        let (expires_at, issued_at) = (number(claims, "exp"), number(claims, "iat"));
        // the validation has required it, and takes fractions
        let Some(expires_at_s) = expires_at else { return wrong("exp", "no number") };
        let life_s = expires_at_s - issued_at.unwrap_or(now_s() as f64);
        if self.max_life_s.is_some_and(|most_s| life_s > most_s as f64) {
            return Err(unauthenticated(
                "The token is valid for longer than this server accepts (max_token_life_ms).",
            ));
        }
        let Some(scope) = words(claim(claims, &self.scope_claim)) else {
            return wrong(&self.scope_claim, "neither a text nor an array of texts");
        };
        let [subject, token_id] = ["sub", "jti"].map(|name| text(claims.get(name)));
        let scopes = Scopes::parse(&scope, subject.map(|subject| self.subject(subject)));
        Ok(Grant {
            tenant,
            scopes: scopes.only(&self.scopes).into(),
            issuer: Some(self.issuer.as_str().into()),
            subject: subject.map(|subject| shown(subject.to_owned())),
            token_id: token_id.map(|id| shown(id.to_owned())),
            issued_at: issued_at.map(|at_s| Timestamp((at_s * 1_000.0) as i64)),
            expires_at_s: expires_at_s as u64,
        })
    }

    fn subject(&self, subject: &str) -> Subject {
        let hash = |text: &str| Subject::from(Sha256::digest(text.as_bytes()));
        if self.has_own_subjects {
            Sha256::digest([hash(&self.issuer), hash(subject)].concat()).into()
        } else {
            hash(subject)
        }
    }
}

fn claim<'a>(claims: &'a Claims, name: &str) -> Option<&'a Value> {
    let Some(path) = name.strip_prefix('/') else { return claims.get(name) };
    let mut segments = path.split('/').map(|one| one.replace("~1", "/").replace("~0", "~"));
    let first = claims.get(&segments.next()?)?;
    segments.try_fold(first, |value, segment| value.get(segment))
}

/// Anything but a text, or an empty one, names nobody.
fn text(claim: Option<&Value>) -> Option<&str> {
    claim?.as_str().filter(|text| !text.is_empty())
}

fn number(claims: &Claims, name: &str) -> Option<f64> {
    claims.get(name)?.as_f64()
}

/// The words of a scope, which some issuers write as an array.
fn words(claim: Option<&Value>) -> Option<String> {
    match claim {
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(words)) => {
            let words: Option<Vec<&str>> = words.iter().map(Value::as_str).collect();
            Some(words?.join(" "))
        }
        Some(_) => None,
    }
}

/// An issuer with its keys.
pub struct Issuer {
    rules: TokenRules,
    source: Source,
}

enum Source {
    Files(Reloaded<KeySet>),
    Url(Fetched),
}

impl Issuer {
    /// With shared secrets, for small installations: that of now, and perhaps the one before it.
    pub fn hs256(secrets: &[SecretString], rules: TokenRules) -> Result<Self, String> {
        Ok(Self { rules, source: Source::Files(Reloaded::constant(KeySet::hs256(secrets)?)) })
    }

    /// With public keys (RFC 7517).
    pub fn jwks(document: &str, rules: TokenRules) -> Result<Self, String> {
        let keys = KeySet::jwks(document.as_bytes())?;
        Ok(Self { rules, source: Source::Files(Reloaded::constant(keys)) })
    }

    /// The same from a file, which is followed.
    pub fn jwks_file(path: &Path, rules: TokenRules) -> Result<Self, String> {
        let named = path.display().to_string();
        let parse = move |contents: &[Vec<u8>]| {
            KeySet::jwks(&contents.concat()).map_err(|why| format!("{named}: {why}"))
        };
        let keys = Reloaded::start("jwks", vec![path.to_owned()], parse)?;
        Ok(Self { rules, source: Source::Files(keys) })
    }

    /// The same from a URL, which is asked again and again.
    pub fn jwks_url(url: Url, rules: TokenRules) -> Result<Self, String> {
        Ok(Self { source: Source::Url(Fetched::start(url, rules.issuer.clone())?), rules })
    }

    pub fn name(&self) -> &str {
        &self.rules.issuer
    }

    /// The keys as they are known now.
    pub async fn keys(&self) -> Result<Arc<KeySet>, Error> {
        match &self.source {
            Source::Files(keys) => Ok(keys.current()),
            Source::Url(keys) => keys.current().await.ok_or_else(|| {
                Error::unavailable(
                    "The public keys of the token's issuer could not be fetched. Nothing was \
                     changed; retry.",
                )
            }),
        }
    }

    /// What the token permits, and the keys that say so. A token of an unknown key is a reason to
    /// ask for the keys again.
    pub async fn verify(&self, token: &str) -> Result<(Grant, Arc<KeySet>), Error> {
        let header = jsonwebtoken::decode_header(token)
            .map_err(|_| unauthenticated("The token is not a supported JWT."))?;
        judge(&header)?;
        let mut keys = self.keys().await?;
        let validation = |algorithm| self.rules.validation(algorithm);
        let mut claims = keys.verify(token, &header, validation);
        if let (Err(NotSigned::UnknownKey), Source::Url(fetched)) = (&claims, &self.source)
            && let Some(newer) = fetched.newer().await
        {
            keys = newer;
            claims = keys.verify(token, &header, validation);
        }
        match claims {
            Ok(claims) => Ok((self.rules.grant(&claims)?, keys)),
            Err(NotSigned::UnknownKey) => {
                Err(unauthenticated("The token's kid names an unknown key."))
            }
            Err(NotSigned::Invalid(error)) => Err(unauthenticated(reason(error.kind()))),
        }
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
