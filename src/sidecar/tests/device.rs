//! Tests of sign-in from a terminal: what a program gets, and what only a person can give it.

use super::played_provider::{BegunSignIn, PlayedProvider};
use super::*;
use accounts::{Actor, MemberAuthority, MemberEdit, OrganisationRole};
use serde_json::{Value, json};

const ON: &[(&str, &str)] = &[(
    "signup:",
    "sign_in: {device: true}\norganisations: true\nsignup:",
)];
const DEVICE_GRANT: &str = "grant_type=urn:ietf:params:oauth:grant-type:device_code";

impl World {
    /// Calls as a program does: without a cookie and without an origin.
    async fn call(&self, path: &str, form: &str) -> (u16, Value) {
        let agent = [("user-agent", "claude-code/2.1.332 (external, cli)")];
        let response = self.ask("POST", path, &agent, form).await;
        assert_eq!(response.headers["cache-control"], "no-store");
        let body = match response.body.is_empty() {
            true => Value::Null,
            false => serde_json::from_str(&response.body).expect("a JSON answer"),
        };
        (response.status, body)
    }

    /// Returns the device code and the user code of a new request.
    async fn ask_for_login(&self) -> (String, String) {
        let (status, answer) = self
            .call("/oauth/device_authorization", "surface=claude_code")
            .await;
        assert_eq!(status, 200, "{answer}");
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        (text("device_code"), text("user_code"))
    }

    /// Returns the status and the error of a poll, which is empty if it has tokens.
    async fn poll(&self, device_code: &str) -> (u16, String) {
        let (status, answer) = self.poll_for_tokens(device_code).await;
        let error = answer["error"].as_str().unwrap_or_default();
        (status, error.to_owned())
    }

    async fn poll_for_tokens(&self, device_code: &str) -> (u16, Value) {
        let form = format!("{DEVICE_GRANT}&device_code={device_code}");
        self.call("/oauth/token", &form).await
    }

    async fn refresh(&self, token: &Value) -> (u16, Value) {
        let token = token.as_str().unwrap();
        let form = format!("grant_type=refresh_token&refresh_token={token}");
        self.call("/oauth/token", &form).await
    }

    /// Sends the page's form.
    async fn answer(&self, cookie: &str, code: &str, fields: &str) -> TestResponse {
        let csrf = form_token(&self.accounts, cookie.split_once('=').unwrap().1);
        let form = format!("csrf={csrf}&user_code={code}&{fields}");
        self.post("/device", cookie, &form).await
    }

    async fn approve(&self, cookie: &str, account: &str, code: &str) -> TestResponse {
        let fields = format!("answer=approve&account={account}");
        self.answer(cookie, code, &fields).await
    }
}

fn id_of(world: &World, email: &str) -> String {
    world.accounts.find(email).unwrap().unwrap().id
}

#[tokio::test]
async fn the_metadata_names_the_endpoints_of_this_address() {
    let world = world(ON).await;
    let path = "/.well-known/oauth-authorization-server";
    let response = world.ask("GET", path, &[], "").await;
    assert_eq!(response.status, 200);
    let metadata: Value = serde_json::from_str(&response.body).unwrap();
    let base = world.state.settings.load().base_url.clone();
    for (name, path) in [
        ("issuer", ""),
        (
            "device_authorization_endpoint",
            "/oauth/device_authorization",
        ),
        ("token_endpoint", "/oauth/token"),
        ("revocation_endpoint", "/oauth/revoke"),
    ] {
        assert_eq!(metadata[name], format!("{base}{path}"));
    }
    assert_eq!(metadata["grant_types_supported"][1], "refresh_token");
    let (_, asked) = world.call("/oauth/device_authorization", "").await;
    assert_eq!(
        (&asked["expires_in"], &asked["interval"]),
        (&600.into(), &5.into())
    );
    assert_eq!(asked["verification_uri"], format!("{base}/device"));
    let code = asked["user_code"].as_str().unwrap();
    let complete = format!("{base}/device?user_code={code}");
    assert_eq!(asked["verification_uri_complete"], complete);
}

