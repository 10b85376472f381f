//! Implements `model-gateway ledger …`, which verifies and exports the ledger, posts corrections,
//! creates backups, and replays journals of stopped processes.
//!
//! The commands work while the gateway runs, and before its first start. This file must not
//! implement the ledger's rules.

use super::account::command_line_actor;
use super::copies;
use super::export::{self, ExportFormat, parse_time};
use super::home::open_home;
use super::progress::{self, ProgressDisplay, ProgressReporter};
use super::reindex::{REBUILD_ACT, REINDEX_ACT, print_reindex, reindex};
use super::segments::{self, SegmentCommand};
use crate::billing::{
    AuditProgress, AuditScope, AuditStep, Backup, Billing, CpuShare, LedgerAuditReport,
    verify_accounts, verify_missing_ledger,
};
use crate::document::{self, hex};
use crate::replica::{detach_from_postgres, push_to_postgres, verify_postgres};
use crate::shared_credit::outbox;
use crate::shared_credit::outbox::ReplayReport;
use crate::shared_credit::shared_balances;
use accounts::Accounts;
use anyhow::Context as _;
use base::clock::{self, rfc3339};
use clap::Subcommand;
use config::CommandSettings;
use config::catalog::CatalogModel;
use config::redis_address::RedisAddress;
use credits::money::Micro;
use ledger::StoreError;
use ledger::{BalanceChange, BalanceChangeKind, EntrySelection, LedgerEntry, PostingResult};
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
        /// First do what `ledger reindex` does. Use it when `verify` reports `sums`.
        #[arg(long)]
        rebuild_aggregates: bool,
        /// Also read the entries in sealed segments, and compare `index.db` with the entries.
        /// Without it, a segment is checked by its signature and its place in the chain.
        #[arg(long)]
        all: bool,
        /// Show the progress on stderr, also if that is not a terminal.
        #[arg(long)]
        progress: bool,
    },
    /// Make `index.db` (which pages, reports and statements find entries and totals by) and the
    /// totals of keys' spend limits anew from the entries. Use it when `verify` reports `sums`.
    /// Entries and balances do not change. Works while the gateway runs: pages use the old index
    /// until the new one is complete. It takes twice the size of `index.db` on the disk meanwhile.
    /// With a shared store, edges enforce spend limits by the store's own counts.
    Reindex {
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
    /// Give PostgreSQL (`ledger.kind: postgres`) what this data directory has and PostgreSQL lacks:
    /// everything, to move an installation there; the last entries, after a standby was promoted
    /// that was behind. Stop the gateway first. Repeating it has no effect.
    Push,
    /// Make the copies in this data directory the ledger again, without PostgreSQL. Stop all
    /// sidecars first, and set `ledger.kind: sqlite` afterwards.
    Detach,
    #[command(flatten)]
    Segments(SegmentCommand),
}

