//! Brokers behind real HTTP: in this process with the real router and accept loop, or as the real
//! program; and a client that speaks plain HTTP/JSON to either.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use oncelog::{
    broker::{Broker, ServiceConfig},
    http::{self, AppState, Limits, Listener, Routers, extract::auth::Keys},
};
use reqwest::{Method, header::HeaderMap};
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{http::SECRET, proxy::Proxy};
use crate::support;

/// Generous: the machine may be busy. Nothing waits this long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Looks again and again until there is something.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The body of an answer that must be of this status.
    #[track_caller]
    pub fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json()
    }

    /// The status and code of a problem.
    pub fn problem(&self) -> (u16, String) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        (self.status, self.json()["code"].as_str().unwrap().to_owned())
    }

    pub fn header(&self, name: &str) -> i64 {
        self.headers[name].to_str().unwrap().parse().unwrap()
    }
}

/// A client of one replica.
#[derive(Clone)]
pub struct Client {
    pub url: String,
    /// Of the listener with the metrics.
    pub admin_url: String,
    pub http: reqwest::Client,
    pub token: Option<String>,
}

impl Client {
    pub fn new(url: &str, token: Option<String>) -> Self {
        let http = reqwest::Client::builder().timeout(PATIENCE + PATIENCE).build().unwrap();
        Self { url: url.to_owned(), admin_url: url.to_owned(), http, token }
    }

    /// The same on the admin listener.
    pub fn admin(&self) -> Self {
        Self { url: self.admin_url.clone(), ..self.clone() }
    }

    /// The same, shown another token.
    pub fn showing(&self, token: Option<String>) -> Self {
        Self { token, ..self.clone() }
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<String>,
    ) -> reqwest::Result<Answer> {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let answer = request.send().await?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Ok(Answer { status, headers, text: answer.text().await? })
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], None).await.unwrap()
    }

    pub async fn get_ndjson(&self, path: &str) -> Answer {
        let accept = [("accept", "application/x-ndjson")];
        self.send(Method::GET, path, &accept, None).await.unwrap()
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, &[], None).await.unwrap()
    }

    pub async fn try_post(&self, path: &str, body: &Value) -> reqwest::Result<Answer> {
        let json = [("content-type", "application/json")];
        self.send(Method::POST, path, &json, Some(body.to_string())).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.try_post(path, body).await.unwrap()
    }

    pub async fn put_topic(&self, topic: &str, partition_count: i32) {
        let json = [("content-type", "application/json")];
        let body = json!({"partition_count": partition_count}).to_string();
        let path = format!("/v1/topics/{topic}");
        self.send(Method::PUT, &path, &json, Some(body)).await.unwrap().ok(201);
    }

    /// Appends values to one partition; answers the offset of the first.
    pub async fn append(&self, topic: &str, partition: i32, values: &[Value]) -> i64 {
        let records: Vec<Value> = values.iter().map(|value| json!({"value": value})).collect();
        let body = json!({"records": records});
        let answer = self.post(&partition_path(topic, partition), &body).await.ok(200);
        answer["base_offset"].as_i64().unwrap()
    }

    pub async fn read(&self, topic: &str, partition: i32, query: &str) -> Answer {
        self.get(&format!("{}?{query}", partition_path(topic, partition))).await
    }

    /// The value of a metric without labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let text = self.admin().get("/metrics").await.text;
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value.parse().unwrap())
    }
}

pub fn partition_path(topic: &str, partition: i32) -> String {
    format!("/v1/topics/{topic}/partitions/{partition}/records")
}

/// A broker of this process behind the real router and accept loop.
pub struct Served {
    pub broker: Arc<Broker>,
    pub client: Client,
    stop: CancellationToken,
    server: Option<JoinHandle<()>>,
}

impl Served {
    pub async fn start(options: &PgConnectOptions, settings: ServiceConfig) -> Self {
        let broker = support::broker(options, settings);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let limits = Limits::default();
        let keys = Keys::open().unwrap();
        let routers = Routers::starting(Listener::Whole);
        routers.serve(AppState::new(broker.clone(), keys, limits.clone(), String::new));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let server = tokio::spawn(async move {
            http::server::serve(listener, routers, &limits, None, stopped).await;
        });
        Self { broker, client: Client::new(&url, None), stop, server: Some(server) }
    }

