//! House rules that a program can check: words, names, widths, paths, references, imports and
//! commit subjects.
//!
//! It reads the sources as text and must not use the library. Each rule is a function on text, with
//! a test of its own that feeds it a violation.

#![allow(clippy::unwrap_used, clippy::panic)]

mod imports;
mod references;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum width of a comment, in characters. rustfmt keeps the width of code.
const MAX_COMMENT_WIDTH: usize = 100;
/// Maximum length of a commit subject, in characters.
const MAX_SUBJECT: usize = 72;
/// The commit after which subjects are checked.
const SUBJECTS_SINCE: &str = "c583b75";

/// Words and phrases that do not stand in comments: metaphors, passive voice without an actor, and
/// words with a plainer one.
const BANNED_IN_COMMENTS: &[(&str, &str)] = &[
    ("told", "reported, returned, logged"),
    ("tells", "reports, returns, logs"),
    ("whoever", "name the actor"),
    ("so many", "give the number, or \"a number of\""),
    ("bears", "pays, keeps"),
    ("borne", "paid, kept"),
    ("is asked", "name the actor: the client asks"),
    ("are asked", "name the actor: the client asks"),
    ("in the words of", "in the format of"),
    ("is looked", "name the actor"),
    ("is waited", "name the actor"),
];

/// Names that functions do not have: constructors are `new`, `from_…`, `parse` or `with_…`; checks
/// are `validate`, `check` or `authorize`.
const BANNED_FUNCTIONS: &[&str] = &[
    "judge", "told", "tell", "said", "heard", "bear", "of", "named",
];

/// Words that names of constants do not have: `MAX_…`, `MIN_…`, `…_TIMEOUT` and `…_INTERVAL` say
/// it.
const BANNED_IN_CONSTANTS: &[&str] = &["MOST", "LEAST", "PATIENCE", "LOOK"];

/// Type names that may be defined more than once, with the reason.
const TYPES_DEFINED_TWICE: &[(&str, &str)] = &[(
    "Kind",
    "one definition stands in a macro that makes the other",
)];

/// Names of variables that hold a text, which `{name:?}` quotes. Of other values it prints Rust
/// syntax, which operators cannot read.
const QUOTED_TEXTS: &[&str] = &[
    "account",
    "alias",
    "base",
    "email",
    "example",
    "id",
    "id_or_email",
    "key_id",
    "model",
    "name",
    "new",
    "none",
    "origin",
    "owner",
    "path",
    "preset",
    "reference",
    "shown",
    "status",
    "suggestion",
    "text",
    "unknown",
    "url",
    "value",
    "vendor",
    "written",
];

/// Other places that may print Rust syntax, with the reason: file and name.
const RUST_SYNTAX: &[(&str, &str, &str)] = &[
    (
        "crates/base/src/failpoint.rs",
        "point",
        "only tests arm a fail point",
    ),
    (
        "crates/base/src/failpoint.rs",
        "effect",
        "only tests arm a fail point",
    ),
    (
        "crates/ledger/src/entry/chain.rs",
        "numbers",
        "the hash of an entry covers this text",
    ),
    (
        "crates/config/src/redis_address.rs",
        "",
        "it implements Debug, which masks the passwords",
    ),
    (
        "src/payments/settle.rs",
        "",
        "a hash covers this text, which nobody reads",
    ),
];

/// The parts of the long run that consist of marked tests. `tests/runner/plans.sh` lists all parts.
const LONG_PARTS: &[&str] = &["kills", "installation", "controls", "simulation", "load"];

struct File {
    path: PathBuf,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below `folder` whose names end with `extension`, with paths relative to the root.
fn files(folder: &str, extension: &str) -> Vec<File> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && name != "node_modules" {
                folders.push(path);
            } else if name.ends_with(extension) {
                let text = std::fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(root()).unwrap().to_owned();
                files.push(File { path, text });
            }
        }
    }
    assert!(!files.is_empty(), "no files in {folder}");
    files.sort_by(|one, other| one.path.cmp(&other.path));
    files
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_name().is_some_and(|name| name == "tests.rs")
}

/// The part of a file before its test module.
fn product_code(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap()
}

