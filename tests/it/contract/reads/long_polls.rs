//! Reads that wait: what wakes them, what they cost, and how they end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use oncelog::{
    broker::ServiceConfig,
    embedded::{DATABASE, Embedded},
    model::read::{Isolation, Read, Start},
    store::Store,
};
use serde_json::{Value, json};
use sqlx::{ConnectOptions, PgConnection, postgres::PgConnectOptions};
use tokio::task::JoinHandle;

use crate::support::{
    self, crash_and_restart, name,
    proxy::Proxy,
    served::{Answer, Client, Served, partition_path, replica, until},
};

const LONG: &str = "offset=latest&wait_ms=60000";

/// A read that waits; answers when it was answered.
type Wait = JoinHandle<(Answer, Instant)>;

fn wait(client: &Client, path: String) -> Wait {
    let client = client.clone();
    tokio::spawn(async move { (client.get(&path).await, Instant::now()) })
}

/// At the end of a partition.
fn wait_at(client: &Client, topic: &'static str, partition: i32) -> Wait {
    wait(client, format!("{}?{LONG}", partition_path(topic, partition)))
}

async fn until_waiting(served: &Served, count: usize) {
    let waiting = || served.broker.waiting_reads();
    until("reads to wait", async || (waiting() == count).then_some(())).await;
}

async fn until_gauge(client: &Client, count: f64) {
    let gauge = async || client.metric("oncelog_waiting_reads").await == Some(count);
    until("the gauge of waiting reads", async || gauge().await.then_some(())).await;
}

fn values(page: &Value) -> Vec<Value> {
    page["records"].as_array().unwrap().iter().map(|record| record["value"].clone()).collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_wakes_within_milliseconds_here_and_elsewhere() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let (_here, here) = replica(&proxy, &options).await;
    let (_there, there) = replica(&proxy, &options).await;
    here.put_topic("t", 1).await;
    for (what, reader) in [("the same replica", &here), ("another process", &there)] {
        let mut times = Vec::new();
        for n in 0..30 {
            let read = wait_at(reader, "t", 0);
            until_gauge(reader, 1.0).await;
            here.append("t", 0, &[json!(n)]).await;
            let acknowledged = Instant::now();
            let (answer, answered) = read.await.unwrap();
            assert_eq!(values(&answer.ok(200)), [json!(n)]);
            times.push(answered.saturating_duration_since(acknowledged));
        }
        let (worst, median) = (times.iter().copied().max().unwrap(), median(times));
        println!("woken by {what}: median {median:?}, worst {worst:?} after the acknowledgement");
        assert!(median < Duration::from_millis(250), "{what}: {median:?}");
    }
}

