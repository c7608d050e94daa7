//! Ids of staged records: their encoding, and their outcome when they are reserved.

use std::collections::HashMap;

use proptest::{collection::vec, option, prelude::*};
use uuid::Uuid;

use crate::{
    model::{Timestamp, TopicId, dedup::id_key},
    rules::{
        Refusal,
        append::{
            dedup::{Dedup, Fact, KeyedRecord, Known, KnownRecord, Stopped},
            encoding::Corrupt,
        },
        tests::log_of,
        transaction::record_ids::{
            IdTopic, NewId, RecordIdPlan, StagedId, StagedRow, dedups, judge, left, pack, unpack,
        },
    },
};

/// As stored: after the number of earlier appends.
fn stored(before: i64, packed: &[u8]) -> Vec<u8> {
    [&before.to_be_bytes(), packed].concat()
}

/// A call's records in one topic: the append, the part, the id if there is one, the payload.
fn sent(records: &[(usize, usize, Option<Uuid>, i64)]) -> Dedup {
    let mut indices: HashMap<usize, usize> = HashMap::new();
    let record = |(append, part, key, digest): &(usize, usize, Option<Uuid>, i64)| {
        let next = indices.entry(*append).or_default();
        let index = std::mem::replace(next, *next + 1);
        let append = Some(*append);
        KeyedRecord { append, index, part: *part, key: *key, digest: *digest, size_bytes: 1 }
    };
    Dedup { records: records.iter().map(record).collect(), ..topic(1).dedup() }
}

fn topic(id: i64) -> IdTopic {
    IdTopic { topic_id: TopicId(id), journal: log_of(id as i32 + 100), window_ms: Some(1_000) }
}

#[test]
fn ids_are_packed_part_by_part_with_their_places_as_sent() {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|id| Some(id_key(id)));
    let one = sent(&[
        (3, 0, None, 0),
        (3, 1, a, 7),
        (3, 0, b, 8),
        (3, 1, None, 0),
        (3, 1, c, 9),
        (3, 2, None, 0),
        (5, 4, d, 1),
    ]);
    let other = Dedup { topic_id: TopicId(2), ..sent(&[(4, 3, a, 2)]) };
    let packed = pack(6, &[one, other]);
    let id = |line, index, id, digest| StagedId { line, index, key: id_key(id), digest };
    let unpack = |part: usize| unpack(&stored(40, packed[part].as_ref().unwrap()));
    assert_eq!(unpack(0), Ok((43, vec![id(1, 2, "b", 8)])));
    assert_eq!(unpack(1), Ok((43, vec![id(0, 1, "a", 7), id(2, 4, "c", 9)])));
    assert_eq!(packed[2], None, "nothing has an id there");
    assert_eq!(unpack(3), Ok((44, vec![id(0, 0, "a", 2)])));
    assert_eq!(unpack(4), Ok((45, vec![id(0, 0, "d", 1)])));
    assert_eq!(packed[5], None);
}

#[test]
fn nothing_else_is_taken_for_ids() {
    let [a, b] = ["a", "b"].map(|id| Some(id_key(id)));
    let packed = pack(1, &[sent(&[(1, 0, a, 7), (1, 0, b, 7)])]).remove(0).unwrap();
    let good = stored(0, &packed);
    assert!(unpack(&good).is_ok());
    for length in (0..good.len()).filter(|length| *length != good.len() - 32) {
        assert_eq!(unpack(&good[..length]), Err(Corrupt), "{length}");
    }
    let mut other_format = good.clone();
    other_format[8] = 2;
    assert_eq!(unpack(&other_format), Err(Corrupt));
    let (head, ids) = good.split_at(13);
    let twice = [head, &ids[..32], &ids[..32]].concat();
    assert_eq!(unpack(&twice), Err(Corrupt), "lines go up");
    assert_eq!(unpack(&stored(i64::MAX, &packed)), Err(Corrupt));
}

proptest! {
    #[test]
    fn packed_ids_come_back(
        records in vec((0..4_usize, option::of(any::<u128>()), any::<i64>()), 0..40),
        append in 0..1_000_usize,
        before in 0..1_i64 << 40,
    ) {
        let record = |(part, key, digest): &(usize, Option<u128>, i64)| {
            (append, *part, key.map(Uuid::from_u128), *digest)
        };
        let sent = sent(&records.iter().map(record).collect::<Vec<_>>());
        for (part, packed) in pack(4, std::slice::from_ref(&sent)).into_iter().enumerate() {
            let own = sent.records.iter().filter(|record| record.part == part).zip(0..);
            let want: Vec<StagedId> = own
                .filter_map(|(KeyedRecord { index, key, digest, .. }, line)| {
                    Some(StagedId { line, index: *index as u32, key: (*key)?, digest: *digest })
                })
                .collect();
            match packed {
                None => prop_assert!(want.is_empty()),
                Some(packed) => {
                    let append = before + append as i64;
                    prop_assert_eq!(unpack(&stored(before, &packed)), Ok((append, want)));
                }
            }
        }
    }

    #[test]
    fn lines_that_are_left_are_those_that_are_not_skipped(
        lines in vec("[a-z]{0,4}", 0..20),
        skips in vec(any::<bool>(), 20),
    ) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let marked = || lines.iter().zip(&skips).enumerate();
        let skipped: Vec<u32> =
            marked().filter(|(_, (_, skip))| **skip).map(|(number, _)| number as u32).collect();
        let left_over = marked().filter(|(_, (_, skip))| !**skip);
        let want: Vec<String> = left_over.map(|(_, (line, _))| format!("{line}\n")).collect();
        prop_assert_eq!(left(&text, &skipped), (want.concat(), want.len() as i64));
    }
}