impl LedgerCommand {
    /// Opens the ledger. An outdated ledger is refused, because entries must not be added to it.
    fn open_billing(&self, settings: &CommandSettings) -> Result<Billing, StoreError> {
        let posts_entries = matches!(
            self,
            Self::Refund { .. } | Self::Adjust { .. } | Self::Replay { .. }
        );
        let data_dir = &settings.data_dir;
        let store = shared_balances(settings.store.address());
        let billing = if posts_entries {
            Billing::open_with_store(data_dir, store, open_home(settings)?)?
        } else {
            Billing::open_for_audit(data_dir, store)?
        };
        billing.upkeep().set_archive(settings.ledger.archive());
        Ok(billing)
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
    if let LedgerCommand::Segments(command) = command {
        return segments::run(&command, settings, json);
    }
    let out = &mut io::BufWriter::new(io::stdout().lock());
    if let LedgerCommand::Push | LedgerCommand::Detach = command {
        return move_ledger(&command, settings, json, out);
    }
    copies::catch_up(settings)?;
    if let (LedgerCommand::Verify { .. }, Some(verdict)) =
        (&command, verify_missing_ledger(&settings.data_dir)?)
    {
        return print_verdict(&verdict, json, out);
    }
    let billing = command.open_billing(settings)?;
    run_on(&billing, command, settings, json, out)
}

/// Runs a command that works with the ledger in the data directory.
fn run_on(
    billing: &Billing,
    command: LedgerCommand,
    settings: &CommandSettings,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let account_id = |account: &str| find_account_id(settings, account);
    let mut code = ExitCode::SUCCESS;
    match command {
        LedgerCommand::Verify {
            rebuild_aggregates,
            all,
            progress,
        } => {
            let progress = ProgressDisplay::select(progress, json);
            if rebuild_aggregates {
                let wrong = reindex(billing, settings, REBUILD_ACT, progress)?;
                // Stdout is reserved for the verdict.
                print_reindex(wrong, false, &mut io::stderr())?;
            }
            let reads_all = all || rebuild_aggregates;
            let verdict = verify(billing, settings, reads_all, progress)?;
            code = print_verdict(&verdict, json, out)?;
        }
        LedgerCommand::Reindex { progress } => {
            let progress = ProgressDisplay::select(progress, json);
            let wrong = reindex(billing, settings, REINDEX_ACT, progress)?;
            print_reindex(wrong, json, out)?;
        }
        LedgerCommand::Show { account, last } => {
            let entries = last_entries(billing, &account_id(&account)?, last)?;
            show(&entries, json, out)?;
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
                billing,
                &EntrySelection {
                    account,
                    from_ms: from,
                    to_ms: to,
                },
                format,
                ProgressDisplay::select(progress, json),
                out,
            )?;
        }
        LedgerCommand::Refund {
            request_id,
            credits,
            reference,
        } => {
            let posted = refund(billing, settings, &request_id, credits, &reference)?;
            print_posting(&posted, &reference, json, out)?;
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
            let posted = adjust(billing, settings, &correction)?;
            print_posting(&posted, &reference, json, out)?;
        }
        LedgerCommand::Backup { dir, progress } => {
            let progress = ProgressDisplay::select(progress, json);
            let backup = back_up(billing, &settings.data_dir, &dir, progress)?;
            print_backup(&backup, &dir, json, out)?;
        }
        LedgerCommand::Segments(_) | LedgerCommand::Push | LedgerCommand::Detach => {}
        LedgerCommand::Replay { dir } => {
            let (new, unreadable) = billing.upkeep().replay_journal(&dir)?;
            print_replay(
                &dir,
                &json!({"new": new, "unreadable": unreadable}),
                json,
                out,
            )?;
        }
    }
    out.flush().context("cannot write to stdout")?;
    Ok(code)
}

/// Moves the ledger to PostgreSQL, or back.
fn move_ledger(
    command: &LedgerCommand,
    settings: &CommandSettings,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let home = open_home(settings)?.context(
        "the config has no ledger in PostgreSQL: set ledger.kind: postgres and ledger.url",
    )?;
    if matches!(command, LedgerCommand::Detach) {
        detach_from_postgres(&settings.data_dir, home)?;
        let says = "the data directory has the ledger now: set ledger.kind: sqlite before you start a sidecar";
        match json {
            true => writeln!(out, "{}", json!({"detached": true}))?,
            false => writeln!(out, "{says}")?,
        }
    } else {
        let pushed = push_to_postgres(&settings.data_dir, home)?;
        let (entries, last, hash) = (pushed.entries, pushed.last, hex(&pushed.hash));
        match json {
            true => writeln!(
                out,
                "{}",
                json!({"entries": entries, "last": last, "hash": hash})
            )?,
            false => writeln!(
                out,
                "gave {entries} entries to PostgreSQL; the last entry on both sides is {last} #{}",
                &hash[..16]
            )?,
        }
    }
    out.flush().context("cannot write to stdout")?;
    Ok(ExitCode::SUCCESS)
}

fn find_account_id(settings: &CommandSettings, account: &str) -> anyhow::Result<String> {
    let found =
        Accounts::open_with_home(&settings.data_dir, open_home(settings)?)?.find(account)?;
    Ok(found
        .with_context(|| format!("no account has the id or e-mail {account:?}"))?
        .id)
}

/// Returns an account's newest entries. If the index lags behind, a note is printed on stderr.
fn last_entries(billing: &Billing, account: &str, last: u32) -> anyhow::Result<Vec<LedgerEntry>> {
    let entries = billing.receipts().entries(account, None, last)?;
    let lag = billing.pages().index_lag();
    if lag > 0 {
        eprintln!("model-gateway: {lag} entries are not indexed yet, so the newest may be missing");
    }
    Ok(entries)
}

