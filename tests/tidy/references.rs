//! Rules about what one file says of others: links to methods, dependencies, schema versions.

use super::{File, files, identifiers, product_files, root};
use std::collections::{BTreeMap, BTreeSet};

/// Databases whose schema version the changelog gives, with the folder of their migrations and how
/// many migrations are no file.
const DATABASES: [(&str, &str, usize); 5] = [
    // The table `copy_position` is created by a constant that both share.
    ("app.db", "crates/accounts/src/db", 1),
    ("ledger.db", "crates/ledger/src/database", 1),
    ("index.db", "crates/ledger/src/index", 0),
    ("idempotency.db", "src/idempotency/db", 0),
    ("refused.db", "src/refused_requests", 0),
];

type Members<'t> = BTreeMap<&'t str, BTreeSet<&'t str>>;

/// The types that the item with this first line is about: `impl Trait for Type` is about both.
fn types_of_item(line: &str) -> Vec<&str> {
    let head = line.split(" where ").next().unwrap_or_default();
    let is_item = ["impl", "struct", "enum", "trait"];
    let keyword = identifiers(head).find(|word| !matches!(*word, "pub" | "crate" | "super"));
    if !keyword.is_some_and(|keyword| is_item.contains(&keyword)) {
        return Vec::new();
    }
    let names = identifiers(head).filter(|word| word.starts_with(char::is_uppercase));
    names.collect()
}

/// The members of each type: methods, constants, fields and variants.
fn members(sources: &[File]) -> Members<'_> {
    let mut members = Members::new();
    for File { text, .. } in sources {
        let mut types = Vec::new();
        for line in text.lines() {
            if !line.starts_with([' ', '/', '#', '}', ')']) && !line.is_empty() {
                types = types_of_item(line);
            }
            let Some(member) = line
                .strip_prefix("    ")
                .filter(|line| !line.starts_with(' '))
            else {
                continue;
            };
            let words = [
                "pub", "crate", "super", "async", "const", "unsafe", "fn", "type",
            ];
            let name = identifiers(member).find(|word| !words.contains(word));
            for of in &types {
                members.entry(of).or_default().extend(name);
            }
        }
    }
    members
}

/// Links such as ``[`Type::method`]`` to a member that the type does not have.
fn broken_links(text: &str, members: &Members<'_>) -> Vec<String> {
    let mut broken = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for link in line
            .split("[`")
            .skip(1)
            .filter_map(|rest| rest.split("`]").next())
        {
            let mut parts = link.rsplit("::");
            let (member, of) = (
                parts.next().unwrap_or_default(),
                parts.next().unwrap_or_default(),
            );
            if members.get(of).is_some_and(|known| !known.contains(member)) {
                broken.push(format!("{}: {link}", index + 1));
            }
        }
    }
    broken
}

/// Dependencies of a manifest whose names are not among `words`.
fn unused_dependencies(manifest: &str, words: &BTreeSet<&str>) -> Vec<String> {
    let mut unused = Vec::new();
    let mut is_dependency = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_dependency = matches!(line, "[dependencies]" | "[dev-dependencies]");
        } else if is_dependency && line.starts_with(char::is_alphabetic) {
            let name = line.split(['.', ' ']).next().unwrap_or_default();
            let name = name.replace('-', "_");
            if !words.contains(name.as_str()) {
                unused.push(name);
            }
        }
    }
    unused
}

#[test]
fn links_in_comments_name_methods_that_exist() {
    let sources = product_files();
    let members = members(&sources);
    super::none("links to nothing", &sources, |text| {
        broken_links(text, &members)
    });
}

#[test]
fn a_manifest_has_no_dependency_that_its_sources_do_not_name() {
    let mut packages = vec![(
        String::new(),
        vec!["src".into(), "tests".into(), "benches".into()],
    )];
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = format!("crates/{}", entry.unwrap().file_name().to_str().unwrap());
        packages.push((folder.clone(), vec![folder]));
    }
    for (package, folders) in packages {
        let path = root().join(&package).join("Cargo.toml");
        let manifest = std::fs::read_to_string(path).unwrap();
        let sources: Vec<_> = folders
            .iter()
            .flat_map(|folder| files(folder, ".rs"))
            .collect();
        let words = sources.iter().flat_map(|file| identifiers(&file.text));
        let unused = unused_dependencies(&manifest, &words.collect());
        assert!(unused.is_empty(), "remove from {package:?}: {unused:?}");
    }
}

#[test]
fn the_changelog_has_the_schema_version_of_each_database() {
    let changelog = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    for (database, folder, others) in DATABASES {
        let version = files(folder, ".sql").len() + others;
        let row = format!("| `{database}` | {version} |");
        assert!(
            changelog.contains(&row),
            "CHANGELOG.md lacks this row: {row}"
        );
    }
}

#[test]
fn each_rule_about_references_finds_a_violation() {
    let file = |text: &str| File {
        path: "a.rs".into(),
        text: text.into(),
    };
    let sources = [file(
        "pub struct Shop(u8);\nimpl<'a> Shop<'a> {\n    pub fn sell(\n        x: u8,\n    ) {\n    }\n}\nfn buy() {\n    x();\n}\n",
    )];
    let members = members(&sources);
    assert_eq!(
        broken_links(
            "/// [`Shop::buy`] [`crate::Shop::sell`] [`Self::buy`]",
            &members
        ),
        ["1: Shop::buy"]
    );
    let manifest = "[package]\nname = \"a\"\n[dependencies]\n# why\nserde-json = \"1\"\nlog.workspace = true\n";
    assert_eq!(
        unused_dependencies(manifest, &identifiers("use log::info;").collect()),
        ["serde_json"]
    );
}
