//! Selects the banners above every page of an account holder. They name conditions that keep
//! requests from being answered, and alerts that have fired.
//!
//! A banner disappears when its condition ends or its reader dismisses it. This file must not
//! decide whether a request is refused, or whether a rule fires.

use super::display::{BalanceAmount, format_time};
use super::state::SidecarState;
use crate::notify::alerts::{AlertRules, FiredAlert, FiredRule};
use crate::notify::webhooks::Webhooks;
use crate::payments::AccountClawback;
use crate::refused_requests::{RefusedFilter, or_left_out};
use accounts::{Account, AccountStatus, ApiKeyStatus};
use credits::money::Micro;
use ledger::StoreError;

/// Error codes of requests that the account's credits did not cover.
const CREDIT_CODES: [&str; 2] = ["insufficient_credits", "trial_expired"];
/// Age in ms up to which pages mention a refusal: one day.
const MAX_REFUSAL_AGE_MS: i64 = 86_400_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Banner {
    /// Name of the banner, for tests and styles.
    pub id: &'static str,
    /// True if requests are refused until the account holder acts.
    pub is_bad: bool,
    pub text: String,
    /// Address and text of a link to more information.
    pub link: (String, &'static str),
    /// True if the page names the support contact.
    pub names_support: bool,
    /// True if operator pages show it too.
    pub is_of_operators: bool,
    /// Name of the alert rule that the reader can dismiss.
    pub dismisses: Option<&'static str>,
}

impl Banner {
    fn new(id: &'static str, text: String, link: (&str, &'static str)) -> Self {
        Self {
            id,
            is_bad: false,
            text,
            link: (link.0.to_owned(), link.1),
            names_support: false,
            is_of_operators: false,
            dismisses: None,
        }
    }
}

/// Returns the banners for an account. A suspended account has another one too, in the page's
/// frame.
pub fn load(app: &SidecarState, account: &Account, now_ms: i64) -> Result<Vec<Banner>, StoreError> {
    let clawback = app.payments.account_clawback(&account.id)?;
    let mut banners: Vec<_> = clawback_banner(clawback, account.status)
        .into_iter()
        .collect();
    if account.status == AccountStatus::Suspended {
        return Ok(banners);
    }
    banners.extend(credit_banner(app, &account.id, now_ms)?);
    let rules = AlertRules::load(&app.accounts, &account.id)?;
    banners.extend(alert_banners(app, &account.id, &rules, now_ms)?);
    if !rules.is_empty() {
        banners.extend(webhook_banner(app, &account.id)?);
    }
    Ok(banners)
}

/// Returns the banner for an account whose requests are refused because of payments that were taken
/// back.
fn clawback_banner(clawback: AccountClawback, status: AccountStatus) -> Option<Banner> {
    let text = match status {
        AccountStatus::Suspended if clawback.written_off.is_positive() => format!(
            "Payments of yours were taken back after {} of their credits were spent. Settle that with the operator of this gateway, who can resume the account.",
            BalanceAmount(clawback.written_off).text()
        ),
        AccountStatus::Active if clawback.is_held => {
            "A payment of yours was taken back while running requests hold its credits. Until they have ended, the gateway refuses new requests with status 403; then it takes them again by itself. You need not do anything."
                .to_owned()
        }
        _ => return None,
    };
    Some(Banner {
        is_bad: true,
        ..Banner::new(
            "taken-back",
            text,
            ("/dashboard/statement", "Your statement"),
        )
    })
}

/// Returns the banner for an account whose credits are too low for all or most requests.
fn credit_banner(
    app: &SidecarState,
    account: &str,
    now_ms: i64,
) -> Result<Option<Banner>, StoreError> {
    if app.accounts.one_time_links().has_waiting_trial(account)? {
        return Ok(None);
    }
    let balance = app.billing.balance(account, now_ms)?;
    let settings = app.settings.load();
    let reserve = app.billing.pages().usual_reserve(account, &settings)?;
    // Reservations of running requests are partly released later, so credits may still suffice.
    if balance.balance >= reserve.credits && balance.balance.is_positive() {
        return refusal_banner(app, account, now_ms);
    }
    let text = match &balance.trial {
        _ if balance.balance.is_positive() => format!(
            "You have {} credits left, and {} reserves about {}: the gateway refuses requests that you cannot pay, with status 402.",
            BalanceAmount(balance.balance).text(),
            if reserve.is_of_account {
                "a request like your latest ones"
            } else {
                "a short request to the cheapest model"
            },
            BalanceAmount(reserve.credits).text(),
        ),
        Some(trial) if !trial.active => {
            "Your trial has ended and you have no credits left. The gateway refuses requests with status 402.".to_owned()
        }
        None if !has_ever_used(app, account, now_ms)? => return Ok(None),
        _ => "You have no credits left. The gateway refuses requests with status 402.".to_owned(),
    };
    Ok(Some(Banner {
        is_bad: true,
        names_support: true,
        ..Banner::new("no-credit", text, ("/docs/errors", "What status 402 means"))
    }))
}

