//! The rules of the append protocol, one by one: each test fails without its rule (`make mutants`
//! checks this).

mod world;

use std::time::Duration;

use oncelog::{
    broker::Error,
    model::{
        Code, Scopes,
        append::{Appended, Placed, Scope},
        read::{Isolation, Read, Start},
        session::Sequences,
        topic::TopicPatch,
    },
};
use sqlx::{ConnectOptions, Connection};
use tokio::time::{Instant, timeout};

use crate::support::{self, name};
use world::*;

#[tokio::test]
async fn the_fast_path_is_one_round_trip() {
    let world = world(1).await;
    let [a, _] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    for sequence in 0..3 {
        a.one(p, 0, sequence).await.unwrap();
    }
    let mut connection = world.options.connect().await.unwrap();
    sqlx::query("select 1").execute(&mut connection).await.unwrap();
    // names are resolved, statements prepared; notices go their own way, so several are measured
    let mut best = u64::MAX;
    for sequence in 3..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let before = a.proxy.passed();
        a.one(p, 0, sequence).await.unwrap();
        best = best.min(a.proxy.passed() - before);
    }
    assert_eq!(best, 1);
}

#[tokio::test]
async fn rule_1_only_epochs_read_under_the_present_fence_count() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let (p, r) = (a.producer("p").await, a.producer("r").await);
    a.one(p, 0, 0).await.unwrap();
    assert_eq!(b.open("p").await.session.epoch, 1);
    // a slow path for a new producer brings the new fence into a's cache, not p's epoch
    a.one(r, 0, 0).await.unwrap();
    assert_eq!(code(a.one(p, 0, 1).await), Code::ProducerFenced);
    a.one(p, 1, 1).await.unwrap();
}

#[tokio::test]
async fn rule_2_a_cache_that_is_no_prefix_is_thrown_away() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let (p, q) = (a.producer("p").await, a.producer("q").await);
    a.one(p, 0, 0).await.unwrap();
    for sequence in 0..10 {
        b.one(q, 0, sequence).await.unwrap();
    }
    // rows behind a's cache are trimmed
    b.broker.trim(b.tenant, &name(TOPIC), 0, 9).await.unwrap();
    b.broker.sweep().await.unwrap();
    b.broker.sweep().await.unwrap();
    assert_eq!(world.sql("select min(base_offset) from oncelog.batches").await, 9);
    is_duplicate_at(a.one(q, 0, 9).await, 10);
    a.one(p, 0, 1).await.unwrap();
    // a restore has lost the last row: a's cache is ahead of the log
    world
        .sql(
            "with gone as (delete from oncelog.batches where base_offset = 11) \
        update oncelog.logs set next_offset = 11 where partition = 0 returning 1::bigint",
        )
        .await;
    let r = a.producer("r").await;
    assert_eq!(base(&a.one(r, 0, 0).await.unwrap()), 11);
    assert_eq!(base(&a.one(p, 0, 1).await.unwrap()), 12);
}

#[tokio::test]
async fn rule_3_a_new_producer_is_its_state_and_all_rows_since() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let (p, q) = (a.producer("p").await, a.producer("q").await);
    b.one(p, 0, 0).await.unwrap();
    b.one(p, 0, 1).await.unwrap();
    world.snapshot_everything().await;
    b.one(p, 0, 2).await.unwrap();
    // a's cache starts behind p's rows
    a.one(q, 0, 0).await.unwrap();
    a.one(q, 0, 1).await.unwrap();
    is_duplicate_at(a.one(p, 0, 2).await, 2);
    is_duplicate_at(a.one(p, 0, 0).await, 0);
    assert_eq!(base(&a.one(p, 0, 3).await.unwrap()), 5);
}

