//! Reads of a partition and of a topic.

use oncelog::model::Code;
use serde_json::{Value, json};

use super::{
    call::{Partition, Read, Start},
    ids::Fate,
    want::{ANY, Judged, Reply, Want},
    world::{Log, Phase, Stored, TopicCursor, World},
};

const LIMIT: usize = 500;

impl World {
    /// A record as it is shown; `said`: as it was, which tells what is not known of it (and, by what it
    /// has, whether the topic and the partition are to be named).
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
                let is_right = !reaches_end || self.may_be_staged(read, limit, next - from, staged);
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

    /// Whether this may be what is staged in a partition: of each open transaction all that was meant
    /// for it, and perhaps what has no key.
    fn may_be_staged(&self, read: &Read, limit: i64, shown: i64, staged: &Value) -> bool {
        let life = self.topics[&read.topic].life;
        let Some(listed) = staged.as_array() else { return false };
        let (mut certain, mut total) = (0, 0);
        for (id, transaction) in &self.transactions {
            let state = match transaction.state {
                Phase::Ongoing => "ongoing",
                Phase::Prepared => "prepared",
                Phase::Committed | Phase::Aborted(_) => continue,
            };
            let said = listed.iter().find(|said| said["transaction_id"] == json!(id.to_string()));
            let said_records = said.and_then(|said| said["records"].as_array());
            let mut said_records = said_records.into_iter().flatten().peekable();
            let its = transaction.staged.iter().enumerate();
            for (at, one) in its.filter(|(_, staged)| staged.life == life) {
                // what a prepared one has not to store any more is gone
                let fates = transaction.fates.as_ref().map(|fates| &fates[at]);
                let is_left = |index: &usize| fates.is_none_or(|f| matches!(f[*index], Fate::New));
                let sure = one.parts(-1).into_iter().find(|(p, _)| *p == read.partition);
                let sure = sure.map(|(_, records)| records).unwrap_or_default();
                let sure: Vec<usize> = sure.into_iter().filter(is_left).collect();
                certain += sure.len();
                for (index, record) in one.records.iter().enumerate() {
                    if !is_left(&index) {
                        continue;
                    }
                    let is_sure = sure.contains(&index);
                    let may_be = is_sure || one.scope.is_none() && record.key.is_none();
                    if may_be && said_records.peek() == Some(&&record.json()) {
                        said_records.next();
                        total += 1;
                        certain -= usize::from(is_sure);
                    }
                }
            }
            let is_over = said_records.next().is_some();
            if is_over || said.is_some_and(|said| said["state"] != json!(state)) {
                return false;
            }
        }
        let known = |said: &Value| {
            let id = said["transaction_id"].as_str().and_then(|id| id.parse().ok());
            id.is_some_and(|id| self.transactions.contains_key(&id))
        };
        listed.iter().all(known)
            && total <= limit - shown
            && (certain == 0 || total == limit - shown)
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
                let cursor = self.topic_cursors.get(text).filter(|c| c.life == found.life);
                let cursor = cursor.ok_or(Want::code(Code::InvalidCursor))?;
                let at =
                    |(p, log): (usize, &Log)| cursor.positions.get(p).copied().unwrap_or(log.start);
                found.logs.iter().enumerate().map(at).collect::<Vec<i64>>()
            }
            start => {
                let at = found.logs.iter().map(|log| self.begin_at(log, start));
                let at: Result<Option<Vec<i64>>, Want> = at.collect();
                let Some(at) = at? else { return Ok(Want::anything()) };
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
        let at =
            if as_lines { &reply.body["headers"]["oncelog-cursor"] } else { &reply.body["cursor"] };
        if let Some(cursor) = at.as_str() {
            let says = TopicCursor { life: found.life, positions: next };
            self.topic_cursors.insert(cursor.to_owned(), says);
        }
        Ok(Want::ok(want))
    }
}

fn out_of_range(log: &Log) -> Want {
    let mut want = Want::code(Code::OffsetOutOfRange);
    want.body["log_start_offset"] = json!(log.start);
    want.body["high_watermark"] = json!(log.end());
    want
}
