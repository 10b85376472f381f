//! The payments of all accounts: search, totals, one payment, and its refund.
//!
//! `payments` decides what a refund takes back.

use super::super::account::require_recent_password;
use super::super::authz::{Operator, OperatorForm, may_administer};
use super::super::blocking::run_blocking;
use super::super::buying::PaymentView;
use super::super::confirm::{self, Confirmation};
use super::super::display::{BalanceAmount, Timestamp};
use super::super::error::PageError;
use super::super::form::{self, FormFault, FormStop, sentence};
use super::super::page::{Frame, html};
use super::super::session::{CurrentUser, SignedForm};
use super::super::spending::encode;
use super::super::state::SidecarState;
use super::account::reference_rule;
use super::list::MAX_TERM_CHARS;
use crate::billing::corrections::{MAX_REFERENCE_CHARS, is_valid_reference};
use crate::payments::{Difference, OrderRow, OrderState, PaymentError, Reconciliation};
use accounts::Accounts;
use accounts::db::payment_book::{MonthTotals, OrderFilter, RefundRow};
use accounts::db::payments::ClawbackState;
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use config::payments::{Currency, write_money};
use ledger::StoreError;
use serde::Deserialize;
use std::sync::Arc;

/// Payments per page.
const ROWS_PER_PAGE: u32 = 50;
/// Months whose totals the page shows.
const MAX_MONTHS: u32 = 12;
/// Differences that the page names.
const MAX_DIFFERENCES: usize = 50;

/// The filters of the page. An empty value means no filter.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct PaymentFilterQuery {
    /// E-mail or id of an account.
    account: String,
    /// Id of a payment here or at the provider.
    id: String,
    /// A name of [`OrderState`].
    state: String,
    before: String,
}

/// A payment with who made it.
struct PaymentRow {
    payment: PaymentView,
    account: String,
    email: String,
}

#[derive(Template)]
#[template(path = "operator_payments.html")]
struct PaymentsPage {
    frame: Frame,
    query: PaymentFilterQuery,
    fault: Option<FormFault>,
    is_filtered: bool,
    /// States, and whether one is chosen.
    states: Vec<(&'static str, &'static str, bool)>,
    rows: Vec<PaymentRow>,
    older: Option<String>,
    months: Vec<MonthTotals>,
    reconciliation: Option<Reconciliation>,
}

#[derive(Template)]
#[template(path = "operator_payment.html")]
struct PaymentPage {
    frame: Frame,
    csrf: String,
    fault: Option<FormFault>,
    done: bool,
    may_refund: bool,
    asks_password: bool,
    row: PaymentRow,
    order: OrderRow,
    refunds: Vec<RefundRow>,
    left: String,
    currency: String,
    /// The form as it was sent.
    amount: String,
    reference: String,
    max_reference_chars: usize,
}

#[derive(Deserialize)]
pub struct PaymentQuery {
    done: Option<String>,
}

impl PaymentsPage {
    fn differences(&self) -> &[Difference] {
        let all = self.reconciliation.as_ref().map(|it| &*it.differences);
        let all = all.unwrap_or_default();
        &all[..all.len().min(MAX_DIFFERENCES)]
    }
}

impl PaymentFilterQuery {
    fn url(&self, before: &str) -> String {
        let mut fields = vec![
            ("account", self.account.as_str()),
            ("id", &self.id),
            ("state", &self.state),
            ("before", before),
        ];
        fields.retain(|(_, value)| !value.is_empty());
        format!("/dashboard/operator/payments?{}", encode(&fields))
    }
}

fn row(accounts: &Accounts, order: &OrderRow) -> Result<PaymentRow, StoreError> {
    let account = accounts.find(&order.account)?;
    Ok(PaymentRow {
        payment: PaymentView::new(order),
        account: order.account.clone(),
        email: account.map_or_else(|| order.account.clone(), |it| it.label().to_owned()),
    })
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    query: Result<Query<PaymentFilterQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    // The frame knows the request, which another thread does not.
    let (work, frame) = (Arc::clone(&app), Frame::new("Payments", &user));
    let page = run_blocking(move || list_page(&work, frame, query)).await??;
    let status = match page.fault {
        Some(_) => StatusCode::UNPROCESSABLE_ENTITY,
        None => StatusCode::OK,
    };
    Ok(html(status, &page))
}

fn list_page(
    app: &SidecarState,
    frame: Frame,
    query: PaymentFilterQuery,
) -> Result<PaymentsPage, PageError> {
    let database = app.accounts.database();
    let book = database.payment_book();
    let state = OrderState::from_name(&query.state);
    let text = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    let too_long = [("account", &query.account), ("id", &query.id)]
        .into_iter()
        .find(|(_, text)| text.chars().count() > MAX_TERM_CHARS);
    let fault = match too_long {
        Some((field, _)) => Some(FormFault::at(field, "Search for at most 254 characters.")),
        None if state.is_none() && !query.state.is_empty() => {
            Some(FormFault::at("state", "Choose a status of the list."))
        }
        None => None,
    };
    let account = match text(&query.account) {
        Some(name) => app
            .accounts
            .find(&name)?
            .map_or(Some(name), |it| Some(it.id)),
        None => None,
    };
    let filter = OrderFilter {
        account,
        id: text(&query.id),
        state,
    };
    let orders = match &fault {
        Some(_) => Vec::new(),
        None => book.find_orders(&filter, &query.before, ROWS_PER_PAGE)?,
    };
    let is_full = orders.len() >= usize::try_from(ROWS_PER_PAGE).unwrap_or(usize::MAX);
    let rows = orders.iter().map(|order| row(&app.accounts, order));
    Ok(PaymentsPage {
        frame,
        fault,
        is_filtered: filter.account.is_some() || filter.id.is_some() || state.is_some(),
        states: OrderState::ALL
            .map(|known| (known.name(), known.label(), state == Some(known)))
            .into(),
        rows: rows.collect::<Result<_, _>>()?,
        older: orders
            .last()
            .filter(|_| is_full)
            .map(|last| query.url(&last.id)),
        months: book.month_totals(MAX_MONTHS)?,
        reconciliation: app.payments.last_reconciliation()?,
        query,
    })
}