/// Ends server processes of this database whose last statement is like this; answers how many.
async fn cut(options: &PgConnectOptions, like: &str) -> usize {
    let mut connection = options.connect().await.unwrap();
    let cut: Vec<bool> = sqlx::query_scalar(
        "select pg_terminate_backend(pid) from pg_stat_activity \
         where datname = current_database() and pid <> pg_backend_pid() and query ilike $1",
    )
    .bind(like)
    .fetch_all(&mut connection)
    .await
    .unwrap();
    cut.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_notice_costs_a_second_at_most() {
    const NOTIFIES: &str = "select pg_notify%";
    const LISTENS: &str = "listen%";
    let options = support::database().await;
    let here = Served::start(&options, ServiceConfig::default()).await;
    let there = Served::start(&options, ServiceConfig::default()).await;
    here.client.put_topic("t", 1).await;
    for cuts in [vec![NOTIFIES], vec![LISTENS], vec![NOTIFIES, LISTENS]] {
        let mut times = Vec::new();
        for n in 0..4 {
            // a wake-up by notice: now all connections there are to be cut are there
            let read = wait_at(&there.client, "t", 0);
            until_waiting(&there, 1).await;
            here.client.append("t", 0, &[json!("before")]).await;
            read.await.unwrap().0.ok(200);
            // (either replica says at its start that it is there)
            let all = async || matches!(all_open(&options).await, (1.., 2)).then_some(());
            until("connections", all).await;

            let read = wait_at(&there.client, "t", 0);
            until_waiting(&there, 1).await;
            for like in &cuts {
                assert!(cut(&options, like).await > 0, "{like}");
            }
            here.client.append("t", 0, &[json!(n)]).await;
            let acknowledged = Instant::now();
            let (answer, answered) = read.await.unwrap();
            assert_eq!(values(&answer.ok(200)), [json!(n)]);
            times.push(answered.saturating_duration_since(acknowledged));
        }
        println!("without {cuts:?}: woken after {times:?}");
        let worst = times.into_iter().max().unwrap();
        assert!(worst < Duration::from_millis(2_500), "{cuts:?}: {worst:?}");
    }
}

/// How many connections have sent notices, and how many listen.
async fn all_open(options: &PgConnectOptions) -> (i64, i64) {
    let mut connection = options.connect().await.unwrap();
    sqlx::query_as(
        "select count(*) filter (where query ilike 'select pg_notify%'), \
                count(*) filter (where query ilike 'listen%') \
         from pg_stat_activity where datname = current_database()",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap()
}

/// What is answered as soon as the database is there.
async fn when_available(mut ask: impl AsyncFnMut() -> Answer) -> Answer {
    until("the database", async || Some(ask().await).filter(|answer| answer.status != 503)).await
}

/// How many waits of every kind there are.
const EVERY_KIND: usize = 41;

/// Waits where partition 0 of topic t ends: twenty reads, as many that join their crowd, and the
/// fetch of a member that has the partition.
async fn waits_of_every_kind(served: &Served, group: &str) -> Vec<Wait> {
    let client = &served.client;
    let path = format!("/v1/groups/{group}/members");
    let join = json!({"topics": ["t"], "auto_offset_reset": "latest"});
    let joined = when_available(async || client.post(&path, &join).await).await.ok(201);
    let member = joined["member_id"].as_str().unwrap();
    let mut waits = vec![wait(client, format!("{path}/{member}/records?wait_ms=60000"))];
    waits.extend((0..20).map(|_| wait_at(client, "t", 0)));
    until_waiting(served, waits.len()).await;
    // a poll later it is known here where the log ends, also if another replica has written there
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let last = when_available(async || client.read("t", 0, "offset=latest").await).await.ok(200);
    let query = format!("offset={}&wait_ms=60000", last["high_watermark"]);
    let crowd = || wait(client, format!("{}?{query}", partition_path("t", 0)));
    waits.extend((0..20).map(|_| crowd()));
    until_waiting(served, EVERY_KIND).await;
    waits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_outlives_a_restart_of_the_database() {
    let dir = support::open_dir();
    let embedded = Embedded::start(dir.path(), &[]).unwrap();
    let options = embedded.connect_options(DATABASE);
    Store::new(options.clone(), 1).migrate().await.unwrap();
    let here = Served::start(&options, ServiceConfig::default()).await;
    let there = Served::start(&options, ServiceConfig::default()).await;
    here.client.put_topic("t", 1).await;
    for round in 0..2 {
        // many reads at once: every pooled connection is open, and will be dead
        let busy = (0..50).map(|_| there.client.read("t", 0, "limit=1"));
        join_all(busy).await;
        let groups = [format!("here-{round}"), format!("there-{round}")];
        let mut reads = waits_of_every_kind(&here, &groups[0]).await;
        reads.extend(waits_of_every_kind(&there, &groups[1]).await);
        crash_and_restart(&embedded).await;
        assert!(reads.iter().all(|read| !read.is_finished()), "nobody was sent away");
        append_until_acknowledged(&here.client, round).await;
        let acknowledged = Instant::now();
        let mut times = Vec::new();
        for answered in join_all(reads).await {
            let (answer, answered) = answered.unwrap();
            assert_eq!(values(&answer.ok(200)).first(), Some(&json!(round)));
            times.push(answered.saturating_duration_since(acknowledged));
        }
        let (here, there) = times.split_at(EVERY_KIND);
        let (here, there) = (here.iter().max().unwrap(), there.iter().max().unwrap());
        println!("after a restart all were woken within {here:?} here, {there:?} elsewhere");
        assert!(*there < Duration::from_secs(3), "{there:?}");
    }
}

/// Those who are woken just before the database goes away have waited, and wait until it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_woken_outlives_a_restart_of_the_database() {
    let dir = support::open_dir();
    let embedded = Embedded::start(dir.path(), &[]).unwrap();
    let options = embedded.connect_options(DATABASE);
    Store::new(options.clone(), 1).migrate().await.unwrap();
    let served = Served::start(&options, ServiceConfig::default()).await;
    served.client.put_topic("t", 1).await;
    for round in 0..3 {
        let waits = waits_of_every_kind(&served, &format!("g-{round}")).await;
        append_until_acknowledged(&served.client, round).await;
        crash_and_restart(&embedded).await;
        for wait in waits {
            let page = wait.await.unwrap().0.ok(200);
            assert_eq!(values(&page).first(), Some(&json!(round)));
        }
    }
}

/// Without a number: of the lane's dead connection nobody knows whether it took the first.
async fn append_until_acknowledged(client: &Client, value: i32) {
    let body = json!({"records": [{"value": value}]});
    until("an append to be acknowledged", async || {
        let answer = client.post(&partition_path("t", 0), &body).await;
        assert!(answer.status == 200 || answer.status == 503, "{answer:?}");
        (answer.status == 200).then_some(())
    })
    .await;
}

async fn connections(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar(
        "select count(*) from pg_stat_activity where datname = current_database() \
         and pid <> pg_backend_pid()",
    )
    .fetch_one(connection)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_read_holds_no_connection() {
    let options = support::database().await;
    let served = Served::start(&options, ServiceConfig::default()).await;
    served.client.put_topic("t", 4).await;
    let reads: Vec<_> = (0..500).map(|n| wait_at(&served.client, "t", n % 4)).collect();
    until_waiting(&served, 500).await;
    let mut connection = options.connect().await.unwrap();
    let open = connections(&mut connection).await;
    println!("500 waiting reads, {open} connections");
    // the pool has 4; a lane, the listener and the notifier have one each
    assert!(open <= 7, "{open}");
    // and all four of the pool are free for others
    join_all((0..20).map(|_| served.client.read("t", 0, ""))).await;
    for partition in 0..4 {
        served.client.append("t", partition, &[json!(partition)]).await;
    }
    for (n, read) in reads.into_iter().enumerate() {
        assert_eq!(values(&read.await.unwrap().0.ok(200)), [json!(n % 4)]);
    }
    assert_eq!(served.broker.waiting_reads(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_every_wait_at_once() {
    let mut served = Served::alone().await;
    served.client.put_topic("t", 1).await;
    served.client.append("t", 0, &[json!(1)]).await;
    let reads: Vec<_> = (0..100).map(|_| wait_at(&served.client, "t", 0)).collect();
    until_waiting(&served, 100).await;
    let begun = Instant::now();
    served.shut_down().await;
    println!("100 waits and the server ended within {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(5));
    for read in reads {
        let page = read.await.unwrap().0.ok(200);
        assert_eq!((&page["records"], &page["next_offset"]), (&json!([]), &json!(1)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_topic_ends_its_waits_at_once() {
    let options = support::database().await;
    let here = Served::start(&options, ServiceConfig::default()).await;
    let there = Served::start(&options, ServiceConfig::default()).await;
    here.client.put_topic("t", 2).await;
    here.client.put_topic("other", 1).await;
    let bystander = wait_at(&there.client, "other", 0);
    let mut reads = Vec::new();
    for n in 0..20 {
        reads.push(wait_at(&here.client, "t", n % 2));
        reads.push(wait_at(&there.client, "t", n % 2));
    }
    until_waiting(&here, 20).await;
    until_waiting(&there, 21).await;
    here.client.delete("/v1/topics/t").await;
    let deleted = Instant::now();
    let mut last = deleted;
    for read in reads {
        let (answer, answered) = read.await.unwrap();
        assert_eq!(answer.problem(), (404, "topic_not_found".into()));
        last = last.max(answered);
    }
    println!("all knew {:?} after the deletion", last - deleted);
    assert!(last - deleted < Duration::from_millis(1_500));
    assert!(!bystander.is_finished());
    // a new topic of that name is another one
    here.client.put_topic("t", 2).await;
    let again = wait_at(&there.client, "t", 1);
    until_waiting(&there, 2).await;
    here.client.append("t", 1, &[json!("new")]).await;
    assert_eq!(values(&again.await.unwrap().0.ok(200)), [json!("new")]);
}

/// 4,800 waits by the broker and 200 by HTTP, over that many partitions; one append wakes them all.
async fn five_thousand(partitions: i32, elsewhere: bool) {
    let options = support::database().await;
    let served = Served::start(&options, ServiceConfig::default()).await;
    let writer = Served::start(&options, ServiceConfig::default()).await;
    served.client.put_topic("t", partitions).await;
    let tenant = support::tenant(&served.broker).await;
    let by_http: Vec<_> = (0..200).map(|n| wait_at(&served.client, "t", n % partitions)).collect();
    let mass: Vec<_> = (0..4_800)
        .map(|n| {
            let broker = served.broker.clone();
            let read = Read {
                start: Start::Latest,
                limit: 500,
                max_bytes: 1 << 20,
                wait_ms: 60_000,
                isolation: Isolation::default(),
            };
            tokio::spawn(async move {
                let page = broker.read(tenant, &name("t"), n % partitions, read).await.unwrap();
                (page, Instant::now())
            })
        })
        .collect();
    until_waiting(&served, 5_000).await;
    // keys enough to reach every partition
    let records: Vec<Value> =
        (0..1_000).map(|n| json!({"key": format!("k{n}"), "value": n})).collect();
    let client = if elsewhere { &writer.client } else { &served.client };
    let sent = Instant::now();
    client.post("/v1/topics/t/records", &json!({"records": records})).await.ok(200);
    let mut last = sent;
    for read in mass {
        let (page, answered) = read.await.unwrap();
        assert!(!page.slices.is_empty());
        assert_eq!(page.slices[0].first_offset, 0);
        last = last.max(answered);
    }
    for read in by_http {
        let (answer, answered) = read.await.unwrap();
        assert!(!values(&answer.ok(200)).is_empty());
        last = last.max(answered);
    }
    let place = if elsewhere { "another replica" } else { "the same replica" };
    println!(
        "5,000 waits on {partitions} partitions, all answered {:?} after one append was sent to {place}",
        last - sent
    );
    assert!(last - sent < Duration::from_secs(10));
    assert_eq!(served.broker.waiting_reads(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_waits_on_one_partition() {
    five_thousand(1, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_waits_on_many_partitions_woken_elsewhere() {
    five_thousand(50, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_bound_a_wait_is_refused() {
    let options = support::database().await;
    let settings = ServiceConfig { max_waiting_reads: 3, ..ServiceConfig::default() };
    let served = Served::start(&options, settings).await;
    let client = &served.client;
    client.put_topic("t", 1).await;
    client.append("t", 0, &[json!(0)]).await;
    let reads: Vec<_> = (0..3).map(|_| wait_at(client, "t", 0)).collect();
    until_waiting(&served, 3).await;
    let refused = client.read("t", 0, LONG).await;
    assert_eq!(refused.problem(), (503, "unavailable".into()));
    assert!(refused.header("retry-after") >= 1);
    // what need not wait is served
    assert_eq!(values(&client.read("t", 0, "wait_ms=1000").await.ok(200)), [json!(0)]);
    assert_eq!(values(&client.read("t", 0, "offset=latest").await.ok(200)), Vec::<Value>::new());
    client.append("t", 0, &[json!(1)]).await;
    for read in reads {
        assert_eq!(values(&read.await.unwrap().0.ok(200)), [json!(1)]);
    }
    let next = wait_at(client, "t", 0);
    until_waiting(&served, 1).await;
    client.append("t", 0, &[json!(2)]).await;
    assert_eq!(values(&next.await.unwrap().0.ok(200)), [json!(2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hangs_up_frees_the_place() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let settings = ServiceConfig { max_waiting_reads: 50, ..ServiceConfig::default() };
    let served = Served::start(&options, settings).await;
    let (_process, client) = replica(&proxy, &options).await;
    let client = Arc::new(client);
    client.put_topic("t", 1).await;
    for _ in 0..3 {
        let here: Vec<_> = (0..50).map(|_| wait_at(&served.client, "t", 0)).collect();
        let there: Vec<_> = (0..50).map(|_| wait_at(&client, "t", 0)).collect();
        until_waiting(&served, 50).await;
        until_gauge(&client, 50.0).await;
        here.iter().chain(&there).for_each(JoinHandle::abort);
        until_waiting(&served, 0).await;
        until_gauge(&client, 0.0).await;
    }
}

/// Many readers of one log, each coming back for the next record as soon as it has one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_at_the_end_of_a_log_looks_together() {
    const READERS: usize = 64;
    const RECORDS: usize = 20;
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let (_process, client) = replica(&proxy, &options).await;
    client.put_topic("t", 1).await;
    let reader = || {
        let client = client.clone();
        async move {
            for next in 0.. {
                let answer = client.read("t", 0, &format!("offset={next}&wait_ms=60000")).await;
                if answer.status == 404 {
                    return next;
                }
                let page = answer.ok(200);
                assert_eq!(
                    (values(&page), &page["next_offset"]),
                    (vec![json!(next)], &json!(next + 1))
                );
            }
            unreachable!("a topic is deleted at the end")
        }
    };
    let readers: Vec<JoinHandle<usize>> = (0..READERS).map(|_| tokio::spawn(reader())).collect();
    for n in 0..RECORDS {
        until_gauge(&client, READERS as f64).await;
        client.append("t", 0, &[json!(n)]).await;
    }
    until_gauge(&client, READERS as f64).await;
    client.delete("/v1/topics/t").await;
    for reader in readers {
        assert_eq!(reader.await.unwrap(), RECORDS);
    }
    let looks = client.metric("oncelog_look_reads_count").await.unwrap();
    println!("{looks} looks for {RECORDS} records and {READERS} readers");
    assert!(looks < (READERS * RECORDS / 4) as f64, "{looks}");
}
