//! Reads a messages request into the IR.
//!
//! This reader validates what the messages API defines, with errors in its wording: types, ranges,
//! enumerated tags. It must not judge the abilities of a model: content that only this protocol has
//! passes on as [`Opaque`], and the writer of the vendor's protocol gives it an outcome. It accepts
//! a request without `max_tokens`, because token counting has none.
//!
//! Read next: `messages/read_request/fields.rs` (the outcome of each member),
//! `messages/read_request/blocks.rs`.

pub use fields::FIELDS;

use crate::protocol::Protocol;
use crate::protocol::failure::{Failure, Kind};
use crate::protocol::form::{
    Effort, Format, Limit, Opaque, Reasoning, Refused, Request, Sampling, Warnings,
};
use crate::protocol::rules::Outcome;
use crate::protocol::text::Text;
use crate::protocol::tree::Value;
use std::collections::HashMap;

mod blocks;
mod check;
pub(crate) mod fields;
mod tools;

use check::{is_true, object, pick, refused, required, text};

/// Minimum thinking budget, in tokens.
const BUDGET_TOKENS_MIN: u64 = 1_024;

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
pub fn read<'a>(body: Value<'a>, warnings: &mut Warnings) -> Result<Request<'a>, Refused> {
    if !body.is_object() {
        return Err(Box::new(Failure::new(
            Kind::InvalidRequest,
            "The request body must be a JSON object.",
        )));
    }
    let mut extra = Vec::new();
    let limit = limit(body.get("max_tokens"))?;
    let (effort, format) = output_config(body, &mut extra)?;
    let thinking = thinking(body.get("thinking"), limit, warnings)?;
    let (choice, parallel_calls) = tools::choice(body.get("tool_choice"), warnings)?;
    let tools = tools::read(body.get("tools"), warnings)?;
    let end_user = end_user(body.get("metadata"), &mut extra)?;
    let sampling = Sampling {
        temperature: from_zero_to_one(body.get("temperature"), "temperature")?,
        top_p: from_zero_to_one(body.get("top_p"), "top_p")?,
        top_k: body.get("top_k").map(top_k).transpose()?,
    };
    let stop = stop_sequences(body.get("stop_sequences"))?;
    let tier = service_tier(body.get("service_tier"))?;
    let stream = is_true(body.get("stream"), "stream")?;
    let system = blocks::system(body.get("system"), warnings)?;
    let turns = blocks::turns(body.get("messages"), warnings)?;
    others(body, &mut extra);
    let reasoning = Reasoning {
        effort,
        effort_field: "output_config.effort",
        thinking,
        ..Reasoning::default()
    };
    Ok(Request {
        surface: Protocol::Messages,
        system,
        turns,
        tools,
        legacy_functions: false,
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
        own_tools: HashMap::new(),
        echo: Vec::new(),
    })
}

/// Keeps the top-level members that no other function reads.
fn others<'a>(body: Value<'a>, extra: &mut Vec<Opaque<'a>>) {
    for (name, value) in body.members() {
        // The IR has a field for `top_k`, although most vendors never receive it.
        let is_read = fields::outcome("", &name.value()) == Some(Outcome::Map) || name.is("top_k");
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
fn keep<'a>(parent: &str, name: &Text<'_>, value: Value<'a>, extra: &mut Vec<Opaque<'a>>) {
    let name = Text::made(format!("{parent}.{}", name.value()));
    extra.push(Opaque {
        origin: Protocol::Messages,
        name,
        value,
    });
}

/// Reads `max_tokens`. It keeps 0, which vendors of this protocol give a meaning; the writer
/// refuses it where necessary.
fn limit(value: Option<Value<'_>>) -> Result<Option<Limit>, Refused> {
    let Some(value) = value else { return Ok(None) };
    if let Some(tokens) = value.count() {
        return Ok(Some(Limit {
            field: "max_tokens",
            tokens,
        }));
    }
    let is_negative = value.number().is_some_and(|number| number < 0.0);
    let message = if is_negative {
        "Input should be greater than or equal to 1"
    } else {
        check::NO_INTEGER
    };
    Err(refused("max_tokens", message))
}

fn from_zero_to_one<'a>(
    value: Option<Value<'a>>,
    path: &str,
) -> Result<Option<Value<'a>>, Refused> {
    let Some(value) = value else { return Ok(None) };
    match value.number() {
        None => Err(refused(path, "Input should be a valid number")),
        Some(number) if !(0.0..=1.0).contains(&number) => Err(refused(path, "range: 0..1")),
        Some(_) => Ok(Some(value)),
    }
}

