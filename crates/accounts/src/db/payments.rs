//! Stores orders of credits, and the ids of handled provider events, as rows of `app.db`.
//!
//! This file must not decide whether a payment counts, which the ledger does by its references.

use super::audit::{self, AuditEntry};
use super::codes::redeemed_codes;
use super::due::take_due;
use super::mail::count;
use super::rows::first_column;
use super::views::{ClawbackRows, PaymentEventRows, PaymentRows};
use credits::money::Micro;
use ledger::StoreError;
use ledger::audit::{PaidOrder, ShopRows};
use ledger::sqlite::missing;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use std::collections::BTreeMap;
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

    /// Returns the word for the state on pages.
    pub fn label(self) -> &'static str {
        match self {
            Self::Created => "Being ordered",
            Self::Open => "Not paid yet",
            Self::Processing => "Waiting for the bank",
            Self::Paid => "Paid",
            Self::Expired => "Expired",
            Self::Failed => "Failed",
            Self::Refused => "Differs from its order",
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

/// Whether the ledger has taken all credits that must be taken back for an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClawbackState {
    None,
    /// A process takes credits back, or died while it did.
    Open,
    /// Running requests hold the rest of the credits. The account may begin no new ones.
    Held,
}

impl ClawbackState {
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Open => "open",
            Self::Held => "held",
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "none" => Self::None,
            "held" => Self::Held,
            _ => Self::Open,
        }
    }
}

/// What the payments of an account that were taken back do to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountClawback {
    /// True if running requests hold credits of one, so that the account begins no requests.
    pub is_held: bool,
    /// Credits that were spent before. The account was suspended for them.
    pub written_off: Micro,
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
    /// The provider's id of the checkout, or of the charge of a saved method, once the provider has
    /// created one.
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
    /// What each dispute has taken of the amount, by the provider's id; 0 if the bank returned it.
    pub disputes: BTreeMap<String, i64>,
    pub clawback: ClawbackState,
    /// Written-off credits for which the account was suspended.
    pub written_off: Micro,
    /// Reason for a failure, or a note for the operator; may be empty.
    pub note: String,
    /// The saved payment method that an automatic top-up charges, as the provider names it. `None`
    /// if the order has a checkout page.
    pub method: Option<String>,
}

impl OrderRow {
    /// Returns the credits, including the bonus, for a part of the amount. The whole amount yields
    /// all credits.
    pub fn share(&self, minor: i64) -> Micro {
        let all = self.credits.plus(self.bonus);
        let minor = minor.clamp(0, self.amount);
        let share = i128::from(all.get()) * i128::from(minor) / i128::from(self.amount.max(1));
        Micro::new(i64::try_from(share).unwrap_or(all.get()))
    }

    /// Returns the credits for what refunds and disputes have taken. They can exceed what was
    /// bought.
    pub fn due(&self) -> Micro {
        let disputed = self.disputes.values().map(|minor| self.share(*minor));
        disputed.fold(self.share(self.refunded), Micro::plus)
    }
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
    /// An automatic top-up is off, or its next charge is not due yet.
    NotDue,
}

