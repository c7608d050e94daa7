//! The log cache: when it is invalid, and how rows advance it.

use std::collections::HashMap;

use crate::{
    model::{LogId, Offset, ProducerId, Timestamp},
    rules::{
        append::{
            cache::{FAR_OFFSETS, Head, LogCache, Producer},
            encoding::{Corrupt, encode_entries},
            producer_state::{Entry, Placement, ProducerState},
            snapshot::TailRow,
        },
        tests::digest,
    },
};

fn head(kept_offset: Offset, snapshot_offset: Offset, next_offset: Offset) -> Head {
    let last_appended_at = Timestamp(900);
    Head { log_id: LogId(1), next_offset, fence: 3, last_appended_at, snapshot_offset, kept_offset }
}

fn at(next_offset: Offset, last_appended_at: i64) -> LogCache {
    let last_appended_at = Timestamp(last_appended_at);
    LogCache { next_offset, last_appended_at, ..LogCache::cold(&head(0, 0, 0)) }
}

#[test]
fn a_prefix_is_neither_ahead_nor_behind_what_is_kept_nor_of_another_history() {
    let head = head(10, 15, 20);
    let table = [
        (0, 100, false),
        (9, 100, false),
        (10, 100, false),
        (11, 100, true),
        (15, 100, true),
        (19, 100, true),
        (19, 900, true),
        (20, 900, true),
        (20, 899, false),
        (20, 901, false),
        (21, 900, false),
    ];
    for (next_offset, last_appended_at, want) in table {
        assert_eq!(at(next_offset, last_appended_at).is_prefix_of(&head), want, "{next_offset}");
    }
    let whole = self::head(0, 0, 20);
    assert!(at(0, 100).is_prefix_of(&whole), "nothing is gone");
}

#[test]
fn a_prefix_is_so_near_that_the_rows_since_are_worth_reading() {
    for (behind, want) in [(FAR_OFFSETS, true), (FAR_OFFSETS + 1, false)] {
        assert_eq!(at(20, 100).is_prefix_of(&head(10, 15, 20 + behind)), want, "{behind}");
    }
}

#[test]
fn a_cold_cache_begins_at_the_head() {
    for head in [head(5, 15, 20), head(20, 20, 20)] {
        let cold = LogCache::cold(&head);
        assert_eq!((cold.next_offset, cold.fence, cold.last_appended_at), (20, 3, Timestamp(900)));
        assert!(cold.producers.is_empty() && cold.contended_passes == 0 && cold.unfolded_rows == 0);
        assert!(cold.is_prefix_of(&head));
    }
}

#[test]
fn a_cache_belongs_to_a_log_that_has_its_last_row() {
    // the cache's offset and instant, and rows: base, records, appended at ten times the base
    type Rows = [(i64, i64)];
    let table: [(i64, i64, &Rows, bool); 7] = [
        (10, 70, &[(7, 3), (10, 2)], true),
        (10, 71, &[(7, 3), (10, 2)], false),
        (10, 70, &[(7, 4), (11, 2)], false),
        (10, 70, &[(8, 2), (10, 2)], false),
        (10, 70, &[(10, 2)], false),
        (10, 70, &[], false),
        (0, 0, &[], true),
    ];
    for (next_offset, last_appended_at, rows, want) in table {
        let rows: Vec<_> = rows.iter().map(|(base, n)| tail_row(*base, *n, None)).collect();
        assert_eq!(at(next_offset, last_appended_at).ends_in(&rows), want, "{next_offset} {want}");
    }
}

#[test]
fn another_fence_takes_the_partition_count_away() {
    let mut log = LogCache { partition_count: 4, ..at(10, 900) };
    log.see_fence(3);
    assert_eq!((log.fence, log.partition_count), (3, 4));
    log.see_fence(4);
    assert_eq!((log.fence, log.partition_count), (4, 0));
}

/// A row of P1's and P2's requests, as many records each.
fn row(base_offset: Offset, sequence: i64) -> Vec<u8> {
    let entry = |(id, base_offset)| Entry {
        producer_id: ProducerId(id),
        epoch: 0,
        sequence,
        fresh: false,
        digest: digest("any"),
        placement: Placement::Partition { base_offset },
    };
    encode_entries(base_offset, &[(1, base_offset), (2, base_offset + 1)].map(entry))
}

fn tail_row(base_offset: Offset, record_count: i64, producers: Option<&[u8]>) -> TailRow<'_> {
    TailRow { base_offset, record_count, appended_at: Timestamp(base_offset * 10), producers }
}

fn with_producers(mut log: LogCache, ids: &[i64]) -> LogCache {
    for id in ids {
        let producer = Producer {
            verified_fence: 3,
            session: None,
            state: ProducerState::default(),
            registered: true,
        };
        log.producers.insert(ProducerId(*id), producer);
    }
    log
}

