//! Tests the operator pages: an administrator's action happens once, requires the password, and is
//! audited.

mod audit;
mod codes;
mod forms;
mod keys;
mod list;
mod new_account;
mod payments;
mod people;
mod reading;
mod refund;

use super::*;
use crate::billing::{AuditProgress, AuditStep};
use crate::sidecar::ledger_audit::LedgerAuditResult;
use crate::upstreams::{EndpointQuery, VendorFailure, VendorFailureCause};
use accounts::db::audit::OutcomeKind;
use accounts::{AccountStatus, Actor};

struct Root {
    world: World,
    cookie: String,
    csrf: String,
    /// Account that the tests change.
    account: String,
}

/// An administrator who has just signed in, and another account.
async fn root() -> Root {
    root_with(&[]).await
}

async fn root_with(change: &[(&str, &str)]) -> Root {
    let world = world(change).await;
    let (admin, other) = (Some(PASSWORD), None);
    let open = |email, password, role| {
        let new = NewAccount {
            password,
            role,
            ..NewAccount::new(email)
        };
        open_account(&world.accounts, world.billing.ledger(), &new, now_ms())
            .unwrap()
            .id
    };
    open("root@example.com", admin, Role::Admin);
    let account = open("a@example.com", other, Role::Member);
    let body = format!("email=root@example.com&password={PASSWORD}");
    let cookie = world.post("/dashboard/sign-in", "", &body).await.cookie();
    let csrf = world.get("/dashboard/account", &cookie).await.csrf();
    Root {
        world,
        cookie,
        csrf,
        account,
    }
}

impl Root {
    async fn get(&self, path: &str) -> TestResponse {
        self.world.get(path, &self.cookie).await
    }

    async fn post(&self, path: &str, fields: &str) -> TestResponse {
        self.world
            .post(path, &self.cookie, &format!("csrf={}&{fields}", self.csrf))
            .await
    }

    fn path(&self, what: &str) -> String {
        format!("/dashboard/operator/accounts/{}/{what}", self.account)
    }

    fn balance(&self) -> String {
        self.world
            .billing
            .balance(&self.account, now_ms())
            .unwrap()
            .balance
            .to_string()
    }

    /// The actions in the audit log, oldest first, with their outcome unless they were done.
    fn acts(&self) -> Vec<String> {
        self.world
            .accounts
            .audit_log()
            .rows(None, 100)
            .unwrap()
            .into_iter()
            .rev()
            .map(|line| match line.outcome.kind {
                OutcomeKind::Done => line.act,
                kind => format!("{} {}", line.act, kind.name()),
            })
            .collect()
    }

    /// A session whose password confirmation has expired.
    fn later(self) -> Self {
        let admin = self
            .world
            .accounts
            .find("root@example.com")
            .unwrap()
            .unwrap()
            .id;
        let token = self
            .world
            .accounts
            .logins()
            .create_session(&admin, now_ms() - 11 * 60_000)
            .unwrap()
            .token;
        Self {
            csrf: form_token(&self.world.accounts, &token),
            cookie: format!("gw-session={token}"),
            ..self
        }
    }
}

