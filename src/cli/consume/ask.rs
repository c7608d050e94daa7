//! Requests for several partitions: by URL, or by body if the cursor is too long for a URL.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, header::ACCEPT};
use serde_json::{Map, Value, json};

use super::MAX_LIMIT;
use crate::cli::client::{ANSWER_TIMEOUT, Client};

/// The longest cursor that a server accepts in a URL, in bytes.
const MAX_URL_CURSOR_BYTES: usize = 8 << 10;

/// The parameters of a request for records.
pub struct Ask<'a> {
    /// The parameter that sets the position, and its value.
    pub from: Option<(&'a str, &'a str)>,
    pub at_most: u64,
    pub wait: Duration,
}

impl Ask<'_> {
    /// Builds a GET of `path`, or a POST to `by_body` if the cursor is long.
    pub fn request(&self, client: &Client, path: &[&str], by_body: &[&str]) -> RequestBuilder {
        let limit = self.at_most.clamp(1, MAX_LIMIT);
        let wait_ms = u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX);
        let request = if self.is_long() {
            let mut body = Map::from_iter([
                ("limit".to_owned(), json!(limit)),
                ("wait_ms".to_owned(), json!(wait_ms)),
            ]);
            body.extend(self.from.map(|(what, from)| (what.to_owned(), json!(from))));
            client.request(Method::POST, by_body, &[]).json(&Value::Object(body))
        } else {
            let (limit, wait_ms) = (limit.to_string(), wait_ms.to_string());
            let mut query = vec![("limit", limit.as_str()), ("wait_ms", wait_ms.as_str())];
            query.extend(self.from);
            client.request(Method::GET, path, &query)
        };
        request.header(ACCEPT, "application/json").timeout(ANSWER_TIMEOUT + self.wait)
    }

    fn is_long(&self) -> bool {
        self.from.is_some_and(|(_, from)| from.len() > MAX_URL_CURSOR_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_cursor_is_no_part_of_the_url() {
        for (length, is_long) in [(MAX_URL_CURSOR_BYTES, false), (MAX_URL_CURSOR_BYTES + 1, true)] {
            let cursor = "A".repeat(length);
            let from = Some(("cursor", cursor.as_str()));
            let ask = Ask { from, at_most: 7, wait: Duration::ZERO };
            assert_eq!(ask.is_long(), is_long);
        }
        assert!(!Ask { from: None, at_most: 7, wait: Duration::ZERO }.is_long());
    }
}
