//! `consume --group`: members that share partitions, commit what they print, and come and go.

use std::{
    io::{BufRead, BufReader, Lines, Read},
    process::{Child, ChildStdout, Command},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use oncelog::broker::ServiceConfig;
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Connection, Executor, postgres::PgConnectOptions};

use super::{Output, client, ended, run};
use crate::support::{
    self,
    served::{Served, until},
};

/// A server, and its database.
struct World {
    served: Served,
    options: PgConnectOptions,
}

impl World {
    async fn count(&self, sql: &'static str) -> i64 {
        let mut connection = self.options.connect().await.unwrap();
        let count = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        count
    }

    async fn execute(&self, sql: &'static str) {
        let mut connection = self.options.connect().await.unwrap();
        connection.execute(sql).await.unwrap();
        connection.close().await.unwrap();
    }
}

/// A server with `t` of two partitions, of which each holds five records.
async fn filled() -> World {
    let options = support::database().await;
    let served = Served::start(&options, ServiceConfig::default()).await;
    served.client.put_topic("t", 2).await;
    for partition in 0..2 {
        let values: Vec<Value> = (0..5).map(|n| json!({"p": partition, "n": n})).collect();
        served.client.append("t", partition, &values).await;
    }
    World { served, options }
}

fn consuming(world: &World, arguments: &[&str]) -> Command {
    let all = [&["consume", "--topic", "t", "--group", "g"], arguments].concat();
    client(&world.served.client.url, &all)
}

async fn consume(world: &World, arguments: &[&str]) -> Output {
    run(consuming(world, arguments)).await
}

/// `0@1` for the second record of the first partition.
fn places(lines: &[Value]) -> Vec<String> {
    let place = |line: &Value| {
        assert_eq!(line["topic"], "t");
        format!("{}@{}", line["partition"], line["offset"])
    };
    let mut places: Vec<String> = lines.iter().map(place).collect();
    places.sort();
    places
}

async fn committed(world: &World) -> Vec<String> {
    let offsets = world.served.client.get("/v1/groups/g/offsets").await.ok(200);
    let offsets = offsets["offsets"].as_array().unwrap().iter();
    offsets.map(|one| format!("{}@{}", one["partition"], one["offset"])).collect()
}

/// One that runs on, and what arrives from it.
struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self, count: usize) -> Vec<Value> {
        let line = |_| serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap();
        (0..count).map(line).collect()
    }

    /// The end of it, and what it said on stderr.
    async fn stopped_by(mut self, signal: Signal) -> (Option<i32>, String) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
        let status = until("consume to end", async || self.child.try_wait().unwrap()).await;
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (status.code(), stderr)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_prints_and_commits_what_its_group_has_not_seen_and_leaves() {
    let world = filled().await;
    let first = consume(&world, &["--limit", "3"]).await;
    assert_eq!(first.lines().len(), 3);
    assert!(first.stderr.contains("group g, assigned: t 0, 1"), "{}", first.stderr);
    // who comes next goes on behind it, at once
    let rest = consume(&world, &[]).await;
    let all: Vec<Value> = first.lines().into_iter().chain(rest.lines()).collect();
    assert_eq!(
        places(&all),
        ["0@0", "0@1", "0@2", "0@3", "0@4", "1@0", "1@1", "1@2", "1@3", "1@4"]
    );
    assert_eq!(committed(&world).await, ["0@5", "1@5"]);
    assert_eq!(consume(&world, &[]).await.lines().len(), 0);
    // it has left: without members anybody may commit
    let back = json!({"offsets": [{"topic": "t", "partition": 0, "offset": 4}]});
    world.served.client.post("/v1/groups/g/offsets", &back).await.ok(200);
    assert_eq!(places(&consume(&world, &["--commit", "none"]).await.lines()), ["0@4"]);
    assert_eq!(places(&consume(&world, &["--commit", "each"]).await.lines()), ["0@4"]);
    assert_eq!(committed(&world).await, ["0@5", "1@5"]);
}