#[tokio::test]
async fn rules_4_and_26_a_lost_answer_is_done_again_and_answered_truly() {
    let world = world(1).await;
    let [a, _] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    a.one(p, 0, 0).await.unwrap();
    a.proxy.lose_answers(1_000_000);
    let lost = async {
        tokio::time::sleep(Duration::from_millis(120)).await;
        a.proxy.lose_answers(0);
    };
    let (appended, ()) = tokio::join!(a.one(p, 0, 1), lost);
    assert_eq!(base(&appended.unwrap()), 1);
    is_duplicate_at(a.one(p, 0, 1).await, 1);
    assert_eq!(base(&a.one(p, 0, 2).await.unwrap()), 2);
    // without a number nobody knows
    a.proxy.lose_answers(1_000_000);
    let unknown = a.append(None, Scope::Partition(0), r#"{"value":0}"#).await;
    a.proxy.lose_answers(0);
    assert_eq!(code(unknown), Code::OutcomeUnknown);
}

/// A redo that writes nothing raises the fence: the lost statement, wherever it still is, does not
/// store what was refused. (An open that fences log by log has raised the epoch before the fences.)
#[tokio::test]
async fn rule_26_what_a_redo_refused_is_not_stored_by_the_lost_statement() {
    let world = world(1).await;
    let [a, _] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    a.one(p, 0, 0).await.unwrap();
    a.one(p, 0, 1).await.unwrap();
    world.sql("update oncelog.sessions set epoch = 1 returning 1::bigint").await;
    a.proxy.orphan(r#"{"value":2}"#);
    assert_eq!(code(a.one(p, 0, 2).await), Code::ProducerFenced);
    a.proxy.release_orphan();
    until(|| a.proxy.orphans_done() == 1).await;
    assert_eq!(world.sql("select next_offset from oncelog.logs where partition = 0").await, 2);
}

#[tokio::test]
async fn rule_5_a_blind_append_moves_the_cache_only_from_where_it_stood() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    a.one(p, 0, 0).await.unwrap();
    b.one(p, 0, 1).await.unwrap();
    a.append(None, Scope::Partition(0), r#"{"value":"x"}"#).await.unwrap();
    is_duplicate_at(a.one(p, 0, 1).await, 1);
    // and where it stood right, it moves: the next batch takes the fast path
    a.append(None, Scope::Partition(0), r#"{"value":"x"}"#).await.unwrap();
    assert_eq!(base(&a.one(p, 0, 2).await.unwrap()), 4);
}

/// Sends two appends so that one pass decides both: the lane is held while they queue.
async fn together<T: Send + 'static>(
    a: &Replica,
    hold: impl Future<Output = Result<Appended, Error>>,
    between: impl Future<Output = T>,
    first: impl Future<Output = Result<Appended, Error>>,
    second: impl Future<Output = Result<Appended, Error>>,
) -> (Result<Appended, Error>, Result<Appended, Error>) {
    a.proxy.close_gate();
    let control = async {
        until(|| a.proxy.held() > 0).await;
        between.await;
        // both are queued by now: queueing needs no database
        tokio::time::sleep(Duration::from_millis(100)).await;
        a.proxy.open_gate();
    };
    let (held, first, second, ()) = tokio::join!(hold, first, second, control);
    held.unwrap();
    (first, second)
}

async fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn rule_7_a_pass_that_does_not_compare_has_not_happened() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let (p, q) = (a.producer("p").await, b.producer("q").await);
    a.one(p, 0, 0).await.unwrap();
    b.one(q, 0, 0).await.unwrap();
    b.one(q, 0, 1).await.unwrap();
    let appended = a.one(p, 0, 1).await.unwrap();
    assert_eq!((base(&appended), appended.duplicate), (3, false));
}

const WAITING: &str = "select count(*) from pg_stat_activity \
    where datname = current_database() and wait_event_type = 'Lock'";

#[tokio::test]
async fn what_comes_while_a_pass_waits_for_its_locks_joins_it() {
    let world = world(2).await;
    let [a, _] = &world.replicas[..] else { panic!() };
    let (p, q) = (a.producer("p").await, a.producer("q").await);
    a.one(p, 0, 0).await.unwrap();
    let mut connection = world.options.connect().await.unwrap();
    let mut held = connection.begin().await.unwrap();
    let lock = "select 1::bigint from oncelog.logs where partition = 0 for no key update";
    sqlx::query(lock).execute(&mut *held).await.unwrap();
    // a new producer takes a slow path; the others come while it waits
    let first = a.one(q, 0, 0);
    let then = async {
        while world.sql(WAITING).await == 0 {}
        let known = a.one(p, 0, 1);
        let elsewhere = a.append(None, Scope::Partition(1), "{\"value\":1}");
        // polled after the others, which are in the queue then
        let release = async { held.commit().await.unwrap() };
        tokio::join!(known, elsewhere, release)
    };
    let (first, (known, elsewhere, ())) = tokio::join!(first, then);
    assert_eq!(base(&elsewhere.unwrap()), 0);
    assert_eq!([base(&first.unwrap()), base(&known.unwrap())], [1, 2]);
    // decided together, they share a row
    assert_eq!(
        world.sql("select record_count from oncelog.batches where base_offset = 1").await,
        2
    );
}

#[tokio::test]
async fn rule_8_a_pass_compares_every_log_its_answers_stand_on() {
    let world = world(2).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let (p, q) = (a.producer("p").await, a.producer("q").await);
    a.one(p, 0, 0).await.unwrap();
    let into_1 = |s| a.append(Some((q, 0, s)), Scope::Partition(1), r#"{"value":1}"#);
    into_1(0).await.unwrap();
    // while a's lane is held, p is fenced elsewhere; then one pass has q's append and p's repeat
    let (repeat, append) = together(a, into_1(1), b.open("p"), a.one(p, 0, 0), into_1(2)).await;
    append.unwrap();
    assert_eq!(code(repeat), Code::ProducerFenced);
}

#[tokio::test]
async fn rule_9_nothing_is_answered_before_its_read_set_is_confirmed() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    a.one(p, 0, 0).await.unwrap();
    assert_eq!(code(a.one(p, 1, 1).await), Code::InvalidProducerEpoch);
    b.open("p").await;
    // a repeat, a gap and an epoch that is now valid: none of them from cache
    assert_eq!(code(a.one(p, 0, 0).await), Code::ProducerFenced);
    b.open("p").await;
    assert_eq!(code(a.one(p, 1, 9).await), Code::ProducerFenced);
    is_duplicate_at(a.one(p, 2, 0).await, 0);
}

#[tokio::test]
async fn rule_19_appends_after_growth_spread_by_the_new_count() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    let keyed: String = (0..40).map(|i| format!("{{\"key\":\"k{i}\",\"value\":{i}}}\n")).collect();
    let first = a.append(Some((p, 0, 0)), Scope::Topic, &keyed).await.unwrap();
    let patch = TopicPatch { partition_count: Some(8), ..TopicPatch::default() };
    b.broker.patch_topic(b.tenant, &name(TOPIC), patch).await.unwrap();
    for numbered in [Some((p, 0, 1)), None] {
        let appended = a.append(numbered, Scope::Topic, &keyed).await.unwrap();
        let Placed::Topic(Some(offsets)) = appended.placed else { panic!() };
        assert!(offsets.iter().any(|(partition, _)| *partition > 0), "{offsets:?}");
    }
    // the repeat of what was spread by the old count keeps its offsets
    let repeat = a.append(Some((p, 0, 0)), Scope::Topic, &keyed).await.unwrap();
    assert!(repeat.duplicate);
    assert_eq!(repeat.placed, first.placed);
}

