//! `--format`: a line per record, with kcat's sequences.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::page::Place;
use crate::model::Timestamp;

pub const SEQUENCES: &str = "\
%k key, %v value, %t topic, %p partition, %o offset, %T timestamp in milliseconds, %h headers, \
%n newline, %% percent; \\n, \\t, \\r, \\0, \\\\, \\xHH";

/// A parsed format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Bytes(Vec<u8>),
    Key,
    Value,
    Topic,
    Partition,
    Offset,
    Timestamp,
    Headers,
}

/// A record as a read answers it.
#[derive(Deserialize)]
struct Record<'a> {
    topic: Option<String>,
    partition: Option<i32>,
    offset: i64,
    key: Option<String>,
    /// None also for null.
    #[serde(borrow)]
    value: Option<&'a RawValue>,
    value_base64: Option<String>,
    timestamp: Option<String>,
    appended_at: Option<String>,
    headers: Option<BTreeMap<String, String>>,
}

impl Format {
    /// Parses a format. It ends with a newline, unless it has one or a null byte there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut bytes = Vec::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            let piece = match c {
                '%' => match rest.next() {
                    Some('k') => Piece::Key,
                    Some('v' | 's') => Piece::Value,
                    Some('t') => Piece::Topic,
                    Some('p') => Piece::Partition,
                    Some('o') => Piece::Offset,
                    Some('T') => Piece::Timestamp,
                    Some('h') => Piece::Headers,
                    Some('n') => {
                        bytes.push(b'\n');
                        continue;
                    }
                    Some('%') => {
                        bytes.push(b'%');
                        continue;
                    }
                    other => return Err(unknown('%', other)),
                },
                '\\' => {
                    bytes.push(escaped(&mut rest)?);
                    continue;
                }
                c => {
                    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    continue;
                }
            };
            if !bytes.is_empty() {
                pieces.push(Piece::Bytes(std::mem::take(&mut bytes)));
            }
            pieces.push(piece);
        }
        if !matches!(bytes.last(), Some(b'\n' | 0)) {
            bytes.push(b'\n');
        }
        pieces.push(Piece::Bytes(bytes));
        Ok(Self(pieces))
    }

    /// Writes a record that was read in this place.
    pub fn write(
        &self,
        line: &mut Vec<u8>,
        record: &RawValue,
        place: &Place<'_>,
    ) -> anyhow::Result<()> {
        let record: Record = serde_json::from_str(record.get())?;
        for piece in &self.0 {
            match piece {
                Piece::Bytes(bytes) => line.extend_from_slice(bytes),
                Piece::Key => extend(line, record.key.as_deref().unwrap_or_default()),
                Piece::Value => record.write_value(line)?,
                Piece::Topic => extend(line, record.topic.as_deref().unwrap_or(place.topic)),
                Piece::Partition => {
                    let partition = record.partition.or(place.partition);
                    extend(line, &partition.map(|number| number.to_string()).unwrap_or_default());
                }
                Piece::Offset => extend(line, &record.offset.to_string()),
                Piece::Timestamp => extend(line, &record.timestamp_ms().unwrap_or_default()),
                Piece::Headers => {
                    let headers = record.headers.iter().flatten();
                    let pairs = headers.map(|(name, value)| format!("{name}={value}"));
                    extend(line, &pairs.collect::<Vec<_>>().join(","));
                }
            }
        }
        Ok(())
    }
}

impl Record<'_> {
    /// The producer's timestamp, or that of the append.
    fn timestamp_ms(&self) -> Option<String> {
        let instant = self.timestamp.as_ref().or(self.appended_at.as_ref())?;
        Some(Timestamp::parse(instant).ok()?.0.to_string())
    }

    /// A text without its quotes, bytes as they are, anything else as JSON.
    fn write_value(&self, line: &mut Vec<u8>) -> anyhow::Result<()> {
        match (self.value.map(RawValue::get), &self.value_base64) {
            (Some(text), _) if text.starts_with('"') => {
                extend(line, &serde_json::from_str::<String>(text)?);
            }
            (Some(json), _) => extend(line, json),
            (None, Some(encoded)) => {
                line.extend_from_slice(&BASE64_STANDARD.decode(encoded.as_bytes())?);
            }
            (None, None) => extend(line, "null"),
        }
        Ok(())
    }
}

