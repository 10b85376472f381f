//! Tests the shop of the whole program against a simulated Stripe: the process is killed at each
//! step of a payment, several processes get one event, and clocks are wrong.

use crate::account::micro;
use crate::client::{self, Answer, Request};
use crate::shared::Fleet;
use crate::surface::Chat;
use crate::world::{Plan, SOON, Simulator, World, faketime, wait_for, wait_until};
use base::clock::now_ms;
use serde_json::{Value, json};
use test_world::postgres::PostgresServer;
use test_world::redis::Server;

const SECRET: &str = "whsec_test";

/// A simulated Stripe, as another process. It speaks without TLS, as the config allows on one
/// machine.
struct Stripe(Simulator);

impl Stripe {
    fn start() -> Self {
        Self(Simulator::start_in_the_clear(None))
    }

    /// The config of a gateway that sells credits through it.
    fn sells(&self, plan: Plan) -> Plan {
        let section = format!(
            "payments: {{provider: stripe, secret_key: sk_test_abc, webhook_secret: {SECRET}, currency: usd, credit_price: \"0.01\",
  min: \"1\", bonus: [{{from: \"50\", percent: \"10\"}}], per_account_per_day: \"9000\", api_base: \"http://127.0.0.1:{}\"}}\nsignup:",
            self.0.port
        );
        plan.edit("signup:", &section)
    }

    /// What people do at Stripe: see `crates/vendor-simulator/src/stripe/pages.rs`.
    fn act(&self, page: &str, form: &str) -> Value {
        let request = Request::form(&format!("/_sim/stripe/{page}"), form);
        let answer = client::ask(self.0.port, &request);
        assert_eq!(answer.status, 200, "{page} {form}: {}", answer.text());
        answer.json()
    }

    fn get(&self, path: &str) -> Value {
        client::ask(self.0.port, &Request::get(path).bearer("sk_test_abc")).json()
    }

    /// Sessions, newest first.
    fn sessions(&self) -> Vec<Value> {
        let list = self.get("/v1/checkout/sessions?limit=100");
        list["data"].as_array().unwrap().clone()
    }

    /// The holder pays the newest session. Returns the payment.
    fn pay_newest(&self) -> String {
        let session = self.sessions()[0]["id"].as_str().unwrap().to_owned();
        let paid = self.act("pay", &format!("session={session}"));
        paid["payment_intent"].as_str().unwrap().to_owned()
    }

    /// Takes the events that were not taken before.
    fn events(&self, plan: &str) -> Vec<Value> {
        let events = self.act("deliveries", &format!("secret={SECRET}&{plan}"));
        events.as_array().unwrap().clone()
    }
}

/// A request to the webhook with an event. Stripe signs an event anew each time that it sends it.
fn delivery(event: &Value) -> Request {
    let body = event["body"].as_str().unwrap();
    let signature = vendor_simulator::stripe::sign(SECRET, now_ms() / 1_000, body);
    Request::post("/webhooks/stripe", body).header("stripe-signature", &signature)
}

/// The status of an event's delivery; `None` if the gateway died.
fn deliver(port: u16, event: &Value) -> Option<u16> {
    client::try_ask(port, &delivery(event)).map(|answer| answer.status)
}

fn deliver_all(port: u16, events: &[Value]) {
    for event in events {
        assert_eq!(deliver(port, event), Some(200), "{}", event["body"]);
    }
}

/// A holder with a browser.
struct Holder {
    email: String,
    cookie: String,
    token: String,
}

impl Holder {
    fn sign_up(world: &World, email: &str) -> Self {
        let (status, cookie) = world.sign_up(email, "");
        assert_eq!(status, 303);
        let token = world.form_token(&cookie);
        Self {
            email: email.to_owned(),
            cookie,
            token,
        }
    }

    /// Orders credits for an amount in dollars. `None` if the gateway died.
    fn order(&self, port: u16, amount: u64) -> Option<Answer> {
        let fields = format!("csrf={}&amount={amount}", self.token);
        let form = Request::form("/dashboard/credits", &fields).header("cookie", &self.cookie);
        client::try_ask(port, &form)
    }

