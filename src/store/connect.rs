//! Database connections: a pool for short work, and dedicated ones for lanes and listeners.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use metrics::{Counter, Gauge, Histogram};
use sqlx::{
    Connection, PgConnection, PgPool, PgTransaction, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::{sync::OnceCell, time::timeout};

use super::{
    Error,
    error::Cause,
    fair_pool::{Fair, Permit},
    history::{History, LastHistory, Server},
    route::{self, Route},
    statements,
    work::{Done, Work},
};
use crate::{
    model::TenantId,
    telemetry::{self, Counted},
};

/// Settings of a new connection. A pooler refuses or ignores them, so they only affect speed, or
/// are repeated where needed: by `BEGIN`, and by `durable!`. Lock waits time out (55P03: certainly
/// not written), and the locks of a dead replica are released. What a replica has given up ends in
/// the server, too: soon, if its connection is closed, else by `statement_timeout`. Statements use
/// keys: a plan made for an empty table would scan it, and be kept after it has grown. Plans are
/// generic: statements with arrays would otherwise be planned each time, which takes longer than
/// running them.
const SESSION: [(&str, &str); 10] = [
    ("lock_timeout", "5s"),
    ("statement_timeout", "25s"),
    ("client_connection_check_interval", "5s"),
    ("idle_in_transaction_session_timeout", "15s"),
    ("tcp_user_timeout", "15s"),
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("jit", "off"),
    ("enable_seqscan", "off"),
    ("plan_cache_mode", "force_generic_plan"),
];

/// The settings that every transaction of several statements needs, whatever the server, the role,
/// the database or another client of the same pooler has set; none of them outlives the
/// transaction. What is read under a lock must be newer than the lock: read committed. A commit
/// must be flushed: a weaker `synchronous_commit` is raised, a stronger one kept.
const BEGIN: &str = r"begin isolation level read committed read write;
    select set_config('lock_timeout', '5s', true), set_config('idle_in_transaction_session_timeout', '15s', true),
        set_config('statement_timeout', '25s', true), set_config('client_connection_check_interval', '5s', true),
        set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local')
            then 'on' else current_setting('synchronous_commit') end, true)";

/// The settings of a transaction whose reads must share one snapshot.
const BEGIN_SNAPSHOT: &str = "begin isolation level repeatable read read only; \
    set local idle_in_transaction_session_timeout = '15s'; set local statement_timeout = '25s'; \
    set local client_connection_check_interval = '5s'";

/// How long an operation waits for a pooled connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum duration of pooled work: above the statement timeout, and far above that of locks,
/// so only a silent peer reaches it.
const WORK_TIMEOUT: Duration = Duration::from_secs(30);

statements! {
    SERVER = "select pg_postmaster_start_time()";
}

/// The database.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
    fair: Arc<Fair>,
    /// The tenant that this is for, or all.
    tenant: Option<TenantId>,
    /// The connect options, without `SESSION`.
    bare: Arc<PgConnectOptions>,
    /// How to connect to listen, if not as above.
    direct: Option<Arc<PgConnectOptions>>,
    route: Arc<OnceCell<Route>>,
    losses: Losses,
    seen: LastHistory,
    waiting: Gauge,
    acquire_duration: Histogram,
}

