//! What has come of a body, up to a limit and counted in a memory budget.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::paced::Paced;
use crate::broker::Taken;

/// A smaller chunk is copied: it would hold on to hyper's buffer, which has at most four times as
/// many bytes.
pub const LEAST_SHARED_BYTES: usize = 16 << 10;
/// Bytes decompressed at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// Why reading stopped.
pub enum BodyFailure {
    TooLarge,
    Busy,
    TooSlow,
    Broken,
}

impl From<io::Error> for BodyFailure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut { Self::TooSlow } else { Self::Broken }
    }
}

pub struct Intake {
    limit: usize,
    held: Taken,
    /// A large first chunk of a body that is sent as it is: if there is no other, it is the body,
    /// and never copied.
    first: Bytes,
    bytes: BytesMut,
}

impl Intake {
    pub fn new(limit: usize, held: Taken) -> Self {
        Self { limit, held, first: Bytes::new(), bytes: BytesMut::new() }
    }

    pub fn len(&self) -> usize {
        self.first.len() + self.bytes.len()
    }

    pub fn finish(self) -> (Bytes, Taken) {
        let bytes = if self.bytes.is_empty() { self.first } else { self.bytes.freeze() };
        (bytes, self.held)
    }

    pub async fn take_all(&mut self, mut stream: Paced) -> Result<(), BodyFailure> {
        while let Some(chunk) = stream.next().await {
            let chunk = chunk?;
            self.count(self.len() + chunk.len())?;
            if self.len() == 0 && chunk.len() >= LEAST_SHARED_BYTES {
                self.first = chunk;
                continue;
            }
            self.bytes.extend_from_slice(&std::mem::take(&mut self.first));
            self.bytes.extend_from_slice(&chunk);
        }
        Ok(())
    }

    pub async fn decode_all(&mut self, decoder: impl AsyncRead) -> Result<(), BodyFailure> {
        let mut decoder = std::pin::pin!(decoder);
        loop {
            self.bytes.reserve(CHUNK_BYTES);
            let mut chunk = (&mut self.bytes).limit(CHUNK_BYTES);
            match decoder.read_buf(&mut chunk).await? {
                0 => return Ok(()),
                _ => self.count(self.bytes.len())?,
            }
        }
    }

    fn count(&mut self, bytes: usize) -> Result<(), BodyFailure> {
        if bytes > self.limit {
            return Err(BodyFailure::TooLarge);
        }
        if self.held.resize(bytes) { Ok(()) } else { Err(BodyFailure::Busy) }
    }
}
