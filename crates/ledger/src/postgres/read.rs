//! Reads data from PostgreSQL for copies.
//!
//! This file must not write.

use super::home::PostgresHome;
use super::model::{AccountBalance, CopiedRow, Domain, Holding, Position};
use super::session::PostgresSession;
use crate::LedgerEntry;
use crate::StoreError;
use credits::money::Micro;
use std::collections::BTreeSet;
use tokio_postgres::Row;

pub const MAX_PAGE_ENTRIES: u32 = 8_192;

const HOLDING: &str =
    "SELECT epoch, holder, address, lease_until > clock_timestamp(), seq, hash, version, format
    FROM holding WHERE domain = $1";

const ENTRIES: &str = "SELECT seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, writeoff, detail, prev, hash
    FROM entry WHERE seq > $1 ORDER BY seq LIMIT $2";

/// Data that a copy lacks: entries and, on the last page, the rows that changed.
#[derive(Debug)]
pub struct CopyPage {
    pub holding: Holding,
    pub entries: Vec<LedgerEntry>,
    /// Accounts of these entries. The last page has all accounts that changed.
    pub accounts: Vec<AccountBalance>,
    pub rows: Vec<CopiedRow>,
    /// True if the page contains all data up to `holding`.
    pub is_last: bool,
}

pub async fn holding(session: &mut PostgresSession, domain: Domain) -> Result<Holding, StoreError> {
    let statement = session.prepared(HOLDING).await?;
    let row = session
        .client
        .query_one(&statement, &[&domain.name()])
        .await
        .map_err(|source| StoreError::postgres("read who holds the ledger", source))?;
    read_holding(&row)
}

fn read_holding(row: &Row) -> Result<Holding, StoreError> {
    let read = || -> Result<Holding, tokio_postgres::Error> {
        Ok(Holding {
            epoch: row.try_get(0)?,
            holder: row.try_get(1)?,
            address: row.try_get(2)?,
            is_live: row.try_get(3)?,
            position: Position {
                seq: row.try_get(4)?,
                hash: row.try_get(5)?,
                version: row.try_get(6)?,
            },
            format: row.try_get(7)?,
        })
    };
    read().map_err(|source| StoreError::postgres("read who holds the ledger", source))
}

impl PostgresHome {
    /// Returns the holder of a domain, and the position of its data.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub fn holding(&self, domain: Domain) -> Result<Holding, StoreError> {
        self.with_session("read who holds the ledger", move |session| {
            Box::pin(holding(session, domain))
        })
    }

    /// Returns the address of the sidecar that holds the ledger, or `None` without a holder.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub fn holder_address(&self) -> Result<Option<String>, StoreError> {
        let holding = self.holding(Domain::Ledger)?;
        Ok(holding.is_live.then_some(holding.address))
    }

    /// Returns at most [`MAX_PAGE_ENTRIES`] entries after `seq`, and the rows that changed after
    /// `version`, from one snapshot.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub fn page(&self, domain: Domain, seq: i64, version: i64) -> Result<CopyPage, StoreError> {
        self.with_session("read from PostgreSQL", move |session| {
            Box::pin(page(session, domain, seq, version))
        })
    }

    /// Returns the entry at a position, or `None` if the position is beyond the last entry.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub fn entry_at(&self, seq: i64) -> Result<Option<LedgerEntry>, StoreError> {
        self.with_session("read an entry from PostgreSQL", move |session| {
            Box::pin(async move {
                let found = session
                    .client
                    .query(ENTRIES, &[&(seq - 1), &1_i64])
                    .await
                    .and_then(|rows| rows.iter().map(read_entry).collect::<Result<Vec<_>, _>>())
                    .map_err(|source| {
                        StoreError::postgres("read an entry from PostgreSQL", source)
                    })?;
                Ok(found.into_iter().find(|entry| entry.seq == seq))
            })
        })
    }
}

