//! Members of groups: join, heartbeat, leave.

use std::collections::BTreeSet;

use axum::{Json, http::StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    broker::{Answer, Error},
    http::extract::{
        access::{Group, GroupAccess, MemberPath},
        body::{JsonBody, KeyedBody},
        json::{AtMost, names},
        media::AnswersJson,
        query::{NoParameters, Query},
    },
    model::{
        MAX_INTEGER, Name, Partition, ValidationErrors, Word,
        group::{
            self, Join, Joined, MAX_INSTANCE_ID_BYTES, MAX_TOPICS, Partitions, Subscription,
            TopicPattern,
        },
        scopes::Coverage,
    },
};

/// Where the group starts in a partition without a committed offset: at the log start (`earliest`),
/// at the high watermark (`latest`), or not at all, which is an error (`error`).
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "only describes")]
pub enum AutoOffsetReset {
    Earliest,
    Latest,
    Error,
}

/// What a member subscribes to: `topics`, `topic_pattern`, or both.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1)]
pub struct JoinGroup {
    /// Topics by name; all of them must exist.
    #[schema(value_type = Option<Vec<String>>, max_items = 1000)]
    topics: Option<AtMost<String, MAX_TOPICS>>,
    /// Topics by a regular expression (RE2 syntax), including topics created later. It matches
    /// anywhere in a name unless anchored with `^` and `$`.
    #[schema(min_length = 1, max_length = 1000)]
    topic_pattern: Option<String>,
    /// The stable name of the member. A join with the same name replaces the earlier member, whose
    /// calls then fail with `unknown_member`; so a restart within the lease gets its partitions
    /// back.
    #[schema(min_length = 1, max_length = 255)]
    instance_id: Option<String>,
    /// The duration of the lease: how long the member may be silent before its partitions are
    /// reassigned. From the tenant's `session_timeout_min_ms` to its `session_timeout_max_ms`;
    /// default 45000.
    #[schema(minimum = 1)]
    session_timeout_ms: Option<i64>,
    #[schema(value_type = Option<AutoOffsetReset>)]
    auto_offset_reset: Option<group::AutoOffsetReset>,
}

impl JoinGroup {
    fn checked(self, readable: Coverage) -> Result<Join, ValidationErrors> {
        let mut errors = ValidationErrors::default();
        if self.topics.as_ref().is_none_or(AtMost::is_empty) && self.topic_pattern.is_none() {
            errors.add("/topics", "missing: give topics or topic_pattern");
        }
        let topics = self.topics.map(|list| names(&mut errors, "/topics", list));
        let pattern = self.topic_pattern.as_deref().map(TopicPattern::parse);
        let pattern = pattern.and_then(|parsed| errors.parsed("/topic_pattern", parsed));
        // PostgreSQL's text has no U+0000
        let fits = |id: &str| (1..=MAX_INSTANCE_ID_BYTES).contains(&id.len()) && !id.contains('\0');
        if self.instance_id.as_deref().is_some_and(|id| !fits(id)) {
            let detail =
                format!("an instance id must be 1 to {MAX_INSTANCE_ID_BYTES} bytes without NUL");
            errors.add("/instance_id", detail);
        }
        errors.range("/session_timeout_ms", self.session_timeout_ms, 1..=MAX_INTEGER);
        errors.finish()?;
        Ok(Join {
            subscription: Subscription { topics: topics.unwrap_or_default(), pattern, readable },
            instance_id: self.instance_id,
            session_timeout_ms: self.session_timeout_ms,
            auto_offset_reset: self.auto_offset_reset,
        })
    }
}

/// Partitions of one topic.
#[derive(Serialize, ToSchema)]
pub struct TopicPartitions {
    /// The topic's name.
    topic: String,
    /// The partition numbers.
    partitions: Vec<i32>,
}

/// Groups partitions by topic, in order of topic and partition.
pub fn by_topic(partitions: Partitions) -> Vec<TopicPartitions> {
    let of = |(topic, numbers): (Name, BTreeSet<Partition>)| TopicPartitions {
        topic: topic.to_string(),
        partitions: numbers.into_iter().collect(),
    };
    partitions.into_iter().map(of).collect()
}

/// A member that has joined.
#[derive(Serialize, ToSchema)]
pub struct JoinedGroup {
    /// The id of the member in its calls; every join gets a new one.
    member_id: String,
    /// The newest generation; the member sends it with its commits.
    generation: i64,
    /// The partitions the member owns.
    assignment: Vec<TopicPartitions>,
    /// The member must fetch or send a heartbeat within this time: a third of its lease.
    heartbeat_interval_ms: i64,
    /// When the lease expires unless the member calls.
    #[schema(format = DateTime)]
    lease_expires_at: String,
    /// True if the join had already been done, with the same `Idempotency-Key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
}

impl From<Answer<Joined>> for JoinedGroup {
    fn from(Answer { value: joined, is_replay }: Answer<Joined>) -> Self {
        Self {
            member_id: joined.member_id,
            generation: joined.generation,
            assignment: by_topic(joined.assignment),
            heartbeat_interval_ms: joined.heartbeat_interval_ms,
            lease_expires_at: joined.lease_expires_at.to_string(),
            duplicate: is_replay.then_some(true),
        }
    }
}

