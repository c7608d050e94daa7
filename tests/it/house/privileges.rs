//! What roles of the database may do: the one that owns the schema everything, others what they
//! were granted.

use oncelog::store::Store;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};

use crate::support::{
    self,
    http::{Server, Setup},
};

/// A role of this database alone: roles are the server's, and tests share one.
async fn role(connection: &mut PgConnection) -> String {
    let name: String = sqlx::query_scalar("select 'role_of_' || current_database()")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    connection.execute(AssertSqlSafe(format!("create role {name} login"))).await.unwrap();
    name
}

/// Also of those that come with later migrations.
#[tokio::test]
async fn no_function_is_for_everybody() {
    let mut connection = support::database().await.connect().await.unwrap();
    let functions: Vec<(String, bool)> = sqlx::query_as(
        "select p.oid::regprocedure::text, exists ( \
            select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0) \
         from pg_proc p where p.pronamespace = 'oncelog'::regnamespace order by 1",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert!(functions.len() >= 4, "{functions:?}");
    let open: Vec<_> = functions.iter().filter(|(_, is_for_all)| *is_for_all).collect();
    assert!(open.is_empty(), "revoke execute on these from public in their migration: {open:?}");
}

/// A dashboard's role: it may use the schema and read the view of records, and empties nothing.
#[tokio::test]
async fn who_may_use_the_schema_cannot_run_its_functions() {
    let server = Server::start().await;
    server.topic("t", 1).await;
    let record = serde_json::json!({"records": [{"value": 1}, {"value": 2}]});
    server.post("/v1/topics/t/records").json(record).await.ok();
    let mut connection = server.options.connect().await.unwrap();
    let role = role(&mut connection).await;
    for grant in ["usage on schema oncelog", "select on oncelog.records"] {
        connection.execute(AssertSqlSafe(format!("grant {grant} to {role}"))).await.unwrap();
    }
    // a row of which a record was compacted away
    let kept = "update oncelog.batches set kept = '\\x02', \
        records = split_part(records, E'\\n', 2) || E'\\n' where record_count = 2";
    connection.execute(kept).await.unwrap();
    connection.execute(AssertSqlSafe(format!("set role {role}"))).await.unwrap();
    for function in [
        "oncelog.empty_slot(3::smallint)",
        "oncelog.forgotten_horizon(1)",
        "oncelog.places('\\x02')",
        "oncelog.instant_of('00000000-0000-7000-8000-000000000000')",
    ] {
        let run = connection.execute(AssertSqlSafe(format!("select {function}"))).await;
        let refused = run.expect_err(function).to_string();
        assert!(refused.contains("permission denied for function"), "{refused}");
    }
    let read: Vec<i64> = sqlx::query_scalar("select \"offset\" from oncelog.records")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    assert_eq!(read, [1]);
}

/// Neither a superuser nor anybody else: the role that migrates owns what it makes.
#[tokio::test]
async fn the_role_that_owns_the_schema_does_all_of_it() {
    let options = support::empty_database().await;
    let mut connection = options.connect().await.unwrap();
    let role = role(&mut connection).await;
    let database: String =
        sqlx::query_scalar("select current_database()").fetch_one(&mut connection).await.unwrap();
    let grant = format!("grant create on database {database} to {role}");
    connection.execute(AssertSqlSafe(grant)).await.unwrap();
    connection.close().await.unwrap();
    let owned = options.username(&role);
    Store::new(owned.clone(), 1).migrate().await.unwrap();
    let server = Server::on(&owned, Setup::default()).await;
    server.topic("t", 1).await;
    // ids of the client's, judged by the horizon; keys, whose ring turns; and offsets, which are
    // counted
    let id = uuid::Uuid::now_v7();
    let whole = serde_json::json!({"transaction_id": id, "commit": true,
        "appends": [{"topic": "t", "records": [{"id": "a", "value": 1}]}]});
    server.post("/v1/transactions").json(whole).await.created();
    let moved = serde_json::json!({"group": "g", "topic": "t", "partition": 0,
        "expected_offset": null, "offset": 1});
    let staged = server
        .post("/v1/transactions")
        .json(serde_json::json!({"offsets": [moved]}))
        .await
        .created();
    let path = format!("/v1/transactions/{}/commit", staged["transaction_id"].as_str().unwrap());
    server.post(&path).json(serde_json::json!({})).await.ok();
    server.sql("update oncelog.key_rings set turned_at = turned_at - interval '10 years'").await;
    for _ in 0..3 {
        server.broker.sweep().await.unwrap();
    }
    let mut connection = owned.connect().await.unwrap();
    connection.execute("select oncelog.empty_slot(3::smallint)").await.unwrap();
    let user: String =
        sqlx::query_scalar("select current_user").fetch_one(&mut connection).await.unwrap();
    assert_eq!(user, role);
}
