use std::sync::Arc;

use serde_json::Value;
use uuid::Uuid;

use super::{
    records::{ROW_MEMBERS_BYTES, row_members},
    *,
};
use crate::model::{
    read::{self, BatchRow, Slice},
    transaction::State,
};

/// Of offsets 8 to 10.
pub fn slices() -> Vec<Slice> {
    let lines = ["{\"key\":\"a\",\"value\":1}\n", "{\"value\":\"\\n\"}\n", "{\"value\":3}\n"];
    let row = |base_offset, transaction_id| {
        let appended_at = Timestamp(1_795_248_000_123);
        let lines = lines.concat();
        Arc::new(BatchRow {
            base_offset,
            record_count: 3,
            appended_at,
            transaction_id,
            kept: None,
            lines,
        })
    };
    let (plain, transactional) = (row(7, None), row(10, Some(Uuid::from_u128(1))));
    let end = plain.lines.len();
    vec![
        Slice { row: plain, first_offset: 8, start: lines[0].len(), end, end_offset: 10 },
        Slice {
            row: transactional,
            first_offset: 10,
            start: 0,
            end: lines[0].len(),
            end_offset: 11,
        },
    ]
}

fn fetched() -> Fetched {
    Fetched {
        slices: slices(),
        next_offset: 11,
        log_start_offset: 0,
        high_watermark: 13,
        staged: None,
    }
}

const AT: &str = "\"appended_at\":\"2026-11-21T08:00:00.123Z\"";
const ID: &str = "\"transaction_id\":\"00000000-0000-0000-0000-000000000001\"";

#[test]
fn lines_become_json() {
    let topic = Name::parse("orders").unwrap();
    let body = json_body(&topic, 3, &fetched());
    let want = format!(
        "{{\"topic\":\"orders\",\"partition\":3,\"records\":[\
         {{\"offset\":8,{AT},\"value\":\"\\n\"}},\
         {{\"offset\":9,{AT},\"value\":3}},\
         {{\"offset\":10,{AT},{ID},\"key\":\"a\",\"value\":1}}],\
         \"next_offset\":11,\"log_start_offset\":0,\"high_watermark\":13}}"
    );
    assert_eq!(String::from_utf8(body.clone()).unwrap(), want);
    let _: Value = serde_json::from_slice(&body).unwrap();
}

#[test]
fn nothing_is_an_empty_list() {
    let topic = Name::parse("o").unwrap();
    let none = Fetched { slices: vec![], next_offset: 0, staged: Some(vec![]), ..fetched() };
    let body = json_body(&topic, 0, &none);
    let value: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(value["records"], json!([]));
    assert_eq!(value["staged"], json!([]));
    assert!(ndjson_body(&none).is_empty());
}

#[test]
fn staged_lines_follow_the_records_as_they_are() {
    let staged = |id, state, lines: &str| Staged {
        transaction_id: (id > 0).then(|| Uuid::from_u128(id)),
        state,
        lines: lines.to_owned(),
    };
    let topic = Name::parse("o").unwrap();
    let two = "{\"value\":\"a,\\nb\"}\n{\"value\":1.50}\n";
    let staged =
        vec![staged(1, State::Prepared, two), staged(0, State::Ongoing, "{\"value\":2}\n")];
    let fetched = Fetched { slices: vec![], next_offset: 13, staged: Some(staged), ..fetched() };
    let body = String::from_utf8(json_body(&topic, 0, &fetched)).unwrap();
    let (_, staged) = body.split_once("\"high_watermark\":13,").unwrap();
    let want = format!(
        "\"staged\":[{{{ID},\"state\":\"prepared\",\"records\":[{{\"value\":\"a,\\nb\"}},{{\"value\":1.50}}]}},\
         {{\"transaction_id\":null,\"state\":\"ongoing\",\"records\":[{{\"value\":2}}]}}]}}"
    );
    assert_eq!(staged, want);
}

