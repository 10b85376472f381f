//! Sign-in with an identity provider as a browser does it, with a provider on this machine.

use super::played_provider::{Answers, BegunSignIn, PlayedProvider};
use super::*;
use accounts::db::audit::AuditFilter;
use serde_json::{Value, json};

/// What stands before `signup:` in the config: one provider, `company`.
fn section(provider: &PlayedProvider, more: &str) -> String {
    let issuer = &provider.issuer;
    format!(
        "sign_in: {{providers: [{{id: company, kind: oidc, issuer: \"{issuer}\", client_id: gateway,
  client_secret: s&cret, timeout_seconds: 1{more}}}]}}\nsignup:"
    )
}

async fn world_with(more: &str) -> (World, PlayedProvider) {
    let provider = PlayedProvider::start().await;
    let world = world(&[("signup:", &section(&provider, more))]).await;
    (world, provider)
}

fn parameter(url: &str, name: &str) -> String {
    let (_, rest) = url.split_once(&format!("{name}=")).expect(name);
    let value = rest.split('&').next().unwrap();
    value.replace("%3A", ":").replace("%2F", "/")
}

impl World {
    pub(super) async fn begin(&self) -> BegunSignIn {
        let response = self.post("/dashboard/sign-in/company", "", "").await;
        assert_eq!(response.status, 200, "{}", response.body);
        let url = response.headers["refresh"].strip_prefix("0; url=").unwrap();
        assert!(response.body.contains("Going to "));
        BegunSignIn {
            cookie: response.cookie(),
            state: parameter(url, "state"),
            nonce: if url.contains("nonce=") {
                parameter(url, "nonce")
            } else {
                "none".into()
            },
            challenge: parameter(url, "code_challenge"),
            redirect_uri: parameter(url, "redirect_uri"),
        }
    }

    pub(super) async fn come_back(&self, begun: &BegunSignIn, code: &str) -> TestResponse {
        let state = &begun.state;
        let path = format!("/dashboard/sign-in/company/callback?code={code}&state={state}");
        self.get(&path, &begun.cookie).await
    }

    /// Signs in at the provider and comes back. Returns the answer, and the cookie of the sign-in.
    async fn sign_in_at(&self, provider: &PlayedProvider) -> (TestResponse, String) {
        let begun = self.begin().await;
        let code = provider.grant(&begun);
        (self.come_back(&begun, &code).await, begun.cookie)
    }

    /// Signs in at the provider. Returns the cookie of the session.
    async fn session_at(&self, provider: &PlayedProvider) -> String {
        let (response, _) = self.sign_in_at(provider).await;
        assert_eq!(response.status, 303, "{}", response.body);
        assert!(response.headers["location"].starts_with("/dashboard"));
        response.cookie()
    }

    /// Says why a sign-in at the provider does not succeed.
    async fn refusal_at(&self, provider: &PlayedProvider) -> (u16, String) {
        let (response, _) = self.sign_in_at(provider).await;
        assert!(!response.headers.contains_key("set-cookie"), "a session");
        (response.status, response.body)
    }

    fn audit(&self, act: &str) -> Vec<(String, String)> {
        let filter = AuditFilter {
            act: Some(act.to_owned()),
            ..AuditFilter::default()
        };
        let rows = self.accounts.audit_log().find_rows(&filter, None, 100);
        let rows = rows.unwrap().into_iter();
        rows.map(|row| (row.actor, row.after)).collect()
    }
}

