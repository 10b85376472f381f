//! Tests two edges, a sidecar and a real Redis, each a process: an account's credit can be spent at
//! either edge and is debited once, whichever of the four processes dies.
//!
//! Both edges call the same simulated vendor. The tests compare the clients' log (`crash.rs`) with
//! the sidecar's ledger.

use crate::account::{Account, Standing, micro, taken};
use crate::client::{Answer, Connection, Request};
use crate::crash::{self, Habit, Log};
use crate::surface::{BOTH, Chat, LEDGER_UNAVAILABLE, Messages, Surface};
use crate::world::{Plan, SOON, World, wait_for};
use serde_json::Value;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use test_world::redis::Server;
use test_world::wait_until;

/// Maximum time until a new request is refused when the store is gone: an instant, on a machine
/// that may be busy.
pub const REFUSED_WITHIN: Duration = Duration::from_secs(30);
/// Maximum time until every edge refuses a revoked key. It takes less than a second, and longer on
/// a busy machine. An edge that gets no message asks again after 30 s.
const REVOKED_WITHIN: Duration = Duration::from_secs(20);
const KILLS: u64 = 5;

/// A sidecar and two edges that share a store. They end in the order of the fields: all processes
/// must exit with 0, and `ledger verify` compares the ledger with the store.
pub struct Fleet<R = Server> {
    pub edges: Vec<World>,
    pub sidecar: World,
    pub redis: R,
}

impl Fleet {
    pub fn new() -> Self {
        Self::with(|plan| plan)
    }

    /// Like [`Fleet::new`], with a config changed by `edit`.
    pub fn with(edit: impl Fn(Plan) -> Plan) -> Self {
        Self::with_edges(2, edit)
    }

    /// Like [`Fleet::with`], with this number of edges.
    pub fn with_edges(count: usize, edit: impl Fn(Plan) -> Plan) -> Self {
        let redis = Server::start();
        let store = format!("{{kind: redis, url: \"redis://127.0.0.1:{}\"}}", redis.port);
        Self::of_edges(count, redis, &store, edit)
    }
}

impl<R> Fleet<R> {
    /// `store` is the value of the config key.
    pub fn on(redis: R, store: &str) -> Self {
        Self::on_with(redis, store, |plan| plan)
    }

    /// Like [`Fleet::on`], with a config changed by `edit`.
    pub fn on_with(redis: R, store: &str, edit: impl Fn(Plan) -> Plan) -> Self {
        Self::of_edges(2, redis, store, edit)
    }

    fn of_edges(count: usize, redis: R, store: &str, edit: impl Fn(Plan) -> Plan) -> Self {
        let store = format!("store: {store}");
        let plan = |role| {
            edit(
                Plan::default()
                    .role(role)
                    .edit("store: {kind: embedded}", &store),
            )
        };
        let sidecar = plan("sidecar").start();
        let edge = || {
            plan("edge")
                .sidecar(sidecar.sidecar)
                .endpoints(&[sidecar.vendor.port])
                .start()
        };
        let edges = std::iter::repeat_with(edge).take(count).collect();
        Self {
            redis,
            sidecar,
            edges,
        }
    }

    /// An account with `micro` µc whose key both edges know.
    pub fn funded(&self, micro: i64) -> Account {
        let account = self.sidecar.funded(micro);
        for edge in &self.edges {
            self.wait_known(edge, &account.key);
        }
        account
    }

    pub fn wait_known(&self, edge: &World, key: &str) {
        let credits = Request::get("/v1/credits").bearer(key);
        wait_until("an edge to know the key", SOON, || {
            edge.ask(&credits).status == 200
        });
    }

