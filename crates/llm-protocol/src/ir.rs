//! Defines the canonical form of a conversation. Readers convert every surface to it, and writers
//! build every vendor's request body from it.
//!
//! The form follows the strictest of the protocols, with ordered blocks. It borrows the client's
//! JSON tokens instead of copying values. A member that only one protocol can express travels as
//! [`Opaque`], and only the writer of that protocol writes it. Every other writer must report an
//! outcome for such a member, so that nothing is lost silently. A request with the same protocol on
//! both sides is never converted. The form gets a new field only for a concept that two protocols
//! can express.
//!
//! The work is divided as follows. A reader validates by the rules of its surface (types, ranges,
//! unknown tags), keeps the order and converts one message to one turn. A writer validates by the
//! target's rules, and merges, moves and drops members with a warning.
//!
//! Read next: `ir/event.rs` and `ir/response_context.rs` (the way back), `capabilities.rs`, then
//! the readers and writers: `chat/read_request.rs`, ….

use super::Protocol;
use super::failure::Failure;
use super::json::{JoinedText, JsonStr, JsonValue, JsonWriter};
use client_tool::ClientTool;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

mod client_tool;
pub mod event;
mod response_context;
mod upstream_error;
pub mod write_context;

/// A parsed request. Every member that a caller may leave out is optional; the readers treat null
/// as absent.
#[derive(Debug)]
pub struct Request<'a> {
    /// The protocol in which an error response is written.
    pub surface: Protocol,
    /// Instructions before the first turn, one block per part, in order. Text blocks only.
    pub system: Vec<Block<'a>>,
    pub turns: Vec<Turn<'a>>,
    pub tools: Vec<Tool<'a>>,
    /// True if the client used `functions` and `function_call` (chat).
    pub legacy_functions: bool,
    pub choice: ToolChoice<'a>,
    /// True if the model may call several tools at once. `None` if the client did not specify it.
    pub parallel_calls: Option<bool>,
    pub limit: Option<RequestedOutputLimit>,
    pub sampling: SamplingParams<'a>,
    /// Stop sequences. Their paths in errors are `stop[2]` or `stop_sequences[0]`.
    pub stop: Vec<JsonStr<'a>>,
    pub format: OutputFormat<'a>,
    pub reasoning: ReasoningSettings<'a>,
    /// The end user's identifier that the client sent. The gateway never forwards it unchanged.
    pub end_user: Option<JsonStr<'a>>,
    pub tier: Option<JsonStr<'a>>,
    pub stream: bool,
    /// True if the client wants usage at the end of a stream. A chat client must ask for it; a
    /// messages client always gets it.
    pub include_usage: bool,
    /// Top-level members, with their names, that are unknown or that only the surface's own
    /// protocol can express.
    pub extra: Vec<Opaque<'a>>,
    /// Tools whose calls are returned in another form than name and arguments (responses), by their
    /// name in `tools`.
    pub own_tools: HashMap<String, ClientTool>,
    /// Members that the answer must repeat unchanged (responses).
    pub echo: Vec<(&'static str, JsonValue<'a>)>,
}

impl Request<'_> {
    /// Creates a request without any content or setting.
    pub fn new(surface: Protocol) -> Self {
        Request {
            surface,
            system: Vec::new(),
            turns: Vec::new(),
            tools: Vec::new(),
            legacy_functions: false,
            choice: ToolChoice::Absent,
            parallel_calls: None,
            limit: None,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            format: OutputFormat::Free,
            reasoning: ReasoningSettings::default(),
            end_user: None,
            tier: None,
            stream: false,
            include_usage: false,
            extra: Vec::new(),
            own_tools: HashMap::new(),
            echo: Vec::new(),
        }
    }
}

#[derive(Debug)]
pub struct Turn<'a> {
    pub side: TurnRole,
    pub blocks: Vec<Block<'a>>,
    /// Path of the message, or of the first item.
    pub at: JsonPath,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TurnRole {
    /// Input to the model, including tool results.
    User,
    Assistant,
    /// Instructions after the first turn.
    System,
}

