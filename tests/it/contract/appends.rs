//! Appends over HTTP: the sequence table in both scopes, repeats, limits, places.

use std::time::{Duration, Instant};

use oncelog::{broker::ServiceConfig, model::Code};
use serde_json::{Value, json};

use crate::support::http::{Answer, Call, Server, Setup};

const WHOLE: &str = "/v1/topics/orders/records";
const ONE: &str = "/v1/topics/orders/partitions/0/records";

fn as_strs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// A producer that appends to one URL.
struct Producer<'a> {
    server: &'a Server,
    path: &'a str,
    id: i64,
    epoch: i64,
}

impl Producer<'_> {
    fn send(&self, sequence: i64, records: Value) -> Call {
        self.server.post(self.path).json(json!({"producer_id": self.id, "epoch": self.epoch,
            "sequence": sequence, "records": records}))
    }

    /// One record.
    fn one(&self, sequence: i64, value: &str) -> Call {
        self.send(sequence, json!([{"key": "k", "value": value}]))
    }
}

async fn producer<'a>(server: &'a Server, path: &'a str, name: &str) -> Producer<'a> {
    let (id, epoch) = server.session(name).await;
    Producer { server, path, id, epoch }
}

/// The answer to the repeat is the first one but `duplicate`.
#[track_caller]
fn repeats(repeat: &Answer, first: &Answer) {
    assert_eq!((repeat.status, first.status), (200, 200));
    assert_eq!(first.text().matches("\"duplicate\":false").count(), 1);
    assert_eq!(repeat.text(), first.text().replace("\"duplicate\":false", "\"duplicate\":true"));
}

/// Stored before, too long ago to say where.
#[track_caller]
fn is_forgotten(answer: &Answer) {
    let said = answer.ok();
    let place = if said.get("record_count").is_some() { "base_offset" } else { "offsets" };
    let told = (&said["duplicate"], said.get(place), &said["appended_at"]);
    assert_eq!(told, (&json!(true), Some(&Value::Null), &Value::Null));
}

#[tokio::test]
async fn the_ten_rows_of_the_sequence_table_in_both_scopes() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    for path in [WHOLE, ONE] {
        let name = if path == WHOLE { "whole" } else { "one" };
        let mut p = producer(&server, path, name).await;
        let unknown = Producer { id: p.id + 1_000, ..p };
        // 5: before anything
        let problem = p.one(5, "a").await.refused(Code::UnknownProducerState);
        assert_eq!((&problem["expected"], &problem["retry"]), (&json!(0), &json!("reopen")));
        // 4, 6
        let mut first = Vec::new();
        for sequence in 0..2 {
            first.push(p.one(sequence, "a").await);
            assert_eq!(first.last().unwrap().ok()["duplicate"], false);
        }
        // 7, 8
        repeats(&p.one(0, "a").await, &first[0]);
        repeats(&p.one(1, "a").await, &first[1]);
        p.one(0, "b").await.refused(Code::SequenceReused);
        // 10: far ahead at once, near after its wait
        for received in [3, 7] {
            let problem = p.one(received, "a").await.refused(Code::OutOfOrderSequence);
            assert_eq!((&problem["expected"], &problem["received"]), (&json!(2), &json!(received)));
            assert_eq!(problem["retry"], "reopen");
        }
        // 9: the last five are remembered; before them everything is a duplicate
        for sequence in 2..6 {
            first.push(p.one(sequence, "a").await);
        }
        is_forgotten(&p.one(0, "a").await);
        is_forgotten(&p.one(0, "b").await);
        for sequence in 1..6 {
            repeats(&p.one(sequence, "a").await, &first[usize::try_from(sequence).unwrap()]);
        }
        // 1, 2, 3: the producer is judged before its sequence
        unknown.one(0, "a").await.refused(Code::UnknownProducer);
        p.epoch = 1;
        let problem = p.one(6, "a").await.refused(Code::InvalidProducerEpoch);
        assert_eq!(problem["current_epoch"], 0);
        server.session(name).await;
        p.epoch = 0;
        for sequence in [0, 5, 6, 99] {
            let problem = p.one(sequence, "a").await.refused(Code::ProducerFenced);
            assert_eq!(problem["current_epoch"], 1);
        }
        // across epochs: repeats of the old one's numbers, and its next
        p.epoch = 1;
        repeats(&p.one(5, "a").await, &first[5]);
        p.one(5, "b").await.refused(Code::SequenceReused);
        assert_eq!(p.one(6, "a").await.ok()["duplicate"], false);
    }
    // every record once: seven of each scope
    let topic = server.get("/v1/topics/orders").await.ok();
    let partitions = topic["partitions"].as_array().unwrap();
    let counts = partitions.iter().map(|partition| partition["record_count"].as_i64().unwrap());
    assert_eq!(counts.sum::<i64>(), 14);
}

