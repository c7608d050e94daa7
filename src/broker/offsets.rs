//! Committed offsets of groups, outside of transactions: committed whole or not at all, and shown.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::try_join_all;

use super::{Broker, Error};
use crate::{
    model::{
        Code, LogId, Name, Offset, Partition, TenantId,
        group::{CommittedOffset, Member, OffsetCommit, OffsetItem},
    },
    rules::{
        Refusal,
        offsets::{Asked, Place, Refused, Right, Row, Verdict, judge_all},
    },
    store::{self, Connection},
    telemetry,
};

/// How often a commit starts again when a topic has vanished under it.
const COMMIT_ATTEMPTS: usize = 5;
/// How many partitions a refusal names.
const NAMED_PARTITIONS: usize = 20;

/// Why one attempt of a commit ended without a result.
enum Stop {
    Failed(Error),
    /// A log has vanished since its name was resolved.
    Vanished,
}

impl From<store::Error> for Stop {
    fn from(error: store::Error) -> Self {
        Stop::Failed(error.into())
    }
}

/// What has been committed, and whether that changed anything.
struct Committed {
    offsets: Vec<CommittedOffset>,
    is_new: bool,
}

impl Broker {
    /// Answers what is committed now where something was to be committed, by topic and partition.
    pub async fn commit_offsets(
        &self,
        tenant: TenantId,
        group: &Name,
        commit: OffsetCommit,
    ) -> Result<Vec<CommittedOffset>, Error> {
        let committed = self.commit_whole(tenant, group, commit).await;
        let outcome = match &committed {
            Ok(Committed { is_new: true, .. }) => "committed",
            Ok(_) => "unchanged",
            Err(error) if error.code.status() < 500 => "refused",
            Err(_) => "failed",
        };
        metrics::counter!(telemetry::OFFSET_COMMITS_TOTAL, "outcome" => outcome).increment(1);
        if let Err(error) = &committed {
            count_fenced("plain", error);
        }
        Ok(committed?.offsets)
    }

    async fn commit_whole(
        &self,
        tenant: TenantId,
        group: &Name,
        OffsetCommit { member, items }: OffsetCommit,
    ) -> Result<Committed, Error> {
        // the last item for a partition wins
        let key = |item: OffsetItem| ((item.topic.clone(), item.partition), item);
        let items: BTreeMap<_, _> = items.into_iter().map(key).collect();
        let commit = OffsetCommit { member, items: items.into_values().collect() };
        let (group, commit) = (group.clone(), Arc::new(commit));
        for attempt in 0..COMMIT_ATTEMPTS {
            let items = commit.items.iter().map(|i| (&i.topic, i.partition, i.offset));
            let Some(logs) = self.logs_of_offsets(tenant, items, attempt > 0).await? else {
                continue;
            };
            let (group, commit) = (group.clone(), commit.clone());
            let write = self.store.transaction(move |connection| {
                Box::pin(async move { write(connection, tenant, &group, &commit, &logs).await })
            });
            match write.await {
                Ok(committed) => return Ok(committed),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Vanished) => {}
            }
        }
        Err(Error::unavailable(
            "Topics were deleted and made again meanwhile. Nothing was changed.",
        ))
    }

    /// The logs of offsets (by topic) that lie within them as of now. None: a log has vanished since
    /// its name was resolved. `anew`: that has happened.
    pub(super) async fn logs_of_offsets(
        &self,
        tenant: TenantId,
        offsets: impl Iterator<Item = (&Name, Partition, Offset)> + Clone,
        anew: bool,
    ) -> Result<Option<Vec<LogId>>, Error> {
        let (mut logs, mut former) = (Vec::new(), None);
        for (topic, partition, _) in offsets.clone() {
            let is_next = former.replace(topic) != Some(topic);
            let found = self.topics.partition(tenant, topic, partition, anew && is_next).await?;
            logs.push(found.logs[partition as usize]);
        }
        let looks = try_join_all(logs.iter().map(|log| self.looks.look(tenant, *log))).await?;
        for ((topic, partition, offset), seen) in offsets.zip(looks) {
            let Some(seen) = seen else { return Ok(None) };
            let (log_start_offset, high_watermark) = (seen.log_start_offset, seen.high_watermark);
            if offset > high_watermark {
                let detail = format!(
                    "Offset {offset} lies above the high watermark {high_watermark} of \
                     {topic}/{partition}: nothing is there to go on from. Nothing was committed."
                );
                return Err(Error::new(Code::OffsetOutOfRange, detail)
                    .fact("log_start_offset", log_start_offset)
                    .fact("high_watermark", high_watermark));
            }
        }
        Ok(Some(logs))
    }

    /// All that the group has committed, by topic and partition, as of now.
    pub async fn group_offsets(
        &self,
        tenant: TenantId,
        group: &Name,
    ) -> Result<Vec<CommittedOffset>, Error> {
        let name = group.clone();
        let list = self.store.run(move |connection| {
            Box::pin(async move { store::offsets::list(connection, tenant, &name).await })
        });
        list.await?.ok_or_else(|| Error::group_not_found(group))
    }
}

