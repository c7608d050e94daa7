//! oncelog behind a real PgBouncer in transaction mode, and with other clients' settings: no
//! guarantee depends on session state.

mod crashes;
mod traffic;

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
};

use futures_util::future::join_all;
use oncelog::store::{self, Route, Store};
use serde_json::json;
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, postgres::PgConnectOptions,
};

use self::traffic::Traffic;
use crate::support::{
    self,
    http::SECRET,
    pooler::{POOL_SIZE, Pooler},
    served::{Client, replica_at as replica, replica_with, until},
};

/// What `oncelog serve` says when it ends by itself.
fn refusal(database_url: &str) -> String {
    let program = Command::new(env!("CARGO_BIN_EXE_oncelog"))
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("ONCELOG_TOKEN_HS256_SECRET", SECRET)
        .env("ONCELOG_DATABASE_URL", database_url)
        .env_remove("DATABASE_URL")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!program.status.success());
    String::from_utf8(program.stderr).unwrap()
}

fn direct_url(options: &PgConnectOptions) -> String {
    let socket_dir = options.get_socket().unwrap().to_str().unwrap().replace('/', "%2F");
    let (user, database) = (options.get_username(), options.get_database().unwrap());
    format!("postgres://{user}@{socket_dir}:5432/{database}?sslmode=disable")
}

/// A role that may do in this database what oncelog does, with such settings of its own.
async fn role(options: &PgConnectOptions, settings: &[(&str, &str)]) -> PgConnectOptions {
    let database = options.get_database().unwrap();
    let name = "worker";
    let mut admin = options.connect().await.unwrap();
    let made = "do $$ begin create role worker login superuser; exception when duplicate_object then null; end $$";
    admin.execute(made).await.unwrap();
    for (setting, value) in settings {
        // in this database only: other tests have the same role
        let alter = format!("alter role {name} in database {database} set {setting} = {value}");
        admin.execute(AssertSqlSafe(alter)).await.unwrap();
    }
    admin.close().await.unwrap();
    options.clone().username(name)
}

async fn traffic(first: &Client, second: &Client) {
    let run = |suffix| async move { Traffic { replicas: [first, second], suffix }.run().await };
    join_all((0..3).map(run)).await;
}

/// What differs in this connection of the server's from how a new one would be, but for what
/// PgBouncer sees to by itself.
async fn left_behind(connection: &mut PgConnection) -> Vec<String> {
    const LEFT: &str = "
        select name || ' = ' || setting from pg_settings where source = 'session' and name not in (
            'application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'IntervalStyle',
            'standard_conforming_strings', 'transaction_isolation', 'transaction_read_only', 'transaction_deferrable')
        union all select 'oncelog.token' where current_setting('oncelog.token', true) <> ''
        union all select 'listens to ' || c from pg_listening_channels() c
        union all select 'holds ' || locktype from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'
        union all select 'cursor ' || name from pg_cursors where is_holdable
        union all select 'table ' || relname from pg_class where relpersistence = 't'";
    sqlx::query_scalar(LEFT).persistent(false).fetch_all(connection).await.unwrap()
}