pub(super) const COLUMNS: &str = "id, account, amount, currency, credits, bonus, state, checkout, checkout_url, payment, created_at_ms, paid_at_ms, polls, tax, refunded, written_off, note, disputes, clawback, method";

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
        // The column contains nothing else.
        disputes: serde_json::from_str(&row.get::<_, String>(17)?).unwrap_or_default(),
        clawback: ClawbackState::from_name(&row.get::<_, String>(18)?),
        method: row.get(19)?,
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
            insert_order(transaction, row, next_poll_at_ms, limits)
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

    /// Replaces the note of an order for the operator.
    pub fn set_note(&self, id: &str, note: &str) -> Result<(), StoreError> {
        self.0.write("note something of an order", |transaction| {
            let sql = "UPDATE payment_order SET note = ?2 WHERE id = ?1 AND note <> ?2";
            transaction.execute(sql, [id, note]).map(drop)
        })
    }

    /// Makes the provider be polled about an order whose payment was refused.
    pub fn poll_refused_order(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        self.0.write("schedule a poll of an order", |transaction| {
            let sql = "UPDATE payment_order SET next_poll_at_ms = ?2
                 WHERE id = ?1 AND state = 'refused'";
            transaction.execute(sql, params![id, now_ms]).map(drop)
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
        let take = format!(
            "UPDATE payment_order SET next_poll_at_ms = ?1 + ?2, polls = polls + 1
             WHERE id IN (SELECT id FROM payment_order WHERE next_poll_at_ms <= ?1
                          ORDER BY next_poll_at_ms LIMIT ?3)
             RETURNING {COLUMNS}"
        );
        let due = ("payment_order WHERE next_poll_at_ms <= ?1", now_ms);
        let parameters = (now_ms, lease_ms, limit);
        take_due(self.0, "take due orders", due, &take, parameters, order_row)
    }

    /// Sets the time of the provider's next poll; `None` for never. An ended order stays unchanged.
    pub fn poll_again_at(&self, id: &str, at_ms: Option<i64>) -> Result<(), StoreError> {
        self.0.write("schedule a poll of an order", |transaction| {
            let sql = "UPDATE payment_order SET next_poll_at_ms = ?2
                 WHERE id = ?1 AND next_poll_at_ms IS NOT NULL";
            transaction.execute(sql, params![id, at_ms]).map(drop)
        })
    }
}

impl ClawbackRows<'_> {
    /// Records the total amount of a payment that was refunded. The ledger must then take the
    /// credits for it back.
    pub fn set_refunded(&self, id: &str, refunded: i64) -> Result<(), StoreError> {
        self.0
            .write("record the refund of an order", |transaction| {
                let sql = "UPDATE payment_order SET refunded = ?2, clawback = 'open'
                     WHERE id = ?1 AND refunded < ?2";
                transaction.execute(sql, params![id, refunded]).map(drop)
            })
    }

    /// Records the amount that a dispute has taken of a payment; 0 if the bank has returned it,
    /// which is final. The ledger must then take or return the credits for it.
    pub fn set_disputed(&self, id: &str, dispute: &str, minor: i64) -> Result<(), StoreError> {
        self.0
            .write("record the dispute of an order", |transaction| {
                let path = format!("$.\"{dispute}\"");
                let sql = "UPDATE payment_order SET disputes = json_set(disputes, ?2, ?3), clawback = 'open'
                     WHERE id = ?1 AND ifnull(disputes ->> ?2, -1) NOT IN (0, ?3)";
                transaction.execute(sql, params![id, path, minor]).map(drop)
            })
    }

    /// Records whether the ledger has taken back what it must.
    pub fn set_state(&self, id: &str, state: ClawbackState) -> Result<(), StoreError> {
        self.0.write("record a clawback", |transaction| {
            let sql = "UPDATE payment_order SET clawback = ?2 WHERE id = ?1 AND clawback <> ?2";
            transaction
                .execute(sql, params![id, state.name()])
                .map(drop)
        })
    }

    /// Returns the orders after the order `after` whose credits are still to be taken back, by id:
    /// at most `limit`.
    pub fn list_open(&self, after: &str, limit: u32) -> Result<Vec<String>, StoreError> {
        self.0.read("look for open clawbacks", |connection| {
            connection
                .prepare_cached(
                    "SELECT id FROM payment_order WHERE clawback <> 'none' AND id > ?1 ORDER BY id LIMIT ?2",
                )?
                .query_map(params![after, limit], first_column)?
                .collect()
        })
    }

    /// Returns what the payments of an account that were taken back do to it.
    pub fn of_account(&self, account: &str) -> Result<AccountClawback, StoreError> {
        self.0.read("look for payments taken back", |connection| {
            connection
                .prepare_cached(
                    "SELECT ifnull(max(clawback = 'held'), 0), ifnull(sum(written_off), 0)
                     FROM payment_order WHERE account = ?1",
                )?
                .query_row([account], |row| {
                    Ok(AccountClawback {
                        is_held: first_column(row)?,
                        written_off: row.get(1)?,
                    })
                })
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
}

impl PaymentEventRows<'_> {
    /// Returns whether an event of the provider was already handled.
    pub fn is_handled(&self, id: &str) -> Result<bool, StoreError> {
        self.0.read("look for a payment event", |connection| {
            connection
                .prepare_cached("SELECT 1 FROM payment_event WHERE id = ?1")?
                .exists([id])
        })
    }

    pub fn mark_handled(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        self.0.write("record a payment event", |transaction| {
            let sql = "INSERT INTO payment_event(id, at_ms) VALUES(?1, ?2) ON CONFLICT DO NOTHING";
            transaction.execute(sql, params![id, now_ms]).map(drop)
        })
    }

    /// Deletes the ids of events that were handled before `before_ms`.
    pub fn purge(&self, before_ms: i64) -> Result<usize, StoreError> {
        self.0.write("delete old payment events", |transaction| {
            transaction.execute("DELETE FROM payment_event WHERE at_ms < ?1", [before_ms])
        })
    }
}

pub(super) fn insert_order(
    transaction: &Transaction<'_>,
    row: &OrderRow,
    next_poll_at_ms: i64,
    limits: OrderLimits,
) -> rusqlite::Result<InsertOrderOutcome> {
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
        "INSERT INTO payment_order(id, account, amount, currency, credits, bonus, created_at_ms, next_poll_at_ms, method)
         VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            row.id,
            row.account,
            row.amount,
            row.currency,
            row.credits,
            row.bonus,
            row.created_at_ms,
            next_poll_at_ms,
            row.method
        ],
    )?;
    Ok(InsertOrderOutcome::Done)
}

/// Returns the orders that have a payment, and the redeemed codes. `None` without an `app.db` of
/// this version.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn shop_rows(dir: &Path) -> Result<Option<ShopRows>, StoreError> {
    let Some(connection) = missing::open_with(dir, "app.db", "credit_code")? else {
        return Ok(None);
    };
    let rows = || -> rusqlite::Result<_> {
        let mut columns = connection
            .prepare("SELECT 1 FROM pragma_table_info('payment_order') WHERE name = 'method'")?;
        if !columns.exists([])? {
            return Ok(None);
        }
        let orders = connection
            .prepare(&format!(
                "SELECT {COLUMNS} FROM payment_order WHERE payment IS NOT NULL"
            ))?
            .query_map([], |row| order_row(row).map(paid_order))?
            .collect::<Result<_, _>>()?;
        let codes = redeemed_codes(&connection)?;
        Ok(Some(ShopRows { orders, codes }))
    };
    rows().map_err(|source| StoreError::sqlite("look for paid orders and redeemed codes", source))
}

fn paid_order(order: OrderRow) -> PaidOrder {
    let is_entered = order.state == OrderState::Paid;
    PaidOrder {
        due: order.due(),
        is_taken_back: is_entered && order.clawback == ClawbackState::None,
        id: order.id,
        account: order.account,
        payment: order.payment.unwrap_or_default(),
        credits: order.credits,
        bonus: order.bonus,
        is_entered,
    }
}
