//! `oncelog consume --group`: reads as a member of a group, which shares its partitions.
//!
//! Records are committed after they are printed: if the commit is missing, the next owner prints
//! them again, and no record is skipped. While the reader of stdout is slow, heartbeats keep the
//! lease.

mod ends;
mod flags;
mod partitions;

use std::{collections::BTreeSet, pin::pin, time::Duration};

use anyhow::{Context, bail};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

pub use self::flags::GroupFlags;
use self::{
    ends::{Ends, offsets_after},
    flags::CommitMode,
    partitions::{Partition, list_by_topic},
};
use super::{
    MIN_WAIT, WAIT,
    page::{PageRequest, Place, RecordLocation, Records},
    printer::Printer,
};
use crate::{
    cli::{
        Interrupted,
        client::{Answer, Client, Failure},
        interrupted,
        output::{closed, print},
    },
    model::Name,
};

/// How long, after a signal, printing and committing what has arrived may take, and leaving.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
struct JoinedMember {
    member_id: String,
    heartbeat_interval_ms: u64,
}

#[derive(Deserialize)]
struct TopicPartitions {
    topic: String,
    partitions: BTreeSet<i32>,
}

/// What a fetch returns beside the records.
#[derive(Deserialize)]
struct FetchState {
    generation: i64,
    assignment: Vec<TopicPartitions>,
    revoked: Vec<TopicPartitions>,
    cursor: String,
}

struct GroupMember {
    id: String,
    heartbeat_interval: Duration,
    /// When the server last renewed the lease.
    renewed_at: Instant,
    /// The newest generation that the member has seen.
    generation: i64,
}

struct Consumer {
    client: Client,
    group: Name,
    /// The body of a join.
    join: Value,
    is_static: bool,
    commit: CommitMode,
    printer: Printer,
    follows: bool,
    /// Whether it stops where the partitions ended at the start, and where that is.
    until_end: bool,
    ends: Option<Ends>,
    member: Option<GroupMember>,
    /// The position of the next fetch; none: the committed offsets.
    cursor: Option<String>,
    owned: BTreeSet<Partition>,
    left: u64,
}

pub(super) async fn consume(flags: super::ConsumeFlags) -> anyhow::Result<()> {
    let patience = flags.patience();
    let printer = Printer { format: flags.format.clone(), key: None };
    let super::ConsumeFlags { topics, group: flags, follow, until_end, limit, server, .. } = flags;
    let client = Client::new(server, patience)?;
    let topics: Vec<&str> = topics.iter().map(Name::as_str).collect();
    let group = flags.group.clone().context("--group is missing")?;
    let is_static = flags.instance_id.is_some();
    let join = flags.join(&topics);
    let mut consumer = Consumer {
        client,
        group,
        join,
        is_static,
        commit: flags.commit,
        printer,
        follows: follow && !until_end,
        until_end,
        ends: None,
        member: None,
        cursor: None,
        owned: BTreeSet::new(),
        left: limit.unwrap_or(u64::MAX),
    };
    let result = consumer.run_until_signal().await;
    consumer.leave().await;
    result
}

impl Consumer {
    async fn run_until_signal(&mut self) -> anyhow::Result<()> {
        let outcome = if self.is_static {
            "it stays a member until its lease expires; run the same command to keep its partitions"
        } else {
            "it has left the group; other members read what was not committed"
        };
        let stop = CancellationToken::new();
        let mut work = pin!(self.run(&stop));
        tokio::select! {
            result = &mut work => result,
            error = closed() => Err(error.into()),
            signal = interrupted() => {
                stop.cancel();
                // records that have arrived may still be printed and committed
                if let Ok(Err(error)) = timeout(GRACE, work).await {
                    return Err(error);
                }
                let message = format!("interrupted; {outcome}");
                Err(Interrupted { signal: signal?, message }.into())
            }
        }
    }

