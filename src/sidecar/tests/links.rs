//! Tests one-time links: a person who has one sets the password once; every other link gets the
//! same answer.

use super::*;
use accounts::{AccountStatus, Actor, LinkPurpose};

const NEW_PASSWORD: &str = "a much longer password";

fn operator() -> Actor {
    Actor {
        actor: "uid 0".into(),
        address: "command line".into(),
    }
}

impl World {
    /// Creates a link as an operator does. Returns its path.
    fn link(&self, account: &str, purpose: LinkPurpose, at_ms: i64) -> String {
        let by = operator();
        let acting = self.accounts.with_actor(&by, at_ms);
        let link = acting.create_one_time_link(account, purpose).unwrap();
        link.url("")
    }

    /// Creates a link as a mail has it. Returns its path.
    fn mailed_link(&self, account: &str, purpose: LinkPurpose) -> String {
        let link = self
            .accounts
            .one_time_links()
            .create_own_link(account, purpose, now_ms());
        link.unwrap().url("")
    }

    fn id(&self, email: &str) -> String {
        self.accounts.find(email).unwrap().unwrap().id
    }

    async fn use_link(&self, path: &str, password: &str) -> TestResponse {
        self.post(path, "", &format!("password={password}")).await
    }

    async fn sign_in(&self, email: &str, password: &str) -> u16 {
        let body = format!("email={email}&password={password}");
        self.post("/dashboard/sign-in", "", &body).await.status
    }
}

#[tokio::test]
async fn a_link_sets_the_password_once_signs_in_and_ends_every_other_session() {
    let world = world(&[]).await;
    let session = world.sign_up("a@example.com").await;
    let link = world.link(&world.id("a@example.com"), LinkPurpose::Reset, now_ms());
    // Mail scanners open links, and their previews, before the holder does.
    for _ in 0..3 {
        let page = world.get(&link, "").await;
        assert_eq!(page.status, 200);
        assert!(page.body.contains("a@example.com") && page.body.contains("Set a new password"));
        let token = link.rsplit_once('/').unwrap().1;
        assert!(!page.body.contains(token), "a page repeats the token");
    }
    let short = world.use_link(&link, "short").await;
    assert_eq!(short.status, 422);
    assert!(short.body.contains("The link still works"));
    short.has_fault_at("password");
    world.get("/dashboard", &session).await.expect(200);

    let used = world.use_link(&link, NEW_PASSWORD).await;
    assert_eq!(
        (used.status, used.headers["location"].as_str()),
        (303, "/dashboard")
    );
    world.get("/dashboard", &used.cookie()).await.expect(200);
    world.get("/dashboard", &session).await.expect(303);
    assert_eq!(world.sign_in("a@example.com", PASSWORD).await, 401);
    assert_eq!(world.sign_in("a@example.com", NEW_PASSWORD).await, 303);
    assert_eq!(world.use_link(&link, PASSWORD).await.status, 410);
    assert_eq!(world.sign_in("a@example.com", NEW_PASSWORD).await, 303);
}

