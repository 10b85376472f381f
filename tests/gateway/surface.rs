//! The chat and messages surfaces: their paths, bodies and errors, so that one test can use both.

use crate::client::{Answer, Connection, Request};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    Chat,
    Messages,
}

pub use Surface::{Chat, Messages};

pub const BOTH: [Surface; 2] = [Chat, Messages];

/// An error as the surfaces report it: status and type on chat, status and type on messages, and
/// the code of both.
pub type Failure = (
    (u16, &'static str),
    (u16, &'static str),
    Option<&'static str>,
);

/// The type of most errors that the client can avoid.
pub const INVALID: &str = "invalid_request_error";

pub const DRAINING: Failure = unavailable("draining");
pub const INTERNAL_ERROR: Failure =
    failure(500, "server_error", 500, "api_error", "internal_error");
pub const INVALID_API_KEY: Failure =
    failure(401, INVALID, 401, "authentication_error", "invalid_api_key");
pub const LEDGER_UNAVAILABLE: Failure = unavailable("ledger_unavailable");
pub const OVERLOADED: Failure = unavailable("overloaded");
pub const UPSTREAM_ERROR: Failure =
    failure(502, "server_error", 500, "api_error", "upstream_error");
pub const UPSTREAM_TIMEOUT: Failure = failure(
    504,
    "server_error",
    504,
    "timeout_error",
    "upstream_timeout",
);

pub const fn failure(
    chat: u16,
    chat_type: &'static str,
    messages: u16,
    messages_type: &'static str,
    code: &'static str,
) -> Failure {
    ((chat, chat_type), (messages, messages_type), Some(code))
}

const fn unavailable(code: &'static str) -> Failure {
    failure(503, "server_error", 529, "overloaded_error", code)
}

impl Surface {
    pub fn path(self) -> &'static str {
        match self {
            Chat => "/v1/chat/completions",
            Messages => "/v1/messages",
        }
    }

    /// A model that this surface serves without translation.
    pub fn model(self) -> &'static str {
        match self {
            Chat => "beta-5.2",
            Messages => "alpha-haiku-4-5-20251001",
        }
    }

    /// The model's name at the vendor.
    pub fn upstream_model(self) -> &'static str {
        match self {
            Chat => "gpt-5.2",
            Messages => "claude-haiku-4-5-20251001",
        }
    }

    /// Price per token, in µc: input and output.
    pub fn prices(self) -> (i64, i64) {
        match self {
            Chat => (175, 1_400),
            Messages => (100, 500),
        }
    }

    /// Cost of a response with these token counts, in µc.
    pub fn cost(self, input: i64, output: i64) -> i64 {
        let (input_price, output_price) = self.prices();
        input * input_price + output * output_price
    }

    pub fn limit_field(self) -> &'static str {
        match self {
            Chat => "max_completion_tokens",
            Messages => "max_tokens",
        }
    }

    /// A body that makes the simulated vendor behave as `marker` says.
    pub fn body(self, marker: &str, stream: bool, limit: u64) -> Value {
        let text = format!("[[sim {marker}]] hello");
        let mut body =
            json!({"model": self.model(), "messages": [{"role": "user", "content": text}]});
        body[self.limit_field()] = limit.into();
        if stream {
            body["stream"] = true.into();
        }
        body
    }

    pub fn request(self, key: &str, body: &Value) -> Request {
        Request::post(self.path(), body.to_string()).bearer(key)
    }

    /// A request for a whole answer.
    pub fn whole(self, key: &str, marker: &str) -> Request {
        self.request(key, &self.body(marker, false, 1_000))
    }

    pub fn stream(self, key: &str, marker: &str) -> Request {
        self.request(key, &self.body(marker, true, 1_000))
    }

    /// The last event of a stream on this surface.
    pub fn terminal(self) -> &'static str {
        match self {
            Chat => "data: [DONE]\n\n",
            Messages => "event: message_stop\n",
        }
    }

    /// The start of an error event in a stream.
    pub fn error_frame(self) -> &'static str {
        match self {
            Chat => "data: {\"error\":{",
            Messages => "event: error\n",
        }
    }

    /// Whether the stream ended as a complete answer. A failed chat stream also ends with `[DONE]`.
    pub fn is_complete(self, answer: &Answer) -> bool {
        answer.status == 200 && answer.has(self.terminal()) && !answer.has(self.error_frame())
    }

    /// Reads a stream to its end, which must be that of a complete answer.
    #[track_caller]
    pub fn completes(self, connection: &mut Connection, answer: &mut Answer) {
        connection.finish(answer);
        assert!(self.is_complete(answer), "it was cut: {}", answer.text());
    }

    /// Checks that an answer is an error in this surface's format. Returns the error object.
    #[track_caller]
    pub fn failure(self, answer: &Answer, status: u16, kind: &str, code: Option<&str>) -> Value {
        let text = answer.text();
        assert_eq!(answer.status, status, "{self:?}: {text}");
        let id = answer.request_id();
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let body = answer.json();
        let error = body["error"].clone();
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty()),
            "{self:?}: {text}"
        );
        assert_eq!(error["type"], kind, "{self:?}: {text}");
        match self {
            Chat => {
                assert_eq!(error["code"].as_str(), code, "{text}");
                assert!(error.get("param").is_some(), "{text}");
                assert_eq!(body.as_object().unwrap().len(), 1, "{text}");
            }
            Messages => {
                assert_eq!(body["type"], "error", "{text}");
                assert_eq!(body["request_id"], id.as_str(), "{text}");
                if let Some(code) = code {
                    assert_eq!(error["details"]["error_code"], code, "{text}");
                }
            }
        }
        let never = matches!(status, 401..=404);
        if never {
            assert_eq!(
                answer.header("x-should-retry"),
                Some("false"),
                "{self:?} {status}: {text}"
            );
        }
        error
    }

    /// Checks that an answer is this error.
    #[track_caller]
    pub fn fails_as(self, answer: &Answer, (chat, messages, code): Failure) -> Value {
        self.fails(answer, chat, messages, code)
    }

    /// Checks an error that differs by surface: (status, type) of chat and of messages, and the
    /// code of both.
    #[track_caller]
    pub fn fails(
        self,
        answer: &Answer,
        chat: (u16, &str),
        messages: (u16, &str),
        code: Option<&str>,
    ) -> Value {
        let (status, kind) = match self {
            Chat => chat,
            Messages => messages,
        };
        self.failure(answer, status, kind, code)
    }
}
