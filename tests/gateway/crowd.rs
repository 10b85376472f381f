//! Many concurrent clients that leave, read slowly, or never end their header. Memory and open
//! files stay bounded, nothing is left behind, and the gateway serves the other clients. The long
//! run has as many clients as two cores can carry.

use crate::account::Account;
use crate::h2::resident_kib;
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, SOON, Simulator, World, has_h2_vendors, wait_for, wait_until};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Limits that allow any number of clients from one address.
fn plan() -> Plan {
    let plan = Plan::default()
        .limit("connections_per_address", 0)
        .limit("open_requests_per_account", 65_536);
    plan.limit("drain_after_client_seconds", 1)
        .limit("drain_reasoning_seconds", 1)
}

/// Waits until no credit is held, the ledger has all endings, and no client is connected. The
/// gateway may then have at most `kept` more open files than before: the connections to the vendor
/// that it keeps.
fn wait_quiet(world: &World, files_before: usize, kept: usize) {
    let limit = Duration::from_secs(60);
    wait_until("all holds to be gone", limit, || {
        world.metric("gateway_open_holds", &[]) == 0.0
    });
    wait_until("the ledger to have all endings", limit, || {
        world.metric("gateway_journal_pending", &[]) == 0.0
    });
    wait_until("all connections to be gone", limit, || {
        world.metric("gateway_client_connections", &[]) == 0.0
    });
    wait_until("all files to be closed", limit, || {
        world.open_files() <= files_before + kept
    });
}

/// One client. Its number decides at which point of its request it leaves, if at all.
fn leaves(world: &World, account: &Account, number: u64) {
    let surface = BOTH[(number % 2) as usize];
    let request = surface
        .stream(&account.key, "events=12 gap_ms=2 input=10 output=12")
        .bytes();
    let mut connection = world.connect();
    match number % 5 {
        // In the middle of its own request.
        0 => drop(connection.send(&request[..request.len() / 2])),
        // Before the gateway answered anything.
        1 => drop(connection.send(&request)),
        // In the middle of the answer.
        2 | 3 => {
            connection.send(&request);
            let mut answer = connection.begin();
            for _ in 0..number % 7 {
                connection.more(&mut answer);
            }
        }
        _ => {
            connection.send(&request);
            let answer = connection.answer();
            assert!(surface.is_complete(&answer), "{}", answer.text());
        }
    }
    connection.forget();
}

#[test]
fn clients_that_come_and_leave_leave_nothing_behind() {
    come_and_leave(200);
}

#[test]
#[ignore = "long load: 10 000 clients that come and leave, about 4 minutes"]
fn clients_that_come_and_leave_by_the_thousand_leave_nothing_behind() {
    come_and_leave(10_000);
}

/// Runs this number of clients, some of them at once.
#[allow(clippy::print_stdout, reason = "figures for a person")]
fn come_and_leave(cycles: u64) {
    const THREADS: usize = 16;
    let mut world = plan().start();
    let account = world.funded(1_000_000_000_000);
    world.works(Chat, &account.key);
    let (files, next) = (world.open_files(), AtomicU64::new(0));
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= cycles {
                        return;
                    }
                    leaves(&world, &account, number);
                    if number % 100 == 50 {
                        most.fetch_max(
                            world.metric("gateway_open_holds", &[]) as u64,
                            Ordering::Relaxed,
                        );
                    }
                }
            });
        }
    });
    assert!(
        most.load(Ordering::Relaxed) > 0,
        "what is watched does not move"
    );
    // Ends the first vendor. The gateway would keep its idle connections to it for 45 seconds.
    world.vendor.wait_idle();
    world.vendor = Simulator::start(None);
    wait_quiet(&world, files, 2);
    // Every fifth client left before its request was complete. The ledger has each of the others at
    // most once.
    let endings = world.endings(&account);
    let asked = cycles - cycles.div_ceil(5) + 1;
    assert!(
        endings.len() as u64 <= asked,
        "{} endings of {asked} requests",
        endings.len()
    );
    let whole = cycles / 5 + 1;
    let completed = endings
        .iter()
        .filter(|ending| ending["outcome"] == "completed")
        .count() as u64;
    assert!(completed >= whole, "{completed} of {whole} that stayed");
    let (resident, rows) = (resident_kib(world.pid()), endings.len());
    println!("{cycles} cycles, {rows} endings, {completed} complete, {resident} KiB resident");
}

/// Reads the first byte of an answer and nothing more.
async fn begin(port: u16, request: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut first = [0; 1];
    stream.read_exact(&mut first).await.unwrap();
    stream
}

