//! Writes the content of a message, which is an event of an account as JSON.
//!
//! The body is written once, so every attempt sends the same bytes. This file must not hold a
//! secret.

use base::clock::rfc3339;
use credits::limits::Period;
use credits::money::Micro;
use serde::Serialize;
use serde_json::{Value, json};

/// An event that an account's webhook receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookEvent<'a> {
    LowBalance {
        balance: Micro,
        threshold: Micro,
    },
    SpendLimit {
        spent: Micro,
        threshold: Micro,
        period: Period,
    },
    /// A notice of a payment: its `type`, and its members of `data`.
    Payment {
        name: &'static str,
        data: &'a Value,
    },
    Test,
}

/// The body, with the members in the order of Standard Webhooks.
#[derive(Serialize)]
struct WebhookBody {
    #[serde(rename = "type")]
    event: &'static str,
    timestamp: String,
    data: Value,
}

impl WebhookEvent<'_> {
    pub fn name(&self) -> &'static str {
        match self {
            Self::LowBalance { .. } => "credits.low_balance",
            Self::SpendLimit { .. } => "credits.spend_limit",
            Self::Payment { name, .. } => name,
            Self::Test => "webhook.test",
        }
    }

    /// Returns the body of the message. `base_url` is the gateway's address.
    pub fn body(&self, account: &str, base_url: &str, now_ms: i64) -> String {
        let mut data = json!({
            "account_id": account,
            "dashboard": format!("{base_url}/dashboard"),
        });
        match self {
            Self::LowBalance { balance, threshold } => {
                data["balance"] = json!(balance);
                data["threshold"] = json!(threshold);
            }
            Self::SpendLimit {
                spent,
                threshold,
                period,
            } => {
                data["spent"] = json!(spent);
                data["threshold"] = json!(threshold);
                data["period"] = json!(period);
            }
            Self::Payment { data: members, .. } => {
                for (name, value) in members.as_object().into_iter().flatten() {
                    data[name] = value.clone();
                }
            }
            Self::Test => {}
        }
        let body = WebhookBody {
            event: self.name(),
            timestamp: rfc3339(now_ms),
            data,
        };
        // The body has only texts and numbers, so serialization cannot fail.
        serde_json::to_string(&body).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_happened_to_whom_and_when() {
        let amount = |text: &str| text.parse::<Micro>().unwrap();
        let low = WebhookEvent::LowBalance {
            balance: amount("9.5"),
            threshold: amount("10"),
        };
        let body = low.body("acct_1", "https://gw.example", 1_795_262_400_123);
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            body,
            json!({
                "type": "credits.low_balance",
                "timestamp": "2026-11-21T12:00:00.123Z",
                "data": {
                    "account_id": "acct_1",
                    "balance": "9.5",
                    "threshold": "10",
                    "dashboard": "https://gw.example/dashboard",
                },
            })
        );
        let spend = WebhookEvent::SpendLimit {
            spent: amount("51"),
            threshold: amount("50"),
            period: Period::Week,
        };
        let body = spend.body("acct_1", "https://gw.example", 0);
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["data"]["period"], "week");
        assert_eq!(body["data"]["spent"], "51");
        let body = WebhookEvent::Test.body("acct_1", "https://gw.example", 0);
        assert!(body.contains("\"webhook.test\""));
    }
}
