//! An HTTP/1.1 connection with one request at a time. It writes prepared bytes, and parses only the
//! status, length and body of a response. A general-purpose client costs the measured machine
//! several times as much CPU.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, bail};
use bytes::BytesMut;
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const READ_BYTES: usize = 16 << 10;
const MOST_HEADERS: usize = 32;

/// The address of a server, and the headers of every request.
pub(super) struct Server {
    url: Url,
    addresses: Vec<SocketAddr>,
    /// The part of every request from the version to the headers of the body.
    head: String,
}

impl Server {
    pub fn new(url: &Url, token: Option<&SecretString>) -> anyhow::Result<Self> {
        let addresses =
            url.socket_addrs(|| None).with_context(|| format!("cannot resolve {url}"))?;
        let mut head = format!(" HTTP/1.1\r\nHost: {}\r\n", url.authority());
        let token = token.map(|token| token.expose_secret().trim()).unwrap_or_default();
        if token.contains(|c: char| !c.is_ascii_graphic()) {
            bail!("the token contains invalid characters");
        }
        if !token.is_empty() {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        Ok(Self { url: url.clone(), addresses, head })
    }

    /// Builds a request without a body.
    pub fn request(&self, method: &str, path: &str) -> String {
        let prefix = self.url.path().trim_end_matches('/');
        format!("{method} {prefix}/v1{path}{}\r\n", self.head)
    }

    /// The head of a request with a JSON body up to `Content-Length: `; the caller adds the number,
    /// an empty line and the body.
    pub fn json_head(&self, method: &str, path: &str) -> String {
        let mut head = self.request(method, path);
        head.truncate(head.len() - "\r\n".len());
        head + "Content-Type: application/json\r\nContent-Length: "
    }

    /// Builds a request with a JSON body.
    pub fn request_with(&self, method: &str, path: &str, body: &str) -> String {
        format!("{}{}\r\n\r\n{body}", self.json_head(method, path), body.len())
    }

    /// Sends a request on a new connection, outside the measurement.
    pub async fn call(
        self: &Arc<Self>,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let request = match body {
            Some(body) => self.request_with(method, path, &body.to_string()),
            None => self.request(method, path),
        };
        let mut connection = self.connect().await.with_context(|| self.url.to_string())?;
        let answer = connection.exchange(&request).await;
        let answer = answer.with_context(|| format!("{method} {path} at {}", self.url))?;
        if answer.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(answer).context("the response is not JSON")
    }

    pub async fn connect(self: &Arc<Self>) -> Result<Connection, Failure> {
        let stream = TcpStream::connect(&self.addresses[..]).await?;
        stream.set_nodelay(true)?;
        let input = BytesMut::with_capacity(READ_BYTES);
        Ok(Connection { server: self.clone(), stream, input })
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("no response: {0}")]
    Lost(std::io::Error),
    #[error("{0}, which is not a response of oncelog")]
    Foreign(String),
    #[error("HTTP {status}, {code}: {detail}")]
    Refused { status: u16, code: String, detail: String },
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Lost(error)
    }
}

impl Failure {
    /// The name under which the report counts it.
    pub fn code(&self) -> &str {
        match self {
            Self::Lost(_) => "no_answer",
            Self::Foreign(_) => "foreign_answer",
            Self::Refused { code, .. } => code,
        }
    }

    /// Whether the connection can be used again.
    pub fn leaves_connection(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    fn refused(status: u16, body: &[u8]) -> Self {
        let problem: Value = serde_json::from_slice(body).unwrap_or_default();
        match (problem["code"].as_str(), problem["detail"].as_str()) {
            (Some(code), Some(detail)) => {
                Self::Refused { status, code: code.to_owned(), detail: detail.to_owned() }
            }
            _ => Self::Foreign(format!("HTTP {status}")),
        }
    }
}

/// Whether a call was refused with this code.
pub(super) fn is_refused(error: &anyhow::Error, wanted: &str) -> bool {
    let failure = error.downcast_ref::<Failure>();
    matches!(failure, Some(Failure::Refused { code, .. }) if code == wanted)
}

pub(super) struct Connection {
    pub server: Arc<Server>,
    stream: TcpStream,
    input: BytesMut,
}

struct Head {
    status: u16,
    bytes: usize,
    body_bytes: usize,
}

impl Connection {
    /// Sends a request, waits for its response, and returns the body of a 2xx. After a failure
    /// other than a refusal the connection cannot be used again.
    pub async fn exchange(&mut self, request: &str) -> Result<&[u8], Failure> {
        self.input.clear();
        self.stream.write_all(request.as_bytes()).await?;
        let head = loop {
            self.fill(READ_BYTES).await?;
            if let Some(head) = parse_head(&self.input)? {
                break head;
            }
        };
        let size_bytes = head.bytes + head.body_bytes;
        while self.input.len() < size_bytes {
            self.fill(size_bytes - self.input.len()).await?;
        }
        if self.input.len() > size_bytes {
            return Err(Failure::Foreign("more than one response".into()));
        }
        let body = &self.input[head.bytes..];
        match head.status {
            200..=299 => Ok(body),
            status => Err(Failure::refused(status, body)),
        }
    }

    /// Sends a POST of JSON.
    pub async fn post(&mut self, path: &str, body: &str) -> Result<&[u8], Failure> {
        let request = self.server.request_with("POST", path, body);
        self.exchange(&request).await
    }

    /// Connects again if the connection cannot be used after this failure.
    pub async fn recover(&mut self, failure: &Failure) {
        if !failure.leaves_connection()
            && let Ok(connection) = self.server.connect().await
        {
            *self = connection;
        }
    }

    async fn fill(&mut self, size_bytes: usize) -> Result<(), Failure> {
        self.input.reserve(size_bytes);
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            _ => Ok(()),
        }
    }
}

/// Parses the head of a response, once it is complete.
fn parse_head(input: &[u8]) -> Result<Option<Head>, Failure> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let bytes = match answer.parse(input) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(Failure::Foreign(error.to_string())),
    };
    let status = answer.code.unwrap_or_default();
    let length = answer.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| str::from_utf8(header.value).ok()?.parse().ok());
    let body_bytes = match (status, length) {
        (204, _) => 0,
        (_, Some(length)) => length,
        (_, None) => return Err(Failure::Foreign("a response without a content-length".into())),
    };
    Ok(Some(Head { status, bytes, body_bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_parsed_once_complete() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n";
        let parsed = parse_head(answer).unwrap().unwrap();
        assert_eq!((parsed.status, parsed.bytes, parsed.body_bytes), (200, answer.len(), 12));
        assert!(parse_head(&answer[..answer.len() - 1]).unwrap().is_none());
        assert_eq!(parse_head(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap().body_bytes, 0);
        assert!(parse_head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(parse_head(b"SSH-2.0-OpenSSH_9.2\r\n").is_err());
    }

    #[test]
    fn a_refusal_has_a_code() {
        let problem = br#"{"code": "draining", "detail": "d"}"#;
        assert_eq!(Failure::refused(503, problem).code(), "draining");
        assert_eq!(Failure::refused(502, b"<html>").code(), "foreign_answer");
    }
}
