//! The catalog: what can be asked for, at what price, and how to ask; as a page and as JSON. Public.

use super::App;
use super::page::{Frame, html};
use crate::account::LIVE_KEYS_MAX;
use crate::catalog::{Features, Model, Price, Rates, Tier};
use crate::config::Settings;
use crate::protocol::Protocol;
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;

/// Ready-to-paste set-up for the two surfaces.
#[derive(Template)]
#[template(path = "snippets.html")]
pub struct Snippets {
    base_url: String,
    /// Without one, the snippets read it from the environment.
    key: Option<String>,
    /// A model for each surface, where the catalog has one.
    chat: Option<String>,
    messages: Option<String>,
}

impl Snippets {
    pub fn new(settings: &Settings, key: Option<&str>) -> Self {
        let first = |protocol| {
            let mut models = settings.catalog.models().iter();
            // The surface's own protocol first: nothing is translated there.
            let own = models.clone().find(|model| model.vendor.protocol == protocol);
            own.or_else(|| models.next()).map(|model| model.id.clone())
        };
        Self {
            base_url: settings.base_url.clone(),
            key: key.map(ToOwned::to_owned),
            chat: first(Protocol::Chat),
            messages: first(Protocol::Messages),
        }
    }
}

/// The surfaces that a model can be reached through, its vendor's own first.
fn surfaces(model: &Model) -> [Protocol; 2] {
    match model.vendor.protocol {
        Protocol::Chat => [Protocol::Chat, Protocol::Messages],
        Protocol::Messages => [Protocol::Messages, Protocol::Chat],
    }
}

struct Row {
    id: String,
    vendor: String,
    surfaces: String,
    context_tokens: String,
    max_output_tokens: String,
    input: String,
    cache_read: String,
    cache_write_5m: String,
    cache_write_1h: String,
    output: String,
    /// What the same costs where the input is larger.
    tiers: Vec<TierRow>,
    /// What else has a price, in words.
    extras: Vec<String>,
}

struct TierRow {
    above_input_tokens: String,
    prices: [String; 5],
}

#[derive(Template)]
#[template(path = "docs.html")]
struct DocsPage {
    frame: Frame,
    base_url: String,
    models: Vec<Row>,
    snippets: Snippets,
    live_keys_max: i64,
}

fn row(model: &Model) -> Row {
    let price = &model.price;
    Row {
        id: model.id.clone(),
        vendor: model.vendor.name.clone(),
        surfaces: surfaces(model).into_iter().map(Protocol::as_str).collect::<Vec<_>>().join(", "),
        context_tokens: grouped(model.context_tokens),
        max_output_tokens: grouped(model.max_output_tokens),
        input: price.input.to_string(),
        cache_read: price.cache_read.to_string(),
        cache_write_5m: price.cache_write_5m.to_string(),
        cache_write_1h: price.cache_write_1h.to_string(),
        output: price.output.to_string(),
        tiers: price.tiers.iter().map(tier_row).collect(),
        extras: extras(price),
    }
}

fn tier_row(tier: &Tier) -> TierRow {
    let Rates { input, cache_read, cache_write_5m, cache_write_1h, output } = tier.rates;
    let prices = [input, cache_read, cache_write_5m, cache_write_1h, output].map(|price| price.to_string());
    TierRow { above_input_tokens: grouped(tier.above_input_tokens), prices }
}

fn extras(price: &Price) -> Vec<String> {
    let Features { audio_input, audio_output, web_search, service_tier } = &price.features;
    let per = [
        ("audio input", audio_input, "1 000 000 tokens"),
        ("audio output", audio_output, "1 000 000 tokens"),
        ("web search", web_search, "1 000 uses"),
    ];
    let told = per.into_iter().filter_map(|(name, price, per)| Some(format!("{name} {} per {per}", (*price)?)));
    let tiers = service_tier.iter().map(|(tier, factor)| format!("service tier {tier}: tokens × {factor}"));
    told.chain(tiers).collect()
}

/// `200000` as `200 000`, with narrow no-break spaces.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

pub async fn docs(State(app): State<Arc<App>>) -> Response {
    let settings = app.settings.load();
    let page = DocsPage {
        frame: Frame::public("Documentation"),
        base_url: settings.base_url.clone(),
        models: settings.catalog.models().iter().map(|model| row(model)).collect(),
        snippets: Snippets::new(&settings, None),
        live_keys_max: LIVE_KEYS_MAX,
    };
    revalidated(html(StatusCode::OK, &page))
}

pub async fn models_json(State(app): State<Arc<App>>) -> Response {
    let settings = app.settings.load();
    let models: Vec<_> = settings.catalog.models().iter().map(|model| model_json(model)).collect();
    let value = json!({
        "base_url": settings.base_url,
        "price_unit": "credits per 1000000 tokens",
        "web_search_unit": "credits per 1000 uses",
        "models": models,
    });
    revalidated(([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response())
}

fn model_json(model: &Model) -> Value {
    json!({
        "id": model.id,
        "vendor": model.vendor.name,
        "surfaces": surfaces(model).into_iter().map(Protocol::as_str).collect::<Vec<_>>(),
        "context_tokens": model.context_tokens,
        "max_output_tokens": model.max_output_tokens,
        "price": *model.price,
    })
}

/// Prices can change at any time: whoever keeps a copy asks again.
fn revalidated(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
    }
}
