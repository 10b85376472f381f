//! Automatic top-ups against a simulated Stripe.

use super::wire::{SimWorld, sim, sim_world};
use super::*;
use accounts::AccountStatus;
use accounts::db::auto_topup::{AutoTopUpRow, AutoTopUpTerms};
use vendor_simulator::stripe::SimStripeFault;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Ten dollars, which buy 1000 credits, when the balance is below 100.
fn terms() -> AutoTopUpTerms {
    AutoTopUpTerms {
        threshold: Micro::new(100_000_000),
        amount: 1_000,
        month_cap: 5_000,
        currency: "usd".into(),
    }
}

impl SimWorld {
    fn holder(&self) -> Actor {
        Actor {
            actor: self.world.account.clone(),
            address: String::new(),
        }
    }

    /// The holder sets a top-up and gets a page for a card. Returns the page's id.
    async fn ask_for_card(&self, terms: AutoTopUpTerms) -> String {
        let form = self.world.events.fetch_add(1, Ordering::Relaxed);
        self.send_form(terms, &form.to_string()).await
    }

    async fn send_form(&self, terms: AutoTopUpTerms, form: &str) -> String {
        let payments = &self.world.payments;
        let row = payments
            .set_auto_topup(&self.holder(), terms, true, form)
            .await;
        row.unwrap().setup.unwrap().id
    }

    /// The holder enters a card, and the gateway learns of it. Returns the card at Stripe.
    async fn turn_on(&self, terms: AutoTopUpTerms) -> String {
        let page = self.ask_for_card(terms).await;
        let card = self.stripe.set_up(&page).unwrap();
        self.deliver();
        self.finish_setups(now_ms()).await;
        assert!(self.top_up().is_on);
        card
    }

    async fn finish_setups(&self, at_ms: i64) {
        let payments = &self.world.payments;
        let provider = payments.provider(&payments.settings().unwrap());
        payments.finish_setups(&*provider, at_ms).await.unwrap();
    }

    async fn forget_methods(&self, at_ms: i64) {
        let payments = &self.world.payments;
        let provider = payments.provider(&payments.settings().unwrap());
        payments.forget_methods(&*provider, at_ms).await.unwrap();
    }

    fn top_up(&self) -> AutoTopUpRow {
        let found = self
            .world
            .payments
            .auto_topup(&self.world.account, now_ms());
        found.unwrap().unwrap().row
    }

    /// Looks at the balances at a time.
    async fn look(&self, at_ms: i64) {
        self.world.payments.top_up_accounts(at_ms).await.unwrap();
    }

    fn orders(&self) -> Vec<OrderRow> {
        let orders = self.world.payments.orders_of(&self.world.account, 100);
        orders.unwrap()
    }

    /// States of the orders, oldest first.
    fn states(&self) -> Vec<OrderState> {
        let mut orders = self.orders();
        orders.sort_by_key(|order| order.created_at_ms);
        orders.into_iter().map(|order| order.state).collect()
    }

    /// Number of charges at Stripe that took money.
    fn charges(&self) -> usize {
        self.stripe.money().len()
    }

    fn has_card(&self, card: &str) -> bool {
        !self.stripe.find(card).unwrap()["customer"].is_null()
    }

    fn set_status(&self, status: AccountStatus) {
        let accounts = &self.world.accounts;
        accounts.set_status(&self.world.account, status).unwrap();
    }

    /// Rules of the holder that have fired, with the periods of their last notices.
    fn fired(&self) -> Vec<String> {
        let rows = self.world.accounts.database().alerts();
        let fired = rows.fired_alerts(&self.world.account).unwrap();
        fired.into_iter().map(|fired| fired.rule).collect()
    }

    /// Texts of the audit log's lines of an action.
    fn audit(&self, act: &str) -> Vec<String> {
        let rows = self.world.accounts.database();
        rows.with_writer(|connection| {
            let mut statement = connection
                .prepare("SELECT actor || ' ' || after FROM audit WHERE act = ?1 ORDER BY seq")
                .unwrap();
            let texts = statement.query_map([act], |row| row.get(0)).unwrap();
            texts.map(Result::unwrap).collect()
        })
    }
}

