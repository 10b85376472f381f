//! Reads the messages of a chat request, one turn per message; the leading instructions are
//! separate.
//!
//! This file must not merge, move or drop a message. The caller chose the order, and the writer for
//! the target decides about changes.
//!
//! Read next: `read_request/parts.rs`, then `messages/write_request.rs`.

use super::parts::{self, ChatPartContainer};
use super::reasoning;
use crate::Protocol;
use crate::ir::{
    Block, BlockKind, CacheBreakpoint, JsonPath, Opaque, Request, RequestResult, ToolArguments,
    ToolCall, ToolResult, ToolResultContent, Turn, TurnRole, Warnings,
};
use crate::json::{JsonStr, JsonValue};
use crate::openai::cache_marker::cache_marker;
use crate::openai::check::{
    MemberType, check_type, optional_bool, optional_items, optional_object, optional_text, refuse,
    refuse_value, required_object, required_text, warn_unknown_members, warn_unlisted_members,
    wrong_type,
};

const ROLES: &str = "'system', 'assistant', 'user', 'function', 'tool', and 'developer'";

pub(super) fn read<'a>(
    body: JsonValue<'a>,
    request: &mut Request<'a>,
    warnings: &mut Warnings,
) -> RequestResult {
    let messages = body
        .get("messages")
        .filter(|messages| messages.items().next().is_some());
    let Some(messages) = messages else {
        return refuse("messages", "[] is too short - 'messages'");
    };
    let mut is_leading = true;
    for (index, value) in messages.items().enumerate() {
        check_type(value, MemberType::Object, format_args!("messages[{index}]"))?;
        let role = required_text(value, "role", format_args!("messages[{index}]"))?;
        let cache = cache_marker(value, format_args!("messages[{index}]"))?;
        let mut message = ChatMessageReader {
            index,
            value,
            cache,
            warnings,
        };
        let (side, blocks) = match role.value().as_ref() {
            "system" | "developer" if is_leading => {
                request.system.extend(message.instructions()?);
                continue;
            }
            "system" | "developer" => (TurnRole::System, message.instructions()?),
            "user" => (TurnRole::User, message.user()?),
            "assistant" => (TurnRole::Assistant, message.assistant()?),
            "tool" => (TurnRole::User, message.tool()?),
            "function" => (TurnRole::User, message.function()?),
            _ => {
                return refuse_value(format_args!("messages[{index}].role"), &role, ROLES);
            }
        };
        is_leading = false;
        request.turns.push(Turn {
            side,
            blocks,
            at: JsonPath::Message(index),
        });
    }
    Ok(())
}

struct ChatMessageReader<'a, 'w> {
    index: usize,
    value: JsonValue<'a>,
    cache: Option<CacheBreakpoint>,
    warnings: &'w mut Warnings,
}

