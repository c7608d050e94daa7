//! One wins and the others learn where its record lies, through whichever of three brokers, and
//! also where answers are lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use futures_util::future::join_all;
use oncelog::model::{
    Code, ProducerId, Timestamp,
    append::{Append, Appended, Placed, PlacedRecord, ProducerSeq, Scope},
    dedup::RequestKey,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Executor};

use super::trio::{Place, Trio, place, records};
use crate::support::{
    self,
    http::{Server, Setup, now_s},
    served::until,
};

const SCOPES: [Scope; 3] = [Scope::Topic, Scope::Partition(0), Scope::Partition(1)];

fn line(id: usize) -> String {
    format!("{}\n", json!({"id": format!("id-{id}"), "key": format!("k{}", id % 5), "value": id}))
}

/// Where its records lie, and when they were appended.
fn shown(answer: &Appended) -> (Vec<(Place, bool, Timestamp)>, Option<Timestamp>) {
    let appended_at = answer.appended_at.unwrap();
    let placed = answer.placed.clone().records(appended_at);
    let records = match &placed {
        Placed::Records { records: Some(records), .. } => records,
        other => panic!("{other:?}"),
    };
    let record = |r: &PlacedRecord| (place(r), r.duplicate, r.first_seen_at);
    (records.iter().map(record).collect(), answer.appended_at)
}

