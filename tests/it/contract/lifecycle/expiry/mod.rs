//! Producers that have been idle too long are forgotten as a whole, and only those: whatever is
//! under way meanwhile. Nobody waits for days here: instants in the database are moved.

mod races;

use std::sync::Arc;

use oncelog::{
    broker::{Broker, Error, ServiceConfig},
    model::{
        Code, LogId, ProducerId, TenantId,
        append::{Appended, ProducerSeq, Scope},
        session::Opened,
        settings::{Change, Changes, Key, Value},
    },
    store::Store,
};
use sqlx::{ConnectOptions, PgConnection, postgres::PgConnectOptions};
use uuid::Uuid;

use crate::support::{self, name, proxy::Proxy};

const TOPIC: &str = "orders";
const DAY_MS: i64 = 86_400_000;

/// A replica behind a proxy of its own.
struct Replica {
    broker: Arc<Broker>,
    tenant: TenantId,
    proxy: Proxy,
}

impl Replica {
    async fn append(&self, id: ProducerId, sequence: i64, scope: Scope) -> Result<Appended, Error> {
        let numbered = ProducerSeq { producer_id: id, epoch: 0, sequence };
        let append = support::append(Some(numbered), &format!(r#"{{"value":{sequence}}}"#));
        self.broker.append(self.tenant, &name(TOPIC), scope, append, None).await
    }

    /// One record into partition 0.
    async fn one(&self, id: ProducerId, sequence: i64) -> Result<Appended, Error> {
        self.append(id, sequence, Scope::Partition(0)).await
    }

    async fn open(&self, id: Option<&str>) -> Opened {
        self.broker.open_session(self.tenant, support::open(id), None).await.unwrap().value
    }

    async fn producer(&self, id: &str) -> ProducerId {
        self.open(Some(id)).await.session.producer_id
    }

    async fn sweep(&self) {
        self.broker.sweep().await.unwrap();
    }

    async fn set(&self, key: Key, value: Value) {
        let changes = Changes::from([(key, Change::Set(value))]);
        self.broker.patch_settings(self.tenant, changes, None).await.unwrap();
    }
}

struct World {
    options: PgConnectOptions,
    replicas: Vec<Replica>,
}

async fn world(partitions: i32) -> World {
    let options = support::database().await;
    let mut replicas = Vec::new();
    for seed in 0..2 {
        let proxy = Proxy::start(&options, seed).await;
        let settings =
            ServiceConfig { gap_wait_ms: 0, snapshot_rows: 1_000_000, ..ServiceConfig::default() };
        let broker = support::broker(&proxy.options(&options), settings);
        let tenant = support::tenant(&broker).await;
        replicas.push(Replica { broker, tenant, proxy });
    }
    let Replica { broker, tenant, .. } = &replicas[0];
    broker.put_topic(*tenant, &name(TOPIC), Some(partitions), None).await.unwrap();
    World { options, replicas }
}

impl World {
    async fn connect(&self) -> PgConnection {
        self.options.connect().await.unwrap()
    }

    async fn number(&self, sql: &str) -> i64 {
        support::number(&self.options, sql).await
    }

    async fn sql(&self, sql: &str) {
        support::execute(&self.options, sql).await;
    }

    /// That many milliseconds go by for the sessions.
    async fn age_sessions(&self, ms: i64) {
        let past = |column: &str| format!("{column} = {column} - interval '{ms} milliseconds'");
        let (opened, active) = (past("opened_at"), past("active_at"));
        self.sql(&format!("update oncelog.sessions set {opened}, {active}")).await;
    }

    /// That many milliseconds go by, for the logs and the sessions.
    async fn age(&self, ms: i64) {
        self.age_sessions(ms).await;
        for (table, column) in [
            ("batches", "appended_at"),
            ("producer_states", "last_appended_at"),
            ("logs", "last_appended_at"),
        ] {
            let past = format!("{column} - interval '{ms} milliseconds'");
            self.sql(&format!("update oncelog.{table} set {column} = {past}")).await;
        }
    }

    async fn is_known(&self, id: ProducerId) -> bool {
        let of = |table: &str| {
            format!("select count(*) from oncelog.{table} where producer_id = {}", id.0)
        };
        let known = self.number(&of("sessions")).await == 1;
        if !known {
            assert_eq!(self.number(&of("producer_states")).await, 0, "forgotten by halves");
        }
        known
    }

    async fn snapshot_everything(&self) {
        let store = Store::new(self.options.clone(), 1);
        let mut connection = self.connect().await;
        let logs: Vec<(i64, i64)> = sqlx::query_as("select tenant_id, log_id from oncelog.logs")
            .fetch_all(&mut connection)
            .await
            .unwrap();
        for (tenant, log) in logs {
            oncelog::broker::snapshot(&store, TenantId(tenant), LogId(log)).await.unwrap();
        }
    }

    /// Statements of this database that wait for a lock.
    async fn waiting(&self) -> i64 {
        self.number(
            "select count(*) from pg_stat_activity \
            where datname = current_database() and wait_event_type = 'Lock'",
        )
        .await
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> Code {
    result.expect_err("refused").code
}

#[tokio::test]
async fn an_expired_producer_is_unknown_everywhere_and_its_name_starts_over() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let (p, q) = (a.producer("p").await, a.producer("q").await);
    a.one(p, 0).await.unwrap();
    a.append(p, 0, Scope::Topic).await.unwrap();
    a.one(q, 0).await.unwrap();
    world.age(8 * DAY_MS).await;
    a.one(q, 1).await.unwrap();
    // p is warm in a's memory, under the fences as they are
    for _ in 0..2 {
        assert!(a.one(p, 0).await.unwrap().duplicate);
        assert!(a.append(p, 0, Scope::Topic).await.unwrap().duplicate);
    }
    b.sweep().await;
    assert!(!world.is_known(p).await && world.is_known(q).await);
    for replica in [a, b] {
        for scope in [Scope::Partition(0), Scope::Topic] {
            for sequence in [1, 0, 9] {
                assert_eq!(code(replica.append(p, sequence, scope).await), Code::UnknownProducer);
            }
        }
        assert_eq!(
            code(replica.broker.session(replica.tenant, p, &support::all_scopes()).await),
            Code::UnknownProducer
        );
        assert_eq!(
            code(replica.broker.end_session(replica.tenant, p, None, &support::all_scopes()).await),
            Code::UnknownProducer
        );
        let mut condition = support::open(None);
        condition.condition = Some((p, 0));
        let open = replica.broker.open_session(replica.tenant, condition, None).await;
        assert_eq!(code(open), Code::UnknownProducer);
    }
    // nothing was stored, and others go on
    assert_eq!(world.number("select next_offset from oncelog.logs where partition = 0").await, 4);
    a.one(q, 2).await.unwrap();
    let fresh = a.open(Some("p")).await;
    assert!(fresh.session.producer_id > p && fresh.session.epoch == 0);
    assert!(fresh.next_sequences.is_empty() && !fresh.duplicate);
    b.one(fresh.session.producer_id, 0).await.unwrap();
    assert_eq!(code(b.one(p, 1).await), Code::UnknownProducer);
}

#[tokio::test]
async fn a_row_in_any_log_keeps_a_producer() {
    let world = world(2).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    // in the tail of a partition, of a journal; in a snapshot; and only old ones
    let (tail, journal) = (a.producer("tail").await, a.producer("journal").await);
    let (folded, old) = (a.producer("folded").await, a.producer("old").await);
    a.one(folded, 0).await.unwrap();
    a.one(old, 0).await.unwrap();
    world.snapshot_everything().await;
    let past = "last_appended_at = last_appended_at - interval '8 days'";
    world
        .sql(&format!("update oncelog.producer_states set {past} where producer_id = {}", old.0))
        .await;
    a.append(tail, 0, Scope::Partition(1)).await.unwrap();
    a.append(journal, 0, Scope::Topic).await.unwrap();
    world.age_sessions(8 * DAY_MS).await;
    b.sweep().await;
    for id in [tail, journal, folded] {
        assert!(world.is_known(id).await, "{id:?}");
    }
    assert!(!world.is_known(old).await);
    // one look a limit: what was seen is noted
    let due = "select count(*) from oncelog.sessions where active_at < now() - interval '1 minute'";
    assert_eq!(world.number(due).await, 0);
    world.age(7 * DAY_MS - 60_000).await;
    b.sweep().await;
    assert!(world.is_known(tail).await);
    world.age(60_000).await;
    b.sweep().await;
    for id in [tail, journal, folded] {
        assert!(!world.is_known(id).await, "{id:?}");
    }
}

#[tokio::test]
async fn each_kind_has_its_limit_and_null_is_none() {
    let world = world(1).await;
    let [a, _] = &world.replicas[..] else { panic!() };
    let named = a.producer("p").await;
    let nameless = a.open(None).await.session.producer_id;
    a.set(Key::ProducerExpiryMs, Value::Unlimited).await;
    a.set(Key::TransactionalIdExpiryMs, Value::Unlimited).await;
    world.age(9_000 * DAY_MS).await;
    a.sweep().await;
    assert!(world.is_known(named).await && world.is_known(nameless).await);
    a.set(Key::ProducerExpiryMs, Value::Number(DAY_MS)).await;
    a.sweep().await;
    assert!(world.is_known(named).await && !world.is_known(nameless).await);
    // an open is activity, and so is the end of nothing
    a.open(Some("p")).await;
    a.set(Key::TransactionalIdExpiryMs, Value::Number(2 * DAY_MS)).await;
    world.age(DAY_MS).await;
    a.sweep().await;
    assert!(world.is_known(named).await);
    world.age(DAY_MS + 1).await;
    a.sweep().await;
    assert!(!world.is_known(named).await);
}

#[tokio::test]
async fn a_tenants_limit_is_its_own() {
    let world = world(1).await;
    let [a, _] = &world.replicas[..] else { panic!() };
    let rival = a.broker.tenant(&name("rival")).await.unwrap();
    let open = a.broker.open_session(rival, support::open(Some("p")), None).await.unwrap().value;
    let (ours, theirs) = (a.producer("p").await, open.session.producer_id);
    a.set(Key::TransactionalIdExpiryMs, Value::Number(DAY_MS)).await;
    world.age(2 * DAY_MS).await;
    a.sweep().await;
    assert!(!world.is_known(ours).await && world.is_known(theirs).await);
}

/// A UUIDv7 of that many milliseconds ago.
fn id_made(ago_ms: i64) -> Uuid {
    let now_ms = i64::try_from(crate::support::http::now_s()).unwrap() * 1_000;
    let bits = u128::try_from(now_ms - ago_ms).unwrap() << 80;
    Uuid::from_u128(bits | 7 << 76 | 2 << 62 | u128::from(rand::random::<u32>()))
}

#[tokio::test]
async fn what_an_open_id_did_outlives_its_producer() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    a.set(Key::ProducerExpiryMs, Value::Number(1_000)).await;
    a.set(Key::TransactionalIdExpiryMs, Value::Number(1_000)).await;
    let with = |id: Option<&str>, open_id: Uuid| {
        let mut open = support::open(id);
        open.open_id = Some(open_id);
        open
    };
    let open = async |id, open_id| {
        let opened = a.broker.open_session(a.tenant, with(id, open_id), None).await;
        opened.map(|answer| answer.value)
    };
    let (of_p, nameless, of_q) = (id_made(0), id_made(3_600_000), id_made(0));
    let p = open(Some("p"), of_p).await.unwrap().session.producer_id;
    let n = open(None, nameless).await.unwrap().session.producer_id;
    world.age(60_000).await;
    open(Some("q"), of_q).await.unwrap();
    b.sweep().await;
    assert!(!world.is_known(p).await && !world.is_known(n).await);
    // delayed duplicates, whatever they ask for
    for (id, open_id) in [(Some("p"), of_p), (None, nameless), (Some("r"), of_p), (None, of_p)] {
        assert_eq!(code(open(id, open_id).await), Code::UnknownProducer);
    }
    assert_eq!(world.number("select count(*) from oncelog.sessions").await, 1);
    let fresh = open(Some("p"), id_made(0)).await.unwrap();
    assert!(fresh.session.producer_id > p && fresh.session.epoch == 0);

    // the ids stay as long as they would be accepted, and an hour more
    let count = "select count(*) from oncelog.session_opens where orphaned";
    let rename = async |from: Uuid, to: Uuid| {
        let rename = format!("set open_id = '{to}' where open_id = '{from}'");
        world.sql(&format!("update oncelog.session_opens {rename}")).await;
    };
    b.sweep().await;
    assert_eq!(world.number(count).await, 2);
    let day = id_made(DAY_MS + 1_800_000);
    rename(of_p, day).await;
    rename(nameless, id_made(DAY_MS + 3_600_000 + 60_000)).await;
    rename(of_q, id_made(9 * DAY_MS)).await;
    b.sweep().await;
    assert_eq!(world.number(count).await, 1);
    rename(day, id_made(2 * DAY_MS)).await;
    b.sweep().await;
    // those of living producers stay
    assert_eq!(world.number("select count(*) from oncelog.session_opens").await, 2);
}

#[tokio::test]
async fn a_horizon_that_still_refuses_keeps_its_producer() {
    let world = world(1).await;
    let [a, _] = &world.replicas[..] else { panic!() };
    a.set(Key::TransactionalIdExpiryMs, Value::Number(3_600_000)).await;
    let p = a.producer("p").await;
    world.sql("update oncelog.sessions set open_horizon = now() - interval '24 hours'").await;
    world.age(2 * DAY_MS).await;
    a.sweep().await;
    assert!(world.is_known(p).await);
    // it is looked at again when the horizon has passed out of reach
    let next =
        "select round(extract(epoch from now() - active_at) / 60)::bigint from oncelog.sessions";
    assert!((-1..=1).contains(&world.number(next).await));
    world.sql("update oncelog.sessions set open_horizon = now() - interval '26 hours'").await;
    world.age_sessions(2 * 3_600_000).await;
    a.sweep().await;
    assert!(!world.is_known(p).await);
}

#[tokio::test]
async fn one_with_many_logs_goes_as_a_whole() {
    let world = world(700).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    let register = "insert into oncelog.producer_states \
        (tenant_id, log_id, producer_id, epoch, last_sequence, as_of_offset) \
        select l.tenant_id, l.log_id, s.producer_id, 0, 0, 0 from oncelog.logs l, oncelog.sessions s";
    world.sql(register).await;
    world
        .sql("update oncelog.producer_states set last_appended_at = now() - interval '8 days'")
        .await;
    // one row of another log keeps all
    a.append(p, 1, Scope::Partition(650)).await.unwrap();
    world.age_sessions(8 * DAY_MS).await;
    b.sweep().await;
    assert!(world.is_known(p).await);
    assert_eq!(world.number("select sum(fence)::bigint from oncelog.logs").await, 0);
    world.age(8 * DAY_MS).await;
    b.sweep().await;
    assert!(!world.is_known(p).await);
    assert_eq!(world.number("select count(*) from oncelog.logs where fence > 0").await, 701);
    assert_eq!(code(a.append(p, 2, Scope::Partition(650)).await), Code::UnknownProducer);
}

impl World {
    /// A transaction of the producer: its id made, it begun and it ended that many days ago.
    async fn transaction(&self, producer: ProducerId, state: &str, days: [i64; 3]) {
        let id = id_made(days[0] * DAY_MS);
        // as the server sets it
        let remembered = days[0].min(days[2]);
        let [_, begun, ended] = days.map(|days| format!("now() - interval '{days} days'"));
        let remembered = format!("now() - interval '{remembered} days'");
        let outcome = match state {
            "committed" => format!("{ended}, null, '[]', {remembered}"),
            "aborted" => format!("{ended}, 'client', null, {remembered}"),
            _ => "null, null, null, null".to_owned(),
        };
        self.sql(&format!(
            "insert into oncelog.transactions (tenant_id, transaction_id, state, producer_id, epoch, \
                digest, created_at, expires_at, ended_at, reason, appends, remembered_from) \
            select tenant_id, '{id}', '{state}', producer_id, 0, '', {begun}, now() + interval '1 day', {outcome} \
            from oncelog.sessions where producer_id = {}",
            producer.0
        ))
        .await;
    }

    /// When the next look counts the producer as active, in days ago.
    async fn active_days_ago(&self, producer: ProducerId) -> i64 {
        let days = "round(extract(epoch from now() - active_at) / 86400)::bigint";
        let of = format!("from oncelog.sessions where producer_id = {}", producer.0);
        self.number(&format!("select {days} {of}")).await
    }
}

#[tokio::test]
async fn transactions_are_activity() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    // (what it did, when it counts as active; none: it is forgotten)
    let table: &[(&str, [i64; 3], Option<i64>)] = &[
        ("committed", [3, 3, 3], Some(3)),
        ("aborted", [3, 3, 3], Some(3)),
        ("committed", [10, 10, 2], Some(2)),
        ("committed", [9, 9, 8], None),
        ("ongoing", [30, 30, 0], Some(0)),
        ("prepared", [30, 30, 0], Some(0)),
        ("nothing", [0, 0, 0], None),
    ];
    let mut producers = Vec::new();
    for (n, (state, ..)) in table.iter().enumerate() {
        producers.push(a.producer(&format!("{state}-{n}")).await);
    }
    let clients_clock = a.producer("ids-of-another-time").await;
    let forgotten = a.producer("outcomes-forgotten").await;
    world.age(30 * DAY_MS).await;
    for (producer, (state, days, _)) in producers.iter().zip(table) {
        if *state != "nothing" {
            world.transaction(*producer, state, *days).await;
        }
    }
    // the newest id is not of the last transaction, and its outcome is still remembered
    for days in [[12, 4, 3], [6, 20, 20]] {
        world.transaction(clients_clock, "committed", days).await;
    }
    // as the removal of an outcome leaves it
    let noted = "active_at = now() - interval '6 days'";
    let of = format!("where producer_id = {}", forgotten.0);
    world.sql(&format!("update oncelog.sessions set {noted} {of}")).await;
    b.sweep().await;
    for (producer, (state, days, active)) in producers.iter().zip(table) {
        assert_eq!(world.is_known(*producer).await, active.is_some(), "{state} {days:?}");
        if let Some(active) = active {
            assert_eq!(world.active_days_ago(*producer).await, *active, "{state} {days:?}");
        }
    }
    assert_eq!(world.active_days_ago(clients_clock).await, 3);
    assert_eq!(world.active_days_ago(forgotten).await, 6);
    // one that was open is gone a limit after its end
    let long_ago = "ended_at = created_at, remembered_from = created_at";
    let abort = format!("set state = 'aborted', reason = 'timeout', {long_ago}");
    world.sql(&format!("update oncelog.transactions {abort} where ended_at is null")).await;
    world.age_sessions(8 * DAY_MS).await;
    b.sweep().await;
    assert!(!world.is_known(producers[4]).await && !world.is_known(producers[5]).await);
    assert!(world.is_known(producers[0]).await, "active three days ago");
}

/// A begin holds its session, as every call on a transaction does: an expiry passes it by, and sees
/// it the next time.
#[tokio::test]
async fn a_begin_in_flight_is_not_overlooked() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    world.age(8 * DAY_MS).await;
    let mut begin = world.connect().await;
    let hold = "begin; select from oncelog.sessions for share";
    sqlx::raw_sql(hold).execute(&mut begin).await.unwrap();
    b.sweep().await;
    assert!(world.is_known(p).await);
    let insert = "insert into oncelog.transactions (tenant_id, transaction_id, state, producer_id, \
        epoch, digest, created_at, expires_at) select tenant_id, gen_random_uuid(), 'ongoing', \
        producer_id, 0, '', now(), now() from oncelog.sessions; commit";
    sqlx::raw_sql(insert).execute(&mut begin).await.unwrap();
    b.sweep().await;
    assert!(world.is_known(p).await);
    assert_eq!(world.active_days_ago(p).await, 0);
}

/// Its states in the logs of a deleted topic do not hold it.
#[tokio::test]
async fn a_deleted_topic_holds_nobody() {
    let world = world(2).await;
    let [a, _] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    a.one(p, 0).await.unwrap();
    world.age(8 * DAY_MS).await;
    a.broker.delete_topic(a.tenant, &name(TOPIC)).await.unwrap();
    // the sweep may meet the states before they are removed
    world.sql("update oncelog.doomed_logs set log_id = -log_id").await;
    assert_eq!(world.number("select count(*) from oncelog.producer_states").await, 1);
    a.sweep().await;
    assert!(!world.is_known(p).await);
}
