//! Implements the payment provider Stripe: Checkout sessions, charges of saved cards, events of a
//! webhook endpoint, and refunds.
//!
//! Only this file depends on Stripe's API (https://docs.stripe.com/api). This module must not
//! change an order.

use super::provider::{
    ChargeOutcome, ChargeRequest, Checkout, CheckoutRequest, CheckoutState, Decline, DeclineKind,
    Dispute, DisputeOutcome, EventError, EventSubject, ListedPayment, MethodPage, PaymentProvider,
    ProviderError, ProviderEvent, Refunded, SetupRequest, SetupState,
};
use crate::provider_client::{self, RequestBounds, encode, encode_form};
use async_trait::async_trait;
use bytes::Bytes;
use config::PaymentSettings;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::Full;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Version of Stripe's API whose objects this file reads.
const API_VERSION: &str = "2025-09-30.clover";
/// Maximum difference between a signature's time and now, in seconds, as in Stripe's libraries.
const SIGNATURE_TOLERANCE: i64 = 300;
const BOUNDS: RequestBounds = RequestBounds {
    timeout: Duration::from_secs(20),
    max_answer_bytes: 1 << 20,
};
/// Prefix of a payment intent's id.
const PAYMENT_PREFIX: &str = "pi_";
/// Time in seconds around an order in which `find_charge` looks. It exceeds the time for which
/// a charge is repeated, and the difference between the clocks.
const CHARGE_SPAN: i64 = 2 * 3_600;
/// The operation of a refund, for errors.
const REFUND: &str = "a refund";
/// Maximum length of a card's name, in characters.
const MAX_LABEL_CHARS: usize = 60;
/// Maximum length of Stripe's message in an error, in characters.
const MAX_MESSAGE_CHARS: usize = 200;

pub struct Stripe {
    settings: Arc<PaymentSettings>,
}

impl Stripe {
    pub fn new(settings: Arc<PaymentSettings>) -> Self {
        Self { settings }
    }

    async fn call(
        &self,
        operation: &'static str,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        idempotency_key: Option<&str>,
    ) -> Result<Bytes, ProviderError> {
        let answered = self
            .try_call(operation, method, path, fields, idempotency_key)
            .await?;
        answered.map_err(|refusal| ProviderError::Refused {
            operation,
            message: refusal.message,
        })
    }

    /// Calls the API. The inner error is an answer by which Stripe refuses the call for good.
    async fn try_call(
        &self,
        operation: &'static str,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        idempotency_key: Option<&str>,
    ) -> Result<Result<Bytes, RefusedCall>, ProviderError> {
        let refused = |message: String| ProviderError::Refused { operation, message };
        let (query, body) = match method {
            Method::GET => (encode_form(fields), String::new()),
            _ => (String::new(), encode_form(fields)),
        };
        let separator = if query.is_empty() { "" } else { "?" };
        let target = format!("{}{path}{separator}{query}", self.settings.api.path);
        let key = self.settings.secret_key.reveal();
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::AUTHORIZATION, format!("Bearer {key}"))
            .header("stripe-version", API_VERSION)
            .header(
                header::USER_AGENT,
                concat!("model-gateway/", env!("CARGO_PKG_VERSION")),
            )
            .header(header::CONNECTION, "close")
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(key) = idempotency_key {
            request = request.header("idempotency-key", key);
        }
        let request = request
            .body(Full::new(Bytes::from(body)))
            // The error may contain a header's value, so its text is not used.
            .map_err(|_| refused("the request cannot be written".into()))?;
        let (status, answer) = provider_client::send(&self.settings.api, request, BOUNDS)
            .await
            .map_err(ProviderError::Unavailable)?;
        if status.is_success() {
            return Ok(Ok(answer));
        }
        let refusal = RefusedCall::new(status, &answer);
        // Status 409 means that the first request with this key is still running.
        let is_passing = status.is_server_error()
            || [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
        if is_passing {
            let message = format!("it answered {status}: {}", refusal.message);
            return Err(ProviderError::Unavailable(message));
        }
        Ok(Err(refusal))
    }

    async fn session(
        &self,
        operation: &'static str,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        idempotency_key: Option<&str>,
    ) -> Result<Checkout, ProviderError> {
        let answer = self
            .call(operation, method, path, fields, idempotency_key)
            .await?;
        let session: StripeSession = serde_json::from_slice(&answer).map_err(not_a_session)?;
        Ok(session.into_checkout(None))
    }

