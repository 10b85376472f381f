//! Stores the mail queue as rows of `app.db`, including the outcome of each mail.
//!
//! A row contains a mail's subject matter. The text and its link are created when the mail is sent.
//! This file must not see an address, a link or a token.

use super::due::take_due;
use super::rows::first_column;
use super::views::MailRows;
use ledger::StoreError;
use rusqlite::{OptionalExtension, Row, Transaction, params};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingMailRow {
    pub id: String,
    pub account: String,
    /// Kind of the mail, such as `reset`.
    pub kind: String,
    /// Amounts and names for the text, as JSON.
    pub detail: String,
    pub created_at_ms: i64,
    /// Number of attempts that began, including the current one.
    pub attempts: u32,
}

/// Maximum numbers of waiting mails.
#[derive(Debug, Clone, Copy)]
pub struct MailQueueLimits {
    pub total: i64,
    pub per_account: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueMailOutcome {
    Done,
    NoAccount,
    /// The account has too many waiting mails.
    AccountFull,
    QueueFull,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MailQueueSummary {
    pub queued: u64,
    pub oldest_at_ms: Option<i64>,
    /// Latest error of a waiting mail; empty if none has failed.
    pub last_error: String,
}

impl MailRows<'_> {
    /// Queues a mail that is due at once.
    pub fn queue_mail(
        &self,
        row: &OutgoingMailRow,
        limits: MailQueueLimits,
    ) -> Result<QueueMailOutcome, StoreError> {
        self.0.write("queue a mail", |transaction| {
            insert(transaction, row, limits)
        })
    }

    /// Returns at most `limit` due mails, and counts an attempt of each. The mails are not due
    /// again before `lease_ms` has passed, so that no other process sends them. After a crash, they
    /// become due again.
    pub fn take_due_mail(
        &self,
        now_ms: i64,
        lease_ms: i64,
        limit: u32,
    ) -> Result<Vec<OutgoingMailRow>, StoreError> {
        let due = (
            "outgoing_mail WHERE state = 'queued' AND next_at_ms <= ?1",
            now_ms,
        );
        let take = "UPDATE outgoing_mail SET next_at_ms = ?1 + ?2, attempts = attempts + 1
             WHERE id IN (SELECT id FROM outgoing_mail WHERE state = 'queued' AND next_at_ms <= ?1
                          ORDER BY next_at_ms LIMIT ?3)
             RETURNING id, account, kind, detail, created_at_ms, attempts";
        let parameters = (now_ms, lease_ms, limit);
        take_due(self.0, "take due mail", due, take, parameters, mail_row)
    }

    /// Records a failed attempt and the time of the next one.
    pub fn retry_mail(&self, id: &str, next_at_ms: i64, error: &str) -> Result<(), StoreError> {
        self.0.write("queue a mail again", |transaction| {
            transaction
                .execute(
                    "UPDATE outgoing_mail SET next_at_ms = ?2, last_error = ?3 WHERE id = ?1 AND state = 'queued'",
                    params![id, next_at_ms, error],
                )
                .map(drop)
        })
    }

    /// Records that a mail was sent; with an `error`, that it was given up.
    pub fn end_mail(&self, id: &str, error: Option<&str>, now_ms: i64) -> Result<(), StoreError> {
        self.0.write("record the end of a mail", |transaction| {
            let state = if error.is_some() { "failed" } else { "sent" };
            transaction
                .execute(
                    "UPDATE outgoing_mail SET state = ?2, last_error = ?3, ended_at_ms = ?4
                     WHERE id = ?1 AND state = 'queued'",
                    params![id, state, error.unwrap_or_default(), now_ms],
                )
                .map(drop)
        })
    }

    /// Returns the number of mails that all processes sent since `since_ms`.
    pub fn mails_sent_since(&self, since_ms: i64) -> Result<u64, StoreError> {
        self.0.read("count sent mail", |connection| {
            connection
                .prepare_cached(
                    "SELECT count(*) FROM outgoing_mail WHERE ended_at_ms >= ?1 AND state = 'sent'",
                )?
                .query_row([since_ms], count)
        })
    }

    pub fn mail_queue(&self) -> Result<MailQueueSummary, StoreError> {
        self.0.read("read the mail queue", |connection| {
            let (queued, oldest_at_ms) = connection
                .prepare_cached(
                    "SELECT count(*), min(created_at_ms) FROM outgoing_mail WHERE state = 'queued'",
                )?
                .query_row([], |row| Ok((count(row)?, row.get(1)?)))?;
            let last_error: Option<String> = connection
                .prepare_cached(
                    "SELECT last_error FROM outgoing_mail WHERE state = 'queued' AND last_error <> ''
                     ORDER BY next_at_ms DESC LIMIT 1",
                )?
                .query_row([], first_column)
                .optional()?;
            Ok(MailQueueSummary {
                queued,
                oldest_at_ms,
                last_error: last_error.unwrap_or_default(),
            })
        })
    }

    /// Deletes mails that ended before `before_ms`. Returns their number.
    pub fn purge_mail(&self, before_ms: i64) -> Result<usize, StoreError> {
        self.0.write("delete old mail", |transaction| {
            transaction.execute(
                "DELETE FROM outgoing_mail WHERE ended_at_ms < ?1",
                [before_ms],
            )
        })
    }
}

/// Queues a mail in the caller's transaction.
pub(crate) fn insert(
    transaction: &Transaction<'_>,
    row: &OutgoingMailRow,
    limits: MailQueueLimits,
) -> rusqlite::Result<QueueMailOutcome> {
    let (queued, of_account, is_known): (i64, i64, bool) = transaction.query_row(
        "SELECT (SELECT count(*) FROM outgoing_mail WHERE state = 'queued'),
                (SELECT count(*) FROM outgoing_mail WHERE state = 'queued' AND account = ?1),
                EXISTS(SELECT 1 FROM account WHERE id = ?1 AND deleted_at_ms IS NULL)",
        [&row.account],
        |row| Ok((first_column(row)?, row.get(1)?, row.get(2)?)),
    )?;
    if !is_known {
        return Ok(QueueMailOutcome::NoAccount);
    }
    if of_account >= limits.per_account {
        return Ok(QueueMailOutcome::AccountFull);
    }
    if queued >= limits.total {
        return Ok(QueueMailOutcome::QueueFull);
    }
    transaction.execute(
        "INSERT INTO outgoing_mail(id, account, kind, detail, created_at_ms, next_at_ms)
         VALUES(?1, ?2, ?3, ?4, ?5, ?5)",
        params![row.id, row.account, row.kind, row.detail, row.created_at_ms],
    )?;
    Ok(QueueMailOutcome::Done)
}

/// Returns the number in the first column.
pub(crate) fn count(row: &Row<'_>) -> rusqlite::Result<u64> {
    let count: i64 = first_column(row)?;
    Ok(u64::try_from(count).unwrap_or_default())
}

fn mail_row(row: &Row<'_>) -> rusqlite::Result<OutgoingMailRow> {
    Ok(OutgoingMailRow {
        id: first_column(row)?,
        account: row.get(1)?,
        kind: row.get(2)?,
        detail: row.get(3)?,
        created_at_ms: row.get(4)?,
        attempts: row.get(5)?,
    })
}
