//! Requests sent together, two or more in flight at all times, mostly to the same replica: kinds
//! that meet in one pass, calls and their own repeats, rivals. Nobody can foretell the answers;
//! what came of it all is judged (`judge`).

use futures_util::future::join_all;
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    OFF, Off,
    call::{Body, Request},
    fleet::{Client, Fleet},
    judge,
    want::Reply,
};

pub const TENANTS: usize = 2;
/// The partitions of each topic in the beginning.
pub const TOPICS: [(&str, i64); 3] = [("topic-0", 2), ("topic-1", 1), ("topic-2", 3)];

/// How an append is known when it comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// It is not: it may be sent but once.
    Plain,
    Keyed,
    Ids,
    /// By a session of this name.
    Numbered(usize),
}

#[derive(Clone, Debug)]
pub enum Act {
    Append {
        topic: usize,
        partition: Option<i64>,
        form: Form,
        records: usize,
    },
    /// A transaction of one request; with an offset from what is committed to the next one.
    Whole {
        items: Vec<(usize, Option<i64>)>,
        moves: bool,
    },
    /// Compare-and-set from what is committed.
    Commit {
        partition: i64,
    },
    /// Conditional on the epoch that there is; sent twice at once.
    Reopen {
        name: usize,
    },
    /// A transaction that was begun before: records, offsets and the commit in flight together.
    Staged {
        topic: usize,
        twice: bool,
    },
    /// A request of a burst before, once more.
    Again {
        back: usize,
    },
    Grow {
        topic: usize,
    },
    Read {
        topic: usize,
    },
}

#[derive(Clone, Debug)]
pub struct Shot {
    pub number: usize,
    pub tenant: usize,
    pub replica: usize,
    pub act: Act,
}

pub type Burst = Vec<Shot>;

/// What was sent of a shot, and all that it was answered.
#[derive(Clone, Debug)]
pub struct Fact {
    pub shot: Shot,
    pub part: &'static str,
    pub request: Request,
    pub replies: Vec<Reply>,
}

impl Act {
    /// Whether the same request may be sent again at will.
    fn is_repeatable(&self) -> bool {
        match self {
            Self::Append { form, .. } => *form != Form::Plain,
            Self::Whole { .. } | Self::Commit { .. } => true,
            _ => false,
        }
    }
}

pub fn draw(rng: &mut StdRng, bursts: usize) -> Vec<Burst> {
    let mut number = 0;
    let mut burst = || {
        let count = rng.random_range(2..=10);
        let home = rng.random_range(0..60);
        let is_one_tenant = rng.random_ratio(60, 100);
        let shot = |rng: &mut StdRng, number| Shot {
            number,
            tenant: if is_one_tenant { 0 } else { rng.random_range(0..TENANTS) },
            replica: if rng.random_ratio(75, 100) { home } else { rng.random_range(0..60) },
            act: act(rng),
        };
        let shots = (0..count).map(|_| {
            number += 1;
            shot(rng, number - 1)
        });
        let mut shots: Burst = shots.collect();
        if OFF.contains(&Off::KeysBesideTransactions) {
            part_from_keys(&mut shots);
        }
        shots
    };
    (0..bursts).map(|_| burst()).collect()
}

/// No transactions of one request beside what has keys, or may have.
fn part_from_keys(burst: &mut Burst) {
    let has_key = |shot: &Shot| match shot.act {
        Act::Append { form, .. } => matches!(form, Form::Keyed | Form::Ids),
        Act::Again { .. } => true,
        _ => false,
    };
    if burst.iter().any(has_key) {
        let is_whole = |shot: &&mut Shot| matches!(shot.act, Act::Whole { .. } | Act::Again { .. });
        burst.iter_mut().filter(is_whole).for_each(|shot| shot.act = Act::Read { topic: 0 });
    }
}

