use axum::http::HeaderValue;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::Word;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
// Made for these tests alone; nothing else trusts them.
const ED25519: &[u8] = include_bytes!("../../../../tests/keys/ed25519.pem");
const P256: &[u8] = include_bytes!("../../../../tests/keys/p256.pem");
const RSA: &[u8] = include_bytes!("../../../../tests/keys/rsa2048.pem");

const FORMER: &str = "fedcba9876543210fedcba9876543210";

fn rules() -> TokenRules {
    TokenRules::new("issuer", "oncelog")
}

fn of(issuer: Result<Issuer, String>) -> Keys {
    Keys::of_issuers(vec![issuer.unwrap()]).unwrap()
}

fn shared() -> Keys {
    of(Issuer::hs256(&[SECRET.into()], rules()))
}

fn claims() -> Value {
    json!({"aud": "oncelog", "iss": "issuer", "exp": now_s() + 60, "tenant": "t",
        "scope": "produce:orders.* consume openid admin:"})
}

fn signed(header: &Header, claims: &Value, key: &EncodingKey) -> HeaderMap {
    headers(&encode(header, claims, key).unwrap())
}

fn headers(token: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    [(AUTHORIZATION, value)].into_iter().collect()
}

fn secret() -> EncodingKey {
    EncodingKey::from_secret(SECRET.as_bytes())
}

async fn refusal(keys: &Keys, headers: &HeaderMap) -> String {
    let error = keys.grant(headers).await.unwrap_err();
    assert_eq!(error.code, Code::Unauthenticated);
    error.detail
}

#[tokio::test]
async fn a_good_token_grants_its_scopes_twice() {
    let (keys, headers) = (shared(), signed(&Header::default(), &claims(), &secret()));
    for _ in 0..2 {
        let grant = keys.grant(&headers).await.unwrap();
        let [eu, other] = ["orders.eu", "other"].map(|name| Name::parse(name).unwrap());
        assert_eq!(grant.tenant.as_str(), "t");
        assert!(grant.scopes.covers(&[Word::Produce], &eu));
        assert!(!grant.scopes.covers(&[Word::Produce], &other));
        assert!(grant.scopes.covers(&[Word::Produce, Word::Consume], &other));
        assert!(
            grant.scopes.has(&[Word::Produce]) && !grant.scopes.has(&[Word::Admin, Word::Operator])
        );
    }
}

/// A session without a name is that of the `sub` which opened it; what is no text names nobody.
#[tokio::test]
async fn the_subject_is_that_of_the_claim() {
    let keys = shared();
    let mut owners = Vec::new();
    for sub in [json!("a"), json!("b"), json!("a"), json!(""), json!(7), Value::Null] {
        let mut claims = claims();
        claims["sub"] = sub;
        let grant = keys.grant(&signed(&Header::default(), &claims, &secret())).await.unwrap();
        owners.push(grant.scopes.owner_of_nameless().and_then(|owner| owner.opened_by));
    }
    assert!(owners[0].is_some() && owners[1].is_some() && owners[0] != owners[1]);
    assert_eq!(owners[0], owners[2]);
    assert_eq!(owners[3..], [None; 3]);
}

#[tokio::test]
async fn a_remembered_token_still_expires() {
    let keys = shared();
    let mut claims = claims();
    claims["exp"] = json!(now_s() - LEEWAY_S + 1);
    let headers = signed(&Header::default(), &claims, &secret());
    let grant = keys.grant(&headers).await.unwrap();
    let print: [u8; 32] = Sha256::digest(&headers[AUTHORIZATION].as_bytes()[7..]).into();
    let old = Grant {
        tenant: grant.tenant.clone(),
        scopes: Arc::default(),
        issuer: None,
        subject: None,
        token_id: None,
        issued_at: None,
        expires_at_s: 1,
    };
    let Mode::Signed(issuers) = &keys.mode else { panic!("they are signed") };
    let by = issuers[0].keys().await.unwrap();
    keys.verified.insert(print, Verified { grant: Arc::new(old), issuer: 0, by }).await;
    assert!(refusal(&keys, &headers).await.contains("expired"));
}

