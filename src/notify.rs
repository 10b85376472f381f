//! What the gateway sends to account holders by itself.
//!
//! All parts run on one thread with a runtime of its own, so that a slow receiver delays neither a
//! request nor a page. The process that serves pages starts them. This module must not know a page
//! or a request. Next, one file per part: `notify/alerts.rs` (the rules, and when they fire),
//! `notify/webhooks.rs` (how a message gets to its receiver), `notify/mail.rs` (the queue of mail,
//! and its sender).

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

/// Maximum number of threads for what blocks: databases and the resolver of names. A lookup that
/// its sender gave up keeps its thread until the resolver gives up too, up to half a minute later.
const MAX_BLOCKING_THREADS: usize = 64;

/// Time for the mail that is being sent at the shutdown. What was not sent by then is sent by the
/// next process.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Starts all parts. They end at `shutdown`.
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
                // An error: it takes longer, or it has panicked.
                let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, mail).await;
            });
            runtime.shutdown_background();
        })?;
    Ok(())
}
