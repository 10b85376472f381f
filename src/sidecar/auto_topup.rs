//! The forms on the page of credits by which an account holder sets automatic top-ups: the
//! threshold, the amount, the most per month, and the card.
//!
//! The card is entered at the payment provider. This file must not charge; `payments` does.

use super::blocking::run_blocking;
use super::error::PageError;
use super::form::{FormFault, FormStop};
use super::session::SignedForm;
use super::state::SidecarState;
use super::throttle::{AttemptLimit, ThrottleKey};
use crate::payments::provider::ProviderError;
use crate::payments::{AutoTopUp, CREDITS_PATH, PaymentError};
use accounts::Actor;
use accounts::db::auto_topup::{AutoTopUpTerms, MethodSetup};
use accounts::db::payments::InsertOrderOutcome;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use base::clock::now_ms;
use config::PaymentSettings;
use config::payments::{write_money, write_money_number};
use credits::money::Micro;

/// Limit on the forms of an account, each of which can create a page at the provider.
const SETUP_LIMIT: AttemptLimit = AttemptLimit {
    count: 10,
    window_ms: 3_600_000,
};

/// An account's automatic top-up as the page shows it.
pub struct AutoTopUpView {
    pub fault: Option<FormFault>,
    pub is_on: bool,
    /// Sentence about what is charged, if the holder has set it.
    pub terms: String,
    /// The charges of this month.
    pub charged: String,
    /// True if the cap for the month leaves no further charge.
    pub is_capped: bool,
    /// Reason for which the gateway turned it off.
    pub stopped: String,
    pub card: Option<String>,
    /// The page on which the holder can enter a card now.
    pub setup: Option<MethodSetup>,
    /// The form.
    pub threshold: String,
    pub amount: String,
    pub per_month: String,
    pub currency: String,
    pub min: String,
    pub max: String,
}

impl AutoTopUpView {
    /// Returns the view with a form as it was sent, and its fault.
    pub fn with_form(self, form: &SignedForm, fault: FormFault) -> Self {
        let sent = |name: &str| form.field(name).to_owned();
        Self {
            fault: Some(fault),
            threshold: sent("threshold"),
            amount: sent("auto_amount"),
            per_month: sent("per_month"),
            ..self
        }
    }

    pub fn new(settings: &PaymentSettings, topup: Option<AutoTopUp>) -> Self {
        let currency = settings.currency;
        let first = settings.amounts.first().copied();
        let empty = Self {
            fault: None,
            is_on: false,
            terms: String::new(),
            charged: String::new(),
            is_capped: false,
            stopped: String::new(),
            card: None,
            setup: None,
            threshold: String::new(),
            amount: first
                .map(|minor| currency.write_number(minor))
                .unwrap_or_default(),
            per_month: String::new(),
            currency: currency.code().to_uppercase(),
            min: currency.write(settings.min),
            max: currency.write(settings.max),
        };
        let Some(topup) = topup else {
            return empty;
        };
        let is_capped = topup.is_capped();
        let AutoTopUp { row, history } = topup;
        let number = |minor| write_money_number(&row.terms.currency, minor);
        Self {
            is_on: row.is_on,
            is_capped,
            terms: describe_terms(&row.terms),
            charged: write_money(&row.terms.currency, history.month_sum),
            threshold: row.terms.threshold.to_string(),
            amount: number(row.terms.amount),
            per_month: number(row.terms.month_cap),
            card: row.method.map(|(_, label)| label),
            stopped: row.stopped,
            setup: row.setup,
            ..empty
        }
    }
}

/// Describes what is charged, for holders and operators.
pub fn describe_terms(terms: &AutoTopUpTerms) -> String {
    let money = |minor| write_money(&terms.currency, minor);
    format!(
        "{} when the balance is below {} credits, at most {} a month",
        money(terms.amount),
        terms.threshold,
        money(terms.month_cap)
    )
}

/// Stores what the holder has chosen.
pub async fn save(
    app: &SidecarState,
    form: &SignedForm,
    settings: &PaymentSettings,
) -> Result<Response, FormStop> {
    let money = |name: &'static str, what: &str| {
        let parsed = settings.currency.parse(form.field(name));
        parsed.map_err(|fault| FormFault::at(name, format!("{what} is wrong: {fault}.")))
    };
    let threshold = form
        .field("threshold")
        .trim()
        .parse::<Micro>()
        .map_err(|_| {
            FormFault::at(
                "threshold",
                "The balance is wrong: write a number of credits, such as 100.",
            )
        });
    let threshold = threshold.map_err(FormStop::invalid)?;
    let terms = AutoTopUpTerms {
        threshold,
        amount: money("auto_amount", "The amount").map_err(FormStop::invalid)?,
        month_cap: money("per_month", "The most per month").map_err(FormStop::invalid)?,
        currency: settings.currency.code().to_owned(),
    };
    let key = ThrottleKey::AccountSettingUp(form.user.account.id.clone());
    if let Err(seconds) = app.throttle.try_acquire(&key, SETUP_LIMIT, now_ms()) {
        let fault = format!("Too many changes. Try again in {seconds} s.");
        return Err(FormStop::Fault(StatusCode::TOO_MANY_REQUESTS, fault.into()));
    }
    let changes_card = form.field("card") == "new";
    let by = holder(form);
    let form_id = form.field("form");
    let saved = app
        .payments
        .set_auto_topup(&by, terms, changes_card, form_id);
    match saved.await {
        Ok(row) => {
            let what = match row.is_on && !changes_card {
                true => "on",
                false => "enter",
            };
            let page = format!("{CREDITS_PATH}?card={what}#auto");
            Ok(Redirect::to(&page).into_response())
        }
        Err(PaymentError::Amount(fault)) => Err(FormStop::invalid(fault)),
        Err(PaymentError::Limit(InsertOrderOutcome::Suspended)) => Err(FormStop::conflict(
            "This account is suspended. Ask the operator of this gateway.",
        )),
        Err(PaymentError::Provider(error)) => {
            Err(provider_fault("create a page for a card", &error))
        }
        Err(error) => Err(FormStop::Error(error.into())),
    }
}

/// Logs a failure of the provider, and says what the holder can do about it: a refused request is
/// refused again.
pub(super) fn provider_fault(operation: &str, error: &ProviderError) -> FormStop {
    let fault = format!("{} Nothing was charged.", describe_fault(operation, error));
    FormStop::Fault(StatusCode::BAD_GATEWAY, fault.into())
}

/// The same, where nothing could be charged.
pub(super) fn describe_fault(operation: &str, error: &ProviderError) -> &'static str {
    log::error!("payments: cannot {operation}: {error}");
    match error {
        ProviderError::Refused { .. } => {
            "The payment provider has refused the request. Ask the operator of this gateway, whose log has the reason."
        }
        ProviderError::Unavailable(_) => {
            "The payment provider does not answer. Try again in a few minutes."
        }
    }
}

/// Turns the top-up off, and removes the card if the form says so. It works also where automatic
/// top-ups are no longer offered.
pub async fn stop(app: &SidecarState, form: &SignedForm) -> Result<Response, PageError> {
    let (payments, by) = (app.payments.clone(), holder(form));
    let removes_card = form.field("card") == "remove";
    run_blocking(move || payments.stop_auto_topup(&by, removes_card)).await??;
    let page = format!("{CREDITS_PATH}?card=off#auto");
    Ok(Redirect::to(&page).into_response())
}

fn holder(form: &SignedForm) -> Actor {
    Actor {
        actor: form.user.account.id.clone(),
        address: form.address.to_string(),
    }
}
