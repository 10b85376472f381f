//! Tests of the backlog with times and counts that the test chooses: the measured rate, the steps
//! of admission, fairness between accounts, and the limits.

use super::*;

const FLOOD: &str = "acct_flood";
const QUIET: &str = "acct_quiet";

/// A backlog of which 100 endings are one second, and 1 000 the bound.
fn backlog() -> LedgerBacklog {
    let backlog = LedgerBacklog::new(1_000_000, 10);
    backlog.set_rate(100);
    backlog
}

fn add(backlog: &LedgerBacklog, account: &str, count: usize) {
    (0..count).for_each(|_| backlog.add(account));
}

fn commit(backlog: &LedgerBacklog, account: &str, count: usize) {
    backlog.accept(count);
    backlog.remove(std::iter::repeat_n(account, count));
}

fn delay_ms(backlog: &LedgerBacklog, account: &str) -> Result<u128, BacklogReason> {
    match backlog.delay(account) {
        Ok(delay) => Ok(delay.map_or(0, |(delay, _)| delay.as_millis())),
        Err(refusal) => Err(refusal.reason),
    }
}

#[test]
fn the_rate_starts_at_an_assumption_that_the_first_seconds_outweigh() {
    let mut rate = CommitRate::default();
    assert_eq!(rate.per_second(), 250, "nothing is measured yet");
    for _ in 0..20 {
        rate.record(512, Duration::from_millis(100));
    }
    assert!(
        (4_500..=5_120).contains(&rate.per_second()),
        "{} after two busy seconds of 5 120 a second",
        rate.per_second()
    );
    for _ in 0..60 {
        rate.record(20, Duration::from_millis(100));
    }
    assert_eq!(rate.per_second(), 200, "the assumption has left the window");
}

#[test]
fn the_rate_follows_a_ledger_that_slows_within_the_window_and_recovers_from_a_hang_sooner() {
    let mut rate = CommitRate::default();
    let mut run = |commits: usize, ms: u64| {
        (0..commits).fold(0, |_, _| rate.record(500, Duration::from_millis(ms)))
    };
    assert_eq!(run(100, 100), 5_000);
    let half = run(10, 250);
    assert!((3_000..4_000).contains(&half), "{half} in mid-window");
    assert_eq!(run(20, 250), 2_000, "only slow commits are in the window");
    assert_eq!(run(100, 100), 5_000);
    // A hang of a minute is half of the window.
    let hung = run(1, 60_000);
    assert!((2_500..2_600).contains(&hung), "{hung} after a hang");
    assert_eq!(run(60, 100), 5_000, "forgotten");
}

#[test]
fn the_rate_has_a_floor_and_its_memory_a_bound() {
    let mut rate = CommitRate::default();
    for _ in 0..10 {
        rate.record(1, Duration::from_secs(600));
    }
    assert_eq!(rate.per_second(), 10);
    for _ in 0..100_000 {
        rate.record(1, Duration::from_micros(100));
        assert!(
            rate.measurements() <= 102,
            "{} measurements in memory",
            rate.measurements()
        );
    }
    assert_eq!(rate.per_second(), 10_000);
    rate.record(usize::MAX, Duration::ZERO);
    assert!(rate.per_second() > 10_000, "no overflow");
}

#[test]
fn the_backlog_is_a_time_and_that_of_an_idle_gateway_is_none() {
    let backlog = LedgerBacklog::new(65_536, 10);
    assert_eq!(backlog.time(), Duration::ZERO);
    assert!(backlog.is_calm());
    add(&backlog, FLOOD, 500);
    assert_eq!(backlog.time(), Duration::from_secs(2), "as assumed");
    backlog.set_rate(20_000);
    assert_eq!(backlog.time(), Duration::from_millis(25));
    backlog.set_rate(0);
    assert_eq!(
        backlog.time(),
        Duration::from_secs(500),
        "no division by it"
    );
    commit(&backlog, FLOOD, 500);
    assert_eq!((backlog.time(), backlog.kept()), (Duration::ZERO, 0));
    assert!(backlog.is_calm());
}

#[test]
fn below_a_quarter_of_the_bound_nothing_happens_and_then_the_wait_grows_without_a_jump() {
    let backlog = backlog();
    let mut last = 0;
    for waiting in 1..=760 {
        backlog.add(FLOOD);
        let delay = delay_ms(&backlog, FLOOD).unwrap_or(u128::MAX);
        match waiting {
            ..=250 => assert_eq!(delay, 0, "{waiting} wait"),
            251..=750 => {
                assert!((last..=last + 2).contains(&delay), "{waiting}: {delay} ms");
                last = delay;
            }
            _ => {}
        }
    }
    assert!((600..=700).contains(&last), "{last} ms at three quarters");
}

