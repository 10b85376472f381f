//! Many payments with refunds and disputes of many accounts, whose events come in any order, twice,
//! ten at once, late or never, while the process dies: nothing is lost, and nothing counts twice.

use super::clawback::{Requests, end};
use super::wire::{NEW_SECRET, OLD_SECRET, SimWorld, receive, sim_world};
use super::*;
use crate::billing::Hold;
use std::collections::HashMap;
use vendor_simulator::stripe::{DeliveryPlan, PaymentWay, SignedEvent};

#[tokio::test]
async fn some_hundred_events_in_any_order_add_up() {
    events_in_any_order(400, 30, 7).await;
}

#[tokio::test]
#[ignore = "long load: 10 000 events of 1 000 accounts in any order, with crashes and losses, a minute"]
async fn ten_thousand_events_in_any_order_add_up() {
    events_in_any_order(10_000, 1_000, 11).await;
}

/// Orders that are made before their events come.
const ROUND: usize = 40;

struct Load {
    sim: SimWorld,
    accounts: Vec<String>,
    random: SmallRandom,
    /// Payments by the stage of their life: those that nobody has touched, and open disputes.
    payments: Vec<(String, i64)>,
    disputes: Vec<String>,
    debits: Vec<String>,
    /// Events that were answered with an error: Stripe sends them again.
    again: Vec<SignedEvent>,
    spent: Micro,
    deliveries: usize,
    /// `None` while the process is dead.
    requests: Option<Requests>,
    /// Running requests, and the most that each can cost.
    running: Vec<(Hold, u64)>,
    /// Payments that waited for requests, after each round of deliveries.
    held: i64,
}

async fn events_in_any_order(count: usize, accounts: usize, seed: u64) {
    // In memory, if there is such a folder: the waits for a disk say nothing about the order.
    let memory = std::path::Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let mut sim = sim_world(folder.unwrap(), &[]).await;
    let requests = Requests::serve(sim.world.folder.path());
    sim.world.settle_in(requests.service.billing());
    let open = |number| sim.world.open_account(&format!("{number}@example.com"));
    let accounts = (0..accounts).map(open).collect();
    let mut load = Load {
        sim,
        accounts,
        random: SmallRandom(seed),
        payments: Vec::new(),
        disputes: Vec::new(),
        debits: Vec::new(),
        again: Vec::new(),
        spent: Micro::ZERO,
        deliveries: 0,
        requests: Some(requests),
        running: Vec::new(),
        held: 0,
    };
    while load.deliveries < count {
        load.act().await;
        load.deliver(10);
        load.held += load.count("SELECT count(*) FROM payment_order WHERE clawback = 'held'");
        if load.random.below(4) == 0 {
            load.poll_some().await;
        }
        if load.random.below(6) == 0 {
            load.die();
        }
    }
    load.finish().await;
    load.check();
}

impl Load {
    /// Holders order and pay, the merchant refunds, banks dispute.
    async fn act(&mut self) {
        for _ in 0..ROUND {
            let account = &self.accounts[self.random.below(self.accounts.len())];
            let amount = 100 * (1 + i64::try_from(self.random.below(150)).unwrap());
            let order = match self.sim.world.payments.order(account, amount).await {
                Ok(order) => order,
                Err(PaymentError::Limit(InsertOrderOutcome::Suspended)) => {
                    // The operator forgives what was written off.
                    let active = accounts::AccountStatus::Active;
                    let accounts = &self.sim.world.accounts;
                    accounts.set_status(account, active).unwrap();
                    continue;
                }
                Err(PaymentError::Limit(_)) => continue,
                Err(error) => panic!("{error}"),
            };
            let session = order.checkout.unwrap();
            match self.random.below(10) {
                0 => self.sim.stripe.expire(&session),
                1 => {
                    self.sim.stripe.pay(&session, PaymentWay::BankDebit);
                    self.debits.push(session);
                }
                _ => {
                    let payment = self.sim.stripe.pay(&session, PaymentWay::Card).unwrap();
                    self.payments.push((payment, amount));
                }
            }
        }
        for _ in 0..ROUND / 2 {
            let index = self.random.below(self.payments.len());
            let (payment, amount) = self.payments[index].clone();
            match self.random.below(5) {
                0..3 => {
                    let part = 1 + self.random.below(usize::try_from(amount).unwrap());
                    // Refused if that much is not left, or if a bank has the money.
                    self.sim
                        .stripe
                        .refund(&payment, i64::try_from(part).unwrap());
                }
                3 => {
                    let dispute = self.sim.stripe.dispute(&payment, amount, "needs_response");
                    self.disputes.extend(dispute);
                    self.payments.swap_remove(index);
                }
                _ => self.spend(),
            }
            self.begin_request();
        }
        while self.running.len() > ROUND {
            self.end_request();
        }
        while self.disputes.len() > ROUND / 4 {
            let dispute = self
                .disputes
                .swap_remove(self.random.below(self.disputes.len()));
            let outcome = if self.random.below(2) == 0 {
                "won"
            } else {
                "lost"
            };
            self.sim.stripe.close_dispute(&dispute, outcome);
        }
        while self.debits.len() > ROUND / 8 {
            let session = self.debits.swap_remove(0);
            self.sim.stripe.confirm(&session, self.random.below(4) != 0);
        }
    }

