//! Sends alerts, mail and webhook messages to account holders.
//!
//! All parts run on one thread with a separate runtime, so that a slow receiver delays neither a
//! request nor a page. The process that serves pages starts them. This module must not depend on a
//! page or a request. Next, one file per part: `notify/alerts.rs` (the rules, and when they fire),
//! `notify/webhooks.rs` (the delivery of messages), `notify/mail.rs` (the queue of mail, and its
//! sender).

pub mod alerts;
mod context;
mod id;
pub mod mail;
pub mod webhooks;

pub use context::NotifyContext;
use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::sync::watch;

/// Maximum number of threads for blocking work: databases and DNS lookups. A lookup that was given
/// up keeps its thread until the resolver also gives up, up to half a minute later.
const MAX_BLOCKING_THREADS: usize = 64;

/// Time that running mail attempts have at shutdown. The next process sends the remaining mail.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Starts all parts. The parts end at `shutdown`.
///
/// # Errors
/// Returns an error if the thread cannot start.
pub fn start(
    context: NotifyContext,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .build()?;
    std::thread::Builder::new()
        .name("notify".into())
        .spawn(move || {
            let (close, closing) = watch::channel(false);
            runtime.spawn(alerts::run(context.clone()));
            runtime.spawn(webhooks::run(context.clone()));
            let mail = runtime.spawn(mail::run(context, closing));
            runtime.block_on(async {
                shutdown.await;
                close.send_replace(true);
                // An error means that the task takes longer or has panicked.
                let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, mail).await;
            });
            runtime.shutdown_background();
        })?;
    Ok(())
}
