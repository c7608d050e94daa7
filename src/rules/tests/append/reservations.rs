//! Appends with possible duplicates: what is stored, reserved and compared.

use std::collections::BTreeMap;

use super::{
    decide::{caches, fence, of, position, spread},
    dedup::{TOPIC, dedup_of, record, seen},
    table::{TOO_LARGE, plain},
};
use crate::{
    model::{
        Offset, ProducerId, Timestamp,
        dedup::{RequestKey, Ring, id_key},
    },
    rules::{
        Refusal,
        append::{
            REDO_MS, Request,
            cache::{JournalKeys, LogCaches},
            decide,
            dedup::{Dedup, Fact, RecordVerdict},
            encoding::{decode_entries, decode_placement},
            plan::{Decision, Plan},
            producer_state::{Placement, RecordPlace},
            read_set::{is_known, may_join},
            reservations::KeyReservation,
        },
        tests::{JOURNAL, log_of},
        transaction::one_request::TxnContext,
    },
};

/// As in the tests of appends; the topic has three reservations, in ring 1.
fn keyed_caches() -> LogCaches {
    let mut caches = caches();
    caches.get_mut(&JOURNAL).unwrap().keys = Some(JournalKeys { claims: 3, rings: 2 });
    caches
}

/// The request with these records: (part, id), 10 bytes each.
fn with(mut request: Request, records: &[(usize, Option<&str>)]) -> Request {
    for part in &mut request.parts {
        (part.record_count, part.size_bytes) = (0, 0);
    }
    let mut sent = Vec::new();
    for (index, (part, id)) in records.iter().enumerate() {
        request.parts[*part].record_count += 1;
        request.parts[*part].size_bytes += 10;
        sent.push(record(index, *part, *id, 1));
    }
    request.dedups = vec![dedup_of(sent)];
    request
}

fn keyed(mut request: Request) -> Request {
    let records = request.dedups.pop().map_or(Vec::new(), |dedup| dedup.records);
    let key = RequestKey { key: id_key("key"), digest: 8, instant: None };
    request.dedups = vec![Dedup { request_key: Some(key), ..dedup_of(records) }];
    request
}

/// These ids are known, at offset 9 of partition 3.
fn context(ids: &[&str]) -> TxnContext {
    let mut context = TxnContext::default();
    for id in ids {
        let fact = Fact::Record { digest: 1, seen: seen(Some(9)) };
        context.known.facts.insert((TOPIC, id_key(id)), fact);
    }
    context.known.slots.insert(Ring::of(Some(600_000)), 1);
    context
}

fn decided(group: &[Request], known: &[&str]) -> (Plan, LogCaches) {
    let mut caches = keyed_caches();
    let plan = decide(&mut caches, group, &mut context(known));
    (plan, caches)
}

const A: (usize, Option<&str>) = (0, Some("a"));
const B: (usize, Option<&str>) = (0, Some("b"));
const C: (usize, Option<&str>) = (0, Some("c"));
const PLAIN: (usize, Option<&str>) = (0, None);

/// For each log: records, bytes and rows, what is compared, and the number and rings of the
/// reservations.
fn writes(plan: &Plan) -> Vec<String> {
    let write = |write: &crate::rules::append::plan::LogWrite| {
        let compare = match write.compare {
            None => "anything".to_owned(),
            compare if compare == fence() => "fence".to_owned(),
            Some(compare) => format!("at {}", compare.position.unwrap().0),
        };
        let claims = match (write.claims, write.claimed_rings) {
            (None, 0) => String::new(),
            (claims, rings) => format!(" claims {claims:?} rings {rings}"),
        };
        let (records, bytes, rows) = (write.record_count, write.size_bytes, write.rows.len());
        format!("{}: {records} of {bytes} in {rows} if {compare}{claims}", write.log_id.0)
    };
    plan.writes.iter().map(write).collect()
}

fn claimed(plan: &Plan) -> Vec<(uuid::Uuid, Option<(i64, i64)>)> {
    let record =
        |claim: &KeyReservation| (claim.key, claim.record.map(|(log, delta)| (log.0, delta)));
    plan.claims.iter().map(record).collect()
}

