//! The cost of the largest, the most and the slowest requests, in the real program, so that no
//! other test affects its memory.

mod attacks;
mod mistakes;
mod quotas;
mod rates;
mod requests;
mod unread;

use std::{io::Write, net::SocketAddr};

use flate2::{Compression, write::GzEncoder};

use crate::metrics::Measured;

const MIB: usize = 1 << 20;

fn address(measured: &Measured) -> SocketAddr {
    address_of(&measured.process.url)
}

fn address_of(url: &str) -> SocketAddr {
    url.strip_prefix("http://").unwrap().parse().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::best());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}
