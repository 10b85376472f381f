//! Represents the request that all checks read.
//!
//! This file must not reject requests, which each vendor's checks do.

use serde_json::Value;

use super::{generations, members};
use crate::behaviour::Behaviour;

/// A call with a parsed body.
pub struct SimRequestCheck<'a> {
    pub model: &'a str,
    pub body: &'a Value,
    pub behaviour: &'a Behaviour,
    /// Previews that the caller enabled by a header.
    pub previews: &'a str,
}

impl SimRequestCheck<'_> {
    /// Returns a member of the body. A null counts as absent.
    pub fn non_null(&self, name: &str) -> Option<&Value> {
        members::non_null(self.body, name)
    }

    pub fn output_max(&self) -> Option<u64> {
        generations::max_output_tokens(self.model)
    }

    /// Returns whether the model is a real vendor's. All other models belong to compatible servers,
    /// which accept more.
    pub fn is_real(&self) -> bool {
        generations::generation(self.model).is_some()
    }

    pub fn has_preview(&self, name: &str) -> bool {
        self.previews.contains(name)
    }

    /// Returns whether an unknown field is accepted because the model is not a real vendor's.
    pub fn allows_extension(&self, name: &str) -> bool {
        !self.is_real() && name.starts_with("x_")
    }
}
