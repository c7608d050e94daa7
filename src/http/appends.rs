//! Appends: records spread over a topic by key, or all into one partition.

use std::sync::Arc;

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    extract::{
        access::{PartitionPath, Produce, TopicAccess},
        body::{Records, Sent, count},
        media::{AnswersJson, Media},
        query::NoParameters,
    },
    openapi::schemas::Append as AppendBody,
};
use crate::{
    broker::{Error, Held},
    model::{
        Batch, Code, Envelope, Name, ProducerId, ValidationErrors,
        append::{Append, Appended, Placed, PlacedRecord, ProducerSeq, Scope},
        batch::OnDuplicate,
    },
};

/// Query parameters that replace the JSON envelope when the body is NDJSON.
#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AppendQuery {
    /// NDJSON only: the session's producer. Requires `epoch` and `sequence`.
    #[param(minimum = 0)]
    producer_id: Option<i64>,
    /// NDJSON only: the session's epoch.
    #[param(minimum = 0)]
    epoch: Option<i64>,
    /// NDJSON only: the sequence of this request in its scope.
    #[param(minimum = 0)]
    sequence: Option<i64>,
    /// NDJSON only, append to a partition: append only if this is the next offset.
    #[param(minimum = 0)]
    expected_offset: Option<i64>,
    /// NDJSON only: if a record is already stored, `skip` it or `refuse` the whole request.
    #[param(inline)]
    on_duplicate: Option<SentOnDuplicate>,
}

/// The names of `AppendQuery`.
const OF_NDJSON: [&str; 5] =
    ["?producer_id", "?epoch", "?sequence", "?expected_offset", "?on_duplicate"];

