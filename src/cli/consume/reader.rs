//! Reads a partition, or all partitions of a topic, one request at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::bail;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{
    MIN_WAIT, WAIT,
    page::{PageRequest, Place, RecordLocation, Records},
    printer::Printer,
};
use crate::{
    cli::client::{Answer, Client},
    model::Name,
};

/// Where to stop reading the partitions.
#[derive(Debug, PartialEq, Eq)]
pub enum Until {
    /// At these offsets; partitions that have reached theirs are removed.
    Ends(BTreeMap<i32, i64>),
    /// Where each has reached its high watermark once; these partitions have.
    HighWatermarks(BTreeSet<i32>),
    Never,
}

/// What is read.
pub enum Source {
    Topic,
    /// One partition; if it is tagged, each record gets its number.
    Partition {
        partition: i32,
        is_tagged: bool,
    },
}

/// Reads page by page.
pub struct Reader<'a> {
    pub client: &'a Client,
    pub printer: &'a Printer,
    pub topic: &'a Name,
    pub part: Part,
}

/// What a reader reads, from where to where.
pub struct Part {
    pub source: Source,
    /// The parameter that sets the position, and its value.
    pub from: (&'static str, String),
    pub until: Until,
    pub is_over: bool,
}

/// The records of one response that are printed, at most as many as the limit.
pub struct Page {
    pub lines: Vec<u8>,
    pub record_count: u64,
}

#[derive(Deserialize)]
pub struct TopicPosition {
    pub partitions: Vec<PartitionPosition>,
    pub cursor: String,
}

#[derive(Deserialize)]
pub struct PartitionPosition {
    pub partition: i32,
    pub next_offset: i64,
    high_watermark: i64,
}

/// The ends of all partitions, and the cursor of what follows them.
pub async fn latest(client: &Client, topic: &Name) -> anyhow::Result<TopicPosition> {
    let request = PageRequest { from: Some(("offset", "latest")), limit: 1, wait: Duration::ZERO };
    let path = ["topics", topic.as_str(), "records"];
    client.send(request.build(client, &path, &path)).await?.json()
}

impl Reader<'_> {
    /// The next records, which may be none; nothing at the end.
    pub async fn next(&mut self, limit: u64) -> anyhow::Result<Option<Page>> {
        if self.part.is_over {
            return Ok(None);
        }
        let begun = Instant::now();
        let wait = if self.part.until == Until::Never { WAIT } else { Duration::ZERO };
        // records of other keys do not count
        let requested = if self.printer.key.is_some() { u64::MAX } else { limit };
        let answer = self.fetch(requested, wait).await?;
        let Records { records } = answer.json()?;
        let page = self.page(&records, limit, answer.body.len())?;
        let positions = match self.part.source {
            Source::Topic => {
                let TopicPosition { partitions, cursor } = answer.json()?;
                self.part.from = ("cursor", cursor);
                partitions
            }
            Source::Partition { .. } => {
                let position: PartitionPosition = answer.json()?;
                self.part.from = ("offset", position.next_offset.to_string());
                vec![position]
            }
        };
        self.part.is_over = self.part.until.is_reached(&positions)?;
        if !wait.is_zero() && records.is_empty() && begun.elapsed() < MIN_WAIT {
            tokio::time::sleep(MIN_WAIT).await;
        }
        Ok(Some(page))
    }

    async fn fetch(&self, limit: u64, wait: Duration) -> anyhow::Result<Answer> {
        let (name, value) = &self.part.from;
        let request = PageRequest { from: Some((*name, value.as_str())), limit, wait };
        let topic = self.topic.as_str();
        let request = match self.part.source {
            Source::Topic => {
                let path = ["topics", topic, "records"];
                request.build(self.client, &path, &["topics", topic, "reads"])
            }
            Source::Partition { partition, .. } => {
                let path = ["topics", topic, "partitions", &partition.to_string(), "records"];
                request.build(self.client, &path, &path)
            }
        };
        Ok(self.client.send(request).await?)
    }

