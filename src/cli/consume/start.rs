//! Where `consume` starts.

use crate::model::Timestamp;

/// A position in every partition that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    Earliest,
    Latest,
    /// This offset.
    At(u64),
    /// This many records before the end.
    Last(u64),
    /// The first record appended at or after this instant.
    Timestamp(String),
}

pub fn offset(text: &str) -> Result<Start, String> {
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|_| is_number).map(i64::unsigned_abs)
    };
    let start = match text {
        "earliest" => Some(Start::Earliest),
        "latest" => Some(Start::Latest),
        _ => match text.strip_prefix('-') {
            Some(count) => number(count).map(Start::Last),
            None => number(text).map(Start::At),
        },
    };
    start.ok_or_else(|| {
        "an offset is a number, -N for the last N records, earliest or latest".to_owned()
    })
}

pub fn instant(text: &str) -> Result<Start, String> {
    let instant = Timestamp::parse(text).map_err(str::to_owned)?;
    Ok(Start::Timestamp(instant.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets() {
        for (text, start) in [
            ("0", Start::At(0)),
            ("17", Start::At(17)),
            ("-10", Start::Last(10)),
            ("-0", Start::Last(0)),
            ("earliest", Start::Earliest),
            ("latest", Start::Latest),
        ] {
            assert_eq!(offset(text), Ok(start), "{text}");
        }
        for text in ["", "-", "--1", "-x", "+1", "first", "1-", "99999999999999999999"] {
            assert!(offset(text).is_err(), "{text}");
        }
    }
}
