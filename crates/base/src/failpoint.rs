//! Defines named points at which this process can be made to crash. Tests use them to check the
//! state after a crash.
//!
//! With `GW_FAIL=name[:n]`, the n-th passage of the point kills the process like `kill -9`, without
//! flushing, dropping or reporting anything. With `GW_FAIL=panic@name[:n]`, the process panics
//! instead; with `GW_FAIL=panics@name:n`, it panics at each of the first n passages. With
//! `GW_FAIL=slow@name:n`, each of the first n passages takes a while, at a point that can be slow;
//! with `crawl` in place of `slow`, longer. Failpoints are compiled into every build,
//! so that tests run the code that production runs. If `GW_FAIL` is not set, a passage costs one
//! relaxed load. Failpoints must not change the behaviour of the process in any other way.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

static ARMED: AtomicBool = AtomicBool::new(false);
static PLAN: RwLock<Option<Arc<ArmedFailpoint>>> = RwLock::new(None);

/// Time that the ledger writer waits with an ending, so that the client's last byte is sent first.
const LEDGER_DELAY: Duration = Duration::from_secs(10);
const SLOW_PASSAGE: Duration = Duration::from_millis(8);
/// Duration of a crawling passage. It is so long that a busy machine sends more requests than pass,
/// and that no crawling ledger seems faster than the lowest rate that admission reckons with.
const CRAWLING_PASSAGE: Duration = Duration::from_millis(100);

