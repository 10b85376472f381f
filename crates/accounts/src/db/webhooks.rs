//! Stores accounts' webhooks and their deliveries as rows of `app.db`.
//!
//! A webhook's secret is stored in plain text, because signing needs it. Therefore these rows do
//! not implement `Debug`. This file must not depend on alert rules, and must not send messages.

use super::due::take_due;
use super::mail::{self, MailQueueLimits, OutgoingMailRow, count};
use super::rows::first_column;
use super::views::WebhookRows;
use ledger::StoreError;
use rusqlite::{OptionalExtension, Row, Transaction, params};

#[derive(Clone, PartialEq, Eq)]
pub struct WebhookRow {
    pub url: String,
    pub secret: [u8; 32],
    /// The secret before the last rotation, and the time in ms until which deliveries are signed
    /// with it too.
    pub old_secret: Option<([u8; 32], i64)>,
    /// Time at which the URL was last set.
    pub created_at_ms: i64,
    /// Time and reason of the disabling, if the webhook is disabled.
    pub disabled: Option<(i64, String)>,
}

#[derive(Debug, Clone, Copy)]
pub struct NewDelivery<'a> {
    pub id: &'a str,
    pub account: &'a str,
    pub event: &'a str,
    pub body: &'a str,
    pub created_at_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueDeliveryOutcome {
    /// The delivery is queued, and `dropped` older pending deliveries were given up for it.
    Done { dropped: usize },
    /// The account has no webhook, or its webhook is disabled.
    NoWebhook,
}

/// The result of making a delivery due again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResendOutcome {
    Done,
    /// The account has no delivery with this id.
    NotFound,
    /// The account has no webhook, or its webhook is disabled.
    NoWebhook,
    TooManyPending,
}

/// A delivery whose attempt begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueDelivery {
    pub id: String,
    pub account: String,
    pub event: String,
    pub body: String,
    pub created_at_ms: i64,
    /// Number of attempts that began, including the current one.
    pub attempts: u32,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct DeliveryAttempt<'a> {
    /// HTTP status of the response, if there was one.
    pub status: Option<u16>,
    pub error: &'a str,
    pub took_ms: i64,
}

/// A delivery, for the account holder's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryLogRow {
    pub id: String,
    pub event: String,
    pub created_at_ms: i64,
    pub next_at_ms: i64,
    pub attempts: u32,
    /// `pending`, `delivered` or `failed`.
    pub state: String,
    pub last_status: Option<u16>,
    pub last_error: String,
    pub took_ms: Option<i64>,
}

const DROPPED: &str = "not delivered: too many newer deliveries were pending";
const REMOVED: &str = "not delivered: the webhook was removed or disabled";

