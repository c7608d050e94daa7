//! The examples in Python, TypeScript and Go, ready to be run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{process::Command, sync::OnceCell};

use super::root;

/// So little is needed: each file has fewer.
const LINES: usize = 60;

#[derive(Clone, Copy)]
pub enum Language {
    Python,
    TypeScript,
    Go,
}

/// Beside what cargo has built.
fn target() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_oncelog")).parent().unwrap().parent().unwrap()
}

async fn succeeds(command: &mut Command, needs: &str) -> String {
    let output = command.current_dir(root()).output().await;
    let output = output.unwrap_or_else(|error| panic!("{error}: see {needs}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} (see {needs}): {stdout}{stderr}", output.status);
    stdout
}

/// Checks the types, and leaves JavaScript that any Node.js from 18 on runs.
async fn typescript(example: &str) -> PathBuf {
    static COMPILED: OnceCell<()> = OnceCell::const_new();
    let home = target().join("typescript");
    COMPILED
        .get_or_init(async || {
            let mut tsc = Command::new("node");
            tsc.arg(home.join("node_modules/typescript/bin/tsc"))
                .args(["--project", "examples", "--typeRoots"])
                .arg(home.join("node_modules/@types"))
                .arg("--outDir")
                .arg(&home);
            succeeds(&mut tsc, "scripts/ensure-node examples typescript").await;
        })
        .await;
    home.join(example).with_extension("js")
}

/// Nothing is downloaded, and what the compiler has made of the standard library is kept.
fn go(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("GOCACHE", target().join("go/cache"))
        .env("GOPATH", target().join("go/path"))
        .envs([("CGO_ENABLED", "0"), ("GOPROXY", "off"), ("GOTOOLCHAIN", "local")]);
    command
}

async fn compiled_go(example: &str) -> PathBuf {
    static COMPILED: OnceCell<()> = OnceCell::const_new();
    let home = target().join("go");
    COMPILED
        .get_or_init(async || {
            let needs = "scripts/ensure-go";
            let untidy = succeeds(&mut go("gofmt", &["-l", "examples"]), needs).await;
            assert_eq!(untidy, "", "run gofmt -w on these");
            let worker: &[&str] = &["examples/worker.go", "examples/client.go"];
            for (name, files) in [("worker", worker), ("function", &["examples/function.go"])] {
                succeeds(go("go", &["vet"]).args(files), needs).await;
                let mut build = go("go", &["build", "-o"]);
                succeeds(build.arg(home.join(name)).args(files), needs).await;
            }
        })
        .await;
    home.join(example)
}

impl Language {
    /// A command that runs this example, and is killed when it is dropped.
    pub async fn command(self, example: &str) -> Command {
        let mut command = match self {
            Self::Python => {
                let mut command = Command::new("python3");
                command.arg(root().join("examples").join(example).with_extension("py"));
                command
            }
            Self::TypeScript => {
                let mut command = Command::new("node");
                command.arg(typescript(example).await);
                command
            }
            Self::Go => Command::new(compiled_go(example).await),
        };
        command.env_remove("ONCELOG_TOKEN").stdout(Stdio::null()).kill_on_drop(true);
        command
    }
}

#[test]
fn each_is_under_60_lines() {
    for example in ["worker", "function", "client"] {
        for extension in ["py", "ts", "go"] {
            let path = root().join("examples").join(example).with_extension(extension);
            if example == "client" && extension != "go" {
                continue;
            }
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            assert!(lines < LINES, "{} has {lines} lines", path.display());
        }
    }
}
