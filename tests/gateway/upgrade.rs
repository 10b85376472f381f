//! Tests an upgrade, in which a new process takes over from a running one: no request is refused or
//! cut off, and no credit is spent twice.

use crate::account::{Account, credits};
use crate::client::{Answer, Connection};
use crate::crash::{self, Habit, Load, wait_for_calls};
use crate::surface::{BOTH, Chat, Surface};
use crate::world::{Plan, SOON, World, signal, wait_for, wait_until};
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// Maximum time until the old process has ended. It keeps its sockets for five seconds.
const WAY_OUT: Duration = Duration::from_secs(40);

/// Number of requests in each phase of an upgrade under load.
const CALLS_OF_A_PHASE: u64 = 50;

/// Running streams. The head and the first event of each have been read.
fn streams(
    world: &World,
    account: &Account,
    count: usize,
    marker: &str,
    limit: u64,
) -> Vec<(Surface, Connection, Answer)> {
    let surfaces = BOTH.into_iter().cycle().take(count);
    let begin = |surface: Surface| {
        let (connection, answer) =
            world.begin_stream(&surface.request(&account.key, &surface.body(marker, true, limit)));
        (surface, connection, answer)
    };
    surfaces.map(begin).collect()
}

/// Waits until the old gateway has ended. Returns its status.
fn ended(old: &mut Child) -> ExitStatus {
    wait_for("the old gateway to end", WAY_OUT, || {
        old.try_wait().unwrap()
    })
}

#[test]
fn an_upgrade_under_load_refuses_nothing_and_cuts_nothing() {
    let (mut world, account) = World::with_funds(crash::FUNDS);
    let count = if crate::is_long() { 200 } else { 20 };
    let running = streams(
        &world,
        &account,
        count,
        "events=8 hold=5 input=10 output=5",
        1_000,
    );
    let load = Load {
        keys: &[&account.key],
        habits: &[Habit::Whole, Habit::Stream],
        interval: crash::slow_client_interval(),
        min_whole: 0,
    };
    let log = load.run(world.edge, || {
        // Clients ask before the handover, while both processes work, and after the old one's end.
        wait_for_calls(&world.vendor, CALLS_OF_A_PHASE);
        let mut old = world.upgrade();
        wait_for_calls(&world.vendor, CALLS_OF_A_PHASE);
        assert!(
            old.try_wait().unwrap().is_none(),
            "it has streams to finish"
        );
        world.vendor.release();
        for (surface, mut connection, mut answer) in running {
            surface.completes(&mut connection, &mut answer);
        }
        let status = ended(&mut old);
        assert_eq!(status.code(), Some(0));
        wait_for_calls(&world.vendor, CALLS_OF_A_PHASE);
    });
    let endings = log.is_in_ledger(&world, &account, count);
    assert!(
        endings
            .iter()
            .all(|ending| ending["outcome"] == "completed")
    );
    let said = world.log();
    let errors: Vec<_> = said
        .lines()
        .filter(|line| line.contains(" ERROR "))
        .collect();
    assert!(errors.is_empty(), "an upgrade is no error: {errors:?}");
    println!(
        "{} answers and {count} streams through an upgrade",
        log.whole.len()
    );
}

