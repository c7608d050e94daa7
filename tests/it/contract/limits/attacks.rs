//! What HTTP/2 lets a client ask for that is never used well: floods of frames. A library does the
//! counting; these tests see that it still does, after every update of it. Each attack ends by a
//! bound of the server's, costs it next to no memory, and keeps nobody else from being answered.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{MIB, address};
use crate::{
    metrics::Measured,
    support::{self, http2::frame},
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// All that an attack sends, unless it is stopped.
const FRAMES: u32 = 200_000;
/// What all of them together may cost: connections, and what the allocator keeps.
const MOST_BYTES: usize = 32 * MIB;

/// POST / of http://x, from HPACK's static table.
const POST: [u8; 6] = [0x83, 0x84, 0x86, 0x41, 1, b'x'];
/// GET / of http://x
const GET: [u8; 6] = [0x82, 0x84, 0x86, 0x41, 1, b'x'];

type Attack = (&'static str, fn(u32) -> Vec<u8>, bool);

/// Of each attack: its name, its frames by their number, and whether the server ends it. What it
/// does not end it does not queue either: it stops to read.
const ATTACKS: [Attack; 9] = [
    ("rapid resets", rapid_reset, true),
    ("a head that never ends", endless_head, true),
    ("empty pieces of a head", empty_continuation, true),
    ("empty pieces of a body", empty_data, true),
    ("a window beyond its bound", overflow, true),
    ("a stream that depends on itself", own_parent, true),
    ("settings", settings, false),
    ("pings", pings, false),
    ("more streams than are allowed", unending_streams, false),
];

fn odd(number: u32) -> u32 {
    2 * number + 1
}

fn rapid_reset(number: u32) -> Vec<u8> {
    let get = frame(HEADERS, END_STREAM | END_HEADERS, odd(number), &GET);
    [get, frame(RST_STREAM, 0, odd(number), &[0, 0, 0, 8])].concat()
}

/// Literal headers that are not kept, of a name and a value of a byte.
fn endless_head(number: u32) -> Vec<u8> {
    match number {
        0 => frame(HEADERS, END_STREAM, 1, &GET),
        _ => frame(CONTINUATION, 0, 1, &[0, 1, b'a', 1, b'b'].repeat(1_000)),
    }
}

fn empty_continuation(number: u32) -> Vec<u8> {
    match number {
        0 => frame(HEADERS, END_STREAM, 1, &GET),
        _ => frame(CONTINUATION, 0, 1, &[]),
    }
}

fn empty_data(number: u32) -> Vec<u8> {
    match number {
        0 => frame(HEADERS, END_HEADERS, 1, &POST),
        _ => frame(DATA, 0, 1, &[]),
    }
}

fn overflow(number: u32) -> Vec<u8> {
    match number {
        0 => frame(HEADERS, END_HEADERS, 1, &POST),
        _ => frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
    }
}

fn own_parent(number: u32) -> Vec<u8> {
    let own = [&odd(number).to_be_bytes()[..], &[16]].concat();
    frame(PRIORITY, 0, odd(number), &own)
}

fn settings(_: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])
}

fn pings(number: u32) -> Vec<u8> {
    frame(PING, 0, 0, &u64::from(number).to_be_bytes())
}

/// Bodies that never come.
fn unending_streams(number: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, odd(number), &POST)
}

/// Whether the server ended the connection.
async fn attack(measured: &Measured, frames: fn(u32) -> Vec<u8>) -> bool {
    let stream = TcpStream::connect(address(measured)).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let hello = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &[])[..]].concat();
    write.write_all(&hello).await.unwrap();
    let sending = async {
        for number in 0..FRAMES {
            // a server that stops to read has stopped the attack
            let sent = timeout(Duration::from_secs(2), write.write_all(&frames(number))).await;
            match sent {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return true,
                Err(_) => return false,
            }
        }
        false
    };
    tokio::select! {
        is_refused = sending => is_refused,
        () = ends(&mut read) => true,
    }
}

async fn ends(read: &mut (impl AsyncReadExt + Unpin)) {
    let mut answers = [0; 4 << 10];
    while read.read(&mut answers).await.is_ok_and(|count| count > 0) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_frames_are_stopped() {
    let measured = Measured::start(&support::database().await, &[]).await;
    measured.client.get("/livez").await.ok(200);
    let before = measured.process.memory_bytes("VmRSS");
    for (name, frames, is_to_end) in ATTACKS {
        let attacked = attack(&measured, frames);
        let others = async {
            loop {
                measured.client.get("/livez").await.ok(200);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let is_ended = tokio::select! {
            outcome = attacked => outcome,
            never = others => never,
        };
        let cost = measured.process.memory_bytes("VmRSS").saturating_sub(before);
        println!("{name}: ended {is_ended}, {} KiB", cost >> 10);
        assert!(is_ended || !is_to_end, "{name} went on");
        assert!(cost < MOST_BYTES, "{name} cost {} MiB", cost / MIB);
    }
    measured.client.get("/readyz").await.ok(200);
}
