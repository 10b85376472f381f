//! Which version of a client ran with the files of its guide, and when.
//!
//! A guide without an entry here is shown as "not tried". Must not list a version that nobody ran.

use serde::Serialize;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct TriedVersion {
    pub version: &'static str,
    /// Day of the run, as `2026-11-24`.
    pub on: &'static str,
}

impl TriedVersion {
    const fn by_hand(version: &'static str, on: &'static str) -> Self {
        Self { version, on }
    }

    /// For lists, as pages and the command line show it.
    pub fn describe(&self) -> String {
        format!("tried by hand with {} on {}", self.version, self.on)
    }
}

/// Each version showed the response to a prompt, with a model of a messages vendor and with one of
/// a chat vendor.
const TRIED: &[(&str, TriedVersion)] = &[
    (
        "claude-code",
        TriedVersion::by_hand("2.1.330", "2026-11-23"),
    ),
    ("codex", TriedVersion::by_hand("0.169.0", "2026-11-23")),
    ("codex-chat", TriedVersion::by_hand("0.80.0", "2026-11-23")),
    ("opencode", TriedVersion::by_hand("1.18.33", "2026-11-23")),
    ("aider", TriedVersion::by_hand("0.86.2", "2026-11-23")),
    ("cline", TriedVersion::by_hand("3.0.65", "2026-11-23")),
    ("continue", TriedVersion::by_hand("1.5.47", "2026-11-23")),
    (
        "copilot-cli",
        TriedVersion::by_hand("1.0.102", "2026-11-23"),
    ),
    ("qwen-code", TriedVersion::by_hand("0.24.4", "2026-11-23")),
    ("pi", TriedVersion::by_hand("0.73.1", "2026-11-23")),
    ("gptme", TriedVersion::by_hand("0.35.1", "2026-11-23")),
    ("curl", TriedVersion::by_hand("7.88.1", "2026-11-23")),
    ("llm", TriedVersion::by_hand("0.32.1", "2026-11-23")),
    (
        "anthropic-python",
        TriedVersion::by_hand("2.12.0", "2026-11-23"),
    ),
    (
        "openai-python",
        TriedVersion::by_hand("3.54.0", "2026-11-23"),
    ),
    ("langchain", TriedVersion::by_hand("1.7.3", "2026-11-23")),
    ("pydantic-ai", TriedVersion::by_hand("2.68.0", "2026-11-23")),
    (
        "openai-agents",
        TriedVersion::by_hand("0.24.0", "2026-11-23"),
    ),
    (
        "anthropic-node",
        TriedVersion::by_hand("1.12.0", "2026-11-23"),
    ),
    ("openai-node", TriedVersion::by_hand("6.49.0", "2026-11-23")),
    ("ai-sdk", TriedVersion::by_hand("6.0.322", "2026-11-23")),
];

pub fn find(client: &str) -> Option<&'static TriedVersion> {
    TRIED
        .iter()
        .find(|(id, _)| *id == client)
        .map(|(_, tried)| tried)
}

/// Ids of the clients that were tried.
#[cfg(test)]
pub fn clients() -> impl Iterator<Item = &'static str> {
    TRIED.iter().map(|(id, _)| *id)
}
