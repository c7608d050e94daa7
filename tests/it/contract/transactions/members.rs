//! Transactions of one request whose offsets a member commits: one statement, as long as it owns
//! what it commits; and anyone who does not is refused, also by a pass that did not look before it
//! wrote. Members are put into the tables, as a join would.

use futures_util::future::join_all;
use oncelog::model::Code;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

use super::{append, begin, committed_offset, number, step, values, waiting_for_locks};
use crate::support::{
    http::{Answer, Server, Setup},
    proxy::Proxy,
    served::until,
};

const PARTITIONS: i32 = 8;

/// A replica behind a proxy that sees what it says to the database, and one to look through.
struct World {
    replica: Server,
    proxy: Proxy,
    server: Server,
}

/// Topics `orders` and `carts`, with a hundred records in each partition of `carts`; group `g` is
/// in generation 5, its member `m1` has the even partitions since 3, and `m2` the odd ones since 4.
async fn world() -> World {
    let server = Server::start().await;
    let proxy = Proxy::start(&server.options, 1).await;
    let replica = Server::on(&proxy.options(&server.options), Setup::default()).await;
    server.topic("orders", 1).await;
    server.topic("carts", PARTITIONS).await;
    let records = json!({"records": vec![json!({"value": "cart"}); 100]});
    for partition in 0..PARTITIONS {
        let path = format!("/v1/topics/carts/partitions/{partition}/records");
        server.post(&path).json(&records).await.ok();
    }
    server
        .sql(
            "insert into oncelog.groups (tenant_id, name, generation) select tenant_id, 'g', 5 from oncelog.tenants; \
             insert into oncelog.group_members (tenant_id, group_name, member_id) \
                select tenant_id, 'g', unnest(array['m1', 'm2']) from oncelog.tenants; \
             insert into oncelog.group_offsets (tenant_id, group_name, log_id) \
                select l.tenant_id, 'g', l.log_id from oncelog.logs l join oncelog.topics t using (tenant_id, topic_id) \
                where t.name = 'carts' and l.partition is not null",
        )
        .await;
    let world = World { replica, proxy, server };
    world.hand_out().await;
    world
}

fn by(member: &str, generation: i64, partition: i32, offset: i64) -> Value {
    json!({"group": "g", "member_id": member, "generation": generation, "topic": "carts",
        "partition": partition, "offset": offset})
}

fn over(expected_offset: i64, mut item: Value) -> Value {
    item["expected_offset"] = json!(expected_offset);
    item
}

impl World {
    /// Everything as in the beginning, but for what is committed.
    async fn hand_out(&self) {
        self.server
            .sql(
                "update oncelog.groups set generation = 5; \
                 update oncelog.group_offsets o set pinned_by = null, \
                    member_id = case l.partition % 2 when 0 then 'm1' else 'm2' end, \
                    owned_since = case l.partition % 2 when 0 then 3 else 4 end \
                 from oncelog.logs l where l.log_id = o.log_id",
            )
            .await;
    }

    async fn send(&self, offsets: &[Value]) -> Answer {
        let appends = [append("orders", 0, &[json!(offsets[0]["offset"])])];
        let body = json!({"appends": appends, "offsets": offsets, "commit": true});
        begin(&self.replica, &body).await
    }

    /// Whether a member's step is one statement: nothing is begun that would have to be committed.
    async fn steps_on_the_fast_path(&self, member: &str, partition: i32) -> bool {
        let offset = committed_offset(&self.server, "carts", partition).await.unwrap_or(0) + 1;
        self.proxy.cut_at("COMMIT", false);
        self.send(&[by(member, 5, partition, offset)]).await.created();
        !self.proxy.cut_nowhere()
    }

    /// What there is: a refusal leaves all of it as it was.
    async fn all(&self) -> (Vec<Value>, Vec<Option<i64>>) {
        let mut offsets = Vec::new();
        for partition in 0..PARTITIONS {
            offsets.push(committed_offset(&self.server, "carts", partition).await);
        }
        (values(&self.server, "orders", 0).await, offsets)
    }

    async fn set(&self, partition: i32, what: &str) {
        let log = format!(
            "(select log_id from oncelog.logs l join oncelog.topics t using (tenant_id, topic_id) \
            where t.name = 'carts' and l.partition = {partition})"
        );
        self.server
            .sql(format!("update oncelog.group_offsets set {what} where log_id = {log}"))
            .await;
    }
}

