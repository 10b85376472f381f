//! Writes a request for a chat vendor.
//!
//! It refuses, drops or warns about every member that it cannot send: nothing in the IR disappears
//! without an outcome. It must not validate the caller's types again; the reader did that.
//!
//! Read next: `chat/write_request/turns.rs` (the messages), `chat/write_request/effort.rs`.

use crate::protocol::failure::{Failure, Kind};
use crate::protocol::form::answer::Recall;
use crate::protocol::form::{Action, BlockKind, Choice, Refused, Request, Warnings};
use crate::protocol::rules::{
    ChatModel, ParallelToolCalls, ToolCallIds, ToolsWithReasoning, names, pairing,
};
use crate::protocol::text::{Json, Text};
use crate::protocol::translate::{Given, Written};
use crate::protocol::tree::Value;
use crate::protocol::{Protocol, estimate};
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

pub(in crate::protocol) mod effort;
pub(in crate::protocol) mod foreign;
pub(in crate::protocol) mod parts;
pub(in crate::protocol) mod refusals;
pub(in crate::protocol) mod results;
pub(in crate::protocol) mod tools;
mod turns;
pub(in crate::protocol) mod wording;

use foreign::Words;
use tools::ToolWriter;
use wording::Wording;

/// Maximum number of stop sequences that a chat vendor accepts.
const STOPS_MAX: usize = 4;

/// Maximum number of tools that a chat vendor accepts.
const TOOLS_MAX: usize = 128;

/// Prefix of a line that one client puts before its instructions. The line differs in each request,
/// so it would defeat the prompt cache of every vendor that does not skip it.
const NONCE: &str = "x-anthropic-billing-header:";

/// Writes the request.
///
/// # Errors
/// Returns an error if the request needs a feature that the model lacks and that cannot be dropped,
/// or if calls and results do not pair.
pub fn write(
    request: &mut Request<'_>,
    model: &ChatModel,
    given: &Given<'_>,
    warnings: &mut Warnings,
    recall: &mut Recall,
) -> Result<Written, Refused> {
    refusals::members(request, warnings)?;
    refusals::blocks(request, false)?;
    without_nonce(request);
    pairing::pair(request, warnings)?;
    recall.show_thinking = effort::shows_thinking(request);
    let json = Json::with_capacity(estimate::body_bytes(recall.input_estimate));
    let words = Words {
        warnings,
        recall,
        marks: model.cache_breakpoints,
    };
    let mut writer = Writer {
        surface: request.surface,
        model,
        given,
        words,
        json,
        carries_thinking: false,
        replays: true,
        ids: HashMap::new(),
        open: VecDeque::new(),
    };
    writer
        .json
        .open_object()
        .key("model")
        .str(given.target.upstream_model);
    writer.settings(request)?;
    let has_tools = writer.tools(request)?;
    let thinker = effort::Thinker {
        reasons: model.reasoning,
        levels: &model.effort_values,
        is_kept_from: has_tools && model.tools_with_reasoning == ToolsWithReasoning::EffortNone,
    };
    if let Some(effort) = effort::effort(request, &thinker, writer.words.warnings) {
        writer.json.key("reasoning_effort").str(effort.as_str());
    }
    wording::end_user(request, given, &mut writer.json);
    writer.tier(request);
    if request.stream {
        writer.json.key("stream").bool(true);
        writer
            .json
            .key("stream_options")
            .open_object()
            .key("include_usage")
            .bool(true)
            .close_object();
    }
    writer.extras(request);
    writer.messages(request)?;
    writer.json.close_object();
    let Writer {
        json,
        carries_thinking,
        ..
    } = writer;
    Ok(Written {
        body: json.into_bytes(),
        streams: request.stream,
        carries_thinking,
    })
}

/// State shared by all steps of the writing.
struct Writer<'w> {
    surface: Protocol,
    model: &'w ChatModel,
    given: &'w Given<'w>,
    words: Words<'w>,
    json: Json,
    carries_thinking: bool,
    /// The current turn's reasoning is sent back.
    replays: bool,
    /// Number of calls that asked for each id.
    ids: HashMap<String, u64>,
    /// Ids of calls whose results come next, in order.
    open: VecDeque<String>,
}

