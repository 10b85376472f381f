//! Maintains the ledger in the background: seals old or excess entries, archives older segments,
//! and reports segments that cannot be read.
//!
//! A separate thread rests as long as it works, and retries after a failure in the next round. No
//! data is lost meanwhile, but `ledger.db` grows. This file must not depend on the form of a
//! segment.

use super::views::BillingUpkeep;
use base::clock;
use base::telemetry::METRICS;
use config::{LedgerSettings, RetentionSettings};
use ledger::StoreError;
use ledger::{BackgroundPace, SealBoundary, SegmentRecord, SegmentState, SegmentStatus};
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const ROUND_INTERVAL: Duration = Duration::from_secs(60);
/// Number of rounds between two checks of all segments.
const CHECK_ROUNDS: u32 = 10;
const DAY_MS: i64 = 86_400_000;

/// Flag that never stops the work: a process that ends kills the thread, and every step can be
/// interrupted.
static NEVER: AtomicBool = AtomicBool::new(false);
static PACE: BackgroundPace<'static> = BackgroundPace { stop: &NEVER };

/// The current faults of the upkeep. A change is logged.
#[derive(Default)]
struct UpkeepReport {
    faults: Vec<String>,
}

impl BillingUpkeep<'_> {
    /// Sets the operator's archive, in which sealed entries are looked for too.
    pub fn set_archive(&self, archive: Option<&Path>) {
        self.0.0.ledger.segments().set_archive(archive);
    }

    /// Starts the thread that seals, archives and checks. `settings` returns the current settings.
    ///
    /// # Errors
    /// Returns an error if the thread cannot start.
    pub fn start_upkeep(
        &self,
        settings: impl Fn() -> LedgerSettings + Send + 'static,
    ) -> io::Result<()> {
        let billing = self.0.clone();
        std::thread::Builder::new()
            .name("sealer".into())
            .spawn(move || {
                let (mut report, mut round) = (UpkeepReport::default(), 0_u32);
                let mut unreadable = Vec::new();
                loop {
                    let settings = settings();
                    billing.upkeep().set_archive(settings.archive());
                    // After a handover the successor does the upkeep, and beside an audit the next
                    // round does it.
                    let ledger = &billing.0.ledger;
                    if !ledger.changes().has_handed_over() && !ledger.segments().is_sealing_paused()
                    {
                        let mut faults = billing.upkeep().run_upkeep(&settings, clock::now_ms());
                        if round.is_multiple_of(CHECK_ROUNDS) {
                            unreadable = billing.upkeep().check_segments();
                        }
                        faults.extend(unreadable.iter().cloned());
                        report.renew(faults);
                    }
                    round = round.wrapping_add(1);
                    std::thread::sleep(ROUND_INTERVAL);
                }
            })
            .map(drop)
    }

    /// Seals and archives the entries that are due. Returns the faults.
    pub fn run_upkeep(&self, settings: &LedgerSettings, now_ms: i64) -> Vec<String> {
        let mut faults = Vec::new();
        match self.seal_by_rules(settings, now_ms) {
            Ok(sealed) => sealed
                .iter()
                .for_each(|segment| log_done("sealed", segment)),
            Err(error) => {
                METRICS.ledger_error("seal");
                faults.push(format!(
                    "cannot seal the oldest entries of the ledger: {error}"
                ));
            }
        }
        if let Some(RetentionSettings { keep_days, archive }) = &settings.retention {
            let before_ms = now_ms.saturating_sub(i64::from(*keep_days) * DAY_MS);
            match self.archive_segments(before_ms, archive) {
                Ok(archived) => archived
                    .iter()
                    .for_each(|segment| log_done("archived", segment)),
                Err(error) => {
                    METRICS.ledger_error("archive");
                    faults.push(error.to_string());
                }
            }
        }
        faults
    }

    /// Checks whether every segment can be read, and sets the metric. Returns the faults.
    fn check_segments(&self) -> Vec<String> {
        let segments = match self.segments(false) {
            Ok(segments) => segments,
            Err(error) => return vec![error.to_string()],
        };
        for state in SegmentState::ALL {
            let count = segments.iter().filter(|one| one.state == state).count();
            METRICS
                .ledger_segments
                .with_label_values(&[state.name()])
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        segments
            .into_iter()
            .filter_map(|segment| segment.fault)
            .collect()
    }

    fn seal_by_rules(
        &self,
        settings: &LedgerSettings,
        now_ms: i64,
    ) -> Result<Vec<SegmentRecord>, StoreError> {
        let entries = i64::try_from(settings.segment_entries).unwrap_or(i64::MAX);
        let midnight_ms = now_ms - now_ms.rem_euclid(DAY_MS);
        // The start of the first day that is not sealed.
        let before_ms = midnight_ms - i64::from(settings.seal_after_days) * DAY_MS;
        let boundary = SealBoundary::Full { before_ms, entries };
        self.0
            .0
            .ledger
            .segments()
            .seal(boundary, entries, PACE, now_ms)
    }

    /// Seals all entries before `before_ms`, or all but the last one. Returns the new segments.
    ///
    /// # Errors
    /// Returns an error if another process seals, or if a file or the ledger cannot be written.
    pub fn seal(
        &self,
        before_ms: Option<i64>,
        segment_entries: u64,
    ) -> Result<Vec<SegmentRecord>, StoreError> {
        let boundary = before_ms.map_or(SealBoundary::Everything, SealBoundary::Before);
        let entries = i64::try_from(segment_entries).unwrap_or(i64::MAX);
        self.0
            .0
            .ledger
            .segments()
            .seal(boundary, entries, PACE, clock::now_ms())
    }

    /// Moves the segments whose entries are all before `before_ms` to `to`. Returns them.
    ///
    /// # Errors
    /// Returns an error if a segment cannot be moved; the segment then remains in place.
    pub fn archive_segments(
        &self,
        before_ms: i64,
        to: &Path,
    ) -> Result<Vec<SegmentRecord>, StoreError> {
        self.0
            .0
            .ledger
            .segments()
            .archive_segments(before_ms, to, PACE)
    }

    /// Lists the segments with their states. With `reads_all`, reads and checks every byte.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn segments(&self, reads_all: bool) -> Result<Vec<SegmentStatus>, StoreError> {
        self.0.0.ledger.segments().segment_statuses(reads_all)
    }

    /// Returns the public key of the segments' signatures, or `None` before the first segment.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn segment_key(&self) -> Result<Option<String>, StoreError> {
        self.0.0.ledger.segments().public_key()
    }
}

fn log_done(done: &str, segment: &SegmentRecord) {
    let SegmentRecord {
        first, last, file, ..
    } = segment;
    log::info!("{done} the entries {first} to {last} of the ledger: {file}");
}

impl UpkeepReport {
    /// Logs each new fault, and the end of all faults.
    fn renew(&mut self, faults: Vec<String>) {
        for fault in faults.iter().filter(|fault| !self.faults.contains(fault)) {
            log::error!("{fault}");
        }
        if faults.is_empty() && !self.faults.is_empty() {
            log::info!("the ledger's segments are complete again");
        }
        self.faults = faults;
    }
}
