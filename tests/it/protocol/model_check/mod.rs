//! A model check of the append protocol with the real rules.
//!
//! # What runs
//! `oncelog::rules` decides, replays and checks as in the server; in place of tokio, sqlx and
//! Postgres there is a minimal world in which the order of events can be enumerated. stateright
//! explores *every* order (breadth first, so a counterexample is a shortest one).
//!
//! Steps are separated by `/`:
//!
//! - Clients ([`world`]) send any sequence of their run, again and again, to either replica. An
//!   open's answer starts the client of a later epoch; the earlier ones go on as zombies.
//! - Two replicas ([`passes`], in the server `broker::append::{lane, writer}`) take the fast path:
//!   arrive, decide / statement, answer; or the slow path: read heads / states / rows / sessions /
//!   share sessions / lock heads / load / decide, write, commit.
//! - Opens and closes ([`opens`], `broker::session`): lock session / list logs / lock heads / raise
//!   the epoch, read next sequences, commit / answer; or the epoch first, then log by log. An open
//!   is repeated by its open id.
//! - The janitor ([`opens`], `broker::janitor`): snapshot / trim.
//! - Expiries ([`expiries`], `broker::janitor::producers`): lock session / list logs / lock heads /
//!   check the rows, forget, commit.
//! - Faults: an answer is lost (the statement takes effect later, or never; the commit took effect
//!   or did not); a replica dies.
//!
//! # What is atomic
//! A statement of Postgres is atomic: reading it sees what is committed, and a statement that would
//! wait for a lock is not possible before the lock is free. So is everything that only one actor
//! can see: its own transaction until the commit (locks are visible, rows are not), and what is
//! protected by its exclusive lock. The pure rules take no time. Nothing else is atomic: any other
//! step may come between any two steps. An actor may stop at any time, so a lost statement that
//! never takes effect needs no action of its own.
//!
//! # Who is authoritative
//! The [`ledger`]: heads, rows, states, sessions, locks. A replica's caches are lost with it. The
//! ledger hides trimmed rows from every statement, but keeps them in the history, against which
//! [`truth`] checks every stored row, answer and cache. All timestamps are equal, so
//! `last_appended_at` never distinguishes two heads (except with failovers, which is its purpose).
//!
//! # What it cannot see
//! Deadlocks between several heads (all are locked in one step; that nobody waits forever *is*
//! checked for the existing steps), growth and deletion of topics, the name of an expired producer,
//! several concurrent opens with one id, parked requests (they are refused at once), statements
//! that Postgres executes differently than [`ledger`]. A failover only happens while nothing is in
//! flight: what is in flight fails with its connection.
//!
//! # Is it vacuous?
//! Each configuration names what it must have seen ([`Seen`]) and how many states it must have had.
//! And each rule in [`Rule`] is left out once, in the wiring or the stand-in, never in `src`: then
//! the check must find a violation of the contract.

mod configurations;
mod expiries;
mod ledger;
mod load;
mod opens;
mod passes;
mod silent;
mod truth;
mod world;

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Broken {
    StoredTwice,
    WronglyAnswered,
    NotDense,
    Gap,
    AcceptedAfterFence,
    NotCounted,
    WronglyRefused,
    RefusedButStored,
    DoesNotLoad,
    CacheWrong,
    AcceptedAfterExpiry,
    ForgottenThoughActive,
}

impl Broken {
    pub const fn name(self) -> &'static str {
        match self {
            Self::StoredTwice => "what is accepted is stored at most once",
            Self::WronglyAnswered => {
                "what is acknowledged is stored, and every answer says the same place"
            }
            Self::NotDense => "offsets are dense",
            Self::Gap => "a producer's sequences follow each other without gap",
            Self::AcceptedAfterFence => {
                "once an open has answered, nothing of an earlier epoch is accepted"
            }
            Self::NotCounted => "an open's next sequences count all that is stored",
            Self::WronglyRefused => {
                "what follows what was acknowledged is not refused in its own epoch"
            }
            Self::RefusedButStored => "what was refused is not stored by that attempt",
            Self::DoesNotLoad => "a locked log loads",
            Self::AcceptedAfterExpiry => "once a producer has expired, nothing of it is accepted",
            Self::ForgottenThoughActive => "a producer with a row since the limit does not expire",
            Self::CacheWrong => "a cache between batches is a prefix of the log, folded",
        }
    }
}

