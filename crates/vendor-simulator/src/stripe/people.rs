//! Simulates the actions of people at Stripe: holders pay, merchants refund, banks dispute.
//!
//! This file must not answer a call.

use super::account::{SimStripe, StripeState};
use super::fault::{SimDecline, SimStripeFault};
use super::objects::{self, SimPayment, now_s};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Method of a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaymentWay {
    /// The money arrives at once.
    Card,
    /// The bank reports days later whether the money arrives.
    BankDebit,
}

impl SimStripe {
    /// Pays a session as its holder. Returns the payment intent; `None` if the session accepts no
    /// payment.
    pub fn pay(&self, session: &str, way: PaymentWay) -> Option<String> {
        let mut state = self.lock();
        let found = state.get(session)?.clone();
        if found["status"] != "open" {
            return None;
        }
        let is_live = found["livemode"] == true;
        let customer = state.customer_of(&found, is_live);
        let method = customer.as_ref().map(|customer| {
            let id = state.new_id("pm_1Sim");
            state.insert(objects::payment_method(&id, customer, now_s(), is_live));
            id
        });
        let payment = SimPayment {
            amount: found["amount_total"].as_i64()?,
            currency: found["currency"].as_str()?,
            customer: customer.as_deref(),
            payment_method: method.as_deref(),
            metadata: found["_sim"]["metadata"].clone(),
            status: "processing",
        };
        let id = state.new_id("pi_3Sim");
        state.insert(objects::payment_intent(&id, &payment, now_s(), is_live));
        state.change(session, |session| {
            session["status"] = json!("complete");
            session["url"] = Value::Null;
            session["payment_intent"] = json!(id);
            session["customer"] = json!(customer);
            session["customer_details"] = json!({"email": "holder@example.com", "name": null, "phone": null, "address": null, "tax_exempt": "none", "tax_ids": []});
        });
        if way == PaymentWay::Card {
            state.succeed(&id);
            state.change(session, |session| session["payment_status"] = json!("paid"));
        }
        state.emit("checkout.session.completed", session);
        Some(id)
    }

    /// Enters a card as the holder in a session of the mode `setup`. Returns the payment method;
    /// `None` if the session accepts none.
    pub fn set_up(&self, session: &str) -> Option<String> {
        let mut state = self.lock();
        let found = state.get(session)?.clone();
        let intent = found["setup_intent"].as_str()?.to_owned();
        if found["status"] != "open" {
            return None;
        }
        let is_live = found["livemode"] == true;
        let customer = state.customer_of(&found, is_live);
        let method = state.new_id("pm_1Sim");
        let mut card = objects::payment_method(&method, "", now_s(), is_live);
        card["customer"] = json!(customer);
        state.insert(card);
        state.change(&intent, |intent| {
            intent["status"] = json!("succeeded");
            intent["customer"] = json!(customer);
            intent["payment_method"] = json!(method);
        });
        state.change(session, |session| {
            session["status"] = json!("complete");
            session["url"] = Value::Null;
            session["customer"] = json!(customer);
        });
        if customer.is_some() {
            state.emit("payment_method.attached", &method);
        }
        state.emit("setup_intent.succeeded", &intent);
        state.emit("checkout.session.completed", session);
        Some(method)
    }

    /// Removes a saved card, as the merchant on Stripe's own pages.
    pub fn detach(&self, method: &str) {
        self.lock().detach(method);
    }

    /// Reports as the bank whether the money of a bank debit arrives.
    pub fn confirm(&self, session: &str, comes: bool) {
        let mut state = self.lock();
        let payment = state
            .get(session)
            .and_then(|it| it["payment_intent"].as_str())
            .unwrap_or_default()
            .to_owned();
        if comes {
            state.succeed(&payment);
            state.change(session, |session| session["payment_status"] = json!("paid"));
            state.emit("checkout.session.async_payment_succeeded", session);
        } else {
            state.change(&payment, |intent| {
                intent["status"] = json!("requires_payment_method")
            });
            state.emit("checkout.session.async_payment_failed", session);
        }
    }

    /// Refunds a payment in full or in part, as the merchant on Stripe's own pages. Returns false
    /// if Stripe refuses the refund.
    pub fn refund(&self, payment: &str, amount: i64) -> bool {
        self.lock().refund_of(payment, amount)
    }

