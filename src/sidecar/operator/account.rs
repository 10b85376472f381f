//! Shows one account on the operator pages: balance, usage, keys, latest entries, postings, and a
//! link that sets the password. `operator/status.rs`, `people.rs`, `refund.rs`, `rates.rs`,
//! `trial.rs` and `keys.rs` change it too.
//!
//! All changes require the administrator's password once in ten minutes. The ledger decides which
//! postings are allowed.

use super::super::account::require_recent_password;
use super::super::authz::{Operator, OperatorForm, may_administer};
use super::super::auto_topup::describe_terms;
use super::super::blocking::run_blocking;
use super::super::confirm::{self, Confirmation};
use super::super::display::{BalanceAmount, Credits, Timestamp, group_digits};
use super::super::error::PageError;
use super::super::form::{self, FormFault, FormStop, sentence};
use super::super::key_list::{KeyList, KeyListQuery};
use super::super::live::SpendingSnapshot;
use super::super::page::{Frame, html};
use super::super::session::{CurrentUser, SignedForm};
use super::super::state::SidecarState;
use super::role_text::describe_role;
use crate::billing::corrections::{
    MAX_REASON_CHARS, MAX_REFERENCE_CHARS, is_valid_reason, is_valid_reference,
};
use crate::document;
use crate::payments::{AccountClawback, AutoTopUp};
use accounts::{
    Account, AccountError, AccountStatus, Actor, ApiKeyStatus, LinkPurpose, MAX_KEY_NAME_CHARS,
    NewKey, RateSettings, Role, StoredMerge,
};
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use base::clock::now_ms;
use config::payments::write_money;
use credits::money::Micro;
use ledger::{
    BalanceChange, BalanceChangeKind, LedgerEntry, PostingResult, StoreError, UsageQuery, UsageSpan,
};
use serde::Deserialize;
use std::cmp::Reverse;
use std::sync::Arc;

const MAX_ENTRY_ROWS: u32 = 20;

/// Number of days of usage on the page, including today. Days are UTC.
const USAGE_DAYS: i64 = 30;

/// Maximum number of days by which one form extends a trial.
pub const MAX_EXTENSION_DAYS: i64 = 365;

const MAX_USAGE_ROWS: usize = 8;

const DAY_MS: i64 = 86_400_000;

struct AccountEntryRow {
    seq: i64,
    at: Timestamp,
    kind: String,
    reference: String,
    change: String,
    balance_after: String,
    /// True if the entry is the end of a request, which has a receipt.
    is_ending: bool,
    /// True if the entry is a debit of this account, which can be refunded.
    is_debit: bool,
    /// Actor and reason, if an operator posted the entry.
    details: String,
}

/// Spending of an account on one model within [`USAGE_DAYS`].
struct UsageByModel {
    model: String,
    credits: Credits,
    responses: String,
    tokens_in: String,
    tokens_out: String,
}

pub struct RoleChoice {
    value: &'static str,
    text: &'static str,
    chosen: bool,
}

pub fn role_choices(chosen: Role) -> Vec<RoleChoice> {
    let choice = |role: Role| RoleChoice {
        value: role.name(),
        text: describe_role(role).unwrap_or("account holder"),
        chosen: role == chosen,
    };
    [Role::Member, Role::Viewer, Role::Admin].map(choice).into()
}

/// A link that was just created and cannot be shown again.
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
    /// True if the user is an administrator and may make changes.
    may_act: bool,
    pub roles: Vec<RoleChoice>,
    /// True if the account is the user's own.
    is_own: bool,
    /// What payments that were taken back do to the account.
    clawback: Option<String>,
    /// Merges of the account, with the command that completes one.
    merges: Vec<StoredMerge>,
    /// The automatic top-up, if its holder has set one.
    auto_topup: Option<String>,
    balance: BalanceAmount,
    held: BalanceAmount,
    available: BalanceAmount,
    trial: String,
    /// Usage in the last [`USAGE_DAYS`] days, with the most expensive model first.
    usage: Vec<UsageByModel>,
    spent: Credits,
    usage_days: i64,
    list: KeyList,
    entries: Vec<AccountEntryRow>,
    /// True if a trial is running, so that it can be extended.
    has_trial: bool,
    max_extension_days: i64,
    pub trial_fault: Option<FormFault>,
    pub trial_days: String,
    pub rates: RatesForm,
    pub rates_fault: Option<FormFault>,
    /// A new key in plain text, which cannot be shown again.
    pub new_key: Option<NewKey>,
    pub new_key_name: String,
    pub new_key_fault: Option<FormFault>,
    key_name_max: usize,
    /// True if a posting requires the password again.
    asks_password: bool,
    pub done: Option<String>,
    fault: Option<FormFault>,
    pub refund_fault: Option<FormFault>,
    pub key_fault: Option<FormFault>,
    /// The account, and the member of it, to which a key is to be moved.
    pub move_to: String,
    pub move_member: String,
    pub refund: RefundForm,
    pub role_fault: Option<FormFault>,
    /// Domains that the organisation claims.
    domains: Vec<String>,
    pub domain: String,
    pub domain_fault: Option<FormFault>,
    /// What the user typed to confirm that the account is to be deleted.
    pub confirmation: String,
    pub delete_fault: Option<FormFault>,
    /// Reason for which suspending or resuming the account failed.
    pub status_fault: Option<FormFault>,
    new_link: Option<NewLinkView>,
    link_fault: Option<FormFault>,
    /// Values of the submitted form, so that the user need not type them again.
    submitted: PostingForm,
    reference_max: usize,
    reason_max: usize,
}

