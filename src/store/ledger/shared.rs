//! The ledger beside a store that many edges share: enters its events, and remembers how far that
//! store was told.
//!
//! Must not ask the store.

use super::{
    Batch, COLUMNS, Detail, Ending, Entry, LATE, Ledger, Post, account_row, detail, entry, post_in,
};
use crate::catalog::Price;
use crate::money::{Micro, Parts};
use crate::store::StoreError;
use crate::store::sqlite;
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// Marks that are kept: one a minute, so more than half a day.
const MARKS: i64 = 1_000;

/// What the store has done and the ledger is to have.
#[derive(Debug, Clone)]
pub enum Done {
    /// A request ended; at a price that the ledger may not have yet.
    Ended(Box<Ending>, Option<Box<Price>>),
    /// The same, of which the store has taken nothing: what the ledger takes is to be posted there.
    EndedLate(Box<Ending>, Option<Box<Price>>),
    Lapsed {
        account: String,
        trial: Micro,
        at_ms: i64,
    },
}

/// Where a partition of the store was last found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub server: String,
    pub epoch: String,
    pub seen_ms: i64,
}

impl Ledger {
    /// Enters what the store has done, each once for ever, in one commit. Returns for each what the
    /// ledger took for it, now or before; `None` where its account is not open, and nothing can be
    /// entered.
    ///
    /// # Errors
    /// Nothing was entered.
    pub fn enter_shared(&self, done: &[Done]) -> Result<Vec<Option<Parts>>, StoreError> {
        let sql = |source| StoreError::sqlite("enter the shared store's events", source);
        let mut writer = self.writer();
        let transaction = sqlite::write(&mut writer).map_err(sql)?;
        let taken = done
            .iter()
            .map(|done| enter(&transaction, done))
            .collect::<Result<_, _>>()
            .map_err(sql)?;
        self.commit(transaction, || {}).map_err(sql)?;
        Ok(taken)
    }

    /// The account and the ledger's last entry, as of one moment.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn account_as_of(
        &self,
        account: &str,
    ) -> Result<Option<(super::Account, i64)>, StoreError> {
        self.read("read an account to seed", |connection| {
            connection
                .prepare_cached(
                    "SELECT paid, trial, trial_ends_at, credited, 0, 0, 0, 0, (SELECT ifnull(max(seq), 0) FROM entry)
                     FROM account WHERE id = ?1",
                )?
                .query_row([account], |row| Ok((account_row(row)?, row.get(8)?)))
                .optional()
        })
    }

    /// All accounts.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn account_ids(&self) -> Result<Vec<String>, StoreError> {
        self.read("list the ledger's accounts", |connection| {
            connection
                .prepare_cached("SELECT id FROM account ORDER BY id")?
                .query_map([], |row| row.get(0))?
                .collect()
        })
    }

    /// Entries after `seq`, in order.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn entries_after(&self, seq: i64, most: u32) -> Result<Vec<Entry>, StoreError> {
        self.read("read the ledger's entries", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM entry WHERE seq > ?1 ORDER BY seq LIMIT ?2"
                ))?
                .query_map(params![seq, most], entry)?
                .collect()
        })
    }

    /// The last entry that the store was told of.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn pushed(&self) -> Result<i64, StoreError> {
        self.read("read how far the shared store was told", |connection| {
            connection
                .prepare_cached("SELECT seq FROM shared_pushed")?
                .query_row([], |row| row.get(0))
        })
    }

    /// # Errors
    /// The ledger cannot be written.
    pub fn set_pushed(&self, seq: i64) -> Result<(), StoreError> {
        self.writer()
            .execute("UPDATE shared_pushed SET seq = ?1", [seq])
            .map(drop)
            .map_err(|source| {
                StoreError::sqlite("remember how far the shared store was told", source)
            })
    }

    /// Where a partition was last found; `None` before the first time.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn found(&self, partition: u32) -> Result<Option<Found>, StoreError> {
        self.read("read where a partition was", |connection| {
            connection
                .prepare_cached(
                    "SELECT server, epoch, seen_at FROM shared_partition WHERE partition = ?1",
                )?
                .query_row([partition], |row| {
                    Ok(Found {
                        server: row.get(0)?,
                        epoch: row.get(1)?,
                        seen_ms: row.get(2)?,
                    })
                })
                .optional()
        })
    }

    /// Remembers where partitions were found.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn set_found(&self, found: &[(u32, Found)]) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("remember where a partition was", source);
        let mut writer = self.writer();
        let transaction = sqlite::write(&mut writer).map_err(sql)?;
        for (
            partition,
            Found {
                server,
                epoch,
                seen_ms,
            },
        ) in found
        {
            transaction
                .prepare_cached("INSERT OR REPLACE INTO shared_partition VALUES (?1, ?2, ?3, ?4)")
                .and_then(|mut statement| {
                    statement.execute(params![partition, server, epoch, seen_ms])
                })
                .map_err(sql)?;
        }
        transaction.commit().map_err(sql)
    }

    /// Remembers how far the store was told at this moment.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn set_mark(&self, at_ms: i64) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("remember how far the shared store was told", source);
        let mut writer = self.writer();
        let transaction = sqlite::write(&mut writer).map_err(sql)?;
        transaction
            .execute("INSERT OR REPLACE INTO shared_mark SELECT ?1, seq FROM shared_pushed", [at_ms])
            .and_then(|_| {
                let sql =
                    "DELETE FROM shared_mark WHERE at NOT IN (SELECT at FROM shared_mark ORDER BY at DESC LIMIT ?1)";
                transaction.execute(sql, [MARKS])
            })
            .map_err(sql)?;
        transaction.commit().map_err(sql)
    }

    /// The entry after which all is that the store was told of since `at_ms`. Before the first mark
    /// it was told nothing, and nothing came from it.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn mark(&self, at_ms: i64) -> Result<i64, StoreError> {
        self.read("read how far the shared store was told", |connection| {
            connection
                .prepare_cached(
                    "SELECT coalesce((SELECT seq FROM shared_mark WHERE at <= ?1 ORDER BY at DESC LIMIT 1),
                       (SELECT seq FROM shared_mark ORDER BY at LIMIT 1), (SELECT max(seq) FROM entry), 0)",
                )?
                .query_row([at_ms], |row| row.get(0))
        })
    }
}

