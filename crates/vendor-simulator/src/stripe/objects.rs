//! Builds the objects of the API as JSON, with the members that Stripe's libraries require.
//!
//! This file must not decide the state of an object.

use super::fault::SimDecline;
use super::form::StripeForm;
use serde_json::{Value, json};

/// API version of the account's webhook endpoint.
pub const OWN_VERSION: &str = "2025-09-30.clover";
/// Default time in seconds for which a new session accepts a payment.
const SESSION_SECONDS: i64 = 86_400;

/// Returns the current time in seconds since 1970.
pub fn now_s() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// Members that all new sessions have.
const NEW_SESSION: &str = r#"{
    "object": "checkout.session", "adaptive_pricing": {"enabled": false}, "after_expiration": null,
    "allow_promotion_codes": null,
    "automatic_tax": {"enabled": false, "liability": null, "provider": null, "status": null},
    "billing_address_collection": null, "client_secret": null, "consent": null, "consent_collection": null,
    "currency_conversion": null, "custom_fields": [],
    "custom_text": {"after_submit": null, "shipping_address": null, "submit": null, "terms_of_service_acceptance": null},
    "customer_details": null, "discounts": [], "invoice": null, "invoice_creation": null, "locale": null,
    "payment_intent": null, "payment_link": null, "payment_method_collection": "if_required",
    "payment_method_options": {}, "payment_method_types": ["card"],
    "phone_number_collection": {"enabled": false}, "recovered_from": null, "setup_intent": null,
    "shipping_address_collection": null, "shipping_cost": null, "shipping_options": [], "status": "open",
    "submit_type": null, "subscription": null,
    "total_details": {"amount_discount": 0, "amount_shipping": 0, "amount_tax": 0}, "ui_mode": "hosted_page",
    "wallet_options": null
}"#;

/// Returns a session in its initial state.
pub fn session(id: &str, form: &StripeForm, amount: i64, now_s: i64, is_live: bool) -> Value {
    let text = |name: &str| form.get(name);
    let is_setup = text("mode") == Some("setup");
    let currency = match is_setup {
        true => text("currency"),
        false => text("line_items[0][price_data][currency]"),
    };
    let amount = (!is_setup).then_some(amount);
    let members = json!({
        "id": id, "amount_subtotal": amount, "amount_total": amount, "cancel_url": text("cancel_url"),
        "client_reference_id": text("client_reference_id"), "created": now_s, "currency": currency,
        "customer": text("customer"), "customer_creation": text("customer_creation").unwrap_or("if_required"),
        "customer_email": text("customer_email"),
        "expires_at": form.integer("expires_at").unwrap_or(now_s + SESSION_SECONDS), "livemode": is_live,
        "metadata": form.map("metadata"), "mode": text("mode"), "success_url": text("success_url"),
        "payment_status": if is_setup { "no_payment_required" } else { "unpaid" },
        "url": format!("https://checkout.stripe.com/c/pay/{id}#sim"),
    });
    let mut session: Value = serde_json::from_str(NEW_SESSION).unwrap_or_default();
    if let (Some(session), Value::Object(members)) = (session.as_object_mut(), members) {
        session.extend(members);
    }
    session
}

/// Purpose of a payment intent.
pub struct SimPayment<'a> {
    pub amount: i64,
    pub currency: &'a str,
    pub customer: Option<&'a str>,
    pub payment_method: Option<&'a str>,
    pub metadata: Value,
    pub status: &'static str,
}

pub fn payment_intent(id: &str, payment: &SimPayment<'_>, now_s: i64, is_live: bool) -> Value {
    json!({
        "id": id, "object": "payment_intent", "amount": payment.amount, "amount_capturable": 0, "amount_details": {"tip": {}},
        "amount_received": 0, "application": null, "application_fee_amount": null, "automatic_payment_methods": null,
        "canceled_at": null, "cancellation_reason": null, "capture_method": "automatic_async",
        "client_secret": format!("{id}_secret_sim"), "confirmation_method": "automatic", "created": now_s,
        "currency": payment.currency, "customer": payment.customer, "description": null, "last_payment_error": null,
        "latest_charge": null, "livemode": is_live, "metadata": payment.metadata, "next_action": null,
        "on_behalf_of": null, "payment_method": payment.payment_method, "payment_method_options": {},
        "payment_method_types": ["card"], "processing": null, "receipt_email": null, "review": null,
        "setup_future_usage": null, "shipping": null, "source": null, "statement_descriptor": null,
        "status": payment.status, "transfer_data": null, "transfer_group": null,
    })
}

/// Returns the setup intent of a new session.
pub fn setup_intent(id: &str, form: &StripeForm, now_s: i64, is_live: bool) -> Value {
    json!({
        "id": id, "object": "setup_intent", "application": null, "automatic_payment_methods": null,
        "cancellation_reason": null, "client_secret": format!("{id}_secret_sim"), "created": now_s,
        "customer": form.get("customer"), "description": form.get("setup_intent_data[description]"),
        "flow_directions": null, "last_setup_error": null, "latest_attempt": null, "livemode": is_live,
        "mandate": null, "metadata": form.map("setup_intent_data[metadata]"), "next_action": null,
        "on_behalf_of": null, "payment_method": null, "payment_method_options": {},
        "payment_method_types": ["card"], "single_use_mandate": null, "status": "requires_payment_method",
        "usage": "off_session",
    })
}

