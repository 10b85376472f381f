//! Stores the automatic top-ups of accounts, and the saved payment methods that they charge, as
//! rows of `app.db`.
//!
//! This file must not decide when an account is charged, apart from the limits that one transaction
//! must hold: a charge at a time, its tries, and the month's sum.

use super::audit::{self, AuditEntry};
use super::due::take_due;
use super::payments::{InsertOrderOutcome, OrderLimits, OrderRow, OrderState, insert_order};
use super::rows::{IS_ACTIVE, first_column};
use super::views::AutoTopUpRows;
use credits::money::Micro;
use ledger::StoreError;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params, params_from_iter};

/// What an account holder has chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoTopUpTerms {
    /// A balance below this one is topped up.
    pub threshold: Micro,
    /// In minor units of the currency, like `month_cap`.
    pub amount: i64,
    /// Maximum sum of the charges in a calendar month (UTC).
    pub month_cap: i64,
    pub currency: String,
}

/// A page at the provider on which the holder enters a payment method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodSetup {
    pub id: String,
    pub url: String,
    pub at_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoTopUpRow {
    pub account: String,
    pub terms: AutoTopUpTerms,
    pub is_on: bool,
    /// The saved method as the provider names it, and its name for people.
    pub method: Option<(String, String)>,
    /// When the holder last turned it on.
    pub set_at_ms: i64,
    /// Reason for which the gateway turned it off; may be empty.
    pub stopped: String,
    pub setup: Option<MethodSetup>,
}

/// When a charge may follow earlier ones.
#[derive(Debug, Clone, Copy)]
pub struct ChargeLimits {
    /// Start of the calendar month.
    pub month_start_ms: i64,
    /// Times in ms from a declined charge to the next try, for the first, the second, … decline.
    /// After one decline more, nothing is charged.
    pub retry_delays_ms: &'static [i64],
    /// Time in ms from a charge that the provider did not carry out to the next one.
    pub fault_delay_ms: i64,
}

/// Whether a charge may begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextCharge {
    /// It may, if the charge with this id is still the account's last one.
    Due { last: Option<String> },
    /// The top-up is off, another charge runs, or the wait after a failed one has not passed.
    Later,
    /// The charge would exceed the holder's cap for the month.
    OverMonthCap,
}

/// The charges of an account so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChargeHistory {
    /// Sum of the charges of the month that are paid or may still be paid, in minor units.
    pub month_sum: i64,
    /// Number of charges that were declined since the last paid one, and since the top-up was
    /// turned on.
    pub declines: u32,
}

impl ChargeHistory {
    /// Returns whether a further charge of the amount exceeds the cap for the month.
    pub fn exceeds_cap(&self, amount: i64, month_cap: i64) -> bool {
        self.month_sum.saturating_add(amount) > month_cap
    }
}

/// Prefix of what the provider must forget if it is not a method, but the page with this id and the
/// method that is entered there.
pub const PAGE_PREFIX: &str = "page:";

/// Why a top-up is off whose card could not be saved.
const SUSPENDED_MEANWHILE: &str =
    "A card was entered while the account was suspended, and was not saved: enter it again.";

const COLUMNS: &str = "account, threshold, amount, month_cap, currency, is_on, method, method_label, set_at_ms, stopped, setup, setup_url, setup_at_ms";

fn auto_topup_row(row: &Row<'_>) -> rusqlite::Result<AutoTopUpRow> {
    let method: Option<String> = row.get("method")?;
    let label = row.get("method_label")?;
    let setup: Option<String> = row.get("setup")?;
    let setup = match setup {
        Some(id) => Some(MethodSetup {
            id,
            url: row.get("setup_url")?,
            at_ms: row.get("setup_at_ms")?,
        }),
        None => None,
    };
    Ok(AutoTopUpRow {
        account: row.get("account")?,
        terms: AutoTopUpTerms {
            threshold: row.get("threshold")?,
            amount: row.get("amount")?,
            month_cap: row.get("month_cap")?,
            currency: row.get("currency")?,
        },
        is_on: row.get("is_on")?,
        method: method.map(|method| (method, label)),
        set_at_ms: row.get("set_at_ms")?,
        stopped: row.get("stopped")?,
        setup,
    })
}

