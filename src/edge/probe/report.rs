//! Builds the report on an endpoint, with plain descriptions of its errors.
//!
//! This file must not put a secret into a report.

use config::catalog::{CatalogVendor, EndpointAuth, VendorEndpoint};
use llm_protocol::failure::VendorError;
use llm_protocol::{Protocol, translate};
use pingora::{Error, ErrorType};
use serde::Serialize;
use std::net::SocketAddr;

/// Maximum length of a vendor's error message in the report, in characters.
const MAX_MESSAGE_CHARS: usize = 200;
/// Replacement for a secret.
const REDACTED: &str = "********";
/// A word that contains this many leading bytes of a secret is hidden.
const SECRET_PREFIX_BYTES: usize = 4;

#[derive(Debug, Clone, Serialize)]
pub struct EndpointReport {
    pub vendor: String,
    /// URL of generation requests.
    pub url: String,
    pub addresses: Vec<SocketAddr>,
    /// TLS version; `None` without TLS.
    pub tls: Option<String>,
    /// Negotiated HTTP version; `None` without a connection.
    pub http: Option<&'static str>,
    pub key: VendorKeyStatus,
    /// `None` if the endpoint does not list its models.
    pub models: Option<ModelList>,
    pub requests: Vec<TestRequest>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_loops: Vec<ToolLoop>,
    pub notes: Vec<String>,
    pub faults: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VendorKeyStatus {
    Unknown,
    NotWanted,
    Accepted,
    Refused,
}

impl VendorKeyStatus {
    /// Returns this status, or `other` if this one is unknown.
    pub fn or(self, other: Self) -> Self {
        if self == Self::Unknown { other } else { self }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "-",
            Self::NotWanted => "none",
            Self::Accepted => "accepted",
            Self::Refused => "refused",
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct ModelList {
    pub count: usize,
    /// Upstream names of configured models that the list does not contain.
    pub unlisted: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct TestRequest {
    pub model: String,
    pub protocol: Protocol,
    pub status: u16,
    /// Input tokens that the vendor reported.
    pub input: Option<u64>,
    pub output: Option<u64>,
    pub milliseconds: u64,
}

/// The result of one tool loop: a request that leads to a call, and one with the call's result.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ToolLoop {
    pub model: String,
    pub streamed: bool,
    /// Number of steps that the vendor answered, at most two.
    pub steps: u8,
    /// Members that the vendor refused and that the gateway left out when it repeated the request.
    pub refused: Vec<String>,
    /// Data that did not reach the vendor or the client: warnings as in `x-gateway-warnings`, and
    /// `usage` if the vendor reported none.
    pub lost: Vec<String>,
    /// The reason why the loop ended early.
    pub fault: Option<String>,
}

impl EndpointReport {
    pub fn new(vendor: &CatalogVendor, endpoint: &VendorEndpoint) -> Self {
        Self {
            vendor: vendor.name.clone(),
            url: endpoint
                .display_url(translate::vendor_path(vendor.protocol))
                .unwrap_or_default(),
            addresses: Vec::new(),
            tls: None,
            http: None,
            key: if endpoint.auth == EndpointAuth::None {
                VendorKeyStatus::NotWanted
            } else {
                VendorKeyStatus::Unknown
            },
            models: None,
            requests: Vec::new(),
            tool_loops: Vec::new(),
            notes: Vec::new(),
            faults: Vec::new(),
        }
    }

    pub fn add_fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    pub fn add_tool_loop(&mut self, tools: ToolLoop) {
        let how = if tools.streamed { "streamed" } else { "whole" };
        let mut text = format!(
            "tools of {}, {how}: {} of 2 steps",
            tools.model, tools.steps
        );
        for (word, names) in [("refused", &tools.refused), ("lost", &tools.lost)] {
            if !names.is_empty() {
                text += &format!(", {word} {}", names.join(" "));
            }
        }
        match &tools.fault {
            Some(fault) => self.add_fault(format!("{text}: {fault}")),
            None => self.add_note(text),
        }
        self.tool_loops.push(tools);
    }

    pub fn add_note(&mut self, note: String) {
        self.notes.push(note);
    }
}

/// Returns a vendor's error message in one line, in which any of `secrets` is replaced.
pub fn error_message<'a>(body: &[u8], secrets: impl Iterator<Item = &'a str>) -> String {
    let message = VendorError::parse(body).map(|error| error.message);
    let mut text = match message.filter(|message| !message.is_empty()) {
        Some(message) => message,
        None => String::from_utf8_lossy(body).into_owned(),
    };
    let secrets: Vec<_> = secrets.filter(|secret| !secret.is_empty()).collect();
    for secret in &secrets {
        text = text.replace(secret, REDACTED);
    }
    // Some vendors repeat the beginning of a key.
    let begins = |secret: &&str| secret.get(..SECRET_PREFIX_BYTES).map(str::to_owned);
    let begins: Vec<_> = secrets.iter().filter_map(begins).collect();
    let words = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty());
    let shown = words.map(|word| {
        if begins.iter().any(|start| word.contains(&**start)) {
            REDACTED
        } else {
            word
        }
    });
    let text = shown.collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((cut, _)) => format!("{}…", text.get(..cut).unwrap_or_default()),
        None if text.is_empty() => "no message".to_owned(),
        None => text,
    }
}

