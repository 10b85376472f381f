//! Serves the pages of organisations: create one, its members and invitations, the choice of the
//! account that the pages show, and the page that an invitation opens.
//!
//! The rules are in `accounts/src/membership.rs`, which each change checks. This file must not
//! decide what a role may do.

use super::blocking::run_blocking;
use super::display::{Credits, Timestamp};
use super::error::PageError;
use super::form::{self, FormFault, FormStop, sentence};
use super::keys::settings::{
    SelectOption, check_models, describe_spend_limit, model_options, parse_spend_limit,
    typed_models,
};
use super::page::{Frame, html};
use super::return_path;
use super::session::{CurrentUser, OptionalUser, SignedForm};
use super::state::SidecarState;
use super::throttle::{AttemptLimit, ThrottleKey};
use crate::organisations::{self, MemberUpdate};
use accounts::{
    AccountError, Actor, MAX_ORGANISATION_NAME_CHARS, Member, MemberAction, MemberAuthority,
    MemberEdit, MemberInvite, Membership, OrganisationRole, membership_id,
};
use askama::Template;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use base::clock::now_ms;
use credits::limits::{Period, SpendLimit};
use std::sync::Arc;

const ORGANISATION_PATH: &str = "/dashboard/organisation";
const SWITCH_PATH: &str = "/dashboard/switch";

/// Limit of invitations that an organisation sends.
const INVITATIONS: AttemptLimit = AttemptLimit {
    count: 100,
    window_ms: 3_600_000,
};

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/organisation", get(show).post(create))
        .route("/dashboard/organisation/invites", post(invite))
        .route(
            "/dashboard/organisation/invites/{id}/revoke",
            post(revoke_invite),
        )
        .route(
            "/dashboard/organisation/members/{id}/role",
            post(change_role),
        )
        .route(
            "/dashboard/organisation/members/{id}/budget",
            post(change_budget),
        )
        .route(
            "/dashboard/organisation/members/{id}/models",
            get(show_models).post(change_models),
        )
        .route(
            "/dashboard/organisation/members/{id}/remove",
            get(confirm_remove).post(remove),
        )
        .route("/dashboard/switch", get(show_accounts).post(switch))
        .route("/dashboard/join/{token}", get(show_invite).post(join))
}

/// The page of a person's own account: it creates organisations.
#[derive(Template)]
#[template(path = "organisation_new.html")]
struct NewPage {
    frame: Frame,
    csrf: String,
    name: String,
    fault: Option<FormFault>,
    max_chars: usize,
    memberships: Vec<Membership>,
}

/// The page of an organisation.
#[derive(Template)]
#[template(path = "organisation.html")]
struct OrganisationPage {
    frame: Frame,
    csrf: String,
    name: String,
    members: Vec<MemberView>,
    invites: Vec<InviteView>,
    /// Roles that the reader may give to an invited person.
    roles: Vec<OrganisationRole>,
    email: String,
    /// A budget that was refused.
    typed_budget: String,
    fault: Option<FormFault>,
    /// Link of an invitation that was just made, its address and its end.
    new_link: Option<(String, String, Timestamp)>,
}

impl OrganisationPage {
    /// Returns what stands in the field for a member's budget: also one that was refused.
    fn budget_text(&self, member: &MemberView) -> String {
        let field = budget_field(&member.id);
        match self.fault.as_ref().is_some_and(|fault| fault.is_at(&field)) {
            true => self.typed_budget.clone(),
            false => (member.budget).map_or_else(String::new, |it| it.credits.to_string()),
        }
    }
}

struct MemberView {
    id: String,
    email: String,
    role: OrganisationRole,
    is_self: bool,
    since: Timestamp,
    seen: Option<Timestamp>,
    /// In this month (UTC); `None` if the reader may not see it.
    spent: Option<Credits>,
    budget: Option<SpendLimit>,
    /// What was spent of the budget; `None` without one, or if the reader may not see it.
    used: Option<String>,
    /// Allowed models; `None` if the reader may not see them.
    models: Option<String>,
    /// Roles that the reader may give. Who may give one may change the budget and the models.
    roles: Vec<OrganisationRole>,
    may_remove: bool,
}

/// The page of the models that a member's keys may use.
#[derive(Template)]
#[template(path = "member_models.html")]
struct MemberModelsPage {
    frame: Frame,
    csrf: String,
    id: String,
    email: String,
    models: Vec<SelectOption>,
    fault: Option<FormFault>,
}

struct InviteView {
    id: String,
    email: String,
    role: OrganisationRole,
    expires: Timestamp,
}

