//! The keys of an issuer by URL: asked for when the server starts, at times, and when a token names
//! a key that is not among them. What was read last stays in use while the source is away.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    time::Duration,
};

use reqwest::{Client, StatusCode, Url, redirect};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until},
};

use super::keys::KeySet;
use crate::telemetry;

const INTERVAL: Duration = Duration::from_secs(300);
/// Between two requests, for any reason: else strangers' tokens would hammer the issuer. It doubles
/// with each failure, up to the interval.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// Keys that are fetched while anything holds this.
pub struct Fetched {
    last: watch::Receiver<Last>,
    wanted: Arc<Notify>,
}

/// The last request, whatever came of it, and the last keys.
#[derive(Default)]
struct Last {
    /// None: there was none yet.
    ended_at: Option<Instant>,
    document: Vec<u8>,
    keys: Option<Arc<KeySet>>,
}

impl Fetched {
    pub fn start(url: Url, issuer: String) -> Result<Self, String> {
        let builder = Client::builder()
            .user_agent(concat!("oncelog/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .timeout(TIMEOUT);
        // plain HTTP, on loopback, must work on machines without root certificates
        let builder = if url.scheme() == "http" { builder.tls_certs_only([]) } else { builder };
        let client = builder.build().map_err(|error| format!("no client for {url}: {error}"))?;
        let (sender, last) = watch::channel(Last::default());
        let wanted = Arc::new(Notify::new());
        tokio::spawn(fetch_for(client, url, issuer, sender, wanted.clone()));
        Ok(Self { last, wanted })
    }

    /// The keys that were read last, once there was a request.
    pub async fn current(&self) -> Option<Arc<KeySet>> {
        let mut last = self.last.clone();
        last.wait_for(|last| last.ended_at.is_some()).await.ok()?.keys.clone()
    }

    /// The keys after one more request; none if the last one is not long ago. Who asks at one time
    /// waits for the same request.
    pub async fn newer(&self) -> Option<Arc<KeySet>> {
        let mut last = self.last.clone();
        let ended_at = last.borrow().ended_at?;
        if ended_at.elapsed() < MIN_INTERVAL {
            return None;
        }
        self.wanted.notify_one();
        let newer = last.wait_for(|last| last.ended_at > Some(ended_at));
        newer.await.ok()?.keys.clone()
    }
}

async fn fetch_for(
    client: Client,
    url: Url,
    issuer: String,
    sender: watch::Sender<Last>,
    wanted: Arc<Notify>,
) {
    let mut failures = 0;
    loop {
        let fetched = fetch(&client, &url).await.and_then(|document| {
            let is_known = sender.borrow().keys.is_some() && sender.borrow().document == document;
            let keys = if is_known { None } else { Some(Arc::new(KeySet::jwks(&document)?)) };
            Ok(keys.map(|keys| (document, keys)))
        });
        let ended_at = Some(Instant::now());
        let outcome = match fetched {
            Ok(changed) => {
                failures = 0;
                sender.send_modify(|last| {
                    last.ended_at = ended_at;
                    // what the same keys have verified stays verified
                    if let Some((document, keys)) = changed {
                        tracing::info!(issuer, "keys were fetched, and are in use");
                        (last.document, last.keys) = (document, Some(keys));
                    }
                });
                "ok"
            }
            Err(why) => {
                failures += 1;
                tracing::warn!(
                    issuer,
                    url = url.as_str(),
                    "keys cannot be fetched; those read before stay in use: {why}"
                );
                sender.send_modify(|last| last.ended_at = ended_at);
                "failed"
            }
        };
        metrics::counter!(telemetry::JWKS_FETCHES_TOTAL, "outcome" => outcome).increment(1);
        let pause = match failures {
            0 => INTERVAL,
            failures => INTERVAL.min(MIN_INTERVAL * 2_u32.saturating_pow(failures - 1)),
        };
        let earliest = Instant::now() + MIN_INTERVAL;
        tokio::select! {
            () = sleep(pause + jitter(pause / 10)) => {}
            () = async { wanted.notified().await; sleep_until(earliest).await } => {}
            () = sender.closed() => return,
        }
    }
}

/// Up to that long, so that replicas that started together do not ask together.
fn jitter(most: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    most.mul_f64(random as f64 / u64::MAX as f64)
}

async fn fetch(client: &Client, url: &Url) -> Result<Vec<u8>, String> {
    let cause = |error: reqwest::Error| {
        // the URL is told beside it
        let error = anyhow::Error::new(error.without_url());
        format!("{error:#}")
    };
    let mut answer = client.get(url.clone()).send().await.map_err(cause)?;
    if answer.status() != StatusCode::OK {
        return Err(format!("the answer is {}, not 200", answer.status()));
    }
    let mut document = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(cause)? {
        if document.len() + chunk.len() > MAX_DOCUMENT_BYTES {
            return Err(format!("it has more than {MAX_DOCUMENT_BYTES} bytes"));
        }
        document.extend_from_slice(&chunk);
    }
    Ok(document)
}
