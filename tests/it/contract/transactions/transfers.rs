//! Money between accounts by consume-transform-produce: workers read commands, and each transaction
//! holds debits, credits and the step of the group over its commands. The servers are real
//! processes, killed at random. No view of what is committed ever shows money made or lost, and
//! every transfer is done exactly once.
//!
//! `make torture` does a thousand of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

use crate::support::{
    self,
    proxy::Proxy,
    served::{Answer, Client, PATIENCE, Process, replica, until},
};

const ACCOUNTS: usize = 10;
const OPENING: i64 = 1_000;
const COMMANDS: &str = "commands";
const PARTITIONS: i32 = 4;
const GROUP: &str = "bank";
const WORKERS: u64 = 4;
const REPLICAS: usize = 2;
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// What a transfer asks for, and what is stored of each half.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Transfer {
    number: i64,
    from: usize,
    to: usize,
    amount: i64,
}

impl Transfer {
    fn random(number: i64, rng: &mut StdRng) -> Self {
        let from = rng.random_range(0..ACCOUNTS);
        let to = (from + rng.random_range(1..ACCOUNTS)) % ACCOUNTS;
        Self { number, from, to, amount: rng.random_range(1..=200) }
    }

    fn command(&self) -> Value {
        json!({"number": self.number, "from": self.from, "to": self.to, "amount": self.amount})
    }

    fn of(command: &Value) -> Self {
        let number = |name: &str| command[name].as_i64().unwrap();
        let account = |name: &str| number(name) as usize;
        let (from, to) = (account("from"), account("to"));
        Self { number: number("number"), from, to, amount: number("amount") }
    }

    /// A debit and a credit, as appends; `of`: how many records their transaction has.
    fn halves(&self, of: usize) -> [Value; 2] {
        let half = |account: usize, amount: i64| {
            let value = json!({"number": self.number, "amount": amount, "of": of});
            json!({"topic": account_topic(account), "records": [{"value": value}]})
        };
        [half(self.from, -self.amount), half(self.to, self.amount)]
    }
}

fn account_topic(account: usize) -> String {
    format!("account-{account}")
}

/// The replicas that are up, and what was done through them.
struct Bank {
    clients: Mutex<Vec<Client>>,
    committed: AtomicU64,
    enough: AtomicBool,
    told: Mutex<BTreeMap<String, u64>>,
}

impl Bank {
    fn client(&self, rng: &mut StdRng) -> Client {
        self.clients.lock().unwrap()[rng.random_range(0..REPLICAS)].clone()
    }

    fn count(&self, what: impl Into<String>) {
        *self.told.lock().unwrap().entry(what.into()).or_default() += 1;
    }

