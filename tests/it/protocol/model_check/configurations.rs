//! What is checked: configurations, and the rules left out.

use super::{
    super::harness::{holds, without},
    Broken, Rule, Seen,
    world::{Budget, Config, Scope},
};

const NONE: Budget = Budget {
    sends: 0,
    opens: 0,
    losses: 0,
    lost_opens: 0,
    kills: 0,
    snapshots: 0,
    trims: 0,
    failovers: 0,
    expiries: 0,
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
        known: None,
        reset: false,
        close: false,
        chunked: false,
        early_steps: false,
        budget: NONE,
        without: None,
    }
}

/// One producer at one partition with that many sends.
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

    fn failovers(mut self, failovers: u8) -> Self {
        self.budget.failovers = failovers;
        self
    }

    fn expiries(mut self, expiries: u8) -> Self {
        self.budget.expiries = expiries;
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

    fn known(self, sequence: i64) -> Self {
        Self { known: Some(sequence), ..self }
    }

    fn reset(self) -> Self {
        Self { reset: true, ..self }
    }

    fn close(self) -> Self {
        Self { close: true, ..self }
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

/// All is explored until something breaks.
const DEPTH: usize = 0;

without! {
    without_rule_1_verified_fence: VerifiedFence breaks AcceptedAfterFence in
        sends(3).opens(1).scopes(&SAME);
    without_rule_2_throw_away_no_prefix: ThrowAwayNoPrefix breaks DoesNotLoad in
        sends(3).snapshots(1, 1);
    without_rule_3_all_rows_of_a_new_producer: AllRowsOfANewProducer breaks StoredTwice in
        sends(3).scopes(&SAME);
    without_reload_under_a_new_fence: ReloadUnderANewFence breaks StoredTwice in
        sends(4).per_run(3).known(1);
    without_fence_of_a_number_that_stores_nothing: FenceSilent breaks StoredTwice in
        sends(4).per_run(3).known(1);
    without_rule_12_state_ahead_of_the_head: StateAheadOfTheHead breaks WronglyAnswered in
        sends(2).stored_before(5).per_run(1).snapshots(2, 0).early_steps();
    without_rule_4_forget_what_was_lost: ForgetWhatWasLost breaks WronglyAnswered in
        sends(3).losses(1).plain();
    without_rule_5_advance_only_from_base: AdvanceOnlyFromBase breaks WronglyRefused in
        sends(4).per_run(3).plain();
    without_rule_7_fingerprint: Fingerprint breaks WronglyAnswered in sends(3).plain().failovers(1);
    without_rule_7_forget_at_another_server: ForgetAtAnotherServer breaks WronglyAnswered in
        sends(4).plain().failovers(1);
    without_rule_8_all_or_nothing: AllOrNothing breaks WronglyAnswered in
        sends(3).scopes(&[Scope::Topic(2)]).plain();
    without_rule_8_compare_what_is_not_written: CompareWhatIsNotWritten breaks WronglyRefused in
        sends(4).opens(1).scopes(&OTHER).pairs();
    without_rule_9_confirm_what_is_not_written: ConfirmWhatIsNotWritten breaks WronglyRefused in
        sends(3).per_run(3);
    without_rule_11_share_unregistered: ShareUnregistered breaks AcceptedAfterFence in
        sends(1).opens(1);
    without_rule_18_list_after_lock: ListAfterLock breaks AcceptedAfterFence in sends(2).opens(1);
    without_rule_18_read_after_heads: ReadAfterHeads breaks NotCounted in sends(2).opens(1);
    without_rule_19_raise_fences: RaiseFences breaks AcceptedAfterFence in sends(2).opens(1);
    without_rule_20_reset_epoch: ResetEpoch breaks WronglyRefused in
        sends(1).opens(1).stored_before(1).reset();
    without_rule_20_fresh_flag: FreshFlag breaks WronglyRefused in
        sends(2).opens(1).stored_before(1).reset();
    without_rule_19_raise_fences_of_the_expired: RaiseFences breaks AcceptedAfterExpiry in
        sends(2).expiries(1);
    without_rule_21_look_under_heads: LookUnderHeads breaks ForgottenThoughActive in
        sends(2).expiries(1);
    without_rule_22_journal_counts_requests: JournalCountsRequests breaks StoredTwice in
        sends(2).scopes(&[Scope::Topic(1)]);
    without_rule_24_lock_before_snapshot: LockBeforeSnapshot breaks DoesNotLoad in
        sends(3).stored_before(1).plain().snapshots(3, 1);
    without_rule_24_fold_from_the_database: FoldFromTheDatabase breaks StoredTwice in
        sends(2).snapshots(1, 0);
    without_rule_25_trim_below_snapshot: TrimBelowSnapshot breaks DoesNotLoad in
        sends(2).snapshots(0, 1);
    without_rule_26_fence_what_was_lost: FenceWhatWasLost breaks RefusedButStored in
        sends(2).opens(1).losses(1).chunked();
    without_rule_26_redo_what_was_lost: RedoWhatWasLost breaks RefusedButStored in
        sends(2).losses(1);
}

holds! {
    holds_with_retries_over_two_replicas: sends(4).per_run(3).in_flight(2), at least 5_000,
        must see FastHeld ConfirmedByRead Overtaken RepeatedFast RepeatedSlow Ahead;
    holds_with_a_number_that_stores_nothing: sends(4).per_run(3).in_flight(2).known(1),
        at least 10_000, must see FastHeld Overtaken Silent RepeatedSlow Ahead;
    holds_with_a_number_that_stores_nothing_and_lost_answers:
        sends(3).per_run(3).known(1).losses(1).kills(1), at least 10_000, must see Silent
        RedoneAndRepeated LostDidNotCompare;
    holds_with_a_number_that_stores_nothing_and_an_open:
        sends(3).opens(1).known(0).snapshots(1, 1).early_steps(), at least 10_000, must see Silent
        ZombieRefused Snapshot;
    holds_with_lost_answers_and_kills: sends(3).losses(2).kills(1), at least 10_000,
        must see LostTookEffect LostDidNotCompare RedoneAndRepeated FastHeld;
    holds_with_an_open_and_a_zombie: sends(4).opens(1), at least 10_000, must see ZombieRefused
        AppendedDuringOpen FastHeld;
    holds_with_lost_answers_of_all: sends(3).opens(1).losses(1).lost_opens(1), at least 10_000,
        must see ZombieRefused RepeatedOpen LostTookEffect LostDidNotCompare RedoneAndRepeated;
    holds_with_two_opens_and_resets: sends(2).opens(2).stored_before(1).per_run(1).reset(),
        at least 10_000, must see StartedAtZeroAgain ZombieRefused;
    holds_with_resets_and_retries: sends(3).opens(1).lost_opens(1).stored_before(1).reset(),
        at least 10_000, must see StartedAtZeroAgain ZombieRefused RepeatedOpen;
    holds_with_two_opens_that_are_lost: sends(1).opens(2).lost_opens(2), at least 1_000,
        must see RepeatedOpen RepeatedOpenFenced;
    holds_with_an_open_that_fences_log_by_log: sends(3).opens(1).lost_opens(1).chunked(),
        at least 10_000, must see ZombieRefused RepeatedOpen AppendedDuringOpen;
    holds_with_lost_answers_while_logs_are_fenced_one_by_one: sends(2).opens(1).losses(1).chunked(),
        at least 1_000, must see ZombieRefused LostTookEffect LostDidNotCompare;
    holds_with_two_producers_and_plain_appends: sends(3).opens(1).scopes(&SAME).plain(),
        at least 10_000, must see FastHeld Overtaken ZombieRefused;
    holds_with_plain_appends_and_lost_answers: sends(4).losses(1).plain(), at least 10_000,
        must see LostTookEffect FastHeld RedoneAndRepeated;
    holds_with_groups_over_two_logs: sends(4).scopes(&OTHER).pairs(), at least 10_000,
        must see FastHeld Overtaken RepeatedFast;
    holds_with_a_topic_over_two_partitions:
        sends(3).opens(1).losses(1).scopes(&[Scope::Topic(2)]).plain(), at least 10_000,
        must see AppendedToTwoLogs FastHeld LostTookEffect ZombieRefused;
    holds_with_snapshots_and_trims: sends(4).snapshots(2, 2).early_steps(), at least 10_000,
        must see Snapshot Trim LoadedBehindATrim TrimmedWhileLoading;
    holds_with_a_full_window: sends(2).stored_before(5).per_run(1).snapshots(2, 1).early_steps(),
        at least 10_000, must see Snapshot Trim RepeatedSlow LoadedBehindATrim;
    holds_with_snapshots_opens_and_losses:
        sends(2).opens(1).losses(1).snapshots(1, 1).stored_before(1), at least 10_000,
        must see Snapshot Trim LoadedBehindATrim ZombieRefused LostTookEffect;
    holds_with_a_hidden_failover_to_a_longer_log: sends(4).plain().failovers(1), at least 1_000,
        must see FastHeld FailedOver;
    holds_with_a_failover_to_a_log_of_equal_length: sends(3).plain().failovers(1), at least 1_000,
        must see FailedOver FastHeld Overtaken;
    holds_with_a_close_and_an_open: sends(2).opens(2).stored_before(1).per_run(1).close(),
        at least 10_000, must see Closed ZombieRefused AppendedDuringOpen;
    holds_with_groups_of_one_producer: sends(4).in_flight(2).losses(1).pairs(), at least 10_000,
        must see RepeatedInItsBatch FastHeld Ahead LostTookEffect;
    holds_with_groups_of_a_topic:
        sends(4).losses(1).in_flight(2).scopes(&[Scope::Topic(2)]).pairs(), at least 1_000,
        must see RepeatedInItsBatch FastHeld Ahead LostTookEffect;
    holds_with_an_expiry: sends(4).expiries(1), at least 1_000, must see Expired KeptAsActive
        UnknownRefused FastHeld;
    holds_with_an_expiry_and_lost_answers: sends(3).expiries(1).losses(1), at least 10_000,
        must see Expired KeptAsActive UnknownRefused LostTookEffect LostDidNotCompare;
    holds_with_an_expiry_and_an_open:
        sends(2).expiries(1).opens(1).snapshots(1, 1).stored_before(1), at least 10_000,
        must see Expired KeptAsActive UnknownRefused ZombieRefused LoadedBehindATrim;
    holds_with_an_expiry_over_a_topic:
        sends(3).expiries(1).losses(1).scopes(&[Scope::Topic(2)]).plain(), at least 10_000,
        must see Expired KeptAsActive UnknownRefused LostTookEffect;
    holds_with_first_appends_at_both_replicas: sends(3).opens(1).early_steps(), at least 10_000,
        must see FastHeld ZombieRefused;
}

// cargo test --test it -- --ignored --nocapture model_check
holds! {
    #[ignore = "larger: minutes"]
    holds_larger_groups_of_one_producer: sends(5).in_flight(2).losses(1).plain().pairs(),
        at least 100_000, must see RepeatedInItsBatch Ahead LostTookEffect RedoneAndRepeated;
    #[ignore = "larger: minutes"]
    holds_larger_expiry: sends(4).expiries(1).losses(1).kills(1).early_steps(), at least 100_000,
        must see Expired KeptAsActive UnknownRefused LostTookEffect;
    #[ignore = "larger: minutes"]
    holds_larger_groups_of_a_topic:
        sends(4).opens(1).losses(1).in_flight(2).scopes(&[Scope::Topic(2)]).pairs(),
        at least 100_000, must see RepeatedInItsBatch Ahead ZombieRefused;
    #[ignore = "larger: minutes"]
    holds_larger_retries: sends(5).per_run(3).in_flight(3).losses(1).kills(1).early_steps(),
        at least 100_000, must see Ahead LostTookEffect RedoneAndRepeated;
    #[ignore = "larger: minutes"]
    holds_larger_opens: sends(4).opens(2).per_run(1).lost_opens(1), at least 100_000,
        must see ZombieRefused RepeatedOpen RepeatedOpenFenced;
    #[ignore = "larger: minutes"]
    holds_larger_resets: sends(3).opens(2).stored_before(1).per_run(1).reset(), at least 100_000,
        must see StartedAtZeroAgain ZombieRefused;
    #[ignore = "larger: minutes"]
    holds_larger_early_steps: sends(3).opens(1).losses(1).snapshots(1, 1).early_steps(),
        at least 100_000, must see TrimmedWhileLoading ZombieRefused LostTookEffect;
    #[ignore = "larger: minutes"]
    holds_larger_two_producers: sends(4).opens(1).losses(1).per_run(1).scopes(&SAME).plain(),
        at least 100_000, must see ZombieRefused LostTookEffect RedoneAndRepeated;
    #[ignore = "larger: minutes"]
    holds_larger_groups: sends(4).opens(1).losses(1).scopes(&OTHER).pairs(), at least 100_000,
        must see FastHeld ZombieRefused LostTookEffect;
    #[ignore = "larger: minutes"]
    holds_larger_topic: sends(3).opens(1).losses(1).snapshots(1, 1).scopes(&[Scope::Topic(2)]),
        at least 100_000, must see AppendedToTwoLogs LoadedBehindATrim LostTookEffect;
    #[ignore = "larger: minutes"]
    holds_larger_log_by_log: sends(3).opens(2).lost_opens(1).kills(1).per_run(1).chunked(),
        at least 100_000, must see ZombieRefused RepeatedOpen;
}