    /// Adds the disputes to a checkout whose charge the bank disputes.
    async fn with_disputes(
        &self,
        mut checkout: Checkout,
        is_disputed: bool,
    ) -> Result<Checkout, ProviderError> {
        if let (true, Some(payment)) = (is_disputed, &checkout.payment) {
            checkout.disputes = self.disputes(payment).await?;
        }
        Ok(checkout)
    }

    /// Returns the charge of a saved card, by the id of its payment intent.
    async fn payment(&self, id: &str) -> Result<Checkout, ProviderError> {
        let path = format!("/v1/payment_intents/{}", encode(id));
        let fields = [("expand[]", "latest_charge")];
        let operation = "to read a payment";
        let answer = self
            .call(operation, Method::GET, &path, &fields, None)
            .await?;
        let payment: StripePayment = read_answer(&answer, "payment")?;
        let is_disputed = payment.latest_charge["disputed"] == true;
        self.with_disputes(payment.into_checkout(), is_disputed)
            .await
    }

    /// Returns whether a saved card is still its customer's.
    async fn has_method(&self, method: SavedCard<'_>) -> Result<bool, ProviderError> {
        #[derive(Deserialize)]
        struct StripeMethod {
            customer: Option<String>,
        }
        let path = format!("/v1/payment_methods/{}", encode(method.card));
        let operation = "to read a payment method";
        let answer = self.try_call(operation, Method::GET, &path, &[], None);
        match answer.await? {
            Ok(answer) => {
                let found: StripeMethod = read_answer(&answer, "payment method")?;
                Ok(found.customer.as_deref() == Some(method.customer))
            }
            Err(refusal) if refusal.status == StatusCode::NOT_FOUND => Ok(false),
            Err(refusal) => Err(ProviderError::Refused {
                operation,
                message: refusal.message,
            }),
        }
    }

    /// Returns the disputes of a payment, of which there are only a few.
    async fn disputes(&self, payment: &str) -> Result<Vec<Dispute>, ProviderError> {
        #[derive(Deserialize)]
        struct StripeDisputes {
            data: Vec<StripeDispute>,
        }
        let (operation, path) = ("to list the disputes of a payment", "/v1/disputes");
        let fields = [("payment_intent", payment), ("limit", "100")];
        let answer = self
            .call(operation, Method::GET, path, &fields, None)
            .await?;
        let disputes: StripeDisputes = read_answer(&answer, "list of disputes")?;
        Ok(disputes.data.into_iter().map(Into::into).collect())
    }
}

#[async_trait]
impl PaymentProvider for Stripe {
    async fn create_checkout(
        &self,
        request: &CheckoutRequest<'_>,
    ) -> Result<Checkout, ProviderError> {
        let (amount, expires_at) = (request.amount.to_string(), request.expires_at.to_string());
        let fields = [
            ("mode", "payment"),
            ("client_reference_id", request.order),
            ("metadata[order]", request.order),
            ("metadata[account]", request.account),
            ("payment_intent_data[metadata][order]", request.order),
            ("payment_intent_data[metadata][account]", request.account),
            ("line_items[0][quantity]", "1"),
            ("line_items[0][price_data][currency]", request.currency),
            ("line_items[0][price_data][unit_amount]", &amount),
            (
                "line_items[0][price_data][product_data][name]",
                request.title,
            ),
            ("success_url", &request.return_url),
            ("cancel_url", &request.cancel_url),
            ("expires_at", &expires_at),
        ];
        self.session(
            "a Checkout session",
            Method::POST,
            "/v1/checkout/sessions",
            &fields,
            Some(request.order),
        )
        .await
    }

    async fn checkout(&self, id: &str) -> Result<Checkout, ProviderError> {
        if id.starts_with(PAYMENT_PREFIX) {
            return self.payment(id).await;
        }
        let path = format!("/v1/checkout/sessions/{}", encode(id));
        let fields = [("expand[]", "payment_intent.latest_charge")];
        let operation = "to read a Checkout session";
        let answer = self
            .call(operation, Method::GET, &path, &fields, None)
            .await?;
        let session: StripeSession = serde_json::from_slice(&answer).map_err(not_a_session)?;
        let is_disputed = session.is_disputed();
        self.with_disputes(session.into_checkout(None), is_disputed)
            .await
    }

