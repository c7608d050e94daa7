//! Reads of a partition and of a topic.

use std::collections::BTreeSet;

use oncelog::model::Code;
use serde_json::{Value, json};

use super::{
    call::{Partition, Read, Start},
    ids::{Fate, Staged},
    want::{ANY, Judged, Reply, Want},
    world::{Log, Phase, Stored, TopicCursor, World},
};

const LIMIT: usize = 500;

impl World {
    /// A record as it is shown; `said`: as it was, which shows what is not known of it (and, by
    /// what it has, whether the topic and the partition are to be named).
    pub fn shown(&self, log: &Log, offset: i64, said: &Value) -> Option<Value> {
        let stored = log.records.get(offset as usize)?;
        let mut shown = stored.record.json();
        shown["offset"] = json!(offset);
        shown["appended_at"] = stored.appended_at.as_ref().map_or(json!(ANY), |at| json!(at));
        if let Some(id) = stored.transaction {
            shown["transaction_id"] = json!(id.to_string());
        }
        for named in ["topic", "partition"] {
            if let Some(name) = said.get(named) {
                shown[named] = name.clone();
            }
        }
        Some(shown)
    }

    /// Where a read starts.
    fn begin_at(&self, log: &Log, start: &Start) -> Result<Option<i64>, Want> {
        let (first, end) = log.ends();
        let offset = match start {
            Start::Earliest | Start::Cursor(_) => first,
            Start::Latest => end,
            Start::Offset(offset) => *offset,
            Start::Timestamp(at) => {
                let readable = &log.records[first as usize..];
                let is_known = readable.iter().all(|stored| stored.appended_at.is_some());
                let is_before = |stored: &Stored| stored.appended_at.as_deref() < Some(at);
                return Ok(is_known.then(|| {
                    first + readable.iter().take_while(|stored| is_before(stored)).count() as i64
                }));
            }
        };
        if offset < first || offset > end {
            return Err(out_of_range(log));
        }
        Ok(Some(offset))
    }

    pub fn read(&mut self, read: &Read, reply: &Reply) -> Judged {
        let log = self.log(&read.topic, read.partition)?;
        let Some(from) = self.begin_at(log, &read.start)? else { return Ok(Want::anything()) };
        let limit = read.limit.unwrap_or(LIMIT) as i64;
        let next = log.end().min(from + limit);
        let list = if read.as_lines { "lines" } else { "records" };
        let said = reply.body[list].as_array().cloned().unwrap_or_default();
        let records: Vec<Value> = (from..next)
            .filter_map(|offset| {
                let said = said.get((offset - from) as usize).unwrap_or(&Value::Null);
                self.shown(log, offset, said)
            })
            .collect();
        let want = if read.as_lines {
            json!({"lines": records, "headers": {"oncelog-next-offset": next.to_string(),
                "oncelog-log-start-offset": log.start.to_string(),
                "oncelog-high-watermark": log.end().to_string()}})
        } else {
            let mut want = json!({"topic": read.topic, "partition": read.partition,
                "records": records, "next_offset": next, "log_start_offset": log.start,
                "high_watermark": log.end()});
            if read.uncommitted {
                let reaches_end = next == log.end() && next - from < limit;
                let staged = &reply.body["staged"];
                let is_right =
                    !reaches_end || self.may_be_staged(read, limit - (next - from), staged);
                want["staged"] = if is_right { staged.clone() } else { json!("what is staged") };
            }
            want
        };
        self.learn(&read.topic, read.partition, &said);
        Ok(Want::ok(want))
    }

    /// What was shown of each record is so from now on.
    fn learn(&mut self, topic: &str, partition: Partition, said: &[Value]) {
        let log = &mut self.topics.get_mut(topic).unwrap().logs[partition as usize];
        for record in said {
            let (Some(offset), Some(at)) =
                (record["offset"].as_i64(), record["appended_at"].as_str())
            else {
                continue;
            };
            if let Some(stored) = log.records.get_mut(offset as usize) {
                stored.appended_at.get_or_insert(at.to_owned());
            }
        }
    }

    /// Whether this may be what is staged in a partition, as far as there is room for it: of each
    /// open transaction all that was meant for it. Where records without a key went nobody has been
    /// told.
    fn may_be_staged(&self, read: &Read, room: i64, staged: &Value) -> bool {
        let life = self.topics[&read.topic].life;
        let Some(listed) = staged.as_array() else { return false };
        let count = |said: &Value| said["records"].as_array().map_or(0, Vec::len) as i64;
        let total: i64 = listed.iter().map(count).sum();
        let mut is_left: BTreeSet<&str> =
            listed.iter().filter_map(|said| said["transaction_id"].as_str()).collect();
        for (id, transaction) in &self.transactions {
            let state = match transaction.state {
                Phase::Ongoing => "ongoing",
                Phase::Prepared => "prepared",
                Phase::Committed | Phase::Aborted(_) => continue,
            };
            let id = id.to_string();
            let said = listed.iter().find(|said| said["transaction_id"] == json!(id));
            if said.is_some_and(|said| said["state"] != json!(state)) {
                return false;
            }
            is_left.remove(id.as_str());
            let said = said.and_then(|said| said["records"].as_array());
            let said = said.map(Vec::as_slice).unwrap_or_default();
            let its = transaction.staged.iter().enumerate();
            let its = its.filter(|(_, one)| one.life == life);
            let ways: Vec<Ways> = its
                .map(|(at, one)| {
                    let fates = transaction.fates.as_ref().map(|fates| &*fates[at]);
                    [read.partition, -1].map(|keyless| there(one, fates, keyless, read.partition))
                })
                .collect();
            if !fits(&ways, said, total == room) {
                return false;
            }
        }
        is_left.is_empty() && total <= room
    }

