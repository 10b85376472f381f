//! What was billed: a row per response, and each one's receipt. One account never sees another's.

use super::App;
use super::page::{Frame, html, when};
use super::problem::Problem;
use super::session::Visitor;
use crate::billing::Receipt;
use crate::money::exact_line;
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use std::sync::Arc;

/// Rows of one page.
const ROWS: u32 = 50;

/// One response in a table.
pub struct Row {
    pub request_id: String,
    pub at: String,
    pub model: String,
    pub surface: &'static str,
    pub key: String,
    pub outcome: String,
    pub tokens_in: u64,
    pub tokens_out: u64,
    pub credits: String,
    pub estimated: bool,
}

#[derive(Template)]
#[template(path = "activity.html")]
struct ActivityPage {
    frame: Frame,
    rows: Vec<Row>,
    older: Option<i64>,
    first: bool,
}

/// One class of tokens on a receipt; its credits are exact.
struct Line {
    class: &'static str,
    tokens: u64,
    price: String,
    credits: String,
}

#[derive(Template)]
#[template(path = "receipt.html")]
struct ReceiptPage {
    frame: Frame,
    row: Row,
    lines: Vec<Line>,
    reasoning: u64,
    price_version: String,
    balance_after: String,
    /// The part that the account could not pay.
    writeoff: Option<String>,
}

#[derive(Deserialize)]
pub struct Page {
    /// The `seq` of the last row of the page before.
    before: Option<i64>,
}

pub fn rows(receipts: &[Receipt]) -> Vec<Row> {
    receipts.iter().map(row).collect()
}

fn row(receipt: &Receipt) -> Row {
    let detail = &receipt.detail;
    let usage = &detail.usage;
    let read = [usage.input, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h];
    Row {
        request_id: receipt.request_id.clone(),
        at: when(receipt.at_ms),
        model: detail.model.clone(),
        surface: detail.surface.as_str(),
        key: detail.key_shown.clone(),
        outcome: detail.outcome.as_str().replace('_', " "),
        tokens_in: read.into_iter().fold(0, u64::saturating_add),
        tokens_out: usage.output,
        credits: receipt.credits.to_string(),
        estimated: detail.estimated,
    }
}

pub async fn list(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(Page { before }) = page.map_err(|_| Problem::NotFound)?;
    let account = &visitor.account.id;
    let receipts = app.billing.receipts(account, before, ROWS)?;
    let full = receipts.len() >= usize::try_from(ROWS).unwrap_or(usize::MAX);
    let older = receipts.last().filter(|_| full).map(|last| last.seq);
    let page =
        ActivityPage { frame: Frame::of("Activity", &visitor), rows: rows(&receipts), older, first: before.is_none() };
    Ok(html(StatusCode::OK, &page))
}

pub async fn receipt(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path(request_id): Path<String>,
) -> Result<Response, Problem> {
    let account = &visitor.account.id;
    let receipt = app.billing.receipt(account, &request_id)?.ok_or(Problem::NotFound)?;
    Ok(html(StatusCode::OK, &receipt_page(Frame::of("Activity", &visitor), &receipt)))
}

fn receipt_page(frame: Frame, receipt: &Receipt) -> ReceiptPage {
    let (usage, price) = (&receipt.detail.usage, &receipt.price);
    let classes = [
        ("input", usage.input, price.input),
        ("cache_read", usage.cache_read, price.cache_read),
        ("cache_write_5m", usage.cache_write_5m, price.cache_write_5m),
        ("cache_write_1h", usage.cache_write_1h, price.cache_write_1h),
        ("output", usage.output, price.output),
    ];
    let lines = classes
        .into_iter()
        .filter(|(class, tokens, _)| *tokens > 0 || matches!(*class, "input" | "output"))
        .map(|(class, tokens, price)| Line {
            class,
            tokens,
            price: price.to_string(),
            credits: exact_line(tokens, price),
        })
        .collect();
    ReceiptPage {
        row: row(receipt),
        lines,
        reasoning: usage.reasoning,
        price_version: price.version.clone(),
        balance_after: receipt.balance_after.to_string(),
        writeoff: receipt.writeoff.is_positive().then(|| receipt.writeoff.to_string()),
        frame,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Price;
    use crate::money::{Micro, cost};
    use crate::protocol::Protocol;
    use crate::store::ledger::{Detail, Outcome};
    use crate::usage::Usage;

    #[test]
    fn a_receipt_shows_every_class_and_escapes_what_it_is_given() {
        let price = Price::new([500, 50, 625, 1000, 2500].map(|credits| Micro::new(credits * 1_000_000)));
        let usage = Usage { input: 3, cache_read: 1_234, output: 17, reasoning: 5, ..Usage::default() };
        let terms = [(3, price.input), (1_234, price.cache_read), (17, price.output)];
        let detail = Detail {
            key_id: "key_1".into(),
            key_shown: "gw-sk-Ab12…wxyz".into(),
            model: "<script>alert(1)</script>".into(),
            surface: Protocol::Messages,
            vendor: "alpha".into(),
            outcome: Outcome::ClientLeft,
            usage,
            price_version: price.version.clone(),
            estimated: true,
        };
        let receipt = Receipt {
            seq: 1,
            request_id: "req_1".into(),
            at_ms: 0,
            detail,
            credits: cost(terms),
            price,
            writeoff: Micro::ZERO,
            balance_after: Micro::new(299_894_300),
        };
        let text = receipt_page(Frame::public("Activity"), &receipt).render().unwrap();
        // 3·500 + 1234·50 + 17·2500 = 105 700 credits per million tokens' worth: 0.1057 credits.
        for part in ["0.0015", "0.0617", "0.0425", "0.1057", "cache_read", "1234", "client left", "299.8943"] {
            assert!(text.contains(part), "{part} is not on the receipt");
        }
        assert!(!text.contains("<script>alert"), "a model's name was not escaped");
        assert!(!text.contains("cache_write_1h"), "a class without tokens is left out");
    }
}
