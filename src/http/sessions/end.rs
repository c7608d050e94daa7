//! Ending a session.

use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    broker::Error,
    http::extract::{
        access::{Access, Produce, ProducerPath},
        query::Query,
    },
    model::{Epoch, ValidationErrors},
};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EndSessionQuery {
    /// The epoch to end. If a newer one is open, nothing happens; without it, the current epoch
    /// ends.
    #[param(minimum = 0)]
    epoch: Option<i64>,
}

impl EndSessionQuery {
    fn epoch(&self) -> Result<Option<Epoch>, ValidationErrors> {
        let mut errors = ValidationErrors::default();
        let epoch = errors.count("?epoch", self.epoch);
        errors.finish()?;
        Ok(epoch)
    }
}

/// End a session
///
/// Fences its epoch: later writes of the session are refused. The transactional id keeps its
/// producer id and can be opened again. Ending it again changes nothing. Always send the `epoch`,
/// so that a late copy of this request cannot end a session that was opened since.
#[utoipa::path(delete, path = "/v1/sessions/{producer_id}", operation_id = "end_session",
    tag = "sessions",
    params(("producer_id" = i64, Path, description = "The `producer_id` of the session"), EndSessionQuery),
    responses((status = 204, description = "The session, or the given epoch, has ended")),
    security(("bearer" = ["produce"])))]
pub async fn end_session(
    access: Access<Produce>,
    ProducerPath(id): ProducerPath,
    Query(query): Query<EndSessionQuery>,
) -> Result<StatusCode, Error> {
    access.broker.end_session(access.tenant, id, query.epoch()?, access.scopes()).await?;
    Ok(StatusCode::NO_CONTENT)
}
