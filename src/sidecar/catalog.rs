//! The public catalog: available models, their prices and how to call them, as a page and as JSON.

mod errors;
mod losses;

use super::App;
use super::page::{Frame, grouped, html};
use crate::account::LIVE_KEYS_MAX;
use crate::catalog::{Model, Price, Rates};
use crate::config::Settings;
use crate::money::Micro;
use crate::protocol::Protocol;
use crate::protocol::request::Outline;
use crate::usage::ServerTool;
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use losses::Loss;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Ready-to-paste configuration for the three surfaces.
#[derive(Template)]
#[template(path = "snippets.html")]
pub struct Snippets {
    base_url: String,
    /// A new key. If `None`, the snippets read the key from the environment.
    key: Option<String>,
    /// One model per surface, if the catalog has one.
    chat: Option<String>,
    messages: Option<String>,
    responses: Option<String>,
}

impl Snippets {
    pub fn new(settings: &Settings, key: Option<&str>) -> Self {
        let first = |protocol| {
            let mut models = settings.catalog.models().iter();
            // Prefer a model with the surface's own protocol, which needs no translation.
            let own = models
                .clone()
                .find(|model| door(model, protocol).passes(protocol));
            own.or_else(|| models.next()).map(|model| model.id.clone())
        };
        Self {
            base_url: settings.base_url.clone(),
            key: key.map(ToOwned::to_owned),
            chat: first(Protocol::Chat),
            messages: first(Protocol::Messages),
            responses: first(Protocol::Responses),
        }
    }
}

/// The variant of the model that handles a plain request of this surface.
fn door(model: &Arc<Model>, surface: Protocol) -> &Arc<Model> {
    model.door(surface, &Outline::default())
}

/// The surfaces of a model, first those without translation.
fn surfaces(model: &Arc<Model>) -> [Protocol; 3] {
    let mut surfaces = [Protocol::Chat, Protocol::Messages, Protocol::Responses];
    surfaces.sort_by_key(|surface| !door(model, *surface).passes(*surface));
    surfaces
}

/// The protocols that the gateway uses with the model's vendor.
fn spoken(model: &Model) -> Vec<Protocol> {
    let also = model.by_responses.as_ref().map(|model| model.protocol());
    std::iter::once(model.protocol()).chain(also).collect()
}

/// Parameters that the model does not support through a surface.
#[derive(Serialize)]
struct Lost {
    surface: Protocol,
    members: Vec<Loss>,
}

/// Limitations by surface, for surfaces that need translation.
fn lost(model: &Arc<Model>) -> Vec<Lost> {
    let translated = surfaces(model)
        .into_iter()
        .filter(|surface| !door(model, *surface).passes(*surface));
    let each = translated.map(|surface| Lost {
        surface,
        members: losses::losses(surface, &door(model, surface).accepts),
    });
    each.filter(|lost| !lost.members.is_empty()).collect()
}

/// Limitations by surface, for surfaces without translation, whose requests are repaired.
fn repaired(model: &Arc<Model>) -> Vec<Lost> {
    let own = surfaces(model)
        .into_iter()
        .filter(|surface| door(model, *surface).passes(*surface));
    let each = own.map(|surface| {
        let door = door(model, surface);
        Lost {
            surface,
            members: losses::repaired(&door.accepts, &door.repairs),
        }
    });
    each.filter(|lost| !lost.members.is_empty()).collect()
}

