//! One account on the operator pages: its balance, keys and latest entries, postings to it,
//! and a link that sets its password. `operator/status.rs`, `operator/refund.rs` and
//! `operator/keys.rs` change it too.
//!
//! All of these changes require the administrator's password once in ten minutes. The ledger
//! decides which postings are allowed.

use super::super::account::require_recent_password;
use super::super::authz::{Operator, OperatorForm, may_administer};
use super::super::blocking::run_blocking;
use super::super::confirm::{self, Confirmation};
use super::super::display::Timestamp;
use super::super::error::PageError;
use super::super::form::{self, FormStop};
use super::super::live::SpendingSnapshot;
use super::super::page::{Frame, html};
use super::super::session::{CurrentUser, SignedForm};
use super::super::state::SidecarState;
use super::describe_role;
use crate::billing::corrections::{
    MAX_REASON_CHARS, MAX_REFERENCE_CHARS, is_valid_reason, is_valid_reference,
};
use crate::document;
use accounts::{
    Account, AccountError, AccountStatus, Actor, ApiKey, ApiKeyStatus, LinkPurpose, Role,
};
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use base::clock::now_ms;
use credits::money::Micro;
use ledger::StoreError;
use ledger::{BalanceChange, BalanceChangeKind, PostingResult};
use serde::Deserialize;
use std::sync::Arc;

/// Maximum number of entries shown.
const MAX_ENTRY_ROWS: u32 = 20;

struct AccountEntryRow {
    at: Timestamp,
    kind: String,
    reference: String,
    change: String,
    balance_after: String,
    /// The entry is a debit of this account, which can be refunded.
    is_debit: bool,
    /// Actor and reason, if an operator posted the entry.
    details: String,
}

struct RoleChoice {
    value: &'static str,
    text: &'static str,
    chosen: bool,
}

fn role_choices(chosen: Role) -> Vec<RoleChoice> {
    let choice = |role: Role| RoleChoice {
        value: role.name(),
        text: describe_role(role).unwrap_or("account holder"),
        chosen: role == chosen,
    };
    [Role::Member, Role::Viewer, Role::Admin].map(choice).into()
}

/// A link that was just created. It cannot be shown again.
struct NewLinkView {
    url: String,
    expires: Timestamp,
}

#[derive(Template)]
#[template(path = "operator_account.html")]
pub struct OperatorAccountPage {
    frame: Frame,
    csrf: String,
    account: Account,
    /// The user is an administrator and may make changes.
    may_act: bool,
    roles: Vec<RoleChoice>,
    /// It is the user's own account.
    is_own: bool,
    balance: String,
    held: String,
    available: String,
    trial: String,
    keys: Vec<ApiKey>,
    entries: Vec<AccountEntryRow>,
    /// A posting requires the password again.
    asks_password: bool,
    pub done: Option<String>,
    fault: Option<String>,
    pub refund_fault: Option<String>,
    pub key_fault: Option<String>,
    pub refund: RefundForm,
    pub role_fault: Option<String>,
    pub delete_fault: Option<String>,
    /// Why suspending or resuming the account failed.
    pub status_fault: Option<String>,
    new_link: Option<NewLinkView>,
    link_fault: Option<String>,
    /// Values of the submitted form, so that the user need not type them again.
    submitted: PostingForm,
    reference_max: usize,
    reason_max: usize,
}

/// The values of the form for refunds.
#[derive(Default, Clone)]
pub struct RefundForm {
    pub request_id: String,
    pub credits: String,
    pub reference: String,
}

#[derive(Default, Clone)]
struct PostingForm {
    kind: String,
    credits: String,
    reference: String,
    reason: String,
}

