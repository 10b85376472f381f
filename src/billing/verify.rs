//! The ledger audit: recomputes every debit, checks every invariant, repairs nothing.
//!
//! The invariants, and the rule that a finding names:
//!
//! * an account is the sum of its entries, and each entry records the balance after it: `balance`,
//!   `running balance`;
//! * a completed request has exactly one debit, in the journal and in the ledger, and no void as
//!   well: `one ending per request`, `once per reference`, `journal`;
//! * no balance is below zero: `never below zero`;
//! * balances cover the holds of running processes, and no hold outlives its process:
//!   `holds`;
//! * a debit equals the cost of its usage at the price of its admission: `cost`, `price version`,
//!   `detail`;
//! * the entries form an unbroken chain and are unchanged: `hash chain`;
//! * credit comes from a source and goes to a destination: `direction`, `trial balance`,
//!   `credited`, `a void costs nothing`;
//! * the refunds of a debit never exceed it: `refund`; an adjustment has a reason: `detail`;
//!   a trial lapses only after its end: `lapse`;
//! * the journal has nothing old that the ledger lacks: `journal`; no journal line is
//!   damaged: `damaged journal`;
//! * the ledger exists and is the one written last: `anchor` (`store/ledger/anchor.rs`);
//! * the ledger's accounts are in `app.db`: `accounts`;
//! * a trial ends when its grant and its sign-up say: `trial end`; every account with a grant
//!   exists: `balance`;
//! * the schema objects that protect entries from changes are in place: `schema`;
//! * only processes that live, or have a journal, have applied amounts or claims: `claims`;
//! * the aggregates that pages and limits read equal the sums of the entries: `sums`
//!   (`store/ledger/aggregates.rs`);
//! * a shared store has the same balances as the ledger: `shared balance`
//!   (`billing/shared_store_admin.rs`).
//!
//! Must not write.

use super::journal::{self, JournalledRequest};
use crate::clock::rfc3339;
use crate::store::StoreError;
use crate::store::app;
use crate::store::holds::HoldsMirror;
use crate::store::ledger::{self, EndingDetail, Ledger, LedgerEntry, PostingDetail};
use crate::store::missing;
use credits::money::Micro;
use credits::price_list::PriceList;
use credits::pricing;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

/// Result of an audit.
#[derive(Debug, Default, Serialize)]
pub struct LedgerAuditReport {
    pub findings: Vec<Finding>,
    pub debits: u64,
    pub refunds: u64,
    pub adjustments: u64,
    pub accounts: u64,
    pub entries: u64,
}

/// One violation of an invariant.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Name of the violated rule.
    pub rule: &'static str,
    /// Position in the ledger; 0 if the finding is not about an entry.
    pub seq: i64,
    pub message: String,
}

/// Maximum number of findings: a broken chain would list every entry.
const MAX_FINDINGS: usize = 1_000;

/// Maximum number of aggregates to check per table.
pub(super) const MAX_AGGREGATES_CHECKED: u32 = 1_000;

/// Age above which an ending that has not reached the ledger is stuck; normally it takes
/// milliseconds.
const MAX_JOURNAL_AGE_MS: i64 = 60_000;

/// The mirror lags by about 20 ms, so an apparent violation is rechecked before it is reported.
const MAX_RECHECKS: u32 = 4;
const RECHECK_INTERVAL: Duration = Duration::from_millis(60);

/// Returns the report if there are accounts but no ledger; `None` if there is a ledger, or if it
/// never had an entry.
///
/// # Errors
/// Returns an error if the accounts cannot be read.
pub fn verify_missing_ledger(data_dir: &Path) -> Result<Option<LedgerAuditReport>, StoreError> {
    Ok(missing::ledger(data_dir)?.map(|message| {
        let finding = Finding {
            rule: "anchor",
            seq: 0,
            message,
        };
        LedgerAuditReport {
            findings: vec![finding],
            ..LedgerAuditReport::default()
        }
    }))
}

