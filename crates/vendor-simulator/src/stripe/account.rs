//! Represents one Stripe account: its objects, and the effects of calls.
//!
//! This file must not check parameters (`api.rs` does) or act for people (`people.rs` does).

use super::api::{self, StripeCall, StripeOperation};
use super::currency;
use super::errors::StripeRefusal;
use super::fault::{SimDecline, SimStripeFault};
use super::form::StripeForm;
use super::objects::{self, OWN_VERSION, SimPayment, now_s};
use crate::behaviour::{Behaviour, InterruptPoint};
use crate::http_message::SimRequest;
use base64::Engine as _;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Minimum time for which a session accepts a payment. The next constant is the maximum.
const MIN_SESSION_SECONDS: i64 = 30 * 60;
const MAX_SESSION_SECONDS: i64 = 24 * 3_600;
const MAX_KEY_CHARS: usize = 255;
/// Default number of objects in an answer. The next constant is the maximum.
const PAGE: i64 = 10;
const MAX_PAGE: i64 = 100;

/// A simulated Stripe account, with its test mode and its live mode.
#[derive(Debug, Default)]
pub struct SimStripe {
    state: Mutex<StripeState>,
}

#[derive(Debug, Default)]
pub(crate) struct StripeState {
    objects: HashMap<String, Value>,
    /// Ids of the objects of each type, oldest first.
    ids: BTreeMap<&'static str, Vec<String>>,
    /// Answers to calls with an idempotency key, by mode and key.
    keys: HashMap<(bool, String), KeptAnswer>,
    pub faults: VecDeque<SimStripeFault>,
    /// Ids of events that no delivery plan contains yet.
    pub undelivered: Vec<String>,
    /// How the bank declines the next payments with a saved card.
    pub declines: VecDeque<SimDecline>,
    serial: u64,
}

#[derive(Debug)]
struct KeptAnswer {
    /// Method, path and parameters of the first call.
    call: String,
    status: u16,
    body: String,
}

/// An answer, and the way in which it is sent.
pub(crate) struct StripeAnswer {
    pub status: u16,
    /// Header lines, each with its line end.
    pub head: String,
    pub body: String,
    pub behaviour: Behaviour,
    /// True if the connection closes without an answer.
    pub is_cut: bool,
}

/// Caller of the API.
#[derive(Debug, Clone, Copy)]
struct StripeCaller {
    is_live: bool,
}

impl SimStripe {
    /// Returns whether a request is for Stripe instead of a vendor of models.
    pub(crate) fn is_call(path: &str) -> bool {
        const FIRST: [&str; 9] = [
            "checkout",
            "setup_intents",
            "customers",
            "payment_methods",
            "payment_intents",
            "charges",
            "refunds",
            "disputes",
            "events",
        ];
        let first = path
            .strip_prefix("/v1/")
            .and_then(|rest| rest.split('/').next());
        first.is_some_and(|first| FIRST.contains(&first))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, StripeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn answer(&self, request: &SimRequest) -> StripeAnswer {
        let mut state = self.lock();
        let fault = state.take_fault(request.path());
        let outcome = match &fault {
            Some(fault) if !fault.acts => Err(StripeRefusal::new(
                fault.status.unwrap_or(500),
                "An unknown error occurred",
            )),
            _ => state.execute(request),
        };
        state.serial += 1;
        let mut head = format!(
            "request-id: req_Sim{:012}\r\nstripe-version: {OWN_VERSION}\r\n",
            state.serial
        );
        if let Some(key) = request.header("idempotency-key") {
            head.push_str(&format!("idempotency-key: {key}\r\n"));
        }
        let (mut status, mut body) = match outcome {
            Ok(done) => {
                if done.is_replayed {
                    head.push_str("idempotent-replayed: true\r\n");
                }
                (done.status, done.body)
            }
            Err(refusal) => (refusal.status, refusal.body().to_string()),
        };
        let mut behaviour = Behaviour::default();
        if let Some(fault) = &fault {
            behaviour.delay = fault.delay;
            if let (true, Some(instead)) = (fault.acts, fault.status) {
                status = instead;
                body = StripeRefusal::new(instead, "An unknown error occurred")
                    .body()
                    .to_string();
            }
            // The cut is in the middle of the body, so that the client has read a status.
            if fault.is_torn {
                behaviour.cut = Some(InterruptPoint::Events(0));
            }
        }
        let is_cut = fault.is_some_and(|fault| fault.is_cut);
        StripeAnswer {
            status,
            head,
            body,
            behaviour,
            is_cut,
        }
    }
}

/// Result of a call.
struct StripeDone {
    status: u16,
    body: String,
    is_replayed: bool,
}

impl StripeState {
    fn take_fault(&mut self, path: &str) -> Option<SimStripeFault> {
        let index = self
            .faults
            .iter()
            .position(|fault| path.contains(&*fault.path))?;
        let fault = self.faults.get_mut(index)?;
        fault.times -= 1;
        let taken = fault.clone();
        if fault.times == 0 {
            self.faults.remove(index);
        }
        Some(taken)
    }

