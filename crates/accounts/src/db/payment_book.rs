//! What operators read of all payments and order for them: lists, totals, refunds, comparisons with
//! the provider.
//!
//! The rows only record what the gateway does at the provider and in the ledger.

use super::payments::{COLUMNS, OrderRow, OrderState, order_row};
use super::rows::first_column;
use super::views::PaymentBookRows;
use credits::money::Micro;
use ledger::StoreError;
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// Which orders to list. An empty filter lists all.
#[derive(Debug, Clone, Default)]
pub struct OrderFilter {
    pub account: Option<String>,
    /// Id of the order, of its checkout, or of its payment at the provider.
    pub id: Option<String>,
    pub state: Option<OrderState>,
}

/// The paid orders of a month (UTC) in one currency. Money is in minor units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonthTotals {
    /// Such as `2026-11`.
    pub month: String,
    pub currency: String,
    pub payments: u32,
    pub amount: i64,
    pub tax: i64,
    pub refunded: i64,
    /// Bonus credits included.
    pub credits: Micro,
}

/// A refund that an operator ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefundRow {
    pub reference: String,
    /// In minor units, like `refunded_before`.
    pub amount: i64,
    pub refunded_before: i64,
    pub created_at_ms: i64,
    pub done_at_ms: Option<i64>,
}

/// The result of storing a refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InsertRefundOutcome {
    New(RefundRow),
    /// A refund with this reference is there. It can have another amount.
    Known(RefundRow),
    /// Another refund of the payment has not finished.
    Running(RefundRow),
    /// This much can be refunded, in minor units.
    OverAmount {
        left: i64,
    },
}

const REFUND_COLUMNS: &str = "ref, amount, refunded_before, created_at_ms, done_at_ms";

fn refund_row(row: &Row<'_>) -> rusqlite::Result<RefundRow> {
    Ok(RefundRow {
        reference: first_column(row)?,
        amount: row.get(1)?,
        refunded_before: row.get(2)?,
        created_at_ms: row.get(3)?,
        done_at_ms: row.get(4)?,
    })
}

