//! Tables: one row a case.

use super::*;
use crate::model::{Code, MAX_INTEGER, settings::Key, validation::TooLarge};

pub(super) const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

pub(super) fn json(body: &str) -> Result<(Envelope, Batch), ValidationErrors> {
    Batch::from_json(body.as_bytes(), None)
}

pub(super) fn ndjson(body: &str) -> Result<Batch, ValidationErrors> {
    Batch::from_ndjson(body.as_bytes(), None)
}

/// As the second append of a body.
pub(super) fn array(array: &str) -> Result<Batch, ValidationErrors> {
    Batch::from_array(serde_json::from_str(array).unwrap(), "/appends/1", None)
}

pub(super) fn batch_of(record: &str) -> Batch {
    let (_, batch) = json(&format!("{{\"records\":[{record}]}}")).unwrap();
    assert_eq!(array(&format!("[{record}]")).unwrap(), batch, "{record}");
    assert_eq!(ndjson(&record.replace('\n', " ")).unwrap(), batch, "{record}");
    batch
}

#[track_caller]
pub(super) fn refused<T: std::fmt::Debug>(
    result: Result<T, ValidationErrors>,
    pointer: &str,
    detail: &str,
) {
    let errors = result.unwrap_err().listed;
    assert_eq!(errors.len(), 1);
    assert_eq!((errors[0].pointer.as_str(), errors[0].detail.as_str()), (pointer, detail));
}

