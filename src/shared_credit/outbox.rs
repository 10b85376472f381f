//! Implements the outbox relay, the thread of an edge that sends endings from its journal to the
//! shared store until the ledger has them.
//!
//! The relay sends each ending repeatedly, with growing delays, until the store confirms that the
//! ledger has it. If the store loses received data in a failover or completely, the edge sends the
//! ending again from its journal. An ending counts once, however often the relay sends it. This
//! module must not decide amounts.

mod poll_queue;

use crate::billing::backlog::{CommitRate, LedgerBacklog};
use crate::shared_credit::redis::{
    EndState, PARTITIONS, SettleCommand, SettleReply, SharedStore, partition,
};
use base::failpoint::{self, Point};
use base::telemetry::METRICS;
use config::catalog::CatalogModel;
use config::redis_address::RedisAddress;
use credits::price_list::PriceList;
use ledger::Ending;
use ledger::StoreError;
use ledger::journal;
use ledger::journal::{Journal, OrphanedJournal, Segment};
use poll_queue::{PollQueue, ScheduledEntry};
use serde::Serialize;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Maximum number of endings that are being sent at a time.
const MAX_IN_FLIGHT: usize = 256;
/// First and minimum delay between two polls whether the ledger has the ending.
const MIN_POLL_DELAY: Duration = Duration::from_millis(300);
const MAX_POLL_DELAY: Duration = Duration::from_secs(30);
const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// Time that a command waits for one reply of the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a shutdown waits for the ledger. The journal keeps the remaining endings.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// An ending that the relay sends, with the journal files to keep until the ledger has the ending.
pub struct OutboxEntry {
    ending: Ending,
    /// The serialized [`EndingMessage`].
    text: String,
    journalled_in: Vec<Arc<Segment>>,
    /// The journal of the dead process from which the ending came.
    orphaned: Option<Arc<OrphanedJournalRef>>,
    /// True if the store has received the ending.
    received: bool,
    /// True if the store had the ending at its last answer, so that only the ledger is awaited.
    is_stored: bool,
    /// True if the ledger has the ending.
    arrived: bool,
    wait: Duration,
}

impl Drop for OutboxEntry {
    /// Keeps the journal file of an ending that may not have arrived, even if the thread dies.
    fn drop(&mut self) {
        if !self.arrived {
            self.journalled_in
                .iter()
                .for_each(|segment| segment.keep_for_replay());
        }
    }
}

/// A dead process's journal. It is removed when the last of its endings has arrived.
struct OrphanedJournalRef {
    orphaned: Mutex<Option<(OrphanedJournal, usize)>>,
    missing: AtomicUsize,
    /// True to keep the directory, because the caller removes it.
    keeps_dir: bool,
}

/// An ending in the form in which it is sent to the store. The sidecar with the ledger parses it.
#[derive(Serialize)]
struct EndingMessage<'a> {
    #[serde(flatten)]
    ending: &'a Ending,
    /// Price list of the version in the detail, in case the ledger does not have it yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    price: Option<&'a PriceList>,
}

/// The journal of a dead process, and the endings that were read from it.
pub struct OrphanedEndings {
    orphaned: OrphanedJournal,
    endings: Vec<Ending>,
    unreadable: usize,
    keeps_dir: bool,
}

pub struct OutboxRelay {
    queue: Mutex<Option<Sender<Box<OutboxEntry>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    state: Arc<OutboxState>,
}

struct OutboxState {
    /// The journalled endings that may not be in the ledger yet. Endings that the store has
    /// received count in the number only, because the edge does not know how fast the sidecar
    /// enters them.
    backlog: LedgerBacklog,
    /// End of the oldest of these requests, in ms since 1970; 0 if the backlog is empty.
    oldest_ms: AtomicI64,
    failing: AtomicBool,
    /// Instances whose journals were adopted, with the debit status of each of their requests.
    adopted: Mutex<AdoptedJournals>,
}

#[derive(Default)]
struct AdoptedJournals {
    instance_ids: Vec<String>,
    debited: HashMap<String, bool>,
}

impl OutboxState {
    fn new(backlog: LedgerBacklog) -> Self {
        Self {
            backlog,
            oldest_ms: AtomicI64::new(0),
            failing: AtomicBool::new(false),
            adopted: Mutex::default(),
        }
    }

    /// Counts an ending that begins to wait.
    fn add(&self, entry: &OutboxEntry) {
        self.backlog.add_bytes(entry.bytes());
        self.backlog.add(&entry.ending.account);
    }

