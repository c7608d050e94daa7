//! The audit log: who changed what an administrator or an operator answers for, who took a
//! producer's place, and whose token was refused.
//!
//! A line has no content of records and no part of a token but its id. What was refused, and what
//! failed, is limited to some lines a second: a flood must not fill a disk.

use axum::{
    http::{Extensions, Uri},
    response::Response,
};

use crate::{
    broker::Error,
    http::extract::caller::Caller,
    model::{Code, validation::shown},
    telemetry::{AUDIT_TARGET, LineLimit},
};

/// Operations that administrators and operators answer for.
const ADMINISTRATION: &[&str] = &[
    "patch_settings",
    "put_tenant",
    "patch_tenant",
    "delete_tenant",
    "revoke_tenant_tokens",
    "remove_tenant_revocation",
    "put_topic",
    "patch_topic",
    "delete_topic",
    "trim_partition",
    "end_session",
    "reset_group_offsets",
    "delete_group",
];

/// In the extensions of an answer: it took the place of another session.
#[derive(Clone, Copy, Debug)]
pub struct Fenced;

/// Whether requests of an operation leave a line, whatever their answer is.
pub fn is_audited(operation: &str) -> bool {
    ADMINISTRATION.contains(&operation)
}

/// What is known of an answered request.
pub struct Answered<'a> {
    pub operation: &'a str,
    pub is_audited: bool,
    pub uri: &'a Uri,
    pub caller: &'a Caller,
    pub request_id: &'a str,
    pub error: Option<&'a Error>,
}

impl Answered<'_> {
    /// Writes the line of the request, if it has one.
    pub fn write(&self, answer: &Response) {
        let code = self.error.map(|error| error.code);
        let is_refused = matches!(code, Some(Code::Unauthenticated | Code::Forbidden));
        let is_fencing = answer.extensions().get::<Fenced>().is_some();
        if !(self.is_audited || is_refused || is_fencing || self.caller.is_operating()) {
            return;
        }
        static NOT_DONE: LineLimit = LineLimit::new();
        let Some(left_out) = code.map_or(Some(0), |_| NOT_DONE.admit()) else { return };
        let path = shown(self.uri.path().to_owned());
        let outcome = match code {
            Some(code) => code.as_str(),
            None if is_fencing => "fenced",
            None => "done",
        };
        let grant = self.caller.grant();
        tracing::info!(
            target: AUDIT_TARGET,
            operation = self.operation,
            path,
            outcome,
            tenant = grant.map(|grant| grant.tenant.to_string()),
            issuer = grant.and_then(|grant| grant.issuer.as_deref()),
            subject = grant.and_then(|grant| grant.subject.as_deref()),
            token_id = grant.and_then(|grant| grant.token_id.as_deref()),
            client = self.caller.client().map(|address| address.to_string()),
            request_id = self.request_id,
            left_out,
            "audit"
        );
    }
}

/// Marks an answer as that of a session that took another's place.
pub fn fenced(extensions: &mut Extensions) {
    extensions.insert(Fenced);
}
