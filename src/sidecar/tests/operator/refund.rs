//! Tests refunds on the operator pages: what they ask first, what they post, what they refuse.

use super::*;
use credits::money::Micro;
use credits::trial::Trial;

/// The account of the tests has spent 0.001 credits on each of four requests.
async fn root_with_spend() -> Root {
    let mut root = root().await;
    let new = NewAccount {
        trial: Some(Trial {
            credits: Micro::new(1_000_000),
            ends_at_ms: now_ms() + 3_600_000,
        }),
        ..NewAccount::new("spender@example.com")
    };
    let (accounts, billing) = (&root.world.accounts, &root.world.billing);
    root.account = open_account(accounts, billing.ledger(), &new, now_ms())
        .unwrap()
        .id;
    spend(&root.world, "spender@example.com", 4);
    root
}

fn request(number: u32) -> String {
    format!("req_{number:032x}")
}

#[tokio::test]
async fn a_refund_asks_first_and_is_posted_once() {
    let root = root_with_spend().await;
    let before = root.balance();
    let path = root.path("");
    let path = format!("{}?request={}", path.trim_end_matches('/'), request(1));
    let page = root.get(&path).await.body;
    assert!(page.contains(&format!("value=\"{}\"", request(1))));
    assert!(page.contains(&format!("?request={}#refund", request(2))));

    let fields = format!("request={}&credits=0.0004&ref=ticket 7", request(1));
    let question = root.post(&root.path("refund"), &fields).await;
    assert_eq!(question.status, 200);
    for part in [
        "Refund this request?",
        "receives 0.0004 credits",
        "cost 0.001 credits, of which 0 are already refunded",
        "name=\"ref\" value=\"ticket 7\"",
    ] {
        assert!(question.body.contains(part), "{part}: {}", question.body);
    }
    assert_eq!(root.balance(), before, "nothing happens before the answer");
    assert!(root.acts().is_empty());

    let confirmed = format!("{fields}&confirmed=yes");
    let posted = root.post(&root.path("refund"), &confirmed).await;
    assert_eq!(posted.status, 201, "{}", posted.body);
    assert!(posted.body.contains("Refunded 0.0004."));
    assert_eq!(root.balance(), "0.9964");
    let again = root.post(&root.path("refund"), &confirmed).await;
    assert_eq!(again.status, 200);
    assert!(again.body.contains("already posted, so nothing changed"));

    // The reference with another amount: said in words, beside its field.
    let other = confirmed.replace("0.0004", "0.0005");
    let refused = root.post(&root.path("refund"), &other).await;
    assert_eq!(refused.status, 409);
    refused.has_fault_at("refund_ref");
    refused.shows("of kind refund, 0.0004 credits, account acct_");
    assert!(!refused.body.contains("request_id"), "{}", refused.body);

    // Without an amount, the rest of the charge.
    let rest = format!("request={}&credits=&ref=ticket 8", request(1));
    let question = root.post(&root.path("refund"), &rest).await;
    assert!(question.body.contains("receives 0.0006 credits"));
    let rest = format!("{rest}&confirmed=yes");
    root.post(&root.path("refund"), &rest).await.expect(201);
    assert_eq!(root.balance(), "0.997");
    let again = format!("request={}&ref=ticket 9", request(1));
    let refused = root.post(&root.path("refund"), &again).await;
    assert_eq!(refused.status, 409);
    refused.has_fault_at("refund_request");
    refused.shows("All 0.001 credits");
    assert_eq!(
        root.acts(),
        [
            "request.refund",
            "request.refund repeated",
            "request.refund refused",
            "request.refund"
        ]
    );
    let report = root.world.billing.verify(now_ms()).unwrap();
    // The debits of `spend` do not cost what their usage costs; the refunds break no rule.
    let broken = report.findings.iter().find(|one| one.rule != "cost");
    assert!(broken.is_none(), "{broken:?}");

    // The holder's receipt says what came later.
    let (accounts, billing) = (&root.world.accounts, &root.world.billing);
    let session = accounts.logins().create_session(&root.account, now_ms());
    let cookie = format!("gw-session={}", session.unwrap().token);
    let path = format!("/dashboard/activity/{}", request(1));
    let receipt = root.world.get(&path, &cookie).await.body;
    for (credits, reference) in [("0.0004", "ticket 7"), ("0.0006", "ticket 8")] {
        let (_, rest) = receipt
            .split_once(&format!("Refunded {credits} credits"))
            .expect(credits);
        let (line, _) = rest.split_once("</p>").unwrap();
        assert!(line.contains("by root@example.com, an operator"), "{line}");
        assert!(line.contains(reference), "{line}");
    }
    let receipt = billing.receipts().receipt(&root.account, &request(1));
    let refunds = crate::billing::json::receipt(&receipt.unwrap().unwrap())["refunds"].clone();
    assert_eq!(refunds[0]["credits"], "0.0004");
    assert_eq!(refunds[1]["reference"], "ticket 8");
    let other = billing.receipts().receipt(&root.account, &request(2));
    let other = crate::billing::json::receipt(&other.unwrap().unwrap());
    assert!(other.get("refunds").is_none());
}

