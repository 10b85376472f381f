//! Commands on a ledger with a shared store: they debit the store first, and compare its balances
//! with the ledger's.
//!
//! Requests must not use this file.

use super::ledger_ingest::debit_operation;
use crate::billing::shared_balances::SharedBalances;
use crate::shared_credit::redis;
use crate::shared_credit::redis::{SharedStore, block_on};
use base::clock;
use base::failpoint::{self, Point};
use config::redis_address::RedisAddress;
use credits::money::{CreditSplit, Micro};
use ledger::StoreError;
use ledger::audit::{Finding, LedgerAuditReport};
use ledger::{AvailableCredit, BalanceChange, DebitSplit, Ledger, PostingResult, split_debit};
use std::sync::Arc;
use std::time::{Duration, Instant};

const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time that the sidecar may take to seed an account.
const SEED_TIMEOUT: Duration = Duration::from_secs(3);
const SEED_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of attempts of a command. Other requests may take the free credit before its
/// debit arrives.
const MAX_ATTEMPTS: u32 = 5;
/// Maximum number of rechecks before a difference is reported. Events reach the ledger within
/// milliseconds, so a single check can be wrong.
const MAX_RECHECKS: u32 = 20;
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of findings in the report.
const MAX_FINDINGS: usize = 1_000;

/// The store that edges share, for commands.
pub struct SharedStoreAdmin {
    address: RedisAddress,
}

/// Returns the balances in the store at an address, or `None` without a shared store.
pub fn shared_balances(address: Option<RedisAddress>) -> Option<Arc<dyn SharedBalances>> {
    address.map(|address| Arc::new(SharedStoreAdmin { address }) as Arc<dyn SharedBalances>)
}

impl SharedBalances for SharedStoreAdmin {
    fn post_debit(
        &self,
        ledger: &Ledger,
        change: &BalanceChange<'_>,
    ) -> Result<PostingResult, StoreError> {
        if ledger.changes().has_posted(change)? {
            return ledger.changes().post_change(change, "", &|| Ok(Vec::new()));
        }
        let DebitSplit { taken, writeoff } = block_on(debit_store(&self.address, change))?;
        failpoint::hit(Point::TakenThere);
        // A clawback can take less than it must: the caller takes the rest by another reference.
        let amount = Micro::ZERO.minus(taken.total()).minus(writeoff);
        let change = BalanceChange { amount, ..*change };
        ledger.changes().post_store_debit(&change, taken)
    }

    fn held(&self, account: &str) -> Result<Micro, StoreError> {
        block_on(async {
            let store = SharedStore::connect(&self.address, STORE_TIMEOUT).await?;
            Ok(wait_for_account(&store, account).await?.held.total())
        })
    }

    fn compare(&self, ledger: &Ledger, report: &mut LedgerAuditReport) -> Result<(), StoreError> {
        let accounts = ledger.events().account_ids()?;
        let findings = block_on(async {
            let store = SharedStore::connect(&self.address, STORE_TIMEOUT).await?;
            let mut findings = Vec::new();
            for account in accounts {
                if let Some(message) = find_difference(ledger, &store, &account).await? {
                    findings.push(Finding {
                        rule: "shared balance",
                        seq: 0,
                        message,
                    });
                }
                if findings.len() >= MAX_FINDINGS {
                    break;
                }
            }
            Ok(findings)
        })?;
        report.findings.extend(findings);
        Ok(())
    }
}

