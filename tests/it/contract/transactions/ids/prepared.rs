//! A prepared transaction holds its ids until it has ended.

use oncelog::model::Code;
use serde_json::json;

use super::{
    committed, count, end, is_held, is_known, known, named, number, plain, read, see, server,
    staging, to, values,
};

#[tokio::test]
async fn ids_of_a_prepared_transaction_are_nobody_elses() {
    let server = server().await;
    let id = staging(&server, &[to("t", &[known("a", 1), known("b", 2)])]).await;
    let (late, later) = (
        staging(&server, &[to("t", &[known("b", 2), known("z", 1)])]).await,
        staging(&server, &[to("t", &[known("b", 3)])]).await,
    );
    for _ in 0..2 {
        assert_eq!(end(&server, id, "prepare").await.ok()["state"], "prepared");
    }
    is_held(&plain(&server, &[known("c", 3), known("a", 1)]).await, id);
    let other = plain(&server, &[known("a", 2)]).await;
    assert_eq!(named(&other, Code::RecordIdReused), ["/records/0"]);
    for verb in ["commit", "prepare"] {
        is_held(&end(&server, late, verb).await, id);
        let refused = end(&server, later, verb).await;
        assert_eq!(named(&refused, Code::RecordIdReused), ["/appends/0/records/0"]);
    }
    // others are stored, nobody is delayed
    plain(&server, &[known("c", 3)]).await.ok();
    assert_eq!(values(&server, "t", 0).await, [json!(3)]);
    committed(&server, id, &[(Some(1), 2)]).await;
    is_known(&plain(&server, &[known("b", 2)]).await, 2);
    assert_eq!(count(&server, "held_ids").await, 0);
    // the one that came late leaves out what is stored now
    committed(&server, late, &[(Some(3), 1)]).await;
    assert_eq!(end(&server, later, "commit").await.status, 422);
}

#[tokio::test]
async fn ids_of_a_prepared_transaction_are_free_after_its_abort() {
    let server = server().await;
    for operator in [false, true] {
        let name = format!("a-{operator}");
        let id = staging(&server, &[to("t", &[known(&name, 1)])]).await;
        let other = staging(&server, &[to("t", &[known(&name, 1)])]).await;
        end(&server, id, "prepare").await.ok();
        is_held(&end(&server, other, "commit").await, id);
        let verb = if operator { "abort?as=operator" } else { "abort" };
        end(&server, id, verb).await.ok();
        assert_eq!(count(&server, "held_ids").await, 0);
        committed(&server, other, &[(Some(i64::from(operator)), 1)]).await;
    }
}

#[tokio::test]
async fn what_was_stored_elsewhere_leaves_a_transaction_when_it_is_prepared() {
    let server = server().await;
    let appends = [
        to("t", &[known("a", 1), known("b", 2), json!({"value": 3}), known("b", 2)]),
        to("t", &[known("a", 1)]),
        to("u", &[known("d", 4)]),
    ];
    let id = staging(&server, &appends).await;
    plain(&server, &[known("a", 1)]).await.ok();
    end(&server, id, "prepare").await.ok();
    let prepared = see(&server, id).await;
    assert_eq!((&prepared["append_count"], &prepared["appends"]), (&json!(3), &json!(null)));
    assert_eq!(count(&server, "held_ids").await, 2);
    plain(&server, &[json!({"value": 9})]).await.ok();
    committed(&server, id, &[(Some(2), 2), (None, 0), (Some(0), 1)]).await;
    assert_eq!(values(&server, "t", 0).await, [1, 9, 2, 3].map(|n| json!(n)));
    is_known(&plain(&server, &[known("b", 2)]).await, 2);
    assert_eq!(count(&server, "staged_batches").await, 2);
}

/// A prepared transaction has no timeout: windows and rings go on meanwhile, and what holds when it
/// is committed counts.
#[tokio::test]
async fn a_prepared_transaction_is_committed_by_the_windows_and_rings_of_then() {
    let server = server().await;
    let set = async |window: &str| {
        let body = format!(r#"{{"settings": {{"dedup_window_ms": {window}}}}}"#);
        server.patch("/v1/topics/t").json(body).await.ok();
    };
    let id = staging(&server, &[to("t", &[known("a", 1)])]).await;
    end(&server, id, "prepare").await.ok();
    set("600000").await;
    server.sql("update oncelog.key_rings set slot = slot + 2 where ring < 6").await;
    committed(&server, id, &[(Some(0), 1)]).await;
    assert_eq!(number(&server, "select slot::bigint from oncelog.dedup_keys").await, 2);
    let left = "select (extract(epoch from expires_at - first_seen_at) * 1000)::bigint \
        from oncelog.dedup_keys";
    assert_eq!(number(&server, left).await, 600_000);
    is_known(&plain(&server, &[known("a", 1)]).await, 0);
    // also where there is no window any more
    let id = staging(&server, &[to("t", &[known("b", 2)])]).await;
    end(&server, id, "prepare").await.ok();
    set("0").await;
    committed(&server, id, &[(Some(1), 1)]).await;
    assert_eq!((count(&server, "held_ids").await, count(&server, "dedup_keys").await), (0, 1));
    assert_eq!(plain(&server, &[known("b", 3)]).await.ok()["record_count"], 1);
}

/// The id was known when the transaction was prepared; that its window is over later changes
/// nothing.
#[tokio::test]
async fn what_a_prepare_has_left_out_stays_out() {
    let server = server().await;
    plain(&server, &[known("a", 1)]).await.ok();
    let id = staging(&server, &[to("t", &[known("a", 1)])]).await;
    end(&server, id, "prepare").await.ok();
    super::age(&server, "25 hours").await;
    assert_eq!(plain(&server, &[known("a", 2)]).await.ok()["duplicate"], false);
    committed(&server, id, &[(None, 0)]).await;
    assert_eq!(read(&server, "t", 0).await.len(), 2);
}

#[tokio::test]
async fn a_topic_with_held_ids_cannot_be_deleted() {
    let server = server().await;
    plain(&server, &[known("a", 1)]).await.ok();
    let id = staging(&server, &[to("t", &[known("a", 1), known("b", 1)])]).await;
    end(&server, id, "prepare").await.ok();
    server.delete("/v1/topics/t").await.refused(Code::TopicInUse);
    committed(&server, id, &[(Some(1), 1)]).await;
    server.delete("/v1/topics/t").await.no_content();
    // another life of the topic knows nothing
    server.topic("t", 2).await;
    assert_eq!(plain(&server, &[known("b", 2)]).await.ok()["duplicate"], false);
    // under an ongoing one: it can only be aborted
    let id = staging(&server, &[to("t", &[known("c", 1)])]).await;
    server.delete("/v1/topics/t").await.no_content();
    end(&server, id, "commit").await.refused(Code::TopicNotFound);
    end(&server, id, "prepare").await.refused(Code::TopicNotFound);
    end(&server, id, "abort").await.ok();
}
