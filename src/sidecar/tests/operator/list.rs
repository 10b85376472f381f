//! Tests the operators' list of accounts: its search, its amounts and its sums.

use super::*;
use accounts::Actor;
use credits::money::Micro;

/// Path of an account's page, up to its id.
const ACCOUNT_LINK: &str = "/dashboard/operator/accounts/acct_";

/// Number of accounts in the list of a page.
fn count_rows(page: &TestResponse) -> usize {
    page.body.matches(ACCOUNT_LINK).count()
}

fn many_accounts(root: &Root, count: usize) {
    for index in 0..count {
        let email = format!("many{index:02}@example.com");
        let new = NewAccount::new(&email);
        root.world.accounts.create_account(&new, now_ms()).unwrap();
    }
}

/// The cell of a column in the only row of the list.
fn cell(page: &TestResponse, column: &str) -> String {
    assert_eq!(count_rows(page), 1);
    let (_, rest) = page
        .body
        .split_once(&format!("data-label=\"{column}\""))
        .unwrap();
    let (_, rest) = rest.split_once('>').unwrap();
    rest.split_once("</td>").unwrap().0.to_owned()
}

#[tokio::test]
async fn accounts_come_in_pages_of_fifty_and_are_found_by_any_part() {
    let root = root().await;
    many_accounts(&root, 60);
    let all = root.get("/dashboard/operator/accounts").await;
    assert_eq!(count_rows(&all), 50);
    let (before, _) = all.body.split_once("rel=\"next\"").unwrap();
    let (_, next) = before.rsplit_once("href=\"").unwrap();
    let next = next.split('"').next().unwrap();
    let next = next.replace("&amp;", "&").replace("&#38;", "&");
    assert_eq!(count_rows(&root.get(&next).await), 12);

    let accounts = &root.world.accounts;
    let key = accounts
        .api_keys()
        .create_key(&root.account, "k", now_ms())
        .unwrap();
    let shown = accounts
        .api_keys()
        .keys(&root.account)
        .unwrap()
        .remove(0)
        .shown;
    let ends: String = shown.chars().skip(shown.chars().count() - 4).collect();
    for (q, count) in [
        ("many1", 10),
        ("ANY1", 10),
        ("A@EX", 1),
        (&root.account[..], 1),
        (&key.key_id[4..], 1),
        (&ends, 1),
        ("nobody", 0),
        ("%25", 0),
        ("_", 62),
        ("many__", 0),
        ("'", 0),
    ] {
        let found = root
            .get(&format!("/dashboard/operator/accounts?q={q}"))
            .await;
        assert_eq!(found.status, 200);
        assert_eq!(count_rows(&found), count.min(50), "{q}");
    }
    let longest = "x".repeat(254);
    let found = root
        .get(&format!("/dashboard/operator/accounts?q={longest}"))
        .await;
    assert_eq!((found.status, count_rows(&found)), (200, 0));
    let refused = root
        .get(&format!("/dashboard/operator/accounts?q={longest}x"))
        .await;
    assert_eq!((refused.status, count_rows(&refused)), (422, 0));
    assert!(refused.body.contains("at most 254 characters"));
}

