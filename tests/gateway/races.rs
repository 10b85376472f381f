//! Tests two edges that race for one account's credit: together they admit exactly as many requests
//! as the credit pays for, whatever the order.
//!
//! A request costs exactly what it holds, so no spent credit comes back. `tests/stores/main.rs`
//! races the store alone a thousand times.

use crate::account::{Account, Standing, credits};
use crate::client::Connection;
use crate::shared::Fleet;
use crate::surface::Chat;
use crate::world::{SOON, World, wait_for};
use serde_json::Value;

const AT_ONCE: usize = 64;
/// Number of requests that the account can pay for, by round.
const PAID_FOR: [i64; 5] = [10, 1, 63, 31, 64];
const OUTPUT: i64 = 200;

fn account(fleet: &Fleet, name: &str, micro: i64) -> Account {
    let account = fleet
        .sidecar
        .account_with(&format!("{name}@example.test"), &["--no-trial"]);
    fleet.sidecar.json(&[
        "account",
        "grant",
        &account.id,
        &credits(micro),
        "--ref",
        name,
    ]);
    fleet
        .edges
        .iter()
        .for_each(|edge| fleet.wait_known(edge, &account.key));
    account
}

/// A request that costs exactly its hold, because the vendor reports as many input tokens as the
/// body has bytes. Returns the cost in µc, too.
pub fn exact_request(key: &str) -> (Vec<u8>, i64) {
    let body = body();
    let (input, output) = Chat.prices();
    let cost = body.to_string().len() as i64 * input + OUTPUT * output;
    let request = Chat.request(key, &body);
    (request.header("x-gateway-strict", "true").bytes(), cost)
}

fn body() -> Value {
    let of = |bytes: usize| {
        Chat.body(
            &format!("input={bytes} output={OUTPUT}"),
            false,
            OUTPUT as u64,
        )
    };
    let bytes = (100..1_000).find(|bytes| of(*bytes).to_string().len() == *bytes);
    of(bytes.expect("a body that tells its own length"))
}

fn ask(edge: &World, request: &[u8]) -> u16 {
    let mut connection = Connection::open(edge.edge);
    connection.send(request);
    let mut answer = connection.begin();
    connection.finish(&mut answer);
    assert!(
        matches!(answer.status, 200 | 402 | 503),
        "{} {}",
        answer.status,
        answer.text()
    );
    answer.status
}

#[test]
fn credit_for_so_many_admits_exactly_so_many_over_both_edges() {
    race_for_credit(PAID_FOR.len());
}

#[test]
#[ignore = "long simulation: 50 races of two edges, about a minute"]
fn credit_for_so_many_admits_exactly_so_many_in_each_of_fifty_races() {
    race_for_credit(50);
}

#[allow(clippy::print_stdout, reason = "figures for a person")]
fn race_for_credit(rounds: usize) {
    let fleet = Fleet::new();
    let (_, cost) = exact_request("");
    let mut in_vain = 0;
    for (round, paid_for) in PAID_FOR.into_iter().cycle().take(rounds).enumerate() {
        // One µc less than a further request would cost.
        let account = account(&fleet, &format!("race-{round}"), paid_for * cost + cost - 1);
        let (request, _) = exact_request(&account.key);
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let edges = fleet.edges.iter().cycle().take(AT_ONCE);
            let asked: Vec<_> = edges
                .map(|edge| scope.spawn(|| ask(edge, &request)))
                .collect();
            asked
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let count = |status| statuses.iter().filter(|known| **known == status).count();
        in_vain += count(503);
        let mut admitted = count(200) as i64;
        assert!(
            admitted <= paid_for,
            "round {round}: {admitted} admitted of {paid_for}"
        );
        // On a busy machine some requests time out waiting for the store, and their credit comes
        // back.
        wait_for("the rest of the credit to be spent", SOON, || {
            let status = ask(&fleet.edges[round % 2], &request);
            admitted += i64::from(status == 200);
            (status == 402 && fleet.edges[0].standing(&account).held == 0).then_some(())
        });
        assert_eq!(admitted, paid_for, "round {round}");
        let left = Standing {
            balance: cost - 1,
            held: 0,
            available: cost - 1,
        };
        for edge in &fleet.edges {
            assert_eq!(edge.standing(&account), left, "round {round}");
        }
    }
    println!(
        "{rounds} rounds of {AT_ONCE} requests at once; {in_vain} waited for the store in vain"
    );
}
