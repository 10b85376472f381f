//! Defines the price list of one model, by token class, input size, feature and service tier.
//!
//! A price list is immutable, because its version is the hash of its contents. This file must
//! depend on usage only as far as it selects a price; `pricing.rs` multiplies prices by usage.

use crate::money::{Factor, Micro};
use llm_protocol::usage::{CountedUnit, ServerTool, ServiceTier, Usage};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Prices in µc per 1 000 000 tokens of each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenPrices {
    pub input: Micro,
    pub cache_read: Micro,
    pub cache_write_5m: Micro,
    pub cache_write_1h: Micro,
    pub output: Micro,
}

/// Prices for requests whose input, of all classes together, exceeds `above_input_tokens`. They
/// apply to the whole request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputTier {
    pub above_input_tokens: u64,
    #[serde(flatten)]
    pub rates: TokenPrices,
}

/// Prices other than those per token class. A missing member means that the feature has no price.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FeaturePrices {
    /// Price in µc per 1 000 000 tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio_input: Option<Micro>,
    /// Price in µc per 1 000 000 tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio_output: Option<Micro>,
    /// Price in µc per 1 000 uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web_search: Option<Micro>,
    /// Price in µc per 1 000 uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web_fetch: Option<Micro>,
    /// Price in µc per 1 000 uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_execution: Option<Micro>,
    /// Price in µc per 1 000 uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_search: Option<Micro>,
    /// Price in µc per 1 000 uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Micro>,
    /// Price in µc per 1 000 000 tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_input: Option<Micro>,
    /// Price in µc per 1 000 000 tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_output: Option<Micro>,
    /// µc per 1 000 units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search_unit: Option<Micro>,
    /// Price in µc per 1 000 images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Micro>,
    /// Price in µc per 1 000 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub character: Option<Micro>,
    /// Price in µc per 1 000 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second: Option<Micro>,
    /// Factors on the token prices, by the service tier that served the request.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub service_tier: TierFactors,
    /// Factors on the token prices, by the region that served the request.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub inference_geo: TierFactors,
    /// Factors on the token prices, by the speed at which the vendor served the request.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub speed: TierFactors,
}

/// Factors on token prices, by the vendor's name of the tier, region or speed.
pub type TierFactors = BTreeMap<ServiceTier, Factor>;

impl FeaturePrices {
    /// Returns the price in µc per 1 000 uses. 0 is a valid price.
    pub fn tool_price(&self, tool: ServerTool) -> Option<Micro> {
        match tool {
            ServerTool::WebSearch => self.web_search,
            ServerTool::WebFetch => self.web_fetch,
            ServerTool::CodeExecution => self.code_execution,
            ServerTool::ToolSearch => self.tool_search,
            ServerTool::Mcp => self.mcp,
        }
    }

    /// Returns the price in µc per 1 000 units.
    pub fn unit_price(&self, unit: CountedUnit) -> Option<Micro> {
        match unit {
            CountedUnit::SearchUnit => self.search_unit,
            CountedUnit::Image => self.image,
            CountedUnit::Character => self.character,
            CountedUnit::Second => self.second,
        }
    }

    /// Returns the factors on token prices, each with its key.
    pub fn factors(&self) -> [(&'static str, &TierFactors); 3] {
        [
            ("service_tier", &self.service_tier),
            ("inference_geo", &self.inference_geo),
            ("speed", &self.speed),
        ]
    }
}

/// A price list. Without tiers and features, its serialised form is the same as before those
/// existed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriceList {
    pub version: String,
    pub input: Micro,
    pub cache_read: Micro,
    pub cache_write_5m: Micro,
    pub cache_write_1h: Micro,
    pub output: Micro,
    /// Tiers in strictly ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<InputTier>,
    #[serde(flatten)]
    pub features: FeaturePrices,
}

