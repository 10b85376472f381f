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
//! Read next: `ir/event.rs` (the way back), `capabilities.rs`, then the readers and writers:
//! `chat/read_request.rs`, ….

use super::Protocol;
use super::failure::Failure;
use super::text::{Json, Text};
use super::tree::Value;
use answer::OwnTool;
use std::collections::HashMap;
use std::fmt;

pub mod answer;

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
    pub choice: Choice<'a>,
    /// Whether the model may call several tools at once; `None`: the caller did not say.
    pub parallel_calls: Option<bool>,
    pub limit: Option<Limit>,
    pub sampling: Sampling<'a>,
    /// Stop sequences, with their paths: `stop[2]`, `stop_sequences[0]`.
    pub stop: Vec<Text<'a>>,
    pub format: Format<'a>,
    pub reasoning: Reasoning<'a>,
    /// The end user's identifier as the caller gave it. The gateway never sends it unchanged.
    pub end_user: Option<Text<'a>>,
    pub tier: Option<Text<'a>>,
    pub stream: bool,
    /// Whether the caller wants usage at the end of a stream (a chat caller must ask; a messages
    /// caller always gets it).
    pub include_usage: bool,
    /// Top-level members that only the surface's own protocol can express, or that are unknown,
    /// with their names.
    pub extra: Vec<Opaque<'a>>,
    /// Tools whose calls are returned in another form than name and arguments (responses), by the
    /// name in `tools`.
    pub own_tools: HashMap<String, OwnTool>,
    /// Members that the answer repeats unchanged (responses).
    pub echo: Vec<(&'static str, Value<'a>)>,
}

/// One message of the caller.
#[derive(Debug)]
pub struct Turn<'a> {
    pub side: Side,
    pub blocks: Vec<Block<'a>>,
    /// Path of the message, or of the first item.
    pub at: At,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Input to the model, including tool results.
    User,
    Assistant,
    /// Instructions after the first turn.
    System,
}

/// One content block of a turn.
#[derive(Debug)]
pub struct Block<'a> {
    pub at: At,
    pub cache: Option<Cache>,
    pub kind: BlockKind<'a>,
}