#[test]
fn what_is_known_is_left_out_of_what_is_stored() {
    let keys = " claims Some(3) rings 1";
    // (records, of them known), what is written, kept, claimed
    let group = [with(plain(), &[A, B, PLAIN, A, C])];
    let (plan, _) = decided(&group, &["b"]);
    assert_eq!(
        writes(&plan),
        ["1: 3 of 30 in 1 if anything", &format!("100: 0 of 0 in 0 if fence{keys}")]
    );
    assert_eq!(plan.kept(&group, (0, 0)), Some(vec![true, false, true, false, true]));
    assert_eq!(claimed(&plan), [(id_key("a"), Some((1, 0))), (id_key("c"), Some((1, 2)))]);
    for claim in &plan.claims {
        assert_eq!((claim.journal, claim.ring, claim.slot), (JOURNAL, Ring(0), 1));
        assert_eq!((claim.topic_id, claim.digest, claim.lifetime_ms), (TOPIC, 1, Some(600_000)));
        assert_eq!(claim.answer, None);
    }

    let group = [with(plain(), &[A, PLAIN])];
    let (plan, _) = decided(&group, &[]);
    assert_eq!(plan.kept(&group, (0, 0)), None, "all of it");

    // spread: part 0 goes to partition 1, part 1 to partition 0
    let group =
        [with(spread(plain()), &[A, (1, Some("b")), (1, Some("c")), (0, Some("d")), (1, None)])];
    let (plan, _) = decided(&group, &["a", "b"]);
    assert_eq!(
        writes(&plan),
        [
            "1: 2 of 20 in 1 if anything".into(),
            "2: 1 of 10 in 1 if anything".into(),
            format!("100: 0 of 0 in 0 if fence{keys}")
        ]
    );
    assert_eq!(plan.kept(&group, (0, 0)), Some(vec![false, true]));
    assert_eq!(plan.kept(&group, (0, 1)), Some(vec![false, true, true]));
    assert_eq!(claimed(&plan), [(id_key("c"), Some((1, 0))), (id_key("d"), Some((2, 0)))]);

    // a part of which nothing is left has no row
    let group = [with(spread(plain()), &[A, (1, Some("b"))]), plain()];
    let (plan, _) = decided(&group, &["a"]);
    assert_eq!(writes(&plan)[1], "2: 0 of 0 in 0 if anything");
    let Decision::Appended { deltas, .. } = &plan.decisions[1] else { panic!("{plan:?}") };
    assert_eq!(deltas, &[1], "behind the one that was kept");
    assert_eq!(plan.writes[0].rows[0].lines, [(0, 1), (1, 0)]);
}

#[test]
fn where_everything_is_known_nothing_is_written_unless_a_number_or_a_key_is_used() {
    let known = ["a", "b"];
    let (plan, _) = decided(&[with(plain(), &[A, B])], &known);
    let want = Decision::AllDuplicates(vec![RecordVerdict::Known(seen(Some(9))); 2]);
    assert_eq!(plan.decisions, [want]);
    assert!(!plan.writes_anything() && plan.claims.is_empty());

    // numbered, to a partition: no row shows it, its state does
    let (mut plan, mut caches) = decided(&[with(of(1, 0), &[A, B])], &known);
    assert!(matches!(plan.decisions[..], [Decision::Appended { .. }]));
    assert!(plan.writes_anything() && !plan.writes_rows_or_keys());
    assert_eq!(plan.silent, [(log_of(0), ProducerId(1))]);
    let at = Timestamp(900);
    let states: Vec<_> = plan.silent_states(&caches, at).collect();
    let [(log_id, ProducerId(1), 40, state)] = &states[..] else { panic!("{states:?}") };
    assert_eq!((*log_id, state.last_sequence), (log_of(0), Some(0)));
    let place = RecordPlace { partition: 3, offset: Some(9), known: Some(Some(Timestamp(40))) };
    assert_eq!(state.recent[0].placement, Placement::Records(vec![place; 2]));
    assert_eq!(state.recent[0].appended_at, at, "settled");
    plan.confirm(&mut caches, at, &BTreeMap::new());
    assert!(!caches.contains_key(&log_of(0)), "its fence was raised");

    // numbered, to the topic: the journal shows it
    let (plan, caches) = decided(&[with(spread(of(1, 0)), &[A, (1, Some("b"))])], &known);
    assert!(plan.silent.is_empty() && plan.claims.is_empty());
    assert_eq!(
        writes(&plan),
        [
            "1: 0 of 0 in 0 if at 40",
            "2: 0 of 0 in 0 if at 50",
            "100: 1 of 0 in 1 if at 5 claims Some(3) rings 0"
        ]
    );
    let bytes = plan.writes[2].rows[0].producers.as_deref().unwrap();
    let [entry] = &decode_entries(5, bytes).unwrap()[..] else { panic!() };
    assert_eq!(entry.placement, Placement::Records(vec![place; 2]));
    assert_eq!(caches[&JOURNAL].next_offset, 6);

    // with a key of its own: that is claimed
    let (plan, _) = decided(&[keyed(with(plain(), &[A]))], &known);
    assert_eq!(writes(&plan)[0], "1: 0 of 0 in 0 if at 40");
    let [claim] = &plan.claims[..] else { panic!("{plan:?}") };
    assert_eq!((claim.key, claim.digest, claim.record), (id_key("key"), 8, None));
    let answer = decode_placement(claim.answer.as_deref().unwrap());
    assert_eq!(answer, Ok(Placement::Records(vec![place])));
    assert!(plan.writes_rows_or_keys());
}