/// The prices for every input from `min_tokens` to `max_tokens` tokens, both inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriceBand {
    pub min_tokens: u64,
    pub max_tokens: u64,
    /// Threshold of the tier. `None` for the base prices.
    pub above_input_tokens: Option<u64>,
    pub rates: TokenPrices,
}

impl PriceBand {
    /// Returns the minimum and maximum number of tokens by which an input in this band exceeds
    /// `tokens`. Returns `None` if no input in the band exceeds it.
    pub fn range_beyond(&self, tokens: u64) -> Option<(u64, u64)> {
        let max_tokens = if self.max_tokens == u64::MAX {
            u64::MAX
        } else {
            self.max_tokens.checked_sub(tokens)?
        };
        Some((self.min_tokens.saturating_sub(tokens), max_tokens))
    }
}

impl PriceList {
    /// Creates a flat list from its prices, in the order input, cache read, 5-minute and 1-hour
    /// cache write, output.
    pub fn new([input, cache_read, cache_write_5m, cache_write_1h, output]: [Micro; 5]) -> Self {
        let base = TokenPrices {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
        };
        Self::from_tiers(base, Vec::new(), FeaturePrices::default())
    }

    /// Creates a list with tiers, which must be strictly ascending.
    pub fn from_tiers(base: TokenPrices, tiers: Vec<InputTier>, features: FeaturePrices) -> Self {
        let TokenPrices {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
        } = base;
        let version = compute_version(&base, &tiers, &features);
        Self {
            version,
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
            tiers,
            features,
        }
    }

    /// Returns whether `version` is the version of these prices.
    pub fn matches_version(&self, version: &str) -> bool {
        self.version == version
            && self::compute_version(&self.base_prices(), &self.tiers, &self.features) == version
    }

    fn base_prices(&self) -> TokenPrices {
        let Self {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
            ..
        } = *self;
        TokenPrices {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
        }
    }

    /// Returns the price bands in ascending order. They cover every possible input without a gap.
    pub fn bands(&self) -> impl DoubleEndedIterator<Item = PriceBand> + '_ {
        let ends = |index: usize| {
            self.tiers
                .get(index)
                .map_or(u64::MAX, |next| next.above_input_tokens)
        };
        let base = PriceBand {
            min_tokens: 0,
            max_tokens: ends(0),
            above_input_tokens: None,
            rates: self.base_prices(),
        };
        let tiers = self
            .tiers
            .iter()
            .enumerate()
            .map(move |(index, tier)| PriceBand {
                min_tokens: tier.above_input_tokens.saturating_add(1),
                max_tokens: ends(index.saturating_add(1)),
                above_input_tokens: Some(tier.above_input_tokens),
                rates: tier.rates,
            });
        std::iter::once(base).chain(tiers)
    }

    /// Returns the price band for an input with this number of tokens of all classes.
    pub fn band_for(&self, input_tokens: u64) -> PriceBand {
        let base = PriceBand {
            min_tokens: 0,
            max_tokens: u64::MAX,
            above_input_tokens: None,
            rates: self.base_prices(),
        };
        self.bands()
            .find(|span| input_tokens <= span.max_tokens)
            .unwrap_or(base)
    }

    /// Returns the factor on token prices for the tier, region and speed that served `usage`.
    pub fn factor(&self, usage: &Usage) -> Factor {
        let words = [usage.service_tier, usage.inference_geo, usage.speed];
        let factors = self.features.factors().into_iter().zip(words);
        factors.fold(Factor::ONE, |product, ((_, factors), word)| {
            product.times(factor_for(factors, word))
        })
    }
}

/// Synonyms of one service tier. A client may ask for either name, and the vendor reports only one.
/// The source is `service_tier` of the request types in openai 3.57 for Python. Regions and speeds
/// have no synonyms.
const TIER_SYNONYMS: [[&str; 2]; 1] = [["fast", "priority"]];