/// What a check must have met to mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Seen {
    FastHeld,
    /// A number was used and nothing stored: no row shows it.
    Silent,
    ConfirmedByRead,
    /// A fast path whose read set had changed.
    Overtaken,
    /// A repeat recognised from cache; after loading.
    RepeatedFast,
    RepeatedSlow,
    /// A repeat of what the same batch appends.
    RepeatedInItsBatch,
    /// A repeat recognised by the redo of a lost outcome.
    RedoneAndRepeated,
    LostTookEffect,
    LostDidNotCompare,
    Ahead,
    ZombieRefused,
    /// An append committed between the first and the last step of an open of its producer.
    AppendedDuringOpen,
    /// Sequence 0 of an epoch that reset.
    StartedAtZeroAgain,
    RepeatedOpen,
    RepeatedOpenFenced,
    AppendedToTwoLogs,
    Snapshot,
    Trim,
    LoadedBehindATrim,
    TrimmedWhileLoading,
    FailedOver,
    /// A session was ended.
    Closed,
    /// A producer was forgotten; one was kept for what it appended meanwhile.
    Expired,
    KeptAsActive,
    /// An append was refused since its producer had expired.
    UnknownRefused,
}

/// The rules of `docs/append-protocol.md` that can be left out here, by their numbers.
///
/// Not here, as they lie inside a rule function: 3, "a row is applied whole or not at all"
/// (`LogCache::fold`); 5, "the compare counts for all of them" (`read_set`). 6 is the lane's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// 1: the fast path uses a producer only if its verified fence is the fence of the log.
    VerifiedFence,
    /// 2: a cache that is no prefix of the log is thrown away.
    ThrowAwayNoPrefix,
    /// 3: a new producer is its state and all rows from there on.
    AllRowsOfANewProducer,
    /// 3, 12: before the lock a state may be newer than the heads that were read; the rows it
    /// counts already are then read with it, so that none of them is counted again under the lock.
    StateAheadOfTheHead,
    /// 3: a producer whose verified fence is old is loaded as a new one.
    ReloadUnderANewFence,
    /// 23: a number that stores nothing raises the fence.
    FenceSilent,
    /// 4: a lost outcome forgets the log.
    ForgetWhatWasLost,
    /// 5: after an append without compare the cache advances only from the returned base.
    AdvanceOnlyFromBase,
    /// 7: the compare and the cache know a history by its last instant, not by its length alone.
    Fingerprint,
    /// 7: a write on another server forgets all caches, also if it compared nothing.
    ForgetAtAnotherServer,
    /// 8: all logs of a batch are written, or none.
    AllOrNothing,
    /// 8: a log that an answer depends on is compared, also if nothing is written to it.
    CompareWhatIsNotWritten,
    /// 9: a batch that writes nothing is confirmed by a read.
    ConfirmWhatIsNotWritten,
    /// 11: the session rows of unregistered producers are held `for share`.
    ShareUnregistered,
    /// 18: the registered logs are read under the session's lock.
    ListAfterLock,
    /// 18: the next sequences are read under the heads' locks.
    ReadAfterHeads,
    /// 19: an open raises the fences.
    RaiseFences,
    /// 21: an expiry looks for rows under the heads' locks.
    LookUnderHeads,
    /// 20: the session row says which states count as none.
    ResetEpoch,
    /// 20: an entry says that it was decided on "no state".
    FreshFlag,
    /// 22: a journal's row counts its requests.
    JournalCountsRequests,
    /// 24: the snapshot locks the head first.
    LockBeforeSnapshot,
    /// 24: the snapshot folds what it reads from the database.
    FoldFromTheDatabase,
    /// 25: rows are trimmed only below the snapshot.
    TrimBelowSnapshot,
    /// 26: what was lost is redone in a slow path.
    RedoWhatWasLost,
    /// 26: a redo that writes nothing raises the fences, so that the lost statement compares no
    /// more.
    FenceWhatWasLost,
}
