//! Tests what an administrator changes of an account: its role, its rates, its keys, its trial; and
//! its deletion.

use super::*;

fn role_of(root: &Root, email: &str) -> Role {
    root.world.accounts.find(email).unwrap().unwrap().role
}

#[tokio::test]
async fn a_role_is_changed_after_a_question_and_never_that_of_the_last_administrator() {
    let root = root().await;
    let path = root.path("role");
    let asked = root.post(&path, "role=administrator").await;
    assert_eq!(asked.status, 200);
    assert!(asked.body.contains("can change every account"));
    assert_eq!(role_of(&root, "a@example.com"), Role::Member);
    for (role, expected) in [
        ("viewer", Role::Viewer),
        ("member", Role::Member),
        ("administrator", Role::Admin),
    ] {
        let fields = format!("role={role}&confirmed=yes");
        root.post(&path, &fields).await.expect(303);
        assert_eq!(role_of(&root, "a@example.com"), expected);
    }
    root.post(&path, "role=king").await.expect(422);
    // The same role again is no change.
    root.post(&path, "role=administrator").await.expect(303);
    assert_eq!(root.acts(), ["account.role"; 3]);

    // The account that is one now has no password: nobody could sign in to it.
    let root_id = root.world.accounts.find("root@example.com").unwrap();
    let own = format!("/dashboard/operator/accounts/{}/role", root_id.unwrap().id);
    let asked = root.post(&own, "role=viewer").await;
    assert!(asked.body.contains("This is your own account"));
    let refused = root.post(&own, "role=viewer&confirmed=yes").await;
    assert_eq!(refused.status, 409);
    refused.shows("the only administrator who can sign in");
    let accounts = &root.world.accounts;
    let by = Actor {
        actor: "uid 0".into(),
        address: "command line".into(),
    };
    let acting = accounts.with_actor(&by, now_ms());
    assert!(acting.set_password(&root.account, PASSWORD).unwrap());
    root.post(&own, "role=viewer&confirmed=yes")
        .await
        .expect(303);
    assert_eq!(role_of(&root, "root@example.com"), Role::Viewer);
    root.post(&path, "role=viewer").await.expect(403);
}

#[tokio::test]
async fn an_account_is_deleted_after_its_email_is_typed_and_its_entries_stay() {
    let root = root().await;
    let key = root.world.accounts.api_keys();
    key.create_key(&root.account, "ci", now_ms()).unwrap();
    let corrections = root.world.billing.corrections();
    let amount = credits::money::Micro::new(7_000_000);
    corrections
        .grant(&root.account, amount, "r", now_ms())
        .unwrap();
    let path = root.path("delete");
    let wrong = root.post(&path, "confirmation=b@example.com").await;
    assert_eq!(wrong.status, 422);
    let asked = root.post(&path, "confirmation=A@example.com").await;
    assert!(asked.body.contains("balance of 7 credits cannot be spent"));
    assert!(root.world.accounts.find("a@example.com").unwrap().is_some());
    let fields = "confirmation=a@example.com&confirmed=yes";
    root.post(&path, fields).await.expect(303);
    assert!(root.world.accounts.find("a@example.com").unwrap().is_none());
    let keys = key.keys(&root.account).unwrap();
    assert_eq!(keys[0].status, accounts::ApiKeyStatus::Revoked);
    assert_eq!(root.balance(), "7");
    assert_eq!(root.acts(), ["account.delete"]);
    let page = root.get(root.path("").trim_end_matches('/')).await;
    assert_eq!(page.status, 200);
    assert!(page.inside("status").starts_with("deleted"));
    root.post(&path, fields).await.expect(422);

    let own = root.world.accounts.find("root@example.com").unwrap();
    let own = format!("/dashboard/operator/accounts/{}/delete", own.unwrap().id);
    let fields = "confirmation=root@example.com&confirmed=yes";
    root.post(&own, fields).await.expect(409);
}

