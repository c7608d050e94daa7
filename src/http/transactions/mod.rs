//! Transactions: begin, add, prepare, commit, abort, describe, list.

mod items;
mod request;
mod response;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use self::{
    request::{
        AddOffsetsToTransaction, AppendToTransaction, BeginTransaction, CallTransaction, Called,
        CommitTransaction,
    },
    response::{Transaction, TransactionList, TransactionState},
};
use super::extract::{
    access::{
        Access, EndAccess, EndQuery, Produce, SeeTransactions, TenantAccess, TransactionPath,
    },
    auth::Grant,
    body::{BeginBody, TransactionBody},
    list,
    media::AnswersJson,
    query::{NoParameters, Query},
};
use crate::http::openapi::examples::transactions as examples;
use crate::{
    broker::{Broker, Error, Taken},
    model::{
        ProducerId, TenantId, ValidationErrors,
        transaction::{Actor, Filter, State},
        uuid_v7,
    },
};

/// Begin a transaction
///
/// Commits the records of the transaction in all topics, and its offsets, atomically. With
/// `"commit": true` this request is the whole transaction: it needs no session and no state between
/// calls, and its id identifies the outcome, or an `Idempotency-Key` of any form. With
/// `producer_id` and `epoch` it is bound to a session: one at a time, aborted when the session is
/// opened again. A repeat with the same `transaction_id` or key returns the current state of the
/// transaction, even if its topics were deleted or its session was opened again in the meantime.
/// Every topic of `appends` and the session need `produce`, every group of `offsets` needs `group`
/// and every topic there `consume`.
#[utoipa::path(post, path = "/v1/transactions", operation_id = "begin_transaction",
    tag = "transactions",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes this safe to repeat")),
    request_body(content = BeginTransaction, description = "The first contents", examples(
        ("at_once" = (summary = "A one-request transaction",
            value = json!(examples::at_once()))),
        ("one_request" = (summary = "The same, with an id: safe to repeat",
            value = json!(examples::one_request()))),
        ("compare_and_set" = (summary = "A pipeline step: records derived from those it read, and \
            the offset it has read to, unless another client was faster",
            value = json!(examples::compare_and_set()))),
        ("of_a_session" = (summary = "Bound to a session, with more calls to follow",
            value = json!(examples::of_a_session()))),
        ("by_id" = (summary = "Without a session, continued by its id alone",
            value = json!(examples::by_id()))))),
    responses(
        (status = 201, description = "The transaction is begun and, with `commit`, committed",
            body = Transaction, example = json!(examples::whole(false))),
        (status = 200, description = "It was already begun; this is its current state",
            body = Transaction, example = json!(examples::whole(true)))),
    security(("bearer" = ["produce"])))]
pub async fn begin_transaction(
    access: Access<Produce>,
    _: AnswersJson,
    TransactionBody(sent, mut held): BeginBody,
) -> Result<Response, Error> {
    let NoParameters {} = sent.query()?;
    let body: BeginTransaction = sent.object()?;
    let key = sent.idempotency_key().map(|key| key.of_request("POST", "/v1/transactions", &[]));
    let traceparent = sent.traceparent.as_deref();
    let begin = body.checked(key, traceparent, &access.grant, &mut held)?;
    let held = Some(Arc::new(held));
    let answered = access.broker.begin_transaction(access.tenant, begin, held).await?;
    let (duplicate, id) = (answered.duplicate, answered.transaction.transaction_id);
    let mut answer = Json(Transaction::from(answered)).into_response();
    if !duplicate {
        *answer.status_mut() = StatusCode::CREATED;
        if let Ok(location) = HeaderValue::from_str(&format!("/v1/transactions/{id}")) {
            answer.headers_mut().insert(header::LOCATION, location);
        }
    }
    Ok(answer)
}

async fn call(
    broker: &Broker,
    tenant: TenantId,
    id: Uuid,
    (caller, call): Called,
    grant: &Grant,
    held: Taken,
) -> Result<Json<Transaction>, Error> {
    let actor = Actor { caller, scopes: grant.scopes.clone() };
    let held = Some(Arc::new(held));
    Ok(Json(broker.call_transaction(tenant, id, actor, call, held).await?.into()))
}

/// Append in a transaction
///
/// Appends records to any topics and partitions. They get their offsets when the transaction
/// commits; until then they block nobody. With a `sequence`, counted from 0 in this transaction, a
/// repeated call is stored once; without it, every time it arrives. The token must cover, here and
/// in all later calls, whatever the transaction holds: its topics and its session by `produce`, its
/// groups by `group`.
#[utoipa::path(post, path = "/v1/transactions/{transaction_id}/records",
    operation_id = "append_to_transaction", tag = "transactions",
    params(("transaction_id" = Uuid, Path, description = "The transaction's id")),
    request_body(content = AppendToTransaction, description = "The records",
        example = json!(examples::append())),
    responses((status = 200, description = "Staged, now or earlier", body = Transaction,
        example = json!(examples::ongoing()))),
    security(("bearer" = ["produce"])))]