#[test]
fn a_number_that_stores_some_goes_with_its_row() {
    let group = [of(1, 0), with(of(1, 1), &[A, B]), with(of(1, 2), &[A, C]), with(of(1, 3), &[A])];
    let (plan, caches) = decided(&group, &["a"]);
    let silent: Vec<Offset> =
        plan.silent_states(&caches, Timestamp(900)).map(|(.., offset, _)| offset).collect();
    assert_eq!(silent, [43], "with all that this pass appends");
    let log = &caches[&log_of(0)];
    assert_eq!(log.producers[&ProducerId(1)].state.last_sequence, Some(3));
    let bytes = plan.writes[0].rows[0].producers.as_deref().unwrap();
    let entries = decode_entries(40, bytes).unwrap();
    assert_eq!(entries.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [0, 1, 2]);
    let place = |offset, known| RecordPlace { partition: 0, offset: Some(offset), known };
    let known = RecordPlace { partition: 3, ..place(9, Some(Some(Timestamp(40)))) };
    assert_eq!(entries[1].placement, Placement::Records(vec![known, place(41, None)]));
    assert_eq!(entries[2].placement, Placement::Records(vec![known, place(42, None)]));
}

#[test]
fn twice_in_one_request_lies_where_it_lies_first() {
    let (plan, _) = decided(&[with(of(1, 0), &[A, B, A])], &[]);
    let entries = decode_entries(40, plan.writes[0].rows[0].producers.as_deref().unwrap());
    let place = |offset, known| RecordPlace { partition: 0, offset: Some(offset), known };
    let want = vec![place(40, None), place(41, None), place(40, Some(None))];
    assert_eq!(entries.unwrap()[0].placement, Placement::Records(want));
}

#[test]
fn of_two_requests_with_one_id_the_second_waits_for_the_first() {
    let group = [
        with(plain(), &[A, PLAIN]),
        with(plain(), &[B]),
        with(plain(), &[C, A]),
        with(plain(), &[C]),
    ];
    let (plan, _) = decided(&group, &[]);
    let later: Vec<bool> = plan.decisions.iter().map(|d| *d == Decision::RetryNextBatch).collect();
    assert_eq!(later, [false, false, true, false], "and has claimed nothing itself");
    assert_eq!(writes(&plan)[0], "1: 4 of 40 in 1 if anything");

    let (plan, _) = decided(&[keyed(plain()), keyed(plain())], &[]);
    assert!(matches!(plan.decisions[..], [Decision::Appended { .. }, Decision::RetryNextBatch]));

    // what is refused claims nothing
    let refused = Request { over_limit: Some(TOO_LARGE), ..with(plain(), &[A]) };
    let (plan, _) = decided(&[refused, with(plain(), &[A])], &[]);
    let [Decision::Refused(_), Decision::Appended { .. }] = &plan.decisions[..] else {
        panic!("{plan:?}")
    };
}

#[test]
fn limits_and_offsets_are_judged_for_what_would_be_stored() {
    let large = |request| Request { over_limit: Some(TOO_LARGE), ..request };
    let expecting = |request| Request { expected_offset: Some(39), ..request };
    let refused = |request: Request| match &decided(&[request], &["a"]).0.decisions[..] {
        [Decision::Refused(refusal)] => Some(refusal.clone()),
        [Decision::AllDuplicates(_) | Decision::Appended { .. }] => None,
        other => panic!("{other:?}"),
    };
    let mismatch = Refusal::OffsetMismatch { expected_offset: 39, next_offset: 40 };
    for (request, want) in [
        (large(with(plain(), &[A])), None),
        (large(with(plain(), &[A, B])), Some(TOO_LARGE)),
        (large(with(of(1, 0), &[A])), None),
        (large(keyed(plain())), Some(TOO_LARGE)),
        (expecting(with(plain(), &[A])), None),
        (expecting(with(plain(), &[A, PLAIN])), Some(mismatch)),
    ] {
        assert_eq!(refused(request.clone()), want, "{request:?}");
    }
}

