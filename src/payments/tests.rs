//! Payments against a provider that is played: what an event changes, however often, late, or out
//! of order it comes. `tests/wire.rs` and `tests/load.rs` use a simulated Stripe instead.

mod auto_topup;
mod clawback;
mod codes;
mod load;
mod operators;
mod wire;

use super::provider::{
    ChargeOutcome, ChargeRequest, Checkout, CheckoutRequest, CheckoutState, Dispute,
    DisputeOutcome, EventError, EventSubject, ListedPayment, MethodPage, PaymentProvider,
    ProviderError, ProviderEvent, Refunded, SetupRequest, SetupState,
};
use super::service::Payments;
use super::{EventOutcome, OrderRow, OrderState, PaymentError};
use crate::billing::Billing;
use accounts::Accounts;
use accounts::db::payments::InsertOrderOutcome;
use accounts::{Actor, NewAccount, Role, open_account};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use base::clock::now_ms;
use credits::money::Micro;
use http::HeaderMap;
use ledger::{BalanceChange, BalanceChangeKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

const SECTION: &str = "payments:
  provider: stripe
  secret_key: sk_test_abc
  webhook_secret: whsec_abc
  currency: usd
  credit_price: \"0.01\"
  min: \"1\"
  bonus: [{from: \"100\", percent: \"5\"}]
  per_account_per_day: \"PER_DAY\"
";

/// How the provider misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Misbehaviour {
    None,
    /// It does nothing and does not answer.
    Away,
    /// It acts, and its answer is lost.
    LosesAnswers,
    Refuses,
    /// Its checkouts have no page.
    HasNoPage,
}

struct PlayedProvider {
    checkouts: Mutex<BTreeMap<String, Checkout>>,
    /// Keys of the refunds that it has made.
    refunds: Mutex<BTreeSet<String>>,
    misbehaviour: Mutex<Misbehaviour>,
    /// Happens while the next checkout is created, of the order with this id.
    meanwhile: Mutex<Option<Meanwhile>>,
}

type Meanwhile = Box<dyn FnOnce(&str) + Send>;

impl PlayedProvider {
    fn answer<T>(&self, act: impl FnOnce() -> T) -> Result<T, ProviderError> {
        let lost = || ProviderError::Unavailable("no answer".into());
        match *self.misbehaviour.lock().unwrap() {
            Misbehaviour::None | Misbehaviour::HasNoPage => Ok(act()),
            Misbehaviour::Away => Err(lost()),
            Misbehaviour::LosesAnswers => {
                act();
                Err(lost())
            }
            Misbehaviour::Refuses => Err(ProviderError::Refused {
                operation: "a test",
                message: "no".into(),
            }),
        }
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Checkout)) {
        change(self.checkouts.lock().unwrap().get_mut(id).unwrap());
    }
}

#[async_trait]
impl PaymentProvider for PlayedProvider {
    async fn create_checkout(
        &self,
        request: &CheckoutRequest<'_>,
    ) -> Result<Checkout, ProviderError> {
        if let Some(act) = self.meanwhile.lock().unwrap().take() {
            act(request.order);
        }
        let has_page = *self.misbehaviour.lock().unwrap() != Misbehaviour::HasNoPage;
        self.answer(|| {
            let id = format!("cs_{}", request.order);
            let new = || Checkout {
                id: id.clone(),
                url: has_page.then(|| format!("https://provider.example/{id}")),
                state: CheckoutState::Open,
                order: Some(request.order.into()),
                account: Some(request.account.into()),
                amount: Some(request.amount),
                currency: Some(request.currency.into()),
                tax: None,
                payment: None,
                is_live: false,
                refunded: None,
                disputes: Vec::new(),
                receipt_url: None,
            };
            let mut checkouts = self.checkouts.lock().unwrap();
            checkouts.entry(id.clone()).or_insert_with(new).clone()
        })
    }

    async fn checkout(&self, id: &str) -> Result<Checkout, ProviderError> {
        self.answer(|| self.checkouts.lock().unwrap()[id].clone())
    }

    async fn expire_checkout(&self, id: &str) -> Result<(), ProviderError> {
        let state = self.checkouts.lock().unwrap().get(id).map(|it| it.state);
        if state.is_some_and(|state| state != CheckoutState::Open) {
            return Err(ProviderError::Refused {
                operation: "to expire a checkout",
                message: "it is not open".into(),
            });
        }
        self.answer(|| self.change(id, |it| it.state = CheckoutState::Expired))
    }

    async fn refund(&self, payment: &str, amount: i64, key: &str) -> Result<(), ProviderError> {
        self.answer(|| {
            if !self.refunds.lock().unwrap().insert(key.to_owned()) {
                return;
            }
            let payment = payment.strip_prefix("stripe:").unwrap();
            let mut checkouts = self.checkouts.lock().unwrap();
            let checkout = checkouts
                .values_mut()
                .find(|it| it.payment.as_deref() == Some(payment))
                .unwrap();
            checkout.refunded = Some(checkout.refunded.unwrap_or(0) + amount);
        })
    }

    async fn payments_between(
        &self,
        _: i64,
        _: i64,
        after: Option<&str>,
    ) -> Result<Vec<ListedPayment>, ProviderError> {
        self.answer(|| {
            let checkouts = self.checkouts.lock().unwrap();
            let listed = checkouts.values().filter_map(|checkout| {
                Some(ListedPayment {
                    id: checkout.payment.clone()?,
                    order: checkout.order.clone(),
                    amount: checkout.amount?,
                    currency: checkout.currency.clone()?,
                    refunded: checkout.refunded.unwrap_or(0),
                    is_disputed: !checkout.disputes.is_empty(),
                    is_paid: checkout.state == CheckoutState::Paid,
                })
            });
            let mut listed: Vec<_> = listed.collect();
            listed.sort_by(|one, other| one.id.cmp(&other.id));
            // One payment a page.
            let mut rest = listed
                .into_iter()
                .skip_while(|it| after.is_some_and(|id| it.id.as_str() <= id));
            rest.next().into_iter().collect()
        })
    }

    async fn create_setup(&self, _: &SetupRequest<'_>) -> Result<MethodPage, ProviderError> {
        unreachable!("no test of this provider saves a card")
    }

    async fn setup(&self, _: &str) -> Result<SetupState, ProviderError> {
        unreachable!("no test of this provider saves a card")
    }

    async fn charge(&self, _: &ChargeRequest<'_>) -> Result<ChargeOutcome, ProviderError> {
        unreachable!("no test of this provider charges a card")
    }

    async fn find_charge(&self, _: &ChargeRequest<'_>) -> Result<Option<Checkout>, ProviderError> {
        unreachable!("no test of this provider charges a card")
    }

    async fn forget_method(&self, _: &str) -> Result<(), ProviderError> {
        unreachable!("no test of this provider saves a card")
    }

    fn read_event(&self, _: &HeaderMap, _: &[u8], _: i64) -> Result<ProviderEvent, EventError> {
        Err(EventError::Body)
    }

    fn reference(&self, payment: &str) -> String {
        format!("stripe:{payment}")
    }
}

struct World {
    folder: TempDir,
    accounts: Accounts,
    billing: Billing,
    provider: Arc<PlayedProvider>,
    payments: Payments,
    account: String,
    events: AtomicU64,
}

fn world() -> World {
    world_with("2000")
}

fn world_with(per_day: &str) -> World {
    world_in(
        tempfile::tempdir().unwrap(),
        &SECTION.replace("PER_DAY", per_day),
    )
}

/// A world with its data in a folder, and with this section of the config.
fn world_in(folder: TempDir, section: &str) -> World {
    let text = format!("{}{section}", include_str!("../../conf/local.yaml"));
    let settings = config::parse(&text, &|_| None).unwrap();
    let accounts = Accounts::open(folder.path()).unwrap();
    let billing = Billing::open(folder.path()).unwrap();
    let provider = Arc::new(PlayedProvider {
        checkouts: Mutex::default(),
        refunds: Mutex::default(),
        misbehaviour: Mutex::new(Misbehaviour::None),
        meanwhile: Mutex::default(),
    });
    let settings = Arc::new(ArcSwap::from_pointee(settings));
    let payments = Payments {
        provider: Some(Arc::clone(&provider) as _),
        ..Payments::new(accounts.clone(), billing.clone(), settings)
    };
    let mut world = World {
        folder,
        accounts,
        billing,
        provider,
        payments,
        account: String::new(),
        events: AtomicU64::new(0),
    };
    world.account = world.open_account("a@example.com");
    world
}

impl World {
    fn open_account(&self, email: &str) -> String {
        let new = NewAccount::new(email);
        let opened = open_account(&self.accounts, self.billing.ledger(), &new, now_ms());
        opened.unwrap().id
    }

    /// Opens the account of an administrator.
    fn open_root(&self) -> String {
        let new = NewAccount {
            role: Role::Admin,
            ..NewAccount::new("root@example.com")
        };
        let opened = open_account(&self.accounts, self.billing.ledger(), &new, now_ms());
        opened.unwrap().id
    }

    /// The alerts that an account got.
    fn fired(&self, account: &str) -> Vec<String> {
        let rows = self.accounts.database().alerts();
        let fired = rows.fired_alerts(account).unwrap();
        fired.into_iter().map(|row| row.rule).collect()
    }

    fn balance(&self) -> String {
        let balance = self.billing.balance(&self.account, now_ms()).unwrap();
        balance.balance.to_string()
    }

    async fn order(&self, amount: i64) -> OrderRow {
        self.payments.order(&self.account, amount).await.unwrap()
    }

    fn state(&self, order: &OrderRow) -> OrderState {
        let rows = self.accounts.database().payments();
        rows.order(&order.id).unwrap().unwrap().state
    }

    /// The holder pays, and the provider has not sent its event.
    fn pay(&self, order: &OrderRow) -> Checkout {
        let id = order.checkout.as_deref().unwrap();
        self.provider.change(id, |checkout| {
            checkout.state = CheckoutState::Paid;
            checkout.payment = Some(format!("pi_{}", order.id));
        });
        self.provider.checkouts.lock().unwrap()[id].clone()
    }

    fn event(&self, subject: EventSubject) -> ProviderEvent {
        let number = self.events.fetch_add(1, Ordering::Relaxed);
        ProviderEvent {
            id: format!("evt_{number}"),
            is_live: false,
            subject,
        }
    }

    fn handle(&self, subject: EventSubject) -> Result<EventOutcome, PaymentError> {
        self.payments.handle_event(&self.event(subject), now_ms())
    }

    /// The holder pays, and the event arrives.
    async fn buy(&self, amount: i64) -> OrderRow {
        let order = self.order(amount).await;
        let paid = self.pay(&order);
        self.handle(EventSubject::Checkout(paid)).unwrap();
        order
    }

    fn refund(&self, order: &OrderRow, refunded: i64) -> Result<EventOutcome, PaymentError> {
        self.handle(refund_of(order, refunded))
    }

    fn dispute(
        &self,
        order: &OrderRow,
        outcome: DisputeOutcome,
    ) -> Result<EventOutcome, PaymentError> {
        self.handle(dispute_of(order, outcome))
    }

    fn spend(&self, credits: i64) {
        let change = BalanceChange {
            kind: BalanceChangeKind::Adjust { reason: "spent" },
            reference: &format!("spent {}", self.events.fetch_add(1, Ordering::Relaxed)),
            account: &self.account,
            amount: Micro::new(-credits * 1_000_000),
            actor: None,
            at_ms: now_ms(),
        };
        self.billing.corrections().post_change(&change).unwrap();
    }

    fn status(&self) -> &'static str {
        let account = self.accounts.find(&self.account).unwrap().unwrap();
        account.status.name()
    }

    fn misbehave(&self, how: Misbehaviour) {
        *self.provider.misbehaviour.lock().unwrap() = how;
    }

    fn sql(&self, sql: &str) {
        let database = self.accounts.database();
        database.with_writer(|connection| connection.execute_batch(sql).unwrap());
    }

    fn findings(&self) -> Vec<String> {
        let report = self.billing.verify(now_ms()).unwrap();
        let texts = report.findings.iter();
        texts
            .map(|it| format!("{}: {}", it.rule, it.message))
            .collect()
    }
}