    fn lock_adopted(&self) -> MutexGuard<'_, AdoptedJournals> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Claims and reads the journals of dead processes in `data_dir`.
///
/// # Errors
/// Returns an error if a journal cannot be claimed or read.
pub fn claim_orphaned_endings(data_dir: &Path) -> Result<Vec<OrphanedEndings>, StoreError> {
    journal::claim_orphaned(data_dir)?
        .into_iter()
        .map(|orphaned| OrphanedEndings::from_journal(orphaned, false))
        .collect()
}

impl OrphanedEndings {
    /// Reads the endings of a journal. `keeps_dir` says whether to keep the directory after all of
    /// them have arrived.
    pub fn from_journal(orphaned: OrphanedJournal, keeps_dir: bool) -> Result<Self, StoreError> {
        let (endings, unreadable) = orphaned.endings()?;
        Ok(Self {
            orphaned,
            endings,
            unreadable,
            keeps_dir,
        })
    }
}

/// Result of a command that relays journals.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ReplayReport {
    /// Number of endings that the store had not received before.
    pub new: usize,
    /// Number of endings that may not be in the ledger yet.
    pub missing: usize,
    pub unreadable: usize,
}

/// Relays the journal directory `dir` of a dead process like [`relay_all`], and keeps the
/// directory.
///
/// # Errors
/// Returns an error if the directory is in use or cannot be read.
pub fn replay_journal(
    dir: &Path,
    address: RedisAddress,
    models: &[Arc<CatalogModel>],
    within: Duration,
) -> Result<ReplayReport, StoreError> {
    // Keep the claim on the directory until all endings are sent. It ensures that the process is
    // dead: an open request in the journal of a running process has not ended.
    relay_all(
        address,
        vec![OrphanedEndings::from_journal(
            journal::claim_journal(dir)?,
            true,
        )?],
        models,
        within,
    )
}

/// Relays the endings of `found` for a command, until the ledger has them all, but for at most
/// `within`. `models` provide the prices, as in [`OutboxRelay::start`].
///
/// # Errors
/// Returns an error if the relay cannot start. An ending that does not arrive is counted and does
/// not cause an error.
pub fn relay_all(
    address: RedisAddress,
    found: Vec<OrphanedEndings>,
    models: &[Arc<CatalogModel>],
    within: Duration,
) -> Result<ReplayReport, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|source| StoreError::io("send a journal to the shared store", source))?;
    let store = SharedStore::new(address, STORE_TIMEOUT);
    let unreadable = found.iter().map(|found| found.unreadable).sum();
    let state = Arc::new(OutboxState::new(LedgerBacklog::without_limit()));
    let mut worker = OutboxWorker::new(store, None, Arc::clone(&state), models, within);
    found.into_iter().for_each(|found| worker.adopt(found));
    // The queue has no senders, so the relay runs until all endings have arrived.
    let (_, entries) = channel(1);
    let new = runtime.block_on(worker.run(entries));
    Ok(ReplayReport {
        new,
        missing: state.backlog.kept(),
        unreadable,
    })
}

impl OutboxEntry {
    /// Creates an entry. `price` is the price list of the ending's version, in case the ledger does
    /// not have it yet.
    pub fn new(
        ending: Ending,
        price: Option<&PriceList>,
        journalled_in: Vec<Arc<Segment>>,
    ) -> Self {
        // Serialization cannot fail, because the ending was parsed from JSON or consists of types
        // that always serialize.
        let text = serde_json::to_string(&EndingMessage {
            ending: &ending,
            price,
        })
        .unwrap_or_default();
        Self {
            ending,
            text,
            journalled_in,
            orphaned: None,
            received: false,
            is_stored: false,
            arrived: false,
            wait: Duration::ZERO,
        }
    }

    /// Returns the size of the serialized ending in bytes. Its lines in the journal are shorter.
    fn bytes(&self) -> u64 {
        u64::try_from(self.text.len()).unwrap_or(u64::MAX)
    }
}

