//! Many at once, and connections that are cut: an id is stored once, and all learn where.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{begun, call, count, end, known, places, plain, read, replica_of, see, server, to};
use crate::{
    contract::transactions::held_while,
    support::{
        http::{Answer, Server, Setup},
        proxy::Proxy,
        served::until,
    },
};

/// Sent again as long as `retry` says so.
async fn send(make: impl Fn() -> crate::support::http::Call) -> Answer {
    for _ in 0..200 {
        let answer = make().await;
        let again = |problem: &Value| problem["retry"] == "same" || problem["retry"] == "later";
        if answer.status < 300 || !again(&answer.json()) {
            return answer;
        }
    }
    panic!("it was never done");
}

/// A plain append and a commit: one of them stores the record, the other learns it.
async fn is_stored_once(server: &Server, appended: &Value, committed: &Value, at: i64) {
    let stored = read(server, "t", 0).await;
    assert_eq!(stored.len() as i64, at + 1, "{appended} {committed}");
    let by_commit = places(committed) == [(Some(at), 1)];
    assert!(by_commit || places(committed) == [(None, 0)], "{committed}");
    assert_eq!(appended["duplicate"], json!(by_commit), "{appended} {committed}");
    assert_eq!(appended["offsets"][0]["offset"], json!(at));
    let id = &stored[at as usize].1;
    assert_eq!(*id, if by_commit { committed["transaction_id"].clone() } else { json!(null) });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_append_and_a_commit_at_two_brokers_one_wins_and_the_other_learns() {
    let (first, mut won) = (server().await, 0);
    let second = replica_of(&first).await;
    for n in 0..30 {
        let name = format!("id-{n}");
        let id = begun(&first, json!({"appends": [to("t", &[known(&name, n)])]})).await;
        let record = [known(&name, n)];
        let (appended, committed) =
            tokio::join!(plain(&first, &record), end(&second, id, "commit"));
        let committed = committed.ok();
        won += places(&committed)[0].1;
        is_stored_once(&first, &appended.ok(), &committed, n).await;
    }
    println!("{won} of 30 by commits");
}

/// The commit is held after each of its messages: an append at the other broker comes before it, or
/// waits and learns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_whatever_message_a_commit_is_held_an_id_is_stored_once() {
    let server = server().await;
    let proxy = Proxy::start(&server.options, 1).await;
    let slow = Server::on(&proxy.options(&server.options), Setup::default()).await;
    let mut won = 0;
    for n in 0..24 {
        let name = format!("id-{n}");
        let id = begun(&slow, json!({"appends": [to("t", &[known(&name, n)])]})).await;
        let commit = call(&slow, id, "commit", &json!({}));
        let append = [known(&name, n)];
        let append = plain(&server, &append);
        let (committed, appended) = held_while(&proxy, n as u64, commit, append, &server).await;
        let committed = committed.ok();
        won += places(&committed)[0].1;
        is_stored_once(&server, &appended.ok(), &committed, n).await;
    }
    assert!(0 < won && won < 24, "{won}: both orders were seen");
    assert_eq!(crate::support::deadlocks(&server.options), 0);
}

