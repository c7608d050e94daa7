//! A proxy in front of Postgres. It loses answers: now and then it cuts a connection after it has
//! passed on what the client sent, or before. And it has a gate: closed, it holds every message of
//! the client until the test lets it through, so that a broker can be stopped at every step.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    sync::{Notify, Semaphore, watch},
};

pub struct Proxy {
    port: u16,
    /// Cuts a million messages of clients.
    cuts_per_million: Arc<AtomicU32>,
    cut_all: watch::Sender<()>,
    pub cuts: Arc<AtomicU64>,
    gate: Arc<Gate>,
    orphans: Arc<Orphans>,
    late: Arc<Late>,
}

/// An answer that is kept back.
#[derive(Default)]
struct Late {
    /// That to the message that holds this text.
    holding: Mutex<Option<&'static str>>,
    held: AtomicU64,
    released: Notify,
}

/// A message whose client is gone before it reaches the server: it may still take effect, later.
struct Orphans {
    /// The message that holds this text is to become one.
    holding: Mutex<Option<&'static str>>,
    released: Semaphore,
    done: AtomicU64,
}

/// Messages of clients, counted, and held while the gate is closed.
#[derive(Default)]
struct Gate {
    closed: AtomicBool,
    /// The next message that holds this text closes the gate, and waits at it.
    closing: Mutex<Option<&'static str>>,
    passes: Notify,
    allowed: AtomicU64,
    held: AtomicU64,
    passed: AtomicU64,
    /// Messages that go through and whose answers are lost.
    losing: AtomicU64,
    /// The next message that holds this text cuts its connection: true, once it has arrived.
    cutting: Mutex<Option<(&'static str, bool)>>,
}

impl Orphans {
    fn takes(&self, message: &[u8]) -> bool {
        self.holding.lock().unwrap().take_if(|text| holds(message, text)).is_some()
    }

    async fn arrive(&self, message: &[u8], mut server: UnixStream) {
        self.released.acquire().await.unwrap().forget();
        server.write_all(message).await.unwrap();
        let answered = server.read(&mut [0; 4_096]).await;
        assert!(answered.is_ok_and(|n| n > 0));
        self.done.fetch_add(1, Ordering::SeqCst);
    }
}

impl Late {
    fn holds_answer(&self, message: &[u8]) -> bool {
        self.holding.lock().unwrap().take_if(|text| holds(message, text)).is_some()
    }
}

fn take_one(count: &AtomicU64) -> bool {
    let less = |n: u64| n.checked_sub(1);
    count.try_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
}

fn holds(message: &[u8], text: &str) -> bool {
    message.windows(text.len()).any(|window| window == text.as_bytes())
}

impl Gate {
    /// Whether this message cuts its connection; true: it arrives.
    fn cuts(&self, message: &[u8]) -> Option<bool> {
        if take_one(&self.losing) {
            return Some(true);
        }
        let mut cutting = self.cutting.lock().unwrap();
        cutting.take_if(|(text, _)| holds(message, text)).map(|(_, arrives)| arrives)
    }

    async fn pass(&self, message: &[u8]) {
        if self.closing.lock().unwrap().take_if(|text| holds(message, text)).is_some() {
            self.closed.store(true, Ordering::SeqCst);
        }
        let mut is_held = false;
        loop {
            let woken = self.passes.notified();
            let mut woken = std::pin::pin!(woken);
            woken.as_mut().enable();
            let allowed = take_one(&self.allowed);
            if !self.closed.load(Ordering::SeqCst) || allowed {
                break;
            }
            if !std::mem::replace(&mut is_held, true) {
                self.held.fetch_add(1, Ordering::SeqCst);
            }
            woken.await;
        }
        if is_held {
            self.held.fetch_sub(1, Ordering::SeqCst);
        }
        self.passed.fetch_add(1, Ordering::SeqCst);
    }
}

impl Proxy {
    /// Stands in front of the server that `options` reach by a Unix socket.
    pub async fn start(options: &PgConnectOptions, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = options.get_socket().expect("a Unix socket").join(".s.PGSQL.5432");
        let cuts_per_million = Arc::new(AtomicU32::new(0));
        let cuts = Arc::new(AtomicU64::new(0));
        let cut_all = watch::Sender::new(());
        let gate = Arc::new(Gate::default());
        let orphans = Arc::new(Orphans {
            holding: Mutex::new(None),
            released: Semaphore::new(0),
            done: AtomicU64::new(0),
        });
        let late = Arc::new(Late::default());
        let proxy = Self {
            late: late.clone(),
            gate: gate.clone(),
            orphans: orphans.clone(),
            port,
            cuts_per_million: cuts_per_million.clone(),
            cut_all: cut_all.clone(),
            cuts: cuts.clone(),
        };
        tokio::spawn(async move {
            let mut rng = StdRng::seed_from_u64(seed);
            while let Ok((client, _)) = listener.accept().await {
                let rng = StdRng::seed_from_u64(rng.random());
                let line = Line {
                    gate: gate.clone(),
                    orphans: orphans.clone(),
                    late: late.clone(),
                    rng,
                    cuts_per_million: cuts_per_million.clone(),
                    cuts: cuts.clone(),
                    cut_all: cut_all.subscribe(),
                };
                tokio::spawn(line.carry(client, socket.clone()));
            }
        });
        proxy
    }

