//! Faults of vendors that use HTTP/2. Each fault occurs in whole and streamed answers, passed
//! through and translated. The tests check the client's answer, the bill, and the number of calls
//! to the vendor.

use crate::account::{Account, micro, taken};
use crate::asked_once::{SCALE, ask_until_admitted, with_fast_clock};
use crate::client::Answer;
use crate::h2::resident_kib;
use crate::scripted_vendor::{
    Authority, CANCEL, ENHANCE_YOUR_CALM, Flow, H2Vendor, HTTP_1_1_REQUIRED, INPUT, INTERNAL_ERROR,
    OUTPUT, PING, REFUSED_STREAM, Step, WINDOW_UPDATE, answer, setting,
};
use crate::surface::{BOTH, Chat, Messages, Surface, UPSTREAM_ERROR};
use crate::world::{Plan, SOON, World, faketime, wait_for, wait_until};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// What the client must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// The complete answer, billed once.
    Whole,
    /// An error before any part of the answer, not billed.
    Failure,
    /// An error that is not billed. A stream that had begun ends with the surface's error event.
    Cut,
}

/// A fault in the vendor's first answer. The vendor answers later requests correctly.
struct Fault {
    name: &'static str,
    steps: fn() -> Vec<Step>,
    due: Due,
    /// How often the gateway calls the vendor.
    asked: usize,
}

fn then_answer(first: Vec<Step>) -> Vec<Step> {
    [first, answer()].concat()
}

const STORE: &str = "store: {kind: embedded}";
const MAX_STREAM_ID: u32 = 0x7fff_ffff;

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    Fault { name: "none", steps: answer, due: Due::Whole, asked: 1 },
    Fault { name: "trailers in the place of END_STREAM", steps: || vec![Step::Head(0), Step::Half, Step::RestAndTrailers], due: Due::Whole, asked: 1 },
    Fault { name: "a graceful GOAWAY that names this stream", steps: || then_answer(vec![Step::GoAway(Some(MAX_STREAM_ID), 0), Step::GoAway(None, 0)]), due: Due::Whole, asked: 1 },
    Fault { name: "a graceful GOAWAY amid the answer", steps: || vec![Step::Head(0), Step::Half, Step::GoAway(None, 0), Step::Rest], due: Due::Whole, asked: 1 },
    Fault { name: "a GOAWAY that leaves this stream out", steps: || vec![Step::GoAway(Some(0), 0)], due: Due::Whole, asked: 2 },
    Fault { name: "a GOAWAY with an error that leaves this stream out", steps: || vec![Step::GoAway(Some(0), ENHANCE_YOUR_CALM)], due: Due::Whole, asked: 2 },
    Fault { name: "a GOAWAY with an error that names this stream, and an end", steps: || vec![Step::GoAway(None, INTERNAL_ERROR), Step::Close], due: Due::Failure, asked: 1 },
    Fault { name: "REFUSED_STREAM", steps: || vec![Step::Reset(REFUSED_STREAM)], due: Due::Whole, asked: 2 },
    Fault { name: "CANCEL before the answer", steps: || vec![Step::Reset(CANCEL)], due: Due::Failure, asked: 1 },
    Fault { name: "INTERNAL_ERROR before the answer", steps: || vec![Step::Reset(INTERNAL_ERROR)], due: Due::Failure, asked: 1 },
    Fault { name: "INTERNAL_ERROR after the head", steps: || vec![Step::Head(0), Step::Reset(INTERNAL_ERROR)], due: Due::Failure, asked: 1 },
    Fault { name: "CANCEL amid the answer", steps: || vec![Step::Head(0), Step::Half, Step::Reset(CANCEL)], due: Due::Cut, asked: 1 },
    Fault { name: "REFUSED_STREAM amid the answer", steps: || vec![Step::Head(0), Step::Half, Step::Reset(REFUSED_STREAM)], due: Due::Cut, asked: 1 },
    Fault { name: "the connection is cut amid the answer", steps: || vec![Step::Head(0), Step::Half, Step::Close], due: Due::Cut, asked: 1 },
    Fault { name: "fewer streams and smaller windows amid the answer", steps: || vec![Step::Head(0), setting(3, 1), setting(4, 1_024), Step::Half, setting(4, 0), Step::Rest, setting(3, 100), setting(4, 65_535)], due: Due::Whole, asked: 1 },
    Fault { name: "a thousand pings", steps: || then_answer([vec![ping(); 1_000], vec![Step::Pongs(1_000)]].concat()), due: Due::Whole, asked: 1 },
    Fault { name: "a header of 64 KB", steps: || vec![Step::Head(65_536), Step::Half, Step::Rest], due: Due::Whole, asked: 1 },
    Fault { name: "a header of 1 MB", steps: || vec![Step::Head(1_048_576), Step::Half, Step::Rest], due: Due::Failure, asked: 1 },
    Fault { name: "DATA after END_STREAM", steps: || vec![Step::Head(0), Step::Half, Step::Rest, Step::Frame { kind: 0, flags: 0, on_stream: true, payload: b"more".to_vec() }], due: Due::Whole, asked: 1 },
];

