//! A client of HTTP/2 that asks and does not read: with it the window of each answer is as small as
//! a test wants it.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const INITIAL_WINDOW_SIZE: u16 = 4;
const END_STREAM_AND_HEADERS: u8 = 5;

pub struct Connection {
    stream: TcpStream,
    asked: u32,
    answered: u32,
}

impl Connection {
    /// Of each answer that many bytes may come.
    pub async fn open(address: SocketAddr, window_bytes: u32) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut setting = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
        setting.extend(window_bytes.to_be_bytes());
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let hello = [&preface[..], &frame(SETTINGS, 0, 0, &setting)].concat();
        stream.write_all(&hello).await.unwrap();
        Self { stream, asked: 0, answered: 0 }
    }

    /// Asks that many times for a path.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)], times: u32) {
        // of HPACK's static table: GET, http; then literals that are not kept
        let mut block = vec![0x82, 0x86, 0x04];
        block.extend(literal(path));
        block.push(0x01);
        block.extend(literal("localhost"));
        for (name, value) in headers {
            block.push(0x00);
            block.extend(literal(name));
            block.extend(literal(value));
        }
        let asks = (self.asked..self.asked + times)
            .flat_map(|index| frame(HEADERS, END_STREAM_AND_HEADERS, 2 * index + 1, &block));
        self.stream.write_all(&asks.collect::<Vec<u8>>()).await.unwrap();
        self.asked += times;
    }

    /// Waits until all that was asked for has begun to be answered.
    pub async fn all_answered(&mut self) {
        while self.answered < self.asked {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await.unwrap();
            let length =
                usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let mut payload = vec![0; length];
            self.stream.read_exact(&mut payload).await.unwrap();
            match head[3] {
                HEADERS => self.answered += 1,
                // what comes of a body is what the window lets through
                DATA | SETTINGS => {}
                other => assert!(other > SETTINGS, "stream reset: {head:?} {payload:?}"),
            }
        }
    }
}

/// A frame, as it is sent.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A short string that is not compressed.
fn literal(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    assert!(length < 127);
    [&[length], text.as_bytes()].concat()
}
