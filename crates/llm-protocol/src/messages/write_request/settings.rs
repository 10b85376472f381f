//! Writes the simple members: output limit, sampling, stop sequences, service tier.
//!
//! This file must not send a member that a newer model refuses, not even with its default value.
//!
//! Read next: `capabilities.rs`.

use super::block_writer::BlockWriter;
use crate::capabilities::{MessagesModel, SamplingSupport};
use crate::ir::write_context::WriteContext;
use crate::ir::{Request, Warnings};
use crate::json::{JsonStr, JsonValue};

/// Minimum `top_p` that has no effect on the model's choice.
const TOP_P_NO_EFFECT: f64 = 0.99;

/// Minimum `top_p` in a request with a thinking budget.
const MIN_TOP_P_WITH_BUDGET: f64 = 0.95;

/// Returns the output limit, which the vendor requires. It is the smallest of the client's limit,
/// the model's limit and the amount that the account can pay.
pub(super) fn max_tokens(
    request: &Request<'_>,
    write_context: &WriteContext<'_>,
    warnings: &mut Warnings,
) -> u64 {
    let model_max = write_context.target.max_output_tokens;
    let own = match request.limit {
        None => model_max,
        Some(limit) if limit.tokens > model_max => {
            warnings.clamped(limit.field);
            model_max
        }
        Some(limit) => limit.tokens,
    };
    own.min(write_context.output_limit.unwrap_or(u64::MAX))
        .max(1)
}

/// Writes the settings. `thinks` says whether the gateway turned thinking on, which allows few
/// values of sampling.
pub(super) fn write(
    writer: &mut BlockWriter<'_>,
    request: &Request<'_>,
    model: &MessagesModel,
    thinks: bool,
) {
    temperature(writer, request.sampling.temperature, model, thinks);
    let has_temperature = request.sampling.temperature.is_some();
    top_p(
        writer,
        request.sampling.top_p,
        model,
        has_temperature,
        thinks,
    );
    if let Some(top_k) = request.sampling.top_k {
        if model.sampling == SamplingSupport::Fixed || thinks {
            writer.warnings.dropped("top_k");
        } else {
            writer.json.member("top_k", top_k);
        }
    }
    stop(writer, &request.stop);
    tier(writer, request.tier.as_ref());
}

fn temperature(
    writer: &mut BlockWriter<'_>,
    temperature: Option<JsonValue<'_>>,
    model: &MessagesModel,
    thinks: bool,
) {
    let Some(temperature) = temperature else {
        return;
    };
    let number = temperature.number().unwrap_or(1.0);
    let is_default = number.total_cmp(&1.0).is_eq();
    if model.sampling == SamplingSupport::Fixed {
        if !is_default {
            writer.warnings.dropped("temperature");
        }
        return;
    }
    if number > 1.0 && !is_default {
        writer.warnings.clamped("temperature");
        writer.json.member("temperature", 1);
    } else if thinks && !is_default {
        writer.warnings.dropped("temperature");
    } else {
        writer.json.member("temperature", temperature);
    }
}

fn top_p(
    writer: &mut BlockWriter<'_>,
    top_p: Option<JsonValue<'_>>,
    model: &MessagesModel,
    has_temperature: bool,
    thinks: bool,
) {
    let Some(top_p) = top_p else { return };
    let number = top_p.number().unwrap_or(1.0);
    let (is_taken, is_silent) = match model.sampling {
        SamplingSupport::Fixed => (false, number >= TOP_P_NO_EFFECT),
        SamplingSupport::OneOf if has_temperature => (false, false),
        SamplingSupport::OneOf | SamplingSupport::Free => {
            (!thinks || number >= MIN_TOP_P_WITH_BUDGET, false)
        }
    };
    if is_taken {
        writer.json.member("top_p", top_p);
    } else if !is_silent {
        writer.warnings.dropped("top_p");
    }
}

/// Writes the stop sequences. The vendor refuses one that consists of white space only.
fn stop(writer: &mut BlockWriter<'_>, texts: &[JsonStr<'_>]) {
    for (index, _) in texts.iter().enumerate().filter(|(_, text)| text.is_blank()) {
        writer.warnings.dropped(format_args!("stop[{index}]"));
    }
    let mut kept = texts.iter().filter(|text| !text.is_blank()).peekable();
    if kept.peek().is_some() {
        writer.json.member_list("stop_sequences", kept);
    }
}

fn tier(writer: &mut BlockWriter<'_>, tier: Option<&JsonStr<'_>>) {
    let Some(tier) = tier else { return };
    match tier.value().as_ref() {
        "auto" => {}
        "default" | "standard_only" => {
            writer.json.member("service_tier", "standard_only");
        }
        "priority" | "fast" | "ultrafast" | "scale" => {
            writer.warnings.downgraded("service_tier");
            writer.json.member("service_tier", "auto");
        }
        // The value is `flex` or a future one.
        _ => writer.warnings.dropped("service_tier"),
    }
}
