//! Tests the sidecar over real connections: what a browser receives, and what another site's page
//! must not receive.

mod activity;
mod alerts;
mod brand;
mod buying;
mod device;
mod keys;
mod links;
mod matrix;
mod operator;
mod organisation;
mod people;
mod played_provider;
mod providers;
mod security;
mod setup;
mod spending;
mod statement;

use super::*;
use crate::billing::Billing;
use crate::refused_requests::{RefusedRequest, RefusedRequests};
use accounts::{Accounts, NewAccount, Role, open_account};
use arc_swap::ArcSwap;
use base::clock::now_ms;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

const PASSWORD: &str = "a long password";

struct World {
    folder: TempDir,
    address: SocketAddr,
    accounts: Accounts,
    billing: Billing,
    state: Sidecar,
    close: Option<oneshot::Sender<()>>,
    served: Served,
}

struct TestResponse {
    status: u16,
    headers: HashMap<String, String>,
    body: String,
}

impl TestResponse {
    /// Checks the status.
    #[track_caller]
    fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }

    /// Checks that the page has this text.
    #[track_caller]
    fn shows(&self, text: &str) {
        assert!(self.body.contains(text), "no {text:?}: {}", self.body);
    }

    /// Checks that the page shows a fault, beside the field with this id and at no other one;
    /// without an id, above the form.
    #[track_caller]
    fn has_fault_at(&self, id: &str) {
        let (before, after) = match id {
            "" => ("", self.body.as_str()),
            id => {
                let field = format!(" id=\"{id}\"");
                let start = self.body.find(&field).expect(id);
                let (tag, after) = self.body[start..].split_once("autofocus>").expect(id);
                assert!(!tag.contains('>'), "the mark is at another field: {tag}");
                let is_select = self.body[..start].ends_with("<select");
                let options = after.find("</select>").filter(|_| is_select);
                let end = options.map_or(0, |at| at + "</select>".len());
                (tag, &after[end..])
            }
        };
        let is_marked = before.contains(" aria-describedby=\"fault")
            && before.contains(" aria-invalid=\"true\"");
        assert_eq!(is_marked, !id.is_empty(), "{id}");
        assert!(
            id.is_empty() || after.starts_with("<p class=\"fault\" role=\"alert\" id=\"fault\">"),
            "{after:.200}"
        );
        let marks = self.body.matches("aria-invalid").count();
        assert_eq!(marks, usize::from(!id.is_empty()));
        assert_eq!(self.body.matches("id=\"fault\"").count(), 1);
    }

    /// Checks that the field with this id has this value.
    #[track_caller]
    fn keeps(&self, id: &str, value: &str) {
        let (_, tag) = self.body.split_once(&format!(" id=\"{id}\"")).expect(id);
        let (tag, _) = tag.split_once('>').unwrap();
        assert!(tag.contains(&format!(" value=\"{value}\"")), "{tag}");
    }

    /// The value of the form token on the page.
    fn csrf(&self) -> String {
        let start = self
            .body
            .find("name=\"csrf\" value=\"")
            .expect("a form token")
            + 19;
        self.body[start..start + 64].to_owned()
    }

    fn cookie(&self) -> String {
        self.headers["set-cookie"]
            .split(';')
            .next()
            .unwrap()
            .to_owned()
    }

    fn inside(&self, test_id: &str) -> &str {
        let start = self
            .body
            .find(&format!("data-testid=\"{test_id}\""))
            .expect(test_id);
        let text = self.body[start..].split_once('>').unwrap().1;
        text.split_once('<').unwrap().0
    }
}

/// The token for the forms of the pages that a session shows now.
fn form_token(accounts: &Accounts, session: &str) -> String {
    let found = accounts.logins().find_session(session, now_ms()).unwrap();
    let shown = found.map_or_else(String::new, |found| found.account.id);
    accounts::csrf_token(session, &shown)
}

/// The first element that stands in the value of an attribute, where a browser shows its tags.
fn element_in_attribute(html: &str) -> Option<&str> {
    let (mut is_tag, mut quote_at) = (false, None);
    for (index, letter) in html.char_indices() {
        match (letter, quote_at) {
            ('"', None) if is_tag => quote_at = Some(index),
            ('"', Some(_)) => quote_at = None,
            ('<', Some(start)) => return html.get(start..=index),
            ('<', None) => is_tag = true,
            ('>', None) => is_tag = false,
            _ => {}
        }
    }
    None
}

