//! New settings for a process that runs: on SIGHUP at once, and when a file that they come from has been changed.
//!
//! All or nothing: where one of the files is no good, everything stays as it was, the log says why, and nothing is tried
//! again before a file is changed. Must not cut anything: what was admitted keeps the settings it was admitted under.

use super::certificate::Certificate;
use crate::catalog::Model;
use crate::config::{self, Settings, Source, Stamp};
use crate::store::StoreError;
use crate::telemetry::METRICS;
use arc_swap::ArcSwap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How long they must have looked the same, so that a file that is being written is not read half.
const QUIET: Duration = Duration::from_secs(1);

/// Enters the prices of models before they are sold.
type KeepPrices = Box<dyn Fn(&[Arc<Model>]) -> Result<(), StoreError> + Send + Sync>;

pub struct Reload {
    config_file: PathBuf,
    settings: Arc<ArcSwap<Settings>>,
    certificate: Option<Arc<Certificate>>,
    keep_prices: KeepPrices,
    /// What was read last, well or not. Held while files are read: what is read later counts.
    sources: Mutex<Vec<Source>>,
}

impl Reload {
    pub fn new(
        config_file: &Path,
        settings: &Arc<ArcSwap<Settings>>,
        certificate: Option<Arc<Certificate>>,
        keep_prices: KeepPrices,
    ) -> Arc<Self> {
        let sources = Mutex::new(settings.load().sources.clone());
        Arc::new(Self {
            config_file: config_file.to_owned(),
            settings: Arc::clone(settings),
            certificate,
            keep_prices,
            sources,
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
    pub fn watch(self: Arc<Self>, is_over: impl Fn() -> bool + Send + 'static) -> std::io::Result<()> {
        let look = move || {
            let mut changing = None;
            while !is_over() {
                std::thread::sleep(LOOK);
                self.look(&mut changing);
            }
        };
        std::thread::Builder::new().name("files".into()).spawn(look).map(drop)
    }

    /// One look: `changing` is what the files looked like at the last one, and since when, where that is not what was
    /// read.
    fn look(&self, changing: &mut Option<(Vec<Stamp>, Instant)>) {
        let mut sources = self.sources();
        let now: Vec<_> = sources.iter().map(|source| source.again().stamp()).collect();
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
        let result = if outcome.is_ok() { "ok" } else { "refused" };
        METRICS.config_reloads.with_label_values(&[result]).inc();
        match outcome {
            Ok(()) => log::info!("reloaded {}", self.config_file.display()),
            Err(error) => log::error!("reload refused, the old settings stay: {error:#}"),
        }
    }

    fn take(&self, mut new: Settings) -> anyhow::Result<()> {
        let certificate = self.certificate.as_ref().zip(new.tls.as_ref());
        let read = certificate.map(|(_, files)| Certificate::certified(files)).transpose()?;
        (self.keep_prices)(new.catalog.models())?;
        let old = self.settings.load_full();
        for key in fixed(&old, &new) {
            log::warn!("{key} was changed: that is taken at the next start or upgrade");
        }
        if let (Some((certificate, (path, _))), Some(read)) = (certificate, read) {
            certificate.show(read);
            log::info!("took the TLS certificate {} anew", path.display());
        }
        keep_fixed(&old, &mut new);
        self.settings.store(Arc::new(new));
        Ok(())
    }
}

/// What this process listens on and where it keeps its books stays what it is until it ends.
fn keep_fixed(old: &Settings, new: &mut Settings) {
    new.edge.clone_from(&old.edge);
    (new.sidecar, new.admin) = (old.sidecar, old.admin);
    new.data_dir.clone_from(&old.data_dir);
    new.traces.clone_from(&old.traces);
    if old.store.kind_name() != new.store.kind_name() {
        new.store = old.store.clone();
    }
}

/// Keys that a process has taken for as long as it lives, and that were changed.
fn fixed(old: &Settings, new: &Settings) -> impl Iterator<Item = &'static str> {
    let keys = [
        ("listen.edge", old.edge != new.edge),
        ("listen.sidecar", old.sidecar != new.sidecar),
        ("listen.admin", old.admin != new.admin),
        ("listen.tls", old.tls.is_some() != new.tls.is_some()),
        ("data_dir", old.data_dir != new.data_dir),
        ("telemetry.traces", old.traces != new.traces),
        ("store", old.store.kind_name() != new.store.kind_name()),
    ];
    keys.into_iter().filter_map(|(key, is_changed)| is_changed.then_some(key))
}
