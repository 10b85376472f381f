//! Defines options that apply to all requests of one simulator.
//!
//! This file must not apply the options, which `vendor.rs` and `http2.rs` do.

use super::stripe::SimStripe;
use std::path::PathBuf;
use std::sync::Arc;

/// Default limit of streams per HTTP/2 connection, which is the limit of large vendors.
pub const DEFAULT_H2_STREAMS: u32 = 100;

#[derive(Clone, Debug, Default)]
pub struct SimulatorOptions {
    /// Vendor keys that the simulator accepts.
    pub keys: AcceptedKeys,
    /// Fault that every request to this address gets.
    pub fault: Option<SimulatedFault>,
    /// TLS options; `None` for plain HTTP.
    pub tls: Option<SimulatorTls>,
    /// True to check only the members that an answer needs, unless the marker has `lenient=0`.
    pub lenient: bool,
    /// Name of the dialect for chat requests whose path names none.
    pub profile: Option<String>,
    /// Simulated payment provider on the same port.
    pub stripe: Arc<SimStripe>,
}

/// TLS, with HTTP/2 and HTTP/1.1 by ALPN.
#[derive(Clone, Debug)]
pub struct SimulatorTls {
    /// Directory of the certificate and its authority (`ca.pem`). If it is missing or empty, the
    /// simulator generates them.
    pub dir: PathBuf,
    /// Value of `SETTINGS_MAX_CONCURRENT_STREAMS`.
    pub h2_streams: u32,
}

/// Accepted vendor keys. Any other key gets the vendor's own 401.
#[derive(Clone, Debug, Default)]
pub enum AcceptedKeys {
    /// Any key is accepted that is not empty and not one of the gateway's own (`gw-…`).
    #[default]
    AnyVendor,
    /// Exactly these keys are accepted.
    Only(Vec<String>),
}

/// A fault of the whole endpoint, which occurs after a request was read and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedFault {
    /// The connection closes without an answer.
    CloseAfterRequest,
    /// The response has this status and the vendor's error for it.
    Status(u16),
}

/// Parses the value of `--fault`: `close` or `status=N`.
pub fn parse_fault(text: &str) -> anyhow::Result<SimulatedFault> {
    if text == "close" {
        return Ok(SimulatedFault::CloseAfterRequest);
    }
    match text.strip_prefix("status=").map(str::parse) {
        Some(Ok(status @ 300..=599)) => Ok(SimulatedFault::Status(status)),
        _ => anyhow::bail!(
            "fault {text:?} is neither \"close\" nor \"status=N\" with N from 300 to 599"
        ),
    }
}
