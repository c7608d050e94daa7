//! Opening and closing sessions. Epochs only grow; only an open issues one.

use super::{Refusal, access::check_session, append::sequence::SessionFacts};
use crate::model::{
    Epoch, Name, ProducerId, Scopes, Timestamp,
    scopes::{SessionOwner, Subject},
    session::{OPEN_ID_WINDOW_MS, Open, Sequences},
};

/// A session row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionRow {
    pub producer_id: ProducerId,
    pub transactional_id: Option<Name>,
    /// Of a session without a name: the subject that opened it first.
    pub opened_by: Option<Subject>,
    pub facts: SessionFacts,
    pub transaction_timeout_ms: i64,
    /// Open ids with timestamps up to this one are no longer remembered.
    pub open_horizon: Timestamp,
    pub opened_at: Timestamp,
    /// The open that issued the current epoch has not yet fenced every log.
    pub fencing: bool,
}

impl SessionRow {
    pub fn owner(&self) -> SessionOwner {
        let Self { transactional_id, opened_by, .. } = self;
        SessionOwner { transactional_id: transactional_id.clone(), opened_by: *opened_by }
    }
}

/// The epoch that an open issues, and the one before which states do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextEpoch {
    pub epoch: Epoch,
    pub reset_epoch: Epoch,
}

/// An open id is a UUIDv7 with a timestamp within a day of the server's clock.
pub fn check_open_id(open: &Open, now: Timestamp) -> Result<(), Refusal> {
    let Some(open_id) = &open.open_id else { return Ok(()) };
    let made_at = Timestamp::of_uuid(open_id).ok_or(Refusal::InvalidOpenId)?;
    let distance_ms = made_at.0.abs_diff(now.0);
    if distance_ms > OPEN_ID_WINDOW_MS.unsigned_abs() {
        Err(Refusal::InvalidOpenId)
    } else {
        Ok(())
    }
}

/// A retry of an open, remembered as the one that issued this epoch of this producer: if that is
/// still the current session of the same name and producer, it is answered again. `row` none: the
/// producer has expired since, and the open is not repeated.
pub fn repeat(
    open: &Open,
    row: Option<SessionRow>,
    (producer_id, made_epoch): (ProducerId, Epoch),
) -> Result<SessionRow, Refusal> {
    let row = row.ok_or(Refusal::UnknownProducer { producer_id })?;
    check_session(&open.scopes, &row.owner())?;
    let same = match &open.condition {
        Some((producer_id, _)) => {
            *producer_id == row.producer_id
                && (open.transactional_id.is_none()
                    || open.transactional_id == row.transactional_id)
        }
        None => open.transactional_id == row.transactional_id,
    };
    if !same {
        return Err(Refusal::OpenIdReused);
    }
    if row.facts.closed || made_epoch != row.facts.epoch {
        return Err(Refusal::ProducerFenced { current_epoch: row.facts.epoch });
    }
    Ok(row)
}

/// A new open. `row` none: there is no such session yet.
pub fn open(open: &Open, row: Option<&SessionRow>) -> Result<NextEpoch, Refusal> {
    if let Some((producer_id, epoch)) = open.condition {
        let unknown = Refusal::UnknownProducer { producer_id };
        let row = row.filter(|row| row.producer_id == producer_id).ok_or(unknown.clone())?;
        if open.transactional_id.is_some() && open.transactional_id != row.transactional_id {
            return Err(unknown);
        }
        check_session(&open.scopes, &row.owner())?;
        let current_epoch = row.facts.epoch;
        if epoch < current_epoch {
            return Err(Refusal::ProducerFenced { current_epoch });
        }
        if epoch > current_epoch || row.facts.closed {
            return Err(Refusal::InvalidProducerEpoch { current_epoch });
        }
    }
    let Some(row) = row else {
        return Ok(NextEpoch { epoch: 0, reset_epoch: 0 });
    };
    let made_at = open.open_id.as_ref().and_then(Timestamp::of_uuid);
    if made_at.is_some_and(|made_at| made_at <= row.open_horizon) {
        return Err(Refusal::ProducerFenced { current_epoch: row.facts.epoch });
    }
    let epoch = row.facts.epoch + 1;
    let reset_epoch = match open.sequences {
        Sequences::Reset => epoch,
        Sequences::Continue => row.facts.reset_epoch,
    };
    Ok(NextEpoch { epoch, reset_epoch })
}

/// The result of closing a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Now,
    /// It was closed before.
    Before,
    /// Another client has opened it since, so it is not the caller's to close.
    Stale,
}

/// Closes a session, in this epoch if one is named.
pub fn end(row: &SessionRow, epoch: Option<Epoch>, scopes: &Scopes) -> Result<End, Refusal> {
    check_session(scopes, &row.owner())?;
    let current_epoch = row.facts.epoch;
    if epoch.is_some_and(|epoch| epoch > current_epoch) {
        return Err(Refusal::InvalidProducerEpoch { current_epoch });
    }
    Ok(match epoch {
        _ if row.facts.closed => End::Before,
        Some(epoch) if epoch < current_epoch => End::Stale,
        _ => End::Now,
    })
}
