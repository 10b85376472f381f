//! Writes the members that both protocols of a chat vendor have, each in its own form.
//!
//! This file must not write a member that only one of the two has.
//!
//! Read next: `openai/tools.rs`.

use crate::Protocol;
use crate::capabilities::{identifiers, schema};
use crate::ir::write_context::WriteContext;
use crate::ir::{
    BlockKind, OutputFormat, Request, RequestResult, RequestedOutputLimit, Warnings, refuse,
};
use crate::json::{JsonStr, JsonWriter};

/// Position of the members that belong to a `type`. Chat nests them in a member with the name of
/// the type; responses puts them next to `type`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiVariant {
    Nested,
    Flat,
}

impl ApiVariant {
    /// Opens an object of this type.
    pub fn open(self, kind: &str, json: &mut JsonWriter) {
        json.open_typed(kind);
        if self == ApiVariant::Nested {
            json.member_object(kind);
        }
    }

    pub fn close(self, json: &mut JsonWriter) {
        if self == ApiVariant::Nested {
            json.close_object();
        }
        json.close_object();
    }

    /// Writes the response format of the answer's text as the member `name`.
    pub fn format(
        self,
        name: &str,
        format: &OutputFormat<'_>,
        takes_strict: bool,
        json: &mut JsonWriter,
    ) {
        match format {
            OutputFormat::Free => {}
            OutputFormat::Json => drop(json.member_typed(name, "json_object").close_object()),
            OutputFormat::Schema {
                schema,
                description,
                name: own,
                strict,
            } => {
                self.open("json_schema", json.key(name));
                match own {
                    Some(own) => json.member("name", own),
                    None => json.member("name", "output"),
                };
                json.member_if_some("description", description.as_ref());
                json.member("schema", schema);
                if takes_strict {
                    let is_strict = strict.unwrap_or_else(|| schema::is_strict_for_chat(*schema));
                    json.member("strict", is_strict);
                }
                self.close(json);
            }
        }
    }
}

/// Returns the output limit to send: the smallest of the caller's limit, the model's limit and what
/// the account holder can pay, but at least the vendor's minimum. Returns `None` if no limit is
/// necessary.
///
/// # Errors
/// Returns an error if the client API requires a limit and there is none, or if the limit is 0.
pub(crate) fn output_limit(
    request: &Request<'_>,
    write_context: &WriteContext<'_>,
    min_tokens: u64,
    warnings: &mut Warnings,
) -> RequestResult<Option<u64>> {
    let model_max = write_context.target.max_output_tokens;
    let payable = write_context.output_limit.unwrap_or(u64::MAX);
    let Some(RequestedOutputLimit { field, tokens }) = request.limit else {
        if request.surface == Protocol::Messages {
            return refuse(request.surface, "max_tokens", "Field required");
        }
        return Ok((payable < model_max).then_some(payable.max(min_tokens)));
    };
    // The readers of the other client APIs have refused 0.
    if tokens == 0 {
        let message = "0 is only supported for models that offer cache pre-warming.";
        return refuse(request.surface, field, message);
    }
    if tokens > model_max || tokens < min_tokens {
        warnings.clamped(field);
    }
    Ok(Some(tokens.min(model_max).min(payable).max(min_tokens)))
}

/// Writes `temperature` and `top_p`. A model that accepts neither behaves as if they were 1.
pub(crate) fn write_sampling(
    request: &Request<'_>,
    is_taken: bool,
    json: &mut JsonWriter,
    warnings: &mut Warnings,
) {
    for (name, value) in [
        ("temperature", request.sampling.temperature),
        ("top_p", request.sampling.top_p),
    ] {
        let Some(value) = value else { continue };
        if is_taken {
            json.member(name, value);
        } else if value.number() != Some(1.0) {
            warnings.dropped(name);
        }
    }
}

/// Writes the end user as a hash, and a key for the vendor's cache that related requests share.
pub(crate) fn write_end_user(
    request: &Request<'_>,
    write_context: &WriteContext<'_>,
    json: &mut JsonWriter,
) {
    let profile = write_context.target.profile;
    if profile.takes("safety_identifier") {
        let user = request.end_user.as_ref().map(JsonStr::value);
        json.member(
            "safety_identifier",
            identifiers::hash_end_user(write_context.account_id, user.as_deref()),
        );
    }
    if profile.takes("prompt_cache_key") {
        json.member(
            "prompt_cache_key",
            cache_key(request, write_context.account_id),
        );
    }
}

/// Returns the cache key, which requests of one user or with the same instructions share.
fn cache_key(request: &Request<'_>, account_id: &str) -> String {
    let named = request
        .extra
        .iter()
        .find(|opaque| opaque.name.is("prompt_cache_key"));
    let named = named
        .and_then(|opaque| opaque.value.text())
        .filter(|key| !key.is_empty());
    if let Some(common) = named.as_ref().or(request.end_user.as_ref()) {
        return identifiers::hash_cache_key(account_id, &common.value());
    }
    let texts = request.system.iter().filter_map(|block| match &block.kind {
        BlockKind::Text(text) => Some(text.value()),
        _ => None,
    });
    identifiers::hash_cache_key(account_id, &texts.collect::<String>())
}
