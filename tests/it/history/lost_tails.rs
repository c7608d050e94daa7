//! A failover to a server that was behind loses the last commits, and others take their offsets and
//! ids. Here the tail is lost by hand, in SQL: once with all connections cut, as when the server
//! has gone, and once with all of them kept, as behind a pooler, where nothing but the instant at
//! which the server was started is another. What a replica remembers of before must not be seen any
//! more.

use std::{collections::BTreeSet, time::Instant};

use oncelog::{
    broker::ServiceConfig,
    model::{LogId, Timestamp},
    store,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, PgConnection, postgres::PgConnectOptions};
use tokio::task::JoinHandle;

use crate::support::{
    self, name,
    served::{Answer, Client, PATIENCE, Served, until},
};

/// What becomes of the connections.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Connections {
    Cut,
    Kept,
}
use Connections::{Cut, Kept};

struct World {
    options: PgConnectOptions,
    hand: PgConnection,
    connections: Connections,
    /// The replica that was there before and after.
    here: Served,
}

impl World {
    async fn new(connections: Connections) -> Self {
        let options = support::database().await;
        let mut hand = options.connect().await.unwrap();
        // the server says when it was started by a table, so that it can become another one
        let database = options.get_database().unwrap();
        let prepare = format!(
            "create schema fake; \
             create table fake.server as select pg_postmaster_start_time() as started_at; \
             create function fake.pg_postmaster_start_time() returns timestamptz stable \
                 language sql as 'select started_at from fake.server'; \
             alter database {database} set search_path = fake, pg_catalog"
        );
        hand.execute(AssertSqlSafe(prepare)).await.unwrap();
        let here = Served::start(&options, ServiceConfig::default()).await;
        Self { options, hand, connections, here }
    }

    /// A replica that remembers nothing.
    async fn fresh(&self) -> Served {
        Served::start(&self.options, ServiceConfig::default()).await
    }

    async fn number(&mut self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut self.hand).await.unwrap()
    }

    async fn log(&mut self, topic: &str, partition: i32) -> i64 {
        self.number(&format!(
            "select log_id from oncelog.logs join oncelog.topics using (tenant_id, topic_id) \
             where name = '{topic}' and partition = {partition}"
        ))
        .await
    }

    /// Does these statements, and ends the history of before.
    async fn lose(&mut self, sql: &str) {
        let end = match self.connections {
            Kept => "update fake.server set started_at = started_at + interval '1 second'",
            Cut => "select 1",
        };
        self.hand.execute(AssertSqlSafe(format!("begin; {sql}; {end}; commit"))).await.unwrap();
        if self.connections == Cut {
            let cut = "select pg_terminate_backend(pid) from pg_stat_activity \
                       where datname = current_database() and pid <> pg_backend_pid()";
            self.hand.execute(cut).await.unwrap();
        }
    }

    /// Like this a log loses what lies at an offset and behind it.
    fn cut(log: i64, offset: i64) -> String {
        format!(
            "delete from oncelog.batches where log_id = {log} and base_offset >= {offset}; \
             update oncelog.logs l set next_offset = {offset}, last_appended_at = coalesce( \
                 (select max(appended_at) from oncelog.batches b where b.log_id = {log}), 'epoch') \
             where l.log_id = {log}"
        )
    }
}

/// Until the database is back.
async fn get(client: &Client, path: &str) -> Answer {
    let begun = Instant::now();
    loop {
        let answer = client.get(path).await;
        if answer.status != 503 {
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "{answer:?}");
    }
}

async fn append_one_by_one(client: &Client, partition: i32, era: &str, count: usize) {
    for n in 0..count {
        client.append("t", partition, &[json!(format!("{era} {n}"))]).await;
    }
}

const PARTITIONS: i32 = 3;

/// All that one can ask a replica for, but for what differs from answer to answer.
async fn seen(client: &Client, member: &str, seed: u64) -> Vec<(String, Value)> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut paths = vec![format!("{member}/records?limit=10000")];
    for limit in [1, 3, 10_000] {
        paths.push(format!("/v1/topics/t/records?limit={limit}"));
    }
    for partition in 0..PARTITIONS {
        for offset in 0..20 {
            let limit = rng.random_range(1..20);
            let query = format!("offset={offset}&limit={limit}");
            paths.push(format!("/v1/topics/t/partitions/{partition}/records?{query}"));
        }
    }
    let mut seen = Vec::new();
    for path in paths {
        let mut answer = get(client, &path).await.json();
        answer.as_object_mut().unwrap().remove("instance");
        seen.push((path, answer));
    }
    seen
}