/// Returns the banner for a request that was refused for lack of credits. The banner disappears
/// after one day, or as soon as another request was answered or credits were added.
fn refusal_banner(
    app: &SidecarState,
    account: &str,
    now_ms: i64,
) -> Result<Option<Banner>, StoreError> {
    let Some(refused) = &app.refused else {
        return Ok(None);
    };
    let filter = RefusedFilter {
        status: Some(402),
        from_ms: Some(now_ms - MAX_REFUSAL_AGE_MS),
        ..RefusedFilter::default()
    };
    let latest = or_left_out(refused.list(account, &filter, None, 1));
    let Some((_, latest)) = latest.first() else {
        return Ok(None);
    };
    let entries = app.billing.receipts().entries(account, None, 1)?;
    let has_changed = entries
        .first()
        .is_some_and(|entry| entry.at_ms >= latest.at_ms);
    if has_changed || !CREDIT_CODES.contains(&&*latest.code) {
        return Ok(None);
    }
    let text = format!(
        "A request of yours was refused with status 402 at {}: {}",
        format_time(latest.at_ms),
        latest.message
    );
    let path = format!("/dashboard/activity/{}", latest.request_id);
    Ok(Some(Banner {
        is_bad: true,
        names_support: true,
        ..Banner::new("refused-for-credit", text, (&path, "The request"))
    }))
}

/// Returns whether an account without a trial has ever had credits or a key. An administrator may
/// have neither, and then needs no banner.
fn has_ever_used(app: &SidecarState, account: &str, now_ms: i64) -> Result<bool, StoreError> {
    let funds = app.billing.posted_funds(account, now_ms)?;
    if funds.is_some_and(|funds| funds.credited > Micro::ZERO) {
        return Ok(true);
    }
    let keys = app.accounts.api_keys().keys(account)?;
    let works =
        |key: &accounts::ApiKey| key.status == ApiKeyStatus::Active && !key.is_of_playground();
    Ok(keys.iter().any(works))
}

/// Returns banners for alerts that have fired, as long as their condition holds and nobody has
/// dismissed them.
fn alert_banners(
    app: &SidecarState,
    account: &str,
    rules: &AlertRules,
    now_ms: i64,
) -> Result<Vec<Banner>, StoreError> {
    let mut banners = Vec::new();
    for fired in FiredAlert::load_all(&app.accounts, account)? {
        if fired.is_seen {
            continue;
        }
        let text = match fired.rule {
            FiredRule::LowBalance => {
                let balance = app.billing.balance(account, now_ms)?.balance;
                let threshold = rules.low_balance.filter(|threshold| balance < *threshold);
                threshold.map(|threshold| {
                    format!(
                        "Alert: your balance, {} credits, is below {threshold}.",
                        balance
                    )
                })
            }
            FiredRule::Spend => rules
                .spend
                .filter(|rule| fired.is_of_period(rule.period, now_ms))
                .map(|rule| {
                    format!(
                        "Alert: you have spent more than {} credits this {} (UTC).",
                        rule.credits,
                        rule.period.name()
                    )
                }),
            notice => Some(format!("Alert: {}.", notice.subject())),
        };
        if let Some(text) = text {
            let page = fired.rule.page();
            let link = if page == "/dashboard/alerts" {
                "Your alerts"
            } else {
                "Payments"
            };
            banners.push(Banner {
                dismisses: Some(fired.rule.as_str()),
                is_of_operators: fired.rule.is_of_operators(),
                ..Banner::new("alert", text, (page, link))
            });
        }
    }
    Ok(banners)
}

/// Returns the banner for a webhook that does not receive its alerts.
fn webhook_banner(app: &SidecarState, account: &str) -> Result<Option<Banner>, StoreError> {
    let is_offered = app.settings.load().notifications.webhooks;
    let disabled = Webhooks::new(&app.accounts)
        .find(account)?
        .and_then(|webhook| webhook.disabled)
        .filter(|_| is_offered);
    Ok(disabled.map(|(_, because)| {
        let text = format!("Your webhook is disabled and gets no alerts: {because}.");
        Banner::new(
            "webhook-disabled",
            text,
            ("/dashboard/alerts#webhook", "Enable it"),
        )
    }))
}
