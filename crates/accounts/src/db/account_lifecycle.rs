//! Opens and closes accounts in `app.db`, and checks invitations. Each is one transaction.
//!
//! This file must not see a password or an invitation's code.

use super::audit::{self, AuditEntry};
use super::identities::{self, NewIdentityRow};
use super::organisations;
use super::past_mailbox::{hash_of_account, mailbox_hash};
use super::rows::{AccountRow, Role, first_column};
use super::views::AccountRows;
use credits::money::Micro;
use ledger::StoreError;
use rusqlite::{OptionalExtension, Transaction, params};
use serde_json::Value;

#[derive(Debug, Clone, Copy, Default)]
pub struct SignUpTerms<'a> {
    /// Hash of the invitation that the account uses up.
    pub invite: Option<&'a [u8; 32]>,
    /// True to refuse a mailbox that already has an account under another spelling.
    pub one_per_mailbox: bool,
    /// Maximum amount of trial credits, including this trial, promised since a time in ms.
    pub budget: Option<(Micro, i64)>,
    /// True if the mailbox must not get a second trial.
    pub one_trial: bool,
    /// True if the trial's credits wait until the e-mail is verified.
    pub trial_waits: bool,
    /// The identity that opens the account. Its provider has verified the e-mail.
    pub identity: Option<NewIdentityRow<'a>>,
    pub audit_entry: Option<AuditEntry<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum OpenAccountOutcome {
    Done,
    /// The account is open without a trial, because its mailbox had a trial before.
    WithoutTrial,
    /// The e-mail or the identity has an account.
    EmailTaken,
    /// The invitation does not exist, is used, or has expired.
    NoInvite,
    BudgetSpent,
}

/// The result of suspending or deleting an account, or of changing its role.
#[derive(Debug, PartialEq, Eq)]
pub enum CloseAccountOutcome {
    Done,
    NoAccount,
    /// The account is the last administrator who can sign in or use the admin API.
    LastAdministrator,
    /// The account is the last owner of an organisation.
    LastOwner,
}

/// Marks a trial whose credits wait until the e-mail is verified. The value replaces the time at
/// which the trial was granted. After verification the column becomes NULL, as for a sign-up that a
/// crash interrupted.
pub(crate) const WAITS_AT_MS: i64 = 0;