/// Beside a JSON body a parameter of NDJSON is not unknown, but in the wrong place.
fn of_ndjson(mut errors: ValidationErrors) -> ValidationErrors {
    for error in &mut errors.listed {
        if OF_NDJSON.contains(&error.pointer.as_str()) {
            error.detail = "with an application/x-ndjson body only; in JSON it is a field of the \
                body"
                .into();
        }
    }
    errors
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum SentOnDuplicate {
    Skip,
    Refuse,
}

impl From<SentOnDuplicate> for OnDuplicate {
    fn from(sent: SentOnDuplicate) -> Self {
        match sent {
            SentOnDuplicate::Skip => Self::Skip,
            SentOnDuplicate::Refuse => Self::Refuse,
        }
    }
}

/// Parses an append for this scope. The returned memory reservation covers its records only, as the
/// body is freed here.
fn parse_append(
    Records(sent, mut held): Records,
    topic: &Name,
    scope: Scope,
) -> Result<(Append, Held), Error> {
    let append = parse_body(&sent, topic, scope)?;
    drop(sent);
    count(&mut held, append.batch.held_bytes())?;
    Ok((append, Some(Arc::new(held))))
}

fn parse_body(sent: &Sent, topic: &Name, scope: Scope) -> Result<Append, Error> {
    let traceparent = sent.traceparent.as_deref();
    let (envelope, batch, prefix) = match sent.media() {
        Media::Json => {
            let NoParameters {} = sent.query().map_err(of_ndjson)?;
            let (envelope, batch) = Batch::from_json(sent.bytes(), traceparent)?;
            (envelope, batch, "/")
        }
        Media::Ndjson => {
            let query: AppendQuery = sent.query()?;
            let envelope = Envelope {
                producer_id: query.producer_id,
                epoch: query.epoch,
                sequence: query.sequence,
                expected_offset: query.expected_offset,
                on_duplicate: query.on_duplicate.map(OnDuplicate::from).unwrap_or_default(),
            };
            // The cheaper check first.
            parse_sequence(&envelope, scope, "?")?;
            (envelope, Batch::from_ndjson(sent.bytes(), traceparent)?, "?")
        }
    };
    let numbered = parse_sequence(&envelope, scope, prefix)?;
    let Envelope { expected_offset, on_duplicate, .. } = envelope;
    let request_key = sent.idempotency_key().map(|key| {
        let path = match scope {
            Scope::Topic => format!("/v1/topics/{topic}/records"),
            Scope::Partition(p) => format!("/v1/topics/{topic}/partitions/{p}/records"),
        };
        let others = format!("{expected_offset:?} {on_duplicate:?}");
        key.of_request("POST", &path, &[&batch.digest, others.as_bytes()])
    });
    if request_key.is_some() && numbered.is_some() {
        let why = "the request has a sequence, which already makes it safe to repeat; omit the sequence \
             or the key";
        return Err(ValidationErrors::at("Idempotency-Key", why).into());
    }
    Ok(Append {
        numbered,
        expected_offset,
        refuses_duplicates: on_duplicate == OnDuplicate::Refuse,
        request_key,
        batch: Arc::new(batch),
    })
}

/// Requires `producer_id`, `epoch` and `sequence` together or not at all.
fn parse_sequence(
    envelope: &Envelope,
    scope: Scope,
    prefix: &str,
) -> Result<Option<ProducerSeq>, ValidationErrors> {
    let mut errors = ValidationErrors::default();
    let at = |name: &str| format!("{prefix}{name}");
    let parts = [
        ("producer_id", envelope.producer_id),
        ("epoch", envelope.epoch),
        ("sequence", envelope.sequence),
    ];
    for (name, value) in parts {
        errors.count(&at(name), value);
        if value.is_none() && parts.iter().any(|(_, value)| value.is_some()) {
            let why = "missing: give producer_id, epoch and sequence together, or none of them";
            errors.add(&at(name), why);
        }
    }
    errors.count(&at("expected_offset"), envelope.expected_offset);
    if envelope.expected_offset.is_some() && scope == Scope::Topic {
        errors.add(&at("expected_offset"), "only allowed in an append to one partition");
    }
    errors.finish()?;
    let (Some(producer_id), Some(epoch), Some(sequence)) =
        (envelope.producer_id, envelope.epoch, envelope.sequence)
    else {
        return Ok(None);
    };
    Ok(Some(ProducerSeq { producer_id: ProducerId(producer_id), epoch, sequence }))
}

/// The location of every record, in request order.
#[derive(Serialize, ToSchema)]
pub struct AppendedToTopic {
    /// The topic.
    topic: String,
    /// The location of each record; null if this repeats an append older than the deduplication
    /// window.
    #[schema(required = true)]
    offsets: Option<Vec<RecordPlace>>,
    /// True if this append had already been done.
    duplicate: bool,
    /// When it was stored; null if older than the deduplication window.
    #[schema(format = DateTime, required = true)]
    appended_at: Option<String>,
}

/// The location of a record.
#[derive(Serialize, ToSchema)]
pub struct RecordPlace {
    /// The partition.
    partition: i32,
    /// The offset; null if the record is no longer in the log.
    #[schema(required = true)]
    offset: Option<i64>,
    /// Present if records have ids or the topic deduplicates by content: true if the record was
    /// already stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
    /// Present if records have ids or the topic deduplicates by content: when the record was
    /// stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    first_seen_at: Option<String>,
}

impl From<&PlacedRecord> for RecordPlace {
    fn from(placed: &PlacedRecord) -> Self {
        Self {
            partition: placed.partition,
            offset: placed.offset,
            duplicate: Some(placed.duplicate),
            first_seen_at: Some(placed.first_seen_at.to_string()),
        }
    }
}

fn places(records: Option<Vec<PlacedRecord>>) -> Option<Vec<RecordPlace>> {
    records.map(|records| records.iter().map(RecordPlace::from).collect())
}

/// The location of the records: consecutive offsets from `base_offset` on.
#[derive(Serialize, ToSchema)]
pub struct AppendedToPartition {
    /// The topic.
    topic: String,
    /// The partition.
    partition: i32,
    /// The offset of the first stored record; null if none was stored, or if this repeats an append
    /// older than the deduplication window.
    #[schema(required = true)]
    base_offset: Option<i64>,
    /// The number of records stored.
    record_count: i64,
    /// Present if records have ids or the topic deduplicates by content: the location of each
    /// record, in request order; null if this repeats an append older than the deduplication
    /// window.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = true)]
    offsets: Option<Option<Vec<RecordPlace>>>,
    /// True if this append had already been done.
    duplicate: bool,
    /// When it was stored; null if older than the deduplication window.
    #[schema(format = DateTime, required = true)]
    appended_at: Option<String>,
}

/// Append to a topic
///
/// Spreads the records over partitions by key (murmur2, like Kafka's clients); all records without
/// a key go to one partition. With `producer_id`, `epoch` and `sequence` the request is stored
/// once, however often it is sent: a repeat returns the first answer with `"duplicate": true`.
#[utoipa::path(post, path = "/v1/topics/{topic}/records", operation_id = "append_to_topic",
    tag = "appends",
    params(("topic" = String, Path, description = "The topic's name"), AppendQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "Makes this safe to repeat")),
    request_body(description = "The records: one JSON object, or one record per line", content(
        (AppendBody = "application/json", example = json!({"producer_id": 1, "epoch": 0,
            "sequence": 0, "records": [{"key": "customer-7", "value": {"total": 12.5},
            "headers": {"source": "web"}}, {"key": "customer-1", "value_base64": "AAEC"}]})),
        (String = "application/x-ndjson",
            example = json!("{\"key\":\"customer-7\",\"value\":{\"total\":12.5}}\n")))),
    responses((status = 200, description = "Appended, now or earlier", body = AppendedToTopic,
        example = json!({"topic": "orders", "offsets": [{"partition": 3, "offset": 0},
            {"partition": 1, "offset": 0}], "duplicate": false,
            "appended_at": "2026-11-21T08:00:00.000Z"}))),
    security(("bearer" = ["produce"])))]
