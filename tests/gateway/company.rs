//! A company on one wallet: each member has a budget, and all of them send requests over several
//! edges at once while edges and the sidecar are killed. Nobody spends more than the budget, and
//! the members together have spent what the account has.
//!
//! A request costs exactly what it holds (`races.rs`), and each budget is one µc short of a further
//! request. So a member can spend the budget to the last request, and not one more.

use crate::account::{Account, Standing, credits, micro};
use crate::chaos::{are_refusals, audited};
use crate::client::{Answer, Connection, End};
use crate::races::exact_request;
use crate::shared::Fleet;
use crate::standby::Installation;
use crate::world::{SOON, wait_for, wait_until};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a client waits after an answer that asks it to come back, and at most after several in
/// a row: two thousand clients that all come back at once would keep the store busy for ever.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(4);
/// Parallel requests of each member that spend what the kills left over.
const AT_ONCE_AFTER_KILLS: usize = 2;
/// Kills release credits that were held, so the budgets are spent in several waves.
const MAX_WAVES: usize = 10;

/// A process to kill while the members spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Victim {
    Edge(usize),
    Sidecar,
}

/// The size of a company, and what is killed while it spends.
struct Campaign {
    members: usize,
    /// Parallel requests of each member.
    at_once: usize,
    /// Requests that the smallest budget pays for. Each next member's budget pays for one more.
    paid_for: i64,
    kills: &'static [Victim],
}

struct Member {
    /// Id of the person's own account.
    person: String,
    email: String,
    request: Vec<u8>,
    paid_for: i64,
}

struct Company {
    /// The organisation, with a key that belongs to no member.
    account: Account,
    members: Vec<Member>,
    /// Cost of a request, in µc.
    cost: i64,
    funds: i64,
}

/// What the clients of one member saw.
#[derive(Default)]
struct Seen {
    whole: HashSet<String>,
    /// Requests without a whole answer.
    cut: usize,
    /// Answers that are neither whole nor about the budget.
    odd: Vec<String>,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.whole.extend(other.whole);
        self.cut += other.cut;
        self.odd.extend(other.odd);
    }
}

impl Company {
    /// Founds a company with twice as many credits as all budgets together.
    fn found(fleet: &Fleet, members: usize, paid_for: i64) -> Self {
        let sidecar = &fleet.sidecar;
        let (_, cost) = exact_request("");
        let owner = sidecar.account_with("owner@example.test", &["--no-trial"]);
        let made = sidecar.json(&["org", "create", "Acme", "--owner", &owner.email]);
        let id = made["account_id"].as_str().unwrap().to_owned();
        let (key_id, key) = sidecar.key(&id, "operator's");
        let account = Account {
            id,
            email: String::new(),
            key,
            key_id,
        };
        let members: Vec<_> = (paid_for..)
            .take(members)
            .map(|paid_for| Member::join(fleet, &account.id, paid_for, cost))
            .collect();
        let all_paid_for: i64 = members.iter().map(|member| member.paid_for).sum();
        let funds = 2 * (all_paid_for + 1) * cost;
        sidecar.grant(&account, &credits(funds), "funds");
        for edge in &fleet.edges {
            fleet.wait_known(edge, &account.key);
            wait_until("the grant", SOON, || {
                edge.standing(&account).balance == funds
            });
        }
        Self {
            account,
            members,
            cost,
            funds,
        }
    }

    /// Sends parallel requests of each of `members` until the budget refuses each client, and
    /// meanwhile kills processes, each after an equal part of what the budgets pay for. Returns
    /// what each member's clients saw, and the processes that were killed under load.
    fn spend(
        &self,
        fleet: &mut Fleet,
        members: &[Member],
        campaign: &Campaign,
    ) -> (Vec<Seen>, HashSet<Victim>) {
        let edges: Vec<_> = fleet.edges.iter().map(|edge| edge.edge).collect();
        let (edges, running) = (&*edges, &AtomicUsize::new(0));
        let all_paid_for: i64 = members.iter().map(|member| member.paid_for).sum();
        let step = all_paid_for as u64 / (campaign.kills.len() as u64 + 1);
        let mut killed = HashSet::new();
        let seen = std::thread::scope(|scope| {
            let clients: Vec<Vec<_>> = members
                .iter()
                .map(|member| {
                    let client = |index| {
                        running.fetch_add(1, Ordering::Relaxed);
                        scope.spawn(move || {
                            let seen = member.spend_at(edges, index);
                            running.fetch_sub(1, Ordering::Relaxed);
                            seen
                        })
                    };
                    (0..campaign.at_once).map(client).collect()
                })
                .collect();
            let mut calls = fleet.sidecar.vendor.calls();
            for victim in campaign.kills {
                calls += step;
                wait_for("requests before a kill", 3 * SOON, || {
                    let is_due = fleet.sidecar.vendor.calls() >= calls;
                    (is_due || running.load(Ordering::Relaxed) == 0).then_some(())
                });
                if running.load(Ordering::Relaxed) > 0 {
                    killed.insert(*victim);
                }
                let process = match *victim {
                    Victim::Edge(index) => &mut fleet.edges[index],
                    Victim::Sidecar => &mut fleet.sidecar,
                };
                process.kill();
                process.start_gateway();
            }
            let join = |clients: Vec<std::thread::ScopedJoinHandle<'_, Seen>>| {
                let mut all = Seen::default();
                for client in clients {
                    all.add(client.join().unwrap());
                }
                all
            };
            clients.into_iter().map(join).collect()
        });
        fleet.wait_quiet(std::slice::from_ref(&self.account));
        (seen, killed)
    }

    /// What each member has spent, in µc, by the ids of the persons.
    fn spent(&self, fleet: &Fleet) -> HashMap<String, i64> {
        let shown = fleet.sidecar.json(&["org", "show", &self.account.id]);
        let members = shown["members"].as_array().unwrap();
        let of = |member: &Value| {
            let person = member["account_id"].as_str().unwrap().to_owned();
            (person, micro(&member["spent"]))
        };
        members.iter().map(of).collect()
    }
}