/// Returns the key for a vendor's name in a price list, which is the name itself or else its
/// synonym.
pub fn listed_tier(factors: &TierFactors, name: ServiceTier) -> Option<ServiceTier> {
    let names = TIER_SYNONYMS.map(|names| names.map(ServiceTier::from_wire));
    let synonyms = names.iter().filter(|names| names.contains(&name)).flatten();
    std::iter::once(&name)
        .chain(synonyms)
        .find(|name| factors.contains_key(name))
        .copied()
}

/// Returns the factor for a vendor's name. It is 1 for the standard tier, and for a name without a
/// price of its own.
pub fn factor_for(factors: &TierFactors, word: Option<ServiceTier>) -> Factor {
    word.and_then(|word| factors.get(&listed_tier(factors, word)?))
        .copied()
        .unwrap_or(Factor::ONE)
}

/// Returns the hash of a price list. Missing members are not part of the hashed text, so a flat
/// list keeps its version when new members are added to the format.
fn compute_version(base: &TokenPrices, tiers: &[InputTier], features: &FeaturePrices) -> String {
    let mut text = format_prices(base);
    // Writing to a string cannot fail.
    for InputTier {
        above_input_tokens,
        rates,
    } in tiers
    {
        let _ = write!(text, "|above {above_input_tokens}:{}", format_prices(rates));
    }
    let media = [
        ("audio_input", features.audio_input),
        ("audio_output", features.audio_output),
        ("image_input", features.image_input),
        ("image_output", features.image_output),
    ];
    let tools = ServerTool::ALL.map(|tool| (tool.key(), features.tool_price(tool)));
    let units = CountedUnit::ALL.map(|unit| (unit.key(), features.unit_price(unit)));
    for (name, price) in media.into_iter().chain(tools).chain(units) {
        if let Some(price) = price {
            let _ = write!(text, "|{name} {price}");
        }
    }
    for (key, factors) in features.factors() {
        for (name, factor) in factors {
            let _ = write!(text, "|{key} {name}:{factor}");
        }
    }
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(8)
        .fold(String::from("pv_"), |text, byte| {
            text + &format!("{byte:02x}")
        })
}

