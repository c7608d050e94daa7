//! Committed offsets of groups. Who may commit, and over what, is asked of the rules.

use std::collections::BTreeMap;

use oncelog::{
    broker::Error,
    model::{
        Code, LogId,
        group::{Member, view::ResetTo},
        transaction::CommitRight,
    },
    rules::{
        Refusal,
        group::{
            self,
            offsets::{self, Committer, OffsetPlace, OffsetVerdict, RequestedOffset, judge_all},
            reset,
        },
    },
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    call::{Commit, OffsetItem, Partition, Right},
    groups::NOW,
    want::{Judged, Want},
    world::{Committed, Cursor, Phase, Position, World, name},
};

/// An offset that a transaction is to commit.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub offset: i64,
    pub claim: CommitRight,
}

impl World {
    pub fn pin(&self, group: &str, log_id: LogId) -> Option<(Uuid, i64)> {
        let place = (group.to_owned(), log_id);
        self.transactions.iter().find_map(|(id, transaction)| {
            let pinned = transaction.offsets.get(&place)?;
            (transaction.state == Phase::Prepared).then_some((*id, pinned.offset))
        })
    }

    pub fn row(&self, group: &str, log_id: LogId) -> offsets::OffsetRow {
        let found = self.groups.get(group);
        let committed = found.and_then(|group| group.offsets.get(&log_id));
        let owner = found.and_then(|group| group.state.places.get(&log_id)?.owner.clone());
        offsets::OffsetRow {
            committed_offset: committed.map(|committed| committed.offset),
            metadata: None,
            owner: owner.map(|owner| (owner.member_id, owner.since)),
            pinned_by: self.pin(group, log_id).map(|(id, _)| id),
        }
    }

    pub fn facts(&self, group: &str) -> offsets::GroupFacts {
        let state = self.groups.get(group).map(|group| &group.state);
        offsets::GroupFacts {
            generation: state.map_or(0, |state| state.generation),
            members: state.map(|s| s.members.keys().cloned().collect()).unwrap_or_default(),
        }
    }

    /// What a cursor says to a member of this generation.
    pub fn cursor(&self, group: &str, generation: i64, cursor: &str) -> Result<&Cursor, Want> {
        let found = self.groups.get(group).zip(self.cursors.get(cursor));
        let found = found.filter(|(at, c)| c.group == group && c.life == at.life);
        let (at, cursor) = found.ok_or(Want::code(Code::InvalidCursor))?;
        let newest = at.state.generation;
        let is_later = |position: &Position| position.since > generation;
        if generation > newest || cursor.positions.values().any(is_later) {
            return Err(Refusal::IllegalGeneration { generation: newest }.into());
        }
        Ok(cursor)
    }

    /// What the items of a transaction claim; the last one for a place wins.
    pub fn claims(&self, items: &[OffsetItem]) -> Result<BTreeMap<(String, LogId), Claimed>, Want> {
        let mut claims = BTreeMap::new();
        for item in items {
            match item {
                OffsetItem::At { group, topic, partition, offset, right } => {
                    let log_id = self.log(topic, *partition)?.log_id;
                    let claim = match right {
                        Right::Member(member_id, generation, expected) => CommitRight::Member {
                            member_id: member_id.clone(),
                            generation: *generation,
                            expected: *expected,
                            began: None,
                        },
                        Right::Expected(expected) => CommitRight::Expected(*expected),
                        Right::Free => CommitRight::Expected(None),
                    };
                    let claimed = Claimed { offset: *offset, claim };
                    add_claim(&mut claims, (group.clone(), log_id), claimed);
                }
                OffsetItem::Cursor { group, member, generation, cursor } => {
                    for (log_id, at) in &self.cursor(group, *generation, cursor)?.positions {
                        let claim = CommitRight::Member {
                            member_id: member.clone(),
                            generation: at.since,
                            expected: None,
                            began: at.began,
                        };
                        let claimed = Claimed { offset: at.offset, claim };
                        add_claim(&mut claims, (group.clone(), *log_id), claimed);
                    }
                }
            }
        }
        // where a topic is gone a cursor has nothing to say any more
        claims.retain(|(_, log_id), _| self.find(*log_id).is_some());
        Ok(claims)
    }

    pub fn check_ranges(&self, claims: &BTreeMap<(String, LogId), Claimed>) -> Result<(), Want> {
        for ((_, log_id), claimed) in claims {
            if let Some((.., log)) = self.find(*log_id) {
                offsets::check_range(claimed.offset, log.ends())?;
            }
        }
        Ok(())
    }

