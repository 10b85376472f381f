//! Alert rules of accounts, and which of them have fired, as rows of `app.db`.
//!
//! Must not know what a rule means: the rules are JSON of `account.alerts`.

use super::mail::{self, MailQueueLimits, OutgoingMailRow};
use super::rows::first_column;
use super::views::AlertRows;
use super::webhooks::{self, NewDelivery};
use ledger::StoreError;
use rusqlite::{OptionalExtension, Row, params};

/// An account that has alert rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertAccountRow {
    pub id: String,
    /// Whether mail may be sent to its address.
    pub is_verified: bool,
    /// The rules, as JSON.
    pub alerts: String,
}

/// A rule that has fired and is not armed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FiredAlertRow {
    pub rule: String,
    /// What the rule fires once for: the start of a period, or a number that the rule chooses.
    pub period_ms: i64,
    pub fired_at_ms: i64,
}

/// What an alert sends.
#[derive(Debug, Clone, Copy)]
pub struct AlertNotices<'a> {
    pub mail: Option<(&'a OutgoingMailRow, MailQueueLimits)>,
    /// The delivery, and how many of the account may wait.
    pub delivery: Option<(&'a NewDelivery<'a>, u32)>,
}

impl AlertRows<'_> {
    /// Sets the rules of an account; empty: none. Returns false if there is no such account.
    pub fn set_alerts(&self, account: &str, alerts: &str) -> Result<bool, StoreError> {
        self.0.write("set an account's alerts", |transaction| {
            let sql = "UPDATE account SET alerts = ?2 WHERE id = ?1 AND deleted_at_ms IS NULL";
            Ok(transaction.execute(sql, params![account, alerts])? > 0)
        })
    }

    /// Returns the rules of an account; empty if it has none.
    pub fn alerts(&self, account: &str) -> Result<String, StoreError> {
        self.0.read("read an account's alerts", |connection| {
            let found: Option<String> = connection
                .prepare_cached("SELECT alerts FROM account WHERE id = ?1")?
                .query_row([account], first_column)
                .optional()?;
            Ok(found.unwrap_or_default())
        })
    }

    /// Returns a page of the accounts that have rules, in the order of their ids: those after
    /// `after`. Suspended accounts have none that matter.
    pub fn accounts_with_alerts(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Vec<AlertAccountRow>, StoreError> {
        self.0.read("list accounts with alerts", |connection| {
            connection
                .prepare_cached(
                    "SELECT id, verified_at_ms IS NOT NULL, alerts FROM account
                     WHERE alerts <> '' AND status = 'active' AND id > ?1 ORDER BY id LIMIT ?2",
                )?
                .query_map(params![after, limit], |row| {
                    Ok(AlertAccountRow {
                        id: first_column(row)?,
                        is_verified: row.get(1)?,
                        alerts: row.get(2)?,
                    })
                })?
                .collect()
        })
    }

    /// Returns the rules that have fired, of the accounts whose ids follow `after`, up to `last`:
    /// with the id of each account.
    pub fn fired_alerts_between(
        &self,
        after: &str,
        last: &str,
    ) -> Result<Vec<(String, FiredAlertRow)>, StoreError> {
        self.0.read("list fired alerts of a page", |connection| {
            connection
                .prepare_cached(
                    "SELECT rule, period_ms, fired_at_ms, account FROM alert_state
                     WHERE account > ?1 AND account <= ?2",
                )?
                .query_map([after, last], |row| Ok((row.get(3)?, fired_row(row)?)))?
                .collect()
        })
    }

    pub fn fired_alerts(&self, account: &str) -> Result<Vec<FiredAlertRow>, StoreError> {
        self.0.read("list fired alerts", |connection| {
            connection
                .prepare_cached(
                    "SELECT rule, period_ms, fired_at_ms FROM alert_state WHERE account = ?1 ORDER BY rule",
                )?
                .query_map([account], fired_row)?
                .collect()
        })
    }

    /// Fires a rule and queues what it sends, in one step, so that a crash loses neither. Returns
    /// false, and sends nothing, if the rule has fired in this period: of two processes, one fires
    /// it. A full queue of mail does not keep the rule from firing.
    pub fn fire_alert(
        &self,
        account: &str,
        fired: &FiredAlertRow,
        notices: AlertNotices<'_>,
    ) -> Result<bool, StoreError> {
        self.0.write("fire an alert", |transaction| {
            let rows = transaction.execute(
                "INSERT INTO alert_state(account, rule, period_ms, fired_at_ms) VALUES(?1, ?2, ?3, ?4)
                 ON CONFLICT(account, rule) DO UPDATE
                   SET period_ms = excluded.period_ms, fired_at_ms = excluded.fired_at_ms
                   WHERE period_ms <> excluded.period_ms",
                params![account, fired.rule, fired.period_ms, fired.fired_at_ms],
            )?;
            if rows == 0 {
                return Ok(false);
            }
            if let Some((row, limits)) = notices.mail {
                mail::insert(transaction, row, limits)?;
            }
            if let Some((delivery, max_pending)) = notices.delivery {
                webhooks::insert_delivery(transaction, delivery, max_pending)?;
            }
            Ok(true)
        })
    }

    /// Arms a rule that has fired, so that it can fire again. Returns false if it is armed.
    pub fn rearm_alert(&self, account: &str, rule: &str) -> Result<bool, StoreError> {
        self.0.write("arm an alert", |transaction| {
            let sql = "DELETE FROM alert_state WHERE account = ?1 AND rule = ?2";
            Ok(transaction.execute(sql, params![account, rule])? > 0)
        })
    }
}

fn fired_row(row: &Row<'_>) -> rusqlite::Result<FiredAlertRow> {
    Ok(FiredAlertRow {
        rule: first_column(row)?,
        period_ms: row.get(1)?,
        fired_at_ms: row.get(2)?,
    })
}
