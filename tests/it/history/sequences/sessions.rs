//! Sessions: opened, ended, seen. What an open becomes is asked of the rules.

use std::sync::Arc;

use oncelog::{
    model::{
        ProducerId, Scopes, Timestamp,
        session::{self, Sequences, Sequencing},
    },
    rules::{
        Refusal,
        append::sequence::SessionFacts,
        session::{SessionRow, open, repeat},
    },
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    call::Open,
    want::{ANY, Judged, Reply, Want},
    world::{Owner, Phase, World, name},
};

const PATH: &str = "/v1/sessions";
const TRANSACTION_TIMEOUT_MS: i64 = 60_000;

impl World {
    /// A session as the rules know it.
    fn session_row(&self, producer: i64) -> Option<SessionRow> {
        let owner = self.owners.get(&producer)?;
        let facts = SessionFacts {
            epoch: owner.epoch,
            closed: owner.closed,
            // numbers that were reset are gone here
            reset_epoch: 0,
            sequencing: Sequencing::Contiguous,
        };
        Some(SessionRow {
            producer_id: ProducerId(producer),
            transactional_id: owner.name.as_deref().map(name),
            opened_by: None,
            facts,
            transaction_timeout_ms: TRANSACTION_TIMEOUT_MS,
            open_horizon: Timestamp(0),
            opened_at: Timestamp(0),
            fencing: false,
        })
    }

    pub fn open(&mut self, asked: &Open, reply: &Reply) -> Judged {
        let body = format!("{:?}", Open { key: None, ..asked.clone() });
        if let Some(before) = self.replayed(PATH, asked.key.as_deref(), &body)? {
            return Ok(before);
        }
        let want = self.open_once(asked, reply)?;
        self.keep(PATH, asked.key.as_deref(), body, &want);
        Ok(want)
    }

    fn open_once(&mut self, asked: &Open, reply: &Reply) -> Judged {
        let wish = session::Open {
            transactional_id: asked.name.as_deref().map(name),
            condition: asked.condition.map(|(id, epoch)| (ProducerId(id), epoch)),
            open_id: asked.open_id,
            transaction_timeout_ms: None,
            sequencing: Sequencing::Contiguous,
            sequences: if asked.reset { Sequences::Reset } else { Sequences::Continue },
            scopes: Arc::new(Scopes::all()),
        };
        if let Some((producer, epoch)) = asked.open_id.and_then(|id| self.opens.get(&id).copied()) {
            repeat(&wish, self.session_row(producer), (ProducerId(producer), epoch))?;
            let mut want = Want::ok(self.describe(producer));
            want.body["duplicate"] = json!(true);
            return Ok(want);
        }
        let known = match (asked.condition, &asked.name) {
            (Some((producer, _)), _) => Some(producer),
            (None, Some(name)) => self.names.get(name).copied(),
            (None, None) => None,
        };
        let row = known.and_then(|producer| self.session_row(producer));
        let next = open(&wish, row.as_ref())?;
        let told = reply.body["producer_id"].as_i64().unwrap_or(-1);
        let producer = known.filter(|_| row.is_some()).unwrap_or(told);
        let aborted = self.abort_ongoing(producer);
        let former = self.owners.get(&producer).and_then(|owner| owner.name.clone());
        let owner = Owner {
            name: former.or_else(|| asked.name.clone()),
            epoch: next.epoch,
            closed: false,
            monotonic: asked.monotonic,
            aborted,
        };
        if let Some(name) = &owner.name {
            self.names.insert(name.clone(), producer);
        }
        self.owners.insert(producer, owner);
        self.opens.extend(asked.open_id.map(|id| (id, (producer, next.epoch))));
        if asked.reset {
            let numbers = self.topics.values_mut().flat_map(|topic| topic.numbers.iter_mut());
            numbers.filter(|((id, _), _)| *id == producer).for_each(|(_, numbers)| {
                *numbers = Default::default();
            });
        }
        let mut want = Want::created(self.describe(producer));
        want.body["duplicate"] = json!(false);
        Ok(want)
    }

    /// The ongoing transaction of a producer ends with its epoch.
    fn abort_ongoing(&mut self, producer: i64) -> Option<Uuid> {
        let mut all = self.transactions.iter_mut();
        let (id, ongoing) = all.find(|(_, transaction)| {
            let is_its = transaction.session.is_some_and(|(id, _)| id == producer);
            is_its && transaction.state == Phase::Ongoing
        })?;
        ongoing.state = Phase::Aborted("fenced");
        Some(*id)
    }

    /// `epoch`: that is to end, and no newer one.
    pub fn close(&mut self, producer: i64, epoch: Option<i64>) -> Judged {
        let unknown = Refusal::UnknownProducer { producer_id: ProducerId(producer) };
        let owner = self.owners.get_mut(&producer).ok_or(Want::from(unknown))?;
        let current_epoch = owner.epoch;
        if epoch.is_some_and(|epoch| epoch > current_epoch) {
            return Err(Refusal::InvalidProducerEpoch { current_epoch }.into());
        }
        if !owner.closed && epoch.is_none_or(|epoch| epoch == current_epoch) {
            owner.closed = true;
            owner.epoch += 1;
            self.abort_ongoing(producer);
        }
        Ok(Want::no_content())
    }

    pub fn get_session(&self, producer: i64) -> Judged {
        let unknown = Refusal::UnknownProducer { producer_id: ProducerId(producer) };
        self.owners.get(&producer).ok_or(Want::from(unknown))?;
        Ok(Want::ok(self.describe(producer)))
    }

    fn describe(&self, producer: i64) -> Value {
        let owner = &self.owners[&producer];
        let mut next = Vec::new();
        for (topic, at) in &self.topics {
            let its = at.numbers.iter().filter(|((id, _), _)| *id == producer);
            for ((_, partition), numbers) in its {
                let next_sequence = numbers.last.map_or(0, |last| last + 1);
                let mut scope = json!({"topic": topic, "next_sequence": next_sequence});
                if let Some(partition) = partition {
                    scope["partition"] = json!(partition);
                }
                next.push(scope);
            }
        }
        let prepared = self.transactions.iter().filter(|(_, transaction)| {
            transaction.state == Phase::Prepared
                && transaction.session.is_some_and(|(id, _)| id == producer)
        });
        let prepared: Vec<String> = prepared.map(|(id, _)| id.to_string()).collect();
        json!({"producer_id": producer, "epoch": owner.epoch, "transactional_id": owner.name,
            "sequencing": if owner.monotonic { "monotonic" } else { "contiguous" },
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS, "closed": owner.closed,
            "opened_at": ANY, "next_sequences": next, "prepared_transactions": prepared,
            "aborted_transaction": owner.aborted.map(|id| id.to_string())})
    }
}
