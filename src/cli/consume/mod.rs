//! `oncelog consume`: prints records to stdout, one JSON object per line.
//!
//! A response is printed after all of it has arrived, so a broken connection leaves no partial or
//! repeated line.

mod format;
mod group;
mod page;
mod parts;
mod printer;
mod reader;
mod start;

use std::time::Duration;

use clap::Args;

use self::{
    format::Format,
    group::GroupFlags,
    parts::Selection,
    printer::Printer,
    reader::Reader,
    start::{Start, instant, offset},
};
use super::{
    WrongUsage, block_on,
    client::{Client, Patience},
    common::{milliseconds, name},
    output::{closed, print},
    server::ServerFlags,
};
use crate::model::Name;

/// How long a request of `--follow` waits for records.
const WAIT: Duration = Duration::from_secs(20);
/// An empty response that arrives sooner comes from a server that is shutting down.
const MIN_WAIT: Duration = Duration::from_secs(1);

pub(super) const EXAMPLE: &str = "\
Example:
  oncelog consume --topic orders --follow";

pub(super) const HELP: &str = "\
Each line is a record with its `offset` and `appended_at`. Without --partition all partitions are
read, also those added meanwhile, and each line has its `partition`; only the records of one
partition have an order.

--offset -10 starts ten records before the end of each partition that is read. --key reads only the
partition that this key belongs to among those that the topic has; records that were appended
before the topic grew, or to a partition of the producer's choice, may be in another.

With --format each record is printed in it, instead of as JSON: %k is the key, %v the value (a text
without its quotes, `value_base64` decoded, anything else as JSON), %t the topic, %p the partition,
%o the offset, %T the timestamp in milliseconds since 1970 (the producer's, else that of the
append), %h the headers (`a=1,b=2`), %n a newline and %% a percent sign; \\n, \\t, \\r, \\0, \\\\ and
\\xHH are bytes. A newline follows each record, unless the format ends with one, or with \\0.

Without --follow it stops where the log ended when the command started. With --follow it waits for
more until Ctrl-C, also while the server restarts; with --until-end it stops once it has printed
everything, including what arrived meanwhile. A record that was trimmed before it could be read is
an error; it is never skipped silently.

With --group it is a member of a group: it shares the partitions with the other members, resumes at
the committed offsets, and commits what it has printed; each line has its `topic` and `partition`.
Records that were printed but not committed are printed again by the next owner of the partition;
for exactly-once, commit in a transaction of your own (docs/groups.md). Without --follow it stops
once its partitions have nothing more, including what arrived meanwhile; with --until-end it stops
where they ended when it joined, however much arrives. When it ends, also by
Ctrl-C or SIGTERM, it leaves the group, and other members get its partitions at once; with
--instance-id it stays a member, and the same command keeps its partitions if it starts before the
lease expires. Assigned and revoked partitions are reported on stderr.

Examples:
  oncelog consume --topic orders | jq .value
  oncelog consume --topic orders --partition 0 --offset latest --follow
  oncelog consume --topic orders --timestamp 2026-11-21T08:00:00Z --limit 10
  oncelog consume --topic orders --offset -10 --format '%p@%o %k %v'
  oncelog consume --topic orders --key customer-7 --follow
  oncelog consume --topic orders --group billing --follow
  oncelog consume --topic orders --group nightly --until-end > orders.ndjson
  oncelog consume --topic-pattern '^carts' --group billing --instance-id pod-1 --follow";

#[derive(Args)]
pub(super) struct ConsumeFlags {
    /// Topic to read; with --group it may be repeated
    #[arg(long = "topic", required_unless_present = "topic_pattern", value_parser = name)]
    topics: Vec<Name>,
    /// Read only this partition
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Where to start: an offset (with --follow it needs --partition), -N for the last N records of
    /// each partition, earliest or latest
    #[arg(long, value_name = "OFFSET", default_value = "earliest", value_parser = offset,
        allow_hyphen_values = true)]
    offset: Start,
    /// Start at the first record appended at or after this instant (RFC 3339)
    #[arg(long, value_name = "INSTANT", conflicts_with = "offset", value_parser = instant)]
    timestamp: Option<Start>,
    /// Print only records of this key, from the partition that the key belongs to; --partition
    /// names another
    #[arg(long)]
    key: Option<String>,
    /// Print each record in this format, as kcat does, such as '%k %v'; --help lists the sequences
    #[arg(long, value_name = "FORMAT", value_parser = Format::parse)]
    format: Option<Format>,
    /// Wait for more records at the end
    #[arg(long)]
    follow: bool,
    /// With --follow: stop once everything has been printed. With --group: stop where the
    /// partitions ended at the start
    #[arg(long)]
    until_end: bool,
    /// Print at most this many records, then stop
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Give up when a request has been retried for this long; a number is in milliseconds [default:
    /// 10s; with --follow: never]
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
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
    if flags.until_end && !flags.follow {
        let what = "--until-end needs --follow or --group; without them it stops at the end anyway";
        return Err(WrongUsage(what.into()).into());
    }
    let Ok([topic]) = <[Name; 1]>::try_from(flags.topics) else {
        return Err(WrongUsage("without --group, give exactly one --topic".into()).into());
    };
    let client = Client::new(flags.server, patience)?;
    let printer = Printer { format: flags.format, key: flags.key };
    let selection = Selection {
        topic: &topic,
        partition: flags.partition,
        key: printer.key.as_deref(),
        start: flags.timestamp.unwrap_or(flags.offset),
        follows: flags.follow,
        until_end: flags.until_end,
    };
    let mut left = flags.limit.unwrap_or(u64::MAX);
    for part in selection.parts(&client).await? {
        let mut reader = Reader { client: &client, printer: &printer, topic: &topic, part };
        while left > 0
            && let Some(page) = reader.next(left).await?
        {
            left = left.saturating_sub(page.record_count);
            print(&page.lines)?;
        }
    }
    Ok(())
}
