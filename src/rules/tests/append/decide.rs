//! Batches: what is decided together and written where, and the state of the caches afterwards.

use std::collections::BTreeMap;

use super::table::{Scope, TOO_LARGE, check, check_in, part, plain};
use crate::{
    model::{LogId, Offset, ProducerId, Timestamp},
    rules::{
        append::{
            Request, Spread,
            cache::{LogCache, LogCaches, Producer},
            decide,
            draft::ROW_TARGET_BYTES,
            encoding,
            plan::Decision,
            producer_state::ProducerState,
            read_set::{ExpectedHead, dependency_logs, is_known, may_join, touched_logs},
        },
        tests::{JOURNAL, log_of, numbered, open_session},
        transaction::one_request::TxnContext,
    },
};

#[test]
fn a_batch_is_decided_in_its_order() {
    check(
        "open P1              -> e0
         P1 e0 s0; P1 e0 s1; P1 e0 s0; P1 e0 s1; P1 e0 s0 other -> ok 0; ok 1; dup 0; dup 1; reused s0
         P1 e0 s3; P1 e0 s2; P1 e0 s3 -> ahead, s3 want s2; ok 2; ok 3
         P1 e0 s4; P1 e0 s5; P1 e0 s6; P1 e0 s7; P1 e0 s8; P1 e0 s9; P1 e0 s4 -> ok 4; ok 5; ok 6; ok 7; ok 8; ok 9; old
         P1 e0 s9             -> fast: dup 9",
    );
}

#[test]
fn a_batch_takes_as_many_offsets_as_records() {
    check(
        "open P1              -> e0
         P1 e0 s0 x3; P1 e0 s1; anon x5; P1 e0 s2 x2 -> ok 0; ok 3; ok 4; ok 9
         P1 e0 s2             -> dup 9
         anon                 -> ok 11",
    );
}

#[test]
fn limits_are_judged_after_the_table() {
    check(
        "open P1              -> e0
         P1 e0 s0             -> ok 0
         P1 e0 s0 large       -> dup 0
         P1 e0 s0 other large -> reused s0
         P1 e0 s2 large       -> ahead, s2 want s1
         P1 e1 s1 large       -> not issued, e0
         P1 e0 s1 large       -> too large
         P1 e0 s1             -> ok 1
         anon large           -> too large
         anon                 -> ok 2",
    );
}

#[test]
fn a_refused_expected_offset_uses_up_no_sequence() {
    check_in(
        Scope::Partition,
        "open P1              -> e0
         P1 e0 s0 at1         -> at 0 not 1
         P1 e0 s1 at0         -> ahead, no state for s1
         P1 e0 s0 at0 x2      -> ok 0
         P1 e0 s0 at0         -> dup 0
         P1 e0 s1 at0         -> at 2 not 0
         P1 e0 s1 at0 large   -> too large
         P1 e0 s1 at2; P1 e0 s2 at3; P1 e0 s3 at3 -> ok 2; ok 3; at 4 not 3
         anon at4             -> ok 4
         anon at4             -> at 5 not 4
         anon at5; anon at5; anon at6 -> ok 5; at 6 not 5; ok 6
         anon                 -> ok 7
         B anon               -> ok 8
         anon at8             -> overtaken: at 9 not 8",
    );
}

#[test]
fn unnumbered_appends_need_no_cache() {
    check_in(
        Scope::Partition,
        "anon x2              -> fast: ok 0
         B anon               -> fast: ok 2
         anon                 -> fast: ok 3
         open P1              -> e0
         P1 e0 s0             -> slow: ok 4
         anon                 -> fast: ok 5
         P1 e0 s1             -> fast: ok 6
         B anon               -> fast: ok 7
         anon                 -> fast: ok 8
         P1 e0 s2; anon       -> overtaken: ok 9; ok 10",
    );
    check_in(
        Scope::Topic,
        "anon p0+p1           -> slow: ok 0 p1+0
         anon p1+p0 x2        -> fast: ok p1+1 1
         B anon p0+p1         -> slow: ok 3 p1+3
         anon                 -> fast: ok 4",
    );
}