#[tokio::test]
async fn a_person_sees_who_asks_and_approves_by_a_button_alone() {
    let world = world(ON).await;
    let ann = world.sign_up("ann@example.com").await;
    let (device_code, code) = world.ask_for_login().await;
    assert_eq!(
        world.poll(&device_code).await,
        (400, "authorization_pending".into())
    );

    let link = format!("/device?user_code={code}");
    let opened = world.get(&link, &ann).await;
    assert!(opened.body.contains(&code) && !opened.body.contains("Approve"));
    let asked = world.answer(&ann, &code, "").await;
    assert_eq!(asked.inside("code"), code);
    assert_eq!(asked.inside("client"), "claude-code/2.1.332 (127.0.0.1)");
    assert_eq!(asked.inside("address"), "127.0.0.1");
    assert!(asked.body.contains("My account (ann@example.com)"));
    // Nothing of this was an answer.
    let open = world.accounts.device_logins().open_request(&code, now_ms());
    assert!(open.unwrap().is_some());

    let approved = world
        .approve(&ann, &id_of(&world, "ann@example.com"), &code)
        .await;
    assert!(approved.inside("answer").contains("is signed in"));
    let (status, tokens) = world.poll_for_tokens(&device_code).await;
    assert_eq!((status, &tokens["token_type"]), (200, &"Bearer".into()));
    assert_eq!(
        (&tokens["expires_in"], &tokens["email"]),
        (&3600.into(), &"ann@example.com".into())
    );
    let key = tokens["access_token"].as_str().unwrap();
    let keys = world.accounts.api_keys();
    assert!(keys.authenticate(key, now_ms()).is_ok());

    let listed = world.get("/dashboard/keys", &ann).await.body;
    assert_eq!(listed.matches("login of a program").count(), 1, "one login");
    let (status, second) = world.refresh(&tokens["refresh_token"]).await;
    assert_eq!(status, 200);
    let listed = world.get("/dashboard/keys", &ann).await.body;
    assert_eq!(listed.matches("login of a program").count(), 1, "one login");
    let (id, _) = listed.split_once("/revoke").unwrap();
    let id = id.rsplit_once('/').unwrap().1;
    let page = world.get(&format!("/dashboard/keys/{id}"), &ann).await;
    assert!(!page.body.contains("Rotate") && page.body.contains("Ends the login"));

    // What the page revokes ends both at once.
    let form = format!("csrf={}&confirmed=yes", page.csrf());
    let revoked = world
        .post(&format!("/dashboard/keys/{id}/revoke"), &ann, &form)
        .await;
    assert_eq!(revoked.status, 303);
    let newest = second["access_token"].as_str().unwrap();
    assert!(keys.authenticate(newest, now_ms()).is_err());
    let (status, answer) = world.refresh(&second["refresh_token"]).await;
    assert_eq!((status, &answer["error"]), (401, &"invalid_grant".into()));
}

#[tokio::test]
async fn bad_answers_give_nobody_a_login() {
    let world = world(ON).await;
    let (ann, bob) = (
        world.sign_up("ann@example.com").await,
        world.sign_up("bob@example.com").await,
    );
    let (own, other) = (
        id_of(&world, "ann@example.com"),
        id_of(&world, "bob@example.com"),
    );
    let (device_code, code) = world.ask_for_login().await;

    // A browser that is signed out learns nothing of the request, and answers nothing.
    let visited = world.get(&format!("/device?user_code={code}"), "").await;
    assert!(visited.status == 200 && visited.body.contains("Sign in first"));
    assert!(!visited.body.contains("claude-code"));
    let sent = format!("user_code={code}&answer=approve&account={own}");
    world.post("/device", "", &sent).await.expect(303);
    // A form without its token, or of another person, or another site's.
    world.post("/device", &ann, &sent).await.expect(403);
    let csrf = form_token(&world.accounts, bob.split_once('=').unwrap().1);
    let foreign = format!("csrf={csrf}&{sent}");
    world.post("/device", &ann, &foreign).await.expect(403);
    let csrf = form_token(&world.accounts, ann.split_once('=').unwrap().1);
    let elsewhere = [("cookie", ann.as_str()), ("origin", "https://evil.example")];
    let sent = format!("csrf={csrf}&{sent}");
    let sent = world.ask("POST", "/device", &elsewhere, &sent).await;
    assert_eq!(sent.status, 403);
    // Another person's account does not pay, nor one that is suspended.
    world.approve(&ann, &other, &code).await.expect(422);
    world.approve(&ann, "", &code).await.expect(422);
    let by = Actor {
        actor: "uid 0".into(),
        address: String::new(),
    };
    let acting = world.accounts.with_actor(&by, now_ms());
    acting
        .set_status(&own, accounts::AccountStatus::Suspended)
        .unwrap();
    world.approve(&ann, &own, &code).await.expect(409);
    acting
        .set_status(&own, accounts::AccountStatus::Active)
        .unwrap();

    // A code is answered once, by any person.
    assert_eq!(world.answer(&bob, &code, "answer=refuse").await.status, 200);
    world.approve(&ann, &own, &code).await.expect(422);
    assert_eq!(
        world.poll(&device_code).await,
        (400, "access_denied".into())
    );
    let (device_code, code) = world.ask_for_login().await;
    world.approve(&ann, &own, &code).await.expect(200);
    world.approve(&bob, &other, &code).await.expect(422);
    assert_eq!(world.poll_for_tokens(&device_code).await.0, 200);
    assert_eq!(
        world.poll(&device_code).await,
        (400, "invalid_grant".into())
    );
    let (_, code) = world.ask_for_login().await;
    let approve = |_| async { world.approve(&ann, &own, &code).await.status };
    let answers = futures_util::future::join_all((0..9).map(approve)).await;
    let heard = answers.iter().filter(|status| **status == 200).count();
    assert_eq!(heard, 1, "of answers at once: {answers:?}");
}

