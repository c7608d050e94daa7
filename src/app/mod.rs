//! The composition root: puts the parts together, serves, drains, stops.

mod token_keys;

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use secrecy::SecretString;
use sqlx::postgres::PgConnectOptions;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

pub use self::token_keys::token_keys;
use crate::{
    broker::{Broker, NewTenants, ServiceConfig},
    config::{Config, TenantAdmission, database::connect_options},
    embedded::{DATABASE, Embedded},
    http::{
        self, AppState, Limits, Listener, Routers,
        server::{Tls, TlsFiles},
    },
    store::{self, Store},
    telemetry,
};

/// How long a start waits for a database that is unreachable.
const DATABASE_WAIT: Duration = Duration::from_secs(60);
/// How often histograms are compacted: under load one grows by a megabyte a second until then.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Connections of the admin listener, which those of the public one cannot take.
const ADMIN_CONNECTIONS: usize = 256;
/// How long the end waits for requests in flight on the admin listener.
const ADMIN_DRAIN_MS: u64 = 1_000;

/// Serves until SIGTERM or SIGINT, then stops in order: the replica says that it is not ready, and
/// serves on for `shutdown_delay_ms`; waiting reads answer, appends in flight finish, connections
/// close, the own PostgreSQL stops. Until there is a database, requests are answered with 503.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    config.notes.iter().for_each(|note| tracing::warn!("{note}"));
    let open_files = raise_open_files();
    let metrics = telemetry::metrics()?;
    let token_keys = token_keys(&config)?;
    // before anything slow: a port that is taken is told at once
    let mut http_limits = limits(&config);
    http_limits.max_connections = connections(&config, open_files);
    let (public, admin) = open_ports(&config, &http_limits).await?;
    let address = public.address;
    let admin_address = admin.as_ref().map(|admin| tracing::field::display(admin.address));
    tracing::info!(%address, admin_address, "listening; waiting for the database");
    let prepared = tokio::select! {
        prepared = prepare(&config) => prepared?,
        () = signals.next() => {
            tracing::info!("stopped before there was a database");
            return Ok(());
        }
    };
    let (mut embedded, store) = prepared;
    let broker = Broker::start(store, service_config(&config));
    let drain = Duration::from_millis(http_limits.drain_timeout_ms);
    let render = || metrics.render();
    let state = AppState::new(broker.clone(), token_keys, http_limits, render);
    for port in [Some(&public), admin.as_ref()].into_iter().flatten() {
        port.routers.serve(state.clone());
    }
    let upkeep = tokio::spawn(async move {
        loop {
            sleep(UPKEEP_INTERVAL).await;
            metrics.run_upkeep();
        }
    });
    tracing::info!(%address, admin_address, "ready");
    if !config.has_token_key() {
        tracing::warn!("no token key: every request is the tenant \"default\" with all scopes");
        let scheme = if config.tls_cert_file.is_some() { "https" } else { "http" };
        println!("{}", greeting(&format!("{scheme}://{address}")));
    }

    let outcome = until_told(signals, embedded.as_ref()).await;
    tracing::info!("stopping; a second signal stops at once");
    broker.leave();
    if outcome.is_ok() {
        sleep(Duration::from_millis(config.shutdown_delay_ms)).await;
    }
    broker.drain();
    // probes are answered until the last request of a client is
    public.close().await?;
    if let Some(admin) = admin {
        admin.close().await?;
    }
    if timeout(drain, broker.stop()).await.is_err() {
        tracing::warn!("the database does not answer; in-flight statements abandoned");
    }
    upkeep.abort();
    if let Some(mut embedded) = embedded.take() {
        tokio::task::spawn_blocking(move || embedded.stop()).await?;
    }
    tracing::info!("stopped");
    outcome
}

/// An open port, which answers that the replica is starting until its routers serve.
struct Port {
    address: SocketAddr,
    routers: Routers,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

impl Port {
    /// `key` is the setting of the address.
    async fn open(
        listener: Listener,
        (key, address): (&str, SocketAddr),
        limits: Limits,
        tls: Option<Tls>,
    ) -> anyhow::Result<Self> {
        let bound = TcpListener::bind(address).await;
        let bound = bound.with_context(|| {
            format!("cannot listen on {address}: set {key} to an address that is free")
        })?;
        let (address, routers) = (bound.local_addr()?, Routers::starting(listener));
        let stop = CancellationToken::new();
        let (served, stopped) = (routers.clone(), stop.clone());
        let server = async move { http::server::serve(bound, served, &limits, tls, stopped).await };
        Ok(Self { address, routers, stop, server: tokio::spawn(server) })
    }

