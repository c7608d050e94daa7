//! Many with one key at once, through several replicas; and answers that are lost.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use super::*;
use crate::support::{self, proxy::Proxy};

const SENDERS: usize = 64;

/// Of many that send the same to three replicas one is done, and all are told of it.
async fn once(path: &str, body: &Value, done: &str) {
    let options = support::database().await;
    let replicas = [0; 3].map(|_| Server::on(&options, Setup::default()));
    let replicas = join_all(replicas).await;
    replicas[0].topic("orders", 2).await;
    if path == OPEN {
        replicas[0].session("known").await;
    }
    if path == COMMIT {
        // the first commit of a new group waits for others at the insertion of its row
        let offsets = json!([{"topic": "orders", "partition": 1, "offset": 0}]);
        replicas[0].post(COMMIT).json(json!({"offsets": offsets})).await.ok();
    }
    let before = replicas[0].number(done).await;
    let sent = (0..SENDERS).map(|n| replicas[n % 3].keyed(path, "k", body).into_future());
    let answers = join_all(sent).await;
    assert!(answers.iter().all(|answer| answer.status == answers[0].status));
    let is_first = |answer: &&Answer| answer.json()["duplicate"] != true;
    let firsts: Vec<&Answer> = answers.iter().filter(is_first).collect();
    assert_eq!(firsts.len(), 1, "{}", answers[0].text());
    let want = repeated(firsts[0]);
    let others: BTreeSet<&str> =
        answers.iter().filter(|answer| !is_first(answer)).map(Answer::text).collect();
    assert_eq!(others, BTreeSet::from([want.as_str()]));
    assert_eq!(replicas[0].number(done).await, before + 1);
    assert_eq!(replicas[0].number("select count(*) from oncelog.dedup_keys").await, 1);
}

const EPOCHS: &str = "select sum(epoch + 1)::bigint from oncelog.sessions";

#[tokio::test]
async fn of_many_opens_of_a_new_producer_one_is_done() {
    once(OPEN, &json!({}), EPOCHS).await;
    once(OPEN, &json!({"transactional_id": "new"}), EPOCHS).await;
}

#[tokio::test]
async fn of_many_opens_of_a_known_producer_one_is_done() {
    once(OPEN, &json!({"transactional_id": "known"}), EPOCHS).await;
}

#[tokio::test]
async fn of_many_joins_one_is_done() {
    once(JOIN, &calls()[1].1, "select count(*) from oncelog.group_members").await;
}

#[tokio::test]
async fn of_many_commits_one_is_done() {
    let generation = "select count(*) from oncelog.group_offsets where committed_offset = 0";
    let [_, _, (_, commit)] = calls();
    once(COMMIT, &commit, generation).await;
    // the others wait before they are judged: their offset is not the expected one any more
    let mut step = commit;
    step["offsets"][0]["expected_offset"] = Value::Null;
    once(COMMIT, &step, generation).await;
}

/// Many keys at once, each twice: nobody waits for another in a circle.
#[tokio::test]
async fn many_keys_at_once_are_each_done_once() {
    let options = support::database().await;
    let replicas = [Server::on(&options, Setup::default()), Server::on(&options, Setup::default())];
    let replicas = join_all(replicas).await;
    replicas[0].topic("orders", 2).await;
    let all = calls();
    let sent = (0..20).flat_map(|n| all.iter().map(move |call| (n, call)));
    let sent = sent.flat_map(|(n, (path, body))| {
        let key = format!("k-{}", n / 2);
        [0, 1].map(|at| replicas[at].keyed(path, &key, body).into_future())
    });
    for answer in join_all(sent).await {
        assert!(answer.status < 300, "{}", answer.text());
    }
    assert_eq!(replicas[0].number("select count(*) from oncelog.dedup_keys").await, 30);
    assert_eq!(replicas[0].number("select count(*) from oncelog.group_members").await, 10);
    assert_eq!(replicas[0].number("select epoch from oncelog.sessions").await, 9);
}

#[tokio::test]
async fn a_call_whose_answer_was_lost_is_done_once_when_it_is_sent_again() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 7).await;
    let server = Server::on(&proxy.options(&options), Setup::default()).await;
    server.topic("orders", 2).await;
    let near = Server::on(&options, Setup::default()).await;
    let [_, join, commit] = calls();
    for (path, body) in [(OPEN, json!({})), join, commit] {
        for arrives in [false, true] {
            let key = format!("{arrives}");
            let before = near.number("select count(*) from oncelog.dedup_keys").await;
            proxy.cut_at("COMMIT", arrives);
            server.keyed(path, &key, &body).await.refused(Code::OutcomeUnknown);
            assert!(proxy.cut_nowhere());
            let again = server.keyed(path, &key, &body).await;
            assert!(again.status < 300, "{}", again.text());
            assert_eq!(again.json()["duplicate"] == true, arrives);
            let known = near.number("select count(*) from oncelog.dedup_keys").await;
            assert_eq!(known, before + 1);
        }
    }
    assert_eq!(near.number("select count(*) from oncelog.group_members").await, 2);
    assert_eq!(near.number("select count(*) from oncelog.sessions").await, 2);
}