fn refund_of(order: &OrderRow, total: i64) -> EventSubject {
    EventSubject::Refund {
        payment: format!("pi_{}", order.id),
        refunded: Refunded {
            total,
            amount: order.amount,
            currency: order.currency.clone(),
        },
    }
}

fn dispute_of(order: &OrderRow, outcome: DisputeOutcome) -> EventSubject {
    EventSubject::Dispute {
        payment: format!("pi_{}", order.id),
        dispute: Dispute {
            id: format!("dp_{}", order.id),
            amount: order.amount,
            currency: order.currency.clone(),
            outcome,
        },
    }
}

#[tokio::test]
async fn a_payment_is_credited_once_however_often_its_event_comes() {
    let world = world();
    let order = world.order(1_000).await;
    assert_eq!(
        order.checkout_url,
        format!("https://provider.example/cs_{}", order.id)
    );
    let paid = world.pay(&order);
    let event = world.event(EventSubject::Checkout(paid.clone()));
    let handle = || world.payments.handle_event(&event, now_ms()).unwrap();
    assert_eq!(handle(), EventOutcome::Handled);
    assert_eq!(world.balance(), "1000");
    assert_eq!(handle(), EventOutcome::Known);
    // The same id with other content is another event.
    let other = ProviderEvent {
        subject: refund_of(&order, 100),
        ..event.clone()
    };
    let outcome = world.payments.handle_event(&other, now_ms()).unwrap();
    assert_eq!(
        (outcome, world.balance()),
        (EventOutcome::Handled, "900".into())
    );
    let outcome = world.payments.handle_event(&other, now_ms()).unwrap();
    assert_eq!(outcome, EventOutcome::Known);
    // The same payment in other events, ten at once.
    std::thread::scope(|threads| {
        for _ in 0..10 {
            threads.spawn(|| world.handle(EventSubject::Checkout(paid.clone())).unwrap());
        }
    });
    assert_eq!(
        (world.balance(), world.state(&order)),
        ("900".into(), OrderState::Paid)
    );
    assert_eq!(world.findings(), Vec::<String>::new());
}

