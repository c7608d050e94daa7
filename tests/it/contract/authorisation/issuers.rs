//! Several issuers of tokens, and keys that come by URL.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use oncelog::{
    http::extract::auth::{Issuer, Keys, TokenRules},
    model::{Code, Pattern, Word},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::keys::{jwk, pairs};
use crate::support::{
    http::{AUDIENCE, ISSUER, SECRET, Server, Setup, claims, of_issuer, token_rules},
    served::until,
};

/// A server that accepts the tokens of these issuers.
async fn accepting(issuers: Vec<Issuer>) -> Server {
    let keys = Keys::of_issuers(issuers).unwrap();
    Server::with(Setup { keys, ..Setup::default() }).await
}

/// A token of one of the pairs of keys.
fn signed(pair: usize, kid: Option<&str>, claims: &Value) -> String {
    let (key, algorithm, name) = &pairs()[pair];
    let kid = Some(kid.unwrap_or(name).to_owned());
    encode(&Header { kid, ..Header::new(*algorithm) }, claims, key).unwrap()
}

/// The keys of these pairs.
fn jwks(of: &[usize]) -> String {
    let keys: Vec<Value> = of.iter().map(|pair| jwk(&pairs()[*pair])).collect();
    json!({"keys": keys}).to_string()
}

/// Claims that an issuer calls by other names.
fn renamed(issuer: &str, tenant: &str, scope: Value) -> Value {
    let mut claims = claims(tenant, "");
    claims["iss"] = json!(issuer);
    claims["https://oncelog.example/tenant"] = claims["tenant"].take();
    claims["resource_access"] = json!({"once/log": {"roles": scope}});
    claims
}

fn customers() -> TokenRules {
    TokenRules {
        tenant_claim: "https://oncelog.example/tenant".into(),
        scope_claim: "/resource_access/once~1log/roles".into(),
        tenants: Some(vec![Pattern::new("acme"), Pattern::new("acme-*")]),
        scopes: vec![Word::Consume, Word::Admin],
        has_own_subjects: true,
        ..TokenRules::new("https://customers.example", AUDIENCE)
    }
}

async fn two_issuers() -> Server {
    let own = Issuer::hs256(&[SECRET.into()], token_rules()).unwrap();
    let further = Issuer::jwks(&jwks(&[0, 1]), customers()).unwrap();
    accepting(vec![own, further]).await
}

#[tokio::test]
async fn an_issuer_names_its_tenants_and_permits_what_it_may() {
    let server = two_issuers().await;
    let issuer = "https://customers.example";
    let send = async |method: &str, path: &str, token: &str| {
        server.call(method, path).json(json!({"partition_count": 1})).token(token).await
    };
    // scope, what is permitted: to create a topic, to read it, to append to it, to see tenants
    for (scope, permitted) in [
        (json!(["admin", "consume"]), [true, true, false, false]),
        (json!("admin consume"), [true, true, false, false]),
        (json!(["admin consume"]), [true, true, false, false]),
        (json!(["produce", "operator", "group"]), [false, false, false, false]),
        (json!(["consume:t"]), [false, true, false, false]),
        (json!([]), [false, false, false, false]),
        (Value::Null, [false, false, false, false]),
    ] {
        let token = signed(0, None, &renamed(issuer, "acme-1", scope.clone()));
        let records = "/v1/topics/t/partitions/0/records";
        let calls = [("PUT", "/v1/topics/t"), ("GET", records), ("POST", records)];
        for ((method, path), permitted) in calls.into_iter().zip(permitted) {
            let answer = send(method, path, &token).await;
            assert_eq!(answer.status != 403, permitted, "{scope}: {method} {}", answer.text());
            assert_ne!(answer.status, 401);
        }
        assert_eq!(server.get("/v1/tenants").token(&token).await.status == 200, permitted[3]);
    }
    for (tenant, scope) in [
        ("other", json!(["admin"])),
        ("acm", json!(["admin"])),
        ("acme.1", json!(["admin"])),
        ("acme", json!(7)),
        ("acme", json!({"admin": true})),
        ("acme", json!(["admin", 7])),
    ] {
        let token = signed(0, None, &renamed(issuer, tenant, scope));
        server.get("/v1/topics").token(&token).await.refused(Code::Unauthenticated);
    }
    // the names of another issuer are nothing to it
    let mut usual = claims("acme", "admin");
    usual["iss"] = json!(issuer);
    let refused = server.get("/v1/topics").token(&signed(0, None, &usual)).await;
    let problem = refused.refused(Code::Unauthenticated);
    assert!(problem["detail"].as_str().unwrap().contains("oncelog.example/tenant"), "{problem}");
    let own = encode(&Header::default(), &claims("other", "operator admin"), &secret()).unwrap();
    server.get("/v1/tenants").token(&own).await.ok();
}