/// A broker whose connections die within a commit or a prepare: sent again, it is done once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_cut_off_reserves_its_ids_with_its_records_or_not_at_all() {
    let server = server().await;
    let proxy = Proxy::start(&server.options, 1).await;
    let cut = Server::on(&proxy.options(&server.options), Setup::default()).await;
    let mut at = 0;
    for (n, (verb, step)) in
        (0..16_u64).flat_map(|step| [("commit", step), ("prepare", step)]).enumerate()
    {
        let (n, name) = (n as i64, format!("id-{n}"));
        plain(&server, &[known(&format!("{name}-known"), n)]).await.ok();
        let records = [known(&format!("{name}-known"), n), known(&name, n)];
        let id = begun(&server, json!({"appends": [to("t", &records)]})).await;
        proxy.close_gate();
        proxy.let_through(step);
        let ending = tokio::spawn(call(&cut, id, verb, &json!({})).into_future());
        let held = async || (ending.is_finished() || proxy.held() > 0).then_some(());
        until("the call to be held", held).await;
        if step % 2 == 0 {
            proxy.lose_held_answers();
        } else {
            proxy.cut_all();
        }
        proxy.open_gate();
        ending.await.unwrap();
        // all is as before, or all is done
        let state = see(&server, id).await["state"].as_str().unwrap().to_owned();
        let held = count(&server, "held_ids").await;
        assert_eq!(held, i64::from(state == "prepared"), "{verb} {step} {state}");
        let appended = (state == "ongoing" && n % 4 < 2).then(|| known(&name, n));
        if let Some(record) = &appended {
            plain(&server, std::slice::from_ref(record)).await.ok();
        }
        let done = send(|| call(&cut, id, "commit", &json!({}))).await.ok();
        assert_eq!(places(&done).len(), 1);
        assert_eq!(places(&done)[0].0.is_none(), appended.is_some(), "{verb} {step} {done}");
        at += 2;
        assert_eq!(read(&server, "t", 0).await.len(), at, "{verb} {step}");
        let again = plain(&server, &[known(&name, n)]).await.ok();
        assert_eq!(again["offsets"][0]["offset"], json!(at - 1));
    }
    assert_eq!(count(&server, "dedup_keys").await, at as i64);
}

const TOPICS: [&str; 4] = ["t", "u", "v", "w"];

/// Transactions over many topics, in every order, with few ids: each is stored once in its topic,
/// whichever comes first, and nobody waits forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_with_the_same_ids_in_many_topics_meet_no_deadlock() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let first = server().await;
    for topic in &TOPICS[2..] {
        first.topic(topic, 2).await;
    }
    let replicas = std::sync::Arc::new([replica_of(&first).await, first]);
    let workers: Vec<_> = (0..6)
        .map(|worker| {
            let (replicas, seed) = (replicas.clone(), seed.wrapping_add(worker));
            tokio::spawn(async move { work(&*replicas, StdRng::seed_from_u64(seed)).await })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    let server = &replicas[0];
    let mut stored = 0;
    for topic in TOPICS {
        let mut values = Vec::new();
        for partition in 0..2 {
            values.extend(read(server, topic, partition).await.into_iter().map(|(value, _)| value));
        }
        stored += values.len() as i64;
        let unique: std::collections::BTreeSet<_> = values.iter().map(Value::to_string).collect();
        assert_eq!(unique.len(), values.len(), "{topic}: {values:?}");
    }
    assert_eq!(count(server, "dedup_keys").await, stored);
    assert_eq!(count(server, "held_ids").await, 0);
    assert_eq!(crate::support::deadlocks(&server.options), 0);
}

async fn work(replicas: &[Server], mut rng: StdRng) {
    for _ in 0..20 {
        let appends: Vec<Value> = (0..rng.random_range(1..6))
            .map(|_| {
                let topic = TOPICS[rng.random_range(0..TOPICS.len())];
                let records = (0..rng.random_range(1..4)).map(|_| {
                    let n: i64 = rng.random_range(0..60);
                    json!({"id": n.to_string(), "key": n.to_string(), "value": n})
                });
                json!({"topic": topic, "records": records.collect::<Vec<_>>()})
            })
            .collect();
        let server = &replicas[rng.random_range(0..replicas.len())];
        if rng.random_bool(0.3) {
            let Value::Object(append) = &appends[0] else { return };
            let path = format!("/v1/topics/{}/records", append["topic"].as_str().unwrap());
            let body = json!({"records": append["records"]});
            send(|| server.post(&path).json(&body)).await;
            continue;
        }
        let id = Uuid::now_v7();
        let body = json!({"transaction_id": id, "appends": appends});
        send(|| super::begin(server, &body)).await.json();
        let verbs: &[&str] = match rng.random_range(0..4) {
            0 => &["prepare", "commit"],
            1 => &["prepare", "abort"],
            2 => &["abort"],
            _ => &["commit"],
        };
        for verb in verbs {
            let server = &replicas[rng.random_range(0..replicas.len())];
            let answer = send(|| call(server, id, verb, &json!({}))).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
}
