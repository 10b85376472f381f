//! All failures that the edge can respond with, and their form on each surface.
//!
//! This module must not decide *that* something failed, know HTTP types or log. `failure/kind.rs`
//! lists the kinds, `failure/constructors.rs` makes a failure of one. `failure/table.rs` and its
//! text define the appearance of each kind; `failure/vendor.rs` interprets a vendor's errors.
//!
//! Read next: `failure/constructors.rs`, `failure/table.rs`, then `failure/vendor.rs`.

use super::Protocol;
use constructors::MAX_RETRY_AFTER_SECONDS;
use serde::Serialize;

mod constructors;
mod context_length;
mod kind;
mod own_changes;
mod refused_member;
mod responses;
mod scrub;
mod surface_message;
mod table;
mod unserved;
mod vendor;

pub use constructors::{ExtraHeaders, Failure};
pub use kind::Kind;
pub use refused_member::{named_members, refused_member};
pub(crate) use vendor::{UNKNOWN_FORM, is_failure_reason};
pub use vendor::{
    VendorError, from_vendor_error, from_vendor_response, parse_retry_after as retry_after_seconds,
    refuses_key, shorten_words, unknown_form_excerpt,
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RenderedFailure {
    pub status: u16,
    /// The code in the body, or the failure's reason if the body has no code.
    pub code: String,
    pub message: String,
    pub body: Vec<u8>,
    /// Header fields: `content-type` and, if they apply, `retry-after` and `x-should-retry`.
    pub headers: Vec<(&'static str, String)>,
}

impl Failure {
    /// Renders the failure as a response, if no byte of a 200 was sent yet.
    pub fn render(&self, surface: Protocol, request_id: &str) -> RenderedFailure {
        let row = table::failure_row(self.kind);
        let (status, error_type) = row.status_and_type(surface);
        let message = surface_message::message_for_surface(self, surface);
        let code = match surface {
            Protocol::Responses => responses::error_code(self, row, status),
            Protocol::Chat | Protocol::Messages => self.code.as_deref().or(row.code),
        };
        let body = match surface {
            Protocol::Chat | Protocol::Responses => to_json(&ChatErrorBody {
                error: ChatErrorObject {
                    message: &message,
                    r#type: error_type,
                    param: self.param.as_deref().or(row.param_for(surface)),
                    code,
                },
            }),
            Protocol::Messages => to_json(&MessagesErrorBody {
                r#type: "error",
                error: MessagesErrorObject {
                    r#type: error_type,
                    message: &message,
                    details: code.map(|error_code| MessagesErrorDetails {
                        error_code,
                        unsupported: (self.kind == Kind::ThreadUnsupported).then_some(["model"]),
                    }),
                },
                request_id,
            }),
        };
        RenderedFailure {
            status,
            code: code.unwrap_or(self.reason()).to_owned(),
            message: message.into_owned(),
            body,
            headers: self.headers(row, status),
        }
    }

    /// Returns the last frame of a stream whose status 200 was sent. No frame may follow.
    pub fn encode_stream_error(&self, surface: Protocol, request_id: &str) -> Vec<u8> {
        let (code, error_type) = table::stream_error_codes(self.kind);
        let message = surface_message::message_for_surface(self, surface);
        let (before, body, after): (&[u8], _, &[u8]) = match surface {
            Protocol::Chat => (
                b"data: ",
                to_json(&ChatErrorBody {
                    error: ChatErrorObject {
                        message: &message,
                        r#type: "server_error",
                        param: None,
                        code: Some(code),
                    },
                }),
                b"\n\ndata: [DONE]\n\n",
            ),
            Protocol::Responses => return responses::encode_stream_error(self, request_id),
            Protocol::Messages => (
                b"event: error\ndata: ",
                to_json(&MessagesErrorBody {
                    r#type: "error",
                    error: MessagesErrorObject {
                        r#type: error_type,
                        message: &message,
                        details: None,
                    },
                    request_id,
                }),
                b"\n\n",
            ),
        };
        [before, &body, after].concat()
    }

    fn headers(&self, row: &table::FailureRow, status: u16) -> Vec<(&'static str, String)> {
        let mut headers = vec![("content-type", "application/json".to_owned())];
        if row.retry_after.is_some() || self.retry_after_seconds.is_some() {
            let seconds = self.retry_after_seconds.or(row.retry_after).unwrap_or(1);
            let seconds = seconds.min(MAX_RETRY_AFTER_SECONDS);
            headers.push(("retry-after", seconds.to_string()));
        }
        // A retry cannot help, and clients other than the official SDKs retry unless the header
        // forbids that.
        if matches!(status, 401..=404) || row.never_retry {
            headers.push(("x-should-retry", "false".to_owned()));
        }
        headers.extend(self.also.iter().flat_map(|also| also.0.iter().cloned()));
        headers
    }
}

fn to_json(body: &impl Serialize) -> Vec<u8> {
    // The body has only strings and options, so serialization cannot fail.
    serde_json::to_vec(body).unwrap_or_default()
}

#[derive(Serialize)]
struct ChatErrorBody<'a> {
    error: ChatErrorObject<'a>,
}

#[derive(Serialize)]
struct ChatErrorObject<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

#[derive(Serialize)]
struct MessagesErrorBody<'a> {
    r#type: &'a str,
    error: MessagesErrorObject<'a>,
    request_id: &'a str,
}

#[derive(Serialize)]
struct MessagesErrorObject<'a> {
    r#type: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<MessagesErrorDetails<'a>>,
}

#[derive(Serialize)]
struct MessagesErrorDetails<'a> {
    error_code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unsupported: Option<[&'a str; 1]>,
}