/// Debits the store, or returns the debit that an earlier run made without entering it.
async fn debit_store(
    address: &RedisAddress,
    change: &BalanceChange<'_>,
) -> Result<DebitSplit, StoreError> {
    let store = SharedStore::connect(address, STORE_TIMEOUT).await?;
    let operation = debit_operation(change.kind.name(), change.account, change.reference);
    let debit = Micro::ZERO.minus(change.amount);
    let mut refused = None;
    for _ in 0..MAX_ATTEMPTS {
        let shared = wait_for_account(&store, change.account).await?;
        let runs = shared
            .trial_ends_at_ms
            .is_some_and(|ends| clock::now_ms() < ends);
        let free = shared.has.minus(shared.held).rebalance().or_zero();
        let free = CreditSplit {
            trial: if runs { free.trial } else { Micro::ZERO },
            ..free
        };
        let held_paid = shared.has.paid.minus(free.paid).or_zero();
        let split = split_debit(change, AvailableCredit { free, held_paid });
        // A debit that takes nothing now is sent whole, because an earlier run may have posted it
        // already. Otherwise the store refuses it, and has no mark of it.
        let whole = CreditSplit {
            paid: debit,
            trial: Micro::ZERO,
        };
        let taken = split.as_ref().map_or(whole, |split| split.taken);
        let sent = if taken == CreditSplit::ZERO {
            whole
        } else {
            taken
        };
        let post = redis::PostCommand {
            operation: &operation,
            account: change.account,
            change: CreditSplit::ZERO.minus(sent),
            credited: Micro::ZERO,
            only_free: true,
            seq: 0,
        };
        let reply = store.balances().post(&post).await?;
        match (reply, split) {
            (redis::PostReply::Done, Ok(split)) if sent == split.taken => return Ok(split),
            (redis::PostReply::Done, _) => {
                return Ok(DebitSplit {
                    taken: sent,
                    writeoff: Micro::ZERO,
                });
            }
            (redis::PostReply::Known { change: taken }, _)
                if taken.total() == change.amount
                    || change.is_clawback() && taken.total() > change.amount =>
            {
                return Ok(DebitSplit {
                    taken: CreditSplit::ZERO.minus(taken),
                    writeoff: Micro::ZERO,
                });
            }
            (redis::PostReply::Insufficient { .. }, Ok(split))
                if split.taken == CreditSplit::ZERO =>
            {
                return Ok(split);
            }
            (redis::PostReply::Known { change: taken }, _) => {
                let (reference, taken) = (change.reference, taken.total());
                let message = format!(
                    "reference {reference:?} belongs to an unfinished change by {taken}: run the command with that amount first"
                );
                return Err(StoreError::ReferenceUsed(message));
            }
            (_, Err(error)) => refused = Some(error),
            (_, Ok(_)) => {}
        }
    }
    let moving = || {
        StoreError::Refused(format!(
            "cannot deduct {debit} credits from account {}: its reservations are changing; run the command again",
            change.account
        ))
    };
    Err(refused.unwrap_or_else(moving))
}

/// Returns the account in the store, once the sidecar has seeded it.
async fn wait_for_account(
    store: &SharedStore,
    account: &str,
) -> Result<redis::StoreAccount, StoreError> {
    let began = Instant::now();
    loop {
        if let Some(shared) = store.balances().account(account).await? {
            return Ok(shared);
        }
        if began.elapsed() > SEED_TIMEOUT {
            let message = format!(
                "account {account} is not in the shared store: check that the sidecar is running"
            );
            return Err(StoreError::Unusable(message));
        }
        store.ingest().request_seed(account).await?;
        tokio::time::sleep(SEED_POLL_INTERVAL).await;
    }
}

/// Describes the difference between the balances, if every check finds one.
async fn find_difference(
    ledger: &Ledger,
    store: &SharedStore,
    account: &str,
) -> Result<Option<String>, StoreError> {
    let mut message = None;
    for look in 0..MAX_RECHECKS {
        if look > 0 {
            tokio::time::sleep(RECHECK_INTERVAL).await;
        }
        let Some(shared) = store.balances().account(account).await? else {
            return Ok(None);
        };
        let Some(row) = ledger.rows().account(account, "")? else {
            return Ok(None);
        };
        let CreditSplit { paid, trial } = shared.has;
        if (paid, trial) == (row.paid, row.trial) {
            return Ok(None);
        }
        message = Some(format!(
            "account {account} has {paid} paid and {trial} trial in the shared store, {} and {} in the ledger",
            row.paid, row.trial
        ));
    }
    Ok(message)
}
