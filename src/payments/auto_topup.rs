//! Tops balances up automatically: charges the saved method of an account whose balance is below
//! the threshold that its holder has chosen.
//!
//! | step | after a crash |
//! |---|---|
//! | an order is stored, if no other charge of the account runs and all limits hold | the poller repeats the charge while the order is young, else looks for it at the provider |
//! | the provider charges, once per order | the same |
//! | the order gets the charge's id, and is settled like any payment | the poller asks about the charge |
//!
//! A task looks at the balances in the ledger every few seconds, in the process that keeps it;
//! requests do not wait for it. This file must not post credits: `payments/settle.rs` does.

use super::checkout::{CHECKOUT_MS, FIRST_POLL_MS, new_order, order_limits, order_title};
use super::clawback::ACTOR;
use super::error::PaymentError;
use super::provider::{
    ChargeOutcome, ChargeRequest, Checkout, CheckoutState, Decline, DeclineKind, PaymentProvider,
    ProviderError, SetupRequest, SetupState,
};
use super::refund::idempotency_key;
use super::service::{CREDITS_PATH, Payments};
use crate::notify::alerts::{FiredRule, PaymentNotice};
use accounts::Actor;
use accounts::db::audit::AuditEntry;
use accounts::db::auto_topup::{
    AutoTopUpRow, AutoTopUpTerms, ChargeHistory, ChargeLimits, MethodSetup, NextCharge, PAGE_PREFIX,
};
use accounts::db::payments::{InsertOrderOutcome, OrderRow, OrderState};
use base::clock::now_ms;
use base::failpoint::{self, Point};
use config::PaymentSettings;
use config::payments::{write_money, write_money_number};
use credits::limits::Period;
use futures_util::stream::{self, StreamExt as _};
use ledger::StoreError;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Interval at which balances and pages for payment methods are looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Number of rows that one statement reads, of pages and of methods to forget in one look, and of
/// charges that run at the same time.
const ROWS_PER_PAGE: u32 = 500;
const MAX_POLLED: u32 = 20;
const MAX_CONCURRENT: usize = 8;
/// Minimum time in ms between two polls about one page.
const SETUP_POLL_MS: i64 = 5_000;
/// Age in ms at which a page for a payment method is given up. The provider closes it earlier.
const MAX_SETUP_AGE_MS: i64 = CHECKOUT_MS + HOUR_MS;
/// Time in ms between two tries to make the provider forget a method.
const REMOVAL_RETRY_MS: i64 = HOUR_MS;

/// Number of declined charges in a row that turn an automatic top-up off.
pub const MAX_TRIES: u32 = 3;
/// Times from a declined charge to the next one, in ms and in words; the last decline has none.
const RETRIES: [(i64, &str); MAX_TRIES as usize - 1] = [(HOUR_MS, "an hour"), (DAY_MS, "a day")];
const RETRY_DELAYS_MS: [i64; RETRIES.len()] = [RETRIES[0].0, RETRIES[1].0];
/// Time from a charge that the provider did not carry out to the next one.
const FAULT_DELAY_MS: i64 = HOUR_MS;
/// Age in ms of an order up to which its charge is repeated. Stripe knows a repetition for a day.
/// An older order is no longer charged, because its holder may have bought credits meanwhile.
const REPEAT_MS: i64 = 30 * MINUTE_MS;

/// An account's automatic top-up and its charges so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoTopUp {
    pub row: AutoTopUpRow,
    pub history: ChargeHistory,
}

impl AutoTopUp {
    /// Returns whether the cap for the month leaves no further charge.
    pub fn is_capped(&self) -> bool {
        let terms = &self.row.terms;
        self.row.is_on && self.history.exceeds_cap(terms.amount, terms.month_cap)
    }
}

/// A charge that is due, as an order that is not stored yet.
pub(super) struct DueCharge {
    order: OrderRow,
    /// The account's last charge when its balance was read.
    last: Option<String>,
}

pub(super) async fn run(payments: Payments) {
    let mut looks = tokio::time::interval(CHECK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if payments.settings().is_none() {
            continue;
        }
        if let Err(error) = payments.top_up_accounts(now_ms()).await {
            log::warn!("payments: cannot look at the automatic top-ups: {error}; trying again");
        }
    }
}

