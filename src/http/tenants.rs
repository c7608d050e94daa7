//! Tenants, for operators: make, see, list, change, delete.

use axum::{
    Json,
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{ETAG, IF_MATCH},
    },
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::{
    extract::{
        access::{OperatorAccess, TenantPath},
        body::JsonBody,
        json::{Faults, Object},
        list::{self, ListQuery},
        media::AnswersJson,
        query::{NoParameters, Query},
    },
    settings::{MaximaPatch, OperatorMaxima, OwnSettingValues, SentChanges, validators},
};
use crate::{
    broker::Error,
    model::{
        settings::{Maxima, OwnSettings},
        tenant::{Tenant, TenantDescription, TenantPatch},
        topic::Listed,
    },
};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutTenant {
    /// All maxima that the tenant is to have. Left out: none for a new tenant, those it has for one
    /// that exists.
    #[schema(value_type = Option<MaximaPatch>)]
    maxima: Option<Object<SentChanges>>,
}

/// A merge patch: what is absent stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchTenant {
    #[schema(value_type = Option<MaximaPatch>)]
    maxima: Option<Object<SentChanges>>,
    /// Whether its requests are refused.
    suspended: Option<bool>,
}

/// A tenant as lists show it.
#[derive(Serialize, ToSchema)]
pub struct TenantItem {
    /// Its name, as tokens have it.
    tenant: String,
    /// When it was made.
    #[schema(format = DateTime)]
    created_at: String,
    /// Whether its requests are refused.
    suspended: bool,
    /// Since when; null: it is not suspended.
    #[schema(required = true, format = DateTime)]
    suspended_at: Option<String>,
    /// When it was deleted: what it had is still being removed. Null: it is not deleted.
    #[schema(required = true, format = DateTime)]
    deleted_at: Option<String>,
    #[schema(value_type = OwnSettingValues)]
    settings: OwnSettings,
    #[schema(value_type = OperatorMaxima)]
    maxima: Maxima,
}

/// A tenant, and how much it has.
#[derive(Serialize, ToSchema)]
pub struct TenantState {
    /// Its name, as tokens have it.
    tenant: String,
    /// When it was made.
    #[schema(format = DateTime)]
    created_at: String,
    /// Whether its requests are refused.
    suspended: bool,
    /// Since when; null: it is not suspended.
    #[schema(required = true, format = DateTime)]
    suspended_at: Option<String>,
    /// When it was deleted: what it had is still being removed. Null: it is not deleted.
    #[schema(required = true, format = DateTime)]
    deleted_at: Option<String>,
    #[schema(value_type = OwnSettingValues)]
    settings: OwnSettings,
    #[schema(value_type = OperatorMaxima)]
    maxima: Maxima,
    /// How many topics it has.
    topic_count: i64,
    /// How many partitions its topics have together.
    partition_count: i64,
}

/// A page of tenants, by name.
#[derive(Serialize, ToSchema)]
pub struct TenantList {
    /// At most `limit` of them.
    tenants: Vec<TenantItem>,
    /// Where the next page starts; null at the end.
    #[schema(required = true)]
    next_after: Option<String>,
}

impl From<Tenant> for TenantItem {
    fn from(tenant: Tenant) -> Self {
        let OwnSettings { values, maxima } = tenant.settings;
        Self {
            tenant: tenant.name.to_string(),
            created_at: tenant.created_at.to_string(),
            suspended: tenant.suspended_at.is_some(),
            suspended_at: tenant.suspended_at.map(|at| at.to_string()),
            deleted_at: tenant.deleted_at.map(|at| at.to_string()),
            settings: OwnSettings { values, ..Default::default() },
            maxima,
        }
    }
}

impl From<TenantDescription> for TenantState {
    fn from(description: TenantDescription) -> Self {
        let TenantDescription { tenant, topic_count, partition_count } = description;
        let item = TenantItem::from(tenant);
        Self {
            tenant: item.tenant,
            created_at: item.created_at,
            suspended: item.suspended,
            suspended_at: item.suspended_at,
            deleted_at: item.deleted_at,
            settings: item.settings,
            maxima: item.maxima,
            topic_count,
            partition_count,
        }
    }
}

fn answer(status: StatusCode, description: TenantDescription) -> Result<Response, Error> {
    let etag = HeaderValue::try_from(description.tenant.etag()).map_err(|_| Error::internal())?;
    Ok((status, [(ETAG, etag)], Json(TenantState::from(description))).into_response())
}

/// The tenant of the document's story as lists show it.
fn item_example() -> serde_json::Value {
    json!({"tenant": "acme", "created_at": "2026-11-21T08:00:00.000Z", "suspended": false,
        "suspended_at": null, "deleted_at": null, "settings": {},
        "maxima": {"max_topics": 20, "retention_ms": 604_800_000}})
}

/// That of who tells the story, after the example of a patch of its settings.
fn other_example() -> serde_json::Value {
    let mut other = item_example();
    other["tenant"] = json!("default");
    other["settings"] = json!({"max_batch_records": 5000, "producer_expiry_ms": null});
    other["maxima"] = json!({});
    other
}

fn example() -> serde_json::Value {
    let mut example = item_example();
    example["topic_count"] = json!(0);
    example["partition_count"] = json!(0);
    example
}

/// The same after the example of a patch.
fn patched_example() -> serde_json::Value {
    let mut example = example();
    example["maxima"] = json!({"max_topics": 50});
    example["suspended"] = json!(true);
    example["suspended_at"] = example["created_at"].clone();
    example
}