/// The number of bytes that the vendor has written to a stream that nobody reads.
fn written(world: &World) -> u64 {
    let requests = world.vendor.requests();
    requests
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|call| call["answer"]["shown_bytes"].as_u64())
        .max()
        .unwrap_or(0)
}

#[test]
fn clients_that_do_not_read_hold_their_vendor_up_and_cost_little_memory() {
    do_not_read(2);
}

#[test]
#[ignore = "long load: 60 clients that do not read, about a minute"]
fn sixty_clients_that_do_not_read_hold_their_vendor_up_and_cost_little_memory() {
    do_not_read(60);
}

#[allow(clippy::print_stdout, reason = "figures for a person")]
fn do_not_read(readers: usize) {
    // Longer than it takes to begin with all clients: the vendor of one that is given up is read to
    // its end.
    let world = plan()
        .limit("client_write_seconds", 5 + readers as u64 / 2)
        .start();
    let account = world.funded(100_000_000_000_000);
    world.works(Messages, &account.key);
    let (before, files) = (resident_kib(world.pid()), world.open_files());
    let runtime = runtime();
    // More than all buffers on the path can hold.
    let bytes = 30 * 1_048_576;
    let marker = format!("lenient=1 overrun=1 bytes={bytes} events=1000 input=10 output=100");
    let request = Chat
        .request(&account.key, &Chat.body(&marker, true, bytes))
        .bytes();
    let held = runtime.block_on(async {
        let mut held = Vec::new();
        for _ in 0..readers {
            held.push(begin(world.edge, &request).await);
        }
        held
    });
    // The vendor is blocked: the number of bytes that it has written stops growing.
    let mut last = (0, Instant::now());
    wait_for("the vendor to be held up", Duration::from_secs(90), || {
        let now = written(&world);
        if now != last.0 {
            last = (now, Instant::now());
        }
        (now > 0 && last.1.elapsed() > Duration::from_secs(1)).then_some(())
    });
    let grown = resident_kib(world.pid()).saturating_sub(before);
    println!(
        "{readers} readers: {} KiB each, of {} written",
        grown / readers as u64,
        last.0
    );
    assert!(
        last.0 < bytes,
        "everything was read, for a client that reads nothing: {}",
        last.0
    );
    // Kernel buffers hold the data that fits there. The gateway holds one write, and the data that
    // arrived meanwhile. The allocator adds some. Over HTTP/2, each stream adds its window, and
    // each connection its TLS state. Whatever their number, the ledger's caches fill meanwhile.
    let each = if has_h2_vendors() { 512 } else { 256 };
    assert!(
        grown < 8_192 + each * readers as u64,
        "{grown} KiB for {readers} clients that do not read"
    );
    world.works(Messages, &account.key);
    // The gateway gives these clients up after a while, whether or not they leave.
    wait_quiet(&world, files, readers + 2);
    drop(held);
    // The ledger has their entries a few milliseconds later.
    world.ended(&account, readers + 2);
    let endings = world.endings(&account);
    let given_up = endings
        .iter()
        .filter(|ending| ending["outcome"] == "client_left")
        .count();
    assert_eq!(
        given_up, readers,
        "each is billed for what was generated: {endings:?}"
    );
    world.close();
}

/// The latencies of whole requests, sorted.
fn served(world: &World, account: &Account, requests: usize) -> Vec<Duration> {
    let mut connection = world.connect();
    let request = |surface: Surface| surface.whole(&account.key, "input=1 output=1");
    let mut times: Vec<_> = (0..requests)
        .map(|number| {
            let began = Instant::now();
            let answer = connection.ask(&request(BOTH[number % 2]));
            assert_eq!(answer.status, 200, "{}", answer.text());
            began.elapsed()
        })
        .collect();
    times.sort();
    times
}

/// Sends a header byte by byte until the gateway closes the connection; returns the time until
/// then.
async fn trickle(port: u16) -> Duration {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let _ = stream
        .write_all(b"POST /v1/messages HTTP/1.1\r\nhost: g\r\nx: ")
        .await;
    let began = Instant::now();
    let mut end = [0; 64];
    while stream.write_all(b"x").await.is_ok() {
        let read = tokio::time::timeout(Duration::from_millis(500), stream.read(&mut end)).await;
        if matches!(read, Ok(Ok(0) | Err(_))) {
            break;
        }
    }
    began.elapsed()
}

#[test]
fn headers_that_never_end_are_cut_off_and_cost_others_little() {
    never_end_their_headers(300);
}

#[test]
#[ignore = "long load: 5 000 clients whose headers never end, about a minute"]
fn headers_of_five_thousand_clients_that_never_end_are_cut_off_and_cost_others_little() {
    never_end_their_headers(5_000);
}

