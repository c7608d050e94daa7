//! `oncelog status`: what a server is, whether it is well, and what it does now.

mod metrics;

use std::{
    io::{IsTerminal, stdout},
    time::Duration,
};

use anyhow::bail;
use clap::Args;
use reqwest::RequestBuilder;
use serde_json::{Value, json, value::RawValue};
use tokio::time::{Instant, sleep};

use self::metrics::Metrics;
use super::{
    block_on,
    client::{Client, Failure},
    common::{counted, seconds_in_words},
    output::{items, print},
    server::{AdminFlags, ServerFlags},
};
use crate::telemetry;

/// How long one request may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long rates are measured.
const MEASURED: Duration = Duration::from_secs(1);
/// The most groups of which the lag is added up: each takes a request.
const MAX_GROUPS: usize = 100;
/// The most open transactions that are counted.
const MAX_TRANSACTIONS: u64 = 10_000;
/// The operations of monitoring, which `status` itself calls.
const MONITORING: [&str; 3] =
    ["operation=\"livez\"", "operation=\"readyz\"", "operation=\"metrics\""];

pub(super) const EXAMPLE: &str = "\
It asks /readyz and /metrics, which need no token, and counts the topics, groups and open
transactions that the token gives access to. /metrics is on the admin listener, where there is one:
--admin-url, ONCELOG_ADMIN_URL or the context says where. Rates are measured for a second. The exit
code is 0 if the server is ready, else 1. On a terminal the output is text; piped, or with --json,
it is one JSON object.

Examples:
  oncelog status
  oncelog status --admin-url 127.0.0.1:8081
  oncelog status --url log.example:8080 --json | jq .ready";

#[derive(Args)]
pub(super) struct StatusFlags {
    /// Print JSON also on a terminal
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    admin: AdminFlags,
}

pub(super) fn run(flags: StatusFlags) -> anyhow::Result<()> {
    block_on(async {
        let prints_json = flags.json || !stdout().is_terminal();
        let admin = ServerFlags { admin: Some(flags.admin), ..flags.server.clone() };
        let client = Client::new(flags.server, Some(Duration::ZERO))?;
        let admin = Client::new(admin, Some(Duration::ZERO))?;
        let report = report(&client, &admin).await;
        let text = if prints_json { format!("{report}\n") } else { describe(&report) };
        print(text.as_bytes())?;
        match report["reason"].as_str() {
            Some(reason) => bail!("not ready: {reason}"),
            None => Ok(()),
        }
    })
}

/// `admin` is a client of the listener with the metrics.
async fn report(client: &Client, admin: &Client) -> Value {
    let reason = answer(client, client.service("readyz")).await.err();
    let mut report = json!({"url": client.base.as_str(), "ready": reason.is_none(),
        "reason": reason});
    if let Ok(metrics) = scrape(admin).await {
        let now = chrono::Utc::now().timestamp() as f64;
        let started = metrics.sum("process_start_time_seconds");
        report["version"] = json!(metrics.label(telemetry::BUILD_INFO, "version"));
        report["uptime_s"] = json!(started.map(|started| (now - started).max(0.0).round() as u64));
    }
    if reason.is_none() {
        let topics = topics(client).await;
        // without token keys a server has no other database than its own
        report["embedded"] = json!((!client.has_token && topics.is_ok()).then_some(true));
        report["topics"] = or_why(topics);
        report["groups"] = or_why(groups(client).await);
        report["transactions"] = or_why(transactions(client).await);
        report["load"] = or_why(measured(admin).await);
    }
    report
}

/// What happens in a second.
async fn measured(admin: &Client) -> Result<Value, String> {
    let (begun, first) = (Instant::now(), scrape(admin).await?);
    sleep(MEASURED).await;
    let last = scrape(admin).await?;
    Ok(load(&first, &last, begun.elapsed()))
}

fn or_why(found: Result<Value, String>) -> Value {
    found.unwrap_or_else(|why| json!({"error": why}))
}

/// The body of an answer, or why there is none.
async fn answer(client: &Client, request: RequestBuilder) -> Result<Vec<u8>, String> {
    match client.send(request.timeout(ANSWER_TIMEOUT)).await {
        Ok(answer) => Ok(answer.body.to_vec()),
        Err(Failure::GaveUp { last, advice, .. }) => Err(format!("{last}{advice}")),
        Err(failure) => Err(failure.to_string()),
    }
}

/// The metrics, or why they are kept from us.
async fn scrape(admin: &Client) -> Result<Metrics, String> {
    Ok(Metrics::new(&answer(admin, admin.service("metrics")).await?))
}

/// Passes the items of a list to `each` until it returns false.
async fn list(
    client: &Client,
    collection: &str,
    filter: &[(&str, &str)],
    mut each: impl FnMut(Value) -> bool,
) -> Result<(), String> {
    let each =
        |item: &RawValue| -> anyhow::Result<bool> { Ok(each(serde_json::from_str(item.get())?)) };
    client.list(&[collection], filter, each).await.map_err(|error| {
        match error.downcast::<Failure>() {
            Ok(Failure::GaveUp { last, .. }) => last,
            Ok(failure) => failure.to_string(),
            Err(error) => format!("{error:#}"),
        }
    })
}

