//! Actions of administrators. Each has a line in the audit log: in the same transaction if the
//! action changes only `app.db`, or before the action.
//!
//! The dashboard, the admin interface and the command line all act through [`AuditedAccounts`].
//! Must not receive a secret: a line contains ids, amounts, references and reasons.

use super::accounts::{Account, AccountStatus, Accounts};
use super::error::AccountError;
use super::views::AuditLog;
use crate::db::Role;
use crate::db::account_lifecycle::CloseAccountOutcome;
use crate::db::audit::{AuditEntry, AuditFilter, AuditRow};
use crate::key_settings::RateSettings;
use ledger::StoreError;
use ledger::{BalanceChange, BalanceChangeKind};
use serde_json::{Value, json};
use std::fmt::Display;

/// Who acts, and from which address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Id of an account, or the user who runs a command.
    pub actor: String,
    pub address: String,
}

/// The result of checking the audit log.
#[derive(Debug, Default)]
pub struct AuditLogReport {
    pub lines: u64,
    /// The first errors: (line, error).
    pub findings: Vec<(i64, &'static str)>,
}

const DAY_MS: i64 = 86_400_000;

/// Maximum number of findings: a log with a gap in the middle could otherwise list every line.
const MAX_FINDINGS: usize = 100;

/// The accounts, with an actor whose actions are logged.
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
    /// Returns the accounts with an actor whose actions are logged.
    pub fn with_actor<'a>(&'a self, by: &'a Actor, now_ms: i64) -> AuditedAccounts<'a> {
        AuditedAccounts {
            accounts: self,
            by,
            now_ms,
        }
    }
}

impl AuditLog<'_> {
    /// Returns the lines, newest line first: at most `limit`, before the line `before`.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn rows(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.0.db.audit().audit_rows(before, limit)
    }

    /// Returns the lines that match `filter`, newest line first: at most `limit`, before the line
    /// `before`.
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

    /// Checks the whole audit log: no line was changed, and none before the last one is missing.
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

    /// Sets an account's status for an administrator who works remotely and could not undo it:
    /// refuses to suspend the last administrator who can sign in. See
    /// [`AuditedAccounts::set_status`].
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

    /// Sets the role of an account, unless it would take the rights of the last administrator who
    /// can sign in. A role that the account has already changes nothing and is not logged.
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

    /// Sets the rate settings of an account, and logs what they were. Returns false if there is no
    /// such account.
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
        let changes = (&json!({"rates": before}), &json!({"rates": rates}));
        self.record_setting_then_run("account.limit", account, changes, || {
            self.accounts.set_account_rates(account, rates)
        })
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

    /// Logs an action whose change is not in the same transaction, then runs it. If the action
    /// fails, logs that too. So no action is missing from the log, but a logged action may not have
    /// happened: for a posting, its reference shows which.
    ///
    /// # Errors
    /// Returns an error if the action cannot be logged, and then does not run it; or returns the
    /// error of `work`.
    pub fn record_then_run<T, E: From<StoreError> + Display>(
        &self,
        act: &'static str,
        object: &str,
        what: &Value,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.record_change_then_run(AuditChange::new(act, object, what), work)
    }

    /// Logs a change of settings, then makes it; see [`AuditedAccounts::record_then_run`].
    ///
    /// # Errors
    /// Returns the errors of [`AuditedAccounts::record_then_run`].
    pub fn record_setting_then_run<T, E: From<StoreError> + Display>(
        &self,
        act: &'static str,
        object: &str,
        (before, after): (&Value, &Value),
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let change = AuditChange::new(act, object, after).with_before(before);
        self.record_change_then_run(change, work)
    }

    fn record_change_then_run<T, E: From<StoreError> + Display>(
        &self,
        change: AuditChange,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let (act, object) = (change.act, change.object.clone());
        self.accounts
            .db
            .audit()
            .append_audit(&self.audit_entry(&change))?;
        work().inspect_err(|error| {
            let change = AuditChange::new(
                "refused",
                &object,
                &json!({"act": act, "why": error.to_string()}),
            );
            if let Err(error) = self
                .accounts
                .db
                .audit()
                .append_audit(&self.audit_entry(&change))
            {
                log::error!(
                    "cannot record in the audit log that {act} of {object} was refused: {error}"
                );
            }
        })
    }

    /// Logs a change of a balance, then posts it; see [`AuditedAccounts::record_then_run`].
    ///
    /// # Errors
    /// Returns an error if the change cannot be logged, and then does not post it; or returns the
    /// error of `work`.
    pub fn record_then_post<T>(
        &self,
        change: &BalanceChange<'_>,
        work: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
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
            // The gateway posts these by itself, and the orders are their log.
            BalanceChangeKind::Purchase { .. }
            | BalanceChangeKind::Bonus { .. }
            | BalanceChangeKind::PaymentRefund { .. }
            | BalanceChangeKind::Dispute { .. } => ("account.payment", None),
        };
        self.record_then_run(
            act,
            account,
            &json!({"credits": amount, "ref": reference, "reason": reason}),
            work,
        )
    }

    /// Logs that something was read, unless the same actor read the same within a day.
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

    /// Logs an action that is about to happen, if the error of the action itself is information
    /// enough.
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
