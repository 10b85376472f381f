//! Implements the hold of one request: its reserved credits, and its end.
//!
//! This file must not decide an amount. The stores write endings, in `billing/settle.rs` and
//! `shared_credit/settle.rs`. Read `crates/credits/src/pricing.rs` for the amounts.

use super::holds::Payer;
use base::clock;
use base::failpoint::{self, Point};
use base::telemetry::METRICS;
use config::catalog::CatalogModel;
use credits::limits::RequestLimits;
use credits::money::{CreditSplit, Micro};
use credits::pricing::{self, ServiceTerms};
use credits::rates::RateLimitStatuses;
use ledger::journal::writer::{JournalWrite, JournalWriter};
use ledger::journal::{EncodedRecord, JournalRecord};
use ledger::{Ending, EndingDetail, RequestOutcome};
use llm_protocol::Protocol;
use llm_protocol::ir::CacheMarkerOrigin;
use llm_protocol::usage::{ServerTool, UnknownUsage, Usage, UsageVerdict};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Time that a request waits for its opening record before it is refused. A disk that takes longer
/// does not answer.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// A request for a hold: the payer, the model and the limits, fixed at admission.
#[derive(Debug, Clone)]
pub struct HoldRequest {
    pub request_id: String,
    pub account: Arc<str>,
    pub key_id: Arc<str>,
    pub key_shown: Arc<str>,
    /// Id of the membership whose key it is, if the account is an organisation's.
    pub member: Option<Arc<str>>,
    pub model: Arc<CatalogModel>,
    pub surface: Protocol,
    pub bounds: RequestLimits,
    /// The conversation of the request, if the gateway recognises one.
    pub conversation: Option<String>,
}

impl HoldRequest {
    pub(crate) fn payer(&self) -> Payer<'_> {
        Payer {
            account: &self.account,
            key: &self.key_id,
            member: self.member.as_ref(),
            bounds: &self.bounds,
        }
    }
}

/// The store that reserved the credits of a hold.
pub trait HoldStore: Send + Sync {
    /// Ends a hold: releases its credits except the cost, and submits the ending to the journal,
    /// and then to the ledger. If the ending cannot be journalled, nothing is debited. A hold that
    /// was never journalled as open (because the journal failed) leaves no trace.
    fn settle(self: Arc<Self>, hold: &mut HeldRequest, end: HoldEnd) -> Debit;
}

/// The amount that a request pays, and its way into the journal.
#[derive(Default)]
#[must_use = "the client may get the last byte only once the journal has the debit"]
pub struct Debit {
    pub credits: Micro,
    /// `None` if the request leaves no record.
    pub journalled: Option<JournalWrite>,
}

impl Debit {
    /// Waits on this thread, which may block, until the debit survives a crash of the process.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be written; nothing is debited then.
    pub fn wait_on_thread(self) -> io::Result<Micro> {
        if let Some(journalled) = self.journalled {
            journalled.wait_on_thread()?;
        }
        Ok(self.credits)
    }
}

/// The end of a hold: the usage and the cost of the request.
#[derive(Debug, Clone)]
pub struct HoldEnd {
    pub usage: Usage,
    pub cost: Micro,
    pub outcome: RequestOutcome,
    pub estimated: bool,
    pub at_ms: i64,
}

impl HoldEnd {
    /// Creates the end of a request that costs nothing. `outcome` is the reason.
    pub fn without_cost(outcome: RequestOutcome, at_ms: i64) -> Self {
        Self {
            usage: Usage::default(),
            cost: Micro::ZERO,
            outcome,
            estimated: false,
            at_ms,
        }
    }
}

/// A request with reserved credits, in the form that its store needs to end it.
pub struct HeldRequest {
    pub(crate) request: HoldRequest,
    pub(crate) parts: CreditSplit,
    /// The opening record. `None` if the hold was never journalled.
    pub(crate) opened: Option<JournalWrite>,
    /// Time at which the hold was opened, by the monotonic clock. `None` if it was never opened.
    opened_at: Option<Instant>,
    /// Time from `opened_at` to the first token, in ms.
    first_token_ms: Option<u64>,
    /// True if the vendor reported more than the maximum of the request.
    implausible: bool,
    cache_marks: Option<CacheMarkerOrigin>,
}

/// Credits that are reserved for one request. [`Hold::settle`] or [`Hold::release`] must end it. A
/// hold that is dropped without either, because its task was cancelled or panicked, is released as
/// interrupted.
pub struct Hold {
    held: HeldRequest,
    store: Arc<dyn HoldStore>,
    /// The service terms requested from the vendor, which determine the billed factors.
    service: ServiceTerms,
    meters: RateLimitStatuses,
    ended: bool,
}

