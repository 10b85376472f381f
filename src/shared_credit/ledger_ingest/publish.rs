//! Publishes data to the store: postings, accounts that edges need, keys, and suspensions. It also
//! copies the open holds, which only the store knows, to the local mirror.
//!
//! This file must not publish requests, which come from the store.

use super::worker::IngestWorker;
use crate::shared_credit::redis;
use crate::shared_credit::redis::{
    AccountSeed, PostCommand, PostReply, SharedKey, SharedStore, SpendSeed, partition,
};
use accounts::db::key_changes::KeyChange;
use accounts::{KeySettings, membership_id};
use base::clock;
use base::failpoint::{self, Point};
use credits::limits::{Period, Spender};
use credits::money::CreditSplit;
use ledger::StoreError;
use ledger::{Claim, LedgerEntry};
use std::collections::BTreeMap;
use std::time::Instant;
use tokio::task::JoinSet;

const PAGE_SIZE: u32 = 1_000;
/// Maximum number of accounts to seed in one pass.
const MAX_SEEDS: usize = 100;
/// Maximum number of keys in one pass.
const MAX_KEYS: usize = 1_024;
const MAX_KEYS_IN_FLIGHT: usize = 64;

impl IngestWorker {
    /// Publishes the entries that the store does not know yet: postings, and late endings.
    pub(crate) async fn publish_entries(&mut self) -> Result<(), StoreError> {
        loop {
            let entries = self.ledger.rows().entries_after(self.pushed, PAGE_SIZE)?;
            let Some(last) = entries.last() else {
                return Ok(());
            };
            let (last, mut has_published) = (last.seq, false);
            for entry in entries
                .iter()
                .filter(|entry| !entry.is_ending() || entry.is_late())
            {
                failpoint::hit(Point::PostEntered);
                self.publish_entry(entry).await?;
                failpoint::hit(Point::PostTold);
                has_published = true;
            }
            // A page of ledger debits alone needs no publication, so recording it is not worth a
            // sync.
            if has_published {
                self.ledger.events().set_published_seq(last)?;
            }
            self.pushed = last;
        }
    }

    /// Publishes one entry, which takes effect once. If the store does not know the account, the
    /// account's later seed includes the entry.
    pub(crate) async fn publish_entry(&self, entry: &LedgerEntry) -> Result<(), StoreError> {
        let operation = match entry.kind.as_str() {
            // Such a change took effect in the store before it was entered.
            "lapse" => redis::lapse_operation(&entry.account),
            kind if is_debited_first(kind) => {
                debit_operation(kind, &entry.account, &entry.reference)
            }
            _ => format!("entry:{}", entry.seq),
        };
        let post = PostCommand {
            operation: &operation,
            account: &entry.account,
            change: CreditSplit {
                paid: entry.d_paid,
                trial: entry.d_trial,
            },
            credited: entry.credited(),
            only_free: false,
            seq: entry.seq,
        };
        if entry.is_late() {
            let spenders = entry.spenders();
            return self
                .store
                .balances()
                .post_late(&post, &spenders, entry.at_ms)
                .await
                .map(drop);
        }
        let posted = self.store.balances().post(&post).await?;
        let PostReply::Known { change } = posted else {
            return Ok(());
        };
        if !is_debited_first(&entry.kind) || change == post.change {
            return Ok(());
        }
        // The ledger charged the other bucket than the store.
        let operation = format!("levelled:{operation}");
        let post = PostCommand {
            operation: &operation,
            change: post.change.minus(change),
            seq: 0,
            ..post
        };
        self.store.balances().post(&post).await.map(drop)
    }

    /// Seeds the accounts that edges have requested.
    ///
    /// # Errors
    /// Returns an error if an account could not be seeded. The edges then request it again.
    pub async fn seed_accounts(&mut self) -> Result<(), StoreError> {
        if self.requested_accounts.is_empty() {
            self.requested_accounts
                .extend(self.store.ingest().take_seed_requests(MAX_SEEDS).await?);
        }
        // An account that cannot be seeded does not block the others, because edges request it
        // again.
        let mut failed = Ok(());
        for account in std::mem::take(&mut self.requested_accounts) {
            failed = failed.and(self.seed_account(&account).await);
        }
        failed
    }

