//! The content of `/metrics`, from the real program in its own process, so that no other test
//! affects the numbers.

mod document;
mod secrets;
mod tools;
mod topics;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};

use oncelog::{
    model::{Code, Name},
    telemetry::{CONSUMER_LAG_SECONDS, Kind, METRICS, Metric, OTHERS, Values},
};
use serde_json::json;
use sqlx::postgres::PgConnectOptions;

use crate::support::{
    self,
    http::SECRET,
    proxy::Proxy,
    served::{Client, Process, until},
};

type Labels = BTreeMap<String, String>;

/// A scrape: values by name and labels.
#[derive(Debug)]
pub struct Scrape(BTreeMap<(String, Labels), f64>);

impl Scrape {
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let line = |line: &str| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = match series.split_once('{') {
                None => (series, Labels::new()),
                Some((name, labels)) => (name, self::labels(labels.strip_suffix('}').unwrap())),
            };
            ((name.to_owned(), labels), value.parse().unwrap())
        };
        Self(lines.map(line).collect())
    }

    /// The sum of the series of a name that have these labels; there must be one.
    #[track_caller]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |all: &Labels| labels.iter().all(|(k, v)| all.get(*k).is_some_and(|a| a == v));
        let found = self.0.iter().filter(|((found, all), _)| found == name && has(all));
        let values: Vec<f64> = found.map(|(_, value)| *value).collect();
        assert!(!values.is_empty(), "no {name} with {labels:?}");
        values.iter().sum()
    }

    /// Names with labels, without the bounds of buckets.
    pub fn series(&self) -> BTreeSet<(String, Labels)> {
        self.0.keys().filter(|(_, labels)| !labels.contains_key("le")).cloned().collect()
    }
}

/// `a="b",c="d"`; no value here has a quote or a comma.
fn labels(text: &str) -> Labels {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap();
        let value = value.strip_prefix('"').unwrap().strip_suffix('"').unwrap();
        (name.to_owned(), value.to_owned())
    };
    text.split(',').map(pair).collect()
}

/// Every metric of the table is there, with its labels, and with values of their sets; histograms
/// with labels and lags in seconds only if there was something to measure.
pub fn is_the_table(scrape: &Scrape) {
    for metric in METRICS {
        let suffix = if metric.kind == Kind::Histogram { "_count" } else { "" };
        let name = format!("{}{suffix}", metric.name);
        let found: Vec<&Labels> =
            scrape.0.keys().filter(|(found, _)| *found == name).map(|(_, labels)| labels).collect();
        let may_be_absent = metric.kind == Kind::Histogram && !metric.labels.is_empty()
            || metric.name == CONSUMER_LAG_SECONDS;
        assert!(!found.is_empty() || may_be_absent, "{name} is not shown");
        for labels in found {
            let announced: BTreeSet<&str> = metric.labels.iter().map(|label| label.name).collect();
            let shown: BTreeSet<&str> = labels.keys().map(String::as_str).collect();
            assert_eq!(shown, announced, "{name}");
            for label in metric.labels {
                let value = &labels[label.name];
                assert!(is_of(label.values, value), "{name}: {}={value}", label.name);
            }
        }
    }
    // and nothing else
    for ((name, _), _) in scrape.0.iter().filter(|((name, _), _)| name.starts_with("oncelog_")) {
        let is = |metric: &Metric| match metric.kind {
            Kind::Histogram => ["_bucket", "_sum", "_count"]
                .iter()
                .any(|suffix| name.strip_suffix(suffix) == Some(metric.name)),
            Kind::Counter | Kind::Gauge => name == metric.name,
        };
        assert!(METRICS.iter().any(is), "{name} is not in the table");
    }
}

fn is_of(values: Values, value: &str) -> bool {
    match values {
        Values::These(_) | Values::Codes => {
            values.listed().is_some_and(|values| values.contains(&value))
        }
        Values::CodeOrNone => {
            value == "none" || Code::ALL.iter().any(|code| code.as_str() == value)
        }
        Values::Operations => {
            let api = serde_json::to_value(oncelog::http::openapi()).unwrap();
            let items = api["paths"].as_object().unwrap().values();
            let mut operations = items.flat_map(|item| item.as_object().unwrap().values());
            value == "unmatched" || operations.any(|operation| operation["operationId"] == value)
        }
        Values::Statuses => value.parse().is_ok_and(|status: u16| (200..600).contains(&status)),
        Values::Lanes => value.parse().is_ok_and(|lane: usize| lane < 1_000),
        Values::Version => value == env!("CARGO_PKG_VERSION"),
        Values::Names => value == OTHERS || Name::parse(value).is_ok(),
    }
}

/// One replica, with settings of its own.
pub struct Measured {
    pub process: Process,
    pub client: Client,
    pub proxy: Proxy,
}

impl Measured {
    pub async fn start(options: &PgConnectOptions, settings: &[(&str, &str)]) -> Self {
        let proxy = Proxy::start(options, 1).await;
        let reached = proxy.options(options);
        let (port, database) = (reached.get_port(), reached.get_database().unwrap());
        let url =
            format!("postgres://postgres:hunter2@127.0.0.1:{port}/{database}?sslmode=disable");
        let mut environment = vec![
            ("ONCELOG_TOKEN_HS256_SECRET", SECRET),
            ("ONCELOG_DATABASE_URL", &url),
            ("ONCELOG_LANES", "2"),
        ];
        environment.extend(settings);
        let process = Process::serve(&["--listen", "127.0.0.1:0"], &environment).await;
        let client = process.client(Some(token("default")));
        Self { process, client, proxy }
    }

    pub async fn scrape(&self) -> Scrape {
        scrape(&self.client).await
    }

    /// Waits until a sum is this.
    pub async fn until(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        until(&format!("{name} {labels:?} to be {value}"), async || {
            (self.scrape().await.sum(name, labels) == value).then_some(())
        })
        .await;
    }
}

pub async fn scrape(client: &Client) -> Scrape {
    Scrape::parse(&client.admin().get("/metrics").await.text)
}

/// A token for all of a tenant.
pub fn token(tenant: &str) -> String {
    let mut claims = support::http::claims(tenant, "admin produce consume group");
    claims["iss"] = json!("oncelog");
    support::http::signed(&claims, SECRET)
}
