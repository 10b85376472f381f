//! The price list of one model: by token class, input size, feature and service tier.
//!
//! Immutable: the version of a list is the hash of its contents. Must not know any usage beyond
//! what selects a price; `billing/pricing.rs` multiplies prices by usage.

use crate::money::{Factor, Micro};
use crate::usage::{ServerTool, ServiceTier, Usage};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Prices in µc per 1 000 000 tokens of each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    pub input: Micro,
    pub cache_read: Micro,
    pub cache_write_5m: Micro,
    pub cache_write_1h: Micro,
    pub output: Micro,
}

/// Prices for requests whose input, of all classes together, exceeds `above_input_tokens`. They
/// apply to the whole request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    pub above_input_tokens: u64,
    #[serde(flatten)]
    pub rates: Rates,
}

/// Prices other than those per token class. A member that is left out has no price.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Features {
    /// µc per 1 000 000 tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio_input: Option<Micro>,
    /// µc per 1 000 000 tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio_output: Option<Micro>,
    /// µc per 1 000 uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web_search: Option<Micro>,
    /// µc per 1 000 uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web_fetch: Option<Micro>,
    /// µc per 1 000 uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_execution: Option<Micro>,
    /// µc per 1 000 uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_search: Option<Micro>,
    /// µc per 1 000 uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Micro>,
    /// Factor on the token prices, by the service tier that served the request.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub service_tier: Factors,
    /// Factor on the token prices, by the region that served the request.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub inference_geo: Factors,
    /// Factor on the token prices, by the speed at which the vendor served the request.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub speed: Factors,
}

/// Factors on token prices, by the vendor's name of the tier, region or speed.
pub type Factors = BTreeMap<ServiceTier, Factor>;

impl Features {
    /// Price in µc per 1 000 uses; 0 is a valid price.
    pub fn of_tool(&self, tool: ServerTool) -> Option<Micro> {
        match tool {
            ServerTool::WebSearch => self.web_search,
            ServerTool::WebFetch => self.web_fetch,
            ServerTool::CodeExecution => self.code_execution,
            ServerTool::ToolSearch => self.tool_search,
            ServerTool::Mcp => self.mcp,
        }
    }

    /// The factors on token prices, each with its key.
    pub fn factors(&self) -> [(&'static str, &Factors); 3] {
        [
            ("service_tier", &self.service_tier),
            ("inference_geo", &self.inference_geo),
            ("speed", &self.speed),
        ]
    }
}

/// A price list. Without tiers and features it serialises to the same form as before those existed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    pub version: String,
    pub input: Micro,
    pub cache_read: Micro,
    pub cache_write_5m: Micro,
    pub cache_write_1h: Micro,
    pub output: Micro,
    /// Strictly ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
    #[serde(flatten)]
    pub features: Features,
}

/// The prices for every input from `least` to `most` tokens, both inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub least: u64,
    pub most: u64,
    /// Threshold of the tier; `None` for the base prices.
    pub above_input_tokens: Option<u64>,
    pub rates: Rates,
}

impl Span {
    /// Fewest and most tokens that an input within this band has beyond `tokens`; `None` if every
    /// input in the band has fewer.
    pub fn beside(&self, tokens: u64) -> Option<(u64, u64)> {
        let most = if self.most == u64::MAX {
            u64::MAX
        } else {
            self.most.checked_sub(tokens)?
        };
        Some((self.least.saturating_sub(tokens), most))
    }
}

impl Price {
    /// Creates a flat list from its prices, in the order input, cache read, 5-minute and 1-hour
    /// cache write, output.
    pub fn new([input, cache_read, cache_write_5m, cache_write_1h, output]: [Micro; 5]) -> Self {
        let base = Rates {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
        };
        Self::list(base, Vec::new(), Features::default())
    }

    /// Creates a list with tiers; `tiers` must be strictly ascending.
    pub fn list(base: Rates, tiers: Vec<Tier>, features: Features) -> Self {
        let Rates {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
        } = base;
        let version = version(&base, &tiers, &features);
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

    /// Whether `version` is the version of these prices.
    pub fn is_version(&self, version: &str) -> bool {
        self.version == version
            && self::version(&self.base(), &self.tiers, &self.features) == version
    }

    fn base(&self) -> Rates {
        let Self {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
            ..
        } = *self;
        Rates {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
        }
    }

    /// The price bands in ascending order. They cover every possible input without a gap.
    pub fn spans(&self) -> impl DoubleEndedIterator<Item = Span> + '_ {
        let ends = |index: usize| {
            self.tiers
                .get(index)
                .map_or(u64::MAX, |next| next.above_input_tokens)
        };
        let base = Span {
            least: 0,
            most: ends(0),
            above_input_tokens: None,
            rates: self.base(),
        };
        let tiers = self
            .tiers
            .iter()
            .enumerate()
            .map(move |(index, tier)| Span {
                least: tier.above_input_tokens.saturating_add(1),
                most: ends(index.saturating_add(1)),
                above_input_tokens: Some(tier.above_input_tokens),
                rates: tier.rates,
            });
        std::iter::once(base).chain(tiers)
    }

    /// The price band for an input of this many tokens, all classes together.
    pub fn span_of(&self, input_tokens: u64) -> Span {
        let base = Span {
            least: 0,
            most: u64::MAX,
            above_input_tokens: None,
            rates: self.base(),
        };
        self.spans()
            .find(|span| input_tokens <= span.most)
            .unwrap_or(base)
    }

