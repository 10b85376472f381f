//! Defines the parameters and features that a model accepts. `capabilities:` in the config sets
//! them. The request writers use it.
//!
//! This module must not name a vendor or a model: the config assigns the capabilities.
//!
//! Read next, in this folder: `repair_rules.rs` (the known descriptors), `identifiers.rs` (ids,
//! names, arguments), `response_ids.rs`, `schema.rs`, `pairing.rs`.

use super::ir::Effort;
use super::profile::{ChatPlace, VendorProfile};
use crate::Protocol;

pub mod arguments;
pub mod custom_tool;
pub mod identifiers;
pub mod pairing;
pub mod repair_rules;
pub mod response_ids;
pub mod schema;

/// The treatment of a request member in the translation. The tables of the two directions
/// (`fields/chat.rs`, `fields/messages.rs`) hold one treatment for every member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldMapping {
    /// The other protocol can express the member.
    Map,
    /// The member is dropped without a warning, because the client cannot notice the difference.
    Drop,
    /// The member is dropped or expressed differently, with a warning.
    Warn,
    /// The gateway refuses the request.
    Refuse,
}

/// The model and vendor that a translated request is sent to.
#[derive(Clone, Copy, Debug)]
pub struct TranslationTarget<'a> {
    /// The vendor's own name for the model.
    pub upstream_model: &'a str,
    /// The catalog's name for the model.
    pub public_model: &'a str,
    pub max_output_tokens: u64,
    pub profile: &'a VendorProfile,
    pub accepts: &'a ModelCapabilities,
}

/// The capabilities of a model, by the vendor's protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModelCapabilities {
    Messages(MessagesModel),
    Chat(ChatModel),
    Responses(ResponsesModel),
}

impl ModelCapabilities {
    pub fn protocol(&self) -> Protocol {
        match self {
            ModelCapabilities::Messages(_) => Protocol::Messages,
            ModelCapabilities::Chat(_) => Protocol::Chat,
            ModelCapabilities::Responses(_) => Protocol::Responses,
        }
    }

    /// Returns the form in which a chat vendor requires its reasoning back.
    pub fn reasoning_replay(&self) -> ReasoningReplay {
        match self {
            ModelCapabilities::Messages(_) | ModelCapabilities::Responses(_) => {
                ReasoningReplay::None
            }
            ModelCapabilities::Chat(model) => model.reasoning_replay,
        }
    }

    /// Returns the member in which reasoning must return to the model, if the vendor's server is
    /// known to refuse that member.
    pub fn refused_replay(&self, profile: &VendorProfile) -> Option<&'static str> {
        let member = self.reasoning_replay().member()?;
        let is_refused = profile.refuses(ChatPlace::Message, member);
        is_refused.then_some(member)
    }

    /// Returns whether the model's price includes the vendor's web search, for clients of every
    /// protocol.
    pub fn may_search(&self) -> bool {
        match self {
            ModelCapabilities::Messages(model) => model.may_search(),
            ModelCapabilities::Chat(_) | ModelCapabilities::Responses(_) => false,
        }
    }
}

/// The server tool's name for web search.
const WEB_SEARCH: &str = "web_search";

/// A model of a messages vendor. The default is the minimum that every model of the protocol
/// accepts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MessagesModel {
    pub sampling: SamplingSupport,
    /// Values of `thinking.type` that the vendor does not answer with 400.
    pub thinking_types: Vec<ThinkingType>,
    /// True if the model thinks if the request has no `thinking`.
    pub thinks_by_default: bool,
    /// Effort levels, sorted. Empty if the model does not accept `effort`.
    pub effort_levels: Vec<Effort>,
    /// True if a request may end with an assistant turn.
    pub prefill: bool,
    /// True if `role: system` is allowed inside `messages`.
    pub mid_system: bool,
    /// True if `output_config.format` and a tool's `strict` are allowed.
    pub structured: bool,
    /// Names of the allowed server tools, such as `web_search`.
    pub server_tools: Vec<String>,
    /// Minimum number of tokens in a prompt that the vendor caches. `None` means that the gateway
    /// sets no cache markers by itself.
    pub min_cache_tokens: Option<u64>,
}

