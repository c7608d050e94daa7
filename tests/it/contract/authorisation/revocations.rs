//! Tokens that an operator revokes.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use oncelog::model::{Code, Timestamp};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::support::{
    http::{Answer, SECRET, Server, Setup, claims, now_s, shared_keys, signed},
    served::until,
};

const ALL: &str = "/v1/tenants/acme/revocations";

/// A token of `acme`, with what is given of its id, its subject and its issue.
fn token(id: Option<&str>, subject: Option<&str>, issued_at_s: Option<u64>) -> String {
    let mut claims = claims("acme", "admin operator");
    for (name, value) in [
        ("jti", id.map(Value::from)),
        ("sub", subject.map(Value::from)),
        ("iat", issued_at_s.map(Value::from)),
    ] {
        if let Some(value) = value {
            claims[name] = value;
        }
    }
    signed(&claims, SECRET)
}

fn operator() -> String {
    signed(&claims("platform", "operator"), SECRET)
}

async fn revoke(server: &Server, body: Value) -> Value {
    server.post(ALL).json(body).token(&operator()).await.created()
}

fn instant(seconds: u64) -> String {
    Timestamp(seconds as i64 * 1_000).to_string()
}

/// Two replicas that know the tenant.
async fn replicas() -> [Server; 2] {
    let here = Server::signed().await;
    let setup = Setup { keys: shared_keys(), ..Setup::default() };
    let there = Server::on(&here.options, setup).await;
    for server in [&here, &there] {
        server.get("/v1/topics").token(&token(None, None, None)).await.ok();
    }
    [here, there]
}

/// Whether the token is good for one of the tenant, and for an operator.
async fn is_good(server: &Server, token: &str) -> [bool; 2] {
    let mut good = [true; 2];
    for (path, good) in ["/v1/topics", "/v1/tenants"].into_iter().zip(&mut good) {
        let answer = server.get(path).token(token).await;
        if answer.status != 200 {
            let problem = answer.refused(Code::Unauthenticated);
            assert!(problem["detail"].as_str().unwrap().contains("revoked"), "{problem}");
            *good = false;
        }
    }
    good
}