#[tokio::test]
async fn scopes_are_urls() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    server.topic("audit", 1).await;
    let (id, epoch) = server.session("p").await;
    let paths = [
        WHOLE,
        ONE,
        "/v1/topics/orders/partitions/1/records",
        "/v1/topics/audit/records",
        "/v1/topics/audit/partitions/0/records",
    ];
    for sequence in 0..2 {
        for path in paths {
            let p = Producer { server: &server, path, id, epoch };
            assert_eq!(p.one(sequence, "x").await.ok()["duplicate"], false, "{path} {sequence}");
        }
    }
}

#[tokio::test]
async fn requests_that_overtake_wait_for_each_other() {
    let settings = ServiceConfig { gap_wait_ms: 5_000, ..ServiceConfig::default() };
    let server = Server::with(Setup { settings, ..Setup::default() }).await;
    server.topic("orders", 2).await;
    for path in [WHOLE, ONE] {
        let name = if path == WHOLE { "whole" } else { "one" };
        let p = producer(&server, path, name).await;
        // the last of five first, in a fresh scope and later
        for round in 0..2 {
            let sequences = (0..5).rev().map(|i| round * 5 + i);
            let calls = sequences.map(|s| p.one(s, "x").into_future());
            for answer in futures_util::future::join_all(calls).await {
                assert_eq!(answer.ok()["duplicate"], false);
            }
        }
        // fenced while it waits: answered at once
        let began = Instant::now();
        let waiting = p.one(12, "x").into_future();
        let opening = async {
            // sequence 10 is there, so 12 has been judged or will be, on either side of the open
            p.one(10, "x").await.ok();
            server.session(name).await;
        };
        let (fenced, ()) = tokio::join!(waiting, opening);
        fenced.refused(Code::ProducerFenced);
        assert!(began.elapsed() < Duration::from_secs(4));
    }
}

