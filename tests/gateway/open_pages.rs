//! Pages need no key. The gateway limits how many are open and how long their bodies take. A client
//! that opens as many as possible harms neither clients with a key nor the admin listener.

use crate::bystander::{Bystander, StopOnDrop};
use crate::client::{self, Answer, Connection, Request};
use crate::h2::{ACK, END_HEADERS, Fields, H2, HEADERS, SETTINGS, block, field};
use crate::surface::Chat;
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The pages that each connection requests at first, and every two seconds after that.
const STREAMS: u32 = 100;
const MORE_STREAMS: u32 = 8;

fn sign_in() -> Fields {
    vec![
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", "/dashboard/sign-in"),
        field(":authority", "gateway.test"),
        field("content-type", "application/x-www-form-urlencoded"),
    ]
}

/// Requests a page on each stream of a connection, without sending the body, again and again until
/// `stop`.
fn hold_pages(world: &World, stop: &AtomicBool, refused: &AtomicUsize) {
    let header = block(&sign_in());
    while !stop.load(Ordering::Relaxed) {
        let mut h2 = H2::open(world.edge);
        h2.0.set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let (mut next, mut streams) = (1, STREAMS);
        'connection: while !stop.load(Ordering::Relaxed) {
            for _ in 0..std::mem::replace(&mut streams, MORE_STREAMS) {
                if !h2.send(HEADERS, END_HEADERS, next, &header) {
                    break 'connection;
                }
                next += 2;
            }
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(2) && !stop.load(Ordering::Relaxed) {
                match h2.frame() {
                    Some((SETTINGS, flags, ..)) if flags & ACK == 0 => {
                        h2.send(SETTINGS, ACK, 0, b"");
                    }
                    Some((HEADERS, ..)) => {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn pages_that_are_asked_for_without_a_body_take_nothing_from_whoever_has_a_key() {
    let (connections, files) = if crate::is_long() {
        (130, 20_000)
    } else {
        (8, 512)
    };
    let world = Plan::default().open_files(files).start();
    let bystander = Bystander::new(&world);
    let before = world.open_files();
    let (stop, refused_pages, most_files) = (
        AtomicBool::new(false),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    std::thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| hold_pages(&world, &stop, &refused_pages));
        }
        let _stop = StopOnDrop(&stop);
        wait_until("the first page to be refused", SOON, || {
            refused_pages.load(Ordering::Relaxed) > 0
        });
        bystander.endures(
            &world,
            &format!("{connections} connections that ask for pages"),
            |number| {
                most_files.fetch_max(world.open_files(), Ordering::Relaxed);
                if number % 20 == 0 {
                    for page in ["/healthz", "/readyz", "/metrics"] {
                        let answer = client::try_ask(world.admin, &Request::get(page));
                        assert_eq!(
                            answer.map(|answer| answer.status),
                            Some(200),
                            "{page} on the admin listener"
                        );
                    }
                    assert!(world.metric("gateway_pages_open", &[]) <= 64.0);
                }
            },
        );
    });
    let most = most_files.into_inner();
    println!("{refused_pages:?} pages refused, {before} to {most} files");
    // One file for each connection, and a few for requests to the vendor. An open page needs no
    // file of its own.
    assert!(
        most <= before + connections + 40,
        "{before} files before, {most} during the attack"
    );
    assert!(world.metric("gateway_rejected_total", &["reason=\"pages_per_address\""]) > 0.0);
    world.wait_metric("gateway_pages_open", &[], 0.0);
    wait_until("all files to be closed", SOON, || {
        world.open_files() <= before + 4
    });
    world.expect(200, &Request::get("/docs"));
}

/// Sends the header of a page's request but not its body, so the page stays open.
fn open_page(world: &World) -> Connection {
    let mut connection = world.connect();
    connection.send(&Request::form("/dashboard/sign-in", "email=a").head());
    connection
}

fn wait_open(world: &World, count: f64) {
    wait_until("the pages to be open", SOON, || {
        world.metric("gateway_pages_open", &[]) == count
    });
}

#[track_caller]
fn is_refused(answer: &Answer, status: u16, reason: &str, world: &World) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert!(answer.header("retry-after").is_some());
    answer.request_id();
    assert!(
        world.metric("gateway_rejected_total", &[&format!("reason=\"{reason}\"")]) > 0.0,
        "{reason}"
    );
}

#[test]
fn pages_are_bounded_in_all_and_per_address_and_refused_as_a_page_or_in_json() {
    for (key, status, reason) in [
        ("open_pages", 503, "pages"),
        ("open_pages_per_address", 429, "pages_per_address"),
    ] {
        let (world, account) = Plan::default().limit(key, 2).with_account();
        let held = [open_page(&world), open_page(&world)];
        wait_open(&world, 2.0);
        let json = world.ask(&Request::get("/docs"));
        is_refused(&json, status, reason, &world);
        assert!(
            json.json()["error"]["message"].is_string(),
            "{}",
            json.text()
        );
        let page = world.ask(
            &Request::get("/docs").header("accept", "text/html,application/xhtml+xml,*/*;q=0.8"),
        );
        is_refused(&page, status, reason, &world);
        page.has_header("content-type", "text/html; charset=utf-8");
        assert!(
            page.has("<h1>") && page.has(&page.request_id()),
            "{}",
            page.text()
        );
        // Open pages do not block requests with a key, and such requests do not block pages.
        world.works(Chat, &account.key);
        drop(held);
        wait_open(&world, 0.0);
        world.expect(200, &Request::get("/docs"));
    }
}

#[test]
fn control_without_the_limits_as_many_pages_are_open_as_are_asked_for() {
    let world = Plan::default()
        .limit("open_pages", 0)
        .limit("open_pages_per_address", 0)
        .start();
    let held: Vec<_> = (0..80).map(|_| open_page(&world)).collect();
    wait_open(&world, 80.0);
    world.expect(200, &Request::get("/docs"));
    drop(held);
    wait_open(&world, 0.0);
}

#[test]
fn a_page_s_body_has_a_deadline_and_a_size() {
    let world = Plan::default()
        .limit("page_body_read_seconds", 1)
        .limit("page_body_bytes", 1_024)
        .start();
    // A single byte from time to time does not extend the deadline.
    let mut slow = open_page(&world);
    let began = Instant::now();
    while began.elapsed() < SOON && slow.send(b"x") {
        std::thread::sleep(Duration::from_millis(300));
        if began.elapsed() > Duration::from_secs(2) {
            break;
        }
    }
    assert_eq!(slow.answer().status, 408);
    assert!(slow.is_closed());
    // An HTTP/2 stream that never ends does not extend it either.
    let mut h2 = H2::open(world.edge);
    h2.send(HEADERS, END_HEADERS, 1, &block(&sign_in()));
    h2.outcome(1);
    wait_open(&world, 0.0);
    let text = |bytes: usize| format!("email=a@example.test&password={}", "x".repeat(bytes));
    let form = || Request::form("/dashboard/sign-in", &text(1_024));
    for request in [
        form(),
        form().header("accept", "text/html"),
        form().header("accept", "*/*"),
        form().chunked(100),
    ] {
        let answer = world.ask(&request);
        assert_eq!(answer.status, 413, "{}", answer.text());
        assert!(answer.has("<h1>Too large</h1><p>The request body is larger than 1024 bytes."));
    }
}

#[test]
fn an_upload_that_is_too_large_for_a_page_reaches_clients_as_413() {
    let world = World::new();
    let upload = world.dir.path().join("upload");
    std::fs::write(&upload, vec![b'x'; 4_000_000]).unwrap();
    let url = format!("http://127.0.0.1:{}/dashboard/sign-in", world.edge);
    for options in [
        ["--http2-prior-knowledge", "expect:"],
        ["--http1.1", "expect:"],
        ["--http1.1", "expect: 100-continue"],
    ] {
        let output = Command::new("curl")
            .args([options[0], "--header", options[1]])
            .args(["--silent", "--show-error", "--max-time", "60", "--output"])
            .args(["/dev/null", "--write-out", "%{http_code}", "--data-binary"])
            .arg(format!("@{}", upload.display()))
            .arg(&url)
            .output()
            .unwrap();
        let (seen, errors) = (output.stdout, String::from_utf8_lossy(&output.stderr));
        assert_eq!(seen, b"413", "{options:?}: {errors}");
    }
}

#[test]
fn forms_of_every_framing_reach_the_sidecar_whole() {
    let world = World::new();
    let fields = |email: &str, bytes| format!("email={email}&password={}", "x".repeat(bytes));
    let length = Request::form("/dashboard/sign-up", &fields("a@example.test", 20));
    let chunked = Request::form("/dashboard/sign-up", &fields("b@example.test", 20)).chunked(7);
    let expects = Request::form("/dashboard/sign-up", &fields("c@example.test", 20))
        .header("expect", "100-continue");
    for request in [&length, &chunked, &expects] {
        world.expect(303, request);
    }
    for empty in [
        Request::form("/dashboard/sign-up", ""),
        Request::form("/dashboard/sign-up", "").chunked(7),
    ] {
        assert!(matches!(world.ask(&empty).status, 400..=422));
    }
    // The largest form that the sidecar reads.
    let (start, bytes) = ("email=d@example.test&password=", 65_536);
    let whole = format!("{start}{}", "x".repeat(bytes - start.len()));
    let answer = world.ask(&Request::form("/dashboard/sign-up", &whole));
    assert!(matches!(answer.status, 400 | 422), "{}", answer.text());
    let body = fields("e@example.test", 20);
    let mut h2 = H2::open(world.edge);
    let mut form = sign_in();
    form[2] = field(":path", "/dashboard/sign-up");
    h2.ask(1, &form, body.as_bytes());
    h2.outcome(1);
    assert!(
        world
            .command(&["account", "show", "e@example.test"])
            .status
            .success()
    );
}

impl World {
    fn signed_up(&self, number: usize) -> String {
        let fields = format!("email=reader-{number}@example.test&password=a+long+password");
        let answer = self.expect(303, &Request::form("/dashboard/sign-up", &fields));
        answer
            .header("set-cookie")
            .unwrap()
            .split(';')
            .next()
            .unwrap()
            .to_owned()
    }

    /// Opens the live stream. Reads the head of the answer, and the first event if there is one.
    fn live(&self, cookie: &str) -> (Connection, Answer) {
        let (mut connection, mut answer) =
            self.begin(&Request::get("/dashboard/live").header("cookie", cookie));
        if answer.status == 200 {
            assert!(connection.more(&mut answer));
        } else {
            connection.finish(&mut answer);
        }
        (connection, answer)
    }
}

#[test]
fn many_read_their_balance_live_each_at_one_descriptor_and_the_limits_are_told() {
    let plan = Plan::default()
        .limit("open_pages", 4)
        .limit("live_streams_per_address", 24);
    let world = plan.limit("live_streams_per_account", 8).start();
    let cookies: Vec<_> = (0..3).map(|number| world.signed_up(number)).collect();
    world.wait_metric("gateway_client_connections", &[], 0.0);
    let before = world.open_sockets();
    let mut readers: Vec<_> = (0..24)
        .map(|number| world.live(&cookies[number % 3]))
        .collect();
    assert!(readers.iter().all(|(_, answer)| answer.status == 200));
    // The request for the metric above may have left its connection open for a moment.
    wait_until("each reader to need one descriptor", SOON, || {
        world.open_sockets().saturating_sub(before) <= readers.len()
    });
    assert_eq!(world.metric("gateway_live_streams_open", &[]), 24.0);
    is_refused(
        &world.live(&cookies[0]).1,
        429,
        "live_streams_per_address",
        &world,
    );
    // The pages themselves are still served, with the current balance.
    world.expect(
        200,
        &Request::get("/dashboard").header("cookie", &cookies[0]),
    );
    for (connection, answer) in &mut readers {
        assert!(connection.more(answer), "a stream ended: {}", answer.text());
    }
    // One stream of each account closes, so the address has room again and each account has room
    // for one stream.
    readers.truncate(21);
    world.wait_metric("gateway_live_streams_open", &[], 21.0);
    let again = wait_for("the account's place", SOON, || {
        Some(world.live(&cookies[0])).filter(|(_, answer)| answer.status == 200)
    });
    let ninth = world.live(&cookies[0]).1;
    assert_eq!(
        (ninth.status, ninth.header("retry-after")),
        (503, Some("2")),
        "the account has eight"
    );
    drop((readers, again));
    world.wait_metric("gateway_live_streams_open", &[], 0.0);
}

#[test]
fn with_few_files_idle_clients_leave_room_for_the_admin_listener_and_for_who_has_a_key() {
    let world = Plan::default().open_files(256).start();
    let account = world.funded(1_000_000_000);
    world.works(Chat, &account.key);
    let idle: Vec<_> = (0..400).map(|_| world.connect()).collect();
    let probe = || {
        for page in ["/healthz", "/metrics"] {
            let answer = client::try_ask(world.admin, &Request::get(page));
            assert_eq!(
                answer.map(|answer| answer.status),
                Some(200),
                "{page} on the admin listener"
            );
        }
        // The answer may report a shortage of file descriptors, but there must be an answer.
        let readiness =
            client::try_ask(world.admin, &Request::get("/readyz")).map(|answer| answer.status);
        assert!(matches!(readiness, Some(200 | 503)), "{readiness:?}");
    };
    probe();
    assert!(world.metric("gateway_client_connections", &[]) <= 128.0);
    // The gateway closes connections that have been silent for a second. Until it has seen all of
    // them, those that wait in the listener's queue take the places that become free.
    wait_for(
        "every idle connection to be taken from the queue",
        SOON,
        || {
            let seen = world.metric("gateway_client_connections", &[])
                + world.metric("gateway_idle_connections_closed_total", &[])
                + world.metric("gateway_connections_refused_total", &["limit=\"total\""]);
            (seen >= 400.0).then_some(())
        },
    );
    wait_for("a connection that is served", SOON, || {
        let answer = client::try_ask(world.edge, &Chat.whole(&account.key, "input=1 output=1"))?;
        (answer.status == 200).then_some(())
    });
    for _ in 0..20 {
        world.works(Chat, &account.key);
        probe();
    }
    assert!(world.metric("gateway_idle_connections_closed_total", &[]) > 0.0);
    world.has_metric("gateway_rejected_total", &["reason=\"files\""], 0.0);
    wait_until("the gateway to be ready", SOON, || world.is_ready());
    assert!(
        world
            .log()
            .contains("limits.connections is lowered from 20000 to "),
        "{}",
        world.log()
    );
    drop(idle);
}