    /// Waits until the ledger has the entries of all `requests`, nothing is held, and every edge
    /// and the command line report the same balance. Returns that balance and all entries by
    /// request.
    #[track_caller]
    pub fn settled<'a>(
        &self,
        account: &Account,
        requests: impl IntoIterator<Item = &'a String> + Clone,
    ) -> (i64, HashMap<String, Value>) {
        let began = Instant::now();
        loop {
            let before = self.sidecar.endings(account).len();
            let balance = micro(&self.sidecar.json(&["account", "show", &account.id])["balance"]);
            let standings: Vec<_> = self
                .edges
                .iter()
                .map(|edge| edge.standing(account))
                .collect();
            let endings = self.sidecar.endings(account);
            let count = endings.len();
            let id = |ending: &Value| ending["request_id"].as_str().unwrap().to_owned();
            let endings: HashMap<_, _> = endings
                .into_iter()
                .map(|ending| (id(&ending), ending))
                .collect();
            assert_eq!(endings.len(), count, "a request ended twice");
            let missing = requests
                .clone()
                .into_iter()
                .filter(|id| !endings.contains_key(*id))
                .count();
            let settled = Standing {
                balance,
                held: 0,
                available: balance,
            };
            // No entry was added between the two reads. Requests that clients abandoned may still
            // add some.
            if missing == 0
                && before == count
                && standings.iter().all(|standing| *standing == settled)
            {
                return (balance, endings);
            }
            let state = format!(
                "{missing} endings missing, {standings:?} at the edges, {balance} in the ledger"
            );
            assert!(began.elapsed() < SOON, "{state}");
        }
    }

    /// Runs `chaos` while clients of all kinds send requests to both edges.
    pub fn under_load(&mut self, account: &Account, chaos: impl FnOnce(&mut Self)) -> Log {
        let (first, second) = (self.edges[0].edge, self.edges[1].edge);
        let habits = [Habit::Whole, Habit::Stream, Habit::Abort];
        crash::under_load_at([first, second], &account.key, &habits, || chaos(self))
    }

    /// Waits until the vendor has received this number of further requests.
    #[track_caller]
    pub fn wait_calls(&self, more: u64) {
        let vendor = &self.sidecar.vendor;
        let before = vendor.calls();
        wait_until("more requests", SOON, || vendor.calls() >= before + more);
    }

    /// Checks that each answer which a client received in full was debited exactly once, and that
    /// the ledger adds up to the µc.
    #[track_caller]
    pub fn matches(&self, account: &Account, log: &Log) {
        self.matches_of(account, log, crash::FUNDS);
    }

    /// Like [`Fleet::matches`], for an account that was granted `funds` µc.
    #[track_caller]
    pub fn matches_of(&self, account: &Account, log: &Log, funds: i64) {
        self.sidecar.vendor.wait_idle();
        // Requests may be refused for a moment after a process has died. Other failures are not
        // allowed.
        let odd: Vec<_> = log
            .odd
            .iter()
            .filter(|odd| !odd.starts_with("503 ") && !odd.starts_with("529 "))
            .collect();
        assert!(
            odd.is_empty(),
            "{} odd answers: {:?}",
            odd.len(),
            odd.first()
        );
        assert!(
            log.whole.len() > 50,
            "{} answers are too few to tell",
            log.whole.len()
        );
        let (balance, endings) = self.settled(account, &log.whole);
        for id in &log.whole {
            let ending = &endings[id];
            assert!(
                ending["outcome"] == "completed" && micro(&ending["credits"]) > 0,
                "{ending}"
            );
        }
        let all: Vec<_> = endings.values().cloned().collect();
        assert_eq!(taken(&all), funds - balance, "drift");
    }
}

