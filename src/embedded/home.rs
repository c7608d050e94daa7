//! The data directory: its owner, its lock, and its contents.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use nix::unistd::{Uid, User};

use super::{DATABASE, USER, binaries::Binaries};

/// A predecessor that was just killed may hold the lock a little longer.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// `sun_path` holds 104 bytes (macOS; Linux 108), of which `/.s.PGSQL.5432` and a zero take 15.
const LONGEST_SOCKET_DIR: usize = 104 - 15;
const LARGEST_LOG_BYTES: u64 = 10 << 20;

/// A locked data directory that the server's user can use.
#[derive(Debug)]
pub(super) struct Home {
    root: PathBuf,
    pub cluster: PathBuf,
    pub log: PathBuf,
    /// The user to run the server as, if we are root.
    pub owner: Option<User>,
    /// Held until the supervisor ends, and therefore until the server has ended.
    _lock: File,
}

impl Home {
    pub fn open(data_dir: &Path) -> anyhow::Result<Self> {
        let wanted = std::path::absolute(data_dir)?;
        let owner = choose_owner(&wanted)?;
        if let Some(user) = &owner {
            check_reach(&wanted, user)?; // before anything is made
        }
        if !wanted.exists() {
            DirBuilder::new().recursive(true).mode(0o755).create(&wanted).with_context(|| {
                format!("cannot create the data directory {}", wanted.display())
            })?;
            fs::set_permissions(&wanted, fs::Permissions::from_mode(0o755))?; // whatever the umask
        }
        let root = wanted
            .canonicalize()
            .with_context(|| format!("cannot use the data directory {}", wanted.display()))?;
        if let Some(user) = &owner {
            check_reach(&root, user)?; // the umask may have closed what lies between
        }
        let cluster = root.join("pg");
        let lock = take_lock(&root, owner.as_ref())?;
        Ok(Self { cluster, log: root.join("postgres.log"), root, owner, _lock: lock })
    }

