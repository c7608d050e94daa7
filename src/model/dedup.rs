//! Deduplication keys: the hashes of record ids and Idempotency-Keys, and the rings that store them
//! by window.

use sha2::{Digest as _, Sha256};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::{Timestamp, uuid_v7};

/// 128 bits of SHA-256, which cannot collide on purpose. Unique per topic; for calls other than
/// appends, per tenant.
pub type DedupKey = Uuid;

/// 64 bits of XXH3 over the payload of a key: equal hashes mean equal payloads.
pub type PayloadDigest = i64;

/// The longest `Idempotency-Key`, in bytes.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;

/// The hash of a record's id.
pub fn id_key(id: &str) -> DedupKey {
    hash(&["id", id])
}

/// The hash of a record's key and value, in their stored form.
pub fn content_key(content: &str) -> DedupKey {
    hash(&["content", content])
}

pub fn payload_digest(payload: &[u8]) -> PayloadDigest {
    xxh3_64(payload).cast_signed()
}

fn hash(parts: &[&str]) -> DedupKey {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut key = [0; 16];
    key.copy_from_slice(&hash.finalize()[..16]);
    Uuid::from_bytes(key)
}

/// An `Idempotency-Key` as a client sends it: 1 to 255 printable ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Parses a key; the error describes the valid form.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let is_printable = |byte: &u8| matches!(byte, b' '..=b'~');
        let fits = (1..=MAX_IDEMPOTENCY_KEY_BYTES).contains(&bytes.len());
        match std::str::from_utf8(bytes) {
            Ok(text) if fits && bytes.iter().all(is_printable) => Ok(Self(text.to_owned())),
            _ => Err("expected 1 to 255 printable ASCII characters"),
        }
    }

    /// The stored form.
    pub fn of_request(&self, method: &str, path: &str, payload: &[&[u8]]) -> RequestKey {
        RequestKey::new(&self.0, method, path, payload)
    }
}

/// The stored form of an `Idempotency-Key`, which includes tenant, method and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey {
    pub key: DedupKey,
    /// The hash of everything that the request asks for.
    pub digest: PayloadDigest,
    /// The instant in a UUIDv7 key; keys older than the window are refused.
    pub instant: Option<Timestamp>,
}

impl RequestKey {
    /// `text` is 1 to 255 printable ASCII characters, `payload` all parts of the request.
    pub fn new(text: &str, method: &str, path: &str, payload: &[&[u8]]) -> Self {
        let mut bytes = Vec::new();
        for part in payload {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        Self {
            key: hash(&["key", method, path, text]),
            digest: payload_digest(&bytes),
            instant: uuid_v7(text).as_ref().and_then(Timestamp::of_uuid),
        }
    }

    /// How long it is remembered from `now` on: for its window, which starts at its instant if that
    /// is in the future. None: unlimited.
    pub fn lifetime_ms(&self, window_ms: Option<i64>, now: Timestamp) -> Option<i64> {
        let ahead_ms = self.instant.map_or(0, |instant| (instant.0 - now.0).max(0));
        window_ms.map(|window_ms| window_ms.saturating_add(ahead_ms))
    }
}

/// Keys with similar windows share a ring of partitions, which are emptied as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ring(pub i16);

/// The longest lifetime of keys in each ring, except the last, which is unlimited.
const PERIODS_MS: [i64; 6] =
    [900_000, 7_200_000, 86_400_000, 604_800_000, 5_184_000_000, 315_446_400_000];
/// The number of partitions of a ring.
const SLOTS: i16 = 3;

impl Ring {
    pub const FOREVER: Ring = Ring(PERIODS_MS.len() as i16);

    pub fn all() -> impl Iterator<Item = Ring> {
        (0..=Self::FOREVER.0).map(Ring)
    }

    /// The ring for a window; none: unlimited.
    pub fn of(lifetime_ms: Option<i64>) -> Ring {
        let within = |ring: &Ring| lifetime_ms.is_some_and(|ms| Some(ms) <= ring.period_ms());
        Self::all().find(within).unwrap_or(Self::FOREVER)
    }

    pub fn period_ms(self) -> Option<i64> {
        PERIODS_MS.get(usize::try_from(self.0).ok()?).copied()
    }

    /// Its partitions in the order in which they take keys; the last ring has one, three times.
    pub fn slots(self) -> [i16; 3] {
        let first = self.0 * SLOTS;
        if self == Self::FOREVER { [first; 3] } else { [first, first + 1, first + 2] }
    }

    /// Its bit in a set of rings.
    pub fn bit(self) -> i32 {
        1 << self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_belongs_to_the_shortest_ring_that_holds_it() {
        const DAY_MS: i64 = 86_400_000;
        for (lifetime_ms, want) in [
            (Some(1), 0),
            (Some(600_000), 0),
            (Some(900_000), 0),
            (Some(900_001), 1),
            (Some(DAY_MS), 2),
            (Some(DAY_MS + 1), 3),
            (Some(60 * DAY_MS), 4),
            (Some(315_360_000_000), 5),
            (Some(i64::MAX), 6),
            (None, 6),
        ] {
            assert_eq!(Ring::of(lifetime_ms), Ring(want), "{lifetime_ms:?}");
        }
        let slots: Vec<i16> = Ring::all().flat_map(Ring::slots).collect();
        assert_eq!(&slots[..18], (0..18).collect::<Vec<_>>());
        assert_eq!(&slots[18..], [18; 3]);
    }

    #[test]
    fn keys_of_requests_are_printable_and_not_too_long() {
        let longest = "k".repeat(MAX_IDEMPOTENCY_KEY_BYTES);
        for good in ["k", " ", "~", "order 7: \"paid\"", &longest] {
            assert_eq!(IdempotencyKey::parse(good.as_bytes()), Ok(IdempotencyKey(good.into())));
        }
        let too_long = "k".repeat(MAX_IDEMPOTENCY_KEY_BYTES + 1);
        for bad in ["", "a\tb", "a\u{7f}", "ä", "\u{1f}", &too_long] {
            assert!(IdempotencyKey::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(IdempotencyKey::parse(b"k\xff").is_err());
    }

    #[test]
    fn kinds_of_keys_never_meet() {
        let key = |method, path, text| RequestKey::new(text, method, path, &[]).key;
        let keys = [
            id_key("a"),
            id_key("b"),
            content_key("a"),
            key("POST", "/p", "a"),
            key("POST", "/p", "b"),
            key("POST", "/pa", ""),
            key("PUT", "/p", "a"),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(one));
        }
        assert_eq!(id_key("a"), id_key("a"));
    }

    #[test]
    fn a_key_with_an_instant_ahead_lives_that_much_longer() {
        let id = "019aa5b6-5c00-7000-8000-000000000001";
        let key = |text| RequestKey::new(text, "POST", "/p", &[]);
        let instant = key(id).instant.unwrap();
        let upper = id.to_uppercase();
        assert_eq!(key(&upper).instant, Some(instant));
        let [before, after] = [-5, 5].map(|ms| Timestamp(instant.0 + ms));
        assert_eq!(key(id).lifetime_ms(Some(10), before), Some(15));
        assert_eq!(key(id).lifetime_ms(Some(10), after), Some(10));
        assert_eq!(key(id).lifetime_ms(None, before), None);
        assert_eq!(key("order-7").lifetime_ms(Some(10), before), Some(10));
    }
}
