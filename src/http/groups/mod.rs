//! Groups: their committed offsets here, and in submodules their reset, members and administration.

pub mod admin;
pub mod fetch;
pub mod members;
pub mod reset;

use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::extract::{
    access::{Group, GroupAccess},
    body::KeyedBody,
    json::{AtMost, Object, elements, given},
    media::AnswersJson,
    query::{NoParameters, Query},
};
use crate::{
    broker::{Answer, Error},
    model::{
        Code, Name, Partition, ValidationErrors,
        group::{
            self, MAX_MEMBER_ID_BYTES, MAX_METADATA_BYTES, MAX_OFFSETS, Member, OffsetCommit,
            OffsetItem,
        },
    },
};

/// Offsets, or a cursor that stands for offsets.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1)]
pub struct CommitOffsets {
    /// The committing member, which must own the partitions. Without it, the group must have no
    /// members.
    #[schema(min_length = 1, max_length = 255)]
    member_id: Option<String>,
    /// Requires `member_id`: the newest generation the member has seen.
    #[schema(minimum = 0)]
    generation: Option<i64>,
    /// Members only, instead of `offsets`: the cursor that came with the processed records.
    cursor: Option<String>,
    /// The offsets to commit; if a partition occurs twice, the last one wins.
    #[schema(value_type = Option<Vec<OffsetToCommit>>, min_items = 1, max_items = 10000)]
    offsets: Option<AtMost<Object<OffsetToCommit>, MAX_OFFSETS>>,
}

/// The offset to commit in one partition.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OffsetToCommit {
    /// The topic's name.
    topic: String,
    /// The partition number, from 0.
    #[schema(minimum = 0, maximum = 2147483647)]
    partition: i64,
    /// The next offset to process: the last processed one plus 1.
    #[schema(minimum = 0)]
    offset: i64,
    /// Stored with the offset and returned with it; at most 4096 bytes.
    #[schema(max_length = 4096)]
    metadata: Option<String>,
    /// Not for members: commit only if this is the committed offset or, if null, nothing is
    /// committed yet.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, minimum = 0)]
    expected_offset: Option<Option<i64>>,
}

impl CommitOffsets {
    fn checked(self) -> Result<OffsetCommit, Error> {
        let mut errors = ValidationErrors::default();
        let by_member = self.member_id.is_some();
        let member = parse_member(self.member_id, self.generation, &mut errors);
        let mut items = Vec::new();
        match (self.offsets, &self.cursor) {
            (None, None) => errors.add("/offsets", "missing: give offsets or a cursor"),
            (Some(_), Some(_)) => errors.add("/cursor", "offsets and cursor exclude each other"),
            (None, Some(_)) if !by_member => {
                errors.add("/member_id", "a cursor requires member_id and generation")
            }
            (None, Some(_)) => {}
            (Some(sent), None) if sent.is_empty() => {
                errors.add("/offsets", format!("expected 1 to {MAX_OFFSETS} offsets"))
            }
            (sent, None) => {
                let sent = elements(&mut errors, "/offsets", sent, Code::PayloadTooLarge);
                for (index, Object(sent)) in sent.into_iter().enumerate() {
                    let at = format!("/offsets/{index}");
                    items.extend(sent.checked(&at, by_member, &mut errors));
                }
            }
        }
        errors.finish()?;
        Ok(match (self.cursor, member) {
            (Some(cursor), Some(member)) => OffsetCommit::Cursor { member, cursor },
            (_, member) => OffsetCommit::Items { member, items },
        })
    }
}

/// Requires `member_id` and `generation` together or not at all.
fn parse_member(
    member_id: Option<String>,
    generation: Option<i64>,
    errors: &mut ValidationErrors,
) -> Option<Member> {
    match (&member_id, generation) {
        (Some(_), None) => errors.add("/generation", "member_id requires generation"),
        (None, Some(_)) => errors.add("/member_id", "generation requires member_id"),
        _ => {}
    }
    let generation = errors.count("/generation", generation);
    // PostgreSQL's text has no U+0000
    let fits = |id: &str| (1..=MAX_MEMBER_ID_BYTES).contains(&id.len()) && !id.contains('\0');
    if member_id.as_deref().is_some_and(|id| !fits(id)) {
        let detail = format!("a member id must be 1 to {MAX_MEMBER_ID_BYTES} bytes without NUL");
        errors.add("/member_id", detail);
    }
    Some(Member { member_id: member_id?, generation: generation? })
}

impl OffsetToCommit {
    fn checked(
        self,
        at: &str,
        by_member: bool,
        errors: &mut ValidationErrors,
    ) -> Option<OffsetItem> {
        let topic = errors.name(&format!("{at}/topic"), Some(&self.topic));
        let partitions = 0..=i64::from(Partition::MAX);
        let partition = errors.range(&format!("{at}/partition"), Some(self.partition), partitions);
        let offset = errors.count(&format!("{at}/offset"), Some(self.offset));
        let expected_at = format!("{at}/expected_offset");
        if let Some(expected) = self.expected_offset {
            errors.count(&expected_at, expected);
            if by_member {
                errors.add(&expected_at, "not allowed in a member's commit");
            }
        }
        if let Some(why) = self.metadata.as_deref().and_then(unfit) {
            errors.add(&format!("{at}/metadata"), why);
        }
        Some(OffsetItem {
            topic: topic?,
            partition: Partition::try_from(partition?).ok()?,
            offset: offset?,
            metadata: self.metadata,
            expected_offset: self.expected_offset,
        })
    }
}

