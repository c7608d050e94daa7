use serde_json::{Value, json};

use super::*;
use crate::{
    http::{self, extract::query, reads::tests::slices},
    model::{
        MAX_INTEGER, Partition,
        read::{PartitionRecords, origin},
    },
};

fn ends(partition: Partition, next_offset: i64) -> PartitionEnds {
    PartitionEnds { partition, next_offset, log_start_offset: 0, high_watermark: 13 }
}

fn fetched() -> TopicFetched {
    let part = |partition| PartitionRecords { origin: origin(None, partition), slices: slices() };
    TopicFetched {
        parts: vec![part(1), part(0)],
        partitions: vec![ends(0, 11), ends(1, 11), ends(2, 0)],
        cursor: "AXQA".to_owned(),
    }
}

const AT: &str = "\"appended_at\":\"2026-11-21T08:00:00.123Z\"";

#[test]
fn every_record_says_its_partition() {
    let topic = Name::parse("orders").unwrap();
    let body = json_body(&topic, &fetched());
    let text = String::from_utf8(body.clone()).unwrap();
    let head = format!(
        "{{\"topic\":\"orders\",\"records\":[\
         {{\"partition\":1,\"offset\":8,{AT},\"value\":\"\\n\"}},\
         {{\"partition\":1,\"offset\":9,{AT},\"value\":3}},"
    );
    assert!(text.starts_with(&head), "{text}");
    let value: Value = serde_json::from_slice(&body).unwrap();
    let records = value["records"].as_array().unwrap().iter();
    let places: Vec<_> = records.map(|r| (r["partition"].clone(), r["offset"].clone())).collect();
    let want = [(1, 8), (1, 9), (1, 10), (0, 8), (0, 9), (0, 10)];
    assert_eq!(places, want.map(|(partition, offset)| (json!(partition), json!(offset))));
    let tail = "],\"partitions\":[\
        {\"partition\":0,\"next_offset\":11,\"log_start_offset\":0,\"high_watermark\":13},\
        {\"partition\":1,\"next_offset\":11,\"log_start_offset\":0,\"high_watermark\":13},\
        {\"partition\":2,\"next_offset\":0,\"log_start_offset\":0,\"high_watermark\":13}],\
        \"cursor\":\"AXQA\"}";
    assert!(text.ends_with(tail), "{text}");
}

#[test]
fn lines_are_the_records_alone() {
    let body = String::from_utf8(ndjson(&fetched().parts)).unwrap();
    let lines: Vec<_> = body.lines().collect();
    assert_eq!(lines[0], format!("{{\"partition\":1,\"offset\":8,{AT},\"value\":\"\\n\"}}"));
    assert!(body.ends_with('\n') && lines.len() == 6);
    let none = TopicFetched { parts: Vec::new(), ..fetched() };
    assert!(ndjson(&none.parts).is_empty());
    let topic = Name::parse("o").unwrap();
    let empty: Value = serde_json::from_slice(&json_body(&topic, &none)).unwrap();
    assert_eq!(empty["records"], json!([]));
}

#[test]
fn the_room_is_made_once() {
    let topic = Name::parse(&"t".repeat(249)).unwrap();
    let mut far = fetched();
    far.parts[0].origin = origin(Some(&topic), Partition::MAX);
    for slice in far.parts.iter_mut().flat_map(|part| &mut part.slices) {
        let count = slice.end_offset - slice.first_offset;
        (slice.first_offset, slice.end_offset) = (MAX_INTEGER - count, MAX_INTEGER);
    }
    let largest = PartitionEnds {
        partition: Partition::MAX,
        next_offset: MAX_INTEGER,
        log_start_offset: MAX_INTEGER,
        high_watermark: MAX_INTEGER,
    };
    far.partitions = vec![largest; 50];
    let none = TopicFetched { parts: Vec::new(), partitions: Vec::new(), ..fetched() };
    for fetched in [fetched(), far, none] {
        let body = json_body(&topic, &fetched);
        assert!(body.len() <= topic.as_str().len() + capacity(&fetched));
        assert!(ndjson(&fetched.parts).len() <= capacity(&fetched));
    }
}

