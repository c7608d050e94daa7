//! The pages about the code are held to the code: rules, paths, mutants and rooms that they name.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

const ARCHITECTURE: &str = "docs/architecture.md";
const PROTOCOL: &str = "docs/append-protocol.md";
const MUTANTS: &str = "tests/mutants.txt";

/// What a path in backticks begins with.
const TOPS: [&str; 6] = ["src/", "tests/", "docs/", "migrations/", "scripts/", "benches/"];

/// Rooms whose folders the map has to name.
const ROOMS: [&str; 3] = ["src/broker", "src/store", "src/rules"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// Every Rust file under a directory.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The number that a text begins with, and what follows it.
fn leading_number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

/// The rules that a text names: `rule 12`, `rules 3 and 4`, `rule_11`, `rules_24_and_25`.
fn named_rules(text: &str) -> BTreeSet<u32> {
    let text = text.to_lowercase();
    let mut rules = BTreeSet::new();
    for (at, word) in text.match_indices("rule") {
        let behind = &text[at + word.len()..];
        let behind = behind.strip_prefix('s').unwrap_or(behind);
        let mut next = behind.strip_prefix(' ').or_else(|| behind.strip_prefix('_'));
        while let Some((rule, rest)) = next.and_then(leading_number) {
            rules.insert(rule);
            next = rest.strip_prefix(" and ").or_else(|| rest.strip_prefix("_and_"));
        }
    }
    rules
}

/// The rules of the page: their numbers, and what is written under each heading.
fn sections(page: &str) -> Vec<(u32, &str)> {
    let mut sections = Vec::new();
    for section in page.split("\n### ").skip(1) {
        let (title, text) = section.split_once('\n').unwrap();
        let number = title.strip_prefix("Rule ").and_then(leading_number);
        let (rule, rest) = number.unwrap_or_else(|| panic!("no rule: {title}"));
        assert!(rest.starts_with(": ") && rest.len() > 2, "no title: {title}");
        sections.push((rule, text.split("\n## ").next().unwrap()));
    }
    sections
}

/// What a rule says behind `**Reason:**` and the like, on one line.
fn part(section: &str, name: &str) -> Option<String> {
    let (_, text) = section.split_once(format!("- **{name}:**").as_str())?;
    let end = text.find("\n- **").unwrap_or(text.len());
    let words: Vec<&str> = text[..end].split_whitespace().collect();
    Some(words.join(" "))
}

/// The paths in backticks on a page.
fn paths(page: &str) -> Vec<&str> {
    let quoted = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|text| TOPS.iter().any(|top| text.starts_with(*top))).collect()
}

#[test]
fn every_rule_that_is_named_has_a_heading() {
    let page = document(PROTOCOL);
    let rules: Vec<u32> = sections(&page).into_iter().map(|(rule, _)| rule).collect();
    let headings: BTreeSet<u32> = rules.iter().copied().collect();
    assert_eq!(headings.len(), rules.len(), "a rule has two headings");
    let mut files = vec![root().join(MUTANTS)];
    for directory in ["src", "tests"] {
        files.extend(sources(&root().join(directory)));
    }
    let mut count = 0;
    for path in files {
        for rule in named_rules(&fs::read_to_string(&path).unwrap()) {
            assert!(headings.contains(&rule), "{}: rule {rule}", path.display());
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}

#[test]
fn every_rule_has_a_reason_a_test_and_a_mutant() {
    let page = document(PROTOCOL);
    for (rule, section) in sections(&page) {
        let said =
            |name: &str| part(section, name).unwrap_or_else(|| panic!("rule {rule}: no {name}"));
        assert!(!said("Reason").is_empty(), "rule {rule}");
        let (test, mutant) = (said("Test"), said("Mutant"));
        assert!(test.starts_with("none: ") || test.starts_with('`'), "rule {rule}: {test}");
        assert!(mutant.starts_with("none: ") || mutant.starts_with('"'), "rule {rule}: {mutant}");
    }
}

#[test]
fn every_path_leads_somewhere() {
    for name in [ARCHITECTURE, PROTOCOL] {
        let page = document(name);
        let quoted = paths(&page);
        assert!(quoted.len() > 40, "{name}: {}", quoted.len());
        for path in quoted {
            assert!(root().join(path).exists(), "{name}: {path}");
        }
    }
}

#[test]
fn every_mutant_that_is_quoted_exists() {
    let mutants = document(MUTANTS);
    let titles: BTreeSet<&str> = mutants
        .lines()
        .filter_map(|line| line.strip_prefix("== ")?.split_once(" | "))
        .map(|(title, _)| title)
        .collect();
    let mut count = 0;
    let page = document(PROTOCOL);
    for (rule, section) in sections(&page) {
        let mutant = part(section, "Mutant").unwrap_or_default();
        for title in mutant.split('"').skip(1).step_by(2) {
            assert!(titles.contains(title), "rule {rule}: {title}");
            count += 1;
        }
    }
    assert!(count > 40, "{count}");
}

#[test]
fn every_folder_is_on_the_map() {
    let page = document(ARCHITECTURE);
    for room in ROOMS {
        for entry in fs::read_dir(root().join(room)).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let folder = format!("{room}/{name}");
            assert!(!entry.path().is_dir() || page.contains(&folder), "{folder} is not named");
        }
    }
}
