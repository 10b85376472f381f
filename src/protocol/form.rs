//! The one canonical form of a conversation: what every surface is read into, and every vendor's
//! body is written from.
//!
//! Its shape is the strictest of the protocols: ordered blocks. It holds the caller's own JSON
//! tokens, borrowed, not values. What only one protocol can say travels as [`Opaque`] and is
//! written only by the writer of its origin; every other writer must give it an outcome, so that
//! nothing is lost silently. Same protocol on both sides never comes here. It must not grow a field
//! per vendor's wish: a thing enters when two protocols can say it.
//!
//! Division of work. A reader judges what its surface judges (types, ranges, tags it does not know)
//! and keeps order; it turns one message into one turn. A writer judges by the target's rules and
//! merges, moves, drops and warns.
//!
//! Read next: `form/answer.rs` (the way back), `rules.rs`, then the rooms: `chat/read_request.rs`,
//! ….

use super::Protocol;
use super::failure::Failure;
use super::text::{Json, Text};
use super::tree::Value;
use answer::OwnTool;
use std::collections::HashMap;
use std::fmt;

pub mod answer;

/// A request, read. Everything is optional that a caller may leave out; null was taken for absent.
#[derive(Debug)]
pub struct Request<'a> {
    /// Whose words a refusal takes.
    pub surface: Protocol,
    /// Instructions before the first turn, one block per part, in order. Text blocks only.
    pub system: Vec<Block<'a>>,
    /// One turn per message, in order.
    pub turns: Vec<Turn<'a>>,
    pub tools: Vec<Tool<'a>>,
    /// The caller used `functions` and `function_call` (chat).
    pub legacy_functions: bool,
    pub choice: Choice<'a>,
    /// May several tools be called at once; `None`: not said.
    pub parallel_calls: Option<bool>,
    pub limit: Option<Limit>,
    pub sampling: Sampling<'a>,
    /// With its place: `stop[2]`, `stop_sequences[0]`.
    pub stop: Vec<Text<'a>>,
    pub format: Format<'a>,
    pub reasoning: Reasoning<'a>,
    /// Who is behind the request, in the caller's words; never sent as it is.
    pub end_user: Option<Text<'a>>,
    pub tier: Option<Text<'a>>,
    pub stream: bool,
    /// The caller wants usage at the end of a stream (chat asks, messages always gets it).
    pub include_usage: bool,
    /// Top-level members that only the surface's own protocol can say (or nobody knows), with their
    /// names.
    pub extra: Vec<Opaque<'a>>,
    /// Tools whose calls go back in another form than their name and arguments (responses), by the
    /// name in `tools`.
    pub own_tools: HashMap<String, OwnTool>,
    /// Members that the answer repeats (responses).
    pub echo: Vec<(&'static str, Value<'a>)>,
}

/// One message of the caller.
#[derive(Debug)]
pub struct Turn<'a> {
    pub side: Side,
    pub blocks: Vec<Block<'a>>,
    /// Of the message, or of the first item.
    pub at: At,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// What the model is told; tool results among it.
    User,
    Assistant,
    /// Instructions that came later than the first turn.
    System,
}

/// One piece of a turn.
#[derive(Debug)]
pub struct Block<'a> {
    pub at: At,
    pub cache: Option<Cache>,
    pub kind: BlockKind<'a>,
}