/// Looks at each of the pooler's connections: held all at once, they are all there are.
async fn look_at_all(options: &PgConnectOptions) -> (BTreeSet<i32>, Vec<String>) {
    let mut clients = Vec::new();
    for _ in 0..POOL_SIZE {
        let mut client = options.connect().await.unwrap();
        client.execute("begin").await.unwrap();
        clients.push(client);
    }
    let (mut backends, mut left) = (BTreeSet::new(), Vec::new());
    for client in &mut clients {
        let backend = sqlx::query_scalar("select pg_backend_pid()");
        backends.insert(backend.persistent(false).fetch_one(&mut *client).await.unwrap());
        left.extend(left_behind(client).await);
        client.execute("rollback").await.unwrap();
    }
    (backends, left)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_session_is_left_in_shared_connections() {
    let options = support::database().await;
    let pooler = Pooler::start(&options, &[]).await;
    let shared = pooler.options(&options).extra_float_digits(None);
    let (_first, first) = replica(&pooler.url(&options)).await;
    let (_second, second) = replica(&pooler.url(&options)).await;
    traffic(&first, &second).await;
    until("the janitor's rounds and the notices", async || {
        let metrics = first.admin().get("/metrics").await.text;
        let shown = |name: &str| {
            let mut lines = metrics.lines().filter_map(|line| line.rsplit_once(' '));
            lines.any(|(series, value)| series == name && value.parse::<f64>().unwrap() > 0.0)
        };
        let rounds = "oncelog_janitor_last_success_timestamp_seconds{task=\"members\"}";
        let sent = "oncelog_notices_total{direction=\"sent\"}";
        (shown(rounds) && shown(sent)).then_some(())
    })
    .await;
    let (backends, left) = look_at_all(&shared).await;
    assert_eq!(backends.len(), POOL_SIZE);
    assert!(left.is_empty(), "{left:?}");
    // the look itself sees what is left
    let mut client = shared.connect().await.unwrap();
    client.execute("set synchronous_commit = local").await.unwrap();
    let (_, left) = look_at_all(&shared).await;
    assert_eq!(left, ["synchronous_commit = local"]);
}

/// Whatever others have set, for the server, the database, the role, or in a connection that they
/// gave back to the pooler.
#[tokio::test(flavor = "multi_thread")]
async fn settings_of_others_change_nothing() {
    const ODD: [(&str, &str); 10] = [
        ("synchronous_commit", "off"),
        ("default_transaction_isolation", "serializable"),
        ("search_path", "nowhere"),
        ("DateStyle", "'SQL, DMY'"),
        ("IntervalStyle", "sql_standard"),
        ("TimeZone", "'Pacific/Chatham'"),
        ("standard_conforming_strings", "off"),
        ("bytea_output", "escape"),
        ("extra_float_digits", "-15"),
        ("plan_cache_mode", "force_custom_plan"),
    ];
    let options = support::database().await;
    let worker = role(&options, &ODD).await;
    let pooler = Pooler::start(&options, &[]).await;
    let (_first, first) = replica(&pooler.url(&worker)).await;
    let (_second, second) = replica(&direct_url(&worker)).await;
    let mut client = pooler.options(&worker).extra_float_digits(None).connect().await.unwrap();
    for _ in 0..2 * POOL_SIZE {
        let session = "set lock_timeout = 0; set default_transaction_isolation = 'repeatable read'";
        client.execute(session).await.unwrap();
    }
    traffic(&first, &second).await;
}

/// One that waited for a lock sees what was committed meanwhile.
#[tokio::test]
async fn transactions_are_read_committed_and_may_write() {
    let options = support::database().await;
    let odd = [
        ("default_transaction_isolation", "'repeatable read'"),
        ("default_transaction_read_only", "on"),
        ("default_transaction_deferrable", "on"),
    ];
    let worker = role(&options, &odd).await;
    let pooler = Pooler::start(&options, &[]).await;
    for options in [worker.clone(), pooler.options(&worker)] {
        let mut connection = options.extra_float_digits(None).connect().await.unwrap();
        let mut transaction = store::begin(&mut connection).await.unwrap();
        let shown = "select current_setting('transaction_isolation') || ' ' || current_setting('transaction_read_only') \
            || ' ' || current_setting('lock_timeout')";
        let shown: String = sqlx::query_scalar(shown).fetch_one(&mut *transaction).await.unwrap();
        assert_eq!(shown, "read committed off 5s");
        store::rollback(transaction).await.unwrap();
    }
}

/// Statements that commit by themselves cannot change it; connected to the server itself, oncelog
/// overrides it.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_only_reads_is_told_so() {
    let options = support::database().await;
    let worker = role(&options, &[("default_transaction_read_only", "on")]).await;
    let pooler = Pooler::start(&options, &[]).await;
    let said = refusal(&pooler.url(&worker));
    assert!(said.contains("ALTER ROLE ... SET default_transaction_read_only = off"), "{said}");
    let (_process, client) = replica(&direct_url(&worker)).await;
    client.put_topic("t", 1).await;
    client.append("t", 0, &[json!(1)]).await;
}