pub async fn append_to_transaction(
    access: Access<Produce>,
    TransactionPath(id): TransactionPath,
    _: AnswersJson,
    TransactionBody(sent, mut held): TransactionBody,
) -> Result<Json<Transaction>, Error> {
    let NoParameters {} = sent.query()?;
    let body: AppendToTransaction = sent.object()?;
    let called = body.checked(sent.traceparent.as_deref(), &access.grant, &mut held)?;
    call(&access.broker, access.tenant, id, called, &access.grant, held).await
}

/// Add offsets of groups to a transaction
///
/// Commits these offsets with the transaction: by a member of the group or, in a group without
/// members, only if the committed offset is the expected one. Both are checked at prepare or
/// commit. Every group needs `group`, every topic `consume`.
#[utoipa::path(post, path = "/v1/transactions/{transaction_id}/offsets",
    operation_id = "add_offsets_to_transaction", tag = "transactions",
    params(("transaction_id" = Uuid, Path, description = "The transaction's id")),
    request_body(content = AddOffsetsToTransaction, description = "The offsets", examples(
        ("of_a_member" = (summary = "By a member that owns the partition",
            value = json!(examples::offsets_of_a_member()))),
        ("compare_and_set" = (summary = "Without members: from the last committed offset to the \
            next one", value = json!(examples::offsets()))))),
    responses((status = 200, description = "Taken", body = Transaction,
        example = json!(examples::ongoing()))),
    security(("bearer" = ["produce"])))]
pub async fn add_offsets_to_transaction(
    access: Access<Produce>,
    TransactionPath(id): TransactionPath,
    _: AnswersJson,
    TransactionBody(sent, mut held): TransactionBody,
) -> Result<Json<Transaction>, Error> {
    let NoParameters {} = sent.query()?;
    let body: AddOffsetsToTransaction = sent.object()?;
    let called = body.checked(&access.grant, &mut held)?;
    call(&access.broker, access.tenant, id, called, &access.grant, held).await
}

/// Prepare a transaction
///
/// The first phase of a two-phase commit: afterwards the transaction accepts no more work, has no
/// timeout, and can be committed. So a client can first commit in its own database, together
/// with the `transaction_id`, and then here. Until the transaction ends, nobody else can commit its
/// offsets, and its topics cannot be deleted; reads and appends do not wait.
#[utoipa::path(post, path = "/v1/transactions/{transaction_id}/prepare",
    operation_id = "prepare_transaction", tag = "transactions",
    params(("transaction_id" = Uuid, Path, description = "The transaction's id")),
    request_body(content = CallTransaction, description = "The caller", example = json!({})),
    responses((status = 200, description = "Prepared, now or earlier", body = Transaction,
        example = json!(examples::prepared()))),
    security(("bearer" = ["produce"])))]
pub async fn prepare_transaction(
    access: Access<Produce>,
    TransactionPath(id): TransactionPath,
    _: AnswersJson,
    TransactionBody(sent, held): TransactionBody,
) -> Result<Json<Transaction>, Error> {
    let NoParameters {} = sent.query()?;
    let called = sent.object::<CallTransaction>()?.prepare()?;
    call(&access.broker, access.tenant, id, called, &access.grant, held).await
}

/// Commit a transaction
///
/// Makes the records of the transaction visible, with their offsets, and commits its group offsets,
/// all at once. The call can bring the last records and offsets. A refused commit leaves the
/// transaction unchanged; a repeated commit returns the same answer. With `as=operator`, a prepared
/// transaction can be committed without its session.
#[utoipa::path(post, path = "/v1/transactions/{transaction_id}/commit",
    operation_id = "commit_transaction", tag = "transactions",
    params(("transaction_id" = Uuid, Path, description = "The transaction's id"), EndQuery),
    request_body(content = CommitTransaction, description = "The caller, and the last contents",
        examples(
            ("with_the_last" = (summary = "With the last records and the number of appends",
                value = json!(examples::commit_with_the_last()))),
            ("as_it_stands" = (summary = "As it is", value = json!(examples::of_its_session()))))),
    responses((status = 200, description = "Committed, now or earlier", body = Transaction,
        example = json!(examples::committed()))),
    security(("bearer" = ["produce"]), ("bearer" = ["operator"])))]
pub async fn commit_transaction(
    access: EndAccess,
    TransactionPath(id): TransactionPath,
    _: AnswersJson,
    TransactionBody(sent, mut held): TransactionBody,
) -> Result<Json<Transaction>, Error> {
    let by_operator = access.by_operator()?;
    let body: CommitTransaction = sent.object()?;
    let traceparent = sent.traceparent.as_deref();
    let called = body.checked(traceparent, &access.grant, by_operator, &mut held)?;
    call(&access.broker, access.tenant, id, called, &access.grant, held).await
}