#[derive(Debug)]
pub struct Block<'a> {
    pub at: JsonPath,
    pub cache: Option<CacheBreakpoint>,
    pub kind: BlockKind<'a>,
}

impl<'a> Block<'a> {
    /// Creates a block without a cache marker.
    pub fn new(at: JsonPath, kind: BlockKind<'a>) -> Self {
        Block {
            at,
            cache: None,
            kind,
        }
    }
}

#[derive(Debug)]
pub enum BlockKind<'a> {
    Text(JsonStr<'a>),
    /// The model's refusal in an earlier answer (chat).
    Refusal(JsonStr<'a>),
    Image(Image<'a>),
    File(File<'a>),
    /// Reasoning to send back to the vendor that requires it.
    Thinking(Thinking<'a>),
    Call(ToolCall<'a>),
    Result(ToolResult<'a>),
    Opaque(Opaque<'a>),
}

/// An image in a message of the client.
#[derive(Debug)]
pub struct Image<'a> {
    pub source: ImageSource<'a>,
    /// Image detail, if the caller set it. The messages protocol has no such member.
    pub detail: Option<ImageDetail>,
}

/// Image detail, as chat and responses name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageDetail {
    Auto,
    Low,
    High,
    /// The original size, regardless of its value (responses only).
    Original,
}

impl ImageDetail {
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Auto, Self::Low, Self::High, Self::Original]
            .into_iter()
            .find(|detail| detail.as_str() == word)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Low => "low",
            Self::High => "high",
            Self::Original => "original",
        }
    }
}

#[derive(Debug)]
pub enum ImageSource<'a> {
    /// Base64 data, validated. `media_type` is a type such as `image/png`.
    Base64 {
        media_type: JsonStr<'a>,
        data: JsonStr<'a>,
    },
    Url(JsonStr<'a>),
}

impl ImageSource<'_> {
    /// Writes the image as one URL, the form in which chat and responses accept both variants.
    pub fn write_url(&self, json: &mut JsonWriter) {
        match self {
            Self::Url(url) => json.value(url),
            Self::Base64 { media_type, data } => json.value(JoinedText(&[
                JsonStr::from_value("data:"),
                media_type.reborrow(),
                JsonStr::from_value(";base64,"),
                data.reborrow(),
            ])),
        };
    }
}

#[derive(Debug)]
pub struct File<'a> {
    pub title: Option<JsonStr<'a>>,
    /// The member `context` (messages).
    pub context: Option<JsonStr<'a>>,
    pub content: FileContent<'a>,
    /// True if `citations.enabled` is true (messages).
    pub wants_citations: bool,
}

