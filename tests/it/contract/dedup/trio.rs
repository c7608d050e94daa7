//! Three brokers on one database, each behind a proxy that loses answers.

use std::{collections::BTreeMap, sync::Arc};

use oncelog::{
    broker::{Broker, Error, ServiceConfig},
    model::{
        Code, Partition, TenantId,
        append::{Append, Appended, Placed, PlacedRecord, Scope},
        read::{Isolation, Read, Start},
    },
};
use serde_json::Value;
use sqlx::postgres::PgConnectOptions;

use crate::support::{self, name, proxy::Proxy};

pub struct Replica {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    pub proxy: Proxy,
}

pub struct Trio {
    pub options: PgConnectOptions,
    pub replicas: Vec<Replica>,
    pub partitions: Partition,
}

/// Where a record lies.
pub type Place = (Partition, i64);

impl Trio {
    /// With the topic `orders`.
    pub async fn start(partitions: Partition) -> Arc<Self> {
        let options = support::database().await;
        let mut replicas = Vec::new();
        for seed in 0..3 {
            let proxy = Proxy::start(&options, seed).await;
            let settings = ServiceConfig { gap_wait_ms: 150, ..ServiceConfig::default() };
            let broker = support::broker(&proxy.options(&options), settings);
            let tenant = support::tenant(&broker).await;
            replicas.push(Replica { broker, tenant, proxy });
        }
        let Replica { broker, tenant, .. } = &replicas[0];
        broker.put_topic(*tenant, &name("orders"), Some(partitions), None).await.unwrap();
        Arc::new(Self { options, replicas, partitions })
    }

    pub async fn append(
        &self,
        replica: usize,
        scope: Scope,
        append: Append,
    ) -> Result<Appended, Error> {
        let Replica { broker, tenant, .. } = &self.replicas[replica % self.replicas.len()];
        broker.append(*tenant, &name("orders"), scope, append, None).await
    }

    pub async fn send(&self, replica: usize, scope: Scope, lines: &str) -> Result<Appended, Error> {
        self.append(replica, scope, support::append(None, lines)).await
    }

    /// Sends to one replica after the other until there is an answer.
    pub async fn until_answered(
        &self,
        mut replica: usize,
        scope: Scope,
        append: impl Fn() -> Append,
    ) -> Appended {
        loop {
            match self.append(replica, scope, append()).await {
                Ok(appended) => return appended,
                Err(error) if matches!(error.code, Code::Unavailable | Code::OutcomeUnknown) => {}
                Err(error) => panic!("{error:?}"),
            }
            replica += 1;
        }
    }

    pub fn lose_answers(&self, cuts_per_million: u32) {
        self.replicas.iter().for_each(|replica| replica.proxy.lose_answers(cuts_per_million));
    }

    /// Every record that is stored, of the first replica that answers.
    pub async fn stored(&self) -> BTreeMap<Place, Value> {
        let Replica { broker, tenant, .. } = &self.replicas[0];
        let mut stored = BTreeMap::new();
        for partition in 0..self.partitions {
            let mut start = Start::Earliest;
            loop {
                let (limit, max_bytes, isolation) = (1_000, 1 << 20, Isolation::default());
                let read = Read { start, limit, max_bytes, wait_ms: 0, isolation };
                let page = broker.read(*tenant, &name("orders"), partition, read).await.unwrap();
                for slice in &page.slices {
                    let lines = slice.row.lines[slice.start..slice.end].lines();
                    for (offset, line) in (slice.first_offset..).zip(lines) {
                        let record = serde_json::from_str(line).unwrap();
                        assert_eq!(stored.insert((partition, offset), record), None);
                    }
                }
                if page.next_offset >= page.high_watermark {
                    break;
                }
                start = Start::Offset(page.next_offset);
            }
        }
        stored
    }

    pub async fn nobody_waited_in_a_circle(&self) {
        assert_eq!(support::deadlocks(&self.options), 0);
    }
}

/// Of an append whose records have keys.
#[track_caller]
pub fn records(appended: &Appended) -> &[PlacedRecord] {
    match &appended.placed {
        Placed::Records { records: Some(records), .. } => records,
        other => panic!("{other:?}"),
    }
}

pub fn place(record: &PlacedRecord) -> Place {
    (record.partition, record.offset.expect("it is in the log"))
}
