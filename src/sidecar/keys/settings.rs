//! Handles a key's settings in forms: the options offered, the values typed, and descriptions of
//! the settings and rate limits in force.
//!
//! This file must not decide the effect of a setting.

use super::super::display::{format_time, group_digits};
use super::super::error::PageError;
use super::super::form::FormFault;
use super::super::session::SignedForm;
use super::super::state::SidecarState;
use accounts::{KeySettings, RateSettings};
use config::{MAX_RATE, Rates};
use credits::limits::{Period, SpendLimit};
use credits::money::Micro;

/// Prefix of a model id in the name of its checkbox.
const MODEL_FIELD_PREFIX: &str = "model:";

/// Form value that leaves the expiry unchanged.
const KEEP_EXPIRY: &str = "keep";

const DAY_MS: i64 = 86_400_000;

/// Options for the time until a key expires: the value is in days.
const EXPIRIES: [(&str, &str); 6] = [
    ("", "never"),
    ("1", "after 1 day"),
    ("7", "after 7 days"),
    ("30", "after 30 days"),
    ("90", "after 90 days"),
    ("365", "after 365 days"),
];

/// The limited quantities, in the order of [`RateSettings::NAMES`].
const RATE_LABELS: [&str; 3] = [
    "Requests per minute",
    "Tokens per minute",
    "Concurrent requests",
];

fn default_rates(rates: &Rates) -> [u64; 3] {
    [
        rates.requests_per_minute,
        rates.tokens_per_minute,
        rates.concurrent,
    ]
}

#[derive(Default)]
pub struct KeySettingsForm {
    expires_days: String,
    /// Current expiry, if there is one. The form then offers to keep it.
    expires_at_ms: Option<i64>,
    credits: String,
    period: String,
    models: Vec<String>,
    rates: [String; 3],
}

impl KeySettingsForm {
    pub fn from_form(form: &SignedForm) -> Self {
        Self {
            expires_days: form.field("expires_days").to_owned(),
            expires_at_ms: None,
            credits: form.field("spend_credits").trim().to_owned(),
            period: form.field("spend_period").to_owned(),
            models: typed_models(form),
            rates: RateSettings::NAMES.map(|name| form.field(name).trim().to_owned()),
        }
    }

    pub fn from_settings(settings: &KeySettings) -> Self {
        let limit = settings.spend_limit;
        Self {
            expires_days: settings
                .expires_at_ms
                .map_or("", |_| KEEP_EXPIRY)
                .to_owned(),
            expires_at_ms: settings.expires_at_ms,
            credits: limit.map_or_else(String::new, |limit| limit.credits.to_string()),
            period: limit.map_or("", |limit| limit.period.name()).to_owned(),
            models: settings.allowed_models.clone(),
            rates: (settings.rates.rates())
                .map(|rate| rate.map_or_else(String::new, |rate| rate.to_string())),
        }
    }

    pub fn keeps_expiry(&self) -> bool {
        self.expires_days == KEEP_EXPIRY
    }

    /// Parses the form. The models `bound_to` the current key are valid even if they are no longer
    /// in the catalog.
    ///
    /// # Errors
    /// Returns the fault as a text for the user.
    pub fn parse(
        &self,
        app: &SidecarState,
        bound_to: &[String],
        now_ms: i64,
    ) -> Result<KeySettings, FormFault> {
        let expires_at_ms = match self.expires_days.as_str() {
            "" | KEEP_EXPIRY => None,
            days => {
                let is_offered = EXPIRIES.iter().any(|(offered, _)| *offered == days);
                let days = days
                    .parse::<i64>()
                    .ok()
                    .filter(|_| is_offered)
                    .ok_or_else(|| FormFault::at("expires_days", "Choose when the key expires."))?;
                Some(now_ms.saturating_add(days.saturating_mul(DAY_MS)))
            }
        };
        let spend_limit = parse_spend_limit("spend limit", &self.credits, &self.period)
            .map_err(|fault| FormFault::at("spend_credits", fault))?;
        check_models(app, &self.models, bound_to)?;
        let allowed_models = self.models.clone();
        let rates = self.parse_rates()?;
        Ok(KeySettings {
            expires_at_ms,
            spend_limit,
            allowed_models,
            rates,
            scope: None,
            playground_session: None,
        })
    }