    /// The factor on token prices for the tier, region and speed that served `usage`.
    pub fn factor(&self, usage: &Usage) -> Factor {
        let words = [usage.service_tier, usage.inference_geo, usage.speed];
        let factors = self.features.factors().into_iter().zip(words);
        factors.fold(Factor::ONE, |product, ((_, factors), word)| {
            product.times(factor_of(factors, word))
        })
    }
}

/// The factor for a vendor's name. 1 for the standard tier, and for a name without a price of its
/// own.
pub fn factor_of(factors: &Factors, word: Option<ServiceTier>) -> Factor {
    word.and_then(|word| factors.get(&word))
        .copied()
        .unwrap_or(Factor::ONE)
}

/// The hash of a price list. Members that are left out are not part of the hashed text, so a flat
/// list keeps the version it always had.
fn version(base: &Rates, tiers: &[Tier], features: &Features) -> String {
    let mut text = rates_text(base);
    // Writing to a string cannot fail.
    for Tier {
        above_input_tokens,
        rates,
    } in tiers
    {
        let _ = write!(text, "|above {above_input_tokens}:{}", rates_text(rates));
    }
    let audio = [
        ("audio_input", features.audio_input),
        ("audio_output", features.audio_output),
    ];
    let tools = ServerTool::ALL.map(|tool| (tool.key(), features.of_tool(tool)));
    for (name, price) in audio.into_iter().chain(tools) {
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

fn rates_text(rates: &Rates) -> String {
    let Rates {
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

    fn rates(prices: [i64; 5]) -> Rates {
        let [input, cache_read, cache_write_5m, cache_write_1h, output] =
            prices.map(|price| Micro::new(price * 1_000));
        Rates {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
        }
    }

    fn tier(above_input_tokens: u64, scale: i64) -> Tier {
        Tier {
            above_input_tokens,
            rates: rates([500, 50, 625, 1_000, 2_500].map(|price| price * scale)),
        }
    }

    fn base() -> Rates {
        rates([500, 50, 625, 1_000, 2_500])
    }

    #[test]
    fn a_flat_list_reads_and_hashes_as_it_always_did() {
        let kept = r#"{"version":"pv_5889ada34c9ef2b3","input":"500","cache_read":"50","cache_write_5m":"625","cache_write_1h":"1000","output":"2500"}"#;
        let price =
            Price::new([500, 50, 625, 1_000, 2_500].map(|credits| Micro::new(credits * 1_000_000)));
        assert_eq!(serde_json::to_string(&price).unwrap(), kept);
        let read: Price = serde_json::from_str(kept).unwrap();
        assert_eq!(read, price);
        assert!(read.is_version("pv_5889ada34c9ef2b3"));
    }

    #[test]
    fn everything_that_a_list_says_is_in_its_version() {
        let flex = ServiceTier::said("flex");
        let feature = |change: fn(&mut Features)| {
            let mut features = Features::default();
            change(&mut features);
            Price::list(base(), Vec::new(), features)
        };
        let some = Some(Micro::new(7));
        let mut lists = vec![
            Price::list(base(), Vec::new(), Features::default()),
            Price::list(base(), vec![tier(10, 2)], Features::default()),
            Price::list(base(), vec![tier(11, 2)], Features::default()),
            Price::list(base(), vec![tier(10, 3)], Features::default()),
            Price::list(base(), vec![tier(10, 2), tier(20, 3)], Features::default()),
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
                features.inference_geo = [(ServiceTier::said("us"), Factor::ONE)].into()
            }),
            feature(|features| features.speed = [(ServiceTier::said("us"), Factor::ONE)].into()),
        ];
        for factor in [1, 2] {
            let service_tier = BTreeMap::from([(flex, Factor::of(Micro::new(factor)).unwrap())]);
            lists.push(Price::list(
                base(),
                vec![tier(10, 2)],
                Features {
                    service_tier,
                    web_search: some,
                    ..Features::default()
                },
            ));
        }
        let versions: std::collections::HashSet<_> =
            lists.iter().map(|list| list.version.clone()).collect();
        assert_eq!(versions.len(), lists.len());
        for list in &lists {
            let kept: Price = serde_json::from_str(&serde_json::to_string(list).unwrap()).unwrap();
            assert_eq!(kept, *list);
            assert!(kept.is_version(&list.version) && !kept.is_version("pv_0000000000000000"));
            let forged = Price {
                output: kept.output.plus(Micro::new(1)),
                ..kept
            };
            assert!(!forged.is_version(&list.version));
        }
    }

    #[test]
    fn a_tier_begins_one_token_above_its_threshold() {
        let price = Price::list(
            base(),
            vec![tier(200_000, 2), tier(500_000, 3)],
            Features::default(),
        );
        for (tokens, above) in [
            (0, None),
            (200_000, None),
            (200_001, Some(200_000)),
            (500_000, Some(200_000)),
            (500_001, Some(500_000)),
            (u64::MAX, Some(500_000)),
        ] {
            let span = price.span_of(tokens);
            assert_eq!(span.above_input_tokens, above, "{tokens}");
            assert!((span.least..=span.most).contains(&tokens));
        }
        let ends: Vec<_> = price.spans().map(|span| (span.least, span.most)).collect();
        assert_eq!(
            ends,
            [(0, 200_000), (200_001, 500_000), (500_001, u64::MAX)]
        );
        let rates: Vec<_> = price.spans().map(|span| span.rates.output.get()).collect();
        assert_eq!(rates, [2_500_000, 5_000_000, 7_500_000]);
        let flat = Price::list(base(), Vec::new(), Features::default());
        assert_eq!(
            flat.span_of(u64::MAX),
            Span {
                least: 0,
                most: u64::MAX,
                above_input_tokens: None,
                rates: base()
            }
        );
    }
}