#[test]
fn both_edges_answer_on_one_account_exactly() {
    let fleet = Fleet::new();
    let account = fleet.funded(10_000_000);
    let mut spent = 0;
    let mut asked = Vec::new();
    for surface in BOTH {
        for edge in &fleet.edges {
            let whole = edge.expect(200, &surface.whole(&account.key, "input=10 output=5"));
            let stream = edge.ask(&surface.stream(&account.key, "events=3 input=10 output=5"));
            assert!(surface.is_complete(&stream), "{}", stream.text());
            spent += 2 * surface.cost(10, 5);
            asked.extend([
                (surface, whole.request_id()),
                (surface, stream.request_id()),
            ]);
        }
    }
    for (surface, request_id) in &asked {
        for edge in &fleet.edges {
            let receipt = edge.receipt(&account, request_id);
            assert_eq!(micro(&receipt["credits"]), surface.cost(10, 5), "{receipt}");
        }
    }
    let (balance, endings) = fleet.settled(&account, asked.iter().map(|(_, id)| id));
    assert_eq!((balance, endings.len()), (10_000_000 - spent, asked.len()));
    // The sidecar adds the usage up; each edge passes the question on, with its parameters.
    for edge in &fleet.edges {
        let usage = |query: &str| {
            edge.ask(&Request::get(&format!("/v1/usage{query}")).bearer(&account.key))
        };
        let report = usage("?group_by=model");
        assert_eq!(report.status, 200, "{}", report.text());
        let report = report.json();
        assert_eq!(micro(&report["total"]["credits"]), spent, "{report}");
        assert_eq!(report["total"]["responses"], asked.len());
        assert_eq!(report["group_by"], serde_json::json!(["model"]));
        let refused = usage("?group_by=hour");
        assert_eq!(refused.status, 400);
        assert_eq!(refused.json()["error"]["param"], "group_by");
    }
    // A grant posted in the ledger reaches both edges.
    fleet
        .sidecar
        .json(&["account", "grant", &account.id, "5", "--ref", "more"]);
    for edge in &fleet.edges {
        wait_until("the grant", SOON, || {
            edge.standing(&account).balance == balance + 5_000_000
        });
    }
    // The key decides which account it is, not a header of the client.
    let other = fleet
        .sidecar
        .account_with("other@example.test", &["--no-trial"]);
    fleet.wait_known(&fleet.edges[0], &other.key);
    let path = format!("/v1/receipts/{}", asked[0].1);
    let foreign = Request::get(&path)
        .bearer(&other.key)
        .header("x-gateway-account", &account.id);
    fleet.edges[0].expect(404, &foreign);
    let foreign = Request::get("/v1/usage")
        .bearer(&other.key)
        .header("x-gateway-account", &account.id);
    let report = fleet.edges[0].ask(&foreign).json();
    assert_eq!(report["total"]["responses"], 0, "{report}");
    // The sidecar serves the pages, through either edge.
    for edge in &fleet.edges {
        edge.expect(200, &Request::get("/dashboard/sign-in"));
    }
}

#[test]
fn a_trial_is_spent_at_both_edges() {
    let fleet = Fleet::new();
    let account = fleet.sidecar.account();
    let mut asked = Vec::new();
    for (edge, surface) in fleet.edges.iter().zip(BOTH) {
        fleet.wait_known(edge, &account.key);
        asked.push(edge.works(surface, &account.key).request_id());
    }
    let (balance, _) = fleet.settled(&account, &asked);
    assert_eq!(
        balance,
        300_000_000 - Chat.cost(10, 10) - Messages.cost(10, 10)
    );
}

#[test]
fn a_price_that_only_an_edge_has_read_reaches_the_ledger_with_what_it_billed() {
    let fleet = Fleet::new();
    let account = fleet.funded(10_000_000);
    let edge = &fleet.edges[0];
    let text = std::fs::read_to_string(&edge.config).unwrap();
    assert!(
        text.contains("output: \"1400\""),
        "another price of {}",
        Chat.model()
    );
    std::fs::write(
        &edge.config,
        text.replace("output: \"1400\"", "output: \"2800\""),
    )
    .unwrap();
    edge.signal("HUP");
    edge.wait_log("reloaded");
    let asked = [
        edge.works(Chat, &account.key),
        fleet.edges[1].works(Chat, &account.key),
    ];
    let (balance, _) = fleet.settled(&account, &asked.map(|answer| answer.request_id()));
    assert_eq!(
        balance,
        10_000_000 - Chat.cost(10, 20) - Chat.cost(10, 10),
        "each as its edge has it"
    );
    // `close` checks with the ledger that each debit is right at its price.
}