    /// Whether a transaction may commit these offsets now.
    pub fn judge_claims(
        &self,
        claims: &BTreeMap<(String, LogId), Claimed>,
        by: Committer,
    ) -> Result<(), Want> {
        let place = |((group, log_id), claimed): (&(String, LogId), &Claimed)| {
            let claimed = in_rules((group, *log_id), claimed);
            (self.row(group, *log_id), self.facts(group), claimed)
        };
        let places: Vec<_> = claims.iter().map(place).collect();
        let asked: Vec<_> =
            places.iter().map(|(row, group, claimed)| (row, group, claimed)).collect();
        Ok(offsets::judge_in_transaction(&asked, by)?)
    }

    /// Members that have committed cursors let go of what their answers have told them to.
    pub fn let_go_with(&mut self, items: &[OffsetItem]) {
        for item in items {
            let OffsetItem::Cursor { group, member, generation, cursor } = item else { continue };
            let told = self.cursor(group, *generation, cursor).ok().and_then(|c| c.told);
            if told.is_some() {
                let all = self.all_topics();
                let state = &mut self.groups.get_mut(group).unwrap().state;
                state.refresh(&all, NOW);
                state.let_go(member, told, NOW);
            }
        }
    }

    /// The group, made where there is none, with a place in this log.
    pub fn touch(&mut self, group: &str, log_id: LogId) {
        let found = self.find(log_id).map(|(topic, partition, _)| (name(topic), partition));
        let group = self.make_group(group);
        if let Some((topic, partition)) = found {
            let place = || group::GroupPartition::new(&topic, partition);
            group.state.places.entry(log_id).or_insert_with(place);
        }
    }

    pub fn set_offset(&mut self, group: &str, log_id: LogId, offset: i64) {
        self.touch(group, log_id);
        let offsets = &mut self.groups.get_mut(group).unwrap().offsets;
        offsets.insert(log_id, Committed { offset });
    }

    pub fn commit_offsets(&mut self, commit: &Commit) -> Judged {
        let path = format!("/v1/groups/{}/offsets", commit.group);
        let body = format!("{:?}", commit.items);
        if let Some(before) = self.replayed(&path, commit.key.as_deref(), &body)? {
            self.let_go_with(&commit.items);
            return Ok(before);
        }
        let wanted = self.wanted(commit)?;
        for (topic, partition, _, offset, _) in &wanted {
            let (start, end) = self.log(topic, *partition)?.ends();
            if *offset > end {
                let mut want = Want::code(Code::OffsetOutOfRange);
                want.body["log_start_offset"] = json!(start);
                want.body["high_watermark"] = json!(end);
                return Err(want);
            }
        }
        let rows: Vec<offsets::OffsetRow> =
            wanted.iter().map(|(_, _, log_id, ..)| self.row(&commit.group, *log_id)).collect();
        let asked: Vec<RequestedOffset<'_>> = (wanted.iter().zip(&rows))
            .map(|((.., offset, right), row)| RequestedOffset { row, right, offset: *offset })
            .collect();
        let verdicts = judge_all(&asked, &self.facts(&commit.group));
        let verdicts = verdicts.map_err(|refused| Want::from(Error::from(refused.refusal)))?;
        let mut told = Vec::new();
        for ((topic, partition, log_id, offset, _), verdict) in wanted.iter().zip(verdicts) {
            let committed = self.row(&commit.group, *log_id).committed_offset;
            let offset = match verdict {
                OffsetVerdict::Keep => committed.unwrap_or(*offset),
                OffsetVerdict::Commit => *offset,
            };
            self.set_offset(&commit.group, *log_id, offset);
            told.push(told_offset(topic, *partition, offset));
        }
        self.make_group(&commit.group);
        self.let_go_with(&commit.items);
        let want = Want::ok(json!({"group": commit.group, "offsets": told}));
        self.keep(&path, commit.key.as_deref(), body, &want);
        Ok(want)
    }

    /// What a plain commit is to commit, by topic and partition.
    #[allow(clippy::type_complexity, reason = "each is read once")]
    fn wanted(
        &self,
        commit: &Commit,
    ) -> Result<Vec<(String, Partition, LogId, i64, offsets::Right)>, Want> {
        let mut wanted = BTreeMap::new();
        for item in &commit.items {
            match item {
                OffsetItem::At { topic, partition, offset, right, .. } => {
                    let right = match right {
                        Right::Free => offsets::Right::Free,
                        Right::Expected(expected) => offsets::Right::Expected(*expected),
                        Right::Member(member_id, generation, _) => {
                            offsets::Right::Member(member_of(member_id, *generation))
                        }
                    };
                    wanted.insert((topic.clone(), *partition), (None, *offset, right));
                }
                OffsetItem::Cursor { group, member, generation, cursor } => {
                    for (log_id, at) in &self.cursor(group, *generation, cursor)?.positions {
                        let Some((topic, partition, _)) = self.find(*log_id) else { continue };
                        let right = offsets::Right::Member(member_of(member, at.since));
                        let place = (topic.clone(), partition);
                        wanted.insert(place, (Some(*log_id), at.offset, right));
                    }
                }
            }
        }
        let mut resolved = Vec::new();
        for ((topic, partition), (log_id, offset, right)) in wanted {
            let found = self.log(&topic, partition)?.log_id;
            resolved.push((topic, partition, log_id.unwrap_or(found), offset, right));
        }
        Ok(resolved)
    }

