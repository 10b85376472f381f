use super::objects::now_s;
use super::*;
use crate::http_message::SimRequest;
use serde_json::{Value, json};
use std::time::Duration;

/// A request as an SDK sends it.
fn request(method: &str, target: &str, form: &str, headers: &[(&str, &str)]) -> SimRequest {
    let mut all = vec![
        ("authorization".to_owned(), "Bearer sk_test_abc".to_owned()),
        (
            "content-type".to_owned(),
            "application/x-www-form-urlencoded".to_owned(),
        ),
    ];
    for (name, value) in headers {
        all.retain(|(known, _)| known != name);
        all.push(((*name).to_owned(), (*value).to_owned()));
    }
    SimRequest {
        version: "1.1",
        method: method.into(),
        target: target.into(),
        headers: all,
        body: form.to_owned().into(),
        keeps_alive: true,
    }
}

fn send(stripe: &SimStripe, request: &SimRequest) -> (u16, Value) {
    let answer = stripe.answer(request);
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

fn post(stripe: &SimStripe, path: &str, form: &str) -> (u16, Value) {
    send(stripe, &request("POST", path, form, &[]))
}

fn get(stripe: &SimStripe, target: &str) -> (u16, Value) {
    send(stripe, &request("GET", target, "", &[]))
}

const SESSIONS: &str = "/v1/checkout/sessions";
const FORM: &str = "mode=payment&success_url=https://a.example/&client_reference_id=o1&metadata[a]=b\
    &payment_intent_data[metadata][order]=o1&line_items[0][quantity]=1&line_items[0][price_data][currency]=usd\
    &line_items[0][price_data][unit_amount]=1000&line_items[0][price_data][product_data][name]=Credits";

fn session(stripe: &SimStripe) -> String {
    let (status, session) = post(stripe, SESSIONS, FORM);
    assert_eq!(status, 200, "{session}");
    session["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_wrong_call_is_refused_and_names_its_parameter() {
    let stripe = SimStripe::default();
    let change = |from: &str, to: &str| {
        assert!(FORM.contains(from), "{from}");
        FORM.replace(from, to)
    };
    let amount = |to: &str| change("unit_amount]=1000", &format!("unit_amount]={to}"));
    let currency = |code: &str, to: &str| {
        change("=usd", &format!("={code}")).replace("=1000", &format!("={to}"))
    };
    let (soon, late) = (now_s() + 1_700, now_s() + 86_500);
    for (form, code, param) in [
        (format!("{FORM}&colour=red"), "parameter_unknown", "colour"),
        (
            format!("{FORM}&line_items[0][price_data][x]=1"),
            "parameter_unknown",
            "line_items[0][price_data][x]",
        ),
        (format!("{FORM}&mode=payment"), "parameter_invalid", "mode"),
        (
            format!("{FORM}&cancel_url="),
            "parameter_invalid_empty",
            "cancel_url",
        ),
        (
            format!("{FORM}&cancel_url=a.example"),
            "url_invalid",
            "cancel_url",
        ),
        (
            format!("{FORM}&expand[]=customer.colour"),
            "property_cannot_be_expanded",
            "expand",
        ),
        (
            format!("{FORM}&expires_at={soon}"),
            "parameter_invalid",
            "expires_at",
        ),
        (
            format!("{FORM}&expires_at={late}"),
            "parameter_invalid",
            "expires_at",
        ),
        (
            format!("{FORM}&metadata[{}]=b", "a".repeat(41)),
            "parameter_invalid",
            "metadata",
        ),
        (
            format!("{FORM}&metadata[c]={}", "b".repeat(501)),
            "parameter_invalid_string",
            "metadata[c]",
        ),
        (
            format!("{FORM}&customer=cus_1"),
            "resource_missing",
            "customer",
        ),
        (
            change("mode=payment", "mode=gift"),
            "parameter_invalid",
            "mode",
        ),
        (change("mode=payment&", ""), "parameter_missing", "mode"),
        (
            change("&line_items[0][quantity]=1", ""),
            "parameter_missing",
            "line_items[0][quantity]",
        ),
        (
            amount("10.00"),
            "parameter_invalid_integer",
            "line_items[0][price_data][unit_amount]",
        ),
        (
            amount("-1000"),
            "parameter_invalid_integer",
            "line_items[0][price_data][unit_amount]",
        ),
        (amount("49"), "amount_too_small", "line_items"),
        (amount("100000000"), "amount_too_large", "line_items"),
        (currency("jpy", "49"), "amount_too_small", "line_items"),
        (
            currency("kwd", "1001"),
            "parameter_invalid_integer",
            "line_items",
        ),
        (
            currency("isk", "1050"),
            "parameter_invalid_integer",
            "line_items",
        ),
        (
            currency("xyz", "1000"),
            "parameter_invalid",
            "line_items[0][price_data][currency]",
        ),
    ] {
        let (status, body) = post(&stripe, SESSIONS, &form);
        let error = &body["error"];
        let is_refused = status == 400 || status == 404 && code == "resource_missing";
        assert!(is_refused, "{form}: {status} {body}");
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!(code), &json!(param)),
            "{form}: {body}"
        );
    }
    for (headers, status) in [
        (("authorization", ""), 401),
        (("authorization", "Bearer pk_test_abc"), 401),
        (("authorization", "Bearer sk_test_revoked1"), 401),
        (("stripe-version", "2025-09-30"), 400),
        (("stripe-version", "latest"), 400),
        (("content-type", "application/json"), 400),
    ] {
        let (got, body) = send(&stripe, &request("POST", SESSIONS, FORM, &[headers]));
        assert_eq!(got, status, "{headers:?}: {body}");
    }
    assert_eq!(get(&stripe, "/v1/checkout/colours").0, 404);
    assert_eq!(get(&stripe, "/v1/checkout/sessions/cs_test_none").0, 404);
    for (code, amount) in [("jpy", "50"), ("kwd", "1010"), ("isk", "1100")] {
        assert_eq!(
            post(&stripe, SESSIONS, &currency(code, amount)).0,
            200,
            "{code}"
        );
    }
}

