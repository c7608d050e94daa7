//! Transactions, of one request or of several.

use std::collections::{BTreeMap, BTreeSet};

use oncelog::{
    model::{
        Code, LogId,
        transaction::{Reason, State},
    },
    rules::{Refusal, group::offsets::Committer},
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    OFF, Off,
    call::{Begin, Item, OffsetItem, TransactionCall, Verb, Work},
    ids::{Fate, Staged, keyless},
    offsets::{Claimed, add_claim},
    want::{ANY, Judged, Reply, Want},
    world::{Phase, Transaction, World},
};

const MAX_TIMEOUT_MS: i64 = 900_000;

/// The work of a call with its names resolved.
#[derive(Default)]
struct Resolved {
    staged: Vec<Staged>,
    claims: BTreeMap<(String, LogId), Claimed>,
    /// An append that breaks a limit.
    too_large: Option<Want>,
}

impl Transaction {
    fn committer(&self, id: Uuid) -> Committer {
        Committer { transaction_id: id, appends: self.append_count > 0 }
    }

    fn add_offsets(&mut self, claims: BTreeMap<(String, LogId), Claimed>) {
        for (place, claimed) in claims {
            add_claim(&mut self.offsets, place, claimed);
        }
    }
}

impl Phase {
    fn refusal(self) -> Refusal {
        let (state, reason) = match self {
            Self::Ongoing => (State::Ongoing, None),
            Self::Prepared => (State::Prepared, None),
            Self::Committed => (State::Committed, None),
            Self::Aborted(why) => {
                let reasons = [Reason::Client, Reason::Timeout, Reason::Fenced, Reason::Operator];
                (State::Aborted, reasons.into_iter().find(|reason| reason.as_str() == why))
            }
        };
        Refusal::InvalidTransactionState { state, reason }
    }
}

impl World {
    /// How a transaction stands.
    fn told(&self, id: Uuid, duplicate: Option<bool>) -> Value {
        let found = &self.transactions[&id];
        let at = |is_known: bool| if is_known { json!(ANY) } else { Value::Null };
        let (state, reason) = match found.state {
            Phase::Ongoing => ("ongoing", None),
            Phase::Prepared => ("prepared", None),
            Phase::Committed => ("committed", None),
            Phase::Aborted(reason) => ("aborted", Some(reason)),
        };
        let mut told = json!({"transaction_id": id.to_string(), "state": state,
            "producer_id": found.session.map(|session| session.0),
            "epoch": found.session.map(|session| session.1), "created_at": ANY,
            "expires_at": at(state == "ongoing"), "prepared_at": at(found.was_prepared),
            "ended_at": at(state == "committed" || state == "aborted"), "reason": reason,
            "append_count": found.append_count});
        if found.state == Phase::Committed {
            told["appends"] = found.places.clone();
        }
        if let Some(duplicate) = duplicate {
            told["duplicate"] = json!(duplicate);
        }
        told
    }

    pub fn get_transaction(&self, id: Uuid) -> Judged {
        self.transactions.get(&id).ok_or(Want::code(Code::TransactionNotFound))?;
        Ok(Want::ok(self.told(id, None)))
    }

    /// `first`: how many appends the transaction holds before these. `in_pass`: that the offsets
    /// lie in their logs is judged later.
    fn resolve(&self, work: &Work, first: i64, in_pass: bool) -> Result<Resolved, Want> {
        let claims = self.claims(&work.offsets)?;
        if !in_pass {
            self.check_ranges(&claims)?;
        }
        let mut resolved = Resolved { claims, ..Resolved::default() };
        for (item, append) in work.appends.iter().zip(first..) {
            resolved.staged.push(self.stage(item, Some(append))?);
            let too_large = self.check_size(item).err();
            resolved.too_large = resolved.too_large.or(too_large);
        }
        Ok(resolved)
    }

