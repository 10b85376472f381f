//! What a model accepts, as data: the descriptor behind `capabilities:` in the config. The writers
//! of requests go by it.
//!
//! It must not know a vendor or a model by name: which model accepts what is the config's to say.
//!
//! Read next: `rules/known.rs` (what of it is known), `rules/names.rs` (ids, names, arguments),
//! `rules/schema.rs`, `rules/pairing.rs`.

use super::form::Effort;

pub mod arguments;
pub mod custom;
pub mod known;
pub mod names;
pub mod pairing;
pub mod schema;

/// What becomes of a request's member on its way to the other protocol. The tables of the two
/// directions (`chat/read_request/fields.rs`, `messages/read_request/fields.rs`) hold one for every
/// member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Said in the other protocol.
    Map,
    /// Left out silently: the caller could not tell.
    Drop,
    /// Left out or said otherwise, and named in the warnings.
    Warn,
    /// The request is refused.
    Refuse,
}

/// Where a translated request goes.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The vendor's own name for the model.
    pub upstream_model: &'a str,
    /// The catalog's.
    pub public_model: &'a str,
    pub max_output_tokens: u64,
    /// The vendor that defined the protocol, not a compatible server.
    pub official: bool,
    pub accepts: &'a Accepts,
}

/// What a model accepts, by its vendor's protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Accepts {
    Messages(MessagesModel),
    Chat(ChatModel),
    Responses(ResponsesModel),
}

impl Accepts {
    /// What the vendor wants back of its reasoning in the words of chat.
    pub fn replay(&self) -> ReasoningReplay {
        match self {
            Accepts::Messages(_) | Accepts::Responses(_) => ReasoningReplay::None,
            Accepts::Chat(model) => model.reasoning_replay,
        }
    }

    /// Searches by its vendor are sold with the model, to callers of other protocols too.
    pub fn may_search(&self) -> bool {
        match self {
            Accepts::Messages(model) => model.may_search(),
            Accepts::Chat(_) | Accepts::Responses(_) => false,
        }
    }
}

/// The name of web searches among server tools.
const WEB_SEARCH: &str = "web_search";

/// A model of a messages vendor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessagesModel {
    pub sampling: Sampling,
    /// Values of `thinking.type` that do not draw a 400.
    pub thinking_types: Vec<ThinkingType>,
    /// It thinks where `thinking` is left out.
    pub thinks_by_default: bool,
    /// Sorted; empty: `effort` is not accepted.
    pub effort_levels: Vec<Effort>,
    /// A final assistant turn is allowed.
    pub prefill: bool,
    /// `role: system` inside `messages` is allowed.
    pub mid_system: bool,
    /// `output_config.format` and a tool's `strict` are allowed.
    pub structured: bool,
    /// Names of server tools that may be used, such as `web_search`.
    pub server_tools: Vec<String>,
}

/// Which sampling parameters a messages model takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sampling {
    /// Temperature 0 to 1, `top_p`, `top_k`.
    Free,
    /// Temperature or `top_p`.
    OneOf,
    /// Only the default.
    Fixed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThinkingType {
    Enabled,
    Adaptive,
    BetweenTools,
    Disabled,
}

