//! A key stands for one payload.

use super::*;

/// The body with another value of one field.
fn with(body: &Value, pointer: &str, value: Value) -> Value {
    let mut body = body.clone();
    match body.pointer_mut(pointer) {
        Some(field) => *field = value,
        None => {
            let (object, name) = pointer.rsplit_once('/').unwrap();
            body.pointer_mut(object).unwrap()[name] = value;
        }
    }
    body
}

#[tokio::test]
async fn another_payload_under_the_same_key_is_refused() {
    let server = server().await;
    server.topic("carts", 1).await;
    let [(_, open), (_, join), (_, commit)] = calls();
    let id = json!("019aa5b6-5c00-7000-8000-000000000001");
    /// A path, the body that is sent to it, and its fields with other values.
    type Row<'a> = (&'a str, &'a Value, &'a [(&'a str, Value)]);
    let table: [Row<'_>; 3] = [
        (
            OPEN,
            &open,
            &[
                ("/transactional_id", json!("q")),
                ("/transactional_id", json!(null)),
                ("/open_id", id),
                ("/transaction_timeout_ms", json!(7)),
                ("/sequencing", json!("monotonic")),
                ("/sequences", json!("reset")),
            ],
        ),
        (
            JOIN,
            &join,
            &[
                ("/topics", json!(["carts"])),
                ("/topics/1", json!("carts")),
                ("/topic_pattern", json!("^c")),
                ("/instance_id", json!("pod-1")),
                ("/session_timeout_ms", json!(7_000)),
                ("/auto_offset_reset", json!("latest")),
            ],
        ),
        (
            COMMIT,
            &commit,
            &[
                ("/offsets/0/topic", json!("carts")),
                ("/offsets/0/partition", json!(1)),
                ("/offsets/0/offset", json!(1)),
                ("/offsets/0/metadata", json!("n")),
                ("/offsets/0/metadata", json!(null)),
                ("/offsets/0/expected_offset", json!(null)),
                ("/offsets/0/expected_offset", json!(0)),
            ],
        ),
    ];
    for (path, body, others) in table {
        let first = server.keyed(path, "k", body).await;
        let done = server.number(DONE).await;
        for (pointer, value) in others {
            // an array grows by a whole value
            let other = match *pointer {
                "/topics/1" => json!({"topics": ["orders", value]}),
                pointer => with(body, pointer, value.clone()),
            };
            let refused = server.keyed(path, "k", &other).await;
            refused.refused(Code::IdempotencyKeyReused);
        }
        assert_eq!(server.number(DONE).await, done);
        is_repeat(&server.keyed(path, "k", body).await, &first);
    }
    // two fields that come together only
    let conditional = json!({"producer_id": 1, "epoch": 0});
    server.keyed(OPEN, "k", &conditional).await.refused(Code::IdempotencyKeyReused);
    let mut by_member = commit.clone();
    (by_member["member_id"], by_member["generation"]) = (json!("m"), json!(1));
    server.keyed(COMMIT, "k", &by_member).await.refused(Code::IdempotencyKeyReused);
    let by_cursor = json!({"member_id": "m", "generation": 1, "cursor": "c"});
    server.keyed(COMMIT, "k", &by_cursor).await.refused(Code::IdempotencyKeyReused);
}

#[tokio::test]
async fn a_payload_is_judged_for_its_shape_first() {
    let server = server().await;
    for (path, body) in calls() {
        server.keyed(path, "k", &body).await;
        let misspelt = with(&body, "/colour", json!("green"));
        server.keyed(path, "k", &misspelt).await.invalid(&["/colour"]);
    }
}