fn ping() -> Step {
    Step::Frame {
        kind: PING,
        flags: 0,
        on_stream: false,
        payload: vec![7; 8],
    }
}

/// The world of all faults with one kind of request.
struct FaultyWorld {
    world: World,
    account: Account,
    authority: Authority,
    /// The address of the vendor that the gateway uses now.
    address: String,
    /// Number of requests that have ended, and their total bill in µc.
    ended: usize,
    billed: i64,
}

/// A gateway whose chat vendor has `vendor` as its only endpoint.
fn world(vendor: &H2Vendor, authority: &Authority) -> World {
    plan(vendor, authority).start()
}

fn plan(vendor: &H2Vendor, authority: &Authority) -> Plan {
    let listed = [format!("{{url: \"{}\"}}", https(vendor))];
    Plan::default()
        .endpoints_as(&listed)
        .environment("SSL_CERT_FILE", &authority.file)
}

/// A request for the chat vendor's model: passed through from the chat surface, translated from the
/// messages surface.
fn body(surface: Surface, stream: bool) -> serde_json::Value {
    let mut body = surface.body("", stream, 100);
    body["model"] = json!(Chat.model());
    body["messages"][0]["content"] = json!("hello");
    body
}

/// Waits until this number of requests has ended. Returns their total bill, in µc.
fn billed(world: &World, account: &Account, requests: usize) -> i64 {
    world.ended(account, requests);
    taken(&world.endings(account))
}

fn cost() -> i64 {
    Chat.cost(INPUT, OUTPUT)
}

fn is_whole(surface: Surface, stream: bool, answer: &Answer) -> bool {
    if stream {
        surface.is_complete(answer)
    } else {
        answer.status == 200 && answer.has("hi")
    }
}

impl FaultyWorld {
    fn new() -> Self {
        let authority = Authority::new();
        let certificate = authority.signs("localhost");
        let vendor = H2Vendor::start(&certificate, Flow::default(), Arc::new(|_| answer()));
        // A reload at another time than the test asks for it would count as the one it waits for.
        let (world, account) = plan(&vendor, &authority)
            .edit(STORE, &format!("{STORE}\nauto_reload: false"))
            .with_account();
        Self {
            world,
            account,
            authority,
            address: https(&vendor),
            ended: 0,
            billed: 0,
        }
    }

    /// Makes the gateway use this vendor, over a new connection.
    fn switch_to(&mut self, vendor: &H2Vendor) {
        let address = https(vendor);
        let text = std::fs::read_to_string(&self.world.config).unwrap();
        let reloads = || {
            let ok = &["\"ok\""];
            self.world.metric("gateway_config_reloads_total", ok)
        };
        let before = reloads();
        let changed = text.replace(&self.address, &address);
        std::fs::write(&self.world.config, changed).unwrap();
        self.world.signal("HUP");
        wait_until("the reload", SOON, || reloads() > before);
        self.address = address;
    }

    /// Checks that one more request has ended, and that it was billed this amount.
    fn check_bill(&mut self, bill: i64, what: &str) {
        self.ended += 1;
        self.billed += bill;
        let billed = billed(&self.world, &self.account, self.ended);
        assert_eq!(billed, self.billed, "{what}");
    }