#[test]
fn an_idempotency_key_gets_the_first_answer_and_no_other_parameters() {
    let stripe = SimStripe::default();
    let with_key = |form: &str| {
        stripe.answer(&request(
            "POST",
            SESSIONS,
            form,
            &[("idempotency-key", "o1")],
        ))
    };
    // A call that was refused for its parameters has not begun.
    assert_eq!(with_key(&format!("{FORM}&colour=red")).status, 400);
    let first = with_key(FORM);
    let again = with_key(FORM);
    assert_eq!((first.status, &first.body), (200, &again.body));
    assert!(
        again.head.contains("idempotent-replayed: true"),
        "{}",
        again.head
    );
    let other = with_key(&FORM.replace("=1000", "=2000"));
    assert!(
        other.status == 400 && other.body.contains("idempotency_error"),
        "{}",
        other.body
    );
}

#[test]
fn a_payment_goes_from_the_session_to_its_refunds_and_disputes() {
    let stripe = SimStripe::default();
    let id = session(&stripe);
    let payment = stripe.pay(&id, PaymentWay::Card).unwrap();
    assert_eq!(
        stripe.pay(&id, PaymentWay::Card),
        None,
        "a session is paid once"
    );
    assert_eq!(post(&stripe, &format!("{SESSIONS}/{id}/expire"), "").0, 400);
    let target = format!("{SESSIONS}/{id}?expand[]=payment_intent.latest_charge");
    let (_, paid) = get(&stripe, &target);
    assert_eq!(
        (&paid["status"], &paid["payment_status"]),
        (&json!("complete"), &json!("paid"))
    );
    assert_eq!(
        paid["payment_intent"]["latest_charge"]["amount_refunded"],
        0
    );
    assert_eq!(paid.get("_sim"), None);
    let refund = |amount: u32| {
        post(
            &stripe,
            "/v1/refunds",
            &format!("payment_intent={payment}&amount={amount}"),
        )
    };
    assert_eq!(
        (refund(300).0, refund(701).0, refund(700).0),
        (200, 400, 200)
    );
    assert_eq!(refund(1).1["error"]["code"], "charge_already_refunded");
    let second = session(&stripe);
    let second = stripe.pay(&second, PaymentWay::Card).unwrap();
    let dispute = stripe.dispute(&second, 1_000, "needs_response").unwrap();
    let (status, refused) = post(&stripe, "/v1/refunds", &format!("payment_intent={second}"));
    assert_eq!(
        (status, &refused["error"]["code"]),
        (400, &json!("charge_disputed"))
    );
    let (_, disputes) = get(
        &stripe,
        &format!("/v1/disputes?payment_intent={second}&limit=1"),
    );
    assert_eq!(disputes["data"][0]["id"], json!(dispute));
    let money = stripe.money();
    let kept: Vec<_> = money
        .iter()
        .map(|it| it.amount - it.refunded - it.disputed)
        .collect();
    assert_eq!(kept, [0, 0]);
    stripe.close_dispute(&dispute, "won");
    assert_eq!(stripe.money()[1].disputed, 0);
    let kinds: Vec<_> = stripe
        .take_deliveries(DeliveryPlan::default())
        .into_iter()
        .map(|it| it.kind)
        .collect();
    assert_eq!(
        kinds
            .iter()
            .filter(|kind| *kind == "charge.refunded")
            .count(),
        2
    );
    assert!(
        kinds.contains(&"charge.dispute.closed".to_owned()),
        "{kinds:?}"
    );
    // A bank debit is paid days later, and an account has no objects of the other mode.
    let third = session(&stripe);
    stripe.pay(&third, PaymentWay::BankDebit).unwrap();
    let target = format!("{SESSIONS}/{third}");
    assert_eq!(get(&stripe, &target).1["payment_status"], "unpaid");
    stripe.confirm(&third, true);
    assert_eq!(get(&stripe, &target).1["payment_status"], "paid");
    let live = request(
        "GET",
        &target,
        "",
        &[("authorization", "Bearer rk_live_abc")],
    );
    let (status, body) = send(&stripe, &live);
    assert!(
        status == 404 && body.to_string().contains("live mode"),
        "{body}"
    );
}

