//! An account that has nothing to do with an attack: the latency of its requests before and during
//! the attack, and the number that the gateway refuses.

use crate::account::Account;
use crate::client::{self, Request};
use crate::h2::resident_kib;
use crate::surface::Chat;
use crate::world::World;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The number of requests that the account sends before an attack, and again during it, one after
/// the other.
pub const REQUESTS: usize = 200;
const MAX_RESIDENT_MIB: u64 = 300;
/// A debug build and its attacker share two cores with everything else: a slow day must not fail
/// the test. docs/speed.md has the figures of the release build on a quiet machine.
const MAX_MEDIAN_PERCENT: u128 = 800;
/// Between two requests of the account, one goes to the vendor's simulator, which nobody attacks:
/// what its requests take longer, the machine has become slower.
const CONTROL_PATH: &str = "/_sim/requests?last=1";

pub struct Bystander {
    account: Account,
    quiet: Requests,
}

/// The latencies of the requests and of those to the simulator, sorted, and the number of requests
/// that were not answered with 200.
struct Requests {
    latencies: Vec<Duration>,
    of_control: Vec<Duration>,
    refused: usize,
}

impl Requests {
    fn send(world: &World, account: &Account, after_each: &dyn Fn(usize)) -> Self {
        let (mut latencies, mut of_control, mut refused) = (Vec::new(), Vec::new(), 0);
        for number in 0..REQUESTS {
            let start = Instant::now();
            let answer =
                client::try_ask(world.edge, &Chat.whole(&account.key, "input=10 output=10"));
            latencies.push(start.elapsed());
            let start = Instant::now();
            client::ask(world.vendor.port, &Request::get(CONTROL_PATH));
            of_control.push(start.elapsed());
            refused += usize::from(answer.is_none_or(|answer| answer.status != 200));
            after_each(number);
        }
        latencies.sort_unstable();
        of_control.sort_unstable();
        Self {
            latencies,
            of_control,
            refused,
        }
    }

    fn percentile(&self, percent: usize) -> Duration {
        self.latencies[(self.latencies.len() - 1) * percent / 100]
    }

    fn control_median(&self) -> Duration {
        self.of_control[self.of_control.len() / 2]
    }
}

/// Sets the flag when dropped, also in a panic. The threads that watch the flag then end.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Bystander {
    /// Measures the gateway without an attack.
    pub fn new(world: &World) -> Self {
        let account = world.account_with("bystander@example.test", &["--no-trial"]);
        world.grant(&account, "1000000", "funds");
        // The first requests open connections that later ones reuse.
        Requests::send(world, &account, &|_| ());
        let quiet = Requests::send(world, &account, &|_| ());
        assert_eq!(quiet.refused, 0, "refused by a quiet gateway");
        Self { account, quiet }
    }

    /// Measures the gateway while the caller attacks it; calls `after_each` with the number of each
    /// request.
    ///
    /// # Panics
    /// Panics if the gateway refused a request, if the median request took more than
    /// [`MAX_MEDIAN_PERCENT`] of the quiet one on a machine that has not become slower, or if the
    /// gateway used more than [`MAX_RESIDENT_MIB`].
    pub fn endures(&self, world: &World, attack: &str, after_each: impl Fn(usize)) {
        let (is_over, largest) = (AtomicBool::new(false), AtomicU64::new(0));
        let attacked = std::thread::scope(|scope| {
            let _stop = StopOnDrop(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    largest.fetch_max(resident_kib(world.pid()), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            Requests::send(world, &self.account, &after_each)
        });
        let resident_mib = largest.into_inner() / 1_024;
        let relative = |percent| {
            let quiet = self.quiet.percentile(percent).as_nanos();
            attacked.percentile(percent).as_nanos() * 100 / quiet.max(1)
        };
        eprintln!(
            "{attack}: {} of {REQUESTS} refused; p50 {:?} to {:?} ({} %), p99 {:?} to {:?} ({} %); {resident_mib} MiB",
            attacked.refused,
            self.quiet.percentile(50),
            attacked.percentile(50),
            relative(50),
            self.quiet.percentile(99),
            attacked.percentile(99),
            relative(99),
        );
        assert_eq!(
            attacked.refused, 0,
            "of {REQUESTS} requests during {attack}"
        );
        let slower = attacked.control_median().as_nanos() * 100
            / self.quiet.control_median().as_nanos().max(1);
        let median = relative(50) * 100 / slower.max(100);
        assert!(
            median <= MAX_MEDIAN_PERCENT,
            "the median request took {median} % of the quiet one during {attack}, on a machine at {slower} %"
        );
        assert!(
            resident_mib <= MAX_RESIDENT_MIB,
            "{resident_mib} MiB during {attack}"
        );
    }
}
