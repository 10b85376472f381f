//! Compares the list of licences with Cargo.lock: every dependency must be listed at its locked
//! version. `scripts/licenses` checks that the licences are allowed.

use std::collections::BTreeSet;

const LICENSES: &str = include_str!("../../docs/licenses.md");
const LOCK: &str = include_str!("../../Cargo.lock");
const MANIFEST: &str = include_str!("../../Cargo.toml");
/// The crates of this repository.
const OWN: [&str; 9] = [
    "accounts",
    "base",
    "config",
    "credits",
    "ledger",
    "llm-protocol",
    "model-gateway",
    "test-world",
    "vendor-simulator",
];

/// Name and version of each crate in the list of licences.
fn listed() -> BTreeSet<(&'static str, &'static str)> {
    let rows = LICENSES
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1);
    let cells = rows.map(|row| {
        row.split('|')
            .map(str::trim)
            .skip(1)
            .take(3)
            .collect::<Vec<_>>()
    });
    let crates = cells.filter(|cells| !cells[0].contains("(npm)"));
    crates
        .inspect(|cells| assert!(!cells[2].is_empty(), "{cells:?}"))
        .map(|cells| (cells[0], cells[1]))
        .collect()
}

/// Name and version of each crate in the lock file.
fn locked() -> BTreeSet<(&'static str, &'static str)> {
    let quoted = |line: &'static str| line.split('"').nth(1);
    let packages = LOCK.split("[[package]]").skip(1);
    let field = |package: &'static str, key: &str| {
        package
            .lines()
            .find(|line| line.starts_with(key))
            .and_then(quoted)
    };
    packages
        .map(|package| {
            (
                field(package, "name").unwrap(),
                field(package, "version").unwrap(),
            )
        })
        .collect()
}

#[test]
fn every_licence_is_that_of_a_locked_version_and_no_dependency_is_left_out() {
    let (listed, locked) = (listed(), locked());
    assert!(listed.len() > 100, "{}", listed.len());
    let old: Vec<_> = listed.difference(&locked).collect();
    assert!(
        old.is_empty(),
        "not in Cargo.lock: {old:?}: scripts/licenses > docs/licenses.md"
    );
    let names: BTreeSet<_> = listed.iter().map(|(name, _)| *name).collect();
    let section = MANIFEST
        .split_once("[dependencies]\n")
        .unwrap()
        .1
        .split("\n[")
        .next()
        .unwrap();
    let needed = section
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(" = "));
    // Procedural macros run only in the compiler and are not distributed.
    let missing: Vec<_> = needed
        .map(|(name, _)| name.trim_end_matches(".workspace"))
        .filter(|name| !names.contains(name) && !OWN.contains(name) && *name != "async-trait")
        .collect();
    assert!(
        missing.is_empty(),
        "{missing:?}: scripts/licenses > docs/licenses.md"
    );
    assert!(LICENSES.contains("| @fontsource-variable/inter (npm) | 5.3.0 | OFL-1.1 |"));
}

#[test]
fn nothing_is_fetched_but_released_crates_held_by_their_checksums() {
    let is_own = |package: &&str| {
        OWN.iter()
            .any(|name| package.contains(&format!("name = \"{name}\"\n")))
    };
    for package in LOCK
        .split("[[package]]")
        .skip(1)
        .filter(|package| !is_own(package))
    {
        assert!(
            package.contains("source = \"registry+https://github.com/rust-lang/crates.io-index\""),
            "{package}"
        );
        assert!(package.contains("checksum = \""), "{package}");
    }
    assert!(!MANIFEST.contains("git = ") && !MANIFEST.contains("= \"*\""));
}
