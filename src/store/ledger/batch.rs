//! Endings of requests, entered together: one entry for each, and one update of each total for all
//! of them.
//!
//! Under load a commit has many endings of few accounts and keys. So a row that each of them would
//! change (a balance, a key's spending, an aggregate for pages) is read once and written once. A
//! caller that begins a batch must write it in the same transaction, and must write nothing else to
//! the ledger in between. Must not decide what an ending costs.

use super::account::balances;
use super::chain::{entry_hash, insert, last_entry, set_balance};
use super::ending::Ending;
use super::entry::LedgerEntry;
use super::{activity, key_spend, usage};
use credits::money::{CreditSplit, Micro};
use rusqlite::Transaction;
use std::collections::BTreeMap;

pub(super) struct EndingBatch<'a> {
    transaction: &'a Transaction<'a>,
    /// The ledger's last entry, which the next one is chained to.
    last: (i64, Vec<u8>),
    accounts: BTreeMap<&'a str, RunningBalance>,
    keys: key_spend::KeySpendUpdate<'a>,
    conversations: activity::ConversationUpdate<'a>,
    usage: usage::UsageUpdate<'a>,
}

/// An account's balance after the endings so far.
#[derive(Clone, Copy)]
struct RunningBalance {
    parts: CreditSplit,
    is_changed: bool,
}

impl<'a> EndingBatch<'a> {
    pub(super) fn new(transaction: &'a Transaction<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            transaction,
            last: last_entry(transaction)?,
            accounts: BTreeMap::new(),
            keys: key_spend::KeySpendUpdate::default(),
            conversations: activity::ConversationUpdate::default(),
            usage: usage::UsageUpdate::default(),
        })
    }

    /// Enters one ending; returns false if the request had ended before. The balance decides,
    /// whatever the process that settled the request assumed: if one bucket lacks credits, the
    /// other covers the rest, and the part that both cannot cover becomes a write-off.
    pub(super) fn enter(&mut self, ending: &'a Ending, detail: String) -> rusqlite::Result<bool> {
        let balance = self.balance(&ending.account)?;
        let taken = CreditSplit {
            paid: ending.paid,
            trial: ending.trial,
        }
        .clamp_to(balance);
        let remaining = balance.minus(taken);
        let change = (
            Micro::ZERO.minus(taken.paid),
            Micro::ZERO.minus(taken.trial),
        );
        let entry = LedgerEntry::new(
            ending.kind(),
            &ending.request_id,
            &ending.account,
            ending.at_ms,
            change,
            detail,
        );
        let (bal_paid, bal_trial) = (remaining.paid, remaining.trial);
        let writeoff = ending.cost().minus(taken.total());
        let (seq, prev) = (self.last.0 + 1, self.last.1.clone());
        let mut entry = LedgerEntry {
            seq,
            prev,
            bal_paid,
            bal_trial,
            writeoff,
            ..entry
        };
        entry.hash = entry_hash(&entry);
        if !insert(self.transaction, &entry, ON_CONFLICT_IGNORE)? {
            return Ok(false);
        }
        self.last = (entry.seq, entry.hash);
        self.accounts.insert(
            &ending.account,
            RunningBalance {
                parts: remaining,
                is_changed: true,
            },
        );
        self.keys.add(ending, taken.total());
        if ending.kind() == "debit" {
            let sum = usage::debit_totals(ending, taken.total());
            self.conversations.add(ending, sum);
            self.usage.add(ending, sum, writeoff);
        }
        Ok(true)
    }

    fn balance(&mut self, account: &'a str) -> rusqlite::Result<CreditSplit> {
        if let Some(known) = self.accounts.get(account) {
            return Ok(known.parts);
        }
        let (paid, trial) = balances(self.transaction, account)?;
        let parts = CreditSplit { paid, trial };
        self.accounts.insert(
            account,
            RunningBalance {
                parts,
                is_changed: false,
            },
        );
        Ok(parts)
    }

    /// Writes the totals.
    pub(super) fn write(self) -> rusqlite::Result<()> {
        for (account, balance) in &self.accounts {
            if balance.is_changed {
                set_balance(self.transaction, account, balance.parts)?;
            }
        }
        self.keys.write(self.transaction)?;
        self.conversations.write(self.transaction)?;
        self.usage.write(self.transaction)
    }
}

/// A request ends once. The insert itself checks that, by the unique indexes.
const ON_CONFLICT_IGNORE: &str = " ON CONFLICT DO NOTHING";

