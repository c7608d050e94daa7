//! Shapes that only the OpenAPI document needs: their JSON is parsed by the model and assembled
//! from stored lines, never through serde. (Public, because nothing else makes them.)

use std::collections::BTreeMap;

use crate::http::groups::members::TopicPartitions;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{ObjectBuilder, SchemaType},
    },
};

/// Any JSON value.
pub struct AnyJson;

impl PartialSchema for AnyJson {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(SchemaType::AnyValue)
            .description(Some("Any JSON value, also null; kept as sent"))
            .into()
    }
}

impl ToSchema for AnyJson {}

/// Records, and what makes the append idempotent.
#[derive(ToSchema)]
pub struct Append {
    /// The session's producer. It comes with `epoch` and `sequence`.
    #[schema(minimum = 0)]
    pub producer_id: Option<i64>,
    /// The session's epoch.
    #[schema(minimum = 0)]
    pub epoch: Option<i64>,
    /// The number of this request in its scope (the URL appended to): 0, 1, 2 ...
    #[schema(minimum = 0)]
    pub sequence: Option<i64>,
    /// To one partition only: append only if this is its next offset.
    #[schema(minimum = 0)]
    pub expected_offset: Option<i64>,
    /// Where a record is stored already (it has a known `id`, or the topic dedups by content): `skip`
    /// that record, or `refuse` the whole request.
    #[schema(value_type = Option<String>, default = "skip", pattern = "^(skip|refuse)$")]
    pub on_duplicate: Option<String>,
    /// One to `max_batch_records` of them, in the order they are stored in.
    #[schema(min_items = 1)]
    pub records: Vec<Record>,
}

/// A record to append: exactly one of `value` and `value_base64`.
#[derive(ToSchema)]
pub struct Record {
    /// What the record is about. Records of a topic with the same key go to the same partition, so
    /// they stay in order.
    pub key: Option<String>,
    #[schema(required = false)]
    pub value: AnyJson,
    /// Instead of `value`: bytes, in standard base64 with padding.
    pub value_base64: Option<String>,
    /// Names and texts beside the value, kept as sent.
    pub headers: Option<BTreeMap<String, String>>,
    /// When it happened, by the client's clock; kept with the record in UTC, to the millisecond.
    #[schema(format = DateTime)]
    pub timestamp: Option<String>,
    /// The client's own id of the record, kept with it.
    #[schema(min_length = 1, max_length = 1024)]
    pub id: Option<String>,
}

/// A record as it is read; fields it was appended without are left out.
#[derive(ToSchema)]
pub struct ReadRecord {
    /// Its topic; where several are read.
    pub topic: Option<String>,
    /// Its partition; where several are read.
    #[schema(minimum = 0)]
    pub partition: Option<i32>,
    /// Its place in the partition, from 0 without holes.
    #[schema(minimum = 0)]
    pub offset: i64,
    /// When the log took it, by the log's clock; never before the record in front of it.
    #[schema(format = DateTime)]
    pub appended_at: String,
    /// The transaction that appended it.
    pub transaction_id: Option<String>,
    /// What the record is about.
    pub key: Option<String>,
    #[schema(required = false)]
    pub value: AnyJson,
    /// Instead of `value`: bytes, in standard base64 with padding.
    pub value_base64: Option<String>,
    /// Names and texts beside the value.
    pub headers: Option<BTreeMap<String, String>>,
    /// When it happened, by the clock of the client that appended it.
    #[schema(format = DateTime)]
    pub timestamp: Option<String>,
    /// The client's own id of the record.
    pub id: Option<String>,
}

/// Records of a partition, in order.
#[derive(ToSchema)]
pub struct ReadAnswer {
    /// The topic read.
    pub topic: String,
    /// The partition read.
    pub partition: i32,
    /// The records, by offset; none when there are none yet.
    pub records: Vec<ReadRecord>,
    /// Where to read on: the `offset` of the next read.
    pub next_offset: i64,
    /// The first offset that can be read.
    pub log_start_offset: i64,
    /// The next offset to be given.
    pub high_watermark: i64,
    /// With `isolation=read_uncommitted`: records of open transactions, by transaction.
    pub staged: Option<Vec<StagedTransaction>>,
}

/// Records of all partitions of a topic, those of a partition together and in order.
#[derive(ToSchema)]
pub struct TopicReadAnswer {
    /// The topic read.
    pub topic: String,
    /// The records; none when there are none yet.
    pub records: Vec<ReadRecord>,
    /// Every partition there is.
    pub partitions: Vec<PartitionEnds>,
    /// Where to read on: the `cursor` of the next read.
    pub cursor: String,
}

/// Where a partition is read on, and where it starts and ends.
#[derive(ToSchema)]
pub struct PartitionEnds {
    /// The partition.
    pub partition: i32,
    /// Where the cursor goes on in it.
    pub next_offset: i64,
    /// The first offset that can be read.
    pub log_start_offset: i64,
    /// The next offset to be given.
    pub high_watermark: i64,
}

/// Records of the partitions of a member, those of a partition together and in order.
#[derive(ToSchema)]
pub struct FetchAnswer {
    /// The newest generation; it goes with what the member commits.
    pub generation: i64,
    /// What the member owns and keeps; records come from here.
    pub assignment: Vec<TopicPartitions>,
    /// What it is to let go of: commit there now what is processed; a call that shows this answer gives
    /// it away. Also what the cursor sent names and the member does not own any more.
    pub revoked: Vec<TopicPartitions>,
    /// The records; none when there are none yet.
    pub records: Vec<ReadRecord>,
    /// Where to go on: the `cursor` of the next fetch, and of the commit once these records are
    /// processed.
    pub cursor: String,
}

/// Records of one open transaction; they have no offsets yet.
#[derive(ToSchema)]
pub struct StagedTransaction {
    /// Which transaction.
    pub transaction_id: String,
    /// `ongoing` or `prepared`.
    pub state: String,
    /// Its records for this partition.
    pub records: Vec<Record>,
}
