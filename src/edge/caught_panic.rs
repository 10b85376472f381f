//! Catches a panic in a request, and keeps its message until it is logged with the request's id.
//!
//! This file must not depend on requests; `edge/panics.rs` keeps their state and answers them.

use base::telemetry::METRICS;
use futures_util::future::{CatchUnwind, FutureExt as _};
use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind};
use tokio::task::futures::TaskLocalFuture;

tokio::task_local! {
    /// Message and location of a panic in the request whose task is running.
    static MESSAGE: RefCell<Option<String>>;
}

/// Counts every panic of the process, and logs those outside a request. A panic in a request is
/// logged with the request's id.
pub fn install_hook() {
    std::panic::set_hook(Box::new(|info| {
        METRICS.panics.inc();
        let message = describe(info);
        let kept = MESSAGE.try_with(|kept| {
            kept.try_borrow_mut()
                .map(|mut kept| *kept = Some(message.clone()))
        });
        if !matches!(kept, Ok(Ok(()))) {
            let thread = std::thread::current();
            log::error!(
                "panic in thread {}: {message}",
                thread.name().unwrap_or("(unnamed)")
            );
        }
    }));
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    format!("{} at {location}", text.unwrap_or("no message"))
}

/// Returns a future that runs the task of one request and keeps the message of a panic in the task.
/// An `async fn` would reserve memory for the task twice.
pub fn scope<F: Future>(task: F) -> TaskLocalFuture<RefCell<Option<String>>, F> {
    MESSAGE.scope(RefCell::default(), task)
}

/// Polls `future` to its end or until it panics. An `async fn` would reserve memory for the future
/// twice.
pub fn catch<F: Future>(future: F) -> CatchUnwind<AssertUnwindSafe<F>> {
    AssertUnwindSafe(future).catch_unwind()
}

/// A panic in a job that ran for a request on another thread.
pub struct JobPanic {
    payload: Box<dyn Any + Send>,
    message: Option<String>,
}

impl JobPanic {
    /// Continues the panic in the request's task, as if the job had run in that task.
    pub fn resume(self) -> ! {
        let _ = MESSAGE.try_with(|kept| *kept.borrow_mut() = self.message);
        resume_unwind(self.payload)
    }
}

/// Runs the job of a request on another thread, and catches its panic.
pub fn catch_job<T>(job: impl FnOnce() -> T) -> Result<T, JobPanic> {
    MESSAGE.sync_scope(RefCell::default(), || {
        catch_unwind(AssertUnwindSafe(job)).map_err(|payload| {
            let message = take_message();
            JobPanic { payload, message }
        })
    })
}

pub fn log_panic(request_id: &str) {
    log::error!(
        "panic in request {request_id}: {}",
        take_message().unwrap_or_default()
    );
}

fn take_message() -> Option<String> {
    MESSAGE
        .try_with(|kept| kept.borrow_mut().take())
        .ok()
        .flatten()
}
