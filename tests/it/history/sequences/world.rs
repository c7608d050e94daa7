//! The contract as a world in memory: everything is kept, nothing is folded, cached or forgotten. A
//! call is judged when its answer is there: what nobody can foretell (instants, ids of the
//! server's, the partition that records without a key go to) is learnt from it, the rest has to be
//! as the world says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use oncelog::{
    model::{Code, LogId, Name, settings::Key},
    rules::group::{GroupState, Topics},
};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    appends::Told,
    call::{Begin, Call, Item, Partition, Record, Session},
    ids::{Fate, Known, KnownBy, Staged},
    offsets::Claimed,
    want::{ANY, Judged, Reply, Want},
};

/// What stands for no partition: a topic as a whole.
pub type Scope = Option<Partition>;

#[derive(Clone, Debug)]
pub struct Stored {
    pub record: Record,
    /// None: not seen yet.
    pub appended_at: Option<String>,
    pub transaction: Option<Uuid>,
}

#[derive(Clone, Debug)]
pub struct Log {
    pub log_id: LogId,
    pub start: i64,
    pub records: Vec<Stored>,
}

/// A producer in a scope.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    pub last: Option<i64>,
    /// The last five, each with its number and what it was told.
    pub recent: VecDeque<(i64, Vec<Record>, Told)>,
}

/// An append with a key.
#[derive(Clone, Debug)]
pub struct Keyed {
    pub records: Vec<Record>,
    /// What else of it is compared.
    pub others: (Option<i64>, bool),
    pub told: Told,
}

/// One life of a topic.
#[derive(Clone, Debug, Default)]
pub struct Topic {
    /// Grows with every topic that is made.
    pub life: u64,
    pub settings: Map<String, Value>,
    pub logs: Vec<Log>,
    pub known: BTreeMap<KnownBy, Known>,
    pub keys: BTreeMap<(Scope, String), Keyed>,
    pub numbers: BTreeMap<(i64, Scope), Numbers>,
}

#[derive(Clone, Debug)]
pub struct Owner {
    pub name: Option<String>,
    pub epoch: i64,
    pub closed: bool,
    pub monotonic: bool,
    /// What the open of this epoch aborted.
    pub aborted: Option<Uuid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Ongoing,
    Prepared,
    Committed,
    Aborted(&'static str),
}

#[derive(Clone, Debug)]
pub struct Transaction {
    pub begun_as: Begin,
    pub session: Option<Session>,
    pub state: Phase,
    pub was_prepared: bool,
    /// What it holds, with each append's place in the transaction.
    pub staged: Vec<Staged>,
    /// Of a prepared one: what becomes of its records.
    pub fates: Option<Vec<Vec<Fate>>>,
    pub append_count: i64,
    /// The numbered calls.
    pub calls: Vec<Vec<Item>>,
    pub offsets: BTreeMap<(String, LogId), Claimed>,
    /// Ids that it has claimed by its prepare.
    pub held: Vec<(u64, KnownBy, Record)>,
    /// Where its records lie.
    pub places: Value,
}

/// What a group has committed in a partition.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    pub offset: i64,
}

#[derive(Clone, Debug, Default)]
pub struct Group {
    pub life: u64,
    pub state: GroupState,
    pub offsets: BTreeMap<LogId, Committed>,
    /// What members owned of topics that are gone.
    pub ghosts: BTreeMap<String, BTreeSet<LogId>>,
}

/// What a cursor of a group says.
#[derive(Clone, Debug)]
pub struct Cursor {
    pub group: String,
    pub life: u64,
    pub positions: BTreeMap<LogId, Position>,
    /// Partitions that are gone and that it may name all the same.
    pub ghosts: BTreeSet<LogId>,
    /// The generation of the answer, if that told to let go of something.
    pub told: Option<i64>,
}

/// What a cursor says of a partition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// The generation since which the member owned it.
    pub since: i64,
    pub offset: i64,
    /// What was committed where the run began.
    pub began: Option<Option<i64>>,
}

