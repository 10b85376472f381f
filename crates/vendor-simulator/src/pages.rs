//! Serves the simulator's own pages under `/_sim/`, which tests read and reset.
//!
//! This file must not count requests for these pages.

use std::sync::atomic::Ordering::Relaxed;

use super::exchange::Exchange;
use super::http_message::{ClientGone, SimFraming, SimRequest, SimResponseHead};
use super::stripe;
use super::vendor::SimServer;

pub fn is_page(request: &SimRequest) -> bool {
    request.path().starts_with("/_sim/")
}

/// Responds to a request for one of the simulator's own pages.
pub async fn answer(
    exchange: &mut Exchange<'_>,
    server: &SimServer,
    request: &SimRequest,
) -> Result<(), ClientGone> {
    let (status, body) = match (request.method.as_str(), request.path()) {
        ("GET", "/_sim/stats") => (200, server.stats.summary().to_string()),
        ("GET", "/_sim/requests") => {
            let count = request.query("last").and_then(|count| count.parse().ok());
            (
                200,
                server.stats.last(count.unwrap_or(usize::MAX)).to_string(),
            )
        }
        ("POST", "/_sim/release") => {
            server.releases.fetch_add(1, Relaxed);
            (200, "{}".to_owned())
        }
        ("POST", "/_sim/reset") => {
            server.stats.reset();
            (200, "{}".to_owned())
        }
        ("POST", path) if path.starts_with(stripe::PREFIX) => {
            let name = path.strip_prefix(stripe::PREFIX).unwrap_or_default();
            let (status, value) = server.options.stripe.page(name, &request.body);
            (status, value.to_string())
        }
        _ => (404, r#"{"error":"no such simulator page"}"#.to_owned()),
    };
    let head = SimResponseHead {
        status,
        lines: "content-type: application/json\r\n".to_owned(),
    };
    let framing = SimFraming::Sized(body.len());
    exchange.send_head(&head, framing, false).await?;
    exchange.send_piece(body.as_bytes(), framing).await?;
    exchange.end(framing).await
}
