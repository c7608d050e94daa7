//! Partitions change hands: announced, let go of, taken over; or taken, when a lease has run out.

use std::time::{Duration, Instant};

use super::*;
use crate::served::{PATIENCE, until};

const ORDERS: &str = r#"{"topics": ["orders"]}"#;

fn orders() -> Value {
    serde_json::from_str(ORDERS).unwrap()
}

async fn until_waiting(server: &Server, count: usize) {
    let waiting = || server.broker.waiting_reads();
    until("fetches to wait", async || (waiting() == count).then_some(())).await;
}

/// A fetch under way, which may wait for a minute.
async fn waiting(server: &Server, member: &Member, query: &str) -> tokio::task::JoinHandle<Answer> {
    let before = server.broker.waiting_reads();
    let call = member.fetch(server, &format!("wait_ms=60000&{query}"));
    let call = tokio::spawn(call.into_future());
    until_waiting(server, before + 1).await;
    call
}

#[tokio::test]
async fn a_partition_is_announced_then_let_go_of_then_taken_over() {
    let (here, there) = replicas().await;
    here.topic("orders", 4).await;
    for partition in 0..4 {
        append(&here, "orders", partition, 2).await;
    }
    let a = Member::join(&here, "g", orders()).await;
    assert_eq!(owns(&a.joined), "orders/0 orders/1 orders/2 orders/3");
    let read = a.fetch(&here, "").await.ok();
    assert_eq!(read["records"].as_array().unwrap().len(), 8);
    // a owns all, so b gets nothing yet
    let b = Member::join(&there, "g", orders()).await;
    assert_eq!((owns(&b.joined), &b.joined["generation"]), (String::new(), &json!(2)));
    assert_eq!(owns(&b.heartbeat(&there).await.ok()), "");
    // told, through whatever replica
    let told = a.heartbeat(&there).await.ok();
    assert_eq!((owns(&told).len(), revoked(&told).len()), (17, 17), "{told}");
    assert_eq!(told["generation"], 2);
    assert_eq!(owns(&b.heartbeat(&there).await.ok()), "");
    // until its next call it may still commit there
    let commit = a.commit_all(&here, &read).await.ok();
    assert_eq!(commit["offsets"].as_array().unwrap().len(), 4);
    // which is the letting go
    let after = a.fetch(&here, "").await.ok();
    assert_eq!((owns(&after), revoked(&after)), (owns(&told), String::new()));
    assert_eq!(after["generation"], 3);
    let taken = b.fetch(&there, "").await.ok();
    assert_eq!(owns(&taken), revoked(&told));
    assert_eq!(records(&taken), [""; 0]);
    // a is not heard there any more
    let problem = a.commit_all(&here, &read).await.refused(Code::IllegalGeneration);
    assert_eq!(problem["generation"], 3);
}

#[tokio::test]
async fn announced_records_come_no_more() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    let a = Member::join(&server, "g", orders()).await;
    let b = Member::join(&server, "g", orders()).await;
    append(&server, "orders", 0, 1).await;
    append(&server, "orders", 1, 1).await;
    let told = a.fetch(&server, "").await.ok();
    assert_eq!(records(&told), [format!("{}@0", owns(&told))]);
    assert_eq!(revoked(&told).len(), 8);
    // b waits for what a has been told to let go of, and gets it as soon as a lets go
    let waits = waiting(&server, &b, "").await;
    a.heartbeat(&server).await.ok();
    let taken = waits.await.unwrap().ok();
    assert_eq!(owns(&taken), revoked(&told));
    assert_eq!(records(&taken), [format!("{}@0", revoked(&told))]);
}

#[tokio::test]
async fn a_waiting_fetch_answers_at_once_when_something_is_to_be_let_go_of() {
    let (here, there) = replicas().await;
    here.topic("orders", 2).await;
    let a = Member::join(&here, "g", orders()).await;
    let waits = waiting(&here, &a, "").await;
    let joined = Instant::now();
    let b = Member::join(&there, "g", orders()).await;
    let told = waits.await.unwrap().ok();
    assert!(joined.elapsed() < Duration::from_secs(30), "{:?}", joined.elapsed());
    assert_eq!((owns(&told).len(), revoked(&told).len()), (8, 8));
    assert_eq!(records(&told), [""; 0]);
    // and b's as soon as there is something to read, of what it has got meanwhile
    append(&here, "orders", 0, 1).await;
    append(&here, "orders", 1, 1).await;
    let waits = waiting(&there, &b, "").await;
    a.fetch(&here, "").await.ok();
    let taken = waits.await.unwrap().ok();
    assert_eq!(records(&taken), [format!("{}@0", revoked(&told))]);
}

