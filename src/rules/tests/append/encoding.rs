//! The encoding of provenance: it round-trips, is small, and rejects all other bytes.

use proptest::{collection::vec, option, prelude::*};

use crate::{
    model::{MAX_INTEGER, Offset, ProducerId, Timestamp},
    rules::{
        append::{
            encoding::{
                Corrupt, decode_entries, decode_placement, decode_recent, encode_entries,
                encode_placement, encode_recent,
            },
            producer_state::{Entry, Placement, RecordPlace, Remembered},
        },
        tests::digest,
    },
};

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![0..300_i64, 0..=MAX_INTEGER, Just(MAX_INTEGER)]
}

/// Placements in a row that starts at `origin`.
fn placement(origin: Offset) -> impl Strategy<Value = Placement> {
    let partition = || prop_oneof![0..20_i32, Just(i32::MAX - 1)];
    let topic = (1..=i32::MAX, option::of(partition()), vec((partition(), number()), 0..5));
    let below = |most: i64| prop_oneof![0..300_i64, 0..=most, Just(most)];
    let since = below(MAX_INTEGER - 2).prop_map(Timestamp);
    let known = option::of(option::of(since));
    let record = (partition(), option::of(below(MAX_INTEGER - 1)), known);
    let record =
        record.prop_map(|(partition, offset, known)| RecordPlace { partition, offset, known });
    prop_oneof![
        (origin..=MAX_INTEGER).prop_map(|base_offset| Placement::Partition { base_offset }),
        vec(record, 0..5).prop_map(Placement::Records),
        topic.prop_map(|(partition_count, keyless, bases)| Placement::Topic {
            partition_count,
            keyless,
            bases
        }),
    ]
}

fn entry(origin: Offset) -> impl Strategy<Value = Entry> {
    let numbers = (number(), number(), number());
    (numbers, any::<bool>(), any::<[u8; 16]>(), placement(origin)).prop_map(
        |((id, epoch, sequence), fresh, digest, placement)| Entry {
            producer_id: ProducerId(id),
            epoch,
            sequence,
            fresh,
            digest,
            placement,
        },
    )
}

fn remembered() -> impl Strategy<Value = Remembered> {
    (number(), number(), any::<[u8; 16]>(), placement(0)).prop_map(
        |(sequence, appended_at, digest, placement)| Remembered {
            sequence,
            digest,
            appended_at: Timestamp(appended_at),
            placement,
        },
    )
}

/// Nearly valid bytes.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let entries = number().prop_flat_map(|origin| {
        vec(entry(origin), 0..4).prop_map(move |entries| encode_entries(origin, &entries))
    });
    let recent = vec(remembered(), 0..6).prop_map(|recent| encode_recent(&recent));
    let answer = placement(0).prop_map(|answer| encode_placement(&answer));
    let valid = prop_oneof![entries, recent, answer];
    let spoilt = (valid, any::<prop::sample::Index>(), any::<u8>(), any::<bool>()).prop_map(
        |(mut bytes, at, byte, cut)| {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(if cut { at } else { bytes.len() });
            bytes
        },
    );
    let headed = vec(any::<u8>(), 0..80).prop_map(|rest| [&[1], &rest[..]].concat());
    prop_oneof![spoilt, headed, vec(any::<u8>(), 0..80)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn what_is_written_is_read(
        (origin, entries) in number().prop_flat_map(|o| (Just(o), vec(entry(o), 0..6))),
        recent in vec(remembered(), 0..6),
        answer in placement(0),
    ) {
        prop_assert_eq!(decode_placement(&encode_placement(&answer)), Ok(answer));
        let bytes = encode_entries(origin, &entries);
        prop_assert_eq!(decode_entries(origin, &bytes), Ok(entries));
        prop_assert_eq!(decode_recent(&encode_recent(&recent)), Ok(recent));
    }

    /// Decoding never panics and never guesses: what it accepts would be encoded the same.
    #[test]
    fn other_bytes_are_refused(bytes in bytes(), origin in number()) {
        if let Ok(entries) = decode_entries(origin, &bytes) {
            prop_assert_eq!(encode_entries(origin, &entries), &bytes[..]);
        }
        if let Ok(recent) = decode_recent(&bytes) && !bytes.is_empty() {
            prop_assert_eq!(encode_recent(&recent), &bytes[..]);
        }
        if let Ok(answer) = decode_placement(&bytes) {
            prop_assert_eq!(encode_placement(&answer), &bytes[..]);
        }
    }
}