/// What a cursor of a topic says.
#[derive(Clone, Debug)]
pub struct TopicCursor {
    pub life: u64,
    pub positions: Vec<i64>,
}

/// A keyed call that is no append: its body, and what it was answered.
#[derive(Clone, Debug)]
pub struct Kept {
    pub body: String,
    pub want: Want,
}

#[derive(Clone, Debug, Default)]
pub struct World {
    pub topics: BTreeMap<String, Topic>,
    pub owners: BTreeMap<i64, Owner>,
    pub names: BTreeMap<String, i64>,
    /// The producer and the epoch that an open id made.
    pub opens: BTreeMap<Uuid, Session>,
    pub transactions: BTreeMap<Uuid, Transaction>,
    pub groups: BTreeMap<String, Group>,
    pub cursors: BTreeMap<String, Cursor>,
    pub topic_cursors: BTreeMap<String, TopicCursor>,
    /// Of topic reads that started at an instant before records of whose time nothing is known.
    pub dark_cursors: BTreeSet<String>,
    pub kept: BTreeMap<(String, String), Kept>,
    pub settings: Map<String, Value>,
    pub lives: u64,
    pub logs: i64,
    pub topics_version: i64,
    /// The places of topics that are gone: members may be told of theirs for a while.
    pub former: BTreeMap<LogId, (Name, Partition)>,
}

pub fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

impl Log {
    pub fn end(&self) -> i64 {
        self.records.len() as i64
    }

    pub fn ends(&self) -> (i64, i64) {
        (self.start, self.end())
    }
}

impl World {
    /// What the answer to this call has to be; the world goes on as if it was that.
    pub fn judge(&mut self, call: &Call, reply: &Reply) -> Want {
        let judged = match call {
            Call::Append(append) => self.append(append, reply),
            Call::Open(open) => self.open(open, reply),
            Call::Close { producer, epoch } => self.close(*producer, *epoch),
            Call::GetSession { producer } => self.get_session(*producer),
            Call::Begin(begin) => self.begin(begin, reply),
            Call::Transaction(call) => self.call_transaction(call, reply),
            Call::GetTransaction { id } => self.get_transaction(*id),
            Call::Commit(commit) => self.commit_offsets(commit),
            Call::GetOffsets { group } => self.get_offsets(group),
            Call::Reset { group, topics, to, dry_run } => {
                self.reset(group, topics.as_deref(), to, *dry_run)
            }
            Call::GetGroup { group } => self.get_group(group, reply),
            Call::DeleteGroup { group } => self.delete_group(group),
            Call::Join(join) => self.join(join, reply),
            Call::Leave { group, member } => self.leave(group, member),
            Call::Heartbeat { group, member, generation } => {
                self.heartbeat(group, member, *generation, reply)
            }
            Call::Fetch(fetch) => self.fetch(fetch, reply),
            Call::PutTopic { topic, count, settings } => {
                self.put_topic(topic, *count, settings.as_ref())
            }
            Call::PatchTopic { topic, count, settings } => {
                self.patch_topic(topic, *count, settings.as_ref())
            }
            Call::DeleteTopic { topic } => self.delete_topic(topic),
            Call::GetTopic { topic } => self.describe_topic(topic).map(Want::ok),
            Call::Trim { topic, partition, before } => self.trim(topic, *partition, *before),
            Call::PatchTenant(settings) => {
                patch(&mut self.settings, settings);
                Ok(Want::ok(json!(ANY)))
            }
            Call::Read(read) => self.read(read, reply),
            Call::ReadTopic { topic, start, limit, as_lines } => {
                self.read_topic(topic, start, *limit, *as_lines, reply)
            }
        };
        judged.unwrap_or_else(|refused| refused)
    }

    pub fn topic(&self, topic: &str) -> Result<&Topic, Want> {
        self.topics.get(topic).ok_or(Want::code(Code::TopicNotFound))
    }

