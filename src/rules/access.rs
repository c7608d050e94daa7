//! Whether a token covers what a request names: topics, a session, a transaction.

use super::Refusal;
use crate::model::{
    Name, Scopes, Word,
    scopes::{Reach, SessionOwner},
    session::Open,
};

/// Decides a commit or a reset of offsets: it needs the right to read the topic.
pub fn check_consume(scopes: &Scopes, topic: &Name) -> Result<(), Refusal> {
    if scopes.covers(&[Word::Consume], topic) {
        Ok(())
    } else {
        Err(Refusal::ScopeLacks { scope: format!("consume:{topic}") })
    }
}

/// Decides an open by what the request itself names.
pub fn check_open(open: &Open) -> Result<(), Refusal> {
    match (&open.transactional_id, open.condition) {
        (Some(name), _) => {
            let owner = SessionOwner { transactional_id: Some(name.clone()), opened_by: None };
            if open.scopes.covers_session(&owner) {
                Ok(())
            } else {
                Err(Refusal::SessionNotCovered { scope: format!("produce:{name}") })
            }
        }
        // the row decides
        (None, Some(_)) => Ok(()),
        (None, None) => match open.scopes.owner_of_nameless() {
            Some(_) => Ok(()),
            None => Err(Refusal::NamelessSession),
        },
    }
}

/// Decides a request that names a session by its producer id. The refusal does not tell the name.
pub fn check_session(scopes: &Scopes, owner: &SessionOwner) -> Result<(), Refusal> {
    if scopes.covers_session(owner) {
        Ok(())
    } else {
        Err(Refusal::SessionNotCovered { scope: "produce".to_owned() })
    }
}

/// Decides a call of a transaction. The refusal names none of its topics and groups.
pub fn check_transaction(scopes: &Scopes, reach: &Reach) -> Result<(), Refusal> {
    match scopes.lacks(reach) {
        Some(word) => Err(Refusal::TransactionNotCovered { word }),
        None => Ok(()),
    }
}
