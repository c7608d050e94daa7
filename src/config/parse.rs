//! Parsers of configuration values. Their errors say what is expected, never what was given: that
//! may be a secret.

use std::{
    fmt::Display,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    str::FromStr,
};

use ipnet::IpNet;
use secrecy::SecretString;
use sqlx::postgres::PgConnectOptions;
use tracing::level_filters::LevelFilter;

use super::{LogFormat, TenantAdmission, units::Unit};
use crate::model::settings::{self, Maxima};

pub(super) type Parsed<T> = Result<T, String>;

/// Shorter keys can be guessed (RFC 7518, 3.2).
const SHORTEST_HS256_SECRET_BYTES: usize = 32;

pub(super) fn number<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Parsed<T>
where
    T: FromStr + PartialOrd + Display,
{
    move |text| match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!("must be an integer from {} to {}", range.start(), range.end())),
    }
}

/// A number whose 0 means the number of cores divided by `share`, at least 1.
pub(super) fn cores(share: usize, most: usize) -> impl Fn(&str) -> Parsed<usize> {
    move |text| match number(0..=most)(text)? {
        0 => Ok((std::thread::available_parallelism().map_or(1, usize::from) / share).max(1)),
        given => Ok(given),
    }
}

/// An empty text means no value.
pub(super) fn optional<T>(parse: impl Fn(&str) -> Parsed<T>) -> impl Fn(&str) -> Parsed<Option<T>> {
    move |text| if text.is_empty() { Ok(None) } else { parse(text).map(Some) }
}

pub(super) fn address(text: &str) -> Parsed<SocketAddr> {
    text.parse().map_err(|_| "must be an IP address and a port, such as 127.0.0.1:8080".into())
}

pub(super) fn switch(text: &str) -> Parsed<bool> {
    text.parse().map_err(|_| "must be true or false".into())
}

pub(super) fn path(text: &str) -> Parsed<PathBuf> {
    if text.is_empty() { Err("must be a path".into()) } else { Ok(text.into()) }
}

pub(super) fn word(text: &str) -> Parsed<String> {
    if text.trim().is_empty() { Err("must not be empty".into()) } else { Ok(text.into()) }
}

pub(super) fn database_url(text: &str) -> Parsed<SecretString> {
    let is_postgres = text.starts_with("postgres://") || text.starts_with("postgresql://");
    if is_postgres && text.parse::<PgConnectOptions>().is_ok() {
        Ok(text.into())
    } else {
        Err("must be a URL such as postgres://user:password@host:5432/database".into())
    }
}

pub(super) fn hs256_secret(text: &str) -> Parsed<SecretString> {
    if text.len() >= SHORTEST_HS256_SECRET_BYTES {
        Ok(text.into())
    } else {
        Err(format!("must have at least {SHORTEST_HS256_SECRET_BYTES} bytes"))
    }
}

/// Networks or single addresses, separated by commas.
pub(super) fn networks(text: &str) -> Parsed<Vec<IpNet>> {
    let each = text.split(',').map(str::trim).filter(|each| !each.is_empty());
    let network =
        |text: &str| text.parse().ok().or_else(|| Some(IpNet::from(text.parse::<IpAddr>().ok()?)));
    let expected = || "must be networks such as 10.0.0.0/8, separated by commas".to_owned();
    each.map(|text| network(text).ok_or_else(expected)).collect()
}

pub(super) fn tenant_admission(text: &str) -> Parsed<TenantAdmission> {
    match text {
        "any" => Ok(TenantAdmission::Any),
        "known" => Ok(TenantAdmission::Known),
        _ => Err("must be any or known".into()),
    }
}

/// `key=value` for each maximum, separated by commas.
pub(super) fn maxima(text: &str) -> Parsed<Maxima> {
    let each = text.split(',').map(str::trim).filter(|each| !each.is_empty());
    each.map(maximum).collect::<Parsed<_>>().map(Maxima)
}

fn maximum(text: &str) -> Parsed<(settings::Key, i64)> {
    let (name, value) = text.split_once('=').ok_or("must be KEY=VALUE, separated by commas")?;
    let (name, value) = (name.trim(), value.trim());
    let key = settings::Key::numbers().find(|key| key.name() == name);
    let key = key.ok_or_else(|| format!("must name settings with a maximum, not `{name}`"))?;
    let settings::Setting { minimum, maximum, .. } = key.setting();
    let number = match Unit::of(name) {
        Some(unit) => unit.parse(value).ok().and_then(|number| i64::try_from(number).ok()),
        None => value.parse().ok(),
    };
    match number.filter(|number| (minimum..=maximum).contains(number)) {
        Some(number) => Ok((key, number)),
        None => Err(format!("must have a {name} from {minimum} to {maximum}")),
    }
}

pub(super) fn log_format(text: &str) -> Parsed<LogFormat> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("must be text or json".into()),
    }
}

pub(super) fn log_level(text: &str) -> Parsed<LevelFilter> {
    match text {
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err("must be error, warn, info, debug or trace".into()),
    }
}
