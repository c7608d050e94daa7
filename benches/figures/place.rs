//! A PostgreSQL as embedded mode runs it, databases in it, and brokers on them.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use oncelog::embedded::Embedded;
use serde_json::{Value, json};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, postgres::PgConnectOptions,
};

use crate::Effort;

const SECRET: &str = "not-a-secret-but-long-enough-for-hs256";
const PATIENCE: Duration = Duration::from_secs(30);
const FLUSHES: usize = 200;

pub struct Place {
    server: Embedded,
    admin: PgConnection,
    next_database: u32,
    /// The data that the references store: the same as oncelog.
    pub sample: Sample,
    token: String,
    /// Removed on drop, after the server has stopped.
    _directory: Option<tempfile::TempDir>,
    disk: PathBuf,
}

/// An event of `oncelog bench`, as oncelog stored it.
#[derive(Default)]
pub struct Sample {
    pub event: String,
    /// The row of a request of 100 events.
    pub records: String,
    pub producers: String,
}

/// `target/bench`.
pub fn output_dir() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    target.parent().unwrap_or(target).join("bench")
}

pub fn oncelog() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncelog"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ONCELOG_")) {
        command.env_remove(name);
    }
    command.env_remove("DATABASE_URL").env("ONCELOG_TOKEN_HS256_SECRET", SECRET);
    command.stdin(Stdio::null());
    command
}

impl Place {
    pub async fn open(data_dir: Option<&Path>, effort: Effort) -> anyhow::Result<Self> {
        let (directory, disk) = match data_dir {
            Some(given) => (None, given.to_owned()),
            None => {
                let made = tempfile::Builder::new().prefix("oncelog-bench-").tempdir()?;
                let path = made.path().to_owned();
                // the server may run as another user
                let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                std::fs::set_permissions(&path, open)?;
                (Some(made), path)
            }
        };
        // as embedded mode, but a segment of the write-ahead log that was made once is used again
        let server = Embedded::start(&disk.join("data"), &[("min_wal_size", "2GB")])?;
        let admin = server.connect_options("postgres").connect().await?;
        let minted = oncelog()
            .args(["token", "mint", "--tenant", "bench", "--expires-in", "1d"])
            .args(["--scope", "produce consume group admin"])
            .output()?;
        ensure!(minted.status.success(), "{}", String::from_utf8_lossy(&minted.stderr));
        let token = String::from_utf8(minted.stdout)?.trim().to_owned();
        let mut place = Self {
            server,
            admin,
            next_database: 0,
            sample: Sample::default(),
            token,
            _directory: directory,
            disk,
        };
        place.make_segments(effort.wal_segments).await?;
        place.sample = place.take_sample().await?;
        Ok(place)
    }

