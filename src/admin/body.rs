//! Bodies of requests to the admin API: JSON objects with only the expected members.
//!
//! This file must not know what a member means.

use super::error::AdminError;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

pub(super) type BodyResult = Result<Bytes, BytesRejection>;

/// Parses a body: an object with only the expected members, each at most once.
pub(super) fn parse_body<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, AdminError> {
    // Otherwise serde would accept an array and take its items as the members in order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(AdminError::Invalid("the body must be a JSON object".into()));
    }
    serde_json::from_slice(body)
        .map_err(|error| AdminError::Invalid(format!("the body is invalid: {error}")))
}

/// Deserializes a member that is present, even as `null`. A missing member has a defined meaning;
/// `null` does not.
pub(super) fn deserialize_present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Deserializes a setting: missing leaves it as it is (`None`), `null` resets it (`Some(None)`).
pub(super) fn deserialize_setting<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
