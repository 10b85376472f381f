//! Claims: credits that other processes than the admitting one have reserved. The admitting process
//! reads claims in the same snapshot as a balance.
//!
//! One process admits requests, and holds credits in memory (`billing/holds.rs`). Two kinds of
//! process claim credits here instead: a command that is about to debit, and a gateway that drains
//! after it has handed over. They read the admitting process's holds from its mirror
//! (`journal/holds_mirror.rs`). This file must not decide the amount of a claim.

use crate::StoreError;
use crate::entry::account::{LedgerAccount, account_row};
use crate::statements::applied::applied_to_account;
use crate::views::LedgerChanges;
use credits::money::CreditSplit;
use rusqlite::{OptionalExtension, Transaction, params};
use std::sync::atomic::Ordering;

/// Credits of an account that the admitting process holds or has settled since it began, by its own
/// report.
#[derive(Debug, Clone)]
pub struct Claim {
    pub instance_id: String,
    pub held: CreditSplit,
    pub settled: CreditSplit,
}

/// Returns the credits of the account that running processes hold. The function is called inside
/// the commit, so that its result and the balance belong together.
pub type ClaimsOnAccount<'a> = &'a dyn Fn() -> Result<Vec<Claim>, StoreError>;

impl LedgerChanges<'_> {
    /// Returns whether this process has handed over, so that its holds are claims.
    pub fn has_handed_over(&self) -> bool {
        self.0.handed_over.load(Ordering::Acquire)
    }

    /// Turns all holds of a process into claims, in one step. The process has then handed over. The
    /// caller must make sure that no request is held or settled meanwhile.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written; no claim exists then.
    pub fn hand_over(&self, instance_id: &str, held: &[(String, Claim)]) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("hand over the reservations", source);
        let mut writer = self.0.writer();
        let transaction = writer.begin().map_err(sql)?;
        for (account, claim) in held {
            let on_its_way = unapplied_parts(&transaction, account, claim).map_err(sql)?;
            add_claim(
                &transaction,
                instance_id,
                account,
                claim.held.plus(on_its_way),
            )
            .map_err(sql)?;
        }
        transaction.commit().map_err(sql)?;
        // The writer's lock is still held, so no ending is entered in between.
        self.0.handed_over.store(true, Ordering::Release);
        Ok(())
    }

    /// Claims for the instance the credits that `decide` returns for the current account. The
    /// account includes all claims, and `claims` (the last report of the admitting process) counts
    /// as claimed. From then on that process admits no request against the claimed credits.
    ///
    /// # Errors
    /// Returns an error if `decide` refuses, if the account is not open, or if the ledger cannot be
    /// read or written; no credits are claimed then.
    pub fn claim<E: From<StoreError>>(
        &self,
        instance_id: &str,
        account: &str,
        claims: &[Claim],
        decide: impl FnOnce(LedgerAccount) -> Result<CreditSplit, E>,
    ) -> Result<CreditSplit, E> {
        let sql = |source| StoreError::sqlite("claim credit", source);
        let mut writer = self.0.writer();
        let transaction = writer.begin().map_err(sql)?;
        let parts = decide(account_with_claims(&transaction, account, claims)?)?;
        add_claim(&transaction, instance_id, account, parts).map_err(sql)?;
        transaction.commit().map_err(sql)?;
        Ok(parts)
    }

    /// Returns whether the account covers all its claims and holds, counted as by [`Self::claim`].
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn covers_claims(&self, account: &str, claims: &[Claim]) -> Result<bool, StoreError> {
        let sql = |source| StoreError::sqlite("read the claims on an account", source);
        let mut writer = self.0.writer();
        let transaction = writer.begin().map_err(sql)?;
        let row = account_with_claims(&transaction, account, claims)?;
        Ok(row.paid >= row.claimed_paid && row.trial >= row.claimed_trial)
    }

    /// Releases a claim or a part of it.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn release_claim(
        &self,
        instance_id: &str,
        account: &str,
        parts: CreditSplit,
    ) -> Result<(), StoreError> {
        self.0.write("release a claim", |transaction| {
            subtract_claim(transaction, instance_id, account, parts)
        })
    }

    /// Returns the ids of the instances with stored claims, past or present.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn claimants(&self) -> Result<Vec<String>, StoreError> {
        self.0.read("look for claims", |connection| {
            connection
                .prepare_cached("SELECT DISTINCT boot FROM claim LIMIT 100")?
                .query_map([], |row| row.get(0))?
                .collect()
        })
    }
}

