//! Holds the state of the ledger ingest: its databases, and the progress of each task.
//!
//! No part of the state must survive the process, because a new worker finds it again. This file
//! must not run a task.

use super::lost_partitions::LostPartitions;
use crate::billing::LapseClock;
use crate::shared_credit::redis::{PARTITIONS, SharedStore};
use accounts::db::AppDb;
use accounts::db::key_changes::ChangeCursor;
use base::clock;
use credits::money::CreditSplit;
use ledger::StoreError;
use ledger::instance_lock;
use ledger::instance_lock::InstanceLock;
use ledger::journal;
use ledger::journal::InstanceDir;
use ledger::journal::holds_mirror::HoldsMirror;
use ledger::postgres::PostgresHome;
use ledger::{Ledger, PartitionLocation};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Runs the steps of the ingest. [`super::LedgerIngest`] is the thread that calls it.
pub struct IngestWorker {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) app: AppDb,
    pub(crate) store: SharedStore,
    pub(crate) mirror: HoldsMirror,
    pub(crate) directory: InstanceDir,
    /// Last known server and epoch of each partition.
    pub(crate) found: Vec<Option<PartitionLocation>>,
    /// The last ledger entry that was published to the store.
    pub(crate) pushed: i64,
    /// The last published entry that the store has recorded.
    pub(crate) recorded: i64,
    pub(crate) keys_after: ChangeCursor,
    /// True if the store has received every key since it last lost its keys.
    pub(crate) keys_known: bool,
    pub(crate) requested_accounts: BTreeSet<String>,
    /// Partitions whose data the store has lost, until the edges have reported again.
    pub(crate) lost: LostPartitions,
    pub(crate) mirrored: BTreeMap<String, CreditSplit>,
    pub(crate) backlog: Backlog,
    pub(crate) lapse_clock: LapseClock,
    /// Position of the last entry that was announced to the store.
    pub(crate) announced: Option<i64>,
    /// Events that cannot be entered and were reported.
    pub(crate) reported: HashSet<String>,
    _owner: InstanceLock,
}

/// Size and age of the events that one pass found.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    pub events: i64,
    pub oldest_ms: Option<i64>,
    /// True if there were more events than the maximum of one pass.
    pub is_left: bool,
}

impl Backlog {
    pub(crate) fn add(&mut self, events: usize, first_ms: Option<i64>) {
        self.events = self
            .events
            .saturating_add(i64::try_from(events).unwrap_or(i64::MAX));
        self.oldest_ms = [self.oldest_ms, first_ms].into_iter().flatten().min();
    }
}

impl IngestWorker {
    /// Acquires the right to enter events into the ledger in `data_dir`, and opens the databases.
    ///
    /// # Errors
    /// Returns an error if another process has the right or a database cannot be opened.
    pub fn open(
        data_dir: &Path,
        store: SharedStore,
        home: Option<&PostgresHome>,
    ) -> Result<Self, StoreError> {
        let ledger = Arc::new(Ledger::open_with_home(data_dir, home)?);
        let owner = instance_lock::acquire(data_dir)?;
        let directory = InstanceDir::create(data_dir)?;
        let mut mirror = HoldsMirror::open_or_renew(data_dir)?;
        mirror.retain_instances(&journal::live_instance_ids(data_dir)?)?;
        let lapse_clock = LapseClock::new(ledger.last_known_ms()?, clock::now_ms(), Instant::now());
        let found = (0..PARTITIONS)
            .map(|partition| ledger.events().partition_location(partition))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            pushed: ledger.events().published_seq()?,
            app: AppDb::open(data_dir, home)?,
            ledger,
            store,
            mirror,
            directory,
            found,
            recorded: 0,
            keys_after: ChangeCursor::default(),
            keys_known: false,
            requested_accounts: BTreeSet::new(),
            lost: LostPartitions::default(),
            mirrored: BTreeMap::new(),
            backlog: Backlog::default(),
            lapse_clock,
            announced: None,
            reported: HashSet::new(),
            _owner: owner,
        })
    }

    /// Removes this process's journal directory, and its mirrored holds.
    ///
    /// # Errors
    /// Returns an error if the mirror cannot be written.
    pub fn close(self) -> Result<(), StoreError> {
        self.mirror.remove_instance(&self.directory.instance_id)?;
        self.directory.remove();
        Ok(())
    }
}
