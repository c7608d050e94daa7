//! The house rules that a machine can hold: the line of imports, and sizes as a ratchet.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const SOFT_LINES: usize = 400;
const HARD_LINES: usize = 600;
const FUNCTION_LINES: usize = 70;

/// Files over the soft limit today; they may only shrink.
const OVER_SOFT: &[(&str, usize)] = &[];

/// What each part may use of ours, and which crates it never uses.
const LAW: &[(&str, &[&str], &[&str])] = &[
    ("model", &["model"], &["tokio", "sqlx", "axum", "tracing", "metrics"]),
    ("rules", &["rules", "model"], &["tokio", "sqlx", "axum", "tracing", "metrics", "rand"]),
    ("store", &["store", "rules", "model", "telemetry"], &["axum"]),
    ("broker", &["broker", "store", "rules", "model", "telemetry"], &["axum", "sqlx"]),
    ("http", &["http", "broker", "model", "telemetry"], &["sqlx"]),
];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The text without comments and without the unit tests at its end.
pub fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| line.to_owned() + "\n").collect()
}

pub fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_stem().is_some_and(|stem| stem == "tests" || stem == "properties")
}

/// The first path segments behind every `crate::`, also in groups.
fn used(code: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let word = |text: &str| -> String {
            text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
        };
        if !rest.starts_with('{') {
            used.insert(word(rest));
            continue;
        }
        let mut depth = 0;
        let mut expects = true;
        for (index, c) in rest.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => expects = true,
                c if depth == 1 && expects && c.is_alphabetic() => {
                    used.insert(word(&rest[index..]));
                    expects = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    used
}

#[test]
fn imports_go_one_way() {
    for (part, may_use, never) in LAW {
        for path in files(&root().join("src").join(part)) {
            if is_test(&path) {
                continue;
            }
            let code = code(&path);
            for word in used(&code) {
                assert!(may_use.contains(&word.as_str()), "{}: uses {word}", path.display());
            }
            for name in *never {
                let uses = [format!("use {name}::"), format!("use {name};"), format!(" {name}::")];
                let found = uses.iter().find(|text| code.contains(text.as_str()));
                assert!(found.is_none(), "{}: uses {name}", path.display());
            }
        }
    }
}

#[test]
fn files_stay_small() {
    let allowed: BTreeMap<&str, usize> = OVER_SOFT.iter().copied().collect();
    for directory in ["src", "tests"] {
        for path in files(&root().join(directory)) {
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            let limit = allowed.get(name.as_str()).copied();
            let soft = if directory == "tests" || is_test(&path) { HARD_LINES } else { SOFT_LINES };
            let limit = limit.unwrap_or(soft);
            assert!(
                limit <= HARD_LINES && lines <= limit,
                "{name}: {lines} lines, at most {limit}"
            );
        }
    }
}

#[test]
fn functions_stay_small() {
    for directory in ["src", "tests"] {
        for path in files(&root().join(directory)) {
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            for (start, line) in lines.iter().enumerate() {
                let words = line.trim_start().split([' ', '(']);
                let is_function =
                    words.take(5).any(|word| word == "fn") && !line.trim_start().starts_with("//");
                if !is_function {
                    continue;
                }
                let indent = line.len() - line.trim_start().len();
                let end = format!("{}}}", " ".repeat(indent));
                let length = lines[start..].iter().position(|line| *line == end).unwrap_or(0);
                let name = path.display();
                assert!(length < FUNCTION_LINES, "{name}:{}: {length} lines", start + 1);
            }
        }
    }
}

#[test]
fn nothing_forbidden() {
    for path in files(&root().join("src")) {
        if is_test(&path) {
            continue;
        }
        let code = code(&path);
        for word in
            ["unsafe ", ".unwrap()", ".expect(", "todo!", "unimplemented!", "dbg!", "println!"]
        {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
            let for_people = name == "src/main.rs"
                || name.starts_with("src/app/")
                || name.starts_with("src/cli/");
            let allowed = word == "println!" && for_people;
            assert!(allowed || !code.contains(word), "{name}: {word}");
        }
    }
}

/// A mutant whose rule is no longer written the way it is left out would test nothing.
#[test]
fn every_mutant_finds_its_rule() {
    let text = fs::read_to_string(root().join("tests/mutants.txt")).unwrap();
    for block in text.split("\n== ").skip(1) {
        let (title, rest) = block.split_once('\n').unwrap();
        let parts: Vec<&str> = rest.split("\n---\n").collect();
        let code = fs::read_to_string(root().join(parts[0].trim())).unwrap();
        assert!(parts.len() == 3 && code.contains(parts[1]), "{title}");
    }
}

/// A metric's name is written once, and what is announced is also measured.
#[test]
fn every_metric_is_measured_by_its_constant() {
    let sources: Vec<(PathBuf, String)> = files(&root().join("src"))
        .into_iter()
        .filter(|path| !is_test(path) && !path.starts_with(root().join("src/telemetry/table.rs")))
        .map(|path| (path.clone(), code(&path)))
        .collect();
    for metric in oncelog::telemetry::METRICS {
        let literal = format!("\"{}\"", metric.name);
        let twice = sources.iter().find(|(_, code)| code.contains(&literal));
        assert!(twice.is_none(), "{literal}: {twice:?}");
        let name = metric.name.trim_start_matches("oncelog_").to_uppercase();
        let uses = ["telemetry", "table"].map(|module| format!("{module}::{name}"));
        // no other constant's beginning
        let measured = |code: &str| {
            uses.iter().any(|constant| {
                let rest = code.match_indices(constant).map(|(at, _)| &code[at + constant.len()..]);
                rest.into_iter()
                    .any(|rest| !rest.starts_with(|c: char| c == '_' || c.is_alphanumeric()))
            })
        };
        assert!(sources.iter().any(|(_, code)| measured(code)), "{name}: unused");
    }
}

/// What stands in the root, beside what .gitignore names.
const ROOT: &[&str] = &[
    ".ci",
    ".editorconfig",
    ".git",
    ".gitattributes",
    ".github",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "benches",
    "build.rs",
    "deny.toml",
    "docs",
    "examples",
    "migrations",
    "openapi",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "scripts",
    "src",
    "tests",
];

#[test]
fn the_root_holds_what_is_listed() {
    let ignored = fs::read_to_string(root().join(".gitignore")).unwrap();
    let ignored: Vec<&str> = ignored.lines().map(|line| line.trim_start_matches('/')).collect();
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_known = ROOT.contains(&name.as_str()) || ignored.contains(&name.as_str());
        assert!(is_known, "{name}: remove it, or list it in ROOT or in .gitignore");
    }
}

