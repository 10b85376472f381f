//! Tests sign-in from a terminal from end to end: a program asks, a person approves it in the
//! browser, its key pays, and the person's revocation ends both at once, at each edge.

use crate::account::micro;
use crate::client::{Answer, Request};
use crate::keys_of_edges::Edges;
use crate::surface::Messages;
use crate::world::{Plan, SOON, World, binary, wait_for, wait_until};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const DEVICE_GRANT: &str = "grant_type=urn:ietf:params:oauth:grant-type:device_code";

fn on(plan: Plan) -> Plan {
    plan.edit("signup:", "sign_in: {device: true}\nsignup:")
}

fn call(world: &World, path: &str, form: &str) -> Answer {
    world.ask(&Request::form(path, form).header("user-agent", "claude-code/2.1.332"))
}

fn text(answer: &Value, name: &str) -> String {
    answer[name].as_str().unwrap_or_default().to_owned()
}

/// The person approves a code on the page, which asks once more, for the account that it chooses.
fn approve(world: &World, cookie: &str, code: &str) {
    let token = world.form_token(cookie);
    let send = |fields: &str| {
        let form = format!("csrf={token}&user_code={code}&{fields}");
        let answer = world.ask(&Request::form("/device", &form).header("cookie", cookie));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    };
    let page = send("");
    let (before, _) = page.split_once("\" selected>").unwrap();
    let account = before.rsplit_once('"').unwrap().1;
    let page = send(&format!("answer=approve&account={account}"));
    assert!(page.contains("is signed in"), "{page}");
}

/// Returns the tokens of a program that asks at `world` and is approved at once.
fn login(world: &World, cookie: &str) -> Value {
    let asked = call(world, "/oauth/device_authorization", "surface=claude_code").json();
    let form = format!("{DEVICE_GRANT}&device_code={}", text(&asked, "device_code"));
    let poll = call(world, "/oauth/token", &form);
    assert_eq!(
        (poll.status, text(&poll.json(), "error")),
        (400, "authorization_pending".into())
    );
    approve(world, cookie, &text(&asked, "user_code"));
    let tokens = call(world, "/oauth/token", &form);
    assert_eq!(tokens.status, 200, "{}", tokens.text());
    tokens.json()
}

fn refresh(world: &World, tokens: &Value) -> Answer {
    let token = text(tokens, "refresh_token");
    call(
        world,
        "/oauth/token",
        &format!("grant_type=refresh_token&refresh_token={token}"),
    )
}

fn works(world: &World, tokens: &Value) -> bool {
    let key = text(tokens, "access_token");
    world.ask(&Request::get("/v1/credits").bearer(&key)).status == 200
}

#[test]
fn a_program_signs_in_pays_refreshes_and_ends() {
    let world = on(Plan::default()).start();
    let (status, cookie) = world.sign_up("ann@example.test", "");
    assert_eq!(status, 303);
    let first = login(&world, &cookie);
    let keys = world.json(&["key", "list", "--account", "ann@example.test"]);
    assert_eq!(
        (&keys[0]["login"], &keys[0]["status"]),
        (&true.into(), &"active".into())
    );
    let id = text(&keys[0], "key_id");
    let limited = world.command(&["key", "set", &id, "--spend-limit", "1/day"]);
    assert!(
        limited.status.success(),
        "{}",
        String::from_utf8_lossy(&limited.stderr)
    );

    // Spending and limits are the login's, whichever of its texts is used.
    let second = refresh(&world, &first).json();
    assert!(works(&world, &first) && works(&world, &second));
    for tokens in [&first, &second] {
        let request = Messages.whole(&text(tokens, "access_token"), "input=1000 output=100");
        world.expect(200, &request);
    }
    let shown = || world.json(&["key", "list", "--account", "ann@example.test"]);
    wait_for("both debits", SOON, || {
        let keys = shown();
        assert_eq!(keys.as_array().unwrap().len(), 1, "one login: {keys}");
        (micro(&keys[0]["spent_total"]) == 2 * Messages.cost(1000, 100)).then_some(())
    });
    assert_eq!(shown()[0]["spend_limit"]["period"], "day");

    // Claude Code sends its measurements to the gateway that it signed in to.
    let bearer = text(&second, "access_token");
    for path in ["/v1/metrics", "/v1/logs", "/v1/traces"] {
        let sent = Request::post(path, "{\"resourceMetrics\":[]}");
        let sent = sent.header("content-type", "application/json");
        assert_eq!(world.ask(&sent).status, 401, "{path}: only with a key");
        let sent = Request::post(path, vec![b'x'; 100_000]).bearer(&bearer);
        assert_eq!(world.ask(&sent).status, 200, "{path}");
        world.expect(405, &Request::get(path).bearer(&bearer));
    }

    let revoked = world.command(&["key", "revoke", &id]);
    assert!(revoked.status.success());
    wait_until("the key to be refused", SOON, || {
        !works(&world, &first) && !works(&world, &second)
    });
    let ended = refresh(&world, &second);
    assert_eq!(
        (ended.status, text(&ended.json(), "error")),
        (401, "invalid_grant".into())
    );
}

