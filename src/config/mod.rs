//! The configuration: the only reader of flags, environment and file.
//!
//! One list of keys, below, generates the struct, the flags (`--data-dir`), the variables
//! (`ONCELOG_DATA_DIR`), the keys of the TOML file (`data_dir`), the help and the printed
//! configuration. Defaults < file < environment < flags. All errors are reported at once, each
//! with its origin, and none shows a secret.

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use ipnet::IpNet;
use reqwest::Url;
use secrecy::SecretString;
use tracing::level_filters::LevelFilter;

mod check;
pub mod database;
pub mod issuers;
mod parse;
mod sources;
#[cfg(test)]
mod tests;
pub mod units;

use issuers::{IssuerConfig, issuers_file, jwks_url};
use parse::{
    address, cores, database_url, hs256_secret, log_format, log_level, maxima, networks, number,
    optional, path, switch, tenant_admission, word,
};
use sources::Given;
pub use sources::{Flags, Origin};
use units::Unit;

use crate::model::settings::Maxima;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// Which tenants may use the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantAdmission {
    /// Every one that a token names.
    Any,
    /// Those that an operator has created.
    Known,
}

/// One configuration key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    /// The default as text; empty if there is none.
    pub default: &'static str,
    pub secret: bool,
    /// The name of the value in the help.
    pub value_name: &'static str,
    pub doc: &'static str,
}

/// The effective value of a key, as it may be shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: &'static str,
    /// The value, a number without its unit; `***` for a secret.
    pub shown: String,
    pub origin: Origin,
}

