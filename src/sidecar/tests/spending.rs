//! The spending page: what it divides, for whom, and how it answers a range that is none.

use super::*;
use crate::sidecar::display::Credits;
use base::clock::{month_number, month_start_ms};
use credits::money::Micro;
use ledger::{Ending, EndingDetail, Ledger, RequestOutcome};
use llm_protocol::usage::Usage;

const DAY_MS: i64 = 86_400_000;

/// Posts one debit, of a tenth of a credit for each of `tenths`.
fn debit(world: &World, account: &str, key_id: &str, model: &str, at_ms: i64, tenths: i64) {
    let ledger = Ledger::open(world.folder.path()).unwrap();
    let request = format!("req_{key_id}_{model}_{at_ms}");
    let price = world.price();
    ledger.rows().store_price(&price, 0).unwrap();
    let plain = Ending::in_test(&request, account, at_ms, RequestOutcome::Completed);
    let ending = Ending {
        trial: Micro::new(tenths * 100_000),
        detail: EndingDetail {
            key_id: key_id.into(),
            model: model.into(),
            price_version: price.version.clone(),
            ..plain.detail
        },
        ..plain
    };
    let entered = ledger.enter_endings(&[(&ending, Default::default())], "");
    assert_eq!(entered.unwrap(), 1);
}

/// The rows of the table of groups, as their texts.
fn groups(page: &TestResponse) -> Vec<String> {
    assert_eq!(page.status, 200, "{}", page.body);
    let Some((_, table)) = page.body.split_once("data-testid=\"groups\"") else {
        return Vec::new();
    };
    let table = table.split_once("</table>").unwrap().0;
    let row = |row: &str| {
        let mut text = String::new();
        let mut is_tag = false;
        for letter in row.split_once("</tr>").unwrap().0.chars() {
            match letter {
                '<' => is_tag = true,
                '>' => {
                    is_tag = false;
                    text.push(' ');
                }
                _ if !is_tag => text.push(letter),
                _ => {}
            }
        }
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    table.split("<tr role=\"row\"").skip(2).map(row).collect()
}

#[tokio::test]
async fn last_month_by_key_is_one_click_from_the_overview() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let stranger = world.sign_up("b@example.com").await;
    let accounts = world.accounts.directory().list().unwrap();
    let id = |email: &str| {
        let account = accounts.iter().find(|account| account.email == email);
        account.unwrap().id.clone()
    };
    let (account, other) = (id("a@example.com"), id("b@example.com"));
    let now_ms = now_ms();
    let key = |account: &str, name: &str| {
        let key = world.accounts.api_keys().create_key(account, name, now_ms);
        key.unwrap().key_id
    };
    let (ci, laptop) = (key(&account, "CI <b>"), key(&account, "Laptop"));
    let last_month = month_start_ms(month_number(now_ms)).unwrap() - DAY_MS;
    debit(&world, &account, &ci, "alpha-opus-4-7", last_month, 30);
    debit(&world, &account, &laptop, "beta-5.2", last_month, 10);
    debit(
        &world,
        &account,
        &laptop,
        "alpha-opus-4-7",
        last_month + 1,
        5,
    );
    debit(&world, &account, &ci, "beta-5.2", now_ms, 7);
    debit(
        &world,
        &other,
        &key(&other, "Theirs"),
        "theirs",
        last_month,
        9,
    );
    assert!(
        world
            .accounts
            .api_keys()
            .revoke_key(Some(&account), &laptop, now_ms)
            .unwrap()
    );

    let overview = world.get("/dashboard", &cookie).await;
    let (before, _) = overview.body.split_once(">Last month by key<").unwrap();
    let link = before
        .rsplit_once("href=\"")
        .unwrap()
        .1
        .replace("&amp;", "&");
    let page = world.get(link.trim_end_matches('"'), &cookie).await;
    let rows = groups(&page);
    assert_eq!(rows.len(), 2, "{rows:?}");
    let is = |row: &str, parts: &[&str]| {
        let found = parts.iter().all(|part| row.contains(part));
        assert!(found, "{row}");
    };
    is(&rows[0], &["CI &#60;b&#62;", "3.0000", "66 %", "Activity"]);
    is(&rows[1], &["Laptop (revoked)", "1.5000", "33 %", "0.7500"]);
    assert!(page.body.contains("4.5000"), "the sum");
    assert!(!page.body.contains("Theirs") && !page.body.contains("theirs"));
    assert!(
        !page.body.contains("data-refresh"),
        "a month that is over does not change"
    );
    // Each row leads to its responses.
    let (_, link) = page.body.split_once("\"activity?from=").unwrap();
    let link = link
        .split_once('"')
        .unwrap()
        .0
        .replace("&#38;", "&")
        .replace("&amp;", "&");
    let activity = world
        .get(&format!("/dashboard/activity?from={link}"), &cookie)
        .await;
    assert_eq!(activity.body.matches("Receipt of ").count(), 1, "{link}");

    let models = world
        .get("/dashboard/spending?range=last-month", &cookie)
        .await;
    let rows = groups(&models);
    is(&rows[0], &["alpha-opus-4-7", "3.5000", "77 %"]);
    is(&rows[1], &["beta-5.2", "1.0000", "22 %"]);
    let now = world
        .get("/dashboard/spending?range=24h&by=key", &cookie)
        .await;
    is(&groups(&now)[0], &["CI &#60;b&#62;", "0.7000", "100 %"]);
    assert!(now.body.contains("data-refresh") && now.body.matches("<tr data-x").count() == 24);
    let (_, chart) = now.body.split_once("<figure data-chart=\"times\"").unwrap();
    assert!(
        !chart.split_once('>').unwrap().0.contains("hidden"),
        "its room is reserved"
    );
    let days = world
        .get("/dashboard/spending?range=7d&by=day", &cookie)
        .await;
    assert!(groups(&days).is_empty() && days.body.matches("<tr data-x").count() == 7);
    // Another account's key and model have no rows.
    let theirs = world
        .get("/dashboard/spending?range=last-month&by=key", &stranger)
        .await;
    assert_eq!(groups(&theirs).len(), 1);
}