    /// A request of an account begins, and holds half of what the account has.
    fn begin_request(&mut self) {
        let account = self.accounts[self.random.below(self.accounts.len())].clone();
        let world = &self.sim.world;
        if !world
            .accounts
            .database()
            .people()
            .may_spend(&account)
            .unwrap()
        {
            return;
        }
        let balance = world.billing.balance(&account, now_ms()).unwrap();
        let credits = u64::try_from(balance.available.get()).unwrap() / 2_000_000;
        let number = world.events.fetch_add(1, Ordering::Relaxed);
        if let (Some(requests), 1..) = (&self.requests, credits) {
            let hold = requests.begin(number, &account, credits);
            self.running.extend(hold.map(|hold| (hold, credits)));
        }
    }

    /// A request ends, for free or for a part of what it holds.
    fn end_request(&mut self) {
        let (hold, most) = self
            .running
            .swap_remove(self.random.below(self.running.len()));
        let cost = match self.random.below(3) {
            0 => 0,
            _ => self.random.below(usize::try_from(most).unwrap() + 1),
        };
        let debited = end(hold, u64::try_from(cost).unwrap());
        self.spent = self.spent.plus(debited);
    }

    /// An account spends a part of what it has.
    fn spend(&mut self) {
        let account = self.accounts[self.random.below(self.accounts.len())].clone();
        let balance = self
            .sim
            .world
            .billing
            .balance(&account, now_ms())
            .unwrap()
            .available;
        let part = Micro::new(balance.get() / 3);
        if part.is_positive() {
            let number = self.sim.world.events.fetch_add(1, Ordering::Relaxed);
            let change = BalanceChange {
                kind: BalanceChangeKind::Adjust { reason: "spent" },
                reference: &format!("spent {number}"),
                account: &account,
                amount: Micro::ZERO.minus(part),
                actor: None,
                at_ms: now_ms(),
            };
            self.sim
                .world
                .billing
                .corrections()
                .post_change(&change)
                .unwrap();
            self.spent = self.spent.plus(part);
        }
    }

    /// Delivers the events that there are. `lost` is a percentage.
    fn deliver(&mut self, lost: u64) {
        let seed = u64::try_from(self.random.below(usize::MAX)).unwrap();
        let plan = DeliveryPlan {
            seed,
            lost,
            doubled: 30,
            is_shuffled: true,
        };
        let mut events = self.sim.stripe.take_deliveries(plan);
        events.append(&mut self.again);
        while !events.is_empty() {
            let event = events.swap_remove(self.random.below(events.len()));
            let is_handled = match self.random.below(20) {
                0 => self.receive_ten_at_once(&event),
                _ => self.receive(&event),
            };
            if !is_handled {
                self.again.push(event);
            } else if self.random.below(10) == 0 {
                self.forget(&event);
                self.again.push(event);
            }
        }
    }

    fn receive(&mut self, event: &SignedEvent) -> bool {
        self.deliveries += 1;
        let secret = [OLD_SECRET, NEW_SECRET][self.random.below(2)];
        is_handled(receive(
            &self.sim.world.payments,
            &event.body,
            secret,
            now_ms() / 1_000,
        ))
    }

    fn receive_ten_at_once(&mut self, event: &SignedEvent) -> bool {
        self.deliveries += 10;
        let payments = &self.sim.world.payments;
        std::thread::scope(|threads| {
            let all: Vec<_> = (0..10)
                .map(|_| {
                    threads.spawn(|| receive(payments, &event.body, NEW_SECRET, now_ms() / 1_000))
                })
                .collect();
            all.into_iter()
                .map(|it| is_handled(it.join().unwrap()))
                .fold(true, |all, it| all & it)
        })
    }

    /// What a crash after the entries leaves: neither the order nor the event knows of them.
    fn forget(&self, event: &SignedEvent) {
        let value: serde_json::Value = serde_json::from_str(&event.body).unwrap();
        let id = value["data"]["object"]["id"].as_str().unwrap();
        self.sim.world.sql(&format!(
            "UPDATE payment_order SET state = 'open', paid_at_ms = NULL, refunded = 0 WHERE checkout = '{id}' AND state = 'paid';
             DELETE FROM payment_event WHERE id LIKE '{}:%'",
            event.id
        ));
    }