/// How a person signs in.
#[derive(Debug, Clone, Copy)]
enum Way {
    SignUp,
    Password,
    Link,
    Provider,
    ProviderAndPassword,
}

#[tokio::test]
async fn each_way_to_sign_in_leads_back_to_the_page_that_needed_it() {
    use Way::{Link, Password, Provider, ProviderAndPassword, SignUp};
    let provider = PlayedProvider::start().await;
    let issuer = &provider.issuer;
    let sign_in = format!(
        "sign_in: {{device: true, providers: [{{id: company, kind: oidc, issuer: \"{issuer}\",
  client_id: gateway, client_secret: s&cret}}]}}\norganisations: true\nsignup:"
    );
    let world = world(&[("signup:", &sign_in)]).await;
    world.sign_up("bob@example.com").await;
    let id = id_of(&world, "bob@example.com");
    let joining = format!("/dashboard/join/{}", "0a".repeat(32));
    let (_, code) = world.ask_for_login().await;
    let device = format!("/device?user_code={code}");
    let password = |email: &str| format!("email={email}&password={PASSWORD}");
    // The answer to the last step of a sign-in in a browser that has this cookie.
    let sign_in = async |way: Way, cookie: &str| match way {
        SignUp => {
            let form = password(&format!("new{}@example.com", now_ms()));
            world.post("/dashboard/sign-up", cookie, &form).await
        }
        Password => {
            let form = password("bob@example.com");
            world.post("/dashboard/sign-in", cookie, &form).await
        }
        Link => {
            let links = world.accounts.one_time_links();
            let link = links.create_own_link(&id, accounts::LinkPurpose::Reset, now_ms());
            let form = format!("password={PASSWORD}");
            world.post(&link.unwrap().url(""), cookie, &form).await
        }
        Provider | ProviderAndPassword => {
            let begun = world.begin().await;
            let answered = provider.grant(&begun);
            let own = format!("{}; {cookie}", begun.cookie);
            let begun = BegunSignIn {
                cookie: own.clone(),
                ..begun
            };
            let back = world.come_back(&begun, &answered).await;
            match way {
                Provider => back,
                _ => {
                    let form = format!("password={PASSWORD}");
                    world.post(&back.headers["location"], &own, &form).await
                }
            }
        }
    };
    provider.play(|play| play.claims = json!({"email": "bob@example.com"}));
    for (way, asked) in [
        (SignUp, &*device),
        (Password, &device),
        (Password, "/device"),
        (Link, &device),
        (ProviderAndPassword, &device),
        (Provider, &device),
    ] {
        let visited = world.get(asked, "").await;
        let set = &visited.headers["set-cookie"];
        assert!(
            set.ends_with("HttpOnly; SameSite=Lax; Path=/; Max-Age=600"),
            "{set}"
        );
        let back = sign_in(way, &visited.cookie()).await;
        assert_eq!(back.status, 303, "{way:?}: {}", back.body);
        assert_eq!(back.headers["location"], asked, "{way:?}");
        assert!(back.cookie().starts_with("gw-session="), "{way:?}");
        let page = world.get(asked, &back.cookie()).await;
        assert!(page.body.contains("Enter the code"), "{way:?}");
        assert!(!page.headers.contains_key("set-cookie"), "it is signed in");
    }
    // A cookie that the gateway never set leads nowhere, whichever the way.
    let good = sign_in(Password, &format!("gw-return={joining}")).await;
    assert_eq!(good.headers["location"], joining, "the control");
    for forged in [
        "https://evil.example/device",
        "//evil.example",
        "/\\evil.example",
        "/%2fevil.example",
        "/device?user_code=x&next=//evil.example",
        "/device/../dashboard/operator",
        "/dashboard/keys",
        "",
    ] {
        let back = sign_in(Provider, &format!("gw-return={forged}")).await;
        assert_eq!(back.headers["location"], "/dashboard", "{forged}");
    }
    for way in [SignUp, Password, Link] {
        let back = sign_in(way, "gw-return=//evil.example").await;
        assert_eq!(back.headers["location"], "/dashboard", "{way:?}");
    }
    // Neither an address nor a wrong password leads on; the right one still does.
    let from = format!("gw-return={device}");
    let wrong = format!("email=bob@example.com&password=wrong&to={device}");
    let refused = world.post("/dashboard/sign-in", &from, &wrong).await;
    assert!(refused.status == 401 && !refused.headers.contains_key("location"));
    assert_eq!(sign_in(Password, &from).await.headers["location"], device);
    let path = format!("/dashboard/sign-in?next={device}");
    let form = password("bob@example.com");
    let plain = world.post(&path, "", &form).await;
    assert_eq!(plain.headers["location"], "/dashboard");
}

