//! Builds a model's price list: validates the config's keys, and adds the missing ones.
//!
//! This file must not apply prices.

use super::raw;
use super::validator::ModelSection;
use credits::money::{Factor, Micro};
use credits::price_list::{FeaturePrices, InputTier, PriceList, TierFactors, TokenPrices};
use llm_protocol::Protocol;
use llm_protocol::usage::ServiceTier;
use std::collections::BTreeMap;

/// Returns the price keys whose usage a vendor with these protocols never reports.
pub fn misplaced_keys(protocols: [Option<Protocol>; 2], price: &raw::Price) -> Vec<&'static str> {
    use Protocol::{Chat, Messages, Responses};
    let keys: [(_, _, &[Protocol]); 9] = [
        ("audio_input", price.audio_input.is_some(), &[Chat]),
        ("audio_output", price.audio_output.is_some(), &[Chat]),
        (
            "web_search",
            price.web_search.is_some(),
            &[Messages, Responses],
        ),
        ("web_fetch", price.web_fetch.is_some(), &[Messages]),
        (
            "code_execution",
            price.code_execution.is_some(),
            &[Messages, Responses],
        ),
        ("tool_search", price.tool_search.is_some(), &[Messages]),
        ("mcp", price.mcp.is_some(), &[Messages, Responses]),
        (
            "inference_geo",
            !price.inference_geo.is_empty(),
            &[Messages],
        ),
        ("speed", !price.speed.is_empty(), &[Messages]),
    ];
    let is_counted = |by: &[Protocol]| {
        protocols
            .iter()
            .flatten()
            .any(|protocol| by.contains(protocol))
    };
    keys.into_iter()
        .filter(|(_, is_set, by)| *is_set && !is_counted(by))
        .map(|(name, ..)| name)
        .collect()
}

/// Names of the tier with base prices in requests and vendors' responses.
const BASE_PRICE_TIERS: [&str; 4] = ["auto", "default", "standard", "standard_only"];

/// Names of the region and of the speed with base prices, and the value that vendors report if
/// neither applies.
const BASE_PRICE_GEOS: [&str; 2] = ["global", "not_available"];
const BASE_PRICE_SPEEDS: [&str; 1] = ["standard"];

