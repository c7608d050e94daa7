//! Tenants, for operators: create, describe, list, change, delete.

pub mod revocations;

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

use crate::http::{
    extract::{
        access::{OperatorAccess, TenantPath},
        body::JsonBody,
        json::Object,
        list::{self, ListQuery},
        media::AnswersJson,
        query::{NoParameters, Query},
    },
    settings::{MaximaPatch, OperatorMaxima, OwnSettingValues, SentChanges, validators},
};
use crate::{
    broker::Error,
    model::{
        ValidationErrors,
        settings::{Maxima, OwnSettings},
        tenant::{Tenant, TenantDescription, TenantPatch},
    },
};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutTenant {
    /// All maxima of the tenant. Default: the server's `default_maxima` for a new tenant, unchanged
    /// for an existing one.
    #[schema(value_type = Option<MaximaPatch>)]
    maxima: Option<Object<SentChanges>>,
}

/// A merge patch: absent fields stay.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchTenant {
    #[schema(value_type = Option<MaximaPatch>)]
    maxima: Option<Object<SentChanges>>,
    /// True to refuse the tenant's requests.
    suspended: Option<bool>,
}

/// A tenant in a list.
#[derive(Serialize, ToSchema)]
pub struct TenantItem {
    /// The tenant's name, as in tokens.
    tenant: String,
    /// When it was created.
    #[schema(format = DateTime)]
    created_at: String,
    /// True if its requests are refused.
    suspended: bool,
    /// When it was suspended; null if it is not suspended.
    #[schema(required = true, format = DateTime)]
    suspended_at: Option<String>,
    /// When it was deleted, while its data is still being removed; null if it is not deleted.
    #[schema(required = true, format = DateTime)]
    deleted_at: Option<String>,
    #[schema(value_type = OwnSettingValues)]
    settings: OwnSettings,
    #[schema(value_type = OperatorMaxima)]
    maxima: Maxima,
}

/// A tenant with the number of its topics and partitions.
#[derive(Serialize, ToSchema)]
pub struct TenantState {
    /// The tenant's name, as in tokens.
    tenant: String,
    /// When it was created.
    #[schema(format = DateTime)]
    created_at: String,
    /// True if its requests are refused.
    suspended: bool,
    /// When it was suspended; null if it is not suspended.
    #[schema(required = true, format = DateTime)]
    suspended_at: Option<String>,
    /// When it was deleted, while its data is still being removed; null if it is not deleted.
    #[schema(required = true, format = DateTime)]
    deleted_at: Option<String>,
    #[schema(value_type = OwnSettingValues)]
    settings: OwnSettings,
    #[schema(value_type = OperatorMaxima)]
    maxima: Maxima,
    /// The number of its topics.
    topic_count: i64,
    /// The number of partitions of all its topics.
    partition_count: i64,
}

/// A page of tenants, by name.
#[derive(Serialize, ToSchema)]
pub struct TenantList {
    /// At most `limit` tenants.
    tenants: Vec<TenantItem>,
    /// The `after` of the next page; null on the last page.
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

/// The example tenant in a list.
fn item_example() -> serde_json::Value {
    json!({"tenant": "acme", "created_at": "2026-11-21T08:00:00.000Z", "suspended": false,
        "suspended_at": null, "deleted_at": null, "settings": {},
        "maxima": {"max_topics": 20, "retention_ms": 604_800_000}})
}

/// The tenant of the other examples, after the example patch of its settings.
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

/// The same tenant after the example of a patch.
fn patched_example() -> serde_json::Value {
    let mut patched = example();
    patched["maxima"] = json!({"max_topics": 50});
    patched["suspended"] = json!(true);
    patched["suspended_at"] = patched["created_at"].clone();
    patched
}

/// List tenants
///
/// Returns tenants by name, page by page, including those that their first token created and those
/// that are being deleted.
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
    let listed = access.broker.list_tenants(page).await?;
    Ok(list::answer(listed, "/v1/tenants?", limit, |tenants, next_after| TenantList {
        tenants,
        next_after,
    }))
}