fn read(query: &str) -> Result<TopicRead, ValidationErrors> {
    query::parse::<TopicReadParameters>(Some(query))?.checked(ParameterPlace::Query)
}

#[test]
fn parameters() {
    let start = |query| read(query).map(|read| read.start);
    for query in ["", "offset=earliest", "isolation=read_committed"] {
        assert_eq!(start(query), Ok(TopicStart::Earliest), "{query}");
    }
    assert_eq!(start("offset=latest"), Ok(TopicStart::Latest));
    let instant = TopicStart::Timestamp(Timestamp(1_795_248_000_000));
    assert_eq!(start("timestamp=2026-11-21T09:00:00+01:00"), Ok(instant));
    assert_eq!(start("cursor=AXQA"), Ok(TopicStart::Cursor("AXQA".to_owned())));
    let small = read("limit=1&max_bytes=2&wait_ms=3").unwrap();
    assert_eq!((small.limit, small.max_bytes, small.wait_ms), (1, 2, 3));
    let plain = read("").unwrap();
    assert_eq!((plain.limit, plain.max_bytes, plain.wait_ms), (500, 1 << 20, 0));
}

#[test]
fn bad_parameters_are_named() {
    let table = [
        ("offset=7", "?offset"),
        ("offset=newest", "?offset"),
        ("timestamp=yesterday", "?timestamp"),
        ("offset=latest&timestamp=2026-11-21T08:00:00Z", "?timestamp"),
        ("offset=earliest&cursor=AXQA", "?cursor"),
        ("timestamp=2026-11-21T08:00:00Z&cursor=AXQA", "?cursor"),
        ("limit=0", "?limit"),
        ("limit=10001", "?limit"),
        ("max_bytes=0", "?max_bytes"),
        ("max_bytes=16777217", "?max_bytes"),
        ("wait_ms=-1", "?wait_ms"),
        ("wait_ms=60001", "?wait_ms"),
        ("isolation=read_uncommitted", "?isolation"),
        ("partition=0", "?partition"),
    ];
    for (query, pointer) in table {
        assert_eq!(read(query).unwrap_err().listed[0].pointer, pointer, "{query}");
    }
    let read_body = |text: &str| {
        http::extract::json::parse::<TopicReadParameters>(text)?.checked(ParameterPlace::Body)
    };
    for (text, pointer) in [
        (r#"{"offset":0}"#, "/offset"),
        (r#"{"offset":"newest"}"#, "/offset"),
        (r#"{"timestamp":"yesterday"}"#, "/timestamp"),
        (r#"{"offset":"latest","cursor":"AXQA"}"#, "/cursor"),
        (r#"{"limit":0}"#, "/limit"),
        (r#"{"limit":"1"}"#, "/limit"),
        (r#"{"max_bytes":16777217}"#, "/max_bytes"),
        (r#"{"wait_ms":60001}"#, "/wait_ms"),
        (r#"{"isolation":"read_uncommitted"}"#, "/isolation"),
        (r#"{"partition":0}"#, "/partition"),
    ] {
        assert_eq!(read_body(text).unwrap_err().listed[0].pointer, pointer, "{text}");
    }
    for (text, query) in [
        ("{}", ""),
        (
            r#"{"offset":"latest","limit":1,"max_bytes":2,"wait_ms":3}"#,
            "offset=latest&limit=1&max_bytes=2&wait_ms=3",
        ),
        (r#"{"cursor":"AXQA","isolation":"read_committed"}"#, "cursor=AXQA"),
    ] {
        assert_eq!(read_body(text), read(query), "{text}");
    }
    let refused = read("isolation=read_uncommitted").unwrap_err();
    assert!(refused.listed[0].detail.contains("one partition"), "{refused:?}");
}
