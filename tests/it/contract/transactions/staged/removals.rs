//! What is staged goes with the rows that point to it, and with nothing else.

use serde_json::json;
use uuid::Uuid;

use super::{World, a_mixed_log, id, lines, world};
use crate::contract::reads::offsets;

#[tokio::test]
async fn trimming_takes_what_rows_pointed_to() {
    let mut world = a_mixed_log().await;
    world.begin(id(1), "1 hour").await;
    let log = world.log("t", 0).await;
    world.stage(id(1), 0, log, &["\"ongoing\""]).await;
    let (rows, bytes, logs) = world.sizes().await;
    assert_eq!(rows, 5);
    let size = |values: &[&str]| lines(values).len() as i64;
    let (first, second) = (size(&["2"]), size(&["3", "{\"total\": 4.50}", "5"]));
    let plain = size(&["0", "1"]);
    // inside the second row of the transaction: it stays whole
    world.trim(5).await;
    assert_eq!(world.sizes().await, (4, bytes - first, logs - plain - first));
    assert_eq!(offsets(&world.read("").await.ok()), [5, 6, 7, 8]);
    world.trim(6).await;
    assert_eq!(world.sizes().await, (3, bytes - first - second, logs - plain - first - second));
    world.trim(9).await;
    // what lies elsewhere, and what is not committed
    let (elsewhere, ongoing) = (size(&["\"elsewhere\""]), size(&["\"ongoing\""]));
    assert_eq!(world.sizes().await, (2, elsewhere + ongoing, elsewhere));
    assert_eq!(world.staged("").await.len(), 1);
}

/// More than one transaction removes at once.
async fn a_long_log() -> World {
    let mut world = world().await;
    world.topic("t", 1).await;
    let log = world.log("t", 0).await;
    world.begin(id(1), "1 hour").await;
    let tenant = world.tenant;
    world
        .sql(&format!(
            "insert into oncelog.staged_batches \
                (tenant_id, transaction_id, ordinal, log_id, record_count, records) \
            select {tenant}, '{}', n, {log}, 1, '{{\"value\":' || n || E'}}\\n' \
            from generate_series(0, 2499) n",
            id(1)
        ))
        .await;
    world.commit(id(1)).await;
    world.append("t", &[json!("last")]).await;
    world
}

#[tokio::test]
async fn long_logs_go_in_chunks_with_what_they_point_to() {
    let mut world = a_long_log().await;
    let page = world.read("limit=10000").await.ok();
    assert_eq!(offsets(&page), Vec::from_iter(0..2_501));
    assert!((0..2_500).all(|n| page["records"][n]["value"] == n));
    world.trim(2_300).await;
    let left: i64 = (2_300..2_500).map(|n| lines(&[&n.to_string()]).len() as i64).sum();
    assert_eq!(world.sizes().await, (200, left, left + lines(&["\"last\""]).len() as i64));
    world.trim(2_501).await;
    assert_eq!(world.sizes().await, (0, 0, 0));

    let mut world = a_long_log().await;
    world.server.delete("/v1/topics/t").await.no_content();
    world.server.broker.sweep().await.unwrap();
    assert_eq!(world.sizes().await, (0, 0, 0));
    assert_eq!(world.number("select count(*) from oncelog.batches").await, 0);
}

#[tokio::test]
async fn a_deleted_topic_takes_what_its_rows_pointed_to() {
    let mut world = a_mixed_log().await;
    world.topic("u", 1).await;
    let (log, other) = (world.log("t", 0).await, world.log("u", 0).await);
    for n in [1, 2] {
        world.begin(id(n), "1 hour").await;
        world.stage(id(n), 0, log, &["\"deleted\""]).await;
        world.stage(id(n), 1, other, &["\"kept\""]).await;
    }
    world.commit(id(1)).await;
    world.server.delete("/v1/topics/t").await.no_content();
    world.server.broker.sweep().await.unwrap();
    let left: Vec<(Uuid, i64)> = sqlx::query_as(
        "select transaction_id, ordinal from oncelog.staged_batches order by transaction_id, ordinal",
    )
    .fetch_all(&mut world.hand)
    .await
    .unwrap();
    // those of the ongoing one stay with it
    assert_eq!(left, [(id(1), 1), (id(2), 0), (id(2), 1)]);
    assert_eq!(world.number("select count(*) from oncelog.doomed_logs").await, 0);
    let page = world.server.get("/v1/topics/u/partitions/0/records").await.ok();
    assert_eq!(page["records"][0]["value"], "kept");
}