#[tokio::test]
async fn a_members_step_is_one_statement_once_it_has_committed() {
    let world = world().await;
    // the first one holds the partition's head, too
    world.send(&[by("m1", 4, 0, 0)]).await.created();
    assert_eq!(committed_offset(&world.server, "carts", 0).await, Some(0));
    assert!(world.steps_on_the_fast_path("m1", 0).await);
    // in any generation since it got it; over what is committed, too, and over several partitions
    for (generation, offset) in [(3, 20), (5, 21), (4, 22)] {
        world.send(&[by("m1", generation, 0, offset)]).await.created();
    }
    world.send(&[by("m1", 5, 2, 7), by("m1", 3, 4, 9), by("m1", 3, 0, 23)]).await.created();
    let (_, offsets) = world.all().await;
    assert_eq!(offsets[..5], [Some(23), None, Some(7), None, Some(9)]);
    assert!(world.steps_on_the_fast_path("m1", 4).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_several_members_share_a_batch() {
    let world = world().await;
    let mut least = u64::MAX;
    for round in 1..=10_i64 {
        let before = world.proxy.passed();
        let offsets: Vec<[Value; 1]> = (0..PARTITIONS)
            .map(|p| [by(if p % 2 == 0 { "m1" } else { "m2" }, 5, p, 2 * round)])
            .collect();
        for answer in join_all(offsets.iter().map(|offsets| world.send(offsets))).await {
            answer.created();
        }
        least = least.min(world.proxy.passed() - before);
    }
    assert!(least < PARTITIONS as u64, "{least}");
    let (records, offsets) = world.all().await;
    assert_eq!((records.len(), offsets), (80, vec![Some(20); PARTITIONS as usize]));
}

#[tokio::test]
async fn who_may_not_commit_is_refused_whole_though_nobody_looked() {
    let world = world().await;
    for partition in 0..3 {
        world.send(&[by(["m1", "m2"][partition as usize % 2], 5, partition, 50)]).await.created();
    }
    const PIN: &str = "pinned_by = '019aa5b6-5c00-7000-8000-000000000007'";
    // what has happened in partition 0, and who then commits what
    let table = [
        ("", vec![by("m3", 5, 0, 60)], Code::UnknownMember),
        ("", vec![by("m2", 5, 0, 60)], Code::IllegalGeneration),
        ("", vec![by("m1", 2, 0, 60)], Code::IllegalGeneration),
        ("", vec![by("m1", 6, 0, 60)], Code::IllegalGeneration),
        ("member_id = 'm2', owned_since = 5", vec![by("m1", 5, 0, 60)], Code::IllegalGeneration),
        ("member_id = null, owned_since = null", vec![by("m1", 5, 0, 60)], Code::IllegalGeneration),
        ("owned_since = 5", vec![by("m1", 4, 0, 60)], Code::IllegalGeneration),
        ("", vec![by("m1", 5, 2, 60), by("m1", 5, 1, 60)], Code::IllegalGeneration),
        ("", vec![by("m1", 5, 0, 49)], Code::OffsetCommitConflict),
        ("", vec![by("m1", 5, 0, 50)], Code::OffsetCommitConflict),
        ("", vec![over(49, by("m1", 5, 0, 60))], Code::OffsetCommitConflict),
        ("", vec![over(51, by("m1", 5, 0, 60))], Code::OffsetCommitConflict),
        ("", vec![over(50, by("m1", 5, 0, 50))], Code::OffsetCommitConflict),
        (PIN, vec![by("m1", 5, 0, 60)], Code::OffsetCommitConflict),
        ("", vec![by("m1", 5, 0, 101)], Code::OffsetOutOfRange),
        ("", vec![step("carts", 0, json!(50), 60)], Code::GroupNotEmpty),
        (
            "member_id = null, owned_since = null",
            vec![step("carts", 0, json!(50), 60)],
            Code::GroupNotEmpty,
        ),
    ];
    for (change, offsets, code) in table {
        world.set(2, "committed_offset = 0").await;
        assert!(world.steps_on_the_fast_path("m1", 2).await, "before {code:?}");
        world.set(2, "committed_offset = 50").await;
        if !change.is_empty() {
            world.set(0, change).await;
        }
        let before = world.all().await;
        let problem = world.send(&offsets).await.refused(code);
        if code == Code::IllegalGeneration {
            assert_eq!(problem["generation"], 5);
        }
        assert_eq!(world.all().await, before, "{change} {offsets:?}");
        world.hand_out().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_waits_for_a_handover_sees_it() {
    let world = world().await;
    let offset = by("m1", 5, 0, 10);
    world.send(&[offset]).await.created();
    assert!(world.steps_on_the_fast_path("m1", 0).await);
    let before = world.all().await;
    let mut handover = world.server.options.connect().await.unwrap();
    let hand_over = "begin; update oncelog.groups set generation = 6; \
        update oncelog.group_offsets set member_id = 'm2', owned_since = 6 where member_id = 'm1'";
    handover.execute(AssertSqlSafe(hand_over)).await.unwrap();
    let offsets = [by("m1", 5, 0, 30)];
    let end = async {
        let waits = async || (waiting_for_locks(&world.server.options).await > 0).then_some(());
        until("the step to wait", waits).await;
        handover.execute("commit").await.unwrap();
        handover.close().await.unwrap();
    };
    let (answer, ()) = tokio::join!(world.send(&offsets), end);
    assert_eq!(answer.refused(Code::IllegalGeneration)["generation"], 6);
    assert_eq!(world.all().await, before);
    world.send(&[by("m2", 6, 0, 30)]).await.created();
    let gone = "delete from oncelog.group_members where member_id = 'm2'; \
        update oncelog.group_offsets set member_id = null, owned_since = null where member_id = 'm2'";
    world.server.sql(gone).await;
    world.send(&[by("m2", 6, 0, 40)]).await.refused(Code::UnknownMember);
    assert_eq!(
        number(&world.server, "select count(*) from oncelog.transactions where state = 'ongoing'")
            .await,
        0
    );
}
