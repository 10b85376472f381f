//! What was found out about an endpoint, and how its failures are said in plain words.
//!
//! Must not hold a secret.

use crate::catalog::{Auth, Endpoint, Vendor};
use crate::protocol::{Protocol, translate};
use pingora::{Error, ErrorType};
use serde::Serialize;
use std::net::SocketAddr;

/// The longest message of a vendor that is shown, in characters.
const MESSAGE_CHARS_MAX: usize = 200;
/// In the place of a secret.
const HIDDEN: &str = "********";
/// A word that holds so many of a secret's first bytes is hidden whole.
const SECRET_START: usize = 4;

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub vendor: String,
    /// What is called for an answer.
    pub url: String,
    pub addresses: Vec<SocketAddr>,
    /// Version of TLS; `None` without.
    pub tls: Option<String>,
    /// Version of HTTP that was agreed on; `None` without a connection.
    pub http: Option<&'static str>,
    pub key: Key,
    /// `None` where the endpoint lists none.
    pub models: Option<Listed>,
    pub requests: Vec<Trial>,
    pub notes: Vec<String>,
    pub faults: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    Unknown,
    NotWanted,
    Accepted,
    Refused,
}

impl Key {
    /// This, unless nothing is known.
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

/// The models that an endpoint lists.
#[derive(Debug, Clone, Serialize)]
pub struct Listed {
    pub count: usize,
    /// Names of configured models that are not among them.
    pub unlisted: Vec<String>,
}

/// One request for an answer.
#[derive(Debug, Clone, Serialize)]
pub struct Trial {
    pub model: String,
    pub protocol: Protocol,
    pub status: u16,
    /// Tokens, as the vendor counted them.
    pub input: Option<u64>,
    pub output: Option<u64>,
    pub milliseconds: u64,
}

impl Report {
    pub fn new(vendor: &Vendor, endpoint: &Endpoint) -> Self {
        Self {
            vendor: vendor.name.clone(),
            url: endpoint.shown_url(translate::path(vendor.protocol)).unwrap_or_default(),
            addresses: Vec::new(),
            tls: None,
            http: None,
            key: if endpoint.auth == Auth::None { Key::NotWanted } else { Key::Unknown },
            models: None,
            requests: Vec::new(),
            notes: Vec::new(),
            faults: Vec::new(),
        }
    }

    pub fn fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }
}

/// A vendor's error in one line. `secrets` are hidden, in whatever it echoes.
pub fn message<'a>(body: &[u8], secrets: impl Iterator<Item = &'a str>) -> String {
    let value: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let said = value.as_ref().and_then(|value| {
        let error = value.get("error").unwrap_or(value);
        [&error["message"], error, &value["message"], &value["detail"]].into_iter().find_map(|text| text.as_str())
    });
    let mut text = match said {
        Some(said) => said.to_owned(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    let secrets: Vec<_> = secrets.filter(|secret| !secret.is_empty()).collect();
    for secret in &secrets {
        text = text.replace(secret, HIDDEN);
    }
    // Some repeat the beginning of a key.
    let begins = |secret: &&str| secret.get(..SECRET_START).map(str::to_owned);
    let begins: Vec<_> = secrets.iter().filter_map(begins).collect();
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let shown = words.map(|word| if begins.iter().any(|start| word.contains(&**start)) { HIDDEN } else { word });
    let text = shown.collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((cut, _)) => format!("{}…", text.get(..cut).unwrap_or_default()),
        None if text.is_empty() => "no message".to_owned(),
        None => text,
    }
}

/// A failed connection in plain words.
pub fn words(error: &Error, host: &str, address: &str, connect_seconds: u64) -> String {
    match error.etype() {
        ErrorType::ConnectRefused => format!("nothing listens at {address} (connection refused)"),
        ErrorType::ConnectTimedout => {
            format!("no connection to {address} within {connect_seconds} s (TCP, and TLS where the address is https)")
        }
        ErrorType::ConnectNoRoute => format!("no route to {address}: is there a network?"),
        ErrorType::TLSHandshakeTimedout => {
            format!("{address} did not finish the TLS handshake within {connect_seconds} s")
        }
        ErrorType::InvalidCert => format!("the certificate of {host} is not valid: {}", cause(error)),
        ErrorType::TLSHandshakeFailure | ErrorType::HandshakeError => {
            format!("TLS with {host} ({address}) failed: {}", cause(error))
        }
        _ => format!("{address}: {}", cause(error)),
    }
}

/// What is at the bottom of an error. Pingora writes a handshake's own error into the context, and the socket's address, which
/// helps nobody here, into the cause.
fn cause(error: &Error) -> String {
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
    use super::message;

    #[test]
    fn a_message_is_one_short_line_without_secrets() {
        let of = |body: &str| message(body.as_bytes(), ["sk-secret", ""].into_iter());
        assert_eq!(of(r#"{"error":{"message":"bad key\n sk-secret!"}}"#), "bad key ********!");
        assert_eq!(of(r#"{"error":"plain"}"#), "plain");
        assert_eq!(of(r#"{"detail":"not found"}"#), "not found");
        assert_eq!(of("<html> sk-secret"), "<html> ********");
        assert_eq!(of(r#"{"message":"Incorrect key: sk-se*****ret."}"#), "Incorrect key: ********");
        assert_eq!(of(""), "no message");
        assert!(of(&"x".repeat(999)).chars().count() < 210);
    }
}
