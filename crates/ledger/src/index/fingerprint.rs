//! Computes a fingerprint of the index. The same number can be computed from the entries and from
//! the tables, so that an audit compares both without rebuilding the index.
//!
//! A row contributes a keyed hash. A row of sums contributes the hash of its key times its sums, so
//! that the contribution of each entry can be added separately and in any order. The keys are
//! random and live as long as the fingerprint, so a change of rows keeps the number with a
//! probability of 2⁻⁶⁴ only. The memory does not grow with the entries. The fingerprint does not
//! show which row is wrong: `rebuild.rs` does. This module must not read a table:
//! `fingerprint/stored.rs` does.

mod stored;
#[cfg(test)]
mod tests;

use super::batch::{DEBIT, FIRST_POSTING, IMPLAUSIBLE, IndexedDetail, UsageChange, kind_number};
use super::write::DAY_HOURS;
use crate::entry::LedgerEntry;
use crate::entry::chain::ChainHead;
use crate::entry::spend_totals::HOUR_MS;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, RandomState};

/// The fingerprint of the rows that follow from some entries.
pub struct IndexFingerprint {
    keys: FingerprintKeys,
    sum: u128,
    /// Position of the last entry.
    seq: i64,
}

pub struct StoredFingerprint {
    pub(crate) tables: Result<TablesFingerprint, IndexFault>,
}

/// The fingerprint of an index whose tables agree with each other.
pub(crate) struct TablesFingerprint {
    sum: u128,
    pub position: ChainHead,
    /// True if a sum has reached the maximum of its column. Such a sum differs from that of the
    /// entries.
    pub has_full_sum: bool,
}

/// The reason why an index has no fingerprint, or another one than its entries.
#[derive(Debug)]
pub enum IndexFault {
    /// The file cannot be read.
    Unreadable(String),
    /// The file can be read, but differs from the entries.
    Wrong(String),
    /// A sum has reached its maximum, so the fingerprints differ in any case.
    FullSum,
}

impl fmt::Display for IndexFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(reason) | Self::Wrong(reason) => f.write_str(reason),
            Self::FullSum => f.write_str("has a sum that no longer grows"),
        }
    }
}

/// Names of the columns with the units of time of the sums.
const HOUR: &str = "hour";
const DAY: &str = "day";

/// A row without its sums. Hashes represent names, because their numbers differ between indexes.
#[derive(Hash)]
enum IndexRow {
    Activity {
        account: u64,
        at_ms: i64,
        seq: i64,
        kind: i64,
        /// Model, key and outcome of an ending, if its detail can be read.
        names: Option<[u64; 3]>,
        flags: i64,
    },
    /// A turn, which links an activity to its conversation.
    Turn {
        seq: i64,
        conversation: u64,
    },
    Posting {
        account: u64,
        at_ms: i64,
        seq: i64,
        kind: i64,
        change: i64,
    },
    /// Sums of an account in an hour or on a day.
    Usage {
        unit: &'static str,
        account: u64,
        time: i64,
        model: u64,
        api_key: u64,
        member: u64,
    },
    Total {
        day: i64,
        model: u64,
    },
    Conversation(u64),
}

/// The sums of a row: responses or turns, credits, input, cache reads, output, and the column that
/// only one table has.
type RowSums = [i64; 6];

/// The keys of the hashes. Fingerprints with the same keys can be compared.
#[derive(Clone)]
pub struct FingerprintKeys {
    rows: RandomState,
    columns: [u128; 6],
}

impl FingerprintKeys {
    fn new() -> Self {
        let rows = RandomState::new();
        // The factor is odd, so that no change of a sum is lost.
        let column = |column: u64| {
            let [high, low] = [0_u64, 1].map(|half| u128::from(rows.hash_one((column, half))));
            high << 64 | low | 1
        };
        let columns = [0, 1, 2, 3, 4, 5].map(column);
        Self { rows, columns }
    }

    fn name(&self, name: &str) -> u64 {
        self.rows.hash_one(name)
    }

    fn conversation(&self, account: u64, name: &str) -> u64 {
        self.rows.hash_one((account, name))
    }

    fn row(&self, row: &IndexRow) -> u128 {
        u128::from(self.rows.hash_one(row))
    }

