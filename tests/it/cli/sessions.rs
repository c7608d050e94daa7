//! `oncelog session`, as producers' operators use it.

use serde_json::{Value, json};

use super::{client, run};
use crate::support::served::Served;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_opened_shown_and_closed() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    let session =
        async |arguments: &[&str]| run(client(url, &[&["session"], arguments].concat())).await;
    let one = async |arguments: &[&str]| {
        let output = session(arguments).await;
        let told = output.stderr.clone();
        (output.lines().remove(0), told)
    };
    let (first, told) = one(&["open", "--transactional-id", "pay"]).await;
    let producer = first["producer_id"].to_string();
    assert_eq!((&first["epoch"], &first["duplicate"]), (&json!(0), &json!(false)));
    assert_eq!(told, format!("oncelog: opened a session: producer {producer}, epoch 0\n"));
    let again = ["open", "--transactional-id", "pay", "--transaction-timeout-ms", "2m"];
    let (second, told) =
        one(&[&again[..], &["--sequencing", "monotonic", "--sequences", "reset"]].concat()).await;
    assert_eq!((&second["epoch"], &second["producer_id"]), (&json!(1), &first["producer_id"]));
    assert_eq!(second["transaction_timeout_ms"], 120_000);
    assert_eq!(second["sequencing"], "monotonic");
    assert!(told.ends_with("epoch 1; older epochs are fenced\n"), "{told}");

    served.client.put_topic("t", 1).await;
    let append = json!({"producer_id": first["producer_id"], "epoch": 1, "sequence": 0,
        "records": [{"value": 1}]});
    served.client.post("/v1/topics/t/records", &append).await.ok(200);
    let (by_name, _) = one(&["show", "--transactional-id", "pay"]).await;
    assert_eq!(by_name["next_sequences"], json!([{"topic": "t", "next_sequence": 1}]));
    assert_eq!(one(&["show", &producer]).await.0, by_name);
    let other = one(&["open"]).await.0;
    let listed = session(&["list"]).await.lines();
    let names: Vec<&Value> = listed.iter().map(|session| &session["transactional_id"]).collect();
    assert_eq!(names, [&json!("pay"), &json!(null)]);

    // an old epoch closes nothing
    let (still, told) = one(&["close", &producer, "--epoch", "0"]).await;
    assert_eq!(still["closed"], false);
    assert!(told.contains("epoch 0 of producer") && told.contains("epoch 1 is newer"), "{told}");
    let done = format!("closed the session of producer {producer}, epoch 1");
    for done in [done, format!("the session of producer {producer} is closed already")] {
        let (closed, told) = one(&["close", "--transactional-id", "pay"]).await;
        assert_eq!((&closed["closed"], &closed["epoch"]), (&json!(true), &json!(2)));
        assert_eq!(told, format!("oncelog: {done}\n"));
    }
    let (closed, _) = one(&["end", &other["producer_id"].to_string()]).await;
    assert_eq!(closed["closed"], true);
    let refused = session(&["open", "--producer-id", &producer, "--epoch", "0"]).await;
    assert!(refused.failed(1).contains("(producer_fenced, HTTP 4"), "{refused:?}");
    let reopened = one(&["open", "--transactional-id", "pay"]).await.0;
    assert_eq!((&reopened["epoch"], &reopened["closed"]), (&json!(3), &json!(false)));

    let unknown = session(&["show", "--transactional-id", "nobody"]).await;
    let told = unknown.failed(1);
    assert!(told.contains("no session has the transactional id nobody"), "{told}");
    let named = session(&["show", "pay"]).await;
    assert!(named.failed(2).contains("use --transactional-id pay"), "{named:?}");
    let unknown = session(&["show", "999"]).await;
    let told = unknown.failed(1);
    assert!(
        told.contains("(unknown_producer, ") && told.contains("oncelog session list"),
        "{told}"
    );
}
