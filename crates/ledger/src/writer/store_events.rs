//! Implements the ledger's side of the shared store. It enters the store's events, and records the
//! last entry that was published to the store.
//!
//! This file must not call the store.

use super::accounts::insert_price;
use super::batch::{EndingBatch, EndingEntry};
use super::trial::{Posting, insert_posting};
use crate::StoreError;
use crate::entry::account::{LedgerAccount, account_row};
use crate::entry::ending::{Ending, EndingDetail, LATE_SUFFIX, ending_detail};
use crate::sealed::files::SegmentFiles;
use crate::sqlite::to_json;
use crate::views::StoreEvents;
use credits::money::{CreditSplit, Micro};
use credits::price_list::PriceList;
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// Maximum number of marks. There is one per minute, so they cover more than half a day.
const MAX_MARKS: i64 = 1_000;

/// An event of the store that the ledger must enter.
#[derive(Debug, Clone)]
pub enum IngestEvent {
    /// A request ended, at a price that the ledger may not have yet.
    Ended(Box<Ending>, Option<Box<PriceList>>),
    /// A request ended, but the store debited nothing. The ledger's debit must be posted to the
    /// store.
    EndedLate(Box<Ending>, Option<Box<PriceList>>),
    Lapsed {
        account: String,
        trial: Micro,
        at_ms: i64,
    },
}

/// The server and the epoch in which a partition of the store was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionLocation {
    pub server: String,
    pub epoch: String,
    pub seen_ms: i64,
}

impl StoreEvents<'_> {
    /// Returns the account and the ledger's last entry, from one snapshot.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn account_as_of(&self, account: &str) -> Result<Option<(LedgerAccount, i64)>, StoreError> {
        self.0.read("read an account for the shared store", |connection| {
            connection
                .prepare_cached(
                    "SELECT paid, trial, trial_ends_at, credited, 0, 0, 0, 0, (SELECT ifnull(max(seq), 0) FROM entry)
                     FROM account WHERE id = ?1",
                )?
                .query_row([account], |row| Ok((account_row(row)?, row.get(8)?)))
                .optional()
        })
    }

    /// Returns the ids of all accounts.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn account_ids(&self) -> Result<Vec<String>, StoreError> {
        self.0.read("list the ledger's accounts", |connection| {
            connection
                .prepare_cached("SELECT id FROM account ORDER BY id")?
                .query_map([], |row| row.get(0))?
                .collect()
        })
    }

    /// Returns the last entry that was published to the store.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn published_seq(&self) -> Result<i64, StoreError> {
        self.0.read(
            "read how many entries are published to the shared store",
            |connection| {
                connection
                    .prepare_cached("SELECT seq FROM shared_pushed")?
                    .query_row([], |row| row.get(0))
            },
        )
    }

    /// Records the last entry that was published to the store.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn set_published_seq(&self, seq: i64) -> Result<(), StoreError> {
        self.0.write(
            "record how many entries are published to the shared store",
            |transaction| {
                transaction
                    .execute("UPDATE shared_pushed SET seq = ?1", [seq])
                    .map(drop)
            },
        )
    }

    /// Returns the location where a partition was last seen, or `None` before the first time.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn partition_location(
        &self,
        partition: u32,
    ) -> Result<Option<PartitionLocation>, StoreError> {
        self.0
            .read("read the last server of a partition", |connection| {
                connection
                    .prepare_cached(
                        "SELECT server, epoch, seen_at FROM shared_partition WHERE partition = ?1",
                    )?
                    .query_row([partition], |row| {
                        Ok(PartitionLocation {
                            server: row.get(0)?,
                            epoch: row.get(1)?,
                            seen_ms: row.get(2)?,
                        })
                    })
                    .optional()
            })
    }

    /// Records the locations of partitions.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn set_partition_locations(
        &self,
        found: &[(u32, PartitionLocation)],
    ) -> Result<(), StoreError> {
        self.0
            .write("record the server of a partition", |transaction| {
                let mut put = transaction.prepare_cached(
                    "INSERT OR REPLACE INTO shared_partition VALUES (?1, ?2, ?3, ?4)",
                )?;
                for (partition, found) in found {
                    put.execute(params![partition, found.server, found.epoch, found.seen_ms])?;
                }
                Ok(())
            })
    }

    /// Records the last published entry, with the current time.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn save_mark(&self, at_ms: i64) -> Result<(), StoreError> {
        self.0.write(
            "record how many entries are published to the shared store",
            |transaction| {
                transaction.execute(
                    "INSERT OR REPLACE INTO shared_mark SELECT ?1, seq FROM shared_pushed",
                    [at_ms],
                )?;
                let sql =
                    "DELETE FROM shared_mark WHERE at NOT IN (SELECT at FROM shared_mark ORDER BY at DESC LIMIT ?1)";
                transaction.execute(sql, [MAX_MARKS]).map(drop)
            },
        )
    }

    /// Returns a position before all entries that were published since `at_ms`. Before the first
    /// mark, no entry was published and no event arrived.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn mark_before(&self, at_ms: i64) -> Result<i64, StoreError> {
        self.0.read("read how many entries are published to the shared store", |connection| {
            connection
                .prepare_cached(
                    "SELECT coalesce((SELECT seq FROM shared_mark WHERE at <= ?1 ORDER BY at DESC LIMIT 1),
                       (SELECT seq FROM shared_mark ORDER BY at LIMIT 1), (SELECT max(seq) FROM entry), 0)",
                )?
                .query_row([at_ms], |row| row.get(0))
        })
    }
}

