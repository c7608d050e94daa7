//! All partitions of a topic, with one request at a time.

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

/// Until where the partitions are read.
pub enum Until {
    /// Up to here each; those that are there already are not in it any more.
    Ends(BTreeMap<i32, i64>),
    /// Until each has once been read to where it ended just then; these have.
    Found(BTreeSet<i32>),
    Never,
}

/// A topic, read on and on.
pub struct AllPartitions {
    pub client: Arc<Client>,
    pub topic: Name,
    /// `offset` or `timestamp`, and where; from the first answer on its cursor.
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

/// Where a record is.
#[derive(Deserialize)]
struct RecordOffset {
    partition: i32,
    offset: i64,
}

impl AllPartitions {
    /// The next records, a line each, perhaps none yet; none at all at the end.
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
    /// Whether a record is to be printed; what came after the start may be for another time.
    fn covers(&self, record: &RawValue) -> anyhow::Result<bool> {
        let Until::Ends(ends) = self else { return Ok(true) };
        let RecordOffset { partition, offset } = serde_json::from_str(record.get())?;
        Ok(ends.get(&partition).is_some_and(|end| offset < *end))
    }

    /// What an answer says of the partitions, its records being printed.
    fn is_reached(&mut self, partitions: &[PartitionPage]) -> anyhow::Result<bool> {
        for PartitionPage { partition, next_offset, high_watermark } in partitions {
            let is_read = next_offset >= high_watermark;
            match self {
                Until::Ends(ends) => match ends.get(partition) {
                    Some(end) if next_offset >= end => {
                        ends.remove(partition);
                    }
                    Some(_) if is_read => {
                        bail!("the log ends before the end it had: was the topic made again?");
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
