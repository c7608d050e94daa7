//! Server processes that an earlier run left in the data directory.

use std::{fs, io, path::Path, process::Command};

use nix::{errno::Errno, sys::signal::kill, unistd::Pid};

use super::PORT;

/// The postmaster in the cluster's pid file.
pub(super) fn recorded(cluster: &Path) -> Option<Pid> {
    let file = fs::read_to_string(cluster.join("postmaster.pid")).ok()?;
    file.lines().next()?.trim().parse().ok().map(Pid::from_raw)
}

/// The processes that really are servers of this cluster. A pid alone proves nothing, as it may
/// have been reused. Every server process has the cluster as its working directory.
pub(super) fn servers(cluster: &Path, recorded: Pid) -> Vec<Pid> {
    if !has_proc() {
        let pid = recorded.to_string();
        let described = Command::new("ps").args(["-o", "command=", "-p", &pid]).output();
        let is_ours = described.is_ok_and(|output| {
            let words = String::from_utf8_lossy(&output.stdout);
            words.contains("postgres") && words.contains(&*cluster.to_string_lossy())
        });
        return if is_ours { vec![recorded] } else { Vec::new() };
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            let dir = fs::read_link(entry.path().join("cwd")).ok()?;
            (name.trim_end() == "postgres" && dir == cluster).then(|| Pid::from_raw(pid))
        })
        .collect()
}

/// Removes a pid file whose process exists but is not a server of this cluster. PostgreSQL would
/// take it for a running server: in a restarted container small pids come back as our threads, and
/// a zombie may never be reaped. Call it only if [`servers`] found none.
pub(super) fn forget(cluster: &Path, recorded: Pid) -> io::Result<()> {
    let exists = kill(recorded, None) != Err(Errno::ESRCH);
    // Without /proc we would not see surviving backends, which that file protects us from.
    if exists && has_proc() { remove(&cluster.join("postmaster.pid")) } else { Ok(()) }
}

/// Removes a dead server's socket and its lock, which also names a pid. The directory is ours
/// alone.
pub(super) fn forget_socket(socket_dir: &Path) -> io::Result<()> {
    let socket = format!(".s.PGSQL.{PORT}");
    remove(&socket_dir.join(format!("{socket}.lock")))?;
    remove(&socket_dir.join(socket))
}

/// Ignores files that the dying server itself has removed.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn has_proc() -> bool {
    Path::new("/proc/self/cwd").exists()
}
