//! Checks a server's version, settings and schema before the gateway stores money in it.
//!
//! This file must not write, except for the schema of a new database.

use super::home::PostgresHome;
use super::model::PostgresSettings;
use super::session::PostgresSession;
use crate::StoreError;
use base::clock;
use tokio_postgres::types::{FromSqlOwned, ToSql};

/// Statements that create the schema.
pub const SCHEMA: &str = include_str!("schema.sql");
/// Version of [`SCHEMA`].
const SCHEMA_VERSION: i32 = 1;
/// The oldest server version that the gateway was tested with.
const MIN_VERSION: i32 = 150_000;
/// Difference of clocks, in ms, above which the report has a warning.
const MAX_SKEW_MS: i64 = 2_000;
/// Number of the advisory lock for creating the schema. No other program uses it.
const SCHEMA_LOCK: i64 = 0x6d6f_6465_6c67_7731;

/// Warnings about a server that can be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerReport {
    pub warnings: Vec<String>,
    /// Difference of the server's clock to this machine's, in ms.
    pub skew_ms: i64,
}

impl PostgresHome {
    /// Checks the server, and creates the schema of a new database. The warnings in the report are
    /// meant for the log.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached or must not be used.
    pub fn prepare(&self) -> Result<ServerReport, StoreError> {
        let settings = self.settings().clone();
        self.with_session("prepare PostgreSQL", move |session| {
            Box::pin(async move {
                check_standby(session).await?;
                make_schema(session).await?;
                let kinds = admit_kinds(session).await?;
                let mut report = check(session, &settings).await?;
                report.warnings.extend(kinds);
                Ok(report)
            })
        })
    }
}

const NO_STANDBY: &str = "PostgreSQL has no synchronous standby (synchronous_standby_names is empty), so that the loss of its machine would lose debits";

fn no_standby() -> StoreError {
    StoreError::Unusable(format!(
        "{NO_STANDBY}: set it up, or set ledger.require_standby: false"
    ))
}

async fn has_standby_names(session: &PostgresSession) -> Result<bool, StoreError> {
    let names: String = ask(session, "SHOW synchronous_standby_names", &[]).await?;
    Ok(!names.is_empty())
}

/// Checks once for each connection that the server waits for a standby with each commit, if the
/// config requires that. A new connection may lead to another server, such as a promoted standby
/// without a standby of its own.
///
/// # Errors
/// Returns an error if the server does not wait, or if the query fails.
pub(crate) async fn check_commits_wait(
    session: &mut PostgresSession,
    require_standby: bool,
) -> Result<(), StoreError> {
    if require_standby && !session.waits_for_standby {
        if !has_standby_names(session).await? {
            return Err(no_standby());
        }
        session.waits_for_standby = true;
    }
    Ok(())
}

fn sql(source: tokio_postgres::Error) -> StoreError {
    StoreError::postgres("check the PostgreSQL server", source)
}

