//! Lists the accounts with their e-mails, balances and recent spending. The reader chooses the
//! order and a search term.
//!
//! All accounts are read to sort them, which is fast enough for 100 000. This file must not change
//! anything.

use super::super::authz::{Operator, may_administer};
use super::super::blocking::run_blocking;
use super::super::display::{BalanceAmount, Credits, Timestamp, group_digits};
use super::super::error::PageError;
use super::super::form::{self, FormFault};
use super::super::page::{Frame, html};
use super::super::spending::encode;
use super::super::state::SidecarState;
use super::role_text::describe_role;
use crate::billing::Billing;
use accounts::{Account, AccountStatus, Accounts};
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use base::clock::now_ms;
use credits::money::Micro;
use ledger::StoreError;
use serde::Deserialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

const ROWS_PER_PAGE: usize = 50;

/// Maximum number of characters of a search term; an e-mail has at most 254.
pub const MAX_TERM_CHARS: usize = 254;

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// Number of days that the sums cover, including today. Days are UTC.
const SUM_DAYS: i64 = 30;

/// Orders of the list: the value in the URL, and the text of the link.
const ORDERS: [(AccountOrder, &str, &str); 4] = [
    (AccountOrder::Opened, "opened", "Newest first"),
    (AccountOrder::Email, "email", "By e-mail"),
    (AccountOrder::Balance, "balance", "By balance"),
    (AccountOrder::Spent, "spent", "By spending"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccountOrder {
    Opened,
    Email,
    Balance,
    Spent,
}

/// Kinds of accounts: the value in the URL, and the text of the link.
const KINDS: [(Option<AccountKind>, &str, &str); 3] = [
    (None, "", "All"),
    (Some(AccountKind::Person), "person", "People"),
    (
        Some(AccountKind::Organisation),
        "organisation",
        "Organisations",
    ),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccountKind {
    Person,
    Organisation,
}

fn account_kind(account: &Account) -> AccountKind {
    match account.organisation {
        Some(_) => AccountKind::Organisation,
        None => AccountKind::Person,
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct AccountOrderQuery {
    /// A part of an e-mail, of an id or of a key's shortened text.
    q: String,
    /// A value of [`KINDS`]; any other text selects all accounts.
    kind: String,
    /// A value of [`ORDERS`]; any other text selects the first order.
    sort: String,
    /// Page number, starting at 1; any other text selects page 1.
    page: String,
}

struct AccountFundsRow {
    account: Account,
    /// True if requests hold credits of a payment that was taken back, so that it begins no others.
    waits: bool,
    balance: BalanceAmount,
    spent: Credits,
}

/// A link to an order or a page of the list.
struct ListLink {
    text: &'static str,
    url: String,
    chosen: bool,
}

#[derive(Template)]
#[template(path = "operator_accounts.html")]
struct AccountsPage {
    frame: Frame,
    q: String,
    kind: &'static str,
    sort: &'static str,
    fault: Option<FormFault>,
    max_chars: usize,
    /// True if the user is an administrator and may make changes.
    may_act: bool,
    rows: Vec<AccountFundsRow>,
    found: String,
    /// Empty if there are no organisations.
    kinds: Vec<ListLink>,
    orders: Vec<ListLink>,
    pages: Vec<ListLink>,
}

/// What the list has.
struct Listed {
    rows: Vec<AccountFundsRow>,
    /// Number of all accounts that were found.
    found: usize,
    /// True if organisations match the term, whatever kind is chosen.
    has_organisations: bool,
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    query: Result<Query<AccountOrderQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let q = query.q.trim().to_owned();
    let (order, sort, _) = *ORDERS
        .iter()
        .find(|(_, value, _)| *value == query.sort)
        .unwrap_or(&ORDERS[0]);
    let (chosen_kind, kind, _) = *KINDS
        .iter()
        .find(|(_, value, _)| *value == query.kind)
        .unwrap_or(&KINDS[0]);
    let number = query.page.parse().unwrap_or(1).max(1);
    let (accounts, billing, now_ms) = (app.accounts.clone(), app.billing.clone(), now_ms());
    let is_too_long = q.chars().count() > MAX_TERM_CHARS;
    let term = q.clone();
    let listed = run_blocking(move || match is_too_long {
        true => Ok(Listed {
            rows: Vec::new(),
            found: 0,
            has_organisations: false,
        }),
        false => {
            let choice = (term.as_str(), chosen_kind);
            list(&accounts, &billing, choice, order, number, now_ms)
        }
    });
    let Listed {
        rows,
        found,
        has_organisations,
    } = listed.await??;
    let fault = is_too_long.then(|| {
        let fault = format!("Search for at most {MAX_TERM_CHARS} characters.");
        FormFault::at("q", fault)
    });
    let status = match is_too_long {
        true => StatusCode::UNPROCESSABLE_ENTITY,
        false => StatusCode::OK,
    };
    let link_of = |text, kind: &str, sort: &str, page: usize, chosen| {
        let mut query = vec![("q", q.as_str()), ("sort", sort)];
        let page = page.to_string();
        query.push(("page", &page));
        if !kind.is_empty() {
            query.push(("kind", kind));
        }
        let url = format!("/dashboard/operator/accounts?{}", encode(&query));
        ListLink { text, url, chosen }
    };
    let link = |text, sort: &str, page, chosen| link_of(text, kind, sort, page, chosen);
    let is_first = number == 1;
    let is_last = number.saturating_mul(ROWS_PER_PAGE) >= found;
    let pages = [
        (!is_first).then(|| link("First", sort, 1, false)),
        (!is_first).then(|| link("Previous", sort, number - 1, false)),
        (!is_last).then(|| link("Next", sort, number + 1, false)),
    ];
    let page = AccountsPage {
        frame: Frame::new("Accounts", &user).with_index_lag(app.billing.pages().index_lag()),
        kinds: KINDS
            .map(|(_, value, text)| link_of(text, value, sort, 1, value == kind))
            .into_iter()
            .filter(|_| has_organisations)
            .collect(),
        orders: ORDERS
            .map(|(_, value, text)| link(text, value, 1, value == sort))
            .into(),
        pages: pages.into_iter().flatten().collect(),
        q: q.chars().take(MAX_TERM_CHARS).collect(),
        kind,
        sort,
        fault,
        max_chars: MAX_TERM_CHARS,
        may_act: may_administer(&user.person),
        rows,
        found: group_digits(found as u64),
    };
    Ok(html(status, &page))
}

/// Returns a page of the accounts that match a term and are of a kind.
fn list(
    accounts: &Accounts,
    billing: &Billing,
    (term, kind): (&str, Option<AccountKind>),
    order: AccountOrder,
    number: usize,
    now_ms: i64,
) -> Result<Listed, StoreError> {
    let directory = accounts.directory();
    let mut found = match term {
        "" => directory.page(None, u32::MAX)?,
        term => directory.search(term, None, u32::MAX)?,
    };
    let has_organisations = found.iter().any(|it| it.organisation.is_some());
    found.retain(|account| kind.is_none_or(|kind| kind == account_kind(account)));
    let (first_day, today) = (first_day(now_ms), now_ms.div_euclid(DAY_MS));
    match order {
        // Ids ascend with the time of creation, so reversing them puts the newest first.
        AccountOrder::Opened => found.reverse(),
        AccountOrder::Email => found.sort_by(|one, other| one.email.cmp(&other.email)),
        AccountOrder::Balance => {
            let ids: Vec<_> = found.iter().map(|account| account.id.clone()).collect();
            let balances = billing.ledger().rows().balances(&ids, now_ms)?;
            found.sort_by_key(|account| Reverse(balances.get(&account.id).copied()));
        }
        AccountOrder::Spent => {
            // A request that ends while this page is built can count on the next day.
            let pages = billing.ledger().pages();
            let spent = pages.spend_by_account(first_day, today + 2, u32::MAX)?;
            let spent: BTreeMap<_, _> = spent
                .into_iter()
                .map(|(id, sum)| (id, sum.credits))
                .collect();
            found.sort_by_key(|account| Reverse(spent.get(&account.id).copied()));
        }
    }
    let count = found.len();
    let shown: Vec<_> = found
        .into_iter()
        .skip((number - 1).saturating_mul(ROWS_PER_PAGE))
        .take(ROWS_PER_PAGE)
        .collect();
    let ids: Vec<_> = shown.iter().map(|account| account.id.clone()).collect();
    let balances = billing.ledger().rows().balances(&ids, now_ms)?;
    let spends = billing.ledger().pages().spend_since(&ids, first_day)?;
    let amount =
        |sums: &BTreeMap<String, Micro>, id: &str| sums.get(id).copied().unwrap_or(Micro::ZERO);
    let clawbacks = accounts.database().payments().clawbacks();
    let rows = shown.into_iter().map(|account| {
        Ok::<_, StoreError>(AccountFundsRow {
            waits: clawbacks.of_account(&account.id)?.is_held,
            balance: BalanceAmount(amount(&balances, &account.id)),
            spent: Credits(amount(&spends, &account.id)),
            account,
        })
    });
    Ok(Listed {
        rows: rows.collect::<Result<_, _>>()?,
        found: count,
        has_organisations,
    })
}

/// Returns the first day that the sums cover, in days since 1970 UTC.
fn first_day(now_ms: i64) -> i64 {
    now_ms.div_euclid(DAY_MS) - SUM_DAYS + 1
}
