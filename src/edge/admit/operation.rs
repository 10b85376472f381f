//! Determines the operation that a request asks for: its surface, its path, and the version of its
//! protocol.
//!
//! This file must not decide whether the operation is allowed.

use config::Settings;
use llm_protocol::Protocol;
use pingora::proxy::Session;

pub struct ApiOperation {
    pub surface: Protocol,
    pub path: &'static str,
    pub free: bool,
}

/// Returns the version of the messages protocol, under any of its header names.
pub fn version_header(session: &Session, settings: &Settings) -> Option<String> {
    let headers = &session.req_header().headers;
    settings
        .version_headers
        .iter()
        .find_map(|name| Some(headers.get(name)?.to_str().ok()?.to_owned()))
}
