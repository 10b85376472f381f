//! Recovery of a server's lost data: the last moments after a failover, everything after a total
//! loss.
//!
//! Every restart and failover changes the server's id; a missing epoch means that the data is gone.
//! This module then publishes again what the ledger has entered since: the markers of ended
//! requests and of posts, so that data that was not lost does not change. Without the markers, an
//! edge that reports a request's end again would cause a second debit. Must not restore balances:
//! accounts are seeded as a whole.

use super::worker::IngestWorker;
use crate::clock;
use crate::store::StoreError;
use crate::store::ledger::{EndingDetail, LedgerEntry, LedgerStore as _, PartitionLocation};
use crate::store::redis::{MAX_RESTORED, PartitionServer, RestoreEntry, partition};
use credits::money::CreditSplit;
use credits::money::Micro;
use std::collections::BTreeMap;

/// How far back a failover may have lost data, where the server has no record of what was
/// published. Replicas lag by seconds, not minutes.
const MAX_FAILOVER_LOSS_MS: i64 = 10 * 60_000;
/// How long after a total loss edges may still report endings.
const MAX_REPORT_DELAY_MS: i64 = 12 * 3_600_000;
/// Maximum age of requests to restore: markers of older requests may have expired, so their absence
/// proves nothing.
const MARKER_GUARANTEE_MS: i64 = 11 * 3_600_000;
/// Prefix of an epoch during its restoration. The ledger never stores such an epoch, so nothing
/// relies on it.
const RESTORING_EPOCH_PREFIX: &str = "restoring:";
const PAGE_SIZE: u32 = 1_000;

