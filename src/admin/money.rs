//! Postings: grants, top-ups, adjustments and refunds. The response is 201 for a new posting. It is
//! 200 if the same reference was already posted with the same content; then nothing changes.
//!
//! Reports malformed input by member, and leaves it to the ledger what is allowed.

use super::App;
use super::document;
use super::problem::Problem;
use crate::account::By;
use crate::billing::correct::{REASON_CHARS_MAX, REFERENCE_CHARS_MAX, is_reason, is_reference};
use crate::clock::now_ms;
use crate::money::{MICRO_MAX, Micro};
use crate::store::ledger::{Change, ChangeKind, Posted, Refund};
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::sync::Arc;

type Body = Result<Bytes, BytesRejection>;
type Named = Result<Path<String>, PathRejection>;
type Outcome = Result<(StatusCode, Json<Value>), Problem>;

/// The body of a grant, a top-up or a refund.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Amount {
    #[serde(default, deserialize_with = "given")]
    credits: Option<Value>,
    #[serde(default, rename = "ref", deserialize_with = "given")]
    reference: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Adjustment {
    #[serde(default, deserialize_with = "given")]
    credits: Option<Value>,
    #[serde(default, rename = "ref", deserialize_with = "given")]
    reference: Option<Value>,
    #[serde(default, deserialize_with = "given")]
    reason: Option<Value>,
}

/// Deserializes a member that is present, even as `null`. A missing member has a defined meaning;
/// `null` does not.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

pub async fn grant(app: State<Arc<App>>, by: Extension<By>, name: Named, body: Body) -> Outcome {
    give(app, by, name, body, ChangeKind::Grant).await
}

pub async fn top_up(app: State<Arc<App>>, by: Extension<By>, name: Named, body: Body) -> Outcome {
    give(app, by, name, body, ChangeKind::TopUp).await
}

async fn give(
    State(app): State<Arc<App>>,
    Extension(by): Extension<By>,
    name: Named,
    body: Body,
    kind: ChangeKind<'static>,
) -> Outcome {
    let Amount { credits, reference } = read(&body?)?;
    let amount = positive(credits)?.ok_or_else(|| missing("credits"))?;
    let order = Order {
        name: name?.0,
        amount,
        reference: reference_of(reference)?,
        by,
    };
    app.write(move |app| order.post(app, kind)).await
}

pub async fn adjust(
    State(app): State<Arc<App>>,
    Extension(by): Extension<By>,
    name: Named,
    body: Body,
) -> Outcome {
    let Adjustment {
        credits,
        reference,
        reason,
    } = read(&body?)?;
    let amount = amount_of(credits)?.ok_or_else(|| missing("credits"))?;
    if amount == Micro::ZERO {
        return Err(Problem::Invalid("credits: must not be 0".into()));
    }
    let reason = text("reason", reason)?;
    if !is_reason(&reason) {
        return Err(Problem::Invalid(format!(
            "reason: must be a text of 1 to {REASON_CHARS_MAX} characters"
        )));
    }
    let order = Order {
        name: name?.0,
        amount,
        reference: reference_of(reference)?,
        by,
    };
    app.write(move |app| order.post(app, ChangeKind::Adjust { reason: &reason }))
        .await
}

pub async fn refund(
    State(app): State<Arc<App>>,
    Extension(by): Extension<By>,
    request_id: Named,
    body: Body,
) -> Outcome {
    let Amount { credits, reference } = read(&body?)?;
    let (amount, reference, Path(request_id)) =
        (positive(credits)?, reference_of(reference)?, request_id?);
    app.write(move |app| {
        let (reference, request_id) = (reference.as_str(), request_id.as_str());
        let (actor, at_ms) = (by.actor.as_str(), now_ms());
        let refund = Refund {
            reference,
            request_id,
            amount,
            actor: Some(actor),
            at_ms,
        };
        let what = json!({"credits": amount, "ref": reference});
        let acting = app.accounts.acting(&by, at_ms);
        let posted = acting.order("request.refund", request_id, &what, || {
            app.billing.give_back(&refund)
        })?;
        Ok(told("refund", reference, actor, &posted))
    })
    .await
}

/// A posting: its account, its content and its actor.
struct Order {
    name: String,
    amount: Micro,
    reference: String,
    by: By,
}

impl Order {
    fn post(&self, app: &App, kind: ChangeKind<'_>) -> Outcome {
        let Self {
            name,
            amount,
            reference,
            by,
        } = self;
        let account = app.find(name)?.id;
        let (amount, actor, at_ms) = (*amount, by.actor.as_str(), now_ms());
        let change = Change {
            kind,
            reference,
            account: &account,
            amount,
            actor: Some(actor),
            at_ms,
        };
        let acting = app.accounts.acting(by, at_ms);
        let posted = acting.change(&change, || app.billing.change(&change))?;
        Ok(told(kind.name(), reference, actor, &posted))
    }
}

fn told(kind: &str, reference: &str, actor: &str, posted: &Posted) -> (StatusCode, Json<Value>) {
    let Posted {
        account,
        is_new,
        change,
        ..
    } = posted;
    if *is_new {
        log::info!(
            "administrator {actor} posted a {kind} of {change} to account {account}, reference {reference:?}"
        );
    }
    let status = if *is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    (status, Json(document::posted(kind, reference, posted)))
}

/// Parses the body of a posting: an object with only the expected members, each at most once.
fn read<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, Problem> {
    // Otherwise serde would accept an array and take its items as the members in order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::Invalid("the body must be a JSON object".into()));
    }
    serde_json::from_slice(body).map_err(|error| Problem::Invalid(format!("the body: {error}")))
}

fn missing(name: &str) -> Problem {
    Problem::Invalid(format!("{name}: is missing"))
}

fn text(name: &str, value: Option<Value>) -> Result<String, Problem> {
    match value {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(Problem::Invalid(format!("{name}: must be a text"))),
        None => Err(missing(name)),
    }
}

fn reference_of(value: Option<Value>) -> Result<String, Problem> {
    let reference = text("ref", value)?;
    if !is_reference(&reference) {
        let why = format!(
            "ref: must be a text of 1 to {REFERENCE_CHARS_MAX} characters without control characters"
        );
        return Err(Problem::Invalid(why));
    }
    Ok(reference)
}

fn amount_of(value: Option<Value>) -> Result<Option<Micro>, Problem> {
    let Some(value) = value else { return Ok(None) };
    let amount = value.as_str().and_then(|text| text.parse().ok());
    amount.map(Some).ok_or_else(|| {
        let largest = Micro::new(MICRO_MAX);
        let what = "must be a text with a decimal number of credits, such as \"12.5\", with at most 6 decimals";
        Problem::Invalid(format!("credits: {what}, up to {largest}"))
    })
}

fn positive(value: Option<Value>) -> Result<Option<Micro>, Problem> {
    match amount_of(value)? {
        Some(amount) if !amount.is_positive() => {
            Err(Problem::Invalid("credits: must be above 0".into()))
        }
        amount => Ok(amount),
    }
}
