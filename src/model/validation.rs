//! Validation errors of a request, by JSON pointer. They stay small whatever a client sends: their
//! number is limited, and their texts are truncated.

use std::ops::RangeInclusive;

use serde::Serialize;

use super::{Code, MAX_INTEGER, Name, Partition};

/// Maximum number of errors listed; the others are counted.
pub const MAX_LISTED: usize = 20;
/// The longest pointer and the longest detail, in bytes.
pub const MAX_TEXT_BYTES: usize = 256;

/// One error: where (RFC 6901 pointer into the body, `?name` for a query parameter, `/path/name`
/// for a path segment) and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValidationError {
    pub pointer: String,
    pub detail: String,
}

impl ValidationError {
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: shown(pointer.into()), detail: shown(detail.into()) }
    }
}

/// Truncates a text, which may contain the client's input.
pub fn shown(mut text: String) -> String {
    const CUT: &str = "…";
    if text.len() > MAX_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES - CUT.len()));
        text.push_str(CUT);
        // it goes on holding what it was cut from
        text.shrink_to_fit();
    }
    text
}

/// A limit that no setting can raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    pub code: Code,
    pub limit: i64,
}

/// All errors found; only the first ones are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidationErrors {
    /// Not empty in a refused request.
    pub listed: Vec<ValidationError>,
    /// The number of further errors.
    pub unlisted: usize,
    /// Size is checked before shape: then the first error says what is too large, and the others do
    /// not count.
    pub too_large: Option<TooLarge>,
}

impl ValidationErrors {
    pub fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::of([ValidationError::new(pointer, detail)])
    }

    pub fn too_large(
        pointer: impl Into<String>,
        detail: impl Into<String>,
        code: Code,
        limit: i64,
    ) -> Self {
        Self { too_large: Some(TooLarge { code, limit }), ..Self::at(pointer, detail) }
    }

    pub fn of(errors: impl IntoIterator<Item = ValidationError>) -> Self {
        let mut all = Self::default();
        errors.into_iter().for_each(|error| all.push(error));
        all
    }

    pub fn add(&mut self, pointer: &str, detail: impl Into<String>) {
        self.push(ValidationError::new(pointer, detail));
    }

    fn push(&mut self, error: ValidationError) {
        if self.listed.len() < MAX_LISTED {
            self.listed.push(error);
        } else {
            self.unlisted += 1;
        }
    }

    /// Adds the errors of another part of the same request.
    pub fn join(&mut self, other: Self) {
        if other.too_large.is_some() && self.too_large.is_none() {
            *self = other;
            return;
        }
        self.unlisted += other.unlisted;
        other.listed.into_iter().for_each(|error| self.push(error));
    }

    /// Returns a parsed part of the request, or records its errors.
    pub fn part<T>(&mut self, parsed: Result<T, Self>) -> Option<T> {
        parsed.map_err(|errors| self.join(errors)).ok()
    }

    /// Returns a parsed value, or records why it is wrong.
    pub fn parsed<T>(&mut self, pointer: &str, parsed: Result<T, impl Into<String>>) -> Option<T> {
        parsed.map_err(|detail| self.add(pointer, detail)).ok()
    }

    /// Checks that a value, if present, is within the range.
    pub fn range(
        &mut self,
        pointer: &str,
        value: Option<i64>,
        range: RangeInclusive<i64>,
    ) -> Option<i64> {
        let value = value?;
        if range.contains(&value) {
            return Some(value);
        }
        let (low, high) = (range.start(), range.end());
        self.add(pointer, format!("{value} is outside of {low} to {high}"));
        None
    }

    /// Checks an id, offset, epoch or sequence.
    pub fn count(&mut self, pointer: &str, value: Option<i64>) -> Option<i64> {
        self.range(pointer, value, 0..=MAX_INTEGER)
    }

    pub fn partition(&mut self, pointer: &str, value: Option<i64>) -> Option<Partition> {
        let value = self.range(pointer, value, 0..=i64::from(Partition::MAX))?;
        Partition::try_from(value).ok()
    }

    pub fn name(&mut self, pointer: &str, text: Option<&str>) -> Option<Name> {
        self.parsed(pointer, Name::parse(text?))
    }

    pub fn finish(self) -> Result<(), Self> {
        if self.listed.is_empty() { Ok(()) } else { Err(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_listed_and_the_others_counted() {
        let error = |index: usize| ValidationError::new(format!("/{index}"), "no");
        for (count, listed, unlisted) in
            [(0, 0, 0), (MAX_LISTED, MAX_LISTED, 0), (MAX_LISTED + 1, MAX_LISTED, 1)]
        {
            let invalid = ValidationErrors::of((0..count).map(error));
            assert_eq!((invalid.listed.len(), invalid.unlisted), (listed, unlisted));
        }
        let mut all = ValidationErrors::of((0..15).map(error));
        all.join(ValidationErrors::of((15..45).map(error)));
        assert_eq!((all.listed.len(), all.unlisted), (MAX_LISTED, 25));
        assert_eq!(all.listed[19].pointer, "/19");
    }

    #[test]
    fn texts_are_cut_between_characters() {
        for (sent, is_whole) in [("x".repeat(256), true), ("x".repeat(257), false)] {
            let error = ValidationError::new(sent.clone(), sent.clone());
            assert_eq!((error.pointer == sent, error.detail == sent), (is_whole, is_whole));
        }
        for text in ["é".repeat(1_000), "x".repeat(1_000_000), "😀".repeat(100)] {
            let cut = shown(text.clone());
            assert!((250..=MAX_TEXT_BYTES).contains(&cut.len()), "{cut}");
            assert!(text.starts_with(cut.strip_suffix('…').unwrap()));
            assert!(cut.capacity() <= 2 * MAX_TEXT_BYTES);
        }
    }

    #[test]
    fn size_goes_before_shape() {
        let large = ValidationErrors::too_large("/b", "too many", Code::BatchTooLarge, 7);
        let mut invalid = ValidationErrors::at("/a", "no");
        invalid.join(large.clone());
        assert_eq!(invalid, large);
        invalid.join(ValidationErrors::too_large("/c", "also", Code::TransactionTooLarge, 8));
        assert_eq!((invalid.too_large, &*invalid.listed[0].pointer), (large.too_large, "/b"));
    }

    #[test]
    fn all_errors_are_collected() {
        let mut errors = ValidationErrors::default();
        assert_eq!(errors.range("/a", Some(1), 1..=2), Some(1));
        assert_eq!(errors.range("/b", Some(0), 1..=2), None);
        assert_eq!(errors.count("/c", Some(1 << 53)), None);
        assert!(errors.name("/d", Some("..")).is_none());
        assert_eq!(errors.partition("/e", Some(i64::from(Partition::MAX))), Some(Partition::MAX));
        assert_eq!(errors.partition("/f", Some(1 << 31)), None);
        assert_eq!(errors.part(Ok(7)), Some(7));
        assert_eq!(errors.part::<()>(Err(ValidationErrors::at("/g", "no"))), None);
        let pointers: Vec<_> =
            errors.finish().unwrap_err().listed.into_iter().map(|error| error.pointer).collect();
        assert_eq!(pointers, ["/b", "/c", "/d", "/f", "/g"]);
    }
}