#[derive(Default, Clone)]
pub struct RatesForm {
    pub requests_per_minute: String,
    pub tokens_per_minute: String,
    pub concurrent: String,
}

impl From<RateSettings> for RatesForm {
    fn from(rates: RateSettings) -> Self {
        let text = |rate: Option<u64>| rate.map(|rate| rate.to_string()).unwrap_or_default();
        Self {
            requests_per_minute: text(rates.requests_per_minute),
            tokens_per_minute: text(rates.tokens_per_minute),
            concurrent: text(rates.concurrent),
        }
    }
}

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
    let balance = app.billing.balance(&account.id, now_ms)?;
    let has_trial = balance.trial.as_ref().is_some_and(|trial| trial.active);
    let shown = SpendingSnapshot::load(app, &account.id, None, now_ms)?.to_view(&balance, now_ms);
    let entries = app
        .billing
        .receipts()
        .entries(&account.id, None, MAX_ENTRY_ROWS)?;
    let entries = entries.iter().map(|entry| entry_row(app, entry));
    let (usage, spent) = usage(app, &account.id, now_ms)?;
    let auto_topup = app.payments.auto_topup(&account.id, now_ms)?;
    let clawback = app.payments.account_clawback(&account.id)?;
    Ok(OperatorAccountPage {
        frame: Frame::new("Account", user).with_index_lag(app.billing.pages().index_lag()),
        csrf: user.csrf.clone(),
        may_act: may_administer(&user.person),
        roles: role_choices(account.role),
        is_own: user.person.id == account.id,
        clawback: describe_clawback(clawback, account.status),
        merges: app.accounts.merges().list(Some(&account.id))?,
        auto_topup: auto_topup.map(describe_auto_topup),
        balance: BalanceAmount(balance.balance),
        held: BalanceAmount(balance.held),
        available: BalanceAmount(balance.available),
        trial: shown.trial,
        usage,
        spent,
        usage_days: USAGE_DAYS,
        rates: app.accounts.account_rates(&account.id)?.into(),
        rates_fault: None,
        has_trial,
        max_extension_days: MAX_EXTENSION_DAYS,
        trial_fault: None,
        trial_days: "7".to_owned(),
        new_key: None,
        new_key_name: String::new(),
        new_key_fault: None,
        key_name_max: MAX_KEY_NAME_CHARS,
        list: key_list(app, &account, &KeyListQuery::default())?,
        entries: entries.collect::<Result<_, StoreError>>()?,
        asks_password: user.asks_password(),
        done: None,
        fault: None,
        refund_fault: None,
        key_fault: None,
        move_to: String::new(),
        move_member: String::new(),
        refund: RefundForm::default(),
        role_fault: None,
        domains: app.accounts.organisations().domains(&account.id)?,
        domain: String::new(),
        domain_fault: None,
        confirmation: String::new(),
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

/// Describes why an account's requests are refused because of payments that were taken back.
fn describe_clawback(clawback: AccountClawback, status: AccountStatus) -> Option<String> {
    match status {
        AccountStatus::Active if clawback.is_held => Some(
            "its requests are refused with 403: running requests hold credits of a payment that was taken back. It begins requests again by itself when they have ended."
                .to_owned(),
        ),
        AccountStatus::Suspended if clawback.written_off.is_positive() => Some(format!(
            "{} credits of payments that were taken back were spent and are written off. Resume the account when its holder has settled that with you.",
            clawback.written_off
        )),
        _ => None,
    }
}

fn describe_auto_topup(topup: AutoTopUp) -> String {
    let cap = match topup.is_capped() {
        true => ", the cap is reached",
        false => "",
    };
    let AutoTopUp { row, history } = topup;
    let card = row.method.map_or("no card".to_owned(), |(_, label)| label);
    let state = match (row.is_on, row.stopped.as_str()) {
        (true, _) => "on".to_owned(),
        (false, "") => "off".to_owned(),
        (false, why) => format!("off ({why})"),
    };
    format!(
        "{state}; {}; {card}; this month {}{cap}",
        describe_terms(&row.terms),
        write_money(&row.terms.currency, history.month_sum)
    )
}

fn entry_row(app: &SidecarState, entry: &LedgerEntry) -> Result<AccountEntryRow, StoreError> {
    let row = document::entry(entry)?;
    let word = |name: &str| {
        row.get(name)
            .and_then(|value| value.as_str())
            .map(ToOwned::to_owned)
    };
    let actor = match word("actor") {
        Some(actor) => {
            let found = app.accounts.find(&actor)?;
            Some(format!("by {}", found.map_or(actor, |it| it.email)))
        }
        None => None,
    };
    let words = [word("model"), word("reason"), actor];
    Ok(AccountEntryRow {
        seq: entry.seq,
        at: Timestamp(entry.at_ms),
        is_ending: entry.is_ending(),
        is_debit: entry.kind == "debit",
        kind: entry.kind.clone(),
        reference: entry.reference.clone(),
        change: entry.change().to_string(),
        balance_after: entry.bal_paid.plus(entry.bal_trial).to_string(),
        details: words.into_iter().flatten().collect::<Vec<_>>().join(" · "),
    })
}

/// Returns the account's spending in the last days, by model and in total.
fn usage(
    app: &SidecarState,
    account: &str,
    now_ms: i64,
) -> Result<(Vec<UsageByModel>, Credits), StoreError> {
    let today = now_ms.div_euclid(DAY_MS);
    let query = UsageQuery {
        by_model: true,
        ..UsageQuery::new(UsageSpan::Days(today - USAGE_DAYS + 1, today + 1))
    };
    let mut rows = app
        .billing
        .ledger()
        .pages()
        .usage(account, &query, None, u32::MAX)?;
    rows.sort_by_key(|row| Reverse(row.sum.credits));
    let spent = rows
        .iter()
        .fold(Micro::ZERO, |sum, row| sum.plus(row.sum.credits));
    let shown = rows
        .into_iter()
        .take(MAX_USAGE_ROWS)
        .map(|row| UsageByModel {
            model: row.model,
            credits: Credits(row.sum.credits),
            responses: group_digits(row.sum.responses),
            tokens_in: group_digits(row.sum.input),
            tokens_out: group_digits(row.sum.output),
        });
    Ok((shown.collect(), Credits(spent)))
}

/// Finds an account by its id only, because an e-mail must not be in a URL.
pub fn find(app: &SidecarState, id: &str) -> Result<Account, PageError> {
    app.accounts
        .find(id)?
        .filter(|account| account.id == id)
        .ok_or(PageError::NotFound)
}

#[derive(Deserialize)]
pub struct AccountPageQuery {
    /// Id of the request with which the refund form is prefilled.
    #[serde(default)]
    request: String,
    /// Number of an entry to show, even if it is not one of the latest.
    entry: Option<i64>,
    #[serde(default)]
    key_q: String,
    #[serde(default)]
    keys: String,
    #[serde(default)]
    after: String,
}

fn key_list(
    app: &SidecarState,
    account: &Account,
    query: &KeyListQuery,
) -> Result<KeyList, StoreError> {
    let path = format!("/dashboard/operator/accounts/{}", account.id);
    KeyList::load(app, &account.id, None, &path, query)
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    Path(id): Path<String>,
    query: Result<Query<AccountPageQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(AccountPageQuery {
        request,
        entry,
        key_q: term,
        keys: which,
        after,
    }) = query.map_err(|_| PageError::NotFound)?;
    let account = find(&app, &id)?;
    let found = match entry {
        Some(seq) => app.billing.receipts().find_entry(&seq.to_string())?,
        None => None,
    };
    let found = found.filter(|entry| entry.account == account.id);
    let keys = KeyListQuery { term, which, after };
    let list = key_list(&app, &account, &keys)?;
    let mut page = OperatorAccountPage {
        list,
        refund: RefundForm {
            request_id: request,
            ..RefundForm::default()
        },
        ..page(&app, &user, account)?
    };
    if let Some(entry) = found
        && !page.entries.iter().any(|row| row.seq == entry.seq)
    {
        page.entries.push(entry_row(&app, &entry)?);
    }
    Ok(html(StatusCode::OK, &page))
}

/// A posting that the form describes without a fault.
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
    /// Deduction of an amount that the form contains without a sign.
    Deduct,
}

impl OperatorAccountPage {
    /// The fault of the form that adds credits.
    fn add_fault(&self) -> Option<&FormFault> {
        self.fault.as_ref().filter(|_| !self.deducts())
    }

    /// The fault of the form that deducts credits.
    fn deduct_fault(&self) -> Option<&FormFault> {
        self.fault.as_ref().filter(|_| self.deducts())
    }

    fn deducts(&self) -> bool {
        self.submitted.kind == "deduction"
    }
}

/// The rule for references, as a sentence for the form.
pub fn reference_rule() -> String {
    format!("A reference must have 1 to {MAX_REFERENCE_CHARS} characters.")
}

impl PostingOrder {
    fn parse(submitted: &PostingForm) -> Result<Self, FormFault> {
        let kind = match submitted.kind.as_str() {
            "grant" => PostingKind::Grant,
            "topup" => PostingKind::TopUp,
            "adjustment" => PostingKind::Adjust,
            "deduction" => PostingKind::Deduct,
            _ => return Err(FormFault::at("kind", "Choose a kind of the list.")),
        };
        let amount = submitted
            .credits
            .trim()
            .parse::<Micro>()
            .map_err(|error| FormFault::at("credits", format!("Credits: {error}.")))?;
        if !is_valid_reference(&submitted.reference) {
            return Err(FormFault::at("ref", reference_rule()));
        }
        match kind {
            PostingKind::Adjust | PostingKind::Deduct if !is_valid_reason(&submitted.reason) => {
                let fault = format!(
                    "A correction needs a reason of at most {MAX_REASON_CHARS} characters."
                );
                Err(FormFault::at("reason", fault))
            }
            PostingKind::Adjust if amount == Micro::ZERO => {
                Err(FormFault::at("credits", "Credits must not be 0."))
            }
            PostingKind::Grant | PostingKind::TopUp | PostingKind::Deduct
                if !amount.is_positive() =>
            {
                Err(FormFault::at("credits", "Credits must be above 0."))
            }
            _ => Ok(Self {
                kind,
                amount: match kind {
                    PostingKind::Deduct => Micro::ZERO.minus(amount),
                    _ => amount,
                },
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
            PostingKind::Adjust | PostingKind::Deduct => BalanceChangeKind::Adjust {
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
        let available = app.billing.balance(&account.id, now_ms())?.available;
        // A posting whose reference is known changes nothing: its repetition is answered as such.
        if taken > available
            && app
                .billing
                .receipts()
                .find_entry(&order.reference)?
                .is_none()
        {
            let fault = format!("Only {available} credits are available to deduct.");
            return Err(FormStop::conflict(FormFault::at("credits", fault)));
        }
        let consequence = format!(
            "The balance of {} decreases by {taken} credits. Only a grant or another adjustment \
             reverses it.",
            account.label()
        );
        let (title, button) = ("Deduct credits?", "Deduct");
        return Ok(ask(form, &account.id, title, consequence, button));
    }
    let (work, to) = (Arc::clone(app), account.id.clone());
    let posted = run_blocking(move || order.post(&work, &to, &by)).await?;
    show_posting(app, &form.user, account, posted, "Posted")
}

/// Shows the page after a posting. The `verb` names the change of the credits, such as "added".
pub fn show_posting(
    app: &SidecarState,
    user: &CurrentUser,
    account: &Account,
    posted: Result<PostingResult, StoreError>,
    verb: &str,
) -> Result<Response, FormStop> {
    let refused = |field, why: String| FormStop::conflict(FormFault::at(field, sentence(&why)));
    let posted = posted.map_err(|error| match error {
        StoreError::Refused(why) => refused("credits", why),
        StoreError::ReferenceUsed(why) => refused("ref", why),
        StoreError::Unknown(why) => FormStop::conflict(sentence(&why)),
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

/// Asks for a confirmation of a change to an account.
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

/// Creates a link that sets the password. The response is the page itself instead of a redirect,
/// because the link cannot be read again later.
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
