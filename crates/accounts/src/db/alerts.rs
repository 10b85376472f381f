//! Alert rules of accounts, and which of them have fired, as rows of `app.db`.
//!
//! This file must not know what a rule means: the rules are JSON of `account.alerts`.

use super::mail::{self, MailQueueLimits, OutgoingMailRow, QueueMailOutcome};
use super::rows::first_column;
use super::views::AlertRows;
use super::webhooks::{self, NewDelivery, QueueDeliveryOutcome};
use ledger::StoreError;
use rusqlite::{OptionalExtension, Row, params};

/// An account that has alert rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertAccountRow {
    pub id: String,
    /// Whether mail may be sent to its address.
    pub is_verified: bool,
    /// Whether it has a webhook that is enabled.
    pub has_webhook: bool,
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
    /// Whether a mail or a message of the webhook was queued for it that has not failed. A mail
    /// that failed counts: a server that refuses one address must not be asked again and again.
    pub is_sent: bool,
    /// Whether the account holder has dismissed its banner.
    pub is_seen: bool,
}

/// What became of the notices of a rule that has fired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertNoticeRow {
    pub rule: String,
    /// `queued`, `sent` or `failed`; empty if it is not known any more. `None`: no mail.
    pub mail: Option<String>,
    /// `pending`, `delivered` or `failed`; empty if it is not known any more. `None`: no message.
    pub delivery: Option<String>,
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
                    "SELECT id, verified_at_ms IS NOT NULL, alerts,
                            EXISTS(SELECT 1 FROM webhook WHERE account = id AND disabled_at_ms IS NULL)
                     FROM account WHERE alerts <> '' AND status = 'active' AND id > ?1 ORDER BY id LIMIT ?2",
                )?
                .query_map(params![after, limit], |row| {
                    Ok(AlertAccountRow {
                        id: first_column(row)?,
                        is_verified: row.get(1)?,
                        alerts: row.get(2)?,
                        has_webhook: row.get(3)?,
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
                .prepare_cached(&format!(
                    "SELECT {FIRED_COLUMNS}, account FROM alert_state WHERE account > ?1 AND account <= ?2"
                ))?
                .query_map([after, last], |row| Ok((row.get("account")?, fired_row(row)?)))?
                .collect()
        })
    }

    pub fn fired_alerts(&self, account: &str) -> Result<Vec<FiredAlertRow>, StoreError> {
        self.0.read("list fired alerts", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {FIRED_COLUMNS} FROM alert_state WHERE account = ?1 ORDER BY rule"
                ))?
                .query_map([account], fired_row)?
                .collect()
        })
    }

    /// Returns what became of the notices of the rules that have fired.
    pub fn alert_notices(&self, account: &str) -> Result<Vec<AlertNoticeRow>, StoreError> {
        self.0.read("list the notices of alerts", |connection| {
            connection
                .prepare_cached(
                    "SELECT rule,
                            ifnull((SELECT state FROM outgoing_mail WHERE id = mail), iif(mail IS NULL, NULL, '')),
                            ifnull((SELECT state FROM webhook_delivery WHERE id = delivery),
                                   iif(delivery IS NULL, NULL, ''))
                     FROM alert_state WHERE account = ?1 ORDER BY rule",
                )?
                .query_map([account], |row| {
                    Ok(AlertNoticeRow {
                        rule: first_column(row)?,
                        mail: row.get(1)?,
                        delivery: row.get(2)?,
                    })
                })?
                .collect()
        })
    }

    /// Records that the account holder has dismissed the banner of a rule. Returns false if the
    /// rule has not fired, or the banner is dismissed.
    pub fn mark_alert_seen(
        &self,
        account: &str,
        rule: &str,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        self.0.write("dismiss an alert", |transaction| {
            let sql = "UPDATE alert_state SET seen_at_ms = ?3
                       WHERE account = ?1 AND rule = ?2 AND seen_at_ms IS NULL";
            Ok(transaction.execute(sql, params![account, rule, now_ms])? > 0)
        })
    }

    /// Fires a rule and queues what it sends, in one step, so that a crash loses neither. A rule
    /// that has fired in this period fires again only to send what could not be sent then. Returns
    /// false, and changes nothing, if there is neither: of two processes, one fires a rule. A full
    /// queue of mail does not keep a rule from firing; what it would have sent is sent later.
    pub fn fire_alert(
        &self,
        account: &str,
        rule: &str,
        (period_ms, now_ms): (i64, i64),
        notices: AlertNotices<'_>,
    ) -> Result<bool, StoreError> {
        self.0.write("fire an alert", |transaction| {
            let before: Option<FiredAlertRow> = transaction
                .prepare_cached(&format!(
                    "SELECT {FIRED_COLUMNS} FROM alert_state WHERE account = ?1 AND rule = ?2"
                ))?
                .query_row([account, rule], fired_row)
                .optional()?
                .filter(|before| before.period_ms == period_ms);
            if before.as_ref().is_some_and(|before| before.is_sent) {
                return Ok(false);
            }
            let mail = match notices.mail {
                Some((row, limits))
                    if mail::insert(transaction, row, limits)? == QueueMailOutcome::Done =>
                {
                    Some(&row.id)
                }
                _ => None,
            };
            let delivery = match notices.delivery {
                Some((delivery, max_pending))
                    if webhooks::insert_delivery(transaction, delivery, max_pending)?
                        != QueueDeliveryOutcome::NoWebhook =>
                {
                    Some(delivery.id)
                }
                _ => None,
            };
            if before.is_some() && mail.is_none() && delivery.is_none() {
                return Ok(false);
            }
            transaction.execute(
                "INSERT INTO alert_state(account, rule, period_ms, fired_at_ms, mail, delivery)
                 VALUES(?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT(account, rule) DO UPDATE
                   SET seen_at_ms = iif(period_ms = excluded.period_ms, seen_at_ms, NULL),
                       period_ms = excluded.period_ms, fired_at_ms = excluded.fired_at_ms,
                       mail = excluded.mail, delivery = excluded.delivery",
                params![account, rule, period_ms, now_ms, mail, delivery],
            )?;
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

/// What [`fired_row`] reads.
const FIRED_COLUMNS: &str = "rule, period_ms, fired_at_ms, seen_at_ms IS NOT NULL AS is_seen,
    mail IS NOT NULL OR delivery IS NOT NULL AND NOT EXISTS(
      SELECT 1 FROM webhook_delivery WHERE id = delivery AND state = 'failed') AS is_sent";

fn fired_row(row: &Row<'_>) -> rusqlite::Result<FiredAlertRow> {
    Ok(FiredAlertRow {
        rule: row.get("rule")?,
        period_ms: row.get("period_ms")?,
        fired_at_ms: row.get("fired_at_ms")?,
        is_sent: row.get("is_sent")?,
        is_seen: row.get("is_seen")?,
    })
}
