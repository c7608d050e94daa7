//! Revocations: which tokens one is about, and how the list of a tenant changes.

use uuid::Uuid;

use super::Refusal;
use crate::model::{
    Timestamp,
    tenant::revocation::{IssuedToken, Revocation, Revocations, Revoked},
};

/// A tenant's revocations are read with the tenant, again and again.
pub const MAX_REVOCATIONS: usize = 1_000;

/// Whether a token is refused.
pub fn is_revoked(revocations: &Revocations, token: IssuedToken<'_>, now: Timestamp) -> bool {
    let is_earlier = |than: Timestamp| token.issued_at.is_none_or(|issued_at| issued_at < than);
    in_force(revocations, now).any(|one| match &one.revoked {
        Revoked::TokenId(id) => token.id == id,
        Revoked::Subject { subject, issued_before } => {
            token.subject == Some(subject) && is_earlier(*issued_before)
        }
        Revoked::IssuedBefore(issued_before) => is_earlier(*issued_before),
    })
}

/// The list with one more, without those that are over. One about the same tokens or fewer is taken
/// into it. Refused if there are too many.
pub fn with(
    revocations: &Revocations,
    new: Revocation,
    now: Timestamp,
) -> Result<Revocations, Refusal> {
    let mut list: Vec<Revocation> = Vec::new();
    for one in in_force(revocations, now) {
        if !(covers(&new.revoked, &one.revoked) && outlasts(&new, one)) {
            list.push(one.clone());
        }
    }
    if list.len() >= MAX_REVOCATIONS {
        let limit = MAX_REVOCATIONS as i64;
        return Err(Refusal::TooMany { what: "revocations of a tenant", limit });
    }
    list.push(new);
    Ok(Revocations(list))
}

/// Those in force.
pub fn in_force(revocations: &Revocations, now: Timestamp) -> impl Iterator<Item = &Revocation> {
    revocations.0.iter().filter(move |one| holds(one, now))
}

/// The list without one.
pub fn without(revocations: &Revocations, id: Uuid) -> Revocations {
    Revocations(revocations.0.iter().filter(|one| one.id != id).cloned().collect())
}

fn holds(one: &Revocation, now: Timestamp) -> bool {
    one.expires_at.is_none_or(|end| now < end)
}

/// Whether every token that `narrow` is about is one that `wide` is about.
fn covers(wide: &Revoked, narrow: &Revoked) -> bool {
    match (wide, narrow) {
        (Revoked::TokenId(wide), Revoked::TokenId(narrow)) => wide == narrow,
        (
            Revoked::Subject { subject: wide, issued_before: until },
            Revoked::Subject { subject: narrow, issued_before },
        ) => wide == narrow && issued_before <= until,
        (
            Revoked::IssuedBefore(until),
            Revoked::IssuedBefore(issued_before) | Revoked::Subject { issued_before, .. },
        ) => issued_before <= until,
        _ => false,
    }
}

fn outlasts(new: &Revocation, one: &Revocation) -> bool {
    match (new.expires_at, one.expires_at) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(new), Some(one)) => one <= new,
    }
}