/// When a connection was last found dead. The other connections of that time most likely died with
/// it, in a restart or failover, so none of them is used again; otherwise each would fail some work
/// first.
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
    /// Does not connect yet: if the database is down, later calls return `Unavailable`.
    pub fn new(options: PgConnectOptions, pool_connections: u32) -> Self {
        let options = named(options);
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
            .after_connect(|_, _| {
                count_connection();
                Box::pin(async { Ok(()) })
            })
            .connect_lazy_with(options.clone().options(SESSION));
        let waiting = metrics::gauge!(telemetry::DATABASE_POOL_WAITING);
        let acquire_duration =
            metrics::histogram!(telemetry::DATABASE_POOL_ACQUIRE_DURATION_SECONDS);
        let (fair, seen) = (Fair::new(pool_connections as usize), LastHistory::default());
        let (bare, route) = (Arc::new(options), Arc::default());
        let direct = None;
        Self {
            pool,
            fair,
            tenant: None,
            bare,
            direct,
            route,
            losses,
            seen,
            waiting,
            acquire_duration,
        }
    }

    /// Listens over connections of their own, which no pooler shares.
    pub fn listening_by(self, options: PgConnectOptions) -> Self {
        Self { direct: Some(Arc::new(named(options))), ..self }
    }

    /// How to connect to listen; none behind a pooler that would give the LISTEN to others.
    pub async fn listen_options(&self) -> Result<Option<Arc<PgConnectOptions>>, Error> {
        match &self.direct {
            Some(direct) => Ok(Some(direct.clone())),
            None => Ok((self.route().await? == Route::Dedicated).then(|| self.options())),
        }
    }

    /// The same store for work of a tenant, which gets its share of the pool.
    pub fn of(&self, tenant: TenantId) -> Self {
        Self { tenant: Some(tenant), ..self.clone() }
    }

    /// Notes that a connection was found dead.
    pub fn lost(&self) {
        self.losses.note();
        self.seen.lost();
    }

    /// Notes which server has answered, and so the history of its answer.
    pub fn saw(&self, server: Server) -> History {
        self.seen.saw(server)
    }

    /// The history of answers, as far as it is known.
    pub fn history(&self) -> History {
        self.seen.history()
    }

    /// Sets the gauges that are sampled, not counted.
    pub fn measure(&self) {
        let (all, idle) = (self.pool.size() as usize, self.pool.num_idle());
        for (state, connections) in [("idle", idle), ("in_use", all.saturating_sub(idle))] {
            metrics::gauge!(telemetry::DATABASE_POOL_CONNECTIONS, "state" => state)
                .set(connections as f64);
        }
        let most = self.pool.options().get_max_connections();
        metrics::gauge!(telemetry::DATABASE_POOL_MAX_CONNECTIONS).set(f64::from(most));
    }

    /// A connection of the pool, and what must be kept as long as it is in use.
    async fn acquire(&self) -> Result<(PoolConnection<Postgres>, Permit), Error> {
        let _waiting = Counted::new(&self.waiting);
        let begun = Instant::now();
        let acquired = timeout(ACQUIRE_TIMEOUT, async {
            let permit = self.fair.take(self.tenant).await.ok_or(sqlx::Error::PoolClosed)?;
            Ok((self.pool.acquire().await?, permit))
        });
        let acquired = acquired.await.unwrap_or(Err(sqlx::Error::PoolTimedOut));
        self.acquire_duration.record(begun.elapsed().as_secs_f64());
        Ok(acquired?)
    }

    /// A dedicated connection, for as long as its owner lives.
    pub async fn connection(&self) -> Result<PgConnection, Error> {
        let connection = PgConnection::connect_with(&self.options()).await?;
        count_connection();
        Ok(connection)
    }

    /// The connect options.
    pub fn options(&self) -> Arc<PgConnectOptions> {
        self.pool.connect_options()
    }

    /// The route to the database, detected once; an error if it is unsuitable.
    pub async fn route(&self) -> Result<Route, Error> {
        let find = || async {
            let (options, route) = route::find(&self.bare, &SESSION).await?;
            self.pool.set_connect_options(options);
            Ok(route)
        };
        self.route.get_or_try_init(find).await.copied()
    }

    /// Runs statements that write nothing on a pooled connection, each by itself. The work goes on
    /// when the caller is cancelled: a half-run statement must never go back to the pool.
    pub fn run<T, E, W: Work<T, E>>(&self, work: W) -> impl Done<T, E> + use<T, E, W>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.clone().within(work, Error::Unavailable(Cause::SilentPeer))
    }

    /// Runs an autocommitted write: if there is no answer, it may have taken effect.
    pub fn write<T, E, W: Work<T, E>>(&self, work: W) -> impl Done<T, E> + use<T, E, W>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.clone().within(work, Error::silent_peer())
    }

    async fn within<T, E>(self, work: impl Work<T, E>, silence: Error) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let store = self;
        finish(tokio::spawn(async move {
            let (mut connection, _permit) = store.acquire().await?;
            match timeout(WORK_TIMEOUT, work(&mut connection)).await {
                Ok(Err(error)) => {
                    if connection.ping().await.is_err() {
                        store.lost();
                    }
                    Err(error)
                }
                Ok(done) => done,
                Err(_) => {
                    // a silent peer would keep the pool's permit forever
                    connection.close_on_drop();
                    Err(silence.into())
                }
            }
        }))
        .await
    }

    /// Runs statements as one transaction; an error rolls it back. The work continues if the caller
    /// is cancelled.
    pub fn transaction<T, E, W: Work<T, E>>(&self, work: W) -> impl Done<T, E> + use<T, E, W>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.clone().within_transaction(work, (BEGIN, Error::OutcomeUnknown))
    }

    /// Runs reads that share one snapshot: without an answer, still nothing was written.
    pub fn snapshot<T, E, W: Work<T, E>>(&self, work: W) -> impl Done<T, E> + use<T, E, W>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.clone().within_transaction(work, (BEGIN_SNAPSHOT, Error::Unavailable))
    }

    async fn within_transaction<T, E>(
        self,
        work: impl Work<T, E>,
        (begin, unanswered): (&'static str, fn(Cause) -> Error),
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let store = self;
        finish(tokio::spawn(async move {
            let (mut connection, _permit) = store.acquire().await?;
            let result = in_transaction(&mut connection, work, (begin, unanswered));
            match timeout(WORK_TIMEOUT, result).await {
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
                    Err(unanswered(Cause::SilentPeer).into())
                }
            }
        }))
        .await
    }
}