#[tokio::test]
async fn numbers_come_together_or_not_at_all() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let records = json!([{"value": 1}]);
    let body = |numbers: Value| {
        let mut body = json!({"records": records});
        body.as_object_mut().unwrap().extend(numbers.as_object().unwrap().clone());
        body
    };
    let ndjson = |query: &str| server.post(&format!("{ONE}?{query}")).ndjson("{\"value\":1}");
    let table: &[(Value, &str, &[&str])] = &[
        (json!({"producer_id": 1}), "producer_id=1", &["epoch", "sequence"]),
        (json!({"epoch": 0, "sequence": 0}), "epoch=0&sequence=0", &["producer_id"]),
        (json!({"producer_id": 1, "sequence": 0}), "producer_id=1&sequence=0", &["epoch"]),
        (
            json!({"producer_id": 1, "epoch": 0, "sequence": null}),
            "producer_id=1&epoch=0",
            &["sequence"],
        ),
    ];
    for (numbers, query, missing) in table {
        let pointers = |prefix: &str| -> Vec<String> {
            missing.iter().map(|name| format!("{prefix}{name}")).collect()
        };
        let (json, lines) = (pointers("/"), pointers("?"));
        for path in [WHOLE, ONE] {
            let answer = server.post(path).json(body(numbers.clone())).await;
            answer.invalid(&as_strs(&json));
        }
        let answer = ndjson(query).await;
        answer.invalid(&as_strs(&lines));
    }
    let too_large = 1_i64 << 53;
    for bad in [json!(-1), json!(too_large), json!(1.0), json!("1"), json!([])] {
        let numbers = json!({"producer_id": 1, "epoch": 0, "sequence": bad});
        server.post(ONE).json(body(numbers)).await.invalid(&["/sequence"]);
    }
    for bad in ["-1", "9007199254740992", "1.0", "x", "01", ""] {
        ndjson(&format!("producer_id=1&epoch=0&sequence={bad}")).await.invalid(&["?sequence"]);
    }
    // nulls are absent; a key beside a sequence is refused
    let nulls = json!({"producer_id": null, "epoch": null, "sequence": null,
        "expected_offset": null});
    server.post(ONE).json(body(nulls.clone())).await.ok();
    server.post(WHOLE).json(body(nulls)).await.ok();
    let both = body(json!({"producer_id": 1, "epoch": 0, "sequence": 0}));
    let keyed = server.post(ONE).json(both).header("idempotency-key", "k").await;
    keyed.invalid(&["Idempotency-Key"]);
    let largest = json!({"producer_id": too_large - 1, "epoch": 0, "sequence": too_large - 1});
    server.post(ONE).json(body(largest)).await.refused(Code::UnknownProducer);
}

#[tokio::test]
async fn an_expected_offset_is_a_compare_and_set() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let p = producer(&server, ONE, "p").await;
    let send = |sequence: Option<i64>, expected: i64, value: &str| {
        let mut body = json!({"expected_offset": expected, "records": [{"value": value}]});
        if let Some(sequence) = sequence {
            let numbers = json!({"producer_id": p.id, "epoch": 0, "sequence": sequence});
            body.as_object_mut().unwrap().extend(numbers.as_object().unwrap().clone());
        }
        server.post(ONE).json(body)
    };
    assert_eq!(send(None, 0, "a").await.ok()["base_offset"], 0);
    for expected in [0, 2] {
        let problem = send(None, expected, "b").await.refused(Code::OffsetMismatch);
        let facts = (&problem["expected_offset"], &problem["next_offset"]);
        assert_eq!(facts, (&json!(expected), &json!(1)));
    }
    // refused, it does not use up its sequence
    send(Some(0), 7, "b").await.refused(Code::OffsetMismatch);
    let first = send(Some(0), 1, "b").await;
    assert_eq!(first.ok()["base_offset"], 1);
    // a duplicate is answered first, whatever it expects; the producer too
    repeats(&send(Some(0), 1, "b").await, &first);
    repeats(&send(Some(0), 99, "b").await, &first);
    repeats(&p.send(0, json!([{"value": "b"}])).await, &first);
    send(Some(0), 99, "c").await.refused(Code::SequenceReused);
    send(Some(9), 99, "c").await.refused(Code::OutOfOrderSequence);
    // NDJSON says it in the query
    let line = |expected: i64| {
        server.post(&format!("{ONE}?expected_offset={expected}")).ndjson("{\"value\":1}\n")
    };
    line(1).await.refused(Code::OffsetMismatch);
    assert_eq!(line(2).await.ok()["base_offset"], 2);
    // and a topic has no one next offset
    let whole = json!({"expected_offset": 0, "records": [{"value": 1}]});
    server.post(WHOLE).json(whole).await.invalid(&["/expected_offset"]);
    let lines = server.post(&format!("{WHOLE}?expected_offset=0")).ndjson("{\"value\":1}");
    lines.await.invalid(&["?expected_offset"]);
    // one of many that expect the same wins
    let race = (0..8).map(|i| send(None, 3, &i.to_string()).into_future());
    let answers = futures_util::future::join_all(race).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 1);
    for lost in answers.iter().filter(|answer| answer.status != 200) {
        lost.refused(Code::OffsetMismatch);
    }
}

