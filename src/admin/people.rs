//! Changes the role of an account, deletes accounts, and reads receipts for operators. The audit
//! log records who read whose receipts, with one line a day.
//!
//! This file must not post to the ledger, and must not change or create an administrator, because a
//! stolen key could then do so.

use super::accounts::{next_cursor, parse_limit};
use super::body::{
    BodyResult, JsonResult, PathParam, QueryResult, deserialize_present, parse_body,
};
use super::error::AdminError;
use super::keys::refuse_administrator;
use super::state::AdminState;
use crate::billing::json;
use crate::document;
use crate::known_request::{KnownRequest, find_request};
use accounts::{Account, Actor, CloseAccountOutcome, Role};
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use base::clock::now_ms;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoleBody {
    #[serde(default, deserialize_with = "deserialize_present")]
    role: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeleteBody {
    #[serde(default, deserialize_with = "deserialize_present")]
    confirmation: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiptListQuery {
    before: Option<i64>,
    limit: Option<u32>,
}

pub async fn set_role(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
    body: BodyResult,
) -> JsonResult {
    let Path(name) = name?;
    let RoleBody { role } = parse_body(&body?)?;
    let role = match role.as_ref().and_then(Value::as_str) {
        Some("member") => Role::Member,
        Some("viewer") => Role::Viewer,
        _ => {
            let what = "role must be \"member\" or \"viewer\": for an administrator, use the \
                        dashboard or `model-gateway account role`";
            return Err(AdminError::Invalid(what.to_owned()));
        }
    };
    let account = app
        .run_write(move |app| {
            let account = app.find_account(&name)?;
            refuse_administrator(&account)?;
            let acting = app.accounts.with_actor(&by, now_ms());
            let outcome = acting.set_role(&account.id, role)?;
            close_result(outcome, &account)?;
            log::info!(
                "administrator {} set the role of account {} to {}",
                by.actor,
                account.id,
                role.name()
            );
            Ok(Account { role, ..account })
        })
        .await?;
    Ok(Json(document::account(&account)))
}

pub async fn delete(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
    body: BodyResult,
) -> JsonResult {
    let Path(name) = name?;
    let DeleteBody { confirmation } = parse_body(&body?)?;
    let id = app
        .run_write(move |app| {
            let account = app.find_account(&name)?;
            refuse_administrator(&account)?;
            let typed = confirmation.as_ref().and_then(Value::as_str);
            if typed.is_none_or(|typed| !typed.eq_ignore_ascii_case(&account.email)) {
                let what = "confirmation must be the e-mail of the account";
                return Err(AdminError::Invalid(what.to_owned()));
            }
            let acting = app.accounts.with_actor(&by, now_ms());
            let outcome = acting.delete_account(&account.id)?;
            close_result(outcome, &account)?;
            log::info!("administrator {} deleted account {}", by.actor, account.id);
            Ok(account.id)
        })
        .await?;
    Ok(Json(json!({"account_id": id, "status": "deleted"})))
}

/// Returns the response to a deletion. An administrator was refused before, unless another request
/// changed the role meanwhile.
fn close_result(outcome: CloseAccountOutcome, account: &Account) -> Result<(), AdminError> {
    match outcome {
        CloseAccountOutcome::Done => Ok(()),
        CloseAccountOutcome::NoAccount => Err(AdminError::NotFound(format!(
            "account {} is deleted",
            account.id
        ))),
        CloseAccountOutcome::LastOwner => Err(AdminError::Refused(
            "this account is the only owner of an organisation: make another member an owner first"
                .to_owned(),
        )),
        CloseAccountOutcome::LastAdministrator => Err(AdminError::Refused(
            "this account is the only administrator's who can sign in".to_owned(),
        )),
    }
}

/// The receipt of any account's request, or what else is known of it, by any id that a client got.
pub async fn receipt(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    request_id: PathParam,
) -> JsonResult {
    let Path(request_id) = request_id?;
    app.run_write(move |app| {
        let none = || {
            AdminError::NotFound(format!(
                "no request with the id {request_id} has ended; of one without a valid key, only \
                 the access log knows"
            ))
        };
        let charged = |id: &str| app.billing.ledger().rows().request_charge(id);
        let found = find_request(Some(&app.refused), None, &request_id, |id, of| {
            let account = match of {
                Some(account) => Some(account.to_owned()),
                None => charged(id)?.map(|charge| charge.account),
            };
            match account {
                Some(account) => app.billing.receipts().receipt(&account, id),
                None => Ok(None),
            }
        })?;
        let found = found.ok_or_else(none)?;
        let mut value = found.to_json(true);
        let account = match &found {
            KnownRequest::Billed(receipt, _) => {
                let charge = charged(&receipt.request_id)?.ok_or_else(none)?;
                value["refunded"] = json!(charge.refunded);
                charge.account
            }
            KnownRequest::Refused(refused) => refused.account.to_string(),
            KnownRequest::Free(note) => note.account.to_string(),
        };
        let what = json!({"receipt": value["request_id"]});
        let acting = app.accounts.with_actor(&by, now_ms());
        acting.record_daily("account.read", &account, &what)?;
        value["account_id"] = json!(account);
        Ok(Json(value))
    })
    .await
}

/// Returns the receipts of an account, newest first.
pub async fn receipts(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
    page: QueryResult<ReceiptListQuery>,
) -> JsonResult {
    let Query(ReceiptListQuery { before, limit }) = page?;
    let (Path(name), limit) = (name?, parse_limit(limit)?);
    app.run_write(move |app| {
        let account = app.find_account(&name)?;
        let what = json!({"page": "receipts"});
        let acting = app.accounts.with_actor(&by, now_ms());
        acting.record_daily("account.read", &account.id, &what)?;
        let receipts = app.billing.receipts();
        let receipts = receipts.receipts(&account.id, before, limit)?;
        let next = next_cursor(&receipts, limit, |receipt| json!(receipt.seq));
        let shown: Vec<_> = receipts.iter().map(json::receipt).collect();
        Ok(Json(json!({"receipts": shown, "next": next})))
    })
    .await
}
