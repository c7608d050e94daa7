//! The rules between keys, of a configuration whose keys are each right.

use super::{Config, ConfigError, TenantAdmission};

impl Config {
    /// Checks the rules between keys. A key that is itself wrong is skipped: it has a default here.
    pub(super) fn check(&self, errors: &mut Vec<ConfigError>) {
        let wrong: Vec<&str> = errors.iter().filter_map(|error| error.key).collect();
        let right = |keys: &[&str]| keys.iter().all(|key| !wrong.contains(key));
        let mut found = Vec::new();
        let open = !self.has_token_key() && right(&["token_hs256_secret", "token_jwks_file"]);
        if open && self.database_url.is_some() {
            found.push(
                "database_url requires tokens: set token_hs256_secret (such as \
                 ONCELOG_TOKEN_HS256_SECRET=\"$(openssl rand -hex 32)\") or token_jwks_file"
                    .to_owned(),
            );
        } else if open && right(&["listen", "admin_listen", "database_url"]) {
            let addresses = [("listen", Some(self.listen)), ("admin_listen", self.admin_listen)];
            let addresses = addresses.into_iter().filter_map(|(key, of)| Some((key, of?)));
            found.extend(addresses.filter(|(_, of)| !of.ip().is_loopback()).map(|(key, of)| {
                format!(
                    "{key} is {of}, which other hosts can reach, but requests need no token: \
                     listen on 127.0.0.1, or set token_hs256_secret or token_jwks_file"
                )
            }));
        }
        if right(&["listen", "admin_listen"]) {
            self.check_ports(&mut found);
        }
        if self.notify_database_url.is_some()
            && self.database_url.is_none()
            && right(&["database_url"])
        {
            found.push(
                "notify_database_url is a second way to the database of database_url: set that, too"
                    .to_owned(),
            );
        }
        self.check_tokens(right, &mut found);
        let tls = ["tls_cert_file", "tls_key_file", "tls_client_ca_file"];
        if right(&tls) && self.tls_cert_file.is_some() != self.tls_key_file.is_some() {
            found.push(
                "tls_cert_file and tls_key_file belong together: set both, or none".to_owned(),
            );
        } else if right(&tls) && self.tls_client_ca_file.is_some() && self.tls_cert_file.is_none() {
            found.push(
                "tls_client_ca_file is for TLS: set tls_cert_file and tls_key_file, too".to_owned(),
            );
        }
        if self.max_in_flight_bytes < self.max_body_bytes
            && right(&["max_in_flight_bytes", "max_body_bytes"])
        {
            found.push(format!(
                "max_in_flight_bytes ({}) must be at least max_body_bytes ({}), or the largest \
                 body could never be accepted",
                self.max_in_flight_bytes, self.max_body_bytes
            ));
        }
        errors.extend(found.into_iter().map(|text| ConfigError { key: None, text }));
    }

    fn check_tokens(&self, right: impl Fn(&[&str]) -> bool, found: &mut Vec<String>) {
        if self.token_hs256_secret.is_some() && self.token_jwks_file.is_some() {
            found.push(
                "token_hs256_secret and token_jwks_file exclude each other: set one".to_owned(),
            );
        }
        if self.token_hs256_previous_secret.is_some()
            && self.token_hs256_secret.is_none()
            && right(&["token_hs256_secret"])
        {
            found.push(
                "token_hs256_previous_secret is for changing token_hs256_secret: set that, too"
                    .to_owned(),
            );
        }
        let keys = ["tenants", "token_hs256_secret", "token_jwks_file"];
        if self.tenants == TenantAdmission::Known && !self.has_token_key() && right(&keys) {
            found.push(
                "tenants = known is for tenants that tokens name: set a token key".to_owned(),
            );
        }
    }

    fn check_ports(&self, found: &mut Vec<String>) {
        if self.admin_listen == Some(self.listen) && self.listen.port() != 0 {
            found.push(format!(
                "admin_listen and listen are both {}: give each a port of its own",
                self.listen
            ));
        }
        if self.has_token_key() && self.admin_address().is_none() {
            found.push(format!(
                "listen is {}, after whose port there is no other for the admin listener: set \
                 admin_listen",
                self.listen
            ));
        }
    }
}