macro_rules! points {
    ($( $(#[doc = $doc:literal])* $point:ident = $name:literal, )*) => {
        /// The points at which a process can be killed, in the order of a request's life.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Point { $( $(#[doc = $doc])* $point, )* }

        const NAMES: &[(&str, Point)] = &[$( ($name, Point::$point), )*];
    };
}

points! {
    /// The key is valid, and no credit is reserved.
    AfterAuth = "after_auth",
    /// A CPU job on a large body begins.
    CpuJob = "cpu_job",
    /// The hold exists in memory, but not in the journal.
    AfterReserve = "after_reserve",
    /// The journal has the hold, but the gateway has not called the vendor.
    AfterJournalOpen = "after_journal_open",
    /// The vendor's header has arrived, but the client has received nothing.
    VendorAnswered = "vendor_answered",
    /// A piece of a stream has arrived, and the client has received earlier pieces.
    MidStream = "mid_stream",
    /// The gateway has parsed the response to its end, but the journal lacks the ending.
    BeforeJournalEnd = "before_journal_end",
    /// The journal has the ending, but not on disk yet. The point is passed only if endings are
    /// synced.
    BeforeJournalSync = "before_journal_sync",
    /// The journal has half of the ending's record.
    TornJournalEnd = "torn_journal_end",
    /// The journal has the ending, but the client lacks the last byte.
    AfterJournalEnd = "after_journal_end",
    /// The client has the last byte, but the ledger lacks the ending. If this point is armed, the
    /// ledger writer waits for it.
    LastByteSent = "last_byte_sent",
    /// The ledger writer is about to enter an ending. This point can be slow.
    LedgerEntry = "ledger_entry",
    /// A ledger transaction has executed some of its statements.
    MidCommit = "mid_commit",
    /// The ledger has committed, but the code that submitted the endings has not been notified.
    AfterCommit = "after_commit",
    /// A batch of the index is written, but not committed.
    MidIndex = "mid_index",
    /// The index was rebuilt in a separate file, which has not replaced the old one yet.
    BeforeReindexSwap = "before_reindex_swap",
    /// A transaction that removes data of older versions has begun and is not committed.
    MidRetired = "mid_retired",
    /// The ledger covers a journal file, which still exists.
    BeforeReap = "before_reap",
    /// The account of a sign-up is stored, but not opened in the ledger.
    AccountKept = "account_kept",
    /// The ledger has the grant of a sign-up, but the stored account still marks the grant as
    /// missing.
    AccountGranted = "account_granted",
    /// An order of credits is stored, but not sent to the payment provider.
    OrderStored = "order_stored",
    /// The payment provider has a checkout for an order, but the order lacks it.
    CheckoutCreated = "checkout_created",
    /// The ledger has the credits of a payment, but the order is not marked as paid.
    PaymentEntered = "payment_entered",
    /// An order has the amount that the provider took back, but the ledger has taken no credits.
    ReversalRecorded = "reversal_recorded",
    /// The ledger has taken a part of the credits that a payment must give back.
    CreditsTakenBack = "credits_taken_back",
    /// The shared store has answered an admission, but the edge has not read the answer.
    HeldThere = "held_there",
    /// The shared store has received an ending, but the outbox relay has no answer yet.
    EndingTold = "ending_told",
    /// The shared store reports that the ledger has an ending, but the outbox relay has not
    /// recorded it.
    EndingArrived = "ending_arrived",
    /// The sidecar has read events, but the ledger lacks them.
    EventsRead = "events_read",
    /// The ledger has the events, but the shared store still has them too.
    EventsEntered = "events_entered",
    /// The events are removed from the shared store.
    EventsCleared = "events_cleared",
    /// The ledger has a posting, but the shared store lacks it.
    PostEntered = "post_entered",
    /// The shared store has the posting, but the ledger has not recorded that.
    PostTold = "post_told",
    /// A command has debited credit in the shared store, but the ledger lacks the debit.
    TakenThere = "taken_there",
    /// A merge of two accounts is stored, and its credits have not moved.
    MergeStored = "merge_stored",
    /// A merge has taken credits of an account, and the other account does not have them yet.
    MergedOut = "merged_out",
    /// The other account has the credits.
    MergedIn = "merged_in",
    /// All credits have moved, and the account is not deleted.
    MergeMoved = "merge_moved",
    /// A segment has its final name, but the ledger has not recorded it.
    SegmentRenamed = "segment_renamed",
    /// The ledger is about to record a segment.
    BeforeSegmentRecord = "before_segment_record",
    /// The ledger has recorded a segment and still has all its entries.
    AfterSegmentRecord = "after_segment_record",
    /// Some of a segment's entries have left the ledger.
    MidSegmentDelete = "mid_segment_delete",
    /// A part of a segment is copied to the archive.
    MidArchiveCopy = "mid_archive_copy",
    /// The archive has a segment, but the ledger has not recorded that.
    BeforeArchiveRecord = "before_archive_record",
    /// The ledger has recorded the segment's archive, but the data directory still has the segment
    /// too.
    AfterArchiveRecord = "after_archive_record",
    /// A drained process ends, but has not checkpointed the ledger's write-ahead log.
    BeforeCheckpoint = "before_checkpoint",
    /// A drained process ends, after it has checkpointed the ledger's write-ahead log.
    AfterCheckpoint = "after_checkpoint",
}

/// The failpoint, and the passage at which it takes effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailpointPlan {
    point: Point,
    passage: u64,
    effect: FailpointEffect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailpointEffect {
    Kill,
    Panic,
    PanicEach,
    Slow,
    Crawl,
}

impl FailpointEffect {
    /// Returns the duration of a passage, unless the process ends at it.
    fn passage(self) -> Option<Duration> {
        match self {
            Self::Slow => Some(SLOW_PASSAGE),
            Self::Crawl => Some(CRAWLING_PASSAGE),
            Self::Kill | Self::Panic | Self::PanicEach => None,
        }
    }
}

struct ArmedFailpoint {
    point: Point,
    left: AtomicU64,
    effect: FailpointEffect,
}

impl ArmedFailpoint {
    /// Counts a passage. Returns false once the plan has none left.
    fn take_passage(&self) -> bool {
        let take = |left: u64| left.checked_sub(1);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.is_ok()
    }
}

impl FromStr for FailpointPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (effect, text) = match text.split_once('@') {
            Some(("panic", rest)) => (FailpointEffect::Panic, rest),
            Some(("panics", rest)) => (FailpointEffect::PanicEach, rest),
            Some(("slow", rest)) => (FailpointEffect::Slow, rest),
            Some(("crawl", rest)) => (FailpointEffect::Crawl, rest),
            _ => (FailpointEffect::Kill, text),
        };
        let (name, passage) = text.split_once(':').unwrap_or((text, "1"));
        let point = NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, point)| *point);
        let passage = passage.parse().ok().filter(|passage| *passage > 0);
        point
            .zip(passage)
            .map(|(point, passage)| Self {
                point,
                passage,
                effect,
            })
            .ok_or_else(|| {
                let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
                format!(
                    "expected [panic@|panics@|slow@|crawl@]name[:n], with n at least 1 and one of these names: {}",
                    names.join(", ")
                )
            })
    }
}

/// Makes the process fail according to `plan`, which replaces an earlier plan.
pub fn arm(plan: &FailpointPlan) {
    let FailpointPlan {
        point,
        passage,
        effect,
    } = *plan;
    log::warn!("fail point {point:?} is armed: {effect:?} at passage {passage}");
    let armed = ArmedFailpoint {
        point,
        left: AtomicU64::new(passage),
        effect,
    };
    set_plan(Some(Arc::new(armed)));
}

