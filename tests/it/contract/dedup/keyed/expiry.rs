//! How long a key is remembered.

use uuid::Uuid;

use super::*;

const DAY_MS: i64 = 86_400_000;

/// A UUIDv7 of so long ago.
fn aged(ms: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let at = u64::try_from(i64::try_from(now.as_millis()).unwrap() - ms).unwrap();
    let nanos = u32::try_from(at % 1_000).unwrap() * 1_000_000;
    Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, at / 1_000, nanos)).to_string()
}

/// The ring of a window of a day forgets all that it holds, as when it has turned.
async fn forget(server: &Server, horizon: &str) {
    server.sql("truncate oncelog.dedup_keys_6, oncelog.dedup_keys_7, oncelog.dedup_keys_8").await;
    let sql = format!("update oncelog.key_rings set horizon = {horizon} where ring = 2");
    server.sql(sql).await;
}

#[tokio::test]
async fn a_window_of_0_takes_no_key() {
    let server = server().await;
    for (path, body) in calls() {
        server.keyed(path, "k", &body).await;
    }
    server.patch("/v1/settings").json(json!({"dedup_window_ms": 0})).await.ok();
    for (path, body) in calls() {
        let refused = server.keyed(path, "k", &body).await;
        refused.invalid(&["Idempotency-Key"]);
        assert!(refused.text().contains("dedup_window_ms"), "{}", refused.text());
        assert!(server.post(path).json(body).await.status < 300);
    }
}

#[tokio::test]
async fn a_key_is_remembered_for_the_tenants_window() {
    let server = server().await;
    for (window, ring) in [(json!(600_000), 0), (json!(DAY_MS), 2), (json!(null), 6)] {
        server.patch("/v1/settings").json(json!({"dedup_window_ms": window})).await.ok();
        for (path, body) in calls() {
            server.keyed(path, &format!("in {window}"), &body).await;
        }
        let slots = format!("select count(*) from oncelog.dedup_keys where slot / 3 = {ring}");
        assert_eq!(server.number(slots).await, 3);
        let lasts = "select count(*) from oncelog.dedup_keys where expires_at = 'infinity'";
        assert_eq!(server.number(lasts).await, if ring == 6 { 3 } else { 0 });
    }
    // whatever the window is today, each is found where it was laid
    for window in [json!(600_000), json!(DAY_MS), json!(null)] {
        for (path, body) in calls() {
            let again = server.keyed(path, &format!("in {window}"), &body).await;
            assert_eq!(again.json()["duplicate"], true, "{}", again.text());
        }
    }
    assert_eq!(server.number("select key_rings::bigint from oncelog.tenants").await, 0b100_0101);
}

#[tokio::test]
async fn a_key_whose_window_is_over_is_new_again() {
    let server = server().await;
    for (path, body) in calls() {
        let first = server.keyed(path, "k", &body).await;
        server.ages(DAY_MS - 60_000).await;
        is_repeat(&server.keyed(path, "k", &body).await, &first);
        server.ages(60_000).await;
        // with whatever it asks for
        let mut other = body.clone();
        match path {
            COMMIT => other["offsets"][0]["metadata"] = json!("n"),
            OPEN => other["sequences"] = json!("reset"),
            _ => other["session_timeout_ms"] = json!(7_000),
        }
        let fresh = server.keyed(path, "k", &other).await;
        assert!(fresh.status < 300 && fresh.json()["duplicate"] != true, "{}", fresh.text());
        is_repeat(&server.keyed(path, "k", &other).await, &fresh);
    }
}

#[tokio::test]
async fn a_uuid_v7_never_runs_twice() {
    let server = server().await;
    for (path, body) in calls() {
        let key = aged(1_000);
        let first = server.keyed(path, &key, &body).await;
        let done = server.number(DONE).await;
        server.ages(2 * DAY_MS).await;
        // its window is over, but it is still known
        is_repeat(&server.keyed(path, &key, &body).await, &first);
        forget(&server, "now()").await;
        server.keyed(path, &key, &body).await.refused(Code::IdempotencyKeyExpired);
        // used or not: too old to be remembered
        forget(&server, "'epoch'").await;
        let old = server.keyed(path, &aged(DAY_MS + 1_000), &body).await;
        old.refused(Code::IdempotencyKeyExpired);
        assert_eq!(server.number(DONE).await, done);
        for young in [aged(DAY_MS - 60_000), aged(0), aged(-60_000)] {
            let first = server.keyed(path, &young, &body).await;
            is_repeat(&server.keyed(path, &young, &body).await, &first);
        }
    }
}

#[tokio::test]
async fn a_key_ahead_of_its_time_is_remembered_as_much_longer() {
    let server = server().await;
    let key = aged(-DAY_MS);
    let (path, body) = &calls()[0];
    server.keyed(path, &key, body).await.created();
    let sql = "select count(*) from oncelog.dedup_keys where slot / 3 = 3 \
        and expires_at - first_seen_at > interval '47 hours'";
    assert_eq!(server.number(sql).await, 1);
    assert_eq!(server.keyed(path, &key, body).await.created()["duplicate"], true);
}