impl Member {
    /// Opens an account for a person, and makes them a member with a budget and a key.
    fn join(fleet: &Fleet, organisation: &str, paid_for: i64, cost: i64) -> Self {
        let sidecar = &fleet.sidecar;
        let email = format!("member-{paid_for}@example.test");
        let person = sidecar.account_with(&email, &["--no-trial"]).id;
        sidecar.json(&["org", "member", "add", organisation, &email]);
        let member = Self {
            person,
            email,
            request: Vec::new(),
            paid_for,
        };
        member.set_budget(fleet, organisation, paid_for, cost);
        let (email, account) = (&member.email, ["--account", organisation]);
        let create = ["key", "create", "--name", "laptop", "--member", email];
        let made = sidecar.json(&[&create[..], &account].concat());
        let key = made["key"].as_str().unwrap();
        for edge in &fleet.edges {
            fleet.wait_known(edge, key);
        }
        let (request, _) = exact_request(key);
        Self { request, ..member }
    }

    /// Sets a budget of one µc less than one more request than `paid_for` would cost.
    fn set_budget(&self, fleet: &Fleet, organisation: &str, paid_for: i64, cost: i64) {
        let budget = format!("{}/total", credits((paid_for + 1) * cost - 1));
        let set = ["org", "member", "set", organisation, &self.email];
        fleet
            .sidecar
            .json(&[&set[..], &["--budget", &budget]].concat());
    }

