//! Checks the rules about ends of requests: a debit is what its usage costs at the price of its
//! admission (`cost`, `price version`, `detail`), and `a void costs nothing`.
//!
//! This file must not compute a sum over entries.

use super::findings::LedgerAuditReport;
use crate::{Ledger, LedgerEntry, RequestOutcome};
use credits::money::Micro;
use credits::price_list::PriceList;
use credits::pricing;
use llm_protocol::Protocol;
use llm_protocol::ir::CacheMarkerOrigin;
use llm_protocol::usage::Usage;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashMap;

/// The fields of an ending's detail that the rules need, without copies of its texts. The other
/// required fields are parsed too, so that a detail is valid here if `EndingDetail` can parse it.
#[derive(Debug, Deserialize)]
pub(crate) struct EndingView<'a> {
    #[serde(borrow)]
    pub key_id: Cow<'a, str>,
    #[serde(borrow)]
    price_version: Cow<'a, str>,
    usage: Usage,
    #[serde(borrow, rename = "key_shown")]
    _key_shown: Cow<'a, str>,
    #[serde(borrow, rename = "model")]
    _model: Cow<'a, str>,
    #[serde(rename = "surface")]
    _surface: Protocol,
    #[serde(borrow, rename = "vendor")]
    _vendor: Cow<'a, str>,
    #[serde(rename = "outcome")]
    _outcome: RequestOutcome,
    #[serde(rename = "estimated")]
    _estimated: bool,
    #[serde(default, rename = "implausible")]
    _implausible: bool,
    #[serde(borrow, default, rename = "conversation")]
    _conversation: Option<Cow<'a, str>>,
    #[serde(default, rename = "took_ms")]
    _took_ms: Option<u64>,
    #[serde(default, rename = "first_token_ms")]
    _first_token_ms: Option<u64>,
    #[serde(default, rename = "cache_marks")]
    _cache_marks: Option<CacheMarkerOrigin>,
    #[serde(borrow, default)]
    pub member: Option<Cow<'a, str>>,
}

impl<'a> EndingView<'a> {
    /// Parses the detail of a debit or a void. Returns `None` if the detail is not valid.
    pub fn parse(detail: &'a str) -> Option<Self> {
        serde_json::from_str(detail).ok()
    }
}

pub(crate) struct EndingRules<'a> {
    ledger: &'a Ledger,
    /// Price lists by version. `None` if a price list is missing or does not match its hash.
    prices: HashMap<String, Option<PriceList>>,
}

impl<'a> EndingRules<'a> {
    pub fn new(ledger: &'a Ledger) -> Self {
        Self {
            ledger,
            prices: HashMap::new(),
        }
    }

    pub fn check(
        &mut self,
        entry: &LedgerEntry,
        detail: Option<&EndingView<'_>>,
        report: &mut LedgerAuditReport,
    ) {
        let charged = Micro::ZERO.minus(entry.d_paid).minus(entry.d_trial);
        if entry.kind == "void" {
            if charged != Micro::ZERO || entry.writeoff != Micro::ZERO {
                let message = format!("the void charges {charged}");
                report.add_finding("a void costs nothing", entry.seq, message);
            }
            return;
        }
        report.debits += 1;
        let Some(detail) = detail else {
            return report.add_finding("detail", entry.seq, "the detail cannot be read".into());
        };
        let Some(price) = self.find_price(&detail.price_version) else {
            let message = format!(
                "{} is missing, or its prices do not match its hash",
                detail.price_version
            );
            return report.add_finding("price version", entry.seq, message);
        };
        let (billed, cost) = (
            charged.plus(entry.writeoff),
            pricing::cost(&detail.usage, price),
        );
        if billed != cost {
            let message = format!(
                "{} was billed {billed}, but its usage costs {cost}",
                entry.reference
            );
            report.add_finding("cost", entry.seq, message);
        }
    }

    fn find_price(&mut self, version: &str) -> Option<&PriceList> {
        if !self.prices.contains_key(version) {
            let price = self.ledger.rows().price(version).ok().flatten();
            let price = price.filter(|price| price.matches_version(version));
            self.prices.insert(version.to_owned(), price);
        }
        self.prices.get(version)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ending, EndingDetail};

    #[test]
    fn a_detail_is_valid_for_the_audit_exactly_if_it_is_an_ending_s() {
        let plain = Ending::in_test("req_1", "acct_1", 0, RequestOutcome::Completed).detail;
        // Every member is set, and none is taken from `plain`: the test must have a new one too.
        let full = EndingDetail {
            key_id: "key_1".into(),
            key_shown: "sk-…1".into(),
            model: "with \"quotes\" and \\u".into(),
            surface: Protocol::Chat,
            vendor: "vendor".into(),
            outcome: RequestOutcome::Completed,
            usage: plain.usage,
            price_version: "v1".into(),
            estimated: true,
            implausible: true,
            conversation: Some("talk".into()),
            took_ms: Some(1),
            first_token_ms: Some(2),
            cache_marks: Some(CacheMarkerOrigin::Gateway),
            member: Some("acct_1/acct_2".into()),
        };
        for detail in [plain, full] {
            let json = serde_json::to_value(&detail).unwrap();
            let text = json.to_string();
            let read = EndingView::parse(&text).unwrap();
            assert_eq!(
                (&*read.key_id, &*read.price_version, read.usage),
                (&*detail.key_id, &*detail.price_version, detail.usage)
            );
            for (name, value) in json.as_object().unwrap() {
                let mut others = vec![serde_json::json!([])];
                others.extend((!value.is_null()).then_some(serde_json::Value::Null));
                for other in others.into_iter().map(Some).chain([None]) {
                    let mut damaged = json.clone();
                    let members = damaged.as_object_mut().unwrap();
                    match &other {
                        Some(other) => drop(members.insert(name.clone(), other.clone())),
                        None => drop(members.remove(name)),
                    }
                    let damaged = damaged.to_string();
                    assert_eq!(
                        EndingView::parse(&damaged).is_some(),
                        serde_json::from_str::<EndingDetail>(&damaged).is_ok(),
                        "{name}: {other:?}"
                    );
                }
            }
        }
        assert!(EndingView::parse("").is_none());
    }
}