impl<'a> ChatMessageReader<'a, '_> {
    /// Warns about members that are neither in `own` nor common to all messages. The participant's
    /// `name` gets a warning too: no other protocol has it, and the client may ask the model who
    /// said what.
    fn check_members(&mut self, own: &[&str]) {
        const COMMON: [&str; 3] = ["role", "content", "cache_control"];
        warn_unlisted_members(self.value, &COMMON, own, "messages[]", self.warnings);
    }

    fn content(&mut self, container: ChatPartContainer) -> RequestResult<Vec<Block<'a>>> {
        parts::content(
            self.value.get("content"),
            self.index,
            container,
            self.warnings,
        )
    }

    fn instructions(&mut self) -> RequestResult<Vec<Block<'a>>> {
        self.check_members(&[]);
        let mut blocks = self.content(ChatPartContainer::Instructions)?;
        if blocks.is_empty() {
            // Keep the empty message: a request that consists of instructions alone needs its last
            // message.
            blocks.push(Block::new(
                JsonPath::Message(self.index),
                BlockKind::Text(JsonStr::from_value("")),
            ));
        }
        apply_cache_to_last(&mut blocks, self.cache);
        Ok(blocks)
    }

    fn user(&mut self) -> RequestResult<Vec<Block<'a>>> {
        self.check_members(&[]);
        let mut blocks = self.content(ChatPartContainer::User)?;
        apply_cache_to_last(&mut blocks, self.cache);
        Ok(blocks)
    }

    fn assistant(&mut self) -> RequestResult<Vec<Block<'a>>> {
        self.check_members(&[
            "refusal",
            "tool_calls",
            "function_call",
            "audio",
            "reasoning_details",
            "thinking_blocks",
            "reasoning_content",
            // `reasoning` repeats `reasoning_details` or cannot be sent back; `annotations` holds
            // sources, and `parsed` a parsed copy of the text.
            "reasoning",
            "annotations",
            "parsed",
        ]);
        let index = self.index;
        let mut texts = self.content(ChatPartContainer::Assistant)?;
        if let Some(refusal) =
            optional_text(self.value, "refusal", format_args!("messages[{index}]"))?
        {
            texts.push(Block::new(
                JsonPath::Message(index),
                BlockKind::Refusal(refusal),
            ));
        }
        if let Some(value) = self.value.get("audio") {
            let kind = Opaque {
                origin: Protocol::Chat,
                name: JsonStr::from_value("audio"),
                value,
            };
            texts.push(Block::new(
                JsonPath::Message(index),
                BlockKind::Opaque(kind),
            ));
        }
        let mut blocks = reasoning::interleave_reasoning(
            reasoning::read_reasoning(self.value),
            texts,
            self.calls()?,
            index,
        );
        apply_cache_to_last(&mut blocks, self.cache);
        Ok(blocks)
    }

    fn calls(&mut self) -> RequestResult<Vec<Block<'a>>> {
        let mut calls = Vec::new();
        let items = optional_items(self.value, "tool_calls", &JsonPath::Message(self.index))?;
        for (index, value) in items.enumerate() {
            let at = JsonPath::Call(self.index, index);
            check_type(value, MemberType::Object, at)?;
            let kind = BlockKind::Call(self.call(value, at)?);
            calls.push(Block {
                at,
                cache: cache_marker(value, at)?,
                kind,
            });
        }
        let message = JsonPath::Message(self.index);
        if let Some(value) = optional_object(self.value, "function_call", message)? {
            let path = format!("{message}.function_call");
            warn_unknown_members(
                value,
                &["name", "arguments"],
                "messages[].function_call",
                self.warnings,
            );
            let kind = BlockKind::Call(ToolCall {
                id: Some(JsonStr::from_value(format!("fc_{}", self.index))),
                name: required_text(value, "name", &path)?,
                arguments: arguments(value, "arguments", &path)?,
                is_custom: false,
            });
            calls.push(Block::new(JsonPath::Message(self.index), kind));
        }
        Ok(calls)
    }

    fn call(&mut self, value: JsonValue<'a>, at: JsonPath) -> RequestResult<ToolCall<'a>> {
        let kind = optional_text(value, "type", at)?;
        let is_custom = kind.as_ref().is_some_and(|kind| kind.is("custom"));
        // Some clients omit the type of a call. The call then has the original type, `function`.
        if let Some(kind) = kind.filter(|kind| !is_custom && !kind.is("function")) {
            return refuse_value(format_args!("{at}.type"), &kind, "'function' and 'custom'");
        }
        let (member, text) = if is_custom {
            ("custom", "input")
        } else {
            ("function", "arguments")
        };
        // The index of a call matters only in a stream, so the reader ignores it in a history.
        warn_unknown_members(
            value,
            &["id", "type", "index", "cache_control", member],
            "messages[].tool_calls[]",
            self.warnings,
        );
        let inner = required_object(value, member, at)?;
        let path = format!("{at}.{member}");
        let inner_path = if is_custom {
            "messages[].tool_calls[].custom"
        } else {
            "messages[].tool_calls[].function"
        };
        warn_unknown_members(inner, &["name", text], inner_path, self.warnings);
        Ok(ToolCall {
            id: optional_text(value, "id", at)?.filter(|id| !id.is_empty()),
            name: required_text(inner, "name", &path)?,
            arguments: arguments(inner, text, &path)?,
            is_custom,
        })
    }

    fn tool(&mut self) -> RequestResult<Vec<Block<'a>>> {
        // The result's own `name` repeats the name in the call.
        self.check_members(&["tool_call_id", "is_error", "name"]);
        let message = JsonPath::Message(self.index);
        let id = optional_text(self.value, "tool_call_id", message)?.filter(|id| !id.is_empty());
        self.result(id, None)
    }

    fn function(&mut self) -> RequestResult<Vec<Block<'a>>> {
        self.check_members(&["is_error", "name"]);
        let name = required_text(self.value, "name", JsonPath::Message(self.index))?;
        self.result(None, Some(name))
    }

    fn result(
        &mut self,
        id: Option<JsonStr<'a>>,
        name: Option<JsonStr<'a>>,
    ) -> RequestResult<Vec<Block<'a>>> {
        let message = JsonPath::Message(self.index);
        let is_error = optional_bool(self.value, "is_error", message)?.unwrap_or(false);
        let mut cache = self.cache;
        let content = match self.value.get("content") {
            Some(content) if content.is_array() => {
                let mut blocks = self.content(ChatPartContainer::Result)?;
                // A marker on the last part covers everything before that part, which is the whole
                // result.
                cache = cache.or(blocks.last_mut().and_then(|last| last.cache.take()));
                ToolResultContent::Blocks(blocks)
            }
            Some(content) => {
                let path = format_args!("messages[{}].content", self.index);
                let text = content.text();
                let text = text.ok_or_else(|| {
                    wrong_type(path, "one of a string or array of objects", content)
                })?;
                ToolResultContent::Text(text)
            }
            None => ToolResultContent::Nothing,
        };
        let kind = BlockKind::Result(ToolResult {
            id,
            name,
            content,
            is_error,
        });
        Ok(vec![Block {
            at: JsonPath::Message(self.index),
            cache,
            kind,
        }])
    }
}

fn arguments<'a>(of: JsonValue<'a>, member: &str, path: &str) -> RequestResult<ToolArguments<'a>> {
    let text = optional_text(of, member, path)?;
    Ok(ToolArguments::Text(text.unwrap_or(JsonStr::from_value(""))))
}

/// Applies the message's cache marker to its last block; reasoning blocks accept no marker.
fn apply_cache_to_last(blocks: &mut [Block<'_>], cache: Option<CacheBreakpoint>) {
    let last = blocks
        .iter_mut()
        .rfind(|block| !matches!(block.kind, BlockKind::Thinking(_)));
    if let (Some(last), Some(_)) = (last, cache) {
        last.cache = cache;
    }
}
