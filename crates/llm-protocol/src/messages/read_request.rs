//! Reads a messages request into the IR.
//!
//! This reader validates what the messages API defines, with errors in its wording: types, ranges,
//! enumerated tags. The reader must not judge the abilities of a model. Content that only this
//! protocol has becomes an [`Opaque`], whose outcome the writer of the vendor's protocol decides. A
//! request without `max_tokens` is accepted, because token counting has no such member.
//!
//! Read next: `fields/messages.rs` (the outcome of each member),
//! `messages/read_request/blocks.rs`.

use crate::Protocol;
use crate::capabilities::FieldMapping;
use crate::failure::{Failure, Kind};
use crate::fields::messages as messages_fields;
use crate::ir::{
    Effort, Opaque, OutputFormat, ReasoningSettings, Request, RequestResult, RequestedOutputLimit,
    SamplingParams, Warnings,
};
use crate::json::{JsonStr, JsonValue};

mod blocks;
mod check;
mod tools;

use check::{
    bool_or_false, expect_object, expect_string, invalid_param, optional_string, pick_known,
    pick_members, refuse, require, require_object, require_string, unexpected_tag,
};

/// Minimum thinking budget, in tokens.
const MIN_BUDGET_TOKENS: u64 = 1_024;

const EFFORTS: [Effort; 5] = [
    Effort::Low,
    Effort::Medium,
    Effort::High,
    Effort::Xhigh,
    Effort::Max,
];

/// Reads a request.
///
/// # Errors
/// Returns an error if the body breaks a rule of the messages API.
pub fn read<'a>(body: JsonValue<'a>, warnings: &mut Warnings) -> RequestResult<Request<'a>> {
    if !body.is_object() {
        return Err(Failure::body_is_no_object().into());
    }
    let mut extra = Vec::new();
    let limit = limit(body.get("max_tokens"))?;
    let (effort, format) = output_config(body, &mut extra)?;
    let thinking = thinking(body.get("thinking"), limit, warnings)?;
    let (choice, parallel_calls) = tools::choice(body.get("tool_choice"), warnings)?;
    let tools = tools::read(body.get("tools"), warnings)?;
    let end_user = end_user(body.get("metadata"), &mut extra)?;
    let sampling = SamplingParams {
        temperature: check_unit_range(body.get("temperature"), "temperature")?,
        top_p: check_unit_range(body.get("top_p"), "top_p")?,
        top_k: body.get("top_k").map(top_k).transpose()?,
    };
    let stop = stop_sequences(body.get("stop_sequences"))?;
    let tier = service_tier(body.get("service_tier"))?;
    let stream = bool_or_false(body.get("stream"), "stream")?;
    let system = blocks::system(body.get("system"), warnings)?;
    let turns = blocks::turns(body.get("messages"), warnings)?;
    collect_extra(body, &mut extra);
    let reasoning = ReasoningSettings {
        effort,
        effort_field: "output_config.effort",
        thinking,
        ..ReasoningSettings::default()
    };
    Ok(Request {
        system,
        turns,
        tools,
        choice,
        parallel_calls,
        limit,
        sampling,
        stop,
        format,
        reasoning,
        end_user,
        tier,
        stream,
        include_usage: true,
        extra,
        ..Request::new(Protocol::Messages)
    })
}

/// Keeps the top-level members that no other function reads.
fn collect_extra<'a>(body: JsonValue<'a>, extra: &mut Vec<Opaque<'a>>) {
    for (name, value) in body.members() {
        // The IR has a field for `top_k`, although most vendors never receive it.
        let is_read = messages_fields::outcome("", &name.value()) == Some(FieldMapping::Map)
            || name.is("top_k");
        if !is_read && !value.is_null() {
            extra.push(Opaque {
                origin: Protocol::Messages,
                name,
                value,
            });
        }
    }
}

/// Keeps a member of a top-level object under its path.
fn push_extra<'a>(
    parent: &str,
    name: &JsonStr<'_>,
    value: JsonValue<'a>,
    extra: &mut Vec<Opaque<'a>>,
) {
    let name = JsonStr::from_value(format!("{parent}.{}", name.value()));
    extra.push(Opaque {
        origin: Protocol::Messages,
        name,
        value,
    });
}

/// Reads `max_tokens`. The reader keeps 0, which has a meaning for vendors of this protocol; the
/// writer refuses 0 where necessary.
fn limit(value: Option<JsonValue<'_>>) -> RequestResult<Option<RequestedOutputLimit>> {
    let Some(value) = value else { return Ok(None) };
    if let Some(tokens) = value.count() {
        return Ok(Some(RequestedOutputLimit {
            field: "max_tokens",
            tokens,
        }));
    }
    let is_negative = value.number().is_some_and(|number| number < 0.0);
    let message = if is_negative {
        "Input should be greater than or equal to 1"
    } else {
        check::NOT_AN_INTEGER
    };
    refuse("max_tokens", message)
}

fn check_unit_range<'a>(
    value: Option<JsonValue<'a>>,
    path: &str,
) -> RequestResult<Option<JsonValue<'a>>> {
    let Some(value) = value else { return Ok(None) };
    match value.number() {
        None => refuse(path, "Input should be a valid number"),
        Some(number) if !(0.0..=1.0).contains(&number) => refuse(path, "range: 0..1"),
        Some(_) => Ok(Some(value)),
    }
}