#[tokio::test]
async fn a_crash_between_the_entry_and_the_order_credits_once() {
    let world = world();
    let order = world.buy(10_000).await;
    assert_eq!(world.balance(), "10500", "with its bonus");
    // The order as a crash after the entry leaves it.
    world.sql(
        "UPDATE payment_order SET state = 'open', paid_at_ms = NULL; DELETE FROM payment_event",
    );
    assert_eq!(world.findings(), Vec::<String>::new());
    let paid = world.pay(&order);
    world.handle(EventSubject::Checkout(paid.clone())).unwrap();
    assert_eq!(
        (world.balance(), world.state(&order)),
        ("10500".into(), OrderState::Paid)
    );
    // After such a crash, another payment of the same checkout buys nothing more.
    world.sql("UPDATE payment_order SET state = 'open', paid_at_ms = NULL");
    let other = Checkout {
        payment: Some("pi_other".into()),
        ..paid
    };
    world.handle(EventSubject::Checkout(other)).unwrap();
    assert_eq!(
        (world.balance(), world.state(&order)),
        ("10500".into(), OrderState::Refused)
    );
}

#[tokio::test]
async fn an_event_that_overtakes_its_order_comes_again() {
    let world = world();
    let order = world.order(1_000).await;
    let paid = world.pay(&order);
    let id = paid.id.clone();
    let unknown = Checkout {
        id: "cs_unknown".into(),
        ..paid.clone()
    };
    let event = world.event(EventSubject::Checkout(unknown));
    let early = world.payments.handle_event(&event, now_ms());
    assert!(matches!(early, Err(PaymentError::NotYet(_))), "{early:?}");
    let early = world.refund(&order, 500);
    assert!(matches!(early, Err(PaymentError::NotYet(_))), "{early:?}");
    assert_eq!(world.balance(), "0");
    // Not marked: the same event counts once its order is known.
    world.provider.change(&id, |_| ());
    world.sql(&format!(
        "UPDATE payment_order SET checkout = 'cs_unknown' WHERE checkout = '{id}'"
    ));
    assert_eq!(
        world.payments.handle_event(&event, now_ms()).unwrap(),
        EventOutcome::Handled
    );
    world.refund(&order, 500).unwrap();
    assert_eq!(world.balance(), "500");
}

