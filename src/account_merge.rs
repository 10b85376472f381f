//! Merges an account into another one for the admin API and the command line: its members, keys and
//! credits go there, and it is deleted.
//!
//! `app.db` stores the merge before anything moves, and each part of the credits with its amount
//! before the ledger has an entry of it. So the same call completes a merge that was interrupted
//! anywhere: it posts the stored part again, which counts once by its references. A part gets
//! another amount only if the ledger refused to take it, which it does not if it has the entry. The
//! entries of the merged account stay in the ledger, under its id. This file must not decide which
//! accounts can be merged: `crates/accounts/src/db/account_merges.rs` does.

use crate::billing::Billing;
use crate::shared_credit::wait_until_published;
use accounts::{
    Account, AccountError, AccountStatus, Accounts, Actor, AuditedAccounts, CloseAccountOutcome,
    MERGE_REFERENCES, MergeRefusal, MovedParts, StoredMerge,
};
use base::clock::now_ms;
use base::failpoint::{self, Point};
use credits::money::{MAX_MICRO, Micro};
use ledger::sqlite::row_cache::ROW_CACHE_MAX_AGE;
use ledger::{BalanceChange, BalanceChangeKind, EntryReference, LedgerEntry, StoreError};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Name of the file whose lock lets one thread of one process merge at a time.
const LOCK_FILE: &str = "merges.lock";

/// Maximum time for which a merge waits for requests that began before the suspension.
const HOLD_TIMEOUT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Actor in the audit log when the gateway completes a merge by itself.
const ACTOR: &str = "upkeep";

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
    /// Credits that the other account got, also by an earlier call.
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

/// Merges an account into another one, or completes that.
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

/// Completes the merges that a crash has interrupted. Each one that cannot be completed is logged.
///
/// # Errors
/// Returns an error if the merges cannot be listed.
pub fn complete_merges(accounts: &Accounts, billing: &Billing) -> Result<(), StoreError> {
    let by = Actor {
        actor: ACTOR.to_owned(),
        address: String::new(),
    };
    for stored in accounts.merges().list(None)? {
        let both = accounts
            .find(&stored.from)?
            .zip(accounts.find(&stored.into)?);
        let Some((from, to)) = both else { continue };
        let merge = AccountMerge {
            from: &from,
            to: &to,
            member: None,
            actor: None,
        };
        let (id, into) = (&from.id, &to.id);
        match merge_accounts(accounts, billing, &by, &merge) {
            Ok(_) => log::warn!(
                "completed the merge of account {id} into {into}, which a crash had interrupted"
            ),
            Err(error) => log::error!("cannot complete a merge: {error}; {}", stored.describe()),
        }
    }
    Ok(())
}

