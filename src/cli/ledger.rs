//! `model-gateway ledger …`: verifies and exports the ledger, posts corrections, makes backups, and
//! replays journals that were left behind.
//!
//! Works while the gateway runs, and before its first start. Must not decide what the ledger's
//! rules allow.

use super::account::command_line_actor;
use crate::account::Accounts;
use crate::billing::outbox::ReplayReport;
use crate::billing::{Billing, LedgerAuditReport, outbox, verify_accounts, verify_missing_ledger};
use crate::catalog::CatalogModel;
use crate::clock::{self, rfc3339};
use crate::config::CommandSettings;
use crate::document::{self, hex};
use crate::store::ledger::{EntrySelection, LedgerEntry, PostingResult};
use crate::store::redis::RedisAddress;
use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use credits::money::Micro;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub enum LedgerCommand {
    /// Recompute every debit and check every invariant; exit with 0 only if there is no finding.
    Verify {
        /// First rebuild the cached totals that pages and keys' spend limits read. Use it when
        /// `verify` reports `sums`. Entries and balances do not change. A running gateway posts its
        /// debits after the rebuild is done. With a shared store, edges enforce spend limits by the
        /// store's own counts.
        #[arg(long)]
        rebuild_aggregates: bool,
    },
    /// Show the latest entries of an account, newest first.
    Show {
        /// Account id or e-mail.
        account: String,
        /// Maximum number of entries.
        #[arg(long, default_value_t = 50)]
        last: u32,
    },
    /// Write entries to stdout, oldest first. A complete export can be verified without the ledger:
    /// the hash of an entry is the SHA-256 of the previous entry's hash (32 bytes, zeroes for the
    /// first) and of the text SEQ␟KIND␟REF␟ACCOUNT␟AT_MS␟[D_PAID, D_TRIAL, BAL_PAID, BAL_TRIAL,
    /// WRITEOFF]␟DETAIL, where ␟ is the byte 1F and amounts are whole millionths of a credit.
    #[command(verbatim_doc_comment)]
    Export {
        /// Output format. `--json` implies json.
        #[arg(long, value_enum, default_value_t = ExportFormat::Csv)]
        format: ExportFormat,
        /// Export only the entries of this account (id or e-mail).
        #[arg(long)]
        account: Option<String>,
        /// Export entries from this time on: 2026-11-21 or 2026-11-21T12:00:00Z.
        #[arg(long, value_parser = parse_time)]
        from: Option<i64>,
        /// Export entries before this time.
        #[arg(long, value_parser = parse_time)]
        to: Option<i64>,
    },
    /// Refund the cost of a response, or a part of it. The refunds of a debit can never exceed the
    /// debit.
    Refund {
        /// Request id, as in the receipt and in `x-request-id`.
        request_id: String,
        /// Number of credits, a decimal. Default: all of the debit that has not been refunded yet.
        credits: Option<Micro>,
        /// What the refund is for, such as a ticket number. A reference is posted only once, even
        /// if the command is repeated.
        #[arg(long = "ref")]
        reference: String,
    },
    /// Correct a balance by hand. A deduction cannot use credits that running requests hold, and
    /// cannot make the balance negative.
    Adjust {
        /// Account id or e-mail.
        account: String,
        /// Number of credits, a decimal. A negative number deducts credits.
        #[arg(allow_hyphen_values = true)]
        credits: Micro,
        /// Reference of the correction. A reference is posted only once, even if the command is
        /// repeated.
        #[arg(long = "ref")]
        reference: String,
        /// Reason for the correction, recorded in the ledger.
        #[arg(long)]
        reason: String,
    },
    /// Copy accounts, ledger and journal into a new directory. Works whether or not the gateway
    /// runs. To restore the backup, start a gateway with a copy of that directory as its
    /// `data_dir`.
    Backup {
        /// Directory that the command creates; it must not exist yet.
        dir: PathBuf,
    },
    /// Enter the requests from a journal directory that was left behind into the ledger. Repeating
    /// it has no effect. With a shared store, run it on any machine that reaches the store, with
    /// the directory copied there: the command publishes the entries to the store, and the sidecar
    /// posts them.
    Replay {
        /// Journal directory: one of the folders in `journal` of the `data_dir`.
        dir: PathBuf,
    },
}

