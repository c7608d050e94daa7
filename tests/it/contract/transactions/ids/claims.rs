//! What a commit claims, what it leaves out, and when it is refused.

use oncelog::model::Code;
use serde_json::{Value, json};

use super::{
    age, begin, begun, call, committed, count, end, is_known, known, named, places, plain, read,
    see, server, staging, to, values,
};

#[tokio::test]
async fn a_commit_reserves_its_ids_and_later_senders_learn_where_their_records_lie() {
    let server = server().await;
    plain(&server, &[json!({"value": "before"})]).await.ok();
    let records = [json!({"value": 0}), known("a", 1), known("b", 2)];
    let id = staging(&server, &[to("t", &records), to("u", &[known("a", 9)])]).await;
    // nothing is claimed yet
    assert_eq!(count(&server, "dedup_keys").await, 0);
    committed(&server, id, &[(Some(1), 3), (Some(0), 1)]).await;
    is_known(&plain(&server, &[known("a", 1)]).await, 2);
    is_known(&plain(&server, &[known("b", 2)]).await, 3);
    let other = plain(&server, &[known("c", 3), known("b", 3)]).await;
    assert_eq!(named(&other, Code::RecordIdReused), ["/records/1"]);
    let told = plain(&server, &[known("a", 1)]).await.ok();
    assert_eq!(told["offsets"][0]["first_seen_at"], see(&server, id).await["ended_at"]);
    assert_eq!(values(&server, "t", 0).await, ["before".into(), json!(0), json!(1), json!(2)]);
    // what comes after the window is new
    age(&server, "25 hours").await;
    assert_eq!(plain(&server, &[known("a", 1)]).await.ok()["duplicate"], false);
}

#[tokio::test]
async fn what_is_aborted_leaves_its_ids_free() {
    let server = server().await;
    for how in ["abort", "prepare and abort", "timeout"] {
        let id = staging(&server, &[to("t", &[known(how, 1)])]).await;
        match how {
            "timeout" => {
                let late = "update oncelog.transactions set expires_at = now() - interval '1 s' \
                    where state = 'ongoing'";
                server.sql(late).await;
                server.broker.sweep().await.unwrap();
            }
            _ => {
                if how == "prepare and abort" {
                    end(&server, id, "prepare").await.ok();
                }
                end(&server, id, "abort").await.ok();
            }
        }
        assert_eq!(count(&server, "held_ids").await, 0, "{how}");
        let answer = plain(&server, &[known(how, 2)]).await.ok();
        assert_eq!(answer["duplicate"], false, "{how}");
    }
}

#[tokio::test]
async fn what_was_stored_elsewhere_since_is_left_out_of_the_commit() {
    let server = server().await;
    let appends = [
        to("t", &[known("a", 1), json!({"value": "own"}), known("b", 2), known("c", 3)]),
        to("t", &[known("d", 4)]),
        json!({"topic": "t", "partition": 1, "records": [known("e", 5)]}),
        to("u", &[known("a", 1)]),
    ];
    let id = staging(&server, &appends).await;
    let meanwhile: Vec<Value> =
        [("a", 1), ("c", 3), ("d", 4), ("e", 5)].map(|(id, value)| known(id, value)).to_vec();
    plain(&server, &meanwhile).await.ok();
    let nothing = (None, 0);
    committed(&server, id, &[(Some(4), 2), nothing, nothing, (Some(0), 1)]).await;
    assert_eq!(see(&server, id).await["append_count"], 4);
    let mut want: Vec<Value> = [1, 3, 4, 5].map(|n| json!(n)).to_vec();
    want.extend([json!("own"), json!(2)]);
    assert_eq!(values(&server, "t", 0).await, want);
    assert!(read(&server, "t", 1).await.is_empty());
    // ids lie where their records were stored first
    is_known(&plain(&server, &[known("a", 1)]).await, 0);
    is_known(&plain(&server, &[known("b", 2)]).await, 5);
    // of what nothing is left, nothing is kept
    assert_eq!(count(&server, "staged_batches").await, 2);
    // what comes next follows without a hole
    plain(&server, &[json!({"value": 6})]).await.ok();
    assert_eq!(read(&server, "t", 0).await.len(), 7);
}

#[tokio::test]
async fn a_transaction_of_which_nothing_is_left_is_committed() {
    let server = server().await;
    plain(&server, &[known("a", 1), known("b", 2)]).await.ok();
    let id = staging(&server, &[to("t", &[known("b", 2)]), to("t", &[known("a", 1)])]).await;
    // it counts what was sent
    let short = call(&server, id, "commit", &json!({"expected_appends": 1})).await;
    short.refused(Code::AppendsMissing);
    let done = call(&server, id, "commit", &json!({"expected_appends": 2})).await.ok();
    assert_eq!(places(&done), [(None, 0), (None, 0)]);
    assert_eq!(read(&server, "t", 0).await.len(), 2);
    assert_eq!(count(&server, "staged_batches").await, 0);
}

