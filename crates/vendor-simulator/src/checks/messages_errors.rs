//! Builds the messages vendor's error for an invalid request, and implements the check of members
//! that all its checks share.
//!
//! This file must not list the fields of a request (`messages.rs` does).

use serde_json::Value;

use super::members::unknown_member;
use crate::errors::SimulatedError;

pub fn invalid_request(message: impl Into<String>) -> SimulatedError {
    SimulatedError::new(400, message)
}

pub fn extra_input(path: &str) -> SimulatedError {
    invalid_request(format!("{path}: Extra inputs are not permitted"))
}

/// Rejects members of `value` that are not in the list of known ones.
pub fn check_members(path: &str, value: &Value, known: &[&str]) -> Result<(), SimulatedError> {
    match unknown_member(value, known) {
        Some(name) => Err(extra_input(&format!("{path}.{name}"))),
        None => Ok(()),
    }
}
