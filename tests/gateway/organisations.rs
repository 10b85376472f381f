//! Tests an organisation from end to end: the command line makes it, its members' keys spend one
//! balance, and a member who is removed loses the keys while running requests are finished.

use crate::account::{Account, micro};
use crate::client::Request;
use crate::surface::Messages;
use crate::world::{Plan, SOON, World, wait_until};
use serde_json::json;

impl World {
    /// Creates a key on the dashboard, in the account that the session shows.
    fn key_on_dashboard(&self, cookie: &str, token: &str) -> String {
        let fields = format!("csrf={token}&name=laptop");
        let form = Request::form("/dashboard/keys", &fields).header("cookie", cookie);
        let made = self.expect(303, &form);
        let page = made.header("location").unwrap().to_owned();
        let page = self
            .ask(&Request::get(&page).header("cookie", cookie))
            .text();
        let (_, key) = page.split_once("data-testid=\"new-key\">").unwrap();
        key.split_once('<').unwrap().0.to_owned()
    }
}

#[test]
fn members_spend_one_balance_and_a_removed_one_is_refused_from_then_on() {
    let (world, owner) = Plan::default()
        .edit("signup:", "organisations: true\nsignup:")
        .with_account();
    let (status, cookie) = world.sign_up("ann@example.test", "");
    assert_eq!(status, 303);
    let made = world.json(&["org", "create", "Acme", "--owner", &owner.email]);
    let id = made["account_id"].as_str().unwrap().to_owned();
    assert_eq!(
        micro(&world.json(&["account", "show", &id])["balance"]),
        0,
        "no trial"
    );
    for args in [
        &["account", "set-password", &id][..],
        &["account", "role", &id, "operator"],
        &["account", "reset-link", &id],
    ] {
        let refused = world.command(args);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(text.contains("is an organisation"), "{args:?}: {text}");
    }
    world.json(&["account", "grant", &id, "5", "--ref", "funds"]);
    let added = world.json(&["org", "member", "add", &id, "ann@example.test"]);
    assert_eq!(added["members"][0]["role"], "member", "{added}");

    let token = world.form_token(&cookie);
    let fields = format!("csrf={token}&account={id}");
    let switch = Request::form("/dashboard/switch", &fields).header("cookie", &cookie);
    world.expect(303, &switch);
    let key = world.key_on_dashboard(&cookie, &world.form_token(&cookie));
    let company = Account {
        id,
        email: String::new(),
        key,
        key_id: String::new(),
    };
    assert_eq!(world.standing(&company).balance, 5_000_000);
    let usage = world.ask(&Request::get("/v1/usage").bearer(&company.key));
    assert_eq!(usage.json()["total"]["responses"], 0, "{}", usage.text());
    let keys = world.json(&["key", "list", "--account", &company.id]);
    assert_eq!(
        keys[0]["member"], added["members"][0]["account_id"],
        "{keys}"
    );
    let made = world.json(&[
        "key",
        "create",
        "--account",
        &company.id,
        "--name",
        "operator's",
    ]);
    let operators = made["key"].as_str().unwrap();
    for (key, is_replayed) in [
        (&*company.key, false),
        (operators, false),
        (operators, true),
    ] {
        let request = Messages.whole(key, "input=1 output=1");
        let answer = world.ask(&request.header("idempotency-key", "1"));
        assert_eq!(answer.header("x-gateway-replayed").is_some(), is_replayed);
    }
    let mut connection = world.connect();
    let request = Messages.stream(&company.key, "events=10 hold=5 input=100 output=50");
    connection.send(&request.bytes());
    let mut answer = connection.begin();
    let removed = world.json(&["org", "member", "remove", &company.id, "ann@example.test"]);
    assert_eq!(removed["members"].as_array().unwrap().len(), 1, "{removed}");
    // A command counts at most 50 ms after it has written: until then, the key may be taken.
    let ask = || world.ask(&Messages.whole(&company.key, "")).status;
    let mut late = 0;
    wait_until("the key to be refused", SOON, || match ask() {
        200 => {
            late += 1;
            false
        }
        status => status == 401,
    });
    assert!(answer.end().is_none(), "the stream was to outlast this");
    world.vendor.release();
    Messages.completes(&mut connection, &mut answer);
    wait_until("the debit of the stream", SOON, || {
        world.endings(&company).len() == 3 + late
    });
    let spent: i64 = world
        .endings(&company)
        .iter()
        .map(|row| micro(&row["credits"]))
        .sum();
    assert_eq!(world.shown(&company).balance, 5_000_000 - spent);
    assert!(spent >= Messages.cost(100, 50));

    let overview = Request::get("/dashboard/keys").header("cookie", &cookie);
    assert!(
        !world.ask(&overview).text().contains("laptop"),
        "her own account"
    );

    // An operator does what the pages do: hands keys over, ends an invitation, enters a domain.
    let ann = "ann@example.test";
    world.json(&["org", "member", "add", &company.id, ann, "--role", "admin"]);
    let create = ["key", "create", "--account", &company.id, "--name", "ci"];
    let made = world.json(&[&create[..], &["--member", ann]].concat());
    let token = world.form_token(&cookie);
    let switch = format!("csrf={token}&account={}", company.id);
    let switch = Request::form("/dashboard/switch", &switch).header("cookie", &cookie);
    world.expect(303, &switch);
    let token = world.form_token(&cookie);
    let invite = format!("csrf={token}&email=bob@example.test&role=member");
    let invite = Request::form("/dashboard/organisation/invites", &invite);
    world.expect(200, &invite.header("cookie", &cookie));
    let shown = world.json(&["org", "domain", "add", &company.id, "example.test"]);
    assert_eq!(shown["domains"], json!(["example.test"]));
    let invite = shown["invites"][0]["invite_id"].as_str().unwrap();
    let printed = world.command(&["org", "show", &company.id]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    for line in [
        "  ann@example.test admin\n",
        &format!("  invitation {invite} bob@example.test member\n"),
        "  domain example.test\n",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
    let shown = world.json(&["org", "revoke-invite", &company.id, invite]);
    assert_eq!(shown["invites"], json!([]));
    let again = world.command(&["org", "revoke-invite", &company.id, invite]);
    assert!(!again.status.success());
    let remove = ["org", "member", "remove", &company.id, ann];
    let nobody = world.command(&[&remove[..], &["--keys-to", "bob@example.test"]].concat());
    assert!(!nobody.status.success());
    let removed = world.json(&[&remove[..], &["--keys-to", &owner.email]].concat());
    assert_eq!(removed["members"].as_array().unwrap().len(), 1, "{removed}");
    let key = Request::get("/v1/credits").bearer(made["key"].as_str().unwrap());
    assert_eq!(world.ask(&key).status, 200, "handed over");

    let last = world.command(&["org", "member", "remove", &company.id, &owner.email]);
    assert!(!last.status.success());
    let shown = world.json(&["org", "list"]);
    assert_eq!(shown["organisations"][0]["name"], json!("Acme"));
}

#[test]
fn a_merge_moves_a_key_and_credits_without_the_trial_and_keeps_what_was() {
    let (world, owner) = Plan::default()
        .edit("signup:", "organisations: true\nsignup:")
        .with_account();
    let made = world.json(&["org", "create", "Acme", "--owner", &owner.email]);
    let company = made["account_id"].as_str().unwrap();
    let old = world.account_with("old@example.test", &[]);
    world.grant(&old, "1000", "funds");
    let ask = || world.ask(&Messages.whole(&old.key, "input=1000 output=1000"));
    let request_id = ask().request_id();
    world.ended(&old, 1);
    let shown = |id: &str| world.json(&["account", "show", id]);
    let before = shown(&old.id);
    let trial = micro(&before["trial"]["credits_left"]);
    let paid = micro(&before["balance"]) - trial;
    assert!(paid > 0 && trial > 0, "{before}");
    let entries = world.entries(&old);
    let merge = ["account", "merge", &old.id, "--into", company];
    let merge = [&merge[..], &["--member", &owner.email]].concat();
    let refused = world.command(&merge);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("suspend it first"), "{text}");
    world.json(&["account", "suspend", &old.id]);
    for is_new in [true, false] {
        let merged = world.json(&merge);
        assert_eq!(micro(&merged["credits"]), paid, "{merged}");
        assert_eq!(merged["is_new"], is_new, "{merged}");
    }
    assert_eq!(micro(&shown(company)["balance"]), paid);
    let after = shown(&old.id);
    assert_eq!(micro(&after["balance"]), trial, "what stays");
    assert_eq!(after["status"], "deleted");
    let was = format!("account {} was merged into {company}", old.id);
    assert_eq!(after["merges"], json!([was]));

    let key = Request::get("/v1/credits").bearer(&old.key);
    let standing = world.expect(200, &key);
    assert_eq!(micro(&standing.json()["balance"]), paid, "the key works on");
    assert_eq!(ask().status, 200);
    let receipts = world.entries(&old);
    assert_eq!(receipts.len(), entries.len() + 1, "{receipts:?}");
    assert!(receipts.iter().any(|row| row["request_id"] == *request_id));
}
