//! What a client sees of it.

use oncelog::model::Code;
use serde_json::json;

use super::{ONE, WHOLE, duplicates, named, record};
use crate::support::http::Server;

#[tokio::test]
async fn a_known_record_is_not_stored_again_and_answers_its_first_place() {
    let server = Server::start().await;
    server.topic("orders", 4).await;
    for path in [WHOLE, ONE] {
        let id = |n: i64| format!("{path}-{n}");
        let first = server.send(path, &[record(&id(1), 1), record(&id(2), 2)]).await;
        assert_eq!(duplicates(&first), [false, false]);
        let first = first.ok();
        assert_eq!(first["offsets"][0]["first_seen_at"], first["appended_at"]);
        let stored = server.stored().await;
        // some known, some new, one without an id, one twice
        let plain = json!({"key": "k", "value": 9});
        let again = [record(&id(2), 2), record(&id(3), 3), plain, record(&id(3), 3)];
        let second = server.send(path, &again).await;
        assert_eq!(duplicates(&second), [true, false, false, true]);
        let second = second.ok();
        assert_eq!(second["duplicate"], false);
        assert_eq!(second["offsets"][0]["offset"], first["offsets"][1]["offset"]);
        assert_eq!(second["offsets"][0]["first_seen_at"], first["appended_at"]);
        assert_eq!(second["offsets"][3]["offset"], second["offsets"][1]["offset"]);
        assert_eq!(server.stored().await, stored + 2);
        if path == ONE {
            assert_eq!(
                (&second["base_offset"], &second["record_count"]),
                (&json!(stored), &json!(2))
            );
        }
        // all of it known
        let third = server.send(path, &[record(&id(3), 3), record(&id(1), 1)]).await.ok();
        assert_eq!(
            (&third["duplicate"], &third["appended_at"]),
            (&json!(true), &second["appended_at"])
        );
        if path == ONE {
            assert_eq!((&third["base_offset"], &third["record_count"]), (&json!(null), &json!(0)));
        }
        assert_eq!(server.stored().await, stored + 2);
    }
}

#[tokio::test]
async fn an_id_is_unique_in_its_topic_and_belongs_to_its_key_and_value() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    server.topic("carts", 2).await;
    server.send(ONE, &[record("a", 1)]).await.ok();
    // another partition, the same topic
    let other = "/v1/topics/orders/partitions/1/records";
    assert_eq!(duplicates(&server.send(other, &[record("a", 1)]).await), [true]);
    assert_eq!(
        server.send("/v1/topics/carts/records", &[record("a", 1)]).await.ok()["duplicate"],
        false
    );
    let reused = [
        record("b", 1),
        record("a", 2),
        json!({"id": "a", "key": "other", "value": 1}),
        record("b", 2),
    ];
    let refused = server.send(WHOLE, &reused).await;
    assert_eq!(named(&refused, Code::RecordIdReused), ["/records/1", "/records/2", "/records/3"]);
    assert_eq!(server.stored().await, 1, "nothing is stored");
    // headers and timestamp are not what an id stands for
    let same = json!({"id": "a", "key": "k", "value": 1, "headers": {"x": "y"}, "timestamp": "2026-01-01T00:00:00Z"});
    assert_eq!(duplicates(&server.send(WHOLE, &[same]).await), [true]);
}

#[tokio::test]
async fn a_request_may_ask_to_be_refused_if_it_has_a_duplicate() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    let refuse = |records: serde_json::Value| {
        server.post(WHOLE).json(json!({"on_duplicate": "refuse", "records": records}))
    };
    refuse(json!([record("a", 1), record("b", 2)])).await.ok();
    let refused = refuse(json!([record("c", 3), record("a", 1), record("c", 3)])).await;
    assert_eq!(named(&refused, Code::DuplicateRecord), ["/records/1", "/records/2"]);
    let reused = refuse(json!([record("a", 1), record("b", 3)])).await;
    assert_eq!(named(&reused, Code::RecordIdReused), ["/records/1"], "judged first");
    assert_eq!(server.stored().await, 2);
    let lines = format!("{}\n{}\n", record("d", 1), record("a", 1));
    let ndjson = server.post(&format!("{WHOLE}?on_duplicate=refuse")).ndjson(&lines).await;
    assert_eq!(named(&ndjson, Code::DuplicateRecord), ["/records/1"]);
    server.post(&format!("{WHOLE}?on_duplicate=skip")).ndjson(lines).await.ok();
    server
        .post(WHOLE)
        .json(json!({"on_duplicate": "x", "records": [{"value": 1}]}))
        .await
        .invalid(&["/on_duplicate"]);
}

