//! The ledger's audit: every debit recomputed, every invariant checked, nothing repaired.
//!
//! Must not write.

use super::pricing;
use crate::catalog::Price;
use crate::money::Micro;
use crate::store::StoreError;
use crate::store::ledger::{self, Detail, Entry, Ledger};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// What an audit found.
#[derive(Debug, Default, Serialize)]
pub struct Verdict {
    pub findings: Vec<Finding>,
    pub debits: u64,
    pub accounts: u64,
    pub entries: u64,
}

/// One thing that is wrong.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Which rule is broken.
    pub rule: &'static str,
    /// Ledger position, 0 for an account's row.
    pub seq: i64,
    pub message: String,
}

/// At most this many findings are listed: a broken chain would list every entry.
const FINDINGS_MAX: usize = 1_000;

pub fn verify(ledger: &Ledger) -> Result<Verdict, StoreError> {
    let mut audit = Audit {
        ledger,
        verdict: Verdict::default(),
        prev: (0, vec![0; 32]),
        sums: HashMap::new(),
        ended: HashSet::new(),
        posted: HashSet::new(),
        prices: HashMap::new(),
    };
    let accounts = ledger.walk(&mut |entry| audit.entry(&entry))?;
    audit.verdict.accounts = accounts.len() as u64;
    for (account, paid, trial) in accounts {
        let summed = audit.sums.get(&account).copied().unwrap_or_default();
        if summed != (paid, trial) {
            let message = format!("account {account} has {paid} paid and {trial} trial; its entries sum to {summed:?}");
            audit.find("balance", 0, message);
        }
    }
    Ok(audit.verdict)
}

struct Audit<'a> {
    ledger: &'a Ledger,
    verdict: Verdict,
    prev: (i64, Vec<u8>),
    sums: HashMap<String, (Micro, Micro)>,
    ended: HashSet<String>,
    posted: HashSet<(String, String)>,
    prices: HashMap<String, Option<Price>>,
}

impl Audit<'_> {
    fn find(&mut self, rule: &'static str, seq: i64, message: String) {
        if self.verdict.findings.len() < FINDINGS_MAX {
            self.verdict.findings.push(Finding { rule, seq, message });
        }
    }

    fn entry(&mut self, entry: &Entry) {
        self.verdict.entries += 1;
        self.chain(entry);
        let (paid, trial) = self.sums.get(&entry.account).copied().unwrap_or_default();
        let after = (paid.plus(entry.d_paid), trial.plus(entry.d_trial));
        if after != (entry.bal_paid, entry.bal_trial) {
            self.find("running balance", entry.seq, format!("says {} and {}", entry.bal_paid, entry.bal_trial));
        }
        if after.0 < Micro::ZERO || after.1 < Micro::ZERO {
            self.find("never below zero", entry.seq, format!("leaves {} and {}", after.0, after.1));
        }
        self.sums.insert(entry.account.clone(), after);
        if !self.posted.insert((entry.kind.clone(), entry.reference.clone())) {
            self.find("once per reference", entry.seq, format!("{} {} again", entry.kind, entry.reference));
        }
        if matches!(entry.kind.as_str(), "debit" | "void") {
            self.request(entry);
        }
    }

    fn chain(&mut self, entry: &Entry) {
        if entry.seq != self.prev.0 + 1 || entry.prev != self.prev.1 {
            self.find("hash chain", entry.seq, "does not follow the entry before it".into());
        }
        if ledger::entry_hash(entry) != entry.hash {
            self.find("hash chain", entry.seq, "was changed after it was written".into());
        }
        self.prev = (entry.seq, entry.hash.clone());
    }

    fn request(&mut self, entry: &Entry) {
        if !self.ended.insert(entry.reference.clone()) {
            self.find("one ending per request", entry.seq, format!("{} ended before", entry.reference));
        }
        let charged = Micro::ZERO.minus(entry.d_paid).minus(entry.d_trial);
        if entry.kind == "void" {
            if charged != Micro::ZERO || entry.writeoff != Micro::ZERO {
                self.find("a void costs nothing", entry.seq, format!("takes {charged}"));
            }
            return;
        }
        self.verdict.debits += 1;
        let Ok(detail) = serde_json::from_str::<Detail>(&entry.detail) else {
            return self.find("detail", entry.seq, "cannot be read".into());
        };
        let Some(price) = self.price(&detail.price_version) else {
            return self.find("price version", entry.seq, format!("{} is missing", detail.price_version));
        };
        let cost = pricing::cost(&detail.usage, &price);
        let billed = charged.plus(entry.writeoff);
        if billed != cost {
            self.find("cost", entry.seq, format!("{} was billed {billed}, its usage costs {cost}", entry.reference));
        }
    }

    fn price(&mut self, version: &str) -> Option<Price> {
        if !self.prices.contains_key(version) {
            let price = self.ledger.price(version).ok().flatten();
            self.prices.insert(version.to_owned(), price);
        }
        self.prices.get(version).cloned().flatten()
    }
}
