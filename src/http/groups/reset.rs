//! Resets of group offsets.

use std::fmt;

use axum::Json;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{ObjectBuilder, SchemaType, Type},
    },
};

use super::GroupOffsets;
use crate::{
    broker::Error,
    http::extract::{
        access::{Group, GroupAccess},
        body::JsonBody,
        json::{AtMost, names},
        media::AnswersJson,
    },
    model::{
        MAX_INTEGER, Timestamp, ValidationErrors,
        group::{
            MAX_TOPICS,
            view::{OffsetsReset, ResetTo},
        },
    },
};

/// The partitions to reset, and the target.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetOffsets {
    /// All partitions of these topics. Default: all that the group has subscribed to or committed
    /// in.
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 1000)]
    topics: Option<AtMost<String, MAX_TOPICS>>,
    #[schema(value_type = ResetTarget)]
    to: SentTarget,
    /// Return the result without applying it.
    dry_run: Option<bool>,
}

/// The target of the reset; offsets outside of a log are clipped to its start or end.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only describes")]
pub enum ResetTarget {
    End(#[schema(inline)] LogEnd),
    Place(SentPlace),
}

/// A text in place, not an enum: not every generator can write a union with one.
#[derive(Serialize)]
pub struct LogEnd;

impl PartialSchema for LogEnd {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
        let text = text.pattern(Some("^(earliest|latest)$"));
        let ends = "The log start (`earliest`) or the high watermark (`latest`).";
        Schema::from(text.description(Some(ends))).into()
    }
}

impl ToSchema for LogEnd {}

/// Exactly one of the fields.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SentPlace {
    /// The same offset in every partition.
    #[schema(minimum = 0)]
    offset: Option<i64>,
    /// The first record appended at or after this instant (RFC 3339); the high watermark if there
    /// is none yet.
    #[schema(format = DateTime)]
    timestamp: Option<String>,
    /// This many records forward from the current position; backward if negative.
    by: Option<i64>,
}

/// `"earliest"`, `"latest"`, or an object.
enum SentTarget {
    Word(String),
    Place(SentPlace),
}

impl<'de> Deserialize<'de> for SentTarget {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Target;
        impl<'de> Visitor<'de> for Target {
            type Value = SentTarget;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("earliest, latest, or an object")
            }

            fn visit_str<E>(self, word: &str) -> Result<SentTarget, E> {
                Ok(SentTarget::Word(word.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SentTarget, A::Error> {
                SentPlace::deserialize(MapAccessDeserializer::new(map)).map(SentTarget::Place)
            }
        }
        json.deserialize_any(Target)
    }
}

impl ResetOffsets {
    fn checked(self) -> Result<OffsetsReset, ValidationErrors> {
        let mut errors = ValidationErrors::default();
        let topics = self.topics.map(|topics| {
            if topics.is_empty() {
                errors.add("/topics", format!("expected 1 to {MAX_TOPICS} topics"));
            }
            names(&mut errors, "/topics", topics)
        });
        let to = match self.to {
            SentTarget::Word(word) => match word.as_str() {
                "earliest" => Some(ResetTo::Earliest),
                "latest" => Some(ResetTo::Latest),
                _ => {
                    errors.add("/to", "expected earliest, latest, or an object");
                    None
                }
            },
            SentTarget::Place(place) => place.checked(&mut errors),
        };
        errors.finish()?;
        let to = to.ok_or_else(|| ValidationErrors::at("/to", "missing: give a target"))?;
        Ok(OffsetsReset { topics, to, dry_run: self.dry_run.unwrap_or(false) })
    }
}

impl SentPlace {
    fn checked(self, errors: &mut ValidationErrors) -> Option<ResetTo> {
        match self {
            Self { offset: Some(offset), timestamp: None, by: None } => {
                errors.count("/to/offset", Some(offset)).map(ResetTo::Offset)
            }
            Self { offset: None, timestamp: Some(text), by: None } => {
                let instant = errors.parsed("/to/timestamp", Timestamp::parse(&text));
                instant.map(ResetTo::Timestamp)
            }
            Self { offset: None, timestamp: None, by: Some(by) } => {
                errors.range("/to/by", Some(by), -MAX_INTEGER..=MAX_INTEGER).map(ResetTo::By)
            }
            _ => {
                errors.add("/to", "expected exactly one of offset, timestamp and by");
                None
            }
        }
    }
}

/// Reset a group's offsets
///
/// Moves all of the offsets or, if one is refused, none, forward or backward, and removes their
/// metadata. The group must have no members, and no prepared transaction that will commit there.
/// Offsets outside of a log are clipped to its start or end. `by` counts from the committed offset
/// or, without one, from where the group would start. Safe to repeat, except with `by`.
/// Every topic needs `consume`.
#[utoipa::path(post, path = "/v1/groups/{group}/offsets/reset", operation_id = "reset_group_offsets",
    tag = "groups",
    params(("group" = String, Path, description = "The group's name")),
    request_body(content = ResetOffsets, description = "The partitions and the target", examples(
        ("to_an_instant" = (summary = "Dry run of a reset to this morning",
            value = json!({"topics": ["orders"], "to": {"timestamp": "2026-11-21T08:00:00.000Z"},
                "dry_run": true}))),
        ("back" = (summary = "Process the last 100 records of each partition again",
            value = json!({"to": {"by": -100}}))),
        ("to_the_start" = (summary = "Process everything again",
            value = json!({"to": "earliest"}))))),
    responses((status = 200, description = "The offsets now committed in these partitions",
        body = GroupOffsets, example = json!({"group": "billing", "offsets": [
            {"topic": "orders", "partition": 0, "offset": 0, "metadata": null}]}))),
    security(("bearer" = ["group", "consume"])))]
pub async fn reset_group_offsets(
    access: GroupAccess<Group>,
    _: AnswersJson,
    sent: JsonBody<ResetOffsets>,
) -> Result<Json<GroupOffsets>, Error> {
    let reset = sent.body.checked()?;
    let offsets = access
        .broker
        .reset_offsets(access.tenant, &access.group, reset, &access.grant.scopes)
        .await?;
    Ok(Json(GroupOffsets::new(&access.group, offsets)))
}
