//! Where a member reads on: cursors, committed offsets, and what becomes of both as partitions
//! move.

use std::collections::BTreeMap;

use super::*;

fn orders() -> Value {
    json!({"topics": ["orders"]})
}

/// The records of each partition, as offsets.
fn by_partition(answer: &Value) -> BTreeMap<i64, Vec<i64>> {
    let mut offsets: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for record in answer["records"].as_array().unwrap() {
        let partition = record["partition"].as_i64().unwrap();
        offsets.entry(partition).or_default().push(record["offset"].as_i64().unwrap());
    }
    offsets
}

fn from(answer: &Value) -> String {
    format!("cursor={}", answer["cursor"].as_str().unwrap())
}

async fn filled(server: &Server, partition_count: i32, count: usize) {
    server.topic("orders", partition_count).await;
    for partition in 0..partition_count {
        append(server, "orders", partition, count).await;
    }
}

#[tokio::test]
async fn cursor_by_cursor_all_records_come_once_and_in_order() {
    let (here, there) = replicas().await;
    filled(&here, 3, 7).await;
    let member = Member::join(&here, "g", orders()).await;
    let (mut seen, mut cursor) = (BTreeMap::<i64, Vec<i64>>::new(), String::new());
    for round in 0.. {
        let server = if round % 2 == 0 { &here } else { &there };
        let page = member.fetch(server, &format!("limit=4&{cursor}")).await.ok();
        let count = page["records"].as_array().unwrap().len();
        assert!(count <= 4, "{page}");
        // fair: nobody gets all while others have some
        if round == 0 {
            assert_eq!(by_partition(&page).len(), 3);
        }
        // the same cursor, the same records, wherever it is sent
        let again = member.fetch(&there, &format!("limit=4&{cursor}")).await.ok();
        assert_eq!(again, page);
        for (partition, offsets) in by_partition(&page) {
            seen.entry(partition).or_default().extend(offsets);
        }
        cursor = from(&page);
        if count == 0 {
            break;
        }
    }
    let all: Vec<i64> = (0..7).collect();
    assert_eq!(seen, (0..3).map(|partition| (partition, all.clone())).collect());
}

#[tokio::test]
async fn a_repeat_is_a_prefix_or_an_extension_of_the_first_answer() {
    let server = Server::start().await;
    filled(&server, 2, 3).await;
    let member = Member::join(&server, "g", orders()).await;
    let begin = from(&member.fetch(&server, "limit=1").await.ok());
    let first = by_partition(&member.fetch(&server, &begin).await.ok());
    append(&server, "orders", 0, 2).await;
    let more = by_partition(&member.fetch(&server, &begin).await.ok());
    let less = by_partition(&member.fetch(&server, &format!("{begin}&limit=2")).await.ok());
    for (partition, offsets) in &first {
        assert!(more[partition].starts_with(offsets), "{first:?} {more:?}");
        assert!(offsets.starts_with(less.get(partition).map_or(&[], Vec::as_slice)));
    }
}

#[tokio::test]
async fn without_a_cursor_it_begins_at_the_committed_offsets_every_time() {
    let (here, there) = replicas().await;
    filled(&here, 2, 3).await;
    let a = Member::join(&here, "g", orders()).await;
    let page = a.fetch(&here, "limit=2").await.ok();
    assert_eq!(a.fetch(&there, "limit=2").await.ok()["records"], page["records"]);
    // the cursor stands for positions in all partitions, those without records as well
    let committed = a.commit_all(&there, &page).await.ok();
    assert_eq!(committed["offsets"].as_array().unwrap().len(), 2);
    let rest = a.fetch(&here, "").await.ok();
    assert_eq!(by_partition(&rest), [(0, vec![1, 2]), (1, vec![1, 2])].into());
    assert_eq!(a.fetch(&there, "").await.ok()["records"], rest["records"]);
    // as does who comes after it
    a.leave(&here).await;
    let b = Member::join(&there, "g", orders()).await;
    assert_eq!(b.fetch(&here, "").await.ok()["records"], rest["records"]);
    // monotonic: what was committed stays, and is answered
    b.commit_all(&here, &b.fetch(&here, "").await.ok()).await.ok();
    let back = json!({"offsets": [{"topic": "orders", "partition": 0, "offset": 1}]});
    let answer = b.commit(&here, &b.joined, back).await.ok();
    assert_eq!(answer["offsets"][0]["offset"], 3);
    assert_eq!(records(&b.fetch(&here, "").await.ok()), [""; 0]);
}