#[tokio::test]
async fn a_balance_below_the_threshold_is_topped_up_once_and_like_any_payment() {
    let sim = sim().await;
    sim.turn_on(terms()).await;
    assert_eq!(sim.top_up().method.unwrap().1, "Visa ending in 4242");
    sim.look(now_ms()).await;
    sim.look(now_ms()).await;
    assert_eq!((sim.world.balance(), sim.charges()), ("1000".into(), 1));
    let order = sim.orders().remove(0);
    let payment = order.payment.clone().unwrap();
    assert_eq!(
        payment,
        format!("stripe:{}", order.checkout.as_deref().unwrap())
    );
    assert_eq!(
        sim.deliver(),
        Vec::<String>::new(),
        "its events change nothing"
    );
    // Not at the threshold, only below it.
    sim.world.spend(900);
    sim.look(now_ms()).await;
    assert_eq!(sim.world.balance(), "100");
    sim.world.spend(1);
    sim.look(now_ms()).await;
    assert_eq!((sim.world.balance(), sim.charges()), ("1099".into(), 2));
    // A refund at Stripe, whose event is lost, is found as for any payment.
    assert!(sim.stripe.refund(order.checkout.as_deref().unwrap(), 500));
    sim.events();
    sim.poll().await;
    assert_eq!(sim.world.balance(), "599");
    let by = sim.holder();
    let refund = sim
        .world
        .payments
        .refund_order(&by, &order.id, None, "full");
    refund.await.unwrap();
    assert_eq!(sim.world.balance(), "99");
    assert_eq!(sim.world.findings(), Vec::<String>::new());
    let report = sim
        .world
        .payments
        .reconcile(1, now_ms() + 2 * HOUR_MS)
        .await
        .unwrap();
    assert_eq!((report.payments, report.differences), (2, Vec::new()));
    let receipt = sim.world.payments.receipt_url(&order).await.unwrap();
    assert!(receipt.is_some_and(|url| url.starts_with("https://pay.stripe.com/receipts/")));
}

#[tokio::test]
async fn many_looks_at_once_charge_once() {
    let sim = sim().await;
    sim.turn_on(terms()).await;
    let looks = (0..10).map(|_| sim.look(now_ms()));
    futures_util::future::join_all(looks).await;
    assert_eq!((sim.world.balance(), sim.charges()), ("1000".into(), 1));
}

#[tokio::test]
async fn a_look_from_before_a_charge_that_has_ended_charges_nothing() {
    let sim = sim().await;
    sim.turn_on(terms()).await;
    let payments = &sim.world.payments;
    let settings = payments.settings().unwrap();
    let look = || {
        let (_, mut due) = payments.due_charges("", &settings, now_ms()).unwrap();
        due.remove(0)
    };
    let (first, late) = (look(), look());
    for charge in [first, late] {
        payments.begin_charge(charge, now_ms()).await.unwrap();
        assert_eq!((sim.world.balance(), sim.charges()), ("1000".into(), 1));
    }
    sim.world.spend(901);
    payments.begin_charge(look(), now_ms()).await.unwrap();
    assert_eq!((sim.world.balance(), sim.charges()), ("1099".into(), 2));
}