#[derive(Debug)]
pub enum BlockKind<'a> {
    Text(Text<'a>),
    /// The model's refusal in an earlier answer (chat, assistant).
    Refusal(Text<'a>),
    Image(Image<'a>),
    File(File<'a>),
    /// Reasoning that the vendor requires to be sent back.
    Thinking(Thinking<'a>),
    Call(Call<'a>),
    Result(Outcome<'a>),
    Opaque(Opaque<'a>),
}

/// An image in the caller's message.
#[derive(Debug)]
pub struct Image<'a> {
    pub source: ImageSource<'a>,
    /// Image detail, if the caller set it. The messages protocol has no such member.
    pub detail: Option<Detail>,
}

/// Image detail, as chat and responses name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    Auto,
    Low,
    High,
    /// The original size, however large (responses only).
    Original,
}

impl Detail {
    pub fn of(word: &str) -> Option<Self> {
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
        media_type: Text<'a>,
        data: Text<'a>,
    },
    Url(Text<'a>),
}

impl ImageSource<'_> {
    /// Writes the image as one URL, the form in which chat and responses accept both variants.
    pub fn write_url(&self, json: &mut Json) {
        match self {
            Self::Url(url) => json.text(url),
            Self::Base64 { media_type, data } => json.joined(&[
                Text::made("data:"),
                media_type.borrowed(),
                Text::made(";base64,"),
                data.borrowed(),
            ]),
        };
    }
}

/// A document in the caller's message.
#[derive(Debug)]
pub struct File<'a> {
    pub title: Option<Text<'a>>,
    /// `context` (messages).
    pub context: Option<Text<'a>>,
    pub content: FileContent<'a>,
    /// Whether `citations.enabled` is true (messages).
    pub wants_citations: bool,
}

#[derive(Debug)]
pub enum FileContent<'a> {
    /// Base64.
    Pdf(Text<'a>),
    Text(Text<'a>),
    /// A URL from which the vendor may fetch the document (messages and responses).
    Url(Text<'a>),
    /// A document made of texts and images (messages).
    Blocks(Vec<Block<'a>>),
}

/// Reasoning of an earlier answer.
#[derive(Debug)]
pub enum Thinking<'a> {
    /// `signature`: a messages vendor's, one of ours (`gw1.…`), or none.
    Shown {
        text: Text<'a>,
        signature: Option<Text<'a>>,
    },
    /// `redacted_thinking`.
    Hidden { data: Text<'a> },
}

/// A tool call that the model made.
#[derive(Debug)]
pub struct Call<'a> {
    /// Id as the caller gave it; `None` if it gave none.
    pub id: Option<Text<'a>>,
    pub name: Text<'a>,
    pub arguments: Arguments<'a>,
    pub is_custom: bool,
}

#[derive(Debug)]
pub enum Arguments<'a> {
    /// A JSON value (messages: `input`).
    Json(Value<'a>),
    /// A string. For a function it holds JSON (chat: `arguments`) and may be malformed; for a
    /// custom tool it holds plain text.
    Text(Text<'a>),
}

/// The result of a tool call.
#[derive(Debug)]
pub struct Outcome<'a> {
    pub id: Option<Text<'a>>,
    /// Name of the function: chat's `function` messages name the function, not the call.
    pub name: Option<Text<'a>>,
    pub content: OutcomeContent<'a>,
    pub is_error: bool,
}

#[derive(Debug)]
pub enum OutcomeContent<'a> {
    Nothing,
    Text(Text<'a>),
    Blocks(Vec<Block<'a>>),
}

/// A tool that the model may call.
#[derive(Debug)]
pub struct Tool<'a> {
    /// Index in the caller's `tools` (or `functions`).
    pub index: usize,
    pub kind: ToolKind<'a>,
    pub cache: Option<Cache>,
}

#[derive(Debug)]
pub enum ToolKind<'a> {
    Function(Function<'a>),
    /// A tool with free-text input, which `format` may constrain (chat).
    Custom {
        name: Text<'a>,
        description: Option<Text<'a>>,
        format: Option<Value<'a>>,
    },
    /// A tool type with a date, defined by the vendor of the messages protocol, with its `type`.
    /// The client or the vendor runs it.
    Vendor {
        kind: Text<'a>,
        value: Value<'a>,
    },
}

#[derive(Debug)]
pub struct Function<'a> {
    pub name: Text<'a>,
    pub description: Option<Text<'a>>,
    /// An object schema; `None`: the function has no parameters.
    pub schema: Option<Value<'a>>,
    pub strict: bool,
    /// `input_examples` (messages).
    pub examples: Option<Value<'a>>,
}

/// Which tool the model must call.
#[derive(Debug, Default)]
pub enum Choice<'a> {
    /// The caller did not say.
    #[default]
    Absent,
    Auto,
    None,
    /// Any tool.
    Required,
    Tool(Text<'a>),
    /// The model may call only these tools (chat). `required`: it must call one of them.
    Allowed {
        names: Vec<Text<'a>>,
        required: bool,
    },
}

/// The output limit, with the member's name that the caller used.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub field: &'static str,
    pub tokens: u64,
}

/// Sampling parameters as the caller wrote them, checked to be numbers in the surface's own range.
#[derive(Debug, Default)]
pub struct Sampling<'a> {
    pub temperature: Option<Value<'a>>,
    pub top_p: Option<Value<'a>>,
    pub top_k: Option<Value<'a>>,
}

/// Required format of the answer's text.
#[derive(Debug, Default)]
pub enum Format<'a> {
    #[default]
    Free,
    /// A JSON object.
    Json,
    Schema {
        schema: Value<'a>,
        description: Option<Text<'a>>,
        /// The caller's name for the schema (chat, responses).
        name: Option<Text<'a>>,
        /// Whether the vendor must enforce the schema, if the caller set it.
        strict: Option<bool>,
    },
}

/// Reasoning settings.
#[derive(Debug, Default)]
pub struct Reasoning<'a> {
    /// Effort level. The reader has refused unknown levels.
    pub effort: Option<Effort>,
    /// Name of the member that set the effort, for warnings: `reasoning_effort`,
    /// `output_config.effort`, `reasoning.effort`.
    pub effort_field: &'static str,
    /// `thinking` of the messages protocol, unchanged. The chat surface accepts it as an extension.
    pub thinking: Option<Value<'a>>,
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

    pub fn named(name: &str) -> Option<Effort> {
        Effort::ALL
            .into_iter()
            .find(|effort| effort.as_str() == name)
    }

    /// Returns this level if `allowed` contains it, else the highest allowed level below it, else
    /// the lowest allowed level. Returns `None` if `allowed` is empty.
    pub fn nearest(self, allowed: &[Effort]) -> Option<Effort> {
        let below = allowed
            .iter()
            .copied()
            .filter(|effort| *effort <= self)
            .max();
        below.or_else(|| allowed.iter().copied().min())
    }
}

/// A cache breakpoint. Only the lifetime of the caller's marker is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// The marker names no lifetime.
    Usual,
    FiveMinutes,
    OneHour,
}

