//! Topics: create, describe, change, delete, trim.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::{
    extract::{
        access::{Access, Admin, PartitionPath, See, TopicAccess},
        body::JsonBody,
        json::Object,
        list::{self, ListQuery, covered},
        media::AnswersJson,
        query::{NoParameters, Query},
    },
    settings::{SentChanges, TopicSettings, TopicSettingsPatch},
};
use crate::{
    broker::Error,
    model::{
        MAX_INTEGER, Partition, ValidationErrors,
        settings::OwnSettings,
        topic::{
            MAX_PARTITION_COUNT, PartitionDescription, TopicDescription, TopicPatch, TopicSummary,
        },
    },
};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutTopic {
    /// The number of partitions. Default: 1 for a new topic, any for an existing one.
    #[schema(minimum = 1, maximum = 10000)]
    partition_count: Option<i64>,
    /// The topic's own settings; absent ones come from the tenant.
    #[schema(value_type = Option<TopicSettingsPatch>)]
    settings: Option<Object<SentChanges>>,
}

/// A merge patch: absent fields stay.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchTopic {
    /// The number of partitions; it can only grow.
    #[schema(minimum = 1, maximum = 10000)]
    partition_count: Option<i64>,
    /// The topic's own settings; absent ones come from the tenant.
    #[schema(value_type = Option<TopicSettingsPatch>)]
    settings: Option<Object<SentChanges>>,
}

/// Checks the fields that `PUT` and `PATCH` share.
fn checked(
    partition_count: Option<i64>,
    settings: Option<Object<SentChanges>>,
) -> Result<TopicPatch, ValidationErrors> {
    let mut errors = ValidationErrors::default();
    let partition_count =
        errors.range("/partition_count", partition_count, 1..=MAX_PARTITION_COUNT);
    let partition_count = partition_count.and_then(|count| Partition::try_from(count).ok());
    let settings = settings.map(|Object(settings)| settings).unwrap_or_default();
    let settings = settings.checked("/settings", true, &mut errors);
    errors.finish()?;
    Ok(TopicPatch { partition_count, settings })
}

/// A topic in a list.
#[derive(Serialize, ToSchema)]
pub struct TopicItem {
    /// The topic's name.
    topic: String,
    /// The number of partitions, which are numbered from 0.
    partition_count: i32,
    #[schema(value_type = TopicSettings)]
    settings: OwnSettings,
    /// When it was created.
    #[schema(format = DateTime)]
    created_at: String,
}

/// A topic with its partitions in order.
#[derive(Serialize, ToSchema)]
pub struct Topic {
    /// The topic's name.
    topic: String,
    /// The number of partitions, which are numbered from 0.
    partition_count: i32,
    #[schema(value_type = TopicSettings)]
    settings: OwnSettings,
    /// When it was created.
    #[schema(format = DateTime)]
    created_at: String,
    /// All partitions, from 0.
    partitions: Vec<PartitionItem>,
}

/// The current state of a partition.
#[derive(Serialize, ToSchema)]
pub struct PartitionItem {
    /// The partition number, from 0.
    partition: i32,
    /// The first offset that can be read.
    log_start_offset: i64,
    /// The next offset to be assigned.
    high_watermark: i64,
    /// The number of records that can be read. Of a compacted partition: the number left by the
    /// last compaction, plus those appended since.
    record_count: i64,
    /// Their approximate size in bytes.
    size_bytes: i64,
}

/// A page of topics, by name.
#[derive(Serialize, ToSchema)]
pub struct TopicList {
    /// At most `limit` topics.
    topics: Vec<TopicItem>,
    /// The `after` of the next page; null on the last page.
    #[schema(required = true)]
    next_after: Option<String>,
}

impl From<TopicSummary> for TopicItem {
    fn from(summary: TopicSummary) -> Self {
        Self {
            topic: summary.topic.to_string(),
            partition_count: summary.partition_count,
            settings: summary.settings,
            created_at: summary.created_at.to_string(),
        }
    }
}

impl From<TopicDescription> for Topic {
    fn from(description: TopicDescription) -> Self {
        let item = TopicItem::from(description.summary);
        Self {
            topic: item.topic,
            partition_count: item.partition_count,
            settings: item.settings,
            created_at: item.created_at,
            partitions: description.partitions.into_iter().map(PartitionItem::from).collect(),
        }
    }
}

impl From<PartitionDescription> for PartitionItem {
    fn from(partition: PartitionDescription) -> Self {
        Self {
            partition: partition.partition,
            log_start_offset: partition.log_start_offset,
            high_watermark: partition.high_watermark,
            record_count: partition.record_count,
            size_bytes: partition.size_bytes,
        }
    }
}

/// The example topic, new, with this many partitions.
fn example(partition_count: i32) -> serde_json::Value {
    let empty = |partition| {
        json!({"partition": partition, "log_start_offset": 0, "high_watermark": 0,
            "record_count": 0, "size_bytes": 0})
    };
    json!({"topic": "orders", "partition_count": partition_count,
        "settings": {"max_batch_records": 5000}, "created_at": "2026-11-21T08:00:00.000Z",
        "partitions": (0..partition_count).map(empty).collect::<Vec<_>>()})
}

/// Create a topic
///
/// Creates the topic, or returns the existing one; safe to repeat. A topic that exists with this
/// partition count (or any, if none is given) answers 200, and gets the given `settings`.
#[utoipa::path(put, path = "/v1/topics/{topic}", operation_id = "put_topic", tag = "topics",
    params(("topic" = String, Path, description = "The topic's name")),
    request_body(content = PutTopic, description = "All fields are optional",
        example = json!({"partition_count": 2, "settings": {"max_batch_records": 5000}})),
    responses(
        (status = 201, description = "The topic is created", body = Topic,
            example = json!(example(2))),
        (status = 200, description = "The topic already exists", body = Topic,
            example = json!(example(2)))),
    security(("bearer" = ["admin"])))]
