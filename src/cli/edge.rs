//! Implements `model-gateway edge drain`, which shuts an edge down permanently, so that its machine
//! holds no data that the ledger lacks.
//!
//! This file must stop a process only by SIGTERM, like an operator.

use crate::shared_credit::outbox;
use crate::shared_credit::outbox::ReplayReport;
use anyhow::Context as _;
use clap::Subcommand;
use config::CommandSettings;
use ledger::instance_lock;
use ledger::journal;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Subcommand)]
pub enum EdgeCommand {
    /// Stop the edge that uses this data_dir, and wait until the ledger has every request that the
    /// edge completed. Use it before you remove the machine. If no edge runs, it delivers the
    /// journals that stopped edges left behind. First keep the supervisor from restarting the edge.
    Drain {
        /// Time limit for the whole command, in seconds. After it, the command reports what is left
        /// and exits with 1.
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        within_seconds: u64,
    },
}

/// # Errors
/// Returns an error if the edge cannot be signalled, its journals cannot be read, or there is no
/// shared store.
pub fn run(
    command: &EdgeCommand,
    settings: &CommandSettings,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let EdgeCommand::Drain { within_seconds } = command;
    let address = settings.store.address();
    let address =
        address.context("`edge drain` needs store.kind: redis; with kind: embedded, send SIGTERM to the gateway instead")?;
    let (data_dir, until) = (
        &settings.data_dir,
        Instant::now() + Duration::from_secs(*within_seconds),
    );
    let running = stop_and_wait(data_dir, until)?;
    let mut report = ReplayReport::default();
    if running == 0 {
        let within = until.saturating_duration_since(Instant::now());
        report = outbox::relay_all(
            address,
            outbox::claim_orphaned_endings(data_dir)?,
            settings.catalog()?.models(),
            within,
        )?;
    }
    print_report(running, report, data_dir, json)?;
    Ok(if running == 0 && report.missing == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Sends SIGTERM to the process that serves from `data_dir`, and waits until it ends. Returns the
/// number of processes that still run at the end.
fn stop_and_wait(data_dir: &Path, until: Instant) -> anyhow::Result<usize> {
    let mut signaled = None;
    loop {
        if let Some(pid) =
            instance_lock::serving_pid(data_dir)?.filter(|pid| signaled != Some(*pid))
        {
            let is_another = signaled.replace(pid).is_some();
            anyhow::ensure!(
                !is_another,
                "cannot drain {}: process {pid} was started again; keep the supervisor from restarting it",
                data_dir.display()
            );
            let process =
                Pid::from_raw(pid).context("cannot read the PID of the running gateway")?;
            match kill_process(process, Signal::TERM) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("cannot send SIGTERM to process {pid}"));
                }
            }
        }
        // After a handover, the old process still holds its journal until it ends.
        let running = journal::live_instance_ids(data_dir)?.len();
        if running == 0 || Instant::now() >= until {
            return Ok(running);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn print_report(
    running: usize,
    report: ReplayReport,
    data_dir: &Path,
    json: bool,
) -> anyhow::Result<()> {
    let ReplayReport {
        new,
        missing,
        unreadable,
    } = report;
    let mut out = io::stdout().lock();
    if json {
        let is_drained = running == 0 && missing == 0;
        let document = json!({
            "drained": is_drained, "running": running, "new": new, "missing": missing, "unreadable": unreadable,
        });
        writeln!(out, "{document}")?;
    } else if running > 0 {
        writeln!(
            out,
            "{}: {running} processes still serve requests; run the command again",
            data_dir.display()
        )?;
    } else if missing > 0 {
        let folder = data_dir.join("journal");
        writeln!(
            out,
            "{}: the ledger has not confirmed {missing} completed requests; keep {} and run the command again",
            data_dir.display(),
            folder.display()
        )?;
    } else {
        writeln!(
            out,
            "{}: drained; the ledger has every completed request",
            data_dir.display()
        )?;
        if unreadable > 0 {
            writeln!(
                out,
                "{unreadable} lines of the journal are unreadable: see journal/*.damaged"
            )?;
        }
    }
    Ok(())
}