#[test]
fn replicas_that_contend_go_straight_to_the_slow_path() {
    check(
        "open P1              -> e0
         P1 e0 s0             -> slow: ok 0
         P1 e0 s1             -> fast: ok 1
         B P1 e0 s1           -> slow: dup 1
         B P1 e0 s2           -> fast: ok 2
         P1 e0 s2             -> overtaken: dup 2
         P1 e0 s3             -> slow: ok 3
         P1 e0 s4             -> fast: ok 4
         B P1 e0 s5           -> overtaken: ok 5
         P1 e0 s6             -> overtaken: ok 6
         B P1 e0 s7           -> slow: ok 7",
    );
}

#[test]
fn a_raised_fence_sends_each_producer_of_the_log_to_the_slow_path_once() {
    check(
        "open P1              -> e0
         open P2              -> e0
         P1 e0 s0; P2 e0 s0   -> slow: ok 0; ok 1
         P1 e0 s1             -> fast: ok 2
         open P2              -> e1
         P1 e0 s2             -> overtaken: ok 3
         forget
         P1 e0 s3             -> slow: ok 4
         P1 e0 s4             -> fast: ok 5
         P2 e0 s1             -> slow: fenced by e1
         P2 e1 s1             -> fast: ok 6",
    );
}

#[test]
fn a_producer_that_is_not_registered_never_takes_the_fast_path() {
    check(
        "open P1              -> e0
         open P2              -> e0
         P1 e0 s0             -> slow: ok 0
         P2 e0 s1             -> slow: ahead, no state for s1
         open P2              -> e1
         P2 e0 s0             -> slow: fenced by e1
         P2 e1 s0             -> slow: ok 1
         P2 e1 s1             -> fast: ok 2",
    );
}

#[test]
fn topic_appends_tell_where_each_partition_begins() {
    check_in(
        Scope::Topic,
        "open P1              -> e0
         anon p1 x4           -> ok 0
         P1 e0 s0 p1+p0 x2    -> ok p1+4 0
         P1 e0 s1 p0+p1; P1 e0 s2 p1+p0; P1 e0 s0 p0+p1 -> ok 2 p1+6; ok p1+7 3; dup p1+4 0
         P1 e0 s0 p0+p1       -> dup p1+4 0
         forget
         P1 e0 s2 p0+p1       -> dup p1+7 3
         snapshot
         trim
         B P1 e0 s1           -> dup 2 p1+6
         B P1 e0 s3 p1+p0     -> ok p1+8 4",
    );
}

#[test]
fn growth_spreads_records_again_and_repeats_keep_their_place() {
    check_in(
        Scope::Topic,
        "open P1              -> e0
         P1 e0 s0 p0+p1       -> ok 0 p1+0
         anon                 -> ok 1
         grow
         anon of2             -> overtaken: respread
         anon of3             -> slow: ok 2
         anon of3             -> fast: ok 3
         B anon of2           -> slow: respread
         P1 e0 s0 of2         -> respread
         P1 e0 s0 p2+p1       -> dup 0 p1+0
         P1 e0 s1 of2         -> respread
         P1 e0 s1 p2+p1       -> ok p2+0 p1+1
         P1 e0 s1             -> dup p2+0 p1+1",
    );
}

#[test]
fn a_partition_append_does_not_care_for_growth_but_for_the_fence() {
    check_in(
        Scope::Partition,
        "open P1              -> e0
         P1 e0 s0             -> ok 0
         grow
         P1 e0 s1             -> overtaken: ok 1",
    );
}

fn producer(registered: bool) -> Producer {
    let state = ProducerState::default();
    Producer { verified_fence: 7, session: Some(open_session(0)), state, registered }
}

fn log(next_offset: Offset, producers: &[(i64, bool)]) -> LogCache {
    let producers = producers.iter().map(|(id, is)| (ProducerId(*id), producer(*is)));
    LogCache {
        next_offset,
        fence: 7,
        last_appended_at: Timestamp(500),
        partition_count: 0,
        keys: None,
        producers: producers.collect(),
        contended_passes: 0,
        unfolded_rows: 0,
    }
}

