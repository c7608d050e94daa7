//! A call with everything in it, and the request that makes it.

use serde_json::{Map, Value, json};
use uuid::Uuid;

pub type Partition = i32;
/// A producer id and an epoch.
pub type Session = (i64, i64);

/// A record, told by small numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    pub id: Option<u8>,
    pub key: Option<u8>,
    pub value: u8,
    pub header: bool,
}

/// Records for a topic, or for one of its partitions.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub topic: String,
    pub partition: Option<Partition>,
    pub records: Vec<Record>,
}

#[derive(Clone, Debug)]
pub struct Append {
    pub item: Item,
    /// Producer, epoch, sequence.
    pub numbered: Option<(i64, i64, i64)>,
    pub expected_offset: Option<i64>,
    pub key: Option<String>,
    pub refuses: bool,
    pub as_lines: bool,
}

#[derive(Clone, Debug)]
pub struct Open {
    pub name: Option<String>,
    pub condition: Option<Session>,
    pub open_id: Option<Uuid>,
    pub monotonic: bool,
    pub reset: bool,
    pub key: Option<String>,
}

/// With which right an offset is committed.
#[derive(Clone, Debug, PartialEq)]
pub enum Right {
    Free,
    Expected(Option<i64>),
    /// With its generation; perhaps over this committed offset only.
    Member(String, i64, Option<Option<i64>>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum OffsetItem {
    At { group: String, topic: String, partition: Partition, offset: i64, right: Right },
    Cursor { group: String, member: String, generation: i64, cursor: String },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    pub appends: Vec<Item>,
    pub offsets: Vec<OffsetItem>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Begin {
    pub id: Option<Uuid>,
    pub key: Option<String>,
    pub session: Option<Session>,
    pub timeout_ms: Option<i64>,
    pub work: Work,
    pub commit: bool,
}

#[derive(Clone, Debug)]
pub enum Verb {
    Records { sequence: Option<i64>, appends: Vec<Item> },
    Offsets(Vec<OffsetItem>),
    Prepare,
    Commit { expected_appends: Option<i64>, work: Work },
    Abort,
}

#[derive(Clone, Debug)]
pub struct TransactionCall {
    pub id: Uuid,
    pub session: Option<Session>,
    pub is_operator: bool,
    pub verb: Verb,
}

/// What a plain commit of offsets holds.
#[derive(Clone, Debug)]
pub struct Commit {
    pub group: String,
    pub items: Vec<OffsetItem>,
    pub key: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Join {
    pub group: String,
    pub topics: Vec<String>,
    pub pattern: Option<&'static str>,
    pub instance: Option<u8>,
    pub auto_offset_reset: Option<&'static str>,
    pub key: Option<String>,
}

#[derive(Clone, Debug)]
pub enum Call {
    Append(Append),
    Open(Open),
    Close { producer: i64, epoch: Option<i64> },
    GetSession { producer: i64 },
    Begin(Begin),
    Transaction(TransactionCall),
    GetTransaction { id: Uuid },
    Commit(Commit),
    GetOffsets { group: String },
    Reset { group: String, topics: Option<Vec<String>>, to: Value, dry_run: bool },
    GetGroup { group: String },
    DeleteGroup { group: String },
    Join(Join),
    Leave { group: String, member: String },
    Heartbeat { group: String, member: String, generation: Option<i64> },
    Fetch(Fetch),
    PutTopic { topic: String, count: Option<Partition>, settings: Option<Map<String, Value>> },
    PatchTopic { topic: String, count: Option<Partition>, settings: Option<Map<String, Value>> },
    DeleteTopic { topic: String },
    GetTopic { topic: String },
    Trim { topic: String, partition: Partition, before: i64 },
    PatchTenant(Map<String, Value>),
    Read(Read),
    ReadTopic { topic: String, start: Start, limit: Option<usize>, as_lines: bool },
}

#[derive(Clone, Debug)]
pub struct Fetch {
    pub group: String,
    pub member: String,
    pub cursor: Option<String>,
    pub run: Option<&'static str>,
    pub limit: Option<usize>,
    /// With its parameters in a body.
    pub by_post: bool,
}

#[derive(Clone, Debug)]
pub enum Start {
    Earliest,
    Latest,
    Offset(i64),
    Timestamp(String),
    Cursor(String),
}

#[derive(Clone, Debug)]
pub struct Read {
    pub topic: String,
    pub partition: Partition,
    pub start: Start,
    pub limit: Option<usize>,
    pub uncommitted: bool,
    pub as_lines: bool,
}

#[derive(Clone, Debug, Default)]
pub enum Body {
    #[default]
    None,
    Json(Value),
    Lines(String),
}

#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: &'static str,
    pub path: String,
    pub body: Body,
    pub key: Option<String>,
    pub wants_lines: bool,
}

impl Record {
    pub fn json(&self) -> Value {
        let mut record = self.content();
        if let Some(id) = self.id {
            record["id"] = json!(format!("id-{id}"));
        }
        if self.header {
            record["headers"] = json!({"h": "1"});
        }
        record
    }

    /// Key and value.
    fn content(&self) -> Value {
        let value = self.value;
        let mut record = match value % 5 {
            0 => json!({"value": null}),
            1 => json!({"value": {"a": [value, 1.5]}}),
            2 => json!({"value": format!("text {value}")}),
            3 => json!({"value_base64": format!("AAA{}", char::from(b'A' + value % 26))}),
            _ => json!({"value": value}),
        };
        if let Some(key) = self.key_text() {
            record["key"] = json!(key);
        }
        record
    }

    pub fn key_text(&self) -> Option<String> {
        self.key.map(|key| format!("k{key}"))
    }
}

pub fn records(records: &[Record]) -> Value {
    records.iter().map(Record::json).collect()
}

fn items(items: &[Item]) -> Value {
    let item = |item: &Item| {
        let mut json = json!({"topic": item.topic, "records": records(&item.records)});
        put(&mut json, "partition", item.partition);
        json
    };
    items.iter().map(item).collect()
}

/// `in_transaction`: the group is named by the item, and so is the member.
fn offsets(items: &[OffsetItem], in_transaction: bool) -> Value {
    let item = |item: &OffsetItem| match item {
        OffsetItem::At { group, topic, partition, offset, right } => {
            let mut json = json!({"topic": topic, "partition": partition, "offset": offset});
            if in_transaction {
                json["group"] = json!(group);
            }
            match right {
                Right::Expected(expected) => json["expected_offset"] = json!(expected),
                Right::Member(member, generation, expected) if in_transaction => {
                    json["member_id"] = json!(member);
                    json["generation"] = json!(generation);
                    if let Some(expected) = expected {
                        json["expected_offset"] = json!(expected);
                    }
                }
                Right::Member(..) | Right::Free => {}
            }
            json
        }
        OffsetItem::Cursor { group, member, generation, cursor } => {
            json!({"group": group, "member_id": member, "generation": generation, "cursor": cursor})
        }
    };
    items.iter().map(item).collect()
}

fn put<T: Into<Value>>(json: &mut Value, name: &str, value: Option<T>) {
    if let Some(value) = value {
        json[name] = value.into();
    }
}

fn put_session(json: &mut Value, session: Option<Session>) {
    put(json, "producer_id", session.map(|session| session.0));
    put(json, "epoch", session.map(|session| session.1));
}

fn put_work(json: &mut Value, work: &Work) {
    put(json, "appends", Some(items(&work.appends)).filter(|_| !work.appends.is_empty()));
    put(json, "offsets", Some(offsets(&work.offsets, true)).filter(|_| !work.offsets.is_empty()));
}

fn get(path: String) -> Request {
    Request { method: "GET", path, ..Request::default() }
}

fn delete(path: String) -> Request {
    Request { method: "DELETE", path, ..Request::default() }
}

fn post(path: impl Into<String>, body: Value) -> Request {
    Request { method: "POST", path: path.into(), body: Body::Json(body), ..Request::default() }
}

impl Append {
    pub fn path(&self) -> String {
        match self.item.partition {
            None => format!("/v1/topics/{}/records", self.item.topic),
            Some(p) => format!("/v1/topics/{}/partitions/{p}/records", self.item.topic),
        }
    }

    fn request(&self) -> Request {
        let mut envelope = json!({});
        put(&mut envelope, "producer_id", self.numbered.map(|numbered| numbered.0));
        put(&mut envelope, "epoch", self.numbered.map(|numbered| numbered.1));
        put(&mut envelope, "sequence", self.numbered.map(|numbered| numbered.2));
        put(&mut envelope, "expected_offset", self.expected_offset);
        put(&mut envelope, "on_duplicate", self.refuses.then_some("refuse"));
        let (path, body) = if self.as_lines {
            let parameter = |(name, value): (&String, &Value)| {
                format!("{name}={}", value.as_str().map_or(value.to_string(), str::to_owned))
            };
            let query: Vec<String> = envelope.as_object().unwrap().iter().map(parameter).collect();
            let lines = self.item.records.iter().map(|record| format!("{}\n", record.json()));
            (format!("{}?{}", self.path(), query.join("&")), Body::Lines(lines.collect()))
        } else {
            envelope["records"] = records(&self.item.records);
            (self.path(), Body::Json(envelope))
        };
        Request { method: "POST", path, body, key: self.key.clone(), wants_lines: false }
    }
}

impl Open {
    fn request(&self) -> Request {
        let mut body = json!({});
        put(&mut body, "transactional_id", self.name.as_deref());
        put_session(&mut body, self.condition);
        put(&mut body, "open_id", self.open_id.map(|id| id.to_string()));
        put(&mut body, "sequencing", self.monotonic.then_some("monotonic"));
        put(&mut body, "sequences", self.reset.then_some("reset"));
        Request { key: self.key.clone(), ..post("/v1/sessions", body) }
    }
}

impl Begin {
    fn request(&self) -> Request {
        let mut body = json!({});
        put(&mut body, "transaction_id", self.id.map(|id| id.to_string()));
        put_session(&mut body, self.session);
        put(&mut body, "timeout_ms", self.timeout_ms);
        put(&mut body, "commit", self.commit.then_some(true));
        put_work(&mut body, &self.work);
        Request { key: self.key.clone(), ..post("/v1/transactions", body) }
    }
}

impl TransactionCall {
    fn request(&self) -> Request {
        let mut body = json!({});
        put_session(&mut body, self.session);
        let verb = match &self.verb {
            Verb::Records { sequence, appends } => {
                put(&mut body, "sequence", *sequence);
                body["appends"] = items(appends);
                "records"
            }
            Verb::Offsets(items) => {
                body["offsets"] = offsets(items, true);
                "offsets"
            }
            Verb::Prepare => "prepare",
            Verb::Commit { expected_appends, work } => {
                put(&mut body, "expected_appends", *expected_appends);
                put_work(&mut body, work);
                "commit"
            }
            Verb::Abort => "abort",
        };
        let who = if self.is_operator { "?as=operator" } else { "" };
        post(format!("/v1/transactions/{}/{verb}{who}", self.id), body)
    }
}

impl Commit {
    fn request(&self) -> Request {
        let mut body = json!({});
        match &self.items[..] {
            [OffsetItem::Cursor { member, generation, cursor, .. }] => {
                body = json!({"member_id": member, "generation": generation, "cursor": cursor});
            }
            items => {
                if let OffsetItem::At { right: Right::Member(member, generation, _), .. } =
                    &items[0]
                {
                    body = json!({"member_id": member, "generation": generation});
                }
                body["offsets"] = offsets(items, false);
            }
        }
        let path = format!("/v1/groups/{}/offsets", self.group);
        Request { key: self.key.clone(), ..post(path, body) }
    }
}

impl Join {
    fn request(&self) -> Request {
        let mut body = json!({});
        put(&mut body, "topics", Some(json!(self.topics)).filter(|_| !self.topics.is_empty()));
        put(&mut body, "topic_pattern", self.pattern);
        put(&mut body, "instance_id", self.instance.map(|instance| format!("i{instance}")));
        put(&mut body, "auto_offset_reset", self.auto_offset_reset);
        let path = format!("/v1/groups/{}/members", self.group);
        Request { key: self.key.clone(), ..post(path, body) }
    }
}

impl Fetch {
    fn request(&self) -> Request {
        let path = format!("/v1/groups/{}/members/{}/records", self.group, self.member);
        if self.by_post {
            let mut body = json!({});
            put(&mut body, "cursor", self.cursor.as_deref());
            put(&mut body, "run", self.run);
            put(&mut body, "limit", self.limit);
            return post(path, body);
        }
        let cursor = self.cursor.iter().map(|cursor| format!("cursor={cursor}"));
        let run = self.run.iter().map(|run| format!("run={run}"));
        let query = query(cursor.chain(run).collect(), self.limit);
        get(format!("{path}{query}"))
    }
}

impl Start {
    fn parameters(&self) -> Vec<String> {
        match self {
            Self::Earliest => Vec::new(),
            Self::Latest => vec!["offset=latest".to_owned()],
            Self::Offset(offset) => vec![format!("offset={offset}")],
            Self::Timestamp(at) => vec![format!("timestamp={at}")],
            Self::Cursor(cursor) => vec![format!("cursor={cursor}")],
        }
    }
}

fn query(mut parameters: Vec<String>, limit: Option<usize>) -> String {
    parameters.extend(limit.map(|limit| format!("limit={limit}")));
    if parameters.is_empty() { String::new() } else { format!("?{}", parameters.join("&")) }
}

fn topic_body(count: Option<Partition>, settings: &Option<Map<String, Value>>) -> Body {
    let mut body = json!({});
    put(&mut body, "partition_count", count);
    put(&mut body, "settings", settings.clone());
    Body::Json(body)
}

fn patch(path: &str, body: Value) -> Request {
    let (path, body) = (path.to_owned(), Body::Json(body));
    Request { method: "PATCH", path, body, ..Request::default() }
}

impl Call {
    pub fn request(&self) -> Request {
        let topic_call = |method, topic: &str, body| Request {
            method,
            path: format!("/v1/topics/{topic}"),
            body,
            ..Request::default()
        };
        match self {
            Self::Append(append) => append.request(),
            Self::Open(open) => open.request(),
            Self::Close { producer, epoch } => {
                let epoch = epoch.map(|epoch| format!("?epoch={epoch}")).unwrap_or_default();
                delete(format!("/v1/sessions/{producer}{epoch}"))
            }
            Self::GetSession { producer } => get(format!("/v1/sessions/{producer}")),
            Self::Begin(begin) => begin.request(),
            Self::Transaction(call) => call.request(),
            Self::GetTransaction { id } => get(format!("/v1/transactions/{id}")),
            Self::Commit(commit) => commit.request(),
            Self::GetOffsets { group } => get(format!("/v1/groups/{group}/offsets")),
            Self::Reset { group, topics, to, dry_run } => {
                let mut body = json!({"to": to});
                put(&mut body, "topics", topics.clone());
                put(&mut body, "dry_run", dry_run.then_some(true));
                post(format!("/v1/groups/{group}/offsets/reset"), body)
            }
            Self::GetGroup { group } => get(format!("/v1/groups/{group}")),
            Self::DeleteGroup { group } => delete(format!("/v1/groups/{group}")),
            Self::Join(join) => join.request(),
            Self::Leave { group, member } => delete(format!("/v1/groups/{group}/members/{member}")),
            Self::Heartbeat { group, member, generation } => {
                let mut body = json!({});
                put(&mut body, "generation", *generation);
                post(format!("/v1/groups/{group}/members/{member}/heartbeat"), body)
            }
            Self::Fetch(fetch) => fetch.request(),
            Self::PutTopic { topic, count, settings } => {
                topic_call("PUT", topic, topic_body(*count, settings))
            }
            Self::PatchTopic { topic, count, settings } => {
                topic_call("PATCH", topic, topic_body(*count, settings))
            }
            Self::DeleteTopic { topic } => topic_call("DELETE", topic, Body::None),
            Self::GetTopic { topic } => topic_call("GET", topic, Body::None),
            Self::Trim { topic, partition, before } => {
                delete(format!("/v1/topics/{topic}/partitions/{partition}/records?before={before}"))
            }
            Self::PatchTenant(settings) => patch("/v1/settings", Value::Object(settings.clone())),
            Self::Read(read) => {
                let mut parameters = read.start.parameters();
                parameters.extend(read.uncommitted.then(|| "isolation=read_uncommitted".into()));
                let query = query(parameters, read.limit);
                let path = format!(
                    "/v1/topics/{}/partitions/{}/records{query}",
                    read.topic, read.partition
                );
                Request { wants_lines: read.as_lines, ..get(path) }
            }
            Self::ReadTopic { topic, start, limit, as_lines } => {
                let query = query(start.parameters(), *limit);
                Request {
                    wants_lines: *as_lines,
                    ..get(format!("/v1/topics/{topic}/records{query}"))
                }
            }
        }
    }
}
