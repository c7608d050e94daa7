//! Stored lines: a record as canonical JSON on one line, and the digest of all lines.

use std::borrow::Cow;

use memchr::{memchr, memchr2};
use xxhash_rust::xxh3::Xxh3;

use super::{Batch, Line};
use crate::model::{
    dedup::{DedupKey, id_key},
    partitioner,
    settings::Key,
};

/// Absolute limits of an append: no setting allows more, so larger requests are refused while they
/// are parsed.
const MAX_RECORDS: i64 = Key::MaxBatchRecords.setting().maximum;
const MAX_LINES_BYTES: i64 = Key::MaxBatchBytes.setting().maximum;

const TRACEPARENT: &str = "traceparent";

/// A JSON string: its characters, and the token that represents them in a line.
#[derive(Debug)]
pub(super) struct Text<'a> {
    pub text: Cow<'a, str>,
    token: Cow<'a, str>,
}

impl<'a> Text<'a> {
    /// Reads a JSON token that must be a string; the error describes what it is instead.
    pub fn read(token: &'a str) -> Result<Self, String> {
        let quoted = token.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let Some(inner) = quoted else {
            return Err(format!("expected a string, found {}", found(token)));
        };
        // Without an escape the token is, byte for byte, what serde_json would write.
        if memchr(b'\\', inner.as_bytes()).is_none() {
            return Ok(Self { text: inner.into(), token: token.into() });
        }
        // The token is valid JSON, so nothing else can be wrong with its escapes.
        let text: String = serde_json::from_str(token)
            .map_err(|_| "invalid Unicode: an escape is half of a surrogate pair".to_owned())?;
        let token = string_token(&text);
        Ok(Self { text: text.into(), token: token.into() })
    }
}

/// Describes a JSON token in words, short enough for an error's detail.
pub(super) fn found(token: &str) -> &str {
    const LONGEST_SHOWN: usize = 32;
    match token.as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        _ if token.len() > LONGEST_SHOWN => "a number",
        _ => token,
    }
}

fn string_token(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A parsed record: exactly one of the first two is set.
#[derive(Debug, Default)]
pub(super) struct Record<'a> {
    /// The client's JSON, with its whitespace.
    pub value: Option<&'a str>,
    pub value_base64: Option<Text<'a>>,
    pub key: Option<Text<'a>>,
    pub id: Option<Text<'a>>,
    /// The stored form: RFC 3339 in UTC with milliseconds.
    pub timestamp: Option<Cow<'a, str>>,
    /// Headers with unique names. Kept between records for its capacity; `has_headers` says whether
    /// it counts.
    pub headers: Vec<(Text<'a>, Text<'a>)>,
    pub has_headers: bool,
}

impl Record<'_> {
    pub fn clear(&mut self) {
        let mut headers = std::mem::take(&mut self.headers);
        headers.clear();
        *self = Self { headers, ..Self::default() };
    }
}

/// Builds lines.
pub(super) struct Lines {
    lines: String,
    records: Vec<Line>,
    ids: Vec<Option<DedupKey>>,
    hasher: Xxh3,
    /// `"traceparent":"..."`
    trace_header: Option<String>,
}

impl Lines {
    /// Reserves `capacity` bytes of lines, not counting added `traceparent` headers.
    pub fn new(capacity: usize, traceparent: Option<&str>) -> Self {
        let capacity = capacity.min(MAX_LINES_BYTES as usize);
        let trace_header =
            traceparent.map(|value| format!("\"{TRACEPARENT}\":{}", string_token(value)));
        // Enough for a single record; a long batch grows as it needs.
        let trace_bytes = trace_header.as_ref().map_or(0, |header| header.len() + 16);
        Self {
            lines: String::with_capacity(capacity + trace_bytes),
            records: Vec::new(),
            ids: Vec::new(),
            hasher: Xxh3::new(),
            trace_header,
        }
    }

