//! Converts a key to a row of the pages, and finds keys of the signed-in user.
//!
//! This file must not change a key.

use super::super::display::{Credits, Timestamp};
use super::super::error::PageError;
use super::super::session::CurrentUser;
use super::super::state::SidecarState;
use super::settings::describe_settings;
use accounts::{AccountStatus, ApiKey, ApiKeyStatus};
use base::clock::now_ms;
use credits::limits::Period;

pub struct KeyListRow {
    pub id: String,
    pub name: String,
    pub shown: String,
    /// E-mail of the member of the organisation who made the key.
    pub member: Option<String>,
    pub status: &'static str,
    /// Class of the badge with the status, after a space.
    pub badge: &'static str,
    pub live: bool,
    /// True if the playground created the key; such a key has no settings.
    pub is_of_playground: bool,
    /// True if a program signed in by it; it cannot be rotated.
    pub is_login: bool,
    pub disabled: bool,
    pub created: Timestamp,
    pub revoked: Option<Timestamp>,
    pub used: Option<Timestamp>,
    pub spent: Credits,
    /// Descriptions of the key's settings.
    pub limits: Vec<String>,
}

pub fn row(app: &SidecarState, user: &CurrentUser, key: ApiKey) -> Result<KeyListRow, PageError> {
    let now_ms = now_ms();
    let limit = key.settings.spend_limit;
    let spend = app.billing.key_spend(
        &key.id,
        limit.map_or(Period::Total, |limit| limit.period),
        now_ms,
    )?;
    let member = match &key.member {
        Some(member) => app.accounts.find(member)?,
        None => None,
    };
    let live = key.status != ApiKeyStatus::Revoked;
    let expired = live && key.settings.has_expired(now_ms);
    Ok(KeyListRow {
        limits: describe_settings(&key.settings, limit.map(|_| spend.spent)),
        status: if expired {
            "expired"
        } else if live && user.account.status == AccountStatus::Suspended {
            "does not work: account suspended"
        } else {
            key.status.name()
        },
        badge: match key.status {
            _ if expired || user.account.status == AccountStatus::Suspended => " warn",
            ApiKeyStatus::Active => " good",
            ApiKeyStatus::Disabled => " warn",
            ApiKeyStatus::Revoked => "",
        },
        member: member.map(|person| person.email),
        live,
        is_of_playground: key.is_of_playground(),
        is_login: key.is_login,
        disabled: key.status == ApiKeyStatus::Disabled,
        created: Timestamp(key.created_at_ms),
        revoked: key.revoked_at_ms.map(Timestamp),
        used: spend.used_at_ms.map(Timestamp),
        spent: Credits(spend.total),
        id: key.id,
        name: key.name,
        shown: key.shown,
    })
}

/// Finds a live key of the current user that has settings.
pub fn find_own_key(app: &SidecarState, user: &CurrentUser, id: &str) -> Result<ApiKey, PageError> {
    let key = find_live_key(app, user, id)?;
    if key.is_of_playground() {
        return Err(PageError::NotFound);
    }
    Ok(key)
}

pub fn find_live_key(
    app: &SidecarState,
    user: &CurrentUser,
    id: &str,
) -> Result<ApiKey, PageError> {
    let found = app
        .accounts
        .api_keys()
        .key(Some(&user.account.id), id)?
        .map(|(_, key)| key);
    let is_own = |key: &ApiKey| {
        user.only_member()
            .is_none_or(|own| key.member.as_deref() == Some(own))
    };
    found
        .filter(|key| key.status != ApiKeyStatus::Revoked && is_own(key))
        .ok_or(PageError::NotFound)
}
