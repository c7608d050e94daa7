//! Members that commit in transactions: with what they made of the records, or not at all.

use super::*;

impl Member {
    /// A whole transaction in one request: a record for `done`, and all that this answer had.
    fn transact(&self, server: &Server, seen: &Value, extra: Value) -> Call {
        let mut body = json!({
            "appends": [{"topic": "done", "records": [{"value": "made"}]}],
            "offsets": [{"group": self.group, "member_id": self.id,
                "generation": seen["generation"], "cursor": seen["cursor"]}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.post("/v1/transactions").json(body)
    }
}

/// Two records in each of two partitions, and where what is made of them goes.
pub async fn world() -> (Server, Server) {
    let (here, there) = replicas().await;
    here.topic("orders", 2).await;
    here.topic("done", 1).await;
    for partition in 0..2 {
        append(&here, "orders", partition, 2).await;
    }
    (here, there)
}

pub async fn made(server: &Server) -> usize {
    let read = server.get("/v1/topics/done/partitions/0/records").await.ok();
    read["records"].as_array().unwrap().len()
}

#[tokio::test]
async fn records_and_the_cursor_they_were_made_of_are_committed_together() {
    let (here, there) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    let page = a.fetch(&here, "limit=2").await.ok();
    a.transact(&there, &page, json!({"commit": true})).await.created();
    assert_eq!(made(&here).await, 1);
    let rest = a.fetch(&here, "").await.ok();
    assert_eq!(records(&rest), ["orders/0@1", "orders/1@1"]);
    // a second processing of the same records is refused, with what it made
    a.transact(&here, &page, json!({"commit": true})).await.refused(Code::OffsetCommitConflict);
    a.transact(&here, &rest, json!({"commit": true})).await.created();
    let before = made(&here).await;
    a.transact(&here, &page, json!({"commit": true})).await.refused(Code::OffsetCommitConflict);
    assert_eq!(made(&here).await, before);
}

#[tokio::test]
async fn who_has_lost_a_partition_commits_nothing() {
    let (here, there) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    let page = a.fetch(&here, "").await.ok();
    let open = a.transact(&here, &page, json!({})).await.created();
    let path = format!("/v1/transactions/{}", open["transaction_id"].as_str().unwrap());
    let b = Member::join(&there, "g", json!({"topics": ["orders"]})).await;
    let told = a.heartbeat(&here).await.ok();
    // told, but not let go of: it could still commit
    a.heartbeat_of(&here, &told).await.ok();
    here.post(&format!("{path}/commit")).await.refused(Code::IllegalGeneration);
    a.transact(&here, &page, json!({"commit": true})).await.refused(Code::IllegalGeneration);
    assert_eq!(made(&here).await, 0);
    // the new owner reads from what is committed: nothing
    let taken = b.fetch(&there, "").await.ok();
    assert_eq!(records(&taken), [format!("{}@0", owns(&taken)), format!("{}@1", owns(&taken))]);
    b.transact(&there, &taken, json!({"commit": true})).await.created();
    // nor does who is gone
    lapse(&here, &a).await;
    here.broker.sweep().await.unwrap();
    a.transact(&here, &page, json!({"commit": true})).await.refused(Code::UnknownMember);
    assert_eq!(made(&here).await, 1);
}

/// Every refusal is one that the document shows.
#[tokio::test]
async fn a_cursor_of_another_ownership_is_no_offset_to_add() {
    let (here, _there) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    let page = a.fetch(&here, "").await.ok();
    let open = here.post("/v1/transactions").await.created();
    let path = format!("/v1/transactions/{}/offsets", open["transaction_id"].as_str().unwrap());
    let offset =
        json!({"group": "g", "member_id": a.id, "generation": 99, "cursor": page["cursor"]});
    let add = here.post(&path).json(json!({"offsets": [offset]}));
    assert_eq!(add.await.refused(Code::IllegalGeneration)["generation"], page["generation"]);
}

#[tokio::test]
async fn what_a_prepared_transaction_holds_is_read_by_nobody_but_its_owner_beyond_it() {
    let (here, there) = world().await;
    let a = Member::join(&here, "g", json!({"topics": ["orders"]})).await;
    let page = a.fetch(&here, "limit=2").await.ok();
    let cursor = format!("cursor={}", page["cursor"].as_str().unwrap());
    let open = a.transact(&here, &page, json!({})).await.created();
    let path = format!("/v1/transactions/{}", open["transaction_id"].as_str().unwrap());
    here.post(&format!("{path}/prepare")).await.ok();
    assert_eq!(records(&a.fetch(&there, "").await.ok()), [""; 0]);
    let beyond = a.fetch(&there, &cursor).await.ok();
    assert_eq!(records(&beyond), ["orders/0@1", "orders/1@1"]);
    let problem = a.commit_all(&here, &beyond).await.refused(Code::OffsetCommitConflict);
    assert_eq!(problem["transaction_id"], open["transaction_id"]);
    // a new owner waits for its end
    a.leave(&here).await;
    let b = Member::join(&there, "g", json!({"topics": ["orders"]})).await;
    assert_eq!(records(&b.fetch(&there, "").await.ok()), [""; 0]);
    here.post(&format!("{path}/commit")).await.ok();
    assert_eq!(records(&b.fetch(&there, "").await.ok()), ["orders/0@1", "orders/1@1"]);
}
