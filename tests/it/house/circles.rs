//! No import circle, also none inside a room: who reads a file finds everything it stands on below
//! it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::tidy::{code, files, is_test, root};

/// A module by its path from the crate: `["broker", "append", "lane"]`.
type Module = Vec<String>;

fn module(path: &Path) -> Module {
    let inside = path.strip_prefix(root().join("src")).unwrap().with_extension("");
    let mut parts: Module = inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// The paths of a use tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn leaves(tree: &str) -> Vec<Module> {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![path.split("::").map(|part| part.trim().to_owned()).collect()];
    };
    let prefix: Module = head
        .split("::")
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    let inner = &rest[..rest.rfind('}').unwrap()];
    let mut depth = 0;
    let parts = inner.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let below = parts.filter(|part| !part.trim().is_empty()).flat_map(leaves);
    below.map(|leaf| [prefix.clone(), leaf].concat()).collect()
}

/// What a file names of ours: in its `use` lines and in its code.
fn named(code: &str) -> Vec<Module> {
    let mut named = Vec::new();
    for (at, _) in code.match_indices("use ") {
        if at > 0 && !code[..at].ends_with(['\n', ' ']) {
            continue;
        }
        if let Some((tree, _)) = code[at + 4..].split_once(';')
            && ["crate", "super", "self"].iter().any(|root| tree.starts_with(root))
        {
            named.extend(leaves(tree));
        }
    }
    for root in ["crate::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let path = code[at..].split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
            let path = path.into_iter().next().unwrap_or_default();
            named.push(path.split("::").map(str::to_owned).collect());
        }
    }
    named
}

/// From the crate, with `super` and `self` resolved.
fn absolute(from: &Module, path: &Module) -> Module {
    let mut base = from.clone();
    for (index, part) in path.iter().enumerate() {
        match part.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => drop(base.pop()),
            _ => {
                base.extend_from_slice(&path[index..]);
                break;
            }
        }
    }
    base
}

/// Who uses whom. A folder and what lies in it are one: `lane` uses what `append` has, and is had.
fn uses() -> BTreeMap<Module, BTreeSet<Module>> {
    let paths = files(&root().join("src"));
    let sources: Vec<_> = paths.into_iter().filter(|path| !is_test(path)).collect();
    let modules: BTreeSet<Module> = sources.iter().map(|path| module(path)).collect();
    let mut uses: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for path in &sources {
        let from = module(path);
        for path in named(&code(path)) {
            let mut to = absolute(&from, &path);
            while !to.is_empty() && !modules.contains(&to) {
                to.pop();
            }
            if !to.is_empty() && !from.starts_with(&to) && !to.starts_with(&from) {
                uses.entry(from.clone()).or_default().insert(to);
            }
        }
    }
    uses
}

/// The way from a module back to itself, if there is one.
fn circle(
    uses: &BTreeMap<Module, BTreeSet<Module>>,
    way: &mut Vec<Module>,
    done: &mut BTreeSet<Module>,
) -> Option<Vec<Module>> {
    let at = way.last().unwrap().clone();
    for next in uses.get(&at).into_iter().flatten() {
        if let Some(first) = way.iter().position(|module| module == next) {
            return Some(way[first..].to_vec());
        }
        if !done.contains(next) {
            way.push(next.clone());
            let found = circle(uses, way, done);
            if found.is_some() {
                return found;
            }
            way.pop();
        }
    }
    done.insert(at);
    None
}

#[test]
fn no_import_goes_in_a_circle() {
    let uses = uses();
    assert!(uses.len() > 150, "{} files use others", uses.len());
    let mut done = BTreeSet::new();
    for module in uses.keys() {
        let found = circle(&uses, &mut vec![module.clone()], &mut done);
        let shown: Vec<String> = found.iter().flatten().map(|module| module.join("::")).collect();
        assert!(found.is_none(), "{}", shown.join(" > "));
    }
}

#[test]
fn what_a_file_names_is_found() {
    let text = "use super::{a::{B, c}, d};\nuse crate::x::Y;\nfn f() { super::e::g() }";
    let from: Module = ["r", "s"].map(str::to_owned).to_vec();
    let named: BTreeSet<String> =
        named(text).iter().map(|path| absolute(&from, path).join("::")).collect();
    let want = ["r::a::B", "r::a::c", "r::d", "r::e::g", "x::Y"].map(str::to_owned);
    assert!(want.iter().all(|path| named.contains(path)), "{named:?}");
    let circle_of = |pairs: &[(&str, &str)]| {
        let mut uses: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, to) in pairs {
            uses.entry(vec![(*from).to_owned()]).or_default().insert(vec![(*to).to_owned()]);
        }
        circle(&uses, &mut vec![vec!["a".to_owned()]], &mut BTreeSet::new())
    };
    assert!(circle_of(&[("a", "b"), ("b", "c"), ("c", "b")]).is_some());
    assert!(circle_of(&[("a", "b"), ("b", "c"), ("a", "c")]).is_none());
}
