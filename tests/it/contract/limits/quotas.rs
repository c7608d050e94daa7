//! The quotas of tenants: exact, however many ask at once; only for what is new; and what is given
//! back makes room.

use std::{future::IntoFuture, time::Duration};

use futures_util::future::join_all;
use oncelog::model::Code;
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Executor};
use uuid::Uuid;

use crate::support::{
    self,
    http::{Answer, Server, Setup},
};

const SETTINGS: &str = "/v1/settings";

async fn set(server: &Server, settings: Value) {
    server.patch(SETTINGS).json(settings).await.ok();
}

#[track_caller]
fn over(answer: &Answer, quota: &str, limit: i64) {
    let problem = answer.refused(Code::QuotaExceeded);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("{quota} is {limit}. ")), "{detail}");
    assert_eq!((&problem["limit"], &problem["retry"]), (&json!(limit), &json!("later")));
    assert_eq!(answer.header("retry-after"), Some("5"));
}

/// Two replicas with a topic, where these settings hold on both.
async fn replicas(settings: Value) -> [Server; 2] {
    let options = support::database().await;
    let servers = [0; 2].map(|_| Server::on(&options, Setup::default()));
    let [first, second] = servers;
    let (first, second) = (first.await, second.await);
    first.topic("orders", 1).await;
    set(&first, settings).await;
    [first, second]
}

/// Sends all at once, by turns to two replicas; the statuses are told in the order of the calls.
async fn at_once(
    servers: &[Server; 2],
    count: usize,
    call: impl AsyncFn(&Server, usize) -> Answer,
) -> Vec<Answer> {
    join_all((0..count).map(|number| call(&servers[number % 2], number))).await
}

fn made(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| (200..300).contains(&answer.status)).count()
}

async fn begin(server: &Server, body: Value) -> Answer {
    server.post("/v1/transactions").json(body).await
}

async fn end(server: &Server, id: &str, how: &str) -> Answer {
    server.post(&format!("/v1/transactions/{id}/{how}")).json("{}").await
}

fn id_of(answer: &Answer) -> String {
    answer.created()["transaction_id"].as_str().unwrap().to_owned()
}

const MOST: usize = 3;

