//! Runs the handlers of a listener on threads of their own. They read files, and a file that does
//! not answer must stop neither the listener nor the status pages next to them.
//!
//! This file must not know a route.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};

/// Maximum number of requests whose handlers run. One more gets the late answer at once.
const MAX_REQUESTS: usize = 256;
/// Maximum number of threads: one for each handler, and as many for what handlers run apart.
const MAX_THREADS: usize = 2 * MAX_REQUESTS;
/// Time after which a client gets the late answer. The limits inside the handlers are shorter, so
/// they come first unless a thread is stuck.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Moves the handlers of `routes` to threads with this name, each to one of its own while it runs.
/// `late` is the answer for requests without a thread or an answer in time.
///
/// # Errors
/// Returns an error if the threads cannot be started.
pub fn run_apart(routes: Router, name: &'static str, late: fn() -> Response) -> io::Result<Router> {
    let threads = HandlerThreads::start(name, late)?;
    Ok(routes.layer(from_fn_with_state(threads, run_handler)))
}

async fn run_handler(
    State(threads): State<HandlerThreads>,
    request: Request,
    next: Next,
) -> Response {
    threads.run(TIMEOUT, next.run(request)).await
}

#[derive(Clone)]
struct HandlerThreads {
    /// Lives as long as the process: to drop it would wait for a thread that is stuck.
    runtime: &'static Runtime,
    permits: Arc<Semaphore>,
    late: fn() -> Response,
}

impl HandlerThreads {
    fn start(name: &'static str, late: fn() -> Response) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(MAX_THREADS)
            .thread_name(name)
            .enable_all()
            .build()?;
        Ok(Self {
            runtime: Box::leak(Box::new(runtime)),
            permits: Arc::new(Semaphore::new(MAX_REQUESTS)),
            late,
        })
    }

    async fn run(
        &self,
        timeout: Duration,
        handler: impl Future<Output = Response> + Send + 'static,
    ) -> Response {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            return (self.late)();
        };
        let runtime = self.runtime;
        // A handler ends when its client disconnects, which drops `_client`.
        let (_client, left) = oneshot::channel::<()>();
        let running = runtime.spawn_blocking(move || {
            let _permit = permit;
            runtime.block_on(async {
                tokio::select! {
                    response = handler => Some(response),
                    _ = left => None,
                }
            })
        });
        match tokio::time::timeout(timeout, running).await {
            Ok(Ok(Some(response))) => response,
            Ok(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => (self.late)(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;
    use axum::response::IntoResponse as _;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, sync_channel};
    use tokio::task::JoinSet;

    const SOON: Duration = Duration::from_millis(20);

    /// A handler that stands still until the sender is dropped.
    async fn stuck(until: Arc<Mutex<Receiver<()>>>) -> Response {
        let _ = until.lock().unwrap().recv();
        "done".into_response()
    }

    #[tokio::test]
    async fn stuck_handlers_are_answered_for_up_to_a_number_and_then_at_once() {
        let late = || StatusCode::SERVICE_UNAVAILABLE.into_response();
        let threads = HandlerThreads::start("stuck", late).unwrap();
        let (release, until) = sync_channel(0);
        let until = Arc::new(Mutex::new(until));
        let mut waiting = JoinSet::new();
        for _ in 0..MAX_REQUESTS {
            let (threads, until) = (threads.clone(), Arc::clone(&until));
            waiting.spawn(async move { threads.run(SOON, stuck(until)).await.status() });
        }
        let ended = waiting.join_all().await;
        assert!(
            ended
                .iter()
                .all(|status| *status == StatusCode::SERVICE_UNAVAILABLE)
        );
        // Those that are stuck still count until they end.
        drop(release);
        let all = u32::try_from(MAX_REQUESTS).unwrap();
        let every = threads.permits.acquire_many(all).await.unwrap();
        let ask = || threads.run(TIMEOUT, async { "ready".into_response() });
        let began = std::time::Instant::now();
        assert_eq!(ask().await.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(began.elapsed() < TIMEOUT);
        drop(every);
        assert_eq!(ask().await.status(), StatusCode::OK);
    }
}
