//! An answer as a list of events: what every vendor's answer, streamed or whole, is read into, and
//! what every surface's answer is written from. A whole answer is the same list, folded.
//!
//! It must not hold anything past the event: a reader lends, a writer writes at once or keeps its
//! own copy.
//!
//! Read next: `messages/read_stream.rs` and `chat/write_stream.rs`, or the other way round.

pub use crate::protocol::answer::Fault;
use crate::protocol::responses::Voice;
use crate::protocol::rules::ReasoningReplay;
use crate::protocol::text::Text;
use crate::usage::{Usage, UsageBounds, UsageEstimator, VendorCounters};
use std::collections::HashMap;

/// One thing that happened. Slots are the reader's own numbers, one per piece of the answer, never
/// used again.
///
/// A reader gives `Start` first and once, then any number of pieces, and `End` last and once, only
/// if the answer was whole. Pieces may overlap (chat's parallel calls do): a writer whose client
/// cannot bear that holds the later ones back. Text or thinking that goes on after something else
/// began is a new slot. A slot need not be closed.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "an event is handed on and never kept"
)]
pub enum Event<'e> {
    Start(Start<'e>),
    /// A piece begins.
    Open {
        slot: u32,
        piece: Piece<'e>,
    },
    /// More of a text, of thinking, of a call's arguments. Never empty.
    Delta {
        slot: u32,
        text: Text<'e>,
    },
    /// The signature of the thinking in `slot`; the last one counts.
    Signature {
        slot: u32,
        signature: Text<'e>,
    },
    /// A web source of the text in `slot`.
    Citation {
        slot: u32,
        title: Option<Text<'e>>,
        url: Text<'e>,
    },
    /// The piece is whole.
    Close {
        slot: u32,
    },
    /// Why it ended; given before `End`. May be given again: the last one counts.
    Stop(Stop<'e>),
    /// The vendor's counters so far, from a reader; the last ones count. `is_final`: the output is
    /// the vendor's last word and no placeholder.
    Counters {
        counters: &'e VendorCounters,
        is_final: bool,
    },
    /// What the counters mean, for a writer: the usage that is billed. The last one counts.
    Usage {
        usage: Usage,
        is_final: bool,
    },
    /// The answer is whole.
    End,
}

/// Takes events as they are read. The writers are sinks; so is whatever counts.
pub trait Sink {
    fn event(&mut self, event: Event<'_>);
}

#[derive(Debug, Default)]
pub struct Start<'e> {
    pub id: Option<Text<'e>>,
    /// The service tier, in the vendor's word.
    pub tier: Option<Text<'e>>,
}

/// What a slot holds.
#[derive(Debug)]
pub enum Piece<'e> {
    Text,
    /// What the model said instead of an answer. Its deltas are text.
    Refusal,
    Thinking,
    /// Encrypted reasoning; `data` is all of it.
    Hidden {
        data: Text<'e>,
    },
    /// Its deltas are pieces of the arguments: of a JSON text, or of a custom tool's plain text.
    /// Without any delta the arguments are empty.
    Call {
        id: Option<Text<'e>>,
        name: Text<'e>,
        is_custom: bool,
    },
    /// A web search that the vendor ran, whole.
    Search {
        query: Text<'e>,
    },
    /// Something that the surface has no place for, said by its type: a vendor's own search, a
    /// summary. Its deltas were left out.
    Foreign {
        kind: Text<'e>,
    },
}

/// Why an answer ended, in the strictest protocol's words.
#[derive(Clone, Debug)]
pub enum Stop<'e> {
    EndTurn,
    StopSequence,
    ToolUse,
    MaxTokens,
    ContextFull,
    /// `explanation`: the vendor's words.
    Refusal {
        explanation: Option<Text<'e>>,
    },
    /// Nothing, or a word that nobody knows.
    Unknown,
}

/// What the translation of the answer must remember of the request, and is told from outside. No
/// clock, no chance.
#[derive(Clone, Debug, Default)]
pub struct Recall {
    /// The model id that the caller used.
    pub public_model: String,
    /// Seconds since 1970, when the answer began.
    pub created: u64,
    /// Where ids come from that the vendor did not give; the request's own id.
    pub seed: String,
    /// Alias sent to the vendor → the caller's own name of the tool.
    pub tool_names: HashMap<String, String>,
    /// The caller's own names of its custom tools (chat): their calls go back as custom calls.
    pub custom_tools: Vec<String>,
    /// Calls go back as `function_call` (chat).
    pub legacy_functions: bool,
    /// Usage at the end of a stream (chat).
    pub include_usage: bool,
    /// A JSON object was asked for by words only: one code fence around a whole text is taken off.
    pub unwrap_fence: bool,
    /// The caller set a tier, so the answer names one (chat).
    pub tell_tier: bool,
    /// Reasoning is shown (messages).
    pub show_thinking: bool,
    /// Tokens that the answer could have at most; 0 where the caller did not say.
    pub output_limit: u64,
    /// Input tokens as estimated beforehand, for the places where a number must stand before the
    /// vendor told one.
    pub input_estimate: u64,
    /// For the usage of a vendor that reports none, or not all.
    pub estimator: UsageEstimator,
    /// The most that the request can use.
    pub usage_bounds: UsageBounds,
    /// How calls go back whose tools are more than a function (responses), by the caller's name in
    /// one piece: see [`Recall::own_name`].
    pub own_tools: HashMap<String, OwnTool>,
    /// What a chat vendor wants back of its reasoning (responses).
    pub reasoning_replay: ReasoningReplay,
    /// How a stream numbers its events (responses).
    pub voice: Option<Voice>,
}

/// A tool as the caller has it, where it is more than a function of that name (responses).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnTool {
    pub namespace: Option<String>,
    pub name: String,
    pub kind: CallKind,
}

/// What a call is called on the responses surface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallKind {
    Function,
    Custom,
    ToolSearch,
    LocalShell,
    Shell,
    ApplyPatch,
}

impl Recall {
    /// The caller's name of a tool, from the name that the vendor was given.
    pub fn own_name<'n>(&'n self, name: &'n str) -> &'n str {
        self.tool_names.get(name).map_or(name, String::as_str)
    }
}
