//! Tests the account holder's pages: account, sessions, password, export, deletion, keys; and the
//! sign-up modes.

use super::*;
use accounts::{AccountStatus, Actor, ApiKeyStatus};
use serde_json::Value;

/// The texts between two marks of a page, in order.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Vec<&'a str> {
    text.split(start)
        .skip(1)
        .filter_map(|rest| rest.split(end).next())
        .collect()
}

async fn csrf(world: &World, cookie: &str) -> String {
    world.get("/dashboard/account", cookie).await.csrf()
}

fn by_command() -> Actor {
    Actor {
        actor: "uid 0".into(),
        address: "command line".into(),
    }
}

#[tokio::test]
async fn sessions_are_listed_and_ended_one_by_one_or_all_others() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let stranger = world.sign_up("b@example.com").await;
    let credentials = format!("email=a@example.com&password={PASSWORD}");
    let browser = ("user-agent", "Mozilla/5.0 (Windows NT 10.0) Firefox/140.0");
    let from = ("x-forwarded-for", "192.0.2.7");
    let mut others = Vec::new();
    for _ in 0..3 {
        let response = world
            .ask("POST", "/dashboard/sign-in", &[browser, from], &credentials)
            .await;
        others.push(response.cookie());
    }
    let page = world.get("/dashboard/account", &cookie).await;
    assert_eq!(page.body.matches("Firefox on Windows").count(), 3);
    assert_eq!(page.body.matches("192.0.2.7").count(), 3);
    assert_eq!(page.body.matches("(this one)").count(), 1);
    let ids = between(&page.body, "/dashboard/account/sessions/", "/end");
    assert_eq!(ids.len(), 3, "every session but this one can be ended");
    for cookie in &others {
        assert!(
            !page.body.contains(cookie.split_once('=').unwrap().1),
            "a session's token is on the page"
        );
    }

    let token = page.csrf();
    let end = |id: &str| format!("/dashboard/account/sessions/{id}/end");
    let own = csrf(&world, &stranger).await;
    world
        .post(&end(ids[0]), &stranger, &format!("csrf={own}"))
        .await
        .expect(404);
    for bad in ["", "zz", "00", &"0".repeat(32), &"é".repeat(16)] {
        assert_eq!(
            world
                .post(&end(bad), &cookie, &format!("csrf={token}"))
                .await
                .status,
            404,
            "{bad:?}"
        );
    }
    let alive = async || {
        let mut count = 0;
        for cookie in &others {
            count += usize::from(world.get("/dashboard", cookie).await.status == 200);
        }
        count
    };
    assert_eq!(alive().await, 3);
    let asked = world
        .post(&end(ids[0]), &cookie, &format!("csrf={token}"))
        .await;
    assert_eq!(asked.status, 200);
    asked.shows("Firefox on Windows at 192.0.2.7, last seen ");
    assert_eq!(alive().await, 3, "nothing ends before the confirmation");
    let confirmed = format!("csrf={}&confirmed=yes", asked.csrf());
    let ended = world.post(&end(ids[0]), &cookie, &confirmed).await;
    assert_eq!(
        (ended.status, ended.headers["location"].as_str()),
        (303, "/dashboard/account?done=session")
    );
    assert_eq!(alive().await, 2);
    let again = world.post(&end(ids[0]), &cookie, &confirmed).await;
    assert_eq!(again.status, 404, "it has ended");
    let others_end = "/dashboard/account/end-other-sessions";
    // A page repeats what the form says, but no password.
    let form = format!("csrf={token}&note=%3Cb%3E&new_password=secret&confirmed=no");
    let asked = world.post(others_end, &cookie, &form).await;
    assert_eq!((asked.status, alive().await), (200, 2));
    let repeated = "<input type=\"hidden\" name=\"note\" value=\"&#60;b&#62;\">";
    assert!(asked.body.contains(repeated), "{}", asked.body);
    assert!(!asked.body.contains("secret") && !asked.body.contains("value=\"no\""));
    world.post(others_end, &cookie, &confirmed).await;
    assert_eq!(alive().await, 0);
    assert_eq!(
        world.get("/dashboard", &cookie).await.status,
        200,
        "one's own session stays"
    );
    assert_eq!(
        world.get("/dashboard", &stranger).await.status,
        200,
        "and another account's"
    );
}

