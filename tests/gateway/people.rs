//! Tests what users and operators do while a gateway runs: an account holder deletes the account,
//! an operator sends invitations from the command line, and the edge, the sidecar and the command
//! line write one audit log.

use crate::account::{Account, micro};
use crate::client::{self, Request};
use crate::secrets::Seen;
use crate::surface::{BOTH, Messages};
use crate::world::{Plan, SOON, World, wait_for};
use serde_json::{Value, json};

const PASSWORD: &str = "a+long+password";
/// Idempotency key of an account that is deleted.
const CANARY: &str = "canary-of-a-deleted-account";

impl World {
    /// Signs up on the dashboard, through the edge. Returns the status and the cookie.
    pub fn sign_up(&self, email: &str, invite: &str) -> (u16, String) {
        let fields = format!("email={email}&password={PASSWORD}&invite={invite}");
        let answer = self.ask(&Request::form("/dashboard/sign-up", &fields));
        let cookie = answer
            .header("set-cookie")
            .and_then(|cookie| cookie.split(';').next())
            .unwrap_or_default();
        (answer.status, cookie.to_owned())
    }

    /// The form token of the session that this cookie belongs to.
    pub fn form_token(&self, cookie: &str) -> String {
        let page = self
            .ask(&Request::get("/dashboard/account").header("cookie", cookie))
            .text();
        let start = page.find("name=\"csrf\" value=\"").expect("a form token") + 19;
        page[start..start + 64].to_owned()
    }

    /// Whether a file of the gateway has the [`CANARY`].
    fn has_canary(&self) -> bool {
        let mut files = self.data_dir().read_dir().unwrap().map(Result::unwrap);
        files.any(|file| {
            let bytes = std::fs::read(file.path()).unwrap_or_default();
            let mut parts = bytes.windows(CANARY.len());
            parts.any(|part| part == CANARY.as_bytes())
        })
    }

    fn told(&self) -> Vec<Value> {
        let mut lines = self
            .json(&["audit", "show", "--last", "100"])
            .as_array()
            .unwrap()
            .clone();
        // The gateway records the prices of its config file when it starts.
        lines.retain(|line| line["act"] != "prices.change");
        lines.reverse();
        lines
    }
}

#[test]
fn what_runs_when_its_account_is_deleted_is_finished_and_billed_and_its_key_leaves_the_files() {
    let mut world = World::new();
    for surface in BOTH {
        let email = format!("{surface:?}@example.test").to_lowercase();
        let (status, cookie) = world.sign_up(&email, "");
        assert_eq!(status, 303);
        let id = world.json(&["account", "show", &email])["account_id"]
            .as_str()
            .unwrap()
            .to_owned();
        let (key_id, key) = world.key(&id, "test");
        let account = Account {
            id,
            email: email.clone(),
            key,
            key_id,
        };
        let mut connection = world.connect();
        let request = surface.stream(&account.key, "events=10 hold=5 input=100 output=50");
        connection.send(&request.header("idempotency-key", CANARY).bytes());
        let mut answer = connection.begin();

        let token = world.form_token(&cookie);
        let fields = format!("csrf={token}&confirmation={email}&password={PASSWORD}");
        let request = Request::form("/dashboard/account/delete", &fields).header("cookie", &cookie);
        world.expect(200, &request);
        assert!(answer.end().is_none(), "the stream was to outlast this");
        assert_eq!(
            world.ask(&surface.whole(&account.key, "")).status,
            401,
            "nothing new is taken"
        );
        world.vendor.release();
        surface.completes(&mut connection, &mut answer);

        let ending = wait_for("the debit", SOON, || world.endings(&account).pop());
        assert_eq!(micro(&ending["credits"]), surface.cost(100, 50));
        let shown = world.json(&["account", "show", &account.id]);
        assert_eq!(
            (&shown["status"], micro(&shown["held"])),
            (&json!("deleted"), 0),
            "{shown}"
        );
        assert_eq!(
            micro(&shown["balance"]),
            300_000_000 - surface.cost(100, 50)
        );
        assert!(
            !world.command(&["account", "show", &email]).status.success(),
            "the e-mail names nobody"
        );
        assert!(
            !world
                .command(&["account", "resume", &account.id])
                .status
                .success()
        );
        assert_eq!(world.sign_up(&email, "").0, 303, "and is free again");
    }
    assert!(world.has_canary());
    world.signal("TERM");
    assert_eq!(world.wait_end(SOON), 0);
    assert!(!world.has_canary());
    world.start_gateway();
}

