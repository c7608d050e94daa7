//! Exactly once between oncelog and a database of one's own: two-phase commit, with oncelog's
//! `prepare` as the first phase, and an ordinary transaction of that database as the decision.
//!
//! ```text
//!   oncelog:   begin, with an event and the group's offset
//!   oncelog:   prepare                      from here on it can be committed, whatever happens
//!   database:  the row, and the id of oncelog's transaction; commit         <-- the decision
//!   oncelog:   commit
//! ```
//!
//! It reads the topic `orders`, writes a row of `shipments` into the database for each order, and
//! publishes an event in the topic `shipped`. Row, event and offset are there together or not at
//! all, whenever this program, oncelog or the database is killed: at its start it recovers, which
//! ends whatever a run before has left prepared, as the database says.
//!
//! ```sh
//! oncelog topic create orders && oncelog topic create shipped
//! cargo run --example two_phase -- --url http://127.0.0.1:8080 --database-url postgres://...
//! ```

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Parser;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::time::sleep;
use uuid::Uuid;

/// The stable name of this producer: of several runs under it the newest is the only one that may
/// do anything at oncelog.
const NAME: &str = "shipping";
const GROUP: &str = "shipping";
const ORDERS: &str = "orders";
const SHIPPED: &str = "shipped";

/// `transaction_outcomes` is the memory of decisions. Nothing forbids two shipments for one order,
/// so that it shows whether anything is done twice. An id may be removed when its transaction has
/// ended at oncelog, and no run that knows it can be alive.
const SCHEMA: &str = "
    create table if not exists shipments (
        id bigint generated always as identity primary key,
        order_offset bigint not null,
        contents text not null
    );
    create table if not exists transaction_outcomes (
        transaction_id uuid primary key,
        outcome text not null check (outcome in ('committed', 'aborted'))
    );";

