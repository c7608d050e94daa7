//! What was forgotten never runs again: however long outcomes are to be remembered, however the
//! clock goes, and also at the instant of forgetting. Nobody waits for hours here: ids of old
//! instants are made, and instants in the database are moved.

use std::collections::{BTreeMap, BTreeSet};

use oncelog::{
    model::{Code, TenantId, Timestamp},
    store::{self, Store, janitor::transactions::Cutoff},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Connection, PgConnection};
use uuid::Uuid;

use super::{
    append, begin, call, held_while, id_at, number, read, replica_of, see, step, values,
    waiting_for_locks,
};
use crate::support::{
    self,
    http::{Call, Server, Setup},
    proxy::Proxy,
    served::until,
};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const CALLS: [&str; 5] = ["records", "offsets", "prepare", "commit", "abort"];

async fn served() -> Server {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    server
}

/// A whole transaction of one record.
fn whole(server: &Server, id: Uuid, value: &Value) -> Call {
    let appends = [append("orders", 0, std::slice::from_ref(value))];
    begin(server, &json!({"transaction_id": id, "commit": true, "appends": appends}))
}

/// Outcomes are as old as they can be: of the instants in their ids.
async fn age(server: &Server) {
    let then = "oncelog.instant_of(transaction_id)";
    let sql = format!(
        "update oncelog.transactions set created_at = {then}, ended_at = {then}, remembered_from = {then} \
         where ended_at is not null and remembered_from > {then}"
    );
    server.sql(sql).await;
}

async fn remember_for(server: &Server, ms: i64) {
    let body = json!({"transaction_retention_ms": ms});
    server.patch("/v1/settings").json(body).await.ok();
}

/// In milliseconds since 1970.
async fn horizon(server: &Server) -> i64 {
    let sql = "select (extract(epoch from forgotten_horizon) * 1000)::bigint from oncelog.tenants";
    number(server, sql).await
}

/// However it is asked for, it is neither run nor called aborted.
async fn is_forgotten(server: &Server, id: Uuid, value: &Value) {
    whole(server, id, value).await.refused(Code::TransactionExpired);
    begin(server, &json!({"transaction_id": id})).await.refused(Code::TransactionExpired);
    let work = json!({"transaction_id": id, "appends": [append("orders", 0, &[json!("again")])]});
    begin(server, &work).await.refused(Code::TransactionExpired);
    server.get(&format!("/v1/transactions/{id}")).await.refused(Code::TransactionExpired);
    for verb in CALLS {
        let body = match verb {
            "records" => json!({"appends": work["appends"]}),
            "offsets" => json!({"offsets": [step("orders", 0, Value::Null, 0)]}),
            _ => json!({}),
        };
        call(server, id, verb, &body).await.refused(Code::TransactionExpired);
    }
}

#[tokio::test]
async fn a_retention_that_shrinks_and_grows_runs_nothing_twice() {
    let here = served().await;
    let there = replica_of(&here).await;
    // one an hour
    let mut ran = Vec::new();
    for hours in 1..=5 {
        let (id, value) = (id_at(-hours * HOUR_MS), json!(hours));
        whole(&here, id, &value).await.created();
        ran.push((id, value));
    }
    age(&here).await;
    // a row always wins: nobody has forgotten it yet
    remember_for(&here, 150 * MINUTE_MS).await;
    for (id, value) in &ran {
        assert_eq!(whole(&here, *id, value).await.ok()["duplicate"], true);
        assert_eq!(see(&here, *id).await["state"], "committed");
    }
    // one that never ran is refused by its age alone; nothing was dropped, so that is no secret
    // kept
    let idle = id_at(-3 * HOUR_MS);
    is_forgotten(&here, idle, &json!("idle")).await;
    assert_eq!(horizon(&here).await, 0);
    remember_for(&here, 8 * HOUR_MS).await;
    here.get(&format!("/v1/transactions/{idle}")).await.refused(Code::TransactionNotFound);
    // it is forgotten what is older than two and a half hours
    remember_for(&here, 150 * MINUTE_MS).await;
    here.broker.sweep().await.unwrap();
    let first_horizon = horizon(&here).await;
    assert_eq!(number(&here, "select count(*) from oncelog.transactions").await, 2);
    for longer in [150 * MINUTE_MS, 8 * HOUR_MS, 365 * 24 * HOUR_MS] {
        remember_for(&here, longer).await;
        here.broker.sweep().await.unwrap();
        assert!(horizon(&here).await >= first_horizon);
        for replica in [&here, &there] {
            for (id, value) in &ran[2..] {
                is_forgotten(replica, *id, value).await;
            }
            is_forgotten(replica, idle, &json!("idle")).await;
            for (id, value) in &ran[..2] {
                assert_eq!(whole(replica, *id, value).await.ok()["duplicate"], true);
            }
        }
    }
    // what is younger than the horizon may run
    whole(&there, id_at(-2 * HOUR_MS), &json!("late")).await.created();
    let all: Vec<Value> = (1..=5).map(|n| json!(n)).chain([json!("late")]).collect();
    assert_eq!(values(&there, "orders", 0).await, all);
}

