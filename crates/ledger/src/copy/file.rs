//! Represents a SQLite file that is a copy, and its transactions.
//!
//! This file must not decide which data directory holds the data.

use super::changed_rows::ChangedRows;
use super::copied_entries;
use crate::StoreError;
use crate::entry::chain::ChainHead;
use crate::postgres::{Domain, Holding, HomeCommit, Position, PostgresHome};
use crate::sqlite;
use crate::statements::chain::chain_head;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, params};
use std::ops::Deref;

/// SQL for the table with a copy's position. Without PostgreSQL, the table exists but is empty.
pub const CREATE_POSITION: &str = include_str!("position.sql");

pub struct Copy {
    pub(crate) home: PostgresHome,
    pub(crate) domain: Domain,
    pub(crate) changed: ChangedRows,
}

/// The position of a copy in the changes of rows. Entries have their own positions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CopyState {
    holder: String,
    epoch: i64,
    version: i64,
}

/// A transaction that can write. Without a copy, it is a plain transaction of SQLite.
pub struct WriteTransaction<'a> {
    transaction: Transaction<'a>,
    copy: Option<(&'a Copy, Position, i64)>,
}

impl<'a> Deref for WriteTransaction<'a> {
    type Target = Transaction<'a>;

    fn deref(&self) -> &Self::Target {
        &self.transaction
    }
}

impl WriteTransaction<'_> {
    /// Commits, first to PostgreSQL if the file is a copy.
    ///
    /// # Errors
    /// Returns an error if the commit failed, or if its outcome is unknown.
    pub fn commit(self) -> rusqlite::Result<()> {
        let Some((copy, before, epoch)) = self.copy else {
            return self.transaction.commit();
        };
        copy.commit(self.transaction, before, epoch)
    }
}

/// Begins a transaction.
///
/// # Errors
/// Returns an error if another process held the file's lock for too long; with a copy, also if this
/// data directory does not hold the data, or if PostgreSQL cannot be reached.
pub fn begin<'a>(
    connection: &'a mut Connection,
    copy: Option<&'a Copy>,
) -> rusqlite::Result<WriteTransaction<'a>> {
    let transaction = sqlite::begin_write(connection).map_err(|error| {
        let is_busy = error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
        match copy {
            Some(_) if is_busy => as_sqlite(StoreError::Unusable(
                "another process of this data directory waits for PostgreSQL, or for its standby"
                    .into(),
            )),
            _ => error,
        }
    })?;
    let Some(copy) = copy else {
        return Ok(WriteTransaction {
            transaction,
            copy: None,
        });
    };
    let (before, epoch) = copy.begin(&transaction).map_err(as_sqlite)?;
    Ok(WriteTransaction {
        transaction,
        copy: Some((copy, before, epoch)),
    })
}

/// Carries an error through a function that can fail only with an error of SQLite. The text of the
/// error stays the same.
fn as_sqlite(error: StoreError) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(error))
}

/// Marks a file as a copy, unless it is one already.
pub fn make_copy(connection: &Connection) -> rusqlite::Result<()> {
    // Check without a lock first, because another process may have the lock for long.
    if state(connection)?.is_some() {
        return Ok(());
    }
    let holder = format!("copy_{}", uuid::Uuid::now_v7().simple());
    connection
        .execute(
            "INSERT INTO copy (only_row, holder, epoch, version) VALUES (1, ?1, 0, 0) ON CONFLICT DO NOTHING",
            [holder],
        )
        .map(drop)
}

/// Checks that a file is a copy or has no data. `table` has a row if the file has data.
///
/// # Errors
/// Returns an error if the file has data that PostgreSQL never received.
pub fn check_may_attach(connection: &Connection, table: &str) -> Result<(), StoreError> {
    let sql = |source| StoreError::sqlite("look whether the data is in PostgreSQL", source);
    if state(connection).map_err(sql)?.is_some() {
        return Ok(());
    }
    let has_rows: bool = connection
        .query_row(
            &format!("SELECT EXISTS (SELECT 1 FROM {table})"),
            [],
            |row| row.get(0),
        )
        .map_err(sql)?;
    if has_rows {
        return Err(StoreError::Unusable(
            "the data directory has a ledger of its own, which PostgreSQL does not have: `model-gateway ledger push` gives it to PostgreSQL; or use an empty data_dir".into(),
        ));
    }
    Ok(())
}