#[derive(Template)]
#[template(path = "member_remove.html")]
struct RemovePage {
    frame: Frame,
    csrf: String,
    id: String,
    email: String,
    is_self: bool,
    fault: Option<FormFault>,
}

#[derive(Template)]
#[template(path = "switch.html")]
struct SwitchPage {
    frame: Frame,
    csrf: String,
    /// Id of the account that is shown.
    shown: String,
    own: String,
    memberships: Vec<Membership>,
}

#[derive(Template)]
#[template(path = "join.html")]
struct JoinPage {
    frame: Frame,
    csrf: String,
    /// `None` if it is not open.
    invite: Option<MemberInvite>,
    /// Address of the reader; empty for a visitor.
    reader: String,
    fault: Option<FormFault>,
}

fn memberships(app: &SidecarState, user: &CurrentUser) -> Result<Vec<Membership>, PageError> {
    Ok(app.accounts.organisations().memberships(&user.person.id)?)
}

fn new_page(app: &SidecarState, user: &CurrentUser) -> Result<NewPage, PageError> {
    Ok(NewPage {
        frame: Frame::new("Organisation", user),
        csrf: user.csrf.clone(),
        name: String::new(),
        fault: None,
        max_chars: MAX_ORGANISATION_NAME_CHARS,
        memberships: memberships(app, user)?,
    })
}

/// Returns the name of the organisation that is shown; not found in a person's own account.
fn shown_name(user: &CurrentUser) -> Result<String, PageError> {
    user.account.organisation.clone().ok_or(PageError::NotFound)
}

fn page(app: &SidecarState, user: &CurrentUser) -> Result<OrganisationPage, PageError> {
    let name = shown_name(user)?;
    let organisations = app.accounts.organisations();
    let members = organisations.members(&user.account.id)?;
    let members = members.into_iter();
    let members = members.filter(|member| sees_member(user, member));
    let invites = match user.role.may(MemberAction::ManageMembers) {
        true => organisations.invites(&user.account.id, now_ms())?,
        false => Vec::new(),
    };
    Ok(OrganisationPage {
        frame: Frame::new("Organisation", user),
        csrf: user.csrf.clone(),
        name,
        members: members
            .map(|member| member_view(app, user, member))
            .collect::<Result<_, _>>()?,
        invites: invites
            .into_iter()
            .map(|invite| InviteView {
                id: invite.id,
                email: invite.email,
                role: invite.role,
                expires: Timestamp(invite.expires_at_ms),
            })
            .collect(),
        roles: roles_for(user, None),
        email: String::new(),
        typed_budget: String::new(),
        fault: None,
        new_link: None,
    })
}

/// Returns whether the reader sees that somebody is a member. Who sees nothing of what others do
/// sees only whom to ask.
fn sees_member(user: &CurrentUser, member: &Member) -> bool {
    user.role.may(MemberAction::SeeUsage)
        || member.role.may(MemberAction::ManageMembers)
        || member.person == user.person.id
}

/// Returns the roles that the reader may give to a person with the role `from`.
fn roles_for(user: &CurrentUser, from: Option<OrganisationRole>) -> Vec<OrganisationRole> {
    let all = OrganisationRole::ALL.into_iter();
    all.filter(|to| user.role.may_change(from, Some(*to)))
        .collect()
}

fn member_view(
    app: &SidecarState,
    user: &CurrentUser,
    member: Member,
) -> Result<MemberView, PageError> {
    let is_self = member.person == user.person.id;
    let id = membership_id(&user.account.id, &member.person);
    let shows_usage = is_self || user.role.may(MemberAction::SeeUsage);
    let spent = |period| -> Result<_, PageError> {
        Ok(app.billing.key_spend(&id, period, now_ms())?.spent)
    };
    let used = |budget: SpendLimit| -> Result<_, PageError> {
        Ok(describe_spend_limit(budget, spent(budget.period)?))
    };
    let spent_now = shows_usage.then(|| spent(Period::Month));
    let budget = member.budget.filter(|_| shows_usage);
    Ok(MemberView {
        is_self,
        since: Timestamp(member.since_ms),
        seen: member.seen_at_ms.map(Timestamp),
        spent: spent_now.transpose()?.map(Credits),
        used: budget.map(used).transpose()?,
        budget,
        models: shows_usage.then(|| match member.allowed_models.is_empty() {
            true => "all".to_owned(),
            false => member.allowed_models.join(", "),
        }),
        roles: roles_for(user, Some(member.role)),
        may_remove: is_self || user.role.may_change(Some(member.role), None),
        id: member.person,
        email: member.email,
        role: member.role,
    })
}

