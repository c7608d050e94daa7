//! Cursors of every length: what the server gives it also takes.

use oncelog::broker::ServiceConfig;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Executor};

use crate::support::{
    self,
    served::{Answer, Client, Served},
};

const MAX_HEAD_CURSOR_BYTES: usize = 8 << 10;

async fn post_for_lines(client: &Client, path: &str, body: &Value) -> Answer {
    let headers = [("content-type", "application/json"), ("accept", "application/x-ndjson")];
    client.send(Method::POST, path, &headers, Some(body.to_string())).await.unwrap()
}

fn cursor(page: &Value) -> &str {
    page["cursor"].as_str().unwrap()
}

/// What says that it is too long, and what to do.
fn is_too_long(answer: &Answer, pointer: &str, remedy: &str) {
    assert_eq!(answer.problem(), (400, "invalid_request".into()));
    let fault = &answer.json()["errors"][0];
    let detail = fault["detail"].as_str().unwrap();
    assert!(fault["pointer"] == pointer && detail.contains(remedy), "{fault}");
}

/// A read by URL and by body is the same read.
#[tokio::test]
async fn by_url_or_by_body_it_is_the_same_read() {
    let served = Served::alone().await;
    let client = &served.client;
    client.put_topic("t", 2).await;
    for partition in [0, 1, 0] {
        client.append("t", partition, &[json!(1), json!(2)]).await;
    }
    let joined = client.post("/v1/groups/g/members", &json!({"topics": ["t"]})).await.ok(201);
    let member = format!("/v1/groups/g/members/{}/records", joined["member_id"].as_str().unwrap());
    for (get, post) in [(&*member, &*member), ("/v1/topics/t/records", "/v1/topics/t/reads")] {
        let (mut query, mut body) = ("?limit=2".to_owned(), json!({"limit": 2}));
        for _ in 0..4 {
            let path = format!("{get}{query}");
            let page = client.get(&path).await.ok(200);
            assert_eq!(client.post(post, &body).await.ok(200), page);
            let (lines, same) =
                (client.get_ndjson(&path).await, post_for_lines(client, post, &body));
            let same = same.await;
            assert_eq!(lines.text, same.text);
            assert_eq!(lines.headers["oncelog-cursor"], same.headers["oncelog-cursor"]);
            assert_eq!(lines.headers["oncelog-cursor"].to_str().unwrap(), cursor(&page));
            query = format!("?limit=2&cursor={}", cursor(&page));
            body = json!({"limit": 2, "cursor": cursor(&page)});
        }
        for (body, pointer) in [
            (json!({"limit": 0}), "/limit"),
            (json!({"wait_ms": 60_001}), "/wait_ms"),
            (json!({"max_bytes": "1"}), "/max_bytes"),
            (json!({"partition": 1}), "/partition"),
        ] {
            let refused = client.post(post, &body).await;
            assert_eq!(refused.problem(), (400, "invalid_request".into()));
            assert_eq!(refused.json()["errors"][0]["pointer"], pointer);
        }
        let refused = client.post(post, &json!({"cursor": "AAAA"})).await;
        assert_eq!(refused.problem(), (400, "invalid_cursor".into()));
        let twice = client.post(&format!("{post}?limit=1"), &json!({})).await;
        assert_eq!(twice.json()["errors"][0]["pointer"], "?limit");
    }
    let both = json!({"cursor": "AAAA", "offset": "latest"});
    let refused = client.post("/v1/topics/t/reads", &both).await;
    assert_eq!(refused.json()["errors"][0]["pointer"], "/cursor");
}

/// As long as a URL takes it, and a byte longer; in a body both are judged as cursors.
#[tokio::test]
async fn a_url_takes_8_kib_and_no_more() {
    let served = Served::alone().await;
    let client = &served.client;
    client.put_topic("t", 1).await;
    let joined = client.post("/v1/groups/g/members", &json!({"topics": ["t"]})).await.ok(201);
    let member = format!("/v1/groups/g/members/{}/records", joined["member_id"].as_str().unwrap());
    for (get, post) in [(&*member, &*member), ("/v1/topics/t/records", "/v1/topics/t/reads")] {
        let [longest, longer] = [0, 1].map(|more| "A".repeat(MAX_HEAD_CURSOR_BYTES + more));
        let judged = client.get(&format!("{get}?cursor={longest}")).await;
        assert_eq!(judged.problem(), (400, "invalid_cursor".into()));
        is_too_long(&client.get(&format!("{get}?cursor={longer}")).await, "?cursor", "POST /v1/");
        for cursor in [longest, longer, "A".repeat(1 << 20)] {
            let judged = client.post(post, &json!({"cursor": cursor})).await;
            assert_eq!(judged.problem(), (400, "invalid_cursor".into()));
        }
    }
}

