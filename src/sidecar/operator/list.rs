//! The list of accounts: who they are, what they have and what they spent lately, below the sums
//! over all of them; and the search for one.
//!
//! Must not change anything. A request id leads to the account that sent the request.

use super::super::authz::{Operator, may_administer};
use super::super::blocking::run_blocking;
use super::super::display::{Credits, Timestamp, group_digits};
use super::super::error::PageError;
use super::super::page::{Frame, html};
use super::super::state::SidecarState;
use crate::billing::Billing;
use accounts::{Account, AccountStatus, Accounts, Role};
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use base::clock::now_ms;
use credits::money::Micro;
use ledger::StoreError;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Accounts per page.
const ROWS_PER_PAGE: u32 = 50;

/// Maximum length of a search term; an e-mail has at most 254 characters.
const MAX_TERM_CHARS: usize = 254;

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// Days of the sums, today included. Days are UTC.
const SUM_DAYS: i64 = 30;

/// What the id of a request begins with.
const REQUEST_PREFIX: &str = "req_";

#[derive(Deserialize)]
pub struct AccountSearchQuery {
    /// A part of an e-mail, of an id or of the text that a key is shown with; or a request id.
    #[serde(default)]
    q: String,
    /// Id of the last account on the previous page.
    after: Option<String>,
}

struct AccountFundsRow {
    account: Account,
    balance: Credits,
    spent: Credits,
}

/// The sums over all accounts.
struct AccountListTotals {
    active: String,
    suspended: String,
    deleted: String,
    balances: Credits,
    spent_today: Credits,
    spent: Credits,
    writeoffs: Credits,
}

#[derive(Template)]
#[template(path = "operator.html")]
struct AccountsPage {
    frame: Frame,
    totals: AccountListTotals,
    q: String,
    fault: Option<String>,
    max_chars: usize,
    /// The user is an administrator and may make changes.
    may_act: bool,
    rows: Vec<AccountFundsRow>,
    next: Option<String>,
    first: bool,
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator(user): Operator,
    search: Result<Query<AccountSearchQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(AccountSearchQuery { q, after }) = search.map_err(|_| PageError::NotFound)?;
    let q = q.trim().to_owned();
    let (accounts, billing, now_ms) = (app.accounts.clone(), app.billing.clone(), now_ms());
    let is_too_long = q.chars().count() > MAX_TERM_CHARS;
    let (first, term) = (after.is_none(), q.clone());
    let found = run_blocking(move || {
        if term.starts_with(REQUEST_PREFIX)
            && let Some(charge) = billing.pages().request_charge(&term)?
        {
            return Ok::<_, StoreError>(Err(charge.account));
        }
        let rows = if is_too_long {
            (Vec::new(), None)
        } else {
            rows(&accounts, &billing, &term, after.as_deref(), now_ms)?
        };
        Ok(Ok((rows, totals(&accounts, &billing, now_ms)?)))
    });
    let ((rows, next), totals) = match found.await?? {
        Ok(found) => found,
        Err(account) => {
            let path = format!("/dashboard/operator/accounts/{account}?request={q}#refund");
            return Ok(Redirect::to(&path).into_response());
        }
    };
    let fault = if is_too_long {
        Some(format!("Search for at most {MAX_TERM_CHARS} characters."))
    } else if q.starts_with(REQUEST_PREFIX) {
        Some("No request with this id has ended. The id must be whole.".to_owned())
    } else {
        None
    };
    let status = if is_too_long {
        StatusCode::UNPROCESSABLE_ENTITY
    } else {
        StatusCode::OK
    };
    let page = AccountsPage {
        frame: Frame::new("Operator", &user).with_index_lag(app.billing.pages().index_lag()),
        totals,
        q: q.chars().take(MAX_TERM_CHARS).collect(),
        fault,
        max_chars: MAX_TERM_CHARS,
        may_act: may_administer(&user.account),
        rows,
        next,
        first,
    };
    Ok(html(status, &page))
}

/// First of the days that the sums cover, in days since 1970 UTC.
fn first_day(now_ms: i64) -> i64 {
    now_ms.div_euclid(DAY_MS) - SUM_DAYS + 1
}

/// A page of accounts, and the id after which the next page begins.
fn rows(
    accounts: &Accounts,
    billing: &Billing,
    term: &str,
    after: Option<&str>,
    now_ms: i64,
) -> Result<(Vec<AccountFundsRow>, Option<String>), StoreError> {
    let found = if term.is_empty() {
        accounts.directory().page(after, ROWS_PER_PAGE)?
    } else {
        accounts.directory().search(term, after, ROWS_PER_PAGE)?
    };
    let is_full = found.len() >= usize::try_from(ROWS_PER_PAGE).unwrap_or(usize::MAX);
    let next = found.last().filter(|_| is_full).map(|last| last.id.clone());
    let ids: Vec<_> = found.iter().map(|account| account.id.clone()).collect();
    let balances = billing.pages().balances(&ids, now_ms)?;
    let spends = billing.reports().spend_since(&ids, first_day(now_ms))?;
    let amount = |sums: &BTreeMap<String, Micro>, id: &str| {
        Credits(sums.get(id).copied().unwrap_or(Micro::ZERO))
    };
    let rows = found.into_iter().map(|account| AccountFundsRow {
        balance: amount(&balances, &account.id),
        spent: amount(&spends, &account.id),
        account,
    });
    Ok((rows.collect(), next))
}

fn totals(
    accounts: &Accounts,
    billing: &Billing,
    now_ms: i64,
) -> Result<AccountListTotals, StoreError> {
    let counts = accounts.directory().count()?;
    let today = now_ms.div_euclid(DAY_MS);
    // A request that ends during this page can count on the next day.
    let days = billing
        .reports()
        .daily_totals(first_day(now_ms), today + 2)?;
    let mut spent = [Micro::ZERO; 3];
    for day in &days {
        let [all, of_today, writeoffs] = &mut spent;
        *all = all.plus(day.sum.credits);
        *writeoffs = writeoffs.plus(day.writeoff);
        if day.day >= today {
            *of_today = of_today.plus(day.sum.credits);
        }
    }
    let [spent, spent_today, writeoffs] = spent.map(Credits);
    Ok(AccountListTotals {
        active: group_digits(counts.active),
        suspended: group_digits(counts.suspended),
        deleted: group_digits(counts.deleted),
        balances: Credits(billing.pages().balance_total(now_ms)?),
        spent_today,
        spent,
        writeoffs,
    })
}
