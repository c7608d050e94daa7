//! What is checked: configurations, and the rules left out.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use super::{
    Broken, Rule, Seen,
    world::{Action, Budget, Check, Config, Scope},
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
        let state = path.last_state().clone();
        panic!("{name}: broken: {broken}\n{}\n{state:#?}", told(&path.into_actions()));
    }
    let seen = seen.lock().unwrap().clone();
    println!("  seen: {seen:?}");
    let missed: Vec<_> = must_see.iter().filter(|event| !seen.contains(event)).collect();
    assert!(missed.is_empty(), "{name} never met {missed:?}");
    assert!(states >= at_least, "{name}: only {states} states");
}

/// Leaves a rule out: this part of the contract must break.
fn breaks(rule: Rule, broken: Broken, config: Config) {
    let started = Instant::now();
    let check = Check::new(Config { without: Some(rule), ..config });
    let until = HasDiscoveries::AnyOf([broken.name()].into());
    let checker = check.checker().finish_when(until).spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(broken.name());
    let path = path.unwrap_or_else(|| panic!("{rule:?} is not needed ({states} states)"));
    println!("without {rule:?}, {states} states, {:.1?}: broken: {broken:?}", started.elapsed());
    println!("  {}", told(&path.into_actions()));
}

fn told(actions: &[Action]) -> String {
    actions.iter().map(|action| format!("{action:?}")).collect::<Vec<_>>().join(" ")
}

macro_rules! without {
    ($($test:ident: $rule:ident breaks $broken:ident in $config:expr;)*) => {
        $(#[test]
        fn $test() {
            breaks(Rule::$rule, Broken::$broken, $config);
        })*
    };
}

/// One producer at one partition with so many sends.
fn sends(sends: u8) -> Config {
    let config = plain_config();
    Config { budget: Budget { sends, ..NONE }, ..config }
}

impl Config {
    fn opens(mut self, opens: u8) -> Self {
        self.budget.opens = opens;
        self
    }

    fn losses(mut self, losses: u8) -> Self {
        self.budget.losses = losses;
        self
    }

    fn lost_opens(mut self, lost_opens: u8) -> Self {
        self.budget.lost_opens = lost_opens;
        self
    }

    fn kills(mut self, kills: u8) -> Self {
        self.budget.kills = kills;
        self
    }

    fn snapshots(mut self, snapshots: u8, trims: u8) -> Self {
        self.budget.snapshots = snapshots;
        self.budget.trims = trims;
        self
    }

    fn scopes(self, scopes: &[Scope]) -> Self {
        Self { scopes: scopes.to_vec(), ..self }
    }

    fn per_run(self, per_run: i64) -> Self {
        Self { per_run, ..self }
    }

    fn in_flight(self, in_flight: i64) -> Self {
        Self { in_flight, ..self }
    }

    fn stored_before(self, stored_before: i64) -> Self {
        Self { stored_before, ..self }
    }

    fn plain(self) -> Self {
        Self { plain: true, ..self }
    }

    fn reset(self) -> Self {
        Self { reset: true, ..self }
    }

    fn pairs(self) -> Self {
        Self { pairs: true, ..self }
    }

    fn chunked(self) -> Self {
        Self { chunked: true, ..self }
    }

    fn early_steps(self) -> Self {
        Self { early_steps: true, ..self }
    }
}

const SAME: [Scope; 2] = [Scope::Partition(0), Scope::Partition(0)];
const OTHER: [Scope; 2] = [Scope::Partition(0), Scope::Partition(1)];

without! {
    without_rule_1_mark_equals_fence: MarkEqualsFence breaks AcceptedAfterFence in sends(3).opens(1).scopes(&SAME);
    without_rule_2_throw_away_no_prefix: ThrowAwayNoPrefix breaks DoesNotLoad in sends(3).snapshots(1, 1);
    without_rule_3_all_rows_of_a_stranger: AllRowsOfAStranger breaks StoredTwice in sends(3).scopes(&SAME);
    without_rule_12_state_ahead_of_the_head: StateAheadOfTheHead breaks WronglyAnswered in
        sends(2).stored_before(5).per_run(1).snapshots(2, 0).early_steps();
    without_rule_4_forget_what_was_lost: ForgetWhatWasLost breaks WronglyAnswered in sends(3).losses(1).plain();
    without_rule_5_advance_only_from_base: AdvanceOnlyFromBase breaks WronglyRefused in sends(4).per_run(3).plain();
    without_rule_8_all_or_nothing: AllOrNothing breaks WronglyAnswered in sends(3).scopes(&[Scope::Topic(2)]).plain();
    without_rule_8_compare_what_is_not_written:
        CompareWhatIsNotWritten breaks WronglyRefused in sends(4).opens(1).scopes(&OTHER).pairs();
    without_rule_9_confirm_what_is_not_written: ConfirmWhatIsNotWritten breaks WronglyRefused in sends(3).per_run(3);
    without_rule_11_share_unregistered: ShareUnregistered breaks AcceptedAfterFence in sends(1).opens(1);
    without_rule_18_list_after_lock: ListAfterLock breaks AcceptedAfterFence in sends(2).opens(1);
    without_rule_18_read_after_heads: ReadAfterHeads breaks NotCounted in sends(2).opens(1);
    without_rule_19_raise_fences: RaiseFences breaks AcceptedAfterFence in sends(2).opens(1);
    without_rule_20_reset_epoch: ResetEpoch breaks WronglyRefused in sends(1).opens(1).stored_before(1).reset();
    without_rule_20_fresh_flag: FreshFlag breaks WronglyRefused in sends(2).opens(1).stored_before(1).reset();
    without_rule_22_journal_counts_requests:
        JournalCountsRequests breaks StoredTwice in sends(2).scopes(&[Scope::Topic(1)]);
    without_rule_24_lock_before_snapshot: LockBeforeSnapshot breaks DoesNotLoad in sends(3).snapshots(2, 1);
    without_rule_24_fold_from_the_database: FoldFromTheDatabase breaks StoredTwice in sends(2).snapshots(1, 0);
    without_rule_25_trim_below_snapshot: TrimBelowSnapshot breaks DoesNotLoad in sends(2).snapshots(0, 1);
    without_rule_26_redo_what_was_lost: RedoWhatWasLost breaks RefusedButStored in sends(2).losses(1);
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