/// The text of a line that is a comment, without its slashes.
fn comment(line: &str) -> Option<&str> {
    let comment = line.trim_start().strip_prefix("//")?;
    Some(comment.trim_start_matches(['/', '!']).trim())
}

/// The text outside backticks: what stands inside them is code.
fn prose(comment: &str) -> String {
    comment.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

fn has_phrase(text: &str, phrase: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
    text.match_indices(phrase).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(is_letter)
            && !text[at + phrase.len()..]
                .chars()
                .next()
                .is_some_and(is_letter)
    })
}

fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| !word.is_empty())
}

/// The names that code lines define after one of these keywords, with their line numbers.
fn definitions<'t>(text: &'t str, keywords: &[&str]) -> Vec<(usize, &'t str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if comment(line).is_some() {
            continue;
        }
        let words: Vec<_> = identifiers(line).collect();
        let start = words.iter().position(|word| {
            !matches!(*word, "pub" | "crate" | "super" | "in" | "async" | "unsafe")
        });
        // An indented `type` belongs to a trait.
        let is_associated = |word: &str| word == "type" && line.starts_with(' ');
        if let Some(start) = start
            && keywords.contains(&words[start])
            && !is_associated(words[start])
            && let Some(name) = words[start + 1..].iter().find(|word| **word != "mut")
        {
            found.push((number + 1, *name));
        }
    }
    found
}

fn banned_phrases(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(comment) = comment(line) else {
            continue;
        };
        let prose = prose(comment);
        for (phrase, instead) in BANNED_IN_COMMENTS {
            if has_phrase(&prose, phrase) {
                found.push(format!("{}: \"{phrase}\" (write: {instead})", number + 1));
            }
        }
    }
    found
}

/// Comments that are too wide, but for tables and addresses.
fn wide_comments(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(comment) = comment(line)
            && line.chars().count() > MAX_COMMENT_WIDTH
            && !comment.starts_with('|')
            && !comment.contains("://")
        {
            found.push(format!("{}: {} columns", number + 1, line.chars().count()));
        }
    }
    found
}

fn banned_functions(text: &str) -> Vec<String> {
    definitions(product_code(text), &["fn"])
        .into_iter()
        .filter(|(_, name)| BANNED_FUNCTIONS.contains(name))
        .map(|(line, name)| format!("{line}: fn {name}"))
        .collect()
}

fn banned_constants(text: &str) -> Vec<String> {
    definitions(product_code(text), &["const", "static"])
        .into_iter()
        .filter(|(_, name)| {
            name.split('_')
                .any(|word| BANNED_IN_CONSTANTS.contains(&word))
        })
        .map(|(line, name)| format!("{line}: {name}"))
        .collect()
}

/// Values that are printed in Rust syntax, as `{name:?}`: the name, and its line.
fn rust_syntax(text: &str) -> Vec<(usize, &str)> {
    let product = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = Vec::new();
    for (number, line) in product.lines().enumerate() {
        if comment(line).is_some() {
            continue;
        }
        for (at, _) in line.match_indices('?') {
            let before = line[..at].trim_end_matches('#');
            if !line[at..].starts_with("?}") || !before.ends_with(':') {
                continue;
            }
            let name = before.trim_end_matches(':').rsplit('{').next();
            let name = name.unwrap_or_default();
            if !QUOTED_TEXTS.contains(&name) {
                found.push((number + 1, name));
            }
        }
    }
    found
}

/// Type names with more than one definition among these files.
fn types_defined_twice(files: &[File]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in files {
        let keywords = ["struct", "enum", "trait", "union", "type"];
        for (line, name) in definitions(product_code(&file.text), &keywords) {
            let place = format!("{}:{line}", file.path.display());
            places.entry(name).or_default().push(place);
        }
    }
    let is_excused = |name: &str| TYPES_DEFINED_TWICE.iter().any(|(known, _)| *known == name);
    places
        .into_iter()
        .filter(|(name, places)| places.len() > 1 && !is_excused(name))
        .map(|(name, places)| format!("{name}: {}", places.join(", ")))
        .collect()
}

