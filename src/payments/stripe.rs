//! Implements the payment provider Stripe: Checkout sessions, events of a webhook endpoint, and
//! refunds.
//!
//! Only this file depends on Stripe's API (https://docs.stripe.com/api). This module must not
//! change an order.

use super::provider::{
    Checkout, CheckoutRequest, CheckoutState, Dispute, DisputeOutcome, EventError, EventSubject,
    ListedPayment, PaymentProvider, ProviderError, ProviderEvent, Refunded,
};
use crate::provider_client::{self, RequestBounds, encode, encode_form};
use async_trait::async_trait;
use bytes::Bytes;
use config::PaymentSettings;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::Full;
use serde::Deserialize;
use sha2::Sha256;
use std::collections::HashMap;
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
            return Ok(answer);
        }
        let message = error_message(&answer);
        // Status 409 means that the first request with this key is still running.
        let is_passing = status.is_server_error()
            || [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
        Err(match is_passing {
            true => ProviderError::Unavailable(format!("it answered {status}: {message}")),
            false => refused(message),
        })
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
        let disputes: StripeDisputes = serde_json::from_slice(&answer).map_err(|error| {
            ProviderError::Unavailable(format!("its answer is no list of disputes: {error}"))
        })?;
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
        let path = format!("/v1/checkout/sessions/{}", encode(id));
        let fields = [("expand[]", "payment_intent.latest_charge")];
        let operation = "to read a Checkout session";
        let answer = self
            .call(operation, Method::GET, &path, &fields, None)
            .await?;
        let session: StripeSession = serde_json::from_slice(&answer).map_err(not_a_session)?;
        let is_disputed = session.is_disputed();
        let mut checkout = session.into_checkout(None);
        if let (true, Some(payment)) = (is_disputed, &checkout.payment) {
            checkout.disputes = self.disputes(payment).await?;
        }
        Ok(checkout)
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
        let list: StripeList<StripePayment> = serde_json::from_slice(&answer).map_err(|error| {
            ProviderError::Unavailable(format!("its answer is no list of payments: {error}"))
        })?;
        Ok(list.data.into_iter().map(Into::into).collect())
    }

    async fn refund(&self, payment: &str, amount: i64, key: &str) -> Result<(), ProviderError> {
        let payment = payment.strip_prefix(REFERENCE_PREFIX).unwrap_or(payment);
        let amount = amount.to_string();
        let fields = [("payment_intent", payment), ("amount", &amount)];
        self.call("a refund", Method::POST, "/v1/refunds", &fields, Some(key))
            .await
            .map(drop)
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

fn not_a_session(error: serde_json::Error) -> ProviderError {
    ProviderError::Unavailable(format!("its answer is no Checkout session: {error}"))
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
    #[serde(default)]
    metadata: HashMap<String, String>,
    #[serde(default)]
    latest_charge: serde_json::Value,
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
        let (payment, refunded) = match self.payment_intent {
            None => (None, None),
            Some(PaymentIntent::Id(id)) => (Some(id), None),
            Some(PaymentIntent::Object {
                id, latest_charge, ..
            }) => {
                let refunded = latest_charge["amount_refunded"].as_i64();
                (Some(id), refunded)
            }
        };
        let metadata = self.metadata.unwrap_or_default();
        Checkout {
            id: self.id,
            url: self.url,
            state: state.unwrap_or(read_state),
            order: self.client_reference_id,
            account: metadata.get("account").cloned(),
            amount: self.amount_total,
            currency: self.currency,
            tax: self.total_details.and_then(|details| details.amount_tax),
            payment,
            is_live: self.livemode,
            refunded,
            disputes: Vec::new(),
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

fn error_message(answer: &[u8]) -> String {
    #[derive(Deserialize)]
    struct StripeErrorAnswer {
        error: StripeErrorDetail,
    }
    #[derive(Deserialize)]
    struct StripeErrorDetail {
        #[serde(default)]
        message: String,
    }
    let message = serde_json::from_slice::<StripeErrorAnswer>(answer)
        .map(|answer| answer.error.message)
        .unwrap_or_default();
    // Stripe's message repeats a part of a wrong key, so words that look like keys are masked.
    let words = message.split_whitespace().map(|word| {
        let is_key = ["sk_", "rk_", "pk_", "whsec_"]
            .iter()
            .any(|start| word.contains(start));
        if is_key { "(key)" } else { word }
    });
    let message: String = words.collect::<Vec<_>>().join(" ");
    message.chars().take(MAX_MESSAGE_CHARS).collect()
}

#[cfg(test)]
mod tests;