#[tokio::test]
async fn a_payment_that_differs_from_its_order_is_not_credited() {
    let world = world();
    type Change = fn(&mut Checkout);
    let changes: [(&str, Change); 5] = [
        ("amount", |it| it.amount = Some(999)),
        ("currency", |it| it.currency = Some("eur".into())),
        ("account", |it| it.account = Some("acct_other".into())),
        ("order", |it| it.order = None),
        ("payment", |it| it.payment = None),
    ];
    for (what, change) in changes {
        let order = world.order(1_000).await;
        let mut paid = world.pay(&order);
        change(&mut paid);
        world.handle(EventSubject::Checkout(paid)).unwrap();
        assert_eq!(world.state(&order), OrderState::Refused, "{what}");
        let rows = world.accounts.database().payments();
        let note = rows.order(&order.id).unwrap().unwrap().note;
        assert!(note.contains(what), "{note}");
        let failed = Checkout {
            state: CheckoutState::Failed,
            ..world.pay(&order)
        };
        world.handle(EventSubject::Checkout(failed)).unwrap();
        assert_eq!(world.state(&order), OrderState::Refused, "{what}");
    }
    assert_eq!(world.balance(), "0");
    // One payment pays one order. It stays paid, whatever comes later.
    let first = world.buy(1_000).await;
    let root = world.open_root();
    let mut late = world.pay(&first);
    late.amount = Some(1);
    world.handle(EventSubject::Checkout(late)).unwrap();
    let rows = world.accounts.database().payments();
    rows.set_order_state(&first.id, OrderState::Expired, "")
        .unwrap();
    assert_eq!(
        (world.state(&first), world.fired(&root)),
        (OrderState::Paid, Vec::new())
    );
    let second = world.order(1_000).await;
    let mut paid = world.pay(&second);
    paid.payment = Some(format!("pi_{}", first.id));
    world.handle(EventSubject::Checkout(paid)).unwrap();
    assert_eq!(
        (world.balance(), world.state(&second)),
        ("1000".into(), OrderState::Refused)
    );
}

