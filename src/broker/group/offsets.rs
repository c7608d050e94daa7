//! Offset commits outside of transactions, all or nothing, and the list of committed offsets.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;

use crate::{
    broker::{
        Answer, Broker, Error,
        idempotency::{Begun, IdempotentCall, count_replay},
        quotas::{self, Quota},
        read::watermarks::Watermarks,
        retry,
    },
    model::{
        Code, LogId, Name, Partition, Scopes, TenantId,
        cursor::Position,
        dedup::RequestKey,
        group::{CommittedOffset, Member, OffsetCommit, OffsetItem},
    },
    rules::{
        Refusal,
        access::check_consume,
        group::offsets::{
            OffsetPlace, OffsetRow, OffsetVerdict, Refused, RequestedOffset, Right, judge_all,
        },
    },
    store::{self, Connection},
    telemetry,
};

/// Maximum number of partitions in a refusal.
const NAMED_PARTITIONS: usize = 20;

type Stop = retry::Stop<CommitResult>;

/// The committed offsets, and whether the commit changed anything.
struct CommitResult {
    offsets: Answer<Vec<CommittedOffset>>,
    is_new: bool,
}

impl CommitResult {
    fn before(offsets: Vec<CommittedOffset>) -> Self {
        count_replay("offsets");
        Self { offsets: Answer { value: offsets, is_replay: true }, is_new: false }
    }
}

impl Broker {
    /// Returns the offsets now committed in these partitions, by topic and partition. `key` makes
    /// the commit idempotent.
    pub async fn commit_offsets(
        &self,
        tenant: TenantId,
        group: &Name,
        commit: OffsetCommit,
        key: Option<RequestKey>,
        scopes: &Scopes,
    ) -> Result<Answer<Vec<CommittedOffset>>, Error> {
        let committed = self.commit_once(tenant, group, &commit, key, scopes).await;
        let outcome = match &committed {
            Ok(CommitResult { is_new: true, .. }) => "committed",
            Ok(_) => "unchanged",
            Err(error) if error.code.status() < 500 => "refused",
            Err(_) => "failed",
        };
        metrics::counter!(telemetry::OFFSET_COMMITS_TOTAL, "outcome" => outcome).increment(1);
        if let Err(error) = &committed {
            count_fenced("plain", error);
        }
        let committed = committed?;
        if let OffsetCommit::Cursor { member, cursor } = &commit {
            self.let_go_with(tenant, group, member, cursor).await;
        }
        Ok(committed.offsets)
    }

    async fn commit_once(
        &self,
        tenant: TenantId,
        group: &Name,
        commit: &OffsetCommit,
        key: Option<RequestKey>,
        scopes: &Scopes,
    ) -> Result<CommitResult, Error> {
        if let OffsetCommit::Items { items, .. } = commit {
            items.iter().try_for_each(|item| check_consume(scopes, &item.topic))?;
        }
        let once = match self.begin_once(tenant, key).await? {
            Begun::Replay(offsets) => return Ok(CommitResult::before(offsets)),
            Begun::Fresh(once) => once,
        };
        let settings = self.settings.of(tenant).await?;
        let quota = self.group_quota(tenant, &settings, group).await?;
        // all with a key wait for the group's row
        let _lock = match once.is_keyed() {
            true => Some(self.row_locks.take(tenant, Some(group)).await),
            false => None,
        };
        let committed = self.retry(tenant, |attempt| async move {
            let wanted = self.wanted(tenant, group, commit, scopes, attempt > 0).await?;
            let wanted = self.within_logs(tenant, wanted).await?;
            let group = group.clone();
            let write = self.store.of(tenant).transaction(async move |connection| {
                write(connection, tenant, &group, wanted, quota, once).await
            });
            write.await
        });
        committed.await?.ok_or_else(|| {
            Error::unavailable(
                "Topics were deleted and created again in the meantime. Nothing was changed.",
            )
        })
    }

