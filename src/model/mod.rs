//! The vocabulary: ids, names, records, limits, error codes. Values are validated once, when they
//! are parsed. Nothing here awaits, reads a clock or imports another module of ours.

pub mod append;
pub mod batch;
pub mod code;
pub mod cursor;
pub mod dedup;
pub mod group;
pub mod id;
pub mod name;
pub mod partitioner;
pub mod read;
pub mod session;
pub mod settings;
pub mod survivors;
pub mod tenant;
pub mod time;
pub mod topic;
pub mod transaction;
pub mod validation;
pub mod varint;

pub use batch::{Batch, Envelope};
pub use code::{Code, Retry, SideEffects};
pub use id::{
    Digest, Epoch, GroupId, LogId, MAX_INTEGER, Offset, Partition, ProducerId, Sequence, TenantId,
    TopicId, uuid_v7,
};
pub use name::{
    Name, Pattern,
    scopes::{self, Scopes, Word},
};
pub use time::Timestamp;
pub use validation::{ValidationError, ValidationErrors};