fn format_prices(rates: &TokenPrices) -> String {
    let TokenPrices {
        input,
        cache_read,
        cache_write_5m,
        cache_write_1h,
        output,
    } = rates;
    format!("{input}|{cache_read}|{cache_write_5m}|{cache_write_1h}|{output}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(prices: [i64; 5]) -> TokenPrices {
        let [input, cache_read, cache_write_5m, cache_write_1h, output] =
            prices.map(|price| Micro::new(price * 1_000));
        TokenPrices {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
        }
    }

    fn tier(above_input_tokens: u64, scale: i64) -> InputTier {
        InputTier {
            above_input_tokens,
            rates: rates([500, 50, 625, 1_000, 2_500].map(|price| price * scale)),
        }
    }

    fn base() -> TokenPrices {
        rates([500, 50, 625, 1_000, 2_500])
    }

    #[test]
    fn a_flat_list_reads_and_hashes_as_it_always_did() {
        let kept = r#"{"version":"pv_5889ada34c9ef2b3","input":"500","cache_read":"50","cache_write_5m":"625","cache_write_1h":"1000","output":"2500"}"#;
        let price = PriceList::new(
            [500, 50, 625, 1_000, 2_500].map(|credits| Micro::new(credits * 1_000_000)),
        );
        assert_eq!(serde_json::to_string(&price).unwrap(), kept);
        let read: PriceList = serde_json::from_str(kept).unwrap();
        assert_eq!(read, price);
        assert!(read.matches_version("pv_5889ada34c9ef2b3"));
    }

    #[test]
    fn everything_that_a_list_says_is_in_its_version() {
        let flex = ServiceTier::from_wire("flex");
        let feature = |change: fn(&mut FeaturePrices)| {
            let mut features = FeaturePrices::default();
            change(&mut features);
            PriceList::from_tiers(base(), Vec::new(), features)
        };
        let some = Some(Micro::new(7));
        let mut lists = vec![
            PriceList::from_tiers(base(), Vec::new(), FeaturePrices::default()),
            PriceList::from_tiers(base(), vec![tier(10, 2)], FeaturePrices::default()),
            PriceList::from_tiers(base(), vec![tier(11, 2)], FeaturePrices::default()),
            PriceList::from_tiers(base(), vec![tier(10, 3)], FeaturePrices::default()),
            PriceList::from_tiers(
                base(),
                vec![tier(10, 2), tier(20, 3)],
                FeaturePrices::default(),
            ),
            feature(|features| features.audio_input = Some(Micro::new(7))),
            feature(|features| features.audio_output = Some(Micro::new(7))),
            feature(|features| features.web_search = Some(Micro::new(7))),
            feature(|features| features.web_search = Some(Micro::new(8))),
            feature(|features| features.web_fetch = Some(Micro::new(7))),
            feature(|features| features.code_execution = Some(Micro::new(7))),
            feature(|features| features.tool_search = Some(Micro::new(7))),
            feature(|features| features.mcp = Some(Micro::new(7))),
            feature(|features| features.mcp = Some(Micro::ZERO)),
            feature(|features| {
                features.inference_geo = [(ServiceTier::from_wire("us"), Factor::ONE)].into()
            }),
            feature(|features| {
                features.speed = [(ServiceTier::from_wire("us"), Factor::ONE)].into()
            }),
        ];
        for factor in [1, 2] {
            let service_tier =
                BTreeMap::from([(flex, Factor::from_decimal(Micro::new(factor)).unwrap())]);
            lists.push(PriceList::from_tiers(
                base(),
                vec![tier(10, 2)],
                FeaturePrices {
                    service_tier,
                    web_search: some,
                    ..FeaturePrices::default()
                },
            ));
        }
        let versions: std::collections::HashSet<_> =
            lists.iter().map(|list| list.version.clone()).collect();
        assert_eq!(versions.len(), lists.len());
        for list in &lists {
            let kept: PriceList =
                serde_json::from_str(&serde_json::to_string(list).unwrap()).unwrap();
            assert_eq!(kept, *list);
            assert!(
                kept.matches_version(&list.version) && !kept.matches_version("pv_0000000000000000")
            );
            let forged = PriceList {
                output: kept.output.plus(Micro::new(1)),
                ..kept
            };
            assert!(!forged.matches_version(&list.version));
        }
    }

    #[test]
    fn a_tier_begins_one_token_above_its_threshold() {
        let price = PriceList::from_tiers(
            base(),
            vec![tier(200_000, 2), tier(500_000, 3)],
            FeaturePrices::default(),
        );
        for (tokens, above) in [
            (0, None),
            (200_000, None),
            (200_001, Some(200_000)),
            (500_000, Some(200_000)),
            (500_001, Some(500_000)),
            (u64::MAX, Some(500_000)),
        ] {
            let span = price.band_for(tokens);
            assert_eq!(span.above_input_tokens, above, "{tokens}");
            assert!((span.min_tokens..=span.max_tokens).contains(&tokens));
        }
        let ends: Vec<_> = price
            .bands()
            .map(|span| (span.min_tokens, span.max_tokens))
            .collect();
        assert_eq!(
            ends,
            [(0, 200_000), (200_001, 500_000), (500_001, u64::MAX)]
        );
        let rates: Vec<_> = price.bands().map(|span| span.rates.output.get()).collect();
        assert_eq!(rates, [2_500_000, 5_000_000, 7_500_000]);
        let flat = PriceList::from_tiers(base(), Vec::new(), FeaturePrices::default());
        assert_eq!(
            flat.band_for(u64::MAX),
            PriceBand {
                min_tokens: 0,
                max_tokens: u64::MAX,
                above_input_tokens: None,
                rates: base()
            }
        );
    }
}
