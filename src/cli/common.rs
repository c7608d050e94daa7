//! Values that several commands parse or print.

use std::time::Duration;

use serde_json::Value;

use crate::{
    config::units::Unit,
    model::{Name, Timestamp},
};

const MAX_DURATION: Duration = Duration::from_secs(3650 * 86_400);

/// Parses a name; an invalid one is a usage error before any request is sent.
pub fn name(text: &str) -> Result<Name, String> {
    Name::parse(text).map_err(str::to_owned)
}

/// Parses a duration such as 90s, of which the unit is required.
pub fn duration(text: &str) -> Result<Duration, String> {
    let has_unit = text.ends_with(|c: char| !c.is_ascii_digit());
    let parsed = milliseconds(text).ok().filter(|_| has_unit).map(Duration::from_millis);
    let parsed = parsed.filter(|time| (Duration::from_secs(1)..=MAX_DURATION).contains(time));
    parsed.ok_or_else(|| {
        "a time is an integer with s, m, h or d, such as 90s, at most 3650d".to_owned()
    })
}

/// Parses `10s`, or a number of milliseconds.
pub fn milliseconds(text: &str) -> Result<u64, String> {
    Unit::Milliseconds.parse(text)
}

/// `1 record`, `2 records`
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `59 minutes`
pub fn seconds_in_words(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7_200 => (seconds / 60, "minute"),
        7_200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    counted(count, unit)
}

/// The milliseconds from an instant until now; none for null.
fn age_ms(instant: &Value) -> Option<i64> {
    let then = Timestamp::parse(instant.as_str()?).ok()?;
    Some(Timestamp::from(chrono::Utc::now()).0 - then.0)
}

/// The time since an instant, in words; empty for null.
pub fn time_since(instant: &Value) -> String {
    // the server's clock may be ahead of ours
    let seconds = |age_ms: i64| age_ms.max(0).unsigned_abs() / 1000;
    age_ms(instant).map_or_else(String::new, |age_ms| seconds_in_words(seconds(age_ms)))
}

/// `59 minutes ago`; empty for null.
pub fn ago(instant: &Value) -> String {
    age_ms(instant).map_or_else(String::new, |_| format!("{} ago", time_since(instant)))
}

/// `in 30 seconds`, or `over`; empty for null.
pub fn time_until(instant: &Value) -> String {
    match age_ms(instant) {
        None => String::new(),
        Some(0..) => "over".to_owned(),
        Some(left_ms) => format!("in {}", seconds_in_words(left_ms.unsigned_abs().div_ceil(1000))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in
            ["", "1", "h", "0s", "999ms", "-1h", "1w", "1é", "3651d", "99999999999999999999d"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