    fn execute(&mut self, request: &SimRequest) -> Result<StripeDone, StripeRefusal> {
        let caller = authenticate(request)?;
        check_version(request)?;
        let unknown = || {
            let message = format!(
                "Unrecognized request URL ({}: {}). Please see https://stripe.com/docs or we can help at https://support.stripe.com/.",
                request.method,
                request.path()
            );
            StripeRefusal::new(404, message)
        };
        let (call, id) = api::find(&request.method, request.path()).ok_or_else(unknown)?;
        let form = read_form(request)?;
        let key = request
            .header("idempotency-key")
            .filter(|_| request.method == "POST");
        let Some(key) = key else {
            call.check(&form)?;
            let value = self.run(call, id, &form, caller)?;
            return Ok(StripeDone {
                status: 200,
                body: value.to_string(),
                is_replayed: false,
            });
        };
        if key.is_empty() || key.chars().count() > MAX_KEY_CHARS {
            let message = format!("Idempotency keys must have 1 to {MAX_KEY_CHARS} characters");
            return Err(StripeRefusal {
                kind: "idempotency_error",
                ..StripeRefusal::new(400, message)
            });
        }
        let (slot, this) = (
            (caller.is_live, key.to_owned()),
            format!("{} {} {form:?}", request.method, request.path()),
        );
        if let Some(kept) = self.keys.get(&slot) {
            if kept.call != this {
                let message = format!(
                    "Keys for idempotent requests can only be used with the same parameters they were first used with. Try using a key other than '{key}' if you meant to execute a different request."
                );
                return Err(StripeRefusal {
                    kind: "idempotency_error",
                    ..StripeRefusal::new(400, message)
                });
            }
            return Ok(StripeDone {
                status: kept.status,
                body: kept.body.clone(),
                is_replayed: true,
            });
        }
        call.check(&form)?;
        let (status, body) = match self.run(call, id, &form, caller) {
            Ok(value) => (200, value.to_string()),
            Err(refusal) if !refusal.is_kept => return Err(refusal),
            Err(refusal) => (refusal.status, refusal.body().to_string()),
        };
        let kept = KeptAnswer {
            call: this,
            status,
            body: body.clone(),
        };
        self.keys.insert(slot, kept);
        Ok(StripeDone {
            status,
            body,
            is_replayed: false,
        })
    }