/// Counts a refused commit, if it was of a member that had lost what it was to commit.
pub(super) fn count_fenced(form: &'static str, refused: &Error) {
    if matches!(refused.code, Code::UnknownMember | Code::IllegalGeneration) {
        metrics::counter!(telemetry::FENCED_COMMITS_TOTAL, "form" => form).increment(1);
    }
}

/// `logs`: one an item.
async fn write(
    connection: &mut Connection,
    tenant: TenantId,
    group: &Name,
    commit: &OffsetCommit,
    logs: &[LogId],
) -> Result<Committed, Stop> {
    let place = |log_id: &LogId| Place { group: group.clone(), log_id: *log_id };
    let places: Vec<Place> = logs.iter().map(place).collect();
    let mut rows = store::offsets::lock(connection, tenant, &places).await?;
    let facts = store::offsets::groups(connection, tenant, std::slice::from_ref(group)).await?;
    let rows: Option<Vec<Row>> = places.iter().map(|place| rows.remove(place)).collect();
    let (Some(rows), Some(facts)) = (rows, facts.get(group)) else { return Err(Stop::Vanished) };
    let member = commit.member.as_ref();
    let asked: Vec<Asked<'_>> = commit
        .items
        .iter()
        .zip(&rows)
        .map(|(item, row)| Asked { row, right: right(member, item), offset: item.offset })
        .collect();
    let verdicts = judge_all(&asked, facts).map_err(|refused| refusal(refused, &commit.items))?;
    let (mut commits, mut offsets) = (Vec::new(), Vec::new());
    for (((item, row), place), verdict) in commit.items.iter().zip(rows).zip(places).zip(verdicts) {
        let (offset, metadata) = match (verdict, row.committed_offset) {
            (Verdict::Keep, Some(offset)) => (offset, row.metadata),
            _ => (item.offset, item.metadata.clone()),
        };
        if verdict == Verdict::Commit {
            commits.push(store::offsets::Commit { place, offset, metadata: metadata.clone() });
        }
        let (topic, partition) = (item.topic.clone(), item.partition);
        offsets.push(CommittedOffset { topic, partition, offset, metadata });
    }
    if !store::offsets::commit(connection, tenant, &commits).await? {
        return Err(Stop::Vanished);
    }
    Ok(Committed { offsets, is_new: !commits.is_empty() })
}

fn right<'a>(member: Option<&'a Member>, item: &OffsetItem) -> Right<'a> {
    match (member, item.expected_offset) {
        (Some(member), _) => Right::Member(member),
        (None, Some(expected)) => Right::Expected(expected),
        (None, None) => Right::Free,
    }
}

/// What was refused, by name where that tells more.
fn refusal(refused: Refused, items: &[OffsetItem]) -> Stop {
    let Refused { refusal, items: concerned } = refused;
    let named = concerned.iter().take(NAMED_PARTITIONS).filter_map(|index| items.get(*index));
    let named: Vec<_> = named.map(|item| format!("{}/{}", item.topic, item.partition)).collect();
    let more = match concerned.len().saturating_sub(NAMED_PARTITIONS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = named.join(", ") + &more;
    let is_of_partitions =
        matches!(refusal, Refusal::IllegalGeneration { .. } | Refusal::OffsetCommitConflict { .. });
    let mut error = Error::from(refusal);
    if is_of_partitions {
        error.detail = format!("{named}: {} Nothing was committed.", error.detail);
    }
    Stop::Failed(error)
}
