//! The gateway over a long time: pages that stay reachable during an upgrade, consecutive upgrades
//! under load, a clock that jumps, hours of work, and secrets that do not leak.

use crate::account::Account;
use crate::client::{self, Request};
use crate::crash::{self, Habit, Load, wait_for_calls};
use crate::h2::resident_kib;
use crate::secrets::Seen;
use crate::surface::{BOTH, Chat};
use crate::world::{Plan, SOON, World, faketime, wait_for};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long an old process may take to exit.
const WAY_OUT: Duration = Duration::from_secs(60);
/// Number of requests in each phase of an upgrade under load.
const CALLS_OF_A_PHASE: u64 = 20;
const PASSWORD: &str = "CANARY+long+password";

impl World {
    /// Signs up through the edge and returns the session's cookie.
    fn visitor(&self, email: &str) -> String {
        let answer = self.expect(
            303,
            &Request::form(
                "/dashboard/sign-up",
                &format!("email={email}&password={PASSWORD}"),
            ),
        );
        answer
            .header("set-cookie")
            .unwrap()
            .split(';')
            .next()
            .unwrap()
            .to_owned()
    }

    fn page(&self, path: &str, cookie: &str) -> client::Answer {
        self.ask(&Request::get(path).header("cookie", cookie))
    }
}

