//! Serves the public documentation as pages: calling the gateway, models with prices, billing, and
//! errors. The catalog is also available as JSON.

mod errors;
mod limitations;

use super::assets::DOCS_SCRIPT;
use super::display;
use super::page::{Frame, html_for_anyone, with_no_cache};
use super::session::{CurrentUser, OptionalUser};
use super::setup::{ClientGroup, FirstCall, client_groups};
use super::state::SidecarState;
use accounts::{ApiKey, ApiKeyStatus, MAX_LIVE_KEYS};
use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base::clock::now_ms;
use config::catalog::CatalogModel;
use credits::money::Micro;
use credits::price_list::{PriceList, TokenPrices};
use limitations::Limitation;
use llm_protocol::Protocol;
use llm_protocol::metered::BilledUnit;
use llm_protocol::request::RequestSummary;
use llm_protocol::usage::{CountedUnit, ServerTool};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Lists the routes, which are all public.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/docs", get(|app, user| docs(app, user, DocsPart::Start)))
        .route(
            "/docs/clients",
            get(|app, user| docs(app, user, DocsPart::Clients)),
        )
        .route(
            "/docs/models",
            get(|app, user| docs(app, user, DocsPart::Models)),
        )
        .route(
            "/docs/billing",
            get(|app, user| docs(app, user, DocsPart::Billing)),
        )
        .route(
            "/docs/errors",
            get(|app, user| docs(app, user, DocsPart::Errors)),
        )
        .route("/docs/models.json", get(models_json))
}

/// Returns the variant of the model that handles a plain request of this surface.
fn route_for_surface(model: &Arc<CatalogModel>, surface: Protocol) -> &Arc<CatalogModel> {
    model.select_variant(surface, &RequestSummary::default())
}

/// Returns the surfaces of a model, with the untranslated ones first.
fn surfaces(model: &Arc<CatalogModel>) -> [Protocol; 3] {
    let mut surfaces = [Protocol::Chat, Protocol::Messages, Protocol::Responses];
    surfaces.sort_by_key(|surface| !route_for_surface(model, *surface).passes_through(*surface));
    surfaces
}

/// Returns all that takes requests to a model: the surfaces of a chat model, and further paths.
fn surfaces_and_paths(model: &Arc<CatalogModel>) -> Vec<&'static str> {
    let surfaces = surfaces(model).map(Protocol::as_str).into_iter();
    let surfaces = surfaces.filter(|_| model.is_chat());
    surfaces.chain(model.other_paths()).collect()
}

/// Returns a surface on which a plain request to the model needs no translation, if there is one.
pub fn native_surface(model: &Arc<CatalogModel>) -> Protocol {
    let [first, ..] = surfaces(model);
    first
}

/// Returns the protocols that the gateway uses with the model's vendor.
fn vendor_protocols(model: &CatalogModel) -> Vec<Protocol> {
    let also = model.by_responses.as_ref().map(|model| model.protocol());
    std::iter::once(model.protocol()).chain(also).collect()
}

/// Parameters that the model does not support through a surface.
#[derive(Serialize)]
struct SurfaceLimitations {
    surface: Protocol,
    members: Vec<Limitation>,
}

/// Returns the limitations of each surface that needs translation.
fn limitations_by_surface(model: &Arc<CatalogModel>) -> Vec<SurfaceLimitations> {
    let translated = surfaces(model)
        .into_iter()
        .filter(|surface| !route_for_surface(model, *surface).passes_through(*surface));
    let each = translated.map(|surface| SurfaceLimitations {
        surface,
        members: limitations::translation_limitations(
            surface,
            &route_for_surface(model, surface).accepts,
        ),
    });
    each.filter(|limitations| !limitations.members.is_empty())
        .collect()
}

/// Returns the limitations of each untranslated surface whose requests are repaired.
fn repairs_by_surface(model: &Arc<CatalogModel>) -> Vec<SurfaceLimitations> {
    let own = surfaces(model)
        .into_iter()
        .filter(|surface| route_for_surface(model, *surface).passes_through(*surface));
    let each = own.map(|surface| {
        let route = route_for_surface(model, surface);
        SurfaceLimitations {
            surface,
            members: limitations::repair_limitations(&route.accepts, &route.repairs),
        }
    });
    each.filter(|limitations| !limitations.members.is_empty())
        .collect()
}

