//! A disk that refuses writes to one file: because it is full, because the system has made it
//! read-only, or because it is damaged. What does not need the file is served, nothing is lost, and
//! the gateway recovers by itself.

use crate::account::Account;
use crate::client::{self, Request};
use crate::crash::FUNDS;
use crate::strace::RefusingFiles;
use crate::surface::{BOTH, Chat, Surface};
use crate::world::{Plan, SOON, World, wait_until};

/// The files of a data directory, and whether requests are served while each of them refuses
/// writes.
const FILES: [(&str, bool); 7] = [
    ("ledger.db", false),
    ("index.db", true),
    ("holds.db", true),
    ("refused.db", true),
    ("idempotency.db", true),
    ("app.db", true),
    ("journal/", false),
];

/// Returns whether a request is answered completely. Otherwise the refusal says when to try again.
#[track_caller]
fn is_served(world: &World, account: &Account, surface: Surface) -> bool {
    let answer = world.ask(&surface.stream(&account.key, "events=4 input=10 output=4"));
    if answer.status == 200 {
        return surface.is_complete(&answer);
    }
    assert!(matches!(answer.status, 503 | 529), "{}", answer.text());
    assert!(
        answer.header("retry-after").is_some(),
        "{:?}",
        answer.headers
    );
    false
}

#[test]
fn a_file_that_refuses_writes_costs_no_debit_and_needs_no_restart() {
    let world = Plan::default().start();
    let account = world.funded(FUNDS);
    for surface in BOTH {
        let keyed = surface.whole(&account.key, "input=10 output=4");
        let keyed = keyed.header("idempotency-key", &format!("{surface:?}"));
        world.expect(200, &keyed);
    }
    // This one is in `refused.db`.
    world.expect(400, &Request::post(Chat.path(), "{").bearer(&account.key));
    for error in ["ENOSPC", "EROFS", "EIO"] {
        for (file, serves) in FILES {
            let Some(refusing) = RefusingFiles::begin(&world, file, error) else {
                return;
            };
            for surface in BOTH {
                for _ in 0..3 {
                    let served = is_served(&world, &account, surface);
                    assert!(served || !serves, "{file} {error}: {}", world.log());
                }
            }
            let keyed = Chat.whole(&account.key, "input=10 output=4");
            let keyed = keyed.header("idempotency-key", &format!("{file}-{error}"));
            let answer = world.ask(&keyed);
            assert!(
                matches!(answer.status, 200 | 503),
                "{file} {error}: {}",
                answer.text()
            );
            world.ask(&Request::post(Chat.path(), "{").bearer(&account.key));
            world.expect(200, &Request::get("/healthz"));
            assert_eq!(
                client::ask(world.admin, &Request::get("/metrics")).status,
                200
            );
            drop(refusing);
            wait_until("the gateway to serve by itself", SOON, || {
                is_served(&world, &account, Chat)
            });
            for surface in BOTH {
                world.works(surface, &account.key);
            }
        }
    }
    wait_until("the gateway to be ready", SOON, || world.is_ready());
    assert!(!world.log().contains("panic"), "{}", world.log());
    // The audit compares what is in the ledger with the journal and the receipts.
}
