//! Authorisation: every operation of the OpenAPI document with every kind of token.

mod audit;
mod issuers;
mod keys;
mod members;
mod operations;
mod producers;
mod revocations;
mod tenants;

use std::{collections::BTreeSet, sync::Mutex};

use oncelog::model::Code;
use serde_json::{Value, json};
use uuid::Uuid;

use self::operations::OPERATIONS;
use crate::support::http::{Answer, SECRET, Server, Setup, claims, now_s, signed, token};

/// What opens an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Needs {
    Nothing,
    /// One of these words, for whatever name.
    Word(&'static [&'static str]),
    /// One of these words, not narrowed to some names.
    Tenant(&'static [&'static str]),
    /// One of these words, for the topic or group in the path, or the topic in the body.
    Named(&'static [&'static str]),
    /// One of these words, for all names of the session or the transaction in the path.
    Covering(&'static [&'static str]),
    /// As `Covering`, and `group` and `consume` for the group and the topic in the body.
    WithGroup(&'static [&'static str]),
    /// One of these words, for the group in the path, and `consume` for the topics it reads.
    Consuming(&'static [&'static str]),
}
use Needs::{Consuming, Covering, Named, Nothing, Tenant, WithGroup, Word};

impl Needs {
    fn words(self) -> &'static [&'static str] {
        match self {
            Nothing => &[],
            Word(words) | Tenant(words) | Named(words) => words,
            Covering(words) | WithGroup(words) | Consuming(words) => words,
        }
    }

    /// The scope that is needed beside them.
    fn beside(self) -> &'static str {
        match self {
            Nothing | Word(_) | Tenant(_) | Named(_) | Covering(_) => "",
            WithGroup(_) => "group:g consume:orders.*",
            Consuming(_) => "consume:orders.*",
        }
    }
}

const ADMIN: &[&str] = &["admin"];
const PRODUCE: &[&str] = &["produce"];
const CONSUME: &[&str] = &["consume"];
const GROUP: &[&str] = &["group"];
const SEE: &[&str] = &["admin", "produce", "consume"];
const OPERATE: &[&str] = &["operator"];
const SEE_TRANSACTIONS: &[&str] = &["produce", "operator"];
const WORDS: [&str; 5] = ["produce", "consume", "group", "admin", "operator"];

