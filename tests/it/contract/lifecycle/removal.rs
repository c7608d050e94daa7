//! What deleted tenants have is removed, whatever goes on meanwhile, and nothing of anybody else;
//! and what deleted topics leave forever.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use oncelog::{
    broker::{Broker, Error, ServiceConfig},
    model::{
        Code, TenantId,
        append::Scope,
        dedup::Ring,
        group::{Join, Subscription},
        transaction::{Begin, Work},
    },
    store,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};
use uuid::Uuid;

use crate::support::{
    self,
    http::{Answer, Call, Server, Setup, shared_keys, token},
    name,
    proxy::Proxy,
};

const GONE: &str = "gone";
const NEIGHBOUR: &str = "neighbour";

/// A server of many tenants and a hand in its database.
struct World {
    server: Server,
    hand: PgConnection,
}

async fn world() -> World {
    let server = Server::signed().await;
    let hand = server.options.connect().await.unwrap();
    World { server, hand }
}

/// With the token of a tenant that may do everything.
async fn send(call: Call, tenant: &str) -> Answer {
    call.token(&token(tenant, "produce consume group admin")).await
}

impl World {
    async fn post(&self, tenant: &str, path: &str, body: Value) -> Value {
        let answer = send(self.server.post(path).json(body), tenant).await;
        assert!(answer.status < 300, "{path}: {}", answer.text());
        answer.json()
    }

    async fn topic(&self, tenant: &str, topic: &str, partitions: i32) {
        let put = self.server.put(&format!("/v1/topics/{topic}"));
        send(put.json(json!({"partition_count": partitions})), tenant).await.created();
    }

    async fn id(&self, tenant: &str) -> TenantId {
        self.server.broker.tenant(&name(tenant)).await.unwrap()
    }

    /// Statements that are one transaction.
    async fn sql(&mut self, sql: impl Into<String>) {
        self.hand.execute(AssertSqlSafe(sql.into())).await.unwrap();
    }

    async fn number(&mut self, sql: impl Into<String>) -> i64 {
        let query = sqlx::query_scalar(AssertSqlSafe(sql.into()));
        query.fetch_one(&mut self.hand).await.unwrap()
    }

    /// Every table with rows of tenants.
    async fn tables(&mut self) -> Vec<String> {
        let sql = "select c.table_name::text from information_schema.columns c \
            join pg_class t on t.oid = format('%I.%I', c.table_schema, c.table_name)::regclass \
            where c.table_schema = 'oncelog' and c.column_name = 'tenant_id' \
                and t.relkind in ('r', 'p') and not t.relispartition order by 1";
        sqlx::query_scalar(sql).fetch_all(&mut self.hand).await.unwrap()
    }

