//! Builds the vendors' errors, with their own messages and formats.
//!
//! This file must not decide when an error occurs. Read next: `vendor.rs`.

use serde::Deserialize;

use super::behaviour::{Behaviour, ErrorBody};
use super::error_messages::{chat_error_message, messages_error_message, messages_error_type};
use super::json::{pretty, quote};

/// The protocol of a call. Chat and responses belong to one vendor, and their errors look alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimVendor {
    #[default]
    Chat,
    Messages,
    Responses,
}

/// An error before it is encoded.
#[derive(Clone, Debug)]
pub struct SimulatedError {
    pub status: u16,
    pub message: String,
    chat_type: &'static str,
    /// Error type that a marker set, for any vendor.
    kind: Option<String>,
    param: Option<String>,
    code: Option<String>,
    /// True if the message is the whole body, as for a dialect.
    is_body: bool,
}

const INVALID: &str = "invalid_request_error";
const CHAT_ORGANISATION: &str = "org-SimLeak0123456789abcdef";
const CHAT_NO_KEY: &str = "You didn't provide an API key. You need to provide your API key in an \
    Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).";

/// Refusals whose text never changes.
#[derive(Clone, Copy, Debug)]
pub enum FixedError {
    ChatNotJson,
    ChatWithoutModel,
    ChatEmptyMessages,
    ChatBadN,
    ChatStreamOptions,
    MessagesEmpty,
    MessagesVersion,
}

impl FixedError {
    /// Returns the message, the parameter and the code.
    const fn parts(self) -> (&'static str, Option<&'static str>, Option<&'static str>) {
        match self {
            Self::ChatNotJson => (
                "We could not parse the JSON body of your request. (HINT: This likely means you \
                 aren't using your HTTP library correctly. The API expects a JSON payload, but what \
                 was sent was not valid JSON.)",
                None,
                None,
            ),
            Self::ChatWithoutModel => ("you must provide a model parameter", None, None),
            Self::ChatEmptyMessages => (
                "Invalid 'messages': empty array. Expected an array with minimum length 1, but got \
                 an empty array instead.",
                Some("messages"),
                Some("empty_array"),
            ),
            Self::ChatBadN => (
                "Invalid 'n': expected an integer from 1 to 128.",
                Some("n"),
                Some("invalid_value"),
            ),
            Self::ChatStreamOptions => (
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
                Some("stream_options"),
                None,
            ),
            Self::MessagesEmpty => ("messages: at least one message is required", None, None),
            Self::MessagesVersion => ("anthropic-version: header is required", None, None),
        }
    }
}

impl From<FixedError> for SimulatedError {
    fn from(error: FixedError) -> Self {
        let (message, param, code) = error.parts();
        Self::new(400, message).with_code(param, code)
    }
}