/// Partition 0 at 40, partition 1 at 50, the journal at 5; P1 is registered everywhere.
pub fn caches() -> LogCaches {
    let journal = LogCache { partition_count: 2, ..log(5, &[(1, true), (2, false)]) };
    let p0 = log(40, &[(1, true), (2, false)]);
    [(log_of(0), p0), (log_of(1), log(50, &[(1, true)])), (JOURNAL, journal)].into()
}

pub fn of(producer: i64, sequence: i64) -> Request {
    Request { numbered: numbered(producer, 0, sequence), ..plain() }
}

pub fn spread(request: Request) -> Request {
    let spread = Some(Spread { partition_count: 2, keyless: Some(0) });
    Request { home: JOURNAL, parts: vec![part(1, 2, 30), part(0, 1, 70)], spread, ..request }
}

pub fn position(next_offset: Offset) -> Option<ExpectedHead> {
    Some(ExpectedHead { fence: 7, position: Some((next_offset, Timestamp(500))) })
}

pub fn fence() -> Option<ExpectedHead> {
    Some(ExpectedHead { fence: 7, position: None })
}

#[test]
fn the_read_set_of_a_batch_is_compared_and_nothing_else() {
    let expecting = Request { expected_offset: Some(40), ..plain() };
    let (p0, p1) = (log_of(0), log_of(1));
    type Want = Vec<(LogId, Option<ExpectedHead>)>;
    let table: Vec<(&str, Vec<Request>, Want)> = vec![
        ("unnumbered", vec![plain()], vec![(p0, None)]),
        ("numbered", vec![of(1, 0)], vec![(p0, position(40))]),
        ("mixed", vec![plain(), of(1, 0), plain()], vec![(p0, position(40))]),
        ("expecting", vec![plain(), expecting], vec![(p0, position(40))]),
        ("topic", vec![spread(plain())], vec![(p0, None), (p1, None), (JOURNAL, fence())]),
        (
            "numbered topic",
            vec![spread(of(1, 0)), spread(plain())],
            vec![(p0, position(40)), (p1, position(50)), (JOURNAL, position(5))],
        ),
        (
            "topic beside partition",
            vec![spread(plain()), of(1, 0)],
            vec![(p0, position(40)), (p1, None), (JOURNAL, fence())],
        ),
        ("refused", vec![of(1, 9)], vec![(p0, position(40))]),
    ];
    for (name, group, want) in table {
        assert!(is_known(&caches(), &group), "{name}");
        let plan = decide(&mut caches(), &group, &mut TxnContext::default());
        let got: Want = plan.writes.iter().map(|write| (write.log_id, write.compare)).collect();
        assert_eq!(got, want, "{name}");
        let dependencies = want.iter().filter(|(_, compare)| compare.is_some());
        assert_eq!(
            dependency_logs(&group),
            dependencies.map(|(id, _)| *id).collect::<Vec<_>>(),
            "{name}"
        );
        assert_eq!(
            touched_logs(&group),
            want.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
            "{name}"
        );
    }
}

#[test]
fn what_may_join_a_slow_path_that_holds_its_locks() {
    let (p0, p1) = (log_of(0), log_of(1));
    let contended = |mut caches: LogCaches| {
        caches.values_mut().for_each(|log| log.looked(true));
        caches
    };
    // locked, loaded, who asks, may join
    let table: [(&[LogId], &[LogId], _, _); 9] = [
        (&[p0], &[p0], of(1, 0), true),
        (&[p0], &[p0], of(2, 0), false), // unregistered: its session is not held
        (&[p0], &[p0], of(3, 0), false), // unheard of
        (&[p0], &[p0], plain(), true),
        (&[p0], &[], plain(), true),
        (&[p0], &[], of(1, 0), false),   // locked, but not loaded
        (&[p1], &[p1], of(1, 0), false), // another log
        (&[p0, p1, JOURNAL], &[p0, p1, JOURNAL], spread(of(1, 0)), true),
        (&[p0, p1], &[p0, p1], spread(of(1, 0)), false), // its journal is not locked
    ];
    for (touched, dependencies, request, want) in table {
        let got = may_join(&contended(caches()), touched, dependencies, &request);
        assert_eq!(got, want, "{touched:?} {dependencies:?} {request:?}");
    }
}

