//! Topics that grow between appends of all kinds, through several replicas.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::http::{Server, Setup};

#[tokio::test]
async fn a_topic_that_has_grown_between_two_keys_takes_appends() {
    let server = Server::start().await;
    server.topic("h1", 2).await;
    let records = "/v1/topics/h1/records";
    let keyed = |value: i64| json!({"records": [{"key": "c", "value": value}]});
    server.post(records).json(keyed(1)).await.ok();
    server.patch("/v1/topics/h1").json(json!({"partition_count": 4})).await.ok();
    let call = server.post("/v1/topics/h1/partitions/1/records").header("idempotency-key", "k1");
    call.json(json!({"records": [{"value": 1}]})).await.ok();
    server.post(records).json(keyed(2)).await.ok();
}

/// An append of any kind to a topic of that many partitions; none is refused.
fn an_append(
    rng: &mut StdRng,
    n: usize,
    partitions: i64,
    sequence: &mut i64,
    producer: i64,
) -> (String, Option<String>, Value) {
    let mut record = json!({"key": format!("k{}", rng.random_range(0..9)), "value": n});
    if rng.random_bool(0.3) {
        record["id"] = json!(format!("id-{n}"));
    }
    let mut body = json!({"records": [record]});
    let scope = match rng.random_bool(0.5) {
        true => format!("/v1/topics/t/partitions/{}/records", rng.random_range(0..partitions)),
        false => "/v1/topics/t/records".to_owned(),
    };
    match rng.random_range(0..4) {
        0 => (scope, None, body),
        1 => (scope, Some(format!("key-{n}")), body),
        2 => {
            body["producer_id"] = json!(producer);
            body["epoch"] = json!(0);
            body["sequence"] = json!(*sequence);
            *sequence += 1;
            ("/v1/topics/t/records".to_owned(), None, body)
        }
        _ => {
            let append = json!({"topic": "t", "records": body["records"]});
            let transaction =
                json!({"transaction_id": Uuid::now_v7(), "appends": [append], "commit": true});
            ("/v1/transactions".to_owned(), None, transaction)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growth_between_appends_of_all_kinds_refuses_none_on_any_replica() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let one = Server::start().await;
    let replicas = [Server::on(&one.options, Setup::default()).await, one];
    for life in 0..8 {
        let any = |rng: &mut StdRng| rng.random_range(0..replicas.len());
        let mut partitions = rng.random_range(1..4);
        replicas[0].topic("t", partitions as i32).await;
        let open = replicas[0].post("/v1/sessions").json("{}").await.created();
        let producer = open["producer_id"].as_i64().unwrap();
        let (mut sequence, mut stored) = (0, 0);
        for n in 0..24 {
            if rng.random_bool(0.2) {
                partitions += rng.random_range(1..3);
                let grown = replicas[any(&mut rng)].patch("/v1/topics/t");
                grown.json(json!({"partition_count": partitions})).await.ok();
            }
            let (path, key, body) = an_append(&mut rng, n, partitions, &mut sequence, producer);
            for attempt in 0..2 {
                let call = replicas[any(&mut rng)].post(&path).json(&body);
                let call = match &key {
                    Some(key) => call.header("idempotency-key", &format!("{life}-{key}")),
                    None => call,
                };
                let answer = call.await;
                assert!(matches!(answer.status, 200 | 201), "{path} {body}: {}", answer.text());
                stored += usize::from(answer.json()["duplicate"] == false);
                // a repeat is one, or is stored again where nothing shows it
                assert!(attempt == 0 || stored > 0);
            }
        }
        let mut found = 0;
        for partition in 0..partitions {
            let path = format!("/v1/topics/t/partitions/{partition}/records?limit=10000");
            let page = replicas[any(&mut rng)].get(&path).await.ok();
            found += page["records"].as_array().unwrap().len();
        }
        assert_eq!(found, stored);
        replicas[any(&mut rng)].delete("/v1/topics/t").await.no_content();
    }
}
