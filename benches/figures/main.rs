//! `make bench`: the project's benchmarks, each a ratio of measurements of one run on one machine.
//!
//! ```text
//! rows.rs     subjects, references and targets
//! place.rs    a private PostgreSQL (as embedded mode runs it, fsync on), databases, brokers
//! load.rs     the load of a run on the machine
//! chores.rs   a janitor with much work;  retained.rs  rounds of a log with retention
//! pgbench.rs  the references: scripts of this directory, run by pgbench on the same PostgreSQL
//! report.rs   the table and the raw results;  plot.rs  the plot
//! ```

mod chores;
mod load;
mod pgbench;
mod place;
mod plot;
mod report;
mod retained;
mod rows;

use std::{path::PathBuf, time::Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use serde_json::Value;

use self::{
    place::{Brokers, Place},
    report::Measured,
    rows::{ROWS, Row, Run, Work},
};

/// Measures a release build of oncelog and pgbench, on a PostgreSQL of its own.
#[derive(Parser)]
struct Arguments {
    /// Rows to measure: names or parts of them, separated by commas; all if empty
    #[arg(long, default_value = "")]
    rows: String,
    /// Repetitions of each measurement
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u8).range(1..=50))]
    repetitions: u8,
    /// At most a second for each, once: checks that everything works; the results mean nothing
    #[arg(long)]
    short: bool,
    /// Data directory of PostgreSQL, on the disk to measure
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Passed by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// The durations and sizes of a run.
#[derive(Clone, Copy)]
pub struct Effort {
    pub warmup_s: f64,
    pub measured_s: f64,
    pub stored_events: u32,
    /// WAL segments to create before the measurement: 1.9 GB.
    pub wal_segments: usize,
    /// Groups, each with 10 members that only send heartbeats.
    pub groups: usize,
}

const FULL: Effort = Effort {
    warmup_s: 1.0,
    measured_s: 4.0,
    stored_events: 1_000_000,
    wal_segments: 120,
    groups: 1_000,
};
const SHORT: Effort =
    Effort { warmup_s: 0.1, measured_s: 0.4, stored_events: 50_000, wal_segments: 0, groups: 10 };
/// Heartbeats come once in 15 s, so they are measured this much longer.
const HEARTBEATS_LONGER: f64 = 7.5;

/// No disk flushes faster.
const LEAST_FLUSH_US: u64 = 5;

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.short {
        arguments.repetitions = 1;
    }
    let rows = chosen(&arguments.rows)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(&arguments, &rows))
}

fn chosen(words: &str) -> anyhow::Result<Vec<&'static Row>> {
    let words: Vec<&str> = words.split([',', ' ']).filter(|word| !word.is_empty()).collect();
    let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    if let Some(unknown) = words.iter().find(|word| !names.iter().any(|name| name.contains(**word)))
    {
        bail!("no row is called `{unknown}`; there are {}", names.join(", "));
    }
    let is_chosen = |row: &&Row| {
        let named = words.contains(&row.name);
        // `singles` is that row alone, though others have it in their names
        let part = |word: &&str| !names.contains(word) && row.name.contains(*word);
        words.is_empty() || named || words.iter().any(part)
    };
    Ok(ROWS.iter().filter(is_chosen).collect())
}