#[tokio::test]
async fn an_event_of_the_live_mode_changes_nothing_with_a_test_key() {
    let world = world();
    let order = world.order(1_000).await;
    let paid = world.pay(&order);
    let event = ProviderEvent {
        is_live: true,
        ..world.event(EventSubject::Checkout(paid))
    };
    let outcome = world.payments.handle_event(&event, now_ms()).unwrap();
    assert_eq!(
        (outcome, world.balance()),
        (EventOutcome::Ignored, "0".into())
    );
}

#[tokio::test]
async fn a_payment_that_the_bank_confirms_later_is_credited_then() {
    let world = world();
    let order = world.order(1_000).await;
    let mut paid = world.pay(&order);
    paid.state = CheckoutState::Processing;
    world.handle(EventSubject::Checkout(paid.clone())).unwrap();
    assert_eq!(
        (world.balance(), world.state(&order)),
        ("0".into(), OrderState::Processing)
    );
    paid.state = CheckoutState::Paid;
    world.handle(EventSubject::Checkout(paid.clone())).unwrap();
    // The first event comes again, late.
    paid.state = CheckoutState::Processing;
    world.handle(EventSubject::Checkout(paid)).unwrap();
    assert_eq!(
        (world.balance(), world.state(&order)),
        ("1000".into(), OrderState::Paid)
    );
}

#[tokio::test]
async fn the_price_of_the_order_holds_and_an_expired_order_that_is_paid_counts() {
    let world = world();
    let order = world.order(1_000).await;
    let text = format!("{}{SECTION}", include_str!("../../conf/local.yaml"));
    let text = text.replace("PER_DAY", "2000").replace("\"0.01\"", "\"1\"");
    let settings = config::parse(&text, &|_| None).unwrap();
    world.payments.settings.store(Arc::new(settings));
    let mut expired = world.pay(&order);
    expired.state = CheckoutState::Expired;
    world.handle(EventSubject::Checkout(expired)).unwrap();
    assert_eq!(world.state(&order), OrderState::Expired);
    let paid = world.pay(&order);
    world.handle(EventSubject::Checkout(paid)).unwrap();
    assert_eq!(
        (world.balance(), world.state(&order)),
        ("1000".into(), OrderState::Paid)
    );
}