#[tokio::test]
async fn whatever_is_set_swept_and_repeated_each_id_runs_once_at_most() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let here = served().await;
    let replicas = [replica_of(&here).await, here];
    let ids: Vec<Uuid> = (0..16).map(|k| id_at(-k * 30 * MINUTE_MS)).collect();
    let (mut ran, mut last_horizon) = (BTreeSet::new(), 0);
    let mut told: BTreeMap<u16, u32> = BTreeMap::new();
    for _ in 0..250 {
        let server = &replicas[rng.random_range(0..2)];
        match rng.random_range(0..10) {
            0 => remember_for(server, rng.random_range(1_000..9 * HOUR_MS)).await,
            1 => {
                age(server).await;
                server.broker.sweep().await.unwrap();
                let horizon = horizon(server).await;
                assert!(horizon >= last_horizon, "the horizon only grows");
                last_horizon = horizon;
            }
            _ => {
                let index = rng.random_range(0..ids.len());
                let (id, value) = (ids[index], json!(index));
                let answer = if rng.random() {
                    whole(server, id, &value).await
                } else {
                    let work =
                        json!({"transaction_id": id, "appends": [append("orders", 0, &[value])]});
                    let begun = begin(server, &work).await;
                    if begun.status == 201 {
                        call(server, id, "commit", &json!({})).await.ok();
                    }
                    begun
                };
                *told.entry(answer.status).or_default() += 1;
                match answer.status {
                    201 => assert!(ran.insert(index), "{index} has run twice"),
                    200 => assert!(ran.contains(&index)),
                    // the same id in the other form
                    422 => drop(answer.refused(Code::TransactionReused)),
                    _ => drop(answer.refused(Code::TransactionExpired)),
                }
                let seen = server.get(&format!("/v1/transactions/{id}")).await;
                assert_ne!(seen.json()["state"], "aborted", "{}", seen.text());
            }
        }
    }
    println!("{told:?}");
    let stored: Vec<usize> = values(&replicas[0], "orders", 0)
        .await
        .iter()
        .map(|value| value.as_u64().unwrap() as usize)
        .collect();
    assert_eq!(stored.len(), ran.len());
    assert_eq!(BTreeSet::from_iter(stored), ran);
}

#[tokio::test]
async fn an_end_of_any_kind_is_forgotten_alike_and_what_has_not_ended_is_not() {
    let server = served().await;
    let work =
        |id: Uuid| json!({"transaction_id": id, "appends": [append("orders", 0, &[json!(1)])]});
    let ids: BTreeMap<&str, Uuid> = ["committed", "aborted", "expired", "ongoing", "prepared"]
        .into_iter()
        .map(|state| (state, id_at(-3 * HOUR_MS)))
        .collect();
    for (state, id) in &ids {
        begin(&server, &work(*id)).await.created();
        match *state {
            "committed" => drop(call(&server, *id, "commit", &json!({})).await.ok()),
            "aborted" => drop(call(&server, *id, "abort", &json!({})).await.ok()),
            "prepared" => drop(call(&server, *id, "prepare", &json!({})).await.ok()),
            "expired" => {
                let past = "expires_at = expires_at - interval '5 hours'";
                let late =
                    format!("update oncelog.transactions set {past} where transaction_id = '{id}'");
                server.sql(late).await;
                assert_eq!(see(&server, *id).await["reason"], "timeout");
            }
            _ => {}
        }
    }
    remember_for(&server, 2 * HOUR_MS).await;
    // what aborted ones staged goes first
    for _ in 0..2 {
        age(&server).await;
        server.broker.sweep().await.unwrap();
    }
    for state in ["committed", "aborted", "expired"] {
        is_forgotten(&server, ids[state], &json!(1)).await;
    }
    for state in ["ongoing", "prepared"] {
        assert_eq!(see(&server, ids[state]).await["state"], state);
        assert_eq!(begin(&server, &work(ids[state])).await.ok()["duplicate"], true);
        assert_eq!(call(&server, ids[state], "commit", &json!({})).await.ok()["duplicate"], false);
    }
    assert_eq!(values(&server, "orders", 0).await.len(), 3);
    let staged = "select count(*) from oncelog.staged_batches where transaction_id = any \
        (array(select transaction_id from oncelog.transactions where state = 'aborted'))";
    assert_eq!(number(&server, staged).await, 0);
}

