//! Each kind of request in one batch with each other kind, on the fast and the slow path, each
//! repeated: what a batch decides is written as a whole, whatever else is in it.

use std::{collections::BTreeMap, future::IntoFuture};

use serde_json::{Value, json};
use sqlx::{ConnectOptions, Connection, PgConnection};
use uuid::Uuid;

use crate::support::http::{Answer, Call, Server, Setup};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Plain,
    Spread,
    Numbered,
    NumberedSpread,
    Monotonic,
    Expected,
    Keyed,
    KeyedSpread,
    Ids,
    IdsSpread,
    NumberedIds,
    Content,
    Transaction,
    TransactionIds,
    TransactionOffsets,
    TransactionSession,
    TransactionKeyed,
}
use Kind::*;

const KINDS: [Kind; 17] = [
    Plain,
    Spread,
    Numbered,
    NumberedSpread,
    Monotonic,
    Expected,
    Keyed,
    KeyedSpread,
    Ids,
    IdsSpread,
    NumberedIds,
    Content,
    Transaction,
    TransactionIds,
    TransactionOffsets,
    TransactionSession,
    TransactionKeyed,
];

impl Kind {
    fn is_transaction(self) -> bool {
        self >= Transaction
    }

    /// Nothing shows a repeat of it.
    fn is_plain(self) -> bool {
        matches!(self, Plain | Spread)
    }

    fn has_session(self) -> bool {
        matches!(
            self,
            Numbered | NumberedSpread | Monotonic | Expected | NumberedIds | TransactionSession
        )
    }
}

/// A request as it is sent, again and again.
#[derive(Clone, Debug)]
struct Sent {
    kind: Kind,
    path: String,
    key: Option<String>,
    body: Value,
}

impl Sent {
    fn to(&self, server: &Server) -> Call {
        let call = server.post(&self.path).json(&self.body);
        match &self.key {
            Some(key) => call.header("idempotency-key", key),
            None => call,
        }
    }
}

/// One of two senders, each with sessions, partitions and a group of its own.
struct Sender {
    side: usize,
    sessions: BTreeMap<Kind, i64>,
    /// How often each kind was sent to each topic.
    sent: BTreeMap<(Kind, String), i64>,
}

impl Sender {
    async fn new(server: &Server, side: usize) -> Self {
        let mut sessions = BTreeMap::new();
        for kind in KINDS.into_iter().filter(|kind| kind.has_session()) {
            let sequencing = if kind == Monotonic { "monotonic" } else { "contiguous" };
            let open = server.post("/v1/sessions").json(json!({"sequencing": sequencing}));
            let producer_id = open.await.created()["producer_id"].as_i64().unwrap();
            sessions.insert(kind, producer_id);
        }
        Self { side, sessions, sent: BTreeMap::new() }
    }

