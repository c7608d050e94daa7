//! `oncelog produce`: appends the lines of a file to a topic, each exactly once, also when
//! restarted.

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
    client::Client,
    common::{counted, milliseconds, name},
    interrupted,
    server::ServerFlags,
};
use crate::model::Name;

const READ_AHEAD_BYTES: usize = 1 << 18;
const BATCH_SIZE: u32 = 100;
/// The default in a transaction, where each append costs a row per partition: the default of
/// `max_batch_records`.
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
  Without --values and --plain each line is a record as `consume` prints it: a JSON object with
  `value` or `value_base64`, and optionally `key`, `headers`, `timestamp`, `id`. Fields that a read
  adds (`offset`, `partition`, `topic`, `appended_at`, `transaction_id`) are ignored, so one topic
  can be piped into another. Empty lines are skipped, except with --plain.

Resuming:
  With --transactional-id, a run that was killed can be started again: it resumes where the log
  ends, and each line is stored once. Request n carries --batch-size records, from record
  n times --batch-size on; the server knows the next n, and the lines before it are skipped. So the
  input, --batch-size, --topic and --partition must be the same as before, and stdin must be sent
  again from its beginning. The last batch in the log is used to check that the input is the same.
  It is safe to start a second run at the same time: it fences the older one, which exits with
  code 1. Without --transactional-id every run is a new producer: it stores each line once, and
  the next run stores it once more.

Transactions:
  With --transaction-size N, every N lines are one transaction: readers see all of them at once, or
  none. Each transaction is one request with an id generated here, so one that is sent again, after
  a lost response or a crash of the server, is stored once. Transactions are sent one after the
  other, in the order of the lines. Each of their appends holds at most --batch-size records, and
  the limits of the topic (max_batch_records, max_batch_bytes) apply to it. A transaction is refused
  if it is larger than 16 MiB, the largest request, or has more than max_transaction_batches
  appends, where an append counts once for every partition it is spread over.

  With --transaction-id, a new id from `oncelog txn id`, a run that was killed can be started again:
  this is the id of the first transaction, the ids of the others count up from it, and the server
  knows which are committed. The input, --transaction-size, --batch-size, --topic and --partition
  must be the same as before. An id serves one input, for as long as the server remembers
  transactions (transaction_retention_ms, 7 days unless set): a request that uses it later is
  refused, never stored twice. It is safe to start a second run at the same time: both send the
  same transactions, and each is stored once. It opens no session, so there is no
  --transactional-id.

Retries:
  A request is sent again if it gets no response, or one that asks for it (`retry` is same or
  later), after a pause of at most 5 s (or what the response asks for), without limit unless
  --max-retry-ms is given.

Examples:
  oncelog produce orders.ndjson --topic orders --transactional-id import-7
  oncelog consume --topic orders | oncelog produce --topic copy --transactional-id copy-1
  journalctl -f | oncelog produce --topic lines --plain --batch-size 1
  id=$(oncelog txn id)
  oncelog produce orders.ndjson --topic orders --transaction-size 500 --transaction-id $id";

#[derive(Args)]
pub(super) struct ProduceFlags {
    /// Input file; stdin if absent or `-`
    file: Option<PathBuf>,
    /// Topic to append to
    #[arg(long, value_parser = name)]
    topic: Name,
    /// Append to this partition. Default: spread the records over all partitions by key
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Name of this producer; a run that is started again with it resumes where the log ends
    #[arg(long, value_name = "ID", value_parser = name)]
    transactional_id: Option<Name>,
    /// Each line is the value of a record, any JSON
    #[arg(long, conflicts_with = "plain")]
    values: bool,
    /// Each line is text, and the value of a record is that string
    #[arg(long)]
    plain: bool,
    /// Take the key from this field of the value (a string, number or boolean); a record that has a
    /// key keeps it
    #[arg(long, value_name = "FIELD", conflicts_with = "plain")]
    key_field: Option<String>,
    /// Records per append, which is one request unless --transaction-size is given [default: 100,
    /// in a transaction 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch_size: Option<u32>,
    /// Lines per transaction; each transaction is one request, and all its lines appear or none
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    transaction_size: Option<u32>,
    /// Id of the first transaction, from `oncelog txn id`; a run that is started again with it
    /// resumes where the log ends
    #[arg(long, value_name = "ID", requires = "transaction_size", value_parser = txn::id)]
    transaction_id: Option<Uuid>,
    /// Maximum number of requests in flight; transactions go one after the other [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    in_flight: Option<u8>,
    /// Give up when a request has been retried for this long, such as 30s; a number is in
    /// milliseconds [default: never]
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    max_retry_ms: Option<u64>,
    #[command(flatten)]
    server: ServerFlags,
}

/// What a run has stored so far.
#[derive(Default)]
struct Tally {
    records: u64,
    requests: u64,
    duplicates: u64,
    /// Requests that earlier runs stored.
    requests_before: i64,
}

