//! A request, written for a responses vendor.
//!
//! Every member that cannot be said is refused, left out or named in the warnings here: nothing that the form holds goes
//! missing without an outcome. It must not name anything that its vendor keeps: every request carries its whole history,
//! and nothing of it is to be stored.
//!
//! Read next: `responses/write_request/items.rs` (the conversation), `responses/write_request/extras.rs`.

use crate::protocol::Protocol;
use crate::protocol::chat::write_request::effort::{self, Thinker};
use crate::protocol::chat::write_request::foreign::Words;
use crate::protocol::chat::write_request::{cache_key, refusals, without_nonce};
use crate::protocol::failure::Failure;
use crate::protocol::form::answer::Recall;
use crate::protocol::form::{Action, Effort, Format, Refused, Request, Warnings};
use crate::protocol::rules::{ResponsesModel, names, pairing, schema};
use crate::protocol::text::{Json, Text};
use crate::protocol::translate::{Given, Written};

mod extras;
mod items;
mod reasoning;
mod tools;

use extras::Extras;

pub use reasoning::{PART_GAP, summary};

/// The smallest output limit that the vendor takes.
const OUTPUT_TOKENS_MIN: u64 = 16;

/// Output bytes for each estimated input token, for the first guess of the body's length.
const BYTES_PER_TOKEN: u64 = 4;
const FIRST_BYTES_MAX: u64 = 16 << 20;

/// Writes the request.
///
/// # Errors
/// It asks for what the model cannot do and must not be done without, or calls and results do not pair.
pub fn write(
    request: &mut Request<'_>,
    model: &ResponsesModel,
    given: &Given<'_>,
    warnings: &mut Warnings,
    recall: &mut Recall,
) -> Result<Written, Refused> {
    let extras = match request.surface {
        Protocol::Messages => {
            refusals::members(request, warnings)?;
            Extras::default()
        }
        Protocol::Chat | Protocol::Responses => extras::judge(request, model, warnings)?,
    };
    request.reasoning.effort = request.reasoning.effort.or(extras.effort);
    extras::blocks(request, warnings)?;
    refusals::blocks(request, true)?;
    without_nonce(request);
    pairing::pair(request, warnings)?;
    recall.show_thinking = effort::shows_thinking(request);
    recall.legacy_functions = request.legacy_functions;
    recall.tell_tier = request.tier.is_some();
    let capacity = recall.input_estimate.saturating_mul(BYTES_PER_TOKEN).min(FIRST_BYTES_MAX);
    let mut writer = Writer {
        surface: request.surface,
        model,
        given,
        warnings,
        recall,
        json: Json::with_capacity(usize::try_from(capacity).unwrap_or_default()),
        carries_thinking: false,
        calls: Vec::new(),
        calls_made: 0,
    };
    writer.json.open_object().key("model").str(given.target.upstream_model).key("store").bool(false);
    if model.reasoning {
        writer.json.key("include").open_array().str("reasoning.encrypted_content").close_array();
    }
    writer.limit(request)?;
    writer.sampling(request);
    writer.reasoning(request);
    writer.text(request, &extras);
    writer.tools(request)?;
    writer.end_user(request);
    writer.tier(request);
    if request.stream {
        writer.json.key("stream").bool(true);
        // Its own vendor pads its events, against listeners that we have not.
        if given.target.official {
            writer.json.key("stream_options").open_object().key("include_obfuscation").bool(false).close_object();
        }
    }
    for (name, value) in &extras.copied {
        writer.json.key(name).raw(value.raw());
    }
    writer.input(request)?;
    writer.json.close_object();
    let Writer { json, carries_thinking, .. } = writer;
    Ok(Written { body: json.into_bytes(), streams: request.stream, carries_thinking })
}

/// What is needed everywhere on the way.
struct Writer<'w> {
    surface: Protocol,
    model: &'w ResponsesModel,
    given: &'w Given<'w>,
    warnings: &'w mut Warnings,
    recall: &'w mut Recall,
    json: Json,
    carries_thinking: bool,
    /// The calls of the last assistant turn in order, as they were sent: their results take the same ids.
    calls: Vec<items::Sent>,
    calls_made: u64,
}

