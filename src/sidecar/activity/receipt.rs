//! Shows the receipt of one response: usage, prices, cost, and the reason for the cost.

use super::refused;
use super::row::{ActivityRow, key_names, row};
use crate::billing::Receipt;
use crate::billing::activity::RequestOutcome;
use crate::refused_requests::{RequestNote, or_left_out};
use crate::sidecar::display::{Timestamp, group_amount, group_digits};
use crate::sidecar::error::PageError;
use crate::sidecar::key_names::KeyNames;
use crate::sidecar::page::{Frame, html};
use crate::sidecar::session::CurrentUser;
use crate::sidecar::state::SidecarState;
use crate::sidecar::viewed_account::ViewedAccount;
use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use credits::money::{Factor, Micro};
use credits::price_list::{PriceList, factor_for};
use credits::pricing::{self, Unit};
use llm_protocol::usage::Usage;
use std::sync::Arc;

/// A row of a receipt for one class of usage. Its credits are exact.
struct ReceiptRow {
    class: &'static str,
    /// Number of the compaction pass, starting at 1; `None` for the response itself.
    pass: Option<usize>,
    count: String,
    price: String,
    /// True if the price applies to a thousand uses instead of a million tokens.
    per_thousand: bool,
    credits: String,
}

/// Credits that an operator returned.
struct RefundView {
    at: Timestamp,
    credits: String,
    by: String,
    reference: String,
}

#[derive(Template)]
#[template(path = "receipt.html")]
struct ReceiptPage<'r> {
    frame: Frame,
    viewed: &'r ViewedAccount,
    receipt: &'r Receipt,
    row: ActivityRow,
    /// Reason for the cost, as a sentence.
    why: &'static str,
    lines: Vec<ReceiptRow>,
    /// The calculation in one line; `None` unless all rows are tokens at their base price.
    formula: Option<String>,
    /// Sum of the rows before rounding, in credits.
    exact: String,
    /// Credits that the cache saved, after deducting what writing to the cache cost.
    saved: Option<String>,
    surcharge: Option<String>,
    /// Input size in tokens above which the long-context prices apply, if they applied.
    above_input_tokens: Option<String>,
    /// Credits that were returned later.
    refunds: Vec<RefundView>,
    /// How the vendor failed the request, and the ids that it gave it.
    note: Option<RequestNote>,
    /// Factors of the billed service tier, region or speed: key, name and factor.
    factors: Vec<(&'static str, String, String)>,
}

pub async fn receipt(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(request_id): Path<String>,
) -> Result<Response, PageError> {
    show_receipt(&app, &user, &ViewedAccount::from_user(&user), &request_id)
}

/// Shows the receipt of a response of `viewed`, for its holder or an operator.
pub fn show_receipt(
    app: &SidecarState,
    user: &CurrentUser,
    viewed: &ViewedAccount,
    request_id: &str,
) -> Result<Response, PageError> {
    let found = app.billing.receipts().receipt(&viewed.id, request_id)?;
    let Some(receipt) = found else {
        return refused::page(app, user, viewed, request_id);
    };
    if !viewed.shows_key(&app.accounts, &receipt.detail.key_id)? {
        return Err(PageError::NotFound);
    }
    let names = key_names(app, &viewed.id, std::slice::from_ref(&receipt))?;
    let note = match &app.refused {
        Some(refused) => or_left_out(refused.find_note(Some(&viewed.id), request_id)),
        None => None,
    };
    let page = ReceiptPage {
        note,
        refunds: refunds(app, &receipt)?,
        ..receipt_page(Frame::new("Activity", user), viewed, &receipt, &names)
    };
    Ok(html(StatusCode::OK, &page))
}

