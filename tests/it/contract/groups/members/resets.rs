//! Where a group begins without a committed offset, or with one that was trimmed away.

use super::*;

async fn orders(partition_count: i32) -> Server {
    let server = Server::start().await;
    server.topic("orders", partition_count).await;
    server
}

fn join(reset: &str) -> Value {
    json!({"topics": ["orders"], "auto_offset_reset": reset})
}

async fn trim(server: &Server, before: i64) {
    let path = format!("/v1/topics/orders/partitions/0/records?before={before}");
    server.delete(&path).await.no_content();
}

#[tokio::test]
async fn a_group_begins_where_it_says() {
    let server = orders(1).await;
    append(&server, "orders", 0, 2).await;
    let of = async |group: &str, join: Value| Member::join(&server, group, join).await;
    let earliest = of("earliest", join("earliest")).await;
    let default = of("default", json!({"topics": ["orders"]})).await;
    let latest = of("latest", join("latest")).await;
    let error = of("error", join("error")).await;
    for member in [&earliest, &default] {
        let page = member.fetch(&server, "").await.ok();
        assert_eq!(records(&page), ["orders/0@0", "orders/0@1"]);
    }
    let page = latest.fetch(&server, "").await.ok();
    assert_eq!(records(&page), [""; 0]);
    let problem = error.fetch(&server, "").await.refused(Code::OffsetOutOfRange);
    assert_eq!((&problem["topic"], &problem["partition"]), (&json!("orders"), &json!(0)));
    assert_eq!((&problem["log_start_offset"], &problem["high_watermark"]), (&json!(0), &json!(2)));
    // an empty answer has its place in the cursor; without one, latest is what is newer still
    append(&server, "orders", 0, 1).await;
    let cursor = format!("cursor={}", page["cursor"].as_str().unwrap());
    assert_eq!(records(&latest.fetch(&server, &cursor).await.ok()), ["orders/0@2"]);
    assert_eq!(records(&latest.fetch(&server, "").await.ok()), [""; 0]);
    // a committed offset is what counts
    for member in [&latest, &error] {
        let commit = json!({"offsets": [{"topic": "orders", "partition": 0, "offset": 1}]});
        member.commit(&server, &member.joined, commit).await.ok();
        let page = member.fetch(&server, "").await.ok();
        assert_eq!(records(&page), ["orders/0@1", "orders/0@2"]);
    }
}

#[tokio::test]
async fn the_last_join_that_says_something_says_it_for_the_group() {
    let server = orders(1).await;
    append(&server, "orders", 0, 1).await;
    let a = Member::join(&server, "g", join("error")).await;
    a.fetch(&server, "").await.refused(Code::OffsetOutOfRange);
    Member::join(&server, "g", json!({"topics": ["orders"]})).await;
    a.fetch(&server, "").await.refused(Code::OffsetOutOfRange);
    let b = Member::join(&server, "g", join("earliest")).await;
    let taken = [a.fetch(&server, "").await.ok(), b.fetch(&server, "").await.ok()];
    assert_eq!(taken.iter().flat_map(records).collect::<Vec<_>>(), ["orders/0@0"]);
    joining(&server, "g", join("newest")).await.invalid(&["/auto_offset_reset"]);
}

#[tokio::test]
async fn an_offset_that_was_trimmed_away_is_none() {
    let server = orders(1).await;
    append(&server, "orders", 0, 5).await;
    let table: [(&str, Option<&[&str]>); 3] =
        [("earliest", Some(&["orders/0@3", "orders/0@4"])), ("latest", Some(&[])), ("error", None)];
    let mut members = Vec::new();
    for (reset, _) in table {
        let member = Member::join(&server, reset, join(reset)).await;
        let commit = json!({"offsets": [{"topic": "orders", "partition": 0, "offset": 1}]});
        member.commit(&server, &member.joined, commit).await.ok();
        assert_eq!(records(&member.fetch(&server, "").await.ok()).len(), 4);
        members.push(member);
    }
    trim(&server, 3).await;
    for (member, (reset, want)) in members.iter().zip(table) {
        let answer = member.fetch(&server, "").await;
        match want {
            Some(want) => assert_eq!(records(&answer.ok()), want, "{reset}"),
            None => {
                answer.refused(Code::OffsetOutOfRange);
            }
        }
    }
}

#[tokio::test]
async fn partitions_that_are_made_later_are_read_from_their_beginning() {
    let server = orders(1).await;
    append(&server, "orders", 0, 2).await;
    let a = Member::join(&server, "g", join("latest")).await;
    assert_eq!(records(&a.fetch(&server, "").await.ok()), [""; 0]);
    server.patch("/v1/topics/orders").json(json!({"partition_count": 3})).await.ok();
    append(&server, "orders", 1, 1).await;
    append(&server, "orders", 2, 1).await;
    server.broker.sweep().await.unwrap();
    let page = a.fetch(&server, "").await.ok();
    assert_eq!(owns(&page), "orders/0 orders/1 orders/2");
    assert_eq!(records(&page), ["orders/1@0", "orders/2@0"]);
    // also for who comes when they are old
    a.leave(&server).await;
    let b = Member::join(&server, "g", json!({"topics": ["orders"]})).await;
    assert_eq!(records(&b.fetch(&server, "").await.ok()), ["orders/1@0", "orders/2@0"]);
    // but not for another group, which finds them there
    let other = Member::join(&server, "other", join("latest")).await;
    assert_eq!(records(&other.fetch(&server, "").await.ok()), [""; 0]);
}

#[tokio::test]
async fn topics_that_match_and_are_made_later_are_read_from_their_beginning() {
    let server = Server::start().await;
    server.topic("carts.eu", 1).await;
    append(&server, "carts.eu", 0, 1).await;
    let pattern = json!({"topic_pattern": "^carts\\.", "auto_offset_reset": "latest"});
    let a = Member::join(&server, "g", pattern).await;
    assert_eq!(records(&a.fetch(&server, "").await.ok()), [""; 0]);
    server.topic("carts.us", 1).await;
    append(&server, "carts.us", 0, 1).await;
    server.broker.sweep().await.unwrap();
    let page = a.fetch(&server, "").await.ok();
    assert_eq!(
        (owns(&page).as_str(), records(&page)),
        ("carts.eu/0 carts.us/0", vec!["carts.us/0@0".into()])
    );
    // a topic that was there before the group subscribed to it is another case
    server.topic("orders", 1).await;
    append(&server, "orders", 0, 1).await;
    let b = Member::join(&server, "g", json!({"topics": ["orders"]})).await;
    assert_eq!(records(&b.fetch(&server, "").await.ok()), [""; 0]);
}