/// List tenants
///
/// By name, page by page. Also those that the first token of them has made, and those that are being
/// deleted.
#[utoipa::path(get, path = "/v1/tenants", operation_id = "list_tenants", tag = "tenants",
    params(ListQuery),
    responses((status = 200, description = "A page of tenants", body = TenantList,
        example = json!({"tenants": [item_example(), other_example()], "next_after": null}))),
    security(("bearer" = ["operator"])))]
pub async fn list_tenants(
    access: OperatorAccess,
    _: AnswersJson,
    Query(query): Query<ListQuery>,
) -> Result<Response, Error> {
    let page = query.page()?;
    let limit = page.limit;
    let Listed { items, next_after } = access.broker.list_tenants(page).await?;
    let tenants = items.into_iter().map(TenantItem::from).collect();
    let next = next_after.clone();
    let list = TenantList { tenants, next_after };
    Ok(list::answer(list, "/v1/tenants?", limit, next.as_deref()))
}

/// Make a tenant, or see that it is there
///
/// Repeating it is safe. `maxima` given for a tenant that exists are all that it has from then on.
/// Nobody needs this for a token to do: its tenant is made at its first use, without maxima.
#[utoipa::path(put, path = "/v1/tenants/{tenant}", operation_id = "put_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's name")),
    request_body(content = PutTenant, description = "All fields are optional",
        example = json!({"maxima": {"max_topics": 20, "retention_ms": 604_800_000}})),
    responses(
        (status = 201, description = "The tenant was made", body = TenantState,
            headers(("ETag" = String, description = "Another one after every change")),
            example = json!(example())),
        (status = 200, description = "The tenant was there", body = TenantState,
            headers(("ETag" = String, description = "Another one after every change")),
            example = json!(example()))),
    security(("bearer" = ["operator"])))]
pub async fn put_tenant(
    access: OperatorAccess,
    TenantPath(tenant): TenantPath,
    _: AnswersJson,
    sent: JsonBody<PutTenant>,
) -> Result<Response, Error> {
    let mut faults = Faults::default();
    let maxima = sent.body.maxima.map(|Object(sent)| sent.maxima("/maxima", &mut faults));
    faults.finish()?;
    let (described, created) = access.broker.put_tenant(&tenant, maxima).await?;
    answer(if created { StatusCode::CREATED } else { StatusCode::OK }, described)
}

/// Describe a tenant
///
/// Its own settings, the maxima that operators have set, and how many topics and partitions it has.
#[utoipa::path(get, path = "/v1/tenants/{tenant}", operation_id = "get_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's name")),
    responses((status = 200, description = "The tenant", body = TenantState,
        headers(("ETag" = String, description = "Another one after every change of its \
            settings, its maxima, or of whether it is served")),
        example = json!(example()))),
    security(("bearer" = ["operator"])))]
pub async fn get_tenant(
    access: OperatorAccess,
    TenantPath(tenant): TenantPath,
    _: AnswersJson,
    _: Query<NoParameters>,
) -> Result<Response, Error> {
    answer(StatusCode::OK, access.broker.describe_tenant(&tenant).await?)
}

/// Change a tenant
///
/// Maxima hold at once here and within a second on every replica, also for values that the tenant
/// and its topics have had before: what lies above counts as the maximum. While the tenant is
/// suspended, all requests with its tokens are refused with `forbidden`; nothing else changes.
#[utoipa::path(patch, path = "/v1/tenants/{tenant}", operation_id = "patch_tenant",
    tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's name"),
        ("If-Match" = Option<String>, Header,
            description = "An `ETag`, or `*`: only if the tenant is still so")),
    request_body(content = PatchTenant, description = "What is to change",
        example = json!({"maxima": {"max_topics": 50, "retention_ms": "default"}, "suspended": true})),
    responses((status = 200, description = "The tenant as it is now", body = TenantState,
        headers(("ETag" = String, description = "Another one after every change")),
        example = json!(patched_example()))),
    security(("bearer" = ["operator"])))]
pub async fn patch_tenant(
    access: OperatorAccess,
    TenantPath(tenant): TenantPath,
    _: AnswersJson,
    headers: HeaderMap,
    sent: JsonBody<PatchTenant>,
) -> Result<Response, Error> {
    let mut faults = Faults::default();
    let PatchTenant { maxima, suspended } = sent.body;
    let maxima = maxima.map(|Object(sent)| sent.maxima("/maxima", &mut faults));
    faults.finish()?;
    let patch = TenantPatch { maxima: maxima.unwrap_or_default(), suspended };
    let if_match = validators(&headers, IF_MATCH);
    answer(StatusCode::OK, access.broker.patch_tenant(&tenant, patch, if_match).await?)
}

/// Delete a tenant
///
/// With all that it has, for ever. Its requests are refused with `tenant_not_found` from now on; its
/// data is removed in the background, and until that is done the tenant is shown with `deleted_at`.
/// After that the name is free: the next token of it makes another tenant.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}", operation_id = "delete_tenant",
    tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's name")),
    responses((status = 204, description = "The tenant is deleted")),
    security(("bearer" = ["operator"])))]
pub async fn delete_tenant(
    access: OperatorAccess,
    TenantPath(tenant): TenantPath,
    _: Query<NoParameters>,
) -> Result<StatusCode, Error> {
    access.broker.delete_tenant(&tenant).await?;
    Ok(StatusCode::NO_CONTENT)
}