#[tokio::test]
async fn refunds_take_the_difference_in_any_order() {
    let world = world();
    let order = world.buy(10_000).await;
    for (refunded, balance) in [
        (2_500, "7875"),
        (2_500, "7875"),
        (7_500, "2625"),
        // Late: it is a part of the one before.
        (5_000, "2625"),
        (10_000, "0"),
        (10_000, "0"),
    ] {
        world.refund(&order, refunded).unwrap();
        assert_eq!(world.balance(), balance, "{refunded}");
    }
    let rows = world.accounts.database().payments();
    rows.clawbacks().set_refunded(&order.id, 5_000).unwrap();
    let refunded = rows.order(&order.id).unwrap().unwrap().refunded;
    assert_eq!(refunded, 10_000, "a total never falls");
    assert_eq!(world.status(), "active", "nothing was spent");
    assert_eq!(world.findings(), Vec::<String>::new());
}

#[tokio::test]
async fn refunds_that_come_at_the_same_time_are_taken_one_after_the_other() {
    let world = world();
    let order = world.buy(10_000).await;
    std::thread::scope(|threads| {
        for part in 1..=20 {
            let (world, order) = (&world, &order);
            threads.spawn(move || world.refund(order, part * 500).unwrap());
        }
    });
    assert_eq!(
        (world.balance(), world.findings()),
        ("0".into(), Vec::new())
    );
}

#[tokio::test]
async fn the_ledger_itself_takes_back_no_more_than_a_payment_bought() {
    let world = world();
    let (order, _) = (world.buy(1_000).await, world.buy(1_000).await);
    let payment = format!("stripe:pi_{}", order.id);
    let take = |credits: i64| {
        let posted = world.billing.corrections().post_change(&BalanceChange {
            kind: BalanceChangeKind::PaymentRefund { payment: &payment },
            reference: &format!("{payment}:{credits}"),
            account: &world.account,
            amount: Micro::new(-credits * 1_000_000),
            actor: None,
            at_ms: now_ms(),
        });
        posted.map_err(|error| error.to_string())
    };
    take(600).unwrap();
    let refused = take(401).unwrap_err();
    assert!(refused.contains("of which 400 are left"), "{refused}");
    take(400).unwrap();
    assert_eq!(world.balance(), "1000");
}

#[tokio::test]
async fn what_is_spent_is_written_off_and_stops_the_account() {
    let world = world();
    let order = world.buy(1_000).await;
    world.spend(400);
    world.refund(&order, 500).unwrap();
    assert_eq!((world.balance(), world.status()), ("100".into(), "active"));
    world.refund(&order, 1_000).unwrap();
    assert_eq!((world.balance(), world.status()), ("0".into(), "suspended"));
    let totals = world
        .billing
        .ledger()
        .changes()
        .payment_totals(&format!("stripe:pi_{}", order.id))
        .unwrap();
    assert_eq!(totals.written_off().to_string(), "400");
    assert_eq!(totals.left(), Micro::ZERO);
    // The operator decides once, and no repetition undoes it.
    world
        .accounts
        .set_status(&world.account, accounts::AccountStatus::Active)
        .unwrap();
    world.refund(&order, 1_000).unwrap();
    assert_eq!(world.status(), "active");
    assert_eq!(world.findings(), Vec::<String>::new());
}

#[tokio::test]
async fn a_dispute_takes_the_credits_and_a_won_one_returns_them() {
    use DisputeOutcome::{Inquiry, Taken, Won};
    let world = world();
    let order = world.buy(1_000).await;
    world.dispute(&order, Inquiry).unwrap();
    assert_eq!(world.balance(), "1000");
    world.dispute(&order, Taken).unwrap();
    world.dispute(&order, Taken).unwrap();
    assert_eq!(world.balance(), "0");
    world.dispute(&order, Won).unwrap();
    world.dispute(&order, Won).unwrap();
    world.dispute(&order, Taken).unwrap();
    assert_eq!(world.balance(), "1000");
    // The end of a dispute overtakes its beginning; some credits are spent.
    let order = world.buy(1_000).await;
    world.spend(1_700);
    world.dispute(&order, Won).unwrap();
    world.dispute(&order, Taken).unwrap();
    assert_eq!((world.balance(), world.status()), ("300".into(), "active"));
    // A refund and a dispute of one payment do not take it twice.
    let order = world.buy(1_000).await;
    world.refund(&order, 800).unwrap();
    world.dispute(&order, Taken).unwrap();
    assert_eq!(world.balance(), "300");
    assert_eq!(world.findings(), Vec::<String>::new());
}

