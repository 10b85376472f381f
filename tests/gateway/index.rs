//! The ledger's index while a gateway serves: `kill -9` in a batch and in a rebuild, a batch that
//! cannot be written, and what pages and reports then say.

use crate::client::Request;
use crate::crash::FUNDS;
use crate::surface::Chat;
use crate::world::{SOON, World, wait_for, wait_until};
use std::os::unix::process::ExitStatusExt;

impl World {
    fn index_rows(&self, sql: &str) -> i64 {
        let index = rusqlite::Connection::open(self.data_dir().join("index.db")).unwrap();
        index.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// Checks that a report has this number of responses, and lacks none.
    #[track_caller]
    fn reports_all(&self, usage: &Request, responses: usize) {
        let report = self.ask(usage).json();
        assert_eq!(report["total"]["responses"], responses, "{report}");
        assert!(report.get("entries_not_indexed").is_none(), "{report}");
    }

    fn is_sound(&self) {
        let verdict = self.json(&["ledger", "verify"]);
        assert_eq!(verdict["findings"], serde_json::json!([]), "{verdict}");
    }
}

const ENTRIES: &str = "SELECT count(*) FROM activity";

#[test]
fn a_death_in_a_batch_of_the_index_leaves_it_right() {
    let (mut world, account) = World::with_funds(FUNDS);
    let usage = Request::get("/v1/usage").bearer(&account.key);
    for responses in [2, 4, 6] {
        // All entries but the last one are sealed.
        world.works(Chat, &account.key);
        world.works(Chat, &account.key);
        world.ended(&account, responses);
        let before = world.index_rows("SELECT seq FROM watermark");
        // What is sealed must be in the index, so that this command writes a batch.
        let output = world.command(&["--fail", "mid_index", "ledger", "seal"]);
        assert_eq!(output.status.signal(), Some(9), "{output:?}");
        assert_eq!(world.index_rows("SELECT seq FROM watermark"), before);
        assert_eq!(world.index_rows(ENTRIES), before);
        world.reports_all(&usage, responses);
        world.json(&["ledger", "seal"]);
        assert!(world.index_rows("SELECT seq FROM watermark") > before);
        world.reports_all(&usage, responses);
        world.is_sound();
    }
    // The entries that a process had in memory are indexed again by the next one.
    world.works(Chat, &account.key);
    world.ended(&account, 7);
    world.reports_all(&usage, 7);
    world.kill();
    world.start_gateway();
    world.reports_all(&usage, 7);
}

#[test]
fn a_rebuild_that_dies_changes_nothing_and_one_that_ends_repairs_a_running_gateway() {
    let (world, account) = World::with_funds(FUNDS);
    world.works(Chat, &account.key);
    world.ended(&account, 1);
    let usage = Request::get("/v1/usage").bearer(&account.key);
    assert_eq!(world.ask(&usage).json()["total"]["responses"], 1);
    // Writes what is in the gateway's memory.
    assert!(world.command(&["ledger", "reindex"]).status.success());
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
}

#[test]
fn an_index_that_cannot_be_written_stops_no_request_and_pages_show_every_entry() {
    let world = World::new();
    let (_, cookie) = world.sign_up("a@example.test", "");
    let (_, key) = world.key("a@example.test", "test");
    let usage = Request::get("/v1/usage").bearer(&key);
    world.reports_all(&usage, 0);
    let index = rusqlite::Connection::open(world.data_dir().join("index.db")).unwrap();
    index.execute_batch("BEGIN IMMEDIATE").unwrap();
    let before = world.index_rows(ENTRIES);
    let id = world.works(Chat, &key).request_id();
    wait_for("the debit", SOON, || {
        let receipt = Request::get(&format!("/v1/receipts/{id}")).bearer(&key);
        (world.ask(&receipt).status == 200).then_some(())
    });
    world.reports_all(&usage, 1);
    for path in ["activity", "spending", "statement", "conversations"] {
        let page = Request::get(&format!("/dashboard/{path}")).header("cookie", &cookie);
        let text = world.ask(&page).text();
        assert!(!text.contains("index-lag"), "{path}: {text}");
    }
    let page = Request::get("/dashboard/activity").header("cookie", &cookie);
    assert!(world.ask(&page).text().contains(&id));
    // No page has written anything, and the metric counts what the file lacks.
    assert_eq!(world.index_rows(ENTRIES), before);
    let ledger = rusqlite::Connection::open(world.data_dir().join("ledger.db")).unwrap();
    let entries: f64 = ledger
        .query_row("SELECT max(seq) FROM entry", [], |row| row.get(0))
        .unwrap();
    wait_until("the metric", SOON, || {
        world.metric("gateway_index_lag_entries", &[]) == entries
    });
    index.execute_batch("ROLLBACK").unwrap();
    assert!(world.command(&["ledger", "reindex"]).status.success());
    world.wait_metric("gateway_index_lag_entries", &[], 0.0);
    world.reports_all(&usage, 1);
}