/// Ends the plan. Simulations use this, because they arm many plans in one process.
pub fn disarm() {
    set_plan(None);
}

fn set_plan(plan: Option<Arc<ArmedFailpoint>>) {
    let is_armed = plan.is_some();
    *PLAN.write().unwrap_or_else(PoisonError::into_inner) = plan;
    ARMED.store(is_armed, Ordering::Relaxed);
}

fn current_plan() -> Option<Arc<ArmedFailpoint>> {
    PLAN.read()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .map(Arc::clone)
}

/// Kills the process or panics if the plan selects this passage.
#[inline]
pub fn hit(point: Point) {
    if is_due(point) {
        execute(point);
    }
}

#[cold]
#[expect(clippy::panic, reason = "a test asked for it")]
fn execute(point: Point) {
    match current_plan().map(|armed| armed.effect) {
        Some(FailpointEffect::Panic | FailpointEffect::PanicEach) => panic!("fail point {point:?}"),
        _ => kill_self(),
    }
}

/// Returns whether the plan selects this passage. The caller must then do its last step and call
/// [`kill_self`].
#[inline]
pub fn is_due(point: Point) -> bool {
    ARMED.load(Ordering::Relaxed) && count_passage(point)
}

#[cold]
fn count_passage(point: Point) -> bool {
    let armed = current_plan().filter(|armed| armed.point == point);
    armed.is_some_and(|armed| match armed.effect {
        FailpointEffect::Kill | FailpointEffect::Panic => {
            armed.left.fetch_sub(1, Ordering::Relaxed) == 1
        }
        FailpointEffect::PanicEach => armed.take_passage(),
        FailpointEffect::Slow | FailpointEffect::Crawl => false,
    })
}

/// Returns whether the plan is about `point`.
#[inline]
pub fn is_armed(point: Point) -> bool {
    ARMED.load(Ordering::Relaxed) && current_plan().is_some_and(|armed| armed.point == point)
}

/// Delays this thread if `point` is armed, so that the process dies before the thread continues.
#[inline]
pub fn delay_if_armed(point: Point) {
    if is_armed(point) {
        std::thread::sleep(LEDGER_DELAY);
    }
}

/// Delays this thread for a number of passages, as long as the plan has slow ones left.
#[inline]
pub fn slow_down(point: Point, passages: usize) {
    if ARMED.load(Ordering::Relaxed) {
        (0..passages)
            .filter_map(|_| slow_passage(point))
            .for_each(std::thread::sleep);
    }
}

#[cold]
fn slow_passage(point: Point) -> Option<Duration> {
    let armed = current_plan().filter(|armed| armed.point == point)?;
    let passage = armed.effect.passage()?;
    armed.take_passage().then_some(passage)
}

/// Kills the process like `kill -9`.
#[cold]
pub fn kill_self() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_name_and_a_passage_and_anything_else_is_told_the_names() {
        assert_eq!(
            "after_auth".parse(),
            Ok(FailpointPlan {
                point: Point::AfterAuth,
                passage: 1,
                effect: FailpointEffect::Kill
            })
        );
        assert_eq!(
            "mid_commit:3".parse(),
            Ok(FailpointPlan {
                point: Point::MidCommit,
                passage: 3,
                effect: FailpointEffect::Kill
            })
        );
        assert_eq!(
            "panic@mid_stream".parse(),
            Ok(FailpointPlan {
                point: Point::MidStream,
                passage: 1,
                effect: FailpointEffect::Panic
            })
        );
        assert_eq!(
            "slow@ledger_entry:300".parse(),
            Ok(FailpointPlan {
                point: Point::LedgerEntry,
                passage: 300,
                effect: FailpointEffect::Slow
            })
        );
        for good in ["crawl@ledger_entry:300", "panics@after_auth:6"] {
            assert!(good.parse::<FailpointPlan>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "panic@",
            "fast@ledger_entry",
            "after",
            "mid_commit:",
            "mid_commit:0",
            "mid_commit:-1",
            "mid_commit:x",
        ] {
            let told = bad.parse::<FailpointPlan>().unwrap_err();
            assert!(
                NAMES.iter().all(|(name, _)| told.contains(name)),
                "{bad}: {told}"
            );
        }
        assert!(!is_due(Point::AfterAuth), "nothing is armed");
    }
}