const SETUP: &str = "mode=setup&success_url=https://a.example/&customer_creation=always\
    &payment_method_types[0]=card&metadata[a]=b&setup_intent_data[metadata][c]=d";

/// A customer and their saved card.
fn saved_card(stripe: &SimStripe) -> (String, String) {
    let (status, made) = post(stripe, SESSIONS, SETUP);
    assert_eq!(status, 200, "{made}");
    assert_eq!(
        (&made["payment_status"], &made["amount_total"]),
        (&json!("no_payment_required"), &Value::Null)
    );
    let session = made["id"].as_str().unwrap();
    let method = stripe.set_up(session).unwrap();
    assert_eq!(stripe.set_up(session), None, "a session takes one card");
    let target = format!("{SESSIONS}/{session}?expand[]=setup_intent.payment_method");
    let (_, done) = get(stripe, &target);
    let intent = &done["setup_intent"];
    assert_eq!(
        (&intent["status"], &intent["payment_method"]["id"]),
        (&json!("succeeded"), &json!(method))
    );
    assert_eq!(intent["metadata"], json!({"c": "d"}));
    let customer = done["customer"].as_str().unwrap().to_owned();
    assert_eq!(intent["payment_method"]["customer"], customer);
    (customer, method)
}

#[test]
fn a_saved_card_pays_without_its_holder_until_it_is_removed() {
    let stripe = SimStripe::default();
    let form = format!("{FORM}&payment_intent_data[setup_future_usage]=off_session");
    let (_, made) = post(&stripe, SESSIONS, &form);
    let payment = stripe
        .pay(made["id"].as_str().unwrap(), PaymentWay::Card)
        .unwrap();
    let (_, intent) = get(&stripe, &format!("/v1/payment_intents/{payment}"));
    let saved_in_payment =
        [&intent["customer"], &intent["payment_method"]].map(|it| it.as_str().unwrap().to_owned());
    let (customer, method) = saved_card(&stripe);
    let form = |customer: &str, method: &str| {
        format!(
            "amount=2000&currency=usd&customer={customer}&payment_method={method}&off_session=true&confirm=true"
        )
    };
    for (customer, method) in [
        (&customer, &method),
        (&saved_in_payment[0], &saved_in_payment[1]),
    ] {
        let (status, paid) = post(&stripe, "/v1/payment_intents", &form(customer, method));
        assert_eq!(
            (status, &paid["status"]),
            (200, &json!("succeeded")),
            "{paid}"
        );
    }
    // A card of another customer, and no card at all.
    let form = form(&customer, &method);
    let other = form.replace(&customer, &saved_in_payment[0]);
    assert_eq!(post(&stripe, "/v1/payment_intents", &other).0, 400);
    let unconfirmed = form.replace("&confirm=true", "");
    assert_eq!(post(&stripe, "/v1/payment_intents", &unconfirmed).0, 400);
    let detach = format!("/v1/payment_methods/{method}/detach");
    assert_eq!(post(&stripe, &detach, "").1["customer"], Value::Null);
    assert_eq!(post(&stripe, &detach, "").0, 400);
    let (status, refused) = post(&stripe, "/v1/payment_intents", &form);
    assert_eq!(
        (status, &refused["error"]["param"]),
        (400, &json!("payment_method"))
    );
}