/// As PgBouncer was up to 1.20, and is where it is told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_loses_prepared_statements_is_refused() {
    let options = support::database().await;
    for round_robin in ["0", "1"] {
        let settings = [("max_prepared_statements", "0"), ("server_round_robin", round_robin)];
        let pooler = Pooler::start(&options, &settings).await;
        // what the first has left behind deceives nobody
        for _ in 0..4 {
            let said = refusal(&pooler.url(&options));
            assert!(said.contains("max_prepared_statements = 200"), "{said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_to_the_database_is_found_out() {
    let options = support::database().await;
    let route = async |options: PgConnectOptions| Store::new(options, 1).route().await.unwrap();
    assert_eq!(route(options.clone()).await, Route::Dedicated);
    let ignoring = ("ignore_startup_parameters", "options,extra_float_digits");
    for settings in [vec![], vec![ignoring], vec![("server_round_robin", "0")]] {
        let pooler = Pooler::start(&options, &settings).await;
        assert_eq!(route(pooler.options(&options)).await, Route::Shared, "{settings:?}");
        let session: Vec<_> = settings.into_iter().chain([("pool_mode", "session")]).collect();
        let pooler = Pooler::start(&options, &session).await;
        assert_eq!(route(pooler.options(&options)).await, Route::Dedicated, "{session:?}");
    }
    // with one connection for all it is found out as well
    let pooler = Pooler::start(&options, &[("default_pool_size", "1")]).await;
    assert_eq!(route(pooler.options(&options)).await, Route::Shared);
}

/// It is found out also while others use the pooler, and is what it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pooler_is_found_out() {
    let options = support::database().await;
    let pooler = Pooler::start(&options, &[("server_round_robin", "0")]).await;
    let shared = pooler.options(&options).extra_float_digits(None);
    let others = (0..8).map(|_| {
        let shared = shared.clone();
        tokio::spawn(async move {
            let mut client = shared.connect().await.unwrap();
            loop {
                client.execute("select pg_sleep(0.001)").await.unwrap();
            }
        })
    });
    let others: Vec<_> = others.collect();
    for _ in 0..20 {
        assert_eq!(Store::new(shared.clone(), 1).route().await.unwrap(), Route::Shared);
    }
    others.iter().for_each(|other| other.abort());
}

/// That it listens is said by a replica that has heard itself. Behind a shared connection nobody
/// hears anything: what another replica commits is found by the poll.
#[tokio::test(flavor = "multi_thread")]
async fn listening_is_said_when_something_was_heard() {
    let options = support::database().await;
    let listening = async |client: &Client| client.metric("oncelog_listening").await;
    let (transactions, sessions) = (
        Pooler::start(&options, &[]).await,
        Pooler::start(&options, &[("pool_mode", "session"), ("default_pool_size", "50")]).await,
    );
    let (_direct, direct) = replica(&direct_url(&options)).await;
    let (_session, session) = replica(&sessions.url(&options)).await;
    let (_shared, shared) = replica(&transactions.url(&options)).await;
    // through the same pooler, but for what it listens by
    let (_beside, beside) = replica_with(&[
        ("ONCELOG_DATABASE_URL", &transactions.url(&options)),
        ("ONCELOG_NOTIFY_DATABASE_URL", &direct_url(&options)),
    ])
    .await;
    for client in [&direct, &session, &beside] {
        until("a replica to hear itself", async || {
            (listening(client).await == Some(1.0)).then_some(())
        })
        .await;
    }
    shared.put_topic("t", 1).await;
    for (from, to) in
        [(&direct, &shared), (&shared, &direct), (&session, &shared), (&shared, &beside)]
    {
        let waiting = tokio::spawn({
            let to = to.clone();
            async move { to.read("t", 0, "offset=latest&wait_ms=60000").await }
        });
        until("a waiting read", async || {
            (to.metric("oncelog_waiting_reads").await == Some(1.0)).then_some(())
        })
        .await;
        from.append("t", 0, &[json!(1)]).await;
        let records = waiting.await.unwrap().ok(200);
        assert_eq!(records["records"].as_array().unwrap().len(), 1);
    }
    assert_eq!(listening(&shared).await, Some(0.0));
}

/// All or nothing, one after the other, whatever connection each statement gets.
#[tokio::test(flavor = "multi_thread")]
async fn many_migrate_at_once_through_a_pooler() {
    let options = support::empty_database().await;
    let pooler = Pooler::start(&options, &[]).await;
    let migrate = |_| {
        let shared = pooler.options(&options);
        async move { Store::new(shared, 1).migrate().await }
    };
    for migrated in join_all((0..8).map(migrate)).await {
        migrated.unwrap();
    }
    let mut connection = options.connect().await.unwrap();
    let count = "select count(*) from oncelog._sqlx_migrations where success";
    let count: i64 = sqlx::query_scalar(count).fetch_one(&mut connection).await.unwrap();
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations")).unwrap();
    let files = files.filter(|file| {
        file.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "sql")
    });
    assert_eq!(count, files.count() as i64);
    let shared = pooler.options(&options).extra_float_digits(None);
    let (_, left) = look_at_all(&shared).await;
    assert!(left.is_empty(), "{left:?}");
}