async fn topics(client: &Client) -> Result<Value, String> {
    let (mut count, mut partitions) = (0, 0);
    let add = |topic: Value| {
        count += 1;
        partitions += topic["partition_count"].as_u64().unwrap_or_default();
        true
    };
    list(client, "topics", &[], add).await?;
    Ok(json!({"count": count, "partitions": partitions}))
}

async fn groups(client: &Client) -> Result<Value, String> {
    let (mut count, mut members, mut names) = (0, 0, Vec::new());
    let add = |group: Value| {
        count += 1;
        members += group["member_count"].as_u64().unwrap_or_default();
        if names.len() < MAX_GROUPS {
            names.extend(group["group"].as_str().map(str::to_owned));
        }
        true
    };
    list(client, "groups", &[], add).await?;
    let mut lag = 0;
    for name in &names {
        let describe = client.request(reqwest::Method::GET, &["groups", name], &[]);
        // it may be gone by now
        let Ok(body) = answer(client, describe).await else { continue };
        let group: Value = serde_json::from_slice(&body).unwrap_or_default();
        let lags = items(&group["partitions"]).iter().filter_map(|place| place["lag"].as_u64());
        lag += lags.sum::<u64>();
    }
    Ok(json!({"count": count, "members": members, "lag_records": lag,
        "lag_is_whole": names.len() == count}))
}

async fn transactions(client: &Client) -> Result<Value, String> {
    let mut counts = json!({});
    for state in ["ongoing", "prepared"] {
        let mut count = 0;
        let add = |_| {
            count += 1;
            count < MAX_TRANSACTIONS
        };
        list(client, "transactions", &[("state", state)], add).await?;
        counts[state] = json!(count);
    }
    Ok(counts)
}

/// What happened between two scrapes, a second.
fn load(first: &Metrics, last: &Metrics, elapsed: Duration) -> Value {
    let rate = |name: &str| {
        let sum = |metrics: &Metrics| metrics.sum_without(name, &MONITORING).unwrap_or_default();
        // it has begun again meanwhile
        let count = (sum(last) - sum(first)).max(0.0);
        (count / elapsed.as_secs_f64() * 10.0).round() / 10.0
    };
    let now = |name: &str| last.sum_without(name, &MONITORING).unwrap_or_default().max(0.0) as u64;
    json!({
        "requests_per_s": rate(telemetry::HTTP_REQUESTS_TOTAL),
        "problems_per_s": rate(telemetry::ERRORS_TOTAL),
        "requests_in_flight": now(telemetry::HTTP_REQUESTS_IN_FLIGHT),
        "waiting_reads": now(telemetry::WAITING_READS),
        "connections": now(telemetry::HTTP_CONNECTIONS),
        "appended_records_per_s": rate(telemetry::APPENDED_RECORDS_TOTAL),
        "read_records_per_s": rate(telemetry::READ_RECORDS_TOTAL),
    })
}

fn describe(report: &Value) -> String {
    let word = |member: &str| report[member].as_str().unwrap_or_default();
    let mut text = match report["version"].as_str() {
        Some(version) => format!("oncelog {version} at {}", word("url")),
        None => word("url").to_owned(),
    };
    if let Some(uptime_s) = report["uptime_s"].as_u64() {
        text += &format!(", running for {}", seconds_in_words(uptime_s));
    }
    if report["embedded"] == true {
        text += ", with its own PostgreSQL and without tokens";
    }
    text += if report["ready"] == true { "\nready\n" } else { "\nNOT READY\n" };
    for member in ["topics", "groups", "transactions"] {
        let found = &report[member];
        if found.is_null() {
            continue;
        }
        let line = match found["error"].as_str() {
            Some(why) => format!("not shown: {why}"),
            None => line(member, found),
        };
        text += &format!("{member:14}{line}\n");
    }
    let load = &report["load"];
    if let Some(why) = load["error"].as_str() {
        text += &format!("requests      not shown: {why}\n");
    } else if !load.is_null() {
        let number = |member: &str| load[member].to_string();
        text += &format!(
            "requests      {}/s, {} in flight, of which {} wait for records; {}/s with a problem\n\
             records       {}/s appended, {}/s read\nconnections   {}\n",
            number("requests_per_s"),
            number("requests_in_flight"),
            number("waiting_reads"),
            number("problems_per_s"),
            number("appended_records_per_s"),
            number("read_records_per_s"),
            number("connections")
        );
    }
    text
}

fn line(member: &str, found: &Value) -> String {
    let count = |member: &str| found[member].as_u64().unwrap_or_default();
    match member {
        "topics" => {
            format!("{}, with {}", count("count"), counted(count("partitions"), "partition"))
        }
        "groups" => {
            let part = if found["lag_is_whole"] == true {
                String::new()
            } else {
                format!(" in the first {MAX_GROUPS}")
            };
            format!(
                "{}, with {}, {} behind{part}",
                count("count"),
                counted(count("members"), "member"),
                counted(count("lag_records"), "record")
            )
        }
        _ => {
            let more = |count| if count == MAX_TRANSACTIONS { " or more" } else { "" };
            let (ongoing, prepared) = (count("ongoing"), count("prepared"));
            format!("{ongoing}{} ongoing, {prepared}{} prepared", more(ongoing), more(prepared))
        }
    }
}
