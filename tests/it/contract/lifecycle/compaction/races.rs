//! Compaction by many replicas at once, while others append and read.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use oncelog::broker::ServiceConfig;
use serde_json::{Value, json};

use super::{World, world};
use crate::{
    contract::reads::{ends, offsets},
    support::{self, http::Server},
};

/// What a reader from the start knows of every key at the end; every page is to go on.
async fn known(server: &Server, limit: usize) -> BTreeMap<String, i64> {
    let (mut known, mut next) = (BTreeMap::new(), 0);
    loop {
        let path = format!("/v1/topics/t/partitions/0/records?offset={next}&limit={limit}");
        let page = server.get(&path).await.ok();
        let found = offsets(&page);
        assert!(found.is_sorted() && found.iter().all(|offset| *offset >= next), "{page}");
        for record in page["records"].as_array().unwrap() {
            let key = record["key"].as_str().unwrap().to_owned();
            known.insert(key, record["value"].as_i64().unwrap());
        }
        let (next_offset, _, high_watermark) = ends(&page);
        if next_offset == high_watermark {
            return known;
        }
        assert!(next_offset > next, "{page}");
        next = next_offset;
    }
}

/// Values only grow: whatever is compacted meanwhile, a reader knows of each key at least what had
/// been appended before it began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_and_reads_go_on_meanwhile() {
    const ROUNDS: i64 = 60;
    let world = world().await;
    let other = world.fresh().await;
    let server = Arc::new(world.server);
    let over = Arc::new(AtomicBool::new(false));
    let appending = {
        let (server, over) = (server.clone(), over.clone());
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let record =
                    |n| json!({"key": format!("k{}", (round * 7 + n) % 20), "value": round});
                let records: Vec<Value> = (0..9).map(record).collect();
                let body = json!({"records": records});
                server.post("/v1/topics/t/partitions/0/records").json(body).await.ok();
            }
            over.store(true, Ordering::SeqCst);
        })
    };
    let sweeping = {
        let (server, over) = (server.clone(), over.clone());
        let third = support::broker(&server.options, ServiceConfig::default());
        let world = World {
            server: Server::on(&server.options, Default::default()).await,
            appended: Vec::new(),
        };
        tokio::spawn(async move {
            while !over.load(Ordering::SeqCst) {
                // claims keep nobody away here, and all that is dirty is due
                world
                    .sql("update oncelog.compactions set claimed_until = 'epoch', left_records = 0")
                    .await;
                let (first, second) = tokio::join!(server.broker.sweep(), third.sweep());
                first.and(second).unwrap();
            }
        })
    };
    let mut before = BTreeMap::new();
    while !over.load(Ordering::SeqCst) {
        for (limit, server) in [(5, &*server), (1_000, &other)] {
            let now = known(server, limit).await;
            for (key, value) in &before {
                assert!(now.get(key).is_some_and(|now| now >= value), "{key} of {value}: {now:?}");
            }
            before = now;
        }
    }
    appending.await.unwrap();
    sweeping.await.unwrap();
    let world = World { server: other, appended: Vec::new() };
    world.sql("update oncelog.compactions set claimed_until = 'epoch', left_records = 0").await;
    world.sweep().await;
    let fresh = world.fresh().await;
    let world = World { server: fresh, appended: Vec::new() };
    let want: BTreeMap<String, i64> = (0..ROUNDS)
        .flat_map(|round| (0..9).map(move |n| (format!("k{}", (round * 7 + n) % 20), round)))
        .collect();
    assert_eq!(known(&world.server, 7).await, want);
    let page = world.read("limit=10000").await.ok();
    assert_eq!(offsets(&page).len(), 20);
    world.sizes().await;
}

#[tokio::test]
async fn a_log_that_another_replica_is_at_is_left_alone() {
    let mut world = world().await;
    world.append("a=1 a=2").await;
    let claim = "insert into oncelog.compactions (tenant_id, log_id, claimed_until)";
    let until = "now() + interval '1 minute' from oncelog.logs where partition = 0";
    world.sql(&format!("{claim} select tenant_id, log_id, {until}")).await;
    world.sweep().await;
    assert_eq!(world.read_all(10).await, [0, 1]);
    // it has died
    world.sql("update oncelog.compactions set claimed_until = now() - interval '1 second'").await;
    world.sweep().await;
    assert_eq!(world.read_all(10).await, [1]);
}
