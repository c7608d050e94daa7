//! Reads a partition from its first event to its last, repeatedly until the end of the run.

use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use memchr::memmem;
use tokio::{task::JoinSet, time::Instant};

use super::{
    Common, Stage,
    connection::Connection,
    counted,
    events::{Requests, Shape},
    measure::{Clock, Report, SharedTally, watch},
};

const FILLERS: usize = 4;
const MAX_PAGE_BYTES: usize = 16 << 20;

#[derive(Args)]
pub(in crate::cli) struct ReadFlags {
    /// Events to read; append until the partition has as many
    #[arg(long, value_name = "N", default_value = "100000", value_parser = clap::value_parser!(u32).range(1..))]
    events: u32,
    /// Events per request while appending
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=1000))]
    records_per_request: u16,
    /// Events per page
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    limit: u16,
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) async fn run(flags: &ReadFlags, stage: &Stage) -> anyhow::Result<Report> {
    let path = stage.partition_path(0);
    let records = usize::from(flags.records_per_request);
    let missing = usize::try_from(i64::from(flags.events) - stage.events_before).unwrap_or(0);
    let shape = Shape { records, record_bytes: stage.record_bytes, keyed: false, ids_of: None };
    fill(stage, &path, missing.div_ceil(records), shape).await?;
    let filled = stage.events().await?;
    let clock = stage.phases.clock();
    let tally = SharedTally::new(clock)?;
    let reader = BenchReader {
        connection: stage.server(0).connect().await?,
        path,
        limit: flags.limit.into(),
        next_offset: 0,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(reader.run(clock, tally.clone()));
    let (readers, cpu) = watch(tasks, clock, &tally).await?;

    let mut report = stage.report("read", 1);
    report.note("limit", flags.limit);
    report.note("stored", filled);
    report.tally("page", &tally.lock(), cpu)?;
    for passes in readers {
        let Passes { count, first } = passes?;
        report.note("whole_passes", count);
        report.note("first_pass_events_per_s", (filled as f64 / first.as_secs_f64()).round());
    }
    Ok(report)
}

/// Sends a number of appends of this shape.
pub(super) async fn fill(
    stage: &Stage,
    path: &str,
    requests: usize,
    shape: Shape,
) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    for index in 0..FILLERS {
        let share = (requests + index) / FILLERS;
        let server = stage.server(0);
        let mut requests = Requests::new(&server, path, index, shape);
        tasks.spawn(async move {
            let mut connection = server.connect().await?;
            for _ in 0..share {
                connection.exchange(requests.next(None)).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(filled) = tasks.join_next().await {
        filled?.context("cannot fill the topic")?;
    }
    Ok(())
}

struct BenchReader {
    connection: Connection,
    path: String,
    limit: usize,
    next_offset: u64,
}

/// How often a reader reached the end.
struct Passes {
    count: u64,
    /// The duration of the first pass.
    first: Duration,
}

impl BenchReader {
    /// Reads until the end of the run, and at least once to the end of the log.
    async fn run(mut self, clock: Clock, tally: SharedTally) -> anyhow::Result<Passes> {
        let started = Instant::now();
        let mut passes = Passes { count: 0, first: Duration::ZERO };
        loop {
            let begun = Instant::now();
            if begun >= clock.until && passes.count > 0 {
                return Ok(passes);
            }
            let offset = self.next_offset;
            let path = format!(
                "{}?offset={offset}&limit={}&max_bytes={MAX_PAGE_BYTES}",
                self.path, self.limit
            );
            let request = self.connection.server.request("GET", &path);
            let answer = self.connection.exchange(&request).await?;
            let page = check_page(answer, offset)?;
            tally.lock().done(begun, Instant::now(), page.end_offset - offset);
            self.next_offset = page.end_offset;
            if page.end_offset >= page.high_watermark {
                if passes.count == 0 {
                    passes.first = started.elapsed();
                }
                (self.next_offset, passes.count) = (0, passes.count + 1);
            }
        }
    }
}

/// The offsets of a page.
pub(super) struct PageAnswer {
    pub end_offset: u64,
    high_watermark: u64,
}

/// Checks every offset of a page: they count up from `offset` without a hole. The events come from
/// `events`, and contain nothing that resembles an offset.
pub(super) fn check_page(answer: &[u8], offset: u64) -> anyhow::Result<PageAnswer> {
    let mut end_offset = offset;
    for at in memmem::find_iter(answer, b"{\"offset\":") {
        let found = number(&answer[at + "{\"offset\":".len()..]);
        ensure!(found == Some(end_offset), "offset {found:?} instead of {end_offset}");
        end_offset += 1;
    }
    let tail = |name: &str| {
        let at = memmem::rfind(answer, name.as_bytes())?;
        number(&answer[at + name.len()..])
    };
    let next_offset = tail("\"next_offset\":").context("a page without next_offset")?;
    let high_watermark = tail("\"high_watermark\":").context("a page without high_watermark")?;
    ensure!(
        next_offset == end_offset && high_watermark >= end_offset,
        "{} from {offset}, but the next offset is {next_offset} of {high_watermark}",
        counted(end_offset - offset, "event")
    );
    Ok(PageAnswer { end_offset, high_watermark })
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_without_holes_pass() {
        let text = |second: u64, next: u64| {
            format!(
                "{{\"topic\":\"t\",\"partition\":0,\"records\":[{{\"offset\":8,\"value\":1}},\
                 {{\"offset\":{second},\"value\":2}}],\"next_offset\":{next},\
                 \"log_start_offset\":0,\"high_watermark\":13}}"
            )
        };
        let found = check_page(text(9, 10).as_bytes(), 8).unwrap();
        assert_eq!((found.end_offset, found.high_watermark), (10, 13));
        assert!(check_page(text(9, 10).as_bytes(), 7).is_err());
        assert!(check_page(text(10, 10).as_bytes(), 8).is_err());
        assert!(check_page(text(9, 11).as_bytes(), 8).is_err());
        assert!(check_page(b"{}", 8).is_err());
    }
}
