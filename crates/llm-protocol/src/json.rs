//! Reads and writes JSON, with bounds on the depth and the number of values.
//!
//! This module must not depend on a protocol.
//!
//! Read next: `json/scanner.rs` (one pass without memory), `json/document.rs` (a tree over the
//! text), `json/string.rs`, `json/writer.rs`, `json/edit.rs`.

pub mod document;
pub(crate) mod edit;
pub(crate) mod nesting;
pub(crate) mod scanner;
pub(crate) mod separators;
pub mod string;
mod writer;

pub use document::{JsonDocument, JsonValue, NodeBuffer};
pub(crate) use nesting::{MAX_DEPTH, MAX_RESPONSE_DEPTH};
pub(crate) use scanner::{
    JsonError, JsonKind, JsonScanner, MAX_COUNT, ScanResult, Span, StringToken,
};
pub use string::{JsonStr, JsonStrBuf};
pub(crate) use writer::{CompactJson, JoinedText, JsonNull, RawJson, compacted};
pub use writer::{JsonWriter, WriteJson};
