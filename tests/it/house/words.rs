//! Words that a stranger must read twice: their number may only fall.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::tidy::root;

/// Words and phrases with a common term in their place: again, forever, anyone, that many, as is,
/// reports.
const PRIVATE: [&str; 8] = [
    "anew",
    "for ever",
    "whoever",
    "so many",
    "as it stands",
    "as they stand",
    "by what right",
    "tells",
];

/// How many there are today.
const AT_MOST: usize = 0;

fn count(text: &str) -> usize {
    let words = text.to_lowercase();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let stands_alone = |start: usize, end: usize| {
        !words[..start].ends_with(is_word) && !words[end..].starts_with(is_word)
    };
    let matches = PRIVATE.iter().flat_map(|word| words.match_indices(word));
    matches.filter(|(start, word)| stands_alone(*start, start + word.len())).count()
}

/// The files that people read, under a path.
fn texts(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap().flatten();
    entries.flat_map(|entry| texts(&entry.path())).collect()
}

#[test]
fn words_are_the_fields() {
    let mut found = Vec::new();
    for directory in ["src", "tests", "docs", "benches", "scripts", "README.md"] {
        for path in texts(&root().join(directory)) {
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let count = count(&text);
            if count > 0 && !path.ends_with("house/words.rs") {
                found.push((count, path));
            }
        }
    }
    found.sort();
    let sum: usize = found.iter().map(|(count, _)| count).sum();
    assert_eq!(sum, AT_MOST, "there may be {AT_MOST}, and the number may only fall: {found:#?}");
}

#[test]
fn words_are_counted() {
    for (text, want) in [
        ("read anew", 1),
        ("Anew: for ever.", 2),
        ("foretells, renewed, tells_all", 0),
        ("it tells so many", 2),
    ] {
        assert_eq!(count(text), want, "{text}");
    }
}