/// A member or block that only one protocol can express.
#[derive(Debug)]
pub struct Opaque<'a> {
    pub origin: Protocol,
    /// The member's name, or the block's `type`.
    pub name: Text<'a>,
    pub value: Value<'a>,
}

/// A path in the caller's JSON, for warnings and `param`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
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

impl At {
    /// Returns the path of the message or item at `index`.
    pub fn turn(surface: Protocol, index: usize) -> At {
        match surface {
            Protocol::Chat | Protocol::Messages => At::Message(index),
            Protocol::Responses => At::Item(index),
        }
    }

    /// Returns the index of the message, item or tool that the path belongs to.
    pub fn message(self) -> usize {
        match self {
            At::System(index) | At::Tool(index) | At::Message(index) | At::Item(index) => index,
            At::Part(index, _) | At::Nested(index, ..) | At::Call(index, _) => index,
            At::ItemPart(index, _) | At::ItemOutput(index, _) => index,
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::System(part) => write!(f, "system[{part}]"),
            At::Message(message) => write!(f, "messages[{message}]"),
            At::Part(message, part) => write!(f, "messages[{message}].content[{part}]"),
            At::Nested(message, part, nested) => {
                write!(f, "messages[{message}].content[{part}].content[{nested}]")
            }
            At::Call(message, call) => write!(f, "messages[{message}].tool_calls[{call}]"),
            At::Tool(tool) => write!(f, "tools[{tool}]"),
            At::Item(item) => write!(f, "input[{item}]"),
            At::ItemPart(item, part) => write!(f, "input[{item}].content[{part}]"),
            At::ItemOutput(item, part) => write!(f, "input[{item}].output[{part}]"),
        }
    }
}

/// A refused request, before any vendor is called. Boxed because it is rare and results are
/// returned by value.
pub type Refused = Box<Failure>;

/// Changes that the translation made: tokens `action:path` for the header `x-gateway-warnings`.
#[derive(Debug, Default)]
pub struct Warnings(Vec<String>);

/// What the translation did with a member that it could not copy unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Dropped,
    Clamped,
    Renamed,
    Rewritten,
    Emulated,
    Downgraded,
    Inserted,
    Merged,
}

impl Warnings {
    /// Adds a token. Each token is listed once.
    pub fn add(&mut self, action: Action, path: impl fmt::Display) {
        if self.0.len() >= WARNINGS_MAX {
            return;
        }
        let action = match action {
            Action::Dropped => "dropped",
            Action::Clamped => "clamped",
            Action::Renamed => "renamed",
            Action::Rewritten => "rewritten",
            Action::Emulated => "emulated",
            Action::Downgraded => "downgraded",
            Action::Inserted => "inserted",
            Action::Merged => "merged",
        };
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
            .take(WARNING_LETTERS_MAX)
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
const WARNINGS_MAX: usize = 256;
/// Maximum length of a token in characters. A longer token is truncated.
const WARNING_LETTERS_MAX: usize = 128;
