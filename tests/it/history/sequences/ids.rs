//! Records that are known by their ids or their contents, and where records go.

use std::collections::BTreeMap;

use oncelog::{
    model::{partitioner, settings::Key},
    rules::Refusal,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    call::{Item, Partition, Record},
    want::Want,
    world::{Phase, Scope, Stored, Topic, World},
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KnownBy {
    Id(u8),
    Content(Option<u8>, u8),
}

/// A record that is stored.
#[derive(Clone, Debug)]
pub struct Known {
    pub record: Record,
    pub partition: Partition,
    pub offset: i64,
    /// None: nobody was told.
    pub first_seen_at: Option<String>,
}

/// Records on their way into one topic.
#[derive(Clone, Debug)]
pub struct Staged {
    pub topic: String,
    pub life: u64,
    pub scope: Scope,
    /// How many partitions they are spread over.
    pub count: Partition,
    pub records: Vec<Record>,
    pub known_by: Vec<Option<KnownBy>>,
    /// Its place among the appends of a transaction.
    pub append: Option<i64>,
}

/// What becomes of a record.
#[derive(Clone, Debug)]
pub enum Fate {
    New,
    /// As the record before it there, of this append or of another.
    Same(usize),
    Known(Known),
}

/// A part of an append, in one partition.
#[derive(Clone, Debug)]
pub struct Placed {
    pub partition: Partition,
    pub base_offset: Option<i64>,
    pub record_count: i64,
}

impl Record {
    pub fn same_payload(&self, other: &Self) -> bool {
        (self.key, self.value) == (other.key, other.value)
    }
}

impl Staged {
    /// The partitions in the order of their first records, and which records go there.
    pub fn parts(&self, keyless: Partition) -> Vec<(Partition, Vec<usize>)> {
        let mut parts: Vec<(Partition, Vec<usize>)> = Vec::new();
        for (index, record) in self.records.iter().enumerate() {
            let partition = match (self.scope, record.key_text()) {
                (Some(partition), _) => partition,
                (None, None) => keyless,
                (None, Some(key)) => {
                    partitioner::partition_of(partitioner::key_hash(key.as_bytes()), self.count)
                }
            };
            match parts.iter_mut().find(|(other, _)| *other == partition) {
                Some((_, records)) => records.push(index),
                None => parts.push((partition, vec![index])),
            }
        }
        parts
    }
}

impl World {
    /// How a topic says that a record is known: by its content, or by its id; none: not at all.
    pub fn by_content(&self, topic: &Topic) -> Option<bool> {
        let is_off = self.setting(topic, Key::DedupWindowMs) == json!(0);
        (!is_off).then(|| self.setting(topic, Key::Dedup) == json!("content"))
    }

    pub fn stage(&self, item: &Item, append: Option<i64>) -> Result<Staged, Want> {
        let topic = self.topic(&item.topic)?;
        if let Some(partition) = item.partition {
            self.log(&item.topic, partition)?;
        }
        let by_content = self.by_content(topic);
        let known_by = |record: &Record| match by_content? {
            true => Some(KnownBy::Content(record.key, record.value)),
            false => record.id.map(KnownBy::Id),
        };
        Ok(Staged {
            topic: item.topic.clone(),
            life: topic.life,
            scope: item.partition,
            count: topic.logs.len() as Partition,
            known_by: item.records.iter().map(known_by).collect(),
            records: item.records.clone(),
            append,
        })
    }

    /// Whether an append of that many records breaks the topic's limit.
    pub fn check_size(&self, item: &Item) -> Result<(), Want> {
        let limit = self.setting(self.topic(&item.topic)?, Key::MaxBatchRecords);
        let (limit, received) = (limit.as_i64().unwrap(), item.records.len() as i64);
        if received > limit {
            let limit_name = Key::MaxBatchRecords.name();
            return Err(Refusal::BatchTooLarge { limit_name, limit, received }.into());
        }
        Ok(())
    }

    /// The life that a topic of this name has now.
    pub fn lives(&self, staged: &Staged) -> bool {
        self.topics.get(&staged.topic).is_some_and(|topic| topic.life == staged.life)
    }

    /// The prepared transaction that holds a record, and that record.
    fn holder(&self, life: u64, by: &KnownBy) -> Option<(Uuid, &Record)> {
        let prepared = self.transactions.iter().filter(|(_, t)| t.state == Phase::Prepared);
        let mut held = prepared.flat_map(|(id, t)| t.held.iter().map(move |held| (id, held)));
        let found = held.find(|(_, (of, held_by, _))| *of == life && held_by == by);
        found.map(|(id, (_, _, record))| (*id, record))
    }

    /// What becomes of each record of each append. `lives`: each once, as they are judged.
    pub fn fates(
        &self,
        staged: &[Staged],
        lives: &[u64],
        refuses: bool,
    ) -> Result<Vec<Vec<Fate>>, Want> {
        let mut fates: Vec<Vec<Fate>> =
            staged.iter().map(|one| vec![Fate::New; one.records.len()]).collect();
        for life in lives {
            self.judge_life(staged, *life, refuses, &mut fates)?;
        }
        Ok(fates)
    }

    fn judge_life(
        &self,
        staged: &[Staged],
        life: u64,
        refuses: bool,
        fates: &mut [Vec<Fate>],
    ) -> Result<(), Want> {
        let mut firsts: BTreeMap<&KnownBy, (usize, usize)> = BTreeMap::new();
        let (mut reused, mut duplicates, mut held) = (Vec::new(), Vec::new(), None);
        for (at, one) in staged.iter().enumerate().filter(|(_, one)| one.life == life) {
            for (index, record) in one.records.iter().enumerate() {
                let Some(by) = &one.known_by[index] else { continue };
                let known = self.topics[&one.topic].known.get(by);
                let (fate, other) = match (firsts.get(by), known, self.holder(life, by)) {
                    (Some(first), ..) => (Fate::Same(first.1), &staged[first.0].records[first.1]),
                    (None, Some(known), _) => (Fate::Known(known.clone()), &known.record),
                    (None, None, Some((id, record))) => {
                        held = Some(id);
                        (Fate::New, record)
                    }
                    (None, None, None) => (Fate::New, record),
                };
                firsts.entry(by).or_insert((at, index));
                let append = one.append.map(|n| format!("/appends/{n}")).unwrap_or_default();
                let pointer = format!("{append}/records/{index}");
                if !other.same_payload(record) {
                    reused.push(pointer);
                } else if !matches!(fate, Fate::New) {
                    duplicates.push(pointer);
                }
                fates[at][index] = fate;
            }
        }
        if !reused.is_empty() {
            return Err(Refusal::RecordIdReused { records: reused }.into());
        }
        if let Some(transaction_id) = held {
            return Err(Refusal::RecordHeld { transaction_id }.into());
        }
        if refuses && !duplicates.is_empty() {
            return Err(Refusal::DuplicateRecord { records: duplicates }.into());
        }
        Ok(())
    }

    /// Stores what is new of an append; answers its parts, and where each new record lies.
    pub fn store(
        &mut self,
        staged: &Staged,
        fates: &[Fate],
        keyless: Partition,
        transaction: Option<Uuid>,
        appended_at: Option<&str>,
    ) -> (Vec<Placed>, BTreeMap<usize, (Partition, i64)>) {
        let topic = self.topics.get_mut(&staged.topic).unwrap();
        let (mut parts, mut places) = (Vec::new(), BTreeMap::new());
        for (partition, records) in staged.parts(keyless) {
            let new = records.into_iter().filter(|index| matches!(fates[*index], Fate::New));
            let mut part = Placed { partition, base_offset: None, record_count: 0 };
            for index in new {
                let log = &mut topic.logs[partition as usize].records;
                let (record, offset) = (staged.records[index].clone(), log.len() as i64);
                part.base_offset.get_or_insert(offset);
                part.record_count += 1;
                places.insert(index, (partition, offset));
                if let Some(by) = &staged.known_by[index] {
                    let first_seen_at = appended_at.map(str::to_owned);
                    let record = record.clone();
                    let known = Known { record, partition, offset, first_seen_at };
                    topic.known.insert(by.clone(), known);
                }
                let appended_at = appended_at.map(str::to_owned);
                log.push(Stored { record, appended_at, transaction });
            }
            parts.push(part);
        }
        (parts, places)
    }
}

/// Where the records without a key of each append went, so that the parts of all are those that the
/// answer names. None: there is no such way.
pub fn keyless(staged: &[Staged], fates: &[Vec<Fate>], said: &[Value]) -> Option<Vec<Partition>> {
    let Some((one, others)) = staged.split_first() else {
        return said.is_empty().then(Vec::new);
    };
    let is_new = |index: &&usize| matches!(fates[0][**index], Fate::New);
    (0..one.count).find_map(|keyless| {
        let parts = one.parts(keyless);
        let is_said = |((partition, records), said): (&(Partition, Vec<usize>), &Value)| {
            said["partition"] == json!(partition)
                && said["record_count"] == json!(records.iter().filter(is_new).count())
        };
        if said.len() < parts.len() || !parts.iter().zip(said).all(is_said) {
            return None;
        }
        let mut found = self::keyless(others, &fates[1..], &said[parts.len()..])?;
        found.insert(0, keyless);
        Some(found)
    })
}