    /// The records of a response that come before the end.
    fn page(&self, records: &[&RawValue], limit: u64, capacity: usize) -> anyhow::Result<Page> {
        let (partition, is_tagged) = match self.part.source {
            Source::Partition { partition, is_tagged } => (Some(partition), is_tagged),
            Source::Topic => (None, false),
        };
        let place = Place { topic: self.topic.as_str(), partition, is_tagged };
        let mut page = Page { lines: Vec::with_capacity(capacity), record_count: 0 };
        for record in records {
            if page.record_count < limit
                && self.part.until.covers(record, partition)?
                && self.printer.write(&mut page.lines, record, &place)?
            {
                page.record_count += 1;
            }
        }
        Ok(page)
    }
}

impl Until {
    /// Whether a record is before the end; `partition` is that of records without one.
    fn covers(&self, record: &RawValue, partition: Option<i32>) -> anyhow::Result<bool> {
        let Until::Ends(ends) = self else { return Ok(true) };
        let location = RecordLocation::of(record)?;
        let end = location.partition.or(partition).and_then(|partition| ends.get(&partition));
        Ok(end.is_some_and(|end| location.offset < *end))
    }

    /// Whether the end is reached, after the records of a response with these positions.
    fn is_reached(&mut self, positions: &[PartitionPosition]) -> anyhow::Result<bool> {
        for PartitionPosition { partition, next_offset, high_watermark } in positions {
            let is_at_end = next_offset >= high_watermark;
            match self {
                Until::Ends(ends) => match ends.get(partition) {
                    Some(end) if next_offset >= end => {
                        ends.remove(partition);
                    }
                    Some(_) if is_at_end => {
                        bail!("the log ends before its earlier end: was the topic recreated?");
                    }
                    _ => {}
                },
                Until::HighWatermarks(reached) if is_at_end => {
                    reached.insert(*partition);
                }
                Until::HighWatermarks(_) | Until::Never => {}
            }
        }
        Ok(match self {
            Until::Ends(ends) => ends.is_empty(),
            Until::HighWatermarks(reached) => reached.len() >= positions.len(),
            Until::Never => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(partitions: &[(i32, i64, i64)]) -> Vec<PartitionPosition> {
        let position = |&(partition, next_offset, high_watermark)| PartitionPosition {
            partition,
            next_offset,
            high_watermark,
        };
        partitions.iter().map(position).collect()
    }

    fn raw(record: &str) -> Box<RawValue> {
        RawValue::from_string(record.to_owned()).unwrap()
    }

    #[test]
    fn it_ends_where_the_partitions_ended() {
        let mut until = Until::Ends([(0, 5), (1, 2)].into());
        let covers = |until: &Until, partition, offset| {
            let record = format!("{{\"partition\":{partition},\"offset\":{offset},\"value\":1}}");
            until.covers(&raw(&record), None).unwrap()
        };
        assert!(covers(&until, 0, 4) && covers(&until, 1, 1));
        assert!(!covers(&until, 0, 5) && !covers(&until, 2, 0), "these are new");
        assert!(!until.is_reached(&positions(&[(0, 4, 9), (1, 2, 2), (2, 0, 7)])).unwrap());
        assert!(!covers(&until, 1, 2));
        assert!(until.is_reached(&positions(&[(0, 7, 9), (1, 2, 2), (2, 1, 7)])).unwrap());

        let mut until = Until::Ends([(0, 5)].into());
        assert!(until.is_reached(&positions(&[(0, 3, 3)])).is_err(), "it was recreated");
    }

    #[test]
    fn a_record_without_its_partition_is_of_the_one_that_is_read() {
        let until = Until::Ends([(3, 7)].into());
        for (offset, is_covered) in [(6, true), (7, false)] {
            let record = raw(&format!("{{\"offset\":{offset},\"value\":{{\"offset\":0}}}}"));
            assert_eq!(until.covers(&record, Some(3)).unwrap(), is_covered);
            assert!(!until.covers(&record, Some(0)).unwrap());
        }
    }

    #[test]
    fn it_ends_when_each_has_been_at_its_end() {
        let mut until = Until::HighWatermarks(BTreeSet::new());
        assert!(!until.is_reached(&positions(&[(0, 4, 9), (1, 2, 2)])).unwrap());
        assert!(until.is_reached(&positions(&[(0, 9, 9), (1, 2, 3)])).unwrap());
        assert!(!Until::Never.is_reached(&positions(&[(0, 9, 9)])).unwrap());
    }
}
