//! Turns the rings of dedup keys at the end of their periods: the next partition is truncated. Also
//! measures their contents, mainly for unlimited windows.

use std::time::Duration;

use tokio::time::Instant;

use super::{Task, Throttle, transaction};
use crate::{
    broker::Broker,
    model::dedup::Ring,
    store::{self, Connection, janitor::Chunk},
    telemetry,
};

const MEASURED_EVERY: Duration = Duration::from_secs(60);

/// Turns rings. Truncating a partition needs an exclusive lock for a moment, in which nobody looks
/// up keys. If a partition is locked for long (by a backup), the ring turns later.
pub struct KeyRings;

impl Task for KeyRings {
    const NAME: &'static str = "key_rings";
    type Item = Ring;

    async fn due(&self, broker: &Broker) -> Result<Vec<Ring>, store::Error> {
        let rings = broker.store.run(async |c| store::dedup::rings::read(c).await).await?;
        let due = rings.into_iter().filter(|(row, now)| row.turn(*now).is_some());
        Ok(due.map(|(row, _)| row.ring).collect())
    }

    async fn chunk(&self, broker: &Broker, ring: Ring, _: i64) -> Result<Chunk, store::Error> {
        transaction(&broker.store, async move |c| turn(c, ring).await).await
    }
}

async fn turn(connection: &mut Connection, ring: Ring) -> Result<Chunk, store::Error> {
    let locked = store::dedup::rings::lock(connection, ring).await?;
    let Some((slot, now)) = locked.and_then(|(row, now)| Some((row.turn(now)?, now))) else {
        return Ok(Chunk::default());
    };
    let rows = store::dedup::rings::turn(connection, ring, slot, now).await?;
    Ok(Chunk { rows, more: false })
}

/// Measures the contents of the rings.
pub struct KeySizes(Throttle);

impl Default for KeySizes {
    fn default() -> Self {
        Self(Throttle::every(MEASURED_EVERY))
    }
}

impl Task for KeySizes {
    const NAME: &'static str = "key_sizes";
    type Item = ();

    async fn due(&self, _: &Broker) -> Result<Vec<()>, store::Error> {
        Ok(self.0.due())
    }

    async fn chunk(&self, broker: &Broker, (): (), _: i64) -> Result<Chunk, store::Error> {
        let begun = Instant::now();
        let sizes = broker.store.run(async |c| store::dedup::rings::measure(c).await).await?;
        for (ring, name) in Ring::all().zip(telemetry::RINGS) {
            let size = sizes.iter().find(|size| size.ring == ring);
            let (keys, bytes) = size.map_or((0, 0), |size| (size.keys, size.bytes));
            metrics::gauge!(telemetry::DEDUP_KEYS, "ring" => *name).set(keys as f64);
            metrics::gauge!(telemetry::DEDUP_KEYS_BYTES, "ring" => *name).set(bytes as f64);
        }
        self.0.done(begun);
        Ok(Chunk::default())
    }
}
