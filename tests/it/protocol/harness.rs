//! What the model checks share: the model with what was seen in it, the exploration of all orders,
//! and the tests over it.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    hash::Hash,
    sync::{Arc, Mutex},
    time::Instant,
};

use stateright::{Checker, HasDiscoveries, Model};

/// A model: a configuration, and what was ever seen. (What was seen is kept beside the states, not
/// in them: as "sometimes" properties of the state these bits would multiply the states.)
#[derive(Clone)]
pub struct Check<C, S> {
    pub config: C,
    pub seen: Arc<Mutex<BTreeSet<S>>>,
}

impl<C, S: Ord> Check<C, S> {
    pub fn new(config: C) -> Self {
        Self { config, seen: Arc::default() }
    }

    pub fn note(&self, seen: S) {
        self.seen.lock().unwrap().insert(seen);
    }
}

impl<C, S: Ord + Debug + 'static> Check<C, S>
where
    Self: Model<
            State: Hash + Send + Sync + Clone + PartialEq + 'static,
            Action: Clone + PartialEq + Debug,
        > + Send
        + Sync
        + 'static,
{
    /// Explores all of it: nothing may be broken, and it must not be vacuous.
    pub fn explore(self, name: &str, at_least: usize, must_see: &[S]) {
        let started = Instant::now();
        let seen = self.seen.clone();
        let checker = self.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let (states, depth) = (checker.unique_state_count(), checker.max_depth());
        println!("{name}: {states} states, {depth} steps deep, {:.1?}", started.elapsed());
        if let Some((broken, path)) = checker.discoveries().into_iter().next() {
            panic!("{name}: broken: {broken}\n{}", show(&path.into_actions()));
        }
        let seen = seen.lock().unwrap();
        println!("  seen: {seen:?}");
        let missed: Vec<_> = must_see.iter().filter(|event| !seen.contains(event)).collect();
        assert!(missed.is_empty(), "{name} never met {missed:?}");
        assert!(states >= at_least, "{name}: only {states} states");
    }

    /// Explores a model that leaves a rule out, to a depth (0: without bound): this part of the
    /// contract must break.
    pub fn find_violation(self, rule: &str, broken: &'static str, depth: usize) {
        let started = Instant::now();
        let until = HasDiscoveries::AnyOf([broken].into());
        let checker = self.checker().finish_when(until).target_max_depth(depth).spawn_bfs().join();
        let states = checker.unique_state_count();
        let path = checker.discovery(broken);
        let path = path.unwrap_or_else(|| panic!("{rule} is not needed ({states} states)"));
        println!("without {rule}, {states} states, {:.1?}: broken: {broken}", started.elapsed());
        println!("  {}", show(&path.into_actions()));
    }
}

fn show(actions: &[impl Debug]) -> String {
    actions.iter().map(|action| format!("{action:?}")).collect::<Vec<_>>().join(" ")
}

/// Tests of configurations that hold.
macro_rules! holds {
    ($($(#[$attribute:meta])* $test:ident: $config:expr, at least $states:expr,
        must see $($seen:ident)*;)*) => {
        $($(#[$attribute])*
        #[test]
        fn $test() {
            $crate::protocol::harness::Check::new($config)
                .explore(stringify!($test), $states, &[$(Seen::$seen),*]);
        })*
    };
}

/// Tests of configurations that break without a rule, within `DEPTH` steps.
macro_rules! without {
    ($($test:ident: $rule:ident breaks $broken:ident in $config:expr;)*) => {
        $(#[test]
        fn $test() {
            let config = Config { without: Some(Rule::$rule), ..$config };
            $crate::protocol::harness::Check::new(config)
                .find_violation(stringify!($rule), Broken::$broken.name(), DEPTH);
        })*
    };
}

/// The properties of a model that these never happen.
macro_rules! never {
    ($($broken:ident),*) => {
        vec![$(stateright::Property::always(Broken::$broken.name(), |_, world: &World| {
            !world.broken.contains(&Broken::$broken)
        })),*]
    };
}

pub(crate) use {holds, never, without};
