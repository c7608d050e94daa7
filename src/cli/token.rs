//! `oncelog token`: signs tokens with the configured secret, and inspects tokens.

use std::{io::Read, path::PathBuf, time::Duration};

use anyhow::{Context, anyhow, bail};
use axum::http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use clap::{Args, Subcommand};
use jsonwebtoken::{EncodingKey, Header, encode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::{
    block_on,
    common::{duration, name, seconds_in_words},
    output::print,
};
use crate::{
    app,
    config::{self, Config},
    model::{Name, Timestamp, Word},
};

/// The limit of what is read from stdin; no server accepts tokens that long.
const MAX_TOKEN_BYTES: u64 = 1 << 20;

pub(super) const EXAMPLE: &str = "\
Example:
  oncelog token mint --tenant acme --scope produce | oncelog token inspect";

#[derive(Subcommand)]
pub(super) enum TokenCommand {
    /// Create a token, signed with the configured secret (HS256), and print it
    #[command(after_help = "\
Audience and issuer come from the configuration, so a server with the same one accepts the token.

Example:
  export ONCELOG_TOKEN_HS256_SECRET=\"$(openssl rand -hex 32)\"
  oncelog token mint --tenant acme --scope 'produce consume:orders.*' --expires-in 12h")]
    Mint(MintArgs),
    /// Show the claims of a token, when it expires, and whether it is valid for the configured key
    #[command(after_help = "\
The exit code is 0 if the token is accepted or no key is configured, else 1.

Example:
  echo \"$ONCELOG_TOKEN\" | oncelog token inspect")]
    Inspect(InspectArgs),
}

#[derive(Args)]
pub(super) struct MintArgs {
    /// Tenant that the token gives access to
    #[arg(long, value_parser = name)]
    tenant: Name,
    /// Permissions: one or more of produce, consume, group, admin and operator, separated by
    /// spaces; each may be restricted to a pattern of names (`produce:orders.*`)
    #[arg(long, value_parser = scope)]
    scope: String,
    /// Whom the token is for (`sub`): its sessions without a transactional_id are its own
    #[arg(long, value_name = "NAME")]
    sub: Option<String>,
    /// Lifetime of the token, such as 90s, 15m, 12h or 30d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    expires_in: Duration,
    #[command(flatten)]
    keys: KeyFlags,
}

#[derive(Args)]
pub(super) struct InspectArgs {
    /// The token; read from stdin if absent or `-`
    token: Option<SecretString>,
    #[command(flatten)]
    keys: KeyFlags,
}

/// The token keys of the configuration.
#[derive(Args)]
struct KeyFlags {
    /// TOML configuration file [env: ONCELOG_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Secret of HS256 tokens; prefer the environment [env: ONCELOG_TOKEN_HS256_SECRET]
    #[arg(long, value_name = "SECRET")]
    token_hs256_secret: Option<SecretString>,
    /// JWKS file with the public keys of tokens [env: ONCELOG_TOKEN_JWKS_FILE]
    #[arg(long, value_name = "FILE")]
    token_jwks_file: Option<SecretString>,
    /// URL of that JWKS instead [env: ONCELOG_TOKEN_JWKS_URL]
    #[arg(long, value_name = "URL")]
    token_jwks_url: Option<SecretString>,
    /// TOML file with further issuers of tokens [env: ONCELOG_TOKEN_ISSUERS_FILE]
    #[arg(long, value_name = "FILE")]
    token_issuers_file: Option<SecretString>,
    /// Required `aud` of tokens [default: oncelog] [env: ONCELOG_TOKEN_AUDIENCE]
    #[arg(long, value_name = "NAME")]
    token_audience: Option<SecretString>,
    /// Required `iss` of tokens [default: oncelog] [env: ONCELOG_TOKEN_ISSUER]
    #[arg(long, value_name = "NAME")]
    token_issuer: Option<SecretString>,
}

impl KeyFlags {
    fn read(self) -> Result<Config, config::ConfigErrors> {
        Config::read(&config::Flags::of(
            self.config,
            [
                ("token_hs256_secret", self.token_hs256_secret),
                ("token_jwks_file", self.token_jwks_file),
                ("token_jwks_url", self.token_jwks_url),
                ("token_issuers_file", self.token_issuers_file),
                ("token_audience", self.token_audience),
                ("token_issuer", self.token_issuer),
            ],
        ))
    }
}

/// Checks the scope. A server ignores unknown words, so a misspelt one would go unnoticed.
fn scope(text: &str) -> Result<String, String> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    for item in &words {
        let (word, pattern) = item.split_once(':').unwrap_or((item, "*"));
        if !Word::ALL.iter().any(|known| known.as_str() == word) || pattern.is_empty() {
            let all: Vec<&str> = Word::ALL.iter().map(|word| word.as_str()).collect();
            return Err(format!(
                "`{item}` is not one of {}, alone or with a pattern as in produce:orders.*",
                all.join(", ")
            ));
        }
    }
    if words.is_empty() { Err("the scope is empty".into()) } else { Ok(words.join(" ")) }
}

pub(super) fn run(command: TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Mint(args) => mint(args),
        TokenCommand::Inspect(args) => block_on(inspect(args)),
    }
}