impl LedgerCommand {
    /// True for commands that add entries, which must not be added to an older ledger.
    fn posts_entries(&self) -> bool {
        matches!(
            self,
            Self::Refund { .. } | Self::Adjust { .. } | Self::Replay { .. }
        )
    }
}

/// Time that a replay waits for the sidecar to post all entries.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    Csv,
    Json,
}

/// # Errors
/// Returns an error if the ledger cannot be read, or if its rules forbid the operation.
pub fn run(
    command: LedgerCommand,
    settings: &CommandSettings,
    json: bool,
) -> anyhow::Result<ExitCode> {
    if let (LedgerCommand::Replay { dir }, Some(address)) = (&command, settings.store.address()) {
        return replay(dir, address, settings.catalog()?.models(), json);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if let (LedgerCommand::Verify { .. }, Some(verdict)) =
        (&command, verify_missing_ledger(&settings.data_dir)?)
    {
        return print_verdict(&verdict, json, &mut out);
    }
    let open = if command.posts_entries() {
        Billing::open_with_store
    } else {
        Billing::open_for_audit
    };
    let billing = open(&settings.data_dir, settings.store.address())?;
    let account_id = |account: &str| -> anyhow::Result<String> {
        let found = Accounts::open(&settings.data_dir)?.find(account)?;
        Ok(found
            .with_context(|| format!("no account has the id or e-mail {account:?}"))?
            .id)
    };
    let mut code = ExitCode::SUCCESS;
    match command {
        LedgerCommand::Verify { rebuild_aggregates } => {
            if rebuild_aggregates {
                rebuild_cached_totals(&billing, settings)?;
            }
            code = verify(&billing, &settings.data_dir, json, &mut out)?;
        }
        LedgerCommand::Show { account, last } => {
            let entries = billing.entries(&account_id(&account)?, None, last)?;
            show(&entries, json, &mut out)?;
        }
        LedgerCommand::Export {
            format,
            account,
            from,
            to,
        } => {
            let account = account.as_deref().map(account_id).transpose()?;
            let format = if json { ExportFormat::Json } else { format };
            export(
                &billing,
                &EntrySelection {
                    account,
                    from_ms: from,
                    to_ms: to,
                },
                format,
                &mut out,
            )?;
        }
        LedgerCommand::Refund {
            request_id,
            credits,
            reference,
        } => {
            let posted = refund(&billing, settings, &request_id, credits, &reference)?;
            print_posting(&posted, &reference, json, &mut out)?;
        }
        LedgerCommand::Adjust {
            account,
            credits,
            reference,
            reason,
        } => {
            let account = account_id(&account)?;
            let correction = Correction {
                account: &account,
                credits,
                reference: &reference,
                reason: &reason,
            };
            let posted = adjust(&billing, settings, &correction)?;
            print_posting(&posted, &reference, json, &mut out)?;
        }
        LedgerCommand::Backup { dir } => {
            backup(&billing, &dir, json, &mut out)?;
        }
        LedgerCommand::Replay { dir } => {
            let (new, unreadable) = billing.replay_journal(&dir)?;
            if json {
                writeln!(out, "{}", json!({"new": new, "unreadable": unreadable}))?;
            } else {
                writeln!(
                    out,
                    "{}: entered {new} completed requests into the ledger; {unreadable} lines are unreadable",
                    dir.display()
                )?;
            }
        }
    }
    out.flush().context("cannot write to stdout")?;
    Ok(code)
}

/// Recomputes the cached totals from the ledger's entries, and reports on stderr how many were
/// wrong.
fn rebuild_cached_totals(billing: &Billing, settings: &CommandSettings) -> anyhow::Result<()> {
    let (by, now_ms) = (command_line_actor(), clock::now_ms());
    let accounts = Accounts::open(&settings.data_dir)?;
    let rebuild = || billing.rebuild_aggregates();
    let acting = accounts.with_actor(&by, now_ms);
    let wrong =
        acting.record_then_run("ledger.rebuild-aggregates", "ledger", &json!({}), rebuild)?;
    // Stdout is for the verdict.
    eprintln!("rebuilt the cached totals; {wrong} were wrong");
    Ok(())
}

/// Refunds credits of one request, and records it in the audit log.
fn refund(
    billing: &Billing,
    settings: &CommandSettings,
    request_id: &str,
    credits: Option<Micro>,
    reference: &str,
) -> anyhow::Result<PostingResult> {
    let (by, now_ms) = (command_line_actor(), clock::now_ms());
    let accounts = Accounts::open(&settings.data_dir)?;
    let change = json!({"credits": credits, "ref": reference});
    let refund = || billing.refund(request_id, credits, reference, now_ms);
    let acting = accounts.with_actor(&by, now_ms);
    Ok(acting.record_then_run("request.refund", request_id, &change, refund)?)
}

/// A change of an account's balance by hand.
struct Correction<'a> {
    account: &'a str,
    credits: Micro,
    reference: &'a str,
    reason: &'a str,
}

