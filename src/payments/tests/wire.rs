//! The shop against a simulated Stripe, over its HTTP API and with events that it signs.

use super::*;
use http::HeaderValue;
use tokio::net::TcpListener;
use vendor_simulator::SimulatorOptions;
use vendor_simulator::stripe::{
    DeliveryPlan, PaymentWay, SignedEvent, SimStripe, SimStripeFault, sign,
};

pub const OLD_SECRET: &str = "whsec_old";
pub const NEW_SECRET: &str = "whsec_new";

/// A world whose provider is a simulated Stripe on a port of its own.
pub struct SimWorld {
    pub world: World,
    pub stripe: Arc<SimStripe>,
}

/// `change` is applied to the section of the config.
pub async fn sim_world(folder: TempDir, change: &[(&str, &str)]) -> SimWorld {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut section = SECTION
        .replace("PER_DAY", "90000")
        .replace("whsec_abc", &format!("[{OLD_SECRET}, {NEW_SECRET}]"));
    for (from, to) in change {
        assert!(section.contains(from), "{from}");
        section = section.replace(from, to);
    }
    section += &format!(
        "  api_base: \"http://{}\"\n",
        listener.local_addr().unwrap()
    );
    let options = SimulatorOptions::default();
    let stripe = Arc::clone(&options.stripe);
    tokio::spawn(vendor_simulator::serve(listener, options));
    let mut world = world_in(folder, &section);
    world.payments.provider = None;
    SimWorld { world, stripe }
}

pub async fn sim() -> SimWorld {
    sim_world(tempfile::tempdir().unwrap(), &[]).await
}

/// What the webhook does with a request, signed with a secret at a time.
pub fn receive(
    payments: &Payments,
    body: &str,
    secret: &str,
    time_s: i64,
) -> Result<EventOutcome, String> {
    let signature = HeaderValue::from_str(&sign(secret, time_s, body)).unwrap();
    let headers = HeaderMap::from_iter([("stripe-signature".parse().unwrap(), signature)]);
    let event = payments
        .read_event(&headers, body.as_bytes(), now_ms())
        .map_err(|error| error.to_string())?;
    payments
        .handle_event(&event, now_ms())
        .map_err(|error| error.to_string())
}

impl SimWorld {
    pub fn events(&self) -> Vec<SignedEvent> {
        self.stripe.take_deliveries(DeliveryPlan::default())
    }

    fn receive(&self, event: &SignedEvent) -> Result<EventOutcome, String> {
        receive(
            &self.world.payments,
            &event.body,
            NEW_SECRET,
            now_ms() / 1_000,
        )
    }

    /// Delivers all events that Stripe has, in order. Returns the types of those that were refused.
    pub fn deliver(&self) -> Vec<String> {
        let events = self.events().into_iter();
        let refused = events.filter(|event| self.receive(event).is_err());
        refused.map(|event| event.kind).collect()
    }

    fn pay(&self, order: &OrderRow) -> String {
        let session = order.checkout.as_deref().unwrap();
        self.stripe.pay(session, PaymentWay::Card).unwrap()
    }

    pub fn order_now(&self, order: &OrderRow) -> OrderRow {
        let rows = self.world.accounts.database().payments();
        rows.order(&order.id).unwrap().unwrap()
    }

    /// Polls all orders now, whatever their time.
    pub async fn poll(&self) {
        self.world
            .sql("UPDATE payment_order SET next_poll_at_ms = 0 WHERE next_poll_at_ms IS NOT NULL");
        self.world.payments.poll_due(now_ms()).await.unwrap();
    }

    pub fn fault(&self, fault: SimStripeFault) {
        let path = "/v1/".to_owned();
        let times = 1;
        self.stripe.add_fault(SimStripeFault {
            path,
            times,
            ..fault
        });
    }
}

