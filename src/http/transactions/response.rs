//! Answers to transaction calls.

use serde::Serialize;
use serde_json::Value;
use utoipa::{
    ToSchema,
    openapi::schema::{Object, ObjectBuilder, SchemaType, Type},
};
use uuid::Uuid;

use crate::model::{
    Timestamp,
    transaction::{self, Answered},
};

/// `ongoing` until it is `committed` or `aborted`; `prepared` in between if its client prepares it,
/// which guarantees that it can be committed.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "only describes")]
pub enum TransactionState {
    Ongoing,
    Prepared,
    Committed,
    Aborted,
}

/// One of the words, or null: in place, because few generators can write a reference or null.
fn abort_reason() -> Object {
    let text = ObjectBuilder::new();
    let text = text.schema_type(SchemaType::Array(vec![Type::String, Type::Null]));
    let words = ["client", "timeout", "fenced", "operator"].map(Value::from);
    let description = "Why it was aborted: at the request of its `client`, at its deadline \
        (`timeout`), because its session was opened again or ended (`fenced`), or at the request \
        of an `operator`; null if it was not.";
    let text = text.enum_values(Some(words.into_iter().chain([Value::Null])));
    text.description(Some(description)).build()
}

/// The location of records appended to one partition: consecutive offsets from `base_offset` on.
#[derive(Serialize, ToSchema)]
pub struct TransactionPlace {
    /// The topic.
    topic: String,
    /// The partition.
    partition: i32,
    /// The offset of the first record; null if all were already stored with the same ids.
    #[schema(required = true)]
    base_offset: Option<i64>,
    /// The number of records stored.
    record_count: i64,
}

/// The current state of a transaction.
#[derive(Serialize, ToSchema)]
pub struct Transaction {
    /// The transaction's id.
    transaction_id: Uuid,
    #[schema(value_type = TransactionState)]
    state: transaction::State,
    /// The producer whose session began it; null if none did.
    #[schema(required = true)]
    producer_id: Option<i64>,
    /// The epoch of that session; null if there was none.
    #[schema(required = true)]
    epoch: Option<i64>,
    /// When it was begun.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it will be aborted; null if it is not ongoing.
    #[schema(format = DateTime, required = true)]
    expires_at: Option<String>,
    /// When it was prepared; from then on it holds its offsets and topics. Null if it was never
    /// prepared.
    #[schema(format = DateTime, required = true)]
    prepared_at: Option<String>,
    /// When it was committed or aborted; null if it has not ended.
    #[schema(format = DateTime, required = true)]
    ended_at: Option<String>,
    #[schema(required = true, schema_with = abort_reason)]
    reason: Option<transaction::Reason>,
    /// The number of items of `appends` it holds, over all calls.
    append_count: i64,
    /// The locations of the records of a committed transaction, in the order appended. An append to
    /// a topic has one item per partition. Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    appends: Option<Vec<TransactionPlace>>,
    /// In the answer to a call: whether it had already been done.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
}

/// A page of transactions, by id.
#[derive(Serialize, ToSchema)]
pub struct TransactionList {
    /// At most `limit` transactions, without `appends`.
    pub transactions: Vec<Transaction>,
    /// The `after` of the next page; null on the last page.
    #[schema(required = true)]
    pub next_after: Option<String>,
}

impl From<transaction::PlacedAppend> for TransactionPlace {
    fn from(placed: transaction::PlacedAppend) -> Self {
        let transaction::PlacedAppend { topic, partition, base_offset, record_count } = placed;
        Self { topic, partition, base_offset, record_count }
    }
}

impl From<transaction::Transaction> for Transaction {
    fn from(transaction: transaction::Transaction) -> Self {
        let instant = |at: Option<Timestamp>| at.map(|at| at.to_string());
        let (producer_id, epoch) = transaction.session.unzip();
        let places = |appends: Vec<transaction::PlacedAppend>| {
            appends.into_iter().map(TransactionPlace::from).collect()
        };
        Self {
            transaction_id: transaction.transaction_id,
            state: transaction.state,
            producer_id: producer_id.map(|id| id.0),
            epoch,
            created_at: transaction.created_at.to_string(),
            expires_at: instant(transaction.expires_at),
            prepared_at: instant(transaction.prepared_at),
            ended_at: instant(transaction.ended_at),
            reason: transaction.reason,
            append_count: transaction.append_count,
            appends: transaction.appends.map(places),
            duplicate: None,
        }
    }
}

impl From<Answered> for Transaction {
    fn from(answered: Answered) -> Self {
        Self { duplicate: Some(answered.duplicate), ..answered.transaction.into() }
    }
}