#[tokio::test]
async fn an_id_may_lie_a_day_ahead_and_is_remembered_from_its_instant() {
    let server = served().await;
    let (inside, outside) = (24 * HOUR_MS - MINUTE_MS, 24 * HOUR_MS + MINUTE_MS);
    let early = id_at(outside);
    whole(&server, early, &json!(0)).await.refused(Code::InvalidTransactionId);
    begin(&server, &json!({"transaction_id": early})).await.refused(Code::InvalidTransactionId);
    let work = json!({"transaction_id": early, "appends": [append("orders", 0, &[json!(0)])]});
    begin(&server, &work).await.refused(Code::InvalidTransactionId);
    let ahead = [id_at(inside), id_at(inside)];
    whole(&server, ahead[0], &json!(1)).await.created();
    begin(&server, &json!({"transaction_id": ahead[1]})).await.created();
    call(&server, ahead[1], "commit", &json!({})).await.ok();
    // a day later they have only just come to their instants
    let old = id_at(-2 * HOUR_MS);
    whole(&server, old, &json!(2)).await.created();
    remember_for(&server, HOUR_MS).await;
    server
        .sql("update oncelog.transactions set ended_at = ended_at - interval '22 hours', \
            remembered_from = greatest(ended_at, oncelog.instant_of(transaction_id)) - interval '22 hours'")
        .await;
    server.broker.sweep().await.unwrap();
    assert_eq!(see(&server, ahead[0]).await["state"], "committed");
    assert_eq!(see(&server, ahead[1]).await["state"], "committed");
    is_forgotten(&server, old, &json!(2)).await;
    assert_eq!(whole(&server, ahead[0], &json!(1)).await.ok()["duplicate"], true);
}

#[tokio::test]
async fn a_clock_that_goes_back_lets_nothing_run_again() {
    let server = served().await;
    let id = id_at(-HOUR_MS);
    whole(&server, id, &json!("once")).await.created();
    age(&server).await;
    remember_for(&server, 30 * MINUTE_MS).await;
    server.broker.sweep().await.unwrap();
    // three hours back
    server
        .sql(
            "update oncelog.tenants set forgotten_horizon = forgotten_horizon + interval '3 hours'",
        )
        .await;
    let before = horizon(&server).await;
    for ahead in [-HOUR_MS, 0, 2 * HOUR_MS] {
        is_forgotten(&server, id_at(ahead), &json!("again")).await;
    }
    server.broker.sweep().await.unwrap();
    assert_eq!(horizon(&server).await, before);
    // an id that the server makes has never run
    let made =
        begin(&server, &json!({"commit": true, "appends": [append("orders", 0, &[json!("new")])]}));
    made.await.created();
    begin(&server, &json!({})).await.created();
    whole(&server, id_at(4 * HOUR_MS), &json!("ahead")).await.created();
    is_forgotten(&server, id, &json!("once")).await;
    assert_eq!(values(&server, "orders", 0).await, ["once", "new", "ahead"].map(|v| json!(v)));
}

/// Forgets, as the janitor does, in a database transaction that stays open until it is told to end.
async fn forgets(connection: &mut PgConnection, tenant: TenantId, id: Uuid) {
    let instant = Timestamp(Timestamp::of_uuid(&id).unwrap().0 + MINUTE_MS / 2);
    let chunk =
        store::janitor::transactions::forget(connection, Cutoff { tenant, instant }, 1_000).await;
    assert!(chunk.unwrap().rows > 0);
}