#[tokio::test]
async fn a_bad_token_is_told_what_is_wrong() {
    let keys = shared();
    let table: [(&str, Value, &str); 9] = [
        ("exp", json!(1), "expired"),
        ("exp", Value::Null, "exp"),
        ("aud", json!("other"), "audience"),
        ("aud", Value::Null, "aud"),
        ("iss", json!("other"), "issuer"),
        ("iss", Value::Null, "iss"),
        ("nbf", json!(now_s() + 1000), "not valid yet"),
        ("tenant", json!("a b"), "tenant"),
        ("tenant", Value::Null, "tenant"),
    ];
    for (claim, value, want) in table {
        let mut claims = claims();
        claims[claim] = value;
        if claims[claim].is_null() {
            claims.as_object_mut().unwrap().remove(claim);
        }
        let detail = refusal(&keys, &signed(&Header::default(), &claims, &secret())).await;
        assert!(detail.contains(want), "{claim}: {detail}");
    }
    let stranger = EncodingKey::from_secret(b"another secret of thirty-two byt");
    let detail = refusal(&keys, &signed(&Header::default(), &claims(), &stranger)).await;
    assert!(detail.contains("signature"), "{detail}");
    let hs512 = Header::new(Algorithm::HS512);
    let detail = refusal(&keys, &signed(&hs512, &claims(), &secret())).await;
    assert!(detail.contains("alg"), "{detail}");
    // {"alg":"none"}
    let none = headers("eyJhbGciOiJub25lIn0.e30.");
    assert!(refusal(&keys, &none).await.contains("JWT"));
    for broken in ["a", "a.b.c", "", &"x".repeat(MAX_TOKEN_BYTES + 1)] {
        refusal(&keys, &headers(broken)).await;
    }
    refusal(&keys, &HeaderMap::new()).await;
    let basic = HeaderValue::from_static("Basic eDp5");
    refusal(&keys, &[(AUTHORIZATION, basic)].into_iter().collect()).await;
}

fn jwk(key: &EncodingKey, algorithm: Algorithm, kid: &str) -> Value {
    let mut jwk = Jwk::from_encoding_key(key, algorithm).unwrap();
    jwk.common.key_id = Some(kid.into());
    serde_json::to_value(jwk).unwrap()
}