/// Paths of this repository that a document names and that do not exist.
fn missing_paths(text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let folders = [
        "src/", "crates/", "docs/", "scripts/", "tests/", "deploy/", "conf/", "benches/",
    ];
    let mut missing = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for code in line.split('`').skip(1).step_by(2) {
            let path = code.split_whitespace().next().unwrap_or_default();
            let is_plain = path
                .chars()
                .all(|letter| letter.is_alphanumeric() || "/._-".contains(letter));
            if is_plain
                && folders.iter().any(|folder| path.starts_with(folder))
                && !exists(path.trim_end_matches('/'))
            {
                missing.push(format!("{}: {path}", number + 1));
            }
        }
    }
    missing
}

/// Lines that leave a test out of the short run and do not say which part of the long run has it,
/// and why.
fn unexplained_ignores(text: &str) -> Vec<String> {
    let is_explained = |line: &str| {
        LONG_PARTS.iter().any(|part| {
            let rest = line
                .trim()
                .strip_prefix(&format!("#[ignore = \"long {part}: "));
            rest.is_some_and(|reason| reason.len() > "\"]".len())
        })
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| line.trim().starts_with("#[ignore") && !is_explained(line))
        .map(|(index, line)| format!("{}: {}", index + 1, line.trim()))
        .collect()
}

/// Lines that leave out a test in JavaScript or Python. `skip` of `tests/world/client.mjs` is the
/// one way to do so: it fails under `scripts/test`.
fn left_out_tests(text: &str) -> Vec<String> {
    const FORMS: [&str; 9] = [
        ".skip(",
        "skip: ",
        ".todo(",
        "todo: ",
        ".only(",
        "only: ",
        "mark.skip",
        "xfail",
        "importorskip",
    ];
    text.lines()
        .enumerate()
        .filter(|(_, line)| FORMS.iter().any(|form| line.contains(form)))
        .map(|(index, line)| format!("{}: {}", index + 1, line.trim()))
        .collect()
}

/// Fails with all findings, each behind its file.
#[track_caller]
fn none(rule: &str, files: &[File], check: impl Fn(&str) -> Vec<String>) {
    let findings: Vec<_> = files
        .iter()
        .flat_map(|file| {
            let path = file.path.display().to_string();
            check(&file.text)
                .into_iter()
                .map(move |finding| format!("{path}:{finding}"))
        })
        .collect();
    assert!(findings.is_empty(), "{rule}:\n{}", findings.join("\n"));
}

fn product_files() -> Vec<File> {
    let folders = ["src", "crates"].into_iter();
    let mut files: Vec<_> = folders.flat_map(|folder| files(folder, ".rs")).collect();
    files.retain(|file| !is_test(&file.path));
    files
}

#[test]
fn comments_use_plain_words_and_fit_the_width() {
    let folders = ["src", "crates", "tests", "benches"];
    let mut sources: Vec<_> = folders
        .into_iter()
        .flat_map(|folder| files(folder, ".rs"))
        .collect();
    sources.retain(|file| !file.path.ends_with("tidy.rs"));
    none("words to replace", &sources, banned_phrases);
    none("comments over 100 columns", &sources, wide_comments);
}

#[test]
fn functions_and_constants_have_names_of_the_field() {
    let sources = product_files();
    none("functions to rename", &sources, banned_functions);
    none("constants to rename", &sources, banned_constants);
}

#[test]
fn what_people_read_has_no_rust_syntax() {
    let mut sources = files("src", ".rs");
    sources.retain(|file| !is_test(&file.path));
    let mut findings = Vec::new();
    for File { path, text } in &sources {
        let path = path.display().to_string();
        let is_excused = |name: &str| {
            let mut excuses = RUST_SYNTAX.iter();
            excuses.any(|(file, excused, _)| *file == path && *excused == name)
        };
        for (line, name) in rust_syntax(text) {
            if !is_excused(name) {
                findings.push(format!("{path}:{line}: {{{name}:?}}"));
            }
        }
    }
    let findings = findings.join("\n");
    assert!(findings.is_empty(), "implement Display for:\n{findings}");
}

#[test]
fn a_type_name_has_one_definition() {
    let twice = types_defined_twice(&product_files());
    assert!(twice.is_empty(), "{}", twice.join("\n"));
}

