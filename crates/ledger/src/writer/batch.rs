//! Enters endings of requests together. Each ending becomes an entry, and each total is updated
//! once for all of them.
//!
//! Under load a commit has many endings of few accounts and keys. So a row that several endings
//! change (a balance, a key's spending) is read once and written once. The data of pages is not
//! written here: `index.rs` derives it from the entries. A caller that begins a batch must write it
//! in the same transaction, and must write nothing else to the ledger in between. This file must
//! not decide what an ending costs.

use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::entry::chain::{ChainHead, entry_hash};
use crate::entry::ending::Ending;
use crate::sealed::files::{SegmentFiles, sealed_end};
use crate::sealed::{find_sealed_ending, may_be_sealed};
use crate::statements::applied::take_account_row;
use crate::statements::chain::{chain_head, insert, set_balance};
use crate::statements::key_spend_update::KeySpendUpdate;
use base::telemetry::METRICS;
use credits::money::{CreditSplit, Micro};
use rusqlite::{Transaction, params};
use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) enum EndingEntry {
    New,
    /// The request had ended already.
    Known,
    /// The request had ended already, and its entry is in a segment.
    Sealed(Box<LedgerEntry>),
    /// A segment is missing, so it is unknown whether the request had ended already.
    Withheld,
}

pub(crate) struct EndingBatch<'a> {
    transaction: &'a Transaction<'a>,
    segments: &'a SegmentFiles,
    /// Time of the latest ending in a segment. A request that began later is in no segment.
    sealed_until_ms: i64,
    /// Number of the instance that settled the requests. `None` for the replay of a journal or an
    /// event of a shared store, which no running instance settled.
    instance: Option<i64>,
    /// The ledger's last entry, to which the next one is chained.
    last: ChainHead,
    accounts: BTreeMap<&'a str, RunningBalance>,
    keys: KeySpendUpdate<'a>,
    withheld: Option<WithheldEndings>,
    /// False if an ending was known, or took other credits than were settled for it.
    is_as_settled: bool,
}

/// Ends of requests that are not entered, because a missing segment may contain them.
struct WithheldEndings {
    count: u64,
    /// The first of these requests.
    request_id: String,
    error: StoreError,
}

/// An account's balance after the endings so far.
#[derive(Clone, Copy)]
struct RunningBalance {
    parts: CreditSplit,
    is_changed: bool,
    /// Number of the instance whose applied amount is in the account's row.
    applied_by: Option<i64>,
    /// Credits that the instance has settled for these endings, and that are now applied.
    applied: CreditSplit,
}

impl<'a> EndingBatch<'a> {
    pub(crate) fn new(
        transaction: &'a Transaction<'_>,
        segments: &'a SegmentFiles,
        instance: Option<i64>,
    ) -> rusqlite::Result<Self> {
        Ok(Self {
            transaction,
            segments,
            sealed_until_ms: sealed_end(transaction)?.1,
            instance,
            last: chain_head(transaction)?,
            accounts: BTreeMap::new(),
            keys: KeySpendUpdate::default(),
            withheld: None,
            is_as_settled: true,
        })
    }

    /// Returns whether every ending is new and takes the credits that were settled for it.
    pub(crate) fn is_as_settled(&self) -> bool {
        self.is_as_settled && self.withheld.is_none()
    }

    /// Enters one ending, unless the request had ended before. The balance decides, whatever the
    /// process that settled the request assumed: if one bucket lacks credits, the other covers the
    /// rest, and the part that both cannot cover becomes a write-off. In each case the amount that
    /// the process settled is applied.
    pub(crate) fn enter(
        &mut self,
        ending: &'a Ending,
        detail: String,
    ) -> rusqlite::Result<EndingEntry> {
        let sealed = if may_be_sealed(&ending.request_id, self.sealed_until_ms) {
            self.find_sealed(&ending.request_id)?
        } else {
            None
        };
        if let Some(EndingEntry::Withheld) = sealed {
            return Ok(EndingEntry::Withheld);
        }
        let settled = CreditSplit {
            paid: ending.paid,
            trial: ending.trial,
        };
        let mut account = self.account(&ending.account)?;
        if self.instance.is_some() {
            account.applied = account.applied.plus(settled.or_zero());
            self.keys.apply(ending, settled.or_zero().total());
        }
        let entered = match sealed {
            Some(known) => {
                self.is_as_settled = false;
                known
            }
            None => self.insert_new(ending, &mut account, settled, detail)?,
        };
        self.accounts.insert(&ending.account, account);
        Ok(entered)
    }