#[tokio::test]
async fn a_refund_that_the_ledger_would_refuse_loses_nothing_of_the_form() {
    let root = root_with_spend().await;
    let before = root.balance();
    let (one, unknown) = (request(1), request(99));
    let (credits, request) = ("refund_credits", "refund_request");
    for (fields, status, text, field) in [
        (
            format!("request={one}&ref="),
            422,
            "A reference must have",
            "refund_ref",
        ),
        (
            format!("request={one}&credits=x&ref=r"),
            422,
            "Credits:",
            credits,
        ),
        (
            format!("request={one}&credits=0&ref=r"),
            422,
            "above 0",
            credits,
        ),
        (
            format!("request={one}&credits=-1&ref=r"),
            422,
            "above 0",
            credits,
        ),
        (
            format!("request={unknown}&ref=r"),
            422,
            "no ended request",
            request,
        ),
        (
            "request=&ref=r".to_owned(),
            422,
            "no ended request",
            request,
        ),
        (
            format!("request={one}&credits=0.0011&ref=r"),
            409,
            "At most 0.001 can be refunded.",
            credits,
        ),
        (
            format!("request={one}&credits=0.0011&ref=r&confirmed=yes"),
            409,
            "Cannot refund 0.0011 credits",
            credits,
        ),
    ] {
        let refused = root.post(&root.path("refund"), &fields).await;
        assert_eq!(refused.status, status, "{fields}");
        assert!(refused.body.contains(text), "{fields}: {}", refused.body);
        refused.has_fault_at(field);
        if fields.contains(&one) {
            assert!(refused.body.contains(&format!("value=\"{one}\"")));
        }
    }
    // The request of one account is no request of another.
    let other = root.world.accounts.find("a@example.com").unwrap().unwrap();
    let path = format!("/dashboard/operator/accounts/{}/refund", other.id);
    let fields = format!("request={one}&ref=r&confirmed=yes");
    root.post(&path, &fields).await.expect(422);

    let root = root.later();
    let fields = format!("request={one}&ref=r&confirmed=yes");
    let refused = root.post(&root.path("refund"), &fields).await;
    assert_eq!(refused.status, 403, "the password is asked for again");
    assert_eq!(root.balance(), before);
    assert_eq!(root.acts(), ["request.refund refused"]);
    let with_password = format!("{fields}&password={PASSWORD}");
    let posted = root.post(&root.path("refund"), &with_password).await;
    assert_eq!(posted.status, 201);
}

#[tokio::test]
async fn a_deduction_asks_first() {
    let root = root().await;
    let grant = "kind=grant&credits=5&ref=g";
    root.post(&root.path("post"), grant).await.expect(201);
    let fields = "kind=adjustment&credits=-2&ref=a&reason=a slip";
    let question = root.post(&root.path("post"), fields).await;
    assert_eq!(question.status, 200);
    assert!(question.body.contains("decreases by 2 credits"));
    assert_eq!(root.balance(), "5");
    let confirmed = format!("{fields}&confirmed=yes");
    root.post(&root.path("post"), &confirmed).await.expect(201);
    assert_eq!(root.balance(), "3");
    // What the balance does not cover is refused before the question, and by the ledger after it.
    let much = "kind=deduction&credits=3.5&ref=c&reason=a slip";
    for (end, says) in [
        ("", "Only 3 credits are available to deduct."),
        (
            "&confirmed=yes",
            "Cannot deduct 3.5 credits: only 3 are available.",
        ),
    ] {
        let refused = root.post(&root.path("post"), &format!("{much}{end}")).await;
        assert_eq!(refused.status, 409, "{}", refused.body);
        refused.has_fault_at("credits_deducted");
        refused.keeps("credits_deducted", "3.5");
        refused.keeps("deduct_ref", "c");
        refused.shows(says);
    }
    let known = fields.replace("-2", "-4");
    let question = root.post(&root.path("post"), &known).await;
    assert_eq!(question.status, 200, "the ledger knows the reference");
    let refused = root
        .post(&root.path("post"), &format!("{known}&confirmed=yes"))
        .await;
    assert_eq!(refused.status, 409);
    refused.has_fault_at("ref");
    refused.shows("of kind adjust, -2 credits, account acct_");
    let added = "kind=adjustment&credits=1&ref=b&reason=a slip";
    root.post(&root.path("post"), added).await.expect(201);
}
