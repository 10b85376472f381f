//! Refunds and disputes of payments whose credits running requests hold: in the process that runs
//! the requests, and in a command beside it.

use super::*;
use crate::billing::{CreditService, Hold, HoldRequest};
use accounts::db::payments::ClawbackState;
use config::Limits;
use config::catalog::CatalogModel;
use credits::price_list::PriceList;
use credits::pricing::{Quote, WorstCase};
use ledger::RequestOutcome;
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;
use std::path::Path;
use test_world::{SOON, wait_for};

/// The gateway's credit service, and a model of which a token costs a credit.
pub struct Requests {
    pub service: CreditService,
    model: Arc<CatalogModel>,
}

impl Requests {
    pub fn serve(folder: &Path) -> Self {
        let service = CreditService::serve(folder, &Limits::default(), None).unwrap();
        let price = PriceList::new([Micro::new(1_000_000_000_000); 5]);
        let model = Arc::new(CatalogModel {
            context_tokens: 1_000_000,
            ..CatalogModel::in_test(Protocol::Chat, price)
        });
        let models = std::slice::from_ref(&model);
        service.billing().store_prices(models, now_ms()).unwrap();
        Self { service, model }
    }

    /// A request begins, and holds this number of credits. `None` if the account has less.
    pub fn begin(&self, id: u64, account: &str, credits: u64) -> Option<Hold> {
        let price = &self.model.price;
        let reach = WorstCase {
            input_tokens: credits - 1,
            input_price: price.input,
            output_price: price.output,
        };
        let request = HoldRequest {
            request_id: format!("req_{id}"),
            account: account.into(),
            key_id: "key_1".into(),
            key_shown: "gw-sk-…".into(),
            member: None,
            model: Arc::clone(&self.model),
            surface: Protocol::Chat,
            bounds: Default::default(),
            conversation: None,
        };
        let quote = Quote::flat(reach, 1, 1, 1);
        let reserved = self.service.reserve(request, &quote, true, now_ms());
        reserved.ok().map(|(hold, _)| hold)
    }
}

/// A request ends, and costs this number of credits.
pub fn end(hold: Hold, credits: u64) -> Micro {
    let usage = Usage {
        input: credits,
        ..Usage::default()
    };
    let outcome = RequestOutcome::Completed;
    hold.settle(usage, outcome, false, now_ms())
        .wait_on_thread()
        .unwrap()
}

