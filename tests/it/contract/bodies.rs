//! Bodies of appends over HTTP: exact JSON, NDJSON, encodings, sizes, slow and broken ones, and
//! what becomes of them when they are read.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use oncelog::{http::Limits, model::Code};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::http::{Answer, Call, Server, Setup, token};

const WHOLE: &str = "/v1/topics/orders/records";
const ONE: &str = "/v1/topics/orders/partitions/0/records";

async fn served() -> Server {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    server
}

/// The only thing in the log is nothing.
async fn is_empty(server: &Server) {
    assert_eq!(server.get(ONE).await.ok()["high_watermark"], 0);
}

/// The records of a read as they are: one a line, without what the log added.
async fn lines(server: &Server, path: &str) -> Vec<String> {
    let read = server.get(path).header("accept", "application/x-ndjson").await;
    assert_eq!((read.status, read.header("content-type")), (200, Some("application/x-ndjson")));
    let own = |line: &str| {
        let (_, rest) = line.split_once("\"appended_at\":\"").unwrap();
        format!("{{{}", rest.split_once("\",").unwrap().1)
    };
    read.text().lines().map(own).collect()
}

#[tokio::test]
async fn values_come_back_as_they_were_sent() {
    let server = served().await;
    let exact = [
        "1.0",
        "1.00",
        "-0",
        "-0.0",
        "1E300",
        "1e-400",
        "0.1000000000000000055511151231257827",
        "12345678901234567890",
        "123456789012345678901234567890",
        "null",
        "true",
        "\"\"",
        "\"\\u0000\"",
        "\" \\ud83d\\ude00 \\u00e9\\/\"",
        "\"\u{2028}\u{7f}😀\"",
        "{\"b\":1,\"a\":2,\"b\":3,\"\":{\"b\":[]}}",
        "{\"\\u0062\":1,\"b\":2}",
        "[1,2.0,[],{},\"  a  b \"]",
        "{\"offset\":1,\"appended_at\":\"x\"}",
    ];
    for value in exact {
        server.post(ONE).json(format!("{{\"records\":[{{\"value\":{value}}}]}}")).await.ok();
    }
    let want: Vec<_> = exact.iter().map(|value| format!("{{\"value\":{value}}}")).collect();
    assert_eq!(lines(&server, ONE).await, want);
    // and as JSON: an array of the same
    let text = server.get(ONE).await.text().to_owned();
    for value in exact {
        assert!(text.contains(&format!(",\"value\":{value}}}")), "{value}");
    }
}

#[tokio::test]
async fn whitespace_between_tokens_goes_and_nothing_else() {
    let server = served().await;
    let pretty = "\r\n{ \"records\" :\t[\n  {\n    \"value\" : {\n      \"a b\" : [ 1 , \" x \\\" \\n\" ,\r\n\t{ } ] \
        ,\n\n \"c\":\n 1.50 } ,\n    \"key\" : \"k\"\n  } ]\n}\n ";
    server.post(ONE).json(pretty).await.ok();
    let want = "{\"value\":{\"a b\":[1,\" x \\\" \\n\",{}],\"c\":1.50},\"key\":\"k\"}";
    assert_eq!(lines(&server, ONE).await, [want]);
}

/// As deep as every client's parser goes, and a server that no depth brings down.
#[tokio::test]
async fn values_are_nested_128_deep_at_most() {
    let server = served().await;
    let nested =
        |open: &str, close: &str, levels| open.repeat(levels) + "1" + &close.repeat(levels);
    let both = |levels| [nested("[", "]", levels), nested("{\"a\":", "}", levels)];
    for value in both(128) {
        server.post(ONE).json(format!("{{\"records\":[{{\"value\":{value}}}]}}")).await.ok();
        server.post(ONE).ndjson(format!("{{\"value\":{value}}}\n")).await.ok();
    }
    for value in [both(129), both(100_000)].concat() {
        let record = format!("{{\"value\":{value}}}");
        server.post(ONE).ndjson(&record).await.invalid(&["/records/0/value"]);
        for body in [
            format!("{{\"records\":[{record}]}}"),
            value.clone(),
            format!("{{\"records\":{value}}}"),
            format!("{{\"records\":[{{\"key\":{value}}}]}}"),
            format!("{{\"unknown\":{value}}}"),
        ] {
            server.post(ONE).json(&body).await.refused(Code::InvalidRequest);
            server.post("/v1/sessions").json(&body).await.refused(Code::InvalidRequest);
            server.put("/v1/topics/x").json(&body).await.refused(Code::InvalidRequest);
        }
    }
    let want = both(128).map(|value| vec![format!("{{\"value\":{value}}}"); 2]).concat();
    assert_eq!(lines(&server, ONE).await, want);
}