/// Says why this metadata cannot be stored.
fn unfit(metadata: &str) -> Option<String> {
    if metadata.len() > MAX_METADATA_BYTES {
        return Some(format!("at most {MAX_METADATA_BYTES} bytes are allowed"));
    }
    // PostgreSQL's text has none
    metadata.contains('\0').then(|| "U+0000 is not allowed".to_owned())
}

/// The committed offsets of a group, by topic and partition.
#[derive(Serialize, ToSchema)]
pub struct GroupOffsets {
    /// The group's name.
    group: String,
    /// One entry per partition.
    offsets: Vec<CommittedOffset>,
    /// True in the answer to a commit that had already been done, with the same `Idempotency-Key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
}

/// The committed offset of one partition.
#[derive(Serialize, ToSchema)]
pub struct CommittedOffset {
    /// The topic's name.
    topic: String,
    /// The partition number.
    partition: i32,
    /// The committed offset: the next one to process.
    offset: i64,
    /// The metadata committed with it; null if none.
    #[schema(required = true)]
    metadata: Option<String>,
}

impl GroupOffsets {
    fn new(group: &Name, offsets: Vec<group::CommittedOffset>) -> Self {
        let offset = |committed: group::CommittedOffset| CommittedOffset {
            topic: committed.topic.to_string(),
            partition: committed.partition,
            offset: committed.offset,
            metadata: committed.metadata,
        };
        let offsets = offsets.into_iter().map(offset).collect();
        Self { group: group.to_string(), offsets, duplicate: None }
    }
}

/// The example group, which has processed all records.
fn example() -> serde_json::Value {
    json!({"group": "billing", "offsets": [
        {"topic": "orders", "partition": 0, "offset": 2, "metadata": "worker-1"}]})
}

/// Commit offsets
///
/// Commits all of the offsets or, if one is refused, none. Creates the group if it does not exist.
/// With `expected_offset` it commits only over that offset, so that of two clients which process
/// the same records one learns that it is too late; without it, it overwrites any offset. A member
/// can commit only in partitions it owns and never moves back: a smaller offset than the committed
/// one changes nothing, and the answer has the greater one. Every topic needs `consume`.
#[utoipa::path(post, path = "/v1/groups/{group}/offsets", operation_id = "commit_group_offsets",
    tag = "groups",
    params(("group" = String, Path, description = "The group's name"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes this safe to repeat")),
    request_body(content = CommitOffsets, description = "The offsets to commit", examples(
        ("compare_and_set" = (summary = "Only if nothing is committed yet",
            value = json!({"offsets": [{"topic": "orders", "partition": 0, "offset": 2,
                "metadata": "worker-1", "expected_offset": null}]}))),
        ("unconditional" = (summary = "Over any committed offset",
            value = json!({"offsets": [{"topic": "orders", "partition": 0, "offset": 2,
                "metadata": "worker-1"}]}))),
        ("by_cursor" = (summary = "By a member: everything that a fetch returned",
            value = json!({"member_id": members::MEMBER, "generation": 1,
                "cursor": fetch::CURSOR}))))),
    responses((status = 200, description = "The offsets now committed in these partitions",
        body = GroupOffsets, example = json!(example()))),
    security(("bearer" = ["group", "consume"])))]
pub async fn commit_group_offsets(
    access: GroupAccess<Group>,
    _: AnswersJson,
    sent: KeyedBody<CommitOffsets>,
) -> Result<Json<GroupOffsets>, Error> {
    let group = &access.group;
    let key = sent.request_key(&format!("/v1/groups/{group}/offsets"))?;
    let commit = sent.body.checked()?;
    let Answer { value: offsets, is_replay } = access
        .broker
        .commit_offsets(access.tenant, group, commit, key, &access.grant.scopes)
        .await?;
    let duplicate = is_replay.then_some(true);
    Ok(Json(GroupOffsets { duplicate, ..GroupOffsets::new(group, offsets) }))
}

/// List committed offsets
///
/// Returns all offsets the group has committed in existing topics, as of now.
#[utoipa::path(get, path = "/v1/groups/{group}/offsets", operation_id = "list_group_offsets",
    tag = "groups",
    params(("group" = String, Path, description = "The group's name")),
    responses((status = 200, description = "The committed offsets", body = GroupOffsets,
        example = json!(example()))),
    security(("bearer" = ["group"])))]
pub async fn list_group_offsets(
    access: GroupAccess<Group>,
    _: AnswersJson,
    _: Query<NoParameters>,
) -> Result<Json<GroupOffsets>, Error> {
    let offsets = access.broker.group_offsets(access.tenant, &access.group).await?;
    Ok(Json(GroupOffsets::new(&access.group, offsets)))
}
