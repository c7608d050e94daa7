//! A model check of transactions with the real rules.
//!
//! `rules::{transaction, group::offsets, session}` decide as in the server; around them are a
//! minimal [`ledger`], and a [`world`] of clients that each run a script over a network that
//! delivers requests late, again, out of order or never, and loses answers. stateright explores
//! *every* order (breadth first, so a counterexample is a shortest one).
//!
//! A message is handled in one step: in the server it is one Postgres transaction under the locks
//! of its session, transaction, offsets and heads. Another check ([`statements`]) covers the steps
//! between its statements, where calls of one transaction interleave.
//!
//! Each configuration names what it must have seen ([`Seen`]) and how many states it must have had;
//! and each rule in [`Rule`] is left out once, in the wiring: then the check must find a violation.

mod ledger;
mod statements;
mod world;

use super::harness::{holds, without};
use world::{Budget, Config, Script, Step};

/// How long a transaction may stay open.
const TIMEOUT_MS: i64 = 2;

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Broken {
    NotAtomic,
    NotDense,
    AcceptedAfterFence,
    AcceptedAfterDeadline,
    ToldWrong,
    OffsetTwice,
    OutcomeChanged,
    PreparedButRefused,
    RunsTwice,
    LeftBehind,
    Stuck,
}

impl Broken {
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotAtomic => {
                "all appends of a committed transaction are in the logs, once, and no others"
            }
            Self::NotDense => "offsets are dense",
            Self::AcceptedAfterFence => "once a session was opened, nothing of an older one counts",
            Self::AcceptedAfterDeadline => "past its deadline nothing is accepted",
            Self::ToldWrong => "an answer says where what was committed lies",
            Self::OffsetTwice => "a group's offset moves once a transaction, each from the last",
            Self::OutcomeChanged => "an outcome never changes",
            Self::PreparedButRefused => "what is prepared can be committed",
            Self::RunsTwice => "no id runs twice",
            Self::LeftBehind => "nothing staged is left behind by an end",
            Self::Stuck => "calls do not wait for each other",
        }
    }
}

/// What a check must have met to mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Seen {
    Committed,
    /// In one request.
    Whole,
    Aborted,
    TimedOut,
    AbortedByOpen,
    FencedCommit,
    /// Any other call of an old epoch.
    Fenced,
    ReplayedBegin,
    ReplayedAppend,
    ReplayedCommit,
    PreparedCommitted,
    PreparedCommittedAfterOpen,
    /// The group's offset was another; or was held by a prepared transaction.
    Conflict,
    Pinned,
    Ahead,
    AppendsMissing,
    ForgottenAndRefused,
}

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    CheckProducer,
    Deadline,
    Horizon,
    /// A prepared transaction keeps others from the offsets it is to commit.
    Pins,
    /// An offset is judged when it is committed, not only when it is added.
    OffsetsAtTheEnd,
    Numbering,
    ExpectedAppends,
    /// An end that was done before is not done again.
    RepeatedEnds,
    /// Of two that have processed the same records as a member one commits.
    Runs,
}

const COPY: Script = &[Step::Begin, Step::Append(0), Step::Append(1), Step::Offset, Step::Commit];
const PREPARED: Script =
    &[Step::Begin, Step::Append(0), Step::Append(1), Step::Offset, Step::Prepare, Step::Commit];
const ABORTED: Script = &[Step::Begin, Step::Append(0), Step::Offset, Step::Abort];
const SHORT: Script = &[Step::Begin, Step::Append(1), Step::Offset, Step::Commit];
const OFFSET_FIRST: Script = &[Step::Begin, Step::Offset, Step::Append(1), Step::Commit];
const RECOVERING: Script =
    &[Step::Recover, Step::Begin, Step::Append(1), Step::Offset, Step::Commit];
const WHOLE: Script = &[Step::Whole { offset: true }];
const APPENDS: Script = &[Step::Whole { offset: false }];

fn config(scripts: &[Script], successor: Script) -> Config {
    let none = Budget { opens: 0, ticks: 0, sweeps: 0, retentions: 0 };
    Config {
        scripts: scripts.to_vec(),
        unbound: Vec::new(),
        by_member: false,
        successor,
        in_flight: 1,
        budget: none,
        without: None,
    }
}

impl Config {
    fn opens(mut self, opens: u8) -> Self {
        self.budget.opens = opens;
        self
    }

    fn ticks(mut self, ticks: u8) -> Self {
        self.budget.ticks = ticks;
        self
    }

    fn sweeps(mut self, sweeps: u8, retentions: u8) -> Self {
        self.budget.sweeps = sweeps;
        self.budget.retentions = retentions;
        self
    }