pub fn describe_error(error: &Error, host: &str, address: &str, connect_seconds: u64) -> String {
    match error.etype() {
        ErrorType::ConnectRefused => format!("nothing listens at {address} (connection refused)"),
        ErrorType::ConnectTimedout => {
            format!(
                "no connection to {address} within {connect_seconds} s (TCP, and TLS where the address is https)"
            )
        }
        ErrorType::ConnectNoRoute => format!("no route to {address}: check the network"),
        ErrorType::TLSHandshakeTimedout => {
            format!("{address} did not finish the TLS handshake within {connect_seconds} s")
        }
        ErrorType::InvalidCert => {
            format!(
                "the certificate of {host} is not valid: {}",
                root_cause_text(error)
            )
        }
        ErrorType::TLSHandshakeFailure | ErrorType::HandshakeError => {
            format!(
                "TLS with {host} ({address}) failed: {}",
                root_cause_text(error)
            )
        }
        _ => format!("{address}: {}", root_cause_text(error)),
    }
}

/// Returns the root cause of an error. Pingora writes the error of a TLS handshake into the
/// context, and the cause has only the address of the local socket.
fn root_cause_text(error: &Error) -> String {
    let context = error.context.as_ref().map(|context| context.as_str());
    if let Some((_, inner)) = context.and_then(|context| context.rsplit_once("cause: ")) {
        return inner.split(", SNI:").next().unwrap_or(inner).to_owned();
    }
    let inner = error.root_cause().to_string();
    let is_address = inner.is_empty() || inner.starts_with("local address");
    let fallback = || context.map_or_else(|| error.etype().as_str().to_owned(), str::to_owned);
    if is_address { fallback() } else { inner }
}

#[cfg(test)]
mod tests {
    use super::error_message;

    #[test]
    fn a_message_is_one_short_line_without_secrets() {
        let of = |body: &str| error_message(body.as_bytes(), ["sk-secret", ""].into_iter());
        assert_eq!(
            of(r#"{"error":{"message":"bad key\n sk-secret!"}}"#),
            "bad key ********!"
        );
        assert_eq!(of(r#"{"error":"plain"}"#), "plain");
        assert_eq!(of(r#"{"detail":"not found"}"#), "not found");
        assert_eq!(of("<html> sk-secret"), "<html> ********");
        assert_eq!(
            of(r#"{"message":"Incorrect key: sk-se*****ret."}"#),
            "Incorrect key: ********"
        );
        assert_eq!(
            of(r#"[{"error":{"message":"of Google"}}]"#),
            "of Google",
            "as the gateway reads errors"
        );
        assert_eq!(of(""), "no message");
        assert!(of(&"x".repeat(999)).chars().count() < 210);
    }
}