#[tokio::test]
async fn what_a_cursor_says_of_a_lost_partition_does_not_count_and_is_told() {
    let (here, there) = replicas().await;
    filled(&here, 4, 3).await;
    let a = Member::join(&here, "g", orders()).await;
    let old = a.fetch(&here, "limit=4").await.ok();
    assert_eq!(by_partition(&old).len(), 4);
    let b = Member::join(&there, "g", orders()).await;
    let told = a.heartbeat(&here).await.ok();
    let lost = revoked(&told);
    a.heartbeat_of(&there, &told).await.ok();
    let after = a.fetch(&there, &from(&old)).await.ok();
    assert_eq!((owns(&after), revoked(&after)), (owns(&told), lost.clone()));
    // of what it kept it reads on
    assert!(records(&after).iter().all(|record| !record.ends_with("@0")), "{after}");
    assert_eq!(by_partition(&after).len(), 2);
    // told by this cursor only, which is not to be committed any more, not even in part
    a.commit_all(&here, &old).await.refused(Code::IllegalGeneration);
    assert_eq!(revoked(&a.fetch(&here, &from(&after)).await.ok()), "");
    a.commit_all(&here, &after).await.ok();
    // lost and got back: another ownership, which begins at the committed offset
    assert_eq!(owns(&b.heartbeat(&there).await.ok()), lost);
    b.leave(&there).await;
    let back = a.fetch(&here, &from(&old)).await.ok();
    assert_eq!((owns(&back).len(), revoked(&back).as_str()), (35, ""));
    for record in records(&back) {
        let partition = record.split('@').next().unwrap();
        let first = if lost.contains(partition) { "@0" } else { "@1" };
        let begins = record.ends_with("@0") || record.ends_with("@1") || record.ends_with("@2");
        assert!(begins && (first == "@0" || !record.ends_with("@0")), "{record}");
    }
    let of_lost = lost.split(' ').filter(|p| records(&back).contains(&format!("{p}@0"))).count();
    assert_eq!(of_lost, 2);
    a.commit_all(&here, &old).await.refused(Code::IllegalGeneration);
}

#[tokio::test]
async fn a_cursor_is_its_groups_alone() {
    let server = Server::start().await;
    filled(&server, 1, 1).await;
    let a = Member::join(&server, "g", orders()).await;
    let b = Member::join(&server, "other", orders()).await;
    let of_a = a.fetch(&server, "").await.ok();
    let of_topic = server.get("/v1/topics/orders/records").await.ok();
    b.fetch(&server, &from(&of_a)).await.refused(Code::InvalidCursor);
    b.commit_all(&server, &of_a).await.refused(Code::InvalidCursor);
    a.fetch(&server, &from(&of_topic)).await.refused(Code::InvalidCursor);
    let path = format!("/v1/topics/orders/records?{}", from(&of_a));
    server.get(&path).await.refused(Code::InvalidCursor);
    for odd in ["cursor=", "cursor=x", "cursor=%00"] {
        a.fetch(&server, odd).await.refused(Code::InvalidCursor);
    }
    a.fetch(&server, &from(&of_a)).await.ok();
}

/// Another life of the topic is another topic.
#[tokio::test]
async fn a_topic_that_was_created_again_starts_over() {
    let server = Server::start().await;
    filled(&server, 1, 3).await;
    let a = Member::join(&server, "g", orders()).await;
    let old = a.fetch(&server, "").await.ok();
    a.commit_all(&server, &old).await.ok();
    server.delete("/v1/topics/orders").await.no_content();
    filled(&server, 1, 2).await;
    server.broker.sweep().await.unwrap();
    let new = a.fetch(&server, &from(&old)).await.ok();
    assert_eq!(records(&new), ["orders/0@0", "orders/0@1"]);
}
