//! Operators' commands in the shells that operators have, which lack the vendors' keys. Also the
//! audit log lines that the commands write.

use crate::client::Request;
use crate::world::{EMBEDDED, World, binary};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const ONE_MACHINE: &str = include_str!("../../deploy/one-machine.yaml");
const LOCAL: &str = include_str!("../../conf/local.yaml");

/// Runs a command in an empty environment, like the shell of a user who is not the service's.
fn run_bare(config: &Path, args: &[&str], stdin: &str) -> Output {
    let mut command = Command::new(binary());
    command.env_clear().args(args).arg("-c").arg(config);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command may have ended without reading stdin.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// With fewer, it would end in the middle of its work.
#[test]
fn a_service_that_may_open_too_few_files_does_not_start_and_says_what_to_raise() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("gateway.yaml");
    let shared = "store: {kind: redis, url: \"redis://127.0.0.1:1\"}";
    assert!(LOCAL.contains(EMBEDDED) && LOCAL.contains("\"data\""));
    let data = format!("{:?}", dir.path().join("data").display().to_string());
    for (service, store) in [("run", EMBEDDED), ("edge", shared), ("sidecar", shared)] {
        let text = LOCAL.replace("\"data\"", &data).replace(EMBEDDED, store);
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("timeout");
        command.args(["40", "prlimit", "--nofile=127", binary(), service, "-c"]);
        let refused = command.arg(&config).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{service}: {said}");
        assert!(said.contains("open files is 127, but"), "{service}: {said}");
    }
}

#[test]
fn commands_for_accounts_keys_ledger_and_audit_need_no_key_of_a_vendor() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("gateway.yaml");
    let place = "${GATEWAY_DATA:-/var/lib/model-gateway}";
    assert!(ONE_MACHINE.contains(place) && ONE_MACHINE.contains("${ALPHA_API_KEY:-}"));
    let data = dir.path().join("data").display().to_string();
    // The config as shipped, and as some operators write it: with a variable without a default, and
    // with a file that only the service may read.
    let as_shipped = ONE_MACHINE.replace(place, &data);
    let strict = as_shipped.replace("${ALPHA_API_KEY:-}", "${ALPHA_API_KEY}");
    let strict = strict.replace("${BETA_API_KEY:-}", "file:/nowhere/key");
    for (round, text) in [as_shipped, strict].iter().enumerate() {
        std::fs::write(&config, text).unwrap();
        // Control: `run` and `check` report every missing key.
        for service in ["check", "run"] {
            assert_eq!(
                run_bare(&config, &[service], "").status.code(),
                Some(64),
                "{service}"
            );
        }
        let email = format!("ada{round}@example.com");
        let run = |args: &[&str]| {
            json(&run_bare(
                &config,
                &[args, &["--json"]].concat(),
                "a long password\n",
            ))
        };
        run(&["account", "create", "--email", &email, "--password-stdin"]);
        assert_eq!(
            run(&["account", "list"]).as_array().unwrap().len(),
            2 * round + 1
        );
        run(&[
            "account",
            "grant",
            &email,
            "5",
            "--ref",
            &format!("welcome-{round}"),
        ]);
        run(&["account", "show", &email]);
        run(&["account", "set-password", &email, "--password-stdin"]);
        for (role, name) in [
            ("viewer", "viewer"),
            ("operator", "administrator"),
            ("holder", "member"),
        ] {
            let args = ["account", "role", &email, role];
            if name == "member" {
                // The last operator who can sign in stays one. The second round finds another.
                if round == 0 {
                    assert_eq!(run_bare(&config, &args, "").status.code(), Some(1));
                }
                let email = format!("root{round}@example.com");
                let root = [
                    "account",
                    "create",
                    "--admin",
                    "--password-stdin",
                    "--email",
                    &email,
                ];
                run(&root);
            }
            assert_eq!(run(&args)["role"], name);
        }
        let unknown = ["account", "role", &email, "king"];
        assert_eq!(run_bare(&config, &unknown, "").status.code(), Some(2));
        let key = run(&[
            "key",
            "create",
            "--account",
            &email,
            "--name",
            "laptop",
            "--models",
            "beta-5.2",
        ]);
        run(&[
            "key",
            "set",
            key["key_id"].as_str().unwrap(),
            "--spend-limit",
            "5/day",
        ]);
        assert_eq!(
            run(&["key", "list", "--account", &email])
                .as_array()
                .unwrap()
                .len(),
            1
        );
        run(&["key", "revoke", key["key_id"].as_str().unwrap()]);
        assert_eq!(
            run(&["ledger", "verify"])["findings"],
            serde_json::json!([])
        );
        assert!(
            !run(&["ledger", "show", &email])
                .as_array()
                .unwrap()
                .is_empty()
        );
        assert!(!run(&["ledger", "export"]).as_array().unwrap().is_empty());
        assert!(!run(&["audit", "show"]).as_array().unwrap().is_empty());
        assert_eq!(run(&["audit", "verify"])["findings"], serde_json::json!([]));
        run(&[
            "ledger",
            "backup",
            dir.path().join(format!("copy{round}")).to_str().unwrap(),
        ]);
    }
    // The error names a variable that the command does need.
    std::fs::write(&config, ONE_MACHINE.replace(place, "${GATEWAY_DATA}")).unwrap();
    let refused = run_bare(&config, &["account", "list"], "");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(64), "{text}");
    assert!(
        text.contains("data_dir: environment variable GATEWAY_DATA is not set"),
        "{text}"
    );
    assert!(!text.contains("API_KEY"), "{text}");
}

