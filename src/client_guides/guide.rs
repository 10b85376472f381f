//! The clients that have a guide, one row each.
//!
//! This file must not know what a client reads: its template does, `guides/ID.txt`.

use super::tried::{self, ClientTrial};
use llm_protocol::Protocol;
use serde::Serialize;

/// Kind of a client. The pages group clients by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientKind {
    TerminalAgent,
    Editor,
    ChatApp,
    CommandLine,
    Library,
}

impl ClientKind {
    /// In the order in which the pages list them.
    pub const ALL: [Self; 5] = [
        Self::TerminalAgent,
        Self::Editor,
        Self::ChatApp,
        Self::CommandLine,
        Self::Library,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::TerminalAgent => "Terminal agents",
            Self::Editor => "Editors",
            Self::ChatApp => "Chat applications",
            Self::CommandLine => "Command line",
            Self::Library => "Libraries",
        }
    }
}

/// What a client uses a model for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModelRole {
    /// All that the user asks, unless they choose another model.
    Chosen,
    /// Small tasks in the background, such as titles.
    Small,
    /// What the client asks of its vendor's tier with this name.
    Tier(&'static str),
}

impl ModelRole {
    /// As pages show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chosen => "the chosen model",
            Self::Small => "small tasks",
            Self::Tier(tier) => tier,
        }
    }
}

/// The roles of clients with one model, with a second one for small tasks, and of Claude Code,
/// which knows the tiers of its vendor.
const ONE_MODEL: &[ModelRole] = &[ModelRole::Chosen];
const TWO_MODELS: &[ModelRole] = &[ModelRole::Chosen, ModelRole::Small];
const CLAUDE_TIERS: &[ModelRole] = &[
    ModelRole::Chosen,
    ModelRole::Tier("fable"),
    ModelRole::Tier("opus"),
    ModelRole::Tier("sonnet"),
    ModelRole::Tier("haiku"),
];

/// A client program and how to set it up.
pub struct ClientGuide {
    /// Part of the page's address, and the argument of `model-gateway clients`.
    pub id: &'static str,
    pub name: &'static str,
    pub kind: ClientKind,
    /// Surfaces that the client can use, the one for most models first.
    pub surfaces: Surfaces,
    /// What its files name a model for.
    pub roles: &'static [ModelRole],
}

impl ClientGuide {
    const fn new(
        kind: ClientKind,
        id: &'static str,
        name: &'static str,
        surfaces: Surfaces,
    ) -> Self {
        Self {
            id,
            name,
            kind,
            surfaces,
            roles: ONE_MODEL,
        }
    }

    const fn with_roles(self, roles: &'static [ModelRole]) -> Self {
        Self { roles, ..self }
    }

    /// The surfaces, as pages show them.
    pub fn describe_surfaces(&self) -> String {
        let names: Vec<_> = self.surfaces.iter().map(|one| one.as_str()).collect();
        names.join(", ")
    }

    /// The version that ran with these files; `None` if none did.
    pub fn trial(&self) -> Option<&'static ClientTrial> {
        tried::find(self.id)
    }

    /// The version that ran with these files, as pages and the command line show it.
    pub fn describe_trial(&self) -> String {
        self.trial()
            .map_or_else(|| "not tried".to_owned(), ClientTrial::describe)
    }
}

type Surfaces = &'static [Protocol];

const CHAT: Surfaces = &[Protocol::Chat];
const MESSAGES: Surfaces = &[Protocol::Messages];
const RESPONSES: Surfaces = &[Protocol::Responses];
const CHAT_AND_MESSAGES: Surfaces = &[Protocol::Chat, Protocol::Messages];
const CHAT_AND_RESPONSES: Surfaces = &[Protocol::Chat, Protocol::Responses];
const ALL: Surfaces = &[Protocol::Chat, Protocol::Messages, Protocol::Responses];
const ALL_MESSAGES_FIRST: Surfaces = &[Protocol::Messages, Protocol::Chat, Protocol::Responses];

/// By kind.
const GUIDES: &[ClientGuide] = &[
    agent("claude-code", "Claude Code", MESSAGES).with_roles(CLAUDE_TIERS),
    agent("codex", "Codex", RESPONSES),
    agent("codex-chat", "Codex, up to 0.80", CHAT),
    agent("opencode", "opencode", CHAT_AND_MESSAGES).with_roles(TWO_MODELS),
    agent("aider", "aider", CHAT_AND_MESSAGES).with_roles(TWO_MODELS),
    agent("cline", "Cline", CHAT),
    agent("continue", "Continue", CHAT_AND_MESSAGES),
    agent("copilot-cli", "Copilot CLI", ALL),
    agent("qwen-code", "Qwen Code", CHAT_AND_MESSAGES),
    agent("pi", "pi", CHAT_AND_MESSAGES),
    agent("gptme", "gptme", CHAT),
    editor("vscode", "VS Code chat", ALL),
    editor("zed", "Zed", CHAT),
    chat_app("open-webui", "Open WebUI", CHAT),
    command("curl", "curl", ALL_MESSAGES_FIRST),
    command("llm", "llm", CHAT),
    command("other", "Other clients", ALL),
    library("anthropic-python", "Python, anthropic", MESSAGES),
    library("openai-python", "Python, openai", CHAT_AND_RESPONSES),
    library("langchain", "LangChain", CHAT_AND_MESSAGES),
    library("pydantic-ai", "Pydantic AI", CHAT_AND_MESSAGES),
    library("openai-agents", "OpenAI Agents SDK", CHAT),
    library("anthropic-node", "Node.js, @anthropic-ai/sdk", MESSAGES),
    library("openai-node", "Node.js, openai", CHAT_AND_RESPONSES),
    library("ai-sdk", "AI SDK", RESPONSES),
];

const fn agent(id: &'static str, name: &'static str, surfaces: Surfaces) -> ClientGuide {
    ClientGuide::new(ClientKind::TerminalAgent, id, name, surfaces)
}

const fn editor(id: &'static str, name: &'static str, surfaces: Surfaces) -> ClientGuide {
    ClientGuide::new(ClientKind::Editor, id, name, surfaces)
}

const fn chat_app(id: &'static str, name: &'static str, surfaces: Surfaces) -> ClientGuide {
    ClientGuide::new(ClientKind::ChatApp, id, name, surfaces)
}

const fn command(id: &'static str, name: &'static str, surfaces: Surfaces) -> ClientGuide {
    ClientGuide::new(ClientKind::CommandLine, id, name, surfaces)
}

const fn library(id: &'static str, name: &'static str, surfaces: Surfaces) -> ClientGuide {
    ClientGuide::new(ClientKind::Library, id, name, surfaces)
}

/// All guides, by kind.
pub fn guides() -> impl Iterator<Item = &'static ClientGuide> {
    GUIDES.iter()
}

/// The guide with this id.
pub fn find_guide(id: &str) -> Option<&'static ClientGuide> {
    guides().find(|guide| guide.id == id)
}