    async fn expire_checkout(&self, id: &str) -> Result<(), ProviderError> {
        let path = format!("/v1/checkout/sessions/{}/expire", encode(id));
        self.session(
            "to expire a Checkout session",
            Method::POST,
            &path,
            &[],
            None,
        )
        .await
        .map(drop)
    }

    async fn create_setup(&self, request: &SetupRequest<'_>) -> Result<MethodPage, ProviderError> {
        let expires_at = request.expires_at.to_string();
        let mut fields = vec![
            ("mode", "setup"),
            // Only a card says at once whether it pays.
            ("payment_method_types[0]", "card"),
            ("client_reference_id", request.account),
            ("metadata[account]", request.account),
            ("setup_intent_data[metadata][account]", request.account),
            ("success_url", &request.return_url),
            ("cancel_url", &request.cancel_url),
            ("expires_at", &expires_at),
        ];
        fields.push(match request.replaces.map(SavedCard::parse) {
            Some(card) => ("customer", card.customer),
            None => ("customer_creation", "always"),
        });
        let (operation, path) = ("a page for a card", "/v1/checkout/sessions");
        let answer = self
            .call(operation, Method::POST, path, &fields, Some(request.key))
            .await?;
        let session: StripeSession = serde_json::from_slice(&answer).map_err(not_a_session)?;
        let url = session.url.as_deref().and_then(page_url);
        Ok(MethodPage {
            url: url.ok_or_else(ProviderError::no_page)?,
            id: session.id,
        })
    }

    async fn setup(&self, id: &str) -> Result<SetupState, ProviderError> {
        let path = format!("/v1/checkout/sessions/{}", encode(id));
        let fields = [("expand[]", "setup_intent.payment_method")];
        let operation = "to read a page for a card";
        let answer = self
            .call(operation, Method::GET, &path, &fields, None)
            .await?;
        let session: serde_json::Value = read_answer(&answer, "Checkout session")?;
        let method = &session["setup_intent"]["payment_method"];
        Ok(match (session["status"].as_str(), method["id"].as_str()) {
            (Some("expired"), _) => SetupState::Expired,
            (Some("complete"), Some(card)) => {
                let customer = method["customer"].as_str().unwrap_or_default();
                SetupState::Saved {
                    method: SavedCard { customer, card }.to_string(),
                    label: card_label(&method["card"]),
                }
            }
            _ => SetupState::Open,
        })
    }

    async fn charge(&self, request: &ChargeRequest<'_>) -> Result<ChargeOutcome, ProviderError> {
        let amount = request.amount.to_string();
        let card = SavedCard::parse(request.method);
        let fields = [
            ("amount", amount.as_str()),
            ("currency", request.currency),
            ("customer", card.customer),
            ("payment_method", card.card),
            ("payment_method_types[0]", "card"),
            ("off_session", "true"),
            ("confirm", "true"),
            ("description", request.title),
            ("metadata[order]", request.order),
            ("metadata[account]", request.account),
            ("expand[]", "latest_charge"),
        ];
        let (operation, path) = ("to charge a saved card", "/v1/payment_intents");
        let (method, key) = (Method::POST, Some(request.order));
        let refusal = match self.try_call(operation, method, path, &fields, key).await? {
            Ok(answer) => {
                let payment: StripePayment = read_answer(&answer, "payment")?;
                return Ok(ChargeOutcome::Made(Box::new(payment.into_checkout())));
            }
            Err(refusal) => refusal,
        };
        let declined = |kind, message| Ok(ChargeOutcome::Declined(Decline { kind, message }));
        if refusal.status == StatusCode::PAYMENT_REQUIRED {
            let kind = match refusal.code.as_str() {
                "authentication_required" => DeclineKind::Authentication,
                _ => DeclineKind::Bank,
            };
            return declined(kind, refusal.message);
        }
        // Stripe's error for a removed card differs between its versions.
        if !self.has_method(card).await? {
            let message = "The saved card was removed.".to_owned();
            return declined(DeclineKind::MethodGone, message);
        }
        Err(ProviderError::Refused {
            operation,
            message: refusal.message,
        })
    }

