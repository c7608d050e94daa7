//! The replicas that are asked, all over one database.

use std::sync::atomic::{AtomicU64, Ordering};

use oncelog::broker::ServiceConfig;
use serde_json::{Value, json};

use super::{
    call::{Body, Request},
    want::Reply,
};
use crate::support::{
    self,
    http::{Answer, Server, Setup, shared_keys, token},
};

pub struct Fleet {
    servers: Vec<Server>,
    tenants: AtomicU64,
}

/// A tenant of its own for every run.
pub struct Client<'a> {
    fleet: &'a Fleet,
    token: String,
}

impl Fleet {
    pub async fn start(replicas: usize) -> Self {
        let options = support::database().await;
        let mut servers = Vec::new();
        for _ in 0..replicas {
            // little patience with gaps, and snapshots all the time
            let settings =
                ServiceConfig { gap_wait_ms: 10, snapshot_rows: 10, ..ServiceConfig::default() };
            let setup = Setup { keys: shared_keys(), settings, ..Setup::default() };
            servers.push(Server::on(&options, setup).await);
        }
        Self { servers, tenants: AtomicU64::new(0) }
    }

    pub fn replicas(&self) -> usize {
        self.servers.len()
    }

    pub fn client(&self) -> Client<'_> {
        let tenant = format!("tenant-{}", self.tenants.fetch_add(1, Ordering::Relaxed));
        Client { fleet: self, token: token(&tenant, "produce consume group admin operator") }
    }
}

impl Client<'_> {
    pub async fn send(&self, replica: usize, request: &Request) -> Reply {
        let servers = &self.fleet.servers;
        let server = &servers[replica % servers.len()];
        let mut call = server.call(request.method, &request.path).token(&self.token);
        if let Some(key) = &request.key {
            call = call.header("idempotency-key", key);
        }
        if request.wants_lines {
            call = call.header("accept", "application/x-ndjson");
        }
        let answer = match &request.body {
            Body::None => call,
            Body::Json(body) => call.json(body),
            Body::Lines(lines) => call.ndjson(lines),
        };
        reply(&answer.await)
    }
}

fn reply(answer: &Answer) -> Reply {
    let is_lines = answer.header("content-type") == Some("application/x-ndjson");
    let body = if is_lines {
        let line = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        let lines: Vec<Value> = answer.text().lines().map(line).collect();
        let named = answer.headers.keys().filter(|name| name.as_str().starts_with("oncelog-"));
        let headers: serde_json::Map<String, Value> =
            named.map(|n| (n.to_string(), json!(answer.header(n.as_str())))).collect();
        json!({"lines": lines, "headers": headers})
    } else if answer.body.is_empty() {
        Value::Null
    } else {
        answer.json()
    };
    Reply { status: answer.status, body }
}
