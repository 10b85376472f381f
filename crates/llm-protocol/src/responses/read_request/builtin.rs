//! Defines the built-in tools that clients of this protocol run themselves. Models of the protocol
//! know such a tool by its type, and other models get a function that this file defines.
//!
//! This file must not include a tool that the vendor would run: a translated request has no such
//! vendor.
//!
//! Read next: `read_request/tools.rs`.

use crate::ir::event::ToolCallKind;
use crate::json::{JsonDocument, JsonValue, MAX_DEPTH, NodeBuffer};
use std::sync::LazyLock;

/// A function that replaces a built-in tool.
pub(super) struct Builtin {
    pub name: &'static str,
    pub kind: ToolCallKind,
    pub description: &'static str,
    schema: LazyLock<Option<JsonDocument<'static>>>,
}

impl Builtin {
    pub fn schema(&'static self) -> Option<JsonValue<'static>> {
        self.schema.as_ref().map(JsonDocument::root)
    }
}

fn parse_schema(json: &'static str) -> Option<JsonDocument<'static>> {
    JsonDocument::parse(json, MAX_DEPTH, NodeBuffer::new()).ok()
}

static BUILTINS: [Builtin; 3] = [
    Builtin {
        name: "local_shell",
        kind: ToolCallKind::LocalShell,
        description: "Runs a command on the user's machine and returns its output.",
        schema: LazyLock::new(|| {
            parse_schema(
                r#"{"type":"object","properties":{"command":{"type":"array","items":{"type":"string"},"description":"The command and its arguments."},"working_directory":{"type":"string"},"timeout_ms":{"type":"integer"},"env":{"type":"object","additionalProperties":{"type":"string"}}},"required":["command"]}"#,
            )
        }),
    },
    Builtin {
        name: "shell",
        kind: ToolCallKind::Shell,
        description: "Runs shell commands on the user's machine and returns their output.",
        schema: LazyLock::new(|| {
            parse_schema(
                r#"{"type":"object","properties":{"commands":{"type":"array","items":{"type":"string"}},"timeout_ms":{"type":"integer"},"max_output_length":{"type":"integer"}},"required":["commands"]}"#,
            )
        }),
    },
    Builtin {
        name: "apply_patch",
        kind: ToolCallKind::ApplyPatch,
        description: "Creates, changes or deletes one file. `diff` is a V4A diff; it is left out to delete a file.",
        schema: LazyLock::new(|| {
            parse_schema(
                r#"{"type":"object","properties":{"type":{"type":"string","enum":["create_file","update_file","delete_file"]},"path":{"type":"string"},"diff":{"type":"string"}},"required":["type","path"]}"#,
            )
        }),
    },
];

pub(super) fn find(kind: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|builtin| builtin.name == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_can_be_read() {
        for builtin in &BUILTINS {
            assert!(
                builtin.schema().is_some_and(JsonValue::is_object),
                "{}",
                builtin.name
            );
        }
        assert!(find("web_search").is_none());
    }
}
