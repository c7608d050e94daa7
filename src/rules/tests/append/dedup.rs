//! The outcome of records with ids and of requests with keys, as a table: known keys, request,
//! decision.
//!
//! ```text
//! a=1@5 b=2@gone c=3! d~ | a=1 - b=9 -> at 5, new, reused /records/2
//! ```
//!
//! Before the bar: `a` is known with payload 1 at offset 5, `b` at one that has left the log, `c`
//! is held by a prepared transaction, `d` was reserved in this batch. After it the records in
//! order, `-` one without an id; `refuse:` refuses duplicates.

use crate::{
    model::{
        Timestamp, TopicId,
        dedup::{RequestKey, id_key},
        transaction::ID_AHEAD_MS,
    },
    rules::{
        Refusal,
        append::dedup::{
            Dedup, Fact, KeyedRecord, Known, KnownRecord, RecordVerdict, Stopped, check_instant,
        },
        tests::{JOURNAL, text},
    },
};

pub const TOPIC: TopicId = TopicId(7);

/// A record of part 0 with 10 bytes, distinguished only by id and payload.
pub fn record(index: usize, part: usize, id: Option<&str>, payload: i64) -> KeyedRecord {
    KeyedRecord { append: None, index, part, key: id.map(id_key), digest: payload, size_bytes: 10 }
}

pub fn dedup_of(records: Vec<KeyedRecord>) -> Dedup {
    Dedup {
        journal: JOURNAL,
        topic_id: TOPIC,
        window_ms: Some(600_000),
        records,
        refuses_duplicates: false,
        request_key: None,
    }
}

pub fn seen(offset: Option<i64>) -> KnownRecord {
    KnownRecord { partition: 3, offset, first_seen_at: Timestamp(40) }
}

fn payload(text: &str) -> i64 {
    text.parse().unwrap()
}

/// The known keys, parsed.
fn known(words: &str) -> Known {
    let mut known = Known::default();
    for word in words.split_whitespace() {
        if let Some(id) = word.strip_suffix('~') {
            known.claim(&dedup_of(vec![record(0, 0, Some(id), 0)]), &[RecordVerdict::New]);
            continue;
        }
        let (id, rest) = word.split_once('=').unwrap();
        let fact = match (rest.strip_suffix('!'), rest.split_once('@')) {
            (Some(digest), _) => {
                Fact::Held { digest: payload(digest), transaction_id: uuid::Uuid::nil() }
            }
            (_, Some((digest, at))) => {
                Fact::Record { digest: payload(digest), seen: seen(at.parse().ok()) }
            }
            _ => panic!("{word}?"),
        };
        known.facts.insert((TOPIC, id_key(id)), fact);
    }
    known
}

fn show(stopped: Stopped) -> String {
    let at = |what: &str, records: Vec<String>| format!("{what} {}", records.join(" "));
    match stopped {
        Stopped::RetryNextBatch => "later".into(),
        Stopped::Refused(Refusal::RecordIdReused { records }) => at("reused", records),
        Stopped::Refused(Refusal::DuplicateRecord { records }) => at("duplicate", records),
        Stopped::Refused(Refusal::RecordHeld { .. }) => "held".into(),
        Stopped::Refused(Refusal::IdempotencyKeyReused) => "reused".into(),
        Stopped::Refused(Refusal::IdempotencyKeyExpired) => "expired".into(),
        Stopped::Refused(Refusal::IdempotencyKeyAhead) => "ahead".into(),
        Stopped::Refused(other) => panic!("{other:?}"),
    }
}

fn verdict(verdict: &RecordVerdict) -> String {
    match verdict {
        RecordVerdict::New => "new".into(),
        RecordVerdict::Same(first) => format!("as {first}"),
        RecordVerdict::Known(KnownRecord { offset: Some(offset), .. }) => format!("at {offset}"),
        RecordVerdict::Known(_) => "gone".into(),
    }
}

fn check(table: &str) {
    text::check(table, |facts, sent| {
        let (sent, refuses_duplicates) = match sent.strip_prefix("refuse:") {
            Some(sent) => (sent, true),
            None => (sent, false),
        };
        let records = sent.split_whitespace().enumerate().map(|(index, word)| match word {
            "-" => record(index, 0, None, 0),
            _ => {
                let (id, digest) = word.split_once('=').unwrap();
                record(index, 0, Some(id), payload(digest))
            }
        });
        let dedup = Dedup { refuses_duplicates, ..dedup_of(records.collect()) };
        match known(facts).judge(&dedup) {
            Ok(verdicts) => verdicts.iter().map(verdict).collect::<Vec<_>>().join(", "),
            Err(stopped) => show(stopped),
        }
    });
}