fn enter(transaction: &Transaction<'_>, done: &Done) -> rusqlite::Result<Option<Parts>> {
    let account = match done {
        Done::Ended(ending, _) | Done::EndedLate(ending, _) => &ending.account,
        Done::Lapsed { account, .. } => account,
    };
    let row: Option<(Micro, Option<i64>)> = transaction
        .prepare_cached("SELECT trial, trial_ends_at FROM account WHERE id = ?1")?
        .query_row([account], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((left, ends_at_ms)) = row else {
        return Ok(None);
    };
    match done {
        Done::Ended(ending, price) => {
            keep_own_price(transaction, ending, price.as_deref())?;
            end(transaction, ending, detail(ending)?)?;
            // Of what was entered late, all that the store took besides what it is told of is too
            // much.
            let sql = "SELECT iif(detail LIKE '%' || ?2, 0, -d_paid), iif(detail LIKE '%' || ?2, 0, -d_trial)
                       FROM entry WHERE ref = ?1 AND kind IN ('debit', 'void')";
            let taken = |row: &Row<'_>| {
                Ok(Some(Parts {
                    paid: row.get(0)?,
                    trial: row.get(1)?,
                }))
            };
            transaction
                .prepare_cached(sql)?
                .query_row([ending.request_id.as_str(), LATE], taken)
        }
        Done::EndedLate(ending, price) => {
            keep_own_price(transaction, ending, price.as_deref())?;
            end(transaction, ending, late(&ending.detail)?)?;
            Ok(Some(Parts::ZERO))
        }
        // All that is left here, whatever the store had: that is levelled.
        Done::Lapsed { at_ms, .. } => {
            let reference = format!("lapse:{account}");
            post_in(
                transaction,
                &Post {
                    kind: "lapse",
                    reference: &reference,
                    account,
                    d_paid: Micro::ZERO,
                    d_trial: Micro::ZERO.minus(left),
                    // The store's clock decided, which need not be the ledger's.
                    at_ms: ends_at_ms.map_or(*at_ms, |ends| ends.max(*at_ms)),
                },
            )?;
            // Now, or before: as for requests, what is read again is levelled by what was taken
            // then.
            transaction
                .prepare_cached("SELECT 0, -d_trial FROM entry WHERE ref = ?1 AND kind = 'lapse'")?
                .query_row([reference], |row| {
                    Ok(Some(Parts {
                        paid: row.get(0)?,
                        trial: row.get(1)?,
                    }))
                })
        }
    }
}

fn end(transaction: &Transaction<'_>, ending: &Ending, detail: String) -> rusqlite::Result<()> {
    let mut batch = Batch::begin(transaction)?;
    batch.end(ending, detail)?;
    batch.close()
}

/// The detail of an ending that is entered late.
fn late(detail: &Detail) -> rusqlite::Result<String> {
    let mut text = serde_json::to_string(detail).map_err(unwritable)?;
    text.pop();
    Ok(text + LATE)
}

fn unwritable(error: serde_json::Error) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(error))
}

/// Keeps the price that came with an ending, where it is the one of its detail.
fn keep_own_price(
    transaction: &Transaction<'_>,
    ending: &Ending,
    price: Option<&Price>,
) -> rusqlite::Result<()> {
    match price.filter(|price| price.is_version(&ending.detail.price_version)) {
        Some(price) => keep_price(transaction, price, ending.at_ms),
        None => Ok(()),
    }
}

fn keep_price(transaction: &Transaction<'_>, price: &Price, at_ms: i64) -> rusqlite::Result<()> {
    let json = serde_json::to_string(price).map_err(unwritable)?;
    transaction
        .prepare_cached(
            "INSERT INTO price_version (id, json, first_used_at) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO NOTHING",
        )?
        .execute(params![price.version, json, at_ms])?;
    Ok(())
}
