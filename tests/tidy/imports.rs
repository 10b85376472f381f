//! The direction of imports: the layers that ARCHITECTURE.md draws, the order of the parts of
//! `crates/ledger`, and no circle of files.
//!
//! It reads `use` declarations and paths as text. It must not judge the files of tests.

use super::{files, is_test, root};
use std::collections::{BTreeMap, BTreeSet};

/// Segments of a path, without `crate`.
type Path = Vec<String>;

/// One file as a module of its crate.
#[derive(Default)]
struct Module {
    /// Names that the file defines.
    items: BTreeSet<String>,
    /// Names that the file re-exports, with the path as written.
    exports: BTreeMap<String, Path>,
    /// Paths that the file uses, as written.
    imports: Vec<Path>,
}

/// The modules of one crate, by their path.
struct Crate(BTreeMap<Path, Module>);

impl Crate {
    fn read(folder: &str) -> Self {
        let mut modules = BTreeMap::new();
        for file in files(folder, ".rs") {
            if is_test(&file.path) || file.path.ends_with("fixture.rs") {
                continue;
            }
            let path = file.path.strip_prefix(folder).unwrap();
            let path: Path = path
                .with_extension("")
                .iter()
                .map(|part| part.to_str().unwrap().to_owned())
                .filter(|part| part != "lib")
                .collect();
            modules.insert(path, Module::parse(&file.text));
        }
        Self(modules)
    }

    /// Returns the file that defines what `path` names, seen from `module`; `None` for what other
    /// crates define.
    fn definer(&self, module: &Path, path: &Path) -> Option<Path> {
        let absolute = self.absolute(module, path)?;
        self.resolve(&absolute, 8)
    }

    fn absolute(&self, module: &Path, path: &Path) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let supers = path.iter().take_while(|part| *part == "super").count();
        Some(match first.as_str() {
            "crate" => rest.to_vec(),
            "self" => [module, rest].concat(),
            "super" => {
                let up = module.len().checked_sub(supers)?;
                [module.get(..up)?, path.get(supers..)?].concat()
            }
            _ => {
                let child = [module.as_slice(), std::slice::from_ref(first)].concat();
                self.0
                    .contains_key(&child)
                    .then_some([child.as_slice(), rest].concat())?
            }
        })
    }

    fn resolve(&self, path: &[String], depth: usize) -> Option<Path> {
        let length = (0..=path.len())
            .rev()
            .find(|length| self.0.contains_key(&path[..*length]))?;
        let (module, rest) = path.split_at(length);
        let Some((name, below)) = rest.split_first() else {
            return Some(module.to_vec());
        };
        let file = &self.0[module];
        match file.exports.get(name) {
            Some(export) if depth > 0 && !file.items.contains(name) => {
                let module = module.to_vec();
                let target = self.absolute(&module, export)?;
                self.resolve(&[target.as_slice(), below].concat(), depth - 1)
            }
            _ => Some(module.to_vec()),
        }
    }

    /// Which files import which.
    fn edges(&self) -> BTreeSet<(Path, Path)> {
        let edges = self.0.iter().flat_map(|(path, module)| {
            let targets = module.imports.iter();
            targets
                .filter_map(move |import| self.definer(path, import))
                .filter(move |target| target != path)
                .map(move |target| (path.clone(), target))
        });
        edges.collect()
    }
}

impl Module {
    fn parse(text: &str) -> Self {
        let text = without_tests(text);
        let mut module = Self::default();
        for line in text.lines() {
            if let Some(name) = defined_name(line) {
                module.items.insert(name.to_owned());
            }
        }
        let mut rest = text.as_str();
        while let Some(start) = find_use(rest) {
            let (before, declaration) = rest.split_at(start);
            let visible = before
                .rsplit('\n')
                .next()
                .is_some_and(|line| line.trim_start().starts_with("pub"));
            let end = declaration.find(';').unwrap_or(declaration.len());
            for (path, name) in expand(&declaration["use ".len()..end]) {
                if visible {
                    module.exports.insert(name, path.clone());
                }
                module.imports.push(path);
            }
            rest = &declaration[end..];
        }
        module.imports.extend(inline_paths(&text));
        module
    }
}