#[test]
fn each_edge_takes_a_login_at_once_and_refuses_it_once_it_is_revoked() {
    let world = Edges::everywhere(on);
    let (status, cookie) = world.edges[0].sign_up("ann@example.test", "");
    assert_eq!(status, 303);
    let [one, other] = &world.edges;
    let first = login(one, &cookie);
    assert!(works(one, &first) && works(other, &first));
    let second = refresh(other, &first).json();
    for edge in &world.edges {
        assert!(
            works(edge, &second) && works(edge, &first),
            "for another minute"
        );
    }
    let keys = world
        .sidecar
        .json(&["key", "list", "--account", "ann@example.test"]);
    let id = text(&keys[0], "key_id");
    world.sidecar.json(&["key", "revoke", &id]);
    for edge in &world.edges {
        wait_until("the login to be refused", SOON, || {
            !works(edge, &first) && !works(edge, &second)
        });
        assert_eq!(refresh(edge, &second).status, 401);
    }
}

#[test]
fn a_members_login_has_the_budget_and_ends_with_the_membership_at_each_edge() {
    let world = Edges::everywhere(|plan| on(plan).edit("signup:", "organisations: true\nsignup:"));
    let (owner, ann) = (world.account(), "ann@example.test");
    let [one, other] = &world.edges;
    let (status, cookie) = one.sign_up(ann, "");
    assert_eq!(status, 303);
    let made = world
        .sidecar
        .json(&["org", "create", "Acme", "--owner", &owner.email]);
    let company = text(&made, "account_id");
    for args in [
        &["account", "grant", &company, "5", "--ref", "funds"][..],
        &["org", "member", "add", &company, ann],
    ] {
        world.sidecar.json(args);
    }
    let fields = format!("csrf={}&account={company}", one.form_token(&cookie));
    let switch = Request::form("/dashboard/switch", &fields).header("cookie", &cookie);
    one.expect(303, &switch);

    let first = login(one, &cookie);
    let second = refresh(other, &first).json();
    let key = text(&second, "access_token");
    let keys = world.sidecar.json(&["key", "list", "--account", &company]);
    let logins = keys.as_array().unwrap().iter();
    let logins: Vec<_> = logins.filter(|key| key["login"] == true).collect();
    assert_eq!(
        (logins.len(), text(logins[0], "member").is_empty()),
        (1, false)
    );
    let request = Messages.whole(&key, "input=100 output=100");
    assert_eq!(other.ask(&request).status, 200);
    let set = ["org", "member", "set", &company, ann];
    let allow = |models: &str| {
        world
            .sidecar
            .json(&[&set[..], &["--models", models]].concat())
    };
    allow("beta-5.2");
    for edge in &world.edges {
        wait_for("the models of the member to count", SOON, || {
            Some(edge.ask(&request)).filter(|answer| answer.has("\"model_not_allowed\""))
        });
    }
    allow("all");
    for edge in &world.edges {
        wait_for("every model to be allowed again", SOON, || {
            Some(edge.ask(&request)).filter(|answer| answer.status == 200)
        });
    }
    let budget = ["--budget", "0.000001/total"];
    world.sidecar.json(&[&set[..], &budget].concat());
    for edge in &world.edges {
        let over = wait_for("the budget to count", SOON, || {
            Some(edge.ask(&request)).filter(|answer| answer.status != 200)
        });
        let is_by_budget = over.status == 402 && over.has("\"member_budget\"");
        assert!(is_by_budget, "{}", over.text());
    }

    assert!(works(one, &second) && works(other, &second));
    world
        .sidecar
        .json(&["org", "member", "remove", &company, ann]);
    for edge in &world.edges {
        wait_until("the login to be refused", SOON, || {
            !works(edge, &first) && !works(edge, &second)
        });
        let ended = refresh(edge, &second);
        assert_eq!(
            (ended.status, text(&ended.json(), "error")),
            (401, "invalid_grant".into())
        );
    }
}