    /// Sends one request while the vendor has a fault, and checks the answer and the bill.
    fn check(&mut self, fault: &Fault, surface: Surface, stream: bool) {
        let what = &format!("{}, {surface:?}, stream: {stream}", fault.name);
        let steps = fault.steps;
        let script = Arc::new(move |number| if number == 0 { steps() } else { answer() });
        let certificate = self.authority.signs("localhost");
        let vendor = H2Vendor::start(&certificate, Flow::default(), script);
        self.switch_to(&vendor);
        let request = surface.request(&self.account.key, &body(surface, stream));
        let got = self.world.ask(&request);
        let due = if fault.due == Due::Cut && !stream {
            Due::Failure
        } else {
            fault.due
        };
        match due {
            Due::Whole => assert!(
                is_whole(surface, stream, &got),
                "{what}: {} {}",
                got.status,
                got.text()
            ),
            Due::Failure => {
                assert_ne!(got.status, 200, "{what}: {}", got.text());
                surface.fails_as(&got, UPSTREAM_ERROR);
            }
            Due::Cut => {
                assert_eq!(got.status, 200, "{what}: {}", got.text());
                assert!(got.has(surface.error_frame()), "{what}: {}", got.text());
            }
        }
        self.check_bill(if due == Due::Whole { cost() } else { 0 }, what);
        assert_eq!(vendor.asked(), fault.asked, "{what}");
        // The fault has no lasting effect: the gateway answers the next request.
        let next = self.world.ask(&request);
        assert!(
            is_whole(surface, stream, &next),
            "{what}, the next one: {} {}",
            next.status,
            next.text()
        );
        self.check_bill(cost(), what);
        assert_eq!(vendor.asked(), fault.asked + 1, "{what}");
    }
}

fn https(vendor: &H2Vendor) -> String {
    format!("https://localhost:{}", vendor.port)
}

/// Each fault in turn, at a vendor of its own, so that each begins with a new connection.
fn check_all_faults(surface: Surface, stream: bool) {
    let mut faulty = FaultyWorld::new();
    for fault in FAULTS {
        faulty.check(fault, surface, stream);
    }
}

#[test]
fn each_fault_of_an_http2_vendor_ends_and_is_billed_as_it_must() {
    check_all_faults(Chat, false);
}

#[test]
fn each_fault_of_an_http2_vendor_ends_and_is_billed_as_it_must_in_a_stream() {
    check_all_faults(Chat, true);
}

#[test]
fn each_fault_of_an_http2_vendor_ends_and_is_billed_as_it_must_translated() {
    check_all_faults(Messages, false);
}

#[test]
fn each_fault_of_an_http2_vendor_ends_and_is_billed_as_it_must_in_a_translated_stream() {
    check_all_faults(Messages, true);
}

/// Two minutes on the gateway's clock: the answer to a ping would wait as long, and so would a ping
/// behind a large body on a slow link.
#[test]
fn a_connection_on_which_nothing_moves_for_two_minutes_keeps_its_streams() {
    let Some(library) = faketime() else { return };
    let pause = Duration::from_secs(120) / u32::try_from(SCALE).unwrap();
    let steps = move |_| vec![Step::Head(0), Step::Half, Step::Pause(pause), Step::Rest];
    let authority = Authority::new();
    let certificate = authority.signs("localhost");
    let vendor = H2Vendor::start(&certificate, Flow::default(), Arc::new(steps));
    let (world, account) = with_fast_clock(plan(&vendor, &authority), library).with_account();
    let request = Chat.request(&account.key, &body(Chat, true));
    let answer = ask_until_admitted(&world, &request);
    assert!(is_whole(Chat, true, &answer), "{}", answer.text());
    assert_eq!(billed(&world, &account, 1), cost());
    assert_eq!(vendor.asked(), 1);
}

/// The gateway keeps its own receive window open, so an answer larger than any window arrives. A
/// vendor with a small window receives a larger body.
#[test]
fn a_body_larger_than_the_vendors_window_arrives_whole() {
    let authority = Authority::new();
    let flow = Flow {
        stream_window: 1_000,
        ..Flow::default()
    };
    let vendor = H2Vendor::start(&authority.signs("localhost"), flow, Arc::new(|_| answer()));
    let world = world(&vendor, &authority);
    let account = world.account();
    let mut body = body(Chat, false);
    body["messages"][0]["content"] = json!("x".repeat(300_000));
    let sent = body.to_string().len();
    world.expect(200, &Chat.request(&account.key, &body));
    let read = vendor.seen.lock().unwrap().body_bytes;
    assert!(read.abs_diff(sent) < 100, "{read} of {sent} bytes");
    world.ended(&account, 1);
}

