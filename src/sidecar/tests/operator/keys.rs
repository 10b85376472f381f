//! Tests what an administrator does to the keys of an account.

use super::*;

#[tokio::test]
async fn a_key_is_disabled_enabled_and_revoked_and_what_stops_a_client_asks_first() {
    let root = root().await;
    let accounts = &root.world.accounts;
    let key = accounts
        .api_keys()
        .create_key(&root.account, "k", now_ms())
        .unwrap();
    let works = || accounts.api_keys().authenticate(&key.key, now_ms()).is_ok();
    let path = |act: &str| root.path(&format!("keys/{}/{act}", key.key_id));
    let page = root.path("");
    let page = page.trim_end_matches('/');
    for (act, question, shown) in [
        ("disable", Some("Disable this key?"), Some("enable")),
        ("enable", None, Some("disable")),
        ("revoke", Some("Revoke this key?"), None),
    ] {
        let worked = works();
        let path = path(act);
        if let Some(question) = question {
            let asked = root.post(&path, "").await;
            assert_eq!(asked.status, 200, "{act}");
            assert!(asked.body.contains(question), "{}", asked.body);
            assert!(asked.body.contains("a@example.com"), "whose key it is");
            assert_eq!(works(), worked, "{act} before the answer");
        }
        let fields = if question.is_some() {
            "confirmed=yes"
        } else {
            ""
        };
        let done = root.post(&path, fields).await;
        assert_eq!(done.status, 303, "{act}: {}", done.body);
        assert_eq!(works(), act == "enable", "{act}");
        let body = root.get(page).await.body;
        for other in ["enable", "disable", "revoke"] {
            let is_offered = body.contains(&format!("/keys/{}/{other}\"", key.key_id));
            let is_due = shown.is_some_and(|shown| [shown, "revoke"].contains(&other));
            assert_eq!(is_offered, is_due, "{other} after {act}");
        }
    }
    assert_eq!(root.acts(), ["key.disable", "key.enable", "key.revoke"]);
    for act in ["enable", "disable", "revoke"] {
        let again = root.post(&path(act), "confirmed=yes").await;
        assert_eq!(again.status, 404, "{act} a revoked key");
    }
}

#[tokio::test]
async fn a_key_of_another_account_is_not_reached_and_the_password_is_asked_for() {
    let root = root().await;
    let accounts = &root.world.accounts;
    let admin = accounts.find("root@example.com").unwrap().unwrap().id;
    let own = accounts
        .api_keys()
        .create_key(&admin, "own", now_ms())
        .unwrap();
    let key = accounts
        .api_keys()
        .create_key(&root.account, "k", now_ms())
        .unwrap();
    for act in ["enable", "disable", "revoke"] {
        let path = root.path(&format!("keys/{}/{act}", own.key_id));
        let refused = root.post(&path, "confirmed=yes").await;
        assert_eq!(refused.status, 404, "{act}");
    }
    let root = root.later();
    let path = root.path(&format!("keys/{}/revoke", key.key_id));
    for password in ["", "wrong"] {
        let fields = format!("confirmed=yes&password={password}");
        let refused = root.post(&path, &fields).await;
        assert_eq!(refused.status, 403);
        refused.has_fault_at("key_password");
    }
    assert!(root.acts().is_empty());
    let asked = root.post(&path, &format!("password={PASSWORD}")).await;
    assert_eq!(asked.status, 200);
    assert!(!asked.body.contains(PASSWORD));
    // The password counts for the answer too.
    root.post(&path, "confirmed=yes").await.expect(303);
    let accounts = &root.world.accounts;
    assert!(
        accounts
            .api_keys()
            .authenticate(&key.key, now_ms())
            .is_err()
    );
}

#[tokio::test]
async fn a_key_is_moved_to_another_account_after_a_question() {
    let root = root().await;
    let accounts = &root.world.accounts;
    let new = NewAccount::new("b@example.com");
    let other = accounts.create_account(&new, now_ms()).unwrap().id;
    let keys = accounts.api_keys();
    let key = keys.create_key(&root.account, "k", now_ms()).unwrap();
    let payer = || keys.authenticate(&key.key, now_ms()).unwrap().account_id;
    let path = root.path(&format!("keys/{}/move", key.key_id));
    for (fields, status, words) in [
        ("to=", 422, "Enter the id or e-mail"),
        ("to=nobody@example.com", 422, "No account has"),
        ("to=b@example.com&member=nobody", 422, "No account has"),
        ("to=b@example.com", 200, "Move this key?"),
        ("to=root@example.com&confirmed=yes", 409, "administrator"),
    ] {
        let refused = root.post(&path, fields).await;
        assert_eq!(refused.status, status, "{fields}");
        refused.shows(words);
    }
    assert_eq!(*payer(), *root.account);
    let refused = root
        .post(&path, "to=b@example.com&member=z@example.com")
        .await;
    refused.has_fault_at("move_member");
    refused.keeps("move_to", "b@example.com");
    let moved = root.post(&path, "to=b@example.com&confirmed=yes").await;
    let page = format!("/dashboard/operator/accounts/{other}#keys");
    assert_eq!((moved.status, &moved.headers["location"]), (303, &page));
    assert_eq!(*payer(), *other);
    let sentence = "moved the key ‘k’ from a@example.com to b@example.com";
    for account in ["a@example.com", "b@example.com"] {
        let log = format!("/dashboard/operator/audit?account={account}");
        root.get(&log).await.shows(sentence);
    }
}

#[tokio::test]
async fn a_suspension_asks_first() {
    let root = root().await;
    let asked = root.post(&root.path("suspend"), "").await;
    assert_eq!(asked.status, 200);
    assert!(asked.body.contains("Suspend this account?"));
    assert!(root.acts().is_empty());
    let done = root.post(&root.path("suspend"), "confirmed=yes").await;
    assert_eq!(done.status, 303);
    assert_eq!(root.acts(), ["account.suspend"]);
}

#[tokio::test]
async fn the_page_of_an_account_names_its_merge_which_nothing_but_its_command_ends() {
    let root = root().await;
    let accounts = &root.world.accounts;
    let other = accounts.create_account(&NewAccount::new("b@example.com"), now_ms());
    let other = other.unwrap().id;
    let suspended = AccountStatus::Suspended;
    accounts.set_status(&root.account, suspended).unwrap();
    let by = Actor {
        actor: "uid 0".to_owned(),
        address: String::new(),
    };
    let acting = accounts.with_actor(&by, now_ms());
    acting.start_merge(&root.account, &other, None).unwrap();
    let command = format!("account merge {} --into {other}", root.account);
    let page = root.path("");
    let page = root.get(page.trim_end_matches('/')).await;
    assert!(page.inside("merge").contains(&command), "{}", page.body);
    let delete = "confirmation=a@example.com&confirmed=yes";
    let credits = "kind=grant&credits=5&ref=late&confirmed=yes";
    for (act, fields) in [("resume", ""), ("delete", delete), ("post", credits)] {
        let refused = root.post(&root.path(act), fields).await;
        assert_eq!(refused.status, 409, "{act}: {}", refused.body);
        refused.shows("being merged into");
    }
    assert_eq!(root.balance(), "0");
}