pub async fn payment(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    Path(id): Path<String>,
    query: Result<Query<PaymentQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let done = query.is_ok_and(|Query(query)| query.done.as_deref() == Some("refunded"));
    let page = PaymentPage {
        done,
        ..payment_page(&app, &user, &id)?
    };
    Ok(html(StatusCode::OK, &page))
}

fn find(app: &SidecarState, id: &str) -> Result<OrderRow, PageError> {
    let order = app.accounts.database().payments().order(id)?;
    order.ok_or(PageError::NotFound)
}

fn payment_page(
    app: &SidecarState,
    user: &CurrentUser,
    id: &str,
) -> Result<PaymentPage, PageError> {
    let order = find(app, id)?;
    let left = order.amount.saturating_sub(order.refunded);
    Ok(PaymentPage {
        frame: Frame::new("Payment", user),
        csrf: user.csrf.clone(),
        fault: None,
        done: false,
        may_refund: may_administer(&user.person) && order.state == OrderState::Paid && left > 0,
        asks_password: !user.confirmed,
        row: row(&app.accounts, &order)?,
        refunds: app.accounts.database().payment_book().refunds(id)?,
        left: write_money(&order.currency, left),
        currency: order.currency.to_uppercase(),
        amount: String::new(),
        reference: String::new(),
        max_reference_chars: MAX_REFERENCE_CHARS,
        order,
    })
}

pub async fn refund(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let order = find(&app, &id)?;
    let outcome = refund_order(&app, &order, &mut form, &by).await;
    form::respond(outcome, |fault| {
        Ok(PaymentPage {
            fault: Some(fault),
            amount: form.field("amount").to_owned(),
            reference: form.field("ref").to_owned(),
            ..payment_page(&app, &form.user, &id)?
        })
    })
}

async fn refund_order(
    app: &Arc<SidecarState>,
    order: &OrderRow,
    form: &mut SignedForm,
    by: &accounts::Actor,
) -> Result<Response, FormStop> {
    let (text, reference) = (
        form.field("amount").trim().to_owned(),
        form.field("ref").to_owned(),
    );
    let amount = match (text.as_str(), Currency::from_code(&order.currency)) {
        ("", _) => None,
        (text, Some(currency)) => {
            let parsed = currency.parse(text);
            Some(parsed.map_err(|fault| {
                let fault = format!("The amount is wrong: {fault}.");
                FormStop::invalid(FormFault::at("amount", fault))
            })?)
        }
        (_, None) => {
            let fault = "Leave the amount empty to refund all of it.";
            return Err(FormStop::invalid(FormFault::at("amount", fault)));
        }
    };
    if !is_valid_reference(&reference) {
        return Err(FormStop::invalid(FormFault::at("ref", reference_rule())));
    }
    require_recent_password(app, form).await?;
    if !form.is_confirmed() {
        let left = order.amount.saturating_sub(order.refunded);
        let money = write_money(&order.currency, amount.unwrap_or(left));
        let question = Confirmation {
            title: "Refund this payment?",
            consequence: format!(
                "The payment provider pays {money} back, and the gateway takes the credits for it back. \
                 Credits that are already spent are written off, and the account is then suspended."
            ),
            button: "Refund",
            back: &format!("/dashboard/operator/payments/{}", order.id),
        };
        return Ok(confirm::page("Payment", form, question));
    }
    // It goes on if the browser leaves: the money may be on its way.
    let (payments, by, id) = (app.payments.clone(), by.clone(), order.id.clone());
    let refunding =
        tokio::spawn(async move { payments.refund_order(&by, &id, amount, &reference).await });
    let outcome = refunding
        .await
        .map_err(|error| PageError::Internal(error.to_string()))?;
    match outcome {
        Ok(done) => {
            let page = format!(
                "/dashboard/operator/payments/{}?done=refunded",
                done.order.id
            );
            Ok(Redirect::to(&page).into_response())
        }
        Err(PaymentError::Amount(fault)) => {
            let fault = FormFault::at("amount", sentence(&fault));
            Err(FormStop::invalid(fault))
        }
        Err(PaymentError::ReferenceUsed(fault)) => {
            let fault = FormFault::at("ref", sentence(&fault));
            Err(FormStop::conflict(fault))
        }
        Err(PaymentError::Conflict(fault)) => Err(FormStop::conflict(sentence(&fault))),
        Err(PaymentError::Provider(error)) => Err(FormStop::Fault(
            StatusCode::BAD_GATEWAY,
            format!(
                "{} If it may have got the request, repeat the refund with the same reference.",
                sentence(&error.to_string())
            )
            .into(),
        )),
        Err(error) => Err(FormStop::Error(error.into())),
    }
}
