//! `oncelog status`: what a server is, whether it is well, what it does.

use serde_json::json;

use super::{client, run};
use crate::support::{
    self,
    proxy::Proxy,
    served::{Served, replica},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_does_is_counted() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    served.client.put_topic("orders", 3).await;
    served.client.put_topic("audit", 1).await;
    served.client.append("audit", 0, &[json!(1), json!(2), json!(3)]).await;
    let commit = json!({"offsets": [{"topic": "audit", "partition": 0, "offset": 1}]});
    served.client.post("/v1/groups/billing/offsets", &commit).await.ok(200);
    let begun = served.client.post("/v1/transactions", &json!({})).await.ok(201);
    let id = begun["transaction_id"].as_str().unwrap();
    for _ in 0..2 {
        served.client.post("/v1/transactions", &json!({})).await.ok(201);
    }
    let path = format!("/v1/transactions/{id}/prepare");
    served.client.post(&path, &json!({})).await.ok(200);
    let status = &run(client(url, &["status"])).await.lines()[0];
    assert_eq!((&status["ready"], &status["reason"]), (&json!(true), &json!(null)));
    assert_eq!(status["topics"], json!({"count": 2, "partitions": 4}));
    let groups = json!({"count": 1, "members": 0, "lag_records": 2, "lag_is_whole": true});
    assert_eq!(status["groups"], groups);
    assert_eq!(status["transactions"], json!({"ongoing": 2, "prepared": 1}));
    assert_eq!(status["embedded"], true, "it needs no token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_is_needs_no_token() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    // its token has admin, produce and consume
    let (_process, server) = replica(&proxy, &options).await;
    let status = &run(client(&server.url, &["status"])).await.lines()[0];
    assert_eq!((&status["ready"], &status["version"]), (&json!(true), &json!(null)));
    let elsewhere = status["load"]["error"].as_str().unwrap();
    assert!(elsewhere.contains("is on the admin listener"), "{elsewhere}");
    assert!(elsewhere.contains("--admin-url or ONCELOG_ADMIN_URL"), "{elsewhere}");
    let status = ["status", "--admin-url", &server.admin_url];
    let status = &run(client(&server.url, &status)).await.lines()[0];
    assert_eq!((&status["ready"], &status["version"]), (&json!(true), &json!("0.1.0")));
    assert!(status["uptime_s"].is_u64(), "{status}");
    assert_eq!(status["load"]["requests_per_s"], 0.0, "its own are not counted");
    let refused = status["topics"]["error"].as_str().unwrap();
    assert!(refused.contains("(unauthenticated, HTTP 401)"), "{refused}");
    assert_eq!(status["embedded"], json!(null));

    let mut command = client(&server.url, &["status"]);
    command.env("ONCELOG_TOKEN", server.token.as_deref().unwrap());
    let status = &run(command).await.lines()[0];
    assert_eq!(status["topics"], json!({"count": 0, "partitions": 0}));
    assert_eq!(status["embedded"], json!(null));
}

#[tokio::test]
async fn a_server_that_is_not_well_is_a_failure() {
    let output = run(client("http://127.0.0.1:9", &["status"])).await;
    let told = output.failed(1);
    assert!(told.starts_with("oncelog: not ready: http://127.0.0.1:9/ does not answer"), "{told}");
    let status: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((&status["ready"], &status["topics"]), (&json!(false), &json!(null)));
    assert!(status["reason"].as_str().unwrap().contains("Connection refused"), "{status}");
}
