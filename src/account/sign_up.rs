//! Opening an account: a row in `app.db`, then an account with its trial in the ledger.
//!
//! Two files, so a crash can fall between them. The row says what trial was promised; the ledger's
//! grant goes by a reference and never counts twice; so whoever starts finishes what is missing.
//! Used by the sidecar and the command line alike.

use super::audit::Told;
use super::{
    Account, AccountError, Accounts, By, Role, invite, mailbox, new_id, normal_email, password,
};
use crate::billing::{Billing, Trial};
use crate::config::{Signup, SignupMode};
use crate::failpoint::{self, Point};
use crate::store::StoreError;
use crate::store::app::AccountRow;
use crate::store::app::people::{Opened, Terms};
use serde_json::json;

/// What an account is opened with.
#[derive(Clone, Copy)]
pub struct NewAccount<'a> {
    pub email: &'a str,
    /// Without one there is no sign-in to the dashboard.
    pub password: Option<&'a str>,
    pub role: Role,
    pub trial: Option<Trial>,
}

/// Under what an account is opened, beyond what it is.
#[derive(Clone, Copy, Default)]
struct Conditions<'a> {
    terms: Terms<'a>,
    /// The administrator who opens it.
    by: Option<&'a By>,
    /// Nobody who may vouch for it.
    is_stranger: bool,
}

/// An account that was opened, with the trial that it got.
#[derive(Debug)]
pub struct SignedUp {
    pub account: Account,
    pub trial: Option<Trial>,
}

/// A day of the trials' budget begins at 00:00 UTC.
const DAY_MS: i64 = 86_400_000;

impl Accounts {
    /// Inserts the account's row alone; [`sign_up_with`] is the whole. Slow where there is a
    /// password: call it on a blocking thread.
    ///
    /// # Errors
    /// A bad e-mail or password, an e-mail that has an account, or the store failed.
    pub fn create_account(
        &self,
        new: &NewAccount<'_>,
        now_ms: i64,
    ) -> Result<Account, AccountError> {
        Ok(self
            .create_account_under(new, Conditions::default(), now_ms)?
            .account)
    }

    fn create_account_under(
        &self,
        new: &NewAccount<'_>,
        conditions: Conditions<'_>,
        now_ms: i64,
    ) -> Result<SignedUp, AccountError> {
        let email = normal_email(new.email)?;
        let password = match new.password {
            Some(text) if !password::is_allowed(text) => return Err(AccountError::BadPassword),
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
        let told = conditions.by.map(|by| {
            let what =
                json!({"role": row.role.name(), "trial": new.trial.map(|trial| trial.credits)});
            (by, Told::new("account.create", &row.id, &what))
        });
        let terms = Terms {
            told: told.as_ref().map(|(by, told)| told.by(by, now_ms)),
            ..conditions.terms
        };
        let mailbox = mailbox::of(&row.email);
        // What an operator gives is given.
        let had = conditions
            .is_stranger
            .then(|| self.past_trial(&row.email))
            .transpose()?;
        let terms = Terms {
            past_trial: had.as_ref(),
            ..terms
        };
        match self
            .db
            .insert_account(&row, password.as_deref(), mailbox.as_deref(), &terms)?
        {
            Opened::Done => Ok(SignedUp {
                account: row.into(),
                trial: new.trial,
            }),
            Opened::WithoutTrial => Ok(SignedUp {
                account: row.into(),
                trial: None,
            }),
            Opened::EmailTaken => Err(AccountError::EmailTaken),
            Opened::NoInvite => Err(AccountError::NoInvite),
            Opened::BudgetSpent => Err(AccountError::TrialsSpent),
        }
    }

    /// Accounts that the ledger is not yet known to have, with the trial that each was promised.
    ///
    /// # Errors
    /// The store failed.
    pub fn accounts_without_grant(&self) -> Result<Vec<(String, Option<Trial>)>, StoreError> {
        let rows = self.db.accounts_without_grant()?;
        Ok(rows
            .into_iter()
            .map(|row| (row.id.clone(), row.trial()))
            .collect())
    }
}

/// The trial that a sign-up at `now_ms` gets; `None` where the settings give none.
fn trial(signup: &Signup, now_ms: i64) -> Option<Trial> {
    let some = signup.trial_ms > 0 && signup.trial_credits.is_positive();
    some.then(|| Trial {
        credits: signup.trial_credits,
        ends_at_ms: now_ms.saturating_add(signup.trial_ms),
    })
}

/// A stranger signs up, as far as the settings let strangers in; without a trial where the mailbox
/// had one already.
///
/// # Errors
/// Sign-up is closed, or as [`sign_up_with`].
pub fn sign_up(
    accounts: &Accounts,
    billing: &Billing,
    signup: &Signup,
    stranger: &Stranger<'_>,
    now_ms: i64,
) -> Result<SignedUp, AccountError> {
    let invite = match signup.mode {
        SignupMode::Closed => return Err(AccountError::SignUpClosed),
        SignupMode::Open => None,
        SignupMode::Invite => Some(invite::hash(stranger.invite)),
    };
    let budget = signup.trial_budget_per_day;
    let terms = Terms {
        invite: invite.as_ref(),
        one_per_mailbox: signup.one_account_per_mailbox,
        budget: budget
            .is_positive()
            .then(|| (budget, now_ms - now_ms.rem_euclid(DAY_MS))),
        ..Terms::default()
    };
    let (email, password) = (stranger.email, Some(stranger.password));
    let new = NewAccount {
        email,
        password,
        role: Role::Member,
        trial: trial(signup, now_ms),
    };
    open_under(
        accounts,
        billing,
        &new,
        Conditions {
            terms,
            by: None,
            is_stranger: true,
        },
        now_ms,
    )
}

/// What a stranger says at sign-up.
#[derive(Clone, Copy)]
pub struct Stranger<'a> {
    pub email: &'a str,
    pub password: &'a str,
    /// An invitation's code; looked at where sign-up is for the invited.
    pub invite: &'a str,
}

