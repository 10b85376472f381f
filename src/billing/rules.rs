//! What bounds a request's cost: from what a body asks for to a quote.
//!
//! A vendor reads at most one token per byte of the body itself. What makes it read or do more (an image, a fetched
//! file, a stored conversation) has a bound here, or takes the model's whole context; what has no price is refused.
//! Must not know accounts.

use super::pricing::Quote;
use crate::catalog::Model;
use crate::protocol::Protocol;
use crate::protocol::failure::Failure;
use crate::protocol::request::Outline;

/// Tokens that one image can be read as, on a messages vendor: (width × height) ÷ 750 at the largest size it takes.
/// Source: the vendor's vision guide, read 2026-11. Chat vendors multiply tiles by model: no bound is assumed there.
const MESSAGES_IMAGE_TOKENS: u64 = 5_000;

/// The least thinking budget a messages vendor accepts.
pub const THINKING_TOKENS_LEAST: u64 = 1_024;

/// The largest cost of a request as a function of its output limit. `outline` and `body_bytes` are of the body that the
/// vendor gets; `surface` is the caller's, for the words of a refusal.
///
/// # Errors
/// It asks for something that has no price.
pub fn quote(
    model: &Model,
    surface: Protocol,
    outline: &Outline,
    body_bytes: u64,
    min_output: u64,
) -> Result<Quote, Failure> {
    let vendor = model.vendor.protocol;
    let features = &outline.features;
    let unpriced = [
        (features.server_tools, if surface == Protocol::Chat { "web_search_options" } else { "tools" }),
        (features.service_tier.is_some(), "service_tier"),
        (features.speed, "speed"),
        (features.fallback_models, "fallbacks"),
    ];
    if let Some((_, param)) = unpriced.into_iter().find(|(asked, _)| *asked) {
        return Err(Failure::unpriced_feature(surface, param));
    }
    let output_limit = outline.output_limit.map_or(model.max_output_tokens, |limit| limit.tokens);
    let own_least = outline.output_limit.map_or(min_output, |limit| min_output.min(limit.tokens));
    let output_floor = match outline.thinking_budget {
        Some(_) => output_limit.min(THINKING_TOKENS_LEAST.saturating_add(min_output)),
        None => own_least,
    };
    Ok(Quote {
        input_tokens: input_tokens(model, vendor, outline, body_bytes),
        input_price: dearest_input(model, vendor, outline),
        output_price: model.price.output,
        choices: outline.choices.max(1),
        output_limit,
        output_floor,
    })
}

fn input_tokens(model: &Model, vendor: Protocol, outline: &Outline, body_bytes: u64) -> u64 {
    let features = &outline.features;
    let images_unbounded = features.images > 0 && vendor == Protocol::Chat;
    let unbounded = images_unbounded
        || features.documents_or_files
        || features.audio
        || features.url_sources && features.images == 0
        || features.thread_continue
        || features.compaction;
    if unbounded {
        return model.context_tokens;
    }
    let images = u64::from(features.images).saturating_mul(MESSAGES_IMAGE_TOKENS);
    body_bytes.saturating_add(images).min(model.context_tokens)
}

/// The dearest class that the input can be charged at: a chat vendor writes its cache unasked.
fn dearest_input(model: &Model, vendor: Protocol, outline: &Outline) -> crate::money::Micro {
    let price = &model.price;
    let five_minutes = vendor == Protocol::Chat || outline.features.cache_markers;
    let mut dearest = price.input.max(price.cache_read);
    if five_minutes {
        dearest = dearest.max(price.cache_write_5m);
    }
    if outline.features.cache_markers_1h {
        dearest = dearest.max(price.cache_write_1h);
    }
    dearest
}
