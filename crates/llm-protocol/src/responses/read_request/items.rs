//! Reads the list of items as turns: consecutive items that the model produced form one turn, every
//! other item forms a turn of its own.
//!
//! The order must stay the same, because the model chose the order of reasoning, texts and calls.
//! The only exception is a text after a call, which moves before the turn's calls, because a result
//! must directly follow its call.
//!
//! Read next: `read_request/parts.rs`.

use super::history;
use super::parts;
use super::settings::refuse_with_code;
use super::tools::{TOOL_SEARCH, list_found_tools, qualified_name};
use crate::ir::{
    Block, BlockKind, Image, JsonPath, Request, RequestResult, Thinking, ToolArguments, ToolCall,
    ToolResult, ToolResultContent, Turn, TurnRole, Warnings,
};
use crate::json::{JsonStr, JsonValue, JsonWriter};
use crate::openai::check::{
    MemberType, check_type, missing, optional_text, refuse, refuse_type, refuse_value,
    required_text,
};
use crate::openai::media;
use crate::openai::reasoning_summary::SUMMARY_SEPARATOR;
use crate::reasoning_token::{self, ReasoningPayload};

/// Returns the last item that changes settings, if there is one.
pub(super) fn configuration_update(body: JsonValue<'_>) -> Option<JsonValue<'_>> {
    let items = body.items_of("input");
    items
        .filter(|item| item.member_is("type", "configuration_update"))
        .last()
}

pub(super) fn read<'a>(
    body: JsonValue<'a>,
    request: &mut Request<'a>,
    warnings: &mut Warnings,
) -> RequestResult {
    let instructions = optional_text(body, "instructions", "")?.filter(|text| !text.is_blank());
    let has_instructions = instructions.is_some();
    request
        .system
        .extend(instructions.map(|text| Block::new(JsonPath::System(0), BlockKind::Text(text))));
    let Some(input) = body.get("input") else {
        return if has_instructions {
            Ok(())
        } else {
            Err(missing("input"))
        };
    };
    if let Some(text) = input.text() {
        let blocks = vec![Block::new(JsonPath::Item(0), BlockKind::Text(text))];
        request.turns.push(Turn {
            side: TurnRole::User,
            blocks,
            at: JsonPath::Item(0),
        });
        return Ok(());
    }
    if !input.is_array() {
        return refuse_type("input", "one of a string or array of objects", input);
    }
    let mut reader = ResponsesInputReader {
        input,
        request,
        warnings,
    };
    for (index, item) in input.items().enumerate() {
        check_type(item, MemberType::Object, JsonPath::Item(index))?;
        reader.item(item, index)?;
    }
    let Request { system, turns, .. } = request;
    if turns.is_empty() && system.is_empty() {
        return refuse("input", "Invalid 'input': at least one item is required.");
    }
    Ok(())
}

struct ResponsesInputReader<'r, 'a> {
    input: JsonValue<'a>,
    request: &'r mut Request<'a>,
    warnings: &'r mut Warnings,
}