#[test]
fn an_element_in_an_attribute_is_found() {
    let good = "<a title=\"a > b\">\"<b>\"</b></a>";
    assert_eq!(element_in_attribute(good), None);
    let bad = "<p>x</p><a title=\"at <time datetime=\"1\">\">x</a>";
    assert_eq!(element_in_attribute(bad), Some("\"at <"));
}

async fn world(change: &[(&str, &str)]) -> World {
    let folder = tempfile::tempdir().unwrap();
    let mut text = include_str!("../../conf/local.yaml").to_owned();
    for (from, to) in change {
        assert!(text.contains(from));
        text = text.replace(from, to);
    }
    let settings = config::parse(&text, &|_| None).unwrap();
    let accounts = Accounts::open(folder.path()).unwrap();
    let billing = Billing::open(folder.path()).unwrap();
    let state = Sidecar::new(
        accounts.clone(),
        billing.clone(),
        Arc::new(ArcSwap::from_pointee(settings)),
    )
    .with_refused_requests(RefusedRequests::open(folder.path()).unwrap());
    let (address, close, served) = start(state.clone()).await;
    World {
        folder,
        address,
        accounts,
        billing,
        state,
        close: Some(close),
        served,
    }
}

type Served = tokio::task::JoinHandle<std::io::Result<()>>;

/// Starts a sidecar on a free port.
async fn start(state: Sidecar) -> (SocketAddr, oneshot::Sender<()>, Served) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (close, closed) = oneshot::channel::<()>();
    let served = tokio::spawn(serve(listener, None, state, async {
        let _ = closed.await;
    }));
    (address, close, served)
}

impl World {
    /// Whether a request with this key is admitted.
    fn accepts(&self, key: &str) -> bool {
        let keys = self.accounts.api_keys();
        keys.authenticate(key, now_ms()).is_ok()
    }

    /// Records a request that the gateway refused, and returns its id.
    fn refuse(&self, account: &str, number: u32, reason: (u16, &str)) -> String {
        self.refuse_model("alpha-opus-4-7", account, number, reason)
    }

    fn refuse_model(
        &self,
        model: &str,
        account: &str,
        number: u32,
        (status, code): (u16, &str),
    ) -> String {
        let request_id = format!("req_0193000000007abc8def{number:012x}");
        let refused = self.state.refused.as_ref().unwrap();
        refused.record(RefusedRequest {
            request_id: request_id.clone(),
            account: account.into(),
            at_ms: now_ms(),
            status,
            code: code.to_owned(),
            message: format!("Sentence of <b> {code}."),
            surface: "messages",
            model: model.to_owned(),
            key_id: "key_1".into(),
            key_shown: "gw-sk-Ab12…wxyz".into(),
        });
        refused.flush();
        request_id
    }

    fn price(&self) -> credits::price_list::PriceList {
        let settings = config::parse(include_str!("../../conf/local.yaml"), &|_| None).unwrap();
        credits::price_list::PriceList::clone(&settings.catalog.models()[0].price)
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TestResponse {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            self.address
        );
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if method == "POST" {
            let kind = "application/x-www-form-urlencoded";
            request += &format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
        }
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream
            .write_all(format!("{request}\r\n{body}").as_bytes())
            .await
            .unwrap();
        let mut text = Vec::new();
        // A server that refuses a body may reset the connection after its response.
        let _ = stream.read_to_end(&mut text).await;
        let text = String::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let status = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.into(), value.into()));
        let response = TestResponse {
            status,
            headers: headers.collect(),
            body: body.to_owned(),
        };
        let kind = response.headers.get("content-type").map(String::as_str);
        if kind == Some("text/html; charset=utf-8") {
            assert_eq!(element_in_attribute(&response.body), None, "{path}");
        }
        response
    }

    /// Ends the sidecar and starts another one, at another address.
    async fn restart(&mut self) {
        let (address, close, served) = start(self.state.clone()).await;
        self.address = address;
        self.close.replace(close).unwrap().send(()).unwrap();
        let ended = std::mem::replace(&mut self.served, served);
        ended.await.unwrap().unwrap();
    }

    async fn get(&self, path: &str, cookie: &str) -> TestResponse {
        self.ask("GET", path, &[("cookie", cookie)], "").await
    }

    async fn post(&self, path: &str, cookie: &str, body: &str) -> TestResponse {
        let origin = format!("http://{}", self.address);
        self.ask(
            "POST",
            path,
            &[("cookie", cookie), ("origin", &origin)],
            body,
        )
        .await
    }

    /// Sends a form that creates a key, and returns the key's page.
    async fn create_key_by(&self, path: &str, cookie: &str, fields: &str) -> TestResponse {
        let created = self.post(path, cookie, fields).await;
        assert_eq!(created.status, 303, "{}", created.body);
        let page = self.get(&created.headers["location"], cookie).await;
        assert_eq!(page.status, 200, "{}", page.body);
        page
    }

    async fn create_key(&self, cookie: &str, fields: &str) -> TestResponse {
        self.create_key_by("/dashboard/keys", cookie, fields).await
    }

    /// Signs up a new account and returns its cookie.
    async fn sign_up(&self, email: &str) -> String {
        let response = self
            .post(
                "/dashboard/sign-up",
                "",
                &format!("email={email}&password={PASSWORD}"),
            )
            .await;
        assert_eq!(response.status, 303, "{}", response.body);
        response.cookie()
    }
}