impl ProduceFlags {
    /// How the run identifies itself, and how many lines one of its requests has.
    fn identity(&self) -> Result<(Identity, u32), WrongUsage> {
        let Some(size) = self.transaction_size else {
            let transactional_id = self.transactional_id.clone();
            let in_flight = usize::from(self.in_flight.unwrap_or(IN_FLIGHT));
            let identity = Identity::Session { transactional_id, in_flight };
            return Ok((identity, self.batch_size.unwrap_or(BATCH_SIZE)));
        };
        let refused = if self.transactional_id.is_some() {
            "--transactional-id names a producer of sequenced requests, but --transaction-size \
             sends transactions, which have ids: give --transaction-id (`oncelog txn id` creates \
             one) to be able to resume, or leave out --transaction-size"
        } else if self.in_flight.is_some() {
            "--in-flight does not apply with --transaction-size: transactions go one after the \
             other, in the order of the lines"
        } else if self.batch_size.is_some_and(|batch_size| batch_size > size) {
            "--batch-size is above --transaction-size, but it is the size of the appends in a \
             transaction: leave it out, or give a smaller one"
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
    let (input, size) = open_input(flags.file)?;
    let kind = match (flags.plain, flags.values) {
        (true, _) => LineKind::Text,
        (_, true) => LineKind::Value,
        _ => LineKind::Record,
    };
    let cutter = Cutter::new(input, kind, flags.key_field, (batch_size as usize, words.size));
    let patience = flags.max_retry_ms.map(Duration::from_millis);
    let mut client = Client::new(flags.server, patience)?;
    client.progress = progress_bar(size);
    let client = Arc::new(client);
    let destination = Destination { topic: flags.topic, partition: flags.partition };
    let begun = Instant::now();

    let (mut tally, mut signal) = (Tally::default(), None);
    let sent = tokio::select! {
        sent = async {
            let mut window = Window::open(client.clone(), &destination, &identity).await?;
            send_all(cutter, &mut window, &mut tally, &client, words).await
        } => sent,
        received = interrupted() => {
            signal = Some(received?);
            Err(anyhow!("interrupted"))
        }
    };
    client.progress.finish_and_clear();
    let stored = summary(&tally, &destination, &client, words, begun.elapsed());
    let Err(error) = sent else {
        client.notice(&stored);
        return Ok(());
    };
    let mut message = format!("{error:#}");
    if tally.requests > 0 {
        message += &format!("\nbefore that it {stored}");
    }
    let Some(signal) = signal else { return Err(anyhow!(message)) };
    message += &if identity.is_lasting() {
        "\nrun the same command again to resume where the log ends, with no line twice".to_owned()
    } else {
        format!("\nwithout {} the run cannot be resumed", words.id)
    };
    Err(Interrupted { signal, message }.into())
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
        let last =
            batches.recv().await.context("the thread that reads the input has stopped")??;
        client.progress.set_position(last.end_byte);
        window.check(last).await?;
    }
    loop {
        // a refusal must not wait for input that may never come
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
            // the batches before the faulty one are stored
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
    destination: &Destination,
    client: &Client,
    words: &Words,
    took: Duration,
) -> String {
    let seconds = took.as_secs_f64();
    let mut text = format!(
        "stored {} in {} to {} in {seconds:.1} s ({:.0}/s)",
        counted(tally.records, "record"),
        counted(tally.requests, words.unit),
        destination.topic,
        tally.records as f64 / seconds.max(0.001)
    );
    if tally.requests_before > 0 {
        let before = tally.requests_before.unsigned_abs();
        text += &format!("; skipped {} of earlier runs", counted(before, words.unit));
    }
    if client.repeats() > 0 {
        let (repeats, known) = (client.repeats(), tally.duplicates);
        text += &format!("; retried {}, {known} already stored", counted(repeats, "time"));
    }
    text
}

type Input = Box<dyn BufRead + Send>;

/// Opens the input; returns its size too if it is a file.
fn open_input(file: Option<PathBuf>) -> anyhow::Result<(Input, Option<u64>)> {
    let path = match file {
        Some(path) if path.as_os_str() != "-" => path,
        _ => return Ok((Box::new(BufReader::with_capacity(READ_AHEAD_BYTES, stdin())), None)),
    };
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let size = file.metadata().ok().filter(|about| about.is_file()).map(|about| about.len());
    Ok((Box::new(BufReader::with_capacity(READ_AHEAD_BYTES, file)), size))
}

/// Cuts the input into batches on its own thread, because reads may block; at most two batches
/// wait. The first batch is the last one that the log holds, if it holds any.
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

/// A progress bar; indicatif draws it only on a terminal.
fn progress_bar(size: Option<u64>) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => (ProgressBar::new(size), "{bar:30} {bytes}/{total_bytes} {msg} ({eta} left)"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} {msg}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