    /// How many rows a tenant has, by table, and what they are together.
    async fn rows(&mut self, tenant: TenantId) -> BTreeMap<String, (i64, String)> {
        let mut rows = BTreeMap::new();
        for table in self.tables().await {
            let sql = format!(
                "select count(*), coalesce(md5(string_agg(t::text, '|' order by t::text)), '') \
                from oncelog.{table} t where tenant_id = {}",
                tenant.0
            );
            let found = sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&mut self.hand).await;
            rows.insert(table, found.unwrap());
        }
        rows
    }

    /// The tables that have rows of a tenant.
    async fn left(&mut self, tenant: TenantId) -> Vec<String> {
        let rows = self.rows(tenant).await;
        rows.into_iter().filter(|(_, (count, _))| *count > 0).map(|(table, _)| table).collect()
    }

    async fn delete(&mut self, tenant: &str) {
        self.sql(format!("update oncelog.tenants set deleted_at = now() where name = '{tenant}'"))
            .await;
    }

    /// No request lives that knew a tenant before it was deleted.
    async fn age(&mut self) {
        self.sql("update oncelog.tenants set deleted_at = deleted_at - interval '15 minutes'")
            .await;
    }

    /// Logs are removed in the rounds after that of their topics, that many a round.
    async fn sweep(&mut self) {
        for round in 0.. {
            self.server.broker.sweep().await.unwrap();
            if round > 1 && self.number("select count(*) from oncelog.doomed_logs").await == 0 {
                return self.server.broker.sweep().await.unwrap();
            }
            assert!(round < 50, "logs that are never removed");
        }
    }

    /// Nothing but its row is left of a deleted tenant; that goes when it is time.
    async fn is_removed(&mut self, tenant: TenantId) {
        self.sweep().await;
        assert_eq!(self.left(tenant).await, ["tenants"]);
        self.age().await;
        self.is_removed_at_last(tenant).await;
    }

    async fn is_removed_at_last(&mut self, tenant: TenantId) {
        self.sweep().await;
        assert_eq!(self.left(tenant).await, [""; 0]);
    }

    /// Some of everything: sessions, logs and journals, transactions in every state, groups and
    /// members, keys.
    async fn fill(&mut self, tenant: &str) {
        self.topic(tenant, "orders", 3).await;
        self.topic(tenant, "old", 2).await;
        let open = json!({"transactional_id": "p", "open_id": Uuid::now_v7()});
        let id = self.post(tenant, "/v1/sessions", open).await["producer_id"].clone();
        let records = |n: i64| json!([{"key": "k", "value": n}, {"value": n}]);
        for (sequence, path) in
            [(0, "orders/partitions/0"), (1, "orders/partitions/0"), (0, "orders"), (0, "old")]
        {
            let append = json!({"producer_id": id, "epoch": 0, "sequence": sequence,
                "records": records(sequence)});
            self.post(tenant, &format!("/v1/topics/{path}/records"), append).await;
        }
        let append = |topic: &str| json!({"topic": topic, "partition": 1, "records": records(7)});
        for (partition, end) in
            [(0, None), (1, Some("prepare")), (2, Some("commit")), (0, Some("abort"))]
        {
            let id = Uuid::now_v7();
            let offset = json!({"group": "g", "topic": "orders", "partition": partition,
                "expected_offset": null, "offset": 0});
            let begin = json!({"transaction_id": id, "appends": [append("orders"), append("old")],
                "offsets": [offset]});
            self.post(tenant, "/v1/transactions", begin).await;
            if let Some(end) = end {
                self.post(tenant, &format!("/v1/transactions/{id}/{end}"), json!({})).await;
            }
        }
        let whole = json!({"commit": true, "appends": [append("orders")]});
        let keyed = self.server.post("/v1/transactions").json(&whole);
        send(keyed.header("idempotency-key", "evt_1"), tenant).await.created();
        self.post(tenant, "/v1/transactions", whole).await;
        self.post(tenant, "/v1/groups/h/members", json!({"topics": ["orders"]})).await;
        let tenant = self.id(tenant).await.0;
        self.sql(format!(
            "insert into oncelog.dedup_keys (slot, tenant_id, topic_id, key, digest, first_seen_at, expires_at) \
                select s, {tenant}, t, gen_random_uuid(), 0, now(), 'infinity' \
                from unnest('{{0, 4, 17, 18}}'::smallint[]) s, \
                    (select 0::bigint as t union select topic_id from oncelog.topics where tenant_id = {tenant}) t; \
            insert into oncelog.compactions (tenant_id, log_id) \
                select tenant_id, log_id from oncelog.logs where tenant_id = {tenant} and partition is not null; \
            insert into oncelog.held_ids (tenant_id, topic_id, key, transaction_id, digest, ordinal, position) \
                select tenant_id, 1, gen_random_uuid(), transaction_id, 0, 0, 0 from oncelog.transactions \
                where tenant_id = {tenant} and state = 'prepared'"
        ))
        .await;
    }

    /// Far more than a chunk of what there can be much of, and a topic that many have.
    async fn fill_much(&mut self, tenant: &str) {
        self.topic(tenant, "wide", 1_200).await;
        let tenant = self.id(tenant).await.0;
        self.sql(format!(
            "insert into oncelog.transactions (tenant_id, transaction_id, state, digest, created_at, expires_at) \
                select {tenant}, gen_random_uuid(), 'ongoing', '', now(), now() + interval '1 hour' from generate_series(1, 2500); \
            insert into oncelog.staged_batches (tenant_id, transaction_id, ordinal, log_id, record_count, records) \
                select {tenant}, gen_random_uuid(), 0, 1, 1, '{{}}' from generate_series(1, 2500); \
            insert into oncelog.sessions (tenant_id, transaction_timeout_ms, opened_at) \
                select {tenant}, 1, now() from generate_series(1, 2500); \
            insert into oncelog.session_opens (tenant_id, open_id, producer_id, epoch) \
                select tenant_id, gen_random_uuid(), producer_id, 0 from oncelog.sessions where tenant_id = {tenant}; \
            insert into oncelog.producer_states (tenant_id, log_id, producer_id, epoch, as_of_offset) \
                select tenant_id, 0, producer_id, 0, 0 from oncelog.sessions where tenant_id = {tenant}; \
            insert into oncelog.groups (tenant_id, name) select {tenant}, 'g' || n from generate_series(1, 2500) n; \
            insert into oncelog.group_offsets (tenant_id, group_name, log_id) \
                select tenant_id, name, 0 from oncelog.groups where tenant_id = {tenant}; \
            insert into oncelog.dedup_keys (slot, tenant_id, topic_id, key, digest, first_seen_at, expires_at) \
                select s, {tenant}, 0, gen_random_uuid(), 0, now(), 'infinity' \
                from unnest('{{1, 18}}'::smallint[]) s, generate_series(1, 1500)"
        ))
        .await;
    }
}

