//! Reloads the settings of a running process at once on SIGHUP, and when one of the source files
//! has changed.
//!
//! If one of the files has faults, all settings remain unchanged, the log has the reason, and the
//! gateway retries only once a file changes. If only a write to the gateway's own disk failed, it
//! retries by itself. Settings that a running process cannot change are reported by their key and
//! keep their values. A reload must not cut requests: a request keeps the settings under which it
//! was admitted.

use super::certificate::ReloadableCertificate;
use super::settings_diff;
use anyhow::Context as _;
use arc_swap::ArcSwap;
use base::telemetry::METRICS;
use base::telemetry::access::AccessLog;
use config::{FileChecks, FileStamp, Limits, Settings, SourceFile};
use ledger::StoreError;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which the files are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time for which the files must be unchanged before a reload, so a half-written file is not read.
const QUIET_INTERVAL: Duration = Duration::from_secs(1);

/// Delay before the gateway retries a reload that failed because of a write to its disk.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Updates billing: stores the prices of models before their first use, and applies billing's
/// limits.
type BillingUpdate = Box<dyn Fn(&Settings) -> Result<(), StoreError> + Send + Sync>;

pub struct ConfigReloader {
    config_file: PathBuf,
    settings: Arc<ArcSwap<Settings>>,
    certificate: Option<Arc<ReloadableCertificate>>,
    /// Access log. Set in a process that serves requests.
    access: Option<AccessLog>,
    apply_settings: BillingUpdate,
    /// Limits at the start. Some of them cannot change later.
    started: Limits,
    /// Files of the last load, successful or not. A load holds the lock, so that later loads win.
    sources: Mutex<Vec<SourceFile>>,
}

impl ConfigReloader {
    pub fn new(
        config_file: &Path,
        settings: &Arc<ArcSwap<Settings>>,
        certificate: Option<Arc<ReloadableCertificate>>,
        access: Option<AccessLog>,
        apply_settings: BillingUpdate,
    ) -> Arc<Self> {
        let now = settings.load();
        Arc::new(Self {
            config_file: config_file.to_owned(),
            settings: Arc::clone(settings),
            certificate,
            access,
            apply_settings,
            started: now.limits.clone(),
            sources: Mutex::new(now.sources.clone()),
        })
    }

    /// Reloads models, prices, vendors, limits and the certificate from their files.
    pub fn reload(&self) {
        self.reload_sources(&mut self.sources());
    }

