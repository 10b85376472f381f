//! Access control: every route for every role, every id of another account, and requests by another
//! site's page.

use super::super::account::count_sign_in;
use super::super::state::SidecarState;
use super::*;
use accounts::{AccountStatus, SessionOrigin};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::path::Path;
use tokio::sync::watch;

/// The files of the sidecar but for its tests, by their paths below `src/sidecar` without `.rs`.
fn source_files() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sidecar");
    let (mut files, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&root).unwrap().with_extension("");
            let name = name.to_str().unwrap().to_owned();
            if name == "tests" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push((name, std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    files
}

/// The body of the function that lists an area's routes, if the file is that of an area.
fn route_list(source: &str) -> Option<&str> {
    let (_, rest) = source.split_once("pub fn routes() -> ")?;
    rest.split_once("\n}\n").map(|(body, _)| body)
}

/// The routes as written in a route list: (method, path).
fn routes(list: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    for call in list.split(".route(").skip(1) {
        let (_, rest) = call.split_once('"').unwrap();
        let (path, handlers) = rest.split_once('"').unwrap();
        let before = found.len();
        for method in ["get", "post", "put", "patch", "delete", "any", "on"] {
            let calls = |mark| handlers.contains(&format!("{mark}{method}("));
            if [" ", "\n", ".", "::"].into_iter().any(calls) {
                found.push((method, path.to_owned()));
            }
        }
        assert!(found.len() > before, "no method of {path}");
    }
    let upper = |(method, path)| match method {
        "get" => ("GET", path),
        "post" => ("POST", path),
        other => panic!("{path} has the method {other}, which no page needs"),
    };
    found.into_iter().map(upper).collect()
}

pub fn filled(path: &str, id: &str) -> String {
    path.replace("{id}", id)
        .replace("{request_id}", id)
        .replace("{client}", id)
        .replace("{ticket}", id)
        .replace("{file}", id)
        .replace("{token}", id)
        .replace("{provider}", id)
        .replace("{key}", id)
}

/// Accounts of every role; sessions are created when they are needed.
struct People {
    world: World,
    holder: String,
    suspended: String,
    viewer: String,
    admin: String,
}

async fn people(change: &[(&str, &str)]) -> People {
    let world = world(change).await;
    let open = |email, role| {
        let new = NewAccount {
            role,
            ..NewAccount::new(email)
        };
        open_account(&world.accounts, world.billing.ledger(), &new, now_ms())
            .unwrap()
            .id
    };
    let (holder, suspended) = (
        open("a@example.com", Role::Member),
        open("suspended@example.com", Role::Member),
    );
    let (viewer, admin) = (
        open("viewer@example.com", Role::Viewer),
        open("root@example.com", Role::Admin),
    );
    world
        .accounts
        .set_status(&suspended, AccountStatus::Suspended)
        .unwrap();
    People {
        world,
        holder,
        suspended,
        viewer,
        admin,
    }
}

impl People {
    /// Token of a fresh session; empty for the anonymous client.
    fn token(&self, account: &str) -> String {
        if account.is_empty() {
            String::new()
        } else {
            self.world
                .accounts
                .logins()
                .create_session(account, now_ms())
                .unwrap()
                .token
        }
    }

    /// Sends a request with custom headers; of a stream, it reads only the beginning.
    async fn ask(
        &self,
        method: &str,
        path: &str,
        token: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TestResponse {
        let cookie = format!("gw-session={token}; __Host-gw={token}");
        let headers = [&[("cookie", cookie.as_str())], headers].concat();
        if path != "/dashboard/live" {
            return self.world.ask(method, path, &headers, body).await;
        }
        let mut stream = TcpStream::connect(self.world.address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = String::new();
        let mut lines = BufReader::new(stream).lines();
        while let Some(line) = lines
            .next_line()
            .await
            .unwrap()
            .filter(|line| !line.is_empty())
        {
            head += &format!("{line}\n");
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let headers = head.lines().filter_map(|line| line.split_once(": "));
        TestResponse {
            status,
            headers: headers
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            body: String::new(),
        }
    }

    /// All state that a form could have changed.
    fn state(&self) -> String {
        let accounts = self.world.accounts.directory().list().unwrap();
        let keys: Vec<_> = accounts
            .iter()
            .map(|account| self.world.accounts.api_keys().keys(&account.id).unwrap())
            .collect();
        let balances: Vec<_> = accounts
            .iter()
            .map(|account| {
                self.world
                    .billing
                    .balance(&account.id, now_ms())
                    .unwrap()
                    .balance
            })
            .collect();
        let audit = self.world.accounts.audit_log().rows(None, 1_000).unwrap();
        let invites = self.world.accounts.invitations().list(None, 100).unwrap();
        let mail = self.world.accounts.mails().mail_queue().unwrap();
        let db = self.world.accounts.database();
        let alerts: Vec<_> = accounts
            .iter()
            .map(|account| {
                let hook = db.webhooks().webhook(&account.id).unwrap();
                let hook = hook.map(|hook| (hook.url, hook.secret, hook.disabled));
                let log = db.webhooks().deliveries(&account.id, 100).unwrap();
                (db.alerts().alerts(&account.id).unwrap(), hook, log)
            })
            .collect();
        format!("{accounts:?} {keys:?} {balances:?} {audit:?} {invites:?} {mail:?} {alerts:?}")
    }
}

fn hardened(response: &TestResponse, what: &str, https: bool) {
    let csp = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; \
               form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
    for (name, value) in [
        ("content-security-policy", csp),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(
            response.headers.get(name).map(String::as_str),
            Some(value),
            "{what}: {name}"
        );
    }
    let transport = response
        .headers
        .get("strict-transport-security")
        .map(String::as_str);
    assert_eq!(transport, https.then_some("max-age=31536000"), "{what}");
    for inline in [" style=\"", " onclick", "<style", "javascript:"] {
        assert!(!response.body.contains(inline), "{what}: {inline}");
    }
    assert!(
        !response
            .body
            .replace("<script src=\"/dashboard/static/", "")
            .contains("<script"),
        "{what}: inline script"
    );
}

#[test]
fn every_route_is_in_the_matrix_and_nothing_else() {
    let files = source_files();
    let lists: BTreeMap<_, _> = files
        .iter()
        .filter_map(|(name, source)| Some((name.as_str(), route_list(source)?)))
        .collect();
    let areas: Vec<_> = matrix::AREAS.iter().map(|(area, _)| *area).collect();
    assert_eq!(lists.keys().copied().collect::<Vec<_>>(), areas);
    for (area, listed) in matrix::AREAS {
        let mut routes = routes(lists[area]);
        let mut listed: Vec<_> = listed
            .iter()
            .map(|(method, path, _)| (*method, (*path).to_owned()))
            .collect();
        routes.sort();
        listed.sort();
        assert_eq!(routes, listed, "{area}");
    }
}

#[test]
fn every_area_is_served_and_no_route_stands_outside_of_one() {
    let router = include_str!("../../sidecar.rs");
    for (area, _) in matrix::AREAS {
        assert!(router.contains(&format!("    ({area}::routes, ")), "{area}");
    }
    assert_eq!(AREAS.len(), matrix::AREAS.len());
    let mut sources = source_files();
    sources.push(("sidecar".to_owned(), router.to_owned()));
    for (name, source) in sources {
        let calls = |text: &str| text.matches(".route(").count();
        let listed = route_list(&source).map_or(0, calls);
        // The API for edges takes the keys of their clients: it has no session and no role.
        if name != "edge_api" {
            assert_eq!(
                calls(&source),
                listed,
                "{name} has a route outside its list"
            );
        }
        let others = [".route_service(", ".nest(", ".nest_service("];
        assert!(
            !others.iter().any(|call| source.contains(call)),
            "{name} adds routes that this test does not see"
        );
    }
}

/// Addresses and texts of the links in the main menu.
fn menu_links(body: &str) -> Vec<(&str, &str)> {
    let (_, menu) = body.split_once("<nav aria-label=\"Main\"").unwrap();
    let (menu, _) = menu.split_once("</nav>").unwrap();
    let links = menu.split("<a href=\"").skip(1);
    links
        .map(|link| {
            let (path, rest) = link.split_once('"').unwrap();
            let text = rest.split_once('>').unwrap().1;
            (path, text.split_once('<').unwrap().0)
        })
        .collect()
}

#[tokio::test]
async fn every_entry_of_the_menu_opens_for_those_who_see_it() {
    let people = people(&[]).await;
    let own = [
        "Set up",
        "Keys",
        "Playground",
        "Overview",
        "Activity",
        "Conversations",
        "Spending",
        "Statement",
        "Alerts",
        "Account",
        "Docs",
    ];
    let operator = [
        "Overview",
        "Accounts",
        "Invitations",
        "Service",
        "Models and prices",
        "Audit log",
        "Docs",
    ];
    for (account, path, shown) in [
        (&people.holder, "/dashboard/account", &own[..]),
        (&people.suspended, "/dashboard/account", &own[..]),
        (&people.viewer, "/dashboard/account", &own[..]),
        (&people.viewer, "/dashboard/operator", &operator[..]),
        (&people.admin, "/dashboard/operator", &operator[..]),
    ] {
        let token = people.token(account);
        let get = async |path: &str| people.ask("GET", path, &token, &[], "").await;
        let page = get(path).await.body;
        let links = menu_links(&page);
        let texts: Vec<_> = links.iter().map(|(_, text)| *text).collect();
        assert_eq!(texts, shown);
        for (path, text) in links {
            assert_eq!(get(path).await.status, 200, "{text} for {account}");
        }
        let is_operator = [&people.viewer, &people.admin].contains(&account);
        assert_eq!(page.contains("aria-label=\"Mode\""), is_operator);
    }
}

#[tokio::test]
async fn the_documentation_is_public_and_has_the_menu_of_who_is_signed_in() {
    let people = people(&[]).await;
    let token = people.token(&people.viewer);
    let page = people.ask("GET", "/docs", &token, &[], "").await;
    let account = people
        .ask("GET", "/dashboard/account", &token, &[], "")
        .await;
    assert_eq!(menu_links(&page.body), menu_links(&account.body));
    assert!(page.body.contains("viewer@example.com") && page.body.contains("aria-current"));
    assert_eq!(page.headers["vary"], "cookie");
    for token in ["", "0", &"0".repeat(64)] {
        let page = people.ask("GET", "/docs", token, &[], "").await;
        assert_eq!(page.status, 200);
        assert_eq!(
            menu_links(&page.body),
            [("/docs", "Docs"), ("/dashboard", "Dashboard")]
        );
        assert!(!page.body.contains("example.com") && !page.body.contains("csrf"));
        assert_eq!(page.headers["vary"], "cookie");
    }
}

#[tokio::test]
async fn every_route_answers_each_role_as_it_is_meant_to_and_hardened() {
    for (change, https) in [
        (vec![], false),
        (
            vec![(
                "base_url: \"http://127.0.0.1:8080\"",
                "base_url: \"https://gw.example\"",
            )],
            true,
        ),
    ] {
        let people = people(&change).await;
        for (method, path, expected) in matrix::all() {
            let roles = [
                "",
                &people.holder,
                &people.suspended,
                &people.viewer,
                &people.admin,
            ];
            for (account, status) in roles.into_iter().zip(expected) {
                let token = people.token(account);
                let body = format!("csrf={}", form_token(&people.world.accounts, &token));
                let response = people
                    .ask(method, &filled(path, "x"), &token, &[], &body)
                    .await;
                let what = format!("{method} {path} for {account:?}");
                assert_eq!(response.status, *status, "{what}: {}", response.body);
                if *status == 303 && account.is_empty() && *path != "/" {
                    assert_eq!(response.headers["location"], "/dashboard/sign-in", "{what}");
                }
                hardened(&response, &what, https);
                let kept = response.headers.get("cache-control").map(String::as_str);
                let expected = match *path {
                    "/docs" | "/docs/clients" | "/docs/models" | "/docs/billing"
                    | "/docs/errors"
                        if account.is_empty() =>
                    {
                        "no-cache"
                    }
                    "/docs/models.json" => "no-cache",
                    "/dashboard/live" if response.status == 200 => "no-cache",
                    _ => "no-store",
                };
                assert_eq!(kept, Some(expected), "{what}");
            }
        }
    }
}

#[tokio::test]
async fn no_id_of_another_account_opens_anything() {
    let people = people(&[]).await;
    let People {
        world,
        holder,
        admin,
        ..
    } = &people;
    let key = world
        .accounts
        .api_keys()
        .create_key(holder, "mine", now_ms())
        .unwrap();
    let own = people.token(holder);
    let session = accounts::session_id(&own);
    world
        .billing
        .corrections()
        .grant(holder, "5".parse().unwrap(), "invoice 1", now_ms())
        .unwrap();
    let by = accounts::Actor {
        actor: admin.clone(),
        address: "192.0.2.1".into(),
    };
    world
        .accounts
        .with_actor(&by, now_ms())
        .create_invites(1, 60_000)
        .unwrap();
    let invite = world
        .accounts
        .invitations()
        .list(None, 100)
        .unwrap()
        .remove(0)
        .id;
    spend(world, "a@example.com", 1);
    let policy = crate::notify::webhooks::AddressPolicy::default();
    let url = crate::notify::webhooks::WebhookUrl::parse("https://example.com", &policy).unwrap();
    let webhooks = crate::notify::webhooks::Webhooks::new(&world.accounts);
    webhooks.set(holder, &url, now_ms()).unwrap();
    webhooks.queue_test(holder, "http://x", now_ms()).unwrap();
    let message = webhooks.log(holder).unwrap().remove(0).id;
    let (request, conversation) = (format!("req_{:032x}", 1), "c0");
    let ids = [
        &request,
        conversation,
        holder.as_str(),
        &key.key_id,
        &session,
        "invoice%201",
        &own,
        "a@example.com",
        &invite,
        &message,
    ];
    let stranger = world.sign_up("b@example.com").await;
    let stranger = stranger.split_once('=').unwrap().1;
    let before = people.state();
    let mut asked = 0;
    for (method, path, _) in matrix::all().filter(|(_, path, _)| path.contains("{")) {
        for id in ids {
            let body = format!(
                "csrf={}&overlap_hours=1&confirmed=yes",
                form_token(&people.world.accounts, stranger)
            );
            let response = people
                .ask(method, &filled(path, id), stranger, &[], &body)
                .await;
            // A link needs its token and no session.
            let is_link = *path == "/dashboard/link/{token}";
            let status = if is_link { 410 } else { 404 };
            assert_eq!(response.status, status, "{method} {path} with {id}");
            asked += 1;
        }
    }
    assert!(asked >= 9 * 13, "{asked}");
    assert_eq!(people.state(), before, "a stranger changed something");
    assert!(
        world
            .accounts
            .logins()
            .find_session(&own, now_ms())
            .unwrap()
            .is_some()
    );

    // The owner can open the same ids, so the 404s above are meaningful.
    let get = async |path: &str, token: &str| people.ask("GET", path, token, &[], "").await.status;
    assert_eq!(
        get(&format!("/dashboard/keys/{}", key.key_id), &own).await,
        200
    );
    assert_eq!(
        get(
            &format!("/dashboard/operator/accounts/{holder}"),
            &people.token(admin)
        )
        .await,
        200
    );
    assert_eq!(
        get(&format!("/dashboard/activity/{request}"), &own).await,
        200
    );
    assert_eq!(
        get(&format!("/dashboard/conversations/{conversation}"), &own).await,
        200
    );
    let other = people.token(holder);
    let end = format!("/dashboard/account/sessions/{session}/end");
    let body = format!(
        "csrf={}&confirmed=yes",
        form_token(&people.world.accounts, &other)
    );
    people
        .ask("POST", &end, &other, &[], &body)
        .await
        .expect(303);
    // An administrator cannot reach another account's keys and sessions through the account
    // holder's pages either.
    let (token, path) = (
        people.token(admin),
        format!("/dashboard/keys/{}", key.key_id),
    );
    assert_eq!(get(&path, &token).await, 404);
}

#[tokio::test]
async fn no_form_is_taken_from_another_site_or_without_its_own_token() {
    // Credits are sold, organisations exist and programs sign in, because their forms do not
    // otherwise.
    let shop = "payments: {provider: stripe, secret_key: sk_test_abc, webhook_secret: whsec_abc, \
                currency: usd, credit_price: \"0.01\", api_base: \"http://127.0.0.1:1\"}\n\
                organisations: true\nsign_in: {device: true}\nsignup:";
    let people = people(&[("signup:", shop)]).await;
    let key = people
        .world
        .accounts
        .api_keys()
        .create_key(&people.admin, "k", now_ms())
        .unwrap()
        .key_id;
    let token = people.token(&people.admin);
    let (own, foreign) = (
        form_token(&people.world.accounts, &token),
        form_token(&people.world.accounts, &people.token(&people.holder)),
    );
    let fields = "name=k&count=1&days=1&kind=grant&credits=1&ref=r&confirmation=root@example.com&overlap_hours=1\
                  &low_balance=10&spend=&period=day&url=https://example.com&email=new@example.com&password=a+long+password&new_password=another+password&confirmed=yes";
    let before = people.state();
    for (method, path, _) in matrix::all().filter(|(method, ..)| *method == "POST") {
        let id = if path.contains("/keys/") {
            &key
        } else {
            &people.holder
        };
        let path = filled(path, id);
        let send = async |headers: &[(&str, &str)], body: String| {
            people
                .ask(method, &path, &token, headers, &body)
                .await
                .status
        };
        let right = format!("csrf={own}&{fields}");
        for headers in [
            [("origin", "https://evil.example")],
            [("origin", "null")],
            [("sec-fetch-site", "cross-site")],
            [("sec-fetch-site", "same-site")],
        ] {
            assert_eq!(
                send(&headers, right.clone()).await,
                403,
                "{path} {headers:?}"
            );
        }
        // Someone without a session has no token.
        let public = [
            "/dashboard/sign-in",
            "/dashboard/sign-up",
            "/dashboard/forgot",
            // It has a signature.
            "/webhooks/stripe",
        ];
        // Programs have a code or a token.
        let public_below = ["/dashboard/link/", "/dashboard/sign-in/", "/oauth/"];
        let is_public = public.contains(&path.as_str())
            || public_below.iter().any(|start| path.starts_with(start));
        if is_public {
            continue;
        }
        for csrf in ["", &foreign, &own[1..], &format!("{own}0")] {
            assert_eq!(
                send(&[], format!("csrf={csrf}&{fields}")).await,
                403,
                "{path} with the token {csrf:?}"
            );
        }
        assert_eq!(
            send(&[], fields.to_owned()).await,
            403,
            "{path} without a token"
        );
        assert_eq!(
            send(&[], format!("csrf={own}&x={}", "x".repeat(70_000))).await,
            413,
            "{path}"
        );
    }
    assert_eq!(people.state(), before, "something was changed");
    assert!(
        people
            .world
            .accounts
            .logins()
            .find_session(&token, now_ms())
            .unwrap()
            .is_some(),
        "signed out by another site"
    );
    // With its own token from our own page, one of these requests succeeds.
    let good = format!("csrf={own}&{fields}");
    let made = people.ask(
        "POST",
        "/dashboard/operator/invites",
        &token,
        &[("sec-fetch-site", "same-origin")],
        &good,
    );
    assert_eq!(made.await.status, 201);
    assert_ne!(people.state(), before);
}

#[tokio::test]
async fn a_session_that_was_planted_opens_nothing_after_sign_in() {
    let world = world(&[]).await;
    let planted = format!("gw-session={}", "0".repeat(64));
    let body = format!("email=a@example.com&password={PASSWORD}");
    let signed_up = world.post("/dashboard/sign-up", &planted, &body).await;
    assert_ne!(signed_up.cookie(), planted);
    world.get("/dashboard", &planted).await.expect(303);
    let second = world
        .post("/dashboard/sign-in", &signed_up.cookie(), &body)
        .await;
    assert_ne!(
        second.cookie(),
        signed_up.cookie(),
        "a new token at every sign-in"
    );
    world
        .get("/dashboard", &signed_up.cookie())
        .await
        .expect(303);
    let out = world
        .get("/dashboard/account", &second.cookie())
        .await
        .csrf();
    let ended = world
        .post(
            "/dashboard/sign-out",
            &second.cookie(),
            &format!("csrf={out}"),
        )
        .await;
    assert!(
        ended.headers["set-cookie"].contains("Max-Age=0"),
        "{}",
        ended.headers["set-cookie"]
    );
    world.get("/dashboard", &second.cookie()).await.expect(303);
}

#[tokio::test]
async fn sign_in_leads_to_the_dashboard_wherever_it_is_told_to_lead() {
    let world = world(&[]).await;
    world.sign_up("a@example.com").await;
    for next in [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
    ] {
        let path = format!("/dashboard/sign-in?next={next}");
        let page = world.get(&path, "").await;
        assert!(
            !page.body.contains("evil.example") && !page.body.contains("alert(1)"),
            "{next}"
        );
        let body = format!("email=a@example.com&password={PASSWORD}&next={next}");
        let response = world.post(&path, "", &body).await;
        assert_eq!(
            (response.status, response.headers["location"].as_str()),
            (303, "/dashboard"),
            "{next}"
        );
    }
}

#[tokio::test]
async fn a_stranger_cannot_tell_who_has_an_account_by_signing_in() {
    let world = world(&[]).await;
    world.sign_up("a@example.com").await;
    // The work of this process, since what a clock shows on a busy machine is mostly waiting.
    let work = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
    let mut least = [Duration::MAX; 2];
    let mut answers = Vec::new();
    for index in 0..3 {
        for (who, email) in ["a@example.com", "x@example.com"].into_iter().enumerate() {
            let before = work();
            let body = format!("email={email}&password=wrong{index}");
            let response = world.post("/dashboard/sign-in", "", &body).await;
            least[who] = least[who].min(work() - before);
            let mut headers: Vec<_> = response
                .headers
                .into_iter()
                .filter(|(name, _)| name != "date")
                .collect();
            headers.sort();
            answers.push((response.status, headers, response.body.replace(email, "")));
        }
    }
    assert!(
        answers.iter().all(|response| *response == answers[0]),
        "{answers:#?}"
    );
    assert_eq!(answers[0].0, 401);
    // Without a hash for the unknown account, the work would differ by a factor of ten and more.
    assert!(least[1] * 5 > least[0], "{least:?}");
}

/// Reports how much the median time of wrong attempts differs if the account exists. With enough
/// attempts to exclude noise of the machine, it also checks a bound.
#[tokio::test]
async fn the_time_of_a_wrong_password_does_not_tell_who_has_an_account() {
    let is_long = std::env::var_os("GATEWAY_LONG").is_some_and(|value| value == "1");
    let tries = if is_long { 200 } else { 10 };
    let world = world(&[]).await;
    // One address and one e-mail may make five attempts at once.
    for index in 0..tries / 5 {
        let email = format!("a{index}@example.com");
        let new = NewAccount {
            password: Some(PASSWORD),
            ..NewAccount::new(&email)
        };
        world.accounts.create_account(&new, now_ms()).unwrap();
    }
    let mut took = [Vec::new(), Vec::new()];
    for index in 0..tries {
        // Alternate, so that other load on the machine affects both.
        for (who, name) in ["a", "x"].into_iter().enumerate() {
            let body = format!("email={name}{}@example.com&password=wrong", index / 5);
            let address = format!("10.{who}.{}.1", index / 5);
            let began = std::time::Instant::now();
            let response = world
                .ask(
                    "POST",
                    "/dashboard/sign-in",
                    &[("x-forwarded-for", &address)],
                    &body,
                )
                .await;
            took[who].push(began.elapsed());
            assert_eq!(response.status, 401);
        }
    }
    let [known, unknown] = took.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    });
    eprintln!(
        "{tries} wrong passwords each, the middle one: {known:?} with an account, {unknown:?} without"
    );
    let apart = known.abs_diff(unknown);
    assert!(!is_long || apart < known / 4, "{apart:?} of {known:?}");
}

#[tokio::test]
async fn attempts_from_other_networks_do_not_lock_the_account_holder_out() {
    let world = world(&[]).await;
    let app = SidecarState::new(world.state.clone(), watch::channel(false).1);
    let new = NewAccount::new("a@example.com");
    let now = now_ms();
    let id = world.accounts.create_account(&new, now).unwrap().id;
    let attempt = |address: &str| {
        let address = address.parse().unwrap();
        count_sign_in(&app, "a@example.com", address, now).unwrap()
    };
    let mut counted = 0;
    for network in 0..40 {
        while attempt(&format!("2001:db8:0:{network:x}::1")).is_ok() {
            counted += 1;
        }
    }
    assert_eq!(counted, 100);
    let home = "192.0.2.1";
    assert!(attempt(home).is_err(), "nobody signed in from there");
    let origin = SessionOrigin {
        address: home,
        browser: "",
    };
    world
        .accounts
        .logins()
        .create_session_from(&id, origin, now)
        .unwrap();
    // An attempt from there has limits of its own: five, of which one was counted above.
    for _ in 0..4 {
        assert!(attempt(home).is_ok());
    }
    assert!(attempt(home).is_err());
    let other = "192.0.2.2";
    app.known_networks
        .record_success("a@example.com", other.parse().unwrap(), now);
    assert!(attempt(other).is_ok() && attempt("192.0.2.3").is_err());
}

#[tokio::test]
async fn sign_ups_through_a_proxy_on_this_machine_are_counted() {
    let public = (
        "base_url: \"http://127.0.0.1:8080\"",
        "base_url: \"https://gw.example\"",
    );
    for (change, header) in [
        (vec![], ("x-gateway-unnamed", "true")),
        (vec![public], ("accept", "*/*")),
    ] {
        let world = world(&change).await;
        let sign_up = async |index: usize| {
            let body = format!("email=a{index}@example.com&password={PASSWORD}");
            let path = "/dashboard/sign-up";
            world.ask("POST", path, &[header], &body).await.status
        };
        for index in 0..3 {
            assert_eq!(sign_up(index).await, 303);
        }
        assert_eq!(sign_up(3).await, 429, "{header:?}");
    }
}