    pub fn begin(&mut self, begin: &Begin, reply: &Reply) -> Judged {
        if let Some((id, known)) = self.begun_before(begin) {
            if OFF.contains(&Off::RepeatsOfTransactions) && self.is_odd_repeat(begin) {
                return Ok(Want::anything());
            }
            if known.begun_as != *begin {
                let by_key = begin.key.is_some();
                let reused = [Refusal::TransactionReused, Refusal::IdempotencyKeyReused];
                return Err(reused[usize::from(by_key)].clone().into());
            }
            if begin.commit {
                self.let_go_with(&begin.work.offsets);
            }
            return Ok(Want::ok(self.told(id, Some(true))));
        }
        let in_pass = begin.commit && !begin.work.appends.is_empty();
        let resolved = self.resolve(&begin.work, 0, in_pass)?;
        begin.session.map_or(Ok(()), |session| self.check_producer(session))?;
        if begin.timeout_ms.is_some_and(|ms| ms > MAX_TIMEOUT_MS) {
            return Err(Want::code(Code::InvalidRequest));
        }
        if let Some(session) = begin.session {
            let ongoing = self.transactions.iter().find(|(_, other)| {
                let is_its = other.session.is_some_and(|(id, _)| id == session.0);
                is_its && other.state == Phase::Ongoing
            });
            if let Some((id, _)) = ongoing {
                return Err(Refusal::ConcurrentTransactions { transaction_id: *id }.into());
            }
        }
        // a refusal may name another one
        let said = reply.body["transaction_id"].as_str().filter(|_| reply.status < 300);
        let said = said.and_then(|id| id.parse().ok());
        let id = begin.id.or(said).unwrap_or_default();
        let mut made = Transaction {
            begun_as: begin.clone(),
            session: begin.session,
            state: Phase::Ongoing,
            was_prepared: false,
            staged: Vec::new(),
            fates: None,
            append_count: 0,
            calls: Vec::new(),
            offsets: BTreeMap::new(),
            held: Vec::new(),
            places: json!([]),
        };
        if in_pass {
            self.judge_whole(&resolved, id)?;
        } else {
            resolved.too_large.map_or(Ok(()), Err)?;
        }
        made.append_count = resolved.staged.len() as i64;
        made.staged = resolved.staged;
        made.offsets = resolved.claims;
        if begin.commit {
            let places = self.finish(id, &made, reply)?;
            made = Transaction { state: Phase::Committed, places, ..made };
        }
        self.transactions.insert(id, made);
        if begin.commit {
            self.let_go_with(&begin.work.offsets);
        }
        Ok(Want::created(self.told(id, Some(false))))
    }

    /// The transaction that has its id, or its key.
    fn begun_before(&self, begin: &Begin) -> Option<(Uuid, &Transaction)> {
        let is_it = |(id, other): &(&Uuid, &Transaction)| {
            begin.id == Some(**id) || (begin.key.is_some() && begin.key == other.begun_as.key)
        };
        self.transactions.iter().find(is_it).map(|(id, other)| (*id, other))
    }

    /// A repeat of which today more is judged than its id and its payload.
    fn is_odd_repeat(&self, begin: &Begin) -> bool {
        self.resolve(&begin.work, 0, false).is_err()
            || begin.session.is_some_and(|session| self.check_producer(session).is_err())
    }

    /// A transaction of one request, with records: these, then what they break, then its offsets.
    fn judge_whole(&self, resolved: &Resolved, id: Uuid) -> Result<(), Want> {
        let has_ids = |staged: &&Staged| staged.known_by.iter().any(Option::is_some);
        let lives = in_order(resolved.staged.iter().filter(has_ids).map(|staged| staged.life));
        let fates = self.fates(&resolved.staged, &lives, false)?;
        let stores = fates.iter().flatten().any(|fate| matches!(fate, Fate::New));
        if let Some(too_large) = resolved.too_large.as_ref().filter(|_| stores) {
            return Err(too_large.clone());
        }
        self.check_ranges(&resolved.claims)?;
        self.judge_claims(&resolved.claims, Committer { transaction_id: id, appends: true })
    }

    /// What of its ids counts by the settings of now.
    fn claimable(&self, staged: &[Staged]) -> Vec<Staged> {
        let mut staged = staged.to_vec();
        for one in &mut staged {
            if self.by_content(&self.topics[&one.topic]).is_none() {
                one.known_by.fill(None);
            }
        }
        staged
    }

    /// The topics of all that it holds must be there still.
    fn check_topics(&self, transaction: &Transaction) -> Result<(), Want> {
        let are_there = transaction.staged.iter().all(|staged| self.lives(staged))
            && transaction.offsets.keys().all(|(_, log_id)| self.find(*log_id).is_some());
        if are_there { Ok(()) } else { Err(Want::code(Code::TopicNotFound)) }
    }

    fn staged_fates(&self, staged: &[Staged]) -> Result<Vec<Vec<Fate>>, Want> {
        let lives: BTreeSet<u64> = staged.iter().map(|staged| staged.life).collect();
        self.fates(staged, &Vec::from_iter(lives), false)
    }

