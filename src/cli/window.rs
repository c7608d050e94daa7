//! A run of one producer in one scope: opens the session, and keeps a few sequenced requests in
//! flight. Answers are taken in the order of the sequences, so what is acknowledged has no gaps.

use std::{collections::VecDeque, sync::Arc};

use anyhow::{Context, bail};
use bytes::Bytes;
use reqwest::{Method, RequestBuilder, header::CONTENT_TYPE};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{
    client::{Client, Failure, Problem},
    lines::Batch,
};
use crate::model::Name;

const NDJSON: &str = "application/x-ndjson";

/// What is appended to: its sequences are counted by themselves.
pub(super) struct Scope {
    pub topic: Name,
    pub partition: Option<i32>,
}

impl Scope {
    fn path(&self) -> Vec<String> {
        let topic = self.topic.to_string();
        match self.partition {
            Some(partition) => {
                ["topics", &topic, "partitions", &partition.to_string(), "records"]
                    .map(String::from)
            }
            .into(),
            None => ["topics", &topic, "records"].map(String::from).into(),
        }
    }

    fn is(&self, item: &Value) -> bool {
        item["topic"] == self.topic.as_str()
            && item["partition"].as_i64() == self.partition.map(i64::from)
    }
}

#[derive(Deserialize)]
struct Opened {
    producer_id: i64,
    epoch: i64,
    next_sequences: Vec<Value>,
}

/// What was acknowledged of one batch.
#[derive(Deserialize)]
pub(super) struct Stored {
    /// It had been stored before.
    pub duplicate: bool,
    #[serde(skip)]
    pub records: u64,
    #[serde(skip)]
    pub end_byte: u64,
}

/// A session and its requests in flight.
pub(super) struct Window {
    client: Arc<Client>,
    path: Vec<String>,
    producer_id: i64,
    epoch: i64,
    /// Of the next batch.
    pub next_sequence: i64,
    limit: usize,
    in_flight: VecDeque<JoinHandle<anyhow::Result<Stored>>>,
}

impl Window {
    /// Opens the session, which ends every older run of the same transactional id.
    pub async fn open(
        client: Arc<Client>,
        scope: &Scope,
        transactional_id: Option<&Name>,
        limit: usize,
    ) -> anyhow::Result<Self> {
        let mut asked = json!({"open_id": Uuid::now_v7()});
        if let Some(name) = transactional_id {
            asked["transactional_id"] = name.as_str().into();
        }
        let open = client.request(Method::POST, &["sessions"], &[]).json(&asked);
        let opened: Opened = client.send(open).await.context("cannot open the session")?.json()?;
        let next_sequence = next_sequence(&client, scope, &opened).await?;
        Ok(Self {
            client,
            path: scope.path(),
            producer_id: opened.producer_id,
            epoch: opened.epoch,
            next_sequence,
            limit,
            in_flight: VecDeque::new(),
        })
    }

    fn request(&self, sequence: i64, body: Bytes) -> RequestBuilder {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let [producer, epoch, sequence] =
            [self.producer_id, self.epoch, sequence].map(|number| number.to_string());
        let query = [("producer_id", &*producer), ("epoch", &*epoch), ("sequence", &*sequence)];
        self.client.request(Method::POST, &path, &query).header(CONTENT_TYPE, NDJSON).body(body)
    }

