//! New settings for a process that runs: on SIGHUP at once, and when a file that they come from has
//! been changed.
//!
//! All or nothing: where one of the files is no good, everything stays as it was, the log says why,
//! and nothing is tried again before a file is changed. What a process cannot change while it lives
//! is told by its key and kept as it was. Must not cut anything: what was admitted keeps the
//! settings it was admitted under.

use super::certificate::Certificate;
use crate::config::{self, Limits, Settings, Source, Stamp};
use crate::store::StoreError;
use crate::telemetry::METRICS;
use crate::telemetry::access::AccessLog;
use anyhow::Context as _;
use arc_swap::ArcSwap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How long they must have looked the same, so that a file that is being written is not read half.
const QUIET: Duration = Duration::from_secs(1);

/// Tells billing: enters the prices of models before they are sold, and its limits.
type TellBilling = Box<dyn Fn(&Settings) -> Result<(), StoreError> + Send + Sync>;

pub struct Reload {
    config_file: PathBuf,
    settings: Arc<ArcSwap<Settings>>,
    certificate: Option<Arc<Certificate>>,
    /// Of a process that serves requests.
    access: Option<AccessLog>,
    tell_billing: TellBilling,
    /// What the process began with, and keeps some of.
    started: Limits,
    /// What was read last, well or not. Held while files are read: what is read later counts.
    sources: Mutex<Vec<Source>>,
}

impl Reload {
    pub fn new(
        config_file: &Path,
        settings: &Arc<ArcSwap<Settings>>,
        certificate: Option<Arc<Certificate>>,
        access: Option<AccessLog>,
        tell_billing: TellBilling,
    ) -> Arc<Self> {
        let now = settings.load();
        Arc::new(Self {
            config_file: config_file.to_owned(),
            settings: Arc::clone(settings),
            certificate,
            access,
            tell_billing,
            started: now.limits.clone(),
            sources: Mutex::new(now.sources.clone()),
        })
    }

    /// Takes models, prices, vendors, limits and the certificate from their files anew.
    pub fn now(&self) {
        self.read(&mut self.sources());
    }

    /// A thread that does so when the files have been changed, until it is over.
    ///
    /// # Errors
    /// The thread cannot be had.
    pub fn watch(
        self: Arc<Self>,
        is_over: impl Fn() -> bool + Send + 'static,
    ) -> std::io::Result<()> {
        let look = move || {
            let mut changing = None;
            while !is_over() {
                std::thread::sleep(LOOK);
                self.look(&mut changing);
            }
        };
        std::thread::Builder::new()
            .name("files".into())
            .spawn(look)
            .map(drop)
    }

    /// One look: `changing` is what the files looked like at the last one, and since when, where
    /// that is not what was read.
    fn look(&self, changing: &mut Option<(Vec<Stamp>, Instant)>) {
        let mut sources = self.sources();
        let now: Vec<_> = sources
            .iter()
            .map(|source| source.again().stamp())
            .collect();
        let is_read = sources.iter().map(Source::stamp).eq(now.iter().copied());
        if is_read || !self.settings.load().watch {
            *changing = None;
            return;
        }
        match changing {
            Some((before, since)) if *before == now => {
                if since.elapsed() >= QUIET {
                    *changing = None;
                    self.read(&mut sources);
                }
            }
            _ => *changing = Some((now, Instant::now())),
        }
    }

    fn sources(&self) -> MutexGuard<'_, Vec<Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, sources: &mut Vec<Source>) {
        let outcome = match config::load(&self.config_file) {
            Ok(new) => {
                sources.clone_from(&new.sources);
                self.take(new)
            }
            Err(faults) => {
                sources.clone_from(&faults.sources);
                Err(faults.into())
            }
        };
        let result = match outcome {
            Ok(()) => {
                log::info!("reloaded {}", self.config_file.display());
                "ok"
            }
            Err(error) => {
                log::error!("reload refused, the old settings stay: {error:#}");
                "refused"
            }
        };
        // Whoever sees it counted finds it told.
        METRICS.config_reloads.with_label_values(&[result]).inc();
    }

    fn take(&self, mut new: Settings) -> anyhow::Result<()> {
        let certificate = self.certificate.as_ref().zip(new.tls.as_ref());
        let read = certificate
            .map(|(_, files)| Certificate::certified(files))
            .transpose()?;
        let shown = certificate
            .map(|(certificate, (path, _))| (Arc::clone(certificate), path.clone()))
            .zip(read);
        let old = self.settings.load_full();
        let waiting = keep_fixed(&old, &self.started, &mut new);
        let access = self.access.as_ref().filter(|_| {
            (&old.access_log, old.limits.access_log_lines)
                != (&new.access_log, new.limits.access_log_lines)
        });
        let opened = access.map(|access| {
            let opened = AccessLog::open(&new.access_log, new.limits.access_log_lines);
            opened
                .map(|opened| (access, opened))
                .with_context(|| format!("open access_log {:?}", new.access_log))
        });
        let opened = opened.transpose()?;
        (self.tell_billing)(&new)?;
        if let Some(((certificate, path), read)) = shown {
            certificate.show(read);
            log::info!("took the TLS certificate {} anew", path.display());
        }
        if let Some((access, opened)) = opened {
            access.turn_to(opened);
        }
        tell_waiting(&waiting);
        self.settings.store(Arc::new(new));
        Ok(())
    }
}

