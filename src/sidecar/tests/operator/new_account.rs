//! Tests that an administrator opens an account, whose holder then sets a password.

use super::*;

const PATH: &str = "/dashboard/operator/new-account";

#[tokio::test]
async fn an_account_is_opened_with_a_link_that_sets_its_password() {
    let root = root().await;
    let page = root.get(PATH).await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("300 trial credits"));
    let fields = "email=New@Example.com&role=viewer&trial=yes";
    let made = root.post(PATH, fields).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let link = made.inside("new-link").to_owned();
    let (_, token) = link.split_once("/dashboard/link/").unwrap();
    let accounts = &root.world.accounts;
    let account = accounts.find("new@example.com").unwrap().unwrap();
    assert_eq!(account.role, Role::Viewer);
    let balance = root.world.billing.balance(&account.id, now_ms()).unwrap();
    assert_eq!(balance.balance.to_string(), "300");
    assert_eq!(root.acts(), ["account.create", "account.create-link"]);
    let log = accounts.audit_log().rows(None, 10).unwrap();
    assert!(log.iter().all(|line| line.object == account.id));
    assert!(log.iter().all(|line| !line.after.contains(token)));

    let again = root.post(PATH, fields).await;
    assert_eq!(again.status, 409);
    assert!(again.body.contains("already has an account"));
    assert!(again.body.contains("value=\"New@Example.com\""));
    assert!(!again.body.contains("new-link"));

    let path = format!("/dashboard/link/{token}");
    let set = root
        .world
        .post(&path, "", "password=the+holder+chose+it")
        .await;
    assert_eq!(set.status, 303);
    let page = root.world.get("/dashboard/operator", &set.cookie()).await;
    assert_eq!(page.status, 200, "the holder is signed in as a viewer");
    let new = root.world.get(PATH, &set.cookie()).await;
    assert_eq!(new.status, 403);
    assert!(!page.body.contains("new-account"));
}

#[tokio::test]
async fn a_bad_form_opens_no_account_and_the_password_is_asked_for() {
    let root = root().await;
    let count = root.world.accounts.directory().list().unwrap().len();
    for (fields, status) in [
        ("email=&role=member", 422),
        ("email=no-address&role=member", 422),
        ("email=b@example.com&role=", 422),
        ("email=b@example.com&role=root", 422),
        ("email=a@example.com&role=member", 409),
    ] {
        let refused = root.post(PATH, fields).await;
        assert_eq!(refused.status, status, "{fields}");
        assert!(refused.body.contains("role=\"alert\""), "{fields}");
    }
    let root = root.later();
    let fields = "email=b@example.com&role=administrator";
    let refused = root.post(PATH, fields).await;
    assert_eq!(refused.status, 403);
    assert!(refused.body.contains("value=\"administrator\" selected"));
    assert_eq!(root.world.accounts.directory().list().unwrap().len(), count);
    assert!(root.acts().is_empty());
    let fields = format!("{fields}&password={PASSWORD}");
    let made = root.post(PATH, &fields).await;
    assert_eq!(made.status, 201);
    let account = root.world.accounts.find("b@example.com").unwrap().unwrap();
    assert_eq!(account.role, Role::Admin);
    // The box was not ticked.
    let balance = root.world.billing.balance(&account.id, now_ms()).unwrap();
    assert_eq!(balance.balance.to_string(), "0");
}
