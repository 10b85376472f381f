//! `model-gateway codes …`: codes that account holders redeem for credits.
//!
//! Works while the gateway runs, and before its first start. The texts of codes are printed once,
//! at creation.

use super::account::{CommandContext, command_line_actor, print};
use super::export::parse_time;
use super::settings::DurationArg;
use crate::document;
use accounts::NewCodes;
use anyhow::bail;
use base::clock::{now_ms, rfc3339};
use clap::Subcommand;
use credits::money::Micro;
use serde_json::json;

#[derive(Debug, Subcommand)]
pub enum CodesCommand {
    /// Create codes and print them as CSV; they cannot be shown again.
    Create {
        /// Number of credits of each code, a decimal such as 25.5.
        #[arg(long)]
        credits: Micro,
        /// Number of codes, 1 to 10000.
        #[arg(long, default_value_t = 1)]
        count: u32,
        /// When the codes expire: a time such as 2026-12-31 or 2026-12-31T12:00:00Z, or a duration
        /// from now such as 90d.
        #[arg(long, value_parser = parse_expiry, default_value = "365d")]
        expires: i64,
        /// Maximum number of these codes that one account can redeem.
        #[arg(long, default_value_t = 1)]
        per_account: u32,
    },
    /// List the codes that were created, newest first, without their texts.
    List {
        /// List each code of this batch.
        #[arg(long)]
        batch: Option<String>,
        /// Maximum number of batches.
        #[arg(long, default_value_t = 50)]
        last: u32,
    },
    /// Void codes that nobody has redeemed, for good.
    Void {
        /// Id of a batch (`codes_…`) or of a code (`code_…`), as `codes list` shows it, or a code.
        name: String,
    },
}

/// Parses a time, or a duration from now. In ms since 1970.
fn parse_expiry(text: &str) -> Result<i64, String> {
    let after = text
        .parse::<DurationArg>()
        .map(|it| now_ms().saturating_add(it.ms));
    after.or_else(|_| parse_time(text).map_err(|error| error.to_string()))
}

/// # Errors
/// Returns an error that says what could not be done, and why.
pub fn run(command: CodesCommand, context: &CommandContext<'_>) -> anyhow::Result<()> {
    match command {
        CodesCommand::Create {
            credits,
            count,
            expires,
            per_account,
        } => {
            let new = NewCodes {
                credits,
                count,
                expires_at_ms: expires,
                per_account,
            };
            create(context, &new)
        }
        CodesCommand::List { batch: None, last } => list_batches(context, last),
        CodesCommand::List {
            batch: Some(batch), ..
        } => list_codes(context, &batch),
        CodesCommand::Void { name } => void(context, &name),
    }
}

fn create(context: &CommandContext<'_>, new: &NewCodes) -> anyhow::Result<()> {
    if !context.settings.takes_codes()? {
        bail!("no codes are taken: write `payments: {{codes: true}}` to the config first");
    }
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    let created = acting.create_codes(new)?;
    let (credits, expires_at) = (new.credits, rfc3339(new.expires_at_ms));
    let lines = created
        .codes
        .iter()
        .map(|code| format!("{code},{credits},{expires_at}\n"));
    let text = format!("code,credits,expires_at\n{}", lines.collect::<String>());
    let value = json!({
        "batch": created.batch, "credits": credits, "per_account": new.per_account,
        "expires_at": expires_at, "codes": created.codes,
    });
    print(context.json, &value, &text)
}

fn list_batches(context: &CommandContext<'_>, last: u32) -> anyhow::Result<()> {
    let batches = context.accounts.codes().batches("", last)?;
    let lines = batches.iter().map(|batch| {
        format!(
            "{} {} credits={} per-account={} expires={} codes={} redeemed={} voided={}\n",
            batch.id,
            rfc3339(batch.created_at_ms),
            batch.credits,
            batch.per_account,
            rfc3339(batch.expires_at_ms),
            batch.count,
            batch.redeemed,
            batch.voided,
        )
    });
    let text: String = lines.collect();
    let batches: Vec<_> = batches.iter().map(document::code_batch).collect();
    print(context.json, &json!({"batches": batches}), &text)
}

fn list_codes(context: &CommandContext<'_>, batch: &str) -> anyhow::Result<()> {
    let codes = context.accounts.codes().codes_of(batch)?;
    if codes.is_empty() {
        bail!("no codes have the batch {batch} (`codes list` shows the batches)");
    }
    let lines = codes.iter().map(|code| {
        let by = code
            .redeemed_by
            .as_deref()
            .map_or_else(String::new, |account| {
                let at = code.redeemed_at_ms.map(rfc3339).unwrap_or_default();
                format!(" by={account} at={at}")
            });
        format!("{} {}{by}\n", code.id(), code.state(context.now_ms).name())
    });
    let text: String = lines.collect();
    let codes: Vec<_> = codes
        .iter()
        .map(|code| document::code(code, context.now_ms))
        .collect();
    let value = json!({"batch": batch, "codes": codes});
    print(context.json, &value, &text)
}

fn void(context: &CommandContext<'_>, name: &str) -> anyhow::Result<()> {
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    let Some(count) = acting.void_codes(name)? else {
        bail!("no open code and no batch has this id or text (`codes list` shows the ids)");
    };
    let text = format!("{count} voided\n");
    print(context.json, &json!({"voided": count}), &text)
}
