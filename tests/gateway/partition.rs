//! Tests an edge whose link to the shared store is cut, or loses a third of the store's answers:
//! the edge refuses new work at once, running requests complete, and all entries reach the ledger
//! once the link is back. The other edge is not affected. An edge far from the store waits longer
//! for it.
//!
//! For the cut, Redis runs in a network namespace with a separate link to each edge. For the loss,
//! a proxy delays answers as a lossy link does.

use crate::account::Account;
use crate::client::{self, Request};
use crate::crash::{self, FUNDS, Habit, Load, Log};
use crate::shared::{Fleet, REFUSED_WITHIN};
use crate::surface::{BOTH, LEDGER_UNAVAILABLE, Surface};
use crate::world::{Plan, SOON, World, free_port, wait_for};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use test_world::redis::Server;
use test_world::wait_until;

const CUT: Duration = Duration::from_secs(6);
const LONG_CUT: Duration = Duration::from_secs(30);
/// All entries must be in the ledger within this time after the link is back.
const HEALED_WITHIN: Duration = Duration::from_secs(10);
/// Limit for the usual refusal, far below the time of the cut.
const USUALLY_REFUSED_WITHIN: Duration = Duration::from_secs(2);

fn ip(args: &[&str]) -> bool {
    Command::new("ip")
        .args(args)
        .output()
        .is_ok_and(|output| output.status.success())
}

/// A network namespace with two links to the test's own namespace.
struct Wires {
    name: String,
    /// Addresses of the far ends.
    far: [String; 2],
}

impl Wires {
    /// Returns `None` if the kernel or the user's rights do not allow it.
    fn lay() -> Option<Self> {
        let pid = std::process::id();
        let name = format!("gw{pid}");
        if !ip(&["netns", "add", &name]) {
            test_world::skip("no network namespace can be made here");
            return None;
        }
        // From here on `drop` removes the namespace. The address range 198.18.0.0/15 is reserved
        // for network benchmarks.
        let at = |wire: usize, end: u32| format!("198.{}.{}.{end}", 18 + wire, pid % 251);
        let wires = Self {
            far: [at(0, 2), at(1, 2)],
            name,
        };
        for wire in 0..2 {
            let (near, far) = (wires.end(wire), format!("wire{wire}"));
            let (near_at, far_at) = (
                format!("{}/30", at(wire, 1)),
                format!("{}/30", wires.far[wire]),
            );
            let name = wires.name.as_str();
            let is_laid = ip(&[
                "link", "add", &near, "type", "veth", "peer", "name", &far, "netns", name,
            ]) && ip(&["addr", "add", &near_at, "dev", &near])
                && ip(&["link", "set", &near, "up"])
                && ip(&["-n", name, "addr", "add", &far_at, "dev", &far])
                && ip(&["-n", name, "link", "set", &far, "up"]);
            if !is_laid {
                test_world::skip("no wire can be laid into a network namespace here");
                return None;
            }
        }
        Some(wires)
    }

    fn end(&self, wire: usize) -> String {
        format!("{}-{wire}", self.name)
    }

    /// Sets the state at the far end, so that a sender at the near end gets no error.
    fn set(&self, wire: usize, state: &str) {
        assert!(ip(&[
            "-n",
            &self.name,
            "link",
            "set",
            &format!("wire{wire}"),
            state
        ]));
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        // Removing one end of a link removes the link.
        for wire in 0..2 {
            ip(&["link", "del", &self.end(wire)]);
        }
        ip(&["netns", "del", &self.name]);
    }
}

/// A Redis in a namespace. It can be reached only over the links.
struct Walled {
    port: u16,
    process: Child,
    _dir: TempDir,
}

