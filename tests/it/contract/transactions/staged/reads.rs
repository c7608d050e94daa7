//! Reads of rows that point, and of what is not committed yet.

use std::future::IntoFuture;

use oncelog::{
    model::{Code, LogId, TenantId},
    store,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{a_mixed_log, id, staged, world};
use crate::{
    contract::reads::{ends, offsets},
    support::{self, served::until},
};

#[tokio::test]
async fn committed_rows_that_point_are_read_as_any_other() {
    let world = a_mixed_log().await;
    let whole = world.read("").await;
    let page = whole.ok();
    assert_eq!((offsets(&page), ends(&page)), (Vec::from_iter(0..9), (9, 0, 9)));
    let records = page["records"].as_array().unwrap();
    for (offset, record) in records.iter().enumerate() {
        let transaction = match offset {
            2..=6 => json!("01900000-0000-7000-8000-0000000000ab"),
            7 => json!("01900000-0000-7000-8000-0000000000cd"),
            _ => Value::Null,
        };
        assert_eq!(record["transaction_id"], transaction, "{offset}");
        let value = if offset == 4 { &record["value"]["total"] } else { &record["value"] };
        assert_eq!(value.as_f64(), Some(if offset == 4 { 4.5 } else { offset as f64 }));
    }
    // the client's own bytes
    assert!(whole.text().contains(r#""value":{"total": 4.50}}"#), "{}", whole.text());
    let path = "/v1/topics/t/partitions/0/records";
    let ndjson = world.server.get(path).header("accept", "application/x-ndjson").await;
    let lines: Vec<&str> = ndjson.text().split_inclusive('\n').collect();
    let same = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert!(same.eq(records.iter().cloned()));

    // from everywhere, in pages of every size
    for from in 0..9 {
        for count in 1..=9 - from {
            let page = world.read(&format!("offset={from}&limit={count}")).await.ok();
            assert_eq!(page["records"].as_array().unwrap()[..], records[from..from + count]);
            let bytes: usize = lines[from..from + count].iter().map(|line| line.len()).sum();
            let page = world.read(&format!("offset={from}&max_bytes={bytes}")).await.ok();
            assert_eq!(page["records"].as_array().unwrap()[..], records[from..from + count]);
        }
    }
    let instant = records[2]["appended_at"].as_str().unwrap();
    let page = world.read(&format!("timestamp={instant}")).await.ok();
    let first = records.iter().position(|record| record["appended_at"] == instant).unwrap();
    assert_eq!(offsets(&page)[0], first as i64);
    let elsewhere = world.server.get("/v1/topics/t/partitions/1/records").await.ok();
    assert_eq!(elsewhere["records"][0]["value"], "elsewhere");
}

/// A page is bounded by the bytes of the lines, wherever they lie.
#[tokio::test]
async fn pages_are_bounded_by_what_rows_point_to() {
    let mut world = world().await;
    world.topic("t", 1).await;
    let log = world.log("t", 0).await;
    let long = format!("\"{}\"", "x".repeat(99_987));
    world.begin(id(1), "1 hour").await;
    for ordinal in 0..8 {
        world.stage(id(1), ordinal, log, &[&long]).await;
    }
    world.commit(id(1)).await;
    world.append("t", &[json!("last")]).await;
    let tenant = TenantId(world.tenant);
    let seen =
        store::catalog::logs::watermarks(&mut world.hand, tenant, &[LogId(log)]).await.unwrap();
    let server = seen[0].3;
    for (from, max_bytes, want) in [
        (0, 100_000, 1),
        (0, 100_001, 2),
        (0, 500_000, 5),
        (3, 500_000, 5),
        (4, 500_000, 5),
        (0, 1 << 30, 9),
    ] {
        let rows = store::read::rows(
            &mut world.hand,
            tenant,
            LogId(log),
            (from, 9),
            (max_bytes, 9),
            server,
        );
        let rows = rows.await.unwrap();
        assert_eq!(rows.len(), want, "{from} {max_bytes}");
        assert!(rows.iter().zip(from..).all(|(row, offset)| row.base_offset == offset));
    }
    let page = world.read("max_bytes=16777216").await.ok();
    assert_eq!(offsets(&page), Vec::from_iter(0..9));
}

/// Nothing is shown under the offset of something else.
#[tokio::test]
async fn a_row_that_points_to_nothing_is_an_error_and_not_skipped() {
    let mut world = a_mixed_log().await;
    world.sql("delete from oncelog.staged_batches where ordinal = 2").await;
    for offset in 0..=5 {
        world.read(&format!("offset={offset}")).await.refused(Code::Internal);
    }
    assert_eq!(offsets(&world.read("offset=6").await.ok()), [6, 7, 8]);
}

#[tokio::test]
async fn people_see_committed_rows_in_the_view() {
    let mut world = a_mixed_log().await;
    world.begin(id(1), "1 hour").await;
    let log = world.log("t", 0).await;
    world.stage(id(1), 0, log, &["\"staged\""]).await;
    let seen: Vec<(i64, Option<Uuid>, Value)> = sqlx::query_as(
        "select \"offset\", transaction_id, record::jsonb -> 'value' from oncelog.records \
        where tenant = 'default' and topic = 't' and partition = 0 order by \"offset\"",
    )
    .fetch_all(&mut world.hand)
    .await
    .unwrap();
    let page = world.read("").await.ok();
    let records = page["records"].as_array().unwrap();
    assert_eq!(seen.len(), records.len());
    for ((offset, transaction, value), record) in seen.iter().zip(records) {
        let transaction = transaction.map(|id| id.to_string());
        assert_eq!(*offset, record["offset"]);
        assert_eq!(
            (json!(transaction), value),
            (record["transaction_id"].clone(), &record["value"])
        );
    }
    world.trim(4).await;
    assert_eq!(
        world.number("select min(\"offset\") from oncelog.records where partition = 0").await,
        4
    );
}

#[tokio::test]
async fn what_is_staged_is_shown_to_who_asks_in_order_and_without_offsets() {
    let mut world = world().await;
    world.topic("t", 2).await;
    world.topic("u", 1).await;
    let log = world.log("t", 0).await;
    assert_eq!(world.staged("").await, []);
    // begun in another order than that of their ids
    for (n, left) in [(4, "1 hour"), (2, "1 hour"), (3, "-1 millisecond"), (1, "1 hour")] {
        world.begin(id(n), left).await;
    }
    world.stage(id(1), 0, log, &["10"]).await;
    for elsewhere in [world.log("t", 1).await, world.log("u", 0).await] {
        world.stage(id(1), elsewhere, elsewhere, &["\"elsewhere\""]).await;
    }
    world.stage(id(1), 7, log, &["11", "12"]).await;
    world.stage(id(2), 0, log, &["20"]).await;
    world.stage(id(3), 0, log, &["\"too late\""]).await;
    world.stage(id(4), 1, log, &["41"]).await;
    world.stage(id(4), 0, log, &["40"]).await;
    // a prepared one has no deadline
    world.prepare(id(2)).await;
    world.sql("update oncelog.transactions set expires_at = now() where state = 'prepared'").await;
    let of = |n: u128, state: &str, values: &[i64]| {
        (id(n), state.to_owned(), values.iter().map(|value| json!(value)).collect::<Vec<_>>())
    };
    let one = of(1, "ongoing", &[10, 11, 12]);
    let all = [one.clone(), of(2, "prepared", &[20]), of(4, "ongoing", &[40, 41])];
    assert_eq!(world.staged("").await, all);
    // beside the committed ones, and only at the end of the log
    world.append("t", &[json!("a"), json!("b")]).await;
    for (query, at_the_end) in [
        ("offset=0", true),
        ("offset=1", true),
        ("offset=latest", true),
        ("offset=0&limit=1", false),
        ("offset=0&max_bytes=1", false),
        ("offset=1&limit=1", false),
    ] {
        let staged = world.staged(query).await;
        assert_eq!(staged, if at_the_end { &all[..] } else { &[] }, "{query}");
    }
    // ended ones are not staged any more, and committed ones not twice
    world.end(id(4), "aborted").await;
    world.commit(id(2)).await;
    let page = world.read("isolation=read_uncommitted").await.ok();
    assert_eq!(page["records"][2]["value"], 20);
    assert_eq!(staged(&page), [one]);
    // nobody asked
    for query in ["", "isolation=read_committed"] {
        assert_eq!(world.read(query).await.ok().get("staged"), None);
    }
    let path = "/v1/topics/t/partitions/0/records?isolation=read_uncommitted";
    let ndjson = world.server.get(path).header("accept", "application/x-ndjson").await;
    ndjson.invalid(&["?isolation"]);
}

#[tokio::test]
async fn what_is_staged_takes_what_is_left_of_the_limits() {
    let mut world = world().await;
    world.topic("t", 1).await;
    let log = world.log("t", 0).await;
    world.append("t", &[json!("a"), json!("b")]).await;
    for n in [1, 2] {
        world.begin(id(n), "1 hour").await;
        for ordinal in 0..2 {
            let values = [10 * n as i64 + 2 * ordinal, 10 * n as i64 + 2 * ordinal + 1];
            let values = values.map(|value| value.to_string());
            world.stage(id(n), ordinal, log, &values.each_ref().map(String::as_str)).await;
        }
    }
    let all = [10, 11, 12, 13, 20, 21, 22, 23];
    let shown = async |query: String| -> Vec<i64> {
        let staged = world.staged(&query).await.into_iter();
        assert!(staged.clone().all(|(.., values)| !values.is_empty()));
        staged.flat_map(|(.., values)| values).map(|value| value.as_i64().unwrap()).collect()
    };
    let page = world.read("").await.ok();
    let records = page["records"].as_array().unwrap().iter();
    let committed: usize = records.map(|record| record.to_string().len() + 1).sum();
    // `{"value":10}` and what separates it from the next
    let each = 13;
    for count in 0..=8 {
        let limit = 2 + count;
        assert_eq!(shown(format!("limit={limit}")).await, all[..count]);
        let bytes = committed + count * each;
        for max_bytes in [bytes, bytes + each - 1] {
            assert_eq!(shown(format!("max_bytes={max_bytes}")).await, all[..count], "{count}");
        }
        if count > 0 {
            // the first record of an answer always comes
            for query in ["limit", "max_bytes"] {
                let number = if query == "limit" { count } else { count * each };
                let query = format!("offset=latest&{query}={number}");
                assert_eq!(shown(query).await, all[..count]);
            }
        }
    }
    assert_eq!(shown("offset=latest&max_bytes=1".into()).await, all[..1]);
}

#[tokio::test]
async fn what_is_staged_is_the_tenants_alone() {
    let mut world = world().await;
    world.topic("t", 1).await;
    let log = world.log("t", 0).await;
    let name = support::name("rival");
    world.tenant = world.server.broker.tenant(&name).await.unwrap().0;
    world.begin(id(1), "1 hour").await;
    world.stage(id(1), 0, log, &["1"]).await;
    assert_eq!(world.staged("").await, []);
}

/// It ends no wait, and a read that does not ask for it does not even look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_what_is_staged_or_is_woken_by_it() {
    let mut world = world().await;
    world.topic("t", 1).await;
    world.append("t", &[json!("a")]).await;
    let log = world.log("t", 0).await;
    let path = "/v1/topics/t/partitions/0/records?offset=latest&wait_ms=60000";
    let path = format!("{path}&isolation=read_uncommitted");
    let waiting = tokio::spawn(world.server.get(&path).into_future());
    let broker = world.server.broker.clone();
    until("the wait", async || (broker.waiting_reads() == 1).then_some(())).await;
    world.begin(id(1), "1 hour").await;
    world.stage(id(1), 0, log, &["1"]).await;
    assert_eq!(world.staged("offset=latest").await.len(), 1);
    assert_eq!(broker.waiting_reads(), 1);
    // nor is one that begins now done at once
    let second = tokio::spawn(world.server.get(&path).into_future());
    until("the second", async || (broker.waiting_reads() == 2).then_some(())).await;
    world.append("t", &[json!("b")]).await;
    for waiting in [waiting, second] {
        let page = waiting.await.unwrap().ok();
        assert_eq!((page["records"][0]["value"].clone(), staged(&page).len()), (json!("b"), 1));
    }
    // without one, at the end of the wait
    assert_eq!(world.staged("offset=latest&wait_ms=1").await.len(), 1);

    world.sql("begin; lock table oncelog.transactions in access exclusive mode").await;
    for query in ["", "offset=latest", "offset=latest&wait_ms=1"] {
        world.read(query).await.ok();
    }
    let page = world.read("isolation=read_uncommitted&limit=1").await.ok();
    assert_eq!(staged(&page), []);
    world.sql("rollback").await;
}

/// As its own requests bring it about.
#[tokio::test]
async fn a_transaction_is_shown_in_every_state_it_goes_through() {
    let mut world = world().await;
    world.topic("t", 1).await;
    let call = |call: &str, body: Value| {
        let path = format!("/v1/transactions/{}{call}", id(1));
        world.server.post(&path).json(body)
    };
    let append = |value: Value| {
        let records = json!([{"value": value}]);
        json!({"appends": [{"topic": "t", "partition": 0, "records": records}]})
    };
    let of = |state: &str, values: &[i64]| {
        vec![(id(1), state.to_owned(), values.iter().map(|value| json!(value)).collect::<Vec<_>>())]
    };
    let retention = json!({"transaction_retention_ms": 315_360_000_000_i64});
    world.server.patch("/v1/settings").json(retention).await.ok();
    let mut begin = append(json!(1));
    begin["transaction_id"] = json!(id(1));
    world.server.post("/v1/transactions").json(begin).await.created();
    assert_eq!(world.staged("").await, of("ongoing", &[1]));
    call("/records", append(json!(2))).await.ok();
    assert_eq!(world.staged("").await, of("ongoing", &[1, 2]));
    call("/prepare", json!({})).await.ok();
    assert_eq!(world.staged("").await, of("prepared", &[1, 2]));
    let problem = world.server.delete("/v1/topics/t").await.refused(Code::TopicInUse);
    assert_eq!(problem["transaction_id"], id(1).to_string());
    call("/commit", json!({})).await.ok();
    let page = world.read("isolation=read_uncommitted").await.ok();
    assert_eq!((offsets(&page), staged(&page)), (vec![0, 1], vec![]));
    assert!((0..2).all(|n| page["records"][n]["transaction_id"] == id(1).to_string()));
    world.trim(2).await;
    assert_eq!(world.sizes().await, (0, 0, 0));
    world.server.delete("/v1/topics/t").await.no_content();
}
