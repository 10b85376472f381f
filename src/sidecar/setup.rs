//! Serves the set-up pages: the list of clients, and for each client the configuration for this
//! gateway, with the models of the chosen key.
//!
//! The configuration reads the key from the environment, because the gateway does not store its
//! text. Only the page of a new key contains the key. The public pages below `/docs` show the files
//! for the whole catalog. This file must not define a client's configuration; `client_guides.rs`
//! does.

use super::display::Credits;
use super::error::PageError;
use super::page::{Frame, html, html_for_anyone};
use super::session::{CurrentUser, OptionalUser};
use super::state::SidecarState;
use crate::client_guides::{
    self, ClientGuide, ClientKind, SetupContext, SetupFile, SetupKey, UsualTurn,
};
use accounts::{ApiKey, ApiKeyStatus};
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use base::clock::now_ms;
use config::Settings;
use config::catalog::CatalogModel;
use llm_protocol::metered::ModelKind;
use serde::Deserialize;
use std::sync::Arc;

/// Default client on the page of a new key, because it works on every machine.
const DEFAULT_CLIENT: &str = "curl";

/// Guides that consist of a request in a language, with the language's name.
const FIRST_CALL_LANGUAGES: [(&str, &str); 3] = [
    ("curl", "curl"),
    ("openai-python", "Python"),
    ("openai-node", "Node.js"),
];

/// Lists the routes: public ones below `/docs`, and those for account holders.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/docs/clients/{client}", get(show_public))
        .route("/dashboard/setup", get(list))
        .route("/dashboard/setup/{client}", get(show))
}

/// Clients of one kind, for lists and forms.
pub struct ClientGroup {
    pub title: &'static str,
    pub clients: Vec<&'static ClientGuide>,
}

pub fn client_groups() -> Vec<ClientGroup> {
    let groups = ClientKind::ALL.into_iter().map(|kind| ClientGroup {
        title: kind.title(),
        clients: client_guides::guides()
            .filter(|guide| guide.kind == kind)
            .collect(),
    });
    groups.collect()
}

/// Files, lines and notes of one client, ready to paste.
#[derive(Template)]
#[template(path = "setup_files.html")]
pub struct GuideView {
    files: Vec<SetupFile>,
    instead_of_files: Option<String>,
    terminal: String,
    notes: Vec<String>,
    turns: &'static [UsualTurn],
    /// Turn costs, with a row for each model that the files use.
    costs: Vec<TurnCosts>,
}

/// Costs of typical turns with one model.
struct TurnCosts {
    role: &'static str,
    model: String,
    credits: Vec<Credits>,
}

impl GuideView {
    fn new(guide: &ClientGuide, context: &SetupContext<'_>) -> Self {
        let setup = guide.build(context);
        let turns = guide.kind.usual_turns();
        let costs = guide.roles.iter().map(|role| {
            let model = context.model_for(*role);
            TurnCosts {
                role: role.as_str(),
                model: model.id.clone(),
                credits: turns.iter().map(|turn| Credits(turn.cost(model))).collect(),
            }
        });
        Self {
            terminal: setup.terminal(&context.key),
            files: setup.files,
            instead_of_files: setup.instead_of_files,
            notes: setup.notes,
            turns,
            costs: costs.collect(),
        }
    }

    /// Removes the turn costs, because a request in a language is not a turn of an agent.
    fn without_costs(self) -> Self {
        Self {
            costs: Vec::new(),
            ..self
        }
    }

    /// Returns whether files or lines read the key from the environment.
    fn reads_variable(&self) -> bool {
        let texts = self.files.iter().map(|file| &file.text);
        texts
            .chain(&self.instead_of_files)
            .chain([&self.terminal])
            .any(|text| text.contains(client_guides::KEY_VARIABLE))
    }

    fn has_config_files(&self) -> bool {
        self.files.iter().any(|file| !file.is_commands())
    }
}

/// A request in one language, for the documentation.
pub struct FirstCall {
    pub name: &'static str,
    pub view: GuideView,
}

impl FirstCall {
    /// Returns the guides of the languages, for a model that `key` may use.
    pub fn all(settings: &Settings, key: Option<&ApiKey>) -> Vec<Self> {
        let models = match key {
            Some(key) => allowed_models(settings, key),
            None => chat_models(settings),
        };
        let call = |(client, name): (&str, &'static str)| {
            let guide = client_guides::find_guide(client)?;
            let key = SetupKey::in_environment();
            let context = SetupContext::new(&settings.base_url, key, models.clone(), None, guide)?;
            let view = GuideView::new(guide, &context).without_costs();
            Some(Self { name, view })
        };
        FIRST_CALL_LANGUAGES.into_iter().filter_map(call).collect()
    }
}

/// The section about a client on the page of a new key.
pub struct NewKeySetup {
    pub name: &'static str,
    pub view: GuideView,
}

impl NewKeySetup {
    /// Builds the guide of `client` with the text of the key; `None` if the key can use no model.
    pub fn new(settings: &Settings, key: &ApiKey, text: &str, client: &str) -> Option<Self> {
        let guide = client_guides::find_guide(client)
            .or_else(|| client_guides::find_guide(DEFAULT_CLIENT))?;
        let models = allowed_models(settings, key);
        let text = SetupKey::with_text(text);
        let context = SetupContext::new(&settings.base_url, text, models, None, guide)?;
        Some(Self {
            name: guide.name,
            view: GuideView::new(guide, &context),
        })
    }
}