#[test]
fn what_the_cache_has_to_know_for_the_fast_path() {
    let with = |change: &dyn Fn(&mut LogCaches)| {
        let mut caches = caches();
        change(&mut caches);
        caches
    };
    let without = |log_id| with(&|caches| drop(caches.remove(&log_id)));
    let contended = |log_id| with(&|caches| caches.get_mut(&log_id).unwrap().looked(true));
    let fenced = |log_id| with(&|caches| caches.get_mut(&log_id).unwrap().fence = 8);
    let (p0, p1) = (log_of(0), log_of(1));
    let of_three = || {
        let spread = Some(Spread { partition_count: 3, keyless: None });
        Request { spread, ..self::spread(plain()) }
    };
    let table = [
        ("nothing known, unnumbered", LogCaches::new(), plain(), true),
        ("nothing known, unnumbered topic", LogCaches::new(), spread(plain()), false),
        ("nothing known, numbered", LogCaches::new(), of(1, 0), false),
        ("all known", caches(), spread(of(1, 0)), true),
        ("home unknown", without(JOURNAL), spread(of(1, 0)), false),
        ("a part unknown", without(p1), spread(of(1, 0)), false),
        ("a part unknown, unnumbered", without(p1), spread(plain()), true),
        ("contended", contended(p0), of(1, 0), false),
        ("contended, unnumbered", contended(p0), plain(), true),
        ("contended part", contended(p1), spread(of(1, 0)), false),
        ("another log is contended", contended(p1), of(1, 0), true),
        ("old fence", fenced(p0), of(1, 0), false),
        ("old fence elsewhere", fenced(p1), spread(of(1, 0)), true),
        ("unregistered", caches(), of(2, 0), false),
        ("unheard of", caches(), of(3, 0), false),
        (
            "expecting, log unknown",
            without(p0),
            Request { expected_offset: Some(0), ..plain() },
            false,
        ),
        ("spread over another count", caches(), of_three(), false),
    ];
    for (name, caches, request, want) in table {
        assert_eq!(is_known(&caches, std::slice::from_ref(&request)), want, "{name}");
        assert_eq!(is_known(&caches, &[plain(), request]), want, "{name}, in a group");
    }
}

#[test]
fn neighbours_share_a_row_until_it_is_full() {
    let sized = |size_bytes| Request { parts: vec![part(0, 2, size_bytes)], ..plain() };
    let group =
        [sized(ROW_TARGET_BYTES - 1), sized(10), sized(ROW_TARGET_BYTES), sized(1), of(1, 0)];
    let mut caches = caches();
    let mut plan = decide(&mut caches, &group, &mut TxnContext::default());
    let [write] = &plan.writes[..] else { panic!("{plan:?}") };
    let rows: Vec<_> =
        write.rows.iter().map(|r| (r.delta, r.record_count, r.size_bytes, &r.lines[..])).collect();
    assert_eq!(
        rows,
        [
            (0, 4, ROW_TARGET_BYTES + 9, &[(0, 0), (1, 0)][..]),
            (4, 2, ROW_TARGET_BYTES, &[(2, 0)]),
            (6, 3, 101, &[(3, 0), (4, 0)]),
        ]
    );
    assert_eq!((write.record_count, write.size_bytes), (9, 2 * ROW_TARGET_BYTES + 110));
    let producers: Vec<_> = write.rows.iter().map(|row| row.producers.is_some()).collect();
    assert_eq!(producers, [false, false, true]);
    let deltas = plan.decisions.iter().map(|decision| match decision {
        Decision::Appended { deltas, .. } => deltas[0],
        other => panic!("{other:?}"),
    });
    assert_eq!(deltas.collect::<Vec<_>>(), [0, 2, 4, 6, 8]);
    plan.confirm(&mut caches, Timestamp(900), &BTreeMap::from([(log_of(0), 40)]));
    assert_eq!(caches[&log_of(0)].unfolded_rows, 3);
}

