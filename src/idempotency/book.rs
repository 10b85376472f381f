//! Where idempotency keys are kept: in this process's own file, or in the store that many edges
//! share.
//!
//! What a request under a key came to is decided elsewhere, the same for both. Must not know HTTP.

use crate::billing::{Billing, SharedBilling, Till};
use crate::clock;
use crate::config::Limits;
use crate::store::StoreError;
use crate::store::idempotency::{Ask, Found, IdempotencyDb, Kept, Room};
use crate::store::redis::{Entry, PARTITIONS, SharedRoom, SharedStore};
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a shared store's answer is waited for where a request waits for it, and where none
/// does.
const SERVE_PATIENCE: Duration = Duration::from_millis(250);
const TIDY_PATIENCE: Duration = Duration::from_secs(2);
/// For so long beyond a request's longest time it is believed to run, whoever may have died.
const LEASE_SPARE: Duration = Duration::from_secs(60);

pub enum Book {
    Here(Here),
    Shared(Shared),
}

/// One file, of one process at a time.
pub struct Here {
    pub db: IdempotencyDb,
    billing: Billing,
    /// Written since the log was carried back.
    touched: AtomicBool,
}

/// Entries of all edges. An edge resolves what it left running itself, from its own journal.
pub struct Shared {
    /// Of the threads that serve, and of the one that tidies up: each runtime has a connection of
    /// its own.
    serving: SharedStore,
    tidying: SharedStore,
    billing: SharedBilling,
    /// Dead processes of this edge whose entries are resolved.
    resolved: Mutex<HashSet<String>>,
}

/// For how long and in how much room a key and its answer are kept.
#[derive(Debug, Clone, Copy)]
pub struct Keeping {
    known_for: Duration,
    runs: Duration,
    room: SharedRoom,
}

impl Keeping {
    pub fn of(limits: &Limits) -> Self {
        Self {
            known_for: Duration::from_secs(limits.idempotency_seconds),
            runs: Duration::from_secs(limits.total_seconds).saturating_add(LEASE_SPARE),
            room: SharedRoom {
                of_account: limits.idempotency_shared_account_bytes,
                of_all: limits.idempotency_shared_bytes,
            },
        }
    }

    fn expires_at_ms(self, now_ms: i64) -> i64 {
        now_ms.saturating_add(i64::try_from(self.known_for.as_millis()).unwrap_or(i64::MAX))
    }
}

/// What a request under a key came to.
#[derive(Debug)]
pub struct End {
    pub entry: Entry,
    /// It was debited: its key is spent. `None`: it is free.
    pub spent: Option<Keeping>,
    /// Its answer, where it is to be kept.
    pub kept: Option<Kept>,
}

impl Book {
    /// # Errors
    /// The file cannot be opened.
    pub fn open(data_dir: &Path, till: &Till) -> Result<Self, StoreError> {
        Ok(match till {
            Till::Here(billing) => {
                let (db, billing) = (IdempotencyDb::open(data_dir)?, billing.clone());
                Self::Here(Here {
                    db,
                    billing,
                    touched: AtomicBool::new(true),
                })
            }
            Till::Shared(billing) => Self::Shared(Shared {
                serving: billing.serving_store(),
                tidying: billing.store(TIDY_PATIENCE),
                billing: billing.clone(),
                resolved: Mutex::default(),
            }),
        })
    }

    /// Looks a key up, and enters the request as running where nothing is known of it.
    ///
    /// # Errors
    /// The store cannot be asked; a shared one may have entered the request all the same.
    pub async fn begin(
        &self,
        ask: &Ask<'_>,
        entry: &Entry,
        keeping: Keeping,
        now_ms: i64,
    ) -> Result<Found, StoreError> {
        match self {
            Self::Here(here) => {
                here.touched.store(true, Ordering::Relaxed);
                here.db.begin(ask, now_ms)
            }
            Self::Shared(shared) => {
                let asked = shared
                    .serving
                    .ask_under_key(entry, keeping.runs, keeping.known_for);
                in_time("look an idempotency key up", SERVE_PATIENCE, asked).await
            }
        }
    }

