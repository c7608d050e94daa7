//! Connections: a pool for short work, dedicated ones for lanes and listeners, and the migrations.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use metrics::{Counter, Gauge, Histogram};
use sqlx::{
    Connection, PgConnection, PgPool, PgTransaction, Postgres,
    migrate::Migrator,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use tokio::time::timeout;

use super::{
    Error,
    history::{History, Seen, Server},
    statements,
};
use crate::telemetry::{self, Counted};

static MIGRATOR: Migrator = sqlx::migrate!("./migrations");

/// How long a statement waits for a row lock before it gives up (55P03: certainly not written).
const LOCK_TIMEOUT: &str = "5s";
/// How long a silent transaction of a dead replica may hold its locks.
const IDLE_IN_TRANSACTION_TIMEOUT: &str = "15s";
/// How long Postgres waits for an unreachable replica's network.
const TCP_USER_TIMEOUT: &str = "15s";
/// How long an operation waits for a pooled connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long pooled work may take: far beyond the lock timeout, so only a silent peer reaches it.
const WORK_TIMEOUT: Duration = Duration::from_secs(30);

/// PostgreSQL 14, as `server_version_num` says it.
const OLDEST_VERSION: i32 = 140_000;

statements! {
    /// Every statement goes by a key. A plan that was made while a table was empty would scan it, and
    /// stays in the connection when it has grown. Planned once: those with arrays would be planned anew
    /// each time, which takes longer than running them. Durable means flushed: a weaker `synchronous_commit` of the server or role is raised,
    /// a stronger one kept.
    PREPARE_SESSION = "select set_config('lock_timeout', $1, false), \
        set_config('idle_in_transaction_session_timeout', $2, false), \
        set_config('tcp_user_timeout', $3, false), \
        set_config('jit', 'off', false), \
        set_config('enable_seqscan', 'off', false), \
        set_config('plan_cache_mode', 'force_generic_plan', false), \
        set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local') \
            then 'on' else current_setting('synchronous_commit') end, false)";
    SCHEMA_EXISTS = "select exists (select from pg_namespace where nspname = 'oncelog')";
    VERSION = "select current_setting('server_version_num')::integer";
    PING = "select 1";
}

/// The database.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
    options: PgConnectOptions,
    losses: Losses,
    seen: Seen,
    waiting: Gauge,
    acquire_duration: Histogram,
}

/// When a connection was last found dead. The others of its time most likely died with it,
/// in a restart or failover, so none of them is used again: else each would fail some work first.
#[derive(Clone, Debug)]
struct Losses {
    last: Arc<Mutex<Option<Instant>>>,
    counter: Counter,
}

impl Losses {
    fn note(&self) {
        self.counter.increment(1);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn include(&self, age: Duration) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| age >= last.elapsed())
    }
}

impl Store {
    /// Nothing is connected yet: a database that is away is `Unavailable` later.
    pub fn new(options: PgConnectOptions, pool_connections: u32) -> Self {
        let options = options.application_name("oncelog");
        let counter = metrics::counter!(telemetry::DATABASE_LOSSES_TOTAL);
        let losses = Losses { last: Arc::default(), counter };
        let known = losses.clone();
        let pool = PgPoolOptions::new()
            .max_connections(pool_connections)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            // a ping an acquire is a round trip; a dead connection fails and is replaced
            .test_before_acquire(false)
            .before_acquire(move |_, connection| {
                let usable = !known.include(connection.age);
                Box::pin(async move { Ok(usable) })
            })
            .after_connect(|connection, _| Box::pin(prepare_session(connection)))
            .connect_lazy_with(options.clone());
        let waiting = metrics::gauge!(telemetry::DATABASE_POOL_WAITING);
        let acquire_duration =
            metrics::histogram!(telemetry::DATABASE_POOL_ACQUIRE_DURATION_SECONDS);
        let seen = Seen::default();
        Self { pool, options, losses, seen, waiting, acquire_duration }
    }

    /// Notes that a connection was found dead.
    pub fn lost(&self) {
        self.losses.note();
        self.seen.lost();
    }

    /// Notes which server has answered: the history that its answer is of.
    pub fn saw(&self, server: Server) -> History {
        self.seen.saw(server)
    }

    /// The history that answers are of, as far as it is known.
    pub fn history(&self) -> History {
        self.seen.history()
    }

    /// Sets the gauges that are read, not counted.
    pub fn measure(&self) {
        let (all, idle) = (self.pool.size() as usize, self.pool.num_idle());
        for (state, connections) in [("idle", idle), ("in_use", all.saturating_sub(idle))] {
            metrics::gauge!(telemetry::DATABASE_POOL_CONNECTIONS, "state" => state)
                .set(connections as f64);
        }
        let most = self.pool.options().get_max_connections();
        metrics::gauge!(telemetry::DATABASE_POOL_MAX_CONNECTIONS).set(f64::from(most));
    }

    async fn acquire(&self) -> Result<PoolConnection<Postgres>, Error> {
        let _waiting = Counted::new(&self.waiting);
        let begun = Instant::now();
        let acquired = self.pool.acquire().await;
        self.acquire_duration.record(begun.elapsed().as_secs_f64());
        Ok(acquired?)
    }

    /// A connection of one's own, for as long as its owner lives.
    pub async fn connection(&self) -> Result<PgConnection, Error> {
        let mut connection = PgConnection::connect_with(&self.options).await?;
        prepare_session(&mut connection).await?;
        Ok(connection)
    }

