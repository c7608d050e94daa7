//! Ids and numbers. All of them are JSON integers below 2^53.

/// Largest integer a JSON number carries exactly in every language (2^53 - 1).
pub const MAX_INTEGER: i64 = (1 << 53) - 1;

/// Position of a record in a log: dense, from 0.
pub type Offset = i64;
/// Run of a producer: grows with every open, never restarts.
pub type Epoch = i64;
/// Number of an append request in its scope: 0, 1, 2 ...
pub type Sequence = i64;
/// Number of a partition in its topic, from 0.
pub type Partition = i32;
/// 128 bits of XXH3 over the stored lines of a request: equal digests mean equal records.
pub type Digest = [u8; 16];

/// Owner of everything else; first column of every key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub i64);

/// One life of a topic: a topic deleted and made again has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicId(pub i64);

/// A partition's log or a topic's journal. Never used again, so a vanished one is gone for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogId(pub i64);

/// A logical producer, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProducerId(pub i64);
