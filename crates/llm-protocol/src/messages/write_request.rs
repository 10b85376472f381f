//! Writes a request for a messages vendor.
//!
//! The writer applies the rules of the target: it merges, moves, drops, warns and refuses. It must
//! not repeat the checks of the client API or change a text that the vendor accepts.
//! `fields/chat.rs` has the outcome of each member of a chat request.
//!
//! Read next: `write_request/turns.rs`, then `write_request/extras.rs`.

use crate::capabilities::{MessagesModel, identifiers, pairing};
use crate::ir::event::ResponseContext;
use crate::ir::write_context::{EncodedRequest, WriteContext};
use crate::ir::{Block, CacheMarkerOrigin, Request, RequestResult, Warnings};
use crate::json::{CompactJson, JsonWriter};
use crate::{Protocol, estimate};
use block_writer::BlockWriter;
use format::MessagesOutputFormat;
use markers::CacheMarkerBudget;
use tools::MessagesTools;

mod automatic_markers;
mod block_writer;
mod extras;
mod format;
mod marker_budget;
mod markers;
mod settings;
pub(crate) mod thinking;
mod tools;
pub(crate) mod turns;

/// Number of output tokens above which the gateway requests a stream, even if the client wants one
/// body. Network devices on the way cut a connection that is silent for minutes.
const MAX_UNSTREAMED_TOKENS: u64 = 8_192;

/// Writes the body. The function takes parts out of `request`.
///
/// # Errors
/// Returns an error if the request needs a feature that the model lacks and that cannot be dropped,
/// or if its calls and results do not match.
pub fn write(
    request: &mut Request<'_>,
    model: &MessagesModel,
    write_context: &WriteContext<'_>,
    warnings: &mut Warnings,
    response_context: &mut ResponseContext,
) -> RequestResult<EncodedRequest> {
    let adds_markers =
        automatic_markers::is_wanted(request, model, response_context.input_estimate);
    let emptied = turns::remove_unsendable_blocks(request, model, write_context, warnings)?;
    pairing::pair_tool_results(request, warnings)?;
    if adds_markers {
        automatic_markers::set(request);
        response_context.cache_markers = Some(CacheMarkerOrigin::Gateway);
    }
    let request = &*request;
    let extras = extras::check_extras(request, model, warnings)?;
    response_context.legacy_functions = request.legacy_functions;
    response_context.report_tier = request.tier.is_some();
    let max_tokens = settings::max_tokens(request, write_context, warnings);
    let form = format::output_format(request, model, warnings)?;
    response_context.unwrap_fence = matches!(form, MessagesOutputFormat::Instruction(_));

    let mut arranged = turns::merge_turns(request, model, warnings);
    let mut tools = MessagesTools::from_request(
        request,
        &arranged,
        extras.web_search,
        warnings,
        response_context,
    );
    let takes_display = write_context.target.profile.takes("display");
    let thinking = thinking::plan_thinking(
        &thinking::ThinkingInputs {
            reasoning: &request.reasoning,
            model,
            max_tokens,
            is_forced: tools.is_forced(),
            choice_field: tools.choice_field(),
            breaks_off: turns::breaks_thinking_off(&arranged, model),
            without: write_context.without_thinking,
            says_display: takes_display && request.surface == Protocol::Responses,
            takes_display,
        },
        warnings,
    );
    if thinking.unforce {
        tools.unforce();
    }
    let prefill =
        model.prefill && !thinking.is_on() && !matches!(form, MessagesOutputFormat::Schema(_));
    turns::pad_turns(&mut arranged, request, emptied, prefill, warnings);

    let markers =
        CacheMarkerBudget::new(request, &tools, &arranged, extras.cache.is_some(), warnings);
    if !adds_markers && markers.is_marked {
        response_context.cache_markers = Some(CacheMarkerOrigin::Caller);
    }
    let json = JsonWriter::with_capacity(estimate::initial_body_capacity(
        response_context.input_estimate,
    ));
    let streams = request.stream || max_tokens > MAX_UNSTREAMED_TOKENS;
    let carries_thinking = thinking.is_set_by_gateway() || turns::has_thinking(&arranged);

    let mut writer = BlockWriter::new(json, request.surface, markers, warnings, response_context);
    writer
        .json
        .open_object()
        .member("model", write_context.target.upstream_model)
        .member("max_tokens", max_tokens);
    if streams {
        writer.json.member("stream", true);
    }
    write_system(&mut writer, &request.system, &form)?;
    turns::write_messages(&mut writer, &arranged)?;
    tools.write(&mut writer, model)?;
    thinking.write(&mut writer.json);
    write_output_config(&mut writer.json, &thinking, &form, &extras);
    settings::write(&mut writer, request, model, thinking.is_turned_on());
    let end_user = request.end_user.as_ref().map(|end_user| end_user.value());
    let user_id = identifiers::hash_end_user(write_context.account_id, end_user.as_deref());
    writer.json.member("metadata", ("user_id", &user_id));
    for (name, value) in &extras.copied {
        writer.json.member(name, CompactJson(value.raw()));
    }
    if let Some(cache) = extras.cache {
        block_writer::write_cache_control(&mut writer.json, cache);
    }
    writer.json.close_object();
    Ok(EncodedRequest {
        body: writer.json.into_bytes(),
        streams,
        carries_thinking,
    })
}

