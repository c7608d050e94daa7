//! `oncelog produce`: a file into a topic, each line once, however often it is started.

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

use super::{
    Interrupted, block_on,
    client::{Client, ServerFlags, counted},
    interrupted,
    lines::{Batch, Cutter, Kind},
    topic::name,
    window::{Scope, Stored, Window},
};
use crate::model::Name;

const READ_AHEAD_BYTES: usize = 1 << 18;

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

Trying again:
  What gets no answer, or one that asks for it (`retry` is same or later), is sent again after a
  pause of at most 5 s (or what the answer asks for), for ever unless --max-retry-ms is given.

Examples:
  oncelog produce orders.ndjson --topic orders --transactional-id import-7
  oncelog consume --topic orders | oncelog produce --topic copy --transactional-id copy-1
  journalctl -f | oncelog produce --topic lines --plain --batch-size 1";

#[derive(Args)]
pub(super) struct Flags {
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
    /// Records in one request
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch_size: u32,
    /// Most requests on their way at a time
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u8).range(1..=5))]
    in_flight: u8,
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

pub(super) fn run(flags: Flags) -> anyhow::Result<()> {
    block_on(produce(flags))
}

async fn produce(flags: Flags) -> anyhow::Result<()> {
    let (input, size) = input(flags.file)?;
    let kind = match (flags.plain, flags.values) {
        (true, _) => Kind::Text,
        (_, true) => Kind::Value,
        _ => Kind::Record,
    };
    let cutter = Cutter::new(input, kind, flags.key_field, flags.batch_size as usize);
    let patience = flags.max_retry_ms.map(Duration::from_millis);
    let mut client = Client::new(flags.server, patience)?;
    client.progress = progress(size);
    let client = Arc::new(client);
    let scope = Scope { topic: flags.topic, partition: flags.partition };
    let begun = Instant::now();

    let (name, limit) = (flags.transactional_id.as_ref(), usize::from(flags.in_flight));
    let (mut tally, mut signal) = (Tally::default(), None);
    let sent = tokio::select! {
        sent = async {
            let mut window = Window::open(client.clone(), &scope, name, limit).await?;
            send_all(cutter, &mut window, &mut tally, &client).await
        } => sent,
        interrupted = interrupted() => {
            signal = Some(interrupted?);
            Err(anyhow!("interrupted"))
        }
    };
    client.progress.finish_and_clear();
    let stored = summary(&tally, &scope, &client, begun.elapsed());
    let Err(error) = sent else {
        client.notice(&stored);
        return Ok(());
    };
    let mut told = format!("{error:#}");
    if tally.requests > 0 {
        told += &format!("\nbefore that it {stored}");
    }
    let Some(signal) = signal else { return Err(anyhow!(told)) };
    told += match name {
        Some(_) => "\nthe same command goes on where the log ends, and stores no line twice",
        None => "\nwithout --transactional-id it cannot be gone on with",
    };
    Err(Interrupted { signal, told }.into())
}

async fn send_all(
    cutter: Cutter<Input>,
    window: &mut Window,
    tally: &mut Tally,
    client: &Client,
) -> anyhow::Result<()> {
    tally.requests_before = window.next_sequence;
    let mut batches = read_ahead(cutter, window.next_sequence);
    if window.next_sequence > 0 {
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
    fn count(&mut self, stored: &Stored, client: &Client) {
        self.records += stored.records;
        self.requests += 1;
        self.duplicates += u64::from(stored.duplicate);
        client.progress.set_position(stored.end_byte);
        let rate = self.records as f64 / client.progress.elapsed().as_secs_f64().max(0.001);
        client.progress.set_message(format!("{} records, {rate:.0}/s", self.records));
    }
}

fn summary(tally: &Tally, scope: &Scope, client: &Client, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    let mut text = format!(
        "stored {} in {} to {} in {seconds:.1} s ({:.0}/s)",
        counted(tally.records, "record"),
        counted(tally.requests, "request"),
        scope.topic,
        tally.records as f64 / seconds.max(0.001)
    );
    if tally.requests_before > 0 {
        let before = tally.requests_before.unsigned_abs();
        text += &format!("; {} of earlier runs passed over", counted(before, "request"));
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
    next_sequence: i64,
) -> mpsc::Receiver<anyhow::Result<Batch>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut first = || -> anyhow::Result<Option<Batch>> {
            if next_sequence == 0 {
                return cutter.next();
            }
            let skipped = cutter.skip(next_sequence - 1)?;
            if let Some(batch) = cutter.next()? {
                return Ok(Some(batch));
            }
            bail!(
                "the log holds {} of this transactional id, but the input has only {skipped}: \
                 give the same input and --batch-size as before, or another --transactional-id",
                counted(next_sequence.unsigned_abs(), "request")
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