#[tokio::test]
async fn credit_is_posted_once_per_reference_and_told_of() {
    let root = root().await;
    let granted = root
        .post(&root.path("post"), "kind=grant&credits=12.5&ref=ticket 1")
        .await;
    assert_eq!(granted.status, 201, "{}", granted.body);
    granted.shows("data-testid=\"account-balance\"><data value=\"12.5\"");
    let second = root
        .post(&root.path("post"), "kind=grant&credits=12.5&ref=ticket 1")
        .await;
    assert_eq!(second.status, 200);
    assert!(second.body.contains("already posted, so nothing changed"));
    for (fields, status) in [
        ("kind=grant&credits=1&ref=", 422),
        ("kind=grant&credits=-1&ref=r", 422),
        ("kind=gift&credits=1&ref=r", 422),
        ("kind=adjustment&credits=-1&ref=r", 422),
        ("kind=adjustment&credits=0&ref=r&reason=x", 422),
        ("kind=grant&credits=nan&ref=r", 422),
        ("kind=grant&credits=13&ref=ticket 1", 409),
        (
            "kind=adjustment&credits=-100&ref=r&reason=too much&confirmed=yes",
            409,
        ),
    ] {
        let refused = root.post(&root.path("post"), fields).await;
        assert_eq!(refused.status, status, "{fields}");
        assert!(refused.body.contains("role=\"alert\""), "{fields}");
    }
    assert_eq!(root.balance(), "12.5", "nothing else was posted");
    root.post(&root.path("post"), "kind=topup&credits=10&ref=invoice 1")
        .await
        .expect(201);
    let taken = root
        .post(
            &root.path("post"),
            "kind=adjustment&credits=-2.5&ref=slip&reason=a slip&confirmed=yes",
        )
        .await;
    assert_eq!(taken.status, 201);
    assert_eq!(root.balance(), "20");
    assert!(taken.body.contains("a slip"), "the entries say why");
    let verdict = root.world.billing.verify(now_ms()).unwrap();
    assert_eq!(
        (verdict.findings.len(), verdict.entries),
        (0, 3),
        "{:?}",
        verdict.findings
    );

    let admin = root
        .world
        .accounts
        .find("root@example.com")
        .unwrap()
        .unwrap()
        .id;
    let lines = root.world.accounts.audit_log().rows(None, 100).unwrap();
    assert!(lines.iter().all(|line| line.actor == admin
        && line.object == root.account
        && line.address == "127.0.0.1"));
    let acts = root.acts();
    let [granted, refused, repeated] = ["account.grant", "refused", "account.grant repeated"]
        .map(|what| acts.iter().filter(|act| act.ends_with(what)).count());
    assert_eq!((granted, refused, repeated), (1, 2, 1), "{acts:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.act == "account.adjust" && line.after.contains("a slip"))
    );
    let page = root.get("/dashboard/operator/audit").await.body;
    let sold = "sold 10 credits to a@example.com, reference invoice 1";
    assert!(page.contains(sold), "{page}");
    let adjusted = "as a correction: a slip";
    assert!(page.contains(adjusted), "{page}");
}

#[tokio::test]
async fn money_doors_and_an_administrators_key_ask_for_the_password_again() {
    let root = root().await.later();
    let page = root
        .get(&format!("/dashboard/operator/accounts/{}", root.account))
        .await;
    assert!(page.body.contains("Your password"));
    let post = async |password: &str| {
        let fields = format!("kind=grant&credits=5&ref=r&password={password}");
        root.post(&root.path("post"), &fields).await
    };
    let unconfirmed = post("").await;
    assert_eq!(unconfirmed.status, 403);
    assert!(
        unconfirmed.body.contains("value=\"5\""),
        "what was typed is not lost"
    );
    assert_eq!(post("not the password").await.status, 403);
    let suspend = async |password: &str| {
        root.post(
            &root.path("suspend"),
            &format!("confirmed=yes&password={password}"),
        )
        .await
    };
    for password in ["", "not the password"] {
        let refused = suspend(password).await;
        assert_eq!((refused.status, refused.inside("status")), (403, "active"));
        refused.has_fault_at("door_password");
    }
    let key = root.post("/dashboard/keys", "name=k").await;
    assert_eq!(key.status, 403);
    assert!(!key.body.contains("new-key"));
    let harmless = root
        .post("/dashboard/keys", "name=k&inference_only=yes")
        .await;
    assert_eq!(harmless.status, 303, "a key that changes no balance");
    let still = root.post("/dashboard/keys", "name=k").await;
    assert_eq!(still.status, 403, "it confirmed nothing");
    let page = root.get("/dashboard/keys").await.body;
    assert!(page.contains("inference only"));
    assert!(page.contains("name=\"inference_only\" value=\"yes\" checked"));
    assert_eq!(root.balance(), "0");
    assert!(root.acts().is_empty(), "what was not begun is not told of");
    assert_eq!(post(PASSWORD).await.status, 201);
    assert_eq!(root.balance(), "5");
    // The confirmation lasts ten minutes from now.
    root.post(&root.path("post"), "kind=grant&credits=5&ref=s")
        .await
        .expect(201);
    root.post("/dashboard/keys", "name=k").await.expect(303);
    assert_eq!(suspend("").await.status, 303);
}

