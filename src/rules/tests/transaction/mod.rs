//! Transactions: one table row per call. `properties` checks invariants over whole histories.

mod ledger;
pub mod one_request;
mod ops;
mod oracle;
mod properties;
pub mod record_ids;

use std::{cell::RefCell, collections::BTreeSet};

use uuid::Uuid;

use super::{
    digest,
    session::{a_row as a_session, made_at},
    settings::own,
    text::{check, show_refusal, show_state},
};
use crate::{
    model::{
        Digest, Epoch, ProducerId, Timestamp,
        dedup::RequestKey,
        settings::{Key, OwnSettings},
        transaction::{Caller, ID_AHEAD_MS, PlacedAppend, Reason, RepeatedBy, State},
    },
    rules::{
        Refusal,
        transaction::{
            MOVES, Numbering, TransactionRow, TransactionVerdict, Verb, absent, check_appends,
            check_begin, check_producer, check_size, judge, number, repeat, retention_ms,
            timeout_ms,
        },
    },
};

const VERBS: [Verb; 4] = [Verb::Add, Verb::Prepare, Verb::Commit, Verb::Abort];

fn word(verb: Verb) -> &'static str {
    match verb {
        Verb::Add => "add",
        Verb::Prepare => "prepare",
        Verb::Commit => "commit",
        Verb::Abort => "abort",
    }
}

/// `P7:e3`
fn a_producer(word: &str) -> (ProducerId, Epoch) {
    let (id, epoch) = word.split_once(":e").unwrap();
    (ProducerId(id[1..].parse().unwrap()), epoch.parse().unwrap())
}

pub fn begun(
    transaction_id: Uuid,
    session: Option<(ProducerId, Epoch)>,
    digest: Digest,
    (created_at, expires_at): (Timestamp, Timestamp),
) -> TransactionRow {
    TransactionRow {
        transaction_id,
        state: State::Ongoing,
        session,
        digest,
        created_at,
        expires_at,
        prepared_at: None,
        ended_at: None,
        reason: None,
        append_count: 0,
        batch_count: 0,
        next_sequence: 0,
        appends: None,
    }
}

/// `ongoing` or `aborted:client`, then `P7:e3` (its session), `until900`, `next3`, `payload` (begun
/// with it).
fn a_row(words: &str) -> TransactionRow {
    let (created_at, expires_at) = (Timestamp(100), Timestamp(900));
    let mut row = begun(made_at(100), None, digest(""), (created_at, expires_at));
    for word in words.split_whitespace() {
        let (state, reason) = word.split_once(':').unwrap_or((word, ""));
        if let Some(state) = State::parse(state) {
            row.state = state;
            row.reason = Reason::parse(reason);
            row.ended_at = (state > State::Prepared).then_some(Timestamp(300));
        } else if let Some(at) = word.strip_prefix("until") {
            row.expires_at = Timestamp(at.parse().unwrap());
        } else if let Some(sequence) = word.strip_prefix("next") {
            row.next_sequence = sequence.parse().unwrap();
        } else if word.starts_with('P') {
            row.session = Some(a_producer(word));
        } else {
            row.digest = digest(word);
        }
    }
    row
}

fn show(verdict: Result<TransactionVerdict, Refusal>) -> String {
    match verdict {
        Ok(TransactionVerdict::Go(state)) => state.as_str().into(),
        Ok(TransactionVerdict::Repeat) => "repeat".into(),
        Err(refusal) => show_refusal(&refusal),
    }
}

fn fine(verdict: Result<(), Refusal>) -> String {
    verdict.map_or_else(|refusal| show_refusal(&refusal), |()| "fine".into())
}

/// By the caller it belongs to; by an operator.
const CALLS: &str = "
    ongoing          | add     -> ongoing; may not
    ongoing          | prepare -> prepared; may not
    ongoing          | commit  -> committed; may not
    ongoing          | abort   -> aborted; aborted
    prepared         | add     -> no, prepared; may not
    prepared         | prepare -> repeat; may not
    prepared         | commit  -> committed; committed
    prepared         | abort   -> aborted; aborted
    committed        | add     -> no, committed; may not
    committed        | prepare -> no, committed; may not
    committed        | commit  -> repeat; repeat
    committed        | abort   -> no, committed; no, committed
    aborted:client   | add     -> no, aborted client; may not
    aborted:client   | prepare -> no, aborted client; may not
    aborted:client   | commit  -> no, aborted client; no, aborted client
    aborted:client   | abort   -> repeat; repeat
    aborted:timeout  | add     -> no, aborted timeout; may not
    aborted:timeout  | commit  -> no, aborted timeout; no, aborted timeout
    aborted:timeout  | abort   -> repeat; repeat
    aborted:fenced   | commit  -> no, aborted fenced; no, aborted fenced
    aborted:operator | commit  -> no, aborted operator; no, aborted operator
    aborted:operator | abort   -> repeat; repeat";

