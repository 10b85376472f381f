//! Merges an account into another one.
//!
//! This file must not decide which accounts can be merged.

use super::body::{BodyResult, JsonResult, PathParam, parse_body};
use super::state::AdminState;
use crate::account_merge::{AccountMerge, merge_accounts};
use accounts::Actor;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MergeBody {
    /// Id or e-mail of the account that gets everything.
    into: String,
    /// Id or e-mail of the member who gets the keys, if that account is an organisation's.
    member: Option<String>,
}

pub async fn merge(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
    body: BodyResult,
) -> JsonResult {
    let MergeBody { into, member } = parse_body(&body?)?;
    let Path(name) = name?;
    app.run_write(move |app| {
        let (from, to) = (app.find_account(&name)?, app.find_account(&into)?);
        let member = member.map(|member| app.find_account(&member)).transpose()?;
        let merge = AccountMerge {
            from: &from,
            to: &to,
            member: member.as_ref().map(|member| &*member.id),
            actor: Some(&by.actor),
        };
        let merged = merge_accounts(&app.accounts, &app.billing, &by, &merge)?;
        if merged.is_new {
            let (actor, from, to) = (&by.actor, &from.id, &to.id);
            log::info!("administrator {actor} merged account {from} into {to}");
        }
        Ok(Json(merged.to_json(&merge)))
    })
    .await
}
