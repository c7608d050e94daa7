//! Stopping in order, whatever the database does.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use oncelog::store::{self, Store};
use serde_json::json;
use sqlx::{ConnectOptions, PgConnection};

use crate::support::{
    self,
    proxy::Proxy,
    served::{replica, until},
};

/// A database that does not answer must not keep the program from stopping.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_stops_though_the_database_is_silent() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let (mut process, client) = replica(&proxy, &options).await;
    client.put_topic("t", 1).await;
    client.append("t", 0, &[json!(1)]).await;
    let read = {
        let client = client.clone();
        tokio::spawn(async move { client.read("t", 0, "offset=1&wait_ms=60000").await })
    };
    let waits = async || client.metric("oncelog_waiting_reads").await == Some(1.0);
    until("the read to wait", async || waits().await.then_some(())).await;
    proxy.close_gate();
    proxy.cut_all();
    // the listener, the poll and the janitor try to connect, and hang
    until("connections that hang", async || (proxy.held() >= 2).then_some(())).await;
    let told = Instant::now();
    process.signal(Signal::SIGTERM);
    assert!(process.exit().await.success());
    println!("stopped within {:?} though the database is silent", told.elapsed());
    assert!(told.elapsed() < Duration::from_secs(3), "{:?}", told.elapsed());
    assert_eq!(read.await.unwrap().ok(200)["records"], json!([]));
}

/// What each connection and each transaction of several statements limits.
#[tokio::test]
async fn every_statement_has_an_end() {
    let store = Store::new(support::database().await, 2);
    store.route().await.unwrap();
    let limits = "select current_setting('statement_timeout') || ' ' \
        || current_setting('client_connection_check_interval')";
    let ask = async move |connection: &mut PgConnection| {
        let shown: String = sqlx::query_scalar(limits).fetch_one(connection).await?;
        Ok::<_, store::Error>(shown)
    };
    assert_eq!(store.run(ask).await.unwrap(), "25s 5s");
    // the transaction says it again: behind a pooler the connection does not
    let undone = "select set_config('statement_timeout', '0', false), \
        set_config('client_connection_check_interval', '0', false)";
    let in_both = async move |connection: &mut PgConnection| {
        sqlx::query(undone).execute(&mut *connection).await?;
        ask(connection).await
    };
    let small = Store::new(store.options().as_ref().clone(), 1);
    assert_eq!(small.run(in_both).await.unwrap(), "0 0");
    assert_eq!(small.transaction(ask).await.unwrap(), "25s 5s");
    assert_eq!(small.snapshot(ask).await.unwrap(), "25s 5s");
    assert_eq!(small.run(ask).await.unwrap(), "0 0");
    // one that is at its end is not attempted again: that would take as long again
    let too_long = async move |connection: &mut PgConnection| {
        sqlx::query("set local statement_timeout = '10ms'").execute(&mut *connection).await?;
        sqlx::query("select pg_sleep(60)").execute(connection).await?;
        Ok::<_, store::Error>(())
    };
    let ended = small.transaction(too_long).await;
    assert!(matches!(ended, Err(store::Error::Unavailable(_))), "{ended:?}");
}

/// A server that gives up closes the connection; PostgreSQL finds out by itself, and ends the
/// statement, which may have needed all of a disk or a lock.
#[tokio::test]
async fn a_statement_that_was_given_up_ends() {
    let options = support::database().await;
    let store = Store::new(options.clone(), 1);
    store.route().await.unwrap();
    let mut given_up = store.connection().await.unwrap();
    let mut other = options.connect().await.unwrap();
    let begun = tokio::time::timeout(
        Duration::from_secs(1),
        sqlx::query("select pg_sleep(600)").execute(&mut given_up),
    );
    assert!(begun.await.is_err());
    let left = "select count(*) from pg_stat_activity where query like 'select pg_sleep(600)' \
        and state = 'active' and datname = current_database()";
    let count = async |other: &mut PgConnection| -> i64 {
        sqlx::query_scalar(left).fetch_one(other).await.unwrap()
    };
    assert_eq!(count(&mut other).await, 1);
    drop(given_up);
    until("the statement to end", async || (count(&mut other).await == 0).then_some(())).await;
}