fn extend(line: &mut Vec<u8>, text: &str) {
    line.extend_from_slice(text.as_bytes());
}

/// The byte of an escape, whose backslash has been read.
fn escaped(rest: &mut std::str::Chars<'_>) -> Result<u8, String> {
    match rest.next() {
        Some('n') => Ok(b'\n'),
        Some('t') => Ok(b'\t'),
        Some('r') => Ok(b'\r'),
        Some('0') => Ok(0),
        Some('\\') => Ok(b'\\'),
        Some('x') => {
            let digit = |c: Option<char>| c.and_then(|c| c.to_digit(16));
            match (digit(rest.next()), digit(rest.next())) {
                (Some(high), Some(low)) => Ok((high << 4 | low) as u8),
                _ => Err(format!("\\x is followed by two hexadecimal digits; known: {SEQUENCES}")),
            }
        }
        other => Err(unknown('\\', other)),
    }
}

fn unknown(lead: char, next: Option<char>) -> String {
    let next = next.map(String::from).unwrap_or_default();
    format!("unknown sequence {lead}{next}; known: {SEQUENCES}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: &str, record: &str) -> String {
        let mut line = Vec::new();
        let record = RawValue::from_string(record.to_owned()).unwrap();
        let place = Place { topic: "orders", partition: Some(3), is_tagged: false };
        Format::parse(format).unwrap().write(&mut line, &record, &place).unwrap();
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn every_sequence_is_written() {
        let record = r#"{"offset":17,"appended_at":"1970-01-01T00:00:01.500Z","key":"k\u00e9",
            "value":{"a": 1.50},"headers":{"b":"2","a":"1"}}"#;
        for (format, line) in [
            ("%k %v", "ké {\"a\": 1.50}\n"),
            ("%t/%p@%o %T", "orders/3@17 1500\n"),
            ("%h|%%|%s", "a=1,b=2|%|{\"a\": 1.50}\n"),
            ("%o%n", "17\n"),
            ("%o\\n", "17\n"),
            ("%o\\0", "17\0"),
            ("a\\tb\\r\\\\\\x41%nc", "a\tb\r\\A\nc\n"),
            ("é", "é\n"),
            ("", "\n"),
        ] {
            assert_eq!(written(format, record), line, "{format}");
        }
    }

    #[test]
    fn values_and_keys_of_all_kinds() {
        let at = r#""offset":0,"appended_at":"2026-11-21T08:00:00Z""#;
        for (rest, line) in [
            (r#""value":"a \"text\"\n""#, ":a \"text\"\n:\n"),
            (r#""value":null,"key":"k""#, "k:null:\n"),
            (r#""value_base64":"QUI=""#, ":AB:\n"),
            (r#""value":[1]"#, ":[1]:\n"),
            (r#""value":0,"key":"","headers":{}"#, ":0:\n"),
        ] {
            assert_eq!(written("%k:%v:%h", &format!("{{{at},{rest}}}")), line, "{rest}");
        }
        // what the record itself has comes first
        let own = r#"{"topic":"carts","partition":1,"offset":0,"value":1,
            "timestamp":"1970-01-01T00:00:00.007Z","appended_at":"2026-11-21T08:00:00Z"}"#;
        assert_eq!(written("%t %p %T", own), "carts 1 7\n");
    }

    #[test]
    fn an_unknown_sequence_is_refused_with_a_list() {
        for format in ["%x", "%", "\\q", "\\", "\\x4", "\\xgg"] {
            let told = Format::parse(format).unwrap_err();
            assert!(told.contains("%k key, %v value") && told.contains("\\xHH"), "{told}");
        }
        assert!(Format::parse("%x").unwrap_err().starts_with("unknown sequence %x; known: %k"));
    }
}
