//! Estimates the credits that a usual request of an account reserves. With fewer credits, the
//! gateway refuses most of the account's requests with 402.
//!
//! The result is an estimate, because a reservation depends on the request's body, which is not
//! stored. This file must not decide whether a request is admitted.

use super::activity::ActivityFilter;
use super::receipt::Receipt;
use super::views::BillingPages;
use config::Settings;
use credits::money::Micro;
use credits::price_list::PriceList;
use credits::pricing;
use ledger::StoreError;
use llm_protocol::metered::ModelKind;
use llm_protocol::usage::Usage;

/// Number of latest responses whose median is the account's usual request.
const RESPONSES: u32 = 20;

/// Number of bytes in a request for two tokens that the vendor counts, by the assumption of
/// `billing/estimate.rs`. The gateway reserves a token for each byte.
const BYTES_PER_TWO_TOKENS: u64 = 7;

/// The minimum amount that a usual request reserves: its input, and the shortest answer to which
/// the gateway lowers an output limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsualReserve {
    pub credits: Micro,
    /// True if the amount is the median of the account's latest responses. Otherwise the account
    /// has none, and the amount is that of a short request to the cheapest model.
    pub is_of_account: bool,
}

impl BillingPages<'_> {
    /// Returns the amount that a usual request of the account reserves.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn usual_reserve(
        &self,
        account: &str,
        settings: &Settings,
    ) -> Result<UsualReserve, StoreError> {
        let output = settings.limits.min_output_tokens;
        let latest = self.activity(account, &ActivityFilter::default(), None, RESPONSES)?;
        let mut reserves: Vec<_> = latest
            .iter()
            .filter(|receipt| receipt.detail.usage.input_total() > 0)
            .map(|receipt| least_reserve(receipt, settings, output))
            .collect();
        reserves.sort_unstable();
        if let Some(median) = reserves.get(reserves.len() / 2) {
            return Ok(UsualReserve {
                credits: *median,
                is_of_account: true,
            });
        }
        let models = settings.catalog.models_of(ModelKind::Chat);
        let cheapest = models
            .map(|model| reserve(1, false, output, &model.price))
            .min();
        Ok(UsualReserve {
            credits: cheapest.unwrap_or_default(),
            is_of_account: false,
        })
    }
}

fn least_reserve(receipt: &Receipt, settings: &Settings, output: u64) -> Micro {
    let usage = &receipt.detail.usage;
    let bytes = usage.input_total().saturating_mul(BYTES_PER_TWO_TOKENS) / 2;
    let context = settings
        .catalog
        .find(&receipt.detail.model)
        .map_or(u64::MAX, |model| model.context_tokens);
    let writes_cache = usage.cache_write_5m + usage.cache_write_1h > 0;
    reserve(bytes.min(context), writes_cache, output, &receipt.price)
}

fn reserve(input: u64, writes_cache: bool, output: u64, price: &PriceList) -> Micro {
    let (input, cache_write_5m) = if writes_cache { (0, input) } else { (input, 0) };
    let usage = Usage {
        input,
        cache_write_5m,
        output,
        ..Usage::default()
    };
    pricing::cost(&usage, price)
}