    /// Whether a key is known, whatever body it came with. Enters nothing.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn is_known(
        &self,
        ask: &Ask<'_>,
        entry: &Entry,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Here(here) => here.db.is_known(ask, now_ms),
            Self::Shared(shared) => {
                in_time(
                    "look an idempotency key up",
                    SERVE_PATIENCE,
                    shared.serving.knows_key(entry),
                )
                .await
            }
        }
    }

    /// Off the path of requests.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn end(&self, end: &End) -> Result<(), StoreError> {
        match self {
            Self::Here(here) => here.end(end),
            Self::Shared(shared) => tell(&shared.tidying, end).await,
        }
    }

    /// Of each request that a dead process was answering: done without an answer where it was
    /// debited, else as if it had never been asked. Requests of processes whose journal is not read
    /// stay as they are.
    ///
    /// # Errors
    /// The store or the ledger cannot be asked.
    pub async fn resolve_left(&self, keeping: Keeping, now_ms: i64) -> Result<(), StoreError> {
        match self {
            Self::Here(here) => here.resolve_left(keeping.expires_at_ms(now_ms)),
            Self::Shared(shared) => shared.resolve_left(keeping).await,
        }
    }

    /// Removes what is over, and the oldest of what is too much.
    ///
    /// # Errors
    /// The store cannot be written; what was removed stays removed.
    pub async fn clean(&self, limits: &Limits, now_ms: i64) -> Result<(), StoreError> {
        match self {
            Self::Here(here) => {
                let room = Room {
                    entries: limits.idempotency_entries,
                    bytes: limits.idempotency_store_bytes,
                };
                here.touched.store(true, Ordering::Relaxed);
                here.db.clean(now_ms, room)
            }
            // It expires by itself, and is counted anew with each answer; here, where no answer
            // comes.
            Self::Shared(shared) => {
                for partition in 0..PARTITIONS {
                    shared.tidying.tidy_answers(partition).await?;
                }
                Ok(())
            }
        }
    }

    /// Makes durable what was written lately, where that is this process's to do.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        match self {
            Self::Here(here) if here.touched.swap(false, Ordering::Relaxed) => here.db.checkpoint(),
            Self::Here(_) | Self::Shared(_) => Ok(()),
        }
    }
}

impl Here {
    pub fn end(&self, end: &End) -> Result<(), StoreError> {
        self.touched.store(true, Ordering::Relaxed);
        let request_id = &end.entry.request_id;
        match end.spent {
            Some(keeping) => self.db.done(
                request_id,
                end.kept.as_ref(),
                keeping.expires_at_ms(clock::now_ms()),
            ),
            None => self.db.free(request_id),
        }
    }

    fn resolve_left(&self, expires_at_ms: i64) -> Result<(), StoreError> {
        for (account, request_id) in self.db.left_running(&self.billing.boots_not_replayed()?)? {
            self.touched.store(true, Ordering::Relaxed);
            if self.billing.was_debited(&account, &request_id)? {
                log_lost(&request_id);
                self.db.done(&request_id, None, expires_at_ms)?;
            } else {
                self.db.free(&request_id)?;
            }
        }
        Ok(())
    }
}

impl Shared {
    /// On the path of a request, whose last byte waits for it.
    pub async fn end(&self, end: &End) -> Result<(), StoreError> {
        in_time(
            "keep an answer for its idempotency key",
            SERVE_PATIENCE,
            tell(&self.serving, end),
        )
        .await
    }

    async fn resolve_left(&self, keeping: Keeping) -> Result<(), StoreError> {
        let resolved = self
            .resolved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for boot in self
            .billing
            .taken_over()
            .into_iter()
            .filter(|boot| !resolved.contains(boot))
        {
            for entry in self.tidying.left_running(&boot).await? {
                let debited = match self.billing.was_debited(&entry.request_id) {
                    Some(debited) => debited,
                    // The journal no longer has it, so the ledger does: whatever it ended as, the
                    // key is given up.
                    None => {
                        self.tidying
                            .has_ended(&entry.account, &entry.request_id)
                            .await?
                    }
                };
                if debited {
                    log_lost(&entry.request_id);
                }
                tell(
                    &self.tidying,
                    &End {
                        entry,
                        spent: debited.then_some(keeping),
                        kept: None,
                    },
                )
                .await?;
            }
            self.resolved
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(boot);
        }
        Ok(())
    }
}

async fn tell(store: &SharedStore, end: &End) -> Result<(), StoreError> {
    match end.spent {
        Some(keeping) => {
            store
                .keep(
                    &end.entry,
                    end.kept.as_ref(),
                    keeping.known_for,
                    keeping.room,
                )
                .await
        }
        None => store.free(&end.entry).await,
    }
}

async fn in_time<T>(
    operation: &str,
    patience: Duration,
    asked: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late = |_| {
        StoreError::Unusable(format!(
            "{operation}: the shared store does not answer in time"
        ))
    };
    tokio::time::timeout(patience, asked).await.map_err(late)?
}

fn log_lost(request_id: &str) {
    log::warn!(
        "request {request_id} was debited, and its answer is lost: its idempotency key is spent"
    );
}
