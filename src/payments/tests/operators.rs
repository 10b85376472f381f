//! Refunds that operators order, and the comparison of the provider with the ledger.

use super::*;
use crate::payments::{FULL_REFUND, PaymentRefund};

impl World {
    fn operator(&self) -> Actor {
        Actor {
            actor: "acct_operator".into(),
            address: "test".into(),
        }
    }

    async fn refund_by_operator(
        &self,
        order: &OrderRow,
        amount: Option<i64>,
        reference: &str,
    ) -> Result<PaymentRefund, PaymentError> {
        let by = self.operator();
        self.payments
            .refund_order(&by, &order.id, amount, reference)
            .await
    }

    fn refunded(&self, order: &OrderRow) -> i64 {
        let id = order.checkout.as_deref().unwrap();
        self.provider.checkouts.lock().unwrap()[id]
            .refunded
            .unwrap_or(0)
    }

    async fn differences(&self) -> Vec<String> {
        let report = self.payments.reconcile(3, now_ms()).await.unwrap();
        assert_eq!(
            self.payments.last_reconciliation().unwrap().as_ref(),
            Some(&report)
        );
        report.differences.into_iter().map(|it| it.text).collect()
    }
}

#[tokio::test]
async fn a_refund_pays_back_once_and_takes_the_credits_once() {
    let world = world();
    let order = world.buy(10_000).await;
    let refund =
        async |amount, reference| world.refund_by_operator(&order, amount, reference).await;
    let done = refund(Some(2_500), "ticket 1").await.unwrap();
    assert!(done.is_new);
    assert_eq!(
        (world.refunded(&order), world.balance()),
        (2_500, "7875".into())
    );
    let again = refund(Some(2_500), "ticket 1").await.unwrap();
    assert!(!again.is_new, "its reference is known");
    // The event of the provider about it changes nothing.
    world.refund(&order, 2_500).unwrap();
    assert_eq!(
        (world.refunded(&order), world.balance()),
        (2_500, "7875".into())
    );
    for (amount, reference) in [(Some(100), "ticket 1"), (Some(7_501), "ticket 2")] {
        let refused = refund(amount, reference).await.unwrap_err();
        assert!(refused.is_refusal(), "{refused}");
        let is_used = matches!(refused, PaymentError::ReferenceUsed(_));
        assert_eq!(is_used, reference == "ticket 1", "{refused}");
    }
    let rest = refund(None, FULL_REFUND).await.unwrap();
    assert_eq!(rest.refund.amount, 7_500);
    assert_eq!(
        (world.refunded(&order), world.balance()),
        (10_000, "0".into())
    );
    assert!(!refund(None, FULL_REFUND).await.unwrap().is_new);
    let nothing = refund(None, "ticket 3").await.unwrap_err();
    assert!(nothing.to_string().contains("nothing is left"), "{nothing}");
    let open = world.order(1_000).await;
    let unpaid = world.refund_by_operator(&open, None, FULL_REFUND).await;
    assert!(matches!(unpaid, Err(PaymentError::Conflict(_))));
    assert_eq!(world.findings(), Vec::<String>::new());
    let lines = world.accounts.audit_log().rows(None, 50).unwrap();
    let refunds = lines.iter().filter(|row| row.act == "payment.refund");
    assert_eq!(refunds.count(), 7, "an unpaid order was not begun");
}

#[tokio::test]
async fn of_parallel_refunds_with_one_reference_one_is_new() {
    let world = world();
    let order = world.buy(10_000).await;
    let refunds = (0..6).map(|_| world.refund_by_operator(&order, Some(2_500), "ticket 1"));
    let done = futures_util::future::join_all(refunds).await;
    let new = done.iter().filter(|it| it.as_ref().unwrap().is_new);
    assert_eq!(new.count(), 1, "{done:?}");
    assert_eq!(
        (world.refunded(&order), world.balance()),
        (2_500, "7875".into())
    );
}

