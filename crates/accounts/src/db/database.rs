//! Holds the connections to `app.db` and runs statements on them.
//!
//! This file must not contain statements about accounts or keys; they are in `db.rs` and its
//! submodules.

use super::rows::KeyOwner;
use ledger::StoreError;
use ledger::copy;
use ledger::copy::Copy;
use ledger::postgres::{Domain, PostgresHome};
use ledger::sqlite;
use ledger::sqlite::Readers;
use ledger::sqlite::row_cache::RowCache;
use ledger::sqlite::writer::{WriteConnection, WriteCount, begins_too_late};
use rusqlite::{Connection, Transaction};
use std::path::Path;
use std::sync::Arc;

const MIGRATIONS: &[&str] = &[
    include_str!("001_accounts.sql"),
    include_str!("002_changes.sql"),
    include_str!("003_settings.sql"),
    include_str!("004_people.sql"),
    include_str!("005_roles.sql"),
    include_str!("006_notices.sql"),
    copy::CREATE_POSITION,
    include_str!("008_audit_search.sql"),
    include_str!("009_alert_notices.sql"),
    include_str!("010_payments.sql"),
    include_str!("011_identities.sql"),
    include_str!("012_payment_refunds.sql"),
    include_str!("013_codes.sql"),
    include_str!("014_clawbacks.sql"),
    include_str!("015_auto_topup.sql"),
    include_str!("016_organisations.sql"),
    include_str!("017_budgets.sql"),
    include_str!("018_payment_mail.sql"),
    include_str!("019_domains.sql"),
    include_str!("020_logins.sql"),
    include_str!("021_past_members.sql"),
    include_str!("022_member_models.sql"),
    include_str!("023_account_merges.sql"),
];

/// All tables, because all rows are copied.
const COPIED_TABLES: [&str; 30] = [
    "account",
    "api_key",
    "change",
    "session",
    "invite",
    "audit",
    "past_trial",
    "past_trial_key",
    "one_time_link",
    "outgoing_mail",
    "webhook",
    "webhook_delivery",
    "alert_state",
    "payment_order",
    "payment_event",
    "identity",
    "sign_in_flow",
    "payment_refund",
    "payment_reconciliation",
    "credit_code",
    "auto_topup",
    "method_removal",
    "membership",
    "member_invite",
    "domain_claim",
    "past_member",
    "login",
    "login_token",
    "device_request",
    "account_merge",
];

/// Maximum number of reading connections. A point read takes microseconds, so more connections
/// would not make two cores faster.
const MAX_READERS: usize = 4;

/// The database of one process, with one writing connection and a few reading ones.
pub struct AppDb {
    writer: WriteConnection,
    readers: Readers,
    /// Owner of each key, by the key's hash.
    pub(crate) owners: RowCache<Arc<KeyOwner>>,
    /// The copy's link to PostgreSQL; `None` if the file is the original.
    copy: Option<Copy>,
}

impl AppDb {
    /// Opens `app.db`; with `home`, the file is a copy of that PostgreSQL database.
    pub fn open(data_dir: &Path, home: Option<&PostgresHome>) -> Result<Self, StoreError> {
        let mut opened = Self::open_unchecked(data_dir)?;
        let writer = opened.writer.get_mut();
        opened.copy = match home {
            Some(home) => {
                copy::check_may_attach(writer, "account")?;
                let (home, tables) = (home.clone(), &COPIED_TABLES);
                Some(Copy::attach(home, Domain::Accounts, writer, tables)?)
            }
            None => {
                copy::check_is_no_copy(writer)?;
                None
            }
        };
        Ok(opened)
    }

    /// Opens `app.db` without checking whether the file is a copy.
    pub fn open_unchecked(data_dir: &Path) -> Result<Self, StoreError> {
        let operation = "open app.db";
        let path = data_dir.join("app.db");
        let mut writer = sqlite::open(&path, operation)?;
        sqlite::migrate(&mut writer, MIGRATIONS, "migrate app.db")?;
        sqlite::erase_deleted(&writer)?;
        let readers = Readers::open(&path, MAX_READERS, operation)?;
        let owners = RowCache::open(&path, operation)?;
        Ok(Self {
            writer: WriteConnection::new(writer),
            readers,
            owners,
            copy: None,
        })
    }

    pub fn open_readers(&self) -> Result<(), StoreError> {
        self.readers.open_all()
    }

    /// Reads `app.db` past the pages in memory, to see whether the disk answers.
    pub fn check_reads(&self) -> Result<(), StoreError> {
        self.readers.check()
    }

    /// Returns the count of writes to `app.db`.
    pub fn write_count(&self) -> WriteCount {
        self.writer.count()
    }

    /// Runs `work` with the writing connection, without writing to PostgreSQL.
    pub fn with_writer<T>(&self, work: impl FnOnce(&Connection) -> T) -> T {
        work(&self.writer.lock())
    }

    /// Runs `work` with the copy and the writing connection; `None` if the file is not a copy.
    pub fn with_copy<T>(
        &self,
        work: impl FnOnce(&Copy, &mut Connection) -> Result<T, StoreError>,
    ) -> Option<Result<T, StoreError>> {
        let copy = self.copy.as_ref()?;
        let mut writer = self.writer.lock();
        let outcome = work(copy, &mut writer);
        self.owners.clear();
        Some(outcome)
    }

    /// Creates `app.db` like an earlier program, with only the first `version` migrations.
    #[cfg(test)]
    pub(crate) fn create_old_version(data_dir: &Path, version: usize) -> Connection {
        let operation = "create an old app.db";
        let mut old = sqlite::open(&data_dir.join("app.db"), operation).unwrap();
        sqlite::migrate(&mut old, &MIGRATIONS[..version], operation).unwrap();
        old
    }

    pub(crate) fn read<T>(
        &self,
        operation: &'static str,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.readers
            .with(query)
            .map_err(|source| StoreError::sqlite(operation, source))
    }

    /// Runs a read of a few rows on which a request waits. No slow page holds it up.
    pub(crate) fn read_for_request<T>(
        &self,
        operation: &'static str,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.readers
            .with_reserved(query)
            .map_err(|source| StoreError::sqlite(operation, source))
    }

    /// Runs one `BEGIN IMMEDIATE` transaction, unless it is too late for it: see
    /// [`ledger::sqlite::writer::begin_writes_by`].
    pub(crate) fn write<T>(
        &self,
        operation: &'static str,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut writer = self.writer.lock();
        let work = || {
            let transaction = copy::begin(&mut writer, self.copy.as_ref())?;
            if begins_too_late() {
                let why = "the client got the answer that its change failed".to_owned();
                let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
                return Err(rusqlite::Error::SqliteFailure(code, Some(why)));
            }
            let value = change(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        let outcome = work();
        // A caller must see its own write. For example, a revoked key is invalid from here on.
        self.owners.clear();
        outcome.map_err(|source| match broken_rule(&source) {
            Some(rule) => StoreError::Refused(rule),
            None => StoreError::Sqlite { operation, source },
        })
    }
}

/// Returns the words of a trigger that forbade a change.
fn broken_rule(error: &rusqlite::Error) -> Option<String> {
    match error {
        rusqlite::Error::SqliteFailure(code, Some(rule))
            if code.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_TRIGGER =>
        {
            Some(rule.clone())
        }
        _ => None,
    }
}