#[test]
fn a_new_password_ends_the_sessions_of_the_one_before_and_is_audited() {
    let world = World::new();
    let [old, new] = ["the old password", "the new password"];
    let create = [
        "account",
        "create",
        "--email",
        "ada@example.com",
        "--password-stdin",
    ];
    let created = run_bare(&world.config, &create, old);
    assert!(
        created.status.success(),
        "{}",
        String::from_utf8_lossy(&created.stderr)
    );
    let sign_in = |password: &str| {
        let fields = format!(
            "email=ada%40example.com&password={}",
            password.replace(' ', "+")
        );
        let answer = world.ask(&Request::form("/dashboard/sign-in", &fields));
        let cookie = answer
            .header("set-cookie")
            .and_then(|cookie| cookie.split(';').next())
            .unwrap_or_default();
        (answer.status, cookie.to_owned())
    };
    let page = |cookie: &str| {
        world
            .ask(&Request::get("/dashboard").header("cookie", cookie))
            .status
    };
    let (status, cookie) = sign_in(old);
    assert_eq!((status, page(&cookie)), (303, 200));
    let set = |args: &[&str], stdin: &str| {
        run_bare(
            &world.config,
            &[&["account", "set-password", "ada@example.com"], args].concat(),
            stdin,
        )
    };
    let refused = set(&["--password-stdin"], "short\n");
    assert_eq!(
        (refused.status.code(), page(&cookie)),
        (Some(1), 200),
        "a password that is refused changes nothing"
    );
    assert_eq!(
        json(&set(&["--password-stdin", "--json"], &format!("{new}\n")))["email"],
        "ada@example.com"
    );
    assert_eq!(page(&cookie), 303, "the session has ended");
    assert_eq!((sign_in(old).0, sign_in(new).0), (401, 303));
    // Without a password on stdin, the command generates one and prints it this once.
    let made = json(&set(&["--json"], ""))["password"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!((sign_in(new).0, sign_in(&made).0), (401, 303));
    let lines = world.json(&["audit", "show"]);
    let acts = lines
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["act"] == "account.set-password");
    assert_eq!(acts.count(), 2, "{lines}");
    for secret in [old, new, &made] {
        assert!(
            !lines.to_string().contains(secret) && !world.log().contains(secret),
            "a password is written down"
        );
    }
    assert_eq!(set(&[], "").status.code(), Some(0));
    let nobody = run_bare(
        &world.config,
        &["account", "set-password", "nobody@example.com"],
        "",
    );
    assert_eq!(nobody.status.code(), Some(1));
}

#[test]
fn the_audit_log_says_in_json_what_a_key_was_set_to() {
    let (world, account) = World::with_account();
    let (key, _) = world.key(&account.id, "audited");
    let set = |args: &[&str]| world.json(&[&["key", "set", &key], args].concat());
    set(&[
        "--expires-in",
        "30d",
        "--spend-limit",
        "100/day",
        "--models",
        "beta-5.2",
        "--requests-per-minute",
        "7",
    ]);
    set(&[
        "--expires-in",
        "never",
        "--spend-limit",
        "none",
        "--models",
        "all",
        "--requests-per-minute",
        "default",
    ]);
    let lines = world.json(&["audit", "show", "--last", "100"]);
    let sets: Vec<_> = lines
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["act"] == "key.set")
        .collect();
    assert_eq!(sets.len(), 2);
    let settings = &sets[1]["after"]["settings"];
    assert_eq!(settings["spend_limit"]["period"], "day", "{settings}");
    assert_eq!(settings["allowed_models"], serde_json::json!(["beta-5.2"]));
    assert!(
        settings["expires_at_ms"].is_i64() && settings["rates"]["requests_per_minute"] == 7,
        "{settings}"
    );
    assert_eq!(
        sets[0]["after"]["settings"],
        serde_json::json!({}),
        "all is taken back"
    );
    for line in lines.as_array().unwrap() {
        let text = line.to_string();
        for debug in ["Some(", "None,", "KeyArgs", "Setting("] {
            assert!(!text.contains(debug), "{text}");
        }
    }
}
