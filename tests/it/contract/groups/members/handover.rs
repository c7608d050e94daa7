//! Partitions change hands: announced, let go of, taken over; or taken, when a lease has run out.

use std::time::{Duration, Instant};

use super::*;
use crate::support::served::{PATIENCE, until};

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
    // as long as it does not say that it knows, it may still commit there
    for _ in 0..2 {
        assert_eq!(a.heartbeat(&here).await.ok(), told);
        assert_eq!(a.heartbeat_of(&here, &read).await.ok(), told);
        assert_eq!(revoked(&a.fetch(&here, "").await.ok()), revoked(&told));
        let commit = a.commit_all(&here, &read).await.ok();
        assert_eq!(commit["offsets"].as_array().unwrap().len(), 4);
    }
    // which is the letting go
    let after = a.heartbeat_of(&here, &told).await.ok();
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
    a.heartbeat_of(&server, &told).await.ok();
    let taken = waits.await.unwrap().ok();
    assert_eq!(owns(&taken), revoked(&told));
    assert_eq!(records(&taken), [format!("{}@0", revoked(&told))]);
}

fn from(answer: &Value) -> String {
    format!("cursor={}", answer["cursor"].as_str().unwrap())
}

/// Its answer is lost, and a library or a proxy sends the same again.
#[tokio::test]
async fn the_repeat_of_a_fetch_lets_go_of_nothing_that_its_answer_told() {
    let (here, there) = replicas().await;
    here.topic("orders", 2).await;
    for partition in 0..2 {
        append(&here, "orders", partition, 2).await;
    }
    let a = Member::join(&here, "g", orders()).await;
    let read = a.fetch(&here, "limit=2").await.ok();
    let b = Member::join(&there, "g", orders()).await;
    let lost = a.fetch(&here, &from(&read)).await.ok();
    assert_eq!(revoked(&lost).len(), 8);
    for server in [&here, &there, &here] {
        assert_eq!(a.fetch(server, &from(&read)).await.ok(), lost);
    }
    assert_eq!(owns(&b.heartbeat(&there).await.ok()), "");
    // all that it has processed until then it can still commit
    let committed = a.commit_all(&here, &read).await.ok();
    assert_eq!(committed["offsets"].as_array().unwrap().len(), 2);
    assert_eq!(owns(&b.heartbeat(&there).await.ok()), "");
    let after = a.fetch(&there, &from(&lost)).await.ok();
    // that cursor still names it
    assert_eq!((owns(&after), revoked(&after)), (owns(&lost), revoked(&lost)));
    assert_eq!(owns(&b.heartbeat(&there).await.ok()), revoked(&lost));
    let taken = b.fetch(&here, "").await.ok();
    assert_eq!(records(&taken), [format!("{}@1", revoked(&lost))]);
}

/// It commits all that was fetched until then, and then lets go: alone, or in a transaction that
/// comes with it.
#[tokio::test]
async fn a_commit_of_the_cursor_that_came_with_it_settles_all_and_lets_go() {
    for how in ["alone", "whole", "at the end", "staged", "by number"] {
        let (here, there) = replicas().await;
        here.topic("orders", 2).await;
        here.topic("done", 1).await;
        for partition in 0..2 {
            append(&here, "orders", partition, 2).await;
        }
        let a = Member::join(&here, "g", orders()).await;
        let read = a.fetch(&here, "limit=2").await.ok();
        let b = Member::join(&there, "g", orders()).await;
        let told = a.fetch(&here, &from(&read)).await.ok();
        assert_eq!(records(&told), [format!("{}@1", owns(&told))]);
        let of = json!([{"group": "g", "member_id": a.id, "generation": told["generation"],
            "cursor": told["cursor"]}]);
        let work =
            json!({"offsets": of, "appends": [{"topic": "done", "records": [{"value": 1}]}]});
        let begin = async |body: Value| here.post("/v1/transactions").json(body).await.created();
        let commit = async |begun: Value, body: &Value| {
            let id = begun["transaction_id"].as_str().unwrap();
            here.post(&format!("/v1/transactions/{id}/commit")).json(body).await.ok();
        };
        match how {
            "alone" => {
                let committed = a.commit_all(&here, &told).await.ok();
                assert_eq!(committed["offsets"].as_array().unwrap().len(), 2);
            }
            "whole" => {
                let mut body = work.clone();
                body["commit"] = json!(true);
                begin(body).await;
            }
            "at the end" => commit(begin(json!({})).await, &work).await,
            "staged" => commit(begin(work.clone()).await, &json!({})).await,
            _ => {
                let item = |partition, offset| json!({"topic": "orders", "partition": partition, "offset": offset});
                let both = json!({"offsets": [item(0, 1), item(1, 1)]});
                a.commit(&here, &told, both).await.ok();
            }
        }
        let lets_go = !matches!(how, "staged" | "by number");
        let then = if lets_go { revoked(&told) } else { String::new() };
        assert_eq!(owns(&b.heartbeat(&there).await.ok()), then, "{how}");
        let offsets = here.get("/v1/groups/g/offsets").await.ok();
        assert_eq!(offsets["offsets"].as_array().unwrap().len(), 2, "{how}");
        let after = a.fetch(&there, &from(&told)).await.ok();
        // the cursor names it, so that is told
        assert_eq!((owns(&after), revoked(&after)), (owns(&told), revoked(&told)), "{how}");
        let taken = b.fetch(&here, "").await.ok();
        assert_eq!(records(&taken), [format!("{}@1", revoked(&told))], "{how}");
    }
}

