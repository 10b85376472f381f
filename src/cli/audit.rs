//! `model-gateway audit …`: what was done in an administrator's name, and whether the log of it is
//! whole.
//!
//! Works while the gateway runs, and before it first ran. Must not write.

use super::account::print;
use crate::account::Accounts;
use crate::admin::document::hex;
use crate::clock::rfc3339;
use crate::config::CommandSettings;
use crate::store::app::audit::AuditRow;
use clap::Subcommand;
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Show the latest lines, the newest first.
    Show {
        /// At most so many lines.
        #[arg(long, default_value_t = 50)]
        last: u32,
    },
    /// Recompute every line; exit 0 only with no finding. A line's hash is the SHA-256 of the hash
    /// before it (32 bytes, zeroes before the first) and of the text
    /// SEQ␟AT_MS␟ACTOR␟ADDRESS␟ACT␟OBJECT␟BEFORE␟AFTER, where ␟ is the byte 1F. It does not show
    /// that the whole end of the log is missing: keep the last hash elsewhere for that.
    #[command(verbatim_doc_comment)]
    Verify,
}

/// # Errors
/// The log cannot be read.
pub fn run(
    command: AuditCommand,
    settings: &CommandSettings,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let accounts = Accounts::open(&settings.data_dir)?;
    match command {
        AuditCommand::Show { last } => {
            let lines = accounts.audit(None, last)?;
            let text = lines.iter().map(in_words).collect::<String>();
            print(
                json,
                &Value::Array(lines.iter().map(document).collect()),
                &text,
            )?;
            Ok(ExitCode::SUCCESS)
        }
        AuditCommand::Verify => {
            let verdict = accounts.verify_audit()?;
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
            let last = accounts.audit(None, 1)?.first().map(|line| hex(&line.hash));
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

fn in_words(line: &AuditRow) -> String {
    let AuditRow {
        seq,
        at_ms,
        actor,
        address,
        act,
        object,
        before,
        after,
        ..
    } = line;
    format!(
        "{seq} {} {actor} ({address}) {act} {object} {before} {after}\n",
        rfc3339(*at_ms)
    )
}

fn document(line: &AuditRow) -> Value {
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
    json!({
        "seq": line.seq, "at": rfc3339(line.at_ms), "actor": line.actor, "address": line.address, "act": line.act,
        "object": line.object, "before": value(&line.before), "after": value(&line.after), "hash": hex(&line.hash),
    })
}
