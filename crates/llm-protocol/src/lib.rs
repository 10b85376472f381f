//! Implements the three protocols of language models: chat completions, messages and responses. A
//! gateway passes their requests and responses on, translates them, meters their usage, and reports
//! failures in them.
//!
//! All functions convert bytes and values. This crate must not depend on a server, a clock, a task,
//! a log, a price or a configuration, so a test can run every function on any bytes.
//!
//! If client and vendor speak the same protocol, [`request`] reads the facts that admission needs
//! and makes a few edits in place, and [`passthrough`] forwards the answer. Otherwise,
//! [`translate`] goes through [`ir`] and the folders `chat/`, `messages/` and `responses/`, each
//! with four entry points. `openai/` has the code that chat and responses share, `fields/` the
//! outcome of each member of a request. Translation is never a step of the passthrough path.
//! [`vendor_response`] is the edge's interface to both paths, and [`failure`] renders every error
//! response. [`metered`] has the endpoints beyond the three protocols, such as embeddings.
//!
//! Read next: `request.rs`, then `vendor_response.rs`.
//!
//! # Examples
//!
//! A chat completions request for a vendor of the messages protocol, and the vendor's stream back:
//!
//! ```
//! use llm_protocol::Protocol;
//! use llm_protocol::capabilities::{MessagesModel, ModelCapabilities, TranslationTarget};
//! use llm_protocol::profile::VendorProfile;
//! use llm_protocol::translate::{StreamTranslation, TranslationRequest, translate_request};
//! use llm_protocol::vendor_response::ResponseStream as _;
//! use llm_protocol::usage::UsageEstimator;
//!
//! let accepts = ModelCapabilities::Messages(MessagesModel::default());
//! let request = TranslationRequest {
//!     surface: Protocol::Chat,
//!     body: br#"{"model":"m","stream":true,"messages":[{"role":"user","content":"Hello"}]}"#,
//!     target: TranslationTarget {
//!         upstream_model: "vendor-model",
//!         public_model: "m",
//!         max_output_tokens: 1_000,
//!         profile: VendorProfile::official(Protocol::Messages),
//!         accepts: &accepts,
//!     },
//!     account_id: "account-1",
//!     output_limit: None,
//!     strict: false,
//!     clock: || 0,
//!     request_id: "request-1",
//!     estimator: UsageEstimator::default(),
//! };
//! let translated = translate_request(&request, false).unwrap();
//! let body = std::str::from_utf8(&translated.body).unwrap();
//! assert!(body.contains(r#""model":"vendor-model""#) && body.contains(r#""max_tokens":1000"#));
//!
//! let events = [
//!     r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":5}}}"#,
//!     r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
//!     r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}"#,
//!     r#"{"type":"content_block_stop","index":0}"#,
//!     concat!(
//!         r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"#,
//!         r#""usage":{"output_tokens":2}}"#,
//!     ),
//!     r#"{"type":"message_stop"}"#,
//! ];
//! let vendor: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
//! let context = translated.response_context;
//! let mut stream =
//!     StreamTranslation::new(Protocol::Messages, Protocol::Chat, context, true, 1_048_576);
//! let mut out = Vec::new();
//! stream.push(vendor.as_bytes(), &mut out).unwrap();
//! assert!(stream.is_complete());
//! let out = String::from_utf8(out).unwrap();
//! assert!(out.contains(r#""delta":{"content":"Hi"}"#) && out.ends_with("data: [DONE]\n\n"));
//! ```
//!
//! A messages request for a vendor of chat completions, and the vendor's whole answer back:
//!
//! ```
//! use llm_protocol::Protocol;
//! use llm_protocol::capabilities::{ChatModel, ModelCapabilities, TranslationTarget};
//! use llm_protocol::profile::VendorProfile;
//! use llm_protocol::translate::{TranslationRequest, translate_request, translate_response};
//! use llm_protocol::usage::UsageEstimator;
//!
//! let accepts = ModelCapabilities::Chat(ChatModel::default());
//! let request = TranslationRequest {
//!     surface: Protocol::Messages,
//!     body: br#"{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"Hello"}]}"#,
//!     target: TranslationTarget {
//!         upstream_model: "vendor-model",
//!         public_model: "m",
//!         max_output_tokens: 1_000,
//!         profile: VendorProfile::official(Protocol::Chat),
//!         accepts: &accepts,
//!     },
//!     account_id: "account-1",
//!     output_limit: None,
//!     strict: false,
//!     clock: || 0,
//!     request_id: "request-1",
//!     estimator: UsageEstimator::default(),
//! };
//! let translated = translate_request(&request, false).unwrap();
//! let body = std::str::from_utf8(&translated.body).unwrap();
//! assert!(body.contains(r#""content":"Hello""#));
//!
//! let vendor = br#"{"id":"c1","object":"chat.completion","created":0,"model":"vendor-model",
//!     "choices":[{"index":0,"finish_reason":"stop",
//!         "message":{"role":"assistant","content":"Hi"}}],
//!     "usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}"#;
//! let context = translated.response_context;
//! let answer =
//!     translate_response(Protocol::Chat, Protocol::Messages, context, false, vendor).unwrap();
//! let answer = std::str::from_utf8(&answer.body).unwrap();
//! assert!(answer.contains(r#""text":"Hi""#), "{answer}");
//! ```

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test reads from top to bottom")
)]

use serde::{Deserialize, Serialize};

pub mod capabilities;
mod chat;
mod counters;
mod estimate;
mod event_frame;
pub mod failure;
mod fields;
mod image_size;
pub mod ir;
pub mod json;
pub mod keepalive;
mod messages;
pub mod metered;
mod openai;
pub mod passthrough;
pub mod profile;
pub mod reasoning_token;
pub mod request;
pub mod responses;
pub mod sse;
mod surrogates;
mod table_text;
pub mod translate;
pub mod usage;
pub mod vendor_response;

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct ReadmeDoctests;

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
    /// Returns the label in logs, metrics and receipts: `chat`, `messages` or `responses`.
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
