//! Notifies an edge of API keys that are no longer valid.
//!
//! A lost connection reports no error. So the edge publishes a heartbeat every half second, which
//! must arrive over the same connection. This file must not depend on the cache of keys.

use super::errors;
use super::link::CONNECT_TIMEOUT;
use super::views::StoreKeys;
use ::redis::Cmd;
use futures_util::Stream;
use ledger::StoreError;
use std::io;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, interval, timeout};

/// Interval at which the edge publishes a heartbeat.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time without any message before the connection counts as lost.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(1_500);

impl StoreKeys<'_> {
    /// Calls `changed` with the hash of each API key that was revoked or restricted, and with the
    /// server's time of the change, until the connection is lost.
    ///
    /// # Errors
    /// Returns an error if the connection cannot be made, or if no message arrives over it.
    pub async fn watch_keys(
        &self,
        ready: impl FnOnce(),
        mut changed: impl FnMut(&str, Option<i64>),
    ) -> Result<(), StoreError> {
        let failed = |source| errors::store_error("watch for revoked keys", source);
        let timeout_error = || {
            StoreError::io(
                "watch for revoked keys",
                io::Error::from(io::ErrorKind::TimedOut),
            )
        };
        let beat = format!("gw:heard:{}", uuid::Uuid::now_v7().simple());
        let listen = async {
            let mut channel = self
                .0
                .0
                .link
                .primary_client()
                .await?
                .get_async_pubsub()
                .await?;
            channel.subscribe(&["gw:revoked", beat.as_str()]).await?;
            Ok(channel)
        };
        let mut channel = timeout(CONNECT_TIMEOUT, listen)
            .await
            .map_err(|_| timeout_error())?
            .map_err(failed)?;
        let mut messages = channel.on_message();
        let (mut beats, mut last_message_at, mut ready) =
            (interval(HEARTBEAT_INTERVAL), Instant::now(), Some(ready));
        loop {
            tokio::select! {
                message = next(&mut messages) => {
                    let Some(message) = message else { return Ok(()) };
                    last_message_at = Instant::now();
                    if message.get_channel_name() == beat {
                        if let Some(ready) = ready.take() {
                            ready();
                        }
                    } else if let Ok(payload) = message.get_payload::<String>() {
                        let (hash, at_ms) = payload.split_once(' ').unwrap_or((&payload, ""));
                        changed(hash, at_ms.parse().ok());
                    }
                }
                _ = beats.tick() => {
                    let mut publish = Cmd::new();
                    publish.arg("PUBLISH").arg(&beat).arg(1);
                    // The result does not matter, because a published heartbeat arrives over the
                    // subscription.
                    let _: Result<i64, _> = self.0.query("send the heartbeat of revocations", &publish).await;
                    if last_message_at.elapsed() > SILENCE_TIMEOUT {
                        return Err(timeout_error());
                    }
                }
            }
        }
    }
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}