#[test]
fn a_test_that_is_left_out_says_which_part_of_the_long_run_has_it() {
    let folders = ["src", "crates", "tests"].into_iter();
    let mut sources: Vec<_> = folders.flat_map(|folder| files(folder, ".rs")).collect();
    sources.retain(|file| !file.path.ends_with("tidy.rs"));
    none("ignored tests", &sources, unexplained_ignores);
    let mut suites = files("tests", ".mjs");
    suites.extend(files("tests", ".py"));
    suites.retain(|file| !file.path.ends_with("world/client.mjs"));
    none("tests left out", &suites, left_out_tests);
    let plans = std::fs::read_to_string(root().join("tests/runner/plans.sh")).unwrap();
    for part in LONG_PARTS {
        let is_listed = plans
            .lines()
            .any(|line| line.starts_with(&format!("{part} ")));
        assert!(is_listed, "tests/runner/plans.sh has no part {part}");
    }
}

#[test]
fn documents_name_paths_that_exist() {
    let mut documents = files("docs", ".md");
    for entry in std::fs::read_dir(root()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        // The changelog names what was there then.
        if name.ends_with(".md") && name != "CHANGELOG.md" {
            let text = std::fs::read_to_string(&path).unwrap();
            documents.push(File {
                path: name.into(),
                text,
            });
        }
    }
    let exists = |path: &str| root().join(path).exists();
    none("paths that do not exist", &documents, |text| {
        missing_paths(text, exists)
    });
}

#[test]
fn commit_subjects_are_short() {
    let range = format!("{SUBJECTS_SINCE}..HEAD");
    let log = Command::new("git")
        .args(["log", "--format=%s", &range])
        .current_dir(root())
        .output();
    let log = log.unwrap();
    if !log.status.success() {
        test_world::skip("an archive of the sources, or a shallow clone, has no history to check");
        return;
    }
    for subject in String::from_utf8(log.stdout).unwrap().lines() {
        assert!(subject.chars().count() <= MAX_SUBJECT, "{subject}");
    }
}

#[test]
fn each_rule_finds_a_violation() {
    assert_eq!(banned_phrases("    /// The client is told.\n").len(), 1);
    assert_eq!(
        banned_phrases("/// The `told` argument; retold.\nlet told = 1;\n").len(),
        0
    );
    assert_eq!(
        wide_comments(&format!("// {}\n", "word ".repeat(20))).len(),
        1
    );
    assert_eq!(
        wide_comments(&format!("// | {} |\n", "word ".repeat(20))).len(),
        0
    );
    assert_eq!(
        banned_functions("pub(crate) fn judge(x: u8) {}\nfn judgement() {}\n").len(),
        1
    );
    assert_eq!(
        banned_functions("#[cfg(test)]\nmod tests {\n    fn told() {}\n}\n").len(),
        0
    );
    assert_eq!(
        banned_constants("const RETRIES_MOST: u8 = 1;\nconst ALMOST: u8 = 1;\n").len(),
        1
    );
    let file = |path: &str| File {
        path: path.into(),
        text: "pub struct Turn;\ntype Found = Turn;\n    type Item = Turn;\n".into(),
    };
    assert_eq!(types_defined_twice(&[file("a.rs"), file("b.rs")]).len(), 2);
    assert_eq!(types_defined_twice(&[file("a.rs")]).len(), 0);
    assert_eq!(
        missing_paths("See `src/lost.rs` and `scripts/run --check`.", |_| false).len(),
        2
    );
    assert_eq!(missing_paths("See `src/main.rs`.", |_| true).len(), 0);
    let ignored = "#[ignore]\n#[ignore = \"slow\"]\n#[ignore = \"long kills: \"]";
    assert_eq!(unexplained_ignores(ignored).len(), 3);
    let left_out =
        "test.skip('a', f)\ntest('b', { skip: true }, f)\n@pytest.mark.skip\ntest('skips', f)";
    assert_eq!(left_out_tests(left_out).len(), 3);
    let explained = "    #[ignore = \"long kills: ten minutes of kills\"]";
    assert_eq!(unexplained_ignores(explained).len(), 0);
    let code = "format!(\"{name:?} {wait:?} {:?} {:#?}\")\n// {wait:?}\n#[cfg(test)]\n{wait:?}";
    assert_eq!(rust_syntax(code), [(1, "wait"), (1, ""), (1, "")]);
}