    /// Sends until there is an answer that `retry` does not ask to send again: success, or never.
    async fn send(&self, rng: &mut StdRng, path: &str, body: Option<&Value>) -> Answer {
        let given_up = Instant::now() + PATIENCE;
        loop {
            let client = self.client(rng);
            let json = [("content-type", "application/json")];
            let sent = match body {
                Some(body) => client.send(Method::POST, path, &json, Some(body.to_string())).await,
                None => client.send(Method::GET, path, &[], None).await,
            };
            match sent {
                Ok(answer) if answer.status < 300 => return answer,
                Ok(answer) => {
                    let problem = answer.json();
                    let code = problem["code"].as_str().unwrap().to_owned();
                    self.count(code);
                    if problem["retry"] != "later" && problem["retry"] != "same" {
                        return answer;
                    }
                }
                Err(_) => self.count("no answer"),
            }
            assert!(Instant::now() < given_up, "{path}: {body:?}");
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    async fn get(&self, rng: &mut StdRng, path: &str) -> Value {
        self.send(rng, path, None).await.ok(200)
    }

    /// Where the group goes on in a partition of the commands.
    async fn committed_offset(&self, rng: &mut StdRng, partition: i32) -> Option<i64> {
        let answer = self.send(rng, &format!("/v1/groups/{GROUP}/offsets"), None).await;
        if answer.status == 404 {
            return None;
        }
        let answer = answer.ok(200);
        let mut offsets = answer["offsets"].as_array().unwrap().iter();
        offsets.find(|offset| offset["partition"] == partition)?["offset"].as_i64()
    }

    /// One worker: takes whatever partition, does what comes next there; others may do the same.
    async fn work(&self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut finished: BTreeSet<i32> = BTreeSet::new();
        while finished.len() < PARTITIONS as usize {
            let partition = rng.random_range(0..PARTITIONS);
            let from = self.committed_offset(&mut rng, partition).await;
            let (at, limit) = (from.unwrap_or(0), rng.random_range(1..=3));
            let path = format!("/v1/topics/{COMMANDS}/partitions/{partition}/records");
            let page = self.get(&mut rng, &format!("{path}?offset={at}&limit={limit}")).await;
            let commands = page["records"].as_array().unwrap();
            if commands.is_empty() {
                finished.insert(partition);
                continue;
            }
            let offset = json!({"group": GROUP, "topic": COMMANDS, "partition": partition,
                "expected_offset": from, "offset": page["next_offset"]});
            let transfers = commands.iter().map(|command| Transfer::of(&command["value"]));
            let halves = transfers.flat_map(|transfer| transfer.halves(2 * commands.len()));
            let (appends, offsets) = (halves.collect::<Vec<_>>(), vec![offset]);
            let done = if rng.random() {
                self.in_one_request(&mut rng, &appends, &offsets).await
            } else {
                self.in_several(&mut rng, &appends, &offsets).await
            };
            if done {
                self.committed.fetch_add(commands.len() as u64, Ordering::Relaxed);
            }
        }
    }

    async fn in_one_request(&self, rng: &mut StdRng, appends: &[Value], offsets: &[Value]) -> bool {
        let id = Uuid::now_v7();
        let body =
            json!({"transaction_id": id, "commit": true, "appends": appends, "offsets": offsets});
        let answer = self.send(rng, "/v1/transactions", Some(&body)).await;
        self.is_committed(&answer, "whole")
    }

    /// True: committed. Another worker may have been quicker.
    fn is_committed(&self, answer: &Answer, form: &str) -> bool {
        if answer.status < 300 {
            assert_eq!(answer.json()["state"], "committed");
            self.count(format!("{form}, committed"));
            return true;
        }
        assert_eq!(answer.problem().1, "offset_commit_conflict", "{}", answer.text);
        false
    }

    async fn in_several(&self, rng: &mut StdRng, appends: &[Value], offsets: &[Value]) -> bool {
        let id = Uuid::now_v7();
        let mut begin = json!({"transaction_id": id});
        if rng.random_bool(0.1) {
            // this worker forgets what it began
            begin["appends"] = json!(appends);
            begin["timeout_ms"] = json!(200);
            let answer = self.send(rng, "/v1/transactions", Some(&begin)).await;
            assert!(answer.status < 300, "{}", answer.text);
            self.count("staged, forgotten");
            return false;
        }
        self.send(rng, "/v1/transactions", Some(&begin)).await;
        let path = format!("/v1/transactions/{id}");
        for (sequence, appends) in appends.chunks(2).enumerate() {
            let records = json!({"sequence": sequence, "appends": appends});
            self.send(rng, &format!("{path}/records"), Some(&records)).await.ok(200);
        }
        let mut commit = json!({"expected_appends": appends.len()});
        let prepares = rng.random_bool(0.3);
        if prepares {
            let body = json!({"offsets": offsets});
            self.send(rng, &format!("{path}/offsets"), Some(&body)).await.ok(200);
            let prepared = self.send(rng, &format!("{path}/prepare"), Some(&json!({}))).await;
            if prepared.status >= 300 {
                assert_eq!(prepared.problem().1, "offset_commit_conflict", "{}", prepared.text);
            }
        } else {
            commit["offsets"] = json!(offsets);
        }
        let answer = self.send(rng, &format!("{path}/commit"), Some(&commit)).await;
        let committed = self.is_committed(&answer, if prepares { "prepared" } else { "staged" });
        if !committed {
            let aborted = self.send(rng, &format!("{path}/abort"), Some(&json!({}))).await;
            assert_eq!(aborted.ok(200)["state"], "aborted");
        }
        committed
    }
}

/// A record of an account.
#[derive(Clone, Debug)]
struct Entry {
    account: usize,
    transaction: String,
    number: i64,
    amount: i64,
    of: usize,
}

impl Bank {
    /// What has been added to the accounts since these offsets, which go on.
    async fn read_on(&self, rng: &mut StdRng, next: &mut [i64; ACCOUNTS]) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (account, next) in next.iter_mut().enumerate() {
            loop {
                let path = format!("/v1/topics/{}/partitions/0/records", account_topic(account));
                let page = self.get(rng, &format!("{path}?offset={next}&limit=10000")).await;
                for record in page["records"].as_array().unwrap() {
                    assert_eq!(record["offset"], *next, "offsets are dense");
                    let value = &record["value"];
                    let number = |name: &str| value[name].as_i64().unwrap();
                    entries.push(Entry {
                        account,
                        transaction: record["transaction_id"].as_str().unwrap().to_owned(),
                        number: number("number"),
                        amount: number("amount"),
                        of: number("of") as usize,
                    });
                    *next += 1;
                }
                if page["next_offset"] == page["high_watermark"] {
                    break;
                }
            }
        }
        entries
    }

    /// Looks again and again, through whatever replica. A view is all transactions of which
    /// anything is seen: one that was committed before the next look begins is seen whole by its
    /// end.
    async fn watch(&self, seed: u64) -> u64 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut next, mut views) = ([0; ACCOUNTS], 0);
        let mut seen: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        loop {
            let is_last = self.enough.load(Ordering::Relaxed);
            let cut: BTreeSet<String> = {
                let entries = self.read_on(&mut rng, &mut next).await;
                entries
                    .into_iter()
                    .for_each(|e| seen.entry(e.transaction.clone()).or_default().push(e));
                seen.keys().cloned().collect()
            };
            for entry in self.read_on(&mut rng, &mut next).await {
                seen.entry(entry.transaction.clone()).or_default().push(entry);
            }
            let view = cut.iter().flat_map(|transaction| &seen[transaction]);
            let sum: i64 = view.map(|entry| entry.amount).sum();
            assert_eq!(sum, OPENING * ACCOUNTS as i64, "money was made or lost: {seen:?}");
            for transaction in &cut {
                let entries = &seen[transaction];
                assert!(entries.iter().all(|e| e.of == entries.len()), "not whole: {entries:?}");
            }
            views += 1;
            if is_last {
                return views;
            }
        }
    }

    /// Every transfer was done once, as it was asked for.
    async fn judge(&self, rng: &mut StdRng, transfers: &[Transfer]) {
        let entries = self.read_on(rng, &mut [0; ACCOUNTS]).await;
        let mut done: BTreeMap<i64, Vec<(usize, i64)>> = BTreeMap::new();
        for entry in entries.iter().filter(|entry| entry.number >= 0) {
            done.entry(entry.number).or_default().push((entry.account, entry.amount));
        }
        assert_eq!(done.len(), transfers.len());
        for transfer in transfers {
            let mut want = [(transfer.from, -transfer.amount), (transfer.to, transfer.amount)];
            want.sort_unstable();
            let mut halves = done[&transfer.number].clone();
            halves.sort_unstable();
            assert_eq!(halves, want, "{transfer:?}");
        }
        let transactions: BTreeSet<String> = entries.into_iter().map(|e| e.transaction).collect();
        for id in transactions {
            let transaction = self.get(rng, &format!("/v1/transactions/{id}")).await;
            assert_eq!(transaction["state"], "committed", "{transaction}");
        }
    }

    /// The accounts, what is on them, and the commands.
    async fn found(client: &Client, transfers: &[Transfer]) {
        for account in 0..ACCOUNTS {
            client.put_topic(&account_topic(account), 1).await;
        }
        client.put_topic(COMMANDS, PARTITIONS).await;
        let opening = |account: usize| {
            let value = json!({"number": -1, "amount": OPENING, "of": ACCOUNTS});
            json!({"topic": account_topic(account), "records": [{"value": value}]})
        };
        let appends: Vec<Value> = (0..ACCOUNTS).map(opening).collect();
        let body = json!({"commit": true, "appends": appends});
        client.post("/v1/transactions", &body).await.ok(201);
        for (partition, transfers) in (0..).zip(transfers.chunks(transfers.len().div_ceil(4))) {
            let commands: Vec<Value> = transfers.iter().map(Transfer::command).collect();
            client.append(COMMANDS, partition, &commands).await;
        }
    }
}