    /// Ends a session because its time is over.
    pub fn expire(&self, session: &str) {
        self.lock().end_session(session);
    }

    /// Disputes a payment as the bank, which takes the money or only inquires (`warning_…`).
    /// Returns the dispute.
    pub fn dispute(&self, payment: &str, amount: i64, status: &str) -> Option<String> {
        let mut state = self.lock();
        let charge = state.get(payment)?["latest_charge"].as_str()?.to_owned();
        let id = state.new_id("du_1Sim");
        let value = objects::dispute(&id, state.get(&charge)?, amount, status, now_s());
        state.insert(value);
        state.change(&charge, |charge| charge["disputed"] = json!(true));
        state.emit("charge.dispute.created", &id);
        if !status.starts_with("warning_") {
            state.emit("charge.dispute.funds_withdrawn", &id);
        }
        Some(id)
    }

    /// Closes a dispute as `won`, `lost` or `warning_closed`.
    pub fn close_dispute(&self, dispute: &str, status: &str) {
        let mut state = self.lock();
        state.change(dispute, |dispute| dispute["status"] = json!(status));
        state.emit("charge.dispute.closed", dispute);
        if status == "won" {
            state.emit("charge.dispute.funds_reinstated", dispute);
        }
    }

    /// Changes a member of an object in a way that Stripe never would, for events that differ from
    /// their order.
    pub fn falsify(&self, id: &str, member: &str, value: Value) {
        self.lock().change(id, |object| object[member] = value);
    }

    /// Adds a fault to the next calls.
    pub fn add_fault(&self, fault: SimStripeFault) {
        self.lock().faults.push_back(fault);
    }

    /// Makes the bank decline the next payments with a saved card, for the reason of this name in
    /// the table of `fault.rs`. Returns false if there is no such reason.
    pub fn decline(&self, payments: usize, name: &str) -> bool {
        let reason = SimDecline::find(name);
        self.lock().declines = reason.into_iter().cycle().take(payments).collect();
        reason.is_some()
    }

    /// Returns an object in its current state, such as a session.
    pub fn find(&self, id: &str) -> Option<Value> {
        self.lock().get(id).cloned()
    }

    /// Returns all Checkout sessions, oldest first.
    pub fn sessions(&self) -> Vec<Value> {
        self.lock().all("checkout.session").cloned().collect()
    }

    /// Returns the fate of each charge, oldest first.
    pub fn money(&self) -> Vec<SimMoney> {
        self.lock().money()
    }
}

/// Fate of a charge, in minor units of its currency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimMoney {
    /// Id of the order in the payment's metadata.
    pub order: String,
    pub amount: i64,
    pub refunded: i64,
    /// Amount that banks have taken and not returned.
    pub disputed: i64,
}

impl StripeState {
    fn money(&self) -> Vec<SimMoney> {
        let number = |value: &Value, name: &str| value[name].as_i64().unwrap_or_default();
        let mut disputed = HashMap::<&str, i64>::new();
        for dispute in self.all("dispute") {
            let status = dispute["status"].as_str().unwrap_or_default();
            if status != "won" && !status.starts_with("warning_") {
                *disputed
                    .entry(dispute["charge"].as_str().unwrap_or_default())
                    .or_default() += number(dispute, "amount");
            }
        }
        let paid = self.all("charge").filter(|charge| charge["paid"] == true);
        let charges = paid.map(|charge| SimMoney {
            order: charge["metadata"]["order"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            amount: number(charge, "amount"),
            refunded: number(charge, "amount_refunded"),
            disputed: charge["id"]
                .as_str()
                .and_then(|id| disputed.get(id).copied())
                .unwrap_or_default(),
        });
        charges.collect()
    }

    /// Returns the customer of a session, or creates a new one if the session requires it.
    fn customer_of(&mut self, session: &Value, is_live: bool) -> Option<String> {
        if let Some(known) = session["customer"].as_str() {
            return Some(known.to_owned());
        }
        if session["customer_creation"] != "always" && session["_sim"]["saves"] != true {
            return None;
        }
        let id = self.new_id("cus_");
        let form = super::form::StripeForm::default();
        self.insert(objects::customer(&id, &form, now_s(), is_live));
        Some(id)
    }
}
