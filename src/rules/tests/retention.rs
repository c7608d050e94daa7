//! Retention: one table row per step.

use super::text;
use crate::{
    model::{
        Timestamp,
        settings::{Key, OwnSettings, Value},
    },
    rules::retention::{Gone, Log, LogRow, RetentionLimits, step},
};

const NOW: i64 = 1_000;

/// `start` of a log, its `next` offset, its `size`, the `held` offset; its rows as
/// `end@instant/bytes`; the limits of age and size. Then the new start, and records/bytes removed
/// by age and by size.
#[test]
fn the_oldest_rows_go_by_time_and_by_bytes() {
    let table = "
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms 700 bytes null -> 20 time 20/20 bytes 0/0
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms 699 bytes null -> 30 time 30/30 bytes 0/0
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms 900 bytes null -> 0 time 0/0 bytes 0/0
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms 899 bytes null -> 10 time 10/10 bytes 0/0
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms null bytes null -> 0 time 0/0 bytes 0/0
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms null bytes 30 -> 0 time 0/0 bytes 0/0
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms null bytes 29 -> 10 time 0/0 bytes 10/10
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms null bytes 20 -> 10 time 0/0 bytes 10/10
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms null bytes 19 -> 20 time 0/0 bytes 20/20
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms null bytes 1 -> 20 time 0/0 bytes 20/20
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms 800 bytes 1 -> 20 time 10/10 bytes 10/10
        start 0 next 30 size 30         | 10@100/10 20@200/10 30@300/10 | ms 1 bytes 1 -> 30 time 30/30 bytes 0/0
        start 0 next 30 size 30         | 10@100/10 20@200/10 | ms 1 bytes null -> 20 time 20/20 bytes 0/0
        start 0 next 30 size 30         | 10@100/10 20@200/10 | ms null bytes 1 -> 20 time 0/0 bytes 20/20
        start 0 next 0 size 0           | | ms 1 bytes 1 -> 0 time 0/0 bytes 0/0
        start 10 next 30 size 30        | 10@100/10 20@200/10 30@300/10 | ms null bytes 20 -> 10 time 0/0 bytes 0/0
        start 10 next 30 size 30        | 10@100/10 20@200/10 30@300/10 | ms null bytes 19 -> 20 time 0/0 bytes 10/10
        start 10 next 30 size 30        | 10@100/10 20@200/10 30@300/10 | ms 750 bytes null -> 20 time 10/10 bytes 0/0
        start 20 next 30 size 30        | 10@100/10 20@200/10 | ms null bytes 1 -> 20 time 0/0 bytes 0/0
        start 14 next 30 size 20        | 20@200/10 30@300/10 | ms null bytes 20 -> 14 time 0/0 bytes 0/0
        start 14 next 30 size 20        | 20@200/10 30@300/10 | ms null bytes 19 -> 20 time 0/0 bytes 6/10
        start 14 next 30 size 20        | 20@200/10 30@300/10 | ms 750 bytes null -> 20 time 6/10 bytes 0/0
        start 0 next 30 size 30 held 20 | 10@100/10 20@200/10 30@300/10 | ms 1 bytes null -> 20 time 20/20 bytes 0/0
        start 0 next 30 size 30 held 19 | 10@100/10 20@200/10 30@300/10 | ms 1 bytes null -> 10 time 10/10 bytes 0/0
        start 0 next 30 size 30 held 19 | 10@100/10 20@200/10 30@300/10 | ms null bytes 1 -> 10 time 0/0 bytes 10/10
        start 0 next 30 size 30 held 0  | 10@100/10 20@200/10 30@300/10 | ms 1 bytes 1 -> 0 time 0/0 bytes 0/0
        start 0 next 30 size 30 held 30 | 10@100/10 20@200/10 30@300/10 | ms 1 bytes 1 -> 30 time 30/30 bytes 0/0
        start 20 next 30 size 30 held 5 | 10@100/10 20@200/10 30@300/10 | ms 1 bytes 1 -> 20 time 0/0 bytes 0/0
        start 0 next 30 size 70         | 10@100/50 20@200/10 30@300/10 | ms null bytes 30 -> 10 time 0/0 bytes 10/50";
    for line in text::rows(table) {
        let [log, rows, limits, want] = text::cells(line);
        let log = Log {
            log_start_offset: number(log, "start").unwrap(),
            next_offset: number(log, "next").unwrap(),
            size_bytes: number(log, "size").unwrap(),
            held_offset: number(log, "held"),
        };
        let rows: Vec<LogRow> = rows.split_whitespace().map(row).collect();
        let limits = RetentionLimits { ms: number(limits, "ms"), bytes: number(limits, "bytes") };
        let step = step(&log, &rows, &limits, Timestamp(NOW));
        let shown = |gone: Gone| format!("{}/{}", gone.records, gone.bytes);
        let got = format!(
            "{} time {} bytes {}",
            step.log_start_offset,
            shown(step.by_time),
            shown(step.by_bytes)
        );
        assert_eq!(got, want, "{line}");
        // what goes is looked at; what is looked at in vain is due by bytes of rows on their way
        let oldest = rows.iter().find(|row| row.end_offset > log.log_start_offset);
        if let Some(oldest) = oldest.filter(|_| step.log_start_offset > log.log_start_offset) {
            assert!(limits.concern(&log, oldest, Timestamp(NOW)), "{line}");
        }
    }
}