    fn in_flight(self, in_flight: usize) -> Self {
        Self { in_flight, ..self }
    }

    /// All read as the same member, without knowing of each other.
    fn by_member(self) -> Self {
        Self { by_member: true, ..self }
    }

    fn unbound(self, scripts: &[Script]) -> Self {
        Self { unbound: scripts.to_vec(), ..self }
    }
}

holds! {
    holds_with_two_producers_and_a_zombie: config(&[COPY, SHORT], SHORT).opens(2), at least 10_000,
        must see Committed AbortedByOpen FencedCommit Fenced ReplayedBegin ReplayedAppend
        ReplayedCommit Conflict;
    holds_with_timeouts: config(&[COPY, SHORT], SHORT).opens(1).ticks(2), at least 10_000,
        must see Committed TimedOut FencedCommit ReplayedCommit;
    holds_with_prepared_transactions: config(&[PREPARED, SHORT], RECOVERING).opens(1).ticks(2),
        at least 50_000, must see PreparedCommitted PreparedCommittedAfterOpen Pinned FencedCommit
        Conflict TimedOut;
    holds_with_two_opens_and_a_prepared_one: config(&[PREPARED], RECOVERING).opens(2).ticks(2),
        at least 10_000, must see PreparedCommittedAfterOpen FencedCommit TimedOut;
    holds_with_calls_that_overtake_each_other:
        config(&[COPY, ABORTED], SHORT).opens(1).in_flight(3), at least 10_000, must see Ahead
        AppendsMissing ReplayedAppend Committed Aborted FencedCommit;
    holds_with_one_request_transactions:
        config(&[WHOLE, SHORT], WHOLE).opens(1).unbound(&[APPENDS]).ticks(2), at least 10_000,
        must see Whole ReplayedBegin Conflict Committed TimedOut;
    holds_with_a_member:
        config(&[OFFSET_FIRST, PREPARED], SHORT).opens(1).unbound(&[WHOLE]).by_member(),
        at least 10_000, must see Whole ReplayedBegin ReplayedCommit Conflict Pinned
        PreparedCommitted Committed FencedCommit;
    holds_while_outcomes_are_forgotten:
        config(&[SHORT], SHORT).unbound(&[APPENDS]).ticks(6).sweeps(2, 2), at least 10_000,
        must see ForgottenAndRefused Whole ReplayedBegin ReplayedCommit Committed TimedOut;
}

/// How many steps it takes at most to break something.
const DEPTH: usize = 14;

without! {
    without_the_check_of_the_producer: CheckProducer breaks AcceptedAfterFence in
        config(&[COPY], SHORT).opens(1);
    without_the_deadline: Deadline breaks AcceptedAfterDeadline in config(&[SHORT], SHORT).ticks(3);
    without_the_horizon: Horizon breaks RunsTwice in
        config(&[], SHORT).unbound(&[ABORTED]).ticks(4).sweeps(1, 2);
    without_pins: Pins breaks OffsetTwice in config(&[PREPARED, SHORT], SHORT);
    without_judging_offsets_at_the_end: OffsetsAtTheEnd breaks OffsetTwice in
        config(&[SHORT, SHORT], SHORT);
    without_runs: Runs breaks OffsetTwice in config(&[SHORT, OFFSET_FIRST], SHORT).by_member();
    without_runs_in_one_request: Runs breaks OffsetTwice in
        config(&[], SHORT).unbound(&[WHOLE, WHOLE]).by_member();
    without_numbers: Numbering breaks NotAtomic in config(&[SHORT], SHORT);
    without_expected_appends: ExpectedAppends breaks NotAtomic in
        config(&[COPY], SHORT).in_flight(3);
    without_the_repeat_of_an_end: RepeatedEnds breaks NotAtomic in config(&[SHORT], SHORT);
}

// cargo test --release --test it -- --ignored --nocapture transaction_check
holds! {
    #[ignore = "larger: a minute"]
    holds_larger_one_request_transactions:
        config(&[WHOLE, SHORT], WHOLE).opens(2).unbound(&[APPENDS]).ticks(2), at least 100_000,
        must see Whole ReplayedBegin Conflict Committed TimedOut FencedCommit;
    #[ignore = "larger: minutes"]
    holds_larger_timeouts: config(&[COPY, SHORT], SHORT).opens(2).ticks(3), at least 100_000,
        must see Committed TimedOut FencedCommit ReplayedCommit Conflict;
    #[ignore = "larger: minutes"]
    holds_larger_prepared_transactions: config(&[PREPARED, COPY], RECOVERING).opens(1).ticks(3),
        at least 100_000, must see PreparedCommittedAfterOpen Pinned FencedCommit Conflict TimedOut;
}
