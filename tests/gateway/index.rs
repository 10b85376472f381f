//! The ledger's index while a gateway serves: `kill -9` in a batch and in a rebuild, a batch that
//! cannot be written, and what pages and reports then say.

use crate::client::Request;
use crate::crash::FUNDS;
use crate::surface::Chat;
use crate::world::{SOON, World, wait_for};
use std::os::unix::process::ExitStatusExt;

impl World {
    fn index_rows(&self, sql: &str) -> i64 {
        let index = rusqlite::Connection::open(self.data_dir().join("index.db")).unwrap();
        index.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn is_sound(&self) {
        let verdict = self.json(&["ledger", "verify"]);
        assert_eq!(verdict["findings"], serde_json::json!([]), "{verdict}");
    }
}

const ENTRIES: &str = "SELECT count(*) FROM activity";

#[test]
fn a_death_in_a_batch_of_the_index_leaves_it_right() {
    let mut world = World::new();
    let account = world.funded(FUNDS);
    world.works(Chat, &account.key);
    world.ended(&account, 1);
    let usage = Request::get("/v1/usage").bearer(&account.key);
    for round in 1..=3 {
        world.kill();
        world.start_failing(Some("mid_index"));
        let id = world.works(Chat, &account.key).request_id();
        world.receipt(&account, &id);
        let before = world.index_rows("SELECT seq FROM watermark");
        // The report indexes the debit, and the gateway dies there.
        assert!(crate::client::try_ask(world.edge, &usage).is_none());
        world.wait_killed();
        assert_eq!(world.index_rows("SELECT seq FROM watermark"), before);
        assert_eq!(world.index_rows(ENTRIES), before);
        world.start_gateway();
        let report = world.ask(&usage).json();
        assert_eq!(report["total"]["responses"], round + 1, "{report}");
        assert!(report.get("entries_not_indexed").is_none(), "{report}");
        world.is_sound();
    }
    world.close();
}

#[test]
fn a_rebuild_that_dies_changes_nothing_and_one_that_ends_repairs_a_running_gateway() {
    let world = World::new();
    let account = world.funded(FUNDS);
    world.works(Chat, &account.key);
    world.ended(&account, 1);
    let usage = Request::get("/v1/usage").bearer(&account.key);
    assert_eq!(world.ask(&usage).json()["total"]["responses"], 1);
    let index = rusqlite::Connection::open(world.data_dir().join("index.db")).unwrap();
    let changed = index.execute("UPDATE usage_day SET responses = 7", []);
    assert_eq!(changed.unwrap(), 1);
    let output = world.command(&["--fail", "before_reindex_swap", "ledger", "reindex"]);
    assert_eq!(output.status.signal(), Some(9), "{output:?}");
    assert_eq!(world.ask(&usage).json()["total"]["responses"], 7);
    let left = std::fs::read_dir(world.data_dir()).unwrap();
    let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<_> = names.filter(|name| name.ends_with(".new")).collect();
    assert_eq!(left, Vec::<String>::new());
    let output = world.command(&["ledger", "reindex"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("; 1 rows were wrong"), "{text}");
    assert_eq!(world.ask(&usage).json()["total"]["responses"], 1);
    // The gateway goes on in the new index.
    world.works(Chat, &account.key);
    world.ended(&account, 2);
    assert_eq!(world.ask(&usage).json()["total"]["responses"], 2);
    world.is_sound();
    world.close();
}

#[test]
fn an_index_that_cannot_be_written_stops_no_request_and_pages_say_what_is_missing() {
    let world = World::new();
    let (_, cookie) = world.sign_up("a@example.test", "");
    let (_, key) = world.key("a@example.test", "test");
    let usage = Request::get("/v1/usage").bearer(&key);
    let report = || world.ask(&usage).json();
    assert_eq!(report()["total"]["responses"], 0);
    let index = rusqlite::Connection::open(world.data_dir().join("index.db")).unwrap();
    index.execute_batch("BEGIN IMMEDIATE").unwrap();
    let id = world.works(Chat, &key).request_id();
    wait_for("the debit", SOON, || {
        let receipt = Request::get(&format!("/v1/receipts/{id}")).bearer(&key);
        (world.ask(&receipt).status == 200).then_some(())
    });
    let found = report();
    assert_eq!(found["total"]["responses"], 0);
    assert_eq!(found["entries_not_indexed"], 1, "{found}");
    for path in ["activity", "spending", "statement", "conversations"] {
        let page = Request::get(&format!("/dashboard/{path}")).header("cookie", &cookie);
        let text = world.ask(&page).text();
        assert!(
            text.contains("data-testid=\"index-lag\">1 entries are not indexed yet"),
            "{path}: {text}"
        );
    }
    wait_for("the metric", SOON, || {
        (world.metric("gateway_index_lag_entries", &[]) == 1.0).then_some(())
    });
    index.execute_batch("ROLLBACK").unwrap();
    let found = report();
    assert_eq!(found["total"]["responses"], 1);
    assert!(found.get("entries_not_indexed").is_none(), "{found}");
    let page = Request::get("/dashboard/activity").header("cookie", &cookie);
    assert!(!world.ask(&page).text().contains("index-lag"));
    world.close();
}
