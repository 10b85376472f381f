//! Opens the database `ledger.db`, which must match its anchor when it is opened, and has several
//! connections for reading and one for writing.
//!
//! Every commit that adds entries also writes the anchor. This module must not decide an amount.

pub mod anchor;

use super::index::LedgerIndex;
use crate::StoreError;
use crate::copy;
use crate::copy::{Copy, WriteTransaction};
use crate::database::anchor::{AnchorTrust, LedgerAnchor};
use crate::entry::account::{KeySpend, LedgerAccount};
use crate::postgres::{Domain, PostgresHome};
use crate::sealed::files::SegmentFiles;
use crate::sqlite;
use crate::sqlite::Readers;
use crate::sqlite::missing;
use crate::sqlite::row_cache::RowCache;
use crate::sqlite::writer::{WriteConnection, WriteCount, WriteGuard};
use crate::statements::chain::chain_head;
use base::failpoint::{self, Point};
use rusqlite::{Connection, OptionalExtension, Transaction};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64};

pub(crate) const MIGRATIONS: &[&str] = &[
    include_str!("database/001.sql"),
    include_str!("database/002.sql"),
    include_str!("database/003.sql"),
    include_str!("database/004.sql"),
    include_str!("database/005.sql"),
    include_str!("database/006.sql"),
    include_str!("database/007.sql"),
    include_str!("database/008.sql"),
    include_str!("database/009.sql"),
    include_str!("database/010.sql"),
    include_str!("database/011.sql"),
    include_str!("database/012.sql"),
    copy::CREATE_POSITION,
    include_str!("database/013.sql"),
];

/// Page size in bytes of a new ledger. A commit writes nearly a page for each account and key that
/// it changes: with pages of 4 KiB and 95 endings a second, each ending wrote 3 KB more.
const PAGE_BYTES: u32 = 2_048;

const MAX_READERS: usize = 8;

/// Tables whose rows are copied besides the entries, from which the spending of keys follows. Rows
/// about processes and segments are not copied, because they concern this data directory alone.
const COPIED_TABLES: [&str; 5] = [
    "account",
    "price_version",
    "shared_partition",
    "shared_pushed",
    "shared_mark",
];

pub struct Ledger {
    writer: WriteConnection,
    pub(crate) readers: Readers,
    /// The index for pages, derived from the entries.
    pub(crate) index: LedgerIndex,
    /// The files with the sealed entries.
    pub(crate) segments: SegmentFiles,
    /// Cache of the rows that admission reads.
    pub(crate) admission_rows: RowCache<AdmissionRow>,
    /// The latest first day of a key's spending in the cache, in days since 1970.
    pub(crate) newest_first_day: AtomicI64,
    /// True if this process has handed over. The flag changes under the writer's lock.
    pub(crate) handed_over: AtomicBool,
    /// `None` if the ledger is stored in the file alone.
    copy: Option<Copy>,
    /// `None` if the ledger is open for reading only.
    pub(crate) anchor: Option<LedgerAnchor>,
    /// Time in ms since 1970 at which the anchor was last written before it was opened.
    anchored_ms: i64,
}

/// A row that admission reads, from one snapshot.
#[derive(Clone, Copy)]
pub(crate) enum AdmissionRow {
    Account(LedgerAccount),
    KeySpend(KeySpend),
}

/// The only writing connection. When the guard is dropped, the cache of rows is cleared.
pub(crate) struct LedgerWriteGuard<'a> {
    connection: WriteGuard<'a>,
    admission_rows: &'a RowCache<AdmissionRow>,
    keeps_rows: bool,
    copy: Option<&'a Copy>,
}

impl LedgerWriteGuard<'_> {
    pub(crate) fn begin(&mut self) -> rusqlite::Result<WriteTransaction<'_>> {
        copy::begin(&mut self.connection, self.copy)
    }

    /// Keeps the cached rows, which the commit after `before` commits leaves right. There must be
    /// no other commit with this guard.
    pub(crate) fn keep_rows(&mut self, before: Option<u32>) {
        self.admission_rows.keep_rows(before);
        self.keeps_rows = true;
    }
}

impl Deref for LedgerWriteGuard<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for LedgerWriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Drop for LedgerWriteGuard<'_> {
    fn drop(&mut self) {
        if !self.keeps_rows {
            self.admission_rows.clear();
        }
    }
}

