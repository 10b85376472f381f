//! Refunds: the form by which an administrator returns the cost of a response, or a part of it.
//!
//! The ledger decides what can be refunded; this file asks before it does so. Must not refund a
//! request of another account than that of the page.

use super::super::account::{ConfirmationError, confirm_password_unless_recent};
use super::super::authz::OperatorForm;
use super::super::blocking::run_blocking;
use super::super::confirm::{self, Confirmation};
use super::super::error::PageError;
use super::super::page::html;
use super::super::session::{ClientIp, CurrentUser, SignedForm};
use super::super::state::SidecarState;
use super::account::{RefundForm, find, page};
use crate::account::Actor;
use crate::billing::corrections::{MAX_REFERENCE_CHARS, is_valid_reference};
use crate::billing::overview::RequestCharge;
use crate::clock::now_ms;
use crate::store::StoreError;
use crate::store::ledger::{PostingResult, Refund};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use credits::money::Micro;
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

/// A refund from a well-formed form.
struct RefundOrder {
    request_id: String,
    /// `None` refunds all that is left of the charge.
    amount: Option<Micro>,
    reference: String,
}

impl RefundOrder {
    fn parse(submitted: &RefundForm) -> Result<Self, String> {
        let amount = match submitted.credits.trim() {
            "" => None,
            text => {
                let amount: Micro = text.parse().map_err(|error| format!("Credits: {error}."))?;
                if !amount.is_positive() {
                    return Err("Credits must be above 0.".to_owned());
                }
                Some(amount)
            }
        };
        if !is_valid_reference(&submitted.reference) {
            return Err(format!(
                "A reference must have 1 to {MAX_REFERENCE_CHARS} characters."
            ));
        }
        Ok(Self {
            request_id: submitted.request_id.clone(),
            amount,
            reference: submitted.reference.clone(),
        })
    }

    /// The question before the refund; or why there is nothing to ask.
    fn consequence(&self, charge: &RequestCharge) -> Result<String, String> {
        let RequestCharge {
            charged, refunded, ..
        } = charge;
        let (id, rest) = (&self.request_id, charge.rest());
        if !charged.is_positive() {
            return Err(format!("The request {id} cost nothing."));
        }
        let amount = self.amount.unwrap_or(rest);
        if !rest.is_positive() || amount > rest {
            return Err(format!(
                "The request {id} cost {charged} credits, of which {refunded} are already refunded."
            ));
        }
        Ok(format!(
            "The account receives {amount} credits. The request {id} cost {charged} credits, of \
             which {refunded} are already refunded. The ledger keeps the refund for good."
        ))
    }

    fn post(&self, app: &SidecarState, by: &Actor) -> Result<PostingResult, StoreError> {
        let (at_ms, request_id) = (now_ms(), self.request_id.as_str());
        let refund = Refund {
            reference: &self.reference,
            request_id,
            amount: self.amount,
            actor: Some(&by.actor),
            at_ms,
        };
        let what = json!({"credits": self.amount, "ref": self.reference});
        app.accounts.with_actor(by, at_ms).record_then_run(
            "request.refund",
            request_id,
            &what,
            || app.billing.post_refund(&refund),
        )
    }
}

pub async fn post(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    ClientIp(address): ClientIp,
    OperatorForm { form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let account = find(&app, &id)?;
    let submitted = submitted(&form);
    let respond = |status, fault: String, user: &CurrentUser| {
        let mut page = page(&app, user, account.clone())?;
        page.refund_fault = Some(fault);
        page.refund = submitted.clone();
        Ok(html(status, &page))
    };
    let order = match RefundOrder::parse(&submitted) {
        Ok(order) => order,
        Err(fault) => return respond(StatusCode::UNPROCESSABLE_ENTITY, fault, &form.user),
    };
    let (billing, request_id) = (app.billing.clone(), order.request_id.clone());
    let charge = match run_blocking(move || billing.request_charge(&request_id)).await? {
        Err(StoreError::SegmentUnavailable(why)) => {
            let fault = format!("Cannot look up this request: {why}.");
            return respond(StatusCode::SERVICE_UNAVAILABLE, fault, &form.user);
        }
        charge => charge?,
    };
    let Some(charge) = charge.filter(|charge| charge.account == id) else {
        let fault = "This account has no ended request with this id.".to_owned();
        return respond(StatusCode::UNPROCESSABLE_ENTITY, fault, &form.user);
    };
    if let Err(ConfirmationError { status, fault }) =
        confirm_password_unless_recent(&app, &form, address).await?
    {
        return respond(status, fault.to_owned(), &form.user);
    }
    let back = format!("/dashboard/operator/accounts/{id}");
    if !form.is_confirmed() {
        return match order.consequence(&charge) {
            Ok(consequence) => {
                let question = Confirmation {
                    title: "Refund this request?",
                    consequence,
                    button: "Refund",
                    back: &back,
                };
                Ok(confirm::page("Operator", &form, question))
            }
            Err(fault) => respond(StatusCode::CONFLICT, fault, &confirmed(form.user)),
        };
    }
    let (work, user) = (Arc::clone(&app), confirmed(form.user));
    match run_blocking(move || order.post(&work, &by)).await? {
        Ok(posted) => {
            let (status, done) = if posted.is_new {
                let change = posted.change;
                (StatusCode::CREATED, format!("Refunded {change}."))
            } else {
                let done = "This reference was already posted, so nothing changed.";
                (StatusCode::OK, done.to_owned())
            };
            let mut page = page(&app, &user, account.clone())?;
            page.done = Some(format!("{done} The balance is {}.", posted.balance));
            Ok(html(status, &page))
        }
        Err(
            StoreError::Refused(why) | StoreError::Unknown(why) | StoreError::ReferenceUsed(why),
        ) => respond(StatusCode::CONFLICT, format!("Refused: {why}."), &user),
        Err(other) => Err(other.into()),
    }
}

/// The user after the password was checked.
fn confirmed(user: CurrentUser) -> CurrentUser {
    CurrentUser {
        confirmed: true,
        ..user
    }
}