/// Abort a transaction
///
/// Discards the transaction: its records never become visible. A repeated abort, even after a
/// timeout, returns the same answer. With `as=operator`, a stuck transaction can be aborted without
/// its session.
#[utoipa::path(post, path = "/v1/transactions/{transaction_id}/abort",
    operation_id = "abort_transaction", tag = "transactions",
    params(("transaction_id" = Uuid, Path, description = "The transaction's id"), EndQuery),
    request_body(content = CallTransaction, description = "The caller", example = json!({})),
    responses((status = 200, description = "Aborted, now or earlier", body = Transaction,
        example = json!(examples::aborted()))),
    security(("bearer" = ["produce"]), ("bearer" = ["operator"])))]
pub async fn abort_transaction(
    access: EndAccess,
    TransactionPath(id): TransactionPath,
    _: AnswersJson,
    TransactionBody(sent, held): TransactionBody,
) -> Result<Json<Transaction>, Error> {
    let by_operator = access.by_operator()?;
    let called = sent.object::<CallTransaction>()?.abort(by_operator)?;
    call(&access.broker, access.tenant, id, called, &access.grant, held).await
}

/// Describe a transaction
///
/// Returns the current state or the outcome. Outcomes are remembered for `transaction_retention_ms`
/// after the end; then the answer is always 410 `transaction_expired`. The token must cover all
/// that the transaction holds, or have `operator`.
#[utoipa::path(get, path = "/v1/transactions/{transaction_id}", operation_id = "get_transaction",
    tag = "transactions",
    params(("transaction_id" = Uuid, Path, description = "The transaction's id")),
    responses((status = 200, description = "The transaction", body = Transaction,
        example = json!(examples::described()))),
    security(("bearer" = ["produce"]), ("bearer" = ["operator"])))]
pub async fn get_transaction(
    access: Access<SeeTransactions>,
    TransactionPath(id): TransactionPath,
    _: AnswersJson,
    _: Query<NoParameters>,
) -> Result<Json<Transaction>, Error> {
    Ok(Json(access.broker.transaction(access.tenant, id, access.scopes()).await?.into()))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TransactionsQuery {
    /// Only those in this state.
    #[param(inline, value_type = Option<TransactionState>)]
    state: Option<State>,
    /// Only those begun at least this long ago.
    #[param(minimum = 0)]
    older_than_ms: Option<i64>,
    /// Only those of this producer.
    #[param(minimum = 0)]
    producer_id: Option<i64>,
    /// Maximum number of items to return.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<i64>,
    /// The `next_after` of the previous page; omit it to start at the beginning.
    after: Option<String>,
}

impl TransactionsQuery {
    fn filter(&self) -> Result<Filter, ValidationErrors> {
        let mut errors = ValidationErrors::default();
        let older_than_ms = errors.count("?older_than_ms", self.older_than_ms);
        let producer_id = errors.count("?producer_id", self.producer_id);
        if self.after.as_deref().is_some_and(|after| uuid_v7(after).is_none()) {
            errors.add("?after", "expected a transaction id");
        }
        errors.finish()?;
        let producer_id = producer_id.map(ProducerId);
        Ok(Filter { state: self.state, older_than_ms, producer_id })
    }
}

/// The list's URL with its filter, ready for one more parameter.
fn base(filter: &Filter) -> String {
    let parameters = [
        ("state", filter.state.map(|state| state.as_str().to_owned())),
        ("older_than_ms", filter.older_than_ms.map(|age| age.to_string())),
        ("producer_id", filter.producer_id.map(|id| id.0.to_string())),
    ];
    let given = parameters.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let given: String = given.map(|(name, value)| format!("{name}={value}&")).collect();
    format!("/v1/transactions?{given}")
}

/// List transactions
///
/// Returns all transactions of the tenant by id, which is roughly the order in which they began;
/// optionally filtered by state, age and producer. `state=prepared` lists those that hold offsets
/// and topics, and since when. A `produce` scope restricted to some topics is not enough.
#[utoipa::path(get, path = "/v1/transactions", operation_id = "list_transactions",
    tag = "transactions",
    params(TransactionsQuery),
    responses((status = 200, description = "A page of transactions", body = TransactionList,
        example = json!(examples::list()))),
    security(("bearer" = ["produce"]), ("bearer" = ["operator"])))]
pub async fn list_transactions(
    access: TenantAccess<SeeTransactions>,
    _: AnswersJson,
    Query(query): Query<TransactionsQuery>,
) -> Result<Response, Error> {
    let filter = query.filter()?;
    let after = query.after.map(|after| after.to_ascii_lowercase());
    let page = list::page(query.limit, after)?;
    let limit = page.limit;
    let listed = access.broker.transactions(access.tenant, filter, page).await?;
    Ok(list::answer(listed, &base(&filter), limit, |transactions, next_after| TransactionList {
        transactions,
        next_after,
    }))
}