    fn insert_new(
        &mut self,
        ending: &'a Ending,
        account: &mut RunningBalance,
        settled: CreditSplit,
        detail: String,
    ) -> rusqlite::Result<EndingEntry> {
        let taken = settled.clamp_to(account.parts);
        self.is_as_settled &= taken == settled;
        let remaining = account.parts.minus(taken);
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
        let (seq, prev) = (self.last.seq + 1, self.last.hash.clone());
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
            self.is_as_settled = false;
            return Ok(EndingEntry::Known);
        }
        self.last = ChainHead {
            seq: entry.seq,
            hash: entry.hash,
        };
        (account.parts, account.is_changed) = (remaining, true);
        self.keys.add(&ending.detail, ending.at_ms, taken.total());
        Ok(EndingEntry::New)
    }

    /// Looks for the end of a request in the segments. Returns `None` if the request has no sealed
    /// end.
    fn find_sealed(&mut self, request_id: &str) -> rusqlite::Result<Option<EndingEntry>> {
        match find_sealed_ending(self.transaction, self.segments, request_id)? {
            Ok(found) => Ok(found.map(|entry| EndingEntry::Sealed(Box::new(entry)))),
            Err(error) => {
                let is_known = self
                    .transaction
                    .prepare_cached(
                        "SELECT 1 FROM entry WHERE ref = ?1 AND kind IN ('debit', 'void')",
                    )?
                    .exists([request_id])?;
                if is_known {
                    return Ok(Some(EndingEntry::Known));
                }
                METRICS.ledger_error("segment");
                let first = WithheldEndings {
                    count: 0,
                    request_id: request_id.into(),
                    error,
                };
                self.withheld.get_or_insert(first).count += 1;
                Ok(Some(EndingEntry::Withheld))
            }
        }
    }

    fn account(&self, account: &'a str) -> rusqlite::Result<RunningBalance> {
        if let Some(known) = self.accounts.get(account) {
            return Ok(*known);
        }
        self.transaction
            .prepare_cached("SELECT paid, trial, applied_by FROM account WHERE id = ?1")?
            .query_row([account], |row| {
                Ok(RunningBalance {
                    parts: CreditSplit {
                        paid: row.get(0)?,
                        trial: row.get(1)?,
                    },
                    is_changed: false,
                    applied_by: row.get(2)?,
                    applied: CreditSplit::ZERO,
                })
            })
    }

    pub(crate) fn write(self) -> rusqlite::Result<()> {
        if let Some(WithheldEndings {
            count,
            request_id,
            error,
        }) = &self.withheld
        {
            log::error!(
                "cannot enter the ends of {count} requests, such as {request_id}, which may have been entered before: {error}"
            );
        }
        for (account, row) in &self.accounts {
            match self.instance {
                Some(instance) if row.applied != CreditSplit::ZERO => {
                    if row.applied_by != Some(instance) {
                        take_account_row(self.transaction, instance, account)?;
                    }
                    let CreditSplit { paid, trial } = row.applied;
                    self.transaction
                        .prepare_cached(SET_BALANCE_AND_APPLY)?
                        .execute(params![
                            account,
                            row.parts.paid,
                            row.parts.trial,
                            paid,
                            trial
                        ])?;
                }
                _ if row.is_changed => set_balance(self.transaction, account, row.parts)?,
                _ => {}
            }
        }
        self.keys.write(self.transaction, self.instance)
    }
}

const SET_BALANCE_AND_APPLY: &str = "UPDATE account SET paid = ?2, trial = ?3,
       applied_paid = applied_paid + ?4, applied_trial = applied_trial + ?5 WHERE id = ?1";

/// SQL that ignores a second end of a request. The unique indexes detect it during the insert.
const ON_CONFLICT_IGNORE: &str = " ON CONFLICT DO NOTHING";

#[cfg(test)]
mod tests {
    use crate::{Ending, EndingDetail, Ledger, Posting, RequestOutcome};
    use credits::money::{CreditSplit, Micro};
    use llm_protocol::usage::Usage;
    use std::path::Path;

    const NOW: i64 = 1_800_000_000_000;
    const DAY_MS: i64 = 86_400_000;

    fn opened(dir: &Path) -> Ledger {
        let ledger = Ledger::open(dir).unwrap();
        for (account, paid, trial) in [("acct_a", 900_000, 50_000), ("acct_b", 10_000_000, 0)] {
            ledger
                .rows()
                .open_account(account, Some(NOW + DAY_MS), NOW)
                .unwrap();
            let (d_paid, d_trial) = (Micro::new(paid), Micro::new(trial));
            ledger
                .changes()
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
            "applied",
            "applied_key",
            "instance",
        ];
        let of = |table: &str| -> Vec<String> {
            let mut statement = connection
                .prepare(&format!("SELECT * FROM {table}"))
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
        assert_eq!(found, expected);
    }
}