#[derive(Debug)]
pub enum BlockKind<'a> {
    Text(Text<'a>),
    /// What the model said instead of an answer (chat, assistant).
    Refusal(Text<'a>),
    Image(Image<'a>),
    File(File<'a>),
    /// Reasoning that its vendor wants back.
    Thinking(Thinking<'a>),
    Call(Call<'a>),
    Result(Outcome<'a>),
    Opaque(Opaque<'a>),
}

/// An image that the caller showed.
#[derive(Debug)]
pub struct Image<'a> {
    pub source: ImageSource<'a>,
    /// How closely to look, where the caller said so; the messages protocol has no word for it.
    pub detail: Option<Detail>,
}

/// How closely to look at an image, in the words of chat and responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    Auto,
    Low,
    High,
    /// As it is, however large: a word of responses alone.
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
    /// `data`: base64, checked to be such. `media_type`: `image/png`, …
    Base64 {
        media_type: Text<'a>,
        data: Text<'a>,
    },
    Url(Text<'a>),
}

impl ImageSource<'_> {
    /// As the one address that chat and responses take for both.
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

/// A document that the caller showed.
#[derive(Debug)]
pub struct File<'a> {
    pub title: Option<Text<'a>>,
    /// Messages: `context`.
    pub context: Option<Text<'a>>,
    pub content: FileContent<'a>,
    /// Messages: `citations.enabled` is true.
    pub wants_citations: bool,
}

#[derive(Debug)]
pub enum FileContent<'a> {
    /// Base64.
    Pdf(Text<'a>),
    Text(Text<'a>),
    /// Where the vendor may fetch it from: messages and responses.
    Url(Text<'a>),
    /// Messages: a document made of texts and images.
    Blocks(Vec<Block<'a>>),
}

/// Reasoning of an earlier answer.
#[derive(Debug)]
pub enum Thinking<'a> {
    /// `signature` of a messages vendor, or one of ours (`gw1.…`), or nothing.
    Shown {
        text: Text<'a>,
        signature: Option<Text<'a>>,
    },
    /// `redacted_thinking`.
    Hidden { data: Text<'a> },
}

/// A call that the model made.
#[derive(Debug)]
pub struct Call<'a> {
    /// As the caller gave it; `None` where it gave none.
    pub id: Option<Text<'a>>,
    pub name: Text<'a>,
    pub arguments: Arguments<'a>,
    pub is_custom: bool,
}

#[derive(Debug)]
pub enum Arguments<'a> {
    /// A JSON value (messages: `input`).
    Json(Value<'a>),
    /// JSON in a string (chat: `arguments`), which may be broken; of a custom tool its plain text.
    Text(Text<'a>),
}

/// What a tool gave back.
#[derive(Debug)]
pub struct Outcome<'a> {
    pub id: Option<Text<'a>>,
    /// Chat's `function` messages name the function, not the call.
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

/// A tool that may be called.
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
    /// Chat: free text in, `format` may bound it.
    Custom {
        name: Text<'a>,
        description: Option<Text<'a>>,
        format: Option<Value<'a>>,
    },
    /// A dated tool type of the messages protocol's vendor, with its `type`; run by the client or
    /// the vendor.
    Vendor {
        kind: Text<'a>,
        value: Value<'a>,
    },
}

#[derive(Debug)]
pub struct Function<'a> {
    pub name: Text<'a>,
    pub description: Option<Text<'a>>,
    /// An object schema; `None`: no parameters.
    pub schema: Option<Value<'a>>,
    pub strict: bool,
    /// Messages: `input_examples`.
    pub examples: Option<Value<'a>>,
}

/// Which tool must be called.
#[derive(Debug, Default)]
pub enum Choice<'a> {
    /// Not said.
    #[default]
    Absent,
    Auto,
    None,
    /// Any of them.
    Required,
    Tool(Text<'a>),
    /// Chat: only these may be called; one of them must be, or not.
    Allowed {
        names: Vec<Text<'a>>,
        required: bool,
    },
}

/// The output limit, by the name the caller used.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub field: &'static str,
    pub tokens: u64,
}

/// As written, checked to be numbers in the surface's own range.
#[derive(Debug, Default)]
pub struct Sampling<'a> {
    pub temperature: Option<Value<'a>>,
    pub top_p: Option<Value<'a>>,
    pub top_k: Option<Value<'a>>,
}

/// The form that an answer's text must have.
#[derive(Debug, Default)]
pub enum Format<'a> {
    #[default]
    Free,
    /// One JSON object.
    Json,
    Schema {
        schema: Value<'a>,
        description: Option<Text<'a>>,
        /// What the caller calls it (chat, responses).
        name: Option<Text<'a>>,
        /// Whether the vendor must keep to it, where the caller says so.
        strict: Option<bool>,
    },
}

/// How much the model is to think.
#[derive(Debug, Default)]
pub struct Reasoning<'a> {
    /// By level; a level that nobody knows was refused by the reader.
    pub effort: Option<Effort>,
    /// The member that said so, for warnings: `reasoning_effort`, `output_config.effort`,
    /// `reasoning.effort`.
    pub effort_field: &'static str,
    /// `thinking` of the messages protocol, as it stands; the chat surface takes it as an
    /// extension.
    pub thinking: Option<Value<'a>>,
    /// By tokens (chat's extension `reasoning.max_tokens`).
    pub budget_tokens: Option<u64>,
    /// Keep the reasoning's text out of the answer (chat's extension `reasoning.exclude`;
    /// responses, where no summary was asked for).
    pub hide: bool,
    /// The caller wrote the messages protocol's own members on the chat surface: copied, no further
    /// rules.
    pub is_verbatim: bool,
}

/// How hard to think, from least to most.
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

    /// This level if `allowed` has it, else the highest allowed below it, else the lowest allowed.
    /// `None`: nothing is allowed.
    pub fn nearest(self, allowed: &[Effort]) -> Option<Effort> {
        let below = allowed
            .iter()
            .copied()
            .filter(|effort| *effort <= self)
            .max();
        below.or_else(|| allowed.iter().copied().min())
    }
}

/// A cache breakpoint. Of the sender's marker only the lifetime is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// No lifetime was named.
    Usual,
    FiveMinutes,
    OneHour,
}

/// What only one protocol can say.
#[derive(Debug)]
pub struct Opaque<'a> {
    pub origin: Protocol,
    /// The member's name, or the block's `type`.
    pub name: Text<'a>,
    pub value: Value<'a>,
}

/// A place in the caller's JSON: warnings and `param` come from it.
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
    /// The message or item of that index.
    pub fn turn(surface: Protocol, index: usize) -> At {
        match surface {
            Protocol::Chat | Protocol::Messages => At::Message(index),
            Protocol::Responses => At::Item(index),
        }
    }

    /// Index of the message, item or tool that it belongs to.
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

/// A refusal of the request, before any vendor is called. Boxed: it is rare, and results are
/// returned by value.
pub type Refused = Box<Failure>;

/// What was changed on the way: tokens `action:path` for `x-gateway-warnings`.
#[derive(Debug, Default)]
pub struct Warnings(Vec<String>);

/// What happened to a member that could not be carried over as it was.
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
    /// Each token stands once.
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
        // A caller's member name may hold anything; in a header only visible ASCII may stand.
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

    /// The tokens, sorted.
    pub fn into_tokens(mut self) -> Vec<String> {
        self.0.sort_unstable();
        self.0
    }
}

/// More tokens than this are not kept: no header holds them.
const WARNINGS_MAX: usize = 256;
/// The longest token that is told whole.
const WARNING_LETTERS_MAX: usize = 128;