#[tokio::test]
async fn a_new_password_asks_for_the_old_one_and_ends_every_other_session() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let credentials = format!("email=a@example.com&password={PASSWORD}");
    let other = world
        .post("/dashboard/sign-in", "", &credentials)
        .await
        .cookie();
    let token = csrf(&world, &cookie).await;
    let change = async |old: &str, new: &str| {
        let body = format!("csrf={token}&password={old}&new_password={new}");
        world
            .post("/dashboard/account/password", &cookie, &body)
            .await
    };
    for (old, new, status, field) in [
        ("", "another password", 403, "password"),
        ("not the password", "another password", 403, "password"),
        (PASSWORD, "short", 422, "new_password"),
    ] {
        let refused = change(old, new).await.expect(status);
        refused.has_fault_at(field);
    }
    assert_eq!(
        world.get("/dashboard", &other).await.status,
        200,
        "nothing was changed yet"
    );

    let changed = change(PASSWORD, "another password").await;
    assert_eq!(
        (changed.status, changed.headers["location"].as_str()),
        (303, "/dashboard/account?done=password")
    );
    let new = changed.cookie();
    assert_ne!(new, cookie, "the session has a new token");
    world.get("/dashboard", &new).await.expect(200);
    for dead in [&cookie, &other] {
        world.get("/dashboard", dead).await.expect(303);
    }
    world
        .post("/dashboard/sign-in", "", &credentials)
        .await
        .expect(401);
    let good = world
        .post(
            "/dashboard/sign-in",
            "",
            "email=a@example.com&password=another password",
        )
        .await;
    assert_eq!(good.status, 303);
}

#[tokio::test]
async fn a_copy_of_ones_data_has_all_entries_and_no_secret() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = world.accounts.find("a@example.com").unwrap().unwrap();
    let key = world
        .accounts
        .api_keys()
        .create_key(&account.id, "laptop", now_ms())
        .unwrap();
    // More entries than one read returns.
    for index in 0..450 {
        world
            .billing
            .corrections()
            .grant(
                &account.id,
                "1".parse().unwrap(),
                &format!("invoice {index}"),
                now_ms(),
            )
            .unwrap();
    }
    let response = world.get("/dashboard/account/export", &cookie).await;
    assert_eq!(response.status, 200);
    assert!(response.headers["content-disposition"].starts_with("attachment"));
    let text = unchunked(&response.body);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["account"]["email"], "a@example.com");
    assert_eq!(value["account"]["balance"], "750");
    assert_eq!(value["keys"][0]["name"], "laptop");
    assert_eq!(value["sessions"].as_array().unwrap().len(), 1);
    let mut references: Vec<_> = value["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["ref"].as_str().unwrap())
        .collect();
    assert_eq!(references.len(), 451, "the trial and each grant");
    references.sort_unstable();
    references.dedup();
    assert_eq!(references.len(), 451, "each once");
    for secret in [
        key.key.as_str(),
        cookie.split_once('=').unwrap().1,
        PASSWORD,
        "$argon2",
    ] {
        assert!(!text.contains(secret), "a secret is in the export");
    }
}

fn unchunked(body: &str) -> String {
    let (mut rest, mut text) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text += &after[..size];
        rest = after[size..].trim_start_matches("\r\n");
        if size == 0 {
            break;
        }
    }
    text
}

