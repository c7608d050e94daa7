//! Members of groups: joins, heartbeats, leaves, and the responses to each. To simulate time, the
//! tests change leases in the database and call the janitor's round.

mod handover;
mod positions;
mod random;
mod resets;
mod runs;
mod storms;
mod subscriptions;
mod transactions;

use oncelog::{
    model::{Code, Timestamp},
    store::{self, Store},
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use crate::support::{
    self,
    http::{Answer, Call, Server, Setup},
};

/// A member, whatever replica it speaks to.
struct Member {
    id: String,
    group: String,
    path: String,
    /// What its join answered.
    joined: Value,
}

impl Member {
    async fn join(server: &Server, group: &str, join: Value) -> Self {
        let joined = joining(server, group, join).await.created();
        let id = joined["member_id"].as_str().unwrap().to_owned();
        let path = format!("/v1/groups/{group}/members/{id}");
        Self { id, group: group.into(), path, joined }
    }

    fn heartbeat(&self, server: &Server) -> Call {
        server.post(&format!("{}/heartbeat", self.path))
    }

    /// As a member that has seen this answer.
    fn heartbeat_of(&self, server: &Server, seen: &Value) -> Call {
        self.heartbeat(server).json(json!({"generation": seen["generation"]}))
    }

    fn fetch(&self, server: &Server, query: &str) -> Call {
        server.get(&format!("{}/records?{query}", self.path))
    }

    async fn leave(&self, server: &Server) {
        server.delete(&self.path).await.no_content();
    }

    /// As a member that has seen this answer.
    fn commit(&self, server: &Server, seen: &Value, commit: Value) -> Call {
        let mut body = json!({"member_id": self.id, "generation": seen["generation"]});
        body.as_object_mut().unwrap().extend(commit.as_object().unwrap().clone());
        server.post(&format!("/v1/groups/{}/offsets", self.group)).json(body)
    }

    /// All that this answer had.
    fn commit_all(&self, server: &Server, seen: &Value) -> Call {
        self.commit(server, seen, json!({"cursor": seen["cursor"]}))
    }
}

fn joining(server: &Server, group: &str, join: Value) -> Call {
    server.post(&format!("/v1/groups/{group}/members")).json(join)
}

/// Partitions as `t/0 t/1`.
fn partitions(list: &Value) -> String {
    let topics = list.as_array().unwrap().iter();
    let named = topics.flat_map(|topic| {
        let name = topic["topic"].as_str().unwrap();
        topic["partitions"].as_array().unwrap().iter().map(move |number| format!("{name}/{number}"))
    });
    named.collect::<Vec<_>>().join(" ")
}

fn owns(answer: &Value) -> String {
    partitions(&answer["assignment"])
}

fn revoked(answer: &Value) -> String {
    partitions(&answer["revoked"])
}

/// Records as `t/0@5`.
fn records(answer: &Value) -> Vec<String> {
    let record = |record: &Value| {
        let topic = record["topic"].as_str().unwrap();
        format!("{topic}/{}@{}", record["partition"], record["offset"])
    };
    let mut records: Vec<String> =
        answer["records"].as_array().unwrap().iter().map(record).collect();
    // whose turn is first is another matter
    records.sort_by_key(|record| record.split('@').next().map(str::to_owned));
    records
}

/// That many records to one partition.
async fn append(server: &Server, topic: &str, partition: i32, count: usize) {
    let path = format!("/v1/topics/{topic}/partitions/{partition}/records");
    let records = vec![json!({"value": 1}); count];
    server.post(&path).json(json!({"records": records})).await.ok();
}

/// Its lease has run out, a second ago.
async fn lapse(server: &Server, member: &Member) {
    let sql = "update oncelog.group_members set lease_expires_at = now() - interval '1 second' where member_id =";
    server.sql(format!("{sql} '{}'", member.id)).await;
}

async fn text(server: &Server, sql: &str) -> String {
    let mut connection = server.options.connect().await.unwrap();
    let text = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    text
}

#[tokio::test]
async fn a_join_answers_what_the_member_has_and_until_when() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    server.topic("carts", 1).await;
    let join = json!({"topics": ["orders", "carts"], "session_timeout_ms": 30_000});
    let member = Member::join(&server, "g", join).await;
    assert_eq!(owns(&member.joined), "carts/0 orders/0 orders/1");
    assert_eq!(member.joined["generation"], 1);
    assert_eq!(member.joined["heartbeat_interval_ms"], 10_000);
    let lease = text(
        &server,
        "select to_char(lease_expires_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') \
         from oncelog.group_members",
    );
    assert_eq!(member.joined["lease_expires_at"], lease.await);
    // without a word about it, the default as far as the tenant permits
    let join = json!({"topics": ["orders"], "instance_id": "i"});
    let other = Member::join(&server, "other", join.clone()).await;
    assert_eq!(other.joined["heartbeat_interval_ms"], 15_000);
    let settings = json!({"session_timeout_max_ms": 9_000, "session_timeout_min_ms": 6_000});
    server.patch("/v1/settings").json(settings).await.ok();
    let other = Member::join(&server, "other", join.clone()).await;
    assert_eq!(other.joined["heartbeat_interval_ms"], 3_000);
    for (asked, taken) in [(5_999, false), (6_000, true), (9_000, true), (9_001, false)] {
        let mut join = join.clone();
        join["session_timeout_ms"] = json!(asked);
        let answer = joining(&server, "other", join).await;
        if taken {
            answer.created();
        } else {
            answer.invalid(&["/session_timeout_ms"]);
        }
    }
}

