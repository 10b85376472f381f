//! One request's hold: the credits reserved for it, and the one way in which it ends.
//!
//! Must not decide amounts. Read `crates/credits/src/pricing.rs` for those.

use super::backend::BillingBackend;
use super::holds::{HoldResolution, Payer};
use super::journal::{JournalRecord, Segment};
use super::ledger_writer::Settlement;
use super::service::{Billing, UNBILLED};
use super::shared::SharedBilling;
use crate::catalog::CatalogModel;
use crate::clock;
use crate::failpoint::{self, Point};
use crate::store::ledger::{Ending, EndingDetail, RequestOutcome};
use crate::telemetry::METRICS;
use credits::limits::RequestLimits;
use credits::money::{CreditSplit, Micro};
use credits::pricing::{self, ServiceTerms};
use credits::rates::RateLimitStatuses;
use llm_protocol::Protocol;
use llm_protocol::usage::{ServerTool, Usage, UsageVerdict};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A request for a hold: the payer, the model and the limits, fixed at admission.
#[derive(Debug, Clone)]
pub struct HoldRequest {
    pub request_id: String,
    pub account: Arc<str>,
    pub key_id: Arc<str>,
    pub key_shown: Arc<str>,
    pub model: Arc<CatalogModel>,
    pub surface: Protocol,
    pub bounds: RequestLimits,
    /// The conversation that the request belongs to, if the gateway can tell.
    pub conversation: Option<String>,
}

impl HoldRequest {
    pub(super) fn payer(&self) -> Payer<'_> {
        Payer {
            account: &self.account,
            key: &self.key_id,
            bounds: &self.bounds,
        }
    }
}

/// Credits reserved for one request. End it with [`Hold::settle`] or [`Hold::release`]. A hold that
/// is dropped without either (its task was cancelled or panicked) is released as interrupted.
pub struct Hold {
    opening: HoldRequest,
    parts: CreditSplit,
    /// The service terms requested from the vendor, which determine the billed factors.
    service: ServiceTerms,
    /// When the hold was opened, by the monotonic clock; `None` if it was never opened.
    opened_at: Option<Instant>,
    /// Milliseconds from then to the first token.
    first_token_ms: Option<u64>,
    opened_in: Option<Arc<Segment>>,
    ended: bool,
    till: BillingBackend,
    meters: RateLimitStatuses,
    /// Whether the vendor reported more of something than the request can use.
    implausible: bool,
}

impl Hold {
    /// Opens a hold of `parts`, which are already reserved, and journals it.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be written; the credits are released then.
    pub(super) fn open(
        till: BillingBackend,
        opening: HoldRequest,
        service: ServiceTerms,
        parts: CreditSplit,
        now_ms: i64,
    ) -> Result<Self, std::io::Error> {
        let (opened_at, first_token_ms, opened_in, meters) =
            (None, None, None, RateLimitStatuses::default());
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
        let Some((journal, open)) = hold.till.journal_and_open_count() else {
            return Ok(hold);
        };
        open.fetch_add(1, Ordering::Relaxed);
        failpoint::hit(Point::AfterReserve);
        let unfinished = hold.build_ending(
            CreditSplit::default(),
            Micro::ZERO,
            Usage::default(),
            RequestOutcome::Interrupted,
            false,
            now_ms,
        );
        // On failure the hold is dropped, which releases the credits.
        let opened_in = journal
            .write(&JournalRecord::Open(unfinished))
            .inspect_err(|_| METRICS.ledger_error("journal_write"))?;
        hold.opened_in = Some(opened_in);
        hold.opened_at = Some(Instant::now());
        failpoint::hit(Point::AfterJournalOpen);
        Ok(hold)
    }