#[test]
fn a_flooding_account_waits_and_is_then_refused_while_a_quiet_one_passes() {
    let backlog = backlog();
    add(&backlog, QUIET, 2);
    add(&backlog, FLOOD, 498);
    let (flood, quiet) = (delay_ms(&backlog, FLOOD), delay_ms(&backlog, QUIET));
    assert_eq!(flood, Ok(333), "a third of the way from a quarter to all");
    assert!(quiet.is_ok_and(|ms| ms <= 4), "{quiet:?}");
    assert_eq!(delay_ms(&backlog, "acct_new"), Ok(0));
    add(&backlog, FLOOD, 300);
    assert_eq!(delay_ms(&backlog, FLOOD), Err(BacklogReason::Share));
    assert!(delay_ms(&backlog, QUIET).is_ok_and(|ms| ms <= 10));
    assert_eq!(
        backlog.check(FLOOD).map_err(|refusal| refusal.reason),
        Err(BacklogReason::Share)
    );
    assert!(backlog.check(QUIET).is_ok() && backlog.check_room().is_ok());
}

/// Even alone, an account leaves room for one that comes later.
#[test]
fn an_account_that_is_alone_is_refused_soon_after_three_quarters() {
    let backlog = backlog();
    add(&backlog, FLOOD, 750);
    assert!(delay_ms(&backlog, FLOOD).is_ok());
    add(&backlog, FLOOD, 20);
    assert_eq!(delay_ms(&backlog, FLOOD), Err(BacklogReason::Share));
    assert_eq!(delay_ms(&backlog, QUIET), Ok(0));
}

#[test]
fn accounts_that_send_alike_are_slowed_alike_and_none_is_refused_by_chance() {
    let backlog = backlog();
    let names: Vec<_> = (0..40).map(|number| format!("acct_{number}")).collect();
    names.iter().for_each(|name| add(&backlog, name, 20));
    let all: Vec<_> = names.iter().map(|name| delay_ms(&backlog, name)).collect();
    assert!(all.iter().all(|delay| *delay == all[0]), "{all:?}");
    assert!(all[0].is_ok_and(|ms| ms > 600), "{:?}", all[0]);
}

#[test]
fn at_the_bound_everybody_is_refused_and_below_it_admission_opens_again_step_by_step() {
    let backlog = backlog();
    add(&backlog, FLOOD, 999);
    assert!(backlog.check_room().is_ok());
    add(&backlog, QUIET, 1);
    for account in [FLOOD, QUIET, "acct_new"] {
        assert_eq!(delay_ms(&backlog, account), Err(BacklogReason::Full));
        assert!(backlog.check(account).is_err() && backlog.check_room().is_err());
    }
    commit(&backlog, FLOOD, 1);
    assert!(backlog.check_room().is_ok() && delay_ms(&backlog, QUIET).is_ok());
    assert_eq!(delay_ms(&backlog, FLOOD), Err(BacklogReason::Share));
    commit(&backlog, FLOOD, 299);
    let slowed = [1; 5].map(|_| {
        commit(&backlog, FLOOD, 80);
        delay_ms(&backlog, FLOOD).unwrap()
    });
    assert!(slowed.is_sorted_by(|one, next| one > next), "{slowed:?}");
    commit(&backlog, FLOOD, 100);
    assert_eq!(delay_ms(&backlog, FLOOD), Ok(0));
    assert!(backlog.is_calm());
}

#[test]
fn the_bound_on_memory_acts_like_the_one_on_time() {
    let backlog = LedgerBacklog::new(1_024, 3_600);
    backlog.set_rate(1_000_000);
    add(&backlog, FLOOD, 255);
    assert!(backlog.is_calm());
    add(&backlog, FLOOD, 345);
    // Those that the shared store has received no longer wait, but are still kept.
    backlog.accept(600);
    assert_eq!((backlog.waiting(), backlog.kept()), (0, 600));
    assert!(delay_ms(&backlog, FLOOD).is_ok_and(|ms| ms > 400));
    add(&backlog, FLOOD, 300);
    assert_eq!(delay_ms(&backlog, FLOOD), Err(BacklogReason::Share));
    add(&backlog, FLOOD, 124);
    assert_eq!(delay_ms(&backlog, QUIET), Err(BacklogReason::Full));
}

