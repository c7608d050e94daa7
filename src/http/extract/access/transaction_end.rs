//! Access to ending a transaction, as its client or as an operator.

use std::sync::Arc;

use axum::{extract::FromRequestParts, http::request::Parts};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{AppState, Permission, Produce, SeeTransactions, admit, forbidden};
use crate::{
    broker::{Broker, Error},
    http::extract::{auth::Grant, caller::Caller, query},
    model::{TenantId, ValidationErrors, Word},
};

const OPERATE: &[Word] = &[Word::Operator];

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EndQuery {
    /// Acts as an operator, which needs the `operator` scope; name no session, even if one began
    /// the transaction.
    #[serde(rename = "as")]
    #[param(inline)]
    role: Option<Role>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Role {
    Operator,
}

/// Access as the request asks for it: as a client, or with `?as=operator` as an operator.
pub struct EndAccess {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    pub grant: Arc<Grant>,
    parameters: Result<EndQuery, ValidationErrors>,
}

impl EndAccess {
    /// Whether the request asks for operator access. A malformed query is refused later, not by the
    /// scope check.
    pub fn by_operator(&self) -> Result<bool, ValidationErrors> {
        let parameters = self.parameters.as_ref().map_err(ValidationErrors::clone)?;
        Ok(parameters.role.is_some())
    }
}

impl FromRequestParts<AppState> for EndAccess {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Error> {
        let parameters: Result<EndQuery, ValidationErrors> = query::parse(parts.uri.query());
        let by_operator = parameters.as_ref().map(|parameters| parameters.role.is_some());
        let any_of = match by_operator {
            Ok(true) => OPERATE,
            Ok(false) => Produce::ANY_OF,
            Err(_) => SeeTransactions::ANY_OF,
        };
        let grant = admit(&state.admission, parts, any_of).await?;
        if by_operator == Ok(true) && !grant.scopes.has_whole(OPERATE) {
            return Err(forbidden(OPERATE, None));
        }
        if by_operator == Ok(true) {
            Caller::of(&parts.extensions).operates();
        }
        let tenant = state.enter(parts, &grant).await?;
        Ok(Self { broker: state.broker.clone(), tenant, grant, parameters })
    }
}
