//! A proxy in front of Postgres that loses answers: now and then it cuts a connection after it has
//! passed on what the client sent, or before.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};

pub struct Proxy {
    port: u16,
    /// Cuts a million messages of clients.
    cuts_per_million: Arc<AtomicU32>,
    cut_all: watch::Sender<()>,
    pub cuts: Arc<AtomicU64>,
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
        let proxy = Self {
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

    /// Cuts every connection there is.
    pub fn cut_all(&self) {
        self.cut_all.send_replace(());
    }
}

struct Line {
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
        loop {
            tokio::select! {
                read = client.read(&mut sent) => {
                    let Ok(n @ 1..) = read else { return };
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
                    if client.write_all(&answered[..n]).await.is_err() {
                        return;
                    }
                }
                _ = self.cut_all.changed() => return,
            }
        }
    }
}
