//! Lists and creates organisations, and changes their members, for operators.
//!
//! `organisations.rs` makes the changes, as for the pages and the command line. This file must not
//! decide what an organisation allows.

use super::accounts::{next_cursor, parse_limit};
use super::body::{
    BodyResult, CreatedResult, JsonResult, PathParam, QueryResult, deserialize_setting, parse_body,
};
use super::error::AdminError;
use super::keys::check_models;
use super::state::AdminState;
use crate::document;
use crate::organisations::{
    MemberUpdate, change_member, create_organisation, describe_organisation,
};
use accounts::{Account, Actor, MemberAuthority, MemberEdit, OrganisationRole};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use base::clock::now_ms;
use credits::limits::SpendLimit;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

/// The organisation, and what the path names below it: a person, an invitation or a domain.
type PairParam = Result<Path<(String, String)>, PathRejection>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrganisationListQuery {
    cursor: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OrganisationBody {
    name: String,
    /// Id or e-mail of the person's account.
    owner: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewMemberBody {
    /// Id or e-mail of the person's account.
    person: String,
    role: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberBody {
    role: Option<String>,
    /// Budget in the format of the command line, such as `100/month`.
    #[serde(default, deserialize_with = "deserialize_setting")]
    budget: Option<Option<String>>,
    #[serde(default, deserialize_with = "deserialize_setting")]
    models: Option<Option<Vec<String>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemovalBody {
    /// Id or e-mail of the member who gets the keys.
    keys_to: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DomainBody {
    domain: String,
}

pub async fn list(
    State(app): State<Arc<AdminState>>,
    page: QueryResult<OrganisationListQuery>,
) -> JsonResult {
    let Query(OrganisationListQuery { cursor, limit }) = page?;
    let limit = parse_limit(limit)?;
    let directory = app.accounts.directory();
    let found = directory.organisations(cursor.as_deref(), limit)?;
    let next = next_cursor(&found, limit, |one| json!(one.id));
    let shown: Vec<_> = found.iter().map(document::organisation).collect();
    Ok(Json(json!({"organisations": shown, "next": next})))
}

pub async fn show(State(app): State<Arc<AdminState>>, name: PathParam) -> JsonResult {
    let organisation = find_organisation(&app, &name?)?;
    describe(&app, &organisation)
}

pub async fn create(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    body: BodyResult,
) -> CreatedResult {
    let OrganisationBody { name, owner } = parse_body(&body?)?;
    app.run_write(move |app| {
        let owner = app.find_account(&owner)?;
        let created = create_organisation(&app.accounts, &app.billing, &by, &name, &owner.id)?;
        log_act(&by, "created", &created);
        Ok((StatusCode::CREATED, describe(app, &created)?))
    })
    .await
}

pub async fn add_member(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
    body: BodyResult,
) -> CreatedResult {
    let NewMemberBody { person, role } = parse_body(&body?)?;
    let role = role.as_deref().map(parse_role).transpose()?;
    let role = role.unwrap_or(OrganisationRole::Member);
    let Path(name) = name?;
    app.run_write(move |app| {
        let organisation = find_organisation(app, &name)?;
        let person = app.find_account(&person)?;
        let acting = app.accounts.with_actor(&by, now_ms());
        acting.add_member(&organisation.id, &person.id, role)?;
        log_act(&by, "added a member to", &organisation);
        Ok((StatusCode::CREATED, describe(app, &organisation)?))
    })
    .await
}

pub async fn set_member(
    app: State<Arc<AdminState>>,
    by: Extension<Actor>,
    names: PairParam,
    body: BodyResult,
) -> JsonResult {
    let MemberBody {
        role,
        budget,
        models,
    } = parse_body(&body?)?;
    let edit = match (role, budget, models) {
        (Some(role), None, None) => MemberEdit::Role(parse_role(&role)?),
        (None, Some(budget), None) => MemberEdit::Budget(budget.map(parse_budget).transpose()?),
        (None, None, Some(models)) => {
            let models = models.unwrap_or_default();
            check_models(&app, &models)?;
            MemberEdit::Models(models)
        }
        _ => {
            let why = "the body must have one of role, budget and models";
            return Err(AdminError::Invalid(why.to_owned()));
        }
    };
    change(app, by, names, edit, None).await
}

pub async fn remove_member(
    app: State<Arc<AdminState>>,
    by: Extension<Actor>,
    names: PairParam,
    body: BodyResult,
) -> JsonResult {
    let body = body?;
    let body: RemovalBody = parse_body(if body.is_empty() { b"{}" } else { &body })?;
    change(app, by, names, MemberEdit::Remove, body.keys_to).await
}

async fn change(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    names: PairParam,
    edit: MemberEdit,
    keys_to: Option<String>,
) -> JsonResult {
    let Path((name, person)) = names?;
    app.run_write(move |app| {
        let organisation = find_organisation(app, &name)?;
        let person = app.find_account(&person)?;
        let keys_to = keys_to.map(|to| app.find_account(&to)).transpose()?;
        let change = MemberUpdate {
            authority: MemberAuthority::Operator,
            organisation: &organisation.id,
            person: &person.id,
            edit,
            keys_to: keys_to.as_ref().map(|to| to.id.as_str()),
        };
        change_member(&app.accounts, &by, change)?;
        log_act(&by, "changed a member of", &organisation);
        describe(app, &organisation)
    })
    .await
}

pub async fn revoke_invite(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    names: PairParam,
) -> JsonResult {
    let Path((name, invite)) = names?;
    app.run_write(move |app| {
        let organisation = find_organisation(app, &name)?;
        let acting = app.accounts.with_actor(&by, now_ms());
        acting.revoke_member_invite(MemberAuthority::Operator, &organisation.id, &invite)?;
        log_act(&by, "revoked an invitation to", &organisation);
        describe(app, &organisation)
    })
    .await
}

pub async fn add_domain(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
    body: BodyResult,
) -> CreatedResult {
    let DomainBody { domain } = parse_body(&body?)?;
    let Path(name) = name?;
    let described = set_domain(app, by, (name, domain), true).await?;
    Ok((StatusCode::CREATED, described))
}

pub async fn remove_domain(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    names: PairParam,
) -> JsonResult {
    let Path(names) = names?;
    set_domain(app, by, names, false).await
}

async fn set_domain(
    app: Arc<AdminState>,
    by: Actor,
    (name, domain): (String, String),
    is_claimed: bool,
) -> JsonResult {
    app.run_write(move |app| {
        let organisation = find_organisation(app, &name)?;
        let acting = app.accounts.with_actor(&by, now_ms());
        acting.set_domain(&organisation.id, &domain, is_claimed)?;
        log_act(&by, "changed a domain of", &organisation);
        describe(app, &organisation)
    })
    .await
}

fn find_organisation(app: &AdminState, name: &str) -> Result<Account, AdminError> {
    let found = app.find_account(name)?;
    match found.organisation {
        Some(_) => Ok(found),
        None => Err(AdminError::NotFound(format!(
            "the account {name:?} is a person's, not an organisation's"
        ))),
    }
}

fn describe(app: &AdminState, organisation: &Account) -> JsonResult {
    let value = describe_organisation(&app.accounts, &app.billing, organisation)?;
    Ok(Json(value))
}

fn parse_role(name: &str) -> Result<OrganisationRole, AdminError> {
    OrganisationRole::parse(name).ok_or_else(|| {
        AdminError::Invalid("role must be owner, admin, billing or member".to_owned())
    })
}

fn parse_budget(text: String) -> Result<SpendLimit, AdminError> {
    text.parse()
        .map_err(|error| AdminError::Invalid(format!("budget is {error}")))
}

fn log_act(by: &Actor, act: &str, organisation: &Account) {
    let id = &organisation.id;
    log::info!("administrator {} {act} the organisation {id}", by.actor);
}
