//! Committed offsets of groups: who may commit over which offset, and what is shown. The tests
//! insert members into the tables, as a join would.

mod races;

use oncelog::model::Code;
use serde_json::{Value, json};

use crate::support::{
    self,
    http::{Answer, Call, Server, Setup},
};

impl Server {
    pub fn commit(&self, group: &str, commit: Value) -> Call {
        self.post(&format!("/v1/groups/{group}/offsets")).json(commit)
    }

    pub fn committed(&self, group: &str) -> Call {
        self.get(&format!("/v1/groups/{group}/offsets"))
    }

    /// A topic with that many records in each of its partitions.
    pub async fn filled_topic(&self, topic: &str, partition_count: i32, records: usize) {
        self.topic(topic, partition_count).await;
        let records = vec![json!({"value": 1}); records];
        for partition in 0..partition_count {
            let path = format!("/v1/topics/{topic}/partitions/{partition}/records");
            self.post(&path).json(json!({"records": records})).await.ok();
        }
    }

    /// A member of group `g`, which owns these partitions of `orders` since those generations.
    async fn join(&self, member: &str, owns: &[(i32, i64)]) {
        let mut sql = "insert into oncelog.groups (tenant_id, name) \
            select tenant_id, 'g' from oncelog.tenants on conflict do nothing;\n"
            .to_owned();
        sql += &format!(
            "insert into oncelog.group_members select tenant_id, 'g', '{member}' from oncelog.tenants;\n"
        );
        for (partition, since) in owns {
            sql += &format!(
                "insert into oncelog.group_offsets (tenant_id, group_name, log_id, member_id, owned_since) \
                 select tenant_id, 'g', log_id, '{member}', {since} from oncelog.logs where partition = {partition} \
                 on conflict (tenant_id, group_name, log_id) do update \
                 set member_id = excluded.member_id, owned_since = excluded.owned_since;\n"
            );
        }
        self.sql(sql).await;
    }

    pub async fn number(&self, sql: impl Into<String>) -> i64 {
        support::number(&self.options, sql).await
    }
}

/// `[("orders", 0, 5)]` as a commit has it.
pub fn offsets(offsets: &[(&str, i32, i64)]) -> Value {
    let one = |(topic, partition, offset): &_| json!({"topic": topic, "partition": partition, "offset": offset});
    json!({"offsets": offsets.iter().map(one).collect::<Vec<_>>()})
}

/// The same by a member.
fn by(member: &str, generation: i64, of: &[(&str, i32, i64)]) -> Value {
    let mut commit = offsets(of);
    commit["member_id"] = json!(member);
    commit["generation"] = json!(generation);
    commit
}

/// One offset in `orders`, over another.
fn over(partition: i32, expected: Value, offset: i64) -> Value {
    json!({"topic": "orders", "partition": partition, "offset": offset,
        "expected_offset": expected})
}