#[tokio::test]
async fn a_deleted_tenant_leaves_nothing_and_its_neighbour_loses_nothing() {
    let mut world = world().await;
    for tenant in [GONE, NEIGHBOUR] {
        world.fill(tenant).await;
    }
    let (gone, neighbour) = (world.id(GONE).await, world.id(NEIGHBOUR).await);
    world.sweep().await;
    let before = world.rows(neighbour).await;
    let read = async |world: &World| {
        let page = world.server.get("/v1/topics/orders/partitions/0/records");
        send(page, NEIGHBOUR).await.ok()["records"].clone()
    };
    let records = read(&world).await;
    assert!(!records.as_array().unwrap().is_empty());
    // a topic that is deleted with it
    let keyed = format!("tenant_id = {} and partition is null", gone.0);
    world.sql(format!("update oncelog.logs set key_rings = 64 where {keyed}")).await;
    world.topic(GONE, "older", 1).await;
    world.sql(format!("update oncelog.logs set key_rings = 64 where {keyed}")).await;
    send(world.server.delete("/v1/topics/older"), GONE).await.no_content();
    assert_eq!(world.left(gone).await, world.tables().await, "some of everything is to be removed");
    world.delete(GONE).await;
    world.is_removed(gone).await;
    assert_eq!(world.rows(neighbour).await, before);
    assert_eq!(read(&world).await, records);
    // its name may be had again
    world.sql(format!("insert into oncelog.tenants (name) values ('{GONE}')")).await;
}

/// A table that is added is looked at, and swept or removed with its topics.
#[tokio::test]
async fn no_table_is_forgotten() {
    let mut world = world().await;
    let statements = store::janitor::deleted_tenants::STATEMENTS;
    let (_, left) = statements.iter().find(|(name, _)| *name == "LEFT").unwrap();
    let with_topics = ["tenants", "topics", "logs", "doomed_logs"];
    for table in world.tables().await {
        let looked_at =
            left.contains(&format!("from oncelog.{table} where tenant_id = $1) then '{table}'"));
        assert!(looked_at || table == "tenants", "{table}");
        let is_swept =
            store::janitor::deleted_tenants::SWEPT.iter().any(|swept| swept.table == table);
        assert!(is_swept != with_topics.contains(&&*table), "{table}");
    }
}

