//! Path parameters other than the topic.

use std::str::FromStr;

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::request::Parts,
};
use uuid::Uuid;

use crate::{
    broker::Error,
    http::extract::query,
    model::{
        MAX_INTEGER, Name, Partition, ProducerId, ValidationErrors, group::MAX_MEMBER_ID_BYTES,
        uuid_v7,
    },
};

pub(super) async fn segment(parts: &mut Parts, name: &str) -> Result<String, Error> {
    let pointer = || format!("/path/{name}");
    let segments = RawPathParams::from_request_parts(parts, &()).await.map_err(|_| {
        ValidationErrors::at(pointer(), "malformed percent-encoding or invalid UTF-8")
    })?;
    let found = segments.iter().find(|(key, _)| *key == name);
    Ok(found.ok_or_else(|| ValidationErrors::at(pointer(), "missing"))?.1.to_owned())
}

/// The `{partition}` of the path.
pub struct PartitionPath(pub Partition);

impl<S: Sync> FromRequestParts<S> for PartitionPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let text = segment(parts, "partition").await?;
        let partition = canonical(&text).and_then(|_| Partition::from_str(&text).ok());
        let why = "a partition must be an integer from 0, without leading zeros";
        Ok(Self(partition.ok_or_else(|| ValidationErrors::at("/path/partition", why))?))
    }
}

/// The `{producer_id}` of the path.
pub struct ProducerPath(pub ProducerId);

impl<S: Sync> FromRequestParts<S> for ProducerPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let text = segment(parts, "producer_id").await?;
        let why = "a producer id must be an integer from 0, below 2^53";
        let id = canonical(&text).ok_or_else(|| ValidationErrors::at("/path/producer_id", why))?;
        Ok(Self(ProducerId(id)))
    }
}

/// The `{member_id}` of the path.
pub struct MemberPath(pub String);

impl<S: Sync> FromRequestParts<S> for MemberPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let text = segment(parts, "member_id").await?;
        // PostgreSQL's text has no U+0000
        if text.len() > MAX_MEMBER_ID_BYTES || text.contains('\0') {
            let why = format!("a member id must be 1 to {MAX_MEMBER_ID_BYTES} bytes without NUL");
            return Err(ValidationErrors::at("/path/member_id", why).into());
        }
        Ok(Self(text))
    }
}

/// The `{tenant}` of the path.
pub struct TenantPath(pub Name);

impl<S: Sync> FromRequestParts<S> for TenantPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let text = segment(parts, "tenant").await?;
        Ok(Self(Name::parse(&text).map_err(|why| ValidationErrors::at("/path/tenant", why))?))
    }
}

/// The `{revocation_id}` of the path.
pub struct RevocationPath(pub Uuid);

impl<S: Sync> FromRequestParts<S> for RevocationPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let text = segment(parts, "revocation_id").await?;
        let id = Uuid::parse_str(&text);
        Ok(Self(id.map_err(|_| ValidationErrors::at("/path/revocation_id", "must be a UUID"))?))
    }
}

/// The `{transaction_id}` of the path.
pub struct TransactionPath(pub Uuid);

impl<S: Sync> FromRequestParts<S> for TransactionPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let text = segment(parts, "transaction_id").await.ok();
        text.and_then(|text| uuid_v7(&text)).map(Self).ok_or_else(Error::invalid_transaction_id)
    }
}

fn canonical(text: &str) -> Option<i64> {
    query::integer(text).ok().filter(|number| (0..=MAX_INTEGER).contains(number))
}
