//! Validates the fields of a record: each arrives here as the bytes the client sent.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::de::Error;
use serde_json::error::Category;

use super::{
    OnDuplicate,
    line::{Lines, Record, Text, found},
    value,
};
use crate::model::{
    Code, MAX_INTEGER, Timestamp, ValidationErrors, settings::Key, validation::MAX_TEXT_BYTES,
};

/// Longest `id` of a record, in bytes.
pub const MAX_ID_BYTES: usize = 1024;
/// Instants whose year has four digits in UTC: others have no RFC 3339 form.
const WRITABLE_MS: std::ops::RangeInclusive<i64> = -62_167_219_200_000..=253_402_300_799_999;

/// A record's fields as a read answers them.
pub(super) const READ_RECORD_FIELDS: &[&str] = &[
    "value",
    "value_base64",
    "key",
    "id",
    "timestamp",
    "headers", // the client's
    "offset",
    "partition",
    "topic",
    "appended_at",
    "transaction_id", // the log's
];
/// The client's own.
pub(super) const RECORD_FIELDS: &[&str] = READ_RECORD_FIELDS.split_at(6).0;

/// State that all visitors of one request share.
pub(super) struct Reader<'a> {
    /// The fields that a record may have here.
    pub record_fields: &'static [&'static str],
    /// All values are (`value::is_plain`).
    is_plain: bool,
    pub lines: Lines,
    /// The record being read; cleared and reused.
    pub record: Record<'a>,
    /// A buffer to validate base64.
    scratch: Vec<u8>,
    /// The part of the body that contains the records, for pointers; empty for the body itself.
    pub at: &'a str,
    /// The current position in it.
    pub record_index: Option<usize>,
    pub field: Option<&'static str>,
    /// Why parsing stopped, unless serde_json stopped it.
    refused: Option<ValidationErrors>,
}