#[tokio::test]
async fn a_person_signs_up_with_a_provider_and_is_known_by_the_subject() {
    let (world, provider) = world_with("").await;
    let page = world.get("/dashboard/sign-in", "").await;
    assert!(page.body.contains("Continue with Company") && page.body.contains("Password"));
    let cookie = world.session_at(&provider).await;
    let overview = world.get("/dashboard", &cookie).await;
    assert_eq!(overview.inside("balance"), "300");
    let account = world.accounts.find("ann@example.com").unwrap().unwrap();
    let verified = world
        .accounts
        .one_time_links()
        .email_verified_at(&account.id);
    assert!(verified.unwrap().is_some());
    assert_eq!(world.audit("account.create")[0].0, "provider company");

    // The address counts no more: not another one, not an unverified one, and not one that another
    // account has.
    world.sign_up("bob@example.com").await;
    for claims in [
        json!({"email": "bob@example.com"}),
        json!({"email": "x@example.com", "email_verified": false}),
        json!({"email": null}),
    ] {
        provider.play(|play| play.claims = claims);
        provider.play(|play| play.userinfo = json!({"sub": "s1"}));
        let cookie = world.session_at(&provider).await;
        let page = world.get("/dashboard/account", &cookie).await;
        assert!(page.body.contains(&account.id), "{}", page.body);
    }

    // Without a password, the identity is the only way in, and a fresh session is enough.
    let cookie = world.session_at(&provider).await;
    let page = world.get("/dashboard/account", &cookie).await;
    assert!(!page.body.contains("Current password"));
    let exported = world.get("/dashboard/account/export", &cookie).await;
    assert!(exported.body.contains("\"subject\":\"s1\""));
    let (_, rest) = page
        .body
        .split_once("/dashboard/account/identities/")
        .unwrap();
    let path = format!(
        "/dashboard/account/identities/{}",
        rest.split('"').next().unwrap()
    );
    let form = format!("csrf={}", page.csrf());
    let asked = world.post(&path, &cookie, &form).await;
    asked.shows("Unlink this provider?");
    let kept = world
        .post(&path, &cookie, &format!("{form}&confirmed=yes"))
        .await;
    assert_eq!(kept.status, 409, "{}", kept.body);
    assert!(kept.body.contains("only way to sign in"));
    let form = format!("{form}&confirmation=ann@example.com");
    let deleted = world
        .post("/dashboard/account/delete", &cookie, &form)
        .await;
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    provider.play(|play| play.claims = json!({}));
    let again = world.session_at(&provider).await;
    let page = world.get("/dashboard/account", &again).await;
    assert!(!page.body.contains(&account.id), "its identity was deleted");
}

#[tokio::test]
async fn an_account_is_linked_once_its_password_was_entered() {
    let (world, provider) = world_with("").await;
    let session = world.sign_up("ann@example.com").await;
    let account = world.accounts.find("ann@example.com").unwrap().unwrap();
    provider.play(|play| play.claims = json!({"email": "Ann@Example.com"}));
    let (response, cookie) = world.sign_in_at(&provider).await;
    let complete = "/dashboard/sign-in/company/complete";
    assert_eq!(
        (response.status, response.headers["location"].as_str()),
        (303, complete)
    );
    assert!(!response.headers.contains_key("set-cookie"), "a session");
    let page = world.get(complete, &cookie).await;
    page.shows("Sign in with its password once to link Company");
    // Another browser knows nothing of it, even with a session of the account.
    world.get(complete, &session).await.expect(400);
    let password = format!("password={PASSWORD}");
    world.post(complete, &session, &password).await.expect(400);
    let wrong = world.post(complete, &cookie, "password=wrong").await;
    assert_eq!(wrong.status, 401, "{}", wrong.body);
    let foreign = [
        ("cookie", cookie.as_str()),
        ("origin", "https://evil.example"),
    ];
    world
        .ask("POST", complete, &foreign, &password)
        .await
        .expect(403);
    assert!(
        world
            .accounts
            .identities()
            .list(&account.id)
            .unwrap()
            .is_empty()
    );

    let linked = world.post(complete, &cookie, &password).await;
    assert_eq!(linked.status, 303, "{}", linked.body);
    assert_eq!(world.audit("account.link")[0].0, account.id);
    assert_eq!(world.get(complete, &cookie).await.status, 400, "it is over");
    let session = world.session_at(&provider).await;
    let page = world.get("/dashboard/account", &session).await;
    assert!(page.body.contains(&account.id));

    // With a password, the identity can go.
    let (_, rest) = page
        .body
        .split_once("/dashboard/account/identities/")
        .unwrap();
    let path = format!(
        "/dashboard/account/identities/{}",
        rest.split('"').next().unwrap()
    );
    let form = format!("csrf={}&confirmed=yes", page.csrf());
    world.post(&path, &session, &form).await.expect(303);
    world.post(&path, &session, &form).await.expect(404);
    let (response, _) = world.sign_in_at(&provider).await;
    assert_eq!(response.headers["location"], complete);
}

