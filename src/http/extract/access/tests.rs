use axum::{Router, extract::State, http::Request, routing::get};
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;
use tower::ServiceExt;

use super::*;
use crate::http::extract::auth::{Issuer, TokenRules};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A route that admits as the real ones do, but needs no broker behind it.
fn router() -> Router {
    async fn probe(
        State(admission): State<Arc<Admission>>,
        request: axum::extract::Request,
    ) -> Result<String, Error> {
        let (mut parts, _) = request.into_parts();
        let (_, topic) = admit_to(&admission, &mut parts, See::ANY_OF, "topic").await?;
        let PartitionPath(partition) = PartitionPath::from_request_parts(&mut parts, &()).await?;
        Ok(format!("{topic} {partition}"))
    }
    let issuer = Issuer::hs256(&[SECRET.into()], TokenRules::new("issuer", "oncelog")).unwrap();
    let keys = Keys::of_issuers(vec![issuer]).unwrap();
    Router::new()
        .route("/v1/topics/{topic}/partitions/{partition}", get(probe))
        .with_state(Arc::new(Admission::new(keys, Limits::default())))
}

async fn call(scope: Option<&str>, topic: &str, partition: &str) -> Result<(), Error> {
    let mut request = Request::builder().uri(format!("/v1/topics/{topic}/partitions/{partition}"));
    if let Some(scope) = scope {
        let claims = json!({"aud": "oncelog", "iss": "issuer", "exp": 4_102_444_800_u64,
            "tenant": "t", "scope": scope});
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        let token = encode(&Header::default(), &claims, &key).unwrap();
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(axum::body::Body::empty()).unwrap();
    let mut answer = router().oneshot(request).await.unwrap();
    answer.extensions_mut().remove::<Error>().map_or(Ok(()), Err)
}

#[tokio::test]
async fn checks_come_in_order() {
    // token, scope, name, pattern, partition
    let table = [
        (None, "a%20b", "x", Code::Unauthenticated, ""),
        (Some("group operator"), "a%20b", "x", Code::Forbidden, ""),
        (Some("produce:o.*"), "a%20b", "x", Code::InvalidRequest, "/path/topic"),
        (Some("produce:o.*"), "%ff", "x", Code::InvalidRequest, "/path/topic"),
        (Some("produce:o.*"), "p", "x", Code::Forbidden, ""),
        (Some("produce:o.*"), "o.1", "x", Code::InvalidRequest, "/path/partition"),
        (Some("consume"), "o.1", "-1", Code::InvalidRequest, "/path/partition"),
        (Some("admin"), "o.1", "01", Code::InvalidRequest, "/path/partition"),
        (Some("admin"), "o.1", "2147483648", Code::InvalidRequest, "/path/partition"),
    ];
    for (scope, topic, partition, code, pointer) in table {
        let error = call(scope, topic, partition).await.unwrap_err();
        assert_eq!(error.code, code, "{scope:?} {topic} {partition}");
        if !pointer.is_empty() {
            assert_eq!(error.facts[0].1[0]["pointer"], pointer);
        }
    }
    call(Some("consume:o.1"), "o.1", "0").await.unwrap();
}

#[tokio::test]
async fn the_missing_scope_is_named() {
    let required = |error: Error| error.facts[0].1.clone();
    let error = call(Some(""), "o", "0").await.unwrap_err();
    assert_eq!(required(error), "admin | produce | consume");
    let error = call(Some("admin:x"), "o", "0").await.unwrap_err();
    assert_eq!(required(error), "admin:o | produce:o | consume:o");
}
