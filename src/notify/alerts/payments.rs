//! Notices about payments. A notice is an alert without a rule that the account holder sets: a
//! banner, a mail and a message to the webhook.
//!
//! This file must not decide what happens to a payment.

use super::engine::{Destinations, fire};
use super::rules::{AlertRules, FiredRule};
use crate::notify::mail::MailKind;
use crate::notify::webhooks::WebhookEvent;
use accounts::Accounts;
use accounts::db::alerts::AlertAccountRow;
use config::Settings;
use ledger::StoreError;
use serde_json::{Value, json};

/// A payment that failed, was refused or disputed, a difference that a reconciliation found, or an
/// automatic top-up that charges no more.
#[derive(Debug, Clone, Copy)]
pub struct PaymentNotice<'a> {
    pub rule: FiredRule,
    /// Number of the event: a notice with the number of its rule's last one is not sent again.
    pub period: i64,
    /// Sentence that says what happened.
    pub text: &'a str,
    /// The account that gets the notice, unless all active administrators get it because of the
    /// rule.
    pub account: Option<&'a str>,
    /// Id of the order that the notice is about, if it is about one.
    pub order: Option<&'a str>,
}

impl PaymentNotice<'_> {
    /// Shows and sends the notice to each recipient. A failure is logged, because neither a payment
    /// nor another recipient depends on it.
    pub fn send(&self, accounts: &Accounts, settings: &Settings, now_ms: i64) {
        let failed = |error| {
            log::error!("alerts: cannot send a notice, \"{}\": {error}", self.text);
        };
        match self.recipients(accounts) {
            Ok(recipients) => {
                for recipient in &recipients {
                    let sent = self.send_to(recipient, accounts, settings, now_ms);
                    sent.unwrap_or_else(failed);
                }
            }
            Err(error) => failed(error),
        }
    }

    fn recipients(&self, accounts: &Accounts) -> Result<Vec<AlertAccountRow>, StoreError> {
        let rows = accounts.database().alerts();
        match self.account {
            _ if self.rule.is_of_operators() => rows.alert_operators(),
            Some(account) => Ok(rows.alert_account(account)?.into_iter().collect()),
            None => Ok(Vec::new()),
        }
    }

    fn send_to(
        &self,
        recipient: &AlertAccountRow,
        accounts: &Accounts,
        settings: &Settings,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let page = self.rule.page();
        let detail = json!({
            "subject": self.rule.subject(),
            "text": self.text,
            "page": format!("{}{page}", settings.base_url),
        });
        let data: Value = json!({"text": self.text, "payment_id": self.order});
        let rules = AlertRules {
            mail: true,
            ..AlertRules::default()
        };
        let event = WebhookEvent::Payment {
            name: self.rule.event(),
            data: &data,
        };
        fire(
            accounts.database(),
            settings,
            &recipient.id,
            (self.rule.as_str(), self.period),
            Destinations::new(settings, &rules, recipient),
            event,
            (MailKind::Payment, &detail),
            now_ms,
        )
        .map(drop)
    }
}