#[test]
fn a_request_takes_24_bytes_at_most_while_numbers_are_small() {
    let entry = |i: i64| Entry {
        producer_id: ProducerId(16_383),
        epoch: 127,
        sequence: 16_383 - i,
        fresh: false,
        digest: digest("any"),
        placement: Placement::Partition { base_offset: 5_000_000_000 + i },
    };
    let entries: Vec<Entry> = (0..100).map(entry).collect();
    let size = |count: usize| encode_entries(5_000_000_000, &entries[..count]).len();
    assert_eq!(size(0), 1);
    assert!((size(1) - 1..=size(100) / 100).contains(&23), "{} {}", size(1), size(100));
    assert!(size(100) <= 24 * 100);
}

#[test]
fn refused_bytes() {
    let one = encode_entries(0, &[]);
    assert_eq!((one, decode_entries(9, &[1])), (vec![1], Ok(vec![])));
    assert_eq!(decode_recent(&[]), Ok(vec![]), "registered only");
    assert_eq!(decode_recent(&[1]), Ok(vec![]));
    let digest = [7; 16];
    let entry = |flags: u8, numbers: &[u8], place: &[u8]| {
        [&[1, flags], numbers, &digest[..], place].concat()
    };
    assert!(decode_entries(9, &entry(0, &[1, 2, 3], &[4])).is_ok());
    let max = [0xff; 9];
    let table: [(&str, Vec<u8>); 13] = [
        ("empty", vec![]),
        ("another format", entry(0, &[1, 2, 3], &[4]).iter().map(|b| b + 1).collect()),
        ("cut", entry(0, &[1, 2, 3], &[])),
        ("unknown flag", entry(8, &[1, 2, 3], &[4])),
        ("records of a topic", entry(6, &[1, 2, 3], &[1, 0, 1, 0])),
        ("a record too few", entry(4, &[1, 2, 3], &[2, 0, 1, 0])),
        ("records without end", entry(4, &[1, 2, 3], &[&max[..8], &[0x0f, 0, 1]].concat())),
        ("half a record", entry(4, &[1, 2, 3], &[1, 0, 1])),
        ("number without end", entry(0, &[1, 2, 3], &[0xff; 11])),
        ("number with a leading zero", entry(0, &[1, 2, 0x83, 0], &[4])),
        ("offset beyond all integers", entry(0, &[1, 2, 3], &[&max[..], &[0]].concat())),
        ("negative number", entry(0, &[1, 2, 3], &[&max[..], &[1]].concat())),
        ("negative count", entry(2, &[1, 2, 3], &[&[1, 0], &max[..], &[1]].concat())),
    ];
    for (name, bytes) in table {
        assert_eq!(decode_entries(9, &bytes), Err(Corrupt), "{name}");
    }
    assert!(decode_entries(9, &entry(4, &[1, 2, 3], &[1, 0, 1, 0])).is_ok());
    assert_eq!(decode_recent(&entry(1, &[1, 2], &[4])), Err(Corrupt), "recent has no fresh flag");
    let records = Placement::Records(Vec::new());
    assert_eq!(decode_placement(&encode_placement(&records)), Ok(records));
    let none: [(&str, &[u8]); 4] =
        [("nothing", &[]), ("no kind", &[1]), ("fresh", &[1, 1, 4]), ("more", &[1, 0, 4, 4])];
    for (name, bytes) in none {
        assert_eq!(decode_placement(bytes), Err(Corrupt), "{name}");
    }
}