/// Waits for the lock by which one merge runs at a time, so that nobody decides another amount
/// while a part is being moved.
fn lock(data_dir: &Path) -> Result<File, StoreError> {
    let lock = || {
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .append(true)
            .open(data_dir.join(LOCK_FILE))?;
        file.lock().map(|()| file)
    };
    lock().map_err(|source| StoreError::io("lock merges.lock", source))
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
        let _merging = lock(self.billing.data_dir())?;
        if self.accounts.merges().find(&from.id)?.is_none()
            && from.status == AccountStatus::Suspended
        {
            self.check_credits()?;
        }
        let moved = self.acting.start_merge(&from.id, &to.id, member)?;
        failpoint::hit(Point::MergeStored);
        let in_store = (moved.keys.iter()).all(|key| wait_until_published(self.accounts, key));
        let stored = self.accounts.merges().find(&from.id)?;
        let stored = stored.ok_or(AccountError::NoAccount)?;
        let is_new = !stored.has_ended;
        let last_part = match is_new {
            true => self.complete(&stored)?,
            false => stored.part,
        };
        let mut credits = Micro::ZERO;
        for part in 1..=last_part {
            let (out, into) = (self.entry(true, part)?, self.entry(false, part)?);
            let is_own = |(out, into): &(LedgerEntry, LedgerEntry)| {
                let is_whole = into.d_paid == Micro::ZERO.minus(out.d_paid);
                out.account == from.id && into.account == to.id && is_whole
            };
            let own = out.zip(into).filter(is_own);
            credits = credits.plus(own.map_or(Micro::ZERO, |(_, into)| into.d_paid));
        }
        Ok(MergeReport {
            is_new,
            credits,
            moved,
            in_store,
        })
    }

    /// Refuses while requests hold credits, and if the other account cannot take what there is.
    fn check_credits(&self) -> Result<(), AccountError> {
        let AccountMerge { from, to, .. } = *self.merge;
        // Until then, a request may be admitted that was not suspended yet.
        thread::sleep(ROW_CACHE_MAX_AGE);
        if self.held()? != Micro::ZERO {
            return Err(MergeRefusal::Held.into());
        }
        let missing = || StoreError::Unknown(format!("account {} is not in the ledger", to.id));
        let of_target = self.paid(&to.id)?.ok_or_else(missing)?;
        let sum = self.paid(&from.id)?.unwrap_or_default().plus(of_target);
        match sum.get() < MAX_MICRO {
            true => Ok(()),
            false => Err(MergeRefusal::TooManyCredits.into()),
        }
    }

    fn held(&self) -> Result<Micro, StoreError> {
        let corrections = self.billing.corrections();
        corrections.held(&self.merge.from.id, self.now_ms)
    }

    fn paid(&self, account: &str) -> Result<Option<Micro>, StoreError> {
        let row = self.billing.ledger().rows().account(account, "")?;
        Ok(row.map(|row| row.paid))
    }

    /// Moves all credits but those of the trial, which lapse, and deletes the account. Returns the
    /// number of the last part.
    fn complete(&self, stored: &StoredMerge) -> Result<u32, AccountError> {
        let from = &stored.from;
        let (mut part, mut amount) = (stored.part, stored.amount);
        let began = Instant::now();
        loop {
            let refusal = match part {
                0 => None,
                _ => self.move_part(part, amount)?,
            };
            match refusal {
                None => part = self.next_part(part)?,
                Some(why) if began.elapsed() > HOLD_TIMEOUT => {
                    let command = stored.command();
                    return Err(MergeRefusal::Running { why, command }.into());
                }
                Some(_) => self.wait_for_requests(began)?,
            }
            amount = self.paid(from)?.unwrap_or_default();
            if !amount.is_positive() {
                failpoint::hit(Point::MergeMoved);
                break;
            }
            self.accounts.merges().set_part(from, part, amount)?;
        }
        match self.acting.end_merge(from)? {
            CloseAccountOutcome::Done | CloseAccountOutcome::NoAccount => Ok(part),
            CloseAccountOutcome::LastOwner => Err(AccountError::LastOwner),
            CloseAccountOutcome::LastAdministrator => Err(MergeRefusal::Administrator.into()),
        }
    }

    /// Returns the number of the next part whose references no entry has. A ledger of an earlier
    /// version may have an operator's own postings with such references.
    fn next_part(&self, last: u32) -> Result<u32, StoreError> {
        let mut part = last + 1;
        while self.entry(true, part)?.is_some() || self.entry(false, part)?.is_some() {
            part += 1;
        }
        Ok(part)
    }

    /// Waits until no request holds credits, or until the time is over.
    fn wait_for_requests(&self, began: Instant) -> Result<(), StoreError> {
        loop {
            thread::sleep(POLL_INTERVAL);
            if began.elapsed() > HOLD_TIMEOUT || self.held()? == Micro::ZERO {
                return Ok(());
            }
        }
    }

    /// Moves a part of the credits, of which any entry may exist. If the account has less than the
    /// part, nothing of it has moved, and the ledger's refusal is returned.
    fn move_part(&self, part: u32, amount: Micro) -> Result<Option<String>, AccountError> {
        let AccountMerge { from, to, .. } = *self.merge;
        let reason = format!("merged into {}", to.id);
        let out = BalanceChangeKind::Adjust { reason: &reason };
        match self.post(out, &from.id, Micro::ZERO.minus(amount), part) {
            Ok(()) => failpoint::hit(Point::MergedOut),
            Err(StoreError::Refused(why)) => return Ok(Some(why)),
            Err(error) => return Err(error.into()),
        }
        let taken = self.taken(part)?;
        if taken.is_positive() {
            self.post(BalanceChangeKind::Grant, &to.id, taken, part)?;
            failpoint::hit(Point::MergedIn);
        }
        Ok(None)
    }

    /// Returns the paid credits that a part took. A trial, which lapses, may have paid for the rest
    /// if a request ended late.
    fn taken(&self, part: u32) -> Result<Micro, StoreError> {
        let entry = self.entry(true, part)?;
        Ok(entry.map_or(Micro::ZERO, |entry| Micro::ZERO.minus(entry.d_paid)))
    }

    /// Returns the entry by which a part left its account or, if not `is_out`, reached the other.
    fn entry(&self, is_out: bool, part: u32) -> Result<Option<LedgerEntry>, StoreError> {
        let kind = match is_out {
            true => BalanceChangeKind::Adjust { reason: "" }.name(),
            false => BalanceChangeKind::Grant.name(),
        };
        let reference = &self.reference(is_out, part);
        let entry = EntryReference::Posting { kind, reference };
        self.billing.ledger().rows().entry(entry)
    }

    fn post(
        &self,
        kind: BalanceChangeKind<'_>,
        account: &str,
        amount: Micro,
        part: u32,
    ) -> Result<(), StoreError> {
        let is_out = amount < Micro::ZERO;
        let reference = &self.reference(is_out, part);
        let change = BalanceChange {
            kind,
            reference,
            account,
            amount,
            actor: self.merge.actor,
            at_ms: self.now_ms,
        };
        let act = match is_out {
            true => "account.adjust",
            false => "account.grant",
        };
        let what = json!({"credits": amount, "ref": reference});
        let post = || self.billing.corrections().post_change(&change);
        self.acting
            .record_posting(act, account, &what, post)
            .map(drop)
    }

    fn reference(&self, is_out: bool, part: u32) -> String {
        let [out, into] = MERGE_REFERENCES;
        let prefix = if is_out { out } else { into };
        format!("{prefix}{}:{part}", self.merge.from.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use accounts::{NewAccount, open_account};

    /// Merges an account of 20 credits into one of 30, of a ledger with these earlier postings.
    fn merge_beside(earlier: &[(bool, BalanceChangeKind<'_>, i64)]) -> (MergeReport, Micro) {
        let folder = tempfile::tempdir().unwrap();
        let accounts = Accounts::open(folder.path()).unwrap();
        let billing = Billing::open(folder.path()).unwrap();
        let open = |email| {
            let new = NewAccount::new(email);
            open_account(&accounts, billing.ledger(), &new, now_ms()).unwrap()
        };
        let (from, to) = (open("a@example.com"), open("b@example.com"));
        let post = |account: &Account, kind, reference: &str, credits: i64| {
            let change = BalanceChange {
                kind,
                reference,
                account: &account.id,
                amount: Micro::new(credits * 1_000_000),
                actor: None,
                at_ms: now_ms(),
            };
            billing.corrections().post_change(&change).unwrap();
        };
        post(&from, BalanceChangeKind::Grant, "one", 20);
        post(&to, BalanceChangeKind::Grant, "two", 30);
        for (of_from, kind, credits) in earlier {
            let (account, prefix) = match of_from {
                true => (&from, MERGE_REFERENCES[0]),
                false => (&to, MERGE_REFERENCES[1]),
            };
            post(account, *kind, &format!("{prefix}{}:1", from.id), *credits);
        }
        let actor = Actor {
            actor: "test".to_owned(),
            address: String::new(),
        };
        let acting = accounts.with_actor(&actor, now_ms());
        acting
            .set_status(&from.id, AccountStatus::Suspended)
            .unwrap();
        let from = accounts.find(&from.id).unwrap().unwrap();
        let merge = AccountMerge {
            from: &from,
            to: &to,
            member: None,
            actor: None,
        };
        let report = merge_accounts(&accounts, &billing, &actor, &merge).unwrap();
        let rows = billing.ledger().rows();
        let left = rows.account(&from.id, "").unwrap().unwrap().paid;
        assert_eq!(left, Micro::ZERO);
        (report, rows.account(&to.id, "").unwrap().unwrap().paid)
    }

    #[test]
    fn references_that_a_ledger_has_already_are_not_those_of_a_merge() {
        let (grant, adjust) = (
            BalanceChangeKind::Grant,
            BalanceChangeKind::Adjust { reason: "r" },
        );
        for (earlier, moved, balance) in [
            (&[][..], 20, 50),
            // The same amount, as a merge would post it.
            (&[(false, grant, 20)], 20, 70),
            (&[(false, grant, 1)], 20, 51),
            (&[(true, adjust, -1)], 19, 49),
            (&[(true, adjust, -1), (false, grant, 20)], 19, 69),
        ] {
            let (report, paid) = merge_beside(earlier);
            let credits = |count: i64| Micro::new(count * 1_000_000);
            let expected = (credits(moved), credits(balance));
            assert_eq!((report.credits, paid), expected);
        }
    }
}
