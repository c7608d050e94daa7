//! Shapes that only the OpenAPI document needs: their JSON is parsed by the model and assembled
//! from stored lines, never through serde. (Public, because nothing else makes them.)

use std::collections::BTreeMap;

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
    #[schema(min_items = 1)]
    pub records: Vec<Record>,
}

/// A record to append: exactly one of `value` and `value_base64`.
#[derive(ToSchema)]
pub struct Record {
    pub key: Option<String>,
    #[schema(required = false)]
    pub value: AnyJson,
    pub value_base64: Option<String>,
    pub headers: Option<BTreeMap<String, String>>,
    #[schema(format = DateTime)]
    pub timestamp: Option<String>,
    pub id: Option<String>,
}

/// A record as it is read; fields it was appended without are left out.
#[derive(ToSchema)]
pub struct ReadRecord {
    pub offset: i64,
    #[schema(format = DateTime)]
    pub appended_at: String,
    /// Of the transaction that appended it.
    pub transaction_id: Option<String>,
    pub key: Option<String>,
    #[schema(required = false)]
    pub value: AnyJson,
    pub value_base64: Option<String>,
    pub headers: Option<BTreeMap<String, String>>,
    #[schema(format = DateTime)]
    pub timestamp: Option<String>,
    pub id: Option<String>,
}

/// Records of a partition, in order.
#[derive(ToSchema)]
pub struct ReadAnswer {
    pub topic: String,
    pub partition: i32,
    pub records: Vec<ReadRecord>,
    /// Where to read on.
    pub next_offset: i64,
    /// The first offset that can be read.
    pub log_start_offset: i64,
    /// The next offset to be given.
    pub high_watermark: i64,
    /// With `isolation=read_uncommitted`: records of open transactions, by transaction.
    pub staged: Option<Vec<StagedTransaction>>,
}

/// Records of one open transaction; they have no offsets yet.
#[derive(ToSchema)]
pub struct StagedTransaction {
    pub transaction_id: String,
    pub state: String,
    pub records: Vec<Record>,
}
