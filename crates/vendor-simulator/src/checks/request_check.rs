//! The request that all checks read.
//!
//! This file must not reject anything: each vendor's checks do.

use serde_json::Value;

use super::{generations, members};
use crate::behaviour::Behaviour;

/// A call with a parsed body.
pub struct SimRequestCheck<'a> {
    pub model: &'a str,
    pub body: &'a Value,
    pub behaviour: &'a Behaviour,
    /// The previews that the caller enabled by header.
    pub previews: &'a str,
}

impl SimRequestCheck<'_> {
    /// A member of the body; null counts as absent.
    pub fn non_null(&self, name: &str) -> Option<&Value> {
        members::non_null(self.body, name)
    }

    /// Output limit of the model.
    pub fn output_max(&self) -> Option<u64> {
        generations::max_output_tokens(self.model)
    }

    /// Returns whether the model is a real vendor's. All others belong to compatible servers, which
    /// accept more.
    pub fn is_real(&self) -> bool {
        generations::generation(self.model).is_some()
    }

    pub fn has_preview(&self, name: &str) -> bool {
        self.previews.contains(name)
    }

    /// Returns whether an unknown field is accepted: it is an extension, and the model is not a
    /// real vendor's.
    pub fn allows_extension(&self, name: &str) -> bool {
        !self.is_real() && name.starts_with("x_")
    }
}
