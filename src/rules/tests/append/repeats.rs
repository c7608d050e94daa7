//! The Idempotency-Key of a request, as a table: what is remembered of it, and the outcome of the
//! request.

use crate::{
    model::{
        Timestamp, TopicId,
        dedup::{IdempotencyKey, RequestKey},
    },
    rules::{
        Refusal,
        append::dedup::{Fact, Known},
    },
};

const TOPIC: TopicId = TopicId(1);
const NOW: Timestamp = Timestamp(1_000_000);

/// A key without a timestamp, or a UUIDv7 with this one.
fn request(instant: Option<i64>) -> RequestKey {
    let text = instant.map_or("order-7".to_owned(), |at| {
        format!("{:08x}-{:04x}-7000-8000-000000000001", at >> 16, at & 0xffff)
    });
    let key = IdempotencyKey::parse(text.as_bytes()).unwrap();
    let request = key.of_request("POST", "/p", &[b"payload"]);
    assert_eq!(request.instant, instant.map(Timestamp));
    request
}

/// `remembered`: whether its window has not passed, and whether it came with the same payload.
fn said(
    instant: Option<i64>,
    remembered: Option<(bool, bool)>,
    window_ms: Option<i64>,
    horizon: i64,
) -> &'static str {
    let request = request(instant);
    let mut known = Known::default();
    known.now = NOW;
    known.horizons.insert(TOPIC, Timestamp(horizon));
    if let Some((is_live, is_same)) = remembered {
        let fact = Fact::Request {
            digest: request.digest + i64::from(!is_same),
            answer: b"answer".to_vec(),
            first_seen_at: Timestamp(7),
            is_live,
        };
        known.facts.insert((TOPIC, request.key), fact);
    }
    match known.repeated(TOPIC, &request, window_ms) {
        Ok(Some(before)) => {
            assert_eq!(before, (&b"answer"[..], Timestamp(7)));
            "repeat"
        }
        Ok(None) => "new",
        Err(Refusal::IdempotencyKeyReused) => "reused",
        Err(Refusal::IdempotencyKeyExpired) => "expired",
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_request_is_new_a_repeat_or_refused() {
    const NEVER: Option<(bool, bool)> = None;
    const LIVE: Option<(bool, bool)> = Some((true, true));
    const OVER: Option<(bool, bool)> = Some((false, true));
    let window = Some(1_000);
    let table = [
        // a key without an instant is new when it is forgotten
        (None, NEVER, window, 0, "new"),
        (None, NEVER, window, 2_000_000, "new"),
        (None, LIVE, window, 0, "repeat"),
        (None, Some((true, false)), window, 0, "reused"),
        (None, OVER, window, 0, "new"),
        (None, Some((false, false)), window, 0, "new"),
        // a UUIDv7 within its window, and at its edge
        (Some(999_500), NEVER, window, 0, "new"),
        (Some(999_000), NEVER, window, 0, "new"),
        (Some(998_999), NEVER, window, 0, "expired"),
        (Some(2_000_000), NEVER, window, 0, "new"),
        // before the horizon it may have been forgotten, whatever the window is
        (Some(999_500), NEVER, window, 999_500, "new"),
        (Some(999_500), NEVER, window, 999_501, "expired"),
        (Some(1), NEVER, None, 0, "new"),
        (Some(1), NEVER, None, 2, "expired"),
        // what is known of it wins, however old it is
        (Some(1), LIVE, window, 999_501, "repeat"),
        (Some(1), OVER, window, 999_501, "repeat"),
        (Some(1), Some((false, false)), window, 0, "reused"),
    ];
    for (instant, remembered, window_ms, horizon, want) in table {
        let got = said(instant, remembered, window_ms, horizon);
        assert_eq!(got, want, "{instant:?} {remembered:?} {window_ms:?} {horizon}");
    }
}