#[tokio::test]
async fn a_join_names_topics_that_there_are_or_a_pattern() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let join = async |body: Value| joining(&server, "g", body).await;
    join(json!({})).await.invalid(&["/topics"]);
    join(json!({"topics": []})).await.invalid(&["/topics"]);
    join(json!({"topics": ["orders"], "topic": 1})).await.invalid(&["/topic"]);
    let bad = join(json!({"topic_pattern": "orders["})).await;
    bad.invalid(&["/topic_pattern"]);
    assert!(bad.text().contains("unclosed character class"), "{}", bad.text());
    join(json!({"topics": ["orders", "carts"]})).await.refused(Code::TopicNotFound);
    // which made no group
    server.get("/v1/groups/g/offsets").await.refused(Code::GroupNotFound);
    // a pattern need not match anything yet
    assert_eq!(owns(&join(json!({"topic_pattern": "^carts"})).await.created()), "");
    server.get("/v1/groups/g/offsets").await.ok();
}

#[tokio::test]
async fn who_is_no_member_is_told_so_and_a_group_that_is_not_there_as_well() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let member = Member::join(&server, "g", json!({"topics": ["orders"]})).await;
    assert_eq!(owns(&member.heartbeat(&server).await.ok()), "orders/0");
    assert_eq!(owns(&member.heartbeat(&server).json("{}").await.ok()), "orders/0");
    for generation in ["0", "1", "2", "9007199254740991"] {
        let body = format!(r#"{{"generation":{generation}}}"#);
        assert_eq!(owns(&member.heartbeat(&server).json(body).await.ok()), "orders/0");
    }
    for generation in ["-1", "9007199254740992", "\"1\""] {
        let body = format!(r#"{{"generation":{generation}}}"#);
        member.heartbeat(&server).json(body).await.invalid(&["/generation"]);
    }
    member.heartbeat(&server).json(r#"{"generations":1}"#).await.invalid(&["/generations"]);
    member.leave(&server).await;
    let elsewhere = Member { path: member.path.replace("/g/", "/none/"), ..stranger(&member) };
    for (member, code) in [(&member, Code::UnknownMember), (&elsewhere, Code::GroupNotFound)] {
        member.heartbeat(&server).await.refused(code);
        member.fetch(&server, "").await.refused(code);
        member.fetch(&server, "wait_ms=60000").await.refused(code);
        server.delete(&member.path).await.refused(code);
    }
    for id in ["%00", &"x".repeat(256)] {
        let odd = Member { path: format!("/v1/groups/g/members/{id}"), ..stranger(&member) };
        odd.heartbeat(&server).await.invalid(&["/path/member_id"]);
        odd.fetch(&server, "").await.invalid(&["/path/member_id"]);
        server.delete(&odd.path).await.invalid(&["/path/member_id"]);
    }
    let commit = json!({"member_id": "a\0", "generation": 1, "cursor": "c"});
    server.post("/v1/groups/g/offsets").json(commit).await.invalid(&["/member_id"]);
}

/// The same, to be changed.
fn stranger(member: &Member) -> Member {
    let Member { id, group, path, joined } = member;
    let (id, group, path) = (id.clone(), group.clone(), path.clone());
    Member { id, group, path, joined: joined.clone() }
}

#[tokio::test]
async fn a_fetch_is_answered_as_lines_with_the_cursor_in_a_header() {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    append(&server, "orders", 0, 2).await;
    append(&server, "orders", 1, 1).await;
    let member = Member::join(&server, "g", json!({"topics": ["orders"]})).await;
    let json = member.fetch(&server, "").await.ok();
    let lines = member.fetch(&server, "").header("accept", "application/x-ndjson").await;
    assert_eq!(lines.header("oncelog-cursor"), json["cursor"].as_str());
    assert_eq!(lines.header("oncelog-generation"), Some("1"));
    let lines: Vec<Value> =
        lines.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(json!(lines), json["records"]);
    member.fetch(&server, "").header("accept", "text/plain").await.refused(Code::NotAcceptable);
    member.fetch(&server, "offset=earliest").await.invalid(&["?offset"]);
    let many = member.fetch(&server, "limit=0&max_bytes=0&wait_ms=60001").await;
    many.invalid(&["?limit", "?max_bytes", "?wait_ms"]);
}

#[tokio::test]
async fn a_heartbeat_writes_nothing_until_a_third_of_the_lease_has_passed() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let member = Member::join(&server, "g", json!({"topics": ["orders"]})).await;
    let row = async || {
        text(&server, "select xmin::text || ' ' || lease_expires_at from oncelog.group_members")
            .await
    };
    let passed = async |interval: &str| {
        let sql = "update oncelog.group_members set lease_expires_at = now() + interval '45 seconds' - interval";
        server.sql(format!("{sql} '{interval}'")).await;
        row().await
    };
    let fresh = passed("10 seconds").await;
    member.heartbeat(&server).await.ok();
    member.fetch(&server, "").await.ok();
    assert_eq!(row().await, fresh);
    for call in ["heartbeat", "fetch"] {
        let old = passed("16 seconds").await;
        let answer: Answer = match call {
            "heartbeat" => member.heartbeat(&server).await,
            _ => member.fetch(&server, "").await,
        };
        answer.ok();
        assert_ne!(row().await, old, "{call}");
        let left = "select case when lease_expires_at > now() + interval '40 seconds' then 'long' else 'short' end \
                    from oncelog.group_members";
        assert_eq!(text(&server, left).await, "long", "{call}");
    }
}

/// It was computed from an older lease, and waited for its turn.
#[tokio::test]
async fn a_renewal_that_comes_late_moves_no_lease_back() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let member = Member::join(&server, "g", json!({"topics": ["orders"]})).await;
    let tenant = support::tenant(&server.broker).await;
    let lease = async || {
        let lease = text(
            &server,
            "select (extract(epoch from lease_expires_at) * 1000)::bigint::text \
            from oncelog.group_members",
        );
        lease.await.parse::<i64>().unwrap()
    };
    let mut connection = Store::new(server.options.clone(), 1).connection().await.unwrap();
    let first = lease().await;
    for (until, then) in [(-10_000, 0), (10_000, 10_000), (9_000, 10_000), (10_001, 10_001)] {
        let group = support::name("g");
        let leases = [(&group, member.id.as_str(), Timestamp(first + until))];
        store::group::leases::renew(&mut connection, tenant, &leases).await.unwrap();
        assert_eq!(lease().await, first + then, "{until}");
    }
}

/// Two replicas on one database.
async fn replicas() -> (Server, Server) {
    let server = Server::start().await;
    let other = Server::on(&server.options, Setup::default()).await;
    (server, other)
}