#[test]
fn a_record_becomes_one_canonical_line() {
    let table = [
        (r#"{"value":1}"#, r#"{"value":1}"#),
        (r#" { "value" : 1 } "#, r#"{"value":1}"#),
        // Null is a value; elsewhere it is absent.
        (r#"{"value":null}"#, r#"{"value":null}"#),
        (
            r#"{"key":null,"id":null,"headers":null,"timestamp":null,"value_base64":null,"value":0}"#,
            r#"{"value":0}"#,
        ),
        (r#"{"value_base64":"AAEC"}"#, r#"{"value_base64":"AAEC"}"#),
        (r#"{"value_base64":""}"#, r#"{"value_base64":""}"#),
        (r#"{"value_base64":"\/w=="}"#, r#"{"value_base64":"/w=="}"#),
        // Fields in their own order, headers by name.
        (
            r#"{"headers":{"b":"2","a":"1"},"timestamp":"2026-11-21T08:00:00.000Z","id":"i","key":"k","value":2}"#,
            r#"{"value":2,"key":"k","id":"i","timestamp":"2026-11-21T08:00:00.000Z","headers":{"a":"1","b":"2"}}"#,
        ),
        (r#"{"value":1,"key":"","headers":{}}"#, r#"{"value":1,"key":"","headers":{}}"#),
        (r#"{"value":1,"headers":{"":""}}"#, r#"{"value":1,"headers":{"":""}}"#),
        // The value's own bytes, without whitespace between tokens.
        (r#"{"value":1.0}"#, r#"{"value":1.0}"#),
        (r#"{"value":-0}"#, r#"{"value":-0}"#),
        (r#"{"value":1E+300}"#, r#"{"value":1E+300}"#),
        (r#"{"value":12345678901234567890}"#, r#"{"value":12345678901234567890}"#),
        (r#"{"value":"a  b\u0000\ud83d\ude00\/é"}"#, r#"{"value":"a  b\u0000\ud83d\ude00\/é"}"#),
        ("{\"value\":[ 1 ,\t2\n,\r\n\"a \\\" b\" ]}", r#"{"value":[1,2,"a \" b"]}"#),
        (r#"{"value":{"b" : 1, "a":"\\" , "b":2}}"#, r#"{"value":{"b":1,"a":"\\","b":2}}"#),
        (r#"{"value":[ ]}"#, r#"{"value":[]}"#),
        // Other strings are text, however it was escaped.
        (r#"{"value":1,"key":"\u0061\/\u00e9\u0000\n"}"#, r#"{"value":1,"key":"a/é\u0000\n"}"#),
        (r#"{"value":1,"id":"\ud83d\ude00\""}"#, r#"{"value":1,"id":"😀\""}"#),
        (r#"{"value":1,"headers":{"\u0061":"\u0062"}}"#, r#"{"value":1,"headers":{"a":"b"}}"#),
        (r#"{"\u0076alue":1}"#, r#"{"value":1}"#),
        // Instants in UTC, cut to milliseconds.
        (
            r#"{"value":1,"timestamp":"2026-11-21T09:00:00.123999+01:00"}"#,
            r#"{"value":1,"timestamp":"2026-11-21T08:00:00.123Z"}"#,
        ),
        (
            r#"{"value":1,"timestamp":"2016-12-31T23:59:60.500Z"}"#,
            r#"{"value":1,"timestamp":"2017-01-01T00:00:00.500Z"}"#,
        ),
        (
            r#"{"value":1,"timestamp":"2026-11-21t08:00:00.000z"}"#,
            r#"{"value":1,"timestamp":"2026-11-21T08:00:00.000Z"}"#,
        ),
        (
            r#"{"value":1,"timestamp":"2026-11-21 08:00:00.000\u005a"}"#,
            r#"{"value":1,"timestamp":"2026-11-21T08:00:00.000Z"}"#,
        ),
        (
            r#"{"value":1,"timestamp":"2026-11-21T08:00:00-08:00"}"#,
            r#"{"value":1,"timestamp":"2026-11-21T16:00:00.000Z"}"#,
        ),
        (
            r#"{"value":1,"timestamp":"0001-01-01T00:00:00Z"}"#,
            r#"{"value":1,"timestamp":"0001-01-01T00:00:00.000Z"}"#,
        ),
    ];
    for (record, line) in table {
        let batch = batch_of(record);
        assert_eq!(batch.lines, format!("{line}\n"), "{record}");
        // What was stored says the same when it is sent again.
        assert_eq!(batch_of(line), batch, "{record}");
    }
}

#[test]
fn an_envelope_is_read_around_the_records() {
    let all = r#"{"sequence":3,"records":[{"value":1}],"expected_offset":9007199254740991,"epoch":0,"on_duplicate":"refuse","producer_id":17}"#;
    let envelope = Envelope {
        producer_id: Some(17),
        epoch: Some(0),
        sequence: Some(3),
        expected_offset: Some(MAX_INTEGER),
        on_duplicate: OnDuplicate::Refuse,
    };
    assert_eq!(json(all).unwrap().0, envelope);
    let nulls = r#"{"producer_id":null,"epoch":null,"sequence":null,"expected_offset":null,"on_duplicate":null,"records":[{"value":1}]}"#;
    assert_eq!(json(nulls).unwrap().0, Envelope::default());
}

const EXPECTED_RECORDS: &str = "expected an array of at least one record";
const EXPECTED_FIELDS: &str = "expected one of value, value_base64, key, id, timestamp, headers";

#[test]
fn what_is_wrong_with_a_json_body_is_named() {
    let table = [
        ("", "", "the body is empty; expected an object with `records`".into()),
        (" ", "", "not JSON at line 1 column 1: it ends inside a value".into()),
        ("[]", "", "expected an object with `records`, found an array".into()),
        ("null", "", "expected an object with `records`, found null".into()),
        ("{}", "/records", format!("missing; {EXPECTED_RECORDS}")),
        (r#"{"records":[]}"#, "/records", format!("empty; {EXPECTED_RECORDS}")),
        (r#"{"records":null}"#, "/records", format!("{EXPECTED_RECORDS}, found null")),
        (r#"{"records":{}}"#, "/records", format!("{EXPECTED_RECORDS}, found an object")),
        (
            r#"{"records":"a, expected b"}"#,
            "/records",
            format!("{EXPECTED_RECORDS}, found a string"),
        ),
        (r#"{"records":1.5}"#, "/records", format!("{EXPECTED_RECORDS}, found a number")),
        (
            r#"{"records":[{"value":1}],"producer":1}"#,
            "/producer",
            "unknown field; expected one of producer_id, epoch, sequence, expected_offset, on_duplicate, records"
                .into(),
        ),
        (r#"{"epoch":1,"epoch":null,"records":[{"value":1}]}"#, "/epoch", "given twice".into()),
        (r#"{"records":[{"value":1}],"records":[{"value":1}]}"#, "/records", "given twice".into()),
        (
            "{\"records\":[{\"value\":1}\n{}]}",
            "/records/1",
            "not JSON at line 2 column 1: expected `,` or `]`".into(),
        ),
        (
            r#"{"records":[{"value":1}]} x"#,
            "",
            "not JSON at line 1 column 27: trailing characters".into(),
        ),
        (
            r#"{"records":[{"value":1}]"#,
            "",
            "not JSON at line 1 column 24: it ends inside an object".into(),
        ),
        (
            r#"{"records":[{"value":01}]}"#,
            "/records/0/value",
            "not JSON at line 1 column 23: invalid number".into(),
        ),
        (r#"{"epoch":}"#, "/epoch", "not JSON at line 1 column 10: expected value".into()),
        (
            r#"{"records":[{"value":1,}]}"#,
            "/records/0",
            "not JSON at line 1 column 24: trailing comma".into(),
        ),
        ("\u{feff}{}", "", "the body starts with a byte order mark; remove it".into()),
    ];
    for (body, pointer, detail) in table {
        println!("{body}");
        refused(json(body), pointer, &detail);
    }
}

#[test]
fn what_is_no_integer_is_refused() {
    let table = [
        (r#"{"epoch":1.0}"#, "/epoch", "1.0"),
        (r#"{"epoch":"1"}"#, "/epoch", "a string"),
        (r#"{"sequence":-1}"#, "/sequence", "-1"),
        (r#"{"sequence":-0}"#, "/sequence", "-0"),
        (r#"{"sequence":1e3}"#, "/sequence", "1e3"),
        (r#"{"producer_id":9007199254740992}"#, "/producer_id", "9007199254740992"),
        (r#"{"producer_id":99999999999999999999}"#, "/producer_id", "99999999999999999999"),
        (r#"{"expected_offset":true}"#, "/expected_offset", "true"),
        (r#"{"expected_offset":[]}"#, "/expected_offset", "an array"),
    ];
    for (body, pointer, found) in table {
        println!("{body}");
        let expected = "expected an integer from 0 to 9007199254740991";
        refused(json(body), pointer, &format!("{expected}, found {found}"));
    }
}

#[test]
fn what_is_wrong_with_a_record_is_named() {
    let table = [
        ("1", "", "expected an object with `value` or `value_base64`, found a number"),
        ("null", "", "expected an object with `value` or `value_base64`, found null"),
        ("{}", "", "missing: give `value` or `value_base64`"),
        (r#"{"value_base64":null}"#, "", "missing: give `value` or `value_base64`"),
        (
            r#"{"value":null,"value_base64":""}"#,
            "",
            "give either `value` or `value_base64`, not both",
        ),
        (r#"{"vlaue":1}"#, "/vlaue", &format!("unknown field; {EXPECTED_FIELDS}")),
        (r#"{"a/b~":1}"#, "/a~1b~0", &format!("unknown field; {EXPECTED_FIELDS}")),
        (r#"{"value":1,"value":1}"#, "/value", "given twice"),
        (r#"{"key":null,"k\u0065y":"a"}"#, "/key", "given twice"),
        (r#"{"key":1}"#, "/key", "expected a string, found 1"),
        (r#"{"key":{}}"#, "/key", "expected a string, found an object"),
        (r#"{"key":"\ud800"}"#, "/key", "invalid Unicode: an escape is half of a surrogate pair"),
        (r#"{"id":"\udc00"}"#, "/id", "invalid Unicode: an escape is half of a surrogate pair"),
        (r#"{"id":""}"#, "/id", "an id must be 1 to 1024 bytes"),
        (r#"{"value_base64":"AAE"}"#, "/value_base64", "invalid standard base64: Invalid padding"),
        (
            r#"{"value_base64":"AA-_"}"#,
            "/value_base64",
            "invalid standard base64: Invalid symbol 45, offset 2.",
        ),
        (
            r#"{"value_base64":"AAF="}"#,
            "/value_base64",
            "invalid standard base64: Invalid last symbol 0x46 ('F') at offset 2, decoded as 0b00000101.",
        ),
        (
            r#"{"timestamp":"2026-11-21"}"#,
            "/timestamp",
            "an instant must be RFC 3339, such as 2026-11-21T08:00:00.000Z",
        ),
        (r#"{"timestamp":1}"#, "/timestamp", "expected a string, found 1"),
        (
            r#"{"timestamp":"0000-01-01T00:00:00+01:00"}"#,
            "/timestamp",
            "the year must be 0000 to 9999 in UTC",
        ),
        (r#"{"headers":[]}"#, "/headers", "expected an object of strings, found an array"),
        (
            r#"{"headers":{"\ud800":""}}"#,
            "/headers",
            "a header's name is invalid Unicode: an escape is half of a surrogate pair",
        ),
        (r#"{"headers":{"a":1}}"#, "/headers/a", "expected a string, found 1"),
        (r#"{"headers":{"a":null}}"#, "/headers/a", "expected a string, found null"),
        (r#"{"headers":{"a":"1","b":"2","\u0061":"1"}}"#, "/headers/a", "given twice"),
        (r#"{"headers":{"/~":[]}}"#, "/headers/~1~0", "expected a string, found an array"),
        (
            r#"{"headers":{"a":"\ud800x"}}"#,
            "/headers/a",
            "invalid Unicode: an escape is half of a surrogate pair",
        ),
    ];
    for (record, below, detail) in table {
        println!("{record}");
        let pointer = format!("/records/1{below}");
        refused(json(&format!(r#"{{"records":[{{"value":1}},{record}]}}"#)), &pointer, detail);
        refused(ndjson(&format!("{{\"value\":1}}\n{record}\n")), &pointer, detail);
        let nested = format!("/appends/1{pointer}");
        refused(array(&format!(r#"[{{"value":1}},{record}]"#)), &nested, detail);
    }
}

#[test]
fn a_value_that_clients_cannot_parse_is_pointed_at() {
    let record = r#"{"key":"k","value":{"a":1e999}}"#;
    let detail = "a number is beyond the range of a 64-bit float (1.8e308)";
    refused(json(&format!(r#"{{"records":[{record}]}}"#)), "/records/0/value", detail);
    refused(ndjson(record), "/records/0/value", detail);
    refused(array(&format!("[{record}]")), "/appends/1/records/0/value", detail);
}

#[test]
fn what_is_wrong_with_an_array_of_records_is_named() {
    let at = "/appends/1/records";
    refused(array("[]"), at, &format!("empty; {EXPECTED_RECORDS}"));
    refused(array("null"), at, &format!("{EXPECTED_RECORDS}, found null"));
    refused(array("{}"), at, &format!("{EXPECTED_RECORDS}, found an object"));
    refused(array("7"), at, &format!("{EXPECTED_RECORDS}, found a number"));
    // the one thing of JSON that is not seen before the array is read
    let half = "not JSON at line 2 column 9 of the array: unexpected end of hex escape";
    refused(array("[{\"value\":1},\n{\"\\ud800\":1}]"), "/appends/1/records/1", half);
}

#[test]
fn a_traceparent_reaches_the_records_of_an_array() {
    let array = serde_json::from_str(r#"[{"value":1}]"#).unwrap();
    let traced = Batch::from_array(array, "/appends/0", Some(TRACE)).unwrap();
    assert_eq!(traced, Batch::from_ndjson(br#"{"value":1}"#, Some(TRACE)).unwrap());
}

#[test]
fn ids_have_a_bound_and_so_have_names_in_pointers() {
    let with_id = |bytes| format!(r#"{{"value":1,"id":"{}"}}"#, "i".repeat(bytes));
    batch_of(&with_id(MAX_ID_BYTES));
    let too_long = ndjson(&with_id(MAX_ID_BYTES + 1));
    refused(too_long, "/records/0/id", "an id must be 1 to 1024 bytes");

    let name = "é".repeat(1000);
    let error = ndjson(&format!(r#"{{"{name}":1}}"#)).unwrap_err().listed.remove(0);
    assert_eq!(error.pointer, format!("/records/0/{}…", "é".repeat(121)));
}

#[test]
fn bytes_that_are_not_utf8_are_refused_anywhere() {
    let bodies: [&[u8]; 4] = [
        b"{\"records\":[{\"value\":\"\xff\"}]}",
        b"{\"records\":[{\"value\":1,\"key\":\"\xc3\"}]}",
        b"{\"records\":[{\"value\":1}]}\xff",
        b"{\"\xed\xa0\x80\":1}",
    ];
    for body in bodies {
        for errors in [
            Batch::from_json(body, None).unwrap_err().listed,
            Batch::from_ndjson(body, None).unwrap_err().listed,
        ] {
            assert!(errors[0].detail.starts_with("invalid UTF-8 at byte "), "{errors:?}");
        }
    }
}

#[test]
fn ndjson_is_one_record_a_line() {
    let two = ndjson("{\"value\":1}\n{\"value\":2}\n").unwrap();
    for body in
        ["{\"value\":1}\n{\"value\":2}", "\n {\"value\":1}\t\r\n\r\n  \n{\"value\": 2}\r\n\n"]
    {
        assert_eq!(ndjson(body).unwrap(), two);
    }
    // What a read added is ignored, whatever it is; but not in the JSON form, and not twice.
    let read = r#"{"offset":100,"partition":"x","topic":[{}],"appended_at":null,"transaction_id":{"a":1},"value":1}"#;
    assert_eq!(ndjson(read).unwrap(), ndjson(r#"{"value":1}"#).unwrap());
    let unknown = format!("unknown field; {EXPECTED_FIELDS}");
    refused(json(&format!(r#"{{"records":[{read}]}}"#)), "/records/0/offset", &unknown);
    refused(ndjson(r#"{"offset":1,"offset":1,"value":1}"#), "/records/0/offset", "given twice");

    let empty = "the body is empty; expected one record per line";
    let ends = "not JSON at line 3 column 10: it ends inside an object";
    let trailing = "not JSON at line 1 column 12: trailing characters";
    refused(ndjson(""), "", empty);
    refused(ndjson(" \r\n\n"), "", empty);
    refused(
        ndjson("{\"value\":1}\n\n{\"value\":\n1}"),
        "/records/1/value",
        &ends.replace("an object", "a value").replace("10", "9"),
    );
    refused(ndjson("{\"value\":1}\n\n{\"value\":1"), "/records/1", ends);
    refused(ndjson("{\"value\":1}{\"value\":2}"), "/records/0", trailing);
    refused(
        ndjson("[{\"value\":1}]"),
        "/records/0",
        "expected an object with `value` or `value_base64`, found an array",
    );
}

#[test]
fn a_traceparent_becomes_a_header_and_leaves_the_digest() {
    let table = [
        (r#"{"value":1}"#, r#"{"value":1,"headers":{"traceparent":"T"}}"#),
        (r#"{"value":1,"headers":{}}"#, r#"{"value":1,"headers":{"traceparent":"T"}}"#),
        (
            r#"{"value":1,"headers":{"z":"1"}}"#,
            r#"{"value":1,"headers":{"z":"1","traceparent":"T"}}"#,
        ),
        (
            r#"{"value":1,"headers":{"traceparent":"own"}}"#,
            r#"{"value":1,"headers":{"traceparent":"own"}}"#,
        ),
        (
            r#"{"value":1,"headers":{"Traceparent":"a"}}"#,
            r#"{"value":1,"headers":{"Traceparent":"a","traceparent":"T"}}"#,
        ),
    ];
    let mut body = String::new();
    for (record, line) in table {
        let plain = ndjson(record).unwrap();
        let traced = Batch::from_ndjson(record.as_bytes(), Some(TRACE)).unwrap();
        assert_eq!(traced.lines, line.replace("\"T\"", &format!("\"{TRACE}\"")) + "\n");
        assert_eq!(traced.digest, plain.digest, "{record}");
        assert_eq!(traced.records[0].end as usize, traced.lines.len());
        body = body + record + "\n";
    }
    let traced = Batch::from_ndjson(body.as_bytes(), Some(TRACE)).unwrap();
    assert_eq!(traced.digest, ndjson(&body).unwrap().digest);
    let quoted = Batch::from_ndjson(br#"{"value":1}"#, Some("a\"\n")).unwrap();
    assert_eq!(quoted.lines, "{\"value\":1,\"headers\":{\"traceparent\":\"a\\\"\\n\"}}\n");
}

#[test]
fn the_digest_is_xxh3_of_the_lines_and_tells_records_apart() {
    let batch = ndjson("{\"value\":1}\n{\"value\":2}").unwrap();
    let digest = xxhash_rust::xxh3::xxh3_128(b"{\"value\":1}\n{\"value\":2}\n");
    assert_eq!(batch.digest, digest.to_be_bytes());
    let records = [
        r#"{"value":1}"#,
        r#"{"value":1.0}"#,
        r#"{"value":"1"}"#,
        r#"{"value":1,"key":""}"#,
        r#"{"value":1,"id":"1"}"#,
        r#"{"value":1,"headers":{}}"#,
        r#"{"value":1,"headers":{"a":"1"}}"#,
        r#"{"value":{"a":1,"b":2}}"#,
        r#"{"value":{"b":2,"a":1}}"#,
    ];
    let digests: std::collections::HashSet<_> =
        records.iter().map(|record| batch_of(record).digest).collect();
    assert_eq!(digests.len(), records.len());
}

#[test]
fn lines_are_counted_and_measured() {
    let batch =
        ndjson("{\"value\":1}\n{\"value\":123,\"key\":\"foobar\"}\n{\"value\":12}").unwrap();
    assert_eq!(batch.record_count(), 3);
    assert_eq!(batch.size_bytes(), 12 + 29 + 13);
    assert_eq!(batch.largest_record_bytes(), 28);
    assert_eq!(batch.records.iter().map(|line| line.end).collect::<Vec<_>>(), [12, 41, 54]);
    // Kafka's hash of "foobar".
    assert_eq!(batch.records[1].key_hash, Some(-790332482_i32 as u32));
    assert_eq!(batch.records[0].key_hash, None);
}

/// Refused as too large for any value of this setting.
#[track_caller]
fn too_large<T: std::fmt::Debug>(made: Result<T, ValidationErrors>, pointer: &str, key: Key) {
    let refused = made.unwrap_err();
    let limit = key.setting().maximum;
    assert_eq!(refused.too_large, Some(TooLarge { code: Code::BatchTooLarge, limit }));
    assert_eq!(refused.listed[0].pointer, pointer);
    assert!(refused.listed[0].detail.contains(key.setting().name), "{refused:?}");
}

#[test]
fn what_no_setting_allows_is_refused_while_it_is_read() {
    let most = usize::try_from(Key::MaxBatchRecords.setting().maximum).unwrap();
    let records = vec![r#"{"value":1}"#; most + 1];
    for (count, fits) in [(most, true), (most + 1, false)] {
        let listed = format!("[{}]", records[..count].join(","));
        let lines = ndjson(&records[..count].join("\n"));
        let object = json(&format!("{{\"records\":{listed}}}"));
        if fits {
            assert_eq!(lines.unwrap().records.len(), most);
            assert_eq!(object.unwrap().1.records.len(), most);
            assert_eq!(array(&listed).unwrap().records.len(), most);
            continue;
        }
        too_large(lines, "/records", Key::MaxBatchRecords);
        too_large(object, "/records", Key::MaxBatchRecords);
        too_large(array(&listed), "/appends/1/records", Key::MaxBatchRecords);
    }
    let most = usize::try_from(Key::MaxBatchBytes.setting().maximum).unwrap();
    let value = |bytes: usize| format!("{{\"value\":\"{}\"}}", "x".repeat(bytes));
    let around = value(0).len() + "\n".len();
    assert_eq!(ndjson(&value(most - around)).unwrap().lines.len(), most);
    too_large(ndjson(&value(most - around + 1)), "/records", Key::MaxBatchBytes);
    // as it would be stored: with what is added, without what is taken away
    let spaces = format!("{}{}", value(most - around), " ".repeat(1_000));
    assert_eq!(ndjson(&spaces).unwrap().lines.len(), most);
    let traced = Batch::from_ndjson(value(most - around).as_bytes(), Some(TRACE));
    too_large(traced, "/records", Key::MaxBatchBytes);
    let small = vec![value(1_000); most / 1_050];
    assert!(ndjson(&small.join("\n")).is_ok());
    let traced = Batch::from_ndjson(small.join("\n").as_bytes(), Some(TRACE));
    too_large(traced, "/records", Key::MaxBatchBytes);
}