impl PaymentBookRows<'_> {
    /// Returns orders before the order `before` (empty: from the newest on), newest first: at most
    /// `limit`.
    pub fn find_orders(
        &self,
        filter: &OrderFilter,
        before: &str,
        limit: u32,
    ) -> Result<Vec<OrderRow>, StoreError> {
        self.0.read("list orders of credits", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM payment_order
                     WHERE (?1 = '' OR id < ?1) AND (?2 IS NULL OR account = ?2) AND (?3 IS NULL OR state = ?3)
                       AND (?4 IS NULL OR id = ?4 OR checkout = ?4 OR payment = ?4 OR payment LIKE '%:' || ?4)
                     ORDER BY id DESC LIMIT ?5"
                ))?
                .query_map(
                    params![before, filter.account, filter.state.map(OrderState::name), filter.id, limit],
                    order_row,
                )?
                .collect()
        })
    }

    /// Returns the orders that were paid in a span of time, oldest first: at most `limit`.
    pub fn orders_paid_between(
        &self,
        from_ms: i64,
        to_ms: i64,
        limit: u32,
    ) -> Result<Vec<OrderRow>, StoreError> {
        self.0.read("list paid orders", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM payment_order
                     WHERE paid_at_ms >= ?1 AND paid_at_ms < ?2 AND state = 'paid'
                     ORDER BY paid_at_ms LIMIT ?3"
                ))?
                .query_map(params![from_ms, to_ms, limit], order_row)?
                .collect()
        })
    }

    /// Returns the totals of the latest months, newest first.
    pub fn month_totals(&self, limit: u32) -> Result<Vec<MonthTotals>, StoreError> {
        self.0.read("add up paid orders", |connection| {
            connection
                .prepare_cached(
                    "SELECT strftime('%Y-%m', paid_at_ms / 1000, 'unixepoch') AS month, currency, count(*),
                       sum(amount), sum(ifnull(tax, 0)), sum(refunded),
                       CAST(min(total(credits + bonus), 9007199254740991) AS INTEGER)
                     FROM payment_order WHERE paid_at_ms IS NOT NULL AND state = 'paid'
                     GROUP BY month, currency ORDER BY month DESC, currency LIMIT ?1",
                )?
                .query_map([limit], |row| {
                    Ok(MonthTotals {
                        month: first_column(row)?,
                        currency: row.get(1)?,
                        payments: row.get(2)?,
                        amount: row.get(3)?,
                        tax: row.get(4)?,
                        refunded: row.get(5)?,
                        credits: row.get(6)?,
                    })
                })?
                .collect()
        })
    }

    /// Returns the refunds of an order, newest first.
    pub fn refunds(&self, order: &str) -> Result<Vec<RefundRow>, StoreError> {
        self.0.read("list the refunds of an order", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {REFUND_COLUMNS} FROM payment_refund WHERE payment_order = ?1
                     ORDER BY created_at_ms DESC"
                ))?
                .query_map([order], refund_row)?
                .collect()
        })
    }

    /// Stores a refund before the provider is called. `amount`: `None` refunds all that is left of
    /// the payment.
    pub fn insert_refund(
        &self,
        order: &OrderRow,
        reference: &str,
        amount: Option<i64>,
        now_ms: i64,
    ) -> Result<InsertRefundOutcome, StoreError> {
        self.0.write("store a refund", |transaction| {
            let known = find_refund(transaction, &order.id, "ref = ?2", reference)?;
            if let Some(known) = known {
                return Ok(InsertRefundOutcome::Known(known));
            }
            if let Some(running) = find_refund(transaction, &order.id, "done_at_ms IS NULL AND ref <> ?2", "")? {
                return Ok(InsertRefundOutcome::Running(running));
            }
            let refunded_before: i64 = transaction.query_row(
                "SELECT refunded FROM payment_order WHERE id = ?1",
                [&order.id],
                first_column,
            )?;
            let left = order.amount.saturating_sub(refunded_before).max(0);
            let amount = amount.unwrap_or(left);
            if amount <= 0 || amount > left {
                return Ok(InsertRefundOutcome::OverAmount { left });
            }
            let row = RefundRow {
                reference: reference.to_owned(),
                amount,
                refunded_before,
                created_at_ms: now_ms,
                done_at_ms: None,
            };
            transaction.execute(
                "INSERT INTO payment_refund(payment_order, ref, amount, refunded_before, created_at_ms)
                 VALUES(?1, ?2, ?3, ?4, ?5)",
                params![order.id, row.reference, row.amount, row.refunded_before, row.created_at_ms],
            )?;
            Ok(InsertRefundOutcome::New(row))
        })
    }

    /// Records that the provider has paid a refund back and that the ledger takes its credits.
    /// Returns false if that was recorded before.
    pub fn finish_refund(
        &self,
        order: &str,
        reference: &str,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        self.0.write("finish a refund", |transaction| {
            let sql = "UPDATE payment_refund SET done_at_ms = ?3
                 WHERE payment_order = ?1 AND ref = ?2 AND done_at_ms IS NULL";
            Ok(transaction.execute(sql, params![order, reference, now_ms])? == 1)
        })
    }

    /// Forgets a refund that the provider has refused.
    pub fn drop_refund(&self, order: &str, reference: &str) -> Result<(), StoreError> {
        self.0.write("forget a refused refund", |transaction| {
            let sql = "DELETE FROM payment_refund
                 WHERE payment_order = ?1 AND ref = ?2 AND done_at_ms IS NULL";
            transaction.execute(sql, [order, reference]).map(drop)
        })
    }

    /// Returns the latest comparison with the provider: when, and the report.
    pub fn last_reconciliation(&self) -> Result<Option<(i64, String)>, StoreError> {
        self.0.read("read the last reconciliation", |connection| {
            connection
                .prepare_cached(
                    "SELECT at_ms, report FROM payment_reconciliation ORDER BY at_ms DESC LIMIT 1",
                )?
                .query_row([], |row| Ok((first_column(row)?, row.get(1)?)))
                .optional()
        })
    }

    /// Stores a comparison with the provider, and forgets those before `keep_from_ms`.
    pub fn insert_reconciliation(
        &self,
        at_ms: i64,
        report: &str,
        keep_from_ms: i64,
    ) -> Result<(), StoreError> {
        self.0.write("store a reconciliation", |transaction| {
            transaction.execute(
                "DELETE FROM payment_reconciliation WHERE at_ms < ?1",
                [keep_from_ms],
            )?;
            let sql = "INSERT INTO payment_reconciliation(at_ms, report) VALUES(?1, ?2)
                 ON CONFLICT(at_ms) DO UPDATE SET report = excluded.report";
            transaction.execute(sql, params![at_ms, report]).map(drop)
        })
    }
}

fn find_refund(
    transaction: &Transaction<'_>,
    order: &str,
    condition: &'static str,
    value: &str,
) -> rusqlite::Result<Option<RefundRow>> {
    transaction
        .prepare_cached(&format!(
            "SELECT {REFUND_COLUMNS} FROM payment_refund WHERE payment_order = ?1 AND {condition}"
        ))?
        .query_row([order, value], refund_row)
        .optional()
}