/// Returns the account, including all claims of other processes.
fn account_with_claims(
    transaction: &Transaction<'_>,
    account: &str,
    claims: &[Claim],
) -> Result<LedgerAccount, StoreError> {
    let sql = |source| StoreError::sqlite("read an account's claims", source);
    let row = transaction
        .prepare_cached(
            "SELECT paid, trial, trial_ends_at, credited, 0, 0,
               (SELECT ifnull(sum(paid), 0) FROM claim WHERE account = ?1),
               (SELECT ifnull(sum(trial), 0) FROM claim WHERE account = ?1)
             FROM account WHERE id = ?1",
        )
        .and_then(|mut statement| statement.query_row([account], account_row).optional())
        .map_err(sql)?;
    let mut row =
        row.ok_or_else(|| StoreError::Refused(format!("account {account} is not in the ledger")))?;
    for claim in claims {
        let claimed = claim
            .held
            .plus(unapplied_parts(transaction, account, claim).map_err(sql)?);
        row.claimed_paid = row.claimed_paid.plus(claimed.paid);
        row.claimed_trial = row.claimed_trial.plus(claimed.trial);
    }
    Ok(row)
}

/// Returns the settled credits that the ledger has not entered yet. The result is zero if the
/// ledger is ahead of the mirror.
pub(crate) fn unapplied_parts(
    transaction: &Transaction<'_>,
    account: &str,
    claim: &Claim,
) -> rusqlite::Result<CreditSplit> {
    let applied = applied_to_account(transaction, &claim.instance_id, account)?;
    Ok(claim.settled.minus(applied).or_zero())
}

pub(crate) fn claimed_by_others(
    transaction: &Transaction<'_>,
    account: &str,
    instance_id: &str,
) -> rusqlite::Result<CreditSplit> {
    transaction
        .prepare_cached(
            "SELECT ifnull(sum(paid), 0), ifnull(sum(trial), 0) FROM claim WHERE account = ?1 AND boot <> ?2",
        )?
        .query_row([account, instance_id], |row| Ok(CreditSplit { paid: row.get(0)?, trial: row.get(1)? }))
}

/// Returns the credits that this instance has claimed itself; `None` without a claim.
pub(crate) fn own_claim(
    transaction: &Transaction<'_>,
    account: &str,
    instance_id: &str,
) -> rusqlite::Result<Option<CreditSplit>> {
    transaction
        .prepare_cached("SELECT paid, trial FROM claim WHERE account = ?1 AND boot = ?2")?
        .query_row([account, instance_id], |row| {
            Ok(CreditSplit {
                paid: row.get(0)?,
                trial: row.get(1)?,
            })
        })
        .optional()
}

fn add_claim(
    transaction: &Transaction<'_>,
    instance_id: &str,
    account: &str,
    parts: CreditSplit,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO claim (boot, account, paid, trial) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (account, boot) DO UPDATE SET paid = paid + excluded.paid, trial = trial + excluded.trial",
        )?
        .execute(params![instance_id, account, parts.paid, parts.trial])?;
    Ok(())
}

pub(crate) fn subtract_claim(
    transaction: &Transaction<'_>,
    instance_id: &str,
    account: &str,
    parts: CreditSplit,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "UPDATE claim SET paid = max(0, paid - ?3), trial = max(0, trial - ?4) WHERE boot = ?1 AND account = ?2",
        )?
        .execute(params![instance_id, account, parts.paid, parts.trial])?;
    Ok(())
}