#[tokio::test]
async fn a_sequence_decides_first_and_is_used_also_by_what_is_known() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    for path in [WHOLE, ONE] {
        let (producer_id, epoch) = server.session("p").await;
        let send = |sequence: i64, records: serde_json::Value| {
            server.post(path).json(json!({"producer_id": producer_id, "epoch": epoch,
                "sequence": sequence, "records": records}))
        };
        let id = |n: i64| format!("{path}-{n}");
        server.send(path, &[record(&id(0), 0)]).await.ok();
        let stored = server.stored().await;
        let mut first = Vec::new();
        let requests = [
            json!([record(&id(0), 0)]),
            json!([record(&id(0), 0), record(&id(1), 1)]),
            json!([record(&id(1), 1), record(&id(0), 0)]),
            json!([record(&id(2), 2)]),
        ];
        for (sequence, records) in requests.iter().enumerate() {
            first.push(send(sequence as i64, records.clone()).await);
        }
        assert_eq!(duplicates(&first[0]), [true]);
        assert_eq!(first[0].ok()["duplicate"], true);
        assert_eq!(duplicates(&first[1]), [true, false]);
        assert_eq!(duplicates(&first[2]), [true, true]);
        assert_eq!(duplicates(&first[3]), [false]);
        assert_eq!(server.stored().await, stored + 2, "{path}");
        for (sequence, records) in requests.iter().enumerate() {
            let again = send(sequence as i64, records.clone()).await;
            let told = first[sequence].text().replacen(
                "\"duplicate\":false,\"appended_at\"",
                "\"duplicate\":true,\"appended_at\"",
                1,
            );
            assert_eq!(again.text(), told, "{path} {sequence}");
        }
        // another replica, cold, and the state that no row shows
        let other = Server::on(&server.options, crate::support::http::Setup::default()).await;
        let at_other = |sequence: i64, records: serde_json::Value| {
            other.post(path).json(json!({"producer_id": producer_id, "epoch": epoch,
                "sequence": sequence, "records": records}))
        };
        assert_eq!(at_other(4, json!([record(&id(2), 2)])).await.ok()["duplicate"], true);
        send(4, json!([record(&id(9), 2)])).await.refused(Code::SequenceReused);
        assert_eq!(send(5, json!([record(&id(0), 0)])).await.ok()["duplicate"], true);
        assert_eq!(at_other(5, json!([record(&id(0), 0)])).await.ok()["duplicate"], true);
        assert_eq!(at_other(6, json!([record(&id(3), 0)])).await.ok()["duplicate"], false);
        server.session("p").await;
    }
}

#[tokio::test]
async fn a_keyed_append_is_answered_from_the_cache() {
    let server = Server::start().await;
    server.topic("orders", 3).await;
    for path in [WHOLE, ONE] {
        let send = |key: &str, body: serde_json::Value| {
            server.post(path).header("idempotency-key", key).json(body)
        };
        let body =
            json!({"records": [{"key": "a", "value": 1}, {"key": "b", "value": 2}, {"value": 3}]});
        let first = send("order 7", body.clone()).await;
        assert_eq!(first.ok()["duplicate"], false);
        let stored = server.stored().await;
        let again = send("order 7", body.clone()).await;
        assert_eq!(again.text(), first.text().replace("\"duplicate\":false", "\"duplicate\":true"));
        send("order 7", json!({"records": [{"value": 3}]}))
            .await
            .refused(Code::IdempotencyKeyReused);
        if path == ONE {
            let moved = json!({"records": body["records"], "expected_offset": 0});
            send("order 7", moved.clone()).await.refused(Code::IdempotencyKeyReused);
            // a refusal is not remembered
            send("order 8", moved).await.refused(Code::OffsetMismatch);
            send("order 8", body.clone()).await.ok();
        }
        // with ids among the records
        let ids = json!({"records": [record(&format!("{path} x"), 1), {"value": 7}]});
        send("with ids", ids.clone()).await.ok();
        let more =
            json!({"records": [record(&format!("{path} x"), 1), record(&format!("{path} y"), 1)]});
        let partly = send("partly", more.clone()).await;
        assert_eq!(duplicates(&partly), [true, false]);
        assert_eq!(duplicates(&send("partly", more).await), [true, false], "as it was");
        let known = json!({"records": [record(&format!("{path} x"), 1)]});
        assert_eq!(send("known", known.clone()).await.ok()["duplicate"], true);
        assert_eq!(send("known", known).await.ok()["duplicate"], true);
        send("known", json!({"records": [{"value": 0}]})).await.refused(Code::IdempotencyKeyReused);
        assert!(server.stored().await > stored);
    }
}

#[tokio::test]
async fn content_shows_what_is_known_where_the_topic_says_so() {
    let server = Server::start().await;
    let settings = json!({"partition_count": 2, "settings": {"dedup": "content"}});
    server.put("/v1/topics/orders").json(settings).await.created();
    let records =
        [json!({"key": "k", "value": {"a": 1}}), json!({"key": "k", "value": {"a": 2}, "id": "x"})];
    assert_eq!(duplicates(&server.send(WHOLE, &records).await), [false, false]);
    let other_id = json!({"key": "k", "value": {"a": 2}, "id": "y"});
    let other_value = json!({"key": "k", "value": {"a": 3}, "id": "x"});
    let again = server.send(WHOLE, &[records[0].clone(), other_id, other_value]).await;
    assert_eq!(duplicates(&again), [true, true, false]);
}