#[tokio::test]
async fn a_visitor_signs_up_makes_a_key_sees_it_once_and_revokes_it() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let overview = world.get("/dashboard", &cookie).await;
    assert_eq!(overview.status, 200);
    assert_eq!(overview.inside("balance"), "300");
    let trial = overview.inside("trial");
    assert!(
        trial.starts_with("Trial: 6 days 23 h left, 300.00 of 300.00 credits, until "),
        "{trial}"
    );

    let csrf = world.get("/dashboard/keys", &cookie).await.csrf();
    let name = "%3Cscript%3Ealert(1)%3C%2Fscript%3E";
    let fields = format!("name={name}&csrf={csrf}");
    let made = world.create_key(&cookie, &fields).await;
    assert!(
        !made.body.contains("<script>alert"),
        "a key's name was not escaped"
    );
    let key = made.inside("new-key").to_owned();
    assert_eq!(
        made.body.matches(&key).count(),
        2,
        "the key and the line that sets it"
    );
    let text = made.body.replace("&#34;", "\"");
    assert!(text.contains(&format!("export GATEWAY_KEY=\"{key}\"")));
    let paste =
        "curl \"http://127.0.0.1:8080/v1/messages\" \\\n  -H \"x-api-key: $GATEWAY_KEY\" \\\n";
    assert!(text.contains(paste), "{text}");
    assert!(world.accepts(&key));
    let listed = world.get("/dashboard/keys", &cookie).await;
    assert!(
        !listed.body.contains(&key) && !listed.body.contains("new-key"),
        "shown elsewhere"
    );

    let id = listed
        .body
        .split_once("/dashboard/keys/key_")
        .unwrap()
        .1
        .split(['/', '"'])
        .next()
        .unwrap();
    let path = format!("/dashboard/keys/key_{id}/revoke");
    let question = world.get(&path, &cookie).await;
    assert_eq!(question.status, 200);
    assert!(world.accepts(&key), "asking does not revoke");

    let stranger = world.sign_up("b@example.com").await;
    let own = world.get("/dashboard/keys", &stranger).await.csrf();
    world.get(&path, &stranger).await.expect(404);
    world
        .post(&path, &stranger, &format!("csrf={own}&confirmed=yes"))
        .await
        .expect(404);
    assert!(world.accepts(&key), "a stranger revoked a key");

    world
        .post(&path, &cookie, &format!("csrf={csrf}"))
        .await
        .expect(200);
    assert!(world.accepts(&key), "revoked without a confirmation");
    let confirmed = format!("csrf={csrf}&confirmed=yes");
    world.post(&path, &cookie, &confirmed).await.expect(303);
    assert!(!world.accepts(&key));
}

#[tokio::test]
async fn a_change_needs_our_own_page_a_session_and_its_token() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let csrf = world.get("/dashboard/keys", &cookie).await.csrf();
    let body = format!("name=k&csrf={csrf}");
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
    ] {
        let response = world
            .ask(
                "POST",
                "/dashboard/keys",
                &[("cookie", &cookie), (name, value)],
                &body,
            )
            .await;
        assert_eq!(response.status, 403, "{name}: {value}");
    }
    for bad in [
        "name=k",
        "name=k&csrf=",
        &format!("name=k&csrf={}", "0".repeat(64)),
    ] {
        assert_eq!(
            world.post("/dashboard/keys", &cookie, bad).await.status,
            403,
            "{bad}"
        );
    }
    let unsigned = world.post("/dashboard/keys", "", &body).await;
    assert_eq!(
        (unsigned.status, unsigned.headers["location"].as_str()),
        (303, "/dashboard/sign-in")
    );
    for page in [
        "/dashboard",
        "/dashboard/keys",
        "/dashboard/activity",
        "/dashboard/activity/x",
        "/dashboard/activity.csv",
        "/dashboard/conversations",
        "/dashboard/conversations/x",
        "/dashboard/live",
        "/dashboard/spending",
        "/dashboard/statement",
        "/dashboard/statement.csv",
    ] {
        assert_eq!(world.get(page, "gw-session=0").await.status, 303, "{page}");
    }
    world
        .post("/dashboard/sign-out", &cookie, &format!("csrf={csrf}"))
        .await
        .expect(303);
    assert_eq!(
        world.get("/dashboard", &cookie).await.status,
        303,
        "signed out"
    );
}

