//! Reads the list of items as turns: consecutive items that the model produced form one turn, every
//! other item forms a turn of its own.
//!
//! It must keep the order, because the model chose the order of reasoning, texts and calls. The
//! only exception is a text after a call: it moves before the turn's calls, because nothing may
//! stand between a call and its result.
//!
//! Read next: `read_request/parts.rs`.

use super::parts;
use super::past;
use super::settings::refused;
use super::tools::{TOOL_SEARCH, Tools, flat};
use crate::protocol::carrier::{self, Carried};
use crate::protocol::chat::read_request::check::{
    Shape, invalid, missing, optional_text, required_text, shape, unknown_word, wrong_type,
};
use crate::protocol::chat::read_request::media;
use crate::protocol::form::{
    Action, Arguments, At, Block, BlockKind, Call, Image, Outcome, OutcomeContent, Refused,
    Request, Side, Thinking, Turn, Warnings,
};
use crate::protocol::responses::write_request::PART_GAP;
use crate::protocol::text::{Json, Text};
use crate::protocol::tree::Value;

/// Returns the last item that changes settings, if there is one.
pub(super) fn configuration(body: Value<'_>) -> Option<Value<'_>> {
    let items = body.get("input").into_iter().flat_map(Value::items);
    items
        .filter(|item| {
            item.get("type")
                .is_some_and(|kind| kind.is("configuration_update"))
        })
        .last()
}

/// Reads `instructions` and `input`.
pub(super) fn read<'a>(
    body: Value<'a>,
    request: &mut Request<'a>,
    warnings: &mut Warnings,
) -> Result<(), Refused> {
    let instructions =
        optional_text(body, "instructions", "instructions")?.filter(|text| !text.is_blank());
    let has_instructions = instructions.is_some();
    request
        .system
        .extend(instructions.map(|text| block(At::System(0), BlockKind::Text(text))));
    let Some(input) = body.get("input") else {
        return if has_instructions {
            Ok(())
        } else {
            Err(missing("input"))
        };
    };
    if let Some(text) = input.text() {
        let blocks = vec![block(At::Item(0), BlockKind::Text(text))];
        request.turns.push(Turn {
            side: Side::User,
            blocks,
            at: At::Item(0),
        });
        return Ok(());
    }
    if !input.is_array() {
        return Err(wrong_type(
            "input",
            "one of a string or array of objects",
            input,
        ));
    }
    let mut reader = Reader {
        input,
        request,
        warnings,
    };
    for (index, item) in input.items().enumerate() {
        shape(item, Shape::Object, At::Item(index))?;
        reader.item(item, index)?;
    }
    let Request { system, turns, .. } = request;
    if turns.is_empty() && system.is_empty() {
        return Err(invalid(
            "input",
            "Invalid 'input': at least one item is required.",
        ));
    }
    Ok(())
}

