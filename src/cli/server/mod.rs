//! Which server a command calls, with which token: by flag, environment or context.

pub mod commands;
mod contexts;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};

use self::contexts::Contexts;

pub(super) const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// The base URL, if one is given: an empty variable counts as unset.
pub(super) type GivenUrl = Option<Url>;

/// The server to call, and the token to send.
#[derive(Args, Clone)]
pub(in crate::cli) struct ServerFlags {
    /// Base URL of the server; without http:// or https:// it is http [default: the context's, else
    /// http://127.0.0.1:8080]
    #[arg(long, env = "ONCELOG_URL", hide_env_values = true, default_value = "",
        hide_default_value = true, value_parser = url)]
    pub url: GivenUrl,
    /// Bearer token; prefer the environment variable, which other users of this machine cannot read
    /// [default: the context's, for its server]
    #[arg(long, env = "ONCELOG_TOKEN", hide_env_values = true)]
    pub token: Option<SecretString>,
    /// Authorities that sign the server's certificate, in PEM, in place of those of this machine
    #[arg(long, value_name = "FILE", env = "ONCELOG_CA_FILE", hide_env_values = true)]
    pub ca_file: Option<PathBuf>,
    /// Certificate to show to the server, with its private key in the same file, in PEM
    #[arg(long, value_name = "FILE", env = "ONCELOG_CLIENT_CERT_FILE", hide_env_values = true)]
    pub client_cert_file: Option<PathBuf>,
    /// Call the server of this context, see `oncelog context`; --url and --token override it
    #[arg(long, value_name = "NAME", env = "ONCELOG_CONTEXT", hide_env_values = true)]
    pub context: Option<String>,
    /// Set by commands that call the admin listener.
    #[arg(skip)]
    pub admin: Option<AdminFlags>,
}

/// Where the admin listener of the server is.
#[derive(Args, Clone)]
pub(in crate::cli) struct AdminFlags {
    /// Base URL of the server's admin listener [default: the context's, for its server, else that
    /// of --url]
    #[arg(long, global = true, env = "ONCELOG_ADMIN_URL", hide_env_values = true,
        default_value = "", hide_default_value = true, value_parser = url)]
    pub admin_url: GivenUrl,
}

/// The server that a command calls.
pub(in crate::cli) struct Target {
    pub url: Url,
    pub token: Option<SecretString>,
    /// PEM; none: the authorities of this machine.
    pub ca: Option<Vec<u8>>,
    /// PEM, with the private key.
    pub client_cert: Option<Vec<u8>>,
}

/// The contents of a file; an empty variable names none.
fn contents(path: Option<PathBuf>) -> anyhow::Result<Option<Vec<u8>>> {
    let path = path.filter(|path| !path.as_os_str().is_empty());
    let read = |path: PathBuf| {
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    path.map(read).transpose()
}

impl ServerFlags {
    /// Completes the flags by the context, if one is named or in use.
    pub fn target(self) -> anyhow::Result<Target> {
        let token = self.token.filter(|token| !token.expose_secret().trim().is_empty());
        let named = self.context.filter(|name| !name.is_empty());
        let lacks_admin_url = self.admin.as_ref().is_some_and(|admin| admin.admin_url.is_none());
        let context = match (&self.url, &token, &named) {
            // nothing to complete
            (Some(_), Some(_), None) if !lacks_admin_url => None,
            _ => Contexts::load()?.chosen(named.as_deref())?.map(|(_, context)| context),
        };
        let url = self.url.or_else(|| context.as_ref().map(|context| context.url.clone()));
        let url = match url {
            Some(url) => url,
            None => Url::parse(DEFAULT_URL)?,
        };
        let mut stored = context.filter(|context| context.url == url);
        let stored_admin_url = stored.as_ref().and_then(|context| context.admin_url.clone());
        let url = match self.admin {
            Some(admin) => admin.admin_url.or(stored_admin_url).unwrap_or(url),
            None => url,
        };
        // the token of a context goes to no other server
        stored = stored.filter(|context| context.has(&url));
        let token = token.or_else(|| stored.and_then(|context| context.token));
        let (ca, client_cert) = (contents(self.ca_file)?, contents(self.client_cert_file)?);
        Ok(Target { url, token, ca, client_cert })
    }
}

/// Parses a base URL.
pub(super) fn url(text: &str) -> Result<GivenUrl, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let expected = || {
        "expected http:// or https:// with a host and an optional path, or a host and a port".into()
    };
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = Url::parse(&url).map_err(|_| expected())?;
    // of `http:///path`, the parser would take the path for a host
    let has_host = !text.starts_with('/') && !text.contains(":///");
    match (url.scheme(), url.query(), url.fragment()) {
        ("http" | "https", None, None) if has_host => Ok(Some(url)),
        _ => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_may_lack_their_scheme() {
        for (text, expected) in [
            ("localhost:8080", "http://localhost:8080/"),
            ("127.0.0.1:9000/log", "http://127.0.0.1:9000/log"),
            ("[::1]:8080", "http://[::1]:8080/"),
            ("db.example", "http://db.example/"),
            ("https://db.example/log", "https://db.example/log"),
        ] {
            assert_eq!(url(text).unwrap().unwrap().as_str(), expected);
        }
        assert_eq!(url("").unwrap(), None);
        for text in [":8080", "/log", "http:///log", "ftp://h", "h:99999", "h?x=1", "h#x", "a b"] {
            assert!(url(text).is_err(), "{text}");
        }
    }
}