#[tokio::test]
async fn rule_20_after_a_reset_all_scopes_start_at_0_again() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    a.one(p, 0, 0).await.unwrap();
    a.one(p, 0, 1).await.unwrap();
    let mut open = support::open(Some("p"));
    open.sequences = Sequences::Reset;
    let opened = b.broker.open_session(b.tenant, open, None).await.unwrap().value;
    assert!(opened.next_sequences.iter().all(|next| next.next_sequence == 0));
    // not the old window's request: new data
    assert_eq!(base(&a.one(p, 1, 0).await.unwrap()), 2);
    world.snapshot_everything().await;
    // b starts cold, from the snapshot: the window before the reset is gone there too
    let other = r#"{"value":"other"}"#;
    b.append(Some((p, 1, 1)), Scope::Partition(0), other).await.unwrap();
    is_duplicate_at(b.one(p, 1, 0).await, 2);
    assert_eq!(code(a.one(p, 1, 1).await), Code::SequenceReused);
    let opened = a.open("p").await;
    assert_eq!(opened.next_sequences[0].next_sequence, 2);
}

#[tokio::test]
async fn rule_22_a_journal_counts_requests() {
    let world = world(3).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    for sequence in 0..7 {
        let replica = if sequence % 2 == 0 { a } else { b };
        let records = "{\"key\":\"a\",\"value\":1}\n{\"key\":\"b\",\"value\":2}\n{\"value\":3}\n";
        replica.append(Some((p, 0, sequence)), Scope::Topic, records).await.unwrap();
    }
    let journal = "select next_offset from oncelog.logs where partition is null";
    assert_eq!(world.sql(journal).await, 7);
    let rows = "select sum(record_count)::bigint from oncelog.batches where records is null";
    assert_eq!(world.sql(rows).await, 7);
    world.snapshot_everything().await;
    a.broker.sweep().await.unwrap();
    assert_eq!(world.sql("select count(*) from oncelog.batches where records is null").await, 0);
    let records = "{\"key\":\"a\",\"value\":1}\n{\"key\":\"b\",\"value\":2}\n{\"value\":3}\n";
    let repeat = b.append(Some((p, 0, 6)), Scope::Topic, records).await.unwrap();
    assert!(repeat.duplicate && repeat.appended_at.is_some());
}

