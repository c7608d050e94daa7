//! The records of a row that are left after compaction.
//!
//! Stored as one bit per record, the first in the lowest bit of the first byte, without trailing
//! zero bytes: a row of a thousand records needs 125 bytes, and SQL can read it.

use super::Offset;

/// The positions of the remaining records, counted from the row's first; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept(Box<[u32]>);

impl Kept {
    /// Builds the set from ascending positions. None: no record is left.
    pub fn new(places: Vec<u32>) -> Option<Self> {
        (!places.is_empty()).then(|| Self(places.into()))
    }

    /// Decodes the stored form for a row with this many records. None: it is invalid.
    pub fn decode(bytes: &[u8], record_count: i64) -> Option<Self> {
        bytes.last().filter(|last| **last != 0)?;
        let places = (0u32..).zip(bytes).flat_map(|(index, byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| index * 8 + bit)
        });
        let places: Box<[u32]> = places.collect();
        places.last().filter(|last| i64::from(**last) < record_count)?;
        Some(Self(places))
    }

    pub fn encode(&self) -> Vec<u8> {
        let last = self.0.last().copied().unwrap_or_default();
        let mut bytes = vec![0; last as usize / 8 + 1];
        for place in &self.0 {
            bytes[*place as usize / 8] |= 1 << (place % 8);
        }
        bytes
    }

    /// The number of remaining records.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The position of the nth remaining record; of the last one if there are fewer.
    pub fn place(&self, n: usize) -> Offset {
        let place = self.0.get(n).or(self.0.last());
        place.copied().map_or(0, Offset::from)
    }

    /// The number of remaining records before this position.
    pub fn count_before(&self, place: Offset) -> usize {
        self.0.partition_point(|kept| Offset::from(*kept) < place)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bit_a_record() {
        for (places, bytes) in [
            (vec![0], &[0b1][..]),
            (vec![1, 7], &[0b1000_0010]),
            (vec![8], &[0, 0b1]),
            (vec![0, 9, 23], &[0b1, 0b10, 0b1000_0000]),
        ] {
            let kept = Kept::new(places.clone()).unwrap();
            assert_eq!(kept.encode(), bytes, "{places:?}");
            assert_eq!(Kept::decode(bytes, 24), Some(kept), "{places:?}");
        }
        assert_eq!(Kept::new(Vec::new()), None);
    }

    #[test]
    fn there_is_one_way_to_write_it() {
        for (bytes, record_count) in [(&[][..], 8), (&[0], 8), (&[1, 0], 16), (&[0b1000], 3)] {
            assert_eq!(Kept::decode(bytes, record_count), None, "{bytes:?} of {record_count}");
        }
        assert!(Kept::decode(&[0b1000], 4).is_some());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(places in prop::collection::btree_set(0u32..3_000, 1..200)) {
            let places: Vec<u32> = places.into_iter().collect();
            let kept = Kept::new(places.clone()).unwrap();
            prop_assert_eq!(Kept::decode(&kept.encode(), 3_000), Some(kept.clone()));
            prop_assert_eq!(kept.count(), places.len());
            for (n, place) in places.iter().enumerate() {
                prop_assert_eq!(kept.place(n), i64::from(*place));
                prop_assert_eq!(kept.count_before(i64::from(*place)), n);
                prop_assert_eq!(kept.count_before(i64::from(*place) + 1), n + 1);
            }
        }
    }
}