#[tokio::test]
async fn nobody_suspends_themselves() {
    let root = root().await;
    // A second administrator, so that the first is not the last one.
    let new = NewAccount {
        password: Some(PASSWORD),
        role: Role::Admin,
        ..NewAccount::new("b@example.com")
    };
    open_account(
        &root.world.accounts,
        root.world.billing.ledger(),
        &new,
        now_ms(),
    )
    .unwrap();
    let own = root
        .world
        .accounts
        .find("root@example.com")
        .unwrap()
        .unwrap()
        .id;
    let refused = root
        .post(&format!("/dashboard/operator/accounts/{own}/suspend"), "")
        .await;
    assert_eq!(refused.status, 409);
    refused.shows("You would lock yourself out");
    assert_eq!(
        root.world
            .accounts
            .find("root@example.com")
            .unwrap()
            .unwrap()
            .status,
        AccountStatus::Active
    );
    assert!(root.acts().is_empty());
}

#[tokio::test]
async fn an_account_is_suspended_and_resumed_and_its_holder_is_not_asked() {
    let root = root().await;
    let key = root
        .world
        .accounts
        .api_keys()
        .create_key(&root.account, "k", now_ms())
        .unwrap()
        .key;
    let suspend = root.path("suspend");
    root.post(&suspend, "confirmed=yes").await.expect(303);
    assert!(!root.world.accepts(&key));
    let page = root
        .get(&format!("/dashboard/operator/accounts/{}", root.account))
        .await;
    assert_eq!(page.inside("status"), "suspended");
    root.post(&root.path("resume"), "").await.expect(303);
    assert!(root.world.accepts(&key));
    assert_eq!(root.acts(), ["account.suspend", "account.resume"]);
    let lines = root.world.accounts.audit_log().rows(None, 1).unwrap();
    assert_eq!(lines[0].before, r#"{"status":"suspended"}"#);
    assert_eq!(lines[0].after, r#"{"status":"active"}"#);
    for unknown in ["acct_0", "a@example.com"] {
        let path = format!("/dashboard/operator/accounts/{unknown}/suspend");
        assert_eq!(root.post(&path, "").await.status, 404, "{unknown}");
    }
}

#[tokio::test]
async fn a_suspended_administrator_is_none() {
    let root = root().await;
    let admin = root
        .world
        .accounts
        .find("root@example.com")
        .unwrap()
        .unwrap()
        .id;
    root.world
        .accounts
        .set_status(&admin, AccountStatus::Suspended)
        .unwrap();
    root.get("/dashboard/operator").await.expect(404);
    root.post(&root.path("post"), "kind=grant&credits=5&ref=s")
        .await
        .expect(404);
    assert_eq!(root.balance(), "0");
}

#[tokio::test]
async fn invitations_are_shown_once() {
    let root = root().await;
    let made = root
        .post("/dashboard/operator/invites", "count=3&days=7")
        .await;
    assert_eq!(made.status, 201);
    let codes = made.inside("new-invites").to_owned();
    assert_eq!(codes.lines().count(), 3);
    assert!(
        made.inside("mode")
            .contains("an invitation does nothing now")
    );
    let listed = root.get("/dashboard/operator/invites").await.body;
    assert!(
        codes.lines().all(|code| !listed.contains(code)),
        "shown a second time"
    );
    for bad in [
        "count=0&days=7",
        "count=101&days=7",
        "count=1&days=0",
        "count=1&days=366",
        "count=x&days=7",
        "",
    ] {
        assert_eq!(
            root.post("/dashboard/operator/invites", bad).await.status,
            422,
            "{bad}"
        );
    }
    assert_eq!(root.acts(), ["invite.create"]);
    let line = &root.world.accounts.audit_log().rows(None, 1).unwrap()[0];
    assert!(
        codes.lines().all(|code| !line.after.contains(code)),
        "a code is in the audit log"
    );
}

#[tokio::test]
async fn invitations_come_in_pages_of_fifty_the_newest_first() {
    let root = root().await;
    // Two pages of invitations from the same moment, and an older one.
    let by = Actor {
        actor: "uid 0".into(),
        address: "command line".into(),
    };
    let now_ms = now_ms();
    for (made_ms, count) in [(now_ms - 1_000, 1), (now_ms, 100)] {
        root.world
            .accounts
            .with_actor(&by, made_ms)
            .create_invites(count, 60_000)
            .unwrap();
    }
    let ids = |page: &str| -> Vec<String> {
        let ids = page
            .split("<code id=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        ids.filter(|id| id.starts_with("inv_"))
            .map(str::to_owned)
            .collect()
    };
    let (mut path, mut pages) = ("/dashboard/operator/invites".to_owned(), Vec::new());
    loop {
        let page = root.get(&path).await.body;
        assert_eq!(page.contains(">Newest</a>"), !pages.is_empty(), "{path}");
        pages.push(ids(&page));
        let Some((_, link)) = page.split_once("/dashboard/operator/invites?before=") else {
            break;
        };
        path = format!(
            "/dashboard/operator/invites?before={}",
            link.split('"').next().unwrap()
        );
    }
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [50, 50, 1]);
    let all: std::collections::HashSet<_> = pages.iter().flatten().collect();
    assert_eq!(all.len(), 101, "each once");
    let oldest = root
        .world
        .accounts
        .invitations()
        .list(None, 200)
        .unwrap()
        .pop()
        .unwrap();
    assert_eq!(
        (oldest.created_at_ms, &oldest.id),
        (now_ms - 1_000, &pages[2][0])
    );
    for behind in [
        oldest.id.as_str(),
        "inv_0000000000000000",
        "inv_",
        "none",
        "",
    ] {
        let page = root
            .get(&format!("/dashboard/operator/invites?before={behind}"))
            .await;
        assert!(
            page.status == 200 && page.body.contains("No older invitations."),
            "{behind}: {}",
            page.body
        );
        assert!(
            ids(&page.body).is_empty() && !page.body.contains("rel=\"next\""),
            "{behind}"
        );
    }
}

#[tokio::test]
async fn an_invitation_is_withdrawn_once_and_shown_as_such() {
    let root = root().await;
    let made = root
        .post("/dashboard/operator/invites", "count=2&days=7")
        .await;
    let code = made
        .inside("new-invites")
        .lines()
        .next()
        .unwrap()
        .to_owned();
    let invites = root.world.accounts.invitations().list(None, 100).unwrap();
    let page = root.get("/dashboard/operator/invites").await.body;
    assert_eq!(page.matches(">Revoke</button>").count(), 2);
    for invite in &invites {
        let path = format!("/dashboard/operator/invites/{}/withdraw", invite.id);
        let asked = root.post(&path, "").await;
        assert_eq!(asked.status, 200);
        assert!(asked.body.contains("Revoke this invitation?"));
        root.post(&path, "confirmed=yes").await.expect(303);
        for fields in ["", "confirmed=yes"] {
            assert_eq!(root.post(&path, fields).await.status, 404, "twice");
        }
    }
    let page = root.get("/dashboard/operator/invites").await.body;
    assert_eq!(
        (
            page.matches(">Revoke</button>").count(),
            page.matches(">revoked</td>").count()
        ),
        (0, 2)
    );
    assert!(!page.contains(&code));
    assert_eq!(
        root.acts(),
        ["invite.create", "invite.withdraw", "invite.withdraw"]
    );
}

#[tokio::test]
async fn a_viewer_sees_the_operators_view_and_is_offered_no_act() {
    let root = root().await;
    root.post("/dashboard/operator/invites", "count=1&days=7")
        .await;
    let new = NewAccount {
        role: Role::Viewer,
        ..NewAccount::new("viewer@example.com")
    };
    let viewer = open_account(
        &root.world.accounts,
        root.world.billing.ledger(),
        &new,
        now_ms(),
    )
    .unwrap();
    let token = root
        .world
        .accounts
        .logins()
        .create_session(&viewer.id, now_ms())
        .unwrap()
        .token;
    let cookie = format!("gw-session={token}");
    let account = format!("/dashboard/operator/accounts/{}", root.account);
    for path in ["", "/accounts", "/service", "/models", "/invites", "/audit"]
        .map(|view| format!("/dashboard/operator{view}"))
        .iter()
        .chain([&account])
    {
        let page = root.world.get(path, &cookie).await;
        assert_eq!(page.status, 200, "{path}");
        let main = page.body.split("<main").nth(1).unwrap();
        assert!(
            !main.contains("method=\"post\""),
            "{path} offers an act: {main}"
        );
        assert!(
            page.body.contains("viewer@example.com") && page.body.contains(">Operator</a>"),
            "{path}"
        );
        let admins = root.get(path).await.body;
        let acts = admins
            .split("<main")
            .nth(1)
            .unwrap()
            .contains("method=\"post\"");
        assert_eq!(
            acts,
            !matches!(
                path.as_str(),
                "/dashboard/operator"
                    | "/dashboard/operator/accounts"
                    | "/dashboard/operator/models"
                    | "/dashboard/operator/audit"
            ),
            "{path}"
        );
    }
    let csrf = form_token(&root.world.accounts, &token);
    let grant = root
        .world
        .post(
            &root.path("post"),
            &cookie,
            &format!("csrf={csrf}&kind=grant&credits=5&ref=r"),
        )
        .await;
    assert_eq!(grant.status, 403);
    assert!(grant.body.contains("You have read-only access"));
    assert_eq!(root.balance(), "0");
    assert_eq!(root.acts(), ["invite.create"], "and nothing is told of");
    // Suspended, the viewer has no access over the private interface either.
    root.world
        .accounts
        .set_status(&viewer.id, AccountStatus::Suspended)
        .unwrap();
    assert_eq!(
        root.world.get("/dashboard/operator", &cookie).await.status,
        404
    );
}

#[tokio::test]
async fn endpoints_are_shown_as_the_process_that_asks_them_knows_them() {
    let Root { world, cookie, .. } = root().await;
    world
        .get("/dashboard/operator/service", &cookie)
        .await
        .shows("Unknown to this process");
    let settings =
        Arc::new(config::parse(include_str!("../../../conf/local.yaml"), &|_| None).unwrap());
    let endpoint_registry = Arc::new(crate::upstreams::EndpointRegistry::default());
    let state = Sidecar::new(
        world.accounts.clone(),
        world.billing.clone(),
        Arc::new(ArcSwap::from(Arc::clone(&settings))),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let beside = World {
        address: listener.local_addr().unwrap(),
        ..world
    };
    tokio::spawn(serve(
        listener,
        None,
        state.with_endpoint_registry(Arc::clone(&endpoint_registry)),
        std::future::pending(),
    ));
    let health = async || {
        let page = beside.get("/dashboard/operator/service", &cookie).await;
        page.body
            .split("<span class=\"badge wrap")
            .skip(1)
            .map(between_tags)
            .collect::<Vec<_>>()
    };
    let vendor = &settings.catalog.models()[0].vendor;
    let endpoints = endpoint_registry.pool_for(vendor);
    let all = health().await;
    assert_eq!(
        all.iter()
            .filter(|state| *state == "No requests in 5 min")
            .count(),
        vendor.endpoints.len(),
        "{all:?}"
    );
    endpoints.set_health_check_result(0, false);
    assert!(
        health()
            .await
            .contains(&"Circuit open: its health check fails".to_owned())
    );
    endpoints.set_health_check_result(0, true);
    assert_eq!(health().await, all);
    let now = std::time::Instant::now();
    let query = EndpointQuery {
        model: "m",
        key: None,
        has_instead: false,
        has_waited: false,
        tried: &[],
    };
    endpoints
        .choose(query, now)
        .unwrap()
        .record_response("m", now);
    let mut refused = endpoints.choose(query, now).unwrap();
    let failure = VendorFailure {
        cause: VendorFailureCause::KeyRefused,
        status: Some(401),
        words: "No such <key>".into(),
        model: "alpha-opus-4-7",
        request_id: "req_1",
    };
    refused.count_failure(&failure, now_ms(), now);
    refused.record_refused_key(&settings.limits, now);
    drop(refused);
    let page = beside
        .get("/dashboard/operator/service", &cookie)
        .await
        .body;
    for shown in [
        "1 of 2 failed",
        "0 ms · 0 ms",
        "status 401, it refuses the gateway&#39;s key (“No such &#60;key&#62;”); alpha-opus-4-7<br>",
        "<a href=\"/dashboard/operator/activity/req_1\"><code>req_1</code></a>",
        "Key refused, or no credit at the vendor; next test in ",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
}

fn between_tags(text: &str) -> String {
    text.split_once('>')
        .unwrap()
        .1
        .split_once('<')
        .unwrap()
        .0
        .to_owned()
}

#[tokio::test]
async fn the_ledger_is_verified_on_demand_and_the_service_is_shown() {
    let root = root().await;
    let page = root.get("/dashboard/operator/service").await;
    assert_eq!(page.status, 200);
    for part in [
        "http://127.0.0.1:9100",
        "Open reservations",
        "No audit has run since",
    ] {
        assert!(page.body.contains(part), "{part}");
    }
    assert!(
        !page.body.contains("sim-alpha-key"),
        "a vendor's key is on the page"
    );
    root.post("/dashboard/operator/verify", "")
        .await
        .expect(303);
    let done = async {
        loop {
            let page = root.get("/dashboard/operator/service").await;
            if page.body.contains("data-testid=\"audit\"") {
                break page;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let page = tokio::time::timeout(Duration::from_secs(30), done)
        .await
        .expect("the audit ends");
    assert!(
        page.inside("audit").starts_with("No findings in 0 entries"),
        "{}",
        page.inside("audit")
    );
    assert_eq!(root.acts(), ["ledger.verify"]);
}

#[tokio::test]
async fn one_audit_runs_at_a_time_and_the_page_shows_how_far_it_is() {
    let root = root().await;
    let audits = &root.world.state.audits;
    assert!(audits.try_start(now_ms()));
    let page = root.get("/dashboard/operator/service").await;
    assert_eq!(page.inside("audit-progress"), "Starting");
    audits.set_progress(AuditProgress {
        step: AuditStep::Entries,
        done: 4_096,
        total: 1_000_000,
    });
    // A start while one runs shows the running one.
    root.post("/dashboard/operator/verify", "")
        .await
        .expect(303);
    let page = root.get("/dashboard/operator/service").await;
    assert_eq!(
        page.inside("audit-progress"),
        "4\u{202f}096 of 1\u{202f}000\u{202f}000 entries checked"
    );
    let bar = "<progress max=\"1000000\" value=\"4096\"";
    let reload = "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>";
    assert!(page.body.contains(bar) && page.body.contains(reload));
    assert!(!page.body.contains("Verify the ledger"));
    assert!(root.acts().is_empty(), "no second audit began");
    audits.finish(LedgerAuditResult {
        at: display::Timestamp(now_ms()),
        seconds: 7,
        outcome: "1 findings".into(),
        is_good: false,
        findings: vec!["cost (entry 3): <b>".into()],
    });
    let page = root.get("/dashboard/operator/service").await;
    assert_eq!(page.inside("audit"), "1 findings");
    assert!(page.body.contains("cost (entry 3): &#60;b&#62;"));
    assert!(page.body.contains("Verify the ledger") && !page.body.contains("http-equiv"));
}

#[tokio::test]
async fn the_audit_log_shows_what_was_tampered_with() {
    let root = root().await;
    for _ in 0..3 {
        root.post(&root.path("suspend"), "confirmed=yes").await;
    }
    assert!(
        root.world
            .accounts
            .audit_log()
            .verify()
            .unwrap()
            .findings
            .is_empty()
    );
    let tamper = rusqlite::Connection::open(root.world.folder.path().join("app.db")).unwrap();
    for change in ["UPDATE audit SET actor = 'nobody'", "DELETE FROM audit"] {
        assert!(tamper.execute(change, []).is_err(), "{change}");
    }
    tamper
        .execute_batch("DROP TRIGGER audit_is_never_changed; DROP TRIGGER audit_is_never_shortened")
        .unwrap();
    tamper
        .execute("UPDATE audit SET actor = 'nobody' WHERE seq = 2", [])
        .unwrap();
    let verdict = root.world.accounts.audit_log().verify().unwrap();
    assert_eq!(
        (verdict.lines, verdict.findings),
        (3, vec![(2, "this line was changed after it was written")])
    );
    tamper
        .execute("DELETE FROM audit WHERE seq = 2", [])
        .unwrap();
    let findings = root.world.accounts.audit_log().verify().unwrap().findings;
    assert_eq!(
        findings,
        [
            (3, "the line before this one is missing"),
            (3, "the hash of the line before this one does not match")
        ]
    );
}

#[tokio::test]
async fn the_service_page_lists_what_a_vendor_counted_beyond_reason() {
    let root = root().await;
    let path = "/dashboard/operator/service";
    assert!(root.get(path).await.body.contains("None in the last"));
    let account = spend(&root.world, "a@example.com", 6);
    let page = root.get(path).await.body;
    let table = page
        .split("data-testid=\"implausible\"")
        .nth(1)
        .and_then(|rest| rest.split("</table>").next())
        .unwrap();
    assert_eq!(table.matches("rowheader").count(), 1, "{table}");
    for part in [format!("req_{:032x}", 5), account, "2\u{202f}000".into()] {
        assert!(table.contains(&part), "{part}: {table}");
    }
}

#[tokio::test]
async fn a_reset_link_is_shown_once_and_needs_an_administrator_and_the_password() {
    let root = root().await;
    let made = root.post(&root.path("link"), "").await;
    assert_eq!(made.status, 201);
    let link = made.inside("new-link").to_owned();
    let token = link
        .strip_prefix("http://127.0.0.1:8080/dashboard/link/")
        .unwrap();
    assert_eq!(token.len(), 64);
    let page = root.get(root.path("").trim_end_matches('/')).await;
    assert_eq!(page.status, 200);
    assert!(!page.body.contains("new-link") && !page.body.contains(token));
    let log = root.world.accounts.audit_log().rows(None, 10).unwrap();
    assert_eq!(log[0].act, "account.create-link");
    assert_eq!(log[0].object, root.account);
    assert!(log.iter().all(|line| !line.after.contains(token)));
    let path = format!("/dashboard/link/{token}");
    let used = root.world.post(&path, "", "password=the+holder+chose+it");
    assert_eq!(used.await.status, 303);

    // A suspended account cannot sign in.
    root.world
        .accounts
        .set_status(&root.account, AccountStatus::Suspended)
        .unwrap();
    let refused = root.post(&root.path("link"), "").await;
    assert_eq!(refused.status, 409);
    assert!(refused.body.contains("suspended or deleted"));
    root.world
        .accounts
        .set_status(&root.account, AccountStatus::Active)
        .unwrap();

    let root = root.later();
    for (fields, status) in [
        ("", 403),
        ("password=wrong", 403),
        ("password=a+long+password", 201),
    ] {
        let answer = root.post(&root.path("link"), fields).await;
        assert_eq!(answer.status, status, "{fields}");
        assert_eq!(answer.body.contains("new-link"), status == 201, "{fields}");
    }
    let links = root.acts().into_iter();
    assert_eq!(links.filter(|act| act == "account.create-link").count(), 2);
}

#[tokio::test]
async fn the_service_page_shows_the_mail_that_waits_and_queues_a_test_mail() {
    let root = root().await;
    let page = root.get("/dashboard/operator/service").await.body;
    assert!(page.contains("The gateway sends no mail") && !page.contains("Send a test mail"));

    let mail = "mail: {smtp: \"smtps://mail.example.com\", from: \"g@example.com\"}\nsignup:";
    let root = root_with(&[("signup:", mail)]).await;
    let page = root.get("/dashboard/operator/service").await;
    assert!(page.body.contains("mail.example.com:465") && page.body.contains("Send a test mail"));
    assert_eq!(page.inside("mail-queued"), "0");
    let sent = root.post("/dashboard/operator/test-mail", "").await;
    assert_eq!(sent.status, 202);
    assert!(sent.inside("tested").contains("root@example.com"));
    let accounts = &root.world.accounts;
    let row = accounts
        .mails()
        .take_due_mail(now_ms(), 60_000, 10)
        .unwrap()
        .remove(0);
    accounts
        .mails()
        .retry_mail(&row.id, now_ms() + 60_000, "it <hangs>")
        .unwrap();
    let page = root.get("/dashboard/operator/service").await;
    assert_eq!(page.inside("mail-queued"), "1");
    assert!(
        page.inside("mail-error").ends_with("it &#60;hangs&#62;"),
        "{}",
        page.body
    );
    // A queue that is full takes no more.
    for _ in 1..20 {
        root.post("/dashboard/operator/test-mail", "")
            .await
            .expect(202);
    }
    root.post("/dashboard/operator/test-mail", "")
        .await
        .expect(503);
}
