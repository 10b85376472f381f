//! Reads a responses request into the IR.
//!
//! This reader validates what the responses API defines, with errors in the wording that its
//! clients know. The reader refuses a request that names stored data, because the gateway stores no
//! responses, conversations or items. It keeps content that chat also has in the form of chat, so
//! that one rule of each writer serves both. `fields/responses.rs` lists the outcome of every other
//! member. Tools of every type become functions and custom tools with a qualified name, and the
//! reader records the original tool for the answer.
//!
//! This module must not refuse an item of the history, because an agent would repeat it for the
//! rest of its session. An item that the reader cannot represent becomes text, or is dropped with a
//! warning.
//!
//! Read next: `fields/responses.rs`, then `read_request/items.rs`.

use crate::Protocol;
use crate::failure::Failure;
use crate::ir::{Opaque, Request, RequestResult, Warnings};
use crate::json::{JsonStr, JsonValue};
use crate::openai::check::{self, MemberType, refuse_type};
use crate::openai::settings as shared_settings;

mod builtin;
mod history;
mod items;
mod parts;
mod settings;
mod tools;

/// Request members that the answer must repeat.
const ECHOED_MEMBERS: [&str; 14] = [
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "temperature",
    "text",
    "tool_choice",
    "top_logprobs",
    "top_p",
    "truncation",
];

/// Maximum number of unknown members to report. The warning header does not hold more.
const MAX_UNKNOWN_MEMBERS: usize = 256;

/// Reads the request body. `may_search` says whether the model has a price for searches that its
/// vendor runs.
///
/// # Errors
/// Returns an error if the body breaks a rule of the responses API, or refers to stored data.
pub fn read<'a>(
    body: JsonValue<'a>,
    may_search: bool,
    warnings: &mut Warnings,
) -> RequestResult<Request<'a>> {
    if !body.is_object() {
        return Err(Failure::body_is_no_object().into());
    }
    match body.get("model") {
        None => return Err(check::missing("model")),
        Some(model) if !model.is_string() => return refuse_type("model", "a string", model),
        Some(_) => {}
    }
    settings::reject_stateful(body)?;
    let mut request = Request {
        parallel_calls: check::optional_bool(body, "parallel_tool_calls", "")?,
        limit: settings::limit(body)?,
        end_user: shared_settings::end_user(body)?,
        tier: check::optional_text(body, "service_tier", "")?,
        stream: check::optional_bool(body, "stream", "")?.unwrap_or(false),
        include_usage: true,
        echo: ECHOED_MEMBERS
            .iter()
            .filter_map(|name| Some((*name, body.get(name)?)))
            .collect(),
        ..Request::new(Protocol::Responses)
    };
    settings::check_stream_options(body, request.stream, warnings)?;
    request.sampling = shared_settings::sampling(body)?;
    let updated = items::configuration_update(body);
    request.format = settings::format(body, updated, warnings)?;
    request.reasoning = settings::reasoning(body, updated, warnings)?;
    tools::read(body, may_search, &mut request, warnings)?;
    items::read(body, &mut request, warnings)?;
    read_extra_members(body, &mut request, warnings)?;
    Ok(request)
}

/// Reads the members that the IR does not represent, known or unknown.
fn read_extra_members<'a>(
    body: JsonValue<'a>,
    request: &mut Request<'a>,
    warnings: &mut Warnings,
) -> RequestResult {
    for (name, shape) in [
        ("cache_control", MemberType::Object),
        ("output_config", MemberType::Object),
        ("inference_geo", MemberType::String),
        ("speed", MemberType::String),
    ] {
        let Some(value) = body.get(name) else {
            continue;
        };
        check::check_type(value, shape, name)?;
        request.extra.push(Opaque {
            origin: Protocol::Messages,
            name: JsonStr::from_value(name),
            value,
        });
    }
    settings::check_include(body, warnings)?;
    for (name, value) in body
        .members()
        .filter(|(_, value)| !value.is_null())
        .take(MAX_UNKNOWN_MEMBERS)
    {
        settings::check_member(&name.value(), value, request, warnings)?;
    }
    Ok(())
}
