//! Tests of a key's spend limit and of the rate limits without a shared store: exact at every
//! moment, even during a commit of the ledger writer.

use super::*;
use credits::limits::{Period, RequestLimits, Spender};
use credits::rates::{LimitScope, RateLimitKind, RateQuota};

fn within(request: &str, bounds: RequestLimits) -> HoldRequest {
    HoldRequest {
        bounds,
        ..opening(request)
    }
}

pub(super) fn spending(limit: &str) -> RequestLimits {
    RequestLimits {
        spend: [Some(limit.parse().unwrap()), None],
        ..RequestLimits::default()
    }
}

/// A request of a member with a budget, by another key than the one of [`spending`].
fn budgeted(request: &str, limit: &str) -> HoldRequest {
    let [limit, _] = spending(limit).spend;
    HoldRequest {
        key_id: format!("key_of_{request}").into(),
        member: Some("acct_1/acct_ann".into()),
        ..within(
            request,
            RequestLimits {
                spend: [None, limit],
                ..RequestLimits::default()
            },
        )
    }
}

/// Makes a request with an id, of a payer with a spend limit.
type MakeRequest = fn(&str, &str) -> HoldRequest;

/// How a request is made for each owner of a spend limit.
const SPENDERS: [(Spender, MakeRequest); 2] = [
    (Spender::Key, |request, limit| {
        within(request, spending(limit))
    }),
    (Spender::Member, budgeted),
];

#[test]
fn a_spend_limit_of_ten_admits_exactly_ten_of_sixty_four_while_others_settle() {
    for (of, request) in SPENDERS {
        exactly_ten_of_sixty_four(of, request);
    }
}

fn exactly_ten_of_sixty_four(of: Spender, request: fn(&str, &str) -> HoldRequest) {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 1_000);
    let (quote, usage) = one_credit();
    let quote = &quote;
    let admitted: Vec<_> = std::thread::scope(|scope| {
        let try_one = |index: usize| {
            let billing = &billing;
            scope.spawn(move || {
                let asked = request(&format!("req_{index}"), "10/day");
                let hold = billing.reserve(asked, quote, true, NOW);
                // Every second request settles at once at its full price, so that held credit
                // becomes spent credit while the others run.
                let (hold, _) = hold.ok()?;
                if index.is_multiple_of(2) {
                    hold.settle(usage, RequestOutcome::Completed, false, NOW)
                        .wait_on_thread()
                        .unwrap();
                    return Some(None);
                }
                Some(Some(hold))
            })
        };
        let tries: Vec<_> = (0..64).map(try_one).collect();
        tries
            .into_iter()
            .filter_map(|tried| tried.join().unwrap())
            .collect()
    });
    assert_eq!(admitted.len(), 10);
    let refused = billing
        .reserve(request("req_more", "10/day"), quote, true, NOW)
        .err()
        .unwrap();
    assert!(
        matches!(refused, ReserveError::SpendLimit { of: by, free: Micro::ZERO, .. } if by == of),
        "{refused:?}"
    );
    let other = HoldRequest {
        key_id: "key_2".into(),
        member: Some("acct_1/acct_bob".into()),
        ..request("req_other", "10/day")
    };
    billing
        .reserve(other, quote, true, NOW)
        .unwrap()
        .0
        .release(RequestOutcome::VendorError, NOW);
    drop(admitted);
    let free = billing.reserve(request("req_free", "10/day"), quote, true, NOW);
    assert!(free.is_ok(), "what was held and not spent is free again");
    drop(free);
    billing.shut_down();
}

#[test]
fn a_limit_counts_what_was_spent_before_it_was_set_before_a_restart_and_in_its_period_alone() {
    for (name, request) in [("key_1", SPENDERS[0].1), ("acct_1/acct_ann", SPENDERS[1].1)] {
        spending_counts_in_its_period(name, request);
    }
}