async fn no_page_outlives_its_history(connections: Connections) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world = World::new(connections).await;
    let client = world.here.client.clone();
    client.put_topic("t", PARTITIONS).await;
    let logs = [world.log("t", 0).await, world.log("t", 1).await, world.log("t", 2).await];
    let joined = client.post("/v1/groups/g/members", &json!({"topics": ["t"]})).await.ok(201);
    let member = format!("/v1/groups/g/members/{}", joined["member_id"].as_str().unwrap());
    for round in 0..8 {
        let era = format!("era {round}");
        let writer = world.fresh().await;
        for partition in 0..PARTITIONS {
            append_one_by_one(&writer.client, partition, &era, rng.random_range(0..6)).await;
        }
        let asked = rng.random();
        let here = seen(&client, &member, asked).await;
        let fresh = seen(&writer.client, &member, asked).await;
        for ((path, here), (_, fresh)) in here.into_iter().zip(fresh) {
            assert_eq!(here, fresh, "{path} in {era}, {connections:?}");
        }
        drop(writer);
        let mut sql = Vec::new();
        for log in logs {
            let end = format!("select next_offset from oncelog.logs where log_id = {log}");
            let end = world.number(&end).await;
            sql.push(World::cut(log, rng.random_range(0..=end)));
        }
        world.lose(&sql.join("; ")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_outlives_a_server_that_has_gone() {
    no_page_outlives_its_history(Cut).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_outlives_a_server_that_was_replaced_behind_its_connections() {
    no_page_outlives_its_history(Kept).await;
}

fn wait(client: &Client, offset: i64) -> JoinHandle<Answer> {
    let path = format!("/v1/topics/t/partitions/0/records?offset={offset}&wait_ms=60000");
    let client = client.clone();
    tokio::spawn(async move { get(&client, &path).await })
}

async fn until_waiting(served: &Served, count: usize) {
    let waiting = || served.broker.waiting_reads();
    until("reads to wait", async || (waiting() == count).then_some(())).await;
}

/// Who waits where the log ended learns that it does not reach there any more, and who waits where
/// it ends now is woken though others have known more of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_what_was_lost() {
    for connections in [Cut, Kept] {
        let mut world = World::new(connections).await;
        let client = world.here.client.clone();
        client.put_topic("t", 1).await;
        append_one_by_one(&client, 0, "old", 9).await;
        let log = world.log("t", 0).await;
        // more than enough to be a crowd
        let waits: Vec<_> = (0..20).map(|_| wait(&client, 9)).collect();
        until_waiting(&world.here, 20).await;
        world.lose(&World::cut(log, 5)).await;
        for wait in waits {
            let answer = wait.await.unwrap();
            assert_eq!(answer.problem(), (416, "offset_out_of_range".into()), "{connections:?}");
        }
        let fresh = world.fresh().await;
        for round in 5..8 {
            let waits: Vec<_> = (0..20).map(|_| wait(&client, round)).collect();
            until_waiting(&world.here, 20).await;
            append_one_by_one(&fresh.client, 0, "new", 1).await;
            for wait in waits {
                let page = wait.await.unwrap().ok(200);
                assert_eq!(page["records"][0]["value"], "new 0", "{connections:?}");
                assert_eq!(page["high_watermark"], json!(round + 1), "{connections:?}");
            }
        }
    }
}

/// A topic that was made in the tail is gone, and its ids are another's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_name_outlives_its_history() {
    for connections in [Cut, Kept] {
        let mut world = World::new(connections).await;
        let client = world.here.client.clone();
        client.put_topic("t", 2).await;
        append_one_by_one(&client, 0, "old", 5).await;
        let (topic, log) = (
            world.number("select topic_id from oncelog.topics where name = 't'").await,
            world.number("select min(log_id) from oncelog.logs").await,
        );
        let paths = ["/v1/topics/t/records", "/v1/topics/t/partitions/0/records"];
        for path in paths {
            client.get(path).await.ok(200);
        }
        let sql =
            "delete from oncelog.batches; delete from oncelog.logs; delete from oncelog.topics";
        let again = format!(
            "select setval('oncelog.topic_ids', {topic}, false), setval('oncelog.log_ids', {log}, false)"
        );
        world.lose(&format!("{sql}; {again}")).await;
        let fresh = world.fresh().await;
        fresh.client.put_topic("u", 2).await;
        let ids = world.number("select topic_id from oncelog.topics where name = 'u'").await;
        assert_eq!((ids, world.number("select min(log_id) from oncelog.logs").await), (topic, log));
        for _ in 0..5 {
            fresh.client.append("u", 0, &[json!("new")]).await;
        }
        // what was remembered of the name lasts for a second, so ask at once
        for path in paths {
            let answer = get(&client, path).await;
            assert_eq!(
                answer.problem(),
                (404, "topic_not_found".into()),
                "{path}, {connections:?}"
            );
            let page = get(&client, &path.replace("/t/", "/u/")).await.ok(200);
            let values = page["records"].as_array().unwrap().iter().map(|record| &record["value"]);
            assert!(values.clone().count() == 5 && values.clone().all(|value| value == "new"));
        }
    }
}

/// The number of a tenant that was lost is another's, who is not taken for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_tenant_outlives_its_history() {
    for connections in [Cut, Kept] {
        let mut world = World::new(connections).await;
        let (here, client) = (world.here.broker.clone(), world.here.client.clone());
        client.put_topic("t", 1).await;
        let lost = here.tenant(&name("lost")).await.unwrap();
        let id = lost.0;
        let delete = format!("delete from oncelog.tenants where tenant_id = {id}");
        let again = format!("select setval('oncelog.tenant_ids', {id}, false)");
        world.lose(&format!("{delete}; {again}")).await;
        let fresh = world.fresh().await;
        assert_eq!(fresh.broker.tenant(&name("other")).await.unwrap(), lost);
        // it was remembered, until something was heard of the other server
        get(&client, "/v1/topics/t/records").await.ok(200);
        let found: BTreeSet<i64> = [
            here.tenant(&name("lost")).await.unwrap().0,
            here.tenant(&name("other")).await.unwrap().0,
        ]
        .into();
        assert_eq!(found.len(), 2, "{connections:?}");
        assert_eq!(here.tenant(&name("other")).await.unwrap(), lost);
    }
}

