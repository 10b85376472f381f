//! The keys of a marker that choose one of several ways, and the word for each way.
//!
//! It must not know what a way means on the wire.

/// Where usage is reported, and whether it is true.
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

/// Whether the model refuses, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refusal {
    #[default]
    No,
    /// Before it has said anything.
    Instead,
    /// After its output.
    After,
}

pub const REFUSAL: [(&str, Refusal); 3] = [
    ("0", Refusal::No),
    ("1", Refusal::Instead),
    ("after", Refusal::After),
];

/// Where the chat vendor's reasoning stands.
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

/// How calls of tools are written.
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

/// An answer of the chat vendor that is not shaped as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The content is an array of parts.
    Array,
    NoChoices,
    /// An error object with status 200.
    Error,
}

pub const SHAPE: [(&str, Shape); 3] = [
    ("array", Shape::Array),
    ("nochoices", Shape::NoChoices),
    ("error", Shape::Error),
];

/// What stands before every event of a stream, and is none itself.
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

/// Where the responses vendor's stream shows its items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Items {
    /// Begun, piece by piece, ended, and all of them in the terminal event.
    #[default]
    Usual,
    /// Begun and ended, but without pieces.
    Whole,
    /// Only ended, in no event before.
    Done,
    /// In the terminal event only.
    Last,
    /// As usual, but the terminal event lists none.
    Unlisted,
}

pub const ITEMS: [(&str, Items); 5] = [
    ("usual", Items::Usual),
    ("whole", Items::Whole),
    ("done", Items::Done),
    ("last", Items::Last),
    ("unlisted", Items::Unlisted),
];

/// How the responses vendor's stream says that it failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorForm {
    /// An `error` event with its members at the top.
    #[default]
    Flat,
    /// An `error` event with an object in it.
    Nested,
    /// `response.failed`.
    Failed,
    /// An `error` event, then `response.failed`.
    Both,
}

pub const ERROR_FORM: [(&str, ErrorForm); 4] = [
    ("flat", ErrorForm::Flat),
    ("nested", ErrorForm::Nested),
    ("failed", ErrorForm::Failed),
    ("both", ErrorForm::Both),
];
