//! Opens accounts, and creates the links by which their holders set a password.
//!
//! This file must not create administrators. Only the command line on the machine itself may do so.

use super::body::{BodyResult, CreatedResult, PathParam, parse_body};
use super::error::AdminError;
use super::keys::refuse_administrator;
use super::state::AdminState;
use crate::document;
use accounts::{Account, Actor, LinkPurpose, NewAccount, Role, open_account_as};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use base::clock::{now_ms, rfc3339};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountBody {
    email: String,
    #[serde(default)]
    role: NewRole,
    /// True if the account gets the trial credits of the config file.
    #[serde(default = "yes")]
    trial: bool,
}

#[derive(Deserialize, Clone, Copy, Default)]
#[serde(rename_all = "snake_case")]
enum NewRole {
    #[default]
    Member,
    Viewer,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkBody {
    purpose: NewLinkPurpose,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum NewLinkPurpose {
    Reset,
    Setup,
}

fn yes() -> bool {
    true
}

pub async fn account(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    body: BodyResult,
) -> CreatedResult {
    let AccountBody { email, role, trial } = parse_body(&body?)?;
    let role = match role {
        NewRole::Member => Role::Member,
        NewRole::Viewer => Role::Viewer,
    };
    app.run_write(move |app| {
        let at_ms = now_ms();
        let new = NewAccount {
            role,
            ..NewAccount::new(&email)
        };
        let new = if trial {
            new.with_trial(&app.settings.load().signup, at_ms)
        } else {
            new
        };
        let account = open_account_as(&app.accounts, app.billing.ledger(), &new, &by, at_ms)?;
        log::info!("administrator {} created account {}", by.actor, account.id);
        let balance = app.billing.balance(&account.id, at_ms)?;
        let mut value = document::account_with_balance(&account, &balance);
        let (url, expires_at) = create_link(app, &by, &account, LinkPurpose::Setup)?;
        value["setup_link"] = json!(url);
        value["setup_link_expires_at"] = json!(expires_at);
        Ok((StatusCode::CREATED, Json(value)))
    })
    .await
}

pub async fn link(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
    body: BodyResult,
) -> CreatedResult {
    let LinkBody { purpose } = parse_body(&body?)?;
    let purpose = match purpose {
        NewLinkPurpose::Reset => LinkPurpose::Reset,
        NewLinkPurpose::Setup => LinkPurpose::Setup,
    };
    let Path(name) = name?;
    app.run_write(move |app| {
        let account = app.find_account(&name)?;
        refuse_administrator(&account)?;
        let (url, expires_at) = create_link(app, &by, &account, purpose)?;
        log::info!(
            "administrator {} created a {} link for account {}",
            by.actor,
            purpose.name(),
            account.id
        );
        let value = json!({
            "account_id": account.id, "purpose": purpose.name(), "url": url, "expires_at": expires_at,
        });
        Ok((StatusCode::CREATED, Json(value)))
    })
    .await
}

/// Creates a link. Returns its address, which is not stored, and the time at which it expires.
fn create_link(
    app: &AdminState,
    by: &Actor,
    account: &Account,
    purpose: LinkPurpose,
) -> Result<(String, String), AdminError> {
    let acting = app.accounts.with_actor(by, now_ms());
    let link = acting.create_one_time_link(&account.id, purpose)?;
    let url = link.url(&app.settings.load().base_url);
    Ok((url, rfc3339(link.expires_at_ms)))
}