impl Hold {
    /// Creates a hold of `parts`, which are already reserved in `store`.
    pub fn new(
        store: Arc<dyn HoldStore>,
        request: HoldRequest,
        service: ServiceTerms,
        parts: CreditSplit,
    ) -> Self {
        METRICS.open_holds.inc();
        Self {
            held: HeldRequest {
                request,
                parts,
                opened: None,
                opened_at: None,
                first_token_ms: None,
                implausible: false,
                cache_marks: None,
            },
            store,
            service,
            meters: RateLimitStatuses::default(),
            ended: false,
        }
    }

    /// Submits the hold to the journal as open, and counts it in `open_count`. The vendor may be
    /// called once [`Hold::wait_until_open`] has returned.
    pub(crate) fn journal_open(
        mut self,
        journal: &JournalWriter,
        open_count: &AtomicI64,
        now_ms: i64,
    ) -> Self {
        open_count.fetch_add(1, Ordering::Relaxed);
        failpoint::hit(Point::AfterReserve);
        let unfinished = self.held.build_ending(
            CreditSplit::default(),
            Micro::ZERO,
            &HoldEnd::without_cost(RequestOutcome::Interrupted, now_ms),
        );
        let record = EncodedRecord::new(&JournalRecord::Open(unfinished));
        self.held.opened = Some(journal.submit(record, |written| {
            if written.is_err() {
                METRICS.ledger_error("journal_write");
            }
        }));
        self.held.opened_at = Some(Instant::now());
        self
    }

    /// Waits until the journal has the opening record.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be written, or not in time; the credits are then
    /// released.
    pub(crate) async fn wait_until_open(self) -> io::Result<Self> {
        if let Some(opened) = &self.held.opened {
            match tokio::time::timeout(OPEN_TIMEOUT, opened.wait()).await {
                Ok(written) => drop(written?),
                Err(_) => {
                    opened.withdraw();
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the disk does not answer",
                    ));
                }
            }
            failpoint::hit(Point::AfterJournalOpen);
        }
        Ok(self)
    }

    /// Waits like [`Hold::wait_until_open`], on a thread that may block.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be written; the credits are then released.
    pub(crate) fn wait_until_open_on_thread(self) -> io::Result<Self> {
        if let Some(opened) = &self.held.opened {
            opened.wait_on_thread()?;
            failpoint::hit(Point::AfterJournalOpen);
        }
        Ok(self)
    }

    /// Sets the credits that were reserved after the hold was journalled.
    pub(crate) fn with_credit(mut self, parts: CreditSplit) -> Self {
        self.held.parts = parts;
        self
    }

    /// Sets the rate limit status at admission.
    pub(crate) fn with_rate_limits(mut self, meters: RateLimitStatuses) -> Self {
        self.meters = meters;
        self
    }

    pub fn rate_limits(&self) -> RateLimitStatuses {
        self.meters
    }

    /// Discards a hold without reserved credits, which needs no end and no entry. Returns the id of
    /// its request.
    pub(crate) fn discard(mut self) -> String {
        self.ended = true;
        METRICS.open_holds.dec();
        std::mem::take(&mut self.held.request.request_id)
    }

    /// Returns the total of the reserved credits.
    pub fn amount(&self) -> Micro {
        self.held.parts.total()
    }

    /// Returns the part of `usage` that the hold covers at the billed tier.
    pub fn clamp_usage(&self, usage: Usage) -> Usage {
        pricing::clamp_usage_to_cost(
            self.with_billed_tier(usage),
            &self.held.request.model.price,
            self.amount(),
        )
    }

    /// Sets the billed tier, region and speed in `usage`, in place of those that the vendor
    /// reported.
    pub(super) fn with_billed_tier(&self, usage: Usage) -> Usage {
        self.service
            .with_billed_terms(usage, &self.held.request.model.price)
    }

    /// Records that another model answers instead of the requested one. Its usage is billed at its
    /// own price.
    pub fn change_model(&mut self, model: &Arc<CatalogModel>, service: ServiceTerms) {
        self.held.request.model = Arc::clone(model);
        self.service = service;
    }

    /// Records the origin of the cache markers in the prompt of the answering vendor.
    pub fn record_cache_marks(&mut self, origin: Option<CacheMarkerOrigin>) {
        self.held.cache_marks = origin;
    }

    pub fn request(&self) -> &HoldRequest {
        &self.held.request
    }

    /// Records the response's first token. The first call returns the time since admission, and
    /// later calls return `None`.
    pub fn record_first_token(&mut self) -> Option<Duration> {
        if self.held.first_token_ms.is_some() {
            return None;
        }
        self.held.first_token_ms = self.held.elapsed_ms();
        self.held.opened_at.map(|opened| opened.elapsed())
    }

    /// Records on the receipt and in the metrics which of the vendor's counters exceed the maximum
    /// of the request, and which of them are unknown. Returns whether the usage is an estimate.
    pub fn record_verdict(&mut self, verdict: UsageVerdict, unknown: UnknownUsage) -> bool {
        let vendor = self.held.request.model.vendor.name.as_str();
        for counter in unknown.counters() {
            METRICS
                .usage_unknown
                .with_label_values(&[vendor, counter])
                .inc();
        }
        if let UsageVerdict::Implausible(excess) = verdict {
            self.held.implausible = true;
            for counter in excess.counters() {
                METRICS
                    .usage_implausible
                    .with_label_values(&[vendor, counter])
                    .inc();
            }
        }
        verdict == UsageVerdict::Estimated
    }

    /// Ends the request with its usage. Once the journal has the debit, it survives a crash of the
    /// process, so the gateway may send the last byte.
    pub fn settle(
        mut self,
        usage: Usage,
        outcome: RequestOutcome,
        estimated: bool,
        now_ms: i64,
    ) -> Debit {
        let price = Arc::clone(&self.held.request.model.price);
        let usage = match outcome {
            // Usage that is free is billed as zero, so that the receipt adds up.
            RequestOutcome::RefusedFree => Usage::default(),
            // An estimate never exceeds the hold.
            _ if estimated => self.clamp_usage(usage),
            _ => self.with_billed_tier(usage),
        };
        self.finish(HoldEnd {
            usage,
            cost: pricing::cost(&usage, &price),
            outcome,
            estimated,
            at_ms: now_ms,
        })
    }

    /// Ends a request that costs nothing. `outcome` is the reason. Nobody waits for the journal: if
    /// it lacks the end, the request counts as interrupted, which costs nothing either.
    pub fn release(mut self, outcome: RequestOutcome, now_ms: i64) {
        let Debit { .. } = self.finish(HoldEnd::without_cost(outcome, now_ms));
    }

    /// Abandons the hold as in a killed process: the journal has the opening record alone. Only
    /// simulations use this function.
    pub fn abandon(mut self) {
        self.ended = true;
    }

    fn finish(&mut self, end: HoldEnd) -> Debit {
        self.ended = true;
        METRICS.open_holds.dec();
        Arc::clone(&self.store).settle(&mut self.held, end)
    }
}