fn last(log: &LogCache, id: i64) -> Option<i64> {
    log.producers[&ProducerId(id)].state.last_sequence
}

#[test]
fn a_tail_with_a_hole_is_refused() {
    let none = HashMap::new();
    let rows = |bases: &[(Offset, i64)]| -> Vec<TailRow<'static>> {
        bases.iter().map(|(base, count)| tail_row(*base, *count, None)).collect()
    };
    type Bases = [(Offset, i64)];
    let table: [(&str, Offset, &Bases, Result<Offset, Corrupt>); 8] = [
        ("behind the cache", 10, &[(10, 2), (12, 3)], Ok(15)),
        ("from before the cache", 5, &[(5, 5), (10, 2)], Ok(12)),
        ("nothing new", 5, &[(5, 5)], Ok(10)),
        ("nothing at all", 10, &[], Ok(10)),
        ("hole at the start", 10, &[(11, 2)], Err(Corrupt)),
        ("hole inside", 10, &[(10, 2), (13, 1)], Err(Corrupt)),
        ("ends before the cache", 5, &[(5, 4)], Err(Corrupt)),
        ("trimmed meanwhile", 5, &[], Err(Corrupt)),
    ];
    for (name, from, bases, want) in table {
        let mut log = at(10, 100);
        let got = log.fold(from, &rows(bases), &none).map(|()| log.next_offset);
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn corrupt_provenance_is_refused() {
    let mut log = at(10, 100);
    assert_eq!(log.fold(10, &[tail_row(10, 2, Some(&[9]))], &HashMap::new()), Err(Corrupt));
}

#[test]
fn rows_behind_the_cache_count_for_its_producers_and_all_from_their_start_for_new_ones() {
    let bytes: Vec<_> = [0, 10, 20].iter().map(|base| row(*base, base / 10)).collect();
    let tail: Vec<_> =
        (0..).zip(&bytes).map(|(i, bytes)| tail_row(i * 10, 10, Some(bytes))).collect();
    // P1 is known up to 20; P2 comes as a stranger from its state at 10
    let mut log = with_producers(at(20, 100), &[1, 2]);
    log.fold(0, &tail, &HashMap::from([(ProducerId(2), 10)])).unwrap();
    assert_eq!((last(&log, 1), last(&log, 2)), (Some(2), Some(2)));
    let remembered = |id| {
        let recent = &log.producers[&ProducerId(id)].state.recent;
        recent.iter().map(|request| request.sequence).collect::<Vec<_>>()
    };
    assert_eq!((remembered(1), remembered(2)), (vec![2], vec![1, 2]));
    assert_eq!((log.next_offset, log.last_appended_at, log.unfolded_rows), (30, Timestamp(200), 1));
    // a start behind the cache: rows before it are in the state already
    let mut log = with_producers(at(10, 100), &[1, 2]);
    log.fold(10, &tail[1..], &HashMap::from([(ProducerId(2), 20)])).unwrap();
    assert_eq!(log.producers[&ProducerId(1)].state.recent.len(), 2);
    assert_eq!(log.producers[&ProducerId(2)].state.recent.len(), 1);
    // who is in nobody's group is not remembered
    let mut log = with_producers(at(0, 0), &[1]);
    log.fold(0, &tail, &HashMap::new()).unwrap();
    assert_eq!((log.producers.len(), last(&log, 1)), (1, Some(2)));
}

#[test]
fn the_fast_path_is_tried_again_after_a_quiet_time() {
    let mut log = LogCache::cold(&head(0, 0, 0));
    log.looked(true);
    let quiet = (1..20).find(|_| {
        log.looked(false);
        log.contended_passes == 0
    });
    assert_eq!(quiet, Some(8));
    log.looked(true);
    log.looked(false);
    log.looked(true);
    assert_eq!(log.contended_passes, 8);
}

#[test]
fn only_a_near_prefix_is_brought_up_to_date_under_the_lock() {
    // the cache's offset, the head's, whether it is near
    let table =
        [(0, 0, false), (10, 10, false), (0, 5_000, true), (0, 5_001, false), (7, 6, false)];
    for (known, next_offset, want) in table {
        // 800 is not the head's instant: of equal length it is another history
        assert_eq!(at(known, 800).is_near(&head(0, 0, next_offset)), want, "{known} {next_offset}");
    }
    assert!(at(10, 900).is_near(&head(0, 0, 10)));
}

#[test]
fn what_was_read_under_another_fence_is_forgotten() {
    let mut log = LogCache { partition_count: 3, ..LogCache::cold(&head(0, 0, 0)) };
    log.see_fence(log.fence);
    assert_eq!(log.partition_count, 3);
    log.see_fence(log.fence + 1);
    assert_eq!((log.partition_count, log.fence), (0, head(0, 0, 0).fence + 1));
    // also under one that is lower: another history's
    log.partition_count = 4;
    log.see_fence(log.fence - 1);
    assert_eq!(log.partition_count, 0);
}
