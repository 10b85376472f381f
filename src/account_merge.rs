//! Merges an account into another one for the admin API and the command line: its members, keys and
//! credits go there, and it is deleted. A merge that was interrupted is completed by another one.
//!
//! The entries of the merged account stay in the ledger, under its id. This file must not decide
//! which accounts can be merged: `crates/accounts/src/db/account_merges.rs` does.

use crate::billing::Billing;
use crate::shared_credit::wait_until_published;
use accounts::{
    Account, AccountError, AccountStatus, Accounts, Actor, AuditedAccounts, CloseAccountOutcome,
    MergeRefusal, MovedParts,
};
use base::clock::now_ms;
use base::failpoint::{self, Point};
use credits::money::{MAX_MICRO, Micro};
use ledger::{BalanceChange, BalanceChangeKind, EntryReference, LedgerEntry, PostingDetail};
use ledger::{PostingResult, StoreError};
use serde_json::{Value, json};

/// Which account is merged into which.
#[derive(Debug, Clone, Copy)]
pub struct AccountMerge<'a> {
    pub from: &'a Account,
    pub to: &'a Account,
    /// The member (by id) of the organisation `to` who gets the keys that nobody there has.
    pub member: Option<&'a str>,
    /// Account of the administrator who merges them. `None` for the command line.
    pub actor: Option<&'a str>,
}

/// What a merge has done.
#[derive(Debug)]
pub struct MergeReport {
    /// False if an earlier merge has completed everything.
    pub is_new: bool,
    /// Credits that the other account got, also by an earlier merge.
    pub credits: Micro,
    pub moved: MovedParts,
    /// Whether edges know the keys' new account.
    pub in_store: bool,
}

impl MergeReport {
    /// Describes the merge as JSON.
    pub fn to_json(&self, merge: &AccountMerge<'_>) -> Value {
        json!({
            "account_id": merge.to.id,
            "merged_from": merge.from.id,
            "credits": self.credits,
            "keys": self.moved.keys,
            "members": self.moved.members,
            "in_store": self.in_store,
            "is_new": self.is_new,
        })
    }
}

/// Merges an account into another one. Each step is skipped if it was done.
///
/// # Errors
/// Returns an error if a rule forbids it, in which case nothing is changed, or if a database, the
/// ledger or the shared store fails. The audit log has what was refused, in both accounts.
pub fn merge_accounts(
    accounts: &Accounts,
    billing: &Billing,
    by: &Actor,
    merge: &AccountMerge<'_>,
) -> Result<MergeReport, AccountError> {
    let AccountMerge {
        from, to, member, ..
    } = *merge;
    let acting = accounts.with_actor(by, now_ms());
    let before = json!({"account": from.id});
    let after = json!({"account": to.id, "person": member});
    let record = |object: &str, work: &mut dyn FnMut() -> Result<MergeReport, AccountError>| {
        acting.record_setting_then_run("account.merge", object, (&before, &after), work)
    };
    let steps = MergeSteps {
        accounts,
        billing,
        acting: &acting,
        merge,
        now_ms: now_ms(),
    };
    record(&from.id, &mut || record(&to.id, &mut || steps.run()))
}

struct MergeSteps<'a> {
    accounts: &'a Accounts,
    billing: &'a Billing,
    acting: &'a AuditedAccounts<'a>,
    merge: &'a AccountMerge<'a>,
    now_ms: i64,
}