/// Puts back into `new` what this process keeps until it ends: what it listens on, where its books
/// are, and what was made to measure at its start. Returns the keys that were changed in vain.
fn keep_fixed(old: &Settings, started: &Limits, new: &mut Settings) -> Vec<&'static str> {
    let mut waiting = Vec::new();
    keep("listen.edge", &old.edge, &mut new.edge, &mut waiting);
    keep(
        "listen.sidecar",
        &old.sidecar,
        &mut new.sidecar,
        &mut waiting,
    );
    keep("listen.admin", &old.admin, &mut new.admin, &mut waiting);
    if old.tls.is_some() != new.tls.is_some() {
        keep("listen.tls", &old.tls, &mut new.tls, &mut waiting);
    }
    keep("data_dir", &old.data_dir, &mut new.data_dir, &mut waiting);
    keep(
        "telemetry.traces",
        &old.traces,
        &mut new.traces,
        &mut waiting,
    );
    if old.store.address() != new.store.address() {
        new.store = old.store.clone();
        waiting.push("store");
    }
    keep(
        "store.allow_volatile",
        &old.allow_volatile,
        &mut new.allow_volatile,
        &mut waiting,
    );
    waiting.extend(keep_limits(started, &mut new.limits));
    let limits = &mut new.limits;
    keep(
        "limits.cpu_threads",
        &started.cpu_threads,
        &mut limits.cpu_threads,
        &mut waiting,
    );
    keep(
        "limits.keepalive_requests",
        &started.keepalive_requests,
        &mut limits.keepalive_requests,
        &mut waiting,
    );
    // Of HTTP/1, and of what is refused, they are taken.
    let over_h2 = [
        (
            "limits.header_bytes (of HTTP/2)",
            limits.header_bytes != started.header_bytes,
        ),
        (
            "limits.keepalive_seconds (of HTTP/2)",
            limits.keepalive_seconds != started.keepalive_seconds,
        ),
    ];
    waiting.extend(
        over_h2
            .into_iter()
            .filter_map(|(key, is_changed)| is_changed.then_some(key)),
    );
    waiting
}

/// Names the keys that the running process cannot take, in the log and by a metric.
pub fn tell_waiting(keys: &[&'static str]) {
    for key in keys {
        log::warn!("{key} was changed: that is taken at the next start or upgrade");
    }
    METRICS
        .config_keys_waiting
        .set(i64::try_from(keys.len()).unwrap_or(i64::MAX));
}

/// The same of the limits that the books were opened with.
pub fn keep_limits(started: &Limits, limits: &mut Limits) -> Vec<&'static str> {
    let mut waiting = Vec::new();
    let key = "limits.journal_segment_bytes";
    keep(
        key,
        &started.journal_segment_bytes,
        &mut limits.journal_segment_bytes,
        &mut waiting,
    );
    let key = "limits.journal_reserve_bytes";
    keep(
        key,
        &started.journal_reserve_bytes,
        &mut limits.journal_reserve_bytes,
        &mut waiting,
    );
    keep(
        "limits.journal_pending",
        &started.journal_pending,
        &mut limits.journal_pending,
        &mut waiting,
    );
    // What waits for the ledger has room for so many; fewer can always be.
    if limits.open_requests > started.open_requests {
        keep(
            "limits.open_requests",
            &started.open_requests,
            &mut limits.open_requests,
            &mut waiting,
        );
    }
    waiting
}

fn keep<T: Clone + PartialEq>(
    key: &'static str,
    kept: &T,
    new: &mut T,
    waiting: &mut Vec<&'static str>,
) {
    if kept != new {
        new.clone_from(kept);
        waiting.push(key);
    }
}
