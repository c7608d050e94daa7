//! Records and bytes by topic, as `/metrics` shows them: the busiest topics by name, and all others
//! as one sum.
//!
//! What is shown is a counter, which must neither fall nor jump. So a topic that gets series of its
//! own counts in them from 0, and what it had before stays in the sum; one that loses its series
//! counts in the sum from then on, and what it had before ends with them. To Prometheus these are
//! series that begin and end, so `rate()` and the sums of rates are right all the time.
//!
//! A topic has series from its first record on while there are some left, and keeps them until it
//! is deleted or others have long been busier. Of the topics without, a limited number is watched
//! for a while, so the memory is bounded however many topics there are.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{
        PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::{
    model::{Name, TenantId},
    telemetry::{self, OTHERS},
};

/// How many topics without series are watched at a time.
const CANDIDATES: usize = 10_000;

/// A topic, by tenant and name.
pub type TopicKey = (TenantId, Name);

#[derive(Clone, Copy)]
enum Direction {
    Appended,
    Read,
}

/// What was appended and what was read.
#[derive(Default)]
struct Counts([(AtomicU64, AtomicU64); 2]);

impl Counts {
    fn add(&self, direction: Direction, records: u64, bytes: u64) {
        let (all_records, all_bytes) = &self.0[direction as usize];
        all_records.fetch_add(records, Ordering::Relaxed);
        all_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records and bytes appended, records and bytes read.
    fn now(&self) -> [u64; 4] {
        let Counts([appended, read]) = self;
        let now = [&appended.0, &appended.1, &read.0, &read.1];
        now.map(|count| count.load(Ordering::Relaxed))
    }
}

struct Topic {
    /// None: it has no series, and counts in the sum of the others.
    series: Option<Counts>,
    /// The name of its tenant, once looked up; not shown before.
    tenant: Option<Name>,
    /// Bytes since the last ranking.
    recent_bytes: AtomicU64,
    /// Bytes of former rankings, each worth half of the one after it.
    past_bytes: u64,
}

impl Topic {
    fn new(has_series: bool) -> Self {
        let series = has_series.then(Counts::default);
        Self { series, tenant: None, recent_bytes: AtomicU64::new(0), past_bytes: 0 }
    }
}

/// The topics of a replica.
pub struct TopicTraffic {
    /// 0: nothing is counted.
    max_series: usize,
    /// Its lock is taken for writing when a topic is first seen, and by the janitor.
    topics: RwLock<HashMap<TopicKey, Topic>>,
    others: Counts,
    /// Whether a topic was added since somebody asked.
    has_new: AtomicBool,
}

impl TopicTraffic {
    pub fn new(max_series: usize) -> Self {
        Self {
            max_series,
            topics: RwLock::default(),
            others: Counts::default(),
            has_new: AtomicBool::new(false),
        }
    }

    pub fn appended(&self, tenant: TenantId, topic: &Name, records: u64, bytes: usize) {
        self.count(Direction::Appended, (tenant, topic.clone()), records, bytes as u64);
    }

    pub fn read(&self, tenant: TenantId, topic: &Name, records: u64, bytes: usize) {
        self.count(Direction::Read, (tenant, topic.clone()), records, bytes as u64);
    }

