//! A tool of the responses surface by the caller's own name, for the answer's calls of it.
//!
//! This file must not know the request or the answer: `ir.rs` and `ir/response_context.rs` hold it.
//!
//! Read next: `ir/response_context.rs`.

/// A tool in the caller's own terms, if it is more than a function of that name (responses).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientTool {
    pub namespace: Option<String>,
    pub name: String,
    pub kind: ToolCallKind,
}

/// The item type of a call on the responses surface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToolCallKind {
    Function,
    Custom,
    ToolSearch,
    LocalShell,
    Shell,
    ApplyPatch,
}