#[tokio::test]
async fn a_range_that_is_none_gets_the_form_again_and_ten_years_are_shown() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    for (query, field, text) in [
        ("range=year", "", "Unknown range"),
        ("by=vendor", "", "by model, by key or by day"),
        ("range=custom", "from", "a first and a last day"),
        ("from=2026-02-30&to=2026-03-01", "from", "of the calendar"),
        ("from=2026-03-02&to=2026-03-01", "from", "must not be after"),
        ("from=1990-01-01&to=2001-03-01", "from", "at most ten years"),
        (
            "from=2010-02-27&to=2020-02-28",
            "from",
            "2016-11-23 to 2026-11-23",
        ),
        ("from=2026-01-01&to=9999-01-01", "to", "in the future"),
        (
            "from=%22%3E%3Cscript%3E&to=2026-03-01",
            "from",
            "of the calendar",
        ),
    ] {
        let path = format!("/dashboard/spending?{query}");
        let page = world.get(&path, &cookie).await;
        assert_eq!(page.status, 422, "{query}");
        page.has_fault_at(field);
        assert!(page.body.contains(text), "{query}: {}", page.body);
        assert!(page.body.contains("name=\"from\"") && !page.body.contains("<script>"));
    }
    for query in ["", "range=&by=", "from=2010-02-28&to=2020-02-28", "model=x"] {
        let path = format!("/dashboard/spending?{query}");
        let page = world.get(&path, &cookie).await;
        assert_eq!(page.status, 200, "{query}");
        assert!(page.body.contains("Nothing was spent"), "{query}");
    }
}

#[tokio::test]
async fn the_page_says_what_caches_saved_or_cost() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    let account = world.accounts.directory().list().unwrap()[0].id.clone();
    let saved = async || {
        let page = world.get("/dashboard/spending?range=7d", &cookie).await;
        assert_eq!(page.status, 200, "{}", page.body);
        let (_, value) = page.body.split_once("data-testid=\"saved\">").unwrap();
        value.split_once("</dd>").unwrap().0.to_owned()
    };
    assert_eq!(saved().await, "0");
    let ledger = Ledger::open(world.folder.path()).unwrap();
    let price = world.price();
    ledger.rows().store_price(&price, 0).unwrap();
    let mut expected = Micro::ZERO;
    for (request, cache_read, cache_write_5m, at_ms) in [
        ("req_1", 0, 4_000, now_ms()),
        ("req_2", 3_000, 100, now_ms()),
        ("req_3", 900_000, 0, now_ms() - 8 * DAY_MS),
    ] {
        let plain = Ending::in_test(request, &account, at_ms, RequestOutcome::Completed);
        let usage = Usage {
            cache_read,
            cache_write_5m,
            ..Usage::default()
        };
        if request != "req_3" {
            expected = expected.plus(credits::pricing::cache_savings(&usage, &price));
        }
        let ending = Ending {
            detail: EndingDetail {
                usage,
                price_version: price.version.clone(),
                ..plain.detail
            },
            ..plain
        };
        ledger
            .enter_endings(&[(&ending, Default::default())], "")
            .unwrap();
    }
    assert_ne!(expected, Micro::ZERO);
    assert_eq!(saved().await, Credits(expected).to_string());
}
