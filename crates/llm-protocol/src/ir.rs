//! The canonical form of a conversation: readers convert every surface to it, and writers build
//! every vendor's request body from it.
//!
//! It follows the strictest of the protocols: ordered blocks. It holds the caller's own JSON
//! tokens, borrowed, not values. A member that only one protocol can express travels as [`Opaque`],
//! and only the writer of that protocol writes it. Every other writer must report an outcome for
//! it, so that nothing is lost silently. Requests with the same protocol on both sides never come
//! here. This form must not grow a field for each vendor's extension: a concept enters when two
//! protocols can express it.
//!
//! Division of work: a reader validates by the rules of its surface (types, ranges, unknown tags),
//! keeps the order and converts one message to one turn. A writer validates by the target's rules,
//! and merges, moves and drops members with a warning.
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
    /// One turn per message, in order.
    pub turns: Vec<Turn<'a>>,
    pub tools: Vec<Tool<'a>>,
    /// The caller used `functions` and `function_call` (chat).
    pub legacy_functions: bool,
    pub choice: ToolChoice<'a>,
    /// Whether the model may call several tools at once; `None`: the caller did not say.
    pub parallel_calls: Option<bool>,
    pub limit: Option<RequestedOutputLimit>,
    pub sampling: SamplingParams<'a>,
    /// Stop sequences, with their paths: `stop[2]`, `stop_sequences[0]`.
    pub stop: Vec<JsonStr<'a>>,
    pub format: OutputFormat<'a>,
    pub reasoning: ReasoningSettings<'a>,
    /// The end user's identifier as the caller gave it. The gateway never sends it unchanged.
    pub end_user: Option<JsonStr<'a>>,
    pub tier: Option<JsonStr<'a>>,
    pub stream: bool,
    /// Whether the caller wants usage at the end of a stream (a chat caller must ask; a messages
    /// caller always gets it).
    pub include_usage: bool,
    /// Top-level members that only the surface's own protocol can express, or that are unknown,
    /// with their names.
    pub extra: Vec<Opaque<'a>>,
    /// Tools whose calls are returned in another form than name and arguments (responses), by the
    /// name in `tools`.
    pub own_tools: HashMap<String, ClientTool>,
    /// Members that the answer repeats unchanged (responses).
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

/// One message of the caller.
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

/// One content block of a turn.
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
    /// The model's refusal in an earlier answer (chat, assistant).
    Refusal(JsonStr<'a>),
    Image(Image<'a>),
    File(File<'a>),
    /// Reasoning that the vendor requires to be sent back.
    Thinking(Thinking<'a>),
    Call(ToolCall<'a>),
    Result(ToolResult<'a>),
    Opaque(Opaque<'a>),
}

/// An image in the caller's message.
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
    /// The original size, however large (responses only).
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
    /// `data`: validated base64. `media_type`: `image/png`, …
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

/// A document in the caller's message.
#[derive(Debug)]
pub struct File<'a> {
    pub title: Option<JsonStr<'a>>,
    /// `context` (messages).
    pub context: Option<JsonStr<'a>>,
    pub content: FileContent<'a>,
    /// Whether `citations.enabled` is true (messages).
    pub wants_citations: bool,
}

#[derive(Debug)]
pub enum FileContent<'a> {
    /// Base64.
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
    /// `signature`: a messages vendor's, one of ours (`gw1.…`), or none.
    Shown {
        text: JsonStr<'a>,
        signature: Option<JsonStr<'a>>,
    },
    /// `redacted_thinking`.
    Hidden { data: JsonStr<'a> },
}

/// A tool call that the model made.
#[derive(Debug)]
pub struct ToolCall<'a> {
    /// Id as the caller gave it; `None` if it gave none.
    pub id: Option<JsonStr<'a>>,
    pub name: JsonStr<'a>,
    pub arguments: ToolArguments<'a>,
    pub is_custom: bool,
}

#[derive(Debug)]
pub enum ToolArguments<'a> {
    /// A JSON value (messages: `input`).
    Json(JsonValue<'a>),
    /// A string. For a function it holds JSON (chat: `arguments`) and may be malformed; for a
    /// custom tool it holds plain text.
    Text(JsonStr<'a>),
}

/// The result of a tool call.
#[derive(Debug)]
pub struct ToolResult<'a> {
    pub id: Option<JsonStr<'a>>,
    /// Name of the function: chat's `function` messages name the function, not the call.
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

/// A tool that the model may call.
#[derive(Debug)]
pub struct Tool<'a> {
    /// Index in the caller's `tools` (or `functions`).
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
    /// A tool type with a date, defined by the vendor of the messages protocol, with its `type`.
    /// The client or the vendor runs it.
    Vendor {
        kind: JsonStr<'a>,
        value: JsonValue<'a>,
    },
}

#[derive(Debug)]
pub struct FunctionTool<'a> {
    pub name: JsonStr<'a>,
    pub description: Option<JsonStr<'a>>,
    /// An object schema; `None`: the function has no parameters.
    pub schema: Option<JsonValue<'a>>,
    pub strict: bool,
    /// `input_examples` (messages).
    pub examples: Option<JsonValue<'a>>,
}

/// Which tool the model must call.
#[derive(Debug, Default)]
pub enum ToolChoice<'a> {
    /// The caller did not say.
    #[default]
    Absent,
    Auto,
    None,
    /// Any tool.
    Required,
    Tool(JsonStr<'a>),
    /// The model may call only these tools (chat). `required`: it must call one of them.
    Allowed {
        names: Vec<JsonStr<'a>>,
        required: bool,
    },
}

/// The output limit, with the member's name that the caller used.
#[derive(Clone, Copy, Debug)]
pub struct RequestedOutputLimit {
    pub field: &'static str,
    pub tokens: u64,
}

/// Sampling parameters as the caller wrote them, checked to be numbers in the surface's own range.
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
    /// A JSON object.
    Json,
    Schema {
        schema: JsonValue<'a>,
        description: Option<JsonStr<'a>>,
        /// The caller's name for the schema (chat, responses).
        name: Option<JsonStr<'a>>,
        /// Whether the vendor must enforce the schema, if the caller set it.
        strict: Option<bool>,
    },
}

/// Reasoning settings.
#[derive(Debug, Default)]
pub struct ReasoningSettings<'a> {
    /// Effort level. The reader has refused unknown levels.
    pub effort: Option<Effort>,
    /// Name of the member that set the effort, for warnings: `reasoning_effort`,
    /// `output_config.effort`, `reasoning.effort`.
    pub effort_field: &'static str,
    /// `thinking` of the messages protocol, unchanged. The chat surface accepts it as an extension.
    pub thinking: Option<JsonValue<'a>>,
    /// Token budget (chat's extension `reasoning.max_tokens`).
    pub budget_tokens: Option<u64>,
    /// Leave the reasoning's text out of the answer (chat's extension `reasoning.exclude`;
    /// responses, if the caller asked for no summary).
    pub hide: bool,
    /// Whether the caller used the messages protocol's own members on the chat surface. They are
    /// then copied without further checks.
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
    /// the lowest allowed level. `Effort::None` is near `Minimal`, but no level for a caller that
    /// asks for more: who asks for reasoning does not get it turned off. Returns `None` if no level
    /// is left.
    pub fn nearest(self, allowed: &[Effort]) -> Option<Effort> {
        let is_level = |effort: &Effort| *effort != Effort::None || self <= Effort::Minimal;
        let levels = || allowed.iter().copied().filter(is_level);
        let below = levels().filter(|effort| *effort <= self).max();
        below.or_else(|| levels().min())
    }
}

/// A cache breakpoint. Only the lifetime of the caller's marker is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheBreakpoint {
    /// The marker names no lifetime.
    Usual,
    FiveMinutes,
    OneHour,
}

