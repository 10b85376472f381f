//! Computes an account's statement. It has the opening balance, the changes and the closing balance
//! of each month, and one line for each posting and each day with responses.
//!
//! Every sum comes from the ledger's sums. This file must not write.

use super::activity::{ActivityCursor, SpendTotals};
use super::views::Receipts;
use credits::money::Micro;
use ledger::{
    BalanceChangeSums, LedgerEntry, PostingDetail, StoreError, UsageInterval, UsageQuery, UsageSpan,
};
use std::collections::BTreeMap;

const DAY_MS: i64 = 86_400_000;

/// One month of a statement. `opening` and all changes add up to `closing`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatementMonth {
    /// Months since January 1970 UTC.
    pub month: i64,
    pub opening: Micro,
    /// Sum of the grants and the trial.
    pub granted: Micro,
    pub topped_up: Micro,
    pub refunded: Micro,
    pub adjusted: Micro,
    /// Credits that were removed at the end of a trial. Zero or negative.
    pub lapsed: Micro,
    /// Sum of the debits of responses. Zero or negative.
    pub spent: Micro,
    pub closing: Micro,
}

/// A statement of the months from the first change to the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statement {
    pub months: Vec<StatementMonth>,
    /// The account's current balance, including expired trial credits.
    pub balance: Micro,
}

#[derive(Debug, Clone)]
pub struct StatementLine {
    /// Position among the account's changes, in the order of time.
    pub cursor: ActivityCursor,
    pub change: Micro,
    pub source: StatementSource,
}

#[derive(Debug, Clone)]
pub enum StatementSource {
    /// All responses of a day, which is counted from 1970 UTC. The line stands at the end of the
    /// day.
    Responses { day: i64, count: u64 },
    Posting {
        kind: String,
        reference: String,
        reason: Option<String>,
        request_id: Option<String>,
        balance_after: Micro,
    },
}

impl Statement {
    fn from_sums(sums: &BalanceChangeSums) -> Self {
        let mut months: BTreeMap<i64, StatementMonth> = BTreeMap::new();
        for (month, kind, change) in &sums.postings {
            let of_month = months.entry(*month).or_default();
            let field = match kind.as_str() {
                "topup" => &mut of_month.topped_up,
                "refund" => &mut of_month.refunded,
                "adjust" | "payment_refund" | "dispute" => &mut of_month.adjusted,
                "lapse" => &mut of_month.lapsed,
                // The entry is a trial or a grant.
                _ => &mut of_month.granted,
            };
            *field = field.plus(*change);
        }
        for (month, spent) in &sums.debits {
            let of_month = months.entry(*month).or_default();
            of_month.spent = of_month.spent.minus(*spent);
        }
        let mut balance = Micro::ZERO;
        for (month, sums) in &mut months {
            sums.month = *month;
            sums.opening = balance;
            balance = sums.changes().fold(balance, Micro::plus);
            sums.closing = balance;
        }
        Self {
            months: months.into_values().collect(),
            balance: sums.balance,
        }
    }

    /// Returns whether the changes add up to the balance. If they do not, the ledger's sums were
    /// changed, which `ledger verify` reports.
    pub fn adds_up(&self) -> bool {
        let closing = self.months.last().map_or(Micro::ZERO, |last| last.closing);
        closing == self.balance
    }

    /// Returns the months from `from` to `to`, both inclusive. Months without a change are
    /// included, except those before the first change.
    pub fn months_between(&self, from: i64, to: i64) -> Vec<StatementMonth> {
        let Some(first) = self.months.first() else {
            return Vec::new();
        };
        let mut known = self.months.iter().peekable();
        let mut balance = Micro::ZERO;
        let mut shown = Vec::new();
        for month in first.month..=to {
            let of_month = match known.next_if(|next| next.month == month) {
                Some(found) => *found,
                None => StatementMonth {
                    month,
                    opening: balance,
                    closing: balance,
                    ..StatementMonth::default()
                },
            };
            balance = of_month.closing;
            if month >= from {
                shown.push(of_month);
            }
        }
        shown
    }
}

impl StatementMonth {
    fn changes(&self) -> impl Iterator<Item = Micro> + use<> {
        [
            self.granted,
            self.topped_up,
            self.refunded,
            self.adjusted,
            self.lapsed,
            self.spent,
        ]
        .into_iter()
    }
}

impl StatementLine {
    fn from_posting(entry: LedgerEntry) -> Self {
        // The audit reports a detail that cannot be read. The entry is shown all the same.
        let detail = PostingDetail::decode(&entry.detail).unwrap_or_default();
        Self {
            cursor: ActivityCursor {
                at_ms: entry.at_ms,
                seq: entry.seq,
            },
            change: entry.change(),
            source: StatementSource::Posting {
                balance_after: entry.bal_paid.plus(entry.bal_trial),
                kind: entry.kind,
                reference: entry.reference,
                reason: detail.reason,
                request_id: detail.request_id,
            },
        }
    }

    fn from_day(day: i64, sum: SpendTotals) -> Self {
        Self {
            cursor: day_cursor(day),
            change: Micro::ZERO.minus(sum.credits),
            source: StatementSource::Responses {
                day,
                count: sum.responses,
            },
        }
    }
}

/// Returns the cursor that places a day's responses after all its other entries.
fn day_cursor(day: i64) -> ActivityCursor {
    ActivityCursor {
        at_ms: (day + 1).saturating_mul(DAY_MS) - 1,
        seq: i64::MAX,
    }
}

impl Receipts<'_> {
    /// Returns an account's statement by month.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn statement(&self, account: &str) -> Result<Statement, StoreError> {
        let sums = self.0.0.ledger.pages().balance_change_sums(account)?;
        Ok(Statement::from_sums(&sums))
    }

    /// Returns at most `limit` lines of a statement before the position `before`, latest first.
    /// They cover the days from `from_day` up to `to_day`, exclusive, counted from 1970 UTC.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn statement_lines(
        &self,
        account: &str,
        from_day: i64,
        to_day: i64,
        before: Option<ActivityCursor>,
        limit: u32,
    ) -> Result<Vec<StatementLine>, StoreError> {
        let end = ActivityCursor {
            at_ms: to_day.saturating_mul(DAY_MS),
            seq: i64::MIN,
        };
        let before = before.map_or(end, |before| before.min(end));
        let from_ms = from_day.saturating_mul(DAY_MS);
        let postings = self
            .0
            .0
            .ledger
            .pages()
            .postings(account, from_ms, before, limit)?;
        let by_day = UsageQuery {
            interval: Some(UsageInterval::Unit),
            ..UsageQuery::new(UsageSpan::Days(from_day, to_day))
        };
        // Each day has one row, so there are at most as many rows as days in the period.
        let days = self
            .0
            .ledger()
            .pages()
            .usage(account, &by_day, None, u32::MAX)?;
        let days = days
            .into_iter()
            .filter(|row| day_cursor(row.time) < before)
            .map(|row| StatementLine::from_day(row.time, row.sum));
        let mut lines: Vec<_> = postings
            .into_iter()
            .map(StatementLine::from_posting)
            .chain(days)
            .collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.cursor));
        lines.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(lines)
    }
}