    async fn find_charge(
        &self,
        request: &ChargeRequest<'_>,
    ) -> Result<Option<Checkout>, ProviderError> {
        let [from, to] = [-1, 1].map(|side| (request.created_at + side * CHARGE_SPAN).to_string());
        let fields = [
            ("limit", "100"),
            ("customer", SavedCard::parse(request.method).customer),
            ("created[gte]", from.as_str()),
            ("created[lte]", to.as_str()),
            ("expand[]", "data.latest_charge"),
        ];
        let (operation, path) = ("to list payments", "/v1/payment_intents");
        let answer = self
            .call(operation, Method::GET, path, &fields, None)
            .await?;
        let list: StripeList<StripePayment> = read_answer(&answer, "list of payments")?;
        let mut payments = list.data.into_iter();
        let found = payments.find(|it| {
            it.metadata
                .get("order")
                .is_some_and(|id| id == request.order)
        });
        Ok(found.map(StripePayment::into_checkout))
    }

    async fn forget_method(&self, method: &str) -> Result<(), ProviderError> {
        let card = SavedCard::parse(method);
        if !self.has_method(card).await? {
            return Ok(());
        }
        let path = format!("/v1/payment_methods/{}/detach", encode(card.card));
        let operation = "to remove a saved card";
        self.call(operation, Method::POST, &path, &[], None)
            .await
            .map(drop)
    }

    async fn payments_between(
        &self,
        from: i64,
        to: i64,
        after: Option<&str>,
    ) -> Result<Vec<ListedPayment>, ProviderError> {
        let (from, to) = (from.to_string(), to.to_string());
        let mut fields = vec![
            ("limit", "100"),
            ("created[gte]", from.as_str()),
            ("created[lt]", to.as_str()),
            ("expand[]", "data.latest_charge"),
        ];
        fields.extend(after.map(|id| ("starting_after", id)));
        let operation = "to list payments";
        let path = "/v1/payment_intents";
        let answer = self
            .call(operation, Method::GET, path, &fields, None)
            .await?;
        let list: StripeList<StripePayment> = read_answer(&answer, "list of payments")?;
        Ok(list.data.into_iter().map(Into::into).collect())
    }

    async fn refund(&self, payment: &str, amount: i64, key: &str) -> Result<(), ProviderError> {
        let payment = payment.strip_prefix(REFERENCE_PREFIX).unwrap_or(payment);
        let written = amount.to_string();
        let fields = [("payment_intent", payment), ("amount", &written)];
        let path = "/v1/refunds";
        let answer = self
            .call(REFUND, Method::POST, path, &fields, Some(key))
            .await?;
        check_refund(&answer, payment, amount)
    }

    fn read_event(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now_ms: i64,
    ) -> Result<ProviderEvent, EventError> {
        let signature = headers
            .get("stripe-signature")
            .and_then(|value| value.to_str().ok())
            .ok_or(EventError::Signature)?;
        let secrets = self.settings.webhook_secrets.iter();
        check_signature(secrets.map(|it| it.reveal()), signature, body, now_ms)?;
        let event: StripeEvent = serde_json::from_slice(body).map_err(|_| EventError::Body)?;
        event.into_provider_event()
    }

    fn reference(&self, payment: &str) -> String {
        format!("{REFERENCE_PREFIX}{payment}")
    }
}

/// Checks that an answer is a refund of this payment and amount that was not refused afterwards.
fn check_refund(answer: &[u8], payment: &str, amount: i64) -> Result<(), ProviderError> {
    #[derive(Deserialize)]
    struct StripeRefund {
        object: String,
        amount: i64,
        payment_intent: Option<String>,
        #[serde(default)]
        status: Option<String>,
    }
    let made: StripeRefund = read_answer(answer, "refund")?;
    match made.status.as_deref() {
        Some(status @ ("failed" | "canceled")) => Err(ProviderError::Refused {
            operation: REFUND,
            message: format!("its status is {status}"),
        }),
        _ if made.object != "refund" || made.payment_intent.as_deref() != Some(payment) => {
            let message = format!("its answer is no refund of the payment {payment}");
            Err(ProviderError::Unavailable(message))
        }
        _ if made.amount != amount => Err(ProviderError::Unavailable(format!(
            "its answer is a refund of {} and not of {amount}",
            made.amount
        ))),
        _ => Ok(()),
    }
}