async fn measure(arguments: &Arguments, rows: &[&'static Row]) -> anyhow::Result<()> {
    let effort = if arguments.short { SHORT } else { FULL };
    let begun = Instant::now();
    let mut place = Place::open(arguments.data_dir.as_deref(), effort).await?;
    let facts = place.facts().await?;
    if facts["flush_us"].as_u64().is_some_and(|micros| micros < LEAST_FLUSH_US) {
        eprintln!("warning: a flush costs nothing here, is this a disk? Give another --data-dir");
    }
    let mut table = Vec::new();
    for row in rows {
        eprintln!("{}: {}", row.name, row.title);
        place.slow_flush(row.slow_flush).await?;
        let results = repeat(&mut place, row, effort, arguments.repetitions).await;
        place.slow_flush(false).await?;
        table.push(Measured { row, results: results? });
    }
    ensure!(table.len() == rows.len(), "a row is missing");
    let directory = place::output_dir();
    let took_s = begun.elapsed().as_secs_f64();
    report::write(&directory, &table, &facts, arguments.short, took_s)?;
    plot::write(&directory, &table)?;
    eprintln!("table, raw figures and plot: {}/figures.{{md,json,svg}}", directory.display());
    Ok(())
}

/// Takes all measurements of a row in turn, repeatedly; returns the results of each.
async fn repeat(
    place: &mut Place,
    row: &Row,
    effort: Effort,
    repetitions: u8,
) -> anyhow::Result<Vec<Vec<Value>>> {
    let mut results = vec![Vec::new(); row.runs.len()];
    for repetition in 1..=repetitions {
        for (run, results) in row.runs.iter().zip(&mut results) {
            let result = once(place, run, effort).await;
            let result = result.with_context(|| format!("{}: {}", row.name, run.title))?;
            let shown =
                ["/events_per_s", "/latencies/append/p50_us", "/p50_us", "/longest_chunk_us"];
            let shown = shown.iter().filter_map(|name| {
                Some(format!("{name} {}", result.pointer(name)?.as_f64()?.round()))
            });
            let shown = shown.collect::<Vec<_>>().join("  ");
            eprintln!("  {repetition}/{repetitions} {:<58} {shown}", run.title);
            results.push(result);
        }
    }
    Ok(results)
}

async fn once(place: &mut Place, run: &Run, effort: Effort) -> anyhow::Result<Value> {
    let database = place.make_database().await?;
    let result = match &run.work {
        Work::Oncelog { brokers, arguments } => {
            let brokers = Brokers::start(place, &database, *brokers).await?;
            place.settle().await?;
            let result = brokers.bench(arguments, effort).await;
            brokers.stop().await?;
            result
        }
        Work::Counted { arguments } => {
            Brokers::start(place, &database, 1).await?.stop().await?;
            let before = place.transactions(&database).await?;
            let brokers = Brokers::start(place, &database, 1).await?;
            place.settle().await?;
            let result = brokers.bench(arguments, effort).await;
            brokers.stop().await?;
            let count = place.transactions(&database).await? - before;
            result.and_then(|mut result| {
                let appends = result.pointer("/check/acknowledged").and_then(Value::as_f64);
                let each = count as f64 / appends.context("nobody counted the appends")?;
                result["database_transactions_per_append"] = each.into();
                Ok(result)
            })
        }
        Work::Stored { arguments, times } => {
            let events = (effort.stored_events * times).to_string();
            let arguments = [arguments, &["--topic", "stored", "--events", &events][..]].concat();
            let writer = Brokers::start(place, &database, 1).await?;
            let nothing = Effort { warmup_s: 0.0, measured_s: 0.0, ..effort };
            writer.bench(&arguments, nothing).await?;
            writer.stop().await?;
            let brokers = Brokers::start(place, &database, 1).await?;
            place.settle().await?;
            let result = brokers.bench(&arguments, effort).await;
            brokers.stop().await?;
            result
        }
        Work::Heartbeats { arguments } => {
            let groups = effort.groups.to_string();
            let arguments = [arguments, &["--groups", &groups][..]].concat();
            let [warmup_s, measured_s] =
                [effort.warmup_s, effort.measured_s].map(|s| s * HEARTBEATS_LONGER);
            let longer = Effort { warmup_s, measured_s, ..effort };
            let brokers = Brokers::start(place, &database, 1).await?;
            place.settle().await?;
            let bench = brokers.bench(&arguments, longer);
            let result = load::beside(place, &brokers, &database, bench).await;
            brokers.stop().await?;
            result
        }
        Work::Chores { arguments, due } => {
            chores::beside(place, &database, arguments, *due, effort).await
        }
        Work::Retained { arguments, retention_bytes } => {
            retained::run(place, &database, arguments, *retention_bytes, effort).await
        }
        Work::Pgbench(reference) => {
            place.make_tables(&database, reference.filled, effort.stored_events).await?;
            place.settle().await?;
            pgbench::run(place, &database, reference, effort).await
        }
    };
    place.drop_database(&database).await?;
    result
}