impl MergeSteps<'_> {
    fn run(&self) -> Result<MergeReport, AccountError> {
        let AccountMerge {
            from, to, member, ..
        } = *self.merge;
        let taken = self.taken()?;
        if from.status == AccountStatus::Deleted {
            let taken = taken.ok_or(MergeRefusal::Deleted)?;
            return Ok(MergeReport {
                is_new: self.give(&taken)?,
                credits: paid_part(&taken),
                moved: MovedParts::default(),
                in_store: true,
            });
        }
        self.acting.check_merge(&from.id, &to.id, member)?;
        if taken.is_none() {
            self.check_credits()?;
        }
        let moved = self
            .acting
            .move_members_and_keys(&from.id, &to.id, member)?;
        let in_store = (moved.keys.iter()).all(|key| wait_until_published(self.accounts, key));
        let taken = match taken {
            Some(taken) => Some(taken),
            None => self.take()?,
        };
        let credits = match &taken {
            Some(taken) => {
                self.give(taken)?;
                paid_part(taken)
            }
            None => Micro::ZERO,
        };
        match self.acting.delete_account(&from.id)? {
            CloseAccountOutcome::Done | CloseAccountOutcome::NoAccount => {}
            CloseAccountOutcome::LastOwner => return Err(AccountError::LastOwner),
            CloseAccountOutcome::LastAdministrator => {
                return Err(MergeRefusal::Administrator.into());
            }
        }
        Ok(MergeReport {
            is_new: true,
            credits,
            moved,
            in_store,
        })
    }

    /// Returns the entry by which an earlier merge took the account's credits.
    fn taken(&self) -> Result<Option<LedgerEntry>, AccountError> {
        let kind = BalanceChangeKind::Adjust { reason: "" }.name();
        let reference = EntryReference::Posting {
            kind,
            reference: &self.out_reference(),
        };
        let Some(entry) = self.billing.ledger().rows().entry(reference)? else {
            return Ok(None);
        };
        let detail = PostingDetail::decode(&entry.detail)
            .map_err(|error| StoreError::Unusable(format!("entry {}: {error}", entry.seq)))?;
        let reason = detail.reason.unwrap_or_default();
        if reason != self.reason() {
            let other = reason.strip_prefix(REASON).unwrap_or(&reason).to_owned();
            return Err(MergeRefusal::OtherAccount(other).into());
        }
        Ok(Some(entry))
    }

    /// Refuses while requests hold credits, and if the other account cannot take what there is.
    fn check_credits(&self) -> Result<(), AccountError> {
        let AccountMerge { from, to, .. } = *self.merge;
        let held = self.billing.corrections().held(&from.id, self.now_ms)?;
        if held != Micro::ZERO {
            return Err(MergeRefusal::Held.into());
        }
        let sum = self.paid(&from.id)?.plus(self.paid(&to.id)?);
        match sum.get() < MAX_MICRO {
            true => Ok(()),
            false => Err(MergeRefusal::TooManyCredits.into()),
        }
    }

    fn paid(&self, account: &str) -> Result<Micro, StoreError> {
        let row = self.billing.ledger().rows().account(account, "")?;
        let missing = || StoreError::Unknown(format!("account {account} is not in the ledger"));
        Ok(row.ok_or_else(missing)?.paid)
    }

    /// Takes all credits but those of the trial, which lapse. Returns the entry; `None` if there
    /// was nothing to take.
    fn take(&self) -> Result<Option<LedgerEntry>, AccountError> {
        let from = &self.merge.from.id;
        let paid = self.paid(from)?;
        if paid.is_positive() {
            let kind = BalanceChangeKind::Adjust {
                reason: &self.reason(),
            };
            let amount = Micro::ZERO.minus(paid);
            self.post(kind, from, amount, &self.out_reference())?;
            failpoint::hit(Point::MergedOut);
        }
        self.taken()
    }

    /// Gives the other account what was taken, once. Returns whether it is new.
    fn give(&self, taken: &LedgerEntry) -> Result<bool, AccountError> {
        let (to, amount) = (&self.merge.to.id, paid_part(taken));
        if !amount.is_positive() {
            return Ok(false);
        }
        let reference = format!("merge-in:{}", self.merge.from.id);
        let posted = self.post(BalanceChangeKind::Grant, to, amount, &reference)?;
        Ok(posted.is_new)
    }

    fn post(
        &self,
        kind: BalanceChangeKind<'_>,
        account: &str,
        amount: Micro,
        reference: &str,
    ) -> Result<PostingResult, StoreError> {
        let change = BalanceChange {
            kind,
            reference,
            account,
            amount,
            actor: self.merge.actor,
            at_ms: self.now_ms,
        };
        let post = || self.billing.corrections().post_change(&change);
        self.acting.record_then_post(&change, post)
    }

    fn out_reference(&self) -> String {
        format!("merge-out:{}", self.merge.from.id)
    }

    /// Returns the reason in the entry that takes the credits. It names the other account, which an
    /// interrupted merge must keep to.
    fn reason(&self) -> String {
        format!("{REASON}{}", self.merge.to.id)
    }
}

const REASON: &str = "merged into ";

/// Returns what an entry took of the paid credits. Those of the trial lapse.
fn paid_part(taken: &LedgerEntry) -> Micro {
    Micro::ZERO.minus(taken.d_paid)
}
