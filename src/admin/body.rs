//! Names what handlers of the admin API get and return, and parses bodies, which are JSON objects
//! with only the expected members.
//!
//! This file must not depend on the meaning of a member.

use super::error::AdminError;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

pub(super) type BodyResult = Result<Bytes, BytesRejection>;
/// The one parameter of a path, or why it is not text.
pub(super) type PathParam = Result<Path<String>, PathRejection>;
pub(super) type QueryResult<T> = Result<Query<T>, QueryRejection>;
pub(super) type JsonResult = Result<Json<Value>, AdminError>;
pub(super) type CreatedResult = Result<(StatusCode, Json<Value>), AdminError>;

/// Parses a body, which must be an object with only the expected members, each at most once.
pub(super) fn parse_body<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, AdminError> {
    // Without this check, serde would accept an array and use its items as the members in order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(AdminError::Invalid("the body must be a JSON object".into()));
    }
    serde_json::from_slice(body)
        .map_err(|error| AdminError::Invalid(format!("the body is invalid: {error}")))
}

/// Deserializes a member that is present, even as `null`. Only a missing member means the default.
pub(super) fn deserialize_present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Deserializes a setting. A missing member leaves the setting unchanged (`None`), and `null`
/// resets it (`Some(None)`).
pub(super) fn deserialize_setting<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
