//! Implements `model-gateway ledger seal`, `archive` and `segments`, which manage the files with
//! the ledger's oldest entries.
//!
//! The running gateway seals and archives by itself (`billing/retention.rs`). This file must not
//! depend on the format of a segment.

use super::account::command_line_actor;
use super::export::parse_time;
use super::home::open_home;
use crate::billing::Billing;
use crate::shared_credit::shared_balances;
use accounts::Accounts;
use anyhow::Context as _;
use base::clock::{self, rfc3339};
use clap::Subcommand;
use config::CommandSettings;
use ledger::StoreError;
use ledger::{SegmentRecord, SegmentState, SegmentStatus};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum SegmentCommand {
    /// Seal the oldest entries: move them from `ledger.db` into signed files in `segments` of the
    /// `data_dir`. Receipts, refunds and exports find them there. A running gateway does it by
    /// itself (`ledger.seal` in the config file). The newest entry always stays.
    Seal {
        /// Seal entries before this time only: 2026-11-21 or 2026-11-21T12:00:00Z.
        #[arg(long, value_parser = parse_time)]
        before: Option<i64>,
    },
    /// Move sealed files to another folder, whose entries are found as long as it can be read. A
    /// running gateway does it by itself if `ledger.retention` is set.
    Archive {
        /// Move files whose entries are all before this time: 2026-11-21 or
        /// 2026-11-21T12:00:00Z.
        #[arg(long, value_parser = parse_time)]
        before: i64,
        /// Folder that receives them; it must exist.
        dir: PathBuf,
    },
    /// List the sealed files and where they are; exit with 0 only if all can be read.
    Segments {
        /// Read and check every byte, not only signatures.
        #[arg(long)]
        full: bool,
    },
}

/// # Errors
/// Returns an error if the ledger cannot be read, or if a file cannot be written.
pub fn run(
    command: &SegmentCommand,
    settings: &CommandSettings,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut code = ExitCode::SUCCESS;
    match command {
        SegmentCommand::Seal { before } => {
            let billing = Billing::open_with_store(
                &settings.data_dir,
                shared_balances(settings.store.address()),
                open_home(settings)?,
            )?;
            let what = json!({"before": before.map(rfc3339)});
            let sealed = record(settings, "ledger.seal", &what, || {
                billing
                    .upkeep()
                    .seal(*before, settings.ledger.segment_entries)
            })?;
            print_segments(&sealed, "sealed", json, &mut out)?;
        }
        SegmentCommand::Archive { before, dir } => {
            let billing = Billing::open_with_store(
                &settings.data_dir,
                shared_balances(settings.store.address()),
                open_home(settings)?,
            )?;
            let what = json!({"before": rfc3339(*before), "dir": dir.display().to_string()});
            let moved = record(settings, "ledger.archive", &what, || {
                billing.upkeep().archive_segments(*before, dir)
            })?;
            print_segments(&moved, "archived", json, &mut out)?;
        }
        SegmentCommand::Segments { full } => {
            let billing = Billing::open_for_audit(
                &settings.data_dir,
                shared_balances(settings.store.address()),
            )?;
            billing.upkeep().set_archive(settings.ledger.archive());
            let segments = billing.upkeep().segments(*full)?;
            if segments.iter().any(|segment| segment.fault.is_some()) {
                code = ExitCode::FAILURE;
            }
            print_statuses(&segments, billing.upkeep().segment_key()?, json, &mut out)?;
        }
    }
    out.flush().context("cannot write to stdout")?;
    Ok(code)
}

/// Runs a command that moves entries, and records it in the audit log.
fn record<T>(
    settings: &CommandSettings,
    action: &'static str,
    what: &Value,
    run: impl FnOnce() -> Result<T, StoreError>,
) -> anyhow::Result<T> {
    let accounts = Accounts::open_with_home(&settings.data_dir, open_home(settings)?)?;
    let (by, now_ms) = (command_line_actor(), clock::now_ms());
    let acting = accounts.with_actor(&by, now_ms);
    Ok(acting.record_then_run(action, "ledger", what, run)?)
}

fn segment_json(segment: &SegmentRecord) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(segment)?;
    for (name, ms) in [
        ("from", Some(segment.from_ms)),
        ("to", Some(segment.to_ms)),
        ("sealed_at", Some(segment.sealed_at_ms)),
        ("archived_at", segment.archived_at_ms),
    ] {
        value[name] = json!(ms.map(rfc3339));
        if let Some(members) = value.as_object_mut() {
            members.remove(&format!("{name}_ms"));
        }
    }
    Ok(value)
}

fn print_segments(
    segments: &[SegmentRecord],
    done: &str,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if json {
        let rows = segments.iter().map(segment_json);
        let rows = rows.collect::<anyhow::Result<Vec<_>>>()?;
        writeln!(out, "{}", Value::Array(rows))?;
        return Ok(());
    }
    for segment in segments {
        let place = segment.archived_to.as_deref().unwrap_or("segments");
        writeln!(
            out,
            "{done} entries {} to {}: {place}/{}, {} bytes",
            segment.first, segment.last, segment.file, segment.bytes
        )?;
    }
    if segments.is_empty() {
        writeln!(out, "nothing to be {done}")?;
    }
    Ok(())
}

fn print_statuses(
    segments: &[SegmentStatus],
    key: Option<String>,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if json {
        let mut rows = Vec::new();
        for SegmentStatus {
            segment,
            state,
            fault,
        } in segments
        {
            let mut row = segment_json(segment)?;
            (row["state"], row["fault"]) = (json!(state.name()), json!(fault));
            rows.push(row);
        }
        writeln!(out, "{}", json!({"public_key": key, "segments": rows}))?;
        return Ok(());
    }
    for SegmentStatus {
        segment,
        state,
        fault,
    } in segments
    {
        let SegmentRecord {
            first,
            last,
            bytes,
            file,
            ..
        } = segment;
        let place = match (state, &segment.archived_to) {
            (SegmentState::Archived, Some(folder)) => format!("archived at {folder}"),
            (state, _) => state.name().to_owned(),
        };
        let (from, to) = (rfc3339(segment.from_ms), rfc3339(segment.to_ms));
        writeln!(
            out,
            "{file} entries {first} to {last}, {from} to {to}, {bytes} bytes, {place}"
        )?;
        if let Some(fault) = fault {
            writeln!(out, "  {fault}")?;
        }
    }
    if segments.is_empty() {
        writeln!(out, "no entries are sealed")?;
    }
    Ok(())
}
