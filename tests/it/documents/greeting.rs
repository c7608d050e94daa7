//! What a newcomer sees first: the lines that the program prints work as they are, as often as
//! one likes.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::support;

/// Every line of the output that is JSON: the answers, in order.
fn answers(script: &str) -> Vec<Value> {
    let output = Command::new("sh").args(["-eu", "-c", script]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{text}"))).collect()
}

/// Stopped in order, also when the test fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

#[test]
fn the_lines_to_try_work() {
    let dir = support::open_dir();
    let mut server = Server(
        Command::new(env!("CARGO_BIN_EXE_oncelog"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(dir.path().join("data"))
            .env_remove("DATABASE_URL")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("Try it:")).expect("a greeting");
    let end = "/partitions/0/records; echo";
    let mut script = String::new();
    for line in lines.by_ref() {
        script.push_str(&format!("{line}\n"));
        if line.ends_with(end) {
            break;
        }
    }
    assert!(script.contains(end), "{script}");
    for run in 0..3 {
        let answers = answers(&script);
        let [topic, first, again, read] = answers.as_slice() else { panic!("{answers:?}") };
        assert_eq!(topic["topic"], json!("orders"), "{topic}");
        let place = json!([{"partition": 0, "offset": run}]);
        assert_eq!((&first["offsets"], &first["duplicate"]), (&place, &json!(false)), "{first}");
        assert_eq!((&again["offsets"], &again["duplicate"]), (&place, &json!(true)), "{again}");
        assert_eq!(first["appended_at"], again["appended_at"]);
        let records = read["records"].as_array().unwrap();
        assert_eq!(records.len(), run + 1);
        let last = records.last().unwrap();
        assert_eq!((&last["offset"], &last["key"]), (&json!(run), &json!("customer-7")));
        assert_eq!(last["value"]["total"], json!(12.5));
    }
}
