//! Requests that the gateway refused after it had recognised their key, and what is known of others
//! beside their receipts: what an account holder sees of them for 30 days.
//!
//! A request only adds its refusal to memory, and a separate thread writes the refusals once a
//! second, so that no request waits for a disk. A crash loses at most the last second. Refused
//! requests cost nothing, so they are not in the ledger, and `refused.db` can be deleted. Edges
//! with a shared store send their refusals to the sidecar (`shared_credit/refusals.rs`). This
//! module must not decide about refusals. Next: `refused_requests/db.rs` (the rows),
//! `refused_requests/batch.rs` (the batches of an edge).

mod batch;
mod db;
mod note;
mod request;
#[cfg(test)]
mod tests;

use accounts::{AccountStatus, Accounts};
use base::clock;
use batch::RefusedBatch;
use db::RefusedRequestsDb;
pub use db::{RefusedCount, RefusedCursor, RefusedFilter};
use ledger::StoreError;
pub use note::{MAX_NOTES, MAX_WORDS_CHARS, NoteKind, RequestNote, VendorFault};
pub use request::{KEPT_DAYS, MAX_LISTED, RefusedRequest};
use request::{WaitingOfAccount, WaitingRefusals, lock};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval in ms of deletions of rows that are older than [`KEPT_DAYS`].
const PURGE_INTERVAL_MS: i64 = 3_600_000;

/// The refused requests of all accounts. Cloning it is cheap.
#[derive(Clone)]
pub struct RefusedRequests(Arc<Shared>);

struct Shared {
    home: RefusalsHome,
    waiting: Mutex<WaitingRefusals>,
    /// What is being written, so that it is found until the file has it. Taken after `waiting`.
    in_write: Mutex<Arc<WaitingRefusals>>,
}

enum RefusalsHome {
    File(Box<RefusedRequestsDb>),
    /// Refusals are sent to the sidecar, which has the file.
    Sidecar(SendBatch),
}

pub type SendBatch = Box<dyn Fn(&str) -> Result<(), StoreError> + Send + Sync>;

/// Returns what was read of `refused.db`, or nothing if that failed, with a line in the log: for
/// pages that show it beside what matters more.
pub fn or_left_out<T: Default>(read: Result<T, StoreError>) -> T {
    read.unwrap_or_else(|error| {
        log::warn!("a page leaves something out: {error}");
        T::default()
    })
}