impl CacheBreakpoint {
    /// Reads a `cache_control` object. A lifetime that no vendor knows counts as none.
    pub fn from_marker(marker: JsonValue<'_>) -> Self {
        match marker.get("ttl") {
            Some(lifetime) if lifetime.is("5m") => CacheBreakpoint::FiveMinutes,
            Some(lifetime) if lifetime.is("1h") => CacheBreakpoint::OneHour,
            _ => CacheBreakpoint::Usual,
        }
    }

    /// The lifetime as markers name it.
    pub fn lifetime(self) -> Option<&'static str> {
        match self {
            CacheBreakpoint::Usual => None,
            CacheBreakpoint::FiveMinutes => Some("5m"),
            CacheBreakpoint::OneHour => Some("1h"),
        }
    }
}

/// Who set the cache markers of a request.
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

/// A path in the caller's JSON, for warnings and `param`.
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

/// A refused request, before any vendor is called. Boxed because it is rare and results are
/// returned by value.
pub type BoxedFailure = Box<Failure>;

/// What reading or writing a request gives, or its refusal.
pub type RequestResult<T = ()> = Result<T, BoxedFailure>;

/// The member at `path` breaks a rule of the client's protocol.
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

/// Changes that the translation made: tokens `action:path` for the header `x-gateway-warnings`.
#[derive(Debug, Default)]
pub struct Warnings(Vec<String>);

impl Warnings {
    /// The translation left this member out.
    pub fn dropped(&mut self, path: impl fmt::Display) {
        self.add("dropped", path);
    }

    /// It put a number into the range that the vendor accepts.
    pub fn clamped(&mut self, path: impl fmt::Display) {
        self.add("clamped", path);
    }

    pub fn renamed(&mut self, path: impl fmt::Display) {
        self.add("renamed", path);
    }

    /// It sends the same meaning in another form.
    pub fn rewritten(&mut self, path: impl fmt::Display) {
        self.add("rewritten", path);
    }

    /// A prompt asks for what the vendor has no member for.
    pub fn emulated(&mut self, path: impl fmt::Display) {
        self.add("emulated", path);
    }

    /// It asks for less effort.
    pub fn downgraded(&mut self, path: impl fmt::Display) {
        self.add("downgraded", path);
    }

    pub fn inserted(&mut self, path: impl fmt::Display) {
        self.add("inserted", path);
    }

    pub fn merged(&mut self, path: impl fmt::Display) {
        self.add("merged", path);
    }

    /// Adds a token. Each token is listed once.
    fn add(&mut self, action: &str, path: impl fmt::Display) {
        if self.0.len() >= MAX_WARNINGS {
            return;
        }
        // A caller's member name may hold any character; a header value allows only visible ASCII.
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

    /// Returns the tokens, sorted.
    pub fn into_tokens(mut self) -> Vec<String> {
        self.0.sort_unstable();
        self.0
    }
}

/// Maximum number of tokens kept, because a header cannot hold more.
const MAX_WARNINGS: usize = 256;
/// Maximum length of a token in characters. A longer token is truncated.
const MAX_WARNING_CHARS: usize = 128;
