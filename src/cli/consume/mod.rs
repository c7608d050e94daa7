//! `oncelog consume`: prints records to stdout, one JSON object per line.
//!
//! A response is printed after all of it has arrived, so a broken connection leaves no partial or
//! repeated line.

mod ask;
mod group;
mod topic;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use reqwest::{
    Method,
    header::{ACCEPT, HeaderMap},
};
use serde::Deserialize;
use tokio::time::Instant;

use self::{
    group::GroupFlags,
    topic::{AllPartitions, Until},
};
use super::{
    WrongUsage, block_on,
    client::{ANSWER_TIMEOUT, Client, Patience, ServerFlags},
    common::name,
    output::{closed, print},
};
use crate::model::{Name, Timestamp};

/// How long a request of `--follow` waits for records.
const WAIT: Duration = Duration::from_secs(20);
/// An empty response that arrives sooner comes from a server that is shutting down.
const NO_WAIT: Duration = Duration::from_secs(1);
const MAX_LIMIT: u64 = 10_000;

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
    if ["earliest", "latest"].contains(&text) || number() {
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

/// Where to stop reading a partition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    At(i64),
    /// Where a response reaches the high watermark.
    Found,
    Never,
}

/// The records of one response.
struct ReadPage {
    lines: Bytes,
    next_offset: i64,
    high_watermark: i64,
}

/// Reads one partition, page by page.
struct PartitionReader {
    client: Arc<Client>,
    topic: Name,
    partition: i32,
    /// The parameter `offset` or `timestamp`, and its value; after the first response the next
    /// offset.
    from: (&'static str, String),
    end: End,
    /// Whether to add the partition to each line.
    tagged: bool,
}

pub(super) fn run(flags: ConsumeFlags) -> anyhow::Result<()> {
    block_on(async {
        if flags.group.group.is_some() {
            return group::consume(flags).await;
        }
        tokio::select! {
            done = consume(flags) => done,
            closed = closed() => Err(closed.into()),
        }
    })
}

async fn consume(flags: ConsumeFlags) -> anyhow::Result<()> {
    let patience = flags.patience();
    let Ok([topic_name]) = <[Name; 1]>::try_from(flags.topics) else {
        return Err(WrongUsage("without --group, give exactly one --topic".into()).into());
    };
    let client = Arc::new(Client::new(flags.server, patience)?);
    let described = client.request(Method::GET, &["topics", topic_name.as_str()], &[]);
    let mut topic: TopicInfo = client.send(described).await?.json()?;
    if let Some(wanted) = flags.partition {
        let count = topic.partitions.len();
        topic.partitions.retain(|partition| partition.partition == wanted);
        if topic.partitions.is_empty() {
            let what = format!("{} has partitions 0 to {}", topic_name, count.saturating_sub(1));
            return Err(WrongUsage(what).into());
        }
    }
    let from = match flags.timestamp {
        Some(instant) => ("timestamp", instant),
        None => ("offset", flags.offset),
    };
    let mut left = flags.limit.unwrap_or(u64::MAX);
    let is_number = from.0 == "offset" && !["earliest", "latest"].contains(&from.1.as_str());
    if flags.partition.is_none() && !is_number {
        let until = match (flags.follow, flags.until_end) {
            (false, _) => {
                let end = |p: &PartitionInfo| (p.partition, p.high_watermark);
                Until::Ends(topic.partitions.iter().map(end).collect())
            }
            (true, true) => Until::Found(BTreeSet::new()),
            (true, false) => Until::Never,
        };
        // `latest` is at the ends or after them
        let is_over = !flags.follow && from.1 == "latest";
        let mut whole = AllPartitions { client, topic: topic_name, from, until, is_over };
        while left > 0
            && let Some(lines) = whole.next(left).await?
        {
            show(&lines, &mut left)?;
        }
        return Ok(());
    }
    if flags.follow && flags.partition.is_none() {
        let what = "with --follow, a numeric --offset needs --partition";
        return Err(WrongUsage(what.into()).into());
    }
    for partition in topic.partitions {
        let mut reader = PartitionReader {
            client: client.clone(),
            topic: topic_name.clone(),
            partition: partition.partition,
            from: from.clone(),
            end: match (flags.follow, flags.until_end) {
                (false, _) => End::At(partition.high_watermark),
                (true, true) => End::Found,
                (true, false) => End::Never,
            },
            tagged: flags.partition.is_none(),
        };
        while left > 0
            && let Some(page) = reader.next(left).await?
        {
            show(&page.lines, &mut left)?;
        }
    }
    Ok(())
}

/// Prints the lines, up to the limit.
fn show(lines: &[u8], left: &mut u64) -> anyhow::Result<()> {
    let count = memchr::memchr_iter(b'\n', lines).count() as u64;
    if count <= *left {
        *left -= count;
        return print(lines);
    }
    let keep = usize::try_from(*left).unwrap_or(usize::MAX);
    *left = 0;
    print(first(lines, keep))
}

/// The first `count` lines.
fn first(lines: &[u8], count: usize) -> &[u8] {
    let Some(last) = count.checked_sub(1) else { return &[] };
    match memchr::memchr_iter(b'\n', lines).nth(last) {
        Some(newline) => &lines[..=newline],
        None => lines,
    }
}

/// The size of the lines whose offsets are before `end`.
fn before(lines: &[u8], end: i64) -> anyhow::Result<usize> {
    let mut size_bytes = 0;
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let record: serde_json::Value = serde_json::from_slice(line)?;
        if record["offset"].as_i64().is_none_or(|offset| offset >= end) {
            break;
        }
        size_bytes += line.len();
    }
    Ok(size_bytes)
}

