//! A key's settings in forms: the options offered, the values typed, and a description of the
//! settings in force.
//!
//! Must not decide what a setting does.

use super::super::display::format_time;
use super::super::session::SignedForm;
use super::super::state::SidecarState;
use crate::account::KeySettings;
use credits::limits::{Period, SpendLimit};
use credits::money::Micro;

/// Prefix of a model id in the name of its checkbox.
const MODEL_FIELD_PREFIX: &str = "model:";

/// Form value that leaves the expiry unchanged.
const KEEP_EXPIRY: &str = "keep";

const DAY_MS: i64 = 86_400_000;

/// Options for the time until a key expires, in days.
const EXPIRIES: [(&str, &str); 6] = [
    ("", "never"),
    ("1", "after 1 day"),
    ("7", "after 7 days"),
    ("30", "after 30 days"),
    ("90", "after 90 days"),
    ("365", "after 365 days"),
];

/// The values typed into the form.
#[derive(Default)]
pub struct KeySettingsForm {
    expires_days: String,
    /// Current expiry, if there is one; the form then offers to keep it.
    expires_at_ms: Option<i64>,
    credits: String,
    period: String,
    models: Vec<String>,
}

impl KeySettingsForm {
    pub fn from_form(form: &SignedForm) -> Self {
        Self {
            expires_days: form.field("expires_days").to_owned(),
            expires_at_ms: None,
            credits: form.field("spend_credits").trim().to_owned(),
            period: form.field("spend_period").to_owned(),
            models: form.checked_boxes(MODEL_FIELD_PREFIX),
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
        }
    }

    pub fn keeps_expiry(&self) -> bool {
        self.expires_days == KEEP_EXPIRY
    }

    /// Parses the form. `bound_to`: models of the current key, which may no longer be in the
    /// catalog.
    ///
    /// # Errors
    /// Returns what is wrong, as a text for the user.
    pub fn parse(
        &self,
        app: &SidecarState,
        bound_to: &[String],
        now_ms: i64,
    ) -> Result<KeySettings, String> {
        let expires_at_ms = match self.expires_days.as_str() {
            "" | KEEP_EXPIRY => None,
            days => {
                let is_offered = EXPIRIES.iter().any(|(offered, _)| *offered == days);
                let days = days
                    .parse::<i64>()
                    .ok()
                    .filter(|_| is_offered)
                    .ok_or("Choose when the key expires.")?;
                Some(now_ms.saturating_add(days.saturating_mul(DAY_MS)))
            }
        };
        let spend_limit = match self.credits.as_str() {
            "" => None,
            credits => {
                let period = Period::ALL
                    .into_iter()
                    .find(|period| period.name() == self.period);
                let period = period.ok_or("Choose the period of the spend limit.")?;
                let credits: Micro = credits
                    .parse()
                    .map_err(|error| format!("Spend limit: {error}."))?;
                if credits < Micro::ZERO {
                    return Err("A spend limit must not be below 0.".into());
                }
                Some(SpendLimit { credits, period })
            }
        };
        let settings = app.settings.load();
        let is_known =
            |model: &String| settings.catalog.by_id(model).is_some() || bound_to.contains(model);
        if let Some(unknown) = self.models.iter().find(|model| !is_known(model)) {
            return Err(format!("The model {unknown:?} does not exist."));
        }
        let allowed_models = self.models.clone();
        Ok(KeySettings {
            expires_at_ms,
            spend_limit,
            allowed_models,
            ..KeySettings::default()
        })
    }
}

/// An option of a select field.
pub struct SelectOption {
    pub value: String,
    pub text: String,
    pub chosen: bool,
}

/// The options of the form, with the values typed.
pub struct KeyFormOptions {
    pub expiries: Vec<SelectOption>,
    pub credits: String,
    pub periods: Vec<SelectOption>,
    pub models: Vec<SelectOption>,
    /// Some setting is in force, so the form section is initially open.
    pub is_set: bool,
}

impl KeyFormOptions {
    pub fn new(app: &SidecarState, typed: &KeySettingsForm) -> Self {
        let choice = |value: &str, text: String, chosen| SelectOption {
            value: value.to_owned(),
            text,
            chosen,
        };
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
        let is_offered = |id: &str| settings.catalog.by_id(id).is_some();
        let model = |id: &str| {
            choice(
                id,
                id.to_owned(),
                typed.models.iter().any(|model| model == id),
            )
        };
        let offered_models: Vec<_> = settings
            .catalog
            .models()
            .iter()
            .map(|one| model(&one.id))
            .collect();
        // Models that are no longer in the catalog keep their boxes. Otherwise the form would not
        // send them, and a key that is restricted to them alone would lose its restriction list.
        let unoffered = typed.models.iter().filter(|id| !is_offered(id));
        let unoffered: Vec<_> = unoffered
            .map(|id| choice(id, format!("{id} (no longer offered)"), true))
            .collect();
        Self {
            expiries: kept.into_iter().chain(offered).collect(),
            credits: typed.credits.clone(),
            periods: Period::ALL.into_iter().map(period).collect(),
            models: offered_models.into_iter().chain(unoffered).collect(),
            is_set: !typed.expires_days.is_empty()
                || !typed.credits.is_empty()
                || !typed.models.is_empty(),
        }
    }
}

/// Describes the settings of a key, with its spend in the period of its limit.
pub fn describe_settings(settings: &KeySettings, spent: Option<Micro>) -> Vec<String> {
    let expires = settings
        .expires_at_ms
        .map(|at_ms| format!("until {}", format_time(at_ms)));
    let limit = settings.spend_limit.map(|SpendLimit { credits, period }| {
        let per = if period == Period::Total {
            "in total".to_owned()
        } else {
            format!("this {}", period.name())
        };
        format!(
            "{} of {credits} credits {per}",
            spent.unwrap_or(Micro::ZERO)
        )
    });
    let models = (!settings.allowed_models.is_empty()).then(|| settings.allowed_models.join(", "));
    let rates = settings.rates;
    let rate = |rate: Option<u64>, what: &str| rate.map(|rate| format!("{rate} {what}"));
    [
        expires,
        limit,
        models,
        rate(rates.requests_per_minute, "requests per minute"),
        rate(rates.tokens_per_minute, "tokens per minute"),
        rate(rates.concurrent, "concurrent requests"),
    ]
    .into_iter()
    .flatten()
    .collect()
}
