//! Recovers the data that a server has lost: the last moments after a failover, or all data.
//!
//! Every restart and failover changes the server's id. This module then publishes the ledger's
//! recent ends of requests and postings again. Each one takes effect once, so data that was not
//! lost does not change. A server without an epoch has lost all data, so it begins a new epoch.
//! This file must not restore balances, because accounts are seeded as a whole.

use super::worker::IngestWorker;
use crate::shared_credit::redis::{MAX_RESTORED, PartitionServer, RestoreEntry, partition};
use base::clock;
use credits::money::CreditSplit;
use credits::money::Micro;
use ledger::StoreError;
use ledger::{LedgerEntry, PartitionLocation};
use std::collections::BTreeMap;
use std::time::Instant;

/// Maximum period, in ms, whose data a failover may have lost if the server has no record of its
/// last published entry. Replicas lag by seconds, not minutes.
const MAX_FAILOVER_LOSS_MS: i64 = 10 * 60_000;
/// Maximum age of requests to restore, a little less than the lifetime of a marker: the marker of
/// an older request may have expired, so its absence proves nothing.
const MARKER_GUARANTEE_MS: i64 = 50 * 60_000;
/// Maximum period, in ms, to restore data of another epoch without a record of its last published
/// entry.
const MAX_OTHER_EPOCH_AGE_MS: i64 = 12 * 3_600_000;
/// Prefix of an epoch during its restoration. The ledger never stores such an epoch, so it does not
/// count as known.
const RESTORING_EPOCH_PREFIX: &str = "restoring:";
const PAGE_SIZE: u32 = 1_000;

