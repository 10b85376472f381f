//! Reads the settings that chat and responses requests share: sampling and the end user.
//!
//! This file must check the settings against the client API only, not against a target.

use super::check::{optional_text, refuse, refuse_type, wrong_type};
use crate::ir::{RequestResult, SamplingParams};
use crate::json::{JsonStr, JsonValue};

pub(crate) fn sampling<'a>(body: JsonValue<'a>) -> RequestResult<SamplingParams<'a>> {
    let number =
        |name: &'static str, maximum: f64, words: &str| -> RequestResult<Option<JsonValue<'a>>> {
            let Some(value) = body.get(name) else {
                return Ok(None);
            };
            let number = value
                .number()
                .ok_or_else(|| wrong_type(name, "a decimal number", value))?;
            if !(0.0..=maximum).contains(&number) {
                return refuse(
                    name,
                    format!("Invalid '{name}': must be between 0 and {words}."),
                );
            }
            Ok(Some(value))
        };
    let top_k = body.get("top_k");
    if let Some(value) = top_k.filter(|value| value.count().is_none()) {
        return refuse_type("top_k", "an integer", value);
    }
    Ok(SamplingParams {
        temperature: number("temperature", 2.0, "2")?,
        top_p: number("top_p", 1.0, "1")?,
        top_k,
    })
}

/// Returns the end user from the first of these members that is present: `safety_identifier`,
/// `metadata.user_id`, `user`.
pub(crate) fn end_user<'a>(body: JsonValue<'a>) -> RequestResult<Option<JsonStr<'a>>> {
    let some = |text: Option<JsonStr<'a>>| text.filter(|text| !text.is_empty());
    let safety_identifier = some(optional_text(body, "safety_identifier", "")?);
    let user = some(optional_text(body, "user", "")?);
    let metadata = body.find(["metadata", "user_id"]).and_then(JsonValue::text);
    Ok(safety_identifier.or(some(metadata)).or(user))
}
