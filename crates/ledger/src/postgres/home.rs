//! Manages the connection to PostgreSQL. A connection that has failed is replaced.
//!
//! This file must not contain a statement.

use super::model::PostgresSettings;
use super::session::{self, PostgresSession, timed_out};
use crate::StoreError;
use base::telemetry::METRICS;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

/// Time limit of an operation. A commit has another one.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection to PostgreSQL. Cloning it is cheap.
#[derive(Clone)]
pub struct PostgresHome(pub(crate) Arc<HomeInner>);

impl std::fmt::Debug for PostgresHome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.settings.fmt(f)
    }
}

pub(crate) struct HomeInner {
    pub settings: PostgresSettings,
    config: tokio_postgres::Config,
    /// The only connection, so commits wait for each other. `None` until the next call connects
    /// again.
    pub session: Mutex<Option<PostgresSession>>,
    /// Time until which this process certainly has the lease.
    pub lease_until: std::sync::Mutex<Option<Instant>>,
    /// Runtime of the connection, which also serves callers that are not asynchronous.
    runtime: Option<Runtime>,
}

impl Drop for HomeInner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The shutdown must not wait, because an async task may drop this value.
            runtime.shutdown_background();
        }
    }
}

impl PostgresHome {
    /// Prepares the connection. The first call opens it.
    ///
    /// # Errors
    /// Returns an error if the URL is invalid, or if no thread can be started.
    pub fn new(settings: PostgresSettings) -> Result<Self, StoreError> {
        let config = session::parse_url(&settings.url).map_err(StoreError::Unusable)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("postgres")
            .enable_all()
            .build()
            .map_err(|source| StoreError::io("start the thread of PostgreSQL", source))?;
        Ok(Self(Arc::new(HomeInner {
            settings,
            config,
            session: Mutex::new(None),
            lease_until: std::sync::Mutex::new(None),
            runtime: Some(runtime),
        })))
    }

    pub fn settings(&self) -> &PostgresSettings {
        &self.0.settings
    }

    /// Runs a future on the runtime of the connection, from any thread.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let gone = || StoreError::Unusable(format!("cannot {operation}: the process is ending"));
        let runtime = self.0.runtime.as_ref().ok_or_else(gone)?;
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        runtime.spawn(async move {
            let _ = send.send(work.await);
        });
        let outcome = receive.recv().map_err(|_| gone())?;
        if outcome.is_err() {
            METRICS.ledger_error("postgres");
        }
        outcome
    }

    /// Runs one operation with the connection, within [`STATEMENT_TIMEOUT`]. A connection is closed
    /// after a failed operation.
    pub(crate) fn with_session<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl for<'a> FnOnce(
            &'a mut PostgresSession,
        )
            -> Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>
        + Send
        + 'static,
    ) -> Result<T, StoreError> {
        let home = self.clone();
        self.run(operation, async move {
            let mut slot = home.0.session.lock().await;
            let session = home.connected(&mut slot).await?;
            let outcome = match tokio::time::timeout(STATEMENT_TIMEOUT, work(session)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(timed_out(operation)),
            };
            if outcome.is_err() {
                *slot = None;
            }
            outcome
        })
    }

    /// Returns the connection. Opens a new one if the last one has ended.
    pub(crate) async fn connected<'a>(
        &self,
        slot: &'a mut Option<PostgresSession>,
    ) -> Result<&'a mut PostgresSession, StoreError> {
        if slot.as_ref().is_some_and(PostgresSession::is_closed) {
            *slot = None;
        }
        match slot {
            Some(session) => Ok(session),
            None => Ok(slot.insert(PostgresSession::open(&self.0.config).await?)),
        }
    }
}