#[tokio::test]
async fn an_order_that_the_provider_does_not_answer_can_never_be_paid_unseen() {
    let world = world();
    let mut seen = std::collections::HashSet::new();
    for (how, state) in [
        (Misbehaviour::Away, OrderState::Created),
        (Misbehaviour::LosesAnswers, OrderState::Created),
        (Misbehaviour::Refuses, OrderState::Failed),
    ] {
        world.misbehave(how);
        let error = world.payments.order(&world.account, 1_000).await;
        assert!(matches!(error, Err(PaymentError::Provider(_))), "{error:?}");
        // Orders of one millisecond have no order among themselves.
        let orders = world.payments.orders_of(&world.account, 9).unwrap();
        let order = orders.into_iter().find(|it| seen.insert(it.id.clone()));
        let order = order.unwrap();
        assert_eq!((order.state, order.checkout), (state, None), "{how:?}");
    }
    // The poller expires what the provider has, and what it gets by asking.
    world.misbehave(Misbehaviour::None);
    world.payments.poll_due(now_ms() + 61_000).await.unwrap();
    let checkouts = world.provider.checkouts.lock().unwrap();
    assert_eq!(checkouts.len(), 2);
    assert!(
        checkouts
            .values()
            .all(|it| it.state == CheckoutState::Expired)
    );
    let orders = world.payments.orders_of(&world.account, 9).unwrap();
    assert!(
        orders.iter().all(|order| !order.state.is_waiting()),
        "{orders:?}"
    );
}

#[tokio::test]
async fn an_order_that_ends_while_its_checkout_is_made_has_no_page_to_pay_at() {
    let world = world();
    let accounts = world.accounts.clone();
    *world.provider.meanwhile.lock().unwrap() = Some(Box::new(move |order| {
        let rows = accounts.database().payments();
        rows.set_order_state(order, OrderState::Expired, "")
            .unwrap();
    }));
    let error = world.payments.order(&world.account, 1_000).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("has ended while"), "{error}");
    let checkouts = world.provider.checkouts.lock().unwrap();
    let states: Vec<_> = checkouts.values().map(|it| it.state).collect();
    assert_eq!(states, [CheckoutState::Expired]);
}

#[tokio::test]
async fn the_poller_finds_a_payment_and_a_refund_whose_events_are_lost() {
    const DAY_MS: i64 = 86_400_000;
    let world = world();
    let order = world.order(1_000).await;
    world.pay(&order);
    let now_ms = now_ms();
    world.payments.poll_due(now_ms + 59_000).await.unwrap();
    assert_eq!(world.balance(), "0", "not before a minute");
    world.misbehave(Misbehaviour::Away);
    world.payments.poll_due(now_ms + 61_000).await.unwrap();
    world.misbehave(Misbehaviour::None);
    world.payments.poll_due(now_ms + 299_000).await.unwrap();
    assert_eq!(
        world.balance(),
        "0",
        "the second poll is after five minutes"
    );
    world.payments.poll_due(now_ms + 301_000).await.unwrap();
    assert_eq!(
        (world.balance(), world.state(&order)),
        ("1000".into(), OrderState::Paid)
    );
    let id = order.checkout.as_deref().unwrap();
    world.provider.change(id, |it| it.refunded = Some(300));
    world
        .payments
        .poll_due(now_ms + 301_000 + DAY_MS)
        .await
        .unwrap();
    assert_eq!(world.balance(), "700");
    assert_eq!(world.findings(), Vec::<String>::new());
}