#[cfg(test)]
mod tests {
    use crate::store::ledger::{Ending, EndingDetail, Ledger, Posting, RequestOutcome};
    use credits::money::{CreditSplit, Micro};
    use llm_protocol::usage::Usage;
    use std::path::Path;

    const NOW: i64 = 1_800_000_000_000;
    const DAY_MS: i64 = 86_400_000;

    fn opened(dir: &Path) -> Ledger {
        let ledger = Ledger::open(dir).unwrap();
        for (account, paid, trial) in [("acct_a", 900_000, 50_000), ("acct_b", 10_000_000, 0)] {
            ledger
                .open_account(account, Some(NOW + DAY_MS), NOW)
                .unwrap();
            let (d_paid, d_trial) = (Micro::new(paid), Micro::new(trial));
            ledger
                .post(&Posting {
                    kind: "grant",
                    reference: account,
                    account,
                    d_paid,
                    d_trial,
                    at_ms: NOW,
                })
                .unwrap();
        }
        ledger
    }

    fn ending(number: usize, account: &str, at_ms: i64, outcome: RequestOutcome) -> Ending {
        let costs = outcome != RequestOutcome::VendorCut;
        let plain = Ending::in_test(&format!("req_{number}"), account, at_ms, outcome);
        Ending {
            paid: Micro::new(if costs { 250_000 } else { 0 }),
            trial: Micro::new(if costs && number.is_multiple_of(2) {
                30_000
            } else {
                0
            }),
            detail: EndingDetail {
                key_id: format!("key_{}", number % 2),
                model: ["beta-5.2", "alpha-haiku"][number % 2].into(),
                usage: Usage {
                    input: 10,
                    cache_read: 3,
                    output: 5,
                    ..Usage::default()
                },
                conversation: (!number.is_multiple_of(3)).then(|| format!("c{}", number % 4)),
                ..plain.detail
            },
            ..plain
        }
    }

    /// Returns every row of every table that an ending changes.
    fn rows(dir: &Path) -> Vec<String> {
        let connection = rusqlite::Connection::open(dir.join("ledger.db")).unwrap();
        let tables = [
            "entry",
            "account",
            "key_spend",
            "usage_hour",
            "usage_day",
            "usage_total",
            "conversation",
            "applied",
            "applied_key",
        ];
        let of = |table: &str| -> Vec<String> {
            let mut statement = connection
                .prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2, 3"))
                .unwrap();
            let count = statement.column_count();
            let row = |row: &rusqlite::Row<'_>| {
                let values: Vec<rusqlite::types::Value> =
                    (0..count).map(|index| row.get(index).unwrap()).collect();
                Ok(format!("{table} {values:?}"))
            };
            statement
                .query_map([], row)
                .unwrap()
                .map(Result::unwrap)
                .collect()
        };
        let mut rows: Vec<_> = tables.into_iter().flat_map(of).collect();
        rows.sort();
        rows
    }

    #[test]
    fn endings_in_one_commit_leave_what_they_leave_one_by_one() {
        let (together, apart) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut endings: Vec<_> = (0..24)
            .map(|number: usize| {
                let account = if number.is_multiple_of(5) {
                    "acct_b"
                } else {
                    "acct_a"
                };
                let outcome = if number.is_multiple_of(7) {
                    RequestOutcome::VendorCut
                } else {
                    RequestOutcome::Completed
                };
                // Some endings are late, and some an hour later. The first account's credits are
                // used up half way.
                let at_ms = NOW + [0, 3_600_000, -2 * DAY_MS][number % 3];
                ending(number, account, at_ms, outcome)
            })
            .collect();
        // A request that has already ended in this same commit.
        endings.push(Ending {
            paid: Micro::new(1),
            ..endings[1].clone()
        });
        let with_credit: Vec<_> = endings
            .iter()
            .map(|ending| (ending, CreditSplit::ZERO))
            .collect();
        assert_eq!(
            opened(together.path())
                .enter_endings(&with_credit, "boot")
                .unwrap(),
            24
        );
        let ledger = opened(apart.path());
        let new: usize = with_credit
            .iter()
            .map(|one| ledger.enter_endings(&[*one], "boot").unwrap())
            .sum();
        assert_eq!(new, 24);
        let (expected, found) = (rows(apart.path()), rows(together.path()));
        assert!(
            expected
                .iter()
                .filter(|row| row.starts_with("entry"))
                .count()
                == 26,
            "two grants and 24 ends"
        );
        assert!(expected.iter().any(|row| row.starts_with("conversation")));
        assert_eq!(found, expected);
    }
}
