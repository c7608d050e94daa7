//! `oncelog bench`: what it reports, and that it fails when it should.

use reqwest::Method;
use serde_json::{Value, json};

use super::{client, oncelog, run};
use crate::support::served::Served;

/// Nobody listens there.
const NOBODY: &str = "http://127.0.0.1:9";
const BRIEF: [&str; 5] = ["--duration-s", "0.2", "--warmup-s", "0", "--json"];

/// One brief run; what it printed.
async fn bench(url: &str, arguments: &[&str]) -> Value {
    let output = run(client(url, &[&["bench"], arguments, &BRIEF].concat())).await;
    let mut lines = output.lines();
    assert_eq!(lines.len(), 1, "{}", output.stdout);
    lines.remove(0)
}

fn number(report: &Value, pointer: &str) -> f64 {
    let found = report.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no {pointer} in {report}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_workload_reports_and_leaves_nothing_behind() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    let stay = "heartbeat --groups 6 --members 5 --session-timeout-ms 6000 --partitions 7";
    let stay: Vec<&str> = stay.split(' ').collect();
    let table: [(&[&str], &str); 8] = [
        (&["append", "--connections", "4"], "append"),
        (
            &["append", "--connections", "3", "--unsequenced", "--records-per-request", "7"],
            "append",
        ),
        (&["append", "--scope", "topic", "--partitions", "3", "--connections", "2"], "append"),
        (&["read", "--events", "2500"], "page"),
        (&["wake", "--rate", "50"], "send_to_arrival"),
        (&["wake", "--rate", "50", "--readers", "20"], "answer_to_arrival"),
        (&["session", "--connections", "2"], "open_and_append"),
        (&stay, "heartbeat"),
    ];
    for (arguments, latency) in table {
        let report = bench(url, arguments).await;
        assert_eq!(report["workload"], arguments[0]);
        assert_eq!(report["errors"], json!({}), "{report}");
        for of in ["p50_us", "p99_us", "max_us"] {
            number(&report, &format!("/latencies/{latency}/{of}"));
        }
        for of in ["/requests", "/events", "/events_per_s", "/client_cpu_s"] {
            number(&report, of);
        }
        match arguments[0] {
            "read" => assert!(number(&report, "/whole_passes") >= 1.0 && report["stored"] == 2500),
            "heartbeat" => assert_eq!(report.pointer("/latencies/join/count"), Some(&30.into())),
            _ => {
                let check = &report["check"];
                assert_eq!(check["stored"], check["acknowledged"], "{report}");
                assert!(number(check, "/stored") > 0.0 && check["unresolved"] == 0, "{report}");
            }
        }
    }
    let topics = served.client.get("/v1/topics").await.ok(200);
    assert_eq!(topics["topics"], json!([]));
}

/// Both of two brokers are asked, and a topic that was named stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_named_stays_and_is_counted_from_where_it_stood() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    let arguments = ["append", "--topic", "t", "--connections", "2", "--url", url, "--url", url];
    let first = bench(url, &arguments).await;
    let second = bench(url, &arguments).await;
    assert_eq!((&first["servers"], &second["servers"]), (&2.into(), &2.into()));
    let topic = served.client.get("/v1/topics/t").await.ok(200);
    let stored = number(&topic, "/partitions/0/high_watermark");
    assert_eq!(stored, number(&first, "/check/stored") + number(&second, "/check/stored"));
}

#[tokio::test]
async fn what_cannot_be_measured_is_a_failure() {
    let nobody = run(client(NOBODY, &[&["bench", "append"], &BRIEF[..]].concat())).await;
    let stderr = nobody.failed(1);
    assert!(stderr.contains("127.0.0.1:9") && stderr.contains("refused"), "{stderr}");
    assert_eq!(nobody.stdout, "");
    let table: [(&[&str], &str); 3] = [
        (&["append", "--url", "https://127.0.0.1:9"], "http://"),
        (&["append", "--record-bytes", "10"], "80"),
        (&["append", "--duration-s", "9999"], "seconds"),
    ];
    for (arguments, words) in table {
        let output = run(oncelog(&[&["bench"], arguments].concat())).await;
        assert!(output.failed(2).contains(words), "{}", output.stderr);
    }
}

/// A topic with a limit of its own refuses what is larger: the run says so, and fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_counted_and_fail_the_run() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    let settings = json!({"partition_count": 1, "settings": {"max_record_bytes": 100}}).to_string();
    let headers = [("content-type", "application/json")];
    let made = served.client.send(Method::PUT, "/v1/topics/small", &headers, Some(settings)).await;
    made.unwrap().ok(201);
    let arguments = ["bench", "append", "--topic", "small", "--connections", "1"];
    let output = run(client(url, &[&arguments, &BRIEF[..]].concat())).await;
    let stderr = output.failed(1);
    assert!(stderr.contains("too_large"), "{stderr}");
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let errors = report["errors"].as_object().unwrap();
    assert!(errors.iter().any(|(code, count)| code.ends_with("too_large") && count != 0));
    assert_eq!(report["check"]["stored"], 0);
}
