//! A private PostgreSQL that oncelog starts itself, so that `oncelog serve` needs no setup.
//!
//! ```text
//! data/ oncelog.lock    held (flock) by the one oncelog that may touch this directory
//!       pg/             the cluster; created as pg.init/ and renamed when complete
//!       run/            the server's Unix socket, mode 0700; it listens nowhere else
//!       postgres.log    the server's log
//! ```
//!
//! Responsibilities: the lock determines who may use the directory, only the supervisor thread
//! starts, signals and awaits the server, and only the server touches `pg/`. No other state is
//! kept, so nothing needs repair after a kill; fsync is on, so committed data survives all of
//! these:
//!
//! - oncelog stops in order: fast shutdown of the server, which we wait for.
//! - oncelog is killed (-9): the kernel interrupts the server (parent death signal, set by
//!   `setpriv`). Where there is no `setpriv` it stays behind, and the next start stops it first.
//! - the server is killed: the supervisor starts it again; clients see broken connections. When it
//!   dies again and again, the supervisor gives up and [`Embedded::failed`] resolves.
//! - both are killed: the next start waits for what is left of the server, then recovery runs.
//! - `initdb` is killed: a half-made `pg.init/` is thrown away by the next start.
//!
//! The parent death signal belongs to the *thread* that forked, not to the process: that is why the
//! supervisor is one plain thread which lives as long as the server, never a pooled one.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
};

use anyhow::Context;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::sync::watch;

mod binaries;
mod home;
mod leftover;
mod supervisor;

use binaries::Binaries;
use home::Home;
use supervisor::Supervisor;

/// The database that a new cluster contains.
pub const DATABASE: &str = "oncelog";
const USER: &str = "postgres";
const PORT: u16 = 5432;

/// Settings of every embedded server; options given to [`Embedded::start`] come later and override
/// them.
const SETTINGS: &[(&str, &str)] = &[
    ("synchronous_commit", "on"), // an acknowledged append is on disk
    ("shared_buffers", "256MB"),
    ("max_wal_size", "2GB"), // fewer checkpoints, so fewer full pages in the log
    ("checkpoint_timeout", "10min"),
    ("jit", "off"), // every statement here is short
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
];

/// The state of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// The first start, or a restart after it died.
    Starting,
    Running {
        /// Running, with the postmaster's process id.
        pid: u32,
    },
    Stopped,
    /// It died too often and is not started again.
    Failed {
        reason: String,
    },
}

/// A running private server. Dropping it stops the server.
#[derive(Debug)]
pub struct Embedded {
    socket_dir: PathBuf,
    state: watch::Receiver<ServerState>,
    /// Dropping the sender requests a stop.
    stop: Option<mpsc::Sender<Infallible>>,
    supervisor: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts the server of `data_dir`, and creates the cluster and its database on the first
    /// start. Blocks until the server accepts connections. `options` are extra server settings.
    pub fn start(data_dir: &Path, options: &[(&str, &str)]) -> anyhow::Result<Self> {
        let home = Home::open(data_dir)?;
        let binaries = Binaries::find(home.major()?, home.owner.clone())?;
        let (stop, stopping) = mpsc::channel();
        let (publish, state) = watch::channel(ServerState::Starting);
        let (started, outcome) = mpsc::channel();
        let socket_dir = home.socket_dir()?;
        let arguments = arguments(&home, &socket_dir, options);
        let supervisor = Supervisor {
            home,
            binaries,
            socket_dir: socket_dir.clone(),
            arguments,
            publish,
            stopping,
        };
        let supervisor = std::thread::Builder::new()
            .name("postgres".into())
            .spawn(move || supervisor.run(&started))
            .context("cannot start the PostgreSQL supervisor thread")?;
        outcome.recv().context("the PostgreSQL supervisor thread ended")??;
        Ok(Self { socket_dir, state, stop: Some(stop), supervisor: Some(supervisor) })
    }

    /// How to connect to `database`: over the private socket, without a password.
    pub fn connect_options(&self, database: &str) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .socket(&self.socket_dir)
            .port(PORT)
            .username(USER)
            .ssl_mode(PgSslMode::Disable) // whatever PGSSLMODE says
            .database(database)
    }

    /// Observes the state of the server.
    pub fn state(&self) -> watch::Receiver<ServerState> {
        self.state.clone()
    }

    /// The postmaster's process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        match *self.state.borrow() {
            ServerState::Running { pid } => Some(pid),
            ServerState::Starting | ServerState::Stopped | ServerState::Failed { .. } => None,
        }
    }

    /// Resolves with the reason if the server died too often to be started again; otherwise never.
    pub fn failed(&self) -> impl Future<Output = String> + Send + use<> {
        let mut state = self.state.clone();
        async move {
            loop {
                if let ServerState::Failed { reason } = &*state.borrow_and_update() {
                    return reason.clone();
                }
                if state.changed().await.is_err() {
                    // Stopped in order: it can no longer fail.
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Stops the server gracefully and blocks until it has ended; a second call does nothing.
    pub fn stop(&mut self) {
        self.stop = None;
        if let Some(supervisor) = self.supervisor.take()
            && supervisor.join().is_err()
        {
            tracing::error!("the PostgreSQL supervisor thread panicked");
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop();
    }
}

fn arguments(home: &Home, socket_dir: &Path, options: &[(&str, &str)]) -> Vec<std::ffi::OsString> {
    let port = PORT.to_string();
    // Last, and so not to be overruled: the server is private.
    let fixed = [
        ("listen_addresses", ""),
        ("port", port.as_str()),
        ("unix_socket_permissions", "0700"),
        ("logging_collector", "off"),
    ];
    let mut arguments =
        vec!["-D".into(), home.cluster.clone().into(), "-k".into(), socket_dir.to_owned().into()];
    for (name, value) in SETTINGS.iter().chain(options).chain(&fixed) {
        arguments.extend(["-c".into(), format!("{name}={value}").into()]);
    }
    arguments
}