/// Returns the refunds that operators granted later, with the names of the administrators.
fn refunds(app: &SidecarState, receipt: &Receipt) -> Result<Vec<RefundView>, PageError> {
    let mut views = Vec::new();
    for refund in &receipt.refunds {
        let by = match &refund.actor {
            Some(actor) => app.accounts.find(actor)?.map(|account| account.email),
            None => None,
        };
        views.push(RefundView {
            at: Timestamp(refund.at_ms),
            credits: refund.credits.to_string(),
            by: by.map_or_else(
                || "the operator".to_owned(),
                |email| format!("{email}, an operator"),
            ),
            reference: refund.reference.clone(),
        });
    }
    Ok(views)
}

fn receipt_page<'r>(
    frame: Frame,
    viewed: &'r ViewedAccount,
    receipt: &'r Receipt,
    names: &KeyNames,
) -> ReceiptPage<'r> {
    let (detail, price) = (&receipt.detail, &receipt.price);
    let usage = &detail.usage;
    let priced = pricing::cost_lines(usage, price);
    let terms = priced.iter().filter(|line| line.count > 0);
    let is_plain = terms
        .clone()
        .all(|line| line.unit == Unit::Tokens && line.factor == Factor::ONE);
    let terms: Vec<_> = terms
        .map(|line| {
            format!(
                "{} × {}",
                group_digits(line.count),
                group_amount(line.price)
            )
        })
        .collect();
    let lines = priced
        .into_iter()
        .filter(|line| {
            let is_usual = line.pass.is_none() && matches!(line.class, "input" | "output");
            line.count > 0 || is_usual && line.price.is_positive()
        })
        .map(|line| ReceiptRow {
            class: line.class,
            pass: line.pass,
            count: group_digits(line.count),
            price: group_amount(line.price),
            per_thousand: line.unit != Unit::Tokens,
            credits: line.credits(),
        })
        .collect();
    let saved = receipt.cache_savings();
    let surcharge = Micro::ZERO.minus(saved);
    ReceiptPage {
        viewed,
        receipt,
        row: row(viewed, receipt, names),
        why: explain_cost(detail.outcome, detail.estimated),
        lines,
        formula: (is_plain && !terms.is_empty()).then(|| terms.join(" + ")),
        exact: pricing::exact_cost(usage, price),
        saved: saved.is_positive().then(|| saved.to_string()),
        surcharge: surcharge.is_positive().then(|| surcharge.to_string()),
        above_input_tokens: price
            .band_for(usage.without_passes().input_total())
            .above_input_tokens
            .map(group_digits),
        refunds: Vec::new(),
        note: None,
        factors: factors(usage, price),
        frame,
    }
}

fn factors(usage: &Usage, price: &PriceList) -> Vec<(&'static str, String, String)> {
    let words = [usage.service_tier, usage.inference_geo, usage.speed];
    let names = ["Service tier", "Region", "Speed"];
    let billed = price.features.factors().into_iter().zip(words).zip(names);
    let billed = billed.filter_map(|(((_, factors), word), name)| {
        Some((
            name,
            word?.to_string(),
            factor_for(factors, word).to_string(),
        ))
    });
    billed.collect()
}

