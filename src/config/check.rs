//! The rules between keys, of a configuration whose keys are each right.

use super::{Config, ConfigError, TenantAdmission};

/// Any of them makes requests need a token.
const TOKEN_KEYS: &[&str] =
    &["token_hs256_secret", "token_jwks_file", "token_jwks_url", "token_issuers_file"];

impl Config {
    /// Checks the rules between keys. A key that is itself wrong is skipped: it has a default here.
    pub(super) fn check(&self, errors: &mut Vec<ConfigError>) {
        let wrong: Vec<&str> = errors.iter().filter_map(|error| error.key).collect();
        let right = |keys: &[&str]| keys.iter().all(|key| !wrong.contains(key));
        let mut found = Vec::new();
        let open = !self.has_token_key() && right(TOKEN_KEYS);
        if open && self.database_url.is_some() {
            found.push(
                "database_url requires tokens: set token_hs256_secret (such as \
                 ONCELOG_TOKEN_HS256_SECRET=\"$(openssl rand -hex 32)\"), token_jwks_file or \
                 token_jwks_url"
                    .to_owned(),
            );
        } else if open && right(&["listen", "admin_listen", "database_url"]) {
            let addresses = [("listen", Some(self.listen)), ("admin_listen", self.admin_listen)];
            let addresses = addresses.into_iter().filter_map(|(key, of)| Some((key, of?)));
            found.extend(addresses.filter(|(_, of)| !of.ip().is_loopback()).map(|(key, of)| {
                format!(
                    "{key} is {of}, which other hosts can reach, but requests need no token: \
                     listen on 127.0.0.1, or set token_hs256_secret, token_jwks_file or \
                     token_jwks_url"
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
        let own = [
            self.token_hs256_secret.is_some(),
            self.token_jwks_file.is_some(),
            self.token_jwks_url.is_some(),
        ];
        if own.iter().filter(|is_set| **is_set).count() > 1 {
            found.push(
                "token_hs256_secret, token_jwks_file and token_jwks_url exclude each other: set \
                 one, and list further issuers in token_issuers_file"
                    .to_owned(),
            );
        }
        let further = self.token_issuers_file.iter().flatten();
        if own.contains(&true) && further.into_iter().any(|of| of.issuer == self.token_issuer) {
            found.push(format!(
                "token_issuers_file has the issuer {}, which is token_issuer: give it one kind of \
                 key",
                self.token_issuer
            ));
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
        let is_known = self.tenants == TenantAdmission::Known && right(&["tenants"]);
        if is_known && !self.has_token_key() && right(TOKEN_KEYS) {
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
