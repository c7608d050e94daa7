//! Limits on cursors in URLs and headers. Proxies pass on request and response heads only up to
//! some length, so a longer cursor goes in a body.

use axum::http::HeaderValue;

use crate::{broker::Error, http::extract::query::ParameterPlace, model::ValidationErrors};

/// The longest cursor in a URL or a header, in bytes.
pub const MAX_HEAD_CURSOR_BYTES: usize = 8 << 10;

/// Checks the length of a cursor where it was sent. `instead` is the operation that accepts any.
pub fn check(
    errors: &mut ValidationErrors,
    place: ParameterPlace,
    cursor: Option<&str>,
    instead: &str,
) {
    let length = cursor.map_or(0, str::len);
    if place == ParameterPlace::Query && length > MAX_HEAD_CURSOR_BYTES {
        let detail = format!(
            "this cursor has {length} bytes; a URL can hold at most {MAX_HEAD_CURSOR_BYTES}. Send \
             the parameters as the JSON body of {instead}"
        );
        errors.add(&place.of("cursor"), detail);
    }
}

/// The header that carries the cursor of an NDJSON answer. (Base64 is valid in a header.)
pub fn header(cursor: String) -> Result<HeaderValue, Error> {
    let length = cursor.len();
    if length > MAX_HEAD_CURSOR_BYTES {
        let detail = format!(
            "the cursor of this answer has {length} bytes; a header can hold at most \
             {MAX_HEAD_CURSOR_BYTES}. Ask for application/json"
        );
        return Err(ValidationErrors::at("Accept", detail).into());
    }
    HeaderValue::try_from(cursor).map_err(|_| Error::internal())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Code;

    #[test]
    fn how_long_a_cursor_may_be_where() {
        for (place, length, is_good) in [
            (ParameterPlace::Query, MAX_HEAD_CURSOR_BYTES, true),
            (ParameterPlace::Query, MAX_HEAD_CURSOR_BYTES + 1, false),
            (ParameterPlace::Body, MAX_HEAD_CURSOR_BYTES + 1, true),
        ] {
            let mut errors = ValidationErrors::default();
            check(&mut errors, place, Some(&"A".repeat(length)), "POST /elsewhere");
            match errors.finish() {
                Ok(()) => assert!(is_good, "{length}"),
                Err(invalid) => {
                    assert!(!is_good, "{length}");
                    assert_eq!(invalid.listed[0].pointer, "?cursor");
                    assert!(invalid.listed[0].detail.contains("POST /elsewhere"));
                }
            }
        }
        assert!(header("A".repeat(MAX_HEAD_CURSOR_BYTES)).is_ok());
        let refused = header("A".repeat(MAX_HEAD_CURSOR_BYTES + 1)).unwrap_err();
        assert_eq!(refused.code, Code::InvalidRequest);
    }
}