    fn page(&self, world: &World) -> String {
        let page = Request::get("/dashboard/credits").header("cookie", &self.cookie);
        world.ask(&page).text()
    }

    /// The balance without the trial, in µc.
    fn bought(&self, world: &World) -> i64 {
        let shown = world.json(&["account", "show", &self.email]);
        let left = &shown["trial"]["credits_left"];
        micro(&shown["balance"]) - if left.is_null() { 0 } else { micro(left) }
    }
}

const CREDIT: i64 = 1_000_000;

/// The environment that shifts the clock.
fn clock(minutes: i32) -> Option<[(&'static str, String); 3]> {
    let library = faketime()?.to_str().unwrap().to_owned();
    Some([
        ("LD_PRELOAD", library),
        ("FAKETIME", format!("{minutes:+}m")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ])
}

impl World {
    /// Kills the gateway, and starts another one whose clock is off by some minutes: with two, the
    /// first poll of an order is due.
    fn restart_at(&mut self, minutes: i32, point: Option<&str>) {
        if !self.has_ended() {
            self.kill();
        }
        let Some(clock) = clock(minutes) else { return };
        self.set_environment(&clock);
        self.start_failing(point);
    }
}

#[test]
fn a_process_that_dies_at_any_step_of_a_payment_neither_loses_nor_doubles_it() {
    if faketime().is_none() {
        return;
    }
    let stripe = Stripe::start();
    let mut world = stripe.sells(Plan::default()).start();
    let holder = Holder::sign_up(&world, "a@example.test");
    // Before Stripe knows the order, and before the order knows its session: nobody has an address
    // to pay at, and both end.
    for (point, sessions) in [("order_stored", 0), ("checkout_created", 1)] {
        world.restart_at(0, Some(point));
        assert!(
            holder
                .order(world.edge, 10)
                .is_none_or(|it| it.status >= 500),
            "{point}"
        );
        world.wait_killed();
        let made = stripe.sessions();
        assert_eq!(
            made.iter().filter(|it| it["status"] == "open").count(),
            sessions,
            "{point}"
        );
        world.restart_at(2, None);
        wait_until("the order to end", SOON, || {
            !holder.page(&world).contains("Not paid yet")
        });
        let sessions = stripe.sessions();
        assert!(
            sessions.iter().all(|it| it["status"] == "expired"),
            "{point}: {sessions:?}"
        );
        deliver_all(world.edge, &stripe.events(""));
    }
    // After the entry and before the mark: the event comes again.
    assert_eq!(holder.order(world.edge, 50).unwrap().status, 303);
    stripe.pay_newest();
    let events = stripe.events("");
    let event = events
        .iter()
        .find(|it| it["type"] == "checkout.session.completed")
        .unwrap();
    world.restart_at(0, Some("payment_entered"));
    assert_eq!(deliver(world.edge, event), None);
    world.wait_killed();
    assert_eq!(
        holder.bought(&world),
        5_500 * CREDIT,
        "the entries are there"
    );
    world.start_gateway();
    assert!(
        holder.page(&world).contains("Not paid yet"),
        "the order does not know"
    );
    for _ in 0..2 {
        deliver_all(world.edge, &events);
    }
    assert_eq!(holder.bought(&world), 5_500 * CREDIT);
    assert!(!holder.page(&world).contains("Not paid yet"));
    // The session is paid before the order knows it: the event overtakes the answer.
    world.restart_at(0, Some("checkout_created"));
    assert!(
        holder
            .order(world.edge, 10)
            .is_none_or(|it| it.status >= 500)
    );
    world.wait_killed();
    stripe.pay_newest();
    let events = stripe.events("");
    let event = events
        .iter()
        .find(|it| it["type"] == "checkout.session.completed")
        .unwrap();
    world.restart_at(0, None);
    assert_eq!(deliver(world.edge, event), Some(500), "not yet");
    world.restart_at(2, None);
    wait_until("the event to be taken", SOON, || {
        deliver(world.edge, event) == Some(200)
    });
    assert_eq!(holder.bought(&world), 6_500 * CREDIT);
}

#[test]
fn a_gateway_whose_clock_is_ten_minutes_off_refuses_events_and_finds_the_payments_itself() {
    if faketime().is_none() {
        return;
    }
    let stripe = Stripe::start();
    let mut world = stripe.sells(Plan::default()).start();
    let holder = Holder::sign_up(&world, "a@example.test");
    for (count, minutes) in [(1, -10), (2, 10)] {
        world.restart_at(minutes, None);
        assert_eq!(
            holder.order(world.edge, 10).unwrap().status,
            303,
            "{minutes}"
        );
        stripe.pay_newest();
        for event in stripe.events("") {
            let answer = world.ask(&delivery(&event));
            assert!(
                answer.status == 400 && answer.has("clock"),
                "{}",
                answer.text()
            );
        }
        world.restart_at(minutes + 2, None);
        wait_until("the poller to find the payment", SOON, || {
            holder.bought(&world) == count * 1_000 * CREDIT
        });
    }
}

#[test]
fn refunds_and_disputes_take_shared_credit_and_stop_the_keys_of_all_edges() {
    let stripe = Stripe::start();
    let mut fleet = Fleet::with(|plan| stripe.sells(plan));
    let (edge, other) = (&fleet.edges[0], &fleet.edges[1]);
    let holder = Holder::sign_up(edge, "a@example.test");
    let (_, key) = fleet.sidecar.key(&holder.email, "test");
    fleet.wait_known(other, &key);
    let available = |edge: &World| {
        let credits = edge.ask(&Request::get("/v1/credits").bearer(&key));
        (credits.status == 200).then(|| micro(&credits.json()["available"]))
    };
    let wait = |credits: i64| {
        for edge in [edge, other] {
            wait_until("the edges to have the balance", SOON, || {
                available(edge) == Some((300 + credits) * CREDIT)
            });
        }
    };
    assert_eq!(holder.order(edge.edge, 50).unwrap().status, 303);
    let payment = stripe.pay_newest();
    // Both edges pass the same events on at the same time.
    let events = stripe.events("");
    std::thread::scope(|threads| {
        for edge in [edge, other] {
            threads.spawn(|| deliver_all(edge.edge, &events));
        }
    });
    wait(5_500);
    stripe.act("refund", &format!("payment={payment}&amount=1000"));
    deliver_all(edge.edge, &stripe.events(""));
    wait(4_400);
    let dispute = stripe.act("dispute", &format!("payment={payment}&amount=4000"));
    let dispute = dispute["dispute"].as_str().unwrap().to_owned();
    deliver_all(other.edge, &stripe.events(""));
    wait(0);
    stripe.act("close_dispute", &format!("dispute={dispute}&status=won"));
    deliver_all(edge.edge, &stripe.events(""));
    wait(4_400);
    // The sidecar dies when Redis has taken a refund and the ledger has not, and the next refund is
    // known first.
    stripe.act("refund", &format!("payment={payment}&amount=500"));
    let first = stripe.events("");
    stripe.act("refund", &format!("payment={payment}&amount=500"));
    let second = stripe.events("");
    fleet.sidecar.kill();
    fleet.sidecar.start_failing(Some("taken_there"));
    let refunded = first
        .iter()
        .find(|it| it["type"] == "charge.refunded")
        .unwrap();
    wait_for("the sidecar to die", SOON, || {
        deliver(edge.edge, refunded);
        fleet.sidecar.has_ended().then_some(())
    });
    fleet.sidecar.start_gateway();
    for event in second.iter().chain(&first) {
        wait_until("the event to be taken", SOON, || {
            deliver(edge.edge, event) == Some(200)
        });
    }
    wait(3_300);
    // Half of it is spent. The rest of the refund is written off, and the keys stop.
    let (id, spent) = (&holder.email, json!("-1650"));
    let spent = spent.as_str().unwrap();
    fleet.sidecar.json(&[
        "ledger", "adjust", id, spent, "--ref", "spent", "--reason", "spent",
    ]);
    wait(1_650);
    stripe.act("refund", &format!("payment={payment}&amount=3000"));
    deliver_all(edge.edge, &stripe.events(""));
    for edge in [edge, other] {
        wait_until("the edges to refuse the key", SOON, || {
            edge.ask(&Request::get("/v1/credits").bearer(&key)).status == 403
        });
    }
    assert_eq!(holder.bought(&fleet.sidecar), 0);
}

/// The config of holds in Redis and a ledger in PostgreSQL, as the value of the key `store`.
fn homes(redis: &Server, postgres: &PostgresServer) -> String {
    format!(
        "{{kind: redis, url: \"redis://127.0.0.1:{}\"}}\n\
         ledger: {{kind: postgres, url: \"postgres://gateway@127.0.0.1:{}/gateway?sslmode=disable\", require_standby: false}}",
        redis.port, postgres.port
    )
}

/// Two sidecars that share a ledger in PostgreSQL. The first holds the ledger.
struct TwoSidecars {
    first: World,
    second: World,
    holder: Holder,
    // Dropped last.
    _stores: (PostgresServer, Server),
}

impl TwoSidecars {
    fn start(stripe: &Stripe) -> Self {
        let (postgres, redis) = (PostgresServer::start(), Server::start());
        postgres.create_database("gateway");
        let homes = format!("store: {}", homes(&redis, &postgres));
        let sidecar = || {
            let plan = Plan::default()
                .role("sidecar")
                .edit("store: {kind: embedded}", &homes);
            stripe.sells(plan).start()
        };
        let (first, second) = (sidecar(), sidecar());
        second.wait_log("this one is a standby");
        // Requests go to the sidecars themselves: an edge would choose one.
        let email = "a@example.test";
        let form = format!("email={email}&password=a+long+password");
        let signed_up = client::ask(first.sidecar, &Request::form("/dashboard/sign-up", &form));
        assert_eq!(signed_up.status, 303, "{}", signed_up.text());
        let cookie = signed_up
            .header("set-cookie")
            .unwrap()
            .split(';')
            .next()
            .unwrap()
            .to_owned();
        let page = client::ask(
            first.sidecar,
            &Request::get("/dashboard/credits").header("cookie", &cookie),
        )
        .text();
        let start = page.find("name=\"csrf\" value=\"").expect("a form token") + 19;
        let holder = Holder {
            email: email.to_owned(),
            cookie,
            token: page[start..start + 64].to_owned(),
        };
        Self {
            first,
            second,
            holder,
            _stores: (postgres, redis),
        }
    }

    /// Kills the first sidecar, and waits until the second holds the ledger.
    fn fail_over(&mut self) {
        self.first.kill();
        wait_until("the second sidecar to hold the ledger", SOON, || {
            self.second.holds_ledger()
        });
    }
}

#[test]
fn two_sidecars_charge_a_card_once_and_so_does_the_one_that_is_left() {
    let stripe = Stripe::start();
    let mut both = TwoSidecars::start(&stripe);
    both.holder.set_auto_top_up(both.second.sidecar);
    stripe.enter_card();
    wait_until("the charge", SOON, || {
        both.holder.balance(&both.first) == 1_300 * CREDIT
    });
    assert_eq!(stripe.charges(), 1);
    both.holder.spend(&both.first, 1_000, "spent");
    both.fail_over();
    // A charge that the first has begun is due again a minute after its order.
    wait_until("the charge to be credited", 4 * SOON, || {
        both.holder.balance(&both.second) == 1_300 * CREDIT
    });
    assert_eq!(stripe.charges(), 2);
}

/// Ends the leases of all requests, without the wait of more than an hour.
fn end_leases(redis: &Server) {
    let names = redis.cli(&["--scan", "--pattern", "gw:*:a:*"]);
    for name in names.lines() {
        let fields = redis.cli(&["HKEYS", name]);
        for request in fields.lines().filter(|field| field.starts_with('~')) {
            let hold = redis.cli(&["HGET", name, request]);
            let (hold, _) = hold.rsplit_once('@').unwrap();
            redis.cli(&["HSET", name, request, &format!("{hold}@1")]);
        }
        let (partition, account) = name.split_once(":a:").unwrap();
        redis.cli(&["ZADD", &format!("{partition}:l"), "1", account]);
    }
}

#[test]
fn credits_that_requests_at_the_edges_hold_are_taken_back_when_these_end() {
    let stripe = Stripe::start();
    let (postgres, redis) = (PostgresServer::start(), Server::start());
    postgres.create_database("gateway");
    let homes = homes(&redis, &postgres);
    let mut fleet = Fleet::on_with(redis, &homes, |plan| {
        let plan = plan
            .edit("trial_credits: \"300\"", "trial_credits: \"1\"")
            .limit("drain_after_client_seconds", 1)
            .limit("drain_reasoning_seconds", 1);
        stripe.sells(plan)
    });
    let holder = Holder::sign_up(&fleet.edges[0], "a@example.test");
    let (_, key) = fleet.sidecar.key(&holder.email, "test");
    fleet.wait_known(&fleet.edges[1], &key);
    let credits = Request::get("/v1/credits").bearer(&key);
    let available = |edge: &World| {
        let answer = edge.ask(&credits);
        (answer.status == 200).then(|| micro(&answer.json()["available"]))
    };
    assert_eq!(holder.order(fleet.edges[0].edge, 10).unwrap().status, 303);
    let payment = stripe.pay_newest();
    deliver_all(fleet.edges[0].edge, &stripe.events(""));
    wait_until("the credits", SOON, || {
        available(&fleet.edges[0]) == Some(1_001 * CREDIT)
    });
    // A request at each edge holds a sixth of them.
    let body = Chat.body("hang=headers", true, 120_000);
    let mut running: Vec<_> = fleet.edges.iter().map(World::connect).collect();
    // The first one holds the trial credit, so that the second one spends what was bought.
    for (count, connection) in (1..).zip(&mut running) {
        assert!(connection.send(&Chat.request(&key, &body).bytes()));
        fleet.sidecar.vendor.wait_busy(count);
    }
    let free = available(&fleet.edges[0]).unwrap();
    assert!((600 * CREDIT..700 * CREDIT).contains(&free), "{free}");
    let shown = |sidecar: &World| sidecar.json(&["payments", "show", &payment]);
    // The sidecar dies at each step: with the refund recorded, with the credits taken in Redis
    // alone, and with a part of them taken in both. The last refund meets the requests.
    for (point, part, left) in [
        ("reversal_recorded", 100, free - 100 * CREDIT),
        ("taken_there", 100, free - 200 * CREDIT),
        ("credits_taken_back", 800, 0),
    ] {
        stripe.act("refund", &format!("payment={payment}&amount={part}"));
        let events = stripe.events("");
        let refunded = events.iter().find(|it| it["type"] == "charge.refunded");
        fleet.sidecar.kill();
        fleet.sidecar.start_failing(Some(point));
        wait_for("the sidecar to die", SOON, || {
            deliver(fleet.edges[0].edge, refunded.unwrap());
            fleet.sidecar.has_ended().then_some(())
        });
        fleet.sidecar.start_gateway();
        // Not only Redis has it: what is left to do would meet the next point at its start.
        if left > 0 {
            wait_for(point, SOON, || {
                let is_taken = available(&fleet.edges[1]) == Some(left);
                (is_taken && shown(&fleet.sidecar)["clawback"] == "none").then_some(())
            });
        }
    }
    wait_until("the refund to wait for the requests", SOON, || {
        shown(&fleet.sidecar)["clawback"] == "held"
    });
    for edge in &fleet.edges {
        wait_until("the edge to refuse the key", SOON, || {
            edge.ask(&credits).status == 403
        });
    }
    let held = 1_001 * CREDIT - free;
    assert_eq!(holder.bought(&fleet.sidecar), held - CREDIT);
    // One request ends. The edge of the other one dies, and its lease ends.
    running.pop();
    wait_until("a part to be taken", SOON, || {
        holder.bought(&fleet.sidecar) < held - CREDIT
    });
    fleet.edges[0].kill();
    assert_eq!(shown(&fleet.sidecar)["clawback"], "held");
    end_leases(&fleet.redis);
    wait_until("the rest to be taken", SOON, || {
        shown(&fleet.sidecar)["clawback"] == "none"
    });
    assert_eq!(holder.bought(&fleet.sidecar), 0);
    // The edge comes back, and has an end of its request that counts no more.
    fleet.edges[0].start_gateway();
    // The input of a request that its client left was spent, and only that.
    let written_off = micro(&shown(&fleet.sidecar)["written_off"]);
    assert!((1..CREDIT / 10).contains(&written_off), "{written_off}");
    let resumed = fleet.sidecar.command(&["account", "resume", &holder.email]);
    assert!(resumed.status.success());
    for edge in &fleet.edges {
        fleet.wait_known(edge, &key);
    }
    assert_eq!(holder.bought(&fleet.sidecar), 0);
}

#[test]
fn an_event_counts_once_when_two_sidecars_on_one_postgres_get_it_and_one_of_them_dies() {
    let stripe = Stripe::start();
    let mut both = TwoSidecars::start(&stripe);
    let TwoSidecars {
        first,
        second,
        holder,
        ..
    } = &both;
    assert_eq!(
        holder.order(second.sidecar, 50).unwrap().status,
        303,
        "the standby passes it on"
    );
    let payment = stripe.pay_newest();
    stripe.act("refund", &format!("payment={payment}&amount=1000"));
    let events = stripe.events("doubled=50&shuffled=true&seed=5");
    let both_at_once = |ports: &[u16]| {
        std::thread::scope(|threads| {
            for port in ports {
                threads.spawn(|| {
                    for event in &events {
                        deliver(*port, event);
                    }
                });
            }
        });
    };
    both_at_once(&[first.sidecar, second.sidecar, first.sidecar, second.sidecar]);
    both.fail_over();
    for event in &events {
        wait_until("the event to be taken", SOON, || {
            deliver(both.second.sidecar, event) == Some(200)
        });
    }
    assert_eq!(both.holder.bought(&both.second), 4_400 * CREDIT);
}

#[test]
fn payments_add_up_whenever_the_process_is_killed() {
    killed_while_events_come(2, 3, 3);
}

#[test]
#[ignore = "long kills: a thousand payments with a kill between each few events, 5 minutes"]
fn a_thousand_payments_add_up_whenever_the_process_is_killed() {
    killed_while_events_come(60, 19, 60);
}

/// Holders buy, get refunds and dispute, while the gateway is killed again and again: by itself
/// after an entry, and from outside at any moment. Events come in any order, twice, or never.
fn killed_while_events_come(holders: usize, orders: usize, kills: usize) {
    if faketime().is_none() {
        return;
    }
    let stripe = Stripe::start();
    let plan = Plan::default().limit("sign_ups_per_address_per_hour", 1_000);
    let mut world = stripe.sells(plan).start();
    let holders: Vec<_> = (0..holders)
        .map(|number| Holder::sign_up(&world, &format!("{number}@example.test")))
        .collect();
    let mut payments = Vec::new();
    for round in 0..orders {
        for (number, holder) in holders.iter().enumerate() {
            let amount = 10 + 7 * (round + number) % 90;
            assert_eq!(holder.order(world.edge, amount as u64).unwrap().status, 303);
            payments.push((stripe.pay_newest(), amount * 100));
        }
    }
    for (number, (payment, amount)) in payments.iter().enumerate() {
        match number % 4 {
            0 => {
                stripe.act(
                    "refund",
                    &format!("payment={payment}&amount={}", amount / 3),
                );
                stripe.act(
                    "refund",
                    &format!("payment={payment}&amount={}", amount / 2),
                );
            }
            1 => {
                let made = stripe.act("dispute", &format!("payment={payment}&amount={amount}"));
                let status = if number % 8 == 1 { "won" } else { "lost" };
                let dispute = made["dispute"].as_str().unwrap();
                stripe.act(
                    "close_dispute",
                    &format!("dispute={dispute}&status={status}"),
                );
            }
            _ => {}
        }
    }
    let mut events = stripe.events("lost=10&doubled=30&shuffled=true&seed=9");
    let part = events.len().div_ceil(kills);
    let mut again = Vec::new();
    for kill in 0..kills {
        let mut now: Vec<_> = events.drain(..part.min(events.len())).collect();
        now.append(&mut again);
        let dies = kill % 2 == 0;
        let points = [
            "payment_entered:2",
            "reversal_recorded",
            "credits_taken_back",
        ];
        let point = points[kill / 2 % points.len()];
        world.restart_at(0, dies.then_some(point));
        for event in now {
            if deliver(world.edge, &event) != Some(200) {
                again.push(event);
            }
            if dies && world.has_ended() {
                world.start_gateway();
            }
        }
    }
    // What was lost is found by a poll, some minutes later; what was refused comes again.
    world.restart_at(3, None);
    wait_for("all events to be taken", 10 * SOON, || {
        again.retain(|event| deliver(world.edge, event) != Some(200));
        again.is_empty().then_some(())
    });
    let waits = |holder: &Holder| holder.page(&world).contains("Not paid yet");
    wait_until("all payments to be found", 10 * SOON, || {
        !holders.iter().any(waits)
    });
    // A day later, the poller finds the refunds and disputes whose events were lost.
    world.restart_at(25 * 60, None);
    let money = stripe.act("money", "");
    let expected: i64 = money.as_array().unwrap().iter().map(kept_credits).sum();
    let bought = || {
        holders
            .iter()
            .map(|holder| holder.bought(&world))
            .sum::<i64>()
    };
    wait_until("the books to agree with Stripe", 10 * SOON, || {
        bought() == expected
    });
}

/// The credits that a payment must leave, in µc: computed from what Stripe has, apart from the
/// product.
fn kept_credits(payment: &Value) -> i64 {
    let number = |name: &str| payment[name].as_i64().unwrap();
    let amount = number("amount");
    // One credit costs a cent; from 50 dollars on, a tenth is added.
    let all = amount * CREDIT
        + if amount >= 5_000 {
            amount * CREDIT / 10
        } else {
            0
        };
    let share = |minor: i64| {
        i64::try_from(i128::from(all) * i128::from(minor) / i128::from(amount)).unwrap()
    };
    all - (share(number("refunded")) + share(number("disputed"))).min(all)
}

impl Holder {
    /// Sets that ten dollars are charged below a balance of 1000 credits, and enters a card.
    fn set_auto_top_up(&self, port: u16) {
        let fields = format!(
            "csrf={}&threshold=1000&auto_amount=10&per_month=100",
            self.token
        );
        let form = Request::form("/dashboard/credits/auto", &fields).header("cookie", &self.cookie);
        let answer = client::ask(port, &form);
        assert_eq!(answer.status, 303, "{}", answer.text());
    }

    fn balance(&self, world: &World) -> i64 {
        micro(&world.json(&["account", "show", &self.email])["balance"])
    }

    fn spend(&self, world: &World, credits: u32, reference: &str) {
        let amount = format!("-{credits}");
        world.json(&[
            "ledger",
            "adjust",
            &self.email,
            &amount,
            "--ref",
            reference,
            "--reason",
            "spent",
        ]);
    }
}

impl Stripe {
    /// The holder enters a card on the newest page.
    fn enter_card(&self) {
        let session = self.sessions()[0]["id"].as_str().unwrap().to_owned();
        self.act("set_up", &format!("session={session}"));
    }

    fn charges(&self) -> usize {
        self.act("money", "").as_array().unwrap().len()
    }
}

#[test]
fn a_process_that_dies_at_any_step_of_an_automatic_top_up_charges_and_credits_once() {
    if faketime().is_none() {
        return;
    }
    let stripe = Stripe::start();
    let mut world = stripe.sells(Plan::default()).start();
    let holder = Holder::sign_up(&world, "a@example.test");
    holder.set_auto_top_up(world.edge);
    let mut minutes = 0;
    for (count, point) in ["order_stored", "checkout_created", "payment_entered"]
        .into_iter()
        .enumerate()
    {
        world.restart_at(minutes, Some(point));
        match count {
            0 => stripe.enter_card(),
            _ => holder.spend(&world, 1_000, point),
        }
        world.wait_killed();
        let charged = count + usize::from(point != "order_stored");
        assert_eq!(stripe.charges(), charged, "{point}");
        // The poll of the order is due a minute after it.
        minutes += 2;
        world.restart_at(minutes, None);
        wait_for("the charge to be credited", SOON, || {
            let page = holder.page(&world);
            let is_credited = holder.balance(&world) == 1_300 * CREDIT;
            (is_credited && !page.contains("Being charged")).then_some(())
        });
        assert_eq!(stripe.charges(), count + 1, "{point}");
    }
}