#[test]
fn a_journal_counts_requests_and_holds_no_lines() {
    let group = [spread(of(1, 0)), spread(plain()), spread(of(1, 0)), spread(of(1, 1))];
    let plan = decide(&mut caches(), &group, &mut TxnContext::default());
    let [p0, p1, journal] = &plan.writes[..] else { panic!("{plan:?}") };
    assert_eq!((journal.record_count, journal.size_bytes, journal.rows.len()), (2, 0, 1));
    let row = &journal.rows[0];
    assert_eq!((row.delta, row.record_count, row.size_bytes, &row.lines[..]), (0, 2, 0, &[][..]));
    let entries = encoding::decode_entries(5, row.producers.as_ref().unwrap()).unwrap();
    assert_eq!(entries.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [0, 1]);
    for (write, part, per_request) in [(p0, 1, 1), (p1, 0, 2)] {
        assert_eq!(write.record_count, 3 * per_request);
        assert_eq!(write.rows[0].lines, [(0, part), (1, part), (3, part)]);
        assert_eq!(write.rows[0].producers, None, "the journal holds it");
    }
}

#[test]
fn who_appends_for_the_first_time_is_registered_and_who_does_not_is_forgotten() {
    let mut caches = caches();
    let refused = Request { over_limit: Some(TOO_LARGE), ..of(2, 0) };
    let plan =
        decide(&mut caches, &[refused, spread(of(2, 0)), of(1, 0)], &mut TxnContext::default());
    assert_eq!(plan.registrations, [(JOURNAL, ProducerId(2))]);
    assert!(!caches[&log_of(0)].producers.contains_key(&ProducerId(2)));
    assert!(caches[&JOURNAL].producers[&ProducerId(2)].registered);
    assert!(caches[&log_of(0)].producers.contains_key(&ProducerId(1)));
}

#[test]
fn nothing_to_write_is_still_compared() {
    let mut caches = caches();
    let plan = decide(&mut caches, &[spread(of(1, 9))], &mut TxnContext::default());
    assert!(!plan.writes_anything());
    assert_eq!(plan.writes.len(), 3);
    assert!(plan.writes.iter().all(|write| write.compare.is_some() && write.record_count == 0));
    assert_eq!(caches[&JOURNAL].next_offset, 5);
}

#[test]
fn decisions_of_a_batch_are_settled_with_its_instant() {
    let mut caches = caches();
    let mut plan = decide(&mut caches, &[of(1, 0), of(1, 1), of(1, 0)], &mut TxnContext::default());
    plan.confirm(&mut caches, Timestamp(900), &BTreeMap::from([(log_of(0), 40)]));
    let Decision::Repeated(repeated) = &plan.decisions[2] else { panic!("{plan:?}") };
    assert_eq!(repeated.appended_at, Timestamp(900));
    let log = &caches[&log_of(0)];
    let recent = &log.producers[&ProducerId(1)].state.recent;
    assert!(recent.iter().all(|request| request.appended_at == Timestamp(900)), "{recent:?}");
    assert_eq!(recent[0], *repeated, "the repeat's answer is the first's");
    assert_eq!((log.next_offset, log.last_appended_at, log.unfolded_rows), (42, Timestamp(900), 1));
}

#[test]
fn without_a_compare_the_cache_moves_only_where_it_was_right() {
    for (base, moved) in [(40, true), (41, false), (39, false)] {
        let mut caches = caches();
        let mut plan = decide(&mut caches, &[plain(), plain()], &mut TxnContext::default());
        assert_eq!(caches[&log_of(0)].next_offset, 40, "the head gives the offset");
        plan.confirm(&mut caches, Timestamp(900), &BTreeMap::from([(log_of(0), base)]));
        let log = &caches[&log_of(0)];
        let want = if moved { (42, Timestamp(900), 1) } else { (40, Timestamp(500), 0) };
        assert_eq!((log.next_offset, log.last_appended_at, log.unfolded_rows), want, "{base}");
    }
    let mut plan = decide(&mut LogCaches::new(), &[plain()], &mut TxnContext::default());
    plan.confirm(&mut LogCaches::new(), Timestamp(900), &BTreeMap::from([(log_of(0), 0)]));
}
