//! What account holders and operators must know of payments: a notice is a banner, a mail and a
//! webhook's message, without a rule that anybody sets.
//!
//! Must not decide what happens to a payment.

use super::engine::{Destinations, fire};
use super::rules::{AlertRules, FiredRule};
use crate::notify::mail::MailKind;
use crate::notify::webhooks::WebhookEvent;
use accounts::Accounts;
use config::Settings;
use ledger::StoreError;
use serde_json::{Value, json};

/// Who gets a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeAudience<'a> {
    Account(&'a str),
    /// All active administrators.
    Operators,
}

/// Something about payments that has happened.
#[derive(Debug, Clone, Copy)]
pub struct PaymentNotice<'a> {
    pub rule: FiredRule,
    pub audience: NoticeAudience<'a>,
    /// A notice with the same number as the last one of its rule is not sent again.
    pub period: i64,
    /// What happened, as a sentence.
    pub text: &'a str,
    /// The order, if it is about one.
    pub order: Option<&'a str>,
}

impl PaymentNotice<'_> {
    /// Shows and sends the notice. Nothing of a payment depends on it: what fails is logged.
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
        let recipients = match self.audience {
            NoticeAudience::Account(id) => rows.alert_account(id)?.into_iter().collect(),
            NoticeAudience::Operators => rows.alert_operators()?,
        };
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
