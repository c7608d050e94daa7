//! Reads of all partitions of a topic.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::{
    bounds::Bounds,
    cursors,
    records::{drop_last, ndjson, total_capacity, write_list},
};
use crate::{
    broker::Error,
    http::{
        extract::{
            access::{Admission, Consume, TopicAccess},
            body::JsonBody,
            media::{AnswersRecords, Media},
            query::{ParameterPlace, Query},
        },
        openapi::schemas::TopicReadAnswer,
    },
    model::{
        Name, Timestamp, ValidationErrors,
        read::{PartitionEnds, TopicFetched, TopicRead, TopicStart},
    },
};

/// The parameters of a topic read, in the URL or in a body.
#[derive(Default, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TopicReadParameters {
    /// Where to continue: the `cursor` of an earlier answer, unchanged.
    cursor: Option<String>,
    /// Without a cursor: start every partition at its log start (`earliest`, the default) or at its
    /// high watermark (`latest`).
    #[param(inline)]
    #[schema(inline)]
    offset: Option<Beginning>,
    /// Without a cursor: start every partition at the first record appended at or after this
    /// instant (RFC 3339).
    #[param(format = DateTime)]
    #[schema(format = DateTime)]
    timestamp: Option<String>,
    /// Maximum number of records, over all partitions.
    #[param(minimum = 1, maximum = 10000, default = 500)]
    #[schema(minimum = 1, maximum = 10000, default = 500)]
    limit: Option<i64>,
    /// Maximum bytes of records, over all partitions; at least one record is always returned.
    #[param(minimum = 1, maximum = 16777216, default = 1048576)]
    #[schema(minimum = 1, maximum = 16777216, default = 1048576)]
    max_bytes: Option<i64>,
    /// How long to wait if no partition has a record yet (long poll).
    #[param(minimum = 0, maximum = 60000, default = 0)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    wait_ms: Option<i64>,
    /// Only `read_committed`; uncommitted records are available in reads of one partition.
    #[param(inline)]
    #[schema(inline)]
    isolation: Option<Committed>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Beginning {
    Earliest,
    Latest,
}

#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Committed {
    ReadCommitted,
}

impl<'de> Deserialize<'de> for Committed {
    fn deserialize<D: Deserializer<'de>>(text: D) -> Result<Self, D::Error> {
        if String::deserialize(text)? == "read_committed" {
            return Ok(Self::ReadCommitted);
        }
        let why = "a topic read is read_committed; read one partition to see uncommitted records";
        Err(de::Error::custom(why))
    }
}

impl TopicReadParameters {
    fn checked(self, place: ParameterPlace) -> Result<TopicRead, ValidationErrors> {
        // there is nothing else
        let (None | Some(Committed::ReadCommitted)) = self.isolation;
        let mut errors = ValidationErrors::default();
        let Bounds { limit, max_bytes, wait_ms } =
            Bounds::checked(&mut errors, place, self.limit, self.max_bytes, self.wait_ms);
        cursors::check(&mut errors, place, self.cursor.as_deref(), LONG_CURSORS);
        let start = match (self.cursor, self.offset, self.timestamp) {
            (None, None | Some(Beginning::Earliest), None) => TopicStart::Earliest,
            (None, Some(Beginning::Latest), None) => TopicStart::Latest,
            (Some(cursor), None, None) => TopicStart::Cursor(cursor),
            (None, None, Some(instant)) => {
                let instant = errors.parsed(&place.of("timestamp"), Timestamp::parse(&instant));
                instant.map_or(TopicStart::Earliest, TopicStart::Timestamp)
            }
            (cursor, ..) => {
                let pointer = place.of(if cursor.is_some() { "cursor" } else { "timestamp" });
                errors.add(&pointer, "cursor, offset and timestamp exclude each other");
                TopicStart::Earliest
            }
        };
        errors.finish()?;
        Ok(TopicRead { start, limit, max_bytes, wait_ms })
    }
}

/// The operation that accepts a cursor too long for a URL.
const LONG_CURSORS: &str = "POST /v1/topics/{topic}/reads";

/// The answer to the read in the examples.
const CURSOR: &str = "AXQBBAEBAlqhJaQ";
const LINES: &str = "{\"partition\":0,\"offset\":0,\"appended_at\":\"2026-11-21T08:00:00.000Z\",\
     \"value\":{\"total\":12.5},\"key\":\"customer-7\",\"headers\":{\"source\":\"web\"}}\n\
     {\"partition\":0,\"offset\":1,\"appended_at\":\"2026-11-21T08:00:00.000Z\",\
     \"value\":null}\n\
     {\"partition\":1,\"offset\":0,\"appended_at\":\"2026-11-21T08:00:00.000Z\",\
     \"value_base64\":\"AAEC\",\"key\":\"customer-1\"}\n\
     {\"partition\":3,\"offset\":0,\"appended_at\":\"2026-11-21T08:00:00.000Z\",\
     \"value\":{\"total\":12.5},\"key\":\"customer-7\",\"headers\":{\"source\":\"web\"}}\n";

fn example() -> Value {
    json!({"topic": "orders",
    "records": [{"partition": 0, "offset": 0,
        "appended_at": "2026-11-21T08:00:00.000Z", "key": "customer-7",
        "value": {"total": 12.5}, "headers": {"source": "web"}},
        {"partition": 0, "offset": 1, "appended_at": "2026-11-21T08:00:00.000Z",
        "value": null},
        {"partition": 1, "offset": 0, "appended_at": "2026-11-21T08:00:00.000Z",
        "key": "customer-1", "value_base64": "AAEC"},
        {"partition": 3, "offset": 0, "appended_at": "2026-11-21T08:00:00.000Z",
        "key": "customer-7", "value": {"total": 12.5}, "headers": {"source": "web"}}],
    "partitions": [
        {"partition": 0, "next_offset": 2, "log_start_offset": 0, "high_watermark": 2},
        {"partition": 1, "next_offset": 1, "log_start_offset": 0, "high_watermark": 1},
        {"partition": 2, "next_offset": 0, "log_start_offset": 0, "high_watermark": 0},
        {"partition": 3, "next_offset": 1, "log_start_offset": 0, "high_watermark": 1}],
    "cursor": CURSOR})
}

