//! Random operations: small numbers of everything, so that they meet; nearly always what makes
//! sense, and else something just beside it.

use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Map, Value, json};

use super::{
    OFF, Off,
    call::Record,
    ops::{
        Act, At, Caller, Form, From, ItemWish, Number, OffsetWish, Op, RightWish, VerbWish, Who,
        WorkWish,
    },
};

/// Draws operations.
pub struct Draw<'a> {
    rng: &'a mut StdRng,
    number: Number,
    opens: Vec<Number>,
    begins: Vec<Number>,
    /// Those that do not commit.
    ongoing: Vec<Number>,
    joins: Vec<Number>,
    fetches: Vec<Number>,
    appends: Vec<Number>,
    topic_reads: Vec<Number>,
}

/// That many random operations, behind those that make two topics and two sessions.
pub fn draw(rng: &mut StdRng, count: usize) -> Vec<Op> {
    let none = Vec::new;
    let mut draw = Draw {
        rng,
        number: 0,
        opens: none(),
        begins: none(),
        ongoing: none(),
        joins: none(),
        fetches: none(),
        appends: none(),
        topic_reads: none(),
    };
    let put = |topic, count| Act::PutTopic { topic, count: Some(count), settings: None };
    let mut ops = vec![draw.op(put(0, 2)), draw.op(put(1, 2))];
    for name in [0, 1] {
        let (name, condition, open_id, key) = (Some(name), None, None, None);
        let (monotonic, reset) = (false, false);
        ops.push(draw.op(Act::Open { name, condition, open_id, monotonic, reset, key }));
    }
    while ops.len() < count {
        let act = draw.act();
        ops.push(draw.op(act));
    }
    ops
}