#[tokio::test]
async fn a_program_that_sends_nonsense_learns_what_was_wrong() {
    let world = world(ON).await;
    let token = "/oauth/token";
    for (form, status, error) in [
        ("", 400, "invalid_request"),
        ("grant_type=", 400, "invalid_request"),
        (
            "grant_type=password&username=a",
            400,
            "unsupported_grant_type",
        ),
        (DEVICE_GRANT, 400, "invalid_request"),
        ("grant_type=refresh_token", 400, "invalid_request"),
        (
            "grant_type=refresh_token&refresh_token=gw-rt-x",
            401,
            "invalid_grant",
        ),
    ] {
        let (got, answer) = world.call(token, form).await;
        assert_eq!((got, &answer["error"]), (status, &error.into()), "{form}");
    }
    assert_eq!(
        world.poll(&"0".repeat(64)).await,
        (400, "invalid_grant".into())
    );
    assert_eq!(world.call("/oauth/revoke", "token=unknown").await.0, 200);
    let json = [
        ("content-type", "application/json"),
        ("content-length", "2"),
    ];
    let refused = world.ask("PUT", token, &json, "{}").await;
    assert_eq!(refused.status, 405);
}

#[tokio::test]
async fn polls_requests_and_guesses_are_limited() {
    let world = world(ON).await;
    let (device_code, code) = world.ask_for_login().await;
    assert_eq!(world.poll(&device_code).await.1, "authorization_pending");
    assert_eq!(world.poll(&device_code).await, (400, "slow_down".into()));

    let ann = world.sign_up("ann@example.com").await;
    for _ in 0..11 {
        assert_eq!(world.answer(&ann, &code, "").await.status, 200, "no guess");
    }
    for _ in 0..10 {
        let wrong = world.answer(&ann, "BBBB-BBBB", "").await;
        assert_eq!(wrong.status, 422);
        wrong.has_fault_at("user_code");
    }
    let limited = world.answer(&ann, &code, "").await;
    assert_eq!(limited.status, 429, "also a right one, from then on");
    // The address has used up its guesses too, so that another account does not help.
    let bob = world.sign_up("bob@example.com").await;
    assert_eq!(world.answer(&bob, &code, "").await.status, 429);
    let elsewhere = [("cookie", ann.as_str()), ("x-forwarded-for", "192.0.2.9")];
    let csrf = form_token(&world.accounts, ann.split_once('=').unwrap().1);
    let form = format!("csrf={csrf}&user_code={code}");
    let moved = world.ask("POST", "/device", &elsewhere, &form).await;
    assert_eq!(moved.status, 429, "nor does another address");

    for _ in 1..30 {
        world.ask_for_login().await;
    }
    let path = "/oauth/device_authorization";
    let (status, answer) = world.call(path, "").await;
    assert_eq!((status, &answer["error"]), (429, &"slow_down".into()));
    let other = [("x-forwarded-for", "192.0.2.9")];
    world.ask("POST", path, &other, "").await.expect(200);
    // People behind a proxy that names none of them share an address.
    let unnamed = [
        ("x-forwarded-for", "192.0.2.7"),
        ("x-gateway-unnamed", "true"),
    ];
    let mut allowed = 0;
    while world.ask("POST", path, &unnamed, "").await.status == 200 {
        allowed += 1;
        // One more is allowed every two seconds.
        assert!(allowed < 400);
    }
    assert!(allowed >= 300, "{allowed}");
}