fn pairs() -> [(EncodingKey, Algorithm, &'static str); 3] {
    [
        (EncodingKey::from_ed_pem(ED25519).unwrap(), Algorithm::EdDSA, "ed"),
        (EncodingKey::from_ec_pem(P256).unwrap(), Algorithm::ES256, "ec"),
        (EncodingKey::from_rsa_pem(RSA).unwrap(), Algorithm::RS256, "rsa"),
    ]
}

#[tokio::test]
async fn a_jwks_pins_key_and_algorithm() {
    let jwks: Vec<Value> =
        pairs().iter().map(|(key, algorithm, kid)| jwk(key, *algorithm, kid)).collect();
    let keys = of(Issuer::jwks(&json!({"keys": jwks}).to_string(), rules()));
    for (key, algorithm, kid) in pairs() {
        let mut header = Header { kid: Some(kid.into()), ..Header::new(algorithm) };
        keys.grant(&signed(&header, &claims(), &key)).await.unwrap();
        header.kid = None;
        assert!(refusal(&keys, &signed(&header, &claims(), &key)).await.contains("kid"));
        header.kid = Some("gone".into());
        assert!(refusal(&keys, &signed(&header, &claims(), &key)).await.contains("kid"));
    }
    // The public key as a shared secret: the oldest trick.
    let header = Header { kid: Some("rsa".into()), ..Header::new(Algorithm::HS256) };
    let forged = signed(&header, &claims(), &EncodingKey::from_secret(RSA));
    assert!(refusal(&keys, &forged).await.contains("alg"));
    let header = Header { kid: Some("rsa".into()), ..Header::new(Algorithm::RS512) };
    let [.., (rsa, _, _)] = pairs();
    assert!(refusal(&keys, &signed(&header, &claims(), &rsa)).await.contains("alg"));
}

#[tokio::test]
async fn a_single_key_needs_no_kid() {
    let [(key, algorithm, kid), ..] = pairs();
    let jwks = json!({"keys": [jwk(&key, algorithm, kid)]}).to_string();
    let keys = of(Issuer::jwks(&jwks, rules()));
    keys.grant(&signed(&Header::new(algorithm), &claims(), &key)).await.unwrap();
}

#[test]
fn useless_keys_are_refused_at_start() {
    assert!(Issuer::hs256(&["short".into()], rules()).is_err());
    let [(ed, ..), (ec, ..), _] = pairs();
    let mut encrypts = jwk(&ed, Algorithm::EdDSA, "a");
    encrypts["use"] = json!("enc");
    let oct = json!({"kty": "oct", "k": "AAAA", "kid": "o", "alg": "HS256"});
    let mut mislabelled = jwk(&ec, Algorithm::ES256, "b");
    mislabelled["alg"] = json!("ES384");
    let twice = jwk(&ed, Algorithm::EdDSA, "c");
    for set in [json!([encrypts]), json!([oct]), json!([mislabelled]), json!([twice, twice])] {
        assert!(Issuer::jwks(&json!({"keys": set}).to_string(), rules()).is_err(), "{set}");
    }
    assert!(Issuer::jwks("{}", rules()).is_err());
}

#[tokio::test]
async fn open_keys_look_at_no_token() {
    let grant = Keys::open().unwrap().grant(&headers("rubbish")).await.unwrap();
    assert_eq!(grant.tenant.as_str(), "default");
    assert!(Word::ALL.iter().all(|word| grant.scopes.has(&[*word])));
}

/// While a secret is changed, tokens of both are about.
#[tokio::test]
async fn two_secrets_are_good_at_once() {
    let both = of(Issuer::hs256(&[SECRET.into(), FORMER.into()], rules()));
    let former = EncodingKey::from_secret(FORMER.as_bytes());
    for key in [secret(), former.clone()] {
        both.grant(&signed(&Header::default(), &claims(), &key)).await.unwrap();
    }
    let mut expired = claims();
    expired["exp"] = json!(1);
    for key in [secret(), former.clone()] {
        let detail = refusal(&both, &signed(&Header::default(), &expired, &key)).await;
        assert!(detail.contains("expired"), "{detail}");
    }
    let stranger = EncodingKey::from_secret(&[7; 32]);
    for (keys, key) in [(&both, &stranger), (&shared(), &former)] {
        let detail = refusal(keys, &signed(&Header::default(), &claims(), key)).await;
        assert!(detail.contains("signature"), "{detail}");
    }
}

#[tokio::test]
async fn what_is_no_access_token_is_refused() {
    let keys = shared();
    for (typ, is_good) in [
        (None, true),
        (Some("jwt"), true),
        (Some("at+JWT"), true),
        (Some("application/at+jwt"), true),
        (Some("logout+jwt"), false),
        (Some(""), false),
        (Some("application/"), false),
    ] {
        let header = Header { typ: typ.map(str::to_owned), ..Header::default() };
        let grant = keys.grant(&signed(&header, &claims(), &secret())).await;
        assert_eq!(grant.is_ok(), is_good, "{typ:?}");
    }
    for crit in [vec![], vec!["exp".to_owned()]] {
        let header = Header { crit: Some(crit), ..Header::default() };
        let detail = refusal(&keys, &signed(&header, &claims(), &secret())).await;
        assert!(detail.contains("crit"), "{detail}");
    }
}

#[tokio::test]
async fn a_token_lives_only_so_long() {
    let rules = TokenRules { max_life_s: Some(3600), ..rules() };
    let keys = of(Issuer::hs256(&[SECRET.into()], rules));
    let now = now_s() as f64;
    for (iat, exp, is_good) in [
        (Some(now - 10.0), now + 3590.0, true),
        (Some(now - 10.0), now + 3591.0, false),
        (Some(now - 3000.0), now + 601.5, false),
        (None, now + 3590.0, true),
        (None, now + 3700.0, false),
        (None, 1e300, false),
    ] {
        let mut claims = claims();
        claims["exp"] = json!(exp);
        claims["iat"] = json!(iat);
        let grant = keys.grant(&signed(&Header::default(), &claims, &secret())).await;
        assert_eq!(grant.is_ok(), is_good, "{iat:?} {exp}");
    }
}

/// What a key had verified goes with it, also what was verified before.
#[tokio::test]
async fn keys_are_replaced_in_their_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jwks.json");
    let [(ed, ed_algorithm, ed_kid), (ec, ec_algorithm, ec_kid), _] = pairs();
    let write = |jwks: &[Value]| std::fs::write(&path, json!({"keys": jwks}).to_string()).unwrap();
    write(&[jwk(&ed, ed_algorithm, ed_kid)]);
    let keys = of(Issuer::jwks_file(&path, rules()));
    let token = |key: &EncodingKey, algorithm, kid: &str| {
        let header = Header { kid: Some(kid.into()), ..Header::new(algorithm) };
        signed(&header, &claims(), key)
    };
    let (old, new) = (token(&ed, ed_algorithm, ed_kid), token(&ec, ec_algorithm, ec_kid));
    assert!(keys.grant(&old).await.is_ok() && keys.grant(&new).await.is_err());
    write(&[jwk(&ed, ed_algorithm, ed_kid), jwk(&ec, ec_algorithm, ec_kid)]);
    while keys.grant(&new).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(keys.grant(&old).await.is_ok());
    write(&[jwk(&ec, ec_algorithm, ec_kid)]);
    while keys.grant(&old).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // what is no JWKS changes nothing
    std::fs::write(&path, "{").unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(keys.grant(&new).await.is_ok() && keys.grant(&old).await.is_err());
}

