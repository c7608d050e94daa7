//! `oncelog produce`: a file into a topic, each line once, however often it is started.

pub mod input;
pub mod session;
pub mod transactions;
pub mod window;

use std::{
    fs::File,
    io::{BufRead, BufReader, stdin},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;

use uuid::Uuid;

use self::{
    input::{Batch, Cutter, LineKind},
    window::{Identity, StoredBatch, Window, Words},
};
use super::{
    Interrupted, WrongUsage,
    admin::txn,
    block_on,
    client::{Client, ServerFlags, counted},
    common::name,
    interrupted,
};
use crate::model::Name;

const READ_AHEAD_BYTES: usize = 1 << 18;
const BATCH_SIZE: u32 = 100;
/// Of an append in a transaction, which makes a row for every partition: as many as a topic takes
/// unless set.
const BATCH_SIZE_IN_TRANSACTION: u32 = 1_000;
const IN_FLIGHT: u8 = 5;

/// What is appended to.
pub(in crate::cli) struct Destination {
    pub topic: Name,
    pub partition: Option<i32>,
}

pub(super) const EXAMPLE: &str = "\
Example:
  oncelog produce orders.ndjson --topic orders --transactional-id import-7";

pub(super) const HELP: &str = "\
Lines:
  Without --values and --plain a line is a record as `consume` prints it: a JSON object with
  `value` or `value_base64`, and perhaps `key`, `headers`, `timestamp`, `id`. What a read adds
  (`offset`, `partition`, `topic`, `appended_at`, `transaction_id`) is passed over, so that one
  topic can be piped into another. Empty lines count for nothing, save with --plain.

Starting again:
  With --transactional-id, a run that was killed can be started again and goes on where the log
  ends, so that each line is stored once. Request n carries --batch-size records from number
  n times --batch-size on; the log knows which n is next, and the lines before it are passed over.
  So the input, --batch-size, --topic and --partition must be the same as before, and stdin must be
  sent again from its beginning. Whether the input is the same is checked with the last batch that
  the log holds. To start it twice at a time is safe, too: the older run is fenced, and ends with
  exit code 1. Without --transactional-id every run is a new producer: each line is stored once by
  this run, and once more by the next.

Transactions:
  With --transaction-size N, each N lines are one transaction: readers see all of them in one
  instant, or none. Each is one request with an id made here, so one that is sent again, after a
  lost answer or a killed server, is stored once. They go one after the other, in the order of the
  lines. A transaction holds appends of --batch-size records at most, for which the limits of the
  topic hold (max_batch_records, max_batch_bytes). It is refused when it is larger than 16 MiB,
  which is the largest request, or holds more than max_transaction_batches appends, each counted
  once for every partition that it is spread over.

  With --transaction-id, a new id that `oncelog txn id` has made, a run that was killed can be
  started again: that is the id of the first transaction, those of the others count on from it, and
  the log knows which it has committed. The input, --transaction-size, --batch-size, --topic and
  --partition must be the same as before. An id serves for one input, and for as long as
  transactions are remembered (transaction_retention_ms, 7 days unless set): what is sent under it
  later is refused, never stored twice. To start it twice at a time is safe: both send the same
  transactions, and each is stored once. No session is opened, so there is no --transactional-id.

Trying again:
  What gets no answer, or one that asks for it (`retry` is same or later), is sent again after a
  pause of at most 5 s (or what the answer asks for), for ever unless --max-retry-ms is given.

Examples:
  oncelog produce orders.ndjson --topic orders --transactional-id import-7
  oncelog consume --topic orders | oncelog produce --topic copy --transactional-id copy-1
  journalctl -f | oncelog produce --topic lines --plain --batch-size 1
  id=$(oncelog txn id)
  oncelog produce orders.ndjson --topic orders --transaction-size 500 --transaction-id $id";

#[derive(Args)]
pub(super) struct ProduceFlags {
    /// The input; stdin if absent or `-`
    file: Option<PathBuf>,
    /// The topic to append to
    #[arg(long, value_parser = name)]
    topic: Name,
    /// Append all to this partition; without it records are spread over all partitions by key
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// A name for this input; started again with it, a run goes on where the log ends
    #[arg(long, value_name = "ID", value_parser = name)]
    transactional_id: Option<Name>,
    /// Each line is the value of a record: any JSON
    #[arg(long, conflicts_with = "plain")]
    values: bool,
    /// Each line is text: the value is a string
    #[arg(long)]
    plain: bool,
    /// Take the key from this field of the value (a string, number or truth value); a record that
    /// has a key keeps it
    #[arg(long, value_name = "FIELD", conflicts_with = "plain")]
    key_field: Option<String>,
    /// Records in one append, which is one request unless there is --transaction-size [default: 100,
    /// in a transaction 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch_size: Option<u32>,
    /// Publish so many lines at a time, all or none, each time in a transaction of one request
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    transaction_size: Option<u32>,
    /// The id of the first transaction, from `oncelog txn id`; started again with it, a run goes on
    /// where the log ends
    #[arg(long, value_name = "ID", requires = "transaction_size", value_parser = txn::id)]
    transaction_id: Option<Uuid>,
    /// Most requests on their way at a time; transactions go one after the other [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    in_flight: Option<u8>,
    /// Give up when one request has been tried for so long [default: never]
    #[arg(long, value_name = "MS")]
    max_retry_ms: Option<u64>,
    #[command(flatten)]
    server: ServerFlags,
}

/// What a run has done.
#[derive(Default)]
struct Tally {
    records: u64,
    requests: u64,
    duplicates: u64,
    /// Of earlier runs.
    requests_before: i64,
}

impl ProduceFlags {
    /// Who runs, and how many lines one of its requests has.
    fn identity(&self) -> Result<(Identity, u32), WrongUsage> {
        let Some(size) = self.transaction_size else {
            let transactional_id = self.transactional_id.clone();
            let in_flight = usize::from(self.in_flight.unwrap_or(IN_FLIGHT));
            let identity = Identity::Session { transactional_id, in_flight };
            return Ok((identity, self.batch_size.unwrap_or(BATCH_SIZE)));
        };
        let refused = if self.transactional_id.is_some() {
            "--transactional-id names a producer of numbered requests, and --transaction-size sends \
             transactions, which have ids: give --transaction-id (`oncelog txn id` makes one) to \
             start it again where it ended, or leave --transaction-size out"
        } else if self.in_flight.is_some() {
            "--in-flight is for requests without --transaction-size: transactions go one after the \
             other, so that they stand in the order of the lines"
        } else if self.batch_size.is_some_and(|batch_size| batch_size > size) {
            "--batch-size is above --transaction-size, but it is the size of the appends that a \
             transaction holds: leave it out, or give a smaller one"
        } else {
            let batch_size = self.batch_size.unwrap_or(BATCH_SIZE_IN_TRANSACTION) as usize;
            return Ok((Identity::Transactions { first: self.transaction_id, batch_size }, size));
        };
        Err(WrongUsage(refused.into()))
    }
}

pub(super) fn run(flags: ProduceFlags) -> anyhow::Result<()> {
    block_on(produce(flags))
}

async fn produce(flags: ProduceFlags) -> anyhow::Result<()> {
    let (identity, batch_size) = flags.identity()?;
    let words = identity.words();
    let (input, size) = input(flags.file)?;
    let kind = match (flags.plain, flags.values) {
        (true, _) => LineKind::Text,
        (_, true) => LineKind::Value,
        _ => LineKind::Record,
    };
    let cutter = Cutter::new(input, kind, flags.key_field, (batch_size as usize, words.size));
    let patience = flags.max_retry_ms.map(Duration::from_millis);
    let mut client = Client::new(flags.server, patience)?;
    client.progress = progress(size);
    let client = Arc::new(client);
    let scope = Destination { topic: flags.topic, partition: flags.partition };
    let begun = Instant::now();

    let (mut tally, mut signal) = (Tally::default(), None);
    let sent = tokio::select! {
        sent = async {
            let mut window = Window::open(client.clone(), &scope, &identity).await?;
            send_all(cutter, &mut window, &mut tally, &client, words).await
        } => sent,
        interrupted = interrupted() => {
            signal = Some(interrupted?);
            Err(anyhow!("interrupted"))
        }
    };
    client.progress.finish_and_clear();
    let stored = summary(&tally, &scope, &client, words, begun.elapsed());
    let Err(error) = sent else {
        client.notice(&stored);
        return Ok(());
    };
    let mut told = format!("{error:#}");
    if tally.requests > 0 {
        told += &format!("\nbefore that it {stored}");
    }
    let Some(signal) = signal else { return Err(anyhow!(told)) };
    told += &if identity.is_lasting() {
        "\nthe same command goes on where the log ends, and stores no line twice".to_owned()
    } else {
        format!("\nwithout {} it cannot be gone on with", words.id)
    };
    Err(Interrupted { signal, told }.into())
}

async fn send_all(
    cutter: Cutter<Input>,
    window: &mut Window,
    tally: &mut Tally,
    client: &Client,
    words: &'static Words,
) -> anyhow::Result<()> {
    tally.requests_before = window.next;
    let mut batches = read_ahead(cutter, window.next, words);
    if window.next > 0 {
        let last = batches.recv().await.context("the reader of the input is gone")??;
        client.progress.set_position(last.end_byte);
        window.check(last).await?;
    }
    loop {
        // whichever comes first: a refusal must not wait for input that may never come
        let batch = tokio::select! {
            biased;
            stored = window.oldest(), if !window.is_idle() => {
                stored?.iter().for_each(|stored| tally.count(stored, client));
                continue;
            }
            batch = batches.recv(), if window.has_room() => batch,
        };
        match batch {
            Some(Ok(batch)) => window.send(batch),
            // what was read well is stored, also when what follows is not
            Some(Err(error)) => {
                finish(window, tally, client).await?;
                return Err(error);
            }
            None => return finish(window, tally, client).await,
        }
    }
}

async fn finish(window: &mut Window, tally: &mut Tally, client: &Client) -> anyhow::Result<()> {
    while let Some(stored) = window.oldest().await? {
        tally.count(&stored, client);
    }
    Ok(())
}

impl Tally {
    fn count(&mut self, stored: &StoredBatch, client: &Client) {
        self.records += stored.records;
        self.requests += 1;
        self.duplicates += u64::from(stored.duplicate);
        client.progress.set_position(stored.end_byte);
        let rate = self.records as f64 / client.progress.elapsed().as_secs_f64().max(0.001);
        client.progress.set_message(format!("{} records, {rate:.0}/s", self.records));
    }
}

fn summary(
    tally: &Tally,
    scope: &Destination,
    client: &Client,
    words: &Words,
    took: Duration,
) -> String {
    let seconds = took.as_secs_f64();
    let mut text = format!(
        "stored {} in {} to {} in {seconds:.1} s ({:.0}/s)",
        counted(tally.records, "record"),
        counted(tally.requests, words.unit),
        scope.topic,
        tally.records as f64 / seconds.max(0.001)
    );
    if tally.requests_before > 0 {
        let before = tally.requests_before.unsigned_abs();
        text += &format!("; {} of earlier runs passed over", counted(before, words.unit));
    }
    if client.repeats() > 0 {
        let (repeats, known) = (client.repeats(), tally.duplicates);
        text += &format!("; sent again {}, known already {known}", counted(repeats, "time"));
    }
    text
}

type Input = Box<dyn BufRead + Send>;

/// The input and, of a file, its size.
fn input(file: Option<PathBuf>) -> anyhow::Result<(Input, Option<u64>)> {
    let path = match file {
        Some(path) if path.as_os_str() != "-" => path,
        _ => return Ok((Box::new(BufReader::with_capacity(READ_AHEAD_BYTES, stdin())), None)),
    };
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let size = file.metadata().ok().filter(|about| about.is_file()).map(|about| about.len());
    Ok((Box::new(BufReader::with_capacity(READ_AHEAD_BYTES, file)), size))
}

/// Cuts the input on a thread of its own, for reads may block; two batches wait at most. The first
/// is the last one that the log holds, if it holds any.
fn read_ahead(
    mut cutter: Cutter<Input>,
    held: i64,
    words: &'static Words,
) -> mpsc::Receiver<anyhow::Result<Batch>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut first = || -> anyhow::Result<Option<Batch>> {
            if held == 0 {
                return cutter.next();
            }
            let skipped = cutter.skip(held - 1)?;
            if let Some(batch) = cutter.next()? {
                return Ok(Some(batch));
            }
            let Words { unit, size, id } = words;
            bail!(
                "the log holds {} of this {id}, but the input has only {skipped}: give the same \
                 input and {size} as before, or another {id}",
                counted(held.unsigned_abs(), unit)
            );
        };
        let mut next = first().transpose();
        while let Some(batch) = next {
            let failed = batch.is_err();
            if sender.blocking_send(batch).is_err() || failed {
                return;
            }
            next = cutter.next().transpose();
        }
    });
    receiver
}

/// On a terminal; elsewhere it draws nothing.
fn progress(size: Option<u64>) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => (ProgressBar::new(size), "{bar:30} {bytes}/{total_bytes} {msg} ({eta} left)"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} {msg}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
