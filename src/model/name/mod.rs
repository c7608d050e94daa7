//! Names of topics, groups, transactional ids and tenants, and the patterns that restrict tokens to
//! them.

pub mod scopes;

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 249;

/// 1-249 of `[A-Za-z0-9._-]`, not `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    /// Parses a name; the error describes the valid form.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let fits = (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(legal);
        if fits && text != "." && text != ".." {
            Ok(Self(text.into()))
        } else {
            Err("a name must be 1 to 249 of A-Z a-z 0-9 . _ - and neither . nor ..")
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(from)?).map_err(de::Error::custom)
    }
}

/// A name pattern of a token's scope: `*` matches any run of characters, everything else itself
/// (`orders.*` covers `orders.eu`, not `orders`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn covers(&self, name: &Name) -> bool {
        let (mut parts, name) = (self.0.split('*'), name.as_str());
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
            return false;
        };
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return rest.is_empty();
        }
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return rest.ends_with(part);
            }
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let longest = "a".repeat(MAX_NAME_BYTES);
        for good in ["a", "orders.eu_1-x", "...", longest.as_str()] {
            assert!(Name::parse(good).is_ok(), "{good}");
        }
        let too_long = "a".repeat(MAX_NAME_BYTES + 1);
        for bad in ["", ".", "..", "a b", "a/b", "ä", "a\0", too_long.as_str()] {
            assert!(Name::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn patterns() {
        let table = [
            ("orders", "orders", true),
            ("orders", "orders.eu", false),
            ("*", "anything", true),
            ("orders.*", "orders.eu", true),
            ("orders.*", "orders", false),
            ("*.eu", "orders.eu", true),
            ("*.eu", "orders.us", false),
            ("a*b*c", "a-x-b-y-c", true),
            ("a*b*c", "a-x-c-y-b", false),
            ("a*a", "a", false),
            ("", "a", false),
        ];
        for (pattern, name, want) in table {
            let name = Name::parse(name).unwrap();
            assert_eq!(Pattern::new(pattern).covers(&name), want, "{pattern} {name}");
        }
    }
}
