//! Expiry: a producer that has been idle, in all its scopes, for longer than its tenant's limit is
//! removed as a whole. So is a group with its offsets, but never while it is in use.

use super::{session::SessionRow, settings};
use crate::model::{
    Timestamp,
    session::OPEN_ID_MEMORY_MS,
    settings::{Key, OwnSettings},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryVerdict {
    Expired,
    /// It was active at that instant: the next check is due after its limit has passed since.
    ActiveAt(Timestamp),
}

/// The setting that limits how long it may be idle.
pub fn limited_by(named: bool) -> Key {
    if named { Key::TransactionalIdExpiryMs } else { Key::ProducerExpiryMs }
}

/// How long it may be idle. None: no limit.
pub fn limit_ms(session: &SessionRow, tenant: &OwnSettings) -> Option<i64> {
    settings::in_force(limited_by(session.transactional_id.is_some()), &[tenant]).number()
}

/// The activity of a producer, apart from its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// The time of its last append to any log.
    pub last_appended_at: Option<Timestamp>,
    /// When it last began or ended a transaction.
    pub last_transacted_at: Option<Timestamp>,
    /// Whether one of its transactions is ongoing or prepared.
    pub in_transaction: bool,
    /// Activity noted by an earlier check, or when the outcome of a transaction was removed.
    pub noted_at: Option<Timestamp>,
}

impl Activity {
    fn last_at(&self, session: &SessionRow, now: Timestamp) -> Timestamp {
        let now = self.in_transaction.then_some(now);
        let known = [self.last_appended_at, self.last_transacted_at, self.noted_at, now];
        known.into_iter().flatten().fold(session.opened_at, Timestamp::max)
    }
}

pub fn judge(
    session: &SessionRow,
    activity: &Activity,
    limit_ms: Option<i64>,
    now: Timestamp,
) -> ExpiryVerdict {
    let active_at = activity.last_at(session, now);
    let Some(limit_ms) = limit_ms else { return ExpiryVerdict::ActiveAt(active_at) };
    // open ids at or before the horizon are refused by this row alone
    let needed_until_ms = session.open_horizon.0 + OPEN_ID_MEMORY_MS;
    let due_ms = needed_until_ms.max(active_at.0 + limit_ms);
    if now.0 > due_ms {
        ExpiryVerdict::Expired
    } else {
        ExpiryVerdict::ActiveAt(Timestamp(due_ms - limit_ms))
    }
}

/// The activity of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupActivity {
    pub has_members: bool,
    /// Whether a prepared transaction will commit in it.
    pub is_pinned: bool,
    /// When it last had members, or was created; or noted by an earlier check.
    pub noted_at: Timestamp,
    pub last_committed_at: Option<Timestamp>,
}

pub fn judge_group(
    activity: &GroupActivity,
    limit_ms: Option<i64>,
    now: Timestamp,
) -> ExpiryVerdict {
    let lives = activity.has_members || activity.is_pinned;
    let known = [activity.last_committed_at, lives.then_some(now)];
    let active_at = known.into_iter().flatten().fold(activity.noted_at, Timestamp::max);
    match limit_ms {
        Some(limit_ms) if now.0 > active_at.0 + limit_ms => ExpiryVerdict::Expired,
        _ => ExpiryVerdict::ActiveAt(active_at),
    }
}