#[tokio::test]
async fn a_refund_whose_answer_is_lost_is_repeated_and_pays_back_once() {
    let world = world();
    let order = world.buy(1_000).await;
    for how in [Misbehaviour::LosesAnswers, Misbehaviour::Away] {
        world.misbehave(how);
        let lost = world.refund_by_operator(&order, Some(400), "a").await;
        assert!(matches!(lost, Err(PaymentError::Provider(_))), "{lost:?}");
    }
    assert_eq!(
        (world.refunded(&order), world.balance()),
        (400, "1000".into())
    );
    let other = world.refund_by_operator(&order, Some(100), "b").await;
    assert!(matches!(other, Err(PaymentError::Conflict(_))), "{other:?}");
    // By now, the provider has forgotten the key.
    world.provider.refunds.lock().unwrap().clear();
    world.misbehave(Misbehaviour::None);
    let done = world.refund_by_operator(&order, Some(400), "a").await;
    assert!(done.unwrap().is_new);
    assert_eq!(
        (world.refunded(&order), world.balance()),
        (400, "600".into())
    );
    // What the provider refuses is no refund.
    world.misbehave(Misbehaviour::Refuses);
    let refused = world
        .refund_by_operator(&order, None, "b")
        .await
        .unwrap_err();
    assert!(refused.is_refusal(), "{refused}");
    world.misbehave(Misbehaviour::None);
    world.refund_by_operator(&order, None, "b").await.unwrap();
    assert_eq!(
        (world.refunded(&order), world.balance()),
        (1_000, "0".into())
    );
    assert_eq!(world.findings(), Vec::<String>::new());
}

#[tokio::test]
async fn a_comparison_names_what_differs() {
    let world = world();
    let (first, second) = (world.buy(1_000).await, world.buy(2_000).await);
    world.refund(&first, 500).unwrap();
    world
        .provider
        .change(first.checkout.as_deref().unwrap(), |it| {
            it.refunded = Some(500)
        });
    // Two hours ago: what is younger may still be on its way.
    world.sql("UPDATE payment_order SET paid_at_ms = paid_at_ms - 7200000");
    assert_eq!(world.differences().await, Vec::<String>::new());
    let id = second.checkout.clone().unwrap();
    world.provider.change(&id, |it| it.refunded = Some(1_000));
    assert_eq!(
        world.differences().await,
        ["10.00 USD were refunded, and 1000 credits for it are not taken back"]
    );
    world.provider.change(&id, |it| {
        it.refunded = None;
        it.amount = Some(1_999);
    });
    assert_eq!(
        world.differences().await,
        ["19.99 USD were paid, and 20.00 USD were ordered"]
    );
    world.provider.change(&id, |it| {
        it.amount = Some(2_000);
        it.payment = Some("pi_other".into());
    });
    assert_eq!(
        world.differences().await,
        [
            "20.00 USD were paid, and the ledger has no credits for it",
            "20.00 USD are in the ledger as paid, and the provider does not have the payment"
        ]
    );
    world.misbehave(Misbehaviour::Away);
    assert!(world.payments.reconcile(3, now_ms()).await.is_err());
}

#[tokio::test]
async fn what_goes_wrong_is_an_alert_of_who_must_know() {
    let world = world();
    let root = world.open_root();
    let order = world.order(1_000).await;
    let failed = Checkout {
        state: CheckoutState::Failed,
        ..world.pay(&order)
    };
    world.handle(EventSubject::Checkout(failed)).unwrap();
    assert_eq!(world.fired(&world.account), ["payment_failed"]);
    let order = world.buy(1_000).await;
    world.dispute(&order, DisputeOutcome::Inquiry).unwrap();
    assert_eq!(world.fired(&root), Vec::<String>::new());
    world.dispute(&order, DisputeOutcome::Taken).unwrap();
    let order = world.order(1_000).await;
    let other = Checkout {
        amount: Some(999),
        ..world.pay(&order)
    };
    world.handle(EventSubject::Checkout(other)).unwrap();
    assert_eq!(world.fired(&root), ["payment_disputed", "payment_refused"]);
    assert!(!world.differences().await.is_empty());
    let all = ["payment_disputed", "payment_refused", "payments_differ"];
    assert_eq!(world.fired(&root), all);
    assert_eq!(world.fired(&world.account), ["payment_failed"]);
}

#[tokio::test]
async fn the_provider_is_compared_once_a_day() {
    const DAY_MS: i64 = 86_400_000;
    let (world, start_ms) = (world(), now_ms());
    let at = async |now_ms| {
        world.payments.reconcile_daily(now_ms).await.unwrap();
        world.payments.last_reconciliation().unwrap().unwrap().at_ms
    };
    assert_eq!(at(start_ms).await, start_ms);
    assert_eq!(at(start_ms + DAY_MS - 1).await, start_ms);
    assert_eq!(at(start_ms + DAY_MS).await, start_ms + DAY_MS);
}