#[test]
fn every_call_in_every_state_by_every_caller() {
    let judged = RefCell::new(BTreeSet::new());
    check(CALLS, |state, name| {
        let verb = VERBS.into_iter().find(|verb| word(*verb) == name).unwrap();
        let free = a_row(state);
        judged.borrow_mut().insert((free.state, name.to_owned()));
        let bound = a_row(&format!("{state} P7:e3"));
        let owner = |epoch| Caller::Session(ProducerId(7), epoch);
        let by_owner = show(judge(&free, verb, Caller::Bearer));
        // (which epoch is current is not its business)
        for epoch in [2, 3, 4] {
            assert_eq!(show(judge(&bound, verb, owner(epoch))), by_owner, "{state} {name}");
        }
        let by_operator = show(judge(&free, verb, Caller::Operator));
        assert_eq!(show(judge(&bound, verb, Caller::Operator)), by_operator, "{state} {name}");
        let stranger = Caller::Session(ProducerId(8), 3);
        for (row, caller, want) in [
            (&free, owner(3), Refusal::ProducerMismatch),
            (&free, stranger, Refusal::ProducerMismatch),
            (&bound, stranger, Refusal::ProducerMismatch),
            (&bound, Caller::Bearer, Refusal::SessionMissing),
        ] {
            assert_eq!(judge(row, verb, caller), Err(want), "{state} {name} {caller:?}");
        }
        format!("{by_owner}; {by_operator}")
    });
    let all = State::ALL.iter().flat_map(|state| VERBS.map(|verb| (*state, word(verb).to_owned())));
    assert_eq!(judged.into_inner(), all.collect(), "a row for every state and verb");
}

#[test]
fn a_move_is_named_once_and_an_end_is_one() {
    let moves: BTreeSet<_> = MOVES.iter().map(|(from, by, _)| (*from, word(*by))).collect();
    assert_eq!(moves.len(), MOVES.len());
    for (from, _, to) in MOVES {
        let has_ended = [State::Committed, State::Aborted].contains(from);
        assert!(to == from || !has_ended && from < to, "{from:?} {to:?}");
    }
}

#[test]
fn a_timeout_comes_at_its_instant_and_to_ongoing_ones_only() {
    let table = "
        ongoing until900         | at 899 -> ongoing
        ongoing until900         | at 900 -> aborted timeout, ended 900
        ongoing until900         | at 901 -> aborted timeout, ended 900
        ongoing until900 P7:e3   | at 899 -> ongoing
        ongoing until900 P7:e3   | at 900 -> aborted timeout, ended 900
        prepared until900        | at 900 -> prepared
        prepared until900        | at 999 -> prepared
        committed until900       | at 999 -> committed, ended 300
        aborted:client until900  | at 900 -> aborted client, ended 300
        aborted:fenced until900  | at 999 -> aborted fenced, ended 300
        aborted:timeout until900 | at 999 -> aborted timeout, ended 300";
    check(table, |words, at| {
        let now = Timestamp(at.strip_prefix("at ").unwrap().parse().unwrap());
        let (row, then) = (a_row(words), a_row(words).as_of(now));
        assert_eq!(row.has_expired(now), row != then, "{words} {at}");
        let ended = then.ended_at.map_or(String::new(), |at| format!(", ended {}", at.0));
        show_state(then.state, then.reason) + &ended
    });
}

#[test]
fn a_transaction_tells_its_deadline_while_it_has_one() {
    let table = "
        ongoing until900 P7:e3 | -> 900
        prepared until900      | -> none
        committed until900     | -> none
        aborted:client         | -> none";
    check(table, |words, _| {
        let placed =
            PlacedAppend { topic: "t".into(), partition: 1, base_offset: Some(4), record_count: 2 };
        let appends = Some(vec![placed]);
        let row = TransactionRow { append_count: 3, appends: appends.clone(), ..a_row(words) };
        let told = row.clone().into_transaction();
        assert_eq!((told.transaction_id, told.state), (row.transaction_id, row.state));
        assert_eq!((told.session, told.reason), (row.session, row.reason));
        assert_eq!((told.created_at, told.ended_at), (row.created_at, row.ended_at));
        assert_eq!((told.append_count, told.appends), (3, appends));
        told.expires_at.map_or("none".into(), |at| at.0.to_string())
    });
}

