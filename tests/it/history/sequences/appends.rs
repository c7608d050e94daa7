//! Appends: the table of numbers, keys of requests, known records, limits, expected offsets.

use oncelog::{
    model::{Code, ProducerId},
    rules::Refusal,
};
use serde_json::{Value, json};

use super::{
    call::{Append, Partition},
    ids::{Fate, Staged},
    want::{ANY, Judged, Reply, Want},
    world::{Keyed, Scope, Topic, World},
};

/// The numbers of a scope that are remembered with their answers.
const REMEMBERED: usize = 5;

/// What an append was told of each of its records.
#[derive(Clone, Debug)]
pub struct Told {
    pub records: Vec<ToldRecord>,
    pub appended_at: Value,
}

#[derive(Clone, Debug)]
pub struct ToldRecord {
    partition: Value,
    offset: Value,
    duplicate: bool,
    first_seen_at: Value,
}

/// What the number of an append means.
enum Number {
    New,
    Repeated(Told),
    /// Repeated, of so long ago that nobody knows where it lies.
    Forgotten,
}

impl World {
    pub fn append(&mut self, append: &Append, reply: &Reply) -> Judged {
        let staged = self.stage(&append.item, None)?;
        let topic = &self.topics[&append.item.topic];
        let scope = append.item.partition;
        let by_content = self.by_content(topic);
        let has_ids = append.item.records.iter().any(|record| record.id.is_some());
        let form = Form {
            topic: append.item.topic.clone(),
            scope,
            by_record: by_content == Some(true) || has_ids,
        };
        if by_content.is_none() && append.key.is_some() {
            return Err(Want::code(Code::InvalidRequest));
        }
        if let Some(numbered) = append.numbered {
            match self.number(topic, scope, numbered, append)? {
                Number::New => {}
                Number::Repeated(told) => return Ok(form.answer(&told, true)),
                Number::Forgotten => return Ok(form.forgotten(append.item.records.len())),
            }
        }
        let others = (append.expected_offset, append.refuses);
        let keyed = append.key.as_ref().and_then(|key| topic.keys.get(&(scope, key.clone())));
        if let Some(keyed) = keyed {
            if (&keyed.records, keyed.others) != (&append.item.records, others) {
                return Err(Refusal::IdempotencyKeyReused.into());
            }
            return Ok(form.answer(&keyed.told, true));
        }
        let one = std::slice::from_ref(&staged);
        let fates = self.fates(one, &[staged.life], append.refuses)?.remove(0);
        let stores = fates.iter().any(|fate| matches!(fate, Fate::New));
        if stores {
            self.check_size(&append.item)?;
            let next_offset = scope.map(|p| topic.logs[p as usize].end());
            if let (Some(expected_offset), Some(next_offset)) =
                (append.expected_offset, next_offset)
                && expected_offset != next_offset
            {
                return Err(Refusal::OffsetMismatch { expected_offset, next_offset }.into());
            }
        }
        let told = self.store_told(&staged, &fates, reply);
        self.remember(append, staged.life, &told);
        Ok(form.answer(&told, !stores))
    }

    /// The contract's table, row by row.
    fn number(
        &self,
        topic: &Topic,
        scope: Scope,
        (producer, epoch, sequence): (i64, i64, i64),
        append: &Append,
    ) -> Result<Number, Want> {
        self.check_producer((producer, epoch))?;
        let owner = &self.owners[&producer];
        let numbers = topic.numbers.get(&(producer, scope)).cloned().unwrap_or_default();
        let expected = numbers.last.map_or(0, |last| last + 1);
        if sequence == expected || sequence > expected && owner.monotonic {
            return Ok(Number::New);
        }
        if sequence < expected {
            let known = numbers.recent.iter().find(|(number, ..)| *number == sequence);
            return match known {
                Some((_, records, told)) if *records == append.item.records => {
                    Ok(Number::Repeated(told.clone()))
                }
                Some(_) => Err(Refusal::SequenceReused { sequence }.into()),
                None => Ok(Number::Forgotten),
            };
        }
        Err(match numbers.last {
            None => Refusal::UnknownProducerState { received: sequence },
            Some(_) => Refusal::OutOfOrderSequence { expected, received: sequence },
        }
        .into())
    }

    /// Rows 1 to 3.
    pub fn check_producer(&self, (producer, epoch): (i64, i64)) -> Result<(), Want> {
        let unknown = Refusal::UnknownProducer { producer_id: ProducerId(producer) };
        let owner = self.owners.get(&producer).ok_or(Want::from(unknown))?;
        let current_epoch = owner.epoch;
        if epoch < current_epoch {
            return Err(Refusal::ProducerFenced { current_epoch }.into());
        }
        if epoch > current_epoch || owner.closed {
            return Err(Refusal::InvalidProducerEpoch { current_epoch }.into());
        }
        Ok(())
    }

