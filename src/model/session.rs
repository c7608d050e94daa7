//! Sessions as clients open and see them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Epoch, Name, Partition, ProducerId, Scopes, Sequence, Timestamp,
    scopes::{SessionOwner, Subject},
};

/// Maximum number of scopes in the answer to an open; the others are paged.
pub const MAX_LISTED_SCOPES: i64 = 1_000;
/// The number of open ids remembered per producer.
pub const REMEMBERED_OPEN_IDS: i64 = 64;
/// Maximum distance between the instant in an `open_id` and the server's clock.
pub const OPEN_ID_WINDOW_MS: i64 = 24 * 3_600_000;
/// How long after its instant a used `open_id` is remembered, whatever happens to its producer: an
/// hour longer than it is accepted, as no open takes an hour.
pub const OPEN_ID_MEMORY_MS: i64 = OPEN_ID_WINDOW_MS + 3_600_000;

/// How the sequences of a session follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Sequencing {
    /// Every sequence is the last one plus one.
    #[default]
    Contiguous,
    /// Every sequence greater than the last one is new (for relays that use positions of another
    /// system).
    Monotonic,
}

/// Where the next sequences of a session start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sequences {
    #[default]
    Continue,
    /// All scopes start at 0 under the new epoch.
    Reset,
}

/// The parameters of an open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    pub transactional_id: Option<Name>,
    /// Conditional: only if this is the producer and this its current epoch.
    pub condition: Option<(ProducerId, Epoch)>,
    /// A UUIDv7 that makes the open safe to repeat.
    pub open_id: Option<Uuid>,
    /// None: the tenant's setting.
    pub transaction_timeout_ms: Option<i64>,
    pub sequencing: Sequencing,
    pub sequences: Sequences,
    /// What the token of this open permits.
    pub scopes: Arc<Scopes>,
}

impl Open {
    /// Whose a new session is, if not that of its name.
    pub fn opened_by(&self) -> Option<Subject> {
        let nameless = self.transactional_id.is_none();
        self.scopes.owner_of_nameless().filter(|_| nameless)?.opened_by
    }
}

/// The current state of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub producer_id: ProducerId,
    pub epoch: Epoch,
    /// True if the current epoch has no owner: the session was ended and not opened since.
    pub closed: bool,
    pub transactional_id: Option<Name>,
    pub sequencing: Sequencing,
    pub transaction_timeout_ms: i64,
    pub opened_at: Timestamp,
    /// Of a session without a name. Answers that were stored before this was known lack it.
    #[serde(default)]
    pub opened_by: Option<Subject>,
}

impl Session {
    pub fn owner(&self) -> SessionOwner {
        let Self { transactional_id, opened_by, .. } = self;
        SessionOwner { transactional_id: transactional_id.clone(), opened_by: *opened_by }
    }
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
    /// The ongoing transaction of the previous epoch, which the open aborted.
    pub aborted_transaction: Option<Uuid>,
    /// Prepared transactions, by id.
    pub prepared_transactions: Vec<Uuid>,
    /// True if the open was a repeat of the one that created this session.
    pub duplicate: bool,
}
