//! Dedup by key: what ids of records and Idempotency-Keys are hashed to, and the rings that windows
//! belong to.

use sha2::{Digest as _, Sha256};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::{Timestamp, uuid_v7};

/// 128 bits of SHA-256: two that are given on purpose do not meet. Unique in its topic; one of a call
/// that is no append, in its tenant.
pub type DedupKey = Uuid;

/// 64 bits of XXH3 over what came with a key: equal ones mean the same payload.
pub type PayloadDigest = i64;

/// Longest `Idempotency-Key`, in bytes.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;

/// Of a record's id.
pub fn id_key(id: &str) -> DedupKey {
    hash(&["id", id])
}

/// Of a record's key and value, as they stand in its line.
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
    /// The key, or what a key has to look like.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let is_printable = |byte: &u8| matches!(byte, b' '..=b'~');
        let fits = (1..=MAX_IDEMPOTENCY_KEY_BYTES).contains(&bytes.len());
        match std::str::from_utf8(bytes) {
            Ok(text) if fits && bytes.iter().all(is_printable) => Ok(Self(text.to_owned())),
            _ => Err("a key is 1 to 255 printable ASCII characters"),
        }
    }

    /// As it is remembered.
    pub fn of_request(&self, method: &str, path: &str, payload: &[&[u8]]) -> RequestKey {
        RequestKey::new(&self.0, method, path, payload)
    }
}

/// An `Idempotency-Key` as it is remembered: of a tenant, a method and a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey {
    pub key: DedupKey,
    /// Of all that the request asks for.
    pub digest: PayloadDigest,
    /// In a key that is a UUIDv7: what is older than what is remembered is not run.
    pub instant: Option<Timestamp>,
}

impl RequestKey {
    /// `text`: 1 to 255 printable ASCII characters. `payload`: all parts of what is asked for.
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

    /// How long it is remembered from `now` on: its window, which begins with its instant where that
    /// lies ahead. None: for ever.
    pub fn lifetime_ms(&self, window_ms: Option<i64>, now: Timestamp) -> Option<i64> {
        let ahead_ms = self.instant.map_or(0, |instant| (instant.0 - now.0).max(0));
        window_ms.map(|window_ms| window_ms.saturating_add(ahead_ms))
    }
}

/// Keys whose windows are about as long lie in one ring of partitions, which are emptied whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ring(pub i16);

/// Of each ring but the last, which is for ever: no key of it lives longer.
const PERIODS_MS: [i64; 6] =
    [900_000, 7_200_000, 86_400_000, 604_800_000, 5_184_000_000, 315_446_400_000];
/// Partitions of a ring.
const SLOTS: i16 = 3;

impl Ring {
    pub const FOREVER: Ring = Ring(PERIODS_MS.len() as i16);

    pub fn all() -> impl Iterator<Item = Ring> {
        (0..=Self::FOREVER.0).map(Ring)
    }

    /// For keys that live so long; none: for ever.
    pub fn of(lifetime_ms: Option<i64>) -> Ring {
        let within = |ring: &Ring| lifetime_ms.is_some_and(|ms| Some(ms) <= ring.period_ms());
        Self::all().find(within).unwrap_or(Self::FOREVER)
    }

    pub fn period_ms(self) -> Option<i64> {
        PERIODS_MS.get(usize::try_from(self.0).ok()?).copied()
    }

    /// The partitions it has, in the order in which they take keys; the last ring has one, thrice.
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
