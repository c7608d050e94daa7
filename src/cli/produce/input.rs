//! Cuts the input of `produce` into batches, the same way in every run.
//!
//! Batch n holds the records from n·size up to (n+1)·size, however fast the input arrives, so that
//! a restarted producer finds its place by counting.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{BufRead, Read},
};

use anyhow::{Context, bail};
use serde_json::{Value, value::RawValue};

/// The maximum of `max_batch_bytes`: no topic accepts a larger batch.
const MAX_BATCH_BYTES: usize = 16 << 20;

/// The format of an input line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum LineKind {
    /// A record: `{"key": ..., "value": ...}`.
    Record,
    /// The value of a record, any JSON.
    Value,
    /// The value of a record, as a string.
    Text,
}

/// The records of one request.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct Batch {
    /// The records as NDJSON.
    pub body: Vec<u8>,
    /// The line number of each record, from 1.
    pub lines: Vec<u64>,
    /// The position in the input where it ends.
    pub end_byte: u64,
}

pub(in crate::cli) struct Cutter<R> {
    input: R,
    kind: LineKind,
    key_field: Option<String>,
    batch_size: usize,
    /// The flag that sets `batch_size`, for messages.
    size_flag: &'static str,
    /// The number of lines read.
    line: u64,
    bytes: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Cutter<R> {
    pub fn new(
        input: R,
        kind: LineKind,
        key_field: Option<String>,
        (batch_size, size_flag): (usize, &'static str),
    ) -> Self {
        let (line, bytes, buffer) = (0, 0, Vec::new());
        Self { input, kind, key_field, batch_size, size_flag, line, bytes, buffer }
    }

    /// The next batch; none at the end of the input.
    pub fn next(&mut self) -> anyhow::Result<Option<Batch>> {
        let mut batch = Batch { body: Vec::new(), lines: Vec::new(), end_byte: 0 };
        while batch.lines.len() < self.batch_size && self.read_record()? {
            let text = std::str::from_utf8(&self.buffer);
            let text = text.with_context(|| format!("line {} is not UTF-8", self.line))?;
            let record = to_record(text, self.kind, self.key_field.as_deref());
            let record = record.with_context(|| format!("line {}", self.line))?;
            batch.body.extend_from_slice(record.as_deref().unwrap_or(text).as_bytes());
            batch.body.push(b'\n');
            batch.lines.push(self.line);
            if batch.body.len() > MAX_BATCH_BYTES {
                bail!(
                    "the batch that ends in line {} is larger than {MAX_BATCH_BYTES} bytes: give a \
                     smaller {}",
                    self.line,
                    self.size_flag
                );
            }
        }
        batch.end_byte = self.bytes;
        Ok((!batch.lines.is_empty()).then_some(batch))
    }

    /// Skips batches without parsing them; returns how many there were.
    pub fn skip(&mut self, batches: i64) -> anyhow::Result<i64> {
        for skipped in 0..batches {
            for record in 0..self.batch_size {
                if !self.read_record()? {
                    return Ok(skipped + i64::from(record > 0));
                }
            }
        }
        Ok(batches)
    }

    /// Reads the next line that is a record into the buffer; false at the end.
    fn read_record(&mut self) -> anyhow::Result<bool> {
        loop {
            self.buffer.clear();
            let limit = MAX_BATCH_BYTES as u64 + 1;
            let mut input = Read::take(&mut self.input, limit);
            let read = input.read_until(b'\n', &mut self.buffer);
            let read = read.context("cannot read the input")?;
            if read == 0 {
                return Ok(false);
            }
            self.line += 1;
            self.bytes += read as u64;
            let ending = if self.buffer.ends_with(b"\r\n") { 2 } else { 1 };
            if self.buffer.last() == Some(&b'\n') {
                self.buffer.truncate(read - ending);
            } else if read as u64 == limit {
                bail!("line {} is longer than {MAX_BATCH_BYTES} bytes", self.line);
            }
            // an empty line is a record of text, but none of JSON
            if self.kind == LineKind::Text || !self.buffer.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }
}

/// The record of a line; none if the line is the record itself.
fn to_record(
    line: &str,
    kind: LineKind,
    key_field: Option<&str>,
) -> anyhow::Result<Option<String>> {
    match kind {
        LineKind::Text => Ok(Some(format!("{{\"value\":{}}}", Value::from(line)))),
        LineKind::Value => {
            let value: &RawValue = serde_json::from_str(line).context("not JSON")?;
            let key = key_field.map(|field| extract_key(value.get(), field)).transpose()?;
            let key = key.map(|key| format!("\"key\":{},", Value::from(key))).unwrap_or_default();
            Ok(Some(format!("{{{key}\"value\":{value}}}")))
        }
        LineKind::Record => {
            let Some(field) = key_field else { return Ok(None) };
            with_key(line, field)
        }
    }
}

/// The record with the key taken from its value; none if it has a key already, even null.
fn with_key(line: &str, field: &str) -> anyhow::Result<Option<String>> {
    let record: BTreeMap<Cow<str>, &RawValue> =
        serde_json::from_str(line).context("not a record")?;
    if record.contains_key("key") {
        return Ok(None);
    }
    let Some(value) = record.get("value") else {
        bail!("without a `value` there is no field to take the key from");
    };
    let key = Value::from(extract_key(value.get(), field)?);
    // the object has a member, so ours can be put before it
    let rest = line.trim_start().strip_prefix('{').unwrap_or_default();
    Ok(Some(format!("{{\"key\":{key},{rest}")))
}

/// The key in a field of the value: a string, or the JSON text of a number or boolean.
fn extract_key(value: &str, field: &str) -> anyhow::Result<String> {
    let value: Value = serde_json::from_str(value)?;
    match value.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(plain @ (Value::Number(_) | Value::Bool(_))) => Ok(plain.to_string()),
        Some(_) => bail!("field `{field}` of the value is not a string, number or boolean"),
        None => bail!("the value has no field `{field}` to take the key from"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cutter<'a>(
        input: &'a str,
        kind: LineKind,
        key_field: Option<&str>,
        size: usize,
    ) -> Cutter<&'a [u8]> {
        let key_field = key_field.map(str::to_owned);
        Cutter::new(input.as_bytes(), kind, key_field, (size, "--batch-size"))
    }

    fn cut(input: &str, kind: LineKind, key_field: Option<&str>, size: usize) -> Vec<Batch> {
        let mut cutter = cutter(input, kind, key_field, size);
        std::iter::from_fn(|| cutter.next().unwrap()).collect()
    }

    fn one(line: &str, kind: LineKind, key_field: Option<&str>) -> String {
        let [batch] = &cut(line, kind, key_field, 10)[..] else { panic!("{line}") };
        String::from_utf8(batch.body.clone()).unwrap()
    }

    #[test]
    fn batches_have_the_batch_size_and_know_their_lines() {
        let batches = cut("{1}\n\n{2}\r\n  \n{3}\n{4}\n{5}", LineKind::Record, None, 2);
        let bodies: Vec<_> = batches.iter().map(|batch| batch.body.as_slice()).collect();
        assert_eq!(bodies, [&b"{1}\n{2}\n"[..], b"{3}\n{4}\n", b"{5}\n"]);
        let lines: Vec<_> = batches.iter().map(|batch| batch.lines.clone()).collect();
        assert_eq!(lines, [vec![1, 3], vec![5, 6], vec![7]]);
        assert_eq!(batches[2].end_byte, 24);
        assert_eq!(cut("", LineKind::Record, None, 2), []);
    }

    #[test]
    fn skipping_lands_where_cutting_would() {
        let input = "1\n\n2\n3\n\n\n4\n5\n";
        for skipped in 0..3 {
            let mut cutter = cutter(input, LineKind::Value, None, 2);
            assert_eq!(cutter.skip(skipped).unwrap(), skipped);
            let next = cutter.next().unwrap().unwrap();
            assert_eq!(next, cut(input, LineKind::Value, None, 2)[skipped as usize]);
        }
        // the last one is not full
        let skip = |batches| cutter(input, LineKind::Value, None, 2).skip(batches);
        assert_eq!((skip(3).unwrap(), skip(4).unwrap()), (3, 3));
    }

    #[test]
    fn texts_are_strings_to_the_byte() {
        assert_eq!(
            one("say \"hi\"\\\n\n", LineKind::Text, None),
            "{\"value\":\"say \\\"hi\\\"\\\\\"}\n{\"value\":\"\"}\n"
        );
    }

    #[test]
    fn keys_come_from_a_field() {
        let table = [
            (
                LineKind::Value,
                r#"{"id":"a\"b","n":1.50}"#,
                r#"{"key":"a\"b","value":{"id":"a\"b","n":1.50}}"#,
            ),
            (LineKind::Value, r#"{"id":7}"#, r#"{"key":"7","value":{"id":7}}"#),
            (
                LineKind::Record,
                r#" {"value":{"id":true}}"#,
                r#"{"key":"true","value":{"id":true}}"#,
            ),
            (
                LineKind::Record,
                r#"{"key":"k","value":{"id":1}}"#,
                r#"{"key":"k","value":{"id":1}}"#,
            ),
            (
                LineKind::Record,
                r#"{"key":null,"value":{"id":1}}"#,
                r#"{"key":null,"value":{"id":1}}"#,
            ),
        ];
        for (kind, line, want) in table {
            assert_eq!(one(line, kind, Some("id")), format!("{want}\n"));
        }
    }

    #[test]
    fn a_bad_line_is_named() {
        let long = "x".repeat(MAX_BATCH_BYTES + 1);
        let table = [
            ("\n1,\"key\":\"x\"", LineKind::Value, None, "line 2"),
            ("{\"a\":1}", LineKind::Value, Some("id"), "no field `id`"),
            ("{\"id\":[]}", LineKind::Value, Some("id"), "is not a string, number"),
            ("{\"id\":1}", LineKind::Record, Some("id"), "without a `value`"),
            ("7", LineKind::Record, Some("id"), "not a record"),
            (&long, LineKind::Text, None, "line 1 is longer"),
        ];
        for (input, kind, field, want) in table {
            let mut cutter = cutter(input, kind, field, 10);
            let error = format!("{:#}", cutter.next().unwrap_err());
            assert!(error.contains(want), "{error}");
        }
    }
}