macro_rules! keys {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal,
       $visibility:ident $value_name:literal $parse:expr;)*) => {
        /// The whole configuration, validated.
        #[derive(Clone, Debug)]
        pub struct Config {
            $($(#[doc = $doc])+ pub $name: $type,)*
            /// Every value with its origin, in the order of the list.
            pub entries: Vec<Entry>,
            /// What was changed in the given values, for the log.
            pub notes: Vec<String>,
        }

        /// The list of all keys.
        pub const KEYS: &[Key] = &[$(Key {
            name: stringify!($name),
            default: $default,
            secret: keys!(@secret $visibility),
            value_name: $value_name,
            doc: concat!($($doc),+),
        }),*];

        impl Config {
            /// Returns none only if a default does not parse; a test rules that out.
            fn parse(given: &mut Given) -> Option<Self> {
                let mut entries = Vec::with_capacity(KEYS.len());
                let mut keys = KEYS.iter();
                $(let $name = given.parse(keys.next()?, &mut entries, $parse);)*
                let notes = std::mem::take(&mut given.notes);
                Some(Self { $($name: $name?,)* entries, notes })
            }
        }
    };
    (@secret secret) => { true };
    (@secret public) => { false };
}

keys! {
    /// The address to serve HTTP on; must be a loopback address if no token key is set
    listen: SocketAddr = "127.0.0.1:8080", public "ADDRESS" address;
    /// The address of the admin listener: /metrics, /v1/tenants, /docs and probes. None: with a
    /// token key 127.0.0.1 and the port after that of listen; without one, listen carries all
    admin_listen: Option<SocketAddr> = "", public "ADDRESS" optional(address);
    /// The certificate chain of the listeners, in PEM: HTTPS is spoken. Read again when it changes.
    /// An admin listener on a loopback address stays without TLS
    tls_cert_file: Option<PathBuf> = "", public "FILE" optional(path);
    /// The private key of tls_cert_file, in PEM
    tls_key_file: Option<PathBuf> = "", public "FILE" optional(path);
    /// The authorities that sign clients' certificates, in PEM: listen takes no client without one
    tls_client_ca_file: Option<PathBuf> = "", public "FILE" optional(path);
    /// Whether listen also carries /docs and /openapi.json: true or false
    public_docs: bool = "true", public "BOOL" switch;
    /// The data directory of the PostgreSQL that oncelog runs itself if database_url is not set
    data_dir: PathBuf = "./data", public "DIR" path;
    /// A PostgreSQL database to use instead of a private one; requires a token key
    database_url: Option<SecretString> = "", secret "URL" optional(database_url);
    /// The same database without the connection pooler in front of it, to listen for notices
    notify_database_url: Option<SecretString> = "", secret "URL" optional(parse::database_url);
    /// The secret that verifies HS256 tokens, at least 32 bytes; excludes token_jwks_file and _url
    token_hs256_secret: Option<SecretString> = "", secret "SECRET" optional(hs256_secret);
    /// The secret before token_hs256_secret, whose tokens are still accepted
    token_hs256_previous_secret: Option<SecretString> = "", secret "SECRET" optional(hs256_secret);
    /// A JWKS file with the public keys that verify tokens; read again when it changes
    token_jwks_file: Option<PathBuf> = "", public "FILE" optional(path);
    /// The https URL of that JWKS; fetched again every 5 minutes, and for a key that is not in it
    token_jwks_url: Option<Url> = "", public "URL" optional(jwks_url);
    /// A TOML file with further issuers of tokens, each with its keys, claims, tenants and scopes
    token_issuers_file: Option<Vec<IssuerConfig>> = "", public "FILE" optional(issuers_file);
    /// The required `aud` claim of tokens
    token_audience: String = "oncelog", public "NAME" word;
    /// The required `iss` claim of tokens
    token_issuer: String = "oncelog", public "NAME" word;
    /// The longest lifetime of a token, from its `iat` to its `exp`; 0: any
    max_token_life_ms: u64 = "0", public "MS" number(0..=315_360_000_000);
    /// Which tenants may use the server: any, whose first token creates it, or known: those that an
    /// operator has created
    tenants: TenantAdmission = "any", public "WHICH" tenant_admission;
    /// Maximum number of tenants that tokens create; 0: any number
    max_tenants: u64 = "0", public "COUNT" number(0..=1_000_000_000);
    /// The maxima of tenants that are created without others: KEY=VALUE, separated by commas, such
    /// as `max_requests_per_s=100, max_stored_bytes=10GiB`
    default_maxima: Maxima = "", public "MAXIMA" maxima;
    /// Number of writers, each with its own database connection; 0: a quarter of the cores
    lanes: usize = "0", public "COUNT" cores(4, 256);
    /// Number of threads that serve requests; 0: half of the cores
    worker_threads: usize = "0", public "COUNT" cores(2, 1024);
    /// Number of database connections for reads and administration
    pool_connections: u32 = "10", public "COUNT" number(1..=1000);
    /// How long an out-of-order append waits for missing sequences
    gap_wait_ms: u64 = "1000", public "MS" number(0..=60_000);
    /// The largest request body, after decompression
    max_body_bytes: usize = "16777216", public "BYTES" number(1 << 16..=1 << 30);
    /// How long a request body, or its next 30 KiB, may take to arrive
    body_timeout_ms: u64 = "30000", public "MS" number(100..=600_000);
    /// How long a request head may take to arrive
    header_timeout_ms: u64 = "10000", public "MS" number(100..=600_000);
    /// How long a connection may wait for its next request; longer than a load balancer keeps it
    keep_alive_timeout_ms: u64 = "75000", public "MS" number(100..=3_600_000);
    /// How long a client may take for an answer, or for its next 30 KiB, before it is cut off
    answer_timeout_ms: u64 = "30000", public "MS" number(100..=600_000);
    /// The age at which a connection is asked to end, so that clients spread over replicas; 0: none
    max_connection_age_ms: u64 = "3600000", public "MS" number(0..=86_400_000);
    /// Maximum number of connections; beyond it the one that has been idle longest is closed
    max_connections: usize = "20000", public "COUNT" number(1..=1_000_000);
    /// Maximum number of reads that wait for records
    max_waiting_reads: usize = "20000", public "COUNT" number(0..=1_000_000);
    /// Maximum memory for requests until their work is done, and the same again for answers
    max_in_flight_bytes: usize = "268435456", public "BYTES" number(1 << 16..=1 << 40);
    /// Maximum memory for recent records that reads share
    page_cache_bytes: u64 = "134217728", public "BYTES" number(0..=1 << 40);
    /// How long a shutdown serves on, with /readyz at 503, until others have noticed
    shutdown_delay_ms: u64 = "0", public "MS" number(0..=600_000);
    /// How long a shutdown then waits for requests in flight
    drain_timeout_ms: u64 = "25000", public "MS" number(0..=3_600_000);
    /// Number of rows of a log after which a snapshot of its producer states is taken
    snapshot_rows: u64 = "1000", public "COUNT" number(1..=1_000_000);
    /// Maximum number of per-group lag series in /metrics; smaller lags are summed into one. 0: lag
    /// is not measured
    max_lag_series: usize = "1000", public "COUNT" number(0..=100_000);
    /// Maximum number of topics with series of their own in /metrics; the others are summed into
    /// one. 0: nothing is counted or measured by topic
    max_topic_series: usize = "1000", public "COUNT" number(0..=100_000);
    /// The networks of proxies in front, separated by commas, such as `10.0.0.0/8`: their
    /// X-Forwarded-For has the client's address, for the audit log
    trusted_proxies: Vec<IpNet> = "", public "NETWORKS" networks;
    /// The file for the audit log, to which JSON lines are appended, such as /dev/stdout: who
    /// changed what, took a producer's place, or was refused. None: there is no audit log
    audit_log_file: Option<PathBuf> = "", public "FILE" optional(path);
    /// The format of log lines: text or json
    log_format: LogFormat = "text", public "FORMAT" log_format;
    /// The minimum severity of log lines: error, warn, info, debug or trace
    log_level: LevelFilter = "info", public "LEVEL" log_level;
}

/// One error in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The key, unless the error is not about a key.
    pub key: Option<&'static str>,
    pub text: String,
}

