//! Serves the playground, a page that sends a conversation to any model, with the credits of the
//! account that is shown.
//!
//! The page's script sends the requests to the edge, like any client, with a key that it asks for
//! here and keeps in memory only. Without the script, the page shows the request as a curl line.
//! This file must not send requests to models.

use super::assets::PLAYGROUND_SCRIPT;
use super::blocking::run_blocking;
use super::catalog::native_surface;
use super::display::group_digits;
use super::error::PageError;
use super::page::{Frame, html};
use super::session::{CurrentUser, SignedForm};
use super::state::SidecarState;
use super::throttle::{AttemptLimit, ThrottleKey};
use crate::shared_credit::wait_until_published;
use accounts::AccountError;
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base::clock::now_ms;
use config::catalog::CatalogModel;
use credits::money::Micro;
use llm_protocol::Protocol;
use llm_protocol::capabilities::{ModelCapabilities, SamplingSupport};
use llm_protocol::metered::ModelKind;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Default spending limit of a playground key, in credits.
const USUAL_KEY_CREDITS: &str = "5";

/// Maximum spending limit of a playground key: 100 credits.
const MAX_KEY_CREDITS: Micro = Micro::new(100_000_000);

/// Default maximum length of an answer, in tokens.
const USUAL_OUTPUT_TOKENS: u64 = 512;

/// Limit on the new playground keys of one account, because each key leaves a row in `app.db`.
const KEYS_PER_ACCOUNT: AttemptLimit = AttemptLimit {
    count: 60,
    window_ms: 3_600_000,
};

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/playground", get(show))
        .route("/dashboard/playground/key", post(create_key))
}

#[derive(Template)]
#[template(path = "playground.html")]
struct PlaygroundPage {
    frame: Frame,
    csrf: String,
    /// The organisation whose credits are spent; `None`: the reader's own ones.
    organisation: Option<String>,
    models: Vec<PlaygroundModel>,
    /// Request to the chosen model as a shell command; `None` without models.
    curl: Option<String>,
    output_tokens: u64,
    key_credits: &'static str,
    max_key_credits: Micro,
}

struct PlaygroundModel {
    id: String,
    surface: Protocol,
    /// Highest temperature; `None` if the model accepts no temperature.
    max_temperature: Option<u8>,
    max_output_tokens: u64,
    about: String,
    chosen: bool,
}

impl PlaygroundModel {
    fn new(model: &Arc<CatalogModel>, chosen: bool) -> Self {
        let price = &model.price;
        Self {
            id: model.id.clone(),
            surface: native_surface(model),
            max_temperature: match &model.accepts {
                ModelCapabilities::Messages(accepts) => match accepts.sampling {
                    SamplingSupport::Free | SamplingSupport::OneOf => Some(1),
                    SamplingSupport::Fixed => None,
                },
                ModelCapabilities::Chat(accepts) => accepts.sampling.then_some(2),
                ModelCapabilities::Responses(accepts) => accepts.sampling.then_some(2),
            },
            max_output_tokens: model.max_output_tokens,
            about: format!(
                "Context {} tokens, answers up to {} tokens. Credits per 1 000 000 tokens: input {}, \
                 output {}.",
                group_digits(model.context_tokens),
                group_digits(model.max_output_tokens),
                price.input,
                price.output,
            ),
            chosen,
        }
    }
}

#[derive(Deserialize)]
struct PlaygroundQuery {
    model: Option<String>,
}

async fn show(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<PlaygroundQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let wanted = query.ok().and_then(|Query(query)| query.model);
    let settings = app.settings.load();
    let members = app.accounts.organisations().members(&user.account.id)?;
    let member = members.iter().find(|one| one.person == user.person.id);
    let models = settings.catalog.models_of(ModelKind::Chat);
    let models: Vec<_> = models
        .filter(|model| member.is_none_or(|member| member.allows(&model.id)))
        .collect();
    let chosen = wanted
        .and_then(|id| models.iter().find(|model| model.id == id))
        .or_else(|| models.first());
    let output_tokens = chosen.map_or(USUAL_OUTPUT_TOKENS, |model| {
        model.max_output_tokens.min(USUAL_OUTPUT_TOKENS)
    });
    let page = PlaygroundPage {
        frame: Frame::new("Playground", &user).with_script(&PLAYGROUND_SCRIPT),
        csrf: user.csrf.clone(),
        organisation: user.account.organisation.clone(),
        curl: chosen.map(|model| curl_line(&user.site, model, output_tokens)),
        models: models
            .iter()
            .map(|model| {
                let is_chosen = chosen.is_some_and(|chosen| chosen.id == model.id);
                PlaygroundModel::new(model, is_chosen)
            })
            .collect(),
        output_tokens,
        key_credits: USUAL_KEY_CREDITS,
        max_key_credits: MAX_KEY_CREDITS,
    };
    Ok(html(StatusCode::OK, &page))
}

