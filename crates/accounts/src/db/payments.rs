//! Stores orders of credits, and the ids of handled provider events, as rows of `app.db`.
//!
//! This file must not decide whether a payment counts, which the ledger does by its references.

use super::audit::{self, AuditEntry};
use super::mail::count;
use super::rows::first_column;
use super::views::PaymentRows;
use credits::money::Micro;
use ledger::StoreError;
use ledger::audit::PaidOrder;
use ledger::sqlite::missing;
use rusqlite::{OptionalExtension, Row, params};
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderState {
    /// The order is stored, but the provider may not have received it.
    Created,
    /// The order has a checkout page and is unpaid.
    Open,
    /// The holder has paid, but the bank has not confirmed the payment.
    Processing,
    /// The credits are in the ledger.
    Paid,
    Expired,
    Failed,
    /// The payment differs from the order, so an operator must intervene.
    Refused,
}

impl OrderState {
    pub const ALL: [Self; 7] = [
        Self::Created,
        Self::Open,
        Self::Processing,
        Self::Paid,
        Self::Expired,
        Self::Failed,
        Self::Refused,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Open => "open",
            Self::Processing => "processing",
            Self::Paid => "paid",
            Self::Expired => "expired",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }

    /// Returns whether the order still waits for its payment.
    pub fn is_waiting(self) -> bool {
        matches!(self, Self::Created | Self::Open | Self::Processing)
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRow {
    pub id: String,
    pub account: String,
    /// Price in minor units of the currency, like `refunded` and `tax`.
    pub amount: i64,
    pub currency: String,
    pub credits: Micro,
    pub bonus: Micro,
    pub state: OrderState,
    /// The provider's id of the checkout, once the provider has created one.
    pub checkout: Option<String>,
    /// Address of the checkout page; empty without one.
    pub checkout_url: String,
    /// Reference of the purchase in the ledger.
    pub payment: Option<String>,
    pub created_at_ms: i64,
    pub paid_at_ms: Option<i64>,
    pub polls: u32,
    pub tax: Option<i64>,
    pub refunded: i64,
    /// Written-off credits for which the account was suspended.
    pub written_off: Micro,
    /// Reason for a failure, or a note for the operator; may be empty.
    pub note: String,
}

#[derive(Debug, Clone, Copy)]
pub struct OrderLimits {
    /// Maximum sum of orders that are paid or may still be paid, since a point in time, in minor
    /// units.
    pub amount: i64,
    pub since_ms: i64,
    /// Maximum number of orders since another point in time.
    pub count: u64,
    pub count_since_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InsertOrderOutcome {
    Done,
    NoAccount,
    /// The account is suspended, and its keys do not work.
    Suspended,
    /// The order would exceed the account's maximum amount; the rest is `left`.
    OverAmount {
        left: i64,
    },
    TooMany,
}

pub(super) const COLUMNS: &str = "id, account, amount, currency, credits, bonus, state, checkout, checkout_url, payment, created_at_ms, paid_at_ms, polls, tax, refunded, written_off, note";

pub(super) fn order_row(row: &Row<'_>) -> rusqlite::Result<OrderRow> {
    let state: String = row.get(6)?;
    Ok(OrderRow {
        id: first_column(row)?,
        account: row.get(1)?,
        amount: row.get(2)?,
        currency: row.get(3)?,
        credits: row.get(4)?,
        bonus: row.get(5)?,
        // The column contains no other value.
        state: OrderState::from_name(&state).unwrap_or(OrderState::Refused),
        checkout: row.get(7)?,
        checkout_url: row.get(8)?,
        payment: row.get(9)?,
        created_at_ms: row.get(10)?,
        paid_at_ms: row.get(11)?,
        polls: row.get(12)?,
        tax: row.get(13)?,
        refunded: row.get(14)?,
        written_off: row.get(15)?,
        note: row.get(16)?,
    })
}

impl PaymentRows<'_> {
    /// Stores a new order, unless the account's orders would exceed the limits. The provider is
    /// first polled at `next_poll_at_ms`.
    pub fn insert_order(
        &self,
        row: &OrderRow,
        next_poll_at_ms: i64,
        limits: OrderLimits,
    ) -> Result<InsertOrderOutcome, StoreError> {
        self.0.write("store an order of credits", |transaction| {
            let is_active: Option<bool> = transaction
                .query_row(
                    "SELECT status = 'active' FROM account WHERE id = ?1 AND deleted_at_ms IS NULL",
                    [&row.account],
                    first_column,
                )
                .optional()?;
            match is_active {
                None => return Ok(InsertOrderOutcome::NoAccount),
                Some(false) => return Ok(InsertOrderOutcome::Suspended),
                Some(true) => {}
            }
            let recent: u64 = transaction.query_row(
                "SELECT count(*) FROM payment_order WHERE account = ?1 AND created_at_ms > ?2",
                params![row.account, limits.count_since_ms],
                count,
            )?;
            if recent >= limits.count {
                return Ok(InsertOrderOutcome::TooMany);
            }
            // Amounts have at most eight digits, so an account's sum cannot overflow.
            let ordered: i64 = transaction.query_row(
                "SELECT ifnull(sum(amount), 0) FROM payment_order
                 WHERE account = ?1 AND created_at_ms > ?2 AND state NOT IN ('expired', 'failed')",
                params![row.account, limits.since_ms],
                first_column,
            )?;
            if ordered.saturating_add(row.amount) > limits.amount {
                let left = limits.amount.saturating_sub(ordered).max(0);
                return Ok(InsertOrderOutcome::OverAmount { left });
            }
            transaction.execute(
                "INSERT INTO payment_order(id, account, amount, currency, credits, bonus, created_at_ms, next_poll_at_ms)
                 VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    row.id,
                    row.account,
                    row.amount,
                    row.currency,
                    row.credits,
                    row.bonus,
                    row.created_at_ms,
                    next_poll_at_ms
                ],
            )?;
            Ok(InsertOrderOutcome::Done)
        })
    }

    /// Stores an order's checkout. Returns false if the order has ended in the meantime.
    pub fn open_checkout(&self, id: &str, checkout: &str, url: &str) -> Result<bool, StoreError> {
        self.0
            .write("store the checkout of an order", |transaction| {
                let sql =
                    "UPDATE payment_order SET state = 'open', checkout = ?2, checkout_url = ?3
                 WHERE id = ?1 AND state = 'created'";
                Ok(transaction.execute(sql, params![id, checkout, url])? == 1)
            })
    }

    /// Stores the checkout of an order that ended before its checkout was stored. Returns false if
    /// there is no such order.
    pub fn adopt_checkout(&self, id: &str, checkout: &str) -> Result<bool, StoreError> {
        self.0
            .write("store the checkout of an ended order", |transaction| {
                let sql = "UPDATE payment_order SET checkout = ?2
                 WHERE id = ?1 AND checkout IS NULL AND state IN ('expired', 'failed')";
                Ok(transaction.execute(sql, params![id, checkout])? == 1)
            })
    }

    pub fn order(&self, id: &str) -> Result<Option<OrderRow>, StoreError> {
        self.find_order("id = ?1", id)
    }

    pub fn order_by_checkout(&self, checkout: &str) -> Result<Option<OrderRow>, StoreError> {
        self.find_order("checkout = ?1", checkout)
    }

    /// Finds an order by the reference of its purchase.
    pub fn order_by_payment(&self, payment: &str) -> Result<Option<OrderRow>, StoreError> {
        self.find_order("payment = ?1", payment)
    }

    fn find_order(
        &self,
        condition: &'static str,
        value: &str,
    ) -> Result<Option<OrderRow>, StoreError> {
        self.0.read("find an order of credits", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM payment_order WHERE {condition}"
                ))?
                .query_row([value], order_row)
                .optional()
        })
    }

    /// Returns at most `limit` orders of an account, newest first.
    pub fn orders_of(&self, account: &str, limit: u32) -> Result<Vec<OrderRow>, StoreError> {
        self.0.read("list the orders of an account", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM payment_order WHERE account = ?1 ORDER BY id DESC LIMIT ?2"
                ))?
                .query_map(params![account, limit], order_row)?
                .collect()
        })
    }

    /// Stores the payment of an order before the ledger posts it. Returns false if the order has
    /// another payment, or if the payment belongs to another order.
    pub fn claim_payment(&self, id: &str, payment: &str) -> Result<bool, StoreError> {
        self.0
            .write("store the payment of an order", |transaction| {
                let sql = "UPDATE payment_order SET payment = ?2
                 WHERE id = ?1 AND (payment IS NULL OR payment = ?2)
                   AND NOT EXISTS(SELECT 1 FROM payment_order WHERE payment = ?2 AND id <> ?1)";
                Ok(transaction.execute(sql, params![id, payment])? == 1)
            })
    }

    /// Records that the ledger has posted the credits of an order. The `note` is for the operator.
    pub fn mark_paid(
        &self,
        id: &str,
        tax: Option<i64>,
        note: &str,
        now_ms: i64,
        next_poll_at_ms: i64,
    ) -> Result<(), StoreError> {
        self.0.write("mark an order as paid", |transaction| {
            let sql = "UPDATE payment_order
                 SET state = 'paid', paid_at_ms = ifnull(paid_at_ms, ?2), tax = ifnull(?3, tax), note = ?4,
                   next_poll_at_ms = ?5
                 WHERE id = ?1 AND payment IS NOT NULL";
            transaction
                .execute(sql, params![id, now_ms, tax, note, next_poll_at_ms])
                .map(drop)
        })
    }

    /// Records another state of an unpaid order. The provider is no longer polled about an order
    /// that has ended.
    pub fn set_order_state(
        &self,
        id: &str,
        state: OrderState,
        note: &str,
    ) -> Result<(), StoreError> {
        self.0.write("set the state of an order", |transaction| {
            let sql = "UPDATE payment_order
                 SET state = ?2, note = ?3, next_poll_at_ms = iif(?4, next_poll_at_ms, NULL)
                 WHERE id = ?1 AND state <> 'paid'";
            transaction
                .execute(sql, params![id, state.name(), note, state.is_waiting()])
                .map(drop)
        })
    }

    /// Returns at most `limit` orders about which the provider must be polled. The orders are not
    /// due again before `lease_ms` has passed.
    pub fn take_due_orders(
        &self,
        now_ms: i64,
        lease_ms: i64,
        limit: u32,
    ) -> Result<Vec<OrderRow>, StoreError> {
        let is_due: bool = self.0.read("look for due orders", |connection| {
            connection
                .prepare_cached(
                    "SELECT EXISTS(SELECT 1 FROM payment_order WHERE next_poll_at_ms <= ?1)",
                )?
                .query_row([now_ms], first_column)
        })?;
        if !is_due {
            return Ok(Vec::new());
        }
        self.0.write("take due orders", |transaction| {
            transaction
                .prepare_cached(&format!(
                    "UPDATE payment_order SET next_poll_at_ms = ?1 + ?2, polls = polls + 1
                     WHERE id IN (SELECT id FROM payment_order WHERE next_poll_at_ms <= ?1
                                  ORDER BY next_poll_at_ms LIMIT ?3)
                     RETURNING {COLUMNS}"
                ))?
                .query_map(params![now_ms, lease_ms, limit], order_row)?
                .collect()
        })
    }

    /// Sets the time of the provider's next poll; `None` for never. An ended order stays unchanged.
    pub fn poll_again_at(&self, id: &str, at_ms: Option<i64>) -> Result<(), StoreError> {
        self.0.write("schedule a poll of an order", |transaction| {
            let sql = "UPDATE payment_order SET next_poll_at_ms = ?2
                 WHERE id = ?1 AND next_poll_at_ms IS NOT NULL";
            transaction.execute(sql, params![id, at_ms]).map(drop)
        })
    }

    /// Records the total amount of a payment that was refunded.
    pub fn set_refunded(&self, id: &str, refunded: i64) -> Result<(), StoreError> {
        self.0
            .write("record the refund of an order", |transaction| {
                let sql = "UPDATE payment_order SET refunded = max(refunded, ?2) WHERE id = ?1";
                transaction.execute(sql, params![id, refunded]).map(drop)
            })
    }

    /// Suspends the account of an order whose credits were spent before the payment was reversed.
    /// Each amount of written-off credits suspends the account only once.
    pub fn suspend_for_writeoff(
        &self,
        order: &OrderRow,
        written_off: Micro,
        audit_entry: &AuditEntry<'_>,
    ) -> Result<(), StoreError> {
        self.0
            .write("suspend an account for a payment", |transaction| {
                let sql =
                    "UPDATE payment_order SET written_off = ?2 WHERE id = ?1 AND written_off < ?2";
                if transaction.execute(sql, params![order.id, written_off])? == 0 {
                    return Ok(());
                }
                let sql = "UPDATE account SET status = 'suspended'
                 WHERE id = ?1 AND deleted_at_ms IS NULL AND status = 'active'";
                if transaction.execute(sql, [&order.account])? == 1 {
                    audit::append(transaction, audit_entry)?;
                }
                Ok(())
            })
    }

    /// Returns whether an event of the provider was already handled.
    pub fn is_event_handled(&self, id: &str) -> Result<bool, StoreError> {
        self.0.read("look for a payment event", |connection| {
            connection
                .prepare_cached("SELECT 1 FROM payment_event WHERE id = ?1")?
                .exists([id])
        })
    }

    pub fn mark_event_handled(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        self.0.write("record a payment event", |transaction| {
            let sql = "INSERT INTO payment_event(id, at_ms) VALUES(?1, ?2) ON CONFLICT DO NOTHING";
            transaction.execute(sql, params![id, now_ms]).map(drop)
        })
    }

    /// Deletes the ids of events that were handled before `before_ms`.
    pub fn purge_events(&self, before_ms: i64) -> Result<usize, StoreError> {
        self.0.write("delete old payment events", |transaction| {
            transaction.execute("DELETE FROM payment_event WHERE at_ms < ?1", [before_ms])
        })
    }
}

/// Returns the orders that have a payment; `None` without `app.db`.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn paid_orders(dir: &Path) -> Result<Option<Vec<PaidOrder>>, StoreError> {
    let Some(connection) = missing::open_with(dir, "app.db", "payment_order")? else {
        return Ok(None);
    };
    let rows = || -> rusqlite::Result<_> {
        connection
            .prepare(
                "SELECT id, account, payment, credits, bonus, state = 'paid' FROM payment_order
                 WHERE payment IS NOT NULL",
            )?
            .query_map([], |row| {
                Ok(PaidOrder {
                    id: first_column(row)?,
                    account: row.get(1)?,
                    payment: row.get(2)?,
                    credits: row.get(3)?,
                    bonus: row.get(4)?,
                    is_entered: row.get(5)?,
                })
            })?
            .collect()
    };
    rows()
        .map(Some)
        .map_err(|source| StoreError::sqlite("look for paid orders", source))
}
