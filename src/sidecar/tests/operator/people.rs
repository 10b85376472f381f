//! Tests the change of a role and the deletion of an account by an administrator.

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
        assert_eq!(root.post(&path, &fields).await.status, 303);
        assert_eq!(role_of(&root, "a@example.com"), expected);
    }
    assert_eq!(root.post(&path, "role=king").await.status, 422);
    // The same role again is no change.
    assert_eq!(root.post(&path, "role=administrator").await.status, 303);
    assert_eq!(root.acts(), ["account.role"; 3]);

    // The account that is one now has no password: nobody could sign in to it.
    let root_id = root.world.accounts.find("root@example.com").unwrap();
    let own = format!("/dashboard/operator/accounts/{}/role", root_id.unwrap().id);
    let asked = root.post(&own, "role=viewer").await;
    assert!(asked.body.contains("This is your own account"));
    let refused = root.post(&own, "role=viewer&confirmed=yes").await;
    assert_eq!(refused.status, 409);
    assert!(
        refused
            .body
            .contains("the only administrator who can sign in")
    );
    let accounts = &root.world.accounts;
    let by = Actor {
        actor: "uid 0".into(),
        address: "command line".into(),
    };
    let acting = accounts.with_actor(&by, now_ms());
    assert!(acting.set_password(&root.account, PASSWORD).unwrap());
    assert_eq!(
        root.post(&own, "role=viewer&confirmed=yes").await.status,
        303
    );
    assert_eq!(role_of(&root, "root@example.com"), Role::Viewer);
    assert_eq!(root.post(&path, "role=viewer").await.status, 403);
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
    assert_eq!(root.post(&path, fields).await.status, 303);
    assert!(root.world.accounts.find("a@example.com").unwrap().is_none());
    let keys = key.keys(&root.account).unwrap();
    assert_eq!(keys[0].status, accounts::ApiKeyStatus::Revoked);
    assert_eq!(root.balance(), "7");
    assert_eq!(root.acts(), ["account.delete"]);
    let page = root.get(root.path("").trim_end_matches('/')).await;
    assert_eq!(page.status, 200);
    assert!(page.inside("status").starts_with("deleted"));
    assert_eq!(root.post(&path, fields).await.status, 422);

    let own = root.world.accounts.find("root@example.com").unwrap();
    let own = format!("/dashboard/operator/accounts/{}/delete", own.unwrap().id);
    let fields = "confirmation=root@example.com&confirmed=yes";
    assert_eq!(root.post(&own, fields).await.status, 409);
}
