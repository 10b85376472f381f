//! The administrators' HTTP API of a running gateway: each posting counts once, no posting takes
//! held credit, and only administrators have access.

use crate::account::{Account, Standing, credits, micro};
use crate::client::{self, Answer, Connection, Request};
use crate::money::together;
use crate::surface::{BOTH, Chat, Messages};
use crate::world::{Plan, SOON, World, wait_for};
use serde_json::{Value, json};

impl World {
    fn administrator(&self) -> Account {
        self.account_with("root@example.test", &["--no-trial", "--admin"])
    }

    fn post(&self, by: &Account, path: &str, body: &Value) -> Answer {
        let request = Request::post(&format!("/admin/v1{path}"), body.to_string());
        client::ask(self.admin, &request.bearer(&by.key))
    }

    #[track_caller]
    fn look(&self, by: &Account, path: &str) -> Value {
        let answer = client::ask(
            self.admin,
            &Request::get(&format!("/admin/v1{path}")).bearer(&by.key),
        );
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }
}

#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (status, &code.into()),
        "{}",
        answer.text()
    );
}

#[test]
fn a_client_that_sends_all_before_it_reads_gets_the_refusal_of_a_large_body() {
    let world = World::new();
    let root = world.administrator();
    let body = json!({"reason": "x".repeat(8_000_000)}).to_string();
    let post = |key: &str| {
        Request::post("/admin/v1/accounts", &*body)
            .bearer(key)
            .bytes()
    };
    let (own, unknown) = (post(&root.key), post("gw-sk-none"));
    let public = [
        b"POST / HTTP/1.1\r\nhost: rebound.example.com\r\ncontent-length: 8000000\r\n\r\n",
        body.as_bytes(),
    ]
    .concat();
    for (request, status) in [(own, 413), (unknown, 401), (public, 421)] {
        let mut connection = Connection::open(world.admin);
        assert!(connection.send(&request), "{status}: the connection broke");
        assert_eq!(connection.begin().status, status);
    }
}

#[test]
fn an_adjustment_takes_all_that_is_free_and_nothing_that_a_running_stream_holds() {
    let world = World::new();
    let root = world.administrator();
    for surface in BOTH {
        let account = world.account_with(&format!("{surface:?}@example.test"), &[]);
        let path = format!("/accounts/{}/adjustments", account.email);
        let (mut connection, mut answer) =
            world.begin(&surface.stream(&account.key, "events=10 hold=5 input=100 output=50"));
        // No wait is needed: the API sees the holds of its own process without the mirror.
        let adjust = |amount: i64, reference: &str| {
            let body = json!({"credits": format!("-{}", credits(amount)), "ref": reference, "reason": "a test"});
            world.post(&root, &path, &body)
        };
        let of = format!("{surface:?}");
        let Standing {
            held, available, ..
        } = world.standing(&account);
        assert!(held > 0);
        refused(&adjust(available + 1, &of), 422, "refused");
        let taken = adjust(available, &of);
        assert_eq!(
            (taken.status, micro(&taken.json()["credits"])),
            (201, -available),
            "{}",
            taken.text()
        );
        assert_eq!(
            world.standing(&account),
            Standing {
                balance: held,
                held,
                available: 0
            }
        );
        let shown = world.look(&root, &format!("/accounts/{}", account.id));
        assert_eq!(
            (micro(&shown["held"]), micro(&shown["available"])),
            (held, 0),
            "{shown}"
        );
        refused(&adjust(1, "one more"), 422, "refused");
        assert!(answer.end().is_none(), "the stream was to outlast this");
        world.vendor.release();
        surface.completes(&mut connection, &mut answer);
        let balance = held - surface.cost(100, 50);
        assert_eq!(
            world.standing(&account),
            Standing {
                balance,
                held: 0,
                available: balance
            }
        );
        // Refund the cost of the response.
        let ending = world.ended(&account, 1);
        assert_eq!(micro(&ending["writeoff"]), 0);
        let path = format!("/requests/{}/refunds", answer.request_id());
        refused(
            &world.post(&root, &path, &json!({"credits": "300", "ref": of})),
            422,
            "refused",
        );
        let part = world.post(&root, &path, &json!({"credits": "0.000001", "ref": of}));
        assert_eq!(
            (part.status, &part.json()["kind"]),
            (201, &"refund".into()),
            "{}",
            part.text()
        );
        let rest = world.post(&root, &path, &json!({"ref": format!("{of}, the rest")}));
        assert_eq!(
            (rest.status, micro(&rest.json()["credits"])),
            (201, surface.cost(100, 50) - 1)
        );
        assert_eq!(world.standing(&account).balance, held);
    }
    let verdict = world.json(&["ledger", "verify"]);
    assert_eq!(
        (&verdict["adjustments"], &verdict["refunds"]),
        (&2.into(), &4.into()),
        "{verdict}"
    );
}

