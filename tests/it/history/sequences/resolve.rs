//! From wishes to calls: every name in an operation gets what it stands for in the world as it is.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    call::{
        Append, Begin, Call, Commit, Fetch, Item, Join, OffsetItem, Open, Partition, Read, Right,
        Session, Start, TransactionCall, Verb, Work,
    },
    ops::{
        Act, At, Caller, Form, From, ItemWish, Number, OffsetWish, Op, RightWish, VerbWish, Who,
        WorkWish,
    },
    want::Reply,
    world::{Scope, World},
};

/// Of an operation that was left out, or refused.
const NOBODY: Session = (999_999_999, 0);

/// What has happened, by operation.
pub type History = BTreeMap<Number, (Call, Reply)>;

pub struct Resolver<'a> {
    pub world: &'a World,
    pub history: &'a History,
    /// The instant in all ids of the run.
    pub now_ms: u64,
}

/// What an id is for.
#[derive(Clone, Copy)]
enum Kind {
    Open = 1,
    Transaction = 2,
    Key = 3,
}

impl Resolver<'_> {
    fn uuid(&self, kind: Kind, number: Number) -> Uuid {
        let (kind, number) = (kind as u128, number as u128);
        let version_and_variant = 7 << 76 | 2 << 62;
        Uuid::from_u128(u128::from(self.now_ms) << 80 | version_and_variant | kind << 32 | number)
    }

    /// Half of the keys are UUIDv7.
    fn key(&self, number: Number) -> String {
        match number % 2 {
            0 => format!("key-{number}"),
            _ => self.uuid(Kind::Key, number).to_string(),
        }
    }

    /// None: there is nothing to do, as that of which it says "again" was left out.
    pub fn call(&self, op: &Op) -> Option<Call> {
        Some(match &op.act {
            Act::Append { item, form, refuses, as_lines } => {
                Call::Append(self.append(item, *form, *refuses, *as_lines))
            }
            Act::Open { name, condition, open_id, monotonic, reset, key } => Call::Open(Open {
                name: name.map(|name| format!("name-{name}")),
                condition: condition.map(|(who, by)| self.session(who, by)),
                open_id: open_id.map(|number| self.uuid(Kind::Open, number)),
                monotonic: *monotonic,
                reset: *reset,
                key: key.map(|number| self.key(number)),
            }),
            Act::Close(who, by) => {
                let (producer, epoch) = self.session(*who, by.unwrap_or(0));
                Call::Close { producer, epoch: by.map(|_| epoch) }
            }
            Act::GetSession(who) => Call::GetSession { producer: self.session(*who, 0).0 },
            Act::Begin { id, key, session, timeout_ms, work, commit } => Call::Begin(Begin {
                id: id.map(|number| self.uuid(Kind::Transaction, number)),
                key: key.map(|number| self.key(number)),
                session: session.map(|(who, by)| self.session(who, by)),
                timeout_ms: *timeout_ms,
                work: self.work(work),
                commit: *commit,
            }),
            Act::Transaction { begun_by, caller, verb } => {
                Call::Transaction(self.transaction_call(*begun_by, *caller, verb))
            }
            Act::GetTransaction { begun_by } => {
                Call::GetTransaction { id: self.transaction(*begun_by) }
            }
            Act::Read { topic, partition, from, limit, uncommitted, as_lines } => {
                let (topic, partition) = (topic_name(*topic), Partition::from(*partition));
                let start = self.start(&topic, Some(partition), from);
                let (uncommitted, as_lines) = (*uncommitted, *as_lines);
                Call::Read(Read { topic, partition, start, limit: *limit, uncommitted, as_lines })
            }
            Act::ReadTopic { topic, from, limit, as_lines } => {
                let topic = topic_name(*topic);
                let start = self.start(&topic, None, from);
                Call::ReadTopic { topic, start, limit: *limit, as_lines: *as_lines }
            }
            Act::Again(number) => self.history.get(number)?.0.clone(),
            act => self.topic_call(act).or_else(|| self.group_call(act))?,
        })
    }

    fn topic_call(&self, act: &Act) -> Option<Call> {
        Some(match act {
            Act::PutTopic { topic, count, settings } => Call::PutTopic {
                topic: topic_name(*topic),
                count: *count,
                settings: settings.clone(),
            },
            Act::PatchTopic { topic, count, settings } => Call::PatchTopic {
                topic: topic_name(*topic),
                count: *count,
                settings: settings.clone(),
            },
            Act::DeleteTopic(topic) => Call::DeleteTopic { topic: topic_name(*topic) },
            Act::GetTopic(topic) => Call::GetTopic { topic: topic_name(*topic) },
            Act::Trim { topic, partition, before } => {
                let (topic, partition) = (topic_name(*topic), Partition::from(*partition));
                let before = self.offset(None, &topic, partition, *before);
                Call::Trim { topic, partition, before }
            }
            Act::PatchTenant(settings) => Call::PatchTenant(settings.clone()),
            _ => return None,
        })
    }

    fn group_call(&self, act: &Act) -> Option<Call> {
        Some(match act {
            Act::Commit { group, items, key } => {
                let mut items: Vec<OffsetItem> =
                    items.iter().map(|wish| self.offset_item(wish)).collect();
                let group = items.first().map_or(group_name(*group), of_group);
                // one commit is of one group, and of one member or none
                let first = items[0].clone();
                items.retain(|item| is_alike(&first, item));
                if matches!(first, OffsetItem::Cursor { .. }) {
                    items.truncate(1);
                }
                let key = key.map(|number| self.key(number));
                Call::Commit(Commit { group, items, key })
            }
            Act::GetOffsets(group) => Call::GetOffsets { group: group_name(*group) },
            Act::Reset { group, topic, to, dry_run } => Call::Reset {
                group: group_name(*group),
                topics: topic.map(|topic| vec![topic_name(topic)]),
                to: to.clone(),
                dry_run: *dry_run,
            },
            Act::GetGroup(group) => Call::GetGroup { group: group_name(*group) },
            Act::DeleteGroup(group) => Call::DeleteGroup { group: group_name(*group) },
            Act::Join { group, topics, pattern, instance, reset, key } => Call::Join(Join {
                group: group_name(*group),
                topics: topics.iter().map(|topic| topic_name(*topic)).collect(),
                pattern: pattern.then_some("^topic-[01]$"),
                instance: *instance,
                auto_offset_reset: *reset,
                key: key.map(|number| self.key(number)),
            }),
            Act::Leave(joined_by) => {
                let (group, member) = self.member(*joined_by);
                Call::Leave { group, member }
            }
            Act::Heartbeat { joined_by, shows } => {
                let (group, member) = self.member(*joined_by);
                let generation = shows.then(|| self.generation(&group));
                Call::Heartbeat { group, member, generation }
            }
            Act::Fetch { joined_by, cursor_of, run, limit, by_post } => {
                let (group, member) = self.member(*joined_by);
                let cursor = cursor_of.and_then(|number| self.said(number, "cursor"));
                let run = run.filter(|run| cursor.is_some() || *run == "new");
                let (limit, by_post) = (*limit, *by_post);
                Call::Fetch(Fetch { group, member, cursor, run, limit, by_post })
            }
            _ => return None,
        })
    }

    fn said(&self, number: Number, field: &str) -> Option<String> {
        let (_, reply) = self.history.get(&number)?;
        reply.body[field].as_str().map(str::to_owned)
    }

    fn session(&self, who: Who, by: i64) -> Session {
        let producer = match who {
            Who::Named(name) => self.world.names.get(&format!("name-{name}")).copied(),
            Who::OpenedBy(number) => {
                let reply = self.history.get(&number).map(|(_, reply)| reply);
                reply.and_then(|reply| reply.body["producer_id"].as_i64())
            }
        };
        let known = producer.and_then(|id| Some((id, self.world.owners.get(&id)?.epoch)));
        let (producer, epoch) = known.unwrap_or(NOBODY);
        (producer, (epoch + by).max(0))
    }

    fn item(&self, wish: &ItemWish) -> Item {
        let topic = topic_name(wish.topic);
        Item {
            topic,
            partition: wish.partition.map(Partition::from),
            records: wish.records.clone(),
        }
    }

    fn append(&self, item: &ItemWish, form: Form, refuses: bool, as_lines: bool) -> Append {
        let item = self.item(item);
        let (mut numbered, mut expected_offset, mut key) = (None, None, None);
        match form {
            Form::Plain => {}
            Form::Expecting(by) => {
                let log = item.partition.and_then(|p| self.world.log(&item.topic, p).ok());
                expected_offset = Some((log.map_or(0, |log| log.end()) + by).max(0));
            }
            Form::Keyed(number) => key = Some(self.key(number)),
            Form::Numbered { who, epoch, sequence } => {
                let (producer, epoch) = self.session(who, epoch);
                let next = self.next_sequence(&item.topic, item.partition, producer);
                numbered = Some((producer, epoch, (next + sequence).max(0)));
            }
        }
        Append { item, numbered, expected_offset, key, refuses, as_lines }
    }

    fn next_sequence(&self, topic: &str, scope: Scope, producer: i64) -> i64 {
        let topic = self.world.topics.get(topic);
        let numbers = topic.and_then(|topic| topic.numbers.get(&(producer, scope)));
        numbers.and_then(|numbers| numbers.last).map_or(0, |last| last + 1)
    }

    fn work(&self, wish: &WorkWish) -> Work {
        Work {
            appends: wish.appends.iter().map(|item| self.item(item)).collect(),
            offsets: wish.offsets.iter().map(|offset| self.offset_item(offset)).collect(),
        }
    }

    /// Of the begin that chose its id, or was given one.
    fn transaction(&self, begun_by: Number) -> Uuid {
        let chosen = self.uuid(Kind::Transaction, begun_by);
        match self.history.get(&begun_by) {
            Some((Call::Begin(Begin { id: Some(id), .. }), _)) => *id,
            Some(_) => {
                let said = self.said(begun_by, "transaction_id");
                said.and_then(|id| id.parse().ok()).unwrap_or(chosen)
            }
            None => chosen,
        }
    }

    fn transaction_call(
        &self,
        begun_by: Number,
        caller: Caller,
        verb: &VerbWish,
    ) -> TransactionCall {
        let id = self.transaction(begun_by);
        let found = self.world.transactions.get(&id);
        let owner = found.and_then(|found| found.session);
        let now = owner
            .map(|(id, epoch)| (id, self.world.owners.get(&id).map_or(epoch, |owner| owner.epoch)));
        let session = match caller {
            Caller::Its => now,
            Caller::ItsFormer => owner,
            Caller::Other(who) => Some(self.session(who, 0)),
            Caller::Nobody | Caller::Operator => None,
        };
        let verb = match verb {
            VerbWish::Records { sequence, appends } => {
                let next = found.map_or(0, |found| found.calls.len() as i64);
                Verb::Records {
                    sequence: sequence.map(|by| (next + by).max(0)),
                    appends: appends.iter().map(|item| self.item(item)).collect(),
                }
            }
            VerbWish::Offsets(offsets) => {
                Verb::Offsets(offsets.iter().map(|wish| self.offset_item(wish)).collect())
            }
            VerbWish::Prepare if matches!(caller, Caller::Operator) => Verb::Abort,
            VerbWish::Prepare => Verb::Prepare,
            VerbWish::Commit { expected_appends, work } => {
                let work = match caller {
                    Caller::Operator => Work::default(),
                    _ => self.work(work),
                };
                let held = found.map_or(0, |found| found.append_count);
                let held = held + work.appends.len() as i64;
                let expected_appends = expected_appends.map(|by| (held + by).max(0));
                Verb::Commit { expected_appends, work }
            }
            VerbWish::Abort => Verb::Abort,
        };
        TransactionCall { id, session, is_operator: matches!(caller, Caller::Operator), verb }
    }

    fn offset(&self, group: Option<&str>, topic: &str, partition: Partition, at: At) -> i64 {
        let Ok(log) = self.world.log(topic, partition) else { return 0 };
        let committed = group.and_then(|group| self.world.groups.get(group));
        let committed = committed.and_then(|group| group.offsets.get(&log.log_id));
        let offset = match at {
            At::Committed(by) => committed.map_or(log.start, |committed| committed.offset) + by,
            At::BeforeEnd(by) => log.end() - by,
        };
        offset.max(0)
    }

    fn offset_item(&self, wish: &OffsetWish) -> OffsetItem {
        match *wish {
            OffsetWish::At { group, topic, partition, at, right } => {
                let (mut group, topic) = (group_name(group), topic_name(topic));
                let partition = Partition::from(partition);
                if let RightWish::MemberOf(number) | RightWish::MemberOver(number, _) = right {
                    group = self.member(number).0;
                }
                let log_id = self.world.log(&topic, partition).ok().map(|log| log.log_id);
                let committed = self.world.groups.get(&group).zip(log_id);
                let committed = committed.and_then(|(group, log_id)| group.offsets.get(&log_id));
                let committed = committed.map(|committed| committed.offset);
                let right = match right {
                    RightWish::Free => Right::Free,
                    RightWish::Expected(0) => Right::Expected(committed),
                    RightWish::Expected(by) => {
                        Right::Expected(Some((committed.unwrap_or(0) + by).max(0)))
                    }
                    RightWish::MemberOf(number) => {
                        let (group, member) = self.member(number);
                        Right::Member(member, self.generation(&group), None)
                    }
                    RightWish::MemberOver(number, by) => {
                        let (group, member) = self.member(number);
                        let expected = match by {
                            0 => committed,
                            by => Some((committed.unwrap_or(0) + by).max(0)),
                        };
                        Right::Member(member, self.generation(&group), Some(expected))
                    }
                };
                let offset = self.offset(Some(&group), &topic, partition, at);
                OffsetItem::At { group, topic, partition, offset, right }
            }
            OffsetWish::CursorOf(number) => {
                let (group, member) = match self.history.get(&number) {
                    Some((Call::Fetch(Fetch { group, member, .. }), _)) => {
                        (group.clone(), member.clone())
                    }
                    _ => (group_name(0), "nobody".to_owned()),
                };
                let generation = self.generation(&group);
                let cursor = self.said(number, "cursor").unwrap_or_else(|| "none".to_owned());
                OffsetItem::Cursor { group, member, generation, cursor }
            }
        }
    }

    fn generation(&self, group: &str) -> i64 {
        self.world.groups.get(group).map_or(0, |group| group.state.generation)
    }

    /// A group, and the member that the join was answered.
    fn member(&self, joined_by: Number) -> (String, String) {
        let group = match self.history.get(&joined_by) {
            Some((Call::Join(join), _)) => join.group.clone(),
            _ => group_name(0),
        };
        (group, self.said(joined_by, "member_id").unwrap_or_else(|| "nobody".to_owned()))
    }

    fn start(&self, topic: &str, partition: Option<Partition>, from: &From) -> Start {
        match from {
            From::Earliest => Start::Earliest,
            From::Latest => Start::Latest,
            From::Offset(at) => {
                Start::Offset(self.offset(None, topic, partition.unwrap_or(0), *at))
            }
            From::TimeOf(number) => {
                self.said(*number, "appended_at").map_or(Start::Earliest, Start::Timestamp)
            }
            From::CursorOf(number) => {
                let (_, reply) = match self.history.get(number) {
                    Some(found) => found,
                    None => return Start::Earliest,
                };
                let cursors = [&reply.body["cursor"], &reply.body["headers"]["oncelog-cursor"]];
                let cursor = cursors.into_iter().find_map(Value::as_str);
                cursor.map_or(Start::Earliest, |cursor| Start::Cursor(cursor.to_owned()))
            }
        }
    }
}

fn of_group(item: &OffsetItem) -> String {
    match item {
        OffsetItem::At { group, .. } | OffsetItem::Cursor { group, .. } => group.clone(),
    }
}

fn is_alike(first: &OffsetItem, item: &OffsetItem) -> bool {
    let member = |item: &OffsetItem| match item {
        OffsetItem::At { right: Right::Member(member, ..), .. } => json!(member),
        OffsetItem::At { .. } => json!(null),
        OffsetItem::Cursor { .. } => json!({}),
    };
    of_group(first) == of_group(item) && member(first) == member(item)
}

pub fn topic_name(topic: u8) -> String {
    format!("topic-{topic}")
}

fn group_name(group: u8) -> String {
    format!("group-{group}")
}