    /// All that the group has committed, by topic and partition.
    pub fn get_offsets(&self, group: &str) -> Judged {
        let found = self.groups.get(group).ok_or(Want::code(Code::GroupNotFound))?;
        let mut offsets = Vec::new();
        for (topic, at) in &self.topics {
            for (partition, log) in at.logs.iter().enumerate() {
                if let Some(committed) = found.offsets.get(&log.log_id) {
                    offsets.push(told_offset(topic, partition as Partition, committed.offset));
                }
            }
        }
        Ok(Want::ok(json!({"group": group, "offsets": offsets})))
    }

    pub fn reset(
        &mut self,
        group: &str,
        topics: Option<&[String]>,
        to: &Value,
        dry_run: bool,
    ) -> Judged {
        let found = self.groups.get(group).ok_or(Want::code(Code::GroupNotFound))?.clone();
        let mut targets: Vec<(String, Partition, LogId)> = Vec::new();
        for topic in topics.unwrap_or_default() {
            let logs = self.topic(topic)?.logs.iter().enumerate();
            targets.extend(logs.map(|(p, log)| (topic.clone(), p as Partition, log.log_id)));
        }
        if topics.is_none() {
            let all = self.all_topics().partitions.into_iter();
            let is_meant = |log_id: &LogId| {
                let starts = found.state.places.get(log_id).and_then(|place| place.starts);
                starts.is_some() || found.offsets.contains_key(log_id)
            };
            let all = all.filter(|(log_id, ..)| is_meant(log_id));
            targets.extend(all.map(|(log_id, topic, p)| (topic.to_string(), p, log_id)));
            targets.sort();
        }
        self.check_empty(group)?;
        let mut told = Vec::new();
        for (topic, partition, log_id) in &targets {
            let context = self.reset_context(group, *log_id);
            let pinned = self.pin(group, *log_id).map(|(id, _)| (context.committed_offset, id));
            reset::check(false, pinned)?;
            let offset = reset::target(reset_to(to), &context)?;
            told.push((log_id, offset, told_offset(topic, *partition, offset)));
        }
        let want = told.iter().map(|(.., told)| told.clone()).collect::<Vec<_>>();
        for (log_id, offset, _) in told.into_iter().filter(|_| !dry_run) {
            self.set_offset(group, *log_id, offset);
        }
        Ok(Want::ok(json!({"group": group, "offsets": want})))
    }

    pub fn reset_context(&self, group: &str, log_id: LogId) -> reset::ResetContext {
        let at = &self.groups[group];
        reset::ResetContext {
            committed_offset: at.offsets.get(&log_id).map(|committed| committed.offset),
            starts: at.state.places.get(&log_id).and_then(|place| place.starts),
            auto_offset_reset: at.state.auto_offset_reset,
            log: self.find(log_id).map_or((0, 0), |(.., log)| log.ends()),
            found: None,
        }
    }
}

/// The last one for a place wins; what was processed began where the first one's run began.
pub fn add_claim(
    claims: &mut BTreeMap<(String, LogId), Claimed>,
    place: (String, LogId),
    mut claimed: Claimed,
) {
    if let Some(former) = claims.get(&place) {
        let at = (&*place.0, place.1);
        claimed.claim = in_rules(at, &claimed).after(&in_rules(at, former)).claim;
    }
    claims.insert(place, claimed);
}

fn in_rules((group, log_id): (&str, LogId), claimed: &Claimed) -> offsets::Claimed {
    let place = OffsetPlace { group: name(group), log_id };
    offsets::Claimed { place, offset: claimed.offset, claim: claimed.claim.clone() }
}

fn member_of(member_id: &str, generation: i64) -> Member {
    Member { member_id: member_id.to_owned(), generation }
}

fn told_offset(topic: &str, partition: Partition, offset: i64) -> Value {
    json!({"topic": topic, "partition": partition, "offset": offset, "metadata": null})
}

fn reset_to(to: &Value) -> ResetTo {
    let number = |name: &str| to[name].as_i64();
    match (to.as_str(), number("offset"), number("by")) {
        (Some("latest"), ..) => ResetTo::Latest,
        (None, Some(offset), _) => ResetTo::Offset(offset),
        (None, None, Some(by)) => ResetTo::By(by),
        _ => ResetTo::Earliest,
    }
}
