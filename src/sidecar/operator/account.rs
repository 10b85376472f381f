//! One account on the operator pages: its balance, keys and latest entries, postings to it, and
//! suspension.
//!
//! Postings and suspension require the administrator's password once in ten minutes. The ledger
//! decides what is allowed.

use super::super::App;
use super::super::account::{Unconfirmed, confirm_again};
use super::super::live::Reading;
use super::super::page::{Frame, html, when};
use super::super::problem::Problem;
use super::super::role::{Operator, OperatorForm, may_act};
use super::super::session::{CallerAddress, Visitor, blocking};
use super::Row;
use crate::account::{Account, By, Closed, Status};
use crate::admin::document;
use crate::billing::correct::{REASON_CHARS_MAX, REFERENCE_CHARS_MAX, is_reason, is_reference};
use crate::clock::now_ms;
use crate::money::Micro;
use crate::store::StoreError;
use crate::store::ledger::{Change, ChangeKind, Posted};
use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use std::sync::Arc;

/// Maximum number of entries shown.
const ENTRIES: u32 = 20;

struct KeyRow {
    id: String,
    name: String,
    shown: String,
    status: &'static str,
    created: String,
}

struct EntryRow {
    at: String,
    kind: String,
    reference: String,
    change: String,
    balance_after: String,
    /// Actor and reason, if an operator posted the entry.
    told: String,
}

#[derive(Template)]
#[template(path = "operator_account.html")]
struct AccountPage {
    frame: Frame,
    here: &'static str,
    csrf: String,
    account: Row,
    /// The user is an administrator and may make changes.
    acts: bool,
    is_active: bool,
    is_deleted: bool,
    balance: String,
    held: String,
    available: String,
    trial: String,
    keys: Vec<KeyRow>,
    entries: Vec<EntryRow>,
    /// A posting requires the password again.
    asks_password: bool,
    done: Option<String>,
    fault: Option<String>,
    /// Why suspending or resuming the account failed.
    door_fault: Option<&'static str>,
    /// Values of the submitted form, so that the user need not type them again.
    sent: Sent,
    reference_max: usize,
    reason_max: usize,
}

#[derive(Default, Clone)]
struct Sent {
    kind: String,
    credits: String,
    reference: String,
    reason: String,
}

fn page(app: &App, visitor: &Visitor, account: Account) -> Result<AccountPage, Problem> {
    let now_ms = now_ms();
    let shown = Reading::of(&app.billing, &account.id, now_ms)?
        .shown(&app.billing.balance(&account.id, now_ms)?, now_ms);
    let keys = app
        .accounts
        .keys(&account.id)?
        .into_iter()
        .map(|key| KeyRow {
            status: key.status.name(),
            created: when(key.created_at_ms),
            id: key.id,
            name: key.name,
            shown: key.shown,
        });
    let entries = app.billing.entries(&account.id, None, ENTRIES)?;
    let entries = entries.iter().map(|entry| {
        let told = document::entry(entry)?;
        let word = |name: &str| {
            told.get(name)
                .and_then(|value| value.as_str())
                .map(ToOwned::to_owned)
        };
        let words = [
            word("model"),
            word("reason"),
            word("actor").map(|actor| format!("by {actor}")),
        ];
        Ok(EntryRow {
            at: when(entry.at_ms),
            kind: entry.kind.clone(),
            reference: entry.reference.clone(),
            change: entry.change().to_string(),
            balance_after: entry.bal_paid.plus(entry.bal_trial).to_string(),
            told: words.into_iter().flatten().collect::<Vec<_>>().join(" · "),
        })
    });
    Ok(AccountPage {
        frame: Frame::of("Operator", visitor),
        here: "accounts",
        csrf: visitor.csrf.clone(),
        acts: may_act(&visitor.account),
        is_active: account.status == Status::Active,
        is_deleted: account.status == Status::Deleted,
        balance: shown.balance,
        held: shown.held,
        available: shown.available,
        trial: shown.trial,
        keys: keys.collect(),
        entries: entries.collect::<Result<_, StoreError>>()?,
        asks_password: !visitor.confirmed,
        done: None,
        fault: None,
        door_fault: None,
        sent: Sent::default(),
        reference_max: REFERENCE_CHARS_MAX,
        reason_max: REASON_CHARS_MAX,
        account: account.into(),
    })
}

/// Finds an account by its id only: an e-mail must not be in a URL.
fn find(app: &App, id: &str) -> Result<Account, Problem> {
    app.accounts
        .find(id)?
        .filter(|account| account.id == id)
        .ok_or(Problem::NotFound)
}

pub async fn show(
    State(app): State<Arc<App>>,
    Operator(visitor): Operator,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let account = find(&app, &id)?;
    Ok(html(StatusCode::OK, &page(&app, &visitor, account)?))
}

/// A posting from a well-formed form.
struct Order {
    kind: Kind,
    amount: Micro,
    reference: String,
    reason: String,
}

#[derive(Clone, Copy)]
enum Kind {
    Grant,
    TopUp,
    Adjust,
}

