//! Named points at which this very process can be told to die, for tests of what it leaves behind.
//!
//! `GW_FAIL=name[:n]` has the n-th passage of a point kill the process as `kill -9` does: nothing
//! is flushed, dropped or told. `GW_FAIL=panic@name[:n]` has it panic there instead. Compiled into
//! every build, so that what is tested is what runs; unset, a passage is one relaxed load. Must not
//! change what the process does in any other way.

use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

static ARMED: AtomicBool = AtomicBool::new(false);
static PLAN: OnceLock<Armed> = OnceLock::new();

/// How long the ledger is kept from an ending for the client's last byte to leave first.
const HELD_BACK: Duration = Duration::from_secs(10);

macro_rules! points {
    ($( $(#[doc = $doc:literal])* $point:ident = $name:literal, )*) => {
        /// Where a process can die, in the order of a request's life.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Point { $( $(#[doc = $doc])* $point, )* }

        const NAMES: &[(&str, Point)] = &[$( ($name, Point::$point), )*];
    };
}

points! {
    /// The key was good; nothing is held.
    AfterAuth = "after_auth",
    /// A job on a large body begins.
    CpuJob = "cpu_job",
    /// The hold is taken in memory; the journal does not know of it.
    AfterReserve = "after_reserve",
    /// The hold is journalled; the vendor does not know of it.
    AfterJournalOpen = "after_journal_open",
    /// The vendor's header came; the client has nothing.
    VendorAnswered = "vendor_answered",
    /// A piece of a stream came that has begun at the client.
    MidStream = "mid_stream",
    /// The answer is understood to its end; the journal does not know.
    BeforeJournalEnd = "before_journal_end",
    /// The ending is journalled and not on disk, where each is synced.
    BeforeJournalSync = "before_journal_sync",
    /// Half of the ending's record is in the journal.
    TornJournalEnd = "torn_journal_end",
    /// The ending is journalled; the client lacks the last byte.
    AfterJournalEnd = "after_journal_end",
    /// The client has the last byte; the ledger does not know. Where this one is armed, the settler
    /// waits for it.
    LastByteSent = "last_byte_sent",
    /// A transaction of the ledger has some of its statements.
    MidCommit = "mid_commit",
    /// The ledger has committed; whoever gave it the endings does not know.
    AfterCommit = "after_commit",
    /// The ledger covers a file of the journal; the file is still there.
    BeforeReap = "before_reap",
    /// A sign-up's account is kept; the ledger does not know of it.
    AccountKept = "account_kept",
    /// A sign-up's grant is in the ledger; its account says that it is missing.
    AccountGranted = "account_granted",
    /// The shared store has answered an admission; the edge does not know what.
    HeldThere = "held_there",
    /// The shared store has been told of an ending; the courier does not know.
    EndingTold = "ending_told",
    /// The shared store says that the ledger has an ending; the courier does not know.
    EndingArrived = "ending_arrived",
    /// The sidecar has read events; the ledger does not have them.
    EventsRead = "events_read",
    /// The ledger has them; they are still in the shared store.
    EventsEntered = "events_entered",
    /// They are gone from there.
    EventsCleared = "events_cleared",
    /// The ledger has a post; the shared store does not.
    PostEntered = "post_entered",
    /// The shared store has it; the ledger does not know that.
    PostTold = "post_told",
    /// A command has taken credit in the shared store; the ledger does not have it.
    TakenThere = "taken_there",
    /// At the end of a drained process, before the ledger's log is carried back.
    BeforeCheckpoint = "before_checkpoint",
    /// The same, after it.
    AfterCheckpoint = "after_checkpoint",
}

/// Which point, and at which passage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    point: Point,
    passage: u64,
    effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Kill,
    Panic,
}

struct Armed {
    point: Point,
    left: AtomicU64,
    effect: Effect,
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (effect, text) = match text.strip_prefix("panic@") {
            Some(rest) => (Effect::Panic, rest),
            None => (Effect::Kill, text),
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
                    "expected [panic@]name[:n], n from 1 on, the name one of {}",
                    names.join(", ")
                )
            })
    }
}

/// Has the process die as `plan` says. The first call counts.
pub fn arm(plan: &Plan) {
    let Plan {
        point,
        passage,
        effect,
    } = *plan;
    log::warn!("fail point {point:?} is armed: {effect:?} at passage {passage}");
    let armed = Armed {
        point,
        left: AtomicU64::new(passage),
        effect,
    };
    if PLAN.set(armed).is_ok() {
        ARMED.store(true, Ordering::Relaxed);
    }
}

/// Dies or panics here, where that is due.
#[inline]
pub fn pass(point: Point) {
    if is_due(point) {
        fail(point);
    }
}

#[cold]
#[expect(clippy::panic, reason = "a test asked for it")]
fn fail(point: Point) {
    match PLAN.get().map(|armed| armed.effect) {
        Some(Effect::Panic) => panic!("fail point {point:?}"),
        _ => die(),
    }
}

/// This is the passage at which to [`die`], after some last deed.
#[inline]
pub fn is_due(point: Point) -> bool {
    ARMED.load(Ordering::Relaxed) && counted(point)
}

#[cold]
fn counted(point: Point) -> bool {
    PLAN.get().is_some_and(|armed| {
        armed.point == point && armed.left.fetch_sub(1, Ordering::Relaxed) == 1
    })
}

/// Where the process is to die at `point`, keeps this thread from what would come after it.
#[inline]
pub fn after(point: Point) {
    if ARMED.load(Ordering::Relaxed) && PLAN.get().is_some_and(|armed| armed.point == point) {
        std::thread::sleep(HELD_BACK);
    }
}

/// Ends the process as `kill -9` does.
#[cold]
pub fn die() -> ! {
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
            Ok(Plan {
                point: Point::AfterAuth,
                passage: 1,
                effect: Effect::Kill
            })
        );
        assert_eq!(
            "mid_commit:3".parse(),
            Ok(Plan {
                point: Point::MidCommit,
                passage: 3,
                effect: Effect::Kill
            })
        );
        assert_eq!(
            "panic@mid_stream".parse(),
            Ok(Plan {
                point: Point::MidStream,
                passage: 1,
                effect: Effect::Panic
            })
        );
        for bad in [
            "",
            "panic@",
            "after",
            "mid_commit:",
            "mid_commit:0",
            "mid_commit:-1",
            "mid_commit:x",
        ] {
            let told = bad.parse::<Plan>().unwrap_err();
            assert!(
                NAMES.iter().all(|(name, _)| told.contains(name)),
                "{bad}: {told}"
            );
        }
        assert!(!is_due(Point::AfterAuth), "nothing is armed");
    }
}