#[derive(Debug)]
pub enum FileContent<'a> {
    /// A PDF document as base64.
    Pdf(JsonStr<'a>),
    Text(JsonStr<'a>),
    /// A URL from which the vendor may fetch the document (messages and responses).
    Url(JsonStr<'a>),
    /// A document made of texts and images (messages).
    Blocks(Vec<Block<'a>>),
}

/// Reasoning of an earlier answer.
#[derive(Debug)]
pub enum Thinking<'a> {
    /// Thinking with a readable text. `signature` is a messages vendor's signature, one of the
    /// gateway's (`gw1.…`), or absent.
    Shown {
        text: JsonStr<'a>,
        signature: Option<JsonStr<'a>>,
    },
    /// Encrypted thinking, from a block of the type `redacted_thinking`.
    Hidden { data: JsonStr<'a> },
}

#[derive(Debug)]
pub struct ToolCall<'a> {
    /// Id that the client gave, if any.
    pub id: Option<JsonStr<'a>>,
    pub name: JsonStr<'a>,
    pub arguments: ToolArguments<'a>,
    pub is_custom: bool,
}

#[derive(Debug)]
pub enum ToolArguments<'a> {
    /// Arguments as a JSON value (`input` in messages).
    Json(JsonValue<'a>),
    /// Arguments as a string. For a function the string holds JSON (`arguments` in chat) and may be
    /// malformed; for a custom tool it holds plain text.
    Text(JsonStr<'a>),
}

#[derive(Debug)]
pub struct ToolResult<'a> {
    pub id: Option<JsonStr<'a>>,
    /// Name of the function. Chat's `function` messages name the function instead of the call.
    pub name: Option<JsonStr<'a>>,
    pub content: ToolResultContent<'a>,
    pub is_error: bool,
}

#[derive(Debug)]
pub enum ToolResultContent<'a> {
    Nothing,
    Text(JsonStr<'a>),
    Blocks(Vec<Block<'a>>),
}

#[derive(Debug)]
pub struct Tool<'a> {
    /// Index in the client's `tools` (or `functions`).
    pub index: usize,
    pub kind: ToolKind<'a>,
    pub cache: Option<CacheBreakpoint>,
}

#[derive(Debug)]
pub enum ToolKind<'a> {
    Function(FunctionTool<'a>),
    /// A tool with free-text input, which `format` may constrain (chat).
    Custom {
        name: JsonStr<'a>,
        description: Option<JsonStr<'a>>,
        format: Option<JsonValue<'a>>,
    },
    /// A tool that the messages vendor defines, whose `type` contains a date. The client or the
    /// vendor runs it.
    Vendor {
        kind: JsonStr<'a>,
        value: JsonValue<'a>,
    },
}

#[derive(Debug)]
pub struct FunctionTool<'a> {
    pub name: JsonStr<'a>,
    pub description: Option<JsonStr<'a>>,
    /// An object schema. `None` if the function has no parameters.
    pub schema: Option<JsonValue<'a>>,
    pub strict: bool,
    /// The member `input_examples` (messages).
    pub examples: Option<JsonValue<'a>>,
}

/// The rule for the tools that the model must or may call.
#[derive(Debug, Default)]
pub enum ToolChoice<'a> {
    /// The client did not set the choice.
    #[default]
    Absent,
    Auto,
    None,
    /// The model must call some tool.
    Required,
    Tool(JsonStr<'a>),
    /// The model may call only these tools (chat). If `required` is true, it must call one of them.
    Allowed {
        names: Vec<JsonStr<'a>>,
        required: bool,
    },
}

impl ToolChoice<'_> {
    /// Returns whether the model must call a tool.
    pub fn is_forced(&self) -> bool {
        match self {
            Self::Absent | Self::Auto | Self::None => false,
            Self::Required | Self::Tool(_) => true,
            Self::Allowed { required, .. } => *required,
        }
    }
}

/// The output limit, with the name of the member that set it.
#[derive(Clone, Copy, Debug)]
pub struct RequestedOutputLimit {
    pub field: &'static str,
    pub tokens: u64,
}

/// Sampling parameters in the client's spelling. The reader has checked that they are numbers in
/// the surface's own range.
#[derive(Debug, Default)]
pub struct SamplingParams<'a> {
    pub temperature: Option<JsonValue<'a>>,
    pub top_p: Option<JsonValue<'a>>,
    pub top_k: Option<JsonValue<'a>>,
}

/// Required format of the answer's text.
#[derive(Debug, Default)]
pub enum OutputFormat<'a> {
    #[default]
    Free,
    /// The text must be a JSON object.
    Json,
    Schema {
        schema: JsonValue<'a>,
        description: Option<JsonStr<'a>>,
        /// Name that the client gave to the schema (chat, responses).
        name: Option<JsonStr<'a>>,
        /// True if the vendor must enforce the schema. `None` if the client did not specify it.
        strict: Option<bool>,
    },
}

#[derive(Debug, Default)]
pub struct ReasoningSettings<'a> {
    /// Effort level. The reader has refused unknown levels.
    pub effort: Option<Effort>,
    /// Name of the member that set the effort, for warnings: `reasoning_effort`,
    /// `output_config.effort` or `reasoning.effort`.
    pub effort_field: &'static str,
    /// The member `thinking` of the messages protocol, unchanged. The chat surface accepts it as an
    /// extension.
    pub thinking: Option<JsonValue<'a>>,
    /// Token budget (chat's extension `reasoning.max_tokens`).
    pub budget_tokens: Option<u64>,
    /// True to leave the reasoning's text out of the answer: chat's extension `reasoning.exclude`,
    /// or a responses request without a summary.
    pub hide: bool,
    /// True if the client used the messages protocol's own members on the chat surface. The writer
    /// copies these without further checks.
    pub is_verbatim: bool,
}