impl WebhookRows<'_> {
    pub fn webhook(&self, account: &str) -> Result<Option<WebhookRow>, StoreError> {
        self.0.read("find a webhook", |connection| {
            connection
                .prepare_cached(
                    "SELECT url, secret, old_secret, old_until_ms, created_at_ms, disabled_at_ms, disabled_because
                     FROM webhook WHERE account = ?1",
                )?
                .query_row([account], webhook_row)
                .optional()
        })
    }

    /// Sets the URL of an account's webhook and enables the webhook. An existing webhook keeps its
    /// secret, and a new one gets `secret`. Returns false if there is no such account.
    pub fn set_webhook(
        &self,
        account: &str,
        url: &str,
        secret: &[u8; 32],
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        self.0.write("set a webhook", |transaction| {
            let rows = transaction.execute(
                "INSERT INTO webhook(account, url, secret, created_at_ms)
                 SELECT id, ?2, ?3, ?4 FROM account WHERE id = ?1 AND deleted_at_ms IS NULL
                 ON CONFLICT(account) DO UPDATE
                   SET url = excluded.url, created_at_ms = excluded.created_at_ms,
                       disabled_at_ms = NULL, disabled_because = ''",
                params![account, url, secret, now_ms],
            )?;
            Ok(rows > 0)
        })
    }

    /// Replaces the secret `old`. Until `old_until_ms`, deliveries are signed with the old secret
    /// too. Returns false, and changes nothing, if the webhook is missing or has another secret.
    pub fn rotate_webhook_secret(
        &self,
        account: &str,
        old: &[u8; 32],
        secret: &[u8; 32],
        old_until_ms: i64,
    ) -> Result<bool, StoreError> {
        self.0.write("rotate a webhook's secret", |transaction| {
            let sql = "UPDATE webhook SET old_secret = secret, old_until_ms = ?3, secret = ?2
                       WHERE account = ?1 AND secret = ?4";
            Ok(transaction.execute(sql, params![account, secret, old_until_ms, old])? > 0)
        })
    }

    /// Disables a webhook, gives up its pending deliveries, and queues a mail about it if the
    /// account's e-mail is verified. Returns false if the webhook is not enabled.
    pub fn disable_webhook(
        &self,
        account: &str,
        because: &str,
        now_ms: i64,
        mail: Option<(&OutgoingMailRow, MailQueueLimits)>,
    ) -> Result<bool, StoreError> {
        self.0.write("disable a webhook", |transaction| {
            let rows = transaction.execute(
                "UPDATE webhook SET disabled_at_ms = ?2, disabled_because = ?3
                 WHERE account = ?1 AND disabled_at_ms IS NULL",
                params![account, now_ms, because],
            )?;
            if rows > 0 {
                give_up_pending(transaction, account, now_ms)?;
                let is_verified: bool = transaction.query_row(
                    "SELECT verified_at_ms IS NOT NULL FROM account WHERE id = ?1",
                    [account],
                    first_column,
                )?;
                if let Some((row, limits)) = mail.filter(|_| is_verified) {
                    mail::insert(transaction, row, limits)?;
                }
            }
            Ok(rows > 0)
        })
    }

    /// Removes a webhook with its secrets, and gives up its pending deliveries.
    pub fn remove_webhook(&self, account: &str, now_ms: i64) -> Result<bool, StoreError> {
        self.0.write("remove a webhook", |transaction| {
            remove(transaction, account, now_ms)
        })
    }

    /// Queues a delivery that is due at once. If the account then has more than `max_pending`
    /// pending deliveries, the oldest are given up.
    pub fn queue_delivery(
        &self,
        delivery: &NewDelivery<'_>,
        max_pending: u32,
    ) -> Result<QueueDeliveryOutcome, StoreError> {
        self.0.write("queue a delivery", |transaction| {
            insert_delivery(transaction, delivery, max_pending)
        })
    }

    /// Returns at most `limit` due deliveries, one per account and none of the `busy` accounts, and
    /// counts an attempt of each. The deliveries are not due again before `lease_ms` has passed, so
    /// that no other process sends them. After a crash, they become due again.
    pub fn take_due_deliveries(
        &self,
        now_ms: i64,
        lease_ms: i64,
        busy: &[String],
        limit: u32,
    ) -> Result<Vec<DueDelivery>, StoreError> {
        let due = (
            "webhook_delivery WHERE state = 'pending' AND next_at_ms <= ?1",
            now_ms,
        );
        // SQLite takes a bare column such as `id` from the row with the minimum.
        let take = "UPDATE webhook_delivery SET next_at_ms = ?1 + ?2, attempts = attempts + 1
             WHERE id IN (SELECT id FROM (
               SELECT id, min(next_at_ms) AS due FROM webhook_delivery
               WHERE state = 'pending' AND next_at_ms <= ?1
                 AND account NOT IN (SELECT value FROM json_each(?4))
               GROUP BY account ORDER BY due LIMIT ?3))
             RETURNING id, account, event, body, created_at_ms, attempts";
        let busy = serde_json::json!(busy).to_string();
        let parameters = (now_ms, lease_ms, limit, &*busy);
        take_due(
            self.0,
            "take due deliveries",
            due,
            take,
            parameters,
            due_delivery,
        )
    }

    /// Records a failed attempt and the time of the next one.
    pub fn retry_delivery(
        &self,
        id: &str,
        attempt: DeliveryAttempt<'_>,
        next_at_ms: i64,
    ) -> Result<(), StoreError> {
        self.0.write("queue a delivery again", |transaction| {
            transaction
                .execute(
                    "UPDATE webhook_delivery SET next_at_ms = ?2, last_status = ?3, last_error = ?4, took_ms = ?5
                     WHERE id = ?1 AND state = 'pending'",
                    params![id, next_at_ms, attempt.status, attempt.error, attempt.took_ms],
                )
                .map(drop)
        })
    }

    /// Records the last attempt of a delivery, which was delivered or has failed permanently.
    pub fn end_delivery(
        &self,
        id: &str,
        attempt: DeliveryAttempt<'_>,
        is_delivered: bool,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.0.write("record the end of a delivery", |transaction| {
            let state = if is_delivered { "delivered" } else { "failed" };
            transaction
                .execute(
                    "UPDATE webhook_delivery
                     SET state = ?2, last_status = ?3, last_error = ?4, took_ms = ?5, ended_at_ms = ?6
                     WHERE id = ?1 AND state = 'pending'",
                    params![id, state, attempt.status, attempt.error, attempt.took_ms, now_ms],
                )
                .map(drop)
        })
    }

    /// Returns the latest deliveries of an account, newest first.
    pub fn deliveries(&self, account: &str, limit: u32) -> Result<Vec<DeliveryLogRow>, StoreError> {
        self.0.read("list deliveries", |connection| {
            connection
                .prepare_cached(
                    "SELECT id, event, created_at_ms, next_at_ms, attempts, state, last_status, last_error, took_ms
                     FROM webhook_delivery WHERE account = ?1 ORDER BY created_at_ms DESC, id DESC LIMIT ?2",
                )?
                .query_map(params![account, limit], log_row)?
                .collect()
        })
    }

    /// Makes a pending or ended delivery due at once.
    pub fn resend_delivery(
        &self,
        account: &str,
        id: &str,
        max_pending: u32,
        now_ms: i64,
    ) -> Result<ResendOutcome, StoreError> {
        self.0.write("send a delivery again", |transaction| {
            let state: Option<String> = transaction
                .query_row(
                    "SELECT state FROM webhook_delivery WHERE id = ?1 AND account = ?2",
                    [id, account],
                    first_column,
                )
                .optional()?;
            let Some(state) = state else {
                return Ok(ResendOutcome::NotFound);
            };
            let (is_enabled, pending): (bool, i64) = transaction.query_row(
                "SELECT EXISTS(SELECT 1 FROM webhook WHERE account = ?1 AND disabled_at_ms IS NULL),
                        (SELECT count(*) FROM webhook_delivery WHERE account = ?1 AND state = 'pending')",
                [account],
                |row| Ok((first_column(row)?, row.get(1)?)),
            )?;
            if !is_enabled {
                return Ok(ResendOutcome::NoWebhook);
            }
            if state != "pending" && pending >= i64::from(max_pending) {
                return Ok(ResendOutcome::TooManyPending);
            }
            transaction.execute(
                "UPDATE webhook_delivery SET state = 'pending', next_at_ms = ?2, ended_at_ms = NULL
                 WHERE id = ?1",
                params![id, now_ms],
            )?;
            Ok(ResendOutcome::Done)
        })
    }

    /// Returns the creation time of the oldest failing delivery since the last success and since
    /// the URL was set. `None` if no delivery has failed.
    pub fn failing_since(&self, account: &str) -> Result<Option<i64>, StoreError> {
        self.0.read("look for failing deliveries", |connection| {
            connection
                .prepare_cached(
                    "SELECT min(created_at_ms) FROM webhook_delivery
                     WHERE account = ?1 AND state <> 'delivered' AND attempts > 0 AND last_error <> ''
                       AND created_at_ms >= (SELECT created_at_ms FROM webhook WHERE account = ?1)
                       AND created_at_ms > (SELECT ifnull(max(ended_at_ms), 0) FROM webhook_delivery
                                            WHERE account = ?1 AND state = 'delivered')",
                )?
                .query_row([account], first_column)
        })
    }

    pub fn due_deliveries(&self, now_ms: i64) -> Result<u64, StoreError> {
        self.0.read("count due deliveries", |connection| {
            connection
                .prepare_cached(
                    "SELECT count(*) FROM webhook_delivery WHERE state = 'pending' AND next_at_ms <= ?1",
                )?
                .query_row([now_ms], count)
        })
    }

    /// Deletes deliveries that ended before `before_ms`. Returns their number.
    pub fn purge_deliveries(&self, before_ms: i64) -> Result<usize, StoreError> {
        self.0.write("delete old deliveries", |transaction| {
            transaction.execute(
                "DELETE FROM webhook_delivery WHERE ended_at_ms < ?1",
                [before_ms],
            )
        })
    }
}