/// If a vendor's window stays closed, the gateway gives up in time. It does not bill a request
/// whose body the vendor did not get completely.
#[test]
fn a_vendor_whose_window_never_opens_is_given_up_in_time() {
    let authority = Authority::new();
    let flow = Flow {
        stream_window: 0,
        gives_back: false,
        ..Flow::default()
    };
    let vendor = H2Vendor::start(&authority.signs("localhost"), flow, Arc::new(|_| answer()));
    let plan = plan(&vendor, &authority).limit("vendor_write_seconds", 1);
    let (world, account) = plan
        .limit("first_byte_seconds", 1)
        .limit("idle_seconds", 1)
        .limit("breaker_failures", 0)
        .with_account();
    let mut large = body(Chat, false);
    large["messages"][0]["content"] = json!("x".repeat(300_000));
    let ask = |body: &serde_json::Value| world.ask(&Chat.request(&account.key, body)).status;
    // On a new connection the gateway may send before the vendor's settings arrive. Those bytes use
    // the protocol's initial window.
    let small = [(); 3].map(|()| ask(&body(Chat, false)));
    assert!(
        small.iter().all(|status| *status == 200 || *status >= 500),
        "{small:?}"
    );
    assert!(ask(&large) >= 500);
    let answered = small.iter().filter(|status| **status == 200).count();
    assert!(answered < small.len(), "no window was ever closed");
    assert_eq!(billed(&world, &account, 4), answered as i64 * cost());
}

/// A vendor may refuse a request before it has read the whole body.
#[test]
fn an_answer_that_comes_before_the_body_was_read_is_passed_on() {
    let authority = Authority::new();
    let flow = Flow {
        gives_back: false,
        ..Flow::default()
    };
    let refusal = r#"{"error":{"message":"too large","type":"invalid_request_error","param":null,"code":null}}"#;
    let vendor = H2Vendor::start(
        &authority.signs("localhost"),
        flow,
        Arc::new(|_| Vec::new()),
    );
    vendor.refuse_early("413", refusal);
    let (world, account) = plan(&vendor, &authority)
        .limit("idle_seconds", 3)
        .with_account();
    let mut body = body(Chat, false);
    body["messages"][0]["content"] = json!("x".repeat(1_000_000));
    world.expect(413, &Chat.request(&account.key, &body));
    assert_eq!(micro(&world.ended(&account, 1)["credits"]), 0);
    assert_eq!(vendor.asked(), 1);
}

#[test]
fn a_vendor_that_offers_http1_alone_is_asked_in_http1() {
    let authority = Authority::new();
    let certificate = authority.signs("localhost");
    let vendor = H2Vendor::start(&certificate, Flow::default(), Arc::new(|_| answer()));
    vendor.change(&certificate, &[b"http/1.1"]);
    let world = world(&vendor, &authority);
    let account = world.account();
    for stream in [false, true] {
        let got = world.ask(&Chat.request(&account.key, &body(Chat, stream)));
        assert!(
            is_whole(Chat, stream, &got),
            "{} {}",
            got.status,
            got.text()
        );
    }
    assert_eq!(billed(&world, &account, 2), 2 * cost());
    let seen = vendor.seen.lock().unwrap();
    assert_eq!((seen.asked, seen.asked_h1), (0, 2));
    drop(seen);
}

#[test]
fn a_vendor_that_wants_http1_for_a_request_gets_it_so() {
    let authority = Authority::new();
    let certificate = authority.signs("localhost");
    let script = Arc::new(|_| vec![Step::Reset(HTTP_1_1_REQUIRED)]);
    let vendor = H2Vendor::start(&certificate, Flow::default(), script);
    let world = world(&vendor, &authority);
    let account = world.account();
    let got = world.ask(&Chat.request(&account.key, &body(Chat, false)));
    assert!(is_whole(Chat, false, &got), "{} {}", got.status, got.text());
    let seen = vendor.seen.lock().unwrap();
    assert_eq!((seen.asked, seen.asked_h1), (1, 1));
    drop(seen);
    assert_eq!(micro(&world.ended(&account, 1)["credits"]), cost());
}

#[test]
fn a_certificate_is_checked_anew_for_each_connection() {
    let (authority, other) = (Authority::new(), Authority::new());
    let close = || [answer(), vec![Step::Close]].concat();
    let vendor = H2Vendor::start(
        &authority.signs("localhost"),
        Flow::default(),
        Arc::new(move |_| close()),
    );
    let (world, account) = plan(&vendor, &authority)
        .limit("breaker_failures", 0)
        .with_account();
    let ask = || world.ask(&Chat.request(&account.key, &body(Chat, false)));
    assert_eq!(ask().status, 200);
    vendor.change(&other.signs("localhost"), &[b"h2"]);
    assert_eq!(ask().status, 502, "signed by another root");
    vendor.change(&authority.signs("elsewhere.example"), &[b"h2"]);
    assert_eq!(ask().status, 502, "another host's");
    assert_eq!(vendor.asked(), 1, "whoever is not the vendor gets nothing");
    vendor.change(&authority.signs("localhost"), &[b"h2"]);
    assert_eq!(ask().status, 200, "a new certificate of the vendor");
    assert_eq!(billed(&world, &account, 4), 2 * cost());
}

