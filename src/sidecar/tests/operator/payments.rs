//! Tests the operators' pages of payments: where none are sold they are no pages; a payment is
//! found and refunded.

use super::*;
use tokio::net::TcpListener;

/// Answers the one request with which a payment is refunded. Returns the request.
async fn answer_refund(listener: TcpListener) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = String::new();
    while !request.contains("amount=") {
        let mut piece = [0; 4_096];
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "{request}");
        request += std::str::from_utf8(&piece[..read]).unwrap();
    }
    let refund = r#"{"id":"re_1","object":"refund","payment_intent":"pi_1","amount":400,"status":"succeeded"}"#;
    let length = refund.len();
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{refund}");
    stream.write_all(answer.as_bytes()).await.unwrap();
    request
}

#[tokio::test]
async fn an_operator_finds_a_payment_and_refunds_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let section = format!(
        "payments: {{provider: stripe, secret_key: sk_test_abc, webhook_secret: whsec_abc, currency: usd,
  credit_price: \"0.01\", api_base: \"http://{}\"}}\nsignup:",
        listener.local_addr().unwrap()
    );
    let root = root_with(&[("signup:", &section)]).await;
    let list = root.get("/dashboard/operator/payments").await;
    assert!(list.body.contains("No payments yet."), "{}", list.body);
    let link = "href=\"/dashboard/operator/payments\"";
    assert!(list.body.contains(link), "{}", list.body);
    let sql = format!(
        "INSERT INTO payment_order(id, account, amount, currency, credits, bonus, state, checkout, payment,
           created_at_ms, paid_at_ms) VALUES('pay_1', '{}', 1000, 'usd', 1000000000, 0, 'paid', 'cs_1',
           'stripe:pi_1', 1, 1)",
        root.account
    );
    let database = root.world.accounts.database();
    database.with_writer(|connection| connection.execute_batch(&sql).unwrap());
    let change = ledger::BalanceChange {
        kind: ledger::BalanceChangeKind::Purchase { order: "pay_1" },
        reference: "stripe:pi_1",
        account: &root.account,
        amount: "1000".parse().unwrap(),
        actor: None,
        at_ms: now_ms(),
    };
    let corrections = root.world.billing.corrections();
    corrections.post_change(&change).unwrap();
    for query in ["", "?id=pi_1", "?account=a@example.com&state=paid"] {
        let list = root
            .get(&format!("/dashboard/operator/payments{query}"))
            .await;
        assert!(list.body.contains("10.00 USD"), "{query}: {}", list.body);
    }
    let none = root.get("/dashboard/operator/payments?state=open").await;
    assert!(none.body.contains("No payments match"), "{}", none.body);
    let wrong = root.get("/dashboard/operator/payments?state=lost").await;
    assert_eq!(wrong.status, 422);
    wrong.has_fault_at("state");
    let found = root.get("/dashboard/operator/search?q=pay_1").await;
    assert_eq!(
        found.headers["location"],
        "/dashboard/operator/payments/pay_1"
    );

    let path = "/dashboard/operator/payments/pay_1/refund";
    let wrong = root.post(path, "amount=10.01&ref=t&confirmed=yes").await;
    assert_eq!(wrong.status, 422, "{}", wrong.body);
    assert!(wrong.body.contains("Only 10.00 USD"), "{}", wrong.body);
    wrong.has_fault_at("amount");
    let wrong = root.post(path, "amount=4&ref=").await;
    wrong.has_fault_at("ref");
    wrong.keeps("amount", "4");
    let question = root.post(path, "amount=4&ref=ticket 1").await;
    question.shows("pays 4.00 USD back");
    let provider = tokio::spawn(answer_refund(listener));
    let done = root.post(path, "amount=4&ref=ticket 1&confirmed=yes").await;
    assert_eq!(done.status, 303, "{}", done.body);
    let request = provider.await.unwrap();
    assert!(
        request.contains("payment_intent=pi_1&amount=400"),
        "{request}"
    );
    let page = root.get(&done.headers["location"]).await;
    assert!(page.body.contains("Partly refunded"), "{}", page.body);
    assert!(page.body.contains("reference ticket 1"));
    assert_eq!(root.balance(), "600");
    let totals = root.get("/dashboard/operator/payments").await;
    let (_, totals) = totals.body.split_once("data-testid=\"months\"").unwrap();
    for part in ["1970-01", "10.00 USD", "4.00 USD", "1000"] {
        assert!(totals.contains(part), "{part}: {totals}");
    }
    assert_eq!(root.acts(), ["payment.refund refused", "payment.refund"]);
    let log = root.get("/dashboard/operator/audit").await.body;
    assert!(
        log.contains("refunded 4.00 USD of the payment pay_1"),
        "{log}"
    );
}

#[tokio::test]
async fn an_account_whose_payment_was_taken_back_and_its_operator_read_why_keys_are_refused() {
    let root = root().await;
    let account = root.account.clone();
    let sql = |sql: &str| {
        let database = root.world.accounts.database();
        database.with_writer(|connection| connection.execute_batch(sql).unwrap());
    };
    sql(&format!(
        "INSERT INTO payment_order(id, account, amount, currency, credits, bonus, state, checkout, payment,
           created_at_ms, paid_at_ms) VALUES('pay_1', '{account}', 1000, 'usd', 1000000000, 0, 'paid', 'cs_1',
           'stripe:pi_1', 1, 1)"
    ));
    let logins = root.world.accounts.logins();
    let token = logins.create_session(&account, now_ms()).unwrap().token;
    let cookie = format!("gw-session={token}");
    let listed = async || root.get("/dashboard/operator/accounts").await.body;
    let texts = async || {
        let own = root.world.get("/dashboard", &cookie).await.body;
        let operators = format!("/dashboard/operator/accounts/{account}");
        let operators = root.get(&operators).await.body;
        let own = own.contains("data-testid=\"taken-back\"").then_some(own);
        let row = "data-testid=\"clawback\"";
        let operators = operators.contains(row).then_some(operators);
        (own, operators)
    };
    assert_eq!(texts().await, (None, None), "nothing was taken back");
    assert!(!listed().await.contains("requests refused"));
    sql("UPDATE payment_order SET refunded = 1000, clawback = 'held'");
    assert!(listed().await.contains("requests refused"));
    let (own, operators) = texts().await;
    assert!(own.unwrap().contains("You need not do anything"));
    assert!(
        operators
            .unwrap()
            .contains("It begins requests again by itself")
    );
    sql("UPDATE payment_order SET clawback = 'none', written_off = 250000000");
    assert_eq!(texts().await, (None, None), "the operator resumed it");
    sql(&format!(
        "UPDATE account SET status = 'suspended' WHERE id = '{account}'"
    ));
    let (own, operators) = texts().await;
    assert!(
        own.unwrap()
            .contains("after 250.00 of their credits were spent")
    );
    assert!(operators.unwrap().contains("250 credits of payments"));
}