#[tokio::test]
async fn stripe_takes_our_orders_and_we_take_its_events_in_each_kind_of_currency() {
    for (currency, price, amount, credits) in [
        ("usd", "0.01", 1_000, "1000"),
        // No decimals: 1500 is ¥1500, not ¥15.
        ("jpy", "1.5", 1_500, "1000"),
        // Three decimals.
        ("kwd", "0.01", 10_000, "1000"),
        // Two that are always zero.
        ("isk", "1", 100_000, "1000"),
    ] {
        let change = [
            ("usd", currency),
            ("\"0.01\"", &format!("\"{price}\"")),
            ("min: \"1\"", "min: \"50\"\n  max: \"2000\""),
            ("[{from: \"100\", percent: \"5\"}]", "[]"),
        ];
        let change = if currency == "kwd" || currency == "usd" {
            [
                change[0],
                change[1],
                ("min: \"1\"", "min: \"1\"\n  max: \"2000\""),
                change[3],
            ]
        } else {
            change
        };
        let sim = sim_world(tempfile::tempdir().unwrap(), &change).await;
        let order = sim.world.order(amount).await;
        let session = sim.stripe.find(order.checkout.as_deref().unwrap()).unwrap();
        assert_eq!(session["amount_total"], amount, "{currency}");
        sim.pay(&order);
        assert_eq!(sim.deliver(), Vec::<String>::new(), "{currency}");
        assert_eq!(sim.world.balance(), credits, "{currency}");
        assert_eq!(sim.world.findings(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_event_counts_with_either_secret_and_not_late_unsigned_or_of_another_endpoint() {
    let sim = sim().await;
    let order = sim.world.order(1_000).await;
    sim.pay(&order);
    let events = sim.events();
    let paid = events
        .iter()
        .find(|it| it.kind == "checkout.session.completed");
    let paid = &paid.unwrap().body;
    let now_s = now_ms() / 1_000;
    for (secret, time_s) in [
        ("whsec_another_endpoint", now_s),
        ("", now_s),
        (NEW_SECRET, now_s - 301),
        (OLD_SECRET, now_s + 302),
        (NEW_SECRET, now_s - 600),
        (NEW_SECRET, now_s + 600),
    ] {
        let refused = receive(&sim.world.payments, paid, secret, time_s);
        assert!(
            refused.is_err_and(|it| it.contains("signature")),
            "{secret} {time_s}"
        );
    }
    // A byte of the body is another one.
    let changed = paid.replace("\"amount_total\": 1000", "\"amount_total\": 9000");
    assert_ne!(&changed, paid);
    let signature = sign(NEW_SECRET, now_s, paid).parse().unwrap();
    let headers = HeaderMap::from_iter([("stripe-signature".parse().unwrap(), signature)]);
    let read = sim
        .world
        .payments
        .read_event(&headers, changed.as_bytes(), now_ms());
    assert_eq!(read, Err(EventError::Signature));
    assert_eq!(sim.world.balance(), "0");
    let handled = receive(&sim.world.payments, paid, OLD_SECRET, now_s - 299);
    assert_eq!(
        (handled, sim.world.balance()),
        (Ok(EventOutcome::Handled), "1000".into())
    );
    // The clock of this machine may be wrong by ten minutes: the poller does not look at it.
    let late = sim.world.order(1_000).await;
    sim.pay(&late);
    sim.events();
    sim.world
        .payments
        .poll_due(now_ms() + 661_000)
        .await
        .unwrap();
    assert_eq!(sim.world.balance(), "2000");
}

#[tokio::test]
async fn an_order_whose_answer_is_lost_ends_and_its_events_are_answered() {
    let sim = sim().await;
    let fault = SimStripeFault::default;
    let faults = [
        SimStripeFault {
            status: Some(500),
            ..fault()
        },
        SimStripeFault {
            status: Some(429),
            ..fault()
        },
        SimStripeFault {
            is_cut: true,
            ..fault()
        },
        SimStripeFault {
            acts: true,
            status: Some(500),
            ..fault()
        },
        SimStripeFault {
            acts: true,
            is_cut: true,
            ..fault()
        },
        SimStripeFault {
            acts: true,
            is_torn: true,
            ..fault()
        },
    ];
    let count = faults.len();
    for fault in faults {
        sim.fault(fault.clone());
        let error = sim.world.payments.order(&sim.world.account, 1_000).await;
        assert!(
            matches!(
                error,
                Err(PaymentError::Provider(ProviderError::Unavailable(_)))
            ),
            "{fault:?}: {error:?}"
        );
    }
    let orders = || {
        sim.world
            .payments
            .orders_of(&sim.world.account, 20)
            .unwrap()
    };
    assert!(orders().iter().all(|it| it.state == OrderState::Created));
    sim.poll().await;
    let states: Vec<_> = orders().into_iter().map(|it| it.state).collect();
    assert_eq!(states, vec![OrderState::Expired; count]);
    let events = sim.events();
    assert_eq!(
        events.len(),
        count,
        "one session for each order, and it has ended"
    );
    for event in &events {
        assert_eq!(
            sim.receive(event),
            Ok(EventOutcome::Handled),
            "{}",
            event.body
        );
    }
    let open = |it: &serde_json::Value| it["status"] == "open";
    assert!(!sim.stripe.sessions().iter().any(open), "a second session");
    // A payment there counts, though nobody had the address.
    let session = orders()[0].checkout.clone().unwrap();
    sim.stripe
        .falsify(&session, "status", serde_json::json!("open"));
    sim.stripe.pay(&session, PaymentWay::Card).unwrap();
    assert_eq!(sim.deliver(), Vec::<String>::new());
    assert_eq!(
        (sim.world.balance(), sim.world.findings()),
        ("1000".into(), Vec::new())
    );
}

#[tokio::test]
async fn a_refused_order_costs_nothing_and_ends() {
    // Stripe refuses the key, and an amount that its currency does not have.
    let sim = sim_world(
        tempfile::tempdir().unwrap(),
        &[("sk_test_abc", "sk_test_revoked1")],
    )
    .await;
    let error = sim
        .world
        .payments
        .order(&sim.world.account, 1_000)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("Invalid API Key") && !error.to_string().contains("sk_test"),
        "{error}"
    );
    let order = sim
        .world
        .payments
        .orders_of(&sim.world.account, 1)
        .unwrap()
        .remove(0);
    assert_eq!(order.state, OrderState::Failed);
}

#[tokio::test]
async fn the_poller_finds_what_lost_events_were_about() {
    let sim = sim().await;
    let (order, other) = (sim.world.order(10_000).await, sim.world.order(2_000).await);
    let payment = sim.pay(&order);
    // The bank refuses the debit, days later.
    let session = other.checkout.as_deref().unwrap();
    sim.stripe.pay(session, PaymentWay::BankDebit).unwrap();
    sim.poll().await;
    let states = || [&order, &other].map(|it| sim.world.state(it));
    assert_eq!(states(), [OrderState::Paid, OrderState::Processing]);
    assert_eq!(sim.world.balance(), "10500");
    sim.stripe.confirm(session, false);
    assert!(sim.stripe.refund(&payment, 2_000));
    sim.poll().await;
    assert_eq!(states(), [OrderState::Paid, OrderState::Failed]);
    assert_eq!(sim.world.balance(), "8400");
    let inquiry = sim
        .stripe
        .dispute(&payment, 8_000, "warning_needs_response")
        .unwrap();
    sim.poll().await;
    assert_eq!(sim.world.balance(), "8400", "only a question");
    sim.stripe.close_dispute(&inquiry, "warning_closed");
    let dispute = sim
        .stripe
        .dispute(&payment, 8_000, "needs_response")
        .unwrap();
    for _ in 0..2 {
        sim.poll().await;
        assert_eq!(sim.world.balance(), "0");
    }
    sim.stripe.close_dispute(&dispute, "won");
    for _ in 0..2 {
        sim.poll().await;
        assert_eq!(sim.world.balance(), "8400");
    }
    // The events come after all that. They change nothing.
    assert_eq!(sim.deliver(), Vec::<String>::new());
    assert_eq!(
        (sim.world.balance(), sim.world.findings()),
        ("8400".into(), Vec::new())
    );
}

#[tokio::test]
async fn a_payment_that_was_not_credited_can_be_refunded_without_an_error() {
    let sim = sim().await;
    let falsify = |order: &OrderRow, member: &str, value| {
        let session = order.checkout.as_deref().unwrap();
        sim.stripe.falsify(session, member, value);
    };
    let changes = [
        ("amount_total", serde_json::json!(999)),
        ("currency", serde_json::json!("eur")),
        ("metadata", serde_json::json!({"account": "acct_other"})),
    ];
    for (member, value) in changes {
        let order = sim.world.order(1_000).await;
        let payment = sim.pay(&order);
        // The event that is sent has the session as it was: Stripe would send the other one too.
        sim.events();
        falsify(&order, member, value);
        sim.poll().await;
        assert_eq!(sim.world.state(&order), OrderState::Refused, "{member}");
        assert!(sim.stripe.refund(&payment, 500));
        assert_eq!(sim.deliver(), Vec::<String>::new(), "{member}");
    }
    assert_eq!(
        (sim.world.balance(), sim.world.findings()),
        ("0".into(), Vec::new())
    );
}

#[tokio::test]
async fn a_reference_that_an_operator_has_posted_by_hand_is_not_credited_again() {
    let sim = sim().await;
    let order = sim.world.order(1_000).await;
    let payment = sim.pay(&order);
    let by_hand = BalanceChange {
        kind: BalanceChangeKind::TopUp,
        reference: &format!("stripe:{payment}"),
        account: &sim.world.account,
        amount: Micro::new(1_000_000_000),
        actor: None,
        at_ms: now_ms(),
    };
    sim.world
        .billing
        .corrections()
        .post_change(&by_hand)
        .unwrap();
    assert_eq!(sim.deliver(), Vec::<String>::new());
    let order = sim.order_now(&order);
    assert_eq!(
        (sim.world.balance(), order.state),
        ("1000".into(), OrderState::Refused)
    );
    assert!(order.note.contains("already used"), "{}", order.note);
}

#[tokio::test]
async fn refunds_and_a_won_dispute_add_up_in_any_order() {
    // The dispute takes all, the refund nothing; then the dispute is won, and the refund counts.
    let world = world();
    let order = world.buy(1_000).await;
    world.dispute(&order, DisputeOutcome::Taken).unwrap();
    world.refund(&order, 800).unwrap();
    assert_eq!(world.balance(), "0");
    world.dispute(&order, DisputeOutcome::Won).unwrap();
    assert_eq!(
        (world.balance(), world.findings()),
        ("200".into(), Vec::new())
    );
    // All was spent when the bank took the money: nothing returns, and a refund counts again.
    let order = world.buy(1_000).await;
    world.spend(1_200);
    world.dispute(&order, DisputeOutcome::Taken).unwrap();
    assert_eq!((world.balance(), world.status()), ("0".into(), "suspended"));
    world.dispute(&order, DisputeOutcome::Won).unwrap();
    world.refund(&order, 1_000).unwrap();
    let payment = format!("stripe:pi_{}", order.id);
    let totals = world
        .billing
        .ledger()
        .changes()
        .payment_totals(&payment)
        .unwrap();
    assert_eq!(
        (totals.left(), totals.written_off().to_string()),
        (Micro::ZERO, "1000".into())
    );
    assert_eq!(world.findings(), Vec::<String>::new());
}

#[tokio::test]
async fn an_account_that_is_suspended_between_order_and_payment_gets_its_credits() {
    let world = world();
    let order = world.order(1_000).await;
    let paid = world.pay(&order);
    let suspended = accounts::AccountStatus::Suspended;
    world
        .accounts
        .set_status(&world.account, suspended)
        .unwrap();
    world.handle(EventSubject::Checkout(paid)).unwrap();
    let rows = world.accounts.database().payments();
    let order = rows.order(&order.id).unwrap().unwrap();
    assert_eq!(
        (world.balance(), order.state),
        ("1000".into(), OrderState::Paid)
    );
    assert!(order.note.contains("suspended"), "{}", order.note);
    assert_eq!(world.status(), "suspended", "a payment opens no account");
    let refused = world.payments.order(&world.account, 1_000).await;
    let suspended = InsertOrderOutcome::Suspended;
    assert!(
        matches!(refused, Err(PaymentError::Limit(it)) if it == suspended),
        "{refused:?}"
    );
}

#[tokio::test]
async fn each_entry_of_a_payment_is_found_by_its_reference() {
    let world = world();
    let order = world.buy(10_000).await;
    world.refund(&order, 1_000).unwrap();
    world.dispute(&order, DisputeOutcome::Taken).unwrap();
    let receipts = world.billing.receipts();
    for (reference, kind) in [
        (format!("stripe:pi_{}", order.id), "topup"),
        (format!("stripe:pi_{}:0", order.id), "payment_refund"),
        (format!("stripe:pi_{0}:dp_{0}", order.id), "dispute"),
    ] {
        let found = receipts.find_entry(&reference).unwrap();
        assert_eq!(found.unwrap().kind, kind, "{reference}");
    }
}

#[tokio::test]
async fn a_refund_whose_answer_is_lost_is_made_once() {
    let sim = sim().await;
    let order = sim.world.order(1_000).await;
    let payment = sim.pay(&order);
    sim.deliver();
    let settings = sim.world.payments.settings().unwrap();
    let provider = sim.world.payments.provider(&settings);
    let refund = async |amount, key| provider.refund(&payment, amount, key).await;
    for acts in [false, true] {
        let is_cut = true;
        sim.fault(SimStripeFault {
            acts,
            is_cut,
            ..SimStripeFault::default()
        });
        let lost = refund(400, "refund-1").await;
        assert!(
            matches!(lost, Err(ProviderError::Unavailable(_))),
            "{lost:?}"
        );
    }
    assert_eq!(refund(400, "refund-1").await, Ok(()));
    assert_eq!(sim.stripe.money()[0].refunded, 400);
    // The key belongs to that amount, and no more can be refunded than is left.
    for (amount, key) in [(300, "refund-1"), (601, "refund-2")] {
        let refused = refund(amount, key).await;
        assert!(
            matches!(refused, Err(ProviderError::Refused { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(sim.deliver(), Vec::<String>::new());
    assert_eq!(
        (sim.world.balance(), sim.world.findings()),
        ("600".into(), Vec::new())
    );
}