impl AutoTopUpRows<'_> {
    pub fn find(&self, account: &str) -> Result<Option<AutoTopUpRow>, StoreError> {
        self.0.read("read an automatic top-up", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM auto_topup WHERE account = ?1"
                ))?
                .query_row([account], auto_topup_row)
                .optional()
        })
    }

    /// Stores what an account holder has chosen. With a saved method, this turns the top-up on;
    /// without one, the holder must enter a method first. Returns the stored row; `None` if the
    /// account is not active.
    pub fn save(
        &self,
        account: &str,
        terms: &AutoTopUpTerms,
        audit_entry: &AuditEntry<'_>,
    ) -> Result<Option<AutoTopUpRow>, StoreError> {
        self.0.write("store an automatic top-up", |transaction| {
            if !is_active(transaction, account)? {
                return Ok(None);
            }
            let row = transaction
                .prepare_cached(&format!(
                    "INSERT INTO auto_topup(account, threshold, amount, month_cap, currency, set_at_ms)
                     VALUES(?1, ?2, ?3, ?4, ?5, ?6)
                     ON CONFLICT(account) DO UPDATE
                       SET threshold = excluded.threshold, amount = excluded.amount, month_cap = excluded.month_cap,
                         currency = excluded.currency, set_at_ms = excluded.set_at_ms, is_on = method IS NOT NULL,
                         stopped = ''
                     RETURNING {COLUMNS}"
                ))?
                .query_row(
                    params![
                        account,
                        terms.threshold,
                        terms.amount,
                        terms.month_cap,
                        terms.currency,
                        audit_entry.at_ms
                    ],
                    auto_topup_row,
                )?;
            audit::append(transaction, audit_entry)?;
            Ok(Some(row))
        })
    }

    /// Stores the page on which the holder enters a method, in place of an earlier page.
    pub fn begin_setup(
        &self,
        account: &str,
        setup: &MethodSetup,
        next_poll_at_ms: i64,
    ) -> Result<(), StoreError> {
        self.0.write("store the page for a payment method", |transaction| {
            give_up_setups(transaction, "account = ?1 AND setup <> ?2", &[account, &setup.id], setup.at_ms)?;
            let sql = "UPDATE auto_topup
                 SET setup = ?2, setup_url = ?3, setup_at_ms = ?4, next_poll_at_ms = ?5 WHERE account = ?1";
            let values = params![account, setup.id, setup.url, setup.at_ms, next_poll_at_ms];
            transaction.execute(sql, values).map(drop)
        })
    }

    /// Makes the poll of a page due, because the provider has news of it.
    pub fn poll_setup_now(&self, setup: &str, now_ms: i64) -> Result<(), StoreError> {
        self.0
            .write("schedule a poll for a payment method", |transaction| {
                let sql =
                    "UPDATE auto_topup SET next_poll_at_ms = min(next_poll_at_ms, ?2) WHERE setup = ?1";
                transaction.execute(sql, params![setup, now_ms]).map(drop)
            })
    }

    /// Returns at most `limit` pages about which the provider must be polled. The next poll of each
    /// is after a quarter of its age, and at least after `lease_ms`.
    pub fn take_due_setups(
        &self,
        now_ms: i64,
        lease_ms: i64,
        limit: u32,
    ) -> Result<Vec<AutoTopUpRow>, StoreError> {
        let take = format!(
            "UPDATE auto_topup SET next_poll_at_ms = ?1 + max(?2, (?1 - setup_at_ms) / 4)
             WHERE account IN (SELECT account FROM auto_topup WHERE next_poll_at_ms <= ?1
                               ORDER BY next_poll_at_ms LIMIT ?3)
             RETURNING {COLUMNS}"
        );
        let due = ("auto_topup WHERE next_poll_at_ms <= ?1", now_ms);
        let parameters = (now_ms, lease_ms, limit);
        take_due(
            self.0,
            "take due pages",
            due,
            &take,
            parameters,
            auto_topup_row,
        )
    }

    /// Ends the page of a row. With a `method` and its name, the row gets this method in place of
    /// an earlier one, which the provider must forget, and is turned on. Returns false if the
    /// holder has given the page up in the meantime; then the provider must forget the new one.
    pub fn finish_setup(
        &self,
        row: &AutoTopUpRow,
        method: Option<(&str, &str)>,
        audit_entry: &AuditEntry<'_>,
    ) -> Result<bool, StoreError> {
        let setup = row.setup.as_ref().map(|setup| setup.id.as_str());
        self.0.write("store a payment method", |transaction| {
            let old: Option<Option<String>> = transaction
                .prepare_cached(&format!(
                    "SELECT method FROM auto_topup JOIN account ON account.id = account
                     WHERE account = ?1 AND setup = ?2 AND {IS_ACTIVE}"
                ))?
                .query_row(params![row.account, setup], first_column)
                .optional()?;
            let is_ended = transaction.execute(
                "UPDATE auto_topup SET setup = NULL, setup_url = '', setup_at_ms = NULL, next_poll_at_ms = NULL
                 WHERE account = ?1 AND setup = ?2",
                params![row.account, setup],
            )? == 1;
            let Some((method, label)) = method else {
                return Ok(old.is_some());
            };
            let Some(old) = old else {
                forget(transaction, method, audit_entry.at_ms)?;
                if is_ended {
                    transaction.execute(
                        "UPDATE auto_topup SET is_on = 0, stopped = ?2 WHERE account = ?1",
                        [row.account.as_str(), SUSPENDED_MEANWHILE],
                    )?;
                }
                return Ok(false);
            };
            if let Some(old) = old.filter(|old| old != method) {
                forget(transaction, &old, audit_entry.at_ms)?;
            }
            transaction.execute(
                "UPDATE auto_topup SET method = ?2, method_label = ?3, is_on = 1, set_at_ms = ?4, stopped = ''
                 WHERE account = ?1",
                params![row.account, method, label, audit_entry.at_ms],
            )?;
            audit::append(transaction, audit_entry)?;
            Ok(true)
        })
    }

    /// Turns an account's top-up off: the holder does, or the gateway does for a reason. An open
    /// page is given up. With `removes_method`, the provider must forget the saved method. Returns
    /// false if nothing changed.
    pub fn stop(
        &self,
        account: &str,
        why: &str,
        removes_method: bool,
        audit_entry: &AuditEntry<'_>,
    ) -> Result<bool, StoreError> {
        self.0.write("turn an automatic top-up off", |transaction| {
            stop(transaction, account, why, removes_method, audit_entry)
        })
    }

    /// Records that the charge of an order was declined, and turns the top-up off if `stop` has a
    /// reason. Returns false if the order has ended already.
    pub fn decline_charge(
        &self,
        order: &OrderRow,
        note: &str,
        stop_because: Option<(&str, &AuditEntry<'_>)>,
    ) -> Result<bool, StoreError> {
        self.0.write("record a declined charge", |transaction| {
            let sql = "UPDATE payment_order SET state = 'failed', note = ?2, next_poll_at_ms = NULL
                 WHERE id = ?1 AND state IN ('created', 'open', 'processing')";
            if transaction.execute(sql, params![order.id, note])? == 0 {
                return Ok(false);
            }
            if let Some((why, audit_entry)) = stop_because {
                stop(transaction, &order.account, why, false, audit_entry)?;
            }
            Ok(true)
        })
    }

    /// Returns whether there is anything to look at: a row, or a method to forget.
    pub fn has_any(&self) -> Result<bool, StoreError> {
        self.0.read("look for automatic top-ups", |connection| {
            connection
                .prepare_cached(
                    "SELECT EXISTS(SELECT 1 FROM auto_topup) OR EXISTS(SELECT 1 FROM method_removal)",
                )?
                .query_row([], first_column)
        })
    }

    /// Returns a page of the rows that are turned on and whose account is active, in the order of
    /// the accounts' ids. The page begins after the account `after`.
    pub fn turned_on(&self, after: &str, limit: u32) -> Result<Vec<AutoTopUpRow>, StoreError> {
        self.0.read("list automatic top-ups", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM auto_topup
                     WHERE is_on AND account > ?1
                       AND EXISTS(SELECT 1 FROM account WHERE account.id = auto_topup.account AND {IS_ACTIVE})
                     ORDER BY account LIMIT ?2"
                ))?
                .query_map(params![after, limit], auto_topup_row)?
                .collect()
        })
    }

    /// Returns the charges of an account so far.
    pub fn history(&self, account: &str, month_start_ms: i64) -> Result<ChargeHistory, StoreError> {
        self.0
            .read("add up the charges of an account", |connection| {
                history(connection, account, month_start_ms)
            })
    }

    /// Returns whether a charge of the order's account and method may begin, whatever the balance.
    pub fn next_charge(
        &self,
        order: &OrderRow,
        limits: ChargeLimits,
    ) -> Result<NextCharge, StoreError> {
        self.0.read("look whether a charge is due", |connection| {
            next_charge(connection, order, limits)
        })
    }

    /// Stores the order of a charge, if the charge is due, `last` is still the account's last one,
    /// and the account's orders stay within the limits. The provider is first polled at
    /// `next_poll_at_ms`.
    pub fn insert_charge(
        &self,
        order: &OrderRow,
        last: Option<&str>,
        next_poll_at_ms: i64,
        limits: OrderLimits,
        charge_limits: ChargeLimits,
    ) -> Result<InsertOrderOutcome, StoreError> {
        self.0.write(
            "store the order of a charge",
            |transaction| match next_charge(transaction, order, charge_limits)? {
                NextCharge::Due { last: current } if current.as_deref() == last => {
                    insert_order(transaction, order, next_poll_at_ms, limits)
                }
                _ => Ok(InsertOrderOutcome::NotDue),
            },
        )
    }

    /// Returns whether a top-up is on, with this method and an active account.
    pub fn may_charge(&self, account: &str, method: &str) -> Result<bool, StoreError> {
        self.0.read("read an automatic top-up", |connection| {
            let is_on = connection
                .prepare_cached(
                    "SELECT 1 FROM auto_topup WHERE account = ?1 AND method = ?2 AND is_on",
                )?
                .exists([account, method])?;
            Ok(is_on && is_active(connection, account)?)
        })
    }

    /// Gives up the saved methods of deleted accounts.
    pub fn drop_deleted(&self, now_ms: i64) -> Result<(), StoreError> {
        const DELETED: &str = "account IN (SELECT id FROM account WHERE deleted_at_ms IS NOT NULL)";
        let has_any: bool = self.0.read("look for deleted accounts", |connection| {
            connection
                .prepare_cached(&format!("SELECT 1 FROM auto_topup WHERE {DELETED}"))?
                .exists([])
        })?;
        if !has_any {
            return Ok(());
        }
        self.0
            .write("forget deleted accounts' methods", |transaction| {
                let sql = format!(
                    "INSERT INTO method_removal(method, next_try_at_ms)
                 SELECT method, ?1 FROM auto_topup WHERE method IS NOT NULL AND {DELETED}
                 ON CONFLICT DO NOTHING"
                );
                transaction.execute(&sql, [now_ms])?;
                give_up_setups(transaction, DELETED, &[], now_ms)?;
                let sql = format!("DELETE FROM auto_topup WHERE {DELETED}");
                transaction.execute(&sql, []).map(drop)
            })
    }

    /// Returns at most `limit` methods that the provider must forget. They are not due again before
    /// `lease_ms` has passed.
    pub fn take_removals(
        &self,
        now_ms: i64,
        lease_ms: i64,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let is_due = self.0.read("look for methods to forget", |connection| {
            connection
                .prepare_cached("SELECT 1 FROM method_removal WHERE next_try_at_ms <= ?1")?
                .exists([now_ms])
        })?;
        if !is_due {
            return Ok(Vec::new());
        }
        self.0.write("take methods to forget", |transaction| {
            transaction
                .prepare_cached(
                    "UPDATE method_removal SET next_try_at_ms = ?1 + ?2
                     WHERE method IN (SELECT method FROM method_removal WHERE next_try_at_ms <= ?1 LIMIT ?3)
                     RETURNING method",
                )?
                .query_map(params![now_ms, lease_ms, limit], first_column)?
                .collect()
        })
    }

    /// Records that the provider has forgotten a method.
    pub fn finish_removal(&self, method: &str) -> Result<(), StoreError> {
        self.0.write("forget a payment method", |transaction| {
            let sql = "DELETE FROM method_removal WHERE method = ?1";
            transaction.execute(sql, [method]).map(drop)
        })
    }
}