    async fn run(&mut self, stop: &CancellationToken) -> anyhow::Result<()> {
        let mut idle_since = Instant::now();
        while self.left > 0 && !stop.is_cancelled() {
            if self.member.is_none() {
                self.join().await?;
                if self.until_end && self.ends.is_none() {
                    self.ends = Some(Ends::of(&self.client, &self.group).await?);
                }
            }
            let begun = Instant::now();
            let Some(fetched) = stop.run_until_cancelled(self.fetch()).await else { break };
            let Some(answer) = fetched? else { continue };
            let state: FetchState = answer.json()?;
            let Records { mut records } = answer.json()?;
            self.update_assignment(&state);
            self.cursor = Some(state.cursor.clone());
            let is_settled = state.revoked.is_empty();
            if !records.is_empty() {
                if let Some(ends) = &mut self.ends {
                    records = ends.before(records)?;
                }
                self.print_and_commit(&records, &state.cursor).await?;
                if is_settled && self.ends.as_ref().is_some_and(|e| e.are_reached(&self.owned)) {
                    break;
                }
                idle_since = Instant::now();
                continue;
            }
            let waits_for_some = self.owned.is_empty() && idle_since.elapsed() < self.lease();
            if !self.follows && is_settled && !waits_for_some {
                break;
            }
            // the server is shutting down
            if is_settled && begun.elapsed() < MIN_WAIT {
                stop.run_until_cancelled(sleep(MIN_WAIT)).await;
            }
        }
        Ok(())
    }

    fn lease(&self) -> Duration {
        self.member.as_ref().map_or(Duration::ZERO, |member| member.heartbeat_interval * 3)
    }

    async fn join(&mut self) -> anyhow::Result<()> {
        let path = ["groups", self.group.as_str(), "members"];
        let request = self.client.request(Method::POST, &path, &[]).json(&self.join);
        let renewed_at = Instant::now();
        let answer = self.client.send(request).await?;
        let JoinedMember { member_id: id, heartbeat_interval_ms } = answer.json()?;
        let heartbeat_interval = Duration::from_millis(heartbeat_interval_ms.max(1));
        self.member = Some(GroupMember { id, heartbeat_interval, renewed_at, generation: 0 });
        (self.cursor, self.owned) = (None, BTreeSet::new());
        Ok(())
    }

    /// Fetches records; none if the member has to rejoin.
    async fn fetch(&mut self) -> anyhow::Result<Option<Answer>> {
        // without partitions it polls more often: an assignment does not end a wait
        let wait = match (self.follows, self.owned.is_empty()) {
            (true, false) => WAIT,
            (true, true) => WAIT.min(self.lease() / 3),
            (false, _) => Duration::ZERO,
        };
        let from = self.cursor.as_deref().map(|cursor| ("cursor", cursor));
        let request = PageRequest { from, limit: self.left, wait };
        let path = self.member_path(Some("records"))?;
        match self.client.send(request.build(&self.client, &path, &path)).await {
            // the group was deleted and created again
            Err(Failure::Refused(problem)) if problem.code == "invalid_cursor" => {
                self.client.notice(&format!("{problem}; resuming from the committed offsets"));
                self.cursor = None;
                Ok(None)
            }
            response => self.check_membership(response),
        }
    }

    fn member_path<'a>(&'a self, what: Option<&'a str>) -> anyhow::Result<Vec<&'a str>> {
        let member = self.member.as_ref().context("no member")?;
        let mut path = vec!["groups", self.group.as_str(), "members", &member.id];
        path.extend(what);
        Ok(path)
    }

    /// The response to a member; none if it is no longer a member.
    fn check_membership(
        &mut self,
        response: Result<Answer, Failure>,
    ) -> anyhow::Result<Option<Answer>> {
        let problem = match response {
            Ok(answer) => {
                if let Some(member) = &mut self.member {
                    member.renewed_at = Instant::now();
                }
                return Ok(Some(answer));
            }
            Err(Failure::Refused(problem)) => problem,
            Err(failure) => return Err(failure.into()),
        };
        if !["unknown_member", "group_not_found"].contains(&problem.code.as_str()) {
            return Err(Failure::Refused(problem).into());
        }
        let lease = self.lease();
        let member = self.member.take();
        // the lease was valid, so another consumer took the instance; rejoining would fence it in
        // turn
        if self.is_static && member.is_some_and(|member| member.renewed_at.elapsed() < lease / 2) {
            let instance = &self.join["instance_id"];
            bail!("another consumer has joined group {} as instance {instance}", self.group);
        }
        self.client.notice(&format!("{problem}; rejoining"));
        Ok(None)
    }