/// Sends `count` requests at once and returns their answers.
fn ask_at_once(
    world: &World,
    count: usize,
    request: impl Fn(usize) -> crate::client::Request + Sync,
) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let request = &request;
        let threads: Vec<_> = (0..count)
            .map(|number| scope.spawn(move || world.ask(&request(number))))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

#[test]
fn a_connection_that_dies_under_fifty_streams_fails_or_repeats_each_of_them_once() {
    const STREAMS: usize = 50;
    let authority = Authority::new();
    // The vendor answers nobody until the last request arrives, and then closes the connection. It
    // answers requests that the gateway repeats.
    let script = Arc::new(|number| match number {
        0 => answer(),
        1..STREAMS => Vec::new(),
        STREAMS => vec![Step::CloseAll],
        _ => answer(),
    });
    let vendor = H2Vendor::start(&authority.signs("localhost"), Flow::default(), script);
    let plan = plan(&vendor, &authority)
        .limit("breaker_failures", 0)
        .limit("retry_budget_percent", 100);
    let world = plan.start();
    let account = world.funded(1_000_000_000);
    // The first request opens one connection, which all others share.
    world.expect(200, &Chat.request(&account.key, &body(Chat, false)));
    let answers = ask_at_once(&world, STREAMS, |number| {
        let surface = BOTH[number % 2];
        surface.request(&account.key, &body(surface, number % 4 > 1))
    });
    let whole = answers.iter().filter(|answer| answer.status == 200).count();
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer.status, 200 | 500 | 502))
    );
    let seen = vendor.seen.lock().unwrap();
    assert!(seen.most_open > 1, "no connection was shared");
    let (repeated, connections) = (seen.asked - 1 - STREAMS, seen.connections);
    drop(seen);
    // The gateway repeats a request on a reused connection, because that connection may have been
    // dead before the gateway sent the request. It does not repeat a request on a new connection.
    assert_eq!(repeated, whole, "what is asked again is answered");
    assert!(
        whole + connections > STREAMS,
        "{whole} of {STREAMS} over {connections} connections"
    );
    let endings = wait_for("all requests to end", SOON, || {
        Some(world.endings(&account)).filter(|endings| endings.len() == STREAMS + 1)
    });
    assert_eq!(taken(&endings), (whole as i64 + 1) * cost());
}

/// The vendor may have worked on requests that it read before it closed the connection, so the
/// gateway charges these repetitions to the retry budget.
#[test]
fn a_vendor_that_closes_a_kept_connection_amid_each_request_is_hardly_asked_again() {
    let authority = Authority::new();
    let script = Arc::new(|_| vec![Step::OnConnection(answer(), vec![Step::Close])]);
    let vendor = H2Vendor::start(&authority.signs("localhost"), Flow::default(), script);
    let (world, account) = plan(&vendor, &authority)
        .limit("breaker_failures", 0)
        .with_account();
    let statuses: Vec<_> = (0..40)
        .map(|_| {
            world
                .ask(&Chat.request(&account.key, &body(Chat, false)))
                .status
        })
        .collect();
    let answered = statuses.iter().filter(|status| **status == 200).count();
    // Every other request is on a new connection. The retry budget allows repeating a fifth of all
    // requests, and three in any case.
    assert!(
        vendor.asked() <= 40 + 40 / 5 + 3,
        "asked {} times",
        vendor.asked()
    );
    assert!(answered >= 20, "{statuses:?}");
    assert_eq!(billed(&world, &account, 40), answered as i64 * cost());
}