#[test]
fn who_may_act_in_an_epoch() {
    let table = "
        none          | P7:e0 -> unknown P7
        P7 e3         | P7:e2 -> fenced by e3
        P7 e3         | P7:e0 -> fenced by e3
        P7 e3         | P7:e3 -> fine
        P7 e3         | P7:e4 -> not issued, e3
        P7 e3 closed  | P7:e2 -> fenced by e3
        P7 e3 closed  | P7:e3 -> not issued, e3
        P7 e3 closed  | P7:e4 -> not issued, e3
        P7 e3 reset3  | P7:e3 -> fine";
    check(table, |session, producer| {
        let facts = a_session(session).map(|row| row.facts);
        fine(check_producer(a_producer(producer), facts.as_ref()))
    });
}

/// A begin of an id without a row; any other call of it.
#[test]
fn ids_that_may_have_run_never_run() {
    let table = "
        horizon 0 retention 1000 now 5000    | @5000     -> fine; not found
        horizon 0 retention 1000 now 5000    | @4000     -> fine; not found
        horizon 0 retention 1000 now 5000    | @3999     -> expired; expired
        horizon 0 retention 1000 now 5000    | @0        -> expired; expired
        horizon 4500 retention 1000 now 5000 | @4500     -> fine; not found
        horizon 4500 retention 1000 now 5000 | @4499     -> expired; expired
        horizon 4500 retention 9000 now 5000 | @4499     -> expired; expired
        horizon 4000 retention 1000 now 5000 | @3999     -> expired; expired
        horizon 3000 retention 1000 now 5000 | @3999     -> expired; expired
        horizon 3000 retention 9000 now 5000 | @3000     -> fine; not found
        horizon 3000 retention 9000 now 5000 | @2999     -> expired; expired
        horizon 0 retention 5000 now 5000    | @0        -> fine; not found
        horizon 0 retention 9000 now 5000    | @0        -> fine; not found
        horizon 6000 retention 1000 now 5000 | @5999     -> expired; expired
        horizon 0 retention 1000 now 5000    | @86405000 -> fine; not found
        horizon 0 retention 1000 now 5000    | @86405001 -> invalid; not found
        horizon 0 retention 1000 now 5000    | v4        -> invalid; not found
        horizon 0 retention 1000 now 5000    | nil       -> invalid; not found";
    assert_eq!(ID_AHEAD_MS, 86_400_000);
    check(table, |facts, id| {
        let facts: Vec<i64> = facts.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [horizon, retention, now] = facts[..] else { panic!("{facts:?}") };
        let (horizon, now) = (Timestamp(horizon), Timestamp(now));
        let id = match id {
            "v4" => Uuid::from_u128(5_000 << 80 | 4 << 76 | 2 << 62),
            "nil" => Uuid::nil(),
            made => made_at(made[1..].parse().unwrap()),
        };
        let begin = fine(check_begin(&id, RepeatedBy::Id, horizon, retention, now));
        assert!(check_begin(&id, RepeatedBy::Nothing, horizon, retention, now).is_ok());
        // the instant of a key counts, not that of the id that the server makes for it
        let key = RequestKey::new(&id.to_string(), "POST", "/v1/transactions", &[]);
        let of_key = check_begin(&made_at(0), RepeatedBy::Key(key), horizon, retention, now);
        assert_eq!(
            of_key.err(),
            match &*begin {
                "expired" => Some(Refusal::IdempotencyKeyExpired),
                "invalid" if key.instant.is_some() => Some(Refusal::IdempotencyKeyAhead),
                _ => None,
            }
        );
        format!("{begin}; {}", show_refusal(&absent(&id, horizon, retention, now)))
    });
}

#[test]
fn a_begin_repeats_only_its_own_payload() {
    let table = "
        ongoing pay        | pay   -> fine
        ongoing pay        | other -> reused
        prepared pay       | pay   -> fine
        committed pay      | pay   -> fine
        committed pay      | other -> reused
        aborted:client pay | pay   -> fine
        aborted:client pay | other -> reused";
    let key = RequestKey::new("evt_7", "POST", "/v1/transactions", &[]);
    check(table, |row, payload| {
        let (row, digest) = (a_row(row), digest(payload));
        let by_id = repeat(&row, RepeatedBy::Id, &digest);
        let by_key = repeat(&row, RepeatedBy::Key(key), &digest);
        assert_eq!(by_key.is_ok(), by_id.is_ok());
        assert_eq!(by_key.err(), by_id.is_err().then_some(Refusal::IdempotencyKeyReused));
        fine(by_id)
    });
}

