//! Text tables, one row per event:
//!
//! ```text
//! topic c 2              -> c0 c1 of a topic come to be; `delete c`
//! join a c d             -> g1 c0 c1      what the member is told: its generation, what it has,
//! beat a                 -> g2 c0, let go c1                      and what it is to let go of
//! beat a g2              (it shows the answer of a generation)
//! settles a g2           (it commits a cursor that shows it)
//! commit a g1 c1         -> ok
//! who                    -> c0 a1, c1 b2, and what goes where: c1 a1>b (told: c1 a1>>b)
//! ```
//!
//! Further: `leave a`, `late a` (its lease runs out), `pass 100` (time), `settle`, `lease a`,
//! `starts`, `reset`. A join's words: topics, `/pattern/`, `as pod`, `latest`, `for 30` (session
//! timeout), `reads c*` (what its token covers).

use super::world::{World, a_join};
use crate::{
    model::{
        LogId,
        group::{Membership, Partitions},
    },
    rules::{
        Refusal,
        group::{GroupPartition, Revoked},
        tests::{
            name,
            text::{rows, show_refusal},
        },
    },
};

pub fn check(table: &str) {
    let mut world = World::new();
    for (number, row) in rows(table).enumerate() {
        // (a pattern may have bars)
        let (event, want) = row.split_once("->").unwrap_or((row, ""));
        let generation = world.state.generation;
        assert_eq!(world.event(event.trim()), want.trim(), "row {number}: {row}");
        assert!(world.state.generation >= generation, "row {number}: {row}");
    }
}

impl World {
    fn event(&mut self, event: &str) -> String {
        let words: Vec<&str> = event.split_whitespace().collect();
        match words[..] {
            ["topic", topic, count] => self.grow(&name(topic), count.parse().unwrap()),
            ["delete", topic] => self.delete(&name(topic)),
            ["join", id, ..] => return told(self.join(id, &a_join(&words[2..]))),
            ["beat", id] => return told(self.beat(id, None)),
            ["beat", id, shown] => return told(self.beat(id, shown[1..].parse().ok())),
            ["settles", id, shown] => self.let_go(id, shown[1..].parse().unwrap()),
            ["leave", id] => {
                return self.leave(id).map_or_else(|why| show_refusal(&why), |()| "".into());
            }
            ["late", id] => self.late(id),
            ["pass", ms] => self.now.0 += ms.parse::<i64>().unwrap(),
            ["settle"] => self.settle(),
            ["lease", id] => {
                let lease = self.state.members[id].lease_expires_at.0 - self.now.0;
                return format!("{lease} left, g{}", self.state.generation);
            }
            ["commit", id, generation, place] => {
                let generation = generation[1..].parse().unwrap();
                let judged = self.commit(id, generation, self.log(place));
                return judged.map_or_else(|why| show_refusal(&why), |()| "ok".into());
            }
            ["who"] => return self.each(who),
            ["starts"] => {
                return self.each(|place| {
                    place.starts.map_or("-".into(), |starts| format!("{starts:?}").to_lowercase())
                });
            }
            ["reset"] => return self.state.auto_offset_reset.as_str().into(),
            _ => panic!("{event}?"),
        }
        String::new()
    }

    fn log(&self, place: &str) -> LogId {
        let mut partitions = self.topics.partitions.iter();
        let found = partitions.find(|(_, topic, number)| format!("{topic}{number}") == place);
        found.map(|(log_id, ..)| *log_id).unwrap()
    }

    fn each(&self, show: impl Fn(&GroupPartition) -> String) -> String {
        let mut places: Vec<&GroupPartition> = self.state.places.values().collect();
        places.sort_by_key(|place| (&place.topic, place.partition));
        let shown =
            |place: &GroupPartition| format!("{}{} {}", place.topic, place.partition, show(place));
        places.into_iter().map(shown).collect::<Vec<_>>().join(", ")
    }
}

fn who(place: &GroupPartition) -> String {
    let owner = place.owner.as_ref();
    let owner = owner.map_or("-".into(), |owner| format!("{}{}", owner.member_id, owner.since));
    let target = place.assigned_to.as_deref().unwrap_or("-");
    assert_eq!(place.is_to_move(), place.revoked.is_some(), "{place:?}");
    match place.revoked {
        Some(Revoked { let_go_by: Some(_), .. }) => format!("{owner}>>{target}"),
        Some(_) => format!("{owner}>{target}"),
        None => owner,
    }
}

fn told(membership: Result<Membership, Refusal>) -> String {
    let Membership { generation, assignment, revoked } = match membership {
        Ok(membership) => membership,
        Err(refusal) => return show_refusal(&refusal),
    };
    let list = |partitions: &Partitions| {
        let each = partitions.iter().flat_map(|(topic, numbers)| {
            numbers.iter().map(move |number| format!(" {topic}{number}"))
        });
        each.collect::<String>()
    };
    let let_go = if revoked.is_empty() { "" } else { ", let go" };
    format!("g{generation}{}{let_go}{}", list(&assignment), list(&revoked))
}