#[tokio::test]
async fn prepared_transactions_are_aborted_by_the_operator_before_anything_goes() {
    let mut world = world().await;
    world.fill(GONE).await;
    let gone = world.id(GONE).await;
    world.delete(GONE).await;
    let everything = world.left(gone).await;
    // somebody is at both topics
    let mut other = world.server.options.connect().await.unwrap();
    other.execute("begin; select from oncelog.topics for no key update").await.unwrap();
    world.sweep().await;
    let reasons = "select count(*) from oncelog.transactions where reason = 'operator' and prepared_at is not null";
    assert_eq!(world.number(reasons).await, 1);
    assert_eq!(
        world
            .number("select count(*) from oncelog.group_offsets where pinned_by is not null")
            .await,
        0
    );
    let left = world.left(gone).await;
    let kept = |table: &&String| !["pins", "held_ids"].contains(&table.as_str());
    assert!(everything.iter().filter(kept).all(|table| left.contains(table)), "{left:?}");
    other.execute("rollback").await.unwrap();
    world.is_removed(gone).await;
}

#[tokio::test]
async fn no_database_transaction_removes_more_than_a_chunk() {
    let mut world = world().await;
    world.fill(GONE).await;
    world.fill_much(GONE).await;
    let gone = world.id(GONE).await;
    world
        .sql(
            "create table public.removed (transaction xid8, rows bigint); \
            create function public.note() returns trigger language plpgsql as $$ begin \
                insert into public.removed select pg_current_xact_id(), count(*) from gone; return null; end $$",
        )
        .await;
    for table in world.tables().await {
        world
            .sql(format!(
                "create trigger note after delete on oncelog.{table} referencing old table as gone \
                for each statement execute function public.note()"
            ))
            .await;
    }
    let all: i64 = world.rows(gone).await.values().map(|(count, _)| count).sum();
    world.delete(GONE).await;
    world.is_removed(gone).await;
    let largest = "select max(rows)::bigint from \
        (select sum(rows) as rows from public.removed group by transaction) r";
    assert!(world.number(largest).await <= 1_000);
    // and what notes that logs are to be removed
    assert!(world.number("select sum(rows)::bigint from public.removed").await > all);
}