/// Adjusts an account's balance, and records it in the audit log.
fn adjust(
    billing: &Billing,
    settings: &CommandSettings,
    correction: &Correction<'_>,
) -> anyhow::Result<PostingResult> {
    let Correction {
        account,
        credits,
        reference,
        reason,
    } = *correction;
    let (by, now_ms) = (command_line_actor(), clock::now_ms());
    let accounts = Accounts::open(&settings.data_dir)?;
    let change = json!({"credits": credits, "ref": reference, "reason": reason});
    let adjust = || billing.adjust(account, credits, reference, reason, now_ms);
    let acting = accounts.with_actor(&by, now_ms);
    Ok(acting.record_then_run("account.adjust", account, &change, adjust)?)
}

/// Copies the accounts, the ledger and the journal into `dir`.
fn backup(billing: &Billing, dir: &Path, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let records = billing.backup(dir)?;
    if json {
        writeln!(out, "{}", json!({"dir": dir, "journal_files": records}))?;
    } else {
        writeln!(
            out,
            "copied accounts, ledger and {records} journal files to {}",
            dir.display()
        )?;
    }
    Ok(())
}

/// Publishes the entries of a journal to the shared store, and waits until the sidecar's ledger has
/// them.
fn replay(
    dir: &Path,
    address: RedisAddress,
    models: &[Arc<CatalogModel>],
    json: bool,
) -> anyhow::Result<ExitCode> {
    let report = outbox::replay_journal(dir, address, models, REPLAY_TIMEOUT)?;
    let ReplayReport {
        new,
        missing,
        unreadable,
    } = report;
    let mut out = io::stdout().lock();
    if json {
        writeln!(
            out,
            "{}",
            json!({"new": new, "unreadable": unreadable, "missing": missing})
        )?;
    } else {
        writeln!(
            out,
            "{}: entered {new} completed requests into the ledger; {unreadable} lines are unreadable",
            dir.display()
        )?;
    }
    anyhow::ensure!(
        missing == 0,
        "cannot finish the replay of {}: the ledger lacks {missing} requests after {} s; check that Redis and the sidecar run, then run the command again",
        dir.display(),
        REPLAY_TIMEOUT.as_secs()
    );
    Ok(ExitCode::SUCCESS)
}