/// Removes comments, and what is compiled for tests only.
fn without_tests(text: &str) -> String {
    let mut lines = text.lines().peekable();
    let mut kept = String::new();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        if line.trim() == "#[cfg(test)]" {
            while lines
                .peek()
                .is_some_and(|next| next.trim_start().starts_with("#["))
            {
                lines.next();
            }
            let indent = line.len() - line.trim_start().len();
            let item = lines.next().unwrap_or_default();
            if item.trim_end().ends_with('{') {
                let close = format!("{}}}", " ".repeat(indent));
                lines.by_ref().find(|line| *line == close);
            }
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

/// The name that a line at the top level of a file defines.
fn defined_name(line: &str) -> Option<&str> {
    let mut words = line.split([' ', '(', '<', ':', ';', '=', '{', '!']);
    if line.starts_with([' ', '}', '#']) {
        return None;
    }
    words.find(|word| {
        matches!(
            *word,
            "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "macro_rules"
        )
    })?;
    words.find(|word| !word.is_empty() && *word != "fn")
}

/// The position of the next `use` declaration.
fn find_use(text: &str) -> Option<usize> {
    text.match_indices("use ").map(|(at, _)| at).find(|at| {
        let line = text[..*at].rsplit('\n').next().unwrap_or_default().trim();
        line.is_empty() || line == "pub" || (line.starts_with("pub(") && line.ends_with(')'))
    })
}

/// The paths of a `use` declaration, each with the name that it brings into scope.
fn expand(tree: &str) -> Vec<(Path, String)> {
    let tree = tree.trim();
    if let Some((prefix, list)) = tree.split_once('{') {
        let prefix: Path = segments(prefix);
        let list = list.trim_end().strip_suffix('}').unwrap_or(list);
        return split_list(list)
            .into_iter()
            .flat_map(expand)
            .map(|(path, name)| match path.as_slice() {
                [only] if only == "self" => {
                    (prefix.clone(), prefix.last().cloned().unwrap_or_default())
                }
                _ => ([prefix.as_slice(), &path].concat(), name),
            })
            .collect();
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (segments(path), Some(alias.trim().to_owned())),
        None => (segments(tree), None),
    };
    let Some(last) = path.last().cloned() else {
        return Vec::new();
    };
    vec![(path, alias.unwrap_or(last))]
}

fn segments(path: &str) -> Path {
    let parts = path.split("::").map(str::trim);
    parts
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Splits a list at the commas outside of braces.
fn split_list(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_usize, 0, Vec::new());
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts
}

/// Paths from the root of the crate, from the module above or into a module below, within the code.
/// A path of a visibility imports nothing.
fn inline_paths(text: &str) -> Vec<Path> {
    let is_path = |character: char| character.is_alphanumeric() || "_:".contains(character);
    let children = text.lines().filter_map(|line| {
        let line = line
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub ");
        Some(format!(
            "{}::",
            line.strip_prefix("mod ")?.strip_suffix(';')?
        ))
    });
    let starts = ["crate::".to_owned(), "super::".to_owned()].into_iter();
    let starts: Vec<_> = starts.chain(children).collect();
    let found = starts.iter().flat_map(|start| {
        text.match_indices(start.as_str())
            .map(|(at, _)| text.split_at(at))
            .filter(|(before, _)| !before.ends_with(is_path) && !before.ends_with("pub(in "))
    });
    found
        .map(|(_, rest)| &rest[..rest.find(|c| !is_path(c)).unwrap_or(rest.len())])
        // The prefix of a list is a `use` declaration.
        .filter(|path| !path.ends_with("::"))
        .map(segments)
        .filter(|path| path.len() > 1)
        .collect()
}

/// Removes the edges from and to files that are in no circle.
fn circles(mut edges: BTreeSet<(Path, Path)>) -> BTreeSet<(Path, Path)> {
    loop {
        let from: BTreeSet<_> = edges.iter().map(|(from, _)| from.clone()).collect();
        let to: BTreeSet<_> = edges.iter().map(|(_, to)| to.clone()).collect();
        let before = edges.len();
        edges.retain(|(source, target)| to.contains(source) && from.contains(target));
        if edges.len() == before {
            return edges;
        }
    }
}

/// The layers in the first diagram of ARCHITECTURE.md, from top to bottom.
fn layers() -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let diagram = page.split("```").nth(1).unwrap().to_owned();
    let rows = diagram.lines().filter(|line| line.starts_with(' '));
    rows.map(|row| row.trim().split("  ").next().unwrap().to_owned())
        .filter(|names| !names.contains('/'))
        .map(|names| {
            names
                .split('|')
                .map(|name| name.trim().to_owned())
                .collect()
        })
        .collect()
}

/// The parts of a crate, from top to bottom: its documentation lists them from bottom to top.
fn parts(text: &str) -> Vec<Vec<String>> {
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with("//! # Parts, from bottom to top"));
    let names = lines.filter_map(|line| line.strip_prefix("//! * ")?.split('`').nth(1));
    let mut parts: Vec<_> = names.map(|name| vec![name.to_owned()]).collect();
    parts.reverse();
    parts
}