impl AccountRows<'_> {
    /// Opens an account. If the account is refused, nothing is written.
    pub fn insert_account(
        &self,
        row: &AccountRow,
        password: Option<&str>,
        mailbox: Option<&str>,
        terms: &SignUpTerms<'_>,
    ) -> Result<OpenAccountOutcome, StoreError> {
        self.0.write("insert an account", |transaction| {
            let had_one = row.trial.is_some() && terms.one_trial && had_trial(transaction, row, mailbox)?;
            let trial = row.trial.filter(|_| !had_one);
            if let Some(refused) = find_refusal(transaction, row, trial, mailbox, terms)? {
                return Ok(refused);
            }
            let (micro, ends) = trial.map(|(credits, ends)| (credits.get(), ends)).unzip();
            let granted_at_ms = (terms.trial_waits && trial.is_some()).then_some(WAITS_AT_MS);
            transaction.execute(
                "INSERT INTO account(id, email, mailbox, password, admin, viewer, status, created_at_ms,
                   trial_micro, trial_ends_at_ms, granted_at_ms, verified_at_ms)
                 VALUES(?1, ?2, ?3, ?4, ?5, ?6, 'active', ?7, ?8, ?9, ?10, ?11)",
                params![
                    row.id,
                    row.email,
                    mailbox,
                    password,
                    row.role == Role::Admin,
                    row.role == Role::Viewer,
                    row.created_at_ms,
                    micro,
                    ends,
                    granted_at_ms,
                    terms.identity.map(|_| row.created_at_ms)
                ],
            )?;
            if let Some(identity) = &terms.identity {
                identities::insert(transaction, &row.id, identity, row.created_at_ms)?;
                organisations::join_by_domain(transaction, &row.id, row.created_at_ms)?;
            }
            if let Some(hash) = terms.invite {
                transaction.execute(
                    "UPDATE invite SET used_by = ?2, used_at_ms = ?3 WHERE hash = ?1",
                    params![hash, row.id, row.created_at_ms],
                )?;
            }
            if let Some(act) = &terms.audit_entry {
                let after = if had_one { without_trial(act.after) } else { act.after.to_owned() };
                audit::append(transaction, &AuditEntry { after: &after, ..*act })?;
            }
            Ok(if had_one { OpenAccountOutcome::WithoutTrial } else { OpenAccountOutcome::Done })
        })
    }

    /// Closes an account permanently: revokes its keys and ends its sessions and its sign-in. The
    /// e-mail is replaced by `pseudonym`, so that the address is available again. The hash of the
    /// mailbox is kept if the account had a trial, and for the organisations that it was in.
    pub fn delete_account(
        &self,
        id: &str,
        pseudonym: &str,
        now_ms: i64,
        audit_entry: &AuditEntry<'_>,
    ) -> Result<CloseAccountOutcome, StoreError> {
        self.0.write(
            "delete an account",
            |transaction| match find_close_refusal(transaction, id)? {
                Some(refused) => Ok(refused),
                None => close(transaction, id, pseudonym, now_ms, audit_entry),
            },
        )
    }

    pub fn set_role(
        &self,
        id: &str,
        role: Role,
        audit_entry: &AuditEntry<'_>,
    ) -> Result<CloseAccountOutcome, StoreError> {
        self.0.write("set the role of an account", |transaction| {
            if role != Role::Admin && is_last_administrator(transaction, id)? {
                return Ok(CloseAccountOutcome::LastAdministrator);
            }
            let rows = transaction.execute(
                "UPDATE account SET admin = ?2, viewer = ?3
                 WHERE id = ?1 AND deleted_at_ms IS NULL AND organisation IS NULL",
                params![id, role == Role::Admin, role == Role::Viewer],
            )?;
            if rows == 0 {
                return Ok(CloseAccountOutcome::NoAccount);
            }
            audit::append(transaction, audit_entry)?;
            Ok(CloseAccountOutcome::Done)
        })
    }

    /// Returns the accounts that were deleted since `since_ms`.
    pub fn accounts_deleted_since(&self, since_ms: i64) -> Result<Vec<String>, StoreError> {
        self.0.read("list deleted accounts", |connection| {
            connection
                .prepare_cached("SELECT id FROM account WHERE deleted_at_ms >= ?1")?
                .query_map([since_ms], first_column)?
                .collect()
        })
    }

    /// Suspends an account until it is activated again.
    pub fn suspend_account(
        &self,
        id: &str,
        audit_entry: &AuditEntry<'_>,
    ) -> Result<CloseAccountOutcome, StoreError> {
        self.0.write("suspend an account", |transaction| {
            if is_last_administrator(transaction, id)? {
                return Ok(CloseAccountOutcome::LastAdministrator);
            }
            let sql =
                "UPDATE account SET status = 'suspended' WHERE id = ?1 AND deleted_at_ms IS NULL";
            if transaction.execute(sql, [id])? == 0 {
                return Ok(CloseAccountOutcome::NoAccount);
            }
            audit::append(transaction, audit_entry)?;
            Ok(CloseAccountOutcome::Done)
        })
    }
}

/// Returns why an account cannot be deleted, if so.
pub(crate) fn find_close_refusal(
    transaction: &Transaction<'_>,
    id: &str,
) -> rusqlite::Result<Option<CloseAccountOutcome>> {
    if is_last_administrator(transaction, id)? {
        return Ok(Some(CloseAccountOutcome::LastAdministrator));
    }
    let is_last_owner = organisations::is_last_owner(transaction, id)?;
    Ok(is_last_owner.then_some(CloseAccountOutcome::LastOwner))
}

/// Deletes an account; see [`AccountRows::delete_account`].
pub(crate) fn close(
    transaction: &Transaction<'_>,
    id: &str,
    pseudonym: &str,
    now_ms: i64,
    audit_entry: &AuditEntry<'_>,
) -> rusqlite::Result<CloseAccountOutcome> {
    let Some(mailbox) = hash_of_account(transaction, id)? else {
        return Ok(CloseAccountOutcome::NoAccount);
    };
    transaction.execute(
        "INSERT OR IGNORE INTO past_trial(mailbox, deleted_at_ms)
         SELECT ?2, ?3 FROM account WHERE id = ?1 AND trial_micro IS NOT NULL",
        params![id, mailbox, now_ms],
    )?;
    transaction.execute(
        "UPDATE account SET email = ?2, mailbox = NULL, password = NULL, admin = 0, viewer = 0,
           status = 'suspended',
           deleted_at_ms = ?3
         WHERE id = ?1",
        params![id, pseudonym, now_ms],
    )?;
    revoke_keys(transaction, id, now_ms)?;
    organisations::end_memberships(transaction, id, &mailbox, audit_entry)?;
    // A key's name may contain personal data, so it is deleted.
    transaction.execute(
        "UPDATE api_key SET name = '(deleted)' WHERE account = ?1 OR member = ?1",
        [id],
    )?;
    transaction.execute("DELETE FROM session WHERE account = ?1", [id])?;
    audit::append(transaction, audit_entry)?;
    Ok(CloseAccountOutcome::Done)
}

