//! `oncelog consume`: prints records to stdout, one JSON object per line.
//!
//! A response is printed after all of it has arrived, so a broken connection leaves no partial or
//! repeated line.

mod group;
mod page;
mod reader;

use std::{collections::BTreeSet, slice, time::Duration};

use clap::Args;
use reqwest::Method;
use serde::Deserialize;

use self::{
    group::GroupFlags,
    reader::{Reader, Source, Until},
};
use super::{
    WrongUsage, block_on,
    client::{Client, Patience, ServerFlags},
    common::name,
    output::{closed, print},
};
use crate::model::{Name, Timestamp};

/// How long a request of `--follow` waits for records.
const WAIT: Duration = Duration::from_secs(20);
/// An empty response that arrives sooner comes from a server that is shutting down.
const MIN_WAIT: Duration = Duration::from_secs(1);

const NAMED_OFFSETS: [&str; 2] = ["earliest", "latest"];

pub(super) const EXAMPLE: &str = "\
Example:
  oncelog consume --topic orders --follow";

pub(super) const HELP: &str = "\
Each line is a record with its `offset` and `appended_at`. Without --partition all partitions are
read, also those added meanwhile, and each line has its `partition`; only the records of one
partition have an order.

Without --follow it stops where the log ended when the command started. With --follow it waits for
more until Ctrl-C, also while the server restarts; with --until-end it stops once it has printed
everything, including what arrived meanwhile. A record that was trimmed before it could be read is
an error; it is never skipped silently.

With --group it is a member of a group: it shares the partitions with the other members, resumes at
the committed offsets, and commits what it has printed; each line has its `topic` and `partition`.
Records that were printed but not committed are printed again by the next owner of the partition;
for exactly-once, commit in a transaction of your own (docs/groups.md). Without --follow it stops
once its partitions have nothing more, including what arrived meanwhile. When it ends, also by
Ctrl-C or SIGTERM, it leaves the group, and other members get its partitions at once; with
--instance-id it stays a member, and the same command keeps its partitions if it starts before the
lease expires. Assigned and revoked partitions are reported on stderr.

Examples:
  oncelog consume --topic orders | jq .value
  oncelog consume --topic orders --partition 0 --offset latest --follow
  oncelog consume --topic orders --timestamp 2026-11-21T08:00:00Z --limit 10
  oncelog consume --topic orders --group billing --follow
  oncelog consume --topic-pattern '^carts' --group billing --instance-id pod-1 --follow";

#[derive(Args)]
pub(super) struct ConsumeFlags {
    /// Topic to read; with --group it may be repeated
    #[arg(long = "topic", required_unless_present = "topic_pattern", value_parser = name)]
    topics: Vec<Name>,
    /// Read only this partition
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Where to start: an offset (with --follow it needs --partition), earliest or latest
    #[arg(long, value_name = "OFFSET", default_value = "earliest", value_parser = offset)]
    offset: String,
    /// Start at the first record appended at or after this instant (RFC 3339)
    #[arg(long, value_name = "INSTANT", conflicts_with = "offset", value_parser = instant)]
    timestamp: Option<String>,
    /// Wait for more records at the end
    #[arg(long)]
    follow: bool,
    /// With --follow: stop once everything has been printed
    #[arg(long, requires = "follow")]
    until_end: bool,
    /// Print at most this many records, then stop
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Give up when a request has been retried for this long [default: 10000; with --follow: never]
    #[arg(long, value_name = "MS")]
    max_retry_ms: Option<u64>,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    group: GroupFlags,
}

impl ConsumeFlags {
    fn patience(&self) -> Patience {
        let patience = self.max_retry_ms.or((!self.follow).then_some(10_000));
        patience.map(Duration::from_millis)
    }
}

fn offset(text: &str) -> Result<String, String> {
    let number = || text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<i64>().is_ok();
    if NAMED_OFFSETS.contains(&text) || number() {
        Ok(text.into())
    } else {
        Err("an offset is a number, earliest or latest".into())
    }
}

fn instant(text: &str) -> Result<String, String> {
    Timestamp::parse(text).map(|instant| instant.to_string()).map_err(str::to_owned)
}

#[derive(Deserialize)]
struct TopicInfo {
    partitions: Vec<PartitionInfo>,
}

#[derive(Deserialize)]
struct PartitionInfo {
    partition: i32,
    high_watermark: i64,
}

pub(super) fn run(flags: ConsumeFlags) -> anyhow::Result<()> {
    block_on(async {
        if flags.group.group.is_some() {
            return group::consume(flags).await;
        }
        tokio::select! {
            result = consume(flags) => result,
            error = closed() => Err(error.into()),
        }
    })
}

async fn consume(flags: ConsumeFlags) -> anyhow::Result<()> {
    let patience = flags.patience();
    let Ok([topic]) = <[Name; 1]>::try_from(flags.topics) else {
        return Err(WrongUsage("without --group, give exactly one --topic".into()).into());
    };
    let client = Client::new(flags.server, patience)?;
    let describe = client.request(Method::GET, &["topics", topic.as_str()], &[]);
    let TopicInfo { mut partitions } = client.send(describe).await?.json()?;
    if let Some(wanted) = flags.partition {
        let count = partitions.len();
        partitions.retain(|partition| partition.partition == wanted);
        if partitions.is_empty() {
            let what = format!("{topic} has partitions 0 to {}", count.saturating_sub(1));
            return Err(WrongUsage(what).into());
        }
    }
    let is_number = flags.timestamp.is_none() && !NAMED_OFFSETS.contains(&flags.offset.as_str());
    if is_number && flags.follow && flags.partition.is_none() {
        let what = "with --follow, a numeric --offset needs --partition";
        return Err(WrongUsage(what.into()).into());
    }
    let from = match flags.timestamp {
        Some(instant) => ("timestamp", instant),
        None => ("offset", flags.offset),
    };
    let sources: Vec<(Source, &[PartitionInfo])> = if flags.partition.is_none() && !is_number {
        vec![(Source::Topic, &partitions)]
    } else {
        let is_tagged = flags.partition.is_none();
        let source = |partition| Source::Partition { partition, is_tagged };
        partitions.iter().map(|one| (source(one.partition), slice::from_ref(one))).collect()
    };
    let mut left = flags.limit.unwrap_or(u64::MAX);
    for (source, partitions) in sources {
        let until = match (flags.follow, flags.until_end) {
            (false, _) => {
                Until::Ends(partitions.iter().map(|p| (p.partition, p.high_watermark)).collect())
            }
            (true, true) => Until::HighWatermarks(BTreeSet::new()),
            (true, false) => Until::Never,
        };
        // by now `latest` may be after the end, and would read newer records
        let is_at_end = |p: &PartitionInfo| from.1 == p.high_watermark.to_string();
        let is_over = !flags.follow && (from.1 == "latest" || partitions.iter().all(is_at_end));
        let (client, topic, from) = (&client, &topic, from.clone());
        let mut reader = Reader { client, topic, source, from, until, is_over };
        while left > 0
            && let Some(page) = reader.next(left).await?
        {
            left = left.saturating_sub(page.record_count);
            print(&page.lines)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets() {
        for text in ["0", "17", "earliest", "latest"] {
            assert!(offset(text).is_ok());
        }
        for text in ["", "-1", "+1", "first", "99999999999999999999"] {
            assert!(offset(text).is_err());
        }
    }
}