    /// What a listener connects with.
    pub fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// Brings the schema up to date; safe to run from many replicas at once.
    pub async fn migrate(&self) -> Result<(), Error> {
        let mut connection = PgConnection::connect_with(&self.options).await?;
        let version: i32 = sqlx::query_scalar(VERSION).fetch_one(&mut connection).await?;
        if version < OLDEST_VERSION {
            let what = format!("PostgreSQL 14 or newer is needed, this is {}", version / 10_000);
            return Err(Error::Corrupt(what));
        }
        if !sqlx::query_scalar(SCHEMA_EXISTS).fetch_one(&mut connection).await? {
            sqlx::raw_sql("create schema if not exists oncelog").execute(&mut connection).await?;
        }
        sqlx::raw_sql("set search_path to oncelog").execute(&mut connection).await?;
        let migrated = MIGRATOR.run(&mut connection).await;
        migrated.map_err(|error| Error::Corrupt(format!("migration: {error}")))?;
        connection.close().await?;
        Ok(())
    }

    pub async fn ping(&self) -> Result<(), Error> {
        self.run(|connection| {
            Box::pin(async move { Ok(sqlx::query(PING).execute(connection).await.map(drop)?) })
        })
        .await
    }

    /// Runs statements that write nothing on a pooled connection, each by itself. The work goes on
    /// when the caller is cancelled: a half-run statement must never go back to the pool.
    pub async fn run<T, E>(&self, work: impl Work<T, E>) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.within(work, Error::Unavailable(sqlx::Error::PoolTimedOut)).await
    }

    /// Runs a statement that writes by itself: if nothing is heard of it, it may have been done.
    pub async fn write<T, E>(&self, work: impl Work<T, E>) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.within(work, Error::silent_peer()).await
    }

    async fn within<T, E>(&self, work: impl Work<T, E>, silence: Error) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let store = self.clone();
        finish(tokio::spawn(async move {
            let mut connection = store.acquire().await?;
            match timeout(WORK_TIMEOUT, work(&mut connection)).await {
                Ok(Err(error)) => {
                    if connection.ping().await.is_err() {
                        store.lost();
                    }
                    Err(error)
                }
                Ok(done) => done,
                Err(_) => {
                    // a silent peer would keep the pool's permit for ever
                    connection.close_on_drop();
                    Err(silence.into())
                }
            }
        }))
        .await
    }

    /// Runs statements as one transaction; an error rolls it back. Goes on when the caller is
    /// cancelled.
    pub async fn transaction<T, E>(&self, work: impl Work<T, E>) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let store = self.clone();
        finish(tokio::spawn(async move {
            let mut connection = store.acquire().await?;
            let result = timeout(WORK_TIMEOUT, in_transaction(&mut connection, work)).await;
            match result {
                Ok(Ok(value)) => Ok(value),
                Ok(Err((error, connection_usable))) => {
                    if !connection_usable {
                        store.lost();
                        connection.close_on_drop();
                    }
                    Err(error)
                }
                Err(_) => {
                    connection.close_on_drop();
                    Err(Error::silent_peer().into())
                }
            }
        }))
        .await
    }
}

/// Work on one connection.
pub trait Work<T, E>:
    for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, E>> + Send + 'static
{
}
impl<T, E, F> Work<T, E> for F where
    F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, E>> + Send + 'static
{
}

/// The value, or the error and whether the connection is still good.
async fn in_transaction<T, E: From<Error>>(
    connection: &mut PgConnection,
    work: impl Work<T, E>,
) -> Result<T, (E, bool)> {
    let begun = connection.begin().await;
    let mut transaction = begun.map_err(|error| (Error::from(error).into(), false))?;
    match work(&mut transaction).await {
        Ok(value) => match commit(transaction).await {
            Ok(()) => Ok(value),
            Err(error) => Err((error.into(), false)),
        },
        Err(error) => Err((error, transaction.rollback().await.is_ok())),
    }
}

pub async fn begin(connection: &mut PgConnection) -> Result<PgTransaction<'_>, Error> {
    Ok(connection.begin().await?)
}

/// Rolls back now what a dropped transaction would roll back with the connection's next statement.
pub async fn settle(connection: &mut PgConnection) -> Result<(), Error> {
    Ok(connection.ping().await?)
}

/// Ends a transaction that changed nothing.
pub async fn rollback(transaction: PgTransaction<'_>) -> Result<(), Error> {
    Ok(transaction.rollback().await?)
}

/// Commits; an answer that did not come is `OutcomeUnknown`.
pub async fn commit(transaction: PgTransaction<'_>) -> Result<(), Error> {
    transaction.commit().await.map_err(|error| match Error::from(error) {
        Error::Unavailable(error) => Error::OutcomeUnknown(error),
        other => other,
    })
}

async fn finish<T, E: From<Error>>(task: tokio::task::JoinHandle<Result<T, E>>) -> Result<T, E> {
    match task.await {
        Ok(result) => result,
        Err(error) => Err(Error::Corrupt(format!("a database task failed: {error}")).into()),
    }
}

async fn prepare_session(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    metrics::counter!(telemetry::DATABASE_CONNECTS_TOTAL).increment(1);
    sqlx::query(PREPARE_SESSION)
        .bind(LOCK_TIMEOUT)
        .bind(IDLE_IN_TRANSACTION_TIMEOUT)
        .bind(TCP_USER_TIMEOUT)
        .execute(connection)
        .await
        .map(drop)
}
