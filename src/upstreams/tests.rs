//! Tests of endpoints without a network or a clock: which endpoint is chosen, when a breaker opens
//! and closes, and which requests are refused.

use super::breaker::{BreakerPermit, BreakerRules, BreakerState, CircuitBreaker};
use super::load_balancer::{Candidate, SmoothRoundRobin, mix_bits, select_by_hash};
use super::*;
use config::catalog::{ActiveHealthCheck, VendorEndpoint};
use llm_protocol::Protocol;

fn endpoint(host: &str, weight: u32) -> VendorEndpoint {
    VendorEndpoint {
        weight,
        ..VendorEndpoint::in_test(host)
    }
}

fn vendor(endpoints: Vec<VendorEndpoint>) -> Arc<CatalogVendor> {
    Arc::new(CatalogVendor::in_test(Protocol::Messages, endpoints))
}

fn three() -> Arc<EndpointPool> {
    EndpointRegistry::default().pool_for(&vendor(
        ["a", "b", "c"].map(|host| endpoint(host, 1)).to_vec(),
    ))
}

fn limits() -> Limits {
    Limits {
        breaker_failures: 3,
        cool_down_probe_seconds: 0,
        ..Limits::default()
    }
}

fn any() -> EndpointQuery<'static> {
    EndpointQuery {
        model: "m",
        key: None,
        has_instead: false,
        has_waited: false,
        tried: &[],
    }
}

fn of_key(key: u64) -> EndpointQuery<'static> {
    EndpointQuery {
        key: Some(key),
        ..any()
    }
}

fn index(pool: &EndpointPool, query: EndpointQuery<'_>, now: Instant) -> usize {
    pool.choose(query, now).map(|lease| lease.index).unwrap()
}

