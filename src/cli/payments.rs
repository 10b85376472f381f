//! `model-gateway payments …`: the payments by which account holders buy credits.
//!
//! They work while the gateway runs. `payments` decides what a refund takes back.

use super::account::{CommandContext, command_line_actor, print};
use crate::document;
use crate::payments::{FULL_REFUND, OrderRow, OrderState, PaymentRefund, Payments};
use accounts::db::payment_book::OrderFilter;
use accounts::db::payments::ClawbackState;
use anyhow::{Context as _, bail};
use arc_swap::ArcSwap;
use base::clock::rfc3339;
use clap::Subcommand;
use config::payments::{Currency, write_money};
use config::{FileChecks, Settings};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Debug, Subcommand)]
pub enum PaymentsCommand {
    /// List payments, newest first.
    List {
        /// Only those of this account (id or e-mail).
        #[arg(long)]
        account: Option<String>,
        /// Only those in this state.
        #[arg(long, value_parser = parse_state)]
        state: Option<OrderState>,
        /// Maximum number of payments.
        #[arg(long, default_value_t = 50)]
        last: u32,
        /// Only those older than this payment: the id of the last one of the page before.
        #[arg(long, value_name = "PAYMENT_ID")]
        before: Option<String>,
    },
    /// Show a payment and its refunds.
    Show {
        /// Id of the payment here (`pay_…`) or at the provider.
        payment: String,
    },
    /// Pay a payment back at the provider, and take its credits back in the ledger.
    Refund {
        /// Id of the payment here (`pay_…`) or at the provider.
        payment: String,
        /// Amount in the currency of the payment, such as 10.50. Default: all that is left.
        #[arg(long, requires = "reference")]
        amount: Option<String>,
        /// What the refund is for, such as a ticket number. A reference is refunded only once, even
        /// if the command is repeated.
        #[arg(long = "ref", default_value = FULL_REFUND)]
        reference: String,
    },
    /// Compare the provider's payments with the ledger; exit with 0 only if they agree. The gateway
    /// does so once a day for the last three days.
    Reconcile {
        /// Number of days to compare, 1 to 366.
        #[arg(long, default_value_t = 7)]
        days: u32,
    },
}

fn parse_state(text: &str) -> Result<OrderState, String> {
    OrderState::from_name(text).ok_or_else(|| {
        let names = OrderState::ALL.map(OrderState::name);
        format!("it must be one of {}", names.join(", "))
    })
}

/// # Errors
/// Returns an error that says what could not be done, and why.
pub fn run(
    command: PaymentsCommand,
    file: &Path,
    context: &CommandContext<'_>,
) -> anyhow::Result<ExitCode> {
    match command {
        PaymentsCommand::List {
            account,
            state,
            last,
            before,
        } => {
            let account = account.map(|name| super::account::find(context, &name));
            let filter = OrderFilter {
                account: account.transpose()?.map(|account| account.id),
                id: None,
                state,
            };
            list(context, &filter, before.as_deref(), last)?;
        }
        PaymentsCommand::Show { payment } => show(context, &find(context, &payment)?)?,
        PaymentsCommand::Refund {
            payment,
            amount,
            reference,
        } => {
            let order = find(context, &payment)?;
            refund(context, file, &order, amount.as_deref(), &reference)?;
        }
        PaymentsCommand::Reconcile { days } => return reconcile(context, file, days),
    }
    Ok(ExitCode::SUCCESS)
}

fn list(
    context: &CommandContext<'_>,
    filter: &OrderFilter,
    before: Option<&str>,
    last: u32,
) -> anyhow::Result<()> {
    let book = context.accounts.database().payment_book();
    let orders = book.find_orders(filter, before.unwrap_or_default(), last)?;
    let lines = orders.iter().map(|order| {
        format!(
            "{} {} {} {} {} credits={} bonus={} refunded={}\n",
            order.id,
            rfc3339(order.created_at_ms),
            order.account,
            order.state.name(),
            write_money(&order.currency, order.amount),
            order.credits,
            order.bonus,
            write_money(&order.currency, order.refunded),
        )
    });
    let text: String = lines.collect();
    let payments: Vec<_> = orders.iter().map(document::payment).collect();
    print(context.json, &json!({"payments": payments}), &text)
}