const FOLDER_ENTRIES: usize = 20;

/// The folder and all below it.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.is_dir()).flat_map(|path| folders(&path)).collect();
    found.push(folder.to_owned());
    found
}

#[test]
fn folders_stay_small() {
    for directory in ["src", "tests"] {
        for folder in folders(&root().join(directory)) {
            let entries = fs::read_dir(&folder).unwrap().count();
            let name = folder.display();
            assert!(
                entries <= FOLDER_ENTRIES,
                "{name}: {entries} entries, at most {FOLDER_ENTRIES}"
            );
        }
    }
}

/// A module with modules of its own is a folder with a `mod.rs`.
#[test]
fn modules_have_one_style() {
    for directory in ["src", "tests"] {
        for path in files(&root().join(directory)) {
            let folder = path.with_extension("");
            assert!(!folder.is_dir(), "{}: move it to {}/mod.rs", path.display(), folder.display());
        }
    }
}

/// As rustfmt's `max_width`, which holds neither comments nor macros.
const COLUMNS: usize = 100;

/// The files that have wider lines today, each behind their number, which may only fall.
const WIDE: &str = include_str!("wide.txt");

/// The end, behind quote and hashes, of the string whose first quote is at `start`.
fn end_of_string(chars: &[char], start: usize) -> usize {
    let hashes = chars[..start].iter().rev().take_while(|c| **c == '#').count();
    let is_raw = chars[..start - hashes].last() == Some(&'r');
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' if !is_raw => at += 2,
            '"' if !is_raw => return at + 1,
            '"' if chars[at + 1..].iter().take(hashes).all(|c| *c == '#') => {
                return (at + 1 + hashes).min(chars.len());
            }
            _ => at += 1,
        }
    }
    chars.len()
}

/// Of each character of the code, whether a string literal holds it.
fn in_strings(chars: &[char]) -> Vec<bool> {
    let mut inside = vec![false; chars.len()];
    let mut at = 0;
    while at < chars.len() {
        at = match &chars[at..] {
            ['/', '/', rest @ ..] => at + 2 + rest.iter().take_while(|c| **c != '\n').count(),
            ['\'', '\\', _, '\'', ..] => at + 4,
            ['\'', _, '\'', ..] => at + 3,
            ['"', ..] => {
                let end = end_of_string(chars, at);
                inside[at..end].fill(true);
                end
            }
            _ => at + 1,
        };
    }
    inside
}

/// How many lines are too wide; those do not count in which a string (SQL, JSON) crosses the limit.
fn wide_lines(text: &str) -> usize {
    let chars: Vec<char> = text.chars().collect();
    let mut wide = 0;
    let mut column = 0;
    for (c, in_string) in chars.iter().zip(in_strings(&chars)) {
        column = if *c == '\n' { 0 } else { column + 1 };
        wide += usize::from(column == COLUMNS + 1 && !in_string);
    }
    wide
}

#[test]
fn lines_stay_narrow() {
    let listed = WIDE.lines().map(|line| line.split_once(' ').unwrap());
    let allowed: BTreeMap<&str, usize> =
        listed.map(|(count, name)| (name, count.parse().unwrap())).collect();
    let mut is_kept = true;
    let mut list = String::new();
    for directory in ["src", "tests"] {
        for path in files(&root().join(directory)) {
            let wide = wide_lines(&fs::read_to_string(&path).unwrap());
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
            is_kept &= wide <= allowed.get(name).copied().unwrap_or(0);
            if wide > 0 {
                list += &format!("{wide} {name}\n");
            }
        }
    }
    assert!(is_kept, "lines wider than {COLUMNS} columns; the list in wide.txt is now\n{list}");
}

#[test]
fn wide_lines_are_told_from_wide_strings() {
    let x = "x".repeat(COLUMNS);
    for (text, wide) in [
        (format!("// {x}\n"), 1),
        (format!("{x}\n"), 0),
        (format!("{x}x\n{x}x\n"), 2),
        (format!("let a = \"{x}\";\n"), 0),
        (format!("let a = '\"'; // {x}\n"), 1),
        (format!("let a = r#\"\"{x}\n {x} \"#; // {x}\n// {x}"), 1),
        (format!("let a = \"\\\"{x}\\\n{x}{x}\"; // {x}\n// {x}"), 1),
    ] {
        assert_eq!(wide_lines(&text), wide, "{text}");
    }
}
