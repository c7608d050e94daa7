//! The embedded PostgreSQL against kills, second instances and hostile directories.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid, User},
};
use oncelog::embedded::{DATABASE, Embedded, ServerState};
use sqlx::{ConnectOptions, Connection, PgConnection};

use crate::support::{crash_and_restart, open_dir, served::PATIENCE};

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn exists(pid: Pid) -> bool {
    // A zombie is no longer a server; whether somebody reaps it is not our concern.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// The postmaster that serves `data_dir`, once it is ready.
fn ready_postmaster(data_dir: &Path) -> Option<Pid> {
    let file = fs::read_to_string(data_dir.join("pg/postmaster.pid")).ok()?;
    let lines: Vec<&str> = file.lines().map(str::trim).collect();
    (lines.get(7) == Some(&"ready")).then(|| Pid::from_raw(lines[0].parse().unwrap()))
}

async fn connect(embedded: &Embedded) -> PgConnection {
    embedded.connect_options(DATABASE).connect().await.unwrap()
}

async fn rows(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from kept").fetch_one(connection).await.unwrap()
}

async fn keep_a_row(embedded: &Embedded) {
    let mut connection = connect(embedded).await;
    let sql = "create table if not exists kept (n int); insert into kept values (1)";
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// The program, serving `data_dir` with an embedded server.
fn serve(data_dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_oncelog"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir)
        .env_remove("DATABASE_URL")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn is_private_durable_and_refuses_a_second_one() {
    let dir = open_dir();
    let mut embedded = Embedded::start(dir.path(), &[("max_connections", "33")]).unwrap();
    let mut connection = connect(&embedded).await;
    let shown: Vec<String> = sqlx::query_scalar(
        "select setting from pg_settings where name in ('data_checksums', 'fsync', \
         'listen_addresses', 'max_connections', 'server_encoding', 'synchronous_commit') \
         order by name",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(shown, ["on", "on", "", "33", "UTF8", "on"]);
    let collation: String = sqlx::query_scalar(
        "select datcollate::text from pg_database where datname = current_database()",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(collation, "C.UTF-8");
    let run = fs::metadata(dir.path().join("run")).unwrap();
    assert_eq!(run.permissions().mode() & 0o777, 0o700);
    for private in ["postgres.log", "oncelog.lock"] {
        let file = fs::metadata(dir.path().join(private)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "{private}");
    }

    let second = Embedded::start(dir.path(), &[]).unwrap_err().to_string();
    assert!(second.contains("is in use by another oncelog"), "{second}");

    let postmaster = Pid::from_raw(embedded.pid().unwrap().cast_signed());
    embedded.stop();
    assert!(!exists(postmaster));
    assert_eq!(embedded.pid(), None);
    assert_eq!(*embedded.state().borrow(), ServerState::Stopped);
    let again = Embedded::start(dir.path(), &[]).unwrap();
    connect(&again).await;
}

#[tokio::test]
async fn a_killed_server_comes_back_with_what_was_committed() {
    let dir = open_dir();
    let embedded = Embedded::start(dir.path(), &[]).unwrap();
    keep_a_row(&embedded).await;
    let mut bystander = connect(&embedded).await;
    crash_and_restart(&embedded).await;
    assert_eq!(rows(&mut connect(&embedded).await).await, 1);
    let broken = sqlx::query("select 1").execute(&mut bystander).await;
    assert!(broken.is_err(), "a connection of the killed server still works");
}

#[tokio::test]
async fn a_server_that_dies_again_and_again_is_given_up() {
    let dir = open_dir();
    let embedded = Embedded::start(dir.path(), &[("fsync", "off")]).unwrap();
    let mut state = embedded.state();
    let kill_each = async {
        let mut killed = 0;
        loop {
            let next = |state: &ServerState| match state {
                ServerState::Running { pid } => *pid != killed,
                _ => false,
            };
            let found = state.wait_for(next).await.map(|state| state.clone());
            let Ok(ServerState::Running { pid }) = found else { return };
            killed = pid;
            kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
        }
    };
    let failed = tokio::time::timeout(PATIENCE, embedded.failed());
    let (reason, ()) = tokio::join!(failed, kill_each);
    let reason = reason.unwrap();
    assert!(reason.contains("PostgreSQL died 6 times"), "{reason}");
}

#[tokio::test]
async fn a_killed_oncelog_leaves_no_server_behind() {
    let dir = open_dir();
    let mut parent = serve(dir.path());
    let postmaster = wait_for("the server", || ready_postmaster(dir.path()));
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_for("the server's end", || (!exists(postmaster)).then_some(()));
    keep_a_row(&Embedded::start(dir.path(), &[]).unwrap()).await;
}

#[tokio::test]
async fn both_killed_is_survived() {
    let dir = open_dir();
    keep_a_row(&Embedded::start(dir.path(), &[]).unwrap()).await;
    let mut parent = serve(dir.path());
    let postmaster = wait_for("the server", || ready_postmaster(dir.path()));
    kill(postmaster, Signal::SIGKILL).unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    let embedded = Embedded::start(dir.path(), &[]).unwrap();
    assert_eq!(rows(&mut connect(&embedded).await).await, 1);
}

/// As on a machine without `setpriv`: the server does not learn that its parent is gone.
#[tokio::test]
async fn a_server_left_over_is_stopped_by_the_next_start() {
    let dir = open_dir();
    let mut parent = Command::new(env!("CARGO_BIN_EXE_oncelog"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(dir.path())
        .env_remove("DATABASE_URL")
        .env("PATH", "/nowhere")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let left_over = wait_for("the server", || ready_postmaster(dir.path()));
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(exists(left_over));
    let embedded = Embedded::start(dir.path(), &[]).unwrap();
    assert!(!exists(left_over));
    connect(&embedded).await;
}

/// A pid file whose pid is now somebody else's, as after a container's restart.
#[tokio::test]
async fn a_pid_file_of_another_life_does_not_stop_the_start() {
    let dir = open_dir();
    drop(Embedded::start(dir.path(), &[]).unwrap());
    let mut bystander = Command::new("sleep").arg("600").spawn().unwrap();
    let pid_file = dir.path().join("pg/postmaster.pid");
    let cluster = dir.path().join("pg");
    fs::write(pid_file, format!("{}\n{}\n", bystander.id(), cluster.display())).unwrap();
    connect(&Embedded::start(dir.path(), &[]).unwrap()).await;
    assert!(bystander.try_wait().unwrap().is_none(), "a stranger was stopped");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn term_stops_both_in_order() {
    let dir = open_dir();
    let mut parent = serve(dir.path());
    let stderr = BufReader::new(parent.stderr.take().unwrap());
    let mut lines = stderr.lines();
    lines.find(|line| line.as_ref().unwrap().contains("ready")).unwrap().unwrap();
    let postmaster = ready_postmaster(dir.path()).unwrap();
    kill(Pid::from_raw(parent.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(parent.wait().unwrap().success());
    assert!(!exists(postmaster));
    assert!(!dir.path().join("pg/postmaster.pid").exists());
}

#[test]
fn a_cluster_of_another_major_is_refused() {
    let dir = open_dir();
    fs::DirBuilder::new().mode(0o755).create(dir.path().join("pg")).unwrap();
    fs::write(dir.path().join("pg/PG_VERSION"), "99\n").unwrap();
    let refusal = Embedded::start(dir.path(), &[]).unwrap_err().to_string();
    assert!(refusal.contains("created by PostgreSQL 99, which is not installed"), "{refusal}");
    assert!(refusal.contains("postgresql-99"), "{refusal}");
}

#[test]
fn root_is_told_when_the_servers_user_cannot_come_in() {
    if !Uid::effective().is_root() {
        return; // an ordinary user's server runs as that user
    }
    let dir = open_dir();
    let closed = dir.path().join("closed");
    fs::DirBuilder::new().mode(0o700).create(&closed).unwrap();
    let refusal = Embedded::start(&closed.join("data"), &[]).unwrap_err().to_string();
    assert!(refusal.contains("who cannot enter"), "{refusal}");
    assert!(refusal.contains(closed.to_str().unwrap()), "{refusal}");
    assert!(refusal.contains("use another --data-dir"), "{refusal}");
    assert!(!closed.join("data").exists(), "a refused directory was made");
}

#[tokio::test]
async fn a_path_too_long_for_a_socket_is_no_obstacle() {
    let dir = open_dir();
    let data_dir = dir.path().join("d".repeat(100));
    let embedded = Embedded::start(&data_dir, &[]).unwrap();
    keep_a_row(&embedded).await;
    assert!(!data_dir.join("run").exists());
}

const CHILD_DIR: &str = "ONCELOG_TEST_EMBEDDED_DIR";

#[test]
fn works_for_an_ordinary_user() {
    let nobody = User::from_name("nobody").unwrap().unwrap();
    if !Uid::effective().is_root() {
        return; // then all the tests here show it
    }
    let dir = open_dir();
    // The build directory may be out of that user's reach.
    let program = dir.path().join("it");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let home: PathBuf = dir.path().join("home");
    fs::DirBuilder::new().mode(0o700).create(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(nobody.uid.as_raw()), Some(nobody.gid.as_raw())).unwrap();
    let ids = ["--reuid", "nobody", "--regid"].map(str::to_owned);
    let mut child = Command::new("setpriv")
        .args(ids)
        .arg(nobody.gid.to_string())
        .arg("--clear-groups")
        .arg(program)
        .args([
            "--exact",
            "history::embedded::an_ordinary_users_server",
            "--ignored",
            "--nocapture",
        ])
        .env(CHILD_DIR, home.join("data"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(child.wait().unwrap().success(), "{output}");
    assert!(output.contains("1 passed"), "{output}");
    let cluster = fs::metadata(home.join("data/pg")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&cluster), nobody.uid.as_raw());

    // What an ordinary user made, root goes on with as that user.
    drop(Embedded::start(&home.join("data"), &[]).unwrap());
}

#[tokio::test]
#[ignore = "the other half of works_for_an_ordinary_user, which runs it as that user"]
async fn an_ordinary_users_server() {
    let Some(data_dir) = std::env::var_os(CHILD_DIR) else { return };
    assert!(!Uid::effective().is_root());
    let embedded = Embedded::start(Path::new(&data_dir), &[]).unwrap();
    keep_a_row(&embedded).await;
    assert_eq!(rows(&mut connect(&embedded).await).await, 1);
}
