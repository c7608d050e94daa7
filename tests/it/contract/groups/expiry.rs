//! Groups that nobody has used for longer than their tenant allows are forgotten, and no others.
//! Nobody waits for days here: instants in the database are moved.

use serde_json::{Value, json};

use super::offsets::{offsets, told};
use crate::support::http::{Server, Setup};

/// The group was last active, and has last committed, so long ago.
async fn age(server: &Server, active: &str, committed: &str) {
    server
        .sql(format!(
            "update oncelog.groups set active_at = now() - interval '{active}'; \
             update oncelog.group_offsets set committed_at = now() - interval '{committed}'"
        ))
        .await;
}

async fn is_there(server: &Server) -> bool {
    server.broker.sweep().await.unwrap();
    server.group("g").await.status == 200
}

#[tokio::test]
async fn a_group_without_members_and_commits_expires_with_its_offsets() {
    let server = Server::start().await;
    let other = Server::on(&server.options, Setup::default()).await;
    server.filled_topic("orders", 2, 5).await;
    let set = |value: Value| server.patch("/v1/settings").json(json!({"offsets_expiry_ms": value}));
    server.commit("g", offsets(&[("orders", 0, 1), ("orders", 1, 1)])).await.ok();
    let week = "7 days - 1 minute";
    for (active, committed) in [(week, "30 days"), ("30 days", week)] {
        age(&server, active, committed).await;
        assert!(is_there(&server).await, "{active} {committed}");
        // what a look has found is noted, and no more
        assert_eq!(told(&server.committed("g").await), "orders/0 1, orders/1 1");
    }
    age(&server, "30 days", "30 days").await;
    set(json!(null)).await.ok();
    assert!(is_there(&server).await);
    set(json!(31_i64 * 86_400_000)).await.ok();
    assert!(is_there(&server).await);
    set(json!("default")).await.ok();
    age(&server, "7 days 1 minute", "7 days 1 minute").await;
    assert!(!is_there(&other).await);
    assert_eq!(server.number("select count(*) from oncelog.group_offsets").await, 0);
    // a commit makes another one, which begins its life now
    server.commit("g", offsets(&[("orders", 0, 4)])).await.ok();
    assert!(is_there(&server).await);
}

#[tokio::test]
async fn a_group_does_not_expire_while_it_lives() {
    let server = Server::start().await;
    server.filled_topic("orders", 1, 5).await;
    server.commit("g", offsets(&[("orders", 0, 1)])).await.ok();
    let joined = server.member("g", &["orders"], None).await;
    age(&server, "30 days", "30 days").await;
    assert!(is_there(&server).await);
    // it was active until its last member went
    server.leave("g", &joined).await;
    assert!(is_there(&server).await);
    // what a prepared transaction is to commit in waits for its end, and lives on from there
    let id = server.pin("g", "orders", 0, json!(1)).await;
    age(&server, "30 days", "30 days").await;
    assert!(is_there(&server).await);
    server.post(&format!("/v1/transactions/{id}/commit")).await.ok();
    assert!(is_there(&server).await);
    age(&server, "30 days", "30 days").await;
    assert!(!is_there(&server).await);
}

/// Two replicas' janitors and commits at once: what is acknowledged after the group went is there.
#[tokio::test]
async fn a_commit_that_meets_an_expiry_is_not_lost() {
    let server = Server::start().await;
    let other = Server::on(&server.options, Setup::default()).await;
    server.filled_topic("orders", 2, 9).await;
    for round in 0..20_i64 {
        server.commit("g", offsets(&[("orders", 0, 1)])).await.ok();
        age(&server, "30 days", "30 days").await;
        let of = [("orders", (round % 2) as i32, round % 9)];
        let (committed, first, second) = tokio::join!(
            std::future::IntoFuture::into_future(server.commit("g", offsets(&of))),
            server.broker.sweep(),
            other.broker.sweep()
        );
        first.unwrap();
        second.unwrap();
        let committed = told(&committed);
        assert!(told(&other.committed("g").await).contains(&committed), "{committed}");
        server.delete_group("g").await.no_content();
    }
}
