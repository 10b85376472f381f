//! Responses that need no vendor: health, the model list, credits, receipts, and replays of earlier
//! responses.
//!
//! This file must not change anything.

mod models;

use super::context::Context;
use super::{Gateway, reject};
use crate::account::Principal;
use crate::billing::shown;
use crate::catalog::Model;
use crate::clock;
use crate::config::Settings;
use crate::idempotency::Answer;
use crate::protocol::Protocol;
use crate::protocol::failure::{Failure, Kind};
use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use serde_json::json;
use std::sync::Arc;

/// An API endpoint that the gateway serves itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    Models,
    Model(String),
    Credits,
    Receipt(String),
}

/// Parses a path below `/v1`.
pub fn question(rest: &str) -> Option<Question> {
    match rest {
        "/models" => Some(Question::Models),
        "/credits" => Some(Question::Credits),
        _ => {
            let named = |prefix| {
                rest.strip_prefix(prefix)
                    .filter(|name: &&str| !name.is_empty())
            };
            let model = named(MODELS_BELOW).map(|id| Question::Model(model_id(id)));
            model.or_else(|| named("/receipts/").map(|id| Question::Receipt(id.to_owned())))
        }
    }
}

/// Prefix of a model's path below `/v1`, followed by the model's id.
pub const MODELS_BELOW: &str = "/models/";

/// Decodes a model's id from a path, once. Decodes only the characters that clients escape.
pub fn model_id(escaped: &str) -> String {
    let mut id = escaped.to_owned();
    for (escape, plain) in [
        ("%2F", "/"),
        ("%2f", "/"),
        ("%3A", ":"),
        ("%3a", ":"),
        ("%40", "@"),
    ] {
        if id.contains(escape) {
            id = id.replace(escape, plain);
        }
    }
    id
}

/// Label of a health check among the requests that the gateway answers itself.
pub const HEALTH: &str = "health";

/// Answers 200 without checking anything.
pub async fn health(session: &mut Session, ctx: &mut Context) -> pingora::Result<()> {
    ctx.status = 200;
    let mut head = ResponseHeader::build_no_case(200, Some(4))?;
    head.insert_header("content-type", "text/plain")?;
    reject::send_short(session, ctx, head, Bytes::from_static(b"ok\n")).await
}

/// Returns the response body for a token count that the gateway made itself.
pub fn count_body(surface: Protocol, tokens: u64) -> Bytes {
    let body = match surface {
        Protocol::Chat | Protocol::Messages => json!({"input_tokens": tokens}),
        Protocol::Responses => json!({"object": "response.input_tokens", "input_tokens": tokens}),
    };
    body.to_string().into()
}

/// Header that marks a token count as the gateway's own estimate.
pub const ESTIMATED: &str = "x-gateway-estimated";

/// Answers with a token count that the gateway made itself.
pub async fn count(session: &mut Session, ctx: &mut Context, tokens: u64) -> pingora::Result<()> {
    ctx.status = 200;
    let mut head = ResponseHeader::build_no_case(200, Some(5))?;
    head.insert_header("content-type", "application/json")?;
    head.insert_header(ESTIMATED, "true")?;
    reject::send(session, ctx, head, count_body(ctx.surface, tokens)).await
}

/// Sends the response of an earlier request again, under that request's id.
pub async fn replay(
    session: &mut Session,
    ctx: &mut Context,
    answer: Answer,
) -> pingora::Result<()> {
    ctx.status = 200;
    ctx.request_id = answer.request_id;
    let mut head = ResponseHeader::build_no_case(200, Some(10))?;
    for (name, value) in answer.headers {
        head.insert_header(name, value.into_bytes())?;
    }
    head.insert_header("x-gateway-replayed", "true")?;
    reject::send(session, ctx, head, answer.body.into()).await
}

/// Answers a request to one of the gateway's own endpoints.
///
/// # Errors
/// Returns an error if the item does not exist or cannot be looked up.
pub async fn answer(
    gateway: &Gateway,
    settings: &Settings,
    session: &mut Session,
    ctx: &mut Context,
    principal: &Principal,
    question: Question,
) -> Result<(), Failure> {
    let value = match question {
        Question::Models => {
            let allowed = |model: &&Arc<Model>| principal.settings.allows(&model.id);
            let models: Vec<_> = settings
                .catalog
                .models()
                .iter()
                .filter(allowed)
                .cloned()
                .collect();
            models::list(
                &models,
                ctx.surface,
                session.req_header().uri.query().unwrap_or_default(),
            )?
        }
        Question::Model(id) => match settings.catalog.find(&id) {
            Some(model) if principal.settings.allows(&model.id) => {
                models::describe(model, &model.id, ctx.surface)
            }
            Some(_) => return Err(Failure::model_not_allowed(&id)),
            None => return Err(Failure::model_not_found(&id)),
        },
        Question::Credits => shown::credits(
            &gateway
                .billing
                .balance(&principal.account_id, clock::now_ms())
                .await
                .map_err(unavailable)?,
        ),
        Question::Receipt(request_id) => {
            let look = || gateway.billing.receipt(&principal.account_id, &request_id);
            let receipt = shown::awaited(look, &request_id).await;
            let none = || Failure::new(Kind::UnknownPath, shown::NO_RECEIPT).with_retry_after(1);
            shown::receipt(&receipt.map_err(unavailable)?.ok_or_else(none)?)
        }
    };
    ctx.status = 200;
    let sent = async {
        let mut head = ResponseHeader::build_no_case(200, Some(5))?;
        head.insert_header("content-type", "application/json")?;
        head.insert_header("cache-control", "no-store")?;
        reject::send(session, ctx, head, value.to_string().into()).await
    };
    sent.await
        .map_err(|error: Box<pingora::Error>| Failure::new(Kind::Internal, error.to_string()))
}

fn unavailable(error: crate::store::StoreError) -> Failure {
    log::error!("answer about an account: {error}");
    Failure::of(Kind::LedgerUnavailable)
}
