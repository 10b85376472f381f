//! Feeds a billing service with requests and their endings, and watches when the ledger has them.
//!
//! Must not decide what a table shows.

use super::accounts::{Holder, Turn, Turns};
use super::{meter, rig};
use base::clock;
use base::telemetry::METRICS;
use config::catalog::CatalogModel;
use credits::pricing::{Quote, WorstCase};
use ledger::RequestOutcome;
use llm_protocol::usage::Usage;
use model_gateway::billing::{CreditService, Hold, HoldRequest, ReserveError};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Interval at which the watching thread looks, and the accuracy of the time until an ending is in
/// the ledger.
const LOOK: Duration = Duration::from_millis(1);
/// Without a rate, the time of one in this many endings is taken.
const SAMPLED: u64 = 64;
/// Longest time without progress: the ledger is stuck then.
const STUCK: Duration = Duration::from_secs(600);
/// Bounds of a request's input and output, in tokens.
const MAX_INPUT: usize = 50_000;
const MAX_OUTPUT: usize = 1_500;

/// How many endings to feed, and how fast.
pub struct Pace {
    pub entries: u64,
    pub time: Duration,
    /// Endings per second.
    pub rate: Option<u64>,
}

/// What requests are made of, and who takes them.
pub struct Feeder<'a> {
    pub billing: &'a CreditService,
    pub holders: &'a [Holder],
    pub models: &'a [Arc<CatalogModel>],
    /// Requests that are open at one time.
    pub open: usize,
    /// Endings that may wait for the writer.
    pub queue: u64,
}

/// What was fed.
#[derive(Default)]
pub struct Fed {
    pub entries: u64,
    /// Credits that the accounts paid, in µc.
    pub charged: i128,
    /// Until the ledger had all of them.
    pub time: Duration,
    /// Part of it in which the feeder waited for the ledger.
    pub waited: Duration,
    /// CPU time of the feeder, and of the thread that watches.
    pub cpu_ns: u64,
    pub watch_ns: u64,
    /// Times from the end of a request until the ledger had it, in µs.
    pub settle_us: Vec<u64>,
}

/// How far the ledger is behind the feeder.
#[derive(Default)]
struct Progress {
    fed: AtomicU64,
    entered: AtomicU64,
    is_over: AtomicBool,
    /// For some endings, how many were fed with it, and when.
    marks: Mutex<VecDeque<(u64, Instant)>>,
}

/// Feeds, and returns once the ledger has everything.
pub fn feed(feeder: &Feeder<'_>, turns: &mut Turns, pace: &Pace) -> Fed {
    let progress = &Progress::default();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let watcher = Builder::new()
            .name("watcher".into())
            .spawn_scoped(scope, || progress.watch(feeder.billing))
            .unwrap();
        let feeder = Builder::new()
            .name("feeder".into())
            .spawn_scoped(scope, || feeder.run(turns, pace, progress))
            .unwrap();
        let fed = feeder.join().unwrap_or_else(|panic| {
            // The scope would wait for the watcher for ever.
            progress.is_over.store(true, Ordering::Relaxed);
            std::panic::resume_unwind(panic)
        });
        rig::wait_at_most(STUCK, "to enter what was fed", || progress.behind() == 0);
        let time = began.elapsed();
        progress.is_over.store(true, Ordering::Relaxed);
        let (settle_us, watch_ns) = watcher.join().unwrap();
        Fed {
            time,
            settle_us,
            watch_ns,
            ..fed
        }
    })
}