    /// The offsets to commit, by topic and partition. `refresh`: a log was deleted after its name
    /// was resolved.
    async fn wanted(
        &self,
        tenant: TenantId,
        group: &Name,
        commit: &OffsetCommit,
        scopes: &Scopes,
        refresh: bool,
    ) -> Result<Vec<Wanted>, Error> {
        match commit {
            OffsetCommit::Items { member, items } => {
                // the last item for a partition wins
                let key = |item: &OffsetItem| ((item.topic.clone(), item.partition), item.clone());
                let items: BTreeMap<_, _> = items.iter().map(key).collect();
                let (mut wanted, mut former) = (Vec::with_capacity(items.len()), None);
                for ((topic, partition), item) in items {
                    let is_next = former.replace(topic.clone()).as_ref() != Some(&topic);
                    let refresh = refresh && is_next;
                    let found = self.topics.partition(tenant, &topic, partition, refresh).await?;
                    let log_id = found.logs[partition as usize];
                    let right = match (member, item.expected_offset) {
                        (Some(member), _) => Right::Member(member.clone()),
                        (None, Some(expected)) => Right::Expected(expected),
                        (None, None) => Right::Free,
                    };
                    wanted.push(Wanted { log_id, item, right, by_cursor: false });
                }
                Ok(wanted)
            }
            OffsetCommit::Cursor { member, cursor } => {
                let cursor = self.cursor(tenant, group, member, cursor, "/cursor").await?;
                let positions = cursor.positions;
                let logs = positions.iter().map(|position| position.log_id).collect();
                let names = self.names.of(tenant, logs).await?;
                names.values().try_for_each(|(topic, _)| check_consume(scopes, topic))?;
                let wanted = positions.into_iter().filter_map(|position| {
                    let Position { log_id, owned_since: generation, offset, .. } = position;
                    // where a topic is gone a cursor has nothing to say any more
                    let (topic, partition) = names.get(&log_id)?.clone();
                    let (metadata, expected_offset) = (None, None);
                    let item = OffsetItem { topic, partition, offset, metadata, expected_offset };
                    let right = Right::Member(Member { generation, ..member.clone() });
                    Some(Wanted { log_id, item, right, by_cursor: true })
                });
                let mut wanted: Vec<Wanted> = wanted.collect();
                wanted.sort_by(|one, other| one.place().cmp(&other.place()));
                Ok(wanted)
            }
        }
    }

    /// Checks that all offsets are within their logs.
    async fn within_logs(
        &self,
        tenant: TenantId,
        wanted: Vec<Wanted>,
    ) -> Result<Vec<Wanted>, Stop> {
        let looks = wanted.iter().map(|wanted| self.watermarks.read(tenant, wanted.log_id));
        let looks = try_join_all(looks).await?;
        let mut within = Vec::with_capacity(wanted.len());
        for (wanted, seen) in wanted.into_iter().zip(looks) {
            let OffsetItem { topic, partition, offset, .. } = &wanted.item;
            let Some(Watermarks { log_start_offset, high_watermark, .. }) = seen else {
                if wanted.by_cursor {
                    continue;
                }
                // its log was deleted after its name was resolved
                return Err(Stop::Again);
            };
            if *offset > high_watermark {
                let detail = format!(
                    "Offset {offset} exceeds the high watermark {high_watermark} of \
                     {topic}/{partition}. Nothing was committed."
                );
                let error = Error::new(Code::OffsetOutOfRange, detail)
                    .fact("log_start_offset", log_start_offset)
                    .fact("high_watermark", high_watermark);
                return Err(error.into());
            }
            within.push(wanted);
        }
        Ok(within)
    }

    /// All offsets that the group has committed, by topic and partition, as of now.
    pub async fn group_offsets(
        &self,
        tenant: TenantId,
        group: &Name,
    ) -> Result<Vec<CommittedOffset>, Error> {
        let name = group.clone();
        let list = self.store.of(tenant).run(async move |connection| {
            store::group::offsets::list(connection, tenant, &name).await
        });
        list.await?.ok_or_else(|| Error::group_not_found(group))
    }
}

/// An offset to commit, with the right to commit it.
struct Wanted {
    log_id: LogId,
    item: OffsetItem,
    right: Right,
    by_cursor: bool,
}

impl Wanted {
    fn place(&self) -> (&Name, Partition) {
        (&self.item.topic, self.item.partition)
    }
}

/// Counts a refused commit if its member had lost the partition.
pub(in crate::broker) fn count_fenced(form: &'static str, refused: &Error) {
    if matches!(refused.code, Code::UnknownMember | Code::IllegalGeneration) {
        metrics::counter!(telemetry::FENCED_COMMITS_TOTAL, "form" => form).increment(1);
    }
}