/// The edges' API trusts its callers, so a browser that a stranger's name led to it gets nothing.
#[track_caller]
fn edges_alone_may_ask(sidecar: &World, account: &Account) {
    for (host, status) in [("evil.example", 421), ("sidecar", 200)] {
        let mut connection = Connection::open(sidecar.sidecar);
        let head = format!(
            "GET /v1/credits HTTP/1.1\r\nhost: {host}\r\nx-gateway-account: {}\r\n\r\n",
            account.id
        );
        connection.send(head.as_bytes());
        assert_eq!(connection.answer().status, status, "{host}");
    }
}

#[test]
fn a_revoked_key_is_soon_refused_at_every_edge() {
    let fleet = Fleet::new();
    let account = fleet.funded(10_000_000);
    edges_alone_may_ask(&fleet.sidecar, &account);
    let (key_id, key) = fleet.sidecar.key(&account.id, "doomed");
    for edge in &fleet.edges {
        fleet.wait_known(edge, &key);
        edge.works(Chat, &key);
    }
    fleet.sidecar.json(&["key", "revoke", &key_id]);
    let revoked = Instant::now();
    for edge in &fleet.edges {
        wait_for(
            "the key to be refused",
            REVOKED_WITHIN.saturating_sub(revoked.elapsed()),
            || {
                let answer = edge.ask(&Chat.whole(&key, "input=10 output=10"));
                (answer.status == 401).then_some(())
            },
        );
        edge.works(Messages, &account.key);
    }
}

#[test]
fn an_edge_that_is_killed_under_load_loses_and_doubles_nothing() {
    let mut fleet = Fleet::new();
    let account = fleet.funded(crash::FUNDS);
    let log = fleet.under_load(&account, |fleet| {
        for kill in 0..KILLS {
            fleet.wait_calls(40 + kill * 17);
            fleet.edges[0].kill();
            fleet.edges[0].start_gateway();
        }
        fleet.wait_calls(40);
    });
    fleet.matches(&account, &log);
}

#[test]
fn a_sidecar_that_is_killed_under_load_loses_and_doubles_nothing() {
    let mut fleet = Fleet::new();
    let account = fleet.funded(crash::FUNDS);
    let log = fleet.under_load(&account, |fleet| {
        for kill in 0..KILLS {
            fleet.wait_calls(40 + kill * 17);
            fleet.sidecar.kill();
            // Meanwhile the edges serve.
            fleet.wait_calls(20);
            fleet.sidecar.start_gateway();
        }
    });
    fleet.matches(&account, &log);
    assert!(
        log.cut.is_empty(),
        "no answer depends on the sidecar: {} cut",
        log.cut.len()
    );
}