#[tokio::test]
async fn a_sign_in_gives_a_new_session_and_a_wrong_one_tells_nothing() {
    let world = world(&[]).await;
    let old = world.sign_up("a@example.com").await;
    let good = format!("email=A@example.com&password={PASSWORD}");
    let new = world.post("/dashboard/sign-in", &old, &good).await;
    assert_eq!(
        (new.status, new.headers["location"].as_str()),
        (303, "/dashboard")
    );
    assert_ne!(new.cookie(), old);
    assert_eq!(
        world.get("/dashboard", &old).await.status,
        303,
        "the old session lives on"
    );
    world.get("/dashboard", &new.cookie()).await.expect(200);
    let attributes = new.headers["set-cookie"].split_once("; ").unwrap().1;
    assert_eq!(attributes, "HttpOnly; SameSite=Lax; Path=/");

    let wrong = world
        .post(
            "/dashboard/sign-in",
            "",
            "email=a@example.com&password=wrong-password",
        )
        .await;
    let unknown = world
        .post(
            "/dashboard/sign-in",
            "",
            "email=x@example.com&password=wrong-password",
        )
        .await;
    assert_eq!((wrong.status, unknown.status), (401, 401));
    wrong.has_fault_at("password");
    wrong.keeps("email", "a@example.com");
    assert_eq!(
        wrong.body.replace("a@example.com", "x@example.com"),
        unknown.body
    );
    for _ in 0..4 {
        world
            .post(
                "/dashboard/sign-in",
                "",
                "email=x@example.com&password=wrong",
            )
            .await
            .expect(401);
    }
    let slowed = world
        .post(
            "/dashboard/sign-in",
            "",
            "email=x@example.com&password=wrong",
        )
        .await;
    assert_eq!(slowed.status, 429);
    // Twelve seconds, less the time of the six attempts.
    let wait: u64 = slowed.headers["retry-after"].parse().unwrap();
    assert!((1..=12).contains(&wait), "{wait}");
    assert_eq!(
        world.post("/dashboard/sign-in", "", &good).await.status,
        303,
        "another e-mail is not slowed"
    );
}

#[tokio::test]
async fn sign_up_says_what_is_wrong_and_is_counted_by_address() {
    let world = world(&[]).await;
    world
        .get("/dashboard/sign-up", "")
        .await
        .shows("300 free credits for 7 days");
    world.sign_up("a@example.com").await;
    for (body, status, field) in [
        (
            format!("email=A@example.com&password={PASSWORD}"),
            409,
            Some("email"),
        ),
        (
            format!("email=nonsense&password={PASSWORD}"),
            422,
            Some("email"),
        ),
        (
            "email=b@example.com&password=short".to_owned(),
            422,
            Some("password"),
        ),
        ("email=b@example.com".to_owned(), 400, None),
        (
            format!("email=b@example.com&password={}", "x".repeat(70_000)),
            413,
            None,
        ),
    ] {
        let refused = world.post("/dashboard/sign-up", "", &body).await;
        assert_eq!(refused.status, status, "{body:.60}");
        if let Some(field) = field {
            refused.has_fault_at(field);
        }
    }
    let from = |address: &'static str, index: usize| {
        let body = format!(
            "email=c{index}-{}@example.com&password={PASSWORD}",
            address.len()
        );
        let world = &world;
        async move {
            world
                .ask(
                    "POST",
                    "/dashboard/sign-up",
                    &[("x-forwarded-for", address)],
                    &body,
                )
                .await
                .status
        }
    };
    for index in 0..3 {
        assert_eq!(from("192.0.2.1", index).await, 303);
    }
    assert_eq!(from("192.0.2.1", 3).await, 429);
    assert_eq!(from("2001:db8::1", 0).await, 303);
}

#[tokio::test]
async fn closed_sign_up_is_said_and_held() {
    let world = world(&[("mode: open", "mode: closed")]).await;
    let page = world.get("/dashboard/sign-up", "").await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("Sign-up is closed") && !page.body.contains("<form"));
    let body = format!("email=a@example.com&password={PASSWORD}");
    world
        .post("/dashboard/sign-up", "", &body)
        .await
        .expect(403);
    assert!(world.accounts.directory().list().unwrap().is_empty());
}

