//! One request's hold: what was set aside for whom, and the one way in which it ends.
//!
//! Must not decide amounts.

use super::bounds::Bounds;
use super::holds::{Asker, Resolved};
use super::journal::{Record, Segment};
use super::pricing::{self, ServiceTerms};
use super::rates::Meters;
use super::settler::Settlement;
use super::shared::SharedBilling;
use super::{Billing, Till};
use crate::catalog::Model;
use crate::clock;
use crate::failpoint::{self, Point};
use crate::money::{Micro, Parts};
use crate::protocol::Protocol;
use crate::store::ledger::{Detail, Ending, Outcome};
use crate::telemetry::METRICS;
use crate::usage::{ServerTool, Usage, UsageVerdict};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Who asks for what: fixed at admission.
#[derive(Debug, Clone)]
pub struct Opening {
    pub request_id: String,
    pub account: Arc<str>,
    pub key_id: Arc<str>,
    pub key_shown: Arc<str>,
    pub model: Arc<Model>,
    pub surface: Protocol,
    pub bounds: Bounds,
    /// The conversation that it is a turn of, where that can be told.
    pub conversation: Option<String>,
}

impl Opening {
    pub(super) fn asker(&self) -> Asker<'_> {
        Asker {
            account: &self.account,
            key: &self.key_id,
            bounds: &self.bounds,
        }
    }
}

/// Credit set aside for one request. To be ended by [`Hold::settle`] or [`Hold::release`]; one that
/// is dropped otherwise (its task was cancelled, or panicked) is released as interrupted.
pub struct Hold {
    opening: Opening,
    parts: Parts,
    /// How the vendor was asked to serve it: what is billed goes by it.
    service: ServiceTerms,
    /// None for what was never opened. By the clock that nobody sets.
    opened_at: Option<Instant>,
    /// From then on, in ms.
    first_token_ms: Option<u64>,
    opened_in: Option<Arc<Segment>>,
    ended: bool,
    till: Till,
    meters: Meters,
    /// A counter of the vendor's was more than the request can use.
    implausible: bool,
}

impl Hold {
    /// Begins a hold of `parts`, which are set aside already, and journals it.
    ///
    /// # Errors
    /// The journal cannot be written; the parts were given back.
    pub(super) fn open(
        till: Till,
        opening: Opening,
        service: ServiceTerms,
        parts: Parts,
        now_ms: i64,
    ) -> Result<Self, std::io::Error> {
        let (opened_at, first_token_ms, opened_in, meters) = (None, None, None, Meters::default());
        let mut hold = Self {
            opening,
            parts,
            service,
            opened_at,
            first_token_ms,
            opened_in,
            ended: false,
            till,
            meters,
            implausible: false,
        };
        METRICS.open_holds.inc();
        let Some((journal, open)) = hold.till.counted() else {
            return Ok(hold);
        };
        open.fetch_add(1, Ordering::Relaxed);
        failpoint::pass(Point::AfterReserve);
        let unfinished = hold.ending(
            Parts::default(),
            Micro::ZERO,
            Usage::default(),
            Outcome::Interrupted,
            false,
            now_ms,
        );
        // Where this fails, the hold is dropped, which gives the credit back.
        let opened_in = journal
            .write(&Record::Open(unfinished))
            .inspect_err(|_| METRICS.ledger_error("journal_write"))?;
        hold.opened_in = Some(opened_in);
        hold.opened_at = Some(Instant::now());
        failpoint::pass(Point::AfterJournalOpen);
        Ok(hold)
    }

    /// Of nothing, and ended by nothing: what a program that is measured has in a hold's place.
    pub(super) fn unbilled(till: Till, opening: Opening) -> Self {
        let service = ServiceTerms::default();
        let (opened_at, first_token_ms, opened_in, meters) = (None, None, None, Meters::default());
        Self {
            opening,
            parts: Parts::default(),
            service,
            opened_at,
            first_token_ms,
            opened_in,
            ended: true,
            till,
            meters,
            implausible: false,
        }
    }

    /// The same, with what was set aside for it after it was journalled.
    pub(super) fn of(mut self, parts: Parts) -> Self {
        self.parts = parts;
        self
    }

    /// The same, with what was left under its limits when it was admitted.
    pub(super) fn metered(mut self, meters: Meters) -> Self {
        self.meters = meters;
        self
    }

    /// What was left under its limits when it was admitted.
    pub fn meters(&self) -> Meters {
        self.meters
    }

    /// Nothing was set aside: there is nothing to end, and nothing to tell the ledger.
    pub(super) fn forget(mut self) {
        self.ended = true;
        METRICS.open_holds.dec();
        if let Till::Shared(shared) = &self.till {
            shared.closed();
            // Else whoever reads the journal of this process, once it is dead, would tell of a
            // request that was cut.
            let forgotten = Record::Forgotten(self.opening.request_id.clone());
            if let Err(error) = shared.counted().0.write(&forgotten) {
                log::debug!("journal that a request was refused: {error}");
            }
        }
    }