    pub fn log(&self, topic: &str, partition: Partition) -> Result<&Log, Want> {
        let log = self.topic(topic)?.logs.get(partition as usize);
        log.ok_or(Want::code(Code::PartitionNotFound))
    }

    /// The log of that id, with its topic's name and its partition.
    pub fn find(&self, log_id: LogId) -> Option<(&String, Partition, &Log)> {
        self.topics.iter().find_map(|(name, topic)| {
            let at = topic.logs.iter().position(|log| log.log_id == log_id)?;
            Some((name, at as Partition, &topic.logs[at]))
        })
    }

    /// A setting as it holds for a topic.
    pub fn setting(&self, topic: &Topic, key: Key) -> Value {
        let levels = [&topic.settings, &self.settings];
        let own = levels.into_iter().find_map(|level| level.get(key.name()));
        own.cloned().unwrap_or_else(|| json!(key.setting().default))
    }

    /// The topics as the rules of groups know them.
    pub fn all_topics(&self) -> Topics {
        let of = |(topic, at): (&String, &Topic)| {
            let partition = |(p, log): (usize, &Log)| (log.log_id, name(topic), p as Partition);
            at.logs.iter().enumerate().map(partition).collect::<Vec<_>>()
        };
        let partitions = self.topics.iter().flat_map(of).collect();
        Topics { version: self.topics_version, partitions }
    }

    fn new_log(&mut self) -> Log {
        self.logs += 1;
        Log { log_id: LogId(self.logs), start: 0, records: Vec::new() }
    }

    fn check_quota(&self, topics: usize, partitions: usize) -> Result<(), Want> {
        let limit = |key: Key| {
            self.settings.get(key.name()).and_then(Value::as_i64).unwrap_or(i64::MAX) as usize
        };
        let now = self.topics.values().map(|topic| topic.logs.len()).sum::<usize>();
        let is_over = topics > 0 && self.topics.len() + topics > limit(Key::MaxTopics)
            || now + partitions > limit(Key::MaxPartitions);
        if is_over { Err(Want::code(Code::QuotaExceeded)) } else { Ok(()) }
    }

    fn put_topic(
        &mut self,
        topic: &str,
        count: Option<Partition>,
        settings: Option<&Map<String, Value>>,
    ) -> Judged {
        if let Some(found) = self.topics.get_mut(topic) {
            if count.is_some_and(|count| count as usize != found.logs.len()) {
                return Err(Want::code(Code::TopicExists));
            }
            if let Some(settings) = settings {
                found.settings.clear();
                patch(&mut found.settings, settings);
            }
            return self.describe_topic(topic).map(Want::ok);
        }
        let count = count.unwrap_or(1);
        self.check_quota(1, count as usize)?;
        self.lives += 1;
        self.topics_version += 1;
        let logs = (0..count).map(|_| self.new_log()).collect();
        let mut made = Topic { life: self.lives, logs, ..Topic::default() };
        patch(&mut made.settings, settings.unwrap_or(&Map::new()));
        self.topics.insert(topic.to_owned(), made);
        self.describe_topic(topic).map(Want::created)
    }

    fn patch_topic(
        &mut self,
        topic: &str,
        count: Option<Partition>,
        settings: Option<&Map<String, Value>>,
    ) -> Judged {
        let now = self.topic(topic)?.logs.len();
        let wanted = count.map_or(now, |count| count as usize);
        if wanted < now {
            return Err(Want::code(Code::TopicExists));
        }
        if wanted > now {
            self.check_quota(0, wanted - now)?;
            self.topics_version += 1;
        }
        let new: Vec<Log> = (now..wanted).map(|_| self.new_log()).collect();
        let found = self.topics.get_mut(topic).unwrap();
        found.logs.extend(new);
        patch(&mut found.settings, settings.unwrap_or(&Map::new()));
        self.describe_topic(topic).map(Want::ok)
    }

