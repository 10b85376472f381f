//! The table of the metered endpoints: what each takes, what its answers hold, and which kind of
//! model serves it.
//!
//! It must not read a body.

use super::content::{MeteredContent, embedding_tokens};
use crate::json::edit;

/// What a model computes. Each endpoint takes models of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum ModelKind {
    /// Text, over the three protocols.
    #[default]
    Chat,
    Embedding,
}

impl ModelKind {
    pub const ALL: [Self; 2] = [Self::Chat, Self::Embedding];

    /// The name in the config and in lists of models.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Embedding => "embedding",
        }
    }

    /// The paths that take models of this kind, as messages name them.
    pub fn paths(self) -> String {
        if self == Self::Chat {
            return "/v1/chat/completions, /v1/messages or /v1/responses".to_owned();
        }
        let own = ENDPOINTS.iter().filter(|endpoint| endpoint.kind == self);
        own.map(|endpoint| endpoint.path)
            .collect::<Vec<_>>()
            .join(" or ")
    }
}

/// One endpoint: a row of the table.
#[derive(Debug)]
pub struct MeteredEndpoint {
    pub path: &'static str,
    pub kind: ModelKind,
    /// Members of the body that decide the cost, or that the gateway refuses.
    pub(super) members: &'static [(&'static str, MemberRule)],
    /// Members of a small request, after `model`.
    pub(super) sample: &'static str,
    /// Members of an answer of which one holds its content.
    pub(super) content: &'static [&'static str],
    /// Returns the most input tokens of a request, for a model that reads `context` tokens at once.
    pub(super) max_tokens: fn(&MeteredContent, context: u64) -> u64,
}

impl MeteredEndpoint {
    /// The endpoint of a kind of models; the first, if there are several. `None` for chat.
    pub fn for_kind(kind: ModelKind) -> Option<&'static Self> {
        ENDPOINTS.iter().find(|endpoint| endpoint.kind == kind)
    }

    /// Returns the body of a small request to a vendor's model.
    pub fn sample_body(&self, upstream_model: &str) -> String {
        let model = edit::json_string(upstream_model);
        format!("{{\"model\":{model},{}}}", self.sample)
    }
}

/// Endpoints are compared by their paths, which are unique.
impl PartialEq for MeteredEndpoint {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for MeteredEndpoint {}

/// How the reader of a request treats a member.
#[derive(Clone, Copy, Debug)]
pub(super) enum MemberRule {
    /// Required: a text, token ids, or an array of texts or of arrays of token ids.
    Inputs,
    /// Any other value is refused.
    OneOf(&'static [&'static str]),
    /// Refused, for this reason.
    Refused(&'static str),
}

/// All metered endpoints.
pub static ENDPOINTS: [MeteredEndpoint; 1] = [MeteredEndpoint {
    path: "/v1/embeddings",
    kind: ModelKind::Embedding,
    members: &[
        ("input", MemberRule::Inputs),
        // Some servers also offer a binary answer, which has no usage.
        ("encoding_format", MemberRule::OneOf(&["float", "base64"])),
        (
            "messages",
            MemberRule::Refused("Embeddings of messages are not supported: send texts as 'input'."),
        ),
    ],
    sample: r#""input":"ok""#,
    content: &["data"],
    max_tokens: embedding_tokens,
}];
