//! The fine print of transactions, line by line.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use oncelog::model::Code;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    ALL, append, begin, begun, call, committed_offset, number, read, replica_of, see, step, values,
};
use crate::support::http::Server;

const NONE: [Value; 0] = [];

/// Topics `orders` of two partitions and `carts` with ten records in one.
async fn served() -> Server {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    server.topic("carts", 1).await;
    let records = json!({"records": vec![json!({"value": "cart"}); 10]});
    server.post("/v1/topics/carts/partitions/0/records").json(records).await.ok();
    server
}

fn one(value: i64) -> Value {
    json!({"appends": [append("orders", 0, &[json!(value)])]})
}

async fn commit(server: &Server, id: Uuid) -> Value {
    call(server, id, "commit", &json!({})).await.ok()
}

/// Moves its deadline into the past.
async fn expire(server: &Server, id: Uuid) {
    let past = "expires_at = clock_timestamp() - interval '1 second'";
    server
        .sql(format!("update oncelog.transactions set {past} where transaction_id = '{id}'"))
        .await;
}

#[tokio::test]
async fn expected_appends_counts_items_over_all_calls() {
    let server = served().await;
    let keyed = |count: usize| {
        let records: Vec<Value> =
            (0..count).map(|key| json!({"key": key.to_string(), "value": key})).collect();
        json!({"topic": "orders", "records": records})
    };
    let id = begun(&server, json!({"appends": [keyed(20), keyed(1)]})).await;
    // an item that is spread is one; the refused commit's own is not kept
    for (expected, received, work) in
        [(3, 2, json!([])), (2, 3, json!([keyed(3)])), (0, 2, json!([]))]
    {
        let body = json!({"expected_appends": expected, "appends": work});
        let problem = call(&server, id, "commit", &body).await.refused(Code::AppendsMissing);
        assert_eq!(
            (&problem["expected"], &problem["received"]),
            (&json!(expected), &json!(received))
        );
        let seen = see(&server, id).await;
        assert_eq!((&seen["state"], &seen["append_count"]), (&json!("ongoing"), &json!(2)));
    }
    let body = json!({"expected_appends": 3, "appends": [keyed(3)]});
    let committed = call(&server, id, "commit", &body).await.ok();
    assert_eq!(committed["append_count"], 3);
    let stored = committed["appends"].as_array().unwrap().iter();
    assert_eq!(stored.map(|place| place["record_count"].as_i64().unwrap()).sum::<i64>(), 24);
    // the end is not compared again
    assert_eq!(
        call(&server, id, "commit", &json!({"expected_appends": 9})).await.ok()["duplicate"],
        true
    );
}

