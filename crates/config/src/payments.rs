//! Reads the section `payments`, with the payment provider and the price of credits.
//!
//! Amounts of money are in the minor units of the currency, as for the provider: cents for `usd`,
//! whole yen for `jpy`. This module must not open a connection. The simulated Stripe has its own
//! table of currencies (`stripe/currency.rs`) on purpose: tests compare the two.

use super::base_url::{ProviderAddress, parse_base_url};
use super::raw;
use super::validator::{ConfigValidator, PLACEHOLDER, header_fault};
use crate::catalog::Secret;
use credits::money::{MAX_MICRO, Micro};

const STRIPE_API: &str = "https://api.stripe.com";
/// Maximum amount of a payment that Stripe accepts, in minor units.
const MAX_MINOR: i64 = 99_999_999;
/// Maximum number of preset amounts, and of steps of the bonus.
const MAX_STEPS: usize = 12;
/// Maximum number of webhook secrets: the current one, and its successor.
const MAX_WEBHOOK_SECRETS: usize = 2;
/// Number of millionths of a percent in 100 percent.
const HUNDRED_PERCENT: i64 = 100_000_000;

/// Codes of the currencies with two decimals in which Stripe charges, apart from those in
/// [`SPECIAL_CURRENCIES`] (https://docs.stripe.com/currencies).
const TWO_DECIMALS: &str = "aed afn all amd ang aoa ars aud awg azn bam bbd bdt bgn bmd bnd bob brl bsd bwp byn bzd cad \
    cdf chf cny cop crc cve czk dkk dop dzd egp etb eur fjd fkp gbp gel gip gmd gtq gyd hkd hnl htg huf idr ils inr \
    jmd kes kgs khr kyd kzt lak lbp lkr lrd lsl mad mdl mkd mmk mnt mop mur mvr mwk mxn myr mzn nad ngn nio nok npr \
    nzd pab pen pgk php pkr pln qar ron rsd rub sar sbd scr sek sgd shp sle sos srd std szl thb tjs top try ttd twd \
    tzs uah usd uyu uzs wst xcd xcg yer zar zmw";

/// Currencies whose number of decimals is not two, or of which only multiples of some minor units
/// can be charged. A row has the code, the decimals, and the step.
const SPECIAL_CURRENCIES: [(&str, u32, i64); 22] = [
    ("bif", 0, 1),
    ("clp", 0, 1),
    ("djf", 0, 1),
    ("gnf", 0, 1),
    ("jpy", 0, 1),
    ("kmf", 0, 1),
    ("krw", 0, 1),
    ("mga", 0, 1),
    ("pyg", 0, 1),
    ("rwf", 0, 1),
    ("vnd", 0, 1),
    ("vuv", 0, 1),
    ("xaf", 0, 1),
    ("xof", 0, 1),
    ("xpf", 0, 1),
    ("bhd", 3, 10),
    ("jod", 3, 10),
    ("kwd", 3, 10),
    ("omr", 3, 10),
    ("tnd", 3, 10),
    // These currencies have no decimals any more, but Stripe still counts two.
    ("isk", 2, 100),
    ("ugx", 2, 100),
];

