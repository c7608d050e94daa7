//! Transactions as clients begin, continue, end and see them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Batch, Digest, Epoch, Name, Offset, Partition, ProducerId, Scopes, Sequence, Timestamp,
    append::Scope, dedup::RequestKey, group::Member,
};

/// How far the instant in a transaction id may be ahead of the server's clock.
pub const ID_AHEAD_MS: i64 = 24 * 3_600_000;

/// The state of a transaction. `rules::transaction` defines the transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Ongoing,
    Prepared,
    Committed,
    Aborted,
}

/// Why a transaction was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its client asked for it.
    Client,
    /// It passed its deadline.
    Timeout,
    /// Its session was opened again, was ended, or has expired.
    Fenced,
    Operator,
}

/// Records for one topic, or for one of its partitions.
#[derive(Debug)]
pub struct AppendItem {
    pub topic: Name,
    pub scope: Scope,
    pub batch: Arc<Batch>,
}

/// An offset to commit for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffsetItem {
    /// In one partition.
    At { group: Name, topic: Name, partition: Partition, offset: Offset, claim: CommitRight },
    /// In all partitions that the cursor of a member's fetch names.
    Cursor { group: Name, member: Member, cursor: String },
}

impl OffsetItem {
    pub fn group(&self) -> &Name {
        match self {
            OffsetItem::At { group, .. } | OffsetItem::Cursor { group, .. } => group,
        }
    }
}

/// The right to commit an offset in a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CommitRight {
    /// The member owns the partition.
    Member {
        member_id: String,
        generation: i64,
        /// This must be the committed offset; `Some(None)`: none yet.
        expected: Option<Option<Offset>>,
        /// From a cursor: the committed offset at the start of its run, which must be unchanged if
        /// the transaction has appends. None: unknown.
        began: Option<Option<Offset>>,
    },
    /// The group has no members, and this is its committed offset; none: nothing is committed yet.
    Expected(Option<Offset>),
}

impl CommitRight {
    pub fn member_id(&self) -> Option<&str> {
        match self {
            CommitRight::Member { member_id, .. } => Some(member_id),
            CommitRight::Expected(_) => None,
        }
    }
}

/// The appends and offsets that a call adds to a transaction.
#[derive(Debug, Default)]
pub struct Work {
    pub appends: Vec<AppendItem>,
    pub offsets: Vec<OffsetItem>,
}

/// The caller of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A client that knows the transaction's id, without a session.
    Bearer,
    /// A session.
    Session(ProducerId, Epoch),
    /// An operator, who may end stuck transactions.
    Operator,
}

/// Who calls a transaction, and what the token permits.
#[derive(Clone, Debug)]
pub struct Actor {
    pub caller: Caller,
    pub scopes: Arc<Scopes>,
}

/// How a repeated begin is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatedBy {
    /// Not at all: the server has created the id.
    Nothing,
    /// By the id, which the client has chosen.
    Id,
    /// By an `Idempotency-Key`; what a repeat must equal is the transaction, not the key's request.
    Key(RequestKey),
}

impl RepeatedBy {
    pub fn key(&self) -> Option<&RequestKey> {
        match self {
            RepeatedBy::Key(key) => Some(key),
            RepeatedBy::Nothing | RepeatedBy::Id => None,
        }
    }

    /// The instant that the client has named with `id` or its key: before the horizon, its
    /// transaction may have run and been forgotten.
    pub fn instant(&self, id: &Uuid) -> Option<Timestamp> {
        match self {
            RepeatedBy::Nothing => None,
            RepeatedBy::Id => Timestamp::of_uuid(id),
            RepeatedBy::Key(key) => key.instant,
        }
    }
}

/// The parameters of a begin.
#[derive(Debug)]
pub struct Begin {
    /// None: the server creates one.
    pub transaction_id: Option<Uuid>,
    /// Of a one-request transaction whose id the server creates.
    pub idempotency_key: Option<RequestKey>,
    /// The session it is bound to.
    pub session: Option<(ProducerId, Epoch)>,
    pub timeout_ms: Option<i64>,
    pub work: Work,
    /// A one-request transaction.
    pub commit: bool,
    /// What the token of this request permits.
    pub scopes: Arc<Scopes>,
}

/// The parameters of a later call.
#[derive(Debug)]
pub enum Call {
    Records { sequence: Option<Sequence>, appends: Vec<AppendItem> },
    Offsets(Vec<OffsetItem>),
    Prepare,
    Commit { expected_appends: Option<i64>, work: Work },
    Abort,
}

/// The location of the records of an append to one partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlacedAppend {
    pub topic: String,
    pub partition: Partition,
    /// Null: all its records were already stored with the same ids.
    pub base_offset: Option<Offset>,
    pub record_count: i64,
}

