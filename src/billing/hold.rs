//! One request's hold: the credits reserved for it, and the one way in which it ends.
//!
//! Must not decide amounts. Read `billing/pricing.rs` for those.

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

/// A request for a hold: the payer, the model and the limits, fixed at admission.
#[derive(Debug, Clone)]
pub struct Opening {
    pub request_id: String,
    pub account: Arc<str>,
    pub key_id: Arc<str>,
    pub key_shown: Arc<str>,
    pub model: Arc<Model>,
    pub surface: Protocol,
    pub bounds: Bounds,
    /// The conversation that the request belongs to, if the gateway can tell.
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

/// Credits reserved for one request. End it with [`Hold::settle`] or [`Hold::release`]. A hold that
/// is dropped without either (its task was cancelled or panicked) is released as interrupted.
pub struct Hold {
    opening: Opening,
    parts: Parts,
    /// The service terms requested from the vendor, which determine the billed factors.
    service: ServiceTerms,
    /// When the hold was opened, by the monotonic clock; `None` if it was never opened.
    opened_at: Option<Instant>,
    /// Milliseconds from then to the first token.
    first_token_ms: Option<u64>,
    opened_in: Option<Arc<Segment>>,
    ended: bool,
    till: Till,
    meters: Meters,
    /// Whether the vendor reported more of something than the request can use.
    implausible: bool,
}

impl Hold {
    /// Opens a hold of `parts`, which are already reserved, and journals it.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be written; the credits are released then.
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
        // On failure the hold is dropped, which releases the credits.
        let opened_in = journal
            .write(&Record::Open(unfinished))
            .inspect_err(|_| METRICS.ledger_error("journal_write"))?;
        hold.opened_in = Some(opened_in);
        hold.opened_at = Some(Instant::now());
        failpoint::pass(Point::AfterJournalOpen);
        Ok(hold)
    }

    /// An empty hold that needs no ending, for builds that do not bill (benchmarks).
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

    /// Sets the credits that were reserved after the hold was journalled.
    pub(super) fn of(mut self, parts: Parts) -> Self {
        self.parts = parts;
        self
    }

    /// Sets the rate limit status at admission.
    pub(super) fn metered(mut self, meters: Meters) -> Self {
        self.meters = meters;
        self
    }

    /// Rate limit status at admission.
    pub fn meters(&self) -> Meters {
        self.meters
    }

    /// Discards a hold for which nothing was reserved: there is nothing to end and nothing to
    /// enter.
    pub(super) fn forget(mut self) {
        self.ended = true;
        METRICS.open_holds.dec();
        if let Till::Shared(shared) = &self.till {
            shared.closed();
            // Otherwise the process that replays this journal would report an interrupted request.
            let forgotten = Record::Forgotten(self.opening.request_id.clone());
            if let Err(error) = shared.counted().0.write(&forgotten) {
                log::debug!("journal that a request was refused: {error}");
            }
        }
    }

    /// Credits reserved.
    pub fn amount(&self) -> Micro {
        self.parts.total()
    }

    /// The part of `usage` that the hold pays for, at the billed tier: all of it, or as much as
    /// fits.
    pub fn bears(&self, usage: Usage) -> Usage {
        pricing::within(
            self.as_served(usage),
            &self.opening.model.price,
            self.amount(),
        )
    }

    /// Sets the tier, region and speed that are billed, whichever the vendor reported.
    pub(super) fn as_served(&self, usage: Usage) -> Usage {
        self.service.billed(usage, &self.opening.model.price)
    }

    /// Records that another model answers instead of the requested one: its usage is billed at its
    /// own price.
    pub fn change_model(&mut self, model: &Arc<Model>, service: ServiceTerms) {
        self.opening.model = Arc::clone(model);
        self.service = service;
    }

    pub fn opening(&self) -> &Opening {
        &self.opening
    }

    /// Records the response's first token. The first call returns the time since admission; later
    /// calls return `None`.
    pub fn note_token(&mut self) -> Option<Duration> {
        if self.first_token_ms.is_some() {
            return None;
        }
        self.first_token_ms = self.since_opened();
        self.opened_at.map(|opened| opened.elapsed())
    }

    /// Records on the receipt and in the metrics which of the vendor's counters exceed what the
    /// request can use. Returns whether the usage is an estimate.
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

    /// Ends the request with its usage. Once this returns, the debit survives the process, so the
    /// gateway may send the last byte. Returns the amount debited.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be written; nothing is debited then, and the client
    /// must not get the last byte.
    pub fn settle(
        mut self,
        usage: Usage,
        outcome: Outcome,
        estimated: bool,
        now_ms: i64,
    ) -> Result<Micro, std::io::Error> {
        let price = Arc::clone(&self.opening.model.price);
        let usage = match outcome {
            // Usage that is free is billed as zero, so that the receipt adds up.
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

    /// Ends a request that costs nothing; `outcome` says why.
    pub fn release(mut self, outcome: Outcome, now_ms: i64) {
        if let Err(error) = self.end(Usage::default(), Micro::ZERO, outcome, false, now_ms) {
            log::error!("journal a release: {error}; the request is entered as interrupted");
        }
    }

    /// Abandons the hold as a killed process does: the journal has the opening and nothing more.
    /// For simulations.
    pub fn abandon(mut self) {
        self.ended = true;
    }

    /// Ends the hold, on every path: releases the credits except `cost`, journals the ending and
    /// queues it for the ledger. A hold that was never journalled as open (because the journal
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
                // The ledger receives the ending without the journal. A replay of the journal finds
                // the same: an opening without an end.
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

    /// The shared store decides how much of the cost the account pays; this process knows only the
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