/// The imports between modules directly below the root that do not point to a lower layer.
fn upwards(layers: &[Vec<String>], edges: &BTreeSet<(Path, Path)>) -> Vec<String> {
    let row = |module: &str| {
        let has = |names: &Vec<String>| names.iter().any(|name| name == module);
        layers.iter().position(has)
    };
    let mut upwards = Vec::new();
    for (from, to) in edges {
        let (Some(source), Some(target)) = (from.first(), to.first()) else {
            continue;
        };
        if source == target || source == "main" {
            continue;
        }
        let rows = row(source).zip(row(target));
        let (above, below) = rows.unwrap_or_else(|| panic!("{source} or {target} has no layer"));
        if above >= below {
            upwards.push(format!("{} imports {}", show(from), show(to)));
        }
    }
    upwards
}

fn show(path: &Path) -> String {
    path.join("/")
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let crates = [
        "src",
        "crates/accounts/src",
        "crates/base/src",
        "crates/config/src",
        "crates/credits/src",
        "crates/ledger/src",
        "crates/llm-protocol/src",
        "crates/vendor-simulator/src",
    ];
    for folder in crates {
        let edges = Crate::read(folder).edges();
        assert!(edges.len() > 5, "{folder} has hardly any imports");
        let circle: Vec<_> = circles(edges)
            .iter()
            .map(|(from, to)| format!("{} imports {}", show(from), show(to)))
            .collect();
        assert!(circle.is_empty(), "{folder}:\n{}", circle.join("\n"));
    }
}

#[test]
fn imports_point_down_the_layers_of_the_architecture() {
    let layers = layers();
    assert!(layers.len() > 8, "{layers:?}");
    let edges = Crate::read("src").edges();
    let upwards = upwards(&layers, &edges);
    assert!(upwards.is_empty(), "{}", upwards.join("\n"));
}

#[test]
fn the_parts_of_the_ledger_use_only_parts_below_them() {
    let folder = "crates/ledger/src";
    let text = std::fs::read_to_string(root().join(folder).join("lib.rs")).unwrap();
    let parts = parts(&text);
    assert!(parts.len() > 15, "{parts:?}");
    let upwards = upwards(&parts, &Crate::read(folder).edges());
    assert!(upwards.is_empty(), "{}", upwards.join("\n"));
}

/// The control: without it, a guard that sees nothing would be green too.
#[test]
fn an_upward_use_between_parts_is_found() {
    let parts = parts(
        "//! # Parts, from bottom to top\n//!\n//! * [`low`]: the `high` one.\n//! * `high`: a part.\n",
    );
    assert_eq!(parts, [["high"], ["low"]]);
    let modules = |low: &str, high: &str| {
        let modules = [
            (Path::new(), Module::parse("pub use high::part::Name;\n")),
            (segments("low"), Module::parse(low)),
            (segments("low::child"), Module::parse("")),
            (segments("high"), Module::parse(high)),
            (
                segments("high::part"),
                Module::parse("pub struct Name;\nuse super::g;\n"),
            ),
        ];
        upwards(&parts, &Crate(modules.into_iter().collect()).edges())
    };
    let high = "mod part;\npub fn g() {}\nuse crate::low::child::f;\n";
    assert_eq!(modules("mod child;\nuse child::f;\n", high), [""; 0]);
    let upward = ["low imports high/part"];
    assert_eq!(modules("use crate::Name;\n", high), upward);
    assert_eq!(
        modules("fn f() { crate::high::part::Name }\n", high),
        upward
    );
    assert_eq!(modules("use super::high::part::Name;\n", high), upward);
}

#[test]
fn a_circle_and_an_import_through_a_reexport_are_found() {
    let module = |text: &str| Module::parse(text);
    let path = |text: &str| segments(text);
    let modules = [
        (
            path("a"),
            module("pub use self::b::{Inner as Outer, c};\nuse crate::z;\n"),
        ),
        (
            path("a::b"),
            module("pub struct Inner;\npub(in crate::z) use super::super::x::Y;\n"),
        ),
        (
            path("x"),
            module("fn f() { crate::a::Outer::new() }\npub struct Y;\n"),
        ),
        (
            path("p"),
            module("mod q;\npub struct H;\nfn f() { q::g() }\n"),
        ),
        (path("p::q"), module("use super::H;\npub fn g() {}\n")),
        (
            path("z"),
            module("#[cfg(test)]\nmod tests {\n    use crate::x::Y;\n}\n"),
        ),
    ];
    let edges = Crate(modules.into_iter().collect()).edges();
    let has = |from: &str, to: &str| edges.contains(&(path(from), path(to)));
    assert!(has("a", "a::b") && has("a", "z") && has("a::b", "x") && has("x", "a::b"));
    assert!(has("p", "p::q") && has("p::q", "p"));
    assert_eq!(edges.len(), 6, "{edges:?}");
    let circle = circles(edges.clone());
    assert_eq!(circle.len(), 4, "{circle:?}");
}