#[tokio::test]
async fn what_cannot_be_believed_signs_nobody_in() {
    let (world, provider) = world_with("").await;
    let now = now_ms() / 1_000;
    let userinfo = json!({"sub": "s1", "email": "ann@example.com", "email_verified": true});
    for (claims, status) in [
        (json!({"nonce": "another"}), 502),
        (json!({"nonce": null}), 502),
        (json!({"aud": "another"}), 502),
        (json!({"aud": ["another"]}), 502),
        (json!({"aud": ["gateway", "another"]}), 502),
        (json!({"azp": "another"}), 502),
        (json!({"iss": "https://evil.example"}), 502),
        (json!({"exp": now - 61}), 502),
        (json!({"exp": null}), 502),
        (json!({"iat": now + 120}), 502),
        (json!({"nbf": now + 120}), 502),
        (json!({"sub": ""}), 502),
        (json!({"sub": "x".repeat(256)}), 502),
        (json!({"sub": "s2", "email": null}), 502),
        (json!({"email_verified": false}), 403),
        (json!({"email_verified": "no"}), 403),
        (json!({"email": ""}), 403),
    ] {
        provider.play(|play| (play.claims, play.userinfo) = (claims.clone(), userinfo.clone()));
        let (got, body) = world.refusal_at(&provider).await;
        assert_eq!(got, status, "{claims}: {body}");
    }
    provider.play(|play| play.claims = json!({}));
    for answers in [
        Answers::Unsigned,
        Answers::WithPublicKeyAsSecret,
        Answers::WithUnlistedKey,
    ] {
        provider.play(|play| play.answers = answers);
        let (status, body) = world.refusal_at(&provider).await;
        assert_eq!(status, 502, "{answers:?}: {body}");
        assert!(body.contains("does not accept"), "{body}");
    }
    provider.play(|play| play.answers = Answers::Rightly);
    assert_eq!(world.accounts.directory().count().unwrap().active, 0);

    // The control: the same provider, and the limits of the clocks.
    for claims in [
        json!({"exp": now - 50, "iat": now - 300}),
        json!({"iat": now + 50, "exp": now + 300}),
        json!({"aud": ["gateway", "another"], "azp": "gateway"}),
        json!({"email": null, "email_verified": null}),
        json!({}),
    ] {
        provider.play(|play| play.claims = claims);
        world.session_at(&provider).await;
    }
    // A new key works at once, and the old one no more.
    provider.rotate();
    world.session_at(&provider).await;
    assert_eq!(world.accounts.directory().count().unwrap().active, 1);
}

