//! Groups as large as they get, and many of them: what they cost is printed.

use std::time::Instant;

use oncelog::store::{self, Store};
use serde_json::json;

use super::{each, offsets::offsets};
use crate::support::http::{Server, Setup};

const PARTITIONS: i32 = 10_000;

#[tokio::test]
async fn a_group_of_ten_thousand_partitions_is_shown_reset_and_deleted() {
    let server = Server::with(Setup::default()).await;
    server.topic("orders", PARTITIONS).await;
    let all: Vec<_> = (0..PARTITIONS).map(|partition| ("orders", partition, 0)).collect();
    server.commit("g", offsets(&all)).await.ok();
    let mut begun = Instant::now();
    let mut lap = |what: &str| {
        println!("{what}: {:?}", begun.elapsed());
        begun = Instant::now();
    };
    for to in [json!("latest"), json!({"timestamp": "2026-11-21T08:00:00Z"}), json!({"by": -1})] {
        let reset = server.reset("g", json!({"to": to})).await.ok();
        assert_eq!(reset["offsets"].as_array().unwrap().len(), PARTITIONS as usize);
        lap(&format!("reset to {to}"));
    }
    let shown = server.group("g").await.ok();
    assert_eq!(shown["partitions"].as_array().unwrap().len(), PARTITIONS as usize);
    lap("describe");
    server.delete_group("g").await.no_content();
    lap("delete");
    assert_eq!(server.number("select count(*) from oncelog.group_offsets").await, 0);
}

/// The statement behind the metric says what `GET /v1/groups/{group}` says.
#[tokio::test]
async fn lags_are_summed_as_they_are_shown() {
    let server = Server::start().await;
    server.filled_topic("orders", 4, 10).await;
    server.filled_topic("audit", 1, 10).await;
    for reset in ["earliest", "latest", "error"] {
        let reset = oncelog::model::group::AutoOffsetReset::parse(reset);
        let group = reset.unwrap().as_str();
        let joined = server.member(group, &["orders"], reset).await;
        server.leave(group, &joined).await;
        server.commit(group, offsets(&[("orders", 1, 4), ("orders", 2, 10)])).await.ok();
    }
    server.commit("audit", offsets(&[("audit", 0, 9), ("orders", 0, 0)])).await.ok();
    let log = "update oncelog.group_offsets set starts = 'earliest' where committed_offset is null \
        and log_id = (select max(log_id) from oncelog.group_offsets where group_name = 'error')";
    server.sql(log).await;
    let store = Store::new(server.options.clone(), 2);
    for log_start_offset in [0, 4, 5] {
        let trim = format!(
            "update oncelog.logs set log_start_offset = {log_start_offset} where next_offset > 0"
        );
        server.sql(trim).await;
        let (lags, others) =
            store.run(async |c| store::group::admin::lags(c, 1_000).await).await.unwrap();
        assert_eq!((lags.len(), others), (5, 0));
        assert!(lags.is_sorted_by(|one, next| one.records >= next.records), "{lags:?}");
        for lag in &lags {
            assert_eq!(lag.tenant.as_str(), "default");
            let group = server.group(lag.group.as_str()).await.ok();
            let places = group["partitions"].as_array().unwrap().iter();
            let of = places.filter(|place| place["topic"] == lag.topic.as_str());
            let sum: i64 = of.filter_map(|place| place["lag"].as_i64()).sum();
            assert_eq!(lag.records, sum, "{lag:?} from {log_start_offset}");
        }
        let total: i64 = lags.iter().map(|lag| lag.records).sum();
        for limit in [1, 2, 4] {
            let (named, others) =
                store.run(async move |c| store::group::admin::lags(c, limit).await).await.unwrap();
            assert_eq!(named, lags[..limit as usize]);
            let of_named: i64 = named.iter().map(|lag| lag.records).sum();
            assert_eq!(of_named + others, total);
        }
    }
    assert!(each(&server.group("error").await, "lag").contains("null"));
    for _ in 0..2 {
        server.member("latest", &["orders"], None).await;
    }
    let counts = store.run(async |c| store::group::admin::count(c).await).await.unwrap();
    assert_eq!(counts, (1, 3, 2));
}

#[tokio::test]
async fn the_lags_of_a_thousand_groups_are_cheap_to_measure() {
    let server = Server::start().await;
    server.filled_topic("orders", 10, 10).await;
    server
        .sql(
            "insert into oncelog.groups (tenant_id, name) \
                select tenant_id, 'g' || n from oncelog.tenants cross join generate_series(1, 1000) n; \
             insert into oncelog.group_offsets (tenant_id, group_name, log_id, committed_offset, starts) \
                select g.tenant_id, g.name, l.log_id, 3, 'reset' from oncelog.groups g \
                join oncelog.logs l on l.partition is not null; \
             analyze oncelog.groups; analyze oncelog.group_offsets; analyze oncelog.logs",
        )
        .await;
    let store = Store::new(server.options.clone(), 2);
    let mut fastest = std::time::Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        let (lags, others) =
            store.run(async |c| store::group::admin::lags(c, 100).await).await.unwrap();
        fastest = fastest.min(begun.elapsed());
        assert_eq!((lags.len(), lags[0].records, others), (100, 70, 900 * 70));
    }
    println!("the lags of 1,000 groups in 10 partitions: {fastest:?}");
}
