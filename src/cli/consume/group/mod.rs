//! `oncelog consume --group`: reads as a member of a group, which shares its partitions.
//!
//! Records are committed after they are printed: if the commit is missing, the next owner prints
//! them again, and no record is skipped. While the reader of stdout is slow, heartbeats keep the
//! lease.

mod flags;

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

use self::flags::CommitMode;
pub use self::flags::GroupFlags;
use super::{NO_WAIT, WAIT, ask::Ask};
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
struct Partitions {
    topic: String,
    partitions: BTreeSet<i32>,
}

/// The part of a fetch's response that is about the membership.
#[derive(Deserialize)]
struct Told {
    generation: i64,
    assignment: Vec<Partitions>,
    revoked: Vec<Partitions>,
}

#[derive(Deserialize)]
struct FetchedPage<'a> {
    #[serde(borrow)]
    records: Vec<&'a RawValue>,
    cursor: String,
}

/// The topic, partition and offset of a record.
#[derive(Deserialize)]
struct RecordOrigin {
    topic: String,
    partition: i32,
    offset: i64,
}

/// Whether we are still a member.
enum MemberStanding {
    Member,
    Gone,
}

struct GroupMember {
    id: String,
    heartbeat_interval: Duration,
    /// When the server last renewed the lease.
    heard_at: Instant,
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
    follows: bool,
    member: Option<GroupMember>,
    /// The position of the next fetch; none: the committed offsets.
    cursor: Option<String>,
    owned: BTreeSet<(String, i32)>,
    left: u64,
}

pub(super) async fn consume(flags: super::ConsumeFlags) -> anyhow::Result<()> {
    let patience = flags.patience();
    let super::ConsumeFlags { topics, group: flags, follow, limit, server, .. } = flags;
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
        follows: follow,
        member: None,
        cursor: None,
        owned: BTreeSet::new(),
        left: limit.unwrap_or(u64::MAX),
    };
    let ended = consumer.until_ended().await;
    consumer.leave().await;
    ended
}

impl Consumer {
    async fn until_ended(&mut self) -> anyhow::Result<()> {
        let told = if self.is_static {
            "it stays a member until its lease expires; run the same command to keep its partitions"
        } else {
            "it has left the group; other members read what was not committed"
        };
        let stop = CancellationToken::new();
        let mut work = pin!(self.run(&stop));
        tokio::select! {
            done = &mut work => done,
            closed = closed() => Err(closed.into()),
            signal = interrupted() => {
                stop.cancel();
                // records that have arrived may still be printed and committed
                if let Ok(Err(error)) = timeout(GRACE, work).await {
                    return Err(error);
                }
                Err(Interrupted { signal: signal?, told: format!("interrupted; {told}") }.into())
            }
        }
    }