#[tokio::test]
async fn an_answer_counts_once_and_only_in_the_browser_that_asked() {
    let (world, provider) = world_with("").await;
    // A page of another site begins nothing.
    let foreign = [("origin", "https://evil.example")];
    let begun = world
        .ask("POST", "/dashboard/sign-in/company", &foreign, "")
        .await;
    assert_eq!(begun.status, 403);
    world
        .get("/dashboard/sign-in/company", "")
        .await
        .expect(405);

    let (mine, other) = (world.begin().await, world.begin().await);
    assert!(mine.state != other.state && mine.nonce != other.nonce);
    assert!(!mine.cookie.contains(&mine.state) && !mine.cookie.contains(&mine.nonce));
    let uri = "http://127.0.0.1:8080/dashboard/sign-in/company/callback";
    assert_eq!(mine.redirect_uri, uri);
    let code = provider.grant(&mine);
    let path =
        |state: &str| format!("/dashboard/sign-in/company/callback?code={code}&state={state}");
    for (state, cookie) in [
        (mine.state.as_str(), other.cookie.as_str()),
        (&mine.state, ""),
        (&other.state, &mine.cookie),
        ("", &mine.cookie),
        (&mine.state, "gw-sign-in=x"),
    ] {
        let lost = world.get(&path(state), cookie).await;
        assert_eq!(lost.status, 400, "{state} {cookie}");
        assert!(lost.body.contains("Begin again"), "{}", lost.body);
        assert!(!lost.headers.contains_key("set-cookie"));
    }
    // No address leads elsewhere.
    let back = format!("{}&next=https://evil.example", path(&mine.state));
    let done = world.get(&back, &mine.cookie).await;
    assert_eq!(
        (done.status, done.headers["location"].as_str()),
        (303, "/dashboard")
    );
    assert_eq!(
        world.come_back(&mine, &code).await.status,
        400,
        "a second time"
    );
    // A code from another sign-in does not fit this sign-in's verifier.
    let third = world.begin().await;
    world
        .come_back(&other, &provider.grant(&third))
        .await
        .expect(403);
    // A person who gives up, and an answer of another issuer.
    for query in ["error=access_denied", "code=x&iss=https://evil.example"] {
        let begun = world.begin().await;
        let state = &begun.state;
        let path = format!("/dashboard/sign-in/company/callback?{query}&state={state}");
        let refused = world.get(&path, &begun.cookie).await;
        assert!([403, 502].contains(&refused.status), "{}", refused.body);
    }
    world
        .get("/dashboard/sign-in/other/callback", "")
        .await
        .expect(404);
}

#[tokio::test]
async fn a_group_gives_a_role_and_takes_it_again() {
    let roles = ", scopes: [groups], roles: {llm-admins: operator, llm-readers: viewer}";
    let (world, provider) = world_with(roles).await;
    let role_with = async |groups: Value| {
        provider.play(|play| play.claims = json!({"groups": groups}));
        world.session_at(&provider).await;
        let account = world.accounts.find("ann@example.com").unwrap().unwrap();
        account.role
    };
    assert_eq!(role_with(json!([])).await, Role::Member);
    assert_eq!(role_with(json!(["llm-readers"])).await, Role::Viewer);
    assert_eq!(
        role_with(json!(["llm-admins", "llm-readers"])).await,
        Role::Admin
    );
    // The last administrator stays one, with a line that says so.
    assert_eq!(role_with(json!([])).await, Role::Admin);
    assert_eq!(world.audit("account.keep-role").len(), 1);
    let root = NewAccount {
        password: Some(PASSWORD),
        role: Role::Admin,
        ..NewAccount::new("root@example.com")
    };
    let root = open_account(&world.accounts, world.billing.ledger(), &root, now_ms()).unwrap();
    assert_eq!(role_with(json!([])).await, Role::Member);
    assert_eq!(role_with(json!(["LLM-admins"])).await, Role::Member);
    let changes = world.audit("account.role");
    assert_eq!(changes.len(), 3, "{changes:?}");
    assert!(changes.iter().all(|(actor, _)| actor == "provider company"));

    // What an operator gave stays.
    let account = world.accounts.find("ann@example.com").unwrap().unwrap();
    let by = accounts::Actor {
        actor: root.id,
        address: String::new(),
    };
    let acting = world.accounts.with_actor(&by, now_ms());
    acting.set_role(&account.id, Role::Viewer).unwrap();
    assert_eq!(role_with(json!([])).await, Role::Viewer);
    assert_eq!(role_with(json!("llm-admins")).await, Role::Admin);
    // The claims of the other endpoint count where the token has none.
    provider.play(|play| play.userinfo = json!({"sub": "s1", "groups": ["llm-admins"]}));
    assert_eq!(role_with(Value::Null).await, Role::Admin);
    // A role that groups gave ends with the link to them.
    let acting = world.accounts.with_actor(&by, now_ms());
    let unlinked = acting.unlink_identities(&account.id, "company").unwrap();
    let account = world.accounts.find(&account.id).unwrap().unwrap();
    assert_eq!((unlinked, account.role), (1, Role::Member));
    let changes = world.audit("account.role").into_iter();
    let by_operator = changes.filter(|(actor, _)| *actor == by.actor);
    assert_eq!(by_operator.count(), 2, "the viewer's, and this one");
}

