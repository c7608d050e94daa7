//! Where records go, and where a retry finds them.

use crate::{
    model::{batch::Line, partitioner},
    rules::append::placement::{offsets, partition_of},
};

fn line(key: Option<&str>) -> Line {
    Line {
        end: 0,
        content_bytes: 0,
        key_hash: key.map(|key| partitioner::key_hash(key.as_bytes())),
    }
}

#[test]
fn keys_choose_their_partition_and_keyless_records_stay_together() {
    let (count, keyless) = (12, 5);
    for key in ["", "a", "order-17"] {
        let want = partitioner::partition_of(partitioner::key_hash(key.as_bytes()), count);
        assert_eq!(partition_of(&line(Some(key)), count, keyless), want, "{key:?}");
    }
    assert_eq!(partition_of(&line(None), count, keyless), keyless);
}

#[test]
fn offsets_follow_from_the_first_of_each_partition() {
    let keys = [None, Some("a"), None, Some("b"), Some("a")];
    let records = keys.map(line);
    let [a, b] = ["a", "b"].map(|key| partition_of(&line(Some(key)), 3, 0));
    let keyless = (0..3).find(|p| *p != a && *p != b).unwrap();
    assert_ne!(a, b, "keys that part");
    let bases = [(keyless, 10), (a, 20), (b, 30)];
    let want = [(keyless, 10), (a, 20), (keyless, 11), (b, 30), (a, 21)];
    assert_eq!(offsets(&records, 3, Some(keyless), &bases), Some(want.to_vec()));
    assert_eq!(offsets(&records, 3, Some(keyless), &bases[..2]), None, "not of these records");
    assert_eq!(offsets(&[], 3, None, &[]), Some(Vec::new()));
}