/// Floats are none of ours, and PgBouncer knows no such parameter.
fn named(options: PgConnectOptions) -> PgConnectOptions {
    options.application_name("oncelog").extra_float_digits(None)
}

/// The value, or the error and whether the connection is still good.
async fn in_transaction<T, E: From<Error>>(
    connection: &mut PgConnection,
    work: impl Work<T, E>,
    (begin, unanswered): (&'static str, fn(Cause) -> Error),
) -> Result<T, (E, bool)> {
    let begun = begin_by(connection, begin).await;
    let mut transaction = begun.map_err(|error| (error.into(), false))?;
    match work(&mut transaction).await {
        Ok(value) => match commit(transaction).await {
            Ok(()) => Ok(value),
            Err(Error::OutcomeUnknown(cause)) => Err((unanswered(cause).into(), false)),
            Err(error) => Err((error.into(), false)),
        },
        Err(error) => Err((error, transaction.rollback().await.is_ok())),
    }
}

/// Begins a transaction of several statements.
pub async fn begin(connection: &mut PgConnection) -> Result<PgTransaction<'_>, Error> {
    begin_by(connection, BEGIN).await
}

/// After a failed BEGIN nothing was done, but the connection must not be used again.
async fn begin_by<'c>(
    connection: &'c mut PgConnection,
    begin: &'static str,
) -> Result<PgTransaction<'c>, Error> {
    connection.begin_with(begin).await.map_err(|error| Error::Unavailable(Cause::Database(error)))
}

/// The server that this connection reaches now.
pub async fn server(connection: &mut PgConnection) -> Result<Server, Error> {
    Ok(sqlx::query_scalar(SERVER).fetch_one(connection).await?)
}

/// Rolls back now, instead of with the connection's next statement as a dropped transaction does.
pub async fn settle(connection: &mut PgConnection) -> Result<(), Error> {
    Ok(connection.ping().await?)
}

/// Ends a transaction that changed nothing.
pub async fn rollback(transaction: PgTransaction<'_>) -> Result<(), Error> {
    Ok(transaction.rollback().await?)
}

/// Commits; a lost answer is `OutcomeUnknown`.
pub async fn commit(transaction: PgTransaction<'_>) -> Result<(), Error> {
    transaction.commit().await.map_err(|error| match Error::from(error) {
        Error::Unavailable(error) => Error::OutcomeUnknown(error),
        other => other,
    })
}

async fn finish<T, E: From<Error>>(task: tokio::task::JoinHandle<Result<T, E>>) -> Result<T, E> {
    match task.await {
        Ok(result) => result,
        Err(error) => Err(Error::Unexpected(format!("a database task failed: {error}")).into()),
    }
}

fn count_connection() {
    metrics::counter!(telemetry::DATABASE_CONNECTS_TOTAL).increment(1);
}
