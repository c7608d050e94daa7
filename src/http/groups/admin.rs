//! Operating groups: list, describe, delete.

use std::collections::BTreeSet;

use axum::{Json, http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    broker::Error,
    http::extract::{
        access::{Access, Group, GroupAccess},
        list::{self, ListQuery, covered},
        media::AnswersJson,
        query::{NoParameters, Query},
    },
    model::{
        Name, Partition, Timestamp,
        group::view::{GroupDescription, GroupSummary, MemberDescription, PlaceDescription},
        topic::Listed,
    },
};

/// A group as lists show it.
#[derive(Serialize, ToSchema)]
pub struct GroupItem {
    /// Its name.
    group: String,
    /// Grows whenever partitions change hands.
    generation: i64,
    /// How many members it has.
    member_count: i32,
    #[schema(value_type = WhereToBegin)]
    auto_offset_reset: &'static str,
    /// When it was made.
    #[schema(format = DateTime)]
    created_at: String,
}

/// Where the group begins in a partition in which it has committed nothing, or whose committed offset
/// was trimmed away: at the first record there is, at the next one to come, or nowhere (an error).
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "only describes")]
pub enum WhereToBegin {
    Earliest,
    Latest,
    Error,
}

/// A page of groups, by name.
#[derive(Serialize, ToSchema)]
pub struct GroupList {
    /// At most `limit` of them.
    groups: Vec<GroupItem>,
    /// Where the next page starts; null at the end.
    #[schema(required = true)]
    next_after: Option<String>,
}

/// A group with its members and partitions, as of one instant.
#[derive(Serialize, ToSchema)]
pub struct GroupState {
    /// Its name.
    group: String,
    /// Grows whenever partitions change hands.
    generation: i64,
    #[schema(value_type = WhereToBegin)]
    auto_offset_reset: &'static str,
    /// When it was made.
    #[schema(format = DateTime)]
    created_at: String,
    /// In the order in which they joined.
    members: Vec<MemberItem>,
    /// Those it has subscribed to or has committed in, by topic and partition.
    partitions: Vec<PlaceItem>,
}

/// A member of a group.
#[derive(Serialize, ToSchema)]
pub struct MemberItem {
    /// Its id.
    member_id: String,
    /// Its stable name; null: it has none.
    #[schema(required = true)]
    instance_id: Option<String>,
    /// The topics it subscribes to by name.
    topics: Vec<String>,
    /// The pattern it subscribes with; null: none.
    #[schema(required = true)]
    topic_pattern: Option<String>,
    /// How long its lease is.
    session_timeout_ms: i64,
    /// When it joined.
    #[schema(format = DateTime)]
    joined_at: String,
    /// When it is gone, unless it calls before.
    #[schema(format = DateTime)]
    lease_expires_at: String,
    /// The partitions it owns.
    assignment: Vec<OwnedPartitions>,
}

/// Partitions of a topic that a member owns.
#[derive(Serialize, ToSchema)]
pub struct OwnedPartitions {
    /// The topic's name.
    topic: String,
    /// Their numbers.
    partitions: Vec<i32>,
}

/// A partition in a group.
#[derive(Serialize, ToSchema)]
pub struct PlaceItem {
    /// The topic's name.
    topic: String,
    /// The partition's number.
    partition: i32,
    /// The next offset to process; null: nothing is committed yet.
    #[schema(required = true)]
    committed_offset: Option<i64>,
    /// What was committed with it; null: nothing.
    #[schema(required = true)]
    metadata: Option<String>,
    /// When it was committed.
    #[schema(required = true, format = DateTime)]
    committed_at: Option<String>,
    /// The first offset that can be read.
    log_start_offset: i64,
    /// The next offset to be given.
    high_watermark: i64,
    /// How many records the group has still to process: the high watermark less the committed offset
    /// or, where that is missing or trimmed away, less where the group would begin. Null: it would
    /// begin nowhere, as its `auto_offset_reset` is `error`.
    #[schema(required = true)]
    lag: Option<i64>,
    /// The member that owns it; null: none.
    #[schema(required = true)]
    member_id: Option<String>,
    /// The generation in which the member got it.
    #[schema(required = true)]
    owned_since: Option<i64>,
    /// When the member got it.
    #[schema(required = true, format = DateTime)]
    owned_at: Option<String>,
    /// Another member, that gets it once its owner lets go; null: none.
    #[schema(required = true)]
    assigned_to: Option<String>,
    /// The prepared transaction that is to commit an offset here: nobody else may until it ends.
    #[schema(required = true)]
    pinned_by: Option<String>,
    /// Since when.
    #[schema(required = true, format = DateTime)]
    pinned_at: Option<String>,
}

impl From<GroupSummary> for GroupItem {
    fn from(summary: GroupSummary) -> Self {
        Self {
            group: summary.group.to_string(),
            generation: summary.generation,
            member_count: summary.member_count,
            auto_offset_reset: summary.auto_offset_reset.as_str(),
            created_at: summary.created_at.to_string(),
        }
    }
}

