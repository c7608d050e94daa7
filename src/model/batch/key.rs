//! Finds the key of a stored line without parsing the text before it: `line` writes the value
//! first, then the key.

use super::line::string_end;

/// The key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyed<'a> {
    /// The stored text with its quotes: there is only one way to write a key.
    pub token: &'a str,
    /// True if the value is null, that is, a tombstone.
    pub is_tombstone: bool,
}

const VALUE: &str = "{\"value\":";
const VALUE_BASE64: &str = "{\"value_base64\":";
const KEY: &str = ",\"key\":";

/// Returns the key of a stored line, if it has one.
pub fn keyed(line: &str) -> Option<Keyed<'_>> {
    let start = [VALUE, VALUE_BASE64].iter().find(|member| line.starts_with(**member))?.len();
    let end = value_end(line.as_bytes(), start);
    let key = line.get(end..)?.strip_prefix(KEY).filter(|key| key.starts_with('"'))?;
    let token = key.get(..string_end(key.as_bytes(), 1))?;
    Some(Keyed { token, is_tombstone: line.get(start..end) == Some("null") })
}

/// Returns the end of the value that starts at `at`: the first comma or closing brace outside of
/// nested strings, arrays and objects.
fn value_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = string_end(bytes, at + 1);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b',' if depth == 0 => return at,
            b'}' | b']' if depth == 0 => return at,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use serde_json::{Value, json};

    use super::*;
    use crate::model::Batch;

    /// The line of a record.
    fn line(record: &Value) -> String {
        Batch::from_ndjson(record.to_string().as_bytes(), None).unwrap().lines
    }

    #[test]
    fn a_key_is_found_behind_any_value() {
        let values = [
            json!(null),
            json!(1),
            json!(-1.5e9),
            json!(true),
            json!(""),
            json!("a,\"key\":\"b\"}"),
            json!("\\"),
            json!("\\\""),
            json!([]),
            json!([1, "]", {"key": "x"}]),
            json!({"key": "inner", "value": {"key": ["}", "{"]}}),
        ];
        for value in values {
            let is_tombstone = value.is_null();
            for key in ["k", "", "\"", "\\", "a\",\"key\":\"b", "ü", "\n"] {
                let token = json!(key).to_string();
                let want = Some(Keyed { token: &token, is_tombstone });
                for record in [
                    json!({"value": value, "key": key}),
                    json!({"value": value, "key": key, "id": "i", "headers": {"key": "h"}}),
                ] {
                    assert_eq!(keyed(&line(&record)), want, "{record}");
                }
            }
            for record in [
                json!({"value": value}),
                json!({"value": value, "id": "i", "headers": {"key": "h"}}),
            ] {
                assert_eq!(keyed(&line(&record)), None, "{record}");
            }
        }
        let record = json!({"value_base64": "bnVsbA==", "key": "k"});
        let want = Keyed { token: "\"k\"", is_tombstone: false };
        assert_eq!(keyed(&line(&record)), Some(want));
        let record = json!({"value": null, "key": "k", "timestamp": "2026-11-21T08:00:00Z"});
        assert!(keyed(&line(&record)).unwrap().is_tombstone);
        for broken in ["", "{", "{}", "{\"value\":", "{\"value\":1,\"key\":", "{\"value\":\"x"] {
            assert_eq!(keyed(broken).map(|keyed| keyed.token), None, "{broken}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[a\"\\\\,{}\\[\\]:]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            let key = "[a\"\\\\,}]{0,3}|key";
            prop_oneof![
                vec(inner.clone(), 0..4).prop_map(Value::from),
                vec((key, inner), 0..4).prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn as_a_parser_finds_it(value in values(), key in proptest::option::of(".{0,5}")) {
            let mut record = json!({"value": value, "headers": {"key": "no"}});
            if let Some(key) = &key {
                record["key"] = json!(key);
            }
            let line = line(&record);
            let found = keyed(&line);
            let parsed: Option<String> =
                found.map(|found| serde_json::from_str(found.token).unwrap());
            prop_assert_eq!(parsed, key);
            prop_assert_eq!(
                found.map(|found| found.is_tombstone),
                found.map(|_| value.is_null())
            );
        }
    }
}
