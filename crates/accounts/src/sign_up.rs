//! Opens an account: first as a row in `app.db`, then with its trial in the ledger.
//!
//! A crash can happen between the two writes. The row contains the promised trial, and the ledger's
//! grant counts only once because of its reference. So the next process can complete the sign-up.

use super::accounts::{Account, Accounts};
use super::audit::{Actor, AuditChange};
use super::error::AccountError;
use super::id::new_id;
use super::identities::ProviderIdentity;
use super::{invite, mailbox, password};
use crate::db::account_lifecycle::{OpenAccountOutcome, SignUpTerms};
use crate::db::{AccountRow, Role};
use base::failpoint::{self, Point};
use config::{SignupMode, SignupSettings};
use credits::trial::Trial;
use ledger::{Ledger, StoreError};
use serde_json::json;

#[derive(Clone, Copy)]
pub struct NewAccount<'a> {
    pub email: &'a str,
    /// Password for the dashboard. Without a password, the holder cannot sign in.
    pub password: Option<&'a str>,
    pub role: Role,
    pub trial: Option<Trial>,
}

impl<'a> NewAccount<'a> {
    /// A member with neither password nor trial.
    pub fn new(email: &'a str) -> Self {
        Self {
            email,
            password: None,
            role: Role::Member,
            trial: None,
        }
    }
}

/// The conditions for opening an account, apart from its own data.
#[derive(Clone, Copy, Default)]
struct SignUpConditions<'a> {
    terms: SignUpTerms<'a>,
    /// Administrator who opens the account; `None` for a sign-up.
    by: Option<&'a Actor>,
    /// True if the holder signs up alone, so that no operator vouches for them.
    is_self_service: bool,
    /// True if the trial's credits wait until the e-mail is verified.
    trial_waits: bool,
}

/// An account that was opened, with its trial.
#[derive(Debug)]
pub struct SignUpResult {
    pub account: Account,
    pub trial: Option<Trial>,
}

/// Length of a day in ms. The daily trial budget restarts at 00:00 UTC.
const DAY_MS: i64 = 86_400_000;

impl Accounts {
    /// Inserts only the account's row; [`open_account`] does both steps. Hashing a password is
    /// slow, so call this function on a blocking thread.
    ///
    /// # Errors
    /// Returns an error if the e-mail or the password is not valid, if the e-mail already has an
    /// account, or if the database fails.
    pub fn create_account(
        &self,
        new: &NewAccount<'_>,
        now_ms: i64,
    ) -> Result<Account, AccountError> {
        Ok(self
            .create_account_with_conditions(new, SignUpConditions::default(), now_ms)?
            .account)
    }

    fn create_account_with_conditions(
        &self,
        new: &NewAccount<'_>,
        conditions: SignUpConditions<'_>,
        now_ms: i64,
    ) -> Result<SignUpResult, AccountError> {
        let email = mailbox::normalize_email(new.email)?;
        let password = match new.password {
            Some(text) if !password::is_allowed(text, &email) => {
                return Err(AccountError::BadPassword);
            }
            Some(text) => Some(password::hash(text)?),
            None => None,
        };
        let row = AccountRow {
            id: new_id("acct_", now_ms)?,
            email,
            role: new.role,
            active: true,
            deleted: false,
            created_at_ms: now_ms,
            trial: new.trial.map(|trial| (trial.credits, trial.ends_at_ms)),
            granted: false,
            organisation: None,
        };
        let change = conditions.by.map(|by| {
            let what =
                json!({"role": row.role.name(), "trial": new.trial.map(|trial| trial.credits)});
            (by, AuditChange::new("account.create", &row.id, &what))
        });
        let terms = SignUpTerms {
            audit_entry: change
                .as_ref()
                .map(|(by, change)| change.to_entry(by, now_ms)),
            ..conditions.terms
        };
        let mailbox = mailbox::canonical_address(&row.email);
        let terms = SignUpTerms {
            // A trial from an operator does not depend on an earlier one.
            one_trial: conditions.is_self_service,
            trial_waits: conditions.trial_waits,
            ..terms
        };
        match self.db.people().insert_account(
            &row,
            password.as_deref(),
            mailbox.as_deref(),
            &terms,
        )? {
            OpenAccountOutcome::Done => Ok(SignUpResult {
                account: row.into(),
                trial: new.trial,
            }),
            OpenAccountOutcome::WithoutTrial => Ok(SignUpResult {
                account: row.into(),
                trial: None,
            }),
            OpenAccountOutcome::EmailTaken => Err(AccountError::EmailTaken),
            OpenAccountOutcome::NoInvite => Err(AccountError::NoInvite),
            OpenAccountOutcome::BudgetSpent => Err(AccountError::TrialsSpent),
        }
    }
}

