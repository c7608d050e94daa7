//! The in-flight window of `produce`. Responses are taken in the order of the requests, so what is
//! acknowledged has no gaps.

use std::{collections::VecDeque, sync::Arc};

use anyhow::{Context, bail};
use reqwest::RequestBuilder;
use serde::Deserialize;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{
    Destination,
    input::Batch,
    session::{self, ProducerSession},
    transactions::{self, TransactionRun},
};
use crate::{
    cli::client::{Client, Failure, Problem},
    model::Name,
};

/// How a run and its requests are identified.
pub(in crate::cli) enum Identity {
    /// A session, with or without a name, and sequences.
    Session { transactional_id: Option<Name>, in_flight: usize },
    /// Transaction ids, which may count up from a first one; transactions go one after the other.
    Transactions { first: Option<Uuid>, batch_size: usize },
}

/// The names of an identity in messages.
pub(in crate::cli) struct Words {
    /// What a request is called.
    pub unit: &'static str,
    /// The flag that sets the number of lines of a request.
    pub size: &'static str,
    /// The flag that identifies the run.
    pub id: &'static str,
}

impl Identity {
    pub fn words(&self) -> &'static Words {
        match self {
            Self::Session { .. } => {
                &Words { unit: "request", size: "--batch-size", id: "--transactional-id" }
            }
            Self::Transactions { .. } => {
                &Words { unit: "transaction", size: "--transaction-size", id: "--transaction-id" }
            }
        }
    }

    /// Whether a restarted run can resume where this one ended.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Session { transactional_id, .. } => transactional_id.is_some(),
            Self::Transactions { first, .. } => first.is_some(),
        }
    }
}

/// The acknowledgement of one batch.
#[derive(Deserialize)]
pub(in crate::cli) struct StoredBatch {
    /// The server had stored it before.
    pub duplicate: bool,
    #[serde(skip)]
    pub records: u64,
    #[serde(skip)]
    pub end_byte: u64,
}

/// A run with its requests in flight.
pub(in crate::cli) struct Window {
    run: Arc<ProduceRun>,
    /// The number of the next batch: as many are in the log or in flight.
    pub next: i64,
    limit: usize,
    in_flight: VecDeque<JoinHandle<anyhow::Result<StoredBatch>>>,
}

struct ProduceRun {
    client: Arc<Client>,
    mode: Mode,
    words: &'static Words,
}

enum Mode {
    Session(ProducerSession),
    Transactions(TransactionRun),
}

impl Window {
    pub async fn open(
        client: Arc<Client>,
        destination: &Destination,
        identity: &Identity,
    ) -> anyhow::Result<Self> {
        let (mode, next, limit) = match identity {
            Identity::Session { transactional_id, in_flight } => {
                let opened =
                    ProducerSession::open(&client, destination, transactional_id.as_ref()).await?;
                (Mode::Session(opened.0), opened.1, *in_flight)
            }
            Identity::Transactions { first, batch_size } => {
                let opened =
                    TransactionRun::open(&client, destination, *first, *batch_size).await?;
                (Mode::Transactions(opened.0), opened.1, 1)
            }
        };
        let run = Arc::new(ProduceRun { client, mode, words: identity.words() });
        Ok(Self { run, next, limit, in_flight: VecDeque::new() })
    }