/// Parses a date (its start, UTC) or a time with offset, into milliseconds since 1970.
fn parse_time(text: &str) -> Result<i64, String> {
    let midnight = format!("{text}T00:00:00Z");
    let text = if text.contains('T') { text } else { &midnight };
    let time = text.parse::<jiff::Timestamp>().map_err(|error| {
        format!("not a date (2026-11-21) or a time with an offset (2026-11-21T12:00:00Z): {error}")
    });
    time.map(|time| time.as_millisecond())
}

fn verify(
    billing: &Billing,
    data_dir: &Path,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let mut verdict = billing.verify(clock::now_ms())?;
    verdict.findings.extend(verify_accounts(data_dir)?);
    print_verdict(&verdict, json, out)
}

fn print_verdict(
    verdict: &LedgerAuditReport,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    if json {
        writeln!(out, "{}", serde_json::to_string(verdict)?)?;
    } else {
        for finding in &verdict.findings {
            writeln!(
                out,
                "entry {}: {}: {}",
                finding.seq, finding.rule, finding.message
            )?;
        }
        let (findings, debits) = (verdict.findings.len(), verdict.debits);
        writeln!(
            out,
            "{findings} findings in {} entries, {debits} debits, {} refunds, {} adjustments, {} accounts",
            verdict.entries, verdict.refunds, verdict.adjustments, verdict.accounts
        )?;
    }
    Ok(if verdict.findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn show(entries: &[LedgerEntry], json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    if json {
        let rows = entries
            .iter()
            .map(document::entry)
            .collect::<Result<Vec<_>, _>>()?;
        writeln!(out, "{}", Value::Array(rows))?;
        return Ok(());
    }
    for entry in entries {
        let row = document::entry(entry)?;
        let about = ["model", "outcome", "request_id", "reason", "actor"]
            .map(|name| row[name].as_str().unwrap_or_default());
        let about = about
            .into_iter()
            .filter(|text| !text.is_empty() && *text != entry.reference);
        // A reason may contain line breaks, but an entry is always one line.
        let about = about
            .fold(String::new(), |all, text| all + " " + text)
            .replace(char::is_control, " ");
        let (at, after) = (rfc3339(entry.at_ms), entry.bal_paid.plus(entry.bal_trial));
        let hash = &hex(&entry.hash)[..16];
        writeln!(
            out,
            "{at} {} {} {}{about} {} → {after} #{hash}",
            entry.seq,
            entry.kind,
            entry.reference,
            entry.change()
        )?;
    }
    Ok(())
}

/// An exported entry: everything that its hash covers, and the hash.
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
    /// Detail as stored, byte for byte. It is text, because a parsed document would not reproduce
    /// the same bytes.
    detail: String,
    prev: String,
    hash: String,
}

const CSV_HEADER: &str =
    "seq,at,at_ms,kind,ref,account,d_paid,d_trial,bal_paid,bal_trial,writeoff,detail,prev,hash\r\n";

fn export(
    billing: &Billing,
    selection: &EntrySelection,
    format: ExportFormat,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if format == ExportFormat::Csv {
        out.write_all(CSV_HEADER.as_bytes())
            .context("cannot write to stdout")?;
        billing.for_each_entry(selection, &mut |entry| {
            write_csv_row(out, &export_entry(entry))
        })?;
        return Ok(());
    }
    let mut before = "[\n";
    billing.for_each_entry(selection, &mut |entry| {
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

/// RFC 4180: quote fields that may contain a comma, a quote or a line break.
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

fn print_posting(
    posted: &PostingResult,
    reference: &str,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let PostingResult {
        account,
        is_new,
        change,
        balance,
    } = posted;
    if json {
        let value = json!({
            "account_id": account, "credits": change, "ref": reference, "counted": is_new, "balance": balance,
        });
        writeln!(out, "{value}")?;
    } else if *is_new {
        writeln!(
            out,
            "posted {change} to account {account}; its balance is {balance}"
        )?;
    } else {
        writeln!(
            out,
            "reference {reference:?} was already posted, so nothing changed; the balance is {balance}"
        )?;
    }
    Ok(())
}
