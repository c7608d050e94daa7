//! Stopping in order, whatever the database does.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

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
