//! Replay of producer state: one `apply`, and a snapshot with the tail after it equals the whole
//! log.

use std::collections::{BTreeMap, HashMap};

use proptest::{collection::vec, prelude::*};

use crate::{
    model::{LogId, Offset, ProducerId, Timestamp},
    rules::{
        append::{
            cache::{Head, LogCache, Producer},
            encoding::{decode_recent, encode_entries, encode_recent},
            producer_state::{Entry, Placement, ProducerState, REMEMBERED_REQUESTS},
            snapshot::{TailRow, snapshot},
        },
        tests::digest,
    },
};

fn entry(sequence: i64, epoch: i64, fresh: bool) -> Entry {
    Entry {
        producer_id: ProducerId(1),
        epoch,
        sequence,
        fresh,
        digest: digest(&sequence.to_string()),
        placement: Placement::Partition { base_offset: sequence },
    }
}

#[test]
fn the_last_five_requests_are_remembered() {
    let mut state = ProducerState::default();
    assert_eq!((state.next_sequence(0), state.last_sequence), (0, None));
    for sequence in 0..7 {
        state.apply(&entry(sequence, 4, sequence == 0), Timestamp(sequence));
    }
    let sequences: Vec<_> = state.recent.iter().map(|request| request.sequence).collect();
    assert_eq!((sequences, state.recent.len()), (vec![2, 3, 4, 5, 6], REMEMBERED_REQUESTS));
    assert_eq!((state.epoch, state.last_sequence), (4, Some(6)));
    assert_eq!([3, 4, 5].map(|reset| state.next_sequence(reset)), [7, 7, 0]);
    state.apply(&entry(0, 5, true), Timestamp(9));
    assert_eq!((state.recent.len(), state.epoch, state.next_sequence(5)), (1, 5, 1));
}

/// The effect of a snapshot of one of P1's rows at 10 on its state.
#[test]
fn a_snapshot_counts_rows_from_where_a_state_stands_and_registers_nobody() {
    let bytes = encode_entries(10, &[entry(10, 0, true)]);
    let row = || TailRow {
        base_offset: 10,
        record_count: 1,
        appended_at: Timestamp(77),
        producers: Some(&bytes),
    };
    let with = |as_of| BTreeMap::from([(ProducerId(1), (ProducerState::default(), as_of))]);
    let count = |states| snapshot(states, &[row()]).unwrap().len();
    assert_eq!((count(with(10)), count(with(0)), count(with(11))), (1, 1, 0));
    assert_eq!(count(BTreeMap::new()), 0, "expired");
    let folded = snapshot(with(10), &[row()]).unwrap();
    let (id, state, at) = &folded[0];
    assert_eq!((*id, state.last_sequence, *at), (ProducerId(1), Some(10), Timestamp(77)));
    assert!(snapshot(with(0), &[TailRow { producers: Some(&[9]), ..row() }]).is_err());
}

const PRODUCERS: i64 = 4;

/// A row: the number of its other records, and (producer, fresh, entry) of its requests.
type Row = (i64, Vec<(i64, bool, u8)>);

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let request = (0..PRODUCERS, prop::bool::weighted(0.1), 0..3_u8);
    vec((1..4_i64, vec(request, 0..6)), 0..24)
}

struct Stored {
    base_offset: Offset,
    record_count: i64,
    at: Timestamp,
    producers: Option<Vec<u8>>,
    entries: Vec<Entry>,
}

impl Stored {
    fn as_tail(&self) -> TailRow<'_> {
        TailRow {
            base_offset: self.base_offset,
            record_count: self.record_count,
            appended_at: self.at,
            producers: self.producers.as_deref(),
        }
    }
}

fn stored(rows: Vec<Row>) -> Vec<Stored> {
    let mut next = [0; PRODUCERS as usize];
    let mut base_offset = 0;
    let mut stored = Vec::new();
    for (index, (others, requests)) in rows.into_iter().enumerate() {
        let count = requests.len() as i64;
        let entries: Vec<Entry> = (0..)
            .zip(requests)
            .map(|(i, (id, fresh, what))| {
                let sequence = if fresh { 0 } else { next[id as usize] };
                next[id as usize] = sequence + 1;
                Entry {
                    producer_id: ProducerId(id),
                    epoch: index as i64 / 3,
                    sequence,
                    fresh,
                    digest: digest(&what.to_string()),
                    placement: Placement::Partition { base_offset: base_offset + i },
                }
            })
            .collect();
        stored.push(Stored {
            base_offset,
            record_count: others + count,
            at: Timestamp(index as i64 / 2),
            producers: (count > 0).then(|| encode_entries(base_offset, &entries)),
            entries,
        });
        base_offset += others + count;
    }
    stored
}

