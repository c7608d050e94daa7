//! Properties over random cases, and the counts that show that a property does not hold vacuously.

use std::{cell::RefCell, collections::BTreeMap};

use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};

use crate::rules::Refusal;

/// How often each event has happened.
#[derive(Debug, Default)]
pub struct Seen(BTreeMap<String, usize>);

impl Seen {
    pub fn of(event: &str, times: usize) -> Self {
        let mut seen = Self::default();
        seen.add(event, times);
        seen
    }

    pub fn saw(&mut self, event: &str) {
        self.add(event, 1);
    }

    /// A refusal counts under the name of its variant.
    pub fn refused(&mut self, refusal: &Refusal) {
        let text = format!("{refusal:?}");
        self.saw(text.split(' ').next().unwrap());
    }

    pub fn add(&mut self, event: &str, times: usize) {
        *self.0.entry(event.to_owned()).or_default() += times;
    }
}

/// Checks this many cases (`ONCELOG_RULES_CASES` for a longer run). In all of them together, each
/// of the events (`one, another`) happens at least so often.
pub fn holds<S: Strategy>(
    cases: u32,
    strategy: S,
    (at_least, events): (usize, &str),
    property: impl Fn(S::Value) -> Result<Seen, TestCaseError>,
) {
    let wanted = std::env::var("ONCELOG_RULES_CASES").ok().and_then(|cases| cases.parse().ok());
    let config =
        Config { cases: wanted.unwrap_or(cases), failure_persistence: None, ..Config::default() };
    let all = RefCell::new(Seen::default());
    let result = TestRunner::new(config).run(&strategy, |value| {
        for (event, count) in property(value)?.0 {
            all.borrow_mut().add(&event, count);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = all.into_inner().0;
    println!("{seen:?}");
    for event in events.split(", ") {
        let count = seen.get(event).copied().unwrap_or(0);
        assert!(count >= at_least, "{event} has happened {count} times only: {seen:?}");
    }
}

/// How far a number is from the correct one: mostly it is the correct one.
pub fn distance(correct: u32) -> impl Strategy<Value = i64> + Clone {
    prop_oneof![correct => Just(0), 1 => Just(-1), 1 => Just(1)]
}
