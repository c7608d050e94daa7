//! The references: scripts that pgbench runs.

use std::{path::Path, process::Command};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::{Effort, place::Place, rows::Pgbench};

pub async fn run(
    place: &Place,
    database: &str,
    reference: &Pgbench,
    effort: Effort,
) -> anyhow::Result<Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/figures");
    let logs = tempfile::tempdir()?;
    let mut command = program();
    let threads = reference.clients.min(2);
    // whole seconds, and no warm-up: its first second is measured with the rest
    let seconds = (effort.warmup_s + effort.measured_s).ceil().max(1.0);
    command.args(["-n", "-M", "prepared", "-U", "postgres", "-h"]).arg(place.socket_dir()?);
    command.args(["-c", &reference.clients.to_string(), "-j", &threads.to_string()]);
    command.args(["-T", &seconds.to_string()]);
    let sample = &place.sample;
    command.arg("-D").arg(format!("events={}", effort.stored_events)).args(["-D", "start=0"]);
    command.arg("-D").arg(format!("event={}", sample.event));
    command.arg("-D").arg(format!("records={}", sample.records));
    command.arg("-D").arg(format!("producers={}", sample.producers));
    if reference.log {
        command.args(["-l", "--log-prefix=log"]).current_dir(logs.path());
    }
    command.arg("-f").arg(directory.join(reference.script)).arg(database);
    command.env_remove("PGOPTIONS").env_remove("PGPORT");
    let output = command.output().context("cannot run pgbench, which comes with PostgreSQL")?;
    let (text, noise) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() && !noise.contains("aborted"), "pgbench: {noise}");
    let number = |label: &str| -> anyhow::Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(label));
        let word = line.and_then(|rest| rest.split_whitespace().next());
        word.and_then(|word| word.parse().ok()).with_context(|| format!("no {label} in {text}"))
    };
    let tps = number("tps = ")?;
    let mut result = json!({
        "script": reference.script,
        "clients": reference.clients,
        "transactions_per_s": tps,
        "events_per_s": tps * f64::from(reference.events_per_transaction),
        "mean_ms": number("latency average = ")?,
    });
    if reference.log {
        let mut micros = latencies(logs.path(), effort.warmup_s)?;
        micros.sort_unstable();
        for (name, permille) in [("p50_us", 500), ("p99_us", 990)] {
            result[name] = micros[micros.len() * permille / 1000].into();
        }
    }
    Ok(result)
}

fn program() -> Command {
    match std::env::var_os("PG_BIN_DIR") {
        Some(directory) => Command::new(Path::new(&directory).join("pgbench")),
        None => Command::new("pgbench"),
    }
}

/// The duration of each transaction after the warm-up, in microseconds. A line of the log is
/// client, number, time, script, second, microsecond of its end.
fn latencies(directory: &Path, warmup_s: f64) -> anyhow::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        for line in std::fs::read_to_string(entry?.path())?.lines() {
            let words: Vec<u64> =
                line.split(' ').map(str::parse).collect::<Result<_, _>>().context("a log line")?;
            ensure!(words.len() >= 6, "a log line of pgbench: {line}");
            found.push((words[4] as f64 + words[5] as f64 / 1e6, words[2]));
        }
    }
    let begun = found.iter().map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
    let kept = found.into_iter().filter(|(at, _)| *at >= begun + warmup_s);
    let kept: Vec<u64> = kept.map(|(_, micros)| micros).collect();
    ensure!(!kept.is_empty(), "pgbench logged nothing");
    Ok(kept)
}
