//! What requests hold in memory, from their first byte to the end of their work.

use futures_util::future::join_all;
use oncelog::model::Code;
use serde_json::json;
use sqlx::{ConnectOptions, Connection, Executor};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{MIB, address, gzip};
use crate::{
    metrics::{Measured, token},
    support::{self, served::until},
};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const PATH: &str = "/v1/topics/orders/records";

/// An append as it goes over the wire.
fn append(body: &[u8], headers: &str) -> Vec<u8> {
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n\
         authorization: Bearer {}\r\n{headers}content-length: {}\r\n\r\n",
        token("default"),
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// 31 KiB each, which are a million and a half of records with a header of a hundred bytes.
#[tokio::test]
async fn a_few_small_bodies_of_many_records_hold_little() {
    let measured = Measured::start(&support::database().await, &[]).await;
    measured.client.put_topic("orders", 4).await;
    measured.client.append("orders", 0, &[json!(1)]).await;
    let body = gzip("{\"value\":1}\n".repeat(15 * MIB / 12).as_bytes());
    assert!(body.len() < 64 << 10);
    let request = append(&body, &format!("content-encoding: gzip\r\ntraceparent: {TRACE}\r\n"));
    measured.process.forget_peak();
    let before = measured.process.memory_bytes("VmRSS");
    let sent = join_all((0..4).map(async |_| {
        let mut stream = TcpStream::connect(address(&measured)).await.unwrap();
        stream.write_all(&request).await.unwrap();
        support::http::Answer::read(&mut stream).await
    }));
    for answer in sent.await {
        assert_eq!(answer.refused(Code::BatchTooLarge)["limit"], 100_000);
    }
    let took = measured.process.memory_bytes("VmHWM").saturating_sub(before);
    println!("{} KiB", took >> 10);
    // the bodies themselves, with room to grow, and what is read of them before it is too much
    assert!(took < 4 * 32 * MIB, "{} MiB", took / MIB);
}

/// Clients that hang up leave their appends behind, which go on counting until they are stored.
#[tokio::test]
async fn what_waits_for_a_lane_counts_also_of_those_who_have_hung_up() {
    const BUDGET: usize = 8 * MIB;
    let options = support::database().await;
    let settings = [
        ("ONCELOG_MAX_IN_FLIGHT_BYTES", &*BUDGET.to_string()),
        ("ONCELOG_MAX_BODY_BYTES", "1048576"),
    ];
    let measured = Measured::start(&options, &settings).await;
    measured.client.put_topic("orders", 1).await;
    measured.client.append("orders", 0, &[json!(1)]).await;
    let held = async || {
        let scrape = measured.scrape().await;
        scrape.sum("oncelog_http_held_bytes", &[("held", "requests")]) as usize
    };
    let before = measured.process.memory_bytes("VmRSS");
    // nothing is stored as long as somebody else has the head
    let mut locked = options.connect().await.unwrap();
    locked.execute("begin; select from oncelog.logs for update").await.unwrap();
    let record = format!("{{\"value\":\"{}\"}}", "x".repeat(800 << 10));
    let request = append(&gzip(record.as_bytes()), "content-encoding: gzip\r\n");
    // its lines, with room for the copies of a spread
    let counted = 2 * record.len();
    let mut left_behind = 0;
    let refused = loop {
        let mut stream = TcpStream::connect(address(&measured)).await.unwrap();
        stream.write_all(&request).await.unwrap();
        let has_more = until("an answer, or bytes that count", async || {
            let mut answered = [0];
            if stream.try_read(&mut answered).is_ok() {
                return Some(false);
            }
            (held().await >= (left_behind + 1) * counted).then_some(true)
        });
        if !has_more.await {
            break stream;
        }
        left_behind += 1;
        drop(stream);
    };
    let mut rest = String::new();
    let reading = (&mut { refused }).take(400).read_to_string(&mut rest).await;
    assert!(reading.is_ok() && rest.starts_with("TTP/1.1 503"), "{rest}");
    assert!((2..=BUDGET / counted).contains(&left_behind), "{left_behind}");
    // of all but this test's own client
    measured.until("oncelog_http_connections", &[("listener", "public")], 1.0).await;
    assert!(held().await >= left_behind * counted);
    let took = measured.process.memory_bytes("VmRSS").saturating_sub(before);
    assert!(took < 6 * BUDGET, "{} MiB", took / MIB);
    locked.execute("rollback").await.unwrap();
    locked.close().await.unwrap();
    measured.until("oncelog_http_held_bytes", &[("held", "requests")], 0.0).await;
    let read = measured.client.read("orders", 0, "offset=0&limit=1").await.ok(200);
    assert_eq!(read["high_watermark"], 1 + left_behind);
}
