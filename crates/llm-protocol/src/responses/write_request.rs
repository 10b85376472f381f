//! Writes a request for a responses vendor.
//!
//! The writer refuses, drops or warns about every member that it cannot send, so no member of the
//! IR disappears without an outcome. It must not refer to data that the vendor stores: every
//! request contains its whole history and asks the vendor not to store it.
//!
//! Read next: `responses/write_request/items.rs` (the conversation),
//! `responses/write_request/extras.rs`, `openai/tools.rs` (for both protocols of the
//! vendor).

use crate::capabilities::identifiers::CallIdAllocator;
use crate::capabilities::{ResponsesModel, pairing};
use crate::ir::event::ResponseContext;
use crate::ir::write_context::{EncodedRequest, WriteContext};
use crate::ir::{Effort, OutputFormat, Request, RequestResult, Warnings};
use crate::json::JsonWriter;
use crate::openai::api_variant::{self, ApiVariant};
use crate::openai::billing_header::strip_billing_header;
use crate::openai::effort::{self, EffortSupport};
use crate::openai::text_fallback::TextFallback;
use crate::openai::tools::{self, ToolWriter};
use crate::openai::unsupported;
use crate::profile::USUAL_TIERS;
use crate::{Protocol, estimate};

mod extras;
mod items;
mod reasoning;
mod writer;

use extras::ResponsesExtras;
use writer::ResponsesRequestWriter;

/// Minimum output limit that the vendor accepts.
const MIN_OUTPUT_TOKENS: u64 = 16;

/// Writes the request.
///
/// # Errors
/// Returns an error if the request needs a feature that the model lacks and that cannot be dropped,
/// or if calls and results do not pair.
pub fn write(
    request: &mut Request<'_>,
    model: &ResponsesModel,
    write_context: &WriteContext<'_>,
    warnings: &mut Warnings,
    response_context: &mut ResponseContext,
) -> RequestResult<EncodedRequest> {
    let extras = read_extras(request, model, write_context, warnings)?;
    request.reasoning.effort = request.reasoning.effort.or(extras.effort);
    extras::remove_chat_blocks(request, warnings)?;
    unsupported::check_blocks(request, true)?;
    strip_billing_header(request);
    pairing::pair_tool_results(request, warnings)?;
    response_context.show_thinking = effort::wants_visible_thinking(request);
    response_context.legacy_functions = request.legacy_functions;
    response_context.report_tier = request.tier.is_some();
    let json = JsonWriter::with_capacity(estimate::initial_body_capacity(
        response_context.input_estimate,
    ));
    let fallback = TextFallback {
        warnings,
        response_context,
        marks: model.cache_breakpoints,
    };
    let mut writer = ResponsesRequestWriter {
        surface: request.surface,
        model,
        write_context,
        fallback,
        json,
        carries_thinking: false,
        calls: Vec::new(),
        calls_made: 0,
        ids: CallIdAllocator::default(),
    };
    writer
        .json
        .open_object()
        .member("model", write_context.target.upstream_model)
        .member("store", false);
    if model.reasoning {
        writer
            .json
            .member_array("include")
            .value("reasoning.encrypted_content")
            .close_array();
    }
    writer.settings(request)?;
    writer.reasoning(request);
    writer.text(request, &extras);
    writer.tools(request)?;
    api_variant::write_end_user(request, write_context, &mut writer.json);
    writer.tier(request);
    writer.stream(request);
    for (name, value) in &extras.copied {
        writer.json.member(name, value);
    }
    writer.input(request)?;
    writer.json.close_object();
    let ResponsesRequestWriter {
        json,
        carries_thinking,
        ..
    } = writer;
    Ok(EncodedRequest {
        body: json.into_bytes(),
        streams: request.stream,
        carries_thinking,
    })
}

/// Checks the members that only one of the surfaces has, and returns those to write.
fn read_extras<'a>(
    request: &mut Request<'a>,
    model: &ResponsesModel,
    write_context: &WriteContext<'_>,
    warnings: &mut Warnings,
) -> RequestResult<ResponsesExtras<'a>> {
    if request.surface == Protocol::Messages {
        unsupported::check_members(request, warnings)?;
        return Ok(ResponsesExtras::default());
    }
    extras::check_extras(request, model, write_context.target.profile, warnings)
}

