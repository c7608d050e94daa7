//! How the database of a URL is reached.

use std::net::IpAddr;

use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::{PgConnectOptions, PgSslMode};

/// The variable by which libpq's clients choose how to use TLS.
const SSL_MODE_VARIABLE: &str = "PGSSLMODE";

/// The way to the database of a valid URL. A database on another host has to prove who it is
/// (`verify-full`), unless the URL or `PGSSLMODE` says otherwise: by default, libpq's clients send
/// the password to any server that answers.
pub fn connect_options(url: &SecretString) -> anyhow::Result<PgConnectOptions> {
    let has_mode = std::env::var_os(SSL_MODE_VARIABLE).is_some();
    // the error of a bad URL may quote it, password and all
    options(url.expose_secret(), has_mode)
        .ok_or_else(|| anyhow::anyhow!("database_url is not a Postgres URL"))
}

fn options(url: &str, has_mode: bool) -> Option<PgConnectOptions> {
    let options: PgConnectOptions = url.parse().ok()?;
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let names = query.split('&').filter_map(|parameter| parameter.split('=').next());
    let says_mode =
        has_mode || names.into_iter().any(|name| matches!(name, "sslmode" | "ssl-mode"));
    if says_mode || is_on_this_machine(&options) {
        return Some(options);
    }
    Some(options.ssl_mode(PgSslMode::VerifyFull))
}

fn is_on_this_machine(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    options.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_elsewhere_proves_who_it_is() {
        let table = [
            ("postgres://me:pw@db.example/o", "VerifyFull"),
            ("postgres://me:pw@10.0.0.7:6432/o?application_name=x", "VerifyFull"),
            ("postgres://me:pw@localhost.example/o", "VerifyFull"),
            ("postgres://me@db.example/o?sslrootcert=/etc/db.pem", "VerifyFull"),
            ("postgres://me@db.example/o?sslmode=require", "Require"),
            ("postgres://me@db.example/o?x=1&sslmode=disable", "Disable"),
            ("postgres://me@db.example/o?sslmode=prefer", "Prefer"),
            ("postgres://me@localhost/o", "Prefer"),
            ("postgres://me@127.0.0.1:5433/o", "Prefer"),
            ("postgres://me@[::1]/o", "Prefer"),
            ("postgres://me@%2Frun%2Fpostgresql/o", "Prefer"),
            ("postgres:///o?host=/run/postgresql", "Prefer"),
        ];
        for (url, want) in table {
            let got = options(url, false).unwrap().get_ssl_mode();
            assert_eq!(format!("{got:?}"), want, "{url}");
        }
        let by_variable = options("postgres://me@db.example/o", true).unwrap();
        assert!(!matches!(by_variable.get_ssl_mode(), PgSslMode::VerifyFull));
        assert!(options("no URL", false).is_none());
    }
}
