//! A snapshot folds the rows after the previous one into the states of the registered producers.

use std::collections::BTreeMap;

use super::{
    encoding::{self, Corrupt},
    producer_state::ProducerState,
};
use crate::model::{Offset, ProducerId, Timestamp};

/// A row of a log that a load brought.
pub struct TailRow<'a> {
    pub base_offset: Offset,
    pub record_count: i64,
    pub appended_at: Timestamp,
    pub producers: Option<&'a [u8]>,
}

/// A snapshot: the states of the registered producers with the offset each stands at, and the rows
/// behind the last snapshot. Answers what changed, with the instant of the producer's last row.
/// Producers without a registered state (expired) are left out.
pub fn snapshot(
    mut states: BTreeMap<ProducerId, (ProducerState, Offset)>,
    rows: &[TailRow<'_>],
) -> Result<Vec<(ProducerId, ProducerState, Timestamp)>, Corrupt> {
    let mut changed: BTreeMap<ProducerId, Timestamp> = BTreeMap::new();
    for row in rows {
        let Some(bytes) = row.producers else { continue };
        for entry in encoding::decode_entries(row.base_offset, bytes)? {
            if let Some((state, as_of)) = states.get_mut(&entry.producer_id)
                && row.base_offset >= *as_of
            {
                state.apply(&entry, row.appended_at);
                changed.insert(entry.producer_id, row.appended_at);
            }
        }
    }
    let folded = |(id, at)| states.remove(&id).map(|(state, _)| (id, state, at));
    Ok(changed.into_iter().filter_map(folded).collect())
}
