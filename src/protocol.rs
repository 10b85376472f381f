//! The pure core's door: what the protocols say, and how one is passed on or told of a failure.
//!
//! Bytes and values in, bytes and values out. Nothing below this file knows a server, a clock, a
//! task, a log, a price or a configuration; every function here can be run on any bytes by a test.
//!
//! Same protocol on both sides: [`request`] reads what admission must know and splices the few
//! edits, [`same`] passes the answer on. Two protocols: [`translate`] goes through [`form`] and the
//! rooms `chat/`, `messages/` and `responses/`, four doors each; it is never a step of the
//! pass-through path. [`answer`] is what the edge holds either of them by, and [`failure`] renders
//! every refusal.
//!
//! Read next: `protocol/request.rs`, then `protocol/answer.rs`.

use serde::{Deserialize, Serialize};

pub mod answer;
pub mod aside;
pub mod carrier;
mod chat;
mod counters;
mod estimate;
pub mod failure;
pub mod form;
mod image_size;
mod messages;
pub mod request;
pub mod responses;
pub mod rules;
pub mod same;
mod scan;
mod splice;
pub mod sse;
mod surrogates;
pub mod text;
pub mod translate;
pub mod tree;

/// A protocol: of a *surface* when the client speaks it, of a vendor when we speak it.
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
    /// `chat`, `messages` or `responses`: the label in logs, metrics and receipts.
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