/// Checks that a file is not a copy.
///
/// # Errors
/// Returns an error if the file is a copy: its data may be old, and PostgreSQL must get each
/// change.
pub fn check_is_no_copy(connection: &Connection) -> Result<(), StoreError> {
    let state = state(connection)
        .map_err(|source| StoreError::sqlite("look whether the data is in PostgreSQL", source))?;
    match state {
        None => Ok(()),
        Some(_) => Err(StoreError::Unusable(
            "the data directory is a copy of a ledger in PostgreSQL: set ledger.kind: postgres and its url; to make the copy the ledger, run `model-gateway ledger detach`".into(),
        )),
    }
}

fn state(connection: &Connection) -> rusqlite::Result<Option<CopyState>> {
    connection
        .prepare_cached("SELECT holder, epoch, version FROM copy")?
        .query_row([], |row| {
            Ok(CopyState {
                holder: row.get(0)?,
                epoch: row.get(1)?,
                version: row.get(2)?,
            })
        })
        .optional()
}

impl Copy {
    /// Prepares the connection that writes to the file. A file without data becomes a copy.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn attach(
        home: PostgresHome,
        domain: Domain,
        connection: &Connection,
        tables: &[&'static str],
    ) -> Result<Self, StoreError> {
        let sql = |source| StoreError::sqlite("prepare a copy of PostgreSQL", source);
        let changed = ChangedRows::record(connection, tables).map_err(sql)?;
        make_copy(connection).map_err(sql)?;
        Ok(Self {
            home,
            domain,
            changed,
        })
    }

    pub fn home(&self) -> &PostgresHome {
        &self.home
    }

    /// Returns the version of the file's schema.
    fn format(connection: &Connection) -> Result<i32, StoreError> {
        connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(|source| StoreError::sqlite("read the version of a copy", source))
    }

    /// Checks that no newer program has written the data in PostgreSQL, because this program would
    /// drop columns that it does not know.
    pub(crate) fn check_format(
        &self,
        connection: &Connection,
        holding: &Holding,
    ) -> Result<(), StoreError> {
        if holding.format <= Self::format(connection)? {
            return Ok(());
        }
        Err(StoreError::Unusable(format!(
            "a newer version of the program has written the {} in PostgreSQL: upgrade this one",
            self.domain.name()
        )))
    }