/// Queues a delivery in the caller's transaction.
pub(crate) fn insert_delivery(
    transaction: &Transaction<'_>,
    delivery: &NewDelivery<'_>,
    max_pending: u32,
) -> rusqlite::Result<QueueDeliveryOutcome> {
    let NewDelivery {
        id,
        account,
        event,
        body,
        created_at_ms,
    } = *delivery;
    let rows = transaction.execute(
        "INSERT INTO webhook_delivery(id, account, event, body, created_at_ms, next_at_ms)
         SELECT ?2, account, ?3, ?4, ?5, ?5 FROM webhook WHERE account = ?1 AND disabled_at_ms IS NULL",
        params![account, id, event, body, created_at_ms],
    )?;
    if rows == 0 {
        return Ok(QueueDeliveryOutcome::NoWebhook);
    }
    let dropped = transaction.execute(
        "UPDATE webhook_delivery SET state = 'failed', last_error = ?3, ended_at_ms = ?4
         WHERE id IN (SELECT id FROM webhook_delivery WHERE account = ?1 AND state = 'pending'
                      ORDER BY created_at_ms DESC, id DESC LIMIT -1 OFFSET ?2)",
        params![account, max_pending, DROPPED, created_at_ms],
    )?;
    Ok(QueueDeliveryOutcome::Done { dropped })
}

