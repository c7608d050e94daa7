//! Real tools read what is shown: `make check-metrics`, which installs them.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
};

use oncelog::telemetry::METRICS;
use serde_json::{Value, json};

use super::{is_the_table, scrape};
use crate::support::{
    self,
    served::{Client, Process, partition_path, until},
};

/// Some of everything; answers how many records were appended.
async fn traffic(client: &Client) -> usize {
    client.put_topic("orders", 2).await;
    let session = client.post("/v1/sessions", &json!({"transactional_id": "p"})).await.ok(201);
    let numbered = |sequence: i64| {
        json!({"producer_id": session["producer_id"], "epoch": 0, "sequence": sequence,
            "records": [{"value": sequence}, {"value": "two"}, {"value": "three"}]})
    };
    let path = partition_path("orders", 0);
    for sequence in 0..10 {
        client.post(&path, &numbered(sequence)).await.ok(200);
    }
    client.post(&path, &numbered(9)).await.ok(200);
    client.post(&path, &numbered(99)).await.ok(409);
    client.read("orders", 0, "offset=0").await.ok(200);
    client.read("orders", 1, "offset=0&wait_ms=10").await.ok(200);
    client.read("orders", 0, "offset=1000").await.ok(416);
    client.get("/nowhere").await.ok(404);
    30
}

fn promtool(arguments: &[&str], input: &str) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool: see scripts/ensure-prometheus");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    println!("promtool {arguments:?}: {} {said}", output.status);
    assert!(output.status.success(), "{said}");
    if arguments == ["check", "metrics"] {
        assert_eq!(said, "");
    }
}

#[tokio::test]
#[ignore = "needs Prometheus: make check-metrics"]
async fn promtool_has_nothing_to_complain_of() {
    let dir = support::open_dir();
    let process = Process::embedded("127.0.0.1:0", &dir.path().join("data")).await;
    let client = Client::new(&process.url, None);
    traffic(&client).await;
    let answer = client.get("/metrics").await;
    let media = answer.headers["content-type"].to_str().unwrap();
    assert_eq!(media, "text/plain; version=0.0.4; charset=utf-8");
    println!("{} lines of metrics", answer.text.lines().count());
    promtool(&["check", "metrics"], &answer.text);
    let alerts = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/alerts.yml");
    promtool(&["check", "rules", alerts.to_str().unwrap()], "");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/metrics/alerts_test.yml");
    promtool(&["test", "rules", tests.to_str().unwrap()], "");
}

/// A Prometheus that scrapes; dropped, it is killed.
struct Prometheus {
    child: Child,
    api: String,
    http: reqwest::Client,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(target: &str, dir: &Path) -> Self {
        // between this and Prometheus' own bind somebody else might take the port; then it fails
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let alerts = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/alerts.yml");
        let config = format!(
            "global:\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  evaluation_interval: 200ms\n\
             rule_files: [{alerts:?}]\nscrape_configs:\n  - job_name: oncelog\n    static_configs:\n      \
             - targets: [{target:?}]\n"
        );
        let config_file = dir.join("prometheus.yml");
        fs::write(&config_file, config).unwrap();
        let log = fs::File::create(dir.join("log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config_file.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("tsdb").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus: see scripts/ensure-prometheus");
        let api = format!("http://127.0.0.1:{port}/api/v1");
        Self { child, api, http: reqwest::Client::new() }
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Option<Value> {
        let mut url = reqwest::Url::parse(&format!("{}/{path}", self.api)).unwrap();
        url.query_pairs_mut().extend_pairs(query);
        self.http.get(url).send().await.ok()?.json().await.ok()
    }

    /// The one value of a query, once it is this.
    async fn until(&self, query: &str, value: &str) {
        let what = format!("{query} to be {value}");
        until(&what, async || {
            let answer = self.get("query", &[("query", query)]).await?;
            let results = answer["data"]["result"].as_array()?;
            (results.len() == 1 && results[0]["value"][1] == value).then_some(())
        })
        .await;
        println!("Prometheus: {what}: it is");
    }
}

#[tokio::test]
#[ignore = "needs Prometheus: make check-metrics"]
async fn a_prometheus_sees_what_was_done() {
    let dir = support::open_dir();
    let process = Process::embedded("127.0.0.1:0", &dir.path().join("data")).await;
    let client = Client::new(&process.url, None);
    let records = traffic(&client).await;
    let shown = scrape(&client).await;
    is_the_table(&shown);
    let prometheus = Prometheus::start(process.url.strip_prefix("http://").unwrap(), dir.path());
    prometheus.until("up{job=\"oncelog\"}", "1").await;
    prometheus.until("sum(oncelog_appended_records_total)", &records.to_string()).await;
    prometheus.until("sum(oncelog_appends_total{outcome=\"duplicate\"})", "1").await;
    let gaps = "sum(oncelog_appends_total{code=\"out_of_order_sequence\"})";
    prometheus.until(gaps, "1").await;
    // a rate, once it was scraped twice: it goes on while it is looked at
    client.append("orders", 1, &[json!(1)]).await;
    prometheus.until("sum(oncelog_appended_records_total)", "31").await;
    prometheus.until("sum(rate(oncelog_appended_records_total[1m])) > bool 0", "1").await;
    // it takes the types as they are meant
    let metadata = prometheus.get("metadata", &[]).await.unwrap();
    let series = shown.series();
    let is_shown = |name: &str| series.iter().any(|(found, _)| found.starts_with(name));
    for metric in METRICS.iter().filter(|metric| is_shown(metric.name)) {
        let kind = &metadata["data"][metric.name][0]["type"];
        let meant = format!("{:?}", metric.kind).to_lowercase();
        assert_eq!(kind, &json!(meant), "{}", metric.name);
    }
    // every alert is evaluated, and the healthy server raises none
    until("the alerts to be evaluated", async || {
        let rules = prometheus.get("rules", &[]).await?;
        let rules = rules["data"]["groups"][0]["rules"].as_array()?.clone();
        let healthy = |rule: &Value| rule["health"] == "ok" && rule["state"] == "inactive";
        (rules.len() >= 10 && rules.iter().all(healthy)).then_some(())
    })
    .await;
}