/// Returns the trial of a sign-up at `now_ms`; `None` if the settings grant none.
fn trial_offer(signup: &SignupSettings, now_ms: i64) -> Option<Trial> {
    let some = signup.trial_ms > 0 && signup.trial_credits.is_positive();
    some.then(|| Trial {
        credits: signup.trial_credits,
        ends_at_ms: now_ms.saturating_add(signup.trial_ms),
    })
}

/// Signs a new user up, if the settings allow it. A mailbox that already had a trial gets no other.
///
/// # Errors
/// Returns an error if sign-up is closed, or the errors of [`open_account`].
pub fn sign_up(
    accounts: &Accounts,
    ledger: &Ledger,
    signup: &SignupSettings,
    form: &SignUpForm<'_>,
    now_ms: i64,
) -> Result<SignUpResult, AccountError> {
    let conditions = SignUpConditions::default();
    sign_up_with(accounts, ledger, signup, form, conditions, now_ms)
}

/// Signs a new user up like [`sign_up`], but the trial's credits wait until the e-mail is verified,
/// while the trial's time starts at once. [`complete_sign_ups`] grants the credits.
///
/// # Errors
/// Returns the errors of [`sign_up`].
pub fn sign_up_unverified(
    accounts: &Accounts,
    ledger: &Ledger,
    signup: &SignupSettings,
    form: &SignUpForm<'_>,
    now_ms: i64,
) -> Result<SignUpResult, AccountError> {
    let conditions = SignUpConditions {
        trial_waits: true,
        ..SignUpConditions::default()
    };
    sign_up_with(accounts, ledger, signup, form, conditions, now_ms)
}

/// Signs a new user up like [`sign_up`], by an identity in the place of a password. Its provider
/// has verified the e-mail, so no trial waits. `by` names the provider in the audit log.
///
/// # Errors
/// Returns the errors of [`sign_up`].
pub fn sign_up_with_identity(
    accounts: &Accounts,
    ledger: &Ledger,
    signup: &SignupSettings,
    (identity, invite): (&ProviderIdentity, &str),
    by: &Actor,
    now_ms: i64,
) -> Result<SignUpResult, AccountError> {
    let form = SignUpForm {
        email: &identity.email,
        password: None,
        invite,
    };
    let conditions = SignUpConditions {
        terms: SignUpTerms {
            identity: Some(identity.to_new_row()),
            ..SignUpTerms::default()
        },
        by: Some(by),
        ..SignUpConditions::default()
    };
    sign_up_with(accounts, ledger, signup, &form, conditions, now_ms)
}

fn sign_up_with(
    accounts: &Accounts,
    ledger: &Ledger,
    signup: &SignupSettings,
    form: &SignUpForm<'_>,
    conditions: SignUpConditions<'_>,
    now_ms: i64,
) -> Result<SignUpResult, AccountError> {
    let invite = match signup.mode {
        SignupMode::Closed => return Err(AccountError::SignUpClosed),
        SignupMode::Open => None,
        SignupMode::Invite => Some(invite::hash_code(form.invite)),
    };
    if !signup.admits(&mailbox::normalize_email(form.email)?) {
        return Err(AccountError::OtherDomain(signup.domains.join(", ")));
    }
    let budget = signup.trial_budget_per_day;
    let terms = SignUpTerms {
        invite: invite.as_ref(),
        one_per_mailbox: signup.one_account_per_mailbox,
        budget: budget
            .is_positive()
            .then(|| (budget, now_ms - now_ms.rem_euclid(DAY_MS))),
        ..conditions.terms
    };
    let new = NewAccount {
        email: form.email,
        password: form.password,
        role: Role::Member,
        trial: trial_offer(signup, now_ms),
    };
    open_account_with_conditions(
        accounts,
        ledger,
        &new,
        SignUpConditions {
            terms,
            is_self_service: true,
            ..conditions
        },
        now_ms,
    )
}