#[tokio::test]
async fn places_are_told_in_request_order() {
    let server = Server::start().await;
    server.topic("orders", 4).await;
    let records: Vec<Value> =
        (0..20).map(|i| json!({"key": format!("k{}", i % 9), "value": i})).collect();
    let mut next = [0_i64; 4];
    let mut homes = std::collections::HashMap::new();
    for _ in 0..2 {
        let said = server.post(WHOLE).json(json!({"records": records})).await.ok();
        let offsets = said["offsets"].as_array().unwrap();
        assert_eq!(offsets.len(), 20);
        for (record, place) in records.iter().zip(offsets) {
            let partition = usize::try_from(place["partition"].as_i64().unwrap()).unwrap();
            assert_eq!(place["offset"], next[partition]);
            next[partition] += 1;
            let home = homes.entry(record["key"].to_string()).or_insert(partition);
            assert_eq!(*home, partition, "a key has one partition");
            // and there it is
            let path = format!("/v1/topics/orders/partitions/{partition}/records");
            let at = format!("{path}?limit=1&offset={}", place["offset"]);
            assert_eq!(server.get(&at).await.ok()["records"][0]["value"], record["value"]);
        }
    }
    assert!(next.iter().filter(|count| **count > 0).count() > 1, "{next:?}");
    // the partition form puts all in one, keys or not
    let one = server.post("/v1/topics/orders/partitions/2/records");
    let said = one.json(json!({"records": records})).await.ok();
    let at = said["appended_at"].clone();
    assert_eq!(
        said,
        json!({"topic": "orders", "partition": 2, "base_offset": next[2], "record_count": 20,
            "duplicate": false, "appended_at": at})
    );
}

#[tokio::test]
async fn records_without_a_key_keep_together() {
    let server = Server::start().await;
    server.topic("orders", 4).await;
    let p = producer(&server, WHOLE, "p").await;
    let partitions = |answer: &Answer| -> Vec<i64> {
        let said = answer.ok();
        let offsets = said["offsets"].as_array().unwrap().iter();
        offsets.map(|place| place["partition"].as_i64().unwrap()).collect()
    };
    let mut seen = std::collections::BTreeSet::new();
    for sequence in 0..10 {
        let records = json!([{"value": 1}, {"value": 2}, {"key": null, "value": 3}]);
        let answer = p.send(sequence, records.clone()).await;
        let chosen = partitions(&answer);
        assert!(chosen.iter().all(|partition| *partition == chosen[0]), "{chosen:?}");
        seen.insert(chosen[0]);
        // never chosen again for the repeat
        for _ in 0..2 {
            repeats(&p.send(sequence, records.clone()).await, &answer);
        }
    }
    assert!(seen.len() > 1, "chosen again for each request: {seen:?}");
    // an empty string is a key
    let empty: std::collections::BTreeSet<i64> = {
        let mut homes = std::collections::BTreeSet::new();
        for _ in 0..6 {
            let body = json!({"records": [{"key": "", "value": 1}]});
            homes.extend(partitions(&server.post(WHOLE).json(body).await));
        }
        homes
    };
    assert_eq!(empty.len(), 1);
}

#[tokio::test]
async fn a_repeat_keeps_its_offsets_after_the_topic_has_grown() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    let p = producer(&server, WHOLE, "p").await;
    let records: Value =
        (0..30).map(|i| json!({"key": format!("k{i}"), "value": i})).collect::<Vec<_>>().into();
    let first = p.send(0, records.clone()).await;
    first.ok();
    server.patch("/v1/topics/orders").json(r#"{"partition_count":9}"#).await.ok();
    repeats(&p.send(0, records.clone()).await, &first);
    // what begins after the answer spreads by the new count
    let next = p.send(1, records.clone()).await;
    let said = next.ok();
    let offsets = said["offsets"].as_array().unwrap();
    assert!(offsets.iter().any(|place| place["partition"].as_i64().unwrap() > 1));
    // another replica, which knows nothing but the database, says the same
    let other = Server::on(&server.options, Setup::default()).await;
    let q = Producer { server: &other, ..p };
    repeats(&q.send(0, records.clone()).await, &first);
    repeats(&q.send(1, records).await, &next);
}

