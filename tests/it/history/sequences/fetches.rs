//! What members fetch, and what their cursors say: where each partition goes on, where the run
//! began in it, and what the answer told the member to let go of.

use std::collections::{BTreeMap, BTreeSet};

use oncelog::{
    broker::Error,
    model::{
        Code, LogId,
        group::{Membership, Partitions},
        read::Run,
    },
    rules::{
        Refusal,
        group::position::{is_withheld, position, run_began},
    },
};
use serde_json::{Value, json};

use super::{
    call::Fetch,
    groups::by_topic,
    want::{ANY, Judged, Reply, Want},
    world::{Cursor, Position, World, name},
};

const LIMIT: usize = 500;

type Positions = BTreeMap<LogId, Position>;

/// A partition that the member owned when it called.
struct Owned {
    log_id: LogId,
    since: i64,
    is_revoked: bool,
}

/// What a fetch goes on from.
struct Fetching<'a> {
    group: &'a str,
    named: Positions,
    /// Partitions that are gone and that the cursor may name.
    ghosts: BTreeSet<LogId>,
    run: Run,
    continues: bool,
}

impl World {
    pub fn fetch(&mut self, fetch: &Fetch, reply: &Reply) -> Judged {
        let (group, member) = (&*fetch.group, &*fetch.member);
        let life = self.member(group, member)?.life;
        let (fetching, shown) = self.begin_fetch(fetch, life)?;
        let places = self.groups[group].state.places.iter();
        let owned = places.filter_map(|(log_id, place)| {
            let owner = place.owner.as_ref().filter(|owner| owner.member_id == member)?;
            let is_revoked = place.revoked.is_some();
            Some(Owned { log_id: *log_id, since: owner.since, is_revoked })
        });
        let owned: Vec<Owned> = owned.collect();
        let Membership { generation, assignment, mut revoked } =
            self.beat(group, member, shown, reply)?;
        let told = (!revoked.is_empty()).then_some(generation);
        let (kept, others): (Vec<_>, Vec<_>) = owned
            .into_iter()
            .filter(|owned| self.is_in(owned, &assignment) || self.is_in(owned, &revoked))
            .partition(|owned| !owned.is_revoked && self.is_in(owned, &assignment));
        let revoked_now: Vec<&Owned> =
            others.iter().filter(|owned| self.is_in(owned, &revoked)).collect();
        let unsettled = self.unsettled(&fetching, &kept, &revoked_now);
        let read = kept.iter().filter(|owned| !unsettled.contains_key(&owned.log_id));
        let places = self.read_from(&fetching, read)?;
        let (records, mut next) = self.taken(&places, fetch.limit.unwrap_or(LIMIT), reply);
        let ghosts = self.groups[group].ghosts.get(member).cloned().unwrap_or_default();
        let assignment = self.with_ghosts(&ghosts, assignment, &reply.body["assignment"]);
        for log_id in fetching.named.keys().filter(|log_id| !places.contains_key(*log_id)) {
            let Some((topic, partition, _)) = self.find(*log_id) else { continue };
            let topic = name(topic);
            if !assignment.get(&topic).is_some_and(|kept| kept.contains(&partition)) {
                revoked.entry(topic).or_default().insert(partition);
            }
        }
        let gone =
            fetching.named.keys().copied().chain(ghosts).chain(fetching.ghosts.clone()).collect();
        let revoked = self.with_ghosts(&gone, revoked, &reply.body["revoked"]);
        next.extend(unsettled);
        if let Some(text) = reply.body["cursor"].as_str() {
            let cursor =
                Cursor { group: group.to_owned(), life, positions: next, ghosts: gone, told };
            self.cursors.insert(text.to_owned(), cursor);
        }
        Ok(Want::ok(json!({"generation": generation, "assignment": by_topic(&assignment),
            "revoked": by_topic(&revoked), "records": records, "cursor": ANY})))
    }

