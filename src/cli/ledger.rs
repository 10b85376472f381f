//! `model-gateway ledger …`: the audit, an account's entries, and journals left behind.

use crate::account::Accounts;
use crate::billing::Billing;
use crate::clock::rfc3339;
use crate::config::Settings;
use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum LedgerCommand {
    /// Recompute every debit and check every invariant; exit 0 only with no finding.
    Verify,
    /// Show an account's latest responses.
    Show {
        /// Its id or its e-mail.
        account: String,
        /// At most so many lines.
        #[arg(long, default_value_t = 50)]
        last: u32,
    },
    /// Bring a journal folder that was left behind into the ledger; doing it twice changes nothing.
    Replay { dir: PathBuf },
}

/// # Errors
/// The ledger cannot be read.
pub fn run(command: LedgerCommand, settings: &Settings, json: bool) -> anyhow::Result<ExitCode> {
    let billing = Billing::open(&settings.data_dir)?;
    let mut out = std::io::stdout().lock();
    match command {
        LedgerCommand::Verify => {
            let verdict = billing.verify()?;
            if json {
                writeln!(out, "{}", serde_json::to_string(&verdict)?)?;
            } else {
                for finding in &verdict.findings {
                    writeln!(out, "entry {}: {}: {}", finding.seq, finding.rule, finding.message)?;
                }
                let (findings, debits) = (verdict.findings.len(), verdict.debits);
                writeln!(
                    out,
                    "{findings} findings in {} entries, {debits} debits, {} accounts",
                    verdict.entries, verdict.accounts
                )?;
            }
            return Ok(if verdict.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        LedgerCommand::Show { account, last } => {
            let found = Accounts::open(&settings.data_dir)?.find(&account)?;
            let found = found.with_context(|| format!("no account has the id or e-mail {account:?}"))?;
            let receipts = billing.receipts(&found.id, None, last)?;
            if json {
                let rows: Vec<_> = receipts
                    .iter()
                    .map(|receipt| {
                        json!({
                            "request_id": receipt.request_id, "at": rfc3339(receipt.at_ms), "model": receipt.detail.model,
                            "outcome": receipt.detail.outcome, "usage": receipt.detail.usage, "credits": receipt.credits,
                            "writeoff": receipt.writeoff, "balance_after": receipt.balance_after,
                        })
                    })
                    .collect();
                writeln!(out, "{}", json!(rows))?;
            } else {
                for receipt in receipts {
                    let (at, model) = (rfc3339(receipt.at_ms), &receipt.detail.model);
                    let outcome = receipt.detail.outcome.as_str();
                    let (credits, after) = (receipt.credits, receipt.balance_after);
                    writeln!(out, "{at} {} {model} {outcome} {credits} → {after}", receipt.request_id)?;
                }
            }
        }
        LedgerCommand::Replay { dir } => {
            let (new, unreadable) = billing.replay(&dir)?;
            if json {
                writeln!(out, "{}", json!({"new": new, "unreadable": unreadable}))?;
            } else {
                writeln!(out, "{}: {new} endings were new, {unreadable} lines unreadable", dir.display())?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