#[test]
fn lines_become_lines() {
    let body = String::from_utf8(ndjson_body(&fetched())).unwrap();
    let lines: Vec<_> = body.lines().collect();
    assert_eq!(lines[0], format!("{{\"offset\":8,{AT},\"value\":\"\\n\"}}"));
    assert_eq!(lines[2], format!("{{\"offset\":10,{AT},{ID},\"key\":\"a\",\"value\":1}}"));
    assert!(body.ends_with('\n') && lines.len() == 3);
}

#[test]
fn the_room_is_made_once() {
    let topic = Name::parse("orders").unwrap();
    let (fetched, mut far) = (fetched(), fetched());
    (far.slices[1].first_offset, far.slices[1].end_offset) = (MAX_INTEGER - 1, MAX_INTEGER);
    let (transaction_id, lines) = (Some(Uuid::max()), "{\"value\":1}\n".to_owned());
    let staged = vec![Staged { transaction_id, state: State::Prepared, lines }; 9];
    let staged = Fetched { staged: Some(staged), ..far.clone() };
    for fetched in [fetched, far, staged] {
        let body = json_body(&topic, 3, &fetched);
        assert!(body.len() <= body.capacity());
        assert!(ndjson_body(&fetched).len() <= capacity(&fetched));
    }
    let transactional = BatchRow {
        base_offset: 0,
        record_count: 0,
        appended_at: Timestamp(0),
        transaction_id: Some(Uuid::max()),
        kept: None,
        lines: String::new(),
    };
    assert!(row_members(&transactional).len() <= ROW_MEMBERS_BYTES);
}

fn read(query: &str, media: Media) -> Result<Read, ValidationErrors> {
    query::parse::<ReadQuery>(Some(query))?.checked(media)
}

#[test]
fn parameters() {
    let start = |query| read(query, Media::Json).map(|read| read.start);
    assert_eq!(start(""), Ok(Start::Earliest));
    assert_eq!(start("offset=earliest"), Ok(Start::Earliest));
    assert_eq!(start("offset=latest"), Ok(Start::Latest));
    assert_eq!(start("offset=7"), Ok(Start::Offset(7)));
    let instant = Start::Timestamp(Timestamp(1_795_248_000_000));
    assert_eq!(start("timestamp=2026-11-21T09:00:00+01:00"), Ok(instant));
    let small =
        read("limit=1&max_bytes=2&wait_ms=3&isolation=read_uncommitted", Media::Json).unwrap();
    assert_eq!((small.limit, small.max_bytes, small.wait_ms), (1, 2, 3));
    assert_eq!(small.isolation, read::Isolation::ReadUncommitted);
    let committed = read::Isolation::ReadCommitted;
    for query in ["", "isolation=read_committed"] {
        assert_eq!(read(query, Media::Json).unwrap().isolation, committed);
    }
}

#[test]
fn bad_parameters_are_named() {
    let table = [
        ("offset=-1", "?offset"),
        ("offset=newest", "?offset"),
        ("offset=9007199254740992", "?offset"),
        ("timestamp=yesterday", "?timestamp"),
        ("offset=1&timestamp=2026-11-21T08:00:00Z", "?timestamp"),
        ("limit=0", "?limit"),
        ("limit=10001", "?limit"),
        ("max_bytes=0", "?max_bytes"),
        ("max_bytes=16777217", "?max_bytes"),
        ("wait_ms=-1", "?wait_ms"),
        ("wait_ms=60001", "?wait_ms"),
        ("isolation=none", "?isolation"),
        ("cursor=x", "?cursor"),
    ];
    for (query, pointer) in table {
        let invalid = read(query, Media::Json).unwrap_err();
        assert_eq!(invalid.listed[0].pointer, pointer, "{query}");
    }
    let invalid = read("isolation=read_uncommitted", Media::Ndjson).unwrap_err();
    assert_eq!(invalid.listed[0].pointer, "?isolation");
}