/// Enters one event. Returns the ledger's debit, made now or earlier.
pub(crate) fn enter_event(
    transaction: &Transaction<'_>,
    segments: &SegmentFiles,
    done: &IngestEvent,
) -> rusqlite::Result<Option<CreditSplit>> {
    let account = match done {
        IngestEvent::Ended(ending, _) | IngestEvent::EndedLate(ending, _) => &ending.account,
        IngestEvent::Lapsed { account, .. } => account,
    };
    let row: Option<(Micro, Option<i64>)> = transaction
        .prepare_cached("SELECT trial, trial_ends_at FROM account WHERE id = ?1")?
        .query_row([account], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((remaining, ends_at_ms)) = row else {
        return Ok(None);
    };
    match done {
        IngestEvent::Ended(ending, price) => {
            enter_ended(transaction, segments, ending, price.as_deref())
        }
        IngestEvent::EndedLate(ending, price) => {
            store_ending_price(transaction, ending, price.as_deref())?;
            let detail = late_detail(&ending.detail)?;
            let entered = enter_ending(transaction, segments, ending, detail)?;
            let is_withheld = matches!(entered, EndingEntry::Withheld);
            Ok((!is_withheld).then_some(CreditSplit::ZERO))
        }
        // All remaining trial credits expire, regardless of the store's amount. The difference is
        // posted to the store.
        IngestEvent::Lapsed { at_ms, .. } => {
            let reference = format!("lapse:{account}");
            insert_posting(
                transaction,
                &Posting {
                    kind: "lapse",
                    reference: &reference,
                    account,
                    d_paid: Micro::ZERO,
                    d_trial: Micro::ZERO.minus(remaining),
                    // The store decided by its clock, which may differ from the ledger's.
                    at_ms: ends_at_ms.map_or(*at_ms, |ends| ends.max(*at_ms)),
                },
            )?;
            // Return the amount that expired now or earlier. As with requests, the earlier amount
            // corrects an event that is read again.
            transaction
                .prepare_cached("SELECT 0, -d_trial FROM entry WHERE ref = ?1 AND kind = 'lapse'")?
                .query_row([reference], |row| {
                    Ok(Some(CreditSplit {
                        paid: row.get(0)?,
                        trial: row.get(1)?,
                    }))
                })
        }
    }
}

/// Enters the end of a request. Returns the ledger's debit, made now or earlier.
fn enter_ended(
    transaction: &Transaction<'_>,
    segments: &SegmentFiles,
    ending: &Ending,
    price: Option<&PriceList>,
) -> rusqlite::Result<Option<CreditSplit>> {
    store_ending_price(transaction, ending, price)?;
    match enter_ending(transaction, segments, ending, ending_detail(ending)?)? {
        EndingEntry::New | EndingEntry::Known => {}
        EndingEntry::Sealed(entry) if entry.is_late() => {
            return Ok(Some(CreditSplit::ZERO));
        }
        EndingEntry::Sealed(entry) => {
            return Ok(Some(CreditSplit {
                paid: Micro::ZERO.minus(entry.d_paid),
                trial: Micro::ZERO.minus(entry.d_trial),
            }));
        }
        EndingEntry::Withheld => return Ok(None),
    }
    // For an ending that was entered late, the ledger posts its own debit to the store. If the
    // store has debited the request too, that amount is returned.
    let sql =
        "SELECT iif(detail LIKE '%' || ?2, 0, -d_paid), iif(detail LIKE '%' || ?2, 0, -d_trial)
               FROM entry WHERE ref = ?1 AND kind IN ('debit', 'void')";
    let taken = |row: &Row<'_>| {
        Ok(Some(CreditSplit {
            paid: row.get(0)?,
            trial: row.get(1)?,
        }))
    };
    transaction
        .prepare_cached(sql)?
        .query_row([ending.request_id.as_str(), LATE_SUFFIX], taken)
}

fn enter_ending(
    transaction: &Transaction<'_>,
    segments: &SegmentFiles,
    ending: &Ending,
    detail: String,
) -> rusqlite::Result<EndingEntry> {
    let mut batch = EndingBatch::new(transaction, segments, None)?;
    let entered = batch.enter(ending, detail)?;
    batch.write()?;
    Ok(entered)
}

/// Returns the JSON of a late ending's detail.
fn late_detail(detail: &EndingDetail) -> rusqlite::Result<String> {
    let mut text = to_json(detail)?;
    text.pop();
    Ok(text + LATE_SUFFIX)
}

/// Stores the price of an ending, if its version is the one in the detail.
fn store_ending_price(
    transaction: &Transaction<'_>,
    ending: &Ending,
    price: Option<&PriceList>,
) -> rusqlite::Result<()> {
    match price.filter(|price| price.matches_version(&ending.detail.price_version)) {
        Some(price) => insert_price(transaction, price, ending.at_ms),
        None => Ok(()),
    }
}
