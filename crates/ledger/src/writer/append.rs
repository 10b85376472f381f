//! A batch of changes is one transaction of `ledger.db`.
//!
//! `writer/batch.rs` enters consecutive endings together. This file must not decide an amount.

use super::batch::{EndingBatch, EndingEntry};
use super::change::{AppendOutcome, LedgerBatch, LedgerChange};
use super::claim::{ClaimsOnAccount, subtract_claim};
use super::posting::{
    BalanceChange, PostingResult, Refund, SqlFailure, insert_change, insert_store_debit,
};
use super::store_events::{IngestEvent, enter_event};
use super::trial::{Posting, TrialExtension, insert_extension, insert_posting};
use crate::StoreError;
use crate::entry::ending::ending_detail;
use crate::reader::chain::EntryReference;
use crate::statements::applied::instance_number;
use crate::statements::chain::chain_head;
use crate::views::LedgerChanges;
use base::failpoint::{self, Point};
use credits::limits;
use credits::money::CreditSplit;
use rusqlite::Transaction;
use std::sync::atomic::Ordering;

impl LedgerChanges<'_> {
    /// Enters the changes of a batch in their order and in one commit, and then writes the last
    /// entry to the anchor. A change takes effect once, even if several calls or processes enter
    /// it. Returns one outcome for each change. The entries are durable when this function returns.
    ///
    /// # Errors
    /// Returns an error if the rules forbid one of the changes, if an account is not open, or if
    /// the ledger cannot be written; the whole batch is then rejected. If the outcome of a commit
    /// is unknown, the function finds it out before it returns, because a batch that the caller
    /// repeats would count twice as applied.
    pub fn append(&self, batch: &LedgerBatch<'_>) -> Result<Vec<AppendOutcome>, StoreError> {
        let Some(first) = batch.changes.first() else {
            return Ok(Vec::new());
        };
        let sql = sql_failure(first);
        let mut writer = self.0.writer();
        let transaction = writer.begin().map_err(sql)?;
        let commits = self.0.admission_rows.count_commits();
        let mut keeps_rows = true;
        let mut outcomes = Vec::with_capacity(batch.changes.len());
        while let Some(rest) = batch.changes.get(outcomes.len()..)
            && !rest.is_empty()
        {
            keeps_rows &= self.insert_next(&transaction, batch.instance_id, rest, &mut outcomes)?;
        }
        let is_ending = |change: &LedgerChange<'_>| matches!(change, LedgerChange::Ending { .. });
        let has_endings = batch.changes.iter().any(is_ending);
        let head = chain_head(&transaction).map_err(sql)?;
        transaction.commit().map_err(sql)?;
        if keeps_rows {
            writer.keep_rows(commits);
        }
        if has_endings {
            failpoint::hit(Point::AfterCommit);
        }
        if let Some(anchor) = &self.0.anchor {
            anchor.write(&head);
        }
        Ok(outcomes)
    }

    /// Refunds a debit or a part of it. All refunds of a debit together never exceed it. The part
    /// that was paid from paid credits is returned first. The part paid from the trial returns to a
    /// running trial, and as paid credits after its end, because they would expire at once in a
    /// trial that is over.
    ///
    /// # Errors
    /// Returns an error if the rules forbid the refund, or if the ledger cannot be written.
    pub fn refund(&self, refund: &Refund<'_>) -> Result<PostingResult, StoreError> {
        self.append_posting("", LedgerChange::Refund(*refund))
    }

    /// Returns whether the reference has been posted for a change of its kind.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn has_posted(&self, change: &BalanceChange<'_>) -> Result<bool, StoreError> {
        let (kind, reference) = (change.kind.name(), change.reference);
        let known = self
            .0
            .rows()
            .entry(EntryReference::Posting { kind, reference })?;
        Ok(known.is_some())
    }

    /// Posts a grant, a top-up or an adjustment. A debit never uses credits that running processes
    /// hold, and leaves no balance below zero; it uses paid credits first, and then a running
    /// trial. `claims` is called inside the transaction, so that its result and the balance belong
    /// together. A debit also ends the instance's claims on the account.
    ///
    /// # Errors
    /// Returns an error if the rules forbid the change, or if the ledger cannot be written.
    pub fn post_change(
        &self,
        change: &BalanceChange<'_>,
        instance_id: &str,
        claims: ClaimsOnAccount<'_>,
    ) -> Result<PostingResult, StoreError> {
        let change = *change;
        self.append_posting(instance_id, LedgerChange::Balance { change, claims })
    }

    /// Posts an adjustment that the shared store has already debited.
    ///
    /// # Errors
    /// Returns an error if the reference was used for a different change, if the ledger does not
    /// have that many credits yet, or if it cannot be written.
    pub fn post_store_debit(
        &self,
        change: &BalanceChange<'_>,
        taken: CreditSplit,
    ) -> Result<PostingResult, StoreError> {
        let change = *change;
        self.append_posting("", LedgerChange::StoreDebit { change, taken })
    }

    /// Posts an entry and changes the balance, once per kind and reference. Returns false if it was
    /// posted before.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written, if the account is not open, or if a
    /// balance would go below zero.
    pub fn post(&self, post: &Posting<'_>) -> Result<bool, StoreError> {
        let posted = self.append_posting("", LedgerChange::Posting(*post))?;
        Ok(posted.is_new)
    }

    /// Moves the end of a running trial to a later time. The entry changes no balance. It records
    /// the new end, so that the chain of hashes covers it.
    ///
    /// # Errors
    /// Returns an error if the account has no running trial, if the trial already ends later, or if
    /// the ledger cannot be written.
    pub fn extend_trial(&self, extension: &TrialExtension<'_>) -> Result<(), StoreError> {
        self.append_posting("", LedgerChange::TrialEnd(*extension))
            .map(drop)
    }

    /// Enters events of the store in one commit, each only once. Returns the ledger's debit, made
    /// now or earlier, for each event. Returns `None` for an event that cannot be entered, because
    /// its account is not open or a segment is missing that may contain the request.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written. No event was entered then.
    pub fn enter_store_events(
        &self,
        done: &[&IngestEvent],
    ) -> Result<Vec<Option<CreditSplit>>, StoreError> {
        let changes: Vec<_> = done
            .iter()
            .map(|event| LedgerChange::Event(event))
            .collect();
        let outcomes = self.append(&LedgerBatch {
            instance_id: "",
            changes: &changes,
        })?;
        let debited = |outcome| match outcome {
            AppendOutcome::Debited(debited) => debited,
            _ => None,
        };
        Ok(outcomes.into_iter().map(debited).collect())
    }

    fn append_posting(
        &self,
        instance_id: &str,
        change: LedgerChange<'_>,
    ) -> Result<PostingResult, StoreError> {
        let batch = LedgerBatch {
            instance_id,
            changes: &[change],
        };
        match self.append(&batch)?.pop() {
            Some(AppendOutcome::Posted(posted)) => Ok(posted),
            _ => Err(StoreError::Unusable("a posting has no outcome".into())),
        }
    }

    /// Enters the first one of `changes`. Endings that directly follow an ending are entered too.
    /// Returns whether the rows that admission has in memory stay right: see
    /// [`AdmissionCache::account`](crate::views::AdmissionCache::account).
    fn insert_next(
        &self,
        transaction: &Transaction<'_>,
        instance_id: &str,
        changes: &[LedgerChange<'_>],
        outcomes: &mut Vec<AppendOutcome>,
    ) -> Result<bool, StoreError> {
        let Some(change) = changes.first() else {
            return Ok(true);
        };
        let sql = sql_failure(change);
        let posted = match change {
            LedgerChange::Ending { .. } => {
                return self
                    .insert_endings(transaction, instance_id, changes, outcomes)
                    .map_err(sql);
            }
            LedgerChange::Event(event) => {
                let debited = enter_event(transaction, &self.0.segments, event).map_err(sql)?;
                outcomes.push(AppendOutcome::Debited(debited));
                return Ok(false);
            }
            LedgerChange::Posting(post) => insert_posting(transaction, post).map_err(sql)?,
            LedgerChange::Balance { change, claims } => {
                insert_change(transaction, change, instance_id, *claims, sql)?
            }
            LedgerChange::StoreDebit { change, taken } => {
                insert_store_debit(transaction, change, *taken, sql)?
            }
            LedgerChange::Refund(refund) => self.insert_refund(transaction, refund, sql)?,
            LedgerChange::TrialEnd(extension) => insert_extension(transaction, extension, sql)?,
        };
        outcomes.push(AppendOutcome::Posted(posted));
        Ok(false)
    }

    /// Enters the consecutive endings at the start of `changes` together. Returns like
    /// [`Self::insert_next`]: each ending must take from the account what the instance has settled,
    /// on a day that all spending in memory includes.
    fn insert_endings(
        &self,
        transaction: &Transaction<'_>,
        instance_id: &str,
        changes: &[LedgerChange<'_>],
        outcomes: &mut Vec<AppendOutcome>,
    ) -> rusqlite::Result<bool> {
        // The replay of a journal has no instance, because no running process has settled its
        // endings.
        let instance = (!instance_id.is_empty())
            .then(|| instance_number(transaction, instance_id))
            .transpose()?;
        let mut batch = EndingBatch::new(transaction, &self.0.segments, instance)?;
        let newest_first_day = self.0.newest_first_day.load(Ordering::Acquire);
        let mut keeps_rows = instance.is_some() && !self.has_handed_over();
        for change in changes {
            let LedgerChange::Ending { ending, freed } = *change else {
                break;
            };
            let outcome = match batch.enter(ending, ending_detail(ending)?)? {
                EndingEntry::New => AppendOutcome::Ended,
                EndingEntry::Known | EndingEntry::Sealed(_) => AppendOutcome::AlreadyEnded,
                EndingEntry::Withheld => {
                    outcomes.push(AppendOutcome::Withheld);
                    continue;
                }
            };
            outcomes.push(outcome);
            keeps_rows &= limits::day_number(ending.at_ms) >= newest_first_day;
            if self.has_handed_over() && freed != CreditSplit::ZERO {
                subtract_claim(transaction, instance_id, &ending.account, freed)?;
            }
            failpoint::hit(Point::MidCommit);
        }
        keeps_rows &= batch.is_as_settled();
        batch.write()?;
        Ok(keeps_rows)
    }
}

fn sql_failure(change: &LedgerChange<'_>) -> SqlFailure {
    match change {
        LedgerChange::Ending { .. } => |source| StoreError::sqlite("enter debits", source),
        LedgerChange::Posting(_) => |source| StoreError::sqlite("post to the ledger", source),
        LedgerChange::Balance { .. } | LedgerChange::StoreDebit { .. } => {
            |source| StoreError::sqlite("change a balance", source)
        }
        LedgerChange::TrialEnd(_) => |source| StoreError::sqlite("extend a trial", source),
        LedgerChange::Refund(_) => |source| StoreError::sqlite("refund a debit", source),
        LedgerChange::Event(_) => {
            |source| StoreError::sqlite("enter the shared store's events", source)
        }
    }
}
