//! What is known of every request, whatever becomes of it.
//!
//! This file must not decide anything.

use llm_protocol::Protocol;

/// The label that keeps pages and health checks apart from the API: they outnumber it, and would
/// dilute a ratio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteLabel {
    Api,
    Page,
    Health,
    /// Not a request that could be read in one way.
    Malformed,
}

impl RouteLabel {
    /// The label of `gateway_requests_total`, and the member of the access log.
    pub fn as_str(self) -> &'static str {
        match self {
            RouteLabel::Api => "api",
            RouteLabel::Page => "page",
            RouteLabel::Health => "health",
            RouteLabel::Malformed => "malformed",
        }
    }

    /// The surface's label; pages and health checks have none.
    pub fn surface(self, surface: Protocol) -> &'static str {
        match self {
            RouteLabel::Page | RouteLabel::Health => "",
            RouteLabel::Api | RouteLabel::Malformed => surface.as_str(),
        }
    }
}
