//! What is checked: configurations, and the rules left out.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use super::{
    Broken, Rule, Seen,
    world::{Budget, Check, Config, Scope},
};

const NONE: Budget = Budget {
    sends: 0,
    opens: 0,
    losses: 0,
    lost_opens: 0,
    kills: 0,
    snapshots: 0,
    trims: 0,
};

/// One producer, one partition.
fn plain_config() -> Config {
    Config {
        scopes: vec![Scope::Partition(0)],
        stored_before: 0,
        per_run: 2,
        in_flight: 1,
        pairs: false,
        plain: false,
        reset: false,
        chunked: false,
        early_steps: false,
        budget: NONE,
        without: None,
    }
}

/// Explores all of it: nothing may be broken, and it must not be vacuous.
fn holds(name: &str, config: Config, at_least: usize, must_see: &[Seen]) {
    let started = Instant::now();
    let check = Check::new(config);
    let seen = check.seen.clone();
    let checker = check.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, {depth} steps deep, {:.1?}", started.elapsed());
    for (broken, path) in checker.discoveries() {
        let actions: Vec<String> =
            path.clone().into_actions().iter().map(|action| format!("{action:?}")).collect();
        panic!("{name}: broken: {broken}\n{}\n{:#?}", actions.join("\n"), path.last_state());
    }
    let seen = seen.lock().unwrap().clone();
    println!("  seen: {seen:?}");
    let missed: Vec<_> = must_see.iter().filter(|event| !seen.contains(event)).collect();
    assert!(missed.is_empty(), "{name} never met {missed:?}");
    assert!(states >= at_least, "{name}: only {states} states");
}

#[test]
fn probe() {
    let which = std::env::var("PROBE").unwrap_or_default();
    let n = |name: &str, default: u8| {
        std::env::var(name).map_or(default, |value| value.parse().unwrap())
    };
    let mut config = plain_config();
    config.budget = Budget {
        sends: n("SENDS", 3),
        opens: n("OPENS", 0),
        losses: n("LOSSES", 0),
        lost_opens: n("LOSTOPENS", 0),
        kills: n("KILLS", 0),
        snapshots: n("SNAPS", 0),
        trims: n("TRIMS", 0),
    };
    config.early_steps = which.contains("early");
    config.chunked = which.contains("chunked");
    config.reset = which.contains("reset");
    config.plain = which.contains("plain");
    config.pairs = which.contains("pairs");
    config.per_run = n("PER_RUN", 2).into();
    config.in_flight = n("IN_FLIGHT", 1).into();
    config.stored_before = n("BEFORE", 0).into();
    if which.contains("topic1") {
        config.scopes = vec![Scope::Topic(1)];
    }
    if which.contains("topic2") {
        config.scopes = vec![Scope::Topic(2)];
    }
    if which.contains("two") {
        config.scopes.push(Scope::Partition(0));
    }
    if which.contains("other") {
        config.scopes.push(Scope::Partition(1));
    }
    holds("probe", config, 1, &[]);
}

#[allow(dead_code)]
fn _unused(_: Rule, _: Broken) {}