fn top_k(value: Value<'_>) -> Result<Value<'_>, Refused> {
    if value.count().is_some() {
        Ok(value)
    } else {
        Err(refused("top_k", check::NO_INTEGER))
    }
}

fn stop_sequences(value: Option<Value<'_>>) -> Result<Vec<Text<'_>>, Refused> {
    let Some(value) = value else {
        return Ok(Vec::new());
    };
    if !value.is_array() {
        return Err(refused("stop_sequences", check::NO_ARRAY));
    }
    let each = value.items().enumerate();
    each.map(|(index, item)| text(item, format_args!("stop_sequences[{index}]")))
        .collect()
}

fn service_tier(value: Option<Value<'_>>) -> Result<Option<Text<'_>>, Refused> {
    let Some(tier) = value else { return Ok(None) };
    let tier = text(tier, "service_tier")?;
    if tier.is("auto") || tier.is("standard_only") {
        return Ok(Some(tier));
    }
    Err(refused(
        "service_tier",
        "Input should be 'auto' or 'standard_only'",
    ))
}

fn end_user<'a>(
    metadata: Option<Value<'a>>,
    extra: &mut Vec<Opaque<'a>>,
) -> Result<Option<Text<'a>>, Refused> {
    let Some(metadata) = metadata else {
        return Ok(None);
    };
    object(metadata, "metadata")?;
    let [user_id] = pick(metadata, ["user_id"], |name, value| {
        keep("metadata", &name, value, extra)
    });
    user_id.map(|id| text(id, "metadata.user_id")).transpose()
}

/// Reads `output_config`, and `output_format`, the older name of one of its members.
fn output_config<'a>(
    body: Value<'a>,
    extra: &mut Vec<Opaque<'a>>,
) -> Result<(Option<Effort>, Format<'a>), Refused> {
    let older = body.get("output_format");
    let Some(config) = body.get("output_config") else {
        return Ok((None, format(older, "output_format", extra)?));
    };
    object(config, "output_config")?;
    let [effort, newer] = pick(config, ["effort", "format"], |name, value| {
        keep("output_config", &name, value, extra)
    });
    if newer.is_some() && older.is_some() {
        let failure = Failure::new(
            Kind::InvalidRequest,
            "output_format and output_config.format cannot both be set.",
        );
        return Err(Box::new(failure.with_param("output_format")));
    }
    let format = match newer {
        Some(_) => format(newer, "output_config.format", extra)?,
        None => format(older, "output_format", extra)?,
    };
    Ok((effort.map(level).transpose()?, format))
}

fn level(effort: Value<'_>) -> Result<Effort, Refused> {
    let path = "output_config.effort";
    let named = Effort::named(&text(effort, path)?.value());
    named
        .filter(|effort| EFFORTS.contains(effort))
        .ok_or_else(|| {
            refused(
                path,
                "Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
            )
        })
}

fn format<'a>(
    value: Option<Value<'a>>,
    path: &str,
    extra: &mut Vec<Opaque<'a>>,
) -> Result<Format<'a>, Refused> {
    let Some(value) = value else {
        return Ok(Format::Free);
    };
    object(value, path)?;
    let [kind, schema] = pick(value, ["type", "schema"], |name, value| {
        keep(path, &name, value, extra)
    });
    if !required(kind, format_args!("{path}.type"))?.is("json_schema") {
        return Err(refused(
            format_args!("{path}.type"),
            "Input should be 'json_schema'",
        ));
    }
    let schema = required(schema, format_args!("{path}.schema"))?;
    object(schema, format_args!("{path}.schema"))?;
    Ok(Format::Schema {
        schema,
        description: None,
        name: None,
        strict: None,
    })
}

/// Validates `thinking` and returns it unchanged: its meaning depends on the model.
fn thinking<'a>(
    value: Option<Value<'a>>,
    limit: Option<Limit>,
    warnings: &mut Warnings,
) -> Result<Option<Value<'a>>, Refused> {
    let Some(value) = value else { return Ok(None) };
    object(value, "thinking")?;
    let [kind, budget, display] = pick(value, ["type", "budget_tokens", "display"], |name, _| {
        check::left_out("thinking", "thinking", &name, warnings);
    });
    let kind = text(required(kind, "thinking.type")?, "thinking.type")?;
    display
        .map(|display| text(display, "thinking.display"))
        .transpose()?;
    match kind.value().as_ref() {
        "adaptive" | "between_tools" | "disabled" => return Ok(Some(value)),
        "enabled" => {}
        other => {
            let message = format!(
                "Input tag '{other}' found using 'type' does not match any of the expected tags: \
                 'adaptive', 'between_tools', 'disabled', 'enabled'"
            );
            return Err(refused("thinking", &message));
        }
    }
    let path = "thinking.enabled.budget_tokens";
    let budget = required(budget, path)?
        .number()
        .ok_or_else(|| refused(path, check::NO_INTEGER))?;
    let tokens = value.get("budget_tokens").and_then(Value::count);
    match (tokens, limit) {
        (None, _) if budget > 0.0 => Err(refused(path, check::NO_INTEGER)),
        (None | Some(..BUDGET_TOKENS_MIN), _) => Err(refused(
            path,
            &format!("Input should be greater than or equal to {BUDGET_TOKENS_MIN}"),
        )),
        (Some(tokens), Some(limit)) if tokens >= limit.tokens => {
            let message = "`max_tokens` must be greater than `thinking.budget_tokens`";
            Err(Box::new(
                Failure::new(Kind::InvalidRequest, message).with_param("max_tokens"),
            ))
        }
        (Some(_), _) => Ok(Some(value)),
    }
}