async fn page(
    session: &mut PostgresSession,
    domain: Domain,
    seq: i64,
    version: i64,
) -> Result<CopyPage, StoreError> {
    let sql = |source| StoreError::postgres("read from PostgreSQL", source);
    let entries_behind = session.prepared(ENTRIES).await?;
    let transaction = session
        .client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await
        .map_err(sql)?;
    let holding = read_holding(
        &transaction
            .query_one(HOLDING, &[&domain.name()])
            .await
            .map_err(sql)?,
    )?;
    let mut page = CopyPage {
        is_last: true,
        entries: Vec::new(),
        accounts: Vec::new(),
        rows: Vec::new(),
        holding,
    };
    if domain == Domain::Ledger {
        let rows = transaction
            .query(&entries_behind, &[&seq, &i64::from(MAX_PAGE_ENTRIES)])
            .await
            .map_err(sql)?;
        page.entries = rows
            .iter()
            .map(read_entry)
            .collect::<Result<_, _>>()
            .map_err(sql)?;
        let end = page.entries.last().map_or(seq, |entry| entry.seq);
        page.is_last = end >= page.holding.position.seq;
        // After the last page, every account equals its row.
        let since = if page.is_last { version } else { i64::MAX };
        page.accounts = accounts_since(&transaction, &page.entries, since)
            .await
            .map_err(sql)?;
    }
    if page.is_last {
        page.rows = rows_since(&transaction, domain, version)
            .await
            .map_err(sql)?;
    }
    transaction.commit().await.map_err(sql)?;
    Ok(page)
}

/// Returns the accounts of these entries, and all accounts that changed after `version`.
async fn accounts_since(
    transaction: &tokio_postgres::Transaction<'_>,
    entries: &[LedgerEntry],
    version: i64,
) -> Result<Vec<AccountBalance>, tokio_postgres::Error> {
    let of_page: BTreeSet<&str> = entries.iter().map(|entry| entry.account.as_str()).collect();
    let of_page: Vec<&str> = of_page.into_iter().collect();
    let rows = transaction
        .query(
            "SELECT id, paid, trial, trial_ends_at, credited, opened_at FROM account
             WHERE id = ANY($1) OR version > $2",
            &[&of_page, &version],
        )
        .await?;
    rows.iter().map(read_account).collect()
}

/// Returns the other rows of the domain that changed after `version`.
async fn rows_since(
    transaction: &tokio_postgres::Transaction<'_>,
    domain: Domain,
    version: i64,
) -> Result<Vec<CopiedRow>, tokio_postgres::Error> {
    let rows = transaction
        .query(
            "SELECT tbl, key, row FROM copied_row WHERE domain = $1 AND version > $2 ORDER BY version, tbl, key",
            &[&domain.name(), &version],
        )
        .await?;
    let row = |row: &Row| {
        Ok(CopiedRow {
            table: row.try_get(0)?,
            key: row.try_get(1)?,
            row: row.try_get(2)?,
        })
    };
    rows.iter().map(row).collect()
}

fn read_account(row: &Row) -> Result<AccountBalance, tokio_postgres::Error> {
    Ok(AccountBalance {
        id: row.try_get(0)?,
        paid: row.try_get(1)?,
        trial: row.try_get(2)?,
        trial_ends_at_ms: row.try_get(3)?,
        credited: row.try_get(4)?,
        opened_at_ms: row.try_get(5)?,
    })
}

fn read_entry(row: &Row) -> Result<LedgerEntry, tokio_postgres::Error> {
    let amount = |index: usize| row.try_get(index).map(Micro::new);
    Ok(LedgerEntry {
        seq: row.try_get(0)?,
        kind: row.try_get(1)?,
        reference: row.try_get(2)?,
        account: row.try_get(3)?,
        at_ms: row.try_get(4)?,
        d_paid: amount(5)?,
        d_trial: amount(6)?,
        bal_paid: amount(7)?,
        bal_trial: amount(8)?,
        writeoff: amount(9)?,
        detail: row.try_get(10)?,
        prev: row.try_get(11)?,
        hash: row.try_get(12)?,
    })
}