/// The lines tell of nothing but the generation, which is in their cursor as well.
#[tokio::test]
async fn who_fetches_lines_lets_go_with_their_cursor() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    let a = Member::join(&server, "g", orders()).await;
    let b = Member::join(&server, "g", orders()).await;
    let lines =
        async |query: &str| a.fetch(&server, query).header("accept", "application/x-ndjson").await;
    let first = lines("").await;
    assert_eq!(first.header("oncelog-generation"), Some("2"));
    lines("").await;
    assert_eq!(owns(&b.heartbeat(&server).await.ok()), "");
    lines(&format!("cursor={}", first.header("oncelog-cursor").unwrap())).await;
    assert_eq!(owns(&b.heartbeat(&server).await.ok()).len(), 8);
}

#[tokio::test]
async fn who_was_told_and_shows_nothing_holds_up_nobody() {
    let (here, there) = replicas().await;
    here.topic("orders", 2).await;
    let lease = |ms: i64| json!({"topics": ["orders"], "session_timeout_ms": ms});
    for (ms, least_s, most_s) in [(1_000, 29, 30), (60_000, 59, 60)] {
        let group = format!("g{ms}");
        let a = Member::join(&here, &group, lease(ms)).await;
        let b = Member::join(&there, &group, lease(60_000)).await;
        let of_group = format!("group_name = '{group}'");
        let untold = "select count(*) from oncelog.group_offsets where let_go_by is not null and";
        assert_eq!(here.number(&format!("{untold} {of_group}")).await, 0);
        let told = a.heartbeat(&here).await.ok();
        assert_eq!(revoked(&told).len(), 8);
        let within = format!(
            "{untold} {of_group} and let_go_by > now() + interval '{least_s} seconds' \
             and let_go_by <= now() + interval '{most_s} seconds'"
        );
        assert_eq!(here.number(&within).await, 1, "{ms}");
        // the first answer counts
        let by = format!("select max(let_go_by)::text from oncelog.group_offsets where {of_group}");
        let before = text(&here, &by).await;
        a.heartbeat(&there).await.ok();
        assert_eq!(text(&here, &by).await, before);
        let overdue = "update oncelog.group_offsets set let_go_by = now() - interval '1 second' \
                       where let_go_by is not null and";
        here.sql(format!("{overdue} {of_group}")).await;
        // the one that looks first: the janitor, or the member itself
        if ms == 1_000 {
            there.broker.sweep().await.unwrap();
        } else {
            a.heartbeat(&there).await.ok();
        }
        assert_eq!(owns(&b.heartbeat(&there).await.ok()), revoked(&told));
        if ms == 60_000 {
            let after = a.heartbeat(&here).await.ok();
            assert_eq!((owns(&after), revoked(&after)), (owns(&told), String::new()));
        }
        let left = "select count(*) from oncelog.group_offsets where let_go_by is not null and";
        assert_eq!(here.number(&format!("{left} {of_group}")).await, 0);
    }
}

/// Rows as the version before has left them.
#[tokio::test]
async fn what_was_revoked_before_is_told_and_let_go_of() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    let a = Member::join(&server, "g", orders()).await;
    let b = Member::join(&server, "g", orders()).await;
    server.sql("update oncelog.group_offsets set revoked_since = null, announced = true").await;
    let told = a.heartbeat_of(&server, &a.joined).await.ok();
    assert_eq!(revoked(&told).len(), 8);
    a.heartbeat_of(&server, &told).await.ok();
    assert_eq!(owns(&b.heartbeat(&server).await.ok()), revoked(&told));
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
    a.fetch(&here, &from(&told)).await.ok();
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
    let told = a.heartbeat(&here).await.ok();
    let before = a.heartbeat_of(&here, &told).await.ok();
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