#[tokio::test]
async fn an_account_orders_no_more_than_the_bounds() {
    let world = world_with("20");
    let amount = |minor| world.payments.order(&world.account, minor);
    for minor in [99, 100_001] {
        let refused = amount(minor).await;
        assert!(
            matches!(refused, Err(PaymentError::Amount(_))),
            "{refused:?}"
        );
    }
    // Ten at once: two of them fit.
    let orders = (0..10).map(|_| amount(1_000));
    let outcomes = futures_util::future::join_all(orders).await;
    assert_eq!(outcomes.iter().filter(|it| it.is_ok()).count(), 2);
    let over = amount(1_000).await;
    let left = InsertOrderOutcome::OverAmount { left: 0 };
    assert!(
        matches!(over, Err(PaymentError::Limit(it)) if it == left),
        "{over:?}"
    );
    world.sql("UPDATE payment_order SET state = 'expired'");
    for _ in 0..18 {
        amount(1_000).await.unwrap();
        world.sql("UPDATE payment_order SET state = 'expired'");
    }
    let many = amount(1_000).await;
    let too_many = InsertOrderOutcome::TooMany;
    assert!(
        matches!(many, Err(PaymentError::Limit(it)) if it == too_many),
        "{many:?}"
    );
}

#[tokio::test]
async fn a_payment_for_a_deleted_account_is_not_lost() {
    let world = world();
    let order = world.order(1_000).await;
    let paid = world.pay(&order);
    let by = Actor {
        actor: world.account.clone(),
        address: String::new(),
    };
    world.accounts.delete(&by, now_ms()).unwrap();
    world.handle(EventSubject::Checkout(paid)).unwrap();
    assert_eq!(
        (world.balance(), world.state(&order)),
        ("1000".into(), OrderState::Paid)
    );
    let refused = world.payments.order(&world.account, 1_000).await;
    assert!(matches!(
        refused,
        Err(PaymentError::Limit(InsertOrderOutcome::NoAccount))
    ));
    // The operator refunds it, as the order says.
    world.refund(&order, 1_000).unwrap();
    assert_eq!(
        (world.balance(), world.findings()),
        ("0".into(), Vec::new())
    );
}

#[tokio::test]
async fn an_audit_finds_an_order_without_its_entry_and_an_entry_without_its_order() {
    let world = world();
    let order = world.buy(1_000).await;
    assert_eq!(world.findings(), Vec::<String>::new());
    world.sql("UPDATE payment_order SET credits = credits + 1");
    assert!(
        world.findings()[0].contains(&order.id),
        "{:?}",
        world.findings()
    );
    world.sql("UPDATE payment_order SET credits = credits - 1, payment = 'stripe:pi_other'");
    let findings = world.findings();
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(
        findings.iter().all(|it| it.starts_with("payment: ")),
        "{findings:?}"
    );
}

#[tokio::test]
async fn a_checkout_whose_answer_was_lost_is_credited_if_it_was_paid() {
    let world = world();
    world.misbehave(Misbehaviour::LosesAnswers);
    let lost = world.payments.order(&world.account, 1_000).await;
    lost.unwrap_err();
    world.misbehave(Misbehaviour::None);
    let id = world
        .provider
        .checkouts
        .lock()
        .unwrap()
        .keys()
        .next()
        .cloned();
    world.provider.change(&id.unwrap(), |checkout| {
        checkout.state = CheckoutState::Paid;
        checkout.payment = Some("pi_1".into());
    });
    world.sql("UPDATE payment_order SET next_poll_at_ms = 0");
    world.payments.poll_due(now_ms()).await.unwrap();
    assert_eq!(world.balance(), "1000");
    assert_eq!(world.findings(), [""; 0]);
}

#[tokio::test]
async fn a_checkout_without_a_page_is_expired_and_the_provider_named() {
    let world = world();
    world.misbehave(Misbehaviour::HasNoPage);
    let error = world.payments.order(&world.account, 1_000).await;
    let error = error.unwrap_err();
    assert!(
        matches!(error, PaymentError::Provider(ProviderError::Unavailable(_))),
        "{error}"
    );
    let checkouts = world.provider.checkouts.lock().unwrap().clone();
    let states: Vec<_> = checkouts.values().map(|it| it.state).collect();
    assert_eq!(states, [CheckoutState::Expired]);
    world.sql("UPDATE payment_order SET next_poll_at_ms = 0");
    world.payments.poll_due(now_ms()).await.unwrap();
    let rows = world.accounts.database().payments();
    let id = checkouts.values().next().unwrap().order.clone();
    let order = rows.order(&id.unwrap()).unwrap().unwrap();
    assert_eq!(
        (order.state, world.balance()),
        (OrderState::Expired, "0".into())
    );
}