pub async fn put_topic(
    access: TopicAccess<Admin>,
    _: AnswersJson,
    sent: JsonBody<PutTopic>,
) -> Result<Response, Error> {
    let given = sent.body.settings.is_some();
    let wanted = checked(sent.body.partition_count, sent.body.settings)?;
    let settings = given.then_some(wanted.settings);
    let (tenant, count) = (access.tenant, wanted.partition_count);
    let (topic, created) = access.broker.put_topic(tenant, &access.topic, count, settings).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(Topic::from(topic))).into_response())
}

/// Describe a topic
///
/// Returns the topic with the log start, high watermark, record count and size of every partition,
/// as of now.
#[utoipa::path(get, path = "/v1/topics/{topic}", operation_id = "get_topic", tag = "topics",
    params(("topic" = String, Path, description = "The topic's name")),
    responses((status = 200, description = "The topic", body = Topic,
        example = json!(example(2)))),
    security(("bearer" = ["admin"]), ("bearer" = ["produce"]), ("bearer" = ["consume"])))]
pub async fn get_topic(
    access: TopicAccess<See>,
    _: AnswersJson,
    _: Query<NoParameters>,
) -> Result<Json<Topic>, Error> {
    Ok(Json(access.broker.topic(access.tenant, &access.topic).await?.into()))
}

/// List topics
///
/// Returns topics by name, page by page; only those that the token's scopes cover.
#[utoipa::path(get, path = "/v1/topics", operation_id = "list_topics", tag = "topics",
    params(ListQuery),
    responses((status = 200, description = "A page of topics", body = TopicList,
        example = json!({"topics": [{"topic": "orders", "partition_count": 2,
            "settings": {"max_batch_records": 5000},
            "created_at": "2026-11-21T08:00:00.000Z"}], "next_after": null}))),
    security(("bearer" = ["admin"]), ("bearer" = ["produce"]), ("bearer" = ["consume"])))]
pub async fn list_topics(
    access: Access<See>,
    _: AnswersJson,
    Query(query): Query<ListQuery>,
) -> Result<Response, Error> {
    let page = query.page()?;
    let look = |page| access.broker.topics(access.tenant, page);
    let after = |topic: &TopicSummary| topic.topic.to_string();
    let covers = |topic: &TopicSummary| access.covers(&topic.topic);
    let listed = covered(&page, look, after, covers).await?;
    Ok(list::answer(listed, "/v1/topics?", page.limit, |topics, next_after| TopicList {
        topics,
        next_after,
    }))
}

/// Change a topic
///
/// Increases the partition count or changes settings; absent fields stay. Appends that begin after
/// the answer are spread by the new count, so a key may then map to another partition.
#[utoipa::path(patch, path = "/v1/topics/{topic}", operation_id = "patch_topic", tag = "topics",
    params(("topic" = String, Path, description = "The topic's name")),
    request_body(content = PatchTopic, description = "The changes",
        example = json!({"partition_count": 4, "settings": {"max_batch_records": 5000}})),
    responses((status = 200, description = "The topic after the change", body = Topic,
        example = json!(example(4)))),
    security(("bearer" = ["admin"])))]
pub async fn patch_topic(
    access: TopicAccess<Admin>,
    _: AnswersJson,
    sent: JsonBody<PatchTopic>,
) -> Result<Json<Topic>, Error> {
    let patch = checked(sent.body.partition_count, sent.body.settings)?;
    Ok(Json(access.broker.patch_topic(access.tenant, &access.topic, patch).await?.into()))
}

/// Delete a topic
///
/// Deletes the topic and all its records permanently and at once. A new topic with the same name is
/// a different topic: its offsets and sequences start at 0. A topic held by a prepared transaction
/// cannot be deleted.
#[utoipa::path(delete, path = "/v1/topics/{topic}", operation_id = "delete_topic", tag = "topics",
    params(("topic" = String, Path, description = "The topic's name")),
    responses((status = 204, description = "The topic is deleted")),
    security(("bearer" = ["admin"])))]
pub async fn delete_topic(
    access: TopicAccess<Admin>,
    _: Query<NoParameters>,
) -> Result<StatusCode, Error> {
    access.broker.delete_topic(access.tenant, &access.topic).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TrimQuery {
    /// The new log start: records below this offset are removed.
    #[param(minimum = 0, maximum = 9007199254740991_i64)]
    before: i64,
}

/// Trim a partition
///
/// Advances the log start to `before`; it never moves back. An offset above the high watermark is
/// refused.
#[utoipa::path(delete, path = "/v1/topics/{topic}/partitions/{partition}/records",
    operation_id = "trim_partition", tag = "topics",
    params(("topic" = String, Path, description = "The topic's name"),
        ("partition" = i32, Path, description = "The partition number, from 0"), TrimQuery),
    responses((status = 204, description = "The log start is at `before` or above")),
    security(("bearer" = ["admin"])))]
pub async fn trim_partition(
    access: TopicAccess<Admin>,
    PartitionPath(partition): PartitionPath,
    Query(query): Query<TrimQuery>,
) -> Result<StatusCode, Error> {
    let mut errors = ValidationErrors::default();
    errors.range("?before", Some(query.before), 0..=MAX_INTEGER);
    errors.finish()?;
    access.broker.trim(access.tenant, &access.topic, partition, query.before).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests;