/// Finds accounts that the ledger in `data_dir` has and `app.db` lacks: no key opens them, and
/// their holders can sign up again.
///
/// # Errors
/// Returns an error if the ledger or `app.db` cannot be read.
pub fn verify_accounts(data_dir: &Path) -> Result<Vec<Finding>, StoreError> {
    let find = |message| Finding {
        rule: "accounts",
        seq: 0,
        message,
    };
    if let Some(message) = missing::app(data_dir)? {
        return Ok(vec![find(message)]);
    }
    let lost = missing::accounts(data_dir)?.into_iter();
    Ok(lost
        .map(|id| {
            find(format!(
                "account {id} is in the ledger but not in app.db, so app.db is older"
            ))
        })
        .collect())
}

pub fn verify(
    ledger: &Ledger,
    data_dir: &Path,
    now_ms: i64,
    on_entry: &mut dyn FnMut(u64),
) -> Result<LedgerAuditReport, StoreError> {
    // Read the journal before the ledger: the ledger must then have all its endings, except the
    // most recent ones.
    let requests = journal::read_requests(data_dir)?;
    let granted = app::granted_accounts(data_dir)?;
    let mut audit = LedgerAudit {
        ledger,
        report: LedgerAuditReport::default(),
        prev: (0, vec![0; 32]),
        sums: HashMap::new(),
        lapsed_at: HashMap::new(),
        trial_ends: HashMap::new(),
        debits: HashMap::new(),
        refunds: Vec::new(),
        ended: HashSet::new(),
        posted: HashSet::new(),
        prices: HashMap::new(),
        journalled: requests
            .iter()
            .map(|requests| (requests.ending.request_id.clone(), None))
            .collect(),
    };
    let mut checked = 0;
    let accounts = ledger.for_each_entry(&mut |entry| {
        audit.check_entry(&entry);
        checked += 1;
        on_entry(checked);
    })?;
    audit.check_refund_totals();
    audit.check_sign_ups(&accounts, granted.as_ref());
    audit.check_accounts(&accounts);
    audit.check_files(data_dir)?;
    audit.check_journal(
        &requests,
        !journal::live_instance_ids(data_dir)?.is_empty(),
        now_ms,
    );
    audit.check_holds(data_dir)?;
    audit.check_aggregates()?;
    Ok(audit.report)
}

/// Totals of one account's entries, in integers that cannot overflow.
#[derive(Debug, Clone, Copy, Default)]
struct AccountTotals {
    paid: i128,
    trial: i128,
    credited: i128,
}

struct LedgerAudit<'a> {
    ledger: &'a Ledger,
    report: LedgerAuditReport,
    prev: (i64, Vec<u8>),
    sums: HashMap<String, AccountTotals>,
    lapsed_at: HashMap<String, (i64, i64)>,
    /// End of each trial according to its grant, in ms since 1970.
    trial_ends: HashMap<String, i64>,
    /// Account and amount of each debit, to check refunds.
    debits: HashMap<String, (String, Micro)>,
    refunds: Vec<(i64, String, String, Micro)>,
    ended: HashSet<String>,
    posted: HashSet<(String, String)>,
    prices: HashMap<String, Option<PriceList>>,
    /// Requests in the journal, each with its account, kind and cost in the ledger.
    journalled: HashMap<String, Option<(String, String, Micro)>>,
}