#[tokio::test]
async fn a_charge_whose_answer_is_lost_counts_once() {
    let fault = SimStripeFault::default;
    for (name, fault, charged) in [
        (
            "away",
            SimStripeFault {
                status: Some(503),
                ..fault()
            },
            false,
        ),
        (
            "cut before",
            SimStripeFault {
                is_cut: true,
                ..fault()
            },
            false,
        ),
        (
            "cut after",
            SimStripeFault {
                acts: true,
                is_cut: true,
                ..fault()
            },
            true,
        ),
        (
            "torn",
            SimStripeFault {
                acts: true,
                is_torn: true,
                ..fault()
            },
            true,
        ),
        (
            "error after",
            SimStripeFault {
                acts: true,
                status: Some(500),
                ..fault()
            },
            true,
        ),
    ] {
        for (age_ms, repeats) in [(MINUTE_MS + 1, true), (31 * MINUTE_MS, false)] {
            let sim = sim().await;
            sim.turn_on(terms()).await;
            sim.fault(fault.clone());
            let start_ms = now_ms();
            sim.look(start_ms).await;
            assert_eq!(sim.states(), [OrderState::Created], "{name}");
            // Nothing else is charged while nobody knows.
            sim.look(start_ms + 59_000).await;
            assert_eq!(sim.charges(), usize::from(charged), "{name}");
            sim.world
                .payments
                .poll_due(start_ms + age_ms)
                .await
                .unwrap();
            let is_paid = charged || repeats;
            let end = if is_paid {
                OrderState::Paid
            } else {
                OrderState::Expired
            };
            assert_eq!(sim.states(), [end], "{name} {age_ms}");
            assert_eq!(sim.charges(), usize::from(is_paid), "{name} {age_ms}");
            let balance = if is_paid { "1000" } else { "0" };
            assert_eq!(sim.world.balance(), balance, "{name} {age_ms}");
            assert_eq!(sim.world.findings(), Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn the_cap_of_a_month_and_the_bound_of_a_day_hold() {
    let sim = sim().await;
    sim.turn_on(terms()).await;
    let start_ms = now_ms();
    for count in 1..=7 {
        sim.look(start_ms + count).await;
        if sim.world.balance() != "0" {
            sim.world.spend(1_000);
        }
    }
    assert_eq!(sim.charges(), 5, "five of ten dollars are the cap");
    let found = |at_ms| {
        let found = sim.world.payments.auto_topup(&sim.world.account, at_ms);
        found.unwrap().unwrap()
    };
    assert_eq!(found(start_ms).history.month_sum, 5_000);
    assert!(found(start_ms).is_capped() && !found(start_ms + 32 * DAY_MS).is_capped());
    // The holder gets one notice, and another one only after new terms.
    let notices = || sim.fired() == ["auto_topup_capped"];
    assert!(notices(), "{:?}", sim.fired());
    let account = &sim.world.account;
    let alerts = sim.world.accounts.database();
    assert!(
        alerts
            .alerts()
            .mark_alert_seen(account, "auto_topup_capped", start_ms)
            .unwrap()
    );
    sim.look(start_ms + 8).await;
    let fired = alerts.alerts().fired_alerts(account).unwrap();
    assert!(fired[0].is_seen, "not again in this month");
    let payments = &sim.world.payments;
    let mut more = terms();
    more.month_cap = 5_999;
    payments
        .set_auto_topup(&sim.holder(), more, false, "")
        .await
        .unwrap();
    assert!(!notices());
    sim.look(start_ms + 9).await;
    assert!(notices());
    // The next month is at most 31 days away.
    sim.look(start_ms + 32 * DAY_MS).await;
    assert_eq!(sim.charges(), 6);
    let sim = sim_world(tempfile::tempdir().unwrap(), &[("\"90000\"", "\"25\"")]).await;
    sim.turn_on(terms()).await;
    for count in 1..=4 {
        sim.look(start_ms + count).await;
        if sim.world.balance() != "0" {
            sim.world.spend(1_000);
        }
    }
    assert_eq!(sim.charges(), 2, "25 dollars a day");
    assert_eq!(sim.fired(), ["auto_topup_capped"]);
}

#[tokio::test]
async fn three_declined_charges_turn_it_off_and_the_holder_turns_it_on_again() {
    let sim = sim().await;
    sim.turn_on(terms()).await;
    assert!(sim.stripe.decline(3, "insufficient_funds"));
    let start_ms = now_ms();
    let (second_ms, third_ms) = (start_ms + HOUR_MS, start_ms + HOUR_MS + DAY_MS);
    for (at_ms, tries, is_on) in [
        (start_ms, 1, true),
        (second_ms - 1, 1, true),
        (second_ms, 2, true),
        (third_ms - 1, 2, true),
        (third_ms, 3, false),
        (third_ms + 9 * DAY_MS, 3, false),
    ] {
        sim.look(at_ms).await;
        assert_eq!(sim.states(), vec![OrderState::Failed; tries], "{at_ms}");
        assert_eq!(sim.top_up().is_on, is_on, "{at_ms}");
    }
    assert_eq!(sim.charges(), 0);
    let rows = sim.world.accounts.database().auto_topups();
    let again = rows.decline_charge(&sim.orders()[0], "again", None);
    assert!(!again.unwrap(), "a charge is declined once");
    let why = sim.top_up().stopped;
    assert!(
        why.contains("3 charges") && why.contains("insufficient funds"),
        "{why}"
    );
    assert_eq!(sim.fired(), ["auto_topup_stopped", "payment_failed"]);
    let stopped = sim.audit("auto-topup.stop");
    assert!(
        stopped.len() == 1 && stopped[0].starts_with("payments {"),
        "{stopped:?}"
    );
    // Turned on again, it has three tries again.
    sim.world.sql(&format!(
        "UPDATE payment_order SET created_at_ms = created_at_ms - {}",
        2 * DAY_MS
    ));
    let payments = &sim.world.payments;
    let row = payments
        .set_auto_topup(&sim.holder(), terms(), false, "")
        .await
        .unwrap();
    assert!(row.is_on && row.stopped.is_empty() && row.setup.is_none());
    assert_eq!(sim.fired(), ["payment_failed"], "the notice is withdrawn");
    sim.look(now_ms()).await;
    assert_eq!((sim.world.balance(), sim.charges()), ("1000".into(), 1));
    // A paid charge forgives the earlier ones.
    sim.world.spend(1_000);
    assert!(sim.stripe.decline(1, "generic_decline"));
    sim.look(now_ms() + 1).await;
    assert!(sim.top_up().is_on);
}

#[tokio::test]
async fn a_bank_that_wants_its_holder_and_a_removed_card_turn_it_off_at_once() {
    let sim = sim().await;
    sim.turn_on(terms()).await;
    assert!(sim.stripe.decline(1, "authentication_required"));
    sim.look(now_ms()).await;
    let why = sim.top_up().stopped;
    assert!(why.contains("/dashboard/credits?amount=10.00"), "{why}");
    assert_eq!(
        (sim.top_up().is_on, sim.states()),
        (false, vec![OrderState::Failed])
    );
    assert_eq!(sim.fired(), ["auto_topup_stopped"]);
    sim.look(now_ms() + DAY_MS).await;
    assert_eq!((sim.states().len(), sim.charges()), (1, 0));
    let sim = super::wire::sim().await;
    let card = sim.turn_on(terms()).await;
    sim.stripe.detach(&card);
    sim.look(now_ms()).await;
    assert!(
        sim.top_up().stopped.contains("removed"),
        "{}",
        sim.top_up().stopped
    );
    assert_eq!((sim.top_up().is_on, sim.charges()), (false, 0));
}

#[tokio::test]
async fn a_fault_of_the_operator_is_no_try_of_the_holder() {
    let sim = sim().await;
    sim.turn_on(terms()).await;
    let refused = || SimStripeFault {
        status: Some(403),
        path: "/v1/payment_intents".into(),
        times: 1,
        ..SimStripeFault::default()
    };
    let start_ms = now_ms();
    for hour in 0..4 {
        sim.stripe.add_fault(refused());
        sim.look(start_ms + hour * HOUR_MS).await;
        sim.look(start_ms + hour * HOUR_MS + 1).await;
    }
    assert_eq!(sim.states(), [OrderState::Expired; 4]);
    assert!(sim.top_up().is_on);
    assert_eq!(sim.fired(), Vec::<String>::new());
    sim.look(start_ms + 4 * HOUR_MS).await;
    assert_eq!(sim.charges(), 1);
}

#[tokio::test]
async fn a_form_for_a_card_that_is_sent_twice_gets_one_page() {
    let sim = sim().await;
    let minute = || now_ms().div_euclid(MINUTE_MS);
    // Until both come in one minute.
    loop {
        let began = minute();
        let (one, other) = tokio::join!(sim.send_form(terms(), "7"), sim.send_form(terms(), "7"));
        if began == minute() {
            assert_eq!(one, other);
            break;
        }
    }
    let another = sim.ask_for_card(terms()).await;
    let open = sim.top_up().setup.unwrap();
    assert_eq!(open.id, another, "of another form");
}

#[tokio::test]
async fn a_suspended_or_deleted_account_is_never_charged() {
    let sim = sim().await;
    let card = sim.turn_on(terms()).await;
    sim.set_status(AccountStatus::Suspended);
    sim.look(now_ms()).await;
    assert_eq!((sim.charges(), sim.orders().len()), (0, 0));
    // Suspended between the order and its charge.
    sim.set_status(AccountStatus::Active);
    sim.fault(SimStripeFault {
        is_cut: true,
        ..SimStripeFault::default()
    });
    sim.look(now_ms()).await;
    sim.set_status(AccountStatus::Suspended);
    sim.poll().await;
    assert_eq!(
        (sim.charges(), sim.states()),
        (0, vec![OrderState::Expired])
    );
    sim.set_status(AccountStatus::Active);
    sim.world.accounts.delete(&sim.holder(), now_ms()).unwrap();
    sim.look(now_ms() + 2 * HOUR_MS).await;
    assert_eq!((sim.charges(), sim.has_card(&card)), (0, false));
    let found = sim.world.payments.auto_topup(&sim.world.account, now_ms());
    assert_eq!(found.unwrap(), None);
}

#[tokio::test]
async fn a_card_that_is_entered_while_the_account_is_suspended_is_not_saved_and_the_page_says_so() {
    let sim = sim().await;
    let first = sim.turn_on(terms()).await;
    let page = sim.ask_for_card(terms()).await;
    let second = sim.stripe.set_up(&page).unwrap();
    sim.set_status(AccountStatus::Suspended);
    sim.deliver();
    sim.finish_setups(now_ms()).await;
    sim.forget_methods(now_ms()).await;
    let row = sim.top_up();
    assert!(!row.is_on && row.setup.is_none());
    assert!(row.stopped.contains("enter it again"), "{}", row.stopped);
    assert!(sim.has_card(&first) && !sim.has_card(&second));
    sim.set_status(AccountStatus::Active);
    let third = sim.turn_on(terms()).await;
    assert!(sim.top_up().stopped.is_empty() && sim.has_card(&third));
}

#[tokio::test]
async fn a_card_that_its_holder_removes_or_replaces_is_removed_at_the_provider() {
    let sim = sim().await;
    let first = sim.turn_on(terms()).await;
    let second = sim.turn_on(terms()).await;
    let customer = |card: &str| sim.stripe.find(card).unwrap()["customer"].clone();
    assert_eq!(
        customer(&first),
        customer(&second),
        "one customer of the account"
    );
    // The provider is away at first.
    sim.fault(SimStripeFault {
        status: Some(500),
        ..SimStripeFault::default()
    });
    sim.forget_methods(now_ms()).await;
    assert!(sim.has_card(&first));
    sim.forget_methods(now_ms() + HOUR_MS + 1_000).await;
    assert!(!sim.has_card(&first) && sim.has_card(&second));
    assert!(
        sim.world
            .payments
            .stop_auto_topup(&sim.holder(), true)
            .unwrap()
    );
    assert!(
        !sim.world
            .payments
            .stop_auto_topup(&sim.holder(), true)
            .unwrap()
    );
    assert_eq!((sim.top_up().is_on, sim.top_up().method), (false, None));
    sim.look(now_ms()).await;
    assert!(!sim.has_card(&second));
    assert_eq!((sim.charges(), sim.audit("auto-topup.stop").len()), (0, 1));
}

#[tokio::test]
async fn a_card_that_is_entered_on_a_page_that_was_given_up_is_removed_at_the_provider() {
    let sim = sim().await;
    let replaced = sim.ask_for_card(terms()).await;
    let page = sim.ask_for_card(terms()).await;
    let first = sim.stripe.set_up(&replaced).unwrap();
    sim.deliver();
    sim.look(now_ms()).await;
    assert!(!sim.has_card(&first), "of a page that another one replaced");
    let second = sim.stripe.set_up(&page).unwrap();
    let stopped = sim
        .world
        .payments
        .stop_auto_topup(&sim.holder(), false)
        .unwrap();
    sim.deliver();
    sim.look(now_ms()).await;
    assert!(stopped && !sim.has_card(&second), "turned off meanwhile");
    let page = sim.ask_for_card(terms()).await;
    let third = sim.stripe.set_up(&page).unwrap();
    sim.world.accounts.delete(&sim.holder(), now_ms()).unwrap();
    sim.deliver();
    sim.look(now_ms()).await;
    assert!(!sim.has_card(&third), "deleted meanwhile");
}

#[tokio::test]
async fn the_page_for_a_card_of_a_deleted_account_is_closed() {
    let sim = sim().await;
    let page = sim.ask_for_card(terms()).await;
    sim.world.accounts.delete(&sim.holder(), now_ms()).unwrap();
    sim.look(now_ms()).await;
    assert_eq!(sim.stripe.find(&page).unwrap()["status"], "expired");
}

#[tokio::test]
async fn a_charge_that_is_not_credited_is_the_last_one() {
    let sim = sim().await;
    sim.turn_on(terms()).await;
    sim.fault(SimStripeFault {
        is_cut: true,
        ..SimStripeFault::default()
    });
    sim.look(now_ms()).await;
    let order = sim.orders().remove(0);
    let charge = Checkout {
        id: "pi_1".into(),
        url: None,
        state: CheckoutState::Paid,
        order: Some(order.id.clone()),
        account: Some(order.account.clone()),
        amount: Some(order.amount - 1),
        currency: Some(order.currency.clone()),
        tax: None,
        payment: Some("pi_1".into()),
        is_live: false,
        refunded: Some(0),
        disputes: Vec::new(),
        receipt_url: None,
    };
    let payments = &sim.world.payments;
    let provider = payments.provider(&payments.settings().unwrap());
    payments
        .rows()
        .open_checkout(&order.id, "pi_1", "")
        .unwrap();
    for _ in 0..2 {
        payments
            .apply_charge(&order, &charge, &*provider, now_ms())
            .unwrap();
    }
    let row = sim.top_up();
    assert!(!row.is_on && row.stopped.contains("does not match"));
    assert_eq!(sim.states(), [OrderState::Refused]);
    assert_eq!(sim.fired(), ["auto_topup_stopped"]);
    assert_eq!(sim.audit("auto-topup.stop").len(), 1);
}

#[tokio::test]
async fn a_page_for_a_card_is_found_without_its_event_and_given_up() {
    let sim = sim().await;
    // Its event is lost.
    let page = sim.ask_for_card(terms()).await;
    let start_ms = now_ms();
    sim.stripe.set_up(&page).unwrap();
    sim.events();
    sim.finish_setups(start_ms + 4_000).await;
    assert!(!sim.top_up().is_on, "not before five seconds");
    sim.finish_setups(start_ms + 6_000).await;
    assert!(sim.top_up().is_on);
    // Its event overtakes it.
    let subject = EventSubject::Setup("cs_unknown".into());
    assert_eq!(sim.world.handle(subject).unwrap(), EventOutcome::Handled);
    // The holder turns it off while the page is open, and enters a card there.
    sim.world
        .payments
        .stop_auto_topup(&sim.holder(), true)
        .unwrap();
    let page = sim.ask_for_card(terms()).await;
    let open = sim.top_up();
    sim.world
        .payments
        .stop_auto_topup(&sim.holder(), false)
        .unwrap();
    let card = sim.stripe.set_up(&page).unwrap();
    assert_eq!(sim.deliver(), Vec::<String>::new());
    // A look that had begun before.
    let method = format!(
        "{}:{card}",
        sim.stripe.find(&card).unwrap()["customer"]
            .as_str()
            .unwrap()
    );
    sim.world
        .payments
        .store_method(&open, Some((method, "Visa".into())), now_ms())
        .unwrap();
    assert!(!sim.top_up().is_on && sim.top_up().method.is_none());
    sim.look(now_ms() + 1_000).await;
    assert!(!sim.has_card(&card));
    // A page that ends without a card.
    let page = sim.ask_for_card(terms()).await;
    sim.stripe.expire(&page);
    sim.deliver();
    sim.look(now_ms() + 1_000).await;
    assert_eq!((sim.top_up().setup, sim.top_up().is_on), (None, false));
    assert_eq!(sim.charges(), 0);
}

#[tokio::test]
async fn terms_out_of_bounds_are_refused_and_a_changed_currency_charges_nothing() {
    let sim = sim().await;
    type Change = fn(&mut AutoTopUpTerms);
    let changes: [Change; 5] = [
        |it| it.amount = 99,
        |it| it.amount = 100_001,
        |it| it.month_cap = 999,
        |it| it.threshold = Micro::ZERO,
        |it| it.currency = "eur".into(),
    ];
    for change in changes {
        let mut terms = terms();
        change(&mut terms);
        let refused = sim
            .world
            .payments
            .set_auto_topup(&sim.holder(), terms.clone(), false, "")
            .await;
        assert!(
            matches!(refused, Err(PaymentError::Amount(_))),
            "{terms:?}: {refused:?}"
        );
    }
    sim.turn_on(terms()).await;
    sim.world.sql("UPDATE auto_topup SET currency = 'eur'");
    sim.look(now_ms()).await;
    assert_eq!(sim.orders().len(), 0);
}