/// Creates the group where its row is needed before its offsets' are: for a key, and to be counted.
async fn prepare(
    connection: &mut Connection,
    tenant: TenantId,
    group: &Name,
    quota: Option<Quota>,
    once: IdempotentCall,
) -> Result<IdempotentCall, Stop> {
    let held = quotas::hold(quota, connection, tenant).await?;
    let mut is_new = false;
    if once.is_keyed() || held.is_some() {
        is_new = store::group::make(connection, tenant, group).await?;
        // deleted since it was made
        let found = store::group::admin::hold(connection, tenant, group).await?;
        found.ok_or(Stop::Again)?;
    }
    let once = match once.look_up(connection, tenant).await? {
        Begun::Replay(offsets) => {
            return Err(Stop::Done(Box::new(CommitResult::before(offsets))));
        }
        Begun::Fresh(once) => once,
    };
    if let Some(held) = held.filter(|_| is_new) {
        held.check(connection, tenant).await?;
    }
    Ok(once)
}

async fn write(
    connection: &mut Connection,
    tenant: TenantId,
    group: &Name,
    wanted: Vec<Wanted>,
    quota: Option<Quota>,
    once: IdempotentCall,
) -> Result<CommitResult, Stop> {
    let once = prepare(connection, tenant, group, quota, once).await?;
    let place = |wanted: &Wanted| OffsetPlace { group: group.clone(), log_id: wanted.log_id };
    let places: Vec<OffsetPlace> = wanted.iter().map(place).collect();
    let mut rows = store::group::offsets::lock(connection, tenant, &places).await?;
    let members = wanted.iter().filter_map(|wanted| match &wanted.right {
        Right::Member(member) => Some(member.member_id.as_str()),
        Right::Expected(_) | Right::Free => None,
    });
    let (groups, members) = (std::slice::from_ref(group), members.collect());
    let facts = store::group::offsets::groups(connection, tenant, groups, &members).await?;
    let rows: Option<Vec<OffsetRow>> = places.iter().map(|place| rows.remove(place)).collect();
    let (Some(rows), Some(facts)) = (rows, facts.get(group)) else { return Err(Stop::Again) };
    let asked: Vec<RequestedOffset<'_>> = wanted
        .iter()
        .zip(&rows)
        .map(|(wanted, row)| RequestedOffset {
            row,
            right: &wanted.right,
            offset: wanted.item.offset,
        })
        .collect();
    let verdicts = judge_all(&asked, facts).map_err(|refused| refusal(refused, &wanted))?;
    let (mut commits, mut offsets) = (Vec::new(), Vec::new());
    for (((wanted, row), place), verdict) in wanted.into_iter().zip(rows).zip(places).zip(verdicts)
    {
        let OffsetItem { topic, partition, offset, metadata, .. } = wanted.item;
        let (offset, metadata) = match (verdict, row.committed_offset) {
            (OffsetVerdict::Keep, Some(committed)) => (committed, row.metadata),
            _ => {
                // where a group has no members every commit shows that it is in use
                let by_member = matches!(wanted.right, Right::Member(_));
                let is_new = row.committed_offset != Some(offset) || row.metadata != metadata;
                if is_new || !by_member {
                    let metadata = metadata.clone();
                    commits.push(store::group::offsets::OffsetWrite { place, offset, metadata });
                }
                (offset, metadata)
            }
        };
        offsets.push(CommittedOffset { topic, partition, offset, metadata });
    }
    if !store::group::offsets::commit(connection, tenant, &commits).await? {
        return Err(Stop::Again);
    }
    once.remember(connection, tenant, &offsets).await?;
    Ok(CommitResult { offsets: Answer::new(offsets), is_new: !commits.is_empty() })
}

/// The refusal, with partition names where they help.
fn refusal(refused: Refused, wanted: &[Wanted]) -> Stop {
    let Refused { refusal, items: concerned } = refused;
    let named = concerned.iter().take(NAMED_PARTITIONS).filter_map(|index| wanted.get(*index));
    let named: Vec<_> = named.map(|w| format!("{}/{}", w.item.topic, w.item.partition)).collect();
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
