//! What `consume` reads, one part after the other: a whole topic, or partitions of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
};

use reqwest::Method;
use serde::Deserialize;

use super::{
    reader::{self, Part, Source, TopicPosition, Until},
    start::Start,
};
use crate::{
    cli::{WrongUsage, client::Client},
    model::{
        Name,
        partitioner::{key_hash, partition_of},
    },
};

/// What the flags say about where to read.
pub struct Selection<'a> {
    pub topic: &'a Name,
    pub partition: Option<i32>,
    /// Read only the partition of this key.
    pub key: Option<&'a str>,
    pub start: Start,
    pub follows: bool,
    /// Whether a follower stops at the end.
    pub until_end: bool,
}

#[derive(Deserialize)]
struct TopicInfo {
    partitions: Vec<PartitionInfo>,
}

#[derive(Deserialize)]
struct PartitionInfo {
    partition: i32,
    log_start_offset: i64,
    high_watermark: i64,
}

impl Selection<'_> {
    pub async fn parts(self, client: &Client) -> anyhow::Result<Vec<Part>> {
        let describe = client.request(Method::GET, &["topics", self.topic.as_str()], &[]);
        let TopicInfo { mut partitions } = client.send(describe).await?.json()?;
        let count = i32::try_from(partitions.len()).unwrap_or(i32::MAX);
        let of_key = self.key.map(|key| partition_of(key_hash(key.as_bytes()), count));
        let only = self.partition.or(of_key);
        if let Some(only) = only {
            partitions.retain(|one| one.partition == only);
            if partitions.is_empty() {
                let what = format!("{} has partitions 0 to {}", self.topic, count - 1);
                return Err(WrongUsage(what).into());
            }
        }
        let follows_all = self.follows && only.is_none();
        let (name, value) = match &self.start {
            Start::At(_) if follows_all => {
                let what = "with --follow, --offset N needs --partition; --offset -N does not";
                return Err(WrongUsage(what.into()).into());
            }
            Start::Last(count) if follows_all => {
                return self.tails_and_more(client, &partitions, *count).await;
            }
            Start::At(offset) => {
                return Ok(self.each(&partitions, |_| offset.to_string()));
            }
            Start::Last(count) => {
                let first = |one: &PartitionInfo| {
                    back(one.high_watermark, *count).max(one.log_start_offset).to_string()
                };
                return Ok(self.each(&partitions, first));
            }
            Start::Earliest => ("offset", "earliest".to_owned()),
            Start::Latest => ("offset", "latest".to_owned()),
            Start::Timestamp(instant) => ("timestamp", instant.clone()),
        };
        // by now `latest` may be after the end, and would read newer records
        let is_over = !self.follows && self.start == Start::Latest;
        let source = only.map_or(Source::Topic, |only| self.source(only));
        Ok(vec![Part { source, from: (name, value), until: self.until(&partitions), is_over }])
    }

    fn source(&self, partition: i32) -> Source {
        // who named the partition knows it
        Source::Partition { partition, is_tagged: self.partition.is_none() }
    }

    /// Where the parts of these partitions stop.
    fn until(&self, partitions: &[PartitionInfo]) -> Until {
        match (self.follows, self.until_end) {
            (true, true) => Until::HighWatermarks(BTreeSet::new()),
            (true, false) => Until::Never,
            (false, _) => {
                let ends = partitions.iter().map(|one| (one.partition, one.high_watermark));
                Until::Ends(ends.collect())
            }
        }
    }

    /// Each partition, from an offset of its own.
    fn each(
        &self,
        partitions: &[PartitionInfo],
        first: impl Fn(&PartitionInfo) -> String,
    ) -> Vec<Part> {
        let part = |one: &PartitionInfo| {
            let offset = first(one);
            let is_over = !self.follows && offset == one.high_watermark.to_string();
            let until = self.until(slice::from_ref(one));
            Part { source: self.source(one.partition), from: ("offset", offset), until, is_over }
        };
        partitions.iter().map(part).collect()
    }

    /// The last records of every partition, and then what follows them in the topic.
    async fn tails_and_more(
        &self,
        client: &Client,
        partitions: &[PartitionInfo],
        count: u64,
    ) -> anyhow::Result<Vec<Part>> {
        let TopicPosition { partitions: ends, cursor } = reader::latest(client, self.topic).await?;
        let log_starts: BTreeMap<i32, i64> =
            partitions.iter().map(|one| (one.partition, one.log_start_offset)).collect();
        let tail = |(partition, end): (i32, i64)| {
            let log_start = log_starts.get(&partition).copied().unwrap_or_default();
            let first = back(end, count).max(log_start);
            let (source, until) = (self.source(partition), Until::Ends([(partition, end)].into()));
            Part { source, from: ("offset", first.to_string()), until, is_over: first == end }
        };
        let ends = ends.iter().map(|one| (one.partition, one.next_offset));
        let mut parts: Vec<Part> = ends.map(tail).collect();
        let (from, until) = (("cursor", cursor), self.until(&[]));
        parts.push(Part { source: Source::Topic, from, until, is_over: false });
        Ok(parts)
    }
}

/// The offset of the record that many records before the end.
fn back(end: i64, count: u64) -> i64 {
    end.saturating_sub_unsigned(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partitions() -> Vec<PartitionInfo> {
        let info = |(partition, log_start_offset, high_watermark)| PartitionInfo {
            partition,
            log_start_offset,
            high_watermark,
        };
        [(0, 0, 5), (1, 38, 40), (2, 0, 0)].map(info).into()
    }

    fn selection(topic: &Name, follows: bool) -> Selection<'_> {
        let (partition, key, start) = (None, None, Start::Earliest);
        Selection { topic, partition, key, start, follows, until_end: false }
    }

    #[test]
    fn the_last_records_begin_no_earlier_than_the_log() {
        let topic = Name::parse("t").unwrap();
        let first = |one: &PartitionInfo| back(one.high_watermark, 3).max(one.log_start_offset);
        let parts = selection(&topic, false).each(&partitions(), |one| first(one).to_string());
        let from: Vec<&str> = parts.iter().map(|part| part.from.1.as_str()).collect();
        assert_eq!(from, ["2", "38", "0"]);
        let over: Vec<bool> = parts.iter().map(|part| part.is_over).collect();
        assert_eq!(over, [false, false, true]);
        assert_eq!(parts[1].until, Until::Ends([(1, 40)].into()));
        assert_eq!(back(5, u64::MAX), i64::MIN);
    }

    #[test]
    fn a_follower_of_one_partition_does_not_end_where_it_ended() {
        let topic = Name::parse("t").unwrap();
        let parts = selection(&topic, true).each(&partitions()[2..], |_| "0".to_owned());
        assert!(!parts[0].is_over && parts[0].until == Until::Never);
    }
}
