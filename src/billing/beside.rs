//! Commands on a ledger with a shared store: they debit the store first, and compare its balances
//! with the ledger's.
//!
//! Must not be on the path of requests.

use super::feeder::adjustment;
use super::verify::{Finding, Verdict};
use crate::clock;
use crate::failpoint::{self, Point};
use crate::money::{Micro, Parts};
use crate::store::StoreError;
use crate::store::ledger::{Change, Ledger, Posted, bear};
use crate::store::redis::{self, Address, SharedStore};
use std::future::Future;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(2);
/// How long the sidecar may take to seed an account.
const KNOWN_WITHIN: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(20);
/// Maximum attempts of a command, because other requests may take the free credit before its debit
/// arrives.
const TRIES: u32 = 5;
/// Events reach the ledger within milliseconds, so a difference is rechecked before it is reported.
const LOOKS: u32 = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Maximum number of findings listed.
const FINDINGS_MAX: usize = 1_000;

/// Posts a debit: first in the store, so that no request can use the credits any more, then in the
/// ledger. Running the command again completes one that died in between.
pub fn take(ledger: &Ledger, address: &Address, change: &Change<'_>) -> Result<Posted, StoreError> {
    if ledger.knows(change)? {
        return ledger.change(change, "", || Ok(Vec::new()));
    }
    let parts = wait(take_there(address, change))?;
    failpoint::pass(Point::TakenThere);
    ledger.take(change, parts)
}

async fn take_there(address: &Address, change: &Change<'_>) -> Result<Parts, StoreError> {
    let store = SharedStore::connect(address, PATIENCE).await?;
    let operation = adjustment(change.account, change.reference);
    let asked = Micro::ZERO.minus(change.amount);
    let mut refused = None;
    for _ in 0..TRIES {
        let shared = known(&store, change.account).await?;
        let runs = shared
            .trial_ends_at_ms
            .is_some_and(|ends| clock::now_ms() < ends);
        let free = shared.has.minus(shared.held).covered().or_zero();
        let free = Parts {
            trial: if runs { free.trial } else { Micro::ZERO },
            ..free
        };
        // Send the debit even if the balance does not cover it: an earlier run may have posted it
        // already.
        let parts = bear(change, free).unwrap_or_else(|error| {
            refused = Some(error);
            Parts {
                paid: asked,
                trial: Micro::ZERO,
            }
        });
        let post = redis::Post {
            operation: &operation,
            account: change.account,
            change: Parts::ZERO.minus(parts),
            credited: Micro::ZERO,
            only_free: true,
            seq: 0,
        };
        match store.post(&post).await? {
            redis::Posted::Done => return Ok(parts),
            redis::Posted::Known { change: taken } if taken.total() == change.amount => {
                return Ok(Parts::ZERO.minus(taken));
            }
            redis::Posted::Known { change: taken } => {
                let (reference, taken) = (change.reference, taken.total());
                let message = format!(
                    "reference {reference:?} began as a change by {taken}: run it with that first"
                );
                return Err(StoreError::Refused(message));
            }
            redis::Posted::Insufficient { .. } | redis::Posted::Lost | redis::Posted::Unknown => {}
        }
    }
    let moving = || {
        StoreError::Refused(format!(
            "take {asked} from account {}: its credit is moving",
            change.account
        ))
    };
    Err(refused.unwrap_or_else(moving))
}

/// Returns the account in the store, and waits until the sidecar has seeded it.
async fn known(store: &SharedStore, account: &str) -> Result<redis::Shared, StoreError> {
    let began = Instant::now();
    loop {
        if let Some(shared) = store.account(account).await? {
            return Ok(shared);
        }
        if began.elapsed() > KNOWN_WITHIN {
            let message =
                format!("account {account} is not in the shared store: does the sidecar run?");
            return Err(StoreError::Unusable(message));
        }
        store.want(account).await?;
        tokio::time::sleep(LOOK).await;
    }
}

/// Compares every account that the store knows with the ledger, and adds a finding for each
/// difference.
pub fn compare(
    ledger: &Ledger,
    address: &Address,
    verdict: &mut Verdict,
) -> Result<(), StoreError> {
    let accounts = ledger.account_ids()?;
    let findings = wait(async {
        let store = SharedStore::connect(address, PATIENCE).await?;
        let mut findings = Vec::new();
        for account in accounts {
            if let Some(message) = apart(ledger, &store, &account).await? {
                findings.push(Finding {
                    rule: "shared balance",
                    seq: 0,
                    message,
                });
            }
            if findings.len() >= FINDINGS_MAX {
                break;
            }
        }
        Ok(findings)
    })?;
    verdict.findings.extend(findings);
    Ok(())
}

/// Describes how the balances differ, if they differ at every check.
async fn apart(
    ledger: &Ledger,
    store: &SharedStore,
    account: &str,
) -> Result<Option<String>, StoreError> {
    let mut message = None;
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let Some(shared) = store.account(account).await? else {
            return Ok(None);
        };
        let Some(row) = ledger.account(account, "")? else {
            return Ok(None);
        };
        let Parts { paid, trial } = shared.has;
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

/// Runs `work` to completion on a thread of its own, because a serving thread must not block.
fn wait<T: Send>(
    work: impl Future<Output = Result<T, StoreError>> + Send,
) -> Result<T, StoreError> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime
            .map_err(|source| StoreError::io("ask the shared store", source))?
            .block_on(work)
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|_| {
        Err(StoreError::Unusable(
            "ask the shared store: the thread that asked is gone".into(),
        ))
    })
}
