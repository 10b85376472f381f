//! Which version of a client ran with the files of its guide: in the tests of this repository or by
//! hand.
//!
//! A guide without an entry here is shown as "not tried". Must not list a version that nobody ran.

use serde::Serialize;

/// A version of a client that ran with the files of its guide.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum ClientTrial {
    /// `tests/agents` or `tests/sdk` runs this version: every change of the gateway must keep it
    /// working.
    Tests {
        version: &'static str,
        /// The version as the package list of these tests names it.
        #[serde(skip)]
        package: &'static str,
    },
    /// This version ran once, on this day, as `2026-11-24`.
    Hand {
        version: &'static str,
        on: &'static str,
    },
}

impl ClientTrial {
    /// As pages and the command line show it.
    pub fn describe(&self) -> String {
        match self {
            Self::Tests { version, .. } => format!("tested with {version}"),
            Self::Hand { version, on } => format!("tried by hand with {version} on {on}"),
        }
    }
}

/// Each version showed the response to a prompt, with a model of a messages vendor and with one of
/// a chat vendor.
const TRIED: &[(&str, ClientTrial)] = &[
    (
        "claude-code",
        ClientTrial::Tests {
            version: "2.1.332",
            package: r#""@anthropic-ai/claude-code-linux-x64": "2.1.332""#,
        },
    ),
    (
        "codex",
        ClientTrial::Tests {
            version: "0.171.0",
            package: r#""@openai/codex-linux-x64": "npm:@openai/codex@0.171.0-linux-x64""#,
        },
    ),
    ("codex-chat", by_hand("0.80.0", "2026-11-23")),
    (
        "opencode",
        ClientTrial::Tests {
            version: "1.18.33",
            package: r#""opencode-linux-x64-baseline": "1.18.33""#,
        },
    ),
    ("aider", by_hand("0.86.2", "2026-11-23")),
    (
        "cline",
        ClientTrial::Tests {
            version: "3.0.65",
            package: r#""@cline/cli-linux-x64": "3.0.65""#,
        },
    ),
    (
        "continue",
        ClientTrial::Tests {
            version: "1.5.47",
            package: r#""@continuedev/cli": "1.5.47""#,
        },
    ),
    (
        "copilot-cli",
        ClientTrial::Tests {
            version: "1.0.102",
            package: r#""@github/copilot-linux-x64": "1.0.102""#,
        },
    ),
    ("qwen-code", by_hand("0.24.4", "2026-11-23")),
    (
        "pi",
        ClientTrial::Tests {
            version: "0.73.1",
            package: r#""@mariozechner/pi-coding-agent": "0.73.1""#,
        },
    ),
    ("gptme", by_hand("0.35.1", "2026-11-23")),
    ("curl", by_hand("7.88.1", "2026-11-23")),
    ("llm", by_hand("0.32.1", "2026-11-23")),
    (
        "anthropic-python",
        ClientTrial::Tests {
            version: "2.14.0",
            package: "anthropic==2.14.0",
        },
    ),
    (
        "openai-python",
        ClientTrial::Tests {
            version: "3.57.0",
            package: "openai==3.57.0",
        },
    ),
    (
        "langchain",
        ClientTrial::Tests {
            version: "1.7.4",
            package: "langchain-openai==1.7.4",
        },
    ),
    (
        "pydantic-ai",
        ClientTrial::Tests {
            version: "2.68.0",
            package: "pydantic-ai-slim[anthropic,openai]==2.68.0",
        },
    ),
    (
        "openai-agents",
        ClientTrial::Tests {
            version: "0.24.0",
            package: "openai-agents==0.24.0",
        },
    ),
    (
        "anthropic-node",
        ClientTrial::Tests {
            version: "1.14.0",
            package: r#""@anthropic-ai/sdk": "1.14.0""#,
        },
    ),
    (
        "openai-node",
        ClientTrial::Tests {
            version: "7.59.0",
            package: r#""openai": "7.59.0""#,
        },
    ),
    (
        "ai-sdk",
        ClientTrial::Tests {
            version: "7.0.173",
            package: r#""ai": "7.0.173""#,
        },
    ),
];

const fn by_hand(version: &'static str, on: &'static str) -> ClientTrial {
    ClientTrial::Hand { version, on }
}

pub fn find(client: &str) -> Option<&'static ClientTrial> {
    TRIED
        .iter()
        .find(|(id, _)| *id == client)
        .map(|(_, trial)| trial)
}

/// Ids of the clients that were tried.
#[cfg(test)]
pub fn clients() -> impl Iterator<Item = &'static str> {
    TRIED.iter().map(|(id, _)| *id)
}