/// Returns the keys that the account holder can put into a client, in the order of the page of
/// keys. Playground keys are omitted, because their text exists only in a browser's memory.
fn usable_keys(app: &SidecarState, user: &CurrentUser) -> Result<Vec<ApiKey>, PageError> {
    let holder = user.key_holder();
    let mut keys = app.accounts.api_keys().keys(holder.account)?;
    keys.retain(|key| {
        key.status != ApiKeyStatus::Revoked
            && !key.is_of_playground()
            && holder
                .member
                .is_none_or(|own| key.member.as_deref() == Some(own))
    });
    Ok(keys)
}

/// Returns the models that client programs can be set up for.
fn chat_models(settings: &Settings) -> Vec<Arc<CatalogModel>> {
    settings
        .catalog
        .models_of(ModelKind::Chat)
        .cloned()
        .collect()
}

/// Returns those of them that the key may use.
fn allowed_models(settings: &Settings, key: &ApiKey) -> Vec<Arc<CatalogModel>> {
    let models = settings.catalog.models_of(ModelKind::Chat);
    models
        .filter(|model| key.allows(&model.id))
        .cloned()
        .collect()
}

#[derive(Template)]
#[template(path = "setup.html")]
struct SetupPage {
    frame: Frame,
    groups: Vec<ClientGroup>,
    /// Query of the links, with the key for which the list was opened.
    query: String,
}

async fn list(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<SetupQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.unwrap_or_default();
    let keys = usable_keys(&app, &user)?;
    let is_known = keys.iter().any(|key| key.id == query.key);
    let page = SetupPage {
        frame: Frame::new("Set up", &user),
        groups: client_groups(),
        query: if is_known {
            format!("?key={}", query.key)
        } else {
            String::new()
        },
    };
    Ok(html(StatusCode::OK, &page))
}

#[derive(Template)]
#[template(path = "setup_client.html")]
struct SetupClientPage {
    frame: Frame,
    client: &'static ClientGuide,
    /// True if the page is in the dashboard, where account holders choose among their keys.
    in_dashboard: bool,
    keys: Vec<KeyChoice>,
    /// Models of the chosen key. The chosen model is marked.
    models: Vec<ModelChoice>,
    /// Model in the URL, if the key cannot use it.
    unusable_model: Option<String>,
    key_variable: &'static str,
    view: Option<GuideView>,
}

struct KeyChoice {
    id: String,
    name: String,
    shown: String,
    /// Reason for which the gateway refuses the key; `None` if it accepts the key.
    refusal: Option<&'static str>,
    is_chosen: bool,
}

struct ModelChoice {
    id: String,
    is_chosen: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SetupQuery {
    key: String,
    model: String,
}

fn require_guide(client: &str) -> Result<&'static ClientGuide, PageError> {
    client_guides::find_guide(client).ok_or(PageError::NotFound)
}

impl SetupClientPage {
    /// Builds the public page, with the files of the guide for one of the models.
    fn new(
        frame: Frame,
        settings: &Settings,
        guide: &'static ClientGuide,
        models: Vec<Arc<CatalogModel>>,
        model: &str,
    ) -> Self {
        let is_refused = !model.is_empty() && !models.iter().any(|known| known.id == model);
        let key = SetupKey::in_environment();
        let context = SetupContext::new(&settings.base_url, key, models, Some(model), guide)
            .map(|context| context.with_logins(settings.sign_in.device));
        let choices = |context: &SetupContext<'_>| {
            let chosen = &context.model().id;
            let choice = |model: &Arc<CatalogModel>| ModelChoice {
                id: model.id.clone(),
                is_chosen: model.id == *chosen,
            };
            context.models().iter().map(choice).collect()
        };
        Self {
            frame,
            client: guide,
            in_dashboard: false,
            keys: Vec::new(),
            models: context.as_ref().map(choices).unwrap_or_default(),
            unusable_model: is_refused.then(|| model.to_owned()),
            key_variable: client_guides::KEY_VARIABLE,
            view: context.map(|context| GuideView::new(guide, &context)),
        }
    }
}

async fn show(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(client): Path<String>,
    query: Result<Query<SetupQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let guide = require_guide(&client)?;
    let Query(query) = query.unwrap_or_default();
    let keys = usable_keys(&app, &user)?;
    let now_ms = now_ms();
    let refusal = |key: &ApiKey| {
        if key.settings.has_expired(now_ms) {
            Some("expired")
        } else {
            (key.status == ApiKeyStatus::Disabled).then_some("disabled")
        }
    };
    let chosen = if query.key.is_empty() {
        let works = keys.iter().find(|key| refusal(key).is_none());
        works.or(keys.first())
    } else {
        let named = keys.iter().find(|key| key.id == query.key);
        Some(named.ok_or(PageError::NotFound)?)
    };
    let settings = app.settings.load();
    let models = match chosen {
        Some(key) => allowed_models(&settings, key),
        None => chat_models(&settings),
    };
    let choices = keys.iter().map(|key| KeyChoice {
        id: key.id.clone(),
        name: key.name.clone(),
        shown: key.shown.clone(),
        refusal: refusal(key),
        is_chosen: chosen.is_some_and(|chosen| chosen.id == key.id),
    });
    let frame = Frame::new("Set up", &user);
    let page = SetupClientPage {
        in_dashboard: true,
        keys: choices.collect(),
        ..SetupClientPage::new(frame, &settings, guide, models, &query.model)
    };
    Ok(html(StatusCode::OK, &page))
}

async fn show_public(
    State(app): State<Arc<SidecarState>>,
    OptionalUser(user): OptionalUser,
    Path(client): Path<String>,
    query: Result<Query<SetupQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let guide = require_guide(&client)?;
    let Query(query) = query.unwrap_or_default();
    let settings = app.settings.load();
    let models = chat_models(&settings);
    let frame = Frame::for_anyone("Documentation", user.as_ref());
    let page = SetupClientPage::new(frame, &settings, guide, models, &query.model);
    Ok(html_for_anyone(&page, user.as_ref()))
}
