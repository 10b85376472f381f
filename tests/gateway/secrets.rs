//! Collects all that a gateway returns, logs and stores, and searches it for secrets.

use crate::world::{Plan, World};
use std::path::Path;

impl Plan {
    /// A gateway that logs at level `trace`, with its access log at this path.
    pub fn telling_everything(self, access_log: &Path) -> Plan {
        let store = "store: {kind: embedded}";
        let log_to = format!(
            "{store}\naccess_log: {:?}",
            access_log.display().to_string()
        );
        self.edit(store, &log_to).environment("RUST_LOG", "trace")
    }
}

/// Collected outputs: where each was found, and its bytes.
#[derive(Default)]
pub struct Seen(Vec<(String, Vec<u8>)>);

impl Seen {
    pub fn add(&mut self, place: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.push((place.into(), bytes.into()));
    }

    /// Adds the metrics, the log, the access log, and every file in the data folder.
    pub fn add_all_of(&mut self, world: &World, access_log: &Path) {
        assert!(
            world.log().contains("TRACE"),
            "the log was to tell everything"
        );
        self.add("metrics", world.metrics());
        self.add("log", world.log());
        self.add("access log", std::fs::read(access_log).unwrap());
        self.add_files(&world.data_dir());
    }

    fn add_files(&mut self, dir: &Path) {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                self.add_files(&path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                self.add(path.display().to_string(), bytes);
            }
        }
    }

    pub fn has_none_of(&self, secrets: &[&str]) {
        let holds = |bytes: &[u8], text: &str| {
            bytes
                .windows(text.len())
                .any(|window| window == text.as_bytes())
        };
        let mut leaks = Vec::new();
        for (place, bytes) in &self.0 {
            for secret in secrets.iter().filter(|secret| holds(bytes, secret)) {
                let text = String::from_utf8_lossy(bytes);
                let line = text
                    .lines()
                    .find(|line| line.contains(secret))
                    .unwrap_or_default();
                leaks.push(format!(
                    "{place}: {}",
                    line.chars().take(300).collect::<String>()
                ));
            }
        }
        assert!(leaks.is_empty(), "{leaks:#?}");
    }
}