    /// A read that starts nobody knows where; nor does one with its cursor.
    fn unforeseen(&mut self, reply: &Reply) -> Want {
        self.dark_cursors.extend(cursor(reply).map(str::to_owned));
        Want::anything()
    }

    pub fn read_topic(
        &mut self,
        topic: &str,
        start: &Start,
        limit: Option<usize>,
        as_lines: bool,
        reply: &Reply,
    ) -> Judged {
        let found = self.topic(topic)?;
        let positions = match start {
            Start::Cursor(text) => {
                if self.dark_cursors.contains(text) {
                    return Ok(self.unforeseen(reply));
                }
                let cursor = self.topic_cursors.get(text).filter(|c| c.life == found.life);
                let cursor = cursor.ok_or(Want::code(Code::InvalidCursor))?;
                let at =
                    |(p, log): (usize, &Log)| cursor.positions.get(p).copied().unwrap_or(log.start);
                found.logs.iter().enumerate().map(at).collect::<Vec<i64>>()
            }
            start => {
                let at = found.logs.iter().map(|log| self.begin_at(log, start));
                let at: Result<Option<Vec<i64>>, Want> = at.collect();
                let Some(at) = at? else { return Ok(self.unforeseen(reply)) };
                at
            }
        };
        if let Some(p) = (0..positions.len()).find(|p| positions[*p] < found.logs[*p].start) {
            let mut want = out_of_range(&found.logs[p]);
            want.body["partition"] = json!(p);
            return Err(want);
        }
        let list = if as_lines { "lines" } else { "records" };
        let said = reply.body[list].as_array().cloned().unwrap_or_default();
        let (mut next, mut records) = (positions, Vec::new());
        for record in &said {
            let partition = record["partition"].as_u64().unwrap_or(0) as usize;
            let Some(offset) = next.get_mut(partition) else { continue };
            records.extend(self.shown(&found.logs[partition], *offset, record));
            *offset += 1;
        }
        let left: i64 = found.logs.iter().zip(&next).map(|(log, next)| log.end() - next).sum();
        let limit = limit.unwrap_or(LIMIT);
        if records.len() > limit || records.len() < limit && left > 0 {
            records.push(json!(format!("{limit} records, or all that there are")));
        }
        let ends = |(p, (log, next)): (usize, (&Log, &i64))| {
            json!({"partition": p, "next_offset": next, "log_start_offset": log.start,
                "high_watermark": log.end()})
        };
        let partitions: Vec<Value> = found.logs.iter().zip(&next).enumerate().map(ends).collect();
        let want = match as_lines {
            true => json!({"lines": records, "headers": {"oncelog-cursor": ANY}}),
            false => json!({"topic": topic, "records": records, "partitions": partitions,
                "cursor": ANY}),
        };
        if let Some(cursor) = cursor(reply) {
            let says = TopicCursor { life: found.life, positions: next };
            self.topic_cursors.insert(cursor.to_owned(), says);
        }
        Ok(Want::ok(want))
    }
}

/// Of a read of a topic.
fn cursor(reply: &Reply) -> Option<&str> {
    let places = [&reply.body["cursor"], &reply.body["headers"]["oncelog-cursor"]];
    places.into_iter().find_map(Value::as_str)
}

/// What an append has staged in a partition, where its records without a key are there, or
/// elsewhere.
type Ways = [Vec<Value>; 2];

/// `fates`: of a prepared one, that has not to store all of it any more.
fn there(
    one: &Staged,
    fates: Option<&[Fate]>,
    keyless: Partition,
    partition: Partition,
) -> Vec<Value> {
    let parts = one.parts(keyless).into_iter().filter(|(of, _)| *of == partition);
    let is_left = |index: &usize| fates.is_none_or(|f| matches!(f[*index], Fate::New));
    let records = parts.flat_map(|(_, records)| records).filter(is_left);
    records.map(|index| one.records[index].json()).collect()
}

/// Whether these appends may have staged this; `is_cut`: or more.
fn fits(ways: &[Ways], said: &[Value], is_cut: bool) -> bool {
    let Some((first, others)) = ways.split_first() else { return said.is_empty() };
    first.iter().any(|records| {
        let count = records.len().min(said.len());
        let is_whole = count == records.len();
        records[..count] == said[..count]
            && if is_whole { fits(others, &said[count..], is_cut) } else { is_cut }
    })
}

fn out_of_range(log: &Log) -> Want {
    let mut want = Want::code(Code::OffsetOutOfRange);
    want.body["log_start_offset"] = json!(log.start);
    want.body["high_watermark"] = json!(log.end());
    want
}
