//! Encodes the items of an answer as JSON.
//!
//! It must not omit the `status` of a call: clients that validate their input refuse the item
//! without it.

use crate::protocol::form::answer::{CallKind, OwnTool};
use crate::protocol::text::{Json, Text};
use crate::protocol::translate::ANSWER_DEPTH_MAX;
use crate::protocol::tree::{Nodes, Tree, Value};

/// Web source of a range of text, in code points of its part.
#[derive(Debug)]
pub(super) struct Source {
    pub start: u64,
    pub end: u64,
    pub title: String,
    pub url: String,
}

impl Source {
    pub fn write(&self, json: &mut Json) {
        json.open_object().key("type").str("url_citation");
        json.key("start_index")
            .number(self.start)
            .key("end_index")
            .number(self.end);
        json.key("title")
            .str(&self.title)
            .key("url")
            .str(&self.url)
            .close_object();
    }
}

/// Writes a text part.
pub(super) fn write_text_part(text: &Text<'_>, sources: &[Source], json: &mut Json) {
    json.open_object()
        .key("type")
        .str("output_text")
        .key("text")
        .text(text)
        .key("annotations")
        .open_array();
    sources.iter().for_each(|source| source.write(json));
    json.close_array()
        .key("logprobs")
        .open_array()
        .close_array()
        .close_object();
}

/// Writes a refusal part.
pub(super) fn write_refusal_part(text: &Text<'_>, json: &mut Json) {
    json.open_object()
        .key("type")
        .str("refusal")
        .key("refusal")
        .text(text)
        .close_object();
}

/// Writes a message. `part` writes its only part, if there is one.
pub(super) fn write_message(
    id: &str,
    status: &str,
    part: Option<&dyn Fn(&mut Json)>,
    json: &mut Json,
) {
    json.open_object()
        .key("id")
        .str(id)
        .key("type")
        .str("message")
        .key("status")
        .str(status);
    json.key("role")
        .str("assistant")
        .key("content")
        .open_array();
    if let Some(part) = part {
        part(json);
    }
    json.close_array().close_object();
}

/// Writes a reasoning item. `summary` is its text, if the answer shows it.
pub(super) fn write_reasoning(
    id: &str,
    summary: Option<&Text<'_>>,
    carrier: Option<&str>,
    json: &mut Json,
) {
    json.open_object()
        .key("id")
        .str(id)
        .key("type")
        .str("reasoning")
        .key("summary")
        .open_array();
    if let Some(text) = summary {
        json.open_object()
            .key("type")
            .str("summary_text")
            .key("text")
            .text(text)
            .close_object();
    }
    json.close_array();
    if let Some(carrier) = carrier {
        json.key("encrypted_content").str(carrier);
    }
    json.close_object();
}

/// Writes a web search that the vendor ran.
pub(super) fn write_search((id, status): (&str, &str), query: &Text<'_>, json: &mut Json) {
    json.open_object()
        .key("id")
        .str(id)
        .key("type")
        .str("web_search_call")
        .key("status")
        .str(status);
    json.key("action")
        .open_object()
        .key("type")
        .str("search")
        .key("query")
        .text(query);
    json.key("queries").open_array().text(query).close_array();
    json.close_object().close_object();
}

/// Returns the type and the id prefix of an item for a call of this kind.
pub(super) fn words(kind: CallKind) -> (&'static str, &'static str) {
    match kind {
        CallKind::Function => ("function_call", "fc"),
        CallKind::Custom => ("custom_tool_call", "ctc"),
        CallKind::ToolSearch => ("tool_search_call", "tsc"),
        CallKind::LocalShell => ("local_shell_call", "lsc"),
        CallKind::Shell => ("shell_call", "shc"),
        CallKind::ApplyPatch => ("apply_patch_call", "apc"),
    }
}

/// Writes a call. `input` is the text of its arguments, or of a custom tool's input.
pub(super) fn write_call(
    (id, call_id, status): (&str, &str, &str),
    tool: &OwnTool,
    input: &Text<'_>,
    json: &mut Json,
) {
    let (kind, _) = words(tool.kind);
    json.open_object()
        .key("id")
        .str(id)
        .key("type")
        .str(kind)
        .key("status")
        .str(status);
    json.key("call_id").str(call_id);
    match tool.kind {
        CallKind::Function | CallKind::Custom => {
            json.key("name").str(&tool.name);
            if let Some(namespace) = &tool.namespace {
                json.key("namespace").str(namespace);
            }
            json.key(if tool.kind == CallKind::Custom {
                "input"
            } else {
                "arguments"
            })
            .text(input);
        }
        CallKind::ToolSearch => {
            json.key("execution")
                .str("client")
                .key("arguments")
                .compact(&input.value());
        }
        CallKind::LocalShell => {
            // Clients require both members, even if the model omitted them.
            let value = input.value();
            json.key("action").open_object().key("type").str("exec");
            with_members(&value, |arguments| {
                let has_env = arguments.get("env").is_some();
                for (name, value) in arguments
                    .members()
                    .filter(|(name, value)| !name.is("type") && !value.is_null())
                {
                    json.key_text(&name).compact(value.raw());
                }
                if !has_env {
                    json.key("env").open_object().close_object();
                }
            });
            json.close_object();
        }
        CallKind::Shell => drop(json.key("action").compact(&input.value())),
        CallKind::ApplyPatch => drop(json.key("operation").compact(&input.value())),
    }
    json.close_object();
}

fn with_members(json: &str, read: impl FnOnce(Value<'_>)) {
    if let Ok(tree) = Tree::read(json, ANSWER_DEPTH_MAX, Nodes::new()) {
        read(tree.root());
    }
}

/// Returns whether the client can run the arguments without checking them. Other arguments go back
/// as a plain function call, so that the tool reports the error instead of running something else.
pub(super) fn fits(kind: CallKind, arguments: &str) -> bool {
    let mut fits = false;
    let texts = |value: Option<Value<'_>>| {
        value.is_some_and(|list| list.is_array() && list.items().all(Value::is_string))
    };
    with_members(arguments, |value| {
        fits = value.is_object()
            && match kind {
                CallKind::Function | CallKind::Custom | CallKind::ToolSearch => true,
                CallKind::LocalShell => texts(value.get("command")),
                CallKind::Shell => texts(value.get("commands")),
                CallKind::ApplyPatch => {
                    let text = |name| value.get(name).is_some_and(Value::is_string);
                    let wants_diff = match value.get("type") {
                        Some(kind) if kind.is("create_file") || kind.is("update_file") => true,
                        Some(kind) if kind.is("delete_file") => false,
                        _ => return,
                    };
                    text("path") && (!wants_diff || text("diff"))
                }
            };
    });
    fits
}

/// Returns whether the arguments are one JSON value.
pub(super) fn is_json(arguments: &str) -> bool {
    Tree::read(arguments, ANSWER_DEPTH_MAX, Nodes::new()).is_ok()
}

/// Returns the custom tool input inside `{"input": "…"}`, the form that a vendor uses that knows
/// only functions. If the arguments are not an object with exactly that member, returns them
/// unchanged.
pub(super) fn unwrapped(arguments: &Text<'_>) -> String {
    let value = arguments.value();
    let mut inside = None;
    with_members(&value, |object| {
        let mut members = object.members();
        if let (Some((name, input)), None) = (members.next(), members.next())
            && name.is("input")
        {
            inside = input.string().map(std::borrow::Cow::into_owned);
        }
    });
    inside.unwrap_or_else(|| value.into_owned())
}