fn now_s() -> i64 {
    Timestamp::from(chrono::Utc::now()).0 / 1000
}

fn mint(args: MintArgs) -> anyhow::Result<()> {
    let config = args.keys.read()?;
    let Some(secret) = &config.token_hs256_secret else {
        bail!(
            "no signing secret is configured: set ONCELOG_TOKEN_HS256_SECRET to that of the \
             server, at least 32 bytes. (Only its issuer can sign tokens for a JWKS.)"
        );
    };
    let lifetime_s = i64::try_from(args.expires_in.as_secs())?;
    let mut claims = json!({"aud": config.token_audience, "iss": config.token_issuer,
        "tenant": args.tenant.as_str(), "scope": args.scope,
        "iat": now_s(), "exp": now_s() + lifetime_s});
    if let Some(sub) = args.sub {
        claims["sub"] = sub.into();
    }
    let key = EncodingKey::from_secret(secret.expose_secret().as_bytes());
    let token = encode(&Header::default(), &claims, &key).context("cannot sign the token")?;
    print(format!("{token}\n").as_bytes())
}

async fn inspect(args: InspectArgs) -> anyhow::Result<()> {
    let config = args.keys.read()?;
    let mut token = match args.token {
        Some(token) if token.expose_secret() != "-" => token.expose_secret().to_owned(),
        _ => {
            let mut input = String::new();
            let read = std::io::stdin().take(MAX_TOKEN_BYTES).read_to_string(&mut input);
            read.context("cannot read the token from stdin")?;
            input
        }
    };
    token = token.trim().to_owned();
    let (header, claims) = decode(&token)?;
    let mut text = format!("signed with {}\n", word(&header, "alg"));
    for (name, value) in &claims {
        let instant = ["exp", "nbf", "iat"].contains(&name.as_str()).then(|| value.as_f64());
        let instant = instant.flatten().map(|seconds| in_words(seconds as i64));
        let words = instant.map(|words| format!("  ({words})")).unwrap_or_default();
        text += &format!("{name} = {value}{words}\n");
    }
    let verdict = check(&config, &token).await?;
    match verdict {
        TokenVerdict::NoKey => text += "no key is configured to check it against\n",
        TokenVerdict::Accepted => {
            text += "accepted: the configured key signed it, and it is valid\n"
        }
        TokenVerdict::Refused(_) => {}
    }
    print(text.as_bytes())?;
    match verdict {
        TokenVerdict::Refused(why) => Err(anyhow!("not accepted: {why}")),
        _ => Ok(()),
    }
}

enum TokenVerdict {
    NoKey,
    Accepted,
    Refused(String),
}

/// Whether a server with this configuration would accept the token.
async fn check(config: &Config, token: &str) -> anyhow::Result<TokenVerdict> {
    if !config.has_token_key() {
        return Ok(TokenVerdict::NoKey);
    }
    let value = HeaderValue::from_str(&format!("Bearer {token}"))?;
    let headers: HeaderMap = [(AUTHORIZATION, value)].into_iter().collect();
    Ok(match app::token_keys(config)?.grant(&headers).await {
        Ok(_) => TokenVerdict::Accepted,
        Err(error) => TokenVerdict::Refused(error.detail),
    })
}

/// Decodes header and claims without checking the signature.
fn decode(token: &str) -> anyhow::Result<(Map<String, Value>, Map<String, Value>)> {
    let segments: Vec<&str> = token.split('.').collect();
    let [header, claims, _] = segments.as_slice() else {
        bail!("not a JWT: it has {} parts between dots, not 3", segments.len());
    };
    Ok((decode_part(header, "header")?, decode_part(claims, "claims")?))
}

fn decode_part(segment: &str, what: &str) -> anyhow::Result<Map<String, Value>> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(segment).ok();
    let object = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    object.ok_or_else(|| anyhow!("not a JWT: its {what} are no JSON object in base64url"))
}

fn word<'a>(object: &'a Map<String, Value>, member: &str) -> &'a str {
    object.get(member).and_then(Value::as_str).unwrap_or("nothing")
}

/// `in 59 minutes, 2026-11-21T08:00:00.000Z`
fn in_words(seconds: i64) -> String {
    let distance = seconds.saturating_sub(now_s());
    let count = seconds_in_words(distance.unsigned_abs());
    let at = Timestamp(seconds.saturating_mul(1000));
    if distance < 0 { format!("{count} ago, {at}") } else { format!("in {count}, {at}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes() {
        assert_eq!(scope(" produce  consume:orders.*").unwrap(), "produce consume:orders.*");
        for text in ["", "produe", "produce:", "produce consume,admin"] {
            assert!(scope(text).is_err(), "{text}");
        }
    }

    #[test]
    fn instants_in_words() {
        assert!(in_words(now_s() - 3 * 3600).starts_with("3 hours ago, 20"));
        assert!(in_words(now_s() + 3 * 86_400).starts_with("in 3 days, 20"));
        assert!(in_words(0).ends_with("1970-01-01T00:00:00.000Z"));
        in_words(i64::MAX);
        in_words(i64::MIN);
    }
}
