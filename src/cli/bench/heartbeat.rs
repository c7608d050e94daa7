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
    let crowd = Arc::new(Crowd::new(flags, stage));
    let begun = Instant::now();
    // the measurement starts after all members have joined
    let tally = SharedTally::new(stage.phases.clock())?;
    let mut joins = Latencies::new()?;
    let (mut staying, mut groups) = (JoinSet::new(), Vec::new());
    let mut gathered = stream::iter((0..crowd.groups).map(|group| crowd.gather(group)))
        .buffer_unordered(GROUPS_AT_A_TIME);
    while let Some(group) = gathered.try_next().await? {
        group.joined_in.iter().for_each(|took| joins.note(*took));
        for member in &group.members {
            staying.spawn(crowd.clone().stay(member.clone(), begun, tally.clone()));
        }
        groups.push(group);
    }
    let joined = begun.elapsed();

    let clock = stage.phases.clock();
    let measured_from = SystemTime::now() + clock.from.duration_since(Instant::now());
    tally.lock().begin(clock);
    let (_, cpu) = watch(JoinSet::<()>::new(), clock, &tally).await?;
    staying.shutdown().await;

    let mut report = stage.report("heartbeat", crowd.lines.len());
    report.note("groups", crowd.groups);
    report.note("members", crowd.groups * crowd.members);
    report.note("session_timeout_ms", flags.session_timeout_ms);
    report.note("joined_s", joined.as_secs_f64());
    report.note("measured_from_unix_s", measured_from.duration_since(UNIX_EPOCH)?.as_secs_f64());
    report.latencies("join", &joins);
    report.tally("heartbeat", &tally.lock(), cpu)?;
    if stage.made {
        let leaving = stream::iter(groups.iter().map(|group| crowd.leave(group)));
        leaving.buffer_unordered(GROUPS_AT_A_TIME).try_collect::<()>().await?;
    }
    Ok(report)
}

/// What all members of all groups share.
struct Crowd {
    lines: Vec<Mutex<Line>>,
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
struct Line {
    server: Arc<Server>,
    connection: Option<Connection>,
}

struct HeartbeatGroup {
    path: String,
    members: Vec<HeartbeatMember>,
    /// How long each join took.
    joined_in: Vec<Duration>,
}

#[derive(Clone)]
struct HeartbeatMember {
    /// Its index among all members.
    index: usize,
    path: String,
    /// The body of a heartbeat: the generation that the member has seen.
    shown: String,
    /// The response to a heartbeat, which must not change.
    told: Vec<u8>,
}

#[derive(Deserialize)]
struct JoinAnswer {
    member_id: String,
}

/// The relevant part of a heartbeat's response.
#[derive(Deserialize)]
struct Told {
    generation: i64,
    assignment: Vec<GroupShare>,
    revoked: Vec<GroupShare>,
}

#[derive(Deserialize)]
struct GroupShare {
    partitions: Vec<i64>,
}

impl Crowd {
    fn new(flags: &HeartbeatFlags, stage: &Stage) -> Self {
        let (groups, members) = (usize::from(flags.groups), usize::from(flags.members));
        let count = usize::from(flags.connections).min(groups * members);
        let line = |index| Mutex::new(Line { server: stage.server(index), connection: None });
        let timeout_ms = flags.session_timeout_ms;
        Self {
            lines: (0..count).map(line).collect(),
            path: format!("/groups/bench-{}", Uuid::now_v7().simple()),
            groups,
            members,
            partitions: stage.partitions.unsigned_abs() as usize,
            join: json!({"topics": [stage.topic.as_str()], "session_timeout_ms": timeout_ms})
                .to_string(),
            interval: Duration::from_millis(timeout_ms.into()) / 3,
        }
    }

    /// Lets the members join a group until they share its partitions.
    async fn gather(&self, number: usize) -> anyhow::Result<HeartbeatGroup> {
        let group = format!("{}-{number}", self.path);
        let path = format!("{group}/members");
        let (mut members, mut joined_in) = (Vec::new(), Vec::new());
        for member in 0..self.members {
            // consecutive indexes belong to different groups
            let index = member * self.groups + number;
            let begun = Instant::now();
            let joined = self.send(index, |server| server.request_with("POST", &path, &self.join));
            let joined = joined.await.context("cannot join the group")?;
            joined_in.push(begun.elapsed());
            let JoinAnswer { member_id } = serde_json::from_slice(&joined)?;
            let path = format!("{path}/{member_id}");
            members.push(HeartbeatMember { index, path, shown: "{}".into(), told: Vec::new() });
        }
        for _ in 0..REBALANCE_ROUNDS {
            let all = join_all(members.iter().map(|member| self.beat(member))).await;
            for (member, told) in members.iter_mut().zip(all) {
                member.told = told.context("cannot send a heartbeat")?;
                let Told { generation, .. } = serde_json::from_slice(&member.told)?;
                member.shown = json!({"generation": generation}).to_string();
            }
            if self.is_settled(&members)? {
                return Ok(HeartbeatGroup { path: group, members, joined_in });
            }
        }
        bail!("the members of a group did not balance its partitions")
    }

    /// Whether every partition has an owner, the load is balanced, and all members know it.
    fn is_settled(&self, members: &[HeartbeatMember]) -> anyhow::Result<bool> {
        let told = members.iter().map(|member| serde_json::from_slice(&member.told));
        let told: Vec<Told> = told.collect::<Result<_, _>>()?;
        let share = self.partitions.div_ceil(self.members);
        let owned = |told: &Told| told.assignment.iter().map(|p| p.partitions.len()).sum::<usize>();
        Ok(told.iter().map(owned).sum::<usize>() == self.partitions
            && told.iter().all(|told| owned(told) <= share && told.revoked.is_empty())
            && told.windows(2).all(|two| two[0].generation == two[1].generation))
    }

    /// Sends a heartbeat in every interval, always at the same phase.
    async fn stay(self: Arc<Self>, member: HeartbeatMember, begun: Instant, tally: SharedTally) {
        let share = member.index as f64 / (self.groups * self.members) as f64;
        let mut due = begun + self.interval.mul_f64(share);
        loop {
            while due < Instant::now() {
                due += self.interval;
            }
            sleep_until(due).await;
            let beaten = self.beat(&member).await;
            let mut tally = tally.lock();
            match beaten {
                Ok(told) if told == member.told => tally.done(due, Instant::now(), 1),
                Ok(told) => tally.error("another_assignment", || {
                    let [before, after] = [&member.told, &told].map(|t| String::from_utf8_lossy(t));
                    format!("a heartbeat got {after}, after {before}")
                }),
                Err(failure) => tally.failed(&failure),
            }
        }
    }

    async fn beat(&self, member: &HeartbeatMember) -> Result<Vec<u8>, Failure> {
        let path = format!("{}/heartbeat", member.path);
        self.send(member.index, |server| server.request_with("POST", &path, &member.shown)).await
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
        let mut line = self.lines[index % self.lines.len()].lock().await;
        let mut connection = match line.connection.take() {
            Some(connection) => connection,
            None => line.server.connect().await?,
        };
        let request = request(&line.server);
        let answer = connection.exchange(&request).await.map(<[u8]>::to_vec);
        if answer.as_ref().err().is_none_or(Failure::leaves_connection) {
            line.connection = Some(connection);
        }
        answer
    }
}
