//! One connection: what it waits for, how long it may, and what its client has yet to take.

use std::{
    collections::HashMap,
    future::poll_fn,
    net::IpAddr,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use hyper_util::server::graceful::GracefulConnection;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{http::Limits, model::TenantId};

/// Connections of one age would all be renewed at once: the greatest age varies by a tenth.
const AGE_SPREAD: u64 = 10;

/// What is expected of the client.
#[derive(Clone, Copy)]
enum Phase {
    /// A head is expected, or has begun to come, since then. So is a handshake.
    Head(Instant),
    /// At least one request has not been answered, or its answer has not been taken.
    Busy,
    /// Nothing has come since the last answer was taken.
    Idle(Instant),
}

struct State {
    phase: Phase,
    /// HTTP/2: many requests, in frames; what comes is not always a head.
    is_multiplexed: bool,
    in_flight: usize,
    /// The answers that are on their way, each with the instant of its last progress.
    untaken: HashMap<u64, Instant>,
    /// A lower bound of when an answer has made no progress for too long.
    untaken_until: Option<Instant>,
    requests: u64,
    tenant: Option<TenantId>,
}

/// A connection, as all that works on it shares it.
#[derive(Clone)]
pub struct Connection(Arc<Shared>);

struct Shared {
    peer: IpAddr,
    state: Mutex<State>,
    ended: CancellationToken,
}

/// The timeouts of a connection.
#[derive(Clone, Copy)]
pub struct Timeouts {
    pub head: Duration,
    idle: Duration,
    answer: Duration,
    age: Option<Duration>,
}

/// Why a connection ended before its peer closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A head, or a handshake, took too long.
    SlowHead,
    /// An answer was not taken.
    UnreadAnswer,
    /// It was asked to close, and did not.
    Idle,
}

impl Cut {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SlowHead => "slow_head",
            Self::UnreadAnswer => "unread_answer",
            Self::Idle => "idle",
        }
    }
}

/// What a connection's deadlines ask for.
enum Due {
    At(Instant),
    Retire,
    Cut(Cut),
}

impl Timeouts {
    pub fn of(limits: &Limits) -> Self {
        Self {
            head: Duration::from_millis(limits.header_timeout_ms),
            idle: Duration::from_millis(limits.keep_alive_timeout_ms),
            answer: Duration::from_millis(limits.answer_timeout_ms),
            age: Some(limits.max_connection_age_ms)
                .filter(|age_ms| *age_ms > 0)
                .map(Duration::from_millis),
        }
    }

    /// The age of the connection of this number at which it is to end.
    fn age_of(&self, number: u64) -> Option<Duration> {
        let age_ms = u64::try_from(self.age?.as_millis()).unwrap_or(u64::MAX);
        let spread_ms = age_ms / AGE_SPREAD;
        // consecutive numbers lie far apart, all over the spread
        let less_ms = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % spread_ms.max(1);
        Some(Duration::from_millis(age_ms - less_ms))
    }
}

impl Connection {
    /// A new one, whose first head is awaited.
    pub fn new(peer: IpAddr) -> Self {
        let state = State {
            phase: Phase::Head(Instant::now()),
            is_multiplexed: false,
            in_flight: 0,
            untaken: HashMap::new(),
            untaken_until: None,
            requests: 0,
            tenant: None,
        };
        let (state, ended) = (Mutex::new(state), CancellationToken::new());
        Self(Arc::new(Shared { peer, state, ended }))
    }