#[test]
fn codes_from_the_command_line_open_one_account_each() {
    let world = Plan::default()
        .edit("mode: open", "mode: invite")
        .without_administrator()
        .start();
    let made = world.json(&["account", "invite", "--count", "2", "--expires-in", "1h"]);
    let codes: Vec<_> = made["codes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|code| code.as_str().unwrap())
        .collect();
    assert_eq!(codes.len(), 2);
    assert_eq!(world.sign_up("a@example.test", "").0, 403);
    assert_eq!(world.sign_up("a@example.test", codes[0]).0, 303);
    assert_eq!(world.sign_up("b@example.test", codes[0]).0, 403, "used up");
    assert_eq!(world.sign_up("b@example.test", codes[1]).0, 303);
    for bad in [
        ["--count", "0"],
        ["--count", "101"],
        ["--expires-in", "0s"],
        ["--expires-in", "366d"],
    ] {
        assert!(
            !world
                .command(&[&["account", "invite"], &bad[..]].concat())
                .status
                .success(),
            "{bad:?}"
        );
    }
    assert_eq!(
        world.json(&["account", "list"]).as_array().unwrap().len(),
        2
    );
    let code = world.json(&["account", "invite"])["codes"][0]
        .as_str()
        .unwrap()
        .to_owned();
    let listed = world.json(&["account", "invites"]);
    let open: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .filter(|invite| invite["state"] == "open")
        .collect();
    assert_eq!(
        (listed.as_array().unwrap().len(), open.len()),
        (3, 1),
        "{listed}"
    );
    let id = open[0]["id"].as_str().unwrap();
    assert!(
        world
            .command(&["account", "revoke-invite", id])
            .status
            .success()
    );
    assert_eq!(
        world
            .command(&["account", "revoke-invite", &code])
            .status
            .code(),
        Some(1),
        "it is revoked already"
    );
    assert_eq!(world.sign_up("c@example.test", &code).0, 403, "revoked");
    for entry in std::fs::read_dir(world.data_dir())
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().is_file())
    {
        let bytes = std::fs::read(entry.path()).unwrap();
        let holds = |text: &str| {
            bytes
                .windows(text.len())
                .any(|window| window == text.as_bytes())
        };
        assert!(
            !codes.iter().any(|code| holds(code)) && !holds(&code),
            "{} holds a code in the clear",
            entry.path().display()
        );
    }
}

