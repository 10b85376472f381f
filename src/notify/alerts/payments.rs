//! Notices about payments. A notice is an alert without a rule that the account holder sets: a
//! banner, a mail and a message to the webhook.
//!
//! This file must not decide what happens to a payment.

use super::engine::{Destinations, fire};
use super::rules::{AlertRules, FiredRule};
use crate::notify::mail::MailKind;
use crate::notify::webhooks::WebhookEvent;
use accounts::Accounts;
use accounts::db::payments::OrderRow;
use config::Settings;
use ledger::StoreError;
use serde_json::{Value, json};

/// A payment that failed, was refused or disputed, or a difference that a reconciliation found.
#[derive(Debug, Clone, Copy)]
pub struct PaymentNotice<'a> {
    pub rule: FiredRule,
    /// Number of the event: a notice with the number of its rule's last one is not sent again.
    pub period: i64,
    /// Sentence that says what happened.
    pub text: &'a str,
    /// The order that the notice is about; `None` for a reconciliation. Its account gets the
    /// notice, unless all active administrators get it because of the rule.
    pub order: Option<&'a OrderRow>,
}

impl PaymentNotice<'_> {
    /// Shows and sends the notice. A failure is logged, because no payment depends on the notice.
    pub fn send(&self, accounts: &Accounts, settings: &Settings, now_ms: i64) {
        if let Err(error) = self.try_send(accounts, settings, now_ms) {
            log::error!("alerts: cannot send a notice, \"{}\": {error}", self.text);
        }
    }

    fn try_send(
        &self,
        accounts: &Accounts,
        settings: &Settings,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let rows = accounts.database().alerts();
        let recipients = match self.order {
            _ if self.rule.is_of_operators() => rows.alert_operators()?,
            Some(order) => rows.alert_account(&order.account)?.into_iter().collect(),
            None => Vec::new(),
        };
        let page = self.rule.page();
        let detail = json!({
            "subject": self.rule.subject(),
            "text": self.text,
            "page": format!("{}{page}", settings.base_url),
        });
        let data: Value =
            json!({"text": self.text, "payment_id": self.order.map(|order| &order.id)});
        let rules = AlertRules {
            mail: true,
            ..AlertRules::default()
        };
        for recipient in recipients {
            let event = WebhookEvent::Payment {
                name: self.rule.event(),
                data: &data,
            };
            fire(
                accounts.database(),
                settings,
                &recipient.id,
                (self.rule.as_str(), self.period),
                Destinations::new(settings, &rules, &recipient),
                event,
                (MailKind::Payment, &detail),
                now_ms,
            )?;
        }
        Ok(())
    }
}