    /// Answers what is in flight, then closes.
    async fn close(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.server.await.context("the server panicked")
    }
}

/// The public port, and that of operators, if it is another.
async fn open_ports(config: &Config, limits: &Limits) -> anyhow::Result<(Port, Option<Port>)> {
    let files = tls_files(config);
    let start = |files: &TlsFiles| Tls::start(files).map_err(|why| anyhow::anyhow!(why));
    let tls = files.as_ref().map(start).transpose()?;
    let Some(admin) = config.admin_address() else {
        let listener = ("listen", config.listen);
        return Ok((Port::open(Listener::Whole, listener, limits.clone(), tls).await?, None));
    };
    let listener = Listener::Public { has_docs: config.public_docs };
    let public = Port::open(listener, ("listen", config.listen), limits.clone(), tls).await?;
    let limits = Limits {
        max_connections: ADMIN_CONNECTIONS,
        drain_timeout_ms: limits.drain_timeout_ms.min(ADMIN_DRAIN_MS),
        ..limits.clone()
    };
    // who reaches it over loopback is on this machine; probes and scrapers have no certificate
    let files = files.filter(|_| !admin.ip().is_loopback());
    let tls = files.map(|files| start(&TlsFiles { client_ca: None, ..files })).transpose()?;
    let admin = Port::open(Listener::Admin, ("admin_listen", admin), limits, tls).await?;
    Ok((public, Some(admin)))
}

fn tls_files(config: &Config) -> Option<TlsFiles> {
    let (cert, key) = (config.tls_cert_file.clone()?, config.tls_key_file.clone()?);
    Some(TlsFiles { cert, key, client_ca: config.tls_client_ca_file.clone() })
}

/// Every connection is an open file: the usual soft limit of 1,024 is raised as far as it may be.
/// Returns the limit.
fn raise_open_files() -> u64 {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        Ok(hard)
    });
    raised.unwrap_or_else(|error| {
        tracing::warn!(%error, "could not raise the open-file limit");
        getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
    })
}

/// How many connections the public port takes: what it is allowed, unless too few files may be open
/// to leave some for the admin port and the database.
fn connections(config: &Config, open_files: u64) -> usize {
    let database = config.lanes + config.pool_connections as usize + SPARE_CONNECTIONS;
    let reserved = ADMIN_CONNECTIONS + database + OTHER_FILES;
    let open_files = usize::try_from(open_files).unwrap_or(usize::MAX);
    let possible = open_files.saturating_sub(reserved).max(1);
    if possible < config.max_connections {
        let allowed = config.max_connections;
        tracing::info!(
            open_files,
            "at most {possible} connections, not {allowed}: raise the limit of open files for more"
        );
    }
    possible.min(config.max_connections)
}

/// The signals that end the server; caught from the start on, so that none ends it out of order.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let (terminate, interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt })
    }

    async fn next(&mut self) {
        tokio::select! { _ = self.terminate.recv() => {}, _ = self.interrupt.recv() => {} }
    }
}

/// Ok on a signal, an error when the own PostgreSQL is given up.
async fn until_told(mut signals: Signals, embedded: Option<&Embedded>) -> anyhow::Result<()> {
    let failed = async {
        match embedded {
            Some(embedded) => embedded.failed().await,
            None => std::future::pending().await,
        }
    };
    let outcome = tokio::select! {
        () = signals.next() => Ok(()),
        reason = failed => Err(anyhow::anyhow!(reason)),
    };
    tokio::spawn(async move {
        signals.next().await;
        // the own PostgreSQL ends with its parent
        std::process::exit(1);
    });
    outcome
}

/// The migrated database, and the own PostgreSQL, if it is one.
async fn prepare(config: &Config) -> anyhow::Result<(Option<Embedded>, Store)> {
    let (embedded, options) = database(config).await?;
    let mut store = Store::new(options, config.pool_connections);
    if let Some(url) = &config.notify_database_url {
        store = store.listening_by(connect_options(url)?);
    }
    migrate(&store).await?;
    Ok((embedded, store))
}