#[tokio::test]
async fn every_link_that_cannot_be_used_gets_one_answer() {
    let world = world(&[("signup:", "support: \"mailto:help@example.com\"\nsignup:")]).await;
    for email in ["a@example.com", "b@example.com", "c@example.com"] {
        world.sign_up(email).await;
    }
    let [used, late, suspended] =
        ["a@example.com", "b@example.com", "c@example.com"].map(|email| world.id(email));
    let now = now_ms();
    let used_link = world.link(&used, LinkPurpose::Reset, now);
    assert_eq!(world.use_link(&used_link, NEW_PASSWORD).await.status, 303);
    let expired = world.link(&late, LinkPurpose::Setup, now - 72 * 3_600_000);
    let replaced = world.link(&late, LinkPurpose::Reset, now);
    let newer = world.link(&late, LinkPurpose::Reset, now);
    let of_suspended = world.link(&suspended, LinkPurpose::Reset, now);
    world
        .accounts
        .set_status(&suspended, AccountStatus::Suspended)
        .unwrap();
    let wrong = format!("/dashboard/link/{}", "0".repeat(64));
    let cut = newer[..newer.len() - 1].to_owned();
    let strange = "/dashboard/link/%00%C3%A9%27--".to_owned();
    let mut answers = Vec::new();
    for path in [
        &wrong,
        &cut,
        &strange,
        &used_link,
        &expired,
        &replaced,
        &of_suspended,
    ] {
        for response in [
            world.get(path, "").await,
            world.use_link(path, NEW_PASSWORD).await,
        ] {
            assert_eq!(response.status, 410, "{path}");
            assert!(!response.headers.contains_key("set-cookie"), "{path}");
            answers.push(response.body);
        }
    }
    assert!(answers.iter().all(|body| *body == answers[0]));
    assert!(answers[0].contains("This link does not work any more"));
    assert_eq!(world.sign_in("b@example.com", PASSWORD).await, 303);
    assert_eq!(world.use_link(&newer, NEW_PASSWORD).await.status, 303);
    let forgot = world.get("/dashboard/forgot", "").await.body;
    assert!(forgot.contains("Ask the operator") && forgot.contains("mailto:help@example.com"));
}

#[tokio::test]
async fn of_two_that_use_one_link_at_once_one_succeeds() {
    let world = world(&[]).await;
    world.sign_up("a@example.com").await;
    let link = world.link(&world.id("a@example.com"), LinkPurpose::Reset, now_ms());
    let passwords = [NEW_PASSWORD, "another long password"];
    let [first, second] = passwords.map(|password| world.use_link(&link, password));
    let (first, second) = tokio::join!(first, second);
    let mut statuses = [first.status, second.status];
    let winner = passwords[usize::from(second.status == 303)];
    statuses.sort_unstable();
    assert_eq!(statuses, [303, 410]);
    for password in passwords {
        let expected = if password == winner { 303 } else { 401 };
        assert_eq!(world.sign_in("a@example.com", password).await, expected);
    }
}

#[tokio::test]
async fn an_address_tries_a_limited_number_of_wrong_links() {
    let world = world(&[]).await;
    world.sign_up("a@example.com").await;
    let link = world.link(&world.id("a@example.com"), LinkPurpose::Reset, now_ms());
    let open = async |path: &str, address: &str| {
        let from = ("x-forwarded-for", address);
        world.ask("GET", path, &[from], "").await
    };
    // Links that work do not count.
    for _ in 0..30 {
        assert_eq!(open(&link, "192.0.2.1").await.status, 200);
    }
    for index in 0..20 {
        let path = format!("/dashboard/link/{index:064x}");
        assert_eq!(open(&path, "192.0.2.1").await.status, 410, "{index}");
    }
    let refused = open(&link, "192.0.2.1").await;
    assert_eq!(refused.status, 429);
    let seconds: i64 = refused.headers["retry-after"].parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    assert_eq!(open(&link, "192.0.2.2").await.status, 200);
}

#[tokio::test]
async fn the_first_password_and_the_e_mail_have_links_of_their_own() {
    let world = world(&[]).await;
    let new = NewAccount::new("a@example.com");
    let id = open_account(&world.accounts, world.billing.ledger(), &new, now_ms())
        .unwrap()
        .id;
    let setup = world.link(&id, LinkPurpose::Setup, now_ms());
    world.get(&setup, "").await.shows("Set your password");
    assert_eq!(world.use_link(&setup, NEW_PASSWORD).await.status, 303);
    assert_eq!(world.sign_in("a@example.com", NEW_PASSWORD).await, 303);

    let verify = world.link(&id, LinkPurpose::Verify, now_ms());
    let page = world.get(&verify, "").await;
    assert!(page.body.contains("Confirm that") && !page.body.contains("type=\"password\""));
    assert_eq!(
        world
            .accounts
            .one_time_links()
            .email_verified_at(&id)
            .unwrap(),
        None
    );
    // It sets no password, whatever is sent.
    let done = world.use_link(&verify, PASSWORD).await;
    assert_eq!(done.status, 200);
    assert!(done.body.contains("Your e-mail is confirmed"));
    assert!(!done.headers.contains_key("set-cookie"));
    assert!(
        world
            .accounts
            .one_time_links()
            .email_verified_at(&id)
            .unwrap()
            .is_some()
    );
    assert_eq!(world.sign_in("a@example.com", NEW_PASSWORD).await, 303);
    world.post(&verify, "", "").await.expect(410);
}