#[derive(Parser)]
#[command(about = "Ships all orders exactly once, then ends")]
struct Options {
    /// Where oncelog is
    #[arg(long, env = "ONCELOG_URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    #[arg(long, env = "ONCELOG_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The other database
    #[arg(long)]
    database_url: String,
    /// Die when this has been done for the first time, as a test of recovery
    #[arg(long)]
    die_after: Option<Step>,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Step {
    /// The session is open: what was ongoing is aborted, older runs are fenced
    Open,
    /// A prepared transaction was found, and what is to become of it stands in the database
    Decide,
    /// A prepared transaction was ended
    Recover,
    Begin,
    Prepare,
    /// The row and the id are written, and not committed
    Write,
    /// They are committed
    Local,
    Commit,
}

/// A problem that does not go away when the same is sent again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(Value);

struct Oncelog {
    http: reqwest::Client,
    options: Options,
}

impl Oncelog {
    /// Sends the same until there is an answer: every request here can be repeated.
    async fn call(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<Value> {
        loop {
            let mut request = self.http.request(method.clone(), self.options.url.clone() + path);
            if let Some(token) = &self.options.token {
                request = request.bearer_auth(token);
            }
            if !body.is_null() {
                request = request.json(body);
            }
            if let Ok(answer) = request.send().await {
                let succeeded = answer.status().is_success();
                match answer.json::<Value>().await {
                    Ok(answer) if succeeded => return Ok(answer),
                    Ok(problem) if problem["retry"] != "same" && problem["retry"] != "later" => {
                        return Err(Refused(problem).into());
                    }
                    _ => {} // come back later; or it was cut off, or is of something in between
                }
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::POST, path, body).await
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, &Value::Null).await
    }

    /// Where a kill is to come in a test.
    fn done(&self, step: Step) {
        if self.options.die_after == Some(step) {
            std::process::abort();
        }
    }

    /// Opens the session and ends what older runs have left; answers the session.
    async fn recover(&self, database: &mut PgConnection) -> anyhow::Result<Value> {
        let open = json!({"transactional_id": NAME, "open_id": Uuid::now_v7()});
        let opened = self.post("/v1/sessions", &open).await?;
        self.done(Step::Open);
        let session = json!({"producer_id": opened["producer_id"], "epoch": opened["epoch"]});
        let prepared = opened["prepared_transactions"].as_array();
        for id in prepared.context("prepared_transactions")?.iter().filter_map(Value::as_str) {
            let outcome = decide(database, id.parse()?).await?;
            self.done(Step::Decide);
            let end = if outcome == "committed" { "commit" } else { "abort" };
            self.post(&format!("/v1/transactions/{id}/{end}"), &session).await?;
            self.done(Step::Recover);
        }
        Ok(session)
    }

    /// Ships one order: one row, one event, one step of the group.
    async fn ship(
        &self,
        session: &Value,
        database: &mut PgConnection,
        order: &Value,
        committed_offset: &Value,
    ) -> anyhow::Result<()> {
        let offset = order["offset"].as_i64().context("the order's offset")?;
        let contents = order["value"].to_string();
        let id = Uuid::now_v7();
        let path = format!("/v1/transactions/{id}");
        let mut begin = session.clone();
        begin["transaction_id"] = json!(id);
        begin["appends"] =
            json!([{"topic": SHIPPED, "partition": 0, "records": [{"value": {"order": offset}}]}]);
        begin["offsets"] = json!([{"group": GROUP, "topic": ORDERS, "partition": 0,
            "offset": offset + 1, "expected_offset": committed_offset}]);
        self.post("/v1/transactions", &begin).await?;
        self.done(Step::Begin);
        self.post(&format!("{path}/prepare"), session).await?;
        self.done(Step::Prepare);
        let mut local = database.begin().await?;
        sqlx::query("insert into shipments (order_offset, contents) values ($1, $2)")
            .bind(offset)
            .bind(contents)
            .execute(&mut *local)
            .await?;
        // Where a newer run has found this transaction prepared and not decided, it has written
        // 'aborted' here: then this fails, and the shipment with it.
        sqlx::query(
            "insert into transaction_outcomes (transaction_id, outcome) values ($1, 'committed')",
        )
        .bind(id)
        .execute(&mut *local)
        .await?;
        self.done(Step::Write);
        local.commit().await?;
        self.done(Step::Local);
        self.post(&format!("{path}/commit"), session).await?;
        self.done(Step::Commit);
        Ok(())
    }

    /// Where the group goes on; null: it has not begun.
    async fn committed_offset(&self) -> anyhow::Result<Value> {
        let listed = match self.get(&format!("/v1/groups/{GROUP}/offsets")).await {
            Err(error) if is(&error, "group_not_found") => return Ok(Value::Null),
            listed => listed?,
        };
        let offsets = listed["offsets"].as_array().context("offsets")?;
        let here = offsets.iter().find(|o| o["topic"] == ORDERS && o["partition"] == 0);
        Ok(here.map_or(Value::Null, |here| here["offset"].clone()))
    }
}

/// What is to become of a prepared transaction. The database knows its id: it was decided, and what
/// was decided is done. It does not know it: it is aborted.
///
/// That the id is not there now is not enough, for the run that prepared it may be slow and not
/// dead, and write it a moment later. So the abort is decided where the commit would be: by a row
/// under the same key. One of the two is first, and the other one finds it. (The insert waits for
/// a transaction of the slow run that has written the id and not ended yet.)
async fn decide(database: &mut PgConnection, id: Uuid) -> anyhow::Result<String> {
    sqlx::query(
        "insert into transaction_outcomes (transaction_id, outcome) values ($1, 'aborted')
         on conflict (transaction_id) do nothing",
    )
    .bind(id)
    .execute(&mut *database)
    .await?;
    let outcome =
        sqlx::query_scalar("select outcome from transaction_outcomes where transaction_id = $1");
    Ok(outcome.bind(id).fetch_one(database).await?)
}

fn is(error: &anyhow::Error, code: &str) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|Refused(problem)| problem["code"] == code)
}

/// Any failure ends the program: the next run recovers.
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let mut database = PgConnection::connect(&options.database_url).await?;
    sqlx::raw_sql(SCHEMA).execute(&mut database).await?;
    let oncelog = Oncelog { http: reqwest::Client::new(), options };
    let session = oncelog.recover(&mut database).await?;
    let mut offset = oncelog.committed_offset().await?;
    loop {
        let from = if offset.is_null() { "earliest".to_owned() } else { offset.to_string() };
        let path = format!("/v1/topics/{ORDERS}/partitions/0/records?offset={from}&limit=100");
        let page = oncelog.get(&path).await?;
        let orders = page["records"].as_array().ok_or_else(|| anyhow!("no records: {page}"))?;
        for order in orders {
            oncelog.ship(&session, &mut database, order, &offset).await?;
            offset = json!(order["offset"].as_i64().context("the order's offset")? + 1);
        }
        if orders.is_empty() {
            return Ok(());
        }
    }
}
