//! A PgBouncer in front of Postgres, in transaction mode: anyone who has a transaction to run gets
//! a connection of the server's, in which others have run theirs.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, chown},
        process::CommandExt,
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use nix::unistd::Uid;
use sqlx::postgres::PgConnectOptions;
use tempfile::TempDir;
use tokio::net::UnixStream;

use super::served::until;
use crate::support;

const PORT: u16 = 6432;
/// Connections that it has to the server, for each database and user.
pub const POOL_SIZE: usize = 6;

/// What holds if a test says nothing else. Each client's next transaction runs in another
/// connection.
const SETTINGS: [(&str, &str); 7] = [
    ("pool_mode", "transaction"),
    ("max_prepared_statements", "200"),
    ("server_round_robin", "1"),
    ("max_client_conn", "500"),
    // of a server that was down; the default is 15 s
    ("server_login_retry", "0.1"),
    ("auth_type", "trust"),
    ("ignore_startup_parameters", ""),
];

pub struct Pooler {
    child: Child,
    dir: TempDir,
}

impl Pooler {
    /// In front of the server that these reach by a Unix socket; `settings` win over the usual
    /// ones.
    pub async fn start(server: &PgConnectOptions, settings: &[(&str, &str)]) -> Self {
        let socket_dir = server.get_socket().expect("a Unix socket");
        let dir = support::open_dir();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("users"), "\"postgres\" \"\"\n\"worker\" \"\"\n").unwrap();
        let mut file = format!(
            "[databases]\n* = host={}\n[pgbouncer]\nlisten_port = {PORT}\nunix_socket_dir = {}\n\
             auth_file = {}\ndefault_pool_size = {POOL_SIZE}\n",
            socket_dir.display(),
            dir.path().display(),
            at("users").display(),
        );
        for (name, value) in SETTINGS.iter().chain(settings) {
            file.push_str(&format!("{name} = {value}\n"));
        }
        fs::write(at("pgbouncer.ini"), file).unwrap();
        // it refuses to run as root, and has to get at the server's socket
        let owner = fs::metadata(socket_dir).unwrap();
        let log = fs::File::create(at("log")).unwrap();
        let mut command = Command::new(program());
        command.arg(at("pgbouncer.ini")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        if Uid::effective().is_root() {
            chown(dir.path(), Some(owner.uid()), Some(owner.gid())).unwrap();
            command.uid(owner.uid()).gid(owner.gid());
        }
        let child = command.spawn().expect("PgBouncer: scripts/ensure-pgbouncer installs one");
        let mut pooler = Self { child, dir };
        until("PgBouncer to listen", async || {
            let ended = pooler.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", pooler.log());
            let socket = pooler.dir.path().join(format!(".s.PGSQL.{PORT}"));
            UnixStream::connect(socket).await.ok()
        })
        .await;
        pooler
    }

    /// The same database, through this.
    pub fn options(&self, server: &PgConnectOptions) -> PgConnectOptions {
        server.clone().socket(self.dir.path()).port(PORT)
    }

    /// The same, as the real program is told.
    pub fn url(&self, server: &PgConnectOptions) -> String {
        let socket_dir = self.dir.path().to_str().unwrap().replace('/', "%2F");
        let (user, database) = (server.get_username(), server.get_database().unwrap());
        format!("postgres://{user}@{socket_dir}:{PORT}/{database}?sslmode=disable")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where it is, also if nobody put that on the PATH.
fn program() -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/local/bin", "/usr/sbin"]);
    let mut programs = places.map(|place| PathBuf::from(place).join("pgbouncer"));
    programs.find(|program| program.is_file()).unwrap_or_else(|| "pgbouncer".into())
}
