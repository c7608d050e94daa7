//! What readers see of a log that loses its beginning.

use std::{future::IntoFuture, time::Duration};

use super::*;

async fn joined(server: &Server, group: &str, reset: &str) -> Value {
    let body = json!({"topics": ["orders"], "auto_offset_reset": reset});
    server.post(&format!("/v1/groups/{group}/members")).json(body).await.created()
}

async fn fetch(
    server: &Server,
    group: &str,
    member: &Value,
    query: &str,
) -> crate::support::http::Answer {
    let member = member["member_id"].as_str().unwrap();
    server.get(&format!("/v1/groups/{group}/members/{member}/records?{query}")).await
}

fn places(page: &Value) -> Vec<i64> {
    let records = page["records"].as_array().unwrap().iter();
    records.map(|record| record["offset"].as_i64().unwrap()).collect()
}

/// Ten of twenty records have gone.
async fn lose_ten(server: &Server) {
    age(server, 0, 10, 8 * DAY_MS).await;
    sweep(server).await;
    assert_eq!(seen(server, 0).await[0], 10);
}

#[tokio::test]
async fn below_the_start_is_out_of_range_with_both_ends_wherever_it_was_cached() {
    let server = orders(1).await;
    let replica = replica_of(&server).await;
    append(&server, 0, 4, 5).await;
    // both have all of it in their pages, and are in the middle of them
    let topic = "/v1/topics/orders/records";
    let mut cursors = Vec::new();
    for reader in [&server, &replica] {
        assert_eq!(places(&reader.get(&records(0)).await.ok()), Vec::from_iter(0..20));
        let page = reader.get(&format!("{topic}?limit=7")).await.ok();
        assert_eq!(places(&page), Vec::from_iter(0..7));
        cursors.push(page["cursor"].as_str().unwrap().to_owned());
    }
    lose_ten(&server).await;
    for (reader, cursor) in [&server, &replica].into_iter().zip(&cursors) {
        for query in ["offset=7", "offset=9", "offset=0&wait_ms=60000", "offset=9&limit=1"] {
            let answer = reader.get(&format!("{}?{query}", records(0))).await;
            let problem = answer.refused(Code::OffsetOutOfRange);
            let ends = (&problem["log_start_offset"], &problem["high_watermark"]);
            assert_eq!(ends, (&json!(10), &json!(20)), "{query}");
        }
        let problem = reader.get(&format!("{topic}?cursor={cursor}&wait_ms=60000")).await;
        let problem = problem.refused(Code::OffsetOutOfRange);
        let facts = ["partition", "log_start_offset", "high_watermark"];
        assert_eq!(facts.map(|name| problem[name].clone()), [json!(0), json!(10), json!(20)]);
        for query in ["", "offset=10", "offset=earliest", "timestamp=2020-01-01T00:00:00Z"] {
            let page = reader.get(&format!("{}?{query}", records(0))).await.ok();
            assert_eq!(places(&page), Vec::from_iter(10..20), "{query}");
            assert_eq!(page["log_start_offset"], 10);
        }
        assert_eq!(places(&reader.get(topic).await.ok()), Vec::from_iter(10..20));
    }
}

#[tokio::test]
async fn a_group_that_was_overtaken_begins_as_it_says() {
    let server = orders(1).await;
    append(&server, 0, 4, 5).await;
    let table =
        [("earliest", Some(Vec::from_iter(10..20))), ("latest", Some(Vec::new())), ("error", None)];
    let mut members = Vec::new();
    for (reset, _) in &table {
        let member = joined(&server, reset, reset).await;
        let offsets = json!([{"topic": "orders", "partition": 0, "offset": 5}]);
        let body = json!({"member_id": member["member_id"], "generation": member["generation"],
            "offsets": offsets});
        server.post(&format!("/v1/groups/{reset}/offsets")).json(body).await.ok();
        let page = fetch(&server, reset, &member, "limit=2").await.ok();
        assert_eq!(places(&page), [5, 6], "{reset}");
        members.push((member, page["cursor"].as_str().unwrap().to_owned()));
    }
    lose_ten(&server).await;
    for ((reset, want), (member, cursor)) in table.iter().zip(&members) {
        for query in [String::new(), format!("cursor={cursor}")] {
            let answer = fetch(&server, reset, member, &query).await;
            match want {
                Some(want) => assert_eq!(places(&answer.ok()), *want, "{reset} {query}"),
                None => {
                    let problem = answer.refused(Code::OffsetOutOfRange);
                    let ends = (&problem["log_start_offset"], &problem["high_watermark"]);
                    assert_eq!(ends, (&json!(10), &json!(20)));
                }
            }
        }
    }
    // how far it is behind counts what there is
    let group = server.get("/v1/groups/earliest").await.ok();
    assert_eq!(group["partitions"][0]["lag"], 10);
}

/// Who waits at the end of a log that loses all it has gets what comes next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_does_not_notice() {
    let server = orders(1).await;
    append(&server, 0, 4, 5).await;
    let page = server.get("/v1/topics/orders/records").await.ok();
    let cursor = page["cursor"].as_str().unwrap();
    let waiting = [
        format!("{}?offset=20&wait_ms=60000", records(0)),
        format!("/v1/topics/orders/records?cursor={cursor}&wait_ms=60000"),
    ];
    let waiting = waiting.map(|path| tokio::spawn(server.get(&path).into_future()));
    crate::support::served::until("both to wait", async || {
        (server.broker.waiting_reads() == 2).then_some(())
    })
    .await;
    age(&server, 0, 20, 8 * DAY_MS).await;
    sweep(&server).await;
    assert_eq!(seen(&server, 0).await, [20, 20, 0, 0]);
    append(&server, 0, 1, 2).await;
    for read in waiting {
        let answer = tokio::time::timeout(Duration::from_secs(60), read).await.unwrap().unwrap();
        assert_eq!(places(&answer.ok()), [20, 21]);
    }
}