    /// With the generation of the answer that the cursor shows.
    fn begin_fetch<'a>(
        &self,
        fetch: &'a Fetch,
        life: u64,
    ) -> Result<(Fetching<'a>, Option<i64>), Want> {
        let group = &*fetch.group;
        let continues = fetch.run == Some("continue");
        let run = if continues { Run::Continue } else { Run::SinceCommit };
        let Some(text) = &fetch.cursor else {
            let named = Positions::new();
            let ghosts = BTreeSet::new();
            return Ok((Fetching { group, named, ghosts, run, continues }, None));
        };
        let cursor = self.cursors.get(text).filter(|c| c.group == group && c.life == life);
        let cursor = cursor.ok_or(Want::code(Code::InvalidCursor))?;
        let mut named = cursor.positions.clone();
        let ghosts = cursor.ghosts.clone();
        if fetch.run != Some("new") {
            return Ok((Fetching { group, named, ghosts, run, continues }, cursor.told));
        }
        for position in named.values_mut() {
            position.began = Some(Some(position.offset));
        }
        Ok((Fetching { group, named, ghosts, run: Run::Continue, continues }, cursor.told))
    }

    fn is_in(&self, owned: &Owned, list: &Partitions) -> bool {
        self.find(owned.log_id).is_some_and(|(topic, partition, _)| {
            list.get(&name(topic)).is_some_and(|list| list.contains(&partition))
        })
    }

    /// What the cursor says of a partition; of another ownership it says nothing.
    fn named(&self, fetching: &Fetching<'_>, owned: &Owned) -> Option<Position> {
        let named = *fetching.named.get(&owned.log_id).filter(|at| at.since == owned.since)?;
        let committed = self.reset_context(fetching.group, owned.log_id).committed_offset;
        let standing = [committed, self.pinned_offset(fetching.group, owned.log_id)];
        let began = run_began(fetching.run, named.offset, named.began, standing);
        Some(Position { began, ..named })
    }

    fn pinned_offset(&self, group: &str, log_id: LogId) -> Option<i64> {
        self.pin(group, log_id).map(|(_, offset)| offset)
    }

    /// What else belongs to the run: what was fetched of partitions that are to be let go of, and
    /// is not committed; of a run that continues also of those that are lost.
    fn unsettled(&self, fetching: &Fetching<'_>, kept: &[Owned], revoked: &[&Owned]) -> Positions {
        let mut unsettled = Positions::new();
        for owned in revoked {
            let Some(named) = self.named(fetching, owned) else { continue };
            let context = self.reset_context(fetching.group, owned.log_id);
            let begins = position(
                context.committed_offset,
                context.starts,
                context.auto_offset_reset,
                context.log,
            );
            let pinned = self.pinned_offset(fetching.group, owned.log_id);
            if begins != Ok(named.offset) && pinned != Some(named.offset) {
                unsettled.insert(owned.log_id, named);
            }
        }
        for (log_id, named) in fetching.named.iter().filter(|_| fetching.continues) {
            let is_it = |owned: &Owned| (owned.log_id, owned.since) == (*log_id, named.since);
            let is_here = kept.iter().any(is_it) || revoked.iter().any(|owned| is_it(owned));
            if !is_here && named.began != Some(Some(named.offset)) {
                unsettled.insert(*log_id, *named);
            }
        }
        unsettled
    }

    /// Where each of these is read from; what a prepared transaction holds is not read.
    fn read_from<'a>(
        &self,
        fetching: &Fetching<'_>,
        read: impl Iterator<Item = &'a Owned>,
    ) -> Result<Positions, Want> {
        let mut places = Positions::new();
        for owned in read {
            let Owned { log_id, since, .. } = *owned;
            let named = self.named(fetching, owned);
            let at = named.map(|named| named.offset);
            if is_withheld(at, self.pinned_offset(fetching.group, log_id)) {
                continue;
            }
            let context = self.reset_context(fetching.group, log_id);
            let from = at.or(context.committed_offset);
            let offset = position(from, context.starts, context.auto_offset_reset, context.log);
            let offset = offset.map_err(|refusal| self.at_place(refusal, log_id))?;
            let began = named.map_or(Some(context.committed_offset), |named| named.began);
            places.insert(log_id, Position { since, offset, began });
        }
        Ok(places)
    }

    fn at_place(&self, refusal: Refusal, log_id: LogId) -> Want {
        let mut want = Want::from(Error::from(refusal));
        if let Some((topic, partition, _)) = self.find(log_id) {
            want.body["topic"] = json!(topic);
            want.body["partition"] = json!(partition);
        }
        want
    }

    /// What a fetch takes of each place is its own affair: learnt from the answer; but as much as
    /// the limit permits comes, in order. Answers the records, and where each place goes on.
    fn taken(&self, places: &Positions, limit: usize, reply: &Reply) -> (Vec<Value>, Positions) {
        let mut next = places.clone();
        let (mut records, mut left) = (Vec::new(), 0);
        for said in reply.body["records"].as_array().into_iter().flatten() {
            let at = (said["topic"].as_str(), said["partition"].as_i64());
            let of = next.iter_mut().find_map(|(log_id, position)| {
                let (topic, partition, log) = self.find(*log_id)?;
                (at == (Some(topic), Some(partition.into()))).then_some((log, position))
            });
            let Some((log, position)) = of else { continue };
            records.extend(self.shown(log, position.offset, said));
            position.offset += 1;
        }
        for (log_id, position) in &next {
            left += self.find(*log_id).map_or(0, |(.., log)| log.end() - position.offset);
        }
        if records.len() > limit || records.len() < limit && left > 0 {
            records.push(json!(format!("{limit} records, or all that there are")));
        }
        (records, next)
    }
}
