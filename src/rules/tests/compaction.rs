//! Compaction, against a table, and against an oracle that knows the whole log.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};

use crate::{
    model::{Offset, Timestamp, read::BatchRow, survivors::Kept},
    rules::compaction::{Cleaned, CompactionState, LastOffsets, Left, PAGE_LIFE_MS, clean},
};

/// A record: its key if it has one, and its value if it is no tombstone.
type Record = (Option<u8>, Option<u8>);

fn line((key, value): Record) -> String {
    let value = value.map_or("null".to_owned(), |value| format!("{{\"key\":[{value}]}}"));
    let key = key.map(|key| format!(",\"key\":\"k{key}\"")).unwrap_or_default();
    format!("{{\"value\":{value}{key}}}\n")
}

fn row(base_offset: Offset, records: &[Record]) -> BatchRow {
    BatchRow {
        base_offset,
        record_count: records.len() as i64,
        appended_at: Timestamp(0),
        transaction_id: None,
        kept: None,
        lines: records.iter().copied().map(line).collect(),
    }
}

/// `a=1`: a record with a key; `a=`: a tombstone; `=1`: one without a key.
fn record(text: &str) -> Record {
    let (key, value) = text.split_once('=').unwrap();
    (key.bytes().next(), value.parse().ok())
}

#[test]
fn the_last_record_of_a_key_stays() {
    // the row at 10, what comes after it, tombstones before which offset go, what stays
    let table = [
        ("a=1 b=2 =3", "", 0, "10 11 12"),
        ("a=1 b=2 =3", "c=1 =4", 0, "10 11 12"),
        ("a=1 b=2 =3", "a=9", 0, "11 12"),
        ("a=1 a=2 a=3", "", 0, "12"),
        ("a=1 b=2 a=3", "b=", 0, "12"),
        ("a=1 b=2", "b= a=1", 0, "-"),
        ("=1 =1", "=1", 0, "10 11"),
        ("a= b= a=1", "", 0, "11 12"),
        ("a= b=", "", 11, "11"),
        ("a= b=", "", 12, "-"),
        ("= a=1", "", 99, "10 11"),
    ];
    for (text, later, forget_before, want) in table {
        let records: Vec<Record> = text.split_whitespace().map(record).collect();
        let later: Vec<Record> = later.split_whitespace().map(record).collect();
        let (row, later) = (row(10, &records), row(20, &later));
        let mut last = LastOffsets::default();
        last.learn(&row);
        last.learn(&later);
        let Cleaned { left, records: count, .. } = clean(&row, &last, forget_before);
        let offsets = match &left {
            Left::All => (0..records.len()).map(|n| row.offset(n)).collect(),
            Left::Some(kept, lines) => {
                assert_eq!(lines.lines().count(), kept.count(), "{text}");
                (0..kept.count()).map(|n| 10 + kept.place(n)).collect()
            }
            Left::Nothing => Vec::new(),
        };
        assert_eq!(count, offsets.len() as i64, "{text}");
        let got: Vec<String> = offsets.iter().map(i64::to_string).collect();
        assert_eq!(if got.is_empty() { "-".into() } else { got.join(" ") }, want, "{text}");
    }
}

#[test]
fn when_a_log_is_due() {
    let standing = |next_offset, cleaned_offset, left_records, tombstones| CompactionState {
        next_offset,
        cleaned_offset,
        left_records,
        tombstones,
        settled_offset: cleaned_offset,
        settled_at: Timestamp(1_000),
    };
    let ripe = 1_000 + PAGE_LIFE_MS + 50;
    for (standing, delay_ms, now, want) in [
        (standing(0, 0, 0, 0), Some(50), ripe, false),
        (standing(1, 0, 0, 0), Some(50), 0, true),
        (standing(10, 5, 5, 0), Some(50), 0, true),
        (standing(10, 5, 6, 0), Some(50), 0, false),
        (standing(10, 5, 1, 0), None, 0, true),
        (standing(10, 10, 5, 0), Some(50), ripe, false),
        (standing(10, 10, 5, 1), Some(50), ripe, true),
        (standing(10, 10, 5, 1), Some(50), ripe - 1, false),
        (standing(10, 10, 5, 1), None, ripe, false),
    ] {
        assert_eq!(standing.is_due(delay_ms, Timestamp(now)), want, "{standing:?} {delay_ms:?}");
    }
}

/// A log as compaction leaves it, row by row.
struct Log(Vec<BatchRow>);

