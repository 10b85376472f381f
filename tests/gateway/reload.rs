//! Tests which config changes a reload applies. A change that a running process cannot apply is
//! named by its key in the log and counted in a gauge.

use crate::client::Request;
use crate::surface::Chat;
use crate::world::{Plan, SOON, World, wait_until};
use serde_json::Value;
use std::path::Path;

const STORE: &str = "store: {kind: embedded}";

impl World {
    /// Changes a text of the config file and reloads. The reload must succeed.
    fn reload_with(&self, from: &str, to: &str) {
        self.reload("ok", from, to);
    }

    fn reload(&self, result: &str, from: &str, to: &str) {
        let reloads = || self.metric("gateway_config_reloads_total", &[&format!("\"{result}\"")]);
        let (before, text) = (reloads(), std::fs::read_to_string(&self.config).unwrap());
        assert!(text.contains(from), "{from:?} is not in {text}");
        std::fs::write(&self.config, text.replacen(from, to, 1)).unwrap();
        self.signal("HUP");
        wait_until("the reload", SOON, || reloads() > before);
    }

    fn waiting(&self) -> f64 {
        self.metric("gateway_config_keys_waiting", &[])
    }
}

fn requests(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let id = |line: &str| {
        serde_json::from_str::<Value>(line).unwrap()["request_id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    text.lines().map(id).collect()
}

#[test]
fn the_access_log_goes_to_another_place_and_ends_and_begins_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let key = |name: &str| format!("access_log: {:?}", place(name).display().to_string());
    let world = Plan::default()
        .edit(STORE, &format!("{STORE}\n{}", key("first")))
        .limit("access_log_lines", 16)
        .start();
    let asked = |world: &World| world.ask(&Request::get("/v1/credits")).request_id();
    let is_told = |name: &str, ids: &[&str]| {
        wait_until("the lines", SOON, || {
            requests(&place(name)).len() >= ids.len()
        });
        assert_eq!(requests(&place(name)), ids, "{name}");
    };
    let first = asked(&world);
    is_told("first", &[&first]);
    world.reload_with(&key("first"), &key("second"));
    let second = asked(&world);
    is_told("second", &[&second]);
    world.reload_with(&key("second"), r#"access_log: "off""#);
    asked(&world);
    world.reload_with(r#"access_log: "off""#, &key("first"));
    let last = asked(&world);
    is_told("first", &[&first, &last]);
    is_told("second", &[&second]);
    // A path that cannot be opened changes nothing: a reload applies all changes or none.
    world.reload("refused", &key("first"), &key("no/such/folder"));
    assert!(world.log().contains("no/such/folder"), "{}", world.log());
    let more = asked(&world);
    is_told("first", &[&first, &last, &more]);
    world.reload_with(&key("no/such/folder"), &key("first"));
    world.reload_with("access_log_lines: 16", "access_log_lines: 17");
    let longer = asked(&world);
    is_told("first", &[&first, &last, &more, &longer]);
    assert_eq!(world.waiting(), 0.0);
    assert!(!world.log().contains("was changed"), "{}", world.log());
}

#[test]
fn a_drain_takes_the_time_that_the_file_says_when_it_begins() {
    let (mut world, account) = Plan::default().limit("drain_seconds", 3_600).with_account();
    let (connection, _) =
        world.begin_stream(&Chat.stream(&account.key, "events=600 gap_ms=200 input=10 output=5"));
    world.reload_with("drain_seconds: 3600", "drain_seconds: 1");
    world.signal("TERM");
    assert_eq!(world.wait_end(SOON), 0);
    drop(connection);
    world.start_gateway();
}

#[test]
fn an_accounts_open_requests_are_counted_against_the_limit_of_today() {
    let is_counted = |shared: bool| {
        let plan = Plan::default()
            .limit("open_requests_per_account", 1)
            .limit("drain_after_client_seconds", 1)
            .limit("drain_reasoning_seconds", 1);
        let (world, account) = if shared { plan.shared() } else { plan }.with_account();
        let (running, _) =
            world.begin_stream(&Chat.stream(&account.key, "events=8 hold=5 input=10 output=5"));
        let ask = || {
            world
                .ask(&Chat.whole(&account.key, "input=1 output=1"))
                .status
        };
        assert_eq!(ask(), 429);
        world.reload_with(
            "open_requests_per_account: 1",
            "open_requests_per_account: 2",
        );
        assert_eq!(ask(), 200);
        drop(running);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| is_counted(false));
        scope.spawn(|| is_counted(true));
    });
}

#[test]
fn what_waits_for_a_start_is_told_by_its_key_until_it_is_taken_or_taken_back() {
    let changes = [
        ("journal_segment_bytes", 1_048_576, 2_097_152),
        ("journal_reserve_bytes", 1_048_576, 65_536),
        ("journal_pending", 2_048, 4_096),
        ("journal_bytes", 2_097_152, 1_048_576),
        ("keepalive_requests", 100, 200),
        ("header_bytes", 16_384, 32_768),
        ("keepalive_seconds", 30, 60),
        ("open_requests", 100, 200),
    ];
    let plan = changes
        .iter()
        .fold(Plan::default(), |plan, (key, at_start, _)| {
            plan.limit(key, *at_start)
        });
    let world = plan.start();
    let line = |key: &str, value: u64| format!("  {key}: {value}\n");
    let told = |world: &World, key: &str| world.log().matches(&format!("limits.{key}")).count();
    for (index, (key, at_start, later)) in changes.into_iter().enumerate() {
        assert_eq!(told(&world, key), 0);
        world.reload_with(&line(key, at_start), &line(key, later));
        assert_eq!(
            (told(&world, key), world.waiting()),
            (1, (index + 1) as f64),
            "{key}: {}",
            world.log()
        );
    }
    // With the file as it was at the start, no change waits for a restart.
    for (key, at_start, later) in changes {
        world.reload_with(&line(key, later), &line(key, at_start));
    }
    assert_eq!(world.waiting(), 0.0);
    // A reload can always lower the number of concurrent requests, and raise it again to the value
    // at the start.
    for (from, to) in [(100, 50), (50, 100)] {
        let before = told(&world, "open_requests");
        world.reload_with(&line("open_requests", from), &line("open_requests", to));
        assert_eq!(
            (told(&world, "open_requests"), world.waiting()),
            (before, 0.0)
        );
    }
    // A reload applies these changes, and logs nothing about them.
    let said = world.log().matches("was changed").count();
    world.reload_with(
        "  keepalive_requests",
        "  total_seconds: 60\n  attempts: 8\n  keepalive_requests",
    );
    assert_eq!(
        world.log().matches("was changed").count(),
        said,
        "{}",
        world.log()
    );
}

#[test]
fn another_address_of_the_shared_store_waits_for_a_start() {
    let (world, account) = Plan::default().shared().with_account();
    world.reload_with("redis://127.0.0.1:", "redis://127.0.0.2:");
    assert!(world.log().contains("store was changed"), "{}", world.log());
    assert_eq!(world.waiting(), 1.0);
    world.expect(200, &Chat.whole(&account.key, "input=1 output=1"));
    world.reload_with("redis://127.0.0.2:", "redis://127.0.0.1:");
    assert_eq!(world.waiting(), 0.0);
}