    /// Commits all that it holds; answers where its records lie.
    fn finish(
        &mut self,
        id: Uuid,
        transaction: &Transaction,
        reply: &Reply,
    ) -> Result<Value, Want> {
        self.check_topics(transaction)?;
        let staged = self.claimable(&transaction.staged);
        let fates = match &transaction.fates {
            Some(fates) => fates.clone(),
            None => {
                self.judge_claims(&transaction.offsets, transaction.committer(id))?;
                self.staged_fates(&staged)?
            }
        };
        let said = reply.body["appends"].as_array().cloned().unwrap_or_default();
        let keyless = keyless(&staged, &fates, &said).unwrap_or(vec![0; staged.len()]);
        let mut places: Vec<Value> = Vec::new();
        for ((one, fates), keyless) in staged.iter().zip(&fates).zip(keyless) {
            let (parts, _) = self.store(one, fates, keyless, Some(id), None);
            places.extend(parts.into_iter().map(|part| {
                json!({"topic": one.topic, "partition": part.partition,
                    "base_offset": part.base_offset, "record_count": part.record_count})
            }));
        }
        for ((group, log_id), claimed) in &transaction.offsets {
            self.set_offset(group, *log_id, claimed.offset);
        }
        Ok(json!(places))
    }

    pub fn call_transaction(&mut self, call: &TransactionCall, reply: &Reply) -> Judged {
        let id = call.id;
        let (appends, offsets): (&[Item], &[OffsetItem]) = match &call.verb {
            Verb::Records { appends, .. } => (appends, &[]),
            Verb::Offsets(offsets) => (&[], offsets),
            Verb::Commit { work, .. } => (&work.appends, &work.offsets),
            Verb::Prepare | Verb::Abort => (&[], &[]),
        };
        let work = Work { appends: appends.to_vec(), offsets: offsets.to_vec() };
        let first = self.transactions.get(&id).map_or(0, |found| found.append_count);
        let state = self.transactions.get(&id).map(|found| found.state);
        let is_repeat = match (&call.verb, state) {
            (Verb::Commit { .. }, state) => state == Some(Phase::Committed),
            (Verb::Records { sequence: Some(sequence), appends }, Some(Phase::Ongoing)) => {
                let done = self.transactions[&id].calls.get(*sequence as usize);
                done.is_some_and(|done| done == appends)
            }
            _ => false,
        };
        let resolved = match self.resolve(&work, first, false) {
            // who may ask learns the outcome, whatever became of the work
            Err(refused) if is_repeat => {
                let owner = call.session.map_or(Ok(()), |session| self.check_producer(session));
                let may_ask = owner.and_then(|()| check_caller(&self.transactions[&id], call));
                may_ask.map_err(|_| refused)?;
                Resolved::default()
            }
            resolved => resolved?,
        };
        if let Some(session) = call.session {
            self.check_producer(session)?;
        }
        let found = self.transactions.get(&id).ok_or(Want::code(Code::TransactionNotFound))?;
        check_caller(found, call)?;
        match &call.verb {
            Verb::Records { sequence, appends } => {
                self.add_records(id, *sequence, appends, resolved)
            }
            Verb::Offsets(_) => {
                self.expect_ongoing(id)?;
                self.add(id, resolved, None);
                Ok(Want::ok(self.told(id, Some(false))))
            }
            Verb::Prepare => self.prepare(id),
            Verb::Commit { expected_appends, work } => {
                let want = self.commit(id, *expected_appends, resolved, reply)?;
                self.let_go_with(&work.offsets);
                Ok(want)
            }
            Verb::Abort => self.abort(id, if call.is_operator { "operator" } else { "client" }),
        }
    }

    fn expect_ongoing(&self, id: Uuid) -> Result<(), Want> {
        match self.transactions[&id].state {
            Phase::Ongoing => Ok(()),
            state => Err(state.refusal().into()),
        }
    }

    fn add(&mut self, id: Uuid, resolved: Resolved, numbered: Option<&[Item]>) {
        let found = self.transactions.get_mut(&id).unwrap();
        found.append_count += resolved.staged.len() as i64;
        found.staged.extend(resolved.staged);
        found.add_offsets(resolved.claims);
        found.calls.extend(numbered.map(<[Item]>::to_vec));
    }