/// Everything, by the simplest replay.
fn whole(rows: &[Stored]) -> BTreeMap<ProducerId, ProducerState> {
    let mut states: BTreeMap<ProducerId, ProducerState> = BTreeMap::new();
    for row in rows {
        for entry in &row.entries {
            states.entry(entry.producer_id).or_default().apply(entry, row.at);
        }
    }
    states
}

/// Snapshots at each of these rows in turn; the states with their offsets.
fn snapped(rows: &[Stored], points: &[usize]) -> BTreeMap<ProducerId, (ProducerState, Offset)> {
    let mut states: BTreeMap<ProducerId, (ProducerState, Offset)> =
        whole(rows).into_keys().map(|id| (id, (ProducerState::default(), 0))).collect();
    let mut done = 0;
    for point in points {
        let chunk = &rows[done..*point];
        let kept = chunk.iter().filter(|row| row.producers.is_some());
        let tail: Vec<_> = kept.map(Stored::as_tail).collect();
        let end = rows.get(*point).map_or_else(|| length(rows), |row| row.base_offset);
        for (id, state, at) in snapshot(states.clone(), &tail).unwrap() {
            let newest = chunk.iter().rfind(|r| r.entries.iter().any(|e| e.producer_id == id));
            assert_eq!(Some(at), newest.map(|row| row.at), "when its last row was appended");
            let recent = decode_recent(&encode_recent(&state.recent)).unwrap().into();
            states.insert(id, (ProducerState { recent, ..state }, end));
        }
        done = *point;
    }
    states
}

fn length(rows: &[Stored]) -> Offset {
    rows.last().map_or(0, |row| row.base_offset + row.record_count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// However often it was snapshotted, whatever a cache contained, and whichever producers it
    /// lacked.
    #[test]
    fn a_snapshot_and_the_tail_are_the_whole(
        rows in rows(),
        points in vec(any::<prop::sample::Index>(), 0..4),
        cached_to in any::<prop::sample::Index>(),
        in_cache in vec(any::<bool>(), PRODUCERS as usize),
    ) {
        let rows = stored(rows);
        let mut points: Vec<usize> = points.iter().map(|p| p.index(rows.len() + 1)).collect();
        points.sort_unstable();
        let states = snapped(&rows, &points);
        let offset_of = |row: usize| rows.get(row).map_or(length(&rows), |row| row.base_offset);
        let snapshot_offset = points.last().map_or(0, |row| offset_of(*row));
        let last_appended_at = rows.last().map_or(Timestamp(0), |row| row.at);
        let head = Head {
            log_id: LogId(1),
            next_offset: length(&rows),
            fence: 0,
            last_appended_at,
            snapshot_offset,
            kept_offset: 0,
        };
        // a cache that folded some rows without a snapshot, and forgot some producers since
        let cached_rows = cached_to.index(rows.len() + 1);
        let mut log = LogCache::cold(&head);
        log.next_offset = offset_of(cached_rows);
        let known = whole(&rows[..cached_rows]);
        let mut starts = HashMap::new();
        for (id, (state, as_of)) in &states {
            let is_known = in_cache[id.0 as usize];
            let state = if is_known {
                known.get(id).cloned().unwrap_or_default()
            } else {
                starts.insert(*id, snapshot_offset.max(*as_of));
                state.clone()
            };
            let (verified_fence, session, registered) = (0, None, true);
            log.producers.insert(*id, Producer { verified_fence, session, state, registered });
        }
        let from = starts.values().copied().fold(log.next_offset, Offset::min);
        let tail = rows.iter().filter(|row| row.base_offset >= from);
        let tail: Vec<_> = tail.map(Stored::as_tail).collect();
        log.fold(from, &tail, &starts).unwrap();
        prop_assert_eq!(log.next_offset, length(&rows));
        prop_assert_eq!(log.unfolded_rows, (rows.len() - cached_rows) as i64);
        let got: BTreeMap<_, _> = log.producers.into_iter().map(|(id, p)| (id, p.state)).collect();
        prop_assert_eq!(got, whole(&rows));
    }
}