#[tokio::test]
async fn limits_hold_on_both_sides() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let limit = async |settings: Value| {
        server.patch("/v1/topics/orders").json(json!({"settings": settings})).await.ok();
    };
    let send = async |path: &str, records: &[&str]| -> Answer {
        server.post(path).json(format!("{{\"records\": [{}]}}", records.join(", "))).await
    };
    let too_large = |answer: &Answer, limit: i64, name: &str| {
        let problem = answer.refused(Code::BatchTooLarge);
        assert_eq!(problem["limit"], limit);
        assert!(problem["detail"].as_str().unwrap().contains(name), "{problem}");
    };
    // 11 bytes a line, and its newline
    let record = "{ \"value\" : 1 }";
    for path in [WHOLE, ONE] {
        limit(json!({"max_batch_records": 3})).await;
        send(path, &[record; 3]).await.ok();
        too_large(&send(path, &[record; 4]).await, 3, "max_batch_records");
        limit(json!({"max_batch_records": "default", "max_batch_bytes": 36})).await;
        send(path, &[record; 3]).await.ok();
        too_large(&send(path, &[record; 4]).await, 36, "max_batch_bytes");
        limit(json!({"max_batch_bytes": 24, "max_record_bytes": 11})).await;
        send(path, &[record; 2]).await.ok();
        too_large(&send(path, &[record, "{\"value\":12}"]).await, 24, "max_batch_bytes");
        limit(json!({"max_batch_bytes": "default"})).await;
        too_large(&send(path, &[record, "{\"value\":12}"]).await, 11, "max_record_bytes");
        limit(json!({"max_record_bytes": "default"})).await;
    }
    // the defaults: 1,000 records, 1 MiB
    send(ONE, &vec![record; 1_000]).await.ok();
    too_large(&send(ONE, &vec![record; 1_001]).await, 1_000, "max_batch_records");
    let line = |bytes: usize| format!("{{\"value\":\"{}\"}}", "x".repeat(bytes - 12));
    send(ONE, &[&line((1 << 20) - 1)]).await.ok();
    too_large(&send(ONE, &[&line(1 << 20)]).await, 1 << 20, "max_batch_bytes");
    // nothing of what was refused is there: 2 * 8 + 1,000 + 1
    let topic = server.get("/v1/topics/orders").await.ok();
    assert_eq!(topic["partitions"][0]["high_watermark"], 1_017);
}

#[tokio::test]
async fn what_was_acknowledged_is_answered_under_lower_limits() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let (whole, one) = (producer(&server, WHOLE, "w").await, producer(&server, ONE, "o").await);
    let three = json!([{"value": 1}, {"value": 2}, {"value": 3}]);
    let mut first = Vec::new();
    for sequence in 0..6 {
        first.push((
            whole.send(sequence, three.clone()).await,
            one.send(sequence, three.clone()).await,
        ));
    }
    let low = json!({"settings": {"max_batch_records": 1, "max_record_bytes": 1}});
    server.patch("/v1/topics/orders").json(low).await.ok();
    for (p, answers) in [
        (&whole, first.iter().map(|(answer, _)| answer).collect::<Vec<_>>()),
        (&one, first.iter().map(|(_, answer)| answer).collect()),
    ] {
        repeats(&p.send(5, three.clone()).await, answers[5]);
        repeats(&p.send(1, three.clone()).await, answers[1]);
        let forgotten = p.send(0, three.clone()).await;
        is_forgotten(&forgotten);
        if p.path == ONE {
            assert_eq!(forgotten.ok()["record_count"], 3);
        }
        let other = json!([{"value": 1}, {"value": 2}, {"value": 4}]);
        p.send(5, other).await.refused(Code::SequenceReused);
        p.send(6, three.clone()).await.refused(Code::BatchTooLarge);
        // which has not used up the sequence
        server
            .patch("/v1/topics/orders")
            .json(r#"{"settings": {"max_record_bytes": 11}}"#)
            .await
            .ok();
        assert_eq!(p.send(6, json!([{"value": 1}])).await.ok()["duplicate"], false);
    }
}