    fn add_records(
        &mut self,
        id: Uuid,
        sequence: Option<i64>,
        appends: &[Item],
        resolved: Resolved,
    ) -> Judged {
        self.expect_ongoing(id)?;
        if let Some(sequence) = sequence {
            let calls = &self.transactions[&id].calls;
            let expected = calls.len() as i64;
            if sequence < expected {
                if calls[sequence as usize] != appends {
                    return Err(Refusal::SequenceReused { sequence }.into());
                }
                return Ok(Want::ok(self.told(id, Some(true))));
            }
            if sequence > expected {
                return Err(Refusal::OutOfOrderSequence { expected, received: sequence }.into());
            }
        }
        if let Some(too_large) = &resolved.too_large {
            return Err(too_large.clone());
        }
        self.add(id, resolved, sequence.map(|_| appends));
        Ok(Want::ok(self.told(id, Some(false))))
    }

    fn prepare(&mut self, id: Uuid) -> Judged {
        if self.transactions[&id].state == Phase::Prepared {
            return Ok(Want::ok(self.told(id, Some(true))));
        }
        self.expect_ongoing(id)?;
        let found = self.transactions[&id].clone();
        self.check_topics(&Transaction { staged: Vec::new(), ..found.clone() })?;
        self.judge_claims(&found.offsets, found.committer(id))?;
        self.check_topics(&found)?;
        let staged = self.claimable(&found.staged);
        let fates = self.staged_fates(&staged)?;
        let mut held = Vec::new();
        for (one, fates) in staged.iter().zip(&fates) {
            for (index, fate) in fates.iter().enumerate() {
                if let (Some(by), Fate::New) = (&one.known_by[index], fate) {
                    held.push((one.life, by.clone(), one.records[index].clone()));
                }
            }
        }
        for (group, log_id) in found.offsets.keys() {
            self.touch(group, *log_id);
        }
        let prepared = self.transactions.get_mut(&id).unwrap();
        prepared.state = Phase::Prepared;
        prepared.was_prepared = true;
        prepared.fates = Some(fates);
        prepared.held = held;
        Ok(Want::ok(self.told(id, Some(false))))
    }

    fn commit(
        &mut self,
        id: Uuid,
        expected_appends: Option<i64>,
        resolved: Resolved,
        reply: &Reply,
    ) -> Judged {
        let mut found = self.transactions[&id].clone();
        match found.state {
            Phase::Committed => return Ok(Want::ok(self.told(id, Some(true)))),
            Phase::Aborted(_) => return Err(found.state.refusal().into()),
            Phase::Ongoing | Phase::Prepared => {}
        }
        if !resolved.staged.is_empty() || !resolved.claims.is_empty() {
            self.expect_ongoing(id)?;
            resolved.too_large.map_or(Ok(()), Err)?;
            found.append_count += resolved.staged.len() as i64;
            found.staged.extend(resolved.staged);
            found.add_offsets(resolved.claims);
        }
        if let Some(expected) = expected_appends.filter(|expected| *expected != found.append_count)
        {
            let received = found.append_count;
            return Err(Refusal::AppendsMissing { expected, received }.into());
        }
        let places = self.finish(id, &found, reply)?;
        let committed = Transaction { state: Phase::Committed, places, ..found };
        self.transactions.insert(id, committed);
        Ok(Want::ok(self.told(id, Some(false))))
    }

    fn abort(&mut self, id: Uuid, reason: &'static str) -> Judged {
        let found = self.transactions.get_mut(&id).unwrap();
        match found.state {
            Phase::Aborted(_) => return Ok(Want::ok(self.told(id, Some(true)))),
            Phase::Committed => return Err(found.state.refusal().into()),
            Phase::Ongoing | Phase::Prepared => found.state = Phase::Aborted(reason),
        }
        Ok(Want::ok(self.told(id, Some(false))))
    }
}

/// Whose transaction it is.
fn check_caller(found: &Transaction, call: &TransactionCall) -> Result<(), Want> {
    let owner = found.session.map(|session| session.0);
    match (call.session.map(|session| session.0), owner) {
        _ if call.is_operator => match (&call.verb, found.state) {
            (Verb::Commit { .. }, Phase::Ongoing) => Err(Refusal::OperatorMayNotCommit.into()),
            _ => Ok(()),
        },
        (Some(caller), Some(owner)) if caller == owner => Ok(()),
        (Some(_), _) => Err(Refusal::ProducerMismatch.into()),
        (None, Some(_)) => Err(Refusal::SessionMissing.into()),
        (None, None) => Ok(()),
    }
}

/// Each once, where it comes first.
fn in_order(lives: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut order = Vec::new();
    for life in lives {
        if !order.contains(&life) {
            order.push(life);
        }
    }
    order
}