    /// Starts a thread that reloads the settings after a change of the files, until shutdown.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn watch(
        self: Arc<Self>,
        is_over: impl Fn() -> bool + Send + 'static,
    ) -> std::io::Result<()> {
        let poll = move || {
            let mut changing = None;
            while !is_over() {
                std::thread::sleep(POLL_INTERVAL);
                self.poll_files(&mut changing);
            }
        };
        std::thread::Builder::new()
            .name("files".into())
            .spawn(poll)
            .map(drop)
    }

    /// Checks the files once. `changing` has the stamps of the last check, and the time since which
    /// they are unchanged. It is set if they differ from the loaded files.
    fn poll_files(&self, changing: &mut Option<(Vec<FileStamp>, Instant)>) {
        let mut sources = self.sources();
        let now: Vec<_> = sources
            .iter()
            .map(|source| source.restat().stamp())
            .collect();
        let is_read = sources
            .iter()
            .map(SourceFile::stamp)
            .eq(now.iter().copied());
        if is_read || !self.settings.load().auto_reload {
            *changing = None;
            return;
        }
        match changing {
            Some((before, since)) if *before == now => {
                if since.elapsed() >= QUIET_INTERVAL {
                    let is_repeated = self.reload_sources(&mut sources);
                    *changing = is_repeated.then(|| (now, Instant::now() + RETRY_INTERVAL));
                }
            }
            _ => *changing = Some((now, Instant::now())),
        }
    }

    fn sources(&self) -> MutexGuard<'_, Vec<SourceFile>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reloads the settings. Returns whether a retry may succeed with the same files.
    fn reload_sources(&self, sources: &mut Vec<SourceFile>) -> bool {
        let mut is_repeated = false;
        let checks = match self.access {
            Some(_) => FileChecks::Edge,
            None => FileChecks::Sidecar,
        };
        let is_file = std::fs::metadata(&self.config_file).map_or(true, |file| file.is_file());
        let outcome = match is_file.then(|| config::load(&self.config_file, checks)) {
            Some(Ok(new)) => {
                let read = new.sources.clone();
                let applied = self.apply(new);
                // If a price cannot be stored, the files are not at fault, so they count as unread.
                is_repeated = applied
                    .as_ref()
                    .is_err_and(|error| error.is::<StoreError>());
                if !is_repeated {
                    *sources = read;
                }
                applied
            }
            Some(Err(faults)) => {
                sources.clone_from(&faults.sources);
                Err(faults.into())
            }
            // Reading a pipe a second time could wait forever.
            None => {
                sources
                    .iter_mut()
                    .for_each(|source| *source = source.restat());
                Err(anyhow::anyhow!(
                    "{} is not a regular file, so it cannot be read a second time",
                    self.config_file.display()
                ))
            }
        };
        let result = match outcome {
            Ok(()) => {
                log::info!("reloaded {}", self.config_file.display());
                "ok"
            }
            Err(error) => {
                log::error!(
                    "cannot reload the config file; the current settings stay in force: {error:#}"
                );
                "refused"
            }
        };
        // Count after logging, so that the log line exists as soon as the metric shows the reload.
        METRICS.config_reloads.with_label_values(&[result]).inc();
        is_repeated
    }

    fn apply(&self, mut new: Settings) -> anyhow::Result<()> {
        let certificate = self.certificate.as_ref().zip(new.tls.as_ref());
        let read = certificate
            .map(|(_, files)| ReloadableCertificate::load_files(files))
            .transpose()?;
        let shown = certificate
            .map(|(certificate, (path, _))| (Arc::clone(certificate), path.clone()))
            .zip(read);
        let old = self.settings.load_full();
        let waiting = retain_fixed_settings(&old, &self.started, &mut new);
        let access = self.access.as_ref().filter(|_| {
            (&old.access_log, old.limits.access_log_lines)
                != (&new.access_log, new.limits.access_log_lines)
        });
        let opened = access.map(|access| {
            let opened = AccessLog::open(&new.access_log, new.limits.access_log_lines);
            opened
                .map(|opened| (access, opened))
                .with_context(|| format!("cannot open access_log {}", new.access_log))
        });
        let opened = opened.transpose()?;
        (self.apply_settings)(&new)?;
        if let Some(((certificate, path), read)) = shown {
            certificate.replace(read);
            log::info!("reloaded the TLS certificate {}", path.display());
        }
        if let Some((access, opened)) = opened {
            access.replace_writer(opened);
        }
        report_pending_keys(&waiting);
        log_warnings(&new);
        match settings_diff::describe(&old, &new).as_slice() {
            [] => log::info!("the reload changed no setting that is in force"),
            changes => log::info!("the reload changed: {}", changes.join("; ")),
        }
        self.settings.store(Arc::new(new));
        Ok(())
    }
}

/// Restores the settings in `new` that this process keeps until it exits: its listeners, the
/// location of its data, and sizes that were fixed at the start. Returns the keys whose change has
/// no effect.
fn retain_fixed_settings(
    old: &Settings,
    started: &Limits,
    new: &mut Settings,
) -> Vec<&'static str> {
    let mut waiting = Vec::new();
    retain_setting("listen.edge", &old.edge, &mut new.edge, &mut waiting);
    retain_setting(
        "listen.sidecar",
        &old.sidecar,
        &mut new.sidecar,
        &mut waiting,
    );
    retain_setting("listen.admin", &old.admin, &mut new.admin, &mut waiting);
    if old.tls.is_some() != new.tls.is_some() {
        retain_setting("listen.tls", &old.tls, &mut new.tls, &mut waiting);
    }
    retain_setting("data_dir", &old.data_dir, &mut new.data_dir, &mut waiting);
    retain_setting(
        "telemetry.traces",
        &old.traces,
        &mut new.traces,
        &mut waiting,
    );
    if old.store.address() != new.store.address() {
        new.store = old.store.clone();
        waiting.push("store");
    }
    retain_setting(
        "store.allow_volatile",
        &old.allow_volatile,
        &mut new.allow_volatile,
        &mut waiting,
    );
    retain_setting(
        "store.reply_timeout_ms",
        &old.store_reply_timeout,
        &mut new.store_reply_timeout,
        &mut waiting,
    );
    retain_setting(
        "ledger.kind",
        &old.ledger.postgres,
        &mut new.ledger.postgres,
        &mut waiting,
    );
    waiting.extend(retain_fixed_limits(started, &mut new.limits));
    let limits = &mut new.limits;
    retain_setting(
        "limits.cpu_threads",
        &started.cpu_threads,
        &mut limits.cpu_threads,
        &mut waiting,
    );
    retain_setting(
        "limits.keepalive_requests",
        &started.keepalive_requests,
        &mut limits.keepalive_requests,
        &mut waiting,
    );
    // These limits do change for HTTP/1 and for refusals.
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

