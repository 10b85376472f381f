//! The clients that have a guide, one row each.
//!
//! This file must not describe a client's files: the template `guides/ID.txt` does.

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
    /// All kinds, in the order of the pages.
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

/// The purpose for which a client uses a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModelRole {
    /// All requests of the user, unless they choose another model.
    Chosen,
    /// Small tasks in the background, such as titles.
    Small,
    /// The requests that the client makes to its vendor's tier with this name.
    Tier(&'static str),
}

impl ModelRole {
    /// Returns the name on pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chosen => "the chosen model",
            Self::Small => "small tasks",
            Self::Tier(tier) => tier,
        }
    }
}

/// The roles of clients with one model. The next constants are the roles of clients with a second
/// model for small tasks, and of Claude Code, which knows the tiers of its vendor.
const ONE_MODEL: &[ModelRole] = &[ModelRole::Chosen];
const TWO_MODELS: &[ModelRole] = &[ModelRole::Chosen, ModelRole::Small];
const CLAUDE_TIERS: &[ModelRole] = &[
    ModelRole::Chosen,
    ModelRole::Tier("fable"),
    ModelRole::Tier("opus"),
    ModelRole::Tier("sonnet"),
    ModelRole::Tier("haiku"),
];

/// A client program, and its set-up.
pub struct ClientGuide {
    /// Id of the client, which is part of the page's address and the argument of `model-gateway
    /// clients`.
    pub id: &'static str,
    pub name: &'static str,
    pub kind: ClientKind,
    /// Surfaces that the client can use. The first is the one for most models.
    pub surfaces: Surfaces,
    /// Roles for which the client's files name a model.
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

    /// Returns the names of the surfaces on pages.
    pub fn describe_surfaces(&self) -> String {
        let names: Vec<_> = self.surfaces.iter().map(|one| one.as_str()).collect();
        names.join(", ")
    }

    /// Returns the version that was tested with these files, or `None`.
    pub fn trial(&self) -> Option<&'static ClientTrial> {
        tried::find(self.id)
    }

    /// Describes the version that was tested with these files, for pages and the command line.
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

/// All guides, sorted by kind.
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

/// Returns all guides, sorted by kind.
pub fn guides() -> impl Iterator<Item = &'static ClientGuide> {
    GUIDES.iter()
}

/// Returns the guide with this id.
pub fn find_guide(id: &str) -> Option<&'static ClientGuide> {
    guides().find(|guide| guide.id == id)
}
