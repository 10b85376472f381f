//! Tests the page of the audit log: lines are sentences, and are found by who, whom, what and when.

use super::*;
use credits::limits::{Period, SpendLimit};
use credits::money::Micro;
use serde_json::json;

/// The text of each line of the page, newest first.
fn lines(page: &TestResponse) -> Vec<String> {
    let rows = page
        .body
        .split("data-label=\"What\" class=\"words what a\">")
        .skip(1);
    rows.map(|row| {
        let cell = row.split("</td>").next().unwrap();
        let cell = cell.split(" <a ").next().unwrap();
        let cell = cell.split(" <span ").next().unwrap();
        cell.replace("<strong>", "").replace("</strong>", "")
    })
    .collect()
}

fn limit(credits: i64) -> serde_json::Value {
    let limit = SpendLimit {
        credits: Micro::new(credits * 1_000_000),
        period: Period::Day,
    };
    json!({"settings": accounts::KeySettings {
        spend_limit: Some(limit),
        ..Default::default()
    }})
}

#[tokio::test]
async fn the_filter_lists_no_action_of_a_part_that_is_off() {
    let root = root().await;
    let page = root
        .world
        .get("/dashboard/operator/audit", &root.cookie)
        .await;
    assert!(page.body.contains(">Account created<"), "{}", page.body);
    for text in [
        "Payment",
        "Codes created",
        "Automatic top-up",
        "Organisation",
    ] {
        assert!(!page.body.contains(&format!(">{text}")), "{text}");
    }
    // Lines from a time when it was on are found.
    let path = "/dashboard/operator/audit?act=payment.refund";
    let page = root.world.get(path, &root.cookie).await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains(">Payment refunded<"), "{}", page.body);
}

#[tokio::test]
async fn a_line_is_a_sentence_with_emails_and_names_and_no_json() {
    let root = root().await;
    let accounts = &root.world.accounts;
    let keys = accounts.api_keys();
    let key = keys.create_key(&root.account, "ci", now_ms()).unwrap();
    let anna = accounts.find("root@example.com").unwrap().unwrap().id;
    let by = Actor {
        actor: anna,
        address: "127.0.0.1".into(),
    };
    let acting = accounts.with_actor(&by, now_ms());
    let set = |before: &serde_json::Value, after: &serde_json::Value| {
        let done = || Ok::<_, ledger::StoreError>(());
        acting
            .record_setting_then_run("key.set", &key.key_id, (before, after), done)
            .unwrap();
    };
    let none = json!({"settings": {}});
    set(&limit(5), &limit(2));
    set(&limit(2), &limit(5));
    set(&none, &limit(2));
    set(&limit(2), &none);
    let models = json!({"settings": {"allowed_models": ["m"], "rates": {"concurrent": 3}}});
    set(&none, &models);
    let rates = accounts::RateSettings {
        requests_per_minute: Some(60),
        ..Default::default()
    };
    acting.set_account_rates(&root.account, &rates).unwrap();
    acting.set_role(&root.account, Role::Viewer).unwrap();
    acting
        .record_daily("account.read", &root.account, &json!({"receipt": "req_1"}))
        .unwrap();
    let command = Actor {
        actor: "uid 0".into(),
        address: "command line".into(),
    };
    let acting = accounts.with_actor(&command, now_ms());
    acting.revoke_key(&key.key_id).unwrap();
    acting
        .record("other.act", "thing", &json!({"a": 1}))
        .unwrap();

    let page = root.get("/dashboard/operator/audit").await;
    let root_did = |what: &str| format!("root@example.com {what}");
    let key = "the key ‘ci’ of a@example.com";
    assert_eq!(
        lines(&page),
        [
            "The command line (uid 0) other.act thing".to_owned(),
            format!("The command line (uid 0) revoked {key}"),
            root_did("read the receipt req_1 of a@example.com"),
            root_did("changed the role of a@example.com from account holder to read-only operator"),
            root_did("set the rate limits of a@example.com: 60 requests a minute"),
            root_did(&format!("changed {key}: for m only, 3 concurrent requests")),
            root_did(&format!("removed the limit of {key}")),
            root_did(&format!("set the limit of {key} to 2 credits a day")),
            root_did(&format!(
                "raised the limit of {key} from 2 to 5 credits a day"
            )),
            root_did(&format!(
                "lowered the limit of {key} from 5 to 2 credits a day"
            )),
        ]
    );
    let main = page.body.split("audit-lines").nth(1).unwrap();
    assert!(!main.contains("&#34;") && !main.contains("_ms"), "no JSON");

    for (filter, count) in [
        ("by=root@example.com", 8),
        ("by=uid+0", 2),
        ("by=nobody@example.com", 0),
        ("account=a@example.com", 9),
        ("account=root@example.com", 0),
        ("act=key.set", 5),
        ("act=key.set&by=uid+0", 0),
        ("day=2000-01-01", 0),
    ] {
        let found = root
            .get(&format!("/dashboard/operator/audit?{filter}"))
            .await;
        assert_eq!(
            (found.status, lines(&found).len()),
            (200, count),
            "{filter}"
        );
    }
    let today = base::clock::rfc3339(now_ms());
    let found = root
        .get(&format!("/dashboard/operator/audit?day={}", &today[..10]))
        .await;
    assert!(lines(&found).len() > 8);
    for (field, bad) in [("day", "never"), ("act", "nothing"), ("outcome", "lost")] {
        let path = format!("/dashboard/operator/audit?{field}={bad}");
        let page = root.get(&path).await;
        assert_eq!(page.status, 422, "{path}");
        page.has_fault_at(field);
    }
}