/// What a round of compaction has read says nothing of rows that another server has in their
/// places.
#[tokio::test]
async fn no_round_of_compaction_outlives_its_history() {
    let mut world = World::new(Kept).await;
    let client = &world.here.client;
    let body = json!({"partition_count": 1, "settings": {"cleanup": "compact"}}).to_string();
    let json = [("content-type", "application/json")];
    client.send(Method::PUT, "/v1/topics/t", &json, Some(body)).await.unwrap().ok(201);
    client.append("t", 0, &[json!(1)]).await;
    let mut connection = world.options.connect().await.unwrap();
    let due = store::janitor::compaction::candidates(&mut connection, LogId(0), 10).await.unwrap();
    let candidate = due.first().unwrap();
    let until = Timestamp(candidate.now.0 + 60_000);
    let claimed = store::janitor::compaction::claim(&mut connection, candidate, until)
        .await
        .unwrap()
        .unwrap();
    let log = candidate.log;
    let rows = async |connection: &mut PgConnection| {
        let (range, most) = ((0, 1), (1_000, 10));
        store::read::rows(connection, log.0, log.1, range, most, claimed.server).await
    };
    let change = async |connection: &mut PgConnection| {
        store::janitor::compaction::change(connection, log, claimed.server, 0, Vec::new()).await
    };
    assert_eq!(rows(&mut connection).await.unwrap().len(), 1);
    assert!(change(&mut connection).await.unwrap());
    world.lose("select 1").await;
    let read = rows(&mut connection).await;
    assert!(matches!(read, Err(store::Error::Contended(_))), "{read:?}");
    assert!(!change(&mut connection).await.unwrap());
}

/// Another's row lies where a lost one lay, and an append that compares nothing lands just where
/// the cache of before ends: nothing but the server says that the cache is of another history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_repeat_is_answered_over_a_foreign_row() {
    let mut world = World::new(Kept).await;
    let client = world.here.client.clone();
    client.put_topic("t", 1).await;
    let session = client.post("/v1/sessions", &json!({})).await.ok(201);
    let path = "/v1/topics/t/partitions/0/records";
    let request = |sequence: i64| {
        json!({"producer_id": session["producer_id"], "epoch": session["epoch"],
            "sequence": sequence, "records": [{"value": sequence}]})
    };
    for sequence in 0..3 {
        client.post(path, &request(sequence)).await.ok(200);
    }
    let log = world.log("t", 0).await;
    world.lose(&World::cut(log, 2)).await;
    let fresh = world.fresh().await;
    assert_eq!(fresh.client.append("t", 0, &[json!("foreign")]).await, 2);
    get(&client, path).await.ok(200);
    assert_eq!(client.append("t", 0, &[json!("unnumbered")]).await, 3);
    let again = client.post(path, &request(2)).await.ok(200);
    let stored = (again["base_offset"].as_i64(), again["duplicate"].as_bool());
    assert_eq!(stored, (Some(4), Some(false)));
}