    /// Sends the batch of the last sequence again: its digest tells whether this input is the one
    /// that was sent before.
    pub async fn check(&self, batch: Batch) -> anyhow::Result<()> {
        let sequence = self.next_sequence - 1;
        let (first, last) = (batch.lines.first().copied(), batch.lines.last().copied());
        match self.client.send(self.request(sequence, batch.body.into())).await {
            Err(Failure::Refused(problem)) if problem.code == "sequence_reused" => bail!(
                "lines {} to {} are not what was sent before as request {sequence}: give the same \
                 input and --batch-size as the run that is gone on with (also not a longer input, \
                 unless it ended with a full batch), or another --transactional-id",
                first.unwrap_or_default(),
                last.unwrap_or_default()
            ),
            answer => answer.context("cannot check the input").map(drop),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub fn has_room(&self) -> bool {
        self.in_flight.len() < self.limit
    }

    /// Sends the next batch, for which there must be room.
    pub fn send(&mut self, batch: Batch) {
        let sequence = self.next_sequence;
        // all before these were acknowledged
        let known = sequence - self.in_flight.len() as i64;
        let body = Bytes::from(batch.body);
        let (records, end_byte) = (batch.lines.len() as u64, batch.end_byte);
        let request = self.request(sequence, body);
        let client = self.client.clone();
        self.in_flight.push_back(tokio::spawn(async move {
            let stored = append(&client, request, known).await;
            let stored = stored.map_err(|failure| explain(failure, sequence, &batch.lines))?;
            Ok(Stored { records, end_byte, ..stored })
        }));
        self.next_sequence += 1;
    }

    /// Waits for the oldest request; none when all are answered. Given up, it loses nothing.
    pub async fn oldest(&mut self) -> anyhow::Result<Option<Stored>> {
        let Some(oldest) = self.in_flight.front_mut() else { return Ok(None) };
        let stored = oldest.await.context("a request panicked")?;
        self.in_flight.pop_front();
        stored.map(Some)
    }
}

/// What is in flight when a run fails must not go on without it.
impl Drop for Window {
    fn drop(&mut self) {
        self.in_flight.iter().for_each(JoinHandle::abort);
    }
}

async fn next_sequence(client: &Client, scope: &Scope, opened: &Opened) -> anyhow::Result<i64> {
    let number = |item: &Value| item["next_sequence"].as_i64().context("no next_sequence");
    if let Some(found) = opened.next_sequences.iter().find(|item| scope.is(item)) {
        return number(found);
    }
    // an open lists a thousand; nearly always that is all
    let mut found = None;
    if opened.next_sequences.len() >= crate::model::session::MAX_LISTED_SCOPES as usize {
        let path = ["sessions", &opened.producer_id.to_string(), "sequences"];
        let each = |item: &RawValue| {
            found = Some(serde_json::from_str(item.get())?).filter(|item| scope.is(item));
            Ok(found.is_none())
        };
        client.list(&path, "sequences", each).await?;
    }
    found.as_ref().map_or(Ok(0), number)
}

/// One batch, until it is stored. That the log waits for a sequence at or above `known` is no
/// failure: that one is on its way, and is being tried again like this one.
async fn append(client: &Client, request: RequestBuilder, known: i64) -> Result<Stored, Failure> {
    let overtook = |problem: &Problem| {
        ["out_of_order_sequence", "unknown_producer_state"].contains(&problem.code.as_str())
            && problem.expected.is_some_and(|expected| expected >= known)
    };
    let answer = client.send_while(request, overtook).await?;
    answer.json().map_err(|error| Failure::Foreign(format!("{error:#}")))
}

/// The failure in words of the input.
fn explain(failure: Failure, sequence: i64, lines: &[u64]) -> anyhow::Error {
    let Failure::Refused(problem) = &failure else { return failure.into() };
    let hint = match problem.code.as_str() {
        "producer_fenced" => {
            "another run with the same --transactional-id was started since, and this one is over. \
             If that was not meant, give each producer an id of its own"
        }
        "out_of_order_sequence" | "unknown_producer_state" => {
            "the log no longer knows what it has acknowledged to this run: was the topic deleted \
             and made again? Start with another --transactional-id"
        }
        "unknown_producer" => "the session is gone; start again to open another",
        "batch_too_large" | "payload_too_large" => {
            "give a smaller --batch-size; with the same --transactional-id only if nothing was \
             stored yet"
        }
        "invalid_request" => {
            "a line is a record such as {\"key\": \"a\", \"value\": 1}; for lines that are values \
             themselves there is --values, for lines of text --plain"
        }
        _ => return failure.into(),
    };
    let pointers = problem.errors.first().map(|mistake| mistake.pointer.as_str());
    let index = pointers.and_then(|pointer| pointer.strip_prefix("/records/")?.split('/').next());
    let line = index.and_then(|index| lines.get(index.parse::<usize>().ok()?));
    let place = match (line, lines.first()) {
        (Some(line), _) => format!("line {line}"),
        (None, first) => {
            format!("request {sequence}, from line {}", first.copied().unwrap_or_default())
        }
    };
    anyhow::anyhow!("{place}: {failure}\n{hint}")
}