impl Draw<'_> {
    fn op(&mut self, act: Act) -> Op {
        let number = self.number;
        self.number += 1;
        match &act {
            Act::Open { name: None, .. } => self.opens.push(number),
            Act::Begin { commit, .. } => {
                self.begins.push(number);
                self.ongoing.extend((!commit).then_some(number));
            }
            Act::Transaction {
                begun_by, verb: VerbWish::Commit { .. } | VerbWish::Abort, ..
            } if self.chance(70) => {
                let ended = *begun_by;
                self.ongoing.retain(|begun_by| *begun_by != ended);
            }
            Act::Join { .. } => self.joins.push(number),
            Act::Fetch { .. } => self.fetches.push(number),
            Act::Append { .. } => self.appends.push(number),
            Act::ReadTopic { .. } => self.topic_reads.push(number),
            _ => {}
        }
        Op { number, replica: self.rng.random_range(0..60), act }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_ratio(percent, 100)
    }

    fn below(&mut self, end: usize) -> usize {
        self.rng.random_range(0..end)
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all.choose(self.rng).unwrap().clone()
    }

    /// One of the last ones, nearly always.
    fn late(&mut self, all: &[Number]) -> Option<Number> {
        let back = if self.chance(80) { 3 } else { 30 };
        let from = all.len().saturating_sub(back);
        all[from..].choose(self.rng).copied()
    }

    fn topic(&mut self) -> u8 {
        self.one_of(&[0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2])
    }

    fn partition(&mut self) -> u8 {
        self.one_of(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 3])
    }

    fn who(&mut self) -> Who {
        match self.late(&self.opens.clone()) {
            Some(opened) if self.chance(25) => Who::OpenedBy(opened),
            _ => Who::Named(self.one_of(&[0, 0, 1])),
        }
    }

    /// Nearly always right, and else just beside.
    fn beside(&mut self) -> i64 {
        self.one_of(&[0, 0, 0, 0, 0, 0, 0, 0, -1, 1])
    }

    fn records(&mut self) -> Vec<Record> {
        let count = self.one_of(&[1, 1, 1, 2, 2, 3, 4, 6]);
        let has_ids = self.chance(35);
        let record = |draw: &mut Self| {
            let id = (has_ids && draw.chance(85)).then(|| draw.below(10) as u8);
            // an id comes with its own key and value, nearly always
            let of = id.filter(|_| !draw.chance(4)).unwrap_or(draw.below(12) as u8);
            let key = (of % 4 > 0).then_some(of % 4);
            Record { id, key, value: of / 2, header: draw.chance(10) }
        };
        (0..count).map(|_| record(self)).collect()
    }

    fn item(&mut self) -> ItemWish {
        let partition = self.chance(50).then(|| self.partition());
        ItemWish { topic: self.topic(), partition, records: self.records() }
    }

    fn items(&mut self, most: usize) -> Vec<ItemWish> {
        (0..self.below(most + 1)).map(|_| self.item()).collect()
    }

    fn at(&mut self) -> At {
        match self.below(3) {
            0 => At::BeforeEnd(self.one_of(&[0, 0, 0, 1, 1, 2, 2, 5, -1])),
            _ => At::Committed(self.one_of(&[0, 0, 1, 1, 1, 1, 2, 3, -1])),
        }
    }

    fn offset(&mut self, in_transaction: bool) -> OffsetWish {
        if let Some(fetch) = self.late(&self.fetches.clone()).filter(|_| self.chance(30)) {
            return OffsetWish::CursorOf(fetch);
        }
        let member = self.late(&self.joins.clone()).filter(|_| self.chance(40));
        let right = match member {
            Some(join) if in_transaction && self.chance(25) => {
                RightWish::MemberOver(join, self.beside())
            }
            Some(join) => RightWish::MemberOf(join),
            None if in_transaction || self.chance(60) => {
                RightWish::Expected(self.one_of(&[0, 0, 0, 0, 1, -1]))
            }
            None => RightWish::Free,
        };
        // members keep to the first group, mostly
        let group = u8::from(member.is_none() && self.chance(85));
        let topic = self.topic();
        OffsetWish::At { group, topic, partition: self.partition(), at: self.at(), right }
    }

    fn offsets(&mut self, most: usize) -> Vec<OffsetWish> {
        let count = if self.chance(60) { 0 } else { self.below(most + 1) };
        (0..count).map(|_| self.offset(true)).collect()
    }

    fn work(&mut self, most: usize) -> WorkWish {
        WorkWish { appends: self.items(most), offsets: self.offsets(most) }
    }

    fn act(&mut self) -> Act {
        match self.below(100) {
            0..27 => self.append(),
            27..35 => self.session(),
            35..45 => self.begin(),
            45..60 => self.transaction(),
            60..75 => self.group(),
            75..83 => self.change(),
            83..91 => self.read(),
            _ => Act::Again(self.number.saturating_sub(1 + self.below(30))),
        }
    }

    fn append(&mut self) -> Act {
        let mut item = self.item();
        let form = match self.below(10) {
            0..3 => Form::Plain,
            3 => {
                item.partition.get_or_insert(0);
                Form::Expecting(self.beside())
            }
            4..7 => {
                Form::Keyed(if self.chance(70) { self.number } else { self.below(self.number) })
            }
            _ => Form::Numbered {
                who: self.who(),
                epoch: self.one_of(&[0, 0, 0, 0, 0, 0, 0, -1, 1]),
                sequence: self.one_of(&[0, 0, 0, 0, 0, 0, -1, -2, -6, 1, 5]),
            },
        };
        let (refuses, as_lines) = (self.chance(15), self.chance(25));
        Act::Append { item, form, refuses, as_lines }
    }

    fn session(&mut self) -> Act {
        match self.below(10) {
            0 => {
                let may_name = !OFF.contains(&Off::EndsOfEpochs);
                let epoch = (may_name && self.chance(70)).then(|| self.one_of(&[0, 0, -1, -1, 1]));
                Act::Close(self.who(), epoch)
            }
            1..4 => Act::GetSession(self.who()),
            _ => {
                let name = self.chance(70).then(|| self.one_of(&[0, 0, 1]));
                let condition = self.chance(30).then(|| (self.who(), self.beside()));
                let open_id = self.chance(50).then_some(self.number);
                let key = self.chance(15).then_some(self.number);
                let (monotonic, reset) = (self.chance(15), self.chance(15));
                Act::Open { name, condition, open_id, monotonic, reset, key }
            }
        }
    }

    fn begin(&mut self) -> Act {
        let other = self.late(&self.begins.clone()).filter(|_| self.chance(6));
        let id = other.or(Some(self.number)).filter(|_| self.chance(70));
        let session = self.chance(30).then(|| (self.who(), self.beside()));
        if id.is_some() && self.chance(6) {
            let (timeout_ms, work) = (Some(1), WorkWish::default());
            return Act::Begin { id, key: None, session, timeout_ms, work, commit: false };
        }
        let timeout_ms = (session.is_none() && self.chance(5)).then_some(900_001);
        let (work, commit) = (self.work(3), self.chance(55));
        // of those without an id many have a key, some that of another
        let key = other.or(Some(self.number)).filter(|_| commit && id.is_none() && self.chance(70));
        Act::Begin { id, key, session, timeout_ms, work, commit }
    }

    fn transaction(&mut self) -> Act {
        let all = if self.chance(85) { self.ongoing.clone() } else { self.begins.clone() };
        let Some(begun_by) = self.late(&all) else { return self.begin() };
        if self.chance(12) {
            return Act::GetTransaction { begun_by };
        }
        let verb = match self.below(10) {
            0..4 => {
                let mut appends = self.items(2);
                appends.push(self.item());
                let sequence = self.chance(60).then(|| self.one_of(&[0, 0, 0, 0, -1, -2, 1, 5]));
                VerbWish::Records { sequence, appends }
            }
            4 => VerbWish::Offsets(vec![self.offset(true)]),
            5 => VerbWish::Prepare,
            6 => VerbWish::Abort,
            _ => {
                let expected_appends = self.chance(30).then(|| self.beside());
                let work = if self.chance(30) { self.work(2) } else { WorkWish::default() };
                VerbWish::Commit { expected_appends, work }
            }
        };
        let caller = match self.below(20) {
            0 => Caller::ItsFormer,
            1 => Caller::Other(self.who()),
            2 => Caller::Nobody,
            3 if !matches!(verb, VerbWish::Records { .. } | VerbWish::Offsets(_)) => {
                Caller::Operator
            }
            _ => Caller::Its,
        };
        Act::Transaction { begun_by, caller, verb }
    }

    fn group(&mut self) -> Act {
        let group = self.below(2) as u8;
        let join = self.late(&self.joins.clone());
        match (self.below(24), join) {
            (0..6, _) => {
                let items = (0..1 + self.below(2)).map(|_| self.offset(false)).collect();
                Act::Commit { group, items, key: self.chance(20).then_some(self.number) }
            }
            (6..8, _) => Act::GetOffsets(group),
            (8, _) => {
                let topic = self.chance(50).then(|| self.topic());
                let to =
                    [json!("earliest"), json!("latest"), json!({"offset": 3}), json!({"by": -2})];
                Act::Reset { group, topic, to: self.one_of(&to), dry_run: self.chance(30) }
            }
            (9..11, _) => Act::GetGroup(group),
            (11, _) => Act::DeleteGroup(group),
            (12, Some(join)) => Act::Leave(join),
            (13..16, Some(joined_by)) => Act::Heartbeat { joined_by, shows: self.chance(60) },
            (16..23, Some(joined_by)) => {
                let cursor_of = self.late(&self.fetches.clone()).filter(|_| self.chance(60));
                let limit = self.chance(40).then(|| 1 + self.below(4));
                let runs = [None, None, None, Some("continue"), Some("new")];
                let (run, by_post) = (self.one_of(&runs), self.chance(20));
                Act::Fetch { joined_by, cursor_of, run, limit, by_post }
            }
            _ => {
                let mut topics: Vec<u8> = (0..self.below(3)).map(|_| self.topic()).collect();
                let pattern = topics.is_empty() || self.chance(20);
                topics.sort_unstable();
                topics.dedup();
                let instance = self.chance(30).then(|| self.below(2) as u8);
                let reset =
                    self.one_of(&[None, None, Some("earliest"), Some("latest"), Some("error")]);
                let key = self.chance(15).then_some(self.number);
                let group = u8::from(self.chance(10));
                Act::Join { group, topics, pattern, instance, reset, key }
            }
        }
    }

    fn change(&mut self) -> Act {
        let topic = self.topic();
        let count = self.one_of(&[None, Some(1), Some(2), Some(2), Some(3), Some(4)]);
        match self.below(20) {
            0..5 => {
                let settings = self.chance(25).then(|| self.topic_settings());
                Act::PutTopic { topic, count, settings }
            }
            5..11 => {
                let grows = !OFF.contains(&Off::Growth);
                let count = count.filter(|_| grows && self.chance(60));
                let settings = (count.is_none() || self.chance(20)).then(|| self.topic_settings());
                Act::PatchTopic { topic, count, settings }
            }
            11..13 => Act::DeleteTopic(topic),
            13..15 => Act::GetTopic(topic),
            15..19 => Act::Trim { topic, partition: self.partition(), before: self.at() },
            _ => {
                let value =
                    self.one_of(&[json!(0), json!(null), json!("default"), json!("default")]);
                let limit = self.one_of(&[json!(6), json!("default"), json!("default")]);
                let settings = json!({"dedup_window_ms": value, "max_partitions": limit});
                Act::PatchTenant(settings.as_object().unwrap().clone())
            }
        }
    }

    fn topic_settings(&mut self) -> Map<String, Value> {
        let window = [json!(0), json!(null), json!(86_400_000), json!("default"), json!("default")];
        let way = [json!("content"), json!("id"), json!("default"), json!("default")];
        let most = [json!(2), json!("default"), json!("default"), json!("default")];
        let mut settings = Map::new();
        let wishes = [
            ("dedup_window_ms", self.one_of(&window)),
            ("dedup", self.one_of(&way)),
            ("max_batch_records", self.one_of(&most)),
        ];
        for (key, value) in wishes {
            if self.chance(60) {
                settings.insert(key.to_owned(), value);
            }
        }
        settings
    }

    fn read(&mut self) -> Act {
        let (topic, partition) = (self.topic(), self.partition());
        let limit = self.chance(50).then(|| 1 + self.below(6));
        let as_lines = self.chance(20);
        let time_of = self.late(&self.appends.clone()).filter(|_| self.chance(20));
        let from = match (time_of, self.below(6)) {
            (Some(append), _) => From::TimeOf(append),
            (None, 0) => From::Latest,
            (None, 1 | 2) => From::Offset(self.at()),
            (None, _) => From::Earliest,
        };
        if self.chance(40) {
            let cursor = self.late(&self.topic_reads.clone()).filter(|_| self.chance(60));
            let from = match (cursor, from) {
                (Some(read), _) => From::CursorOf(read),
                (None, From::Offset(_)) => From::Earliest,
                (None, from) => from,
            };
            return Act::ReadTopic { topic, from, limit, as_lines };
        }
        let uncommitted = !as_lines && self.chance(30);
        Act::Read { topic, partition, from, limit, uncommitted, as_lines }
    }
}
