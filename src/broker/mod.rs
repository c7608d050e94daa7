//! The broker: one function per operation, which loads, decides, writes, confirms and notifies.
//!
//! A broker is one replica. It holds nothing that is not in Postgres except connections and caches,
//! and caches are confirmed before anything is answered from them:
//!
//! - *lanes* (`append`) batch waiting appends and write one batch after the other; a topic with all
//!   its logs always uses the same lane;
//! - *watermark queries* (`read::watermarks`) read log starts and high watermarks, one statement
//!   for all reads that arrived before it (`coalesce`);
//! - the *page cache* (`read::page_cache`) shares rows below the high watermark between readers;
//! - *fair reads* (`read::fair`) divide one answer between several logs;
//! - *watches* (`wakeup`) wake waiting reads: at once for commits of this replica, by NOTIFY for
//!   those of others, by polling for lost notices. A waiting read holds no connection;
//! - *leases* (`group::leases`) check and renew group members, one statement for all calls that
//!   arrived before it. A change of a group locks it as a whole, one change at a time
//!   (`row_locks`);
//! - *transactions* (`transaction`) of several requests are rows, changed under their locks; those
//!   of one request go through a lane;
//! - *idempotent calls* (`idempotency`) with an Idempotency-Key are done once;
//! - *settings* (`catalog`) of a tenant, and whether it is served, are cached for a second;
//!   immutable facts, such as the names of logs and the ids of groups, for longer;
//! - *probes* share one look at the database (`single_flight`), over a connection of its own;
//! - *rates* (`rates`) of a tenant are metered on each replica by itself, *quotas* (`quotas`)
//!   counted in the database;
//! - *memory* (`memory_budget`) of requests and answers is counted until it is freed;
//! - the *janitor* (`janitor`) runs background maintenance in small chunks: expiry, retention,
//!   compaction, deletion, snapshots and measurements.

mod append;
mod catalog;
mod coalesce;
mod error;
mod group;
mod idempotency;
mod janitor;
mod memory_budget;
mod quotas;
mod rates;
mod read;
mod retry;
mod row_locks;
mod session;
mod single_flight;
mod topic_traffic;
mod transaction;
mod wakeup;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use moka::future::Cache;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use error::Error;
pub use idempotency::Answer;
pub use janitor::snapshot;
pub use memory_budget::{Budget, Held, Taken};
pub use rates::Meter;
pub use single_flight::SingleFlight;

use crate::{
    model::{Code, Name, TenantId, settings::Maxima},
    store::{Probe, Store},
    telemetry,
};

/// The configuration of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Number of lanes, each with its own connection.
    pub lanes: usize,
    /// How long an out-of-order request waits for missing sequences.
    pub gap_wait_ms: u64,
    /// Maximum number of waiting reads.
    pub max_waiting_reads: usize,
    /// Memory for rows that readers share.
    pub page_cache_bytes: usize,
    /// Rows since the last snapshot at which the next one is taken.
    pub snapshot_rows: i64,
    /// Producers cached per lane; beyond it, logs are evicted.
    pub remembered_producers: usize,
    /// Groups and topics whose lag is shown by name; 0: lag is not measured.
    pub max_lag_series: usize,
    /// Topics with series of their own; 0: nothing is counted or measured by topic.
    pub max_topic_series: usize,
    pub new_tenants: NewTenants,
}

/// Which tenants tokens make at their first use, and what these may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTenants {
    /// Tokens create none.
    pub by_operators_only: bool,
    /// A token makes no more than that.
    pub max_tenants: Option<i64>,
    /// Of those that are made without others.
    pub default_maxima: Maxima,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            lanes: 1,
            gap_wait_ms: 1_000,
            max_waiting_reads: 20_000,
            page_cache_bytes: 128 << 20,
            snapshot_rows: 1_000,
            remembered_producers: 200_000,
            max_lag_series: 1_000,
            max_topic_series: 1_000,
            new_tenants: NewTenants::default(),
        }
    }
}

/// One replica.
pub struct Broker {
    store: Store,
    /// Tenants by name, until their row is found to be gone.
    tenants: Cache<Name, TenantId>,
    /// Names that tokens may not use, for a moment, and why.
    refused_tenants: Cache<Name, Error>,
    new_tenants: Arc<NewTenants>,
    topics: catalog::topics::Topics,
    names: catalog::log_names::LogNames,
    group_ids: group::ids::GroupIds,
    session_owners: session::owners::SessionOwners,
    row_locks: row_locks::RowLocks,
    settings: catalog::settings::TenantsSettings,
    quotas: quotas::Quotas,
    meters: rates::Meters,
    janitor: janitor::Janitor,
    lanes: append::lane::Lanes,
    watermarks: read::watermarks::WatermarkReader,
    leases: group::leases::Leases,
    pages: Arc<read::page_cache::Pages>,
    watches: Arc<wakeup::watch::Watches>,
    appends: append::metrics::AppendMetrics,
    transactions: transaction::metrics::TransactionMetrics,
    notifier: wakeup::notifier::Notifier,
    staging: transaction::Calls<transaction::Staging>,
    committing: transaction::Calls<transaction::Committing>,
    /// Transaction calls that wait for earlier ones.
    waits: Arc<transaction::Waits>,
    gap_wait: Duration,
    reads: read::metrics::ReadMetrics,
    traffic: topic_traffic::TopicTraffic,
    waiting_reads: Arc<wakeup::permits::WaitPermits>,
    probe: Probe,
    readiness: SingleFlight<Result<(), Error>>,
    leaving: AtomicBool,
    drain: CancellationToken,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Maximum number of cached tenant names.
const REMEMBERED_TENANTS: u64 = 10_000;
/// Minimum interval between looks at the database for probes, however many there are.
const READINESS_INTERVAL: Duration = Duration::from_millis(100);

impl Broker {
    /// Starts the lanes, the listener and the janitor.
    pub fn start(store: Store, settings: ServiceConfig) -> Arc<Self> {
        let broker = Self::start_without_janitor(store, settings);
        let janitor = janitor::run(broker.clone());
        broker.tasks.spawn(broker.stop.clone().run_until_cancelled_owned(janitor));
        broker
    }

