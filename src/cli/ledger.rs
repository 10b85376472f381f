//! `model-gateway ledger …`: verifies and exports the ledger, posts corrections, makes backups, and
//! replays journals that were left behind.
//!
//! Works while the gateway runs, and before its first start. Must not decide what the ledger's
//! rules allow.

use super::account::command_line_actor;
use super::export::{self, ExportFormat};
use super::progress::{self, ProgressDisplay, ProgressReporter};
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
use clap::Subcommand;
use credits::money::Micro;
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
        /// Show the progress on stderr, also if that is not a terminal.
        #[arg(long)]
        progress: bool,
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
        /// Show the progress on stderr, also if that is not a terminal.
        #[arg(long)]
        progress: bool,
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
        /// Show the progress on stderr, also if that is not a terminal.
        #[arg(long)]
        progress: bool,
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
        LedgerCommand::Verify {
            rebuild_aggregates,
            progress,
        } => {
            if rebuild_aggregates {
                rebuild_cached_totals(&billing, settings)?;
            }
            let progress = ProgressDisplay::select(progress, json);
            code = verify(&billing, &settings.data_dir, json, progress, &mut out)?;
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
            progress,
        } => {
            let account = account.as_deref().map(account_id).transpose()?;
            let format = if json { ExportFormat::Json } else { format };
            export::export(
                &billing,
                &EntrySelection {
                    account,
                    from_ms: from,
                    to_ms: to,
                },
                format,
                ProgressDisplay::select(progress, json),
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
        LedgerCommand::Backup { dir, progress } => {
            let progress = ProgressDisplay::select(progress, json);
            let files = back_up(&billing, &settings.data_dir, &dir, progress)?;
            print_backup(files, &dir, json, &mut out)?;
        }
        LedgerCommand::Replay { dir } => {
            let (new, unreadable) = billing.replay_journal(&dir)?;
            let report = json!({"new": new, "unreadable": unreadable});
            print_replay(&dir, &report, json, &mut out)?;
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

/// Copies the accounts, the ledger and the journal into `to`. Returns the number of journal files.
fn back_up(
    billing: &Billing,
    data_dir: &Path,
    to: &Path,
    progress: ProgressDisplay,
) -> anyhow::Result<usize> {
    // The copy has this name until it is complete.
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let copy = || billing.backup(to);
    Ok(progress::watch_copy(
        progress,
        data_dir,
        Path::new(&partial),
        copy,
    )?)
}

fn print_backup(files: usize, dir: &Path, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    if json {
        writeln!(out, "{}", json!({"dir": dir, "journal_files": files}))?;
    } else {
        writeln!(
            out,
            "copied accounts, ledger and {files} journal files to {}",
            dir.display()
        )?;
    }
    Ok(())
}

fn print_replay(
    dir: &Path,
    report: &Value,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if json {
        writeln!(out, "{report}")?;
    } else {
        writeln!(
            out,
            "{}: entered {} completed requests into the ledger; {} lines are unreadable",
            dir.display(),
            report["new"],
            report["unreadable"]
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
    let report = json!({"new": new, "unreadable": unreadable, "missing": missing});
    print_replay(dir, &report, json, &mut out)?;
    if missing == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    // Stdout already has the report.
    eprintln!(
        "model-gateway: cannot finish the replay of {}: the ledger lacks {missing} requests after {} s; check that Redis and the sidecar run, then run the command again",
        dir.display(),
        REPLAY_TIMEOUT.as_secs()
    );
    Ok(ExitCode::FAILURE)
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
    progress: ProgressDisplay,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let mut progress = ProgressReporter::new(progress);
    let mut show = |count: u64| progress.update(|| format!("verified {count} entries"));
    let mut verdict = billing.verify_with_progress(clock::now_ms(), &mut show)?;
    drop(progress);
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