impl<'a> ResponsesInputReader<'_, 'a> {
    fn item(&mut self, item: JsonValue<'a>, index: usize) -> RequestResult {
        let at = JsonPath::Item(index);
        let kind = optional_text(item, "type", at)?;
        let word = kind.as_ref().map(JsonStr::value);
        match word.as_deref() {
            None if item.get("role").is_none() && item.get("id").is_some() => {
                self.reference(item, at)
            }
            None | Some("message") => self.message(item, index),
            Some("item_reference") => self.reference(item, at),
            Some("reasoning") => {
                self.reasoning(item, at);
                Ok(())
            }
            Some(
                "function_call" | "custom_tool_call" | "local_shell_call" | "shell_call"
                | "apply_patch_call" | "tool_search_call",
            ) => self.call(word.as_deref().unwrap_or_default(), item, at),
            Some(
                "function_call_output"
                | "custom_tool_call_output"
                | "local_shell_call_output"
                | "shell_call_output"
                | "apply_patch_call_output"
                | "tool_search_output",
            ) => self.call_output(word.as_deref().unwrap_or_default(), item, index),
            // The functions for tools and for settings read these items.
            Some("additional_tools" | "configuration_update") => Ok(()),
            Some("agent_message") => {
                let (text, is_sealed) = history::agent_message(item);
                if is_sealed {
                    self.warnings.rewritten(at);
                }
                self.push_text(TurnRole::User, at, text);
                Ok(())
            }
            Some("compaction" | "compaction_summary") => {
                self.warnings.rewritten(at);
                self.push_text(TurnRole::System, at, history::COMPACTION_NOTE.to_owned());
                Ok(())
            }
            Some("compaction_trigger") => {
                let message = "Compaction is not available on this endpoint.";
                refuse_with_code(&at.to_string(), message, "unsupported_value")
            }
            Some(word) => self.hosted_or_unknown_item(word, item, at),
        }
    }

    /// Adds a block that the model produced to the assistant turn that it continues.
    fn push_assistant_block(&mut self, block: Block<'a>) {
        let is_text = matches!(block.kind, BlockKind::Text(_) | BlockKind::Refusal(_));
        match self
            .request
            .turns
            .last_mut()
            .filter(|turn| turn.side == TurnRole::Assistant)
        {
            None => {
                let at = JsonPath::Item(block.at.container_index());
                self.request.turns.push(Turn {
                    side: TurnRole::Assistant,
                    blocks: vec![block],
                    at,
                });
            }
            Some(turn) => {
                let is_call = |block: &Block<'_>| matches!(block.kind, BlockKind::Call(_));
                match turn.blocks.iter().position(is_call).filter(|_| is_text) {
                    Some(first_call) => turn.blocks.insert(first_call, block),
                    None => turn.blocks.push(block),
                }
            }
        }
    }

    fn push_turn(&mut self, side: TurnRole, at: JsonPath, blocks: Vec<Block<'a>>) {
        if side == TurnRole::System && self.request.turns.is_empty() {
            self.request.system.extend(blocks);
        } else {
            self.request.turns.push(Turn { side, blocks, at });
        }
    }

    fn push_text(&mut self, side: TurnRole, at: JsonPath, text: String) {
        self.push_turn(
            side,
            at,
            vec![Block::new(at, BlockKind::Text(JsonStr::from_value(text)))],
        );
    }

    fn message(&mut self, item: JsonValue<'a>, index: usize) -> RequestResult {
        let at = JsonPath::Item(index);
        let role = required_text(item, "role", at)?;
        let side = match role.value().as_ref() {
            "user" => TurnRole::User,
            "system" | "developer" => TurnRole::System,
            "assistant" => TurnRole::Assistant,
            _ => {
                let supported = "'assistant', 'system', 'developer', and 'user'";
                return refuse_value(format_args!("{at}.role"), &role, supported);
            }
        };
        let blocks = parts::content(item, index, side, self.warnings)?;
        if side == TurnRole::Assistant {
            blocks
                .into_iter()
                .for_each(|block| self.push_assistant_block(block));
        } else {
            self.push_turn(side, at, blocks);
        }
        Ok(())
    }

    fn reference(&mut self, item: JsonValue<'a>, at: JsonPath) -> RequestResult {
        let id = item.string_of("id").unwrap_or_default();
        // A reference to reasoning is dropped, because that costs only quality.
        if id.starts_with("rs_") {
            self.warnings.dropped(at);
            return Ok(());
        }
        let id: String = id.chars().take(64).collect();
        let message = format!(
            "Item with id '{id}' not found. This endpoint stores no items: set store=false so that items are sent in full."
        );
        refuse_with_code(&at.to_string(), message, "invalid_value")
    }

    /// Reads a reasoning item. The gateway returns reasoning that it packed to the vendor that
    /// produced the reasoning. Reasoning that only another vendor can decrypt is dropped, including
    /// its readable part, because it is not reasoning of the current model.
    fn reasoning(&mut self, item: JsonValue<'a>, at: JsonPath) {
        let sealed = item.string_of("encrypted_content");
        let made = |text: String| JsonStr::from_value(text);
        let thinking = match sealed.as_deref().filter(|sealed| !sealed.is_empty()) {
            None => {
                let text = readable_text(item);
                if text.is_empty() {
                    return;
                }
                Thinking::Shown {
                    text: made(text),
                    signature: None,
                }
            }
            Some(sealed) => match reasoning_token::unpack(sealed) {
                Some(ReasoningPayload::Thinking { text, signature }) => Thinking::Shown {
                    text: made(text),
                    signature: Some(made(signature)),
                },
                Some(ReasoningPayload::Hidden { data }) => Thinking::Hidden { data: made(data) },
                Some(ReasoningPayload::ChatText(text)) => Thinking::Shown {
                    text: made(text),
                    signature: None,
                },
                Some(ReasoningPayload::ChatDetails(details)) => Thinking::Shown {
                    text: made(String::new()),
                    signature: Some(made(reasoning_token::encode_details(&details))),
                },
                Some(ReasoningPayload::State(..)) => Thinking::Hidden {
                    data: made(sealed.to_owned()),
                },
                Some(ReasoningPayload::Item(_)) => Thinking::Shown {
                    text: made(summary_text(item)),
                    signature: Some(made(sealed.to_owned())),
                },
                None => return,
            },
        };
        self.push_assistant_block(Block::new(at, BlockKind::Thinking(thinking)));
    }

    fn call(&mut self, kind: &str, item: JsonValue<'a>, at: JsonPath) -> RequestResult {
        if kind == "tool_search_call" && !is_client_executed(item) {
            return Ok(());
        }
        let id = required_text(item, "call_id", at)?;
        // The gateway never sends a value that is neither an object nor a string.
        let member_value = |member: &str| {
            let value = item
                .get(member)
                .filter(|value| value.is_object() || value.text().is_some());
            value.map_or(ToolArguments::Text(JsonStr::from_value("")), arguments)
        };
        let (name, arguments) = match kind {
            "function_call" | "custom_tool_call" => {
                let name = required_text(item, "name", at)?;
                let namespace = optional_text(item, "namespace", at)?;
                let name = match namespace.as_ref().map(JsonStr::value) {
                    Some(namespace) => {
                        JsonStr::from_value(qualified_name(Some(&namespace), &name.value()))
                    }
                    None => name,
                };
                let member = if kind == "custom_tool_call" {
                    "input"
                } else {
                    "arguments"
                };
                let text = optional_text(item, member, at)?;
                (
                    name,
                    ToolArguments::Text(text.unwrap_or_else(|| JsonStr::from_value(""))),
                )
            }
            "tool_search_call" => (JsonStr::from_value(TOOL_SEARCH), member_value("arguments")),
            "apply_patch_call" => (
                JsonStr::from_value("apply_patch"),
                member_value("operation"),
            ),
            "shell_call" => (JsonStr::from_value("shell"), member_value("action")),
            _ => (
                JsonStr::from_value("local_shell"),
                ToolArguments::Text(JsonStr::from_value(action_arguments(item.get("action")))),
            ),
        };
        let is_custom = kind == "custom_tool_call";
        self.push_assistant_block(Block::new(
            at,
            BlockKind::Call(ToolCall {
                id: Some(id),
                name,
                arguments,
                is_custom,
            }),
        ));
        Ok(())
    }

    fn call_output(&mut self, kind: &str, item: JsonValue<'a>, index: usize) -> RequestResult {
        let at = JsonPath::Item(index);
        if kind == "tool_search_output" && !is_client_executed(item) {
            return Ok(());
        }
        let id = optional_text(item, "call_id", at)?;
        // The oldest item type of this kind has a single id.
        let own_id = if kind == "local_shell_call_output" {
            item.text_of("id")
        } else {
            None
        };
        let content = match kind {
            "tool_search_output" => {
                ToolResultContent::Text(JsonStr::from_value(list_found_tools(item.get("tools"))))
            }
            "shell_call_output" if item.get("output").is_some_and(JsonValue::is_array) => {
                ToolResultContent::Text(JsonStr::from_value(history::shell_output(item)))
            }
            _ => parts::output(item, index, self.warnings)?,
        };
        let Some(id) = id.or(own_id) else {
            return self.orphan_output(item, at, content);
        };
        let is_error = item.member_is("status", "failed");
        let outcome = ToolResult {
            id: Some(id),
            name: None,
            content,
            is_error,
        };
        self.push_turn(
            TurnRole::User,
            at,
            vec![Block::new(at, BlockKind::Result(outcome))],
        );
        Ok(())
    }

    /// Reads a tool result without a call, such as a periodic message from an agent.
    fn orphan_output(
        &mut self,
        item: JsonValue<'a>,
        at: JsonPath,
        content: ToolResultContent<'a>,
    ) -> RequestResult {
        let Some(name) = item.string_of("name") else {
            return Err(missing(format_args!("{at}.call_id")));
        };
        let text = match &content {
            ToolResultContent::Text(text) => text.value().into_owned(),
            ToolResultContent::Nothing => String::new(),
            ToolResultContent::Blocks(blocks) => {
                let texts = blocks.iter().filter_map(|block| match &block.kind {
                    BlockKind::Text(text) => Some(text.value().into_owned()),
                    _ => None,
                });
                texts.collect::<Vec<_>>().join("\n")
            }
        };
        self.warnings.rewritten(at);
        let name = name.replace('"', "&quot;");
        self.push_text(
            TurnRole::User,
            at,
            format!("<tool_output name=\"{name}\">\n{text}\n</tool_output>"),
        );
        Ok(())
    }

    /// Reads an item of a hosted tool, or of an unknown type.
    fn hosted_or_unknown_item(
        &mut self,
        kind: &str,
        item: JsonValue<'a>,
        at: JsonPath,
    ) -> RequestResult {
        if kind == "computer_call_output"
            && let Some(url) = item.find(["output", "image_url"]).and_then(JsonValue::text)
            && let Ok(source) = media::parse_image_url(url)
        {
            self.warnings.rewritten(at);
            self.push_turn(
                TurnRole::User,
                at,
                vec![Block::new(
                    at,
                    BlockKind::Image(Image {
                        source,
                        detail: None,
                    }),
                )],
            );
            return Ok(());
        }
        if HOSTED_ITEMS.contains(&kind) {
            if let Some(text) = history::hosted_call(kind, item) {
                self.warnings.rewritten(at);
                self.push_assistant_block(Block::new(
                    at,
                    BlockKind::Text(JsonStr::from_value(text)),
                ));
            }
            return Ok(());
        }
        let id = item.text_of("call_id");
        let has_partner = id.is_some_and(|id| {
            let id = id.value();
            self.input
                .items()
                .filter(|other| other.member_is("call_id", &id))
                .count()
                > 1
        });
        if has_partner {
            return refuse_value(format_args!("{at}.type"), &JsonStr::from_value(kind), "");
        }
        self.warnings.dropped(at);
        Ok(())
    }
}

