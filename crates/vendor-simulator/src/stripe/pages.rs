//! Serves the simulator's pages under `/_sim/stripe/` for tests in other processes. Each page calls
//! a function of `people.rs` or `webhook.rs`.
//!
//! This file must only read parameters.

use super::account::SimStripe;
use super::fault::SimStripeFault;
use super::form::StripeForm;
use super::objects::now_s;
use super::people::PaymentWay;
use super::webhook::{DeliveryPlan, sign};
use serde_json::{Value, json};
use std::time::Duration;

pub const PREFIX: &str = "/_sim/stripe/";

impl SimStripe {
    /// Answers a `POST` request with a form for one of the pages. Returns the status and JSON.
    pub(crate) fn page(&self, name: &str, body: &[u8]) -> (u16, Value) {
        let form = std::str::from_utf8(body)
            .ok()
            .and_then(|text| StripeForm::parse(text).ok());
        match form.and_then(|form| self.act(name, &form)) {
            Some(value) => (200, value),
            None => (
                400,
                json!({"error": format!("no page {name}, or a parameter is wrong")}),
            ),
        }
    }

    fn act(&self, name: &str, form: &StripeForm) -> Option<Value> {
        let text = |name: &str| form.get(name);
        let has = |name: &str| form.get(name) == Some("true");
        let number = |name: &str| u64::try_from(form.integer(name).unwrap_or_default()).ok();
        let done = json!({});
        Some(match name {
            "pay" => {
                let way = if has("bank_debit") {
                    PaymentWay::BankDebit
                } else {
                    PaymentWay::Card
                };
                json!({"payment_intent": self.pay(text("session")?, way)?})
            }
            "confirm" => {
                self.confirm(text("session")?, has("comes"));
                done
            }
            "refund" => json!({"refunded": self.refund(text("payment")?, form.integer("amount")?)}),
            "expire" => {
                self.expire(text("session")?);
                done
            }
            "dispute" => {
                let status = text("status").unwrap_or("needs_response");
                json!({"dispute": self.dispute(text("payment")?, form.integer("amount")?, status)?})
            }
            "close_dispute" => {
                self.close_dispute(text("dispute")?, text("status")?);
                done
            }
            "falsify" => {
                let value = serde_json::from_str(text("value")?).ok()?;
                self.falsify(text("id")?, text("member")?, value);
                done
            }
            "decline" => {
                let name = text("reason").unwrap_or("generic_decline");
                let payments = usize::try_from(number("payments")?).ok()?;
                self.decline(payments, name).then_some(done)?
            }
            "set_up" => json!({"payment_method": self.set_up(text("session")?)?}),
            "detach" => {
                self.detach(text("payment_method")?);
                done
            }
            "fault" => {
                self.add_fault(SimStripeFault {
                    path: text("path").unwrap_or_default().to_owned(),
                    times: u32::try_from(number("times")?)
                        .ok()
                        .filter(|times| *times > 0)?,
                    acts: has("acts"),
                    delay: Duration::from_millis(number("delay_ms")?),
                    status: text("status").map(str::parse).transpose().ok()?,
                    is_cut: has("cut"),
                    is_torn: has("torn"),
                });
                done
            }
            "find" => self.find(text("id")?)?,
            "money" => {
                let money = self.money().into_iter();
                let rows = money.map(|it| json!({"order": it.order, "amount": it.amount, "refunded": it.refunded, "disputed": it.disputed}));
                Value::Array(rows.collect())
            }
            "deliveries" => {
                let plan = DeliveryPlan {
                    seed: number("seed")?,
                    lost: number("lost")?,
                    doubled: number("doubled")?,
                    is_shuffled: has("shuffled"),
                };
                let secret = text("secret").unwrap_or_default();
                let time_s = form.integer("time").unwrap_or_else(now_s);
                let events = self.take_deliveries(plan).into_iter().map(|event| {
                    let signature = sign(secret, time_s, &event.body);
                    json!({"id": event.id, "type": event.kind, "body": event.body, "signature": signature})
                });
                Value::Array(events.collect())
            }
            _ => return None,
        })
    }
}
