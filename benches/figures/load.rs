//! The load of a run on the machine while it is measured: CPU time of PostgreSQL and of the
//! brokers, from /proc, and transactions.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};

use crate::place::{Brokers, Place};

const SAMPLED_EVERY: Duration = Duration::from_secs(1);
/// `USER_HZ`, which is the same on all systems.
const TICKS_PER_S: f64 = 100.0;

/// The processes whose CPU time is counted.
struct Processes {
    /// The parent of all others, running or ended.
    postmaster: u32,
    brokers: Vec<u32>,
}

/// The CPU time so far.
struct Sample {
    unix_s: f64,
    database_cpu_s: f64,
    brokers_cpu_s: f64,
    transactions: f64,
}

/// Runs a bench that reports the time and duration of its measurement, and adds the load to its
/// result.
pub async fn beside(
    place: &mut Place,
    brokers: &Brokers,
    database: &str,
    bench: impl Future<Output = anyhow::Result<Value>>,
) -> anyhow::Result<Value> {
    let backend = stat(place.backend().await?)?.context("a session without its process")?;
    let processes = Processes { postmaster: backend.parent, brokers: brokers.ids() };
    let mut samples = Vec::new();
    let mut ticks = interval(SAMPLED_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut bench = std::pin::pin!(bench);
    let mut result = loop {
        tokio::select! {
            result = &mut bench => break result?,
            _ = ticks.tick() => samples.push(processes.sample(place, database).await?),
        }
    };
    samples.push(processes.sample(place, database).await?);
    let number = |name: &str| result[name].as_f64().with_context(|| format!("no {name}"));
    let (from, measured_s) = (number("measured_from_unix_s")?, number("measured_s")?);
    let rate = |of: fn(&Sample) -> f64| {
        let grown = at(&samples, from + measured_s, of)? - at(&samples, from, of)?;
        anyhow::Ok(grown / measured_s)
    };
    let database_cores = rate(|sample| sample.database_cpu_s)?;
    let brokers_cores = rate(|sample| sample.brokers_cpu_s)?;
    let transactions_per_s = rate(|sample| sample.transactions)?;
    result["database_cores"] = database_cores.into();
    result["brokers_cores"] = brokers_cores.into();
    result["database_transactions_per_s"] = transactions_per_s.into();
    Ok(result)
}

/// Interpolates a sample for an instant.
fn at(samples: &[Sample], unix_s: f64, of: fn(&Sample) -> f64) -> anyhow::Result<f64> {
    let around = samples.windows(2).find(|two| (two[0].unix_s..=two[1].unix_s).contains(&unix_s));
    let [before, after] = around.context("nobody looked then")? else { unreachable!() };
    let share = (unix_s - before.unix_s) / (after.unix_s - before.unix_s);
    Ok(of(before) + share * (of(after) - of(before)))
}

impl Processes {
    async fn sample(&self, place: &mut Place, database: &str) -> anyhow::Result<Sample> {
        let transactions = place.transactions_so_far(database).await? as f64;
        let (mut database_ticks, mut brokers_ticks) = (0, 0);
        for entry in std::fs::read_dir("/proc").context("there is no /proc: leave this row out")? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            match stat(id)? {
                Some(stat) if id == self.postmaster => database_ticks += stat.own + stat.reaped,
                Some(stat) if stat.parent == self.postmaster => database_ticks += stat.own,
                Some(stat) if self.brokers.contains(&id) => brokers_ticks += stat.own,
                _ => {}
            }
        }
        let seconds = |ticks: u64| ticks as f64 / TICKS_PER_S;
        Ok(Sample {
            unix_s: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64(),
            database_cpu_s: seconds(database_ticks),
            brokers_cpu_s: seconds(brokers_ticks),
            transactions,
        })
    }
}

/// A process, and its processor time in ticks.
struct Stat {
    parent: u32,
    own: u64,
    /// The ticks of ended children.
    reaped: u64,
}

/// Reads a process from /proc; None if it has ended.
fn stat(id: u32) -> anyhow::Result<Option<Stat>> {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{id}/stat")) else { return Ok(None) };
    // the name may have anything in it; proc(5) counts the fields after it from 3
    let (_, fields) = text.rsplit_once(") ").context("a process without a name")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
    let sum = |one, other| Some(field(one)? + field(other)?);
    let stat = || {
        let parent = u32::try_from(field(4)?).ok()?;
        Some(Stat { parent, own: sum(14, 15)?, reaped: sum(16, 17)? })
    };
    stat().map(Some).with_context(|| format!("a strange /proc/{id}/stat: {text}"))
}