/// Types of items whose tools a vendor ran.
const HOSTED_ITEMS: [&str; 13] = [
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
    "web_search_call",
    "web_search_call_output",
];

/// Returns whether the client, not the vendor, ran the tool.
fn is_client_executed(item: JsonValue<'_>) -> bool {
    item.member_is("execution", "client")
}

fn arguments(value: JsonValue<'_>) -> ToolArguments<'_> {
    value
        .text()
        .map_or(ToolArguments::Json(value), ToolArguments::Text)
}

/// Returns an action without its type, as the arguments of its tool.
fn action_arguments(action: Option<JsonValue<'_>>) -> String {
    let mut json = JsonWriter::default();
    json.open_object();
    let members = action.into_iter().flat_map(JsonValue::members);
    json.copy_members(members.filter(|(name, value)| !name.is("type") && !value.is_null()));
    json.close_object();
    json.into_string()
}

/// Returns the readable part of reasoning, for vendors that want that part back.
fn readable_text(item: JsonValue<'_>) -> String {
    let joined_texts = |name: &str| {
        part_texts(item, name)
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join(SUMMARY_SEPARATOR)
    };
    let content = joined_texts("content");
    if content.is_empty() {
        joined_texts("summary")
    } else {
        content
    }
}

/// Joins the texts of a summary in the form in which the gateway sent them.
fn summary_text(item: JsonValue<'_>) -> String {
    part_texts(item, "summary")
        .collect::<Vec<_>>()
        .join(SUMMARY_SEPARATOR)
}

fn part_texts<'a>(item: JsonValue<'a>, name: &str) -> impl Iterator<Item = String> + use<'a> {
    let parts = item.get(name).into_iter().flat_map(JsonValue::items);
    parts.filter_map(|part| part.string_of("text").map(std::borrow::Cow::into_owned))
}
