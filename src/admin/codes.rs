//! Codes that account holders redeem for credits. Where none are taken, these paths answer 404
//! (`admin.rs`).
//!
//! The texts of codes are in the answer to their creation alone.

use super::accounts::{next_cursor, parse_limit};
use super::body::{BodyResult, CreatedResult, JsonResult, PathParam, QueryResult, parse_body};
use super::error::AdminError;
use super::state::AdminState;
use crate::document;
use accounts::{Actor, NewCodes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use base::clock::{now_ms, rfc3339};
use credits::money::Micro;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeListQuery {
    cursor: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateCodesBody {
    credits: Micro,
    #[serde(default = "one")]
    count: u32,
    expires_in_seconds: i64,
    #[serde(default = "one")]
    per_account: u32,
}

fn one() -> u32 {
    1
}

pub async fn create(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    body: BodyResult,
) -> CreatedResult {
    let body: CreateCodesBody = parse_body(&body?)?;
    app.run_write(move |app| {
        let now_ms = now_ms();
        let new = NewCodes {
            credits: body.credits,
            count: body.count,
            expires_at_ms: now_ms.saturating_add(body.expires_in_seconds.saturating_mul(1_000)),
            per_account: body.per_account,
        };
        let created = app.accounts.with_actor(&by, now_ms).create_codes(&new)?;
        log::info!(
            "administrator {} created the codes {}",
            by.actor,
            created.batch
        );
        let value = json!({
            "batch": created.batch, "credits": new.credits, "per_account": new.per_account,
            "expires_at": rfc3339(new.expires_at_ms), "codes": created.codes,
        });
        Ok((StatusCode::CREATED, Json(value)))
    })
    .await
}

pub async fn list(
    State(app): State<Arc<AdminState>>,
    page: QueryResult<CodeListQuery>,
) -> JsonResult {
    let Query(CodeListQuery { cursor, limit }) = page?;
    let limit = parse_limit(limit)?;
    let codes = app.accounts.codes();
    let batches = codes.batches(cursor.as_deref().unwrap_or_default(), limit)?;
    let next = next_cursor(&batches, limit, |batch| json!(batch.id));
    let batches: Vec<_> = batches.iter().map(document::code_batch).collect();
    Ok(Json(json!({"batches": batches, "next": next})))
}

pub async fn show(State(app): State<Arc<AdminState>>, batch: PathParam) -> JsonResult {
    let Path(batch) = batch?;
    let codes = app.accounts.codes().codes_of(&batch)?;
    if codes.is_empty() {
        return Err(AdminError::NotFound(format!(
            "no codes have the batch {batch}"
        )));
    }
    let now_ms = now_ms();
    let codes: Vec<_> = codes
        .iter()
        .map(|code| document::code(code, now_ms))
        .collect();
    Ok(Json(json!({"batch": batch, "codes": codes})))
}

pub async fn void(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
) -> JsonResult {
    let Path(name) = name?;
    app.run_write(move |app| {
        let voided = app.accounts.with_actor(&by, now_ms()).void_codes(&name)?;
        let count = voided.ok_or_else(|| {
            AdminError::NotFound("no open code and no batch has this id or text".to_owned())
        })?;
        Ok(Json(json!({"voided": count})))
    })
    .await
}
