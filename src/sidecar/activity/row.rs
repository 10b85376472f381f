//! Converts one response to a table row, for the activity page, the overview and the receipt.

use super::query::REFUSED;
use crate::billing::Receipt;
use crate::billing::activity::RequestOutcome;
use crate::refused_requests::{RefusedRequest, or_left_out};
use crate::sidecar::display::{Credits, Timestamp, group_digits};
use crate::sidecar::key_names::{KeyName, KeyNames};
use crate::sidecar::state::SidecarState;
use crate::sidecar::viewed_account::ViewedAccount;
use ledger::StoreError;

pub struct ActivityRow {
    pub request_id: String,
    pub receipt_url: String,
    pub at: Timestamp,
    pub model: String,
    pub surface: &'static str,
    pub key: KeyName,
    pub outcome: &'static str,
    /// The outcome's name for programs and styles.
    pub outcome_id: &'static str,
    /// Status and code of a refused request; `None` if the request was answered.
    pub refusal: Option<String>,
    /// How the vendor failed the request.
    pub fault: Option<String>,
    /// True if the response was delivered incompletely or not at all.
    pub is_odd: bool,
    pub tokens_in: String,
    pub cached: String,
    pub tokens_out: String,
    pub credits: Credits,
    /// What came back later.
    pub refunded: Option<Credits>,
    pub estimated: bool,
    /// Time from admission to the end of the response.
    pub took: Option<String>,
    /// Time from admission to the first token; `None` if the response was not streamed.
    pub first_token: Option<String>,
}

pub(super) fn key_names(
    app: &SidecarState,
    account: &str,
    receipts: &[Receipt],
) -> Result<KeyNames, StoreError> {
    let ids = receipts
        .iter()
        .flat_map(|receipt| receipt.detail.spenders());
    KeyNames::load(&app.accounts, account, ids)
}

impl ActivityRow {
    pub(super) fn from_refused(
        viewed: &ViewedAccount,
        refused: &RefusedRequest,
        names: &KeyNames,
    ) -> Self {
        let none = String::new;
        Self {
            request_id: refused.request_id.clone(),
            receipt_url: viewed.receipt_url(&refused.request_id),
            at: Timestamp(refused.at_ms),
            model: refused.model.clone(),
            surface: refused.surface,
            key: names.get(&refused.key_id, &refused.key_shown),
            outcome: REFUSED,
            outcome_id: REFUSED,
            refusal: Some(format!("{} {}", refused.status, refused.code)),
            fault: None,
            is_odd: true,
            tokens_in: none(),
            cached: none(),
            tokens_out: none(),
            credits: Credits::ZERO,
            refunded: None,
            estimated: false,
            took: None,
            first_token: None,
        }
    }
}

pub(super) fn row(viewed: &ViewedAccount, receipt: &Receipt, names: &KeyNames) -> ActivityRow {
    let detail = &receipt.detail;
    let usage = &detail.usage;
    ActivityRow {
        request_id: receipt.request_id.clone(),
        receipt_url: viewed.receipt_url(&receipt.request_id),
        at: Timestamp(receipt.at_ms),
        model: detail.model.clone(),
        surface: detail.surface.as_str(),
        key: names.of_request(detail),
        outcome: outcome_label(detail.outcome),
        outcome_id: detail.outcome.as_str(),
        refusal: None,
        fault: None,
        is_odd: detail.outcome != RequestOutcome::Completed,
        tokens_in: group_digits(usage.input_total()),
        cached: group_digits(usage.cache_read),
        tokens_out: group_digits(usage.output_total()),
        credits: Credits(receipt.credits),
        refunded: None,
        estimated: detail.estimated,
        took: detail.took_ms.map(format_elapsed),
        first_token: detail.first_token_ms.map(format_elapsed),
    }
}

/// Adds what the ledger's list does not have: how the vendor failed the request, and what came
/// back.
pub(super) fn complete(
    app: &SidecarState,
    viewed: &ViewedAccount,
    row: &mut ActivityRow,
) -> Result<(), StoreError> {
    let has_failed = [RequestOutcome::VendorError, RequestOutcome::VendorCut]
        .iter()
        .any(|outcome| outcome.as_str() == row.outcome_id);
    if has_failed && let Some(refused) = &app.refused {
        let note = or_left_out(refused.find_note(Some(&viewed.id), &row.request_id));
        row.fault = note.and_then(|note| Some(note.fault?.summary()));
    }
    if row.credits.0.is_positive() {
        let receipts = app.billing.receipts();
        let refunded = receipts.refunded(&viewed.id, &row.request_id)?;
        row.refunded = refunded.is_positive().then_some(Credits(refunded));
    }
    Ok(())
}

/// Formats a duration as `840 ms` or `12.3 s`.
pub(super) fn format_elapsed(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        ms => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
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