/// Asserts that an old process exits by itself with status 0.
fn ends_well(old: &mut std::process::Child) {
    let status = wait_for("the old gateway to end", WAY_OUT, || {
        old.try_wait().unwrap()
    });
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_pages_are_reached_all_through_an_upgrade_and_a_live_page_finds_the_successor() {
    let mut world = World::new();
    let cookie = world.visitor("page@example.test");
    let live = Request::get("/dashboard/live").header("cookie", &cookie);
    let (mut before, mut stream) = world.begin_stream(&live);
    let (edge, sidecar, admin) = (world.edge, world.sidecar, world.admin);
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        // Each request uses its own connection, and none asks twice: the old process hands all its
        // listening sockets over to its successor.
        let ask_all = |port: u16, path: &'static str| {
            let (stop, asked, cookie) = (&stop, &asked, &cookie);
            scope.spawn(move || {
                let request = Request::get(path).header("cookie", cookie);
                while !stop.load(Ordering::Relaxed) {
                    let status = client::try_ask(port, &request).map(|answer| answer.status);
                    assert_eq!(status, Some(200), "{path} on {port}");
                    asked.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        };
        for (port, path) in [
            (edge, "/dashboard"),
            (sidecar, "/dashboard"),
            (edge, "/healthz"),
            (admin, "/metrics"),
        ] {
            ask_all(port, path);
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut old = world.upgrade();
            ends_well(&mut old);
        }));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(asked.load(Ordering::Relaxed) > 100, "{asked:?}");
    // The live page's stream ended with the old process. The browser asks the successor again with
    // the same cookie.
    before.finish(&mut stream);
    let (after, _) = world.begin_stream(&live);
    drop(after);
}

#[test]
fn one_upgrade_after_the_other_under_load_refuses_nothing_and_cuts_nothing() {
    let (mut world, account) = World::with_funds(crash::FUNDS);
    let rounds = if crate::is_long() { 20 } else { 2 };
    let streams = if crate::is_long() { 200 } else { 10 };
    let mut complete = 0;
    let load = Load {
        keys: &[&account.key],
        habits: &[Habit::Whole, Habit::Stream],
        interval: crash::slow_client_interval(),
        min_whole: 0,
    };
    let log = load.run(world.edge, || {
        for _ in 0..rounds {
            // Clients ask before each handover, and while both processes work.
            wait_for_calls(&world.vendor, CALLS_OF_A_PHASE);
            let begin = |surface: crate::surface::Surface| {
                let (connection, answer) = world.begin_stream(
                    &surface.stream(&account.key, "events=40 gap_ms=50 input=10 output=5"),
                );
                (surface, connection, answer)
            };
            let running: Vec<_> = BOTH.into_iter().cycle().take(streams).map(begin).collect();
            let mut old = world.upgrade();
            wait_for_calls(&world.vendor, CALLS_OF_A_PHASE);
            for (surface, mut connection, mut answer) in running {
                surface.completes(&mut connection, &mut answer);
                complete += 1;
            }
            ends_well(&mut old);
        }
    });
    log.is_in_ledger(&world, &account, complete);
    println!(
        "{rounds} upgrades: {} answers, {complete} streams, nothing refused, nothing cut",
        log.whole.len()
    );
}

#[test]
fn a_clock_that_jumps_refuses_nobody_and_cuts_nothing() {
    let Some(library) = faketime() else { return };
    let dir = tempfile::tempdir().unwrap();
    let clock = dir.path().join("clock");
    let set = |offset: &str| {
        std::fs::write(dir.path().join("next"), offset).unwrap();
        std::fs::rename(dir.path().join("next"), &clock).unwrap();
    };
    set("+0");
    let plan = Plan::default()
        .limit("idle_seconds", 5)
        .limit("sign_ups_per_address_per_hour", 100);
    let plan = plan
        .environment("LD_PRELOAD", library.as_os_str())
        .environment("FAKETIME_TIMESTAMP_FILE", &clock);
    // Timeouts use the monotonic clock, which no operator sets.
    let plan = plan
        .environment("DONT_FAKE_MONOTONIC", "1")
        .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let (world, account) = plan.environment("FAKETIME_NO_CACHE", "1").with_account();
    world.json(&[
        "key",
        "set",
        &account.key_id,
        "--requests-per-minute",
        "1000",
    ]);
    let mut cookie = world.visitor("clock@example.test");
    let (mut count, mut dates) = (1, HashSet::new());
    let keyed = Chat.whole(&account.key, "input=10 output=5");
    let keyed = keyed.header("idempotency-key", "a-key");
    let first = world.ask(&keyed).request_id();
    // A session ends after twelve idle hours, so a jump of one day ends it. Setting the clock back
    // ends no session.
    let jumps = [
        ("+1h", true),
        ("+0", true),
        ("-1h", true),
        ("+1d", false),
        ("-1d", true),
        ("+0", false),
    ];
    for (offset, sessions_live) in jumps {
        let (mut running, mut answer) =
            world.begin_stream(&Chat.stream(&account.key, "events=8 gap_ms=200 input=10 output=5"));
        set(offset);
        for surface in BOTH {
            world.works(surface, &account.key);
        }
        running.finish(&mut answer);
        assert!(Chat.is_complete(&answer), "{offset}: {}", answer.text());
        count += 3;
        let replayed = world.ask(&keyed);
        assert_eq!(replayed.request_id(), first, "{offset}: a key is forgotten");
        assert_eq!(
            world.page("/dashboard", &cookie).status == 200,
            sessions_live,
            "{offset}: a session"
        );
        dates.insert(world.ended_at(&account, count));
        // First a wrong password, then the right one: after a jump no user has to wait until the
        // clock catches up.
        let sign_in = |password: &str| {
            let form = format!("email=clock@example.test&password={password}");
            world.ask(&Request::form("/dashboard/sign-in", &form))
        };
        assert_eq!(sign_in("wrong+password").status, 401, "{offset}");
        let signed_in = sign_in(PASSWORD);
        assert_eq!(signed_in.status, 303, "{offset}: {}", signed_in.text());
        cookie = signed_in
            .header("set-cookie")
            .unwrap()
            .split(';')
            .next()
            .unwrap()
            .to_owned();
        assert_eq!(world.page("/dashboard", &cookie).status, 200, "{offset}");
        let answer = world.ask(&Request::get("/v1/credits").bearer(&account.key));
        assert_eq!(answer.status, 200, "{offset}: {}", answer.text());
    }
    assert!(dates.len() >= 3, "the clock did not jump: {dates:?}");
    world.ended(&account, count);
    let endings = world.endings(&account);
    let ids: HashSet<_> = endings
        .iter()
        .map(|ending| ending["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(
        (endings.len(), ids.len()),
        (count, count),
        "no request twice"
    );
    assert!(
        endings
            .iter()
            .all(|ending| ending["outcome"] == "completed")
    );
    assert!(!world.log().contains("ERROR"), "{}", world.log());
}

impl World {
    /// Waits for `count` endings and returns the ledger's date of the newest.
    fn ended_at(&self, account: &Account, count: usize) -> String {
        let endings = wait_for("the requests to end", SOON, || {
            Some(self.endings(account)).filter(|endings| endings.len() >= count)
        });
        let newest = endings
            .iter()
            .max_by_key(|ending| ending["seq"].as_i64())
            .unwrap();
        newest["at"].as_str().unwrap()[..10].to_owned()
    }
}

#[test]
fn work_for_a_long_time_takes_no_more_memory_and_no_more_files() {
    let (warm, soak, allowed) = if crate::is_long() {
        (
            Duration::from_secs(300),
            Duration::from_secs(1_800),
            4 * 1_024,
        )
    } else {
        (Duration::from_secs(3), Duration::from_secs(6), 48 * 1_024)
    };
    let (world, account) = World::with_funds(crash::FUNDS);
    let mut samples = Vec::new();
    let load = Load {
        keys: &[&account.key],
        habits: &[Habit::Whole, Habit::Stream, Habit::Abort],
        interval: 2 * crash::client_interval(),
        min_whole: 0,
    };
    let log = load.run(world.edge, || {
        std::thread::sleep(warm);
        let began = Instant::now();
        while began.elapsed() < soak {
            samples.push((resident_kib(world.pid()), world.open_files()));
            std::thread::sleep(soak / 20);
        }
    });
    assert!(log.odd.is_empty(), "{:?}", log.odd.first());
    // The median of each half, because a burst does not move it.
    let middle = |samples: &[(u64, usize)]| {
        let mut memory: Vec<_> = samples.iter().map(|(memory, _)| *memory).collect();
        let mut files: Vec<_> = samples.iter().map(|(_, files)| *files).collect();
        memory.sort_unstable();
        files.sort_unstable();
        (memory[memory.len() / 2], files[files.len() / 2])
    };
    let (first, last) = samples.split_at(samples.len() / 2);
    let ((memory, files), (memory_later, files_later)) = (middle(first), middle(last));
    println!(
        "{} answers in {soak:?}: {memory} → {memory_later} KiB, {files} → {files_later} files",
        log.whole.len()
    );
    assert!(
        memory_later <= memory + allowed,
        "{memory} → {memory_later} KiB: {samples:?}"
    );
    assert!(
        files_later <= files + 16,
        "{files} → {files_later} files: {samples:?}"
    );
}

#[test]
fn passwords_sessions_invitations_and_prompts_are_in_no_log_no_metric_and_no_file() {
    let access = tempfile::tempdir().unwrap();
    let access_log = access.path().join("access.log");
    let world = Plan::default().telling_everything(&access_log).start();
    let cookie = world.visitor("canary@example.test");
    let token = cookie.split_once('=').unwrap().1.to_owned();
    let shown = world.json(&["account", "show", "canary@example.test"]);
    let (_, key) = world.key(shown["account_id"].as_str().unwrap(), "canary");
    let invite = world.json(&["account", "invite"]);
    let code = invite
        .to_string()
        .split('"')
        .filter(|word| word.len() >= 16 && !word.contains(' '))
        .map(str::to_owned)
        .next();
    for surface in BOTH {
        for stream in [false, true] {
            let marker = "text=CANARY-prompt input=10 output=5";
            let request = if stream {
                surface.stream(&key, marker)
            } else {
                surface.whole(&key, marker)
            };
            let answer = world.ask(&request);
            let is_told = if stream {
                surface.is_complete(&answer)
            } else {
                answer.has("CANARY-prompt")
            };
            assert!(answer.status == 200 && is_told, "{}", answer.text());
            // A vendor that fails and does not quote the request, an unknown key, and a body that
            // is not JSON.
            world.ask(&surface.whole(&key, "status=500"));
            world.ask(&surface.whole("gw-sk-CANARY-of-nobody", "text=CANARY-prompt"));
            world.ask(&Request::post(surface.path(), b"{CANARY-prompt".to_vec()).bearer(&key));
        }
    }
    let mut broken = world.connect();
    broken.send(
        format!("POST /v1/messages HTTP/1.1\r\nx-api-key: {key}\r\nno field\r\n\r\n").as_bytes(),
    );
    assert!(broken.try_begin().is_none_or(|answer| answer.status == 400));
    let wrong = Request::form(
        "/dashboard/sign-in",
        "email=canary@example.test&password=CANARY+wrong+password",
    );
    world.expect(401, &wrong);
    let mut seen = Seen::default();
    for path in [
        "/dashboard",
        "/dashboard/keys",
        "/dashboard/activity",
        "/dashboard/account",
        "/docs",
    ] {
        let page = world.page(path, &cookie);
        assert_eq!(page.status, 200, "{path}");
        seen.add(path, page.body);
    }
    wait_for("the access log", SOON, || {
        std::fs::read_to_string(&access_log)
            .ok()
            .filter(|text| text.lines().count() > 20)
    });
    seen.add_all_of(&world, &access_log);
    // The secrets as plain text, and as a debug print of single characters or bytes shows them. The
    // latter also finds secrets that a stream splits.
    let mut secrets = vec![
        "CANARY",
        "'C', 'A', 'N', 'A'",
        "67, 65, 78, 65",
        "a long password",
        &token,
        &key,
    ];
    secrets.extend(code.as_deref());
    seen.has_none_of(&secrets);
}