#[tokio::test]
async fn the_digest_is_of_the_records_not_of_their_clothes() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let (p, _) = server.session("p").await;
    let post = |records: &str| {
        server.post(ONE).json(format!(
            "{{\"producer_id\": {p}, \"epoch\": 0, \"sequence\": 0, \"records\": {records}}}"
        ))
    };
    let first = r#"[{"key":"k","value":{"a":1.0,"b":[1,2]},"headers":{"x":"1","y":"2"}}]"#;
    let answer = post(first).await;
    // whitespace, the order of fields and headers, nulls, traces, forms
    for same in [
        "[ {\"headers\" : {\"y\":\"2\", \"x\":\"1\"}, \"value\": {\n  \"a\": 1.0, \"b\": [ 1, 2 ]\n},\t\"key\":\"k\"} ]",
        r#"[{"id":null,"timestamp":null,"key":"k","value":{"a":1.0,"b":[1,2]},"headers":{"x":"1","y":"2"}}]"#,
        r#"[{"key":"\u006b","value":{"a":1.0,"b":[1,2]},"headers":{"x":"\u0031","y":"2"}}]"#,
    ] {
        repeats(&post(same).await, &answer);
    }
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    repeats(&post(first).header("traceparent", trace).await, &answer);
    let line = first.trim_matches(['[', ']']);
    let lines = server.post(&format!("{ONE}?producer_id={p}&epoch=0&sequence=0")).ndjson(line);
    repeats(&lines.await, &answer);
    // what is another record
    for other in [
        r#"[{"key":"k","value":{"a":1.00,"b":[1,2]},"headers":{"x":"1","y":"2"}}]"#,
        r#"[{"key":"k","value":{"b":[1,2],"a":1.0},"headers":{"x":"1","y":"2"}}]"#,
        r#"[{"key":"K","value":{"a":1.0,"b":[1,2]},"headers":{"x":"1","y":"2"}}]"#,
        r#"[{"key":"k","value":{"a":1.0,"b":[1,2]},"headers":{"x":"1","y":"3"}}]"#,
        r#"[{"key":"k","value":{"a":1.0,"b":[1,2]},"headers":{"x":"1"}}]"#,
        r#"[{"key":"k","id":"i","value":{"a":1.0,"b":[1,2]},"headers":{"x":"1","y":"2"}}]"#,
        r#"[{"key":"k","value":{"a":1.0,"b":[1,2]},"headers":{"x":"1","y":"2"}},{"value":1}]"#,
    ] {
        post(other).await.refused(Code::SequenceReused);
    }
}

#[tokio::test]
async fn ids_are_data_while_no_window_remembers_them() {
    let server = Server::start().await;
    let off = json!({"partition_count": 1, "settings": {"dedup_window_ms": 0}});
    server.put("/v1/topics/orders").json(off).await.created();
    let body = json!({"records": [{"id": "a", "value": 1}, {"id": "a", "value": 2}]});
    for base in [0, 2] {
        assert_eq!(server.post(ONE).json(&body).await.ok()["base_offset"], base);
    }
    let read = server.get(ONE).await.ok();
    assert!(read["records"].as_array().unwrap().iter().all(|record| record["id"] == "a"));
    let post = |id: String| server.post(ONE).json(json!({"records": [{"id": id, "value": 1}]}));
    post("x".repeat(1_024)).await.ok();
    post("x".repeat(1_025)).await.invalid(&["/records/0/id"]);
    post(String::new()).await.invalid(&["/records/0/id"]);
}
