//! A responses request, read into the form.
use crate::protocol::failure::Failure;
use crate::protocol::form::{Refused, Request, Warnings};
use crate::protocol::rules::Outcome;
use crate::protocol::tree::Value;

/// What becomes of each member.
pub const FIELDS: &[(&str, Outcome)] = &[];

/// Reads a request.
///
/// # Errors
/// Always, for now: the surface is not there.
pub fn read<'a>(_body: Value<'a>, _warnings: &mut Warnings) -> Result<Request<'a>, Refused> {
    Err(Box::new(Failure::responses_path()))
}