/// Returns a request to the model in its own protocol, as a shell command.
fn curl_line(base_url: &str, model: &Arc<CatalogModel>, output_tokens: u64) -> String {
    let surface = native_surface(model);
    let question = "Say hello.";
    let messages = json!([{"role": "user", "content": question}]);
    let (path, body) = match surface {
        Protocol::Chat => (
            "/v1/chat/completions",
            json!({"model": model.id, "max_completion_tokens": output_tokens, "messages": messages}),
        ),
        Protocol::Messages => (
            "/v1/messages",
            json!({"model": model.id, "max_tokens": output_tokens, "messages": messages}),
        ),
        Protocol::Responses => (
            "/v1/responses",
            json!({"model": model.id, "max_output_tokens": output_tokens, "input": question}),
        ),
    };
    format!(
        "curl {} \\\n  -H \"Authorization: Bearer $GATEWAY_KEY\" \\\n  \
         -H 'content-type: application/json' \\\n  -d {}",
        single_quoted(&format!("{base_url}{path}")),
        single_quoted(&body.to_string()),
    )
}

/// Quotes one word of a shell command.
fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Creates the playground key of this session. The response is always JSON, for the page's script.
async fn create_key(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let credits = match form.field("credits").trim().parse() {
        Ok(credits) if Micro::ZERO < credits && credits <= MAX_KEY_CREDITS => credits,
        _ => {
            let fault = format!(
                "The spend limit of the playground must be above 0 and at most {MAX_KEY_CREDITS} \
                 credits."
            );
            return Ok(refuse(StatusCode::UNPROCESSABLE_ENTITY, fault));
        }
    };
    let now_ms = now_ms();
    let user = form.user;
    let throttle_key = ThrottleKey::AccountCreatingPlaygroundKeys(user.account.id.clone());
    let throttled = app
        .throttle
        .try_acquire(&throttle_key, KEYS_PER_ACCOUNT, now_ms);
    if let Err(seconds) = throttled {
        let fault = format!(
            "Your account has created too many playground keys. Try again in {seconds} seconds."
        );
        let wait = [(header::RETRY_AFTER, seconds.to_string())];
        let refusal = refuse(StatusCode::TOO_MANY_REQUESTS, fault);
        return Ok((wait, refusal).into_response());
    }
    let accounts = app.accounts.clone();
    let create = move || {
        let new = accounts.api_keys().create_playground_key(
            user.key_holder(),
            &user.token,
            credits,
            now_ms,
        )?;
        wait_until_published(&accounts, &new.key_id);
        Ok(new)
    };
    match run_blocking(create).await? {
        Ok(new) => {
            let body = json!({"key": new.key, "expires_at_ms": new.expires_at_ms});
            Ok((StatusCode::CREATED, Json(body)).into_response())
        }
        Err(error @ AccountError::TooManyKeys) => Ok(refuse(
            StatusCode::CONFLICT,
            format!("The playground needs a key: {error}."),
        )),
        Err(error) => Err(error.into()),
    }
}

fn refuse(status: StatusCode, fault: String) -> Response {
    let body: Value = json!({"error": {"message": fault}});
    (status, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curl_line_is_a_request_that_a_shell_passes_on_unchanged() {
        assert_eq!(single_quoted("it's"), "'it'\\''s'");
        let settings = config::parse(include_str!("../../conf/local.yaml"), &|_| None).unwrap();
        for model in settings.catalog.models() {
            let line = curl_line("http://127.0.0.1:8080", model, 512);
            let (head, body) = line.rsplit_once(" -d '").unwrap();
            let path = if model.protocol() == Protocol::Messages {
                "/v1/messages"
            } else {
                "/v1/chat/completions"
            };
            assert!(head.starts_with(&format!("curl 'http://127.0.0.1:8080{path}' \\\n")));
            let body: Value = serde_json::from_str(body.strip_suffix('\'').unwrap()).unwrap();
            assert_eq!(body["model"], model.id);
        }
    }
}
