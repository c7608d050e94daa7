//! Many at once.

use futures_util::future::join_all;

use super::*;
use crate::support::served::PATIENCE;

/// More than a broker has connections.
const JOINS: usize = 40;

#[tokio::test]
async fn a_storm_of_joins_leaves_the_database_to_others() {
    let server = Server::start().await;
    server.topic("orders", 8).await;
    let first = Member::join(&server, "g", json!({"topics": ["orders"]})).await;
    // somebody is long about a change of the group
    let mut connection = server.options.connect().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let lock = "select from oncelog.groups where name = 'g' for no key update";
    sqlx::query(lock).execute(&mut *transaction).await.unwrap();
    let join = || tokio::spawn(joining(&server, "g", json!({"topics": ["orders"]})).into_future());
    let joins: Vec<_> = (0..JOINS).map(|_| join()).collect();
    // one waits for the group's row, the others for their turn
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() \
                   and wait_event_type = 'Lock'";
    let waits = async || (server.number(waiting).await > 0).then_some(());
    crate::support::served::until("a join to wait", waits).await;
    for _ in 0..10 {
        first.heartbeat(&server).await.ok();
        assert_eq!(server.number(waiting).await, 1);
    }
    transaction.rollback().await.unwrap();
    for joined in tokio::time::timeout(PATIENCE, join_all(joins)).await.unwrap() {
        joined.unwrap().created();
    }
    assert_eq!(server.number("select count(*) from oncelog.group_members").await, JOINS as i64 + 1);
}
