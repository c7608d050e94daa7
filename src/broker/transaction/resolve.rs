//! Resolves a call: names to ids, records to partitions, and everything else that needs no lock.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use crate::{
    broker::{
        Broker, Error,
        append::{batch::Lines, dedup, place, too_large},
        memory_budget::Held,
    },
    model::{
        Digest, Epoch, LogId, Name, Partition, ProducerId, Scopes, Sequence, TenantId, TopicId,
        Word,
        append::Scope,
        cursor::Position,
        settings::Key,
        transaction::{AppendItem, CommitRight, OffsetItem, appends_digest},
    },
    rules::{
        self, Refusal,
        access::check_consume,
        append::{Request, RequestPart, dedup::Dedup},
        group::offsets::{Claimed, OffsetPlace},
        transaction::record_ids,
    },
    store::transaction::staging::{self, Spread},
};

pub struct ResolvedRequest {
    /// In the order of the items, then of each partition's first record.
    pub parts: Vec<(RequestPart, Lines)>,
    /// The record ids of each part, in staged form.
    pub ids: Vec<Option<Vec<u8>>>,
    /// The digest of each part.
    pub topics: Vec<Name>,
    /// The first topic appended to.
    pub topic: Option<TopicId>,
    /// The topics over which records were spread.
    pub spreads: Vec<Spread>,
    /// The journals of those topics, with their partition counts.
    pub journals: Vec<(LogId, Partition)>,
    pub append_count: i64,
    /// The number of appends.
    pub digest: Digest,
    /// The error if an append exceeds a limit, or there is no room for all of them; it applies only
    /// if they would be stored.
    pub over_limit: Option<Refusal>,
    /// The dedup data of the records, by topic.
    pub dedups: Vec<Dedup>,
    /// The last offset for each partition.
    pub offsets: Vec<Claimed>,
    /// The memory reservation of the whole call.
    pub held: Held,
}

impl Broker {
    /// `refresh`: cached topics have proved wrong. `in_pass`: a pass checks that the offsets are
    /// within their logs.
    pub async fn resolve(
        &self,
        tenant: TenantId,
        (appends, offsets): (&[AppendItem], &[OffsetItem]),
        held: &Held,
        scopes: &Scopes,
        (in_pass, refresh): (bool, bool),
    ) -> Result<ResolvedRequest, Error> {
        let mut request = ResolvedRequest {
            parts: Vec::new(),
            ids: Vec::new(),
            topics: Vec::new(),
            topic: None,
            spreads: Vec::new(),
            journals: Vec::new(),
            append_count: appends.len() as i64,
            digest: appends_digest(appends),
            over_limit: None,
            dedups: Vec::new(),
            offsets: self.resolve_offsets(tenant, offsets, scopes, (in_pass, refresh)).await?,
            held: held.clone(),
        };
        if appends.is_empty() {
            return Ok(request);
        }
        let settings = self.settings.of(tenant).await?;
        for (index, AppendItem { topic, scope, batch }) in appends.iter().enumerate() {
            let resolved = match scope {
                Scope::Topic => self.topics.resolve(tenant, topic, refresh).await?,
                Scope::Partition(p) => self.topics.partition(tenant, topic, *p, refresh).await?,
            };
            let limits = rules::settings::batch_limits(&resolved.summary.settings, &settings);
            request.over_limit = request.over_limit.or_else(|| too_large(batch, limits));
            let (placed, lines) = place(&resolved, *scope, batch);
            let policy = dedup::Policy::of(&resolved.summary.settings, &settings);
            let dedup =
                policy.and_then(|policy| dedup::dedup(&resolved, policy, batch, &placed, None));
            if let Some(dedup) = dedup {
                dedup::add(&mut request.dedups, dedup, index, request.parts.len());
            }
            let Request { parts, spread, .. } = placed;
            request.spreads.push((resolved.topic_id, spread.map(|spread| spread.partition_count)));
            request.topic.get_or_insert(resolved.topic_id);
            let journal = spread.map(|spread| (resolved.journal, spread.partition_count));
            request.journals.extend(journal);
            request.topics.extend(parts.iter().map(|_| topic.clone()));
            request.parts.extend(parts.into_iter().zip(lines));
        }
        if request.over_limit.is_none() {
            let (key, bytes) = (Key::MaxStoredBytes, request.size_bytes());
            request.over_limit = self.quotas.full(tenant, &settings, key, bytes).await?;
        }
        request.ids = record_ids::pack(request.parts.len(), &request.dedups);
        request.spreads.sort_unstable();
        request.spreads.dedup();
        request.journals.sort_unstable();
        request.journals.dedup();
        Ok(request)
    }

    /// Judges whether there is room for what a call stages.
    pub(super) async fn limit_staged(
        &self,
        tenant: TenantId,
        request: &mut ResolvedRequest,
    ) -> Result<(), Error> {
        if request.over_limit.is_none() && !request.parts.is_empty() {
            let settings = self.settings.of(tenant).await?;
            let (key, bytes) = (Key::MaxStagedBytes, request.size_bytes());
            request.over_limit = self.quotas.full(tenant, &settings, key, bytes).await?;
        }
        Ok(())
    }

