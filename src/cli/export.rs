//! Implements `model-gateway ledger export`, which writes entries as CSV or JSON, complete enough
//! to verify them without the ledger.
//!
//! This file must not select entries, which `crates/ledger/src/lib.rs` does.

use super::progress::{ProgressDisplay, ProgressReporter};
use crate::billing::Billing;
use crate::document::hex;
use anyhow::Context as _;
use base::clock::rfc3339;
use clap::ValueEnum;
use credits::money::Micro;
use ledger::{EntrySelection, LedgerEntry};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    Csv,
    Json,
}

/// An exported entry with its hash and all fields that the hash covers.
#[derive(Serialize)]
struct ExportedEntry {
    seq: i64,
    at: String,
    at_ms: i64,
    kind: String,
    #[serde(rename = "ref")]
    reference: String,
    account: String,
    d_paid: Micro,
    d_trial: Micro,
    bal_paid: Micro,
    bal_trial: Micro,
    writeoff: Micro,
    /// Detail as stored, byte for byte. It stays text, because a parsed document would not
    /// reproduce the same bytes.
    detail: String,
    prev: String,
    hash: String,
}

const CSV_HEADER: &str =
    "seq,at,at_ms,kind,ref,account,d_paid,d_trial,bal_paid,bal_trial,writeoff,detail,prev,hash\r\n";

/// Writes the selected entries, oldest first.
///
/// # Errors
/// Returns an error if the ledger cannot be read, or if `out` cannot be written.
pub fn export(
    billing: &Billing,
    selection: &EntrySelection,
    format: ExportFormat,
    progress: ProgressDisplay,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut progress = ProgressReporter::new(progress);
    let mut count = 0_u64;
    let mut show = move || {
        count += 1;
        progress.update(|| format!("exported {count} entries"));
    };
    if format == ExportFormat::Csv {
        out.write_all(CSV_HEADER.as_bytes())
            .context("cannot write to stdout")?;
        billing.receipts().for_each_entry(selection, &mut |entry| {
            show();
            write_csv_row(out, &export_entry(entry))
        })?;
        return Ok(());
    }
    let mut before = "[\n";
    billing.receipts().for_each_entry(selection, &mut |entry| {
        show();
        out.write_all(std::mem::replace(&mut before, ",\n").as_bytes())?;
        Ok(serde_json::to_writer(&mut *out, &export_entry(entry))?)
    })?;
    out.write_all(if before == "[\n" { "[]\n" } else { "\n]\n" }.as_bytes())
        .context("cannot write to stdout")
}

fn export_entry(entry: LedgerEntry) -> ExportedEntry {
    ExportedEntry {
        seq: entry.seq,
        at: rfc3339(entry.at_ms),
        at_ms: entry.at_ms,
        kind: entry.kind,
        reference: entry.reference,
        account: entry.account,
        d_paid: entry.d_paid,
        d_trial: entry.d_trial,
        bal_paid: entry.bal_paid,
        bal_trial: entry.bal_trial,
        writeoff: entry.writeoff,
        detail: entry.detail,
        prev: hex(&entry.prev),
        hash: hex(&entry.hash),
    }
}

/// Writes a CSV row (RFC 4180). Fields that may contain a comma, a quote or a line break are
/// quoted.
fn write_csv_row(out: &mut impl Write, line: &ExportedEntry) -> io::Result<()> {
    let ExportedEntry {
        seq,
        at,
        at_ms,
        kind,
        d_paid,
        d_trial,
        bal_paid,
        bal_trial,
        writeoff,
        prev,
        hash,
        ..
    } = line;
    let [reference, account, detail] = [&line.reference, &line.account, &line.detail]
        .map(|text| format!("\"{}\"", text.replace('"', "\"\"")));
    write!(
        out,
        "{seq},{at},{at_ms},{kind},{reference},{account},{d_paid},{d_trial},{bal_paid},{bal_trial},"
    )?;
    write!(out, "{writeoff},{detail},{prev},{hash}\r\n")
}

/// Parses a date, as its start in UTC, or a time with offset. Returns ms since 1970.
pub fn parse_time(text: &str) -> Result<i64, String> {
    let midnight = format!("{text}T00:00:00Z");
    let text = if text.contains('T') { text } else { &midnight };
    let time = text.parse::<jiff::Timestamp>().map_err(|error| {
        format!("not a date (2026-11-21) or a time with an offset (2026-11-21T12:00:00Z): {error}")
    });
    time.map(|time| time.as_millisecond())
}