#[test]
fn the_bound_on_bytes_acts_like_the_one_on_memory() {
    let backlog = LedgerBacklog::new(1_000_000, 3_600).with_max_bytes(1_000_000);
    backlog.set_rate(1_000_000);
    let add_sized = |count: usize, bytes: u64| {
        (0..count).for_each(|_| backlog.add_bytes(bytes));
        add(&backlog, FLOOD, count);
    };
    add_sized(249, 1_000);
    assert!(backlog.is_calm());
    add_sized(1, 751_000 - 249_000);
    assert_eq!(delay_ms(&backlog, FLOOD), Err(BacklogReason::Share));
    assert!(backlog.check_room().is_ok(), "room for others");
    add_sized(1, 248_999);
    assert!(backlog.check_room().is_ok(), "a byte below the bound");
    add_sized(1, 1);
    assert!(backlog.check_room().is_err(), "at the bound");
    assert_eq!(delay_ms(&backlog, QUIET), Err(BacklogReason::Full));
    backlog.remove_bytes(751_000);
    assert!(backlog.is_calm() && backlog.check_room().is_ok());
}

#[test]
fn a_new_bound_applies_at_once() {
    let backlog = backlog();
    add(&backlog, FLOOD, 1_000);
    assert!(backlog.check_room().is_err());
    backlog.set_max_seconds(100);
    assert!(backlog.is_calm() && backlog.check_room().is_ok());
}

#[test]
fn a_refusal_names_the_time_in_which_the_backlog_halves_between_1_and_30_seconds() {
    let backlog = backlog();
    let seconds = |backlog: &LedgerBacklog| {
        let refusal = backlog.check_room().unwrap_err();
        refusal.retry_after_seconds
    };
    add(&backlog, FLOOD, 1_000);
    assert_eq!(seconds(&backlog), 5, "500 of 1 000, at 100 a second");
    add(&backlog, FLOOD, 100_000);
    assert_eq!(seconds(&backlog), 30);
    backlog.set_rate(10_000);
    assert_eq!(seconds(&backlog), 6, "51 000 above half of 100 000");
    let fast = LedgerBacklog::new(10, 10);
    fast.set_rate(10_000);
    add(&fast, FLOOD, 10);
    assert_eq!(seconds(&fast), 1);
}

#[test]
fn what_is_known_of_an_account_goes_with_its_last_ending() {
    let backlog = backlog();
    let names: Vec<_> = (0..500).map(|number| format!("acct_{number}")).collect();
    names.iter().for_each(|name| add(&backlog, name, 2));
    assert_eq!(
        (backlog.shares.counts(), backlog.shares.accounts()),
        (500, 500)
    );
    assert_eq!(backlog.shares.count_for(&names[7]), 2);
    names.iter().for_each(|name| commit(&backlog, name, 1));
    assert_eq!(backlog.shares.counts(), 500);
    names.iter().for_each(|name| commit(&backlog, name, 1));
    assert_eq!((backlog.shares.counts(), backlog.shares.accounts()), (0, 0));
    backlog.shares.remove(QUIET);
    assert_eq!(
        (backlog.shares.count_for(QUIET), backlog.shares.accounts()),
        (0, 0)
    );
}

#[test]
fn the_number_of_requests_that_wait_is_bounded_and_one_that_ends_makes_room() {
    let backlog = backlog();
    add(&backlog, QUIET, 50);
    add(&backlog, FLOOD, 500);
    let mut delayed: Vec<_> = (0..MAX_DELAYED)
        .map(|_| backlog.delay(FLOOD).unwrap().unwrap())
        .collect();
    assert_eq!(delay_ms(&backlog, FLOOD), Err(BacklogReason::Delayed));
    assert_eq!(delay_ms(&backlog, QUIET), Ok(0), "admitted without a wait");
    assert_eq!(backlog.delayed.load(Ordering::Relaxed), MAX_DELAYED);
    delayed.pop();
    assert!(delay_ms(&backlog, FLOOD).is_ok_and(|ms| ms > 0));
    drop(delayed);
    assert_eq!(backlog.delayed.load(Ordering::Relaxed), 0);
}

/// The pressure is a hint that threads write in any order, so an old one must not last.
#[test]
fn an_outdated_pressure_is_corrected_by_the_next_request() {
    let backlog = backlog();
    add(&backlog, FLOOD, 10);
    backlog.pressure.store(5_000, Ordering::Relaxed);
    assert!(!backlog.is_calm());
    assert_eq!(delay_ms(&backlog, QUIET), Ok(0));
    assert!(backlog.is_calm() && backlog.check_room().is_ok());
}

#[test]
fn each_worse_stage_is_logged_once_until_the_ledger_has_caught_up() {
    let backlog = backlog();
    let stage = || backlog.reported.load(Ordering::Relaxed);
    let mut stages = Vec::new();
    for count in [200, 100, 100, 400, 300] {
        add(&backlog, FLOOD, count);
        let _ = backlog.check(FLOOD);
        stages.push(stage());
    }
    assert_eq!(stages, [0, 1, 1, 2, 3]);
    commit(&backlog, FLOOD, 900);
    assert_eq!(stage(), 3, "still an eighth of the bound and more");
    commit(&backlog, FLOOD, 80);
    assert_eq!(stage(), 0);
}