    pub fn options(&self, options: &PgConnectOptions) -> PgConnectOptions {
        let database = options.get_database().unwrap().to_owned();
        PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.port)
            .username("postgres")
            .ssl_mode(PgSslMode::Disable)
            .database(&database)
    }

    pub fn lose_answers(&self, cuts_per_million: u32) {
        self.cuts_per_million.store(cuts_per_million, Ordering::Relaxed);
    }

    /// From now on nothing passes but what is let through.
    pub fn close_gate(&self) {
        self.gate.allowed.store(0, Ordering::SeqCst);
        self.gate.closed.store(true, Ordering::SeqCst);
    }

    /// The gate closes when a message comes that holds this text: of a statement that its
    /// connection has prepared before, no message does.
    pub fn close_gate_at(&self, text: &'static str) {
        *self.gate.closing.lock().unwrap() = Some(text);
    }

    pub fn let_through(&self, messages: u64) {
        self.gate.allowed.fetch_add(messages, Ordering::SeqCst);
        self.gate.passes.notify_waiters();
    }

    /// What waits at the gate goes on to the server, and its answers never come.
    pub fn lose_held_answers(&self) {
        self.gate.losing.store(self.held(), Ordering::SeqCst);
    }

    /// The next message that holds this text cuts its connection, before it arrives or after.
    pub fn cut_at(&self, text: &'static str, arrives: bool) {
        *self.gate.cutting.lock().unwrap() = Some((text, arrives));
    }

    /// No more; whether it has cut.
    pub fn cut_nowhere(&self) -> bool {
        self.gate.cutting.lock().unwrap().take().is_none()
    }

    pub fn open_gate(&self) {
        self.gate.closed.store(false, Ordering::SeqCst);
        self.gate.passes.notify_waiters();
    }

    /// The next message that holds this text loses its client, and waits to be released.
    pub fn orphan(&self, text: &'static str) {
        *self.orphans.holding.lock().unwrap() = Some(text);
    }

    pub fn release_orphan(&self) {
        self.orphans.released.add_permits(1);
    }

    /// Orphans that have taken effect, or have found that they may not.
    pub fn orphans_done(&self) -> u64 {
        self.orphans.done.load(Ordering::SeqCst)
    }

    /// The answer to the next message that holds this text is kept back, until it is released.
    pub fn hold_answer(&self, text: &'static str) {
        *self.late.holding.lock().unwrap() = Some(text);
    }

    /// Answers that have come, and were kept back.
    pub fn held_answers(&self) -> u64 {
        self.late.held.load(Ordering::SeqCst)
    }

    pub fn release_answer(&self) {
        self.late.released.notify_one();
    }

    /// Messages that wait at the gate.
    pub fn held(&self) -> u64 {
        self.gate.held.load(Ordering::SeqCst)
    }

    /// Messages of clients that have passed: round trips.
    pub fn passed(&self) -> u64 {
        self.gate.passed.load(Ordering::SeqCst)
    }

    /// Cuts every connection there is.
    pub fn cut_all(&self) {
        self.cut_all.send_replace(());
    }
}

struct Line {
    gate: Arc<Gate>,
    orphans: Arc<Orphans>,
    late: Arc<Late>,
    rng: StdRng,
    cuts_per_million: Arc<AtomicU32>,
    cuts: Arc<AtomicU64>,
    cut_all: watch::Receiver<()>,
}

impl Line {
    async fn carry(mut self, mut client: TcpStream, socket: PathBuf) {
        let Ok(mut server) = UnixStream::connect(socket).await else { return };
        client.set_nodelay(true).unwrap();
        let (mut sent, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
        let mut is_late = false;
        loop {
            tokio::select! {
                read = client.read(&mut sent) => {
                    let Ok(n @ 1..) = read else { return };
                    self.gate.pass(&sent[..n]).await;
                    if let Some(arrives) = self.gate.cuts(&sent[..n]) {
                        if arrives {
                            let _ = server.write_all(&sent[..n]).await;
                            let _ = server.read(&mut answered).await;
                        }
                        return;
                    }
                    if self.orphans.takes(&sent[..n]) {
                        drop(client);
                        return self.orphans.arrive(&sent[..n], server).await;
                    }
                    is_late |= self.late.holds_answer(&sent[..n]);
                    let cut = self.rng.random_range(0..1_000_000)
                        < self.cuts_per_million.load(Ordering::Relaxed);
                    if cut {
                        self.cuts.fetch_add(1, Ordering::Relaxed);
                    }
                    if cut && self.rng.random_bool(0.3) {
                        return;
                    }
                    if server.write_all(&sent[..n]).await.is_err() || cut {
                        return;
                    }
                }
                read = server.read(&mut answered) => {
                    let Ok(n @ 1..) = read else { return };
                    if std::mem::take(&mut is_late) {
                        self.late.held.fetch_add(1, Ordering::SeqCst);
                        self.late.released.notified().await;
                    }
                    if client.write_all(&answered[..n]).await.is_err() {
                        return;
                    }
                }
                _ = self.cut_all.changed() => return,
            }
        }
    }
}