#[test]
fn lines_are_skipped() {
    for (skipped, want) in [
        (&[][..], ("a\nb\nc\n", 3)),
        (&[0], ("b\nc\n", 2)),
        (&[1], ("a\nc\n", 2)),
        (&[0, 2], ("b\n", 1)),
        (&[0, 1, 2], ("", 0)),
    ] {
        assert_eq!(left("a\nb\nc\n", skipped), (want.0.to_owned(), want.1), "{skipped:?}");
    }
}

/// `t0: a1 b2 -` is a row of topic 0 with three records, ids a, b and none, and payloads 1 and 2.
fn row(ordinal: usize, words: &str) -> StagedRow {
    let (topic, records) = words.split_once(':').unwrap();
    let topic: i64 = topic.trim().strip_prefix('t').unwrap().parse().unwrap();
    let ids = records.split_whitespace().enumerate().filter(|(_, word)| *word != "-");
    let ids = ids.map(|(line, word)| {
        let (id, digest) = word.split_at(1);
        let (line, digest) = (line as u32, digest.parse().unwrap());
        StagedId { line, index: line, key: id_key(id), digest }
    });
    StagedRow {
        ordinal: ordinal as i64,
        log_id: log_of(topic as i32),
        topic: self::topic(topic),
        append: ordinal as i64 + 10,
        ids: ids.collect(),
    }
}

fn holder() -> Uuid {
    Uuid::from_u128(9)
}

/// `a1` is stored, `h1` held; both in topic 0.
fn known(words: &str) -> Known {
    let seen = KnownRecord { partition: 0, offset: Some(0), first_seen_at: Timestamp(0) };
    let fact = |word: &str| {
        let (id, digest) = word.split_at(1);
        let digest = digest.parse().unwrap();
        let fact = match id {
            "h" => Fact::Held { digest, transaction_id: holder() },
            _ => Fact::Record { digest, seen },
        };
        ((TopicId(0), id_key(id)), fact)
    };
    let mut known = Known::default();
    known.facts = words.split_whitespace().map(fact).collect();
    known
}

/// New ids as (ordinal, position), skipped lines as (ordinal, lines); or the refusal.
fn told(known: &Known, rows: &[StagedRow]) -> String {
    match judge(known, rows, &dedups(rows)) {
        Ok(RecordIdPlan { new, skipped }) => {
            let new =
                new.iter().map(|NewId { ordinal, position, .. }| format!("{ordinal}.{position}"));
            let lines = skipped.iter().map(|(ordinal, lines)| format!("{ordinal}{lines:?}"));
            format!(
                "new {} skip {}",
                new.collect::<Vec<_>>().join(" "),
                lines.collect::<Vec<_>>().join(" ")
            )
        }
        Err(Stopped::Refused(Refusal::RecordIdReused { records })) => {
            format!("reused {}", records.join(" "))
        }
        Err(Stopped::Refused(Refusal::RecordHeld { transaction_id })) => {
            assert_eq!(transaction_id, holder());
            "held".to_owned()
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn new_ids_are_reserved_once_and_known_ones_are_skipped() {
    for (facts, rows, want) in [
        ("", "t0: a1 b2", "new 0.0 0.1 skip "),
        ("", "t0: - a1 - b2", "new 0.1 0.3 skip "),
        // stored elsewhere since
        ("a1", "t0: a1 b2", "new 0.0 skip 0[0]"),
        ("a1 b2", "t0: a1 - b2 - c3", "new 0.2 skip 0[0, 2]"),
        ("a1 b2", "t0: a1 b2", "new  skip 0[0, 1]"),
        // twice in one append, in another, and in another topic
        ("", "t0: a1 a1 b2", "new 0.0 0.1 skip 0[1]"),
        ("", "t0: a1 | t0: b2 a1", "new 0.0 1.0 skip 1[1]"),
        ("", "t0: a1 | t1: a1", "new 0.0 1.0 skip "),
        ("a1", "t1: a1 | t0: a1", "new 0.0 skip 1[0]"),
        // another payload: stored, twice in the transaction
        ("a1", "t0: b2 a2", "reused /appends/10/records/1"),
        ("", "t0: a1 | t0: - a2 a1", "reused /appends/11/records/1"),
        ("a1 b1", "t0: a2 | t0: b2", "reused /appends/10/records/0 /appends/11/records/0"),
        ("a1", "t0: a1 a2", "reused /appends/10/records/1"),
        ("a1", "t1: a2", "new 0.0 skip "),
        // held by a prepared one
        ("h1", "t0: a1 h1", "held"),
        ("h1", "t0: h1 h1", "held"),
        ("h1", "t0: h2", "reused /appends/10/records/0"),
        ("h1 a1", "t0: h1 a2", "reused /appends/10/records/1"),
        ("h1", "t1: h2", "new 0.0 skip "),
    ] {
        let rows: Vec<StagedRow> =
            rows.split('|').enumerate().map(|(ordinal, words)| row(ordinal, words)).collect();
        assert_eq!(told(&known(facts), &rows), want, "{facts:?} {rows:?}");
    }
}

#[test]
fn a_reservation_says_where_its_record_will_lie() {
    let rows = [row(0, "t0: a1"), row(1, "t1: - a1 b2 a1 c3")];
    let RecordIdPlan { new, .. } = judge(&Known::default(), &rows, &dedups(&rows)).unwrap();
    let claim = |ordinal, topic, id, digest, position| NewId {
        topic_id: TopicId(topic),
        key: id_key(id),
        digest,
        log_id: log_of(topic as i32),
        ordinal,
        position,
    };
    let want = [
        claim(0, 0, "a", 1, 0),
        claim(1, 1, "a", 1, 1),
        claim(1, 1, "b", 2, 2),
        claim(1, 1, "c", 3, 3),
    ];
    assert_eq!(new, want);
}
