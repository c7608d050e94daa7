//! What prepared transactions hold cannot be deleted, whichever comes first.

use std::future::IntoFuture;

use oncelog::model::Code;
use serde_json::json;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};
use uuid::Uuid;

use super::{World, id, world};
use crate::contract::reads::offsets;

impl World {
    /// What a prepare does with the head of a log, in a transaction that goes on; and whether it
    /// could hold it.
    async fn pin(&self, id: Uuid, log: i64) -> (PgConnection, bool) {
        let mut prepare = self.server.options.connect().await.unwrap();
        prepare.execute("begin").await.unwrap();
        let hold = "select from oncelog.logs where log_id = $1 for key share skip locked";
        let held = sqlx::query(hold).bind(log).fetch_optional(&mut prepare).await.unwrap();
        if held.is_some() {
            let insert = "insert into oncelog.pins (tenant_id, transaction_id, log_id) \
                values ($1, $2, $3)";
            let insert = sqlx::query(insert).bind(self.tenant).bind(id).bind(log);
            insert.execute(&mut prepare).await.unwrap();
        }
        (prepare, held.is_some())
    }

    /// True: it could.
    async fn pin_at_once(&self, id: Uuid, log: i64) -> bool {
        let (mut prepare, held) = self.pin(id, log).await;
        prepare.execute("commit").await.unwrap();
        prepare.close().await.unwrap();
        held
    }
}

#[tokio::test]
async fn a_topic_that_a_prepared_transaction_holds_cannot_be_deleted() {
    let mut world = world().await;
    world.topic("t", 3).await;
    world.topic("u", 1).await;
    let (first, last) = (world.log("t", 0).await, world.log("t", 2).await);
    for (n, log) in [(2, first), (1, last)] {
        assert!(world.pin_at_once(id(n), log).await);
    }
    let delete = || world.server.delete("/v1/topics/t");
    // one of them is named
    for n in [1, 2] {
        let problem = delete().await.refused(Code::TopicInUse);
        assert_eq!(problem["transaction_id"], id(n).to_string());
        assert_eq!(
            (&problem["retry"], &problem["side_effects"]),
            (&json!("never"), &json!("none"))
        );
        let unpin = format!("delete from oncelog.pins where transaction_id = '{}'", id(n));
        world.server.sql(unpin).await;
    }
    // others go, and it delays nobody meanwhile
    assert!(world.pin_at_once(id(3), first).await);
    world.append("t", &[json!(1)]).await;
    world.server.patch("/v1/topics/t").json(json!({"partition_count": 4})).await.ok();
    world.server.delete("/v1/topics/u").await.no_content();
    delete().await.refused(Code::TopicInUse);
    assert_eq!(offsets(&world.read("").await.ok()), [0]);
    world.server.sql("delete from oncelog.pins").await;
    delete().await.no_content();
}

/// The prepare was first: the delete waits for it, and sees what it holds.
#[tokio::test]
async fn a_delete_waits_for_a_prepare_and_is_refused() {
    for (outcome, status) in [("commit", 409), ("rollback", 204)] {
        let mut world = world().await;
        world.topic("t", 3).await;
        let log = world.log("t", 1).await;
        let (mut prepare, _) = world.pin(id(1), log).await;
        // appends do not wait
        world.append("t", &[json!(1)]).await;
        let delete = tokio::spawn(world.server.delete("/v1/topics/t").into_future());
        world.until_one_waits().await;
        prepare.execute(outcome).await.unwrap();
        let answer = delete.await.unwrap();
        assert_eq!(answer.status, status, "{}", answer.text());
        if status == 409 {
            let problem = answer.refused(Code::TopicInUse);
            assert_eq!(problem["transaction_id"], id(1).to_string());
        }
    }
}

/// The delete was first: a prepare cannot hold the head; when the delete has come to nothing, it
/// can.
#[tokio::test]
async fn what_is_being_deleted_cannot_be_held() {
    for is_pinned in [false, true] {
        let mut world = world().await;
        world.topic("t", 2).await;
        let (first, last) = (world.log("t", 0).await, world.log("t", 1).await);
        // an append in flight holds the last head, and with it up the delete, which has the first
        let mut append = world.server.options.connect().await.unwrap();
        append.execute("begin").await.unwrap();
        let touch = "update oncelog.logs set size_bytes = size_bytes where log_id = $1";
        sqlx::query(touch).bind(last).execute(&mut append).await.unwrap();
        let delete = tokio::spawn(world.server.delete("/v1/topics/t").into_future());
        world.until_one_waits().await;
        if is_pinned {
            assert!(world.pin_at_once(id(9), last).await, "appends hold up nobody");
        }
        assert!(!world.pin_at_once(id(1), first).await);
        append.execute("commit").await.unwrap();
        assert_eq!(delete.await.unwrap().status, if is_pinned { 409 } else { 204 });
        assert_eq!(world.pin_at_once(id(1), first).await, is_pinned);
    }
}