#[tokio::test]
async fn a_login_of_an_organisation_is_its_members_and_ends_with_them() {
    let world = world(ON).await;
    let (ann, bob) = (
        world.sign_up("ann@example.com").await,
        world.sign_up("bob@example.com").await,
    );
    let by = Actor {
        actor: id_of(&world, "ann@example.com"),
        address: String::new(),
    };
    let acting = world.accounts.with_actor(&by, now_ms());
    let organisation = acting.create_organisation("Acme", &by.actor).unwrap().id;
    let person = id_of(&world, "bob@example.com");
    let (device_code, code) = world.ask_for_login().await;
    assert_eq!(
        world.approve(&bob, &organisation, &code).await.status,
        422,
        "no member"
    );
    let operator = Actor {
        actor: "uid 0".into(),
        address: String::new(),
    };
    let operating = world.accounts.with_actor(&operator, now_ms());
    operating
        .add_member(&organisation, &person, OrganisationRole::Billing)
        .unwrap();
    let page = world.answer(&bob, &code, "").await;
    assert!(page.body.contains("My account (bob@example.com)") && !page.body.contains("Acme"));
    let refused = world.approve(&bob, &organisation, &code).await;
    assert_eq!(refused.status, 422, "a role without keys");
    for edit in [
        MemberEdit::Role(OrganisationRole::Member),
        MemberEdit::Budget(Some("2.5/week".parse().unwrap())),
    ] {
        let authority = MemberAuthority::Operator;
        let changed = operating.change_member(authority, &organisation, &person, edit, None);
        changed.unwrap();
    }
    world.approve(&bob, &organisation, &code).await.expect(200);
    let (_, tokens) = world.poll_for_tokens(&device_code).await;
    let principal = world.accounts.api_keys();
    let principal = principal.authenticate(tokens["access_token"].as_str().unwrap(), now_ms());
    let principal = principal.unwrap();
    assert_eq!(*principal.account_id, *organisation);
    let budget = principal.spend_limits()[1].map(|limit| limit.to_string());
    assert_eq!(budget.as_deref(), Some("2.5/week"), "the member's budget");

    let path = format!("/dashboard/organisation/members/{person}/remove");
    let logins = world.accounts.logins();
    let token = ann.split_once('=').unwrap().1;
    assert!(logins.show_account(token, Some(&organisation)).unwrap());
    let csrf = form_token(&world.accounts, token);
    let form = format!("csrf={csrf}&confirmed=yes");
    world.post(&path, &ann, &form).await.expect(303);
    let (status, answer) = world.refresh(&tokens["refresh_token"]).await;
    assert_eq!((status, &answer["error"]), (401, &"invalid_grant".into()));
}

#[tokio::test]
async fn who_has_a_key_reads_the_managed_settings() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.json");
    std::fs::write(&file, r#"{"model": "sonnet"}"#).unwrap();
    let world = world(ON).await;
    let ann = world.sign_up("ann@example.com").await;
    let csrf = world.get("/dashboard/keys", &ann).await.csrf();
    let key = world
        .create_key(&ann, &format!("name=laptop&csrf={csrf}"))
        .await;
    let bearer = format!("Bearer {}", key.inside("new-key"));
    let path = "/managed/settings";
    let with_key = [("authorization", bearer.as_str())];
    assert_eq!(
        world.ask("GET", path, &with_key, "").await.status,
        404,
        "none"
    );

    let text = include_str!("../../../conf/local.yaml");
    let managed = format!(
        "sign_in: {{device: true, managed_settings: {}}}\n",
        file.display()
    );
    let data = format!("data_dir: {} #", folder.path().display());
    let text = format!("{}{managed}", text.replace("data_dir:", &data));
    let config = folder.path().join("gateway.yaml");
    std::fs::write(&config, text).unwrap();
    let settings = config::load(&config, config::FileChecks::Sidecar).unwrap();
    world.state.settings.store(Arc::new(settings));
    let response = world.ask("GET", path, &with_key, "").await;
    let document: Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(document["settings"]["model"], "sonnet");
    let etag = &response.headers["etag"];
    assert_eq!(
        *etag,
        format!("\"{}\"", document["checksum"].as_str().unwrap())
    );
    let known = [with_key[0], ("if-none-match", etag.as_str())];
    world.ask("GET", path, &known, "").await.expect(304);
    let other = [with_key[0], ("if-none-match", "\"sha256:0\"")];
    world.ask("GET", path, &other, "").await.expect(200);
    for headers in [&[][..], &[("authorization", "Bearer gw-sk-x")]] {
        let refused = world.ask("GET", path, headers, "").await;
        let failure: Value = serde_json::from_str(&refused.body).unwrap();
        assert_eq!(refused.status, 401);
        assert_eq!(failure["error"]["type"], "authentication_error");
    }
}