    /// Stores what is new, and shows each record where it lies.
    fn store_told(&mut self, staged: &Staged, fates: &[Fate], reply: &Reply) -> Told {
        let said = &reply.body["offsets"];
        let is_new = |index: &usize| {
            matches!(fates[*index], Fate::New) && staged.records[*index].key.is_none()
        };
        let keyless = (0..fates.len()).find(is_new).filter(|_| staged.scope.is_none());
        let keyless = keyless.and_then(|index| said[index]["partition"].as_i64()).unwrap_or(0);
        let keyless = (keyless as Partition).clamp(0, staged.count - 1);
        let at = reply.body["appended_at"].as_str();
        let (_, places) = self.store(staged, fates, keyless, None, at);
        let appended_at = at.map_or(json!(ANY), |at| json!(at));
        let starts: Vec<i64> =
            self.topics[&staged.topic].logs.iter().map(|log| log.start).collect();
        let mut records: Vec<ToldRecord> = Vec::new();
        for (index, fate) in fates.iter().enumerate() {
            records.push(match fate {
                Fate::New => {
                    let (partition, offset) = places[&index];
                    let first_seen_at = appended_at.clone();
                    let (partition, offset) = (json!(partition), json!(offset));
                    ToldRecord { partition, offset, duplicate: false, first_seen_at }
                }
                Fate::Same(first) => ToldRecord { duplicate: true, ..records[*first].clone() },
                Fate::Known(known) => {
                    let is_there = known.offset >= starts[known.partition as usize];
                    let first_seen_at = known.first_seen_at.as_ref();
                    ToldRecord {
                        partition: json!(known.partition),
                        offset: json!(is_there.then_some(known.offset)),
                        duplicate: true,
                        first_seen_at: first_seen_at.map_or(json!(ANY), |at| json!(at)),
                    }
                }
            });
        }
        Told { records, appended_at }
    }

    fn remember(&mut self, append: &Append, life: u64, told: &Told) {
        let scope = append.item.partition;
        let topic = self.topics.values_mut().find(|topic| topic.life == life).unwrap();
        let records = append.item.records.clone();
        if let Some((producer, _, sequence)) = append.numbered {
            let numbers = topic.numbers.entry((producer, scope)).or_default();
            numbers.last = Some(sequence);
            numbers.recent.push_back((sequence, records.clone(), told.clone()));
            if numbers.recent.len() > REMEMBERED {
                numbers.recent.pop_front();
            }
        }
        if let Some(key) = &append.key {
            let others = (append.expected_offset, append.refuses);
            let keyed = Keyed { records, others, told: told.clone() };
            topic.keys.insert((scope, key.clone()), keyed);
        }
    }
}

/// How an append is answered.
struct Form {
    topic: String,
    scope: Scope,
    /// With a fate of each record.
    by_record: bool,
}

impl Form {
    fn answer(&self, told: &Told, duplicate: bool) -> Want {
        let by_record = self.by_record || told.records.iter().any(|record| record.duplicate);
        let place = |record: &ToldRecord| {
            let mut place = json!({"partition": record.partition, "offset": record.offset});
            if by_record {
                place["duplicate"] = json!(record.duplicate);
                place["first_seen_at"] = record.first_seen_at.clone();
            }
            place
        };
        let offsets: Vec<Value> = told.records.iter().map(place).collect();
        let mut body = json!({"topic": self.topic, "duplicate": duplicate,
            "appended_at": told.appended_at});
        if let Some(partition) = self.scope {
            let new: Vec<_> = told.records.iter().filter(|record| !record.duplicate).collect();
            body["partition"] = json!(partition);
            body["base_offset"] = json!(new.first().map(|first| &first.offset));
            body["record_count"] = json!(new.len());
        }
        if by_record || self.scope.is_none() {
            body["offsets"] = json!(offsets);
        }
        Want::ok(body)
    }

    /// To a repeat of what is remembered no more.
    fn forgotten(&self, records: usize) -> Want {
        let mut body = json!({"topic": self.topic, "duplicate": true, "appended_at": null});
        if let Some(partition) = self.scope {
            body["partition"] = json!(partition);
            body["base_offset"] = Value::Null;
            body["record_count"] = json!(records);
        }
        if self.by_record || self.scope.is_none() {
            body["offsets"] = Value::Null;
        }
        Want::ok(body)
    }
}
