//! The README's shell lines, in order, in a fresh directory on a fresh server: each succeeds, and
//! prints what stands below it.

use std::{path::Path, process::Command};

use crate::support::{self, served::Process};

/// A command, and the answer that a comment below it shows.
struct Line {
    command: String,
    shown: Option<String>,
}

/// The lines of all blocks of shell, but for those that build.
fn lines(readme: &str) -> Vec<Line> {
    let blocks = readme.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut lines: Vec<Line> = Vec::new();
    let mut open = String::new();
    for text in blocks.flat_map(str::lines) {
        if open.is_empty()
            && let Some(shown) = text.strip_prefix("# ")
        {
            lines.last_mut().unwrap().shown = Some(shown.to_owned());
            continue;
        }
        open += text;
        open.push('\n');
        let is_whole = open.matches('\'').count().is_multiple_of(2) && !text.ends_with('\\');
        if is_whole {
            lines.push(Line { command: std::mem::take(&mut open), shown: None });
        }
    }
    lines.retain(|line| !line.command.starts_with("make "));
    lines
}

/// As a shell runs them one after the other, in what is set by those before.
fn script(lines: &[Line], url: &str) -> String {
    let address = url.strip_prefix("http://").unwrap();
    let one = |line: &Line| {
        let command = line.command.trim().replace("localhost:8080", address);
        // who follows goes on until Ctrl-C
        let is_following = command.split(" #").next().unwrap().contains("--follow");
        let command = match is_following {
            true => format!("timeout -s INT 5 {command}\n[ $? -eq 124 ]"),
            false => command,
        };
        format!("{command}\nstatus=$?; echo; echo \"@@ $status\"\n")
    };
    lines.iter().map(one).collect()
}

fn is_as_shown(answer: &str, shown: &str) -> bool {
    let mut rest = answer;
    shown.split("...").enumerate().all(|(index, part)| match (index, rest.find(part)) {
        (0, Some(1..)) | (_, None) => false,
        (_, Some(at)) => {
            rest = &rest[at + part.len()..];
            true
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shell_line_works_in_order() {
    let dir = support::open_dir();
    let process = Process::embedded("127.0.0.1:0", &dir.path().join("data")).await;
    let lines = lines(include_str!("../../../README.md"));
    assert!(lines.len() >= 15 && lines.iter().filter(|line| line.shown.is_some()).count() >= 5);
    let program = Path::new(env!("CARGO_BIN_EXE_oncelog")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let home = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script(&lines, &process.url)).current_dir(home.path());
    shell.env("HOME", home.path()).env("PATH", path).env("ONCELOG_URL", &process.url);
    let output = tokio::task::spawn_blocking(move || shell.output().unwrap()).await.unwrap();
    let (text, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let answers: Vec<&str> = text.split("@@ ").collect();
    assert_eq!(answers.len(), lines.len() + 1, "{text}\n{errors}");
    for (index, line) in lines.iter().enumerate() {
        let status = answers[index + 1].lines().next().unwrap();
        let answer = answers[index].split_once('\n').map_or("", |(_, answer)| answer);
        let answer = if index == 0 { answers[0] } else { answer };
        println!("$ {}{answer}", line.command);
        assert_eq!(status, "0", "{}{answer}\n{errors}", line.command);
        if let Some(shown) = &line.shown {
            assert!(is_as_shown(answer.trim(), shown), "{}{answer}\n{shown}", line.command);
        }
    }
}