/// Every form in which an id can be run, and of each its work.
async fn forms(server: &Server) -> Vec<(&'static str, Value)> {
    let (producer_id, epoch) = server.session("p").await;
    let appends = [append("orders", 0, &[json!("again")])];
    let offsets = [step("orders", 0, Value::Null, 0)];
    let signed = json!({"producer_id": producer_id, "epoch": epoch});
    vec![
        ("a begin, in one statement", json!({})),
        ("a begin with work, judged", json!({"appends": appends})),
        ("a session's begin", signed.clone()),
        ("a whole one, in one statement", json!({"commit": true, "appends": appends})),
        (
            "a whole one of a session, judged",
            json!({"commit": true, "appends": appends, "producer_id": producer_id, "epoch": epoch}),
        ),
        (
            "a whole one with a first offset, judged",
            json!({"commit": true, "appends": appends, "offsets": offsets}),
        ),
        ("a whole one without records", json!({"commit": true, "offsets": offsets})),
        ("a whole one of nothing", json!({"commit": true})),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_waits_for_its_id_to_be_forgotten_is_refused() {
    let server = served().await;
    let tenant = support::tenant(&server.broker).await;
    let mut janitor = server.options.connect().await.unwrap();
    let mut minutes = -50;
    for (form, mut body) in forms(&server).await {
        for forgotten in [true, false] {
            minutes += 1;
            let id = id_at(minutes * MINUTE_MS);
            body["transaction_id"] = json!(id);
            // the lane is warm: it writes in one statement what may be
            whole(&server, Uuid::now_v7(), &json!("warm")).await.created();
            begin(&server, &json!({"transaction_id": id, "commit": true})).await.created();
            age(&server).await;
            let mut forgetting = janitor.begin().await.unwrap();
            forgets(&mut forgetting, tenant, id).await;
            let waits = tokio::spawn(begin(&server, &body).into_future());
            until("the begin to wait", async || {
                (waiting_for_locks(&server.options).await > 0).then_some(())
            })
            .await;
            if forgotten {
                forgetting.commit().await.unwrap();
                waits.await.unwrap().refused(Code::TransactionExpired);
                let again = begin(&server, &body).await;
                again.refused(Code::TransactionExpired);
            } else {
                forgetting.rollback().await.unwrap();
                let answer = waits.await.unwrap();
                if body == json!({"transaction_id": id, "commit": true}) {
                    assert_eq!(answer.ok()["duplicate"], true, "{form}");
                } else {
                    answer.refused(Code::TransactionReused);
                }
            }
        }
    }
    let stored = values(&server, "orders", 0).await;
    assert!(stored.iter().all(|value| value == "warm"), "{stored:?}");
    janitor.close().await.unwrap();
}

/// The other side: the janitor forgets while a repeat is between any two of its steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_overtaken_by_forgetting_at_any_step_does_not_run() {
    let server = served().await;
    let tenant = support::tenant(&server.broker).await;
    let proxy = Proxy::start(&server.options, 1).await;
    let slow = Server::on(&proxy.options(&server.options), Setup::default()).await;
    let store = Store::new(server.options.clone(), 1);
    let (mut minutes, mut ran) = (-55, Vec::new());
    let mut told: BTreeMap<u16, u32> = BTreeMap::new();
    for (form, mut body) in forms(&server).await {
        for steps in 0..6 {
            minutes += 1;
            let id = id_at(minutes * MINUTE_MS);
            body["transaction_id"] = json!(id);
            if body["offsets"].is_array() {
                body["offsets"][0]["group"] = json!(format!("g{minutes}"));
            }
            begin(&server, &body).await.created();
            if body["commit"].is_null() {
                let mut end = body.clone();
                end.as_object_mut()
                    .unwrap()
                    .retain(|name, _| name == "producer_id" || name == "epoch");
                call(&server, id, "commit", &end).await.ok();
            }
            if body["appends"].is_array() {
                ran.push(json!(id));
            }
            age(&server).await;
            let answer = {
                let forgets = store.transaction(async move |connection| {
                    forgets(connection, tenant, id).await;
                    Ok::<_, store::Error>(())
                });
                let call = begin(&slow, &body);
                let (answer, forgotten) = held_while(&proxy, steps, call, forgets, &server).await;
                forgotten.unwrap();
                answer
            };
            *told.entry(answer.status).or_default() += 1;
            match answer.status {
                200 => assert_eq!(answer.ok()["state"], "committed", "{form} at {steps}"),
                _ => drop(answer.refused(Code::TransactionExpired)),
            }
            begin(&slow, &body).await.refused(Code::TransactionExpired);
        }
    }
    println!("{told:?}");
    let stored: Vec<Value> =
        read(&server, "orders", 0).await.into_iter().map(|(_, id)| id).collect();
    assert_eq!(stored, ran);
}

/// The database's clock was a year ahead for a moment: an operator brings the horizon back, and
/// what lies before the instant at which he does stays refused.
#[tokio::test]
async fn a_horizon_from_ahead_is_brought_back_to_now() {
    let server = served().await;
    let (before, value) = (id_at(-HOUR_MS), json!("before"));
    whole(&server, before, &value).await.created();
    let jumped = "delete from oncelog.transactions; \
        update oncelog.tenants set forgotten_horizon = clock_timestamp() + interval '1 year'";
    server.sql(jumped).await;
    is_forgotten(&server, Uuid::now_v7(), &json!("refused")).await;
    server.sql(BRING_BACK).await;
    is_forgotten(&server, before, &value).await;
    whole(&server, Uuid::now_v7(), &json!("taken")).await.created();
}

/// As docs/transactions.md has it.
const BRING_BACK: &str =
    "update oncelog.tenants set forgotten_horizon = least(forgotten_horizon, clock_timestamp())";
