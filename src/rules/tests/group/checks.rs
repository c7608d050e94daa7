//! The invariants of a group, checked after every step.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{prelude::*, test_runner::TestCaseError};

use super::properties::{By, Life, Ownership, Told};
use crate::{
    model::{LogId, Name},
    rules::group::{GroupPartition, GroupState, Starts},
};

impl Life {
    /// A new ownership starts in a new generation, unlike all before it.
    pub fn check_ownerships(
        &mut self,
        before: &GroupState,
        after: &GroupState,
        by: Option<&By>,
    ) -> Result<(), TestCaseError> {
        prop_assert!(after.generation >= before.generation, "generations only grow");
        let (was, is) = (ownerships(before), ownerships(after));
        for ownership in is.difference(&was) {
            prop_assert!(!self.ended.contains(ownership), "{:?} once more", ownership);
            let since = ownership.2;
            prop_assert!(before.generation < since && since <= after.generation);
            self.seen.saw("got");
        }
        for ownership in was.difference(&is) {
            self.ended.insert(ownership.clone());
            let lives = after.members.contains_key(&ownership.1);
            if lives {
                self.seen.saw("handed over");
            }
            let is_let_go = by.is_some_and(|by| by.lets_go.contains(ownership));
            prop_assert!(!lives || is_let_go, "{:?} lost it untold", ownership);
        }
        Ok(())
    }

    /// A member that was told that it owns a partition owns it, until it has sent a generation
    /// whose response said otherwise; and all responses agree.
    pub fn check_told(&mut self, after: &GroupState, by: Option<&By>) -> Result<(), TestCaseError> {
        self.told.retain(|id, _| after.members.contains_key(id));
        for (log_id, place) in &after.places {
            prop_assert_eq!(place.revoked.is_some(), place.is_to_move(), "{:?}", log_id);
        }
        let now = ownerships(after);
        for (id, answers) in &mut self.told {
            if let Some(by) = by.filter(|by| by.id == *id) {
                for Told { has, is_to_let_go, .. } in &mut *answers {
                    // what came back to it meanwhile it did not let go of
                    let is_still = |ownership: &Ownership| {
                        now.contains(ownership) || !by.lets_go.contains(ownership)
                    };
                    has.retain(is_still);
                    is_to_let_go.retain(is_still);
                }
            }
            for Told { has, is_to_let_go, .. } in answers {
                for ownership in has.union(is_to_let_go) {
                    let is_there = after.places.contains_key(&ownership.0);
                    prop_assert!(
                        !is_there || now.contains(ownership),
                        "{} was told {:?}",
                        id,
                        ownership
                    );
                }
            }
        }
        Ok(())
    }

    /// A commit is accepted during the ownership in which its records were fetched.
    pub fn check_tickets(&mut self, after: &GroupState) -> Result<(), TestCaseError> {
        let now = ownerships(after);
        let mut fenced = 0;
        for (ownership, generation) in &self.tickets {
            let (log_id, id, _) = ownership;
            let judged = self.world.commit(id, *generation, *log_id);
            prop_assert_eq!(judged.is_ok(), now.contains(ownership), "{:?}", ownership);
            fenced += usize::from(judged.is_err());
        }
        self.seen.add("fenced", fenced);
        Ok(())
    }

    /// Every subscribed partition has an assignee, evenly, and with as few moves as possible.
    pub fn check_assignment(
        &mut self,
        before: &GroupState,
        after: &GroupState,
    ) -> Result<(), TestCaseError> {
        if after.topics_version != self.world.topics.version {
            return Ok(());
        }
        let mut count: BTreeMap<&str, usize> = after.members.keys().map(|id| (&**id, 0)).collect();
        let covers =
            |id: &str, place: &GroupPartition| after.members[id].subscription.covers(&place.topic);
        for (log_id, topic, _) in &self.world.topics.partitions {
            let is_asked_for =
                after.members.keys().any(|id| after.members[id].subscription.covers(topic));
            let place = after.places.get(log_id);
            let assigned_to = place.and_then(|place| place.assigned_to.as_deref());
            prop_assert_eq!(assigned_to.is_some(), is_asked_for);
            let Some((place, id)) = place.zip(assigned_to) else { continue };
            prop_assert!(covers(id, place) && place.owner.is_some(), "{:?}", place);
            *count.get_mut(id).unwrap() += 1;
        }
        for place in after.places.values() {
            let Some(id) = &place.assigned_to else { continue };
            let fewer =
                count.iter().find(|(other, n)| **n + 1 < count[&**id] && covers(other, place));
            prop_assert!(fewer.is_none(), "{:?} not to {:?}", place, fewer);
        }
        let mut again = after.clone();
        again.topics_version -= 1;
        again.refresh(&self.world.topics, self.world.now);
        prop_assert_eq!(&again, after, "an assignment that is well stays");
        self.check_moves(before, after)
    }

    /// With equal subscriptions, counts the partitions that can stay.
    fn check_moves(
        &mut self,
        before: &GroupState,
        after: &GroupState,
    ) -> Result<(), TestCaseError> {
        let names = self.world.names();
        let topics = |id: &String| -> Vec<&Name> {
            names.iter().filter(|name| after.members[id].subscription.covers(name)).collect()
        };
        let mut kinds: Vec<_> = after.members.keys().map(topics).collect();
        kinds.dedup();
        if kinds.len() != 1 || before == after {
            return Ok(());
        }
        let mut held: BTreeMap<&String, usize> = after.members.keys().map(|id| (id, 0)).collect();
        let (mut all, mut kept) = (0, 0);
        for (log_id, place) in after.places.iter().filter(|(_, place)| place.assigned_to.is_some())
        {
            all += 1;
            let was = before.places.get(log_id);
            let assigned_to = was.and_then(|was| was.assigned_to.as_ref());
            let owner = was.and_then(|was| was.owner.as_ref()).map(|owner| &owner.member_id);
            let mut holders = [assigned_to, owner].into_iter().flatten();
            let Some(holder) = holders.find(|id| after.members.contains_key(*id)) else { continue };
            *held.get_mut(holder).unwrap() += 1;
            kept += usize::from(place.assigned_to.as_ref() == Some(holder));
        }
        let (each, more) = (all / held.len(), all % held.len());
        let mut held: Vec<usize> = held.into_values().collect();
        held.sort_unstable_by(|one, other| other.cmp(one));
        let most = |(at, held): (usize, usize)| held.min(each + usize::from(at < more));
        prop_assert_eq!(kept, held.into_iter().enumerate().map(most).sum::<usize>(), "moves");
        self.seen.saw("counted");
        Ok(())
    }

    pub fn check_starts(&mut self, after: &GroupState) -> Result<(), TestCaseError> {
        for (log_id, place) in &after.places {
            let is_earliest = self.earliest.contains(log_id);
            let starts = if is_earliest { Starts::Earliest } else { Starts::Reset };
            prop_assert_eq!(place.starts, Some(starts), "{:?}", place);
        }
        self.seen.add("earliest", self.earliest.len());
        Ok(())
    }
}

pub fn ownerships(state: &GroupState) -> BTreeSet<Ownership> {
    let of = |(log_id, place): (&LogId, &GroupPartition)| {
        let owner = place.owner.as_ref()?;
        Some((*log_id, owner.member_id.clone(), owner.since))
    };
    state.places.iter().filter_map(of).collect()
}