impl NewAccount<'_> {
    /// The same with the trial that the settings give.
    #[must_use]
    pub fn with_trial(self, signup: &Signup, now_ms: i64) -> Self {
        Self {
            trial: trial(signup, now_ms),
            ..self
        }
    }
}

/// Opens an account in both files.
///
/// # Errors
/// As [`Accounts::create_account`]; where only the ledger failed, the account exists and
/// [`complete_sign_ups`] will finish it.
pub fn sign_up_with(
    accounts: &Accounts,
    billing: &Billing,
    new: &NewAccount<'_>,
    now_ms: i64,
) -> Result<Account, AccountError> {
    Ok(open_under(accounts, billing, new, Conditions::default(), now_ms)?.account)
}

/// The same in an administrator's name, which the audit log tells.
///
/// # Errors
/// As [`sign_up_with`].
pub fn open_by(
    accounts: &Accounts,
    billing: &Billing,
    new: &NewAccount<'_>,
    by: &By,
    now_ms: i64,
) -> Result<Account, AccountError> {
    Ok(open_under(
        accounts,
        billing,
        new,
        Conditions {
            by: Some(by),
            ..Conditions::default()
        },
        now_ms,
    )?
    .account)
}

fn open_under(
    accounts: &Accounts,
    billing: &Billing,
    new: &NewAccount<'_>,
    conditions: Conditions<'_>,
    now_ms: i64,
) -> Result<SignedUp, AccountError> {
    let opened = accounts.create_account_under(new, conditions, now_ms)?;
    let account = &opened.account.id;
    failpoint::pass(Point::AccountKept);
    billing.open_account(account, opened.trial, now_ms)?;
    failpoint::pass(Point::AccountGranted);
    accounts.db.mark_granted(account, now_ms)?;
    Ok(opened)
}

/// Finishes the sign-ups that a crash cut in two. Every face calls it once when it starts. Says how
/// many there were.
///
/// # Errors
/// A store failed; what was finished stays finished.
pub fn complete_sign_ups(
    accounts: &Accounts,
    billing: &Billing,
    now_ms: i64,
) -> Result<usize, StoreError> {
    let missing = accounts.accounts_without_grant()?;
    for (account, trial) in &missing {
        billing.open_account(account, *trial, now_ms)?;
        accounts.db.mark_granted(account, now_ms)?;
    }
    Ok(missing.len())
}