fn act(rng: &mut StdRng) -> Act {
    let topic = rng.random_range(0..TOPICS.len());
    let partition = |rng: &mut StdRng, topic: usize| rng.random_range(0..TOPICS[topic].1);
    match rng.random_range(0..40) {
        0..14 => {
            let forms = [
                Form::Plain,
                Form::Keyed,
                Form::Keyed,
                Form::Ids,
                Form::Ids,
                Form::Numbered(0),
                Form::Numbered(1),
            ];
            let form = *forms.choose(rng).unwrap();
            let partition = rng.random_bool(0.5).then(|| partition(rng, topic));
            Act::Append { topic, partition, form, records: rng.random_range(1..4) }
        }
        14..21 => {
            let count = rng.random_range(1..4);
            let item = |_| {
                let topic = rng.random_range(0..TOPICS.len());
                (topic, rng.random_bool(0.6).then(|| partition(rng, topic)))
            };
            let items = (0..count).map(item).collect();
            Act::Whole { items, moves: rng.random_bool(0.3) }
        }
        21..24 => Act::Commit { partition: partition(rng, 0) },
        24..26 => Act::Reopen { name: rng.random_range(0..2) },
        26..29 => Act::Staged { topic, twice: rng.random_bool(0.5) },
        29..36 => Act::Again { back: rng.random_range(0..40) },
        36 if !OFF.contains(&Off::Growth) && rng.random_ratio(1, 5) => Act::Grow { topic },
        _ => Act::Read { topic },
    }
}

/// Of one tenant: what the next request of a kind is to say.
struct Baseline {
    /// Producer and epoch of the names that number, and of those that are opened again.
    numbering: Vec<(i64, i64)>,
    reopened: Vec<(i64, i64)>,
    next: Vec<std::collections::BTreeMap<String, i64>>,
    partitions: Vec<i64>,
}

pub struct Run<'a> {
    clients: Vec<Client<'a>>,
    baselines: Vec<Baseline>,
    pub facts: Vec<Fact>,
    now_ms: u64,
}

pub fn records(number: usize, part: usize, count: usize, with_ids: bool) -> Value {
    let record = |index: usize| {
        let mut record = json!({"value": {"shot": number, "part": part, "index": index}});
        if !(number + index).is_multiple_of(3) {
            record["key"] = json!(format!("k{}", (number + index) % 7));
        }
        if with_ids {
            record["id"] = json!(format!("{number}-{index}"));
        }
        record
    };
    (0..count).map(record).collect()
}

fn post(path: String, body: Value) -> Request {
    Request { method: "POST", path, body: Body::Json(body), ..Request::default() }
}

impl<'a> Run<'a> {
    async fn start(fleet: &'a Fleet, now_ms: u64) -> Self {
        let clients: Vec<Client<'a>> = (0..TENANTS).map(|_| fleet.client()).collect();
        let mut baselines = Vec::new();
        for client in &clients {
            for (topic, count) in TOPICS {
                let body = Body::Json(json!({"partition_count": count}));
                let path = format!("/v1/topics/{topic}");
                let put = Request { method: "PUT", path, body, ..Request::default() };
                assert_eq!(client.send(0, &put).await.status, 201);
            }
            let open = async |name: String| {
                let open = post("/v1/sessions".into(), json!({"transactional_id": name}));
                let reply = client.send(0, &open).await;
                (reply.body["producer_id"].as_i64().unwrap(), 0)
            };
            baselines.push(Baseline {
                numbering: vec![open("numbers-0".into()).await, open("numbers-1".into()).await],
                reopened: vec![open("again-0".into()).await, open("again-1".into()).await],
                next: vec![Default::default(), Default::default()],
                partitions: TOPICS.map(|(_, count)| count).to_vec(),
            });
        }
        Self { clients, baselines, facts: Vec::new(), now_ms }
    }

    fn uuid(&self, kind: u128, number: usize) -> Uuid {
        let bits = u128::from(self.now_ms) << 80 | 7 << 76 | 2 << 62 | kind << 32;
        Uuid::from_u128(bits | number as u128)
    }

    /// What is committed in a partition of the topic that groups read.
    async fn committed(&self, tenant: usize, partition: i64) -> Option<i64> {
        let path = "/v1/groups/group/offsets".to_owned();
        let get = Request { method: "GET", path, ..Request::default() };
        let reply = self.clients[tenant].send(0, &get).await;
        let offsets = reply.body["offsets"].as_array()?;
        offsets.iter().find(|at| at["partition"] == json!(partition))?["offset"].as_i64()
    }

    async fn end(&self, tenant: usize, partition: i64) -> i64 {
        let path = format!("/v1/topics/{}", TOPICS[0].0);
        let get = Request { method: "GET", path, ..Request::default() };
        let reply = self.clients[tenant].send(0, &get).await;
        reply.body["partitions"][partition as usize]["high_watermark"].as_i64().unwrap()
    }