#[tokio::test]
async fn who_leaves_hands_over_at_once() {
    let (here, there) = replicas().await;
    here.topic("orders", 2).await;
    append(&here, "orders", 0, 1).await;
    let a = Member::join(&here, "g", orders()).await;
    let b = Member::join(&here, "g", orders()).await;
    let waits = waiting(&there, &b, "").await;
    a.leave(&here).await;
    let taken = waits.await.unwrap().ok();
    assert_eq!(
        (owns(&taken).as_str(), records(&taken)),
        ("orders/0 orders/1", vec!["orders/0@0".into()])
    );
    b.leave(&there).await;
    // an empty group is committed to by anybody
    let commit = json!({"offsets": [{"topic": "orders", "partition": 0, "offset": 1}]});
    here.post("/v1/groups/g/offsets").json(commit).await.ok();
}

#[tokio::test]
async fn whose_lease_has_run_out_is_gone() {
    let (here, there) = replicas().await;
    here.topic("orders", 2).await;
    let a = Member::join(&here, "g", orders()).await;
    let b = Member::join(&here, "g", orders()).await;
    let read = a.fetch(&here, "").await.ok();
    lapse(&here, &a).await;
    there.broker.sweep().await.unwrap();
    a.heartbeat(&here).await.refused(Code::UnknownMember);
    a.fetch(&here, "wait_ms=60000").await.refused(Code::UnknownMember);
    a.commit_all(&here, &read).await.refused(Code::UnknownMember);
    assert_eq!(owns(&b.heartbeat(&there).await.ok()), "orders/0 orders/1");
    // a sweep is not waited for: the next join finds it out
    lapse(&here, &b).await;
    let c = Member::join(&there, "g", orders()).await;
    assert_eq!(owns(&c.joined), "orders/0 orders/1");
    b.heartbeat(&here).await.refused(Code::UnknownMember);
}

/// Its lease is a second, its wait a minute.
#[tokio::test]
async fn a_member_that_waits_does_not_expire() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let mut join = orders();
    join["session_timeout_ms"] = json!(1_000);
    let a = Member::join(&server, "g", join).await;
    let lease =
        async || text(&server, "select lease_expires_at::text from oncelog.group_members").await;
    let waits = waiting(&server, &a, "").await;
    for _ in 0..3 {
        let before = lease().await;
        until("the lease to go on", async || (lease().await != before).then_some(())).await;
        server.broker.sweep().await.unwrap();
    }
    append(&server, "orders", 0, 1).await;
    let answer = waits.await.unwrap().ok();
    assert_eq!(records(&answer), ["orders/0@0"]);
}

#[tokio::test]
async fn a_static_member_comes_back_to_its_partitions() {
    let (here, there) = replicas().await;
    here.topic("orders", 4).await;
    here.topic("carts", 1).await;
    let pod = |name: &str| json!({"topics": ["orders"], "instance_id": name});
    let a = Member::join(&here, "g", pod("a")).await;
    let b = Member::join(&here, "g", pod("b")).await;
    a.heartbeat(&here).await.ok();
    let before = a.heartbeat(&here).await.ok();
    let of_b = b.heartbeat(&here).await.ok();
    // through another replica, as after a restart: no new generation, nothing moves
    let again = Member::join(&there, "g", pod("a")).await;
    assert_ne!(again.id, a.id);
    assert_eq!(again.joined["generation"], before["generation"]);
    assert_eq!(owns(&again.joined), owns(&before));
    assert_eq!(b.heartbeat(&there).await.ok(), of_b);
    // the one before is fenced
    a.heartbeat(&here).await.refused(Code::UnknownMember);
    a.fetch(&here, "").await.refused(Code::UnknownMember);
    let read = again.fetch(&there, "").await.ok();
    a.commit_all(&here, &read).await.refused(Code::UnknownMember);
    again.commit_all(&here, &read).await.ok();
    // other topics are another subscription
    let more = json!({"topics": ["orders", "carts"], "instance_id": "a"});
    let more = Member::join(&there, "g", more).await;
    assert!(more.joined["generation"].as_i64() > before["generation"].as_i64());
    assert!(owns(&more.joined).starts_with("carts/0 "), "{}", owns(&more.joined));
    // when its lease has run out there is nothing to come back to
    lapse(&here, &more).await;
    here.broker.sweep().await.unwrap();
    assert_eq!(owns(&b.heartbeat(&there).await.ok()), "orders/0 orders/1 orders/2 orders/3");
}

/// The member whose place was taken while it waited learns it at once.
#[tokio::test]
async fn a_wait_ends_when_the_place_is_taken() {
    let (here, there) = replicas().await;
    here.topic("orders", 1).await;
    let join = json!({"topics": ["orders"], "instance_id": "i", "session_timeout_ms": 3_000});
    let a = Member::join(&here, "g", join.clone()).await;
    let waits = waiting(&here, &a, "").await;
    let begun = Instant::now();
    Member::join(&there, "g", join).await;
    waits.await.unwrap().refused(Code::UnknownMember);
    assert!(begun.elapsed() < PATIENCE);
}