    fn parse_rates(&self) -> Result<RateSettings, FormFault> {
        let mut rates = [None; 3];
        let named = RateSettings::NAMES.into_iter().zip(RATE_LABELS);
        for ((rate, typed), (name, what)) in rates.iter_mut().zip(&self.rates).zip(named) {
            if typed.is_empty() {
                continue;
            }
            let number = typed.parse().ok().filter(|number| *number <= MAX_RATE);
            *rate = Some(number.ok_or_else(|| {
                let max = group_digits(MAX_RATE);
                let fault = format!("{what}: enter a whole number from 0 (no limit) to {max}.");
                FormFault::at(name, fault)
            })?);
        }
        Ok(RateSettings::from_rates(rates))
    }
}

pub struct SelectOption {
    pub value: String,
    pub text: String,
    pub chosen: bool,
}

impl SelectOption {
    fn new(value: &str, text: String, chosen: bool) -> Self {
        let value = value.to_owned();
        Self {
            value,
            text,
            chosen,
        }
    }
}

/// Returns the boxes of the allowed models, of a key or a member. The `chosen` ones are checked.
pub fn model_options(app: &SidecarState, chosen: &[String]) -> Vec<SelectOption> {
    let settings = app.settings.load();
    let (catalog, is_chosen) = (&settings.catalog, |id: &String| chosen.contains(id));
    let offered = catalog.models().iter();
    let offered = offered.map(|one| SelectOption::new(&one.id, one.id.clone(), is_chosen(&one.id)));
    // Models that are no longer in the catalog keep their boxes. Otherwise, the form would not send
    // them, and a list of such models alone would become one that allows all.
    let unoffered = chosen.iter().filter(|id| catalog.by_id(id).is_none());
    let unoffered =
        unoffered.map(|id| SelectOption::new(id, format!("{id} (no longer offered)"), true));
    offered.chain(unoffered).collect()
}

/// Returns the allowed models that are checked in a form.
pub fn typed_models(form: &SignedForm) -> Vec<String> {
    form.checked_boxes(MODEL_FIELD_PREFIX)
}

/// Checks allowed models. Those `bound_to` which the key or the member is already are valid even if
/// they are no longer in the catalog.
///
/// # Errors
/// Returns the fault as a text for the user.
pub fn check_models(
    app: &SidecarState,
    models: &[String],
    bound_to: &[String],
) -> Result<(), String> {
    let settings = app.settings.load();
    let is_known =
        |model: &String| settings.catalog.by_id(model).is_some() || bound_to.contains(model);
    match models.iter().find(|model| !is_known(model)) {
        Some(unknown) => Err(format!("The model {unknown:?} does not exist.")),
        None => Ok(()),
    }
}

pub struct RateField {
    pub name: &'static str,
    pub label: &'static str,
    pub value: String,
    /// The rate limit that applies if the field is empty.
    pub default: String,
}

/// Options of the form, with the values typed.
pub struct KeyFormOptions {
    pub expiries: Vec<SelectOption>,
    pub credits: String,
    pub periods: Vec<SelectOption>,
    pub models: Vec<SelectOption>,
    pub rates: Vec<RateField>,
    /// True if a setting is in force, so that the form section is initially open.
    pub is_set: bool,
}

impl KeyFormOptions {
    pub fn new(app: &SidecarState, typed: &KeySettingsForm) -> Self {
        let choice = SelectOption::new;
        let kept = typed
            .expires_at_ms
            .map(|at_ms| choice(KEEP_EXPIRY, format_time(at_ms), typed.keeps_expiry()));
        let offered = EXPIRIES
            .iter()
            .map(|(days, text)| choice(days, (*text).to_owned(), *days == typed.expires_days));
        let period = |period: Period| {
            let text = if period == Period::Total {
                "in total".to_owned()
            } else {
                format!("per {}", period.name())
            };
            choice(period.name(), text, period.name() == typed.period)
        };
        let settings = app.settings.load();
        let defaults = default_rates(&settings.rate_limits.key);
        let named = RateSettings::NAMES.into_iter().zip(RATE_LABELS);
        let rates = named.zip(&typed.rates).zip(defaults);
        Self {
            rates: rates
                .map(|(((name, label), value), default)| RateField {
                    name,
                    label,
                    value: value.clone(),
                    default: describe_rate(default),
                })
                .collect(),
            expiries: kept.into_iter().chain(offered).collect(),
            credits: typed.credits.clone(),
            periods: Period::ALL.into_iter().map(period).collect(),
            models: model_options(app, &typed.models),
            is_set: !typed.expires_days.is_empty()
                || !typed.credits.is_empty()
                || !typed.models.is_empty()
                || typed.rates.iter().any(|rate| !rate.is_empty()),
        }
    }
}