/// The current state of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    pub transaction_id: Uuid,
    pub state: State,
    pub session: Option<(ProducerId, Epoch)>,
    pub created_at: Timestamp,
    /// The deadline of an ongoing transaction.
    pub expires_at: Option<Timestamp>,
    /// When it was prepared; from then on it holds its offsets and topics.
    pub prepared_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Why it was aborted.
    pub reason: Option<Reason>,
    /// The number of items of `appends` over all calls.
    pub append_count: i64,
    /// Locations of a committed transaction, in the order appended; lists omit them.
    pub appends: Option<Vec<PlacedAppend>>,
}

/// The answer to a begin or a later call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    pub transaction: Transaction,
    /// Whether the call had already been done.
    pub duplicate: bool,
}

/// The filter of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub state: Option<State>,
    /// Begun at least this long ago.
    pub older_than_ms: Option<i64>,
    pub producer_id: Option<ProducerId>,
}

macro_rules! words {
    ($kind:ident { $($variant:ident $word:literal),* }) => {
        impl $kind {
            pub const ALL: &'static [$kind] = &[$($kind::$variant),*];

            pub fn as_str(self) -> &'static str {
                match self { $($kind::$variant => $word),* }
            }

            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.as_str() == word)
            }
        }
    };
}
words!(State { Ongoing "ongoing", Prepared "prepared", Committed "committed", Aborted "aborted" });
words!(Reason { Client "client", Timeout "timeout", Fenced "fenced", Operator "operator" });

impl Begin {
    pub fn repeated_by(&self) -> RepeatedBy {
        match (self.transaction_id, self.idempotency_key) {
            (Some(_), _) => RepeatedBy::Id,
            (None, Some(key)) => RepeatedBy::Key(key),
            (None, None) => RepeatedBy::Nothing,
        }
    }

    /// The digest of everything except the id: a begin repeated with another payload is another
    /// begin.
    pub fn digest(&self) -> Digest {
        let mut hasher = Fields::default();
        let (producer_id, epoch) = self.session.unzip();
        hasher.optional(producer_id.map(|id| id.0));
        hasher.optional(epoch);
        hasher.optional(self.timeout_ms);
        hasher.number(i64::from(self.commit));
        hasher.appends(&self.work.appends);
        hasher.offsets(&self.work.offsets);
        hasher.finish()
    }
}

/// The digest of a call to /records.
pub fn appends_digest(appends: &[AppendItem]) -> Digest {
    let mut hasher = Fields::default();
    hasher.appends(appends);
    hasher.finish()
}

/// Appends fields one after the other in a unique encoding.
#[derive(Default)]
struct Fields(xxhash_rust::xxh3::Xxh3);

impl Fields {
    fn number(&mut self, number: i64) {
        self.0.update(&number.to_be_bytes());
    }

    fn optional(&mut self, number: Option<i64>) {
        self.number(i64::from(number.is_some()));
        self.number(number.unwrap_or(0));
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as i64);
        self.0.update(text.as_bytes());
    }

    fn appends(&mut self, appends: &[AppendItem]) {
        self.number(appends.len() as i64);
        for AppendItem { topic, scope, batch } in appends {
            self.text(topic.as_str());
            self.optional(match scope {
                Scope::Topic => None,
                Scope::Partition(partition) => Some(i64::from(*partition)),
            });
            self.0.update(&batch.digest);
        }
    }

    fn offsets(&mut self, offsets: &[OffsetItem]) {
        self.number(offsets.len() as i64);
        for item in offsets {
            self.text(item.group().as_str());
            match item {
                OffsetItem::At { topic, partition, offset, claim, .. } => {
                    self.text(topic.as_str());
                    self.number(i64::from(*partition));
                    self.number(*offset);
                    self.claim(claim);
                }
                // no topic has an empty name
                OffsetItem::Cursor { member, cursor, .. } => {
                    self.text("");
                    self.text(cursor);
                    self.text(&member.member_id);
                    self.number(member.generation);
                }
            }
        }
    }

    fn claim(&mut self, claim: &CommitRight) {
        match claim {
            // as without, where nothing is expected: of those there were before
            CommitRight::Member { member_id, generation, expected, .. } => {
                self.number(if expected.is_some() { 2 } else { 1 });
                self.text(member_id);
                self.number(*generation);
                if let Some(expected) = expected {
                    self.optional(*expected);
                }
            }
            CommitRight::Expected(expected) => {
                self.number(0);
                self.optional(*expected);
            }
        }
    }

    fn finish(self) -> Digest {
        self.0.digest128().to_be_bytes()
    }
}