#[tokio::test]
async fn records_spread_by_key_are_left_out_where_they_are() {
    let server = server().await;
    let record = |n: i64| json!({"id": format!("id-{n}"), "key": format!("key-{n}"), "value": n});
    let records: Vec<Value> = (0..20).map(record).collect();
    let spread = |records: &[Value]| json!({"topic": "t", "records": records});
    let known: Vec<Value> = records.iter().step_by(3).cloned().collect();
    let first = server.post("/v1/topics/t/records").json(json!({"records": known})).await.ok();
    let id = staging(&server, &[spread(&records)]).await;
    let done = end(&server, id, "commit").await.ok();
    let stored: i64 = places(&done).iter().map(|(_, count)| count).sum();
    assert_eq!(stored, 13);
    let mut found = values(&server, "t", 0).await;
    found.extend(values(&server, "t", 1).await);
    found.sort_by_key(Value::as_i64);
    assert_eq!(found, (0..20).map(|n| json!(n)).collect::<Vec<_>>());
    // each of them is told where it lies
    let again = server.post("/v1/topics/t/records").json(json!({"records": records})).await.ok();
    assert_eq!(again["duplicate"], true);
    for (n, place) in again["offsets"].as_array().unwrap().iter().enumerate() {
        let partition = place["partition"].as_i64().unwrap() as i32;
        let lies = read(&server, "t", partition).await;
        let offset = place["offset"].as_i64().unwrap() as usize;
        assert_eq!(lies[offset].0, json!(n));
        if n % 3 == 0 {
            assert_eq!(place["offset"], first["offsets"][n / 3]["offset"]);
        }
    }
}

#[tokio::test]
async fn an_id_of_another_record_leaves_a_transaction_only_to_be_aborted() {
    let server = server().await;
    plain(&server, &[known("a", 1)]).await.ok();
    let body = json!({"appends": [to("t", &[known("x", 1)]), to("u", &[known("a", 2)])]});
    let id = begun(&server, body).await;
    let more = json!({"appends": [to("t", &[json!({"value": 0}), known("b", 1), known("a", 2)])]});
    call(&server, id, "records", &more).await.ok();
    for verb in ["commit", "prepare", "commit"] {
        let refused = end(&server, id, verb).await;
        // counted over the whole transaction
        assert_eq!(named(&refused, Code::RecordIdReused), ["/appends/2/records/2"], "{verb}");
        assert_eq!(see(&server, id).await["state"], "ongoing");
    }
    assert_eq!(values(&server, "t", 0).await, [json!(1)], "nothing is stored");
    assert_eq!(count(&server, "dedup_keys").await, 1);
    assert_eq!(count(&server, "held_ids").await, 0);
    end(&server, id, "abort").await.ok();
    // what it had is free
    assert_eq!(plain(&server, &[known("x", 7)]).await.ok()["duplicate"], false);
}

#[tokio::test]
async fn a_refused_commit_leaves_its_own_work_out() {
    let server = server().await;
    plain(&server, &[known("a", 1)]).await.ok();
    let id = staging(&server, &[to("t", &[known("b", 1)])]).await;
    let with_last = json!({"appends": [to("t", &[known("a", 2)])]});
    let refused = call(&server, id, "commit", &with_last).await;
    assert_eq!(named(&refused, Code::RecordIdReused), ["/appends/1/records/0"]);
    let with_last = json!({"appends": [to("t", &[known("a", 1), known("b", 1), known("c", 1)])]});
    let done = call(&server, id, "commit", &with_last).await.ok();
    assert_eq!(places(&done), [(Some(1), 1), (Some(2), 1)]);
}

#[tokio::test]
async fn an_id_comes_once_in_a_transaction_and_a_topic() {
    let server = server().await;
    let appends = [
        to("t", &[known("a", 1), known("a", 1), known("b", 2)]),
        // another partition is the same topic, another topic is not
        json!({"topic": "t", "partition": 1, "records": [known("c", 3), known("b", 2)]}),
        to("u", &[known("a", 5)]),
        to("t", &[known("c", 3)]),
    ];
    let id = staging(&server, &appends).await;
    committed(&server, id, &[(Some(0), 2), (Some(0), 1), (Some(0), 1), (None, 0)]).await;
    assert_eq!(values(&server, "t", 0).await, [json!(1), json!(2)]);
    assert_eq!(values(&server, "t", 1).await, [json!(3)]);
    // with another payload it is another record
    let appends = [to("u", &[known("d", 1)]), to("u", &[known("e", 1), known("d", 2)])];
    let id = staging(&server, &appends).await;
    let refused = end(&server, id, "commit").await;
    assert_eq!(named(&refused, Code::RecordIdReused), ["/appends/1/records/1"]);
}