#[test]
fn a_bank_declines_a_saved_card_for_each_of_its_reasons_and_nothing_is_paid() {
    let stripe = SimStripe::default();
    let (customer, method) = saved_card(&stripe);
    let form = format!(
        "amount=2000&currency=usd&customer={customer}&payment_method={method}&off_session=true&confirm=true"
    );
    for (name, code) in [
        ("generic_decline", "card_declined"),
        ("insufficient_funds", "card_declined"),
        ("lost_card", "card_declined"),
        ("expired_card", "expired_card"),
        ("authentication_required", "authentication_required"),
    ] {
        assert!(stripe.decline(1, name));
        let call = request(
            "POST",
            "/v1/payment_intents",
            &form,
            &[("idempotency-key", name)],
        );
        let (status, declined) = send(&stripe, &call);
        let error = &declined["error"];
        assert_eq!(
            (status, &error["code"], &error["decline_code"]),
            (402, &json!(code), &json!(name))
        );
        let intent = &error["payment_intent"];
        assert_eq!(intent["status"], "requires_payment_method");
        assert_eq!(intent["last_payment_error"]["code"], code);
        assert_eq!(send(&stripe, &call), (402, declined.clone()), "again");
    }
    assert!(!stripe.decline(1, "colour"));
    assert_eq!(stripe.money(), []);
    assert_eq!(post(&stripe, "/v1/payment_intents", &form).0, 200);
    assert_eq!(stripe.money().len(), 1);
}

#[test]
fn a_session_refuses_the_parameters_of_the_other_mode() {
    let stripe = SimStripe::default();
    for (form, param) in [
        (
            format!("{FORM}&setup_intent_data[metadata][a]=b"),
            "setup_intent_data",
        ),
        (
            format!("{SETUP}&payment_intent_data[metadata][a]=b"),
            "payment_intent_data",
        ),
        (
            SETUP.replace("&payment_method_types[0]=card", ""),
            "currency",
        ),
        (
            "mode=payment&success_url=https://a.example/".to_owned(),
            "line_items",
        ),
    ] {
        let (status, refused) = post(&stripe, SESSIONS, &form);
        assert_eq!(
            (status, &refused["error"]["param"]),
            (400, &json!(param)),
            "{form}"
        );
    }
}

#[test]
fn deliveries_are_lost_doubled_and_shuffled_as_the_seed_says() {
    let plan = DeliveryPlan {
        seed: 3,
        lost: 20,
        doubled: 30,
        is_shuffled: true,
    };
    let take = |plan| {
        let stripe = SimStripe::default();
        for _ in 0..100 {
            let id = session(&stripe);
            stripe.expire(&id);
        }
        stripe.take_deliveries(plan)
    };
    // The bodies differ by the time.
    let ids = || -> Vec<_> { take(plan).into_iter().map(|event| event.id).collect() };
    let mut ids = {
        let (taken, again) = (ids(), ids());
        assert_eq!(taken, again);
        taken
    };
    assert!(!ids.is_sorted());
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert!(
        (60..95).contains(&ids.len()) && all > ids.len(),
        "{} of {all}",
        ids.len()
    );
}

#[test]
fn a_fault_is_of_the_next_calls_alone() {
    let stripe = SimStripe::default();
    let fault = SimStripeFault {
        path: "sessions".into(),
        times: 1,
        ..SimStripeFault::default()
    };
    stripe.add_fault(SimStripeFault {
        status: Some(503),
        ..fault.clone()
    });
    stripe.add_fault(SimStripeFault {
        acts: true,
        is_cut: true,
        ..fault.clone()
    });
    stripe.add_fault(SimStripeFault {
        acts: true,
        delay: Duration::from_secs(9),
        ..fault
    });
    assert_eq!(post(&stripe, SESSIONS, FORM).0, 503);
    let call = request("POST", SESSIONS, FORM, &[]);
    assert!(stripe.answer(&call).is_cut);
    assert_eq!(stripe.answer(&call).behaviour.delay, Duration::from_secs(9));
    let (_, sessions) = get(&stripe, SESSIONS);
    assert_eq!(
        sessions["data"].as_array().unwrap().len(),
        2,
        "the first did nothing"
    );
}

#[test]
fn a_signature_is_the_one_of_stripes_libraries() {
    // Computed by `stripe.WebhookSignature` 16.1.0 for Python.
    let header = sign("whsec_test", 1_764_000_000, "{\n  \"id\": \"evt_1\"\n}");
    assert_eq!(
        header,
        "t=1764000000,v1=18c1e9f4ca14d87ac171a68f53c7318386536ad8baba7277f9284c6191163f80"
    );
}