    /// The next request of a kind.
    fn next(&mut self, kind: Kind, topic: &str, round: usize) -> Sent {
        let topic = match kind {
            Content => "content",
            // its partitions have no other appends
            Expected => "expected",
            _ => topic,
        };
        let count = self.sent.entry((kind, topic.to_owned())).or_default();
        let sequence = *count;
        *count += 1;
        let unique = format!("{round}-{}", self.side);
        let ids = matches!(kind, Ids | IdsSpread | NumberedIds | TransactionIds);
        let record = |n: usize| {
            let mut record = json!({"key": format!("{n}"), "value": format!("{unique}-{n}")});
            if ids {
                record["id"] = json!(format!("{unique}-{n}"));
            }
            record
        };
        let records: Vec<Value> = (0..3).map(record).collect();
        let mut body = json!({"records": records});
        if let Some(producer_id) = self.sessions.get(&kind) {
            body["producer_id"] = json!(producer_id);
            body["epoch"] = json!(0);
            body["sequence"] = json!(sequence);
        }
        let partition = match kind {
            Expected | Plain | Numbered | Monotonic | Keyed | Ids | NumberedIds => Some(self.side),
            _ => None,
        };
        if kind == Expected {
            body["expected_offset"] = json!(3 * sequence);
        }
        let path = match partition {
            Some(partition) => format!("/v1/topics/{topic}/partitions/{partition}/records"),
            None => format!("/v1/topics/{topic}/records"),
        };
        let is_keyed = matches!(kind, Keyed | KeyedSpread | TransactionKeyed);
        let key = is_keyed.then(|| format!("key-{unique}"));
        if !kind.is_transaction() {
            return Sent { kind, path, key, body };
        }
        let append = json!({"topic": topic, "records": body["records"]});
        let mut transaction = json!({"appends": [append], "commit": true});
        if key.is_none() {
            transaction["transaction_id"] = json!(Uuid::now_v7());
        }
        if kind == TransactionSession {
            transaction["producer_id"] = body["producer_id"].clone();
            transaction["epoch"] = json!(0);
        }
        if kind == TransactionOffsets {
            let expected = (sequence > 0).then(|| (sequence - 1) % 2);
            transaction["offsets"] = json!([{"group": format!("g{}", self.side), "topic": topic, "partition": self.side,
                "offset": sequence % 2, "expected_offset": expected}]);
        }
        Sent { kind, path: "/v1/transactions".into(), key, body: transaction }
    }
}

/// What an answer says of where things are. (Of records one by one, if they have ids; then the rest
/// is of what it stored.)
fn places(answer: &Answer) -> Value {
    let mut answer = answer.json();
    if let Some(offsets) =
        answer.get("offsets").filter(|offsets| offsets[0].get("first_seen_at").is_some())
    {
        answer = json!({"offsets": offsets});
    }
    let strip = |value: &mut Value| {
        value.as_object_mut().map(|fields| fields.remove("duplicate"));
    };
    for item in answer["offsets"].as_array_mut().into_iter().flatten() {
        strip(item);
    }
    strip(&mut answer);
    answer
}

struct World {
    server: Server,
    other: Server,
    sql: PgConnection,
    senders: [Sender; 2],
    round: usize,
}

impl World {
    async fn new() -> Self {
        let server = Server::with(one_lane()).await;
        let other = Server::on(&server.options, one_lane()).await;
        for topic in ["a", "b", "content", "expected", "plug"] {
            server.topic(topic, 4).await;
        }
        let content =
            server.patch("/v1/topics/content").json(json!({"settings": {"dedup": "content"}}));
        content.await.ok();
        let senders = [Sender::new(&server, 0).await, Sender::new(&server, 1).await];
        let sql = server.options.connect().await.unwrap();
        Self { server, other, sql, senders, round: 0 }
    }