impl ThinkingType {
    pub fn as_str(self) -> &'static str {
        match self {
            ThinkingType::Enabled => "enabled",
            ThinkingType::Adaptive => "adaptive",
            ThinkingType::BetweenTools => "between_tools",
            ThinkingType::Disabled => "disabled",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        let all = [
            ThinkingType::Enabled,
            ThinkingType::Adaptive,
            ThinkingType::BetweenTools,
            ThinkingType::Disabled,
        ];
        all.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// A model of a chat vendor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChatModel {
    /// Accepts `reasoning_effort`.
    pub reasoning: bool,
    /// Sorted.
    pub effort_values: Vec<Effort>,
    pub tools_with_reasoning: ToolsWithReasoning,
    /// Accepts a `temperature` and `top_p` other than 1.
    pub sampling: bool,
    /// Accepts `stop`.
    pub stop: bool,
    /// Accepts `prompt_cache_breakpoint`.
    pub cache_breakpoints: bool,
    pub verbosity: bool,
    /// Role of instructions: `developer` or `system`.
    pub system_role: &'static str,
    pub reasoning_replay: ReasoningReplay,
    /// `max_completion_tokens` or `max_tokens`.
    pub output_limit_field: &'static str,
    /// Compatible servers that list it; the vendor that defined the protocol refuses it.
    pub top_k: bool,
    /// Knows tools of type `custom`; else they go as functions.
    pub custom_tools: bool,
    pub parallel_tool_calls: ParallelToolCalls,
    pub tool_call_ids: ToolCallIds,
}

/// Whether a chat vendor takes `parallel_tool_calls`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum ParallelToolCalls {
    #[default]
    Accepted,
    /// Only where the model chooses the tool: not beside a `tool_choice` that forces one or forbids
    /// all.
    WithAutoChoice,
    Refused,
}

/// Which ids of tool calls a chat vendor takes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum ToolCallIds {
    #[default]
    Any,
    /// Exactly nine letters or digits.
    Nine,
}

/// A model of a responses vendor.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResponsesModel {
    /// Accepts `reasoning.effort`, and gives its reasoning encrypted.
    pub reasoning: bool,
    /// Sorted.
    pub effort_values: Vec<Effort>,
    /// Accepts `reasoning.summary`.
    pub summaries: bool,
    /// Accepts a `temperature` and `top_p` other than 1.
    pub sampling: bool,
    /// Accepts `prompt_cache_breakpoint`.
    pub cache_breakpoints: bool,
    pub verbosity: bool,
    /// Its server knows tools of type `function` alone: all others go as such, those of its own
    /// surface too.
    pub functions_only: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToolsWithReasoning {
    Any,
    /// Only with effort `none`.
    EffortNone,
    /// Not on this protocol.
    ResponsesOnly,
}

/// Whether a chat vendor wants its reasoning back, and how.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum ReasoningReplay {
    #[default]
    None,
    ReasoningContent,
    /// Only of the turn that is going on, and only where it calls tools: of earlier turns it must
    /// not come back.
    ReasoningContentInTurn,
    ReasoningDetails,
}

impl MessagesModel {
    /// The vendor's web search may be used.
    pub fn may_search(&self) -> bool {
        self.server_tools.iter().any(|tool| tool == WEB_SEARCH)
    }

    /// Lets the vendor's web search be used, or not.
    pub fn set_search(&mut self, may_search: bool) {
        self.server_tools.retain(|tool| tool != WEB_SEARCH);
        if may_search {
            self.server_tools.push(WEB_SEARCH.to_owned());
        }
    }

    pub fn takes(&self, kind: ThinkingType) -> bool {
        self.thinking_types.contains(&kind)
    }

    /// Thinks only by a budget of tokens.
    pub fn is_manual(&self) -> bool {
        self.takes(ThinkingType::Enabled) && !self.takes(ThinkingType::Adaptive)
    }
}

impl Default for MessagesModel {
    /// What every model of the protocol takes: nothing that some refuse.
    fn default() -> Self {
        MessagesModel {
            sampling: Sampling::Fixed,
            thinking_types: Vec::new(),
            thinks_by_default: false,
            effort_levels: Vec::new(),
            prefill: false,
            mid_system: false,
            structured: false,
            server_tools: Vec::new(),
        }
    }
}

impl Default for ChatModel {
    /// A plain model behind a compatible server.
    fn default() -> Self {
        ChatModel {
            reasoning: false,
            effort_values: Vec::new(),
            tools_with_reasoning: ToolsWithReasoning::Any,
            sampling: true,
            stop: true,
            cache_breakpoints: false,
            verbosity: false,
            system_role: "system",
            reasoning_replay: ReasoningReplay::None,
            output_limit_field: "max_completion_tokens",
            top_k: false,
            custom_tools: false,
            parallel_tool_calls: ParallelToolCalls::Accepted,
            tool_call_ids: ToolCallIds::Any,
        }
    }
}