#[tokio::test]
async fn what_is_wrong_with_a_record_is_named_and_nothing_stored() {
    let server = served().await;
    let deep = format!("\"value\":{}0{}", "[".repeat(129), "]".repeat(129));
    // a record's fields -> where below the record
    let table = [
        (r#""valeu":1"#, "/valeu"),
        (r#""value":1,"offset":7"#, "/offset"),
        (r#""value":1,"value":2"#, "/value"),
        (r#""value":1,"key":"a","key":"a""#, "/key"),
        (r#""value":1,"headers":{"a":"1","a":"2"}"#, "/headers/a"),
        (r#""value":1,"headers":{"a":"1","\u0061":"2"}"#, "/headers/a"),
        (r#""value":1,"value_base64":"""#, ""),
        (r#""key":"a""#, ""),
        ("", ""),
        (r#""value":[0,1e999]"#, "/value"),
        (r#""value":{"a":"\udc00\ud800"}"#, "/value"),
        (r#""value":{"\ud800":1}"#, "/value"),
        (&deep, "/value"),
        (r#""value":1,"key":1"#, "/key"),
        (r#""value":1,"key":{}"#, "/key"),
        (r#""value":1,"key":"\ud800""#, "/key"),
        (r#""value":1,"id":"\udfff""#, "/id"),
        (r#""value":1,"headers":{"a":"\ud800"}"#, "/headers/a"),
        (r#""value":1,"headers":{"a":1}"#, "/headers/a"),
        (r#""value":1,"headers":{"a":null}"#, "/headers/a"),
        (r#""value":1,"headers":[]"#, "/headers"),
        (r#""value_base64":"AAE""#, "/value_base64"),
        (r#""value_base64":"A A=""#, "/value_base64"),
        (r#""value_base64":"_-8=""#, "/value_base64"),
        (r#""value":1,"timestamp":"yesterday""#, "/timestamp"),
        (r#""value":1,"timestamp":"2026-11-21T08:00:00""#, "/timestamp"),
        (r#""value":1,"timestamp":"2026-02-30T08:00:00Z""#, "/timestamp"),
        (r#""value":1,"timestamp":1795248000"#, "/timestamp"),
    ];
    for (fields, below) in table {
        let pointer = format!("/records/7{below}");
        let good = r#"{"value":0},"#.repeat(7);
        let json = format!("{{\"records\":[{good}{{{fields}}}]}}");
        server.post(ONE).json(&json).await.invalid(&[&pointer]);
        server.post(WHOLE).json(&json).await.invalid(&[&pointer]);
        if below != "/offset" {
            let lines = "{\"value\":0}\n".repeat(7) + &format!("{{{fields}}}\n{{\"value\":0}}\n");
            server.post(ONE).ndjson(&lines).await.invalid(&[&pointer]);
        }
    }
    is_empty(&server).await;
}

#[tokio::test]
async fn what_is_wrong_around_the_records_is_named_and_nothing_stored() {
    let server = served().await;
    // a lone surrogate as the name of a header
    let body = r#"{"records":[{"value":1,"headers":{"\ud800":"x"}}]}"#;
    server.post(ONE).json(body).await.refused(Code::InvalidRequest);
    for (body, pointer) in [
        (r#"{}"#, "/records"),
        (r#"{"records":[]}"#, "/records"),
        (r#"{"records":null}"#, "/records"),
        (r#"{"records":{}}"#, "/records"),
        (r#"{"records":[1]}"#, "/records/0"),
        (r#"{"records":[{"value":1}],"records":[{"value":1}]}"#, "/records"),
        (r#"{"records":[{"value":1}],"record":[]}"#, "/record"),
        (r#"{"sequence":0,"records":[{"value":1}],"sequence":0}"#, "/sequence"),
        ("", ""),
        ("[]", ""),
        ("null", ""),
    ] {
        server.post(ONE).json(body).await.invalid(&[pointer]);
    }
    for body in [
        "{\"records\":[{\"value\":1}]",
        "{\"records\":[{\"value\":1}]} x",
        "{\"records\":[{\"value\":01}]}",
    ] {
        server.post(ONE).json(body).await.refused(Code::InvalidRequest);
    }
    // raw bytes that are no UTF-8, anywhere; also half a surrogate in CESU-8
    for bytes in [&b"\xff"[..], b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"] {
        for place in ["value", "key"] {
            let head = format!("{{\"records\":[{{\"value\":1,\"{place}\":\"");
            let body = [head.as_bytes(), bytes, b"\"}]}"].concat();
            server.post(ONE).json("").body(body.clone()).await.invalid(&[""]);
            server.post(ONE).ndjson("").body(body).await.invalid(&[""]);
        }
    }
    is_empty(&server).await;
}

#[tokio::test]
async fn what_a_record_was_sent_without_it_is_read_without() {
    let server = served().await;
    let records = r#"[{"value":null},
        {"key":null,"headers":null,"timestamp":null,"id":null,"value_base64":null,"value":1},
        {"key":"","headers":{},"value":2},
        {"id":"i","headers":{"b":"\u0000","a":""},"key":"\u00e9\n","value_base64":"AAEC"}]"#;
    server.post(ONE).json(format!("{{\"records\":{records}}}")).await.ok();
    let want = [
        "{\"value\":null}",
        "{\"value\":1}",
        "{\"value\":2,\"key\":\"\",\"headers\":{}}",
        "{\"value_base64\":\"AAEC\",\"key\":\"é\\n\",\"id\":\"i\",\"headers\":{\"a\":\"\",\"b\":\"\\u0000\"}}",
    ];
    assert_eq!(lines(&server, ONE).await, want);
}

#[tokio::test]
async fn instants_are_answered_in_utc_with_milliseconds() {
    let server = served().await;
    let table = [
        ("2026-11-21T08:00:00Z", "2026-11-21T08:00:00.000Z"),
        ("2026-11-21T09:30:00.1+01:30", "2026-11-21T08:00:00.100Z"),
        ("2026-11-21T00:00:00.123999999-08:00", "2026-11-21T08:00:00.123Z"),
        ("1969-12-31T23:59:59.9999Z", "1969-12-31T23:59:59.999Z"),
    ];
    for (sent, _) in table {
        let body = json!({"records": [{"value": 1, "timestamp": sent}]});
        server.post(ONE).json(body).await.ok();
    }
    let read = server.get(ONE).await.ok();
    let records = read["records"].as_array().unwrap();
    for ((_, want), record) in table.iter().zip(records) {
        assert_eq!(record["timestamp"], *want);
        let at = record["appended_at"].as_str().unwrap();
        assert!(at.len() == 24 && at.ends_with('Z'), "{at}");
    }
}

#[tokio::test]
async fn lines_carry_records_and_the_query_the_rest() {
    let server = served().await;
    let (p, _) = server.session("p").await;
    let post = |query: &str, lines: &str| {
        server.post(&format!("{ONE}?producer_id={p}&epoch=0&{query}")).ndjson(lines)
    };
    // empty lines, line ends of both kinds, no end at all
    let first =
        post("sequence=0", "\n{\"value\":1}\r\n  \n\t{ \"value\" : 2 }\n\n{\"value\":3}").await;
    let said = first.ok();
    assert_eq!((&said["base_offset"], &said["record_count"]), (&json!(0), &json!(3)));
    assert_eq!(lines(&server, ONE).await, ["{\"value\":1}", "{\"value\":2}", "{\"value\":3}"]);
    // the topic form; the JSON form of the same records is the same request
    let whole = server.post(&format!("{WHOLE}?producer_id={p}&epoch=0&sequence=0"));
    assert_eq!(whole.ndjson("{\"key\":\"k\",\"value\":1}").await.ok()["offsets"][0]["offset"], 3);
    let json = json!({"producer_id": p, "epoch": 0, "sequence": 0, "records":
        [{"key": "k", "value": 1}]});
    assert_eq!(server.post(WHOLE).json(json).await.ok()["duplicate"], true);
    // JSON takes no parameters, NDJSON only those
    for query in ["sequence=0", "producer_id=1&epoch=0&sequence=0", "expected_offset=0"] {
        let name = format!("?{}", query.split('=').next().unwrap());
        let call = server.post(&format!("{ONE}?{query}")).json(json!({"records": [{"value": 1}]}));
        call.await.invalid(&[&name]);
    }
    post("sequence=1&seqence=2", "{\"value\":1}").await.invalid(&["?seqence"]);
    post("sequence=1&sequence=1", "{\"value\":1}").await.invalid(&["?sequence"]);
    for nothing in ["", "\n", " \r\n\t\n"] {
        post("sequence=1", nothing).await.invalid(&[""]);
    }
    for broken in ["{\"value\":1}{\"value\":2}", "{\"value\":\n1}", "[{\"value\":1}]", "x"] {
        post("sequence=1", broken).await.refused(Code::InvalidRequest);
    }
    // nothing of it used the sequence up
    assert_eq!(post("sequence=1", "{\"value\":4}").await.ok()["base_offset"], 4);
}

#[tokio::test]
async fn what_a_read_answers_can_be_piped_into_an_append() {
    let server = served().await;
    server.topic("copy", 1).await;
    let records = json!([
        {"key": "k", "value": {"total": 12.5}, "headers": {"source": "web"},
            "timestamp": "2026-11-21T08:00:00.000Z", "id": "i"},
        {"value_base64": "AAEC"}, {"value": null}, {"key": "", "value": "\n\u{0}"}]);
    server.post(ONE).json(json!({"records": records})).await.ok();
    let read = server.get(ONE).header("accept", "application/x-ndjson").await;
    assert_eq!(read.header("oncelog-next-offset"), Some("4"));
    assert_eq!(read.header("oncelog-high-watermark"), Some("4"));
    assert_eq!(read.header("oncelog-log-start-offset"), Some("0"));
    let copy = "/v1/topics/copy/partitions/0/records";
    let (p, _) = server.session("copier").await;
    // the position read from is the sequence: a relay that may be started again
    let call = || server.post(&format!("{copy}?producer_id={p}&epoch=0&sequence=0"));
    assert_eq!(call().ndjson(read.text()).await.ok()["record_count"], 4);
    assert_eq!(call().ndjson(read.text()).await.ok()["duplicate"], true);
    assert_eq!(lines(&server, copy).await, lines(&server, ONE).await);
    // what reads of other kinds add is ignored too
    let line =
        r#"{"topic":"t","partition":3,"offset":9,"appended_at":"x","transaction_id":[],"value":1}"#;
    server.post(copy).ndjson(line).await.ok();
    assert_eq!(lines(&server, copy).await[4], "{\"value\":1}");
    // but only there
    let json = format!("{{\"records\":[{line}]}}");
    server.post(copy).json(json).await.invalid(&["/records/0/topic"]);
}

#[tokio::test]
async fn a_trace_is_kept_as_a_header() {
    let server = served().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let own = "00-11111111111111111111111111111111-2222222222222222-00";
    let body = json!({"records": [{"value": 1}, {"value": 2, "headers": {"a": "1"}},
        {"value": 3, "headers": {"traceparent": own}}]});
    server.post(ONE).json(&body).header("traceparent", trace).await.ok();
    let headers = |read: &Value, index: usize| read["records"][index]["headers"].clone();
    let read = server.get(ONE).await.ok();
    assert_eq!(headers(&read, 0), json!({"traceparent": trace}));
    assert_eq!(headers(&read, 1), json!({"a": "1", "traceparent": trace}));
    assert_eq!(headers(&read, 2), json!({"traceparent": own}));
    // what is none is not kept
    let zeros = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
    for bad in ["x", zeros, &trace.to_uppercase(), &trace[..54]] {
        server.post(ONE).json(&body).header("traceparent", bad).await.ok();
    }
    let read = server.get(&format!("{ONE}?offset=3")).await.ok();
    for index in 0..4 {
        assert_eq!(headers(&read, index * 3), Value::Null);
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

fn encoded(server: &Server, encoding: &str, body: Vec<u8>) -> Call {
    server.post(ONE).json("").body(body).header("content-encoding", encoding)
}

#[tokio::test]
async fn compressed_bodies_are_what_they_hold() {
    let limits = Limits { max_body_bytes: 10_000, ..Limits::default() };
    let server = Server::with(Setup { limits, ..Setup::default() }).await;
    server.topic("orders", 1).await;
    let body = br#"{"records":[{"value":"compressed"}]}"#;
    let [left, right] = [&body[..10], &body[10..]];
    for (encoding, bytes) in [
        ("gzip", gzip(body)),
        ("GZIP", gzip(body)),
        ("zstd", zstd(body)),
        ("identity", body.to_vec()),
        ("gzip", [gzip(left), gzip(right)].concat()),
        ("zstd", [zstd(left), zstd(right)].concat()),
    ] {
        encoded(&server, encoding, bytes).await.ok();
    }
    let count = lines(&server, ONE).await.len();
    // the digest is of the records: a repeat may be compressed
    let (p, _) = server.session("p").await;
    let numbered = json!({"producer_id": p, "epoch": 0, "sequence": 0, "records": [{"value": 1}]});
    server.post(ONE).json(&numbered).await.ok();
    let again = encoded(&server, "zstd", zstd(numbered.to_string().as_bytes())).await;
    assert_eq!(again.ok()["duplicate"], true);
    // corrupt, cut off, not compressed at all
    type Encode = fn(&[u8]) -> Vec<u8>;
    for (encoding, encode) in [("gzip", gzip as Encode), ("zstd", zstd)] {
        let whole = encode(body);
        let mut flipped = whole.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 0x55;
        for bad in [flipped, whole[..whole.len() - 3].to_vec(), body.to_vec()] {
            encoded(&server, encoding, bad).await.refused(Code::InvalidRequest);
        }
        // a bomb: small on the wire
        let bomb = encode(" ".repeat(10_001).as_bytes());
        assert!(bomb.len() < 200);
        let problem = encoded(&server, encoding, bomb).await.refused(Code::PayloadTooLarge);
        assert_eq!(problem["limit"], 10_000);
        let bomb = encode(" ".repeat(20_000_000).as_bytes());
        encoded(&server, encoding, bomb).await.refused(Code::PayloadTooLarge);
        let fits = format!("{:10000}", r#"{"records":[{"value":"fits"}]}"#);
        encoded(&server, encoding, encode(fits.as_bytes())).await.ok();
    }
    for unknown in ["br", "deflate", "gzip, zstd", ""] {
        encoded(&server, unknown, body.to_vec()).await.refused(Code::UnsupportedMediaType);
    }
    assert_eq!(lines(&server, ONE).await.len(), count + 3);
}

#[tokio::test]
async fn answers_are_compressed_when_asked_for() {
    let server = served().await;
    let value = "x".repeat(10_000);
    server.post(ONE).json(json!({"records": [{"value": value}]})).await.ok();
    let get = |encoding: &str| server.get(ONE).header("accept-encoding", encoding);
    let plain = server.get(ONE).await;
    assert!(plain.header("content-encoding").is_none());
    let read = get("gzip").await;
    assert_eq!(read.header("content-encoding"), Some("gzip"));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&read.body[..]), &mut text)
        .unwrap();
    assert_eq!(text, plain.text());
    let read = get("zstd, gzip;q=0.5").await;
    assert_eq!(read.header("content-encoding"), Some("zstd"));
    assert_eq!(zstd::decode_all(&read.body[..]).unwrap(), plain.body);
    assert!(get("br").await.header("content-encoding").is_none());
}

#[tokio::test]
async fn sizes_are_bounded_however_they_are_told() {
    let limits = Limits { max_body_bytes: 1_000, max_in_flight_bytes: 1_500, ..Limits::default() };
    let server = Server::with(Setup { limits, ..Setup::default() }).await;
    server.topic("orders", 1).await;
    let body = |bytes: usize| format!("{:bytes$}", r#"{"records":[{"value":1}]}"#);
    server.post(ONE).json(body(1_000)).await.ok();
    for path in [ONE, WHOLE, "/v1/sessions"] {
        let problem = server.post(path).json(body(1_001)).await.refused(Code::PayloadTooLarge);
        assert_eq!(problem["limit"], 1_000);
    }
    let head =
        format!("POST {ONE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
    // announced: refused before a byte of it comes
    let announced = server.raw(format!("{head}content-length: 999999999\r\n\r\n")).await;
    announced.refused(Code::PayloadTooLarge);
    // not announced: refused at the byte that is too much
    let chunk = |bytes: usize| format!("{bytes:x}\r\n{}\r\n", " ".repeat(bytes));
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n");
    let endless = format!("{chunked}{}{}", chunk(600), chunk(401));
    server.raw(endless).await.refused(Code::PayloadTooLarge);
    let good = body(50);
    server.raw(format!("{chunked}{}32\r\n{good}\r\n0\r\n\r\n", chunk(600))).await.ok();
    // two that fit, but not together: one holds its bytes, the other is told to come later
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    let half = format!("{head}content-length: 1000\r\n\r\n{}", " ".repeat(900));
    slow.write_all(half.as_bytes()).await.unwrap();
    loop {
        let answer = server.post(ONE).json(body(700)).await;
        if answer.status == 503 {
            answer.refused(Code::Unavailable);
            break;
        }
        answer.ok();
    }
    drop(slow);
    while server.post(ONE).json(body(700)).await.status != 200 {}
}

#[tokio::test]
async fn a_slow_body_is_given_up_and_a_broken_one_stores_nothing() {
    let limits = Limits { body_timeout_ms: 100, ..Limits::default() };
    let server = Server::with(Setup { limits, ..Setup::default() }).await;
    server.topic("orders", 1).await;
    let head =
        format!("POST {ONE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
    let body = r#"{"records":[{"value":1}]}"#;
    let length = format!("{head}content-length: {}\r\n\r\n", body.len());
    for slow in [
        length.clone(),
        format!("{length}{}", &body[..body.len() - 1]),
        format!("{head}transfer-encoding: chunked\r\n\r\n"),
        format!("{head}transfer-encoding: chunked\r\n\r\n19\r\n{body}\r\n"),
    ] {
        let answer: Answer = server.raw(slow).await;
        let problem = answer.refused(Code::RequestTimeout);
        assert_eq!((&problem["retry"], &problem["side_effects"]), (&json!("same"), &json!("none")));
        assert_eq!(answer.header("connection"), Some("close"));
    }
    // hung up in the middle, or garbage instead of a chunk
    for broken in [
        format!("{length}{{"),
        format!("{head}transfer-encoding: chunked\r\n\r\n19\r\n{body}\r\nzz\r\n"),
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(broken.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 400"));
    }
    is_empty(&server).await;
    // several requests of one connection, each with its own answer
    let twice = format!("{length}{body}").repeat(2);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(twice.as_bytes()).await.unwrap();
    assert_eq!(Answer::read(&mut stream).await.ok()["base_offset"], 0);
    assert_eq!(server.get(&format!("{ONE}?offset=1&wait_ms=5000")).await.ok()["next_offset"], 2);
}

#[tokio::test]
async fn media_types_of_appends() {
    let server = served().await;
    let body = r#"{"records":[{"value":1}]}"#;
    let post = |media: &str| server.post(ONE).header("content-type", media).body(body);
    for taken in ["application/json", "APPLICATION/json;charset=utf-8"] {
        post(taken).await.ok();
    }
    for other in ["text/plain", "application/cloudevents+json", "application/json; charset=utf-16"]
    {
        post(other).await.refused(Code::UnsupportedMediaType);
    }
    server.post(ONE).body(body).await.refused(Code::UnsupportedMediaType);
    // an empty body needs no type, but an append needs records
    server.post(ONE).await.invalid(&[""]);
    let accept = |accept: &str| post("application/json").header("accept", accept);
    accept("application/x-ndjson").await.refused(Code::NotAcceptable);
    accept("application/x-ndjson, */*;q=0.1").await.ok();
    let html = server.get(ONE).header("accept", "text/html").await;
    html.refused(Code::NotAcceptable);
}

/// A client that writes all before it reads learns why it was refused.
#[tokio::test]
async fn a_refusal_arrives_while_the_body_is_on_its_way() {
    let server = Server::signed().await;
    let body = "x".repeat(2 << 20);
    for (token, code) in [
        (String::new(), Code::Unauthenticated),
        (token("acme", "consume"), Code::Forbidden),
        (token("acme", "produce:other"), Code::Forbidden),
    ] {
        for _ in 0..10 {
            let head = format!(
                "POST {ONE} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                 authorization: Bearer {token}\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n",
                body.len()
            );
            server.raw(head + &body).await.refused(code);
        }
    }
}