pub fn page(
    app: &SidecarState,
    user: &CurrentUser,
    account: Account,
) -> Result<OperatorAccountPage, PageError> {
    let now_ms = now_ms();
    let shown = SpendingSnapshot::load(app, &account.id, now_ms)?
        .to_view(&app.billing.balance(&account.id, now_ms)?, now_ms);
    let entries = app
        .billing
        .receipts()
        .entries(&account.id, None, MAX_ENTRY_ROWS)?;
    let entries = entries.iter().map(|entry| {
        let row = document::entry(entry)?;
        let word = |name: &str| {
            row.get(name)
                .and_then(|value| value.as_str())
                .map(ToOwned::to_owned)
        };
        let words = [
            word("model"),
            word("reason"),
            word("actor").map(|actor| format!("by {actor}")),
        ];
        Ok(AccountEntryRow {
            at: Timestamp(entry.at_ms),
            is_debit: entry.kind == "debit",
            kind: entry.kind.clone(),
            reference: entry.reference.clone(),
            change: entry.change().to_string(),
            balance_after: entry.bal_paid.plus(entry.bal_trial).to_string(),
            details: words.into_iter().flatten().collect::<Vec<_>>().join(" · "),
        })
    });
    Ok(OperatorAccountPage {
        frame: Frame::new("Account", user).with_index_lag(app.billing.pages().index_lag()),
        csrf: user.csrf.clone(),
        may_act: may_administer(&user.account),
        roles: role_choices(account.role),
        is_own: user.account.id == account.id,
        balance: shown.balance,
        held: shown.held,
        available: shown.available,
        trial: shown.trial,
        keys: app.accounts.api_keys().keys(&account.id)?,
        entries: entries.collect::<Result<_, StoreError>>()?,
        asks_password: !user.confirmed,
        done: None,
        fault: None,
        refund_fault: None,
        key_fault: None,
        refund: RefundForm::default(),
        role_fault: None,
        delete_fault: None,
        status_fault: None,
        new_link: None,
        link_fault: None,
        submitted: PostingForm::default(),
        reference_max: MAX_REFERENCE_CHARS,
        reason_max: MAX_REASON_CHARS,
        account,
    })
}

/// Finds an account by its id only: an e-mail must not be in a URL.
pub fn find(app: &SidecarState, id: &str) -> Result<Account, PageError> {
    app.accounts
        .find(id)?
        .filter(|account| account.id == id)
        .ok_or(PageError::NotFound)
}

#[derive(Deserialize)]
pub struct AccountPageQuery {
    /// Id of the request that the form for refunds begins with.
    #[serde(default)]
    request: String,
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    Path(id): Path<String>,
    query: Result<Query<AccountPageQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(AccountPageQuery { request }) = query.map_err(|_| PageError::NotFound)?;
    let account = find(&app, &id)?;
    let page = OperatorAccountPage {
        refund: RefundForm {
            request_id: request,
            ..RefundForm::default()
        },
        ..page(&app, &user, account)?
    };
    Ok(html(StatusCode::OK, &page))
}

/// A posting from a well-formed form.
struct PostingOrder {
    kind: PostingKind,
    amount: Micro,
    reference: String,
    reason: String,
}

#[derive(Clone, Copy)]
enum PostingKind {
    Grant,
    TopUp,
    Adjust,
}

impl PostingOrder {
    fn parse(submitted: &PostingForm) -> Result<Self, String> {
        let kind = match submitted.kind.as_str() {
            "grant" => PostingKind::Grant,
            "topup" => PostingKind::TopUp,
            "adjustment" => PostingKind::Adjust,
            _ => return Err("Choose the kind of posting.".into()),
        };
        let amount = submitted
            .credits
            .trim()
            .parse::<Micro>()
            .map_err(|error| format!("Credits: {error}."))?;
        if !is_valid_reference(&submitted.reference) {
            return Err(format!(
                "A reference must have 1 to {MAX_REFERENCE_CHARS} characters."
            ));
        }
        match kind {
            PostingKind::Adjust if !is_valid_reason(&submitted.reason) => Err(format!(
                "An adjustment needs a reason of at most {MAX_REASON_CHARS} characters."
            )),
            PostingKind::Adjust if amount == Micro::ZERO => Err("Credits must not be 0.".into()),
            PostingKind::Grant | PostingKind::TopUp if !amount.is_positive() => {
                Err("Credits must be above 0.".into())
            }
            _ => Ok(Self {
                kind,
                amount,
                reference: submitted.reference.clone(),
                reason: submitted.reason.clone(),
            }),
        }
    }

    fn post(
        &self,
        app: &SidecarState,
        account: &str,
        by: &Actor,
    ) -> Result<PostingResult, StoreError> {
        let kind = match self.kind {
            PostingKind::Grant => BalanceChangeKind::Grant,
            PostingKind::TopUp => BalanceChangeKind::TopUp,
            PostingKind::Adjust => BalanceChangeKind::Adjust {
                reason: &self.reason,
            },
        };
        let (now_ms, reference, amount) = (now_ms(), self.reference.as_str(), self.amount);
        let change = BalanceChange {
            kind,
            reference,
            account,
            amount,
            actor: Some(&by.actor),
            at_ms: now_ms,
        };
        app.accounts
            .with_actor(by, now_ms)
            .record_then_post(&change, || app.billing.corrections().post_change(&change))
    }
}

