//! The real program, three replicas of it, killed again and again while clients send with ids and
//! keys until they are answered: each record is stored once, where it was said to lie.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    self,
    proxy::Proxy,
    served::{Client, partition_path, replica, until},
};

const REPLICAS: usize = 3;
const SENDERS: usize = 6;
const PARTITIONS: i32 = 2;
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// (partition, offset).
type Place = (i64, i64);

struct World {
    /// Of the replicas, as they are reached now.
    clients: Mutex<Vec<Client>>,
    /// Where each record was said to lie, by what it holds.
    learned: Mutex<BTreeMap<String, Place>>,
    enough: AtomicBool,
}

impl World {
    fn client(&self, rng: &mut StdRng) -> Client {
        self.clients.lock().unwrap()[rng.random_range(0..REPLICAS)].clone()
    }

    fn learn(&self, records: &[Value], answer: &Value, partition: Option<i32>) {
        let mut learned = self.learned.lock().unwrap();
        for (index, record) in records.iter().enumerate() {
            let place = match (&answer["offsets"], partition) {
                (Value::Null, Some(partition)) => {
                    (partition.into(), answer["base_offset"].as_i64().unwrap() + index as i64)
                }
                (offsets, _) => {
                    let place = &offsets[index];
                    (place["partition"].as_i64().unwrap(), place["offset"].as_i64().unwrap())
                }
            };
            let value = record["value"].as_str().unwrap().to_owned();
            let first = *learned.entry(value.clone()).or_insert(place);
            assert_eq!(first, place, "{value}");
        }
    }
}

/// Sends one request after the other, each through any replica until it is answered.
async fn send(world: Arc<World>, sender: usize, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut number = 0;
    while !world.enough.load(Ordering::Relaxed) {
        number += 1;
        let own = format!("{sender} {number}");
        // others send it as well
        let shared = format!("shared {}", number / 2);
        let is_keyed = number % 3 == 0;
        let records = match is_keyed {
            true => vec![json!({"value": own}), json!({"value": format!("{own}, too")})],
            false => {
                [shared, own.clone()].iter().map(|id| json!({"id": id, "value": id})).collect()
            }
        };
        let partition = rng.random_bool(0.5).then(|| rng.random_range(0..PARTITIONS));
        let path = match partition {
            Some(partition) => partition_path("orders", partition),
            None => "/v1/topics/orders/records".to_owned(),
        };
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(is_keyed.then_some(("idempotency-key", own.as_str())));
        let body = json!({"records": records}).to_string();
        loop {
            let client = world.client(&mut rng);
            match client.send(Method::POST, &path, &headers, Some(body.clone())).await {
                Ok(answer) if answer.status == 200 => {
                    world.learn(&records, &answer.json(), partition);
                    break;
                }
                Ok(answer) => assert_eq!(answer.status, 503, "{}", answer.text),
                Err(_) => {}
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }
}

async fn stored(client: &Client) -> BTreeMap<String, Place> {
    let mut stored = BTreeMap::new();
    for partition in 0..PARTITIONS {
        let mut next = 0;
        loop {
            let query = format!("offset={next}&limit=10000&max_bytes=16777216");
            let page = client.read("orders", partition, &query).await.ok(200);
            for record in page["records"].as_array().unwrap() {
                let value = record["value"].as_str().unwrap().to_owned();
                let place = (i64::from(partition), record["offset"].as_i64().unwrap());
                let twice = stored.insert(value, place);
                assert_eq!(twice, None, "{record} is stored twice");
            }
            if page["next_offset"] == page["high_watermark"] {
                break;
            }
            next = page["next_offset"].as_i64().unwrap();
        }
    }
    stored
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_replica_is_killed_every_record_with_an_id_or_a_key_is_stored_once() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let options = support::database().await;
    let (mut processes, mut clients, mut proxies) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..REPLICAS {
        let proxy = Proxy::start(&options, rng.random()).await;
        let (process, client) = replica(&proxy, &options).await;
        processes.push(process);
        clients.push(client);
        proxies.push(proxy);
    }
    clients[0].put_topic("orders", PARTITIONS).await;
    let world = Arc::new(World {
        clients: Mutex::new(clients),
        learned: Mutex::default(),
        enough: AtomicBool::new(false),
    });
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| tokio::spawn(send(world.clone(), sender, rng.random())))
        .collect();
    for round in 0..9 {
        let wanted = world.learned.lock().unwrap().len() + 60;
        let learned = || world.learned.lock().unwrap().len();
        until("more answers", async || (learned() >= wanted).then_some(())).await;
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..50_000))).await;
        let killed = round % REPLICAS;
        processes[killed].kill_9().await;
        let (process, client) = replica(&proxies[killed], &options).await;
        processes[killed] = process;
        world.clients.lock().unwrap()[killed] = client;
    }
    world.enough.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.await.unwrap();
    }
    let client = world.client(&mut rng);
    let learned = std::mem::take(&mut *world.learned.lock().unwrap());
    assert_eq!(stored(&client).await, learned);
    println!("{} records", learned.len());
}