fn number(text: &str, name: &str) -> Option<i64> {
    let mut words = text.split_whitespace().skip_while(|word| *word != name);
    words.nth(1).filter(|word| *word != "null").map(|word| word.parse().unwrap())
}

fn row(text: &str) -> LogRow {
    let (end, rest) = text.split_once('@').unwrap();
    let (instant, bytes) = rest.split_once('/').unwrap();
    let parse = |text: &str| text.parse::<i64>().unwrap();
    let appended_at = Timestamp(parse(instant));
    LogRow { end_offset: parse(end), appended_at, size_bytes: parse(bytes) }
}

#[test]
fn a_log_whose_only_row_is_too_large_is_left_alone() {
    let log = Log { log_start_offset: 0, next_offset: 5, size_bytes: 50, held_offset: None };
    let row = LogRow { end_offset: 5, appended_at: Timestamp(NOW), size_bytes: 50 };
    let limits = RetentionLimits { ms: None, bytes: Some(1) };
    assert!(!limits.concern(&log, &row, Timestamp(NOW)));
    assert!(limits.concern(&Log { next_offset: 6, ..log }, &row, Timestamp(NOW)));
}

#[test]
fn what_is_compacted_knows_no_limits_and_a_topic_overrides_its_tenant() {
    let own = |values: &[(Key, Value)]| {
        let mut own = OwnSettings::default();
        own.values.extend(values.iter().copied());
        own
    };
    let week_ms = 604_800_000;
    let number = |key, number| (key, Value::Number(number));
    let compact = (Key::Cleanup, Value::Choice("compact"));
    let delete = (Key::Cleanup, Value::Choice("delete"));
    let limits = |ms, bytes| RetentionLimits { ms, bytes };
    let table = [
        (own(&[]), own(&[]), limits(Some(week_ms), None)),
        (own(&[]), own(&[number(Key::RetentionMs, 5_000)]), limits(Some(5_000), None)),
        (
            own(&[(Key::RetentionMs, Value::Unlimited)]),
            own(&[number(Key::RetentionMs, 5_000)]),
            limits(None, None),
        ),
        (own(&[number(Key::RetentionBytes, 7)]), own(&[]), limits(Some(week_ms), Some(7))),
        (
            own(&[(Key::RetentionBytes, Value::Unlimited)]),
            own(&[number(Key::RetentionBytes, 7)]),
            limits(Some(week_ms), None),
        ),
        (own(&[compact, number(Key::RetentionBytes, 7)]), own(&[]), limits(None, None)),
        (own(&[number(Key::RetentionBytes, 7)]), own(&[compact]), limits(None, None)),
        (own(&[delete]), own(&[compact]), limits(Some(week_ms), None)),
    ];
    for (topic, tenant, want) in table {
        assert_eq!(RetentionLimits::of(&[&topic, &tenant]), want, "{topic:?} {tenant:?}");
    }
}
