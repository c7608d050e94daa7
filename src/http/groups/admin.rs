//! Administration of groups: list, describe, delete.

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
    },
};

/// A group in a list.
#[derive(Serialize, ToSchema)]
pub struct GroupItem {
    /// The group's name.
    group: String,
    /// Grows whenever partitions are reassigned.
    generation: i64,
    /// The number of members.
    member_count: i32,
    #[schema(value_type = WhereToBegin)]
    auto_offset_reset: &'static str,
    /// When it was created.
    #[schema(format = DateTime)]
    created_at: String,
}

/// Where the group starts in a partition without a committed offset, or whose committed offset was
/// trimmed: at the log start (`earliest`), at the high watermark (`latest`), or not at all, which
/// is an error (`error`).
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
    /// At most `limit` groups.
    groups: Vec<GroupItem>,
    /// The `after` of the next page; null on the last page.
    #[schema(required = true)]
    next_after: Option<String>,
}

/// A group with its members and partitions, as of one instant.
#[derive(Serialize, ToSchema)]
pub struct GroupState {
    /// The group's name.
    group: String,
    /// Grows whenever partitions are reassigned.
    generation: i64,
    #[schema(value_type = WhereToBegin)]
    auto_offset_reset: &'static str,
    /// When it was created.
    #[schema(format = DateTime)]
    created_at: String,
    /// The members, in the order in which they joined.
    members: Vec<MemberItem>,
    /// The partitions it has subscribed to or committed in, by topic and partition.
    partitions: Vec<PlaceItem>,
}

/// A member of a group.
#[derive(Serialize, ToSchema)]
pub struct MemberItem {
    /// The member's id.
    member_id: String,
    /// Its stable name; null if it has none.
    #[schema(required = true)]
    instance_id: Option<String>,
    /// The topics it subscribes to by name.
    topics: Vec<String>,
    /// The pattern it subscribes with; null if none.
    #[schema(required = true)]
    topic_pattern: Option<String>,
    /// The duration of its lease.
    session_timeout_ms: i64,
    /// When it joined.
    #[schema(format = DateTime)]
    joined_at: String,
    /// When its lease expires unless it calls before.
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
    /// The partition numbers.
    partitions: Vec<i32>,
}

/// A partition of a group.
#[derive(Serialize, ToSchema)]
pub struct PlaceItem {
    /// The topic's name.
    topic: String,
    /// The partition number.
    partition: i32,
    /// The committed offset: the next one to process; null if nothing is committed yet.
    #[schema(required = true)]
    committed_offset: Option<i64>,
    /// The metadata committed with the offset; null if none.
    #[schema(required = true)]
    metadata: Option<String>,
    /// When it was committed.
    #[schema(required = true, format = DateTime)]
    committed_at: Option<String>,
    /// The first offset that can be read.
    log_start_offset: i64,
    /// The next offset to be assigned.
    high_watermark: i64,
    /// The number of records the group still has to process: the high watermark minus the committed
    /// offset or, where that is missing or trimmed, minus the offset the group would start at. Null
    /// if it would not start, as its `auto_offset_reset` is `error`.
    #[schema(required = true)]
    lag: Option<i64>,
    /// The member that owns the partition; null if none.
    #[schema(required = true)]
    member_id: Option<String>,
    /// The generation in which the member got the partition.
    #[schema(required = true)]
    owned_since: Option<i64>,
    /// When the member got the partition.
    #[schema(required = true, format = DateTime)]
    owned_at: Option<String>,
    /// The member that gets the partition once its owner releases it; null if none.
    #[schema(required = true)]
    assigned_to: Option<String>,
    /// The prepared transaction that will commit an offset here; nobody else can commit until it
    /// ends.
    #[schema(required = true)]
    pinned_by: Option<String>,
    /// When that transaction was prepared.
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
/// Returns groups by name, page by page; only those that the token's scopes cover.
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
    let after = |group: &GroupSummary| group.group.to_string();
    let covers = |group: &GroupSummary| access.covers(&group.group);
    let listed = covered(&page, look, after, covers).await?;
    Ok(list::answer(listed, "/v1/groups?", page.limit, |groups, next_after| GroupList {
        groups,
        next_after,
    }))
}

/// Describe a group
///
/// Returns the members with the partitions they own, and every partition the group has subscribed
/// to or committed in: the committed offset, the lag, the owner and since when, and the prepared
/// transaction that holds it. All of it is as of one instant.
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
/// Deletes the group and its offsets permanently. The group must have no members, and no prepared
/// transaction that will commit in it. A new group with the same name is a different group: it
/// starts where a new group does, and old cursors are invalid.
#[utoipa::path(delete, path = "/v1/groups/{group}", operation_id = "delete_group", tag = "groups",
    params(("group" = String, Path, description = "The group's name")),
    responses((status = 204, description = "The group is deleted")),
    security(("bearer" = ["group"])))]
pub async fn delete_group(
    access: GroupAccess<Group>,
    _: Query<NoParameters>,
) -> Result<StatusCode, Error> {
    access.broker.delete_group(access.tenant, &access.group).await?;
    Ok(StatusCode::NO_CONTENT)
}