#[tokio::test]
async fn a_provider_that_fails_is_named_and_the_password_still_works() {
    let (world, provider) = world_with("").await;
    let mut begun = world.begin().await;
    for answers in [Answers::Never, Answers::With5xx, Answers::AtLength] {
        provider.play(|play| play.answers = answers);
        let page = world.post("/dashboard/sign-in/company", "", "").await;
        assert_eq!(page.status, 503, "{answers:?}");
        let says =
            "Company does not answer at the moment. You can still sign in with your password.";
        assert!(page.body.contains(says), "{}", page.body);
        let code = provider.grant(&begun);
        world.come_back(&begun, &code).await.expect(503);
        provider.play(|play| play.answers = Answers::Rightly);
        begun = world.begin().await;
    }
    for discovery in [
        json!({"issuer": "https://evil.example"}),
        json!({"token_endpoint": null}),
        json!({"authorization_endpoint": "http://evil.example/authorize"}),
        json!({"authorization_endpoint": "javascript:alert(1)"}),
    ] {
        provider.play(|play| play.discovery = discovery);
        let page = world.post("/dashboard/sign-in/company", "", "").await;
        assert_eq!(page.status, 502, "{}", page.body);
    }
    // Secrets in the body, for a provider that takes them nowhere else.
    let methods = json!({"token_endpoint_auth_methods_supported": ["client_secret_post"]});
    provider.play(|play| play.discovery = methods);
    world.session_at(&provider).await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = format!("http://{}", dead.local_addr().unwrap());
    drop(dead);
    let mut away = provider.clone();
    away.issuer = issuer;
    let world = self::world(&[("signup:", &section(&away, ""))]).await;
    let page = world.post("/dashboard/sign-in/company", "", "").await;
    assert_eq!(page.status, 503, "{}", page.body);
    world.sign_up("a@example.com").await;
    let form = format!("email=a@example.com&password={PASSWORD}");
    world
        .post("/dashboard/sign-in", "", &form)
        .await
        .expect(303);
}

#[tokio::test]
async fn without_passwords_only_a_provider_and_an_operators_link_let_people_in() {
    let provider = PlayedProvider::start().await;
    let section = section(&provider, "").replace("{providers", "{password: false, providers");
    let world = world(&[("signup:", &section)]).await;
    let page = world.get("/dashboard/sign-in", "").await;
    assert!(
        page.body.contains("Continue with Company") && !page.body.contains("type=\"password\"")
    );
    let page = world.get("/dashboard/sign-up", "").await;
    assert!(
        page.body.contains("Continue with Company") && !page.body.contains("type=\"password\"")
    );
    let root = NewAccount {
        password: Some(PASSWORD),
        role: Role::Admin,
        ..NewAccount::new("root@example.com")
    };
    let root = open_account(&world.accounts, world.billing.ledger(), &root, now_ms()).unwrap();
    let form = format!("email=root@example.com&password={PASSWORD}");
    for path in ["/dashboard/sign-in", "/dashboard/sign-up"] {
        let refused = world.post(path, "", &form).await;
        assert_eq!(refused.status, 403, "{path}");
        refused.shows("no sign-in with a password");
    }
    world.get("/dashboard/forgot", "").await.expect(404);
    world
        .post("/dashboard/forgot", "", "email=a")
        .await
        .expect(404);
    // A password that the account has does not count as a way in.
    let cookie = world.session_at(&provider).await;
    world.get("/dashboard", &cookie).await.expect(200);
    let by = accounts::Actor {
        actor: "uid 0".into(),
        address: String::new(),
    };
    let acting = world.accounts.with_actor(&by, now_ms());
    let link = acting.create_one_time_link(&root.id, accounts::LinkPurpose::Reset);
    let path = format!("/dashboard/link/{}", link.unwrap().token);
    let entered = world.post(&path, "", "password=another+long+one").await;
    assert_eq!(entered.status, 303, "{}", entered.body);
}