fn secret() -> EncodingKey {
    EncodingKey::from_secret(SECRET.as_bytes())
}

/// One that may sign for an issuer signs for no other.
#[tokio::test]
async fn the_keys_of_an_issuer_are_good_for_its_own_tokens() {
    let server = two_issuers().await;
    let further = renamed("https://customers.example", "acme", json!(["admin"]));
    server.get("/v1/topics").token(&signed(1, None, &further)).await.ok();
    let (mut as_own, mut by_own) = (claims("other", "admin operator"), further.clone());
    as_own["tenant"] = json!("acme");
    let refused = async |token: String| {
        server.get("/v1/topics").token(&token).await.refused(Code::Unauthenticated);
    };
    // a key of the further one, in the name of the first
    refused(signed(0, None, &as_own)).await;
    by_own["tenant"] = json!("acme");
    refused(encode(&Header::default(), &by_own, &secret()).unwrap()).await;
    for issuer in [json!("https://stranger.example"), json!(["issuer"]), json!(null), json!(1)] {
        let mut claims = claims("acme", "admin");
        claims["iss"] = issuer;
        refused(encode(&Header::default(), &claims, &secret()).unwrap()).await;
        refused(signed(0, None, &claims)).await;
    }
    let mut nameless = claims("acme", "admin");
    nameless.as_object_mut().unwrap().remove("iss");
    refused(encode(&Header::default(), &nameless, &secret()).unwrap()).await;
    // the public key as a secret
    let document = jwks(&[0]);
    let forged = EncodingKey::from_secret(document.as_bytes());
    refused(encode(&Header::default(), &further, &forged).unwrap()).await;
}

/// A session without a name is its opener's; somebody of that name elsewhere is somebody else.
#[tokio::test]
async fn subjects_of_two_issuers_are_two() {
    let mut rules = customers();
    (rules.tenants, rules.scopes) = (None, Word::ALL.to_vec());
    let own = Issuer::hs256(&[SECRET.into()], token_rules()).unwrap();
    let server = accepting(vec![own, Issuer::jwks(&jwks(&[0]), rules).unwrap()]).await;
    let mut ours = claims("acme", "produce:x");
    let mut theirs = renamed("https://customers.example", "acme", json!(["produce:x"]));
    (ours["sub"], theirs["sub"]) = (json!("anna"), json!("anna"));
    let ours = encode(&Header::default(), &ours, &secret()).unwrap();
    let theirs = signed(0, None, &theirs);
    for (opener, other) in [(&ours, &theirs), (&theirs, &ours)] {
        let opened = server.post("/v1/sessions").json("{}").token(opener).await.created();
        let path = format!("/v1/sessions/{}", opened["producer_id"]);
        server.get(&path).token(opener).await.ok();
        assert_eq!(server.get(&path).token(other).await.status, 403);
    }
}

#[test]
fn two_issuers_of_one_name_are_none() {
    let issuer = || Issuer::hs256(&[SECRET.into()], token_rules()).unwrap();
    assert!(Keys::of_issuers(vec![issuer(), issuer()]).is_err_and(|why| why.contains(ISSUER)));
    assert!(Keys::of_issuers(Vec::new()).is_err());
}

/// Answers every request for a JWKS in one way, and counts them.
struct KeyServer {
    url: String,
    answer: Arc<Mutex<String>>,
    requests: Arc<AtomicUsize>,
}

