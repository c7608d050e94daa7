//! What members subscribe to, and what comes and goes with the tenant's topics.

use super::*;

#[tokio::test]
async fn names_and_a_pattern_together_are_their_union() {
    let server = Server::start().await;
    for topic in ["carts.eu", "carts.us", "orders", "xcarts"] {
        server.topic(topic, 1).await;
    }
    let join = json!({"topics": ["orders", "carts.eu"], "topic_pattern": "^carts\\."});
    let member = Member::join(&server, "g", join).await;
    assert_eq!(owns(&member.joined), "carts.eu/0 carts.us/0 orders/0");
    let join = json!({"topic_pattern": "arts", "instance_id": "i"});
    let member = Member::join(&server, "anywhere", join).await;
    assert_eq!(owns(&member.joined), "carts.eu/0 carts.us/0 xcarts/0");
}

#[tokio::test]
async fn each_member_gets_of_what_it_subscribes_to() {
    let server = Server::start().await;
    server.topic("carts", 2).await;
    server.topic("orders", 2).await;
    let carts = Member::join(&server, "g", json!({"topics": ["carts"]})).await;
    let orders = Member::join(&server, "g", json!({"topics": ["orders"]})).await;
    assert_eq!(owns(&carts.joined), "carts/0 carts/1");
    assert_eq!(owns(&orders.joined), "orders/0 orders/1");
    // who goes leaves what nobody else wants
    carts.leave(&server).await;
    assert_eq!(owns(&orders.heartbeat(&server).await.ok()), "orders/0 orders/1");
}

#[tokio::test]
async fn new_partitions_and_topics_come_in_with_the_next_round_and_end_no_wait_without_records() {
    let (here, there) = replicas().await;
    here.topic("orders", 1).await;
    let join = json!({"topics": ["orders"], "topic_pattern": "^carts"});
    let a = Member::join(&here, "g", join.clone()).await;
    let b = Member::join(&there, "g", join).await;
    let generation = b.joined["generation"].as_i64().unwrap();
    here.patch("/v1/topics/orders").json(json!({"partition_count": 3})).await.ok();
    here.topic("carts", 1).await;
    here.topic("elsewhere", 1).await;
    there.broker.sweep().await.unwrap();
    let told = [a.heartbeat(&there).await.ok(), b.heartbeat(&here).await.ok()];
    let mut owned: Vec<String> = told
        .iter()
        .flat_map(|told| owns(told).split(' ').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    owned.sort();
    assert_eq!(owned, ["carts/0", "orders/0", "orders/1", "orders/2"]);
    assert_eq!(told[0]["generation"], generation + 1);
    // other topics change nothing
    here.topic("somewhere", 1).await;
    there.broker.sweep().await.unwrap();
    assert_eq!(a.heartbeat(&here).await.ok()["generation"], generation + 1);
}

#[tokio::test]
async fn a_topic_that_is_deleted_goes_without_a_letting_go() {
    let server = Server::start().await;
    server.topic("carts", 1).await;
    server.topic("orders", 1).await;
    append(&server, "orders", 0, 1).await;
    let a = Member::join(&server, "g", json!({"topics": ["carts", "orders"]})).await;
    server.delete("/v1/topics/carts").await.no_content();
    let page = a.fetch(&server, "").await.ok();
    assert_eq!(records(&page), ["orders/0@0"]);
    server.broker.sweep().await.unwrap();
    let page = a.fetch(&server, "").await.ok();
    assert_eq!((owns(&page).as_str(), revoked(&page).as_str()), ("orders/0", ""));
    a.commit_all(&server, &page).await.ok();
    // all of them
    server.delete("/v1/topics/orders").await.no_content();
    server.broker.sweep().await.unwrap();
    assert_eq!(owns(&a.heartbeat(&server).await.ok()), "");
}

#[tokio::test]
async fn one_tenants_group_is_none_of_anothers() {
    use crate::support::http::token;
    let server = Server::signed().await;
    let all = |tenant: &str| token(tenant, "admin produce consume group");
    for tenant in ["a", "b"] {
        server.put("/v1/topics/orders").token(&all(tenant)).await.created();
    }
    let mut members = Vec::new();
    for tenant in ["a", "b"] {
        let join = joining(&server, "g", json!({"topics": ["orders"]})).token(&all(tenant));
        let joined = join.await.created();
        assert_eq!((owns(&joined).as_str(), &joined["generation"]), ("orders/0", &json!(1)));
        members.push(joined["member_id"].as_str().unwrap().to_owned());
    }
    let of_a = format!("/v1/groups/g/members/{}", members[0]);
    for (call, tenant, status) in [
        (server.post(&format!("{of_a}/heartbeat")), "b", 404),
        (server.get(&format!("{of_a}/records")), "b", 404),
        (server.delete(&of_a), "b", 404),
        (server.post(&format!("{of_a}/heartbeat")), "a", 200),
    ] {
        assert_eq!(call.token(&all(tenant)).await.status, status);
    }
    // nor is its cursor
    let cursor =
        server.get(&format!("{of_a}/records")).token(&all("a")).await.ok()["cursor"].clone();
    let of_b =
        format!("/v1/groups/g/members/{}/records?cursor={}", members[1], cursor.as_str().unwrap());
    server.get(&of_b).token(&all("b")).await.refused(Code::InvalidCursor);
}