impl ResponsesRequestWriter<'_> {
    fn stream(&mut self, request: &Request<'_>) {
        if !request.stream {
            return;
        }
        self.json.member("stream", true);
        // The protocol's own vendor pads its events against eavesdroppers. The gateway does not
        // need the padding.
        if self
            .write_context
            .target
            .profile
            .takes("include_obfuscation")
        {
            self.json
                .member("stream_options", ("include_obfuscation", false));
        }
    }

    fn settings(&mut self, request: &Request<'_>) -> RequestResult {
        self.json.member_if_some(
            "max_output_tokens",
            api_variant::output_limit(
                request,
                self.write_context,
                MIN_OUTPUT_TOKENS,
                self.fallback.warnings,
            )?,
        );
        api_variant::write_sampling(
            request,
            self.model.sampling,
            &mut self.json,
            self.fallback.warnings,
        );
        if request.sampling.top_k.is_some() {
            self.fallback.warnings.dropped("top_k");
        }
        if request.stop.iter().any(|text| !text.is_blank()) {
            let field = if self.surface == Protocol::Messages {
                "stop_sequences"
            } else {
                "stop"
            };
            self.fallback.warnings.dropped(field);
        }
        Ok(())
    }

    /// Writes the effort, and whether the answer includes the reasoning.
    fn reasoning(&mut self, request: &Request<'_>) {
        let support = EffortSupport {
            reasons: self.model.reasoning,
            levels: &self.model.effort_values,
            takes_level: true,
            is_kept_from: false,
        };
        let effort = effort::select_effort(request, &support, self.fallback.warnings);
        let is_extended = request.reasoning.effort_field.starts_with("reasoning.");
        let is_shown = match self.surface {
            Protocol::Messages => self.fallback.response_context.show_thinking,
            Protocol::Chat | Protocol::Responses => {
                (is_extended || self.fallback.response_context.show_thinking)
                    && !request.reasoning.hide
            }
        };
        let is_shown = is_shown
            && self.model.summaries
            && self.model.reasoning
            && effort != Some(Effort::None);
        if effort.is_none() && !is_shown {
            return;
        }
        self.json.member_object("reasoning");
        if let Some(effort) = effort {
            self.json.member("effort", effort.as_str());
        }
        if is_shown {
            self.json.member("summary", "auto");
        }
        self.json.close_object();
    }

    /// Writes the response format of the answer's text.
    fn text(&mut self, request: &Request<'_>, extras: &ResponsesExtras<'_>) {
        let is_free = matches!(request.format, OutputFormat::Free);
        if is_free && extras.verbosity.is_none() {
            return;
        }
        self.json.member_object("text");
        self.json
            .member_if_some("verbosity", extras.verbosity.as_ref());
        ApiVariant::Flat.format("format", &request.format, true, &mut self.json);
        self.json.close_object();
    }

    /// Writes `tools` and the related members.
    fn tools(&mut self, request: &Request<'_>) -> RequestResult {
        let sent = tools::sendable_tools(
            request,
            self.write_context.target.public_model,
            self.fallback.warnings,
        )?;
        if sent.is_empty() {
            return Ok(());
        }
        let mut writer = ToolWriter {
            surface: self.surface,
            variant: ApiVariant::Flat,
            takes_custom: !self.model.functions_only,
            takes_strict: true,
            fallback: &mut self.fallback,
            json: &mut self.json,
        };
        writer.write(&sent, &request.choice)?;
        let parallel = match request.legacy_functions {
            true => Some(false),
            false => request.parallel_calls,
        };
        self.json.member_if_some("parallel_tool_calls", parallel);
        Ok(())
    }

    fn tier(&mut self, request: &Request<'_>) {
        let Some(tier) = &request.tier else { return };
        match self.surface {
            _ if !self.write_context.target.profile.takes("service_tier") => {
                if !USUAL_TIERS.iter().any(|usual| tier.is(usual)) {
                    self.fallback.warnings.dropped("service_tier");
                }
            }
            Protocol::Chat | Protocol::Responses => {
                self.json.member("service_tier", tier);
            }
            Protocol::Messages if tier.is("standard_only") => {
                self.json.member("service_tier", "default");
            }
            Protocol::Messages => {}
        }
    }
}
