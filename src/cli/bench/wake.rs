//! One producer appends at a fixed rate, and readers wait at the end of the log.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{
    Common, Stage,
    connection::Connection,
    events::{BenchSession, Requests, Shape},
    measure::{Clock, Latencies, Report, SharedTally, watch},
    read::check_page,
};

const WAIT_MS: u64 = 20_000;

#[derive(Args)]
pub(in crate::cli) struct WakeFlags {
    /// Appends per second, of one event each
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rate: u16,
    /// Readers, each with its own connection
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    readers: u16,
    #[command(flatten)]
    pub(super) common: Common,
}

/// An append: when it was sent, and when its response arrived.
struct Sent {
    at: Instant,
    answered: Instant,
}

/// The result of a task.
enum TaskResult {
    Sent(Vec<Sent>),
    Arrived(Vec<Instant>),
}

pub(super) async fn run(flags: &WakeFlags, stage: &Stage) -> anyhow::Result<Report> {
    let (path, offset) = (stage.partition_path(0), stage.events_before.unsigned_abs());
    // with several servers, the first reader uses another one than the producer
    let (near, readers) = (stage.server(0), usize::from(flags.readers));
    let session = BenchSession::open(&near).await?;
    let shape = Shape { records: 1, record_bytes: stage.record_bytes, keyed: false, ids_of: None };
    let requests = Requests::new(&near, &path, 0, shape);
    let sender = near.connect().await?;
    let mut waiting = Vec::with_capacity(readers);
    for index in 0..readers {
        let server = stage.server(stage.servers.len() - 1 + index);
        waiting.push(server.connect().await.context("cannot connect")?);
    }

    let period = Duration::from_secs(1) / u32::from(flags.rate);
    let total = stage.phases.warmup + stage.phases.measured;
    let count = (total.as_nanos() / period.as_nanos()).try_into().unwrap_or(usize::MAX);
    let clock = stage.phases.clock();
    let tally = SharedTally::new(clock)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(produce(sender, requests, session, (period, count), tally.clone()));
    for connection in waiting {
        tasks.spawn(wait(connection, path.clone(), offset, count));
    }
    let (seen, cpu) = watch(tasks, clock, &tally).await?;

    let (mut sent, mut arrived) = (Vec::new(), Vec::new());
    for seen in seen {
        match seen? {
            TaskResult::Sent(all) => sent = all,
            TaskResult::Arrived(all) => arrived.push(all),
        }
    }
    let mut report = stage.report("wake", 1 + readers);
    report.note("rate", flags.rate);
    report.note("readers", readers);
    report.tally("append", &tally.lock(), cpu)?;
    compare(&sent, &arrived, clock, &mut report)?;
    let acknowledged = tally.lock().acknowledged;
    report.note("check", stage.check(acknowledged, 0).await?);
    Ok(report)
}

async fn produce(
    mut connection: Connection,
    mut requests: Requests,
    session: BenchSession,
    (period, count): (Duration, usize),
    tally: SharedTally,
) -> anyhow::Result<TaskResult> {
    let mut ticks = interval_at(Instant::now() + period, period);
    // a slow response delays the next append: we measure the wake-up, not a queue
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent = Vec::with_capacity(count);
    for sequence in 0..count as u64 {
        ticks.tick().await;
        let request = requests.next(Some((session, sequence)));
        let at = Instant::now();
        connection.exchange(request).await.context("cannot append")?;
        let answered = Instant::now();
        tally.lock().done(at, answered, 1);
        sent.push(Sent { at, answered });
    }
    Ok(TaskResult::Sent(sent))
}

async fn wait(
    mut connection: Connection,
    path: String,
    mut offset: u64,
    count: usize,
) -> anyhow::Result<TaskResult> {
    let mut arrived = Vec::with_capacity(count);
    while arrived.len() < count {
        let path = format!("{path}?offset={offset}&wait_ms={WAIT_MS}");
        let request = connection.server.request("GET", &path);
        let answer = connection.exchange(&request).await.context("cannot read")?;
        let now = Instant::now();
        let end = check_page(answer, offset)?.end_offset;
        arrived.extend((offset..end).map(|_| now));
        offset = end;
    }
    Ok(TaskResult::Arrived(arrived))
}

fn compare(
    sent: &[Sent],
    arrived: &[Vec<Instant>],
    clock: Clock,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (mut from_send, mut from_answer) = (Latencies::new()?, Latencies::new()?);
    let mut before_answer: u64 = 0;
    let arrivals = arrived.iter().flat_map(|arrived| sent.iter().zip(arrived));
    for (sent, arrived) in arrivals {
        if clock.measures(sent.at) {
            from_send.note(arrived.saturating_duration_since(sent.at));
            from_answer.note(arrived.saturating_duration_since(sent.answered));
            before_answer += u64::from(*arrived < sent.answered);
        }
    }
    report.latencies("send_to_arrival", &from_send);
    report.latencies("answer_to_arrival", &from_answer);
    report.note("arrived_before_answer", before_answer);
    Ok(())
}
