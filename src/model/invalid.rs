//! Validation errors of a request, by JSON pointer. They stay small whatever a client sends: their
//! number is limited, and their texts are truncated.

use serde::Serialize;

use super::Code;

/// Maximum number of errors listed; the others are counted.
pub const MAX_FAULTS: usize = 20;
/// The longest pointer and the longest detail, in bytes.
pub const MAX_FAULT_TEXT_BYTES: usize = 256;

/// One error: where (RFC 6901 pointer into the body, `?name` for a query parameter, `/path/name`
/// for a path segment) and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub pointer: String,
    pub detail: String,
}

impl Fault {
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: shown(pointer.into()), detail: shown(detail.into()) }
    }
}

/// Truncates a text, which may contain the client's input.
pub fn shown(mut text: String) -> String {
    const CUT: &str = "…";
    if text.len() > MAX_FAULT_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_FAULT_TEXT_BYTES - CUT.len()));
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
pub struct Invalid {
    /// Not empty in a refused request.
    pub faults: Vec<Fault>,
    /// The number of further errors.
    pub unlisted: usize,
    /// Size is checked before shape: then the first error says what is too large, and the others do
    /// not count.
    pub too_large: Option<TooLarge>,
}

impl Invalid {
    pub fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::of([Fault::new(pointer, detail)])
    }

    pub fn too_large(
        pointer: impl Into<String>,
        detail: impl Into<String>,
        code: Code,
        limit: i64,
    ) -> Self {
        Self { too_large: Some(TooLarge { code, limit }), ..Self::at(pointer, detail) }
    }

    pub fn of(faults: impl IntoIterator<Item = Fault>) -> Self {
        let mut invalid = Self::default();
        faults.into_iter().for_each(|fault| invalid.add(fault));
        invalid
    }

    pub fn add(&mut self, fault: Fault) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(fault);
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
        other.faults.into_iter().for_each(|fault| self.add(fault));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_listed_and_the_others_counted() {
        let fault = |index: usize| Fault::new(format!("/{index}"), "no");
        for (count, listed, unlisted) in
            [(0, 0, 0), (MAX_FAULTS, MAX_FAULTS, 0), (MAX_FAULTS + 1, MAX_FAULTS, 1)]
        {
            let invalid = Invalid::of((0..count).map(fault));
            assert_eq!((invalid.faults.len(), invalid.unlisted), (listed, unlisted));
        }
        let mut all = Invalid::of((0..15).map(fault));
        all.join(Invalid::of((15..45).map(fault)));
        assert_eq!((all.faults.len(), all.unlisted), (MAX_FAULTS, 25));
        assert_eq!(all.faults[19].pointer, "/19");
    }

    #[test]
    fn texts_are_cut_between_characters() {
        for (sent, is_whole) in [("x".repeat(256), true), ("x".repeat(257), false)] {
            let fault = Fault::new(sent.clone(), sent.clone());
            assert_eq!((fault.pointer == sent, fault.detail == sent), (is_whole, is_whole));
        }
        for text in ["é".repeat(1_000), "x".repeat(1_000_000), "😀".repeat(100)] {
            let cut = shown(text.clone());
            assert!((250..=MAX_FAULT_TEXT_BYTES).contains(&cut.len()), "{cut}");
            assert!(text.starts_with(cut.strip_suffix('…').unwrap()));
            assert!(cut.capacity() <= 2 * MAX_FAULT_TEXT_BYTES);
        }
    }

    #[test]
    fn size_goes_before_shape() {
        let large = Invalid::too_large("/b", "too many", Code::BatchTooLarge, 7);
        let mut invalid = Invalid::at("/a", "no");
        invalid.join(large.clone());
        assert_eq!(invalid, large);
        invalid.join(Invalid::too_large("/c", "also", Code::TransactionTooLarge, 8));
        assert_eq!((invalid.too_large, &*invalid.faults[0].pointer), (large.too_large, "/b"));
    }
}