    /// What is set aside.
    pub fn amount(&self) -> Micro {
        self.parts.total()
    }

    /// What of `usage` it pays for, at the tier that is billed: all of it, or as much as fits.
    pub fn bears(&self, usage: Usage) -> Usage {
        pricing::within(
            self.as_served(usage),
            &self.opening.model.price,
            self.amount(),
        )
    }

    /// The receipt names the tier, region and speed that are billed, whatever was told.
    pub(super) fn as_served(&self, usage: Usage) -> Usage {
        self.service.billed(usage, &self.opening.model.price)
    }

    /// Another model is about to answer instead of the one asked for: what it uses is billed as its
    /// own.
    pub fn change_model(&mut self, model: &Arc<Model>, service: ServiceTerms) {
        self.opening.model = Arc::clone(model);
        self.service = service;
    }

    pub fn opening(&self) -> &Opening {
        &self.opening
    }

    /// The answer has a token by now: of many calls the first one counts, and returns the time
    /// since admission.
    pub fn note_token(&mut self) -> Option<Duration> {
        if self.first_token_ms.is_some() {
            return None;
        }
        self.first_token_ms = self.since_opened();
        self.opened_at.map(|opened| opened.elapsed())
    }

    /// Notes on the receipt, and counts, which of the vendor's counters were more than the request
    /// can use. Returns whether the usage is an estimate.
    pub fn note_verdict(&mut self, verdict: UsageVerdict) -> bool {
        if let UsageVerdict::Implausible(excess) = verdict {
            self.implausible = true;
            let vendor = self.opening.model.vendor.name.as_str();
            for counter in excess.counters() {
                METRICS
                    .usage_implausible
                    .with_label_values(&[vendor, counter])
                    .inc();
            }
        }
        verdict == UsageVerdict::Estimated
    }

