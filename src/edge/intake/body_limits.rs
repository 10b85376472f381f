//! Defines the limits on request bodies: bytes, time and rate, for API requests and for pages.
//!
//! This file must not enforce them: `intake/body.rs` and `intake/body_share.rs` do.

use config::Limits;
use std::time::Duration;

/// Limits that apply while the gateway reads a request body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    pub body_bytes: u64,
    pub bodies_in_flight_bytes: u64,
    /// Share of `bodies_in_flight_bytes`, in percent, that one account or one client connection may
    /// hold.
    pub account_bodies_percent: u64,
    pub connection_bodies_percent: u64,
    pub body_read: Duration,
    /// Minimum rate at which a body must arrive, in bytes per second.
    pub body_bytes_per_second: u64,
    pub body_rate: Duration,
}

impl BodyLimits {
    pub(in crate::edge) fn from_limits(limits: &Limits) -> Self {
        Self {
            body_bytes: limits.body_bytes,
            bodies_in_flight_bytes: limits.bodies_in_flight_bytes,
            account_bodies_percent: limits.account_bodies_percent,
            connection_bodies_percent: limits.connection_bodies_percent,
            body_read: Duration::from_secs(limits.body_read_seconds),
            body_bytes_per_second: limits.body_bytes_per_second,
            body_rate: Duration::from_secs(limits.body_rate_seconds),
        }
    }

    pub(in crate::edge) fn for_pages(limits: &Limits) -> Self {
        Self {
            body_bytes: limits.page_body_bytes,
            body_read: Duration::from_secs(limits.page_body_read_seconds),
            ..Self::from_limits(limits)
        }
    }
}
