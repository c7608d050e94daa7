//! The HTTP client of all commands: base URL, token and retries.
//!
//! Every request sent here is idempotent: an append carries its sequence, an open its `open_id`, a
//! transaction its id, and the others are idempotent by nature. So the client retries after a lost
//! connection, and after a problem whose `retry` is `same` or `later`.

use std::{
    collections::HashMap,
    fmt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use indicatif::ProgressBar;
use reqwest::{
    Certificate, Identity, Method, RequestBuilder, StatusCode, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER},
};
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};

use super::server::{ServerFlags, Target};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of a request; a long poll adds its wait.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// The longest `Retry-After` that the client respects.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// How long a request is retried; none: without limit.
pub(super) type Patience = Option<Duration>;

pub(super) struct Client {
    http: reqwest::Client,
    pub base: Url,
    /// Whether requests carry a token.
    pub has_token: bool,
    patience: Patience,
    /// Whether an outage is reported.
    is_down: AtomicBool,
    repeats: AtomicU64,
    /// Notices are printed above it.
    pub progress: ProgressBar,
}

/// A response with a 2xx status.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: StatusCode,
    pub body: Bytes,
}

impl Answer {
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> anyhow::Result<T> {
        serde_json::from_slice(&self.body).context("unexpected response from the server")
    }
}

/// A page of a list.
pub(super) struct ListPage {
    pub items: Vec<Box<RawValue>>,
    pub next_after: Option<String>,
}

/// The members of a problem document that the commands use.
#[derive(Debug, Deserialize)]
pub(super) struct Problem {
    pub status: u16,
    pub detail: String,
    pub code: String,
    #[serde(default)]
    retry: String,
    /// The sequence that the server expects.
    pub expected: Option<i64>,
    required_scope: Option<String>,
    #[serde(default)]
    pub errors: Vec<FieldError>,
}

#[derive(Debug, Deserialize)]
pub(super) struct FieldError {
    #[serde(default)]
    pub pointer: String,
    #[serde(default)]
    detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, HTTP {})", self.detail, self.code, self.status)?;
        // the detail already has the first one
        let more = self.errors.iter().skip(1);
        more.take(10)
            .try_for_each(|FieldError { pointer, detail }| write!(f, "\n  {pointer}: {detail}"))
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{problem}{advice}", problem = .0, advice = advice(.0))]
    Refused(Problem),
    #[error("{last}; gave up after {:.1} s{advice}", .after.as_secs_f64())]
    GaveUp { last: String, after: Duration, advice: &'static str },
    #[error("{0}")]
    Foreign(String),
}

/// A hint for people about a refusal whose detail is written for programs.
fn advice(problem: &Problem) -> &'static str {
    match problem.code.as_str() {
        "unauthenticated" => {
            "; set ONCELOG_TOKEN or --token, and check it with `oncelog token inspect`"
        }
        "forbidden" if problem.required_scope.is_some() => "; the token needs this scope",
        "transaction_not_found" => "; `oncelog txn list` lists all that the server remembers",
        "unknown_producer" => "; `oncelog session list` lists all",
        "group_not_found" => "; `oncelog group list` lists all",
        "topic_not_found" => "; `oncelog topic create` creates one, `oncelog topic list` lists all",
        "route_not_found" => {
            "; is --url the address of an oncelog server? Tenants are on its admin listener, whose \
             address --admin-url or ONCELOG_ADMIN_URL sets"
        }
        _ => "",
    }
}

/// A hint for people about a server that cannot be reached.
fn advice_on_silence(what: &str) -> &'static str {
    if what.contains("invalid peer certificate") {
        "; --ca-file or ONCELOG_CA_FILE names the authority that signed the server's certificate"
    } else if what.contains("CertificateRequired") {
        "; the server wants a certificate: --client-cert-file or ONCELOG_CLIENT_CERT_FILE names it"
    } else {
        "; is a server running there? --url or ONCELOG_URL sets its address, and so does \
         `oncelog context`"
    }
}

/// How an attempt failed.
enum AttemptError {
    /// No response, or a 5xx that oncelog did not write: retry.
    Unavailable(String),
    Problem(Problem, Option<Duration>),
    Foreign(String),
}

