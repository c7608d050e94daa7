//! Reads all partitions of a topic, one request at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::bail;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{NO_WAIT, WAIT, ask::Ask};
use crate::{cli::client::Client, model::Name};

/// Where to stop reading the partitions.
pub enum Until {
    /// At these offsets; partitions that have reached theirs are removed.
    Ends(BTreeMap<i32, i64>),
    /// Where each has reached its high watermark once; these partitions have.
    Found(BTreeSet<i32>),
    Never,
}

/// Reads a topic, page by page.
pub struct AllPartitions {
    pub client: Arc<Client>,
    pub topic: Name,
    /// The parameter `offset` or `timestamp`, and its value; after the first response its cursor.
    pub from: (&'static str, String),
    pub until: Until,
    pub is_over: bool,
}

#[derive(Deserialize)]
struct TopicAnswer<'a> {
    #[serde(borrow)]
    records: Vec<&'a RawValue>,
    partitions: Vec<PartitionPage>,
    cursor: String,
}

#[derive(Deserialize)]
struct PartitionPage {
    partition: i32,
    next_offset: i64,
    high_watermark: i64,
}

/// The partition and offset of a record.
#[derive(Deserialize)]
struct RecordOffset {
    partition: i32,
    offset: i64,
}

impl AllPartitions {
    /// The next records, one per line, which may be empty; none at the end.
    pub async fn next(&mut self, at_most: u64) -> anyhow::Result<Option<Vec<u8>>> {
        if self.is_over {
            return Ok(None);
        }
        let begun = Instant::now();
        let wait = if matches!(self.until, Until::Never) { WAIT } else { Duration::ZERO };
        let (what, from) = &self.from;
        let ask = Ask { from: Some((*what, from.as_str())), at_most, wait };
        let topic = self.topic.as_str();
        let path = ["topics", topic, "records"];
        let request = ask.request(&self.client, &path, &["topics", topic, "reads"]);
        let answer = self.client.send(request).await?;
        let TopicAnswer { records, partitions, cursor } = answer.json()?;
        let mut lines = Vec::with_capacity(answer.body.len());
        for record in &records {
            if self.until.covers(record)? {
                lines.extend_from_slice(record.get().as_bytes());
                lines.push(b'\n');
            }
        }
        self.is_over = self.until.is_reached(&partitions)?;
        self.from = ("cursor", cursor);
        if !wait.is_zero() && records.is_empty() && begun.elapsed() < NO_WAIT {
            tokio::time::sleep(NO_WAIT).await;
        }
        Ok(Some(lines))
    }
}

impl Until {
    /// Whether to print a record: some modes omit those appended after the start.
    fn covers(&self, record: &RawValue) -> anyhow::Result<bool> {
        let Until::Ends(ends) = self else { return Ok(true) };
        let RecordOffset { partition, offset } = serde_json::from_str(record.get())?;
        Ok(ends.get(&partition).is_some_and(|end| offset < *end))
    }

    /// Whether the end is reached, after the records of a response with these partitions.
    fn is_reached(&mut self, partitions: &[PartitionPage]) -> anyhow::Result<bool> {
        for PartitionPage { partition, next_offset, high_watermark } in partitions {
            let is_read = next_offset >= high_watermark;
            match self {
                Until::Ends(ends) => match ends.get(partition) {
                    Some(end) if next_offset >= end => {
                        ends.remove(partition);
                    }
                    Some(_) if is_read => {
                        bail!("the log ends before its earlier end: was the topic recreated?");
                    }
                    _ => {}
                },
                Until::Found(found) if is_read => {
                    found.insert(*partition);
                }
                Until::Found(_) | Until::Never => {}
            }
        }
        Ok(match self {
            Until::Ends(ends) => ends.is_empty(),
            Until::Found(found) => found.len() >= partitions.len(),
            Until::Never => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(partitions: &[(i32, i64, i64)]) -> Vec<PartitionPage> {
        let ends = |&(partition, next_offset, high_watermark)| PartitionPage {
            partition,
            next_offset,
            high_watermark,
        };
        partitions.iter().map(ends).collect()
    }

    #[test]
    fn it_ends_where_the_partitions_ended() {
        let mut until = Until::Ends([(0, 5), (1, 2)].into());
        let covers = |until: &Until, partition, offset| {
            let record = format!("{{\"partition\":{partition},\"offset\":{offset},\"value\":1}}");
            until.covers(&RawValue::from_string(record).unwrap()).unwrap()
        };
        assert!(covers(&until, 0, 4) && covers(&until, 1, 1));
        assert!(!covers(&until, 0, 5) && !covers(&until, 2, 0), "these are new");
        assert!(!until.is_reached(&ends(&[(0, 4, 9), (1, 2, 2), (2, 0, 7)])).unwrap());
        assert!(!covers(&until, 1, 2));
        assert!(until.is_reached(&ends(&[(0, 7, 9), (1, 2, 2), (2, 1, 7)])).unwrap());

        let mut until = Until::Ends([(0, 5)].into());
        assert!(until.is_reached(&ends(&[(0, 3, 3)])).is_err(), "it was made again");
    }

    #[test]
    fn it_ends_when_each_has_been_at_its_end() {
        let mut until = Until::Found(BTreeSet::new());
        assert!(!until.is_reached(&ends(&[(0, 4, 9), (1, 2, 2)])).unwrap());
        assert!(until.is_reached(&ends(&[(0, 9, 9), (1, 2, 3)])).unwrap());
        assert!(!Until::Never.is_reached(&ends(&[(0, 9, 9)])).unwrap());
    }
}