/// operation, method and path, body, what it needs, what it answers
type Row = (&'static str, &'static str, Option<&'static str>, Needs, u16);

const OPEN: Option<&str> = Some(r#"{"transactional_id":"{topic}"}"#);
const RECORDS: Option<&str> = Some(r#"{"records":[{"value":1}]}"#);
const COMMIT: Option<&str> = Some(r#"{"offsets":[{"topic":"{topic}","partition":0,"offset":0}]}"#);
const JOIN: Option<&str> = Some(r#"{"topics":["{topic}"],"instance_id":"i"}"#);
const APPENDS: Option<&str> = Some(r#"{"appends":[{"topic":"{topic}","records":[{"value":1}]}]}"#);
const OFFSETS: Option<&str> = Some(
    r#"{"offsets":[{"group":"g","topic":"{topic}","partition":0,"offset":0,"expected_offset":null}]}"#,
);

const AS_OPERATOR: [&str; 2] = [
    "POST /v1/transactions/{id}/commit?as=operator",
    "POST /v1/transactions/{id}/abort?as=operator",
];

fn all_words() -> String {
    WORDS.join(" ")
}

/// A server, and in tenant `acme` a topic, a group and a session of the same name (with a member,
/// for those that need one), and a transaction that appends to the topic.
struct World {
    server: Server,
    producer_id: String,
    member_id: Mutex<String>,
    transaction_id: Mutex<String>,
}

/// What a request names.
struct Names {
    topic: String,
    producer_id: String,
    member_id: String,
    transaction_id: String,
}

impl Names {
    fn nowhere() -> Self {
        Self {
            topic: "nothing".into(),
            producer_id: "987654321".into(),
            member_id: Uuid::now_v7().to_string(),
            transaction_id: Uuid::now_v7().to_string(),
        }
    }

    fn written_into(&self, text: &str) -> String {
        let text = text.replace("{topic}", &self.topic).replace("{group}", &self.topic);
        let text = text.replace("{id}", &self.transaction_id).replace("{tenant}", "rival");
        let text = text.replace("{member_id}", &self.member_id);
        text.replace("{producer_id}", &self.producer_id)
    }

    /// The words of a refusal without them.
    fn taken_out(&self, answer: &Answer) -> (u16, String) {
        let mut body = answer.json();
        body["instance"] = Value::Null;
        let text = body.to_string().replace(&self.topic, "TOPIC").replace(&self.producer_id, "ID");
        let text = text.replace(&self.member_id, "ID");
        (answer.status, text.replace(&self.transaction_id, "ID"))
    }
}

const TOPIC: &str = "orders.eu";

impl World {
    async fn new() -> Self {
        let server = Server::signed().await;
        let all = token("acme", &all_words());
        let open =
            server.post("/v1/sessions").json(OPEN.unwrap().replace("{topic}", TOPIC)).token(&all);
        let producer_id = open.await.created()["producer_id"].to_string();
        let world = Self {
            server,
            producer_id,
            member_id: Mutex::default(),
            transaction_id: Mutex::default(),
        };
        world.prepare().await;
        world
    }

    /// Makes again what an operation may have taken away.
    async fn prepare(&self) {
        let all = token("acme", &all_words());
        self.server.put(&format!("/v1/topics/{TOPIC}")).token(&all).await;
        self.server.put("/v1/tenants/rival").token(&all).await;
        // a member that has joined; without members anybody commits
        let member_id = self.join().await;
        let member = format!("/v1/groups/{TOPIC}/members/{member_id}");
        self.server.delete(&member).token(&all).await.no_content();
        let commit = self.server.post(&format!("/v1/groups/{TOPIC}/offsets")).token(&all);
        commit.json(COMMIT.unwrap().replace("{topic}", TOPIC)).await.ok();
        let begin = self.server.post("/v1/transactions").token(&all);
        let begun = begin.json(APPENDS.unwrap().replace("{topic}", TOPIC)).await.created();
        *self.transaction_id.lock().unwrap() = begun["transaction_id"].as_str().unwrap().to_owned();
    }

    /// The member of the instance of `JOIN`, again.
    async fn join(&self) -> String {
        let all = token("acme", &all_words());
        let join = self.server.post(&format!("/v1/groups/{TOPIC}/members")).token(&all);
        let joined = join.json(JOIN.unwrap().replace("{topic}", TOPIC)).await.created();
        let member_id = joined["member_id"].as_str().unwrap().to_owned();
        self.member_id.lock().unwrap().clone_from(&member_id);
        member_id
    }

    /// All that the operation of this row needs: a member, or, as an operator commits nothing else,
    /// a prepared transaction.
    async fn prepare_for(&self, row: &Row) {
        self.prepare().await;
        if row.1 == AS_OPERATOR[0] {
            let path = self.names().written_into("/v1/transactions/{id}/prepare");
            self.server.post(&path).token(&token("acme", &all_words())).await.ok();
        }
        if row.1.contains("{member_id}") {
            self.join().await;
        }
    }

    fn names(&self) -> Names {
        Names {
            topic: TOPIC.into(),
            producer_id: self.producer_id.clone(),
            member_id: self.member_id.lock().unwrap().clone(),
            transaction_id: self.transaction_id.lock().unwrap().clone(),
        }
    }

    async fn call(&self, row: &Row, token: Option<&str>) -> Answer {
        self.call_on(row, token, &self.names()).await
    }

    async fn call_on(&self, row: &Row, token: Option<&str>, names: &Names) -> Answer {
        let (_, line, body, ..) = row;
        let (method, path) = line.split_once(' ').unwrap();
        let path = path.replace("{partition}", "0").replace("{file}", "start.js");
        let path = path.replace("{page}", "README.md");
        let path = path.replace("{revocation_id}", &Uuid::nil().to_string());
        let mut call = self.server.call(method, &names.written_into(&path));
        if let Some(body) = body {
            call = call.json(names.written_into(body));
        }
        if let Some(token) = token {
            call = call.token(token);
        }
        call.await
    }
}

#[tokio::test]
async fn every_operation_has_a_row() {
    let server = Server::signed().await;
    let api = server.get("/openapi.json").await.ok();
    let mut operations = BTreeSet::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            operations.insert((id.clone(), format!("{} {path}", method.to_uppercase())));
            let rows = OPERATIONS.iter().filter(|row| row.0 == id);
            let needed: BTreeSet<&str> =
                rows.flat_map(|(.., needs, _)| needs.words()).copied().collect();
            // what the document says of scopes is what holds
            let security = operation["security"].as_array().unwrap().iter();
            let words: BTreeSet<&str> =
                security.filter_map(|one| one["bearer"][0].as_str()).collect();
            assert_eq!(words, needed, "{id}");
        }
    }
    let line = |line: &str| line.split('?').next().unwrap().replace("{id}", "{transaction_id}");
    let rows: BTreeSet<_> = OPERATIONS.iter().map(|row| (row.0.to_owned(), line(row.1))).collect();
    assert_eq!(rows, operations);
}

#[tokio::test]
async fn without_a_good_token_nothing_opens() {
    let world = World::new().await;
    let with = |claim: &str, value: Value| {
        let mut claims = claims("acme", &all_words());
        claims[claim] = value;
        signed(&claims, SECRET)
    };
    let bad = [
        ("garbage", "garbage".to_owned()),
        ("expired", with("exp", json!(now_s() - 60))),
        ("not yet", with("nbf", json!(now_s() + 600))),
        ("audience", with("aud", json!("another"))),
        ("issuer", with("iss", json!("another"))),
        ("tenant", with("tenant", json!("no/name"))),
        ("secret", signed(&claims("acme", &all_words()), "another secret of thirty-two byt")),
    ];
    for row in OPERATIONS {
        let (id, .., needs, status) = row;
        if *needs == Nothing {
            assert_eq!(world.call(row, None).await.status, *status, "{id}");
            assert_eq!(world.call(row, Some("garbage")).await.status, *status, "{id}");
            continue;
        }
        world.call(row, None).await.refused(Code::Unauthenticated);
        for (what, token) in &bad {
            let answer = world.call(row, Some(token)).await;
            assert_eq!(answer.status, 401, "{id}: {what}");
            answer.refused(Code::Unauthenticated);
            assert!(!answer.text().contains(token.as_str()) || *what == "garbage");
        }
    }
}

#[tokio::test]
async fn the_right_scope_opens_and_no_other() {
    let world = World::new().await;
    for row in OPERATIONS {
        let (id, .., needs, status) = row;
        let words = needs.words();
        if words.is_empty() {
            continue;
        }
        let beside = needs.beside();
        // every other word together, for every name
        let others: Vec<_> = WORDS.iter().filter(|w| !words.contains(w)).copied().collect();
        for scope in [others.join(" "), String::new(), "PRODUCE produce: xproduce".to_owned()] {
            let answer = world.call(row, Some(&token("acme", &scope))).await;
            let problem = answer.refused(Code::Forbidden);
            assert_eq!(problem["required_scope"], words.join(" | "), "{id}: {scope}");
        }
        for word in words {
            world.prepare_for(row).await;
            let answer = world.call(row, Some(&token("acme", &format!("{word} {beside}")))).await;
            assert_eq!(answer.status, *status, "{id} with {word}: {}", answer.text());
            for pattern in ["orders.*", "orders.eu", "*", "*.eu", "o*s.*u"] {
                world.prepare_for(row).await;
                let scope = format!("other {word}:{pattern} {word}:nothing {beside}");
                let answer = world.call(row, Some(&token("acme", &scope))).await;
                if *needs == Tenant(words) {
                    let problem = answer.refused(Code::Forbidden);
                    assert_eq!(problem["required_scope"], words.join(" | "), "{id}: {scope}");
                } else if *word == "operator" {
                    // an operator sees all transactions, or is a client
                    let problem = answer.refused(Code::Forbidden);
                    assert_eq!(problem["required_scope"], "produce", "{id}: {scope}");
                } else {
                    assert_eq!(answer.status, *status, "{id} with {scope}: {}", answer.text());
                }
            }
            world.refuses_other_names(row, word).await;
        }
    }
}

impl World {
    /// What is in the request is named in the refusal, and what is only behind an id is not.
    async fn refuses_other_names(&self, row: &Row, word: &str) {
        let (id, .., needs, _) = row;
        let (words, beside) = (needs.words(), needs.beside());
        let (wanted, other) = match needs {
            Named(_) | Consuming(_) => {
                let wanted: Vec<_> = words.iter().map(|word| format!("{word}:{TOPIC}")).collect();
                (wanted.join(" | "), if words == GROUP { "consume" } else { "group" })
            }
            Covering(_) | WithGroup(_) => ("produce".to_owned(), "consume"),
            Nothing | Word(_) | Tenant(_) => return,
        };
        let operator = if words.contains(&"operator") { "" } else { "operator" };
        self.prepare_for(row).await;
        for pattern in ["orders", "orders.", "orders.eu2", "*us", "ORDERS.*", "."] {
            let scope = format!("{word}:{pattern} {other}:orders.eu {beside} {operator}");
            let answer = self.call(row, Some(&token("acme", &scope))).await;
            let problem = answer.refused(Code::Forbidden);
            assert_eq!(problem["required_scope"], wanted, "{id}: {scope}");
        }
    }
}

/// Anyone who shares the partitions of a group reads its topics.
#[tokio::test]
async fn a_group_opens_no_topic() {
    let world = World::new().await;
    let rows = OPERATIONS.iter().filter(|row| row.3 == Consuming(GROUP));
    for row in rows {
        for scope in ["group", "group:orders.eu", "group consume:orders", "group consume:*.us"] {
            world.prepare_for(row).await;
            let problem =
                world.call(row, Some(&token("acme", scope))).await.refused(Code::Forbidden);
            assert_eq!(problem["required_scope"], "consume:orders.eu", "{}: {scope}", row.0);
        }
    }
}

#[tokio::test]
async fn what_belongs_to_another_tenant_is_as_if_it_were_not() {
    let world = World::new().await;
    let append = r#"{"records":[{"key":"k","value":"secret"}]}"#;
    let path = format!("/v1/topics/{TOPIC}/records");
    world.server.post(&path).json(append).token(&token("acme", "produce")).await.ok();
    let stranger = token("other", &all_words());
    let (theirs, nowhere) = (world.names(), Names::nowhere());
    for row in OPERATIONS {
        let (id, .., needs, _) = row;
        match *id {
            _ if *needs == Nothing => {}
            // what makes something makes the stranger's own: see `tenants::they_share_nothing`
            "open_session" | "put_topic" => {}
            // the stranger's own: see `settings::settings_are_the_tenants_alone`
            "get_settings" | "patch_settings" => {}
            // an operator is no stranger: see `tenants`
            id if id.contains("tenant") => {}
            "list_topics" => {
                let empty = json!({"topics": [], "next_after": null});
                assert_eq!(world.call(row, Some(&stranger)).await.ok(), empty);
            }
            "list_groups" => {
                let empty = json!({"groups": [], "next_after": null});
                assert_eq!(world.call(row, Some(&stranger)).await.ok(), empty);
            }
            "list_sessions" => {
                let empty = json!({"sessions": [], "next_after": null});
                assert_eq!(world.call(row, Some(&stranger)).await.ok(), empty);
            }
            "list_transactions" => {
                let empty = json!({"transactions": [], "next_after": null});
                assert_eq!(world.call(row, Some(&stranger)).await.ok(), empty);
            }
            _ => {
                let there = world.call(row, Some(&stranger)).await;
                let absent = world.call_on(row, Some(&stranger), &nowhere).await;
                assert_eq!(there.status, 404, "{id}");
                assert_eq!(theirs.taken_out(&there), nowhere.taken_out(&absent), "{id}");
                let names = |answer: &Answer| -> BTreeSet<String> {
                    answer.headers.keys().map(ToString::to_string).collect()
                };
                assert_eq!(names(&there), names(&absent), "{id}");
            }
        }
    }
    // and nothing was done to it
    let all = token("acme", &all_words());
    let topic = world.server.get(&format!("/v1/topics/{TOPIC}")).token(&all).await.ok();
    assert_eq!(topic["partitions"][0]["high_watermark"], 1);
    let session = theirs.written_into("/v1/sessions/{producer_id}");
    let session = world.server.get(&session).token(&all).await.ok();
    assert_eq!((&session["epoch"], &session["closed"]), (&json!(0), &json!(false)));
    let transaction = theirs.written_into("/v1/transactions/{id}");
    let transaction = world.server.get(&transaction).token(&all).await.ok();
    assert_eq!(
        (&transaction["state"], &transaction["append_count"]),
        (&json!("ongoing"), &json!(1))
    );
}

#[tokio::test]
async fn lists_show_what_the_scopes_cover() {
    let server = Server::signed().await;
    let admin = token("acme", "admin");
    for topic in ["b.1", "a.1", "b.3", "B.1", "b.2", "a.2", "c"] {
        server.put(&format!("/v1/topics/{topic}")).token(&admin).await.created();
    }
    let list = async |scope: &str, query: &str| -> (Vec<String>, Value) {
        let path = format!("/v1/topics{query}");
        let list = server.get(&path).token(&token("acme", scope)).await.ok();
        let topics = list["topics"].as_array().unwrap().iter();
        let names = topics.map(|topic| topic["topic"].as_str().unwrap().to_owned()).collect();
        (names, list["next_after"].clone())
    };
    assert_eq!(list("admin", "").await.0, ["B.1", "a.1", "a.2", "b.1", "b.2", "b.3", "c"]);
    assert_eq!(list("consume:b.* produce:c", "").await.0, ["b.1", "b.2", "b.3", "c"]);
    // neither a short page nor next_after shows names that are not covered
    let first = list("consume:b.*", "?limit=2").await;
    assert_eq!(first, (vec!["b.1".into(), "b.2".into()], json!("b.2")));
    assert_eq!(list("consume:b.*", "?limit=2&after=b.2").await, (vec!["b.3".into()], Value::Null));
    assert_eq!(list("consume:b.*", "?limit=3").await.1, Value::Null);
    assert_eq!(list("group consume:x", "").await, (vec![], Value::Null));
}

/// Everything is wrong with the first request; each next one mends what was refused.
#[tokio::test]
async fn mistakes_are_judged_in_the_documented_order() {
    let limits = oncelog::http::Limits { max_body_bytes: 300, ..Default::default() };
    let keys = crate::support::http::shared_keys();
    let server = Server::with(Setup { limits, keys, ..Setup::default() }).await;
    let admin = token("acme", "admin");
    let (produce, consume) = (token("acme", "produce:orders"), token("acme", "consume"));
    let path = "/v1/topics/orders/partitions/1/records";
    let (json, text) = ("application/json", "text/plain");
    let large = " ".repeat(301);
    let bad_shape = r#"{"records":[]}"#.to_owned();
    let full = |producer: i64, sequence: i64, offset: i64| {
        let records = [json!({"value": 1}), json!({"value": 2})];
        json!({"producer_id": producer, "epoch": 0, "sequence": sequence,
            "expected_offset": offset, "records": records})
        .to_string()
    };
    let call = async |token: &str, media: &str, body: &str, code: Code| {
        let mut call = server.post(path).header("content-type", media).body(body);
        if !token.is_empty() {
            call = call.token(token);
        }
        call.await.refused(code);
    };
    server.post("/v1/nothing").body("x").await.refused(Code::RouteNotFound);
    server.put(path).body("x").await.refused(Code::MethodNotAllowed);
    call("", text, &large, Code::Unauthenticated).await;
    call(&consume, text, &large, Code::Forbidden).await;
    call(&produce, text, &large, Code::UnsupportedMediaType).await;
    call(&produce, json, &large, Code::PayloadTooLarge).await;
    call(&produce, json, &bad_shape, Code::InvalidRequest).await;
    call(&produce, json, &full(999, 9, 9), Code::TopicNotFound).await;
    let topic = server.put("/v1/topics/orders").token(&admin);
    topic.json(json!({"settings": {"max_batch_records": 1}})).await.created();
    call(&produce, json, &full(999, 9, 9), Code::PartitionNotFound).await;
    let more = server.patch("/v1/topics/orders").token(&admin);
    more.json(json!({"partition_count": 2})).await.ok();
    call(&produce, json, &full(999, 9, 9), Code::UnknownProducer).await;
    let open = server.post("/v1/sessions").json(json!({"transactional_id": "orders"}));
    let open = open.token(&produce).await.created();
    let producer = open["producer_id"].as_i64().unwrap();
    call(&produce, json, &full(producer, 9, 9), Code::UnknownProducerState).await;
    call(&produce, json, &full(producer, 0, 0), Code::BatchTooLarge).await;
}