    /// One client: repeats the request at one edge after the other until the budget refuses it.
    fn spend_at(&self, edges: &[u16], first: usize) -> Seen {
        let (mut seen, mut pause) = (Seen::default(), MIN_PAUSE);
        for edge in edges.iter().cycle().skip(first % edges.len()) {
            match try_ask(*edge, &self.request) {
                None => seen.cut += 1,
                Some(answer) if answer.status == 200 => {
                    seen.whole.insert(answer.request_id());
                    pause = MIN_PAUSE;
                    continue;
                }
                Some(answer) if answer.has("\"member_budget\"") => break,
                Some(answer) => {
                    seen.odd
                        .push(format!("{} {}", answer.status, answer.text()));
                    if answer.status == 402 {
                        break;
                    }
                }
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(MAX_PAUSE);
        }
        seen
    }
}

/// Sends a request on its own connection. Returns `None` if no whole answer came.
fn try_ask(edge: u16, request: &[u8]) -> Option<Answer> {
    let mut connection = Connection::try_open(edge)?;
    if !connection.send(request) {
        return None;
    }
    let mut answer = connection.try_begin()?;
    connection.finish(&mut answer);
    (answer.end() == Some(End::Whole)).then_some(answer)
}

#[test]
fn a_small_company_spends_its_budgets_exactly_over_three_edges_and_a_kill() {
    let campaign = Campaign {
        members: 3,
        at_once: 8,
        paid_for: 12,
        kills: &[Victim::Edge(0)],
    };
    campaign.run();
}

#[test]
#[ignore = "long installation: 30 members with 64 parallel requests each over three edges, and seven kills, about 4 minutes"]
fn a_company_of_thirty_spends_its_budgets_exactly_over_three_edges_and_kills() {
    use Victim::{Edge, Sidecar};
    let campaign = Campaign {
        members: 30,
        at_once: 64,
        paid_for: 70,
        kills: &[
            Edge(0),
            Sidecar,
            Edge(1),
            Edge(2),
            Sidecar,
            Edge(0),
            Edge(1),
        ],
    };
    campaign.run();
}

impl Campaign {
    #[allow(clippy::print_stdout, reason = "figures for a person")]
    fn run(&self) {
        // The requests of a killed edge count until it is back.
        let mut fleet = Fleet::with_edges(3, |plan| {
            plan.edit("signup:", "organisations: true\nsignup:")
                .limit("open_requests_per_account", 10_000)
        });
        let company = Company::found(&fleet, self.members, self.paid_for);
        let began = Instant::now();
        let (mut seen, killed) = company.spend(&mut fleet, &company.members, self);
        let took = began.elapsed();
        let calm = Self {
            kills: &[],
            at_once: AT_ONCE_AFTER_KILLS,
            ..*self
        };
        let mut waves = 1;
        loop {
            let (more, _) = company.spend(&mut fleet, &company.members, &calm);
            waves += 1;
            let admitted: usize = more.iter().map(|seen| seen.whole.len()).sum();
            for (seen, more) in seen.iter_mut().zip(more) {
                seen.add(more);
            }
            if admitted == 0 {
                break;
            }
            assert!(waves < MAX_WAVES, "the budgets are never spent");
        }
        let sum = |count: fn(&Seen) -> usize| seen.iter().map(count).sum::<usize>();
        println!(
            "{} members, {} requests at once: {} answers whole, {} cut, {} refused for a while; {} \
             kills; {waves} waves, the first in {took:?}",
            self.members,
            self.members * self.at_once,
            sum(|seen| seen.whole.len()),
            sum(|seen| seen.cut),
            sum(|seen| seen.odd.len()),
            self.kills.len(),
        );
        for victim in self.kills {
            assert!(killed.contains(victim), "{victim:?} met no request");
        }
        company.adds_up(&fleet, &seen);
        company.admits_one_more(&mut fleet, self.at_once);
        audited(&fleet);
    }
}

impl Company {
    /// Checks that each member has spent the budget to the last request and that each whole answer
    /// is a debit of its member, and that the account has spent what the members have.
    fn adds_up(&self, fleet: &Fleet, seen: &[Seen]) {
        let api = fleet.sidecar.admin_api().unwrap();
        let path = format!("/accounts/{}/receipts", self.account.id);
        let receipts = api.all(&path, "receipts", "before");
        let mut debits: HashMap<&str, HashSet<&str>> = HashMap::new();
        let mut sum = 0;
        for receipt in &receipts {
            let (id, credits) = (&receipt["request_id"], micro(&receipt["credits"]));
            if credits == 0 {
                continue;
            }
            assert_eq!(credits, self.cost, "{receipt}");
            sum += credits;
            let of = debits.entry(receipt["member"].as_str().unwrap());
            let is_new = of.or_default().insert(id.as_str().unwrap());
            assert!(is_new, "debited twice: {receipt}");
        }
        let spent = self.spent(fleet);
        for (member, seen) in self.members.iter().zip(seen) {
            let (email, paid_for) = (&member.email, member.paid_for);
            are_refusals(&seen.odd);
            let debits = &debits[&*member.person];
            let lost = seen.whole.iter().filter(|id| !debits.contains(id.as_str()));
            assert_eq!(lost.count(), 0, "{email}: answers without a debit");
            assert_eq!(debits.len() as i64, paid_for, "{email}: requests paid");
            assert_eq!(spent[&member.person], paid_for * self.cost, "{email}");
        }
        let balance = self.funds - sum;
        let settled = Standing {
            balance,
            held: 0,
            available: balance,
        };
        assert_eq!(fleet.sidecar.shown(&self.account), settled, "Σ members");
        for edge in &fleet.edges {
            assert_eq!(edge.standing(&self.account), settled, "Σ members");
        }
    }

    /// Raises a budget by the cost of one request, and checks that exactly one of many concurrent
    /// requests is admitted.
    fn admits_one_more(&self, fleet: &mut Fleet, at_once: usize) {
        let (member, id) = (&self.members[0], &self.account.id);
        member.set_budget(fleet, id, member.paid_for + 1, self.cost);
        let admitted = wait_for("the edges to know the budget", SOON, || {
            let calm = Campaign {
                members: 1,
                at_once,
                paid_for: 1,
                kills: &[],
            };
            let (seen, _) = self.spend(fleet, &self.members[..1], &calm);
            let admitted = seen.iter().map(|seen| seen.whole.len()).sum();
            Some(admitted).filter(|admitted: &usize| *admitted > 0)
        });
        assert_eq!(admitted, 1);
    }
}

#[test]
fn a_budget_counts_what_a_ledger_in_postgres_has_when_the_store_has_forgotten_it() {
    let mut all = Installation::new();
    let company = Company::found(&all.fleet, 1, 6);
    let member = &company.members[0];
    for _ in 0..4 {
        let answer = try_ask(all.fleet.edges[0].edge, &member.request).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    all.fleet.wait_quiet(std::slice::from_ref(&company.account));
    for sidecar in [&mut all.standby, &mut all.fleet.sidecar] {
        sidecar.signal("TERM");
        assert_eq!(sidecar.wait_end(SOON), 0);
    }
    assert_eq!(all.fleet.redis.cli(&["flushall"]), "OK");
    all.standby.start_gateway();
    all.swap();
    all.standby.start_gateway();
    for edge in &all.fleet.edges {
        all.fleet.wait_known(edge, &company.account.key);
    }
    let campaign = Campaign {
        members: 1,
        at_once: 8,
        paid_for: 6,
        kills: &[],
    };
    let (seen, _) = company.spend(&mut all.fleet, &company.members, &campaign);
    assert_eq!(seen[0].whole.len(), 2, "of six, four were spent");
    are_refusals(&seen[0].odd);
    let spent = company.spent(&all.fleet);
    assert_eq!(spent[&member.person], 6 * company.cost);
    audited(&all.fleet);
    all.close();
}