/// The sampling parameters that a messages model accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SamplingSupport {
    /// Accepts a temperature from 0 to 1, `top_p` and `top_k`.
    Free,
    /// Accepts either a temperature or `top_p`, not both.
    OneOf,
    /// Accepts the default values only.
    #[default]
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

    pub fn parse(name: &str) -> Option<Self> {
        let all = [
            ThinkingType::Enabled,
            ThinkingType::Adaptive,
            ThinkingType::BetweenTools,
            ThinkingType::Disabled,
        ];
        all.into_iter().find(|kind| kind.as_str() == name)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChatModel {
    /// True if the model accepts `reasoning_effort`.
    pub reasoning: bool,
    /// Values of `reasoning_effort`, sorted.
    pub effort_values: Vec<Effort>,
    /// Names and JSON values of the members that turn reasoning on, at a vendor where reasoning is
    /// off by default.
    pub reasoning_on: Vec<(String, String)>,
    /// Names and JSON values of the members that turn reasoning off. If empty, `reasoning_effort:
    /// none` does so.
    pub reasoning_off: Vec<(String, String)>,
    /// True if the vendor accepts an effort in addition to these members.
    pub takes_effort: bool,
    pub tools_with_reasoning: ToolsWithReasoning,
    /// True if the model accepts a `temperature` and `top_p` other than 1.
    pub sampling: bool,
    /// True if the model accepts `stop`.
    pub stop: bool,
    /// True if the model accepts `prompt_cache_breakpoint`.
    pub cache_breakpoints: bool,
    pub verbosity: bool,
    /// Role of instructions: `developer` or `system`.
    pub system_role: &'static str,
    /// True if instructions are allowed in messages other than the first one.
    pub mid_system: bool,
    /// True if a user's message may directly follow a tool's.
    pub user_after_tool: bool,
    /// True if the model accepts `prefix` on a final assistant message, which the answer then
    /// continues; false if it accepts no such message.
    pub prefix: Option<bool>,
    pub reasoning_replay: ReasoningReplay,
    /// Name of the output limit: `max_completion_tokens` or `max_tokens`.
    pub output_limit_field: &'static str,
    /// True if the model accepts `top_k`. Some compatible servers list it; the vendor that defined
    /// the protocol refuses it.
    pub top_k: bool,
    /// True if the model accepts tools of type `custom`. If not, the gateway sends them as
    /// functions.
    pub custom_tools: bool,
    pub parallel_tool_calls: ParallelToolCalls,
    pub tool_call_ids: ToolCallIds,
    /// The API that continues prompts with this model, if the vendor has one.
    pub completions: Option<CompletionsApi>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum ParallelToolCalls {
    #[default]
    Accepted,
    /// Accepted if the model chooses the tool, but not with a `tool_choice` that forces one or
    /// forbids all.
    WithAutoChoice,
    Refused,
}

/// An API of a chat vendor that continues prompts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompletionsApi {
    /// The one from which the chat protocol came. Its answers have `text` in the place of
    /// `message`.
    Text,
    /// Mistral's, which fills the gap between a prompt and a suffix. It answers as a chat.
    Fim,
}

impl CompletionsApi {
    pub const ALL: [Self; 2] = [Self::Text, Self::Fim];

    pub fn path(self) -> &'static str {
        match self {
            Self::Text => "/v1/completions",
            Self::Fim => "/v1/fim/completions",
        }
    }

    pub fn from_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|api| api.path() == path)
    }
}

/// The form of tool call ids that a chat vendor accepts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum ToolCallIds {
    #[default]
    Any,
    /// Accepts exactly nine letters or digits.
    Nine,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResponsesModel {
    /// True if the model accepts `reasoning.effort` and returns its reasoning encrypted.
    pub reasoning: bool,
    /// Values of `reasoning.effort`, sorted.
    pub effort_values: Vec<Effort>,
    /// True if the model accepts `reasoning.summary`.
    pub summaries: bool,
    /// True if the model accepts a `temperature` and `top_p` other than 1.
    pub sampling: bool,
    /// True if the model accepts `prompt_cache_breakpoint`.
    pub cache_breakpoints: bool,
    pub verbosity: bool,
    /// True if the server accepts only tools of type `function`. The gateway then sends all other
    /// tools as functions, including those of the responses surface.
    pub functions_only: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToolsWithReasoning {
    Any,
    /// The model accepts tools, but a forced choice of one only without reasoning.
    Unforced,
    /// The model accepts tools only with the effort `none`.
    EffortNone,
    /// The model accepts tools only in the responses protocol.
    ResponsesOnly,
}

/// The facts about a turn of a conversation that decide whether a messages model can think.
#[derive(Clone, Copy, Default, Debug)]
pub struct TurnSummary {
    pub is_assistant: bool,
    pub has_calls: bool,
    pub has_results: bool,
    /// True if the turn has thinking that the vendor takes back.
    pub has_thinking: bool,
    pub begins_with_thinking: bool,
}

/// The form in which a chat vendor requires its reasoning back.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum ReasoningReplay {
    #[default]
    None,
    Reasoning,
    ReasoningContent,
    /// The vendor requires the reasoning of the current turn if the turn calls tools, and refuses
    /// the reasoning of earlier turns.
    ReasoningContentInTurn,
    ReasoningDetails,
}