impl PartitionReader {
    /// The next records, which may be empty; none at the end.
    async fn next(&mut self, at_most: u64) -> anyhow::Result<Option<ReadPage>> {
        if self.is_over() {
            return Ok(None);
        }
        let begun = Instant::now();
        let mut page = self.fetch(at_most).await?;
        if self.end == End::Never && page.lines.is_empty() && begun.elapsed() < NO_WAIT {
            tokio::time::sleep(NO_WAIT).await;
        }
        self.from = ("offset", page.next_offset.to_string());
        match self.end {
            // records appended after the start are not printed
            End::At(end) => {
                if page.next_offset > end {
                    page.lines.truncate(before(&page.lines, end)?);
                }
                self.from.1 = page.next_offset.min(end).to_string();
                if page.next_offset >= page.high_watermark && page.next_offset < end {
                    bail!("the log ends before its earlier end: was the topic recreated?");
                }
            }
            End::Found if page.next_offset >= page.high_watermark => {
                self.end = End::At(page.next_offset);
            }
            End::Found | End::Never => {}
        }
        if self.tagged && !page.lines.is_empty() {
            page.lines = tag(&page.lines, self.partition);
        }
        Ok(Some(page))
    }

    fn is_over(&self) -> bool {
        let End::At(end) = self.end else { return false };
        let (what, from) = &self.from;
        // by now `latest` may be after the end, and would read newer records
        *what == "offset" && (from == "latest" || *from == end.to_string())
    }

    async fn fetch(&self, at_most: u64) -> anyhow::Result<ReadPage> {
        let partition = self.partition.to_string();
        let path = ["topics", self.topic.as_str(), "partitions", &partition, "records"];
        let limit = at_most.clamp(1, MAX_LIMIT).to_string();
        let wait = if self.end == End::Never { WAIT } else { Duration::ZERO };
        let wait_ms = wait.as_millis().to_string();
        let (what, from) = &self.from;
        let query = [(*what, from.as_str()), ("limit", &limit), ("wait_ms", &wait_ms)];
        let request = self.client.request(Method::GET, &path, &query);
        let request = request.header(ACCEPT, "application/x-ndjson").timeout(ANSWER_TIMEOUT + wait);
        let answer = self.client.send(request).await?;
        Ok(ReadPage {
            next_offset: number(&answer.headers, "oncelog-next-offset")?,
            high_watermark: number(&answer.headers, "oncelog-high-watermark")?,
            lines: answer.body,
        })
    }
}

fn number(headers: &HeaderMap, name: &str) -> anyhow::Result<i64> {
    let value = headers.get(name).and_then(|value| value.to_str().ok()?.parse().ok());
    value.with_context(|| format!("the response has no {name}; is --url an oncelog server?"))
}

/// Adds the partition to the lines unless they have it; all lines of a response are alike.
fn tag(lines: &Bytes, partition: i32) -> Bytes {
    #[derive(Deserialize)]
    struct Tagged {
        #[serde(rename = "partition")]
        _partition: i32,
    }
    if serde_json::from_slice::<Tagged>(first(lines, 1)).is_ok() {
        return lines.clone();
    }
    let member = format!("{{\"partition\":{partition},");
    let mut tagged = Vec::with_capacity(lines.len() * 5 / 4);
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        tagged.extend_from_slice(member.as_bytes());
        tagged.extend_from_slice(line.get(1..).unwrap_or_default());
    }
    tagged.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_get_their_partition_once() {
        let lines =
            Bytes::from_static(b"{\"offset\":1,\"value\":1}\n{\"offset\":2,\"value\":{}}\n");
        let tagged = tag(&lines, 3);
        let want = "{\"partition\":3,\"offset\":1,\"value\":1}\n\
                    {\"partition\":3,\"offset\":2,\"value\":{}}\n";
        assert_eq!(tagged, want);
        assert_eq!(tag(&tagged, 3), want);
    }

    #[test]
    fn the_first_lines() {
        let table = [(0, ""), (1, "a\n"), (2, "a\nb\n"), (3, "a\nb\n")];
        for (count, want) in table {
            assert_eq!(first(b"a\nb\n", count), want.as_bytes());
        }
    }

    #[test]
    fn lines_before_an_offset() {
        let lines = b"{\"partition\":0,\"offset\":1,\"value\":{\"offset\":9}}\n{\"offset\":7,\"value\":1}\n";
        let first = lines.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for (end, want) in [(0, 0), (1, 0), (2, first), (7, first), (8, lines.len())] {
            assert_eq!(before(lines, end).unwrap(), want, "{end}");
        }
    }

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
