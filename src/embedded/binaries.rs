//! Finds and runs the PostgreSQL programs.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use nix::unistd::User;

/// The oldest major version that the schema and the statements support.
const OLDEST_MAJOR: u32 = 14;

/// Locations of `<version>/bin` outside of PATH: Debian, RPM, Homebrew (two), Postgres.app, source.
const INSTALLATIONS: &[(&str, &str)] = &[
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql-"),
    ("/opt/homebrew/opt", "postgresql"),
    ("/usr/local/opt", "postgresql"),
    ("/Applications/Postgres.app/Contents/Versions", ""),
    ("/usr/local", "pgsql"),
];

/// One installation of PostgreSQL and the user it runs as.
#[derive(Debug)]
pub(super) struct Binaries {
    pub major: u32,
    dir: PathBuf,
    /// The user to switch to if we are root: PostgreSQL refuses to run as root.
    owner: Option<User>,
    setpriv: Option<PathBuf>,
}

impl Binaries {
    /// Returns the newest installation; an existing cluster pins the major version. `PG_BIN_DIR`
    /// overrides the search.
    pub fn find(pinned: Option<u32>, owner: Option<User>) -> anyhow::Result<Self> {
        let found = match env::var_os("PG_BIN_DIR").filter(|dir| !dir.is_empty()) {
            Some(dir) => vec![installation(Path::new(&dir)).with_context(|| {
                format!("PG_BIN_DIR is {}, which lacks postgres or initdb", dir.display())
            })?],
            None => candidates().iter().filter_map(|dir| installation(dir)).collect(),
        };
        let (major, dir) = choose(found, pinned)?;
        let setpriv = find_setpriv();
        if setpriv.is_none() {
            tracing::info!(
                "setpriv not found: if oncelog is killed, PostgreSQL keeps running until the next \
                 start"
            );
        }
        Ok(Self { major, dir, owner, setpriv })
    }

    /// Builds a command for one of the programs; the kernel interrupts it if the calling thread
    /// ends.
    pub fn command(&self, program: &str) -> Command {
        let program = self.dir.join(program);
        let mut command = match &self.setpriv {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "INT", "--"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        // Neither settings meant for clients nor our secrets are the server's business.
        command.env_clear().envs(env::vars_os().filter(|(name, _)| !is_private(name)));
        command.env("LC_ALL", "C.UTF-8").current_dir("/").stdin(Stdio::null());
        // Of its own group: Ctrl-C must not reach the server before oncelog has drained.
        command.process_group(0);
        if let Some(user) = &self.owner {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        command
    }
}

fn is_private(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("PG") || name.starts_with("ONCELOG_") || name == "DATABASE_URL"
}

fn choose(mut found: Vec<(u32, PathBuf)>, pinned: Option<u32>) -> anyhow::Result<(u32, PathBuf)> {
    found.sort_by_key(|(major, _)| std::cmp::Reverse(*major));
    let installed: Vec<String> = found.iter().map(|(major, _)| major.to_string()).collect();
    let installed = if installed.is_empty() { "none".into() } else { installed.join(", ") };
    match pinned {
        Some(pinned) => found.into_iter().find(|(major, _)| *major == pinned).with_context(|| {
            format!(
                "the data directory was created by PostgreSQL {pinned}, which is not installed \
                     (found: {installed}); install postgresql-{pinned}, set PG_BIN_DIR to its bin \
                     directory, or use another --data-dir"
            )
        }),
        None => match found.into_iter().next() {
            Some(newest) if newest.0 >= OLDEST_MAJOR => Ok(newest),
            _ => bail!(
                "PostgreSQL {OLDEST_MAJOR} or newer is not installed (found: {installed}); install \
                 it (Debian, Ubuntu: apt-get install postgresql), set PG_BIN_DIR to its bin \
                 directory, or use your own server with --database-url"
            ),
        },
    }
}

fn candidates() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        env::var_os("PATH").iter().flat_map(env::split_paths).filter(|d| d.is_absolute()).collect();
    for (base, prefix) in INSTALLATIONS {
        let entries = fs::read_dir(base).into_iter().flatten().flatten();
        dirs.extend(
            entries
                .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
                .map(|entry| entry.path().join("bin")),
        );
    }
    dirs
}

/// The major version and the real directory, if both programs exist. Links are followed:
/// `/usr/local/bin/postgres` often points into the installation that also has `initdb`.
fn installation(dir: &Path) -> Option<(u32, PathBuf)> {
    let postgres = dir.join("postgres").canonicalize().ok()?;
    let dir = postgres.parent()?.to_owned();
    if !dir.join("initdb").is_file() {
        return None;
    }
    let output = Command::new(&postgres).arg("--version").output().ok()?;
    Some((major(&String::from_utf8_lossy(&output.stdout))?, dir))
}

/// `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`, `postgres (PostgreSQL) 19beta1`.
fn major(version: &str) -> Option<u32> {
    let number = version.split_whitespace().nth(2)?;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

/// Finds a `setpriv` that supports `--pdeathsig` (util-linux 2.33; busybox does not).
fn find_setpriv() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join("setpriv")).find(|setpriv| {
        setpriv.is_absolute()
            && Command::new(setpriv)
                .args(["--pdeathsig", "INT", "--", "/bin/true"])
                .stdin(Stdio::null())
                .output()
                .is_ok_and(|output| output.status.success())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_major() {
        assert_eq!(major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(major("postgres (PostgreSQL) 19beta1"), Some(19));
        assert_eq!(major("postgres (EnterpriseDB) x"), None);
        assert_eq!(major(""), None);
    }

    #[test]
    fn takes_the_newest_unless_a_cluster_pins_the_major() {
        let found = || vec![(15, "/a".into()), (17, "/b".into()), (13, "/c".into())];
        assert_eq!(choose(found(), None).unwrap(), (17, "/b".into()));
        assert_eq!(choose(found(), Some(15)).unwrap(), (15, "/a".into()));
        let refusal = choose(found(), Some(18)).unwrap_err().to_string();
        assert!(refusal.contains("created by PostgreSQL 18"), "{refusal}");
        assert!(refusal.contains("found: 17, 15, 13"), "{refusal}");
        let refusal = choose(vec![(13, "/c".into())], None).unwrap_err().to_string();
        assert!(refusal.contains("PostgreSQL 14 or newer is not installed"), "{refusal}");
    }
}