impl IngestWorker {
    /// Checks which server answers for each partition, and restores the partitions where it
    /// changed.
    pub(super) async fn locate_partitions(&mut self) -> Result<(), StoreError> {
        let (mut changed, mut failed) = (Vec::new(), Ok(()));
        for group in self.store.partition_groups() {
            // If one node is unreachable, the others are still checked.
            match self.store.partition_servers(&group).await {
                Ok(servers) => {
                    for (partition, current) in group.into_iter().zip(servers) {
                        if !self.refresh_if_unchanged(partition, &current) {
                            changed.push((partition, current));
                        }
                    }
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        if !changed.is_empty() {
            self.restore_partitions(changed).await?;
        }
        failed
    }

    /// Whether the server and its epoch are the same as last time; if so, records the time.
    pub(super) fn refresh_if_unchanged(
        &mut self,
        partition: u32,
        current: &PartitionServer,
    ) -> bool {
        let slot = usize::try_from(partition)
            .ok()
            .and_then(|index| self.found.get_mut(index));
        let Some(Some(found)) = slot else {
            return false;
        };
        let same = found.server == current.server && has_same_epoch(found, current);
        if same {
            found.seen_ms = clock::now_ms();
        }
        same
    }

    async fn restore_partitions(
        &mut self,
        changed: Vec<(u32, PartitionServer)>,
    ) -> Result<(), StoreError> {
        let now_ms = clock::now_ms();
        let mut after = i64::MAX;
        let mut new_epochs = BTreeMap::new();
        for (partition, current) in &changed {
            let known = self.ledger.partition_location(*partition)?;
            match known.filter(|found| has_same_epoch(found, current)) {
                Some(found) => after = after.min(self.last_published(*partition, &found).await?),
                None => {
                    let since_ms = now_ms.saturating_sub(MAX_REPORT_DELAY_MS);
                    after = after.min(self.ledger.mark_before(since_ms)?);
                    // If the data is lost again during the restoration, this token is lost too, and
                    // the new epoch does not begin.
                    let token =
                        format!("{RESTORING_EPOCH_PREFIX}{}", uuid::Uuid::now_v7().simple());
                    self.begin_epoch(*partition, &current.epoch, &token).await?;
                    new_epochs.insert(*partition, token);
                }
            }
        }
        let partitions: Vec<_> = changed.iter().map(|(partition, _)| *partition).collect();
        let restored = self.restore_after(after, &partitions, now_ms).await?;
        let mut found = Vec::new();
        for (partition, current) in changed {
            let mut epoch = current.epoch;
            if let Some(token) = new_epochs.get(&partition) {
                epoch = uuid::Uuid::now_v7().simple().to_string();
                self.begin_epoch(partition, token, &epoch).await?;
            }
            found.push((
                partition,
                PartitionLocation {
                    server: current.server,
                    epoch,
                    seen_ms: now_ms,
                },
            ));
        }
        self.ledger.set_partition_locations(&found)?;
        for (partition, found) in found {
            if let Some(slot) = usize::try_from(partition)
                .ok()
                .and_then(|index| self.found.get_mut(index))
            {
                *slot = Some(found);
            }
        }
        // The loss may include keys and revocations, so publish all keys again.
        self.keys_after = Default::default();
        if !new_epochs.is_empty() {
            self.keys_known = false;
        }
        let (all, new) = (partitions.len(), new_epochs.len());
        log::warn!(
            "{all} partitions of the shared store moved to another server, {new} of them empty; restored {restored} requests"
        );
        Ok(())
    }

    async fn begin_epoch(
        &self,
        partition: u32,
        before: &str,
        epoch: &str,
    ) -> Result<(), StoreError> {
        if self.store.begin_epoch(partition, before, epoch).await? {
            return Ok(());
        }
        Err(StoreError::Unusable(format!(
            "partition {partition} of the shared store was lost again while the ledger ingest restored it"
        )))
    }

    /// Returns a position in the ledger up to which a partition has every entry, whichever server
    /// answers for it now.
    async fn last_published(
        &self,
        partition: u32,
        found: &PartitionLocation,
    ) -> Result<i64, StoreError> {
        match self.store.published(partition).await? {
            Some(seq) => Ok(seq),
            None => self
                .ledger
                .mark_before(found.seen_ms.saturating_sub(MAX_FAILOVER_LOSS_MS)),
        }
    }

    /// Records at each server how much of the ledger it has, so that a later recovery is short.
    pub(super) async fn record_published(&mut self) -> Result<(), StoreError> {
        if self.recorded == self.pushed {
            return Ok(());
        }
        for group in self.store.partition_groups() {
            let found = group.first().and_then(|partition| {
                let index = usize::try_from(*partition).ok()?;
                self.found.get(index)?.as_ref()
            });
            if let Some(PartitionLocation { server, .. }) = found {
                self.store
                    .record_published(&group, server, self.pushed)
                    .await?;
            }
        }
        self.recorded = self.pushed;
        Ok(())
    }

    /// Publishes again what the ledger has after the entry `after`. Returns the number of requests
    /// that the store did not know.
    async fn restore_after(
        &self,
        mut after: i64,
        which: &[u32],
        now_ms: i64,
    ) -> Result<usize, StoreError> {
        let mut restored = 0;
        loop {
            let entries = self.ledger.entries_after(after, PAGE_SIZE)?;
            let Some(last) = entries.last() else {
                return Ok(restored);
            };
            after = last.seq;
            let mut requests: BTreeMap<u32, Vec<RestoreEntry>> = BTreeMap::new();
            for entry in entries {
                let partition = partition(&entry.account);
                if !which.contains(&partition) {
                    continue;
                }
                if !entry.is_ending() || entry.is_late() {
                    self.publish_entry(&entry).await?;
                } else if now_ms.saturating_sub(entry.at_ms) < MARKER_GUARANTEE_MS {
                    requests
                        .entry(partition)
                        .or_default()
                        .push(restore_entry(entry));
                }
            }
            for (partition, requests) in requests {
                for some in requests.chunks(MAX_RESTORED) {
                    restored += self.store.restore(partition, some).await?;
                }
            }
        }
    }

    /// Saves how far everything has progressed, so that a later recovery starts from there.
    pub(super) fn save_progress(&mut self) -> Result<(), StoreError> {
        let found = self
            .found
            .iter()
            .zip(0..)
            .filter_map(|(found, partition)| Some((partition, found.clone()?)));
        self.ledger
            .set_partition_locations(&found.collect::<Vec<_>>())?;
        self.ledger.set_published_seq(self.pushed)?;
        self.ledger.renew_anchor()?;
        self.ledger.save_mark(clock::now_ms())
    }
}

fn has_same_epoch(found: &PartitionLocation, current: &PartitionServer) -> bool {
    found.epoch == current.epoch && !current.epoch.is_empty()
}

fn restore_entry(entry: LedgerEntry) -> RestoreEntry {
    let taken = CreditSplit {
        paid: Micro::ZERO.minus(entry.d_paid),
        trial: Micro::ZERO.minus(entry.d_trial),
    };
    let detail = serde_json::from_str::<EndingDetail>(&entry.detail);
    let key_id = detail.map(|detail| detail.key_id).unwrap_or_default();
    let LedgerEntry {
        reference: request_id,
        account,
        seq,
        at_ms,
        ..
    } = entry;
    RestoreEntry {
        request_id,
        account,
        taken,
        seq,
        key_id,
        at_ms,
    }
}
