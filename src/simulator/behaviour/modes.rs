//! The keys of a marker that select one of several modes, and the word for each mode.
//!
//! It must not know the wire form of a mode.

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

/// Whether and when the model refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refusal {
    #[default]
    No,
    /// Before any output.
    Instead,
    /// After the output.
    After,
}

pub const REFUSAL: [(&str, Refusal); 3] = [
    ("0", Refusal::No),
    ("1", Refusal::Instead),
    ("after", Refusal::After),
];

/// The field that holds the chat vendor's reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spelling {
    #[default]
    Content,
    Reasoning,
    Details,
    All,
}

pub const SPELLING: [(&str, Spelling); 4] = [
    ("reasoning_content", Spelling::Content),
    ("reasoning", Spelling::Reasoning),
    ("reasoning_details", Spelling::Details),
    ("all", Spelling::All),
];

/// The form of tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calls {
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

pub const CALLS: [(&str, Calls); 9] = [
    ("usual", Calls::Usual),
    ("interleaved", Calls::Interleaved),
    ("zero", Calls::Zero),
    ("noid", Calls::NoId),
    ("noindex", Calls::NoIndex),
    ("whole", Calls::Whole),
    ("repeat", Calls::Repeat),
    ("double", Calls::Double),
    ("legacy", Calls::Legacy),
];

/// A malformed answer of the chat vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Content as an array of parts.
    Array,
    NoChoices,
    /// Error object with status 200.
    Error,
}

pub const SHAPE: [(&str, Shape); 3] = [
    ("array", Shape::Array),
    ("nochoices", Shape::NoChoices),
    ("error", Shape::Error),
];

/// Keep-alive before every event of a stream; it does not count as an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    Comment,
    Data,
    Ping,
    Blank,
}

pub const KEEP_ALIVE: [(&str, KeepAlive); 4] = [
    ("comment", KeepAlive::Comment),
    ("data", KeepAlive::Data),
    ("ping", KeepAlive::Ping),
    ("blank", KeepAlive::Blank),
];

/// The events in which the responses vendor's stream shows its items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Items {
    /// Start event, pieces, end event, and all items in the terminal event.
    #[default]
    Usual,
    /// Start and end events, but no pieces.
    Whole,
    /// End events only.
    Done,
    /// The terminal event only.
    Last,
    /// The usual events, but no items in the terminal event.
    Unlisted,
}

pub const ITEMS: [(&str, Items); 5] = [
    ("usual", Items::Usual),
    ("whole", Items::Whole),
    ("done", Items::Done),
    ("last", Items::Last),
    ("unlisted", Items::Unlisted),
];

/// The form of a failure in the responses vendor's stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorForm {
    /// `error` event with its members at the top level.
    #[default]
    Flat,
    /// `error` event with a nested object.
    Nested,
    /// `response.failed`.
    Failed,
    /// `error` event, then `response.failed`.
    Both,
}

pub const ERROR_FORM: [(&str, ErrorForm); 4] = [
    ("flat", ErrorForm::Flat),
    ("nested", ErrorForm::Nested),
    ("failed", ErrorForm::Failed),
    ("both", ErrorForm::Both),
];