    /// The address at its other end.
    pub fn peer(&self) -> IpAddr {
        self.0.peer
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it, whatever it does.
    pub fn end(&self) {
        self.0.ended.cancel();
    }

    /// Works until the connection is ended: None.
    pub async fn until_ended<F: Future>(&self, work: F) -> Option<F::Output> {
        self.0.ended.run_until_cancelled(work).await
    }

    /// A head is complete. The request is in flight until its answer is taken.
    pub fn request(&self, is_multiplexed: bool) -> InFlight {
        let mut state = self.state();
        state.is_multiplexed = is_multiplexed;
        state.phase = Phase::Busy;
        state.in_flight += 1;
        state.requests += 1;
        InFlight { connection: self.clone(), number: state.requests }
    }

    /// The handshake is done: from now on the first head is awaited.
    pub fn established(&self) {
        self.state().phase = Phase::Head(Instant::now());
    }

    /// The tenant whose request was answered.
    pub fn belongs_to(&self, tenant: TenantId) {
        self.state().tenant = Some(tenant);
    }

    pub fn tenant(&self) -> Option<TenantId> {
        self.state().tenant
    }

    /// Since when the connection has been waiting for its peer; none while it has work.
    pub fn idle_since(&self) -> Option<Instant> {
        match self.state().phase {
            Phase::Head(since) | Phase::Idle(since) => Some(since),
            Phase::Busy => None,
        }
    }

    pub fn received(&self) {
        let mut state = self.state();
        if let (Phase::Idle(_), false) = (state.phase, state.is_multiplexed) {
            state.phase = Phase::Head(Instant::now());
        }
    }

    /// An answer that is still written delays the head after it.
    pub fn wrote(&self) {
        let mut state = self.state();
        if let Phase::Head(_) = state.phase {
            state.phase = Phase::Head(Instant::now());
        }
    }

    /// What is next, or due now.
    fn due(
        &self,
        timeouts: &Timeouts,
        age_ends: Option<Instant>,
        is_retiring: bool,
    ) -> Option<Due> {
        let (mut state, now) = (self.state(), Instant::now());
        let mut next = None;
        let mut passed = |deadline: Instant| {
            let is_over = deadline <= now;
            next = Some(next.map_or(deadline, |next: Instant| next.min(deadline)));
            is_over
        };
        match state.phase {
            Phase::Head(since) if passed(since + timeouts.head) => {
                return Some(Due::Cut(Cut::SlowHead));
            }
            Phase::Idle(since) if is_retiring && passed(since + timeouts.idle + timeouts.head) => {
                return Some(Due::Cut(Cut::Idle));
            }
            Phase::Idle(since) if !is_retiring && passed(since + timeouts.idle) => {
                return Some(Due::Retire);
            }
            _ => {}
        }
        // who has HTTP/1 waits for an answer before the connection ends: it says that it does
        let may_age = !is_retiring && (state.is_multiplexed || matches!(state.phase, Phase::Busy));
        if age_ends.is_some_and(|ends| may_age && passed(ends)) {
            return Some(Due::Retire);
        }
        if state.untaken_until.is_some_and(|until| until <= now) {
            state.untaken_until =
                state.untaken.values().min().map(|since| *since + timeouts.answer);
        }
        if state.untaken_until.is_some_and(&mut passed) {
            return Some(Due::Cut(Cut::UnreadAnswer));
        }
        next.map(Due::At)
    }

    /// Serves until the end, and asks the peer to leave when told to `retire`. Err: the peer was
    /// too slow.
    pub async fn served<S: GracefulConnection>(
        &self,
        serving: S,
        timeouts: &Timeouts,
        number: u64,
        retire: CancellationToken,
    ) -> Result<Result<(), S::Error>, Cut> {
        let age_ends = timeouts.age_of(number).map(|age| Instant::now() + age);
        let (mut serving, mut timer) = (pin!(serving), pin!(sleep_until(Instant::now())));
        let mut retire = pin!(retire.cancelled());
        let mut is_retiring = false;
        poll_fn(|context| {
            loop {
                if let Poll::Ready(done) = serving.as_mut().poll(context) {
                    return Poll::Ready(Ok(done));
                }
                let mut leaves = !is_retiring && retire.as_mut().poll(context).is_ready();
                match self.due(timeouts, age_ends, is_retiring) {
                    _ if leaves => {}
                    None => return Poll::Pending,
                    Some(Due::Cut(cut)) => return Poll::Ready(Err(cut)),
                    Some(Due::Retire) => leaves = true,
                    Some(Due::At(deadline)) => {
                        if timer.deadline() != deadline {
                            timer.as_mut().reset(deadline);
                        }
                        if timer.as_mut().poll(context).is_pending() {
                            return Poll::Pending;
                        }
                    }
                }
                if leaves {
                    is_retiring = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        })
        .await
    }
}

/// A request, until the last piece of its answer is taken.
pub struct InFlight {
    connection: Connection,
    number: u64,
}

impl InFlight {
    /// Its client has taken something, or shall from now on.
    pub fn progressed(&self) {
        let mut state = self.connection.state();
        state.untaken.insert(self.number, Instant::now());
        // a time that has passed is looked into at the next poll, and moved
        state.untaken_until.get_or_insert_with(Instant::now);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.connection.state();
        state.untaken.remove(&self.number);
        state.in_flight -= 1;
        if state.in_flight == 0 {
            state.phase = Phase::Idle(Instant::now());
            state.untaken_until = None;
        }
    }
}
