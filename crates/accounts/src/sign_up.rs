//! Opening an account: a row in `app.db`, then an account with its trial in the ledger.
//!
//! These are two files, so a crash can happen between the two writes. The row contains the promised
//! trial, and the ledger's grant has a reference and counts only once; so a process that starts can
//! complete the missing part. The sidecar and the command line both use it.

use super::accounts::{Account, Accounts};
use super::audit::{Actor, AuditChange};
use super::error::AccountError;
use super::id::new_id;
use super::{invite, mailbox, password};
use crate::db::account_lifecycle::{OpenAccountOutcome, SignUpTerms};
use crate::db::{AccountRow, Role};
use base::failpoint::{self, Point};
use config::{SignupMode, SignupSettings};
use credits::trial::Trial;
use ledger::{Ledger, StoreError};
use serde_json::json;

/// The data of a new account.
#[derive(Clone, Copy)]
pub struct NewAccount<'a> {
    pub email: &'a str,
    /// Password for the dashboard; without one, the holder cannot sign in.
    pub password: Option<&'a str>,
    pub role: Role,
    pub trial: Option<Trial>,
}

/// The conditions for opening an account, apart from its own data.
#[derive(Clone, Copy, Default)]
struct SignUpConditions<'a> {
    terms: SignUpTerms<'a>,
    /// Administrator who opens the account.
    by: Option<&'a Actor>,
    /// Whether the holder signs up by themselves, so that no operator vouches for them.
    is_self_service: bool,
    /// Whether the trial's credits wait until the e-mail is verified.
    trial_waits: bool,
}

/// An account that was opened, and its trial.
#[derive(Debug)]
pub struct SignUpResult {
    pub account: Account,
    pub trial: Option<Trial>,
}

/// Length of a day; the daily trial budget restarts at 00:00 UTC.
const DAY_MS: i64 = 86_400_000;

impl Accounts {
    /// Inserts only the account's row; [`open_account`] does both steps. Slow with a password: call
    /// it on a blocking thread.
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
        // A trial that an operator gives does not depend on an earlier one.
        let past_trial = conditions
            .is_self_service
            .then(|| self.past_trial_hash(&row.email))
            .transpose()?;
        let terms = SignUpTerms {
            past_trial: past_trial.as_ref(),
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

/// Returns the trial of a sign-up at `now_ms`; `None` if the settings have none.
fn trial_offer(signup: &SignupSettings, now_ms: i64) -> Option<Trial> {
    let some = signup.trial_ms > 0 && signup.trial_credits.is_positive();
    some.then(|| Trial {
        credits: signup.trial_credits,
        ends_at_ms: now_ms.saturating_add(signup.trial_ms),
    })
}

/// Signs a new user up, if the settings allow it; without a trial if the mailbox already had one.
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
    sign_up_with(accounts, ledger, signup, form, false, now_ms)
}

/// Signs a new user up like [`sign_up`], but the credits of the trial wait until the e-mail is
/// verified; its time runs from now on. [`complete_sign_ups`] grants them then.
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
    sign_up_with(accounts, ledger, signup, form, true, now_ms)
}

fn sign_up_with(
    accounts: &Accounts,
    ledger: &Ledger,
    signup: &SignupSettings,
    form: &SignUpForm<'_>,
    trial_waits: bool,
    now_ms: i64,
) -> Result<SignUpResult, AccountError> {
    let invite = match signup.mode {
        SignupMode::Closed => return Err(AccountError::SignUpClosed),
        SignupMode::Open => None,
        SignupMode::Invite => Some(invite::hash_code(form.invite)),
    };
    let budget = signup.trial_budget_per_day;
    let terms = SignUpTerms {
        invite: invite.as_ref(),
        one_per_mailbox: signup.one_account_per_mailbox,
        budget: budget
            .is_positive()
            .then(|| (budget, now_ms - now_ms.rem_euclid(DAY_MS))),
        ..SignUpTerms::default()
    };
    let (email, password) = (form.email, Some(form.password));
    let new = NewAccount {
        email,
        password,
        role: Role::Member,
        trial: trial_offer(signup, now_ms),
    };
    open_account_with_conditions(
        accounts,
        ledger,
        &new,
        SignUpConditions {
            terms,
            by: None,
            is_self_service: true,
            trial_waits,
        },
        now_ms,
    )
}

/// The form that a new user fills in.
#[derive(Clone, Copy)]
pub struct SignUpForm<'a> {
    pub email: &'a str,
    pub password: &'a str,
    /// Invitation code; used only if sign-up is by invitation.
    pub invite: &'a str,
}

impl NewAccount<'_> {
    /// Returns the account with the trial from the settings.
    #[must_use]
    pub fn with_trial(self, signup: &SignupSettings, now_ms: i64) -> Self {
        Self {
            trial: trial_offer(signup, now_ms),
            ..self
        }
    }
}

/// Opens an account in both files.
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

/// Opens an account in both files for an administrator, with a line in the audit log.
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

/// Opens an account in the ledger whose trial waits. Returns false if it has none that does. Every
/// sign-in calls it: a crash may have interrupted the sign-up.
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

/// Completes the sign-ups that a crash interrupted. Every service calls it once when it starts.
/// Returns their number.
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