    fn count(&self, direction: Direction, key: TopicKey, records: u64, bytes: u64) {
        if self.max_series == 0 || records == 0 {
            return;
        }
        let add = |topic: Option<&Topic>| {
            if let Some(topic) = topic {
                topic.recent_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            let series = topic.and_then(|topic| topic.series.as_ref());
            series.unwrap_or(&self.others).add(direction, records, bytes);
        };
        {
            let topics = self.known();
            let topic = topics.get(&key);
            if topic.is_some() || topics.len() >= self.max_series.saturating_add(CANDIDATES) {
                return add(topic);
            }
        }
        let mut topics = self.changed();
        let has_series = topics.len() < self.max_series;
        let topic = topics.entry(key).or_insert_with(|| Topic::new(has_series));
        add(Some(topic));
        self.has_new.store(true, Ordering::Relaxed);
    }

    /// Gives the series to the busiest topics, and watches others from now on. A topic with series
    /// counts with its past, so another one is busier for a while before it takes them.
    pub fn rank(&self) {
        let mut topics = self.changed();
        for topic in topics.values_mut() {
            let recent_bytes = std::mem::take(topic.recent_bytes.get_mut());
            topic.past_bytes = (topic.past_bytes / 2).saturating_add(recent_bytes);
        }
        let mut ranked: Vec<(TopicKey, Topic)> = topics.drain().collect();
        ranked
            .sort_unstable_by_key(|(_, topic)| Reverse((topic.past_bytes, topic.series.is_some())));
        ranked.truncate(self.max_series);
        for (_, topic) in &mut ranked {
            topic.series.get_or_insert_default();
        }
        topics.extend(ranked);
    }

    /// Whether there are new topics since the last call: they are shown once they are named.
    pub fn has_new(&self) -> bool {
        self.has_new.swap(false, Ordering::Relaxed)
    }

    /// The topics with series.
    pub fn shown(&self) -> Vec<TopicKey> {
        let topics = self.known();
        let shown = topics.iter().filter(|(_, topic)| topic.series.is_some());
        shown.map(|(key, _)| key.clone()).collect()
    }

    /// Names the tenants of topics, and forgets those of them without: they are deleted.
    pub fn named(&self, asked: &[TopicKey], mut tenants: HashMap<TopicKey, Name>) {
        let mut topics = self.changed();
        for key in asked {
            match (tenants.remove(key), topics.get_mut(key)) {
                (Some(tenant), Some(topic)) => topic.tenant = Some(tenant),
                (None, Some(_)) => drop(topics.remove(key)),
                (_, None) => {}
            }
        }
    }

    /// From now on `/metrics` shows the current counts.
    pub fn show(&self) {
        if self.max_series == 0 {
            return;
        }
        let mut shown = self.named_counts();
        shown.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let metrics = [
            telemetry::TOPIC_APPENDED_RECORDS_TOTAL,
            telemetry::TOPIC_APPENDED_BYTES_TOTAL,
            telemetry::TOPIC_READ_RECORDS_TOTAL,
            telemetry::TOPIC_READ_BYTES_TOTAL,
        ];
        let others = self.others.now();
        for (index, metric) in metrics.into_iter().enumerate() {
            let mut series: Vec<(Vec<&str>, f64)> = shown
                .iter()
                .map(|((tenant, topic), counts)| {
                    (vec![tenant.as_str(), topic.as_str()], counts[index] as f64)
                })
                .collect();
            series.push((vec![OTHERS; 2], others[index] as f64));
            telemetry::show_named(metric, &series);
        }
    }

    /// By the names of tenant and topic.
    fn named_counts(&self) -> Vec<((Name, Name), [u64; 4])> {
        let topics = self.known();
        let named = topics.iter().filter_map(|((_, name), topic)| {
            let counts = topic.series.as_ref()?.now();
            Some(((topic.tenant.clone()?, name.clone()), counts))
        });
        named.collect()
    }

    fn known(&self) -> RwLockReadGuard<'_, HashMap<TopicKey, Topic>> {
        self.topics.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) -> RwLockWriteGuard<'_, HashMap<TopicKey, Topic>> {
        self.topics.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn key(topic: &str) -> TopicKey {
        (TenantId(1), Name::parse(topic).unwrap())
    }

    fn append(traffic: &TopicTraffic, topic: &str, bytes: usize) {
        let (tenant, topic) = key(topic);
        traffic.appended(tenant, &topic, 1, bytes);
    }

    /// Bytes appended by topic, as shown, after the janitor has named the topics.
    fn shown(traffic: &TopicTraffic) -> BTreeMap<String, u64> {
        let asked = traffic.shown();
        let acme = Name::parse("acme").unwrap();
        traffic.named(&asked, asked.iter().map(|key| (key.clone(), acme.clone())).collect());
        let named = traffic.named_counts().into_iter();
        let named = named.map(|((_, topic), counts)| (topic.to_string(), counts[1]));
        named.chain([(OTHERS.to_owned(), traffic.others.now()[1])]).collect()
    }