fn top_k(value: JsonValue<'_>) -> RequestResult<JsonValue<'_>> {
    if value.count().is_some() {
        Ok(value)
    } else {
        refuse("top_k", check::NOT_AN_INTEGER)
    }
}

fn stop_sequences(value: Option<JsonValue<'_>>) -> RequestResult<Vec<JsonStr<'_>>> {
    let Some(value) = value else {
        return Ok(Vec::new());
    };
    if !value.is_array() {
        return refuse("stop_sequences", check::NOT_AN_ARRAY);
    }
    let each = value.items().enumerate();
    each.map(|(index, item)| expect_string(item, format_args!("stop_sequences[{index}]")))
        .collect()
}

fn service_tier(value: Option<JsonValue<'_>>) -> RequestResult<Option<JsonStr<'_>>> {
    let Some(tier) = value else { return Ok(None) };
    let tier = expect_string(tier, "service_tier")?;
    if tier.is("auto") || tier.is("standard_only") {
        return Ok(Some(tier));
    }
    refuse("service_tier", "Input should be 'auto' or 'standard_only'")
}

fn end_user<'a>(
    metadata: Option<JsonValue<'a>>,
    extra: &mut Vec<Opaque<'a>>,
) -> RequestResult<Option<JsonStr<'a>>> {
    let Some(metadata) = metadata else {
        return Ok(None);
    };
    expect_object(metadata, "metadata")?;
    let [user_id] = pick_members(metadata, ["user_id"], |name, value| {
        push_extra("metadata", &name, value, extra)
    });
    optional_string(user_id, "metadata.user_id")
}

/// Reads `output_config`, and `output_format`, the older name of one of its members.
fn output_config<'a>(
    body: JsonValue<'a>,
    extra: &mut Vec<Opaque<'a>>,
) -> RequestResult<(Option<Effort>, OutputFormat<'a>)> {
    let older = body.get("output_format");
    let Some(config) = body.get("output_config") else {
        return Ok((None, format(older, "output_format", extra)?));
    };
    expect_object(config, "output_config")?;
    let [effort, newer] = pick_members(config, ["effort", "format"], |name, value| {
        push_extra("output_config", &name, value, extra)
    });
    if newer.is_some() && older.is_some() {
        let failure = Failure::new(
            Kind::InvalidRequest,
            "output_format and output_config.format cannot both be set.",
        );
        return Err(failure.with_param("output_format").into());
    }
    let format = match newer {
        Some(_) => format(newer, "output_config.format", extra)?,
        None => format(older, "output_format", extra)?,
    };
    Ok((effort.map(effort_level).transpose()?, format))
}

fn effort_level(effort: JsonValue<'_>) -> RequestResult<Effort> {
    let path = "output_config.effort";
    let named = Effort::parse(&expect_string(effort, path)?.value());
    named
        .filter(|effort| EFFORTS.contains(effort))
        .ok_or_else(|| {
            invalid_param(
                path,
                "Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
            )
        })
}

fn format<'a>(
    value: Option<JsonValue<'a>>,
    path: &str,
    extra: &mut Vec<Opaque<'a>>,
) -> RequestResult<OutputFormat<'a>> {
    let Some(value) = value else {
        return Ok(OutputFormat::Free);
    };
    expect_object(value, path)?;
    let [kind, schema] = pick_members(value, ["type", "schema"], |name, value| {
        push_extra(path, &name, value, extra)
    });
    if !require(kind, format_args!("{path}.type"))?.is("json_schema") {
        return refuse(format_args!("{path}.type"), "Input should be 'json_schema'");
    }
    let schema = require_object(schema, format_args!("{path}.schema"))?;
    Ok(OutputFormat::Schema {
        schema,
        description: None,
        name: None,
        strict: None,
    })
}

/// Validates `thinking` and returns the member unchanged, because its meaning depends on the model.
fn thinking<'a>(
    value: Option<JsonValue<'a>>,
    limit: Option<RequestedOutputLimit>,
    warnings: &mut Warnings,
) -> RequestResult<Option<JsonValue<'a>>> {
    let Some(value) = value else { return Ok(None) };
    expect_object(value, "thinking")?;
    let names = ["type", "budget_tokens", "display"];
    let [kind, budget, display] = pick_known(value, names, "thinking", "thinking", warnings);
    let kind = require_string(kind, "thinking.type")?;
    optional_string(display, "thinking.display")?;
    match kind.value().as_ref() {
        "adaptive" | "between_tools" | "disabled" => return Ok(Some(value)),
        "enabled" => {}
        other => {
            let expected = "'adaptive', 'between_tools', 'disabled', 'enabled'";
            return refuse("thinking", unexpected_tag(other, expected));
        }
    }
    let path = "thinking.enabled.budget_tokens";
    let budget = require(budget, path)?
        .number()
        .ok_or_else(|| invalid_param(path, check::NOT_AN_INTEGER))?;
    let tokens = value.get("budget_tokens").and_then(JsonValue::count);
    match (tokens, limit) {
        (None, _) if budget > 0.0 => refuse(path, check::NOT_AN_INTEGER),
        (None | Some(..MIN_BUDGET_TOKENS), _) => refuse(
            path,
            format_args!("Input should be greater than or equal to {MIN_BUDGET_TOKENS}"),
        ),
        (Some(tokens), Some(limit)) if tokens >= limit.tokens => {
            let message = "`max_tokens` must be greater than `thinking.budget_tokens`";
            Err(Failure::new(Kind::InvalidRequest, message)
                .with_param("max_tokens")
                .into())
        }
        (Some(_), _) => Ok(Some(value)),
    }
}