    fn run(
        &mut self,
        call: &StripeCall,
        id: &str,
        form: &StripeForm,
        caller: StripeCaller,
    ) -> Result<Value, StripeRefusal> {
        let value = match call.operation {
            StripeOperation::CreateSession => self.create_session(form, caller)?,
            StripeOperation::ExpireSession => self.expire_session(id, caller)?,
            StripeOperation::CreateCustomer => {
                let id = self.new_id("cus_");
                self.insert(objects::customer(&id, form, now_s(), caller.is_live))
            }
            StripeOperation::CreatePayment => self.create_payment(form, caller)?,
            StripeOperation::CreateRefund => self.create_refund(form, caller)?,
            StripeOperation::DetachMethod => self.detach_method(id, caller)?,
            StripeOperation::Retrieve(kind) => self.object(kind, id, "id", caller)?,
            StripeOperation::List(kind) => self.list(kind, id, form, caller)?,
        };
        let expands = form.iter().filter(|(name, _)| name.starts_with("expand["));
        let mut value = shown(&value);
        expands.for_each(|(_, path)| self.expand(&mut value, path));
        Ok(value)
    }

    fn create_session(
        &mut self,
        form: &StripeForm,
        caller: StripeCaller,
    ) -> Result<Value, StripeRefusal> {
        let is_setup = is_setup_mode(form)?;
        let has_types = ["payment_method_types[0]", "allowed_payment_method_types[0]"]
            .iter()
            .any(|name| form.get(name).is_some());
        if is_setup && !has_types && form.get("currency").is_none() {
            return Err(missing("currency"));
        }
        let (total, currency) = line_items_total(form)?;
        if !is_setup {
            let currency = currency.ok_or_else(|| missing("line_items"))?;
            currency::check_amount(currency, total, "line_items")?;
        }
        let now_s = now_s();
        if let Some(expires_at) = form.integer("expires_at") {
            let message = match expires_at - now_s {
                ..MIN_SESSION_SECONDS => {
                    "The `expires_at` timestamp must be at least 30 minutes from Checkout Session creation."
                }
                age if age > MAX_SESSION_SECONDS => {
                    "The `expires_at` timestamp must be less than 24 hours from Checkout Session creation."
                }
                _ => "",
            };
            if !message.is_empty() {
                return Err(StripeRefusal::invalid(
                    "parameter_invalid",
                    "expires_at",
                    message,
                ));
            }
        }
        if let Some(customer) = form.get("customer") {
            self.object("customer", customer, "customer", caller)?;
        }
        let mode = if caller.is_live { "live" } else { "test" };
        let id = self.new_id(&format!("cs_{mode}_a1"));
        let mut session = objects::session(&id, form, total, now_s, caller.is_live);
        let saves = [
            "payment_intent_data[setup_future_usage]",
            "payment_method_options[card][setup_future_usage]",
        ]
        .iter()
        .any(|name| form.get(name) == Some("off_session"));
        // This hidden member contains the data of the future payment.
        session["_sim"] = json!({
            "metadata": form.map("payment_intent_data[metadata]"),
            "saves": saves,
        });
        if is_setup {
            let intent = self.new_id("seti_1Sim");
            session["setup_intent"] = json!(intent);
            self.insert(objects::setup_intent(&intent, form, now_s, caller.is_live));
        }
        Ok(self.insert(session))
    }

    fn expire_session(&mut self, id: &str, caller: StripeCaller) -> Result<Value, StripeRefusal> {
        let session = self.object("checkout.session", id, "session", caller)?;
        let status = session["status"].as_str().unwrap_or_default();
        if status != "open" {
            let message = format!(
                "Only Checkout Sessions with a status in [\"open\"] can be expired. This Checkout Session has a status of `{status}`."
            );
            return Err(StripeRefusal::state("checkout_session_not_open", message));
        }
        self.end_session(id);
        self.object("checkout.session", id, "session", caller)
    }

    /// Ends a session, so that it accepts no further payment.
    pub fn end_session(&mut self, id: &str) {
        self.change(id, |session| {
            session["status"] = json!("expired");
            session["url"] = Value::Null;
        });
        self.emit("checkout.session.expired", id);
    }