#[test]
fn timeouts_are_asked_for_or_the_sessions_or_the_tenants() {
    let table = "
                                                               | - -          -> 60000
                                                               | 1 -          -> 1
                                                               | 900000 -     -> 900000
                                                               | 900001 -     -> 900001 over 900000
                                                               | - 70000      -> 70000
                                                               | - 900001     -> 900000
                                                               | 5 70000      -> 5
                                                               | 900001 5     -> 900001 over 900000
        transaction_timeout_ms=70                              | - -          -> 70
        transaction_timeout_ms=70                              | - 80         -> 80
        transaction_timeout_ms=70                              | 90 80        -> 90
        max_transaction_timeout_ms=50                          | - -          -> 50
        max_transaction_timeout_ms=50                          | - 80         -> 50
        max_transaction_timeout_ms=50                          | 50 80        -> 50
        max_transaction_timeout_ms=50                          | 51 5         -> 51 over 50
        transaction_timeout_ms=70 max_transaction_timeout_ms=50 | - -         -> 50
        transaction_timeout_ms=70 max_transaction_timeout_ms=90 | 90 -        -> 90";
    check(table, |tenant, words| {
        let (asked, session) = words.split_once(' ').unwrap();
        let of = |word: &str| word.parse().ok();
        match timeout_ms(of(asked), of(session), &own(tenant)) {
            Ok(timeout_ms) => timeout_ms.to_string(),
            Err(refusal) => show_refusal(&refusal),
        }
    });
}

#[test]
fn outcomes_are_remembered_as_long_as_the_tenant_says() {
    assert_eq!(retention_ms(&OwnSettings::default()), 604_800_000);
    assert_eq!(retention_ms(&own("transaction_retention_ms=1000")), 1_000);
    assert_eq!(Key::TransactionRetentionMs.name(), "transaction_retention_ms");
}

#[test]
fn numbered_calls_follow_each_other() {
    let table = "
        next0 | s0 -> new
        next0 | s1 -> ahead
        next0 | s2 -> ahead
        next0 | s3 -> ahead
        next0 | s4 -> ahead
        next0 | s5 -> s5 want s0
        next7 | s7 -> new
        next7 | s6 -> known
        next7 | s0 -> known
        next7 | s8 -> ahead
        next7 | s11 -> ahead
        next7 | s12 -> s12 want s7
        next0 | s9007199254740991 -> s9007199254740991 want s0
        next9007199254740991 | s9007199254740991 -> new
        next9007199254740991 | s0 -> known";
    check(table, |row, sequence| match number(&a_row(row), sequence[1..].parse().unwrap()) {
        Ok(Numbering::New) => "new".into(),
        Ok(Numbering::Known) => "known".into(),
        Ok(Numbering::Ahead) => "ahead".into(),
        Err(refusal) => show_refusal(&refusal),
    });
}

#[test]
fn a_commit_may_know_how_many_appends_there_are() {
    let table = "
        3 | -  -> fine
        0 | -  -> fine
        3 | 3  -> fine
        0 | 0  -> fine
        2 | 3  -> 2 want 3
        4 | 3  -> 4 want 3
        1 | 0  -> 1 want 0
        0 | 1  -> 0 want 1";
    check(table, |received, expected| {
        fine(check_appends(expected.parse().ok(), received.parse().unwrap()))
    });
}

#[test]
fn sizes_hold_on_both_sides_of_the_limit() {
    let table = "
                                  | 0 10000     -> fine
                                  | 0 10001     -> 10001 over 10000
                                  | 9999 1      -> fine
                                  | 10000 0     -> fine
                                  | 10000 1     -> 10001 over 10000
        max_transaction_batches=3 | 0 3         -> fine
        max_transaction_batches=3 | 0 4         -> 4 over 3
        max_transaction_batches=3 | 2 1         -> fine
        max_transaction_batches=3 | 2 2         -> 4 over 3
        max_transaction_batches=3 | 5 0         -> fine
        max_transaction_batches=3 | 5 1         -> 6 over 3";
    check(table, |tenant, counts| {
        let (batches, more) = counts.split_once(' ').unwrap();
        fine(check_size(batches.parse().unwrap(), more.parse().unwrap(), &own(tenant)))
    });
}