impl Payments {
    /// Returns the automatic top-up of an account; `None` if its holder never set one.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn auto_topup(
        &self,
        account: &str,
        now_ms: i64,
    ) -> Result<Option<AutoTopUp>, PaymentError> {
        let rows = self.accounts.database().auto_topups();
        let Some(row) = rows.find(account)? else {
            return Ok(None);
        };
        let history = rows.history(account, month_start_ms(now_ms))?;
        Ok(Some(AutoTopUp { row, history }))
    }

    /// Stores what an account holder has chosen. Without a saved method, or with `changes_method`,
    /// the result has the page on which the holder enters one; that turns the top-up on. A form
    /// that is sent twice within a minute gets one page; `form` is a text that each form has anew.
    ///
    /// # Errors
    /// Returns an error if the terms are out of bounds, if the account is not active, or if the
    /// provider or the database fails.
    pub async fn set_auto_topup(
        &self,
        by: &Actor,
        terms: AutoTopUpTerms,
        changes_method: bool,
        form: &str,
    ) -> Result<AutoTopUpRow, PaymentError> {
        let settings = self.settings().filter(|settings| settings.auto_top_up);
        let settings = settings.ok_or(PaymentError::Off)?;
        check_terms(&terms, &settings)?;
        let stored_by = by.clone();
        let saved = self.run(move |payments| {
            let after = terms_json(&terms);
            let entry = audit_entry("auto-topup.set", &stored_by, &stored_by.actor, &after);
            let rows = payments.accounts.database().auto_topups();
            let row = rows.save(&stored_by.actor, &terms, &entry)?;
            payments.drop_notice(&stored_by.actor, FiredRule::AutoTopUpStopped)?;
            payments.drop_notice(&stored_by.actor, FiredRule::AutoTopUpCapped)?;
            Ok::<_, StoreError>(row)
        });
        let row = saved
            .await?
            .ok_or(PaymentError::Limit(InsertOrderOutcome::Suspended))?;
        match row.method.is_some() && !changes_method {
            true => Ok(row),
            false => self.open_setup(row, form, &settings).await,
        }
    }

    async fn open_setup(
        &self,
        mut row: AutoTopUpRow,
        form: &str,
        settings: &Arc<PaymentSettings>,
    ) -> Result<AutoTopUpRow, PaymentError> {
        let now_ms = now_ms();
        let page = format!("{}{CREDITS_PATH}", self.settings.load().base_url);
        // The provider refuses a key that comes with another request, so both have the minute.
        let minute = now_ms.div_euclid(MINUTE_MS);
        let replaced = row.method.as_ref().map_or("", |(method, _)| method);
        let text = format!("{}:{replaced}:{minute}:{form}", row.account);
        let key = idempotency_key("setup", &text);
        let request = SetupRequest {
            key: &key,
            account: &row.account,
            replaces: row.method.as_ref().map(|(method, _)| method.as_str()),
            // A browser does not reload an address that has a fragment.
            return_url: format!("{page}?card=saved"),
            cancel_url: format!("{page}#auto"),
            expires_at: (minute * MINUTE_MS + CHECKOUT_MS) / 1_000,
        };
        let created = self.provider(settings).create_setup(&request).await?;
        let setup = MethodSetup {
            id: created.id,
            url: created.url,
            at_ms: now_ms,
        };
        let (account, stored) = (row.account.clone(), setup.clone());
        self.run(move |payments| {
            let rows = payments.accounts.database().auto_topups();
            rows.begin_setup(&account, &stored, now_ms + SETUP_POLL_MS)
        })
        .await?;
        row.setup = Some(setup);
        Ok(row)
    }

    /// Turns an account's automatic top-up off. With `removes_method`, its saved method is removed
    /// here at once, and at the provider soon. Returns false if nothing changed.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn stop_auto_topup(&self, by: &Actor, removes_method: bool) -> Result<bool, PaymentError> {
        let after = json!({"removes_card": removes_method}).to_string();
        let entry = audit_entry("auto-topup.stop", by, &by.actor, &after);
        let rows = self.accounts.database().auto_topups();
        Ok(rows.stop(&by.actor, "", removes_method, &entry)?)
    }

    /// Does what is due: asks about pages for methods, makes the provider forget methods, and
    /// charges.
    pub(super) async fn top_up_accounts(&self, now_ms: i64) -> Result<(), PaymentError> {
        let settings = self.settings().ok_or(PaymentError::Off)?;
        let has_any = self.run(move |payments| {
            let rows = payments.accounts.database().auto_topups();
            rows.has_any()
        });
        if !has_any.await? {
            return Ok(());
        }
        let provider = self.provider(&settings);
        self.forget_methods(&*provider, now_ms).await?;
        self.finish_setups(&*provider, now_ms).await?;
        if !settings.auto_top_up {
            return Ok(());
        }
        let mut after = String::new();
        loop {
            let settings = Arc::clone(&settings);
            let (last, due) = self
                .run(move |payments| payments.due_charges(&after, &settings, now_ms))
                .await?;
            let charges =
                stream::iter(due).for_each_concurrent(MAX_CONCURRENT, |charge| async move {
                    let id = charge.order.id.clone();
                    if let Err(error) = self.begin_charge(charge, now_ms).await {
                        log::warn!("payments: cannot charge the order {id} yet: {error}");
                    }
                });
            charges.await;
            match last {
                Some(last) => after = last,
                None => return Ok(()),
            }
        }
    }

    pub(super) async fn forget_methods(
        &self,
        provider: &dyn PaymentProvider,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let due = self.run(move |payments| {
            let rows = payments.accounts.database().auto_topups();
            rows.drop_deleted(now_ms)?;
            rows.take_removals(now_ms, REMOVAL_RETRY_MS, MAX_POLLED)
        });
        for method in due.await? {
            let forgotten = match method.strip_prefix(PAGE_PREFIX) {
                Some(page) => forget_page(provider, page).await,
                None => provider.forget_method(&method).await,
            };
            match forgotten {
                Ok(()) => {
                    self.run(move |payments| {
                        let rows = payments.accounts.database().auto_topups();
                        rows.finish_removal(&method)
                    })
                    .await?;
                }
                Err(error) => {
                    log::warn!(
                        "payments: cannot remove a saved payment method: {error}; trying again in an hour"
                    );
                }
            }
        }
        Ok(())
    }

    /// Asks the provider about pages for payment methods, and stores the methods.
    pub(super) async fn finish_setups(
        &self,
        provider: &dyn PaymentProvider,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let due = self.run(move |payments| {
            let rows = payments.accounts.database().auto_topups();
            rows.take_due_setups(now_ms, SETUP_POLL_MS, MAX_POLLED)
        });
        for row in due.await? {
            let Some(setup) = row.setup.clone() else {
                continue;
            };
            let method = match provider.setup(&setup.id).await {
                Ok(SetupState::Saved { method, label }) => Some((method, label)),
                Ok(SetupState::Open) if now_ms - setup.at_ms < MAX_SETUP_AGE_MS => continue,
                Ok(SetupState::Open | SetupState::Expired) => None,
                Err(error) if now_ms - setup.at_ms < MAX_SETUP_AGE_MS => {
                    log::warn!("payments: cannot ask about a page for a card: {error}");
                    continue;
                }
                Err(_) => None,
            };
            self.run(move |payments| payments.store_method(&row, method, now_ms))
                .await?;
        }
        Ok(())
    }

    pub(super) fn store_method(
        &self,
        row: &AutoTopUpRow,
        method: Option<(String, String)>,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let label = method.as_ref().map(|(_, label)| label.as_str());
        let after = json!({"card": label}).to_string();
        let by = Actor {
            actor: row.account.clone(),
            address: String::new(),
        };
        let entry = AuditEntry {
            at_ms: now_ms,
            ..audit_entry("auto-topup.card", &by, &row.account, &after)
        };
        let method = method.as_ref().map(|(method, label)| (&**method, &**label));
        let rows = self.accounts.database().auto_topups();
        if rows.finish_setup(row, method, &entry)? && method.is_some() {
            self.drop_notice(&row.account, FiredRule::AutoTopUpStopped)?;
        }
        Ok(())
    }

    /// Withdraws a notice about a top-up that its holder has set again.
    fn drop_notice(&self, account: &str, rule: FiredRule) -> Result<(), StoreError> {
        let alerts = self.accounts.database().alerts();
        alerts.rearm_alert(account, rule.as_str()).map(drop)
    }

    /// Returns the charges that are due on a page of the accounts after `after`, and the last
    /// account of the page.
    pub(super) fn due_charges(
        &self,
        after: &str,
        settings: &PaymentSettings,
        now_ms: i64,
    ) -> Result<(Option<String>, Vec<DueCharge>), PaymentError> {
        let rows = self.accounts.database().auto_topups();
        let page = rows.turned_on(after, ROWS_PER_PAGE)?;
        let mut due = Vec::new();
        for row in &page {
            match self.due_charge(row, settings, now_ms) {
                Ok(order) => due.extend(order),
                // An account that cannot be read does not affect the others.
                Err(error) => log::warn!(
                    "payments: cannot look at the automatic top-up of account {}: {error}",
                    row.account
                ),
            }
        }
        Ok((page.last().map(|row| row.account.clone()), due))
    }

    fn due_charge(
        &self,
        row: &AutoTopUpRow,
        settings: &PaymentSettings,
        now_ms: i64,
    ) -> Result<Option<DueCharge>, PaymentError> {
        let terms = &row.terms;
        let Some((method, _)) = &row.method else {
            return Ok(None);
        };
        if check_terms(terms, settings).is_err() {
            return Ok(None);
        }
        let is_low = || -> Result<bool, PaymentError> {
            let funds = self.billing.posted_funds(&row.account, now_ms)?;
            Ok(funds.is_some_and(|funds| funds.balance < terms.threshold))
        };
        if !is_low()? {
            return Ok(None);
        }
        let order = OrderRow {
            method: Some(method.clone()),
            ..new_order(&row.account, terms.amount, settings, now_ms)?
        };
        let rows = self.accounts.database().auto_topups();
        let next = rows.next_charge(&order, charge_limits(now_ms))?;
        // The balance has what the charges so far have bought only if it is read after them.
        if !is_low()? {
            return Ok(None);
        }
        match next {
            NextCharge::Due { last } => Ok(Some(DueCharge { order, last })),
            NextCharge::Later => Ok(None),
            NextCharge::OverMonthCap => {
                let text = format!(
                    "Your balance is below {} credits, and a further charge of {} would exceed your cap of {} for this month (UTC). Raise the cap, or buy credits.",
                    terms.threshold,
                    write_money(&terms.currency, terms.amount),
                    write_money(&terms.currency, terms.month_cap)
                );
                self.notify_capped(&row.account, month_start_ms(now_ms), &text, now_ms);
                Ok(None)
            }
        }
    }

    /// Sends the holder the notice that a limit stops the top-up: once in a period.
    fn notify_capped(&self, account: &str, period: i64, text: &str, now_ms: i64) {
        let notice = PaymentNotice {
            rule: FiredRule::AutoTopUpCapped,
            period,
            text,
            account: Some(account),
            order: None,
        };
        notice.send(&self.accounts, &self.settings.load(), now_ms);
    }

    /// Stores the order of a charge, and charges.
    pub(super) async fn begin_charge(
        &self,
        charge: DueCharge,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let DueCharge { order, last } = charge;
        let settings = self.settings().ok_or(PaymentError::Off)?;
        let (row, limits) = (order.clone(), order_limits(&order, &settings));
        let stored = self.run(move |payments| {
            let rows = payments.accounts.database().auto_topups();
            let next_poll_ms = row.created_at_ms + FIRST_POLL_MS;
            rows.insert_charge(
                &row,
                last.as_deref(),
                next_poll_ms,
                limits,
                charge_limits(now_ms),
            )
        });
        match stored.await? {
            InsertOrderOutcome::Done => {}
            InsertOrderOutcome::OverAmount { .. } | InsertOrderOutcome::TooMany => {
                let text = format!(
                    "Your balance is low, and an automatic top-up of {} would exceed the gateway's limit on orders: {} in 24 hours, and a number in an hour. It is charged later.",
                    write_money(&order.currency, order.amount),
                    settings.currency.write(settings.per_account_per_day)
                );
                let day = now_ms.div_euclid(DAY_MS);
                return self
                    .run(move |payments| {
                        payments.notify_capped(&order.account, day, &text, now_ms);
                        Ok::<_, StoreError>(())
                    })
                    .await;
            }
            _ => return Ok(()),
        }
        failpoint::hit(Point::OrderStored);
        self.charge(&order, now_ms).await
    }

    async fn charge(&self, order: &OrderRow, now_ms: i64) -> Result<(), PaymentError> {
        let settings = self.settings().ok_or(PaymentError::Off)?;
        let provider = self.provider(&settings);
        let title = order_title(order);
        let request = charge_request(order, &title);
        match provider.charge(&request).await {
            Ok(ChargeOutcome::Made(charge)) => {
                failpoint::hit(Point::CheckoutCreated);
                self.settle_charge(order, *charge, now_ms).await
            }
            Ok(ChargeOutcome::Declined(decline)) => {
                let order = order.clone();
                self.run(move |payments| payments.decline(&order, &decline, now_ms))
                    .await
            }
            // An earlier request for the order may have charged.
            Err(error @ ProviderError::Refused { .. }) => {
                self.find_or_end(order, &error.to_string(), now_ms).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Goes on with a charge of whose end nothing is known, because of a crash or a lost answer.
    pub(super) async fn resume_charge(
        &self,
        order: &OrderRow,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let row = order.clone();
        let may_charge = self.run(move |payments| {
            let rows = payments.accounts.database().auto_topups();
            rows.may_charge(&row.account, row.method.as_deref().unwrap_or_default())
        });
        let is_young = (0..REPEAT_MS).contains(&(now_ms - order.created_at_ms));
        match is_young && may_charge.await? {
            true => self.charge(order, now_ms).await,
            false => {
                let note = "the provider did not answer, and has no charge of the order";
                self.find_or_end(order, note, now_ms).await
            }
        }
    }

    /// Settles the charge of an order if the provider has one. Otherwise, the order ends.
    async fn find_or_end(
        &self,
        order: &OrderRow,
        note: &str,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let settings = self.settings().ok_or(PaymentError::Off)?;
        let provider = self.provider(&settings);
        let title = order_title(order);
        if let Some(charge) = provider.find_charge(&charge_request(order, &title)).await? {
            return self.settle_charge(order, charge, now_ms).await;
        }
        log::error!(
            "payments: the automatic top-up {} of account {} was not charged: {note}",
            order.id,
            order.account
        );
        let (id, note) = (order.id.clone(), note.to_owned());
        self.run(move |payments| {
            let rows = payments.accounts.database().payments();
            rows.set_order_state(&id, OrderState::Expired, &note)
        })
        .await
    }

    async fn settle_charge(
        &self,
        order: &OrderRow,
        charge: Checkout,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let settings = self.settings().ok_or(PaymentError::Off)?;
        let (order, provider) = (order.clone(), self.provider(&settings));
        self.run(move |payments| {
            let rows = payments.accounts.database().payments();
            if !rows.open_checkout(&order.id, &charge.id, "")? {
                rows.adopt_checkout(&order.id, &charge.id)?;
            }
            payments.apply_charge(&order, &charge, &*provider, now_ms)
        })
        .await
    }

    /// Applies the provider's report about a charge that has an id.
    pub(super) fn apply_charge(
        &self,
        order: &OrderRow,
        charge: &Checkout,
        provider: &dyn PaymentProvider,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        if charge.state == CheckoutState::Failed {
            let decline = Decline {
                kind: DeclineKind::Bank,
                message: "The bank has declined the charge.".to_owned(),
            };
            return self.decline(order, &decline, now_ms);
        }
        self.apply_checkout(&order.id, charge, provider, now_ms)?;
        let refused = self.rows().order(&order.id)?;
        match refused.filter(|order| order.state == OrderState::Refused) {
            Some(order) => self.stop_after_refusal(&order, now_ms),
            None => Ok(()),
        }
    }

    /// Turns the top-up of an account off whose charge took money and bought nothing: the next one
    /// would do the same.
    fn stop_after_refusal(&self, order: &OrderRow, now_ms: i64) -> Result<(), PaymentError> {
        let rows = self.accounts.database().auto_topups();
        if rows.find(&order.account)?.is_none_or(|row| !row.is_on) {
            return Ok(());
        }
        let amount = write_money(&order.currency, order.amount);
        let why =
            "The payment does not match the order. The operator of this gateway must check it.";
        let text =
            format!("A charge of {amount} was not credited, and automatic top-up is off. {why}");
        self.notify(FiredRule::AutoTopUpStopped, order, &text, now_ms);
        let after = json!({"why": why, "order": order.id}).to_string();
        let by = Actor {
            actor: ACTOR.to_owned(),
            address: String::new(),
        };
        let entry = AuditEntry {
            at_ms: now_ms,
            ..audit_entry("auto-topup.stop", &by, &order.account, &after)
        };
        rows.stop(&order.account, why, false, &entry)?;
        Ok(())
    }

    /// Records a declined charge, and sends a notice to its holder.
    fn decline(
        &self,
        order: &OrderRow,
        decline: &Decline,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let database = self.accounts.database();
        let current = database.payments().order(&order.id)?;
        if current.is_none_or(|order| !order.state.is_waiting()) {
            return Ok(());
        }
        let rows = database.auto_topups();
        let declines = rows.history(&order.account, 0)?.declines.saturating_add(1);
        let amount = write_money(&order.currency, order.amount);
        let message = &decline.message;
        let index = usize::try_from(declines).unwrap_or(usize::MAX);
        let retry = RETRIES.get(index.saturating_sub(1));
        let next = match (decline.kind, retry) {
            (DeclineKind::Authentication, _) => Err(format!(
                "Your bank wants you to confirm the payment yourself: buy the credits at {}{CREDITS_PATH}?amount={}, then turn automatic top-up on again.",
                self.settings.load().base_url,
                write_money_number(&order.currency, order.amount)
            )),
            (DeclineKind::MethodGone, _) => Err(format!("{message} Enter a card again.")),
            (DeclineKind::Bank, None) => Err(format!(
                "{declines} charges in a row were declined, the last one with the words: {message}"
            )),
            (DeclineKind::Bank, Some((_, wait))) => Ok(wait),
        };
        let (rule, text) = match &next {
            Err(why) => (
                FiredRule::AutoTopUpStopped,
                format!("A charge of {amount} failed, and automatic top-up is off. {why}"),
            ),
            Ok(wait) => (
                FiredRule::PaymentFailed,
                format!(
                    "The automatic top-up of {amount} failed: {message} The next try is in {wait}."
                ),
            ),
        };
        self.notify(rule, order, &text, now_ms);
        let why = next.err();
        let after = json!({"why": why, "order": order.id}).to_string();
        let by = Actor {
            actor: ACTOR.to_owned(),
            address: String::new(),
        };
        let entry = AuditEntry {
            at_ms: now_ms,
            ..audit_entry("auto-topup.stop", &by, &order.account, &after)
        };
        let stop = why.as_deref().map(|why| (why, &entry));
        rows.decline_charge(order, message, stop)?;
        Ok(())
    }
}

/// Closes a page that was given up, or makes the provider forget the method that was entered there.
async fn forget_page(provider: &dyn PaymentProvider, page: &str) -> Result<(), ProviderError> {
    match provider.setup(page).await? {
        SetupState::Open => provider.expire_checkout(page).await,
        SetupState::Expired => Ok(()),
        SetupState::Saved { method, .. } => provider.forget_method(&method).await,
    }
}

fn check_terms(terms: &AutoTopUpTerms, settings: &PaymentSettings) -> Result<(), PaymentError> {
    let currency = settings.currency;
    let fault = if terms.currency != currency.code() {
        format!(
            "Credits are now sold in {}: save your amounts again.",
            currency.code().to_uppercase()
        )
    } else if !(settings.min..=settings.max).contains(&terms.amount) {
        format!(
            "The amount must be from {} to {}.",
            currency.write(settings.min),
            currency.write(settings.max)
        )
    } else if terms.month_cap < terms.amount {
        "The most per month must be at least one amount.".to_owned()
    } else if !terms.threshold.is_positive() {
        "The balance must be more than 0.".to_owned()
    } else {
        return Ok(());
    };
    Err(PaymentError::Amount(fault))
}

fn terms_json(terms: &AutoTopUpTerms) -> String {
    let money = |minor| Value::from(write_money(&terms.currency, minor));
    json!({
        "below": terms.threshold,
        "amount": money(terms.amount),
        "per_month": money(terms.month_cap),
    })
    .to_string()
}

fn audit_entry<'a>(
    act: &'a str,
    by: &'a Actor,
    account: &'a str,
    after: &'a str,
) -> AuditEntry<'a> {
    AuditEntry {
        at_ms: now_ms(),
        actor: &by.actor,
        address: &by.address,
        act,
        object: account,
        before: "",
        after,
    }
}

fn charge_limits(now_ms: i64) -> ChargeLimits {
    ChargeLimits {
        month_start_ms: month_start_ms(now_ms),
        retry_delays_ms: &RETRY_DELAYS_MS,
        fault_delay_ms: FAULT_DELAY_MS,
    }
}

fn month_start_ms(now_ms: i64) -> i64 {
    Period::Month.first_day(now_ms).saturating_mul(DAY_MS)
}

/// Returns the request for the charge of an order. It is the same each time.
fn charge_request<'a>(order: &'a OrderRow, title: &'a str) -> ChargeRequest<'a> {
    ChargeRequest {
        order: &order.id,
        account: &order.account,
        amount: order.amount,
        currency: &order.currency,
        title,
        method: order.method.as_deref().unwrap_or_default(),
        created_at: order.created_at_ms / 1_000,
    }
}