/// Kills whatever replica at whatever instant, and starts another in its place.
async fn kill(
    bank: &Bank,
    processes: &mut [Process],
    proxy: &Proxy,
    options: &PgConnectOptions,
    rng: &mut StdRng,
) {
    tokio::time::sleep(Duration::from_micros(rng.random_range(0..50_000))).await;
    let index = rng.random_range(0..REPLICAS);
    processes[index].kill_9().await;
    let (process, client) = replica(proxy, options).await;
    processes[index] = process;
    bank.clients.lock().unwrap()[index] = client;
}

async fn transfers(seed: u64, count: i64, between_kills: u64) {
    println!("seed {seed}, {count} transfers");
    let begun = Instant::now();
    let mut rng = StdRng::seed_from_u64(seed);
    let options = support::database().await;
    let proxy = Proxy::start(&options, rng.random()).await;
    let (first, second) = tokio::join!(replica(&proxy, &options), replica(&proxy, &options));
    let (mut processes, clients): (Vec<_>, Vec<_>) = [first, second].into_iter().unzip();
    let transfers: Vec<Transfer> = (0..count).map(|n| Transfer::random(n, &mut rng)).collect();
    Bank::found(&clients[0], &transfers).await;
    let bank = Arc::new(Bank {
        clients: Mutex::new(clients),
        committed: AtomicU64::new(0),
        enough: AtomicBool::new(false),
        told: Mutex::default(),
    });
    let worker = |seed: u64| {
        let bank = bank.clone();
        tokio::spawn(async move { bank.work(seed).await })
    };
    let workers: Vec<_> = (0..WORKERS).map(|_| worker(rng.random())).collect();
    let (watching, seed) = (bank.clone(), rng.random());
    let watcher = tokio::spawn(async move { watching.watch(seed).await });
    let (mut kills, working) = (0, || !workers.iter().all(|worker| worker.is_finished()));
    while working() {
        let wanted = bank.committed.load(Ordering::Relaxed) + between_kills;
        let more =
            async || (!working() || bank.committed.load(Ordering::Relaxed) >= wanted).then_some(());
        until("transfers", more).await;
        if working() {
            kill(&bank, &mut processes, &proxy, &options, &mut rng).await;
            kills += 1;
        }
    }
    for worker in workers {
        worker.await.unwrap();
    }
    bank.enough.store(true, Ordering::Relaxed);
    let views = watcher.await.unwrap();
    bank.judge(&mut rng, &transfers).await;
    assert!(kills > 0, "nothing was killed");
    println!("{count} transfers, {kills} kills, {views} views in {:?}", begun.elapsed());
    println!("{:?}", bank.told.lock().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_transfers_under_kill_9_are_done_once_and_no_money_is_lost() {
    transfers(rand::random(), 100, 10).await;
}

/// The long run: `make torture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long; `make torture`"]
async fn a_thousand_transfers_are_one_long_history() {
    let seed = std::env::var("ONCELOG_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    transfers(seed.unwrap_or_else(rand::random), 1_000, 25).await;
}