#[derive(Clone, Copy)]
pub struct SignUpForm<'a> {
    pub email: &'a str,
    /// `None` for a sign-up by an identity.
    pub password: Option<&'a str>,
    /// Invitation code, which is used only if sign-up is by invitation.
    pub invite: &'a str,
}

impl NewAccount<'_> {
    #[must_use]
    pub fn with_trial(self, signup: &SignupSettings, now_ms: i64) -> Self {
        Self {
            trial: trial_offer(signup, now_ms),
            ..self
        }
    }
}

/// Opens an account in `app.db` and in the ledger.
///
/// # Errors
/// Returns the errors of [`Accounts::create_account`]. If only the ledger failed, the account
/// exists and [`complete_sign_ups`] will complete it.
pub fn open_account(
    accounts: &Accounts,
    ledger: &Ledger,
    new: &NewAccount<'_>,
    now_ms: i64,
) -> Result<Account, AccountError> {
    Ok(
        open_account_with_conditions(accounts, ledger, new, SignUpConditions::default(), now_ms)?
            .account,
    )
}

/// Opens an account like [`open_account`] for an administrator, with a line in the audit log.
///
/// # Errors
/// Returns the errors of [`open_account`].
pub fn open_account_as(
    accounts: &Accounts,
    ledger: &Ledger,
    new: &NewAccount<'_>,
    by: &Actor,
    now_ms: i64,
) -> Result<Account, AccountError> {
    Ok(open_account_with_conditions(
        accounts,
        ledger,
        new,
        SignUpConditions {
            by: Some(by),
            ..SignUpConditions::default()
        },
        now_ms,
    )?
    .account)
}

fn open_account_with_conditions(
    accounts: &Accounts,
    ledger: &Ledger,
    new: &NewAccount<'_>,
    conditions: SignUpConditions<'_>,
    now_ms: i64,
) -> Result<SignUpResult, AccountError> {
    let opened = accounts.create_account_with_conditions(new, conditions, now_ms)?;
    let account = &opened.account.id;
    failpoint::hit(Point::AccountKept);
    if open_without_credit(accounts, ledger, account, now_ms)? {
        return Ok(opened);
    }
    ledger
        .rows()
        .open_account_with_trial(account, opened.trial, now_ms)?;
    failpoint::hit(Point::AccountGranted);
    accounts.db.people().mark_granted(account, now_ms)?;
    Ok(opened)
}

/// Opens the ledger account of a user whose trial waits. Returns false if no trial waits. Every
/// sign-in calls this function, because a crash may have interrupted the sign-up.
///
/// # Errors
/// Returns an error if a database fails.
pub fn open_without_credit(
    accounts: &Accounts,
    ledger: &Ledger,
    account: &str,
    now_ms: i64,
) -> Result<bool, StoreError> {
    let Some(trial_ends_at_ms) = accounts.db.links().waiting_trial(account)? else {
        return Ok(false);
    };
    ledger
        .rows()
        .open_account(account, Some(trial_ends_at_ms), now_ms)?;
    Ok(true)
}

/// Completes the sign-ups that a crash interrupted, and returns their number. Every service calls
/// this function once when it starts.
///
/// # Errors
/// Returns an error if a database fails; completed sign-ups stay completed.
pub fn complete_sign_ups(
    accounts: &Accounts,
    ledger: &Ledger,
    now_ms: i64,
) -> Result<usize, StoreError> {
    let missing = accounts.directory().without_grant()?;
    for (account, trial) in &missing {
        ledger
            .rows()
            .open_account_with_trial(account, *trial, now_ms)?;
        accounts.db.people().mark_granted(account, now_ms)?;
    }
    Ok(missing.len())
}