#[tokio::test]
async fn pages_that_send_to_the_operator_name_the_configured_contact() {
    for (support, shown) in [
        (
            "Ann <b>, room 4",
            "for an account: Ann &#60;b&#62;, room 4.",
        ),
        (
            "mailto:ann@example.com",
            "for an account: <a href=\"mailto:ann@example.com\">ann@example.com</a>.",
        ),
        (
            "javascript:alert(1)",
            "for an account: javascript:alert(1).",
        ),
        ("", "for an account."),
    ] {
        let section = format!("support: \"{support}\"\nvendors:\n  alpha:");
        let changes = [
            ("mode: open", "mode: closed"),
            ("vendors:\n  alpha:", section.as_str()),
        ];
        let world = world(&changes).await;
        let page = world.get("/dashboard/sign-up", "").await.body;
        assert!(page.contains(shown), "{support}: {page}");
        let new = NewAccount::new("a@example.com");
        let id = open_account(&world.accounts, world.billing.ledger(), &new, now_ms())
            .unwrap()
            .id;
        let keys = world.accounts.api_keys();
        keys.create_key(&id, "laptop", now_ms()).unwrap();
        let token = world
            .accounts
            .logins()
            .create_session(&id, now_ms())
            .unwrap()
            .token;
        let cookie = format!("gw-session={token}");
        let contact = shown.strip_prefix("for an account").unwrap();
        let page = world.get("/dashboard", &cookie).await;
        let for_credits = format!("Ask the operator of this gateway for credits{contact}");
        assert!(page.body.contains(&for_credits), "{support}");
        let suspended = accounts::AccountStatus::Suspended;
        world.accounts.set_status(&id, suspended).unwrap();
        let page = world.get("/dashboard", &cookie).await;
        let of_suspended = format!("Ask the operator of this gateway{contact}");
        assert!(page.body.contains(&of_suspended), "{support}");
        assert!(!page.body.contains("no-credit"), "there is nothing to buy");
        assert!(page.body.contains("account suspended") && !page.body.contains("data-live="));
        let keys = world.get("/dashboard/keys", &cookie).await;
        assert!(keys.body.contains("does not work: account suspended"));
    }
}

#[tokio::test]
async fn every_answer_is_hardened_and_unknown_paths_are_pages() {
    let world = world(&[]).await;
    for (path, status) in [
        ("/", 303),
        ("/docs", 200),
        ("/nothing", 404),
        ("/dashboard/sign-out", 405),
    ] {
        let response = world.get(path, "").await;
        assert_eq!(response.status, status, "{path}");
        let csp = &response.headers["content-security-policy"];
        assert!(
            csp.starts_with("default-src 'none'; script-src 'self';") && !csp.contains("unsafe"),
            "{csp}"
        );
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(response.headers[name], value, "{path}");
        }
        assert!(
            !response.headers.contains_key("strict-transport-security"),
            "plain HTTP"
        );
        assert!(
            status == 303 || response.body.starts_with("<!doctype html>"),
            "{path}"
        );
        assert!(
            !response.body.contains("style=") && !response.body.contains("onclick"),
            "{path}: inline"
        );
    }
    let cookie = world.sign_up("a@example.com").await;
    assert_eq!(
        world.get("/dashboard", &cookie).await.headers["cache-control"],
        "no-store"
    );
}