    /// Creates segments of the write-ahead log, and leaves them for reuse, as on a server that has
    /// run for a while: otherwise the first measurement would pay for them.
    async fn make_segments(&mut self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            self.sql("select pg_logical_emit_message(false, 'bench', 'next'), pg_switch_wal()")
                .await?;
        }
        self.settle().await
    }

    /// The rows that two requests become in the log.
    async fn take_sample(&mut self) -> anyhow::Result<Sample> {
        let database = self.make_database().await?;
        let brokers = Brokers::start(self, &database, 1).await?;
        let brief = Effort {
            warmup_s: 0.0,
            measured_s: 0.05,
            stored_events: 0,
            wal_segments: 0,
            groups: 0,
        };
        let append = ["append", "--topic", "sample", "--connections", "1", "--records-per-request"];
        for records in ["1", "100"] {
            brokers.bench(&[&append[..], &[records]].concat(), brief).await?;
        }
        brokers.stop().await?;
        let mut connection = self.options(&database).connect().await?;
        // The 100 of one request may have been joined with nothing: there is one connection.
        let row =
            "select records, producers::text from oncelog.batches where record_count = $1 limit 1";
        let mut rows: Vec<(String, String)> = Vec::new();
        for count in [1_i64, 100] {
            rows.push(sqlx::query_as(row).bind(count).fetch_one(&mut connection).await?);
        }
        connection.close().await?;
        self.drop_database(&database).await?;
        let [(one, _), (records, producers)] = <[_; 2]>::try_from(rows).expect("two rows");
        let event = one.trim_end().strip_prefix("{\"value\":").and_then(|e| e.strip_suffix('}'));
        Ok(Sample { event: event.context("an event")?.to_owned(), records, producers })
    }

    pub fn options(&self, database: &str) -> PgConnectOptions {
        self.server.connect_options(database)
    }

    pub fn socket_dir(&self) -> anyhow::Result<PathBuf> {
        let options = self.options("postgres");
        Ok(options.get_socket().context("no socket")?.to_owned())
    }

    async fn sql(&mut self, sql: impl Into<String>) -> anyhow::Result<()> {
        let sql = sql.into();
        self.admin.execute(AssertSqlSafe(sql.clone())).await.with_context(|| sql)?;
        Ok(())
    }

    pub async fn make_database(&mut self) -> anyhow::Result<String> {
        self.next_database += 1;
        let name = format!("bench_{}", self.next_database);
        self.sql(format!("create database {name}")).await?;
        Ok(name)
    }

    pub async fn drop_database(&mut self, name: &str) -> anyhow::Result<()> {
        self.sql(format!("drop database {name} with (force)")).await
    }

    /// The number of transactions in a database, once nobody is connected to it any more: a session
    /// reports its last ones when it ends.
    pub async fn transactions(&mut self, database: &str) -> anyhow::Result<i64> {
        let begun = Instant::now();
        let sql = "select numbackends, xact_commit + xact_rollback from pg_stat_database where datname = $1";
        loop {
            let query = sqlx::query_as(sql).bind(database);
            let (sessions, count): (i32, i64) = query.fetch_one(&mut self.admin).await?;
            if sessions == 0 {
                return Ok(count);
            }
            ensure!(begun.elapsed() < PATIENCE, "{sessions} sessions stay in {database}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The number that its sessions have reported so far.
    pub async fn transactions_so_far(&mut self, database: &str) -> anyhow::Result<i64> {
        let sql = "select xact_commit + xact_rollback from pg_stat_database where datname = $1";
        Ok(sqlx::query_scalar(sql).bind(database).fetch_one(&mut self.admin).await?)
    }

    /// The id of a process of the server.
    pub async fn backend(&mut self) -> anyhow::Result<u32> {
        let query = sqlx::query_scalar("select pg_backend_pid()");
        let id: i32 = query.fetch_one(&mut self.admin).await?;
        Ok(id.try_into()?)
    }

    /// Runs a checkpoint, so that a measurement does not pay for earlier writes.
    pub async fn settle(&mut self) -> anyhow::Result<()> {
        self.sql("checkpoint").await
    }

    /// Creates the tables of the references.
    pub async fn make_tables(
        &mut self,
        database: &str,
        filled: bool,
        events: u32,
    ) -> anyhow::Result<()> {
        let mut connection = self.options(database).connect().await?;
        connection.execute(include_str!("tables.sql")).await?;
        if filled {
            let fill = sqlx::query(include_str!("fill_events.sql"));
            let fill = fill.bind(&self.sample.event).bind(i64::from(events));
            fill.execute(&mut connection).await?;
            connection.execute("vacuum analyze events").await?;
        }
        connection.close().await?;
        Ok(())
    }

    /// Delays every flush by 2 ms, or reverts that.
    pub async fn slow_flush(&mut self, slow: bool) -> anyhow::Result<()> {
        for (name, value) in [("commit_delay", "2000"), ("commit_siblings", "0")] {
            let change =
                if slow { format!("set {name} = {value}") } else { format!("reset {name}") };
            self.sql(format!("alter system {change}")).await?;
        }
        self.sql("select pg_reload_conf()").await
    }

    /// Describes the machine of the measurements.
    pub async fn facts(&mut self) -> anyhow::Result<BTreeMap<&'static str, Value>> {
        let version: String =
            sqlx::query_scalar("select version()").fetch_one(&mut self.admin).await?;
        let settings: Vec<(String, String)> = sqlx::query_as(
            "select name, current_setting(name) from pg_settings where name in ('fsync',
             'synchronous_commit', 'full_page_writes', 'wal_sync_method', 'shared_buffers', 'max_wal_size')",
        )
        .fetch_all(&mut self.admin)
        .await?;
        ensure!(settings.contains(&("fsync".into(), "on".into())), "fsync is off");
        let cores = std::thread::available_parallelism()?.get();
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        Ok(BTreeMap::from([
            ("oncelog", json!(env!("CARGO_PKG_VERSION"))),
            ("measured_at", json!(chrono::Utc::now().to_rfc3339())),
            ("cores", json!(cores)),
            ("cpu", json!(cpu)),
            ("postgres", json!(version)),
            ("settings", json!(settings.into_iter().collect::<BTreeMap<_, _>>())),
            ("flush_us", json!(self.flush_us()?)),
        ]))
    }

    /// The median duration of an fdatasync of 8 kB on the data disk.
    fn flush_us(&self) -> anyhow::Result<u64> {
        let path = self.disk.join("flushed");
        let mut file = File::create(&path)?;
        let mut times = Vec::with_capacity(FLUSHES);
        for _ in 0..FLUSHES {
            file.write_all(&[7; 8192])?;
            let begun = Instant::now();
            file.sync_data()?;
            times.push(begun.elapsed());
        }
        std::fs::remove_file(path)?;
        times.sort();
        Ok(times[FLUSHES / 2].as_micros() as u64)
    }
}

