//! Reads the messages of a chat request, one turn per message; the leading instructions are
//! separate.
//!
//! It must not merge, move or drop a message. The caller chose the order, and the writer for the
//! target decides about changes.
//!
//! Read next: `read_request/parts.rs`, then `messages/write_request.rs`.

use super::check::{
    Shape, invalid, optional_bool, optional_items, optional_text, required_object, required_text,
    shape, unknown_besides, unknown_members, unknown_word, wrong_type,
};
use super::parts::{self, Place};
use super::{marker, reasoning};
use crate::protocol::Protocol;
use crate::protocol::form::{
    Arguments, At, Block, BlockKind, Cache, Call, Opaque, Outcome, OutcomeContent, Refused,
    Request, Side, Turn, Warnings,
};
use crate::protocol::text::Text;
use crate::protocol::tree::Value;

const ROLES: &str = "'system', 'assistant', 'user', 'function', 'tool', and 'developer'";

pub(super) fn read<'a>(
    body: Value<'a>,
    request: &mut Request<'a>,
    warnings: &mut Warnings,
) -> Result<(), Refused> {
    let messages = body
        .get("messages")
        .filter(|messages| messages.items().next().is_some());
    let Some(messages) = messages else {
        return Err(invalid("messages", "[] is too short - 'messages'"));
    };
    let mut is_leading = true;
    for (index, value) in messages.items().enumerate() {
        shape(value, Shape::Object, format_args!("messages[{index}]"))?;
        let role = required_text(value, "role", format_args!("messages[{index}].role"))?;
        let cache = marker(value, format_args!("messages[{index}]"))?;
        let mut message = Message {
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
            "system" | "developer" => (Side::System, message.instructions()?),
            "user" => (Side::User, message.user()?),
            "assistant" => (Side::Assistant, message.assistant()?),
            "tool" => (Side::User, message.tool()?),
            "function" => (Side::User, message.function()?),
            _ => {
                return Err(unknown_word(
                    format_args!("messages[{index}].role"),
                    &role,
                    ROLES,
                ));
            }
        };
        is_leading = false;
        request.turns.push(Turn {
            side,
            blocks,
            at: At::Message(index),
        });
    }
    Ok(())
}

struct Message<'a, 'w> {
    index: usize,
    value: Value<'a>,
    cache: Option<Cache>,
    warnings: &'w mut Warnings,
}

