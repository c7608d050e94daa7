//! How many groups and members there are, and how far the groups are behind: the same on every
//! replica, and measured by each as seldom as it is worth.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    model::group_view::Lag,
    store::{self, Store},
    telemetry::{self, OTHERS},
};

/// How often it is measured at most.
const INTERVAL: Duration = Duration::from_secs(15);
/// The statement goes over all offsets of all groups: it may take this part of the time.
const SHARE: u32 = 100;

pub struct Lags {
    /// Groups and topics that are shown by name; 0: the lag is not measured.
    max_series: usize,
    next_at: Mutex<Instant>,
}

impl Lags {
    pub fn new(max_series: usize) -> Self {
        if max_series > 0 {
            show(&[], 0);
        }
        Self { max_series, next_at: Mutex::new(Instant::now()) }
    }

    /// Measures, if it is time to.
    pub async fn measure(&self, store: &Store) -> Result<(), store::Error> {
        let begun = Instant::now();
        if begun < *self.next_at.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(());
        }
        let limit = i64::try_from(self.max_series).unwrap_or(i64::MAX);
        let read = store.run(move |connection| {
            Box::pin(async move {
                let counts = store::groups::count(connection).await?;
                if limit == 0 {
                    return Ok((counts, None));
                }
                let lags = store::groups::lags(connection, limit).await?;
                Ok::<_, store::Error>((counts, Some(lags)))
            })
        });
        let ((alive, empty, members), lags) = read.await?;
        if let Some((lags, others)) = lags {
            show(&lags, others);
        }
        for (state, count) in [("alive", alive), ("empty", empty)] {
            metrics::gauge!(telemetry::CONSUMER_GROUPS, "state" => state).set(count as f64);
        }
        metrics::gauge!(telemetry::CONSUMER_GROUP_MEMBERS).set(members as f64);
        let pause = (begun.elapsed() * SHARE).max(INTERVAL);
        *self.next_at.lock().unwrap_or_else(PoisonError::into_inner) = begun + pause;
        Ok(())
    }
}

/// By name, and the sum of all others.
fn show(lags: &[Lag], others: i64) {
    let mut series: Vec<(Vec<&str>, i64)> = lags
        .iter()
        .map(|Lag { tenant, group, topic, records }| {
            (vec![tenant.as_str(), group.as_str(), topic.as_str()], *records)
        })
        .collect();
    series.push((vec![OTHERS; 3], others));
    telemetry::show_named(telemetry::CONSUMER_LAG_RECORDS, &series);
}