#[test]
fn without_the_store_new_work_is_refused_at_once_and_running_work_is_finished_and_paid() {
    let mut fleet = Fleet::new();
    let account = fleet.funded(100_000_000);
    let begin = |(surface, edge): (Surface, &World)| {
        let (connection, answer) =
            edge.begin_stream(&surface.stream(&account.key, "events=20 hold=5 input=10 output=5"));
        (surface, connection, answer)
    };
    let running: Vec<(Surface, Connection, Answer)> =
        BOTH.into_iter().zip(&fleet.edges).map(begin).collect();
    fleet.redis.kill();
    for edge in &fleet.edges {
        for surface in BOTH {
            let began = Instant::now();
            let answer = edge.ask(&surface.whole(&account.key, "input=10 output=10"));
            let took = began.elapsed();
            surface.fails_as(&answer, LEDGER_UNAVAILABLE);
            assert!(took < REFUSED_WITHIN, "refused after {took:?}");
        }
    }
    fleet.sidecar.vendor.release();
    let finished: Vec<_> = running
        .into_iter()
        .map(|(surface, mut connection, mut answer)| {
            surface.completes(&mut connection, &mut answer);
            (surface, answer.request_id())
        })
        .collect();
    fleet.redis.start_again();
    for edge in &fleet.edges {
        wait_until("the edge to admit again", SOON, || {
            edge.ask(&Request::get("/v1/credits").bearer(&account.key))
                .status
                == 200
        });
    }
    let (balance, endings) = fleet.settled(&account, finished.iter().map(|(_, id)| id));
    for (surface, request_id) in &finished {
        let ending = &endings[request_id];
        assert_eq!(micro(&ending["credits"]), surface.cost(10, 5), "{ending}");
    }
    assert_eq!(
        balance,
        100_000_000 - Chat.cost(10, 5) - Messages.cost(10, 5),
        "and nothing else"
    );
}

#[test]
fn credit_for_ten_admits_exactly_ten_over_both_edges() {
    let fleet = Fleet::new();
    let marker = "events=9 hold=5 input=10 output=5";
    let body = Chat.body(marker, true, 200);
    let hold = body.to_string().len() as i64 * Chat.prices().0 + 200 * Chat.prices().1;
    let account = fleet.funded(10 * hold);
    let request = Chat
        .request(&account.key, &body)
        .header("x-gateway-strict", "true")
        .bytes();
    let ask = |mut connection: Connection| {
        connection.send(&request);
        let answer = connection.begin();
        (connection, answer)
    };
    let connections: Vec<_> = fleet
        .edges
        .iter()
        .cycle()
        .take(32)
        .map(World::connect)
        .collect();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = connections
            .into_iter()
            .map(|connection| scope.spawn(|| ask(connection)))
            .collect();
        asked
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let statuses: Vec<_> = answers.iter().map(|(_, answer)| answer.status).collect();
    let mut running: Vec<_> = answers
        .into_iter()
        .filter(|(_, answer)| answer.status == 200)
        .collect();
    // On a busy machine some requests time out waiting for the store, and their credit comes back.
    let in_vain = statuses.iter().filter(|status| **status == 503).count();
    assert!(
        statuses
            .iter()
            .all(|status| matches!(status, 200 | 402 | 503)),
        "{statuses:?}"
    );
    assert!(
        running.len() <= 10 && (in_vain > 0 || running.len() == 10),
        "{statuses:?}"
    );
    while running.len() < 10 {
        running.push(wait_for("the rest of the credit to be free", SOON, || {
            Some(ask(fleet.edges[1].connect())).filter(|(_, answer)| answer.status == 200)
        }));
    }
    for edge in &fleet.edges {
        wait_for("the eleventh to be refused", SOON, || {
            let (_, answer) = ask(edge.connect());
            assert!(matches!(answer.status, 402 | 503), "{}", answer.status);
            (answer.status == 402).then_some(())
        });
    }
    for edge in &fleet.edges {
        assert_eq!(
            edge.standing(&account),
            Standing {
                balance: 10 * hold,
                held: 10 * hold,
                available: 0
            }
        );
    }
    wait_until("the command line to see what is held", SOON, || {
        fleet.sidecar.shown(&account).held == 10 * hold
    });
    fleet.sidecar.vendor.release();
    let mut admitted = Vec::new();
    for (mut connection, mut answer) in running {
        Chat.completes(&mut connection, &mut answer);
        admitted.push(answer.request_id());
    }
    let (balance, endings) = fleet.settled(&account, &admitted);
    let completed = endings
        .values()
        .filter(|ending| ending["outcome"] == "completed")
        .count();
    assert_eq!((completed, balance), (10, 10 * (hold - Chat.cost(10, 5))));
}
