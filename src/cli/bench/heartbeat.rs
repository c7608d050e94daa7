//! Members of many groups that only renew their leases. Each sends one heartbeat per interval, at
//! its own phase, so that the load is even.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, future::join_all, stream};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use uuid::Uuid;

use super::{
    Common, Stage,
    connection::{Connection, Failure, Server},
    measure::{Latencies, Report, SharedTally, watch},
};

/// How many groups are joined or left concurrently.
const GROUPS_AT_A_TIME: usize = 16;
/// The maximum number of heartbeats until the partitions are balanced.
const REBALANCE_ROUNDS: usize = 100;

#[derive(Args)]
pub(in crate::cli) struct HeartbeatFlags {
    /// Groups, each of which shares all partitions of the topic
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    groups: u16,
    /// Members of each group
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u16).range(1..=1000))]
    members: u16,
    /// Lease of a member; a heartbeat is sent every third of it
    #[arg(long, value_name = "MS", default_value = "45000", value_parser = clap::value_parser!(u32).range(1000..=1_800_000))]
    session_timeout_ms: u32,
    /// Connections that the members share
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) async fn run(flags: &HeartbeatFlags, stage: &Stage) -> anyhow::Result<Report> {
    let population = Arc::new(Population::new(flags, stage));
    let begun = Instant::now();
    // the measurement starts after all members have joined
    let tally = SharedTally::new(stage.phases.clock())?;
    let mut joins = Latencies::new()?;
    let (mut tasks, mut groups) = (JoinSet::new(), Vec::new());
    let mut joining =
        stream::iter((0..population.groups).map(|group| population.join_group(group)))
            .buffer_unordered(GROUPS_AT_A_TIME);
    while let Some(group) = joining.try_next().await? {
        group.join_times.iter().for_each(|took| joins.note(*took));
        for member in &group.members {
            tasks.spawn(population.clone().send_heartbeats(member.clone(), begun, tally.clone()));
        }
        groups.push(group);
    }
    let joined = begun.elapsed();

    let clock = stage.phases.clock();
    let measured_from = SystemTime::now() + clock.from.duration_since(Instant::now());
    tally.lock().begin(clock);
    let (_, cpu) = watch(JoinSet::<()>::new(), clock, &tally).await?;
    tasks.shutdown().await;

    let mut report = stage.report("heartbeat", population.connections.len());
    report.note("groups", population.groups);
    report.note("members", population.groups * population.members);
    report.note("session_timeout_ms", flags.session_timeout_ms);
    report.note("joined_s", joined.as_secs_f64());
    report.note("measured_from_unix_s", measured_from.duration_since(UNIX_EPOCH)?.as_secs_f64());
    report.latencies("join", &joins);
    report.tally("heartbeat", &tally.lock(), cpu)?;
    if stage.is_created {
        let leaving = stream::iter(groups.iter().map(|group| population.leave(group)));
        leaving.buffer_unordered(GROUPS_AT_A_TIME).try_collect::<()>().await?;
    }
    Ok(report)
}

/// What all members of all groups share.
struct Population {
    connections: Vec<Mutex<SharedConnection>>,
    /// The path of a group, up to its number.
    path: String,
    groups: usize,
    /// Members per group.
    members: usize,
    partitions: usize,
    join: String,
    interval: Duration,
}

/// A connection to one of the servers, opened when it is first used.
struct SharedConnection {
    server: Arc<Server>,
    connection: Option<Connection>,
}

struct HeartbeatGroup {
    path: String,
    members: Vec<HeartbeatMember>,
    /// How long each join took.
    join_times: Vec<Duration>,
}

#[derive(Clone)]
struct HeartbeatMember {
    /// Its index among all members.
    index: usize,
    path: String,
    /// The body of a heartbeat: the generation that the member has seen.
    body: String,
    /// The response to a heartbeat, which must not change.
    answer: Vec<u8>,
}

#[derive(Deserialize)]
struct JoinAnswer {
    member_id: String,
}

/// The relevant part of a heartbeat's response.
#[derive(Deserialize)]
struct HeartbeatAnswer {
    generation: i64,
    assignment: Vec<GroupShare>,
    revoked: Vec<GroupShare>,
}

#[derive(Deserialize)]
struct GroupShare {
    partitions: Vec<i64>,
}

impl Population {
    fn new(flags: &HeartbeatFlags, stage: &Stage) -> Self {
        let (groups, members) = (usize::from(flags.groups), usize::from(flags.members));
        let count = usize::from(flags.connections).min(groups * members);
        let shared =
            |index| Mutex::new(SharedConnection { server: stage.server(index), connection: None });
        let timeout_ms = flags.session_timeout_ms;
        Self {
            connections: (0..count).map(shared).collect(),
            path: format!("/groups/bench-{}", Uuid::now_v7().simple()),
            groups,
            members,
            partitions: stage.partitions.unsigned_abs() as usize,
            join: json!({"topics": [stage.topic.as_str()], "session_timeout_ms": timeout_ms})
                .to_string(),
            interval: Duration::from_millis(timeout_ms.into()) / 3,
        }
    }

