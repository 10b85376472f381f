//! A request, written for a chat vendor.
//!
//! Every member that cannot be said is refused, left out or named in the warnings here: nothing that the form holds
//! goes missing without an outcome. It must not judge the caller's types again; the reader did.
//!
//! Read next: `chat/write_request/turns.rs` (the messages), `chat/write_request/effort.rs`.

use crate::protocol::Protocol;
use crate::protocol::failure::Failure;
use crate::protocol::form::answer::Recall;
use crate::protocol::form::{Action, BlockKind, Format, Refused, Request, Warnings};
use crate::protocol::rules::{ChatModel, ToolsWithReasoning, names, pairing, schema};
use crate::protocol::text::{Json, Text};
use crate::protocol::translate::{Given, Written};
use crate::protocol::tree::Value;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

pub(in crate::protocol) mod effort;
pub(in crate::protocol) mod foreign;
pub(in crate::protocol) mod parts;
pub(in crate::protocol) mod refusals;
pub(in crate::protocol) mod results;
pub(in crate::protocol) mod tools;
mod turns;

use foreign::Words;

/// The most stop sequences that a chat vendor takes.
const STOPS_MAX: usize = 4;

/// A line that one client puts before its instructions, different in each request: it would defeat every cache of a
/// vendor that does not know to skip it.
const NONCE: &str = "x-anthropic-billing-header:";

/// Output bytes for each estimated input token, for the first guess of the body's length.
const BYTES_PER_TOKEN: u64 = 4;
const FIRST_BYTES_MAX: u64 = 16 << 20;

/// Writes the request.
///
/// # Errors
/// It asks for what the model cannot do and must not be done without, or calls and results do not pair.
pub fn write(
    request: &mut Request<'_>,
    model: &ChatModel,
    given: &Given<'_>,
    warnings: &mut Warnings,
    recall: &mut Recall,
) -> Result<Written, Refused> {
    refusals::members(request, warnings)?;
    refusals::blocks(request)?;
    without_nonce(request);
    pairing::pair(request, warnings)?;
    recall.show_thinking = effort::shows_thinking(request);
    let capacity = recall.input_estimate.saturating_mul(BYTES_PER_TOKEN).min(FIRST_BYTES_MAX);
    let mut writer = Writer {
        surface: request.surface,
        model,
        given,
        warnings,
        recall,
        json: Json::with_capacity(usize::try_from(capacity).unwrap_or_default()),
        carries_thinking: false,
        ids: HashMap::new(),
        open: VecDeque::new(),
    };
    writer.json.open_object().key("model").str(given.target.upstream_model);
    writer.limit(request)?;
    writer.sampling(request);
    writer.stop(request);
    writer.format(request);
    let has_tools = writer.tools(request)?;
    let thinker = effort::Thinker {
        reasons: model.reasoning,
        levels: &model.effort_values,
        is_kept_from: has_tools && model.tools_with_reasoning == ToolsWithReasoning::EffortNone,
    };
    if let Some(effort) = effort::effort(request, &thinker, writer.warnings) {
        writer.json.key("reasoning_effort").str(effort.as_str());
    }
    writer.end_user(request);
    writer.tier(request);
    if request.stream {
        writer.json.key("stream").bool(true);
        writer.json.key("stream_options").open_object().key("include_usage").bool(true).close_object();
    }
    writer.extras(request);
    writer.messages(request)?;
    writer.json.close_object();
    let Writer { json, carries_thinking, .. } = writer;
    Ok(Written { body: json.into_bytes(), streams: request.stream, carries_thinking })
}

/// What is needed everywhere on the way.
struct Writer<'w> {
    surface: Protocol,
    model: &'w ChatModel,
    given: &'w Given<'w>,
    warnings: &'w mut Warnings,
    recall: &'w mut Recall,
    json: Json,
    carries_thinking: bool,
    /// How often each id was wanted by a call.
    ids: HashMap<String, u64>,
    /// Ids of calls whose results come next, in order.
    open: VecDeque<String>,
}