async fn show(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
) -> Result<Response, PageError> {
    match user.account.organisation {
        Some(_) => Ok(html(StatusCode::OK, &page(&app, &user)?)),
        None => Ok(html(StatusCode::OK, &new_page(&app, &user)?)),
    }
}

fn actor(form: &SignedForm) -> Actor {
    Actor {
        actor: form.user.person.id.clone(),
        address: form.address.to_canonical().to_string(),
    }
}

/// Returns the stop for an error of a change: a refusal is shown on the form's page, beside the
/// `field` whose value is refused.
fn stop(error: AccountError, field: &str) -> FormStop {
    let is_of_value = matches!(
        error,
        AccountError::BadEmail
            | AccountError::AlreadyMember
            | AccountError::BadOrganisationName
            | AccountError::LastOwner
            | AccountError::TooManyKeys
    );
    let status = match error {
        AccountError::NotAllowed | AccountError::OtherAddress => StatusCode::FORBIDDEN,
        AccountError::LastOwner
        | AccountError::AlreadyMember
        | AccountError::TooManyMembers
        | AccountError::TooManyKeys
        | AccountError::TooManyOrganisations => StatusCode::CONFLICT,
        AccountError::BadEmail | AccountError::BadOrganisationName | AccountError::BadModels => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        AccountError::NoMember => return FormStop::Error(PageError::NotFound),
        other => return FormStop::Error(other.into()),
    };
    let text = sentence(&error.to_string());
    let fault = match is_of_value && !field.is_empty() {
        true => FormFault::at(field.to_owned(), text),
        false => text.into(),
    };
    FormStop::Fault(status, fault)
}

async fn create(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let outcome = create_organisation(&app, &form).await;
    form::respond(outcome, |fault| {
        Ok(NewPage {
            name: form.field("name").to_owned(),
            fault: Some(fault),
            ..new_page(&app, &form.user)?
        })
    })
}

async fn create_organisation(app: &SidecarState, form: &SignedForm) -> Result<Response, FormStop> {
    if form.user.account.organisation.is_some() {
        return Err(PageError::NotFound.into());
    }
    let (accounts, billing, by) = (app.accounts.clone(), app.billing.clone(), actor(form));
    let (name, token) = (form.field("name").to_owned(), form.user.token.clone());
    let work = move || {
        let created =
            organisations::create_organisation(&accounts, &billing, &by, &name, &by.actor)?;
        accounts.logins().show_account(&token, Some(&created.id))?;
        Ok::<_, AccountError>(())
    };
    let created = run_blocking(work).await?;
    created.map_err(|error| stop(error, "name"))?;
    Ok(Redirect::to(ORGANISATION_PATH).into_response())
}

async fn invite(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let outcome = invite_member(&app, &form).await;
    form::respond(outcome, |fault| {
        Ok(OrganisationPage {
            email: form.field("email").to_owned(),
            fault: Some(fault),
            ..page(&app, &form.user)?
        })
    })
}

/// Makes an invitation. The response is the page itself instead of a redirect, because the link
/// cannot be read again later.
async fn invite_member(app: &SidecarState, form: &SignedForm) -> Result<Response, FormStop> {
    shown_name(&form.user)?;
    form.user.require(MemberAction::ManageMembers)?;
    let account = form.user.account.id.clone();
    let role = typed_role(form, "role".into())?;
    let key = ThrottleKey::AccountInviting(account.clone());
    if let Err(seconds) = app.throttle.try_acquire(&key, INVITATIONS, now_ms()) {
        let fault = format!("Too many invitations. Try again in {seconds} s.");
        return Err(FormStop::Fault(StatusCode::TOO_MANY_REQUESTS, fault.into()));
    }
    let (accounts, by, email) = (
        app.accounts.clone(),
        actor(form),
        form.field("email").to_owned(),
    );
    let work = move || {
        accounts
            .with_actor(&by, now_ms())
            .invite_member(&account, &email, role)
    };
    let new = run_blocking(work).await?;
    let new = new.map_err(|error| stop(error, "email"))?;
    let link = new.url(&form.user.site);
    let page = OrganisationPage {
        new_link: Some((
            link,
            form.field("email").trim().to_owned(),
            Timestamp(new.expires_at_ms),
        )),
        ..page(app, &form.user)?
    };
    Ok(html(StatusCode::OK, &page))
}

/// Returns the role that was chosen in a field, which has this id on the page.
fn typed_role(form: &SignedForm, id: String) -> Result<OrganisationRole, FormStop> {
    let role = OrganisationRole::parse(form.field("role"));
    let fault = || FormFault::at(id, "Choose a role from the list.");
    role.ok_or_else(|| FormStop::invalid(fault()))
}

