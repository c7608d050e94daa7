//! Consume, transform, produce: members of a group fetch events from one topic, and append each
//! batch to another topic and commit their offsets, in one request.

use anyhow::{Context, ensure};
use clap::Args;
use memchr::memmem;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Common, Stage,
    connection::{Connection, Failure},
    counted,
    events::Shape,
    measure::{Report, SharedTally},
    read::fill,
    workers::{Run, Worker},
};

/// The maximum number of heartbeats until the partitions are balanced.
const REBALANCE_ROUNDS: usize = 100;

#[derive(Args)]
pub(in crate::cli) struct TransformFlags {
    /// Members of the group, each with its own connection and one batch at a time
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=1000))]
    members: u16,
    /// Events per batch
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=1000))]
    records_per_request: u16,
    /// Events in the source topic; append until it has as many
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u32).range(1..))]
    events: u32,
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) async fn run(flags: &TransformFlags, stage: &Stage) -> anyhow::Result<Report> {
    let source = format!("{}-source", stage.topic);
    let stored = store_events(flags, stage, &source).await?;
    let group = format!("/groups/bench-{}", Uuid::now_v7().simple());
    let mut members = Vec::new();
    for index in 0..usize::from(flags.members) {
        members.push(TransformMember::join(flags, stage, &group, &source, index).await?);
    }
    wait_for_balance(&members, stage.partitions).await?;
    let run = Run::measure(members, stage).await?;

    let mut report = stage.report("transform", run.finished.len());
    report.note("records_per_request", flags.records_per_request);
    report.note("stored", stored);
    let unresolved = run.failures() * u64::from(flags.records_per_request);
    run.report(&mut report, "turn", stage, unresolved).await?;
    for member in run.finished.iter().map(|finished| &finished.worker) {
        let left = member.connection.server.call("DELETE", &member.path, None).await;
        left.context("cannot leave the group")?;
    }
    if stage.is_created {
        stage.first().call("DELETE", &group, None).await.context("cannot delete the group")?;
        stage.first().call("DELETE", &format!("/topics/{source}"), None).await?;
    }
    Ok(report)
}

/// Fills the partitions of the source topic evenly.
async fn store_events(flags: &TransformFlags, stage: &Stage, source: &str) -> anyhow::Result<i64> {
    let wanted = json!({"partition_count": stage.partitions});
    let path = format!("/topics/{source}");
    stage.first().call("PUT", &path, Some(&wanted)).await.context("cannot create the topic")?;
    let shape =
        Shape { records: 100, record_bytes: stage.record_bytes, keyed: false, ids_of: None };
    let described = stage.first().call("GET", &path, None).await?;
    let partitions = described["partitions"].as_array().context("a topic without partitions")?;
    let mut stored = 0;
    for (index, partition) in partitions.iter().enumerate() {
        let count = partition["high_watermark"].as_i64().context("no high watermark")?;
        let missing = (i64::from(flags.events) / stage.partitions - count).max(0);
        let path = format!("{path}/partitions/{index}/records");
        let requests = usize::try_from(missing)?.div_ceil(shape.records);
        fill(stage, &path, requests, shape).await?;
        stored += count + (requests * shape.records) as i64;
    }
    Ok(stored)
}

/// Waits until every partition has an owner, and the load is balanced.
async fn wait_for_balance(members: &[TransformMember], partitions: i64) -> anyhow::Result<()> {
    let share = partitions.unsigned_abs().div_ceil(members.len() as u64);
    let mut bodies = vec![json!({}); members.len()];
    for _ in 0..REBALANCE_ROUNDS {
        let mut owned = Vec::new();
        for (member, body) in members.iter().zip(&mut bodies) {
            let path = format!("{}/heartbeat", member.path);
            let answer = member.connection.server.call("POST", &path, Some(body)).await?;
            // nothing was fetched yet, so every revoked partition can be released
            *body = json!({"generation": answer["generation"]});
            let assignment = answer["assignment"].as_array().context("no assignment")?.iter();
            let count = |topic: &Value| topic["partitions"].as_array().map_or(0, Vec::len) as u64;
            owned.push(assignment.map(count).sum::<u64>());
        }
        let all: u64 = owned.iter().sum();
        if all == partitions.unsigned_abs() && owned.iter().all(|owned| *owned <= share) {
            return Ok(());
        }
    }
    anyhow::bail!("the members did not balance the partitions")
}

struct TransformMember {
    connection: Connection,
    /// The member's own path, and the beginning of an append to the target.
    path: String,
    target: String,
    /// The beginning of an offset commit, up to the generation.
    offsets: String,
    limit: usize,
    record_bytes: usize,
    cursor: String,
    body: String,
}