fn words(protocols: impl IntoIterator<Item = Protocol>) -> String {
    protocols
        .into_iter()
        .map(Protocol::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

struct Row {
    id: String,
    aliases: Vec<String>,
    vendor: String,
    /// The model's native protocols, which need no translation.
    spoken: String,
    surfaces: String,
    /// Ids of the fallback models.
    fallback: Vec<String>,
    context_tokens: String,
    max_output_tokens: String,
    input: String,
    cache_read: String,
    output: String,
    /// Input sizes from which on the prices differ; one column each.
    tiers: Vec<TierRow>,
    classes: Vec<Class>,
    /// Descriptions of the other prices.
    extras: Vec<String>,
    lost: Vec<Lost>,
}

struct TierRow {
    above_input_tokens: String,
}

/// A token class and its prices by tier.
struct Class {
    name: &'static str,
    prices: Vec<String>,
}

#[derive(Template)]
#[template(path = "docs.html")]
struct DocsPage {
    frame: Frame,
    base_url: String,
    models: Vec<Row>,
    snippets: Snippets,
    live_keys_max: i64,
    errors: Vec<errors::Row>,
}

fn row(model: &Arc<Model>) -> Row {
    let price = &model.price;
    Row {
        id: model.id.clone(),
        aliases: model.aliases.clone(),
        vendor: model.vendor.name.clone(),
        spoken: words(spoken(model)),
        surfaces: words(surfaces(model)),
        fallback: model.fallback.clone(),
        context_tokens: grouped(model.context_tokens),
        max_output_tokens: grouped(model.max_output_tokens),
        input: price.input.to_string(),
        cache_read: price.cache_read.to_string(),
        output: price.output.to_string(),
        tiers: price
            .tiers
            .iter()
            .map(|tier| TierRow {
                above_input_tokens: grouped(tier.above_input_tokens),
            })
            .collect(),
        classes: classes(price),
        extras: extras(price),
        lost: [repaired(model), lost(model)]
            .into_iter()
            .flatten()
            .collect(),
    }
}

fn classes(price: &Price) -> Vec<Class> {
    let usual = Rates {
        input: price.input,
        cache_read: price.cache_read,
        cache_write_5m: price.cache_write_5m,
        cache_write_1h: price.cache_write_1h,
        output: price.output,
    };
    let rates: Vec<_> = std::iter::once(usual)
        .chain(price.tiers.iter().map(|tier| tier.rates))
        .collect();
    let class = |name, of: fn(&Rates) -> Micro| Class {
        name,
        prices: rates.iter().map(|rates| of(rates).to_string()).collect(),
    };
    vec![
        class("Input", |rates| rates.input),
        class("Cache read", |rates| rates.cache_read),
        class("Cache write, 5 minutes", |rates| rates.cache_write_5m),
        class("Cache write, 1 hour", |rates| rates.cache_write_1h),
        class("Output, reasoning included", |rates| rates.output),
    ]
}

fn extras(price: &Price) -> Vec<String> {
    let features = &price.features;
    let audio = [
        ("audio input", features.audio_input),
        ("audio output", features.audio_output),
    ];
    let audio = audio
        .into_iter()
        .filter_map(|(name, price)| Some(format!("{name} {} per 1 000 000 tokens", price?)));
    let tools = ServerTool::ALL.into_iter().filter_map(|tool| {
        let (name, price) = (tool.key().replace('_', " "), features.of_tool(tool)?);
        Some(match price {
            Micro::ZERO => format!("{name} free"),
            price => format!("{name} {price} per 1 000 uses"),
        })
    });
    let names = ["service tier", "region", "speed"];
    let factors = features
        .factors()
        .into_iter()
        .zip(names)
        .flat_map(|((_, factors), name)| {
            factors
                .iter()
                .map(move |(word, factor)| format!("{name} {word}: tokens × {factor}"))
        });
    audio.chain(tools).chain(factors).collect()
}

pub async fn docs(State(app): State<Arc<App>>) -> Response {
    let settings = app.settings.load();
    let page = DocsPage {
        frame: Frame::public("Documentation"),
        base_url: settings.base_url.clone(),
        models: settings.catalog.models().iter().map(row).collect(),
        snippets: Snippets::new(&settings, None),
        live_keys_max: LIVE_KEYS_MAX,
        errors: errors::rows(),
    };
    revalidated(html(StatusCode::OK, &page))
}

pub async fn models_json(State(app): State<Arc<App>>) -> Response {
    let settings = app.settings.load();
    let models: Vec<_> = settings.catalog.models().iter().map(model_json).collect();
    let value = json!({
        "base_url": settings.base_url,
        "price_unit": "credits per 1000000 tokens",
        "web_search_unit": "credits per 1000 uses",
        "server_tool_unit": "credits per 1000 uses",
        "models": models,
    });
    revalidated(
        (
            [(header::CONTENT_TYPE, "application/json")],
            value.to_string(),
        )
            .into_response(),
    )
}

fn model_json(model: &Arc<Model>) -> Value {
    json!({
        "id": model.id,
        "aliases": model.aliases,
        "vendor": model.vendor.name,
        "vendor_protocols": spoken(model),
        "surfaces": surfaces(model),
        "fallback": model.fallback,
        "context_tokens": model.context_tokens,
        "max_output_tokens": model.max_output_tokens,
        "price": *model.price,
        "lost_in_translation": lost(model),
        "repaired": repaired(model),
    })
}

/// Adds `no-cache`: prices can change at any time, so clients must revalidate their copy.
fn revalidated(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