fn not_a_session(error: serde_json::Error) -> ProviderError {
    ProviderError::Unavailable(format!("its answer is no Checkout session: {error}"))
}

fn read_answer<T: DeserializeOwned>(answer: &[u8], what: &str) -> Result<T, ProviderError> {
    serde_json::from_slice(answer)
        .map_err(|error| ProviderError::Unavailable(format!("its answer is no {what}: {error}")))
}

/// Returns a card's name for people, such as `Visa ending in 4242`.
fn card_label(card: &serde_json::Value) -> String {
    let brand = card["brand"].as_str().unwrap_or("card");
    let last4 = card["last4"].as_str().unwrap_or("");
    let mut letters = brand.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    let brand: String = first.into_iter().chain(letters).collect();
    let label = format!("{brand} ending in {last4}");
    label.chars().take(MAX_LABEL_CHARS).collect()
}

/// A saved card and its customer. Outside this file it is the text `CUSTOMER:CARD`.
#[derive(Debug, Clone, Copy)]
struct SavedCard<'a> {
    customer: &'a str,
    card: &'a str,
}

impl<'a> SavedCard<'a> {
    fn parse(text: &'a str) -> Self {
        let (customer, card) = text.split_once(':').unwrap_or(("", text));
        Self { customer, card }
    }
}

impl fmt::Display for SavedCard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.customer, self.card)
    }
}

/// Prefix of a purchase's reference; the id of the payment intent follows.
const REFERENCE_PREFIX: &str = "stripe:";

/// Checks a signature `t=SECONDS,v1=HEX,v1=HEX`. One `v1` must be the HMAC of the time, a dot and
/// the body, with one of the secrets.
fn check_signature<'a>(
    secrets: impl Iterator<Item = &'a str>,
    header: &str,
    body: &[u8],
    now_ms: i64,
) -> Result<(), EventError> {
    let (mut time, mut signatures) = (None, Vec::new());
    for part in header.split(',') {
        match part.trim().split_once('=') {
            Some(("t", value)) => time = Some(value),
            Some(("v1", value)) => signatures.extend(decode_hex(value)),
            _ => {}
        }
    }
    let time = time.ok_or(EventError::Signature)?;
    let mut is_known = false;
    for secret in secrets.filter(|secret| !secret.is_empty()) {
        // HMAC accepts keys of any length, so this never fails.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else {
            continue;
        };
        mac.update(time.as_bytes());
        mac.update(b".");
        mac.update(body);
        for signature in &signatures {
            // The comparison takes constant time.
            is_known |= mac.clone().verify_slice(signature).is_ok();
        }
    }
    if !is_known {
        return Err(EventError::Signature);
    }
    let time: i64 = time.parse().map_err(|_| EventError::Signature)?;
    let age = (now_ms.div_euclid(1_000)).saturating_sub(time);
    if age.saturating_abs() > SIGNATURE_TOLERANCE {
        return Err(EventError::Time(SIGNATURE_TOLERANCE));
    }
    Ok(())
}

fn decode_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[derive(Deserialize)]
struct StripeEvent {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    livemode: bool,
    data: StripeEventData,
}

#[derive(Deserialize)]
struct StripeEventData {
    object: serde_json::Value,
}

/// The fields of a Checkout session that the gateway reads.
#[derive(Deserialize)]
struct StripeSession {
    id: String,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    status: Option<String>,
    payment_status: String,
    #[serde(default)]
    client_reference_id: Option<String>,
    #[serde(default)]
    metadata: Option<HashMap<String, String>>,
    #[serde(default)]
    amount_total: Option<i64>,
    #[serde(default)]
    currency: Option<String>,
    #[serde(default)]
    total_details: Option<TotalDetails>,
    #[serde(default)]
    payment_intent: Option<PaymentIntent>,
    livemode: bool,
}

#[derive(Deserialize)]
struct TotalDetails {
    #[serde(default)]
    amount_tax: Option<i64>,
}

/// The id of a payment intent, or the object if the request expanded it.
#[derive(Deserialize)]
#[serde(untagged)]
enum PaymentIntent {
    Id(String),
    Object {
        id: String,
        status: String,
        /// The id of a charge, or the object if the request expanded it.
        #[serde(default)]
        latest_charge: serde_json::Value,
    },
}

