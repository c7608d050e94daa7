//! The keys of tokens, as they are configured.

use secrecy::SecretString;

use crate::{
    config::{Config, issuers::JwksSource},
    http::extract::auth::{Issuer, Keys, TokenRules},
};

/// What the configuration says tokens are checked against.
pub fn token_keys(config: &Config) -> anyhow::Result<Keys> {
    let max_life_s = Some(config.max_token_life_ms / 1000).filter(|life_s| *life_s > 0);
    let secrets = [&config.token_hs256_secret, &config.token_hs256_previous_secret];
    let secrets: Vec<SecretString> = secrets.into_iter().flatten().cloned().collect();
    let own =
        TokenRules { max_life_s, ..TokenRules::new(&config.token_issuer, &config.token_audience) };
    let own = match (&config.token_jwks_file, &config.token_jwks_url) {
        (Some(path), _) => Some(Issuer::jwks_file(path, own)),
        (None, Some(url)) => Some(Issuer::jwks_url(url.clone(), own)),
        (None, None) if secrets.is_empty() => None,
        (None, None) => Some(Issuer::hs256(&secrets, own)),
    };
    let further = config.token_issuers_file.iter().flatten().map(|of| {
        let rules = TokenRules {
            issuer: of.issuer.clone(),
            audience: of.audience.as_ref().unwrap_or(&config.token_audience).clone(),
            tenant_claim: of.tenant_claim.clone(),
            scope_claim: of.scope_claim.clone(),
            tenants: of.tenants.clone(),
            scopes: of.scopes.clone(),
            has_own_subjects: true,
            max_life_s,
        };
        match &of.keys {
            JwksSource::File(path) => Issuer::jwks_file(path, rules),
            JwksSource::Url(url) => Issuer::jwks_url(url.clone(), rules),
        }
    });
    let issuers: Result<Vec<Issuer>, String> = own.into_iter().chain(further).collect();
    let keys =
        issuers.and_then(
            |issuers| {
                if issuers.is_empty() { Keys::open() } else { Keys::of_issuers(issuers) }
            },
        );
    keys.map_err(|what| anyhow::anyhow!(what))
}