#[tokio::test]
async fn as_many_sessions_are_opened_as_there_may_be() {
    let servers = replicas(json!({"max_sessions": MOST})).await;
    let [server, _] = &servers;
    let open = async |server: &Server, number: usize| {
        let named = json!({"transactional_id": format!("p{number}")});
        let body = if number.is_multiple_of(3) { json!({}) } else { named };
        server.post("/v1/sessions").json(body).await
    };
    let all = at_once(&servers, 24, open).await;
    assert_eq!(made(&all), MOST, "{all:?}");
    all.iter().filter(|a| a.status != 201).for_each(|a| over(a, "max_sessions", 3));
    // a name that has a session is opened again, also beyond the limit
    set(server, json!({"max_sessions": 0})).await;
    let sessions = server.get("/v1/sessions").await.ok();
    let sessions = sessions["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), MOST);
    for session in sessions {
        let name = session["transactional_id"].clone();
        let id = &session["producer_id"];
        let again = match name.is_null() {
            true => json!({"producer_id": id, "epoch": session["epoch"]}),
            false => json!({"transactional_id": name}),
        };
        let again = server.post("/v1/sessions").json(again).await;
        assert!(again.status < 300, "{}", again.text());
    }
    // one that ends makes room, once
    set(server, json!({"max_sessions": MOST})).await;
    over(&open(server, 99).await, "max_sessions", 3);
    let ended = &sessions[0]["producer_id"];
    server.delete(&format!("/v1/sessions/{ended}")).await.no_content();
    let all = at_once(&servers, 6, async |server: &Server, number| open(server, 3 * number).await);
    assert_eq!(made(&all.await), 1);
}

#[tokio::test]
async fn a_repeated_open_is_no_new_one() {
    let servers = replicas(json!({"max_sessions": 1})).await;
    let [server, other] = &servers;
    let open_id = Uuid::now_v7();
    let by_id = |server: &Server| server.post("/v1/sessions").json(json!({"open_id": open_id}));
    let first = by_id(server).await.created();
    let keyed = |server: &Server| server.post("/v1/sessions").header("idempotency-key", "k");
    over(&keyed(other).json("{}").await, "max_sessions", 1);
    let again = by_id(other).await;
    assert_eq!(again.json()["producer_id"], first["producer_id"], "{}", again.text());
    set(server, json!({"max_sessions": 2})).await;
    let first = keyed(server).json("{}").await.created();
    set(server, json!({"max_sessions": 0})).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let again = keyed(other).json("{}").await;
    assert_eq!(again.json()["producer_id"], first["producer_id"], "{}", again.text());
}

#[tokio::test]
async fn as_many_groups_are_made_as_there_may_be() {
    let servers = replicas(json!({"max_groups": MOST})).await;
    let [server, other] = &servers;
    let join = async |server: &Server, number: usize| {
        let path = format!("/v1/groups/g{number}/members");
        server.post(&path).json(json!({"topics": ["orders"]})).await
    };
    let commit = async |server: &Server, number: usize| {
        let path = format!("/v1/groups/g{number}/offsets");
        let item = json!({"topic": "orders", "partition": 0, "offset": 0});
        server.post(&path).json(json!({"offsets": [item]})).await
    };
    let both = async |server: &Server, number: usize| match number % 4 {
        0 | 1 => join(server, number).await,
        _ => commit(server, number).await,
    };
    let all = at_once(&servers, 24, both).await;
    assert_eq!(made(&all), MOST, "{all:?}");
    all.iter().filter(|a| a.status >= 400).for_each(|a| over(a, "max_groups", 3));
    let groups = server.get("/v1/groups").await.ok();
    let groups: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().map(|g| g["group"].as_str().unwrap()).collect();
    assert_eq!(groups.len(), MOST);
    // those that are there go on
    for group in &groups {
        let number = group[1..].parse().unwrap();
        let again = both(other, number).await;
        assert!(again.status < 300, "{}", again.text());
    }
    // in transactions, of one request and of several
    let offsets = |group: &str| {
        json!([{"group": group, "topic": "orders", "partition": 0, "offset": 0,
            "expected_offset": null}])
    };
    let append = json!([{"topic": "orders", "records": [{"value": 1}]}]);
    let whole = json!({"commit": true, "appends": append, "offsets": offsets("new")});
    over(&begin(server, whole).await, "max_groups", 3);
    let only = json!({"commit": true, "offsets": offsets("new")});
    over(&begin(server, only).await, "max_groups", 3);
    let id = id_of(&begin(server, json!({})).await);
    let stage = format!("/v1/transactions/{id}/offsets");
    let staged = server.post(&stage).json(json!({"offsets": offsets("new")})).await;
    over(&staged, "max_groups", 3);
    set(server, json!({"max_groups": MOST + 1})).await;
    server.post(&stage).json(json!({"offsets": offsets("new")})).await.ok();
    // what is staged may be sent again and committed, whatever there is by then
    set(server, json!({"max_groups": 0})).await;
    server.post(&stage).json(json!({"offsets": offsets("new")})).await.ok();
    end(server, &id, "commit").await.ok();
    server.get("/v1/groups/new/offsets").await.ok();
    // one that is deleted makes room
    set(server, json!({"max_groups": MOST + 1})).await;
    over(&commit(server, 98).await, "max_groups", 4);
    server.delete("/v1/groups/new").await.no_content();
    commit(server, 98).await.ok();
}

#[tokio::test]
async fn as_many_transactions_are_open_as_there_may_be() {
    let limits = json!({"max_open_transactions": MOST, "max_prepared_transactions": MOST});
    let servers = replicas(limits).await;
    let [server, other] = &servers;
    let ids: Vec<Uuid> = (0..24).map(|_| Uuid::now_v7()).collect();
    let append = json!([{"topic": "orders", "records": [{"value": 1}]}]);
    let begin_with = async |server: &Server, number: usize| {
        let body = json!({"transaction_id": ids[number]});
        let with_records = json!({"transaction_id": ids[number], "appends": append});
        begin(server, if number.is_multiple_of(2) { body } else { with_records }).await
    };
    let all = at_once(&servers, 24, begin_with).await;
    assert_eq!(made(&all), MOST, "{all:?}");
    all.iter().filter(|a| a.status != 201).for_each(|a| over(a, "max_open_transactions", 3));
    // repeats are none, nor are those of one request
    for (number, answer) in all.iter().enumerate().filter(|(_, answer)| answer.status == 201) {
        let again = begin_with(other, number).await;
        assert_eq!(again.json()["transaction_id"], answer.json()["transaction_id"]);
    }
    let whole = json!({"commit": true, "appends": append});
    begin(other, whole).await.created();
    // prepared ones are not ongoing, and have a limit of their own
    let open = |answers: &[Answer]| -> Vec<String> {
        answers.iter().filter(|answer| answer.status == 201).map(id_of).collect()
    };
    let first = open(&all);
    for id in &first {
        end(other, id, "prepare").await.ok();
    }
    let begin_any = async |server: &Server, _: usize| begin(server, json!({})).await;
    let second = open(&at_once(&servers, 12, begin_any).await);
    assert_eq!(second.len(), MOST);
    let prepare =
        async |server: &Server, number: usize| end(server, &second[number % MOST], "prepare").await;
    let refused = at_once(&servers, 6, prepare).await;
    refused.iter().for_each(|answer| over(answer, "max_prepared_transactions", 3));
    end(server, &first[0], "prepare").await.ok();
    // two that end make room for two
    end(server, &first[0], "commit").await.ok();
    end(server, &first[1], "abort").await.ok();
    let prepared = at_once(&servers, 12, prepare).await;
    let state = |answer: &Answer| answer.json()["state"] == "prepared";
    assert_eq!(open_ids(&prepared, state), 2);
    set(server, json!({"max_open_transactions": 0, "max_prepared_transactions": 0})).await;
    for id in second.iter().chain(&first[2..]) {
        let ended = end(server, id, "commit").await;
        assert!(ended.status == 200, "{}", ended.text());
    }
}

/// How many different transactions are in these answers that are as asked.
fn open_ids(answers: &[Answer], is_so: impl Fn(&Answer) -> bool) -> usize {
    let ids = answers.iter().filter(|answer| answer.status == 200 && is_so(answer));
    let ids = ids.map(|answer| answer.json()["transaction_id"].as_str().unwrap().to_owned());
    ids.collect::<std::collections::BTreeSet<_>>().len()
}

/// After so long every replica sees what is stored, and the settings of a second ago.
async fn seen() {
    tokio::time::sleep(Duration::from_millis(1_100)).await;
}

#[tokio::test]
async fn no_more_bytes_are_stored_than_there_may_be() {
    let servers = replicas(json!({"max_stored_bytes": 1_000})).await;
    let [server, other] = &servers;
    seen().await;
    let record = |fill: &str| json!({"value": fill.repeat(400)});
    let path = "/v1/topics/orders/partitions/0/records";
    let (p, e) = server.session("p").await;
    let append = async |server: &Server, sequence: i64, fill: &str| {
        let body = json!({"producer_id": p, "epoch": e, "sequence": sequence,
            "records": [record(fill)]});
        server.post(path).json(body).await
    };
    let id = Uuid::now_v7();
    let whole = |fill: &str| {
        json!({"transaction_id": id, "commit": true,
            "appends": [{"topic": "orders", "records": [record(fill)]}]})
    };
    append(server, 0, "a").await.ok();
    begin(server, whole("b")).await.created();
    seen().await;
    // neither form fits any more; what was stored is answered as ever, on each replica
    for server in &servers {
        over(&append(server, 1, "c").await, "max_stored_bytes", 1_000);
        let plain = server.post(path).json(json!({"records": [record("d")]})).await;
        over(&plain, "max_stored_bytes", 1_000);
        let two = json!({"commit": true, "appends": [
            {"topic": "orders", "records": [record("e")]}]});
        over(&begin(server, two).await, "max_stored_bytes", 1_000);
        let staged = json!({"appends": [{"topic": "orders", "records": [record("e")]}]});
        over(&begin(server, staged).await, "max_stored_bytes", 1_000);
        assert_eq!(append(server, 0, "a").await.ok()["duplicate"], true);
        assert_eq!(begin(server, whole("b")).await.ok()["duplicate"], true);
        // a small one fits
        server.post(path).json(json!({"records": [{"value": 1}]})).await.ok();
    }
    // what is deleted makes room, and the refused sequence was not used up
    server.delete("/v1/topics/orders").await.no_content();
    server.topic("orders", 1).await;
    seen().await;
    append(other, 0, "c").await.ok();
    // nothing at all
    set(server, json!({"max_stored_bytes": 0})).await;
    over(&append(server, 1, "d").await, "max_stored_bytes", 0);
    assert_eq!(append(server, 0, "c").await.ok()["duplicate"], true);
}

#[tokio::test]
async fn staged_bytes_are_limited_and_count_as_stored() {
    let servers = replicas(json!({"max_staged_bytes": 1_000})).await;
    let [server, other] = &servers;
    seen().await;
    let appends = |fill: &str| {
        let record = json!({"value": fill.repeat(600)});
        json!([{"topic": "orders", "partition": 0, "records": [record]}])
    };
    let id = id_of(&begin(server, json!({})).await);
    let records = format!("/v1/transactions/{id}/records");
    let add = async |server: &Server, sequence: i64, fill: &str| {
        server.post(&records).json(json!({"sequence": sequence, "appends": appends(fill)})).await
    };
    add(server, 0, "a").await.ok();
    seen().await;
    over(&add(other, 1, "b").await, "max_staged_bytes", 1_000);
    let with_begin = json!({"appends": appends("c")});
    over(&begin(other, with_begin.clone()).await, "max_staged_bytes", 1_000);
    // a repeat, one of one request, and what comes with a commit are not staged
    add(other, 0, "a").await.ok();
    let whole = json!({"commit": true, "appends": appends("d")});
    begin(other, whole).await.created();
    // what is stored counts what is staged
    let most = json!({"max_staged_bytes": null, "max_stored_bytes": 1_300});
    set(server, most).await;
    seen().await;
    over(&add(server, 1, "b").await, "max_stored_bytes", 1_300);
    over(&begin(server, with_begin.clone()).await, "max_stored_bytes", 1_300);
    end(server, &id, "prepare").await.ok();
    end(other, &id, "commit").await.ok();
    seen().await;
    over(&begin(server, with_begin).await, "max_stored_bytes", 1_300);
}

#[tokio::test]
async fn reads_beyond_the_quota_do_not_wait() {
    let server = Server::start().await;
    server.topic("orders", 40).await;
    set(&server, json!({"max_waiting_reads": 2})).await;
    let wait = |path: &str| server.get(&format!("/v1/topics/orders/{path}&wait_ms=30000"));
    let waiting = async {
        let (one, two) =
            tokio::join!(wait("partitions/0/records?offset=0"), wait("records?limit=10"));
        one.ok();
        two.ok();
    };
    let others = async {
        support::served::until("both wait", async || {
            (server.broker.waiting_reads() >= 2).then_some(())
        })
        .await;
        let refused = wait("partitions/1/records?offset=0").await;
        over(&refused, "max_waiting_reads", 2);
        // those that do not wait are answered
        server.get("/v1/topics/orders/partitions/1/records?offset=0").await.ok();
        let append = server.post("/v1/topics/orders/partitions/0/records");
        append.json(json!({"records": [{"value": 1}]})).await.ok();
    };
    tokio::join!(waiting, others);
    // what ended makes room
    let wait = server.get("/v1/topics/orders/partitions/1/records?offset=0&wait_ms=1");
    wait.await.ok();
}

/// Whatever is counted waits for the tenant's row, which no foreign key does: so no two count at
/// once, on whatever replicas.
#[tokio::test]
async fn who_makes_one_more_holds_the_tenants_row() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let limits = ["sessions", "groups", "open_transactions", "prepared_transactions"];
    let limits = limits.map(|what| (format!("max_{what}"), json!(9)));
    set(&server, Value::Object(limits.into_iter().collect())).await;
    let id = id_of(&begin(&server, json!({})).await);
    let item = json!({"topic": "orders", "partition": 0, "offset": 0});
    let calls = [
        ("/v1/sessions".to_owned(), json!({})),
        ("/v1/groups/g/members".to_owned(), json!({"topics": ["orders"]})),
        ("/v1/groups/h/offsets".to_owned(), json!({"offsets": [item]})),
        ("/v1/transactions".to_owned(), json!({})),
        (format!("/v1/transactions/{id}/prepare"), json!({})),
    ];
    for (path, body) in calls {
        let mut holder = server.options.connect().await.unwrap();
        let hold = "begin; select from oncelog.tenants for no key update";
        holder.execute(hold).await.unwrap();
        let call = tokio::spawn(server.post(&path).json(body).into_future());
        let waits = "select count(*) from pg_stat_activity \
            where wait_event_type = 'Lock' and datname = current_database()";
        support::served::until("it waits", async || {
            assert!(!call.is_finished(), "{path} waits for nobody");
            (support::number(&server.options, waits).await > 0).then_some(())
        })
        .await;
        holder.execute("commit").await.unwrap();
        let answer = call.await.unwrap();
        assert!(answer.status < 300, "{path} {}", answer.text());
    }
}

/// Far below their limits nothing is counted, and near them nobody is lost.
#[tokio::test]
async fn counts_far_below_their_limits_are_not_counted() {
    let servers = replicas(json!({"max_sessions": 1_003})).await;
    let [server, _] = &servers;
    let open = async |server: &Server, _: usize| server.post("/v1/sessions").json("{}").await;
    assert_eq!(made(&at_once(&servers, 8, open).await), 8);
    server
        .sql(
            "insert into oncelog.sessions (tenant_id, transaction_timeout_ms, opened_at) \
             select tenant_id, 1000, now() from oncelog.tenants, generate_series(1, 990)",
        )
        .await;
    seen().await;
    assert_eq!(made(&at_once(&servers, 16, open).await), 5);
}
