//! Slows requests down while the ledger is behind: each one waits before it reserves credit.
//!
//! The body has been read by then, so the gateway notices a client that leaves meanwhile. This file
//! must not decide who waits, or for how long: `billing/backlog.rs` does.

use super::header::backlog_failure;
use crate::edge::cpu_pool::{client_left, wait_for_client_close};
use crate::edge::gateway::Gateway;
use llm_protocol::failure::Failure;
use pingora::proxy::Session;

/// Waits until the request may reserve credit. Returns at once while the ledger keeps up.
///
/// # Errors
/// Returns 429 or 503 if the backlog, or the account's share of it, has become too large.
pub async fn wait_for_ledger(
    gateway: &Gateway,
    session: &mut Session,
    account: &str,
) -> Result<(), Failure> {
    let Some(backlog) = gateway
        .admission
        .backlog()
        .filter(|backlog| !backlog.is_calm())
    else {
        return Ok(());
    };
    let Some((delay, _guard)) = backlog.delay(account).map_err(backlog_failure)? else {
        return Ok(());
    };
    tokio::select! {
        () = tokio::time::sleep(delay) => {}
        () = wait_for_client_close(session) => return Err(client_left()),
    }
    // The backlog may have grown during the wait.
    backlog.check(account).map_err(backlog_failure)
}
