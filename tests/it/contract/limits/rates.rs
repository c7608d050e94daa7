//! The rates of tenants: who is kept out, before what, for how long, and what the headers say.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use oncelog::model::Code;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::support::{
    self,
    http::{Answer, Server, Setup, shared_keys, token},
};

/// A server where an operator has set these maxima for the tenant `acme`, which has a topic.
async fn limited(maxima: Value) -> (Server, String) {
    let server = Server::signed().await;
    let acme = token("acme", "admin produce consume group");
    server.put("/v1/topics/orders").token(&acme).await.created();
    maximum(&server, maxima).await;
    (server, acme)
}

async fn maximum(server: &Server, maxima: Value) {
    let operator = token("nobody", "operator");
    server.patch("/v1/tenants/acme").token(&operator).json(json!({"maxima": maxima})).await.ok();
}

/// The number of seconds that a refusal by this rate asks for.
#[track_caller]
fn kept_out(answer: &Answer, rate: &str, limit: i64) -> u64 {
    let problem = answer.refused(Code::RateLimited);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("{rate} is {limit}; ")), "{detail}");
    assert_eq!((&problem["limit"], &problem["retry"]), (&json!(limit), &json!("later")));
    assert_eq!(problem["side_effects"], "none");
    answer.header("retry-after").unwrap().parse().unwrap()
}

/// Calls until the rate keeps it out: on a slow machine something comes in between.
async fn until_kept_out(call: impl AsyncFn() -> Answer) -> Answer {
    for _ in 0..100 {
        let answer = call().await;
        if answer.status == 429 {
            return answer;
        }
        answer.ok();
    }
    panic!("no call was too many");
}

#[tokio::test]
async fn requests_beyond_the_rate_are_kept_out() {
    let (server, acme) = limited(json!({"max_requests_per_s": 1})).await;
    let get = async || server.get("/v1/topics/orders").token(&acme).await;
    let first = get().await;
    first.ok();
    assert_eq!(first.header("ratelimit-policy"), Some("\"max_requests_per_s\";q=2;w=2"));
    assert!(first.header("ratelimit").unwrap().starts_with("\"max_requests_per_s\";r="));
    let refused = until_kept_out(get).await;
    assert!(kept_out(&refused, "max_requests_per_s", 1) <= 2);
    assert!(refused.header("ratelimit").unwrap().starts_with("\"max_requests_per_s\";r=0;t="));
    // neither is anybody else, nor a probe, nor an operator, nor who is refused by his token
    server.get("/v1/topics").token(&token("rival", "admin")).await.ok();
    server.get("/readyz").await.ok();
    server.get("/v1/tenants/acme").token(&token("acme", "operator")).await.ok();
    server.get("/v1/topics").token(&token("acme", "group")).await.refused(Code::Forbidden);
    server.get("/v1/topics").token("nothing").await.refused(Code::Unauthenticated);
    // an operator lets him in again
    maximum(&server, json!({"max_requests_per_s": "default"})).await;
    let answer = get().await;
    answer.ok();
    assert_eq!((answer.header("ratelimit"), answer.header("ratelimit-policy")), (None, None));
}

/// Every replica meters by itself, and a tenant may set itself less than its maximum.
#[tokio::test]
async fn each_replica_has_its_own_buckets() {
    let options = support::database().await;
    let setup = || Setup { keys: shared_keys(), ..Setup::default() };
    let [here, there] = [Server::on(&options, setup()).await, Server::on(&options, setup()).await];
    let acme = token("acme", "admin");
    let settings = json!({"max_requests_per_s": 1});
    here.patch("/v1/settings").token(&acme).json(settings).await.ok();
    until_kept_out(async || here.get("/v1/topics").token(&acme).await).await;
    there.get("/v1/topics").token(&acme).await.ok();
    until_kept_out(async || there.get("/v1/topics").token(&acme).await).await;
}

/// Decompressed bytes count, and one body may take the bucket far below zero. Then not even the
/// body of a request is awaited.
#[tokio::test]
async fn bytes_of_bodies_are_metered() {
    let (server, acme) = limited(json!({"max_bytes_in_per_s": 1_000})).await;
    let large = format!("{{\"value\": \"{}\"}}\n", "x".repeat(500_000));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(large.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    assert!(gzip.len() < 2_000);
    let append = server.post("/v1/topics/orders/records").token(&acme);
    let append = append.header("content-type", "application/x-ndjson");
    let appended = append.header("content-encoding", "gzip").body(gzip).await;
    appended.ok();
    let policy = "\"max_bytes_in_per_s\";q=2000;w=2;qu=\"content-bytes\"";
    assert_eq!(appended.header("ratelimit-policy"), Some(policy));
    assert!(appended.header("ratelimit").unwrap().starts_with("\"max_bytes_in_per_s\";r=0;t="));
    // reads, too: a tenant is admitted or not
    let read = server.get("/v1/topics/orders").token(&acme).await;
    let after_s = kept_out(&read, "max_bytes_in_per_s", 1_000);
    assert!((400..=499).contains(&after_s), "{after_s}");
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST /v1/topics/orders/records HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {acme}\r\n\
         content-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    kept_out(&Answer::read(&mut stream).await, "max_bytes_in_per_s", 1_000);
}

#[tokio::test]
async fn bytes_of_answers_are_metered() {
    let (server, acme) = limited(json!({})).await;
    let large = json!({"value": "y".repeat(300_000)});
    let append = server.post("/v1/topics/orders/records").token(&acme);
    append.json(json!({"records": [large]})).await.ok();
    maximum(&server, json!({"max_bytes_out_per_s": 1_000})).await;
    let read = || server.get("/v1/topics/orders/partitions/0/records?offset=0").token(&acme);
    // compression does not make it less
    let whole = read().header("accept-encoding", "gzip").await;
    assert_eq!(whole.status, 200);
    let after_s = kept_out(&read().await, "max_bytes_out_per_s", 1_000);
    assert!((200..=300).contains(&after_s), "{after_s}");
    // refusals take nothing: who asks too early does not keep himself out
    for _ in 0..50 {
        assert!(kept_out(&read().await, "max_bytes_out_per_s", 1_000) <= after_s);
    }
}

/// However long it waits.
#[tokio::test]
async fn a_wait_is_one_request() {
    let (server, acme) = limited(json!({"max_requests_per_s": 1})).await;
    let wait = server.get("/v1/topics/orders/partitions/0/records?offset=0&wait_ms=200");
    let answer = wait.token(&acme).await;
    answer.ok();
    let left = answer.header("ratelimit").unwrap();
    // on a slow machine it is full again
    let full = "\"max_requests_per_s\";r=2;t=0";
    assert!(left == "\"max_requests_per_s\";r=1;t=1" || left == full, "{left}");
}
