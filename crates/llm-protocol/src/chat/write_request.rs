//! Writes a request for a chat vendor.
//!
//! The writer refuses, drops or warns about every member that it cannot send, so no member of the
//! IR disappears without an outcome. The writer must not validate types again, because the reader
//! has done that.
//!
//! Read next: `chat/write_request/turns.rs` (the messages), `openai/effort.rs`.

use crate::capabilities::{ChatModel, ParallelToolCalls, ToolsWithReasoning, pairing};
use crate::failure::{Failure, Kind};
use crate::ir::event::ResponseContext;
use crate::ir::write_context::{EncodedRequest, WriteContext};
use crate::ir::{Effort, OutputFormat, Request, RequestResult, ToolChoice, Warnings, refuse};
use crate::json::{JsonStr, JsonWriter, RawJson};
use crate::openai::api_variant::{self, ApiVariant};
use crate::openai::billing_header::strip_billing_header;
use crate::openai::effort;
use crate::openai::text_fallback::TextFallback;
use crate::openai::tools::{self, ToolWriter};
use crate::openai::unsupported;
use crate::profile::{ChatPlace, USUAL_TIERS};
use crate::{Protocol, estimate};
pub(crate) use parts::DOCUMENT_URL;
use std::collections::{HashMap, VecDeque};
use writer::ChatRequestWriter;

mod parts;
mod results;
pub(crate) mod turns;
mod writer;

/// Maximum number of stop sequences that a chat vendor accepts.
const MAX_STOPS: usize = 4;

/// Maximum number of tools that a chat vendor accepts.
const MAX_TOOLS: usize = 128;