#[tokio::test]
async fn rules_24_and_25_rows_go_only_behind_a_snapshot_and_nothing_is_forgotten() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    for sequence in 0..8 {
        a.one(p, 0, sequence).await.unwrap();
    }
    a.broker.trim(a.tenant, &name(TOPIC), 0, 8).await.unwrap();
    // the log starts there at once, the rows are still needed
    let read = Read {
        start: Start::Earliest,
        limit: 9,
        max_bytes: 9_999,
        wait_ms: 0,
        isolation: Isolation::default(),
    };
    let page = b.broker.read(b.tenant, &name(TOPIC), 0, read).await.unwrap();
    assert_eq!((page.log_start_offset, page.slices.len()), (8, 0));
    assert_eq!(world.sql("select count(*) from oncelog.batches").await, 8);
    // the first round takes the snapshot, the next one the rows
    a.broker.sweep().await.unwrap();
    assert_eq!(world.sql("select count(*) from oncelog.batches").await, 8);
    a.broker.sweep().await.unwrap();
    assert_eq!(world.sql("select count(*) from oncelog.batches").await, 0);
    // cold, from the snapshot alone: places and instants of the last five, then forgotten
    for sequence in 3..8 {
        is_duplicate_at(b.one(p, 0, sequence).await, sequence);
    }
    let old = b.one(p, 0, 2).await.unwrap();
    assert!(old.duplicate && old.appended_at.is_none());
    assert_eq!(base(&b.one(p, 0, 8).await.unwrap()), 8);
    assert_eq!(b.open("p").await.next_sequences[0].next_sequence, 9);
}

