//! Tools that clients of this protocol run themselves and that its models know by their type. This
//! file defines the function that replaces such a tool for a model that does not know it.
//!
//! It must not include a tool that the vendor would run: a translated request has no such vendor.
//!
//! Read next: `read_request/tools.rs`.

use crate::protocol::form::answer::CallKind;
use crate::protocol::request::DEPTH_MAX;
use crate::protocol::tree::{Nodes, Tree, Value};
use std::sync::LazyLock;

/// Function that replaces a built-in tool.
pub(super) struct Builtin {
    pub name: &'static str,
    pub kind: CallKind,
    pub description: &'static str,
    schema: LazyLock<Option<Tree<'static>>>,
}

impl Builtin {
    pub fn schema(&'static self) -> Option<Value<'static>> {
        self.schema.as_ref().map(Tree::root)
    }
}

fn tree(json: &'static str) -> Option<Tree<'static>> {
    Tree::read(json, DEPTH_MAX, Nodes::new()).ok()
}

static BUILTINS: [Builtin; 3] = [
    Builtin {
        name: "local_shell",
        kind: CallKind::LocalShell,
        description: "Runs a command on the user's machine and returns its output.",
        schema: LazyLock::new(|| {
            tree(
                r#"{"type":"object","properties":{"command":{"type":"array","items":{"type":"string"},"description":"The command and its arguments."},"working_directory":{"type":"string"},"timeout_ms":{"type":"integer"},"env":{"type":"object","additionalProperties":{"type":"string"}}},"required":["command"]}"#,
            )
        }),
    },
    Builtin {
        name: "shell",
        kind: CallKind::Shell,
        description: "Runs shell commands on the user's machine and returns their output.",
        schema: LazyLock::new(|| {
            tree(
                r#"{"type":"object","properties":{"commands":{"type":"array","items":{"type":"string"}},"timeout_ms":{"type":"integer"},"max_output_length":{"type":"integer"}},"required":["commands"]}"#,
            )
        }),
    },
    Builtin {
        name: "apply_patch",
        kind: CallKind::ApplyPatch,
        description: "Creates, changes or deletes one file. `diff` is a V4A diff; it is left out to delete a file.",
        schema: LazyLock::new(|| {
            tree(
                r#"{"type":"object","properties":{"type":{"type":"string","enum":["create_file","update_file","delete_file"]},"path":{"type":"string"},"diff":{"type":"string"}},"required":["type","path"]}"#,
            )
        }),
    },
];

pub(super) fn of(kind: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|builtin| builtin.name == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_can_be_read() {
        for builtin in &BUILTINS {
            assert!(
                builtin.schema().is_some_and(Value::is_object),
                "{}",
                builtin.name
            );
        }
        assert!(of("web_search").is_none());
    }
}