/// The state of a member, which every call returns.
#[derive(Serialize, ToSchema)]
pub struct Membership {
    /// The newest generation; the member sends it with its commits.
    generation: i64,
    /// The partitions the member owns and keeps.
    assignment: Vec<TopicPartitions>,
    /// The partitions to release: commit there now what is processed. A call that acknowledges this
    /// answer releases them.
    revoked: Vec<TopicPartitions>,
}

impl From<group::Membership> for Membership {
    fn from(membership: group::Membership) -> Self {
        Self {
            generation: membership.generation,
            assignment: by_topic(membership.assignment),
            revoked: by_topic(membership.revoked),
        }
    }
}

/// A sign of life, optionally with the newest generation seen.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The `generation` of an answer: releases the partitions which that answer revoked.
    #[schema(minimum = 0)]
    generation: Option<i64>,
}

/// The only member of the example group.
pub const MEMBER: &str = "019aa5b6-5c00-7000-8000-00000000000a";

pub fn assignment() -> Value {
    json!([{"topic": "orders", "partitions": [0, 1, 2, 3]}])
}

/// Join a group
///
/// Starts the member's lease and a new generation, unless the same `instance_id` joins again with
/// the same topics. The member owns free partitions at once; others move to it as soon as their
/// owners release them, and then appear in the `assignment` of a later answer. The first join
/// creates the group. The token needs `group` for the group, and `consume` for every named topic.
/// Of the topics that match the pattern the member is only assigned those that its `consume` covers
/// now.
#[utoipa::path(post, path = "/v1/groups/{group}/members", operation_id = "join_group",
    tag = "groups",
    params(("group" = String, Path, description = "The group's name"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes this safe to repeat")),
    request_body(content = JoinGroup, description = "What to subscribe to", examples(
        ("by_name" = (summary = "One topic, for any pod of a deployment",
            value = json!({"topics": ["orders"]}))),
        ("static" = (summary = "All topics that match a pattern, for a pod with a stable name",
            value = json!({"topic_pattern": "^orders", "instance_id": "pod-1",
                "session_timeout_ms": 30000, "auto_offset_reset": "earliest"}))))),
    responses((status = 201, description = "Joined", body = JoinedGroup, example = json!({
        "member_id": MEMBER, "generation": 1, "assignment": assignment(),
        "heartbeat_interval_ms": 15000, "lease_expires_at": "2026-11-21T08:00:00.000Z"}))),
    security(("bearer" = ["group", "consume"])))]
pub async fn join_group(
    access: GroupAccess<Group>,
    _: AnswersJson,
    sent: KeyedBody<JoinGroup>,
) -> Result<(StatusCode, Json<JoinedGroup>), Error> {
    let key = sent.request_key(&format!("/v1/groups/{}/members", access.group))?;
    let join = sent.body.checked(access.grant.scopes.coverage(Word::Consume))?;
    for topic in &join.subscription.topics {
        access.grant.demand(Word::Consume, topic)?;
    }
    let joined = access.broker.join_group(access.tenant, &access.group, join, key).await?;
    Ok((StatusCode::CREATED, Json(joined.into())))
}

/// Send a heartbeat
///
/// Renews the lease, as every fetch does: a member needs heartbeats only if it does not fetch for
/// longer than its `heartbeat_interval_ms`. Returns, like a fetch, the partitions the member owns
/// and those to release. With the `generation` of such an answer it releases the partitions revoked
/// there; without it, none.
#[utoipa::path(post, path = "/v1/groups/{group}/members/{member_id}/heartbeat",
    operation_id = "heartbeat", tag = "groups",
    params(("group" = String, Path, description = "The group's name"),
        ("member_id" = String, Path, description = "The `member_id` of the join")),
    request_body(content = Heartbeat, description = "Optional", example = json!({})),
    responses((status = 200, description = "The member is still in the group", body = Membership,
        example = json!({"generation": 1, "assignment": assignment(), "revoked": []}))),
    security(("bearer" = ["group"])))]
pub async fn heartbeat(
    access: GroupAccess<Group>,
    MemberPath(member_id): MemberPath,
    _: AnswersJson,
    sent: JsonBody<Heartbeat>,
) -> Result<Json<Membership>, Error> {
    let mut errors = ValidationErrors::default();
    let shown = errors.count("/generation", sent.body.generation);
    errors.finish()?;
    let membership =
        access.broker.heartbeat(access.tenant, &access.group, &member_id, shown).await?;
    Ok(Json(membership.into()))
}

/// Leave a group
///
/// The member's partitions move to the other members at once and continue from the committed
/// offsets.
#[utoipa::path(delete, path = "/v1/groups/{group}/members/{member_id}",
    operation_id = "leave_group", tag = "groups",
    params(("group" = String, Path, description = "The group's name"),
        ("member_id" = String, Path, description = "The `member_id` of the join")),
    responses((status = 204, description = "The member has left")),
    security(("bearer" = ["group"])))]
pub async fn leave_group(
    access: GroupAccess<Group>,
    MemberPath(member_id): MemberPath,
    _: Query<NoParameters>,
) -> Result<StatusCode, Error> {
    access.broker.leave_group(access.tenant, &access.group, &member_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests;
