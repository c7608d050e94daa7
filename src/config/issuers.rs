//! The file of further issuers of tokens.

use std::path::PathBuf;

use reqwest::Url;
use serde::Deserialize;

use super::parse::Parsed;
use crate::model::{Pattern, Word};

/// An issuer whose tokens are accepted, beside that of `token_issuer` or alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerConfig {
    /// `iss`
    pub issuer: String,
    /// `aud`; none: that of the configuration.
    pub audience: Option<String>,
    pub keys: JwksSource,
    /// Names of claims, or JSON pointers with a slash in front.
    pub tenant_claim: String,
    pub scope_claim: String,
    /// The tenants that its tokens may name; none: any.
    pub tenants: Option<Vec<Pattern>>,
    pub scopes: Vec<Word>,
}

/// Where public keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksSource {
    File(PathBuf),
    Url(Url),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IssuersFile {
    issuers: Vec<Written>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    issuer: String,
    audience: Option<String>,
    jwks_file: Option<PathBuf>,
    jwks_url: Option<String>,
    tenant_claim: Option<String>,
    scope_claim: Option<String>,
    tenants: Option<Vec<String>>,
    scopes: Option<Vec<String>>,
}

/// The issuers of the file at this path.
pub(super) fn issuers_file(path: &str) -> Parsed<Vec<IssuerConfig>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?;
    issuers(&text)
}

fn issuers(text: &str) -> Parsed<Vec<IssuerConfig>> {
    let file: IssuersFile =
        toml::from_str(text).map_err(|error| format!("is not a list of issuers: {error}"))?;
    let mut issuers: Vec<IssuerConfig> = Vec::new();
    for written in file.issuers {
        let named = format!("issuer `{}`", written.issuer);
        let issuer = written.read().map_err(|expected| format!("has {named}, which {expected}"))?;
        if issuers.iter().any(|other| other.issuer == issuer.issuer) {
            return Err(format!("has {named} twice"));
        }
        issuers.push(issuer);
    }
    if issuers.is_empty() { Err("has no issuer".into()) } else { Ok(issuers) }
}

impl Written {
    fn read(self) -> Parsed<IssuerConfig> {
        let texts = [Some(&self.issuer), self.audience.as_ref(), self.tenant_claim.as_ref()];
        let texts = texts.into_iter().chain([self.scope_claim.as_ref()]).flatten();
        if texts.into_iter().any(|text| text.trim().is_empty()) {
            return Err("has an empty text".into());
        }
        let keys = match (self.jwks_file, self.jwks_url) {
            (Some(path), None) => JwksSource::File(path),
            (None, Some(url)) => JwksSource::Url(
                jwks_url(&url).map_err(|expected| format!("has a jwks_url that {expected}"))?,
            ),
            _ => return Err("must have either jwks_url or jwks_file".into()),
        };
        let scopes = match self.scopes {
            // making and suspending tenants is not left to those who sign tokens for them
            None => Word::ALL.iter().copied().filter(|word| *word != Word::Operator).collect(),
            Some(words) => words.iter().map(|word| scope(word)).collect::<Parsed<_>>()?,
        };
        Ok(IssuerConfig {
            issuer: self.issuer,
            audience: self.audience,
            keys,
            tenant_claim: self.tenant_claim.unwrap_or_else(|| "tenant".into()),
            scope_claim: self.scope_claim.unwrap_or_else(|| "scope".into()),
            tenants: self
                .tenants
                .map(|names| names.iter().map(|name| Pattern::new(name)).collect()),
            scopes,
        })
    }
}

fn scope(text: &str) -> Parsed<Word> {
    let word = Word::ALL.iter().find(|word| word.as_str() == text);
    word.copied().ok_or_else(|| {
        let all: Vec<&str> = Word::ALL.iter().map(|word| word.as_str()).collect();
        format!("has a scope `{text}`, not one of {}", all.join(", "))
    })
}

/// A URL of public keys. In the clear somebody in between could put in keys of his own.
pub(super) fn jwks_url(text: &str) -> Parsed<Url> {
    let expected =
        "must be a URL with https, or with http on a loopback address, and without a user";
    let url = Url::parse(text).map_err(|_| expected)?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback =
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let is_safe = url.scheme() == "https" || url.scheme() == "http" && is_loopback;
    let has_user = !url.username().is_empty() || url.password().is_some();
    if is_safe && !has_user { Ok(url) } else { Err(expected.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_has_defaults_that_are_safe() {
        let text = "[[issuers]]\nissuer = 'https://a'\njwks_url = 'https://a/keys'\n\
            [[issuers]]\nissuer = 'https://b'\njwks_file = 'b.json'\naudience = 'us'\n\
            tenant_claim = 'tid'\nscope_claim = '/realm/roles'\ntenants = ['b', 'b-*']\n\
            scopes = ['operator', 'consume']\n";
        let [a, b] = &issuers(text).unwrap()[..] else { panic!("there are two") };
        assert_eq!((a.issuer.as_str(), &a.audience, &a.tenants), ("https://a", &None, &None));
        assert_eq!(a.keys, JwksSource::Url("https://a/keys".parse().unwrap()));
        assert_eq!((a.tenant_claim.as_str(), a.scope_claim.as_str()), ("tenant", "scope"));
        assert_eq!(a.scopes, [Word::Produce, Word::Consume, Word::Group, Word::Admin]);
        assert_eq!(b.keys, JwksSource::File("b.json".into()));
        assert_eq!(b.audience.as_deref(), Some("us"));
        assert_eq!((b.tenant_claim.as_str(), b.scope_claim.as_str()), ("tid", "/realm/roles"));
        assert_eq!(b.tenants, Some(vec![Pattern::new("b"), Pattern::new("b-*")]));
        assert_eq!(b.scopes, [Word::Operator, Word::Consume]);
    }

    #[test]
    fn what_is_wrong_with_an_issuer_is_told() {
        let of = |more: &str| format!("[[issuers]]\nissuer = 'a'\n{more}\n");
        let good = of("jwks_file = 'a'");
        for (text, wanted) in [
            (String::new(), "missing field `issuers`"),
            ("issuers = []".into(), "no issuer"),
            (of(""), "either jwks_url or jwks_file"),
            (of("jwks_file = 'a'\njwks_url = 'https://a'"), "either jwks_url or jwks_file"),
            (of("jwks_url = 'http://a'"), "jwks_url that must be a URL with https"),
            (of("jwks_file = 'a'\nscopes = ['all']"), "`all`, not one of produce"),
            (of("jwks_file = 'a'\nscopes = ['produce:x']"), "`produce:x`, not one of"),
            (of("jwks_file = 'a'\naudience = ' '"), "an empty text"),
            (of("jwks_file = 'a'\nsecret = 'x'"), "unknown field `secret`"),
            (format!("{good}{good}"), "issuer `a` twice"),
        ] {
            let error = issuers(&text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn keys_do_not_come_in_the_clear() {
        for (url, is_good) in [
            ("https://login.example.com/keys?v=1", true),
            ("http://localhost:1234/", true),
            ("http://127.0.0.1/keys", true),
            ("http://[::1]:80/keys", true),
            ("http://login.example.com/keys", false),
            ("http://127.0.0.1.example.com/keys", false),
            ("http://localhost.example.com/", false),
            ("https://me:secret@login.example.com/", false),
            ("http://127.0.0.1@example.com/", false),
            ("file:///etc/keys", false),
            ("login.example.com", false),
            ("", false),
        ] {
            assert_eq!(jwks_url(url).is_ok(), is_good, "{url}");
        }
    }
}
