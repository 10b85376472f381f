//! Tests an edge behind a proxy: which client address counts, which peers the edge trusts, and
//! which it does not.
//!
//! All addresses of 127.0.0.0/8 belong to this machine, so one test can act as the proxy and as an
//! untrusted client.

use crate::client::Request;
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The address that the gateway of these tests trusts.
const PROXY: &str = "127.0.0.5";
const STRANGER: &str = "127.0.0.6";
const PASSWORD: &str = "a+long+password";

/// A gateway that trusts [`PROXY`] and 127.0.1.0/24, and the path of its access log.
fn behind_a_proxy(plan: Plan) -> (World, PathBuf, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let store = "store: {kind: embedded}";
    let plan = plan.edit(
        store,
        &format!("{store}\naccess_log: {:?}", path.display().to_string()),
    );
    let trust = format!("listen:\n  trust_proxy: [\"{PROXY}\", \"127.0.1.0/24\"]\n");
    (plan.edit("listen:\n", &trust).start(), path, dir)
}

/// The header and the body that curl receives when it sends a request from an address of this
/// machine.
fn curl(
    world: &World,
    from: &str,
    path: &str,
    header: &[&str],
    form: Option<&str>,
) -> (u16, String) {
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--include",
        "--max-time",
        "40",
        "--interface",
        from,
        "--noproxy",
        "*",
    ]);
    for field in header {
        curl.args(["--header", field]);
    }
    curl.args(form.iter().flat_map(|form| ["--data", form]));
    let output = curl
        .arg(format!("http://127.0.0.1:{}{path}", world.edge))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no answer: {text}")), text)
}