/// Create a tenant
///
/// Creates the tenant, or returns the existing one; safe to repeat. `maxima` given for an existing
/// tenant replace all it has. Tokens work without this call: their first use creates the tenant,
/// without maxima.
#[utoipa::path(put, path = "/v1/tenants/{tenant}", operation_id = "put_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's name")),
    request_body(content = PutTenant, description = "All fields are optional",
        example = json!({"maxima": {"max_topics": 20, "retention_ms": 604_800_000}})),
    responses(
        (status = 201, description = "The tenant is created", body = TenantState,
            headers(("ETag" = String, description = "Changes with every update")),
            example = json!(example())),
        (status = 200, description = "The tenant already exists", body = TenantState,
            headers(("ETag" = String, description = "Changes with every update")),
            example = json!(example()))),
    security(("bearer" = ["operator"])))]
pub async fn put_tenant(
    access: OperatorAccess,
    TenantPath(tenant): TenantPath,
    _: AnswersJson,
    sent: JsonBody<PutTenant>,
) -> Result<Response, Error> {
    let mut errors = ValidationErrors::default();
    let maxima = sent.body.maxima.map(|Object(sent)| sent.maxima("/maxima", &mut errors));
    errors.finish()?;
    let (described, created) = access.broker.put_tenant(&tenant, maxima).await?;
    answer(if created { StatusCode::CREATED } else { StatusCode::OK }, described)
}

/// Describe a tenant
///
/// Returns its own settings, the maxima that operators have set, and the number of its topics and
/// partitions.
#[utoipa::path(get, path = "/v1/tenants/{tenant}", operation_id = "get_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's name")),
    responses((status = 200, description = "The tenant", body = TenantState,
        headers(("ETag" = String, description = "Changes with every update of its settings, its \
            maxima or its suspension")),
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
/// Changes the tenant. Maxima take effect at once on this replica and within a second on all
/// others, also for values set earlier: a value above its maximum counts as the maximum. While the
/// tenant is suspended, all requests with its tokens are refused with `forbidden`; nothing else
/// changes.
#[utoipa::path(patch, path = "/v1/tenants/{tenant}", operation_id = "patch_tenant",
    tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's name"),
        ("If-Match" = Option<String>, Header,
            description = "An `ETag`, or `*`: change only if it is current")),
    request_body(content = PatchTenant, description = "The changes",
        example = json!({"maxima": {"max_topics": 50, "retention_ms": "default"}, "suspended": true})),
    responses((status = 200, description = "The tenant after the change", body = TenantState,
        headers(("ETag" = String, description = "Changes with every update")),
        example = json!(patched_example()))),
    security(("bearer" = ["operator"])))]
pub async fn patch_tenant(
    access: OperatorAccess,
    TenantPath(tenant): TenantPath,
    _: AnswersJson,
    headers: HeaderMap,
    sent: JsonBody<PatchTenant>,
) -> Result<Response, Error> {
    let mut errors = ValidationErrors::default();
    let PatchTenant { maxima, suspended } = sent.body;
    let maxima = maxima.map(|Object(sent)| sent.maxima("/maxima", &mut errors));
    errors.finish()?;
    let patch = TenantPatch { maxima: maxima.unwrap_or_default(), suspended };
    let if_match = validators(&headers, IF_MATCH);
    answer(StatusCode::OK, access.broker.patch_tenant(&tenant, patch, if_match).await?)
}

/// Delete a tenant
///
/// Deletes the tenant and all its data permanently. Its requests are refused with
/// `tenant_not_found` from now on. Its data is removed in the background; until that is done, the
/// tenant is listed with `deleted_at`. Afterwards an operator can create a new tenant of its name;
/// no token does. A server without a token key keeps its only tenant (`forbidden`).
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
    access.may_delete(&tenant)?;
    access.broker.delete_tenant(&tenant).await?;
    Ok(StatusCode::NO_CONTENT)
}