fn join_protocols(protocols: impl IntoIterator<Item = Protocol>) -> String {
    protocols
        .into_iter()
        .map(Protocol::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

struct TokenClassRow {
    name: &'static str,
    prices: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DocsPart {
    Start,
    Clients,
    Models,
    Billing,
    Errors,
}

impl DocsPart {
    /// All pages in navigation order.
    const ALL: [Self; 5] = [
        Self::Start,
        Self::Clients,
        Self::Models,
        Self::Billing,
        Self::Errors,
    ];

    fn path(self) -> &'static str {
        match self {
            Self::Start => "/docs",
            Self::Clients => "/docs/clients",
            Self::Models => "/docs/models",
            Self::Billing => "/docs/billing",
            Self::Errors => "/docs/errors",
        }
    }

    /// Returns the page's title in the navigation.
    fn title(self) -> &'static str {
        match self {
            Self::Start => "Start",
            Self::Clients => "Clients",
            Self::Models => "Models",
            Self::Billing => "Billing",
            Self::Errors => "Errors",
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Self::Start => "Documentation",
            other => other.title(),
        }
    }
}

#[derive(Template)]
#[template(path = "docs.html")]
struct DocsPage {
    frame: Frame,
    part: DocsPart,
    base_url: String,
    models: Vec<Arc<CatalogModel>>,
    first_calls: Vec<FirstCall>,
    /// Name of the reader's key for the examples, if the reader is signed in and has a key.
    key_name: Option<String>,
    clients: Vec<ClientGroup>,
    live_keys_max: i64,
    errors: Vec<errors::ErrorRow>,
}

/// Returns the limitations of all surfaces, with the untranslated ones first.
fn all_limitations(model: &Arc<CatalogModel>) -> Vec<SurfaceLimitations> {
    if !model.is_chat() {
        return Vec::new();
    }
    let mut all = repairs_by_surface(model);
    all.extend(limitations_by_surface(model));
    all
}

fn token_classes(model: &CatalogModel) -> Vec<TokenClassRow> {
    let price = &model.price;
    let default_prices = TokenPrices {
        input: price.input,
        cache_read: price.cache_read,
        cache_write_5m: price.cache_write_5m,
        cache_write_1h: price.cache_write_1h,
        output: price.output,
    };
    let rates: Vec<_> = std::iter::once(default_prices)
        .chain(price.tiers.iter().map(|tier| tier.rates))
        .collect();
    let class = |name, of: fn(&TokenPrices) -> Micro| TokenClassRow {
        name,
        prices: rates
            .iter()
            .map(|rates| display::group_amount(of(rates)))
            .collect(),
    };
    let input = class("Input", |rates| rates.input);
    match model.billed_unit() {
        _ if model.is_chat() => {}
        BilledUnit::Counted(_) => return Vec::new(),
        BilledUnit::Tokens if model.max_output_tokens == 0 => return vec![input],
        BilledUnit::Tokens => {
            let output = class("Output", |rates| rates.output);
            let has_output = price.output != Micro::ZERO;
            return std::iter::once(input)
                .chain(has_output.then_some(output))
                .collect();
        }
    }
    vec![
        input,
        class("Cache read", |rates| rates.cache_read),
        class("Cache write, 5 minutes", |rates| rates.cache_write_5m),
        class("Cache write, 1 hour", |rates| rates.cache_write_1h),
        class("Output, including reasoning", |rates| rates.output),
    ]
}

/// Returns the price of a model's input, or of the unit that is counted in its place, as the
/// overviews show it.
pub(super) fn input_price(model: &CatalogModel) -> String {
    match model.billed_unit() {
        BilledUnit::Tokens => display::group_amount(model.price.input),
        BilledUnit::Counted(unit) => unit_price(&model.price, unit).unwrap_or_default(),
    }
}

/// Returns the price of a model's output, or a dash if none is billed.
pub(super) fn output_price(model: &CatalogModel) -> String {
    let price = &model.price;
    let own = (model.is_chat() || price.output != Micro::ZERO).then_some(price.output);
    let shown = price.features.image_output.or(own);
    shown.map_or_else(|| "–".to_owned(), display::group_amount)
}

fn unit_price(price: &PriceList, unit: CountedUnit) -> Option<String> {
    let credits = display::group_amount(price.features.unit_price(unit)?);
    Some(format!("{credits} per 1 000 {}", unit.plural()))
}

fn extra_prices(price: &PriceList) -> Vec<String> {
    let features = &price.features;
    let media = [
        ("audio input", features.audio_input),
        ("audio output", features.audio_output),
        ("image input", features.image_input),
        ("image output", features.image_output),
    ];
    let media = media.into_iter().filter_map(|(name, price)| {
        Some(format!(
            "{name} {} per 1 000 000 tokens",
            display::group_amount(price?)
        ))
    });
    let tools = ServerTool::ALL.into_iter().filter_map(|tool| {
        let (name, price) = (tool.key().replace('_', " "), features.tool_price(tool)?);
        Some(match price {
            Micro::ZERO => format!("{name} free"),
            price => format!("{name} {} per 1 000 uses", display::group_amount(price)),
        })
    });
    let units = CountedUnit::ALL.into_iter();
    let units = units.filter_map(|unit| unit_price(price, unit));
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
    media.chain(tools).chain(units).chain(factors).collect()
}

async fn docs(
    State(app): State<Arc<SidecarState>>,
    OptionalUser(user): OptionalUser,
    part: DocsPart,
) -> Response {
    let settings = app.settings.load();
    let key = user.as_ref().and_then(|user| first_key(&app, user));
    let page = DocsPage {
        frame: Frame::for_anyone("Documentation", user.as_ref()).with_script(&DOCS_SCRIPT),
        part,
        base_url: settings.base_url.clone(),
        models: settings.catalog.models().to_vec(),
        first_calls: match part {
            DocsPart::Start => FirstCall::all(&settings, key.as_ref()),
            _ => Vec::new(),
        },
        key_name: key.map(|key| key.name),
        clients: client_groups(),
        live_keys_max: MAX_LIVE_KEYS,
        errors: errors::rows(),
    };
    html_for_anyone(&page, user.as_ref())
}

/// Returns the reader's first key that a client can use.
fn first_key(app: &SidecarState, user: &CurrentUser) -> Option<ApiKey> {
    let holder = user.key_holder();
    let keys = app.accounts.api_keys().keys(holder.account);
    let keys = keys.map_err(|error| {
        log::warn!("sidecar: cannot read the keys of a reader of the documentation: {error}");
    });
    let is_usable = |key: &ApiKey| {
        key.status == ApiKeyStatus::Active
            && !key.is_of_playground()
            && !key.settings.has_expired(now_ms())
            && holder
                .member
                .is_none_or(|own| key.member.as_deref() == Some(own))
    };
    keys.ok()?.into_iter().find(is_usable)
}

async fn models_json(State(app): State<Arc<SidecarState>>) -> Response {
    let settings = app.settings.load();
    let models: Vec<_> = settings.catalog.models().iter().map(model_json).collect();
    let value = json!({
        "base_url": settings.base_url,
        "price_unit": "credits per 1000000 tokens",
        "web_search_unit": "credits per 1000 uses",
        "server_tool_unit": "credits per 1000 uses",
        "search_unit_unit": "credits per 1000 units",
        "image_unit": "credits per 1000 images",
        "character_unit": "credits per 1000 characters",
        "second_unit": "credits per 1000 seconds",
        "models": models,
    });
    with_no_cache(
        (
            [(header::CONTENT_TYPE, "application/json")],
            value.to_string(),
        )
            .into_response(),
    )
}

/// Returns the prices that can be billed: a price of 0 for tokens that a model has not would read
/// as if it were free.
fn price_json(model: &CatalogModel) -> Value {
    let mut price = json!(*model.price);
    if let (false, Some(classes)) = (model.is_chat(), price.as_object_mut()) {
        classes.retain(|name, value| match name.as_str() {
            "input" => model.billed_unit() == BilledUnit::Tokens,
            "output" => *value != json!("0"),
            name => !name.starts_with("cache_"),
        });
    }
    price
}

fn model_json(model: &Arc<CatalogModel>) -> Value {
    json!({
        "id": model.id,
        "aliases": model.aliases,
        "kind": model.kind.as_str(),
        "vendor": model.vendor.name,
        "vendor_protocols": vendor_protocols(model),
        "surfaces": surfaces_and_paths(model),
        "fallback": model.fallback,
        "context_tokens": model.context_tokens,
        "max_output_tokens": model.max_output_tokens,
        "price": price_json(model),
        "lost_in_translation": if model.is_chat() { limitations_by_surface(model) } else { Vec::new() },
        "repaired": if model.is_chat() { repairs_by_surface(model) } else { Vec::new() },
    })
}