impl OutboxRelay {
    /// Starts the thread, which first relays the journals of dead processes. A journal names the
    /// price version of an ending; the relay looks it up in `models`. It periodically scans
    /// `data_dir` for journals of processes that died since. `capacity` is the maximum length of
    /// the queue, and `backlog` limits admission.
    ///
    /// # Errors
    /// Returns an error if the thread cannot start.
    pub fn start(
        store: SharedStore,
        journal: Arc<Journal>,
        data_dir: &Path,
        models: &[Arc<CatalogModel>],
        (capacity, backlog): (usize, LedgerBacklog),
    ) -> Result<Self, StoreError> {
        let state = Arc::new(OutboxState::new(backlog));
        let (queue, entries) = channel(capacity.clamp(1, 1 << 20));
        let housekeeping = OutboxHousekeeping {
            journal,
            data_dir: data_dir.to_owned(),
        };
        let mut worker = OutboxWorker::new(
            store,
            Some(housekeeping),
            Arc::clone(&state),
            models,
            SHUTDOWN_TIMEOUT,
        );
        claim_orphaned_endings(data_dir)?
            .into_iter()
            .for_each(|found| worker.adopt(found));
        let failed = |source| StoreError::io("start the outbox relay", source);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("courier".into())
            .spawn(move || {
                runtime.block_on(worker.run(entries));
            })
            .map_err(failed)?;
        Ok(Self {
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
            state,
        })
    }

    /// Queues an ending without blocking. If the queue is full, the ending remains in the journal
    /// for the next start.
    pub fn enqueue(&self, entry: OutboxEntry) {
        self.state.add(&entry);
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue
            .as_ref()
            .is_some_and(|queue| queue.try_send(Box::new(entry)).is_ok())
        {
            return;
        }
        METRICS.ledger_error("courier_queue");
        log::error!(
            "cannot queue an ended request for the shared store: the queue is closed or full; the journal keeps it"
        );
    }

    /// Returns the backlog of endings that may not be in the ledger yet.
    pub fn backlog(&self) -> &LedgerBacklog {
        &self.state.backlog
    }

    /// Returns the dead processes whose journals this process has read so far.
    pub fn adopted_instance_ids(&self) -> Vec<String> {
        self.state.lock_adopted().instance_ids.clone()
    }

    /// Returns whether a request of an adopted instance was debited, or `None` if the journals do
    /// not contain the request.
    pub fn was_debited_before(&self, request_id: &str) -> Option<bool> {
        self.state.lock_adopted().debited.get(request_id).copied()
    }

    /// Returns whether some request has ended at this edge that the store does not know of yet.
    pub fn has_unreported(&self) -> bool {
        self.state.backlog.waiting() > 0
    }

    pub fn is_failing(&self) -> bool {
        self.state.failing.load(Ordering::Relaxed)
    }

    pub fn update_gauges(&self, now_ms: i64) {
        let oldest = self.state.oldest_ms.load(Ordering::Relaxed);
        self.state.backlog.update_gauges();
        METRICS.journal_oldest_seconds.set(if oldest == 0 {
            0
        } else {
            now_ms.saturating_sub(oldest) / 1_000
        });
    }

    /// Stops the thread once the ledger has all endings, or after `SHUTDOWN_TIMEOUT`.
    pub fn shut_down(&self) {
        drop(
            self.queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        if let Some(thread) = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            let _ = thread.join();
        }
    }
}

struct OutboxWorker {
    store: SharedStore,
    /// `None` in the relay of a command.
    housekeeping: Option<OutboxHousekeeping>,
    models: Vec<Arc<CatalogModel>>,
    state: Arc<OutboxState>,
    under_way: JoinSet<Vec<SentEntry>>,
    /// Endings that wait to be sent.
    waiting: BinaryHeap<ScheduledEntry<Box<OutboxEntry>>>,
    /// Endings in the store that are polled. There is one queue for each group of partitions that
    /// one call can query.
    stored: Vec<PollQueue<Box<OutboxEntry>>>,
    /// Number of the queue of each partition.
    queue_of: Vec<usize>,
    /// Time at which all waiting endings were last sent at once.
    resent_at: Instant,
    /// Ends of the requests whose endings have not arrived yet, in ms since 1970, with the number
    /// of requests for each time.
    ended_at: BTreeMap<i64, usize>,
    /// Measures the rate at which the store receives endings.
    rate: CommitRate,
    /// Time of the last measurement of the rate. `None` unless more endings wait than can be sent
    /// at a time.
    busy_since: Option<Instant>,
    /// Number of endings that the store had not received before.
    new: usize,
    finish_within: Duration,
}

/// The additional data of an edge's relay.
struct OutboxHousekeeping {
    journal: Arc<Journal>,
    data_dir: PathBuf,
}