    fn delete_topic(&mut self, topic: &str) -> Judged {
        let found = self.topic(topic)?;
        let logs: Vec<LogId> = found.logs.iter().map(|log| log.log_id).collect();
        let pins = |transaction: &Transaction| {
            transaction.state == Phase::Prepared
                && (transaction.staged.iter().any(|staged| staged.life == found.life)
                    || transaction.offsets.keys().any(|(_, log)| logs.contains(log)))
        };
        let pinned = self.transactions.iter().filter(|(_, transaction)| pins(transaction));
        let by: Vec<String> = pinned.map(|(id, _)| id.to_string()).collect();
        if !by.is_empty() {
            let mut want = Want::code(Code::TopicInUse);
            want.body["transaction_id"] = if by.len() == 1 { json!(by[0]) } else { json!(ANY) };
            return Err(want);
        }
        self.topics.remove(topic);
        self.topics_version += 1;
        let places = (0..).zip(&logs).map(|(partition, log)| (*log, (name(topic), partition)));
        self.former.extend(places);
        for group in self.groups.values_mut() {
            for (log, place) in group.state.places.iter().filter(|(log, _)| logs.contains(log)) {
                if let Some(owner) = &place.owner {
                    group.ghosts.entry(owner.member_id.clone()).or_default().insert(*log);
                }
            }
            group.offsets.retain(|log, _| !logs.contains(log));
            group.state.places.retain(|log, _| !logs.contains(log));
        }
        Ok(Want::no_content())
    }

    fn describe_topic(&self, topic: &str) -> Result<Value, Want> {
        let found = self.topic(topic)?;
        let partition = |(partition, log): (usize, &Log)| {
            json!({"partition": partition, "log_start_offset": log.start,
                "high_watermark": log.end(), "record_count": log.end() - log.start,
                "size_bytes": ANY})
        };
        let partitions: Vec<Value> = found.logs.iter().enumerate().map(partition).collect();
        Ok(json!({"topic": topic, "partition_count": found.logs.len(), "settings": found.settings,
            "created_at": ANY, "partitions": partitions}))
    }

    fn trim(&mut self, topic: &str, partition: Partition, before: i64) -> Judged {
        let (start, end) = self.log(topic, partition)?.ends();
        if before > end {
            let mut want = Want::code(Code::OffsetOutOfRange);
            want.body["log_start_offset"] = json!(start);
            want.body["high_watermark"] = json!(end);
            return Err(want);
        }
        let log = &mut self.topics.get_mut(topic).unwrap().logs[partition as usize];
        log.start = start.max(before);
        Ok(Want::no_content())
    }

    /// A keyed call that is no append. None: it is new, or has no key.
    pub fn replayed(
        &self,
        path: &str,
        key: Option<&str>,
        body: &str,
    ) -> Result<Option<Want>, Want> {
        let Some(key) = key else { return Ok(None) };
        if self.settings.get(Key::DedupWindowMs.name()) == Some(&json!(0)) {
            return Err(Want::code(Code::InvalidRequest));
        }
        let Some(kept) = self.kept.get(&(path.to_owned(), key.to_owned())) else {
            return Ok(None);
        };
        if kept.body != body {
            return Err(Want::code(Code::IdempotencyKeyReused));
        }
        let mut want = kept.want.clone();
        want.body["duplicate"] = json!(true);
        Ok(Some(want))
    }

    pub fn keep(&mut self, path: &str, key: Option<&str>, body: String, want: &Want) {
        if let Some(key) = key {
            let kept = Kept { body, want: want.clone() };
            self.kept.insert((path.to_owned(), key.to_owned()), kept);
        }
    }
}

fn patch(settings: &mut Map<String, Value>, changes: &Map<String, Value>) {
    for (key, value) in changes {
        if value == "default" {
            settings.remove(key);
        } else {
            settings.insert(key.clone(), value.clone());
        }
    }
}
