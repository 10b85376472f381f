//! Builds the chat vendor's parameter errors, and implements the checks of members and names that
//! all its checks share. The responses vendor uses them too.
//!
//! This file must not list the parameters of a request (`chat.rs` and `responses.rs` do).

use serde_json::Value;

use super::members::{is_word, unknown_member};
use crate::errors::SimulatedError;

/// Maximum length of the strings by which a caller identifies its users and its caches.
pub const MAX_LABEL_CHARS: usize = 64;

pub fn unknown_parameter(path: &str) -> SimulatedError {
    SimulatedError::from_param(
        format!("Unknown parameter: '{path}'."),
        path,
        Some("unknown_parameter"),
    )
}

pub fn missing(path: &str) -> SimulatedError {
    let text = format!("Missing required parameter: '{path}'.");
    SimulatedError::from_param(text, path, Some("missing_required_parameter"))
}

pub fn invalid(path: &str, message: impl Into<String>) -> SimulatedError {
    SimulatedError::from_param(message, path, Some("invalid_value"))
}

pub fn too_long(path: &str, max: usize, length: usize) -> SimulatedError {
    let text = format!(
        "Invalid '{path}': string too long. Expected a string with maximum length {max}, but got a string with length \
         {length} instead."
    );
    SimulatedError::from_param(text, path, Some("string_above_max_length"))
}

pub fn array_too_long(path: &str, max: usize, length: usize) -> SimulatedError {
    let text = format!(
        "Invalid '{path}': array too long. Expected an array with maximum length {max}, but got an array with length \
         {length} instead."
    );
    SimulatedError::from_param(text, path, Some("array_above_max_length"))
}

pub fn empty_array(path: &str) -> SimulatedError {
    let text = format!(
        "Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    );
    SimulatedError::from_param(text, path, Some("empty_array"))
}

/// Rejects members of `value` that are not in the list of known ones.
pub fn check_members(path: &str, value: &Value, known: &[&str]) -> Result<(), SimulatedError> {
    match unknown_member(value, known) {
        Some(name) => Err(unknown_parameter(&format!("{path}.{name}"))),
        None => Ok(()),
    }
}

/// Rejects an invalid function name.
pub fn check_name(path: &str, name: &Value) -> Result<(), SimulatedError> {
    let Some(name) = name.as_str() else {
        return Err(missing(path));
    };
    if name.chars().count() > MAX_LABEL_CHARS {
        return Err(too_long(path, MAX_LABEL_CHARS, name.chars().count()));
    }
    match is_word(name, MAX_LABEL_CHARS) {
        true => Ok(()),
        false => Err(invalid(
            path,
            format!(
                "Invalid '{path}': string does not match pattern. Expected a string that matches the pattern \
                 '^[a-zA-Z0-9_-]+$'."
            ),
        )),
    }
}
