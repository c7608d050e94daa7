//! The zombie story of the field: a producer falls asleep in the middle of a transaction, another
//! takes its place, and the first one wakes while the second is in the middle of its own.

use oncelog::model::Code;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    append, begin, begun, call, committed_offset, held_while, read, replica_of, see, step, values,
};
use crate::support::{
    http::{Answer, Server, Setup},
    proxy::Proxy,
};

const CALLS: [&str; 5] = ["records", "offsets", "prepare", "commit", "abort"];

/// One run of the producer `payments`, by the replica it talks to.
struct Run<'a> {
    server: &'a Server,
    producer_id: i64,
    epoch: i64,
}

impl<'a> Run<'a> {
    /// A newer run, and what its open answered.
    async fn open(server: &'a Server) -> (Self, Value) {
        let open = server.post("/v1/sessions").json(json!({"transactional_id": "payments"}));
        let opened = open.await.created();
        let number = |name: &str| opened[name].as_i64().unwrap();
        (Self { server, producer_id: number("producer_id"), epoch: number("epoch") }, opened)
    }

    /// A body with this run's name on it.
    fn signed(&self, mut body: Value) -> Value {
        body["producer_id"] = json!(self.producer_id);
        body["epoch"] = json!(self.epoch);
        body
    }

    async fn begin(&self, id: Uuid) -> Answer {
        begin(self.server, &self.signed(json!({"transaction_id": id}))).await
    }

    async fn call(&self, id: Uuid, verb: &str) -> Answer {
        call(self.server, id, verb, &self.signed(self.work(verb))).await
    }

    /// The work of a call, which says whose it is.
    fn work(&self, verb: &str) -> Value {
        let value = json!(format!("epoch {}", self.epoch));
        match verb {
            "records" => json!({"appends": [append("orders", 0, &[value])]}),
            "offsets" => json!({"offsets": [step("carts", 0, Value::Null, self.epoch % 3 + 1)]}),
            _ => json!({}),
        }
    }

    /// Everything that a run can ask, of its own transaction and of the newer one.
    async fn wakes_and_is_refused(&self, own: Uuid, newer: Uuid) {
        let fenced = |answer: Answer, what: &str| {
            let problem = answer.refused(Code::ProducerFenced);
            assert_eq!(problem["current_epoch"], self.epoch + 1, "{what}");
            assert_eq!(
                (&problem["retry"], &problem["side_effects"]),
                (&json!("never"), &json!("none"))
            );
        };
        for verb in CALLS {
            fenced(self.call(own, verb).await, verb);
            fenced(self.call(newer, verb).await, verb);
        }
        // what became of its own it is told, as anyone who asks
        let told = self.begin(own).await.ok();
        assert_eq!((&told["duplicate"], &told["reason"]), (&json!(true), &json!("fenced")));
        let mut numbered = self.signed(self.work("records"));
        numbered["sequence"] = json!(0);
        fenced(call(self.server, own, "records", &numbered).await, "its append again");
        // new ones: of several requests, of one, with the newer one's id, and a plain append
        fenced(self.begin(Uuid::now_v7()).await, "a new begin");
        self.begin(newer).await.refused(Code::TransactionReused);
        let mut whole = self.signed(self.work("records"));
        whole["commit"] = json!(true);
        fenced(begin(self.server, &whole).await, "a whole transaction");
        let plain = self.signed(json!({"sequence": 0, "records": [{"value": "a zombie's"}]}));
        let plain = self.server.post("/v1/topics/orders/records").json(plain);
        fenced(plain.await, "a plain append");
        // an epoch is issued, not invented; and no door is left without one
        let inventor = Run { epoch: self.epoch + 2, ..*self };
        inventor.call(newer, "commit").await.refused(Code::InvalidProducerEpoch);
        for verb in CALLS {
            let unsigned = call(self.server, newer, verb, &self.work(verb)).await;
            unsigned.invalid(&["/producer_id"]);
        }
    }
}

async fn served() -> Server {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    server.topic("carts", 1).await;
    let carts = json!({"records": vec![json!({"value": "cart"}); 3]});
    server.post("/v1/topics/carts/partitions/0/records").json(carts).await.ok();
    server
}