#[tokio::test]
async fn a_window_ends_and_another_one_holds_for_new_keys() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let window = |ms: serde_json::Value| {
        server.patch("/v1/topics/orders").json(json!({"settings": {"dedup_window_ms": ms}}))
    };
    window(json!(600_000)).await.ok();
    server.send(WHOLE, &[record("a", 1)]).await.ok();
    window(json!(3_600_000)).await.ok();
    server.send(WHOLE, &[record("b", 1)]).await.ok();
    window(json!(null)).await.ok();
    server.send(WHOLE, &[record("c", 1)]).await.ok();
    server.ages(599_000).await;
    let all = [record("a", 1), record("b", 1), record("c", 1)];
    assert_eq!(duplicates(&server.send(WHOLE, &all).await), [true, true, true]);
    server.ages(2_000).await;
    assert_eq!(duplicates(&server.send(WHOLE, &all).await), [false, true, true]);
    server.ages(3_600_000).await;
    assert_eq!(
        duplicates(&server.send(WHOLE, &all).await),
        [true, false, true],
        "seen again, forever"
    );
    // off: ids are data
    window(json!(0)).await.ok();
    assert_eq!(duplicates(&server.send(WHOLE, &all).await), [false, false, false]);
    let keyed =
        server.post(WHOLE).header("idempotency-key", "k").json(json!({"records": [{"value": 1}]}));
    keyed.await.invalid(&["Idempotency-Key"]);
}

#[tokio::test]
async fn an_offset_that_has_left_the_log_is_null() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    server.send(WHOLE, &[record("a", 1), record("b", 2)]).await.ok();
    server.delete("/v1/topics/orders/partitions/0/records?before=1").await.no_content();
    let again = server.send(WHOLE, &[record("a", 1), record("b", 2)]).await.ok();
    assert_eq!(
        (&again["offsets"][0]["offset"], &again["offsets"][1]["offset"]),
        (&json!(null), &json!(1))
    );
}

#[tokio::test]
async fn a_one_request_transaction_skips_known_records() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    server.topic("audit", 1).await;
    server.send(WHOLE, &[record("a", 1)]).await.ok();
    let send = |records: [serde_json::Value; 2]| {
        let [one, two] = records;
        let appends = json!([{"topic": "orders", "records": one},
            {"topic": "audit", "partition": 0, "records": two}]);
        server.post("/v1/transactions").json(json!({"commit": true, "appends": appends}))
    };
    let done =
        send([json!([record("a", 1)]), json!([record("a", 1), record("a", 1), {"value": 7}])])
            .await
            .created();
    assert_eq!(done["appends"][0]["record_count"], 0);
    assert_eq!(done["appends"][0]["base_offset"], json!(null));
    assert_eq!(
        (&done["appends"][1]["record_count"], &done["appends"][1]["base_offset"]),
        (&json!(2), &json!(0))
    );
    assert_eq!(server.stored().await, 1);
    let refused = send([json!([record("b", 1)]), json!([record("a", 2)])]).await;
    assert_eq!(named(&refused, Code::RecordIdReused), ["/appends/1/records/0"]);
    assert_eq!(server.stored().await, 1);
    send([json!([record("b", 1), record("b", 1)]), json!([{"value": 1}])]).await.created();
    assert_eq!(server.stored().await, 2);
    assert_eq!(duplicates(&server.send(WHOLE, &[record("b", 1)]).await), [true]);
}

#[tokio::test]
async fn a_one_request_transaction_of_which_nothing_is_left_commits() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    server.send(WHOLE, &[record("a", 1)]).await.ok();
    let offsets = json!([{"group": "g", "topic": "orders", "partition": 0, "offset": 1, "expected_offset": null}]);
    let appends = json!([{"topic": "orders", "records": [record("a", 1)]}]);
    let body = json!({"transaction_id": uuid::Uuid::now_v7(), "commit": true, "appends": appends, "offsets": offsets});
    let done = server.post("/v1/transactions").json(&body).await.created();
    assert_eq!(
        (&done["state"], &done["appends"][0]["record_count"]),
        (&json!("committed"), &json!(0))
    );
    let again = server.post("/v1/transactions").json(&body).await.ok();
    assert_eq!(again["duplicate"], true);
    let committed = server.get("/v1/groups/g/offsets").await.ok();
    assert_eq!(committed["offsets"][0]["offset"], 1);
    assert_eq!(server.stored().await, 1);
}

#[tokio::test]
async fn a_key_of_the_far_future_is_refused() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let send = |key: &str| {
        server.post(WHOLE).header("idempotency-key", key).json(json!({"records": [{"value": 1}]}))
    };
    send("ffffffff-ffff-7000-8000-000000000000").await.invalid(&["Idempotency-Key"]);
    let old = "01000000-0000-7000-8000-000000000000";
    send(old).await.refused(Code::IdempotencyKeyExpired);
    let now = uuid::Uuid::now_v7().to_string();
    assert_eq!(send(&now).await.ok()["duplicate"], false);
    assert_eq!(send(&now).await.ok()["duplicate"], true);
    assert_eq!(server.stored().await, 1);
}