async fn revoke_invite(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let outcome = async {
        shown_name(&form.user)?;
        form.user.require(MemberAction::ManageMembers)?;
        let (accounts, by) = (app.accounts.clone(), actor(&form));
        let account = form.user.account.id.clone();
        let work = move || {
            accounts.with_actor(&by, now_ms()).revoke_member_invite(
                MemberAuthority::Member,
                &account,
                &id,
            )
        };
        let revoked = run_blocking(work).await?;
        revoked.map_err(|error| stop(error, ""))?;
        Ok(Redirect::to(ORGANISATION_PATH).into_response())
    };
    respond_on_page(outcome.await, &app, &form)
}

async fn change_role(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let outcome = async {
        find_member(&app, &form.user, &id)?;
        let field = role_field(&id);
        let role = typed_role(&form, field.clone())?;
        change(&app, &form, id, MemberEdit::Role(role), None, &field).await
    };
    respond_on_page(outcome.await, &app, &form)
}

async fn change_budget(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let outcome = async {
        find_member(&app, &form.user, &id)?;
        let typed = (form.field("budget").trim(), form.field("period"));
        let field = budget_field(&id);
        let budget = parse_spend_limit("budget", typed.0, typed.1)
            .map_err(|fault| FormStop::invalid(FormFault::at(field.clone(), fault)))?;
        change(&app, &form, id, MemberEdit::Budget(budget), None, &field).await
    };
    respond_on_page(outcome.await, &app, &form)
}

/// Returns the id of the field for a member's role.
fn role_field(person: &str) -> String {
    format!("role-{person}")
}

fn budget_field(person: &str) -> String {
    format!("budget-{person}")
}

/// Returns the response of a form on the organisation's page.
fn respond_on_page(
    outcome: Result<Response, FormStop>,
    app: &SidecarState,
    form: &SignedForm,
) -> Result<Response, PageError> {
    form::respond(outcome, |fault| {
        Ok(OrganisationPage {
            typed_budget: form.field("budget").to_owned(),
            fault: Some(fault),
            ..page(app, &form.user)?
        })
    })
}

fn find_member(app: &SidecarState, user: &CurrentUser, id: &str) -> Result<Member, PageError> {
    shown_name(user)?;
    let members = app.accounts.organisations().members(&user.account.id)?;
    let mut members = members.into_iter();
    let found = members.find(|member| member.person == id && sees_member(user, member));
    let found = found.ok_or(PageError::NotFound)?;
    match id == user.person.id || user.role.may(MemberAction::ManageMembers) {
        true => Ok(found),
        false => Err(PageError::RoleForbids),
    }
}

/// Changes a member, and waits until the edges know what this changes of the keys. A refusal of the
/// value stands at `field`.
async fn change(
    app: &SidecarState,
    form: &SignedForm,
    person: String,
    edit: MemberEdit,
    keys_to: Option<String>,
    field: &str,
) -> Result<Response, FormStop> {
    let (accounts, by) = (app.accounts.clone(), actor(form));
    let account = form.user.account.id.clone();
    let left = person == form.user.person.id && edit == MemberEdit::Remove;
    let work = move || {
        let change = MemberUpdate {
            authority: MemberAuthority::Member,
            organisation: &account,
            person: &person,
            edit,
            keys_to: keys_to.as_deref(),
        };
        organisations::change_member(&accounts, &by, change)
    };
    let changed = run_blocking(work).await?;
    changed.map_err(|error| stop(error, field))?;
    let to = if left { SWITCH_PATH } else { ORGANISATION_PATH };
    Ok(Redirect::to(to).into_response())
}

fn models_page(
    app: &SidecarState,
    user: &CurrentUser,
    member: Member,
    chosen: &[String],
) -> Result<MemberModelsPage, PageError> {
    match user.role.may_change(Some(member.role), Some(member.role)) {
        true => Ok(MemberModelsPage {
            frame: Frame::new("Organisation", user),
            csrf: user.csrf.clone(),
            id: member.person,
            email: member.email,
            models: model_options(app, chosen),
            fault: None,
        }),
        false => Err(PageError::RoleForbids),
    }
}

async fn show_models(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    let member = find_member(&app, &user, &id)?;
    let chosen = member.allowed_models.clone();
    let page = models_page(&app, &user, member, &chosen)?;
    Ok(html(StatusCode::OK, &page))
}

