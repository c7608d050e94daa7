//! Values that are made of files, and again when the files change: certificates and keys are
//! replaced under a running server.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use sha2::{Digest, Sha256};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use crate::telemetry;

/// How often the files are read. Watching them instead would miss how Kubernetes replaces them: by
/// another target of a symbolic link.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// Larger files are something else.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The value of the files as they were when they last made sense.
pub struct Reloaded<T>(watch::Receiver<Arc<T>>);

impl<T> Clone for Reloaded<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Reads the files, and follows them from then on, while anything holds the value. `label` is
    /// what they are in the metric. Err says which file is wrong, and why.
    pub fn start(
        label: &'static str,
        files: Vec<PathBuf>,
        parse: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let first = read(&files)?;
        let (sender, receiver) = watch::channel(Arc::new(parse(&first)?));
        let (mut last, files) = (digest(&first), Arc::new(files));
        tokio::spawn(async move {
            let mut ticks = interval(READ_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! { _ = ticks.tick() => {}, () = sender.closed() => return }
                let files = files.clone();
                let Ok(contents) = spawn_blocking(move || read(&files)).await else { return };
                let seen = match &contents {
                    Ok(contents) => digest(contents),
                    Err(why) => digest(&[why.clone().into()]),
                };
                if seen == last {
                    continue;
                }
                last = seen;
                let outcome = match contents.and_then(|contents| parse(&contents)) {
                    Ok(value) => {
                        tracing::info!(files = label, "changed files were read, and are in use");
                        sender.send_replace(Arc::new(value));
                        "ok"
                    }
                    Err(why) => {
                        tracing::error!(
                            files = label,
                            "changed files cannot be used; what was read before stays in use: {why}"
                        );
                        "failed"
                    }
                };
                metrics::counter!(telemetry::RELOADS_TOTAL, "files" => label, "outcome" => outcome)
                    .increment(1);
            }
        });
        Ok(Self(receiver))
    }

    /// A value that no file has.
    pub fn constant(value: T) -> Self {
        Self(watch::channel(Arc::new(value)).1)
    }

    pub fn current(&self) -> Arc<T> {
        self.0.borrow().clone()
    }
}

fn read(files: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    let read = |path: &PathBuf| {
        let size_bytes = std::fs::metadata(path)?.len();
        if size_bytes > MAX_FILE_BYTES {
            return Err(io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")));
        }
        std::fs::read(path)
    };
    let named = |path: &PathBuf| {
        read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    files.iter().map(named).collect()
}

/// Of the contents only this is kept: they may hold a private key.
fn digest(contents: &[Vec<u8>]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for content in contents {
        digest.update((content.len() as u64).to_be_bytes());
        digest.update(content);
    }
    digest.finalize().into()
}
