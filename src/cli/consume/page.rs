//! Requests for records, and what their responses have in common.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, header::ACCEPT};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use crate::cli::client::{ANSWER_TIMEOUT, Client};

const MAX_LIMIT: u64 = 10_000;
/// The longest cursor that a server accepts in a URL, in bytes.
const MAX_URL_CURSOR_BYTES: usize = 8 << 10;

/// The parameters of a request for records.
pub struct PageRequest<'a> {
    /// The parameter that sets the position, and its value.
    pub from: Option<(&'a str, &'a str)>,
    pub limit: u64,
    pub wait: Duration,
}

impl PageRequest<'_> {
    /// Builds a GET of `path`, or a POST to `body_path` if the cursor is too long for a URL.
    pub fn build(&self, client: &Client, path: &[&str], body_path: &[&str]) -> RequestBuilder {
        let limit = self.limit.clamp(1, MAX_LIMIT);
        let wait_ms = u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX);
        let request = if self.is_long() {
            let mut body = Map::from_iter([
                ("limit".to_owned(), json!(limit)),
                ("wait_ms".to_owned(), json!(wait_ms)),
            ]);
            body.extend(self.from.map(|(name, value)| (name.to_owned(), json!(value))));
            client.request(Method::POST, body_path, &[]).json(&Value::Object(body))
        } else {
            let (limit, wait_ms) = (limit.to_string(), wait_ms.to_string());
            let mut query = vec![("limit", limit.as_str()), ("wait_ms", wait_ms.as_str())];
            query.extend(self.from);
            client.request(Method::GET, path, &query)
        };
        request.header(ACCEPT, "application/json").timeout(ANSWER_TIMEOUT + self.wait)
    }

    fn is_long(&self) -> bool {
        self.from.is_some_and(|(_, value)| value.len() > MAX_URL_CURSOR_BYTES)
    }
}

/// The records of a response, as they are.
#[derive(Deserialize)]
pub struct Records<'a> {
    #[serde(borrow)]
    pub records: Vec<&'a RawValue>,
}

/// Where a record lies. A record has no topic or partition if the request names it.
#[derive(Deserialize)]
pub struct RecordLocation {
    pub topic: Option<String>,
    pub partition: Option<i32>,
    pub offset: i64,
}

impl RecordLocation {
    pub fn of(record: &RawValue) -> serde_json::Result<Self> {
        serde_json::from_str(record.get())
    }
}

/// Where records were read.
pub struct Place<'a> {
    pub topic: &'a str,
    /// That of records without one.
    pub partition: Option<i32>,
    /// Whether lines of JSON get that partition.
    pub is_tagged: bool,
}

/// Writes a record as it is, or with its partition in front.
pub fn write_line(lines: &mut Vec<u8>, record: &RawValue, place: &Place<'_>) {
    let text = record.get();
    let text = match place.partition.filter(|_| place.is_tagged) {
        Some(partition) => {
            lines.extend_from_slice(format!("{{\"partition\":{partition},").as_bytes());
            text.get(1..).unwrap_or_default()
        }
        None => text,
    };
    lines.extend_from_slice(text.as_bytes());
    lines.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_cursor_is_no_part_of_the_url() {
        for (length, is_long) in [(MAX_URL_CURSOR_BYTES, false), (MAX_URL_CURSOR_BYTES + 1, true)] {
            let cursor = "A".repeat(length);
            let from = Some(("cursor", cursor.as_str()));
            let request = PageRequest { from, limit: 7, wait: Duration::ZERO };
            assert_eq!(request.is_long(), is_long);
        }
        assert!(!PageRequest { from: None, limit: 7, wait: Duration::ZERO }.is_long());
    }

    #[test]
    fn tagged_lines_begin_with_their_partition() {
        let raw = |record: &str| RawValue::from_string(record.to_owned()).unwrap();
        let mut lines = Vec::new();
        let place = |is_tagged| Place { topic: "t", partition: Some(3), is_tagged };
        write_line(&mut lines, &raw("{\"offset\":1,\"value\":1}"), &place(true));
        write_line(&mut lines, &raw("{\"offset\":2,\"value\":{}}"), &place(false));
        let want = "{\"partition\":3,\"offset\":1,\"value\":1}\n{\"offset\":2,\"value\":{}}\n";
        assert_eq!(String::from_utf8(lines).unwrap(), want);
    }
}
