//! Tests what operators read of accounts: with a line in the audit log, and found by any id.

use super::*;

const REQUEST: &str = "req_00000000000000000000000000000001";

/// A viewer's session.
fn viewer(root: &Root) -> String {
    let new = NewAccount {
        role: Role::Viewer,
        ..NewAccount::new("viewer@example.com")
    };
    let ledger = root.world.billing.ledger();
    let viewer = open_account(&root.world.accounts, ledger, &new, now_ms()).unwrap();
    let logins = root.world.accounts.logins();
    let token = logins.create_session(&viewer.id, now_ms()).unwrap().token;
    format!("gw-session={token}")
}

#[tokio::test]
async fn an_operator_reads_any_account_and_the_audit_log_says_so_once() {
    let root = root().await;
    spend(&root.world, "a@example.com", 2);
    let receipt = format!("/dashboard/operator/activity/{REQUEST}");
    let page = root.get(&receipt).await;
    assert_eq!(page.status, 200);
    assert!(
        page.inside("operator-reads").contains("a@example.com")
            || page.body.contains("You read the account")
    );
    let activity = root.get(&root.path("activity")).await;
    assert!(
        activity.body.contains(&receipt),
        "a row leads to its receipt"
    );
    assert!(!activity.body.contains("\"/dashboard/activity/"));
    for what in ["spending", "activity.csv"] {
        assert_eq!(root.get(&root.path(what)).await.status, 200, "{what}");
    }
    let read = ["account.read"; 4];
    assert_eq!(root.acts(), read);
    for _ in 0..2 {
        root.get(&receipt).await;
        root.get(&root.path("activity")).await;
    }
    assert_eq!(root.acts(), read, "not one line for each reload");
    let lines = root.world.accounts.audit_log().rows(None, 4).unwrap();
    assert!(lines.iter().all(|line| line.object == root.account));
    assert!(lines[3].after.contains(REQUEST));

    let viewer = viewer(&root);
    assert_eq!(root.world.get(&receipt, &viewer).await.status, 200);
    assert_eq!(root.acts().len(), 5, "another reader");
    // A holder has no such page, and none of another account.
    let holder = root.world.sign_up("holder@example.com").await;
    for path in [&receipt, &root.path("activity")] {
        assert_eq!(root.world.get(path, &holder).await.status, 404);
    }
    assert_eq!(root.acts().len(), 5);
    root.get("/dashboard/operator/activity/req_none")
        .await
        .expect(404);
}

#[tokio::test]
async fn every_id_leads_somewhere_or_is_named() {
    let root = root().await;
    let accounts = &root.world.accounts;
    spend(&root.world, "a@example.com", 2);
    let keys = accounts.api_keys();
    let key = keys.create_key(&root.account, "ci", now_ms()).unwrap();
    let corrections = root.world.billing.corrections();
    let amount = credits::money::Micro::new(7_000_000);
    corrections
        .grant(&root.account, amount, "invoice 7", now_ms())
        .unwrap();
    let version = root.world.price().version;
    let account = format!("/dashboard/operator/accounts/{}", root.account);
    let receipt = format!("/dashboard/operator/activity/{REQUEST}");
    let shown = keys.keys(&root.account).unwrap().remove(0).shown;
    for (term, expected) in [
        (REQUEST, receipt.as_str()),
        (&root.account, &account),
        ("a@example.com", &account),
        ("A@EXAMPLE", &account),
        (&key.key_id, &format!("{account}?key_q={0}#{0}", key.key_id)),
        (&key.key, &account),
        (&shown.replace('…', "%E2%80%A6"), &account),
        (&version, &format!("/dashboard/operator/prices/{version}")),
        ("invoice+7", &format!("{account}?entry=")),
        ("c0", &format!("{account}/conversations/c0")),
    ] {
        let found = root
            .get(&format!("/dashboard/operator/search?q={term}"))
            .await;
        assert_eq!(found.status, 303, "{term}: {}", found.body);
        let place = &found.headers["location"];
        assert!(place.starts_with(expected), "{term}: {place}");
        assert!(!place.contains(&key.key));
        assert_eq!(root.get(place).await.status, 200, "{place}");
    }
    for (term, answer) in [
        ("req_nobody", "the id of a request"),
        ("acct_nobody", "the id of an account"),
        ("key_nobody", "the id of a key"),
        ("pv_nobody", "the id of a price list"),
        ("inv_nobody", "the id of an invitation"),
        ("msg_nobody", "a webhook"),
        ("gw-sk-nobody", "would be a key"),
        ("nobody", "must be whole"),
        ("", "1 to 254"),
    ] {
        let page = root
            .get(&format!("/dashboard/operator/search?q={term}"))
            .await;
        assert_eq!(page.status, 200);
        assert!(page.inside("answer").contains(answer), "{term}");
    }
    let long = "x".repeat(255);
    let page = root
        .get(&format!("/dashboard/operator/search?q={long}"))
        .await;
    assert_eq!(page.status, 422);
}

#[tokio::test]
async fn a_price_list_says_what_it_was_and_when_it_held() {
    let root = root().await;
    let world = &root.world;
    let old = world.price();
    let new = credits::price_list::PriceList::new(
        [9, 1, 2, 3, 4].map(|credits| credits::money::Micro::new(credits * 1_000_000)),
    );
    let record = |prices: &[(&str, &credits::price_list::PriceList)], at_ms| {
        let prices = prices.iter().copied();
        world.accounts.record_prices(prices, at_ms).unwrap()
    };
    let now = now_ms();
    assert_eq!(record(&[("m", &old), ("n", &old)], now - 9_000), 2);
    assert_eq!(record(&[("m", &old), ("n", &old)], now - 8_000), 0);
    assert_eq!(record(&[("m", &new), ("n", &old)], now - 7_000), 1);
    assert_eq!(record(&[("m", &new)], now - 6_000), 1);
    assert_eq!(root.acts(), ["prices.change"; 3]);
    let billing = &world.billing;
    billing
        .store_prices(world.state.settings.load().catalog.models(), now)
        .unwrap();
    let page = root
        .get(&format!("/dashboard/operator/prices/{}", old.version))
        .await;
    assert_eq!(page.status, 200);
    let periods = page.body.split("data-testid=\"periods\"").nth(1).unwrap();
    let periods = periods.split("</ul>").next().unwrap();
    assert_eq!(periods.matches("<li>").count(), 2);
    assert!(!periods.contains("until now"));
    root.get("/dashboard/operator/prices/pv_0")
        .await
        .expect(404);
}