/// Rule 18: whatever step an append and an open have reached when the other comes, the append is
/// either stored before the open's answer and counted in it, or refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_18_an_open_counts_or_refuses_what_is_in_flight_at_every_step() {
    let world = world(1).await;
    let mut steps_seen = 0;
    for appender_is_stopped in [true, false] {
        for warm in [false, true] {
            for step in 0..14 {
                let stopped = race(&world, appender_is_stopped, warm, step).await;
                steps_seen += u64::from(stopped);
            }
        }
    }
    assert!(steps_seen >= 20, "only {steps_seen} races were stopped in the middle");
}

/// True: the stopped side was really in the middle when the other began.
async fn race(world: &World, appender_is_stopped: bool, warm: bool, step: u64) -> bool {
    let [a, b] = &world.replicas[..] else { panic!() };
    let id = format!("p-{appender_is_stopped}-{warm}-{step}");
    let p = a.producer(&id).await;
    let mut next = 0;
    if warm {
        a.one(p, 0, 0).await.unwrap();
        next = 1;
    }
    b.broker.session(b.tenant, p, &Scopes::all()).await.unwrap();
    let (stopped, other) = if appender_is_stopped { (a, b) } else { (b, a) };
    stopped.proxy.close_gate();
    stopped.proxy.let_through(step);
    let in_the_middle = async {
        // the stopped side goes as far as it may, then the other side is given its time
        let _ = timeout(Duration::from_millis(40), until(|| stopped.proxy.held() > 0)).await;
        stopped.proxy.held() > 0
    };
    let append = async {
        if !appender_is_stopped {
            tokio::time::sleep(Duration::from_millis(45)).await;
        }
        let result = a.one(p, 0, next).await;
        (result, Instant::now())
    };
    let open = async {
        if appender_is_stopped {
            tokio::time::sleep(Duration::from_millis(45)).await;
        }
        (b.open(&id).await, Instant::now())
    };
    let release = async {
        let stopped_there = in_the_middle.await;
        tokio::time::sleep(Duration::from_millis(60)).await;
        stopped.proxy.open_gate();
        stopped_there
    };
    let ((appended, _), (opened, _), stopped_there) = tokio::join!(append, open, release);
    let told = opened.next_sequences.first().map_or(0, |scope| scope.next_sequence);
    match appended {
        Ok(_) => assert_eq!(told, next + 1, "{id}: stored, but not counted"),
        Err(error) => {
            assert_eq!(error.code, Code::ProducerFenced, "{id}: {error:?}");
            assert_eq!(told, next, "{id}: refused, but counted");
        }
    }
    assert_eq!(opened.session.epoch, 1);
    assert_eq!(code(other.one(p, 0, told).await), Code::ProducerFenced);
    other.one(p, 1, told).await.unwrap();
    stopped_there
}

