//! Revocations: tokens of a tenant that are refused before they expire.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::Timestamp;

/// What a revocation is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Revoked {
    /// The token with this id, as the audit log names it.
    TokenId(String),
    /// Tokens of this `sub` that were issued earlier, or that do not say when.
    Subject { subject: String, issued_before: Timestamp },
    /// All tokens of the tenant that were issued earlier, or that do not say when.
    IssuedBefore(Timestamp),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    pub id: Uuid,
    pub revoked: Revoked,
    pub created_at: Timestamp,
    /// None: it holds until it is removed.
    pub expires_at: Option<Timestamp>,
}

/// The revocations of a tenant, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocations(pub Vec<Revocation>);

/// What a token says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IssuedToken<'a> {
    pub id: &'a str,
    pub subject: Option<&'a str>,
    pub issued_at: Option<Timestamp>,
}
