//! What a token covers of the topics that groups read: when it joins, fetches, commits and resets.

use oncelog::model::Code;
use serde_json::{Value, json};

use crate::support::http::{Answer, Server, token};

const MEMBERS: &str = "/v1/groups/billing/members";

/// A server with the topics `orders.eu` and `orders.us`.
async fn server() -> Server {
    let server = Server::signed().await;
    let admin = token("acme", "admin produce");
    for topic in ["orders.eu", "orders.us"] {
        let path = format!("/v1/topics/{topic}");
        server.put(&path).token(&admin).await.created();
        let append = json!({"records": [{"value": 1}, {"value": 2}]});
        server.post(&format!("{path}/records")).json(append).token(&admin).await.ok();
    }
    server
}

async fn join(server: &Server, body: Value, token: &str) -> String {
    let joined = server.post(MEMBERS).json(body).token(token).await.created();
    format!("{MEMBERS}/{}", joined["member_id"].as_str().unwrap())
}

fn topics(answer: &Value) -> Vec<&str> {
    let assigned = answer["assignment"].as_array().unwrap().iter();
    assigned.map(|topic| topic["topic"].as_str().unwrap()).collect()
}

/// A topic of the group, as described: to whom it is assigned, whether anybody owns it.
async fn described(server: &Server, topic: &str) -> (Value, Value) {
    let group = server.get("/v1/groups/billing").token(&token("acme", "group")).await.ok();
    let places = group["partitions"].as_array().unwrap().iter();
    let place = places.filter(|place| place["topic"] == topic).collect::<Vec<_>>();
    let [place] = place[..] else { panic!("{topic}: {group}") };
    (place["assigned_to"].clone(), place["member_id"].clone())
}

fn refused(answer: &Answer, scope: &str) {
    assert_eq!(answer.refused(Code::Forbidden)["required_scope"], scope);
}

#[tokio::test]
async fn a_member_is_assigned_what_its_token_covered_at_its_join() {
    let server = server().await;
    let narrow = token("acme", "group:billing consume:orders.eu");
    let named = server.post(MEMBERS).json(json!({"topics": ["orders.eu", "orders.us"]}));
    refused(&named.token(&narrow).await, "consume:orders.us");
    let member = join(&server, json!({"topic_pattern": "^orders"}), &narrow).await;
    let fetched = server.get(&format!("{member}/records")).token(&narrow).await.ok();
    assert_eq!(topics(&fetched), ["orders.eu"]);
    assert_eq!(fetched["records"].as_array().unwrap().len(), 2);
    // what nobody may read is nobody's
    assert_eq!(described(&server, "orders.us").await, (Value::Null, Value::Null));
    // topics that come later are no exception
    server.put("/v1/topics/orders.asia").token(&token("acme", "admin")).await.created();
    let beat = server.post(&format!("{member}/heartbeat")).json("{}").token(&narrow);
    assert_eq!(topics(&beat.await.ok()), ["orders.eu"]);
    // until somebody comes that may
    let wide = token("acme", "group consume:orders.*");
    let other = join(&server, json!({"topic_pattern": "^orders"}), &wide).await;
    let fetched = server.get(&format!("{other}/records")).token(&wide).await.ok();
    assert_eq!(topics(&fetched), ["orders.asia", "orders.us"]);
    // and when that one goes, it is nobody's again
    server.delete(&other).token(&wide).await.no_content();
    assert_eq!(described(&server, "orders.us").await, (Value::Null, Value::Null));
    let fetched = server.get(&format!("{member}/records")).token(&narrow).await.ok();
    assert_eq!(topics(&fetched), ["orders.eu"]);
}

#[tokio::test]
async fn a_group_alone_reads_nothing() {
    let server = server().await;
    let none = token("acme", "group");
    let member = join(&server, json!({"topic_pattern": "."}), &none).await;
    let fetched = server.get(&format!("{member}/records")).token(&none).await.ok();
    assert_eq!((topics(&fetched), &fetched["records"]), (vec![], &json!([])));
}

#[tokio::test]
async fn a_token_that_covers_less_joins_again() {
    let server = server().await;
    let wide = token("acme", "group consume");
    let body = json!({"topic_pattern": "^orders", "instance_id": "pod-1"});
    let member = join(&server, body.clone(), &wide).await;
    let narrow = token("acme", "group consume:orders.eu");
    let lines = server.get(&format!("{member}/records")).header("accept", "application/x-ndjson");
    refused(&lines.token(&narrow).await, "consume:orders.us");
    refused(&server.get(&format!("{member}/records")).token(&narrow).await, "consume:orders.us");
    // a heartbeat reads nothing
    let beat = server.post(&format!("{member}/heartbeat")).json("{}").token(&narrow);
    assert_eq!(topics(&beat.await.ok()), ["orders.eu", "orders.us"]);
    let member = join(&server, body, &narrow).await;
    let fetched = server.get(&format!("{member}/records")).token(&narrow).await.ok();
    assert_eq!(topics(&fetched), ["orders.eu"]);
}

#[tokio::test]
async fn commits_and_resets_need_the_right_to_read() {
    let server = server().await;
    let (group, read) = (token("acme", "group"), token("acme", "group consume:orders.eu"));
    let path = "/v1/groups/billing/offsets";
    let commit = |topic: &str| json!({"offsets": [{"topic": topic, "partition": 0, "offset": 1}]});
    // also of what is not there: 404 would say so
    for topic in ["orders.us", "nothing"] {
        for token in [&group, &read] {
            let answer = server.post(path).json(commit(topic)).token(token).await;
            refused(&answer, &format!("consume:{topic}"));
        }
    }
    server.post(path).json(commit("orders.eu")).token(&read).await.ok();
    let reset = format!("{path}/reset");
    let to = |body: Value| server.post(&reset).json(body);
    refused(&to(json!({"to": "latest"})).token(&group).await, "consume:orders.eu");
    let named = json!({"topics": ["orders.us"], "to": "latest"});
    refused(&to(named).token(&read).await, "consume:orders.us");
    to(json!({"to": "latest"})).token(&read).await.ok();
    let wide = token("acme", "group consume");
    server.post(path).json(commit("orders.us")).token(&wide).await.ok();
    refused(&to(json!({"to": "latest"})).token(&read).await, "consume:orders.us");
}

/// A cursor names its topics, too.
#[tokio::test]
async fn a_cursor_needs_the_right_to_read_all_its_topics() {
    let server = server().await;
    let wide = token("acme", "group consume produce");
    let member = join(&server, json!({"topic_pattern": "^orders"}), &wide).await;
    let fetched = server.get(&format!("{member}/records")).token(&wide).await.ok();
    let id = member.rsplit('/').next().unwrap();
    let by_cursor = json!({"member_id": id, "generation": fetched["generation"],
        "cursor": fetched["cursor"]});
    let narrow = token("acme", "group consume:orders.eu produce");
    let plain = server.post("/v1/groups/billing/offsets").json(&by_cursor);
    refused(&plain.token(&narrow).await, "consume:orders.us");
    let mut offset = by_cursor.clone();
    offset["group"] = json!("billing");
    let whole = json!({"commit": true, "offsets": [offset],
        "appends": [{"topic": "orders.eu", "records": [{"value": 3}]}]});
    refused(
        &server.post("/v1/transactions").json(&whole).token(&narrow).await,
        "consume:orders.us",
    );
    server.post("/v1/transactions").json(&whole).token(&wide).await.created();
}
