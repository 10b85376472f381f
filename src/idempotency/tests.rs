//! Tests of keys when their requests end, and when their process dies.

use super::*;
use crate::billing::{CreditService, HoldRequest};
use accounts::Accounts;
use config::{Limits, Settings};
use credits::money::Micro;
use credits::pricing::{Quote, WorstCase};
use ledger::RequestOutcome;
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;
use std::path::Path;
use std::sync::Arc;

/// In the past, so that everything here is expired by the system clock.
const NOW: i64 = 1_700_000_000_000;
const SCOPE: (&str, &str, &str) = ("acct_1", "/v1/messages", "k");
const BODY: &[u8] = b"{}";

fn settings() -> Settings {
    config::parse(include_str!("../../conf/local.yaml"), &|_| None).unwrap()
}

fn billing(dir: &Path) -> CreditService {
    let settings = settings();
    let billing = CreditService::serve(dir, &settings.limits, None).unwrap();
    billing
        .billing()
        .store_prices(settings.catalog.models(), NOW)
        .unwrap();
    billing.billing().open_account("acct_1", None, NOW).unwrap();
    billing
        .billing()
        .corrections()
        .grant("acct_1", Micro::new(1_000_000_000), "first", NOW)
        .unwrap();
    billing
}

fn ask(
    service: &Idempotency,
    scope: (&str, &str, &str),
    request_id: &str,
    limits: &Limits,
) -> KeyLookupOutcome {
    // The local backend answers without waiting.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime
        .block_on(service.claim(scope, &hash_body(BODY), request_id, limits, NOW))
        .unwrap()
}

fn begin(service: &Idempotency, request_id: &str) -> KeyLookupOutcome {
    ask(service, SCOPE, request_id, &Limits::default())
}

/// The store of a process, and the service over it.
fn open(dir: &Path, billing: &CreditService) -> (Arc<EmbeddedIdempotency>, Idempotency) {
    // In a folder of its own: beside this ledger, an empty `app.db` counts as lost.
    let accounts = Accounts::open(&dir.join("accounts")).unwrap();
    let store = Arc::new(EmbeddedIdempotency::open(dir, accounts, billing.clone()).unwrap());
    let service = Idempotency::new(Arc::clone(&store) as Arc<dyn IdempotencyKeys>);
    (store, service)
}

fn resolve(service: &Idempotency, now_ms: i64) {
    IdempotencyHousekeeping::new(service.clone())
        .unwrap()
        .resolve_orphaned(&Limits::default(), now_ms)
        .unwrap();
}

/// Ends a request by `end`, and waits until its key is committed.
fn commit(service: &Idempotency, request_id: &str, end: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().build().unwrap();
    runtime.block_on(async {
        end();
        service.wait_until_committed(request_id).await;
    });
}

#[track_caller]
fn new(service: &Idempotency, request_id: &str) -> Box<IdempotencyGuard> {
    match begin(service, request_id) {
        KeyLookupOutcome::New(running) => running,
        _ => panic!("the key is in use"),
    }
}

fn hold(billing: &CreditService, request_id: &str) -> crate::billing::Hold {
    let settings = settings();
    let model = Arc::clone(&settings.catalog.models()[0]);
    let (input_price, output_price) = (model.price.input, model.price.output);
    let quote = Quote::flat(
        WorstCase {
            input_tokens: 100,
            input_price,
            output_price,
        },
        1,
        100,
        100,
    );
    let opening = HoldRequest {
        request_id: request_id.into(),
        account: "acct_1".into(),
        key_id: "key_1".into(),
        key_shown: "gw-sk-…".into(),
        member: None,
        model,
        surface: Protocol::Messages,
        bounds: Default::default(),
        conversation: None,
    };
    billing.reserve(opening, &quote, false, NOW).unwrap().0
}

#[test]
fn keys_are_visible_ascii() {
    let long = "k".repeat(255);
    for good in ["k", "a-b_c/9!~", &long] {
        assert!(is_valid_key(good.as_bytes()), "{good}");
    }
    let too_long = "k".repeat(256);
    for bad in ["", " ", "a b", "a\tb", "ü", "\u{7f}", &too_long] {
        assert!(!is_valid_key(bad.as_bytes()), "{bad}");
    }
}