    /// The requests that a shot sends together, each with its part's name.
    async fn requests(&mut self, shot: &Shot) -> Vec<(&'static str, Request)> {
        let number = shot.number;
        match &shot.act {
            Act::Append { topic, partition, form, records: count } => {
                let request = self.append(shot, *topic, *partition, *form, *count);
                vec![("append", request)]
            }
            Act::Whole { items, moves } => {
                let item = |(part, (topic, partition)): (usize, &(usize, Option<i64>))| {
                    let records = records(number, part, 1 + (number + part) % 2, false);
                    let mut item = json!({"topic": TOPICS[*topic].0, "records": records});
                    if let Some(partition) = partition {
                        item["partition"] = json!(partition);
                    }
                    item
                };
                let appends: Vec<Value> = items.iter().enumerate().map(item).collect();
                let id = self.uuid(1, number).to_string();
                let mut body = json!({"transaction_id": id, "commit": true, "appends": appends});
                if *moves {
                    body["offsets"] = self.offset(shot.tenant, 0).await;
                }
                vec![("whole", post("/v1/transactions".into(), body))]
            }
            Act::Commit { partition } => {
                let mut offset = self.offset(shot.tenant, *partition).await;
                offset[0].as_object_mut().unwrap().remove("group");
                vec![(
                    "commit",
                    post("/v1/groups/group/offsets".into(), json!({"offsets": offset})),
                )]
            }
            Act::Reopen { name } => {
                let (producer, epoch) = self.baselines[shot.tenant].reopened[*name];
                let open_id = self.uuid(2, number).to_string();
                let body = json!({"producer_id": producer, "epoch": epoch, "open_id": open_id});
                let open = post("/v1/sessions".into(), body);
                vec![("open", open.clone()), ("open", open)]
            }
            Act::Staged { topic, twice } => self.staged(shot, *topic, *twice).await,
            Act::Again { back } => {
                let its =
                    |fact: &&Fact| fact.shot.tenant == shot.tenant && fact.shot.act.is_repeatable();
                let before: Vec<&Fact> = self.facts.iter().filter(its).collect();
                let at = before.len().checked_sub(1 + back % before.len().max(1));
                at.map(|at| ("again", before[at].request.clone())).into_iter().collect()
            }
            Act::Grow { topic } => {
                let count = &mut self.baselines[shot.tenant].partitions[*topic];
                *count = (*count + 1).min(6);
                let body = Body::Json(json!({"partition_count": count}));
                let path = format!("/v1/topics/{}", TOPICS[*topic].0);
                vec![("grow", Request { method: "PATCH", path, body, ..Request::default() })]
            }
            Act::Read { topic } => {
                let path = format!("/v1/topics/{}/records?limit=10000", TOPICS[*topic].0);
                vec![("read", Request { method: "GET", path, ..Request::default() })]
            }
        }
    }

    fn append(
        &mut self,
        shot: &Shot,
        topic: usize,
        partition: Option<i64>,
        form: Form,
        count: usize,
    ) -> Request {
        let topic = TOPICS[topic].0;
        let path = match partition {
            None => format!("/v1/topics/{topic}/records"),
            Some(p) => format!("/v1/topics/{topic}/partitions/{p}/records"),
        };
        let mut body = json!({"records": records(shot.number, 0, count, form == Form::Ids)});
        if let Form::Numbered(name) = form {
            let baseline = &mut self.baselines[shot.tenant];
            let next = baseline.next[name].entry(path.clone()).or_default();
            body["producer_id"] = json!(baseline.numbering[name].0);
            body["epoch"] = json!(0);
            body["sequence"] = json!(*next);
            *next += 1;
        }
        let key = (form == Form::Keyed).then(|| match shot.number % 2 {
            0 => format!("key-{}", shot.number),
            _ => self.uuid(3, shot.number).to_string(),
        });
        Request { key, ..post(path, body) }
    }

    /// From what is committed to the next record.
    async fn offset(&self, tenant: usize, partition: i64) -> Value {
        let committed = self.committed(tenant, partition).await;
        let end = self.end(tenant, partition).await;
        let offset = (committed.unwrap_or(-1) + 1).min(end);
        json!([{"group": "group", "topic": TOPICS[0].0, "partition": partition, "offset": offset,
            "expected_offset": committed}])
    }