pub async fn append_to_topic(
    access: TopicAccess<Produce>,
    _: AnswersJson,
    records: Records,
) -> Result<Json<AppendedToTopic>, Error> {
    let (scope, topic) = (Scope::Topic, &access.topic);
    let (append, held) = parse_append(records, topic, scope)?;
    let done = access.broker.append(access.tenant, topic, scope, append, held).await?;
    let Appended { placed, duplicate, appended_at } = done;
    let place = |(partition, offset)| RecordPlace {
        partition,
        offset: Some(offset),
        duplicate: None,
        first_seen_at: None,
    };
    let offsets = match placed {
        Placed::Topic(offsets) => offsets.map(|offsets| offsets.into_iter().map(place).collect()),
        Placed::Records { records, .. } => places(records),
        Placed::Partition { .. } => return Err(misplaced()),
    };
    Ok(Json(AppendedToTopic {
        topic: access.topic.to_string(),
        offsets,
        duplicate,
        appended_at: appended_at.map(|at| at.to_string()),
    }))
}

/// Append to a partition
///
/// Appends all records to this partition as one batch, whatever their keys. With `expected_offset`
/// the append succeeds only if that is the partition's next offset; a duplicate by sequence is
/// detected before this check.
#[utoipa::path(post, path = "/v1/topics/{topic}/partitions/{partition}/records",
    operation_id = "append_to_partition", tag = "appends",
    params(("topic" = String, Path, description = "The topic's name"),
        ("partition" = i32, Path, description = "The partition number, from 0"), AppendQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "Makes this safe to repeat")),
    request_body(description = "The records: one JSON object, or one record per line", content(
        (AppendBody = "application/json", example = json!({"producer_id": 1, "epoch": 0,
            "sequence": 0, "expected_offset": 0, "records": [{"key": "customer-7",
            "value": {"total": 12.5}, "headers": {"source": "web"}}, {"value": null}]})),
        (String = "application/x-ndjson",
            example = json!("{\"key\":\"customer-7\",\"value\":1}\n{\"value\":null}\n")))),
    responses((status = 200, description = "Appended, now or earlier", body = AppendedToPartition,
        example = json!({"topic": "orders", "partition": 0, "base_offset": 0,
            "record_count": 2, "duplicate": false, "appended_at": "2026-11-21T08:00:00.000Z"}))),
    security(("bearer" = ["produce"])))]
