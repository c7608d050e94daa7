//! Revocations of tokens, for operators: make, list, remove.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use chrono::Utc;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::{
    broker::Error,
    http::extract::{
        access::{OperatorAccess, RevocationPath, TenantPath},
        body::JsonBody,
        media::AnswersJson,
        query::{NoParameters, Query},
    },
    model::{
        Timestamp, ValidationErrors,
        tenant::revocation::{Revocation, Revoked},
        validation::MAX_TEXT_BYTES,
    },
};

/// How far the clock of a client may be ahead.
const MAX_AHEAD_MS: i64 = 3_600_000;

/// Exactly one of: `token_id`; `subject`, with or without `issued_before`; `issued_before` alone.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1)]
pub struct PostRevocation {
    /// The `jti` of a token, or the `token_id` that the audit log shows of one without `jti`.
    #[schema(min_length = 1, max_length = 256)]
    token_id: Option<String>,
    /// The `sub` of tokens.
    #[schema(min_length = 1, max_length = 256)]
    subject: Option<String>,
    /// Tokens whose `iat` is earlier are refused, and those without `iat`. Default with a subject:
    /// now. At most an hour ahead.
    #[schema(format = DateTime)]
    issued_before: Option<String>,
    /// When it ends by itself; absent: never. A token that has expired needs no revocation.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct RevocationState {
    /// Its id.
    #[schema(format = Uuid)]
    revocation_id: String,
    /// The token that it refuses; null if it is not about one token.
    #[schema(required = true)]
    token_id: Option<String>,
    /// The `sub` whose tokens it refuses; null if it is about one token or all.
    #[schema(required = true)]
    subject: Option<String>,
    /// Tokens issued earlier are refused; null if it is about one token.
    #[schema(required = true, format = DateTime)]
    issued_before: Option<String>,
    /// When it was made.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it ends by itself; null: never.
    #[schema(required = true, format = DateTime)]
    expires_at: Option<String>,
}

/// The revocations of a tenant, oldest first: at most 1,000.
#[derive(Serialize, ToSchema)]
pub struct RevocationList {
    /// Those that hold.
    revocations: Vec<RevocationState>,
}

impl From<Revocation> for RevocationState {
    fn from(revocation: Revocation) -> Self {
        let Revocation { id, revoked, created_at, expires_at } = revocation;
        let (token_id, subject, issued_before) = match revoked {
            Revoked::TokenId(id) => (Some(id), None, None),
            Revoked::Subject { subject, issued_before } => {
                (None, Some(subject), Some(issued_before))
            }
            Revoked::IssuedBefore(issued_before) => (None, None, Some(issued_before)),
        };
        Self {
            revocation_id: id.to_string(),
            token_id,
            subject,
            issued_before: issued_before.map(|at| at.to_string()),
            created_at: created_at.to_string(),
            expires_at: expires_at.map(|at| at.to_string()),
        }
    }
}

impl PostRevocation {
    fn read(self, now: Timestamp) -> Result<(Revoked, Option<Timestamp>), ValidationErrors> {
        let mut errors = ValidationErrors::default();
        let mut instant = |pointer: &str, text: Option<String>| {
            let parsed = text.map(|text| Timestamp::parse(&text)).transpose();
            parsed.map_err(|why| errors.add(pointer, why)).ok().flatten()
        };
        let issued_before = instant("/issued_before", self.issued_before.clone());
        let expires_at = instant("/expires_at", self.expires_at);
        if issued_before.is_some_and(|at| at.0 > now.0 + MAX_AHEAD_MS) {
            errors.add("/issued_before", "must be at most an hour ahead");
        }
        if expires_at.is_some_and(|at| at <= now) {
            errors.add("/expires_at", "must be later than now");
        }
        for (pointer, text) in [("/token_id", &self.token_id), ("/subject", &self.subject)] {
            let is_wrong = |text: &String| {
                text.is_empty() || text.len() > MAX_TEXT_BYTES || text.contains('\0')
            };
            if text.as_ref().is_some_and(is_wrong) {
                errors.add(pointer, format!("must have 1 to {MAX_TEXT_BYTES} bytes without NUL"));
            }
        }
        let revoked = match (self.token_id, self.subject, &self.issued_before) {
            (Some(id), None, None) => Some(Revoked::TokenId(id)),
            (None, Some(subject), None) => Some(Revoked::Subject { subject, issued_before: now }),
            (None, Some(subject), Some(_)) => {
                issued_before.map(|issued_before| Revoked::Subject { subject, issued_before })
            }
            (None, None, Some(_)) => issued_before.map(Revoked::IssuedBefore),
            _ => {
                let forms = "token_id; subject; issued_before; subject and issued_before";
                errors.add("", format!("expected one of: {forms}"));
                None
            }
        };
        match revoked {
            Some(revoked) => errors.finish().map(|()| (revoked, expires_at)),
            None => Err(errors),
        }
    }
}

