//! Signs events as Stripe does, and plans their deliveries: in order or not, twice, or never.
//!
//! Must not send anything: the test does.

use super::account::SimStripe;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;

/// Returns the header `Stripe-Signature` of a body: `t=SECONDS,v1=HEX`.
pub fn sign(secret: &str, time_s: i64, body: &str) -> String {
    let mut code = String::new();
    if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) {
        mac.update(format!("{time_s}.{body}").as_bytes());
        code = crate::stats::hex(&mac.finalize().into_bytes());
    }
    format!("t={time_s},v1={code}")
}

/// How events are delivered.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeliveryPlan {
    /// Decides the order, and which events come twice or never.
    pub seed: u64,
    /// Percentages of events.
    pub lost: u64,
    pub doubled: u64,
    /// Whether they come in any order.
    pub is_shuffled: bool,
}

/// An event as Stripe sends it, without a signature: the time of that is the delivery's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedEvent {
    pub id: String,
    pub kind: String,
    pub body: String,
}

impl SimStripe {
    /// Takes the events that were not taken before, as they are to be delivered.
    pub fn take_deliveries(&self, plan: DeliveryPlan) -> Vec<SignedEvent> {
        let mut state = self.lock();
        let ids = std::mem::take(&mut state.undelivered);
        let mut random = SimRandom(plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut taken = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(event) = state.get(&id) else {
                continue;
            };
            if random.percent() < plan.lost {
                continue;
            }
            let signed = SignedEvent {
                id,
                kind: text(&event["type"]),
                body: pretty(event),
            };
            if random.percent() < plan.doubled {
                taken.push(signed.clone());
            }
            taken.push(signed);
        }
        if plan.is_shuffled {
            for last in (1..taken.len()).rev() {
                taken.swap(last, random.below(last + 1));
            }
        }
        taken
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Stripe sends events with line breaks and two spaces: a receiver must not write them anew.
fn pretty(event: &Value) -> String {
    serde_json::to_string_pretty(event).unwrap_or_default()
}

/// xorshift: a seed decides all numbers.
struct SimRandom(u64);

impl SimRandom {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }

    fn percent(&mut self) -> u64 {
        self.next() % 100
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % bound).unwrap_or_default()
    }
}
