//! A model check of groups with the real rules.
//!
//! `rules::{group, transaction}` decide as in the server; around them are a minimal [`ledger`],
//! and a [`world`] of clients that join, fetch, process, commit and come back, over a network in
//! which calls and answers are late or lost and every commit ever sent may arrive again at any
//! time. Processing means committing a range that begins at the group's committed offset of the
//! fetch. stateright explores *every* order (breadth first, so a counterexample is a shortest one).
//!
//! Each configuration names what it must have seen ([`Seen`]) and how many states it must have had;
//! and each rule in [`Rule`] is left out once, in the wiring of the server or in the behaviour of
//! the clients: then the check must find a violation.

mod ledger;
mod world;

use super::harness::{holds, without};
use ledger::How;
use world::{Budget, Config, Kind};

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Broken {
    ProcessedTwice,
    Skipped,
    WentBack,
    NotItsOwn,
    LostUntold,
    NotSettled,
    GenerationFell,
}

impl Broken {
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProcessedTwice => {
                "no record is processed twice by those who commit in transactions"
            }
            Self::Skipped => "nothing is committed whose records before it were not",
            Self::WentBack => "a member's commit moves no offset back",
            Self::NotItsOwn => {
                "a commit counts in the ownership only in which its records were fetched"
            }
            Self::LostUntold => "a member that lives keeps what it was not told to let go of",
            Self::NotSettled => {
                "when all have called twice every partition has the owner it is to have"
            }
            Self::GenerationFell => "generations only grow",
        }
    }
}

/// What a check must have met to mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Seen {
    Committed,
    /// The member had been told to let go, and had not yet.
    CommittedAfterRevoked,
    Repeated,
    HandedOver,
    Replaced,
    Unknown,
    FencedAsUnknown,
    FencedLost,
    FencedRegained,
    Conflict,
}

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Only the owner commits in a transaction.
    Ownership,
    /// Offsets are judged when they are committed, not only when they are added.
    AtTheEnd,
    /// A partition is handed over when its owner has let go.
    LettingGo,
    /// Who has not been told lets go of nothing: what a call shows was told, and no more.
    Shown,
    /// Of two that have processed the same records one commits.
    Runs,
    /// A smaller offset changes nothing.
    Monotonic,
    /// Clients: a commit names the generation of the fetch that brought its records.
    GenerationOfTheFetch,
    /// Clients: who gathers answers for one transaction continues its run.
    Continues,
}

const WHOLE: Kind = Kind { how: How::Whole, is_static: false };
const STAGED: Kind = Kind { how: How::Staged, is_static: false };
const PLAIN: Kind = Kind { how: How::Plain, is_static: false };
const CURSOR: Kind = Kind { how: How::Cursor, is_static: false };
const POD: Kind = Kind { how: How::Whole, is_static: true };

fn config(clients: &[Kind], partitions: i64) -> Config {
    let budget = Budget::default();
    let (clients, gathers) = (clients.to_vec(), false);
    Config { clients, partitions, records: 1, gathers, budget, without: None }
}

impl Config {
    fn records(self, records: i64) -> Self {
        Self { records, ..self }
    }

    /// That many leases run out, that many members come back.
    fn deaths(mut self, deaths: u8, joins: u8) -> Self {
        self.budget.deaths = deaths;
        self.budget.joins = joins;
        self
    }

    fn crashes(mut self, crashes: u8) -> Self {
        self.budget.crashes = crashes;
        self
    }

    /// That many times a client gives up on a commit, without knowing what becomes of it.
    fn forgets(mut self, forgets: u8) -> Self {
        self.budget.forgets = forgets;
        self
    }

    /// Clients gather several answers for one transaction.
    fn gathers(self) -> Self {
        Self { gathers: true, ..self }
    }

    fn growths(mut self, growths: u8) -> Self {
        self.budget.growths = growths;
        self
    }
}

