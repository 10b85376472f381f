//! Tests a panic inside the gateway: the gateway answers the request with an error in the format of
//! its surface, releases the hold, bills nothing, writes one log line that names the request, and
//! counts the panic in the metric. Other requests are served as before.

use crate::account::micro;
use crate::client::Answer;
use crate::surface::{BOTH, INTERNAL_ERROR, Surface};
use crate::world::{Plan, World};

/// Points at which the gateway panics, and whether the client already has the head of a stream
/// then.
const POINTS: [(&str, bool); 4] = [
    ("after_auth", false),
    ("after_reserve", false),
    ("vendor_answered", false),
    ("mid_stream", true),
];

fn panics(world: &World) -> String {
    let text = world.metrics();
    let line = text
        .lines()
        .find(|line| line.starts_with("gateway_panics_total "))
        .expect("the metric");
    line.rsplit(' ').next().unwrap().to_owned()
}

fn panicking(fail: &str) -> World {
    Plan::default().environment("GW_FAIL", fail).start()
}

fn ask(world: &World, surface: Surface, key: &str, streams: bool) -> Answer {
    let marker = "events=20 gap_ms=5 output=20";
    let request = if streams {
        surface.stream(key, marker)
    } else {
        surface.whole(key, marker)
    };
    // Pingora counts the interim answer as a response that has begun.
    world.ask(&request.header("expect", "100-continue"))
}

#[test]
fn a_panic_is_answered_logged_and_counted_and_reserves_nothing() {
    for (point, streams) in POINTS {
        let world = panicking(&format!("panics@{point}:{}", BOTH.len()));
        let account = world.account();
        for (surface, before) in BOTH.into_iter().zip(0..) {
            assert_eq!(panics(&world), before.to_string());
            let failed = ask(&world, surface, &account.key, streams);
            if streams {
                assert_eq!(failed.status, 200, "{point}: {}", failed.text());
                assert!(
                    failed.has(surface.error_frame()),
                    "{point}: {}",
                    failed.text()
                );
            } else {
                surface.fails_as(&failed, INTERNAL_ERROR);
            }
            let log = world.log();
            let lines: Vec<_> = log
                .lines()
                .filter(|line| line.contains("panic in"))
                .collect();
            assert_eq!(lines.len(), before + 1, "{log}");
            assert!(
                lines[before].contains(&failed.request_id()),
                "{}",
                lines[before]
            );
            assert_eq!(panics(&world), lines.len().to_string());
            let standing = world.standing(&account);
            assert_eq!(
                (standing.balance, standing.held),
                (300_000_000, 0),
                "{point}"
            );
            assert!(world.metrics().contains("\ngateway_open_holds 0\n"));
        }
        // The next requests meet no fault.
        for surface in BOTH {
            let next = ask(&world, surface, &account.key, streams);
            assert!(
                next.status == 200 && !next.has(surface.error_frame()),
                "{point}: {}",
                next.text()
            );
        }
        // A request that fails before it is in the journal leaves no entry.
        let entries = if point.starts_with("after_") { 2 } else { 4 };
        assert!(micro(&world.ended(&account, entries)["credits"]) > 0);
    }
}

/// A panic ends only its own request: another stream of the same gateway completes.
#[test]
fn a_panic_does_not_cut_another_stream() {
    let world = panicking("panic@vendor_answered:2");
    let account = world.account();
    let surface = Surface::Chat;
    let (mut other, mut answer) = world.begin(&surface.stream(&account.key, "events=50 gap_ms=20"));
    let failed = ask(&world, surface, &account.key, false);
    assert_eq!(failed.status, 500, "{}", failed.text());
    surface.completes(&mut other, &mut answer);
}
