//! One tenant's work does not stop another's: what is slow, or much, is so for who has it.

use std::future::IntoFuture;

use oncelog::{broker::ServiceConfig, model::Code};
use serde_json::json;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::{
    self,
    http::{Answer, Server, Setup, shared_keys, token},
    proxy::Proxy,
    served::until,
};

const SCOPES: &str = "admin produce consume group";

/// Holds rows in SQL.
async fn hold(server: &Server, rows: &str) -> PgConnection {
    let mut connection = server.options.connect().await.unwrap();
    connection.execute("begin").await.unwrap();
    connection.execute(AssertSqlSafe(format!("{rows} for no key update"))).await.unwrap();
    connection
}

/// Waits for the same rows as long as a statement of oncelog's would, from now on. What is done
/// while it waits has waited for none that came later.
async fn yardstick(server: &Server, rows: &str) -> JoinHandle<()> {
    let mut connection = server.options.connect().await.unwrap();
    let rows = format!("begin; set local lock_timeout = '5s'; {rows} for no key update");
    let waits = tokio::spawn(async move {
        connection.execute(AssertSqlSafe(rows)).await.unwrap_err();
    });
    until("the yardstick to wait", async || (waiting(server).await == 1).then_some(())).await;
    waits
}

async fn waiting(server: &Server) -> i64 {
    let mut connection = server.options.connect().await.unwrap();
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() \
        and wait_event_type = 'Lock'";
    let count = sqlx::query_scalar(waiting).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    count
}

async fn join(server: &Server, tenant: &str, group: &str) -> Answer {
    let path = format!("/v1/groups/{group}/members");
    let join = json!({"topics": ["t"]});
    server.post(&path).token(&token(tenant, SCOPES)).json(join).await
}

async fn put_topic(server: &Server, tenant: &str) {
    let put = server.put("/v1/topics/t").token(&token(tenant, SCOPES));
    assert_eq!(put.json(json!({"partition_count": 1})).await.status, 201);
}

/// A broker of the tests has four connections.
#[tokio::test]
async fn statements_that_wait_leave_connections_to_other_tenants() {
    let server = Server::signed().await;
    for tenant in ["a", "b"] {
        put_topic(&server, tenant).await;
    }
    for group in 0..6 {
        join(&server, "a", &format!("g{group}")).await.created();
    }
    let rows = "select from oncelog.groups where tenant_id = (select tenant_id from oncelog.tenants where name = 'a')";
    let _held = hold(&server, rows).await;
    let yardstick = yardstick(&server, rows).await;
    let joins = (0..6).map(|group| {
        let join = server.post(&format!("/v1/groups/g{group}/members"));
        tokio::spawn(join.token(&token("a", SCOPES)).json(json!({"topics": ["t"]})).into_future())
    });
    let joins: Vec<_> = joins.collect();
    until("joins to wait", async || (waiting(&server).await >= 4).then_some(())).await;
    for group in 0..4 {
        join(&server, "b", &format!("g{group}")).await.created();
    }
    assert!(!yardstick.is_finished(), "others have waited for a lock that is none of theirs");
    joins.iter().for_each(JoinHandle::abort);
}

/// Leases of all groups run out in time, however long one of them is held up.
#[tokio::test]
async fn the_janitor_passes_by_a_group_that_somebody_is_at() {
    let server = Server::signed().await;
    put_topic(&server, "a").await;
    for group in ["a", "b", "c"] {
        join(&server, "a", group).await.created();
    }
    let late = "update oncelog.group_members set lease_expires_at = now() - interval '1 minute' \
        where group_name in ('a', 'b')";
    server.sql(late).await;
    let rows = "select from oncelog.groups where name = 'a'";
    let _held = hold(&server, rows).await;
    let yardstick = yardstick(&server, rows).await;
    server.broker.sweep().await.unwrap();
    assert!(!yardstick.is_finished(), "the janitor has waited");
    let mut connection = server.options.connect().await.unwrap();
    let left = "select group_name from oncelog.group_members order by group_name";
    let left: Vec<String> = sqlx::query_scalar(left).fetch_all(&mut connection).await.unwrap();
    assert_eq!(left, ["a", "c"]);
}

/// Who waits with more than its share, and has come first, is answered when another needs the
/// place.
#[tokio::test]
async fn waiting_reads_make_room_for_other_tenants() {
    let settings = ServiceConfig { max_waiting_reads: 4, ..ServiceConfig::default() };
    let server = Server::with(Setup { keys: shared_keys(), settings, ..Setup::default() }).await;
    let path = "/v1/topics/t/partitions/0/records";
    let read = |tenant: &str| {
        let read = server.get(&format!("{path}?offset=latest&wait_ms=60000"));
        tokio::spawn(read.token(&token(tenant, SCOPES)).into_future())
    };
    for tenant in ["a", "b"] {
        put_topic(&server, tenant).await;
    }
    let until_waiting = async |count: usize| {
        let wait = async || (server.broker.waiting_reads() == count).then_some(());
        until("reads to wait", wait).await;
    };
    let mut first = Vec::new();
    for count in 1..=4 {
        first.push(read("a"));
        until_waiting(count).await;
    }
    // all of its own making
    read("a").await.unwrap().refused(Code::Unavailable);
    let others = [read("b"), read("b")];
    for read in first.drain(..2) {
        let answer = read.await.unwrap().ok();
        assert_eq!(answer["records"], json!([]));
    }
    // neither has more than its share now
    for tenant in ["a", "b"] {
        read(tenant).await.unwrap().refused(Code::Unavailable);
    }
    assert_eq!(server.broker.waiting_reads(), 4);
    assert!(first.iter().chain(&others).all(|read| !read.is_finished()));
    let append = server.post(path).token(&token("b", SCOPES));
    append.json(json!({"records": [{"value": 1}]})).await.ok();
    for read in others {
        assert_eq!(read.await.unwrap().ok()["records"][0]["value"], 1);
    }
    first.iter().for_each(JoinHandle::abort);
}

/// One that comes too early, and waits for those before it, asks the database seldom, and is told.
#[tokio::test]
async fn calls_that_wait_for_others_leave_the_database_alone() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let setup = |gap_wait_ms| {
        let settings = ServiceConfig { gap_wait_ms, ..ServiceConfig::default() };
        Setup { settings, ..Setup::default() }
    };
    let server = Server::on(&proxy.options(&options), setup(1_000)).await;
    let patient = Server::on(&options, setup(60_000)).await;
    server.topic("t", 1).await;
    let begin = async || {
        let begun = server.post("/v1/transactions").json(json!({})).await.created();
        Uuid::parse_str(begun["transaction_id"].as_str().unwrap()).unwrap()
    };
    let call = |server: &Server, id: Uuid, sequence: i64| {
        let appends = json!([{"topic": "t", "records": [{"value": sequence}]}]);
        let body = json!({"sequence": sequence, "appends": appends});
        tokio::spawn(
            server.post(&format!("/v1/transactions/{id}/records")).json(body).into_future(),
        )
    };
    let id = begin().await;
    call(&server, id, 0).await.unwrap().ok();
    let before = proxy.passed();
    call(&server, id, 2).await.unwrap().refused(Code::OutOfOrderSequence);
    let asked = proxy.passed() - before;
    assert!(asked < 200, "{asked} messages");
    // in whatever order
    let id = begin().await;
    let calls: Vec<_> = (0..5).rev().map(|sequence| call(&patient, id, sequence)).collect();
    for call in calls {
        call.await.unwrap().ok();
    }
}