#[tokio::test]
async fn a_zombie_that_wakes_in_a_newer_sessions_transaction_changes_nothing() {
    let here = served().await;
    let there = replica_of(&here).await;
    // 1: a producer begins a transaction,
    let (zombie, _) = Run::open(&here).await;
    let old = Uuid::now_v7();
    zombie.begin(old).await.created();
    // 2: appends and adds offsets to it,
    let mut numbered = zombie.signed(zombie.work("records"));
    numbered["sequence"] = json!(0);
    call(&here, old, "records", &numbered).await.ok();
    zombie.call(old, "offsets").await.ok();
    // 3: and falls asleep. 4: Another takes its place, through another replica: the old one's
    // transaction is aborted in the same instant.
    let (newer, opened) = Run::open(&there).await;
    assert_eq!((newer.producer_id, newer.epoch), (zombie.producer_id, zombie.epoch + 1));
    assert_eq!(opened["aborted_transaction"], json!(old));
    // 5: It begins its own and appends.
    let new = Uuid::now_v7();
    newer.begin(new).await.created();
    newer.call(new, "records").await.ok();
    // 6: The zombie wakes, and is refused whatever it asks.
    zombie.wakes_and_is_refused(old, new).await;
    assert_eq!(values(&here, "orders", 0).await, [] as [Value; 0]);
    assert_eq!(committed_offset(&here, "carts", 0).await, None);
    let ended = see(&here, old).await;
    assert_eq!((&ended["state"], &ended["reason"]), (&json!("aborted"), &json!("fenced")));
    // 7: The newer one goes on as if nothing had been, and commits.
    newer.call(new, "offsets").await.ok();
    newer.call(new, "records").await.ok();
    let committed = newer.call(new, "commit").await.ok();
    assert_eq!((&committed["state"], &committed["append_count"]), (&json!("committed"), &json!(2)));
    zombie.wakes_and_is_refused(old, new).await;
    for replica in [&here, &there] {
        let record = (json!("epoch 1"), json!(new));
        assert_eq!(read(replica, "orders", 0).await, [record.clone(), record]);
        assert_eq!(committed_offset(replica, "carts", 0).await, Some(2));
    }
    // a plain append finds the next offset: the zombie has left no hole
    let plain = json!({"records": [{"value": "after"}]});
    let plain = here.post("/v1/topics/orders/partitions/0/records").json(plain).await.ok();
    assert_eq!(plain["base_offset"], 2);
}

#[tokio::test]
async fn the_newer_session_learns_what_became_of_the_older_ones_transaction() {
    let server = served().await;
    let (zombie, _) = Run::open(&server).await;
    let old = Uuid::now_v7();
    zombie.begin(old).await.created();
    zombie.call(old, "records").await.ok();
    let (newer, _) = Run::open(&server).await;
    let aborted = newer.call(old, "abort").await.ok();
    assert_eq!((&aborted["reason"], &aborted["duplicate"]), (&json!("fenced"), &json!(true)));
    for verb in ["records", "offsets", "prepare", "commit"] {
        let problem = newer.call(old, verb).await.refused(Code::InvalidTransactionState);
        assert_eq!((&problem["state"], &problem["reason"]), (&json!("aborted"), &json!("fenced")));
    }
    // its begin again is another payload now: the epoch is part of it
    newer.begin(old).await.refused(Code::TransactionReused);
    assert_eq!(values(&server, "orders", 0).await, [] as [Value; 0]);
}

#[tokio::test]
async fn a_transaction_accepts_only_its_own_producer() {
    let server = served().await;
    let (owner, _) = Run::open(&server).await;
    let (producer_id, epoch) = server.session("another").await;
    let another = Run { server: &server, producer_id, epoch };
    let owned = Uuid::now_v7();
    owner.begin(owned).await.created();
    let free = begun(&server, json!({})).await;
    let unknown = Run { server: &server, producer_id: producer_id + 99, epoch: 0 };
    for verb in CALLS {
        another.call(owned, verb).await.refused(Code::ProducerMismatch);
        another.call(free, verb).await.refused(Code::ProducerMismatch);
        unknown.call(free, verb).await.refused(Code::UnknownProducer);
        call(&server, owned, verb, &owner.work(verb)).await.invalid(&["/producer_id"]);
    }
    assert_eq!(see(&server, owned).await["state"], "ongoing");
    assert_eq!(see(&server, free).await["append_count"], 0);
}

#[tokio::test]
async fn what_was_prepared_survives_the_open_and_is_the_newer_sessions_to_end() {
    let server = served().await;
    let (zombie, _) = Run::open(&server).await;
    let mut prepared = Vec::new();
    for _ in 0..2 {
        let id = Uuid::now_v7();
        zombie.begin(id).await.created();
        zombie.call(id, "records").await.ok();
        zombie.call(id, "prepare").await.ok();
        prepared.push(id);
    }
    // a prepared one does not stand in the way of the next
    let ongoing = Uuid::now_v7();
    zombie.begin(ongoing).await.created();
    let problem = zombie.begin(Uuid::now_v7()).await.refused(Code::ConcurrentTransactions);
    assert_eq!(problem["transaction_id"], json!(ongoing));
    let (newer, opened) = Run::open(&server).await;
    assert_eq!(opened["aborted_transaction"], json!(ongoing));
    assert_eq!(opened["prepared_transactions"], json!(prepared));
    for (id, end) in prepared.iter().zip(["commit", "abort"]) {
        for verb in CALLS {
            zombie.call(*id, verb).await.refused(Code::ProducerFenced);
        }
        assert_eq!(see(&server, *id).await["state"], "prepared");
        let ended = newer.call(*id, end).await.ok();
        assert_eq!((&ended["epoch"], &ended["duplicate"]), (&json!(0), &json!(false)));
    }
    let (_, opened) = Run::open(&server).await;
    assert_eq!(opened["prepared_transactions"], json!([]));
    assert_eq!(read(&server, "orders", 0).await, [(json!("epoch 0"), json!(prepared[0]))]);
}

