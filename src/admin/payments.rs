//! The payments by which account holders buy credits: lists, refunds, the comparison with the
//! provider. Where no credits are sold, these paths answer 404 (`admin.rs`).
//!
//! `payments` decides what a refund takes back.

use super::accounts::{next_cursor, parse_limit};
use super::body::{
    BodyResult, CreatedResult, JsonResult, PathParam, QueryResult, deserialize_present, parse_body,
};
use super::error::AdminError;
use super::money::{parse_reference, parse_text};
use super::state::AdminState;
use crate::document;
use crate::payments::{OrderRow, OrderState, PaymentError};
use accounts::Actor;
use accounts::db::payment_book::OrderFilter;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use base::clock::now_ms;
use config::payments::Currency;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Days that a comparison covers if the body does not say.
const DEFAULT_DAYS: u32 = 7;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaymentListQuery {
    /// Id or e-mail.
    account: Option<String>,
    state: Option<String>,
    cursor: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PaymentRefundBody {
    /// In the currency of the payment. Missing: all that is left.
    #[serde(default, deserialize_with = "deserialize_present")]
    amount: Option<Value>,
    #[serde(default, rename = "ref", deserialize_with = "deserialize_present")]
    reference: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReconcileBody {
    #[serde(default = "default_days")]
    days: u32,
}

fn default_days() -> u32 {
    DEFAULT_DAYS
}

fn find(app: &AdminState, id: &str) -> Result<OrderRow, AdminError> {
    let filter = OrderFilter {
        id: Some(id.to_owned()),
        ..OrderFilter::default()
    };
    let book = app.accounts.database().payment_book();
    let found = book.find_orders(&filter, "", 1)?.pop();
    found.ok_or_else(|| AdminError::NotFound(format!("no payment has the id {id}")))
}

pub async fn list(
    State(app): State<Arc<AdminState>>,
    page: QueryResult<PaymentListQuery>,
) -> JsonResult {
    let Query(PaymentListQuery {
        account,
        state,
        cursor,
        limit,
    }) = page?;
    let limit = parse_limit(limit)?;
    let state = state.map(|name| {
        OrderState::from_name(&name).ok_or_else(|| {
            let names = OrderState::ALL.map(OrderState::name);
            AdminError::Invalid(format!("state must be one of {}", names.join(", ")))
        })
    });
    let filter = OrderFilter {
        account: match account {
            Some(name) => Some(app.find_account(&name)?.id),
            None => None,
        },
        id: None,
        state: state.transpose()?,
    };
    let book = app.accounts.database().payment_book();
    let orders = book.find_orders(&filter, cursor.as_deref().unwrap_or_default(), limit)?;
    let next = next_cursor(&orders, limit, |order| json!(order.id));
    let payments: Vec<_> = orders.iter().map(document::payment).collect();
    Ok(Json(json!({"payments": payments, "next": next})))
}

pub async fn show(State(app): State<Arc<AdminState>>, id: PathParam) -> JsonResult {
    let Path(id) = id?;
    let order = find(&app, &id)?;
    let refunds = app.accounts.database().payment_book().refunds(&order.id)?;
    Ok(Json(document::payment_with_refunds(&order, &refunds)))
}

pub async fn refund(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    id: PathParam,
    body: BodyResult,
) -> CreatedResult {
    let PaymentRefundBody { amount, reference } = parse_body(&body?)?;
    let reference = parse_reference(reference)?;
    let Path(id) = id?;
    let order = find(&app, &id)?;
    let amount = amount.map(|amount| {
        let text = parse_text("amount", Some(amount))?;
        let currency = Currency::from_code(&order.currency);
        let parsed = currency.map_or_else(
            || Err(format!("cannot be in {}", order.currency)),
            |currency| currency.parse(&text),
        );
        parsed.map_err(|fault| AdminError::Invalid(format!("amount {fault}")))
    });
    let done = app
        .payments
        .refund_order(&by, &order.id, amount.transpose()?, &reference)
        .await?;
    let status = match done.is_new {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    Ok((status, Json(document::payment_refund(&done))))
}

pub async fn reconcile(State(app): State<Arc<AdminState>>, body: BodyResult) -> JsonResult {
    let ReconcileBody { days } = parse_body(&body?)?;
    let report = app.payments.reconcile(days, now_ms()).await?;
    Ok(Json(document::reconciliation(&report)))
}

impl From<PaymentError> for AdminError {
    fn from(error: PaymentError) -> Self {
        match error {
            PaymentError::Off | PaymentError::Unknown(_) => Self::NotFound(error.to_string()),
            PaymentError::Amount(why) => Self::Invalid(why),
            PaymentError::ReferenceUsed(why) => Self::ReferenceUsed(why),
            PaymentError::Store(error) => error.into(),
            PaymentError::Provider(error) => Self::Provider(error.to_string()),
            PaymentError::Internal(what) => Self::Internal(what),
            refused => Self::Refused(refused.to_string()),
        }
    }
}