#[tokio::test]
async fn a_deleted_account_is_gone_but_for_its_entries() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let other = world.sign_up("b@example.com").await;
    let account = world.accounts.find("a@example.com").unwrap().unwrap();
    let key = world
        .accounts
        .api_keys()
        .create_key(&account.id, "my secret project", now_ms())
        .unwrap()
        .key;
    let token = csrf(&world, &cookie).await;
    let delete = async |email: &str, password: &str| {
        let body = format!("csrf={token}&confirmation={email}&password={password}");
        world
            .post("/dashboard/account/delete", &cookie, &body)
            .await
    };
    for (email, password, status, field) in [
        ("b@example.com", PASSWORD, 422, "confirmation"),
        ("a@example.com", "not the password", 403, "delete_password"),
        ("a@example.com", "", 403, "delete_password"),
    ] {
        let refused = delete(email, password).await.expect(status);
        refused.has_fault_at(field);
    }
    assert!(world.accepts(&key), "nothing was changed yet");

    delete("A@example.com", PASSWORD).await.expect(200);
    assert!(!world.accepts(&key));
    world.get("/dashboard", &cookie).await.expect(303);
    let credentials = format!("email=a@example.com&password={PASSWORD}");
    world
        .post("/dashboard/sign-in", "", &credentials)
        .await
        .expect(401);
    let gone = world.accounts.find(&account.id).unwrap().unwrap();
    assert_eq!(
        (gone.status, gone.role),
        (AccountStatus::Deleted, Role::Member)
    );
    assert!(!gone.email.contains("example"), "{}", gone.email);
    let keys = world.accounts.api_keys().keys(&account.id).unwrap();
    assert_eq!(keys.len(), 1);
    assert!(
        keys[0].status == ApiKeyStatus::Revoked && keys[0].name != "my secret project",
        "{keys:?}"
    );
    assert!(
        !world
            .accounts
            .with_actor(&by_command(), now_ms())
            .set_status(&account.id, AccountStatus::Active)
            .unwrap()
    );
    let verdict = world.billing.verify(now_ms()).unwrap();
    assert_eq!(
        (verdict.findings.len(), verdict.entries),
        (0, 2),
        "both trials stay: {:?}",
        verdict.findings
    );
    assert_eq!(
        world.get("/dashboard", &other).await.status,
        200,
        "another account stays"
    );

    // The e-mail is free for another account, which is informed that it gets no second trial.
    let second = world.post("/dashboard/sign-up", "", &credentials).await;
    assert_eq!(
        (second.status, second.headers["location"].as_str()),
        (303, "/dashboard?trial=had")
    );
    let page = world
        .get(&second.headers["location"], &second.cookie())
        .await;
    assert!(
        page.inside("had-trial")
            .contains("this mailbox had its trial"),
        "{}",
        page.body
    );
    assert_eq!(
        (page.inside("balance"), page.inside("trial")),
        ("0", "No trial")
    );
    let page = world.get("/dashboard?trial=had", &other).await.body;
    assert!(
        !page.contains("had-trial"),
        "somebody with a trial is told that they have none"
    );
    assert_ne!(
        world.accounts.find("a@example.com").unwrap().unwrap().id,
        account.id
    );
    let audit_log = world.accounts.audit_log().rows(None, 10).unwrap();
    assert_eq!(
        audit_log
            .iter()
            .filter(|line| line.act == "account.delete" && line.object == account.id)
            .count(),
        1
    );
}

#[tokio::test]
async fn the_only_administrator_is_told_why_they_cannot_leave() {
    let world = world(&[]).await;
    let new = NewAccount {
        password: Some(PASSWORD),
        role: Role::Admin,
        ..NewAccount::new("root@example.com")
    };
    open_account(&world.accounts, world.billing.ledger(), &new, now_ms()).unwrap();
    let credentials = format!("email=root@example.com&password={PASSWORD}");
    let cookie = world
        .post("/dashboard/sign-in", "", &credentials)
        .await
        .cookie();
    let token = csrf(&world, &cookie).await;
    let body = format!("csrf={token}&confirmation=root@example.com&password={PASSWORD}");
    let refused = world
        .post("/dashboard/account/delete", &cookie, &body)
        .await;
    assert_eq!(refused.status, 409);
    refused.shows("You are the only administrator");
    assert_eq!(
        world.get("/dashboard/operator", &cookie).await.status,
        200,
        "still there"
    );
}

