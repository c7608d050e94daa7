//! What a call asks for, with names resolved and records spread: everything that needs no lock.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::super::{
    Broker, Error,
    append::{place, too_large},
    group::Lines,
};
use crate::{
    model::{
        Digest, Epoch, LogId, Name, Partition, ProducerId, Sequence, TenantId, TopicId,
        transaction::{AppendItem, OffsetItem, appends_digest},
        transfer::Scope,
    },
    rules::{
        self, Refusal,
        append::{Part, Request},
        offsets::{Claimed, Place},
    },
    store::staging::{self, Spread},
};

pub struct Asked {
    /// In the order of the items, then of each partition's first record.
    pub parts: Vec<(Part, Lines)>,
    /// Of each part.
    pub topics: Vec<Name>,
    /// The first one appended to.
    pub topic: Option<TopicId>,
    /// The topics, as the records were spread over them.
    pub spreads: Vec<Spread>,
    /// The journals of those spread over, with the partitions they had.
    pub journals: Vec<(LogId, Partition)>,
    pub append_count: i64,
    /// Of the appends.
    pub digest: Digest,
    /// An append breaks a limit: refused if it would be appended.
    pub too_large: Option<Refusal>,
    /// The last one for each place.
    pub offsets: Vec<Claimed>,
}

impl Broker {
    /// `anew`: what is remembered of the topics has proved wrong. `in_pass`: a pass looks whether the
    /// offsets lie in their logs.
    pub async fn ask(
        &self,
        tenant: TenantId,
        appends: &[AppendItem],
        offsets: &[OffsetItem],
        in_pass: bool,
        anew: bool,
    ) -> Result<Asked, Error> {
        let mut asked = Asked {
            parts: Vec::new(),
            topics: Vec::new(),
            topic: None,
            spreads: Vec::new(),
            journals: Vec::new(),
            append_count: appends.len() as i64,
            digest: appends_digest(appends),
            too_large: None,
            offsets: self.ask_offsets(tenant, offsets, in_pass, anew).await?,
        };
        if appends.is_empty() {
            return Ok(asked);
        }
        let settings = self.settings.of(tenant).await?;
        for AppendItem { topic, scope, batch } in appends {
            let resolved = match scope {
                Scope::Topic => self.topics.resolve(tenant, topic, anew).await?,
                Scope::Partition(p) => self.topics.partition(tenant, topic, *p, anew).await?,
            };
            let limits = rules::settings::batch_limits(&resolved.summary.settings, &settings);
            asked.too_large = asked.too_large.or_else(|| too_large(batch, limits));
            let (Request { parts, spread, .. }, lines) = place(&resolved, *scope, batch);
            asked.spreads.push((resolved.topic_id, spread.map(|spread| spread.partition_count)));
            asked.topic.get_or_insert(resolved.topic_id);
            let journal = spread.map(|spread| (resolved.journal, spread.partition_count));
            asked.journals.extend(journal);
            asked.topics.extend(parts.iter().map(|_| topic.clone()));
            asked.parts.extend(parts.into_iter().zip(lines));
        }
        asked.spreads.sort_unstable();
        asked.spreads.dedup();
        asked.journals.sort_unstable();
        asked.journals.dedup();
        Ok(asked)
    }

    /// The last one for each place; all must lie in their logs as they are now, unless a pass will
    /// look.
    async fn ask_offsets(
        &self,
        tenant: TenantId,
        offsets: &[OffsetItem],
        in_pass: bool,
        anew: bool,
    ) -> Result<Vec<Claimed>, Error> {
        if offsets.is_empty() {
            return Ok(Vec::new());
        }
        let mut logs = Vec::with_capacity(offsets.len());
        for item in offsets {
            let topic = self.topics.partition(tenant, &item.topic, item.partition, anew).await?;
            logs.push(topic.logs[item.partition as usize]);
        }
        if !in_pass {
            let seen = self.looks.read(tenant, logs.clone()).await?;
            for (item, log_id) in offsets.iter().zip(&logs) {
                let Some(watermarks) = seen.get(log_id) else {
                    if !anew {
                        return Box::pin(self.ask_offsets(tenant, offsets, false, true)).await;
                    }
                    return Err(Error::topic_not_found(&item.topic));
                };
                rules::offsets::check_range(item.offset, watermarks.ends())?;
            }
        }
        let mut last: BTreeMap<Place, Claimed> = BTreeMap::new();
        for (item, log_id) in offsets.iter().zip(logs) {
            let place = Place { group: item.group.clone(), log_id };
            let (offset, claim) = (item.offset, item.claim.clone());
            last.insert(place.clone(), Claimed { place, offset, claim });
        }
        Ok(last.into_values().collect())
    }
}

impl Asked {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.offsets.is_empty()
    }

    /// Bytes of its records.
    pub fn size_bytes(&self) -> i64 {
        self.parts.iter().map(|(part, _)| part.size_bytes).sum()
    }

    /// How many batches it stages.
    pub fn batch_count(&self) -> i64 {
        self.parts.len() as i64
    }

    /// The call as it is staged.
    pub fn call(
        &self,
        id: Uuid,
        session: Option<(ProducerId, Epoch)>,
        sequence: Option<Sequence>,
    ) -> staging::Call<'_> {
        let parts = self.parts.iter().map(staged).collect();
        let Asked { digest, append_count, ref spreads, .. } = *self;
        staging::Call { id, session, sequence, digest, append_count, parts, spreads }
    }
}

fn staged((part, lines): &(Part, Lines)) -> staging::Part<'_> {
    let Part { log_id, record_count, .. } = *part;
    staging::Part { log_id, record_count, records: lines.as_str() }
}
