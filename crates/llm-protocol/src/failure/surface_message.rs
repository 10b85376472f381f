//! Builds the message of a failure where the surfaces need different texts.
//!
//! This file must not choose a status or a code. Some clients search for exact texts (`prompt is
//! too long`), so the texts below are the vendors' own.
//!
//! Read next: `failure/table.rs`.

use super::constructors::Failure;
use super::context_length::{self, ContextOverflow};
use super::kind::Kind;
use super::table::failure_row;
use crate::Protocol;
use std::borrow::Cow;

pub(super) fn message_for_surface(failure: &Failure, surface: Protocol) -> Cow<'_, str> {
    match (failure.kind, failure.model.as_deref()) {
        (Kind::ModelNotFound | Kind::VendorModelMissing, Some(model)) => {
            // The vendor's own message, if there is one.
            let words = Some(&failure.message)
                .filter(|message| *message != failure_row(failure.kind).message)
                .map(|message| format!(" ({message})"))
                .unwrap_or_default();
            match surface {
                Protocol::Chat | Protocol::Responses => Cow::Owned(format!(
                    "The model `{model}` does not exist or you do not have access to it.{words}"
                )),
                Protocol::Messages => Cow::Owned(format!("model: {model}{words}")),
            }
        }
        (Kind::ContextTooLong, _) => context_too_long_message(&failure.message, surface),
        _ => Cow::Borrowed(&failure.message),
    }
}

/// Rewrites the message of any vendor so that a client of the surface recognises the failure.
fn context_too_long_message(message: &str, surface: Protocol) -> Cow<'_, str> {
    let of_messages =
        message.contains("prompt is too long") || message.contains("exceed context limit");
    let of_chat = message.contains("maximum context length is");
    let fits_surface = match surface {
        Protocol::Chat | Protocol::Responses => of_chat,
        Protocol::Messages => of_messages,
    };
    if fits_surface {
        return Cow::Borrowed(message);
    }
    match (surface, context_length::numbers(message)) {
        (Protocol::Messages, Some(ContextOverflow { tokens, maximum })) => Cow::Owned(format!(
            "prompt is too long: {tokens} tokens > {maximum} maximum"
        )),
        (Protocol::Chat | Protocol::Responses, Some(ContextOverflow { tokens, maximum })) => {
            Cow::Owned(format!(
                "This model's maximum context length is {maximum} tokens. \
                 However, your messages resulted in {tokens} tokens."
            ))
        }
        (Protocol::Messages, _) => Cow::Owned(format!("prompt is too long: {message}")),
        (Protocol::Chat | Protocol::Responses, _) => Cow::Owned(format!(
            "The input is longer than this model's maximum context length: {message}"
        )),
    }
}
