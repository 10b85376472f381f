//! Tests the admin API over real connections: authorization, and every status that it returns.

mod holders;
mod openapi;
mod organisations;

use super::*;
use crate::refused_requests::{NoteKind, RefusedRequest, RequestNote, VendorFault};
use ::accounts::{NewAccount, Role, open_account};
use base::clock::now_ms;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct World {
    _folder: TempDir,
    address: SocketAddr,
    accounts: Accounts,
    billing: Billing,
    settings: Arc<ArcSwap<Settings>>,
    refused: RefusedRequests,
    admin: String,
    key: String,
    key_id: String,
}

struct TestResponse {
    status: u16,
    head: String,
    body: String,
}

impl TestResponse {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// An administrator and an account `a@example.com` without credits, each with a key.
async fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(folder.path()).unwrap();
    let billing = Billing::open(folder.path()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let text = include_str!("../../conf/local.yaml");
    let settings = config::parse(text, &|_| None).unwrap();
    let settings = Arc::new(ArcSwap::from_pointee(settings));
    let refused = RefusedRequests::open(folder.path()).unwrap();
    let service = router(
        accounts.clone(),
        billing.clone(),
        Arc::clone(&settings),
        refused.clone(),
    );
    tokio::spawn(async { axum::serve(listener, service).await });
    let key = |email, role| {
        let new = NewAccount {
            role,
            ..NewAccount::new(email)
        };
        let account = open_account(&accounts, billing.ledger(), &new, now_ms()).unwrap();
        accounts
            .api_keys()
            .create_key(&account.id, "test", now_ms())
            .unwrap()
    };
    let (admin, own) = (
        key("root@example.com", Role::Admin),
        key("a@example.com", Role::Member),
    );
    let (admin, key, key_id) = (admin.key, own.key, own.key_id);
    World {
        _folder: folder,
        address,
        accounts,
        billing,
        settings,
        refused,
        admin,
        key,
        key_id,
    }
}

impl World {
    /// Enters a response of `a@example.com` that cost nothing.
    fn enter_response(&self, request_id: &str) {
        use ledger::{Ending, EndingDetail, RequestOutcome};
        let account = self.accounts.find("a@example.com").unwrap().unwrap();
        let settings = self.settings.load();
        let (_, price) = settings.catalog.prices().next().unwrap();
        let ledger = self.billing.ledger();
        ledger.rows().store_price(price, now_ms()).unwrap();
        let plain = Ending::in_test(request_id, &account.id, now_ms(), RequestOutcome::Completed);
        let ending = Ending {
            paid: credits::money::Micro::ZERO,
            detail: EndingDetail {
                price_version: price.version.clone(),
                ..plain.detail
            },
            ..plain
        };
        let entered = ledger.enter_endings(&[(&ending, Default::default())], "");
        assert_eq!(entered.unwrap(), 1);
    }

    /// Records a refusal of `a@example.com`.
    fn refuse(&self, request_id: &str) {
        self.refused.record(RefusedRequest {
            request_id: request_id.to_owned(),
            account: self.account_id().into(),
            at_ms: now_ms(),
            status: 402,
            code: "insufficient_credits".into(),
            message: "no credits".into(),
            surface: "chat",
            model: "beta-5.2".into(),
            key_id: "key_1".into(),
            key_shown: "gw-sk-Ab12…wxyz".into(),
        });
    }

    /// Notes a free request of `a@example.com`, which its vendor failed.
    fn note(&self, request_id: &str) {
        self.refused.note(RequestNote {
            request_id: request_id.to_owned(),
            account: self.account_id().into(),
            at_ms: now_ms(),
            kind: NoteKind::Failed,
            status: 502,
            asked_for: "a count of tokens".into(),
            header_id: Some("vendor-1".into()),
            answer_id: Some("chatcmpl-1".into()),
            fault: Some(VendorFault {
                vendor: "beta".into(),
                status: Some(503),
                cause: "overloaded".into(),
                words: "busy".into(),
                is_private: true,
            }),
        });
    }

    fn account_id(&self) -> String {
        self.accounts.find("a@example.com").unwrap().unwrap().id
    }