#[derive(Deserialize)]
struct StripeCharge {
    payment_intent: Option<String>,
    amount: i64,
    amount_refunded: i64,
    currency: String,
}

#[derive(Deserialize)]
struct StripeList<T> {
    data: Vec<T>,
}

/// A payment intent with its latest charge.
#[derive(Deserialize)]
struct StripePayment {
    id: String,
    status: String,
    amount: i64,
    currency: String,
    livemode: bool,
    #[serde(default)]
    metadata: HashMap<String, String>,
    #[serde(default)]
    latest_charge: serde_json::Value,
}

impl StripePayment {
    /// Converts the charge of a saved card, which has no Checkout session.
    fn into_checkout(self) -> Checkout {
        Checkout {
            url: None,
            state: match self.status.as_str() {
                "succeeded" => CheckoutState::Paid,
                "processing" => CheckoutState::Processing,
                // Nobody has the secret by which its holder could go on with it.
                _ => CheckoutState::Failed,
            },
            order: self.metadata.get("order").cloned(),
            account: self.metadata.get("account").cloned(),
            amount: Some(self.amount),
            currency: Some(self.currency),
            tax: None,
            payment: Some(self.id.clone()),
            is_live: self.livemode,
            refunded: self.latest_charge["amount_refunded"].as_i64(),
            disputes: Vec::new(),
            receipt_url: receipt_url(&self.latest_charge),
            id: self.id,
        }
    }
}

/// Returns the address of a charge's receipt.
fn receipt_url(charge: &serde_json::Value) -> Option<String> {
    page_url(charge["receipt_url"].as_str()?)
}

/// Returns an address of Stripe's if a page may lead to it: a whole one of `https`, without
/// characters that a header must not have.
fn page_url(url: &str) -> Option<String> {
    let address: http::Uri = url.parse().ok()?;
    let is_whole = address.scheme_str() == Some("https")
        && address.host().is_some_and(|host| !host.is_empty());
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic());
    (is_whole && is_plain).then(|| url.to_owned())
}

impl From<StripePayment> for ListedPayment {
    fn from(payment: StripePayment) -> Self {
        Self {
            order: payment.metadata.get("order").cloned(),
            amount: payment.amount,
            currency: payment.currency,
            refunded: payment.latest_charge["amount_refunded"]
                .as_i64()
                .unwrap_or(0),
            is_disputed: payment.latest_charge["disputed"] == true,
            is_paid: payment.status == "succeeded",
            id: payment.id,
        }
    }
}

#[derive(Deserialize)]
struct StripeDispute {
    id: String,
    payment_intent: Option<String>,
    amount: i64,
    currency: String,
    status: String,
}

impl StripeSession {
    /// Returns whether a bank has disputed the payment, if the request expanded the charge.
    fn is_disputed(&self) -> bool {
        matches!(&self.payment_intent, Some(PaymentIntent::Object { latest_charge, .. }) if latest_charge["disputed"] == true)
    }

    /// Returns whether the bank has refused a payment after its checkout, if the request expanded
    /// the payment.
    fn has_failed(&self) -> bool {
        matches!(
            &self.payment_intent,
            Some(PaymentIntent::Object { status, .. }) if ["requires_payment_method", "canceled"].contains(&status.as_str())
        )
    }

    /// Converts the session. The `state` of an event overrides the session's.
    fn into_checkout(self, state: Option<CheckoutState>) -> Checkout {
        let read_state = match (self.status.as_deref(), self.payment_status.as_str()) {
            (Some("expired"), _) => CheckoutState::Expired,
            (Some("complete"), "paid") => CheckoutState::Paid,
            (Some("complete"), _) if self.has_failed() => CheckoutState::Failed,
            (Some("complete"), _) => CheckoutState::Processing,
            _ => CheckoutState::Open,
        };
        let (payment, charge) = match self.payment_intent {
            None => (None, serde_json::Value::Null),
            Some(PaymentIntent::Id(id)) => (Some(id), serde_json::Value::Null),
            Some(PaymentIntent::Object {
                id, latest_charge, ..
            }) => (Some(id), latest_charge),
        };
        let metadata = self.metadata.unwrap_or_default();
        Checkout {
            id: self.id,
            url: self.url.as_deref().and_then(page_url),
            state: state.unwrap_or(read_state),
            order: self.client_reference_id,
            account: metadata.get("account").cloned(),
            amount: self.amount_total,
            currency: self.currency,
            tax: self.total_details.and_then(|details| details.amount_tax),
            payment,
            is_live: self.livemode,
            refunded: charge["amount_refunded"].as_i64(),
            disputes: Vec::new(),
            receipt_url: receipt_url(&charge),
        }
    }
}