    /// The last offset for each partition; all must be within their logs, unless a pass checks it.
    async fn resolve_offsets(
        &self,
        tenant: TenantId,
        offsets: &[OffsetItem],
        scopes: &Scopes,
        (in_pass, refresh): (bool, bool),
    ) -> Result<Vec<Claimed>, Error> {
        let mut last: BTreeMap<OffsetPlace, (Claimed, Option<&Name>)> = BTreeMap::new();
        for (index, item) in offsets.iter().enumerate() {
            for (claimed, topic) in self.claims(tenant, index, item, scopes, refresh).await? {
                // a cursor beside it does not excuse an item whose topic is gone
                let (claimed, topic) = match last.get(&claimed.place) {
                    Some((former, named)) => (claimed.after(former), topic.or(*named)),
                    None => (claimed, topic),
                };
                last.insert(claimed.place.clone(), (claimed, topic));
            }
        }
        if last.is_empty() || in_pass && !refresh {
            return Ok(last.into_values().map(|(claimed, _)| claimed).collect());
        }
        let logs = last.keys().map(|place| place.log_id).collect();
        let seen = self.watermarks.query(tenant, logs).await?;
        let mut claims = Vec::with_capacity(last.len());
        for (claimed, topic) in last.into_values() {
            match (seen.get(&claimed.place.log_id), topic) {
                (Some(watermarks), _) => {
                    rules::group::offsets::check_range(claimed.offset, watermarks.ends())?;
                    claims.push(claimed);
                }
                // where a topic is gone a cursor has nothing to say any more
                (None, None) => {}
                (None, Some(_)) if !refresh => {
                    let again = self.resolve_offsets(tenant, offsets, scopes, (in_pass, true));
                    return Box::pin(again).await;
                }
                (None, Some(topic)) => return Err(Error::topic_not_found(topic)),
            }
        }
        Ok(claims)
    }

    /// The claim of an item, with its topic if it names one.
    async fn claims<'a>(
        &self,
        tenant: TenantId,
        index: usize,
        item: &'a OffsetItem,
        scopes: &Scopes,
        refresh: bool,
    ) -> Result<Vec<(Claimed, Option<&'a Name>)>, Error> {
        match item {
            OffsetItem::At { group, topic, partition, offset, claim } => {
                let found = self.topics.partition(tenant, topic, *partition, refresh).await?;
                let log_id = found.logs[*partition as usize];
                let place = OffsetPlace { group: group.clone(), log_id };
                let claimed = Claimed { place, offset: *offset, claim: claim.clone() };
                Ok(vec![(claimed, Some(topic))])
            }
            OffsetItem::Cursor { group, member, cursor } => {
                let pointer = format!("/offsets/{index}/cursor");
                let cursor = self.cursor(tenant, group, member, cursor, &pointer).await?;
                if !scopes.has_whole(&[Word::Consume]) {
                    let logs = cursor.positions.iter().map(|position| position.log_id).collect();
                    let names = self.names.of(tenant, logs).await?;
                    names.values().try_for_each(|(topic, _)| check_consume(scopes, topic))?;
                }
                let claimed = |position: Position| {
                    let Position { log_id, owned_since: generation, offset, began } = position;
                    let place = OffsetPlace { group: group.clone(), log_id };
                    let (member_id, expected) = (member.member_id.clone(), None);
                    let claim = CommitRight::Member { member_id, generation, expected, began };
                    (Claimed { place, offset, claim }, None)
                };
                Ok(cursor.positions.into_iter().map(claimed).collect())
            }
        }
    }
}

impl ResolvedRequest {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.offsets.is_empty()
    }

    /// The groups whose offsets it commits.
    pub fn groups(&self) -> BTreeSet<&Name> {
        self.offsets.iter().map(|claimed| &claimed.place.group).collect()
    }

    /// Bytes of its records.
    pub fn size_bytes(&self) -> i64 {
        self.parts.iter().map(|(part, _)| part.size_bytes).sum()
    }

    /// The number of batches it stages.
    pub fn batch_count(&self) -> i64 {
        self.parts.len() as i64
    }

    /// The call in staged form.
    pub fn call(
        &self,
        id: Uuid,
        session: Option<(ProducerId, Epoch)>,
        sequence: Option<Sequence>,
    ) -> staging::StagingCall<'_> {
        let parts = self.parts.iter().zip(&self.ids).map(staged).collect();
        let ResolvedRequest { digest, append_count, ref spreads, .. } = *self;
        let records = self.dedups.iter().flat_map(|dedup| &dedup.records);
        let id_count = records.filter(|record| record.key.is_some()).count() as i64;
        staging::StagingCall {
            id,
            session,
            sequence,
            all_groups: true,
            digest,
            append_count,
            id_count,
            parts,
            spreads,
        }
    }
}

fn staged<'a>(
    ((part, lines), ids): (&'a (RequestPart, Lines), &'a Option<Vec<u8>>),
) -> staging::StagedPart<'a> {
    let RequestPart { log_id, record_count, .. } = *part;
    staging::StagedPart { log_id, record_count, records: lines.as_str(), ids: ids.as_deref() }
}
