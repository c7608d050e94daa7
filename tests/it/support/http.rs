//! A real server for tests: the whole face on a socket over a fresh database, and ways to speak to
//! it: JSON, lines, raw bytes, tokens.

use std::{
    future::IntoFuture,
    net::SocketAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use jsonwebtoken::{EncodingKey, Header, encode};
use oncelog::{
    broker::{Broker, ServiceConfig},
    http::{
        self, AppState, Limits, Listener, Routers,
        extract::auth::{Issuer, Keys, TokenRules},
    },
    model::Code,
};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use crate::support;

/// What a server is made of; the rest is the database's.
pub struct Setup {
    pub listener: Listener,
    pub keys: Keys,
    pub limits: Limits,
    pub settings: ServiceConfig,
}

impl Default for Setup {
    /// No tokens, and little patience with gaps.
    fn default() -> Self {
        let keys = Keys::open().unwrap();
        let settings = ServiceConfig { gap_wait_ms: 100, ..ServiceConfig::default() };
        Self { listener: Listener::Whole, keys, limits: Limits::default(), settings }
    }
}

/// Served until dropped.
pub struct Server {
    pub broker: Arc<Broker>,
    pub options: PgConnectOptions,
    pub address: SocketAddr,
    client: reqwest::Client,
    stop: CancellationToken,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.broker.drain();
        self.stop.cancel();
    }
}

impl Server {
    /// Without tokens, tenant `default`.
    pub async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    /// With tokens of `token`.
    pub async fn signed() -> Self {
        Self::with(Setup { keys: shared_keys(), ..Setup::default() }).await
    }

    pub async fn with(setup: Setup) -> Self {
        Self::on(&super::database().await, setup).await
    }

    /// One more replica over a database.
    pub async fn on(options: &PgConnectOptions, setup: Setup) -> Self {
        let broker = super::broker(options, setup.settings);
        let limits = setup.limits;
        let metrics = || "oncelog_test 1\n".to_owned();
        let routers = Routers::starting(setup.listener);
        routers.serve(AppState::new(broker.clone(), setup.keys, limits.clone(), metrics));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            http::server::serve(listener, routers, &limits, None, stopped).await
        });
        let client = reqwest::Client::new();
        Self { broker, options: options.clone(), address, client, stop }
    }

    pub fn call(&self, method: &str, path: &str) -> Call {
        let url = format!("http://{}{path}", self.address);
        let request = self.client.request(method.parse().unwrap(), url);
        Call { request, line: (method.to_owned(), path.to_owned()) }
    }
    pub fn get(&self, path: &str) -> Call {
        self.call("GET", path)
    }
    pub fn post(&self, path: &str) -> Call {
        self.call("POST", path)
    }
    pub fn put(&self, path: &str) -> Call {
        self.call("PUT", path)
    }
    pub fn patch(&self, path: &str) -> Call {
        self.call("PATCH", path)
    }
    pub fn delete(&self, path: &str) -> Call {
        self.call("DELETE", path)
    }

    /// Writes these bytes and reads one answer; a part of a request is as welcome.
    pub async fn raw(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_ref()).await.unwrap();
        Answer::read(&mut stream).await
    }

    /// A topic with that many partitions.
    pub async fn topic(&self, name: &str, partition_count: i32) {
        let body = json!({"partition_count": partition_count});
        assert_eq!(self.put(&format!("/v1/topics/{name}")).json(body).await.status, 201);
    }

    /// The producer id of a fresh session of this name, at whatever epoch.
    pub async fn session(&self, transactional_id: &str) -> (i64, i64) {
        let open = self.post("/v1/sessions").json(json!({"transactional_id": transactional_id}));
        let session = open.await.created();
        (session["producer_id"].as_i64().unwrap(), session["epoch"].as_i64().unwrap())
    }

    pub async fn sql(&self, sql: impl Into<String>) {
        support::execute(&self.options, sql).await;
    }
}

/// A request in the making; awaiting it sends it.
#[must_use]
pub struct Call {
    request: reqwest::RequestBuilder,
    /// Method and path: what the document has to know of the answer.
    line: (String, String),
}

