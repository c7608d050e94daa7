//! Reads of one partition and, in `topic`, of all partitions of a topic. `records` writes both
//! answers, within `bounds`.

pub mod bounds;
pub mod cursors;
pub mod records;
pub mod topic;

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::{
    Deserialize, Deserializer,
    de::{self},
};
use serde_json::json;
use utoipa::{
    IntoParams, PartialSchema, ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{ObjectBuilder, SchemaType, Type},
    },
};

use self::{
    bounds::Bounds,
    records::{drop_last, write_records},
};
use super::{
    extract::{
        access::{Admission, Consume, PartitionPath, TopicAccess},
        media::{AnswersRecords, Media},
        query::{self, ParameterPlace, Query},
    },
    openapi::schemas::ReadAnswer,
};
use crate::{
    broker::Error,
    model::{
        MAX_INTEGER, Name, Partition, Timestamp, ValidationErrors,
        read::{self, Fetched, Read, Staged, Start},
    },
};

#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReadQuery {
    /// Where to start: an offset, `earliest` (the log start) or `latest` (the high watermark).
    #[param(inline)]
    offset: Option<OffsetParameter>,
    /// Instead of `offset`: the first record appended at or after this instant (RFC 3339).
    #[param(format = DateTime)]
    timestamp: Option<String>,
    /// Maximum number of records.
    #[param(minimum = 1, maximum = 10000, default = 500)]
    limit: Option<i64>,
    /// Maximum bytes of records; at least one record is always returned.
    #[param(minimum = 1, maximum = 16777216, default = 1048576)]
    max_bytes: Option<i64>,
    /// How long to wait if there is no record yet (long poll).
    #[param(minimum = 0, maximum = 60000, default = 0)]
    wait_ms: Option<i64>,
    /// `read_uncommitted` also returns the records of open transactions, separately: on a page that
    /// reaches the end of the log, within what `limit` and `max_bytes` leave. It does not wait for
    /// them.
    #[param(inline)]
    isolation: Option<Isolation>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    ReadCommitted,
    ReadUncommitted,
}

/// Where a read starts: an offset, `earliest` or `latest`.
pub struct OffsetParameter(Start);

impl<'de> Deserialize<'de> for OffsetParameter {
    fn deserialize<D: Deserializer<'de>>(text: D) -> Result<Self, D::Error> {
        let text = String::deserialize(text)?;
        let start = match text.as_str() {
            "earliest" => Start::Earliest,
            "latest" => Start::Latest,
            number => match query::integer(number) {
                Ok(offset) if (0..=MAX_INTEGER).contains(&offset) => Start::Offset(offset),
                _ => return Err(de::Error::custom("expected a number, earliest or latest")),
            },
        };
        Ok(Self(start))
    }
}

impl PartialSchema for OffsetParameter {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(SchemaType::new(Type::String))
            .pattern(Some("^(earliest|latest|0|[1-9][0-9]*)$"))
            .default(Some(json!("earliest")))
            .into()
    }
}

impl ToSchema for OffsetParameter {}

impl ReadQuery {
    fn checked(self, media: Media) -> Result<Read, ValidationErrors> {
        let mut errors = ValidationErrors::default();
        let (limit, max_bytes, wait_ms) = (self.limit, self.max_bytes, self.wait_ms);
        let bounds = Bounds::checked(&mut errors, ParameterPlace::Query, limit, max_bytes, wait_ms);
        let start = match (self.offset, self.timestamp.as_deref().map(Timestamp::parse)) {
            (Some(_), Some(_)) => {
                errors.add("?timestamp", "offset and timestamp exclude each other");
                Start::Earliest
            }
            (None, Some(parsed)) => {
                errors.parsed("?timestamp", parsed).map_or(Start::Earliest, Start::Timestamp)
            }
            (Some(OffsetParameter(start)), None) => start,
            (None, None) => Start::Earliest,
        };
        let isolation = match self.isolation {
            None | Some(Isolation::ReadCommitted) => read::Isolation::ReadCommitted,
            Some(Isolation::ReadUncommitted) => read::Isolation::ReadUncommitted,
        };
        if isolation == read::Isolation::ReadUncommitted && media == Media::Ndjson {
            errors.add("?isolation", "NDJSON cannot represent uncommitted records; ask for JSON");
        }
        errors.finish()?;
        let Bounds { limit, max_bytes, wait_ms } = bounds;
        Ok(Read { start, limit, max_bytes, wait_ms, isolation })
    }
}

