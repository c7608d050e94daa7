//! Transactions newest first, from a list that can only be read by ascending id.
//!
//! Ids are UUIDv7, so they are ordered by time, and a list can be asked for what follows any id. A
//! range with more items than a page is split in the middle, and its later half comes first: only
//! the first page of each range in progress is held.

use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::cli::client::ListPage;

/// The bits after the variant of a UUID.
const TAIL_BITS: u32 = 62;

/// What is still to be listed; the last one comes first.
enum Step {
    /// The items after the first id, up to the second.
    Range(Option<Uuid>, Option<Uuid>),
    /// Items in ascending order.
    Items(Vec<Box<RawValue>>),
}

#[derive(Deserialize)]
struct Item {
    transaction_id: Uuid,
}

/// Passes the newest items, at most `limit`, to `each`. `page` reads the items after an id.
pub async fn list(
    limit: u64,
    page: impl AsyncFn(Option<Uuid>) -> anyhow::Result<ListPage>,
    mut each: impl FnMut(&RawValue) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut left = limit;
    let mut steps = vec![Step::Range(None, None)];
    while left > 0
        && let Some(step) = steps.pop()
    {
        let (after, up_to) = match step {
            Step::Range(after, up_to) => (after, up_to),
            Step::Items(items) => {
                for item in items.iter().rev().take(usize::try_from(left).unwrap_or(usize::MAX)) {
                    each(item)?;
                    left -= 1;
                }
                continue;
            }
        };
        let ListPage { mut items, next_after } = page(after).await?;
        let mut ids = Vec::with_capacity(items.len());
        for item in &items {
            ids.push(serde_json::from_str::<Item>(item.get())?.transaction_id);
        }
        let within = up_to.map_or(ids.len(), |up_to| ids.partition_point(|id| *id <= up_to));
        let is_whole = next_after.is_none() || within < ids.len();
        items.truncate(within);
        steps.push(Step::Items(items));
        if let Some(last) = ids.last().filter(|_| !is_whole) {
            let middle = match up_to {
                Some(up_to) => middle(*last, up_to),
                // hardly any id is of the future
                None => Some(Uuid::now_v7()).filter(|now| now > last),
            };
            steps.push(Step::Range(Some(*last), middle.or(up_to)));
            steps.extend(middle.map(|middle| Step::Range(Some(middle), up_to)));
        }
    }
    Ok(())
}

/// The id in the middle of two; none if they are neighbours.
fn middle(low: Uuid, high: Uuid) -> Option<Uuid> {
    let (low, high) = (position(low), position(high));
    let middle = low + high.saturating_sub(low) / 2;
    (middle > low).then(|| id_at(middle))
}

/// The place of a UUIDv7 among all: its bits without version and variant.
fn position(id: Uuid) -> u128 {
    let bits = id.as_u128();
    let head = bits >> 80 << 12 | bits >> 64 & 0xfff;
    head << TAIL_BITS | bits & ((1 << TAIL_BITS) - 1)
}

fn id_at(position: u128) -> Uuid {
    let head = position >> TAIL_BITS;
    let tail = position & ((1 << TAIL_BITS) - 1);
    Uuid::from_u128(head >> 12 << 80 | 7 << 76 | (head & 0xfff) << 64 | 2 << TAIL_BITS | tail)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::{collection::btree_set, prelude::*};
    use serde_json::json;

    use super::*;
    use crate::model::uuid_v7;

    const PAGE: usize = 10;

    /// Lists these positions, and counts the requests.
    fn listed(positions: &[u128], limit: u64) -> (Vec<Uuid>, usize) {
        let requests = Cell::new(0);
        let page = async |after: Option<Uuid>| {
            requests.set(requests.get() + 1);
            let ids = positions.iter().map(|position| id_at(*position));
            let rest: Vec<Uuid> =
                ids.filter(|id| after.is_none_or(|after| *id > after)).take(PAGE + 1).collect();
            let raw = |id: &Uuid| {
                RawValue::from_string(json!({"transaction_id": id}).to_string()).unwrap()
            };
            let items: Vec<_> = rest.iter().take(PAGE).map(raw).collect();
            let next_after = (rest.len() > PAGE).then(|| rest[PAGE - 1].to_string());
            Ok(ListPage { items, next_after })
        };
        let mut found = Vec::new();
        let each = |item: &RawValue| {
            found.push(serde_json::from_str::<Item>(item.get())?.transaction_id);
            Ok(())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(list(limit, page, each)).unwrap();
        (found, requests.get())
    }

    #[test]
    fn a_position_is_that_of_one_id() {
        let first = Uuid::parse_str("019aa5b6-5c00-7fff-8000-000000000001").unwrap();
        let next = Uuid::parse_str("019aa5b6-5c01-7000-8000-000000000001").unwrap();
        for id in [first, next, Uuid::now_v7()] {
            assert_eq!(id_at(position(id)), id);
            assert_eq!(uuid_v7(&id.to_string()), Some(id));
        }
        let middle = middle(first, next).unwrap();
        assert!(first < middle && middle < next && uuid_v7(&middle.to_string()).is_some());
        assert_eq!(super::middle(first, first), None);
    }

    #[test]
    fn a_few_of_many_take_a_few_requests() {
        let now = position(Uuid::now_v7());
        // one a second, for a day
        let second = 1000_u128 << (12 + TAIL_BITS);
        let positions: Vec<u128> = (0..86_400).rev().map(|age| now - age * second).collect();
        let (found, requests) = listed(&positions, 25);
        let newest: Vec<Uuid> = positions.iter().rev().take(25).map(|at| id_at(*at)).collect();
        assert_eq!(found, newest);
        assert!(requests < 30, "{requests}");
        assert_eq!(listed(&positions[..7], 25).1, 1);
        assert_eq!(listed(&positions, 0).1, 0);
    }

    proptest! {
        /// Also where ids are neighbours, or of the future.
        #[test]
        fn the_newest_come_first_and_each_once(
            ids in btree_set(prop_oneof![0..200_u128, any::<u128>().prop_map(|n| n >> 6)], 0..200),
            limit in 0..250_u64,
        ) {
            let positions: Vec<u128> = ids.into_iter().collect();
            let newest = positions.iter().rev().take(limit as usize).map(|at| id_at(*at));
            let newest: Vec<Uuid> = newest.collect();
            prop_assert_eq!(listed(&positions, limit).0, newest);
        }
    }
}