impl Writer<'_> {
    fn words(&mut self) -> Words<'_> {
        Words { warnings: self.warnings, marks: self.model.cache_breakpoints }
    }

    fn limit(&mut self, request: &Request<'_>) -> Result<(), Refused> {
        let most = self.given.target.max_output_tokens;
        let payable = self.given.output_limit.unwrap_or(u64::MAX);
        let Some(limit) = request.limit else {
            if self.surface == Protocol::Messages {
                return Err(refused(self.surface, "max_tokens", "Field required"));
            }
            if payable < most {
                self.json.key("max_output_tokens").number(payable.max(OUTPUT_TOKENS_MIN));
            }
            return Ok(());
        };
        if limit.tokens == 0 {
            let message = match self.surface {
                Protocol::Messages => "0 is only supported for models that offer cache pre-warming.".to_owned(),
                Protocol::Chat | Protocol::Responses => format!(
                    "Invalid '{}': integer below minimum value. Expected a value >= 1, but got 0 instead.",
                    limit.field
                ),
            };
            return Err(refused(self.surface, limit.field, &message));
        }
        if limit.tokens > most || limit.tokens < OUTPUT_TOKENS_MIN {
            self.warnings.add(Action::Clamped, limit.field);
        }
        let tokens = limit.tokens.min(most).min(payable).max(OUTPUT_TOKENS_MIN);
        self.json.key("max_output_tokens").number(tokens);
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
        if sampling.top_k.is_some() {
            self.warnings.add(Action::Dropped, "top_k");
        }
        if request.stop.iter().any(|text| !text.is_blank()) {
            self.warnings
                .add(Action::Dropped, if self.surface == Protocol::Messages { "stop_sequences" } else { "stop" });
        }
    }

    /// How hard to think, and whether it is to be told.
    fn reasoning(&mut self, request: &Request<'_>) {
        let thinker = Thinker { reasons: self.model.reasoning, levels: &self.model.effort_values, is_kept_from: false };
        let effort = effort::effort(request, &thinker, self.warnings);
        let is_extended = request.reasoning.effort_field.starts_with("reasoning.");
        let is_shown = match self.surface {
            Protocol::Messages => self.recall.show_thinking,
            Protocol::Chat | Protocol::Responses => {
                (is_extended || self.recall.show_thinking) && !request.reasoning.hide
            }
        };
        let is_shown = is_shown && self.model.summaries && self.model.reasoning && effort != Some(Effort::None);
        if effort.is_none() && !is_shown {
            return;
        }
        self.json.key("reasoning").open_object();
        if let Some(effort) = effort {
            self.json.key("effort").str(effort.as_str());
        }
        if is_shown {
            self.json.key("summary").str("auto");
        }
        self.json.close_object();
    }

    /// The form of the answer's text.
    fn text(&mut self, request: &Request<'_>, extras: &Extras<'_>) {
        let is_free = matches!(request.format, Format::Free);
        if is_free && extras.verbosity.is_none() {
            return;
        }
        self.json.key("text").open_object();
        if let Some(verbosity) = &extras.verbosity {
            self.json.key("verbosity").text(verbosity);
        }
        match &request.format {
            Format::Free => {}
            Format::Json => {
                self.json.key("format").open_object().key("type").str("json_object").close_object();
            }
            Format::Schema { schema, description, name, strict } => {
                self.json.key("format").open_object().key("type").str("json_schema").key("name");
                match name {
                    Some(name) => self.json.text(name),
                    None => self.json.str("output"),
                };
                if let Some(description) = description {
                    self.json.key("description").text(description);
                }
                self.json.key("schema").raw(schema.raw());
                let is_strict = strict.unwrap_or_else(|| schema::is_strict_for_chat(*schema));
                self.json.key("strict").bool(is_strict).close_object();
            }
        }
        self.json.close_object();
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

    fn tier(&mut self, request: &Request<'_>) {
        let Some(tier) = &request.tier else { return };
        match self.surface {
            Protocol::Chat | Protocol::Responses => drop(self.json.key("service_tier").text(tier)),
            Protocol::Messages if tier.is("standard_only") => drop(self.json.key("service_tier").str("default")),
            Protocol::Messages => {}
        }
    }
}

fn refused(surface: Protocol, path: &str, message: &str) -> Refused {
    Box::new(Failure::invalid(surface, path, message))
}
