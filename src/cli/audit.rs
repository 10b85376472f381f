//! Implements `model-gateway audit …`, which shows and verifies the log of administrators' actions.
//!
//! The commands work while the gateway runs, and before its first start. This file must not write.

use super::account::print;
use super::home::open_home;
use crate::document::hex;
use accounts::Accounts;
use accounts::db::audit::{AuditOutcome, AuditRow};
use base::clock::rfc3339;
use clap::Subcommand;
use config::CommandSettings;
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Show the latest actions, newest first, and what became of each: done, refused, failed, or
    /// repeated if its reference was posted before.
    Show {
        /// Maximum number of actions.
        #[arg(long, default_value_t = 50)]
        last: u32,
    },
    /// Recompute the hash of every line; exit with 0 only if there is no finding. The hash of a
    /// line is the SHA-256 of the previous line's hash (32 bytes, zeroes for the first) and of the
    /// text SEQ␟AT_MS␟ACTOR␟ADDRESS␟ACT␟OBJECT␟BEFORE␟AFTER, where ␟ is the byte 1F. This does not
    /// detect that lines were removed from the end of the log: to detect that, store the last hash
    /// elsewhere.
    #[command(verbatim_doc_comment)]
    Verify,
}

/// # Errors
/// Returns an error if the log cannot be read.
pub fn run(
    command: AuditCommand,
    settings: &CommandSettings,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let accounts = Accounts::open_with_home(&settings.data_dir, open_home(settings)?)?;
    match command {
        AuditCommand::Show { last } => {
            let lines = accounts.audit_log().rows(None, last)?;
            let text = lines.iter().map(format_line).collect::<String>();
            print(
                json,
                &Value::Array(lines.iter().map(line_json).collect()),
                &text,
            )?;
            Ok(ExitCode::SUCCESS)
        }
        AuditCommand::Verify => {
            let verdict = accounts.audit_log().verify()?;
            let findings: Vec<_> = verdict
                .findings
                .iter()
                .map(|(seq, what)| json!({"seq": seq, "message": what}))
                .collect();
            let mut text = verdict
                .findings
                .iter()
                .map(|(seq, what)| format!("line {seq}: {what}\n"))
                .collect::<String>();
            text += &format!("{} findings in {} lines\n", findings.len(), verdict.lines);
            let last = accounts
                .audit_log()
                .rows(None, 1)?
                .first()
                .map(|line| hex(&line.hash));
            print(
                json,
                &json!({"findings": findings, "lines": verdict.lines, "last_hash": last}),
                &text,
            )?;
            Ok(if findings.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
    }
}

fn format_line(line: &AuditRow) -> String {
    let AuditRow {
        seq,
        at_ms,
        actor,
        address,
        act,
        object,
        before,
        after,
        outcome,
        ..
    } = line;
    let mut text = format!(
        "{seq} {} {actor} ({address}) {act} {object} {before} {after}",
        rfc3339(*at_ms)
    );
    if line.is_attempt {
        text += &format!(" – {outcome}");
    }
    text + "\n"
}

fn line_json(line: &AuditRow) -> Value {
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
    let mut document = json!({
        "seq": line.seq, "at": rfc3339(line.at_ms), "actor": line.actor, "address": line.address, "act": line.act,
        "object": line.object, "before": value(&line.before), "after": value(&line.after), "hash": hex(&line.hash),
        "outcome": line.outcome.kind.name(),
    });
    let AuditOutcome { why, credits, .. } = &line.outcome;
    if !why.is_empty() {
        document["why"] = json!(why);
    }
    if let Some(credits) = credits {
        document["credits"] = json!(credits);
    }
    document
}
