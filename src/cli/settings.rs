//! Parses the arguments of `key create`, `key set` and `account limit`, and formats their values.
//!
//! Each argument accepts a word that resets its setting. This file must not access a store.

use accounts::{KeySettings, KeySettingsPatch, RateSettings, RatesPatch};
use anyhow::bail;
use base::clock::rfc3339;
use clap::Args;
use config::CommandSettings;
use credits::limits::SpendLimit;
use std::str::FromStr;

/// A duration: a number followed by `s`, `m`, `h`, `d` or `w`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationArg {
    pub ms: i64,
}

impl FromStr for DurationArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [
            ('s', 1_000),
            ('m', 60_000),
            ('h', 3_600_000),
            ('d', 86_400_000),
            ('w', 604_800_000),
        ];
        let found = units
            .into_iter()
            .find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)));
        let ms = found
            .filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|(number, ms)| number.parse::<i64>().ok()?.checked_mul(ms));
        ms.map(|ms| Self { ms })
            .ok_or_else(|| format!("{text:?} is not a duration such as 90m, 24h or 30d"))
    }
}

/// A value to set, or `None` to reset the setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettingArg<T>(pub Option<T>);

fn parse_setting<T: FromStr<Err = E>, E: std::fmt::Display>(
    text: &str,
    none: &str,
) -> Result<SettingArg<T>, String> {
    if text == none {
        return Ok(SettingArg(None));
    }
    text.parse()
        .map(|value| SettingArg(Some(value)))
        .map_err(|error: E| format!("{error} (or {none:?})"))
}

#[derive(Debug, Default, Args)]
pub struct KeyArgs {
    /// Time until the key expires, such as 90m, 24h or 30d; `never` removes the expiry.
    #[arg(long, value_name = "TIME", value_parser = |text: &str| parse_setting::<DurationArg, _>(text, "never"))]
    expires_in: Option<SettingArg<DurationArg>>,
    /// Spend limit of the key per day, week, month (UTC) or in total, such as 100/day; `none`
    /// removes the limit.
    #[arg(long, value_name = "CREDITS/PERIOD", value_parser = |text: &str| parse_setting::<SpendLimit, _>(text, "none"))]
    spend_limit: Option<SettingArg<SpendLimit>>,
    /// Models that the key may use, as catalog ids separated by commas; `all` removes the
    /// restriction.
    #[arg(long, value_name = "MODEL,...", value_delimiter = ',')]
    models: Option<Vec<String>>,
    #[command(flatten)]
    rates: RateArgs,
}

#[derive(Debug, Default, Args)]
pub struct RateArgs {
    /// Requests per minute; 0: no limit; `default`: the value of the config file.
    #[arg(long, value_name = "N", value_parser = |text: &str| parse_setting::<u64, _>(text, "default"))]
    requests_per_minute: Option<SettingArg<u64>>,
    /// Tokens per minute, input and output together; 0: no limit; `default`: the value of the
    /// config file.
    #[arg(long, value_name = "N", value_parser = |text: &str| parse_setting::<u64, _>(text, "default"))]
    tokens_per_minute: Option<SettingArg<u64>>,
    /// Concurrent requests; 0: no limit; `default`: the value of the config file.
    #[arg(long, value_name = "N", value_parser = |text: &str| parse_setting::<u64, _>(text, "default"))]
    concurrent: Option<SettingArg<u64>>,
}

impl KeyArgs {
    /// # Errors
    /// Returns an error if the catalog has no such model, or cannot be read.
    pub fn check(&self, settings: &CommandSettings) -> anyhow::Result<()> {
        match &self.models {
            Some(models) => parse_models("a key", models, settings).map(drop),
            None => Ok(()),
        }
    }

    /// Returns the change that the given arguments make.
    pub fn patch(&self, now_ms: i64) -> KeySettingsPatch {
        let ends_at = |span: DurationArg| now_ms.saturating_add(span.ms);
        KeySettingsPatch {
            expires_at_ms: self.expires_in.map(|SettingArg(span)| span.map(ends_at)),
            spend_limit: self.spend_limit.map(|SettingArg(limit)| limit),
            allowed_models: self.models.as_deref().map(without_all),
            rates: self.rates.patch(),
            // The page of new keys and the admin API set it.
            scope: None,
        }
    }
}

/// Returns the models that `--models` names: none if it says `all`. `whom` they restrict is in the
/// error.
///
/// # Errors
/// Returns an error if the catalog has no such model, or cannot be read.
pub fn parse_models(
    whom: &str,
    models: &[String],
    settings: &CommandSettings,
) -> anyhow::Result<Vec<String>> {
    let (named, catalog) = (without_all(models), settings.catalog()?);
    for model in &named {
        if catalog.by_id(model).is_some() {
            continue;
        }
        match catalog.find(model) {
            Some(suggestion) => {
                let id = &suggestion.id;
                bail!(
                    "cannot restrict {whom} to {model:?}: it is an alias; use the model id {id:?} instead"
                )
            }
            None => bail!("cannot restrict {whom} to {model:?}: the catalog has no such model"),
        }
    }
    Ok(named)
}

fn without_all(models: &[String]) -> Vec<String> {
    let named = models.iter().filter(|model| *model != "all");
    named.cloned().collect()
}

impl RateArgs {
    /// Returns the change that the given arguments make.
    pub fn patch(&self) -> RatesPatch {
        let arguments = [
            self.requests_per_minute,
            self.tokens_per_minute,
            self.concurrent,
        ];
        arguments.map(|argument| argument.map(|SettingArg(rate)| rate))
    }
}

/// Describes the settings as text, each with a leading space. The text is empty if nothing is set.
pub fn format_key_settings(settings: &KeySettings) -> String {
    let KeySettings {
        expires_at_ms,
        spend_limit,
        allowed_models,
        rates,
        scope,
        playground_session: _,
    } = settings;
    let mut text = String::new();
    if let Some(at) = expires_at_ms {
        text += &format!(" expires={}", rfc3339(*at));
    }
    if let Some(limit) = spend_limit {
        text += &format!(" spend-limit={limit}");
    }
    if !allowed_models.is_empty() {
        text += &format!(" models={}", allowed_models.join(","));
    }
    if let Some(scope) = scope {
        text += &format!(" scope={}", scope.name());
    }
    text + &format_rates(rates)
}

pub fn format_rates(rates: &RateSettings) -> String {
    let named = RateSettings::NAMES.into_iter().zip(rates.rates());
    named
        .filter_map(|(name, rate)| Some(format!(" {}={}", name.replace('_', "-"), rate?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_is_a_number_and_a_unit() {
        for (text, ms) in [
            ("0s", 0),
            ("90m", 5_400_000),
            ("24h", 86_400_000),
            ("30d", 2_592_000_000),
            ("1w", 604_800_000),
        ] {
            assert_eq!(
                text.parse::<DurationArg>(),
                Ok(DurationArg { ms }),
                "{text}"
            );
        }
        for bad in [
            "",
            "d",
            "10",
            "-1d",
            "1.5h",
            "1y",
            "99999999999999999d",
            " 1d",
        ] {
            assert!(bad.parse::<DurationArg>().is_err(), "{bad}");
        }
    }
}
