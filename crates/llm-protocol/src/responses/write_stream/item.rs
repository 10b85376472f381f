//! Encodes the items of an answer as JSON.
//!
//! This file must not omit the `status` of a call: clients that validate their input refuse the
//! item without it.

use crate::ir::event::{ClientTool, ToolCallKind};
use crate::json::{
    CompactJson, JsonDocument, JsonStr, JsonValue, JsonWriter, MAX_RESPONSE_DEPTH, NodeBuffer,
};

/// Web source of a range of text, in code points of its part.
#[derive(Debug)]
pub(super) struct ResponsesCitation {
    pub start: u64,
    pub end: u64,
    pub title: String,
    pub url: String,
}

impl ResponsesCitation {
    pub fn write(&self, json: &mut JsonWriter) {
        json.open_typed("url_citation");
        json.member("start_index", self.start)
            .member("end_index", self.end);
        json.member("title", &self.title)
            .member("url", &self.url)
            .close_object();
    }
}

pub(super) fn write_text_part(
    text: &JsonStr<'_>,
    sources: &[ResponsesCitation],
    json: &mut JsonWriter,
) {
    json.open_typed("output_text")
        .member("text", text)
        .member_array("annotations");
    sources.iter().for_each(|source| source.write(json));
    json.close_array()
        .member_array("logprobs")
        .close_array()
        .close_object();
}

pub(super) fn write_refusal_part(text: &JsonStr<'_>, json: &mut JsonWriter) {
    json.open_typed("refusal")
        .member("refusal", text)
        .close_object();
}

/// Writes a message. `part` writes its part, if it has one.
pub(super) fn write_message(
    id: &str,
    status: &str,
    part: Option<&dyn Fn(&mut JsonWriter)>,
    json: &mut JsonWriter,
) {
    json.open_object()
        .member("id", id)
        .member("type", "message")
        .member("status", status);
    json.member("role", "assistant").member_array("content");
    if let Some(part) = part {
        part(json);
    }
    json.close_array().close_object();
}

/// Writes a reasoning item. `summary` is its text, if the answer shows it.
pub(super) fn write_reasoning(
    id: &str,
    summary: Option<&JsonStr<'_>>,
    carrier: Option<&str>,
    json: &mut JsonWriter,
) {
    json.open_object()
        .member("id", id)
        .member("type", "reasoning")
        .member_array("summary");
    if let Some(text) = summary {
        json.open_typed("summary_text")
            .member("text", text)
            .close_object();
    }
    json.close_array();
    json.member_if_some("encrypted_content", carrier);
    json.close_object();
}

/// Writes a web search that the vendor ran.
pub(super) fn write_search((id, status): (&str, &str), query: &JsonStr<'_>, json: &mut JsonWriter) {
    json.open_object()
        .member("id", id)
        .member("type", "web_search_call")
        .member("status", status);
    json.member_typed("action", "search").member("query", query);
    json.member_array("queries").value(query).close_array();
    json.close_object().close_object();
}

/// Returns the type and the id prefix of an item for a call of this kind.
pub(super) fn type_and_prefix(kind: ToolCallKind) -> (&'static str, &'static str) {
    match kind {
        ToolCallKind::Function => ("function_call", "fc"),
        ToolCallKind::Custom => ("custom_tool_call", "ctc"),
        ToolCallKind::ToolSearch => ("tool_search_call", "tsc"),
        ToolCallKind::LocalShell => ("local_shell_call", "lsc"),
        ToolCallKind::Shell => ("shell_call", "shc"),
        ToolCallKind::ApplyPatch => ("apply_patch_call", "apc"),
    }
}

/// Writes a call. `input` is the text of its arguments, or of a custom tool's input.
pub(super) fn write_call(
    (id, call_id, status): (&str, &str, &str),
    tool: &ClientTool,
    input: &JsonStr<'_>,
    json: &mut JsonWriter,
) {
    let (kind, _) = type_and_prefix(tool.kind);
    json.open_object()
        .member("id", id)
        .member("type", kind)
        .member("status", status);
    json.member("call_id", call_id);
    match tool.kind {
        ToolCallKind::Function | ToolCallKind::Custom => {
            json.member("name", &tool.name);
            json.member_if_some("namespace", tool.namespace.as_ref());
            json.member(
                if tool.kind == ToolCallKind::Custom {
                    "input"
                } else {
                    "arguments"
                },
                input,
            );
        }
        ToolCallKind::ToolSearch => {
            json.member("execution", "client")
                .member("arguments", CompactJson(&input.value()));
        }
        ToolCallKind::LocalShell => {
            // Clients require both members, even if the model omitted them.
            let value = input.value();
            json.member_typed("action", "exec");
            with_object(&value, |arguments| {
                let has_env = arguments.get("env").is_some();
                let members = arguments.members();
                json.copy_members(
                    members.filter(|(name, value)| !name.is("type") && !value.is_null()),
                );
                if !has_env {
                    json.member_object("env").close_object();
                }
            });
            json.close_object();
        }
        ToolCallKind::Shell => drop(json.member("action", CompactJson(&input.value()))),
        ToolCallKind::ApplyPatch => drop(json.member("operation", CompactJson(&input.value()))),
    }
    json.close_object();
}

fn with_object(json: &str, read: impl FnOnce(JsonValue<'_>)) {
    if let Ok(tree) = JsonDocument::parse(json, MAX_RESPONSE_DEPTH, NodeBuffer::new()) {
        read(tree.root());
    }
}

/// Returns whether the client can run the arguments without checking them. Other arguments are
/// returned as a plain function call, so that the tool reports the error instead of running a
/// different command.
pub(super) fn is_runnable(kind: ToolCallKind, arguments: &str) -> bool {
    let mut fits = false;
    let texts = |value: Option<JsonValue<'_>>| {
        value.is_some_and(|list| list.is_array() && list.items().all(JsonValue::is_string))
    };
    with_object(arguments, |value| {
        fits = value.is_object()
            && match kind {
                ToolCallKind::Function | ToolCallKind::Custom | ToolCallKind::ToolSearch => true,
                ToolCallKind::LocalShell => texts(value.get("command")),
                ToolCallKind::Shell => texts(value.get("commands")),
                ToolCallKind::ApplyPatch => {
                    let text = |name| value.get(name).is_some_and(JsonValue::is_string);
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

pub(super) fn is_json(arguments: &str) -> bool {
    JsonDocument::parse(arguments, MAX_RESPONSE_DEPTH, NodeBuffer::new()).is_ok()
}

/// Returns the custom tool input inside `{"input": "…"}`, the form of a vendor that supports
/// functions only. Other arguments are returned unchanged.
pub(super) fn unwrap_custom_input(arguments: &JsonStr<'_>) -> String {
    let value = arguments.value();
    let mut inside = None;
    with_object(&value, |object| {
        let mut members = object.members();
        if let (Some((name, input)), None) = (members.next(), members.next())
            && name.is("input")
        {
            inside = input.string().map(std::borrow::Cow::into_owned);
        }
    });
    inside.unwrap_or_else(|| value.into_owned())
}