    fn since_opened(&self) -> Option<u64> {
        self.opened_at
            .map(|opened| u64::try_from(opened.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Ends the request with what it used. Once this returns, the debit outlives the process: the
    /// client may have the last byte. Returns what is debited.
    ///
    /// # Errors
    /// The journal could not be written: nothing is debited, and the client must not get the last
    /// byte.
    pub fn settle(
        mut self,
        usage: Usage,
        outcome: Outcome,
        estimated: bool,
        now_ms: i64,
    ) -> Result<Micro, std::io::Error> {
        let price = Arc::clone(&self.opening.model.price);
        let usage = match outcome {
            // What is free is billed as nothing, so that the receipt adds up.
            Outcome::RefusedFree => Usage::default(),
            // An estimate never exceeds the hold.
            _ if estimated => self.bears(usage),
            _ => self.as_served(usage),
        };
        self.end(
            usage,
            pricing::cost(&usage, &price),
            outcome,
            estimated,
            now_ms,
        )
    }

    /// Ends a request that costs nothing, and says why.
    pub fn release(mut self, outcome: Outcome, now_ms: i64) {
        if let Err(error) = self.end(Usage::default(), Micro::ZERO, outcome, false, now_ms) {
            log::error!("journal a release: {error}; the request is entered as interrupted");
        }
    }

    /// Lets go of it as a process does that is killed: the journal says open, and nothing more. For
    /// simulations.
    pub fn abandon(mut self) {
        self.ended = true;
    }

    /// The one way a hold ends: the credit is given back but for `cost`, and the ending is
    /// journalled and on its way to the ledger. One that was never journalled as open (the journal
    /// failed) leaves no trace.
    fn end(
        &mut self,
        usage: Usage,
        cost: Micro,
        outcome: Outcome,
        estimated: bool,
        now_ms: i64,
    ) -> Result<Micro, std::io::Error> {
        if super::UNBILLED {
            return Ok(Micro::ZERO);
        }
        self.ended = true;
        METRICS.open_holds.dec();
        match self.till.clone() {
            Till::Here(billing) => {
                self.end_here(&billing, (usage, cost, outcome, estimated), now_ms)
            }
            Till::Shared(shared) => {
                self.end_shared(&shared, (usage, cost, outcome, estimated), now_ms)
            }
        }
    }

    fn end_here(
        &mut self,
        billing: &Billing,
        (usage, cost, outcome, estimated): (Usage, Micro, Outcome, bool),
        now_ms: i64,
    ) -> Result<Micro, std::io::Error> {
        let Some(serving) = &billing.0.serving else {
            return Ok(Micro::ZERO);
        };
        let asker = self.opening.asker();
        let tokens = usage.tokens_total();
        let resolved =
            serving
                .holds
                .resolve(&billing.0.ledger, &asker, self.parts, cost, tokens, now_ms);
        let Resolved {
            taken,
            writeoff,
            freed,
        } = resolved;
        serving.open.fetch_sub(1, Ordering::Relaxed);
        let Some(opened_in) = self.opened_in.take() else {
            billing.give_claim_back(&self.opening.account, freed);
            return Ok(Micro::ZERO);
        };
        let record = Record::End(self.ending(taken, writeoff, usage, outcome, estimated, now_ms));
        failpoint::pass(Point::BeforeJournalEnd);
        let written = serving.journal.write(&record);
        failpoint::pass(Point::AfterJournalEnd);
        let Record::End(ending) = record else {
            return written.map(|_| Micro::ZERO);
        };
        match written {
            Ok(ended_in) => {
                count(&ending, taken);
                serving.settler.give(Settlement {
                    ending,
                    freed,
                    journalled_in: [opened_in, ended_in],
                });
                Ok(taken.total())
            }
            Err(error) => {
                METRICS.ledger_error("journal_write");
                let freed =
                    serving
                        .holds
                        .unsettle(&billing.0.ledger, &self.opening.asker(), &resolved);
                // The ledger learns of it without the journal, in which a replay would find the
                // same: open, and no end.
                let (nothing, interrupted) = (Parts::default(), Outcome::Interrupted);
                let ending = self.ending(
                    nothing,
                    Micro::ZERO,
                    Usage::default(),
                    interrupted,
                    false,
                    now_ms,
                );
                serving.settler.give(Settlement {
                    ending,
                    freed,
                    journalled_in: [Arc::clone(&opened_in), opened_in],
                });
                Err(error)
            }
        }
    }

    /// The shared store has the last word on what of the cost is borne; what this side knows is the
    /// hold.
    fn end_shared(
        &mut self,
        shared: &SharedBilling,
        (usage, cost, outcome, estimated): (Usage, Micro, Outcome, bool),
        now_ms: i64,
    ) -> Result<Micro, std::io::Error> {
        let taken = self.parts.take(cost);
        let writeoff = cost.minus(taken.total());
        let ending = self.ending(taken, writeoff, usage, outcome, estimated, now_ms);
        let Some(opened_in) = self.opened_in.take() else {
            shared.closed();
            shared.end_unjournalled(ending, &self.opening.model.price);
            return Ok(Micro::ZERO);
        };
        failpoint::pass(Point::BeforeJournalEnd);
        let written = shared.end(ending, &self.opening.model.price, opened_in);
        failpoint::pass(Point::AfterJournalEnd);
        shared.closed();
        let ending = written.inspect_err(|_| METRICS.ledger_error("journal_write"))?;
        count(&ending, taken);
        Ok(taken.total())
    }

    fn ending(
        &self,
        taken: Parts,
        writeoff: Micro,
        usage: Usage,
        outcome: Outcome,
        estimated: bool,
        at_ms: i64,
    ) -> Ending {
        let Opening {
            request_id,
            account,
            key_id,
            key_shown,
            model,
            surface,
            conversation,
            ..
        } = &self.opening;
        Ending {
            request_id: request_id.clone(),
            account: account.to_string(),
            at_ms,
            paid: taken.paid,
            trial: taken.trial,
            writeoff,
            detail: Detail {
                key_id: key_id.to_string(),
                key_shown: key_shown.to_string(),
                model: model.id.clone(),
                surface: *surface,
                vendor: model.vendor.name.clone(),
                outcome,
                usage,
                price_version: model.price.version.clone(),
                estimated,
                implausible: self.implausible && usage != Usage::default(),
                conversation: conversation.clone(),
                took_ms: self.since_opened(),
                first_token_ms: self.first_token_ms,
            },
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if self.opened_in.is_some() {
            log::warn!(
                "request {} was cut off inside the gateway",
                self.opening.request_id
            );
        }
        if let Err(error) = self.end(
            Usage::default(),
            Micro::ZERO,
            Outcome::Interrupted,
            false,
            clock::now_ms(),
        ) {
            log::error!(
                "journal an interrupted request: {error}; the ledger enters it all the same"
            );
        }
    }
}

fn count(ending: &Ending, taken: Parts) {
    let (model, detail) = (ending.detail.model.as_str(), &ending.detail);
    let add = |family: &prometheus::IntCounterVec, labels: &[&str], count: u64| {
        if count > 0 {
            family.with_label_values(labels).inc_by(count);
        }
    };
    for (class, tokens) in detail.usage.tokens() {
        add(&METRICS.tokens, &[model, class], tokens);
    }
    if detail.usage != Usage::default() {
        METRICS.gen_ai.observe_tokens(
            model,
            detail.usage.input_total(),
            detail.usage.output_total(),
        );
    }
    add(&METRICS.web_searches, &[model], detail.usage.web_searches);
    for tool in ServerTool::ALL {
        add(
            &METRICS.server_tool_uses,
            &[model, tool.key()],
            detail.usage.uses(tool),
        );
    }
    add(
        &METRICS.credits_micro,
        &[model],
        taken.total().get().unsigned_abs(),
    );
    add(
        &METRICS.writeoff_micro,
        &[model],
        ending.writeoff.get().unsigned_abs(),
    );
    add(&METRICS.estimated, &[model], u64::from(detail.estimated));
}