type SentEntry = (Box<OutboxEntry>, Result<StoreAnswer, StoreError>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreAnswer {
    /// The store has received the ending. `is_new` says that it had not received the ending before.
    Stored { is_new: bool },
    /// The ledger has the ending.
    Applied,
    /// The store no longer has the ending.
    Lost,
}

impl OutboxWorker {
    fn new(
        store: SharedStore,
        housekeeping: Option<OutboxHousekeeping>,
        state: Arc<OutboxState>,
        models: &[Arc<CatalogModel>],
        finish_within: Duration,
    ) -> Self {
        let (under_way, waiting, ended_at) = (JoinSet::new(), BinaryHeap::new(), BTreeMap::new());
        let groups = store.partition_groups();
        let queue = |partition| groups.iter().position(|group| group.contains(&partition));
        let queue_of = (0..PARTITIONS)
            .map(|partition| queue(partition).unwrap_or_default())
            .collect();
        let stored = groups.iter().map(|_| PollQueue::new()).collect();
        Self {
            stored,
            queue_of,
            resent_at: Instant::now(),
            store,
            housekeeping,
            models: models.to_vec(),
            state,
            under_way,
            waiting,
            ended_at,
            rate: CommitRate::default(),
            busy_since: None,
            new: 0,
            finish_within,
        }
    }

    fn adopt(&mut self, found: OrphanedEndings) {
        let OrphanedEndings {
            orphaned,
            endings,
            unreadable,
            keeps_dir,
        } = found;
        log::warn!(
            "instance {} left {} ended requests; sending them to the shared store",
            orphaned.instance_id,
            endings.len()
        );
        {
            // Record the requests before the directory can be removed. A missing directory means
            // that all its requests are recorded.
            let mut adopted = self.state.lock_adopted();
            adopted.instance_ids.push(orphaned.instance_id.clone());
            let debited = endings
                .iter()
                .map(|ending| (ending.request_id.clone(), ending.kind() == "debit"));
            adopted.debited.extend(debited);
        }
        let missing = AtomicUsize::new(endings.len());
        let orphaned_ref = Arc::new(OrphanedJournalRef {
            missing,
            orphaned: Mutex::new(Some((orphaned, unreadable))),
            keeps_dir,
        });
        if endings.is_empty() {
            orphaned_ref.remove();
        }
        for ending in endings {
            let version = &ending.detail.price_version;
            let price = self
                .models
                .iter()
                .map(|model| &*model.price)
                .find(|price| price.version == *version);
            let mut entry = OutboxEntry::new(ending, price, Vec::new());
            entry.orphaned = Some(Arc::clone(&orphaned_ref));
            self.state.add(&entry);
            self.enqueue(Box::new(entry));
        }
    }

    fn enqueue(&mut self, entry: Box<OutboxEntry>) {
        *self.ended_at.entry(entry.ending.at_ms).or_default() += 1;
        self.update_oldest();
        self.waiting.push(ScheduledEntry {
            at: Instant::now(),
            entry,
        });
    }

    fn update_oldest(&self) {
        let oldest = self
            .ended_at
            .first_key_value()
            .map_or(0, |(at_ms, _)| *at_ms);
        self.state.oldest_ms.store(oldest, Ordering::Relaxed);
    }

    /// Runs until the queue is closed and all endings have arrived. Returns the number of endings
    /// that the store had not received before.
    async fn run(mut self, mut entries: Receiver<Box<OutboxEntry>>) -> usize {
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING_INTERVAL);
        let mut closing: Option<Instant> = None;
        loop {
            self.send_due();
            self.poll_due();
            let next = self.waiting.peek().map(|due| due.at);
            let next = next
                .into_iter()
                .chain(self.stored.iter().filter_map(PollQueue::due_at))
                .min()
                .unwrap_or_else(|| Instant::now() + HOUSEKEEPING_INTERVAL);
            tokio::select! {
                entry = entries.recv(), if closing.is_none() => match entry {
                    Some(entry) => self.enqueue(entry),
                    None => {
                        closing = Some(Instant::now() + self.finish_within);
                        self.poll_all_now();
                    }
                },
                Some(done) = self.under_way.join_next() => self.handle_replies(done),
                _ = tokio::time::sleep_until(next), if self.under_way.len() < MAX_IN_FLIGHT => {}
                _ = housekeeping.tick() => self.housekeep(),
            }
            let is_done = self.waiting.is_empty()
                && self.stored.iter().all(PollQueue::is_empty)
                && self.under_way.is_empty();
            if closing.is_some_and(|until| is_done || Instant::now() >= until) {
                break;
            }
        }
        while let Some(done) = self.under_way.join_next().await {
            self.handle_replies(done);
        }
        self.waiting.clear();
        self.stored.iter_mut().for_each(PollQueue::clear);
        self.housekeep();
        self.new
    }

    /// Polls every entry at once during a shutdown, instead of when it is due.
    fn poll_all_now(&mut self) {
        self.send_all_now();
        self.stored.iter_mut().for_each(PollQueue::suspect_all);
    }

    /// Sends the entries that wait for a retry at once, because the store answers again.
    fn send_all_now(&mut self) {
        let due = |ScheduledEntry { mut entry, .. }: ScheduledEntry<Box<OutboxEntry>>| {
            entry.wait = Duration::ZERO;
            ScheduledEntry {
                at: Instant::now(),
                entry,
            }
        };
        self.waiting = std::mem::take(&mut self.waiting)
            .into_iter()
            .map(due)
            .collect();
    }

    /// Sends the entries that are due, up to the in-flight limit.
    fn send_due(&mut self) {
        while self.under_way.len() < MAX_IN_FLIGHT
            && self
                .waiting
                .peek()
                .is_some_and(|due| due.at <= Instant::now())
        {
            let Some(ScheduledEntry { entry, .. }) = self.waiting.pop() else {
                return;
            };
            let store = self.store.clone();
            self.under_way.spawn(async move {
                let Ending {
                    request_id,
                    account,
                    detail,
                    ..
                } = &entry.ending;
                let (cost, key_id) = (entry.ending.cost(), &detail.key_id);
                let member = detail.member.as_deref();
                let tokens = detail.usage.tokens_total();
                let end = SettleCommand {
                    request_id,
                    account,
                    cost,
                    ending: &entry.text,
                    key_id,
                    member,
                    tokens,
                };
                let outcome = store.holds().settle(&end).await;
                failpoint::hit(Point::EndingTold);
                let outcome = outcome.map(|reply| match reply {
                    SettleReply::Done { .. } => StoreAnswer::Stored { is_new: true },
                    SettleReply::Known { .. } => StoreAnswer::Stored { is_new: false },
                    SettleReply::Applied => StoreAnswer::Applied,
                });
                vec![(entry, outcome)]
            });
        }
    }

    /// Queries whether the ledger has the stored endings that are due, with one call for many.
    fn poll_due(&mut self) {
        let now = Instant::now();
        for queue in &mut self.stored {
            while self.under_way.len() < MAX_IN_FLIGHT {
                let due = queue.take_due(now);
                if due.is_empty() {
                    break;
                }
                self.under_way.spawn(poll(self.store.clone(), due));
            }
        }
    }

    fn handle_replies(&mut self, done: Result<Vec<SentEntry>, tokio::task::JoinError>) {
        match done {
            Ok(replies) => {
                for (entry, outcome) in replies {
                    self.handle_reply(entry, outcome);
                }
            }
            // A task that panicked dropped its entries, which the journal keeps.
            Err(_) => METRICS.ledger_error("courier_task"),
        }
    }

    fn handle_reply(
        &mut self,
        mut entry: Box<OutboxEntry>,
        outcome: Result<StoreAnswer, StoreError>,
    ) {
        let failing = outcome.is_err();
        if failing != self.state.failing.swap(failing, Ordering::Relaxed) {
            match &outcome {
                Err(error) => log::error!("{error}; retrying"),
                Ok(_) => {
                    log::info!("the shared store accepts ended requests again");
                    // Do this at intervals only, because another node of a cluster may still be
                    // unreachable.
                    if self.resent_at.elapsed() >= MAX_RETRY_DELAY {
                        self.resent_at = Instant::now();
                        self.send_all_now();
                    }
                }
            }
        }
        let is_new = matches!(outcome, Ok(StoreAnswer::Stored { is_new: true }));
        let is_lost = matches!(outcome, Ok(StoreAnswer::Lost));
        self.new += usize::from(is_new && !entry.received);
        let next_delay = |wait: Duration, min, max| (wait * 2).clamp(min, max);
        if !failing && !std::mem::replace(&mut entry.received, true) {
            self.state.backlog.accept(1);
            self.measure();
            entry.wait = Duration::ZERO;
        }
        match outcome {
            Ok(StoreAnswer::Applied) => return self.acknowledge(entry),
            Ok(StoreAnswer::Stored { .. }) => {
                entry.is_stored = true;
                entry.wait = next_delay(entry.wait, MIN_POLL_DELAY, MAX_POLL_DELAY);
            }
            Ok(StoreAnswer::Lost) => {
                entry.is_stored = false;
                entry.wait = Duration::ZERO;
            }
            Err(_) => {
                METRICS.ledger_error("shared_store");
                entry.wait = next_delay(entry.wait, MIN_RETRY_DELAY, MAX_RETRY_DELAY);
            }
        }
        let at = Instant::now() + entry.wait;
        let partition = usize::try_from(partition(&entry.ending.account)).unwrap_or_default();
        let number = self.queue_of.get(partition).copied().unwrap_or_default();
        let is_stored = entry.is_stored;
        let scheduled = ScheduledEntry { at, entry };
        match self.stored.get_mut(number) {
            Some(queue) if is_stored => queue.push(scheduled),
            queue => {
                if is_lost && let Some(queue) = queue {
                    queue.suspect_all();
                }
                self.waiting.push(scheduled);
            }
        }
    }

    /// Measures the rate at which the store receives endings, while more wait than one call takes.
    fn measure(&mut self) {
        let now = Instant::now();
        let is_busy = self.state.backlog.waiting() >= MAX_IN_FLIGHT;
        if let Some(since) = self.busy_since.filter(|_| is_busy) {
            let rate = self.rate.record(1, now.duration_since(since));
            self.state.backlog.set_rate(rate);
        }
        self.busy_since = is_busy.then_some(now);
    }

    fn acknowledge(&mut self, mut entry: Box<OutboxEntry>) {
        failpoint::hit(Point::EndingArrived);
        entry.arrived = true;
        if let Some(orphaned_ref) = &entry.orphaned
            && orphaned_ref.missing.fetch_sub(1, Ordering::AcqRel) == 1
        {
            orphaned_ref.remove();
        }
        self.state.backlog.remove_bytes(entry.bytes());
        self.state.backlog.remove([&*entry.ending.account]);
        if let Entry::Occupied(mut count) = self.ended_at.entry(entry.ending.at_ms) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.update_oldest();
    }

    fn housekeep(&mut self) {
        let Some(housekeeping) = &mut self.housekeeping else {
            return;
        };
        housekeeping.journal.remove_covered();
        housekeeping.journal.restore_reserve();
        let found = housekeeping
            .claim_orphaned_by_others()
            .unwrap_or_else(|error| {
                METRICS.ledger_error("dead_journals");
                log::warn!("{error}");
                Vec::new()
            });
        found.into_iter().for_each(|found| self.adopt(found));
    }
}