impl ConfigError {
    fn of(key: &Key, origin: &Origin, what: &str) -> Self {
        Self { key: Some(key.name), text: format!("{} (from {origin}) {what}", key.name) }
    }
}

/// All errors in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is invalid:")?;
        self.0.iter().try_for_each(|error| write!(f, "\n  - {}", error.text))
    }
}

/// Prints a valid configuration file, with the secrets masked; `{:#}` shows times and sizes with
/// their units.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries.iter().try_for_each(|Entry { name, shown, origin }| {
            let quoted = |text: &str| serde_json::Value::from(text).to_string();
            let value = match (shown.parse::<u64>(), Unit::of(name)) {
                (Ok(number), Some(unit)) if f.alternate() => quoted(&unit.show(number)),
                (Ok(number), _) => number.to_string(),
                // a JSON string is a TOML string
                (Err(_), _) => quoted(shown),
            };
            writeln!(f, "{name} = {value}  # {origin}")
        })
    }
}

impl Config {
    /// Reads the process's environment and the file, under these flags.
    pub fn load(flags: &Flags) -> Result<Self, ConfigErrors> {
        Self::from_sources(flags, &environment())
    }

    /// Loads the configuration for a command that uses some values and serves nothing: rules
    /// between keys that matter only to a server are not checked.
    pub fn read(flags: &Flags) -> Result<Self, ConfigErrors> {
        Self::checked(flags, &environment(), |_, _| ())
    }

    /// Loads the configuration from a given environment.
    pub fn from_sources(
        flags: &Flags,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigErrors> {
        Self::checked(flags, environment, Self::check)
    }

    fn checked(
        flags: &Flags,
        environment: &BTreeMap<String, String>,
        check: impl Fn(&Self, &mut Vec<ConfigError>),
    ) -> Result<Self, ConfigErrors> {
        let mut given = Given::read(flags, environment);
        let config = Self::parse(&mut given);
        let mut errors = given.errors;
        if let Some(config) = &config {
            check(config, &mut errors);
        }
        match config {
            Some(config) if errors.is_empty() => Ok(config),
            _ => Err(ConfigErrors(errors)),
        }
    }

    /// Whether requests need a token.
    pub fn has_token_key(&self) -> bool {
        self.token_hs256_secret.is_some()
            || self.token_jwks_file.is_some()
            || self.token_jwks_url.is_some()
            || self.token_issuers_file.is_some()
    }

    /// The address of the admin listener, if it is another than that of all.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        // a free port has no next one: another free one is taken
        let next =
            || if self.listen.port() == 0 { Some(0) } else { self.listen.port().checked_add(1) };
        let default = || Some(SocketAddr::from((Ipv4Addr::LOCALHOST, next()?)));
        self.admin_listen.or_else(|| self.has_token_key().then(default).flatten())
    }
}

impl Given {
    /// The value of one key. A wrong one is recorded and replaced by the default, so that other
    /// errors are found too.
    fn parse<T>(
        &mut self,
        key: &'static Key,
        entries: &mut Vec<Entry>,
        parse: impl Fn(&str) -> parse::Parsed<T>,
    ) -> Option<T> {
        let (text, origin) = match self.values.get(key.name) {
            Some((text, origin)) => (text.as_str(), origin.clone()),
            None => (key.default, Origin::Default),
        };
        // what `echo` adds; the one that mints tokens elsewhere does not see it
        let text = match text.strip_suffix('\n') {
            Some(line) if key.secret => {
                self.notes.push(format!("{} (from {origin}): newline at the end cut", key.name));
                line.strip_suffix('\r').unwrap_or(line)
            }
            _ => text,
        };
        if let (true, Origin::Flag(flag)) = (key.secret && !text.is_empty(), &origin) {
            let variable = key.variable();
            self.notes.push(format!(
                "{flag} has a secret where other users of this machine can read it: set {variable} \
                 or {variable}_FILE instead"
            ));
        }
        let unit = Unit::of(key.name);
        let number = unit.and_then(|unit| Some(unit.parse(text).ok()?.to_string()));
        let value = number.as_deref().unwrap_or(text);
        let shown = if key.secret && !text.is_empty() { "***" } else { value };
        entries.push(Entry { name: key.name, shown: shown.into(), origin: origin.clone() });
        match parse(value) {
            Ok(value) => Some(value),
            Err(expected) => {
                let expected = match unit {
                    Some(unit) if number.is_none() => format!("{expected}; {}", unit.expected()),
                    _ => expected,
                };
                let what = if key.secret { expected } else { format!("is `{text}`, {expected}") };
                self.errors.push(ConfigError::of(key, &origin, &what));
                parse(key.default).ok()
            }
        }
    }
}

/// The environment of the process.
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os().map(|(name, text)| (lossy(&name), lossy(&text))).collect()
}

fn lossy(text: &std::ffi::OsStr) -> String {
    text.to_string_lossy().into_owned()
}