#[tokio::test]
async fn the_settings_of_a_topic_say_how_records_are_recognised() {
    let server = server().await;
    let set = async |settings: Value| {
        server.patch("/v1/topics/t").json(json!({"settings": settings})).await.ok();
    };
    // by content: given ids are data
    set(json!({"dedup": "content"})).await;
    plain(&server, &[json!({"key": "k", "value": 1})]).await.ok();
    let id = staging(&server, &[to("t", &[known("a", 1), known("a", 2)])]).await;
    committed(&server, id, &[(Some(1), 1)]).await;
    let again = json!({"key": "k", "value": 2, "headers": {"h": "other"}});
    is_known(&plain(&server, &[again]).await, 1);
    // without a window: when it is staged, or when it is claimed
    set(json!({"dedup": "id", "dedup_window_ms": 0})).await;
    let id = staging(&server, &[to("t", &[known("b", 3), known("b", 4)])]).await;
    committed(&server, id, &[(Some(2), 2)]).await;
    set(json!({"dedup_window_ms": "default"})).await;
    let id = staging(&server, &[to("t", &[known("c", 5), known("c", 6)])]).await;
    set(json!({"dedup_window_ms": 0})).await;
    committed(&server, id, &[(Some(4), 2)]).await;
    set(json!({"dedup_window_ms": null})).await;
    let id = staging(&server, &[to("t", &[known("c", 7)])]).await;
    committed(&server, id, &[(Some(6), 1)]).await;
    // forever
    age(&server, "90 years").await;
    is_known(&plain(&server, &[known("c", 7)]).await, 6);
}

/// The window that counts is over or not when the ids are claimed.
#[tokio::test]
async fn a_window_that_is_over_at_the_commit_leaves_the_id_free() {
    let server = server().await;
    plain(&server, &[known("a", 1)]).await.ok();
    let id = staging(&server, &[to("t", &[known("a", 2)])]).await;
    assert_eq!(end(&server, id, "commit").await.status, 422);
    age(&server, "25 hours").await;
    committed(&server, id, &[(Some(1), 1)]).await;
    is_known(&plain(&server, &[known("a", 2)]).await, 1);
}

/// Its rows are shown as they were sent, until they are committed.
#[tokio::test]
async fn staged_records_are_shown_as_they_are() {
    let server = server().await;
    plain(&server, &[known("a", 1)]).await.ok();
    let id = staging(&server, &[to("t", &[known("a", 1)]), to("t", &[known("b", 2)])]).await;
    let shown = async || {
        let path = "/v1/topics/t/partitions/0/records?isolation=read_uncommitted&offset=1";
        let page = server.get(path).await.ok();
        let of = |transaction: &Value| transaction["records"].as_array().unwrap().clone();
        let records: Vec<Value> = page["staged"].as_array().unwrap().iter().flat_map(of).collect();
        records.iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(shown().await, ["a", "b"]);
    end(&server, id, "prepare").await.ok();
    assert_eq!(shown().await, ["b"], "what it will not store has left it");
    committed(&server, id, &[(None, 0), (Some(1), 1)]).await;
    assert!(shown().await.is_empty());
}

/// Numbered calls, and calls that come with ids or without, are staged in one way.
#[tokio::test]
async fn calls_with_ids_are_numbered_and_repeated_as_others() {
    let server = server().await;
    let id = begun(&server, json!({})).await;
    let body = |sequence: i64, record: Value| {
        let appends = [to("t", &[record])];
        json!({"sequence": sequence, "appends": appends})
    };
    for _ in 0..2 {
        call(&server, id, "records", &body(0, known("a", 1))).await.ok();
        call(&server, id, "records", &body(1, json!({"value": 2}))).await.ok();
    }
    let reused = call(&server, id, "records", &body(0, known("a", 2))).await;
    reused.refused(Code::SequenceReused);
    committed(&server, id, &[(Some(0), 1), (Some(1), 1)]).await;
    // without ids nothing is claimed
    let id = staging(&server, &[to("t", &[json!({"value": 3})])]).await;
    committed(&server, id, &[(Some(2), 1)]).await;
    assert_eq!(count(&server, "dedup_keys").await, 1);
    // the same in one request
    let whole = json!({"commit": true, "appends": [to("t", &[known("a", 1)])]});
    assert_eq!(places(&begin(&server, &whole).await.json()), [(None, 0)]);
}
