//! The statement: every change of a balance on a page and in a file, for its holder alone.

use super::*;
use credits::money::Micro;
use ledger::{BalanceChange, BalanceChangeKind};

/// An account with a trial, a top-up with a formula as its reference, and some responses.
async fn holder(world: &World) -> (String, String) {
    let cookie = world.sign_up("a@example.com").await;
    let account = spend(world, "a@example.com", 3);
    let change = |kind, reference, micro| {
        let change = BalanceChange {
            kind,
            reference,
            account: &account,
            amount: Micro::new(micro),
            actor: Some("acct_secret_operator"),
            at_ms: now_ms(),
        };
        assert!(
            world
                .billing
                .corrections()
                .post_change(&change)
                .unwrap()
                .is_new
        );
    };
    change(BalanceChangeKind::TopUp, "=cmd|'/c calc'!A0", 20_000_000);
    let reason = "said \"so\", <b>twice</b>\nand more";
    change(BalanceChangeKind::Adjust { reason }, "fix-1", -1_500_000);
    (cookie, account)
}

#[tokio::test]
async fn a_statement_names_every_change_and_no_operator() {
    let world = world(&[]).await;
    let (cookie, _) = holder(&world).await;
    let stranger = world.sign_up("b@example.com").await;
    let page = world.get("/dashboard/statement", &cookie).await;
    assert_eq!(page.status, 200, "{}", page.body);
    for part in [
        "Top-up",
        "Correction",
        "Trial",
        "3 responses",
        "fix-1",
        ">20<",
        ">-1.5<",
        ">318.497<",
        "&lt;b&gt;twice",
    ] {
        let escaped = part.replace("&lt;", "&#60;").replace("&gt;", "&#62;");
        assert!(
            page.body.contains(part) || page.body.contains(&escaped),
            "{part} is missing: {}",
            page.body
        );
    }
    assert!(!page.body.contains("acct_secret_operator") && !page.body.contains("trial:acct"));
    assert!(!page.body.contains("do not add up"));
    let months = page.body.split_once("data-testid=\"months\"").unwrap().1;
    let months = months.split_once("</table>").unwrap().0;
    assert_eq!(months.matches("<tr").count(), 2, "a head and this month");
    // The line of a day leads to its responses.
    let (before, _) = page.body.split_once("\">3 responses").unwrap();
    let link = before.rsplit_once("href=\"").unwrap().1;
    let link = link.replace("&#38;", "&").replace("&amp;", "&");
    let activity = world.get(&link, &cookie).await;
    assert_eq!(activity.body.matches("Receipt of ").count(), 3, "{link}");

    let theirs = world.get("/dashboard/statement", &stranger).await;
    assert!(!theirs.body.contains("Top-up") && theirs.body.contains("Trial"));
    let file = world.get("/dashboard/statement.csv", &stranger).await;
    assert!(!file.body.contains("Top-up") && file.body.contains("\"Trial\""));
}

#[tokio::test]
async fn a_statement_s_file_adds_up_and_holds_no_formula() {
    let world = world(&[]).await;
    let (cookie, account) = holder(&world).await;
    let file = world.get("/dashboard/statement.csv", &cookie).await;
    assert_eq!(file.status, 200);
    assert_eq!(file.headers["content-type"], "text/csv; charset=utf-8");
    let name = &file.headers["content-disposition"];
    assert!(
        name.starts_with("attachment; filename=\"statement-20") && name.ends_with(".csv\""),
        "{name}"
    );
    // The file is sent in chunks, whose sizes stand between its pieces.
    let start = file.body.find("time,kind,").unwrap();
    let text = &file.body[start..];
    assert!(text.contains("\"'=cmd|'/c calc'!A0\""), "{text}");
    assert!(
        text.contains("\"said \"\"so\"\", <b>twice</b>\nand more\""),
        "{text}"
    );
    assert!(!text.contains("acct_"), "{text}");
    let changes = text
        .lines()
        .filter(|line| line.starts_with("\"20") || line.starts_with("and more"));
    // Time, kind, reference, reason and request are texts; the change is the last but one.
    let changes: Vec<Micro> = changes
        .filter_map(|line| line.rsplit(',').nth(1)?.parse().ok())
        .collect();
    assert_eq!(changes.len(), 4, "{text}");
    let sum = changes.into_iter().fold(Micro::ZERO, Micro::plus);
    let balance = world.billing.balance(&account, now_ms()).unwrap();
    assert_eq!(sum, balance.balance);
}

#[tokio::test]
async fn a_period_that_is_none_gets_the_form_again() {
    let world = world(&[]).await;
    let cookie = world.sign_up("a@example.com").await;
    for (query, field, text) in [
        ("from=2020-13", "from", "Write a month"),
        ("to=2020-13", "to", "Write a month"),
        ("from=2020-02&to=2020-01", "from", "must not be after"),
        ("from=1990-01&to=2001-01", "from", "at most ten years"),
        ("to=9000-01", "to", "in the future"),
        ("from=%22%3E%3Cscript%3E", "from", "Write a month"),
    ] {
        for path in ["/dashboard/statement", "/dashboard/statement.csv"] {
            let page = world.get(&format!("{path}?{query}"), &cookie).await;
            assert_eq!(page.status, 422, "{path}?{query}");
            page.has_fault_at(field);
            assert!(page.body.contains(text), "{path}?{query}: {}", page.body);
            assert!(page.body.contains("name=\"from\"") && !page.body.contains("<script>"));
            // A page, not a file in the folder of downloads.
            assert!(!page.headers.contains_key("content-disposition"));
        }
    }
    let bad = world.get("/dashboard/statement?before=x", &cookie).await;
    assert_eq!(bad.status, 404);
    let past = world
        .get("/dashboard/statement?from=2001-01&to=2010-12", &cookie)
        .await;
    assert_eq!(past.status, 200);
    assert!(past.body.contains("No changes in this time"));
}
