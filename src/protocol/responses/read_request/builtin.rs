//! Tools that this protocol's clients run themselves and its models know by their type: what they
//! are called with where a model does not know them.
//!
//! It must not take one that the vendor would run: there is no such vendor behind a translation.
//!
//! Read next: `read_request/tools.rs`.

use crate::protocol::form::answer::CallKind;
use crate::protocol::request::DEPTH_MAX;
use crate::protocol::tree::{Nodes, Tree, Value};
use std::sync::LazyLock;

/// A tool by its type.
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