fn example() -> serde_json::Value {
    json!({"revocation_id": "019aa5b6-5c00-7000-8000-00000000000c", "token_id": null,
        "subject": "anna", "issued_before": "2026-11-21T08:00:00.000Z",
        "created_at": "2026-11-21T08:00:00.000Z", "expires_at": null})
}

/// Revoke tokens
///
/// Refuses tokens of the tenant that have not expired, with `unauthenticated`: one by its id, those
/// of a subject, or all, as far as they were issued before an instant. It takes effect at once on
/// this replica and within a second on all others; requests that are in progress then are finished.
/// A revocation about the same tokens or fewer, which does not last longer, is taken into this one.
/// At most 1,000 hold at a time (`quota_exceeded`).
#[utoipa::path(post, path = "/v1/tenants/{tenant}/revocations", operation_id = "revoke_tenant_tokens",
    tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's name")),
    request_body(content = PostRevocation, description = "The tokens",
        example = json!({"subject": "anna", "issued_before": "2026-11-21T08:00:00.000Z"})),
    responses((status = 201, description = "The tokens are revoked", body = RevocationState,
        example = json!(example()))),
    security(("bearer" = ["operator"])))]
pub async fn revoke_tokens(
    access: OperatorAccess,
    TenantPath(tenant): TenantPath,
    _: AnswersJson,
    sent: JsonBody<PostRevocation>,
) -> Result<Response, Error> {
    let (revoked, expires_at) = sent.body.read(Utc::now().into())?;
    let made = access.broker.revoke_tokens(&tenant, revoked, expires_at).await?;
    Ok((StatusCode::CREATED, Json(RevocationState::from(made))).into_response())
}

/// List revocations
///
/// Returns the revocations of the tenant that hold, oldest first.
#[utoipa::path(get, path = "/v1/tenants/{tenant}/revocations", operation_id = "list_tenant_revocations",
    tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's name")),
    responses((status = 200, description = "The revocations", body = RevocationList,
        example = json!({"revocations": [example()]}))),
    security(("bearer" = ["operator"])))]
pub async fn list_revocations(
    access: OperatorAccess,
    TenantPath(tenant): TenantPath,
    _: AnswersJson,
    _: Query<NoParameters>,
) -> Result<Response, Error> {
    let revocations = access.broker.list_revocations(&tenant).await?;
    let revocations = revocations.into_iter().map(RevocationState::from).collect();
    Ok(Json(RevocationList { revocations }).into_response())
}

/// Remove a revocation
///
/// Accepts its tokens again, as far as they have not expired and no other revocation is about them:
/// at once on this replica, and within a second on all others. Safe to repeat.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}/revocations/{revocation_id}",
    operation_id = "remove_tenant_revocation", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant's name"),
        ("revocation_id" = Uuid, Path, description = "The revocation's id")),
    responses((status = 204, description = "The tenant has no revocation of this id")),
    security(("bearer" = ["operator"])))]
pub async fn remove_revocation(
    access: OperatorAccess,
    TenantPath(tenant): TenantPath,
    RevocationPath(id): RevocationPath,
    _: Query<NoParameters>,
) -> Result<StatusCode, Error> {
    access.broker.remove_revocation(&tenant, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
