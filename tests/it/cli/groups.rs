//! `oncelog group`, as people and scripts use it.

use serde_json::{Value, json};

use super::{client, run};
use crate::{
    contract::groups::offsets::offsets,
    support::http::{Server, token},
};

async fn world() -> (Server, String) {
    let server = Server::start().await;
    server.filled_topic("orders", 2, 10).await;
    server.filled_topic("audit", 1, 10).await;
    server.commit("billing", offsets(&[("orders", 0, 4), ("audit", 0, 10)])).await.ok();
    server.commit("mail", offsets(&[("orders", 1, 1)])).await.ok();
    let url = format!("http://{}", server.address);
    (server, url)
}

#[tokio::test]
async fn groups_are_listed_and_described() {
    let (_server, url) = world().await;
    let list = run(client(&url, &["group", "list"])).await.lines();
    let names: Vec<&Value> = list.iter().map(|group| &group["group"]).collect();
    assert_eq!(names, ["billing", "mail"]);
    let described = run(client(&url, &["group", "describe", "billing", "--json"])).await.lines();
    let lags: Vec<&Value> =
        described[0]["partitions"].as_array().unwrap().iter().map(|place| &place["lag"]).collect();
    assert_eq!(lags, [&json!(0), &json!(6)]);
    let none = run(client(&url, &["group", "describe", "none"])).await;
    assert!(none.failed(1).contains("`oncelog group list` lists all"), "{none:?}");
}

#[tokio::test]
async fn a_group_is_reset_once_it_was_seen_what_that_does() {
    let (server, url) = world().await;
    let reset = async |arguments: &[&str]| {
        let output = run(client(&url, &[&["group", "reset", "billing"], arguments].concat())).await;
        let told = output.stderr.clone();
        (output.lines().remove(0)["offsets"].clone(), told)
    };
    let at = |topic: &str, partition: i32, offset: i64| {
        let metadata = Value::Null;
        json!({"topic": topic, "partition": partition, "offset": offset, "metadata": metadata})
    };
    let (would, told) = reset(&["--to", "earliest", "--dry-run"]).await;
    assert_eq!(would, json!([at("audit", 0, 0), at("orders", 0, 0)]));
    assert!(told.contains("would reset group billing in 2 partitions; nothing changed"), "{told}");
    let (did, told) = reset(&["--by", "-3"]).await;
    assert_eq!(did, json!([at("audit", 0, 7), at("orders", 0, 1)]));
    assert!(told.contains("oncelog: reset group billing in 2 partitions"), "{told}");
    let (did, _) = reset(&["--topic", "orders", "--to", "5"]).await;
    assert_eq!(did, json!([at("orders", 0, 5), at("orders", 1, 5)]));
    let (did, _) =
        reset(&["--topic", "orders", "--topic", "audit", "--to", "2026-01-01T00:00:00Z"]).await;
    assert_eq!(did, json!([at("audit", 0, 0), at("orders", 0, 0), at("orders", 1, 0)]));
    let joined = server.member("billing", &["orders"], None).await;
    let refused = run(client(&url, &["group", "reset", "billing", "--to", "latest"])).await;
    assert!(refused.failed(1).contains("The group has members. Stop them first"), "{refused:?}");
    server.leave("billing", &joined).await;
}

#[tokio::test]
async fn a_group_is_deleted_when_that_is_meant() {
    let (_server, url) = world().await;
    let unasked = run(client(&url, &["group", "delete", "mail"])).await;
    assert!(unasked.failed(2).contains("--yes"), "{unasked:?}");
    let deleted = run(client(&url, &["group", "delete", "mail", "--yes"])).await;
    assert!(deleted.stderr.contains("deleted group mail"), "{deleted:?}");
    assert_eq!(run(client(&url, &["group", "list"])).await.lines().len(), 1);
    let again = run(client(&url, &["group", "delete", "mail", "--yes"])).await;
    assert!(again.failed(1).contains("group_not_found"), "{again:?}");
}

#[tokio::test]
async fn wrong_usage_is_told_before_a_server_is_asked() {
    let table: [(&[&str], &str); 6] = [
        (&["describe", "a b"], "a name must be"),
        (&["reset", "g"], "--to"),
        (&["reset", "g", "--to", "earliest", "--by", "1"], "cannot be used with"),
        (&["reset", "g", "--to", "newest"], "give earliest, latest, an offset, or an instant"),
        (&["reset", "g", "--to", "-1"], "--to"),
        (&["reset", "g", "--by", "many"], "--by"),
    ];
    for (arguments, said) in table {
        let output = run(client("http://127.0.0.1:9", &[&["group"], arguments].concat())).await;
        assert!(output.failed(2).contains(said), "{arguments:?}: {output:?}");
    }
}

#[tokio::test]
async fn a_token_for_some_groups_lists_those() {
    let server = Server::signed().await;
    let all = token("acme", "admin group consume");
    server.put("/v1/topics/orders").token(&all).await.created();
    for group in ["a", "b"] {
        server.commit(group, offsets(&[("orders", 0, 0)])).token(&all).await.ok();
    }
    let mut list = client(&format!("http://{}", server.address), &["group", "list"]);
    list.env("ONCELOG_TOKEN", token("acme", "group:b"));
    let list = run(list).await.lines();
    assert_eq!((list.len(), &list[0]["group"]), (1, &json!("b")));
}