    /// One on a database of its own.
    pub async fn alone() -> Self {
        Self::start(&support::database().await, ServiceConfig::default()).await
    }

    /// What `app` does when told to stop.
    pub async fn shut_down(&mut self) {
        self.broker.drain();
        self.stop.cancel();
        self.server.take().unwrap().await.unwrap();
        self.broker.stop().await;
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The real program as a replica on this database, which the proxy makes reachable by TCP.
pub async fn replica(proxy: &Proxy, options: &PgConnectOptions) -> (Process, Client) {
    let reached = proxy.options(options);
    let (port, database) = (reached.get_port(), reached.get_database().unwrap());
    replica_at(&format!("postgres://postgres@127.0.0.1:{port}/{database}?sslmode=disable")).await
}

/// The real program as a replica on the database of this URL.
pub async fn replica_at(database_url: &str) -> (Process, Client) {
    replica_with(&[("ONCELOG_DATABASE_URL", database_url)]).await
}

/// The real program as a replica with these settings.
pub async fn replica_with(settings: &[(&str, &str)]) -> (Process, Client) {
    let environment = [&[("ONCELOG_TOKEN_HS256_SECRET", SECRET)], settings].concat();
    let process = Process::serve(&["--listen", "127.0.0.1:0"], &environment).await;
    let claims = json!({"aud": "oncelog", "iss": "oncelog", "exp": 4_102_444_800_u64,
        "tenant": "default", "scope": "admin produce consume group"});
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
    let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap();
    let client = process.client(Some(token));
    (process, client)
}

/// The real program. Dropped, it is killed.
pub struct Process {
    child: Child,
    pub url: String,
    /// The same if one listener carries all.
    pub admin_url: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts it and waits until it is ready.
    pub async fn serve(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut process = Self::start(arguments, environment);
        process.find_urls(": ready address=").await;
        process
    }

    /// Starts it and waits until it listens.
    pub async fn listening(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut process = Self::start(arguments, environment);
        process.find_urls(": listening; waiting for the database address=").await;
        process
    }

    /// Starts it.
    pub fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_oncelog"))
            .arg("serve")
            .args(arguments)
            .env_remove("DATABASE_URL")
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let lines = log.clone();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).for_each(|line| lines.lock().unwrap().push(line));
        });
        Self { child, url: String::new(), admin_url: String::new(), log }
    }

    async fn find_urls(&mut self, words: &str) {
        let addresses = until(words, async || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("{status}: {:#?}", self.log.lock().unwrap());
            }
            let log = self.log.lock().unwrap();
            let (_, addresses) = log.iter().find_map(|line| line.split_once(words))?;
            Some(addresses.trim().to_owned())
        })
        .await;
        let (public, admin) =
            addresses.split_once(" admin_address=").unwrap_or((addresses.as_str(), &addresses));
        self.url = format!("http://{public}");
        self.admin_url = format!("http://{admin}");
    }

    /// A client that knows both listeners.
    pub fn client(&self, token: Option<String>) -> Client {
        Client { admin_url: self.admin_url.clone(), ..Client::new(&self.url, token) }
    }

    /// With a PostgreSQL of its own.
    pub async fn embedded(listen: &str, data_dir: &Path) -> Self {
        let data_dir = data_dir.to_str().unwrap();
        Self::serve(&["--listen", listen, "--data-dir", data_dir], &[]).await
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Bytes of a line of the process's status: `VmRSS`, what is in memory, or `VmHWM`, the most
    /// that was.
    pub fn memory_bytes(&self, line: &str) -> usize {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let value = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
        let kib = value.unwrap().trim().strip_suffix(" kB").unwrap();
        kib.parse::<usize>().unwrap() << 10
    }

    /// The most that was in memory is counted from now on.
    pub fn forget_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
    }

    pub async fn exit(&mut self) -> ExitStatus {
        until("the process to end", async || self.child.try_wait().unwrap()).await
    }

    pub async fn kill_9(&mut self) {
        self.signal(Signal::SIGKILL);
        self.exit().await;
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