/// Reasoning effort, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

impl Effort {
    pub const ALL: [Effort; 7] = [
        Effort::None,
        Effort::Minimal,
        Effort::Low,
        Effort::Medium,
        Effort::High,
        Effort::Xhigh,
        Effort::Max,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Effort::None => "none",
            Effort::Minimal => "minimal",
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
            Effort::Xhigh => "xhigh",
            Effort::Max => "max",
        }
    }

    pub fn parse(name: &str) -> Option<Effort> {
        Effort::ALL
            .into_iter()
            .find(|effort| effort.as_str() == name)
    }

    /// Returns this level if `allowed` contains it, else the highest allowed level below it, else
    /// the lowest allowed level. `Effort::None` never replaces another level, because a client that
    /// asks for reasoning must get some. Returns `None` if no level is left.
    pub fn nearest(self, allowed: &[Effort]) -> Option<Effort> {
        let is_level = |effort: &Effort| *effort != Effort::None || self <= Effort::Minimal;
        let levels = || allowed.iter().copied().filter(is_level);
        let below = levels().filter(|effort| *effort <= self).max();
        below.or_else(|| levels().min())
    }
}

/// A cache breakpoint. Only the lifetime of the client's marker is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheBreakpoint {
    /// The marker names no lifetime.
    Usual,
    FiveMinutes,
    OneHour,
}

impl CacheBreakpoint {
    /// Reads a `cache_control` object. An unknown lifetime is ignored.
    pub fn from_marker(marker: JsonValue<'_>) -> Self {
        match marker.get("ttl") {
            Some(lifetime) if lifetime.is("5m") => CacheBreakpoint::FiveMinutes,
            Some(lifetime) if lifetime.is("1h") => CacheBreakpoint::OneHour,
            _ => CacheBreakpoint::Usual,
        }
    }

    /// Returns the lifetime in the spelling of markers.
    pub fn lifetime(self) -> Option<&'static str> {
        match self {
            CacheBreakpoint::Usual => None,
            CacheBreakpoint::FiveMinutes => Some("5m"),
            CacheBreakpoint::OneHour => Some("1h"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheMarkerOrigin {
    Gateway,
    Caller,
}

impl CacheMarkerOrigin {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Caller => "caller",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [Self::Gateway, Self::Caller]
            .into_iter()
            .find(|known| known.as_str() == name)
    }
}

/// A member or block that only one protocol can express.
#[derive(Debug)]
pub struct Opaque<'a> {
    pub origin: Protocol,
    /// The member's name, or the block's `type`.
    pub name: JsonStr<'a>,
    pub value: JsonValue<'a>,
}

/// A path in the client's JSON, for warnings and `param`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JsonPath {
    /// `system[i]`
    System(usize),
    /// `messages[i]`
    Message(usize),
    /// `messages[i].content[j]`
    Part(usize, usize),
    /// `messages[i].content[j].content[k]`, inside a tool result or document
    Nested(usize, usize, usize),
    /// `messages[i].tool_calls[k]`
    Call(usize, usize),
    /// `tools[i]`
    Tool(usize),
    /// `input[i]`
    Item(usize),
    /// `input[i].content[j]`
    ItemPart(usize, usize),
    /// `input[i].output[j]`
    ItemOutput(usize, usize),
}

impl JsonPath {
    /// Returns the path of the message or item at `index`.
    pub fn from_turn(surface: Protocol, index: usize) -> JsonPath {
        match surface {
            Protocol::Chat | Protocol::Messages => JsonPath::Message(index),
            Protocol::Responses => JsonPath::Item(index),
        }
    }