impl<'a> Message<'a, '_> {
    /// Warns about members that are neither in `own` nor common to all messages. `name`, the
    /// participant's name, is common and ignored: no other protocol can represent it.
    fn known(&mut self, own: &[&str]) {
        const COMMON: [&str; 4] = ["role", "content", "name", "cache_control"];
        unknown_besides(self.value, &COMMON, own, "messages[]", self.warnings);
    }

    fn content(&mut self, place: Place) -> Result<Vec<Block<'a>>, Refused> {
        parts::content(self.value.get("content"), self.index, place, self.warnings)
    }

    fn instructions(&mut self) -> Result<Vec<Block<'a>>, Refused> {
        self.known(&[]);
        let mut blocks = self.content(Place::Instructions)?;
        if blocks.is_empty() {
            // Keep the empty message: a request that consists of instructions alone needs its last
            // message.
            blocks.push(Block {
                at: At::Message(self.index),
                cache: None,
                kind: BlockKind::Text(Text::made("")),
            });
        }
        mark_last(&mut blocks, self.cache);
        Ok(blocks)
    }

    fn user(&mut self) -> Result<Vec<Block<'a>>, Refused> {
        self.known(&[]);
        let mut blocks = self.content(Place::User)?;
        mark_last(&mut blocks, self.cache);
        Ok(blocks)
    }

    fn assistant(&mut self) -> Result<Vec<Block<'a>>, Refused> {
        self.known(&[
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
        let mut texts = self.content(Place::Assistant)?;
        if let Some(refusal) = optional_text(
            self.value,
            "refusal",
            format_args!("messages[{index}].refusal"),
        )? {
            texts.push(Block {
                at: At::Message(index),
                cache: None,
                kind: BlockKind::Refusal(refusal),
            });
        }
        if let Some(value) = self.value.get("audio") {
            let kind = Opaque {
                origin: Protocol::Chat,
                name: Text::made("audio"),
                value,
            };
            texts.push(Block {
                at: At::Message(index),
                cache: None,
                kind: BlockKind::Opaque(kind),
            });
        }
        let mut blocks =
            reasoning::placed(reasoning::pieces(self.value), texts, self.calls()?, index);
        mark_last(&mut blocks, self.cache);
        Ok(blocks)
    }

    fn calls(&mut self) -> Result<Vec<Block<'a>>, Refused> {
        let mut calls = Vec::new();
        let items = optional_items(
            self.value,
            "tool_calls",
            &format_args!("messages[{}].tool_calls", self.index),
        )?;
        for (index, value) in items.enumerate() {
            let at = At::Call(self.index, index);
            shape(value, Shape::Object, at)?;
            let kind = BlockKind::Call(self.call(value, at)?);
            calls.push(Block {
                at,
                cache: marker(value, at)?,
                kind,
            });
        }
        if let Some(value) = self.value.get("function_call") {
            let path = format!("messages[{}].function_call", self.index);
            shape(value, Shape::Object, &path)?;
            unknown_members(
                value,
                &["name", "arguments"],
                "messages[].function_call",
                self.warnings,
            );
            let kind = BlockKind::Call(Call {
                id: Some(Text::made(format!("fc_{}", self.index))),
                name: required_text(value, "name", format_args!("{path}.name"))?,
                arguments: arguments(value, "arguments", &path)?,
                is_custom: false,
            });
            calls.push(Block {
                at: At::Message(self.index),
                cache: None,
                kind,
            });
        }
        Ok(calls)
    }

    fn call(&mut self, value: Value<'a>, at: At) -> Result<Call<'a>, Refused> {
        let kind = optional_text(value, "type", format_args!("{at}.type"))?;
        let is_custom = kind.as_ref().is_some_and(|kind| kind.is("custom"));
        // Some clients omit the type; it is then the original one, `function`.
        if let Some(kind) = kind.filter(|kind| !is_custom && !kind.is("function")) {
            return Err(unknown_word(
                format_args!("{at}.type"),
                &kind,
                "'function' and 'custom'",
            ));
        }
        let (member, text) = if is_custom {
            ("custom", "input")
        } else {
            ("function", "arguments")
        };
        // The index of the call in a stream has no meaning in a history.
        unknown_members(
            value,
            &["id", "type", "index", "cache_control", member],
            "messages[].tool_calls[]",
            self.warnings,
        );
        let path = format!("{at}.{member}");
        let inner = required_object(value, member, &path)?;
        let inner_path = if is_custom {
            "messages[].tool_calls[].custom"
        } else {
            "messages[].tool_calls[].function"
        };
        unknown_members(inner, &["name", text], inner_path, self.warnings);
        Ok(Call {
            id: optional_text(value, "id", format_args!("{at}.id"))?.filter(|id| !id.is_empty()),
            name: required_text(inner, "name", format_args!("{path}.name"))?,
            arguments: arguments(inner, text, &path)?,
            is_custom,
        })
    }

    fn tool(&mut self) -> Result<Vec<Block<'a>>, Refused> {
        self.known(&["tool_call_id", "is_error"]);
        let path = format!("messages[{}].tool_call_id", self.index);
        let id = optional_text(self.value, "tool_call_id", path)?.filter(|id| !id.is_empty());
        self.result(id, None)
    }

    fn function(&mut self) -> Result<Vec<Block<'a>>, Refused> {
        self.known(&["is_error"]);
        let name = required_text(
            self.value,
            "name",
            format_args!("messages[{}].name", self.index),
        )?;
        self.result(None, Some(name))
    }

    fn result(
        &mut self,
        id: Option<Text<'a>>,
        name: Option<Text<'a>>,
    ) -> Result<Vec<Block<'a>>, Refused> {
        let path = format!("messages[{}].is_error", self.index);
        let is_error = optional_bool(self.value, "is_error", path)?.unwrap_or(false);
        let mut cache = self.cache;
        let content = match self.value.get("content") {
            Some(content) if content.is_array() => {
                let mut blocks = self.content(Place::Result)?;
                // A marker on the last part covers everything before it, which is the whole result.
                cache = cache.or(blocks.last_mut().and_then(|last| last.cache.take()));
                OutcomeContent::Blocks(blocks)
            }
            Some(content) => {
                let path = format_args!("messages[{}].content", self.index);
                let text = content.text();
                let text = text.ok_or_else(|| {
                    wrong_type(path, "one of a string or array of objects", content)
                })?;
                OutcomeContent::Text(text)
            }
            None => OutcomeContent::Nothing,
        };
        let kind = BlockKind::Result(Outcome {
            id,
            name,
            content,
            is_error,
        });
        Ok(vec![Block {
            at: At::Message(self.index),
            cache,
            kind,
        }])
    }
}

fn arguments<'a>(of: Value<'a>, member: &str, path: &str) -> Result<Arguments<'a>, Refused> {
    let text = optional_text(of, member, format_args!("{path}.{member}"))?;
    Ok(Arguments::Text(text.unwrap_or(Text::made(""))))
}

/// Applies the message's cache marker to its last block; reasoning blocks accept no marker.
fn mark_last(blocks: &mut [Block<'_>], cache: Option<Cache>) {
    let last = blocks
        .iter_mut()
        .rfind(|block| !matches!(block.kind, BlockKind::Thinking(_)));
    if let (Some(last), Some(_)) = (last, cache) {
        last.cache = cache;
    }
}