#[tokio::test]
async fn a_form_of_a_link_is_not_taken_from_another_site() {
    let world = world(&[]).await;
    world.sign_up("a@example.com").await;
    let link = world.link(&world.id("a@example.com"), LinkPurpose::Reset, now_ms());
    let body = format!("password={NEW_PASSWORD}");
    for header in [
        ("origin", "https://evil.example"),
        ("sec-fetch-site", "cross-site"),
    ] {
        let response = world.ask("POST", &link, &[header], &body).await;
        assert_eq!(response.status, 403, "{header:?}");
    }
    let large = format!("password={}", "x".repeat(70_000));
    world.post(&link, "", &large).await.expect(413);
    assert_eq!(world.get(&link, "").await.status, 200, "still unused");
}

const WITH_MAIL: (&str, &str) = (
    "signup:",
    "mail: {smtp: \"smtp+plain://127.0.0.1:1\", from: \"g@example.com\"}\nsignup:",
);

impl World {
    async fn forgot(&self, email: &str, address: &str) -> TestResponse {
        let body = format!("email={email}");
        let from = [("x-forwarded-for", address)];
        self.ask("POST", "/dashboard/forgot", &from, &body).await
    }

    fn queued(&self) -> u64 {
        self.accounts.mails().mail_queue().unwrap().queued
    }