fn show(context: &CommandContext<'_>, order: &OrderRow) -> anyhow::Result<()> {
    let book = context.accounts.database().payment_book();
    let value = document::payment_with_refunds(order, &book.refunds(&order.id)?);
    let members = value.as_object().into_iter().flatten();
    let lines = members.map(|(name, value)| match value.as_str() {
        Some(text) => format!("{name}: {text}\n"),
        None => format!("{name}: {value}\n"),
    });
    let text: String = lines.collect();
    print(context.json, &value, &text)
}

fn refund(
    context: &CommandContext<'_>,
    file: &Path,
    order: &OrderRow,
    amount: Option<&str>,
    reference: &str,
) -> anyhow::Result<()> {
    let amount = amount.map(|text| parse_amount(&order.currency, text));
    let amount = amount.transpose()?;
    if !crate::billing::corrections::is_valid_reference(reference) {
        bail!("a reference must have 1 to 200 characters");
    }
    let payments = open(file, context)?;
    let by = command_line_actor();
    let done = block_on(payments.refund_order(&by, &order.id, amount, reference))?
        .with_context(|| format!("cannot refund the payment {}", order.id))?;
    let text = describe_refund(&done, reference);
    print(context.json, &document::payment_refund(&done), &text)
}

/// Compares the provider's payments with the ledger. Fails if they differ.
fn reconcile(context: &CommandContext<'_>, file: &Path, days: u32) -> anyhow::Result<ExitCode> {
    let payments = open(file, context)?;
    let report = block_on(payments.reconcile(days, context.now_ms))?
        .context("cannot compare the provider's payments with the ledger")?;
    let lines = report.differences.iter().map(|difference| {
        let subject = [&difference.order, &difference.payment];
        let subject: Vec<_> = subject.into_iter().flatten().map(String::as_str).collect();
        format!("{}: {}\n", subject.join(", "), difference.text)
    });
    let text = format!(
        "{}{} payments at the provider, {} paid orders in the ledger, {} differences\n",
        lines.collect::<String>(),
        report.payments,
        report.orders,
        report.differences.len()
    );
    print(context.json, &document::reconciliation(&report), &text)?;
    Ok(match report.differences.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn describe_refund(done: &PaymentRefund, reference: &str) -> String {
    let rest = match done.order.clawback {
        ClawbackState::None => "",
        ClawbackState::Open | ClawbackState::Held => {
            "; running requests hold some of its credits: the gateway takes them when the requests have ended, and until then the account begins no new ones"
        }
    };
    format!(
        "{} of {} refunded, reference {reference}{}{rest}\n",
        write_money(&done.order.currency, done.refund.amount),
        done.order.id,
        if done.is_new { "" } else { " (done before)" }
    )
}

fn find(
    context: &CommandContext<'_>,
    id: &str,
) -> anyhow::Result<accounts::db::payments::OrderRow> {
    let filter = OrderFilter {
        id: Some(id.to_owned()),
        ..OrderFilter::default()
    };
    let book = context.accounts.database().payment_book();
    let found = book.find_orders(&filter, "", 1)?.pop();
    found.with_context(|| format!("no payment has the id {id:?} (`payments list` shows the ids)"))
}

fn parse_amount(currency: &str, text: &str) -> anyhow::Result<i64> {
    let currency = Currency::from_code(currency)
        .with_context(|| format!("payments cannot be made in {currency} any more"))?;
    currency
        .parse(text)
        .map_err(|fault| anyhow::anyhow!("the amount is wrong: {fault}"))
}

/// Opens what talks to the provider. It needs the secrets of the config file.
fn open(file: &Path, context: &CommandContext<'_>) -> anyhow::Result<Payments> {
    let settings: Settings = config::load(file, FileChecks::Secrets)?;
    if settings.payments.is_none() {
        bail!("no credits are sold: the config has no section payments");
    }
    Ok(Payments::new(
        context.accounts.clone(),
        context.billing.clone(),
        Arc::new(ArcSwap::from_pointee(settings)),
    ))
}

fn block_on<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(work))
}