impl Feeder<'_> {
    fn run(&self, turns: &mut Turns, pace: &Pace, progress: &Progress) -> Fed {
        let (began, cpu_before) = (Instant::now(), meter::own_cpu_ns());
        let (mut fed, mut open) = (Fed::default(), VecDeque::new());
        let mut begun = 0;
        while begun < pace.entries && began.elapsed() < pace.time {
            match pace.rate {
                Some(rate) => sleep_until(began + Duration::from_micros(begun * 1_000_000 / rate)),
                None => fed.waited += self.wait_for_room(progress),
            }
            open.push_back(self.begin(turns, &mut fed));
            begun += 1;
            // It answers while others begin and end.
            let answering = open.len() / 2;
            open[answering].0.record_first_token();
            if open.len() >= self.open {
                self.end(open.pop_front(), pace, progress, &mut fed);
            }
        }
        while !open.is_empty() {
            self.end(open.pop_front(), pace, progress, &mut fed);
        }
        fed.cpu_ns = meter::own_cpu_ns() - cpu_before;
        fed
    }

    fn wait_for_room(&self, progress: &Progress) -> Duration {
        if progress.behind() < self.queue {
            return Duration::ZERO;
        }
        rig::wait_at_most(STUCK, "to enter what waits", || {
            progress.behind() < self.queue
        })
    }

    /// Reserves the credits of a request, and chooses what it will use.
    fn begin(&self, turns: &mut Turns, fed: &mut Fed) -> (Hold, Usage) {
        let turn = turns.take();
        let model = &self.models[turns.below(self.models.len())];
        let usage = usage(turns);
        loop {
            let request = self.request(turn, model);
            match self
                .billing
                .reserve(request, &quote(model), false, clock::now_ms())
            {
                Ok((hold, _)) => return (hold, usage),
                // A gateway would refuse the request; here it comes again.
                Err(
                    ReserveError::Busy | ReserveError::Backlog(_) | ReserveError::Unavailable(_),
                ) => {
                    std::thread::sleep(LOOK);
                    fed.waited += LOOK;
                    assert!(fed.waited < STUCK, "the ledger admits nothing");
                }
                Err(other) => panic!("nothing was reserved: {other:?}"),
            }
        }
    }

    fn request(&self, turn: Turn, model: &Arc<CatalogModel>) -> HoldRequest {
        let holder = &self.holders[turn.account];
        let key = &holder.keys[turn.key];
        HoldRequest {
            request_id: format!("req_{}", uuid::Uuid::now_v7().simple()),
            account: Arc::clone(&holder.account),
            key_id: Arc::clone(&key.id),
            key_shown: Arc::clone(&key.shown),
            member: None,
            surface: model.protocol(),
            model: Arc::clone(model),
            bounds: Default::default(),
            conversation: Some(format!("{:016x}", turn.conversation)),
        }
    }

    fn end(&self, open: Option<(Hold, Usage)>, pace: &Pace, progress: &Progress, fed: &mut Fed) {
        let Some((hold, usage)) = open else {
            return;
        };
        let ended = Instant::now();
        let charged = hold
            .settle(usage, RequestOutcome::Completed, false, clock::now_ms())
            .wait_on_thread()
            .unwrap();
        fed.charged += i128::from(charged.get());
        fed.entries += 1;
        progress.fed.store(fed.entries, Ordering::Release);
        if pace.rate.is_some() || fed.entries.is_multiple_of(SAMPLED) {
            progress
                .marks
                .lock()
                .unwrap()
                .push_back((fed.entries, ended));
        }
    }
}

fn sleep_until(due: Instant) {
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}

/// Several classes, as agents have them: much comes from a cache.
fn usage(turns: &mut Turns) -> Usage {
    let mut up_to = |limit: usize| u64::try_from(turns.below(limit)).unwrap();
    let output = 20 + up_to(MAX_OUTPUT - 20);
    let writes_cache = up_to(4) == 0;
    Usage {
        input: 10 + up_to(3_000),
        cache_read: up_to(40_000),
        cache_write_5m: if writes_cache { up_to(4_000) } else { 0 },
        output,
        reasoning: up_to(MAX_OUTPUT).min(output),
        ..Usage::default()
    }
}

/// Covers every usage.
fn quote(model: &CatalogModel) -> Quote {
    let price = &model.price;
    let dearest = [price.input, price.cache_write_5m, price.cache_write_1h];
    let reach = WorstCase {
        input_tokens: MAX_INPUT as u64,
        input_price: dearest.into_iter().max().unwrap_or(price.input),
        output_price: price.output,
    };
    Quote::flat(reach, 1, MAX_OUTPUT as u64, MAX_OUTPUT as u64)
}

impl Progress {
    /// Number of endings that the ledger was last seen to lack.
    fn behind(&self) -> u64 {
        let entered = self.entered.load(Ordering::Acquire);
        self.fed.load(Ordering::Acquire).saturating_sub(entered)
    }

    /// Looks how many endings wait, until everything is over. Returns the times of the marked
    /// endings in µs, and the CPU time that it took in ns.
    fn watch(&self, billing: &CreditService) -> (Vec<u64>, u64) {
        let cpu_before = meter::own_cpu_ns();
        let mut times_us = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
            // In this order: an ending that comes in between counts as missing.
            let fed = self.fed.load(Ordering::Acquire);
            billing.update_gauges(clock::now_ms());
            let pending = u64::try_from(METRICS.journal_pending.get()).unwrap();
            let entered = fed.saturating_sub(pending);
            self.entered.fetch_max(entered, Ordering::AcqRel);
            let now = Instant::now();
            let mut marks = self.marks.lock().unwrap();
            while marks.front().is_some_and(|(count, _)| *count <= entered) {
                if let Some((_, ended)) = marks.pop_front() {
                    times_us.push(u64::try_from((now - ended).as_micros()).unwrap());
                }
            }
            drop(marks);
            std::thread::sleep(LOOK);
        }
        (times_us, meter::own_cpu_ns() - cpu_before)
    }
}
