//! Builds refusals in Stripe's format: `{"error": {"type", "code", "param", "message"}}`.
//!
//! This file must not decide about refusals.

use serde_json::{Map, Value, json};

/// Reason for which a call is refused.
#[derive(Debug, Clone, PartialEq)]
pub struct StripeRefusal {
    pub status: u16,
    pub kind: &'static str,
    pub code: Option<&'static str>,
    pub param: Option<String>,
    pub message: String,
    /// The bank's reason for a declined card.
    pub decline_code: Option<&'static str>,
    /// The payment intent that the call has created.
    pub payment_intent: Option<Box<Value>>,
    /// True if Stripe has begun the operation, so that the idempotency key keeps this answer.
    pub is_kept: bool,
}

impl StripeRefusal {
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: match status {
                500.. => "api_error",
                402 => "card_error",
                _ => "invalid_request_error",
            },
            code: None,
            param: None,
            message: message.into(),
            decline_code: None,
            payment_intent: None,
            is_kept: false,
        }
    }

    /// Returns the refusal of a wrong parameter.
    pub fn invalid(code: &'static str, param: &str, message: impl Into<String>) -> Self {
        Self {
            code: Some(code),
            param: Some(param.to_owned()),
            ..Self::new(400, message)
        }
    }

    /// Returns the refusal of an operation that the state of an object forbids.
    pub fn state(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code: Some(code),
            is_kept: true,
            ..Self::new(400, message)
        }
    }

    pub fn missing(object: &str, id: &str, param: &str) -> Self {
        Self {
            code: Some("resource_missing"),
            param: Some(param.to_owned()),
            ..Self::new(404, format!("No such {object}: '{id}'"))
        }
    }

    pub fn body(&self) -> Value {
        let mut error = Map::new();
        error.insert("message".into(), json!(self.message));
        error.insert("type".into(), json!(self.kind));
        if let Some(code) = self.code {
            let page = format!(
                "https://stripe.com/docs/error-codes/{}",
                code.replace('_', "-")
            );
            error.insert("code".into(), json!(code));
            error.insert("doc_url".into(), json!(page));
        }
        if let Some(param) = &self.param {
            error.insert("param".into(), json!(param));
        }
        if let Some(code) = self.decline_code {
            error.insert("decline_code".into(), json!(code));
        }
        if let Some(intent) = &self.payment_intent {
            error.insert("charge".into(), intent["latest_charge"].clone());
            error.insert("payment_intent".into(), Value::clone(intent));
        }
        json!({ "error": error })
    }
}