/// A rate limit, as it applies to one key and to all keys of its account together.
pub struct RateInForce {
    pub what: &'static str,
    pub key: String,
    pub account: String,
}

fn describe_rate(limit: u64) -> String {
    match limit {
        0 => "no limit".to_owned(),
        limit => group_digits(limit),
    }
}

/// Returns the rate limits of a key, each with its origin.
///
/// # Errors
/// Returns an error if the limits of the account cannot be read.
pub fn rates_in_force(
    app: &SidecarState,
    account: &str,
    key: &RateSettings,
) -> Result<Vec<RateInForce>, PageError> {
    let account = app.accounts.account_rates(account)?.rates();
    let (key, settings) = (key.rates(), app.settings.load());
    let key_defaults = default_rates(&settings.rate_limits.key);
    let account_defaults = default_rates(&settings.rate_limits.account);
    let describe = |own: Option<u64>, default: u64, setter: &str| match own {
        Some(own) => format!("{}, set {setter}", describe_rate(own)),
        None => format!("{}, the gateway's default", describe_rate(default)),
    };
    let rows = RATE_LABELS.into_iter().enumerate();
    Ok(rows
        .map(|(index, what)| RateInForce {
            what,
            key: describe(key[index], key_defaults[index], "for this key"),
            account: describe(account[index], account_defaults[index], "by the operator"),
        })
        .collect())
}

/// Parses a spend limit as typed; `None` if no credits are. `what` is the limit's name in faults.
///
/// # Errors
/// Returns the fault as a text for the user.
pub fn parse_spend_limit(
    what: &str,
    credits: &str,
    period: &str,
) -> Result<Option<SpendLimit>, String> {
    if credits.is_empty() {
        return Ok(None);
    }
    let mut periods = Period::ALL.into_iter();
    let period = periods.find(|known| known.name() == period);
    let period = period.ok_or_else(|| format!("Choose the period of the {what}."))?;
    let credits: Micro = credits
        .parse()
        .map_err(|error| format!("The {what}: {error}."))?;
    if credits < Micro::ZERO {
        return Err(format!("A {what} must not be below 0."));
    }
    Ok(Some(SpendLimit { credits, period }))
}

/// Describes what was spent of a spend limit in its period.
pub fn describe_spend_limit(limit: SpendLimit, spent: Micro) -> String {
    let SpendLimit { credits, period } = limit;
    let per = match period {
        Period::Total => "in total".to_owned(),
        _ => format!("this {}", period.name()),
    };
    format!("{spent} of {credits} credits {per}")
}

/// Describes the settings of a key, including its spend in the period of its limit.
pub fn describe_settings(settings: &KeySettings, spent: Option<Micro>) -> Vec<String> {
    let expires = settings
        .expires_at_ms
        .map(|at_ms| format!("until {}", format_time(at_ms)));
    let limit = settings.spend_limit;
    let limit = limit.map(|limit| describe_spend_limit(limit, spent.unwrap_or(Micro::ZERO)));
    let models = (!settings.allowed_models.is_empty()).then(|| settings.allowed_models.join(", "));
    let [requests, tokens, concurrent] = settings.rates.rates();
    let rate = |rate: Option<u64>, what: &str| rate.map(|rate| format!("{rate} {what}"));
    [
        expires,
        limit,
        models,
        rate(requests, "requests per minute"),
        rate(tokens, "tokens per minute"),
        rate(concurrent, "concurrent requests"),
        settings.scope.map(|scope| format!("{} only", scope.name())),
    ]
    .into_iter()
    .flatten()
    .collect()
}
