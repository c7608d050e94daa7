//! Requests with the sequences of a session, which fences every older run with the same name.

use anyhow::Context;
use bytes::Bytes;
use reqwest::{Method, RequestBuilder, header::CONTENT_TYPE};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use uuid::Uuid;

use super::Destination;
use crate::{
    cli::client::{Client, Problem},
    model::Name,
};

const NDJSON: &str = "application/x-ndjson";

#[derive(Deserialize)]
struct OpenedSession {
    producer_id: i64,
    epoch: i64,
    next_sequences: Vec<Value>,
}

pub struct ProducerSession {
    path: Vec<String>,
    producer_id: i64,
    epoch: i64,
}

impl ProducerSession {
    /// Opens the session, which fences every older run with the same transactional id. Returns the
    /// next sequence too.
    pub async fn open(
        client: &Client,
        destination: &Destination,
        transactional_id: Option<&Name>,
    ) -> anyhow::Result<(Self, i64)> {
        let mut body = json!({"open_id": Uuid::now_v7()});
        if let Some(name) = transactional_id {
            body["transactional_id"] = name.as_str().into();
        }
        let open = client.request(Method::POST, &["sessions"], &[]).json(&body);
        let opened: OpenedSession =
            client.send(open).await.context("cannot open the session")?.json()?;
        let next_sequence = find_next_sequence(client, destination, &opened).await?;
        let OpenedSession { producer_id, epoch, .. } = opened;
        Ok((Self { path: records_path(destination), producer_id, epoch }, next_sequence))
    }

    pub fn request(&self, client: &Client, sequence: i64, body: Vec<u8>) -> RequestBuilder {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let [producer, epoch, sequence] =
            [self.producer_id, self.epoch, sequence].map(|number| number.to_string());
        let query = [("producer_id", &*producer), ("epoch", &*epoch), ("sequence", &*sequence)];
        let request = client.request(Method::POST, &path, &query);
        request.header(CONTENT_TYPE, NDJSON).body(Bytes::from(body))
    }
}

fn records_path(destination: &Destination) -> Vec<String> {
    let topic = destination.topic.to_string();
    match destination.partition {
        Some(partition) => {
            ["topics", &topic, "partitions", &partition.to_string(), "records"].map(String::from)
        }
        .into(),
        None => ["topics", &topic, "records"].map(String::from).into(),
    }
}

fn is_of(destination: &Destination, item: &Value) -> bool {
    item["topic"] == destination.topic.as_str()
        && item["partition"].as_i64() == destination.partition.map(i64::from)
}

async fn find_next_sequence(
    client: &Client,
    destination: &Destination,
    opened: &OpenedSession,
) -> anyhow::Result<i64> {
    let number = |item: &Value| item["next_sequence"].as_i64().context("no next_sequence");
    if let Some(found) = opened.next_sequences.iter().find(|item| is_of(destination, item)) {
        return number(found);
    }
    // an open lists a thousand scopes, which nearly always are all of them
    let mut found = None;
    if opened.next_sequences.len() >= crate::model::session::MAX_LISTED_SCOPES as usize {
        let path = ["sessions", &opened.producer_id.to_string(), "sequences"];
        let each = |item: &RawValue| {
            found = Some(serde_json::from_str(item.get())?).filter(|item| is_of(destination, item));
            Ok(found.is_none())
        };
        client.list(&path, &[], each).await?;
    }
    found.as_ref().map_or(Ok(0), number)
}

/// Advice to the user about a refusal.
pub fn hint_for(problem: &Problem) -> Option<&'static str> {
    Some(match problem.code.as_str() {
        "producer_fenced" => {
            "another run with the same --transactional-id was started and has fenced this one. If \
             that was not intended, give each producer its own id"
        }
        "out_of_order_sequence" | "unknown_producer_state" => {
            "the server no longer knows the sequences of this run: was the topic recreated? Start \
             with another --transactional-id"
        }
        "unknown_producer" => "the session has expired; start again to open a new one",
        "batch_too_large" | "payload_too_large" => {
            "give a smaller --batch-size; keep --transactional-id only if nothing was stored yet"
        }
        _ => return None,
    })
}