impl ReasoningReplay {
    /// Returns the member of a chat message in which the reasoning returns.
    pub fn member(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Reasoning => Some("reasoning"),
            Self::ReasoningContent | Self::ReasoningContentInTurn => Some("reasoning_content"),
            Self::ReasoningDetails => Some("reasoning_details"),
        }
    }
}

impl MessagesModel {
    /// Returns whether the vendor's web search is allowed.
    pub fn may_search(&self) -> bool {
        self.server_tools.iter().any(|tool| tool == WEB_SEARCH)
    }

    pub fn set_web_search(&mut self, may_search: bool) {
        self.server_tools.retain(|tool| tool != WEB_SEARCH);
        if may_search {
            self.server_tools.push(WEB_SEARCH.to_owned());
        }
    }

    pub fn accepts_thinking_type(&self, kind: ThinkingType) -> bool {
        self.thinking_types.contains(&kind)
    }

    /// Returns whether the model thinks only with a token budget.
    pub fn requires_thinking_budget(&self) -> bool {
        self.accepts_thinking_type(ThinkingType::Enabled)
            && !self.accepts_thinking_type(ThinkingType::Adaptive)
    }

    /// Returns whether the model thinks by default, and then refuses a conversation with calls that
    /// were made without thinking.
    pub fn requires_thinking_with_calls(&self) -> bool {
        self.thinks_by_default && !self.accepts_thinking_type(ThinkingType::Adaptive)
    }

    /// Returns whether the model refuses to think in this conversation: because any of its calls
    /// was made without thinking, or because the last answer, which is continued or whose calls are
    /// answered, does not begin with thinking.
    pub fn breaks_thinking_off(&self, turns: &[TurnSummary]) -> bool {
        if self.requires_thinking_with_calls() {
            return turns
                .iter()
                .any(|turn| turn.has_calls && !turn.has_thinking);
        }
        let Some(last) = turns.iter().rposition(|turn| turn.is_assistant) else {
            return false;
        };
        let behind = turns.get(last.saturating_add(1)..).unwrap_or_default();
        let is_open = behind.is_empty() || behind.iter().any(|turn| turn.has_results);
        let last = turns.get(last);
        is_open && last.is_some_and(|turn| !turn.begins_with_thinking)
    }

    /// Returns whether leaving `thinking` out does not turn it off, but `disabled` does.
    pub fn thinks_unless_disabled(&self) -> bool {
        self.thinks_by_default && self.accepts_thinking_type(ThinkingType::Disabled)
    }
}

impl Default for ChatModel {
    /// Describes a basic model on a compatible server.
    fn default() -> Self {
        ChatModel {
            reasoning: false,
            effort_values: Vec::new(),
            reasoning_on: Vec::new(),
            reasoning_off: Vec::new(),
            takes_effort: true,
            tools_with_reasoning: ToolsWithReasoning::Any,
            sampling: true,
            stop: true,
            cache_breakpoints: false,
            verbosity: false,
            system_role: "system",
            mid_system: true,
            user_after_tool: true,
            prefix: None,
            reasoning_replay: ReasoningReplay::None,
            output_limit_field: "max_completion_tokens",
            top_k: false,
            custom_tools: false,
            parallel_tool_calls: ParallelToolCalls::Accepted,
            tool_call_ids: ToolCallIds::Any,
            completions: None,
        }
    }
}