#[test]
fn nothing_of_it_is_there_unless_the_config_says_so() {
    let (world, account) = World::with_account();
    for path in [
        "/oauth/token",
        "/oauth/device_authorization",
        "/device",
        "/v1/metrics",
    ] {
        let sent = Request::form(path, "a=b").bearer(&account.key);
        assert_eq!(world.ask(&sent).status, 404, "{path}");
    }
    for path in [
        "/.well-known/oauth-authorization-server",
        "/managed/settings",
        "/device",
    ] {
        let asked = Request::get(path).bearer(&account.key);
        assert_eq!(world.ask(&asked).status, 404, "{path}");
    }
}

/// `model-gateway login`, on the machine of a person with this home.
fn command(world: &World, home: &Path) -> Command {
    test_world::count_program();
    let server = format!("http://127.0.0.1:{}", world.edge);
    let mut command = Command::new(binary());
    command
        .args(["login", "--server", &server])
        .env_remove("XDG_CONFIG_HOME")
        .env("HOME", home)
        .stdin(Stdio::null());
    command
}

/// Reads what the program says until it names the code, and returns it.
fn code_of(program: &mut Child) -> String {
    let said = BufReader::new(program.stderr.as_mut().unwrap()).lines();
    let mut said = said.map(Result::unwrap);
    let line = said.find(|line| line.contains("approve the code")).unwrap();
    line.rsplit_once(' ').unwrap().1.to_owned()
}

fn key_of(output: &Output) -> String {
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{failed}");
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(stdout.lines().count(), 1, "the key alone: {stdout}");
    stdout.trim().to_owned()
}

#[test]
fn the_command_prints_a_key_and_later_ones_without_the_browser() {
    let world = on(Plan::default()).start();
    let home = tempfile::tempdir().unwrap();
    let (_, cookie) = world.sign_up("ann@example.test", "");
    let mut first = command(&world, home.path());
    let mut first = first
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    approve(&world, &cookie, &code_of(&mut first));
    let key = key_of(&first.wait_with_output().unwrap());
    let asks = |key: &str| world.ask(&Request::get("/v1/credits").bearer(key)).status;
    assert_eq!(asks(&key), 200);

    let folder = home.path().join(".config/model-gateway");
    let files = || {
        std::fs::read_dir(&folder)
            .unwrap()
            .map(|file| file.unwrap().path())
    };
    let is_login = |path: &std::path::PathBuf| path.extension().is_some_and(|it| it == "json");
    let file = files().find(is_login).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
    let again = key_of(&command(&world, home.path()).output().unwrap());
    assert_eq!(again, key, "it lasts");
    // Its key ends soon: the program gets another one in silence.
    let saved = std::fs::read_to_string(&file).unwrap();
    let mut saved: Value = serde_json::from_str(&saved).unwrap();
    saved["expires_at"] = 0.into();
    std::fs::write(&file, saved.to_string()).unwrap();
    let refreshed = command(&world, home.path()).output().unwrap();
    assert!(refreshed.stderr.is_empty());
    let second = key_of(&refreshed);
    assert!(second != key && asks(&second) == 200 && mode(&file) == 0o600);
    // The gateway refuses its key, which somebody has ended.
    let saved = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        saved.replace(&second, &key.replace("gw-sk-", "gw-sk-0")),
    )
    .unwrap();
    let third = key_of(&command(&world, home.path()).output().unwrap());
    assert_eq!(asks(&third), 200);

    let ended = command(&world, home.path())
        .arg("--logout")
        .output()
        .unwrap();
    assert!(ended.status.success() && ended.stdout.is_empty());
    assert!(asks(&third) == 401 && !files().any(|path| is_login(&path)));
}

#[test]
fn the_command_says_why_nobody_is_signed_in() {
    let world = on(Plan::default()).start();
    let home = tempfile::tempdir().unwrap();
    let (_, cookie) = world.sign_up("ann@example.test", "");
    let mut refused = command(&world, home.path());
    let mut refused = refused
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let code = code_of(&mut refused);
    let token = world.form_token(&cookie);
    let form = format!("csrf={token}&user_code={code}&answer=refuse");
    let form = Request::form("/device", &form).header("cookie", &cookie);
    world.expect(200, &form);
    let refused = refused.wait_with_output().unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty());

    let off = World::new();
    for (args, says) in [
        (
            &["login", "--server", "http://gateway.example.test"][..],
            "only name this machine",
        ),
        (&["login", "--server", "no url"], "must be an https:// URL"),
        (
            &[
                "login",
                "--server",
                &format!("http://127.0.0.1:{}", off.edge),
            ],
            "does not let programs sign in",
        ),
    ] {
        let output = Command::new(binary())
            .args(args)
            .env("HOME", home.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains(says),
            "{args:?}: {text}"
        );
        assert!(output.stdout.is_empty());
    }
    assert!(home.path().join(".config").exists());
    off.close();
}