pub async fn append_to_partition(
    access: TopicAccess<Produce>,
    PartitionPath(partition): PartitionPath,
    _: AnswersJson,
    records: Records,
) -> Result<Json<AppendedToPartition>, Error> {
    let scope = Scope::Partition(partition);
    let (append, held) = parse_append(records, &access.topic, scope)?;
    let done = access.broker.append(access.tenant, &access.topic, scope, append, held).await?;
    let (base_offset, record_count, offsets) = match done.placed {
        Placed::Partition { base_offset, record_count, .. } => (base_offset, record_count, None),
        Placed::Records { records, base_offset, record_count } => {
            (base_offset, record_count, Some(places(records)))
        }
        Placed::Topic(_) => return Err(misplaced()),
    };
    Ok(Json(AppendedToPartition {
        topic: access.topic.to_string(),
        partition,
        base_offset,
        record_count,
        offsets,
        duplicate: done.duplicate,
        appended_at: done.appended_at.map(|at| at.to_string()),
    }))
}

/// The broker must answer in the scope of the request; anything else is a bug.
fn misplaced() -> Error {
    tracing::error!("an append was answered in the wrong scope");
    Error::new(Code::Internal, "Internal error: the append was answered in the wrong scope.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::extract::query;

    fn envelope(parts: [Option<i64>; 4]) -> Envelope {
        let [producer_id, epoch, sequence, expected_offset] = parts;
        Envelope { producer_id, epoch, sequence, expected_offset, ..Envelope::default() }
    }

    #[test]
    fn numbers_come_together() {
        let none = envelope([None; 4]);
        assert_eq!(parse_sequence(&none, Scope::Topic, "/"), Ok(None));
        let all = envelope([Some(17), Some(4), Some(0), Some(9)]);
        let want = ProducerSeq { producer_id: ProducerId(17), epoch: 4, sequence: 0 };
        assert_eq!(parse_sequence(&all, Scope::Partition(0), "/"), Ok(Some(want)));
    }

    #[test]
    fn parameters_of_ndjson_are_fields_in_json() {
        let told = |query: &str| {
            let refused = query::parse::<NoParameters>(Some(query)).err().unwrap();
            of_ndjson(refused).listed.remove(0).detail
        };
        for name in OF_NDJSON.map(|pointer| pointer.trim_start_matches('?')) {
            let value = if name == "on_duplicate" { "skip" } else { "0" };
            query::parse::<AppendQuery>(Some(&format!("{name}={value}"))).ok().unwrap();
            let detail = told(&format!("{name}={value}"));
            assert!(detail.starts_with("with an application/x-ndjson body only"), "{detail}");
        }
        assert!(told("limit=1").starts_with("unknown field"));
    }

    #[test]
    fn mistakes_are_named() {
        let (topic, partition) = (Scope::Topic, Scope::Partition(1));
        let table: [(_, _, _, &[&str]); 5] = [
            ([Some(1), None, None, None], topic, "/", &["/epoch", "/sequence"]),
            ([None, Some(1), Some(1), None], topic, "?", &["?producer_id"]),
            ([Some(-1), Some(1 << 53), Some(0), None], topic, "/", &["/producer_id", "/epoch"]),
            ([None, None, None, Some(5)], topic, "?", &["?expected_offset"]),
            ([None, None, None, Some(-5)], partition, "/", &["/expected_offset"]),
        ];
        for (parts, scope, prefix, want) in table {
            let errors = parse_sequence(&envelope(parts), scope, prefix).unwrap_err().listed;
            let pointers: Vec<_> = errors.iter().map(|error| error.pointer.as_str()).collect();
            assert_eq!(pointers, want, "{parts:?}");
        }
    }
}