/// The given database, or an own one.
async fn database(config: &Config) -> anyhow::Result<(Option<Embedded>, PgConnectOptions)> {
    if let Some(url) = &config.database_url {
        return Ok((None, connect_options(url)?));
    }
    let data_dir = config.data_dir.clone();
    let connections = config.lanes + config.pool_connections as usize + SPARE_CONNECTIONS;
    let start = move || {
        Embedded::start(&data_dir, &[("max_connections", &connections.max(100).to_string())])
    };
    let embedded = tokio::task::spawn_blocking(start).await.context("starting PostgreSQL")??;
    let options = embedded.connect_options(DATABASE);
    Ok((Some(embedded), options))
}

/// What `serve` does first, alone: for those who migrate before they roll out.
pub async fn migrate_only(database_url: &SecretString) -> anyhow::Result<()> {
    migrate(&Store::new(connect_options(database_url)?, 1)).await
}

/// Connections beside lanes and pool: listener, notices, probes, migration, people with psql.
const SPARE_CONNECTIONS: usize = 20;
/// Open files that are no connections: listeners, pipes, the log, the runtime's own.
const OTHER_FILES: usize = 64;

async fn migrate(store: &Store) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        match store.migrate().await {
            Err(store::Error::Unavailable(error)) if started.elapsed() < DATABASE_WAIT => {
                tracing::warn!(%error, "database unreachable, retrying");
                sleep(Duration::from_secs(1)).await;
            }
            migrated => return migrated.context("cannot prepare the database"),
        }
    }
}

/// The configured part of the broker.
pub fn service_config(config: &Config) -> ServiceConfig {
    ServiceConfig {
        lanes: config.lanes,
        gap_wait_ms: config.gap_wait_ms,
        max_waiting_reads: config.max_waiting_reads,
        page_cache_bytes: usize::try_from(config.page_cache_bytes).unwrap_or(usize::MAX),
        snapshot_rows: i64::try_from(config.snapshot_rows).unwrap_or(i64::MAX),
        max_lag_series: config.max_lag_series,
        max_topic_series: config.max_topic_series,
        new_tenants: NewTenants {
            by_operators_only: config.tenants == TenantAdmission::Known,
            max_tenants: i64::try_from(config.max_tenants).ok().filter(|most| *most > 0),
            default_maxima: config.default_maxima.clone(),
        },
        ..ServiceConfig::default()
    }
}

/// The configured limits of HTTP.
pub fn limits(config: &Config) -> Limits {
    Limits {
        max_body_bytes: config.max_body_bytes,
        body_timeout_ms: config.body_timeout_ms,
        max_in_flight_bytes: config.max_in_flight_bytes,
        header_timeout_ms: config.header_timeout_ms,
        keep_alive_timeout_ms: config.keep_alive_timeout_ms,
        answer_timeout_ms: config.answer_timeout_ms,
        max_connection_age_ms: config.max_connection_age_ms,
        max_connections: config.max_connections,
        trusted_proxies: config.trusted_proxies.clone(),
        drain_timeout_ms: config.drain_timeout_ms,
        ..Limits::default()
    }
}

/// Printed on a first start. The commands work unchanged, any number of times.
fn greeting(url: &str) -> String {
    format!(
        r#"
oncelog is ready on {url} (tenant "default", no token, this machine only). Try it:

# create a topic
curl -s -X PUT {url}/v1/topics/orders; echo

# open a session and append to it
producer=$(curl -s -X POST {url}/v1/sessions | sed 's/.*"producer_id": *\([0-9]*\).*/\1/')
append() {{ curl -s {url}/v1/topics/orders/records -H 'Content-Type: application/json' \
  -d '{{"producer_id": '$producer', "epoch": 0, "sequence": 0, "records": [{{"key": "customer-7", "value": {{"total": 12.50}}}}]}}'; echo; }}
append

# send the same again: "duplicate": true, and the first answer's offset
append

# read it back
curl -s {url}/v1/topics/orders/partitions/0/records; echo

# every operation, with a form to try it, in a browser: {url}/docs
"#
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Flags;

    /// However many clients there are, the admin port and the database get their files.
    #[test]
    fn clients_do_not_get_all_files() {
        let config = Config::from_sources(&Flags::default(), &BTreeMap::new()).unwrap();
        assert_eq!(connections(&config, u64::MAX), config.max_connections);
        let few = connections(&config, 2_000);
        assert!((1..2_000 - ADMIN_CONNECTIONS).contains(&few), "{few}");
        assert_eq!(connections(&config, 10), 1);
    }
}