impl Walled {
    fn behind(wires: &Wires) -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let process = Command::new("ip")
            .args([
                "netns",
                "exec",
                &wires.name,
                "redis-server",
                "--protected-mode",
                "no",
                "--bind",
                "0.0.0.0",
            ])
            .args([
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--appendonly",
                "yes",
                "--dir",
            ])
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self {
            port,
            process,
            _dir: dir,
        };
        wait_for("Redis to listen", SOON, || {
            TcpStream::connect((wires.far[1].as_str(), port)).ok()
        });
        server
    }
}

impl Drop for Walled {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl<R> Fleet<R> {
    /// Runs `chaos` while a few clients of all kinds send requests to both edges.
    pub fn under_light_load(&mut self, account: &Account, chaos: impl FnOnce(&mut Self)) -> Log {
        let load = Load {
            keys: &[&account.key],
            habits: &[Habit::Whole, Habit::Stream, Habit::Abort],
            interval: crash::slow_client_interval(),
            min_whole: 0,
        };
        let edges = [self.edges[0].edge, self.edges[1].edge];
        load.run_at(edges, || chaos(self))
    }

    /// A fleet in which the sidecar and each edge reach the store at addresses of their own.
    pub fn through(
        redis: R,
        sidecar: &str,
        edges: [&str; 2],
        edge_plan: impl Fn(Plan) -> Plan,
    ) -> Self {
        let plan = |role, way: &str| {
            let store = format!("store: {{kind: redis, url: \"redis://{way}\"}}");
            Plan::default()
                .role(role)
                .edit("store: {kind: embedded}", &store)
        };
        let sidecar = plan("sidecar", sidecar).start();
        let edge = |way| {
            edge_plan(
                plan("edge", way)
                    .sidecar(sidecar.sidecar)
                    .endpoints(&[sidecar.vendor.port]),
            )
            .start()
        };
        let edges = edges.map(edge).into();
        Self {
            redis,
            sidecar,
            edges,
        }
    }
}

/// Sends new requests on both surfaces until `until`. Every answer must be an immediate refusal.
/// Returns how long each refusal took.
fn refusals(edge: u16, key: &str, until: Instant) -> Vec<Duration> {
    let mut took = Vec::new();
    while Instant::now() < until {
        for surface in BOTH {
            let began = Instant::now();
            let answer = client::ask(edge, &surface.whole(key, "input=10 output=10"));
            took.push(began.elapsed());
            surface.fails_as(&answer, LEDGER_UNAVAILABLE);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    took.sort();
    took
}

/// Begins a stream on each surface of an edge that lasts `time`. Returns the running streams.
fn streams(
    edge: &World,
    key: &str,
    time: Duration,
) -> Vec<(Surface, client::Connection, client::Answer)> {
    let marker = format!(
        "events={} gap_ms=100 input=10 output=5",
        time.as_millis() / 100
    );
    // On a busy machine a request can time out waiting for the store.
    let begin = |surface: Surface| {
        let (mut connection, mut answer) = edge.begin(&surface.stream(key, &marker));
        (answer.status == 200 && connection.more(&mut answer))
            .then_some((surface, connection, answer))
    };
    BOTH.into_iter()
        .map(|surface| wait_for("a stream to begin", SOON, || begin(surface)))
        .collect()
}

#[track_caller]
fn wait_admits<R>(fleet: &Fleet<R>, edge: &World, account: &Account) {
    let credits = Request::get("/v1/credits").bearer(&account.key);
    wait_until("the edge to reach the store again", SOON, || {
        edge.ask(&credits).status == 200
    });
    fleet.wait_known(edge, &account.key);
}

fn wait_told(edges: &[World]) {
    wait_until(
        "all endings to be in the ledger",
        HEALED_WITHIN + SOON,
        || {
            edges
                .iter()
                .all(|edge| edge.metric("gateway_journal_pending", &[]) == 0.0)
        },
    );
}

#[test]
fn an_edge_whose_wire_to_the_store_is_cut_refuses_at_once_and_owes_nothing_once_it_is_whole_again()
{
    let Some(wires) = Wires::lay() else { return };
    let cut = if crate::is_long() { LONG_CUT } else { CUT };
    let redis = Walled::behind(&wires);
    let ways = [0, 1].map(|wire| format!("{}:{}", wires.far[wire], redis.port));
    let mut fleet = Fleet::through(redis, &ways[1], [&ways[0], &ways[1]], |plan| plan);
    let account = fleet.funded(FUNDS);
    let mut other = Log::default();
    let (mut took, mut healed) = (Vec::new(), Duration::ZERO);
    let mut finished = Vec::new();
    let log = fleet.under_light_load(&account, |fleet| {
        fleet.wait_calls(20);
        let running = streams(&fleet.edges[0], &account.key, cut / 2);
        wires.set(0, "down");
        // A request that had its answer from the store just before the cut may complete. Only
        // requests that ask from now on are refused.
        took = refusals_after_a_moment(fleet, &account.key, cut);
        for (surface, mut connection, mut answer) in running {
            surface.completes(&mut connection, &mut answer);
            finished.push(answer.request_id());
        }
        wires.set(0, "up");
        let began = Instant::now();
        wait_admits(fleet, &fleet.edges[0], &account);
        // Entries of requests that end now keep coming. All entries from before the link came back
        // must be in the ledger.
        wait_for(
            "what was ended in the dark to be in the ledger",
            HEALED_WITHIN + SOON,
            || {
                let oldest = fleet.edges[0].metric("gateway_journal_oldest_seconds", &[]);
                (oldest < began.elapsed().as_secs_f64().floor()).then_some(())
            },
        );
        healed = began.elapsed();
    });
    other.whole.extend(finished);
    other.add(log);
    let (usual, slowest) = (took[took.len() / 2], took[took.len() - 1]);
    println!(
        "cut for {cut:?}: {} refusals, usually after {usual:?}, the slowest {slowest:?}; all told {healed:?} after it was whole \
         again; {} answers whole",
        took.len(),
        other.whole.len(),
    );
    assert!(
        usual < USUALLY_REFUSED_WITHIN && slowest < REFUSED_WITHIN,
        "refused after {usual:?}, {slowest:?}"
    );
    fleet.matches(&account, &other);
    drop(fleet);
}

fn refusals_after_a_moment<R>(fleet: &Fleet<R>, key: &str, cut: Duration) -> Vec<Duration> {
    let until = Instant::now() + cut;
    let first = BOTH[0].whole(key, "input=10 output=10");
    wait_until("the cut to be felt", SOON, || {
        fleet.edges[0].ask(&first).status == 503
    });
    // If it is felt late, some refusals are measured all the same.
    let until = until.max(Instant::now() + cut / 3);
    refusals(fleet.edges[0].edge, key, until)
}

/// A proxy in front of a server that delays some of the server's answers, as a lossy link with
/// retransmission does.
struct Lossy {
    port: u16,
    losing: Arc<AtomicBool>,
}

/// Percentage of pieces that are lost. A retransmitted piece is lost at the same rate.
const LOST_PERCENT: u64 = 30;
/// Delay of the first retransmission. Each further one takes twice as long.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

impl Lossy {
    fn before(server: u16) -> Self {
        let losing = Arc::new(AtomicBool::new(false));
        let lossy = Arc::clone(&losing);
        let port = proxy(server, move |dice| {
            late(dice, lossy.load(Ordering::Relaxed))
        });
        Self { port, losing }
    }
}

/// Starts a proxy in front of a server, which delays each piece of the server's answers by `late`.
/// It has a number for each connection. Returns the proxy's port.
fn proxy(server: u16, late: impl Fn(&mut u64) -> Duration + Clone + Send + 'static) -> u16 {
    let port = free_port();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    // The thread ends with the test process.
    std::thread::spawn(move || {
        for (near, seed) in listener.incoming().flatten().zip(1..) {
            let Ok(far) = TcpStream::connect(("127.0.0.1", server)) else {
                continue;
            };
            let (near_in, far_in) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let late = late.clone();
            std::thread::spawn(move || carry(near_in, far_in, || Duration::ZERO));
            std::thread::spawn(move || {
                let mut dice: u64 = seed;
                carry(far, near, || late(&mut dice));
            });
        }
    });
    port
}

fn late(dice: &mut u64, is_losing: bool) -> Duration {
    let (mut late, mut wait) = (Duration::ZERO, AGAIN_AFTER);
    while is_losing && late < 20 * AGAIN_AFTER {
        *dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        if (*dice >> 33) % 100 >= LOST_PERCENT {
            break;
        }
        late += wait;
        wait *= 2;
    }
    late
}

fn carry(mut from: TcpStream, mut to: TcpStream, mut late: impl FnMut() -> Duration) {
    let mut piece = [0; 16_384];
    while let Ok(count) = from.read(&mut piece) {
        std::thread::sleep(late());
        if count == 0 || to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
fn an_edge_that_loses_a_third_of_the_stores_answers_loses_and_doubles_no_debit() {
    let redis = Server::start();
    let lossy = Lossy::before(redis.port);
    let ways = [lossy.port, redis.port].map(|port| format!("127.0.0.1:{port}"));
    let mut fleet = Fleet::through(redis, &ways[1], [&ways[0], &ways[1]], |plan| plan);
    let account = fleet.funded(FUNDS);
    let time = if crate::is_long() { LONG_CUT } else { CUT / 2 };
    let mut healed = Duration::ZERO;
    let log = fleet.under_light_load(&account, |fleet| {
        fleet.wait_calls(20);
        lossy.losing.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let refused = |edge: &World| edge.metric("gateway_rejected_total", &["ledger_unavailable"]);
        wait_until("requests that wait for the store in vain", SOON, || {
            refused(&fleet.edges[0]) > 0.0 && began.elapsed() >= time
        });
        lossy.losing.store(false, Ordering::Relaxed);
        let began = Instant::now();
        wait_admits(fleet, &fleet.edges[0], &account);
        healed = began.elapsed();
    });
    let began = Instant::now();
    wait_told(&fleet.edges);
    println!(
        "{LOST_PERCENT} % lost for {time:?}: {} answers whole, {} refused; admits again after {healed:?}, all told after {:?}",
        log.whole.len(),
        log.odd.len(),
        began.elapsed()
    );
    assert!(
        !log.odd.is_empty(),
        "nothing was lost: no request was refused"
    );
    fleet.matches(&account, &log);
    drop(fleet);
}

/// Round trip to a store in another region, in which no request of an edge with the shipped
/// `store.reply_timeout_ms` would be admitted.
const FAR: Duration = Duration::from_millis(300);

#[test]
fn an_edge_far_from_its_store_admits_requests_if_it_waits_long_enough_for_answers() {
    let redis = Server::start();
    let (near, far) = (redis.port, proxy(redis.port, |_| FAR));
    let store = |port, more: &str| {
        format!("store: {{kind: redis, url: \"redis://127.0.0.1:{port}\"{more}}}")
    };
    let plan = |role, store: &str| {
        Plan::default()
            .role(role)
            .edit("store: {kind: embedded}", store)
    };
    let sidecar = plan("sidecar", &store(near, "")).start();
    let edge = |store: &str| {
        plan("edge", store)
            .sidecar(sidecar.sidecar)
            .endpoints(&[sidecar.vendor.port])
    };
    let usual = edge(&store(far, "")).begin();
    let patient = edge(&store(far, ", reply_timeout_ms: 1000")).start();
    let account = sidecar.funded(FUNDS);
    for surface in BOTH {
        let request = surface.whole(&account.key, "input=10 output=10");
        wait_until("a request to be admitted", SOON, || {
            patient.ask(&request).status == 200
        });
    }
    wait_until("the control to have tried", SOON, || {
        usual.log().contains("admits no requests")
    });
    assert_eq!(usual.readiness().0, 503);
    wait_told(std::slice::from_ref(&patient));
}
