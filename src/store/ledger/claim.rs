//! Credit that is set aside by others than the process that admits: rows that it reads in the same
//! snapshot as a balance.
//!
//! One process admits requests, and holds in memory (`billing/holds.rs`). A command that is about
//! to take, and a gateway that drains after it has handed over, claim here instead; what the one
//! that admits has held they learn of its mirror (`store/holds.rs`). Must not decide who may have
//! what.

use super::{Account, Ledger, account_row};
use crate::money::Parts;
use crate::store::StoreError;
use crate::store::sqlite;
use rusqlite::{OptionalExtension, Transaction, params};
use std::sync::atomic::Ordering;

/// What the process that admits holds of an account, and what it has settled since it began, as it
/// tells.
#[derive(Debug, Clone)]
pub struct Claim {
    pub boot: String,
    pub held: Parts,
    pub settled: Parts,
}

impl Ledger {
    /// This process has handed over: what it holds is claimed here.
    pub fn is_guest(&self) -> bool {
        self.guest.load(Ordering::Acquire)
    }

    /// Turns all that a process holds into claims, as one step; from then on it is a guest. Whoever
    /// calls this sees to it that nothing is held or resolved meanwhile.
    ///
    /// # Errors
    /// The ledger cannot be written; nothing has changed then.
    pub fn hand_over(&self, boot: &str, held: &[(String, Claim)]) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("hand the holds over", source);
        let mut writer = self.writer();
        let transaction = sqlite::write(&mut writer).map_err(sql)?;
        for (account, claim) in held {
            let on_its_way = outstanding(&transaction, account, claim).map_err(sql)?;
            add_claim(&transaction, boot, account, claim.held.plus(on_its_way)).map_err(sql)?;
        }
        transaction.commit().map_err(sql)?;
        // Still under the writer's lock: no ending is entered in between.
        self.guest.store(true, Ordering::Release);
        Ok(())
    }

    /// Claims for `boot` what `decide` makes of the account as it stands, all claims and `told`
    /// (what the process that admits last told) counted as claimed. From then on that process
    /// admits nothing against it.
    ///
    /// # Errors
    /// `decide` refused, the account is not open, or the ledger cannot be read or written; nothing
    /// is claimed then.
    pub fn set_aside<E: From<StoreError>>(
        &self,
        boot: &str,
        account: &str,
        told: &[Claim],
        decide: impl FnOnce(Account) -> Result<Parts, E>,
    ) -> Result<Parts, E> {
        let sql = |source| StoreError::sqlite("claim credit", source);
        let mut writer = self.writer();
        let transaction = sqlite::write(&mut writer).map_err(sql)?;
        let parts = decide(standing(&transaction, account, told)?)?;
        add_claim(&transaction, boot, account, parts).map_err(sql)?;
        transaction.commit().map_err(sql)?;
        Ok(parts)
    }

    /// Whether the account bears all that is claimed and held of it, by the same counting.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn bears_claims(&self, account: &str, told: &[Claim]) -> Result<bool, StoreError> {
        let sql = |source| StoreError::sqlite("read the claims on an account", source);
        let mut writer = self.writer();
        let transaction = sqlite::write(&mut writer).map_err(sql)?;
        let row = standing(&transaction, account, told)?;
        Ok(row.paid >= row.claimed_paid && row.trial >= row.claimed_trial)
    }

    /// Gives a claim back, or a part of it.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn release_claim(&self, boot: &str, account: &str, parts: Parts) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("release a claim", source);
        let mut writer = self.writer();
        let transaction = sqlite::write(&mut writer).map_err(sql)?;
        subtract_claim(&transaction, boot, account, parts).map_err(sql)?;
        transaction.commit().map_err(sql)
    }

    /// Boots that have claimed at some time and are not forgotten.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn claimants(&self) -> Result<Vec<String>, StoreError> {
        self.read("look for claims", |connection| {
            connection
                .prepare_cached("SELECT DISTINCT boot FROM claim LIMIT 100")?
                .query_map([], |row| row.get(0))?
                .collect()
        })
    }
}

/// The account with all that others claim of it.
fn standing(
    transaction: &Transaction<'_>,
    account: &str,
    told: &[Claim],
) -> Result<Account, StoreError> {
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
    for claim in told {
        let claimed = claim
            .held
            .plus(outstanding(transaction, account, claim).map_err(sql)?);
        row.claimed_paid = row.claimed_paid.plus(claimed.paid);
        row.claimed_trial = row.claimed_trial.plus(claimed.trial);
    }
    Ok(row)
}

/// What is settled and still on its way to the ledger. What the mirror has not yet heard of being
/// settled may be applied already: nothing is on its way then.
pub(super) fn outstanding(
    transaction: &Transaction<'_>,
    account: &str,
    claim: &Claim,
) -> rusqlite::Result<Parts> {
    let applied = transaction
        .prepare_cached("SELECT paid, trial FROM applied WHERE boot = ?1 AND account = ?2")?
        .query_row([&claim.boot, account], |row| {
            Ok(Parts {
                paid: row.get(0)?,
                trial: row.get(1)?,
            })
        })
        .optional()?;
    Ok(claim.settled.minus(applied.unwrap_or_default()).or_zero())
}

/// All that boots other than `boot` claim of the account.
pub(super) fn claimed_by_others(
    transaction: &Transaction<'_>,
    account: &str,
    boot: &str,
) -> rusqlite::Result<Parts> {
    transaction
        .prepare_cached(
            "SELECT ifnull(sum(paid), 0), ifnull(sum(trial), 0) FROM claim WHERE account = ?1 AND boot <> ?2",
        )?
        .query_row([account, boot], |row| Ok(Parts { paid: row.get(0)?, trial: row.get(1)? }))
}

fn add_claim(
    transaction: &Transaction<'_>,
    boot: &str,
    account: &str,
    parts: Parts,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO claim (boot, account, paid, trial) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (account, boot) DO UPDATE SET paid = paid + excluded.paid, trial = trial + excluded.trial",
        )?
        .execute(params![boot, account, parts.paid, parts.trial])?;
    Ok(())
}

pub(super) fn subtract_claim(
    transaction: &Transaction<'_>,
    boot: &str,
    account: &str,
    parts: Parts,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "UPDATE claim SET paid = max(0, paid - ?3), trial = max(0, trial - ?4) WHERE boot = ?1 AND account = ?2",
        )?
        .execute(params![boot, account, parts.paid, parts.trial])?;
    Ok(())
}