fn block(at: At, kind: BlockKind<'_>) -> Block<'_> {
    Block {
        at,
        cache: None,
        kind,
    }
}

struct Reader<'r, 'a> {
    input: Value<'a>,
    request: &'r mut Request<'a>,
    warnings: &'r mut Warnings,
}

impl<'a> Reader<'_, 'a> {
    fn item(&mut self, item: Value<'a>, index: usize) -> Result<(), Refused> {
        let at = At::Item(index);
        let kind = optional_text(item, "type", format_args!("{at}.type"))?;
        let word = kind.as_ref().map(Text::value);
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
            ) => self.outcome(word.as_deref().unwrap_or_default(), item, index),
            // Other functions read them: those for tools and for settings.
            Some("additional_tools" | "configuration_update") => Ok(()),
            Some("agent_message") => {
                let (text, is_sealed) = past::agent_message(item);
                if is_sealed {
                    self.warnings.add(Action::Rewritten, at);
                }
                self.told(Side::User, at, text);
                Ok(())
            }
            Some("compaction" | "compaction_summary") => {
                self.warnings.add(Action::Rewritten, at);
                self.told(Side::System, at, past::COMPACTED.to_owned());
                Ok(())
            }
            Some("compaction_trigger") => {
                let message = "Compaction is not available on this endpoint.";
                Err(refused(&at.to_string(), message, "unsupported_value"))
            }
            Some(word) => self.other(word, item, at),
        }
    }

    /// Adds a block that the model produced to the assistant turn that it continues.
    fn own(&mut self, block: Block<'a>) {
        let is_text = matches!(block.kind, BlockKind::Text(_) | BlockKind::Refusal(_));
        match self
            .request
            .turns
            .last_mut()
            .filter(|turn| turn.side == Side::Assistant)
        {
            None => {
                let at = At::Item(block.at.message());
                self.request.turns.push(Turn {
                    side: Side::Assistant,
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

    fn turn(&mut self, side: Side, at: At, blocks: Vec<Block<'a>>) {
        if side == Side::System && self.request.turns.is_empty() {
            self.request.system.extend(blocks);
        } else {
            self.request.turns.push(Turn { side, blocks, at });
        }
    }

    fn told(&mut self, side: Side, at: At, text: String) {
        self.turn(side, at, vec![block(at, BlockKind::Text(Text::made(text)))]);
    }

    fn message(&mut self, item: Value<'a>, index: usize) -> Result<(), Refused> {
        let at = At::Item(index);
        let role = required_text(item, "role", format_args!("{at}.role"))?;
        let side = match role.value().as_ref() {
            "user" => Side::User,
            "system" | "developer" => Side::System,
            "assistant" => Side::Assistant,
            _ => {
                let supported = "'assistant', 'system', 'developer', and 'user'";
                return Err(unknown_word(format_args!("{at}.role"), &role, supported));
            }
        };
        let blocks = parts::content(item, index, side, self.warnings)?;
        if side == Side::Assistant {
            blocks.into_iter().for_each(|block| self.own(block));
        } else {
            self.turn(side, at, blocks);
        }
        Ok(())
    }

    fn reference(&mut self, item: Value<'a>, at: At) -> Result<(), Refused> {
        let id = item.get("id").and_then(Value::string).unwrap_or_default();
        // A reference to reasoning: only quality is lost.
        if id.starts_with("rs_") {
            self.warnings.add(Action::Dropped, at);
            return Ok(());
        }
        let id: String = id.chars().take(64).collect();
        let message = format!(
            "Item with id '{id}' not found. This endpoint stores no items: set store=false so that items are sent in full."
        );
        Err(refused(&at.to_string(), message, "invalid_value"))
    }

    /// Reads a reasoning item. Reasoning that this gateway packed goes back to the vendor that
    /// produced it. Reasoning that only another vendor can decrypt is dropped, including its
    /// readable part, because it is not reasoning of the current model.
    fn reasoning(&mut self, item: Value<'a>, at: At) {
        let sealed = item.get("encrypted_content").and_then(Value::string);
        let made = |text: String| Text::made(text);
        let thinking = match sealed.as_deref().filter(|sealed| !sealed.is_empty()) {
            None => {
                let text = readable(item);
                if text.is_empty() {
                    return;
                }
                Thinking::Shown {
                    text: made(text),
                    signature: None,
                }
            }
            Some(sealed) => match carrier::unpack(sealed) {
                Some(Carried::Thinking { text, signature }) => Thinking::Shown {
                    text: made(text),
                    signature: Some(made(signature)),
                },
                Some(Carried::Hidden { data }) => Thinking::Hidden { data: made(data) },
                Some(Carried::ChatText(text)) => Thinking::Shown {
                    text: made(text),
                    signature: None,
                },
                Some(Carried::ChatDetails(details)) => Thinking::Shown {
                    text: made(String::new()),
                    signature: Some(made(carrier::encode(&details))),
                },
                Some(Carried::Item(_)) => Thinking::Shown {
                    text: made(summary(item)),
                    signature: Some(made(sealed.to_owned())),
                },
                None => return,
            },
        };
        self.own(block(at, BlockKind::Thinking(thinking)));
    }

    fn call(&mut self, kind: &str, item: Value<'a>, at: At) -> Result<(), Refused> {
        if kind == "tool_search_call" && !is_clients(item) {
            return Ok(());
        }
        let id = required_text(item, "call_id", format_args!("{at}.call_id"))?;
        // The gateway never sent a client a value that is neither an object nor a string.
        let given = |member: &str| {
            let told = item
                .get(member)
                .filter(|value| value.is_object() || value.text().is_some());
            told.map_or(Arguments::Text(Text::made("")), arguments)
        };
        let (name, arguments) = match kind {
            "function_call" | "custom_tool_call" => {
                let name = required_text(item, "name", format_args!("{at}.name"))?;
                let namespace = optional_text(item, "namespace", format_args!("{at}.namespace"))?;
                let name = match namespace.as_ref().map(Text::value) {
                    Some(namespace) => Text::made(flat(Some(&namespace), &name.value())),
                    None => name,
                };
                let member = if kind == "custom_tool_call" {
                    "input"
                } else {
                    "arguments"
                };
                let text = optional_text(item, member, format_args!("{at}.{member}"))?;
                (
                    name,
                    Arguments::Text(text.unwrap_or_else(|| Text::made(""))),
                )
            }
            "tool_search_call" => (Text::made(TOOL_SEARCH), given("arguments")),
            "apply_patch_call" => (Text::made("apply_patch"), given("operation")),
            "shell_call" => (Text::made("shell"), given("action")),
            _ => (
                Text::made("local_shell"),
                Arguments::Text(Text::made(without_type(item.get("action")))),
            ),
        };
        let is_custom = kind == "custom_tool_call";
        self.own(block(
            at,
            BlockKind::Call(Call {
                id: Some(id),
                name,
                arguments,
                is_custom,
            }),
        ));
        Ok(())
    }

    fn outcome(&mut self, kind: &str, item: Value<'a>, index: usize) -> Result<(), Refused> {
        let at = At::Item(index);
        if kind == "tool_search_output" && !is_clients(item) {
            return Ok(());
        }
        let id = optional_text(item, "call_id", format_args!("{at}.call_id"))?;
        // The oldest item type of this kind has only one id.
        let own_id = if kind == "local_shell_call_output" {
            item.get("id").and_then(Value::text)
        } else {
            None
        };
        let content = match kind {
            "tool_search_output" => {
                OutcomeContent::Text(Text::made(Tools::found(item.get("tools"))))
            }
            "shell_call_output" if item.get("output").is_some_and(Value::is_array) => {
                OutcomeContent::Text(Text::made(past::shell_output(item)))
            }
            _ => parts::output(item, index, self.warnings)?,
        };
        let Some(id) = id.or(own_id) else {
            return self.nobodys(item, at, content);
        };
        let is_error = item.get("status").is_some_and(|status| status.is("failed"));
        let outcome = Outcome {
            id: Some(id),
            name: None,
            content,
            is_error,
        };
        self.turn(Side::User, at, vec![block(at, BlockKind::Result(outcome))]);
        Ok(())
    }

    /// Reads a tool result without a call, such as a periodic message from an agent.
    fn nobodys(
        &mut self,
        item: Value<'a>,
        at: At,
        content: OutcomeContent<'a>,
    ) -> Result<(), Refused> {
        let Some(name) = item.get("name").and_then(Value::string) else {
            return Err(missing(format_args!("{at}.call_id")));
        };
        let text = match &content {
            OutcomeContent::Text(text) => text.value().into_owned(),
            OutcomeContent::Nothing => String::new(),
            OutcomeContent::Blocks(blocks) => {
                let texts = blocks.iter().filter_map(|block| match &block.kind {
                    BlockKind::Text(text) => Some(text.value().into_owned()),
                    _ => None,
                });
                texts.collect::<Vec<_>>().join("\n")
            }
        };
        self.warnings.add(Action::Rewritten, at);
        let name = name.replace('"', "&quot;");
        self.told(
            Side::User,
            at,
            format!("<tool_output name=\"{name}\">\n{text}\n</tool_output>"),
        );
        Ok(())
    }

    /// Reads an item of a hosted tool, or of an unknown type.
    fn other(&mut self, kind: &str, item: Value<'a>, at: At) -> Result<(), Refused> {
        if kind == "computer_call_output"
            && let Some(url) = item
                .get("output")
                .and_then(|output| output.get("image_url"))
                .and_then(Value::text)
            && let Ok(source) = media::image(url)
        {
            self.warnings.add(Action::Rewritten, at);
            self.turn(
                Side::User,
                at,
                vec![block(
                    at,
                    BlockKind::Image(Image {
                        source,
                        detail: None,
                    }),
                )],
            );
            return Ok(());
        }
        if FAR.contains(&kind) {
            if let Some(text) = past::far_call(kind, item) {
                self.warnings.add(Action::Rewritten, at);
                self.own(block(at, BlockKind::Text(Text::made(text))));
            }
            return Ok(());
        }
        let id = item.get("call_id").and_then(Value::text);
        let has_partner = id.is_some_and(|id| {
            let id = id.value();
            self.input
                .items()
                .filter(|other| other.get("call_id").is_some_and(|other| other.is(&id)))
                .count()
                > 1
        });
        if has_partner {
            return Err(unknown_word(
                format_args!("{at}.type"),
                &Text::made(kind),
                "",
            ));
        }
        self.warnings.add(Action::Dropped, at);
        Ok(())
    }
}

/// Items of tools that a vendor ran.
const FAR: [&str; 13] = [
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

/// Returns whether the client ran the tool, not the vendor.
fn is_clients(item: Value<'_>) -> bool {
    item.get("execution")
        .is_some_and(|execution| execution.is("client"))
}

fn arguments(value: Value<'_>) -> Arguments<'_> {
    value.text().map_or(Arguments::Json(value), Arguments::Text)
}

/// Returns an action without its type, as the arguments of its tool.
fn without_type(action: Option<Value<'_>>) -> String {
    let mut json = Json::default();
    json.open_object();
    for (name, value) in action.into_iter().flat_map(Value::members) {
        if !name.is("type") && !value.is_null() {
            json.key_text(&name).compact(value.raw());
        }
    }
    json.close_object();
    String::from_utf8(json.into_bytes()).unwrap_or_default()
}

/// Returns the readable part of reasoning, for vendors that want exactly that back.
fn readable(item: Value<'_>) -> String {
    let said = |name: &str| {
        texts(item, name)
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join(PART_GAP)
    };
    let content = said("content");
    if content.is_empty() {
        said("summary")
    } else {
        content
    }
}

/// Joins the texts of a summary to one text, in the form in which the gateway sent them.
fn summary(item: Value<'_>) -> String {
    texts(item, "summary").collect::<Vec<_>>().join(PART_GAP)
}

fn texts<'a>(item: Value<'a>, name: &str) -> impl Iterator<Item = String> + use<'a> {
    let parts = item.get(name).into_iter().flat_map(Value::items);
    parts.filter_map(|part| {
        part.get("text")
            .and_then(Value::string)
            .map(std::borrow::Cow::into_owned)
    })
}
