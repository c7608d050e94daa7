//! Schemas for the OpenAPI document only: the model parses their JSON, and answers are assembled
//! from stored lines, not through serde. (Public, because nothing else constructs them.)

use std::collections::BTreeMap;

use crate::http::groups::members::TopicPartitions;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{Object, ObjectBuilder, SchemaType, Type},
    },
};

/// Any JSON value; always in place, as a name of its own is a needless class to generators.
pub struct AnyJson;

impl PartialSchema for AnyJson {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(SchemaType::AnyValue)
            .description(Some(
                "Any JSON value, including null; stored as sent. At most 128 levels of arrays and \
                 objects, no half of a surrogate pair, no number beyond a 64-bit float.",
            ))
            .into()
    }
}

impl ToSchema for AnyJson {}

/// Records, with the optional fields that make the append idempotent.
#[derive(ToSchema)]
pub struct Append {
    /// The session's producer. Requires `epoch` and `sequence`.
    #[schema(minimum = 0)]
    pub producer_id: Option<i64>,
    /// The session's epoch.
    #[schema(minimum = 0)]
    pub epoch: Option<i64>,
    /// The sequence of this request in its scope (the URL appended to): 0, 1, 2 ...
    #[schema(minimum = 0)]
    pub sequence: Option<i64>,
    /// Append to a partition only: append only if this is the next offset.
    #[schema(minimum = 0)]
    pub expected_offset: Option<i64>,
    #[schema(schema_with = on_duplicate)]
    pub on_duplicate: Option<String>,
    /// One to `max_batch_records` records, stored in this order.
    #[schema(min_items = 1)]
    pub records: Vec<Record>,
}

fn on_duplicate() -> Object {
    let text = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
    let description = "If a record is already stored (its `id` is known, or the topic \
        deduplicates by content): `skip` that record (the default), or `refuse` the whole request.";
    text.enum_values(Some(["skip", "refuse"])).description(Some(description)).build()
}

/// A record to append, with exactly one of `value` and `value_base64`.
#[derive(ToSchema)]
pub struct Record {
    /// The record key. Records of a topic with the same key go to the same partition, so they stay
    /// in order.
    pub key: Option<String>,
    #[schema(inline, required = false)]
    pub value: AnyJson,
    /// Instead of `value`: bytes, in standard base64 with padding.
    pub value_base64: Option<String>,
    /// Header names and values, stored as sent.
    pub headers: Option<BTreeMap<String, String>>,
    /// When the event happened, by the client's clock; stored in UTC with milliseconds.
    #[schema(format = DateTime)]
    pub timestamp: Option<String>,
    /// The client's id of the record, stored with it.
    #[schema(min_length = 1, max_length = 1024)]
    pub id: Option<String>,
}

/// A record as it is read; fields that were not appended are absent.
#[derive(ToSchema)]
pub struct ReadRecord {
    /// The topic; present if several topics are read.
    pub topic: Option<String>,
    /// The partition; present if several partitions are read.
    #[schema(minimum = 0)]
    pub partition: Option<i32>,
    /// The offset in the partition, from 0 without gaps.
    #[schema(minimum = 0)]
    pub offset: i64,
    /// When it was stored, by the log's clock; never before the record at the previous offset.
    #[schema(format = DateTime)]
    pub appended_at: String,
    /// The transaction that appended it.
    pub transaction_id: Option<String>,
    /// The record key.
    pub key: Option<String>,
    #[schema(inline, required = false)]
    pub value: AnyJson,
    /// Instead of `value`: bytes, in standard base64 with padding.
    pub value_base64: Option<String>,
    /// Header names and values.
    pub headers: Option<BTreeMap<String, String>>,
    /// When the event happened, by the clock of the client that appended it.
    #[schema(format = DateTime)]
    pub timestamp: Option<String>,
    /// The client's id of the record.
    pub id: Option<String>,
}

/// Records of a partition, in order.
#[derive(ToSchema)]
pub struct ReadAnswer {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The records, by offset; empty if there are none yet.
    pub records: Vec<ReadRecord>,
    /// Where to continue: the `offset` of the next read.
    pub next_offset: i64,
    /// The first offset that can be read.
    pub log_start_offset: i64,
    /// The next offset to be assigned.
    pub high_watermark: i64,
    /// With `isolation=read_uncommitted`: records of open transactions, by transaction.
    pub staged: Option<Vec<StagedTransaction>>,
}

/// Records of all partitions of a topic, in order within each partition.
#[derive(ToSchema)]
pub struct TopicReadAnswer {
    /// The topic.
    pub topic: String,
    /// The records; empty if there are none yet.
    pub records: Vec<ReadRecord>,
    /// All partitions.
    pub partitions: Vec<PartitionEnds>,
    /// Where to continue: the `cursor` of the next read.
    pub cursor: String,
}

/// The positions of a partition.
#[derive(ToSchema)]
pub struct PartitionEnds {
    /// The partition.
    pub partition: i32,
    /// Where the cursor continues in this partition.
    pub next_offset: i64,
    /// The first offset that can be read.
    pub log_start_offset: i64,
    /// The next offset to be assigned.
    pub high_watermark: i64,
}

/// Records of a member's partitions, in order within each partition.
#[derive(ToSchema)]
pub struct FetchAnswer {
    /// The newest generation; the member sends it with its commits.
    pub generation: i64,
    /// The partitions the member owns and keeps; the records are from these.
    pub assignment: Vec<TopicPartitions>,
    /// The partitions to release: commit there now what is processed. A call that acknowledges this
    /// answer releases them. Also lists partitions of the cursor that the member no longer owns.
    pub revoked: Vec<TopicPartitions>,
    /// The records; empty if there are none yet.
    pub records: Vec<ReadRecord>,
    /// Where to continue: the `cursor` of the next fetch, and of the commit once these records are
    /// processed.
    pub cursor: String,
}

/// Records of one open transaction; they have no offsets yet.
#[derive(ToSchema)]
pub struct StagedTransaction {
    /// The transaction's id; null if the token does not cover the transaction.
    #[schema(required = true)]
    pub transaction_id: Option<String>,
    /// `ongoing` or `prepared`.
    pub state: String,
    /// Its records for this partition.
    pub records: Vec<Record>,
}