    /// Sends the last batch that the log holds again: the server compares its digest, and refuses
    /// another input.
    pub async fn check(&self, batch: Batch) -> anyhow::Result<()> {
        let number = self.next - 1;
        let (first, last) = (batch.lines.first().copied(), batch.lines.last().copied());
        let (request, _) = self.run.request(number, batch.body, &batch.lines)?;
        let Words { unit, size, id } = self.run.words;
        match self.run.client.send(request).await {
            Err(Failure::Refused(problem))
                if ["sequence_reused", "transaction_reused"].contains(&&*problem.code) =>
            {
                bail!(
                    "lines {} to {} are not what was sent before as {unit} {number}: to resume, \
                     give the same input and {size} as before (a longer input only if the last \
                     {unit} was full), or another {id}",
                    first.unwrap_or_default(),
                    last.unwrap_or_default()
                )
            }
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
        let (run, number) = (self.run.clone(), self.next);
        // all requests before those in flight are acknowledged
        let known = number - self.in_flight.len() as i64;
        let Batch { body, lines, end_byte } = batch;
        self.in_flight.push_back(tokio::spawn(async move {
            let (request, starts) = run.request(number, body, &lines)?;
            let stored = append(&run.client, request, known).await;
            let stored = stored.map_err(|failure| run.explain(failure, number, &lines, &starts))?;
            Ok(StoredBatch { records: lines.len() as u64, end_byte, ..stored })
        }));
        self.next += 1;
    }

    /// Waits for the oldest request; none when all are answered. It is safe to cancel.
    pub async fn oldest(&mut self) -> anyhow::Result<Option<StoredBatch>> {
        let Some(oldest) = self.in_flight.front_mut() else { return Ok(None) };
        let stored = oldest.await.context("a request panicked")?;
        self.in_flight.pop_front();
        stored.map(Some)
    }
}

/// A failed run must not leave requests in flight.
impl Drop for Window {
    fn drop(&mut self) {
        self.in_flight.iter().for_each(JoinHandle::abort);
    }
}

/// Sends one batch until it is stored. It is no failure if the server expects a sequence from
/// `known` on: that request is in flight, and is retried like this one.
async fn append(
    client: &Client,
    request: RequestBuilder,
    known: i64,
) -> Result<StoredBatch, Failure> {
    let has_overtaken = |problem: &Problem| {
        ["out_of_order_sequence", "unknown_producer_state"].contains(&problem.code.as_str())
            && problem.expected.is_some_and(|expected| expected >= known)
    };
    let answer = client.send_while(request, has_overtaken).await?;
    answer.json().map_err(|error| Failure::Foreign(format!("{error:#}")))
}

impl ProduceRun {
    /// Builds a request, the same every time; for a transaction also the index of the first record
    /// of each append.
    fn request(
        &self,
        number: i64,
        ndjson: Vec<u8>,
        lines: &[u64],
    ) -> anyhow::Result<(RequestBuilder, Vec<usize>)> {
        match &self.mode {
            Mode::Session(session) => {
                Ok((session.request(&self.client, number, ndjson), Vec::new()))
            }
            Mode::Transactions(transactions) => {
                transactions.request(&self.client, number, &ndjson, lines)
            }
        }
    }

    /// Explains a failure in terms of the input's lines.
    fn explain(
        &self,
        failure: Failure,
        number: i64,
        lines: &[u64],
        starts: &[usize],
    ) -> anyhow::Error {
        let Failure::Refused(problem) = &failure else { return failure.into() };
        let hint = match (&self.mode, problem.code.as_str()) {
            (_, "invalid_request") => Some(
                "a line is a record such as {\"key\": \"a\", \"value\": 1}; use --values if lines \
                 are values, --plain if they are text",
            ),
            (Mode::Session(_), _) => session::hint_for(problem),
            (Mode::Transactions(_), _) => transactions::hint_for(problem),
        };
        let Some(hint) = hint else { return failure.into() };
        let record = problem.errors.first().and_then(|error| record_at(&error.pointer, starts));
        let place = match (record.and_then(|record| lines.get(record)), lines.first()) {
            (Some(line), _) => format!("line {line}"),
            (None, first) => {
                let first = first.copied().unwrap_or_default();
                format!("{} {number}, from line {first}", self.words.unit)
            }
        };
        anyhow::anyhow!("{place}: {failure}\n{hint}")
    }
}

/// The index of the record that a pointer names: `/records/7/value`, or in a transaction
/// `/appends/1/records/7/value`.
fn record_at(pointer: &str, starts: &[usize]) -> Option<usize> {
    let mut parts = pointer.split('/').skip(1);
    let mut start = 0;
    let mut part = parts.next()?;
    if part == "appends" {
        start = *starts.get(parts.next()?.parse::<usize>().ok()?)?;
        part = parts.next()?;
    }
    let index: usize = parts.next().filter(|_| part == "records")?.parse().ok()?;
    Some(start + index)
}

#[cfg(test)]
mod tests {
    use super::record_at;

    #[test]
    fn pointers_lead_to_records() {
        let starts = [0, 100];
        let table = [
            ("/records/7/value", Some(7)),
            ("/records/7", Some(7)),
            ("/appends/0/records/7", Some(7)),
            ("/appends/1/records/7/value", Some(107)),
            ("/appends/2/records/7", None),
            ("/appends/1/topic", None),
            ("/producer_id", None),
            ("", None),
        ];
        for (pointer, want) in table {
            assert_eq!(record_at(pointer, &starts), want, "{pointer}");
        }
    }
}
