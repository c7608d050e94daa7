//! Staged data of transactions: readable after the commit, shown before on request, removed with
//! the rows that refer to it, and kept while prepared. The tests insert the rows directly.

mod pins;
mod reads;
mod removals;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, PgConnection};
use uuid::Uuid;

use crate::support::{
    self,
    http::{Answer, Server},
    served::until,
};

/// A server and a hand in its database.
struct World {
    server: Server,
    hand: PgConnection,
    tenant: i64,
}

/// The nth transaction.
fn id(n: u128) -> Uuid {
    Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + n)
}

/// Records of these values, a line each.
fn lines(values: &[&str]) -> String {
    values.iter().map(|value| format!("{{\"value\":{value}}}\n")).collect()
}

async fn world() -> World {
    let server = Server::start().await;
    let tenant = support::tenant(&server.broker).await.0;
    let hand = server.options.connect().await.unwrap();
    World { server, hand, tenant }
}

impl World {
    async fn topic(&mut self, name: &str, partitions: i32) {
        self.server.topic(name, partitions).await;
    }

    /// Statements that are one transaction.
    async fn sql(&mut self, sql: &str) {
        self.hand.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
    }

    async fn number(&mut self, sql: &str) -> i64 {
        let query = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()));
        let number: Option<i64> = query.fetch_one(&mut self.hand).await.unwrap();
        number.unwrap_or(0)
    }

    async fn log(&mut self, topic: &str, partition: i32) -> i64 {
        let of = format!("where name = '{topic}' and partition = {partition}");
        self.number(&format!(
            "select log_id from oncelog.logs join oncelog.topics using (tenant_id, topic_id) {of}"
        ))
        .await
    }

    /// An ongoing transaction that has so long to go.
    async fn begin(&mut self, id: Uuid, left: &str) {
        let tenant = self.tenant;
        self.sql(&format!(
            "insert into oncelog.transactions \
                (tenant_id, transaction_id, state, digest, created_at, expires_at) \
            values ({tenant}, '{id}', 'ongoing', '', now(), now() + interval '{left}')"
        ))
        .await;
    }

    async fn stage(&mut self, id: Uuid, ordinal: i64, log: i64, values: &[&str]) {
        let (tenant, count, lines) = (self.tenant, values.len(), lines(values));
        self.sql(&format!(
            "insert into oncelog.staged_batches \
                (tenant_id, transaction_id, ordinal, log_id, record_count, records) \
            values ({tenant}, '{id}', {ordinal}, {log}, {count}, '{lines}')"
        ))
        .await;
    }

    async fn prepare(&mut self, id: Uuid) {
        let prepared = "state = 'prepared', prepared_at = now()";
        self.sql(&format!(
            "update oncelog.transactions set {prepared} where transaction_id = '{id}'"
        ))
        .await;
    }

    async fn end(&mut self, id: Uuid, state: &str) {
        let outcome = if state == "committed" { "appends = '[]'" } else { "reason = 'client'" };
        self.sql(&format!(
            "update oncelog.transactions set state = '{state}', {outcome}, ended_at = now(), \
                remembered_from = now() where transaction_id = '{id}'"
        ))
        .await;
    }

    /// Its rows get their places, as a commit does it.
    async fn commit(&mut self, id: Uuid) {
        self.sql(&format!(
            "insert into oncelog.batches (tenant_id, log_id, base_offset, record_count, appended_at, \
                transaction_id, staged_ordinal) \
            select tenant_id, log_id, l.next_offset - s.record_count \
                    + sum(s.record_count) over (partition by log_id order by s.ordinal), \
                s.record_count, greatest(l.last_appended_at, now()), s.transaction_id, s.ordinal \
            from oncelog.staged_batches s join oncelog.logs l using (tenant_id, log_id) \
            where s.transaction_id = '{id}'; \
            update oncelog.logs l set next_offset = next_offset + s.records, size_bytes = size_bytes + s.bytes, \
                last_appended_at = greatest(last_appended_at, now()) \
            from (select log_id, sum(record_count)::bigint as records, sum(octet_length(records)) as bytes \
                from oncelog.staged_batches where transaction_id = '{id}' group by log_id) s \
            where s.log_id = l.log_id"
        ))
        .await;
        self.end(id, "committed").await;
    }

    async fn append(&self, topic: &str, values: &[Value]) {
        let records: Vec<Value> = values.iter().map(|value| json!({"value": value})).collect();
        let path = format!("/v1/topics/{topic}/partitions/0/records");
        self.server.post(&path).json(json!({"records": records})).await.ok();
    }

    async fn read(&self, query: &str) -> Answer {
        self.server.get(&format!("/v1/topics/t/partitions/0/records?{query}")).await
    }

    /// (transaction, state, values) of what is shown as staged.
    async fn staged(&self, query: &str) -> Vec<(Uuid, String, Vec<Value>)> {
        staged(&self.read(&format!("isolation=read_uncommitted&{query}")).await.ok())
    }

    /// How much is staged, rows and bytes, and what the heads say there is in the logs.
    async fn sizes(&mut self) -> (i64, i64, i64) {
        let staged = "from oncelog.staged_batches";
        (
            self.number(&format!("select count(*) {staged}")).await,
            self.number(&format!("select sum(octet_length(records)) {staged}")).await,
            self.number("select sum(size_bytes)::bigint from oncelog.logs").await,
        )
    }

    async fn trim(&self, before: i64) {
        let path = format!("/v1/topics/t/partitions/0/records?before={before}");
        self.server.delete(&path).await.no_content();
        // once for the snapshot, once for the rows
        for _ in 0..2 {
            self.server.broker.sweep().await.unwrap();
        }
    }

    /// Statements of this database that wait for a lock.
    async fn until_one_waits(&mut self) {
        let waiting = "select count(*) from pg_stat_activity \
            where datname = current_database() and wait_event_type = 'Lock'";
        until("a lock", async || (self.number(waiting).await > 0).then_some(())).await;
    }
}

fn staged(page: &Value) -> Vec<(Uuid, String, Vec<Value>)> {
    let shown = page["staged"].as_array().unwrap().iter().map(|transaction| {
        let text = |name: &str| transaction[name].as_str().unwrap().to_owned();
        let records = transaction["records"].as_array().unwrap().iter();
        let members = |record: &Value| record.as_object().unwrap().len();
        let values = records.inspect(|record| assert_eq!(members(record), 1, "{record}"));
        let values = values.map(|record| record["value"].clone()).collect();
        (text("transaction_id").parse().unwrap(), text("state"), values)
    });
    shown.collect()
}

/// Two records, five of a transaction in three rows, one of a whole transaction in one request, and
/// one more.
async fn a_mixed_log() -> World {
    let mut world = world().await;
    world.topic("t", 2).await;
    let (log, other) = (world.log("t", 0).await, world.log("t", 1).await);
    world.append("t", &[json!(0), json!(1)]).await;
    world.begin(id(0xab), "1 hour").await;
    world.stage(id(0xab), 0, log, &["2"]).await;
    world.stage(id(0xab), 1, other, &["\"elsewhere\""]).await;
    world.stage(id(0xab), 2, log, &["3", "{\"total\": 4.50}", "5"]).await;
    world.stage(id(0xab), 3, log, &["6"]).await;
    world.commit(id(0xab)).await;
    world.append("t", &[json!(7)]).await;
    let of_last = "transaction_id = '01900000-0000-7000-8000-0000000000cd'";
    world.sql(&format!("update oncelog.batches set {of_last} where base_offset = 7")).await;
    world.append("t", &[json!(8)]).await;
    world
}