#[tokio::test]
async fn the_catalog_is_public_and_its_files_are_kept() {
    let world = world(&[]).await;
    let docs = world.get("/docs", "").await;
    assert!(docs.body.contains("id=\"models\""));
    for id in [
        "alpha-opus-4-7",
        "alpha-sonnet-4-6",
        "alpha-haiku-4-5-20251001",
        "beta-5.2",
        "beta-5.5",
    ] {
        assert!(docs.body.contains(&format!("<code>{id}</code>")), "{id}");
    }
    let twin = world.get("/docs/models.json", "").await;
    let twin: serde_json::Value = serde_json::from_str(&twin.body).unwrap();
    assert_eq!(twin["models"][0]["price"]["cache_write_1h"], "1000");
    assert_eq!(twin["models"][3]["surfaces"][0], "chat");
    let more = "models:\n  - {id: e, vendor: beta, upstream_model: e, kind: rerank, \
        context_tokens: 512, price: {input: \"1\"}}\n  - {id: t, vendor: beta, upstream_model: t, \
        context_tokens: 512, max_output_tokens: 9, capabilities: {completions: text}, \
        price: {input: \"1\", output: \"1\"}}\n";
    let others = self::world(&[("models:\n", more)]).await;
    let twin = others.get("/docs/models.json", "").await;
    let twin: serde_json::Value = serde_json::from_str(&twin.body).unwrap();
    let paths = ["/v1/rerank", "/v2/rerank"];
    assert_eq!(twin["models"][0]["surfaces"], serde_json::json!(paths));
    let surfaces = ["chat", "messages", "responses", "/v1/completions"];
    assert_eq!(twin["models"][1]["surfaces"], serde_json::json!(surfaces));
    let page = others.get("/docs/models", "").await.body;
    assert!(page.contains("<dd>/v1/rerank, /v2/rerank</dd>"), "{page}");
    let kinds = "models:\n  - {id: voice, vendor: beta, upstream_model: v, kind: speech, \
        context_tokens: 512, price: {character: \"0.5\"}}\n  - {id: painter, vendor: beta, \
        upstream_model: p, kind: image, context_tokens: 512, max_output_tokens: 9, \
        price: {input: \"5\", image_output: \"30\"}}\n";
    let kinds = self::world(&[("models:\n", kinds)]).await;
    let twin = kinds.get("/docs/models.json", "").await;
    let twin: serde_json::Value = serde_json::from_str(&twin.body).unwrap();
    for (at, prices) in [
        (0, serde_json::json!({"character": "0.5"})),
        (1, serde_json::json!({"input": "5", "image_output": "30"})),
    ] {
        let mut shown = twin["models"][at]["price"].clone();
        shown.as_object_mut().unwrap().remove("version");
        assert_eq!(shown, prices);
    }
    for path in ["/docs", "/docs/models"] {
        let page = kinds.get(path, "").await.body;
        for shown in [
            "data-unit=\"in\">0.5 per 1 000 characters<",
            "data-unit=\"out\">30<",
        ] {
            assert!(page.contains(shown), "{path}: {shown}: {page}");
        }
    }

    let start = docs.body.find("/dashboard/static/style-").unwrap();
    let path = docs.body[start..].split_once('"').unwrap().0;
    let style = world.get(path, "").await;
    assert_eq!(style.headers["content-type"], "text/css; charset=utf-8");
    assert_eq!(
        style.headers["cache-control"],
        "public, max-age=31536000, immutable"
    );
    let again = world
        .ask(
            "GET",
            path,
            &[("if-none-match", &style.headers["etag"])],
            "",
        )
        .await;
    assert_eq!(again.status, 304);
    world
        .get("/dashboard/static/style-0.css", "")
        .await
        .expect(404);
}