#[test]
fn a_key_repeats_its_answer_and_the_sequence_is_judged_before_ids() {
    let placement = Placement::Partition { base_offset: 17 };
    let answer = crate::rules::append::encoding::encode_placement(&placement);
    let fact = Fact::Request { digest: 8, answer, first_seen_at: Timestamp(77), is_live: true };
    let mut context = TxnContext::default();
    context.known.facts.insert((TOPIC, id_key("key")), fact);
    let plan = decide(&mut keyed_caches(), &[keyed(plain())], &mut context);
    let [Decision::Repeated(repeated)] = &plan.decisions[..] else { panic!("{plan:?}") };
    assert_eq!((&repeated.placement, repeated.appended_at), (&placement, Timestamp(77)));
    assert!(!plan.writes_anything());

    let reused = [of(1, 0), Request { digest: [9; 16], ..with(of(1, 0), &[A]) }];
    let (plan, _) = decided(&reused, &["a"]);
    let reused = Decision::Refused(Refusal::SequenceReused { sequence: 0 });
    assert_eq!(plan.decisions[1], reused);
}

#[test]
fn requests_with_keys_depend_on_the_journal() {
    // what is compared of partition 0, partition 1 and the journal
    let table = [
        ("ids", with(plain(), &[A]), vec![None, fence()]),
        ("numbered", with(of(1, 0), &[A]), vec![position(40), fence()]),
        ("key", keyed(plain()), vec![position(40), fence()]),
        ("spread", with(spread(plain()), &[A]), vec![None, None, fence()]),
        ("spread key", keyed(spread(plain())), vec![position(40), position(50), fence()]),
    ];
    for (name, request, want) in table {
        let group = [request];
        assert!(is_known(&keyed_caches(), &group), "{name}");
        assert!(!is_known(&caches(), &group), "{name}: nobody has looked at its keys");
        let (plan, _) = decided(&group, &[]);
        let got: Vec<_> = plan.writes.iter().map(|write| write.compare).collect();
        assert_eq!(got, want, "{name}");
        assert_eq!(plan.writes.last().unwrap().claims, Some(3), "{name}");
        let all = [log_of(0), log_of(1), JOURNAL];
        assert!(!may_join(&keyed_caches(), &all, &all, &group[0]), "{name}: looked up too late");
    }
    let mut contended = keyed_caches();
    contended.get_mut(&JOURNAL).unwrap().looked(true);
    assert!(!is_known(&contended, &[with(plain(), &[A])]));
    assert!(is_known(&contended, &[plain()]), "no concern of it");
    // beside them, appends without keys do not care for what was claimed
    let (plan, _) = decided(&[spread(plain())], &[]);
    assert!(plan.writes.iter().all(|write| write.claims.is_none()));
}

#[test]
fn reservations_are_counted_in_the_cache_of_the_journal() {
    let keys = |group: &[Request], known: &[&str]| {
        let (mut plan, mut caches) = decided(group, known);
        plan.confirm(&mut caches, Timestamp(900), &BTreeMap::from([(log_of(0), 40)]));
        caches[&JOURNAL].keys
    };
    let counted = |claims, rings| Some(JournalKeys { claims, rings });
    assert_eq!(keys(&[with(plain(), &[A])], &[]), counted(4, 3));
    assert_eq!(keys(&[with(plain(), &[A]), with(plain(), &[B])], &[]), counted(4, 3), "by passes");
    assert_eq!(keys(&[with(plain(), &[A])], &["a"]), counted(3, 2));
    assert_eq!(keys(&[with(plain(), &[A, PLAIN])], &["a"]), counted(3, 2));
    let mut forever = with(plain(), &[A]);
    forever.dedups[0].window_ms = None;
    assert_eq!(keys(&[forever], &[]), counted(4, 2 | 64));
}

/// Its keys are remembered for this long.
fn for_ms(mut request: Request, window_ms: i64) -> Request {
    request.dedups.iter_mut().for_each(|dedup| dedup.window_ms = Some(window_ms));
    request
}

#[test]
fn requests_that_the_server_may_do_again() {
    let table = [
        (plain(), false),
        (of(1, 0), true),
        (with(plain(), &[A, B]), true),
        (with(plain(), &[A, PLAIN]), false),
        (keyed(plain()), true),
        (keyed(with(plain(), &[A, PLAIN])), true),
        (for_ms(with(plain(), &[A, B]), REDO_MS), true),
        (for_ms(with(plain(), &[A, B]), REDO_MS - 1), false),
        (for_ms(keyed(plain()), REDO_MS - 1), false),
        (for_ms(of(1, 0), 1), true),
    ];
    for (request, want) in table {
        assert_eq!(request.is_repeatable(), want, "{request:?}");
    }
}
