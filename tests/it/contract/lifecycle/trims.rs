//! Logs that lose their beginning, or everything, also in the middle of a read.

use oncelog::broker::ServiceConfig;
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;

use crate::{
    contract::reads::{ends, offsets},
    support::{
        self,
        proxy::Proxy,
        served::{Answer, Served, partition_path, until},
    },
};

async fn trim(served: &Served, before: i64) {
    let path = format!("{}?before={before}", partition_path("t", 0));
    let answer = served.client.delete(&path).await;
    assert!(answer.status < 300, "{answer:?}");
}

/// Ten records in a row; each value is its offset.
async fn append_ten(served: &Served, base: i64) {
    let values: Vec<Value> = (base..base + 10).map(|n| json!(n)).collect();
    assert_eq!(served.client.append("t", 0, &values).await, base);
}

#[tokio::test]
async fn a_log_may_start_inside_a_row() {
    let served = Served::alone().await;
    let client = &served.client;
    client.put_topic("t", 1).await;
    for base in [0, 10, 20, 30] {
        append_ten(&served, base).await;
    }
    let before = client.read("t", 0, "").await.ok(200);
    for (to, low) in [(13, 13), (5, 13), (20, 20), (39, 39), (40, 40)] {
        trim(&served, to).await;
        // once before the rows are gone, once after
        for _ in 0..2 {
            let page = client.read("t", 0, "").await.ok(200);
            assert_eq!(ends(&page), (40, low, 40));
            let all = before["records"].as_array().unwrap();
            assert_eq!(page["records"].as_array().unwrap()[..], all[low as usize..]);
            let instant = before["records"][0]["appended_at"].as_str().unwrap();
            let page = client.read("t", 0, &format!("timestamp={instant}&limit=1")).await.ok(200);
            assert_eq!(offsets(&page), Vec::from_iter((low < 40).then_some(low)));
            let below = client.read("t", 0, &format!("offset={}", low - 1)).await;
            assert_eq!(below.problem(), (416, "offset_out_of_range".into()));
            let facts = below.json();
            assert_eq!(
                (&facts["log_start_offset"], &facts["high_watermark"]),
                (&json!(low), &json!(40))
            );
            served.broker.sweep().await.unwrap();
        }
    }
    assert_eq!(client.append("t", 0, &[json!("after")]).await, 40);
    assert_eq!(offsets(&client.read("t", 0, "").await.ok(200)), [40]);
}

/// What happens to the log while a read is held.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    OldestRow,
    Topic,
}

/// The rows go between a read's look at the head and its reading of rows: the read must neither
/// fail nor show later records under the offsets of the vanished ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_go_in_the_middle_of_a_read() {
    for loss in [Loss::OldestRow, Loss::Topic] {
        let options = support::database().await;
        let writer = Served::start(&options, ServiceConfig::default()).await;
        let mut statuses = Vec::new();
        for query in ["offset=earliest", "offset=LOW", "timestamp=LOW"] {
            for held_at in 0..6 {
                let answer = lost_while_read(&options, &writer, query, held_at, loss).await;
                statuses.push(answer.status);
                match (answer.status, loss) {
                    (200, _) => {
                        let page = answer.json();
                        let (next, low, _) = ends(&page);
                        let got = offsets(&page);
                        assert!(got.first().is_some_and(|first| *first >= low), "{query}: {page}");
                        assert_eq!(got.last().map_or(low, |last| last + 1), next);
                        for record in page["records"].as_array().unwrap() {
                            assert_eq!(record["value"], record["offset"], "{query} {held_at}");
                        }
                    }
                    (416, Loss::OldestRow) if query == "offset=LOW" => {}
                    (404, Loss::Topic) => {}
                    _ => panic!("{query}, {loss:?} at message {held_at}: {answer:?}"),
                }
            }
        }
        println!("{loss:?}: {statuses:?}");
        let other = if loss == Loss::Topic { 404 } else { 416 };
        assert!(statuses.contains(&other), "no read was caught in the middle");
    }
}

/// Holds a read of a fresh replica at its n-th message to the database, until the loss is done.
async fn lost_while_read(
    options: &PgConnectOptions,
    writer: &Served,
    query: &str,
    held_at: u64,
    loss: Loss,
) -> Answer {
    if writer.client.read("t", 0, "").await.status == 404 {
        writer.client.put_topic("t", 1).await;
    }
    let page = writer.client.read("t", 0, "limit=1").await.ok(200);
    let (_, low, high) = ends(&page);
    for base in (high..low + 40).step_by(10) {
        append_ten(writer, base).await;
    }
    let query = match query {
        "timestamp=LOW" => {
            let page = writer.client.read("t", 0, "limit=1").await.ok(200);
            format!("timestamp={}", page["records"][0]["appended_at"].as_str().unwrap())
        }
        _ => query.replace("LOW", &low.to_string()),
    };
    let proxy = Proxy::start(options, 1).await;
    let reader = Served::start(&proxy.options(options), ServiceConfig::default()).await;
    // warm: the topic is known, connections are open, but the first row is in no page
    reader.client.read("t", 0, &format!("offset={}", low + 10)).await.ok(200);
    proxy.close_gate();
    proxy.let_through(held_at);
    let reading = {
        let client = reader.client.clone();
        tokio::spawn(async move { client.read("t", 0, &query).await })
    };
    let held = || proxy.held() > 0 || reading.is_finished();
    until("the read to be held, or done", async || held().then_some(())).await;
    match loss {
        Loss::OldestRow => trim(writer, low + 10).await,
        Loss::Topic => drop(writer.client.delete("/v1/topics/t").await),
    }
    writer.broker.sweep().await.unwrap();
    proxy.open_gate();
    reading.await.unwrap()
}