impl Writer<'_> {
    fn words(&mut self) -> Words<'_> {
        Words { warnings: self.warnings, marks: self.model.cache_breakpoints }
    }

    fn limit(&mut self, request: &Request<'_>) -> Result<(), Refused> {
        let Some(limit) = request.limit else {
            if request.surface == Protocol::Messages {
                return Err(refused(request.surface, "max_tokens", "Field required"));
            }
            // What the account can pay for is all that must be said.
            if let Some(tokens) = self.given.output_limit {
                let tokens = tokens.min(self.given.target.max_output_tokens);
                self.json.key(self.model.output_limit_field).number(tokens);
            }
            return Ok(());
        };
        if limit.tokens == 0 {
            let message = "0 is only supported for models that offer cache pre-warming.";
            return Err(refused(request.surface, limit.field, message));
        }
        let most = self.given.target.max_output_tokens;
        if limit.tokens > most {
            self.warnings.add(Action::Clamped, limit.field);
        }
        let tokens = limit.tokens.min(most).min(self.given.output_limit.unwrap_or(u64::MAX));
        self.json.key(self.model.output_limit_field).number(tokens);
        Ok(())
    }

    fn sampling(&mut self, request: &Request<'_>) {
        let sampling = &request.sampling;
        for (name, value) in [("temperature", sampling.temperature), ("top_p", sampling.top_p)] {
            let Some(value) = value else { continue };
            if self.model.sampling {
                self.json.key(name).raw(value.raw());
            } else if value.number() != Some(1.0) {
                self.warnings.add(Action::Dropped, name);
            }
        }
        if let Some(top_k) = sampling.top_k {
            if self.model.top_k {
                self.json.key("top_k").raw(top_k.raw());
            } else {
                self.warnings.add(Action::Dropped, "top_k");
            }
        }
    }

    fn stop(&mut self, request: &Request<'_>) {
        let said = || request.stop.iter().filter(|text| !text.is_blank());
        let count = said().count();
        if count == 0 {
            return;
        }
        if !self.model.stop {
            self.warnings.add(Action::Dropped, "stop_sequences");
            return;
        }
        if count > STOPS_MAX {
            self.warnings.add(Action::Clamped, "stop_sequences");
        }
        self.json.key("stop").open_array();
        for text in said().take(STOPS_MAX) {
            self.json.text(text);
        }
        self.json.close_array();
    }

    fn format(&mut self, request: &Request<'_>) {
        match &request.format {
            Format::Free => {}
            Format::Json => {
                self.json.key("response_format").open_object().key("type").str("json_object").close_object();
            }
            Format::Schema { schema, description, name, strict } => {
                self.json.key("response_format").open_object().key("type").str("json_schema");
                self.json.key("json_schema").open_object().key("name");
                match name {
                    Some(name) => self.json.text(name),
                    None => self.json.str("output"),
                };
                if let Some(description) = description {
                    self.json.key("description").text(description);
                }
                self.json.key("schema").raw(schema.raw());
                let strict = strict.unwrap_or_else(|| schema::is_strict_for_chat(*schema));
                self.json.key("strict").bool(strict);
                self.json.close_object().close_object();
            }
        }
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
            self.warnings.add(Action::Dropped, "service_tier");
        }
    }

    /// What only chat can say: another surface may know the same member.
    fn extras(&mut self, request: &Request<'_>) {
        for opaque in request.extra.iter().filter(|opaque| opaque.origin == Protocol::Chat) {
            let name = opaque.name.value();
            match name.as_ref() {
                "verbosity" if !self.model.verbosity => self.warnings.add(Action::Dropped, "text.verbosity"),
                // Written with who is behind the request, or known to no compatible server.
                "prompt_cache_key" => {}
                "prompt_cache_options" | "prompt_cache_retention" if !self.given.target.official => {}
                name => drop(self.json.key(name).raw(opaque.value.raw())),
            }
        }
    }

    /// The id of the next call: of two of one id the later gets another.
    fn call_id(&mut self, id: Option<&Text<'_>>) -> String {
        let wanted = names::short_call_id(id.map(Text::value).unwrap_or_default()).into_owned();
        let count = self.ids.entry(wanted.clone()).or_default();
        *count = count.saturating_add(1);
        let id = match *count {
            1 => wanted,
            count => names::short_call_id(Cow::Owned(format!("{wanted}__{count}"))).into_owned(),
        };
        self.open.push_back(id.clone());
        id
    }

    /// Who is behind the request, unreadable; and for the vendor's cache, what its requests have in common.
    fn end_user(&mut self, request: &Request<'_>) {
        let account_id = self.given.account_id;
        let user = request.end_user.as_ref().map(Text::value);
        self.json.key("safety_identifier").str(&names::end_user(account_id, user.as_deref()));
        if self.given.target.official {
            self.json.key("prompt_cache_key").str(&cache_key(request, account_id));
        }
    }
}

/// What the requests of one user, or with the same instructions, have in common.
pub(in crate::protocol) fn cache_key(request: &Request<'_>, account_id: &str) -> String {
    let named = request.extra.iter().find(|opaque| opaque.name.is("prompt_cache_key"));
    let named = named.and_then(|opaque| opaque.value.text()).filter(|key| !key.is_empty());
    if let Some(common) = named.as_ref().or(request.end_user.as_ref()) {
        return names::cache_key(account_id, &common.value());
    }
    let texts = request.system.iter().filter_map(|block| match &block.kind {
        BlockKind::Text(text) => Some(text.value()),
        _ => None,
    });
    names::cache_key(account_id, &texts.collect::<String>())
}

fn refused(surface: Protocol, path: &str, message: &str) -> Refused {
    Box::new(Failure::invalid(surface, path, message))
}

/// Takes the nonce's line off the instructions.
pub(in crate::protocol) fn without_nonce(request: &mut Request<'_>) {
    for block in &mut request.system {
        let BlockKind::Text(text) = &mut block.kind else { continue };
        if let Text::Token { raw, escaped, .. } = text
            && raw.starts_with(NONCE)
        {
            *text = Text::token(behind_first_line(raw), *escaped);
        }
    }
}

/// Of the inside of a JSON string, what stands behind its first line.
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

/// A member of an opaque block, as text.
fn member<'a>(value: Value<'a>, name: &str) -> Option<Text<'a>> {
    value.get(name).and_then(Value::text)
}