    /// Creates a payment with a customer's saved card.
    fn create_payment(
        &mut self,
        form: &StripeForm,
        caller: StripeCaller,
    ) -> Result<Value, StripeRefusal> {
        let (amount, code) = (
            form.integer("amount").unwrap_or_default(),
            form.get("currency").unwrap_or_default(),
        );
        currency::check_amount(code, amount, "amount")?;
        for (name, kind) in [
            ("customer", "customer"),
            ("payment_method", "payment_method"),
        ] {
            if let Some(id) = form.get(name) {
                self.object(kind, id, name, caller)?;
            }
        }
        let is_confirmed = form.get("confirm") == Some("true");
        let is_off_session = form.get("off_session").is_some_and(|it| it != "false");
        if is_off_session && !is_confirmed {
            let message = "You cannot set `off_session` without `confirm`";
            return Err(StripeRefusal::invalid(
                "parameter_missing",
                "confirm",
                message,
            ));
        }
        if is_confirmed && form.get("payment_method").is_none() {
            let message =
                "You cannot confirm this PaymentIntent because it's missing a payment method.";
            return Err(StripeRefusal::invalid(
                "parameter_missing",
                "payment_method",
                message,
            ));
        }
        if let (Some(customer), Some(method)) = (form.get("customer"), form.get("payment_method")) {
            let found = self.object("payment_method", method, "payment_method", caller)?;
            if found["customer"] != customer {
                let message = format!(
                    "The customer does not have a payment method with the ID {method}. The payment method must be attached to the customer."
                );
                return Err(StripeRefusal::invalid(
                    "resource_missing",
                    "payment_method",
                    message,
                ));
            }
        }
        let payment = SimPayment {
            amount,
            currency: code,
            customer: form.get("customer"),
            payment_method: form.get("payment_method"),
            metadata: Value::Object(form.map("metadata")),
            status: "requires_payment_method",
        };
        let id = self.new_id("pi_3Sim");
        self.insert(objects::payment_intent(
            &id,
            &payment,
            now_s(),
            caller.is_live,
        ));
        if is_confirmed {
            match self.declines.pop_front() {
                Some(decline) => return Err(self.fail(&id, decline)),
                None => drop(self.succeed(&id)),
            }
        }
        self.object("payment_intent", &id, "intent", caller)
    }

    /// Declines the card of a payment intent. Returns the refusal of the call.
    fn fail(&mut self, payment: &str, decline: SimDecline) -> StripeRefusal {
        let charge = self.new_id("ch_3Sim");
        let intent = self.objects.get(payment).cloned().unwrap_or_default();
        self.insert(objects::failed_charge(&charge, &intent, decline, now_s()));
        self.change(payment, |intent| {
            intent["latest_charge"] = json!(charge);
            intent["last_payment_error"] = json!({
                "type": "card_error", "code": decline.code, "decline_code": decline.name,
                "message": decline.message, "charge": charge,
            });
            // A card that was declined is taken off the payment.
            intent["payment_method"] = Value::Null;
        });
        self.emit("charge.failed", &charge);
        self.emit("payment_intent.payment_failed", payment);
        StripeRefusal {
            is_kept: true,
            code: Some(decline.code),
            decline_code: Some(decline.name),
            payment_intent: self.objects.get(payment).map(|it| Box::new(shown(it))),
            ..StripeRefusal::new(402, decline.message)
        }
    }

    fn detach_method(&mut self, id: &str, caller: StripeCaller) -> Result<Value, StripeRefusal> {
        let method = self.object("payment_method", id, "payment_method", caller)?;
        if method["customer"].is_null() {
            let message = "The payment method you provided is not attached to a customer so detachment is impossible.";
            return Err(StripeRefusal::new(400, message));
        }
        self.change(id, |method| method["customer"] = Value::Null);
        self.emit("payment_method.detached", id);
        self.object("payment_method", id, "payment_method", caller)
    }

    /// Removes a saved card without a call.
    pub fn detach(&mut self, method: &str) {
        self.change(method, |method| method["customer"] = Value::Null);
        self.emit("payment_method.detached", method);
    }

