//! Handles the form by which an administrator refunds the cost of a response in full or in part.
//!
//! The ledger decides how much can be refunded, and this file asks for a confirmation first. This
//! file must not refund a request of an account other than the page's.

use super::super::account::require_recent_password;
use super::super::authz::OperatorForm;
use super::super::blocking::run_blocking;
use super::super::confirm::{self, Confirmation};
use super::super::error::PageError;
use super::super::form::{self, FormFault, FormStop};
use super::super::session::SignedForm;
use super::super::state::SidecarState;
use super::account::{RefundForm, find, page, reference_rule, show_posting};
use crate::billing::corrections::is_valid_reference;
use accounts::{Account, Actor};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use base::clock::now_ms;
use credits::money::Micro;
use ledger::{PostingResult, Refund, RequestCharge, StoreError};
use serde_json::json;
use std::sync::Arc;

fn submitted(form: &SignedForm) -> RefundForm {
    let [request_id, credits, reference] =
        ["request", "credits", "ref"].map(|name| form.field(name).to_owned());
    RefundForm {
        request_id: request_id.trim().to_owned(),
        credits,
        reference,
    }
}

/// A refund that the form describes without a fault.
struct RefundOrder {
    request_id: String,
    /// Credits to refund; `None` refunds the rest of the charge.
    amount: Option<Micro>,
    reference: String,
}

impl RefundOrder {
    fn parse(submitted: &RefundForm) -> Result<Self, FormFault> {
        let amount = match submitted.credits.trim() {
            "" => None,
            text => {
                let wrong = |text: String| FormFault::at("credits", text);
                let parsed = text.parse::<Micro>();
                let amount = parsed.map_err(|error| wrong(format!("Credits: {error}.")))?;
                if !amount.is_positive() {
                    return Err(wrong("Credits must be above 0.".to_owned()));
                }
                Some(amount)
            }
        };
        if !is_valid_reference(&submitted.reference) {
            return Err(FormFault::at("ref", reference_rule()));
        }
        Ok(Self {
            request_id: submitted.request_id.clone(),
            amount,
            reference: submitted.reference.clone(),
        })
    }

    /// Returns the consequence that the confirmation page names, or the reason why no refund is
    /// possible.
    fn consequence(&self, charge: &RequestCharge) -> Result<String, FormFault> {
        let RequestCharge {
            charged, refunded, ..
        } = charge;
        let (id, rest) = (&self.request_id, charge.rest());
        if !charged.is_positive() {
            let fault = format!("The request {id} cost nothing.");
            return Err(FormFault::at("request", fault));
        }
        let amount = self.amount.unwrap_or(rest);
        if !rest.is_positive() {
            let fault = format!("All {charged} credits of the request {id} are refunded already.");
            return Err(FormFault::at("request", fault));
        }
        if amount > rest {
            let fault = format!(
                "The request {id} cost {charged} credits, of which {refunded} are already refunded. \
                 At most {rest} can be refunded."
            );
            return Err(FormFault::at("credits", fault));
        }
        Ok(format!(
            "The account receives {amount} credits. The request {id} cost {charged} credits, of \
             which {refunded} are already refunded. The ledger keeps the refund for good."
        ))
    }

    fn post(
        &self,
        app: &SidecarState,
        account: &str,
        by: &Actor,
    ) -> Result<PostingResult, StoreError> {
        let (at_ms, request_id) = (now_ms(), self.request_id.as_str());
        let refund = Refund {
            reference: &self.reference,
            request_id,
            amount: self.amount,
            actor: Some(&by.actor),
            at_ms,
        };
        let what = json!({"account": account, "credits": self.amount, "ref": self.reference});
        let acting = app.accounts.with_actor(by, at_ms);
        acting.record_posting("request.refund", request_id, &what, || {
            app.billing.corrections().post_refund(&refund)
        })
    }
}

pub async fn post(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let account = find(&app, &id)?;
    let submitted = submitted(&form);
    let outcome = post_order(&app, &account, &submitted, &mut form, by).await;
    form::respond(outcome, |fault| {
        let mut page = page(&app, &form.user, account)?;
        page.refund_fault = Some(fault);
        page.refund = submitted;
        Ok(page)
    })
}

async fn post_order(
    app: &Arc<SidecarState>,
    account: &Account,
    submitted: &RefundForm,
    form: &mut SignedForm,
    by: Actor,
) -> Result<Response, FormStop> {
    let order = RefundOrder::parse(submitted).map_err(FormStop::invalid)?;
    let (billing, request_id) = (app.billing.clone(), order.request_id.clone());
    let charge =
        match run_blocking(move || billing.ledger().rows().request_charge(&request_id)).await? {
            Err(StoreError::SegmentUnavailable(why)) => {
                let fault = format!("Cannot look up this request: {why}.");
                return Err(FormStop::Fault(
                    StatusCode::SERVICE_UNAVAILABLE,
                    fault.into(),
                ));
            }
            charge => charge?,
        };
    let charge = charge
        .filter(|charge| charge.account == account.id)
        .ok_or_else(|| {
            FormStop::invalid(FormFault::at(
                "request",
                "This account has no ended request with this id.",
            ))
        })?;
    require_recent_password(app, form).await?;
    if !form.is_confirmed() {
        let question = Confirmation {
            title: "Refund this request?",
            consequence: order.consequence(&charge).map_err(FormStop::conflict)?,
            button: "Refund",
            back: &format!("/dashboard/operator/accounts/{}", account.id),
        };
        return Ok(confirm::page("Operator", form, question));
    }
    let (work, of) = (Arc::clone(app), account.id.clone());
    let posted = run_blocking(move || order.post(&work, &of, &by)).await?;
    show_posting(app, &form.user, account, posted, "Refunded")
}
