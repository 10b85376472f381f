//! Reads a chat completions request into the IR.
//!
//! The reader validates the types, ranges and enumerated values of the client API. It must not
//! depend on the target model. It keeps every member that only chat defines unchanged, as an
//! [`Opaque`] of origin chat; the writer maps, drops or refuses such a member. A member *inside* a
//! message, part, call or tool that the IR cannot represent is dropped, with a warning unless its
//! value is empty. `fields/chat.rs` lists the outcome of every member.
//!
//! Read next: `fields/chat.rs`, then `read_request/messages.rs`.

use crate::Protocol;
use crate::failure::Failure;
use crate::fields::chat as chat_fields;
use crate::ir::{Opaque, Request, RequestResult, Warnings};
use crate::json::{JsonStr, JsonValue};
use crate::openai::check::{self, MemberType, refuse_type};
use crate::openai::settings as shared_settings;

mod messages;
mod parts;
mod reasoning;
mod settings;
mod tools;

/// Reads the request body.
///
/// # Errors
/// Returns an error if the body breaks a rule of the chat completions API.
pub fn read<'a>(body: JsonValue<'a>, warnings: &mut Warnings) -> RequestResult<Request<'a>> {
    if !body.is_object() {
        return Err(Failure::body_is_no_object().into());
    }
    match body.get("model") {
        None => {
            return check::refuse("model", "you must provide a model parameter");
        }
        Some(model) if !model.is_string() => return refuse_type("model", "a string", model),
        Some(_) => {}
    }
    let mut request = Request {
        limit: settings::limit(body)?,
        stop: settings::stop(body)?,
        end_user: shared_settings::end_user(body)?,
        tier: check::optional_text(body, "service_tier", "")?,
        stream: check::optional_bool(body, "stream", "")?.unwrap_or(false),
        ..Request::new(Protocol::Chat)
    };
    request.include_usage = settings::include_usage(body, request.stream, warnings)?;
    request.sampling = shared_settings::sampling(body)?;
    request.format = settings::format(body, warnings)?;
    request.reasoning = settings::reasoning(body, warnings)?;
    tools::read(body, &mut request, warnings)?;
    messages::read(body, &mut request, warnings)?;
    request.extra = extra(body)?;
    Ok(request)
}

/// Members of the messages protocol that the chat completions API also accepts.
const MESSAGES_MEMBERS: [&str; 4] = ["cache_control", "inference_geo", "output_config", "speed"];

/// Members that only the chat protocol defines, with their types.
const CHAT_ONLY_MEMBERS: [(&str, MemberType); 18] = [
    ("audio", MemberType::Object),
    ("frequency_penalty", MemberType::Number),
    ("logit_bias", MemberType::Object),
    ("logprobs", MemberType::Bool),
    ("metadata", MemberType::Object),
    ("modalities", MemberType::Array),
    ("moderation", MemberType::Object),
    ("n", MemberType::Integer),
    ("prediction", MemberType::Object),
    ("presence_penalty", MemberType::Number),
    ("prompt_cache_key", MemberType::String),
    ("prompt_cache_options", MemberType::Object),
    ("prompt_cache_retention", MemberType::String),
    ("seed", MemberType::Integer),
    ("store", MemberType::Bool),
    ("top_logprobs", MemberType::Integer),
    ("verbosity", MemberType::String),
    ("web_search_options", MemberType::Object),
];

/// Maximum number of unknown members to keep. The warning header does not list more.
const MAX_UNKNOWN_MEMBERS: usize = 256;

/// Collects the members that the IR does not represent, known or unknown to the protocol.
fn extra<'a>(body: JsonValue<'a>) -> RequestResult<Vec<Opaque<'a>>> {
    let mut extra = Vec::new();
    for name in MESSAGES_MEMBERS {
        if let Some(value) = body.get(name) {
            match name {
                "cache_control" => drop(check::cache_control(value, name)?),
                "output_config" => check::check_type(value, MemberType::Object, name)?,
                _ => check::check_type(value, MemberType::String, name)?,
            }
            extra.push(Opaque {
                origin: Protocol::Messages,
                name: JsonStr::from_value(name),
                value,
            });
        }
    }
    for (name, shape) in CHAT_ONLY_MEMBERS {
        if let Some(value) = body.get(name) {
            check::check_type(value, shape, name)?;
            extra.push(Opaque {
                origin: Protocol::Chat,
                name: JsonStr::from_value(name),
                value,
            });
        }
    }
    let is_known = |name: &str| chat_fields::is_top_level(name);
    let unknown = body
        .members()
        .filter(|(name, value)| !value.is_null() && !is_known(&name.value()));
    extra.extend(
        unknown
            .take(MAX_UNKNOWN_MEMBERS)
            .map(|(name, value)| Opaque {
                origin: Protocol::Chat,
                name,
                value,
            }),
    );
    Ok(extra)
}