#[tokio::test]
async fn an_invitation_opens_one_account() {
    let world = world(&[("mode: open", "mode: invite")]).await;
    world
        .get("/dashboard/sign-up", "")
        .await
        .shows("Invite code");
    let by = by_command();
    let codes = world
        .accounts
        .with_actor(&by, now_ms())
        .create_invites(2, 60_000)
        .unwrap();
    let expired = world
        .accounts
        .with_actor(&by, now_ms() - 120_000)
        .create_invites(1, 60_000)
        .unwrap();
    let body = |email: &str, code: &str| format!("email={email}&password={PASSWORD}&invite={code}");
    for bad in ["", "invite-0", &expired[0], &codes[0][..codes[0].len() - 1]] {
        let response = world
            .post("/dashboard/sign-up", "", &body("a@example.com", bad))
            .await;
        assert_eq!(response.status, 403, "{bad}");
        assert!(response.body.contains("unknown, used or expired"));
    }
    assert!(world.accounts.directory().list().unwrap().is_empty());

    let world = Arc::new(world);
    let tries = (0..6).map(|index| {
        let (world, body) = (
            Arc::clone(&world),
            body(&format!("a{index}@example.com"), &codes[0]),
        );
        tokio::spawn(async move { world.post("/dashboard/sign-up", "", &body).await.status })
    });
    let mut statuses = Vec::new();
    for one in tries.collect::<Vec<_>>() {
        statuses.push(one.await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(
        statuses,
        [303, 403, 403, 403, 403, 403],
        "one code, one account"
    );
    let first = world.accounts.directory().list().unwrap();
    assert_eq!(first.len(), 1);
    // Without a valid code, sign-up does not reveal which accounts exist. A valid code stays valid
    // if the sign-up fails for another reason.
    world
        .post("/dashboard/sign-up", "", &body(&first[0].email, "invite-0"))
        .await
        .expect(403);
    world
        .post("/dashboard/sign-up", "", &body(&first[0].email, &codes[1]))
        .await
        .expect(409);
    let padded = format!("+{}++", codes[1]);
    world
        .post("/dashboard/sign-up", "", &body("z@example.com", &padded))
        .await
        .expect(303);
    let used: Vec<_> = world
        .accounts
        .invitations()
        .list(None, 100)
        .unwrap()
        .into_iter()
        .filter_map(|invite| invite.used_by)
        .collect();
    assert_eq!(used.len(), 2);
}

#[tokio::test]
async fn past_the_days_budget_nobody_gets_a_trial_until_tomorrow() {
    let world = world(&[(
        "trial_days: 7",
        "trial_days: 7, trial_budget_per_day: \"600\"",
    )])
    .await;
    for index in 0..2 {
        world.sign_up(&format!("a{index}@example.com")).await;
    }
    let response = world
        .post(
            "/dashboard/sign-up",
            "",
            &format!("email=c@example.com&password={PASSWORD}"),
        )
        .await;
    assert_eq!(response.status, 429);
    assert!(response.body.contains("No trials are left today"));
    let wait: i64 = response.headers["retry-after"].parse().unwrap();
    assert!((1..=86_401).contains(&wait), "{wait}");
    assert_eq!(world.accounts.directory().list().unwrap().len(), 2);
}

#[tokio::test]
async fn after_five_wrong_passwords_the_right_one_waits_too() {
    let world = world(&[]).await;
    world.sign_up("a@example.com").await;
    world.sign_up("b@example.com").await;
    let from = async |address: &str, email: &str, password: &str| {
        let body = format!("email={email}&password={password}");
        world
            .ask(
                "POST",
                "/dashboard/sign-in",
                &[("x-forwarded-for", address)],
                &body,
            )
            .await
            .status
    };
    // Checking a password may take longer than the first wait, and the waits double.
    let mut wrong = 0;
    while from("2001:db8::1", "a@example.com", "wrong password").await == 401 {
        wrong += 1;
        assert!(wrong < 15, "no wait");
    }
    assert!(wrong >= 5, "a wait after {wrong}");
    // Also from the next address of the same network.
    assert_eq!(from("2001:db8::2", "a@example.com", PASSWORD).await, 429);
    assert_eq!(
        from("2001:db8::2", "b@example.com", PASSWORD).await,
        303,
        "another account is not slowed"
    );
}
