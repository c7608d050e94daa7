//! Which tokens are good: keys, algorithms, the header they come in.

use base64::{Engine, engine::general_purpose::STANDARD, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use oncelog::{http::extract::auth::Issuer, model::Code};
use serde_json::{Value, json};

use super::all_words;
use crate::support::http::{SECRET, Server, Setup, claims, of_issuer, signed, token, token_rules};

// Made for tests alone; nothing else trusts them.
const ED25519: &[u8] = include_bytes!("../../../keys/ed25519.pem");
const P256: &[u8] = include_bytes!("../../../keys/p256.pem");
const RSA: &[u8] = include_bytes!("../../../keys/rsa2048.pem");

pub fn pairs() -> [(EncodingKey, Algorithm, &'static str); 3] {
    [
        (EncodingKey::from_ed_pem(ED25519).unwrap(), Algorithm::EdDSA, "ed"),
        (EncodingKey::from_ec_pem(P256).unwrap(), Algorithm::ES256, "ec"),
        (EncodingKey::from_rsa_pem(RSA).unwrap(), Algorithm::RS256, "rsa"),
    ]
}

/// The public key of a pair.
pub fn jwk((key, algorithm, kid): &(EncodingKey, Algorithm, &str)) -> Value {
    let mut jwk = Jwk::from_encoding_key(key, *algorithm).unwrap();
    jwk.common.key_id = Some((*kid).into());
    serde_json::to_value(jwk).unwrap()
}

fn jwks() -> Value {
    json!({"keys": pairs().iter().map(jwk).collect::<Vec<_>>()})
}

async fn with_jwks() -> Server {
    let keys = of_issuer(Issuer::jwks(&jwks().to_string(), token_rules()));
    Server::with(Setup { keys, ..Setup::default() }).await
}

#[tokio::test]
async fn keys_of_a_jwks_sign_with_their_own_algorithm_only() {
    let server = with_jwks().await;
    let claims = claims("acme", "admin");
    for (key, algorithm, kid) in pairs() {
        let header = |kid: Option<&str>, algorithm| Header {
            kid: kid.map(Into::into),
            ..Header::new(algorithm)
        };
        let token = encode(&header(Some(kid), algorithm), &claims, &key).unwrap();
        server.get("/v1/topics").token(&token).await.ok();
        for other in [None, Some("another"), Some(if kid == "ed" { "ec" } else { "ed" })] {
            let token = encode(&header(other, algorithm), &claims, &key).unwrap();
            server.get("/v1/topics").token(&token).await.refused(Code::Unauthenticated);
        }
    }
    // the right key, but another algorithm of its family
    let rsa = EncodingKey::from_rsa_pem(RSA).unwrap();
    for algorithm in [Algorithm::RS384, Algorithm::RS512, Algorithm::PS256] {
        let header = Header { kid: Some("rsa".into()), ..Header::new(algorithm) };
        let token = encode(&header, &claims, &rsa).unwrap();
        server.get("/v1/topics").token(&token).await.refused(Code::Unauthenticated);
    }
}

#[tokio::test]
async fn public_keys_are_no_secrets_and_none_is_no_algorithm() {
    let server = with_jwks().await;
    let claims = claims("acme", &all_words());
    let jwks = jwks();
    for (index, (field, kid)) in [("x", "ed"), ("x", "ec"), ("n", "rsa")].into_iter().enumerate() {
        let jwk = &jwks["keys"][index];
        let text = jwk[field].as_str().unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(text).unwrap();
        // RFC 8410: the SubjectPublicKeyInfo of an Ed25519 key is its bytes behind this
        let prefix = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        let der = [&prefix[..], &bytes].concat();
        let base64 = STANDARD.encode(&der);
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{base64}\n-----END PUBLIC KEY-----\n");
        let secrets = [text.as_bytes().to_vec(), bytes, der, pem.into(), jwk.to_string().into()];
        for secret in secrets {
            let key = EncodingKey::from_secret(&secret);
            for kid in [Some(kid.to_owned()), None] {
                let token = encode(&Header { kid, ..Header::default() }, &claims, &key).unwrap();
                server.get("/v1/topics").token(&token).await.refused(Code::Unauthenticated);
            }
        }
    }
    let shared = Server::signed().await;
    let payload = URL_SAFE_NO_PAD.encode(claims.to_string());
    for alg in ["none", "None", "NONE", "nOnE", ""] {
        for kid in [json!({"alg": alg}), json!({"alg": alg, "typ": "JWT", "kid": "rsa"})] {
            let header = URL_SAFE_NO_PAD.encode(kid.to_string());
            let signature = signed(&claims, SECRET).rsplit_once('.').unwrap().1.to_owned();
            for signature in ["", &signature] {
                let token = format!("{header}.{payload}.{signature}");
                for server in [&server, &shared] {
                    server.get("/v1/topics").token(&token).await.refused(Code::Unauthenticated);
                }
            }
        }
    }
}

#[tokio::test]
async fn there_is_one_authorization_header_and_it_bears() {
    let server = Server::signed().await;
    let good = token("acme", "admin");
    let get = || server.get("/v1/topics");
    get().header("authorization", &format!("bearer {good}")).await.ok();
    get().header("authorization", &format!("Basic {good}")).await.refused(Code::Unauthenticated);
    get().header("authorization", &good).await.refused(Code::Unauthenticated);
    get().token(&good).token(&good).await.refused(Code::Unauthenticated);
    get().token("").await.refused(Code::Unauthenticated);
    // nothing but the header is looked at
    let path = format!("/v1/topics?access_token={good}");
    server.get(&path).await.refused(Code::Unauthenticated);
}