/// One or several `oncelog serve` on one database.
pub struct Brokers {
    processes: Vec<Broker>,
    token: String,
}

struct Broker {
    child: Child,
    url: String,
    /// Of the listener with the metrics.
    admin_url: String,
}

impl Brokers {
    pub async fn start(place: &Place, database: &str, count: usize) -> anyhow::Result<Self> {
        let socket = place.socket_dir()?;
        let socket = socket.to_str().context("a strange path")?;
        let url = reqwest::Url::parse_with_params(
            &format!("postgres://postgres@localhost/{database}"),
            [("host", socket), ("sslmode", "disable")],
        )?;
        let mut processes = Vec::new();
        for _ in 0..count {
            processes.push(Broker::start(url.as_str())?);
        }
        Ok(Self { processes, token: place.token.clone() })
    }

    /// Runs `oncelog bench` once and returns its report.
    pub async fn bench(&self, arguments: &[&str], effort: Effort) -> anyhow::Result<Value> {
        let mut command = oncelog();
        command.arg("bench").args(arguments).arg("--json").env("ONCELOG_TOKEN", &self.token);
        if !arguments.contains(&"--warmup-s") {
            command.args(["--warmup-s", &effort.warmup_s.to_string()]);
        }
        command.args(["--duration-s", &effort.measured_s.to_string()]);
        if !arguments.contains(&"--topic") {
            // left there: the database goes as a whole, and nothing is removed while others measure
            command.args(["--topic", "bench"]);
        }
        for broker in &self.processes {
            command.args(["--url", &broker.url]);
        }
        let output = tokio::process::Command::from(command).output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// The metrics of the first broker.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        let broker = self.processes.first().context("no broker")?;
        Ok(reqwest::get(format!("{}/metrics", broker.admin_url)).await?.text().await?)
    }

    /// Creates a topic with these settings, on the first broker.
    pub async fn put_topic(&self, topic: &str, body: &Value) -> anyhow::Result<()> {
        let broker = self.processes.first().context("no broker")?;
        let put = reqwest::Client::new().put(format!("{}/v1/topics/{topic}", broker.url));
        let put = put.bearer_auth(&self.token).header("content-type", "application/json");
        let answer = put.body(body.to_string()).send().await?;
        ensure!(answer.status().is_success(), "{}", answer.text().await?);
        Ok(())
    }

    pub fn ids(&self) -> Vec<u32> {
        self.processes.iter().map(|broker| broker.child.id()).collect()
    }

    pub async fn stop(self) -> anyhow::Result<()> {
        self.processes.into_iter().try_for_each(Broker::stop)
    }
}

impl Broker {
    fn start(database_url: &str) -> anyhow::Result<Self> {
        let mut child = oncelog()
            .args(["serve", "--listen", "127.0.0.1:0"])
            .env("ONCELOG_DATABASE_URL", database_url)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = child.stderr.take().context("no stderr")?;
        let mut broker = Self { child, url: String::new(), admin_url: String::new() };
        let (tell, told) = mpsc::channel();
        // reads on, so that the broker can always write
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let mut log = Vec::new();
        while let Ok(line) = told.recv_timeout(PATIENCE) {
            if let Some((_, addresses)) = line.split_once(": ready address=") {
                let found = addresses.trim().split_once(" admin_address=");
                let (public, admin) = found.with_context(|| line.clone())?;
                (broker.url, broker.admin_url) =
                    (format!("http://{public}"), format!("http://{admin}"));
                return Ok(broker);
            }
            log.push(line);
        }
        bail!("a broker did not start:\n{}", log.join("\n"))
    }

    fn stop(mut self) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM)?;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "a broker ended with {status}");
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "a broker does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