/// A byte a partition that is empty, and eleven around them, in base64.
#[tokio::test]
async fn a_header_takes_8_kib_and_no_more() {
    const HEADS: usize = 7;
    let fitting = i32::try_from(MAX_HEAD_CURSOR_BYTES / 4 * 3 - HEADS).unwrap();
    let served = Served::alone().await;
    let client = &served.client;
    client.put_topic("t", fitting).await;
    let path = "/v1/topics/t/records";
    let lines = client.get_ndjson(path).await;
    assert_eq!(lines.status, 200, "{}", lines.text);
    assert_eq!(lines.headers["oncelog-cursor"].len(), MAX_HEAD_CURSOR_BYTES);
    let grown = json!({"partition_count": fitting + 1}).to_string();
    let json = [("content-type", "application/json")];
    client.send(Method::PATCH, "/v1/topics/t", &json, Some(grown)).await.unwrap().ok(200);
    is_too_long(&client.get_ndjson(path).await, "Accept", "application/json");
    let page = client.get(path).await.ok(200);
    assert!(cursor(&page).len() > MAX_HEAD_CURSOR_BYTES);
    let body = json!({"cursor": cursor(&page)});
    client.post("/v1/topics/t/reads", &body).await.ok(200);
    let lines = post_for_lines(client, "/v1/topics/t/reads", &body).await;
    is_too_long(&lines, "Accept", "application/json");
}

/// Nearly all partitions that a tenant may have by default, far apart: the cursor is longer than
/// any head of a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_with_9_900_partitions_goes_on_by_cursor() {
    const PARTITIONS: i32 = 9_900;
    let options = support::database().await;
    let served = Served::start(&options, ServiceConfig::default()).await;
    let client = &served.client;
    client.put_topic("t", PARTITIONS).await;
    let mut hand = options.connect().await.unwrap();
    hand.execute(
        "update oncelog.logs set log_start_offset = o, next_offset = o from ( \
             select log_id as id, (random() * 1e12)::bigint as o from oncelog.logs) as far \
         where log_id = id and partition is not null",
    )
    .await
    .unwrap();
    let joined = client.post("/v1/groups/g/members", &json!({"topics": ["t"]})).await.ok(201);
    let member = joined["member_id"].as_str().unwrap();
    let path = format!("/v1/groups/g/members/{member}/records");
    client.append("t", 7, &[json!("first")]).await;
    let first = client.get(&path).await.ok(200);
    assert_eq!(first["records"][0]["value"], "first");
    let length = cursor(&first).len();
    println!("a cursor of {length} bytes");
    assert!(length > 64 << 10);
    // more than any server takes in a head
    let by_url = client.get(&format!("{path}?cursor={}", &cursor(&first)[..30_000])).await;
    is_too_long(&by_url, "?cursor", "POST /v1/groups/{group}/members/{member_id}/records");
    let by_body = json!({"cursor": cursor(&first)});
    assert_eq!(client.post(&path, &by_body).await.ok(200)["records"], json!([]));
    client.append("t", 9_800, &[json!("second")]).await;
    let second = client.post(&path, &by_body).await.ok(200);
    assert_eq!(second["records"][0]["value"], "second");
    is_too_long(&post_for_lines(client, &path, &by_body).await, "Accept", "application/json");
    let commit = json!({"member_id": member, "generation": second["generation"],
        "cursor": cursor(&second)});
    let committed = client.post("/v1/groups/g/offsets", &commit).await.ok(200);
    assert_eq!(committed["offsets"].as_array().unwrap().len(), PARTITIONS as usize);
    // and from what is committed
    assert_eq!(client.get(&path).await.ok(200)["records"], json!([]));
    // the whole topic likewise
    let page = client.get("/v1/topics/t/records?limit=1").await.ok(200);
    assert!(cursor(&page).len() > 64 << 10);
    let body = json!({"cursor": cursor(&page)});
    let page = client.post("/v1/topics/t/reads", &body).await.ok(200);
    assert_eq!(page["records"].as_array().unwrap().len(), 1);
}