    async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> TestResponse {
        let length = body.len();
        let head = format!(
            "{method} /admin/v1{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}"
        );
        let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = Vec::new();
        // A server that refuses a body may reset the connection after its response. Then
        // `read_to_string` would forget what it has read.
        let _ = stream.read_to_end(&mut text).await;
        let text = String::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        TestResponse {
            status,
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> TestResponse {
        self.send(
            method,
            path,
            &format!("Authorization: Bearer {}\r\n", self.admin),
            body,
        )
        .await
    }

    async fn post(&self, path: &str, body: &Value) -> TestResponse {
        self.ask("POST", path, &body.to_string()).await
    }

    async fn fails(&self, method: &str, path: &str, body: &str, status: u16, code: &str) -> String {
        let response = self.ask(method, path, body).await;
        assert_eq!(
            response.status, status,
            "{method} {path} {body}: {}",
            response.body
        );
        let value = response.json();
        assert_eq!(value["error"]["code"], code, "{method} {path} {body}");
        assert_eq!(value["error"].as_object().unwrap().len(), 2, "{value}");
        value["error"]["message"].as_str().unwrap().to_owned()
    }

    fn balance(&self) -> String {
        let account = self.accounts.find("a@example.com").unwrap().unwrap();
        self.billing
            .balance(&account.id, now_ms())
            .unwrap()
            .balance
            .to_string()
    }
}

#[tokio::test]
async fn only_a_live_key_of_an_active_administrator_is_let_in() {
    let world = world().await;
    let bearer = |key: &str| format!("Authorization: Bearer {key}\r\n");
    let (rest, last) = world.admin.split_at(world.admin.len() - 1);
    let wrong = format!("{rest}{}", if last == "x" { "y" } else { "x" });
    for headers in [
        String::new(),
        bearer(&wrong),
        bearer("sk-vendor"),
        "Authorization: Basic eDp5\r\n".into(),
        format!("{}x-api-key: {}\r\n", bearer(&world.admin), world.key),
    ] {
        // Authorization comes before the path, the method and the body are examined.
        for (method, path, body) in [
            ("GET", "/accounts", ""),
            ("GET", "/none", ""),
            ("PUT", "/accounts", "{"),
        ] {
            let response = world.send(method, path, &headers, body).await;
            assert_eq!(response.status, 401, "{headers} {path}: {}", response.body);
            assert!(
                response.head.contains("www-authenticate: bearer")
                    && response.head.contains("no-store")
            );
            assert_eq!(response.json()["error"]["code"], "bad_key");
        }
    }
    let body = json!({"credits": "1", "ref": "r"}).to_string();
    let refused = world
        .send(
            "POST",
            "/accounts/a@example.com/grants",
            &bearer(&world.key),
            &body,
        )
        .await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (403, &"forbidden".into()),
        "{}",
        refused.body
    );
    assert_eq!(world.balance(), "0");
    let plain = format!("X-API-Key: {}\r\n", world.admin);
    assert_eq!(world.send("GET", "/accounts", &plain, "").await.status, 200);
    let both = format!("{plain}Authorization: Bearer sk-vendor\r\n");
    assert_eq!(
        world.send("GET", "/accounts", &both, "").await.status,
        200,
        "the one that is ours counts"
    );

    let new = NewAccount {
        role: Role::Viewer,
        ..NewAccount::new("viewer@example.com")
    };
    let viewer = open_account(&world.accounts, world.billing.ledger(), &new, now_ms()).unwrap();
    let viewer = world
        .accounts
        .api_keys()
        .create_key(&viewer.id, "test", now_ms())
        .unwrap()
        .key;
    let looking = format!("Authorization: Bearer {viewer}\r\n");
    assert_eq!(
        world.send("GET", "/accounts", &looking, "").await.status,
        403,
        "who may look, looks at the dashboard"
    );

    let root = world.accounts.find("root@example.com").unwrap().unwrap();
    let id = world.accounts.api_keys().keys(&root.id).unwrap()[0]
        .id
        .clone();
    assert!(
        world
            .accounts
            .api_keys()
            .set_key_enabled(&id, false)
            .unwrap()
    );
    world.fails("GET", "/accounts", "", 403, "forbidden").await;
    assert!(
        world
            .accounts
            .api_keys()
            .set_key_enabled(&id, true)
            .unwrap()
    );
    world
        .accounts
        .set_status(&root.id, ::accounts::AccountStatus::Suspended)
        .unwrap();
    world.fails("GET", "/accounts", "", 403, "forbidden").await;
    world
        .accounts
        .set_status(&root.id, ::accounts::AccountStatus::Active)
        .unwrap();
    assert_eq!(world.ask("GET", "/accounts", "").await.status, 200);
    let scoped = |settings: &mut ::accounts::KeySettings| {
        settings.scope = Some(::accounts::KeyScope::Inference);
    };
    world
        .accounts
        .api_keys()
        .change_key(None, &id, scoped)
        .unwrap();
    world.fails("GET", "/accounts", "", 403, "forbidden").await;
    world
        .accounts
        .api_keys()
        .change_key(None, &id, |settings| settings.scope = None)
        .unwrap();
    assert!(
        world
            .accounts
            .api_keys()
            .revoke_key(None, &id, now_ms())
            .unwrap()
    );
    world.fails("GET", "/accounts", "", 401, "bad_key").await;
}

#[tokio::test]
async fn what_is_malformed_is_named_and_posts_nothing() {
    let world = world().await;
    let grants = "/accounts/a@example.com/grants";
    for (body, named) in [
        ("", "JSON object"),
        ("[\"1\",\"r\"]", "JSON object"),
        ("{\"credits\":\"1\",\"ref\":\"r\"", "the body"),
        ("{\"credits\":\"1\",\"ref\":\"r\"}x", "the body"),
        ("{\"credits\":\"1\",\"ref\":\"r\",\"extra\":1}", "`extra`"),
        (
            "{\"credits\":\"1\",\"ref\":\"r\",\"reason\":\"x\"}",
            "`reason`",
        ),
        (
            "{\"credits\":\"1\",\"credits\":\"2\",\"ref\":\"r\"}",
            "`credits`",
        ),
        ("{\"ref\":\"r\"}", "credits"),
        ("{\"credits\":1,\"ref\":\"r\"}", "credits"),
        ("{\"credits\":null,\"ref\":\"r\"}", "credits"),
        ("{\"credits\":\"1e3\",\"ref\":\"r\"}", "credits"),
        ("{\"credits\":\"0.0000001\",\"ref\":\"r\"}", "credits"),
        (
            "{\"credits\":\"9007199254.740992\",\"ref\":\"r\"}",
            "credits",
        ),
        ("{\"credits\":\"0\",\"ref\":\"r\"}", "credits"),
        ("{\"credits\":\"-1\",\"ref\":\"r\"}", "credits"),
        ("{\"credits\":\"1\"}", "ref"),
        ("{\"credits\":\"1\",\"ref\":null}", "ref"),
        ("{\"credits\":\"1\",\"ref\":\" \"}", "ref"),
        ("{\"credits\":\"1\",\"ref\":\"a\\nb\"}", "ref"),
    ] {
        let why = world.fails("POST", grants, body, 400, "invalid").await;
        assert!(why.contains(named), "{body}: {why}");
    }
    let long = json!({"credits": "1", "ref": "x".repeat(201)}).to_string();
    assert!(
        world
            .fails("POST", grants, &long, 400, "invalid")
            .await
            .starts_with("ref must be")
    );
    let adjustments = "/accounts/a@example.com/adjustments";
    for (body, named) in [
        (json!({"credits": "1", "ref": "r"}), "reason"),
        (
            json!({"credits": "1", "ref": "r", "reason": "  "}),
            "reason",
        ),
        (
            json!({"credits": "1", "ref": "r", "reason": "x".repeat(2_001)}),
            "reason",
        ),
        (
            json!({"credits": "0", "ref": "r", "reason": "x"}),
            "credits",
        ),
        (json!({"ref": "r", "reason": "x"}), "credits"),
    ] {
        let why = world
            .fails("POST", adjustments, &body.to_string(), 400, "invalid")
            .await;
        assert!(why.starts_with(named), "{body}: {why}");
    }
    // Without an amount, a refund covers the rest of the debit; `null` is an error.
    world
        .fails(
            "POST",
            "/requests/req_1/refunds",
            "{\"credits\":null,\"ref\":\"r\"}",
            400,
            "invalid",
        )
        .await;
    world
        .fails(
            "POST",
            grants,
            &format!("{{{}", " ".repeat(MAX_BODY_BYTES)),
            413,
            "too_large",
        )
        .await;
    world.fails("DELETE", grants, "", 405, "wrong_method").await;
    world.fails("GET", "/nothing", "", 404, "not_found").await;
    // What is not sold has no paths, whatever the method and the body.
    for path in [
        "/payments",
        "/payments/reconcile",
        "/payments/a/refunds",
        "/codes",
        "/codes/a/void",
    ] {
        for method in ["GET", "POST", "PUT"] {
            world.fails(method, path, "x", 404, "not_found").await;
        }
    }
    for page in [
        "/accounts?limit=0",
        "/accounts?limit=101",
        "/accounts?limit=x",
        "/accounts?offset=1",
    ] {
        world.fails("GET", page, "", 400, "invalid").await;
    }
    world
        .fails(
            "GET",
            "/accounts/a@example.com/entries?before=x",
            "",
            400,
            "invalid",
        )
        .await;
    world
        .fails("GET", "/accounts/%FF", "", 400, "invalid")
        .await;
    let body = json!({"credits": "1", "ref": "r", "reason": "x"});
    for kind in ["grants", "topups", "adjustments"] {
        let mut body = body.clone();
        if kind != "adjustments" {
            body.as_object_mut().unwrap().remove("reason");
        }
        let path = format!("/accounts/acct_none/{kind}");
        world
            .fails("POST", &path, &body.to_string(), 404, "not_found")
            .await;
    }
    world
        .fails(
            "POST",
            "/requests/req_1/refunds",
            "{\"ref\":\"r\"}",
            404,
            "not_found",
        )
        .await;
    world
        .fails("POST", "/accounts/acct_none/suspend", "", 404, "not_found")
        .await;
    world
        .fails("POST", "/keys/key_none/disable", "", 404, "not_found")
        .await;
    let verdict = world.billing.verify(now_ms()).unwrap();
    assert_eq!(
        (verdict.entries, verdict.findings.len()),
        (0, 0),
        "something was posted"
    );
}

#[tokio::test]
async fn a_reference_counts_once_whoever_sends_it_again() {
    let world = world().await;
    let account = world.accounts.find("a@example.com").unwrap().unwrap().id;
    let root = world.accounts.find("root@example.com").unwrap().unwrap().id;
    let grants = format!("/accounts/{account}/grants");
    let grant = json!({"credits": "12.50", "ref": "invoice 1"});
    let first = world.post(&grants, &grant).await;
    let mut expected = json!({
        "account": account, "kind": "grant", "ref": "invoice 1", "credits": "12.5", "balance": "12.5", "new": true,
    });
    assert_eq!((first.status, first.json()), (201, expected.clone()));
    assert!(
        first.head.contains("cache-control: no-store")
            && first.head.contains("content-type: application/json")
    );
    expected["new"] = false.into();
    let second = world.post("/accounts/A@example.com/grants", &grant).await;
    assert_eq!((second.status, second.json()), (200, expected));
    // The command line can repeat the posting too: the actor is not part of its content.
    assert!(
        !world
            .billing
            .corrections()
            .grant(&account, "12.5".parse().unwrap(), "invoice 1", now_ms())
            .unwrap()
    );
    let other = json!({"credits": "12.51", "ref": "invoice 1"}).to_string();
    world
        .fails("POST", &grants, &other, 409, "reference_used")
        .await;
    world
        .fails(
            "POST",
            "/accounts/root@example.com/grants",
            &grant.to_string(),
            409,
            "reference_used",
        )
        .await;
    let bought = world
        .post(&format!("/accounts/{account}/topups"), &grant)
        .await;
    assert_eq!(
        (bought.status, &bought.json()["kind"]),
        (201, &"topup".into()),
        "each kind has its own references"
    );
    assert_eq!(world.balance(), "25");
    let mut adjustment = json!({"credits": "-25.000001", "ref": "a", "reason": "a mistake"});
    let adjustments = format!("/accounts/{account}/adjustments");
    world
        .fails(
            "POST",
            &adjustments,
            &adjustment.to_string(),
            422,
            "refused",
        )
        .await;
    adjustment["credits"] = "-0.5".into();
    assert_eq!(world.post(&adjustments, &adjustment).await.status, 201);
    assert_eq!(world.post(&adjustments, &adjustment).await.status, 200);
    adjustment["reason"] = "another mistake".into();
    world
        .fails(
            "POST",
            &adjustments,
            &adjustment.to_string(),
            409,
            "reference_used",
        )
        .await;
    assert_eq!(world.balance(), "24.5");
    let entries = world
        .ask("GET", &format!("/accounts/{account}/entries"), "")
        .await
        .json();
    let column = |name: &str| -> Vec<Value> {
        entries["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry[name].clone())
            .collect()
    };
    assert_eq!(column("kind"), ["adjust", "topup", "grant"]);
    assert_eq!(column("actor"), [root.as_str(); 3]);
    assert_eq!(
        column("reason"),
        [json!("a mistake"), Value::Null, Value::Null]
    );
    let verdict = world.billing.verify(now_ms()).unwrap();
    assert!(verdict.findings.is_empty(), "{:?}", verdict.findings);
}

#[tokio::test]
async fn accounts_and_entries_come_in_pages_without_gap_or_overlap() {
    let world = world().await;
    for index in 0..5 {
        let email = format!("b{index}@example.com");
        let new = NewAccount::new(&email);
        open_account(&world.accounts, world.billing.ledger(), &new, now_ms()).unwrap();
        let body = json!({"credits": "1", "ref": format!("r{index}")});
        assert_eq!(
            world
                .post("/accounts/a@example.com/grants", &body)
                .await
                .status,
            201
        );
    }
    for (path, rows, id, cursor, count) in [
        ("/accounts", "accounts", "account_id", "cursor", 7),
        (
            "/accounts/a@example.com/entries",
            "entries",
            "seq",
            "before",
            5,
        ),
    ] {
        let whole = world.ask("GET", path, "").await.json();
        assert_eq!(
            (whole[rows].as_array().unwrap().len(), &whole["next"]),
            (count, &Value::Null)
        );
        let (mut seen, mut query) = (Vec::new(), "?limit=2".to_owned());
        loop {
            let page = world.ask("GET", &format!("{path}{query}"), "").await.json();
            let page_rows = page[rows].as_array().unwrap();
            assert!(page_rows.len() <= 2);
            seen.extend(page_rows.iter().map(|row| row[id].clone()));
            let next = match &page["next"] {
                Value::Null => break,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            query = format!("?limit=2&{cursor}={next}");
        }
        let all: Vec<_> = whole[rows]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row[id].clone())
            .collect();
        assert_eq!(seen, all, "{path}");
    }
}

#[tokio::test]
async fn nobody_suspends_themselves_or_the_last_administrator_who_can_sign_in() {
    let world = world().await;
    let message = world
        .fails(
            "POST",
            "/accounts/root@example.com/suspend",
            "",
            422,
            "refused",
        )
        .await;
    assert!(message.contains("your own account"), "{message}");
    let admin = |email| {
        let new = NewAccount {
            password: Some("a long password"),
            role: Role::Admin,
            ..NewAccount::new(email)
        };
        open_account(&world.accounts, world.billing.ledger(), &new, now_ms()).unwrap();
    };
    admin("first@example.com");
    let message = world
        .fails(
            "POST",
            "/accounts/first@example.com/suspend",
            "",
            422,
            "refused",
        )
        .await;
    assert!(
        message.contains("last administrator who can sign in"),
        "{message}"
    );
    let is_active = |email| {
        world.accounts.find(email).unwrap().unwrap().status == ::accounts::AccountStatus::Active
    };
    assert!(is_active("root@example.com") && is_active("first@example.com"));
    assert!(
        world
            .accounts
            .audit_log()
            .rows(None, 10)
            .unwrap()
            .iter()
            .all(|line| line.act != "account.suspend")
    );
    admin("second@example.com");
    assert_eq!(
        world
            .post("/accounts/first@example.com/suspend", &json!({}))
            .await
            .status,
        200
    );
    assert!(!is_active("first@example.com") && is_active("second@example.com"));
}

#[tokio::test]
async fn doors_are_closed_and_opened_and_a_revoked_key_stays_revoked() {
    let world = world().await;
    let shown = world.ask("GET", "/accounts/a@example.com", "").await.json();
    assert_eq!(
        (&shown["status"], &shown["available"], &shown["trial"]),
        (&json!("active"), &json!("0"), &Value::Null)
    );
    for (path, status) in [
        ("suspend", "suspended"),
        ("suspend", "suspended"),
        ("resume", "active"),
    ] {
        let response = world
            .post(&format!("/accounts/a@example.com/{path}"), &json!({}))
            .await;
        assert_eq!(
            (response.status, &response.json()["status"]),
            (200, &status.into())
        );
        assert_eq!(
            world
                .accounts
                .api_keys()
                .authenticate(&world.key, now_ms())
                .is_ok(),
            status == "active"
        );
    }
    for (path, status) in [
        ("disable", "disabled"),
        ("enable", "active"),
        ("enable", "active"),
    ] {
        let response = world
            .post(&format!("/keys/{}/{path}", world.key_id), &json!({}))
            .await;
        assert_eq!(
            (response.status, &response.json()["status"]),
            (200, &status.into())
        );
        assert_eq!(
            world
                .accounts
                .api_keys()
                .authenticate(&world.key, now_ms())
                .is_ok(),
            status == "active"
        );
    }
    assert!(
        world
            .accounts
            .api_keys()
            .revoke_key(None, &world.key_id, now_ms())
            .unwrap()
    );
    for path in ["disable", "enable"] {
        world
            .fails(
                "POST",
                &format!("/keys/{}/{path}", world.key_id),
                "",
                404,
                "not_found",
            )
            .await;
        assert!(
            world
                .accounts
                .api_keys()
                .authenticate(&world.key, now_ms())
                .is_err()
        );
    }
}