#[test]
fn known_records_answer_their_first_place_and_others_are_new() {
    check(
        "                 | a=1 b=2 -         -> new, new, new
         a=1@5            | a=1 b=1           -> at 5, new
         a=1@gone         | a=1               -> gone
         a=1@5            | - - b=1           -> new, new, new
                          | a=1 a=1 b=1 a=1   -> new, as 0, new, as 0
                          | - b=1 - b=1       -> new, new, new, as 1
         a=1@5            | a=1 a=1           -> at 5, as 0",
    );
}

#[test]
fn an_id_belongs_to_what_it_first_came_with() {
    check(
        "a=1@5            | a=2               -> reused /records/0
                          | a=1 a=2 a=1 a=3   -> reused /records/1 /records/3
         a=1@5            | a=1 a=2           -> reused /records/1
         a=1@5            | a=2 a=2 b=1       -> reused /records/0
         a=1@gone         | - a=2             -> reused /records/1",
    );
}

#[test]
fn duplicates_are_refused_where_that_is_asked_for_but_reuse_and_holders_come_first() {
    check(
        "a=1@5            | refuse: a=1 b=1   -> duplicate /records/0
                          | refuse: b=1 - b=1 -> duplicate /records/2
         a=1@5            | refuse: a=1 a=1   -> duplicate /records/0 /records/1
                          | refuse: a=1 b=1 - -> new, new, new
         a=1@5            | refuse: a=1 b=1 b=2 -> reused /records/2
         a=1@5 b=1!       | refuse: a=1 b=1   -> held
         a=1!             | a=1               -> held
         a=1!             | a=2               -> reused /records/0
         a=1! b=1@5       | a=1 b=2           -> reused /records/1
         a=1!             | b=1               -> new",
    );
}

#[test]
fn a_key_reserved_in_this_batch_is_judged_in_the_next_one() {
    check(
        "a~               | a=1               -> later
         b~               | a=1 b=1           -> later
         b~ a=1@5         | a=1 c=1           -> at 5, new
         a~ b=1@5         | b=2 a=1           -> later
         a~               | - -               -> new, new",
    );
}

#[test]
fn only_new_keys_are_reserved_and_only_in_their_topic() {
    let mut known = known("a=1@5");
    let sent = ["a", "b", "b"].iter().enumerate();
    let records: Vec<KeyedRecord> = sent.map(|(at, id)| record(at, 0, Some(id), 1)).collect();
    let dedup = dedup_of(records);
    let verdicts = known.judge(&dedup).unwrap();
    known.claim(&dedup, &verdicts);
    let judge = |id: &str, topic_id| {
        let dedup = Dedup { topic_id, ..dedup_of(vec![record(0, 0, Some(id), 1)]) };
        known.judge(&dedup)
    };
    assert_eq!(judge("a", TOPIC), Ok(vec![RecordVerdict::Known(seen(Some(5)))]));
    assert_eq!(judge("b", TOPIC), Err(Stopped::RetryNextBatch));
    assert_eq!(judge("b", TopicId(8)), Ok(vec![RecordVerdict::New]));
}

#[test]
fn of_several_appends_each_record_is_named_in_its_own() {
    let mut records = vec![record(0, 0, Some("a"), 1), record(0, 1, Some("a"), 2)];
    records[0].append = Some(0);
    records[1].append = Some(2);
    let reused = Known::default().judge(&dedup_of(records)).unwrap_err();
    assert_eq!(show(reused), "reused /appends/2/records/0");
}

const NOW: i64 = 1_000;

fn request_key(payload: i64, instant: Option<i64>) -> RequestKey {
    RequestKey { key: id_key("k"), digest: payload, instant: instant.map(Timestamp) }
}

/// The entry of key `k`: its payload and whether its window has passed.
fn remembering(fact: Option<(i64, bool)>, horizon: i64) -> Known {
    let mut known = Known::default();
    known.now = Timestamp(NOW);
    known.horizons.insert(TOPIC, Timestamp(horizon));
    known.horizons.insert(TopicId(8), Timestamp(i64::MAX));
    if let Some((digest, is_live)) = fact {
        let (answer, first_seen_at) = (b"told".to_vec(), Timestamp(900));
        let fact = Fact::Request { digest, answer, first_seen_at, is_live };
        known.facts.insert((TOPIC, id_key("k")), fact);
    }
    known
}