/// Read a partition
///
/// Returns committed records in order, from `offset` (or `timestamp`) on. With `wait_ms` an empty
/// answer waits for the first record, and stays empty if none arrives; continue at `next_offset`.
/// `Accept: application/x-ndjson` returns only the records, one per line.
#[utoipa::path(get, path = "/v1/topics/{topic}/partitions/{partition}/records",
    operation_id = "read_partition", tag = "reads",
    params(("topic" = String, Path, description = "The topic's name"),
        ("partition" = i32, Path, description = "The partition number, from 0"), ReadQuery),
    responses((status = 200, description = "Records, possibly none",
        content(
            (ReadAnswer = "application/json", example = json!({"topic": "orders", "partition": 0,
                "records": [{"offset": 0, "appended_at": "2026-11-21T08:00:00.000Z",
                    "key": "customer-7", "value": {"total": 12.5}, "headers": {"source": "web"}},
                    {"offset": 1, "appended_at": "2026-11-21T08:00:00.000Z", "value": null}],
                "next_offset": 2, "log_start_offset": 0, "high_watermark": 2})),
            (String = "application/x-ndjson", example = json!(
                "{\"offset\":0,\"appended_at\":\"2026-11-21T08:00:00.000Z\",\"value\":{\"total\":\
                 12.5},\"key\":\"customer-7\",\"headers\":{\"source\":\"web\"}}\n\
                 {\"offset\":1,\"appended_at\":\"2026-11-21T08:00:00.000Z\",\"value\":null}\n"))),
        headers(
            ("Oncelog-Next-Offset" = i64, description = "NDJSON only: where to continue"),
            ("Oncelog-High-Watermark" = i64, description = "NDJSON only: the high watermark"),
            ("Oncelog-Log-Start-Offset" = i64, description = "NDJSON only: the log start")))),
    security(("bearer" = ["consume"])))]
pub async fn read_partition(
    access: TopicAccess<Consume>,
    State(admission): State<Arc<Admission>>,
    PartitionPath(partition): PartitionPath,
    AnswersRecords(media): AnswersRecords,
    Query(query): Query<ReadQuery>,
) -> Result<Response, Error> {
    let read = query.checked(media)?;
    let mut fetched = access.broker.read(access.tenant, &access.topic, partition, read).await?;
    if let Some(staged) = &mut fetched.staged {
        access.broker.hide_transactions(access.tenant, staged, access.scopes()).await?;
    }
    let body = admission.answer(access.tenant, capacity(&fetched), || match media {
        Media::Json => json_body(&access.topic, partition, &fetched),
        Media::Ndjson => ndjson_body(&fetched),
    })?;
    let content_type = HeaderValue::from_static(media.as_str());
    let mut answer = ([(CONTENT_TYPE, content_type)], body).into_response();
    if media == Media::Ndjson {
        let headers = answer.headers_mut();
        headers.insert("oncelog-next-offset", fetched.next_offset.into());
        headers.insert("oncelog-high-watermark", fetched.high_watermark.into());
        headers.insert("oncelog-log-start-offset", fetched.log_start_offset.into());
    }
    Ok(answer)
}

fn json_body(topic: &Name, partition: Partition, fetched: &Fetched) -> Vec<u8> {
    // Names are plain ASCII: they need no escapes.
    let head = format!("{{\"topic\":\"{topic}\",\"partition\":{partition},\"records\":[");
    let tail = format!(
        "],\"next_offset\":{},\"log_start_offset\":{},\"high_watermark\":{}",
        fetched.next_offset, fetched.log_start_offset, fetched.high_watermark
    );
    let ends = head.len() + tail.len() + "}".len();
    let mut body = Vec::with_capacity(ends + capacity(fetched));
    body.extend_from_slice(head.as_bytes());
    write_records(&mut body, "", &fetched.slices, b',');
    drop_last(&mut body, b',');
    body.extend_from_slice(tail.as_bytes());
    if let Some(staged) = &fetched.staged {
        write_staged(&mut body, staged);
    }
    body.push(b'}');
    body
}

const STAGED: &str = ",\"staged\":[";
/// Upper bound of the JSON around the records of a transaction.
const STAGED_MEMBERS_BYTES: usize =
    r#"{"transaction_id":"019a0000-0000-7000-8000-000000000000","state":"prepared","records":[]},"#
        .len();

/// Writes the stored lines unchanged: uncommitted records have neither offset nor instant.
fn write_staged(body: &mut Vec<u8>, staged: &[Staged]) {
    body.extend_from_slice(STAGED.as_bytes());
    for Staged { transaction_id, state, lines } in staged {
        let state = state.as_str();
        let id = transaction_id.map_or("null".to_owned(), |id| format!("\"{id}\""));
        let members = format!("{{\"transaction_id\":{id},\"state\":\"{state}\"");
        body.extend_from_slice(members.as_bytes());
        body.extend_from_slice(b",\"records\":[");
        let lines = lines.strip_suffix('\n').unwrap_or(lines).bytes();
        body.extend(lines.map(|byte| if byte == b'\n' { b',' } else { byte }));
        body.extend_from_slice(b"]},");
    }
    drop_last(body, b',');
    body.push(b']');
}

fn ndjson_body(fetched: &Fetched) -> Vec<u8> {
    let mut body = Vec::with_capacity(capacity(fetched));
    write_records(&mut body, "", &fetched.slices, b'\n');
    body
}

/// Size estimate for the records and the uncommitted records.
fn capacity(fetched: &Fetched) -> usize {
    let staged = fetched.staged.iter().flatten();
    let staged: usize = staged.map(|staged| staged.lines.len() + STAGED_MEMBERS_BYTES).sum();
    records::capacity("", &fetched.slices) + staged + STAGED.len() + "]".len()
}

#[cfg(test)]
mod tests;