    /// Sends both while the lane waits for a head of the topic `plug`, so that one pass takes both;
    /// then repeats each, here and elsewhere. False: they came into two passes.
    async fn round(
        &mut self,
        kinds: [Kind; 2],
        topics: [&str; 2],
        slow: bool,
        patience_ms: u64,
    ) -> bool {
        self.round += 1;
        let round = self.round;
        let mut sent = Vec::new();
        for (side, sender) in self.senders.iter_mut().enumerate() {
            sent.push(sender.next(kinds[side], topics[side], round));
        }
        let mut plug = self.server.options.connect().await.unwrap();
        let held = "select log_id from oncelog.logs l join oncelog.topics t using (tenant_id, topic_id) \
            where t.name = 'plug' and partition = 0 for no key update of l";
        let mut holding = plug.begin().await.unwrap();
        sqlx::query(held).execute(&mut *holding).await.unwrap();
        let plugged = self.server.post("/v1/topics/plug/partitions/0/records");
        let plugged = tokio::spawn(plugged.json(json!({"records": [{"value": 0}]})).into_future());
        self.until_somebody_waits().await;
        let calls: Vec<_> =
            sent.iter().map(|sent| tokio::spawn(sent.to(&self.server).into_future())).collect();
        tokio::time::sleep(std::time::Duration::from_millis(patience_ms)).await;
        if slow {
            // what any replica knows of these logs is of an older fence
            let raise = "update oncelog.logs l set fence = fence + 1 from oncelog.topics t \
                where t.tenant_id = l.tenant_id and t.topic_id = l.topic_id and t.name <> 'plug'";
            sqlx::query(raise).execute(&mut self.sql).await.unwrap();
        }
        holding.commit().await.unwrap();
        plugged.await.unwrap().ok();
        let mut first = Vec::new();
        for (call, sent) in calls.into_iter().zip(&sent) {
            let answer = call.await.unwrap();
            let want = if sent.kind.is_transaction() { 201 } else { 200 };
            assert_eq!(answer.status, want, "{sent:?}: {}", answer.text());
            assert_eq!(answer.json()["duplicate"], false, "{sent:?}: {}", answer.text());
            first.push(answer);
        }
        for (sent, first) in sent.iter().zip(&first).filter(|(sent, _)| !sent.kind.is_plain()) {
            for server in [&self.server, &self.other] {
                let again = sent.to(server).await;
                let beside = (kinds, topics, slow);
                assert_eq!(again.status, 200, "{sent:?} of {beside:?}: {}", again.text());
                assert_eq!(
                    again.json()["duplicate"],
                    true,
                    "{sent:?} of {beside:?}: {}",
                    again.text()
                );
                assert_eq!(places(&again), places(first), "{sent:?} of {beside:?}");
            }
        }
        self.in_one_batch(round).await
    }

    async fn until_somebody_waits(&mut self) {
        let waits = "select exists (select from pg_locks l join pg_stat_activity a using (pid) \
            where not l.granted and a.datname = current_database())";
        loop {
            if sqlx::query_scalar::<_, bool>(waits).fetch_one(&mut self.sql).await.unwrap() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Rows of one pass are of one database transaction.
    async fn in_one_batch(&mut self, round: usize) -> bool {
        let passes = "select count(distinct xmin::text) from oncelog.batches where records ~ $1";
        let pattern = format!("\"{round}-[01]-0\"");
        let passes = sqlx::query_scalar::<_, i64>(passes).bind(pattern);
        passes.fetch_one(&mut self.sql).await.unwrap() == 1
    }

    /// Everything that was sent is there once.
    async fn all_is_there_once(&mut self) {
        let mut values = BTreeMap::new();
        for topic in ["a", "b", "content", "expected"] {
            for partition in 0..4 {
                let path = format!("/v1/topics/{topic}/partitions/{partition}/records?limit=10000");
                let page = self.server.get(&path).await.ok();
                for record in page["records"].as_array().unwrap() {
                    let value = record["value"].as_str().unwrap().to_owned();
                    *values.entry(value).or_insert(0) += 1;
                }
            }
        }
        let twice: Vec<_> = values.iter().filter(|(_, count)| **count != 1).collect();
        assert!(twice.is_empty(), "stored more than once: {twice:?}");
        assert_eq!(values.len(), self.round * 2 * 3);
    }
}

fn one_lane() -> Setup {
    let mut setup = Setup::default();
    setup.settings.lanes = 1;
    setup
}

/// All pairs, in one pass each.
async fn all_pairs(topics: [&str; 2], slow: bool) {
    let mut world = World::new().await;
    // what is prepared, resolved and looked up once is, and every log has a record
    for kind in KINDS {
        world.round([kind, kind], topics, false, 1).await;
    }
    for (index, one) in KINDS.into_iter().enumerate() {
        for other in &KINDS[index..] {
            let mut patience_ms = 2;
            while !world.round([one, *other], topics, slow, patience_ms).await {
                patience_ms *= 2;
                assert!(patience_ms < 2_000, "{one:?} and {other:?} never came into one pass");
            }
        }
    }
    world.all_is_there_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pair_on_the_fast_path() {
    tokio::join!(all_pairs(["a", "b"], false), all_pairs(["a", "a"], false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pair_on_the_slow_path() {
    tokio::join!(all_pairs(["a", "b"], true), all_pairs(["a", "a"], true));
}
