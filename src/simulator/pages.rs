//! The simulator's own pages under `/_sim/`: what tests read and reset.
//!
//! It must not count itself.

use super::http::{Connection, Gone, Request};
use super::vendor::Server;

/// The simulator's own pages.
pub async fn answer(connection: &mut Connection, server: &Server, request: &Request) -> Result<(), Gone> {
    let (status, body) = match (request.method.as_str(), request.path()) {
        ("GET", "/_sim/stats") => (200, server.stats.summary().to_string()),
        ("GET", "/_sim/requests") => {
            let count = request.query("last").and_then(|count| count.parse().ok());
            (200, server.stats.last(count.unwrap_or(usize::MAX)).to_string())
        }
        ("POST", "/_sim/reset") => {
            server.stats.reset();
            (200, "{}".to_owned())
        }
        _ => (404, r#"{"error":"no such simulator page"}"#.to_owned()),
    };
    let head = format!("HTTP/1.1 {status} Simulator\r\ncontent-type: application/json\r\n");
    connection.push(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    connection.flush().await
}
