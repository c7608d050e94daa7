//! How transactions are answered.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::model::{
    Timestamp,
    transaction::{self, Answered},
};

/// `ongoing`, until it is `committed` or `aborted`; `prepared` in between, when its client wants to
/// be sure that it can be committed.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TransactionState {
    Ongoing,
    Prepared,
    Committed,
    Aborted,
}

/// Why it was aborted: its `client` asked for it, it passed its deadline (`timeout`), its session
/// was opened anew or ended (`fenced`), or an `operator` asked for it.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AbortReason {
    Client,
    Timeout,
    Fenced,
    Operator,
}

/// Where records went that were appended to one partition: to `base_offset` and those behind it.
#[derive(Serialize, ToSchema)]
pub struct TransactionPlace {
    /// The topic.
    topic: String,
    /// The partition.
    partition: i32,
    /// Of the first record; null where all had been stored before, under the same ids.
    #[schema(required = true)]
    base_offset: Option<i64>,
    /// How many records were stored.
    record_count: i64,
}

/// A transaction as it stands.
#[derive(Serialize, ToSchema)]
pub struct Transaction {
    /// Its id.
    transaction_id: Uuid,
    state: TransactionState,
    /// The producer whose session began it; null when none did.
    #[schema(required = true)]
    producer_id: Option<i64>,
    /// The epoch of that session; null when there was none.
    #[schema(required = true)]
    epoch: Option<i64>,
    /// When it was begun.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it will be aborted; null when it is not ongoing.
    #[schema(format = DateTime, required = true)]
    expires_at: Option<String>,
    /// Since when it pins what it holds; null when it never was prepared.
    #[schema(format = DateTime, required = true)]
    prepared_at: Option<String>,
    /// When it was committed or aborted; null when neither.
    #[schema(format = DateTime, required = true)]
    ended_at: Option<String>,
    /// Why it was aborted; null when it was not.
    #[schema(required = true)]
    reason: Option<AbortReason>,
    /// How many items of `appends` it holds, over all calls.
    append_count: i64,
    /// Of a committed one: where its records lie, in the order appended. An append to a topic has
    /// one item for every partition it was spread over. Lists leave them out.
    #[serde(skip_serializing_if = "Option::is_none")]
    appends: Option<Vec<TransactionPlace>>,
    /// In the answer to a call: whether it had been done already.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
}

/// A page of transactions, by id.
#[derive(Serialize, ToSchema)]
pub struct TransactionList {
    /// At most `limit` of them, without `appends`.
    pub transactions: Vec<Transaction>,
    /// Where the next page starts; null at the end.
    #[schema(required = true)]
    pub next_after: Option<String>,
}

impl From<transaction::State> for TransactionState {
    fn from(state: transaction::State) -> Self {
        match state {
            transaction::State::Ongoing => Self::Ongoing,
            transaction::State::Prepared => Self::Prepared,
            transaction::State::Committed => Self::Committed,
            transaction::State::Aborted => Self::Aborted,
        }
    }
}

impl From<TransactionState> for transaction::State {
    fn from(state: TransactionState) -> Self {
        match state {
            TransactionState::Ongoing => Self::Ongoing,
            TransactionState::Prepared => Self::Prepared,
            TransactionState::Committed => Self::Committed,
            TransactionState::Aborted => Self::Aborted,
        }
    }
}

impl From<transaction::Reason> for AbortReason {
    fn from(reason: transaction::Reason) -> Self {
        match reason {
            transaction::Reason::Client => Self::Client,
            transaction::Reason::Timeout => Self::Timeout,
            transaction::Reason::Fenced => Self::Fenced,
            transaction::Reason::Operator => Self::Operator,
        }
    }
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
            state: transaction.state.into(),
            producer_id: producer_id.map(|id| id.0),
            epoch,
            created_at: transaction.created_at.to_string(),
            expires_at: instant(transaction.expires_at),
            prepared_at: instant(transaction.prepared_at),
            ended_at: instant(transaction.ended_at),
            reason: transaction.reason.map(AbortReason::from),
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