impl<'a> Reader<'a> {
    pub fn new(
        text: &'a str,
        traceparent: Option<&str>,
        record_fields: &'static [&'static str],
    ) -> Self {
        Self {
            record_fields,
            is_plain: value::is_plain(text.as_bytes()),
            // Lines are hardly ever longer than what they were made of.
            lines: Lines::new(text.len(), traceparent),
            record: Record::default(),
            scratch: Vec::new(),
            at: "",
            record_index: None,
            field: None,
            refused: None,
        }
    }

    /// The pointer to the current position, or to `below` in it.
    fn pointer(&self, below: Option<&str>) -> String {
        let mut pointer = match self.record_index {
            Some(index) => format!("{}/records/{index}", self.at),
            None => self.at.to_owned(),
        };
        for part in self.field.into_iter().chain(below) {
            // what is beyond is not shown, and need not be copied
            let part = &part[..part.floor_char_boundary(MAX_TEXT_BYTES)];
            pointer.push('/');
            pointer.push_str(&part.replace('~', "~0").replace('/', "~1"));
        }
        pointer
    }

    /// Records the validation error; the serde error only unwinds the parser.
    pub fn refuse<E: Error>(&mut self, below: Option<&str>, detail: String) -> E {
        self.refused = Some(ValidationErrors::at(self.pointer(below), detail));
        E::custom("refused")
    }

    /// Same, for records that exceed the absolute limit of this setting.
    fn refuse_all<E: Error>(&mut self, key: Key) -> E {
        (self.record_index, self.field) = (None, Some("records"));
        let setting = key.setting();
        let detail = format!("too large: {} is at most {}", setting.name, setting.maximum);
        let (pointer, limit) = (self.pointer(None), setting.maximum);
        self.refused =
            Some(ValidationErrors::too_large(pointer, detail, Code::BatchTooLarge, limit));
        E::custom("refused")
    }

    /// Why parsing stopped in `line` of the input.
    pub fn explain(&mut self, error: &serde_json::Error, line: usize) -> ValidationErrors {
        if let Some(refused) = self.refused.take() {
            return refused;
        }
        let message = plain(error);
        let detail = match (error.classify(), message.rsplit_once(", expected ")) {
            (Category::Data, Some((found, expected))) => {
                format!("expected {expected}, found {}", kind(found))
            }
            _ => {
                let message = message.replace("EOF while parsing", "it ends inside");
                let of = if self.at.is_empty() { "" } else { " of the array" };
                format!("not JSON at line {line} column {}{of}: {message}", error.column())
            }
        };
        ValidationErrors::at(self.pointer(None), detail)
    }

    /// An optional string; null counts as absent.
    fn text<E: Error>(&mut self, token: &'a str) -> Result<Option<Text<'a>>, E> {
        if token == "null" {
            return Ok(None);
        }
        Text::read(token).map(Some).map_err(|detail| self.refuse(None, detail))
    }

    /// An optional integer; null counts as absent.
    pub fn integer<E: Error>(&mut self, token: &str) -> Result<Option<i64>, E> {
        if token == "null" {
            return Ok(None);
        }
        let digits = token.bytes().all(|byte| byte.is_ascii_digit());
        match token.parse() {
            Ok(number @ 0..=MAX_INTEGER) if digits => Ok(Some(number)),
            _ => {
                let what = found(token);
                let detail = format!("expected an integer from 0 to {MAX_INTEGER}, found {what}");
                Err(self.refuse(None, detail))
            }
        }
    }

    /// The `on_duplicate` option; null counts as absent.
    pub fn on_duplicate<E: Error>(&mut self, token: &str) -> Result<OnDuplicate, E> {
        match token {
            "null" | r#""skip""# => Ok(OnDuplicate::Skip),
            r#""refuse""# => Ok(OnDuplicate::Refuse),
            token => {
                let detail = format!("expected \"skip\" or \"refuse\", found {}", found(token));
                Err(self.refuse(None, detail))
            }
        }
    }

    /// Takes a field of a record, except its headers.
    pub fn take<E: Error>(&mut self, field: &str, token: &'a str) -> Result<(), E> {
        match field {
            // Null is a value like any other.
            "value" => match value::check(token, self.is_plain) {
                Ok(()) => self.record.value = Some(token),
                Err(detail) => return Err(self.refuse(None, detail)),
            },
            "value_base64" => self.record.value_base64 = self.base64(token)?,
            "key" => self.record.key = self.text(token)?,
            "id" => self.record.id = self.id(token)?,
            "timestamp" => self.record.timestamp = self.timestamp(token)?,
            _ => {}
        }
        Ok(())
    }

    fn base64<E: Error>(&mut self, token: &'a str) -> Result<Option<Text<'a>>, E> {
        let text = self.text(token)?;
        if let Some(text) = &text {
            self.scratch.clear();
            if let Err(error) = STANDARD.decode_vec(text.text.as_bytes(), &mut self.scratch) {
                return Err(self.refuse(None, format!("invalid standard base64: {error}")));
            }
        }
        Ok(text)
    }

    fn id<E: Error>(&mut self, token: &'a str) -> Result<Option<Text<'a>>, E> {
        let id = self.text(token)?;
        match &id {
            Some(text) if !(1..=MAX_ID_BYTES).contains(&text.text.len()) => {
                Err(self.refuse(None, format!("an id must be 1 to {MAX_ID_BYTES} bytes")))
            }
            _ => Ok(id),
        }
    }

    fn timestamp<E: Error>(&mut self, token: &'a str) -> Result<Option<Cow<'a, str>>, E> {
        let Some(Text { text, .. }) = self.text(token)? else { return Ok(None) };
        match Timestamp::parse(&text) {
            Ok(_) if is_canonical(&text) => Ok(Some(text)),
            Ok(instant) if WRITABLE_MS.contains(&instant.0) => Ok(Some(instant.to_string().into())),
            Ok(_) => Err(self.refuse(None, "the year must be 0000 to 9999 in UTC".to_owned())),
            Err(detail) => Err(self.refuse(None, detail.to_owned())),
        }
    }

    /// Sorts the headers, because a map has no order and a repeat may send them in another one.
    pub fn end_headers<E: Error>(&mut self) -> Result<(), E> {
        self.record.has_headers = true;
        let headers = &mut self.record.headers;
        headers.sort_unstable_by(|(a, _), (b, _)| a.text.cmp(&b.text));
        let twice = headers.windows(2).find_map(|pair| match pair {
            [(a, _), (b, _)] if a.text == b.text => Some(a.text.clone().into_owned()),
            _ => None,
        });
        match twice {
            Some(name) => Err(self.refuse(Some(&name), "given twice".to_owned())),
            None => Ok(()),
        }
    }

    pub fn end_record<E: Error>(&mut self) -> Result<(), E> {
        let detail = match (&self.record.value, &self.record.value_base64) {
            (Some(_), Some(_)) => "give either `value` or `value_base64`, not both",
            (None, None) => "missing: give `value` or `value_base64`",
            _ => return self.lines.push(&self.record).map_err(|key| self.refuse_all(key)),
        };
        Err(self.refuse(None, detail.to_owned()))
    }
}

/// Whether a valid instant already has its stored form: most do and need no rewriting.
fn is_canonical(instant: &str) -> bool {
    let bytes = instant.as_bytes();
    let at = |index| bytes.get(index).copied();
    // A leap second is answered as the second after it.
    let leap = bytes.get(17..19) == Some(b"60");
    bytes.len() == 24
        && at(10) == Some(b'T')
        && at(19) == Some(b'.')
        && at(23) == Some(b'Z')
        && !leap
}

/// Translates serde's names of JSON types.
fn kind(serde: &str) -> &'static str {
    const KINDS: [(&str, &str); 5] = [
        ("sequence", "an array"),
        ("map", "an object"),
        ("string", "a string"),
        ("boolean", "a boolean"),
        ("null", "null"),
    ];
    let serde = serde.strip_prefix("invalid type: ").unwrap_or(serde);
    KINDS.iter().find(|(name, _)| serde.starts_with(name)).map_or("a number", |(_, kind)| kind)
}

/// serde_json's message without its position.
fn plain(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rsplit_once(" at line ") {
        Some((message, _)) => message.to_owned(),
        None => message,
    }
}