/// A producer of many logs is fenced in chunks, before its open answers.
#[tokio::test]
async fn rule_18_an_open_of_many_logs_fences_them_all() {
    let partitions = 230;
    let world = world(partitions).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    let into = |partition, epoch, sequence| {
        a.append(Some((p, epoch, sequence)), Scope::Partition(partition), r#"{"value":1}"#)
    };
    for partition in 0..partitions {
        into(partition, 0, 0).await.unwrap();
    }
    let mut open = support::open(Some("p"));
    open.open_id = Some(uuid::Uuid::now_v7());
    for duplicate in [false, true] {
        let before = world.sql("select max(fence) from oncelog.logs").await;
        let opened = b.broker.open_session(b.tenant, open.clone(), None).await.unwrap().value;
        assert_eq!((opened.session.epoch, opened.duplicate), (1, duplicate));
        assert_eq!(opened.next_sequences.len(), partitions as usize);
        assert!(opened.next_sequences.iter().all(|scope| scope.next_sequence == 1));
        let raised = format!("select count(*) from oncelog.logs where fence > {before}");
        assert_eq!(world.sql(raised).await, 230);
        // an answer lost in the middle of the fencing: the repeat fences again
        world.sql("update oncelog.sessions set fencing = true returning 1::bigint").await;
    }
    for partition in 0..partitions {
        assert_eq!(code(into(partition, 0, 1).await), Code::ProducerFenced);
    }
    into(7, 1, 1).await.unwrap();
    // the epoch is raised, and the database goes away before all logs are fenced
    const LAST_STEP: &str = "set fencing = false";
    a.proxy.cut_at(LAST_STEP, false);
    let ended = a.broker.end_session(a.tenant, p, Some(1), &support::all_scopes()).await;
    assert_eq!((ended.unwrap_err().code, a.proxy.cut_nowhere()), (Code::OutcomeUnknown, true));
    b.broker.end_session(b.tenant, p, Some(1), &support::all_scopes()).await.unwrap();
    assert_eq!(code(into(7, 1, 2).await), Code::ProducerFenced);
    assert_eq!(code(into(7, 2, 2).await), Code::InvalidProducerEpoch);
    a.proxy.cut_at(LAST_STEP, false);
    let opened = a.broker.open_session(a.tenant, support::open(Some("p")), None).await;
    let code = opened.err().map(|error| error.code);
    assert_eq!((code, a.proxy.cut_nowhere()), (Some(Code::OutcomeUnknown), true));
}

#[tokio::test]
async fn overtaking_requests_wait_for_each_other() {
    let world = world(1).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    // five in flight over two replicas, the last first, also in a fresh scope
    for round in 0..4 {
        let first = round * 5;
        let send = |offset: i64| async move {
            tokio::time::sleep(Duration::from_millis(5 * (4 - offset) as u64)).await;
            let replica = if offset % 2 == 0 { a } else { b };
            replica.one(p, 0, first + offset).await
        };
        let all = tokio::join!(send(0), send(1), send(2), send(3), send(4));
        for (offset, result) in [all.0, all.1, all.2, all.3, all.4].into_iter().enumerate() {
            assert_eq!(base(&result.unwrap()), first + offset as i64);
        }
    }
    // nobody comes: refused after the wait, at once where it is too far ahead
    let started = Instant::now();
    assert_eq!(code(a.one(p, 0, 22).await), Code::OutOfOrderSequence);
    assert!(started.elapsed() >= Duration::from_millis(150));
    let error = a.one(p, 0, 25).await.unwrap_err();
    assert_eq!(error.code, Code::OutOfOrderSequence);
    assert!(
        error.facts.contains(&("expected", 20.into()))
            && error.facts.contains(&("received", 25.into()))
    );
    let fresh = a.producer("fresh").await;
    assert_eq!(code(a.one(fresh, 0, 3).await), Code::UnknownProducerState);
}

#[tokio::test]
async fn who_is_fenced_while_it_waits_is_answered_at_once() {
    let world = world_with(1, 600_000).await;
    let [a, b] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    let open = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        b.open("p").await
    };
    let both = async { tokio::join!(a.one(p, 0, 1), open) };
    let (fenced, _) = timeout(Duration::from_secs(30), both).await.expect("not after the wait");
    assert_eq!(code(fenced), Code::ProducerFenced);
}

#[tokio::test]
async fn a_client_that_hangs_up_loses_and_leaks_nothing() {
    let world = world(1).await;
    let [a, _] = &world.replicas[..] else { panic!() };
    let p = a.producer("p").await;
    for sequence in 0..30 {
        let hang_up = Duration::from_micros(sequence as u64 * 60);
        let _ = timeout(hang_up, a.one(p, 0, sequence)).await;
        // whatever became of it, the repeat is answered with its place
        assert_eq!(base(&a.one(p, 0, sequence).await.unwrap()), sequence);
    }
    let idle = "select count(*) from pg_stat_activity \
        where datname = current_database() and state = 'idle in transaction'";
    assert_eq!(world.sql(idle).await, 0);
    assert_eq!(world.sql("select count(*) from oncelog.batches").await, 30);
}