#[tokio::test]
async fn ending_a_session_fences_its_epoch_and_aborts_what_is_ongoing() {
    let server = served().await;
    let (run, _) = Run::open(&server).await;
    let (prepared, ongoing) = (Uuid::now_v7(), Uuid::now_v7());
    run.begin(prepared).await.created();
    run.call(prepared, "records").await.ok();
    run.call(prepared, "prepare").await.ok();
    run.begin(ongoing).await.created();
    run.call(ongoing, "records").await.ok();
    let path = format!("/v1/sessions/{}", run.producer_id);
    server.delete(&path).await.no_content();
    server.delete(&path).await.no_content();
    let ended = see(&server, ongoing).await;
    assert_eq!((&ended["state"], &ended["reason"]), (&json!("aborted"), &json!("fenced")));
    assert_eq!(see(&server, prepared).await["state"], "prepared");
    let nobody = Run { epoch: run.epoch + 1, ..run };
    for verb in CALLS {
        run.call(ongoing, verb).await.refused(Code::ProducerFenced);
        run.call(prepared, verb).await.refused(Code::ProducerFenced);
        nobody.call(prepared, verb).await.refused(Code::InvalidProducerEpoch);
    }
    run.begin(Uuid::now_v7()).await.refused(Code::ProducerFenced);
    nobody.begin(Uuid::now_v7()).await.refused(Code::InvalidProducerEpoch);
    let (next, opened) = Run::open(&server).await;
    assert_eq!((next.producer_id, next.epoch), (run.producer_id, run.epoch + 2));
    assert_eq!(opened["aborted_transaction"], Value::Null);
    assert_eq!(opened["prepared_transactions"], json!([prepared]));
    next.call(prepared, "commit").await.ok();
    assert_eq!(read(&server, "orders", 0).await, [(json!("epoch 0"), json!(prepared))]);
}

/// The zombie sleeps inside a call: some of its messages to the database have been sent, the next
/// are held until the newer session is there, or waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_may_fall_asleep_at_any_step_of_a_call() {
    let server = served().await;
    let proxy = Proxy::start(&server.options, 1).await;
    let sleepy = Server::on(&proxy.options(&server.options), Setup::default()).await;
    let mut expected = Vec::new();
    for verb in ["records", "offsets", "prepare", "commit", "abort", "begin", "whole"] {
        for steps in 0..5 {
            let (zombie, _) = Run::open(&server).await;
            let zombie = Run { server: &sleepy, ..zombie };
            let id = Uuid::now_v7();
            let begins = ["begin", "whole"].contains(&verb);
            if !begins {
                zombie.begin(id).await.created();
                zombie.call(id, "records").await.ok();
            }
            let sleep = zombie.call_while(id, verb, steps, &proxy, &server);
            let (answer, newer, opened) = sleep.await;
            let state = server.get(&format!("/v1/transactions/{id}")).await;
            let at = format!("{verb} at {steps}: {}, then {}", answer.text(), state.text());
            if answer.status >= 300 {
                answer.refused(Code::ProducerFenced);
            }
            match state.json()["state"].as_str() {
                Some("committed") => {
                    assert!(answer.status < 300 && ["commit", "whole"].contains(&verb), "{at}");
                    expected.push((json!(format!("epoch {}", zombie.epoch)), json!(id)));
                }
                Some("prepared") => {
                    assert!(answer.status == 200 && verb == "prepare", "{at}");
                    assert_eq!(opened["prepared_transactions"], json!([id]), "{at}");
                    newer.call(id, "abort").await.ok();
                }
                Some("aborted") => {
                    let by_open = opened["aborted_transaction"] == json!(id);
                    assert!(by_open || verb == "abort" && answer.status == 200, "{at}");
                }
                _ => assert!(answer.status >= 300 && begins, "{at}"),
            }
        }
    }
    assert_eq!(read(&server, "orders", 0).await, expected);
    assert_eq!(committed_offset(&server, "carts", 0).await, None);
}

impl Run<'_> {
    /// Makes a call that is held after that many messages to the database, until a newer session
    /// has opened at another replica or waits for what the call has locked.
    async fn call_while<'o>(
        &self,
        id: Uuid,
        verb: &str,
        steps: u64,
        proxy: &Proxy,
        other: &'o Server,
    ) -> (Answer, Run<'o>, Value) {
        let mut body = self.signed(self.work(if verb == "whole" { "records" } else { verb }));
        let asleep = if ["begin", "whole"].contains(&verb) {
            body["transaction_id"] = json!(id);
            body["commit"] = json!(verb == "whole");
            begin(self.server, &body)
        } else {
            call(self.server, id, verb, &body)
        };
        let open = Run::open(other);
        let (answer, (newer, opened)) = held_while(proxy, steps, asleep, open, other).await;
        (answer, newer, opened)
    }
}
