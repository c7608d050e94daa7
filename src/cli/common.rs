//! Values that several commands parse or print.

use std::time::Duration;

use serde_json::Value;

use crate::model::{Name, Timestamp};

const MAX_DURATION: Duration = Duration::from_secs(3650 * 86_400);

/// Parses a name; an invalid one is a usage error before any request is sent.
pub fn name(text: &str) -> Result<Name, String> {
    Name::parse(text).map_err(str::to_owned)
}

/// Parses a duration such as 90s.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "a time is a number with s, m, h or d, such as 90s, at most 3650d".to_owned();
    let unit_s = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86_400,
        _ => return Err(wrong()),
    };
    let count: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    let parsed = Duration::from_secs(count.checked_mul(unit_s).ok_or_else(wrong)?);
    let range = Duration::from_secs(1)..=MAX_DURATION;
    if range.contains(&parsed) { Ok(parsed) } else { Err(wrong()) }
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

/// The time since an instant, in words; empty for null.
pub fn time_since(instant: &Value) -> String {
    let Some(Ok(then)) = instant.as_str().map(Timestamp::parse) else { return String::new() };
    let now = Timestamp::from(chrono::Utc::now());
    // the server's clock may be ahead of ours
    seconds_in_words((now.0 - then.0).max(0).unsigned_abs() / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "1", "h", "0s", "-1h", "1w", "1é", "3651d", "99999999999999999999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
