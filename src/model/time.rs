//! Instants, in whole milliseconds.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An instant: milliseconds since the Unix epoch, UTC.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Parses RFC 3339 with any zone and any digits; fractions of a millisecond are truncated.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        DateTime::parse_from_rfc3339(text)
            .map(|t| Self(t.timestamp_millis()))
            .map_err(|_| "an instant must be RFC 3339, such as 2026-11-21T08:00:00.000Z")
    }

    /// The instant in a UUIDv7 (RFC 9562); none for any other UUID.
    pub fn of_uuid(id: &Uuid) -> Option<Self> {
        let millis = i64::try_from(id.as_u128() >> 80).ok()?;
        (id.get_version_num() == 7).then_some(Self(millis))
    }

    pub fn to_chrono(self) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(self.0).unwrap_or_default()
    }
}

impl From<DateTime<Utc>> for Timestamp {
    fn from(instant: DateTime<Utc>) -> Self {
        Self(instant.timestamp_millis())
    }
}

/// RFC 3339 in UTC with milliseconds.
impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_chrono().to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_and_digits_become_utc_milliseconds_cut_off() {
        let t = Timestamp::parse("2026-11-21T09:00:00.123999+01:00").unwrap();
        assert_eq!(t.to_string(), "2026-11-21T08:00:00.123Z");
        assert!(Timestamp::parse("2026-11-21 09:00").is_err());
    }
}