fn fail(pool: &EndpointPool, index: usize, times: usize, now: Instant) {
    let others: Vec<_> = (0..pool.endpoints.len())
        .filter(|other| *other != index)
        .collect();
    for _ in 0..times {
        pool.choose(
            EndpointQuery {
                tried: &others,
                ..any()
            },
            now,
        )
        .unwrap()
        .record_failure(&limits(), now);
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn turns_are_smooth_and_exact() {
    let weights = [(0, 5), (1, 1), (2, 1)].map(|(index, weight)| Candidate {
        index,
        weight,
        seed: 0,
    });
    let mut turns = SmoothRoundRobin::default();
    let order: Vec<_> = (0..7).map(|_| turns.next(&weights).unwrap()).collect();
    assert_eq!(order, [0, 0, 1, 0, 2, 0, 0]);
    let mut counts = [0; 3];
    for _ in 0..700 {
        counts[turns.next(&weights).unwrap()] += 1;
    }
    assert_eq!(counts, [500, 100, 100]);
    assert_eq!(turns.next(&[]), None);
}

#[test]
fn every_endpoint_gets_its_share_of_the_conversations() {
    let candidates = [(0, 6), (1, 3), (2, 1)].map(|(index, weight)| Candidate {
        index,
        weight,
        seed: mix_bits(index as u64),
    });
    let mut counts = [0_u32; 3];
    for key in 0..10_000 {
        counts[select_by_hash(mix_bits(key), &candidates).unwrap()] += 1;
    }
    for (count, expected) in counts.into_iter().zip([6_000_u32, 3_000, 1_000]) {
        assert!(count.abs_diff(expected) < 250, "{counts:?}");
    }
    assert_eq!(select_by_hash(1, &[]), None);
}

/// A conversation moves only if its own endpoint fails, and returns with it.
#[test]
fn the_loss_of_an_endpoint_moves_its_own_conversations_alone() {
    let (pool, now) = (three(), Instant::now());
    let before: Vec<_> = (0..300)
        .map(|key| index(&pool, of_key(mix_bits(key)), now))
        .collect();
    assert!(
        (0..3).all(|endpoint| before.iter().filter(|chosen| **chosen == endpoint).count() > 60),
        "{before:?}"
    );
    fail(&pool, 1, 3, now);
    let without: Vec<_> = (0..300)
        .map(|key| index(&pool, of_key(mix_bits(key)), now))
        .collect();
    for (key, (before, without)) in before.iter().zip(&without).enumerate() {
        assert!(
            *without != 1 && (*before == 1 || before == without),
            "{key}: {before} {without}"
        );
    }
    let later = now + Duration::from_secs(60);
    // One of the endpoint's own conversations tries it and succeeds.
    let own = before.iter().position(|chosen| *chosen == 1).unwrap() as u64;
    let mut probe = pool.choose(of_key(mix_bits(own)), later).unwrap();
    assert_eq!(probe.index, 1);
    probe.record_response("m", now);
    let after: Vec<_> = (0..300)
        .map(|key| index(&pool, of_key(mix_bits(key)), later))
        .collect();
    assert_eq!(after, before);
}

#[test]
fn a_breaker_opens_lets_one_request_try_and_closes() {
    let (pool, now) = (three(), Instant::now());
    let only_a = EndpointQuery {
        tried: &[1, 2],
        ..any()
    };
    let state = |at| pool.endpoints[0].state(&pool.key, at).breaker;
    fail(&pool, 0, 2, now);
    assert_eq!(state(now), "closed");
    pool.choose(only_a, now)
        .unwrap()
        .record_success(&limits(), now);
    fail(&pool, 0, 2, now);
    assert_eq!(state(now), "closed", "a success in between ends the row");
    fail(&pool, 0, 1, now);
    assert_eq!(state(now), "open");
    assert!((0..30).all(|_| index(&pool, any(), now) != 0));
    // The random extra time is at most a quarter.
    let later = now + 7 * SECOND;
    let (mut probes, mut others) = (Vec::new(), 0);
    for _ in 0..30 {
        match pool.choose(any(), later).unwrap() {
            lease if lease.index == 0 => probes.push(lease),
            _ => others += 1,
        }
    }
    assert_eq!((probes.len(), others, state(later)), (1, 29, "half_open"));
    // After a probe without a verdict, the next request may try.
    drop(probes);
    assert_eq!(pool.endpoints[0].state(&pool.key, later).breaker, "open");
    let probe = std::iter::repeat_with(|| pool.choose(any(), later).unwrap())
        .take(5)
        .find(|lease| lease.index == 0);
    probe
        .expect("another probe")
        .record_success(&limits(), later);
    assert_eq!(state(later), "closed");
}

#[test]
fn an_open_breaker_stays_open_longer_each_time_and_never_past_its_most() {
    let rules = BreakerRules {
        open: SECOND,
        open_max: 10 * SECOND,
        ..BreakerRules::from_limits(&limits())
    };
    let mut now = Instant::now();
    let mut breaker = CircuitBreaker::new(7);
    for _ in 0..3 {
        breaker.record_failure(&rules, now);
    }
    for seconds in [1, 2, 4, 8, 10, 10] {
        let BreakerState::Open(until) = breaker.state() else {
            panic!("{:?}", breaker.state())
        };
        let open = until - now;
        assert!(
            open >= seconds * SECOND && open < seconds * SECOND * 5 / 4,
            "{seconds}: {open:?}"
        );
        assert_eq!(
            breaker.permit(until - Duration::from_millis(1)),
            BreakerPermit::Blocked(Some(until))
        );
        now = until;
        assert_eq!(breaker.permit(now), BreakerPermit::Probe);
        breaker.begin_probe();
        assert!(breaker.record_failure(&rules, now));
    }
}

/// A stream that began before the breaker opened, and succeeds afterwards, changes nothing.
#[test]
fn what_began_before_a_breaker_opened_does_not_close_it() {
    let (pool, now) = (three(), Instant::now());
    let only_a = EndpointQuery {
        tried: &[1, 2],
        ..any()
    };
    let mut old = pool.choose(only_a, now).unwrap();
    fail(&pool, 0, 3, now + SECOND);
    old.record_response("m", now);
    old.record_success(&limits(), now + 2 * SECOND);
    assert_eq!(pool.endpoints[0].state(&pool.key, now).breaker, "open");
    pool.choose(only_a, now + 2 * SECOND)
        .unwrap()
        .record_success(&limits(), now + 2 * SECOND);
    assert_eq!(pool.endpoints[0].state(&pool.key, now).breaker, "closed");
}

#[test]
fn failures_that_are_too_large_a_part_open_it_too() {
    let rules = BreakerRules {
        failures: 1_000,
        percent: 50,
        window_requests: 20,
        ..BreakerRules::from_limits(&limits())
    };
    let now = Instant::now();
    let mut breaker = CircuitBreaker::new(7);
    for turn in 0..19 {
        match turn % 2 {
            0 => assert!(
                !breaker.record_failure(&rules, now),
                "{turn}: too few to judge"
            ),
            _ => breaker.record_success(&rules, now, now),
        }
    }
    assert!(breaker.record_failure(&rules, now));
    // Failures of an earlier window do not count, and 0 disables the breaker.
    let mut breaker = CircuitBreaker::new(7);
    for turn in 0..100 {
        assert!(
            !breaker.record_failure(&rules, now + 2 * turn * SECOND),
            "{turn}"
        );
    }
    let off = BreakerRules {
        failures: 0,
        ..rules
    };
    let mut breaker = CircuitBreaker::new(7);
    assert!((0..100).all(|_| !breaker.record_failure(&off, now)));
}

#[test]
fn where_every_breaker_is_open_the_least_bad_is_tried() {
    let (pool, now) = (three(), Instant::now());
    for (index, at) in [(0, 2), (1, 0), (2, 1)] {
        fail(&pool, index, 3, now + at * SECOND / 100);
    }
    let now = now + SECOND;
    assert_eq!(index(&pool, any(), now), soonest(&pool));
    assert_eq!(index(&pool, of_key(9), now), soonest(&pool));
    // A failure changes no breaker, but a success closes it.
    let before = soonest(&pool);
    let mut lease = pool.choose(any(), now).unwrap();
    lease.record_failure(&limits(), now);
    assert_eq!(soonest(&pool), before);
    pool.choose(any(), now).unwrap().record_response("m", now);
    assert_eq!(
        pool.endpoints[before].state(&pool.key, now).breaker,
        "closed"
    );
}

fn soonest(pool: &EndpointPool) -> usize {
    let until = |index: &usize| match lock(&pool.endpoints[*index].health).breaker.state() {
        BreakerState::Open(until) => until,
        other => panic!("{other:?}"),
    };
    (0..pool.endpoints.len()).min_by_key(until).unwrap()
}

#[test]
fn an_endpoint_that_asked_for_it_is_left_alone_with_that_model() {
    let (pool, now) = (three(), Instant::now());
    for index in 0..3 {
        let others: Vec<_> = (0..3).filter(|other| *other != index).collect();
        let lease = pool
            .choose(
                EndpointQuery {
                    tried: &others,
                    ..any()
                },
                now,
            )
            .unwrap();
        let why = if index == 0 {
            CoolDownReason::Overloaded
        } else {
            CoolDownReason::RateLimited
        };
        lease.cool_down(
            "m",
            why,
            SECOND * (10 - u32::try_from(index).unwrap()),
            &limits(),
            now,
        );
    }
    let refused = pool.choose(any(), now).err();
    assert_eq!(
        refused,
        Some(EndpointUnavailable::Cooling {
            why: CoolDownReason::RateLimited,
            left: 8 * SECOND
        })
    );
    assert!(!pool.has_available(any(), now));
    assert!(
        pool.choose(
            EndpointQuery {
                model: "n",
                ..any()
            },
            now
        )
        .is_ok(),
        "another model is not meant"
    );
    assert_eq!(index(&pool, any(), now + 8 * SECOND), 2);
    // A vendor that asks for an hour gets the configured maximum.
    let lease = pool
        .choose(
            EndpointQuery {
                model: "n",
                tried: &[1, 2],
                ..any()
            },
            now,
        )
        .unwrap();
    lease.cool_down(
        "n",
        CoolDownReason::RateLimited,
        SECOND * 3_600,
        &limits(),
        now,
    );
    let only_a = EndpointQuery {
        model: "n",
        tried: &[1, 2],
        ..any()
    };
    assert!(pool.choose(only_a, now + 59 * SECOND).is_err());
    assert!(pool.choose(only_a, now + 60 * SECOND).is_ok());
}

/// Pauses the endpoint that a request would use, for a minute, with a probe each second.
fn cool(pool: &EndpointPool, now: Instant) {
    let lease = pool.choose(any(), now).unwrap();
    lease.cool_down(
        "m",
        CoolDownReason::RateLimited,
        SECOND * 60,
        &Limits::default(),
        now,
    );
}

#[test]
fn while_nobody_else_can_be_asked_one_request_a_second_tries_an_endpoint_that_asked_to_be_left_alone()
 {
    let (pool, now) = (
        EndpointRegistry::default().pool_for(&vendor(vec![endpoint("a", 1)])),
        Instant::now(),
    );
    let mut before = pool.choose(any(), now).unwrap();
    cool(&pool, now + SECOND);
    let left = |after: u32| pool.choose(any(), now + SECOND * after).err();
    let cooling = |left: u32| {
        Some(EndpointUnavailable::Cooling {
            why: CoolDownReason::RateLimited,
            left: SECOND * left,
        })
    };
    assert_eq!(left(1), cooling(60));
    assert_eq!(left(2), None, "the first one tries");
    assert_eq!(left(2), cooling(59), "and no other");
    before.record_response("m", now);
    assert_eq!(left(2), cooling(59), "what began before says nothing");
    let mut probe = pool.choose(any(), now + 3 * SECOND).unwrap();
    probe.record_response("n", now);
    assert_eq!(left(3), cooling(58), "of another model");
    probe.record_response("m", now);
    assert!(
        (0..20).all(|_| left(3).is_none()),
        "it answers: all are let through"
    );
}

#[test]
fn an_endpoint_that_asked_to_be_left_alone_is_left_alone_while_another_is_well() {
    let (pool, now) = (
        EndpointRegistry::default()
            .pool_for(&vendor(["a", "b"].map(|host| endpoint(host, 1)).to_vec())),
        Instant::now(),
    );
    cool(&pool, now);
    assert!((1..50).all(|after| index(&pool, any(), now + SECOND * after) == 1));
    // The other endpoint has failed often, so once per second the paused one is the better choice.
    fail(&pool, 1, 3, now + 50 * SECOND);
    assert_eq!(index(&pool, any(), now + 51 * SECOND), 0);
    assert_eq!(index(&pool, any(), now + 51 * SECOND), 1);
}

#[test]
fn a_probe_takes_no_place_that_there_is_not() {
    let full = VendorEndpoint {
        max_concurrent: Some(1),
        ..endpoint("a", 1)
    };
    let (pool, now) = (
        EndpointRegistry::default().pool_for(&vendor(vec![full])),
        Instant::now(),
    );
    cool(&pool, now);
    let probe = pool.choose(any(), now + SECOND).unwrap();
    assert!(matches!(
        pool.choose(any(), now + 2 * SECOND).err(),
        Some(EndpointUnavailable::Cooling { .. })
    ));
    drop(probe);
    assert!(
        pool.has_available(any(), now + 2 * SECOND) && pool.choose(any(), now + 2 * SECOND).is_ok()
    );
}

#[test]
fn what_is_shut_is_not_tried_where_another_model_can_be_asked() {
    let (pool, now) = (
        EndpointRegistry::default().pool_for(&vendor(vec![endpoint("a", 1)])),
        Instant::now(),
    );
    fail(&pool, 0, 3, now);
    assert!(pool.choose(any(), now).is_ok(), "for want of better");
    assert_eq!(
        pool.choose(
            EndpointQuery {
                has_instead: true,
                ..any()
            },
            now
        )
        .err(),
        Some(EndpointUnavailable::Tried)
    );
    // A request still finds out whether the endpoint works again.
    assert!(
        pool.choose(
            EndpointQuery {
                has_instead: true,
                ..any()
            },
            now + 3_600 * SECOND
        )
        .is_ok()
    );
}

#[test]
fn as_many_requests_run_at_an_endpoint_as_may() {
    let mut listed = ["a", "b"].map(|host| endpoint(host, 1)).to_vec();
    listed
        .iter_mut()
        .for_each(|endpoint| endpoint.max_concurrent = Some(2));
    let (registry, now) = (EndpointRegistry::default(), Instant::now());
    let pool = registry.pool_for(&vendor(listed.clone()));
    let mut leases: Vec<_> = (0..4)
        .map(|_| pool.choose(of_key(5), now).unwrap())
        .collect();
    let at = |index| leases.iter().filter(|lease| lease.index == index).count();
    assert_eq!((at(0), at(1)), (2, 2));
    assert_eq!(
        pool.choose(of_key(5), now).err(),
        Some(EndpointUnavailable::Full)
    );
    // A reload keeps the count of running requests.
    let reloaded = registry.pool_for(&vendor(listed));
    assert_eq!(
        reloaded.choose(any(), now).err(),
        Some(EndpointUnavailable::Full)
    );
    leases.pop();
    assert!(reloaded.choose(any(), now).is_ok());
    drop(leases);
    assert!(
        registry
            .states(now)
            .iter()
            .all(|state| state.in_flight == 0)
    );
}

#[test]
fn an_endpoint_that_fails_its_checks_is_not_asked_while_another_passes() {
    let check = ActiveHealthCheck {
        path: "/".into(),
        interval: SECOND,
        timeout: SECOND,
        passes_after: 1,
        fails_after: 1,
    };
    let listed = ["a", "b"].map(|host| VendorEndpoint {
        health_check: Some(check.clone()),
        ..endpoint(host, 1)
    });
    let (registry, now) = (EndpointRegistry::default(), Instant::now());
    let pool = registry.pool_for(&vendor(listed.to_vec()));
    pool.set_health_check_result(0, false);
    assert!((0..10).all(|_| index(&pool, any(), now) == 1));
    pool.set_health_check_result(1, false);
    assert!(
        pool.choose(any(), now).is_ok(),
        "nobody is refused for that"
    );
    // A config without health checks ignores their earlier results.
    let unchecked = registry.pool_for(&vendor(["a", "b"].map(|host| endpoint(host, 1)).to_vec()));
    assert!(
        unchecked
            .endpoints
            .iter()
            .all(|track| track.state(&unchecked.key, now).passes_checks)
    );
}

/// Makes the vendor refuse the key of this request.
fn refuse(pool: &EndpointPool, query: EndpointQuery<'_>, now: Instant) -> bool {
    pool.choose(query, now)
        .unwrap()
        .record_refused_key(&limits(), now)
}

fn instead() -> EndpointQuery<'static> {
    EndpointQuery {
        has_instead: true,
        ..any()
    }
}

#[test]
fn a_refused_key_shuts_all_endpoints_at_once_where_another_model_can_be_asked() {
    let (pool, now) = (three(), Instant::now());
    assert!(refuse(&pool, instead(), now), "that is news");
    assert_eq!(
        pool.choose(instead(), now).err(),
        Some(EndpointUnavailable::Tried)
    );
    assert!(pool.choose(any(), now).is_ok(), "for want of better");
    assert!(!refuse(&pool, any(), now), "that is known");
    // Of many requests after the open time, only one tries. Each further opening lasts longer.
    let later = now + 7 * SECOND;
    let probe = pool.choose(instead(), later).unwrap();
    assert!((0..5).all(|_| pool.choose(instead(), later).is_err()));
    let mut probe = probe;
    assert!(probe.record_refused_key(&limits(), later));
    drop(probe);
    assert!(pool.choose(instead(), later + 9 * SECOND).is_err());
    let last = later + 13 * SECOND;
    pool.choose(instead(), last)
        .unwrap()
        .record_response("m", now);
    assert!((0..9).all(|_| pool.choose(instead(), last).is_ok()));
}

#[test]
fn a_probe_that_comes_to_nothing_leaves_the_key_to_the_next() {
    let (pool, now) = (three(), Instant::now());
    refuse(&pool, instead(), now);
    let later = now + 7 * SECOND;
    drop(pool.choose(instead(), later).unwrap());
    assert!(pool.choose(instead(), later).is_ok());
}

#[test]
fn an_endpoint_that_takes_the_key_opens_the_others_but_for_the_one_that_refused_it() {
    let (pool, now) = (three(), Instant::now());
    refuse(
        &pool,
        EndpointQuery {
            tried: &[1, 2],
            ..any()
        },
        now,
    );
    pool.choose(
        EndpointQuery {
            tried: &[0],
            ..any()
        },
        now,
    )
    .unwrap()
    .record_response("m", now);
    let chosen: Vec<_> = (0..6).map(|_| index(&pool, instead(), now)).collect();
    assert!(
        chosen.contains(&1) && chosen.contains(&2) && !chosen.contains(&0),
        "{chosen:?}"
    );
}

#[test]
fn another_key_is_tried_at_once_and_the_same_one_is_not() {
    let (registry, now) = (EndpointRegistry::default(), Instant::now());
    let of = |key: &str| {
        let api_key = config::catalog::Secret::new(key.to_owned());
        Arc::new(CatalogVendor {
            api_key,
            ..CatalogVendor::in_test(Protocol::Chat, vec![endpoint("a", 1), endpoint("b", 1)])
        })
    };
    refuse(&registry.pool_for(&of("old")), instead(), now);
    assert!(
        registry
            .pool_for(&of("old"))
            .choose(instead(), now)
            .is_err(),
        "a reload of something else"
    );
    let pool = registry.pool_for(&of("new"));
    assert!((0..4).all(|_| pool.choose(instead(), now).is_ok()));
}

#[test]
fn where_breakers_are_off_a_refused_key_shuts_nothing() {
    let (pool, now) = (three(), Instant::now());
    let limits = Limits {
        breaker_failures: 0,
        ..limits()
    };
    assert!(
        !pool
            .choose(any(), now)
            .unwrap()
            .record_refused_key(&limits, now)
    );
    assert!(pool.choose(instead(), now).is_ok());
}

mod budget {
    use super::super::budget::{RetryAllowance, RetryBudget};
    use super::SECOND;
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    const USUAL: RetryAllowance = RetryAllowance {
        percent: 20,
        min: 3,
    };

    fn take(budget: &mut RetryBudget, times: usize, now: Instant) -> usize {
        (0..times).filter(|_| budget.try_take(USUAL, now)).count()
    }

    #[test]
    fn a_few_repeats_are_always_allowed_and_then_a_part_of_the_requests() {
        let (mut budget, now) = (RetryBudget::default(), Instant::now());
        assert_eq!(take(&mut budget, 10, now), 3);
        (0..100).for_each(|_| budget.count_request(now));
        assert!(budget.has_left(USUAL, now));
        assert_eq!(take(&mut budget, 100, now), 17, "20 of 100");
        assert!(!budget.has_left(USUAL, now));
    }

    #[test]
    fn what_is_ten_seconds_old_counts_no_more() {
        let (mut budget, now) = (RetryBudget::default(), Instant::now());
        (0..100).for_each(|_| budget.count_request(now));
        assert_eq!(take(&mut budget, 100, now), 20);
        assert_eq!(take(&mut budget, 100, now + 9 * SECOND), 0);
        assert_eq!(
            take(&mut budget, 100, now + 10 * SECOND),
            3,
            "the requests have gone as well"
        );
        assert_eq!(take(&mut budget, 100, now + 1_000 * SECOND), 3);
    }

    proptest! {
        /// For any sequence of requests and retries, no window of ten seconds contains more retries
        /// than are allowed.
        #[test]
        fn no_window_holds_more_repeats_than_are_allowed(steps in prop::collection::vec((0_u64..1_500, any::<bool>()), 1..400)) {
            let (mut budget, began) = (RetryBudget::default(), Instant::now());
            let (mut at_ms, mut requests, mut repeats) = (0, Vec::new(), Vec::new());
            budget.count_request(began);
            requests.push(0);
            for (gap_ms, is_request) in steps {
                at_ms += gap_ms;
                let now = began + Duration::from_millis(at_ms);
                if is_request {
                    budget.count_request(now);
                    requests.push(at_ms / 1_000);
                } else if budget.try_take(USUAL, now) {
                    repeats.push(at_ms / 1_000);
                    let current = at_ms / 1_000;
                    let within = |seconds: &[u64]| seconds.iter().filter(|second| current < *second + 10).count();
                    prop_assert!(within(&repeats) <= 3.max(within(&requests) / 5));
                }
            }
        }
    }
}

#[test]
fn few_requests_find_out_at_once_whether_the_vendor_takes_the_key() {
    let (pool, now) = (three(), Instant::now());
    let mut first: Vec<_> = (0..vendor_key::MAX_UNCONFIRMED)
        .map(|_| pool.choose(instead(), now).unwrap())
        .collect();
    let next = || pool.choose(instead(), now);
    assert_eq!(next().err(), Some(EndpointUnavailable::KeyUnconfirmed));
    assert!(
        pool.choose(any(), now).is_ok(),
        "one that has no other model does not wait"
    );
    let waited = EndpointQuery {
        has_waited: true,
        ..instead()
    };
    assert!(pool.choose(waited, now).is_ok(), "nor one that has waited");
    // A request that ends without a verdict frees its slot for another.
    drop(first.pop());
    first.push(next().unwrap());
    assert_eq!(next().err(), Some(EndpointUnavailable::KeyUnconfirmed));
    first[0].record_response("m", now);
    assert!((0..50).all(|_| next().is_ok()));
}

#[tokio::test]
async fn a_request_waits_for_the_verdict_on_the_key_and_no_longer() {
    let (pool, now) = (three(), Instant::now());
    let mut first: Vec<_> = (0..vendor_key::MAX_UNCONFIRMED)
        .map(|_| pool.choose(instead(), now).unwrap())
        .collect();
    pool.wait_for_key(Duration::from_millis(20)).await;
    assert_eq!(
        pool.choose(instead(), now).err(),
        Some(EndpointUnavailable::KeyUnconfirmed),
        "nothing came"
    );
    let waiting = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { pool.wait_for_key(Duration::from_secs(600)).await }
    });
    tokio::task::yield_now().await;
    assert!(first[0].record_refused_key(&limits(), now));
    waiting.await.unwrap();
    assert_eq!(
        pool.choose(instead(), now).err(),
        Some(EndpointUnavailable::Tried),
        "the key is refused"
    );
}