/// Writes the request.
///
/// # Errors
/// Returns an error if the request needs a feature that the model lacks and that cannot be dropped,
/// or if calls and results do not pair.
pub fn write(
    request: &mut Request<'_>,
    model: &ChatModel,
    write_context: &WriteContext<'_>,
    warnings: &mut Warnings,
    response_context: &mut ResponseContext,
) -> RequestResult<EncodedRequest> {
    unsupported::check_members(request, warnings)?;
    unsupported::check_blocks(request, false)?;
    strip_billing_header(request);
    pairing::pair_tool_results(request, warnings)?;
    response_context.show_thinking = effort::wants_visible_thinking(request);
    if write_context.target.profile.hides_thinking {
        match request.surface {
            Protocol::Responses if !request.reasoning.hide => warnings.dropped("reasoning.summary"),
            _ if response_context.show_thinking => warnings.downgraded("thinking"),
            _ => {}
        }
    }
    let json = JsonWriter::with_capacity(estimate::initial_body_capacity(
        response_context.input_estimate,
    ));
    let fallback = TextFallback {
        warnings,
        response_context,
        marks: model.cache_breakpoints,
    };
    let mut writer = ChatRequestWriter {
        surface: request.surface,
        model,
        write_context,
        fallback,
        json,
        carries_thinking: false,
        has_tools: false,
        replays: true,
        is_behind_result: false,
        ids: HashMap::new(),
        open: VecDeque::new(),
    };
    writer
        .json
        .open_object()
        .member("model", write_context.target.upstream_model);
    writer.settings(request)?;
    writer.has_tools = writer.tools(request)?;
    let support = effort::EffortSupport {
        reasons: model.reasoning,
        levels: &model.effort_values,
        takes_level: model.takes_effort,
        is_kept_from: writer.has_tools
            && match model.tools_with_reasoning {
                ToolsWithReasoning::EffortNone => true,
                ToolsWithReasoning::Unforced => request.choice.is_forced(),
                ToolsWithReasoning::Any | ToolsWithReasoning::ResponsesOnly => false,
            },
    };
    let effort = effort::select_effort(request, &support, writer.fallback.warnings);
    writer.reasoning_switch(effort, model.reasoning && effort::is_on(request));
    api_variant::write_end_user(request, write_context, &mut writer.json);
    writer.tier(request);
    writer.stream(request);
    writer.extras(request);
    writer.messages(request)?;
    writer.json.close_object();
    let ChatRequestWriter {
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

impl ChatRequestWriter<'_> {
    fn stream(&mut self, request: &Request<'_>) {
        if !request.stream {
            return;
        }
        self.json.member("stream", true);
        // A vendor without this member reports the usage in the last chunk without being asked.
        if self.write_context.target.profile.takes("stream_options") {
            self.json.member("stream_options", ("include_usage", true));
        }
    }

    fn settings(&mut self, request: &Request<'_>) -> RequestResult {
        if let Some(limit) =
            api_variant::output_limit(request, self.write_context, 1, self.fallback.warnings)?
        {
            self.json.member(self.model.output_limit_field, limit);
        }
        api_variant::write_sampling(
            request,
            self.model.sampling,
            &mut self.json,
            self.fallback.warnings,
        );
        if let Some(top_k) = request.sampling.top_k {
            if self.model.top_k {
                self.json.member("top_k", top_k);
            } else {
                self.fallback.warnings.dropped("top_k");
            }
        }
        self.stop(request);
        let profile = self.write_context.target.profile;
        let takes_strict = !profile.refuses(ChatPlace::Inner, "strict");
        if let OutputFormat::Schema {
            strict: Some(true), ..
        } = request.format
            && !takes_strict
        {
            self.fallback.warnings.dropped("response_format.strict");
        }
        let json = &mut self.json;
        ApiVariant::Nested.format("response_format", &request.format, takes_strict, json);
        Ok(())
    }

    fn stop(&mut self, request: &Request<'_>) {
        let stops = || request.stop.iter().filter(|text| !text.is_blank());
        let count = stops().count();
        if count == 0 {
            return;
        }
        if !self.model.stop {
            self.fallback.warnings.dropped("stop_sequences");
            return;
        }
        if count > MAX_STOPS {
            self.fallback.warnings.clamped("stop_sequences");
        }
        self.json.member_list("stop", stops().take(MAX_STOPS));
    }

    /// Writes `tools` and the related members. Returns true if there is a tool.
    fn tools(&mut self, request: &Request<'_>) -> RequestResult<bool> {
        let model = self.write_context.target.public_model;
        let sent = tools::sendable_tools(request, model, self.fallback.warnings)?;
        if sent.len() > MAX_TOOLS {
            let message = format!("at most {MAX_TOOLS} tools are available for this model");
            return refuse(self.surface, "tools", message);
        }
        if sent.is_empty() {
            // A chat vendor refuses a tool choice without tools.
            return Ok(false);
        }
        if self.model.tools_with_reasoning == ToolsWithReasoning::ResponsesOnly {
            let message = format!("Tools are not available for model '{model}' on this endpoint.");
            let failure = Failure::new(Kind::InvalidRequest, message);
            return Err(failure.with_param("tools").into());
        }
        let profile = self.write_context.target.profile;
        let mut writer = ToolWriter {
            surface: self.surface,
            variant: ApiVariant::Nested,
            takes_custom: self.model.custom_tools,
            takes_strict: !profile.refuses(ChatPlace::Inner, "strict"),
            fallback: &mut self.fallback,
            json: &mut self.json,
        };
        writer.write(&sent, &request.choice)?;
        let is_taken = match self.model.parallel_tool_calls {
            _ if !self.takes("parallel_tool_calls") => false,
            ParallelToolCalls::Accepted => true,
            ParallelToolCalls::WithAutoChoice => {
                matches!(request.choice, ToolChoice::Absent | ToolChoice::Auto)
            }
            ParallelToolCalls::Refused => false,
        };
        if request.parallel_calls == Some(false) && !is_taken {
            let field = match self.surface {
                Protocol::Messages => "tool_choice.disable_parallel_tool_use",
                Protocol::Chat | Protocol::Responses => "parallel_tool_calls",
            };
            self.fallback.warnings.dropped(field);
        } else if request.parallel_calls == Some(false) {
            self.json.member("parallel_tool_calls", false);
        }
        Ok(true)
    }

    /// Writes the effort. Some vendors have members of their own that turn reasoning on or off.
    fn reasoning_switch(&mut self, effort: Option<Effort>, is_on: bool) {
        let switch = match effort {
            Some(Effort::None) => self.model.reasoning_off.as_slice(),
            _ if is_on => &self.model.reasoning_on,
            _ => &[],
        };
        for (name, json) in switch {
            self.json.member(name, RawJson(json));
        }
        let is_said = effort == Some(Effort::None) && !switch.is_empty();
        if let Some(effort) = effort.filter(|_| !is_said && self.model.takes_effort) {
            self.json.member("reasoning_effort", effort.as_str());
        }
    }

    fn tier(&mut self, request: &Request<'_>) {
        let Some(tier) = &request.tier else { return };
        let default = JsonStr::from_value("default");
        let tier = match request.surface {
            Protocol::Messages if tier.is("standard_only") => &default,
            Protocol::Messages => return,
            Protocol::Chat | Protocol::Responses => tier,
        };
        let name = tier.value();
        let lacks_tier = self.write_context.target.profile.lacks_tier(&name);
        if self.takes("service_tier") && !lacks_tier {
            self.json.member("service_tier", tier);
        } else if !USUAL_TIERS.contains(&&*name) {
            self.fallback.warnings.dropped("service_tier");
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
                    self.fallback.warnings.dropped("text.verbosity")
                }
                // The end user's function writes this member.
                "prompt_cache_key" => {}
                "prompt_cache_options" | "prompt_cache_retention" if !self.takes(&name) => {}
                name => drop(self.json.member(name, opaque.value)),
            }
        }
    }

    /// Returns whether the vendor accepts this member, which is not in the base of the protocol.
    fn takes(&self, member: &str) -> bool {
        self.write_context.target.profile.takes(member)
    }
}
