//! Sessions as a client opens and sees them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Epoch, Name, Partition, ProducerId, Sequence, Timestamp};

/// Largest number of scopes an open lists; the rest is paged.
pub const MAX_LISTED_SCOPES: i64 = 1_000;
/// How many open ids of a producer are remembered.
pub const REMEMBERED_OPEN_IDS: i64 = 64;
/// How far from the server's clock the instant inside an `open_id` may lie.
pub const OPEN_ID_WINDOW_MS: i64 = 24 * 3_600_000;
/// How long behind its instant a used `open_id` is known as used, whatever becomes of its producer:
/// an hour longer than it is accepted, which no open takes.
pub const OPEN_ID_MEMORY_MS: i64 = OPEN_ID_WINDOW_MS + 3_600_000;

/// How sequences of a session follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Sequencing {
    /// Every sequence is the last plus one.
    #[default]
    Contiguous,
    /// Every sequence greater than the last is new (relays of another system's positions).
    Monotonic,
}

/// Where the next sequences of a session start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sequences {
    #[default]
    Continue,
    /// All scopes start at 0 again under the new epoch.
    Reset,
}

/// An open, as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    pub transactional_id: Option<Name>,
    /// Conditional: only if this is the producer and this its current epoch.
    pub condition: Option<(ProducerId, Epoch)>,
    /// A UUIDv7 that makes the open repeatable.
    pub open_id: Option<Uuid>,
    /// None: as the tenant says.
    pub transaction_timeout_ms: Option<i64>,
    pub sequencing: Sequencing,
    pub sequences: Sequences,
}

/// A session as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub producer_id: ProducerId,
    pub epoch: Epoch,
    /// True when the current epoch has no owner: the session was ended and not opened since.
    pub closed: bool,
    pub transactional_id: Option<Name>,
    pub sequencing: Sequencing,
    pub transaction_timeout_ms: i64,
    pub opened_at: Timestamp,
}

/// The next sequence of one scope: a topic, or one partition of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextSequence {
    pub topic: Name,
    pub partition: Option<Partition>,
    pub next_sequence: Sequence,
}

/// The answer to an open or a describe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    pub session: Session,
    /// By topic name, then partition; at most `MAX_LISTED_SCOPES`.
    pub next_sequences: Vec<NextSequence>,
    /// The ongoing transaction of the epoch before that the open aborted.
    pub aborted_transaction: Option<Uuid>,
    /// By id.
    pub prepared_transactions: Vec<Uuid>,
    /// The open was a repeat of the one that made this session.
    pub duplicate: bool,
}