/// The answer to the next read in the examples.
fn nothing_new() -> Value {
    let mut answer = example();
    answer["records"] = json!([]);
    answer
}

/// Read a topic
///
/// Returns committed records of all partitions, in order within each partition and with a fair
/// share for each. Continue with the answer's `cursor`; the same cursor returns the same records
/// again, though how many of each partition may vary. With `wait_ms` an empty answer waits for the
/// first record of any partition, including partitions added meanwhile; new partitions are read
/// from their beginning. `Accept: application/x-ndjson` returns only the records, one per line.
#[utoipa::path(get, path = "/v1/topics/{topic}/records", operation_id = "read_topic", tag = "reads",
    params(("topic" = String, Path, description = "The topic's name"), TopicReadParameters),
    responses((status = 200, description = "Records, possibly none",
        content(
            (TopicReadAnswer = "application/json", example = json!(example())),
            (String = "application/x-ndjson", example = json!(LINES))),
        headers(("Oncelog-Cursor" = String, description = "NDJSON only: where to continue")))),
    security(("bearer" = ["consume"])))]
pub async fn read_topic(
    access: TopicAccess<Consume>,
    State(admission): State<Arc<Admission>>,
    AnswersRecords(media): AnswersRecords,
    Query(query): Query<TopicReadParameters>,
) -> Result<Response, Error> {
    answer(access, &admission, media, query.checked(ParameterPlace::Query)?).await
}

/// Read a topic with a long cursor
///
/// Same as `GET /v1/topics/{topic}/records`, with its parameters as a JSON body: for cursors longer
/// than 8 KiB, which do not fit into a URL, as topics with very many partitions have them. It
/// changes nothing and is safe to repeat.
#[utoipa::path(post, path = "/v1/topics/{topic}/reads", operation_id = "read_topic_by_body",
    tag = "reads",
    params(("topic" = String, Path, description = "The topic's name")),
    request_body(content = TopicReadParameters, description = "The parameters of the read",
        example = json!({"cursor": CURSOR, "limit": 500, "wait_ms": 0})),
    responses((status = 200, description = "Records, possibly none",
        content(
            (TopicReadAnswer = "application/json", example = json!(nothing_new())),
            (String = "application/x-ndjson", example = json!(""))),
        headers(("Oncelog-Cursor" = String, description = "NDJSON only: where to continue")))),
    security(("bearer" = ["consume"])))]
pub async fn read_topic_by_body(
    access: TopicAccess<Consume>,
    State(admission): State<Arc<Admission>>,
    AnswersRecords(media): AnswersRecords,
    sent: JsonBody<TopicReadParameters>,
) -> Result<Response, Error> {
    answer(access, &admission, media, sent.body.checked(ParameterPlace::Body)?).await
}

async fn answer(
    access: TopicAccess<Consume>,
    admission: &Admission,
    media: Media,
    read: TopicRead,
) -> Result<Response, Error> {
    let fetched = access.broker.read_topic(access.tenant, &access.topic, read).await?;
    let body = admission.answer(access.tenant, capacity(&fetched), || match media {
        Media::Json => json_body(&access.topic, &fetched),
        Media::Ndjson => ndjson(&fetched.parts),
    })?;
    let content_type = HeaderValue::from_static(media.as_str());
    let mut answer = ([(CONTENT_TYPE, content_type)], body).into_response();
    if media == Media::Ndjson {
        answer.headers_mut().insert("oncelog-cursor", cursors::header(fetched.cursor)?);
    }
    Ok(answer)
}

/// Upper bound of the text of a partition in an answer.
const PARTITION_BYTES: usize = r#"{"partition":2147483647,"next_offset":0123456789012345,"log_start_offset":0123456789012345,"high_watermark":0123456789012345},"#
    .len();
/// Upper bound of the text around the lists and the cursor, without the topic's name.
const ENVELOPE_BYTES: usize = r#"{"topic":"","records":[],"partitions":[],"cursor":""}"#.len();

fn json_body(topic: &Name, fetched: &TopicFetched) -> Vec<u8> {
    let mut body = Vec::with_capacity(topic.as_str().len() + capacity(fetched));
    // Names are plain ASCII, and cursors base64: they need no escapes.
    body.extend_from_slice(format!("{{\"topic\":\"{topic}\",\"records\":[").as_bytes());
    write_list(&mut body, &fetched.parts);
    body.extend_from_slice(b"],\"partitions\":[");
    for ends in &fetched.partitions {
        let PartitionEnds { partition, next_offset, log_start_offset, high_watermark } = ends;
        let ends = format!(
            "{{\"partition\":{partition},\"next_offset\":{next_offset},\
             \"log_start_offset\":{log_start_offset},\"high_watermark\":{high_watermark}}},"
        );
        body.extend_from_slice(ends.as_bytes());
    }
    drop_last(&mut body, b',');
    body.extend_from_slice(format!("],\"cursor\":\"{}\"}}", fetched.cursor).as_bytes());
    body
}

fn capacity(fetched: &TopicFetched) -> usize {
    let partitions = fetched.partitions.len() * PARTITION_BYTES;
    total_capacity(&fetched.parts) + partitions + fetched.cursor.len() + ENVELOPE_BYTES
}

#[cfg(test)]
mod tests;