#[tokio::test]
async fn the_account_page_sets_rates_and_creates_a_key_that_it_shows_once() {
    let root = root().await;
    let fields = "requests_per_minute=60&tokens_per_minute=&concurrent=0";
    root.post(&root.path("rates"), fields).await.expect(200);
    let rates = root.world.accounts.account_rates(&root.account).unwrap();
    assert_eq!(
        (
            rates.requests_per_minute,
            rates.tokens_per_minute,
            rates.concurrent
        ),
        (Some(60), None, Some(0))
    );
    for bad in [
        "concurrent=-1",
        "concurrent=x",
        "concurrent=99999999999999999999",
    ] {
        let refused = root.post(&root.path("rates"), bad).await;
        assert_eq!(refused.status, 422, "{bad}");
        refused.has_fault_at("concurrent");
    }
    let made = root.post(&root.path("keys"), "name=ci").await;
    assert_eq!(made.status, 201);
    let key = made.inside("new-key").to_owned();
    let found = root.world.accounts.api_keys().authenticate(&key, now_ms());
    assert_eq!(*found.unwrap().account_id, *root.account);
    let page = root.get(root.path("").trim_end_matches('/')).await;
    assert!(!page.body.contains(&key) && page.body.contains(">ci<"));
    root.post(&root.path("keys"), "name=").await.expect(422);
    assert_eq!(
        root.acts(),
        ["account.limit", "key.create", "key.create refused"]
    );
}

#[tokio::test]
async fn a_running_trial_is_extended_and_the_audit_of_the_ledger_agrees() {
    let root = root().await;
    let now = now_ms();
    let trial = credits::trial::Trial {
        credits: credits::money::Micro::new(5_000_000),
        ends_at_ms: now + 60_000,
    };
    let new = NewAccount {
        trial: Some(trial),
        ..NewAccount::new("tried@example.com")
    };
    let (accounts, billing) = (&root.world.accounts, &root.world.billing);
    let tried = open_account(accounts, billing.ledger(), &new, now).unwrap();
    let path = format!("/dashboard/operator/accounts/{}/trial", tried.id);
    for bad in ["days=0", "days=366", "days=x", ""] {
        assert_eq!(root.post(&path, bad).await.status, 422, "{bad}");
    }
    root.post(&root.path("trial"), "days=7").await.expect(409);
    root.post(&path, "days=7").await.expect(200);
    let week = 7 * 86_400_000;
    let balance = billing.balance(&tried.id, now + week).unwrap();
    assert!(balance.trial.unwrap().active);
    assert_eq!(balance.balance.to_string(), "5");
    let later = billing.balance(&tried.id, now + week + 60_000).unwrap();
    assert!(!later.trial.unwrap().active);
    let report = billing.verify(now_ms()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(root.acts(), ["account.extend-trial"]);
}

#[tokio::test]
async fn an_operator_enters_the_domains_that_an_organisation_claims() {
    let root = root().await;
    let by = Actor {
        actor: "uid 0".into(),
        address: String::new(),
    };
    let acting = root.world.accounts.with_actor(&by, now_ms());
    let created = acting.create_organisation("Acme", &root.account).unwrap();
    let ledger = root.world.billing.ledger();
    accounts::complete_sign_ups(&root.world.accounts, ledger, now_ms()).unwrap();
    let path = format!("/dashboard/operator/accounts/{}/domains", created.id);
    let domains = || {
        let organisations = root.world.accounts.organisations();
        organisations.domains(&created.id).unwrap().join(" ")
    };
    for (typed, status, expected) in [
        ("act=claim&domain=Example.ORG", 303, "example.org"),
        ("act=claim&domain=example.org", 409, "example.org"),
        ("act=claim&domain=a@example.net", 422, "example.org"),
        ("act=release&domain=example.net", 404, "example.org"),
        ("act=release&domain=example.org", 303, ""),
    ] {
        let response = root.post(&path, typed).await;
        assert_eq!(response.status, status, "{typed}: {}", response.body);
        assert_eq!(domains(), expected, "{typed}");
    }
    let own = root.path("domains");
    let person = root.post(&own, "act=claim&domain=example.org").await;
    assert_eq!(person.status, 404, "a person's account");
}