    /// Returns the id of the data directory, and the last epoch in which it held the data.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn held(&self, connection: &Connection) -> Result<(String, i64), StoreError> {
        let state = self.state(connection)?;
        Ok((state.holder, state.epoch))
    }

    /// Records that this data directory holds the data in an epoch. Both files store the same id of
    /// the ledger.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn set_held(
        &self,
        connection: &Connection,
        holder: &str,
        epoch: i64,
    ) -> Result<(), StoreError> {
        connection
            .execute(
                "UPDATE copy SET holder = ?1, epoch = ?2",
                params![holder, epoch],
            )
            .map(drop)
            .map_err(|source| StoreError::sqlite("record the lease", source))?;
        self.home
            .set_format(self.domain, epoch, Self::format(connection)?)
    }

    fn state(&self, connection: &Connection) -> Result<CopyState, StoreError> {
        state(connection)
            .map_err(|source| StoreError::sqlite("read the position of a copy", source))?
            .ok_or_else(|| StoreError::Unusable("the file is not a copy of PostgreSQL".into()))
    }

    /// Returns the number of the last change of rows in the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn version(&self, connection: &Connection) -> Result<i64, StoreError> {
        Ok(self.state(connection)?.version)
    }

    pub(crate) fn position(&self, connection: &Connection) -> Result<Position, StoreError> {
        let version = self.state(connection)?.version;
        let ChainHead { seq, hash } = match self.domain {
            Domain::Ledger => chain_head(connection)
                .map_err(|source| StoreError::sqlite("read the ledger's last entry", source))?,
            Domain::Accounts => ChainHead::genesis(),
        };
        Ok(Position { seq, hash, version })
    }

    /// Makes sure that this data directory holds the data and is up to date. Returns its position
    /// and epoch.
    fn begin(&self, transaction: &Transaction<'_>) -> Result<(Position, i64), StoreError> {
        // The file is locked, so no other process of this data directory commits now.
        let holding = self.home.holding(self.domain)?;
        let state = self.state(transaction)?;
        if holding.epoch != state.epoch || holding.holder != state.holder {
            return Err(not_holder(&holding));
        }
        let mut position = self.position(transaction)?;
        if position != holding.position {
            self.check_same_chain(&position, &holding.position)?;
            while !self.take_page(transaction)? {}
            position = self.position(transaction)?;
        }
        self.changed
            .clear(transaction)
            .map_err(|source| StoreError::sqlite("begin a transaction", source))?;
        Ok((position, state.epoch))
    }

    /// Checks that PostgreSQL has all data of the copy.
    pub(crate) fn check_same_chain(
        &self,
        copy: &Position,
        home: &Position,
    ) -> Result<(), StoreError> {
        let lacks = |what: String| {
            StoreError::Unusable(format!(
                "PostgreSQL lacks {what}: a standby was promoted that was behind, or a backup was restored. Nothing is written until `model-gateway ledger reconcile` has shown both sides"
            ))
        };
        if copy.seq > home.seq {
            return Err(lacks(format!(
                "entries {} to {} of the ledger, which this data directory has",
                home.seq + 1,
                copy.seq
            )));
        }
        if copy.version > home.version {
            return Err(lacks(format!(
                "changes of the {} that this data directory has",
                self.domain.name()
            )));
        }
        let same = match self.domain {
            Domain::Accounts => true,
            Domain::Ledger if copy.seq == 0 => true,
            Domain::Ledger if copy.seq == home.seq => copy.hash == home.hash,
            Domain::Ledger => self
                .home
                .entry_at(copy.seq)?
                .is_some_and(|entry| entry.hash == copy.hash),
        };
        match same {
            true => Ok(()),
            false => Err(lacks(format!(
                "entry {} as this data directory has it, and has another one in its place",
                copy.seq
            ))),
        }
    }

    /// Commits to PostgreSQL, and then to the file.
    fn commit(
        &self,
        transaction: Transaction<'_>,
        before: Position,
        epoch: i64,
    ) -> rusqlite::Result<()> {
        let (accounts, rows) = self.changed.collect(&transaction, self.domain)?;
        let entries = match self.domain {
            Domain::Ledger => copied_entries::after(&transaction, before.seq)?,
            Domain::Accounts => Vec::new(),
        };
        self.changed.clear(&transaction)?;
        if accounts.is_empty() && rows.is_empty() && entries.is_empty() {
            // The transaction changed only data that belongs to this data directory.
            return transaction.commit();
        }
        let version = before.version + 1;
        transaction
            .prepare_cached("UPDATE copy SET version = ?1")?
            .execute([version])?;
        let end = entries.last();
        let after = Position {
            seq: end.map_or(before.seq, |entry| entry.seq),
            hash: end.map_or_else(|| before.hash.clone(), |entry| entry.hash.clone()),
            version,
        };
        let change = HomeCommit {
            domain: self.domain,
            epoch,
            before,
            after,
            entries,
            accounts,
            rows,
        };
        self.home.commit(change).map_err(as_sqlite)?;
        // A process that dies here, or a full disk, leaves the file behind PostgreSQL. The next
        // transaction brings the file up to date.
        transaction.commit()
    }
}

fn not_holder(holding: &Holding) -> StoreError {
    let who = match (holding.is_live, holding.address.as_str()) {
        (true, address) if !address.is_empty() => {
            format!("the sidecar at {address} holds the ledger: run the command on its machine")
        }
        _ => "no sidecar holds the ledger: start one".to_owned(),
    };
    StoreError::NotHolder(format!("cannot write to PostgreSQL: {who}"))
}