    /// The major version that created the cluster, if there is one.
    pub fn major(&self) -> anyhow::Result<Option<u32>> {
        let path = self.cluster.join("PG_VERSION");
        match fs::read_to_string(&path) {
            Ok(text) => {
                Ok(Some(text.trim().parse().with_context(|| {
                    format!("{} does not hold a major version", path.display())
                })?))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Creates the cluster and its database unless they exist. This is atomic: everything is
    /// created in a temporary directory and renamed at the end.
    pub fn make_cluster(&self, binaries: &Binaries) -> anyhow::Result<()> {
        if self.major()?.is_some() {
            return Ok(());
        }
        ensure!(
            self.owner.is_some() || User::from_uid(Uid::effective())?.is_some(),
            "this user id ({}) has no name in /etc/passwd, which initdb requires; use your own \
             server with --database-url",
            Uid::effective()
        );
        tracing::info!(data_dir = %self.root.display(), "creating a PostgreSQL {} cluster", binaries.major);
        let aside = self.root.join("pg.init");
        if aside.exists() {
            fs::remove_dir_all(&aside)
                .with_context(|| format!("cannot remove {}", aside.display()))?;
        }
        self.make_private_dir(&aside)?;
        let mut initdb = binaries.command("initdb");
        initdb.arg("-D").arg(&aside).args(["-U", USER, "--auth-local=trust", "--auth-host=reject"]);
        initdb.args(["--encoding=UTF8", "--locale=C.UTF-8", "--data-checksums"]);
        run(initdb, "")?;
        // A server of one user, on standard input: the way initdb itself makes databases.
        let mut single = binaries.command("postgres");
        single.arg("--single").arg("-D").arg(&aside).args(["-c", "exit_on_error=on", "postgres"]);
        run(single, &format!("create database {DATABASE}\n"))?;
        fs::rename(&aside, &self.cluster)?;
        File::open(&self.root)?.sync_all()?;
        Ok(())
    }

    /// `<data>/run`, or a directory in /tmp if that path is too long for a socket address.
    pub fn socket_dir(&self) -> anyhow::Result<PathBuf> {
        let near = self.root.join("run");
        // The server takes a list here, with commas between.
        let fits = near.as_os_str().len() <= LONGEST_SOCKET_DIR
            && !near.to_string_lossy().contains([',', '"']);
        let dir = if fits {
            near
        } else {
            let root = fs::metadata(&self.root)?;
            PathBuf::from(format!("/tmp/oncelog-{:x}-{:x}", root.dev(), root.ino()))
        };
        self.make_private_dir(&dir)?;
        Ok(dir)
    }

    /// Opens the server's log for appending; a large one is rotated first.
    pub fn open_log(&self) -> anyhow::Result<File> {
        if fs::metadata(&self.log).is_ok_and(|log| log.len() > LARGEST_LOG_BYTES) {
            fs::rename(&self.log, self.log.with_extension("log.1"))?;
        }
        open_owned(&self.log, self.owner.as_ref())
    }

    /// Creates a directory that only the server's user can enter. In /tmp, anybody may have created
    /// one with this name, so an existing one is checked, never taken over.
    fn make_private_dir(&self, dir: &Path) -> anyhow::Result<()> {
        let uid = self.owner.as_ref().map_or(Uid::effective(), |user| user.uid);
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => {
                if let Some(user) = &self.owner {
                    chown(dir, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create {}", dir.display()));
            }
        }
        let found = fs::symlink_metadata(dir)?;
        ensure!(
            found.is_dir() && found.uid() == uid.as_raw() && found.mode() & 0o077 == 0,
            "{} exists but is not a private directory of user id {uid}; remove it",
            dir.display()
        );
        Ok(())
    }
}

/// The user to run the server as: ourselves or, if we are root, the owner of the existing data,
/// else `postgres`, else `nobody`.
fn choose_owner(root: &Path) -> anyhow::Result<Option<User>> {
    let me = Uid::effective();
    let cluster = root.join("pg");
    let there = fs::metadata(&cluster).or_else(|_| fs::metadata(root));
    let uid = there.map_or(me, |found| Uid::from_raw(found.uid()));
    if !me.is_root() {
        if cluster.exists() && uid != me {
            let name = User::from_uid(uid)?.map_or_else(|| uid.to_string(), |user| user.name);
            bail!(
                "{} belongs to user `{name}`; run oncelog as that user or as root, \
                 or use another --data-dir",
                cluster.display()
            );
        }
        return Ok(None);
    }
    if !uid.is_root() {
        let owner = User::from_uid(uid)?.with_context(|| {
            format!("{} belongs to user id {uid}, which has no name", root.display())
        })?;
        return Ok(Some(owner));
    }
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some(user));
        }
    }
    bail!(
        "PostgreSQL does not run as root, and neither user `postgres` nor `nobody` exists; run \
         oncelog as an ordinary user, or use your own server with --database-url"
    );
}

/// Every existing directory on the path must be accessible to the user.
fn check_reach(root: &Path, user: &User) -> anyhow::Result<()> {
    let existing = root.ancestors().find_map(|dir| dir.canonicalize().ok());
    for dir in existing.iter().flat_map(|dir| dir.ancestors()) {
        let found = fs::metadata(dir)?;
        let enter = if found.uid() == user.uid.as_raw() {
            0o100
        } else if found.gid() == user.gid.as_raw() {
            0o010
        } else {
            0o001
        };
        ensure!(
            found.mode() & enter != 0,
            "PostgreSQL does not run as root, so it would run as user `{}`, who cannot enter {} \
             (on the way to {}); use another --data-dir, such as --data-dir /var/lib/oncelog, \
             or run oncelog as an ordinary user",
            user.name,
            dir.display(),
            root.display()
        );
    }
    Ok(())
}

fn take_lock(root: &Path, owner: Option<&User>) -> anyhow::Result<File> {
    let path = root.join("oncelog.lock");
    let lock = open_owned(&path, owner)?;
    let begun = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(TryLockError::WouldBlock) => bail!(
                "the data directory {} is in use by another oncelog; stop it, or use another \
                 --data-dir",
                root.display()
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
}

/// Opens a file for appending, owned by the server's user, so that oncelog can later run as that
/// user, and closed to all others: the server's log may quote rows.
fn open_owned(path: &Path, owner: Option<&User>) -> anyhow::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    // whatever the umask
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    if let Some(user) = owner {
        std::os::unix::fs::fchown(&file, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
    }
    Ok(file)
}

/// Runs a program to its end with `input`; on failure the error has its output.
fn run(mut command: std::process::Command, input: &str) -> anyhow::Result<()> {
    let name = format!("{:?}", command.get_program());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it ended early, its exit status and words say more than a broken pipe.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "cannot create the PostgreSQL cluster ({}):\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
