//! Decides when a rule fires, by the balances and the spend of the accounts that have rules.
//!
//! A low-balance rule fires once, and again after a top-up or after the balance was well above the
//! amount. A spend rule fires once in each period. If the account has no destination, a rule shows
//! only a banner on the pages, and fires once more when a destination is added. Two processes never
//! send the same alert twice, because `fire_alert` decides in one transaction. This file must not
//! send messages.

use super::rules::{AlertRules, DAY_MS, LOW_BALANCE_RULE, SPEND_RULE, SpendAlert};
use crate::billing::{Billing, PostedFunds};
use crate::notify::context::NotifyContext;
use crate::notify::id::new_id;
use crate::notify::mail::{self, MailKind};
use crate::notify::webhooks::{MAX_PENDING, WebhookEvent};
use accounts::db::AppDb;
use accounts::db::alerts::{AlertAccountRow, AlertNotices, FiredAlertRow};
use accounts::db::webhooks::NewDelivery;
use arc_swap::ArcSwap;
use base::clock::now_ms;
use config::Settings;
use credits::money::Micro;
use ledger::StoreError;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the rules are checked.
const TICK_INTERVAL: Duration = Duration::from_secs(10);
const ACCOUNTS_PER_PAGE: u32 = 500;
/// Maximum number of accounts whose spend is remembered between two checks.
const MAX_REMEMBERED: usize = 100_000;
const HOURS_PER_DAY: i64 = 24;

