//! The command line: the real program, as people and scripts call it.

mod bench;
mod commands;
mod consume;
mod consume_group;
mod contexts;
mod groups;
mod produce;
mod sessions;
mod status;
mod tenants;
mod terminal;
mod tokens;
mod transactions;

use std::{
    io::Write,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

/// What a command left behind.
#[derive(Debug)]
pub struct Output {
    code: Option<i32>,
    pub stdout: String,
    stderr: String,
}

impl Output {
    /// The lines of its output, which are JSON; it must have succeeded.
    #[track_caller]
    pub fn lines(&self) -> Vec<Value> {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What it said; it must have ended with this code.
    #[track_caller]
    pub fn failed(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        &self.stderr
    }
}

/// The program with these arguments, of a user who has set nothing.
pub fn oncelog(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncelog"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ONCELOG_")) {
        command.env_remove(name);
    }
    // where no context is
    command.args(arguments).env_remove("DATABASE_URL").env("XDG_CONFIG_HOME", "/nonexistent");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The same as a client of a server.
fn client(url: &str, arguments: &[&str]) -> Command {
    let mut command = oncelog(arguments);
    command.env("ONCELOG_URL", url);
    command
}

/// Runs it to its end, which leaves the tests' own threads to others.
pub async fn run(mut command: Command) -> Output {
    let child = command.spawn().unwrap();
    ended(child).await
}

/// Runs it with this input.
async fn run_with(mut command: Command, input: impl Into<Vec<u8>>) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.into());
    // a command that ends early does not read all of it
    let feed = std::thread::spawn(move || stdin.write_all(&input).is_ok());
    let output = ended(child).await;
    feed.join().unwrap();
    output
}

async fn ended(child: Child) -> Output {
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await;
    let output = output.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Output { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}