/// A response that is not HTTP/2 fails its request; the gateway then uses HTTP/2 with the vendor
/// again.
#[test]
fn a_vendor_that_broke_http2_once_is_asked_over_http2_again() {
    let authority = Authority::new();
    let certificate = authority.signs("localhost");
    // An increment of 0 is a connection error (RFC 9113, section 6.9).
    let broken = || Step::Frame {
        kind: WINDOW_UPDATE,
        flags: 0,
        on_stream: false,
        payload: vec![0; 4],
    };
    let script = Arc::new(move |number| if number < 2 { vec![broken()] } else { answer() });
    let vendor = H2Vendor::start(&certificate, Flow::default(), script);
    vendor.change(&certificate, &[b"h2"]);
    let (world, account) = plan(&vendor, &authority)
        .limit("breaker_failures", 0)
        .with_account();
    wait_until("the vendor to be asked over HTTP/2", SOON, || {
        world
            .ask(&Chat.request(&account.key, &body(Chat, false)))
            .status
            == 200
    });
    assert_eq!(
        (vendor.asked(), vendor.seen.lock().unwrap().asked_h1),
        (3, 0)
    );
}

/// Bodies of 5 MB over one connection with the protocol's default windows.
#[test]
fn large_bodies_share_a_connection_without_a_deadlock_and_in_little_memory() {
    send_large_bodies(16);
}

#[test]
#[ignore = "long load: 64 bodies of 5 MB over one connection, about a minute"]
fn sixty_four_large_bodies_share_a_connection_without_a_deadlock_and_in_little_memory() {
    send_large_bodies(64);
}

/// Sends this number of large bodies at once.
#[allow(clippy::print_stdout, reason = "figures for a person")]
fn send_large_bodies(streams: usize) {
    const BODY_BYTES: usize = 5_000_000;
    let authority = Authority::new();
    let vendor = H2Vendor::start(
        &authority.signs("localhost"),
        Flow::default(),
        Arc::new(|_| answer()),
    );
    // A debug build on a busy machine is slow with bodies of this size.
    let plan = plan(&vendor, &authority)
        .limit("body_read_seconds", 600)
        .limit("vendor_write_seconds", 600);
    // All bodies belong to one account.
    let plan = plan
        .limit("account_bodies_percent", 100)
        .limit("cpu_queue_seconds", 600);
    let world = plan.start();
    let account = world.funded(1_000_000_000_000);
    world.expect(200, &Chat.request(&account.key, &body(Chat, false)));
    let before = resident_kib(world.pid());
    let large = {
        let mut body = body(Chat, false);
        body["messages"][0]["content"] = json!("x".repeat(BODY_BYTES));
        body
    };
    let request = Chat.request(&account.key, &large);
    let (answers, most) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_at_once(&world, streams, |_| request.clone()));
        let mut most = 0;
        while !asking.is_finished() {
            most = most.max(resident_kib(world.pid()));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        (asking.join().unwrap(), most)
    });
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, vec![200; streams]);
    let seen = vendor.seen.lock().unwrap();
    assert!(seen.body_bytes > streams * BODY_BYTES);
    assert_eq!(seen.asked, streams + 1);
    println!(
        "{} connections, {} streams at once at most",
        seen.connections, seen.most_open
    );
    drop(seen);
    let bodies_kib = (streams * BODY_BYTES / 1_024) as u64;
    println!(
        "{} MiB more for {} MiB of bodies",
        (most - before) / 1_024,
        bodies_kib / 1_024
    );
    // A request keeps the client's body and the vendor's body until the gateway has reserved its
    // credits, and the allocator keeps freed pages for a while. A release build uses 2.1 times the
    // size of the bodies.
    assert!(
        most - before <= 3 * bodies_kib,
        "{} KiB for {bodies_kib} KiB of bodies",
        most - before
    );
}

/// A client and a vendor that both use HTTP/2: no HTTP/1 header passes between them.
#[test]
fn an_http2_client_gets_an_http2_vendors_answer() {
    use crate::h2::{END_HEADERS, END_STREAM, H2, HEADERS, Outcome, block, good};
    let authority = Authority::new();
    let vendor = H2Vendor::start(
        &authority.signs("localhost"),
        Flow::default(),
        Arc::new(|_| answer()),
    );
    let world = world(&vendor, &authority);
    let account = world.account();
    let mut client = H2::open(world.edge);
    for (id, stream) in [(1, false), (3, true)] {
        let body = body(Chat, stream).to_string();
        client.send(HEADERS, END_HEADERS, id, &block(&good(&account.key, &body)));
        client.send(0, END_STREAM, id, body.as_bytes());
        assert_eq!(client.outcome(id), Outcome::Answered);
    }
    assert_eq!(billed(&world, &account, 2), 2 * cost());
}