    /// Gives a payment intent its charge. Returns the charge's id.
    pub fn succeed(&mut self, payment: &str) -> String {
        let charge = self.new_id("ch_3Sim");
        let intent = self.objects.get(payment).cloned().unwrap_or_default();
        self.insert(objects::charge(&charge, &intent, now_s()));
        self.change(payment, |intent| {
            intent["status"] = json!("succeeded");
            intent["amount_received"] = intent["amount"].clone();
            intent["latest_charge"] = json!(charge);
        });
        self.emit("charge.succeeded", &charge);
        self.emit("payment_intent.succeeded", payment);
        charge
    }

    /// Refunds a payment without a call. Returns false if the refund is refused.
    pub fn refund_of(&mut self, payment: &str, amount: i64) -> bool {
        let is_live = self.get(payment).is_some_and(|it| it["livemode"] == true);
        let form = StripeForm::parse(&format!("payment_intent={payment}&amount={amount}"));
        form.and_then(|form| self.create_refund(&form, StripeCaller { is_live }))
            .is_ok()
    }

    fn create_refund(
        &mut self,
        form: &StripeForm,
        caller: StripeCaller,
    ) -> Result<Value, StripeRefusal> {
        let charge = match (form.get("charge"), form.get("payment_intent")) {
            (Some(charge), None) => charge.to_owned(),
            (None, Some(payment)) => {
                let intent = self.object("payment_intent", payment, "payment_intent", caller)?;
                let charge = intent["latest_charge"].as_str().map(str::to_owned);
                charge.ok_or_else(|| {
                    let message = format!("This PaymentIntent ({payment}) does not have a successful charge to refund.");
                    StripeRefusal::state("payment_intent_unexpected_state", message)
                })?
            }
            _ => {
                let message = "One of the following params should be provided for this request: payment_intent or charge.";
                return Err(StripeRefusal::invalid(
                    "parameter_missing",
                    "charge",
                    message,
                ));
            }
        };
        let charge = self.object("charge", &charge, "charge", caller)?;
        let number = |name: &str| charge[name].as_i64().unwrap_or_default();
        let rest = number("amount") - number("amount_refunded");
        let amount = form.integer("amount").unwrap_or(rest);
        if self.is_disputed(&charge) {
            return Err(StripeRefusal::state(
                "charge_disputed",
                "This charge has been charged back; it cannot be refunded.",
            ));
        }
        if rest == 0 {
            let message = format!(
                "Charge {} has already been refunded.",
                charge["id"].as_str().unwrap_or_default()
            );
            return Err(StripeRefusal::state("charge_already_refunded", message));
        }
        if amount < 1 || amount > rest {
            let message = format!(
                "Refund amount ({amount}) is greater than unrefunded amount on charge ({rest})"
            );
            return Err(StripeRefusal {
                param: Some("amount".into()),
                ..StripeRefusal::state("amount_too_large", message)
            });
        }
        let id = self.new_id("re_3Sim");
        let refund = self.insert(objects::refund(&id, &charge, amount, form, now_s()));
        let charge = charge["id"].as_str().unwrap_or_default().to_owned();
        self.change(&charge, |charge| {
            let refunded = charge["amount_refunded"].as_i64().unwrap_or_default() + amount;
            charge["amount_refunded"] = json!(refunded);
            charge["refunded"] = json!(Some(refunded) == charge["amount"].as_i64());
        });
        self.emit("refund.created", &id);
        self.emit("charge.refunded", &charge);
        Ok(refund)
    }

    /// Returns whether a dispute of the charge is open or lost, so the bank has the money.
    fn is_disputed(&self, charge: &Value) -> bool {
        charge["disputed"] == true
            && self.all("dispute").any(|it| {
                let status = it["status"].as_str().unwrap_or_default();
                it["charge"] == charge["id"] && status != "won" && !status.starts_with("warning_")
            })
    }

