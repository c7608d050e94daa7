//! Topics: make, see, change, delete, trim.

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
        json::{Faults, Object},
        list::{self, ListQuery, covered},
        media::AnswersJson,
        query::{NoParameters, Query},
    },
    settings::{SentChanges, TopicSettings, TopicSettingsPatch},
};
use crate::{
    broker::Error,
    model::{
        Invalid, MAX_INTEGER, Partition,
        settings::OwnSettings,
        topic::{
            Listed, MAX_PARTITION_COUNT, PartitionDescription, TopicDescription, TopicPatch,
            TopicSummary,
        },
    },
};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutTopic {
    /// How many partitions. Left out: 1 for a new topic, any for one that exists.
    #[schema(minimum = 1, maximum = 10000)]
    partition_count: Option<i64>,
    /// The topic's own values; what is left out comes from the tenant.
    #[schema(value_type = Option<TopicSettingsPatch>)]
    settings: Option<Object<SentChanges>>,
}

/// A merge patch: what is absent stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchTopic {
    /// How many partitions; it only grows.
    #[schema(minimum = 1, maximum = 10000)]
    partition_count: Option<i64>,
    /// The topic's own values; what is left out comes from the tenant.
    #[schema(value_type = Option<TopicSettingsPatch>)]
    settings: Option<Object<SentChanges>>,
}

/// The shape of both `PUT` and `PATCH`.
fn checked(
    partition_count: Option<i64>,
    settings: Option<Object<SentChanges>>,
) -> Result<TopicPatch, Invalid> {
    let mut faults = Faults::default();
    let partition_count =
        faults.range("/partition_count", partition_count, 1..=MAX_PARTITION_COUNT);
    let partition_count = partition_count.and_then(|count| Partition::try_from(count).ok());
    let settings = settings.map(|Object(settings)| settings).unwrap_or_default();
    let settings = settings.checked("/settings", true, &mut faults);
    faults.finish()?;
    Ok(TopicPatch { partition_count, settings })
}

/// A topic as lists show it.
#[derive(Serialize, ToSchema)]
pub struct TopicItem {
    /// Its name.
    topic: String,
    /// Its partitions are 0 to one less than this.
    partition_count: i32,
    #[schema(value_type = TopicSettings)]
    settings: OwnSettings,
    /// When it was made.
    #[schema(format = DateTime)]
    created_at: String,
}

/// A topic with its partitions in order.
#[derive(Serialize, ToSchema)]
pub struct Topic {
    /// Its name.
    topic: String,
    /// Its partitions are 0 to one less than this.
    partition_count: i32,
    #[schema(value_type = TopicSettings)]
    settings: OwnSettings,
    /// When it was made.
    #[schema(format = DateTime)]
    created_at: String,
    /// All of them, from 0.
    partitions: Vec<PartitionItem>,
}

/// One partition, as it stands.
#[derive(Serialize, ToSchema)]
pub struct PartitionItem {
    /// Its number, from 0.
    partition: i32,
    /// The first offset that can be read.
    log_start_offset: i64,
    /// The next offset to be given.
    high_watermark: i64,
    /// How many records can be read. Of a compacted partition: how many were left by the last round,
    /// and those since.
    record_count: i64,
    /// What they take up, about.
    size_bytes: i64,
}

/// A page of topics, by name.
#[derive(Serialize, ToSchema)]
pub struct TopicList {
    /// At most `limit` of them.
    topics: Vec<TopicItem>,
    /// Where the next page starts; null at the end.
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

/// The topic of the document's story, new, with so many partitions.
fn example(partition_count: i32) -> serde_json::Value {
    let empty = |partition| {
        json!({"partition": partition, "log_start_offset": 0, "high_watermark": 0,
            "record_count": 0, "size_bytes": 0})
    };
    json!({"topic": "orders", "partition_count": partition_count,
        "settings": {"max_batch_records": 5000}, "created_at": "2026-11-21T08:00:00.000Z",
        "partitions": (0..partition_count).map(empty).collect::<Vec<_>>()})
}

/// Make a topic, or see that it is there
///
/// Repeating it is safe: a topic that exists with this partition count (or any, when none is
/// given) answers 200. `settings` given for a topic that exists are set.
#[utoipa::path(put, path = "/v1/topics/{topic}", operation_id = "put_topic", tag = "topics",
    params(("topic" = String, Path, description = "The topic's name")),
    request_body(content = PutTopic, description = "All fields are optional",
        example = json!({"partition_count": 2, "settings": {"max_batch_records": 5000}})),
    responses(
        (status = 201, description = "The topic was made", body = Topic,
            example = json!(example(2))),
        (status = 200, description = "The topic was there", body = Topic,
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
/// With every partition's log start, high watermark, number of records and size, as of now.
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
/// By name, page by page; only those that the token's scopes cover.
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
    let name = |topic: &TopicSummary| topic.topic.clone();
    let Listed { items, next_after } =
        covered(&page, look, name, |name| access.covers(name)).await?;
    let topics = items.into_iter().map(TopicItem::from).collect();
    let next = next_after.clone();
    let list = TopicList { topics, next_after };
    Ok(list::answer(list, "/v1/topics?", page.limit, next.as_deref()))
}

/// Change a topic
///
/// More partitions, other settings; what is left out stays. Appends that begin after the answer
/// spread by the new count, so a key may go to another partition from then on.
#[utoipa::path(patch, path = "/v1/topics/{topic}", operation_id = "patch_topic", tag = "topics",
    params(("topic" = String, Path, description = "The topic's name")),
    request_body(content = PatchTopic, description = "What is to change",
        example = json!({"partition_count": 4, "settings": {"max_batch_records": 5000}})),
    responses((status = 200, description = "The topic as it is now", body = Topic,
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
/// With all its records, at once and for ever. A topic made again under this name is another one:
/// its offsets and sequences start at 0. While a prepared transaction holds the topic it cannot be
/// deleted.
#[utoipa::path(delete, path = "/v1/topics/{topic}", operation_id = "delete_topic", tag = "topics",
    params(("topic" = String, Path, description = "The topic's name")),
    responses((status = 204, description = "The topic is gone")),
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
    /// Records below this offset go.
    #[param(minimum = 0, maximum = 9007199254740991_i64)]
    before: i64,
}

/// Trim a partition
///
/// Moves its log start to `before`, never back. Past the high watermark there is nothing to trim:
/// that is refused.
#[utoipa::path(delete, path = "/v1/topics/{topic}/partitions/{partition}/records",
    operation_id = "trim_partition", tag = "topics",
    params(("topic" = String, Path, description = "The topic's name"),
        ("partition" = i32, Path, description = "The partition's number, from 0"), TrimQuery),
    responses((status = 204, description = "The log starts there, or later")),
    security(("bearer" = ["admin"])))]
pub async fn trim_partition(
    access: TopicAccess<Admin>,
    PartitionPath(partition): PartitionPath,
    Query(query): Query<TrimQuery>,
) -> Result<StatusCode, Error> {
    let mut faults = Faults::default();
    faults.range("?before", Some(query.before), 0..=MAX_INTEGER);
    faults.finish()?;
    access.broker.trim(access.tenant, &access.topic, partition, query.before).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests;