impl ModelSection<'_> {
    pub(super) fn price(
        &mut self,
        key: &str,
        price: &raw::Price,
        context_tokens: u64,
    ) -> Option<PriceList> {
        let at = |name: &str| format!("{key}.{name}");
        // What a kind of model needs and lacks is a fault already: see `model_kind.rs`.
        let mut amount = |name: &str, text: &Option<raw::Decimal>| {
            self.amount_or(&at(name), text.as_ref(), Some(Micro::ZERO))
        };
        let (input, output) = (
            amount("input", &price.input),
            amount("output", &price.output),
        );
        let cache_read = self.amount_or(&at("cache_read"), price.cache_read.as_ref(), input);
        let cache_write_5m =
            self.amount_or(&at("cache_write_5m"), price.cache_write_5m.as_ref(), input);
        let cache_write_1h = self.amount_or(
            &at("cache_write_1h"),
            price.cache_write_1h.as_ref(),
            cache_write_5m,
        );
        let base = rates([input, cache_read, cache_write_5m, cache_write_1h, output]);
        let tiers = self.price_tiers(&at("tiers"), price.tiers.as_deref(), base, context_tokens);
        let mut feature = |name: &str, text: &Option<raw::Decimal>| match text {
            Some(text) => self.0.parse_amount(&at(name), text).map(Some),
            None => Some(None),
        };
        let audio_input = feature("audio_input", &price.audio_input);
        let audio_output = feature("audio_output", &price.audio_output);
        let web_search = feature("web_search", &price.web_search);
        let web_fetch = feature("web_fetch", &price.web_fetch);
        let code_execution = feature("code_execution", &price.code_execution);
        let tool_search = feature("tool_search", &price.tool_search);
        let mcp = feature("mcp", &price.mcp);
        let search_unit = feature("search_unit", &price.search_unit);
        let image = feature("image", &price.image);
        let image_input = feature("image_input", &price.image_input);
        let image_output = feature("image_output", &price.image_output);
        let character = feature("character", &price.character);
        let second = feature("second", &price.second);
        let service_tier =
            self.factors(&at("service_tier"), &price.service_tier, &BASE_PRICE_TIERS);
        let inference_geo =
            self.factors(&at("inference_geo"), &price.inference_geo, &BASE_PRICE_GEOS);
        let speed = self.factors(&at("speed"), &price.speed, &BASE_PRICE_SPEEDS);
        let features = FeaturePrices {
            audio_input: audio_input?,
            audio_output: audio_output?,
            web_search: web_search?,
            web_fetch: web_fetch?,
            code_execution: code_execution?,
            tool_search: tool_search?,
            mcp: mcp?,
            search_unit: search_unit?,
            image: image?,
            image_input: image_input?,
            image_output: image_output?,
            character: character?,
            second: second?,
            service_tier: service_tier?,
            inference_geo: inference_geo?,
            speed: speed?,
        };
        Some(PriceList::from_tiers(base?, tiers?, features))
    }

    fn amount_or(
        &mut self,
        key: &str,
        text: Option<&raw::Decimal>,
        default: Option<Micro>,
    ) -> Option<Micro> {
        match text {
            Some(text) => self.0.parse_amount(key, text),
            None => default,
        }
    }

    fn price_tiers(
        &mut self,
        key: &str,
        tiers: Option<&[raw::PriceTier]>,
        base: Option<TokenPrices>,
        context_tokens: u64,
    ) -> Option<Vec<InputTier>> {
        if tiers.is_some_and(<[_]>::is_empty) {
            self.0.add_fault(
                key,
                "must have at least one tier: add one or remove the key",
            );
        }
        let mut checked = Vec::new();
        let mut before = 0;
        for (index, tier) in tiers.unwrap_or_default().iter().enumerate() {
            let key = format!("{key}[{index}]");
            let above = tier.above_input_tokens;
            if above <= before {
                let message = format!("{above} is not above {before}: the tiers must ascend");
                self.0
                    .add_fault(format!("{key}.above_input_tokens"), message);
            } else if above >= context_tokens {
                let message =
                    format!("{above} is not below context_tokens, which is {context_tokens}");
                self.0
                    .add_fault(format!("{key}.above_input_tokens"), message);
            }
            before = before.max(above);
            checked.push(self.price_tier(&key, tier, base));
        }
        checked.into_iter().collect()
    }

    fn price_tier(
        &mut self,
        key: &str,
        tier: &raw::PriceTier,
        base: Option<TokenPrices>,
    ) -> Option<InputTier> {
        let classes = [
            &tier.input,
            &tier.cache_read,
            &tier.cache_write_5m,
            &tier.cache_write_1h,
            &tier.output,
        ];
        if classes.iter().all(|class| class.is_none()) {
            self.0
                .add_fault(key, "sets no price: set at least one or remove the tier");
        }
        let mut read =
            |name: &str, text: &Option<raw::Decimal>, below: fn(&TokenPrices) -> Micro| {
                self.amount_or(
                    &format!("{key}.{name}"),
                    text.as_ref(),
                    base.as_ref().map(below),
                )
            };
        let rates = rates([
            read("input", &tier.input, |below| below.input),
            read("cache_read", &tier.cache_read, |below| below.cache_read),
            read("cache_write_5m", &tier.cache_write_5m, |below| {
                below.cache_write_5m
            }),
            read("cache_write_1h", &tier.cache_write_1h, |below| {
                below.cache_write_1h
            }),
            read("output", &tier.output, |below| below.output),
        ]);
        Some(InputTier {
            above_input_tokens: tier.above_input_tokens,
            rates: rates?,
        })
    }

    /// Parses price factors. `base_names` are the names that have the base prices.
    fn factors(
        &mut self,
        key: &str,
        factors: &BTreeMap<String, raw::Decimal>,
        base_names: &[&str],
    ) -> Option<TierFactors> {
        let mut read = |(name, text): (&String, &raw::Decimal)| {
            let key = format!("{key}.{name}");
            let tier =
                ServiceTier::from_price_list(name).filter(|_| !base_names.contains(&name.as_str()));
            if tier.is_none() {
                let base_names = base_names.join(", ");
                self.0.add_fault(
                    key.as_str(),
                    format!(
                        "must be 1 to 23 characters of a-z, 0-9, _ and -, and not one of: {base_names}"
                    ),
                );
            }
            let factor = self.0.parse_amount(&key, text).map(Factor::from_decimal);
            if factor == Some(None) {
                self.0.add_fault(key, "must be above 0 and at most 1000");
            }
            Some((tier?, factor??))
        };
        let checked: Vec<_> = factors.iter().map(&mut read).collect();
        checked.into_iter().collect()
    }
}

/// Returns the token prices in the order of a price list.
fn rates(
    [input, cache_read, cache_write_5m, cache_write_1h, output]: [Option<Micro>; 5],
) -> Option<TokenPrices> {
    Some(TokenPrices {
        input: input?,
        cache_read: cache_read?,
        cache_write_5m: cache_write_5m?,
        cache_write_1h: cache_write_1h?,
        output: output?,
    })
}