    /// The process ends, and another one opens its files.
    fn die(&mut self) {
        while !self.running.is_empty() {
            self.end_request();
        }
        if let Some(requests) = self.requests.take() {
            requests.service.shut_down();
        }
        let world = &mut self.sim.world;
        world.accounts = Accounts::open(world.folder.path()).unwrap();
        let requests = Requests::serve(world.folder.path());
        world.settle_in(requests.service.billing());
        self.requests = Some(requests);
    }

    async fn poll_some(&mut self) {
        let sql = "UPDATE payment_order SET next_poll_at_ms = 0 WHERE next_poll_at_ms IS NOT NULL AND random() % 8 = 0";
        self.sim.world.sql(sql);
        self.sim.world.payments.poll_due(now_ms()).await.unwrap();
        self.take_held();
    }

    fn take_held(&self) {
        self.sim.world.payments.finish_clawbacks(now_ms()).unwrap();
    }

    /// What was lost is found by polls; what was refused comes again.
    async fn finish(&mut self) {
        for session in std::mem::take(&mut self.debits) {
            self.sim.stripe.confirm(&session, true);
        }
        for _ in 0..2 {
            self.deliver(10);
            self.sim.world.sql(
                "UPDATE payment_order SET next_poll_at_ms = 0 WHERE next_poll_at_ms IS NOT NULL",
            );
            let due = "SELECT count(*) FROM payment_order WHERE next_poll_at_ms = 0";
            while self.count(due) > 0 {
                self.sim.world.payments.poll_due(now_ms()).await.unwrap();
            }
        }
        for _ in 0..10 {
            self.deliver(0);
        }
        while !self.running.is_empty() {
            self.end_request();
            self.take_held();
        }
        let open = self.count("SELECT count(*) FROM payment_order WHERE clawback <> 'none'");
        assert_eq!(open, 0, "no request holds credits any more");
        assert!(self.held > 0, "some payments waited for requests");
        assert_eq!(
            self.again
                .iter()
                .filter(|it| it.kind.starts_with("charge."))
                .count()
                .min(1),
            0,
            "{:?}",
            self.again
        );
    }

    fn count(&self, sql: &str) -> i64 {
        let database = self.sim.world.accounts.database();
        database.with_writer(|connection| connection.query_row(sql, [], |row| row.get(0)).unwrap())
    }

    fn check(&self) {
        let world = &self.sim.world;
        let rows = world.accounts.database().payments();
        let (mut left, mut written_off) = (HashMap::<String, Micro>::new(), Micro::ZERO);
        let money = self.sim.stripe.money();
        for charge in &money {
            let order = rows.order(&charge.order).unwrap().unwrap();
            assert_eq!(
                order.state,
                OrderState::Paid,
                "{}: {}",
                order.id,
                order.note
            );
            // What Stripe has of the payment, in credits, computed apart from the product.
            let all = i128::from(order.credits.get() + order.bonus.get());
            let share = |minor: i64| all * i128::from(minor) / i128::from(charge.amount);
            let expected = (all - share(charge.refunded) - share(charge.disputed)).max(0);
            let totals = world
                .billing
                .ledger()
                .changes()
                .payment_totals(order.payment.as_deref().unwrap())
                .unwrap();
            assert_eq!(i128::from(totals.left().get()), expected, "{charge:?}");
            assert_eq!(i128::from(totals.bought.get()), all, "{charge:?}");
            written_off = written_off.plus(totals.written_off());
            let sum = left.entry(order.account).or_insert(Micro::ZERO);
            *sum = sum.plus(totals.left());
        }
        let paid = self.count("SELECT count(*) FROM payment_order WHERE state = 'paid'");
        assert_eq!(
            usize::try_from(paid).unwrap(),
            money.len(),
            "no order is paid without money"
        );
        let balance = |account: &String| world.billing.balance(account, now_ms()).unwrap().balance;
        let balances = self
            .accounts
            .iter()
            .map(balance)
            .fold(Micro::ZERO, Micro::plus);
        let kept = left.into_values().fold(Micro::ZERO, Micro::plus);
        assert_eq!(
            balances,
            kept.plus(written_off).minus(self.spent),
            "nothing is lost, and nothing doubled"
        );
        assert_eq!(world.findings(), Vec::<String>::new());
    }
}

/// Whether an event is done with. One that is too early comes again; nothing else may go wrong.
fn is_handled(outcome: Result<EventOutcome, String>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(message) if message.starts_with("no ") => false,
        Err(message) => panic!("{message}"),
    }
}

/// A generator whose numbers a seed decides (xorshift).
struct SmallRandom(u64);

impl SmallRandom {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound).unwrap()).unwrap()
    }
}