#[tokio::test]
async fn the_catalog_tells_how_a_model_is_reached_and_who_answers_in_its_place() {
    let door = "    upstream_model: gpt-5.5\n";
    let more = "    upstream_model: gpt-5.5\n    upstream_protocol: responses\n    fallback: [alpha-opus-4-7]\n";
    let world = world(&[(door, more)]).await;
    let twin = world.get("/docs/models.json", "").await;
    let twin: serde_json::Value = serde_json::from_str(&twin.body).unwrap();
    let surfaces_of = |model: &serde_json::Value, list: &str| {
        let lost = model[list].as_array().unwrap().clone();
        lost.iter()
            .map(|lost| lost["surface"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let alpha = &twin["models"][0];
    assert_eq!(
        alpha["surfaces"],
        serde_json::json!(["messages", "chat", "responses"])
    );
    assert_eq!(
        surfaces_of(alpha, "lost_in_translation"),
        ["chat", "responses"]
    );
    assert_eq!(surfaces_of(alpha, "repaired"), ["messages"]);
    let both = &twin["models"][4];
    assert_eq!(
        both["vendor_protocols"],
        serde_json::json!(["chat", "responses"])
    );
    assert_eq!(
        both["surfaces"],
        serde_json::json!(["chat", "responses", "messages"])
    );
    assert_eq!(both["fallback"], serde_json::json!(["alpha-opus-4-7"]));
    assert_eq!(surfaces_of(both, "lost_in_translation"), ["messages"]);
    assert_eq!(surfaces_of(both, "repaired"), ["chat", "responses"]);
    let page = world.get("/docs/models", "").await.body;
    assert!(
        page.contains("Fallback models") && page.contains("<dd>chat, responses</dd>"),
        "{page}"
    );
    assert!(page.contains("(responses API)"), "{page}");
    let start = world.get("/docs", "").await.body;
    assert!(start.contains("/v1/responses"), "{start}");
}

/// Posts `count` debits of one account to a gateway's ledger, and returns the account.
fn spend(world: &World, email: &str, count: u32) -> String {
    use ledger::{Ending, EndingDetail, Ledger, RequestOutcome};
    let account = world
        .accounts
        .directory()
        .list()
        .unwrap()
        .into_iter()
        .find(|account| account.email == email)
        .unwrap()
        .id;
    let price = world.price();
    let ledger = Ledger::open(world.folder.path()).unwrap();
    ledger.rows().store_price(&price, 0).unwrap();
    let usage = llm_protocol::usage::Usage {
        input: 1_000,
        cache_read: 1_000,
        output: 10,
        ..Default::default()
    };
    let now_ms = base::clock::now_ms();
    let ending = |n: u32| {
        let outcome = if n == 3 {
            RequestOutcome::ClientLeft
        } else {
            RequestOutcome::Completed
        };
        let plain = Ending::in_test(
            &format!("req_{n:032x}"),
            &account,
            now_ms - i64::from(n),
            outcome,
        );
        Ending {
            trial: credits::money::Micro::new(1_000),
            detail: EndingDetail {
                key_shown: "gw-sk-Ab12…wxyz".into(),
                model: if n.is_multiple_of(2) {
                    "even<b>".into()
                } else {
                    "=odd".into()
                },
                usage,
                price_version: price.version.clone(),
                estimated: n == 3,
                implausible: n == 5,
                conversation: Some(format!("c{}", n / 60)),
                took_ms: Some(1_500),
                ..plain.detail
            },
            ..plain
        }
    };
    let endings: Vec<_> = (1..=count).map(ending).collect();
    let pairs: Vec<_> = endings
        .iter()
        .map(|ending| (ending, Default::default()))
        .collect();
    assert_eq!(ledger.enter_endings(&pairs, "").unwrap(), pairs.len());
    account
}

#[tokio::test]
async fn activity_comes_in_pages_of_fifty_and_whole_as_a_file_and_never_to_a_stranger() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let stranger = world.sign_up("b@example.com").await;
    spend(&world, "a@example.com", 1_120);
    let rows = |response: &TestResponse| response.body.matches("Receipt of ").count();
    let (mut path, mut seen) = ("/dashboard/activity?model=even%3Cb%3E".to_owned(), 0);
    let mut pages = 0;
    loop {
        let page = world.get(&path, &cookie).await;
        assert_eq!(page.status, 200);
        assert!(
            !page.body.contains("even<b>") && !page.body.contains("=odd"),
            "escaped, and nothing but the filter's"
        );
        seen += rows(&page);
        pages += 1;
        let Some((before, _)) = page.body.split_once("\" rel=\"next\"") else {
            break;
        };
        let (_, link) = before.rsplit_once("href=\"").unwrap();
        path = format!("/dashboard/{}", link.replace("&amp;", "&"));
    }
    assert_eq!((seen, pages), (560, 12));

    let file = world.get("/dashboard/activity.csv", &cookie).await;
    assert_eq!(file.headers["content-type"], "text/csv; charset=utf-8");
    let lines: Vec<_> = file
        .body
        .lines()
        .filter(|line| line.contains(",\"req_") || line.starts_with("time,"))
        .collect();
    assert_eq!(
        lines.len(),
        1_121,
        "a head and every row, over several reads"
    );
    assert!(
        lines[1].contains("\"'=odd\"") && lines[3].contains("\"client left\",yes,1000,1000,"),
        "{}",
        lines[1]
    );
    let some = world
        .get("/dashboard/activity.csv?outcome=client_left", &cookie)
        .await;
    assert_eq!(some.body.matches("\"req_").count(), 1);

    for path in [
        "/dashboard/activity?outcome=lost",
        "/dashboard/activity?from=2026-02-30",
    ] {
        assert_eq!(world.get(path, &cookie).await.status, 422, "{path}");
    }
    for path in [
        "/dashboard/activity?before=x",
        "/dashboard/activity.csv?from=x",
        "/dashboard/conversations?before=x",
    ] {
        assert_eq!(world.get(path, &cookie).await.status, 404, "{path}");
    }
    assert_eq!(rows(&world.get("/dashboard/activity", &stranger).await), 0);
    assert_eq!(
        world
            .get("/dashboard/activity.csv", &stranger)
            .await
            .body
            .matches("\"req_")
            .count(),
        0
    );
    world
        .get("/dashboard/conversations/c1", &stranger)
        .await
        .expect(404);
    let mine = world.get("/dashboard/conversations/c1", &cookie).await;
    assert_eq!(mine.body.matches("Receipt of turn ").count(), 60);
    assert!(
        mine.body.contains("Receipt of turn 60, </span><time") && !mine.body.contains("even<b>")
    );
    let list = world.get("/dashboard/conversations", &cookie).await;
    assert_eq!(list.body.matches("Conversation of ").count(), 19);
    let overview = world.get("/dashboard", &cookie).await;
    overview
        .shows("data-testid=\"month\"><data value=\"1.12\" title=\"1.12 credits\">1.1200</data>");
    assert_eq!(overview.inside("balance"), "298.88");
    assert_eq!(rows(&overview), 5);
}

#[tokio::test]
async fn https_binds_the_cookie_to_the_host() {
    let world = world(&[(
        "base_url: \"http://127.0.0.1:8080\"",
        "base_url: \"https://gw.example\"",
    )])
    .await;
    let cookie = world.sign_up("a@example.com").await;
    assert!(cookie.starts_with("__Host-gw="));
    let overview = world.get("/dashboard", &cookie).await;
    assert_eq!(
        overview.headers["strict-transport-security"],
        "max-age=31536000"
    );
    world
        .get("/dashboard", &cookie.replace("__Host-gw", "gw-session"))
        .await
        .expect(303);
}

#[tokio::test]
async fn the_live_stream_says_each_balance_and_ends_with_its_session_and_with_the_sidecar() {
    let mut world = world(&[]).await;
    let now_ms = base::clock::now_ms();
    let new = NewAccount::new("a@example.com");
    let account = open_account(&world.accounts, world.billing.ledger(), &new, now_ms).unwrap();
    let mut streams = Vec::new();
    for _ in 0..2 {
        let token = world
            .accounts
            .logins()
            .create_session(&account.id, now_ms)
            .unwrap()
            .token;
        let mut stream = TcpStream::connect(world.address).await.unwrap();
        let head = "GET /dashboard/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
        let request = format!("{head}Cookie: gw-session={token}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(next_balance(&mut lines).await, "0");
        streams.push((token, lines));
    }
    world
        .billing
        .corrections()
        .grant(&account.id, "12.5".parse().unwrap(), "invoice 1", now_ms)
        .unwrap();
    for (_, lines) in &mut streams {
        assert_eq!(next_balance(lines).await, "12.5");
    }
    let (first, second) = (streams.remove(0), streams.remove(0));
    world.accounts.logins().end_session(&first.0).unwrap();
    ends(first.1).await;
    world.close.take().unwrap().send(()).unwrap();
    ends(second.1).await;
    tokio::time::timeout(Duration::from_secs(60), world.served)
        .await
        .expect("the sidecar ends")
        .unwrap()
        .unwrap();
}

type Lines = tokio::io::Lines<BufReader<TcpStream>>;

async fn next_balance(lines: &mut Lines) -> String {
    let event = async {
        loop {
            let line = lines
                .next_line()
                .await
                .unwrap()
                .expect("an event before the end");
            let data = line
                .strip_prefix("data: ")
                .and_then(|data| serde_json::from_str::<serde_json::Value>(data).ok());
            if let Some(balance) = data.as_ref().and_then(|data| data["balance"].as_str()) {
                return balance.to_owned();
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), event)
        .await
        .expect("an event")
}

async fn ends(mut lines: Lines) {
    let end = async { while let Ok(Some(_)) = lines.next_line().await {} };
    tokio::time::timeout(Duration::from_secs(60), end)
        .await
        .expect("the stream ends");
}

#[tokio::test]
async fn a_sign_up_that_was_cut_in_two_is_finished_at_sign_in() {
    let world = world(&[]).await;
    let new = NewAccount {
        password: Some(PASSWORD),
        ..NewAccount::new("a@example.com")
    };
    world
        .accounts
        .create_account(&new, base::clock::now_ms())
        .unwrap();
    let body = format!("email=a@example.com&password={PASSWORD}");
    let cookie = world.post("/dashboard/sign-in", "", &body).await.cookie();
    assert_eq!(
        world.get("/dashboard", &cookie).await.inside("balance"),
        "0"
    );
}

#[tokio::test]
async fn a_page_is_found_with_a_slash_at_its_end() {
    let world = world(&[]).await;
    for (path, target) in [
        ("/dashboard/", "/dashboard"),
        (
            "/dashboard/keys/?keys=revoked",
            "/dashboard/keys?keys=revoked",
        ),
        ("/docs/", "/docs"),
    ] {
        let found = world.get(path, "").await;
        assert_eq!(
            (found.status, &*found.headers["location"]),
            (308, target),
            "{path}"
        );
    }
    for path in ["//example.com/", "/other/"] {
        assert_eq!(world.get(path, "").await.status, 404, "{path}");
    }
}