#[tokio::test]
async fn numbered_calls_may_overtake_each_other_and_be_repeated() {
    let here = served().await;
    let there = replica_of(&here).await;
    let numbered = |sequence: i64, value: i64| {
        let mut body = one(value);
        body["sequence"] = json!(sequence);
        body
    };
    let id = begun(&here, json!({})).await;
    let problem =
        call(&here, id, "records", &numbered(5, 5)).await.refused(Code::OutOfOrderSequence);
    assert_eq!((&problem["expected"], &problem["received"]), (&json!(0), &json!(5)));
    for first in [0, 5] {
        // one replica's patience is a tenth of a second: those before are sent again until all are
        // in
        let mut missing: Vec<i64> = (first..first + 5).rev().collect();
        while !missing.is_empty() {
            let sent = missing.iter().map(|n| {
                let replica = if n % 2 == 0 { &here } else { &there };
                call(replica, id, "records", &numbered(*n, *n)).into_future()
            });
            let answers = join_all(sent).await;
            let is_missing = |answer: &crate::support::http::Answer| answer.status != 200;
            for answer in answers.iter().filter(|answer| is_missing(answer)) {
                answer.refused(Code::OutOfOrderSequence);
            }
            let mut answers = answers.iter();
            missing.retain(|_| is_missing(answers.next().unwrap()));
        }
    }
    // all are remembered while it is open, however long ago
    for n in 0..10 {
        assert_eq!(call(&there, id, "records", &numbered(n, n)).await.ok()["duplicate"], true);
        call(&here, id, "records", &numbered(n, 77)).await.refused(Code::SequenceReused);
    }
    // calls without a number go between
    assert_eq!(call(&here, id, "records", &one(10)).await.ok()["append_count"], 11);
    assert_eq!(call(&here, id, "records", &numbered(10, 11)).await.ok()["duplicate"], false);
    commit(&here, id).await;
    let problem = call(&here, id, "records", &numbered(3, 3)).await;
    assert_eq!(problem.refused(Code::InvalidTransactionState)["state"], "committed");
    assert_eq!(values(&there, "orders", 0).await, (0..12).map(|n| json!(n)).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_limit_of_batches_is_held_early_on_both_sides() {
    let server = served().await;
    server.patch("/v1/settings").json(json!({"max_transaction_batches": 3})).await.ok();
    let some = |count: usize| json!({"appends": vec![append("orders", 0, &[json!(0)]); count]});
    let too_large = |answer: crate::support::http::Answer| {
        assert_eq!(answer.refused(Code::TransactionTooLarge)["limit"], 3);
    };
    let mut whole = some(4);
    whole["commit"] = json!(true);
    too_large(begin(&server, &whole).await);
    too_large(begin(&server, &some(4)).await);
    let id = begun(&server, some(2)).await;
    too_large(call(&server, id, "records", &some(2)).await);
    too_large(call(&server, id, "commit", &some(2)).await);
    call(&server, id, "records", &some(1)).await.ok();
    too_large(call(&server, id, "records", &some(1)).await);
    assert_eq!(commit(&server, id).await["append_count"], 3);
    let mut whole = some(3);
    whole["commit"] = json!(true);
    begin(&server, &whole).await.created();
    assert_eq!(values(&server, "orders", 0).await.len(), 6);
    let longer = json!({"timeout_ms": 900_001});
    begin(&server, &longer).await.invalid(&["/timeout_ms"]);
}

#[tokio::test]
async fn ten_thousand_batches_commit_and_one_more_is_refused() {
    let server = served().await;
    server.topic("wide", 100).await;
    let id = begun(&server, json!({})).await;
    for sequence in 0..5 {
        let appends: Vec<Value> =
            (0..2_000).map(|n| append("wide", n % 100, &[json!(sequence * 2_000 + n)])).collect();
        let body = json!({"sequence": sequence, "appends": appends});
        call(&server, id, "records", &body).await.ok();
    }
    let more = json!({"appends": [append("wide", 0, &[json!("more")])]});
    for verb in ["records", "commit"] {
        let problem = call(&server, id, verb, &more).await.refused(Code::TransactionTooLarge);
        assert_eq!(problem["limit"], 10_000);
    }
    let begun = std::time::Instant::now();
    let committed = commit(&server, id).await;
    println!("10,000 batches over 100 partitions committed in {:?}", begun.elapsed());
    let appends = committed["appends"].as_array().unwrap();
    assert_eq!((appends.len(), &committed["append_count"]), (10_000, &json!(10_000)));
    for (n, place) in (0..).zip(appends) {
        assert_eq!(
            place,
            &json!({"topic": "wide", "partition": n % 100, "base_offset": n / 100,
            "record_count": 1})
        );
    }
    for partition in [0, 57, 99] {
        let wanted: Vec<Value> = (0..100).map(|n| json!(n * 100 + partition)).collect();
        assert_eq!(values(&server, "wide", partition).await, wanted);
    }
    assert_eq!(see(&server, id).await["appends"], committed["appends"]);
}

#[tokio::test]
async fn one_past_its_deadline_is_aborted_for_every_call_swept_or_not() {
    let server = served().await;
    let (producer_id, epoch) = server.session("p").await;
    let signature = json!({"producer_id": producer_id, "epoch": epoch});
    for (verb, swept) in ["records", "offsets", "prepare", "commit", "abort", "see", "begin"]
        .into_iter()
        .flat_map(|verb| [(verb, false), (verb, true)])
    {
        let mut body = one(1);
        body["producer_id"] = json!(producer_id);
        body["epoch"] = json!(epoch);
        let id = begun(&server, body.clone()).await;
        expire(&server, id).await;
        if swept {
            server.broker.sweep().await.unwrap();
        }
        let mut work = match verb {
            "records" => one(2),
            "offsets" => json!({"offsets": [step("carts", 0, Value::Null, 1)]}),
            _ => json!({}),
        };
        work["producer_id"] = json!(producer_id);
        work["epoch"] = json!(epoch);
        let told = match verb {
            "see" => see(&server, id).await,
            "begin" => {
                body["transaction_id"] = json!(id);
                begin(&server, &body).await.ok()
            }
            "abort" => call(&server, id, verb, &work).await.ok(),
            _ => call(&server, id, verb, &work).await.refused(Code::InvalidTransactionState),
        };
        let what = (&told["state"], &told["reason"]);
        assert_eq!(what, (&json!("aborted"), &json!("timeout")), "{verb}, swept: {swept}");
        // its session is free for the next
        let next = begin(&server, &signature).await.created()["transaction_id"].clone();
        let next = next.as_str().unwrap().parse().unwrap();
        call(&server, next, "abort", &signature).await.ok();
    }
    server.broker.sweep().await.unwrap();
    assert_eq!(number(&server, "select count(*) from oncelog.staged_batches").await, 0);
    assert_eq!(
        number(&server, "select count(*) from oncelog.transactions where sweeping").await,
        0
    );
    assert_eq!(values(&server, "orders", 0).await, NONE);
}

#[tokio::test]
async fn a_prepared_one_holds_what_it_needs_and_nothing_else() {
    let server = served().await;
    let work = json!({"appends": one(1)["appends"], "offsets": [step("carts", 0, Value::Null, 4)]});
    for end in ["abort", "commit"] {
        let id = begun(&server, work.clone()).await;
        let prepared = call(&server, id, "prepare", &json!({})).await.ok();
        assert_eq!(
            (&prepared["expires_at"], &prepared["duplicate"]),
            (&Value::Null, &json!(false))
        );
        assert_eq!(call(&server, id, "prepare", &json!({})).await.ok()["duplicate"], true);
        // without a timeout
        expire(&server, id).await;
        server.broker.sweep().await.unwrap();
        assert_eq!(see(&server, id).await["state"], "prepared");
        // it takes nothing more,
        for (verb, body) in [
            ("records", one(2)),
            ("offsets", json!({"offsets": work["offsets"]})),
            ("commit", one(2)),
        ] {
            let problem = call(&server, id, verb, &body).await;
            assert_eq!(problem.refused(Code::InvalidTransactionState)["state"], "prepared");
        }
        // nobody else commits there: a plain commit, another transaction, staged or whole
        let plain = json!({"offsets": [{"topic": "carts", "partition": 0, "offset": 2}]});
        let plain = server.post("/v1/groups/g/offsets").json(plain).await;
        let offsets = json!({"offsets": [step("carts", 0, Value::Null, 3)]});
        let other = begun(&server, offsets.clone()).await;
        let mut whole = offsets;
        whole["commit"] = json!(true);
        let mut with_records = whole.clone();
        with_records["appends"] = one(3)["appends"].clone();
        for answer in [
            plain,
            call(&server, other, "commit", &json!({})).await,
            call(&server, other, "prepare", &json!({})).await,
            begin(&server, &whole).await,
            begin(&server, &with_records).await,
        ] {
            let problem = answer.refused(Code::OffsetCommitConflict);
            assert_eq!(problem["transaction_id"], json!(id));
        }
        // nobody deletes its topics,
        for topic in ["orders", "carts"] {
            let problem = server.delete(&format!("/v1/topics/{topic}")).await;
            assert_eq!(problem.refused(Code::TopicInUse)["transaction_id"], json!(id));
        }
        // and everybody reads and appends
        let before = values(&server, "orders", 0).await.len();
        let plain = json!({"records": [{"value": "plain"}]});
        let plain = server.post("/v1/topics/orders/partitions/0/records").json(plain).await.ok();
        assert_eq!(plain["base_offset"], before);
        assert_eq!(call(&server, id, end, &json!({})).await.ok()["duplicate"], false);
        assert_eq!(number(&server, "select count(*) from oncelog.pins").await, 0);
        let at = committed_offset(&server, "carts", 0).await;
        assert_eq!(at, (end == "commit").then_some(4), "{end}");
        call(&server, other, "abort", &json!({})).await.ok();
    }
    assert_eq!(values(&server, "orders", 0).await, [json!("plain"), json!("plain"), json!(1)]);
    server.delete("/v1/topics/orders").await.no_content();
}

#[tokio::test]
async fn a_topic_deleted_under_an_ongoing_one_leaves_only_its_abort() {
    let server = served().await;
    let offsets = json!({"offsets": [step("carts", 0, Value::Null, 1)]});
    for (topic, partitions, work) in [("orders", 2, one(1)), ("carts", 1, offsets)] {
        let id = begun(&server, work).await;
        server.delete(&format!("/v1/topics/{topic}")).await.no_content();
        for again in [false, true] {
            if again {
                // another topic of the same name
                server.topic(topic, partitions).await;
            }
            for verb in ["commit", "prepare"] {
                call(&server, id, verb, &json!({})).await.refused(Code::TopicNotFound);
            }
        }
        assert_eq!(see(&server, id).await["state"], "ongoing");
        assert_eq!(call(&server, id, "abort", &json!({})).await.ok()["reason"], "client");
    }
    assert_eq!(values(&server, "orders", 0).await, NONE);
    assert_eq!(committed_offset(&server, "carts", 0).await, None);
}

#[tokio::test]
async fn a_topic_may_grow_under_an_ongoing_one() {
    let here = served().await;
    let there = replica_of(&here).await;
    let keyed = |from: usize| {
        let records: Vec<Value> =
            (from..from + 20).map(|key| json!({"key": key.to_string(), "value": key})).collect();
        json!({"appends": [{"topic": "orders", "records": records}]})
    };
    let id = begun(&here, keyed(0)).await;
    there.patch("/v1/topics/orders").json(json!({"partition_count": 5})).await.ok();
    call(&here, id, "records", &keyed(20)).await.ok();
    let committed = call(&here, id, "commit", &keyed(40)).await.ok();
    let places = committed["appends"].as_array().unwrap().iter();
    let partitions: BTreeSet<i64> = places.map(|p| p["partition"].as_i64().unwrap()).collect();
    assert!(partitions.contains(&4), "what came after is spread again: {partitions:?}");
    let mut all = Vec::new();
    for partition in 0..5 {
        all.extend(values(&there, "orders", partition).await);
    }
    all.sort_by_key(|value| value.as_u64());
    assert_eq!(all, (0..60).map(|n| json!(n)).collect::<Vec<_>>());
}

#[tokio::test]
async fn ends_may_be_repeated_and_never_changed() {
    let server = served().await;
    for (first, second, state) in [("commit", "abort", "committed"), ("abort", "commit", "aborted")]
    {
        for work in [json!({}), one(1)] {
            let id = begun(&server, work.clone()).await;
            let ended = call(&server, id, first, &json!({})).await.ok();
            assert_eq!((&ended["state"], &ended["duplicate"]), (&json!(state), &json!(false)));
            let mut again = call(&server, id, first, &json!({})).await.ok();
            assert_eq!(again["duplicate"], true);
            again["duplicate"] = json!(false);
            assert_eq!(again, ended);
            for verb in [second, "prepare"] {
                let problem = call(&server, id, verb, &json!({})).await;
                assert_eq!(problem.refused(Code::InvalidTransactionState)["state"], state);
            }
            let mut begin_again = work;
            begin_again["transaction_id"] = json!(id);
            assert_eq!(begin(&server, &begin_again).await.ok()["state"], state);
        }
    }
    assert_eq!(values(&server, "orders", 0).await, [json!(1)]);
    let kept = number(&server, "select count(*) from oncelog.staged_batches").await;
    server.broker.sweep().await.unwrap();
    let swept = number(&server, "select count(*) from oncelog.staged_batches").await;
    assert_eq!((kept, swept), (2, 1), "what the aborted one staged is gone");
}

#[tokio::test]
async fn offsets_are_checked_when_added_and_owned_when_committed() {
    let server = served().await;
    let offsets = |from: Value, to: i64| json!({"offsets": [step("carts", 0, from, to)]});
    let id = begun(&server, json!({})).await;
    let problem = call(&server, id, "offsets", &offsets(Value::Null, 11)).await;
    let problem = problem.refused(Code::OffsetOutOfRange);
    assert_eq!((&problem["log_start_offset"], &problem["high_watermark"]), (&json!(0), &json!(10)));
    begin(&server, &offsets(Value::Null, 11)).await.refused(Code::OffsetOutOfRange);
    // the last one for a place wins, in a call and over calls; who is right shows at the end
    call(&server, id, "offsets", &offsets(json!(7), 8)).await.ok();
    let problem = call(&server, id, "commit", &json!({})).await.refused(Code::OffsetCommitConflict);
    assert_eq!(
        (&problem["expected_offset"], &problem["committed_offset"]),
        (&json!(7), &Value::Null)
    );
    let both =
        json!({"offsets": [step("carts", 0, json!(3), 1), step("carts", 0, Value::Null, 10)]});
    call(&server, id, "offsets", &both).await.ok();
    assert_eq!(committed_offset(&server, "carts", 0).await, None);
    commit(&server, id).await;
    // an unknown group is there now
    assert_eq!(committed_offset(&server, "carts", 0).await, Some(10));
    // a compare-and-set may go back, in either form
    let id = begun(&server, offsets(json!(10), 6)).await;
    commit(&server, id).await;
    let mut whole = offsets(json!(6), 2);
    whole["commit"] = json!(true);
    begin(&server, &whole).await.created();
    assert_eq!(committed_offset(&server, "carts", 0).await, Some(2));
    // one that is refused leaves its id free, and nothing else
    let id = Uuid::now_v7();
    whole["transaction_id"] = json!(id);
    whole["appends"] = one(1)["appends"].clone();
    begin(&server, &whole).await.refused(Code::OffsetCommitConflict);
    server.get(&format!("{ALL}/{id}")).await.refused(Code::TransactionNotFound);
    whole["offsets"] = json!([step("carts", 0, json!(2), 3)]);
    begin(&server, &whole).await.created();
    begin(&server, &offsets(Value::Null, 0)).await.created();
    assert_eq!(values(&server, "orders", 0).await, [json!(1)]);
}

#[tokio::test]
async fn a_members_offsets_are_judged_by_who_owns_the_partition_then() {
    let server = served().await;
    server
        .sql("insert into oncelog.groups (tenant_id, name, generation) select tenant_id, 'g', 5 from oncelog.tenants; \
              insert into oncelog.group_members select tenant_id, 'g', 'm' from oncelog.tenants; \
              insert into oncelog.group_offsets (tenant_id, group_name, log_id, member_id, owned_since) \
              select l.tenant_id, 'g', l.log_id, 'm', 3 from oncelog.logs l join oncelog.topics t using (tenant_id, topic_id) \
              where t.name = 'carts' and l.partition = 0")
        .await;
    let by = |member: &str, generation: i64, offset: i64| {
        json!({"offsets": [{"group": "g", "member_id": member, "generation": generation,
            "topic": "carts", "partition": 0, "offset": offset}]})
    };
    let refusals = [
        (by("other", 3, 1), Code::UnknownMember),
        (by("m", 2, 1), Code::IllegalGeneration),
        (by("m", 6, 1), Code::IllegalGeneration),
        (json!({"offsets": [step("carts", 0, Value::Null, 1)]}), Code::GroupNotEmpty),
    ];
    let judge = async |body: &Value, code: Code| {
        let id = begun(&server, body.clone()).await;
        for verb in ["prepare", "commit"] {
            call(&server, id, verb, &json!({})).await.refused(code);
        }
        let mut whole = body.clone();
        whole["commit"] = json!(true);
        begin(&server, &whole).await.refused(code);
        whole["appends"] = one(9)["appends"].clone();
        begin(&server, &whole).await.refused(code);
    };
    for (body, code) in &refusals {
        judge(body, *code).await;
    }
    for (generation, offset) in [(3, 4), (5, 4)] {
        let id = begun(&server, by("m", generation, offset)).await;
        commit(&server, id).await;
        assert_eq!(committed_offset(&server, "carts", 0).await, Some(offset));
    }
    let mut whole = by("m", 4, 6);
    whole["commit"] = json!(true);
    whole["appends"] = one(1)["appends"].clone();
    begin(&server, &whole).await.created();
    // smaller: its outputs would be a second processing
    judge(&by("m", 4, 5), Code::OffsetCommitConflict).await;
    assert_eq!(committed_offset(&server, "carts", 0).await, Some(6));
    // lost between adding and committing
    let id = begun(&server, by("m", 5, 7)).await;
    server.sql("update oncelog.group_offsets set owned_since = 6; update oncelog.groups set generation = 6").await;
    let problem = call(&server, id, "commit", &json!({})).await.refused(Code::IllegalGeneration);
    assert_eq!(problem["generation"], 6);
    assert_eq!(values(&server, "orders", 0).await, [json!(1)]);
}

#[tokio::test]
async fn what_is_committed_is_seen_at_once_through_every_replica() {
    let first = served().await;
    let replicas = [replica_of(&first).await, replica_of(&first).await, first];
    let mut from = Value::Null;
    for round in 0..6 {
        let (by, offset) = (&replicas[round % 3], round as i64 + 1);
        let appends = [0, 1].map(|partition| append("orders", partition, &[json!(round)]));
        let mut body = json!({"appends": appends,
            "offsets": [step("carts", 0, from, offset)]});
        if round % 2 == 0 {
            body["commit"] = json!(true);
            begin(by, &body).await.created();
        } else {
            let id = begun(by, body).await;
            commit(by, id).await;
        }
        from = json!(offset);
        for replica in &replicas {
            for partition in 0..2 {
                assert_eq!(read(replica, "orders", partition).await.len(), round + 1);
            }
            assert_eq!(committed_offset(replica, "carts", 0).await, Some(offset));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_sendings_at_once_one_runs() {
    let here = served().await;
    let there = replica_of(&here).await;
    for round in 0..10 {
        let from = if round == 0 { Value::Null } else { json!(round - 1) };
        let body = json!({"transaction_id": Uuid::now_v7(), "commit": true,
            "appends": [append("orders", 0, &[json!(round)]), append("orders", 1, &[json!(round)])],
            "offsets": [step("carts", 0, from, round)]});
        let sent =
            (0..12).map(|n| begin(if n % 2 == 0 { &here } else { &there }, &body).into_future());
        let answers = join_all(sent).await;
        let made: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
        assert_eq!(made.len(), 1, "{answers:?}");
        for answer in &answers {
            if answer.status != 201 {
                assert_eq!(answer.ok()["appends"], made[0].json()["appends"]);
            }
        }
    }
    for partition in 0..2 {
        let wanted: Vec<Value> = (0..10).map(|n| json!(n)).collect();
        assert_eq!(values(&there, "orders", partition).await, wanted);
    }
}

#[tokio::test]
async fn a_begin_that_would_be_refused_today_is_still_known() {
    let server = served().await;
    let long = |id: Uuid| json!({"transaction_id": id, "timeout_ms": 600_000});
    let id = Uuid::now_v7();
    server.post("/v1/transactions").json(long(id)).await.created();
    let lower = json!({"max_transaction_timeout_ms": 1_000});
    server.patch("/v1/settings").json(lower).await.ok();
    let again = server.post("/v1/transactions").json(long(id)).await.ok();
    assert_eq!((&again["duplicate"], &again["state"]), (&json!(true), &json!("ongoing")));
    server.post("/v1/transactions").json(long(Uuid::now_v7())).await.invalid(&["/timeout_ms"]);
    let other = json!({"transaction_id": id, "timeout_ms": 600_001});
    server.post("/v1/transactions").json(other).await.refused(Code::TransactionReused);
}