    /// Seeds one account, after checking that the server is the known one and entering the
    /// partition's events. After a loss, the account waits until edges have reported again.
    pub(crate) async fn seed_account(&mut self, account: &str) -> Result<(), StoreError> {
        let partition = partition(account);
        let current = self.store.ingest().partition_server(partition).await?;
        if !self.refresh_if_unchanged(partition, &current) {
            self.locate_partitions().await?;
        }
        if self.lost.awaits_reports(partition, Instant::now()) {
            self.requested_accounts.insert(account.to_owned());
            return Ok(());
        }
        self.consume(partition).await?;
        let Some((row, seq)) = self.ledger.events().account_as_of(account)? else {
            return Ok(());
        };
        let found = usize::try_from(partition)
            .ok()
            .and_then(|index| self.found.get(index)?.as_ref());
        let Some(found) = found else { return Ok(()) };
        let seed = AccountSeed {
            account,
            has: CreditSplit {
                paid: row.paid,
                trial: row.trial,
            },
            credited: row.credited,
            is_active: self.app.people().may_spend(account)?,
            trial_ends_at_ms: row.trial_ends_at_ms,
            seq,
            epoch: &found.epoch,
        };
        self.store.balances().seed_account(&seed).await?;
        self.seed_spending(account, &found.epoch, current.now_ms)
            .await
    }

    /// Starts the store's spend counters for those of an account's keys and members that have a
    /// limit. The ledger provides the spend so far, without the events that are still in the store.
    /// Running requests count when they end.
    async fn seed_spending(
        &self,
        account: &str,
        epoch: &str,
        at_ms: i64,
    ) -> Result<(), StoreError> {
        let keys = self.app.keys().keys_with_settings(account)?.into_iter();
        // A key whose settings cannot be parsed admits no requests anyway.
        let keys = keys.filter(|row| {
            KeySettings::decode(&row.settings).is_ok_and(|settings| settings.spend_limit.is_some())
        });
        let members = self.app.organisations().members(account)?.into_iter();
        let members = members.filter(|member| member.budget.is_some());
        let members = members.map(|member| membership_id(account, &member.person));
        let spenders = keys
            .map(|row| (Spender::Key, row.id))
            .chain(members.map(|id| (Spender::Member, id)));
        let first_days = Period::ALL.map(|period| period.first_day(at_ms));
        for (spender, id) in spenders {
            let (spent, seq) = self.ledger.rows().key_spend_as_of(&id, first_days)?;
            let seed = SpendSeed {
                account,
                spender,
                id: &id,
                at_ms,
                spent,
                seq,
                epoch,
            };
            self.store.ingest().seed_spending(&seed).await?;
        }
        Ok(())
    }

    /// Publishes keys that changed, or whose accounts changed.
    pub(crate) async fn publish_keys(&mut self) -> Result<(), StoreError> {
        let changes = self.app.keys().key_changes(&self.keys_after, MAX_KEYS)?;
        let is_all = changes.len() < MAX_KEYS;
        let Some(last) = changes.last().map(|change| change.at.clone()) else {
            return self.mark_keys_complete().await;
        };
        for some in changes.chunks(MAX_KEYS_IN_FLIGHT) {
            let mut tasks = JoinSet::new();
            for change in some {
                tasks.spawn(publish_key(self.store.clone(), change.clone()));
            }
            while let Some(outcome) = tasks.join_next().await {
                outcome.map_err(|error| {
                    StoreError::Unusable(format!(
                        "cannot publish keys to the shared store: {error}"
                    ))
                })??;
            }
        }
        self.keys_after = last;
        if is_all {
            self.mark_keys_complete().await
        } else {
            Ok(())
        }
    }