holds! {
    holds_with_transactions_and_deaths: config(&[WHOLE, WHOLE], 2).deaths(1, 1), at least 5_000,
        must see Committed CommittedAfterRevoked Repeated HandedOver Unknown FencedAsUnknown
        FencedLost FencedRegained;
    holds_with_transactions_begun_early: config(&[STAGED, WHOLE], 2).records(2).deaths(1, 0),
        at least 5_000, must see Committed CommittedAfterRevoked Repeated HandedOver FencedAsUnknown
        FencedLost FencedRegained;
    holds_with_plain_commits: config(&[PLAIN, CURSOR], 2).records(2).deaths(1, 0), at least 1_000,
        must see Committed CommittedAfterRevoked HandedOver FencedLost FencedRegained
        FencedAsUnknown;
    holds_with_instances_that_come_back: config(&[POD, WHOLE], 2).crashes(1).deaths(1, 1),
        at least 5_000, must see Committed Replaced FencedAsUnknown HandedOver FencedLost
        FencedRegained;
    holds_while_a_topic_grows: config(&[WHOLE, STAGED], 1).growths(2), at least 3_000,
        must see Committed CommittedAfterRevoked HandedOver FencedLost;
    holds_with_outcomes_that_nobody_waits_for: config(&[WHOLE, STAGED], 2).forgets(1), at least 900,
        must see Committed Repeated Conflict HandedOver FencedLost;
    holds_with_answers_gathered:
        config(&[WHOLE, STAGED], 1).records(2).deaths(1, 0).forgets(1).gathers(), at least 1_000,
        must see Committed Repeated Conflict FencedAsUnknown;
    holds_with_three_members: config(&[WHOLE, STAGED, WHOLE], 2), at least 1_000, must see Committed
        CommittedAfterRevoked HandedOver FencedLost;
}

/// How many steps it takes at most to break something.
const DEPTH: usize = 16;

without! {
    without_ownership: Ownership breaks ProcessedTwice in config(&[WHOLE, WHOLE], 1).deaths(1, 0);
    without_judging_offsets_at_the_end: AtTheEnd breaks ProcessedTwice in
        config(&[STAGED, WHOLE], 1).deaths(1, 0);
    without_letting_go: LettingGo breaks LostUntold in config(&[WHOLE, WHOLE], 2);
    without_offsets_that_only_grow: Monotonic breaks WentBack in config(&[PLAIN], 1).records(2);
    without_the_generation_of_the_fetch: GenerationOfTheFetch breaks NotItsOwn in
        config(&[WHOLE, WHOLE], 2).deaths(1, 0);
    without_showing_what_was_told: Shown breaks LostUntold in config(&[WHOLE, WHOLE], 2);
    without_runs: Runs breaks ProcessedTwice in config(&[WHOLE], 1).forgets(1).gathers().records(2);
    without_runs_in_staged_ones: Runs breaks ProcessedTwice in
        config(&[STAGED], 1).forgets(1).gathers().records(2);
    without_continuing_a_run: Continues breaks ProcessedTwice in
        config(&[WHOLE], 1).records(2).forgets(1).gathers();
}

// cargo test --release --test it -- --ignored --nocapture group_check
holds! {
    #[ignore = "larger: a minute"]
    holds_larger_three_members: config(&[WHOLE, STAGED, WHOLE], 3), at least 30_000,
        must see Committed CommittedAfterRevoked HandedOver FencedLost;
    #[ignore = "larger: a minute"]
    holds_larger_plain_commits: config(&[PLAIN, CURSOR], 2).records(2).deaths(1, 1),
        at least 60_000, must see Committed CommittedAfterRevoked HandedOver FencedLost
        FencedRegained FencedAsUnknown;
    #[ignore = "larger: minutes"]
    holds_larger_deaths: config(&[WHOLE, STAGED], 2).records(2).deaths(2, 1), at least 100_000,
        must see Committed CommittedAfterRevoked Repeated HandedOver Unknown FencedAsUnknown
        FencedLost FencedRegained;
}
