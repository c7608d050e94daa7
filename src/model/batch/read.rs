//! Parses the records of a request in one pass over its bytes: `visit` finds the fields, and every
//! field arrives here as the bytes the client sent, to be validated.

use serde::de::DeserializeSeed;
use serde_json::Deserializer;

use super::{
    Batch, Envelope,
    reader::{READ_RECORD_FIELDS, RECORD_FIELDS, Reader},
    visit::{EnvelopeVisitor, RecordVisitor, RecordsVisitor},
};
use crate::model::ValidationErrors;

/// See `Batch::from_json`.
pub(super) fn json(
    body: &[u8],
    traceparent: Option<&str>,
) -> Result<(Envelope, Batch), ValidationErrors> {
    let text = utf8(body)?;
    if text.is_empty() {
        return Err(ValidationErrors::at(
            "",
            "the body is empty; expected an object with `records`",
        ));
    }
    let mut reader = Reader::new(text, traceparent, RECORD_FIELDS);
    let mut json = Deserializer::from_str(text);
    let read = EnvelopeVisitor(&mut reader).deserialize(&mut json);
    match read.and_then(|envelope| json.end().map(|()| envelope)) {
        Ok(envelope) => Ok((envelope, reader.lines.finish())),
        Err(error) => Err(reader.explain(&error, error.line())),
    }
}

/// See `Batch::from_array`.
pub(super) fn array(
    array: &str,
    at: &str,
    traceparent: Option<&str>,
) -> Result<Batch, ValidationErrors> {
    let mut reader = Reader::new(array, traceparent, RECORD_FIELDS);
    reader.at = at;
    reader.field = Some("records");
    let mut json = Deserializer::from_str(array);
    match RecordsVisitor(&mut reader).deserialize(&mut json) {
        Ok(()) => Ok(reader.lines.finish()),
        Err(error) => Err(reader.explain(&error, error.line())),
    }
}

/// See `Batch::from_ndjson`.
pub(super) fn ndjson(body: &[u8], traceparent: Option<&str>) -> Result<Batch, ValidationErrors> {
    let text = utf8(body)?;
    let mut reader = Reader::new(text, traceparent, READ_RECORD_FIELDS);
    for (index, line) in text.split('\n').enumerate() {
        if line.bytes().all(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
            continue;
        }
        reader.record_index = Some(reader.lines.len());
        let mut json = Deserializer::from_str(line);
        let read = RecordVisitor(&mut reader).deserialize(&mut json);
        if let Err(error) = read.and_then(|()| json.end()) {
            return Err(reader.explain(&error, index + 1));
        }
    }
    if reader.lines.len() == 0 {
        return Err(ValidationErrors::at("", "the body is empty; expected one record per line"));
    }
    Ok(reader.lines.finish())
}

fn utf8(body: &[u8]) -> Result<&str, ValidationErrors> {
    let text = std::str::from_utf8(body).map_err(|error| {
        ValidationErrors::at("", format!("invalid UTF-8 at byte {}", error.valid_up_to()))
    })?;
    if text.starts_with('\u{feff}') {
        return Err(ValidationErrors::at("", "the body starts with a byte order mark; remove it"));
    }
    Ok(text)
}
