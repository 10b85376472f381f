//! What the requests of a measurement ask for: an API and a model, which decides whether the
//! gateway translates. Must not send requests.

/// A surface and a model, which decides the vendor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Way {
    pub name: &'static str,
    pub path: &'static str,
    pub model: &'static str,
    /// Only a gateway can translate.
    pub translated: bool,
}

pub const PASSED: Way = Way {
    name: "chat",
    path: "/v1/chat/completions",
    model: "beta-5.2",
    translated: false,
};
pub const EMBEDDING: Way = Way {
    name: "embedding",
    path: "/v1/embeddings",
    model: "beta-embed",
    translated: false,
};
pub const MESSAGES: Way = Way {
    name: "messages",
    path: "/v1/messages",
    model: "alpha-haiku-4-5-20251001",
    translated: false,
};
pub const CROSSED: Way = Way {
    name: "chat → messages",
    path: "/v1/chat/completions",
    model: "alpha-haiku-4-5-20251001",
    translated: true,
};
pub const CROSSED_BACK: Way = Way {
    name: "messages → chat",
    path: "/v1/messages",
    model: "beta-5.2",
    translated: true,
};
pub const RESPONSES: Way = Way {
    name: "responses",
    path: "/v1/responses",
    model: "beta-5.5",
    translated: false,
};
pub const RESPONSES_MESSAGES: Way = Way {
    name: "responses → messages",
    path: "/v1/responses",
    model: "alpha-haiku-4-5-20251001",
    translated: true,
};
pub const RESPONSES_CHAT: Way = Way {
    name: "responses → chat",
    path: "/v1/responses",
    model: "beta-5.2",
    translated: true,
};
pub const MESSAGES_RESPONSES: Way = Way {
    name: "messages → responses",
    path: "/v1/messages",
    model: "beta-5.5",
    translated: true,
};