    /// Returns the object with this id, if it has this type and the caller's mode.
    fn object(
        &mut self,
        kind: &'static str,
        id: &str,
        param: &str,
        caller: StripeCaller,
    ) -> Result<Value, StripeRefusal> {
        self.end_late_session(id);
        let missing =
            || StripeRefusal::missing(kind.split('.').next_back().unwrap_or(kind), id, param);
        let value = self
            .objects
            .get(id)
            .filter(|value| value["object"] == kind)
            .ok_or_else(missing)?;
        if value["livemode"]
            .as_bool()
            .is_some_and(|is_live| is_live != caller.is_live)
        {
            let (other, own) = if caller.is_live {
                ("test", "live")
            } else {
                ("live", "test")
            };
            let mut refusal = missing();
            refusal.message.push_str(&format!("; a similar object exists in {other} mode, but a {own} mode key was used to make this request."));
            return Err(refusal);
        }
        Ok(value.clone())
    }

    /// Ends a session whose time is over.
    fn end_late_session(&mut self, id: &str) {
        let is_over = self.objects.get(id).is_some_and(|session| {
            session["status"] == "open"
                && session["expires_at"]
                    .as_i64()
                    .is_some_and(|at| at <= now_s())
        });
        if is_over {
            self.end_session(id);
        }
    }

    fn list(
        &mut self,
        kind: &'static str,
        owner: &str,
        form: &StripeForm,
        caller: StripeCaller,
    ) -> Result<Value, StripeRefusal> {
        let limit = form.integer("limit").unwrap_or(PAGE);
        if !(1..=MAX_PAGE).contains(&limit) {
            let message = format!("Invalid integer: limit must be between 1 and {MAX_PAGE}");
            return Err(StripeRefusal::invalid(
                "parameter_invalid_integer",
                "limit",
                message,
            ));
        }
        if let Some(after) = form.get("starting_after") {
            self.object(kind, after, "starting_after", caller)?;
        }
        let is_listed = |value: &Value| {
            let is = |name: &str| form.get(name).is_none_or(|wanted| value[name] == wanted);
            let created = value["created"].as_i64().unwrap_or_default();
            let bound = |name: &str, keeps: fn(i64, i64) -> bool| {
                form.integer(name).is_none_or(|at| keeps(created, at))
            };
            (owner.is_empty() || value["customer"] == owner)
                && value["livemode"]
                    .as_bool()
                    .is_none_or(|is_live| is_live == caller.is_live)
                && ["payment_intent", "charge", "customer", "type", "status"]
                    .iter()
                    .all(|name| is(name))
                && bound("created[gt]", |created, at| created > at)
                && bound("created[gte]", |created, at| created >= at)
                && bound("created[lt]", |created, at| created < at)
                && bound("created[lte]", |created, at| created <= at)
        };
        let mut found: Vec<&Value> = self.all(kind).filter(|it| is_listed(it)).collect();
        found.reverse();
        let position =
            |found: &[&Value], id: &str| found.iter().position(|value| value["id"] == id);
        if let Some(index) = form
            .get("starting_after")
            .and_then(|id| position(&found, id))
        {
            found.drain(..=index);
        }
        if let Some(index) = form
            .get("ending_before")
            .and_then(|id| position(&found, id))
        {
            let first = index.saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
            found.truncate(index);
            found.drain(..first);
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let has_more = found.len() > limit;
        found.truncate(limit);
        let found: Vec<_> = found.into_iter().map(shown).collect();
        let url = CALL_URLS
            .iter()
            .find(|(known, _)| *known == kind)
            .map_or("", |it| it.1);
        Ok(json!({"object": "list", "data": found, "has_more": has_more, "url": url}))
    }

    /// Replaces the id at a path by its object.
    fn expand(&self, value: &mut Value, path: &str) {
        let (first, rest) = path.split_once('.').unwrap_or((path, ""));
        if let (true, Some(data)) = (
            first == "data",
            value.get_mut("data").and_then(Value::as_array_mut),
        ) {
            return data.iter_mut().for_each(|it| self.expand(it, rest));
        }
        let Some(member) = value.get_mut(first) else {
            return;
        };
        if let Some(object) = member.as_str().and_then(|id| self.objects.get(id)) {
            *member = shown(object);
        }
        if !rest.is_empty() {
            self.expand(member, rest);
        }
    }

    pub fn new_id(&mut self, prefix: &str) -> String {
        self.serial += 1;
        format!("{prefix}{:012}", self.serial)
    }

    /// Stores a new object and returns it.
    pub fn insert(&mut self, value: Value) -> Value {
        let id = value["id"].as_str().unwrap_or_default().to_owned();
        if let Some((kind, _)) = CALL_URLS.iter().find(|(kind, _)| value["object"] == *kind) {
            self.ids.entry(kind).or_default().push(id.clone());
        }
        self.objects.insert(id, value.clone());
        value
    }

    /// Returns the objects of a type, oldest first.
    pub fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        let ids = self.ids.get(kind).into_iter().flatten();
        ids.filter_map(|id| self.objects.get(id))
    }