/// Returns whether the account is the last active administrator. An account without a password and
/// without an identity cannot sign in, so it does not count as a replacement for one that can.
pub(crate) fn is_last_administrator(
    transaction: &Transaction<'_>,
    id: &str,
) -> rusqlite::Result<bool> {
    transaction.query_row(
        "WITH administrator(id, active, signs_in) AS (
           SELECT id, status = 'active',
             password IS NOT NULL OR EXISTS(SELECT 1 FROM identity WHERE account = account.id)
           FROM account WHERE admin = 1 AND deleted_at_ms IS NULL)
         SELECT EXISTS(
           SELECT 1 FROM administrator AS it WHERE id = ?1 AND NOT EXISTS(
             SELECT 1 FROM administrator AS other
             WHERE other.id <> ?1 AND other.active AND other.signs_in >= it.signs_in))",
        [id],
        first_column,
    )
}

/// Revokes all keys of an account, and those of its person in organisations.
pub(crate) fn revoke_keys(
    transaction: &Transaction<'_>,
    account: &str,
    now_ms: i64,
) -> rusqlite::Result<usize> {
    transaction.execute(
        "UPDATE api_key SET status = 'revoked', revoked_at_ms = ?2
         WHERE (account = ?1 OR member = ?1) AND status <> 'revoked'",
        params![account, now_ms],
    )
}

/// Returns the audit log's text of a new account for one that gets no trial.
fn without_trial(after: &str) -> String {
    let mut after: Value = serde_json::from_str(after).unwrap_or_default();
    after["trial"] = Value::Null;
    after.to_string()
}

/// Returns whether a mailbox had a trial, as a deleted account or under another spelling.
fn had_trial(
    transaction: &Transaction<'_>,
    row: &AccountRow,
    mailbox: Option<&str>,
) -> rusqlite::Result<bool> {
    let hash = mailbox_hash(transaction, &row.email)?;
    transaction.query_row(
        "SELECT EXISTS(SELECT 1 FROM past_trial WHERE mailbox = ?1)
             OR EXISTS(SELECT 1 FROM account WHERE mailbox = ?2 AND trial_micro IS NOT NULL)",
        params![hash, mailbox],
        first_column,
    )
}

/// Returns the reason for which an account is not opened. The invitation is checked first, so that
/// a caller without one learns nothing about e-mails.
fn find_refusal(
    transaction: &Transaction<'_>,
    row: &AccountRow,
    trial: Option<(Micro, i64)>,
    mailbox: Option<&str>,
    terms: &SignUpTerms<'_>,
) -> rusqlite::Result<Option<OpenAccountOutcome>> {
    if let Some(hash) = terms.invite {
        let is_good: Option<bool> = transaction
            .query_row(
                "SELECT used_by IS NULL AND expires_at_ms > ?2 FROM invite WHERE hash = ?1",
                params![hash, row.created_at_ms],
                first_column,
            )
            .optional()?;
        if is_good != Some(true) {
            return Ok(Some(OpenAccountOutcome::NoInvite));
        }
    }
    let mailbox = mailbox.filter(|_| terms.one_per_mailbox);
    let is_taken: bool = transaction.query_row(
        "SELECT EXISTS(SELECT 1 FROM account WHERE email = ?1) OR EXISTS(SELECT 1 FROM account WHERE mailbox = ?2)",
        params![row.email, mailbox],
        first_column,
    )?;
    let is_taken = is_taken
        || match &terms.identity {
            Some(identity) => identities::has_account(transaction, identity)?,
            None => false,
        };
    if is_taken {
        return Ok(Some(OpenAccountOutcome::EmailTaken));
    }
    if let (Some((budget, since_ms)), Some((credits, _))) = (terms.budget, trial) {
        let promised: i64 = transaction.query_row(
            "SELECT ifnull(sum(trial_micro), 0) FROM account WHERE created_at_ms >= ?1 AND trial_micro IS NOT NULL",
            [since_ms],
            first_column,
        )?;
        if Micro::new(promised).plus(credits) > budget {
            return Ok(Some(OpenAccountOutcome::BudgetSpent));
        }
    }
    Ok(None)
}