impl Call {
    pub fn header(self, name: &str, value: &str) -> Self {
        Self { request: self.request.header(name, value), ..self }
    }
    pub fn token(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }
    pub fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self { request: self.request.body(body.into()), ..self }
    }
    /// JSON as it is written: a `Value` or text.
    pub fn json(self, body: impl ToString) -> Self {
        self.header("content-type", "application/json").body(body.to_string())
    }
    pub fn ndjson(self, body: impl ToString) -> Self {
        self.header("content-type", "application/x-ndjson").body(body.to_string())
    }
}

impl IntoFuture for Call {
    type Output = Answer;
    type IntoFuture = BoxFuture<'static, Answer>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let answer = self.request.send().await.unwrap();
            let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
            let answer = Answer { status, headers, body: answer.bytes().await.unwrap() };
            super::document::allows(&self.line.0, &self.line.1, &answer);
            answer
        })
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    /// One answer of HTTP/1.1 with a length, or until the end.
    pub async fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        loop {
            let head = bytes.windows(4).position(|end| end == b"\r\n\r\n");
            if let Some(end) = head {
                let (status, headers) = head_of(std::str::from_utf8(&bytes[..end]).unwrap());
                let length = headers.get("content-length").map(|n| n.to_str().unwrap());
                let length = length.map_or(usize::MAX, |n| n.parse().unwrap());
                let body = &bytes[end + 4..];
                if body.len() >= length {
                    return Self { status, headers, body: body[..length].to_vec().into() };
                }
            }
            if stream.read_buf(&mut bytes).await.unwrap() == 0 {
                let end = head.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&bytes)));
                let (status, headers) = head_of(std::str::from_utf8(&bytes[..end]).unwrap());
                return Self { status, headers, body: bytes[end + 4..].to_vec().into() };
            }
        }
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// 200, and what it says.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// 201, and what it says.
    #[track_caller]
    pub fn created(&self) -> Value {
        assert_eq!(self.status, 201, "{}", self.text());
        self.json()
    }

    #[track_caller]
    pub fn no_content(&self) {
        assert_eq!((self.status, self.text()), (204, ""));
    }

    /// A problem of this code, and its document.
    #[track_caller]
    pub fn refused(&self, code: Code) -> Value {
        let problem = self.json();
        let got = (self.status, problem["code"].as_str());
        assert_eq!(got, (code.status(), Some(code.as_str())), "{}", self.text());
        problem
    }

    /// `invalid_request` at exactly these places.
    #[track_caller]
    pub fn invalid(&self, pointers: &[&str]) {
        let problem = self.refused(Code::InvalidRequest);
        let errors = problem["errors"].as_array().unwrap().iter();
        let got: Vec<_> = errors.map(|error| error["pointer"].as_str().unwrap()).collect();
        assert_eq!(got, pointers, "{problem}");
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

fn head_of(text: &str) -> (u16, HeaderMap) {
    let mut lines = text.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        (HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap())
    });
    (status, headers.collect())
}

pub const SECRET: &str = "0123456789abcdef0123456789abcdef";
pub const AUDIENCE: &str = "oncelog";
pub const ISSUER: &str = "issuer";

pub fn shared_keys() -> Keys {
    of_issuer(Issuer::hs256(&[SECRET.into()], token_rules()))
}

/// The keys of one issuer.
pub fn of_issuer(issuer: Result<Issuer, String>) -> Keys {
    Keys::of_issuers(vec![issuer.unwrap()]).unwrap()
}

pub fn token_rules() -> TokenRules {
    TokenRules::new(ISSUER, AUDIENCE)
}

pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The claims of a good token.
pub fn claims(tenant: &str, scope: &str) -> Value {
    json!({"aud": AUDIENCE, "iss": ISSUER, "exp": now_s() + 600, "tenant": tenant, "scope": scope})
}

/// A good token.
pub fn token(tenant: &str, scope: &str) -> String {
    signed(&claims(tenant, scope), SECRET)
}

pub fn signed(claims: &Value, secret: &str) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap()
}