/// The smallest charges that Stripe documents, in minor units. Stripe refuses orders of smaller
/// amounts.
const SMALLEST_CHARGES: [(&str, i64); 23] = [
    ("aed", 200),
    ("aud", 50),
    ("brl", 50),
    ("cad", 50),
    ("chf", 50),
    ("czk", 1_500),
    ("dkk", 250),
    ("eur", 50),
    ("gbp", 30),
    ("hkd", 400),
    ("huf", 17_500),
    ("inr", 50),
    ("jpy", 50),
    ("mxn", 1_000),
    ("myr", 200),
    ("nok", 300),
    ("nzd", 50),
    ("pln", 200),
    ("ron", 200),
    ("sek", 300),
    ("sgd", 50),
    ("thb", 1_000),
    ("usd", 50),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Currency {
    code: [u8; 3],
    decimals: u32,
    step: i64,
}

impl Currency {
    /// Returns the currency with a code in lower case, or `None` if payments cannot be made in it.
    pub fn from_code(code: &str) -> Option<Self> {
        let bytes: [u8; 3] = code.as_bytes().try_into().ok()?;
        let special = SPECIAL_CURRENCIES.iter().find(|(known, ..)| *known == code);
        let (decimals, step) = match special {
            Some((_, decimals, step)) => (*decimals, *step),
            None if TWO_DECIMALS.split_whitespace().any(|known| known == code) => (2, 1),
            None => return None,
        };
        Some(Self {
            code: bytes,
            decimals,
            step,
        })
    }

    /// Returns the code in lower case, such as `usd`.
    pub fn code(&self) -> &str {
        std::str::from_utf8(&self.code).unwrap_or_default()
    }

    /// Parses an amount such as `10` or `10.50`, in minor units.
    ///
    /// # Errors
    /// Returns the fault as a text for the person who wrote the amount.
    pub fn parse(&self, text: &str) -> Result<i64, String> {
        let code = self.code().to_uppercase();
        let amount: Micro = text
            .trim()
            .parse()
            .map_err(|_| format!("write an amount in {code}, such as 10"))?;
        if amount <= Micro::ZERO {
            return Err("must be more than 0".to_owned());
        }
        let step = self.micro_per_minor() * self.step;
        if amount.get() % step != 0 {
            let smallest = self.write(self.step);
            return Err(format!("must be a multiple of {smallest}"));
        }
        Ok(amount.get() / self.micro_per_minor())
    }

    /// Returns the smallest amount that can be charged, in minor units.
    fn smallest_charge(&self) -> i64 {
        let mut charges = SMALLEST_CHARGES.iter();
        charges
            .find(|(code, _)| *code == self.code())
            .map_or(1, |(_, smallest)| *smallest)
    }

    /// Writes minor units as an amount with its code, such as `10.50 USD`.
    pub fn write(&self, minor: i64) -> String {
        format!(
            "{} {}",
            self.write_number(minor),
            self.code().to_uppercase()
        )
    }

    /// Writes minor units as a number, such as `10.50`.
    pub fn write_number(&self, minor: i64) -> String {
        let one = 10_i64.pow(self.decimals);
        let (sign, minor) = (if minor < 0 { "-" } else { "" }, minor.unsigned_abs());
        let (whole, part) = (minor / one.unsigned_abs(), minor % one.unsigned_abs());
        match self.decimals {
            0 => format!("{sign}{whole}"),
            decimals => format!("{sign}{whole}.{part:0width$}", width = decimals as usize),
        }
    }

    /// Returns the number of millionths of the currency in a minor unit.
    fn micro_per_minor(&self) -> i64 {
        10_i64.pow(6 - self.decimals)
    }
}

/// Writes minor units of the currency with this code, such as `10.50 USD`: also of one that
/// payments cannot be made in any more.
pub fn write_money(code: &str, minor: i64) -> String {
    Currency::from_code(code).map_or_else(
        || format!("{minor} {code}"),
        |currency| currency.write(minor),
    )
}

/// Writes minor units of the currency with this code as a number, such as `10.50`.
pub fn write_money_number(code: &str, minor: i64) -> String {
    Currency::from_code(code).map_or_else(
        || minor.to_string(),
        |currency| currency.write_number(minor),
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BonusStep {
    /// Minimum amount for the bonus, in minor units.
    pub from: i64,
    /// Bonus in millionths of a percent.
    pub percent: i64,
}

/// The settings for selling credits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaymentSettings {
    pub provider: raw::PaymentProviderName,
    pub secret_key: Secret,
    /// One secret, or two while the operator replaces it.
    pub webhook_secrets: Vec<Secret>,
    /// True if `secret_key` moves money. `None` if the form of the key does not show that.
    pub is_live: Option<bool>,
    pub currency: Currency,
    /// Price of one credit, in millionths of the currency.
    pub credit_price: Micro,
    /// Amounts that the page offers, in minor units, in the order of the file.
    pub amounts: Vec<i64>,
    /// Minimum amount of a payment, in minor units.
    pub min: i64,
    pub max: i64,
    /// Steps of the bonus, in ascending order of `from`.
    pub bonus: Vec<BonusStep>,
    /// True if account holders can have their balance topped up from a saved card.
    pub auto_top_up: bool,
    /// Maximum amount that one account can order in 24 hours, in minor units.
    pub per_account_per_day: i64,
    pub api: ProviderAddress,
}

impl PaymentSettings {
    /// Returns the credits that an amount buys, rounded down to a millionth of a credit.
    pub fn credits_for(&self, minor: i64) -> Micro {
        let paid = i128::from(minor) * i128::from(self.currency.micro_per_minor());
        let credits = paid * 1_000_000 / i128::from(self.credit_price.get().max(1));
        Micro::new(i64::try_from(credits).unwrap_or(MAX_MICRO))
    }

    /// Returns the bonus credits for an amount, rounded down.
    pub fn bonus_for(&self, minor: i64) -> Micro {
        let step = self.bonus.iter().rev().find(|step| minor >= step.from);
        let percent = step.map_or(0, |step| step.percent);
        let bonus = i128::from(self.credits_for(minor).get()) * i128::from(percent)
            / i128::from(HUNDRED_PERCENT);
        Micro::new(i64::try_from(bonus).unwrap_or(MAX_MICRO))
    }
}

/// Prefixes of Stripe's keys, and whether such a key moves money.
const STRIPE_KEYS: [(&str, bool); 4] = [
    ("sk_test_", false),
    ("rk_test_", false),
    ("sk_live_", true),
    ("rk_live_", true),
];

impl ConfigValidator {
    pub(super) fn payments(&mut self, section: &raw::PaymentOptions) -> Option<PaymentSettings> {
        let provider = self.check_payment_keys(section)?;
        let (code, price) = (section.currency.as_ref()?, section.credit_price.as_ref()?);
        let (secret_key, webhook_secret) = (
            section.secret_key.as_ref()?,
            section.webhook_secret.as_ref()?,
        );
        let currency = Currency::from_code(code);
        if currency.is_none() {
            let message = match Currency::from_code(&code.to_lowercase()) {
                Some(known) => format!("write {}: in lower case", known.code()),
                None => "must be the three-letter code of a currency that Stripe charges in, such as usd".to_owned(),
            };
            self.add_fault("payments.currency", message);
        }
        let secret_key = self.secret("payments.secret_key", secret_key);
        let is_live = secret_key
            .as_ref()
            .and_then(|key| self.check_secret_key(key));
        let webhook_secrets = self.webhook_secrets(webhook_secret, is_live);
        let api = self.provider_address(section.api_base.as_deref(), is_live);
        let credit_price = self
            .parse_amount("payments.credit_price", price)
            .filter(|price| {
                if !price.is_positive() {
                    self.add_fault("payments.credit_price", "must be more than 0");
                }
                price.is_positive()
            });
        let currency = currency?;
        let min = self.money("payments.min", &section.min, currency);
        let max = self.money("payments.max", &section.max, currency);
        if min.is_some_and(|min| min < currency.smallest_charge()) {
            let smallest = currency.write(currency.smallest_charge());
            let message = format!("must be at least {smallest}, the smallest charge of Stripe");
            self.add_fault("payments.min", message);
        }
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            let max = currency.write(max);
            self.add_fault("payments.min", format!("must be at most `max`, {max}"));
        }
        let per_account_per_day = self.money(
            "payments.per_account_per_day",
            &section.per_account_per_day,
            currency,
        );
        if let (Some(min), Some(per_day)) = (min, per_account_per_day)
            && per_day < min
        {
            let min = currency.write(min);
            let message = format!("must be at least `min`, {min}: else nobody can pay");
            self.add_fault("payments.per_account_per_day", message);
        }
        let amounts = self.offered_amounts(&section.amounts, currency, (min, max));
        let bonus = self.bonus(&section.bonus, currency);
        let settings = PaymentSettings {
            provider,
            secret_key: secret_key?,
            webhook_secrets: webhook_secrets?,
            is_live,
            currency,
            credit_price: credit_price?,
            amounts,
            min: min?,
            max: max?,
            bonus: bonus?,
            auto_top_up: section.auto_top_up,
            per_account_per_day: per_account_per_day?,
            api: api?,
        };
        self.check_credit_price(&settings);
        Some(settings)
    }

    /// Returns the amounts that the page of credits offers, in minor units.
    fn offered_amounts(
        &mut self,
        texts: &[raw::Decimal],
        currency: Currency,
        (min, max): (Option<i64>, Option<i64>),
    ) -> Vec<i64> {
        self.check_count("payments.amounts", texts.len());
        let bound = |it: Option<i64>| currency.write(it.unwrap_or_default());
        let mut amounts = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let key = format!("payments.amounts[{index}]");
            let Some(amount) = self.money(&key, text, currency) else {
                continue;
            };
            if min.is_some_and(|min| amount < min) || max.is_some_and(|max| amount > max) {
                let (min, max) = (bound(min), bound(max));
                self.add_fault(key, format!("must be from `min`, {min}, to `max`, {max}"));
            }
            amounts.push(amount);
        }
        amounts
    }

    fn check_credit_price(&mut self, settings: &PaymentSettings) {
        let buys = |minor| settings.credits_for(minor);
        let key = "payments.credit_price";
        if !buys(settings.min).is_positive() {
            self.add_fault(key, "is so high that `min` buys nothing");
        }
        // Even with the bonus, a payment must stay below the bound at which amounts saturate.
        if buys(settings.max).get() > MAX_MICRO / 4 {
            let fault = "is so low that `max` buys more credits than a balance can have";
            self.add_fault(key, fault);
        }
    }

    /// Checks that the section has what its provider needs. Returns the provider, if there is one.
    fn check_payment_keys(
        &mut self,
        section: &raw::PaymentOptions,
    ) -> Option<raw::PaymentProviderName> {
        let needed = [
            ("secret_key", section.secret_key.is_some()),
            ("webhook_secret", section.webhook_secret.is_some()),
            ("currency", section.currency.is_some()),
            ("credit_price", section.credit_price.is_some()),
        ];
        if section.provider.is_none() {
            if !section.codes || needed.iter().any(|(_, is_there)| *is_there) {
                let message =
                    "is missing: name the provider, such as stripe, or write `codes: true` alone";
                self.add_fault("payments.provider", message);
            }
            return None;
        }
        for (name, _) in needed.iter().filter(|(_, is_there)| !is_there) {
            self.add_fault(format!("payments.{name}"), "is missing");
        }
        section.provider
    }

    fn check_count(&mut self, key: &str, count: usize) {
        if count > MAX_STEPS {
            let message = format!("has {count} entries; at most {MAX_STEPS} are allowed");
            self.add_fault(key, message);
        }
    }

    fn money(&mut self, key: &str, text: &raw::Decimal, currency: Currency) -> Option<i64> {
        match currency.parse(&text.0) {
            Ok(minor) if minor > MAX_MINOR => {
                let max = currency.write(MAX_MINOR);
                self.add_fault(key, format!("must be at most {max}"));
                None
            }
            Ok(minor) => Some(minor),
            Err(message) => {
                self.add_fault(key, message);
                None
            }
        }
    }

    fn bonus(&mut self, steps: &[raw::PaymentBonus], currency: Currency) -> Option<Vec<BonusStep>> {
        self.check_count("payments.bonus", steps.len());
        let mut bonus = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let key = |name: &str| format!("payments.bonus[{index}].{name}");
            let from = self.money(&key("from"), &step.from, currency);
            let percent = self.parse_amount(&key("percent"), &step.percent);
            if percent.is_some_and(|it| !it.is_positive() || it.get() > HUNDRED_PERCENT) {
                self.add_fault(key("percent"), "must be above 0 and at most 100");
            }
            let (from, percent) = (from?, percent?.get());
            if bonus.iter().any(|known: &BonusStep| known.from == from) {
                self.add_fault(key("from"), "is the same as in another step: remove one");
            }
            bonus.push(BonusStep { from, percent });
        }
        bonus.sort_by_key(|step| step.from);
        Some(bonus)
    }

    /// Checks the form of the key. Returns whether the key moves money, if its form shows that.
    fn check_secret_key(&mut self, key: &Secret) -> Option<bool> {
        let (name, text) = ("payments.secret_key", key.reveal());
        let known = STRIPE_KEYS
            .iter()
            .find(|(start, _)| text.starts_with(start));
        if known.is_none() && text != PLACEHOLDER {
            let message = if text.starts_with("pk_") {
                "is the publishable key: write the secret key, sk_…"
            } else if text.starts_with("whsec_") {
                "is a webhook's secret: write the secret key, sk_…"
            } else {
                "must be a secret or restricted key: sk_live_…, rk_live_…, sk_test_… or rk_test_…"
            };
            self.add_fault(name, message);
        }
        if let Some(fault) = header_fault(text) {
            self.add_fault(name, fault);
        }
        known.map(|(_, is_live)| *is_live)
    }

    fn webhook_secrets(
        &mut self,
        written: &raw::OneOrMoreTexts,
        is_live: Option<bool>,
    ) -> Option<Vec<Secret>> {
        let key = "payments.webhook_secret";
        let count = written.0.len();
        if !(1..=MAX_WEBHOOK_SECRETS).contains(&count) {
            self.add_fault(key, format!("must be one secret or two, not {count}"));
        }
        let mut secrets = Vec::new();
        for text in &written.0 {
            let secret = self.secret(key, text)?;
            let text = secret.reveal();
            let is_of_other_mode = [("_test_", true), ("_live_", false)]
                .iter()
                .any(|(part, other)| text.contains(part) && is_live == Some(*other));
            if text.is_empty() {
                self.add_fault(key, "is empty: write the signing secret, whsec_…");
            } else if STRIPE_KEYS.iter().any(|(start, _)| text.starts_with(start))
                || text.starts_with("pk_")
            {
                self.add_fault(
                    key,
                    "is an API key: write the webhook's signing secret, whsec_…",
                );
            } else if is_of_other_mode {
                self.add_fault(
                    key,
                    "is of another mode than `secret_key`: both must be of the test mode, or both of the live mode",
                );
            }
            secrets.push(secret);
        }
        Some(secrets)
    }

    fn provider_address(
        &mut self,
        written: Option<&str>,
        is_live: Option<bool>,
    ) -> Option<ProviderAddress> {
        let key = "payments.api_base";
        let Some(base) = parse_base_url(written.unwrap_or(STRIPE_API)) else {
            self.add_fault(
                key,
                "must be an https:// URL, such as https://api.stripe.com",
            );
            return None;
        };
        let address = ProviderAddress::from(base);
        if !address.is_https && !address.is_here() {
            self.add_fault(
                key,
                "must begin with https://: http:// sends the secret key unencrypted, so it may only name this machine",
            );
        }
        if !address.is_https && is_live == Some(true) {
            self.add_fault(
                key,
                "is a stand-in, which gets no live key: write a `secret_key` of the test mode",
            );
        }
        Some(address)
    }
}

#[cfg(test)]
mod tests;