#[test]
fn credit_for_ten_admits_exactly_ten_across_an_upgrade() {
    let mut world = World::new();
    let marker = "events=9 hold=5 input=10 output=5";
    let body = Chat.body(marker, true, 200);
    let hold = body.to_string().len() as i64 * Chat.prices().0 + 200 * Chat.prices().1;
    let account = world.account_with("exact@example.test", &["--no-trial"]);
    world.grant(&account, &credits(10 * hold), "funds");
    let ask = |connection: &mut Connection| {
        connection.send(
            &Chat
                .request(&account.key, &body)
                .header("x-gateway-strict", "true")
                .bytes(),
        );
        connection.begin()
    };
    let kept: Vec<_> = (0..6)
        .map(|_| {
            let mut connection = world.connect();
            let answer = ask(&mut connection);
            assert_eq!(answer.status, 200, "{}", answer.text());
            (connection, answer)
        })
        .collect();
    // Connections of the old process that send a request only after the handover.
    let mut idle: Vec<_> = (0..8).map(|_| world.connect()).collect();
    for connection in &mut idle {
        let models = crate::client::Request::get("/v1/models").bearer(&account.key);
        assert_eq!(connection.ask(&models).status, 200);
    }
    let mut old = world.upgrade();
    // Old connections reach the old process and new ones the new process: 24 requests compete for
    // credit for four.
    let mut late: Vec<_> = idle
        .into_iter()
        .chain((0..16).map(|_| world.connect()))
        .collect();
    let admitted: usize = std::thread::scope(|scope| {
        let asked: Vec<_> = late
            .iter_mut()
            .map(|connection| {
                let ask = &ask;
                scope.spawn(move || {
                    let answer = ask(connection);
                    assert!(
                        matches!(answer.status, 200 | 402),
                        "{} {}",
                        answer.status,
                        answer.text()
                    );
                    usize::from(answer.status == 200)
                })
            })
            .collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(admitted <= 4, "{admitted} were admitted on credit for four");
    // If two requests race for the last credit, both may be refused. The credit is then free for a
    // later request.
    let mut rest: Vec<_> = (admitted..5).map(|_| world.connect()).collect();
    let statuses: Vec<_> = rest
        .iter_mut()
        .map(|connection| ask(connection).status)
        .collect();
    let expected: Vec<_> = (admitted..4).map(|_| 200).chain([402]).collect();
    assert_eq!(statuses, expected, "after {admitted}");
    let standing = world.shown(&account);
    assert_eq!(
        (standing.held, standing.available),
        (10 * hold, 0),
        "the command line counts both processes"
    );
    world.vendor.release();
    for (mut connection, mut answer) in kept {
        Chat.completes(&mut connection, &mut answer);
    }
    drop((late, rest));
    wait_until("ten debits", WAY_OUT, || {
        world.endings(&account).len() == 10
    });
    ended(&mut old);
    assert_eq!(world.standing(&account).held, 0);
}

#[test]
fn a_predecessor_that_dies_after_the_hand_over_leaves_nothing_held() {
    let (mut world, account) = World::with_account();
    let running = streams(
        &world,
        &account,
        4,
        "events=9 hold=5 input=10 output=5",
        1_000,
    );
    let mut old = world.upgrade();
    assert!(
        world.standing(&account).held > 0,
        "the successor counts what its predecessor holds"
    );
    old.kill().unwrap();
    old.wait().unwrap();
    wait_until("the holds to be given back", SOON, || {
        world.standing(&account).held == 0
    });
    let endings = world.endings(&account);
    assert_eq!(endings.len(), 4, "by the living process, without a restart");
    assert!(
        endings
            .iter()
            .all(|ending| ending["outcome"] == "interrupted"),
        "{endings:?}"
    );
    assert_eq!(world.standing(&account).balance, 300_000_000);
    drop(running);
}

/// Kills the predecessor at one moment of the hand-over to the successor with this process id.
type Kill<'k> = dyn Fn(&World, u32) + 'k;

/// Lets the predecessor wait for a successor that stands still.
fn wait_for_successor(world: &World, successor: u32) {
    let said = |world: &World| world.log().matches("handing over to a successor").count();
    let before = said(world);
    signal(successor, "STOP");
    world.signal("QUIT");
    wait_until("the hand-over", SOON, || said(world) > before);
}

#[test]
fn a_successor_whose_predecessor_is_killed_at_the_hand_over_binds_the_addresses_itself() {
    let (mut world, account) = World::with_account();
    let socket = world.data_dir().join("upgrade.sock");
    let kills: [&Kill<'_>; 4] = [
        // Before it hands over, and somewhere on the way.
        &|world, _| world.signal("KILL"),
        &|world, _| {
            world.signal("QUIT");
            world.signal("KILL");
        },
        // While it waits for the successor to ask for the sockets.
        &|world, successor| {
            wait_for_successor(world, successor);
            world.signal("KILL");
            signal(successor, "CONT");
        },
        // After the successor has asked for them.
        &|world, successor| {
            wait_for_successor(world, successor);
            world.signal("STOP");
            signal(successor, "CONT");
            wait_until("the successor to ask", SOON, || socket.exists());
            world.signal("KILL");
        },
    ];
    for kill in kills {
        let successor = world.begin_successor();
        let id = successor.id();
        let mut old = world.hand_over_by(successor, |world| kill(world, id));
        old.wait().unwrap();
        world.works(Chat, &account.key);
    }
}

#[test]
fn a_gateway_is_upgraded_whose_data_dir_is_longer_than_the_path_of_a_socket_may_be() {
    for bytes in [143, 240] {
        let dir = tempfile::tempdir().unwrap();
        let rest = bytes - dir.path().as_os_str().len() - "/".len();
        let data = dir.path().join("d".repeat(rest));
        let (mut world, account) = Plan::default().data(&data).with_account();
        let marker = "events=8 hold=5 input=10 output=5";
        let running = streams(&world, &account, 2, marker, 1_000);
        let mut old = world.upgrade();
        world.works(Chat, &account.key);
        world.vendor.release();
        for (surface, mut connection, mut answer) in running {
            surface.completes(&mut connection, &mut answer);
        }
        let status = ended(&mut old);
        assert_eq!(status.code(), Some(0), "{}", world.log());
    }
}

#[test]
fn without_a_successor_the_signal_changes_nothing() {
    let (world, account) = World::with_account();
    world.signal("QUIT");
    world.wait_log("no successor waits");
    for surface in BOTH {
        world.expect(200, &surface.whole(&account.key, "input=10 output=5"));
    }
}

#[test]
fn a_stream_that_takes_longer_than_a_drain_outlives_its_gateways_upgrade() {
    let (mut world, account) = Plan::default().limit("drain_seconds", 1).with_account();
    let running = streams(
        &world,
        &account,
        2,
        "events=110 gap_ms=100 input=10 output=5",
        1_000,
    );
    let mut old = world.upgrade();
    for (surface, mut connection, mut answer) in running {
        surface.completes(&mut connection, &mut answer);
    }
    ended(&mut old);
}

#[test]
fn an_old_gateway_that_is_told_to_end_has_the_drains_time() {
    let (mut world, account) = Plan::default().limit("drain_seconds", 1).with_account();
    let running = streams(
        &world,
        &account,
        2,
        "events=300 gap_ms=100 input=10 output=5",
        1_000,
    );
    let mut old = world.upgrade();
    let pid = old.id().to_string();
    wait_until("the old gateway to have handed over", WAY_OUT, || {
        world.log().contains("handing over")
    });
    assert!(
        std::process::Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    let status = ended(&mut old);
    assert_eq!(status.code(), Some(0));
    for (surface, mut connection, mut answer) in running {
        connection.finish(&mut answer);
        assert!(
            answer.has(surface.error_frame()),
            "{surface:?}: {}",
            answer.text()
        );
    }
    wait_until("the cut ones to end", SOON, || {
        world.standing(&account).held == 0
    });
    let endings = wait_for("both debits", SOON, || {
        Some(world.endings(&account)).filter(|endings| endings.len() == 2)
    });
    assert!(
        endings
            .iter()
            .all(|ending| ending["outcome"] == "gateway_ended"),
        "{endings:?}"
    );
    let paid = crate::account::taken(&endings);
    assert!(
        paid > 0 && world.standing(&account).balance == 300_000_000 - paid,
        "{endings:?}"
    );
}

#[test]
fn the_key_of_a_request_that_died_with_its_old_gateway_is_free_again() {
    let (mut world, account) = World::with_account();
    let mut connection = world.connect();
    let stream = Chat
        .stream(&account.key, "events=90 gap_ms=100 input=10 output=5")
        .header("idempotency-key", "k1");
    connection.send(&stream.bytes());
    let mut answer = connection.begin();
    assert!(connection.more(&mut answer), "{}", answer.text());
    let mut old = world.upgrade();
    old.kill().unwrap();
    old.wait().unwrap();
    let again = wait_for("the key to be free", SOON, || {
        let answer = world.ask(&stream);
        assert!(matches!(answer.status, 200 | 409), "{}", answer.text());
        (answer.status == 200).then_some(answer)
    });
    assert!(Chat.is_complete(&again), "{}", again.text());
}

#[test]
fn a_second_gateway_on_the_same_data_is_refused() {
    let world = World::new();
    let output = world.command(&["run"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("is served by process") && said.contains("--upgrade"),
        "{said}"
    );
}