    /// The number of lines.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Writes the line of a record, or returns the setting whose absolute limit it exceeds.
    pub fn push(&mut self, record: &Record) -> Result<(), Key> {
        if self.records.len() as i64 == MAX_RECORDS {
            return Err(Key::MaxBatchRecords);
        }
        let start = self.lines.len();
        let content_end = write_line(&mut self.lines, record);
        self.hasher.update(&self.lines.as_bytes()[start..]);
        if let Some(header) = &self.trace_header
            && !record.headers.iter().any(|(name, _)| name.text == TRACEPARENT)
        {
            add_header(&mut self.lines, record, header);
        }
        let key_hash = record.key.as_ref().map(|key| partitioner::key_hash(key.text.as_bytes()));
        if let Some(id) = &record.id {
            self.ids.resize(self.records.len(), None);
            self.ids.push(Some(id_key(&id.text)));
        }
        let (end, content) = (self.lines.len(), content_end - start);
        match (u32::try_from(end), u32::try_from(content)) {
            (Ok(end), Ok(content_bytes)) if i64::from(end) <= MAX_LINES_BYTES => {
                self.records.push(Line { end, content_bytes, key_hash });
                Ok(())
            }
            _ => Err(Key::MaxBatchBytes),
        }
    }

    pub fn finish(mut self) -> Batch {
        let digest = self.hasher.digest128().to_be_bytes();
        if !self.ids.is_empty() {
            self.ids.resize(self.records.len(), None);
        }
        Batch { lines: self.lines, records: self.records, ids: self.ids, digest }
    }
}

/// The field order is fixed, because the digest depends on it: value, key, id, timestamp, headers.
/// Returns where value and key end.
fn write_line(out: &mut String, record: &Record) -> usize {
    if let Some(value) = record.value {
        out.push_str("{\"value\":");
        push_compact(out, value);
    } else if let Some(base64) = &record.value_base64 {
        out.push_str("{\"value_base64\":");
        out.push_str(&base64.token);
    }
    if let Some(key) = &record.key {
        out.push_str(",\"key\":");
        out.push_str(&key.token);
    }
    let content_end = out.len();
    if let Some(id) = &record.id {
        out.push_str(",\"id\":");
        out.push_str(&id.token);
    }
    if let Some(timestamp) = &record.timestamp {
        out.push_str(",\"timestamp\":\"");
        out.push_str(timestamp);
        out.push('"');
    }
    if record.has_headers {
        out.push_str(",\"headers\":{");
        for (i, (name, value)) in record.headers.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            out.push_str(&name.token);
            out.push(':');
            out.push_str(&value.token);
        }
        out.push('}');
    }
    out.push_str("}\n");
    content_end
}

/// Adds a header to the last line, in which headers are the last field, if any.
fn add_header(out: &mut String, record: &Record, header: &str) {
    let (ending, opening) = match (record.has_headers, record.headers.is_empty()) {
        (false, _) => ("}\n", ",\"headers\":{"),
        (true, true) => ("}}\n", ""),
        (true, false) => ("}}\n", ","),
    };
    out.truncate(out.len() - ending.len());
    out.push_str(opening);
    out.push_str(header);
    out.push_str("}}\n");
}

/// Writes valid JSON without whitespace between its tokens.
pub(super) fn push_compact(out: &mut String, json: &str) {
    let bytes = json.as_bytes();
    let nested = matches!(bytes.first(), Some(b'{' | b'['));
    // A single token has nothing between. Elsewhere the smallest byte decides (control characters
    // cannot stand in strings); a minimum, unlike a search, compiles to vector instructions.
    if !nested || bytes.iter().fold(u8::MAX, |least, byte| least.min(*byte)) > b' ' {
        out.push_str(json);
        return;
    }
    let (mut kept, mut at) = (0, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(bytes, at + 1),
            b' ' | b'\n' | b'\r' | b'\t' => {
                out.push_str(&json[kept..at]);
                at += bytes[at..].iter().take_while(|byte| **byte <= b' ').count();
                kept = at;
            }
            _ => at += 1,
        }
    }
    out.push_str(&json[kept..]);
}

/// Returns the position after the closing quote of the string that contains `at`.
pub(super) fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(next) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += next;
        match bytes[at] {
            b'"' => return at + 1,
            // An escape: whatever follows the backslash is no end.
            _ => at += 2,
        }
    }
    bytes.len()
}