#[tokio::test]
async fn a_row_says_what_became_of_an_attempt() {
    let root = root().await;
    let accounts = &root.world.accounts;
    let by = Actor {
        actor: "uid 0".into(),
        address: "command line".into(),
    };
    let acting = accounts.with_actor(&by, now_ms());
    let create_key = |name: &str| {
        acting.record_then_run("key.create", &root.account, &json!({"name": name}), || {
            accounts
                .api_keys()
                .create_key(&root.account, name, now_ms())
        })
    };
    let live = accounts.api_keys().keys(&root.account).unwrap().len();
    for number in i64::try_from(live).unwrap()..accounts::MAX_LIVE_KEYS {
        let name = number.to_string();
        let keys = accounts.api_keys();
        keys.create_key(&root.account, &name, now_ms()).unwrap();
    }
    create_key("one too many").map(drop).unwrap_err();
    let post = |credits: i64, reference: &str| {
        let change = ledger::BalanceChange {
            kind: match credits < 0 {
                true => ledger::BalanceChangeKind::Adjust {
                    reason: "a mistake",
                },
                false => ledger::BalanceChangeKind::Grant,
            },
            reference,
            account: &root.account,
            amount: Micro::new(credits * 1_000_000),
            actor: None,
            at_ms: now_ms(),
        };
        let billing = &root.world.state.billing;
        acting.record_then_post(&change, || billing.corrections().post_change(&change))
    };
    post(-99_999, "R-1").unwrap_err();
    assert!(post(5, "R-2").unwrap().is_new);
    assert!(!post(5, "R-2").unwrap().is_new);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let end = || -> Result<(), ledger::StoreError> { panic!("the process ends") };
        acting.record_then_run("ledger.seal", "ledger", &json!({}), end)
    }));
    ended.unwrap_err();

    let command = |what: &str| format!("The command line (uid 0) {what}");
    let page = root.get("/dashboard/operator/audit").await;
    let (refused, others): (Vec<_>, Vec<_>) = lines(&page)
        .into_iter()
        .partition(|line| line.contains("99999"));
    assert!(
        refused[0].starts_with(&command(
            "tried to deduct 99999 credits from a@example.com as a correction: a mistake, \
             reference R-1: refused: cannot deduct 99999 credits: only 0 are available"
        )),
        "{refused:?}"
    );
    assert_eq!(
        others,
        [
            command(
                "tried to seal entries of the ledger: outcome unknown: the process ended, or \
                 still works on it"
            ),
            command(
                "tried to grant 5 credits to a@example.com, reference R-2: already posted, so \
                 nothing changed"
            ),
            command("granted 5 credits to a@example.com, reference R-2"),
            command(
                "tried to create the key ‘one too many’ of a@example.com: refused: an account, or a \
                 member of an organisation, can have at most 100 active keys: revoke one first"
            ),
        ]
    );
    for (filter, count) in [
        ("outcome=done", 1),
        ("outcome=refused", 2),
        ("outcome=repeated", 1),
        ("outcome=unknown", 1),
        ("outcome=failed", 0),
        ("act=account.grant", 2),
        ("account=a@example.com&outcome=refused", 2),
    ] {
        let page = root
            .get(&format!("/dashboard/operator/audit?{filter}"))
            .await;
        assert_eq!(lines(&page).len(), count, "{filter}");
    }
    let bad = root.get("/dashboard/operator/audit?outcome=perhaps").await;
    assert_eq!(bad.status, 422);
    let report = accounts.audit_log().verify().unwrap();
    assert_eq!((report.lines, report.findings), (9, Vec::new()));
}

#[tokio::test]
async fn a_changed_price_names_the_model_and_both_prices() {
    let root = root().await;
    let accounts = &root.world.accounts;
    let list = |input: i64| {
        credits::price_list::PriceList::new(
            [input, 1, 2, 3, 4].map(|credits| Micro::new(credits * 1_000_000)),
        )
    };
    let (old, new) = (list(500), list(450));
    let record = |prices: &[(&str, &credits::price_list::PriceList)]| {
        accounts
            .record_prices(prices.iter().copied(), now_ms())
            .unwrap()
    };
    record(&[("m", &old)]);
    // A line that somebody damaged keeps no gateway from starting.
    let by = Actor {
        actor: "config file".into(),
        address: "file".into(),
    };
    let acting = accounts.with_actor(&by, now_ms());
    let damaged = json!("no prices");
    acting
        .record("prices.change", "config file", &damaged)
        .unwrap();
    record(&[("m", &new), ("n", &old)]);
    record(&[("n", &old)]);
    let page = root.get("/dashboard/operator/audit?by=config+file").await;
    assert_eq!(
        lines(&page),
        [
            "The config file changed prices: m is not offered any more",
            "The config file changed prices: m: input 500 → 450; n is new, input 500, output 4",
            "The config file changed prices",
            "The config file set the first prices, of 1 model",
        ]
    );
}

#[tokio::test]
async fn the_log_comes_in_pages_of_fifty_that_keep_the_filter() {
    let root = root().await;
    let by = Actor {
        actor: "uid 0".into(),
        address: "command line".into(),
    };
    for index in 0..60 {
        let acting = root.world.accounts.with_actor(&by, now_ms());
        let what = json!({"name": index.to_string()});
        acting.record("key.create", &root.account, &what).unwrap();
    }
    let first = root
        .get("/dashboard/operator/audit?account=a@example.com")
        .await;
    assert_eq!(lines(&first).len(), 50);
    let (before, _) = first.body.split_once("\" rel=\"next\"").unwrap();
    let (_, next) = before.rsplit_once("href=\"").unwrap();
    let next = next.replace("&#38;", "&").replace("&amp;", "&");
    let second = root.get(&next).await;
    assert_eq!(lines(&second).len(), 10);
    assert!(!second.body.contains("rel=\"next\""));
}