impl From<StripeDispute> for Dispute {
    fn from(dispute: StripeDispute) -> Self {
        let outcome = match dispute.status.as_str() {
            "won" => DisputeOutcome::Won,
            status if status.starts_with("warning_") => DisputeOutcome::Inquiry,
            _ => DisputeOutcome::Taken,
        };
        Self {
            id: dispute.id,
            amount: dispute.amount,
            currency: dispute.currency,
            outcome,
        }
    }
}

impl StripeEvent {
    fn into_provider_event(self) -> Result<ProviderEvent, EventError> {
        let object = self.data.object;
        let session = |object, state| -> Result<EventSubject, EventError> {
            let session: StripeSession =
                serde_json::from_value(object).map_err(|_| EventError::Body)?;
            Ok(EventSubject::Checkout(session.into_checkout(state)))
        };
        let subject = match self.kind.as_str() {
            "checkout.session.completed" | "checkout.session.expired"
                if object["mode"] == "setup" =>
            {
                let id = object["id"].as_str().ok_or(EventError::Body)?;
                EventSubject::Setup(id.to_owned())
            }
            // The session shows whether the payment is complete or the bank must still confirm it.
            "checkout.session.completed" => session(object, None)?,
            "checkout.session.async_payment_succeeded" => {
                session(object, Some(CheckoutState::Paid))?
            }
            "checkout.session.async_payment_failed" => {
                session(object, Some(CheckoutState::Failed))?
            }
            "checkout.session.expired" => session(object, Some(CheckoutState::Expired))?,
            "charge.refunded" => {
                let charge: StripeCharge =
                    serde_json::from_value(object).map_err(|_| EventError::Body)?;
                match charge.payment_intent {
                    Some(payment) => EventSubject::Refund {
                        payment,
                        refunded: Refunded {
                            total: charge.amount_refunded,
                            amount: charge.amount,
                            currency: charge.currency,
                        },
                    },
                    None => EventSubject::Other,
                }
            }
            "charge.dispute.created"
            | "charge.dispute.funds_withdrawn"
            | "charge.dispute.funds_reinstated"
            | "charge.dispute.closed" => {
                let dispute: StripeDispute =
                    serde_json::from_value(object).map_err(|_| EventError::Body)?;
                match dispute.payment_intent.clone() {
                    Some(payment) => EventSubject::Dispute {
                        payment,
                        dispute: dispute.into(),
                    },
                    None => EventSubject::Other,
                }
            }
            _ => EventSubject::Other,
        };
        Ok(ProviderEvent {
            id: self.id,
            is_live: self.livemode,
            subject,
        })
    }
}

/// An answer by which Stripe refuses a call.
struct RefusedCall {
    status: StatusCode,
    code: String,
    message: String,
}

impl RefusedCall {
    fn new(status: StatusCode, answer: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct StripeErrorAnswer {
            error: StripeErrorDetail,
        }
        #[derive(Deserialize, Default)]
        struct StripeErrorDetail {
            #[serde(default)]
            code: Option<String>,
            #[serde(default)]
            message: String,
        }
        let detail = serde_json::from_slice::<StripeErrorAnswer>(answer)
            .map(|answer| answer.error)
            .unwrap_or_default();
        // Stripe's message repeats a part of a wrong key, so words that look like keys are masked.
        let words = detail.message.split_whitespace().map(|word| {
            let is_key = ["sk_", "rk_", "pk_", "whsec_"]
                .iter()
                .any(|start| word.contains(start));
            if is_key { "(key)" } else { word }
        });
        let message: String = words.collect::<Vec<_>>().join(" ");
        Self {
            status,
            code: detail.code.unwrap_or_default(),
            message: message.chars().take(MAX_MESSAGE_CHARS).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
