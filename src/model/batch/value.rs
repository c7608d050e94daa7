//! What every client must be able to parse: a value is given back as it was sent, so one that only
//! some parsers take would stop the consumers of its topic for good.

use super::line::string_end;

/// Maximum levels of arrays and objects in a value; a scalar has 0.
const MAX_LEVELS: usize = 128;

/// A number in JSON with fewer bytes, and without an exponent, is always within a double's range.
const SURELY_FINITE_BYTES: usize = 300;

/// Whether clients can parse a JSON value; the error says why not. Numbers may lose digits there,
/// or round to 0, but not to infinity.
pub(super) fn check(json: &str) -> Result<(), String> {
    if is_plain(json.as_bytes()) { Ok(()) } else { check_tokens(json) }
}

/// Whether a value certainly passes: nearly all do, and this looks at many bytes at a time.
fn is_plain(bytes: &[u8]) -> bool {
    let (mut opening, mut has_exponent) = (0_usize, false);
    for (byte, next) in bytes.iter().zip(bytes.get(1..).unwrap_or_default()) {
        opening += usize::from(matches!(byte, b'[' | b'{'));
        has_exponent |= byte.is_ascii_digit() & (next | 0x20 == b'e');
    }
    let escapes = memchr::memchr_iter(b'\\', bytes);
    let mut code_units = escapes.filter(|at| bytes.get(at + 1) == Some(&b'u'));
    opening <= MAX_LEVELS
        && !has_exponent
        && code_units.next().is_none()
        && !may_have_long_number(bytes)
}

/// A run of that many digits covers two samples in a row.
fn may_have_long_number(bytes: &[u8]) -> bool {
    let samples = bytes.iter().step_by(SURELY_FINITE_BYTES / 2 - 1);
    let after = samples.clone().skip(1);
    samples.zip(after).any(|(one, other)| one.is_ascii_digit() && other.is_ascii_digit())
}

fn check_tokens(json: &str) -> Result<(), String> {
    let bytes = json.as_bytes();
    let (mut at, mut levels) = (0, 0_usize);
    while let Some(byte) = bytes.get(at) {
        let end = match byte {
            b'"' => {
                let end = string_end(bytes, at + 1);
                if has_lone_surrogate(&bytes[at..end]) {
                    return Err("invalid Unicode: an escape is half of a surrogate pair".into());
                }
                end
            }
            b'-' | b'0'..=b'9' => {
                let end = at + bytes[at..].iter().take_while(|byte| is_of_number(**byte)).count();
                if is_infinite(&json[at..end]) {
                    return Err("a number is beyond the range of a 64-bit float (1.8e308)".into());
                }
                end
            }
            b'[' | b'{' => {
                levels += 1;
                if levels > MAX_LEVELS {
                    return Err(format!(
                        "arrays and objects are nested more than {MAX_LEVELS} deep"
                    ));
                }
                at + 1
            }
            b']' | b'}' => {
                levels -= 1;
                at + 1
            }
            _ => at + 1,
        };
        at = end;
    }
    Ok(())
}

fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')
}

fn is_infinite(number: &str) -> bool {
    let may_be = number.len() >= SURELY_FINITE_BYTES || number.contains(['e', 'E']);
    may_be && number.parse::<f64>().is_ok_and(f64::is_infinite)
}

/// Whether an escape of a valid JSON string is one half of a surrogate pair without the other.
fn has_lone_surrogate(string: &[u8]) -> bool {
    let mut rest = string;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let escape = &rest[at..];
        let length = match code_unit(escape) {
            Some(0xD800..=0xDBFF) => match escape.get(6..).and_then(code_unit) {
                Some(0xDC00..=0xDFFF) => 12,
                _ => return true,
            },
            Some(0xDC00..=0xDFFF) => return true,
            Some(_) => 6,
            None => 2,
        };
        rest = escape.get(length..).unwrap_or_default();
    }
    false
}

/// The UTF-16 code unit of `\uXXXX` at the start; none if it is another escape, or none.
fn code_unit(escape: &[u8]) -> Option<u16> {
    let digits = escape.strip_prefix(b"\\u")?.get(..4)?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::batch::properties::any_value;

    #[test]
    fn a_value_that_some_client_cannot_parse_is_refused() {
        let nested = |open: &str, close: &str, levels: usize| {
            format!("{}1{}", open.repeat(levels), close.repeat(levels))
        };
        let long = |digits: usize| format!("1{}", "0".repeat(digits));
        let surrogate = "invalid Unicode: an escape is half of a surrogate pair";
        let number = "a number is beyond the range of a 64-bit float (1.8e308)";
        let depth = "arrays and objects are nested more than 128 deep";
        let table: Vec<(String, Option<&str>)> = vec![
            ("1".into(), None),
            ("\"\"".into(), None),
            ("[[],{},[[]],\"[[[\",{\"[\":\"]\"}]".into(), None),
            (nested("[", "]", 128), None),
            (nested("[", "]", 129), Some(depth)),
            (nested("{\"a\":", "}", 128), None),
            (nested("{\"a\":", "}", 129), Some(depth)),
            (nested("[{\"a\":", "}]", 64), None),
            (nested("[{\"a\":", "}]", 65), Some(depth)),
            (nested("[", "]", 500_000), Some(depth)),
            // beside each other, not inside
            (format!("[{}0]", "[],".repeat(1_000)), None),
            ("1.7976931348623157e308".into(), None),
            ("1.7976931348623159e308".into(), Some(number)),
            ("[-1.7976931348623157E+308,1]".into(), None),
            ("{\"a\":[-1e309]}".into(), Some(number)),
            ("1e999".into(), Some(number)),
            ("0e999".into(), None),
            ("1e-999".into(), None),
            (format!("0.{}1e400", "0".repeat(200)), None),
            (long(308), None),
            (long(309), Some(number)),
            (format!("[0,{}]", long(400)), Some(number)),
            (format!("0.{}", "1".repeat(400)), None),
            (r#""1e999""#.into(), None),
            (r#""\ud83d\ude00\\ud800\"\u0041\n""#.into(), None),
            (r#""\ud800""#.into(), Some(surrogate)),
            (r#""\uDBFF x""#.into(), Some(surrogate)),
            (r#""\ud800\u0041""#.into(), Some(surrogate)),
            (r#""\ud800\ud800\udc00""#.into(), Some(surrogate)),
            (r#""\udc00\ud800""#.into(), Some(surrogate)),
            (r#""\ud83d\ude00\udc00""#.into(), Some(surrogate)),
            (r#""\ud800\n""#.into(), Some(surrogate)),
            (r#"{"\ud800":1}"#.into(), Some(surrogate)),
            (r#"[{"a":"\udfff"}]"#.into(), Some(surrogate)),
        ];
        for (value, want) in table {
            let shown = &value[..value.len().min(60)];
            assert!(
                serde_json::from_str::<&serde_json::value::RawValue>(&value).is_ok(),
                "{shown}"
            );
            assert_eq!(check(&value).err().as_deref(), want, "{shown}");
            assert_eq!(check_tokens(&value).err().as_deref(), want, "{shown}");
        }
    }

    /// serde_json has the same rule (but for depth, which is small here).
    #[test]
    fn what_is_taken_a_strict_parser_takes_and_nothing_else() {
        proptest::proptest!(|(value in any_value())| {
            let parsed = serde_json::from_str::<serde_json::Value>(&value);
            proptest::prop_assert_eq!(check(&value), check_tokens(&value));
            proptest::prop_assert_eq!(check(&value).is_ok(), parsed.is_ok(), "{}", value);
        });
    }
}