impl KeyServer {
    async fn start(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let (answer, requests) = (Arc::new(Mutex::new(answer)), Arc::new(AtomicUsize::new(0)));
        let (answers, counter) = (answer.clone(), requests.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                counter.fetch_add(1, Ordering::SeqCst);
                let answer = answers.lock().unwrap().clone();
                // the client may have seen enough
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self { url, answer, requests }
    }

    fn answers(&self, answer: String) {
        *self.answer.lock().unwrap() = answer;
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    async fn server(&self) -> Server {
        let keys = of_issuer(Issuer::jwks_url(self.url.parse().unwrap(), token_rules()));
        Server::with(Setup { keys, ..Setup::default() }).await
    }
}

fn found(document: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{document}",
        document.len()
    )
}

fn failure(status: &str, header: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{header}content-length: 0\r\nconnection: close\r\n\r\n")
}

/// New keys are asked for by the first token that needs them, once for all that do, and not again
/// for ten seconds, whatever strangers send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_by_url_are_those_of_the_issuer() {
    let source = KeyServer::start(found(&jwks(&[0]))).await;
    let server = source.server().await;
    let [old, new] = [0, 1].map(|pair| signed(pair, None, &claims("acme", "admin")));
    let unknown = |n: usize| signed(0, Some(&format!("unknown-{n}")), &claims("acme", "admin"));
    let get = |token: &str| server.get("/v1/topics").token(token);
    get(&old).await.ok();
    source.answers(found(&jwks(&[1])));
    for n in 0..20 {
        get(&unknown(n)).await.refused(Code::Unauthenticated);
    }
    get(&new).await.refused(Code::Unauthenticated);
    assert_eq!(source.requests(), 1);
    // what is known stays good until other keys are read
    get(&old).await.ok();
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    let strangers = (0..100).map(|n| tokio::spawn(get(&unknown(n)).into_future()));
    let friends = (0..100).map(|_| tokio::spawn(get(&new).into_future()));
    let (strangers, friends): (Vec<_>, Vec<_>) = (strangers.collect(), friends.collect());
    for stranger in strangers {
        stranger.await.unwrap().refused(Code::Unauthenticated);
    }
    for friend in friends {
        friend.await.unwrap().ok();
    }
    assert_eq!(source.requests(), 2);
    get(&old).await.refused(Code::Unauthenticated);
    // the source goes away: what was read last stays in use
    source.answers(failure("500 Internal Server Error", ""));
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    get(&old).await.refused(Code::Unauthenticated);
    until("the source to be asked", async || (source.requests() == 3).then_some(())).await;
    get(&new).await.ok();
}

/// Without keys nobody can be judged: that is no fault of the token.
#[tokio::test]
async fn without_keys_requests_are_to_be_sent_again() {
    let elsewhere = KeyServer::start(found(&jwks(&[0]))).await;
    let to_elsewhere = format!("location: {}\r\n", elsewhere.url);
    let large = format!("{{\"keys\": [{}", " ".repeat((1 << 20) + 1));
    let document = jwks(&[0]);
    for answer in [
        failure("503 Service Unavailable", ""),
        failure("302 Found", &to_elsewhere),
        failure("204 No Content", ""),
        found("{}"),
        found("<html>"),
        found(&large),
        // more than one chunk, of which the last is missing
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{document}", document.len() + 1),
        "rubbish".to_owned(),
        String::new(),
    ] {
        let source = KeyServer::start(answer.clone()).await;
        let server = source.server().await;
        for pair in [0, 1] {
            let token = signed(pair, None, &claims("acme", "admin"));
            let refused = server.get("/v1/topics").token(&token).await;
            refused.refused(Code::Unavailable);
            assert!(refused.header("retry-after").is_some());
        }
        server.get("/v1/topics").await.refused(Code::Unauthenticated);
        server.get("/v1/topics").token("x.y.z").await.refused(Code::Unauthenticated);
        assert_eq!(source.requests(), 1, "{answer}");
    }
    assert_eq!(elsewhere.requests(), 0);
}

/// A token may say where its key is (RFC 7515, 4.1.2); that is for its issuer to say.
#[tokio::test]
async fn what_a_token_says_of_its_keys_is_not_followed() {
    let theirs = KeyServer::start(found(&jwks(&[0]))).await;
    let source = KeyServer::start(found(&jwks(&[1]))).await;
    let server = source.server().await;
    let (key, algorithm, kid) = &pairs()[0];
    let of = |algorithm: Algorithm| Header { kid: Some((*kid).into()), ..Header::new(algorithm) };
    let jwk = serde_json::from_value(jwk(&pairs()[0])).unwrap();
    for header in [
        Header { jku: Some(theirs.url.clone()), ..of(*algorithm) },
        Header { x5u: Some(theirs.url.clone()), ..of(*algorithm) },
        Header { jwk: Some(jwk), ..of(*algorithm) },
    ] {
        let token = encode(&header, &claims("acme", "admin"), key).unwrap();
        server.get("/v1/topics").token(&token).await.refused(Code::Unauthenticated);
    }
    assert_eq!((theirs.requests(), source.requests()), (0, 1));
}
