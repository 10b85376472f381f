//! The table of the metered endpoints: what each takes, what its answers hold, and which kind of
//! model serves it.
//!
//! It must not read a body.

use super::content::{MeteredContent, embedding_tokens, moderation_tokens, rerank_tokens};
use crate::json::edit;

/// What a model computes. Each endpoint takes models of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum ModelKind {
    /// Text, over the three protocols.
    #[default]
    Chat,
    Embedding,
    /// Documents, ordered by their relevance to a query.
    Rerank,
    Moderation,
}

impl ModelKind {
    pub const ALL: [Self; 4] = [Self::Chat, Self::Embedding, Self::Rerank, Self::Moderation];

    /// The name in the config and in lists of models.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Embedding => "embedding",
            Self::Rerank => "rerank",
            Self::Moderation => "moderation",
        }
    }

    /// The paths that take models of this kind, as messages name them.
    pub fn paths(self) -> String {
        if self == Self::Chat {
            return "/v1/chat/completions, /v1/messages or /v1/responses".to_owned();
        }
        self.metered_paths().collect::<Vec<_>>().join(" or ")
    }

    /// The paths of the metered endpoints that take models of this kind; none for chat.
    pub fn metered_paths(self) -> impl Iterator<Item = &'static str> {
        let own = ENDPOINTS
            .iter()
            .filter(move |endpoint| endpoint.kind == self);
        own.map(|endpoint| endpoint.path)
    }
}

/// One endpoint: a row of the table.
#[derive(Debug)]
pub struct MeteredEndpoint {
    pub path: &'static str,
    pub kind: ModelKind,
    /// Whether a body without a model means the first one of the kind that the key may use.
    pub(super) has_default_model: bool,
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
    /// Required: as [`Inputs`](Self::Inputs), and parts with a text or an image in them.
    Parts,
    /// Required: a text.
    Query,
    /// Required: an array of texts, or of objects that have texts.
    Documents,
    /// Any other value is refused.
    OneOf(&'static [&'static str]),
    /// Refused, for this reason.
    Refused(&'static str),
}

/// All metered endpoints.
pub static ENDPOINTS: [MeteredEndpoint; 4] = [
    MeteredEndpoint {
        path: "/v1/embeddings",
        kind: ModelKind::Embedding,
        has_default_model: false,
        members: &[
            ("input", MemberRule::Inputs),
            // Some servers also offer a binary answer, which has no usage.
            ("encoding_format", MemberRule::OneOf(&["float", "base64"])),
            (
                "messages",
                MemberRule::Refused(
                    "Embeddings of messages are not supported: send texts as 'input'.",
                ),
            ),
        ],
        sample: r#""input":"ok""#,
        content: &["data"],
        max_tokens: embedding_tokens,
    },
    rerank("/v1/rerank"),
    rerank("/v2/rerank"),
    MeteredEndpoint {
        path: "/v1/moderations",
        kind: ModelKind::Moderation,
        has_default_model: true,
        members: &[("input", MemberRule::Parts)],
        sample: r#""input":"ok""#,
        content: &["results"],
        max_tokens: moderation_tokens,
    },
];

/// Cohere serves both versions, Jina the first one, vLLM both. Voyage names the results `data`.
const fn rerank(path: &'static str) -> MeteredEndpoint {
    MeteredEndpoint {
        path,
        kind: ModelKind::Rerank,
        has_default_model: false,
        members: &[
            ("query", MemberRule::Query),
            ("documents", MemberRule::Documents),
        ],
        sample: r#""query":"ok","documents":["ok"]"#,
        content: &["results", "data"],
        max_tokens: rerank_tokens,
    }
}
