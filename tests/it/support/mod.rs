//! One Postgres for all tests of this process, a database from a migrated template for each, and
//! common helpers for tests of brokers.

pub mod document;
pub mod http;
pub mod http2;
pub mod pooler;
pub mod proxy;
pub mod served;

use std::{
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use oncelog::{
    broker::{Broker, ServiceConfig},
    embedded::{Embedded, ServerState},
    model::{
        Batch, Name, Scopes, TenantId,
        append::{Append, ProducerSeq},
        session::{Open, Sequences, Sequencing},
    },
    store::Store,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, postgres::PgConnectOptions};
use tokio::sync::OnceCell;

/// Tests of durability start their own server: this one does not flush. It says so, too: what
/// oncelog writes is to be flushed all the same, and `FLUSHES` sees to that in every test.
const SERVER_OPTIONS: &[(&str, &str)] = &[
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("synchronous_commit", "off"),
    ("max_connections", "400"),
    // lines name their database
    ("log_line_prefix", "%m [%p] %d "),
];

/// No row is written by a statement of oncelog's whose commit is not flushed, or in a transaction
/// that waits for locks forever; and in one of several statements each sees what was committed
/// before it.
const FLUSHES: &str = "
create function public.flushes() returns trigger language plpgsql as $$
begin
    if current_setting('application_name') = 'oncelog' and (
        current_setting('synchronous_commit') in ('off', 'local') or current_setting('lock_timeout') = '0')
    then
        raise exception 'not flushed, or waits forever: %', current_query();
    end if;
    return null;
end $$;
do $$
declare
    written regclass;
begin
    for written in select oid from pg_class
        where relnamespace = 'oncelog'::regnamespace and relkind in ('r', 'p') and not relispartition
            and relname <> '_sqlx_migrations'
    loop
        execute format('create trigger flushes after insert or update or delete on %s
            for each row execute function public.flushes()', written);
    end loop;
end $$";

static SERVER: LazyLock<Embedded> = LazyLock::new(|| {
    sweep_old_directories();
    Embedded::start(&directory(std::process::id()), SERVER_OPTIONS).expect("Postgres for the tests")
});
static TEMPLATE: OnceCell<()> = OnceCell::const_new();
static NEXT: AtomicU32 = AtomicU32::new(0);

fn directory(pid: u32) -> PathBuf {
    std::env::temp_dir().join(format!("oncelog-test-{pid}"))
}

/// Statics are never dropped: the server ends with this process, its directory with the next run.
fn sweep_old_directories() {
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("oncelog-test-").and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !PathBuf::from(format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A directory that any user can enter: a server may run as another one.
pub fn open_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// How to reach a fresh, migrated database.
pub async fn database() -> PgConnectOptions {
    let server = tokio::task::spawn_blocking(|| &*SERVER).await.unwrap();
    let admin = server.connect_options("postgres");
    TEMPLATE
        .get_or_init(|| async {
            let mut connection = admin.connect().await.unwrap();
            connection.execute("create database template_oncelog").await.unwrap();
            connection.close().await.unwrap();
            let store = Store::new(server.connect_options("template_oncelog"), 1);
            store.migrate().await.unwrap();
            let mut connection =
                server.connect_options("template_oncelog").connect().await.unwrap();
            connection.execute(FLUSHES).await.unwrap();
            connection.close().await.unwrap();
        })
        .await;
    made(server, "template template_oncelog").await
}

/// How to reach a database with nothing in it.
pub async fn empty_database() -> PgConnectOptions {
    let server = tokio::task::spawn_blocking(|| &*SERVER).await.unwrap();
    made(server, "").await
}

async fn made(server: &Embedded, from: &str) -> PgConnectOptions {
    let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let mut connection = server.connect_options("postgres").connect().await.unwrap();
    let create = format!("create database {name} {from}");
    connection.execute(AssertSqlSafe(create)).await.unwrap();
    connection.close().await.unwrap();
    server.connect_options(&name)
}

/// Executes statements over a connection of their own.
pub async fn execute(options: &PgConnectOptions, sql: impl Into<String>) {
    let mut connection = options.connect().await.unwrap();
    connection.execute(AssertSqlSafe(sql.into())).await.unwrap();
    connection.close().await.unwrap();
}

/// The number that a statement returns; 0 for null or no row.
pub async fn number(options: &PgConnectOptions, sql: impl Into<String>) -> i64 {
    let mut connection = options.connect().await.unwrap();
    let query = sqlx::query_scalar(AssertSqlSafe(sql.into()));
    let number: Option<Option<i64>> = query.fetch_optional(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    number.flatten().unwrap_or(0)
}

/// Kills an embedded server, and waits until it runs again.
pub async fn crash_and_restart(embedded: &Embedded) {
    let killed = embedded.pid().unwrap();
    let mut state = embedded.state();
    kill(Pid::from_raw(killed.cast_signed()), Signal::SIGKILL).unwrap();
    let back =
        state.wait_for(|state| matches!(state, ServerState::Running { pid } if *pid != killed));
    tokio::time::timeout(served::PATIENCE, back).await.unwrap().unwrap();
}

/// How many deadlocks the database has had. The log says so at once; the counters of
/// `pg_stat_database` may come ten seconds later.
pub fn deadlocks(options: &PgConnectOptions) -> usize {
    let log = directory(std::process::id()).join("postgres.log");
    let log = std::fs::read(log).unwrap();
    let database = format!("] {} ", options.get_database().unwrap());
    let is_one = |line: &&str| line.contains(&database) && line.contains("deadlock detected");
    String::from_utf8_lossy(&log).lines().filter(is_one).count()
}

/// A broker without a janitor on a database.
pub fn broker(options: &PgConnectOptions, settings: ServiceConfig) -> Arc<Broker> {
    Broker::start_without_janitor(Store::new(options.clone(), 4), settings)
}

pub fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// The tenant `default`, as one broker knows it.
pub async fn tenant(broker: &Broker) -> TenantId {
    broker.tenant(&name("default")).await.unwrap()
}

/// An append of NDJSON records.
pub fn append(numbered: Option<ProducerSeq>, ndjson: &str) -> Append {
    let batch = Batch::from_ndjson(ndjson.as_bytes(), None).unwrap();
    Append {
        numbered,
        expected_offset: None,
        refuses_duplicates: false,
        request_key: None,
        batch: Arc::new(batch),
    }
}

/// What every token with all words permits.
pub fn all_scopes() -> Arc<Scopes> {
    Arc::new(Scopes::all())
}

/// An open with defaults.
pub fn open(transactional_id: Option<&str>) -> Open {
    Open {
        transactional_id: transactional_id.map(name),
        condition: None,
        open_id: None,
        transaction_timeout_ms: None,
        sequencing: Sequencing::Contiguous,
        sequences: Sequences::Continue,
        scopes: all_scopes(),
    }
}

#[tokio::test]
async fn a_deadlock_is_seen() {
    let options = database().await;
    assert_eq!(deadlocks(&options), 0);
    let lock = async |first: i32, second: i32| {
        let mut connection = options.connect().await.unwrap();
        let lock = |key: i32| format!("select pg_advisory_lock({key})");
        connection.execute(AssertSqlSafe(lock(first))).await.unwrap();
        let both = "select count(*) from pg_locks where locktype = 'advisory' and granted \
            and database = (select oid from pg_database where datname = current_database())";
        served::until("both have one", async || (number(&options, both).await >= 2).then_some(()))
            .await;
        connection.execute(AssertSqlSafe(lock(second))).await.is_ok()
    };
    let (one, other) = tokio::join!(lock(1, 2), lock(2, 1));
    assert!(one != other);
    assert_eq!(deadlocks(&options), 1);
}
