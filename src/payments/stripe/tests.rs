use super::*;

const SECTION: &str = "payments:
  provider: stripe
  secret_key: sk_test_abc
  webhook_secret: [whsec_old, whsec_new]
  currency: usd
  credit_price: \"0.01\"
";
const NOW_S: i64 = 1_764_000_000;
const BODY: &[u8] = br#"{"id":"evt_1","type":"ping","livemode":false,"data":{"object":{}}}"#;

fn stripe() -> Stripe {
    let text = format!("{}{SECTION}", include_str!("../../../conf/local.yaml"));
    let settings = config::parse(&text, &|_| None).unwrap();
    Stripe::new(settings.payments.unwrap())
}

fn sign(secret: &str, time: i64, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(format!("{time}.").as_bytes());
    mac.update(body);
    let code = mac.finalize().into_bytes();
    code.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(header: &str, body: &[u8]) -> Result<ProviderEvent, EventError> {
    let headers =
        HeaderMap::from_iter([("stripe-signature".parse().unwrap(), header.parse().unwrap())]);
    stripe().read_event(&headers, body, NOW_S * 1_000)
}

fn event(kind: &str, object: &str) -> Result<EventSubject, EventError> {
    let body = format!(
        "{{\"id\":\"evt_1\",\"type\":\"{kind}\",\"livemode\":false,\"data\":{{\"object\":{object}}}}}"
    );
    let code = sign("whsec_old", NOW_S, body.as_bytes());
    read(&format!("t={NOW_S},v1={code}"), body.as_bytes()).map(|event| event.subject)
}

#[test]
fn a_signature_with_either_secret_counts_for_300_seconds() {
    for (secret, age) in [
        ("whsec_old", 0),
        ("whsec_new", 0),
        ("whsec_old", 300),
        ("whsec_old", -300),
    ] {
        let time = NOW_S - age;
        let header = format!("t={time},v1={}", sign(secret, time, BODY));
        assert!(read(&header, BODY).is_ok(), "{secret} {age}");
    }
    for age in [301, -301, 600, -600] {
        let time = NOW_S - age;
        let header = format!("t={time},v1={}", sign("whsec_old", time, BODY));
        assert_eq!(read(&header, BODY), Err(EventError::Time(300)), "{age}");
    }
}

#[test]
fn one_of_several_signatures_is_enough_and_none_else_counts() {
    let good = sign("whsec_old", NOW_S, BODY);
    let other = sign("whsec_of_another_endpoint", NOW_S, BODY);
    let accepted = [
        format!("t={NOW_S},v1={other},v1={good}"),
        format!("t={NOW_S}, v1={good}, v0=abc"),
    ];
    for header in accepted {
        assert!(read(&header, BODY).is_ok(), "{header}");
    }
    let time = NOW_S - 1;
    for header in [
        String::new(),
        format!("t={NOW_S}"),
        format!("v1={good}"),
        format!("t={NOW_S},v1={other}"),
        format!("t={NOW_S},v0={good}"),
        format!("t={time},v1={good}"),
        format!("t={NOW_S},v1={}", &good[..62]),
        format!("t={NOW_S},v1={good}00"),
        format!("t={NOW_S},v1={}", "z".repeat(64)),
        format!("t=x,v1={good}"),
    ] {
        assert_eq!(read(&header, BODY), Err(EventError::Signature), "{header}");
    }
    let header = format!("t={NOW_S},v1={good}");
    let changed = [BODY, b" "].concat();
    assert_eq!(read(&header, &changed), Err(EventError::Signature));
    let unsigned = stripe().read_event(&HeaderMap::new(), BODY, NOW_S * 1_000);
    assert_eq!(unsigned, Err(EventError::Signature));
}

#[test]
fn only_a_paid_session_is_paid() {
    let session = |status: &str, paid: &str| {
        format!(
            "{{\"id\":\"cs_1\",\"object\":\"checkout.session\",\"status\":{status},\"payment_status\":\"{paid}\",
              \"client_reference_id\":\"pay_1\",\"metadata\":{{\"account\":\"acct_1\"}},\"amount_total\":1000,
              \"currency\":\"usd\",\"payment_intent\":\"pi_1\",\"livemode\":false,\"url\":null,
              \"total_details\":{{\"amount_tax\":160}}}}"
        )
    };
    let state = |kind: &str, status: &str, paid: &str| match event(kind, &session(status, paid)) {
        Ok(EventSubject::Checkout(checkout)) => checkout.state,
        other => panic!("{other:?}"),
    };
    let completed = "checkout.session.completed";
    let complete = "\"complete\"";
    assert_eq!(state(completed, complete, "paid"), CheckoutState::Paid);
    assert_eq!(
        state(completed, complete, "unpaid"),
        CheckoutState::Processing
    );
    let kind = "checkout.session.async_payment_succeeded";
    assert_eq!(state(kind, complete, "paid"), CheckoutState::Paid);
    let kind = "checkout.session.async_payment_failed";
    assert_eq!(state(kind, complete, "unpaid"), CheckoutState::Failed);
    let kind = "checkout.session.expired";
    assert_eq!(state(kind, "\"expired\"", "unpaid"), CheckoutState::Expired);
    let Ok(EventSubject::Checkout(checkout)) = event(completed, &session(complete, "paid")) else {
        panic!("no checkout");
    };
    assert_eq!(checkout.order.as_deref(), Some("pay_1"));
    assert_eq!(checkout.account.as_deref(), Some("acct_1"));
    assert_eq!(checkout.payment.as_deref(), Some("pi_1"));
    assert_eq!((checkout.amount, checkout.tax), (Some(1_000), Some(160)));
    assert_eq!(event(completed, "{}"), Err(EventError::Body));
    assert_eq!(event("customer.created", "{}"), Ok(EventSubject::Other));
}

#[test]
fn a_dispute_takes_money_unless_it_is_only_a_question() {
    for (status, outcome) in [
        ("warning_needs_response", DisputeOutcome::Inquiry),
        ("warning_closed", DisputeOutcome::Inquiry),
        ("needs_response", DisputeOutcome::Taken),
        ("lost", DisputeOutcome::Taken),
        ("won", DisputeOutcome::Won),
    ] {
        let object = format!(
            "{{\"id\":\"dp_1\",\"payment_intent\":\"pi_1\",\"amount\":1000,\"currency\":\"usd\",\"status\":\"{status}\"}}"
        );
        let expected = EventSubject::Dispute {
            payment: "pi_1".into(),
            dispute: Dispute {
                id: "dp_1".into(),
                amount: 1_000,
                currency: "usd".into(),
                outcome,
            },
        };
        assert_eq!(event("charge.dispute.created", &object), Ok(expected));
    }
}

#[test]
fn an_error_names_the_reason_and_no_key() {
    let answer =
        br#"{"error":{"message":"Invalid API Key provided: sk_test_abcd (see the docs)"}}"#;
    let message = |answer: &[u8]| RefusedCall::new(StatusCode::BAD_REQUEST, answer).message;
    assert_eq!(
        message(answer),
        "Invalid API Key provided: (key) (see the docs)"
    );
    assert_eq!(message(b"<html>"), "");
}

#[test]
fn a_form_is_encoded() {
    let form = encode_form(&[("metadata[order]", "a b"), ("url", "https://x/?a=1&b=ä")]);
    assert_eq!(
        form,
        "metadata%5Border%5D=a%20b&url=https%3A%2F%2Fx%2F%3Fa%3D1%26b%3D%C3%A4"
    );
}

#[test]
fn a_refund_is_made_only_if_the_answer_says_so() {
    let check = |answer: &str| check_refund(answer.as_bytes(), "pi_1", 500);
    for status in [
        r#""succeeded""#,
        r#""pending""#,
        r#""requires_action""#,
        "null",
    ] {
        let answer = format!(
            r#"{{"id":"re_1","object":"refund","payment_intent":"pi_1","amount":500,"status":{status}}}"#
        );
        assert_eq!(check(&answer), Ok(()), "{status}");
    }
    for status in ["failed", "canceled"] {
        let refused = check(&format!(
            r#"{{"object":"refund","payment_intent":"pi_1","amount":500,"status":"{status}"}}"#
        ));
        let message = format!("its status is {status}");
        let operation = REFUND;
        assert_eq!(refused, Err(ProviderError::Refused { operation, message }));
    }
    for unknown in [
        r#"{"object":"refund","payment_intent":"pi_1","amount":1,"status":"succeeded"}"#,
        r#"{"object":"refund","payment_intent":"pi_2","amount":500,"status":"succeeded"}"#,
        r#"{"object":"checkout.session","payment_intent":"pi_1","amount":500,"status":null}"#,
        "{}",
        "{broken",
        "<html>captive</html>",
        "",
    ] {
        let answer = check(unknown);
        assert!(
            matches!(answer, Err(ProviderError::Unavailable(_))),
            "{unknown}: {answer:?}"
        );
    }
}

#[test]
fn a_page_leads_only_to_whole_addresses_of_https() {
    let page = "https://checkout.stripe.com/c/pay/cs_1#fid%2B";
    assert_eq!(page_url(page).as_deref(), Some(page));
    for other in [
        "javascript:alert(document.cookie)",
        "http://checkout.stripe.com/x",
        "//evil.example/x",
        "https://",
        "https:///x",
        " https://x.example/",
        "https://x.example/#\r\nlocation: y",
        "https://x.example/#\u{2028}",
        "",
    ] {
        assert_eq!(page_url(other), None, "{other:?}");
    }
}