impl HeldRequest {
    fn elapsed_ms(&self) -> Option<u64> {
        self.opened_at
            .map(|opened| u64::try_from(opened.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Builds the ending for the journal and the ledger. The account pays `taken` of the cost, and
    /// `writeoff` is written off.
    pub(crate) fn build_ending(
        &self,
        taken: CreditSplit,
        writeoff: Micro,
        end: &HoldEnd,
    ) -> Ending {
        let HoldRequest {
            request_id,
            account,
            key_id,
            key_shown,
            member,
            model,
            surface,
            conversation,
            ..
        } = &self.request;
        Ending {
            request_id: request_id.clone(),
            account: account.to_string(),
            at_ms: end.at_ms,
            paid: taken.paid,
            trial: taken.trial,
            writeoff,
            detail: EndingDetail {
                key_id: key_id.to_string(),
                key_shown: key_shown.to_string(),
                model: model.id.clone(),
                surface: *surface,
                vendor: model.vendor.name.clone(),
                outcome: end.outcome,
                usage: end.usage,
                price_version: model.price.version.clone(),
                estimated: end.estimated,
                implausible: self.implausible && end.usage != Usage::default(),
                conversation: conversation.clone(),
                took_ms: self.elapsed_ms(),
                first_token_ms: self.first_token_ms,
                cache_marks: self.cache_marks,
                member: member.as_deref().map(str::to_owned),
            },
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if self
            .held
            .opened
            .as_ref()
            .is_some_and(|opened| !opened.has_failed())
        {
            log::warn!(
                "the gateway dropped request {} before it ended",
                self.held.request.request_id
            );
        }
        // The journal gets the record later, because nobody may wait here.
        let end = HoldEnd::without_cost(RequestOutcome::Interrupted, clock::now_ms());
        let Debit { .. } = self.finish(end);
    }
}

/// Returns the ending of a request whose own ending could not be journalled. A client that does not
/// get the last byte is not charged.
pub(crate) fn without_charge(ending: Ending, error: &io::Error) -> Ending {
    METRICS.ledger_error("journal_write");
    log::error!(
        "cannot journal the end of request {}: {error}; the gateway withholds the end of its answer, and nothing is debited",
        ending.request_id
    );
    Ending {
        paid: Micro::ZERO,
        trial: Micro::ZERO,
        writeoff: Micro::ZERO,
        detail: EndingDetail {
            outcome: RequestOutcome::Interrupted,
            usage: Usage::default(),
            estimated: false,
            implausible: false,
            ..ending.detail
        },
        ..ending
    }
}

/// Records the usage and the debit of a journalled ending in the metrics.
pub(crate) fn record_metrics(ending: &Ending, taken: CreditSplit) {
    let detail = &ending.detail;
    let model = METRICS.models.label(&detail.model);
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
            &detail.model,
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