impl Client {
    pub fn new(flags: ServerFlags, patience: Patience) -> anyhow::Result<Self> {
        let Target { url, token, ca, client_cert } = flags.target()?;
        let mut headers = HeaderMap::new();
        if let Some(token) = &token {
            let value = format!("Bearer {}", token.expose_secret().trim());
            let Ok(mut value) = HeaderValue::from_str(&value) else {
                bail!("the token contains invalid characters");
            };
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let builder = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("oncelog/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .tcp_nodelay(true);
        // plain HTTP must work on machines without root certificates
        let builder = match (url.scheme(), ca) {
            ("http", _) => builder.tls_certs_only([]),
            (_, Some(pem)) => {
                let authorities = Certificate::from_pem_bundle(&pem).ok();
                let authorities = authorities.filter(|authorities| !authorities.is_empty());
                builder.tls_certs_only(authorities.context("--ca-file has no certificate in PEM")?)
            }
            _ => builder,
        };
        let builder = match client_cert {
            Some(pem) => builder.identity(Identity::from_pem(&pem).map_err(|_| {
                anyhow!("--client-cert-file must have a certificate and its private key, in PEM")
            })?),
            None => builder,
        };
        Ok(Self {
            http: builder.build().context("cannot create the HTTP client")?,
            base: url,
            has_token: token.is_some(),
            patience,
            is_down: AtomicBool::new(false),
            repeats: AtomicU64::new(0),
            progress: ProgressBar::hidden(),
        })
    }

    /// Builds a request for a path below `/v1`.
    pub fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> RequestBuilder {
        let mut url = self.below(&[&["v1"], path].concat());
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.http.request(method, url)
    }

    /// Builds a request for what a server answers outside of `/v1`, such as `readyz`.
    pub fn service(&self, name: &str) -> RequestBuilder {
        self.http.get(self.below(&[name]))
    }

    /// A URL below the base URL. Segments are escaped one by one, so that a name cannot leave its
    /// place in the path.
    fn below(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    /// The number of retries so far.
    pub fn repeats(&self) -> u64 {
        self.repeats.load(Relaxed)
    }

    pub async fn send(&self, request: RequestBuilder) -> Result<Answer, Failure> {
        self.send_while(request, |_| false).await
    }

    /// Sends the request and retries it. `may_retry` decides whether to retry after a problem whose
    /// `retry` does not ask for it.
    pub async fn send_while(
        &self,
        request: RequestBuilder,
        may_retry: impl Fn(&Problem) -> bool,
    ) -> Result<Answer, Failure> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let Some(copy) = request.try_clone() else {
                return Err(Failure::Foreign("this request cannot be sent again".into()));
            };
            let mut hint = "";
            let (last, wait) = match attempt(copy).await {
                Ok(answer) => {
                    self.report_recovery();
                    return Ok(answer);
                }
                Err(AttemptError::Foreign(what)) => return Err(Failure::Foreign(what)),
                Err(AttemptError::Unavailable(what)) => {
                    let what = format!("{} does not answer: {what}", self.base);
                    self.report_outage(&what);
                    hint = advice_on_silence(&what);
                    (what, pause)
                }
                Err(AttemptError::Problem(problem, after)) => match problem.retry.as_str() {
                    "same" | "later" => {
                        self.report_outage(&problem.to_string());
                        (problem.to_string(), after.unwrap_or_default().max(pause))
                    }
                    _ if may_retry(&problem) => (problem.to_string(), pause),
                    _ => return Err(Failure::Refused(problem)),
                },
            };
            if self.patience.is_some_and(|patience| begun.elapsed() + wait > patience) {
                return Err(Failure::GaveUp { last, after: begun.elapsed(), advice: hint });
            }
            self.repeats.fetch_add(1, Relaxed);
            sleep(wait).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// The items of a list after this one, and where the next page begins.
    pub async fn page(
        &self,
        path: &[&str],
        filter: &[(&str, &str)],
        after: Option<&str>,
    ) -> anyhow::Result<ListPage> {
        let collection = path.last().copied().unwrap_or_default();
        let mut query = [&[("limit", "1000")], filter].concat();
        query.extend(after.map(|after| ("after", after)));
        let answer = self.send(self.request(Method::GET, path, &query)).await?;
        let page: HashMap<String, Box<RawValue>> = answer.json()?;
        let items = page.get(collection).context("the response has no such list")?;
        let next = page.get("next_after").map(|next| serde_json::from_str(next.get()));
        Ok(ListPage {
            items: serde_json::from_str(items.get())?,
            next_after: next.transpose()?.flatten(),
        })
    }

    /// Passes all items of a list to `each`, page by page, until it returns false.
    pub async fn list(
        &self,
        path: &[&str],
        filter: &[(&str, &str)],
        mut each: impl FnMut(&RawValue) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let mut after: Option<String> = None;
        loop {
            let page = self.page(path, filter, after.as_deref()).await?;
            for item in page.items {
                if !each(&item)? {
                    return Ok(());
                }
            }
            after = page.next_after;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Reports an outage once, and only if the command waits for its end.
    fn report_outage(&self, what: &str) {
        let waits = self.patience.is_none_or(|patience| patience > MAX_PAUSE);
        if waits && !self.is_down.swap(true, Relaxed) {
            self.notice(&format!("{what}; retrying"));
        }
    }

    fn report_recovery(&self) {
        if self.is_down.swap(false, Relaxed) {
            self.notice("the server answers again");
        }
    }

    pub fn notice(&self, what: &str) {
        self.progress.suspend(|| eprintln!("oncelog: {what}"));
    }
}

async fn attempt(request: RequestBuilder) -> Result<Answer, AttemptError> {
    let answer = request.send().await.map_err(transport_error)?;
    let (status, headers) = (answer.status(), answer.headers().clone());
    let body = answer.bytes().await.map_err(transport_error)?;
    if status.is_success() {
        return Ok(Answer { status, body });
    }
    if let Ok(problem) = serde_json::from_slice::<Problem>(&body) {
        let after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let after = after.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
        return Err(AttemptError::Problem(problem, after));
    }
    // written by a proxy or another program
    if status.is_server_error() {
        Err(AttemptError::Unavailable(format!("HTTP {status}")))
    } else {
        let what = format!("HTTP {status}, not from oncelog; is --url an oncelog server?");
        Err(AttemptError::Foreign(what))
    }
}

/// A transport error, reduced to its root cause; the caller adds the URL.
fn transport_error(error: reqwest::Error) -> AttemptError {
    let is_builder = error.is_builder();
    let error = anyhow::Error::new(error.without_url());
    let what = if is_builder { format!("{error:#}") } else { root_cause(&error) };
    if is_builder { AttemptError::Foreign(what) } else { AttemptError::Unavailable(what) }
}

fn root_cause(error: &anyhow::Error) -> String {
    let timed_out = error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_timeout);
    if timed_out {
        return "timed out".into();
    }
    let cause = error.root_cause().to_string();
    // the error number is noise to people
    cause.split(" (os error").next().unwrap_or_default().to_owned()
}
