//! Kills `account merge` after each of its steps, tries then whatever could lose or double credits,
//! and completes the merge.

use crate::account::{Account, credits, micro};
use crate::client::Request;
use crate::surface::Messages;
use crate::world::{Plan, SOON, World, binary, wait_until};
use serde_json::json;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

const CREDIT: i64 = 1_000_000;

/// Runs `account merge`, which must die at the failpoint.
fn kill_merge(world: &World, point: &str, from: &Account, into: &Account) {
    let merge = ["account", "merge", &from.id, "--into", &into.id];
    let killed = world.command(&[&["--fail", point], &merge[..]].concat());
    assert_eq!(killed.status.signal(), Some(9), "{point}: {killed:?}");
}

fn accounts(world: &World, name: &str) -> [Account; 3] {
    [("from", 20), ("into", 3), ("other", 1)].map(|(side, funds)| {
        let email = format!("{side}-{name}@example.test");
        let account = world.account_with(&email, &["--no-trial"]);
        world.grant(&account, &credits(funds * CREDIT), &account.id);
        account
    })
}

/// Kills a merge at each failpoint. Whatever is tried then is refused with words, or harmless, and
/// the same merge again moves everything once.
fn merges_move_everything_once(world: &World, points: &[&str]) {
    let api = || world.admin_api().unwrap();
    for point in points {
        let [from, into, other] = accounts(world, point);
        let request = Messages.whole(&from.key, "input=1000 output=1000");
        let request_id = world.ask(&request).request_id();
        world.ended(&from, 1);
        let of = |account: &Account| format!("/accounts/{}", account.id);
        let merge = |from: &Account| format!("{}/merge", of(from));
        let suspend = |account| api().post(&format!("{}/suspend", of(account)), &json!({}));
        let balance = |account: &Account| world.shown(account).balance;
        let into_into = json!({"into": into.id});
        suspend(&from);
        kill_merge(world, point, &from, &into);
        let shown = world.json(&["account", "show", &from.id]);
        assert!(
            shown["merges"][0]
                .as_str()
                .unwrap()
                .contains("complete it with"),
            "{shown}"
        );

        suspend(&into);
        let amount = |reference: &str| json!({"credits": "5", "ref": reference});
        for (path, body) in [
            (merge(&from), json!({"into": other.id})),
            (merge(&from), json!({"into": into.id, "member": other.id})),
            (merge(&into), json!({"into": other.id})),
            (merge(&into), json!({"into": from.id})),
            (merge(&other), json!({"into": from.id})),
            (format!("{}/resume", of(&from)), json!({})),
            (format!("{}/grants", of(&from)), amount("late")),
            (format!("{}/topups", of(&from)), amount("late")),
            (
                format!("{}/adjustments", of(&from)),
                json!({"credits": "-1", "ref": "late", "reason": "late"}),
            ),
            (
                format!("{}/grants", of(&into)),
                amount(&format!("merge-in:{}:1", from.id)),
            ),
            (format!("{}/keys", of(&from)), json!({"name": "late"})),
            (
                format!("{}/delete", of(&from)),
                json!({"confirmation": from.email}),
            ),
            (
                format!("{}/delete", of(&into)),
                json!({"confirmation": into.email}),
            ),
        ] {
            let refused = api().ask(&path, &body);
            let text = refused.text();
            assert_eq!(refused.status, 422, "{point}, {path} {body}: {text}");
            assert!(text.contains("merge"), "{point}, {path} {body}: {text}");
        }
        // What the gateway itself posts late is moved too.
        let path = format!("/requests/{request_id}/refunds");
        api().post(&path, &json!({"ref": format!("late-{point}")}));
        for is_new in [true, false] {
            let merged = api().post(&merge(&from), &into_into);
            assert_eq!(merged["is_new"], is_new, "{point}: {merged}");
            assert_eq!(micro(&merged["credits"]), 20 * CREDIT, "{point}: {merged}");
            let balances = [&from, &into, &other].map(balance);
            assert_eq!(balances, [0, 23 * CREDIT, CREDIT], "{point}");
        }
        assert_eq!(
            world.json(&["account", "show", &from.id])["status"],
            "deleted"
        );
        api().post(&format!("{}/resume", of(&into)), &json!({}));
        let credits = Request::get("/v1/credits").bearer(&from.key);
        wait_until("the key to work on", SOON, || {
            let answer = world.ask(&credits);
            answer.status == 200 && micro(&answer.json()["balance"]) == 23 * CREDIT
        });
    }
    let verdict = world.json(&["ledger", "verify"]);
    assert_eq!(verdict["findings"], json!([]), "{verdict}");
}

#[test]
fn a_merge_that_is_killed_anywhere_moves_everything_once() {
    let mut world = World::new();
    let points = ["merge_stored", "merged_out", "merged_in", "merge_moved"];
    merges_move_everything_once(&world, &points);

    let [from, into, _] = accounts(&world, "restart");
    world.json(&["account", "suspend", &from.id]);
    kill_merge(&world, "merged_out", &from, &into);
    let adjust = ["ledger", "adjust", &from.id, "-1", "--ref", "late"];
    let refused = world.command(&[&adjust[..], &["--reason", "late"]].concat());
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("is being merged into"), "{text}");
    world.kill();
    world.start_gateway();
    world.wait_log("completed the merge of account");
    assert_eq!(world.shown(&into).balance, 23 * CREDIT);
    assert_eq!(world.standing(&into).balance, 23 * CREDIT);
}

/// The end of a request's body arrives when its account is being merged.
#[test]
fn a_request_that_began_before_the_suspension_is_paid_before_the_rest_moves() {
    let world = World::new();
    let [from, into, _] = accounts(&world, "late");
    let request = Messages.stream(&from.key, "events=10 hold=5 input=1000 output=50");
    let bytes = request.bytes();
    let (start, end) = bytes.split_at(bytes.len() - 1);
    let mut connection = world.connect();
    assert!(connection.send(start));
    // The gateway has authenticated the key when it reads the body.
    wait_until("the gateway to read the body", SOON, || {
        world.metric("gateway_bodies_in_flight_bytes", &[]) > 0.0
    });
    world.json(&["account", "suspend", &from.id]);
    kill_merge(&world, "merge_stored", &from, &into);
    assert!(connection.send(end));
    let mut answer = connection.begin();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(world.shown(&from).held > 0);
    let merge = ["account", "merge", &from.id, "--into", &into.id];
    let merging = Command::new(binary())
        .args(merge)
        .arg("-c")
        .arg(&world.config)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the merge to find what the request holds", SOON, || {
        let log = world.command(&["audit", "show"]).stdout;
        String::from_utf8_lossy(&log).contains("cannot deduct")
    });
    world.vendor.release();
    Messages.completes(&mut connection, &mut answer);
    // It waits for some seconds only, which a busy machine may take.
    let merged = merging.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&merged.stderr);
    assert!(
        merged.status.success() || text.contains("complete it with"),
        "{text}"
    );
    world.json(&merge);
    let spent = Messages.cost(1000, 50);
    let balances = [&from, &into].map(|account| world.shown(account).balance);
    assert_eq!(balances, [0, 23 * CREDIT - spent]);
}

#[test]
fn a_merge_with_a_shared_store_that_is_killed_anywhere_moves_everything_once() {
    let world = Plan::default().shared().start();
    merges_move_everything_once(&world, &["taken_there", "merged_out"]);
}