    async fn run(&mut self, stop: &CancellationToken) -> anyhow::Result<()> {
        let mut idle_since = Instant::now();
        while self.left > 0 && !stop.is_cancelled() {
            if self.member.is_none() {
                self.join().await?;
            }
            let begun = Instant::now();
            let Some(fetched) = stop.run_until_cancelled(self.fetch()).await else { break };
            let Some(answer) = fetched? else { continue };
            let told: Told = answer.json()?;
            let page: FetchedPage =
                serde_json::from_slice(&answer.body).context("unexpected response to a fetch")?;
            self.learn(&told);
            self.cursor = Some(page.cursor.clone());
            if !page.records.is_empty() {
                self.show(&page).await?;
                idle_since = Instant::now();
                continue;
            }
            let is_settled = told.revoked.is_empty();
            let waits_for_some = self.owned.is_empty() && idle_since.elapsed() < self.lease();
            if !self.follows && is_settled && !waits_for_some {
                break;
            }
            // the server is shutting down
            if is_settled && begun.elapsed() < NO_WAIT {
                stop.run_until_cancelled(sleep(NO_WAIT)).await;
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
        let heard_at = Instant::now();
        let answer = self.client.send(request).await?;
        let JoinedMember { member_id: id, heartbeat_interval_ms } = answer.json()?;
        let heartbeat_interval = Duration::from_millis(heartbeat_interval_ms.max(1));
        self.member = Some(GroupMember { id, heartbeat_interval, heard_at, generation: 0 });
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
        let ask = Ask { from, at_most: self.left, wait };
        let path = self.path_of_member(Some("records"))?;
        let sent = self.client.send(ask.request(&self.client, &path, &path)).await;
        match sent {
            // the group was deleted and created again
            Err(Failure::Refused(problem)) if problem.code == "invalid_cursor" => {
                self.client.notice(&format!("{problem}; resuming from the committed offsets"));
                self.cursor = None;
                Ok(None)
            }
            sent => self.standing(sent),
        }
    }

    fn path_of_member<'a>(&'a self, what: Option<&'a str>) -> anyhow::Result<Vec<&'a str>> {
        let member = self.member.as_ref().context("no member")?;
        let mut path = vec!["groups", self.group.as_str(), "members", &member.id];
        path.extend(what);
        Ok(path)
    }

    fn of_member(
        &self,
        method: Method,
        what: Option<&str>,
    ) -> anyhow::Result<reqwest::RequestBuilder> {
        Ok(self.client.request(method, &self.path_of_member(what)?, &[]))
    }

    /// The response to a member; none if it is no longer a member.
    fn standing(&mut self, sent: Result<Answer, Failure>) -> anyhow::Result<Option<Answer>> {
        let problem = match sent {
            Ok(answer) => {
                if let Some(member) = &mut self.member {
                    member.heard_at = Instant::now();
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
        if self.is_static && member.is_some_and(|member| member.heard_at.elapsed() < lease / 2) {
            let instance = &self.join["instance_id"];
            bail!("another consumer has joined group {} as instance {instance}", self.group);
        }
        self.client.notice(&format!("{problem}; rejoining"));
        Ok(None)
    }

    /// Reports assigned and revoked partitions.
    fn learn(&mut self, told: &Told) {
        let all = |list: &[Partitions]| -> BTreeSet<(String, i32)> {
            let each = |one: &Partitions| {
                let topic = one.topic.clone();
                one.partitions.clone().into_iter().map(move |number| (topic.clone(), number))
            };
            list.iter().flat_map(each).collect()
        };
        let owned = all(&told.assignment);
        let (given, taken) = (&owned - &self.owned, &self.owned - &owned);
        for (what, partitions) in [("assigned", given), ("revoked", taken)] {
            if !partitions.is_empty() {
                self.client.notice(&format!(
                    "group {}, {what}: {}",
                    self.group,
                    named(&partitions)
                ));
            }
        }
        self.owned = owned;
        if let Some(member) = &mut self.member {
            member.generation = told.generation;
        }
    }

    /// Prints records, then commits them.
    async fn show(&mut self, page: &FetchedPage<'_>) -> anyhow::Result<()> {
        self.left = self.left.saturating_sub(page.records.len() as u64);
        if self.commit != CommitMode::Each {
            let lines: String = page.records.iter().map(|record| line(record)).collect();
            self.print(lines).await?;
            return match self.commit {
                CommitMode::Batch => self.commit(json!({"cursor": page.cursor})).await.map(drop),
                CommitMode::Each | CommitMode::None => Ok(()),
            };
        }
        for record in &page.records {
            let RecordOrigin { topic, partition, offset } = serde_json::from_str(record.get())?;
            self.print(line(record)).await?;
            let next = [json!({"topic": topic, "partition": partition, "offset": offset + 1})];
            if let MemberStanding::Gone = self.commit(json!({"offsets": next})).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Prints on a thread of its own, while the runtime sends heartbeats.
    async fn print(&mut self, lines: String) -> anyhow::Result<()> {
        let (tell, mut told) = oneshot::channel();
        // not a task of the runtime: a blocked write must not keep the program from ending
        std::thread::spawn(move || tell.send(print(lines.as_bytes())));
        loop {
            let Some(member) = &self.member else {
                return told.await.context("cannot print")?;
            };
            let due = member.heard_at + member.heartbeat_interval;
            tokio::select! {
                biased;
                printed = &mut told => return printed.context("cannot print")?,
                () = sleep_until(due) => {
                    // without a generation it releases no partition before its records are
                    // committed
                    let request = self.of_member(Method::POST, Some("heartbeat"))?;
                    let sent = self.client.send(request).await;
                    self.standing(sent)?;
                }
            }
        }
    }

    async fn commit(&mut self, what: Value) -> anyhow::Result<MemberStanding> {
        let Some(member) = &self.member else { return Ok(MemberStanding::Gone) };
        let mut body = json!({"member_id": member.id, "generation": member.generation});
        if let (Value::Object(body), Value::Object(what)) = (&mut body, what) {
            body.extend(what);
        }
        let path = ["groups", self.group.as_str(), "offsets"];
        let request = self.client.request(Method::POST, &path, &[]).json(&body);
        match self.client.send(request).await {
            Ok(_) => Ok(MemberStanding::Member),
            Err(Failure::Refused(problem)) if problem.code == "illegal_generation" => {
                self.client.notice(
                    "partitions were reassigned before their records were committed: other members \
                     print them again; resuming from the committed offsets",
                );
                self.cursor = None;
                Ok(MemberStanding::Gone)
            }
            sent => {
                Ok(self.standing(sent)?.map_or(MemberStanding::Gone, |_| MemberStanding::Member))
            }
        }
    }

    /// Leaves the group, except with a stable name, whose purpose is to stay.
    async fn leave(&mut self) {
        if self.member.is_none() || self.is_static {
            return;
        }
        if let Ok(request) = self.of_member(Method::DELETE, None) {
            // if this fails, the lease expires
            let _ = timeout(GRACE, self.client.send(request)).await;
        }
    }
}

fn line(record: &RawValue) -> String {
    format!("{}\n", record.get())
}

/// `carts 0; orders 0, 1, 2`.
fn named(partitions: &BTreeSet<(String, i32)>) -> String {
    let topics: BTreeSet<&String> = partitions.iter().map(|(topic, _)| topic).collect();
    let of = |topic: &String| {
        let numbers = partitions.iter().filter(|(of, _)| of == topic);
        let numbers: Vec<String> = numbers.map(|(_, number)| number.to_string()).collect();
        format!("{topic} {}", numbers.join(", "))
    };
    topics.into_iter().map(of).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_named_by_topic() {
        let set = |list: &[(&str, i32)]| {
            list.iter().map(|(topic, number)| ((*topic).to_owned(), *number)).collect()
        };
        let named = |list| named(&set(list));
        assert_eq!(named(&[("orders", 0)]), "orders 0");
        assert_eq!(named(&[("o", 10), ("o", 2), ("carts", 0)]), "carts 0; o 2, 10");
    }
}