    fn of<const N: usize>(bytes: [(&str, u64); N]) -> BTreeMap<String, u64> {
        bytes.into_iter().map(|(topic, bytes)| (topic.to_owned(), bytes)).collect()
    }

    #[test]
    fn as_many_topics_as_there_are_series_are_shown_by_name_and_one_more_is_not() {
        let traffic = TopicTraffic::new(2);
        append(&traffic, "a", 1);
        append(&traffic, "b", 20);
        assert_eq!(shown(&traffic), of([("a", 1), ("b", 20), (OTHERS, 0)]));
        append(&traffic, "c", 300);
        append(&traffic, "a", 1);
        assert_eq!(shown(&traffic), of([("a", 2), ("b", 20), (OTHERS, 300)]));
        let (tenant, b) = key("b");
        traffic.read(tenant, &b, 5, 70);
        traffic.read(tenant, &b, 0, 0);
        let counts: Vec<[u64; 4]> = traffic.named_counts().into_iter().map(|(_, c)| c).collect();
        assert!(counts.contains(&[1, 20, 5, 70]) && counts.contains(&[2, 2, 0, 0]), "{counts:?}");

        let none = TopicTraffic::new(0);
        append(&none, "a", 1);
        assert_eq!(shown(&none), of([(OTHERS, 0)]));
        assert!(!none.has_new());
    }

    /// No shown counter falls or takes what another one has counted.
    #[test]
    fn a_busier_topic_takes_the_series_and_counts_from_0() {
        let traffic = TopicTraffic::new(1);
        append(&traffic, "a", 10);
        append(&traffic, "b", 100);
        assert_eq!(shown(&traffic), of([("a", 10), (OTHERS, 100)]));
        traffic.rank();
        assert_eq!(shown(&traffic), of([("b", 0), (OTHERS, 100)]));
        append(&traffic, "a", 10);
        append(&traffic, "b", 7);
        assert_eq!(shown(&traffic), of([("b", 7), (OTHERS, 110)]));
        traffic.rank();
        assert_eq!(shown(&traffic), of([("b", 7), (OTHERS, 110)]));
    }

    #[test]
    fn a_topic_keeps_its_series_for_its_past() {
        let traffic = TopicTraffic::new(1);
        // the bytes of b in a minute, while a has 100 in each, and whose series it is after it
        for (minute, bytes, want) in [(0, 0, "a"), (1, 0, "a"), (2, 150, "a"), (3, 200, "b")] {
            append(&traffic, "a", 100);
            append(&traffic, "b", bytes);
            traffic.rank();
            assert!(shown(&traffic).contains_key(want), "minute {minute}");
        }
        // nothing is not busier than nothing
        for _ in 0..100 {
            traffic.rank();
        }
        append(&traffic, "a", 0);
        traffic.rank();
        assert!(shown(&traffic).contains_key("b"));
    }

    #[test]
    fn the_series_of_a_deleted_topic_ends_and_another_one_gets_it() {
        let traffic = TopicTraffic::new(1);
        append(&traffic, "a", 1);
        append(&traffic, "b", 1);
        assert!(traffic.has_new() && !traffic.has_new());
        traffic.named(&traffic.shown(), HashMap::new());
        assert_eq!(shown(&traffic), of([(OTHERS, 1)]));
        traffic.rank();
        append(&traffic, "b", 5);
        assert_eq!(shown(&traffic), of([("b", 5), (OTHERS, 1)]));
    }

    #[test]
    fn the_memory_is_bounded_and_nothing_is_lost() {
        let traffic = TopicTraffic::new(3);
        let topics = 3 + CANDIDATES + 1_000;
        for topic in 0..topics {
            append(&traffic, &topic.to_string(), 1);
        }
        assert_eq!(traffic.known().len(), 3 + CANDIDATES);
        assert_eq!(shown(&traffic)[OTHERS], topics as u64 - 3);
        traffic.rank();
        assert_eq!(traffic.known().len(), 3);
        assert_eq!(shown(&traffic)[OTHERS], topics as u64 - 3);
    }
}