impl Order {
    fn read(sent: &Sent) -> Result<Self, String> {
        let kind = match sent.kind.as_str() {
            "grant" => Kind::Grant,
            "topup" => Kind::TopUp,
            "adjustment" => Kind::Adjust,
            _ => return Err("Choose what is to be posted.".into()),
        };
        let amount = sent
            .credits
            .trim()
            .parse::<Micro>()
            .map_err(|error| format!("Credits: {error}."))?;
        if !is_reference(&sent.reference) {
            return Err(format!(
                "A reference has 1 to {REFERENCE_CHARS_MAX} characters."
            ));
        }
        match kind {
            Kind::Adjust if !is_reason(&sent.reason) => Err(format!(
                "An adjustment needs a reason, of at most {REASON_CHARS_MAX} characters."
            )),
            Kind::Adjust if amount == Micro::ZERO => Err("Credits must not be 0.".into()),
            Kind::Grant | Kind::TopUp if !amount.is_positive() => {
                Err("Credits must be above 0.".into())
            }
            _ => Ok(Self {
                kind,
                amount,
                reference: sent.reference.clone(),
                reason: sent.reason.clone(),
            }),
        }
    }

    fn post(&self, app: &App, account: &str, by: &By) -> Result<Posted, StoreError> {
        let kind = match self.kind {
            Kind::Grant => ChangeKind::Grant,
            Kind::TopUp => ChangeKind::TopUp,
            Kind::Adjust => ChangeKind::Adjust {
                reason: &self.reason,
            },
        };
        let (now_ms, reference, amount) = (now_ms(), self.reference.as_str(), self.amount);
        let change = Change {
            kind,
            reference,
            account,
            amount,
            actor: Some(&by.actor),
            at_ms: now_ms,
        };
        app.accounts
            .acting(by, now_ms)
            .change(&change, || app.billing.change(&change))
    }
}

pub async fn post(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    CallerAddress(address): CallerAddress,
    OperatorForm { form, by }: OperatorForm,
) -> Result<Response, Problem> {
    let account = find(&app, &id)?;
    let [kind, credits, reference, reason] =
        ["kind", "credits", "ref", "reason"].map(|name| form.field(name).to_owned());
    let sent = Sent {
        kind,
        credits,
        reference,
        reason,
    };
    let answer = |status, fault: String, sent: Sent, visitor: &Visitor| {
        let page = AccountPage {
            fault: Some(fault),
            sent,
            ..page(&app, visitor, account.clone())?
        };
        Ok(html(status, &page))
    };
    let order = match Order::read(&sent) {
        Ok(order) => order,
        Err(fault) => return answer(StatusCode::UNPROCESSABLE_ENTITY, fault, sent, &form.visitor),
    };
    if let Err(Unconfirmed { status, fault }) = confirm_again(&app, &form, address).await? {
        return answer(status, fault.to_owned(), sent, &form.visitor);
    }
    let (work, to) = (Arc::clone(&app), id.clone());
    let visitor = Visitor {
        confirmed: true,
        ..form.visitor
    };
    match blocking(move || order.post(&work, &to, &by)).await? {
        Ok(posted) => {
            let done = if posted.is_new {
                format!(
                    "Posted {}. The balance is {}.",
                    posted.change, posted.balance
                )
            } else {
                format!(
                    "This reference was counted already: nothing changed. The balance is {}.",
                    posted.balance
                )
            };
            let page = AccountPage {
                done: Some(done),
                ..page(&app, &visitor, account)?
            };
            Ok(html(
                if posted.is_new {
                    StatusCode::CREATED
                } else {
                    StatusCode::OK
                },
                &page,
            ))
        }
        Err(
            StoreError::Refused(why) | StoreError::Unknown(why) | StoreError::ReferenceUsed(why),
        ) => answer(
            StatusCode::CONFLICT,
            format!("Refused: {why}."),
            sent,
            &visitor,
        ),
        Err(other) => Err(other.into()),
    }
}

pub async fn suspend(
    app: State<Arc<App>>,
    id: Path<String>,
    from: CallerAddress,
    form: OperatorForm,
) -> Result<Response, Problem> {
    set_status(app, id, from, form, Status::Suspended).await
}

pub async fn resume(
    app: State<Arc<App>>,
    id: Path<String>,
    from: CallerAddress,
    form: OperatorForm,
) -> Result<Response, Problem> {
    set_status(app, id, from, form, Status::Active).await
}

async fn set_status(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    CallerAddress(address): CallerAddress,
    OperatorForm { form, by }: OperatorForm,
    status: Status,
) -> Result<Response, Problem> {
    let found = find(&app, &id)?;
    if status == Status::Suspended && found.id == by.actor {
        return Err(Problem::OwnDoor);
    }
    if let Err(Unconfirmed { status, fault }) = confirm_again(&app, &form, address).await? {
        return Ok(html(
            status,
            &AccountPage {
                door_fault: Some(fault),
                ..page(&app, &form.visitor, found)?
            },
        ));
    }
    let account = found.id;
    let (accounts, of) = (app.accounts.clone(), account.clone());
    match blocking(move || {
        accounts
            .acting(&by, now_ms())
            .set_status_from_afar(&of, status)
    })
    .await??
    {
        Closed::Done => {}
        Closed::NoAccount => return Err(Problem::NotFound),
        Closed::LastAdministrator => return Err(Problem::OwnDoor),
    }
    Ok(Redirect::to(&format!("/dashboard/operator/accounts/{account}")).into_response())
}