#[test]
fn what_administrators_do_is_told_whichever_face_they_use() {
    let world = Plan::default().without_administrator().start();
    let root = world.account_with("root@example.test", &["--no-trial", "--admin"]);
    let account = world.account();
    world.json(&["account", "grant", &account.id, "5", "--ref", "r1"]);
    world.json(&["account", "suspend", &account.id]);
    let over_http = |path: &str, body: &Value| {
        let request = Request::post(&format!("/admin/v1{path}"), body.to_string());
        client::ask(world.admin, &request.bearer(&root.key)).status
    };
    assert_eq!(
        over_http(&format!("/accounts/{}/resume", account.id), &Value::Null),
        200
    );
    let refused = json!({"credits": "-1000", "ref": "r2", "reason": "too much"});
    assert_eq!(
        over_http(&format!("/accounts/{}/adjustments", account.id), &refused),
        422
    );
    world.works(Messages, &account.key);

    let lines = world.told();
    let acts: Vec<_> = lines
        .iter()
        .map(|line| line["act"].as_str().unwrap())
        .collect();
    assert_eq!(
        acts,
        [
            "account.create",
            "account.create-link",
            "key.create",
            "account.create",
            "account.create-link",
            "key.create",
            "account.grant",
            "account.suspend",
            "account.resume",
            "account.adjust"
        ]
    );
    let outcomes: Vec<_> = lines.iter().map(|line| &line["outcome"]).collect();
    let (last, others) = outcomes.split_last().unwrap();
    assert!(
        **last == "refused" && others.iter().all(|outcome| **outcome == "done"),
        "{outcomes:?}"
    );
    let who = |line: &Value| {
        [line["actor"].clone(), line["address"].clone()]
            .map(|value| value.as_str().unwrap().to_owned())
    };
    assert!(
        lines[..8]
            .iter()
            .all(|line| who(line)[0].starts_with("uid ") && who(line)[1] == "command line")
    );
    assert!(
        lines[8..]
            .iter()
            .all(|line| who(line) == [root.id.clone(), "127.0.0.1".to_owned()]),
        "{lines:?}"
    );
    assert_eq!(
        lines[6]["after"],
        json!({"credits": "5", "ref": "r1", "reason": null})
    );
    assert_eq!(
        (&lines[8]["before"]["status"], &lines[8]["after"]["status"]),
        (&json!("suspended"), &json!("active"))
    );
    let text = Value::Array(lines).to_string();
    assert!(
        !text.contains(&account.key) && !text.contains(&root.key),
        "a key is in the audit log"
    );

    let verdict = world.json(&["audit", "verify"]);
    assert_eq!(
        (&verdict["findings"], &verdict["lines"]),
        (&json!([]), &json!(15)),
        "{verdict}"
    );
    let db = rusqlite::Connection::open(world.data_dir().join("app.db")).unwrap();
    db.execute_batch(
        "DROP TRIGGER audit_is_never_changed; UPDATE audit SET after = '' WHERE seq = 5",
    )
    .unwrap();
    assert_eq!(
        world.command(&["audit", "verify"]).status.code(),
        Some(1),
        "a changed line is found"
    );
}

/// The path of a link that a command printed.
fn path_of(link: &Value) -> String {
    let link = link.as_str().unwrap();
    let at = link.find("/dashboard/link/").expect("a link");
    link[at..].to_owned()
}

#[test]
fn an_account_without_a_password_opens_the_dashboard_by_its_link() {
    let logs = tempfile::tempdir().unwrap();
    let access_log = logs.path().join("access.log");
    let mut world = Plan::default().telling_everything(&access_log).start();
    let made = world.json(&["account", "create", "--email", "a@example.test"]);
    let setup = path_of(&made["setup_link"]);
    let set = |world: &World, path: &str, password: &str| {
        let answer = world.ask(&Request::form(path, &format!("password={password}")));
        let cookie = answer.header("set-cookie").unwrap_or_default().to_owned();
        (answer.status, cookie.split(';').next().unwrap().to_owned())
    };
    world.expect(200, &Request::get(&setup));
    let (status, cookie) = set(&world, &setup, PASSWORD);
    assert_eq!(status, 303);
    let overview = Request::get("/dashboard").header("cookie", &cookie);
    world.expect(200, &overview);
    assert_eq!(set(&world, &setup, PASSWORD).0, 410, "used");

    let reset =
        |world: &World| path_of(&world.json(&["account", "reset-link", "a@example.test"])["link"]);
    let (old, new) = (reset(&world), reset(&world));
    assert_eq!(set(&world, &old, "forgotten+no+more").0, 410, "replaced");
    // A restart keeps it.
    world.signal("TERM");
    assert_eq!(world.wait_end(SOON), 0);
    world.start_gateway();
    assert_eq!(set(&world, &new, "forgotten+no+more").0, 303);
    assert_eq!(world.ask(&overview).status, 303, "its sessions ended");

    let unused = reset(&world);
    world.json(&["account", "suspend", "a@example.test"]);
    world.expect(410, &Request::get(&unused));
    for nobody in ["a@example.test", "nobody@example.test"] {
        let refused = world.command(&["account", "reset-link", nobody]);
        assert_eq!(refused.status.code(), Some(1), "{nobody}");
    }
    let mut seen = Seen::default();
    seen.add_all_of(&world, &access_log);
    let tokens = [&setup, &old, &new, &unused].map(|path| path.rsplit_once('/').unwrap().1);
    seen.has_none_of(&tokens);
}