#[test]
fn keys_of_requests_are_replayed_reused_expired_or_new() {
    let (live, over) = (|digest| Some((digest, true)), |digest| Some((digest, false)));
    let (forever, window) = (None, Some(100));
    // remembered, sent (payload, instant of a UUIDv7), window, horizon, what becomes of it
    let table = [
        (None, (1, None), window, 0, "new"),
        (live(1), (1, None), window, 0, "told at 900"),
        (live(1), (2, None), window, 0, "reused"),
        (over(1), (1, None), window, 0, "new"),
        (over(1), (2, None), window, 0, "new"),
        // a UUIDv7 that was used does not run again
        (live(1), (1, Some(950)), window, 0, "told at 900"),
        (over(1), (1, Some(10)), window, 0, "told at 900"),
        (over(1), (2, Some(10)), window, 999, "reused"),
        // nor one that may have been
        (None, (1, Some(900)), window, 0, "new"),
        (None, (1, Some(899)), window, 0, "expired"),
        (None, (1, Some(949)), window, 950, "expired"),
        (None, (1, Some(950)), window, 950, "new"),
        (None, (1, Some(NOW + 5_000)), window, 950, "new"),
        (None, (1, Some(NOW + ID_AHEAD_MS)), window, 0, "new"),
        (None, (1, Some(NOW + ID_AHEAD_MS + 1)), window, 0, "ahead"),
        (live(1), (1, Some(NOW + ID_AHEAD_MS + 1)), window, 0, "told at 900"),
        (None, (1, Some(0)), forever, 0, "new"),
        (None, (1, Some(4)), forever, 5, "expired"),
        (live(1), (1, Some(4)), forever, 5, "told at 900"),
        // other keys have no instant
        (None, (1, None), window, i64::MAX, "new"),
    ];
    for (fact, (payload, instant), window_ms, horizon, want) in table {
        let request_key = Some(request_key(payload, instant));
        let dedup = Dedup { window_ms, request_key, ..dedup_of(Vec::new()) };
        let got = match remembering(fact, horizon).judge_request(&dedup) {
            Ok(None) => "new".into(),
            Ok(Some((answer, at))) => format!("{} at {}", String::from_utf8_lossy(answer), at.0),
            Err(stopped) => show(stopped),
        };
        assert_eq!(got, want, "{fact:?} {payload} {instant:?} {window_ms:?} {horizon}");
    }
}

#[test]
fn a_key_of_a_request_is_reserved_with_it() {
    let dedup = Dedup { request_key: Some(request_key(1, None)), ..dedup_of(Vec::new()) };
    let mut known = remembering(Some((1, true)), 0);
    assert_eq!(known.judge_request(&dedup_of(Vec::new())), Ok(None), "it has none");
    known.claim(&dedup, &[]);
    assert_eq!(known.judge_request(&dedup), Err(Stopped::RetryNextBatch));
    let elsewhere = Dedup { topic_id: TopicId(9), ..dedup };
    assert_eq!(known.judge_request(&elsewhere), Ok(None));
    // what is known of a record says nothing of a request
    let mut known = Known::default();
    let fact = Fact::Record { digest: 1, seen: seen(Some(5)) };
    known.facts.insert((TOPIC, id_key("k")), fact);
    let dedup = Dedup { request_key: Some(request_key(2, None)), ..dedup_of(Vec::new()) };
    assert_eq!(known.judge_request(&dedup), Ok(None));
}

#[test]
fn an_instant_is_checked_against_the_later_of_window_and_horizon() {
    let check = |instant: i64, horizon, window| {
        let instant = Some(Timestamp(instant));
        check_instant(instant, Timestamp(horizon), window, Timestamp(NOW)).is_ok()
    };
    for (instant, horizon, window, want) in [
        (900, 0, Some(100), true),
        (899, 0, Some(100), false),
        (500, 500, None, true),
        (499, 500, None, false),
        (0, 0, Some(i64::MAX), true),
    ] {
        assert_eq!(check(instant, horizon, window), want, "{instant} {horizon} {window:?}");
    }
    assert_eq!(check_instant(None, Timestamp(5), Some(1), Timestamp(NOW)), Ok(()));
}
