//! The thread that starts the server, waits for it, and restarts it.

use std::{
    convert::Infallible,
    ffi::OsString,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
    process::Child,
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::sync::watch;

use super::{ServerState, binaries::Binaries, home::Home, leftover};
use crate::telemetry;

/// How soon a death is detected.
const TICK: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(20);
/// How long a fast shutdown (which writes a checkpoint) may take before an immediate one.
const FAST_SHUTDOWN: Duration = Duration::from_secs(30);
/// How long to wait for processes of an earlier server.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(60);
/// A server that ran this long resets the count of deaths.
const HEALTHY: Duration = Duration::from_secs(60);
const MOST_QUICK_DEATHS: u32 = 5;
const LONGEST_WORDS_BYTES: u64 = 4096;

pub(super) struct Supervisor {
    pub home: Home,
    pub binaries: Binaries,
    pub socket_dir: PathBuf,
    /// Of the server.
    pub arguments: Vec<OsString>,
    pub publish: watch::Sender<ServerState>,
    /// Disconnected when the server should stop.
    pub stopping: mpsc::Receiver<Infallible>,
}

enum Start {
    Ready,
    Stopping,
    Exited(String),
}

impl Supervisor {
    /// The whole life of the server. `started` receives the result of the first start.
    pub fn run(self, started: &mpsc::Sender<anyhow::Result<()>>) {
        let first = self.home.make_cluster(&self.binaries).and_then(|()| self.launch());
        let outcome = first.map(|child| {
            let _ = started.send(Ok(()));
            self.keep_running(child)
        });
        // Empty now; in /tmp it would be litter.
        let _ = fs::remove_dir(&self.socket_dir);
        match outcome {
            Ok(state) => {
                self.publish.send_replace(state);
            }
            // It is the starter's to tell.
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    }

    /// Returns the last state: stopped, or failed.
    fn keep_running(&self, mut running: Option<Child>) -> ServerState {
        let mut quick_deaths = 0;
        loop {
            let Some(mut child) = running else { return ServerState::Stopped };
            let begun = Instant::now();
            let Some(mut death) = self.watch(&mut child) else { return ServerState::Stopped };
            if begun.elapsed() >= HEALTHY {
                quick_deaths = 0;
            }
            running = loop {
                quick_deaths += 1;
                if quick_deaths > MOST_QUICK_DEATHS {
                    let reason = format!("PostgreSQL died {quick_deaths} times, last: {death}");
                    tracing::error!("{reason}");
                    return ServerState::Failed { reason };
                }
                tracing::error!("PostgreSQL died: {death}; restarting it");
                metrics::counter!(telemetry::EMBEDDED_RESTARTS_TOTAL).increment(1);
                self.publish.send_replace(ServerState::Starting);
                if self.pause(Duration::from_millis(50) * 2u32.pow(quick_deaths)) {
                    return ServerState::Stopped;
                }
                match self.launch() {
                    Ok(child) => break child,
                    Err(error) => death = format!("{error:#}"),
                }
            };
        }
    }

    /// Starts a server and waits until it accepts connections; `None` if we should stop.
    fn launch(&self) -> anyhow::Result<Option<Child>> {
        let begun = Instant::now();
        loop {
            if !self.clear_leftovers()? {
                return Ok(None);
            }
            leftover::forget_socket(&self.socket_dir)
                .with_context(|| format!("cannot clear {}", self.socket_dir.display()))?;
            let mut log = self.home.open_log()?;
            let log_start = log.seek(SeekFrom::End(0))?;
            let mut command = self.binaries.command("postgres");
            command.args(&self.arguments).stdout(log.try_clone()?).stderr(log);
            let mut child = command.spawn().context("cannot run postgres")?;
            let status = match self.until_ready(&mut child) {
                Start::Ready => {
                    self.publish.send_replace(ServerState::Running { pid: child.id() });
                    return Ok(Some(child));
                }
                Start::Stopping => return Ok(None),
                Start::Exited(status) => status,
            };
            let words = self.words_since(log_start).unwrap_or_default();
            // The last server is still going away: a zombie, or backends that have not noticed.
            let leaving = words.contains("lock file \"postmaster.pid\" already exists")
                || words.contains("shared memory block");
            if !leaving || begun.elapsed() > LEFTOVER_PATIENCE {
                bail!("PostgreSQL did not start ({status}):\n{words}");
            }
            if self.pause(Duration::from_millis(200)) {
                return Ok(None);
            }
        }
    }

    /// The server's pid file says when it is ready. There is no deadline: recovery after a kill
    /// takes time, and interrupting it would only prolong the next one.
    fn until_ready(&self, child: &mut Child) -> Start {
        let pid_file = self.home.cluster.join("postmaster.pid");
        let pid = child.id().to_string();
        let mut spoke = Instant::now();
        loop {
            let text = fs::read_to_string(&pid_file).unwrap_or_default();
            let mut lines = text.lines().map(str::trim);
            if lines.next() == Some(&pid) && lines.nth(6) == Some("ready") {
                return Start::Ready;
            }
            if let Some(status) = exited(child) {
                return Start::Exited(status);
            }
            if self.pause(POLL) {
                shut_down(child);
                return Start::Stopping;
            }
            if spoke.elapsed() > Duration::from_secs(10) {
                spoke = Instant::now();
                tracing::info!("PostgreSQL is still starting; see {}", self.home.log.display());
            }
        }
    }

    /// Waits for the server to end and returns how it died; `None` if we stopped it.
    fn watch(&self, child: &mut Child) -> Option<String> {
        loop {
            if self.pause(TICK) {
                shut_down(child);
                return None;
            }
            if let Some(status) = exited(child) {
                return Some(status);
            }
        }
    }

    /// Stops a server that outlived a killed oncelog, and waits for the backends of a killed one.
    /// Returns false if we should stop.
    fn clear_leftovers(&self) -> anyhow::Result<bool> {
        let cluster = &self.home.cluster;
        let Some(recorded) = leftover::recorded(cluster) else { return Ok(true) };
        let begun = Instant::now();
        let (mut asked, mut forced) = (false, false);
        loop {
            let servers = leftover::servers(cluster, recorded);
            if servers.is_empty() {
                leftover::forget(cluster, recorded)
                    .with_context(|| format!("cannot clear {}", cluster.display()))?;
                return Ok(true);
            }
            if !asked && servers.contains(&recorded) {
                asked = true;
                tracing::warn!(pid = recorded.as_raw(), "stopping a leftover PostgreSQL server");
                let _ = kill(recorded, Signal::SIGINT);
            }
            if !forced && begun.elapsed() > FAST_SHUTDOWN {
                forced = true;
                for server in &servers {
                    let _ = kill(*server, Signal::SIGQUIT);
                }
            }
            if begun.elapsed() > LEFTOVER_PATIENCE {
                bail!("leftover PostgreSQL processes in {} do not stop", cluster.display());
            }
            if self.pause(POLL) {
                return Ok(false);
            }
        }
    }

    /// The end of the server's output since its log had `start` bytes.
    fn words_since(&self, start: u64) -> std::io::Result<String> {
        let mut log = File::open(&self.home.log)?;
        let end = log.seek(SeekFrom::End(0))?;
        log.seek(SeekFrom::Start(start.max(end.saturating_sub(LONGEST_WORDS_BYTES))))?;
        let mut words = Vec::new();
        log.read_to_end(&mut words)?;
        Ok(String::from_utf8_lossy(&words).into_owned())
    }

    /// Sleeps unless we should stop; returns at once in that case.
    fn pause(&self, time: Duration) -> bool {
        match self.stopping.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
            Ok(never) => match never {},
        }
    }
}

/// How the child ended, if it has.
fn exited(child: &mut Child) -> Option<String> {
    match child.try_wait() {
        Ok(status) => status.map(|status| status.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// Runs a fast shutdown, and an immediate one if that takes too long; waits for the end. The pid
/// cannot be reused meanwhile, because only this thread reaps it.
fn shut_down(child: &mut Child) {
    let pid = Pid::from_raw(child.id().cast_signed());
    let begun = Instant::now();
    let mut forced = false;
    let _ = kill(pid, Signal::SIGINT);
    while exited(child).is_none() {
        if !forced && begun.elapsed() > FAST_SHUTDOWN {
            forced = true;
            tracing::warn!("PostgreSQL did not stop in time; it will recover at the next start");
            let _ = kill(pid, Signal::SIGQUIT);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
