//! Events that look like those of a shop. Each is different, has exactly the requested size,
//! compresses like real ones, and costs little more than a copy.

use std::{
    fmt::Write,
    sync::{Arc, LazyLock},
};

use anyhow::Context;
use serde::Deserialize;
use serde_json::json;

use super::connection::Server;

const WORDS: &str = "order invoice shipped returned customer basket discount voucher express standard parcel \
    Hamburg Lisbon Nairobi Osaka Toronto warehouse carrier confirmed pending refunded payment card transfer \
    blue green small large cotton leather steel 3-pack 250ml replaced damaged late signed neighbour door gate \
    please leave with reception call before delivery gift wrapped second attempt address corrected morning";
const TEXT_BYTES: usize = 64 << 10;

/// Random words, from which events cut their texts.
static TEXT: LazyLock<String> = LazyLock::new(|| {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut random = Random(1);
    let mut text = String::with_capacity(TEXT_BYTES + 16);
    while text.len() < TEXT_BYTES {
        text += words[random.below(words.len())];
        text.push(' ');
    }
    text
});

/// Marsaglia's xorshift: good enough to make events differ, and nearly free.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }
}

/// The producer of an append.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct BenchSession {
    pub producer_id: i64,
    pub epoch: i64,
}

impl BenchSession {
    /// Opens a session without a transactional id.
    pub async fn open(server: &Arc<Server>) -> anyhow::Result<Self> {
        let opened = server.call("POST", "/sessions", Some(&json!({}))).await;
        serde_json::from_value(opened.context("cannot open a session")?)
            .context("unexpected session")
    }
}

/// The shape of the requests of one connection.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub records: usize,
    pub record_bytes: usize,
    pub keyed: bool,
    /// Every record has an id; this is the prefix of the run.
    pub ids_of: Option<u64>,
}

/// Writes the requests of one connection.
pub(super) struct Requests {
    head: String,
    shape: Shape,
    random: Random,
    /// The id of the next event: the connection's number, and a counter.
    next_id: u64,
    envelope: String,
    request: String,
}

impl Requests {
    pub fn new(server: &Server, path: &str, connection: usize, shape: Shape) -> Self {
        let next_id = (connection as u64 + 1) << 40;
        // xorshift needs a few rounds to mix a seed with few bits
        let mut random = Random(next_id | 0x9e37_79b9);
        for _ in 0..8 {
            random.below(2);
        }
        Self {
            head: server.json_head("POST", path),
            shape,
            random,
            next_id,
            envelope: String::new(),
            request: String::new(),
        }
    }

    /// Builds the next request, with new events.
    pub fn next(&mut self, position: Option<(BenchSession, u64)>) -> &str {
        self.envelope.clear();
        self.envelope.push('{');
        if let Some((BenchSession { producer_id, epoch }, sequence)) = position {
            // writing to a String cannot fail
            let _ = write!(
                self.envelope,
                "\"producer_id\":{producer_id},\"epoch\":{epoch},\"sequence\":{sequence},"
            );
        }
        self.envelope += "\"records\":[";
        let Shape { records, .. } = self.shape;
        let body_bytes = self.envelope.len() + records * self.record_length() + records - 1 + 2;
        self.request.clear();
        self.request += &self.head;
        let _ = write!(self.request, "{body_bytes}\r\n\r\n");
        self.request += &self.envelope;
        self.write_records();
        self.request += "]}";
        &self.request
    }

    /// New events as the items of a JSON array.
    pub fn records(&mut self) -> &str {
        self.request.clear();
        self.write_records();
        &self.request
    }

    fn write_records(&mut self) {
        for record in 0..self.shape.records {
            if record > 0 {
                self.request.push(',');
            }
            self.record();
        }
    }

    /// The last request, for a retry.
    pub fn last(&self) -> &str {
        &self.request
    }

    fn record_length(&self) -> usize {
        let key = if self.shape.keyed { "\"key\":\"account-0000\",".len() } else { 0 };
        let id = self.shape.ids_of.map_or(0, |_| "\"id\":\"\",".len() + 2 * 16);
        "{\"value\":}".len() + key + id + self.shape.record_bytes
    }

    fn record(&mut self) {
        let account = self.random.below(10_000);
        let cents = 100_000 + self.random.below(900_000);
        let id = self.next_id;
        self.next_id += 1;
        self.request.push('{');
        if self.shape.keyed {
            let _ = write!(self.request, "\"key\":\"account-{account:04}\",");
        }
        if let Some(run) = self.shape.ids_of {
            let _ = write!(self.request, "\"id\":\"{run:016x}{id:016x}\",");
        }
        self.request += "\"value\":";
        let from = self.request.len();
        let _ = write!(
            self.request,
            "{{\"id\":\"{id:016x}\",\"account\":\"account-{account:04}\",\"amount\":{}.{:02},\"text\":\"",
            cents / 100,
            cents % 100
        );
        let mut room = from + self.shape.record_bytes - self.request.len() - "\"}".len();
        while room > 0 {
            let start = self.random.below(TEXT_BYTES / 2);
            let text = &TEXT[start..start + room.min(TEXT_BYTES / 2)];
            self.request += text;
            room -= text.len();
        }
        self.request += "\"}}";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::{Value, value::RawValue};

    use super::*;

    #[derive(Deserialize)]
    struct Record<'a> {
        key: Option<String>,
        id: Option<String>,
        #[serde(borrow)]
        value: &'a RawValue,
    }

    #[test]
    fn requests_say_their_length_and_events_have_their_size() {
        let server = Server::new(&"http://127.0.0.1:1".parse().unwrap(), None).unwrap();
        let mut values = HashSet::new();
        for (records, record_bytes, keyed, ids_of) in [
            (1, 80, false, None),
            (1, 160, true, Some(7)),
            (100, 160, false, Some(u64::MAX)),
            (2, 100_000, true, None),
        ] {
            let shape = Shape { records, record_bytes, keyed, ids_of };
            let mut requests = Requests::new(&server, "/p", values.len(), shape);
            for sequence in [9, 10, 1_000_000] {
                let session = BenchSession { producer_id: 7, epoch: 1 };
                let request = requests.next(Some((session, sequence))).to_owned();
                assert_eq!(request, requests.last());
                let (head, body) = request.split_once("\r\n\r\n").unwrap();
                assert!(head.starts_with("POST /v1/p HTTP/1.1\r\nHost: 127.0.0.1:1\r\n"), "{head}");
                assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
                let parsed: Value = serde_json::from_str(body).unwrap();
                assert_eq!(parsed["sequence"], sequence);
                let raw = body.split_once("\"records\":").unwrap().1.strip_suffix('}').unwrap();
                let found: Vec<Record> = serde_json::from_str(raw).unwrap();
                assert_eq!(found.len(), records);
                for Record { key, id, value } in found {
                    assert_eq!((key.is_some(), id.is_some()), (keyed, ids_of.is_some()));
                    assert_eq!(value.get().len(), record_bytes);
                    assert!(values.insert(value.get().to_owned()));
                }
            }
        }
    }
}
