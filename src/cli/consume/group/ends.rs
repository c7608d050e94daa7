//! `--until-end`: where the partitions of a group ended when we joined it.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::partitions::Partition;
use crate::{
    cli::{client::Client, consume::page::RecordLocation},
    model::Name,
};

/// The ends of all partitions then.
#[derive(Default)]
pub struct Ends {
    ends: BTreeMap<Partition, i64>,
    /// The partitions that have not been read up to there.
    open: BTreeSet<Partition>,
}

#[derive(Deserialize)]
struct GroupInfo {
    partitions: Vec<PartitionInfo>,
}

#[derive(Deserialize)]
struct PartitionInfo {
    topic: String,
    partition: i32,
    high_watermark: i64,
    lag: Option<i64>,
}

impl Ends {
    pub async fn of(client: &Client, group: &Name) -> anyhow::Result<Self> {
        let describe = client.request(Method::GET, &["groups", group.as_str()], &[]);
        let GroupInfo { partitions } = client.send(describe).await?.json()?;
        Ok(Self::new(partitions))
    }

    fn new(partitions: Vec<PartitionInfo>) -> Self {
        let mut ends = Self::default();
        for PartitionInfo { topic, partition, high_watermark, lag } in partitions {
            if lag != Some(0) {
                ends.open.insert((topic.clone(), partition));
            }
            ends.ends.insert((topic, partition), high_watermark);
        }
        ends
    }

    /// The records before the ends, of these that have been read. Partitions that were created
    /// later have none.
    pub fn before<'a>(&mut self, records: Vec<&'a RawValue>) -> anyhow::Result<Vec<&'a RawValue>> {
        let mut before = Vec::with_capacity(records.len());
        for record in records {
            let RecordLocation { topic, partition, offset } = RecordLocation::of(record)?;
            let partition = (topic.unwrap_or_default(), partition.unwrap_or_default());
            let end = self.ends.get(&partition).copied().unwrap_or_default();
            if offset + 1 >= end {
                self.open.remove(&partition);
            }
            if offset < end {
                before.push(record);
            }
        }
        Ok(before)
    }

    /// Whether these partitions have been read up to their ends.
    pub fn are_reached(&self, owned: &BTreeSet<Partition>) -> bool {
        !owned.is_empty() && owned.is_disjoint(&self.open)
    }
}

/// The offsets behind these records, as a commit takes them.
pub fn offsets_after(records: &[&RawValue]) -> anyhow::Result<Value> {
    let mut next: BTreeMap<Partition, i64> = BTreeMap::new();
    for record in records {
        let RecordLocation { topic, partition, offset } = RecordLocation::of(record)?;
        next.insert((topic.unwrap_or_default(), partition.unwrap_or_default()), offset + 1);
    }
    let mut offsets = Vec::with_capacity(next.len());
    for ((topic, partition), offset) in next {
        offsets.push(json!({"topic": topic, "partition": partition, "offset": offset}));
    }
    Ok(json!({"offsets": offsets}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(partition: i32, offset: i64) -> Box<RawValue> {
        let record = json!({"topic": "t", "partition": partition, "offset": offset, "value": 0});
        RawValue::from_string(record.to_string()).unwrap()
    }

    fn owned(partitions: &[i32]) -> BTreeSet<Partition> {
        partitions.iter().map(|partition| ("t".to_owned(), *partition)).collect()
    }

    #[test]
    fn records_behind_the_ends_are_left_to_others() {
        let info = |(partition, high_watermark, lag)| PartitionInfo {
            topic: "t".to_owned(),
            partition,
            high_watermark,
            lag,
        };
        let mut ends = Ends::new([(0, 5, Some(2)), (1, 3, Some(0)), (2, 4, None)].map(info).into());
        assert!(ends.are_reached(&owned(&[1])), "nothing was left there");
        assert!(!ends.are_reached(&owned(&[0, 1])) && !ends.are_reached(&owned(&[2])));
        assert!(!ends.are_reached(&owned(&[])), "nothing is assigned yet");
        let records = [raw(0, 3), raw(1, 3), raw(2, 9), raw(7, 0)];
        let before = ends.before(records.iter().map(AsRef::as_ref).collect()).unwrap();
        assert_eq!(before.iter().map(|r| r.get()).collect::<Vec<_>>(), [records[0].get()]);
        assert!(!ends.are_reached(&owned(&[0])) && ends.are_reached(&owned(&[1, 2])));
        let records = [raw(0, 4), raw(0, 5)];
        let before = ends.before(records.iter().map(AsRef::as_ref).collect()).unwrap();
        assert_eq!(before.len(), 1);
        assert!(ends.are_reached(&owned(&[0, 1, 2])));
        assert!(ends.are_reached(&owned(&[7])), "it is younger");
    }

    #[test]
    fn a_commit_is_behind_the_last_record_of_each_partition() {
        let records = [raw(1, 7), raw(0, 3), raw(1, 8)];
        let offsets = offsets_after(&records.iter().map(AsRef::as_ref).collect::<Vec<_>>());
        let of =
            |partition, offset| json!({"topic": "t", "partition": partition, "offset": offset});
        assert_eq!(offsets.unwrap(), json!({"offsets": [of(0, 4), of(1, 9)]}));
    }
}