    /// For tests, which call `sweep` themselves.
    pub fn start_without_janitor(store: Store, settings: ServiceConfig) -> Arc<Self> {
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let watermarks = read::watermarks::WatermarkReader::new(store.clone());
        let watches = Arc::new(wakeup::watch::Watches::new(watermarks.clone()));
        let signals = Arc::new(wakeup::notify::Signals::new(store.clone()));
        let lanes =
            append::lane::Lanes::start(&store, &settings, &watches, &signals, &tasks, &stop);
        let notifier =
            wakeup::notifier::Notifier { watches: watches.clone(), signals: signals.clone() };
        let broker = Arc::new(Self {
            topics: catalog::topics::Topics::new(store.clone()),
            names: catalog::log_names::LogNames::new(store.clone()),
            group_ids: group::ids::GroupIds::new(store.clone()),
            session_owners: session::owners::SessionOwners::new(store.clone()),
            row_locks: row_locks::RowLocks::default(),
            settings: catalog::settings::TenantsSettings::new(
                store.clone(),
                tasks.clone(),
                stop.clone(),
            ),
            quotas: quotas::Quotas::new(store.clone()),
            meters: rates::Meters::new(),
            janitor: janitor::Janitor::new(&settings),
            tenants: Cache::new(REMEMBERED_TENANTS),
            refused_tenants: Cache::builder()
                .max_capacity(REMEMBERED_TENANTS)
                .time_to_live(catalog::settings::SETTINGS_LAG)
                .build(),
            new_tenants: Arc::new(settings.new_tenants.clone()),
            lanes,
            watermarks,
            leases: group::leases::Leases::new(store.clone()),
            pages: Arc::new(read::page_cache::Pages::new(store.clone(), settings.page_cache_bytes)),
            watches: watches.clone(),
            appends: append::metrics::AppendMetrics::new(),
            transactions: transaction::metrics::TransactionMetrics::new(),
            staging: transaction::Calls::start(&store, &notifier, &tasks, &stop),
            committing: transaction::Calls::start(&store, &notifier, &tasks, &stop),
            notifier,
            waits: Arc::default(),
            gap_wait: Duration::from_millis(settings.gap_wait_ms),
            reads: read::metrics::ReadMetrics::new(),
            traffic: topic_traffic::TopicTraffic::new(settings.max_topic_series),
            waiting_reads: wakeup::permits::WaitPermits::new(settings.max_waiting_reads),
            probe: Probe::default(),
            readiness: SingleFlight::new(READINESS_INTERVAL),
            leaving: AtomicBool::new(false),
            drain: CancellationToken::new(),
            stop: stop.clone(),
            tasks: tasks.clone(),
            store,
        });
        // cut where they are: a silent database must not hold up the end
        let cut = || stop.clone();
        let send = wakeup::notify::send(signals.clone(), stop.clone());
        tasks.spawn(cut().run_until_cancelled_owned(send));
        let listen = wakeup::notify::listen(signals, watches.clone(), stop.clone());
        tasks.spawn(cut().run_until_cancelled_owned(listen));
        let poll = wakeup::watch::poll(watches, stop.clone());
        tasks.spawn(cut().run_until_cancelled_owned(poll));
        broker
    }

    /// Ok while requests can be served.
    pub async fn ready(&self) -> Result<(), Error> {
        if self.leaving.load(Ordering::Relaxed) || self.draining() {
            let detail = "This replica is shutting down; send the request to another one.";
            return Err(Error::new(Code::Draining, detail).fact("reason", "draining"));
        }
        let look = async {
            let answered = self.probe.ping(&self.store).await;
            answered.map_err(|error| Error::from(error).fact("reason", "database"))
        };
        self.readiness.result(look).await
    }

    /// From now on this replica says that it is not ready, and still serves.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// The number of reads waiting for records.
    pub fn waiting_reads(&self) -> usize {
        self.waiting_reads.taken()
    }

    /// Sets the gauges that are sampled at scrape time.
    pub fn measure(&self) {
        self.store.measure();
        self.traffic.show();
        metrics::gauge!(telemetry::PAGE_CACHE_BYTES).set(self.pages.size_bytes() as f64);
    }

    /// True once a shutdown has begun.
    pub fn draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// Makes waiting reads answer at once; no read waits any more.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Ends the tasks after requests in flight are answered.
    pub async fn stop(&self) {
        self.drain();
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Runs one round of the janitor.
    pub async fn sweep(&self) -> Result<(), Error> {
        Ok(self.janitor.sweep(self).await?)
    }
}
