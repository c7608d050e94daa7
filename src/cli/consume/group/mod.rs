//! `oncelog consume --group`: as a member of a group, which shares its partitions with the others.
//!
//! What is printed is committed behind it, so whoever comes next prints it again if that was cut
//! short, and never passes over a record. While the reader of stdout takes its time, heartbeats keep
//! the member in its group.

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

/// After a signal: to print and commit what has arrived, and to leave.
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

/// What a fetch answers beside its records.
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

/// Where a record is from.
#[derive(Deserialize)]
struct RecordOrigin {
    topic: String,
    partition: i32,
    offset: i64,
}

/// Whether the member is one still.
enum MemberStanding {
    Member,
    Gone,
}

struct GroupMember {
    id: String,
    heartbeat_interval: Duration,
    /// When it was heard last; its lease is good for two thirds of its length from then on.
    heard_at: Instant,
    /// The newest generation it knows.
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
    /// Where the next fetch goes on; none: at the committed offsets.
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
            "it stays a member until its lease runs out: the same command goes on with its partitions"
        } else {
            "it has left the group, which goes on with what was not committed"
        };
        let stop = CancellationToken::new();
        let mut work = pin!(self.run(&stop));
        tokio::select! {
            done = &mut work => done,
            closed = closed() => Err(closed.into()),
            signal = interrupted() => {
                stop.cancel();
                // what has arrived may still be printed and committed
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
                serde_json::from_slice(&answer.body).context("not a fetch's answer")?;
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
            // a server that stops
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

    /// Records; none: it has to join again.
    async fn fetch(&mut self) -> anyhow::Result<Option<Answer>> {
        // who owns nothing yet looks again soon: what it is given does not end its wait
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
            // a group of this name that was deleted and made again
            Err(Failure::Refused(problem)) if problem.code == "invalid_cursor" => {
                self.client.notice(&format!("{problem}; going on from the committed offsets"));
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

    /// What is answered to a member; none: it is none any more.
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
        // its lease was good, so another has taken its place, and would lose it again
        if self.is_static && member.is_some_and(|member| member.heard_at.elapsed() < lease / 2) {
            let instance = &self.join["instance_id"];
            bail!("another consumer has joined group {} as instance {instance}", self.group);
        }
        self.client.notice(&format!("{problem}; joining again"));
        Ok(None)
    }

    /// Tells what came and went.
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
        for (what, partitions) in [("given", given), ("taken away", taken)] {
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

    /// Prints, and commits.
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

    /// Prints beside the runtime, which sends heartbeats meanwhile.
    async fn print(&mut self, lines: String) -> anyhow::Result<()> {
        let (tell, mut told) = oneshot::channel();
        // no task of the runtime: it may be stuck when the program ends
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
                    // without a generation it lets go of nothing: what is printed is committed first
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
                    "partitions went to other members before what was printed of them was \
                     committed: they print it again; going on from the committed offsets",
                );
                self.cursor = None;
                Ok(MemberStanding::Gone)
            }
            sent => {
                Ok(self.standing(sent)?.map_or(MemberStanding::Gone, |_| MemberStanding::Member))
            }
        }
    }

    /// A member with a stable name stays: that is what it is for.
    async fn leave(&mut self) {
        if self.member.is_none() || self.is_static {
            return;
        }
        if let Ok(request) = self.of_member(Method::DELETE, None) {
            // else its lease runs out
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
