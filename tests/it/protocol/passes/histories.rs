//! A database that has lost its last commits (a failover to an asynchronous standby, a restore),
//! and has gone on since, behind a pooler that kept the replicas' connections: no cache of what was
//! lost decides anything.

use serde_json::{Value, json};

use crate::support::http::{Server, Setup};
use oncelog::model::Code;

const PARTITION: &str = "/v1/topics/t/partitions/0/records";

struct World {
    old: Server,
    new: Server,
}

impl World {
    async fn start() -> Self {
        let old = Server::start().await;
        let new = Server::on(&old.options, Setup::default()).await;
        old.topic("t", 1).await;
        Self { old, new }
    }

    /// The rows from an offset on are lost.
    async fn lose_from(&self, offset: i64) {
        self.old
            .sql(format!(
                "delete from oncelog.batches where base_offset >= {offset}; \
                update oncelog.logs l set next_offset = {offset}, last_appended_at = coalesce( \
                    (select max(appended_at) from oncelog.batches b where b.log_id = l.log_id), 'epoch') \
                where partition = 0"
            ))
            .await;
    }

    /// Others' appends, through another replica, at another instant.
    async fn append_foreign(&self, count: i64) {
        self.old
            .sql("update oncelog.logs set last_appended_at = last_appended_at + interval '1 day'")
            .await;
        for value in 0..count {
            let body = json!({"records": [{"value": format!("foreign {value}")}]});
            self.new.post(PARTITION).json(body).await.ok();
        }
    }
}

fn numbered(session: (i64, i64), sequence: i64) -> Value {
    json!({"producer_id": session.0, "epoch": session.1, "sequence": sequence,
        "records": [{"value": sequence}]})
}

#[tokio::test]
async fn no_repeat_is_answered_from_a_lost_tail() {
    // as many lost, and as many foreign ones since: fewer, equally many, more
    for foreign in [0, 1, 2, 3, 7] {
        let world = World::start().await;
        let session = world.old.session("p").await;
        let mut lost = Value::Null;
        for sequence in 0..5 {
            lost = world.old.post(PARTITION).json(numbered(session, sequence)).await.ok();
        }
        assert_eq!(lost["base_offset"], 4);
        world.lose_from(3).await;
        world.append_foreign(foreign).await;
        let send = |sequence| world.old.post(PARTITION).json(numbered(session, sequence));
        for sequence in [4, 5] {
            let problem = send(sequence).await.refused(Code::OutOfOrderSequence);
            assert_eq!(problem["expected"], 3, "{foreign} foreign rows");
        }
        assert_eq!(send(2).await.ok()["base_offset"], 2);
        assert_eq!(send(3).await.ok()["base_offset"], 3 + foreign);
    }
}

/// The fence of a lost open is never raised again: whose epochs were read under it are read again.
#[tokio::test]
async fn no_epoch_counts_that_was_read_under_a_lost_fence() {
    let world = World::start().await;
    let (p, q) = (world.old.session("p").await, world.old.session("q").await);
    for session in [p, q] {
        world.old.post(PARTITION).json(numbered(session, 0)).await.ok();
    }
    world.new.session("p").await;
    // the replica reads q's epoch under the fence that p's open has raised
    assert_eq!(world.old.post(PARTITION).json(numbered(q, 0)).await.ok()["duplicate"], true);
    let fence = "update oncelog.logs set fence = 0 where partition = 0; update oncelog.sessions set epoch = 0";
    world.old.sql(fence).await;
    assert_eq!(world.new.session("q").await.1, 1);
    world.old.post(PARTITION).json(numbered(q, 1)).await.refused(Code::ProducerFenced);
}
