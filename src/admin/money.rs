//! Postings: grants, top-ups, adjustments and refunds. The response is 201 for a new posting. It is
//! 200, without an effect, if the same reference was already posted with the same content.
//!
//! This file reports malformed input by member. The ledger decides which postings are allowed.

use super::body::{BodyResult, CreatedResult, PathParam, deserialize_present, parse_body};
use super::error::AdminError;
use super::state::AdminState;
use crate::billing::corrections::{
    MAX_REASON_CHARS, MAX_REFERENCE_CHARS, is_valid_reason, is_valid_reference,
};
use crate::document;
use accounts::Actor;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use base::clock::now_ms;
use credits::money::{MAX_MICRO, Micro};
use ledger::{BalanceChange, BalanceChangeKind, PostingResult, Refund};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The body of a grant, a top-up or a refund.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AmountBody {
    #[serde(default, deserialize_with = "deserialize_present")]
    credits: Option<Value>,
    #[serde(default, rename = "ref", deserialize_with = "deserialize_present")]
    reference: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdjustmentBody {
    #[serde(default, deserialize_with = "deserialize_present")]
    credits: Option<Value>,
    #[serde(default, rename = "ref", deserialize_with = "deserialize_present")]
    reference: Option<Value>,
    #[serde(default, deserialize_with = "deserialize_present")]
    reason: Option<Value>,
}

pub async fn grant(
    app: State<Arc<AdminState>>,
    by: Extension<Actor>,
    name: PathParam,
    body: BodyResult,
) -> CreatedResult {
    post_credits(app, by, name, body, BalanceChangeKind::Grant).await
}

pub async fn top_up(
    app: State<Arc<AdminState>>,
    by: Extension<Actor>,
    name: PathParam,
    body: BodyResult,
) -> CreatedResult {
    post_credits(app, by, name, body, BalanceChangeKind::TopUp).await
}

async fn post_credits(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
    body: BodyResult,
    kind: BalanceChangeKind<'static>,
) -> CreatedResult {
    let AmountBody { credits, reference } = parse_body(&body?)?;
    let amount = parse_positive_amount(credits)?.ok_or_else(|| missing_member("credits"))?;
    let order = PostingRequest {
        name: name?.0,
        amount,
        reference: parse_reference(reference)?,
        by,
    };
    app.run_write(move |app| order.post(app, kind)).await
}

pub async fn adjust(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
    body: BodyResult,
) -> CreatedResult {
    let AdjustmentBody {
        credits,
        reference,
        reason,
    } = parse_body(&body?)?;
    let amount = parse_amount(credits)?.ok_or_else(|| missing_member("credits"))?;
    if amount == Micro::ZERO {
        return Err(AdminError::Invalid("credits must not be 0".into()));
    }
    let reason = parse_text("reason", reason)?;
    if !is_valid_reason(&reason) {
        return Err(AdminError::Invalid(format!(
            "reason must be a string of 1 to {MAX_REASON_CHARS} characters"
        )));
    }
    let order = PostingRequest {
        name: name?.0,
        amount,
        reference: parse_reference(reference)?,
        by,
    };
    app.run_write(move |app| order.post(app, BalanceChangeKind::Adjust { reason: &reason }))
        .await
}

pub async fn refund(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    request_id: PathParam,
    body: BodyResult,
) -> CreatedResult {
    let AmountBody { credits, reference } = parse_body(&body?)?;
    let (amount, reference, Path(request_id)) = (
        parse_positive_amount(credits)?,
        parse_reference(reference)?,
        request_id?,
    );
    app.run_write(move |app| {
        let (reference, request_id) = (reference.as_str(), request_id.as_str());
        let (actor, at_ms) = (by.actor.as_str(), now_ms());
        let refund = Refund {
            reference,
            request_id,
            amount,
            actor: Some(actor),
            at_ms,
        };
        let charge = app.billing.ledger().rows().request_charge(request_id)?;
        let account = charge.map(|charge| charge.account);
        let what = json!({"account": account, "credits": amount, "ref": reference});
        let acting = app.accounts.with_actor(&by, at_ms);
        let posted = acting.record_posting("request.refund", request_id, &what, || {
            app.billing.corrections().post_refund(&refund)
        })?;
        Ok(posting_response("refund", reference, actor, &posted))
    })
    .await
}

/// A posting: its account, its content and its actor.
struct PostingRequest {
    name: String,
    amount: Micro,
    reference: String,
    by: Actor,
}

impl PostingRequest {
    fn post(&self, app: &AdminState, kind: BalanceChangeKind<'_>) -> CreatedResult {
        let Self {
            name,
            amount,
            reference,
            by,
        } = self;
        let account = app.find_account(name)?.id;
        let (amount, actor, at_ms) = (*amount, by.actor.as_str(), now_ms());
        let change = BalanceChange {
            kind,
            reference,
            account: &account,
            amount,
            actor: Some(actor),
            at_ms,
        };
        let acting = app.accounts.with_actor(by, at_ms);
        let posted =
            acting.record_then_post(&change, || app.billing.corrections().post_change(&change))?;
        Ok(posting_response(kind.name(), reference, actor, &posted))
    }
}

fn posting_response(
    kind: &str,
    reference: &str,
    actor: &str,
    posted: &PostingResult,
) -> (StatusCode, Json<Value>) {
    let PostingResult {
        account,
        is_new,
        change,
        ..
    } = posted;
    if *is_new {
        log::info!(
            "administrator {actor} posted a {kind} of {change} to account {account}, reference {reference:?}"
        );
    }
    let status = if *is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    (status, Json(document::posting(kind, reference, posted)))
}

fn missing_member(name: &str) -> AdminError {
    AdminError::Invalid(format!("{name} is missing"))
}

pub(super) fn parse_text(name: &str, value: Option<Value>) -> Result<String, AdminError> {
    match value {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(AdminError::Invalid(format!("{name} must be a string"))),
        None => Err(missing_member(name)),
    }
}

pub(super) fn parse_reference(value: Option<Value>) -> Result<String, AdminError> {
    let reference = parse_text("ref", value)?;
    if !is_valid_reference(&reference) {
        let why = format!(
            "ref must be a string of 1 to {MAX_REFERENCE_CHARS} characters without control characters"
        );
        return Err(AdminError::Invalid(why));
    }
    Ok(reference)
}

fn parse_amount(value: Option<Value>) -> Result<Option<Micro>, AdminError> {
    let Some(value) = value else { return Ok(None) };
    let amount = value.as_str().and_then(|text| text.parse().ok());
    amount.map(Some).ok_or_else(|| {
        let largest = Micro::new(MAX_MICRO);
        let what = "must be a string with a decimal number of credits, such as \"12.5\", with at most 6 decimals";
        AdminError::Invalid(format!("credits {what}, up to {largest}"))
    })
}

fn parse_positive_amount(value: Option<Value>) -> Result<Option<Micro>, AdminError> {
    match parse_amount(value)? {
        Some(amount) if !amount.is_positive() => {
            Err(AdminError::Invalid("credits must be above 0".into()))
        }
        amount => Ok(amount),
    }
}