    fn sums(&self, row: &IndexRow, sums: &RowSums) -> u128 {
        let weighed = self.columns.iter().zip(sums);
        let weight = weighed.fold(0_u128, |weight, (key, sum)| {
            weight.wrapping_add(key.wrapping_mul(i128::from(*sum).cast_unsigned()))
        });
        self.row(row).wrapping_mul(weight)
    }

    fn entry(&self, entry: &LedgerEntry) -> u128 {
        let kind = kind_number(&entry.kind);
        let account = self.name(&entry.account);
        let (at_ms, seq) = (entry.at_ms, entry.seq);
        let detail = (kind < FIRST_POSTING).then(|| IndexedDetail::read(entry));
        let detail = detail.flatten();
        let names = detail.as_ref().map(|detail| {
            [&detail.model, &detail.key_id, &detail.outcome].map(|name| self.name(name))
        });
        let mut count = self.row(&IndexRow::Activity {
            account,
            at_ms,
            seq,
            kind,
            names,
            flags: detail.as_ref().map_or(0, |detail| detail.flags(kind)),
        });
        if kind >= FIRST_POSTING {
            let change = entry.change().get();
            count = count.wrapping_add(self.row(&IndexRow::Posting {
                account,
                at_ms,
                seq,
                kind,
                change,
            }));
        }
        if let (Some(detail), Some([model, api_key, _])) = (detail, names) {
            let sums = self.ending(entry, kind, &detail, [account, model, api_key]);
            count = count.wrapping_add(sums);
        }
        count
    }

    /// Returns the contribution of the end of a request, without that of its own row.
    fn ending(
        &self,
        entry: &LedgerEntry,
        kind: i64,
        detail: &IndexedDetail<'_>,
        [account, model, api_key]: [u64; 3],
    ) -> u128 {
        let change = detail.change(entry, kind);
        let hour = entry.at_ms.div_euclid(HOUR_MS);
        let usage = |unit, time| IndexRow::Usage {
            unit,
            account,
            time,
            model,
            api_key,
            member: self.name(&detail.member),
        };
        let mut count = self.sums(&usage(HOUR, hour), &row_sums(change, change.voids));
        let conversation = detail.conversation.as_deref();
        let conversation = conversation.map(|name| self.conversation(account, name));
        if let Some(conversation) = conversation {
            let turn = IndexRow::Turn {
                seq: entry.seq,
                conversation,
            };
            count = count.wrapping_add(self.row(&turn));
        }
        if kind != DEBIT {
            return count;
        }
        let day = hour.div_euclid(DAY_HOURS);
        let of_all = IndexRow::Total { day, model };
        count = count
            .wrapping_add(self.sums(&usage(DAY, day), &row_sums(change, 0)))
            .wrapping_add(self.sums(&of_all, &row_sums(change, change.writeoff.get())));
        if let Some(conversation) = conversation {
            let row = IndexRow::Conversation(conversation);
            count = count.wrapping_add(self.sums(&row, &row_sums(change, 0)));
        }
        count
    }
}

fn row_sums(change: UsageChange, own: i64) -> RowSums {
    let [responses, input, cache_read, output] = change.sum.counts();
    let credits = change.sum.credits.get();
    [responses, credits, input, cache_read, output, own]
}

/// Creates the fingerprint of no entries, with new keys.
impl Default for IndexFingerprint {
    fn default() -> Self {
        Self {
            keys: FingerprintKeys::new(),
            sum: 0,
            seq: 0,
        }
    }
}

impl IndexFingerprint {
    pub fn add(&mut self, entry: &LedgerEntry) {
        self.sum = self.sum.wrapping_add(self.keys.entry(entry));
        self.seq = entry.seq;
    }

    /// Subtracts an entry that was added before.
    pub(crate) fn remove(&mut self, entry: &LedgerEntry) {
        self.sum = self.sum.wrapping_sub(self.keys.entry(entry));
    }

    /// Records that exactly the entries up to this one were added.
    pub(crate) fn set_seq(&mut self, seq: i64) {
        self.seq = seq;
    }

    /// Returns the position of the last entry that was added.
    pub(crate) fn seq(&self) -> i64 {
        self.seq
    }

    /// Returns the keys, with which the fingerprint of an index can be computed.
    pub fn keys(&self) -> FingerprintKeys {
        self.keys.clone()
    }

    /// Returns whether the index has exactly the rows that follow from the entries.
    pub(crate) fn is_of(&self, tables: &TablesFingerprint) -> bool {
        tables.sum == self.sum && tables.position.seq == self.seq
    }
}