impl SimulatedError {
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        let chat_type = if status >= 500 {
            "server_error"
        } else {
            INVALID
        };
        Self {
            status,
            message: message.into(),
            chat_type,
            kind: None,
            param: None,
            code: None,
            is_body: false,
        }
    }

    pub fn from_body(status: u16, body: String) -> Self {
        Self {
            is_body: true,
            ..Self::new(status, body)
        }
    }

    fn with_code(mut self, param: Option<&str>, code: Option<&str>) -> Self {
        self.param = param.map(str::to_owned);
        self.code = code.map(str::to_owned);
        self
    }

    /// Returns the chat vendor's error for a request parameter.
    pub fn from_param(message: impl Into<String>, param: &str, code: Option<&str>) -> Self {
        Self::new(400, message).with_code(Some(param), code)
    }

    pub fn chat_missing(param: &'static str) -> Self {
        Self::new(400, format!("Missing required parameter: '{param}'."))
            .with_code(Some(param), Some("missing_required_parameter"))
    }

    pub fn chat_no_such_model(model: &str) -> Self {
        let text = format!("The model `{model}` does not exist or you do not have access to it.");
        Self::new(404, text).with_code(None, Some("model_not_found"))
    }

    pub fn messages_not_json(error: &serde_json::Error) -> Self {
        Self::new(400, format!("The request body is not valid JSON: {error}"))
    }

    pub fn messages_missing(field: &str) -> Self {
        Self::new(400, format!("{field}: Field required"))
    }

    pub fn messages_no_such_model(model: &str) -> Self {
        Self::new(404, format!("model: {model}"))
    }

    pub fn from_bad_marker(fault: &str) -> Self {
        Self::new(400, format!("simulator marker: {fault}"))
            .with_code(Some("messages"), Some("sim_marker"))
    }

    pub fn no_such_path(vendor: SimVendor, method: &str, target: &str) -> Self {
        match vendor {
            SimVendor::Chat | SimVendor::Responses => {
                Self::new(404, format!("Invalid URL ({method} {target})"))
            }
            SimVendor::Messages => Self::new(404, "Not Found"),
        }
    }

    /// Returns the 401 for `key`, or for a missing key.
    pub fn invalid_key(vendor: SimVendor, key: Option<&str>) -> Self {
        match (vendor, key) {
            (SimVendor::Chat | SimVendor::Responses, None) => Self::new(401, CHAT_NO_KEY),
            (SimVendor::Chat | SimVendor::Responses, Some(key)) => {
                let shown: String = key.chars().take(6).collect();
                let text = format!("Incorrect API key provided: {shown}****.");
                Self::new(401, text).with_code(None, Some("invalid_api_key"))
            }
            (SimVendor::Messages, None) => Self::new(401, "x-api-key header is required"),
            (SimVendor::Messages, Some(_)) => Self::new(401, "invalid x-api-key"),
        }
    }

    /// Returns the vendor's default error for this status.
    pub fn from_status(vendor: SimVendor, status: u16) -> Self {
        let text = match vendor {
            SimVendor::Chat | SimVendor::Responses => chat_error_message(status),
            SimVendor::Messages => messages_error_message(status),
        };
        let problem = Self::new(status, text);
        match status {
            401 => problem.with_code(None, Some("invalid_api_key")),
            404 => problem.with_code(None, Some("model_not_found")),
            402 => Self {
                chat_type: "insufficient_quota",
                ..problem
            }
            .with_code(None, Some("billing_not_active")),
            429 => Self {
                chat_type: "requests",
                ..problem
            }
            .with_code(None, Some("rate_limit_exceeded")),
            _ => problem,
        }
    }

    /// Returns the error that a marker with `status` selected.
    pub fn from_marker(vendor: SimVendor, status: u16, behaviour: &Behaviour) -> Self {
        let usual = Self::from_status(vendor, status);
        let chat = vendor != SimVendor::Messages;
        let mut problem = match behaviour.error_body {
            ErrorBody::Leak => Self {
                message: format!(
                    "Incorrect API key provided: sk-proj-abcd****wxyz for organization {CHAT_ORGANISATION}"
                ),
                ..usual
            },
            ErrorBody::Quota if chat => Self {
                message:
                    "You exceeded your current quota, please check your plan and billing details."
                        .to_owned(),
                chat_type: "insufficient_quota",
                ..usual
            }
            .with_code(None, Some("insufficient_quota")),
            ErrorBody::Quota => {
                Self::new(status, "Your credit balance is too low to access the API.")
            }
            ErrorBody::Context if chat => {
                let text = "This model's maximum context length is 128000 tokens. However, your \
                    messages resulted in 210000 tokens. Please reduce the length of the messages.";
                Self::new(status, text).with_code(Some("messages"), Some("context_length_exceeded"))
            }
            ErrorBody::Context => {
                Self::new(status, "prompt is too long: 210000 tokens > 200000 maximum")
            }
            ErrorBody::Policy => {
                Self::new(status, "Your request was rejected by our safety system.")
                    .with_code(None, Some("content_policy_violation"))
            }
            ErrorBody::Json | ErrorBody::Html | ErrorBody::Empty => usual,
        };
        if let Some(text) = &behaviour.text {
            problem.message.clone_from(text);
        }
        problem.with_marker_overrides(behaviour)
    }

    /// Applies the error type and code from the marker, if it sets them.
    pub fn with_marker_overrides(mut self, behaviour: &Behaviour) -> Self {
        self.kind = behaviour.error_type.clone().or(self.kind);
        self.code = behaviour.error_code.clone().or(self.code);
        self
    }

    pub fn body(&self, vendor: SimVendor, request_id: &str) -> String {
        if self.is_body {
            return self.message.clone();
        }
        match vendor {
            SimVendor::Chat | SimVendor::Responses => pretty(&self.chat_shape(), 4),
            SimVendor::Messages => {
                let (kind, message) = (self.messages_type(), quote(&self.message));
                format!(
                    r#"{{"type":"error","error":{{"type":{kind},"message":{message}}},"request_id":"{request_id}"}}"#
                )
            }
        }
    }

    /// Returns the data of an error event in a stream.
    pub fn event(&self, vendor: SimVendor, request_id: &str) -> String {
        let message = quote(&self.message);
        if self.is_body {
            return self.message.clone();
        }
        match vendor {
            SimVendor::Chat => self.chat_shape(),
            // The stream numbers its events, so it adds the rest of the event.
            SimVendor::Responses => {
                let (param, code) = (
                    nullable(self.param.as_deref()),
                    nullable(self.code.as_deref()),
                );
                format!(r#""code":{code},"message":{message},"param":{param}"#)
            }
            SimVendor::Messages => {
                let kind = self.messages_type();
                format!(
                    r#"{{"type":"error","error":{{"details":null,"type":{kind},"message":{message}}},"request_id":"{request_id}"}}"#
                )
            }
        }
    }

    fn chat_shape(&self) -> String {
        let (param, code) = (
            nullable(self.param.as_deref()),
            nullable(self.code.as_deref()),
        );
        let (message, kind) = (
            quote(&self.message),
            quote(self.kind.as_deref().unwrap_or(self.chat_type)),
        );
        format!(
            r#"{{"error":{{"message":{message},"type":{kind},"param":{param},"code":{code}}}}}"#
        )
    }

    fn messages_type(&self) -> String {
        quote(
            self.kind
                .as_deref()
                .unwrap_or_else(|| messages_error_type(self.status)),
        )
    }
}

/// Returns an HTML error page, such as a proxy in front of a vendor sends.
pub fn html(status: u16) -> String {
    format!(
        "<html>\r\n<head><title>{status} Error</title></head>\r\n<body>\r\n<center><h1>{status} \
         Error</h1></center>\r\n<hr><center>cloudflare</center>\r\n</body>\r\n</html>\r\n"
    )
}

fn nullable(text: Option<&str>) -> String {
    text.map_or_else(|| "null".to_owned(), quote)
}