impl Writer<'_> {
    fn settings(&mut self, request: &Request<'_>) -> Result<(), Refused> {
        if let Some(limit) = wording::limit(request, self.given, 1, self.words.warnings)? {
            self.json.key(self.model.output_limit_field).number(limit);
        }
        wording::sampling(
            request,
            self.model.sampling,
            &mut self.json,
            self.words.warnings,
        );
        if let Some(top_k) = request.sampling.top_k {
            if self.model.top_k {
                self.json.key("top_k").raw(top_k.raw());
            } else {
                self.words.warnings.add(Action::Dropped, "top_k");
            }
        }
        self.stop(request);
        Wording::Nested.format("response_format", &request.format, &mut self.json);
        Ok(())
    }

    fn stop(&mut self, request: &Request<'_>) {
        let said = || request.stop.iter().filter(|text| !text.is_blank());
        let count = said().count();
        if count == 0 {
            return;
        }
        if !self.model.stop {
            self.words.warnings.add(Action::Dropped, "stop_sequences");
            return;
        }
        if count > STOPS_MAX {
            self.words.warnings.add(Action::Clamped, "stop_sequences");
        }
        self.json.key("stop").open_array();
        for text in said().take(STOPS_MAX) {
            self.json.text(text);
        }
        self.json.close_array();
    }

    /// Writes `tools` and the related members. Returns true if there is a tool.
    fn tools(&mut self, request: &Request<'_>) -> Result<bool, Refused> {
        let model = self.given.target.public_model;
        let sent = tools::sent(request, model, self.words.warnings)?;
        if sent.len() > TOOLS_MAX {
            let message = format!("at most {TOOLS_MAX} tools are available for this model");
            return Err(refused(self.surface, "tools", &message));
        }
        if sent.is_empty() {
            // A chat vendor refuses a tool choice without tools.
            return Ok(false);
        }
        if self.model.tools_with_reasoning == ToolsWithReasoning::ResponsesOnly {
            let message = format!("Tools are not available for model '{model}' on this endpoint.");
            return Err(Box::new(
                Failure::new(Kind::InvalidRequest, message).with_param("tools"),
            ));
        }
        let mut writer = ToolWriter {
            surface: self.surface,
            wording: Wording::Nested,
            takes_custom: self.model.custom_tools,
            words: &mut self.words,
            json: &mut self.json,
        };
        writer.write(&sent, &request.choice)?;
        let is_taken = match self.model.parallel_tool_calls {
            ParallelToolCalls::Accepted => true,
            ParallelToolCalls::WithAutoChoice => {
                matches!(request.choice, Choice::Absent | Choice::Auto)
            }
            ParallelToolCalls::Refused => false,
        };
        if request.parallel_calls == Some(false) && !is_taken {
            let field = match self.surface {
                Protocol::Messages => "tool_choice.disable_parallel_tool_use",
                Protocol::Chat | Protocol::Responses => "parallel_tool_calls",
            };
            self.words.warnings.add(Action::Dropped, field);
        } else if request.parallel_calls == Some(false) {
            self.json.key("parallel_tool_calls").bool(false);
        }
        Ok(true)
    }

    fn tier(&mut self, request: &Request<'_>) {
        let Some(tier) = &request.tier else { return };
        if request.surface == Protocol::Messages {
            if tier.is("standard_only") {
                self.json.key("service_tier").str("default");
            }
        } else if self.given.target.official {
            self.json.key("service_tier").text(tier);
        } else if !tier.is("auto") && !tier.is("default") {
            self.words.warnings.add(Action::Dropped, "service_tier");
        }
    }

    /// Writes the members that only the chat protocol defines. Another client API may have the same
    /// member.
    fn extras(&mut self, request: &Request<'_>) {
        for opaque in request
            .extra
            .iter()
            .filter(|opaque| opaque.origin == Protocol::Chat)
        {
            let name = opaque.name.value();
            match name.as_ref() {
                "verbosity" if !self.model.verbosity => {
                    self.words.warnings.add(Action::Dropped, "text.verbosity")
                }
                // `prompt_cache_key` is written with the end user; compatible servers do not know
                // any of the three.
                "prompt_cache_key" => {}
                "prompt_cache_options" | "prompt_cache_retention"
                    if !self.given.target.official => {}
                name => drop(self.json.key(name).raw(opaque.value.raw())),
            }
        }
    }

    /// Returns the id of the next call. If two calls have the same id, the later one gets a new id.
    fn call_id(&mut self, id: Option<&Text<'_>>) -> String {
        let fitting = |id| match self.model.tool_call_ids {
            ToolCallIds::Any => names::short_call_id(id),
            ToolCallIds::Nine => names::nine_letter_call_id(id),
        };
        let wanted = fitting(id.map(Text::value).unwrap_or_default()).into_owned();
        let count = self.ids.entry(wanted.clone()).or_default();
        *count = count.saturating_add(1);
        let id = match *count {
            1 => wanted,
            count => fitting(Cow::Owned(format!("{wanted}__{count}"))).into_owned(),
        };
        self.open.push_back(id.clone());
        id
    }
}

pub(in crate::protocol) fn refused(surface: Protocol, path: &str, message: &str) -> Refused {
    Box::new(Failure::invalid(surface, path, message))
}

/// Removes the billing header line from the instructions.
pub(in crate::protocol) fn without_nonce(request: &mut Request<'_>) {
    for block in &mut request.system {
        let BlockKind::Text(text) = &mut block.kind else {
            continue;
        };
        if let Text::Token { raw, escaped, .. } = text
            && raw.starts_with(NONCE)
        {
            *text = Text::token(behind_first_line(raw), *escaped);
        }
    }
}

/// Returns the part after the first line of the inside of a JSON string.
fn behind_first_line(raw: &str) -> &str {
    let mut letters = raw.char_indices();
    while let Some((_, letter)) = letters.next() {
        if letter == '\\'
            && let Some((at, 'n')) = letters.next()
        {
            return raw.get(at + 1..).unwrap_or_default();
        }
    }
    ""
}

/// Returns a string member of an opaque block.
fn member<'a>(value: Value<'a>, name: &str) -> Option<Text<'a>> {
    value.get(name).and_then(Value::text)
}