pub async fn post(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let account = find(&app, &id)?;
    let [kind, credits, reference, reason] =
        ["kind", "credits", "ref", "reason"].map(|name| form.field(name).to_owned());
    let submitted = PostingForm {
        kind,
        credits,
        reference,
        reason,
    };
    let outcome = post_order(&app, &account, &submitted, &mut form, by).await;
    form::respond(outcome, |fault| {
        Ok(OperatorAccountPage {
            fault: Some(fault),
            submitted,
            ..page(&app, &form.user, account)?
        })
    })
}

async fn post_order(
    app: &Arc<SidecarState>,
    account: &Account,
    submitted: &PostingForm,
    form: &mut SignedForm,
    by: Actor,
) -> Result<Response, FormStop> {
    let order = PostingOrder::parse(submitted).map_err(FormStop::invalid)?;
    require_recent_password(app, form).await?;
    if order.amount < Micro::ZERO && !form.is_confirmed() {
        let taken = Micro::ZERO.minus(order.amount);
        let consequence = format!(
            "The balance of {} decreases by {taken} credits. Only a grant or another adjustment \
             reverses it.",
            account.email
        );
        let (title, button) = ("Deduct credits?", "Deduct");
        return Ok(ask(form, &account.id, title, consequence, button));
    }
    let (work, to) = (Arc::clone(app), account.id.clone());
    let posted = run_blocking(move || order.post(&work, &to, &by)).await?;
    show_posting(app, &form.user, account, posted, "Posted")
}

/// The page after a posting. `verb`: what happened to the credits.
pub fn show_posting(
    app: &SidecarState,
    user: &CurrentUser,
    account: &Account,
    posted: Result<PostingResult, StoreError>,
    verb: &str,
) -> Result<Response, FormStop> {
    let posted = posted.map_err(|error| match error {
        StoreError::Refused(why) | StoreError::Unknown(why) | StoreError::ReferenceUsed(why) => {
            FormStop::conflict(format!("Refused: {why}."))
        }
        other => other.into(),
    })?;
    let (status, done) = if posted.is_new {
        (StatusCode::CREATED, format!("{verb} {}.", posted.change))
    } else {
        let done = "This reference was already posted, so nothing changed.";
        (StatusCode::OK, done.to_owned())
    };
    let page = OperatorAccountPage {
        done: Some(format!("{done} The balance is {}.", posted.balance)),
        ..page(app, user, account.clone())?
    };
    Ok(html(status, &page))
}

/// Asks before a change of an account.
pub fn ask(
    form: &SignedForm,
    id: &str,
    title: &'static str,
    consequence: String,
    button: &'static str,
) -> Response {
    let question = Confirmation {
        title,
        consequence,
        button,
        back: &format!("/dashboard/operator/accounts/{id}"),
    };
    confirm::page("Operator", form, question)
}

/// Responds with the page itself instead of a redirect: the link cannot be read again later.
pub async fn create_link(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let found = find(&app, &id)?;
    let outcome = async {
        require_recent_password(&app, &mut form).await?;
        let accounts = app.accounts.clone();
        let created = run_blocking(move || {
            accounts
                .with_actor(&by, now_ms())
                .create_one_time_link(&id, LinkPurpose::Reset)
        });
        let link = created.await?.map_err(|error| match error {
            AccountError::NoAccount => FormStop::conflict(
                "This account is suspended or deleted, so nobody can sign in to it.",
            ),
            other => other.into(),
        })?;
        let new_link = NewLinkView {
            url: link.url(&form.user.site),
            expires: Timestamp(link.expires_at_ms),
        };
        let page = OperatorAccountPage {
            new_link: Some(new_link),
            ..page(&app, &form.user, found.clone())?
        };
        Ok(html(StatusCode::CREATED, &page))
    };
    form::respond(outcome.await, |fault| {
        Ok(OperatorAccountPage {
            link_fault: Some(fault),
            ..page(&app, &form.user, found)?
        })
    })
}
