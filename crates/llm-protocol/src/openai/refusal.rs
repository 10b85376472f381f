//! Builds the refusal of a member that a request writer cannot send.

use crate::Protocol;
use crate::failure::Failure;
use crate::ir::BoxedFailure;

pub(crate) fn invalid_param(surface: Protocol, path: &str, message: &str) -> BoxedFailure {
    Box::new(Failure::invalid_param(surface, path, message))
}
