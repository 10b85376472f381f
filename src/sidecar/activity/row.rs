//! One response as a row of a table, on the activity page, the overview and the receipt.

use crate::billing::activity::{ActivityFilter, RequestOutcome};
use crate::billing::{Billing, Receipt};
use crate::sidecar::display::{Credits, Timestamp, group_digits};
use crate::store::StoreError;

/// Number of responses that the overview shows.
const LATEST_ROWS: u32 = 5;

/// A response in a table.
pub struct ActivityRow {
    pub request_id: String,
    pub at: Timestamp,
    pub model: String,
    pub surface: &'static str,
    pub key: String,
    pub outcome: &'static str,
    /// The response was delivered incompletely or not at all.
    pub is_odd: bool,
    pub tokens_in: String,
    pub cached: String,
    pub tokens_out: String,
    pub credits: Credits,
    pub estimated: bool,
}

pub(super) fn rows(receipts: &[Receipt]) -> Vec<ActivityRow> {
    receipts.iter().map(row).collect()
}

/// The latest responses.
pub fn latest(billing: &Billing, account: &str) -> Result<Vec<ActivityRow>, StoreError> {
    Ok(rows(&billing.activity(
        account,
        &ActivityFilter::default(),
        None,
        LATEST_ROWS,
    )?))
}

pub(super) fn row(receipt: &Receipt) -> ActivityRow {
    let detail = &receipt.detail;
    let usage = &detail.usage;
    ActivityRow {
        request_id: receipt.request_id.clone(),
        at: Timestamp(receipt.at_ms),
        model: detail.model.clone(),
        surface: detail.surface.as_str(),
        key: detail.key_shown.clone(),
        outcome: outcome_label(detail.outcome),
        is_odd: detail.outcome != RequestOutcome::Completed,
        tokens_in: group_digits(usage.input_total()),
        cached: group_digits(usage.cache_read),
        tokens_out: group_digits(usage.output_total()),
        credits: Credits(receipt.credits),
        estimated: detail.estimated,
    }
}

pub(super) fn outcome_label(outcome: RequestOutcome) -> &'static str {
    match outcome {
        RequestOutcome::Completed => "completed",
        RequestOutcome::ClientLeft => "client disconnected",
        RequestOutcome::GatewayEnded => "stopped by the gateway",
        RequestOutcome::RefusedFree => "refused, free",
        RequestOutcome::VendorError => "vendor error",
        RequestOutcome::VendorCut => "cut off by the vendor",
        RequestOutcome::Interrupted => "interrupted",
    }
}