/// Sends it 64 times at once through all brokers.
async fn all_at_once(trio: &Arc<Trio>, scope: Scope, append: impl Fn() -> Append) -> Vec<Appended> {
    let sent = (0..64).map(|sender| {
        let (trio, append) = (trio.clone(), append());
        tokio::spawn(async move { trio.append(sender, scope, append).await.unwrap() })
    });
    join_all(sent).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_senders_of_one_id_one_stores_and_all_learn_its_offset() {
    for scope in SCOPES {
        let trio = Trio::start(3).await;
        for id in 0..5 {
            let answers = all_at_once(&trio, scope, || support::append(None, &line(id))).await;
            let first = records(&answers[0])[0];
            let mut news = 0;
            for answer in &answers {
                let [record] = records(answer) else { panic!("{answer:?}") };
                assert_eq!(place(record), place(&first));
                assert_eq!(record.first_seen_at, first.first_seen_at);
                assert_eq!(answer.duplicate, record.duplicate);
                news += usize::from(!record.duplicate);
            }
            assert_eq!(news, 1);
            let stored = trio.stored().await;
            assert_eq!(stored.len(), id + 1);
            assert_eq!(stored[&place(&first)]["value"], json!(id));
        }
        trio.nobody_waited_in_a_circle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_senders_of_one_key_one_stores_and_all_are_answered_the_same() {
    let lines = [0, 1, 2].map(line).concat();
    // with ids and without
    for lines in [lines, "{\"key\":\"a\",\"value\":1}\n{\"value\":2}\n".to_owned()] {
        for scope in SCOPES {
            let trio = Trio::start(3).await;
            let key = RequestKey::new("order 7", "POST", "/p", &[b"payload"]);
            let append = || Append { request_key: Some(key), ..support::append(None, &lines) };
            let answers = all_at_once(&trio, scope, append).await;
            let news = answers.iter().filter(|answer| !answer.duplicate).count();
            assert_eq!(news, 1);
            for answer in &answers {
                assert_eq!(answer.appended_at, answers[0].appended_at);
                assert_eq!(shown(answer), shown(&answers[0]));
            }
            assert_eq!(trio.stored().await.len(), lines.lines().count());
            let other = RequestKey::new("order 7", "POST", "/p", &[b"another"]);
            let other = Append { request_key: Some(other), ..support::append(None, &lines) };
            let refused = trio.append(1, scope, other).await.unwrap_err();
            assert_eq!(refused.code, Code::IdempotencyKeyReused);
        }
    }
}

/// What senders have learned.
#[derive(Default)]
struct Learned {
    /// Of each id: where it lies and when it was first seen.
    ids: BTreeMap<usize, (Place, Timestamp)>,
    /// Ids that somebody was told to have stored.
    news: BTreeSet<usize>,
    /// Of records without ids.
    plain: BTreeSet<Place>,
    duplicates: usize,
}

impl Learned {
    fn learn(&mut self, sent: &[Option<usize>], answer: &Appended) {
        for (id, record) in sent.iter().zip(records(answer)) {
            let Some(id) = id else {
                assert!(self.plain.insert(place(record)));
                continue;
            };
            let learned = (place(record), record.first_seen_at);
            let first = *self.ids.entry(*id).or_insert(learned);
            assert_eq!(learned, first, "{id}");
            if record.duplicate {
                self.duplicates += 1;
            } else {
                assert!(self.news.insert(*id), "{id} is stored twice");
            }
        }
    }
}

/// Random batches of few ids, from everywhere at once: plain ones and those of a session, to the
/// topic and to its partitions.
async fn storm(seed: u64, cuts_per_million: u32) {
    println!("seed {seed}, {cuts_per_million} cuts");
    const IDS: usize = 150;
    let trio = Trio::start(2).await;
    let learned = Arc::new(Mutex::new(Learned::default()));
    let mut tasks = Vec::new();
    for task in 0..18 {
        let session = support::open(Some(&format!("p{task}")));
        let replica = &trio.replicas[0];
        let session =
            replica.broker.open_session(replica.tenant, session, None).await.unwrap().value.session;
        let (trio, learned) = (trio.clone(), learned.clone());
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(task as u64));
        tasks.push(tokio::spawn(async move {
            let mut next: BTreeMap<usize, i64> = BTreeMap::new();
            for round in 0..12 {
                // neighbours in time meet at the same ids
                let some_id = |rng: &mut StdRng| (round * 10 + rng.random_range(0..30)) % IDS;
                let ids: Vec<usize> =
                    (0..rng.random_range(1..6)).map(|_| some_id(&mut rng)).collect();
                let scope = rng.random_range(0..SCOPES.len());
                let is_numbered = task % 3 == 0;
                let mut sent: Vec<Option<usize>> = ids.iter().copied().map(Some).collect();
                let mut lines: String = ids.iter().copied().map(line).collect();
                // one without an id is not known again, unless it has a number
                if is_numbered || cuts_per_million == 0 {
                    sent.push(None);
                    lines.push_str("{\"value\":\"plain\"}\n");
                }
                let sequence = next.entry(scope).or_default();
                let numbered = is_numbered.then_some(ProducerSeq {
                    producer_id: session.producer_id,
                    epoch: session.epoch,
                    sequence: *sequence,
                });
                *sequence += 1;
                let append = || support::append(numbered, &lines);
                let replica = rng.random_range(0..3);
                let answer = trio.until_answered(replica, SCOPES[scope], append).await;
                learned.lock().unwrap().learn(&sent, &answer);
                if is_numbered {
                    let again = trio.until_answered(replica + 1, SCOPES[scope], append).await;
                    assert!(again.duplicate);
                    assert_eq!(shown(&again), shown(&answer));
                }
            }
        }));
    }
    trio.lose_answers(cuts_per_million);
    for task in tasks {
        task.await.unwrap();
    }
    trio.lose_answers(0);
    let learned = Arc::into_inner(learned).unwrap().into_inner().unwrap();
    let mut stored = trio.stored().await;
    for (id, (place, _)) in &learned.ids {
        let record = stored.remove(place).unwrap_or_else(|| panic!("{id} is not at {place:?}"));
        assert_eq!(record["id"], json!(format!("id-{id}")));
    }
    for place in &learned.plain {
        assert_eq!(stored.remove(place).unwrap()["value"], json!("plain"));
    }
    assert!(stored.is_empty(), "stored and never told: {stored:?}");
    let told: BTreeSet<usize> = learned.ids.keys().copied().collect();
    assert!(cuts_per_million > 0 || learned.news == told, "somebody has stored each");
    assert!(learned.duplicates > 50, "{}", learned.duplicates);
    trio.nobody_waited_in_a_circle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_id_is_stored_once_from_any_sender_at_any_replica() {
    storm(rand::random(), 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_id_is_stored_once_although_answers_are_lost() {
    storm(rand::random(), 5_000).await;
}

#[tokio::test]
async fn what_is_known_again_is_done_again_by_the_server_when_its_answer_is_lost() {
    let key = RequestKey::new("order 7", "POST", "/p", &[b"payload"]);
    let one = r#"{"id":"a","value":"to be cut"}"#;
    let two = "{\"id\":\"a\",\"value\":1}\n{\"value\":\"to be cut\"}";
    for arrives in [false, true] {
        for (lines, request_key, is_redone) in
            [(one, None, true), (two, None, false), (two, Some(key), true)]
        {
            let trio = Trio::start(1).await;
            let scope = Scope::Partition(0);
            // so that the next pass is a quick one
            let before = RequestKey::new("order 6", "POST", "/p", &[]);
            let before = Append {
                request_key: Some(before),
                ..support::append(None, r#"{"id":"before","value":0}"#)
            };
            trio.append(0, scope, before).await.unwrap();
            trio.replicas[0].proxy.cut_at("to be cut", arrives);
            let append = Append { request_key, ..support::append(None, lines) };
            let answer = trio.append(0, scope, append).await;
            assert!(trio.replicas[0].proxy.cut_nowhere(), "it was cut");
            let stored = trio.stored().await.len();
            if is_redone {
                let answer = answer.unwrap();
                assert_eq!(answer.duplicate, arrives, "as the first one was");
                assert_eq!(stored, 1 + lines.lines().count());
            } else {
                assert_eq!(answer.unwrap_err().code, Code::OutcomeUnknown);
                assert_eq!(stored, if arrives { 3 } else { 1 });
            }
        }
    }
}

/// The statement that was lost arrives after all, when what it was to store is stored.
#[tokio::test]
async fn a_late_statement_does_not_store_what_was_done_again() {
    let trio = Trio::start(1).await;
    let scope = Scope::Partition(0);
    trio.send(0, scope, r#"{"id":"before","value":0}"#).await.unwrap();
    let proxy = &trio.replicas[0].proxy;
    proxy.orphan("to be late");
    let answer = trio.send(0, scope, r#"{"id":"a","value":"to be late"}"#).await.unwrap();
    assert_eq!((answer.duplicate, place(&records(&answer)[0])), (false, (0, 1)));
    proxy.release_orphan();
    until("the late one", async || (proxy.orphans_done() == 1).then_some(())).await;
    assert_eq!(trio.stored().await.len(), 2);
}

/// What a broker has looked up is no longer true when it writes: the id has been claimed meanwhile.
#[tokio::test]
async fn an_id_that_is_reserved_between_lookup_and_write_is_not_stored_again() {
    let trio = Trio::start(1).await;
    let scope = Scope::Partition(0);
    let first = trio.send(0, scope, &line(7)).await.unwrap();
    let mut hand = trio.options.connect().await.unwrap();
    hand.execute("update oncelog.dedup_keys set expires_at = now()").await.unwrap();
    // another one holds the journal's head, and claims
    hand.execute("begin").await.unwrap();
    let claim = "update oncelog.logs set claims = claims + 1 where partition is null";
    hand.execute(claim).await.unwrap();
    hand.execute("update oncelog.dedup_keys set expires_at = 'infinity'").await.unwrap();
    let ids = line(7);
    let claimed = async {
        let waiting = "select count(*) from pg_stat_activity \
            where datname = current_database() and wait_event_type = 'Lock'";
        let mut look = trio.options.connect().await.unwrap();
        until("the write waits", async || {
            let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&mut look).await.unwrap();
            (waiting > 0).then_some(())
        })
        .await;
        hand.execute("commit").await.unwrap();
    };
    let (again, ()) = tokio::join!(trio.send(0, scope, &ids), claimed);
    let again = again.unwrap();
    assert!(again.duplicate);
    assert_eq!(place(&records(&again)[0]), place(&records(&first)[0]));
    assert_eq!(trio.stored().await.len(), 1);
}

/// A number that stored nothing is told by no row: others read the producer's state again.
#[tokio::test]
async fn numbers_that_store_nothing_are_known_to_all_brokers() {
    let trio = Trio::start(1).await;
    let scope = Scope::Partition(0);
    let replica = &trio.replicas[0];
    let open = support::open(Some("p"));
    let session =
        replica.broker.open_session(replica.tenant, open, None).await.unwrap().value.session;
    let send = async |replica: usize, sequence: i64, id: usize| {
        let producer_id: ProducerId = session.producer_id;
        let numbered = ProducerSeq { producer_id, epoch: session.epoch, sequence };
        trio.append(replica, scope, support::append(Some(numbered), &line(id))).await
    };
    for replica in 0..3 {
        assert!(!send(replica, replica as i64, replica).await.unwrap().duplicate);
    }
    let mut first = Vec::new();
    for sequence in 3..12 {
        // stored by turns: every third is new
        let id = if sequence % 3 == 0 { sequence } else { 0 };
        let answer = send(sequence, sequence as i64, id).await.unwrap();
        assert_eq!(records(&answer)[0].duplicate, id == 0, "{sequence}");
        first.push(answer);
        for replica in 0..3 {
            // first: a broker that does not know of the number would store it
            let other = send(replica, sequence as i64, id + 100).await.unwrap_err();
            assert_eq!(other.code, Code::SequenceReused);
            let again = send(replica, sequence as i64, id).await.unwrap();
            assert!(again.duplicate);
            assert_eq!(again.placed, first.last().unwrap().placed, "{sequence} at {replica}");
            let beyond = send(replica, sequence as i64 + 9, id + 100).await.unwrap_err();
            assert_eq!(beyond.code, Code::OutOfOrderSequence);
        }
    }
    assert_eq!(trio.stored().await.len(), 3 + 3);
    let open = support::open(Some("p"));
    let opened =
        trio.replicas[1].broker.open_session(replica.tenant, open, None).await.unwrap().value;
    assert_eq!(opened.next_sequences[0].next_sequence, 12);
}

/// A key whose instant lies ahead is remembered where it lasts that much longer.
#[tokio::test]
async fn a_key_from_ahead_lies_in_the_partition_that_takes_new_keys() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    // the partition before it is the next to be emptied
    server.sql("update oncelog.key_rings set slot = 14 where ring = 4").await;
    let window = json!({"settings": {"dedup_window_ms": 604_800_000}});
    server.patch("/v1/topics/orders").json(window).await.ok();
    let ahead_ms = (now_s() + 12 * 3_600) * 1_000;
    let key = uuid::Builder::from_unix_timestamp_millis(ahead_ms, &[7; 10]).into_uuid();
    let send = || {
        let call = server.post(super::WHOLE).header("idempotency-key", &key.to_string());
        call.json(json!({"records": [{"value": 1}]}))
    };
    assert_eq!(send().await.ok()["duplicate"], false);
    server.sql("truncate oncelog.dedup_keys_12").await;
    assert_eq!(send().await.ok()["duplicate"], true);
    assert_eq!(server.stored().await, 1);
}

/// Transactions of one request over several topics in any order, beside appends, all with the same
/// few ids: nobody waits in a circle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_and_appends_with_ids_do_not_wait_in_a_circle() {
    const TOPICS: [&str; 3] = ["a", "b", "c"];
    let options = support::database().await;
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Arc::new(Server::on(&options, Setup::default()).await));
    }
    for topic in TOPICS {
        servers[0].topic(topic, 2).await;
    }
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let topic = |number: u64| TOPICS[number as usize % 3];
    let tasks = (0..12).map(|task: u64| {
        let servers = servers.clone();
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(task));
        tokio::spawn(async move {
            for round in 0..8 {
                let server = servers[rng.random_range(0..servers.len())].clone();
                let mut records = || -> Vec<Value> {
                    let id = |_| (round * 3 + rng.random_range(0..9)) % 24;
                    let ids: Vec<u64> = (0..3).map(id).collect();
                    let record = |id: &u64| json!({"id": id.to_string(), "key": id.to_string(), "value": id});
                    ids.iter().map(record).collect()
                };
                if task.is_multiple_of(3) {
                    let path = format!("/v1/topics/{}/records", topic(task + round));
                    server.post(&path).json(json!({"records": records()})).await.ok();
                    continue;
                }
                let order = (0..3).map(|at| topic(task + round + at * (1 + task % 2)));
                let appends: Vec<Value> =
                    order.map(|topic| json!({"topic": topic, "records": records()})).collect();
                let body = json!({"commit": true, "appends": appends});
                server.post("/v1/transactions").json(body).await.created();
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!(support::deadlocks(&options), 0);
    for topic in TOPICS {
        let path = format!("/v1/topics/{topic}/records?offset=earliest&limit=1000");
        let page = servers[0].get(&path).await.ok();
        let records = page["records"].as_array().unwrap();
        let ids: BTreeSet<&str> =
            records.iter().map(|record| record["id"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), records.len(), "{topic}: stored once");
        assert!(!ids.is_empty());
    }
}