/// Checks the rules until the runtime ends.
pub async fn run(context: NotifyContext) {
    let mut engine = AlertEngine::new(&context);
    loop {
        // Reads of the databases may wait for a lock, and this thread also sends messages.
        let checked = tokio::task::spawn_blocking(move || {
            let report = engine.tick(now_ms());
            (engine, report)
        });
        match checked.await {
            Ok((returned, report)) => {
                engine = returned;
                match report {
                    Ok(report) => report.log(),
                    Err(error) => log::warn!("alerts: {error}; trying again"),
                }
            }
            Err(error) => {
                log::error!("alerts: a check failed inside the gateway: {error}");
                engine = AlertEngine::new(&context);
            }
        }
        tokio::time::sleep(TICK_INTERVAL).await;
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct AlertTickReport {
    pub accounts: usize,
    pub fired: usize,
    /// Number of accounts that could not be checked.
    pub failed: usize,
    /// The reason for the first failed check.
    pub error: Option<String>,
}

impl AlertTickReport {
    fn log(&self) {
        if let Some(error) = &self.error {
            log::warn!(
                "alerts: cannot check the rules of {} of {} accounts: {error}",
                self.failed,
                self.accounts
            );
        }
    }
}

/// An account's spend up to a position in the ledger.
#[derive(Debug, Clone, Copy)]
struct RememberedSpend {
    seq: i64,
    from_hour: i64,
    spent: Micro,
}

/// The destinations of an account's alerts, apart from the pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Destinations {
    mail: bool,
    webhook: bool,
}

impl Destinations {
    pub(super) fn new(settings: &Settings, rules: &AlertRules, account: &AlertAccountRow) -> Self {
        Self {
            mail: rules.mail && account.is_verified && settings.mail.is_some(),
            webhook: settings.notifications.webhooks && account.has_webhook,
        }
    }

    /// Returns whether a rule that fired in this period has sent its message to all destinations.
    fn are_served(self, before: &FiredAlertRow) -> bool {
        before.is_sent || !(self.mail || self.webhook)
    }
}

pub struct AlertEngine {
    db: Arc<AppDb>,
    billing: Billing,
    settings: Arc<ArcSwap<Settings>>,
    spend: HashMap<String, RememberedSpend>,
}

impl AlertEngine {
    pub fn new(context: &NotifyContext) -> Self {
        Self {
            db: Arc::clone(context.accounts.database()),
            billing: context.billing.clone(),
            settings: Arc::clone(&context.settings),
            spend: HashMap::new(),
        }
    }

    /// Checks the rules of all active accounts. An account that cannot be checked does not affect
    /// the others.
    ///
    /// # Errors
    /// Returns an error if the accounts cannot be listed.
    pub fn tick(&mut self, now_ms: i64) -> Result<AlertTickReport, StoreError> {
        let mut report = AlertTickReport::default();
        let mut after = String::new();
        loop {
            let page = self
                .db
                .alerts()
                .accounts_with_alerts(&after, ACCOUNTS_PER_PAGE)?;
            let Some(last) = page.last().map(|account| account.id.clone()) else {
                return Ok(report);
            };
            let mut fired: HashMap<String, Vec<FiredAlertRow>> = HashMap::new();
            for (account, row) in self.db.alerts().fired_alerts_between(&after, &last)? {
                fired.entry(account).or_default().push(row);
            }
            for account in &page {
                let before = fired.remove(&account.id).unwrap_or_default();
                report.accounts += 1;
                match self.check(account, &before, now_ms) {
                    Ok(count) => report.fired += count,
                    Err(error) => {
                        report.failed += 1;
                        report.error.get_or_insert_with(|| error.to_string());
                    }
                }
            }
            after = last;
        }
    }

    /// Checks the rules of one account. Returns the number of rules that fired.
    fn check(
        &mut self,
        account: &AlertAccountRow,
        before: &[FiredAlertRow],
        now_ms: i64,
    ) -> Result<usize, StoreError> {
        let rules = AlertRules::decode(&account.alerts)?;
        let find = |rule: &str| before.iter().find(|fired| fired.rule == rule);
        let destinations = Destinations::new(&self.settings.load(), &rules, account);
        let mut fired = 0;
        if let Some(threshold) = rules.low_balance {
            let before = find(LOW_BALANCE_RULE);
            fired += usize::from(self.check_balance(
                &account.id,
                threshold,
                before,
                destinations,
                now_ms,
            )?);
        }
        if let Some(rule) = rules.spend {
            let before = find(SPEND_RULE);
            fired +=
                usize::from(self.check_spend(&account.id, rule, before, destinations, now_ms)?);
        }
        Ok(fired)
    }

    fn check_balance(
        &self,
        account: &str,
        threshold: Micro,
        before: Option<&FiredAlertRow>,
        destinations: Destinations,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        // A sign-up that is not complete yet has no row in the ledger.
        let Some(funds) = self.billing.posted_funds(account, now_ms)? else {
            return Ok(false);
        };
        let PostedFunds { balance, credited } = funds;
        if balance >= threshold {
            if before.is_some() && is_well_above(balance, threshold) {
                self.db.alerts().rearm_alert(account, LOW_BALANCE_RULE)?;
            }
            return Ok(false);
        }
        // The rule fires once for each sum of credits ever bought, which a top-up changes.
        let credited = credited.get();
        let is_done = |before: &FiredAlertRow| {
            before.period_ms >= credited && destinations.are_served(before)
        };
        if before.is_some_and(is_done) {
            return Ok(false);
        }
        let event = WebhookEvent::LowBalance { balance, threshold };
        let detail = json!({"balance": balance, "threshold": threshold});
        let mail = (MailKind::LowBalance, &detail);
        let rule = (LOW_BALANCE_RULE, credited);
        self.fire(account, rule, destinations, event, mail, now_ms)
    }

    fn check_spend(
        &mut self,
        account: &str,
        rule: SpendAlert,
        before: Option<&FiredAlertRow>,
        destinations: Destinations,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let SpendAlert { credits, period } = rule;
        let first_day = period.first_day(now_ms);
        let period_ms = first_day.saturating_mul(DAY_MS);
        let is_done = |before: &FiredAlertRow| {
            before.period_ms == period_ms && destinations.are_served(before)
        };
        if before.is_some_and(is_done) {
            return Ok(false);
        }
        let spent = self.spent_since(account, first_day.saturating_mul(HOURS_PER_DAY))?;
        if spent <= credits {
            return Ok(false);
        }
        let event = WebhookEvent::SpendLimit {
            spent,
            threshold: credits,
            period,
        };
        let detail = json!({"spent": spent, "threshold": credits, "period": period});
        let mail = (MailKind::Spend, &detail);
        let rule = (SPEND_RULE, period_ms);
        self.fire(account, rule, destinations, event, mail, now_ms)
    }

    /// Adds up an account's debits, unless no debit was added since the last check.
    fn spent_since(&mut self, account: &str, from_hour: i64) -> Result<Micro, StoreError> {
        let seq = self.billing.ledger().pages().last_ending_seq(account)?;
        if let Some(known) = self.spend.get(account)
            && known.seq == seq
            && known.from_hour == from_hour
        {
            return Ok(known.spent);
        }
        let spent = self
            .billing
            .ledger()
            .pages()
            .hourly_spend(account, from_hour)?
            .iter()
            .fold(Micro::ZERO, |sum, hour| sum.plus(hour.sum.credits));
        if self.spend.len() >= MAX_REMEMBERED {
            self.spend.clear();
        }
        let known = RememberedSpend {
            seq,
            from_hour,
            spent,
        };
        self.spend.insert(account.to_owned(), known);
        Ok(spent)
    }

    fn fire(
        &self,
        account: &str,
        rule: (&str, i64),
        destinations: Destinations,
        event: WebhookEvent<'_>,
        mail: (MailKind, &Value),
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let settings = self.settings.load();
        fire(
            &self.db,
            &settings,
            account,
            rule,
            destinations,
            event,
            mail,
            now_ms,
        )
    }
}

/// Fires a rule in its period, with what it sends. Returns false if another process was faster.
#[allow(clippy::too_many_arguments, reason = "each is a part of one message")]
pub(super) fn fire(
    db: &AppDb,
    settings: &Settings,
    account: &str,
    (rule, period_ms): (&str, i64),
    destinations: Destinations,
    event: WebhookEvent<'_>,
    (kind, detail): (MailKind, &Value),
    now_ms: i64,
) -> Result<bool, StoreError> {
    let mail = match destinations.mail {
        true => Some(mail::new_row(account, kind, detail, now_ms)?),
        false => None,
    };
    let (id, body) = (
        new_id("msg_", now_ms)?,
        event.body(account, &settings.base_url, now_ms),
    );
    let delivery = NewDelivery {
        id: &id,
        account,
        event: event.name(),
        body: &body,
        created_at_ms: now_ms,
    };
    let notices = AlertNotices {
        mail: mail.as_ref().map(|mail| (mail, mail::QUEUE_LIMITS)),
        delivery: destinations.webhook.then_some((&delivery, MAX_PENDING)),
    };
    let period = (period_ms, now_ms);
    db.alerts().fire_alert(account, rule, period, notices)
}

/// Returns whether a balance is at least a tenth above the amount, so that a balance that
/// fluctuates around the amount does not fire repeatedly.
fn is_well_above(balance: Micro, threshold: Micro) -> bool {
    balance.get().saturating_mul(10) >= threshold.get().saturating_mul(11)
}
