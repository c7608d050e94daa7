//! What every client must be able to parse: a value is given back as it was sent, so one that only
//! some parsers take would stop the consumers of its topic for good.

use super::line::string_end;

/// Maximum levels of arrays and objects in a value; a scalar has 0.
const MAX_LEVELS: usize = 128;

/// A number in JSON with fewer digits, and at most two in its exponent, is within a double's range.
const SURELY_FINITE_DIGITS: usize = 200;

/// As many bytes as compile to a few vector instructions without a loop.
const BLOCK_BYTES: usize = 32;

/// Whether clients can parse a JSON value; the error says why not. Numbers may lose digits there,
/// or round to 0, but not to infinity. `is_plain`: so is the text that contains it.
pub(super) fn check(json: &str, is_plain: bool) -> Result<(), String> {
    let bytes = json.as_bytes();
    let passes =
        (is_plain || self::is_plain(bytes)) && !may_be_deep(bytes) && !may_have_long_number(bytes);
    if passes { Ok(()) } else { check_tokens(json) }
}

/// Whether a text has neither a number with a large exponent nor an escaped surrogate. Nearly all
/// have not, and it is cheaper to ask of a whole request than of each value.
pub(super) fn is_plain(text: &[u8]) -> bool {
    let is_surrogate = |at| matches!(text[at..], [_, b'u', b'd' | b'D', ..]);
    if memchr::memchr_iter(b'\\', text).any(is_surrogate) {
        return false;
    }
    let mut at = 0;
    while let Some(block) = text[at..].first_chunk() {
        if has_exponent(block) && !is_block_plain(text, at) {
            return false;
        }
        at += BLOCK_BYTES;
    }
    is_block_plain(text, at)
}

/// No wider than a byte and without a branch, so that it compiles to few vector instructions.
fn has_exponent(block: &[u8; BLOCK_BYTES + 4]) -> bool {
    let mut found = 0;
    for i in 0..BLOCK_BYTES {
        found |= u8::from(is_exponent(block[i], block[i + 1], block[i + 3], block[i + 4]));
    }
    found != 0
}

/// The start of an exponent with three digits, or with a sign and two: what lies between the `e`
/// and the next two may be either.
fn is_exponent(digit: u8, e: u8, second: u8, third: u8) -> bool {
    digit.is_ascii_digit() & (e | 0x20 == b'e') & second.is_ascii_digit() & third.is_ascii_digit()
}

/// Looks closer: many words of hexadecimal digits look like exponents.
fn is_block_plain(text: &[u8], start: usize) -> bool {
    let windows = text[start..].array_windows().take(BLOCK_BYTES).enumerate();
    let mut found = windows.filter(|(_, [a, b, _, d, e])| is_exponent(*a, *b, *d, *e));
    found.all(|(at, _)| {
        let digits = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'-');
        let before = text[..start + at].iter().rfind(|byte| !digits(byte));
        !matches!(before, None | Some(b'[' | b':' | b',' | b' ' | b'\n' | b'\r' | b'\t'))
    })
}

/// Each level takes two bytes.
fn may_be_deep(bytes: &[u8]) -> bool {
    let opens = |byte: &u8| u8::from(matches!(byte, b'[' | b'{'));
    let opening = |chunk: &[u8]| usize::from(chunk.iter().map(opens).sum::<u8>());
    bytes.len() > 2 * MAX_LEVELS && bytes.chunks(255).map(opening).sum::<usize>() > MAX_LEVELS
}

/// A run of that many digits covers two samples in a row.
fn may_have_long_number(bytes: &[u8]) -> bool {
    if bytes.len() < SURELY_FINITE_DIGITS {
        return false;
    }
    let samples = bytes.iter().step_by(SURELY_FINITE_DIGITS / 2 - 1);
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
    let may_be = number.len() >= SURELY_FINITE_DIGITS || number.contains(['e', 'E']);
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
            (format!("{}e99", long(198)), None),
            (format!("{}.0e99", long(209)), None),
            (format!("{}.0e99", long(210)), Some(number)),
            ("{\"a\":\"c1e309\",\"b\":1E+309}".into(), Some(number)),
            ("[\n1e0309]".into(), Some(number)),
            (r#""1e999""#.into(), None),
            (r#"{"id":"7d3e4567-e89b-12d3-8456-426614174000"}"#.into(), None),
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
            assert_eq!(check(&value, false).err().as_deref(), want, "{shown}");
            let is_plain = is_plain(format!("[{value}]").as_bytes());
            assert_eq!(check(&value, is_plain).err().as_deref(), want, "{shown}");
            assert_eq!(check_tokens(&value).err().as_deref(), want, "{shown}");
        }
    }

    #[test]
    fn nothing_hides_between_two_blocks() {
        for padding in 0..3 * BLOCK_BYTES {
            for refused in ["1e999", r#""\ud800""#] {
                let value = format!("[\"{}\",{refused}]", "x".repeat(padding));
                assert!(check(&value, is_plain(value.as_bytes())).is_err(), "{padding} {refused}");
            }
        }
    }

    /// serde_json has the same rule (but for depth, which is small here).
    #[test]
    fn what_is_taken_a_strict_parser_takes_and_nothing_else() {
        proptest::proptest!(|(value in any_value())| {
            let parsed = serde_json::from_str::<serde_json::Value>(&value);
            for is_plain in [false, is_plain(value.as_bytes())] {
                proptest::prop_assert_eq!(check(&value, is_plain), check_tokens(&value));
            }
            proptest::prop_assert_eq!(check(&value, false).is_ok(), parsed.is_ok(), "{}", value);
        });
    }

    /// What looks like an exponent or a surrogate and is none, and what is one.
    #[test]
    fn a_look_alike_is_told_from_what_it_is_like() {
        let number = "-?[1-9][0-9]{0,3}([.][0-9]{1,3})?([eE][+-]?[0-9]{1,4})?";
        let word = "\"[0-9a-fE. :,-]{0,40}\"";
        let text = r#""(\\ud83d\\ude00|\\uD800|\\\\ud800|\\n|\\u00e9|1e){0,3}""#;
        let token = proptest::prop_oneof![number, word, text];
        proptest::proptest!(|(tokens in proptest::collection::vec(token, 0..12))| {
            let value = format!("[{}]", tokens.join(","));
            let checked = check(&value, is_plain(value.as_bytes()));
            proptest::prop_assert_eq!(&checked, &check_tokens(&value), "{}", value);
            let parsed = serde_json::from_str::<serde_json::Value>(&value);
            proptest::prop_assert_eq!(checked.is_ok(), parsed.is_ok(), "{}", value);
        });
    }
}