#[tokio::test]
async fn a_provider_opens_accounts_under_the_sign_up_rules() {
    let provider = PlayedProvider::start().await;
    let section = section(&provider, "");
    let closed = world(&[("signup:", &section), ("mode: open", "mode: closed")]).await;
    let (status, body) = closed.refusal_at(&provider).await;
    assert_eq!(status, 403);
    assert!(body.contains("sign-up is closed"), "{body}");

    let invited = world(&[("signup:", &section), ("mode: open", "mode: invite")]).await;
    let (response, cookie) = invited.sign_in_at(&provider).await;
    let complete = "/dashboard/sign-in/company/complete";
    assert_eq!(response.headers["location"], complete);
    let page = invited.get(complete, &cookie).await;
    assert!(page.body.contains("Invite code") && !page.body.contains("type=\"password\""));
    let refused = invited.post(complete, &cookie, "invite=wrong").await;
    assert_eq!(refused.status, 403, "{}", refused.body);
    let by = accounts::Actor {
        actor: "uid 0".into(),
        address: String::new(),
    };
    let acting = invited.accounts.with_actor(&by, now_ms());
    let code = acting.create_invites(1, 60_000).unwrap().remove(0);
    let form = format!("invite={code}");
    invited.post(complete, &cookie, &form).await.expect(303);
    invited.session_at(&provider).await;

    // Another spelling of a mailbox that has an account.
    let one = (
        "trial_days: 7",
        "trial_days: 7, one_account_per_mailbox: true",
    );
    let world = world(&[("signup:", &section), one]).await;
    world.sign_up("ann.lee@gmail.com").await;
    provider.play(|play| play.claims = json!({"email": "annlee@gmail.com"}));
    let (status, body) = world.refusal_at(&provider).await;
    assert_eq!(status, 409);
    assert!(body.contains("under another address"), "{body}");
}

#[tokio::test]
async fn a_server_without_id_tokens_signs_in_by_its_primary_verified_address() {
    let provider = PlayedProvider::start().await;
    let section = section(&provider, "").replace("kind: oidc", "kind: github");
    let world = world(&[("signup:", &section)]).await;
    let address = |primary: bool, verified: bool| json!({"email": "ann@example.com", "primary": primary, "verified": verified});
    for listed in [
        json!([]),
        json!([address(true, false)]),
        json!([address(false, true)]),
    ] {
        provider.play(|play| play.addresses = listed.clone());
        let (status, body) = world.refusal_at(&provider).await;
        assert_eq!(status, 403, "{listed}: {body}");
    }
    provider.play(|play| play.addresses = json!([address(false, false), address(true, true)]));
    world.session_at(&provider).await;
    let account = world.accounts.find("ann@example.com").unwrap().unwrap();
    let identities = world.accounts.identities().list(&account.id).unwrap();
    assert_eq!(identities[0].subject, "583231");
    provider.play(|play| play.addresses = json!([]));
    world.session_at(&provider).await;
    let begun = world.begin().await;
    let refused = world.come_back(&begun, "unknown").await;
    assert_eq!(refused.status, 403, "{}", refused.body);
}
