//! Defines the marker keys that select one of several modes, and the word for each mode.
//!
//! This file must not define the wire form of a mode.

/// Position and correctness of the usage report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageMode {
    #[default]
    Normal,
    None,
    Zero,
    Twice,
    Every,
    Finish,
    Negative,
    Huge,
    Nan,
    Before,
    Late,
    Early,
    Start,
    NoSplit,
}

pub const USAGE: [(&str, UsageMode); 14] = [
    ("normal", UsageMode::Normal),
    ("none", UsageMode::None),
    ("zero", UsageMode::Zero),
    ("twice", UsageMode::Twice),
    ("every", UsageMode::Every),
    ("finish", UsageMode::Finish),
    ("negative", UsageMode::Negative),
    ("huge", UsageMode::Huge),
    ("nan", UsageMode::Nan),
    ("before", UsageMode::Before),
    ("late", UsageMode::Late),
    ("early", UsageMode::Early),
    ("start", UsageMode::Start),
    ("nosplit", UsageMode::NoSplit),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorBody {
    #[default]
    Json,
    Html,
    Empty,
    Leak,
    Quota,
    Context,
    Policy,
}

pub const ERROR_BODY: [(&str, ErrorBody); 7] = [
    ("json", ErrorBody::Json),
    ("html", ErrorBody::Html),
    ("empty", ErrorBody::Empty),
    ("leak", ErrorBody::Leak),
    ("quota", ErrorBody::Quota),
    ("context", ErrorBody::Context),
    ("policy", ErrorBody::Policy),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbage {
    Json,
    Sse,
    Chunk,
    Headers,
    Length,
}

pub const GARBAGE: [(&str, Garbage); 5] = [
    ("json", Garbage::Json),
    ("sse", Garbage::Sse),
    ("chunk", Garbage::Chunk),
    ("headers", Garbage::Headers),
    ("length", Garbage::Length),
];

/// Time at which the model refuses, if it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusalMode {
    #[default]
    No,
    /// The model refuses before any output.
    Instead,
    /// The model refuses after the output.
    After,
}

pub const REFUSAL: [(&str, RefusalMode); 3] = [
    ("0", RefusalMode::No),
    ("1", RefusalMode::Instead),
    ("after", RefusalMode::After),
];

/// The field that holds the chat vendor's reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningFieldMode {
    #[default]
    Content,
    Reasoning,
    Details,
    All,
}

pub const SPELLING: [(&str, ReasoningFieldMode); 4] = [
    ("reasoning_content", ReasoningFieldMode::Content),
    ("reasoning", ReasoningFieldMode::Reasoning),
    ("reasoning_details", ReasoningFieldMode::Details),
    ("all", ReasoningFieldMode::All),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolCallMode {
    #[default]
    Usual,
    Interleaved,
    Zero,
    NoId,
    NoIndex,
    Whole,
    Repeat,
    Double,
    Legacy,
}

pub const CALLS: [(&str, ToolCallMode); 9] = [
    ("usual", ToolCallMode::Usual),
    ("interleaved", ToolCallMode::Interleaved),
    ("zero", ToolCallMode::Zero),
    ("noid", ToolCallMode::NoId),
    ("noindex", ToolCallMode::NoIndex),
    ("whole", ToolCallMode::Whole),
    ("repeat", ToolCallMode::Repeat),
    ("double", ToolCallMode::Double),
    ("legacy", ToolCallMode::Legacy),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedShape {
    /// The content is an array of parts.
    Array,
    NoChoices,
    /// The answer is an error object with status 200.
    Error,
}

pub const SHAPE: [(&str, MalformedShape); 3] = [
    ("array", MalformedShape::Array),
    ("nochoices", MalformedShape::NoChoices),
    ("error", MalformedShape::Error),
];

/// A keep-alive before every event of a stream, which does not count as an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAliveMode {
    Comment,
    Data,
    Ping,
    Blank,
}

pub const KEEP_ALIVE: [(&str, KeepAliveMode); 4] = [
    ("comment", KeepAliveMode::Comment),
    ("data", KeepAliveMode::Data),
    ("ping", KeepAliveMode::Ping),
    ("blank", KeepAliveMode::Blank),
];

/// The events in which the responses vendor's stream sends its items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ItemMode {
    /// Items have a start event, pieces and an end event, and the terminal event repeats all items.
    #[default]
    Usual,
    /// Items have start and end events, but no pieces.
    Whole,
    /// Items have end events only.
    Done,
    /// Items are in the terminal event only.
    Last,
    /// Items have the usual events, but the terminal event omits them.
    Unlisted,
}

pub const ITEMS: [(&str, ItemMode); 5] = [
    ("usual", ItemMode::Usual),
    ("whole", ItemMode::Whole),
    ("done", ItemMode::Done),
    ("last", ItemMode::Last),
    ("unlisted", ItemMode::Unlisted),
];

/// The form of a failure in the responses vendor's stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorForm {
    /// The failure is an `error` event with its members at the top level.
    #[default]
    Flat,
    /// The failure is an `error` event with a nested object.
    Nested,
    /// The failure is a `response.failed` event.
    Failed,
    /// The failure is an `error` event, followed by `response.failed`.
    Both,
}

pub const ERROR_FORM: [(&str, ErrorForm); 4] = [
    ("flat", ErrorForm::Flat),
    ("nested", ErrorForm::Nested),
    ("failed", ErrorForm::Failed),
    ("both", ErrorForm::Both),
];
