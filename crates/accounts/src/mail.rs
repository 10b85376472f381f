//! Provides the queue of mail to account holders, which `notify/mail.rs` fills and empties.
//!
//! This file must not depend on the text or the transport of a mail.

use super::AccountError;
use super::views::MailQueue;
use crate::db::mail::{MailQueueLimits, MailQueueSummary, OutgoingMailRow, QueueMailOutcome};
use ledger::StoreError;

impl MailQueue<'_> {
    /// Queues a mail.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn queue_mail(
        &self,
        mail: &OutgoingMailRow,
        limits: MailQueueLimits,
    ) -> Result<QueueMailOutcome, AccountError> {
        Ok(self.0.db.mail().queue_mail(mail, limits)?)
    }

    /// Returns due mails, and counts an attempt of each. No other caller gets these mails before
    /// `lease_ms` has passed.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn take_due_mail(
        &self,
        now_ms: i64,
        lease_ms: i64,
        limit: u32,
    ) -> Result<Vec<OutgoingMailRow>, StoreError> {
        self.0.db.mail().take_due_mail(now_ms, lease_ms, limit)
    }

    /// Records a failed attempt and the time of the next one.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn retry_mail(&self, id: &str, next_at_ms: i64, error: &str) -> Result<(), StoreError> {
        self.0.db.mail().retry_mail(id, next_at_ms, error)
    }

    /// Records that a mail was sent or, with an error, that it is given up.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn end_mail(&self, id: &str, error: Option<&str>, now_ms: i64) -> Result<(), StoreError> {
        self.0.db.mail().end_mail(id, error, now_ms)
    }

    /// Returns the number of mails that were sent since `since_ms`.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn mails_sent_since(&self, since_ms: i64) -> Result<u64, StoreError> {
        self.0.db.mail().mails_sent_since(since_ms)
    }

    /// Returns the state of the queue.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn mail_queue(&self) -> Result<MailQueueSummary, StoreError> {
        self.0.db.mail().mail_queue()
    }

    /// Deletes mails that ended before `before_ms`.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn purge_mail(&self, before_ms: i64) -> Result<usize, StoreError> {
        self.0.db.mail().purge_mail(before_ms)
    }
}
