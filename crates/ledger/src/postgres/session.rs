//! Represents one connection to PostgreSQL, and its prepared statements.
//!
//! This file must not retry a statement: only the caller knows whether a retry is safe.

use crate::StoreError;
use base::postgres_url;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::{AsyncMessage, Client, Config, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a session. `statement_timeout` must be off: it would also end the wait for a standby
/// in the middle of a commit, and the server would then report the commit as done
/// (<https://www.postgresql.org/docs/15/runtime-config-wal.html#GUC-SYNCHRONOUS-COMMIT>, "canceling
/// wait for synchronous replication"). The other settings end a session whose process is gone, so
/// that it does not keep its locks.
const SESSION_SETTINGS: &str = "SET statement_timeout = 0; SET lock_timeout = '5s';
    SET idle_in_transaction_session_timeout = '15s'; SET synchronous_commit = on;
    SET search_path = model_gateway; SET standard_conforming_strings = on;";

/// Parses the address of a server and its connection options.
///
/// # Errors
/// Returns the reason why the address is invalid, without the address, which has a password.
pub fn parse_url(url: &str) -> Result<Config, String> {
    let mut config = postgres_url::parse(url)?;
    config
        .connect_timeout(CONNECT_TIMEOUT)
        .target_session_attrs(TargetSessionAttrs::ReadWrite)
        .keepalives_idle(Duration::from_secs(5))
        .tcp_user_timeout(Duration::from_secs(10));
    if config.get_application_name().is_none() {
        config.application_name("model-gateway");
    }
    Ok(config)
}

pub struct PostgresSession {
    pub client: Client,
    /// Prepared statements. The first use prepares one, because the schema may not exist before.
    prepared: HashMap<&'static str, Statement>,
    /// Set when the server has reported that it did not wait for its standby.
    unreplicated: Arc<AtomicBool>,
    /// True if a check has shown that the server waits for a standby with each commit.
    pub waits_for_standby: bool,
}

impl PostgresSession {
    /// Opens a connection.
    ///
    /// # Errors
    /// Returns an error if no server that accepts writes can be reached.
    pub async fn open(config: &Config) -> Result<Self, StoreError> {
        let operation = "connect to PostgreSQL";
        let tls = MakeRustlsConnect::new(tls_config()?);
        let connect = async {
            // A host in the URL may be the folder of a socket, for which TLS has no meaning.
            if config.get_ssl_mode() == SslMode::Disable {
                let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
                Ok((client, Self::drive(connection)))
            } else {
                let (client, connection) = config.connect(tls).await?;
                Ok((client, Self::drive(connection)))
            }
        };
        let (client, unreplicated) = tokio::time::timeout(2 * CONNECT_TIMEOUT, connect)
            .await
            .map_err(|_| timed_out(operation))?
            .map_err(|source| StoreError::postgres(operation, source))?;
        client
            .batch_execute(SESSION_SETTINGS)
            .await
            .map_err(|source| StoreError::postgres(operation, source))?;
        Ok(Self {
            client,
            prepared: HashMap::new(),
            unreplicated,
            waits_for_standby: false,
        })
    }

    /// Reads from the connection until it ends. A warning during a commit means that the commit is
    /// not on a standby.
    fn drive<S, T>(mut connection: tokio_postgres::Connection<S, T>) -> Arc<AtomicBool>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let unreplicated = Arc::new(AtomicBool::new(false));
        let warned = Arc::clone(&unreplicated);
        tokio::spawn(async move {
            while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                match message {
                    Ok(AsyncMessage::Notice(notice)) if notice.severity() == "WARNING" => {
                        log::warn!("PostgreSQL warns: {}", notice.message());
                        if notice.message().contains("synchronous replication") {
                            warned.store(true, Ordering::Release);
                        }
                    }
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        });
        unreplicated
    }

    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Returns whether the server has failed to wait for its standby since the last call.
    pub fn take_unreplicated(&self) -> bool {
        self.unreplicated.swap(false, Ordering::AcqRel)
    }

    /// Prepares a statement, once for each connection.
    ///
    /// # Errors
    /// Returns an error if the schema does not exist, or if the connection fails.
    pub async fn prepared(&mut self, sql: &'static str) -> Result<Statement, StoreError> {
        if let Some(known) = self.prepared.get(sql) {
            return Ok(known.clone());
        }
        let statement = self
            .client
            .prepare(sql)
            .await
            .map_err(|source| StoreError::postgres("prepare a statement", source))?;
        self.prepared.insert(sql, statement.clone());
        Ok(statement)
    }
}

/// Returns a TLS configuration with the certificates that this machine trusts. Unlike in libpq,
/// `sslmode=require` checks the certificate too.
fn tls_config() -> Result<ClientConfig, StoreError> {
    let mut roots = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // A certificate that cannot be parsed is not trusted.
        let _ = roots.add(certificate);
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(
        tokio_rustls::rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .map_err(|error| StoreError::Unusable(format!("cannot use TLS for PostgreSQL: {error}")))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Returns the error of an operation that took too long.
pub fn timed_out(operation: &'static str) -> StoreError {
    StoreError::io(
        operation,
        std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            "PostgreSQL does not answer in time",
        ),
    )
}