    async fn staged(
        &mut self,
        shot: &Shot,
        topic: usize,
        twice: bool,
    ) -> Vec<(&'static str, Request)> {
        let id = self.uuid(1, shot.number);
        let begin = post("/v1/transactions".into(), json!({"transaction_id": id.to_string()}));
        let reply = self.clients[shot.tenant].send(shot.replica, &begin).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        let path = |verb: &str| format!("/v1/transactions/{id}/{verb}");
        let append = |part| {
            let records = records(shot.number, part, 2, part == 1);
            json!([{"topic": TOPICS[topic].0, "records": records}])
        };
        let first = json!({"sequence": 0, "appends": append(0)});
        let second = json!({"appends": append(1)});
        let offsets = json!({"offsets": [{"group": format!("group-{}", shot.number),
            "topic": TOPICS[topic].0, "partition": 0, "offset": 0, "expected_offset": null}]});
        let mut requests = vec![
            ("records", post(path("records"), first)),
            ("more", post(path("records"), second)),
            ("offsets", post(path("offsets"), offsets)),
            ("end", post(path("commit"), json!({}))),
        ];
        if twice {
            requests.push(("end", post(path("commit"), json!({}))));
        }
        requests
    }

    /// Sends a burst, all of it at once, and what is numbered until it is there.
    async fn fire(&mut self, burst: &Burst) {
        let mut sent = Vec::new();
        for shot in burst {
            for (part, request) in self.requests(shot).await {
                sent.push((shot.clone(), part, request));
            }
        }
        let calls = sent.iter().enumerate().map(|(n, (shot, part, request))| {
            let other = usize::from(*part == "open" || *part == "end") * n;
            self.clients[shot.tenant].send(shot.replica + other, request)
        });
        let replies = join_all(calls).await;
        for ((shot, part, request), reply) in sent.into_iter().zip(replies) {
            self.note(shot, part, request, reply);
        }
        self.settle().await;
    }

    /// A repeat belongs to what it repeats.
    fn note(&mut self, shot: Shot, part: &'static str, request: Request, reply: Reply) {
        let is_same = |fact: &&mut Fact| {
            let body = |request: &Request| format!("{:?} {:?}", request.body, request.key);
            fact.shot.tenant == shot.tenant
                && fact.request.path == request.path
                && body(&fact.request) == body(&request)
                && part != "read"
        };
        match self.facts.iter_mut().rev().find(is_same) {
            Some(fact) => fact.replies.push(reply),
            None => self.facts.push(Fact { shot, part, request, replies: vec![reply] }),
        }
    }

    /// What overtook others for too long is sent again, in its order; and who was opened is known.
    async fn settle(&mut self) {
        for at in 0..self.facts.len() {
            let fact = &self.facts[at];
            let is_numbered = matches!(fact.shot.act, Act::Append { form: Form::Numbered(_), .. });
            if is_numbered && fact.replies.iter().all(|reply| reply.status != 200) {
                let reply = self.clients[fact.shot.tenant].send(0, &fact.request).await;
                self.facts[at].replies.push(reply);
            }
            if let Act::Reopen { name } = self.facts[at].shot.act {
                let fact = &self.facts[at];
                let won = fact.replies.iter().find(|reply| reply.status < 300);
                let epoch = won.and_then(|won| won.body["epoch"].as_i64());
                let known = &mut self.baselines[fact.shot.tenant].reopened[name];
                known.1 = known.1.max(epoch.unwrap_or(0));
            }
        }
    }
}

/// Sends all bursts, in tenants of their own, and judges what came of them. Answers how many
/// requests it took, or why it is wrong.
pub async fn run(fleet: &Fleet, bursts: &[Burst], now_ms: u64) -> Result<usize, String> {
    let mut run = Run::start(fleet, now_ms).await;
    for burst in bursts {
        run.fire(burst).await;
    }
    for (tenant, client) in run.clients.iter().enumerate() {
        let facts: Vec<&Fact> =
            run.facts.iter().filter(|fact| fact.shot.tenant == tenant).collect();
        judge::judge(client, &facts).await?;
    }
    Ok(run.facts.iter().map(|fact| fact.replies.len()).sum())
}

/// Fewer bursts that are as wrong: each attempt is made a few times, as chance has its part in it.
pub async fn shrink(fleet: &Fleet, mut bursts: Vec<Burst>, now_ms: u64) -> Vec<Burst> {
    const ATTEMPTS: usize = 4;
    let mut chunk = bursts.len().div_ceil(2);
    while chunk > 0 {
        let mut from = 0;
        while from < bursts.len() {
            let mut fewer = bursts.clone();
            fewer.drain(from..(from + chunk).min(bursts.len()));
            let mut is_wrong = false;
            for _ in 0..ATTEMPTS {
                is_wrong = is_wrong || run(fleet, &fewer, now_ms).await.is_err();
            }
            if is_wrong { bursts = fewer } else { from += chunk }
        }
        chunk /= 2;
    }
    bursts
}