    /// Waits until this number of mails is queued.
    async fn until_queued(&self, count: u64) {
        let wait = async {
            while self.queued() < count {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
        assert!(waited.is_ok(), "{} of {count} mails", self.queued());
    }
}

#[tokio::test]
async fn nobody_learns_from_the_form_for_a_forgotten_password_who_has_an_account() {
    let world = world(&[WITH_MAIL]).await;
    for email in ["a@example.com", "suspended@example.com"] {
        world.sign_up(email).await;
    }
    world
        .accounts
        .set_status(&world.id("suspended@example.com"), AccountStatus::Suspended)
        .unwrap();
    let sign_in = world.get("/dashboard/sign-in", "").await.body;
    assert!(sign_in.contains("href=\"/dashboard/forgot\""));
    let form = world.get("/dashboard/forgot", "").await.body;
    assert!(form.contains("Send link") && !form.contains("Ask the operator"));
    let mut answers = Vec::new();
    for email in [
        "a@example.com",
        "%20A@Example.COM%20",
        "x@example.com",
        "suspended@example.com",
        &world.id("a@example.com"),
        "",
        "not+an+e-mail",
    ] {
        let response = world.forgot(email, "192.0.2.1").await;
        assert_eq!(response.status, 200, "{email}");
        let (before, rest) = response.body.split_once("<strong>").unwrap();
        answers.push(format!(
            "{before}{}",
            rest.split_once("</strong>").unwrap().1
        ));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert!(answers[0].contains("is on its way"));
    world.until_queued(2).await;
}

#[tokio::test]
async fn mails_for_a_forgotten_password_have_limits() {
    let world = world(&[WITH_MAIL]).await;
    world.sign_up("a@example.com").await;
    // The fourth gets the same answer, but no mail.
    for index in 0..4 {
        let answer = world
            .forgot("a@example.com", &format!("192.0.2.{index}"))
            .await;
        assert_eq!(answer.status, 200, "{index}");
    }
    world.until_queued(3).await;
    for index in 0..10 {
        let email = format!("x{index}@example.com");
        world.forgot(&email, "198.51.100.1").await.expect(200);
    }
    let refused = world.forgot("y@example.com", "198.51.100.1").await;
    assert_eq!(refused.status, 429);
    assert!(refused.headers["retry-after"].parse::<i64>().unwrap() <= 3_600);
    world
        .forgot("y@example.com", "198.51.100.2")
        .await
        .expect(200);
    assert_eq!(world.queued(), 3);
}

#[tokio::test]
async fn without_a_mail_server_the_form_for_a_forgotten_password_names_the_operator() {
    let world = world(&[]).await;
    world.sign_up("a@example.com").await;
    let refused = world.forgot("a@example.com", "192.0.2.1").await;
    assert_eq!(refused.status, 403);
    assert!(refused.body.contains("Ask the operator"));
    assert_eq!(world.queued(), 0);
}

#[tokio::test]
async fn a_trial_that_waits_for_the_e_mail_comes_once_with_its_link() {
    let (from, mail) = WITH_MAIL;
    let mail = mail.replace("example.com\"}", "example.com\", verify_sign_ups: true}");
    let world = world(&[(from, mail.as_str())]).await;
    let cookie = world.sign_up("a@example.com").await;
    let id = world.id("a@example.com");
    let overview = world.get("/dashboard", &cookie).await;
    assert_eq!(overview.inside("balance"), "0");
    assert!(overview.body.contains("data-testid=\"unverified\""));
    assert!(!overview.body.contains("You have no credits left"));
    assert_eq!(world.queued(), 1);
    // Neither a restart nor a sign-in grants it.
    accounts::complete_sign_ups(&world.accounts, world.billing.ledger(), now_ms()).unwrap();
    assert_eq!(world.sign_in("a@example.com", PASSWORD).await, 303);
    assert_eq!(
        world.get("/dashboard", &cookie).await.inside("balance"),
        "0"
    );
    assert_eq!(world.billing.verify(now_ms()).unwrap().findings.len(), 0);

    let verify = world.link(&id, LinkPurpose::Verify, now_ms());
    world.get(&verify, "").await;
    assert_eq!(
        world.get("/dashboard", &cookie).await.inside("balance"),
        "0"
    );
    world.post(&verify, "", "").await.expect(200);
    let overview = world.get("/dashboard", &cookie).await;
    assert_eq!(overview.inside("balance"), "300");
    assert!(!overview.body.contains("data-testid=\"unverified\""));
    // A second link verifies the same e-mail, and grants nothing.
    let again = world.link(&id, LinkPurpose::Verify, now_ms());
    world.post(&again, "", "").await.expect(200);
    assert_eq!(
        world.get("/dashboard", &cookie).await.inside("balance"),
        "300"
    );
    assert_eq!(world.billing.verify(now_ms()).unwrap().findings.len(), 0);
}

#[tokio::test]
async fn an_account_holder_asks_for_the_mail_that_confirms_the_e_mail() {
    let world = world(&[WITH_MAIL]).await;
    let cookie = world.sign_up("a@example.com").await;
    let page = world.get("/dashboard/account", &cookie).await;
    assert!(page.body.contains("Your e-mail is not confirmed"));
    assert_eq!(
        world.get("/dashboard", &cookie).await.inside("balance"),
        "300"
    );
    let body = format!("csrf={}", page.csrf());
    for (expected, queued) in [("mail", 1), ("mail", 2), ("mail", 3), ("mail-limit", 3)] {
        let sent = world
            .post("/dashboard/account/verify", &cookie, &body)
            .await;
        let to = format!("/dashboard/account?done={expected}");
        assert_eq!((sent.status, &sent.headers["location"]), (303, &to));
        assert_eq!(world.queued(), queued);
    }
    let link = world.link(&world.id("a@example.com"), LinkPurpose::Verify, now_ms());
    world.post(&link, "", "").await.expect(200);
    let page = world
        .get("/dashboard/account?done=mail", &cookie)
        .await
        .body;
    assert!(page.contains("(confirmed <time") && !page.contains("is not confirmed"));
    assert!(page.contains("is on its way"));
}

#[tokio::test]
async fn the_first_proof_of_a_mailbox_ends_the_keys_of_whoever_signed_up_with_it() {
    let world = world(&[WITH_MAIL]).await;
    let stranger = world.sign_up("a@example.com").await;
    let id = world.id("a@example.com");
    let key = |name| {
        world
            .accounts
            .api_keys()
            .create_key(&id, name, now_ms())
            .unwrap()
            .key
    };
    let is_live = |key: &str| world.accepts(key);
    let of_stranger = key("<b>mine</b>");
    let actor = accounts::Actor {
        actor: id.clone(),
        address: String::new(),
    };
    let acting = world.accounts.with_actor(&actor, now_ms());
    acting.create_organisation("Acme", &id).unwrap();
    let link = world.mailed_link(&id, LinkPurpose::Reset);
    let page = world.get(&link, "").await;
    assert!(page.body.contains("in the organisation Acme"));
    page.shows("Nobody has confirmed this e-mail before");
    assert!(page.body.contains("value=\"keep\"") && !page.body.contains("<b>mine"));
    assert!(is_live(&of_stranger), "opening a link changes nothing");
    let set = world.use_link(&link, NEW_PASSWORD).await;
    assert_eq!(set.status, 303);
    assert!(!is_live(&of_stranger));
    world.get("/dashboard", &stranger).await.expect(303);
    assert!(
        world
            .accounts
            .one_time_links()
            .email_verified_at(&id)
            .unwrap()
            .is_some()
    );

    // From then on, a new password keeps the keys, unless the holder ticks the box.
    let own = key("mine");
    for (choice, lives) in [("", true), ("&credentials=end", false)] {
        let link = world.mailed_link(&id, LinkPurpose::Reset);
        let page = world.get(&link, "").await.body;
        assert!(page.contains("The account has:") && page.contains("value=\"end\""));
        assert!(!page.contains("&#60;b&#62;"), "a revoked key is not listed");
        let fields = format!("{NEW_PASSWORD}{choice}");
        assert_eq!(world.use_link(&link, &fields).await.status, 303);
        assert_eq!(is_live(&own), lives, "{choice}");
    }
}

#[tokio::test]
async fn only_a_holder_who_is_signed_in_confirms_an_e_mail_without_a_password() {
    let (from, mail) = WITH_MAIL;
    let mail = mail.replace("example.com\"}", "example.com\", verify_sign_ups: true}");
    let world = world(&[(from, mail.as_str())]).await;
    let [own, other] = ["a@example.com", "b@example.com"].map(|email| world.sign_up(email));
    let (own, other) = (own.await, other.await);
    let [id, of_other] = ["a@example.com", "b@example.com"].map(|email| world.id(email));
    let key = |id: &str| {
        world
            .accounts
            .api_keys()
            .create_key(id, "k", now_ms())
            .unwrap()
            .key
    };
    let is_live = |key: &str| world.accepts(key);
    let (kept, ended) = (key(&id), key(&of_other));

    let link = world.mailed_link(&id, LinkPurpose::Verify);
    for cookie in ["", &other] {
        let page = world.get(&link, cookie).await.body;
        assert!(page.contains("You are not signed in here"));
        world.post(&link, cookie, "").await.expect(422);
    }
    assert_eq!(
        world
            .accounts
            .one_time_links()
            .email_verified_at(&id)
            .unwrap(),
        None
    );
    let page = world.get(&link, &own).await.body;
    assert!(page.contains("Confirm that") && !page.contains("type=\"password\""));
    let done = world.post(&link, &own, "").await;
    assert!(done.body.contains("Your e-mail is confirmed"));
    assert!(is_live(&kept));
    let overview = world.get("/dashboard", &own).await;
    assert_eq!(overview.inside("balance"), "300");

    let link = world.mailed_link(&of_other, LinkPurpose::Verify);
    let set = world.use_link(&link, NEW_PASSWORD).await;
    assert_eq!(set.status, 303);
    assert!(!is_live(&ended));
    world.get("/dashboard", &other).await.expect(303);
    let overview = world.get("/dashboard", &set.cookie()).await;
    assert_eq!(overview.inside("balance"), "300");
    world.post(&link, "", "").await.expect(410);
}