/// Returns whether a charge of an order may begin. The transaction that stores the order repeats
/// this check.
fn next_charge(
    connection: &Connection,
    order: &OrderRow,
    limits: ChargeLimits,
) -> rusqlite::Result<NextCharge> {
    let on: Option<(i64, i64)> = connection
        .prepare_cached(
            "SELECT month_cap, set_at_ms FROM auto_topup
             WHERE account = ?1 AND is_on AND method = ?2 AND amount = ?3 AND currency = ?4",
        )?
        .query_row(
            params![order.account, order.method, order.amount, order.currency],
            |row| Ok((first_column(row)?, row.get(1)?)),
        )
        .optional()?;
    let Some((month_cap, set_at_ms)) = on else {
        return Ok(NextCharge::Later);
    };
    let last: Option<(String, String, i64)> = connection
        .prepare_cached(
            "SELECT id, state, created_at_ms FROM payment_order WHERE account = ?1 AND method IS NOT NULL
             ORDER BY created_at_ms DESC, id DESC LIMIT 1",
        )?
        .query_row([&order.account], |row| Ok((first_column(row)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let history = history(connection, &order.account, limits.month_start_ms)?;
    if let Some((_, state, at_ms)) = &last {
        let delay_ms = match OrderState::from_name(state) {
            Some(state) if state.is_waiting() => None,
            // What happened before the holder turned it on delays nothing.
            _ if *at_ms < set_at_ms => Some(0),
            Some(OrderState::Failed) => {
                let index =
                    usize::try_from(history.declines.saturating_sub(1)).unwrap_or(usize::MAX);
                limits.retry_delays_ms.get(index).copied()
            }
            Some(OrderState::Paid) => Some(0),
            _ => Some(limits.fault_delay_ms),
        };
        if delay_ms.is_none_or(|delay_ms| order.created_at_ms < at_ms.saturating_add(delay_ms)) {
            return Ok(NextCharge::Later);
        }
    }
    Ok(match history.exceeds_cap(order.amount, month_cap) {
        true => NextCharge::OverMonthCap,
        false => NextCharge::Due {
            last: last.map(|(id, ..)| id),
        },
    })
}

fn history(
    connection: &Connection,
    account: &str,
    month_start_ms: i64,
) -> rusqlite::Result<ChargeHistory> {
    connection
        .prepare_cached(
            "SELECT ifnull(sum(iif(created_at_ms >= ?2 AND state NOT IN ('expired', 'failed'), amount, 0)), 0),
               ifnull(sum(state = 'failed'
                 AND created_at_ms >= ifnull((SELECT set_at_ms FROM auto_topup WHERE account = ?1), 0)
                 AND created_at_ms > ifnull((SELECT max(created_at_ms) FROM payment_order
                                             WHERE account = ?1 AND method IS NOT NULL AND state = 'paid'), 0)), 0)
             FROM payment_order WHERE account = ?1 AND method IS NOT NULL",
        )?
        .query_row(params![account, month_start_ms], |row| {
            Ok(ChargeHistory {
                month_sum: first_column(row)?,
                declines: row.get(1)?,
            })
        })
}

fn is_active(connection: &Connection, account: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(&format!(
            "SELECT 1 FROM account WHERE id = ?1 AND {IS_ACTIVE}"
        ))?
        .exists([account])
}

fn stop(
    transaction: &Transaction<'_>,
    account: &str,
    why: &str,
    removes_method: bool,
    audit_entry: &AuditEntry<'_>,
) -> rusqlite::Result<bool> {
    let changed: Option<Option<String>> = transaction
        .query_row(
            "SELECT method FROM auto_topup WHERE account = ?1 AND (is_on OR setup IS NOT NULL OR (?2 AND method IS NOT NULL))",
            params![account, removes_method],
            first_column,
        )
        .optional()?;
    let Some(method) = changed else {
        return Ok(false);
    };
    give_up_setups(transaction, "account = ?1", &[account], audit_entry.at_ms)?;
    transaction.execute(
        "UPDATE auto_topup
         SET is_on = 0, stopped = ?2, setup = NULL, setup_url = '', setup_at_ms = NULL, next_poll_at_ms = NULL,
           method = iif(?3, NULL, method), method_label = iif(?3, '', method_label)
         WHERE account = ?1",
        params![account, why, removes_method],
    )?;
    if let Some(method) = method.filter(|_| removes_method) {
        forget(transaction, &method, audit_entry.at_ms)?;
    }
    audit::append(transaction, audit_entry)?;
    Ok(true)
}

/// Makes the provider forget what holders enter on pages that are given up. `?` parameters of the
/// condition are `values`.
fn give_up_setups(
    transaction: &Transaction<'_>,
    condition: &str,
    values: &[&str],
    now_ms: i64,
) -> rusqlite::Result<()> {
    let pages: Vec<String> = transaction
        .prepare(&format!(
            "SELECT setup FROM auto_topup WHERE setup IS NOT NULL AND {condition}"
        ))?
        .query_map(params_from_iter(values), first_column)?
        .collect::<Result<_, _>>()?;
    for page in pages {
        forget(transaction, &format!("{PAGE_PREFIX}{page}"), now_ms)?;
    }
    Ok(())
}

fn forget(transaction: &Transaction<'_>, method: &str, now_ms: i64) -> rusqlite::Result<()> {
    let sql =
        "INSERT INTO method_removal(method, next_try_at_ms) VALUES(?1, ?2) ON CONFLICT DO NOTHING";
    transaction.execute(sql, params![method, now_ms]).map(drop)
}