    /// Marks the keys as complete. Without this mark after a loss of all keys, edges would refuse
    /// valid keys as unknown.
    async fn mark_keys_complete(&mut self) -> Result<(), StoreError> {
        if !self.keys_known {
            self.store.ingest().mark_keys_complete().await?;
            self.keys_known = true;
        }
        Ok(())
    }

    /// Copies the store's holds to the mirror, for other processes.
    pub(crate) async fn mirror_holds(&mut self) -> Result<(), StoreError> {
        let mut held = BTreeMap::new();
        for group in self.store.partition_groups() {
            if !self.store.ingest().has_holds(&group).await? {
                continue;
            }
            held.extend(self.store.ingest().held_by_account(&group).await?);
        }
        let released = self
            .mirrored
            .keys()
            .filter(|account| !held.contains_key(*account));
        let released = released.map(|account| (account.clone(), CreditSplit::ZERO));
        let changed = held
            .iter()
            .filter(|(account, parts)| self.mirrored.get(*account) != Some(*parts));
        let changed = changed.map(|(account, parts)| (account.clone(), *parts));
        let claim = |held| Claim {
            instance_id: self.directory.instance_id.clone(),
            held,
            settled: CreditSplit::ZERO,
        };
        let rows: Vec<_> = released
            .chain(changed)
            .map(|(account, held)| (account, claim(held)))
            .collect();
        if !rows.is_empty() {
            self.mirror.put(&rows)?;
        }
        self.mirrored = held;
        Ok(())
    }

    /// Lapses expired trials in the store. Each lapse becomes an event.
    pub(crate) async fn lapse_trials(&mut self) -> Result<(), StoreError> {
        let now_ms = clock::now_ms();
        if !self.lapse_clock.accepts(now_ms, Instant::now()) {
            return Ok(());
        }
        for (account, _) in self.ledger.rows().expired_trials(now_ms)? {
            if !self.store.balances().expire_trial(&account).await?
                && self.store.balances().account(&account).await?.is_none()
            {
                self.requested_accounts.insert(account);
            }
        }
        Ok(())
    }

    /// Releases the holds of edges that no longer run, by the server's own clock.
    pub(crate) async fn sweep_holds(&mut self) -> Result<(), StoreError> {
        let mut failed = Ok(());
        for group in self.store.partition_groups() {
            failed = failed.and(self.sweep_group(group).await);
        }
        failed
    }

    async fn sweep_group(&self, group: Vec<u32>) -> Result<(), StoreError> {
        if !self.store.ingest().has_holds(&group).await? {
            return Ok(());
        }
        let servers = self.store.ingest().partition_servers(&group).await?;
        let mut failed = Ok(());
        for (partition, server) in group.into_iter().zip(servers) {
            let swept = self.store.holds().sweep(partition, server.now_ms).await;
            failed = failed.and(swept.map(drop));
        }
        failed
    }
}

/// Returns whether a debit of this kind takes effect in the store before it is entered.
fn is_debited_first(kind: &str) -> bool {
    matches!(kind, "adjust" | "payment_refund" | "dispute")
}

/// Returns the operation id by which a debit of this kind takes effect once.
pub fn debit_operation(kind: &str, account: &str, reference: &str) -> String {
    format!("{kind}:{account}:{reference}")
}

async fn publish_key(store: SharedStore, change: KeyChange) -> Result<(), StoreError> {
    let hash = change.hash_hex();
    let KeyChange {
        at,
        account,
        shown,
        status,
        account_is_active,
        settings,
        account_rates,
        member_id,
        budget,
        models,
        token_ends_at_ms,
        ..
    } = change;
    store
        .ingest()
        .set_status(&account, account_is_active)
        .await?;
    let key_id = at.key;
    store
        .ingest()
        .put_key(&SharedKey {
            hash,
            account,
            key_id,
            shown,
            status,
            account_is_active,
            settings,
            account_rates,
            member_id,
            budget,
            models,
            token_ends_at_ms,
        })
        .await
}