impl TransformMember {
    async fn join(
        flags: &TransformFlags,
        stage: &Stage,
        group: &str,
        source: &str,
        index: usize,
    ) -> anyhow::Result<Self> {
        let server = stage.server(index);
        let join = json!({"topics": [source], "auto_offset_reset": "earliest"});
        let joined = server.call("POST", &format!("{group}/members"), Some(&join)).await;
        let joined = joined.context("cannot join the group")?;
        let member_id = joined["member_id"].as_str().context("a member without its id")?;
        let name = group.trim_start_matches("/groups/");
        let partition = index as u64 % stage.partitions.unsigned_abs();
        Ok(Self {
            connection: server.connect().await.context("cannot connect")?,
            path: format!("{group}/members/{member_id}"),
            target: format!(r#"{{"topic":"{}","partition":{partition},"records":["#, stage.topic),
            offsets: format!(r#"{{"group":"{name}","member_id":"{member_id}","generation":"#),
            limit: flags.records_per_request.into(),
            record_bytes: stage.record_bytes,
            cursor: String::new(),
            body: String::new(),
        })
    }
}

impl Worker for TransformMember {
    /// Fetches a batch and commits it; returns the number of its events.
    async fn operate(&mut self, tally: &SharedTally) -> Result<u64, Failure> {
        let path = format!("{}/records?limit={}{}", self.path, self.limit, self.cursor);
        let request = self.connection.server.request("GET", &path);
        let answer = self.connection.exchange(&request).await?;
        let batch = FetchedBatch::parse(answer, self.record_bytes)
            .map_err(|error| Failure::Foreign(format!("unexpected fetch: {error}")))?;
        let (events, cursor) = (batch.values.len() as u64, batch.cursor);
        if events == 0 {
            let what = "all events were read before the end of the run: give more --events";
            tally.lock().error("no_more_events", || what.into());
            return Ok(0);
        }
        self.body.clear();
        self.body += r#"{"appends":["#;
        self.body += &self.target;
        for (index, value) in batch.values.iter().enumerate() {
            self.body += if index == 0 { r#"{"value":"# } else { r#",{"value":"# };
            self.body += value;
            self.body += "}";
        }
        self.body += r#"]}],"offsets":["#;
        self.body += &self.offsets;
        self.body += &format!(r#"{},"cursor":"{cursor}"}}],"commit":true}}"#, batch.generation);
        self.cursor = format!("&cursor={cursor}");
        self.connection.post("/transactions", &self.body).await?;
        Ok(events)
    }

    fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// The relevant parts of a fetch's response.
#[derive(Debug, PartialEq, Eq)]
struct FetchedBatch<'a> {
    generation: u64,
    values: Vec<&'a str>,
    cursor: &'a str,
}

impl<'a> FetchedBatch<'a> {
    /// Parses a response. The events come from `events`: they have one size, and contain nothing
    /// that resembles a member.
    fn parse(answer: &'a [u8], record_bytes: usize) -> anyhow::Result<Self> {
        let answer = str::from_utf8(answer)?;
        let after = |name: &str| {
            let at = memmem::rfind(answer.as_bytes(), name.as_bytes());
            let at = at.with_context(|| format!("no {name}"))?;
            anyhow::Ok(&answer[at + name.len()..])
        };
        let generation = after("\"generation\":")?;
        let digits = generation.bytes().take_while(u8::is_ascii_digit).count();
        let (cursor, _) = after("\"cursor\":\"")?.split_once('"').context("half a cursor")?;
        let value = |at: usize| {
            let from = at + "\"value\":".len();
            answer.get(from..from + record_bytes).context("half a value")
        };
        let values = memmem::find_iter(answer.as_bytes(), b"\"value\":").map(value);
        let values = values.collect::<anyhow::Result<Vec<_>>>()?;
        let complete = values.iter().all(|value| value.starts_with('{') && value.ends_with('}'));
        ensure!(complete, "not all of {} are complete", counted(values.len() as u64, "event"));
        Ok(Self { generation: generation[..digits].parse()?, values, cursor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_parsed() {
        let text = r#"{"generation":12,"assignment":[{"topic":"t","partitions":[0]}],"revoked":[],
            "records":[{"topic":"t","partition":0,"offset":8,"value":{"a":1}},
            {"topic":"t","partition":0,"offset":9,"value":{"a":2}}],"cursor":"AbC-_"}"#;
        let values = vec![r#"{"a":1}"#, r#"{"a":2}"#];
        let batch = FetchedBatch::parse(text.as_bytes(), 7).unwrap();
        assert_eq!(batch, FetchedBatch { generation: 12, values, cursor: "AbC-_" });
        assert!(FetchedBatch::parse(text.as_bytes(), 6).is_err());
        assert!(FetchedBatch::parse(b"{}", 7).is_err());
    }
}