/// Waits for `count` lines in the access log and returns their addresses.
fn clients(path: &Path, count: usize) -> Vec<String> {
    let read = || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines
            .map(|line| line["client"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let clients = wait_for("every request to be told", SOON, || {
        Some(read()).filter(|told| told.len() >= count)
    });
    assert_eq!(clients.len(), count, "{clients:?}");
    clients
}

#[test]
fn the_access_log_names_whom_a_trusted_proxy_names_and_nobody_whom_others_do() {
    let (world, log, _dir) = behind_a_proxy(Plan::default());
    let lie = "x-forwarded-for: 203.0.113.9";
    for (from, header, client) in [
        (PROXY, &[lie][..], "203.0.113.9"),
        (
            PROXY,
            &["x-forwarded-for: 198.51.100.1, 203.0.113.9, 127.0.1.7"],
            "203.0.113.9",
        ),
        (
            PROXY,
            &["forwarded: for=\"[2001:db8::9]:47\";proto=https"],
            "2001:db8::9",
        ),
        (PROXY, &["x-forwarded-for: nobody"], PROXY),
        (
            PROXY,
            &[lie, "connection: keep-alive, x-forwarded-for"],
            "203.0.113.9",
        ),
        (PROXY, &[], PROXY),
        ("127.0.1.200", &[lie], "203.0.113.9"),
        (STRANGER, &[lie], STRANGER),
        (STRANGER, &["forwarded: for=203.0.113.9"], STRANGER),
        (
            STRANGER,
            &[
                "x-forwarded-for: 203.0.113.9, 127.0.0.5",
                "x-real-ip: 203.0.113.9",
            ],
            STRANGER,
        ),
    ] {
        let before = clients(
            &log,
            std::fs::read_to_string(&log)
                .unwrap_or_default()
                .lines()
                .count(),
        )
        .len();
        assert_eq!(curl(&world, from, "/healthz", header, None).0, 200);
        assert_eq!(
            clients(&log, before + 1).pop().unwrap(),
            client,
            "{from} {header:?}"
        );
    }
    world.close();
}

#[test]
fn sign_ups_and_sessions_are_counted_and_named_by_the_clients_address() {
    let plan = Plan::default().limit("sign_ups_per_address_per_hour", 2);
    let (world, _log, _dir) = behind_a_proxy(plan);
    let mut count = 0;
    let mut sign_up = |from: &str, client: &str| {
        count += 1;
        let form = format!("email=p{count}@example.test&password={PASSWORD}");
        let header = [
            format!("x-forwarded-for: {client}"),
            "x-forwarded-proto: https".into(),
        ];
        let header: Vec<_> = header.iter().map(String::as_str).collect();
        curl(&world, from, "/dashboard/sign-up", &header, Some(&form))
    };
    let first = sign_up(PROXY, "203.0.113.9");
    assert_eq!(
        [
            first.0,
            sign_up(PROXY, "203.0.113.9").0,
            sign_up(PROXY, "203.0.113.9").0
        ],
        [303, 303, 429]
    );
    assert_eq!(
        sign_up(PROXY, "203.0.113.10").0,
        303,
        "another client of the same proxy"
    );
    // The client used https, so the cookie is bound to https. The cookie belongs to a session.
    let cookie = first
        .1
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .expect("a cookie");
    assert!(
        cookie.starts_with("__Host-gw=") && cookie.contains("; Secure;"),
        "{cookie}"
    );
    let cookie = format!("cookie: {}", cookie.split(';').next().unwrap());
    let header = [
        "x-forwarded-for: 203.0.113.9",
        "x-forwarded-proto: https",
        &cookie,
    ];
    let (status, page) = curl(&world, PROXY, "/dashboard/account", &header, None);
    assert!(status == 200 && page.contains("203.0.113.9"), "{page}");
    assert!(!page.contains(PROXY), "{page}");
    // An untrusted client counts as its own address, whatever its headers say, and it used plain
    // HTTP.
    for (client, expected) in [
        ("203.0.113.20", 303),
        ("203.0.113.21", 303),
        ("203.0.113.22", 429),
    ] {
        let (status, answer) = sign_up(STRANGER, client);
        assert_eq!(status, expected, "{answer}");
        let has_cookie = answer.contains("set-cookie: gw-session=") && !answer.contains("Secure");
        assert_eq!(has_cookie, expected == 303, "{answer}");
    }
    world.close();
}

/// Sign-ups from loopback are not counted, because they come from this machine. A proxy on loopback
/// that does not name its clients forwards anyone, so its sign-ups are counted.
#[test]
fn sign_ups_by_a_proxy_that_names_nobody_are_counted() {
    let (world, _log, _dir) =
        behind_a_proxy(Plan::default().limit("sign_ups_per_address_per_hour", 2));
    let mut count = 0;
    let mut sign_up = |from: &str, header: &[&str]| {
        count += 1;
        let form = format!("email=p{count}@example.test&password={PASSWORD}");
        curl(&world, from, "/dashboard/sign-up", header, Some(&form)).0
    };
    assert_eq!([(); 3].map(|()| sign_up(PROXY, &[])), [303, 303, 429]);
    assert_eq!(
        sign_up(PROXY, &["x-forwarded-for: unknown"]),
        429,
        "nor one that it cannot name"
    );
    assert_eq!(sign_up(PROXY, &["x-forwarded-for: 203.0.113.9"]), 303);
    // An untrusted client is not treated as a proxy, whatever its headers say.
    assert_eq!(
        [(); 3].map(|()| sign_up(STRANGER, &["x-gateway-unnamed: true"])),
        [303; 3]
    );
    world.close();
}

/// A refusal that reveals whether an email address has an account must be limited like a sign-up.
#[test]
fn addresses_that_have_an_account_cannot_be_tried_without_end() {
    let (world, _log, _dir) =
        behind_a_proxy(Plan::default().limit("sign_ups_per_address_per_hour", 3));
    let sign_up = |client: &str, email: &str, password: &str| {
        let form = format!("email={email}&password={password}");
        curl(
            &world,
            PROXY,
            "/dashboard/sign-up",
            &[&format!("x-forwarded-for: {client}")],
            Some(&form),
        )
        .0
    };
    assert_eq!(sign_up("203.0.113.9", "taken@example.test", PASSWORD), 303);
    // A control: refusals that reveal nothing are not counted.
    for _ in 0..4 {
        assert_eq!(sign_up("203.0.113.10", "new@example.test", "short"), 422);
    }
    assert_eq!(
        [(); 4].map(|()| sign_up("203.0.113.10", "taken@example.test", PASSWORD)),
        [409, 409, 409, 429]
    );
    assert_eq!(
        sign_up("203.0.113.10", "new@example.test", PASSWORD),
        429,
        "a new one gets the same answer then"
    );
    assert_eq!(
        sign_up("203.0.113.11", "new@example.test", PASSWORD),
        303,
        "others are not kept out"
    );
    world.close();
}

#[test]
fn the_connections_of_a_proxy_are_not_one_clients() {
    let (world, _log, _dir) = behind_a_proxy(Plan::default().limit("connections_per_address", 2));
    let held = |from: &str| {
        let mut curl = Command::new("curl");
        // Curl sends nothing, so its connection stays open for `limits.header_read_seconds`.
        curl.args(["--silent", "--max-time", "60", "--interface", from]);
        curl.arg(format!("telnet://127.0.0.1:{}", world.edge));
        curl.stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let open = |count: f64| {
        wait_until("the connections", SOON, || {
            world.metric("gateway_client_connections", &[]) == count
        });
    };
    open(0.0);
    let mut all: Vec<_> = (0..5).map(|_| held(PROXY)).collect();
    open(5.0);
    assert_eq!(world.metric("gateway_connections_refused_total", &[]), 0.0);
    all.extend((0..5).map(|_| held(STRANGER)));
    world.wait_metric(
        "gateway_connections_refused_total",
        &["limit=\"per_address\""],
        3.0,
    );
    for mut curl in all {
        curl.kill().unwrap();
        curl.wait().unwrap();
    }
    open(0.0);
    world.close();
}

#[test]
fn a_proxy_is_trusted_from_the_reload_on_that_names_it() {
    let (world, log, _dir) = behind_a_proxy(Plan::default());
    let header = ["x-forwarded-for: 203.0.113.9"];
    curl(&world, STRANGER, "/healthz", &header, None);
    assert_eq!(clients(&log, 1), [STRANGER]);
    let text = std::fs::read_to_string(&world.config).unwrap();
    std::fs::write(&world.config, text.replace(PROXY, STRANGER)).unwrap();
    world.signal("HUP");
    wait_until("the reload", SOON, || {
        world.metric("gateway_config_reloads_total", &[]) > 0.0
    });
    curl(&world, STRANGER, "/healthz", &header, None);
    curl(&world, PROXY, "/healthz", &header, None);
    assert_eq!(clients(&log, 3), [STRANGER, "203.0.113.9", PROXY]);
    world.expect(200, &Request::get("/healthz"));
    world.close();
}