impl Ledger {
    /// Opens `ledger.db` in `dir`, which must match its anchor.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened or migrated, if it is missing although there
    /// are accounts, or if it is an older or a different ledger.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with_trust(dir, AnchorTrust::Anchored, None)
    }

    /// Opens the ledger like [`Ledger::open`]. With `home`, the file is a copy of that PostgreSQL.
    ///
    /// # Errors
    /// Returns the errors of [`Ledger::open`], and an error if the file has entries and is no copy,
    /// or is a copy and there is no `home`.
    pub fn open_with_home(dir: &Path, home: Option<&PostgresHome>) -> Result<Self, StoreError> {
        Self::open_with_trust(dir, AnchorTrust::Anchored, home)
    }

    fn open_with_trust(
        dir: &Path,
        trust: AnchorTrust,
        home: Option<&PostgresHome>,
    ) -> Result<Self, StoreError> {
        let path = dir.join("ledger.db");
        // A copy gets missing entries from PostgreSQL.
        if home.is_none()
            && let Some(fault) = missing::ledger(dir)?
        {
            return Err(StoreError::Unusable(fault));
        }
        // Read the anchor before the ledger, which only grows.
        let named = anchor::read(dir)?;
        let anchored_ms = anchor::modified_ms(dir);
        let mut writer = sqlite::open_with_page_size(&path, PAGE_BYTES, "open the ledger")?;
        sqlite::migrate(&mut writer, MIGRATIONS, "migrate the ledger")?;
        writer.set_prepared_statement_cache_capacity(64);
        sqlite::set_up_writer(&writer)
            .map_err(|source| StoreError::sqlite("open the ledger", source))?;
        let copy = match (home, trust) {
            (Some(home), _) => {
                copy::check_may_attach(&writer, "entry")?;
                let tables = &COPIED_TABLES;
                Some(Copy::attach(home.clone(), Domain::Ledger, &writer, tables)?)
            }
            (None, AnchorTrust::Any) => None,
            (None, _) => {
                copy::check_is_no_copy(&writer)?;
                None
            }
        };
        let readers = Readers::open(&path, MAX_READERS, "open the ledger for reading")?;
        let admission_rows = RowCache::open(&path, "open the ledger for reading")?;
        let anchor = anchor::open_for_ledger(dir, &writer, named, trust)?;
        let (writer, handed_over) = (WriteConnection::new(writer), AtomicBool::new(false));
        let index = LedgerIndex::open(dir);
        Ok(Self {
            writer,
            readers,
            index,
            segments: SegmentFiles::new(dir),
            admission_rows,
            newest_first_day: AtomicI64::new(i64::MIN),
            handed_over,
            copy,
            anchor,
            anchored_ms,
        })
    }

    /// Returns the connection to PostgreSQL, if the ledger is stored there.
    pub fn home(&self) -> Option<&PostgresHome> {
        self.copy.as_ref().map(Copy::home)
    }

    /// Runs `work` with the connection that writes. The changes do not reach PostgreSQL.
    pub fn with_writer<T>(&self, work: impl FnOnce(&Connection) -> T) -> T {
        work(&self.writer())
    }

    /// Runs `work` with the copy and the connection that writes. Returns `None` if the file is not
    /// a copy.
    pub fn with_copy<T>(
        &self,
        work: impl FnOnce(&Copy, &mut Connection) -> Result<T, StoreError>,
    ) -> Option<Result<T, StoreError>> {
        let copy = self.copy.as_ref()?;
        Some(work(copy, &mut self.writer()))
    }

    /// Returns the count of writes to `ledger.db` and its anchor.
    pub fn write_count(&self) -> WriteCount {
        self.writer.count()
    }

    /// Opens the ledger for reading only, without the check against its anchor.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened or migrated.
    pub fn open_for_audit(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with_trust(dir, AnchorTrust::Any, None)
    }

    /// Sets the anchor to the current ledger in `dir`, after an operator has restored a backup on
    /// purpose.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened; see [`Ledger::open`].
    pub fn accept(dir: &Path) -> Result<(), StoreError> {
        Self::open_with_trust(dir, AnchorTrust::Accepted, None).map(drop)
    }

    pub(crate) fn writer(&self) -> LedgerWriteGuard<'_> {
        LedgerWriteGuard {
            connection: self.writer.lock(),
            admission_rows: &self.admission_rows,
            keeps_rows: false,
            copy: self.copy.as_ref(),
        }
    }

    /// Runs one transaction that adds no entry.
    pub(crate) fn write<T>(
        &self,
        operation: &'static str,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut writer = self.writer();
        let write = || {
            let transaction = writer.begin()?;
            let value = change(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        write().map_err(|source| StoreError::sqlite(operation, source))
    }

    pub(crate) fn read<T>(
        &self,
        operation: &'static str,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.readers
            .with(read)
            .map_err(|source| StoreError::sqlite(operation, source))
    }

    /// Runs a read of a few rows on which a request waits. No slow page holds it up.
    pub(crate) fn read_for_request<T>(
        &self,
        operation: &'static str,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.readers
            .with_reserved(read)
            .map_err(|source| StoreError::sqlite(operation, source))
    }

    /// Opens the connections for point reads, so that no thread that serves requests opens a file.
    ///
    /// # Errors
    /// Returns an error if a connection cannot be opened.
    pub fn open_readers(&self) -> Result<(), StoreError> {
        self.readers.open_all()
    }

    /// Reads `ledger.db` past the pages in memory, to see whether the disk answers.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn check_reads(&self) -> Result<(), StoreError> {
        self.readers.check()
    }

    /// Writes the log back into `ledger.db`, so that the file alone is complete. This is needed
    /// before the file is copied, and at shutdown.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        failpoint::hit(Point::BeforeCheckpoint);
        sqlite::checkpoint(&self.writer())?;
        failpoint::hit(Point::AfterCheckpoint);
        Ok(())
    }

    /// Returns the latest time that the ledger knows of, in ms since 1970: the time of its last
    /// entry, or of the anchor when it was opened.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn last_known_ms(&self) -> Result<Option<i64>, StoreError> {
        let entered = self.read("read the ledger's last entry", |connection| {
            connection
                .query_row(
                    "SELECT at FROM entry ORDER BY seq DESC LIMIT 1",
                    [],
                    |row| row.get(0),
                )
                .optional()
        })?;
        Ok(entered.max((self.anchored_ms > 0).then_some(self.anchored_ms)))
    }

    /// Writes the anchor again, so that its file time shows that the ledger was in use.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn renew_anchor(&self) -> Result<(), StoreError> {
        let writer = self.writer();
        let head = chain_head(&writer)
            .map_err(|source| StoreError::sqlite("read the ledger's last entry", source))?;
        if let Some(anchor) = &self.anchor {
            anchor.write(&head);
        }
        Ok(())
    }
}