/// Writes the caller's instructions, then the gateway's own.
fn write_system(
    writer: &mut BlockWriter<'_>,
    blocks: &[Block<'_>],
    form: &MessagesOutputFormat,
) -> RequestResult {
    if blocks.is_empty() && !matches!(form, MessagesOutputFormat::Instruction(_)) {
        return Ok(());
    }
    writer.json.member_array("system");
    for block in blocks {
        writer.block(block, markers::MarkerSection::System)?;
    }
    if let MessagesOutputFormat::Instruction(words) = form {
        writer.text_block(words);
    }
    writer.json.close_array();
    Ok(())
}

/// Writes the effort and the output format, both the gateway's choices and those that the client
/// wrote in the vendor's own form.
fn write_output_config(
    json: &mut JsonWriter,
    thinking: &thinking::ThinkingPlan<'_>,
    form: &MessagesOutputFormat,
    extras: &extras::MessagesExtras<'_>,
) {
    let schema = match form {
        MessagesOutputFormat::Schema(schema) => Some(schema),
        MessagesOutputFormat::Free | MessagesOutputFormat::Instruction(_) => None,
    };
    let own = extras
        .output_config
        .into_iter()
        .flat_map(|config| config.members());
    let own: Vec<_> = own
        .filter(|(name, value)| {
            let has_format = !matches!(form, MessagesOutputFormat::Free);
            let is_ours =
                name.is("format") && has_format || name.is("effort") && thinking.effort.is_some();
            !is_ours && !value.is_null()
        })
        .filter(|(name, _)| !name.is("effort") || thinking.is_verbatim())
        .collect();
    if own.is_empty() && schema.is_none() && thinking.effort.is_none() {
        return;
    }
    json.member_object("output_config");
    if let Some(effort) = thinking.effort {
        json.member("effort", effort.as_str());
    }
    if let Some(schema) = schema {
        json.member_typed("format", "json_schema")
            .member("schema", CompactJson(schema))
            .close_object();
    }
    json.copy_members(own);
    json.close_object();
}

#[cfg(test)]
mod tests {
    use crate::Protocol;
    use crate::capabilities::{MessagesModel, ModelCapabilities, ThinkingType};
    use crate::ir::Effort;
    use crate::translate::{self, TranslatedRequest, TranslationRequest};
    use serde_json::{Value, json};

    fn translated(
        request: &Value,
        thinking_types: &[ThinkingType],
        without_thinking: bool,
    ) -> TranslatedRequest {
        let accepts = ModelCapabilities::Messages(MessagesModel {
            thinking_types: thinking_types.to_vec(),
            effort_levels: vec![Effort::Low, Effort::High],
            ..MessagesModel::default()
        });
        let body = request.to_string();
        let input = TranslationRequest::in_test(Protocol::Chat, body.as_bytes(), 64_000, &accepts);
        translate::translate_request(&input, without_thinking).unwrap()
    }

    fn body(translated: &TranslatedRequest) -> Value {
        serde_json::from_slice(&translated.body).unwrap()
    }

    #[test]
    fn a_second_attempt_leaves_all_reasoning_out() {
        let request = json!({
            "model": "public-model", "max_tokens": 1000, "reasoning_effort": "high",
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello",
                 "thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIM"}]},
                {"role": "user", "content": "So?"},
            ],
        });
        let types = [ThinkingType::Adaptive, ThinkingType::Disabled];
        let first = translated(&request, &types, false);
        assert!(first.carries_thinking && first.warnings.is_empty());
        assert_eq!(
            body(&first)["messages"][1]["content"][0]["type"],
            "thinking"
        );
        let second = translated(&request, &types, true);
        assert!(!second.carries_thinking);
        assert_eq!(second.warnings, ["dropped:reasoning_effort"]);
        assert_eq!(body(&second)["thinking"], json!({"type": "disabled"}));
        assert_eq!(
            body(&second)["messages"][1]["content"],
            json!([{"type": "text", "text": "Hello"}])
        );
        assert_eq!(body(&second).get("output_config"), None);
        // Nothing to disable: this model thinks only on request.
        let manual = translated(
            &request,
            &[ThinkingType::Enabled, ThinkingType::Disabled],
            true,
        );
        assert_eq!(body(&manual).get("thinking"), None);
    }

    #[test]
    fn a_long_answer_is_asked_for_as_a_stream() {
        for (max_tokens, stream, streams) in
            [(8_192, false, false), (8_193, false, true), (1, true, true)]
        {
            let request = json!({
                "model": "public-model", "max_tokens": max_tokens, "stream": stream,
                "messages": [{"role": "user", "content": "Hi"}],
            });
            let result = translated(&request, &[], false);
            assert_eq!(result.streams, streams);
            assert_eq!(body(&result).get("stream"), streams.then_some(&json!(true)));
        }
    }

    #[test]
    fn the_answer_is_told_what_the_request_was() {
        let request = json!({
            "model": "public-model", "service_tier": "auto", "response_format": {"type": "json_object"},
            "tools": [
                {"type": "custom", "custom": {"name": "a.b"}},
                {"type": "function", "function": {"name": "c"}},
            ],
            "messages": [{"role": "user", "content": "Hi"}],
        });
        let response_context = translated(&request, &[], false).response_context;
        assert!(
            response_context.report_tier
                && response_context.unwrap_fence
                && !response_context.legacy_functions
                && !response_context.include_usage
        );
        assert_eq!(response_context.custom_tools, ["a.b"]);
        assert!(
            response_context
                .tool_names
                .iter()
                .any(|(alias, own)| alias.starts_with("a_b_") && own == "a.b")
        );
        let request = json!({
            "model": "public-model", "stream": true, "stream_options": {"include_usage": true},
            "functions": [{"name": "c"}], "messages": [{"role": "user", "content": "Hi"}],
        });
        let response_context = translated(&request, &[], false).response_context;
        assert!(
            response_context.legacy_functions
                && response_context.include_usage
                && !response_context.report_tier
                && !response_context.unwrap_fence
        );
    }
}