impl From<GroupDescription> for GroupState {
    fn from(described: GroupDescription) -> Self {
        Self {
            group: described.group.to_string(),
            generation: described.generation,
            auto_offset_reset: described.auto_offset_reset.as_str(),
            created_at: described.created_at.to_string(),
            members: described.members.into_iter().map(MemberItem::from).collect(),
            partitions: described.places.into_iter().map(PlaceItem::from).collect(),
        }
    }
}

impl From<MemberDescription> for MemberItem {
    fn from(member: MemberDescription) -> Self {
        let owned = |(topic, partitions): (Name, BTreeSet<Partition>)| OwnedPartitions {
            topic: topic.to_string(),
            partitions: partitions.into_iter().collect(),
        };
        Self {
            member_id: member.member_id,
            instance_id: member.instance_id,
            topics: member.topics,
            topic_pattern: member.topic_pattern,
            session_timeout_ms: member.session_timeout_ms,
            joined_at: member.joined_at.to_string(),
            lease_expires_at: member.lease_expires_at.to_string(),
            assignment: member.assignment.into_iter().map(owned).collect(),
        }
    }
}

impl From<PlaceDescription> for PlaceItem {
    fn from(place: PlaceDescription) -> Self {
        let text = |instant: Option<Timestamp>| instant.map(|instant| instant.to_string());
        let (owned_since, owned_at) =
            place.owner.as_ref().map_or((None, None), |owner| (Some(owner.since), owner.at));
        let pinned_at = place.pin.as_ref().and_then(|pin| pin.since);
        Self {
            topic: place.topic.to_string(),
            partition: place.partition,
            committed_offset: place.committed_offset,
            metadata: place.metadata,
            committed_at: text(place.committed_at),
            log_start_offset: place.log_start_offset,
            high_watermark: place.high_watermark,
            lag: place.lag,
            member_id: place.owner.map(|owner| owner.member_id),
            owned_since,
            owned_at: text(owned_at),
            assigned_to: place.assigned_to,
            pinned_by: place.pin.map(|pin| pin.transaction_id.to_string()),
            pinned_at: text(pinned_at),
        }
    }
}

/// List groups
///
/// By name, page by page; only those that the token's scopes cover.
#[utoipa::path(get, path = "/v1/groups", operation_id = "list_groups", tag = "groups",
    params(ListQuery),
    responses((status = 200, description = "A page of groups", body = GroupList,
        example = json!({"groups": [{"group": "billing", "generation": 0, "member_count": 0,
            "auto_offset_reset": "earliest", "created_at": "2026-11-21T08:00:00.000Z"}],
            "next_after": null}))),
    security(("bearer" = ["group"])))]
pub async fn list_groups(
    access: Access<Group>,
    _: AnswersJson,
    Query(query): Query<ListQuery>,
) -> Result<Response, Error> {
    let page = query.page()?;
    let look = |page| access.broker.groups(access.tenant, page);
    let name = |group: &GroupSummary| group.group.clone();
    let Listed { items, next_after } =
        covered(&page, look, name, |name| access.covers(name)).await?;
    let groups = items.into_iter().map(GroupItem::from).collect();
    let next = next_after.clone();
    let list = GroupList { groups, next_after };
    Ok(list::answer(list, "/v1/groups?", page.limit, next.as_deref()))
}

/// Describe a group
///
/// Its members with what they own, and every partition it has subscribed to or has committed in: what
/// is committed, how far behind that is, who owns it since when, and which prepared transaction holds
/// it. All of it as of one instant, now.
#[utoipa::path(get, path = "/v1/groups/{group}", operation_id = "get_group", tag = "groups",
    params(("group" = String, Path, description = "The group's name")),
    responses((status = 200, description = "The group", body = GroupState,
        example = json!({"group": "billing", "generation": 0, "auto_offset_reset": "earliest",
            "created_at": "2026-11-21T08:00:00.000Z", "members": [],
            "partitions": [{"topic": "orders", "partition": 0, "committed_offset": 2,
                "metadata": "worker-1", "committed_at": "2026-11-21T08:00:00.000Z",
                "log_start_offset": 0, "high_watermark": 2, "lag": 0, "member_id": null,
                "owned_since": null, "owned_at": null, "assigned_to": null, "pinned_by": null,
                "pinned_at": null}]}))),
    security(("bearer" = ["group"])))]
pub async fn get_group(
    access: GroupAccess<Group>,
    _: AnswersJson,
    _: Query<NoParameters>,
) -> Result<Json<GroupState>, Error> {
    Ok(Json(access.broker.group(access.tenant, &access.group).await?.into()))
}

/// Delete a group
///
/// With its offsets, for ever; only while it has no members, and not while a prepared transaction is
/// to commit in it. A group made again under this name is another one: it begins where a new group
/// does, and cursors of the former are invalid.
#[utoipa::path(delete, path = "/v1/groups/{group}", operation_id = "delete_group", tag = "groups",
    params(("group" = String, Path, description = "The group's name")),
    responses((status = 204, description = "The group is gone")),
    security(("bearer" = ["group"])))]
pub async fn delete_group(
    access: GroupAccess<Group>,
    _: Query<NoParameters>,
) -> Result<StatusCode, Error> {
    access.broker.delete_group(access.tenant, &access.group).await?;
    Ok(StatusCode::NO_CONTENT)
}
