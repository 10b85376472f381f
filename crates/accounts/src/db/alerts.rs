//! Stores accounts' alert rules, and the rules that have fired, as rows of `app.db`.
//!
//! This file must not interpret a rule; the rules are JSON in `account.alerts`.

use super::mail::{self, MailQueueLimits, OutgoingMailRow, QueueMailOutcome};
use super::rows::{IS_ACTIVE, first_column};
use super::views::AlertRows;
use super::webhooks::{self, NewDelivery, QueueDeliveryOutcome};
use ledger::StoreError;
use rusqlite::{OptionalExtension, Row, params};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertAccountRow {
    pub id: String,
    /// True if mail may be sent to the account's address.
    pub is_verified: bool,
    pub has_webhook: bool,
    /// The rules, as JSON.
    pub alerts: String,
}

/// A rule that has fired and is not armed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FiredAlertRow {
    pub rule: String,
    /// Period in which the rule fires only once: its start in ms, or a number of the rule.
    pub period_ms: i64,
    pub fired_at_ms: i64,
    /// True if a mail or a webhook message was queued for the rule and the message has not failed.
    /// A failed mail counts too, because a server that refuses one address must not be asked again.
    pub is_sent: bool,
    /// True if the account holder has dismissed the banner.
    pub is_seen: bool,
}

/// Delivery states of the notices of a fired rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertNoticeRow {
    pub rule: String,
    /// State of the mail: `queued`, `sent` or `failed`; empty if the mail was purged. `None` if no
    /// mail was queued.
    pub mail: Option<String>,
    /// State of the delivery: `pending`, `delivered` or `failed`; empty if the delivery was purged.
    /// `None` if no message was queued.
    pub delivery: Option<String>,
}

/// Messages that an alert sends.
#[derive(Debug, Clone, Copy)]
pub struct AlertNotices<'a> {
    pub mail: Option<(&'a OutgoingMailRow, MailQueueLimits)>,
    /// The delivery to queue, and the maximum number of the account's pending deliveries.
    pub delivery: Option<(&'a NewDelivery<'a>, u32)>,
}

impl AlertRows<'_> {
    /// Sets the rules of an account; an empty text removes them. Returns false if there is no such
    /// account.
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

    /// Returns a page of the active accounts with rules, in the order of their ids. The page begins
    /// after the id `after`.
    pub fn accounts_with_alerts(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Vec<AlertAccountRow>, StoreError> {
        self.0.read("list accounts with alerts", |connection| {
            connection
                .prepare_cached(&format!(
                    "{ALERT_ACCOUNTS} WHERE alerts <> '' AND {IS_ACTIVE} AND id > ?1 ORDER BY id LIMIT ?2"
                ))?
                .query_map(params![after, limit], alert_account_row)?
                .collect()
        })
    }

    /// Returns an account that notices can go to; `None` if it is not active.
    pub fn alert_account(&self, id: &str) -> Result<Option<AlertAccountRow>, StoreError> {
        Ok(self.alert_accounts("id = ?1", id)?.pop())
    }

    /// Returns the administrators that notices can go to.
    pub fn alert_operators(&self) -> Result<Vec<AlertAccountRow>, StoreError> {
        self.alert_accounts("admin = CAST(?1 AS INTEGER)", "1")
    }

    fn alert_accounts(
        &self,
        condition: &'static str,
        value: &str,
    ) -> Result<Vec<AlertAccountRow>, StoreError> {
        self.0.read("find accounts for a notice", |connection| {
            connection
                .prepare_cached(&format!(
                    "{ALERT_ACCOUNTS} WHERE {condition} AND {IS_ACTIVE}"
                ))?
                .query_map([value], alert_account_row)?
                .collect()
        })
    }

    /// Returns the fired rules of the accounts whose ids are after `after` and up to `last`, with
    /// the account ids.
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

    /// Returns the delivery states of the notices of all rules that have fired.
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

    /// Records that the account holder has dismissed a rule's banner. Returns false if the rule has
    /// not fired, or if the banner is already dismissed.
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

    /// Fires a rule and queues its messages in one transaction, so that a crash loses neither. A
    /// rule that has fired in this period fires again only to send a message that could not be
    /// queued before. Otherwise, nothing changes and the result is false, so only one of two
    /// processes fires a rule. A full mail queue does not prevent firing; the mail is queued later.
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

/// Query whose rows [`alert_account_row`] reads; it needs a condition.
const ALERT_ACCOUNTS: &str = "SELECT id, verified_at_ms IS NOT NULL, alerts,
    EXISTS(SELECT 1 FROM webhook WHERE account = id AND disabled_at_ms IS NULL) FROM account";

fn alert_account_row(row: &Row<'_>) -> rusqlite::Result<AlertAccountRow> {
    Ok(AlertAccountRow {
        id: first_column(row)?,
        is_verified: row.get(1)?,
        alerts: row.get(2)?,
        has_webhook: row.get(3)?,
    })
}

/// Columns that [`fired_row`] reads.
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