/// Refunds credits of one request, and records the refund in the audit log.
fn refund(
    billing: &Billing,
    settings: &CommandSettings,
    request_id: &str,
    credits: Option<Micro>,
    reference: &str,
) -> anyhow::Result<PostingResult> {
    let (by, now_ms) = (command_line_actor(), clock::now_ms());
    let accounts = Accounts::open_with_home(&settings.data_dir, open_home(settings)?)?;
    let charge = billing.ledger().rows().request_charge(request_id)?;
    let account = charge.map(|charge| charge.account);
    let change = json!({"account": account, "credits": credits, "ref": reference});
    let refund = || {
        billing
            .corrections()
            .refund(request_id, credits, reference, now_ms)
    };
    let acting = accounts.with_actor(&by, now_ms);
    Ok(acting.record_posting("request.refund", request_id, &change, refund)?)
}

/// A manual change of an account's balance.
struct Correction<'a> {
    account: &'a str,
    credits: Micro,
    reference: &'a str,
    reason: &'a str,
}

/// Adjusts an account's balance, and records the change in the audit log.
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
    let accounts = Accounts::open_with_home(&settings.data_dir, open_home(settings)?)?;
    let change = BalanceChange {
        kind: BalanceChangeKind::Adjust { reason },
        reference,
        account,
        amount: credits,
        actor: None,
        at_ms: now_ms,
    };
    let acting = accounts.with_actor(&by, now_ms);
    Ok(acting.record_then_post(&change, || billing.corrections().post_change(&change))?)
}

/// Copies the accounts, the ledger and the journal into `to`.
fn back_up(
    billing: &Billing,
    data_dir: &Path,
    to: &Path,
    progress: ProgressDisplay,
) -> anyhow::Result<Backup> {
    // The copy has this temporary name until it is complete.
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let copy = || billing.upkeep().backup(to);
    Ok(progress::watch_copy(
        progress,
        data_dir,
        Path::new(&partial),
        copy,
    )?)
}

fn print_backup(
    backup: &Backup,
    dir: &Path,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let Backup {
        journal_files: files,
        missing_segments: missing,
    } = backup;
    for fault in missing {
        writeln!(io::stderr(), "warning: not in the backup: {fault}")?;
    }
    if json {
        let dir = dir.display().to_string();
        let report = json!({"dir": dir, "journal_files": files, "missing_segments": missing});
        writeln!(out, "{report}")?;
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
    // Stdout already contains the report, so the note goes to stderr.
    eprintln!(
        "model-gateway: cannot finish the replay of {}: the ledger lacks {missing} requests after {} s; check that Redis and the sidecar run, then run the command again",
        dir.display(),
        REPLAY_TIMEOUT.as_secs()
    );
    Ok(ExitCode::FAILURE)
}

fn verify(
    billing: &Billing,
    settings: &CommandSettings,
    reads_all: bool,
    progress: ProgressDisplay,
) -> anyhow::Result<LedgerAuditReport> {
    let data_dir = &settings.data_dir;
    let scope = match reads_all {
        true => AuditScope::Everything,
        false => AuditScope::Unsealed,
    };
    let mut progress = ProgressReporter::new(progress);
    let mut show = |at: AuditProgress| {
        progress.update(|| {
            let AuditProgress { step, done, total } = at;
            match step {
                AuditStep::Sealed => format!("verified {done} of {total} sealed entries"),
                AuditStep::Entries => format!("verified {done} of {total} entries"),
                AuditStep::References => format!("compared {done} of {total} references"),
            }
        });
    };
    let now_ms = clock::now_ms();
    let mut verdict = billing.verify_with_progress(now_ms, scope, CpuShare::FULL, &mut show)?;
    drop(progress);
    verdict.findings.extend(verify_accounts(data_dir)?);
    if let Some(home) = open_home(settings)? {
        let found = verify_postgres(home, data_dir, reads_all)?;
        verdict.findings.extend(found);
    }
    Ok(verdict)
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
            "{findings} findings in {}, {debits} debits, {} refunds, {} adjustments, {} accounts",
            verdict.scope(),
            verdict.refunds,
            verdict.adjustments,
            verdict.accounts
        )?;
        if verdict.sealed_entries > 0 && !verdict.reads_sealed {
            writeln!(out, "`ledger verify --all` reads the sealed entries too")?;
        }
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
        // A reason may contain line breaks, but an entry is printed as one line.
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
