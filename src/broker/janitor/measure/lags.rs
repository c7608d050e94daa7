//! Counts tenants, groups and members, and measures the lag of groups: the same on every replica,
//! and throttled, as it is expensive.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    broker::{
        Broker,
        janitor::{Task, Throttle},
    },
    model::{Timestamp, group::view::Lag},
    store::{self, janitor::Chunk},
    telemetry::{self, OTHERS},
};

/// The interval for a statement over all offsets of all groups.
const INTERVAL: Duration = Duration::from_secs(15);

pub struct Lags {
    /// Maximum number of groups and topics shown by name; 0: lag is not measured.
    max_series: usize,
    seldom: Throttle,
}

impl Lags {
    pub fn new(max_series: usize) -> Self {
        if max_series > 0 {
            show(&[], 0, Timestamp(0));
        }
        Self { max_series, seldom: Throttle::every(INTERVAL) }
    }
}

impl Task for Lags {
    const NAME: &'static str = "lag";
    type Item = ();

    async fn due(&self, _: &Broker) -> Result<Vec<()>, store::Error> {
        Ok(self.seldom.due())
    }

    async fn chunk(&self, broker: &Broker, (): (), _: i64) -> Result<Chunk, store::Error> {
        let begun = Instant::now();
        let limit = i64::try_from(self.max_series).unwrap_or(i64::MAX);
        let read = broker.store.run(async move |connection| {
            let tenants = store::catalog::tenants::count(connection).await?;
            let counts = (tenants, store::group::admin::count(connection).await?);
            if limit == 0 {
                return Ok((counts, None));
            }
            let lags = store::group::admin::lags(connection, limit).await?;
            Ok::<_, store::Error>((counts, Some((lags, store::session::clock(connection).await?))))
        });
        let ((tenants, (alive, empty, members)), lags) = read.await?;
        let (active, suspended, deleted) = tenants;
        for (state, count) in [("active", active), ("suspended", suspended), ("deleted", deleted)] {
            metrics::gauge!(telemetry::TENANTS, "state" => state).set(count as f64);
        }
        if let Some(((lags, others), now)) = lags {
            show(&lags, others, now);
        }
        for (state, count) in [("alive", alive), ("empty", empty)] {
            metrics::gauge!(telemetry::CONSUMER_GROUPS, "state" => state).set(count as f64);
        }
        metrics::gauge!(telemetry::CONSUMER_GROUP_MEMBERS).set(members as f64);
        self.seldom.done(begun);
        Ok(Chunk::default())
    }
}

/// The lags by name, and the sum of all others. Ages do not add up: there is none of the others.
fn show(lags: &[Lag], others: i64, now: Timestamp) {
    let named = |value: fn(&Lag, Timestamp) -> f64| -> Vec<(Vec<&str>, f64)> {
        let series = lags.iter().map(|lag| {
            let names = [&lag.tenant, &lag.group, &lag.topic].map(|name| name.as_str());
            (names.to_vec(), value(lag, now))
        });
        series.collect()
    };
    let mut records = named(|lag, _| lag.records as f64);
    records.push((vec![OTHERS; 3], others as f64));
    telemetry::show_named(telemetry::CONSUMER_LAG_RECORDS, &records);
    let seconds = named(|lag, now| {
        let age_ms = lag.oldest_at.map_or(0, |oldest_at| now.0 - oldest_at.0);
        age_ms.max(0) as f64 / 1_000.0
    });
    telemetry::show_named(telemetry::CONSUMER_LAG_SECONDS, &seconds);
}
