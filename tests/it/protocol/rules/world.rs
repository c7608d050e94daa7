//! Two replicas on one database.

use std::sync::Arc;

use oncelog::{
    broker::{Broker, Error, ServiceConfig},
    model::{
        Code, ProducerId, TenantId,
        append::{Appended, Placed, ProducerSeq, Scope},
        session::Opened,
    },
    store::Store,
};
use sqlx::{ConnectOptions, postgres::PgConnectOptions};

use crate::support::{self, name, proxy::Proxy};

pub const TOPIC: &str = "orders";

/// A replica behind a proxy of its own.
pub struct Replica {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    pub proxy: Proxy,
}

impl Replica {
    pub async fn append(
        &self,
        numbered: Option<(ProducerId, i64, i64)>,
        scope: Scope,
        records: &str,
    ) -> Result<Appended, Error> {
        let numbered = numbered.map(|(producer_id, epoch, sequence)| ProducerSeq {
            producer_id,
            epoch,
            sequence,
        });
        let append = support::append(numbered, records);
        self.broker.append(self.tenant, &name(TOPIC), scope, append, None).await
    }

    /// One record into partition 0.
    pub async fn one(
        &self,
        producer: ProducerId,
        epoch: i64,
        sequence: i64,
    ) -> Result<Appended, Error> {
        let record = format!(r#"{{"value":{sequence}}}"#);
        self.append(Some((producer, epoch, sequence)), Scope::Partition(0), &record).await
    }

    pub async fn open(&self, id: &str) -> Opened {
        self.broker.open_session(self.tenant, support::open(Some(id)), None).await.unwrap().value
    }

    pub async fn producer(&self, id: &str) -> ProducerId {
        self.open(id).await.session.producer_id
    }
}

pub struct World {
    pub options: PgConnectOptions,
    pub replicas: Vec<Replica>,
}

/// Two replicas and a topic of one partition (more for those who ask).
pub async fn world(partitions: i32) -> World {
    world_with(partitions, 150).await
}

pub async fn world_with(partitions: i32, gap_wait_ms: u64) -> World {
    let options = support::database().await;
    let mut replicas = Vec::new();
    for seed in 0..2 {
        let proxy = Proxy::start(&options, seed).await;
        let settings =
            ServiceConfig { gap_wait_ms, snapshot_rows: 1_000_000, ..ServiceConfig::default() };
        let broker = support::broker(&proxy.options(&options), settings);
        let tenant = support::tenant(&broker).await;
        replicas.push(Replica { broker, tenant, proxy });
    }
    let Replica { broker, tenant, .. } = &replicas[0];
    broker.put_topic(*tenant, &name(TOPIC), Some(partitions), None).await.unwrap();
    World { options, replicas }
}

impl World {
    pub async fn sql(&self, sql: impl Into<String>) -> i64 {
        support::number(&self.options, sql).await
    }

    pub async fn snapshot_everything(&self) {
        let store = Store::new(self.options.clone(), 1);
        let mut connection = self.options.connect().await.unwrap();
        let logs: Vec<(i64, i64)> = sqlx::query_as("select tenant_id, log_id from oncelog.logs")
            .fetch_all(&mut connection)
            .await
            .unwrap();
        for (tenant, log) in logs {
            let log = oncelog::model::LogId(log);
            oncelog::broker::snapshot(&store, TenantId(tenant), log).await.unwrap();
        }
    }
}

pub fn base(appended: &Appended) -> i64 {
    let Placed::Partition { base_offset, .. } = appended.placed else { panic!("{appended:?}") };
    base_offset.unwrap()
}

pub fn is_duplicate_at(result: Result<Appended, Error>, offset: i64) {
    let appended = result.unwrap();
    assert!(appended.duplicate, "{appended:?}");
    assert_eq!(base(&appended), offset);
}

pub fn code(result: Result<Appended, Error>) -> Code {
    result.expect_err("refused").code
}
