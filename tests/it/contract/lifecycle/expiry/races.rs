//! Expiries that race with appends and opens, stopped at every step.

use super::*;
use crate::support::served::until;

/// What races with an expiry.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Racer {
    /// By a producer that this replica knows.
    Append,
    /// By one that the log does not know yet.
    FirstAppend,
    Open,
}

/// Whatever step an expiry and an append or an open have reached when the other comes: either the
/// producer is active and kept, or it is gone and what came is refused, or opens another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_sees_or_refuses_what_is_in_flight_at_every_step() {
    let world = world(1).await;
    let mut outcomes = [0, 0];
    let mut stopped_there = 0;
    for racer in [Racer::Append, Racer::FirstAppend, Racer::Open] {
        for expiry_is_stopped in [true, false] {
            // until the stopped side has no more messages
            for step in 0.. {
                let (kept, stopped) =
                    race(&world, racer, expiry_is_stopped, Stop::AfterMessages(step)).await;
                outcomes[usize::from(kept)] += 1;
                stopped_there += u64::from(stopped);
                if !stopped {
                    break;
                }
            }
        }
    }
    assert!(outcomes.iter().all(|count| *count >= 10), "{outcomes:?}");
    assert!(stopped_there >= 40, "only {stopped_there} races were stopped in the middle");
}

/// Where the first of two that race is stopped.
#[derive(Clone, Copy, Debug)]
enum Stop {
    AfterMessages(u64),
    /// Before it sends a statement with this text for the first time.
    BeforeStatement(&'static str),
}

/// An append comes after the expiry has found the producer idle, and before it holds the heads: it
/// is seen. One that comes when it has looked again under the locks is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_sees_or_refuses_what_comes_around_its_locks() {
    let locks = "order by log_id for no key update";
    let fences = "set fence = greatest(fence + 1";
    for (statement, want) in [(locks, true), (fences, false)] {
        // what a connection has prepared comes without its text
        let world = world(1).await;
        let stop = Stop::BeforeStatement(statement);
        let (kept, stopped) = race(&world, Racer::Append, true, stop).await;
        assert!(stopped);
        assert_eq!(kept, want, "{statement}");
    }
}

/// (the producer was kept, the stopped side was really in the middle when the other began)
async fn race(world: &World, racer: Racer, expiry_is_stopped: bool, stop: Stop) -> (bool, bool) {
    let [a, b] = &world.replicas[..] else { panic!() };
    let step = if let Stop::AfterMessages(messages) = stop { messages } else { 0 };
    let id = format!("p-{racer:?}-{expiry_is_stopped}-{step}");
    let p = a.producer(&id).await;
    if racer == Racer::Append {
        a.one(p, 0).await.unwrap();
    }
    world.age(8 * DAY_MS).await;
    if racer == Racer::Append {
        assert!(a.one(p, 0).await.unwrap().duplicate);
    }
    let rows = world.number("select next_offset from oncelog.logs where partition = 0").await;
    let (stopped, other) = if expiry_is_stopped { (b, a) } else { (a, b) };
    match stop {
        Stop::AfterMessages(messages) => {
            stopped.proxy.close_gate();
            stopped.proxy.let_through(messages);
        }
        Stop::BeforeStatement(text) => stopped.proxy.close_gate_at(text),
    }
    let sequence = i64::from(racer == Racer::Append);
    let run = async |replica: &Replica| -> Option<Result<ProducerId, Error>> {
        if std::ptr::eq(replica, b) {
            b.sweep().await;
            return None;
        }
        Some(match racer {
            Racer::Open => Ok(a.producer(&id).await),
            _ => a.one(p, sequence).await.map(|_| p),
        })
    };
    let mut first = std::pin::pin!(run(stopped));
    let held = until("a step", async || (stopped.proxy.held() > 0).then_some(()));
    let ended = tokio::select! {
        ended = &mut first => Some(ended),
        () = held => None,
    };
    let in_the_middle = ended.is_none();
    // the other goes as far as it can
    let mut second = std::pin::pin!(run(other));
    let waits = until("a lock", async || (world.waiting().await > 0).then_some(()));
    let second_ended = tokio::select! {
        ended = &mut second => Some(ended),
        () = waits => None,
    };
    stopped.proxy.open_gate();
    let rest_of_first = async { if ended.is_some() { ended.flatten() } else { first.await } };
    let rest_of_second =
        async { if second_ended.is_some() { second_ended.flatten() } else { second.await } };
    let (first, second) = tokio::join!(rest_of_first, rest_of_second);
    let came = first.or(second).expect("one of them was no expiry");
    let kept = world.is_known(p).await;
    let at = format!("{racer:?} {expiry_is_stopped} {stop:?}: kept {kept}, {came:?}");
    match came {
        Ok(id) => assert_eq!(id == p, kept, "{at}"),
        Err(error) => assert!(error.code == Code::UnknownProducer && !kept, "{at}"),
    }
    let stored =
        world.number("select next_offset from oncelog.logs where partition = 0").await - rows;
    assert_eq!(stored == 1, kept && racer != Racer::Open, "{at}: {stored}");
    (kept, in_the_middle)
}