    /// An empty hold that needs no ending, for builds that do not bill (benchmarks).
    pub(super) fn new_unbilled(till: BillingBackend, opening: HoldRequest) -> Self {
        let service = ServiceTerms::default();
        let (opened_at, first_token_ms, opened_in, meters) =
            (None, None, None, RateLimitStatuses::default());
        Self {
            opening,
            parts: CreditSplit::default(),
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
    pub(super) fn with_credit(mut self, parts: CreditSplit) -> Self {
        self.parts = parts;
        self
    }

    /// Sets the rate limit status at admission.
    pub(super) fn with_rate_limits(mut self, meters: RateLimitStatuses) -> Self {
        self.meters = meters;
        self
    }

    /// Rate limit status at admission.
    pub fn rate_limits(&self) -> RateLimitStatuses {
        self.meters
    }

    /// Discards a hold for which nothing was reserved: there is nothing to end and nothing to
    /// enter.
    pub(super) fn discard(mut self) {
        self.ended = true;
        METRICS.open_holds.dec();
        if let BillingBackend::Shared(shared) = &self.till {
            shared.count_closed();
            // Otherwise the process that replays this journal would report an interrupted request.
            let forgotten = JournalRecord::Forgotten(self.opening.request_id.clone());
            if let Err(error) = shared.journal_and_open_count().0.write(&forgotten) {
                log::debug!("cannot journal that a request was refused: {error}");
            }
        }
    }

    /// Credits reserved.
    pub fn amount(&self) -> Micro {
        self.parts.total()
    }

    /// The part of `usage` that the hold pays for, at the billed tier: all of it, or as much as
    /// fits.
    pub fn clamp_usage(&self, usage: Usage) -> Usage {
        pricing::clamp_usage_to_cost(
            self.with_billed_tier(usage),
            &self.opening.model.price,
            self.amount(),
        )
    }

    /// Sets the tier, region and speed that are billed, whichever the vendor reported.
    pub(super) fn with_billed_tier(&self, usage: Usage) -> Usage {
        self.service
            .with_billed_terms(usage, &self.opening.model.price)
    }

    /// Records that another model answers instead of the requested one: its usage is billed at its
    /// own price.
    pub fn change_model(&mut self, model: &Arc<CatalogModel>, service: ServiceTerms) {
        self.opening.model = Arc::clone(model);
        self.service = service;
    }

    pub fn request(&self) -> &HoldRequest {
        &self.opening
    }

    /// Records the response's first token. The first call returns the time since admission; later
    /// calls return `None`.
    pub fn record_first_token(&mut self) -> Option<Duration> {
        if self.first_token_ms.is_some() {
            return None;
        }
        self.first_token_ms = self.elapsed_ms();
        self.opened_at.map(|opened| opened.elapsed())
    }

    /// Records on the receipt and in the metrics which of the vendor's counters exceed what the
    /// request can use. Returns whether the usage is an estimate.
    pub fn record_verdict(&mut self, verdict: UsageVerdict) -> bool {
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

    fn elapsed_ms(&self) -> Option<u64> {
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
        outcome: RequestOutcome,
        estimated: bool,
        now_ms: i64,
    ) -> Result<Micro, std::io::Error> {
        let price = Arc::clone(&self.opening.model.price);
        let usage = match outcome {
            // Usage that is free is billed as zero, so that the receipt adds up.
            RequestOutcome::RefusedFree => Usage::default(),
            // An estimate never exceeds the hold.
            _ if estimated => self.clamp_usage(usage),
            _ => self.with_billed_tier(usage),
        };
        self.finish(
            usage,
            pricing::cost(&usage, &price),
            outcome,
            estimated,
            now_ms,
        )
    }

    /// Ends a request that costs nothing; `outcome` says why.
    pub fn release(mut self, outcome: RequestOutcome, now_ms: i64) {
        if let Err(error) = self.finish(Usage::default(), Micro::ZERO, outcome, false, now_ms) {
            log::error!(
                "cannot journal the release of a reservation: {error}; the ledger will show the request as interrupted"
            );
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
    fn finish(
        &mut self,
        usage: Usage,
        cost: Micro,
        outcome: RequestOutcome,
        estimated: bool,
        now_ms: i64,
    ) -> Result<Micro, std::io::Error> {
        if UNBILLED {
            return Ok(Micro::ZERO);
        }
        self.ended = true;
        METRICS.open_holds.dec();
        match self.till.clone() {
            BillingBackend::Here(billing) => {
                self.finish_locally(&billing, (usage, cost, outcome, estimated), now_ms)
            }
            BillingBackend::Shared(shared) => {
                self.finish_in_store(&shared, (usage, cost, outcome, estimated), now_ms)
            }
        }
    }

    fn finish_locally(
        &mut self,
        billing: &Billing,
        (usage, cost, outcome, estimated): (Usage, Micro, RequestOutcome, bool),
        now_ms: i64,
    ) -> Result<Micro, std::io::Error> {
        let Some(serving) = &billing.0.serving else {
            return Ok(Micro::ZERO);
        };
        let asker = self.opening.payer();
        let tokens = usage.tokens_total();
        let resolved =
            serving
                .holds
                .resolve(&billing.0.ledger, &asker, self.parts, cost, tokens, now_ms);
        let HoldResolution {
            taken,
            writeoff,
            freed,
        } = resolved;
        serving.open.fetch_sub(1, Ordering::Relaxed);
        let Some(opened_in) = self.opened_in.take() else {
            billing.release_claim(&self.opening.account, freed);
            return Ok(Micro::ZERO);
        };
        let record = JournalRecord::End(
            self.build_ending(taken, writeoff, usage, outcome, estimated, now_ms),
        );
        failpoint::hit(Point::BeforeJournalEnd);
        let written = serving.journal.write(&record);
        failpoint::hit(Point::AfterJournalEnd);
        let JournalRecord::End(ending) = record else {
            return written.map(|_| Micro::ZERO);
        };
        match written {
            Ok(ended_in) => {
                record_metrics(&ending, taken);
                serving.settler.enqueue(Settlement {
                    ending,
                    freed,
                    journalled_in: [opened_in, ended_in],
                });
                Ok(taken.total())
            }
            Err(error) => {
                METRICS.ledger_error("journal_write");
                let freed = serving.holds.undo_settlement(
                    &billing.0.ledger,
                    &self.opening.payer(),
                    &resolved,
                );
                // The ledger receives the ending without the journal. A replay of the journal finds
                // the same: an opening without an end.
                let (nothing, interrupted) = (CreditSplit::default(), RequestOutcome::Interrupted);
                let ending = self.build_ending(
                    nothing,
                    Micro::ZERO,
                    Usage::default(),
                    interrupted,
                    false,
                    now_ms,
                );
                serving.settler.enqueue(Settlement {
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
    fn finish_in_store(
        &mut self,
        shared: &SharedBilling,
        (usage, cost, outcome, estimated): (Usage, Micro, RequestOutcome, bool),
        now_ms: i64,
    ) -> Result<Micro, std::io::Error> {
        let taken = self.parts.draw(cost);
        let writeoff = cost.minus(taken.total());
        let ending = self.build_ending(taken, writeoff, usage, outcome, estimated, now_ms);
        let Some(opened_in) = self.opened_in.take() else {
            shared.count_closed();
            shared.send_unjournalled(ending, &self.opening.model.price);
            return Ok(Micro::ZERO);
        };
        failpoint::hit(Point::BeforeJournalEnd);
        let written = shared.journal_ending(ending, &self.opening.model.price, opened_in);
        failpoint::hit(Point::AfterJournalEnd);
        shared.count_closed();
        let ending = written.inspect_err(|_| METRICS.ledger_error("journal_write"))?;
        record_metrics(&ending, taken);
        Ok(taken.total())
    }

    fn build_ending(
        &self,
        taken: CreditSplit,
        writeoff: Micro,
        usage: Usage,
        outcome: RequestOutcome,
        estimated: bool,
        at_ms: i64,
    ) -> Ending {
        let HoldRequest {
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
            detail: EndingDetail {
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
                took_ms: self.elapsed_ms(),
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
                "the gateway dropped request {} before it ended",
                self.opening.request_id
            );
        }
        if let Err(error) = self.finish(
            Usage::default(),
            Micro::ZERO,
            RequestOutcome::Interrupted,
            false,
            clock::now_ms(),
        ) {
            log::error!(
                "cannot journal an interrupted request: {error}; the ledger enters it anyway"
            );
        }
    }
}

fn record_metrics(ending: &Ending, taken: CreditSplit) {
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