impl IngestWorker {
    /// Finds the server of each partition, and restores the partitions whose server changed.
    pub(crate) async fn locate_partitions(&mut self) -> Result<(), StoreError> {
        let (mut changed, mut failed) = (Vec::new(), Ok(()));
        for group in self.store.partition_groups() {
            // If one node is unreachable, check the others all the same.
            match self.store.ingest().partition_servers(&group).await {
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

    /// Returns whether the server and its epoch are unchanged. If so, records the time.
    pub(crate) fn refresh_if_unchanged(
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
        let (mut moved, mut empty) = (Vec::new(), Vec::new());
        let (mut new_epochs, mut oldest_ms) = (BTreeMap::new(), BTreeMap::new());
        for (partition, current) in changed {
            if self.is_empty(partition, &current).await? {
                empty.push((partition, current));
                continue;
            }
            let known = self.ledger.events().partition_location(partition)?;
            match known.filter(|found| has_same_epoch(found, &current)) {
                Some(found) => {
                    let since_ms = found.seen_ms.saturating_sub(MAX_FAILOVER_LOSS_MS);
                    after = after.min(self.last_published(partition, since_ms).await?);
                    oldest_ms.insert(partition, now_ms.saturating_sub(MARKER_GUARANTEE_MS));
                }
                // The data is older, so all later entries are missing, whatever their age.
                None => {
                    let since_ms = now_ms.saturating_sub(MAX_OTHER_EPOCH_AGE_MS);
                    after = after.min(self.last_published(partition, since_ms).await?);
                    oldest_ms.insert(partition, i64::MIN);
                    // If the data is lost during the restoration, this token is lost too, and the
                    // new epoch does not begin.
                    let token = format!("{RESTORING_EPOCH_PREFIX}{}", new_epoch());
                    self.begin_epoch(partition, &current.epoch, &token).await?;
                    new_epochs.insert(partition, token);
                }
            }
            moved.push((partition, current));
        }
        // The lost data may include keys and revocations, so publish all keys again.
        self.keys_after = Default::default();
        if !empty.is_empty() || !new_epochs.is_empty() {
            self.keys_known = false;
            self.recorded = 0;
        }
        let (moved_count, empty_count) = (moved.len(), empty.len());
        self.begin_empty_partitions(empty, now_ms).await?;
        let restored = self.restore_after(after, &oldest_ms).await?;
        let mut locations = Vec::new();
        for (partition, PartitionServer { server, epoch, .. }) in moved {
            let epoch = match new_epochs.get(&partition) {
                Some(token) => {
                    let epoch = new_epoch();
                    self.begin_epoch(partition, token, &epoch).await?;
                    epoch
                }
                None => epoch,
            };
            locations.push((partition, location(server, epoch, now_ms)));
        }
        self.set_locations(locations)?;
        log::warn!(
            "the shared store is another server, or has other data: {empty_count} partitions are empty; restored {restored} requests in {moved_count} others"
        );
        Ok(())
    }

    /// Returns whether the server has no data of the partition.
    async fn is_empty(
        &self,
        partition: u32,
        current: &PartitionServer,
    ) -> Result<bool, StoreError> {
        Ok(current.epoch.is_empty() && self.store.ingest().published(partition).await?.is_none())
    }

    /// Begins an epoch in partitions without data. Nothing is restored, because their accounts are
    /// seeded from the ledger once the edges have reported again. Requests that began earlier have
    /// no hold in the new epoch, so the ledger decides about their ends.
    async fn begin_empty_partitions(
        &mut self,
        empty: Vec<(u32, PartitionServer)>,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let now = Instant::now();
        for (partition, current) in &empty {
            // A store that never had data has lost none.
            if self
                .ledger
                .events()
                .partition_location(*partition)?
                .is_some()
            {
                self.lost.add(*partition, current.now_ms, now);
            }
        }
        let located: Vec<_> = empty
            .into_iter()
            .map(|(partition, current)| (partition, location(current.server, new_epoch(), now_ms)))
            .collect();
        // Save the epochs in the ledger first, so that a restart finds the partitions empty again.
        self.set_locations(located.clone())?;
        for (partition, PartitionLocation { epoch, .. }) in located {
            self.begin_epoch(partition, "", &epoch).await?;
        }
        Ok(())
    }

    /// Records the servers and epochs of partitions.
    fn set_locations(
        &mut self,
        locations: Vec<(u32, PartitionLocation)>,
    ) -> Result<(), StoreError> {
        if locations.is_empty() {
            return Ok(());
        }
        self.ledger.events().set_partition_locations(&locations)?;
        for (partition, location) in locations {
            if let Some(slot) = usize::try_from(partition)
                .ok()
                .and_then(|index| self.found.get_mut(index))
            {
                *slot = Some(location);
            }
        }
        Ok(())
    }

    async fn begin_epoch(
        &self,
        partition: u32,
        before: &str,
        epoch: &str,
    ) -> Result<(), StoreError> {
        if self
            .store
            .ingest()
            .begin_epoch(partition, before, epoch)
            .await?
        {
            return Ok(());
        }
        Err(StoreError::Unusable(format!(
            "partition {partition} of the shared store was lost again while the ledger ingest restored it"
        )))
    }

    /// Returns a position in the ledger up to which a partition has every entry. It comes from the
    /// server's record, or from the entries published before `since_ms`.
    async fn last_published(&self, partition: u32, since_ms: i64) -> Result<i64, StoreError> {
        match self.store.ingest().published(partition).await? {
            Some(seq) => Ok(seq),
            None => self.ledger.events().mark_before(since_ms),
        }
    }

    /// Records the last published entry at each server, so that a later recovery is short.
    pub(crate) async fn record_published(&mut self) -> Result<(), StoreError> {
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
                    .ingest()
                    .record_published(&group, server, self.pushed)
                    .await?;
            }
        }
        self.recorded = self.pushed;
        Ok(())
    }

    /// Publishes the ledger's entries after the position `after` to these partitions again. Of the
    /// requests in each partition, only those that ended after the given time are published.
    /// Returns the number of requests that the store did not know.
    async fn restore_after(
        &self,
        mut after: i64,
        oldest_ms: &BTreeMap<u32, i64>,
    ) -> Result<usize, StoreError> {
        let mut restored = 0;
        loop {
            let entries = self.ledger.rows().entries_after(after, PAGE_SIZE)?;
            let Some(last) = entries.last() else {
                return Ok(restored);
            };
            after = last.seq;
            let mut requests: BTreeMap<u32, Vec<RestoreEntry>> = BTreeMap::new();
            for entry in entries {
                let partition = partition(&entry.account);
                let Some(oldest_ms) = oldest_ms.get(&partition) else {
                    continue;
                };
                if !entry.is_ending() || entry.is_late() {
                    self.publish_entry(&entry).await?;
                } else if entry.at_ms > *oldest_ms {
                    requests
                        .entry(partition)
                        .or_default()
                        .push(restore_entry(entry));
                }
            }
            for (partition, requests) in requests {
                for some in requests.chunks(MAX_RESTORED) {
                    restored += self.store.ingest().restore(partition, some).await?;
                }
            }
        }
    }

    /// Saves the progress of all tasks, so that a later recovery starts from it.
    pub(crate) fn save_progress(&mut self) -> Result<(), StoreError> {
        let found = self
            .found
            .iter()
            .zip(0..)
            .filter_map(|(found, partition)| Some((partition, found.clone()?)));
        self.ledger
            .events()
            .set_partition_locations(&found.collect::<Vec<_>>())?;
        self.ledger.events().set_published_seq(self.pushed)?;
        self.ledger.renew_anchor()?;
        self.ledger.events().save_mark(clock::now_ms())
    }
}

fn location(server: String, epoch: String, seen_ms: i64) -> PartitionLocation {
    PartitionLocation {
        server,
        epoch,
        seen_ms,
    }
}

fn new_epoch() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

fn has_same_epoch(found: &PartitionLocation, current: &PartitionServer) -> bool {
    found.epoch == current.epoch && !current.epoch.is_empty()
}

fn restore_entry(entry: LedgerEntry) -> RestoreEntry {
    let taken = CreditSplit {
        paid: Micro::ZERO.minus(entry.d_paid),
        trial: Micro::ZERO.minus(entry.d_trial),
    };
    let spenders = entry.spenders();
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
        spenders,
        at_ms,
    }
}
