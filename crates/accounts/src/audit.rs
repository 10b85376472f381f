//! Runs the actions of administrators and logs them. An action that changes only `app.db` writes
//! its line in the same transaction. Any other action logs an attempt first and an outcome
//! afterwards. Thus no action is missing from the log.
//!
//! The dashboard, the admin interface and the command line all act through [`AuditedAccounts`].
//! This file must not receive a secret, because lines contain ids, amounts, references and reasons.

use super::accounts::{Account, AccountStatus, Accounts};
use super::error::{AccountError, ActError};
use super::views::AuditLog;
use crate::db::Role;
use crate::db::account_lifecycle::CloseAccountOutcome;
use crate::db::audit::{AuditEntry, AuditFilter, AuditOutcome, AuditRow, OutcomeKind};
use crate::key_settings::RateSettings;
use ledger::StoreError;
use ledger::{BalanceChange, BalanceChangeKind, PostingResult};
use serde_json::{Value, json};

/// An actor and the address from which they act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Id of an account, or name of the user who runs a command.
    pub actor: String,
    pub address: String,
}

#[derive(Debug, Default)]
pub struct AuditLogReport {
    pub lines: u64,
    /// The first errors, as pairs of a line number and an error.
    pub findings: Vec<(i64, &'static str)>,
}

const DAY_MS: i64 = 86_400_000;

/// How the references of the entries begin by which a merge takes and gives credits.
pub const MERGE_REFERENCES: [&str; 2] = ["merge-out:", "merge-in:"];

/// Maximum number of findings. Without it, a gap in the log could list every line.
const MAX_FINDINGS: usize = 100;

/// Access to the accounts in the name of an actor whose actions are logged.
pub struct AuditedAccounts<'a> {
    pub(crate) accounts: &'a Accounts,
    by: &'a Actor,
    now_ms: i64,
}

/// The change that an action made, as JSON.
pub(crate) struct AuditChange {
    act: &'static str,
    object: String,
    before: String,
    after: String,
}

impl AuditChange {
    pub(crate) fn new(act: &'static str, object: &str, after: &Value) -> Self {
        let after = if after.is_null() {
            String::new()
        } else {
            after.to_string()
        };
        Self {
            act,
            object: object.to_owned(),
            before: String::new(),
            after,
        }
    }

    fn with_before(self, before: &Value) -> Self {
        Self {
            before: before.to_string(),
            ..self
        }
    }

    pub(crate) fn to_entry<'a>(&'a self, by: &'a Actor, at_ms: i64) -> AuditEntry<'a> {
        let Self {
            act,
            object,
            before,
            after,
        } = self;
        AuditEntry {
            at_ms,
            actor: &by.actor,
            address: &by.address,
            act,
            object,
            before,
            after,
        }
    }
}

impl Accounts {
    /// Returns access to the accounts in the name of an actor whose actions are logged.
    pub fn with_actor<'a>(&'a self, by: &'a Actor, now_ms: i64) -> AuditedAccounts<'a> {
        AuditedAccounts {
            accounts: self,
            by,
            now_ms,
        }
    }
}

impl AuditLog<'_> {
    /// Returns the actions, newest first, up to `limit` of them before the line `before`.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn rows(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.find_rows(&AuditFilter::default(), before, limit)
    }

    /// Returns the actions that match `filter`, newest first, up to `limit` of them before the line
    /// `before`. An attempt and its outcome form one row, at the position of the attempt.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn find_rows(
        &self,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        self.0.db.audit().find_audit_rows(filter, before, limit)
    }

    /// Checks that no line of the audit log was changed, and that none before the last line is
    /// missing.
    ///
    /// # Errors
    /// Returns an error if the database fails. Errors in the log itself are findings.
    pub fn verify(&self) -> Result<AuditLogReport, StoreError> {
        let mut report = AuditLogReport::default();
        let (mut seq, mut hash) = (0, vec![0; 32]);
        self.0.db.audit().for_each_audit_row(&mut |line| {
            let wrong = [
                (line.seq != seq + 1, "the line before this one is missing"),
                (
                    line.prev != hash,
                    "the hash of the line before this one does not match",
                ),
                (
                    line.expected_hash().as_slice() != line.hash,
                    "this line was changed after it was written",
                ),
            ];
            report.lines += 1;
            let remaining = MAX_FINDINGS.saturating_sub(report.findings.len());
            let found = wrong
                .into_iter()
                .filter(|(is_wrong, _)| *is_wrong)
                .map(|(_, what)| (line.seq, what));
            report.findings.extend(found.take(remaining));
            (seq, hash) = (line.seq, line.hash);
        })?;
        Ok(report)
    }
}