/// A wide topic goes in steps, the last partitions first; each step leaves a whole topic.
#[tokio::test]
async fn a_topic_that_is_half_removed_is_a_smaller_topic() {
    let mut world = world().await;
    world.topic(GONE, "wide", 1_200).await;
    let (broker, gone) = (world.server.broker.clone(), world.id(GONE).await);
    let append = async |scope| {
        let append = support::append(None, r#"{"key":"k","value":1}"#);
        broker.append(gone, &name("wide"), scope, append, None).await
    };
    for scope in [Scope::Topic, Scope::Partition(0), Scope::Partition(1_199)] {
        append(scope).await.unwrap();
    }
    world.delete(GONE).await;
    // prepared elsewhere, as this has not seen
    let pin = "insert into oncelog.pins select tenant_id, gen_random_uuid(), log_id from oncelog.logs where partition = 0";
    world.sql(pin).await;
    world.sweep().await;
    let rest = world.number("select partition_count::bigint from oncelog.topics").await;
    assert!((1..1_200).contains(&rest), "{rest}");
    assert_eq!(world.number("select count(*) from oncelog.logs").await, rest + 1);
    assert_eq!(append(Scope::Partition(1_199)).await.unwrap_err().code, Code::PartitionNotFound);
    for scope in [Scope::Topic, Scope::Partition(0)] {
        append(scope).await.unwrap();
    }
    let topic = broker.topic(gone, &name("wide")).await.unwrap();
    assert_eq!(topic.partitions.len() as i64, rest);
    world.sql("delete from oncelog.pins").await;
    world.is_removed(gone).await;
}

#[tokio::test]
async fn two_replicas_remove_together_what_one_would() {
    let mut world = world().await;
    world.fill(GONE).await;
    world.fill(NEIGHBOUR).await;
    world.fill_much(GONE).await;
    let (gone, neighbour) = (world.id(GONE).await, world.id(NEIGHBOUR).await);
    world.sweep().await;
    let before = world.rows(neighbour).await;
    let setup = Setup { keys: shared_keys(), ..Setup::default() };
    let there = Server::on(&world.server.options, setup).await;
    world.delete(GONE).await;
    for _ in 0..4 {
        let (here, there) = tokio::join!(world.server.broker.sweep(), there.broker.sweep());
        here.and(there).unwrap();
    }
    assert!(world.number("select count(*) from oncelog.sessions").await == 1, "the neighbour's");
    world.is_removed(gone).await;
    assert_eq!(world.rows(neighbour).await, before);
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(world.number(deadlocks).await, 0);
}

/// One call of each kind that makes something, as by a request that knew the tenant before.
async fn make(broker: &Broker, tenant: TenantId, n: usize) -> Vec<Error> {
    let topic = name(&format!("t{}", n % 4));
    let append = || support::append(None, r#"{"key":"k","value":1}"#);
    let work = Work { appends: Vec::new(), offsets: Vec::new() };
    let begin = Begin {
        transaction_id: Some(Uuid::now_v7()),
        idempotency_key: None,
        session: None,
        timeout_ms: None,
        work,
        commit: n.is_multiple_of(2),
        scopes: support::all_scopes(),
    };
    let subscription = Subscription { topics: [topic.clone()].into(), ..Subscription::default() };
    let join =
        Join { subscription, instance_id: None, session_timeout_ms: None, auto_offset_reset: None };
    let failures = [
        broker.put_topic(tenant, &topic, Some(2), None).await.err(),
        broker.append(tenant, &topic, Scope::Partition(0), append(), None).await.err(),
        broker.append(tenant, &topic, Scope::Topic, append(), None).await.err(),
        broker.open_session(tenant, support::open(Some("p")), None).await.err(),
        broker.begin_transaction(tenant, begin, None).await.err(),
        broker.join_group(tenant, &name("g"), join, None).await.err(),
    ];
    failures.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_fail_cleanly_or_are_removed() {
    let mut world = world().await;
    world.fill(GONE).await;
    let (broker, gone) = (world.server.broker.clone(), world.id(GONE).await);
    let there = support::broker(&world.server.options, ServiceConfig::default());
    world.delete(GONE).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let sweeping = [broker.clone(), there.clone()].map(|broker| {
        let is_over = is_over.clone();
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                broker.sweep().await.unwrap();
            }
        })
    });
    let making = (0..4).map(|writer| {
        let broker = if writer % 2 == 0 { broker.clone() } else { there.clone() };
        tokio::spawn(async move {
            let mut failures = Vec::new();
            for n in 0..25 {
                failures.extend(make(&broker, gone, n + writer).await);
            }
            failures
        })
    });
    for making in making.collect::<Vec<_>>() {
        for error in making.await.unwrap() {
            let code = error.code;
            assert!(code.status() < 500 || code == Code::Unavailable, "{error:?}");
        }
    }
    is_over.store(true, Ordering::Relaxed);
    for sweeping in sweeping {
        sweeping.await.unwrap();
    }
    world.is_removed(gone).await;
}

/// A row that somebody is about to refer to is passed by, and found again in the next round.
#[tokio::test]
async fn what_is_made_behind_the_sweep_is_swept_again() {
    for (table, late) in [
        (
            "groups",
            "group_members (tenant_id, group_name, member_id) \
            select tenant_id, name, 'late' from oncelog.groups where name = 'h'",
        ),
        (
            "groups",
            "group_offsets (tenant_id, group_name, log_id) \
            select tenant_id, name, 0 from oncelog.groups where name = 'h'",
        ),
        (
            "sessions",
            "producer_states (tenant_id, log_id, producer_id, epoch, as_of_offset) \
            select tenant_id, 0, producer_id, 0, 0 from oncelog.sessions",
        ),
        (
            "tenants",
            "topics (tenant_id, name, partition_count) \
            select tenant_id, 'late', 1 from oncelog.tenants",
        ),
        (
            "tenants",
            "sessions (tenant_id, transaction_timeout_ms, opened_at) \
            select tenant_id, 1, now() from oncelog.tenants",
        ),
    ] {
        let mut world = world().await;
        world.fill(GONE).await;
        let gone = world.id(GONE).await;
        world.delete(GONE).await;
        world.age().await;
        let mut other = world.server.options.connect().await.unwrap();
        let mut in_flight = other.begin().await.unwrap();
        let insert = AssertSqlSafe(format!("insert into oncelog.{late}"));
        assert_eq!(in_flight.execute(insert).await.unwrap().rows_affected(), 1);
        for _ in 0..4 {
            world.server.broker.sweep().await.unwrap();
        }
        let left = world.left(gone).await;
        assert!(left.contains(&table.to_owned()) && left.len() <= 2, "{late}: {left:?}");
        in_flight.commit().await.unwrap();
        world.is_removed_at_last(gone).await;
    }
}