    /// Joins the members of a group, and waits until they share its partitions.
    async fn join_group(&self, number: usize) -> anyhow::Result<HeartbeatGroup> {
        let group = format!("{}-{number}", self.path);
        let path = format!("{group}/members");
        let (mut members, mut join_times) = (Vec::new(), Vec::new());
        for member in 0..self.members {
            // consecutive indexes belong to different groups
            let index = member * self.groups + number;
            let begun = Instant::now();
            let joined = self.send(index, |server| server.request_with("POST", &path, &self.join));
            let joined = joined.await.context("cannot join the group")?;
            join_times.push(begun.elapsed());
            let JoinAnswer { member_id } = serde_json::from_slice(&joined)?;
            let path = format!("{path}/{member_id}");
            members.push(HeartbeatMember { index, path, body: "{}".into(), answer: Vec::new() });
        }
        for _ in 0..REBALANCE_ROUNDS {
            let all = join_all(members.iter().map(|member| self.heartbeat(member))).await;
            for (member, answer) in members.iter_mut().zip(all) {
                member.answer = answer.context("cannot send a heartbeat")?;
                let HeartbeatAnswer { generation, .. } = serde_json::from_slice(&member.answer)?;
                member.body = json!({"generation": generation}).to_string();
            }
            if self.is_settled(&members)? {
                return Ok(HeartbeatGroup { path: group, members, join_times });
            }
        }
        bail!("the members of a group did not balance its partitions")
    }

    /// Whether every partition has an owner, the load is balanced, and all members know it.
    fn is_settled(&self, members: &[HeartbeatMember]) -> anyhow::Result<bool> {
        let answers = members.iter().map(|member| serde_json::from_slice(&member.answer));
        let answers: Vec<HeartbeatAnswer> = answers.collect::<Result<_, _>>()?;
        let share = self.partitions.div_ceil(self.members);
        let owned = |answer: &HeartbeatAnswer| {
            answer.assignment.iter().map(|p| p.partitions.len()).sum::<usize>()
        };
        Ok(answers.iter().map(owned).sum::<usize>() == self.partitions
            && answers.iter().all(|answer| owned(answer) <= share && answer.revoked.is_empty())
            && answers.windows(2).all(|two| two[0].generation == two[1].generation))
    }

    /// Sends a heartbeat in every interval, always at the same phase.
    async fn send_heartbeats(
        self: Arc<Self>,
        member: HeartbeatMember,
        begun: Instant,
        tally: SharedTally,
    ) {
        let share = member.index as f64 / (self.groups * self.members) as f64;
        let mut due = begun + self.interval.mul_f64(share);
        loop {
            while due < Instant::now() {
                due += self.interval;
            }
            sleep_until(due).await;
            let result = self.heartbeat(&member).await;
            let mut tally = tally.lock();
            match result {
                Ok(answer) if answer == member.answer => tally.done(due, Instant::now(), 1),
                Ok(answer) => tally.error("another_assignment", || {
                    let [before, after] =
                        [&member.answer, &answer].map(|t| String::from_utf8_lossy(t));
                    format!("a heartbeat got {after}, after {before}")
                }),
                Err(failure) => tally.failed(&failure),
            }
        }
    }

    async fn heartbeat(&self, member: &HeartbeatMember) -> Result<Vec<u8>, Failure> {
        let path = format!("{}/heartbeat", member.path);
        self.send(member.index, |server| server.request_with("POST", &path, &member.body)).await
    }

    async fn leave(&self, group: &HeartbeatGroup) -> anyhow::Result<()> {
        for member in &group.members {
            let leave = self.send(member.index, |server| server.request("DELETE", &member.path));
            leave.await.context("cannot leave the group")?;
        }
        let delete = self.send(0, |server| server.request("DELETE", &group.path));
        delete.await.context("cannot delete the group")?;
        Ok(())
    }

    /// Sends a request on the connection that the member uses.
    async fn send(
        &self,
        index: usize,
        request: impl FnOnce(&Server) -> String,
    ) -> Result<Vec<u8>, Failure> {
        let mut shared = self.connections[index % self.connections.len()].lock().await;
        let mut connection = match shared.connection.take() {
            Some(connection) => connection,
            None => shared.server.connect().await?,
        };
        let request = request(&shared.server);
        let answer = connection.exchange(&request).await.map(<[u8]>::to_vec);
        if answer.as_ref().err().is_none_or(Failure::leaves_connection) {
            shared.connection = Some(connection);
        }
        answer
    }
}
