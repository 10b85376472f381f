//! Signs events like Stripe, and plans their deliveries: in order or not, twice, or never.
//!
//! This file must not send events, which the test does.

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

/// Plan for the delivery of events.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeliveryPlan {
    /// Seed that determines the order, and the events that arrive twice or never.
    pub seed: u64,
    /// Percentage of events that are lost. The next field is the percentage that arrive twice.
    pub lost: u64,
    pub doubled: u64,
    /// True if events arrive in random order.
    pub is_shuffled: bool,
}

/// An event in Stripe's format without its signature, whose time is that of the delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedEvent {
    pub id: String,
    pub kind: String,
    pub body: String,
}

impl SimStripe {
    /// Returns the events that no earlier plan contains, in the order of their deliveries.
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

/// Formats an event like Stripe, with line breaks and two spaces. A receiver must verify these
/// bytes unchanged.
fn pretty(event: &Value) -> String {
    serde_json::to_string_pretty(event).unwrap_or_default()
}

/// A xorshift generator, whose seed determines all numbers.
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