#[tokio::test]
async fn the_list_has_balances_and_spends_and_their_sums() {
    let root = root().await;
    many_accounts(&root, 1);
    let billing = &root.world.billing;
    let empty = root.get("/dashboard/operator").await;
    for sum in ["balances", "spent-today", "spent", "writeoffs"] {
        assert_eq!(empty.inside(sum), "0", "{sum}");
    }
    billing
        .corrections()
        .grant(&root.account, Micro::new(5_000_000), "r", now_ms())
        .unwrap();
    // A trial that has ended is no balance, also before its lapse is entered.
    let now = now_ms();
    let trial = |ends_at_ms| credits::trial::Trial {
        credits: Micro::new(1_000_000),
        ends_at_ms,
    };
    let tried = root.world.accounts.find("many00@example.com").unwrap();
    let tried = tried.unwrap().id;
    billing
        .open_account(&tried, Some(trial(now + 60_000)), now)
        .unwrap();
    let ids = [root.account.clone(), tried.clone(), "acct_x".to_owned()];
    let balances = |at| billing.ledger().rows().balances(&ids, at).unwrap();
    assert_eq!(balances(now)[&tried], Micro::new(1_000_000));
    assert_eq!(balances(now + 60_000)[&tried], Micro::ZERO);
    assert_eq!(balances(now).len(), 2);
    let sum = |at| billing.ledger().rows().balance_total(at).unwrap().get();
    assert_eq!([sum(now), sum(now + 60_000)], [6_000_000, 5_000_000]);

    // Each of them costs 0.001 credits of the trial.
    spend(&root.world, "many00@example.com", 4);
    let spent = billing.ledger().pages().spend_since(&ids, 0).unwrap();
    assert_eq!(spent.get(&tried).map(|spent| spent.get()), Some(4_000));
    use crate::sidecar::display::{BalanceAmount, Credits};
    let amount = |micro| Credits(Micro::new(micro)).to_string();
    let balance = |micro| BalanceAmount(Micro::new(micro)).to_string();
    let row = root.get("/dashboard/operator/accounts?q=many00").await;
    assert_eq!(cell(&row, "Spent in 30 days"), amount(4_000));
    assert_eq!(cell(&row, "Balance"), balance(996_000));
    let other = root
        .get("/dashboard/operator/accounts?q=a@example.com")
        .await;
    assert_eq!(cell(&other, "Spent in 30 days"), "0");
    assert_eq!(cell(&other, "Balance"), balance(5_000_000));
    // Nobody else spent anything.
    let overview = root.get("/dashboard/operator").await;
    for (sum, text) in [("spent", amount(4_000)), ("balances", balance(5_996_000))] {
        let shown = format!("data-testid=\"{sum}\">{text}</dd>");
        assert!(overview.body.contains(&shown), "{shown}: {}", overview.body);
    }
    let accounts = &root.world.accounts;
    let suspended = AccountStatus::Suspended;
    accounts.set_status(&root.account, suspended).unwrap();
    let page = root.get("/dashboard/operator").await;
    assert_eq!(page.inside("accounts-active"), "2");
    assert_eq!(page.inside("accounts-suspended"), "1");
}

/// The first words of the e-mails in the list, in its order.
fn order(page: &TestResponse) -> Vec<&str> {
    let rows = page.body.split(ACCOUNT_LINK).skip(1);
    rows.map(|row| {
        let (_, email) = row.split_once('>').unwrap();
        email.split_once('@').unwrap().0
    })
    .collect()
}

#[tokio::test]
async fn accounts_are_ordered_by_what_the_reader_chooses() {
    let root = root().await;
    many_accounts(&root, 2);
    let billing = &root.world.billing;
    let id = |email: &str| root.world.accounts.find(email).unwrap().unwrap().id;
    let credits = [("many00@example.com", 5), ("many01@example.com", 9)];
    for (email, credits) in credits {
        let id = id(email);
        billing.open_account(&id, None, now_ms()).unwrap();
        let amount = Micro::new(credits * 1_000_000);
        let corrections = billing.corrections();
        corrections.grant(&id, amount, email, now_ms()).unwrap();
    }
    spend(&root.world, "many00@example.com", 2);
    for (sort, expected) in [
        ("email", ["a", "many00", "many01", "root"]),
        ("spent", ["many00", "root", "a", "many01"]),
        ("balance", ["many01", "many00", "root", "a"]),
    ] {
        let page = root
            .get(&format!("/dashboard/operator/accounts?sort={sort}"))
            .await;
        assert_eq!(order(&page)[0], expected[0], "{sort}");
        if sort == "email" {
            assert_eq!(order(&page), expected, "{sort}");
        }
    }
    let found = root
        .get("/dashboard/operator/accounts?sort=balance&q=many")
        .await;
    assert_eq!(order(&found), ["many01", "many00"]);
    assert_eq!(found.inside("found"), "(2)");
    assert!(!found.body.contains("kind="), "there are no organisations");
    let by = Actor {
        actor: "uid 0".to_owned(),
        address: String::new(),
    };
    let acting = root.world.accounts.with_actor(&by, now_ms());
    acting
        .create_organisation("Acme", &id("many00@example.com"))
        .unwrap();
    for (kind, expected) in [("", "(5)"), ("person", "(4)"), ("organisation", "(1)")] {
        let path = format!("/dashboard/operator/accounts?sort=balance&kind={kind}");
        let page = root.get(&path).await;
        assert_eq!(page.inside("found"), expected, "{kind}");
        assert_eq!(page.body.contains(">Acme<"), kind != "person");
        page.shows("&#38;kind=organisation\"");
    }
}