/// The balance, the state of the clawback, the written-off credits, and the account's status.
type State = (String, ClawbackState, String, &'static str);

/// A world whose account can run requests.
struct Served {
    world: World,
    requests: Requests,
}

/// Where payments are settled: in the process that runs the requests, or in a command.
const BOTH: [bool; 2] = [false, true];

fn served(is_command: bool) -> Served {
    let mut world = world();
    let requests = Requests::serve(world.folder.path());
    if !is_command {
        world.settle_in(requests.service.billing());
    }
    Served { world, requests }
}

impl World {
    /// Payments are settled in the process that runs requests.
    pub(super) fn settle_in(&mut self, billing: &Billing) {
        self.billing = billing.clone();
        self.payments = Payments {
            provider: self.payments.provider.clone(),
            ..Payments::new(
                self.accounts.clone(),
                billing.clone(),
                Arc::clone(&self.payments.settings),
            )
        };
    }
}

impl Served {
    fn begin(&self, credits: u64) -> Hold {
        let number = self.world.events.fetch_add(1, Ordering::Relaxed);
        let hold = self.requests.begin(number, &self.world.account, credits);
        hold.unwrap()
    }

    fn order(&self, order: &OrderRow) -> OrderRow {
        let rows = self.world.accounts.database().payments();
        rows.order(&order.id).unwrap().unwrap()
    }

    /// The poller comes round.
    fn poll(&self) {
        self.world.payments.finish_clawbacks(now_ms()).unwrap();
    }

    /// The poller comes round until it finds the state. A command sees the end of a request some
    /// milliseconds later.
    fn poll_until(&self, order: &OrderRow, expected: &State) {
        wait_for(&format!("{expected:?}"), SOON, || {
            self.poll();
            (self.state(order) == *expected).then_some(())
        });
    }

    /// What is left of the balance, what the order waits for, what was written off, and whether the
    /// account is suspended or may begin no requests.
    fn state(&self, order: &OrderRow) -> State {
        let row = self.order(order);
        let totals = self.world.billing.ledger().changes();
        let totals = totals.payment_totals(row.payment.as_deref().unwrap());
        let people = self.world.accounts.database();
        let may_spend = people.people().may_spend(&row.account).unwrap();
        let status = match (self.world.status(), may_spend) {
            ("active", false) => "waits",
            (status, _) => status,
        };
        (
            self.world.balance(),
            row.clawback,
            totals.unwrap().written_off().to_string(),
            status,
        )
    }
}

fn state(balance: &str, clawback: ClawbackState, written_off: &str, status: &'static str) -> State {
    (balance.into(), clawback, written_off.into(), status)
}

#[tokio::test]
async fn held_credits_are_taken_when_the_request_has_ended_and_only_spent_ones_are_written_off() {
    use ClawbackState::{Held, None};
    for is_command in BOTH {
        for is_dispute in [false, true] {
            for (cost, written_off, status) in [
                (0, "0", "active"),
                (250, "250", "suspended"),
                (600, "600", "suspended"),
            ] {
                let what = format!("command {is_command}, dispute {is_dispute}, cost {cost}");
                let served = served(is_command);
                let world = &served.world;
                let order = world.buy(1_000).await;
                let hold = served.begin(600);
                let reverse = || match is_dispute {
                    true => world.dispute(&order, DisputeOutcome::Taken).unwrap(),
                    false => world.refund(&order, 1_000).unwrap(),
                };
                reverse();
                let waits = state("600", Held, "0", "waits");
                assert_eq!(served.state(&order), waits, "{what}");
                // Neither the poller nor another event take what is held.
                served.poll();
                reverse();
                assert_eq!(served.state(&order), waits, "{what}");
                assert_eq!(world.findings(), Vec::<String>::new(), "{what}");
                end(hold, cost);
                served.poll_until(&order, &state("0", None, written_off, status));
                // Whoever resumes the account gives it nothing back.
                let active = accounts::AccountStatus::Active;
                world.accounts.set_status(&world.account, active).unwrap();
                served.poll();
                let resumed = state("0", None, written_off, "active");
                assert_eq!(served.state(&order), resumed, "{what}");
                served.requests.service.shut_down();
                assert_eq!(world.findings(), Vec::<String>::new(), "{what}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_spent_already_is_written_off_before_the_requests_end() {
    use ClawbackState::{Held, None};
    for is_command in BOTH {
        let served = served(is_command);
        let world = &served.world;
        let order = world.buy(1_000).await;
        world.spend(300);
        let (first, second) = (served.begin(200), served.begin(300));
        // A part for which enough is free.
        world.refund(&order, 100).unwrap();
        assert_eq!(served.state(&order), state("600", None, "0", "active"));
        world.refund(&order, 1_000).unwrap();
        assert_eq!(served.state(&order), state("500", Held, "300", "suspended"));
        end(first, 0);
        served.poll_until(&order, &state("300", Held, "300", "suspended"));
        end(second, 100);
        served.poll_until(&order, &state("0", None, "400", "suspended"));
        served.requests.service.shut_down();
        assert_eq!(world.findings(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_dispute_that_is_won_while_requests_run_returns_what_was_taken() {
    use ClawbackState::{Held, None};
    use DisputeOutcome::{Taken, Won};
    for is_command in BOTH {
        let served = served(is_command);
        let world = &served.world;
        let order = world.buy(1_000).await;
        let hold = served.begin(600);
        world.dispute(&order, Taken).unwrap();
        assert_eq!(served.state(&order), state("600", Held, "0", "waits"));
        // A refund of the rest arrives too, and takes nothing as long as the bank has it all.
        world.refund(&order, 100).unwrap();
        assert_eq!(served.state(&order), state("600", Held, "0", "waits"));
        world.dispute(&order, Won).unwrap();
        assert_eq!(served.state(&order), state("900", None, "0", "active"));
        end(hold, 0);
        served.poll();
        for late in [Taken, Won] {
            world.dispute(&order, late).unwrap();
        }
        assert_eq!(served.state(&order), state("900", None, "0", "active"));
        served.requests.service.shut_down();
        assert_eq!(world.findings(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn another_payment_pays_what_waits_and_the_account_begins_requests_again() {
    use ClawbackState::{Held, None};
    let served = served(false);
    let world = &served.world;
    let order = world.buy(1_000).await;
    let hold = served.begin(1_000);
    world.refund(&order, 700).unwrap();
    assert_eq!(served.state(&order), state("1000", Held, "0", "waits"));
    world.buy(2_000).await;
    served.poll();
    assert_eq!(served.state(&order), state("2300", None, "0", "active"));
    end(hold, 1_000);
    assert_eq!(served.state(&order).3, "active");
}

#[tokio::test]
async fn a_crash_after_the_record_loses_no_clawback_and_an_audit_sees_one_that_is_lost() {
    let served = served(false);
    let world = &served.world;
    let order = world.buy(1_000).await;
    world.sql("UPDATE payment_order SET refunded = 400, clawback = 'open'");
    assert_eq!(world.findings(), Vec::<String>::new(), "it is on its way");
    // A dispute was recorded too.
    world.sql("UPDATE payment_order SET disputes = json('{\"dp_1\": 100}')");
    served.poll();
    let done = state("500", ClawbackState::None, "0", "active");
    assert_eq!(served.state(&order), done);
    world.sql("UPDATE payment_order SET refunded = 500");
    let findings = world.findings();
    assert!(
        findings.len() == 1 && findings[0].contains("600 credits of stripe:pi_"),
        "{findings:?}"
    );
    world.sql("UPDATE payment_order SET refunded = 300");
    let findings = world.findings();
    assert!(
        findings.len() == 1 && findings[0].contains("in the ledger, but 400 at the provider"),
        "{findings:?}"
    );
}

#[tokio::test]
async fn a_comparison_names_what_is_taken_back_and_not_in_the_ledger() {
    let served = served(false);
    let world = &served.world;
    let (order, lost) = (world.buy(1_000).await, world.buy(2_000).await);
    world.sql("UPDATE payment_order SET paid_at_ms = paid_at_ms - 7200000");
    let hold = served.begin(2_700);
    let change = |order: &OrderRow, change: &dyn Fn(&mut Checkout)| {
        let id = order.checkout.as_deref().unwrap();
        world.provider.change(id, change);
    };
    change(&order, &|it| it.refunded = Some(1_000));
    world.refund(&order, 1_000).unwrap();
    let differences = async || {
        let report = world.payments.reconcile(3, now_ms()).await.unwrap();
        let texts = report.differences.into_iter().map(|it| it.text);
        texts.collect::<Vec<_>>()
    };
    assert_eq!(
        differences().await,
        [
            "10.00 USD were refunded, and 700 credits for it are not taken back: running requests hold them"
        ]
    );
    end(hold, 0);
    served.poll();
    assert_eq!(differences().await, Vec::<String>::new());
    // The event of a dispute is lost, and then the one of its end.
    let disputed = |outcome| match dispute_of(&lost, outcome) {
        EventSubject::Dispute { dispute, .. } => dispute,
        _ => unreachable!(),
    };
    change(&lost, &|it| {
        it.disputes = vec![disputed(DisputeOutcome::Taken)]
    });
    assert_eq!(
        differences().await,
        ["20.00 USD were disputed, and 2000 credits for it are not taken back"]
    );
    world.dispute(&lost, DisputeOutcome::Taken).unwrap();
    assert_eq!(differences().await, Vec::<String>::new());
    change(&lost, &|it| {
        it.disputes = vec![disputed(DisputeOutcome::Won)]
    });
    let id = format!("dp_{}", lost.id);
    assert_eq!(
        differences().await,
        [format!(
            "the bank returned the money of dispute {id}, and 2000 credits are not given back"
        )]
    );
}

#[tokio::test]
async fn a_refused_payment_that_was_paid_back_buys_nothing_when_it_is_reported_right() {
    let world = world();
    let order = world.order(1_000).await;
    let wrong = Checkout {
        amount: Some(999),
        ..world.pay(&order)
    };
    world.handle(EventSubject::Checkout(wrong)).unwrap();
    // The operator pays it back at the provider.
    world.refund(&order, 1_000).unwrap();
    let checkout = order.checkout.as_deref().unwrap();
    let change = |it: &mut Checkout| it.refunded = Some(1_000);
    world.provider.change(checkout, change);
    let right = Checkout {
        refunded: None,
        ..world.pay(&order)
    };
    world.handle(EventSubject::Checkout(right)).unwrap();
    assert_eq!(
        (world.balance(), world.state(&order)),
        ("0".into(), OrderState::Refused),
        "an event does not say what was paid back"
    );
    world.payments.poll_due(now_ms()).await.unwrap();
    assert_eq!(
        (world.balance(), world.state(&order)),
        ("0".into(), OrderState::Paid)
    );
    let rows = world.accounts.database().payments();
    assert_eq!(rows.order(&order.id).unwrap().unwrap().refunded, 1_000);
    assert_eq!(world.findings(), Vec::<String>::new());
}

#[tokio::test]
async fn figures_that_do_not_fit_the_order_are_told_and_right_ones_count_afterwards() {
    let world = world();
    let root = world.open_root();
    let order = world.buy(1_000).await;
    let refunded = |total, amount, currency: &str| Refunded {
        total,
        amount,
        currency: currency.into(),
    };
    for wrong in [
        refunded(1_001, 1_000, "usd"),
        refunded(500, 2_000, "usd"),
        refunded(500, 1_000, "eur"),
    ] {
        let payment = format!("pi_{}", order.id);
        let refunded = wrong.clone();
        world
            .handle(EventSubject::Refund { payment, refunded })
            .unwrap();
        assert_eq!(world.balance(), "1000", "{wrong:?}");
        let rows = world.accounts.database().payments();
        let note = rows.order(&order.id).unwrap().unwrap().note;
        assert!(note.contains(&format!("stripe:pi_{}", order.id)), "{note}");
    }
    assert_eq!(world.fired(&root), ["payments_differ"]);
    world.refund(&order, 300).unwrap();
    assert_eq!(world.balance(), "700");
    // A dispute of too much, or in the currency of the holder's bank, is one of the whole payment.
    for (amount, currency) in [(90_000, "usd"), (10, "eur")] {
        let order = world.buy(1_000).await;
        let disputed = |amount, currency: &str| match dispute_of(&order, DisputeOutcome::Taken) {
            EventSubject::Dispute { payment, dispute } => EventSubject::Dispute {
                payment,
                dispute: Dispute {
                    amount,
                    currency: currency.into(),
                    ..dispute
                },
            },
            _ => unreachable!(),
        };
        world.handle(disputed(amount, currency)).unwrap();
        assert_eq!(world.balance(), "700", "{amount} {currency}");
        world.handle(disputed(400, "usd")).unwrap();
        assert_eq!(world.balance(), "1300", "{amount} {currency}");
        world.dispute(&order, DisputeOutcome::Won).unwrap();
        assert_eq!(world.balance(), "1700");
        world.spend(1_000);
    }
    assert_eq!(world.status(), "active");
    assert_eq!(world.fired(&root), ["payment_disputed", "payments_differ"]);
    assert_eq!(world.findings(), Vec::<String>::new());
}
