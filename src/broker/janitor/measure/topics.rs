//! The janitor tasks behind the metrics by topic: they look up the names of counted topics, and
//! measure what topics store.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    broker::{
        Broker,
        janitor::{Task, Throttle},
    },
    store::{
        self,
        janitor::{Chunk, measure},
    },
    telemetry::{self, OTHERS},
};

/// How soon the series of a deleted topic end.
const NAMED_EVERY: Duration = Duration::from_secs(15);
/// How long topics are compared before the busiest get the series.
const RANKED_EVERY: Duration = Duration::from_secs(60);
/// The interval for a statement over the heads of all logs.
const MEASURED_EVERY: Duration = Duration::from_secs(15);

/// Decides which topics have series for their traffic on this replica, and looks up their names.
pub struct TopicSeries {
    naming: Throttle,
    ranking: Throttle,
}

impl Default for TopicSeries {
    fn default() -> Self {
        Self { naming: Throttle::every(NAMED_EVERY), ranking: Throttle::every(RANKED_EVERY) }
    }
}

impl Task for TopicSeries {
    const NAME: &'static str = "topic_series";
    type Item = ();

    async fn due(&self, broker: &Broker) -> Result<Vec<()>, store::Error> {
        let due = self.naming.due();
        Ok(if broker.traffic.has_new() { vec![()] } else { due })
    }

    async fn chunk(&self, broker: &Broker, (): (), _: i64) -> Result<Chunk, store::Error> {
        let begun = Instant::now();
        if !self.ranking.due().is_empty() {
            broker.traffic.rank();
            self.ranking.done(begun);
        }
        let shown = broker.traffic.shown();
        if !shown.is_empty() {
            let asked = shown.clone();
            let look = broker.store.run(async move |c| measure::tenant_names(c, &asked).await);
            broker.traffic.named(&shown, look.await?);
        }
        self.naming.done(begun);
        Ok(Chunk::default())
    }
}

/// Measures the stored bytes of topics.
pub struct TopicSizes {
    /// Maximum number of topics shown by name; 0: they are not measured.
    max_series: usize,
    seldom: Throttle,
}

impl TopicSizes {
    pub fn new(max_series: usize) -> Self {
        if max_series > 0 {
            show(&measure::Stored::default());
        }
        Self { max_series, seldom: Throttle::every(MEASURED_EVERY) }
    }
}

impl Task for TopicSizes {
    const NAME: &'static str = "topic_sizes";
    type Item = ();

    async fn due(&self, _: &Broker) -> Result<Vec<()>, store::Error> {
        Ok(if self.max_series > 0 { self.seldom.due() } else { Vec::new() })
    }

    async fn chunk(&self, broker: &Broker, (): (), _: i64) -> Result<Chunk, store::Error> {
        let begun = Instant::now();
        let limit = i64::try_from(self.max_series).unwrap_or(i64::MAX);
        let stored = broker.store.run(async move |c| measure::stored(c, limit).await).await?;
        show(&stored);
        self.seldom.done(begun);
        Ok(Chunk::default())
    }
}

/// The greatest by name, and the sum of all others.
fn show(stored: &measure::Stored) {
    let mut series: Vec<(Vec<&str>, f64)> = stored
        .greatest
        .iter()
        .map(|(tenant, topic, bytes)| (vec![tenant.as_str(), topic.as_str()], *bytes as f64))
        .collect();
    series.push((vec![OTHERS; 2], stored.others_bytes as f64));
    telemetry::show_named(telemetry::TOPIC_STORED_BYTES, &series);
}