/// What an answer says: `orders/0 5 m, orders/1 0`.
#[track_caller]
pub fn told(answer: &Answer) -> String {
    let answer = answer.ok();
    let one = |offset: &Value| {
        let metadata = offset["metadata"].as_str().map_or(String::new(), |text| format!(" {text}"));
        let topic = offset["topic"].as_str().unwrap();
        format!("{topic}/{} {}{metadata}", offset["partition"], offset["offset"])
    };
    answer["offsets"].as_array().unwrap().iter().map(one).collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn what_is_committed_is_answered_and_shown_by_every_replica() {
    let server = Server::start().await;
    let other = Server::on(&server.options, Setup::default()).await;
    server.filled_topic("orders", 3, 5).await;
    server.filled_topic("b", 1, 5).await;
    server.committed("g").await.refused(Code::GroupNotFound);
    let commit = json!({"offsets": [
        {"topic": "orders", "partition": 2, "offset": 5, "metadata": "m"},
        {"topic": "orders", "partition": 0, "offset": 3, "metadata": "lost"},
        {"topic": "b", "partition": 0, "offset": 0, "metadata": null},
        {"topic": "orders", "partition": 0, "offset": 1},
    ]});
    let answer = server.commit("g", commit).await;
    let want = json!({"group": "g", "offsets": [
        {"topic": "b", "partition": 0, "offset": 0, "metadata": null},
        {"topic": "orders", "partition": 0, "offset": 1, "metadata": null},
        {"topic": "orders", "partition": 2, "offset": 5, "metadata": "m"},
    ]});
    assert_eq!(answer.ok(), want);
    for replica in [&server, &other] {
        assert_eq!(replica.committed("g").await.ok(), want);
    }
    // only what was committed is answered, but all is shown, by whatever replica, at once
    for (replica, reader, offset) in [(&other, &server, 2), (&server, &other, 4)] {
        let answer = replica.commit("g", offsets(&[("orders", 1, offset)])).await;
        assert_eq!(told(&answer), format!("orders/1 {offset}"));
        let want = format!("b/0 0, orders/0 1, orders/1 {offset}, orders/2 5 m");
        assert_eq!(told(&reader.committed("g").await), want);
    }
    // the metadata goes with its offset
    assert_eq!(told(&server.commit("g", offsets(&[("orders", 2, 5)])).await), "orders/2 5");
    // another group is another
    assert_eq!(told(&server.commit("G", offsets(&[("b", 0, 3)])).await), "b/0 3");
    assert_eq!(told(&server.committed("G").await), "b/0 3");
    server.committed("none").await.refused(Code::GroupNotFound);
}

#[tokio::test]
async fn what_is_wrong_with_a_commit_is_named() {
    let server = Server::start().await;
    server.filled_topic("orders", 1, 5).await;
    let one = |changes: Value| {
        let mut item = json!({"topic": "orders", "partition": 0, "offset": 1});
        item.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        json!({"offsets": [item]})
    };
    let with = |name: &str, value: Value| {
        let mut commit = offsets(&[("orders", 0, 1)]);
        commit[name] = value;
        commit
    };
    let by_member = |changes: Value| {
        let mut commit = one(changes);
        commit["member_id"] = json!("m");
        commit["generation"] = json!(1);
        commit
    };
    let long = "x".repeat(4_097);
    let table = [
        (json!({}), vec!["/offsets"]),
        (json!({"offsets": null}), vec!["/offsets"]),
        (json!({"offsets": []}), vec!["/offsets"]),
        (json!({"offsets": [1]}), vec!["/offsets/0"]),
        (json!({"offsets": {}}), vec!["/offsets"]),
        (json!({"offsets": [{"topic": "orders", "partition": 0}]}), vec!["/offsets/0/offset"]),
        (json!({"offsets": [{"topic": "orders", "offset": 0}]}), vec!["/offsets/0/partition"]),
        (json!({"offsets": [{"partition": 0, "offset": 0}]}), vec!["/offsets/0/topic"]),
        (with("member", json!("m")), vec!["/member"]),
        (with("member_id", json!("m")), vec!["/generation"]),
        (with("generation", json!(1)), vec!["/member_id"]),
        (with("cursor", json!("c")), vec!["/cursor"]),
        (json!({"cursor": "c"}), vec!["/member_id"]),
        (by_member(json!({"expected_offset": null})), vec!["/offsets/0/expected_offset"]),
        (by_member(json!({"expected_offset": 1})), vec!["/offsets/0/expected_offset"]),
        (one(json!({"group": "g"})), vec!["/offsets/0/group"]),
        (one(json!({"topic": "a/b"})), vec!["/offsets/0/topic"]),
        (one(json!({"partition": -1})), vec!["/offsets/0/partition"]),
        (one(json!({"partition": 2147483648_i64})), vec!["/offsets/0/partition"]),
        (one(json!({"partition": "0"})), vec!["/offsets/0/partition"]),
        (one(json!({"offset": -1})), vec!["/offsets/0/offset"]),
        (one(json!({"offset": 1_i64 << 53})), vec!["/offsets/0/offset"]),
        (one(json!({"offset": 1.0})), vec!["/offsets/0/offset"]),
        (one(json!({"offset": null})), vec!["/offsets/0/offset"]),
        (one(json!({"expected_offset": -1})), vec!["/offsets/0/expected_offset"]),
        (one(json!({"metadata": {}})), vec!["/offsets/0/metadata"]),
        (one(json!({"metadata": long})), vec!["/offsets/0/metadata"]),
        (one(json!({"metadata": "a\0b"})), vec!["/offsets/0/metadata"]),
        (
            one(json!({"topic": "..", "partition": -1, "offset": -1, "expected_offset": -1})),
            vec![
                "/offsets/0/topic",
                "/offsets/0/partition",
                "/offsets/0/offset",
                "/offsets/0/expected_offset",
            ],
        ),
    ];
    for (commit, pointers) in table {
        server.commit("g", commit).await.invalid(&pointers);
    }
    server.committed("g").await.refused(Code::GroupNotFound);
}

#[tokio::test]
async fn what_is_too_much_leaves_no_trace_and_what_just_fits_is_taken() {
    let server = Server::start().await;
    server.filled_topic("orders", 1, 5).await;
    let one = |changes: Value| {
        let mut item = json!({"topic": "orders", "partition": 0, "offset": 1});
        item.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        json!({"offsets": [item]})
    };
    let long = json!({"member_id": "m".repeat(256), "generation": -1,
        "offsets": [{"topic": "orders", "partition": 0, "offset": 0}]});
    server.commit("g", long).await.invalid(&["/generation", "/member_id"]);
    let many = vec![json!({"topic": "orders", "partition": 0, "offset": 0}); 10_001];
    let problem = server.commit("g", json!({"offsets": many})).await.refused(Code::PayloadTooLarge);
    assert_eq!(problem["limit"], 10_000);
    server.commit("a%20b", offsets(&[("orders", 0, 1)])).await.invalid(&["/path/group"]);
    server.get("/v1/groups/g/offsets?limit=1").await.invalid(&["?limit"]);
    let cursor = json!({"member_id": "m", "generation": 1, "cursor": "AAAA"});
    server.commit("g", cursor).await.refused(Code::InvalidCursor);
    // nothing of all that has left a trace
    server.committed("g").await.refused(Code::GroupNotFound);
    assert_eq!(server.number("select count(*) from oncelog.groups").await, 0);
    // what is just right
    let full = one(json!({"metadata": "ä".repeat(2_048), "expected_offset": null}));
    server.commit("g", full).await.ok();
    let mut many = vec![json!({"topic": "orders", "partition": 0, "offset": 0}); 10_000];
    many[9_999]["offset"] = json!(4);
    assert_eq!(told(&server.commit("g", json!({"offsets": many})).await), "orders/0 4");
}

#[tokio::test]
async fn an_offset_lies_in_a_partition_that_there_is() {
    let server = Server::start().await;
    server.filled_topic("orders", 2, 5).await;
    let commit = |of: &[(&str, i32, i64)]| server.commit("g", offsets(of));
    commit(&[("orders", 0, 1), ("none", 0, 9)]).await.refused(Code::TopicNotFound);
    commit(&[("orders", 0, 9), ("orders", 2, 0)]).await.refused(Code::PartitionNotFound);
    let problem = commit(&[("orders", 0, 1), ("orders", 1, 6)]).await;
    let problem = problem.refused(Code::OffsetOutOfRange);
    assert_eq!((&problem["log_start_offset"], &problem["high_watermark"]), (&json!(0), &json!(5)));
    assert!(problem["detail"].as_str().unwrap().contains("orders/1"), "{problem}");
    server.committed("g").await.refused(Code::GroupNotFound);
    // the last item for a partition is the one that counts
    assert_eq!(told(&commit(&[("orders", 0, 9), ("orders", 0, 5)]).await), "orders/0 5");
    // what another replica has just appended can be committed at once
    let other = Server::on(&server.options, Setup::default()).await;
    for high_watermark in 6..9 {
        let records = json!({"records": [{"value": 1}]});
        other.post("/v1/topics/orders/partitions/1/records").json(records).await.ok();
        let want = format!("orders/1 {high_watermark}");
        assert_eq!(told(&commit(&[("orders", 1, high_watermark)]).await), want);
    }
    // below the log start a group may have stopped
    server.delete("/v1/topics/orders/partitions/1/records?before=4").await.no_content();
    assert_eq!(told(&commit(&[("orders", 1, 2)]).await), "orders/1 2");
    // a partition that was added since the topic was looked up
    other.patch("/v1/topics/orders").json(json!({"partition_count": 3})).await.ok();
    assert_eq!(told(&commit(&[("orders", 2, 0)]).await), "orders/2 0");
}

#[tokio::test]
async fn a_compare_and_set_commits_over_what_it_expects_or_not_at_all() {
    let server = Server::start().await;
    server.filled_topic("orders", 2, 9).await;
    let commit = |items: &[Value]| server.commit("g", json!({"offsets": items}));
    assert_eq!(told(&commit(&[over(0, json!(null), 3)]).await), "orders/0 3");
    for (expected, offset) in [(json!(null), 4), (json!(2), 4), (json!(4), 3), (json!(9), 9)] {
        let problem = commit(&[over(0, expected.clone(), offset)]).await;
        let problem = problem.refused(Code::OffsetCommitConflict);
        let facts = (&problem["expected_offset"], &problem["committed_offset"]);
        assert_eq!(facts, (&expected, &json!(3)));
    }
    let problem = commit(&[over(1, json!(0), 1)]).await.refused(Code::OffsetCommitConflict);
    let facts = (&problem["expected_offset"], &problem["committed_offset"]);
    assert_eq!(facts, (&json!(0), &json!(null)));
    // also back, and to where it is
    for (expected, offset) in [(3, 5), (5, 5), (5, 1), (1, 2)] {
        let want = format!("orders/0 {offset}");
        assert_eq!(told(&commit(&[over(0, json!(expected), offset)]).await), want);
    }
    // whole or not at all, and the detail names what conflicts
    let problem = commit(&[over(0, json!(2), 9), over(1, json!(7), 9)]).await;
    let problem = problem.refused(Code::OffsetCommitConflict);
    assert!(problem["detail"].as_str().unwrap().starts_with("orders/1: "), "{problem}");
    assert_eq!(told(&server.committed("g").await), "orders/0 2");
    let both = [over(0, json!(2), 9), over(1, json!(null), 9)];
    assert_eq!(told(&commit(&both).await), "orders/0 9, orders/1 9");
    // the last item for a partition is the one that compares
    let twice = [over(0, json!(2), 1), over(0, json!(9), 8)];
    assert_eq!(told(&commit(&twice).await), "orders/0 8");
    // without expectation it moves freely
    for offset in [9, 0, 4] {
        let want = format!("orders/0 {offset}");
        let freely = server.commit("g", offsets(&[("orders", 0, offset)])).await;
        assert_eq!(told(&freely), want);
    }
}

#[tokio::test]
async fn a_member_commits_what_it_owns_and_only_forward() {
    let server = Server::start().await;
    server.filled_topic("orders", 4, 9).await;
    let commit = |member: &str, generation: i64, of: &[(&str, i32, i64)]| {
        server.commit("g", by(member, generation, of))
    };
    // no group, no member
    commit("m1", 1, &[("orders", 0, 1)]).await.refused(Code::UnknownMember);
    server.committed("g").await.refused(Code::GroupNotFound);
    server.join("m1", &[(0, 2), (1, 4)]).await;
    server.join("m2", &[(2, 4)]).await;
    server.sql("update oncelog.groups set generation = 5").await;
    // a group that has committed nothing yet is there
    assert_eq!(told(&server.committed("g").await), "");
    commit("m3", 5, &[("orders", 0, 1)]).await.refused(Code::UnknownMember);
    assert_eq!(told(&commit("m1", 2, &[("orders", 0, 3)]).await), "orders/0 3");
    assert_eq!(
        told(&commit("m1", 5, &[("orders", 0, 4), ("orders", 1, 2)]).await),
        "orders/0 4, orders/1 2"
    );
    // lost, regained since, never had, of a generation to come: whole, and by name
    let table = [
        ("m1", 1, vec![0], "orders/0: "),
        ("m1", 3, vec![0, 1], "orders/1: "),
        ("m1", 6, vec![0, 1], "orders/0, orders/1: "),
        ("m1", 5, vec![0, 2, 3], "orders/2, orders/3: "),
        ("m2", 5, vec![0, 1, 2], "orders/0, orders/1: "),
    ];
    for (member, generation, partitions, named) in table {
        let of: Vec<_> = partitions.into_iter().map(|p| ("orders", p, 9)).collect();
        let problem = commit(member, generation, &of).await.refused(Code::IllegalGeneration);
        assert_eq!(problem["generation"], 5);
        assert!(problem["detail"].as_str().unwrap().starts_with(named), "{problem}");
    }
    assert_eq!(told(&server.committed("g").await), "orders/0 4, orders/1 2");
    // a smaller one changes nothing, its metadata included; the same one may bring other metadata
    let with = |offset: i64, metadata: &str| {
        let mut commit = by("m1", 5, &[("orders", 0, offset), ("orders", 1, offset)]);
        commit["offsets"][0]["metadata"] = json!(metadata);
        server.commit("g", commit)
    };
    assert_eq!(told(&with(4, "a").await), "orders/0 4 a, orders/1 4");
    assert_eq!(told(&with(3, "b").await), "orders/0 4 a, orders/1 4");
    assert_eq!(told(&with(4, "c").await), "orders/0 4 c, orders/1 4");
    let half = [("orders", 0, 1), ("orders", 1, 6)];
    assert_eq!(told(&commit("m1", 5, &half).await), "orders/0 4 c, orders/1 6");
    assert_eq!(told(&server.committed("g").await), "orders/0 4 c, orders/1 6");
    // handed over: what the former owner sends is refused, the new one goes on
    server.sql("update oncelog.groups set generation = 6").await;
    let hand_over = "update oncelog.group_offsets set member_id = 'm2', owned_since = 6 \
        where log_id = (select log_id from oncelog.logs where partition = 0)";
    server.sql(hand_over).await;
    commit("m1", 6, &[("orders", 0, 9)]).await.refused(Code::IllegalGeneration);
    assert_eq!(told(&commit("m2", 6, &[("orders", 0, 9)]).await), "orders/0 9");
    // gone
    server.sql("delete from oncelog.group_members where member_id = 'm2'").await;
    commit("m2", 6, &[("orders", 0, 9)]).await.refused(Code::UnknownMember);
}

#[tokio::test]
async fn with_members_nobody_else_commits() {
    let server = Server::start().await;
    server.filled_topic("orders", 2, 9).await;
    server.commit("g", offsets(&[("orders", 1, 3)])).await.ok();
    server.join("m1", &[(0, 1)]).await;
    let from_outside = [
        offsets(&[("orders", 0, 1)]),
        // also in partitions that no member has
        offsets(&[("orders", 1, 4)]),
        json!({"offsets": [over(1, json!(3), 4)]}),
        json!({"offsets": [over(1, json!(9), 4)]}),
    ];
    for commit in &from_outside {
        server.commit("g", commit.clone()).await.refused(Code::GroupNotEmpty);
    }
    // other groups are theirs
    server.commit("h", offsets(&[("orders", 0, 1)])).await.ok();
    // a partition that is still somebody's, though it is no member any more
    server.sql("delete from oncelog.group_members").await;
    server.commit("g", offsets(&[("orders", 0, 1)])).await.refused(Code::GroupNotEmpty);
    server.commit("g", offsets(&[("orders", 1, 4)])).await.ok();
    server.sql("update oncelog.group_offsets set member_id = null, owned_since = null").await;
    assert_eq!(told(&server.commit("g", offsets(&[("orders", 0, 1)])).await), "orders/0 1");
}

#[tokio::test]
async fn what_a_prepared_transaction_pins_stays() {
    let server = Server::start().await;
    server.filled_topic("orders", 3, 9).await;
    server.join("m1", &[(0, 1), (1, 1)]).await;
    server.sql("update oncelog.groups set generation = 1").await;
    server.commit("g", by("m1", 1, &[("orders", 0, 3), ("orders", 1, 3)])).await.ok();
    server.commit("h", offsets(&[("orders", 2, 3)])).await.ok();
    let pin = "019aa5b6-5c00-7000-8000-000000000007";
    let pinned = |group: &str, partition: i32| {
        format!(
            "update oncelog.group_offsets set pinned_by = '{pin}' where group_name = '{group}' \
             and log_id = (select log_id from oncelog.logs where partition = {partition})"
        )
    };
    server.sql(pinned("g", 0)).await;
    server.sql(pinned("h", 2)).await;
    let table = [
        ("g", by("m1", 1, &[("orders", 0, 4)]), json!(null)),
        ("g", by("m1", 1, &[("orders", 0, 1)]), json!(null)),
        ("g", by("m1", 1, &[("orders", 1, 5), ("orders", 0, 5)]), json!(null)),
        ("h", offsets(&[("orders", 2, 5)]), json!(null)),
        ("h", json!({"offsets": [over(2, json!(3), 5)]}), json!(3)),
    ];
    for (group, commit, expected) in table {
        let problem = server.commit(group, commit).await.refused(Code::OffsetCommitConflict);
        assert_eq!(problem["transaction_id"], pin);
        let facts = (&problem["expected_offset"], &problem["committed_offset"]);
        assert_eq!(facts, (&expected, &json!(3)));
        assert!(problem["detail"].as_str().unwrap().contains(pin), "{problem}");
    }
    assert_eq!(told(&server.committed("g").await), "orders/0 3, orders/1 3");
    assert_eq!(told(&server.committed("h").await), "orders/2 3");
    // beside it everybody goes on
    assert_eq!(told(&server.commit("g", by("m1", 1, &[("orders", 1, 5)])).await), "orders/1 5");
    assert_eq!(told(&server.commit("k", offsets(&[("orders", 2, 5)])).await), "orders/2 5");
    server.sql("update oncelog.group_offsets set pinned_by = null").await;
    assert_eq!(told(&server.commit("g", by("m1", 1, &[("orders", 0, 5)])).await), "orders/0 5");
}

#[tokio::test]
async fn a_deleted_topics_offsets_are_gone_at_once_and_their_rows_soon() {
    let server = Server::start().await;
    server.filled_topic("orders", 2, 9).await;
    server.filled_topic("audit", 1, 9).await;
    let all = offsets(&[("orders", 0, 5), ("orders", 1, 6), ("audit", 0, 7)]);
    server.commit("g", all).await.ok();
    server.commit("h", offsets(&[("orders", 0, 5)])).await.ok();
    // more groups than the janitor removes at a time
    server
        .sql(
            "insert into oncelog.groups (tenant_id, name) \
                select tenant_id, 'group-' || i from oncelog.tenants, generate_series(1, 2500) i; \
            insert into oncelog.group_offsets (tenant_id, group_name, log_id, committed_offset) \
                select g.tenant_id, g.name, l.log_id, 1 from oncelog.groups g, oncelog.logs l \
                where g.name like 'group-%' and l.partition = 1",
        )
        .await;
    server.delete("/v1/topics/orders").await.no_content();
    assert_eq!(told(&server.committed("g").await), "audit/0 7");
    assert_eq!(told(&server.committed("h").await), "");
    // a topic made again is another one
    server.filled_topic("orders", 2, 9).await;
    assert_eq!(told(&server.committed("g").await), "audit/0 7");
    let first = json!({"offsets": [over(0, json!(null), 1)]});
    assert_eq!(told(&server.commit("g", first).await), "orders/0 1");
    const ROWS: &str = "select count(*) from oncelog.group_offsets";
    assert_eq!(server.number(ROWS).await, 2_505);
    server.broker.sweep().await.unwrap();
    assert_eq!(server.number(ROWS).await, 2);
    assert_eq!(server.number("select count(*) from oncelog.doomed_logs").await, 0);
    assert_eq!(told(&server.committed("g").await), "audit/0 7, orders/0 1");
}
