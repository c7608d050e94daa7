//! Appends while the janitor has much work, and how long it blocks them.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

use crate::{
    Effort,
    place::{Brokers, Place},
};

/// The fraction of other rows' stored events: still more than the janitor can remove during the
/// measurement.
const SHARE: u32 = 4;
/// Above all buckets of a histogram.
const ENDLESS_US: f64 = 1e9;

/// Runs a bench on a database full of data that is due for removal, or is not.
pub async fn beside(
    place: &mut Place,
    database: &str,
    arguments: &[&str],
    due: bool,
    effort: Effort,
) -> anyhow::Result<Value> {
    let first = Brokers::start(place, database, 1).await?;
    let brief = Effort { warmup_s: 0.0, measured_s: 0.05, ..effort };
    first.bench(&["append", "--connections", "1", "--unsequenced"], brief).await?;
    first.stop().await?;
    let chores = include_str!("chores.sql").replace(":due", &due.to_string());
    let chores = chores.replace(":rows", &(effort.stored_events / SHARE).to_string());
    let mut connection = place.options(database).connect().await?;
    connection.execute(AssertSqlSafe(chores)).await.context("chores.sql")?;
    connection.close().await?;
    place.settle().await?;
    let brokers = Brokers::start(place, database, 1).await?;
    let result = brokers.bench(arguments, effort).await;
    let metrics = brokers.metrics().await;
    brokers.stop().await?;
    let (mut result, metrics) = (result?, metrics?);
    let chunks = longest(&metrics, "oncelog_janitor_chunk_duration_seconds", "task");
    let passes = longest(&metrics, "oncelog_pass_duration_seconds", "kind");
    result["longest_chunk_us"] = most(&chunks).into();
    result["longest_pass_us"] = most(&passes).into();
    result["chunks"] = json!(chunks);
    let rows = metrics.lines().filter(|line| line.starts_with("oncelog_janitor_rows_total"));
    result["rows"] = json!(rows.collect::<Vec<_>>());
    Ok(result)
}

fn most(longest: &BTreeMap<String, f64>) -> f64 {
    longest.values().copied().fold(0.0, f64::max)
}

/// For each label of a histogram of seconds: an upper bound of the longest duration, as precise as
/// the buckets.
fn longest(metrics: &str, name: &str, label: &str) -> BTreeMap<String, f64> {
    let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for line in metrics.lines() {
        let bucket = || {
            let (labels, count) =
                line.strip_prefix(name)?.strip_prefix("_bucket{")?.split_once("} ")?;
            let of = |label: &str| {
                let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
                pairs.into_iter().find(|(name, _)| *name == label).map(|(_, v)| v.trim_matches('"'))
            };
            let bound = of("le")?.parse::<f64>().ok().filter(|bound| bound.is_finite());
            let bound_us = bound.map_or(ENDLESS_US, |seconds| seconds * 1e6);
            Some((of(label)?.to_owned(), (bound_us, count.parse::<f64>().ok()?)))
        };
        if let Some((value, bucket)) = bucket() {
            buckets.entry(value).or_default().push(bucket);
        }
    }
    let longest = buckets.into_iter().filter_map(|(value, buckets)| {
        let all = buckets.iter().map(|(_, count)| *count).fold(0.0, f64::max);
        let bounds = buckets.iter().filter(|(_, count)| *count == all).map(|(bound, _)| *bound);
        (all > 0.0).then(|| (value, bounds.fold(ENDLESS_US, f64::min)))
    });
    longest.collect()
}
