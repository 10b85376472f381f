//! The three protocols of language models: requests, responses and streams of chat completions,
//! messages and responses, and how a gateway passes one on, translates it, meters its usage or
//! reports a failure in it.
//!
//! Bytes and values in, bytes and values out. Nothing below this file knows a server, a clock, a
//! task, a log, a price or a configuration. A test can run every function here on any bytes.
//!
//! Client and vendor speak the same protocol: [`request`] reads the facts that admission needs and
//! makes a few edits in place, and [`passthrough`] forwards the answer. They speak different
//! protocols: [`translate`] goes through [`ir`] and the folders `chat/`, `messages/` and
//! `responses/`, each with four entry points. Translation is never a step of the passthrough path.
//! [`vendor_response`] is the edge's interface to both paths, and [`failure`] renders every error
//! response.
//!
//! Read next: `request.rs`, then `vendor_response.rs`.

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test reads from top to bottom")
)]

use serde::{Deserialize, Serialize};

pub mod capabilities;
mod chat;
mod counters;
mod estimate;
pub mod failure;
mod image_size;
pub mod ir;
pub mod json_document;
mod json_edit;
mod json_scanner;
pub mod json_string;
pub mod keepalive;
mod messages;
pub mod passthrough;
pub mod reasoning_token;
pub mod request;
pub mod responses;
pub mod sse;
mod surrogates;
pub mod translate;
pub mod usage;
pub mod vendor_response;

/// A protocol. The client's protocol is called the *surface*; the other one is the vendor's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/responses`
    Responses,
}

impl Protocol {
    /// The label in logs, metrics and receipts: `chat`, `messages` or `responses`.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Chat => "chat",
            Protocol::Messages => "messages",
            Protocol::Responses => "responses",
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}