/// What arrives later is left to the next run, however long it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn until_the_end_is_what_was_there_at_the_start() {
    let options = support::database().await;
    let served = Served::start(&options, ServiceConfig::default()).await;
    served.client.put_topic("t", 2).await;
    // more than an answer holds, and than a pipe
    let long = "x".repeat(300_000);
    for n in 0..10 {
        served.client.append("t", n % 2, &[json!(long)]).await;
    }
    let world = World { served, options };
    for commit in ["batch", "each"] {
        let mut one = Follower::start(consuming(&world, &["--until-end", "--commit", commit]));
        // it has begun, and cannot go on before it is read
        let mut seen = one.next(1);
        for partition in 0..2 {
            world.served.client.append("t", partition, &[json!(long)]).await;
        }
        let rest = one.lines.by_ref().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        seen.extend(rest.collect::<Vec<Value>>());
        let output = ended(one.child).await;
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        let (count, end) = if commit == "batch" { (10, 5) } else { (2, 6) };
        assert_eq!(seen.len(), count, "{:?}", places(&seen));
        assert_eq!(committed(&world).await, [format!("0@{end}"), format!("1@{end}")]);
        assert_eq!(world.count("select count(*) from oncelog.group_members").await, 0);
    }
    assert_eq!(places(&consume(&world, &["--until-end"]).await.lines()), ["0@6", "1@6"]);
    assert_eq!(consume(&world, &["--until-end"]).await.lines().len(), 0);
    assert_eq!(consume(&world, &["--until-end", "--follow"]).await.lines().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_share_the_partitions_and_hand_over() {
    let world = filled().await;
    let mut one = Follower::start(consuming(&world, &["--follow"]));
    assert_eq!(places(&one.next(10)).len(), 10);
    let mut other = Follower::start(consuming(&world, &["--follow"]));
    let owners = async || {
        let sql = "select count(distinct member_id) from oncelog.group_offsets";
        (world.count(sql).await == 2).then_some(())
    };
    until("each to have one", owners).await;
    for partition in 0..2 {
        world.served.client.append("t", partition, &[json!("new")]).await;
    }
    let new: Vec<Value> = one.next(1).into_iter().chain(other.next(1)).collect();
    assert_eq!(places(&new), ["0@5", "1@5"]);
    // who is stopped leaves, and the other has both
    let (code, stderr) = one.stopped_by(Signal::SIGTERM).await;
    assert_eq!(code, Some(143), "{stderr}");
    assert!(stderr.contains("revoked: t ") && stderr.contains("has left"), "{stderr}");
    for partition in 0..2 {
        world.served.client.append("t", partition, &[json!("newer")]).await;
    }
    assert_eq!(places(&other.next(2)), ["0@6", "1@6"]);
    assert_eq!(other.stopped_by(Signal::SIGINT).await.0, Some(130));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_stable_name_it_stays_and_comes_back() {
    let world = filled().await;
    let pod = ["--follow", "--instance-id", "pod-1"];
    let mut one = Follower::start(consuming(&world, &pod));
    one.next(10);
    let (code, stderr) = one.stopped_by(Signal::SIGINT).await;
    assert_eq!(code, Some(130));
    assert!(stderr.contains("stays a member"), "{stderr}");
    assert_eq!(world.count("select count(*) from oncelog.group_members").await, 1);
    let generation = "select generation from oncelog.groups";
    let before = world.count(generation).await;
    world.served.client.append("t", 1, &[json!("new")]).await;
    let mut again = Follower::start(consuming(&world, &pod));
    assert_eq!(places(&again.next(1)), ["1@5"]);
    assert_eq!(world.count(generation).await, before);
    let committed = "select sum(committed_offset)::bigint from oncelog.group_offsets";
    let all = async || (world.count(committed).await == 11).then_some(());
    until("what was printed to be committed", all).await;
    // another of this name takes its place, which is no quarrel
    let third = consume(&world, &["--instance-id", "pod-1"]).await;
    assert_eq!(third.lines().len(), 0);
    let status = until("the other to end", async || again.child.try_wait().unwrap()).await;
    let mut stderr = String::new();
    again.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(stderr.contains("another consumer has joined"), "{stderr}");
}

const EXPIRE_FIRST: &str = "update oncelog.group_members m \
    set lease_expires_at = now() - interval '1 second' \
    from first f where m.member_id = f.member_id";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_taken_for_dead_joins_again() {
    let world = filled().await;
    let mut one = Follower::start(consuming(&world, &["--follow"]));
    one.next(10);
    until("a commit", async || (committed(&world).await == ["0@5", "1@5"]).then_some(())).await;
    world.execute("create table first as select member_id from oncelog.group_members").await;
    // a fetch that arrives between the two statements renews the lease
    until("it to be taken for dead", async || {
        world.execute(EXPIRE_FIRST).await;
        world.served.broker.sweep().await.unwrap();
        let left = "select count(*) from oncelog.group_members natural join first";
        (world.count(left).await == 0).then_some(())
    })
    .await;
    world.served.client.append("t", 0, &[json!("new")]).await;
    assert_eq!(places(&one.next(1)), ["0@5"]);
    until("another commit", async || (committed(&world).await == ["0@6", "1@5"]).then_some(()))
        .await;
    let (_, stderr) = one.stopped_by(Signal::SIGTERM).await;
    assert!(stderr.contains("; rejoining"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_pipe_ends_it_quietly_and_it_leaves() {
    let world = filled().await;
    let mut one = Follower::start(consuming(&world, &["--follow"]));
    one.next(10);
    let Follower { child, lines } = one;
    drop(lines);
    assert_eq!(ended(child).await.code, Some(0));
    assert_eq!(world.count("select count(*) from oncelog.group_members").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_usage_is_told() {
    let world = filled().await;
    let url = &world.served.client.url;
    for arguments in [
        &["consume", "--group", "g"][..],
        &["consume", "--topic", "t", "--topic", "u"],
        &["consume", "--topic", "t", "--topic-pattern", "u"],
        &["consume", "--topic", "t", "--group", "g", "--partition", "0"],
        &["consume", "--topic", "t", "--group", "g", "--offset", "latest"],
        &["consume", "--topic", "t", "--group", "g", "--commit", "always"],
        &["consume", "--topic", "t", "--commit", "each"],
    ] {
        run(client(url, arguments)).await.failed(2);
    }
    let absent = run(client(url, &["consume", "--topic", "u", "--group", "g"])).await;
    assert!(absent.failed(1).contains("topic_not_found"), "{}", absent.stderr);
    let error = consume(&world, &["--auto-offset-reset", "error"]).await;
    assert!(error.failed(1).contains("offset_out_of_range"), "{}", error.stderr);
    let pattern =
        ["consume", "--topic-pattern", "^t$", "--group", "h", "--auto-offset-reset", "latest"];
    assert_eq!(run(client(url, &pattern)).await.lines().len(), 0);
}
