//! Represents a tool of the responses surface with the client's own name, which calls in the answer
//! repeat.
//!
//! This file must not depend on the request or the answer. `ir.rs` and `ir/response_context.rs`
//! hold such tools.
//!
//! Read next: `ir/response_context.rs`.

/// A tool in the client's own terms, if it is more than a plain function (responses).
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