    /// Takes over the assignment, and reports what has changed.
    fn update_assignment(&mut self, state: &FetchState) {
        let topics = state.assignment.iter();
        let owned: BTreeSet<Partition> = topics
            .flat_map(|TopicPartitions { topic, partitions }| {
                partitions.iter().map(move |partition| (topic.clone(), *partition))
            })
            .collect();
        let (assigned, revoked) = (&owned - &self.owned, &self.owned - &owned);
        for (change, partitions) in [("assigned", assigned), ("revoked", revoked)] {
            if !partitions.is_empty() {
                let partitions = list_by_topic(&partitions);
                self.client.notice(&format!("group {}, {change}: {partitions}", self.group));
            }
        }
        self.owned = owned;
        if let Some(member) = &mut self.member {
            member.generation = state.generation;
        }
    }

    async fn print_and_commit(
        &mut self,
        records: &[&RawValue],
        cursor: &str,
    ) -> anyhow::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        self.left = self.left.saturating_sub(records.len() as u64);
        if self.commit != CommitMode::Each {
            self.print(records).await?;
            if self.commit == CommitMode::Batch {
                let progress = match self.ends {
                    // the cursor may be behind an end
                    Some(_) => offsets_after(records)?,
                    None => json!({"cursor": cursor}),
                };
                self.commit(progress).await?;
            }
            return Ok(());
        }
        for record in records {
            let RecordLocation { topic, partition, offset } = RecordLocation::of(record)?;
            self.print(&[*record]).await?;
            let next = [json!({"topic": topic, "partition": partition, "offset": offset + 1})];
            if !self.commit(json!({"offsets": next})).await? {
                break;
            }
        }
        Ok(())
    }

    /// Prints on a thread of its own, while the runtime sends heartbeats.
    async fn print(&mut self, records: &[&RawValue]) -> anyhow::Result<()> {
        let mut lines = Vec::new();
        let place = Place { topic: "", partition: None, is_tagged: false };
        for record in records {
            self.printer.write(&mut lines, record, &place)?;
        }
        let (done, mut printed) = oneshot::channel();
        // not a task of the runtime: a blocked write must not keep the program from ending
        std::thread::spawn(move || done.send(print(&lines)));
        loop {
            let Some(member) = &self.member else {
                return printed.await.context("cannot print")?;
            };
            let due = member.renewed_at + member.heartbeat_interval;
            tokio::select! {
                biased;
                result = &mut printed => return result.context("cannot print")?,
                () = sleep_until(due) => {
                    // without a generation it releases no partition before its records are
                    // committed
                    let path = self.member_path(Some("heartbeat"))?;
                    let request = self.client.request(Method::POST, &path, &[]);
                    let response = self.client.send(request).await;
                    self.check_membership(response)?;
                }
            }
        }
    }

    /// Commits a cursor or offsets; returns whether we are still the owner.
    async fn commit(&mut self, progress: Value) -> anyhow::Result<bool> {
        let Some(member) = &self.member else { return Ok(false) };
        let mut body = json!({"member_id": member.id, "generation": member.generation});
        if let (Value::Object(body), Value::Object(progress)) = (&mut body, progress) {
            body.extend(progress);
        }
        let path = ["groups", self.group.as_str(), "offsets"];
        let request = self.client.request(Method::POST, &path, &[]).json(&body);
        match self.client.send(request).await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(problem)) if problem.code == "illegal_generation" => {
                self.client.notice(
                    "partitions were reassigned before their records were committed: other members \
                     print them again; resuming from the committed offsets",
                );
                self.cursor = None;
                Ok(false)
            }
            response => Ok(self.check_membership(response)?.is_some()),
        }
    }

    /// Leaves the group, except with a stable name, whose purpose is to stay.
    async fn leave(&mut self) {
        if self.member.is_none() || self.is_static {
            return;
        }
        if let Ok(path) = self.member_path(None) {
            // if this fails, the lease expires
            let leave = self.client.send(self.client.request(Method::DELETE, &path, &[]));
            let _ = timeout(GRACE, leave).await;
        }
    }
}
