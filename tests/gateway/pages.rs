//! Pages on their way through an edge to a sidecar that breaks off or says nothing: when they are
//! asked for again, and when not.

use crate::client::Request;
use crate::world::{Plan, SOON, World, wait_for};
use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What a false sidecar does once it was asked.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Close,
    Nothing,
}

/// An edge whose sidecar has gone, and in whose place something else counts the questions.
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
    // It ends with the test's process.
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

/// The sidecar's address is another's now: what is asked of the books is asked of the store.
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
    // Nor later.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    end(world);
}