impl AuditedAccounts<'_> {
    pub(crate) fn audit_entry<'a>(&'a self, change: &'a AuditChange) -> AuditEntry<'a> {
        change.to_entry(self.by, self.now_ms)
    }

    pub(crate) fn by(&self) -> &Actor {
        self.by
    }

    pub(crate) fn actor(&self) -> &str {
        &self.by.actor
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// Sets an account's status. Returns false if the account does not exist or is deleted.
    ///
    /// # Errors
    /// Returns an error if the database fails; then nothing is changed or logged.
    pub fn set_status(&self, account: &str, status: AccountStatus) -> Result<bool, StoreError> {
        let Some(change) = self.status_change(account, status)? else {
            return Ok(false);
        };
        self.accounts.db.people().set_active(
            account,
            status == AccountStatus::Active,
            Some(&self.audit_entry(&change)),
        )
    }

    /// Sets an account's status for a remote administrator, who could not undo a lock-out. The last
    /// administrator who can sign in is not suspended. See [`AuditedAccounts::set_status`].
    ///
    /// # Errors
    /// Returns an error if the database fails; then nothing is changed or logged.
    pub fn set_status_remotely(
        &self,
        account: &str,
        status: AccountStatus,
    ) -> Result<CloseAccountOutcome, StoreError> {
        let Some(change) = self.status_change(account, status)? else {
            return Ok(CloseAccountOutcome::NoAccount);
        };
        if status == AccountStatus::Suspended {
            return self
                .accounts
                .db
                .people()
                .suspend_account(account, &self.audit_entry(&change));
        }
        let is_set = self.accounts.db.people().set_active(
            account,
            true,
            Some(&self.audit_entry(&change)),
        )?;
        Ok(if is_set {
            CloseAccountOutcome::Done
        } else {
            CloseAccountOutcome::NoAccount
        })
    }

    fn status_change(
        &self,
        account: &str,
        status: AccountStatus,
    ) -> Result<Option<AuditChange>, StoreError> {
        let Some(row) = self.accounts.db.people().account(account)? else {
            return Ok(None);
        };
        let act = if status == AccountStatus::Active {
            "account.resume"
        } else {
            "account.suspend"
        };
        let change = AuditChange::new(act, account, &json!({"status": status.name()}));
        Ok(Some(change.with_before(
            &json!({"status": Account::from(row).status.name()}),
        )))
    }

    /// Sets the role of an account, unless the change would remove the last administrator who can
    /// sign in. A role that the account has already changes nothing and is not logged.
    ///
    /// # Errors
    /// Returns an error if the database fails; then nothing is changed or logged.
    pub fn set_role(&self, account: &str, role: Role) -> Result<CloseAccountOutcome, StoreError> {
        let people = self.accounts.db.people();
        let Some(row) = people.account(account)?.filter(|row| !row.deleted) else {
            return Ok(CloseAccountOutcome::NoAccount);
        };
        if row.role == role {
            return Ok(CloseAccountOutcome::Done);
        }
        let change = AuditChange::new("account.role", account, &json!({"role": role.name()}))
            .with_before(&json!({"role": row.role.name()}));
        people.set_role(account, role, &self.audit_entry(&change))
    }

    /// Sets the rate settings of an account, and logs the previous ones. Returns false if there is
    /// no such account.
    ///
    /// # Errors
    /// Returns an error if a rate is above the maximum, or if the database fails.
    pub fn set_account_rates(
        &self,
        account: &str,
        rates: &RateSettings,
    ) -> Result<bool, AccountError> {
        rates.validate()?;
        let before = self.accounts.account_rates(account)?;
        let change = AuditChange::new("account.limit", account, &json!({"rates": rates}))
            .with_before(&json!({"rates": before}));
        let set = || match self.accounts.set_account_rates(account, rates)? {
            true => Ok(()),
            false => Err(AccountError::NoAccount),
        };
        match self.record_attempt_then_run(&change, set, |()| AuditOutcome::DONE) {
            Ok(()) => Ok(true),
            Err(AccountError::NoAccount) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Disables or enables a key. Returns false if there is no such live key.
    ///
    /// # Errors
    /// Returns an error if the database fails; then nothing is changed or logged.
    pub fn set_key_enabled(&self, key: &str, enabled: bool) -> Result<bool, StoreError> {
        let (act, status) = if enabled {
            ("key.enable", "active")
        } else {
            ("key.disable", "disabled")
        };
        let change = AuditChange::new(act, key, &json!({"status": status}));
        self.accounts
            .db
            .keys()
            .set_key_active(None, key, enabled, Some(&self.audit_entry(&change)))
    }

    /// Revokes a key. Returns false if there is no such live key.
    ///
    /// # Errors
    /// Returns an error if the database fails; then nothing is changed or logged.
    pub fn revoke_key(&self, key: &str) -> Result<bool, StoreError> {
        let change = AuditChange::new("key.revoke", key, &json!({"status": "revoked"}));
        self.accounts
            .db
            .keys()
            .revoke_key(None, key, self.now_ms, Some(&self.audit_entry(&change)))
    }

    /// Logs an attempt, runs an action that changes more than `app.db`, and logs its outcome.
    ///
    /// # Errors
    /// Returns an error if the attempt cannot be logged, in which case the action does not run.
    /// Otherwise, returns the error of `work`.
    pub fn record_then_run<T, E: ActError>(
        &self,
        act: &'static str,
        object: &str,
        what: &Value,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let change = AuditChange::new(act, object, what);
        self.record_attempt_then_run(&change, work, |_| AuditOutcome::DONE)
    }

    /// Logs a change of settings, then applies it; see [`AuditedAccounts::record_then_run`].
    ///
    /// # Errors
    /// Returns the errors of [`AuditedAccounts::record_then_run`].
    pub fn record_setting_then_run<T, E: ActError>(
        &self,
        act: &'static str,
        object: &str,
        (before, after): (&Value, &Value),
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let change = AuditChange::new(act, object, after).with_before(before);
        self.record_attempt_then_run(&change, work, |_| AuditOutcome::DONE)
    }

    /// Logs the attempt `change`, runs `work`, and logs its outcome. The outcome comes from
    /// `outcome_of` for a result, or else from the error.
    fn record_attempt_then_run<T, E: ActError>(
        &self,
        change: &AuditChange,
        work: impl FnOnce() -> Result<T, E>,
        outcome_of: impl FnOnce(&T) -> AuditOutcome,
    ) -> Result<T, E> {
        let (rows, entry) = (self.accounts.db.audit(), self.audit_entry(change));
        let seq = rows.append_attempt(&entry)?;
        let result = work();
        let outcome = match &result {
            Ok(value) => outcome_of(value),
            Err(error) => AuditOutcome {
                why: error.to_string(),
                ..AuditOutcome::new(match error.is_refusal() {
                    true => OutcomeKind::Refused,
                    false => OutcomeKind::Failed,
                })
            },
        };
        if let Err(error) = rows.append_outcome(seq, &entry, &outcome) {
            let (act, object) = (change.act, &change.object);
            let kind = outcome.kind.name();
            log::error!(
                "cannot record the outcome of {act} of {object} in the audit log, which was: {kind}: {error}"
            );
        }
        result
    }

    /// Logs that a rule forbade an action, which changed nothing, and returns the reason.
    pub(crate) fn record_refusal<T>(
        &self,
        change: &AuditChange,
        refusal: AccountError,
    ) -> Result<T, AccountError> {
        self.record_attempt_then_run(change, || Err(refusal), |_| AuditOutcome::DONE)
    }

    /// Logs the attempt of a posting, posts the entry, and logs whether the reference was new and
    /// how the balance changed.
    ///
    /// # Errors
    /// Returns the errors of [`AuditedAccounts::record_then_run`].
    pub fn record_posting(
        &self,
        act: &'static str,
        object: &str,
        what: &Value,
        work: impl FnOnce() -> Result<PostingResult, StoreError>,
    ) -> Result<PostingResult, StoreError> {
        let change = AuditChange::new(act, object, what);
        self.record_attempt_then_run(&change, work, |posted| AuditOutcome {
            credits: posted.is_new.then(|| posted.change.to_string()),
            ..AuditOutcome::new(match posted.is_new {
                true => OutcomeKind::Done,
                false => OutcomeKind::Repeated,
            })
        })
    }

    /// Logs and posts a change of a balance; see [`AuditedAccounts::record_posting`]. An account
    /// that is being merged into another one is not changed.
    ///
    /// # Errors
    /// Returns the errors of [`AuditedAccounts::record_then_run`].
    pub fn record_then_post(
        &self,
        change: &BalanceChange<'_>,
        work: impl FnOnce() -> Result<PostingResult, StoreError>,
    ) -> Result<PostingResult, StoreError> {
        let BalanceChange {
            kind,
            reference,
            account,
            amount,
            ..
        } = *change;
        let (act, reason) = match kind {
            BalanceChangeKind::Grant => ("account.grant", None),
            BalanceChangeKind::TopUp => ("account.topup", None),
            BalanceChangeKind::Adjust { reason } => ("account.adjust", Some(reason)),
            // The gateway posts purchases by itself, and their orders are the log.
            BalanceChangeKind::Purchase { .. }
            | BalanceChangeKind::Bonus { .. }
            | BalanceChangeKind::PaymentRefund { .. }
            | BalanceChangeKind::Dispute { .. }
            | BalanceChangeKind::Code => ("account.payment", None),
        };
        self.record_posting(
            act,
            account,
            &json!({"credits": amount, "ref": reference, "reason": reason}),
            || {
                self.check_unmerged(account, reference)?;
                work()
            },
        )
    }

    /// Refuses a posting to an account that is being merged into another one, and a reference that
    /// a merge may need.
    fn check_unmerged(&self, account: &str, reference: &str) -> Result<(), StoreError> {
        if MERGE_REFERENCES
            .iter()
            .any(|prefix| reference.starts_with(prefix))
        {
            return Err(StoreError::Refused(format!(
                "the reference {reference:?} is kept for merges of accounts: choose another one"
            )));
        }
        let merge = self.accounts.merges().find(account)?;
        match merge.filter(|merge| !merge.has_ended) {
            None => Ok(()),
            Some(merge) => Err(StoreError::Refused(merge.describe())),
        }
    }

    /// Logs that an actor read an object, at most once a day.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn record_daily(
        &self,
        act: &'static str,
        object: &str,
        what: &Value,
    ) -> Result<(), StoreError> {
        let change = AuditChange::new(act, object, what);
        let rows = self.accounts.db.audit();
        rows.append_audit_once(&self.audit_entry(&change), self.now_ms - DAY_MS)
    }

    /// Logs the start of an action, regardless of its outcome.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn record(&self, act: &'static str, object: &str, what: &Value) -> Result<(), StoreError> {
        let change = AuditChange::new(act, object, what);
        self.accounts
            .db
            .audit()
            .append_audit(&self.audit_entry(&change))
    }
}