fn spending_counts_in_its_period(name: &str, request: fn(&str, &str) -> HoldRequest) {
    let dir = tempfile::tempdir().unwrap();
    let (quote, usage) = one_credit();
    let day = 86_400_000;
    let billing = serving(dir.path());
    account_with(billing.billing(), 100);
    for (one, at_ms) in [("req_a", NOW - day), ("req_b", NOW), ("req_c", NOW)] {
        let unlimited = HoldRequest {
            bounds: RequestLimits::default(),
            ..request(one, "0/day")
        };
        let (hold, _) = billing.reserve(unlimited, &quote, true, at_ms).unwrap();
        hold.settle(usage, RequestOutcome::Completed, false, at_ms)
            .wait_on_thread()
            .unwrap();
    }
    let free = |billing: &CreditService, limit: &str, now_ms| match billing.reserve(
        request("req_try", limit),
        &quote,
        true,
        now_ms,
    ) {
        Ok((hold, _)) => {
            hold.abandon();
            panic!("admitted under {limit}")
        }
        Err(ReserveError::SpendLimit { free, .. }) => free.get() / 1_000_000,
        Err(other) => panic!("{other:?}"),
    };
    assert_eq!(free(&billing, "2/day", NOW), 0, "at once, settled or not");
    assert_eq!(free(&billing, "2.5/total", NOW), 0);
    billing.shut_down();
    drop(billing);

    let billing = serving(dir.path());
    assert_eq!(free(&billing, "2/day", NOW), 0);
    assert_eq!(free(&billing, "3/total", NOW), 0);
    let total = billing
        .billing()
        .key_spend(name, Period::Total, NOW)
        .unwrap();
    assert_eq!(
        (total.spent, total.used_at_ms),
        (Micro::new(3_000_000), Some(NOW))
    );
    assert_eq!(
        billing
            .billing()
            .key_spend(name, Period::Day, NOW)
            .unwrap()
            .spent,
        Micro::new(2_000_000)
    );
    assert_eq!(
        billing
            .billing()
            .key_spend(name, Period::Day, NOW + day)
            .unwrap()
            .spent,
        Micro::ZERO
    );
    let (hold, _) = billing
        .reserve(request("req_next", "1/day"), &quote, true, NOW + day)
        .unwrap();
    hold.release(RequestOutcome::VendorError, NOW + day);
    billing.shut_down();
}

#[test]
fn a_limit_that_leaves_less_than_was_asked_for_lowers_the_output_limit() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 100);
    let (quote, _) = one_credit();
    let quote = Quote {
        output_floor: 100,
        ..quote
    };
    let (hold, limit) = billing
        .reserve(within("req_a", spending("0.9/week")), &quote, false, NOW)
        .unwrap();
    assert!(
        limit < quote.output_limit && hold.amount() <= Micro::new(900_000),
        "{limit} for {}",
        hold.amount()
    );
    hold.release(RequestOutcome::VendorError, NOW);
    billing.shut_down();
}

#[test]
fn what_a_request_asked_for_is_given_back_when_it_ends_but_for_the_request_itself() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 100);
    let (quote, _) = one_credit();
    let key = RateQuota {
        requests_per_minute: 3,
        tokens_per_minute: 1_000,
        concurrent: 1,
    };
    let bounds = RequestLimits {
        key,
        tokens: 1_000,
        ..RequestLimits::default()
    };
    let ask = |request: &str| match billing.reserve(within(request, bounds), &quote, true, NOW) {
        Ok((hold, _)) => Ok(hold),
        Err(ReserveError::Limited(wait)) => Err((wait.limited, wait.whose)),
        Err(other) => panic!("{other:?}"),
    };
    for request in ["req_a", "req_b", "req_c"] {
        let hold = ask(request).unwrap();
        assert_eq!(
            hold.rate_limits().tokens.map(|meter| meter.remaining),
            Some(0)
        );
        assert_eq!(
            ask("req_x").err(),
            Some((RateLimitKind::Tokens, LimitScope::Key))
        );
        hold.release(RequestOutcome::VendorError, NOW);
    }
    assert_eq!(
        ask("req_d").err(),
        Some((RateLimitKind::Requests, LimitScope::Key))
    );
    assert_eq!(
        balance(billing.billing()),
        "100 held 0 available 100",
        "a refused request holds nothing"
    );
    let hour = NOW + 3_600_000;
    let refused = billing.reserve(within("req_e", bounds), &quote, true, hour);
    assert!(
        matches!(&refused, Err(ReserveError::Limited(wait)) if wait.limited == RateLimitKind::Requests),
        "a clock that somebody sets refills nothing"
    );
    billing.shut_down();
}