#[tokio::test]
async fn another_replica_goes_on_where_one_died() {
    for (statement, arrives) in [
        ("partition_count from oncelog.topics", true),
        ("delete from oncelog.logs", false),
        ("delete from oncelog.staged_batches", true),
        ("delete from oncelog.groups", false),
        ("delete from oncelog.dedup_keys", true),
    ] {
        let mut world = world().await;
        world.fill(GONE).await;
        let gone = world.id(GONE).await;
        let proxy = Proxy::start(&world.server.options, 1).await;
        let dying =
            support::broker(&proxy.options(&world.server.options), ServiceConfig::default());
        world.delete(GONE).await;
        proxy.cut_at(statement, arrives);
        while dying.sweep().await.is_ok() {
            assert!(!world.left(gone).await.is_empty(), "{statement}: never sent");
        }
        assert!(proxy.cut_nowhere(), "{statement}");
        assert!(world.left(gone).await.len() > 1);
        world.is_removed(gone).await;
    }
}

#[tokio::test]
async fn a_deleted_topic_leaves_no_keys_without_a_window() {
    let mut world = world().await;
    let (slot, bit) = (Ring::FOREVER.slots()[0], Ring::FOREVER.bit());
    for tenant in [GONE, NEIGHBOUR] {
        for (topic, rings) in [("keyed", bit | 1), ("short", 1), ("kept", bit)] {
            world.topic(tenant, topic, 2).await;
            let of = format!(
                "from oncelog.topics t join oncelog.tenants n using (tenant_id) \
                where t.name = '{topic}' and n.name = '{tenant}'"
            );
            world
                .sql(format!(
                    "update oncelog.logs l set key_rings = {rings} {of} and l.tenant_id = t.tenant_id \
                        and l.topic_id = t.topic_id and l.partition is null"
                ))
                .await;
            world
                .sql(format!(
                    "insert into oncelog.dedup_keys (slot, tenant_id, topic_id, key, digest, first_seen_at, expires_at) \
                    select s, tenant_id, topic_id, gen_random_uuid(), 0, now(), 'infinity' \
                    from generate_series(1, 2500), unnest('{{0, {slot}}}'::smallint[]) s, (select t.* {of}) t"
                ))
                .await;
        }
    }
    for topic in ["keyed", "short"] {
        send(world.server.delete(&format!("/v1/topics/{topic}")), GONE).await.no_content();
    }
    assert_eq!(world.number("select count(*) from oncelog.doomed_topics").await, 1);
    let gone = world.id(GONE).await;
    let keys = |slot: i16| format!("select count(*) from oncelog.dedup_keys where slot = {slot}");
    world.sweep().await;
    assert_eq!(world.number("select count(*) from oncelog.doomed_topics").await, 0);
    // those of shorter windows expire with their partitions; what never used the last ring is not
    // looked for in it
    assert_eq!(world.number(keys(0)).await, 6 * 2_500);
    assert_eq!(world.number(keys(slot)).await, 5 * 2_500);
    let of_gone = format!("{} and tenant_id = {}", keys(slot), gone.0);
    assert_eq!(world.number(of_gone).await, 2 * 2_500);
}
