//! Lists the versions of clients that ran with the files of their guides, in the tests of this
//! repository or by hand.
//!
//! A guide without an entry is shown as "not tried". This file must not list an untested version.

use serde::Serialize;

/// A version of a client that ran with the files of its guide.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum ClientTrial {
    /// `tests/agents` or `tests/sdk` runs this version, so every change of the gateway must keep it
    /// working.
    Tests {
        version: &'static str,
        /// Version in the format of the tests' package list.
        #[serde(skip)]
        package: &'static str,
    },
    /// A person ran this version once, on this day (such as `2026-11-24`).
    Hand {
        version: &'static str,
        on: &'static str,
    },
}

impl ClientTrial {
    /// Describes the trial for pages and the command line.
    pub fn describe(&self) -> String {
        match self {
            Self::Tests { version, .. } => format!("tested with {version}"),
            Self::Hand { version, on } => format!("tried by hand with {version} on {on}"),
        }
    }
}

/// Trials of clients. Each version showed the response to a prompt, with a model of a messages
/// vendor and with one of a chat vendor.
const TRIED: &[(&str, ClientTrial)] = &[
    (
        "claude-code",
        in_tests(
            "2.1.332",
            r#""@anthropic-ai/claude-code-linux-x64": "2.1.332""#,
        ),
    ),
    (
        "codex",
        in_tests(
            "0.171.0",
            r#""@openai/codex-linux-x64": "npm:@openai/codex@0.171.0-linux-x64""#,
        ),
    ),
    ("codex-chat", by_hand("0.80.0", "2026-11-23")),
    (
        "opencode",
        in_tests("1.18.33", r#""opencode-linux-x64-baseline": "1.18.33""#),
    ),
    ("aider", by_hand("0.86.2", "2026-11-23")),
    (
        "cline",
        in_tests("3.0.65", r#""@cline/cli-linux-x64": "3.0.65""#),
    ),
    (
        "continue",
        in_tests("1.5.47", r#""@continuedev/cli": "1.5.47""#),
    ),
    (
        "copilot-cli",
        in_tests("1.0.102", r#""@github/copilot-linux-x64": "1.0.102""#),
    ),
    ("qwen-code", by_hand("0.24.4", "2026-11-23")),
    (
        "pi",
        in_tests("0.73.1", r#""@mariozechner/pi-coding-agent": "0.73.1""#),
    ),
    ("gptme", by_hand("0.35.1", "2026-11-23")),
    ("curl", by_hand("7.88.1", "2026-11-23")),
    ("llm", by_hand("0.32.1", "2026-11-23")),
    ("anthropic-python", in_tests("2.14.0", "anthropic==2.14.0")),
    ("openai-python", in_tests("3.57.0", "openai==3.57.0")),
    ("langchain", in_tests("1.7.4", "langchain-openai==1.7.4")),
    (
        "pydantic-ai",
        in_tests("2.68.0", "pydantic-ai-slim[anthropic,openai]==2.68.0"),
    ),
    ("openai-agents", in_tests("0.24.0", "openai-agents==0.24.0")),
    (
        "anthropic-node",
        in_tests("1.14.0", r#""@anthropic-ai/sdk": "1.14.0""#),
    ),
    ("openai-node", in_tests("7.59.0", r#""openai": "7.59.0""#)),
    ("ai-sdk", in_tests("7.0.173", r#""ai": "7.0.173""#)),
];

const fn in_tests(version: &'static str, package: &'static str) -> ClientTrial {
    ClientTrial::Tests { version, package }
}

const fn by_hand(version: &'static str, on: &'static str) -> ClientTrial {
    ClientTrial::Hand { version, on }
}

pub fn find(client: &str) -> Option<&'static ClientTrial> {
    TRIED
        .iter()
        .find(|(id, _)| *id == client)
        .map(|(_, trial)| trial)
}

/// Returns the ids of the clients that were tried.
#[cfg(test)]
pub fn clients() -> impl Iterator<Item = &'static str> {
    TRIED.iter().map(|(id, _)| *id)
}