impl LedgerAudit<'_> {
    fn add_finding(&mut self, rule: &'static str, seq: i64, message: String) {
        if self.report.findings.len() < MAX_FINDINGS {
            self.report.findings.push(Finding { rule, seq, message });
        }
    }

    fn check_entry(&mut self, entry: &LedgerEntry) {
        self.report.entries += 1;
        self.check_chain(entry);
        self.check_direction(entry);
        let sums = self.sums.entry(entry.account.clone()).or_default();
        sums.paid += i128::from(entry.d_paid.get());
        sums.trial += i128::from(entry.d_trial.get());
        sums.credited += i128::from(entry.credited().get());
        let AccountTotals { paid, trial, .. } = *sums;
        if (paid, trial) != (entry.bal_paid.get().into(), entry.bal_trial.get().into()) {
            self.add_finding(
                "running balance",
                entry.seq,
                format!("the entry gives the balances {} paid and {} trial, which do not match its predecessors", entry.bal_paid, entry.bal_trial),
            );
        }
        if paid < 0 || trial < 0 {
            self.add_finding(
                "never below zero",
                entry.seq,
                format!("the entry leaves {paid} µc paid and {trial} µc trial"),
            );
        }
        if !self
            .posted
            .insert((entry.kind.clone(), entry.reference.clone()))
        {
            self.add_finding(
                "once per reference",
                entry.seq,
                format!(
                    "there is an earlier {} with reference {}",
                    entry.kind, entry.reference
                ),
            );
        }
        match entry.kind.as_str() {
            "debit" | "void" => self.check_request(entry),
            "refund" => self.check_refund(entry),
            "adjust" => {
                self.report.adjustments += 1;
                if PostingDetail::decode(&entry.detail)
                    .ok()
                    .and_then(|detail| detail.reason)
                    .is_none()
                {
                    self.add_finding("detail", entry.seq, "an adjustment has no reason".into());
                }
            }
            "trial" => self.check_trial(entry),
            "grant" | "topup" if PostingDetail::decode(&entry.detail).is_err() => {
                self.add_finding("detail", entry.seq, "the detail cannot be read".into());
            }
            "lapse" => drop(
                self.lapsed_at
                    .insert(entry.account.clone(), (entry.seq, entry.at_ms)),
            ),
            _ => {}
        }
    }

    fn check_chain(&mut self, entry: &LedgerEntry) {
        if entry.seq != self.prev.0 + 1 || entry.prev != self.prev.1 {
            self.add_finding(
                "hash chain",
                entry.seq,
                "the entry does not follow the one before it".into(),
            );
        }
        if ledger::entry_hash(entry) != entry.hash {
            self.add_finding(
                "hash chain",
                entry.seq,
                "the entry was changed after it was written".into(),
            );
        }
        self.prev = (entry.seq, entry.hash.clone());
    }

    /// Checks the sign of an entry. Each kind has its counter-account (promotion, sales, revenue,
    /// …) and moves credit from it or to it.
    fn check_direction(&mut self, entry: &LedgerEntry) {
        let zero = Micro::ZERO;
        let (paid, trial) = (entry.d_paid, entry.d_trial);
        let is_right = match entry.kind.as_str() {
            "trial" => paid == zero && trial >= zero,
            "grant" | "topup" => paid >= zero && trial == zero,
            "refund" => paid >= zero && trial >= zero,
            "lapse" => paid == zero && trial <= zero,
            "adjust" => paid >= zero && trial >= zero || paid <= zero && trial <= zero,
            "debit" | "void" => paid <= zero && trial <= zero && entry.writeoff >= zero,
            _ => false,
        };
        if !is_right {
            self.add_finding(
                "direction",
                entry.seq,
                format!(
                    "a {} must not change the balance by {paid} paid and {trial} trial",
                    entry.kind
                ),
            );
        }
        if entry.writeoff != zero && entry.kind != "debit" && entry.kind != "void" {
            self.add_finding(
                "direction",
                entry.seq,
                format!("a {} must not have a write-off", entry.kind),
            );
        }
    }

    fn check_request(&mut self, entry: &LedgerEntry) {
        if !self.ended.insert(entry.reference.clone()) {
            self.add_finding(
                "one ending per request",
                entry.seq,
                format!("an earlier entry already ends {}", entry.reference),
            );
        }
        let charged = Micro::ZERO.minus(entry.d_paid).minus(entry.d_trial);
        let billed = charged.plus(entry.writeoff);
        if let Some(known) = self.journalled.get_mut(&entry.reference) {
            *known = Some((entry.account.clone(), entry.kind.clone(), billed));
        }
        if entry.kind == "void" {
            if charged != Micro::ZERO || entry.writeoff != Micro::ZERO {
                self.add_finding(
                    "a void costs nothing",
                    entry.seq,
                    format!("the void charges {charged}"),
                );
            }
            return;
        }
        self.report.debits += 1;
        self.debits
            .insert(entry.reference.clone(), (entry.account.clone(), charged));
        let Ok(detail) = serde_json::from_str::<EndingDetail>(&entry.detail) else {
            return self.add_finding("detail", entry.seq, "the detail cannot be read".into());
        };
        let Some(price) = self.find_price(&detail.price_version) else {
            let message = format!(
                "{} is missing, or its prices do not match its hash",
                detail.price_version
            );
            return self.add_finding("price version", entry.seq, message);
        };
        let cost = pricing::cost(&detail.usage, &price);
        if billed != cost {
            self.add_finding(
                "cost",
                entry.seq,
                format!(
                    "{} was billed {billed}, but its usage costs {cost}",
                    entry.reference
                ),
            );
        }
    }

    fn find_price(&mut self, version: &str) -> Option<PriceList> {
        if !self.prices.contains_key(version) {
            let price = self.ledger.price(version).ok().flatten();
            self.prices.insert(
                version.to_owned(),
                price.filter(|price| price.matches_version(version)),
            );
        }
        self.prices.get(version).cloned().flatten()
    }

    fn check_refund(&mut self, entry: &LedgerEntry) {
        self.report.refunds += 1;
        match PostingDetail::decode(&entry.detail)
            .ok()
            .and_then(|detail| detail.request_id)
        {
            Some(request_id) => {
                self.refunds
                    .push((entry.seq, entry.account.clone(), request_id, entry.change()));
            }
            None => self.add_finding(
                "detail",
                entry.seq,
                "a refund does not name the refunded request".into(),
            ),
        }
    }

    fn check_trial(&mut self, entry: &LedgerEntry) {
        match PostingDetail::decode(&entry.detail) {
            Ok(detail) => self.trial_ends.extend(
                detail
                    .trial_ends_at_ms
                    .map(|ends| (entry.account.clone(), ends)),
            ),
            Err(_) => self.add_finding("detail", entry.seq, "the detail cannot be read".into()),
        }
    }

    /// Checks the accounts against their sign-ups and the grants of their trials. `granted` has the
    /// sign-ups, if there is an `app.db`.
    fn check_sign_ups(
        &mut self,
        accounts: &[ledger::LedgerAccountRow],
        granted: Option<&HashMap<String, Option<i64>>>,
    ) {
        for row in accounts {
            let promised = granted.and_then(|granted| granted.get(&row.id)).copied();
            let entered = self.trial_ends.get(&row.id).map(|ends| Some(*ends));
            let differs = [promised, entered]
                .into_iter()
                .flatten()
                .find(|ends| *ends != row.trial_ends_at_ms);
            if let Some(ends) = differs {
                let time = |ends: Option<i64>| ends.map_or_else(|| "never".into(), rfc3339);
                let (says, was) = (time(row.trial_ends_at_ms), time(ends));
                self.add_finding(
                    "trial end",
                    0,
                    format!(
                        "the trial of account {} ends {says}, but it was granted until {was}",
                        row.id
                    ),
                );
            }
        }
        let known: HashSet<_> = accounts.iter().map(|row| row.id.as_str()).collect();
        let mut lost: Vec<_> = granted
            .into_iter()
            .flatten()
            .filter(|(id, _)| !known.contains(id.as_str()))
            .collect();
        lost.sort();
        for (id, _) in lost {
            self.add_finding(
                "balance",
                0,
                format!("account {id} is in app.db but has no balance in the ledger"),
            );
        }
    }

    /// Checks the ledger's anchor and schema, damaged journals, and the records of processes.
    fn check_files(&mut self, data_dir: &Path) -> Result<(), StoreError> {
        if let Some(fault) = self.ledger.anchor_fault(data_dir)? {
            self.add_finding("anchor", 0, fault.to_string());
        }
        for fault in self.ledger.schema_faults()? {
            self.add_finding("schema", 0, fault);
        }
        for damaged in journal::find_damaged(data_dir)? {
            self.add_finding("damaged journal", 0, damaged.to_string());
        }
        let strange = || {
            Ok(self
                .ledger
                .unknown_instance_records(&journal::instance_ids(data_dir)?)?
                .first()
                .cloned())
        };
        // A process that shuts down removes its journal slightly before its rows.
        if recheck(strange)?.is_some() {
            for row in self
                .ledger
                .unknown_instance_records(&journal::instance_ids(data_dir)?)?
            {
                self.add_finding("claims", 0, row);
            }
        }
        Ok(())
    }

    fn check_refund_totals(&mut self) {
        for (seq, account, request, amount) in std::mem::take(&mut self.refunds) {
            match self.debits.get_mut(&request) {
                Some((of, refundable)) if *of == account && *refundable >= amount => {
                    *refundable = refundable.minus(amount)
                }
                Some((of, refundable)) => {
                    let message = format!(
                        "{account} got {amount} back for {request}, but only {refundable} of the debit of account {of} is left to refund"
                    );
                    self.add_finding("refund", seq, message);
                }
                None => self.add_finding(
                    "refund",
                    seq,
                    format!("{request} was refunded but has no debit"),
                ),
            }
        }
    }

    fn check_accounts(&mut self, accounts: &[ledger::LedgerAccountRow]) {
        self.report.accounts = accounts.len() as u64;
        let (mut balances, mut entered) = (0_i128, 0_i128);
        for row in accounts {
            let sums = self.sums.remove(&row.id).unwrap_or_default();
            let (paid, trial) = (i128::from(row.paid.get()), i128::from(row.trial.get()));
            balances += paid + trial;
            entered += sums.paid + sums.trial;
            if (sums.paid, sums.trial) != (paid, trial) {
                let message = format!(
                    "account {} has {paid} + {trial} µc, but its entries sum to {} + {} µc",
                    row.id, sums.paid, sums.trial
                );
                self.add_finding("balance", 0, message);
            }
            if paid < 0 || trial < 0 {
                self.add_finding(
                    "never below zero",
                    0,
                    format!("account {} has {paid} + {trial} µc", row.id),
                );
            }
            if sums.credited != i128::from(row.credited.get()) {
                let message = format!(
                    "account {} was granted {} µc, but its row has {} µc",
                    row.id,
                    sums.credited,
                    row.credited.get()
                );
                self.add_finding("credited", 0, message);
            }
            if let Some((seq, at)) = self.lapsed_at.remove(&row.id)
                && row.trial_ends_at_ms.is_none_or(|ends| at < ends)
            {
                self.add_finding(
                    "lapse",
                    seq,
                    format!("the trial of account {} had not ended", row.id),
                );
            }
        }
        let strangers: Vec<_> = self.sums.drain().collect();
        for (account, sums) in strangers {
            entered += sums.paid + sums.trial;
            self.add_finding(
                "balance",
                0,
                format!("account {account} has entries but no balance"),
            );
        }
        if balances != entered {
            let message =
                format!("the accounts have {balances} µc, but all entries sum to {entered} µc");
            self.add_finding("trial balance", 0, message);
        }
    }

    /// Checks that the ledger has every request that ended in a journal, with the same amounts.
    fn check_journal(
        &mut self,
        requests: &[JournalledRequest],
        somebody_serves: bool,
        now_ms: i64,
    ) {
        for JournalledRequest {
            instance_id,
            is_living,
            ended,
            ending,
        } in requests
        {
            let known = self.journalled.get(&ending.request_id).cloned().flatten();
            let old = now_ms.saturating_sub(ending.at_ms) > MAX_JOURNAL_AGE_MS;
            let request = &ending.request_id;
            let message = match known {
                Some((account, kind, billed)) if *ended => {
                    let journalled = (ending.account.as_str(), ending.kind(), ending.cost());
                    if journalled == (&account, &kind, billed) {
                        continue;
                    }
                    format!(
                        "{request} is a {} of {} in the journal of instance {instance_id}, but a {kind} of {billed} in the ledger",
                        journalled.1, journalled.2
                    )
                }
                None if *ended && old => {
                    format!(
                        "{request} ended in instance {instance_id} but never reached the ledger"
                    )
                }
                // A start voids the requests that dead processes left open. A request of a living
                // process may stay open for long.
                None if !*ended && old && !*is_living && somebody_serves => {
                    format!("{request} was left open by instance {instance_id} and never voided")
                }
                _ => continue,
            };
            self.add_finding("journal", 0, message);
        }
    }

    /// Checks the stored aggregates, which spare readers a walk over the entries.
    fn check_aggregates(&mut self) -> Result<(), StoreError> {
        for wrong in self.ledger.find_wrong_aggregates(MAX_AGGREGATES_CHECKED)? {
            self.add_finding(
                "sums",
                0,
                format!(
                    "{}: the total of {} differs from the sum of its entries",
                    wrong.of, wrong.row
                ),
            );
        }
        Ok(())
    }

    /// Checks that balances cover the holds of living processes, and that dead processes hold
    /// nothing while others live.
    fn check_holds(&mut self, data_dir: &Path) -> Result<(), StoreError> {
        if let Some(damage) = HoldsMirror::find_damage(data_dir)? {
            self.add_finding(
                "holds",
                0,
                format!("holds.db is damaged ({damage}): the next start creates it again"),
            );
            return Ok(());
        }
        let mirror = HoldsMirror::open(data_dir)?;
        let live = journal::live_instance_ids(data_dir)?;
        let mut accounts = HashSet::new();
        for (account, claim) in mirror.all_claims()? {
            if live.contains(&claim.instance_id) {
                accounts.insert(account);
            } else if !live.is_empty() {
                let held = claim.held.total();
                self.add_finding(
                    "holds",
                    0,
                    format!(
                        "{held} of {account} are reserved by instance {}, which has ended",
                        claim.instance_id
                    ),
                );
            }
        }
        for account in accounts {
            if let Some(message) = recheck(|| self.find_uncovered(&mirror, &live, &account))? {
                self.add_finding("holds", 0, message);
            }
        }
        Ok(())
    }

    /// Describes why the account's holds cannot be right, if so. Reads the mirror before the
    /// ledger: amounts held in the older mirror are still held or applied by now.
    fn find_uncovered(
        &self,
        mirror: &HoldsMirror,
        live: &[String],
        account: &str,
    ) -> Result<Option<String>, StoreError> {
        let (mut claimed, mut posted) = (0_i128, None);
        for claim in mirror
            .claims_of(account)?
            .iter()
            .filter(|claim| live.contains(&claim.instance_id))
        {
            if claim.held.paid < Micro::ZERO || claim.held.trial < Micro::ZERO {
                return Ok(Some(format!(
                    "instance {} has a negative reservation of account {account}",
                    claim.instance_id
                )));
            }
            let Some(row) = self.ledger.account(account, &claim.instance_id)? else {
                return Ok(Some(format!(
                    "account {account} has reservations but is not in the ledger"
                )));
            };
            let sum = |parts: [Micro; 2]| {
                parts
                    .iter()
                    .map(|part| i128::from(part.get()))
                    .sum::<i128>()
            };
            claimed += sum([claim.held.paid, claim.held.trial])
                + sum([claim.settled.paid, claim.settled.trial])
                - sum([row.applied_paid, row.applied_trial])
                + sum([row.claimed_paid, row.claimed_trial]);
            posted = Some(sum([row.paid, row.trial]));
        }
        let breach = posted.filter(|posted| claimed > *posted);
        Ok(breach.map(|posted| {
            format!("{claimed} µc of account {account} are reserved, but it has only {posted} µc")
        }))
    }
}

/// Returns a violation only if it is present at every check: data that is merely late is right at
/// one of them.
fn recheck(
    look: impl Fn() -> Result<Option<String>, StoreError>,
) -> Result<Option<String>, StoreError> {
    let mut breach = look()?;
    for _ in 1..MAX_RECHECKS {
        if breach.is_none() {
            break;
        }
        std::thread::sleep(RECHECK_INTERVAL);
        breach = look()?;
    }
    Ok(breach)
}