fn give_up_pending(
    transaction: &Transaction<'_>,
    account: &str,
    now_ms: i64,
) -> rusqlite::Result<usize> {
    transaction.execute(
        "UPDATE webhook_delivery SET state = 'failed', last_error = ?2, ended_at_ms = ?3
         WHERE account = ?1 AND state = 'pending'",
        params![account, REMOVED, now_ms],
    )
}

/// Removes a webhook in the caller's transaction. Returns false if there is none.
pub(crate) fn remove(
    transaction: &Transaction<'_>,
    account: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    give_up_pending(transaction, account, now_ms)?;
    let sql = "DELETE FROM webhook WHERE account = ?1";
    Ok(transaction.execute(sql, [account])? > 0)
}

fn webhook_row(row: &Row<'_>) -> rusqlite::Result<WebhookRow> {
    let old_secret: Option<[u8; 32]> = row.get(2)?;
    let disabled_at_ms: Option<i64> = row.get(5)?;
    let because: String = row.get(6)?;
    Ok(WebhookRow {
        url: first_column(row)?,
        secret: row.get(1)?,
        old_secret: old_secret.zip(row.get(3)?),
        created_at_ms: row.get(4)?,
        disabled: disabled_at_ms.map(|at_ms| (at_ms, because)),
    })
}

fn due_delivery(row: &Row<'_>) -> rusqlite::Result<DueDelivery> {
    Ok(DueDelivery {
        id: first_column(row)?,
        account: row.get(1)?,
        event: row.get(2)?,
        body: row.get(3)?,
        created_at_ms: row.get(4)?,
        attempts: row.get(5)?,
    })
}

fn log_row(row: &Row<'_>) -> rusqlite::Result<DeliveryLogRow> {
    Ok(DeliveryLogRow {
        id: first_column(row)?,
        event: row.get(1)?,
        created_at_ms: row.get(2)?,
        next_at_ms: row.get(3)?,
        attempts: row.get(4)?,
        state: row.get(5)?,
        last_status: row.get(6)?,
        last_error: row.get(7)?,
        took_ms: row.get(8)?,
    })
}