impl RefusedRequests {
    /// Opens `refused.db` in the data directory, and replaces a damaged file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened or migrated.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let db = RefusedRequestsDb::open(data_dir)?;
        Ok(Self::with_home(RefusalsHome::File(Box::new(db))))
    }

    /// Creates the refusals of an edge whose pages are in another process.
    pub fn sent_by(send: SendBatch) -> Self {
        Self::with_home(RefusalsHome::Sidecar(send))
    }

    fn with_home(home: RefusalsHome) -> Self {
        Self(Arc::new(Shared {
            home,
            waiting: Mutex::default(),
            in_write: Mutex::default(),
        }))
    }

    /// Returns the file, or `None` if another process has it.
    fn db(&self) -> Option<&RefusedRequestsDb> {
        match &self.0.home {
            RefusalsHome::File(db) => Some(db),
            RefusalsHome::Sidecar(_) => None,
        }
    }

    /// Starts the thread that writes or sends recorded refusals, and deletes those that are too old
    /// or belong to a deleted account. The thread ends with the process, which calls
    /// [`Self::flush`] then. `accounts` is `None` in a process without the file.
    ///
    /// # Errors
    /// Returns an error if the thread cannot start.
    pub fn start_writer(&self, accounts: Option<Accounts>) -> io::Result<()> {
        let requests = self.clone();
        let run = move || {
            let mut purged_at_ms = 0;
            loop {
                std::thread::sleep(WRITE_INTERVAL);
                requests.flush();
                let now_ms = clock::now_ms();
                if let Some(accounts) = &accounts
                    && now_ms - purged_at_ms >= PURGE_INTERVAL_MS
                {
                    purged_at_ms = now_ms;
                    if let Err(error) = requests.purge(accounts, now_ms) {
                        log::warn!("{error}; trying again in an hour");
                    }
                }
            }
        };
        std::thread::Builder::new()
            .name("refused".into())
            .spawn(run)
            .map(drop)
    }

    /// Deletes refusals that are older than [`KEPT_DAYS`] or belong to a deleted account.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or written.
    pub fn purge(&self, accounts: &Accounts, now_ms: i64) -> Result<(), StoreError> {
        let Some(db) = self.db() else {
            return Ok(());
        };
        db.purge(now_ms)?;
        for account in db.accounts()? {
            let found = accounts.find(&account)?;
            if found.is_none_or(|found| found.status == AccountStatus::Deleted) {
                db.forget(&account)?;
            }
        }
        Ok(())
    }

    /// Records a refusal in memory, without waiting for a disk.
    pub fn record(&self, mut refused: RefusedRequest) {
        refused.shorten_message();
        let day = credits::limits::day_number(refused.at_ms);
        let reason = (day, refused.status, refused.code.clone());
        let mut waiting = self.waiting();
        waiting.count(&refused.account, reason, 1);
        waiting.list(refused);
    }

    /// Records the batch of an edge, unless `is_known` returns true for its id. Returns the id of
    /// the batch.
    ///
    /// # Errors
    /// Returns an error if this version cannot parse the text.
    pub fn absorb(
        &self,
        batch: &str,
        is_known: impl FnOnce(&str) -> bool,
    ) -> Result<String, serde_json::Error> {
        let batch: RefusedBatch = serde_json::from_str(batch)?;
        let id = batch.id.clone();
        if !is_known(&id) {
            batch.add_to(&mut self.waiting());
        }
        Ok(id)
    }

    /// Writes or sends the recorded refusals. They are lost if that fails, because the process must
    /// not collect refusals without a bound.
    pub fn flush(&self) {
        let batch = {
            let mut waiting = self.waiting();
            let batch = Arc::new(std::mem::take(&mut *waiting));
            *lock(&self.0.in_write) = Arc::clone(&batch);
            batch
        };
        if batch.accounts.is_empty() {
            return;
        }
        let done = match &self.0.home {
            RefusalsHome::File(db) => db.insert(&batch.accounts),
            RefusalsHome::Sidecar(send) => serde_json::to_string(&RefusedBatch::new(&batch))
                .map_err(|error| StoreError::Unusable(error.to_string()))
                .and_then(|batch| send(&batch)),
        };
        *lock(&self.0.in_write) = Arc::default();
        if let Err(error) = done {
            log::warn!("the refused requests of the last second are lost: {error}");
        }
    }

    /// Lists at most `limit` refusals of an account before the position `before`, newest first.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn list(
        &self,
        account: &str,
        filter: &RefusedFilter,
        before: Option<RefusedCursor>,
        limit: u32,
    ) -> Result<Vec<(RefusedCursor, RefusedRequest)>, StoreError> {
        match self.db() {
            Some(db) => db.list(account, filter, before, limit),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the refusal of a request, even if it is not written yet. If `account` is `None`, the
    /// request may be of any account.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn find(
        &self,
        account: Option<&str>,
        request_id: &str,
    ) -> Result<Option<RefusedRequest>, StoreError> {
        let is_wanted = |refused: &&RefusedRequest| {
            refused.request_id == request_id
                && account.is_none_or(|account| *refused.account == *account)
        };
        let found = self.find_unwritten(|account| account.listed.iter().find(is_wanted).cloned());
        match (found, self.db()) {
            (None, Some(db)) => Ok(db.find(request_id)?.filter(|refused| is_wanted(&refused))),
            (found, _) => Ok(found),
        }
    }

    /// Records a note of a request, in memory. Never waits for a disk.
    pub fn note(&self, note: RequestNote) {
        self.waiting().note(note);
    }

    /// Returns the note of a request by its id or an id that its vendor gave it, also if it is not
    /// written yet; of any account if `account` is `None`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn find_note(
        &self,
        account: Option<&str>,
        id: &str,
    ) -> Result<Option<RequestNote>, StoreError> {
        let is_wanted = |note: &&RequestNote| {
            account.is_none_or(|account| *note.account == *account) && note.has_id(id)
        };
        let found = self.find_unwritten(|account| account.notes.iter().find(is_wanted).cloned());
        match (found, self.db()) {
            (None, Some(db)) => db.find_note(account, id),
            (found, _) => Ok(found),
        }
    }

    /// Returns the numbers of an account's refusals since a day, by status and code, the most
    /// frequent first.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn counts(&self, account: &str, from_day: i64) -> Result<Vec<RefusedCount>, StoreError> {
        match self.db() {
            Some(db) => db.counts(account, from_day),
            None => Ok(Vec::new()),
        }
    }

    /// Reads until the sender is dropped, as with a disk that does not answer.
    #[cfg(test)]
    pub fn read_until(&self, until: std::sync::mpsc::Receiver<()>) -> std::thread::JoinHandle<()> {
        let requests = self.clone();
        std::thread::spawn(move || {
            let held = requests.db().unwrap().read("wait", |_| {
                let _ = until.recv();
                Ok(())
            });
            held.unwrap();
        })
    }

    /// Returns the first result of `find`, over what waits for a write and what is being written.
    fn find_unwritten<T>(&self, find: impl Fn(&WaitingOfAccount) -> Option<T>) -> Option<T> {
        let in_waiting = self.waiting().accounts.values().find_map(&find);
        in_waiting.or_else(|| {
            let batch = Arc::clone(&lock(&self.0.in_write));
            batch.accounts.values().find_map(&find)
        })
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingRefusals> {
        lock(&self.0.waiting)
    }
}
