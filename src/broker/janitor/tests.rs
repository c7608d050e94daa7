use std::{collections::VecDeque, sync::Mutex};

use super::*;
use crate::store::{Store, janitor::Chunk};

/// Writes down what it is asked for. An item is a name and how it goes: `.` a chunk, `x` a lock
/// that is not had, `!` a failure.
struct Scripted {
    due: Mutex<Vec<&'static str>>,
    log: Arc<Mutex<String>>,
}

impl Task for Scripted {
    const NAME: &'static str = "trim";
    type Item = Arc<Mutex<VecDeque<char>>>;

    async fn due(&self, _: &Broker) -> Result<Vec<Self::Item>, store::Error> {
        self.log.lock().unwrap().push('?');
        let due = std::mem::take(&mut *self.due.lock().unwrap());
        Ok(due.into_iter().map(|text| Arc::new(Mutex::new(text.chars().collect()))).collect())
    }

    async fn chunk(&self, _: &Broker, item: Self::Item, _: i64) -> Result<Chunk, store::Error> {
        let mut item = item.lock().unwrap();
        let name = item.pop_front().unwrap();
        self.log.lock().unwrap().push(name);
        let how = item.pop_front().unwrap();
        item.push_front(name);
        match how {
            'x' => Err(store::Error::overtaken()),
            '!' => Err(store::Error::Unexpected("as the test wants it".into())),
            _ => Ok(Chunk { rows: 1, more: item.len() > 1 }),
        }
    }
}

/// What is asked for in rounds that end when nothing is left, or each after one chunk.
async fn rounds(due: &[&'static str], time: Duration, count: usize) -> String {
    let options = "postgres://nobody@localhost:1/nothing".parse().unwrap();
    let broker = Broker::start_without_janitor(Store::new(options, 1), ServiceConfig::default());
    let log = Arc::new(Mutex::new(String::new()));
    let task = task(Scripted { due: Mutex::new(due.to_vec()), log: log.clone() });
    for _ in 0..count {
        let failed = task.round(&broker, time).await.is_err();
        log.lock().unwrap().push_str(if failed { "! " } else { " " });
    }
    broker.stop().await;
    let log = log.lock().unwrap();
    log.trim_end().to_owned()
}

#[tokio::test]
async fn items_take_turns_and_none_stops_those_behind_it() {
    for (due, want) in [
        (&["a.", "b."][..], "?ab ?"),
        (&["a...", "b.", "c.."], "?abcaca ?"),
        // somebody is at it: the others go on
        (&["a..", "bx", "c."], "?abca ?"),
        // a failure ends the round; the next one begins with those behind it
        (&["a...", "b!", "c.."], "?ab! caca?"),
    ] {
        assert_eq!(rounds(due, Duration::MAX, 2).await, want, "{due:?}");
    }
}

#[tokio::test]
async fn a_round_whose_time_is_over_leaves_the_rest_to_the_next() {
    for (due, want) in [
        (&[][..], "? ? ? ?"),
        (&["a.", "b."], "?a b ? ?"),
        (&["a..", "b.", "c."], "?a b c a"),
        (&["a..", "b!", "c."], "?a b! c a"),
    ] {
        assert_eq!(rounds(due, Duration::ZERO, 4).await, want, "{due:?}");
    }
}

/// What is logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_first_failure_is_logged_and_ever_fewer_of_those_that_follow() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_thread_names(true);
    let subscriber = subscriber.with_writer(move || writer.clone()).finish();
    // For all threads: with one for this thread alone, lines that other tests reach first are taken
    // for lines that nobody listens to.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let earlier = lines.0.lock().unwrap().len();
    rounds(&["a!", "b!", "c!", "d!", "e!", "f."], Duration::MAX, 7).await;
    let logged = String::from_utf8(lines.0.lock().unwrap()[earlier..].to_vec()).unwrap();
    let thread = std::thread::current().name().unwrap().to_owned();
    let failures = |word: &str| -> Vec<String> {
        let of = logged.lines().filter(|line| line.contains(&thread) && line.contains(word));
        of.filter_map(|line| Some(line.split_once("failures=")?.1.to_owned())).collect()
    };
    assert_eq!(failures("a janitor task failed"), ["1", "2", "4"], "{logged}");
    assert_eq!(failures("succeeds again"), ["5"], "{logged}");
}
