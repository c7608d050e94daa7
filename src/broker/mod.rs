//! THE WORK: one function an operation: load, decide, write, confirm, signal.
//!
//! A broker is one replica's work. It holds nothing that is not in Postgres but caches, which are
//! confirmed before anything is answered from them, and connections:
//!
//! - *lanes* (`lane`, `queue`, `pace`, `pass`) group what waits and append it, one pass after the other; a topic with
//!   all its logs always goes to the same lane;
//! - *looks* (`looks`) read heads, one statement for all reads that arrived before it began;
//! - *pages* (`pages`) keep rows below the high watermark, which never change, for all readers;
//! - *several* logs (`several`, `room`) share the room of one answer;
//! - *watches* (`watches`, `wait`) wake waiting reads: at once for this replica's commits, by NOTIFY for
//!   other replicas', by polling for what was lost. A waiting read holds no connection;
//! - *settings* (`settings`) of a tenant, and whether it is served (`tenants`), are remembered for a
//!   second;
//! - *transactions* (`transaction`) of several requests are rows, changed under their locks;
//! - *beats* (`beats`) look at members of groups, one statement for all calls that came before it
//!   began, and a member's `fetch` goes by what they tell; what changes a group (`membership`, and by
//!   those who operate it `groups`) locks it whole, one change at a time (`turns`);
//! - calls with an Idempotency-Key are done once (`keyed`); what is `known` of ids and keys is looked
//!   up before anything is done;
//! - what requests and answers take of memory is counted (`budget`), until nobody holds it any more;
//! - what never changes is remembered: `names` of logs, numbers of groups (`group_ids`);
//! - the *janitor* (`janitor`) removes what nobody needs, in small chunks, also producers and groups
//!   that have been idle too long (`expiry`, `group_expiry`), records that are too old or too many
//!   (`retention`), and of compacted topics those that later ones have superseded (`compaction`), takes
//!   snapshots, and measures how far groups are behind (`lags`): tasks of one shape.

mod append;
mod catalog;
mod error;
mod group;
mod idempotency;
mod janitor;
mod memory_budget;
mod read;
mod session;
mod striped_lock;
mod transaction;
mod wakeup;

use std::{sync::Arc, time::Duration};

use moka::future::Cache;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use error::Error;
pub use idempotency::Answer;
pub use janitor::snapshot;
pub use memory_budget::{Budget, Held, Taken};

use crate::{
    model::{Name, TenantId},
    store::Store,
    telemetry,
};

/// What a broker may use.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Writer tasks, each with a connection of its own.
    pub lanes: usize,
    /// How long a request that overtook others waits for them.
    pub gap_wait_ms: u64,
    /// Reads that may wait at once.
    pub max_waiting_reads: usize,
    /// Memory for rows that readers share.
    pub page_cache_bytes: usize,
    /// Rows behind the last snapshot that call for the next.
    pub snapshot_rows: i64,
    /// Producers a lane remembers; beyond it, logs are forgotten.
    pub remembered_producers: usize,
    /// Groups and topics whose lag is shown by name; 0: no lag is measured.
    pub max_lag_series: usize,
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
        }
    }
}

/// One replica's work.
pub struct Broker {
    store: Store,
    /// Whom a name means, until its row is found to be gone.
    tenants: Cache<Name, TenantId>,
    topics: catalog::topics::Topics,
    names: catalog::log_names::LogNames,
    group_ids: group::ids::GroupIds,
    turns: striped_lock::StripedLock,
    settings: catalog::settings::TenantsSettings,
    janitor: janitor::Janitor,
    lanes: append::lane::Lanes,
    looks: read::watermarks::WatermarkReader,
    beats: group::leases::Leases,
    pages: Arc<read::page_cache::Pages>,
    watches: Arc<wakeup::watch::Watches>,
    appends: append::metrics::AppendMetrics,
    transactions: transaction::metrics::TransactionMetrics,
    notifier: wakeup::notifier::Notifier,
    staging: transaction::Calls<transaction::Staging>,
    committing: transaction::Calls<transaction::Committing>,
    /// Calls of transactions that wait for those before them.
    waits: Arc<transaction::Waits>,
    gap_wait: Duration,
    reads: read::metrics::ReadMetrics,
    waiting_reads: Arc<wakeup::permits::WaitPermits>,
    drain: CancellationToken,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// How many tenants' names are remembered.
const REMEMBERED_TENANTS: u64 = 10_000;

impl Broker {
    /// Starts the lanes, the listener and the janitor.
    pub fn start(store: Store, settings: ServiceConfig) -> Arc<Self> {
        let broker = Self::start_without_janitor(store, settings);
        let janitor = janitor::run(broker.clone());
        broker.tasks.spawn(broker.stop.clone().run_until_cancelled_owned(janitor));
        broker
    }

    /// For tests, which call `sweep` by hand.
    pub fn start_without_janitor(store: Store, settings: ServiceConfig) -> Arc<Self> {
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let looks = read::watermarks::WatermarkReader::new(store.clone());
        let watches = Arc::new(wakeup::watch::Watches::new(looks.clone()));
        let signals = Arc::new(wakeup::notify::Signals::new(store.clone()));
        let lanes =
            append::lane::Lanes::start(&store, &settings, &watches, &signals, &tasks, &stop);
        let notifier =
            wakeup::notifier::Notifier { watches: watches.clone(), signals: signals.clone() };
        let broker = Arc::new(Self {
            topics: catalog::topics::Topics::new(store.clone()),
            names: catalog::log_names::LogNames::new(store.clone()),
            group_ids: group::ids::GroupIds::new(store.clone()),
            turns: striped_lock::StripedLock::default(),
            settings: catalog::settings::TenantsSettings::new(
                store.clone(),
                tasks.clone(),
                stop.clone(),
            ),
            janitor: janitor::Janitor::new(&settings),
            tenants: Cache::new(REMEMBERED_TENANTS),
            lanes,
            looks,
            beats: group::leases::Leases::new(store.clone()),
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
            waiting_reads: wakeup::permits::WaitPermits::new(settings.max_waiting_reads),
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
        if self.draining() {
            let detail = "This replica is shutting down; send the request to another one.";
            return Err(Error::new(crate::model::Code::Draining, detail));
        }
        Ok(self.store.ping().await?)
    }

    /// Reads that wait for records now.
    pub fn waiting_reads(&self) -> usize {
        self.waiting_reads.taken()
    }

    /// Sets the gauges that are read, not counted: called before metrics are shown.
    pub fn measure(&self) {
        self.store.measure();
        metrics::gauge!(telemetry::PAGE_CACHE_BYTES).set(self.pages.size_bytes() as f64);
    }

    /// True from the moment a shutdown was asked for.
    pub fn draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// Waiting reads answer at once, and no read waits any more.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Ends the tasks, after what is in flight is answered.
    pub async fn stop(&self) {
        self.drain();
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// One round of the janitor, as far as there is something to do.
    pub async fn sweep(&self) -> Result<(), Error> {
        Ok(self.janitor.sweep(self).await?)
    }
}