/// A value of any type, among them those that claims have.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        "(admin|produce|operator|consume:[a-z*]{0,3}| ){0,4}".prop_map(Value::from),
        Just(json!("oncelog")),
        Just(json!("issuer")),
        Just(json!("t")),
        Just(json!(now_s() + 60)),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,5}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

const CLAIMS: [&str; 9] = ["aud", "iss", "exp", "nbf", "iat", "tenant", "scope", "sub", "jti"];

/// Runs a property of calls that wait for nothing but the runtime.
fn holds<S: Strategy>(cases: S, judge: impl AsyncFn(S::Value)) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut runner = proptest::test_runner::TestRunner::default();
    let held = runner.run(&cases, |case| {
        runtime.block_on(judge(case));
        Ok(())
    });
    held.unwrap();
}

/// Whatever is signed is refused, or grants what its claims say.
#[test]
fn any_claims_are_judged() {
    let keys = shared();
    let changes = prop::collection::vec((0..CLAIMS.len(), prop::option::of(any_value())), 0..3);
    holds(changes, async |changes| {
        let mut claims = claims();
        for (claim, value) in changes {
            match value {
                Some(value) => claims[CLAIMS[claim]] = value,
                None => drop(claims.as_object_mut().unwrap().remove(CLAIMS[claim])),
            }
        }
        match keys.grant(&signed(&Header::default(), &claims, &secret())).await {
            Ok(grant) => {
                assert_eq!(claims["tenant"], grant.tenant.as_str());
                assert!(claims["exp"].as_f64().unwrap() + LEEWAY_S as f64 > now_s() as f64);
                let word = |word: &Word| claims["scope"].to_string().contains(word.as_str());
                assert!(Word::ALL.iter().all(|one| word(one) || !grant.scopes.has(&[*one])));
            }
            Err(error) => assert_eq!(error.code, Code::Unauthenticated),
        }
    });
}

/// Nothing but the token itself is the token.
#[test]
fn any_other_text_is_no_token() {
    let keys = shared();
    let token = encode(&Header::default(), &claims(), &secret()).unwrap();
    let edit = (0..token.len(), 0..8_usize, "[A-Za-z0-9_.=+/~ -]{0,3}");
    holds(edit, async |(at, cut, put)| {
        let end = (at + cut).min(token.len());
        let other = format!("{}{put}{}", &token[..at], &token[end..]);
        // around it a space is none of its characters
        if other.trim() != token {
            refusal(&keys, &headers(&other)).await;
        }
    });
}
