//! Tests page requests that an edge forwards to a sidecar which closes the connection or does not
//! answer: which requests the edge retries, and which it must not retry.

use crate::client::Request;
use crate::world::{Plan, SOON, World, wait_for};
use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What the fake sidecar does after it has read a request.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Close,
    Nothing,
}

/// Starts an edge, kills its sidecar, and puts a fake sidecar at the same address that counts
/// requests.
fn with_a_false_sidecar(does: Does) -> (World, Arc<AtomicUsize>) {
    let mut world = Plan::default()
        .limit("first_byte_seconds", 1)
        .limit("idle_seconds", 1)
        .shared()
        .start();
    let sidecar = &mut world.beside.as_mut().unwrap().sidecar;
    sidecar.kill();
    let listener = wait_for("the sidecar's address", SOON, || {
        TcpListener::bind(("127.0.0.1", sidecar.sidecar)).ok()
    });
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
    // The thread ends with the test process.
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for mut client in listener.incoming().flatten() {
            let mut piece = [0; 16_384];
            if client.read(&mut piece).is_ok_and(|got| got > 0) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            if does == Does::Nothing {
                silent.push(client);
            }
        }
    });
    (world, asked)
}

/// Ends the world without the ledger checks, because the fake sidecar has the sidecar's address.
fn end(mut world: World) {
    world.leave();
    world.beside.as_mut().unwrap().sidecar.forget();
}

#[test]
fn a_page_that_broke_off_is_asked_for_once_more_and_a_change_is_not() {
    let (world, asked) = with_a_false_sidecar(Does::Close);
    let count = |request: &Request| {
        let before = asked.load(Ordering::Relaxed);
        let answer = world.ask(request);
        assert!(answer.status >= 500, "{}", answer.text());
        asked.load(Ordering::Relaxed) - before
    };
    assert_eq!(count(&Request::get("/docs")), 2);
    assert_eq!(count(&Request::new("HEAD", "/docs")), 2);
    assert_eq!(
        count(&Request::form(
            "/dashboard/sign-in",
            "email=a@example.test&password=a+long+password"
        )),
        1
    );
    end(world);
}

#[test]
fn a_page_that_takes_its_time_is_not_asked_for_again() {
    let (world, asked) = with_a_false_sidecar(Does::Nothing);
    for (number, request) in [
        Request::get("/docs"),
        Request::form("/dashboard/sign-in", "email=a"),
    ]
    .iter()
    .enumerate()
    {
        let answer = world.ask(request);
        assert!(answer.status >= 500, "{}", answer.text());
        assert_eq!(asked.load(Ordering::Relaxed), number + 1);
    }
    // The edge does not retry later either.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    end(world);
}