#[allow(
    clippy::print_stdout,
    clippy::float_arithmetic,
    reason = "figures for a person, and of metrics"
)]
fn never_end_their_headers(clients: usize) {
    let world = plan().limit("header_read_seconds", 8).start();
    let account = world.funded(1_000_000_000_000);
    let alone = served(&world, &account, 100);
    let (before, files) = (resident_kib(world.pid()), world.open_files());
    let runtime = runtime();
    let port = world.edge;
    let tasks: Vec<_> = (0..clients).map(|_| runtime.spawn(trickle(port))).collect();
    wait_until("all to be connected", SOON, || {
        world.metric("gateway_client_connections", &[]) >= clients as f64 * 0.9
    });
    let others = served(&world, &account, 100);
    let grown = resident_kib(world.pid()).saturating_sub(before);
    let at = |times: &[Duration]| (times[50], times[98]);
    println!(
        "{clients} clients: {grown} KiB more; others {:?}, alone {:?}",
        at(&others),
        at(&alone)
    );
    assert!(grown < 200 * 1_024, "{grown} KiB");
    let cut: Vec<_> = runtime.block_on(async {
        let mut cut = Vec::new();
        for task in tasks {
            cut.push(task.await.unwrap());
        }
        cut
    });
    assert_eq!(cut.len(), clients);
    let longest = cut.iter().max().unwrap();
    assert!(*longest < 2 * SOON, "{longest:?}");
    wait_quiet(&world, files, 4);
}

#[test]
fn many_streams_at_one_time_lose_nothing_and_each_is_debited() {
    stream_at_one_time(150, 5);
}

#[test]
#[ignore = "long load: 3 000 streams at one time, about a minute"]
fn three_thousand_streams_at_one_time_lose_nothing_and_each_is_debited() {
    stream_at_one_time(3_000, 30);
}

/// Memory in KiB that a gateway may need later than the first request and only once: on a busy
/// machine, a task of the start can fall into the streams' time.
const UNSHARED_KIB: u64 = 8_192;

#[allow(clippy::print_stdout, reason = "figures for a person")]
fn stream_at_one_time(streams: usize, events: usize) {
    let world = plan().start();
    let account = world.funded(1_000_000_000_000);
    world.works(Chat, &account.key);
    let before = resident_kib(world.pid());
    let runtime = runtime();
    let (mut complete, mut peak) = (0, 0);
    runtime.block_on(async {
        let mut running = tokio::task::JoinSet::new();
        for number in 0..streams {
            let surface = BOTH[number % 2];
            let marker = format!("events={events} gap_ms=1000 input=1 output={events}");
            let (request, port) = (surface.stream(&account.key, &marker).bytes(), world.edge);
            running.spawn(async move {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                stream.write_all(&request).await.unwrap();
                let mut all = Vec::new();
                let mut piece = [0; 8_192];
                // The connection stays open after the answer.
                while !all.ends_with(b"0\r\n\r\n") {
                    let count = stream.read(&mut piece).await.unwrap();
                    assert!(
                        count > 0,
                        "a stream was cut: {}",
                        String::from_utf8_lossy(&all)
                    );
                    all.extend_from_slice(&piece[..count]);
                }
                let text = String::from_utf8_lossy(&all).into_owned();
                let delta = if surface == Chat {
                    "\"delta\":{\"content\":\""
                } else {
                    "text_delta"
                };
                assert_eq!(text.matches(delta).count(), events, "{text}");
                assert!(
                    text.contains(surface.terminal()) && !text.contains(surface.error_frame()),
                    "{text}"
                );
            });
        }
        loop {
            peak = peak.max(resident_kib(world.pid()));
            match tokio::time::timeout(Duration::from_millis(500), running.join_next()).await {
                Err(_) => {}
                Ok(None) => break,
                Ok(Some(done)) => {
                    done.unwrap();
                    complete += 1;
                }
            }
        }
    });
    let grown = peak.saturating_sub(before).saturating_sub(UNSHARED_KIB);
    let each = grown / streams as u64;
    println!("{streams} streams at one time, {complete} whole, {each} KiB each");
    assert_eq!(complete, streams);
    assert!(each < 128, "{each} KiB for each stream");
    let ended = wait_for("all to be in the books", SOON, || {
        let endings = world.endings(&account);
        (endings.len() > streams).then_some(endings)
    });
    assert_eq!(ended.len(), streams + 1);
    assert!(
        ended
            .iter()
            .all(|ending| ending["outcome"] == "completed" && ending["kind"] == "debit")
    );
}