/// Returns the charge of a payment intent whose card was declined.
pub fn failed_charge(id: &str, payment: &Value, decline: SimDecline, now_s: i64) -> Value {
    let mut charge = charge(id, payment, now_s);
    charge["amount_captured"] = json!(0);
    charge["balance_transaction"] = Value::Null;
    charge["captured"] = json!(false);
    charge["failure_code"] = json!(decline.code);
    charge["failure_message"] = json!(decline.message);
    charge["outcome"] = json!({
        "network_status": "declined_by_network", "reason": decline.name, "risk_level": "normal",
        "seller_message": "The bank declined the payment.", "type": "issuer_declined",
    });
    charge["paid"] = json!(false);
    charge["receipt_url"] = Value::Null;
    charge["status"] = json!("failed");
    charge
}

/// Returns the charge of a payment intent that succeeded.
pub fn charge(id: &str, payment: &Value, now_s: i64) -> Value {
    json!({
        "id": id, "object": "charge", "amount": payment["amount"], "amount_captured": payment["amount"],
        "amount_refunded": 0, "application": null, "application_fee": null, "application_fee_amount": null,
        "balance_transaction": "txn_sim",
        "billing_details": {"address": null, "email": null, "name": null, "phone": null, "tax_id": null},
        "calculated_statement_descriptor": "SIM", "captured": true, "created": now_s, "currency": payment["currency"],
        "customer": payment["customer"], "description": null, "disputed": false, "failure_code": null,
        "failure_message": null, "fraud_details": {}, "livemode": payment["livemode"], "metadata": payment["metadata"],
        "on_behalf_of": null,
        "outcome": {"network_status": "approved_by_network", "reason": null, "risk_level": "normal", "seller_message": "Payment complete.", "type": "authorized"},
        "paid": true, "payment_intent": payment["id"], "payment_method": payment["payment_method"],
        "payment_method_details": {"type": "card"}, "receipt_email": null, "receipt_number": null,
        "receipt_url": format!("https://pay.stripe.com/receipts/{id}"), "refunded": false, "review": null,
        "shipping": null, "source": null, "source_transfer": null, "statement_descriptor": null,
        "status": "succeeded", "transfer_data": null, "transfer_group": null,
    })
}

pub fn refund(id: &str, charge: &Value, amount: i64, form: &StripeForm, now_s: i64) -> Value {
    json!({
        "id": id, "object": "refund", "amount": amount, "balance_transaction": "txn_sim", "charge": charge["id"],
        "created": now_s, "currency": charge["currency"], "destination_details": {"type": "card"},
        "metadata": form.map("metadata"), "payment_intent": charge["payment_intent"], "reason": form.get("reason"),
        "receipt_number": null, "source_transfer_reversal": null, "status": "succeeded", "transfer_reversal": null,
    })
}

pub fn dispute(id: &str, charge: &Value, amount: i64, status: &str, now_s: i64) -> Value {
    json!({
        "id": id, "object": "dispute", "amount": amount, "balance_transactions": [], "charge": charge["id"],
        "created": now_s, "currency": charge["currency"], "enhanced_eligibility_types": [], "evidence": {},
        "evidence_details": {"due_by": now_s + 86_400, "enhanced_eligibility": {}, "has_evidence": false, "past_due": false, "submission_count": 0},
        "is_charge_refundable": status.starts_with("warning_"), "livemode": charge["livemode"], "metadata": {},
        "payment_intent": charge["payment_intent"], "reason": "fraudulent", "status": status,
    })
}

pub fn customer(id: &str, form: &StripeForm, now_s: i64, is_live: bool) -> Value {
    json!({
        "id": id, "object": "customer", "address": null, "balance": 0, "created": now_s, "currency": null,
        "default_source": null, "delinquent": false, "description": form.get("description"), "discount": null,
        "email": form.get("email"), "invoice_prefix": "SIM", "invoice_settings": {"custom_fields": null, "default_payment_method": null, "footer": null, "rendering_options": null},
        "livemode": is_live, "metadata": form.map("metadata"), "name": form.get("name"), "phone": null,
        "preferred_locales": [], "shipping": null, "tax_exempt": "none", "test_clock": null,
    })
}

pub fn payment_method(id: &str, customer: &str, now_s: i64, is_live: bool) -> Value {
    json!({
        "id": id, "object": "payment_method", "allow_redisplay": "limited",
        "billing_details": {"address": null, "email": null, "name": null, "phone": null, "tax_id": null},
        "card": {"brand": "visa", "country": "US", "exp_month": 12, "exp_year": 2034, "funding": "credit", "last4": "4242"},
        "created": now_s, "customer": customer, "livemode": is_live, "metadata": {}, "type": "card",
    })
}

pub fn event(id: &str, kind: &str, object: &Value, now_s: i64, is_live: bool) -> Value {
    json!({
        "id": id, "object": "event", "account": null, "api_version": OWN_VERSION, "created": now_s,
        "data": {"object": object}, "livemode": is_live, "pending_webhooks": 1,
        "request": {"id": null, "idempotency_key": null}, "type": kind,
    })
}