    pub fn get(&self, id: &str) -> Option<&Value> {
        self.objects.get(id)
    }

    pub fn change(&mut self, id: &str, change: impl FnOnce(&mut Value)) {
        if let Some(value) = self.objects.get_mut(id) {
            change(value);
        }
    }

    /// Stores an event with the current state of an object.
    pub fn emit(&mut self, kind: &str, id: &str) {
        let Some(object) = self.objects.get(id).map(shown) else {
            return;
        };
        // A refund does not contain its mode.
        let charge = object["charge"].as_str().and_then(|id| self.get(id));
        let has_mode = |value: &Value| value["livemode"] == true;
        let is_live = has_mode(&object) || charge.is_some_and(has_mode);
        let event = self.new_id("evt_1Sim");
        self.insert(objects::event(&event, kind, &object, now_s(), is_live));
        self.undelivered.push(event);
    }
}

fn missing(name: &str) -> StripeRefusal {
    let message = format!("Missing required param: {name}.");
    StripeRefusal::invalid("parameter_missing", name, message)
}

/// Returns whether a checkout saves a card instead of paying. Refuses parameters of the other mode.
fn is_setup_mode(form: &StripeForm) -> Result<bool, StripeRefusal> {
    let is_setup = match form.get("mode") {
        Some("payment") => false,
        Some("setup") => true,
        _ => {
            let message = "The simulator has the modes payment and setup only";
            return Err(StripeRefusal::invalid("parameter_invalid", "mode", message));
        }
    };
    let other_mode = match is_setup {
        true => &[
            "line_items",
            "payment_intent_data",
            "invoice_creation",
            "submit_type",
        ][..],
        false => &["setup_intent_data"],
    };
    for name in other_mode {
        if form
            .iter()
            .any(|(sent, _)| sent.split('[').next() == Some(*name))
        {
            let mode = form.get("mode").unwrap_or_default();
            let message = format!("You can not pass `{name}` in `{mode}` mode.");
            return Err(StripeRefusal::invalid("parameter_invalid", name, message));
        }
    }
    Ok(is_setup)
}

/// Returns the sum of a checkout's line items in minor units, and their currency.
fn line_items_total(form: &StripeForm) -> Result<(i64, Option<&str>), StripeRefusal> {
    let (mut total, mut currency) = (0_i64, None);
    for index in 0.. {
        let name = |rest: &str| format!("line_items[{index}]{rest}");
        if !form.iter().any(|(sent, _)| sent.starts_with(&name("["))) {
            break;
        }
        let amount = form
            .integer(&name("[price_data][unit_amount]"))
            .ok_or_else(|| missing(&name("[price_data][unit_amount]")))?;
        let quantity = form
            .integer(&name("[quantity]"))
            .ok_or_else(|| missing(&name("[quantity]")))?;
        let code = form
            .get(&name("[price_data][currency]"))
            .ok_or_else(|| missing(&name("[price_data][currency]")))?;
        form.get(&name("[price_data][product_data][name]"))
            .ok_or_else(|| missing(&name("[price_data][product_data]")))?;
        if currency.is_some_and(|known| known != code) {
            let message = "All prices on a Checkout Session must be expressed in the same currency";
            return Err(StripeRefusal::invalid(
                "parameter_invalid",
                "line_items",
                message,
            ));
        }
        currency = Some(code);
        total = total.saturating_add(amount.saturating_mul(quantity));
    }
    Ok((total, currency))
}

/// Types of objects, and the paths of their lists.
const CALL_URLS: [(&str, &str); 9] = [
    ("setup_intent", "/v1/setup_intents"),
    ("checkout.session", "/v1/checkout/sessions"),
    ("customer", "/v1/customers"),
    ("payment_method", "/v1/payment_methods"),
    ("payment_intent", "/v1/payment_intents"),
    ("charge", "/v1/charges"),
    ("refund", "/v1/refunds"),
    ("dispute", "/v1/disputes"),
    ("event", "/v1/events"),
];

/// Returns an object without the members that Stripe does not show.
fn shown(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(members) = object.as_object_mut() {
        members.remove("_sim");
    }
    object
}

fn authenticate(request: &SimRequest) -> Result<StripeCaller, StripeRefusal> {
    let header = request.header("authorization").unwrap_or_default();
    let key = match header.split_once(' ') {
        Some(("Bearer", key)) => key.to_owned(),
        Some(("Basic", text)) => {
            let decoded = base64::engine::general_purpose::STANDARD
                .decode(text)
                .unwrap_or_default();
            String::from_utf8_lossy(&decoded)
                .split(':')
                .next()
                .unwrap_or_default()
                .to_owned()
        }
        _ => {
            let message = "You did not provide an API key. You need to provide your API key in the Authorization header, using Bearer auth (e.g. 'Authorization: Bearer YOUR_SECRET_KEY').";
            return Err(StripeRefusal::new(401, message));
        }
    };
    let modes = [
        ("sk_test_", false),
        ("rk_test_", false),
        ("sk_live_", true),
        ("rk_live_", true),
    ];
    let mode = modes
        .iter()
        .find_map(|(prefix, is_live)| Some((key.strip_prefix(prefix)?, *is_live)));
    let is_word =
        |rest: &str| rest.len() >= 3 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match mode {
        Some((rest, is_live)) if is_word(rest) && !rest.starts_with("revoked") => {
            Ok(StripeCaller { is_live })
        }
        _ => {
            let start: String = key.chars().take(8).collect();
            Err(StripeRefusal::new(
                401,
                format!("Invalid API Key provided: {start}****"),
            ))
        }
    }
}

/// Checks the version of the API, which is a date and, since 2024, the name of a release.
fn check_version(request: &SimRequest) -> Result<(), StripeRefusal> {
    let Some(version) = request.header("stripe-version") else {
        return Ok(());
    };
    let (date, name) = version.split_once('.').unwrap_or((version, "a"));
    let is_valid = date.parse::<jiff::civil::Date>().is_ok()
        && (date >= "2024-09-30") == version.contains('.')
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_lowercase());
    match is_valid {
        true => Ok(()),
        false => Err(StripeRefusal::new(
            400,
            format!("Invalid Stripe API version: {version}"),
        )),
    }
}

fn read_form(request: &SimRequest) -> Result<StripeForm, StripeRefusal> {
    let query = request.target.split_once('?').map_or("", |it| it.1);
    if request.method == "GET" {
        return StripeForm::parse(query);
    }
    if !query.is_empty() {
        let message = "Parameters of this request belong into its body";
        return Err(StripeRefusal::new(400, message));
    }
    let kind = request.header("content-type").unwrap_or_default();
    if !request.body.is_empty()
        && kind.split(';').next() != Some("application/x-www-form-urlencoded")
    {
        let message = format!(
            "Invalid request: the content type is {kind}, not application/x-www-form-urlencoded"
        );
        return Err(StripeRefusal::new(400, message));
    }
    let text = std::str::from_utf8(&request.body)
        .map_err(|_| StripeRefusal::new(400, "Invalid request: no UTF-8"))?;
    StripeForm::parse(text)
}