/// Explains in plain words the reason for a response's cost.
fn explain_cost(outcome: RequestOutcome, estimated: bool) -> &'static str {
    match (outcome, estimated) {
        (RequestOutcome::Completed, false) => {
            "The response completed. It is billed by the vendor's own count, or by the images or characters that were counted \
             here if the price is per image or character."
        }
        (RequestOutcome::Completed, true) => {
            "The response completed, but the vendor reported no usage. The cost is estimated from the content of the request and \
             the length of the response, and is at most what was reserved."
        }
        (RequestOutcome::ClientLeft, false) => {
            "The client disconnected before the response ended. A vendor goes on generating until it notices that, so the \
             gateway read on, for a limited time, to get the vendor's own count. All that the vendor generated until it \
             stopped is billed, also what the client did not see."
        }
        (RequestOutcome::ClientLeft, true) => {
            "The client disconnected before the response ended. The gateway read on, for a limited time, but the vendor did not \
             report its usage in that time. What the vendor generated until the gateway stopped reading is billed, also what the \
             client did not see. The cost is estimated from the content of the request and the length of the response, and is \
             at most what was reserved."
        }
        (RequestOutcome::GatewayEnded, _) => {
            "The gateway stopped the response at one of its limits: time, size, a client that read too slowly, or the reserved \
             credits. What the vendor generated until then is billed."
        }
        (RequestOutcome::RefusedFree, _) => {
            "The model refused before it produced output. The vendor does not charge for this."
        }
        (RequestOutcome::VendorError, _) => {
            "The vendor failed or refused the request: nothing is billed, and the reserved credits were released."
        }
        (RequestOutcome::VendorCut, _) => {
            "The vendor cut the response off: nothing is billed, and the reserved credits were released."
        }
        (RequestOutcome::Interrupted, _) => {
            "The gateway was interrupted while the request ran: nothing is billed, and the reserved credits were released."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::format_elapsed;
    use super::*;
    use credits::price_list::PriceList;
    use ledger::EndingDetail;
    use llm_protocol::Protocol;
    use llm_protocol::ir::CacheMarkerOrigin;
    use llm_protocol::usage::Usage;

    fn viewed() -> ViewedAccount {
        ViewedAccount::own("acct_1")
    }

    fn left(usage: Usage, price: PriceList) -> Receipt {
        let detail = EndingDetail {
            key_id: "key_1".into(),
            key_shown: "gw-sk-Ab12…wxyz".into(),
            model: "<script>alert(1)</script>".into(),
            surface: Protocol::Messages,
            vendor: "alpha".into(),
            outcome: RequestOutcome::ClientLeft,
            usage,
            price_version: price.version.clone(),
            estimated: true,
            implausible: false,
            conversation: Some("<b>0123".into()),
            took_ms: Some(12_345),
            first_token_ms: Some(840),
            cache_marks: None,
            member: None,
        };
        Receipt {
            seq: 1,
            request_id: "req_1".into(),
            at_ms: 0,
            detail,
            credits: pricing::cost(&usage, &price),
            price,
            writeoff: Micro::ZERO,
            refunds: Vec::new(),
            balance_after: Micro::new(299_894_300),
        }
    }

    #[test]
    fn a_receipt_shows_every_class_and_escapes_what_it_is_given() {
        let price = PriceList::new(
            [500, 50, 625, 1000, 2500].map(|credits| Micro::new(credits * 1_000_000)),
        );
        let usage = Usage {
            input: 3,
            cache_read: 1_234,
            output: 17,
            reasoning: 5,
            ..Usage::default()
        };
        let receipt = left(usage, price);
        // 1234 tokens at 500 instead of 50.
        assert_eq!(receipt.cache_savings(), Micro::new(555_300));
        let text = receipt_page(
            Frame::public("Activity"),
            &viewed(),
            &receipt,
            &KeyNames::default(),
        )
        .render()
        .unwrap();
        // 3·500 + 1234·50 + 17·2500 = 105 700; divided by 1 000 000 tokens: 0.1057 credits.
        for part in [
            "0.0015",
            "0.0617",
            "0.0425",
            "0.1057",
            "cache_read",
            "1\u{202f}234",
            "client disconnected",
            "299.8943",
        ] {
            assert!(text.contains(part), "{part} is not on the receipt");
        }
        for part in [
            "0.5553",
            "12.3 s",
            "840 ms",
            "is estimated from the content",
            "3 × 500 + 1\u{202f}234 × 50 + 17 × 2\u{202f}500",
        ] {
            assert!(text.contains(part), "{part} is not on the receipt: {text}");
        }
        assert!(
            !text.contains("<script>alert") && !text.contains("<b>0123"),
            "a name was not escaped"
        );
        assert!(
            !text.contains("cache_write_1h"),
            "a class without tokens is left out"
        );
    }

    #[test]
    fn a_receipt_has_the_lines_of_each_compaction_and_says_what_was_capped() {
        let price =
            PriceList::new([5, 1, 6, 10, 25].map(|credits| Micro::new(credits * 1_000_000)));
        let pass = llm_protocol::usage::CompactionPass {
            input: 60_385,
            output: 592,
            ..Default::default()
        };
        let own = Usage {
            input: 682,
            output: 1_320,
            ..Usage::default()
        };
        let mut receipt = left(own.with_passes([pass].into_iter().collect()), price);
        let text = |receipt: &Receipt| {
            receipt_page(
                Frame::public("Activity"),
                &viewed(),
                receipt,
                &KeyNames::default(),
            )
            .render()
            .unwrap()
        };
        // (682·5 + 1320·25 + 60385·5 + 592·25) ÷ 1 000 000.
        for part in [
            "of compaction 1",
            "60\u{202f}385",
            "592",
            "682",
            "0.301925",
            "0.0148",
            "0.353135",
        ] {
            assert!(
                text(&receipt).contains(part),
                "{part} is not on the receipt: {}",
                text(&receipt)
            );
        }
        assert!(!text(&receipt).contains("Implausible usage, capped"));
        receipt.detail.implausible = true;
        assert!(text(&receipt).contains("Implausible usage, capped"));
        let json = crate::billing::json::receipt(&receipt);
        assert_eq!(json["implausible"], "implausible usage, capped");
        let lines: Vec<_> = json["lines"]
            .as_array()
            .unwrap()
            .iter()
            .map(|line| &line["compaction"])
            .collect();
        assert_eq!(
            lines,
            [
                &serde_json::Value::Null,
                &serde_json::Value::Null,
                &1.into(),
                &1.into()
            ]
        );
    }

    #[test]
    fn a_receipt_says_what_the_cache_saved_or_cost() {
        let price = PriceList::new(
            [500, 50, 625, 1000, 2500].map(|credits| Micro::new(credits * 1_000_000)),
        );
        let page = |cache_read, cache_write_5m| {
            let usage = Usage {
                input: 3,
                cache_read,
                cache_write_5m,
                ..Usage::default()
            };
            let mut receipt = left(usage, price.clone());
            receipt.detail.cache_marks = Some(CacheMarkerOrigin::Gateway);
            let viewed = viewed();
            let page = receipt_page(
                Frame::public("Activity"),
                &viewed,
                &receipt,
                &KeyNames::default(),
            );
            (
                crate::billing::json::receipt(&receipt)["cache"]["saved"].clone(),
                page.render().unwrap(),
            )
        };
        for (read, written, saved, words) in [
            (1_000, 0, "0.45", Some("The cache saved 0.45 credits")),
            (1_000, 1_000, "0.325", Some("The cache saved 0.325 credits")),
            (
                100,
                1_000,
                "-0.08",
                Some("The cache cost 0.08 credits more"),
            ),
            (0, 0, "0", None),
        ] {
            let (json, page) = page(read, written);
            assert_eq!(json, saved);
            assert!(page.contains("Marked for the cache by") && page.contains("the gateway"));
            assert_eq!(page.contains("data-testid=\"saved\""), words.is_some());
            assert!(words.is_none_or(|words| page.contains(words)), "{words:?}");
        }
    }

    #[test]
    fn every_outcome_is_explained_and_what_is_free_is_called_free() {
        for outcome in RequestOutcome::ALL {
            let free = matches!(
                outcome,
                RequestOutcome::VendorError
                    | RequestOutcome::VendorCut
                    | RequestOutcome::Interrupted
            );
            assert_eq!(
                explain_cost(outcome, false).contains("nothing is billed"),
                free,
                "{outcome:?}"
            );
        }
        assert_eq!(
            [
                format_elapsed(0),
                format_elapsed(999),
                format_elapsed(1_000),
                format_elapsed(61_980)
            ],
            ["0 ms", "999 ms", "1.0 s", "61.9 s"]
        );
    }
}