impl Log {
    fn new(batches: &[Vec<Record>]) -> Self {
        let mut log = Self(Vec::new());
        for batch in batches {
            let base_offset = log.0.last().map_or(0, BatchRow::end);
            log.0.push(row(base_offset, batch));
        }
        log
    }

    fn end(&self) -> Offset {
        self.0.last().map_or(0, BatchRow::end)
    }

    /// A round that finds the keys in a range and goes over all rows before its end; one that
    /// crashes, over this many rows only.
    fn round(&mut self, (from, to): (Offset, Offset), forget_before: Offset, rows: usize) {
        let mut last = LastOffsets::default();
        for row in self.0.iter().filter(|row| row.base_offset >= from && row.base_offset < to) {
            last.learn(row);
        }
        let mut after = Vec::new();
        for (n, row) in self.0.drain(..).enumerate() {
            if row.base_offset >= to || n >= rows {
                after.push(row);
                continue;
            }
            match clean(&row, &last, forget_before).left {
                Left::All => after.push(row),
                Left::Some(kept, lines) => {
                    let stored = Kept::decode(&kept.encode(), row.record_count);
                    assert_eq!(stored.as_ref(), Some(&kept));
                    assert!(kept.count() < row.line_count());
                    after.push(BatchRow { kept: stored, lines, ..row });
                }
                Left::Nothing => {}
            }
        }
        self.0 = after;
    }

    fn records(&self) -> BTreeMap<Offset, &str> {
        let lines =
            |row: &BatchRow| (0..row.line_count()).map(|n| row.offset(n)).collect::<Vec<_>>();
        let of = |row| lines(row).into_iter().zip(row.lines.split_inclusive('\n'));
        self.0.iter().flat_map(of).collect()
    }
}

fn batches() -> impl Strategy<Value = Vec<Vec<Record>>> {
    let value = prop_oneof![3 => any::<u8>().prop_map(Some), 1 => Just(None)];
    let record = (proptest::option::weighted(0.9, 0u8..6), value);
    vec(vec(record, 1..8), 1..12)
}

proptest! {
    /// Whatever rounds ran before, and however far they came, a round over everything leaves the
    /// last record of each key, and every record without a key, each at its offset; another round
    /// finds nothing to do.
    #[test]
    fn as_the_oracle_says(
        batches in batches(),
        rounds in vec((0usize..12, 0usize..12, 0usize..14), 0..5),
        forgets in any::<bool>(),
    ) {
        let records: Vec<Record> = batches.iter().flatten().copied().collect();
        let mut log = Log::new(&batches);
        let end = log.end();
        let bases: Vec<Offset> = log.0.iter().map(|row| row.base_offset).chain([end]).collect();
        for (from, to, rows) in rounds {
            let base = |n: usize| bases[n.min(bases.len() - 1)];
            log.round((base(from.min(to)), base(from.max(to))), 0, rows);
            let seen: BTreeMap<_, _> = last_values(&log);
            let want = last_values(&Log::new(&batches));
            prop_assert_eq!(seen, want, "a reader misses a last value");
        }
        log.round((0, end), 0, usize::MAX);
        let is_last = |n: usize| {
            let (key, _) = records[n];
            key.is_none() || records[n + 1..].iter().all(|(other, _)| *other != key)
        };
        let is_forgotten = |n: usize| forgets && matches!(records[n], (Some(_), None));
        let want = |forgotten: &dyn Fn(usize) -> bool| -> BTreeMap<Offset, String> {
            let left = (0..records.len()).filter(|n| is_last(*n) && !forgotten(*n));
            left.map(|n| (n as Offset, line(records[n]))).collect()
        };
        let owned = |log: &Log| -> BTreeMap<Offset, String> {
            log.records().into_iter().map(|(offset, line)| (offset, line.to_owned())).collect()
        };
        prop_assert_eq!(owned(&log), want(&|_| false));
        let forget_before = if forgets { end } else { 0 };
        for _ in 0..2 {
            log.round((end, end), forget_before, usize::MAX);
            prop_assert_eq!(owned(&log), want(&is_forgotten));
        }
    }
}

/// The final knowledge of a reader from the start.
fn last_values(log: &Log) -> BTreeMap<String, String> {
    let mut known = BTreeMap::new();
    for line in log.records().into_values() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        if let Some(key) = record.get("key") {
            known.insert(key.to_string(), line.to_owned());
        }
    }
    known
}