async fn change_models(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let member = find_member(&app, &form.user, &id)?;
    let typed = typed_models(&form);
    let outcome = async {
        let checked = check_models(&app, &typed, &member.allowed_models);
        checked.map_err(FormStop::invalid)?;
        let edit = MemberEdit::Models(typed.clone());
        change(&app, &form, id, edit, None, "").await
    };
    form::respond(outcome.await, |fault| {
        Ok(MemberModelsPage {
            fault: Some(fault),
            ..models_page(&app, &form.user, member, &typed)?
        })
    })
}

fn remove_page(app: &SidecarState, user: &CurrentUser, id: &str) -> Result<RemovePage, PageError> {
    let member = find_member(app, user, id)?;
    Ok(RemovePage {
        frame: Frame::new("Organisation", user),
        csrf: user.csrf.clone(),
        is_self: member.person == user.person.id,
        id: member.person,
        email: member.email,
        fault: None,
    })
}

async fn confirm_remove(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    Ok(html(StatusCode::OK, &remove_page(&app, &user, &id)?))
}

async fn remove(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let outcome = async {
        let page = remove_page(&app, &form.user, &id)?;
        if !form.is_confirmed() {
            return Ok(html(StatusCode::OK, &page));
        }
        // Who leaves cannot take the keys along.
        let takes_keys = form.field("keys") == "take" && !page.is_self;
        let keys_to = takes_keys.then(|| form.user.person.id.clone());
        let field = if takes_keys { "keys" } else { "" };
        change(&app, &form, id.clone(), MemberEdit::Remove, keys_to, field).await
    };
    form::respond(outcome.await, |fault| {
        Ok(RemovePage {
            fault: Some(fault),
            ..remove_page(&app, &form.user, &id)?
        })
    })
}

async fn show_accounts(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
) -> Result<Response, PageError> {
    let page = SwitchPage {
        frame: Frame::new("Switch account", &user),
        csrf: user.csrf.clone(),
        memberships: memberships(&app, &user)?,
        shown: user.account.id.clone(),
        own: user.person.email.clone(),
    };
    Ok(html(StatusCode::OK, &page))
}

/// Shows another account from the next page on: the own one if the form names none.
async fn switch(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let (accounts, token) = (app.accounts.clone(), form.user.token.clone());
    let account = form.field("account").to_owned();
    let work = move || {
        let account = (!account.is_empty()).then_some(&*account);
        accounts.logins().show_account(&token, account)
    };
    match run_blocking(work).await?? {
        true => Ok(Redirect::to("/dashboard").into_response()),
        false => Err(PageError::NotFound),
    }
}

fn join_page(
    app: &SidecarState,
    user: Option<&CurrentUser>,
    token: &str,
) -> Result<JoinPage, PageError> {
    Ok(JoinPage {
        frame: Frame::for_anyone("Invitation", user),
        csrf: user.map_or_else(String::new, |user| user.csrf.clone()),
        invite: app.accounts.organisations().invite(token, now_ms())?,
        reader: user.map_or_else(String::new, |user| user.person.email.clone()),
        fault: None,
    })
}

async fn show_invite(
    State(app): State<Arc<SidecarState>>,
    OptionalUser(user): OptionalUser,
    headers: HeaderMap,
    uri: Uri,
    Path(token): Path<String>,
) -> Result<Response, PageError> {
    let page = join_page(&app, user.as_ref(), &token)?;
    match (&page.invite, user) {
        (None, _) => Ok(html(StatusCode::GONE, &page)),
        (Some(_), Some(_)) => Ok(html(StatusCode::OK, &page)),
        (Some(_), None) => return_path::remember(&app, &headers, &uri, html(StatusCode::OK, &page)),
    }
}

async fn join(
    State(app): State<Arc<SidecarState>>,
    Path(token): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let outcome = async {
        let Some(invite) = app.accounts.organisations().invite(&token, now_ms())? else {
            let page = join_page(&app, Some(&form.user), &token)?;
            return Ok(html(StatusCode::GONE, &page));
        };
        let (accounts, by) = (app.accounts.clone(), actor(&form));
        let (token, session) = (token.clone(), form.user.token.clone());
        let work = move || {
            accounts
                .with_actor(&by, now_ms())
                .join_organisation(&token)?;
            accounts
                .logins()
                .show_account(&session, Some(&invite.account))?;
            Ok::<_, AccountError>(())
        };
        let joined = run_blocking(work).await?;
        joined.map_err(|error| stop(error, ""))?;
        Ok(Redirect::to("/dashboard").into_response())
    };
    form::respond(outcome.await, |fault| {
        Ok(JoinPage {
            fault: Some(fault),
            ..join_page(&app, Some(&form.user), &token)?
        })
    })
}
