//! Handles a panic in a request, which ends that request and no other. The client gets a failure in
//! its surface's shape, reserved credit is released, and the log, the metrics and the access log
//! record what happened.
//!
//! Panics are caught in two places. `request_filter` catches those of admission, where it still has
//! the client's session. [`PanicGuard`] wraps Pingora's whole handling of a request and catches all
//! others, including Pingora's own. The state that the answer needs must outlive the unwinding, so
//! `RequestContext` and `BufferedDownstream` hand their state over as they are dropped.
//! `edge/caught_panic.rs` catches the panic. This file must not decide what a request costs. A
//! page's connection is closed without a response.

pub use super::caught_panic::install_hook;

use super::caught_panic::{self, catch, log_panic};
use super::recorders::Recorders;
use super::state::{RequestContext, Stage};
use super::{finish, intake, reject, respond};
use async_trait::async_trait;
use base::clock;
use futures_util::TryFutureExt as _;
use ledger::RequestOutcome;
use llm_protocol::failure::{Failure, Kind};
use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::H2Options;
use pingora::server::ShutdownWatch;
use std::cell::RefCell;
use std::future::Future;
use std::sync::Arc;

tokio::task_local! {
    /// State of the request whose task is running. Set once a panic has dropped the context.
    static CONTEXT: RefCell<Option<Box<RequestContext>>>;
}

/// Hands the state of the request over. A panic ends the task, but the gateway must still answer
/// and record the request.
impl Drop for RequestContext {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = CONTEXT.try_with(|kept| {
                if let Ok(mut kept) = kept.try_borrow_mut() {
                    *kept = Some(Box::new(self.take()));
                }
            });
        }
    }
}

/// Returns the result of admission, or the failure to send if admission panicked.
pub fn catch_admission<T>(
    admission: impl Future<Output = T>,
) -> impl Future<Output = Result<T, Failure>> {
    catch(admission).map_err(|_| Failure::from_kind(Kind::Internal))
}

/// Logs a panic in admission. The function is separate from [`catch_admission`], which borrows the
/// context.
pub fn log_admission_panic(ctx: &RequestContext) {
    log_panic(&ctx.record.request_id);
}

/// Pingora's handling of requests, with a catch for panics around it.
pub struct PanicGuard<A> {
    app: Arc<A>,
    recorders: Recorders,
}

impl<A> PanicGuard<A> {
    pub fn new(app: A, recorders: Recorders) -> Self {
        Self {
            app: Arc::new(app),
            recorders,
        }
    }
}

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> HttpServerApp for PanicGuard<A> {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        if session.is_http2() && session.req_header().method == http::Method::CONNECT {
            // The future is boxed, like all that few requests need. Otherwise every request would
            // reserve memory for it.
            Box::pin(reject::refuse_connect(session, &self.recorders)).await;
            return None;
        }
        let handling = catch(self.app.process_new_http(session, shutdown));
        let handle = async {
            match handling.await {
                Ok(reused) => reused,
                Err(_) => {
                    Box::pin(finish_panicked_request(&self.recorders)).await;
                    None
                }
            }
        };
        CONTEXT
            .scope(RefCell::default(), caught_panic::scope(handle))
            .await
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.app.h2_options()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.app.server_options()
    }

    async fn http_cleanup(&self) {
        self.app.http_cleanup().await;
    }
}

async fn finish_panicked_request(recorders: &Recorders) {
    let context = CONTEXT
        .try_with(|kept| kept.borrow_mut().take())
        .ok()
        .flatten();
    let Some(mut ctx) = context else {
        return log_panic("unknown");
    };
    log_panic(&ctx.record.request_id);
    let failure = Failure::from_kind(Kind::Internal);
    if let Stage::Admitted(call) = &mut ctx.stage {
        // A failure of the gateway itself is not billed, so release the hold.
        if let Some(hold) = call.hold.take() {
            hold.release(RequestOutcome::Interrupted, clock::now_ms());
        }
        // Dropping the claim frees the idempotency key.
        drop(call.exchange.take_idempotency());
        call.exchange.wait_for_ending().await;
        call.exchange.wait_for_decision().await;
        if let Some(session) = intake::take_session(&call.exchange)
            && let Err(error) = send_failure(session, &mut ctx, &failure).await
        {
            log::debug!(
                "cannot answer request {} after its panic: {error}",
                ctx.record.request_id
            );
        }
    }
    finish::record_request(recorders, &mut ctx);
}

/// Writes the failure as a response, or as the last event if a stream has begun.
async fn send_failure(
    mut session: Box<ServerSession>,
    ctx: &mut RequestContext,
    failure: &Failure,
) -> pingora::Result<()> {
    let Stage::Admitted(call) = &ctx.stage else {
        return Ok(());
    };
    let progress = call.exchange.progress();
    if progress.has_client_left() || progress.is_completed() {
        return Ok(());
    }
    session.set_keepalive(None);
    if !respond::has_begun(&session) {
        let (head, body) = respond::render(&mut ctx.record, failure)?;
        session.write_response_header(Box::new(head)).await?;
        session.write_response_body(body, true).await?;
    } else if call.response.is_stream() {
        let last = reject::terminal_event(ctx, failure);
        session.write_response_body(last.into(), true).await?;
    } else {
        return Ok(());
    }
    session.finish_body().await
}