#[test]
fn of_sixteen_equal_postings_at_once_exactly_one_counts() {
    let world = World::new();
    let root = world.administrator();
    let account = world.funded(50_000_000);
    let request = world.works(Chat, &account.key).request_id();
    world.ended(&account, 1);
    let mut balance = world.standing(&account).balance;
    let of = |kind: &str| format!("/accounts/{}/{kind}", account.id);
    let cost = Chat.cost(10, 10);
    for (path, body, change) in [
        (
            of("grants"),
            json!({"credits": "12.5", "ref": "r"}),
            12_500_000,
        ),
        (of("topups"), json!({"credits": "0.000001", "ref": "r"}), 1),
        (
            of("adjustments"),
            json!({"credits": "-3", "ref": "r", "reason": "x"}),
            -3_000_000,
        ),
        (
            format!("/requests/{request}/refunds"),
            json!({"ref": "r"}),
            cost,
        ),
    ] {
        let answers = together(16, || world.post(&root, &path, &body));
        let count = |status| {
            answers
                .iter()
                .filter(|answer| answer.status == status)
                .count()
        };
        assert_eq!(
            (count(201), count(200)),
            (1, 15),
            "{path}: {:?}",
            answers.iter().map(Answer::text).next()
        );
        balance += change;
        for answer in &answers {
            let told = answer.json();
            assert_eq!(
                (micro(&told["credits"]), micro(&told["balance"])),
                (change, balance),
                "{told}"
            );
            assert_eq!(told["new"], answer.status == 201);
        }
        assert_eq!(world.standing(&account).balance, balance, "{path}");
        let mut other = body.clone();
        other["credits"] = "0.000002".into();
        refused(&world.post(&root, &path, &other), 409, "reference_used");
        assert_eq!(world.standing(&account).balance, balance, "{path}");
    }
    // Concurrent postings with different references all count.
    let next = std::sync::atomic::AtomicUsize::new(0);
    let grants = together(16, || {
        let turn = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        world
            .post(
                &root,
                &of("grants"),
                &json!({"credits": "1", "ref": format!("own {turn}")}),
            )
            .status
    });
    assert_eq!(grants, [201; 16]);
    assert_eq!(world.standing(&account).balance, balance + 16_000_000);
    // The ledger names the administrator, also on the command line. The log names the postings, but
    // no key.
    let shown = world.json(&["ledger", "show", &account.id, "--last", "20"]);
    let posted: Vec<_> = shown
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["ref"] == "r")
        .collect();
    let kinds: Vec<_> = posted
        .iter()
        .map(|entry| entry["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["refund", "adjust", "topup", "grant"]);
    assert!(
        posted
            .iter()
            .all(|entry| entry["actor"] == root.id.as_str()),
        "{shown}"
    );
    let export = world.json(&["ledger", "export", "--account", &account.id]);
    let topup = export
        .as_array()
        .unwrap()
        .iter()
        .find(|line| line["kind"] == "topup")
        .unwrap();
    assert_eq!(topup["detail"], json!({"actor": root.id}).to_string());
    let entries = world.look(&root, &format!("/accounts/{}/entries?limit=20", account.id));
    assert_eq!(entries["entries"], shown, "the same words in both places");
    assert!(
        world.log().contains(&format!(
            "administrator {} posted a topup of 0.000001",
            root.id
        )),
        "{}",
        world.log()
    );
    assert!(!world.log().contains("gw-sk-"));
}

#[test]
fn the_interface_is_for_administrators_on_the_private_listener_alone() {
    let world = Plan::default().without_administrator().start();
    let root = world.administrator();
    let account = world.account();
    let grants = format!("/admin/v1/accounts/{}/grants", account.id);
    let body = json!({"credits": "1", "ref": "r"}).to_string();
    for path in [
        "/admin/v1/accounts",
        "/admin",
        "//admin/v1/accounts",
        "/x/../admin/v1/accounts",
        &grants,
    ] {
        for port in [world.edge, world.sidecar] {
            let answer = client::ask(port, &Request::get(path).bearer(&root.key));
            // 400: two servers might read the path differently.
            assert!(
                matches!(answer.status, 400 | 404),
                "{path} on {port}: {}",
                answer.status
            );
        }
    }
    for path in [
        grants.as_str(),
        "/v1/../admin/v1/accounts",
        "/v1/admin/v1/accounts",
    ] {
        let answer = world.ask(&Request::post(path, body.clone()).bearer(&root.key));
        assert!(
            matches!(answer.status, 400 | 404),
            "{path}: {}",
            answer.text()
        );
    }
    let own = client::ask(
        world.admin,
        &Request::post(&grants, body.clone()).bearer(&account.key),
    );
    refused(&own, 403, "forbidden");
    refused(
        &client::ask(world.admin, &Request::post(&grants, body)),
        401,
        "bad_key",
    );
    for page in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(
            client::ask(world.admin, &Request::get(page)).status,
            200,
            "{page} needs no key"
        );
    }
    assert_eq!(world.standing(&account).balance, 300_000_000);
    assert_eq!(
        world.look(&root, "/accounts")["accounts"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn a_disabled_key_and_a_suspended_account_are_refused_at_the_next_request_until_it_is_undone() {
    let world = World::new();
    let root = world.administrator();
    let account = world.account();
    let (other_id, other) = world.key(&account.id, "other");
    let set = |path: &str| assert_eq!(world.post(&root, path, &json!({})).status, 200, "{path}");
    let status =
        |key: &str| BOTH.map(|surface| world.ask(&surface.whole(key, "input=1 output=1")).status);
    type Act<'a> = &'a dyn Fn();
    let closed: [(Act<'_>, Act<'_>, u16); 3] = [
        (
            &|| set(&format!("/keys/{}/disable", account.key_id)),
            &|| set(&format!("/keys/{}/enable", account.key_id)),
            200,
        ),
        (
            &|| drop(world.json(&["key", "disable", &account.key_id])),
            &|| drop(world.json(&["key", "enable", &account.key_id])),
            200,
        ),
        (
            &|| set(&format!("/accounts/{}/suspend", account.email)),
            &|| set(&format!("/accounts/{}/resume", account.email)),
            403,
        ),
    ];
    for (close, open, others) in closed {
        assert_eq!(status(&account.key), [200, 200]);
        close();
        assert_eq!(status(&account.key), [403, 403]);
        assert_eq!(status(&other), [others; 2]);
        open();
        assert_eq!(status(&account.key), [200, 200]);
    }
    assert_eq!(
        world.command(&["key", "disable", "key_none"]).status.code(),
        Some(1)
    );
    world.json(&["key", "revoke", &other_id]);
    assert_eq!(
        world.command(&["key", "enable", &other_id]).status.code(),
        Some(1)
    );
    assert_eq!(status(&other), [401, 401]);
}

#[test]
fn credit_that_was_bought_counts_as_such_and_is_in_the_books() {
    let world = Plan::default().trial_days("0.00002").start();
    let root = world.administrator();
    let account = world.account();
    let code = || {
        world.ask(&Messages.whole(&account.key, "input=1")).json()["error"]["details"]["error_code"]
            .clone()
    };
    wait_for("the trial's end", SOON, || {
        let has = world
            .ask(&Request::get("/v1/credits").bearer(&account.key))
            .json();
        (has["trial"]["active"] == false).then_some(())
    });
    assert_eq!(code(), "trial_expired");
    let path = format!("/accounts/{}/topups", account.id);
    assert_eq!(
        world
            .post(
                &root,
                &path,
                &json!({"credits": "0.000001", "ref": "invoice 1"})
            )
            .status,
        201
    );
    assert_eq!(code(), "insufficient_credits");
    let bought = world.json(&[
        "account",
        "top-up",
        &account.email,
        "5",
        "--ref",
        "invoice 2",
    ]);
    assert_eq!(
        (&bought["counted"], &bought["balance"]),
        (&true.into(), &"5.000001".into())
    );
    let again = world.post(&root, &path, &json!({"credits": "5", "ref": "invoice 2"}));
    assert_eq!(
        (again.status, &again.json()["new"]),
        (200, &false.into()),
        "one reference, whichever way it comes"
    );
    for bad in ["0", "-1"] {
        let output = world.command(&["account", "top-up", &account.id, "--ref", "r", "--", bad]);
        assert!(!output.status.success(), "a top-up of {bad}");
    }
    world.works(Messages, &account.key);
    world.ended(&account, 1);
    let rows = world.json(&["ledger", "show", &account.id]);
    let kinds = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["kind"].as_str().unwrap());
    // Ignore the lapse of the trial: the gateway posts it at its own time.
    let kinds: Vec<_> = kinds.filter(|kind| *kind != "lapse").collect();
    assert_eq!(kinds, ["debit", "topup", "topup", "trial"]);
}