async fn ask<T: FromSqlOwned>(
    session: &PostgresSession,
    question: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<T, StoreError> {
    let row = session
        .client
        .query_one(question, parameters)
        .await
        .map_err(sql)?;
    row.try_get(0).map_err(sql)
}

/// Checks that a commit would not wait forever. A commit waits for a standby if the server's
/// settings name one, whether it is connected or not.
async fn check_standby(session: &PostgresSession) -> Result<(), StoreError> {
    let waits = "SELECT current_setting('synchronous_standby_names') <> ''
        AND NOT EXISTS (SELECT 1 FROM pg_stat_replication)";
    if ask::<bool>(session, waits, &[]).await? {
        return Err(StoreError::io(
            "use PostgreSQL",
            std::io::Error::new(
                std::io::ErrorKind::NotConnected,
                "none of its standbys is connected, and each commit would wait for one",
            ),
        ));
    }
    Ok(())
}

/// Creates the schema in a new database.
async fn make_schema(session: &mut PostgresSession) -> Result<(), StoreError> {
    let exists = "SELECT to_regclass('model_gateway.schema_version') IS NOT NULL";
    if ask(session, exists, &[]).await? {
        return Ok(());
    }
    let failed =
        |source| StoreError::postgres("make the schema model_gateway in PostgreSQL", source);
    let transaction = session.client.transaction().await.map_err(failed)?;
    transaction
        .execute("SELECT pg_advisory_xact_lock($1)", &[&SCHEMA_LOCK])
        .await
        .map_err(failed)?;
    let row = transaction.query_one(exists, &[]).await.map_err(failed)?;
    if !row.try_get::<_, bool>(0).map_err(failed)? {
        transaction.batch_execute(SCHEMA).await.map_err(failed)?;
        log::info!("made the schema model_gateway in PostgreSQL");
    }
    transaction.commit().await.map_err(failed)
}

/// Returns the statement that makes the schema of an older program accept all kinds of entries.
/// With `NOT VALID`, existing entries are not read again, so the statement takes an instant.
fn admit_statement() -> String {
    let check = SCHEMA
        .split_once("CHECK (kind IN (")
        .and_then(|(_, rest)| rest.split_once("))"))
        .map_or("", |(kinds, _)| kinds);
    let kinds = check.split_whitespace().collect::<Vec<_>>().join(" ");
    format!(
        "ALTER TABLE model_gateway.entry DROP CONSTRAINT entry_kind_check, \
         ADD CONSTRAINT entry_kind_check CHECK (kind IN ({kinds})) NOT VALID"
    )
}

/// Makes the schema of an older program accept the newer kinds of entries, if the role owns the
/// table. Otherwise, returns a warning with the statement. The entries of an older program that
/// still holds the ledger stay valid.
async fn admit_kinds(session: &mut PostgresSession) -> Result<Option<String>, StoreError> {
    let admitted = "SELECT coalesce(bool_or(pg_get_constraintdef(oid) LIKE '%''code''%'), false) FROM pg_constraint
        WHERE conrelid = 'model_gateway.entry'::regclass AND conname = 'entry_kind_check'";
    if ask(session, admitted, &[]).await? {
        return Ok(None);
    }
    let owns = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'model_gateway.entry'::regclass";
    let statement = admit_statement();
    if !ask(session, owns, &[]).await? {
        return Ok(Some(format!(
            "the schema model_gateway is of an older program and refuses entries of payments: before you sell credits, its owner runs: {statement}"
        )));
    }
    let failed = |source| {
        StoreError::postgres(
            "make the schema model_gateway accept entries of payments",
            source,
        )
    };
    let transaction = session.client.transaction().await.map_err(failed)?;
    // Commits must not queue behind this statement while another program's transaction is long.
    transaction
        .batch_execute(&format!("SET LOCAL lock_timeout = '2s'; {statement}"))
        .await
        .map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    log::info!("the schema model_gateway in PostgreSQL accepts entries of payments now");
    Ok(None)
}

/// Returns the warnings about the server.
///
/// # Errors
/// Returns an error if the server cannot be reached or must not be used.
async fn check(
    session: &mut PostgresSession,
    settings: &PostgresSettings,
) -> Result<ServerReport, StoreError> {
    let version: String = ask(session, "SHOW server_version_num", &[]).await?;
    if version.parse::<i32>().unwrap_or(0) < MIN_VERSION {
        return Err(StoreError::Unusable(format!(
            "cannot use PostgreSQL of version {version}: it must be 15 or newer"
        )));
    }
    let schema: i32 = ask(session, "SELECT version FROM schema_version", &[]).await?;
    if schema != SCHEMA_VERSION {
        return Err(StoreError::Unusable(format!(
            "the schema model_gateway in PostgreSQL has version {schema}, and this program supports only {SCHEMA_VERSION}"
        )));
    }
    for (setting, lost) in [
        ("fsync", "a power cut could lose debits"),
        ("full_page_writes", "a power cut could damage the ledger"),
    ] {
        let value: String = ask(session, &format!("SHOW {setting}"), &[]).await?;
        if value != "on" {
            return Err(StoreError::Unusable(format!(
                "cannot use this PostgreSQL: {setting} is {value}, so that {lost}"
            )));
        }
    }
    let mut report = ServerReport::default();
    if !has_standby_names(session).await? {
        if settings.require_standby {
            return Err(no_standby());
        }
        report.warnings.push(NO_STANDBY.into());
    }
    let may_change: bool = ask(
        session,
        "SELECT has_table_privilege('entry', 'UPDATE') OR has_table_privilege('entry', 'DELETE')
           OR pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'entry'::regclass",
        &[],
    )
    .await?;
    if may_change {
        report.warnings.push(
            "the gateway's role in PostgreSQL may change entries of the ledger: let another role own the tables (docs/many-edges.md)"
                .into(),
        );
    }
    let before_ms = clock::now_ms();
    let server_ms: i64 = ask(
        session,
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
        &[],
    )
    .await?;
    // The server read its clock at some time between the question and the answer.
    let half_way_ms = before_ms + (clock::now_ms() - before_ms) / 2;
    report.skew_ms = server_ms - half_way_ms;
    if report.skew_ms.abs() > MAX_SKEW_MS {
        report.warnings.push(format!(
            "the clocks of PostgreSQL and of this machine differ by {} ms",
            report.skew_ms
        ));
    }
    Ok(report)
}