    /// Returns the index of the message, item or tool that the path belongs to.
    pub fn container_index(self) -> usize {
        match self {
            JsonPath::System(index)
            | JsonPath::Tool(index)
            | JsonPath::Message(index)
            | JsonPath::Item(index) => index,
            JsonPath::Part(index, _) | JsonPath::Nested(index, ..) | JsonPath::Call(index, _) => {
                index
            }
            JsonPath::ItemPart(index, _) | JsonPath::ItemOutput(index, _) => index,
        }
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonPath::System(part) => write!(f, "system[{part}]"),
            JsonPath::Message(message) => write!(f, "messages[{message}]"),
            JsonPath::Part(message, part) => write!(f, "messages[{message}].content[{part}]"),
            JsonPath::Nested(message, part, nested) => {
                write!(f, "messages[{message}].content[{part}].content[{nested}]")
            }
            JsonPath::Call(message, call) => write!(f, "messages[{message}].tool_calls[{call}]"),
            JsonPath::Tool(tool) => write!(f, "tools[{tool}]"),
            JsonPath::Item(item) => write!(f, "input[{item}]"),
            JsonPath::ItemPart(item, part) => write!(f, "input[{item}].content[{part}]"),
            JsonPath::ItemOutput(item, part) => write!(f, "input[{item}].output[{part}]"),
        }
    }
}

/// A failure that refuses a request before any vendor is called. It is boxed because results are
/// returned by value and failures are rare.
pub type BoxedFailure = Box<Failure>;

/// The result of reading or writing a request, or the failure that refuses it.
pub type RequestResult<T = ()> = Result<T, BoxedFailure>;

/// Returns the failure for the member at `path`, which breaks a rule of the client's protocol.
pub(crate) fn invalid_param(
    surface: Protocol,
    path: impl fmt::Display,
    message: impl fmt::Display,
) -> BoxedFailure {
    Failure::invalid_param(surface, path, message).into()
}

/// Refuses a request whose member at `path` breaks a rule of the client's protocol.
pub(crate) fn refuse<T>(
    surface: Protocol,
    path: impl fmt::Display,
    message: impl fmt::Display,
) -> RequestResult<T> {
    Err(invalid_param(surface, path, message))
}

/// Changes that the translation made, as tokens of the form `action:path` for the header
/// `x-gateway-warnings`.
#[derive(Debug, Default)]
pub struct Warnings(Vec<String>);

impl Warnings {
    /// Records that the translation left this member out.
    pub fn dropped(&mut self, path: impl fmt::Display) {
        self.add("dropped", path);
    }

    /// Records that the translation moved a number into the range that the vendor accepts.
    pub fn clamped(&mut self, path: impl fmt::Display) {
        self.add("clamped", path);
    }

    pub fn renamed(&mut self, path: impl fmt::Display) {
        self.add("renamed", path);
    }

    /// Records that the translation sends the same meaning in another form.
    pub fn rewritten(&mut self, path: impl fmt::Display) {
        self.add("rewritten", path);
    }

    /// Records that a prompt asks for a feature for which the vendor has no member.
    pub fn emulated(&mut self, path: impl fmt::Display) {
        self.add("emulated", path);
    }

    /// Records that the translation asks for less effort.
    pub fn downgraded(&mut self, path: impl fmt::Display) {
        self.add("downgraded", path);
    }

    pub fn inserted(&mut self, path: impl fmt::Display) {
        self.add("inserted", path);
    }

    pub fn merged(&mut self, path: impl fmt::Display) {
        self.add("merged", path);
    }

    /// Adds a token, unless it is listed already.
    fn add(&mut self, action: &str, path: impl fmt::Display) {
        if self.0.len() >= MAX_WARNINGS {
            return;
        }
        // The name of a client's member may contain any character, but a header value allows only
        // visible ASCII.
        let token: String = format!("{action}:{path}")
            .chars()
            .map(|letter| {
                if letter.is_ascii_graphic() && letter != ',' {
                    letter
                } else {
                    '_'
                }
            })
            .take(MAX_WARNING_CHARS)
            .collect();
        if !self.0.contains(&token) {
            self.0.push(token);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn into_tokens(mut self) -> Vec<String> {
        self.0.sort_unstable();
        self.0
    }
}

/// Maximum number of tokens. A header cannot hold more.
const MAX_WARNINGS: usize = 256;
/// Maximum length of a token in characters. A longer token is truncated.
const MAX_WARNING_CHARS: usize = 128;