/// Logs the non-fatal faults of the config file, and the vendors that the gateway does not use.
pub fn log_warnings(settings: &Settings) {
    for warning in &settings.warnings {
        let kind = warning.key.as_str();
        log::warn!(kind; "{kind}: {}", warning.message);
    }
    for skipped in &settings.skipped_vendors {
        log::info!("{skipped}");
    }
}

/// Reports the keys whose change has no effect until a restart, in the log and as a metric.
pub fn report_pending_keys(keys: &[&'static str]) {
    for kind in keys {
        log::warn!(kind; "{kind} was changed; the change takes effect at the next start or upgrade");
    }
    METRICS
        .config_keys_waiting
        .set(i64::try_from(keys.len()).unwrap_or(i64::MAX));
}

/// Restores the limits with which the ledger was opened. Returns the keys whose change has no
/// effect.
pub fn retain_fixed_limits(started: &Limits, limits: &mut Limits) -> Vec<&'static str> {
    let mut waiting = Vec::new();
    let key = "limits.journal_segment_bytes";
    retain_setting(
        key,
        &started.journal_segment_bytes,
        &mut limits.journal_segment_bytes,
        &mut waiting,
    );
    let key = "limits.journal_reserve_bytes";
    retain_setting(
        key,
        &started.journal_reserve_bytes,
        &mut limits.journal_reserve_bytes,
        &mut waiting,
    );
    retain_setting(
        "limits.journal_pending",
        &started.journal_pending,
        &mut limits.journal_pending,
        &mut waiting,
    );
    retain_setting(
        "limits.journal_bytes",
        &started.journal_bytes,
        &mut limits.journal_bytes,
        &mut waiting,
    );
    retain_setting(
        "limits.journal_sync",
        &started.journal_sync,
        &mut limits.journal_sync,
        &mut waiting,
    );
    // The size of the queue for the ledger was fixed for this number of requests. A lower limit is
    // possible.
    if limits.open_requests > started.open_requests {
        retain_setting(
            "limits.open_requests",
            &started.open_requests,
            &mut limits.open_requests,
            &mut waiting,
        );
    }
    waiting
}

fn retain_setting<T: Clone + PartialEq>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use config::PostgresLedger;
    use config::catalog::Secret;

    #[test]
    fn a_reload_that_the_gateways_own_disk_refuses_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("gateway.yaml");
        let text = include_str!("../../conf/local.yaml");
        std::fs::write(&file, text).unwrap();
        let settings = config::load(&file, FileChecks::Sidecar).unwrap();
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        let has_room = Arc::new(Mutex::new(false));
        let room = Arc::clone(&has_room);
        let apply = move |_: &Settings| match *room.lock().unwrap() {
            true => Ok(()),
            false => Err(StoreError::io(
                "store a price version",
                std::io::ErrorKind::StorageFull.into(),
            )),
        };
        let reloader = ConfigReloader::new(&file, &settings, None, None, Box::new(apply));
        let loaded = settings.load_full();
        let is_loaded = || !Arc::ptr_eq(&loaded, &settings.load());
        let mut changing = None;
        // Moves the time at which the files are next read to now.
        let mut poll = || {
            for _ in 0..2 {
                reloader.poll_files(&mut changing);
                if let Some((_, since)) = &mut changing {
                    *since = Instant::now() - QUIET_INTERVAL;
                }
            }
        };
        poll();
        std::fs::write(&file, format!("{text}\n# changed\n")).unwrap();
        poll();
        poll();
        assert!(!is_loaded(), "the disk is full");
        *has_room.lock().unwrap() = true;
        poll();
        assert!(is_loaded(), "nobody has touched the file");
        assert!(changing.is_none());
    }

    #[test]
    fn what_the_ledger_was_opened_with_waits_for_the_next_start() {
        let text = include_str!("../../conf/local.yaml");
        let parse = || config::parse(text, &|_| None).unwrap();
        let (started, mut new) = (parse(), parse());
        assert!(retain_fixed_settings(&started, &started.limits, &mut new).is_empty());
        new.limits.journal_sync = !started.limits.journal_sync;
        new.ledger.postgres = Some(PostgresLedger {
            url: Secret::new("postgres://a@b/c".into()),
            require_standby: false,
        });
        let waiting = retain_fixed_settings(&started, &started.limits, &mut new);
        assert_eq!(waiting, ["ledger.kind", "limits.journal_sync"]);
        assert_eq!(new.limits.journal_sync, started.limits.journal_sync);
        assert!(new.ledger.postgres.is_none());
    }
}