#[test]
fn an_answer_is_given_again_up_to_the_cap_and_a_dropped_request_frees_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let (_, service) = open(dir.path(), &billing(dir.path()));
    let dropped = new(&service, "req_1");
    commit(&service, "req_1", || drop(dropped));
    let limits = Limits {
        idempotency_body_bytes: 10,
        ..Limits::default()
    };
    for (name, pieces, kept) in [
        ("fits", &["01234", "56789"][..], true),
        ("over", &["01234", "567890", "1"], false),
        ("none", &[], true),
    ] {
        let scope = ("acct_1", "/v1/messages", name);
        let KeyLookupOutcome::New(mut running) = ask(&service, scope, name, &limits) else {
            panic!("{name}")
        };
        running.set_headers(vec![("a".into(), "first attempt".into())]);
        running.set_headers(vec![("a".into(), "b".into())]);
        running.add_header("c", "d".into());
        pieces
            .iter()
            .for_each(|piece| running.push_body(piece.as_bytes()));
        commit(&service, name, || running.complete());
        match ask(&service, scope, "req_2", &limits) {
            KeyLookupOutcome::Done(answer) => {
                assert!(kept, "{name}");
                assert_eq!(
                    (answer.request_id.as_str(), answer.body),
                    (name, pieces.concat().into_bytes())
                );
                assert_eq!(
                    answer.headers,
                    [("a".into(), "b".into()), ("c".into(), "d".into())]
                );
            }
            KeyLookupOutcome::Unavailable => assert!(!kept, "{name}"),
            _ => panic!("{name}"),
        }
    }
    let spent = new(&service, "req_3");
    commit(&service, "req_3", || spent.mark_spent());
    assert!(matches!(
        begin(&service, "req_4"),
        KeyLookupOutcome::Unavailable
    ));
}

#[test]
fn the_ledger_decides_what_became_of_a_dead_process() {
    let dir = tempfile::tempdir().unwrap();
    let before = billing(dir.path());
    let (store, service) = open(dir.path(), &before);
    let mut left = Vec::new();
    // Requests before the hold, with a hold, debited, and ended without cost.
    for name in ["asked", "held", "debited", "voided"] {
        let scope = ("acct_1", "/v1/messages", name);
        let KeyLookupOutcome::New(running) = ask(&service, scope, name, &Limits::default()) else {
            panic!()
        };
        left.push(running);
    }
    let held = hold(&before, "held");
    let usage = Usage {
        input: 10,
        output: 10,
        ..Usage::default()
    };
    // The journal has the records in this order once the last one is written.
    hold(&before, "voided").release(RequestOutcome::VendorError, NOW);
    hold(&before, "debited")
        .settle(usage, RequestOutcome::Completed, false, NOW)
        .wait_on_thread()
        .unwrap();
    // While its journal exists, another process does not resolve its keys.
    resolve(&service, NOW);
    assert_eq!(store.db.orphaned_requests(&[]).unwrap().len(), 4);
    // Simulate the process's death: nothing is dropped, and its locks disappear with its files.
    std::mem::forget((left, held));
    std::fs::remove_file(dir.path().join("serving.lock")).unwrap();
    let instance_id = before.instance_id().to_owned();
    let journal = dir.path().join("journal").join(&instance_id);
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(&journal).unwrap().flatten() {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    std::fs::remove_dir_all(&journal).unwrap();
    std::fs::create_dir(&journal).unwrap();
    for file in std::fs::read_dir(copy.path()).unwrap().flatten() {
        std::fs::copy(file.path(), journal.join(file.file_name())).unwrap();
    }
    let next = billing(dir.path());
    let (_, service) = open(dir.path(), &next);
    resolve(&service, NOW);
    assert!(!journal.exists(), "replayed");
    for (name, spent) in [
        ("asked", false),
        ("held", false),
        ("debited", true),
        ("voided", false),
    ] {
        let outcome = ask(
            &service,
            ("acct_1", "/v1/messages", name),
            &format!("{name}-again"),
            &Limits::default(),
        );
        assert_eq!(
            matches!(outcome, KeyLookupOutcome::Unavailable),
            spent,
            "{name}"
        );
        assert_eq!(
            matches!(outcome, KeyLookupOutcome::New(_)),
            !spent,
            "{name}"
        );
    }
}
