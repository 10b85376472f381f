//! Credits as a browser buys them, with a provider that answers on this machine.

use super::*;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Answers the one request with which an order gets its checkout. Returns the request.
async fn answer_order(listener: TcpListener) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = String::new();
    while !request.contains("expires_at=") {
        let mut piece = [0; 4_096];
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "{request}");
        request += std::str::from_utf8(&piece[..read]).unwrap();
    }
    let body = r#"{"id":"cs_1","url":"https://pay.example/cs_1","status":"open","payment_status":"unpaid","livemode":false}"#;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).await.unwrap();
    request
}

fn signature(body: &str) -> String {
    let time = now_ms() / 1_000;
    let mut mac = Hmac::<Sha256>::new_from_slice(b"whsec_abc").unwrap();
    mac.update(format!("{time}.{body}").as_bytes());
    let code = mac.finalize().into_bytes();
    let hex: String = code.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={time},v1={hex}")
}

#[tokio::test]
async fn a_holder_orders_pays_and_gets_a_receipt() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let section = format!(
        "payments: {{provider: stripe, secret_key: sk_test_abc, webhook_secret: whsec_abc, currency: usd,
  credit_price: \"0.01\", amounts: [\"10\"], api_base: \"http://{}\"}}\nsignup:",
        listener.local_addr().unwrap()
    );
    let world = world(&[("signup:", &section)]).await;
    let cookie = world.sign_up("a@example.com").await;
    let page = world.get("/dashboard/credits", &cookie).await;
    for part in [
        "Continue to payment",
        "10.00 USD",
        "href=\"/dashboard/credits\"",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let form = |amount: &str| format!("amount={amount}&csrf={}", page.csrf());
    let refused = world.post("/dashboard/credits", &cookie, &form("4")).await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    let provider = tokio::spawn(answer_order(listener));
    let ordered = world.post("/dashboard/credits", &cookie, &form("10")).await;
    assert_eq!(ordered.status, 303, "{}", ordered.body);
    let request = provider.await.unwrap();
    let going = world.get(&ordered.headers["location"], &cookie).await;
    assert_eq!(going.headers["refresh"], "0; url=https://pay.example/cs_1");
    let back = ordered.headers["location"].replace("&pay=yes", "");
    let waiting = world.get(&back, &cookie).await;
    assert!(waiting.body.contains("Waiting for the payment"));
    assert_eq!(waiting.headers["refresh"], "1");

    let order = back.split_once("order=").unwrap().1.to_owned();
    assert!(
        request.contains(&format!("idempotency-key: {order}")),
        "{request}"
    );
    let account = world.accounts.find("a@example.com").unwrap().unwrap().id;
    let event = |session: &str| {
        format!(
            "{{\"id\":\"evt_{session}\",\"type\":\"checkout.session.completed\",\"livemode\":false,\"data\":{{\"object\":
              {{\"id\":\"{session}\",\"status\":\"complete\",\"payment_status\":\"paid\",\"client_reference_id\":\"{order}\",
              \"metadata\":{{\"account\":\"{account}\"}},\"amount_total\":1000,\"currency\":\"usd\",
              \"payment_intent\":\"pi_1\",\"livemode\":false}}}}}}"
        )
    };
    let hook = async |signature: &str, body: &str| {
        let headers = [("stripe-signature", signature)];
        world
            .ask("POST", "/webhooks/stripe", &headers, body)
            .await
            .status
    };
    let body = event("cs_1");
    assert_eq!(hook("", &body).await, 400);
    assert_eq!(hook(&signature("other"), &body).await, 400);
    let unknown = event("cs_2");
    assert_eq!(hook(&signature(&unknown), &unknown).await, 500);
    let large = " ".repeat(MAX_FORM_BYTES + 1);
    assert_eq!(hook(&signature(&large), &large).await, 413);
    for _ in 0..2 {
        assert_eq!(hook(&signature(&body), &body).await, 200);
    }
    let paid = world.get(&back, &cookie).await;
    assert!(
        !paid.headers.contains_key("refresh"),
        "it waits for nothing"
    );
    paid.shows("1000 credits were added");
    let path = format!("/dashboard/credits/{order}");
    let receipt = world.get(&path, &cookie).await;
    assert!(receipt.body.contains("10.00 USD"), "{}", receipt.body);
    let stranger = world.sign_up("b@example.com").await;
    world.get(&path, &stranger).await.expect(404);
}

#[tokio::test]
async fn a_provider_that_refuses_an_order_is_not_said_to_be_away() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let section = format!(
        "payments: {{provider: stripe, secret_key: sk_test_abc, webhook_secret: whsec_abc, currency: usd,
  credit_price: \"0.01\", amounts: [\"10\"], api_base: \"http://{address}\"}}\nsignup:"
    );
    let world = world(&[("signup:", &section)]).await;
    let cookie = world.sign_up("a@example.com").await;
    let page = world.get("/dashboard/credits", &cookie).await;
    let form = format!("amount=10&csrf={}", page.csrf());
    let refuse = async {
        let (mut connection, _) = listener.accept().await.unwrap();
        let _ = connection.read(&mut [0u8; 8_192]).await.unwrap();
        let body = r#"{"error":{"type":"invalid_request_error","message":"Invalid API Key"}}"#;
        let length = body.len();
        let head = format!("HTTP/1.1 401 Unauthorized\r\ncontent-length: {length}\r\n\r\n");
        connection.write_all(head.as_bytes()).await.unwrap();
        connection.write_all(body.as_bytes()).await.unwrap();
    };
    let ordering = world.post("/dashboard/credits", &cookie, &form);
    let (refused, ()) = tokio::join!(ordering, refuse);
    assert_eq!(refused.status, 502);
    refused.shows("has refused the request");
    drop(listener);
    let away = world.post("/dashboard/credits", &cookie, &form).await;
    assert_eq!(away.status, 502);
    assert!(away.body.contains("does not answer"), "{}", away.body);
}

#[tokio::test]
async fn a_shop_that_is_off_has_no_paths_whatever_the_method() {
    let world = world(&[]).await;
    let origin = format!("http://{}", world.address);
    for path in [
        "/dashboard/credits",
        "/dashboard/credits/redeem",
        "/dashboard/credits/pay_1",
        "/webhooks/stripe",
        "/dashboard/operator/payments",
        "/dashboard/operator/payments/pay_1/refund",
        "/dashboard/operator/codes",
        "/dashboard/operator/codes/codes_1/void",
    ] {
        for method in ["GET", "POST", "PUT", "DELETE"] {
            let headers = [("origin", origin.as_str())];
            let answer = world.ask(method, path, &headers, "").await;
            assert_eq!(answer.status, 404, "{method} {path}: {}", answer.body);
        }
    }
}

#[tokio::test]
async fn a_code_is_redeemed_where_nothing_is_sold() {
    let section = "payments: {codes: true}\nsignup:";
    let world = world(&[("signup:", section)]).await;
    let cookie = world.sign_up("a@example.com").await;
    let page = world.get("/dashboard/credits", &cookie).await;
    assert!(page.body.contains("Redeem a code"), "{}", page.body);
    assert!(!page.body.contains("Continue to payment"));
    assert!(page.body.contains("href=\"/dashboard/credits\""));
    for path in ["/webhooks/stripe", "/dashboard/operator/payments"] {
        assert_eq!(world.post(path, "", "").await.status, 404, "{path}");
    }
    let by = accounts::Actor {
        actor: "uid 0".into(),
        address: String::new(),
    };
    let new = accounts::NewCodes {
        credits: "50".parse().unwrap(),
        count: 2,
        expires_at_ms: now_ms() + 60_000,
        per_account: 1,
    };
    let acting = world.accounts.with_actor(&by, now_ms());
    let codes = acting.create_codes(&new).unwrap().codes;
    let redeem = async |code: &str| {
        let form = format!("code={code}&csrf={}", page.csrf());
        world
            .post("/dashboard/credits/redeem", &cookie, &form)
            .await
    };
    let done = redeem(&codes[0]).await;
    assert_eq!(done.status, 303, "{}", done.body);
    let page = world.get(&done.headers["location"], &cookie).await;
    page.shows("data-testid=\"redeemed\"><data value=\"50\"");
    for code in [&codes[0], &codes[1], "gw-code-x", "", "x"] {
        let refused = redeem(code).await;
        assert_eq!(refused.status, 422);
        refused.has_fault_at("code");
        refused.keeps("code", code);
        refused.shows("Compare it with what you were given");
    }
    let held = redeem("x").await;
    assert_eq!(held.status, 429, "after five wrong ones in a minute");
    let stranger = world.sign_up("b@example.com").await;
    let other = world.get(&done.headers["location"], &stranger).await;
    assert!(!other.body.contains("data-testid=\"redeemed\""));
}