/// Waits until a replica knows of what another has done.
async fn becomes(server: &Server, token: &str, good: bool) {
    until("the replica to know", async || {
        (is_good(server, token).await == [good; 2]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn one_token_is_revoked_by_its_id_everywhere_within_a_second() {
    let [here, there] = replicas().await;
    let (named, nameless) = (token(Some("t-1"), None, None), token(None, Some("anna"), None));
    let print = &Sha256::digest(nameless.as_bytes())[..9];
    for (token, id) in
        [(&named, "t-1".to_owned()), (&nameless, BASE64_URL_SAFE_NO_PAD.encode(print))]
    {
        assert_eq!([is_good(&here, token).await, is_good(&there, token).await], [[true; 2]; 2]);
        let made = revoke(&here, json!({"token_id": id})).await;
        assert_eq!((&made["token_id"], &made["subject"]), (&json!(id), &Value::Null));
        assert_eq!(is_good(&here, token).await, [false; 2]);
        becomes(&there, token, false).await;
        let path = format!("{ALL}/{}", made["revocation_id"].as_str().unwrap());
        for _ in 0..2 {
            there.delete(&path).token(&operator()).await.no_content();
        }
        assert_eq!(is_good(&there, token).await, [true; 2]);
        becomes(&here, token, true).await;
    }
}

/// A revocation: the token's id or empty, the subject or empty, issued before or 0; its path.
type Held = (&'static str, &'static str, u64, String);

fn is_about(held: &Held, id: &str, subject: Option<&str>, issued_at_s: Option<u64>) -> bool {
    let (other, whose, before, _) = held;
    let earlier = issued_at_s.is_none_or(|at| at < *before);
    match (other.is_empty(), whose.is_empty()) {
        (false, _) => id == *other,
        (true, false) => subject == Some(*whose) && earlier,
        (true, true) => earlier,
    }
}

/// Whatever was revoked in which order, a token is refused that one revocation is about.
#[tokio::test]
async fn at_random_what_is_revoked_is_refused_and_nothing_else() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let [here, there] = replicas().await;
    let now_s = now_s();
    let times = [None, Some(now_s - 300), Some(now_s - 200), Some(now_s - 100)];
    let mut tokens = Vec::new();
    for id in ["a", "b", "c"] {
        for subject in [None, Some("a"), Some("anna")] {
            for issued_at_s in times {
                tokens.push((id, subject, issued_at_s));
            }
        }
    }
    let mut held: Vec<Held> = Vec::new();
    for _ in 0..25 {
        if !held.is_empty() && rng.random_ratio(1, 3) {
            let (.., path) = held.swap_remove(rng.random_range(0..held.len()));
            here.delete(&path).token(&operator()).await.no_content();
        }
        let before = now_s - [50, 150, 250, 350].choose(&mut rng).unwrap();
        let (id, subject, before) = match rng.random_range(0..5) {
            0 => (*["a", "b"].choose(&mut rng).unwrap(), "", 0),
            1..4 => ("", *["a", "anna", "bert"].choose(&mut rng).unwrap(), before),
            _ => ("", "", now_s - 250),
        };
        let mut body = json!({});
        for (name, value) in [("token_id", id), ("subject", subject)] {
            if !value.is_empty() {
                body[name] = json!(value);
            }
        }
        if before > 0 {
            body["issued_before"] = json!(instant(before));
        }
        let made = revoke(&here, body).await;
        // what it covers is taken into it
        held.retain(|(other, whose, until, _)| {
            let same = (other, whose) == (&id, &subject) && *until <= before;
            let wider = id.is_empty() && subject.is_empty() && other.is_empty() && *until <= before;
            !(same || wider)
        });
        let path = format!("{ALL}/{}", made["revocation_id"].as_str().unwrap());
        held.push((id, subject, before, path));
        let listed = here.get(ALL).token(&operator()).await.ok();
        assert_eq!(listed["revocations"].as_array().unwrap().len(), held.len(), "{held:?}");
    }
    let last = token(Some("last"), None, Some(now_s));
    revoke(&here, json!({"token_id": "last"})).await;
    becomes(&there, &last, false).await;
    for (id, subject, issued_at_s) in tokens {
        let token = token(Some(id), subject, issued_at_s);
        let wanted = !held.iter().any(|one| is_about(one, id, subject, issued_at_s));
        for server in [&here, &there] {
            assert_eq!(
                is_good(server, &token).await,
                [wanted; 2],
                "{id} {subject:?} {issued_at_s:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_subject_is_out_until_it_gets_a_new_token() {
    let [here, _] = replicas().await;
    let old = token(None, Some("anna"), Some(now_s() - 1));
    assert_eq!(is_good(&here, &old).await, [true; 2]);
    let made = revoke(&here, json!({"subject": "anna"})).await;
    assert_eq!(made["issued_before"], made["created_at"]);
    assert_eq!(is_good(&here, &old).await, [false; 2]);
    assert_eq!(is_good(&here, &token(None, Some("anna"), Some(now_s() + 1))).await, [true; 2]);
    // of another tenant nothing is revoked
    let mut theirs = claims("rival", "admin");
    theirs["sub"] = json!("anna");
    here.get("/v1/topics").token(&signed(&theirs, SECRET)).await.ok();
    // what has ended is forgotten
    let end = Timestamp(now_s() as i64 * 1_000 + 2_000).to_string();
    revoke(&here, json!({"token_id": "short", "expires_at": end})).await;
    let short = token(Some("short"), None, None);
    assert_eq!(is_good(&here, &short).await, [false; 2]);
    becomes(&here, &short, true).await;
    let listed = here.get(ALL).token(&operator()).await.ok();
    assert_eq!(listed, json!({"revocations": [made]}));
}

#[tokio::test]
async fn what_is_wrong_is_named_and_nothing_changed() {
    let [here, _] = replicas().await;
    let post = async |path: &str, body: Value| -> Answer {
        here.post(path).json(body).token(&operator()).await
    };
    let soon = instant(now_s() + 3_000);
    let far = instant(now_s() + 4_000);
    for (body, pointers) in [
        (json!({}), &[""][..]),
        (json!({"expires_at": soon}), &[""]),
        (json!({"token_id": "a", "subject": "b"}), &[""]),
        (json!({"token_id": "a", "issued_before": soon}), &[""]),
        (json!({"issued_before": far}), &["/issued_before"]),
        (json!({"issued_before": "yesterday"}), &["/issued_before"]),
        (json!({"subject": "a", "expires_at": instant(now_s() - 1)}), &["/expires_at"]),
        (json!({"subject": ""}), &["/subject"]),
        (json!({"subject": "a\0"}), &["/subject"]),
        (json!({"token_id": "a".repeat(257)}), &["/token_id"]),
        (json!({"token_id": 7}), &["/token_id"]),
        (json!({"jti": "a"}), &["/jti"]),
    ] {
        post(ALL, body).await.invalid(pointers);
    }
    post(ALL, json!({"token_id": "a".repeat(256), "expires_at": soon})).await.created();
    post("/v1/tenants/nobody/revocations", json!({"token_id": "a"}))
        .await
        .refused(Code::TenantNotFound);
    here.get("/v1/tenants/nobody/revocations")
        .token(&operator())
        .await
        .refused(Code::TenantNotFound);
    let path = format!("/v1/tenants/nobody/revocations/{}", Uuid::nil());
    here.delete(&path).token(&operator()).await.refused(Code::TenantNotFound);
    here.delete(&format!("{ALL}/x")).token(&operator()).await.invalid(&["/path/revocation_id"]);
    let listed = here.get(ALL).token(&operator()).await.ok();
    assert_eq!(listed["revocations"].as_array().unwrap().len(), 1);
    // there are 1,000 at most
    here.sql(
        "update oncelog.tenants set revocations = (select jsonb_agg(jsonb_build_object(
            'id', gen_random_uuid(), 'revoked', jsonb_build_object('token_id', n::text),
            'created_at', 0, 'expires_at', null)) from generate_series(1, 1000) n)
        where name = 'acme'",
    )
    .await;
    let refused = post(ALL, json!({"token_id": "one more"})).await.refused(Code::QuotaExceeded);
    assert_eq!(refused["limit"], 1000);
    assert_eq!(is_good(&here, &token(Some("one more"), None, None)).await, [true; 2]);
    let suspend = json!({"suspended": true});
    here.patch("/v1/tenants/acme").json(suspend).token(&operator()).await.ok();
    // one that is about all of another's tokens takes its place
    post(ALL, json!({"token_id": "7"})).await.created();
    here.delete("/v1/tenants/acme").token(&operator()).await.no_content();
    post(ALL, json!({"token_id": "7"})).await.refused(Code::TenantNotFound);
}
