//! The connections to `app.db`, and how a statement runs on them.
//!
//! Must not contain a statement of its own: those are in `store/app.rs` and in the files beside
//! this one.

use super::rows::KeyOwner;
use crate::store::StoreError;
use crate::store::row_cache::RowCache;
use crate::store::sqlite::{self, Readers};
use rusqlite::{Connection, Transaction};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

const MIGRATIONS: &[&str] = &[
    include_str!("001_accounts.sql"),
    include_str!("002_changes.sql"),
    include_str!("003_settings.sql"),
    include_str!("004_people.sql"),
    include_str!("005_roles.sql"),
    include_str!("006_notices.sql"),
];

/// Maximum number of connections for reading. A point read takes microseconds: more would not make
/// two cores faster.
const MAX_READERS: usize = 4;

/// The database of one process: one connection that writes, a few that read.
pub struct AppDb {
    writer: Mutex<Connection>,
    readers: Readers,
    /// Owner of each key, by the key's hash.
    pub(super) owners: RowCache<Arc<KeyOwner>>,
}

impl AppDb {
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let operation = "open app.db";
        let path = data_dir.join("app.db");
        let mut writer = sqlite::open(&path, operation)?;
        sqlite::migrate(&mut writer, MIGRATIONS, "migrate app.db")?;
        let readers = Readers::open(&path, MAX_READERS, operation)?;
        let owners = RowCache::open(&path, operation)?;
        Ok(Self {
            writer: Mutex::new(writer),
            readers,
            owners,
        })
    }

    /// Creates `app.db` as the program did when it had only the first `version` migrations.
    #[cfg(test)]
    pub(crate) fn create_old_version(data_dir: &Path, version: usize) -> Connection {
        let operation = "create an old app.db";
        let mut old = sqlite::open(&data_dir.join("app.db"), operation).unwrap();
        sqlite::migrate(&mut old, &MIGRATIONS[..version], operation).unwrap();
        old
    }

    pub(super) fn read<T>(
        &self,
        operation: &'static str,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.readers
            .with(query)
            .map_err(|source| StoreError::sqlite(operation, source))
    }

    /// Runs one `BEGIN IMMEDIATE` transaction.
    pub(super) fn write<T>(
        &self,
        operation: &'static str,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let work = || {
            let transaction = sqlite::begin_write(&mut writer)?;
            let value = change(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        let outcome = work();
        // A caller that wrote must see its own write: a revoked key is not valid from here on.
        self.owners.clear();
        outcome.map_err(|source| StoreError::Sqlite { operation, source })
    }
}