impl OutboxHousekeeping {
    /// Claims the journals of predecessors that died after they handed over.
    fn claim_orphaned_by_others(&self) -> Result<Vec<OrphanedEndings>, StoreError> {
        let is_alone = journal::instance_ids(&self.data_dir)?
            .iter()
            .all(|instance_id| instance_id == self.journal.instance_id());
        if is_alone {
            Ok(Vec::new())
        } else {
            claim_orphaned_endings(&self.data_dir)
        }
    }
}

/// Queries whether the ledger has these endings.
async fn poll(store: SharedStore, due: Vec<ScheduledEntry<Box<OutboxEntry>>>) -> Vec<SentEntry> {
    let request = |due: &'_ ScheduledEntry<Box<OutboxEntry>>| {
        let Ending {
            account,
            request_id,
            ..
        } = &due.entry.ending;
        (account.clone(), request_id.clone())
    };
    let requests: Vec<_> = due.iter().map(request).collect();
    let entries = due.into_iter().map(|due| due.entry);
    let answer = |state| match state {
        EndState::Applied => StoreAnswer::Applied,
        EndState::Waiting => StoreAnswer::Stored { is_new: false },
        EndState::Lost => StoreAnswer::Lost,
    };
    match store.holds().end_states(&requests).await {
        Ok(states) => entries
            .zip(states)
            .map(|(entry, state)| (entry, Ok(answer(state))))
            .collect(),
        Err(error) => {
            log::debug!("{error}");
            // The same error applies to all entries, which are polled again.
            let failed = |entry| (entry, Err(StoreError::Unusable(error.to_string())));
            entries.map(failed).collect()
        }
    }
}

impl OrphanedJournalRef {
    fn remove(&self) {
        let orphaned = self
            .orphaned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((orphaned, unreadable)) = orphaned.filter(|_| !self.keeps_dir)
            && let Err(error) = orphaned.remove(unreadable)
        {
            log::warn!("{error}");
        }
    }
}
